/* Two files that a thread on each of the first CPUS reads all over: weights PRIVATE SHARED MEBIBYTES CPUS.
 * They are mapped to be read only, one of them privately, as inference servers map a model's weights. CPU 0
 * wrote them. */
#define _GNU_SOURCE
#include "../common.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const volatile uint64_t *weights[2];
static size_t words;

static void *read_all(void *cpu) {
    uint64_t random = (uintptr_t)cpu + 1, sum = 0;
    pin((uintptr_t)cpu);
    for (;; sum += weights[random >> 63][random % words]) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        if (sum == UINT64_MAX) putchar('.');
    }
    return NULL;
}

static const uint64_t *map(const char *path, size_t bytes, int how) {
    static char block[1 << 20];
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    if (fd < 0) fail(path);
    memset(block, 1, sizeof block);
    for (size_t i = 0; i < bytes; i += sizeof block)
        if (write(fd, block, sizeof block) != sizeof block) fail(path);
    void *at = mmap(NULL, bytes, PROT_READ, how, fd, 0);
    if (at == MAP_FAILED) fail("mmap");
    return at;
}

int main(int argc, char **argv) {
    if (argc != 5) return fprintf(stderr, "usage: weights PRIVATE SHARED MEBIBYTES CPUS\n"), 2;
    size_t bytes = strtoul(argv[3], NULL, 10) << 20;
    words = bytes / sizeof **weights;
    pin(0);
    weights[0] = map(argv[1], bytes, MAP_PRIVATE);
    weights[1] = map(argv[2], bytes, MAP_SHARED);
    for (uintptr_t cpu = 1; cpu < strtoul(argv[4], NULL, 10); cpu++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, read_all, (void *)cpu)) fail("pthread_create");
    }
    read_all(NULL);
}
