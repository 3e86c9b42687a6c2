/* Programs that mean harm to whoever manages them, and those that such a program would harm. Each prints what
 * became of its own memory: pages by node. All addresses, numbers and names are its own to choose. */
#define _GNU_SOURCE
#include "../common.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096UL
#define MIB (1UL << 20)
#define NODES 4
#define MPOL_BIND 2
#ifndef SYS_memfd_secret
#define SYS_memfd_secret 447
#endif
#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif
#define MPOL_F_NUMA_BALANCING (1 << 13)

static void policy(void *at, size_t bytes, int mode, unsigned long mask) {
    if (syscall(SYS_mbind, at, bytes, mode, &mask, sizeof mask * 8, 0)) fail("mbind");
}

static void bind_to(void *at, size_t bytes, int node) { policy(at, bytes, MPOL_BIND, 1UL << node); }

static void touch(volatile char *at, size_t bytes) {
    for (size_t i = 0; i < bytes; i += PAGE) at[i] = (char)(i / PAGE % 251 + 1);
}

/* Whether all is still there that touch() wrote. */
static int intact(volatile const char *at, size_t bytes) {
    for (size_t i = 0; i < bytes; i += PAGE)
        if (at[i] != (char)(i / PAGE % 251 + 1)) return 0;
    return 1;
}

/* Pages that are not on `node`. */
static size_t elsewhere(char *at, size_t bytes, int node) {
    size_t count = bytes / PAGE, away = 0;
    void **pages = malloc(count * sizeof *pages);
    int *status = malloc(count * sizeof *status);
    for (size_t i = 0; i < count; i++) pages[i] = at + i * PAGE;
    if (syscall(SYS_move_pages, 0, count, pages, NULL, status, 0)) fail("move_pages");
    for (size_t i = 0; i < count; i++) away += status[i] >= 0 && status[i] != node;
    free(pages);
    free(status);
    return away;
}

static void *map(size_t bytes) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) fail("mmap");
    return at;
}

/* Owns shared memory with this mode, bound to node 2, which it does not leave of its own accord. `away`: it
 * has not mapped it meanwhile. */
static int owner(const char *path, double seconds, mode_t mode, int away) {
    size_t bytes = 32 * MIB;
    umask(0);
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL, mode);
    if (fd < 0 || ftruncate(fd, bytes)) fail(path);
    char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) fail("mmap");
    bind_to(at, bytes, 2);
    touch(at, bytes);
    if (away && munmap(at, bytes)) fail("munmap");
    for (double end = now() + seconds; now() < end; usleep(100000)) {}
    if (away) {
        at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (at == MAP_FAILED || !intact(at, bytes)) printf("owner: CHANGED\n");
    }
    printf("owner: %zu of %zu pages elsewhere, %s\n", elsewhere(at, bytes, 2), bytes / PAGE,
           intact(at, bytes) ? "intact" : "CHANGED");
    return 0;
}

