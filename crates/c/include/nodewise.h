/*
 * Nodewise for C: NUMA-friendly building blocks. C++ programs take nodewise.hpp.
 *
 * Results. A function that can fail returns NODEWISE_OK (0) or another nodewise_result.
 * nodewise_error_message() then tells the calling thread the cause in words, and a remedy. Each function's
 * comment lists its own failures. All functions return NODEWISE_INVALID_ARGUMENT where a pointer is NULL that
 * must not be, or a number makes no sense. Nothing has happened then. They return NODEWISE_PANIC where the
 * library finds a bug in itself or, where the comment says so, in its use. The library then also tells
 * standard error, with a backtrace if RUST_BACKTRACE is set. The process ends where the C library's allocator
 * has no memory left, for a copy of a value for instance. A function stores its output in its last
 * parameters, `out_...`, and leaves them alone unless it returns NODEWISE_OK.
 *
 * Ownership. A handle from a ..._new function is the caller's until its ..._free, which takes NULL too. No
 * other function keeps a pointer after it has returned, except where its comment says so. A handle must not
 * be used after, nor while, it is freed.
 *
 * Threads. Any thread may call any function at any time, also with handles that other threads use at the same
 * time. The exception is a function whose comment says `exclusive`: no other thread may use the handle during
 * its call. Handles may move between threads.
 *
 * Lists. A function that lists things into an array of `capacity` elements stores as many as there is room
 * for. *out_count gets the number of things that there are: more than `capacity` if the room was too small.
 * With capacity 0 the array may be NULL.
 *
 * Callbacks. A callback gets the `context` that was given along with it, as its last argument. It returns 0,
 * or another number of the caller's to say that it failed. The function that waits for callbacks then returns
 * NODEWISE_CALLBACK_FAILED, and stores the first such number in *out_status. *out_status is set to 0 if none
 * failed, and out_status may be NULL. Callbacks run on the pool's workers or the calling thread, several at a
 * time. They may call the library, and wait there for other tasks. They must return: neither longjmp nor an
 * exception may leave them.
 *
 * Forks. After fork() a child may free its parent's handles that no other thread was using, and its pools in
 * any case. It must not use them otherwise, nor return from a callback in which it was forked. It may make
 * its own.
 *
 * Plugins. Libraries that are loaded by dlopen() may make pools in their constructors, and use them once
 * these have returned. A library that may be closed again frees its pools before dlclose(), or is linked with
 * -z nodelete. In its destructors, those of C++ objects included, nodewise_pool_free() may wait for ever,
 * since threads cannot begin while these run.
 *
 * Numbers. Nodes and CPUs have the kernel's numbers, as in /sys/devices/system/node/node2.
 *
 * ABI. The soname names it: libnodewise.so.0.1, with major and minor version while the major is 0, and
 * libnodewise.so.1 from then on. Versions with one soname have the same functions, constants and structures,
 * and may have more functions and constants. A program runs with the version that it was built with and with
 * later ones. nodewise.hpp is compiled into programs, and relies on nothing but this header.
 */
#ifndef NODEWISE_H
#define NODEWISE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Results */

typedef int32_t nodewise_result;

enum {
    NODEWISE_OK = 0,
    /* An argument that cannot be. */
    NODEWISE_INVALID_ARGUMENT = 1,
    /* /sys or /proc could not be read, or do not have the form in which the kernel writes them. */
    NODEWISE_MACHINE = 2,
    /* A node on which the pool has no workers. */
    NODEWISE_NO_WORKERS = 3,
    /* The kernel refused a thread, or to confine it to its node. */
    NODEWISE_THREAD = 4,
    /* A layout that this process cannot have. */
    NODEWISE_LAYOUT = 5,
    /* The kernel has too little memory, or refuses a call. Filters of containers, Docker's among them,
     * refuse memory policies and move_pages(2). Requests for placements and hints fail then. Arrays and
     * arenas that may not lie anywhere fail too, on several nodes. The rest works. */
    NODEWISE_MEMORY = 6,
    /* Pages found no room on their node. */
    NODEWISE_NODE_FULL = 7,
    /* A device that does not exist, or whose place nobody knows. */
    NODEWISE_DEVICE = 8,
    /* Elements that are not within the array. */
    NODEWISE_RANGE = 9,
    /* More ranges with hints than there is room for. */
    NODEWISE_HINTS = 10,
    /* A request that cannot be met while others go on. */
    NODEWISE_BUSY = 11,
    /* A callback returned another number than 0. */
    NODEWISE_CALLBACK_FAILED = 12,
    /* A bug, in the library or in its use. */
    NODEWISE_PANIC = 13,
    /* A failure that this version of the header has no name for. */
    NODEWISE_OTHER = 14
};

/* The message of the last failure of a function on this thread, or "" before the first. It is never NULL, and
 * valid until the next failure on this thread or the thread's end. */
const char *nodewise_error_message(void);

/* The library's version, as "0.1.0". The string lives as long as the program. */
const char *nodewise_version(void);

/* The place of the calling thread */

/* A number that no node has. */
#define NODEWISE_NO_NODE UINT32_MAX

/* The node on which the calling thread runs now. The thread may have moved by the time the caller looks at
 * the number, unless it is bound. The call is one load from the area that the thread shares with the kernel
 * (Linux 6.3 and glibc 2.35, or later). Elsewhere it is the vDSO's getcpu and a table, which is read from
 * /sys once and by nodewise_refresh(). The number is 0 where nothing tells the node. The call cannot fail. */
uint32_t nodewise_current_node(void);

/* The CPU on which the calling thread runs now, or 0 where nothing tells it. The call cannot fail. */
uint32_t nodewise_current_cpu(void);

/* Reads anew which node each CPU belongs to, after CPUs were plugged in or set online.
 * nodewise_counter_on_node() uses the result, and so does nodewise_current_node() where the kernel does not
 * tell the node. A CPU that was offline from the start is on node 0 until this call. A CPU that goes offline
 * keeps its node. Allowances and all objects that are made later see the machine as it is then. Running pools
 * keep their workers. Workers that the kernel had to let run elsewhere, since their CPUs were gone, return to
 * those that are back.
 * NODEWISE_MACHINE: /sys cannot be read. The table stays as it was. */
