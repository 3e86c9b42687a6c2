/* The library where the system refuses: no file can be opened, a container's filter allows neither memory
 * policies nor threads. Each in a process of its own. */
#define _GNU_SOURCE
#include "check.h"
#include <dirent.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LEN = 10000, NODES = 1024 };

static const nodewise_layout interleaved = {.kind = NODEWISE_LAYOUT_INTERLEAVED};
static const uint64_t number = 42;
static const nodewise_value_type numbers = {.bytes = sizeof number};

static void operate(void *value, const void *operation, void *out_response, void *context)
{
    (void)operation, (void)out_response, (void)context;
    ++*(uint64_t *)value;
}

static const nodewise_operations operations = {.operate = operate};

/* From here on the calling thread and those that it starts get this error from the calls. */
static void refuse(int error, const int *calls, size_t count)
{
    struct sock_filter filter[32];
    size_t len = 0;
    CHECK(2 * count + 2 <= sizeof filter / sizeof *filter);
    filter[len++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (size_t i = 0; i < count; i++) {
        filter[len++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)calls[i], 0, 1);
        filter[len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)error);
    }
    filter[len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {.len = (unsigned short)len, .filter = filter};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0);
}

static void no_file(void)
{
    struct rlimit files, none;
    uint32_t nodes[NODES];
    size_t count;
    void *data;
    nodewise_allowance *allowance;
    nodewise_pool *pool;
    nodewise_array *array;
    nodewise_arena *arena;
    nodewise_replicated_array *copies;
    nodewise_replicated *replicated;
    nodewise_node_replicated *node_replicated;
    CHECK(nodewise_array_new(&interleaved, LEN, 8, 0, NULL, &array) == NODEWISE_OK);
    CHECK(nodewise_array_data(array, &data) == NODEWISE_OK);
    CHECK(getrlimit(RLIMIT_NOFILE, &files) == 0);
    none = files;
    none.rlim_cur = 0;
    CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
    says(nodewise_refresh(), NODEWISE_MACHINE, "/sys");
    says(nodewise_nodes_near("eth0", nodes, NODES, &count), NODEWISE_MACHINE, "/sys");
    says(nodewise_bind_thread(&(uint32_t){0}, 1), NODEWISE_MACHINE, "/");
    says(nodewise_allowance_of_this_thread(&allowance), NODEWISE_MACHINE, "/");
    says(nodewise_pool_new(NULL, &pool), NODEWISE_MACHINE, "/");
    says(nodewise_default_pool(&pool), NODEWISE_MACHINE, "/");
    says(nodewise_array_new(&interleaved, LEN, 8, 0, NULL, &array), NODEWISE_MACHINE, "/");
    says(nodewise_array_lay_out(array, &interleaved, NULL), NODEWISE_MACHINE, "/");
    says(nodewise_array_lay_out_range(array, 0, LEN, &interleaved, NULL), NODEWISE_MACHINE, "/");
    says(nodewise_arena_new(&interleaved, 0, &arena), NODEWISE_MACHINE, "/");
    says(nodewise_hint(data, LEN * 8, NODEWISE_HINT_WRITE_SHARED, NULL), NODEWISE_MACHINE, "/");
    says(nodewise_replicated_array_new(data, LEN, 8, &copies), NODEWISE_MACHINE, "/");
    says(nodewise_replicated_new(&numbers, &number, &replicated), NODEWISE_MACHINE, "/");
    says(nodewise_node_replicated_new(&numbers, &operations, &number, &node_replicated), NODEWISE_MACHINE, "/");
    /* The memory that was there stays usable, and the rest has come to nothing. */
    CHECK(nodewise_current_node() != NODEWISE_NO_NODE);
    CHECK(nodewise_array_page_nodes(array, 0, LEN, nodes, NODES, &count) == NODEWISE_OK);
    nodewise_array_free(array);
    CHECK(setrlimit(RLIMIT_NOFILE, &files) == 0);
    CHECK(nodewise_refresh() == NODEWISE_OK);
}

/* Whether this process may have memory on one node only, where it is whatever is refused. */
static bool one_node(void)
{
    char line[4096];
    bool found = false, one = false;
    FILE *status = fopen("/proc/self/status", "r");
    CHECK(status != NULL);
    while (!found && fgets(line, sizeof line, status)) {
        found = strncmp(line, "Mems_allowed_list:", 18) == 0;
        one = strpbrk(line, ",-") == NULL;
    }
    CHECK(fclose(status) == 0 && found);
    return one;
}

