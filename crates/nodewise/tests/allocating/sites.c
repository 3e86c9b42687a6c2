/* Blocks of known sizes from known functions, some by way of a helper; threads, a child, and places that are
 * used again. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 8, EACH = 100, KIB = 1024 };

/* A function that is called, and not gone to. */
#define CALLED __attribute__((noinline)) static
#define STAYS __asm__ volatile("" ::: "memory")

static volatile char *sink;

CALLED void *helper(size_t bytes)
{
    char *block = malloc(bytes);
    if (!block)
        abort();
    sink = block;
    STAYS;
    return block;
}

CALLED char *make_table(void)
{
    char *table = helper(1024 * KIB);
    STAYS;
    return table;
}

CALLED char *make_slices(void)
{
    char *slices = helper(3072 * KIB);
    STAYS;
    return slices;
}

CALLED char *grow(char *block, size_t bytes)
{
    block = realloc(block, bytes);
    if (!block)
        abort();
    STAYS;
    return block;
}

CALLED char *zeroed(void)
{
    char *block = calloc(1000, 1000);
    STAYS;
    return block;
}

CALLED char *aligned(void)
{
    void *block;
    if (posix_memalign(&block, 4096, 20 * KIB) != 0)
        abort();
    sink = aligned_alloc(64, 64 * KIB);
    free((void *)sink);
    return block;
}

CALLED char *mapping(void)
{
    char *memory = mmap(NULL, 16 * 4 * KIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(memory + 4 * KIB, 4 * KIB);
    return memory;
}

CALLED void small(void)
{
    for (int i = 0; i < 1000; i++) {
        sink = malloc(4095);
        free((void *)sink);
    }
}

/* A process of its own, whose events would be too many. */
CALLED void many_small(void)
{
    for (int i = 0; i < 1000000; i++) {
        sink = malloc(100);
        free((void *)sink);
    }
}

static void *work(void *argument)
{
    for (int i = 0; i < EACH; i++) {
        char *block = helper(10 * KIB);
        block[0] = 1;
        free(block);
    }
    return argument;
}

CALLED void in_child(char *inherited)
{
    free(inherited);
    ((char *)helper(70 * KIB))[0] = 1;
    _exit(0);
}

int main(int count, char **arguments)
{
    if (count > 1)
        return many_small(), arguments[1] == NULL;
    pthread_t threads[THREADS];
    char *table = make_table(), *slices = make_slices(), *grown = grow(NULL, 8 * KIB);
    sink = zeroed();
    sink = aligned();
    sink = mapping();
    small();
    for (size_t kib = 16; kib <= 8192; kib *= 2)
        grown = grow(grown, kib * KIB);
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, work, NULL) != 0)
            abort();
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    if (fork() == 0)
        in_child(table);
    wait(NULL);
    free(slices);
    /* The same place. */
    return make_table()[0] + table[0] == 1;
}