/* A section that says of a range that all write to it. */
static volatile uint64_t *lie(void *at, size_t bytes) {
    int fd = memfd_create("nodewise-hints", MFD_ALLOW_SEALING);
    if (fd < 0 || ftruncate(fd, 32 << 10)) fail("memfd");
    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
    uint64_t *words = mmap(NULL, 32 << 10, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (words == MAP_FAILED) fail("mmap");
    memcpy(words, "nodewise", 8);
    words[1] = 1;
    words[3] = 1;
    words[8] = (uint64_t)at;
    words[9] = (uint64_t)at + bytes;
    words[10] = 3;
    words[2] = 2;
    return words;
}

static uint64_t any(void) {
    static uint64_t state = 88172645463325252ULL;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

/* Sections full of nonsense, changed all the time. */
static int liar(double seconds) {
    char *own = map(8 * MIB);
    touch(own, 8 * MIB);
    volatile uint64_t *words = lie(own, 8 * MIB);
    for (double end = now() + seconds; now() < end; usleep(1000)) {
        for (int i = 2; i < 4096; i++) {
            uint64_t word = any();
            words[i] = i == 3 ? word % 2000 : word % 3 ? word : (uint64_t)own + word % (16 * MIB);
        }
        touch(own, 8 * MIB);
    }
    printf("liar: %s\n", intact(own, 8 * MIB) ? "intact" : "CHANGED");
    return 0;
}

/* Says all that there is room for, well-formed and each time of other memory, all of it its own. */
static int perjurer(double seconds) {
    size_t pages = 1UL << 28;
    char *at = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) fail("mmap");
    touch(at, MIB);
    volatile uint64_t *words = lie(at, MIB);
    for (double end = now() + seconds; now() < end; usleep(100000)) {
        words[2]++;
        for (int i = 0; i < 1022; i++) {
            uint64_t start = (uint64_t)at + any() % pages * PAGE;
            words[8 + 4 * i] = start;
            words[9 + 4 * i] = start + PAGE;
            words[10 + 4 * i] = 1 + any() % 3;
            words[11 + 4 * i] = 0;
        }
        words[3] = 1022;
        words[2]++;
    }
    printf("perjurer: %s\n", intact(at, MIB) ? "intact" : "CHANGED");
    return 0;
}

struct reading { volatile char *at; size_t bytes; double end; int cpu; int writes; };

static void *read_all(void *argument) {
    struct reading *r = argument;
    pin(r->cpu);
    while (now() < r->end)
        for (size_t i = 0; i < r->bytes; i += PAGE) {
            /* Only its own quarter of each huge page. */
            if (r->writes == 2 && i / (MIB / 2) % NODES != (size_t)r->cpu) continue;
            if (r->writes) r->at[i] = r->at[i];
            else (void)r->at[i];
        }
    return NULL;
}

/* Maps what belongs to another to read it, from all nodes, and says that all write to it. `shy`: only root
 * may look into it, and its files in /proc are root's. */
static int reader(const char *path, double seconds, int shy) {
    size_t bytes = 32 * MIB;
    if (shy && prctl(PR_SET_DUMPABLE, 0)) fail("prctl");
    int fd = open(path, O_RDONLY);
    char *at = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) fail(path);
    lie(at, bytes);
    pthread_t threads[NODES];
    struct reading r[NODES];
    for (int i = 0; i < NODES; i++) {
        r[i] = (struct reading){at, bytes, now() + seconds, i, 0};
        pthread_create(&threads[i], NULL, read_all, &r[i]);
    }
    for (int i = 0; i < NODES; i++) pthread_join(threads[i], NULL);
    printf("reader: %s\n", intact(at, bytes) ? "intact" : "CHANGED");
    return 0;
}

/* Huge pages of which each thread uses a part. */
static int huge(double seconds) {
    size_t bytes = 32 * MIB, huge = 2 * MIB;
    char *at = map(bytes + huge);
    at += huge - (uintptr_t)at % huge;
    madvise(at, bytes, MADV_HUGEPAGE);
    pin(0);
    touch(at, bytes);
    pthread_t threads[NODES];
    struct reading r[NODES];
    for (int i = 0; i < NODES; i++) {
        r[i] = (struct reading){at, bytes, now() + seconds, i, 2};
        pthread_create(&threads[i], NULL, read_all, &r[i]);
    }
    for (int i = 0; i < NODES; i++) pthread_join(threads[i], NULL);
    printf("huge: %s\n", intact(at, bytes) ? "intact" : "CHANGED");
    return 0;
}

/* How long so much work takes, in seconds. */
static int work(void) {
    double begin = now();
    uint64_t sum = 0;
    for (int i = 0; i < 100000000; i++) sum ^= any();
    printf("%f %s\n", now() - begin, sum ? "" : "0");
    return 0;
}

static int share_memory(void *argument) {
    double seconds = *(double *)argument;
    for (double end = now() + seconds; now() < end;) usleep(100000);
    return 0;
}

/* Maps memory of another user to write it, and would seem to be all who have it mapped: in two mappings side
 * by side, and as two processes with one memory. */
static int forger(const char *path, double seconds) {
    size_t bytes = 32 * MIB;
    int fd = open(path, O_RDWR);
    char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) fail(path);
    if (mprotect(at + bytes / 2, bytes / 2, PROT_READ)) fail("mprotect");
    char *stack = map(MIB);
    if (clone(share_memory, stack + MIB, CLONE_VM | SIGCHLD, &seconds) < 0) fail("clone");
    lie(at, bytes);
    struct reading r = {at, bytes, now() + seconds, 0, 0};
    read_all(&r);
    while (wait(NULL) > 0) {}
    printf("forger: %s\n", intact(at, bytes) ? "intact" : "CHANGED");
    return 0;
}