/* As Docker's default does. */
static void no_policy(void)
{
    const int calls[] = {SYS_mbind, SYS_set_mempolicy, SYS_get_mempolicy, SYS_move_pages};
    nodewise_placement placement;
    nodewise_node_pages pages[NODES];
    uint32_t nodes[NODES];
    size_t count;
    void *data, *block;
    nodewise_array *array, *other = NULL;
    nodewise_arena *arena;
    nodewise_replicated_array *copies;
    nodewise_replicated *replicated;
    nodewise_node_replicated *node_replicated;
    CHECK(nodewise_array_new(&interleaved, LEN, 8, 0, NULL, &array) == NODEWISE_OK);
    CHECK(nodewise_array_data(array, &data) == NODEWISE_OK);
    CHECK(nodewise_arena_new(&interleaved, 0, &arena) == NODEWISE_OK);
    CHECK(nodewise_arena_allocate(arena, 16, 8, &block) == NODEWISE_OK);
    refuse(EPERM, calls, sizeof calls / sizeof *calls);
    if (one_node()) {
        CHECK(nodewise_array_new(&interleaved, LEN, 8, 0, NULL, &other) == NODEWISE_OK);
        CHECK(nodewise_array_lay_out(other, &interleaved, &placement) == NODEWISE_OK);
        CHECK(placement.misplaced == 0 && placement.absent == 0 && placement.unknown == 0);
        nodewise_array_free(other);
        CHECK(nodewise_arena_allocate(arena, 1 << 20, 8, &block) == NODEWISE_OK);
        memset(block, 1, 1 << 20);
    } else {
        says(nodewise_array_new(&interleaved, LEN, 8, 0, NULL, &other), NODEWISE_MEMORY, "move_pages");
        CHECK(other == NULL);
        says(nodewise_array_lay_out(array, &interleaved, NULL), NODEWISE_MEMORY, "move_pages");
        says(nodewise_array_lay_out_range(array, 0, LEN, &interleaved, NULL), NODEWISE_MEMORY, "move_pages");
        says(nodewise_arena_allocate(arena, 1 << 20, 8, &block), NODEWISE_MEMORY, "move_pages");
        CHECK(nodewise_array_new(&interleaved, LEN, 8, NODEWISE_ANYWHERE, NULL, &other) == NODEWISE_OK);
        CHECK(nodewise_array_lay_out(other, &interleaved, &placement) == NODEWISE_OK);
        CHECK(placement.misplaced == 0 && placement.absent == 0 && placement.unknown > 0);
        nodewise_array_free(other);
    }
    CHECK(nodewise_replicated_array_new(data, LEN, 8, &copies) == NODEWISE_OK);
    nodewise_replicated_array_free(copies);
    CHECK(nodewise_replicated_new(&numbers, &number, &replicated) == NODEWISE_OK);
    says(nodewise_replicated_placement(replicated, &placement, pages, NODES, &count), NODEWISE_MEMORY, "move_pages");
    nodewise_replicated_free(replicated);
    CHECK(nodewise_node_replicated_new(&numbers, &operations, &number, &node_replicated) == NODEWISE_OK);
    says(nodewise_node_replicated_placement(node_replicated, &placement, pages, NODES, &count), NODEWISE_MEMORY, "move_pages");
    nodewise_node_replicated_free(node_replicated);
    says(nodewise_array_placement(array, 0, LEN, &placement, pages, NODES, &count), NODEWISE_MEMORY, "move_pages");
    says(nodewise_array_page_nodes(array, 0, LEN, nodes, NODES, &count), NODEWISE_MEMORY, "move_pages");
    says(nodewise_arena_placement(arena, &placement, pages, NODES, &count), NODEWISE_MEMORY, "move_pages");
    says(nodewise_hint(data, LEN * 8, NODEWISE_HINT_WRITE_SHARED, NULL), NODEWISE_MEMORY, "mbind");
    /* Free blocks, and what the array holds, can be used all the same. */
    CHECK(nodewise_arena_allocate(arena, 16, 8, &block) == NODEWISE_OK);
    nodewise_arena_free(arena);
    memset(data, 1, LEN * 8);
    nodewise_array_free(array);
}

/* The objects of a thread that may neither set nor ask where memory is. */
struct made {
    nodewise_array *interleaved, *blocked, *touched_by_pool;
    nodewise_arena *arena;
    nodewise_replicated_array *copies;
    nodewise_replicated *replicated;
    nodewise_node_replicated *node_replicated;
};

