/* Workloads of the simulator as programs, with its sizes and loops at a scale of 1/16. Four threads run on a
 * CPU each.
 *
 *   workloads cg|streamcluster|own|dealt parallel|main|interleave [CANDIDATES]
 *
 * In cg, threads solve systems by conjugate gradients, and in streamcluster they read points in any order. In
 * own, each writes a line after the other of its part, and in dealt every fourth line of all.
 *
 * By "parallel", each thread touches its part first, by "main" the first thread touches all, and by
 * "interleave" memory is spread. At the end come the seconds of what follows.
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

enum { THREADS = 4, LINE = 64, PAGE = 4096, INTERLEAVE = 3 };
enum { ROWS = 75000 / 16, ELEMENTS = 14 * 13 + 1, SOLUTIONS = 8, ITERATIONS = 8 };
enum { POINTS = 200000 / 16, DIMENSIONS = 128 };
enum { WRITTEN = 4 << 20, PASSES = 72 };

typedef long two __attribute__((vector_size(16)));

static char const *scene, *placement;
static pthread_barrier_t barrier;
static double began;

static uint64_t any(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    return *state ^= *state << 17;
}

static int is(char const *name)
{
    return strcmp(scene, name) == 0;
}

static void wait_for_all(void)
{
    pthread_barrier_wait(&barrier);
}

static void *map(size_t bytes)
{
    void *all = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    unsigned long nodes = (1 << THREADS) - 1;
    if (all == MAP_FAILED)
        exit(1);
    if (strcmp(placement, "interleave") == 0 && syscall(SYS_mbind, all, bytes, INTERLEAVE, &nodes, 64, 0))
        exit(1);
    return all;
}

/* Touches the pages of so many bytes that begin in this thread's part of them. */
static void touch(void *all, size_t bytes, int id)
{
    int parallel = strcmp(placement, "parallel") == 0;
    size_t from = parallel ? bytes / THREADS * id : 0, to = parallel ? bytes / THREADS * (id + 1) : bytes;
    if (!parallel && id)
        return;
    for (size_t at = (from + PAGE - 1) / PAGE * PAGE; at < to; at += PAGE)
        ((volatile unsigned char *)all)[at] = 0;
}

static uint32_t *columns;
static double *values, *x, *r, *p, *q, *sums;

static double sum_of(int which)
{
    double sum = 0;
    for (int id = 0; id < THREADS; ++id)
        sum += sums[(which * THREADS + id) * (LINE / 8)];
    return sum;
}

static void cg(int id)
{
    int from = (long)ROWS * id / THREADS, to = (long)ROWS * (id + 1) / THREADS;
    uint64_t state = id + 1;
    double *mine[2] = { sums + id * (LINE / 8), sums + (THREADS + id) * (LINE / 8) };
    touch(columns, sizeof *columns * ROWS * ELEMENTS, id);
    touch(values, sizeof *values * ROWS * ELEMENTS, id);
    touch(x, sizeof *x * ROWS, id), touch(r, sizeof *r * ROWS, id);
    touch(p, sizeof *p * ROWS, id), touch(q, sizeof *q * ROWS, id);
    wait_for_all();
    for (int row = from; row < to; ++row)
        for (int at = 0; at < ELEMENTS; ++at) {
            columns[row * ELEMENTS + at] = at ? any(&state) % ROWS : (unsigned)row;
            values[row * ELEMENTS + at] = at ? 0.5 - any(&state) % 1000 / 1000.0 : ELEMENTS;
        }
    wait_for_all();
    if (!id)
        began = now();
    for (int solution = 0; solution < SOLUTIONS; ++solution) {
        double rho = 0;
        for (int row = from; row < to; ++row) {
            x[row] = q[row] = 0;
            r[row] = p[row] = (row % 16) / 16.0;
        }
        for (int row = 0; row < ROWS; ++row)
            rho += (row % 16) / 16.0 * ((row % 16) / 16.0);
        wait_for_all();
        for (int iteration = 0; iteration < ITERATIONS; ++iteration) {
            double pq = 0, rr = 0;
            for (int row = from; row < to; ++row) {
                double sum = 0;
                for (int at = row * ELEMENTS; at < (row + 1) * ELEMENTS; ++at)
                    sum += values[at] * p[columns[at]];
                q[row] = sum;
                pq += p[row] * sum;
            }
            *mine[0] = pq;
            wait_for_all();
            double alpha = rho / sum_of(0);
            for (int row = from; row < to; ++row) {
                x[row] += alpha * p[row];
                r[row] -= alpha * q[row];
                rr += r[row] * r[row];
            }
            *mine[1] = rr;
            wait_for_all();
            rr = sum_of(1);
            double beta = rr / rho;
            rho = rr;
            for (int row = from; row < to; ++row)
                p[row] = r[row] + beta * p[row];
            wait_for_all();
        }
    }
}