nodewise_result nodewise_refresh(void);

/* Lists the nodes nearest to a device, ascending, among those with a CPU that the calling thread may use. The
 * name of a device is the system's ("eth0", "nvme0n1", "card0"), its PCI address ("0000:3b:00.0"), or
 * numactl's ("netdev:eth0", "block:sda", "pci:3b:00", "ip:192.0.2.1", "file:/path").
 * NODEWISE_DEVICE: there is no such device, or the firmware does not say where it is.
 * NODEWISE_MACHINE: /sys or /proc cannot be read. */
nodewise_result nodewise_nodes_near(const char *device, uint32_t *nodes, size_t capacity, size_t *out_count);

/* Confines the calling thread to the CPUs of these nodes, as far as it may use them.
 * NODEWISE_THREAD: the thread may use none of them.
 * NODEWISE_MACHINE: /sys or /proc cannot be read. */
nodewise_result nodewise_bind_thread(const uint32_t *nodes, size_t count);

/* Nodes, CPUs and CPU time that this process may use */

/* The nodes with CPUs on which a thread may run, and the CPU time that there is for them. An
 * allowance never changes. */
typedef struct nodewise_allowance nodewise_allowance;

/* The allowance of the calling thread as it is now, under cpusets, affinity and quotas.
 * NODEWISE_MACHINE: /sys or /proc cannot be read. */
nodewise_result nodewise_allowance_of_this_thread(nodewise_allowance **out_allowance);

/* The part of an allowance that is on these nodes, as an allowance of its own. */
nodewise_result nodewise_allowance_on_nodes(const nodewise_allowance *allowance, const uint32_t *nodes,
                                            size_t count, nodewise_allowance **out_allowance);

void nodewise_allowance_free(nodewise_allowance *allowance);

/* Lists the nodes, ascending. */
nodewise_result nodewise_allowance_nodes(const nodewise_allowance *allowance, uint32_t *nodes,
                                         size_t capacity, size_t *out_count);

/* Lists the CPUs of a node that may be used, ascending.
 * NODEWISE_INVALID_ARGUMENT: the allowance has no such node. */
nodewise_result nodewise_allowance_cpus(const nodewise_allowance *allowance, uint32_t node, uint32_t *cpus,
                                        size_t capacity, size_t *out_count);

/* Tells whether memory may be had on a node.
 * NODEWISE_INVALID_ARGUMENT: the allowance has no such node. */
nodewise_result nodewise_allowance_has_memory(const nodewise_allowance *allowance, uint32_t node,
                                              bool *out_memory);

/* The distance between two nodes, where 10 is local.
 * NODEWISE_INVALID_ARGUMENT: the allowance has no such node. */
nodewise_result nodewise_allowance_distance(const nodewise_allowance *allowance, uint32_t from, uint32_t to,
                                            uint32_t *out_distance);

/* The limit of CPU time: so many microseconds in each period. Both numbers are 0 where there is no limit. */
nodewise_result nodewise_allowance_cpu_quota(const nodewise_allowance *allowance, uint64_t *out_quota_us,
                                             uint64_t *out_period_us);

/* The number of threads that can run at a time: the CPUs, or as many as the quota keeps busy if they are
 * fewer. */
nodewise_result nodewise_allowance_parallelism(const nodewise_allowance *allowance, size_t *out_threads);

/* Lists how many workers each node would get, in the order of the nodes. They are `most` in all, or as many
 * as the parallelism allows. */
nodewise_result nodewise_allowance_workers(const nodewise_allowance *allowance, size_t most, size_t *workers,
                                           size_t capacity, size_t *out_count);

/* Counters */

/* A count to which all threads add and which few read. Each CPU has a cache line of its own. Sums wrap beyond
 * 2^64. */
typedef struct nodewise_counter nodewise_counter;

/* A counter that is 0. */
nodewise_result nodewise_counter_new(nodewise_counter **out_counter);

void nodewise_counter_free(nodewise_counter *counter);

/* Adds a number. Earlier writes of the thread are visible to a thread that reads a count with this addition
 * in it. */
nodewise_result nodewise_counter_add(const nodewise_counter *counter, uint64_t number);

/* A count between those at the call's begin and end. */
nodewise_result nodewise_counter_approximate(const nodewise_counter *counter, uint64_t *out_count);

/* The count at one moment during the call, but not if numbers are added that make it wrap.
 * NODEWISE_BUSY: additions kept coming. */
nodewise_result nodewise_counter_exact(const nodewise_counter *counter, uint64_t *out_count);

/* The sum of the numbers that CPUs of one node have added, read as nodewise_counter_approximate() does. */
nodewise_result nodewise_counter_on_node(const nodewise_counter *counter, uint32_t node, uint64_t *out_count);

/* The number of tasks that were submitted and are not yet done, for threads to wait until none is. Each node
 * counts in cache lines of its own. A task must be submitted before it is done. */
typedef struct nodewise_task_counter nodewise_task_counter;

/* A counter without tasks. */
nodewise_result nodewise_task_counter_new(nodewise_task_counter **out_counter);

/* Other threads may still be in nodewise_task_counter_done(). These calls no longer use the counter once a
 * wait or a count has told that all tasks are done. */
void nodewise_task_counter_free(nodewise_task_counter *counter);

/* Counts tasks that are to be done: fewer than 2^63 in all the counter's life.
 * NODEWISE_PANIC: they are more, and these are not counted. */
nodewise_result nodewise_task_counter_submit(const nodewise_task_counter *counter, uint64_t tasks);

/* Counts tasks that are done. Earlier writes of the thread are visible to a waiter that returns because of
 * it. */
nodewise_result nodewise_task_counter_done(const nodewise_task_counter *counter, uint64_t tasks);

/* The number of tasks that are left. It is exact while no thread submits or does any.
 * NODEWISE_PANIC: more were done than submitted. */
nodewise_result nodewise_task_counter_count(const nodewise_task_counter *counter, uint64_t *out_count);

/* Sleeps until all tasks are done.
 * NODEWISE_PANIC: more were done than submitted. */
nodewise_result nodewise_task_counter_wait(const nodewise_task_counter *counter);