static void *make_without_policies(void *context)
{
    const int calls[] = {SYS_mbind, SYS_set_mempolicy, SYS_get_mempolicy, SYS_move_pages};
    const nodewise_layout blocked = {.kind = NODEWISE_LAYOUT_BLOCKED};
    static const uint64_t values[LEN] = {42};
    struct made *made = context;
    nodewise_pool *pool;
    void *block;
    refuse(EPERM, calls, sizeof calls / sizeof *calls);
    CHECK(nodewise_pool_new(NULL, &pool) == NODEWISE_OK);
    CHECK(nodewise_array_new(&interleaved, LEN, 8, NODEWISE_ANYWHERE, NULL, &made->interleaved) == NODEWISE_OK);
    CHECK(nodewise_array_new(&blocked, LEN, 8, NODEWISE_ANYWHERE, NULL, &made->blocked) == NODEWISE_OK);
    CHECK(nodewise_array_new(&blocked, LEN, 8, NODEWISE_ANYWHERE, pool, &made->touched_by_pool) == NODEWISE_OK);
    CHECK(nodewise_arena_new(&interleaved, NODEWISE_ANYWHERE, &made->arena) == NODEWISE_OK);
    CHECK(nodewise_arena_allocate(made->arena, 1 << 20, 8, &block) == NODEWISE_OK);
    CHECK(nodewise_replicated_array_new(values, LEN, 8, &made->copies) == NODEWISE_OK);
    CHECK(nodewise_replicated_new(&numbers, &number, &made->replicated) == NODEWISE_OK);
    CHECK(nodewise_node_replicated_new(&numbers, &operations, &number, &made->node_replicated) == NODEWISE_OK);
    nodewise_pool_free(pool);
    return NULL;
}

/* It all lies right nevertheless, as a thread that may ask finds. */
static void placed_all_the_same(void)
{
    struct made made;
    pthread_t thread;
    nodewise_placement placement;
    nodewise_node_pages pages[NODES];
    uint32_t nodes[NODES];
    size_t count, copies;
    CHECK(pthread_create(&thread, NULL, make_without_policies, &made) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    const nodewise_array *arrays[] = {made.interleaved, made.blocked, made.touched_by_pool};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        CHECK(nodewise_array_placement(arrays[i], 0, LEN, &placement, pages, NODES, &count) == NODEWISE_OK);
        CHECK(placement.misplaced == 0 && placement.absent == 0 && placement.unknown == 0);
        CHECK(one_node() == (count == 1));
    }
    CHECK(nodewise_arena_placement(made.arena, &placement, pages, NODES, &count) == NODEWISE_OK);
    CHECK(placement.misplaced == 0 && one_node() == (count == 1));
    CHECK(nodewise_replicated_placement(made.replicated, &placement, pages, NODES, &count) == NODEWISE_OK);
    CHECK(placement.misplaced == 0 && one_node() == (count == 1));
    CHECK(nodewise_node_replicated_placement(made.node_replicated, &placement, pages, NODES, &count) == NODEWISE_OK);
    CHECK(placement.misplaced == 0 && one_node() == (count == 1));
    CHECK(nodewise_replicated_array_nodes(made.copies, nodes, NODES, &copies) == NODEWISE_OK);
    for (size_t i = 0; i < copies; i++) {
        const void *copy;
        void *page;
        int home = -1;
        CHECK(nodewise_replicated_array_near(made.copies, nodes[i], &copy) == NODEWISE_OK);
        page = (void *)((uintptr_t)copy & ~(uintptr_t)4095);
        CHECK(syscall(SYS_move_pages, 0, 1ul, &page, NULL, &home, 0) == 0);
        CHECK(home == (int)nodes[i]);
    }
    nodewise_array_free(made.interleaved);
    nodewise_array_free(made.blocked);
    nodewise_array_free(made.touched_by_pool);
    nodewise_arena_free(made.arena);
    nodewise_replicated_array_free(made.copies);
    nodewise_replicated_free(made.replicated);
    nodewise_node_replicated_free(made.node_replicated);
}

/* But for what the allocator has from before, for all threads alike. A thread's own arena would be refused,
 * and glibc ends a program that cannot note what is to be destroyed with a thread. */
static void no_memory(void)
{
    static const uint64_t values[LEN] = {42};
    struct rlimit memory = {0, RLIM_INFINITY};
    nodewise_replicated_array *copies;
    nodewise_replicated *replicated;
    nodewise_node_replicated *node_replicated;
    CHECK(mallopt(M_ARENA_MAX, 1) == 1);
    CHECK(nodewise_replicated_array_new(values, LEN, 8, &copies) == NODEWISE_OK);
    CHECK(nodewise_replicated_new(&numbers, &number, &replicated) == NODEWISE_OK);
    CHECK(nodewise_node_replicated_new(&numbers, &operations, &number, &node_replicated) == NODEWISE_OK);
    nodewise_replicated_array_free(copies);
    nodewise_replicated_free(replicated);
    nodewise_node_replicated_free(node_replicated);
    void *volatile room = malloc(100 << 10); /* or the compiler would see through it */
    free(room);
    CHECK(setrlimit(RLIMIT_AS, &memory) == 0);
    says(nodewise_replicated_array_new(values, LEN, 8, &copies), NODEWISE_MEMORY, "map");
    says(nodewise_replicated_new(&numbers, &number, &replicated), NODEWISE_MEMORY, "map");
    says(nodewise_node_replicated_new(&numbers, &operations, &number, &node_replicated), NODEWISE_MEMORY, "map");
}

