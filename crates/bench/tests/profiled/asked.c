/* asked SECONDS: main asks for memory by a helper, and one thread touches it. Four threads, one a node, use
 * it: each its slice, and all a table. Slices lie where other memory has lain before. */
#define _GNU_SOURCE
#include "../guests/in_step.h"
#include <stdint.h>
#include <stdlib.h>

enum { THREADS = 4, BYTES = 48 << 20 };

#define CALLED __attribute__((noinline)) static
/* A function that is called, and not gone to. */
#define STAYS __asm__ volatile("" ::: "memory")

static unsigned char *slices, *table;
static double until;

CALLED void *helper(size_t bytes)
{
    void *memory = malloc(bytes);
    if (!memory)
        abort();
    STAYS;
    return memory;
}

CALLED unsigned char *make_scratch(void)
{
    unsigned char *scratch = helper(BYTES);
    STAYS;
    return scratch;
}

CALLED unsigned char *make_slices(void)
{
    unsigned char *memory = helper(BYTES);
    STAYS;
    return memory;
}

CALLED unsigned char *make_table(void)
{
    unsigned char *memory = helper(BYTES);
    STAYS;
    return memory;
}

CALLED void touch(unsigned char *memory)
{
    for (size_t i = 0; i < BYTES; i += 64)
        memory[i] = i;
}

static void *fill(void *argument)
{
    run_on(0);
    touch(slices);
    touch(table);
    return argument;
}

static void *work(void *argument)
{
    size_t id = (size_t)argument, slice = BYTES / THREADS;
    uint64_t random = id + 1, sum = 0;
    run_on(id);
    do
        for (int i = 0; i < 1000; i++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            slices[id * slice + (random >> 33) % slice]++;
            sum += table[(random >> 29) % BYTES];
        }
    while (in_step(until));
    return (void *)sum;
}

static void run(void *(*function)(void *), size_t count)
{
    pthread_t threads[THREADS];
    for (size_t i = 0; i < count; i++)
        if (pthread_create(&threads[i], NULL, function, (void *)i) != 0)
            abort();
    for (size_t i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
}

int main(int count, char **arguments)
{
    run_on(1);
    unsigned char *scratch = make_scratch();
    touch(scratch);
    free(scratch);
    slices = make_slices();
    table = make_table();
    run(fill, 1);
    begin_rounds(THREADS);
    until = now() + (count > 1 ? atof(arguments[1]) : 10);
    run(work, THREADS);
    return 0;
}
