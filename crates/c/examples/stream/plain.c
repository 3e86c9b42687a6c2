/* Memory bandwidth by four kernels, after the benchmark STREAM.
 *
 * cc -O2 -fopenmp plain.c -o stream && ./stream [ELEMENTS] */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { ROUNDS = 10 };

typedef void kernel(size_t begin, size_t end);

static const double scalar = 3;
static size_t len = 1 << 24;
static double *a, *b, *c;

static double *allocate(void)
{
    double *array = malloc(len * sizeof *array);
    if (array == NULL)
        abort();
    return array;
}

/* Calls a kernel with each thread's part of the arrays. */
static void each_part(kernel *kernel)
{
#pragma omp parallel
    {
        size_t parts = (size_t)omp_get_num_threads(), part = (size_t)omp_get_thread_num();
        kernel(len * part / parts, len * (part + 1) / parts);
    }
}

static void fill(size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++)
        a[i] = 1, b[i] = 2, c[i] = 0;
}

static void copy(size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++)
        c[i] = a[i];
}

static void scale(size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++)
        b[i] = scalar * c[i];
}

static void add(size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++)
        c[i] = a[i] + b[i];
}

static void triad(size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++)
        a[i] = b[i] + scalar * c[i];
}

static double seconds(void)
{
    struct timespec now;
    timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

int main(int count, char **arguments)
{
    static const struct {
        kernel *run;
        const char *name;
        int arrays;
    } kernels[] = {{copy, "copy", 2}, {scale, "scale", 2}, {add, "add", 3}, {triad, "triad", 3}};
    if (count > 1)
        len = strtoull(arguments[1], NULL, 10);
    a = allocate(), b = allocate(), c = allocate();
    each_part(fill);
    double best[4] = {1e9, 1e9, 1e9, 1e9};
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < 4; i++) {
            double began = seconds();
            each_part(kernels[i].run);
            double took = seconds() - began;
            if (took < best[i])
                best[i] = took;
        }
    }
    for (int i = 0; i < 4; i++) {
        double bytes = (double)len * sizeof(double) * kernels[i].arrays;
        fprintf(stderr, "%-6s %8.2f GB/s\n", kernels[i].name, bytes / best[i] / 1e9);
    }
    double sums[3] = {0};
    for (size_t i = 0; i < len; i++)
        sums[0] += a[i], sums[1] += b[i], sums[2] += c[i];
    printf("sums %g %g %g\n", sums[0], sums[1], sums[2]);
    return 0;
}