static size_t threads(void)
{
    size_t count = 0;
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks != NULL);
    for (struct dirent *task; (task = readdir(tasks)) != NULL;)
        count += task->d_name[0] != '.';
    CHECK(closedir(tasks) == 0);
    return count;
}

static void refuse_threads(void)
{
    const int calls[] = {SYS_clone, SYS_clone3};
    refuse(EAGAIN, calls, sizeof calls / sizeof *calls);
}

static int frees(void *pool)
{
    refuse_threads();
    nodewise_pool_free(pool);
    return 0;
}

static void no_thread(void)
{
    size_t before = threads();
    nodewise_pool *pool;
    nodewise_task *task;
    nodewise_array *array;
    nodewise_replicated *replicated;
    nodewise_read read;
    const void *value;
    CHECK(nodewise_pool_new(NULL, &pool) == NODEWISE_OK);
    refuse_threads();
    /* A task can free its pool all the same, and the workers end. */
    CHECK(nodewise_pool_spawn(pool, frees, pool, NULL, &task) == NODEWISE_OK);
    CHECK(nodewise_task_join(task, NULL) == NODEWISE_OK);
    for (int i = 0; threads() > before; i++) {
        CHECK(i < 10000);
        usleep(1000);
    }
    says(nodewise_pool_new(NULL, &pool), NODEWISE_THREAD, "worker");
    /* The calling thread does what others would do. */
    CHECK(nodewise_array_new(&interleaved, LEN, 8, 0, NULL, &array) == NODEWISE_OK);
    nodewise_array_free(array);
    CHECK(nodewise_replicated_new(&numbers, &number, &replicated) == NODEWISE_OK);
    CHECK(nodewise_replicated_read(replicated, &read, &value) == NODEWISE_OK && *(const uint64_t *)value == number);
    CHECK(nodewise_read_end(&read) == NODEWISE_OK);
    nodewise_replicated_free(replicated);
}

static void no_binding(void)
{
    nodewise_pool *pool;
    uint32_t node = nodewise_current_node();
    refuse(EPERM, &(int){SYS_sched_setaffinity}, 1);
    says(nodewise_bind_thread(&node, 1), NODEWISE_THREAD, "sched_setaffinity");
    says(nodewise_pool_new(NULL, &pool), NODEWISE_THREAD, "sched_setaffinity");
    says(nodewise_default_pool(&pool), NODEWISE_THREAD, "sched_setaffinity");
}

static int refuses_barrier(void *context)
{
    (void)context;
    refuse(EPERM, &(int){SYS_membarrier}, 1);
    return 0;
}

static int nothing(void *context)
{
    (void)context;
    return 0;
}

/* A pool does without membarrier, even if it is refused later. */
static void no_barrier(void)
{
    nodewise_pool_options *options;
    nodewise_pool *pool;
    nodewise_task *task;
    CHECK(nodewise_pool_options_new(&options) == NODEWISE_OK);
    CHECK(nodewise_pool_options_workers(options, 1) == NODEWISE_OK);
    CHECK(nodewise_pool_new(options, &pool) == NODEWISE_OK);
    nodewise_pool_options_free(options);
    for (int i = 0; i < 100; i++) {
        CHECK(nodewise_pool_spawn(pool, i == 0 ? refuses_barrier : nothing, NULL, NULL, &task) == NODEWISE_OK);
        usleep(1000); /* in which the worker falls asleep */
        CHECK(nodewise_task_join(task, NULL) == NODEWISE_OK);
    }
    nodewise_pool_free(pool);
}

/* refused [instrumented]: what watches the program may need memory itself. */
int main(int count, char **arguments)
{
    void (*const scenes[])(void) = {no_file, no_policy, placed_all_the_same, no_thread, no_binding, no_barrier, no_memory};
    bool instrumented = count > 1 && strcmp(arguments[1], "instrumented") == 0;
    for (size_t i = 0; i < sizeof scenes / sizeof *scenes - instrumented; i++) {
        int status;
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            alarm(300);
            scenes[i]();
            /* Without what a sanitizer does at a program's end: it would start a thread. */
            _exit(0);
        }
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    return 0;
}
