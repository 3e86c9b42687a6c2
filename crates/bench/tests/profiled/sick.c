/* sick SECONDS: four threads, one a node and as often as each other, use memory that the first touched. Each
 * uses its slice, and all use a table. Each also has memory that it touches first itself. */
#define _GNU_SOURCE
#include "../guests/in_step.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 4, BYTES = 64 << 20, OWN = 16 << 20 };

static unsigned char *slices, table[BYTES];
static double until;

__attribute__((noinline)) static void fill_slices(void)
{
    for (size_t i = 0; i < BYTES; i += 64)
        slices[i] = i;
}

/* By a function of libc, which makes no frame. */
__attribute__((noinline)) static void load_table(void)
{
    memset(table, 1, BYTES);
    __asm__ volatile("" ::: "memory"); /* so that it is called, and not gone to */
}

__attribute__((noinline)) static unsigned char *allocate_own(void)
{
    unsigned char *own = malloc(OWN);
    for (size_t i = 0; i < OWN; i += 64)
        own[i] = i;
    return own;
}

static void *work(void *argument)
{
    size_t id = (size_t)argument, slice = BYTES / THREADS;
    uint64_t random = id + 1, sum = 0;
    run_on(id);
    unsigned char *own = allocate_own();
    do
        for (int i = 0; i < 1000; i++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            slices[id * slice + (random >> 33) % slice]++;
            sum += table[(random >> 29) % BYTES];
            own[(random >> 35) % OWN]++;
        }
    while (in_step(until));
    return (void *)sum;
}

int main(int count, char **arguments)
{
    pthread_t threads[THREADS];
    run_on(0);
    slices = malloc(BYTES);
    fill_slices();
    load_table();
    begin_rounds(THREADS);
    until = now() + (count > 1 ? atof(arguments[1]) : 10);
    for (size_t i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, work, (void *)i) != 0)
            abort();
    for (size_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    return 7;
}