/* Makes /proc/PID/maps long: many mappings of a file whose name is as long as directories go. */
static int maps(int deep, double seconds) {
    char name[201];
    memset(name, '\n', 200);
    name[200] = 0;
    for (int i = 0; i < deep; i++)
        if (mkdir(name, 0777) || chdir(name)) fail("mkdir");
    int fd = open("file", O_RDWR | O_CREAT, 0600);
    if (fd < 0 || write(fd, "m", 1) != 1 || ftruncate(fd, PAGE)) fail("file");
    char *place = mmap(NULL, 70000 * 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    size_t made = 0;
    /* Every other page, so that none are joined; until the kernel gives no more. */
    while (made < 66000 && mmap(place + made * 2 * PAGE, PAGE, PROT_READ, MAP_PRIVATE | MAP_FIXED, fd, 0) != MAP_FAILED)
        made++;
    printf("maps: %zu mappings\n", made);
    fflush(stdout);
    for (double end = now() + seconds; now() < end;) usleep(100000);
    size_t changed = 0;
    for (size_t i = 0; i < made; i++) changed += place[i * 2 * PAGE] != 'm';
    printf("maps: %s\n", made && !changed ? "intact" : "CHANGED");
    return 0;
}

static void *fault(void *argument) {
    double end = *(double *)argument;
    while (now() < end) {
        char *at = map(16 * MIB);
        madvise(at, 16 * MIB, MADV_NOHUGEPAGE);
        touch(at, 16 * MIB);
        if (!intact(at, 16 * MIB)) printf("faults: CHANGED\n");
        munmap(at, 16 * MIB);
    }
    return NULL;
}

/* As many page faults as it can. */
static int faults(double seconds) {
    double end = now() + seconds;
    pthread_t threads[NODES];
    for (int i = 0; i < NODES; i++) pthread_create(&threads[i], NULL, fault, &end);
    for (int i = 0; i < NODES; i++) pthread_join(threads[i], NULL);
    printf("faults: intact\n");
    return 0;
}

static void *idle(void *argument) {
    usleep((useconds_t)(*(double *)argument * 1e6));
    return NULL;
}

/* Memory of which every page lies apart from all others: one in 2 MiB. */
static int sprawl(size_t pages, double seconds) {
    size_t step = 2 * MIB;
    char *at = mmap(NULL, pages * step, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) fail("mmap");
    madvise(at, pages * step, MADV_NOHUGEPAGE);
    /* Once the manager has come. */
    for (double end = now() + 10; now() < end;) usleep(100000);
    for (size_t i = 0; i < pages; i++) at[i * step + i % 512 * PAGE] = 1;
    for (double end = now() + seconds - 10; now() < end;) usleep(100000);
    size_t changed = 0;
    for (size_t i = 0; i < pages; i++) changed += at[i * step + i % 512 * PAGE] != 1;
    printf("sprawl: %s\n", changed ? "CHANGED" : "intact");
    return 0;
}

/* Threads that do nothing, and children that come and go. */
static int crowd(int threads, double seconds) {
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 65536);
    for (int i = 0; i < threads; i++) {
        pthread_t thread;
        if (pthread_create(&thread, &small, idle, &seconds)) break;
    }
    char *own = map(MIB);
    touch(own, MIB);
    int status = 0, changed = 0;
    for (double end = now() + seconds; now() < end; usleep(20000)) {
        pid_t child = fork();
        if (child == 0) {
            usleep(200000);
            _exit(!intact(own, MIB));
        }
        while (waitpid(-1, &status, WNOHANG) > 0) changed |= status;
    }
    printf("crowd: %s\n", changed || !intact(own, MIB) ? "CHANGED" : "intact");
    return 0;
}