/* Sleeps until all tasks are done, but at most that long, and says whether they are.
 * NODEWISE_PANIC: more were done than submitted. */
nodewise_result nodewise_task_counter_wait_timeout(const nodewise_task_counter *counter, uint64_t timeout_ns,
                                                   bool *out_all_done);

/* Pools */

/* Workers that are confined to their node's CPUs and run tasks, their own node's first. A worker that waits
 * for tasks, be they another pool's, runs others of its own pool meanwhile, so that nesting does not
 * deadlock. So no task may wait for a lock that is held until a scope, a join, a loop or another pool has
 * ended. Nor may it wait for anything else that is held so long. While the holder waits for that end, it
 * might run the task, and then neither ends. nodewise_pool_isolate() is for threads that must hold something.
 * Idle workers sleep.
 *
 * A task may wait for a thread outside that waits in a scope, a join or a loop of the pool. If all workers of
 * a node wait so for 50 ms, up to four more begin what such threads have started there. They end when the
 * others go on. No task may wait for a thread that is in nodewise_task_join(). */
typedef struct nodewise_pool nodewise_pool;

/* The settings of a pool. The functions that change them want them exclusive. */
typedef struct nodewise_pool_options nodewise_pool_options;

/* The settings of nodewise_pool_new(NULL, ...): a worker for each CPU on which the creating thread may run,
 * or fewer under a quota. */
nodewise_result nodewise_pool_options_new(nodewise_pool_options **out_options);

void nodewise_pool_options_free(nodewise_pool_options *options);

/* At most so many workers, shared among the nodes in proportion to their CPUs. 0 counts as 1. */
nodewise_result nodewise_pool_options_workers(nodewise_pool_options *options, size_t most);

/* Workers on these nodes only. */
nodewise_result nodewise_pool_options_nodes(nodewise_pool_options *options, const uint32_t *nodes,
                                            size_t count);

/* The stack of each worker, 2 MiB by default. Waiting tasks run others on top of themselves. */
nodewise_result nodewise_pool_options_stack_bytes(nodewise_pool_options *options, size_t bytes);

/* The allowance for the pool, which is copied, instead of the creating thread's. */
nodewise_result nodewise_pool_options_allowance(nodewise_pool_options *options,
                                                const nodewise_allowance *allowance);

/* Sets whether workers are confined to their node's CPUs, as they are by default. */
nodewise_result nodewise_pool_options_confined(nodewise_pool_options *options, bool confined);

/* Sets whether threads that wait for scopes, joins and loops work along meanwhile, on their own stacks, as
 * they do by default. Each takes the place of one sleeping worker. It runs tasks that it has spawned itself,
 * and tasks that these have spawned. On several nodes such threads never work along. */
nodewise_result nodewise_pool_options_callers_work(nodewise_pool_options *options, bool work);

/* Sets whether a node's workers belong to its last-level caches (L3), each confined to the CPUs of one. A
 * worker then takes work from the others of its cache first, then from those of its node. By default it may
 * run on all of its node's CPUs. All else goes by node as before. Threads that wait work along only where the
 * pool has one cache. */
nodewise_result nodewise_pool_options_by_cache(nodewise_pool_options *options, bool by_cache);

/* Starts the workers of a pool. `options` may be NULL, and are not kept.
 * NODEWISE_MACHINE: /sys or /proc cannot be read.
 * NODEWISE_NO_WORKERS: none of the nodes asked for has a CPU that may be used.
 * NODEWISE_THREAD: the kernel refused a thread, or to confine it. */
nodewise_result nodewise_pool_new(const nodewise_pool_options *options, nodewise_pool **out_pool);

/* The process's default pool. All that ask for it share its workers, so that several libraries in one process
 * do not start a worker each for every CPU. Each owner frees it by nodewise_pool_free(), and the workers end
 * with the last. The first to ask starts them: one for each CPU on which that thread may run, or fewer under
 * a quota or a limit. A forked child gets a default pool of its own.
 * NODEWISE_MACHINE: /sys or /proc cannot be read.
 * NODEWISE_THREAD: the kernel refused a thread, or to confine it. */
nodewise_result nodewise_default_pool(nodewise_pool **out_pool);

/* Limits the default pool to so many workers, for a program to say before its libraries ask for it. 0 counts
 * as 1. The last limit counts.
 * NODEWISE_BUSY: somebody has the pool already. It stays as it is. */
nodewise_result nodewise_default_pool_limit(size_t most);

/* Waits for everything that was spawned and ends the workers. A worker of another pool does other tasks of
 * its own pool meanwhile. A task of the pool may call this function. The call then returns at once, and the
 * last of the pool's tasks ends the workers. Calls that wait for tasks of the pool then go on to their end.
 * Among these, a call from outside of the pool waits for everything that was spawned. A forked child has
 * nothing to wait for, and the memory stays. */
void nodewise_pool_free(nodewise_pool *pool);

/* Lists the nodes on which the pool has workers, ascending. */
nodewise_result nodewise_pool_nodes(const nodewise_pool *pool, uint32_t *nodes, size_t capacity,
                                    size_t *out_count);

/* The number of workers. */
nodewise_result nodewise_pool_workers(const nodewise_pool *pool, size_t *out_workers);

/* The node of the worker that calls this, or NODEWISE_NO_NODE on a thread that is no worker of this pool. */
nodewise_result nodewise_pool_worker_node(const nodewise_pool *pool, uint32_t *out_node);

/* A number that no worker's index is. */
#define NODEWISE_NO_INDEX SIZE_MAX

/* The index of the calling thread among those that work for this pool now: its workers and threads that work
 * along. No two threads have the same at a time, and a thread keeps it until its task ends. It is for arrays
 * with an element for each. A task that waits may run others on top of itself, which have the same index. On
 * a thread that does not work for the pool the number is NODEWISE_NO_INDEX. */
nodewise_result nodewise_pool_worker_index(const nodewise_pool *pool, size_t *out_index);

/* The pool for which the calling thread works now, and the thread's index there.
 * nodewise_pool_worker_index() finds the same. This is for loops that ask too often for a call. */
typedef struct nodewise_seat {
    /* As nodewise_pool_identity() gives it, or NULL. */
    const void *pool;
    /* NODEWISE_NO_INDEX where `pool` is NULL. */
    size_t index;
} nodewise_seat;

