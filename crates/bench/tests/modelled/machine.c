/* Measures the memory of a modelled machine by the program's own clock, as the shortest of several passes.
 *
 *   machine latency NODES
 *
 * A CPU of each node follows pointers through the memory of each node. CPU and node have the same number. A
 * pair of them gives a line: "CPU NODE NANOSECONDS".
 *
 *   machine stream one|blocked TIMES
 *
 * All CPUs read a part each of memory so many times, on node 0 or on their own nodes: "SECONDS".
 */
#define _GNU_SOURCE
#include "../guests/thread.h"
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { LINE = 64, PAIR = 128, BIND = 2 };

static size_t const chased = 8 << 20, streamed = 4 << 20;

static char *memory_on(size_t bytes, int node)
{
    char *memory = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    unsigned long mask = 1ul << node;
    if (memory == MAP_FAILED || syscall(SYS_mbind, memory, bytes, BIND, &mask, 64, 0))
        exit(1);
    memset(memory, 1, bytes);
    return memory;
}

static uint64_t read_all(char const *memory, size_t bytes)
{
    uint64_t sum = 0;
    for (size_t at = 0; at < bytes; at += LINE)
        sum += *(uint64_t const *)(memory + at);
    return sum;
}

static volatile uint64_t sink;

static void latency(int nodes)
{
    size_t lines = chased / PAIR; /* a prefetcher may bring the other line of a pair */
    uint32_t *order = malloc(lines * sizeof *order);
    for (int node = 0; node < nodes; node++) {
        run_on(0);
        char *memory = memory_on(chased, node), *other = memory_on(chased, 0);
        for (size_t line = 0; line < lines; line++)
            order[line] = line;
        uint64_t random = 88172645463325252;
        for (size_t line = lines - 1; line > 0; line--) {
            random ^= random << 13, random ^= random >> 7, random ^= random << 17;
            size_t to = random % line;
            uint32_t kept = order[line];
            order[line] = order[to], order[to] = kept;
        }
        for (size_t line = 0; line < lines; line++)
            *(void **)(memory + PAIR * order[line]) = memory + PAIR * order[(line + 1) % lines];
        for (int cpu = 0; cpu < nodes; cpu++) {
            sink = read_all(other, chased); /* nothing of the chase stays in this CPU's caches */
            run_on(cpu);
            sink = read_all(other, chased);
            void **at = (void **)memory;
            size_t steps = lines / 16;
            double least = 1;
            for (int pass = 0; pass < 8; pass++) { /* whatever else runs on the CPU makes a pass longer */
                double begin = now();
                for (size_t step = 0; step < steps; step++)
                    at = *at;
                double taken = now() - begin;
                least = taken < least ? taken : least;
            }
            sink = (uint64_t)at;
            printf("%d %d %.2f\n", cpu, node, least / steps * 1e9);
        }
        munmap(memory, chased);
        munmap(other, chased);
    }
}

static char *part_of[4];
static int times;
static pthread_barrier_t barrier;

static void *stream(void *number)
{
    long cpu = (long)number;
    run_on(cpu);
    pthread_barrier_wait(&barrier);
    uint64_t sum = 0;
    for (int time = 0; time < times; time++)
        sum += read_all(part_of[cpu], streamed);
    return (void *)sum;
}

static double stream_all(void)
{
    pthread_t threads[4];
    pthread_barrier_init(&barrier, 0, 5);
    for (long cpu = 0; cpu < 4; cpu++)
        pthread_create(&threads[cpu], 0, stream, (void *)cpu);
    double begin = now();
    pthread_barrier_wait(&barrier);
    for (long cpu = 0; cpu < 4; cpu++)
        pthread_join(threads[cpu], 0);
    return now() - begin;
}

int main(int count, char **words)
{
    if (count == 3 && !strcmp(words[1], "latency")) {
        latency(atoi(words[2]));
        return 0;
    }
    if (count != 4 || strcmp(words[1], "stream"))
        return 2;
    times = atoi(words[3]);
    run_on(0);
    for (long cpu = 0; cpu < 4; cpu++)
        part_of[cpu] = memory_on(streamed, strcmp(words[2], "one") ? cpu : 0);
    double least = 1;
    for (int pass = 0; pass < 3; pass++) { /* as above */
        double taken = stream_all();
        least = taken < least ? taken : least;
    }
    printf("%.6f\n", least);
    return 0;
}
