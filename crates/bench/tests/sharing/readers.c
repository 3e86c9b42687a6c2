/* One file that a process on each CPU has mapped and reads all over: readers FILE MEBIBYTES SECONDS [apart].
 * Their parent wrote it, on CPU 0. Each second it prints the seconds since and the pages on each node. With
 * apart, the parent has the file mapped and none of its pages, as a database's first process has. */
#define _GNU_SOURCE
#include "../common.h"
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096UL
#define MOST_NODES 64
#define MPOL_BIND 2
#define MPOL_F_NUMA_BALANCING (1 << 13)

/* Adds up random words of the file, for ever. */
static void read_all(const volatile uint64_t *words, size_t count, uint64_t random) {
    for (uint64_t sum = 0;; sum += words[random % count]) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        if (sum == UINT64_MAX) putchar('.');
    }
}

static void print_homes(pid_t pid, char *at, size_t count, double seconds) {
    static void **pages;
    static int *status;
    size_t on[MOST_NODES] = {0};
    if (!pages) pages = malloc(count * sizeof *pages), status = malloc(count * sizeof *status);
    for (size_t i = 0; i < count; i++) pages[i] = at + i * PAGE;
    if (syscall(SYS_move_pages, pid, count, pages, NULL, status, 0)) fail("move_pages");
    for (size_t i = 0; i < count; i++)
        if (status[i] >= 0 && status[i] < MOST_NODES) on[status[i]]++;
    printf("%.1f", seconds);
    for (int node = 0; node < sysconf(_SC_NPROCESSORS_ONLN); node++) printf(" %zu", on[node]);
    putchar('\n');
    fflush(stdout);
}

int main(int argc, char **argv) {
    int apart = argc == 5 && !strcmp(argv[4], "apart");
    if (argc != 4 + apart) return fprintf(stderr, "usage: readers FILE MEBIBYTES SECONDS [apart]\n"), 2;
    size_t bytes = strtoul(argv[2], NULL, 10) << 20;
    double seconds = atof(argv[3]);
    int fd = open(argv[1], O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, bytes)) fail(argv[1]);
    char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) fail("mmap");
    pin(0);
    int cpus = sysconf(_SC_NPROCESSORS_ONLN);
    /* It is to be balanced among all nodes, one for each CPU. The kernel takes no samples of shared memory
     * without a policy of its own (vma_policy_mof, mm/mempolicy.c). */
    unsigned long nodes = (1UL << cpus) - 1;
    if (syscall(SYS_mbind, at, bytes, MPOL_BIND | MPOL_F_NUMA_BALANCING, &nodes, sizeof nodes * 8, 0)) fail("mbind");
    for (size_t i = 0; i < bytes; i += PAGE) at[i] = 1;
    /* The pages stay with the file. */
    if (apart && madvise(at, bytes, MADV_DONTNEED)) fail("madvise");
    pid_t *readers = malloc(cpus * sizeof *readers);
    for (int cpu = 0; cpu < cpus; cpu++)
        if (!(readers[cpu] = fork())) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            pin(cpu);
            read_all((uint64_t *)at, bytes / sizeof(uint64_t), cpu + 1);
        }
    double begin = now();
    while (now() < begin + seconds) {
        sleep(1);
        print_homes(apart ? readers[0] : 0, at, bytes / PAGE, now() - begin);
    }
    for (int cpu = 0; cpu < cpus; cpu++) kill(readers[cpu], SIGKILL);
    while (wait(NULL) > 0) {}
    return 0;
}