/* The calling thread's seat. It stays at its address until the thread ends, and changes as the thread begins
 * and ends to work for a pool. Other threads may not read it. Never NULL. */
const nodewise_seat *nodewise_this_seat(void);

/* A pointer that no other pool has that is there at the same time. It points to nothing of yours. */
nodewise_result nodewise_pool_identity(const nodewise_pool *pool, const void **out_identity);

/* The number of indices: more than there are workers. */
nodewise_result nodewise_pool_worker_indices(const nodewise_pool *pool, size_t *out_indices);

/* The work of one node's workers since the pool was made. */
typedef struct nodewise_node_statistics {
    uint32_t node;
    size_t workers;
    /* Pieces of work that they have begun: tasks, and parts that ranges were divided into. */
    uint64_t run;
    /* Pieces of `run` that they took from another worker of the node. */
    uint64_t stolen_inside;
    /* Pieces of `run` that they took from another node. */
    uint64_t stolen_across;
} nodewise_node_statistics;

/* Lists statistics, by ascending node. Numbers of running workers may lag behind. */
nodewise_result nodewise_pool_statistics(const nodewise_pool *pool, nodewise_node_statistics *statistics,
                                         size_t capacity, size_t *out_count);

/* Tasks of their own */

typedef int (*nodewise_run)(void *context);
typedef void (*nodewise_drop)(void *context);

/* A task that was spawned, for its joiner. */
typedef struct nodewise_task nodewise_task;

/* Starts a task, on the calling thread's node if the pool has workers there. The context is the library's
 * from here on, whatever is returned. The library calls `drop`, which may be NULL, with the context once it
 * is needed no more: once, on any thread. *out_task is the caller's until it is joined or freed. With NULL
 * for out_task nobody hears of the task again. */
nodewise_result nodewise_pool_spawn(const nodewise_pool *pool, nodewise_run run, void *context,
                                    nodewise_drop drop, nodewise_task **out_task);

/* The same for a task that only workers of this node run.
 * NODEWISE_NO_WORKERS: the pool has none there. */
nodewise_result nodewise_pool_spawn_on(const nodewise_pool *pool, uint32_t node, nodewise_run run,
                                       void *context, nodewise_drop drop, nodewise_task **out_task);

typedef void (*nodewise_move)(void *from, void *to);

/* The same with an object in the task itself, which takes no memory of its own. The object is a callable and
 * the room for its result, for instance. `move` is called at once, and moves `context` to an address that 16
 * divides. `context` stays the caller's, as it is left. `run` is called once with the object's address.
 * `drop`, which may be NULL, ends the object once the task has ended and was joined or freed. With
 * NODEWISE_NO_NODE for the node all workers may run the task, and else only those of the node.
 * NODEWISE_NO_WORKERS: the pool has none there. Nothing was moved. */
nodewise_result nodewise_pool_spawn_moved(const nodewise_pool *pool, uint32_t node, nodewise_run run,
                                          void *context, size_t bytes, nodewise_move move, nodewise_drop drop,
                                          nodewise_task **out_task);

/* Waits until the task has ended. A worker, of whichever pool, does other tasks of its own pool meanwhile.
 * Any other thread sleeps. The task stays the caller's, and so does its object. Exclusive.
 * NODEWISE_CALLBACK_FAILED: the task returned another number than 0. */
nodewise_result nodewise_task_wait(nodewise_task *task, int *out_status);

/* Waits until the task has ended, and frees it, whatever is returned. A worker, of whichever pool, does other
 * tasks of its own pool meanwhile. Any other thread sleeps. Exclusive.
 * NODEWISE_CALLBACK_FAILED: the task returned another number than 0. */
nodewise_result nodewise_task_join(nodewise_task *task, int *out_status);

/* Tells whether the task has ended. */
nodewise_result nodewise_task_is_finished(const nodewise_task *task, bool *out_finished);

/* Lets the task go on by itself. */
void nodewise_task_free(nodewise_task *task);

/* Runs both callbacks, the second on another worker if one is idle, and returns when both have ended.
 * NODEWISE_CALLBACK_FAILED: one of them failed. The number is the first's if both failed. */
nodewise_result nodewise_pool_join(const nodewise_pool *pool, nodewise_run a, void *a_context, nodewise_run b,
                                   void *b_context, int *out_status);

/* Runs `run` as a scope's body, and isolated. The call consists of `run` and of all tasks that it and they
 * spawn. A worker that waits in the call runs no other tasks meanwhile. So `run` may hold what other tasks
 * want, a lock for instance, while it waits for its own. Tasks that another pool's start in this pool
 * meanwhile are others'. No task of the call may wait for them. Tasks of the call that are bound to another
 * node need a worker there which does not wait for what `run` holds.
 * NODEWISE_CALLBACK_FAILED: `run` failed. */
nodewise_result nodewise_pool_isolate(const nodewise_pool *pool, nodewise_run run, void *context,
                                      int *out_status);

/* Scopes: tasks that may use variables in the frame that waits for them */

/* A scope is valid until nodewise_pool_scope() returns. */
typedef struct nodewise_scope nodewise_scope;

typedef int (*nodewise_scope_run)(const nodewise_scope *scope, void *context);

/* Runs `body` on a worker: the calling thread, if it is one or works along. Returns when the body has ended,
 * and all tasks that it and they spawned.
 * NODEWISE_CALLBACK_FAILED: one of them failed. Others have run nevertheless, unless one of them cancelled
 * the scope. */
nodewise_result nodewise_pool_scope(const nodewise_pool *pool, nodewise_scope_run body, void *context,
                                    int *out_status);

/* Spawns a task of the scope, on the calling worker's node. Other nodes take it when they have run dry. The
 * scope's body and its tasks may call this. The context is the library's from here on, as with
 * nodewise_pool_spawn(). */
nodewise_result nodewise_scope_spawn(const nodewise_scope *scope, nodewise_scope_run run, void *context,
                                     nodewise_drop drop);

/* Spawns a task with a copy of its context. `run` gets the address of the copy, which 8 divides. The copy
 * ends with the task. A copy of 8, 16, 24 or 32 bytes lies in the task itself, and takes no memory of its
 * own. The context may be NULL where `bytes` is 0. */