/* Runs on node 0 only, with its memory bound to node 2. */
static int bound(double seconds) {
    size_t bytes = 16 * MIB;
    char *at = map(bytes), *free_to_go = map(bytes);
    madvise(free_to_go, bytes, MADV_NOHUGEPAGE);
    bind_to(at, bytes, 2);
    touch(at, bytes);
    pin(1);
    touch(free_to_go, bytes);
    pin(0);
    for (double end = now() + seconds; now() < end; usleep(1000)) {
        touch(free_to_go, bytes);
        touch(at, bytes);
    }
    printf("bound: %zu of %zu pages elsewhere, %s\n", elsewhere(at, bytes, 2), bytes / PAGE,
           intact(at, bytes) ? "intact" : "CHANGED");
    printf("not bound: %zu of %zu pages elsewhere\n", elsewhere(free_to_go, bytes, 0), bytes / PAGE);
    return 0;
}

/* A name that is not UTF-8, memory on node 0, and threads that use a part of it each. */
static int nameless(double seconds) {
    prctl(PR_SET_NAME, "caf\xe9 \xc3");
    size_t bytes = 16 * MIB;
    char *at = map(bytes);
    pin(0);
    touch(at, bytes);
    pthread_t threads[NODES];
    struct reading r[NODES];
    for (int i = 0; i < NODES; i++) {
        r[i] = (struct reading){at + i * (bytes / NODES), bytes / NODES, now() + seconds, i, 1};
        pthread_create(&threads[i], NULL, read_all, &r[i]);
    }
    size_t away = 0;
    for (int i = 0; i < NODES; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < NODES; i++) away += elsewhere(at + i * (bytes / NODES), bytes / NODES, i);
    printf("nameless: %zu of %zu pages elsewhere\n", away, bytes / PAGE);
    printf("nameless: %s\n", intact(at, bytes) ? "intact" : "CHANGED");
    return 0;
}

/* Has children that take all memory there is and are killed for it, one after the other. They, and not their
 * parent, are first when the kernel looks for somebody to kill. */
static int hog(double seconds) {
    int killed = 0;
    for (double end = now() + seconds; now() < end; usleep(3000000)) {
        pid_t child = fork();
        if (child == 0) {
            FILE *score = fopen("/proc/self/oom_score_adj", "w");
            if (!score || fprintf(score, "1000") < 0 || fclose(score)) fail("oom_score_adj");
            for (;;) touch(map(16 * MIB), 16 * MIB);
        }
        int status = 0;
        waitpid(child, &status, 0);
        killed += WIFSIGNALED(status);
    }
    printf("hog: killed %s\n", killed ? "for want of memory" : "NEVER");
    return 0;
}

/* Not hostile: uses memory on one CPU that was touched on node 0, and that others than the kernel move. */
static int remote(int cpu, double seconds) {
    size_t bytes = 16 * MIB;
    char *at = map(bytes);
    madvise(at, bytes, MADV_NOHUGEPAGE);
    policy(at, bytes, MPOL_BIND | MPOL_F_NUMA_BALANCING, 1);
    touch(at, bytes);
    pin(cpu);
    for (double end = now() + seconds; now() < end && elsewhere(at, bytes, cpu) > 0;) touch(at, bytes);
    printf("remote: %zu of %zu pages elsewhere\n", elsewhere(at, bytes, cpu), bytes / PAGE);
    return 0;
}

#define FIXED ((char *)0x600000000000UL)

/* Has its memory moved, and ends as soon as that has begun. The memory at FIXED was touched on node 0 and is
 * used on node 1. */