/* 32 bytes, as the program has them. */
struct point {
    float weight;
    uint32_t assign;
    float *coordinates;
    double cost;
    uint64_t padding;
};

static float *block;
static struct point *points;
static int candidates = 120;

static double distance(struct point const *a, struct point const *b)
{
    float sum = 0;
    for (int at = 0; at < DIMENSIONS; ++at) {
        float difference = a->coordinates[at] - b->coordinates[at];
        sum += difference * difference;
    }
    return sum;
}

static void streamcluster(int id)
{
    int from = (long)POINTS * id / THREADS, to = (long)POINTS * (id + 1) / THREADS;
    touch(block, sizeof *block * POINTS * DIMENSIONS, id);
    touch(points, sizeof *points * POINTS, id);
    wait_for_all();
    if (!id) {
        uint64_t state = 1;
        for (int at = 0; at < POINTS * DIMENSIONS; ++at)
            block[at] = any(&state) % 1000 / 1000.0f;
        for (int at = 0; at < POINTS; ++at)
            points[at] = (struct point){ 1, 0, block + (long)at * DIMENSIONS, 1e30, 0 };
        for (int at = POINTS - 1; at > 0; --at) {
            int other = any(&state) % (at + 1);
            float *before = points[at].coordinates;
            points[at].coordinates = points[other].coordinates;
            points[other].coordinates = before;
        }
    }
    wait_for_all();
    if (!id)
        began = now();
    uint64_t state = 7;
    for (int candidate = 0; candidate < candidates; ++candidate) {
        struct point const *middle = points + any(&state) % POINTS;
        double gain = 0;
        for (int at = from; at < to; ++at) {
            double far = distance(points + at, middle) * points[at].weight;
            gain += points[at].cost > far ? points[at].cost - far : 0;
        }
        sums[id * (LINE / 8)] = gain;
        wait_for_all();
        /* A few are opened. */
        if (candidate % 100 == 0)
            for (int at = from; at < to; ++at) {
                double far = distance(points + at, middle);
                if (far < points[at].cost)
                    points[at].cost = far;
            }
        wait_for_all();
    }
}

static unsigned char *written;

static void writes(int id)
{
    size_t first = is("own") ? (size_t)WRITTEN * id : (size_t)LINE * id, stride = is("own") ? LINE : THREADS * LINE;
    touch(written, (size_t)WRITTEN * THREADS, id);
    wait_for_all();
    if (!id)
        began = now();
    for (long pass = 0; pass < PASSES; ++pass) {
        for (size_t line = 0; line < WRITTEN / LINE; ++line) {
            two volatile *at = (two volatile *)(written + first + line * stride);
            at[0] = at[1] = at[2] = at[3] = (two){ pass, pass };
        }
        wait_for_all();
    }
}

static void *run(void *argument)
{
    int id = (int)(long)argument;
    run_on(id);
    if (is("cg"))
        cg(id);
    else if (is("streamcluster"))
        streamcluster(id);
    else
        writes(id);
    wait_for_all();
    return 0;
}

int main(int count, char **arguments)
{
    pthread_t threads[THREADS];
    if (count < 3)
        return 2;
    if (count > 3)
        candidates = atoi(arguments[3]);
    scene = arguments[1], placement = arguments[2];
    pthread_barrier_init(&barrier, 0, THREADS);
    run_on(0);
    sums = map(PAGE);
    if (is("cg")) {
        columns = map(sizeof *columns * ROWS * ELEMENTS), values = map(sizeof *values * ROWS * ELEMENTS);
        x = map(sizeof *x * ROWS), r = map(sizeof *r * ROWS), p = map(sizeof *p * ROWS), q = map(sizeof *q * ROWS);
    } else if (is("streamcluster"))
        block = map(sizeof *block * POINTS * DIMENSIONS), points = map(sizeof *points * POINTS);
    else
        written = map((size_t)WRITTEN * THREADS);
    for (long id = 1; id < THREADS; ++id)
        if (pthread_create(threads + id, 0, run, (void *)id))
            return 1;
    run(0);
    printf("%.6f\n", now() - began);
    return 0;
}