nodewise_result nodewise_scope_spawn_copy(const nodewise_scope *scope, nodewise_scope_run run,
                                          const void *context, size_t bytes);

/* Spawns a task with an object in the task itself, which takes no memory of its own. It is for objects of C++
 * that must not be copied as bytes. `move` is called at once, and moves `context` to an address that 8
 * divides. `context` stays the caller's, as it is left. `run` is then called once with the object's address,
 * and ends the object. If the scope is cancelled before, it is called with NULL for the scope, and only ends
 * the object. The object has at most 32 bytes. With NODEWISE_NO_NODE for the node all workers may run the
 * task, and else only those of the node.
 * NODEWISE_NO_WORKERS: the pool has none there. Nothing was moved. */
nodewise_result nodewise_scope_spawn_moved(const nodewise_scope *scope, uint32_t node, nodewise_scope_run run,
                                           void *context, size_t bytes, nodewise_move move);

/* The same as nodewise_scope_spawn() for a task that only workers of this node run.
 * NODEWISE_NO_WORKERS: the pool has none there. */
nodewise_result nodewise_scope_spawn_on(const nodewise_scope *scope, uint32_t node, nodewise_scope_run run,
                                        void *context, nodewise_drop drop);

/* Drops the tasks that have not begun, instead of running them. */
nodewise_result nodewise_scope_cancel(const nodewise_scope *scope);

/* Tells whether the scope was cancelled, for long tasks to ask now and then. */
nodewise_result nodewise_scope_is_cancelled(const nodewise_scope *scope, bool *out_cancelled);

/* Loops over ranges */

typedef int (*nodewise_range_run)(size_t begin, size_t end, void *context);

/* Calls `body` with parts of [begin, end), each number in one of them, on all workers. Neighbouring parts are
 * mostly on the same worker, in ascending order. Each node gets a share in proportion to its workers if the
 * call comes from outside. The range starts on the worker's node if the call comes from a worker. In both
 * cases nodes that have run dry take from others.
 * NODEWISE_CALLBACK_FAILED: a call of the body failed. No part begins after that. Parts that have begun go on
 * to their end. */
nodewise_result nodewise_pool_parallel_for(const nodewise_pool *pool, size_t begin, size_t end,
                                           nodewise_range_run body, void *context, int *out_status);

/* The same in parts of at least `grain` numbers, unless the range has fewer. This is for bodies that are so
 * short that smaller parts would cost more than they bring. 0 counts as 1. */
nodewise_result nodewise_pool_parallel_for_grain(const nodewise_pool *pool, size_t begin, size_t end,
                                                 size_t grain, nodewise_range_run body, void *context,
                                                 int *out_status);

/* The way in which parts of a range become one value. */
typedef struct nodewise_reduction {
    /* Size of a value. Values lie at addresses that 16 divides, and are moved, as bytes, from one call to the
     * next. */
    size_t value_bytes;
    /* Makes the value of a part that is not empty. If it fails, there is no value to drop. */
    int (*part)(size_t begin, size_t end, void *out_value, void *context);
    /* Turns the left value, which is of lower numbers, into the value of both. The right value is dropped
     * afterwards. Both are dropped if this fails. The combination has to be associative, but need not be
     * commutative. */
    int (*combine)(void *left, void *right, void *context);
    /* Ends a value that is not given to the caller. The callback may be NULL. */
    void (*drop)(void *value, void *context);
    /* Least numbers in a part, as in nodewise_pool_parallel_for_grain(). */
    size_t grain;
} nodewise_reduction;

/* Makes values of parts of [begin, end), divided as by nodewise_pool_parallel_for(), and combines neighbours.
 * The result goes to out_value, as bytes. out_value stays as it is if the range is empty. `reduction` is not
 * kept.
 * NODEWISE_CALLBACK_FAILED: a part or a combination failed. out_value stays as it is. */
nodewise_result nodewise_pool_parallel_reduce(const nodewise_pool *pool, size_t begin, size_t end,
                                              const nodewise_reduction *reduction, void *context,
                                              void *out_value, int *out_status);

/* Types of numbers, for nodewise_pool_sort(). */
enum {
    NODEWISE_INT8 = 0,
    NODEWISE_INT16 = 1,
    NODEWISE_INT32 = 2,
    NODEWISE_INT64 = 3,
    NODEWISE_UINT8 = 4,
    NODEWISE_UINT16 = 5,
    NODEWISE_UINT32 = 6,
    NODEWISE_UINT64 = 7,
    NODEWISE_FLOAT = 8,
    NODEWISE_DOUBLE = 9,
};

/* Sorts `count` numbers of this type, ascending, on all workers. Floating-point numbers are in the total
 * order of IEEE 754. So -0 comes before 0, and a NaN comes first or last, by its sign. `numbers` may be NULL
 * if `count` is 0. No other thread may touch them meanwhile.
 * NODEWISE_INVALID_ARGUMENT: number_type is none of these. */
nodewise_result nodewise_pool_sort(const nodewise_pool *pool, void *numbers, size_t count, int number_type);

/* Arrays whose pages lie where they are told to */

/* Layouts that name no nodes take the nodes with CPUs on which this process may have memory. Some memory lies
 * apart from all CPUs, such as that of an expander (CXL) or a device. It is used only if a layout names it,
 * or if it is the nearest that some CPU has. */
enum {
    /* All pages on nodes[0]. The count is 1. */
    NODEWISE_LAYOUT_ON = 0,
    /* Page after page round the nodes with CPUs. */
    NODEWISE_LAYOUT_INTERLEAVED = 1,
    /* The same with weights[i] pages in a row on nodes[i]. The weights' sum is at most 65536. */
    NODEWISE_LAYOUT_WEIGHTED = 2,
    /* One block of neighbouring pages on each node with CPUs. */
    NODEWISE_LAYOUT_BLOCKED = 3
};

typedef struct nodewise_layout {
    /* NODEWISE_LAYOUT_... */
    int kind;
    /* Number of nodes and of weights, where the layout has them. */
    size_t count;
    const uint32_t *nodes;
    const uint32_t *weights;
} nodewise_layout;

