/* Threads with a known sickness do a fixed work, one on each of four CPUs of up to four nodes.
 *
 *   patients slices|stream|sweep|staggered|table|histogram|far|hidden|own|unmap ROUNDS [CURE]
 *
 * In slices, each thread updates its own part, at random, of what the main thread has filled. In stream,
 * each reads its own part in order, and in sweep all of four times as much, from its own part on. The threads
 * are then a power of two apart at any time. So memory that is spread in turn has them all on one node. In
 * staggered, each begins a huge page and a page later. In table, each reads all of it at random, an address
 * after the other. In histogram, each loads, computes and stores, all over it. In far, one thread on node 3
 * reads as in table, alone.
 *
 * In unmap, each thread maps memory, uses all of it a few times and gives it back, again and again.
 *
 * Two are healthy. In own, each thread updates memory that it has filled itself. In hidden, one thread on
 * node 3 computes so long between accesses that it waits for none.
 *
 * A cure is a change of the source. By "parallel", threads fill their own parts. By "copies", each node has
 * a table. By "interleave", memory is spread, and by "near" the one thread runs on node 0. By "keep", memory
 * is mapped once. At the end come the seconds from the first round to the last, and those of all its CPUs
 * meanwhile: "SECONDS SECONDS".
 */
#define _GNU_SOURCE
#include "../guests/thread.h"
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { LARGE = 256 << 10 };
enum { THREADS = 4, BYTES = 8 << 20, PART = BYTES / THREADS, LINE = 64, INTERLEAVE = 3 };
enum { STAGGER = (2 << 20) + (4 << 10) };

static char const *scene, *cure = "";
static long rounds;
static unsigned char *all;
static size_t bytes = BYTES;
static unsigned char *copies[THREADS]; /* by node */
static pthread_barrier_t barrier;

static int is(char const *name)
{
    return !strcmp(scene, name);
}

static int cured(char const *name)
{
    return !strcmp(cure, name);
}

static unsigned char *map(size_t size)
{
    unsigned char *memory = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        exit(1);
    return memory;
}

__attribute__((noinline)) static void fill(unsigned char *memory, size_t size)
{
    for (size_t i = 0; i < size; i += LINE)
        memory[i] = i;
}

static double cpu(void)
{
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static uint64_t read_in_order(unsigned char *memory, size_t size, size_t from)
{
    uint64_t sum = 0;
    for (long i = 0; i < rounds; i++, from = (from + LINE) % size)
        sum += *(uint64_t *)(memory + from);
    return sum;
}

/* The next address hangs on what was read. */
static uint64_t read_at_random(unsigned char *memory, uint64_t random)
{
    for (long i = 0; i < rounds; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        random += memory[(random >> 33) % BYTES];
    }
    return random;
}

static void update_at_random(unsigned char *memory, uint64_t random)
{
    for (long i = 0; i < rounds; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        memory[(random >> 33) % PART]++;
    }
}

/* A store never misses, as it follows the load of the same word. */
static void count_at_random(unsigned char *memory, uint64_t random)
{
    for (long i = 0; i < rounds; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        unsigned char volatile *counted = &memory[(random >> 33) % BYTES];
        unsigned char value = *counted;
        *counted = 3 * value + 1;
    }
}

static uint64_t compute_and_read(unsigned char *memory, uint64_t random)
{
    uint64_t sum = 0;
    for (long i = 0; i < rounds; i++) {
        for (int j = 0; j < 200; j++)
            random = random * 6364136223846793005u + 1442695040888963407u;
        sum += memory[(random >> 33) % BYTES];
    }
    return sum;
}

static void take_and_return(void)
{
    unsigned char *memory = 0;
    for (long i = 0; i < rounds; i++) {
        if (!memory)
            memory = map(LARGE);
        for (size_t j = 0; j < 4 * LARGE; j += LINE)
            memory[j % LARGE]++;
        if (!cured("keep")) {
            munmap(memory, LARGE);
            memory = 0;
        }
    }
}

static void *work(void *argument)
{
    size_t id = (size_t)argument;
    int alone = is("far") || is("hidden");
    run_on(alone && !cured("near") ? 3 : id);
    unsigned char *own = is("own") ? map(PART) : all + id * PART;
    if (cured("parallel") || is("own"))
        fill(own, PART);
    unsigned node = 0;
    if (syscall(SYS_getcpu, 0, &node, 0) || node >= THREADS)
        exit(1);
    unsigned char *copy = cured("copies") ? map(BYTES) : 0;
    if (copy && __sync_bool_compare_and_swap(&copies[node], 0, copy))
        fill(copy, BYTES);
    pthread_barrier_wait(&barrier); /* all is filled */
    if (cured("copies"))
        own = copies[node];
    else if (is("table") || is("histogram") || alone)
        own = all;
    pthread_barrier_wait(&barrier);
    if (alone && id != 0)
        return 0;
    if (is("unmap")) {
        take_and_return();
        return 0;
    }
    if (is("hidden"))
        return (void *)compute_and_read(own, id + 1);
    if (is("stream"))
        return (void *)read_in_order(own, PART, 0);
    if (is("sweep"))
        return (void *)read_in_order(all, bytes, id * (bytes / THREADS));
    if (is("staggered"))
        return (void *)read_in_order(all, bytes, id * (bytes / THREADS + STAGGER));
    if (is("table") || is("far"))
        return (void *)read_at_random(own, id + 1);
    if (is("histogram"))
        count_at_random(own, id + 1);
    else
        update_at_random(own, id + 1);
    return 0;
}

int main(int count, char **words)
{
    pthread_t threads[THREADS];
    if (count < 3)
        return 2;
    scene = words[1], rounds = atol(words[2]);
    if (count > 3)
        cure = words[3];
    run_on(0);
    if (is("sweep") || is("staggered"))
        bytes *= 4;
    all = map(bytes);
    unsigned long nodes = 15;
    if (cured("interleave") && syscall(SYS_mbind, all, bytes, INTERLEAVE, &nodes, 64, 0))
        return 1;
    if (!cured("parallel") && !is("own"))
        fill(all, bytes);
    pthread_barrier_init(&barrier, 0, THREADS + 1);
    for (size_t i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], 0, work, (void *)i))
            return 1;
    pthread_barrier_wait(&barrier);
    double begin = now(), cpu_begin = cpu();
    pthread_barrier_wait(&barrier);
    for (size_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], 0);
    printf("%.6f %.6f\n", now() - begin, cpu() - cpu_begin);
    return 0;
}