static int runaway(double seconds) {
    size_t bytes = 64 * MIB;
    char *at = mmap(FIXED, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (at == MAP_FAILED) fail("mmap");
    madvise(at, bytes, MADV_NOHUGEPAGE);
    /* Balanced, but within node 0: only others move it. */
    policy(at, bytes, MPOL_BIND | MPOL_F_NUMA_BALANCING, 1);
    touch(at, bytes);
    pin(1);
    for (double end = now() + seconds; now() < end;) {
        touch(at, bytes);
        if (elsewhere(at, bytes, 0) == 0) continue;
        if (!intact(at, bytes)) printf("runaway: CHANGED\n");
        _exit(0);
    }
    return 1;
}

/* Gets the number `pid` (its starter sets ns_last_pid) and has memory at FIXED, on node 0 and bound there. */
static int successor(double seconds) {
    size_t bytes = 64 * MIB;
    char *at = mmap(FIXED, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (at == MAP_FAILED) fail("mmap");
    bind_to(at, bytes, 0);
    touch(at, bytes);
    for (double end = now() + seconds; now() < end;) usleep(100000);
    printf("successor: %zu of %zu pages elsewhere, %s\n", elsewhere(at, bytes, 0), bytes / PAGE,
           intact(at, bytes) ? "intact" : "CHANGED");
    return 0;
}

/* Policies that change, memory that comes and goes, advice, forks, and another program in the process. */
static int restless(double seconds, char **argv) {
    double end = now() + seconds;
    for (int i = 0; now() < end; i++) {
        char *at = map(8 * MIB);
        bind_to(at, 4 * MIB, i % NODES);
        pin(i % NODES);
        touch(at, 8 * MIB);
        pin((i + 1) % NODES);
        touch(at, 8 * MIB);
        bind_to(at, 4 * MIB, (i + 2) % NODES);
        madvise(at, 8 * MIB, i % 2 ? MADV_HUGEPAGE : MADV_COLD);
        pid_t child = fork();
        if (child == 0) {
            touch(at, 8 * MIB);
            _exit(intact(at, 8 * MIB) ? 0 : 1);
        }
        if (!intact(at, 8 * MIB)) {
            printf("restless: CHANGED\n");
            return 1;
        }
        int status = 0;
        waitpid(child, &status, 0);
        if (status) printf("restless: CHANGED in a child\n");
        munmap(at, 8 * MIB);
        if (i % 50 == 49) {
            char left[32];
            snprintf(left, sizeof left, "%f", end - now());
            argv[2] = left;
            execv("/proc/self/exe", argv);
        }
    }
    printf("restless: intact\n");
    return 0;
}

/* Memory and processes of kinds that are seldom met, one in a child each. The children touch memory on node 0
 * and use it on another. */
static int secret(double end) {
    int fd = (int)syscall(SYS_memfd_secret, 0);
    if (fd < 0) return 0;
    if (ftruncate(fd, MIB)) fail("memfd_secret");
    char *at = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    /* As much as may be locked; or none. */
    if (at == MAP_FAILED) return 0;
    touch(at, MIB);
    for (pin(1); now() < end; usleep(10000)) touch(at, MIB);
    return !intact(at, MIB);
}

static void *touch_once(void *at) {
    touch(at, PAGE);
    return NULL;
}

/* A page fault that nobody ever answers. */
static int unanswered(double end) {
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
    struct uffdio_api api = {.api = UFFD_API};
    char *at = map(8 * MIB), *own = map(8 * MIB);
    struct uffdio_register whole = {.range = {(uintptr_t)at, 8 * MIB}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    if (fd < 0 || ioctl(fd, UFFDIO_API, &api) || ioctl(fd, UFFDIO_REGISTER, &whole)) return 0;
    pthread_t thread;
    pthread_create(&thread, NULL, touch_once, at);
    touch(own, 8 * MIB);
    lie(at, 8 * MIB);
    for (pin(1); now() < end; usleep(10000)) touch(own, 8 * MIB);
    return !intact(own, 8 * MIB);
}

/* A child that uses its parent's memory, again and again. */
static int borrowed(double end) {
    char *at = map(8 * MIB);
    touch(at, 8 * MIB);
    for (pin(1); now() < end; usleep(1000)) {
        pid_t child = vfork();
        if (child == 0) {
            touch(at, 8 * MIB);
            _exit(0);
        }
        waitpid(child, NULL, 0);
    }
    return !intact(at, 8 * MIB);
}

static void *work_on(void *argument) {
    double end = *(double *)argument;
    char *at = map(8 * MIB);
    touch(at, 8 * MIB);
    for (pin(1); now() < end; usleep(1000)) touch(at, 8 * MIB);
    _exit(!intact(at, 8 * MIB));
}

/* Its first thread has ended: /proc says that it is a zombie. */
static int headless(double end) {
    static double until;
    until = end;
    pthread_t thread;
    pthread_create(&thread, NULL, work_on, &until);
    pthread_exit(NULL);
}

/* Process numbers, users and mounts of its own, and a name that a terminal would obey. */
static int apart(double end) {
    if (unshare(CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS)) return 0;
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_NAME, "\033]0;X\a\033[31m");
        work_on(&end);
    }
    int status = 1;
    waitpid(child, &status, 0);
    return status != 0;
}

/* It is stopped most of the time. */
static int stopped(double end) {
    pid_t child = fork();
    if (child == 0) work_on(&end);
    for (; now() < end; usleep(10000)) {
        kill(child, SIGSTOP);
        usleep(500000);
        kill(child, SIGCONT);
    }
    int status = 1;
    waitpid(child, &status, 0);
    return status != 0;
}

static int misfits(double seconds) {
    int (*all[])(double) = {secret, unanswered, borrowed, headless, apart, stopped};
    double end = now() + seconds;
    int changed = 0, status;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (fork() == 0) {
            pin(0);
            _exit(all[i](end));
        }
    while (wait(&status) > 0) changed |= status;
    printf("misfits: %s\n", changed ? "CHANGED" : "intact");
    return 0;
}

/* Not hostile: four processes of one user that write to memory they share. Their parent touched it on node
 * 0. It says every second where the pages are, and ends when for five of these in a row each node had its
 * part within a fifth, or when the time is over. */
static int family(double seconds) {
    size_t bytes = 32 * MIB, part = bytes / PAGE / NODES;
    char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) fail("mmap");
    /* It is to be balanced among all nodes. The kernel takes no samples of shared memory without a policy of
     * its own (vma_policy_mof). */
    policy(at, bytes, MPOL_BIND | MPOL_F_NUMA_BALANCING, (1UL << NODES) - 1);
    pin(0);
    touch(at, bytes);
    pid_t children[NODES];
    double begin = now();
    for (int i = 0; i < NODES; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            struct reading r = {at, bytes, begin + seconds, i, 1};
            read_all(&r);
            _exit(0);
        }
    }
    for (int in_a_row = 0; in_a_row < 5 && now() < begin + seconds;) {
        sleep(1);
        int spread = 1;
        printf("family: after %.1f s", now() - begin);
        for (int i = 0; i < NODES; i++) {
            size_t here = bytes / PAGE - elsewhere(at, bytes, i);
            spread &= here * 5 >= part * 4 && here * 5 <= part * 6;
            printf(" %zu", here);
        }
        printf(" pages%s\n", spread ? ", spread" : "");
        in_a_row = spread ? in_a_row + 1 : 0;
    }
    for (int i = 0; i < NODES; i++) kill(children[i], SIGKILL);
    while (wait(NULL) > 0) {}
    return 0;
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    const char *first = argc > 2 ? argv[2] : "", *second = argc > 3 ? argv[3] : "";
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!strcmp(what, "owner")) return owner(first, atof(second), argc > 4 ? strtol(argv[4], NULL, 8) : 0644, argc > 5);
    if (!strcmp(what, "forger")) return forger(first, atof(second));
    if (!strcmp(what, "reader")) return reader(first, atof(second), argc > 4);
    if (!strcmp(what, "liar")) return liar(atof(first));
    if (!strcmp(what, "perjurer")) return perjurer(atof(first));
    if (!strcmp(what, "remote")) return remote(atoi(first), atof(second));
    if (!strcmp(what, "huge")) return huge(atof(first));
    if (!strcmp(what, "work")) return work();
    if (!strcmp(what, "maps")) return maps(atoi(first), atof(second));
    if (!strcmp(what, "faults")) return faults(atof(first));
    if (!strcmp(what, "sprawl")) return sprawl(atoi(first), atof(second));
    if (!strcmp(what, "crowd")) return crowd(atoi(first), atof(second));
    if (!strcmp(what, "bound")) return bound(atof(first));
    if (!strcmp(what, "nameless")) return nameless(atof(first));
    if (!strcmp(what, "hog")) return hog(atof(first));
    if (!strcmp(what, "runaway")) return runaway(atof(first));
    if (!strcmp(what, "successor")) return successor(atof(first));
    if (!strcmp(what, "family")) return family(atof(first));
    if (!strcmp(what, "misfits")) return misfits(atof(first));
    if (!strcmp(what, "restless")) return restless(atof(first), argv);
    fprintf(stderr, "hostile owner|reader|forger|liar|perjurer|remote|huge|work|maps|faults|sprawl|crowd|bound|nameless|hog|runaway|successor|restless|family|misfits ...\n");
    return 2;
}