/* Flags for memory. */
enum {
    /* Huge pages of 2 MiB where the system gives them, and layouts in steps of 2 MiB. */
    NODEWISE_HUGE_PAGES = 1,
    /* Base pages, even where the system would give huge ones. Arrays have them by default. */
    NODEWISE_BASE_PAGES = 2,
    /* Pages that find no room on their node stay where the kernel put them, and no call fails for them. The
     * same goes for pages whose place nobody knows, as a container's filter refuses memory policies and
     * move_pages(2). Threads on the CPUs of their nodes touch these first, and they stay there unless the
     * kernel's balancing moves them. */
    NODEWISE_ANYWHERE = 4
};

/* Elements of a fixed size whose pages lie as a layout says. All bits are zero at first. The first element is
 * at a multiple of a page, and of the largest power of two that divides the size. Each element is thus
 * aligned as its type asks. */
typedef struct nodewise_array nodewise_array;

/* Makes an array of `len` elements of `element_bytes` each. `flags` are NODEWISE_HUGE_PAGES and the like, or
 * 0. Workers of `pool` bring in all pages, each node's on that node. If `pool` is NULL, a thread for each
 * node does so. Neither the pool nor the layout is kept. An array that the nodes could hold may still be more
 * than is free, or than the control group may have. No error tells of that. The kernel then reclaims memory,
 * and ends processes if it finds none.
 * NODEWISE_LAYOUT: the layout names a node that has no memory for this process.
 * NODEWISE_MEMORY: the nodes on which this process may have memory have less, or the kernel refuses a call. A
 * container's filter that refuses a call gives this error if there are several nodes and pages may not lie
 * anywhere.
 * NODEWISE_NODE_FULL: pages found no room on their node.
 * NODEWISE_MACHINE: /sys or /proc cannot be read. */
nodewise_result nodewise_array_new(const nodewise_layout *layout, size_t len, size_t element_bytes,
                                   uint32_t flags, const nodewise_pool *pool, nodewise_array **out_array);

/* Gives the memory back to the system. */
void nodewise_array_free(nodewise_array *array);

/* The address of the elements, valid until the array is freed. Threads that read and write there look after
 * each other themselves. */
nodewise_result nodewise_array_data(const nodewise_array *array, void **out_data);

typedef struct nodewise_placement {
    /* Base pages on another node than the layout wants. */
    size_t misplaced;
    /* Base pages in no memory now: swapped out. */
    size_t absent;
    /* Base pages that the kernel does not tell of, as a container's filter refuses move_pages(2). */
    size_t unknown;
} nodewise_placement;

typedef struct nodewise_node_pages {
    uint32_t node;
    /* Base pages on the node. */
    size_t pages;
} nodewise_node_pages;

/* Asks the kernel where the pages of the elements from begin to before end are now. Lists how many are on
 * each node that has some. Pages count whole if elements across an end lie on them.
 * NODEWISE_RANGE: there are no such elements.
 * NODEWISE_MEMORY: a container's filter refuses move_pages(2). */
nodewise_result nodewise_array_placement(const nodewise_array *array, size_t begin, size_t end,
                                         nodewise_placement *out_placement, nodewise_node_pages *pages,
                                         size_t capacity, size_t *out_count);

/* The same page by page: lists the node of each base page, or NODEWISE_NO_NODE for one that is in no memory
 * now. */
nodewise_result nodewise_array_page_nodes(const nodewise_array *array, size_t begin, size_t end,
                                          uint32_t *nodes, size_t capacity, size_t *out_count);

/* Moves the pages to the nodes that another layout wants. The contents stay as they are. out_placement may be
 * NULL. Exclusive, but the elements may be used meanwhile. Fails as nodewise_array_new() does. After
 * NODEWISE_NODE_FULL pages that found room have moved, and the rest have not. */
nodewise_result nodewise_array_lay_out(nodewise_array *array, const nodewise_layout *layout,
                                       nodewise_placement *out_placement);

/* The same for the pages of the elements from begin to before end, as if they were an array of their own.
 * Pages move whole, with the elements beside the range that are on them. In an array of huge pages, huge
 * pages move whole. Exclusive, but the elements may be used meanwhile. Fails as nodewise_array_lay_out()
 * does.
 * NODEWISE_RANGE: there are no such elements. */
nodewise_result nodewise_array_lay_out_range(nodewise_array *array, size_t begin, size_t end,
                                             const nodewise_layout *layout,
                                             nodewise_placement *out_placement);

/* Neighbouring elements on one node: those from begin to before end. An element that lies across two pages
 * belongs to the first. */
typedef struct nodewise_block {
    uint32_t node;
    size_t begin;
    size_t end;
} nodewise_block;

/* Lists the array's blocks, in order. */
nodewise_result nodewise_array_blocks(const nodewise_array *array, nodewise_block *blocks, size_t capacity,
                                      size_t *out_count);

/* `elements` points to the block's first element. */
typedef int (*nodewise_block_run)(const nodewise_block *block, void *elements, void *context);

/* Calls `body` with each block, or with pieces of a larger one, on workers of the block's node. The workers
 * take these from each other. Any workers do so where the pool has none on that node. Returns when all are
 * done. Other threads that read and write there meanwhile look after that themselves.
 * NODEWISE_CALLBACK_FAILED: a call of the body failed. Pieces that had not begun by then were left out. */
nodewise_result nodewise_array_for_each_block(const nodewise_array *array, const nodewise_pool *pool,
                                              nodewise_block_run body, void *context, int *out_status);

typedef int (*nodewise_blocks_run)(const nodewise_block *block, void *context);

/* The same for blocks that need not be an array's. Pieces have at least `grain` elements where their block
 * has as many. 0 counts as 1. A loop over several arrays of one layout takes the blocks of one of them. The
 * blocks are not kept.
 * NODEWISE_CALLBACK_FAILED: as above. */
nodewise_result nodewise_pool_for_each_block(const nodewise_pool *pool, const nodewise_block *blocks,
                                             size_t count, size_t grain, nodewise_blocks_run body,
                                             void *context, int *out_status);

/* Memory for values of any size, in chunks that lie as a layout says. Small blocks that are given back serve
 * requests of about the same size again. Blocks larger than 256 KiB go back to the system, but for the last
 * of up to 8 MiB. */
typedef struct nodewise_arena nodewise_arena;

/* Makes an arena without memory yet. `flags` are NODEWISE_HUGE_PAGES and the like. By default an arena on one
 * node takes huge pages, and others take base pages. The layout is not kept.
 * NODEWISE_LAYOUT: the layout names a node that has no memory for this process.
 * NODEWISE_MACHINE: /sys or /proc cannot be read. */
nodewise_result nodewise_arena_new(const nodewise_layout *layout, uint32_t flags, nodewise_arena **out_arena);

/* Gives all memory back to the system, with the blocks that are still in use. */
void nodewise_arena_free(nodewise_arena *arena);

/* Memory for `bytes`, 0 included, at an address that `align` divides. Its contents are not defined. It is the
 * caller's until given back. The arena can be used on after each error. No error tells of a request for more
 * than is free, as with arrays.
 * NODEWISE_INVALID_ARGUMENT: `align` is no power of two.
 * NODEWISE_MEMORY: the nodes on which this process could have memory when the arena was made had less, or the
 * kernel refuses a call. A container's filter that refuses a call gives this error as with arrays.
 * NODEWISE_NODE_FULL: pages found no room on their node. */
nodewise_result nodewise_arena_allocate(const nodewise_arena *arena, size_t bytes, size_t align,
                                        void **out_block);

/* Gives back a block of this arena that was asked for with the same `bytes` and `align`. Does nothing with
 * NULL. */
nodewise_result nodewise_arena_deallocate(const nodewise_arena *arena, void *block, size_t bytes,
                                          size_t align);

/* The number of bytes that the arena has from the system. */
nodewise_result nodewise_arena_reserved_bytes(const nodewise_arena *arena, size_t *out_bytes);

/* Asks the kernel where the arena's pages are now, used or free. Lists how many are on each node that has
 * some. A thread that needs new memory waits meanwhile.
 * NODEWISE_MEMORY: a container's filter refuses move_pages(2). */
nodewise_result nodewise_arena_placement(const nodewise_arena *arena, nodewise_placement *out_placement,
                                         nodewise_node_pages *pages, size_t capacity, size_t *out_count);

/* Hints on how memory is used, for a nodewise that manages this process or, where there is none, for the
 * library itself */

enum {
    /* Memory of one thread or node, which shall be local there. The library moves the pages that are there to
     * the calling thread's node. */
    NODEWISE_HINT_PRIVATE = 0,
    /* Memory that many read, and that is hardly ever written. The library interleaves it. */
    NODEWISE_HINT_READ_SHARED = 1,
    /* Memory that many write. It is interleaved. */
    NODEWISE_HINT_WRITE_SHARED = 2
};

enum {
    /* A nodewise that manages this process, from its next round on. */
    NODEWISE_HONOURED_BY_MANAGER = 0,
    /* This library, which has done all that it can. */
    NODEWISE_HONOURED_BY_LIBRARY = 1
};

/* Says how the pages that lie wholly in this memory are used. This takes the place of earlier hints on them,
 * and a policy that they had gives way. Others may use the memory meanwhile. Memory that is allocated there
 * later is concerned as well, so take hints back before memory is freed. Hints on arrays and arenas are
 * forgotten with them. *out_honoured_by gets NODEWISE_HONOURED_BY_..., and out_honoured_by may be NULL.
 * NODEWISE_HINTS: 1022 ranges have hints already.
 * NODEWISE_MEMORY: not all of the pages are mapped, or a container's filter refuses a call.
 * NODEWISE_MACHINE: /sys or /proc cannot be read. */
nodewise_result nodewise_hint(const void *memory, size_t bytes, int hint, int *out_honoured_by);

/* Takes back the hints on the pages that lie wholly in this memory. They stay where they are, and their
 * policy stays. */
nodewise_result nodewise_forget_hints(const void *memory, size_t bytes);

/* Tells whether a manager honours this process's hints now. The first call tells managers of this process. A
 * program that wants to leave the work to a manager asks early, and again after the manager's interval, 1 s
 * by default. */
nodewise_result nodewise_is_managed(bool *out_managed);

/* Elements with a copy on every node with CPUs, or on the nearest node that has memory for this process. They
 * are for data that all threads read and few write. They are aligned as those of a nodewise_array. */
typedef struct nodewise_replicated_array nodewise_replicated_array;

typedef int (*nodewise_change)(void *value, void *context);

/* Copies `len` elements of `element_bytes` each to every such node. A container's filter may refuse memory
 * policies and move_pages(2). A copy then lies where threads on its node's CPUs touch it first.
 * NODEWISE_MEMORY: the nodes have less than a copy takes, or the kernel refuses a call.
 * NODEWISE_NODE_FULL: a copy found no room on its node.
 * NODEWISE_MACHINE: /sys or /proc cannot be read. */
nodewise_result nodewise_replicated_array_new(const void *elements, size_t len, size_t element_bytes,
                                              nodewise_replicated_array **out_array);

void nodewise_replicated_array_free(nodewise_replicated_array *array);

/* The copy nearest to the calling thread. It is valid until the array is freed, and not to be read during an
 * update. */
nodewise_result nodewise_replicated_array_local(const nodewise_replicated_array *array,
                                                const void **out_data);

/* The copy nearest to a node, valid as that of nodewise_replicated_array_local(). */
nodewise_result nodewise_replicated_array_near(const nodewise_replicated_array *array, uint32_t node,
                                               const void **out_data);

/* Lists the nodes that have a copy, ascending. */
nodewise_result nodewise_replicated_array_nodes(const nodewise_replicated_array *array, uint32_t *nodes,
                                                size_t capacity, size_t *out_count);

/* Changes one copy by `change`, on the calling thread, then makes the others like it. Exclusive.
 * NODEWISE_CALLBACK_FAILED: `change` failed. The others are like the changed copy all the same. */
nodewise_result nodewise_replicated_array_update(nodewise_replicated_array *array, nodewise_change change,
                                                 void *context, int *out_status);

/* Values with copies on each node */

/* A value that all threads read and few write. Reads touch only the nearest copy and never wait. Updates
 * change every copy. Reads and updates are linearizable: once one thread has seen a value, none sees an older
 * one. Each node with CPUs has copies, or the nearest node that has memory for this process. */
typedef struct nodewise_replicated nodewise_replicated;

/* The way in which a value is copied. Copies lie at addresses that 128 divides, twice on each node, in the
 * node's memory. */
typedef struct nodewise_value_type {
    size_t bytes;
    /* Makes a copy in fresh memory, on any thread. NULL stands for a copy byte by byte. If the callback
     * fails, there is nothing to destroy. */
    int (*copy)(const void *from, void *to, void *context);
    /* Ends a copy, on any thread. The callback may be NULL. */
    void (*destroy)(void *value, void *context);
    /* Argument of all three callbacks, kept until the value is freed. */
    void *context;
    /* Taken instead of `copy` if it is not NULL, for values with memory of their own. The arena's memory is
     * on the copy's node. The copy may keep the arena, which outlives the copy. Memory from elsewhere,
     * malloc() for instance, may lie on any node. */
    int (*copy_in)(const void *from, void *to, const nodewise_arena *arena, void *context);
} nodewise_value_type;

/* Copies `value` to each node, by threads that prefer memory there or, where a container's filter refuses
 * memory policies, are on its CPUs. Neither `value` nor `type` itself is kept.
 * NODEWISE_CALLBACK_FAILED: a copy failed.
 * NODEWISE_MACHINE: /sys or /proc cannot be read.
 * NODEWISE_MEMORY: no more memory can be mapped. */
nodewise_result nodewise_replicated_new(const nodewise_value_type *type, const void *value,
                                        nodewise_replicated **out_replicated);

/* No read may be under way. */
void nodewise_replicated_free(nodewise_replicated *replicated);

/* A read that is under way. */
typedef struct nodewise_read {
    void *guard;
} nodewise_read;

/* Begins a read: the value stays as it is until nodewise_read_end(). The call never waits. Updates wait for
 * the read's end, so a thread that reads must not update. */
nodewise_result nodewise_replicated_read(const nodewise_replicated *replicated, nodewise_read *out_read,
                                         const void **out_value);

/* Ends a read, once, on the thread that began it. */
nodewise_result nodewise_read_end(nodewise_read *read);

/* Changes every copy. `change` is called for each, on the calling thread, and must do the same to each.
 * Updates are made one after the other. `change` must not update the same value, or it waits for itself.
 * NODEWISE_CALLBACK_FAILED: `change` failed. The value is as if nothing had been changed if `change` failed
 * the first time or on the first half of its calls. It is as if all had been changed if `change` failed
 * later. A copy that fails while that is put right ends the process. */
nodewise_result nodewise_replicated_update(const nodewise_replicated *replicated, nodewise_change change,
                                           void *context, int *out_status);

/* Replaces the value by a copy of another of its type.
 * NODEWISE_CALLBACK_FAILED: a copy failed, as with an update. */
nodewise_result nodewise_replicated_set(const nodewise_replicated *replicated, const void *value,
                                        int *out_status);

/* Asks the kernel where the pages of all copies and of their arenas are now. Lists how many are on each node
 * that has some. An update waits meanwhile if it needs new memory.
 * NODEWISE_MEMORY: a container's filter refuses move_pages(2). */
nodewise_result nodewise_replicated_placement(const nodewise_replicated *replicated,
                                              nodewise_placement *out_placement, nodewise_node_pages *pages,
                                              size_t capacity, size_t *out_count);

/* A value that all threads read and few write, with one copy on each node that would have copies of a
 * nodewise_replicated. A log of operations keeps the copies alike: an update is done once a node, when it is
 * needed there. Readers wait for updates of their node's copy. Reads and updates are linearizable. */
typedef struct nodewise_node_replicated nodewise_node_replicated;

/* The operations on a value. */
typedef struct nodewise_operations {
    /* Bytes of an operation and of a response. They are copied byte by byte, at addresses that 16 divides.
     * Either number may be 0. */
    size_t operation_bytes;
    size_t response_bytes;
    /* Does an operation to a copy and stores the response, on any thread that uses the value. It does the
     * same to equal copies. It cannot fail, and must not use the value through the library. */
    void (*operate)(void *value, const void *operation, void *out_response, void *context);
    /* Argument of `operate`, kept until the value is freed. */
    void *context;
} nodewise_operations;

/* Copies `value` to each node, as nodewise_replicated_new() does, and fails as it does. Neither `value`,
 * `type` nor `operations` is kept. */
nodewise_result nodewise_node_replicated_new(const nodewise_value_type *type,
                                             const nodewise_operations *operations, const void *value,
                                             nodewise_node_replicated **out_replicated);

/* No read may be under way. */
void nodewise_node_replicated_free(nodewise_node_replicated *replicated);

/* A read that is under way. */
typedef struct nodewise_node_read {
    void *guard[2];
} nodewise_node_read;

/* Begins a read: the value has all updates that have returned, and stays as it is until
 * nodewise_node_read_end(). Updates wait for the read's end, so a thread that reads must neither update nor
 * read again. */
nodewise_result nodewise_node_replicated_read(const nodewise_node_replicated *replicated,
                                              nodewise_node_read *out_read, const void **out_value);

/* Ends a read, once, on the thread that began it. */
nodewise_result nodewise_node_read_end(nodewise_node_read *read);

/* Does an operation, which is copied, to every copy: to the nearest before this returns, to the others when
 * they are read or the log is full. The response goes to out_response, which may be NULL if response_bytes is
 * 0. `operation` may be NULL if operation_bytes is 0. */
nodewise_result nodewise_node_replicated_update(const nodewise_node_replicated *replicated,
                                                const void *operation, void *out_response);

/* Tells where the pages of all copies are now, as nodewise_replicated_placement() does, and fails as it does.
 * NODEWISE_MEMORY: a container's filter refuses move_pages(2). */
nodewise_result nodewise_node_replicated_placement(const nodewise_node_replicated *replicated,
                                                   nodewise_placement *out_placement,
                                                   nodewise_node_pages *pages, size_t capacity,
                                                   size_t *out_count);

#ifdef __cplusplus
}
#endif

#endif
