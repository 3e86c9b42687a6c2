/*
 * Nodewise for C: NUMA-friendly building blocks. C++ programs take nodewise.hpp.
 *
 * Results. Functions that can fail return NODEWISE_OK (0) or another nodewise_result; nodewise_error_message() then says
 * in words what was wrong and what can be done, for the calling thread. Besides what is listed at each function, all of them
 * return NODEWISE_INVALID_ARGUMENT where a pointer is NULL that must not be, or a number makes no sense, and nothing has
 * happened then; and NODEWISE_PANIC where the library finds a bug in itself or, where that is said, in its use, of which it also tells standard
 * error, with a backtrace if RUST_BACKTRACE is set. Where the C library's allocator has no memory left, for a copy of a value for instance,
 * the process ends. What a function has to give goes to its last parameters, `out_...`, which are left alone
 * unless it returns NODEWISE_OK.
 *
 * Ownership. What a ..._new function gives is the caller's until its ..._free, which takes NULL too. No other function keeps a
 * pointer after it has returned, except where that is said. A handle must not be used after, nor while, it is freed.
 *
 * Threads. Any thread may call any function at any time, also with handles that other threads use at the same time, except
 * where `exclusive` is said: then no other thread may use the handle during the call. Handles may move between threads.
 *
 * Lists. Where a function lists things into an array of `capacity` elements, it stores as many as there is room for, and in
 * *out_count how many there are: more than `capacity` if the room was too small. With capacity 0 the array may be NULL.
 *
 * Callbacks get the `context` that was given along with them, as their last argument, and return 0, or another number of the
 * caller's to say that they failed. The function that waits for them returns NODEWISE_CALLBACK_FAILED then, and stores the
 * first such number in *out_status, which is set to 0 if none failed; out_status may be NULL. Callbacks run on the pool's workers or the calling
 * thread, several at a time; they may call the library, wait there for other tasks, and must return: neither longjmp nor an
 * exception may leave them.
 *
 * After fork() a child may free its parent's handles that no other thread was using, and its pools in any case; it must not use them otherwise,
 * nor return from a callback that it was forked in. It may make its own.
 *
 * Libraries that are loaded by dlopen() may make pools in their constructors, and use them once these have returned. A library that may
 * be closed again frees its pools before dlclose(), or is linked with -z nodelete: in its destructors, those of C++ objects included,
 * nodewise_pool_free() may wait for ever, since threads cannot begin while these run.
 *
 * Nodes and CPUs have the kernel's numbers, as in /sys/devices/system/node/node2.
 *
 * ABI. The soname names it: libnodewise.so.0.1, with major and minor version while the major is 0, and libnodewise.so.1 from then on.
 * Versions with one soname have the same functions, constants and structures, and may have more functions and constants: a program runs
 * with the version that it was built with and with later ones. nodewise.hpp is compiled into programs, and relies on nothing but this header.
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
    /* /sys or /proc could not be read, or do not hold what the kernel writes there. */
    NODEWISE_MACHINE = 2,
    /* A node that the pool has no workers on. */
    NODEWISE_NO_WORKERS = 3,
    /* The kernel refused a thread, or to confine it to its node. */
    NODEWISE_THREAD = 4,
    /* A layout that this process cannot have. */
    NODEWISE_LAYOUT = 5,
    /* The kernel has not so much memory, or refuses a call. Filters of containers, Docker's among them, refuse memory policies and move_pages(2).
     * Asking for placements and giving hints fail then; of the rest only arrays and arenas that may not lie anywhere, on several nodes. */
    NODEWISE_MEMORY = 6,
    /* Pages found no room on their node. */
    NODEWISE_NODE_FULL = 7,
    /* There is no such device, or nobody knows where it is. */
    NODEWISE_DEVICE = 8,
    /* Elements that are not within the array. */
    NODEWISE_RANGE = 9,
    /* More ranges with hints than there is room for. */
    NODEWISE_HINTS = 10,
    /* What was asked for cannot be had while others go on. */
    NODEWISE_BUSY = 11,
    /* A callback returned another number than 0. */
    NODEWISE_CALLBACK_FAILED = 12,
    /* A bug, in the library or in its use. */
    NODEWISE_PANIC = 13,
    /* Something that this version of the header has no name for. */
    NODEWISE_OTHER = 14
};

/* What went wrong when a function last failed on this thread; "" before. Never NULL; valid until the next failure on this thread
 * or the thread's end. */
const char *nodewise_error_message(void);

/* The library's version, as "0.1.0". Lives as long as the program. */
const char *nodewise_version(void);

/* Where the calling thread runs */

/* What no node has for its number. */
#define NODEWISE_NO_NODE UINT32_MAX

/* The node the calling thread runs on now. By the time the caller looks at it, the thread may have been moved, unless it is
 * bound. One load from the area that the thread shares with the kernel (Linux 6.3 and glibc 2.35, or later); else the vDSO's getcpu and a
 * table that is read from /sys once and by nodewise_refresh(). Node 0 where nothing tells. Cannot fail. */
uint32_t nodewise_current_node(void);

/* The CPU the calling thread runs on now; 0 where nothing tells. Cannot fail. */
uint32_t nodewise_current_cpu(void);

/* Reads anew which node each CPU belongs to, after CPUs were plugged in or set online: for nodewise_counter_on_node(), and for
 * nodewise_current_node() where the kernel does not tell it. Until then a CPU that was offline from the start is on node 0; one that goes
 * offline keeps its node. Allowances and all that is made later see the machine as it is then. Running pools keep their workers; those that
 * the kernel had to let run elsewhere, since their CPUs were gone, return to those that are back.
 * NODEWISE_MACHINE: /sys cannot be read; the table stays as it was. */
nodewise_result nodewise_refresh(void);

/* Lists the nodes nearest to a device, of those with a CPU that the calling thread may use, ascending. A device is named as the
 * system names it ("eth0", "nvme0n1", "card0"), by its PCI address ("0000:3b:00.0"), or as numactl names it ("netdev:eth0", "block:sda",
 * "pci:3b:00", "ip:192.0.2.1", "file:/path").
 * NODEWISE_DEVICE: there is no such device, or the firmware does not say where it is. NODEWISE_MACHINE: /sys or /proc cannot be
 * read. */
nodewise_result nodewise_nodes_near(const char *device, uint32_t *nodes, size_t capacity, size_t *out_count);

/* Confines the calling thread to the CPUs of these nodes, as far as it may use them.
 * NODEWISE_THREAD: there is none it may use. NODEWISE_MACHINE: /sys or /proc cannot be read. */
nodewise_result nodewise_bind_thread(const uint32_t *nodes, size_t count);

/* What this process may use */

/* The nodes with CPUs that a thread may run on, and how much CPU time there is for them. Never changes once made. */
typedef struct nodewise_allowance nodewise_allowance;

/* What the calling thread may use now, under cpusets, affinity and quotas. NODEWISE_MACHINE: /sys or /proc cannot be read. */
nodewise_result nodewise_allowance_of_this_thread(nodewise_allowance **out_allowance);

/* What is left of it without all nodes but these, as an allowance of its own. */
nodewise_result nodewise_allowance_on_nodes(const nodewise_allowance *allowance, const uint32_t *nodes, size_t count,
                                            nodewise_allowance **out_allowance);

void nodewise_allowance_free(nodewise_allowance *allowance);

/* Lists the nodes, ascending. */
nodewise_result nodewise_allowance_nodes(const nodewise_allowance *allowance, uint32_t *nodes, size_t capacity,
                                         size_t *out_count);

/* Lists the CPUs of a node that may be used, ascending. NODEWISE_INVALID_ARGUMENT: the allowance has no such node. */
nodewise_result nodewise_allowance_cpus(const nodewise_allowance *allowance, uint32_t node, uint32_t *cpus, size_t capacity,
                                        size_t *out_count);

/* Whether memory may be had on a node. NODEWISE_INVALID_ARGUMENT: the allowance has no such node. */
nodewise_result nodewise_allowance_has_memory(const nodewise_allowance *allowance, uint32_t node, bool *out_memory);

/* The distance between two nodes; 10 is local. NODEWISE_INVALID_ARGUMENT: the allowance has no such node. */
nodewise_result nodewise_allowance_distance(const nodewise_allowance *allowance, uint32_t from, uint32_t to,
                                            uint32_t *out_distance);

/* The limit of CPU time: so many microseconds in each period; both 0 where there is none. */
nodewise_result nodewise_allowance_cpu_quota(const nodewise_allowance *allowance, uint64_t *out_quota_us,
                                             uint64_t *out_period_us);

/* How many threads can run at a time: the CPUs, or as many as the quota keeps busy if they are fewer. */
nodewise_result nodewise_allowance_parallelism(const nodewise_allowance *allowance, size_t *out_threads);

/* Lists how many workers each node would get, of `most` in all or what parallelism allows, in the order of the nodes. */
nodewise_result nodewise_allowance_workers(const nodewise_allowance *allowance, size_t most, size_t *workers, size_t capacity,
                                           size_t *out_count);

/* Counters */

/* A count that all threads add to and few read: each CPU has a cache line of its own. Sums wrap beyond 2^64. */
typedef struct nodewise_counter nodewise_counter;

/* A counter that is 0. */
nodewise_result nodewise_counter_new(nodewise_counter **out_counter);

void nodewise_counter_free(nodewise_counter *counter);

/* Adds. What a thread wrote before is visible to who reads a count with this addition in it. */
nodewise_result nodewise_counter_add(const nodewise_counter *counter, uint64_t number);

/* A count between those at the call's begin and end. */
nodewise_result nodewise_counter_approximate(const nodewise_counter *counter, uint64_t *out_count);

/* The count at one moment during the call; not so where numbers are added that make it wrap. NODEWISE_BUSY: additions kept
 * coming. */
nodewise_result nodewise_counter_exact(const nodewise_counter *counter, uint64_t *out_count);

/* What was added by CPUs of one node, read as nodewise_counter_approximate() does. */
nodewise_result nodewise_counter_on_node(const nodewise_counter *counter, uint32_t node, uint64_t *out_count);

/* How many tasks were submitted and not yet done, for threads to wait until none is. Each node counts in cache lines of its
 * own. A task must be submitted before it is done. */
typedef struct nodewise_task_counter nodewise_task_counter;

/* A counter without tasks. */
nodewise_result nodewise_task_counter_new(nodewise_task_counter **out_counter);

/* Once a wait or a count has told that all is done, no call of nodewise_task_counter_done() that others are still in uses the counter. */
void nodewise_task_counter_free(nodewise_task_counter *counter);

/* Counts tasks that are to be done: fewer than 2^63 in all the counter's life. NODEWISE_PANIC: they are more, and these are not
 * counted. */
nodewise_result nodewise_task_counter_submit(const nodewise_task_counter *counter, uint64_t tasks);

/* Counts tasks that are done. What the thread wrote before is visible to a waiter that returns because of it. */
nodewise_result nodewise_task_counter_done(const nodewise_task_counter *counter, uint64_t tasks);

/* How many are left; exact while nobody submits or does any. NODEWISE_PANIC: more were done than submitted. */
nodewise_result nodewise_task_counter_count(const nodewise_task_counter *counter, uint64_t *out_count);

/* Sleeps until all is done. NODEWISE_PANIC: more were done than submitted. */
nodewise_result nodewise_task_counter_wait(const nodewise_task_counter *counter);

/* The same for at most that long; says whether all was done. NODEWISE_PANIC: more were done than submitted. */
nodewise_result nodewise_task_counter_wait_timeout(const nodewise_task_counter *counter, uint64_t timeout_ns,
                                                   bool *out_all_done);

/* Pools */

/* Workers that are confined to their node's CPUs and run tasks, their own node's first. Waiting for tasks on a worker, be they
 * another pool's, runs others of its own pool meanwhile, so that nesting does not deadlock. So no task may wait for something that is held
 * until a scope, a join, a loop or another pool has ended, a lock for instance: who waits for these might run that task, and then neither
 * ends. Idle workers sleep. */
typedef struct nodewise_pool nodewise_pool;

/* How a pool is set up. The functions that change it want it exclusive. */
typedef struct nodewise_pool_options nodewise_pool_options;

/* What nodewise_pool_new(NULL, ...) takes: a worker for each CPU that the creating thread may run on, or fewer under a quota. */
nodewise_result nodewise_pool_options_new(nodewise_pool_options **out_options);

void nodewise_pool_options_free(nodewise_pool_options *options);

/* At most so many workers, shared among the nodes in proportion to their CPUs. 0 counts as 1. */
nodewise_result nodewise_pool_options_workers(nodewise_pool_options *options, size_t most);

/* On these nodes only. */
nodewise_result nodewise_pool_options_nodes(nodewise_pool_options *options, const uint32_t *nodes, size_t count);

/* Stack of each worker; 2 MiB if nothing is said. Waiting tasks run others on top of themselves. */
nodewise_result nodewise_pool_options_stack_bytes(nodewise_pool_options *options, size_t bytes);

/* For what is given, which is copied, instead of what the creating thread may use. */
nodewise_result nodewise_pool_options_allowance(nodewise_pool_options *options, const nodewise_allowance *allowance);

/* Whether workers are confined to their node's CPUs, as they are if nothing is said. */
nodewise_result nodewise_pool_options_confined(nodewise_pool_options *options, bool confined);

/* Whether threads that wait for scopes, joins and loops work along meanwhile, on their own stacks, as they do if nothing is said: each in the
 * stead of a worker that sleeps, on what it has spawned itself and that has spawned. On several nodes they never do. */
nodewise_result nodewise_pool_options_callers_work(nodewise_pool_options *options, bool work);

/* Starts the workers. `options` may be NULL, and are not kept.
 * NODEWISE_MACHINE: /sys or /proc cannot be read. NODEWISE_NO_WORKERS: none of the nodes asked for has a CPU that may be used.
 * NODEWISE_THREAD: the kernel refused a thread, or to confine it. */
nodewise_result nodewise_pool_new(const nodewise_pool_options *options, nodewise_pool **out_pool);

/* Waits for everything that was spawned and ends the workers; a worker of another pool does other tasks of its own pool meanwhile. A task
 * of the pool may call it; it then returns at once, and the last of the pool's tasks ends the workers. Calls that wait for tasks of the pool then
 * go on to their end; one from outside of the pool waits for everything that was spawned. In a forked child there is nothing to wait for, and the
 * memory stays. */
void nodewise_pool_free(nodewise_pool *pool);

/* Lists the nodes it has workers on, ascending. */
nodewise_result nodewise_pool_nodes(const nodewise_pool *pool, uint32_t *nodes, size_t capacity, size_t *out_count);

/* How many workers it has. */
nodewise_result nodewise_pool_workers(const nodewise_pool *pool, size_t *out_workers);

/* The node of the worker that calls this; NODEWISE_NO_NODE on threads that are not workers of this pool. */
nodewise_result nodewise_pool_worker_node(const nodewise_pool *pool, uint32_t *out_node);

/* What one node's workers have done since the pool was made. */
typedef struct nodewise_node_statistics {
    uint32_t node;
    size_t workers;
    /* Pieces of work they have begun: tasks, and parts that ranges were divided into. */
    uint64_t run;
    /* How many of them they took from another worker of the node. */
    uint64_t stolen_inside;
    /* How many they took from another node. */
    uint64_t stolen_across;
} nodewise_node_statistics;

/* Lists statistics, by ascending node. Numbers of running workers may lag behind. */
nodewise_result nodewise_pool_statistics(const nodewise_pool *pool, nodewise_node_statistics *statistics, size_t capacity,
                                         size_t *out_count);

/* Tasks of their own */

typedef int (*nodewise_run)(void *context);
typedef void (*nodewise_drop)(void *context);

/* A task that was spawned, for its joiner. */
typedef struct nodewise_task nodewise_task;

/* Starts a task, on the node that the calling thread is on if the pool has workers there.
 * The context is the library's from here on, whatever is returned: once it is needed no more, `drop` (which may be NULL) is called with it,
 * once, on any thread. *out_task is the caller's until it is joined or freed; with NULL for out_task nobody hears of the task again. */
nodewise_result nodewise_pool_spawn(const nodewise_pool *pool, nodewise_run run, void *context, nodewise_drop drop,
                                    nodewise_task **out_task);

/* The same for a task that only workers of this node run. NODEWISE_NO_WORKERS: the pool has none there. */
nodewise_result nodewise_pool_spawn_on(const nodewise_pool *pool, uint32_t node, nodewise_run run, void *context,
                                       nodewise_drop drop, nodewise_task **out_task);

/* Waits until the task has ended, and frees it, whatever is returned. A worker, of whichever pool, does other tasks of its own pool
 * meanwhile; any other thread sleeps. Exclusive. NODEWISE_CALLBACK_FAILED: the task returned another number than 0. */
nodewise_result nodewise_task_join(nodewise_task *task, int *out_status);

/* Whether the task has ended. */
nodewise_result nodewise_task_is_finished(const nodewise_task *task, bool *out_finished);

/* Lets the task go on by itself. */
void nodewise_task_free(nodewise_task *task);

/* Runs both, the second on another worker if one is idle, and returns when both have ended.
 * NODEWISE_CALLBACK_FAILED: one of them did; the first's number if both did. */
nodewise_result nodewise_pool_join(const nodewise_pool *pool, nodewise_run a, void *a_context, nodewise_run b,
                                   void *b_context, int *out_status);

/* Scopes: tasks that may use what lives in the frame that waits for them */

/* Valid until nodewise_pool_scope() returns. */
typedef struct nodewise_scope nodewise_scope;

typedef int (*nodewise_scope_run)(const nodewise_scope *scope, void *context);

/* Runs `body` on a worker (the calling thread, if it is one or works along), and returns when it and all tasks that it and they spawned have ended.
 * NODEWISE_CALLBACK_FAILED: one of them did; others have run nevertheless, unless one of them cancelled the scope. */
nodewise_result nodewise_pool_scope(const nodewise_pool *pool, nodewise_scope_run body, void *context, int *out_status);

/* Spawns a task of the scope, on the calling worker's node; other nodes take it when they have run dry. For the scope's body and its tasks.
 * The context is the library's from here on, as with nodewise_pool_spawn(). */
nodewise_result nodewise_scope_spawn(const nodewise_scope *scope, nodewise_scope_run run, void *context, nodewise_drop drop);

/* Spawns a task with a copy of its context. `run` gets the address of the copy, which 8 divides; the copy ends with the task. A copy of 8, 16, 24
 * or 32 bytes lies in the task itself, and takes no memory of its own. The context may be NULL where `bytes` is 0. */
nodewise_result nodewise_scope_spawn_copy(const nodewise_scope *scope, nodewise_scope_run run, const void *context, size_t bytes);

/* The same as nodewise_scope_spawn() for a task that only workers of this node run. NODEWISE_NO_WORKERS: the pool has none there. */
nodewise_result nodewise_scope_spawn_on(const nodewise_scope *scope, uint32_t node, nodewise_scope_run run, void *context,
                                        nodewise_drop drop);

/* Has the tasks that have not begun be dropped instead of run. */
nodewise_result nodewise_scope_cancel(const nodewise_scope *scope);

/* Whether the scope was cancelled, for long tasks to ask now and then. */
nodewise_result nodewise_scope_is_cancelled(const nodewise_scope *scope, bool *out_cancelled);

/* Loops over ranges */

typedef int (*nodewise_range_run)(size_t begin, size_t end, void *context);

/* Calls `body` with parts of [begin, end), each number in one of them, on all workers; neighbouring parts mostly on the same
 * worker, in ascending order. Called from outside, each node gets a share in proportion to its workers; called from a worker, the range
 * starts on its node. In both cases nodes that have run dry take from others.
 * NODEWISE_CALLBACK_FAILED: a call of the body did. No part begins after that; those that have begun go on to their end. */
nodewise_result nodewise_pool_parallel_for(const nodewise_pool *pool, size_t begin, size_t end, nodewise_range_run body,
                                           void *context, int *out_status);

/* The same in parts of at least `grain` numbers, unless the range has fewer: for bodies that are so short that smaller parts would cost more than
 * they bring. 0 counts as 1. */
nodewise_result nodewise_pool_parallel_for_grain(const nodewise_pool *pool, size_t begin, size_t end, size_t grain,
                                                 nodewise_range_run body, void *context, int *out_status);

/* How parts of a range become one value. */
typedef struct nodewise_reduction {
    /* Of a value. Values lie at addresses that 16 divides, and are moved, as bytes, from one call to the next. */
    size_t value_bytes;
    /* Makes the value of a part that is not empty. If it fails there is no value to drop. */
    int (*part)(size_t begin, size_t end, void *out_value, void *context);
    /* Makes the left value, of lower numbers, that of both. The right one is dropped afterwards; both are if this fails. Has to be
     * associative, but need not be commutative. */
    int (*combine)(void *left, void *right, void *context);
    /* Ends a value that is not given to the caller; may be NULL. */
    void (*drop)(void *value, void *context);
    /* As nodewise_pool_parallel_for_grain() has it. */
    size_t grain;
} nodewise_reduction;

/* Makes values of parts of [begin, end) as nodewise_pool_parallel_for() divides it, combines neighbours, and stores what results in
 * out_value, as bytes; if the range is empty, out_value stays as it is. `reduction` is not kept.
 * NODEWISE_CALLBACK_FAILED: a part or a combination did; out_value stays as it is. */
nodewise_result nodewise_pool_parallel_reduce(const nodewise_pool *pool, size_t begin, size_t end,
                                              const nodewise_reduction *reduction, void *context, void *out_value,
                                              int *out_status);

/* Arrays whose pages lie where they are told to */

/* Layouts that name no nodes take the nodes with CPUs that this process may have memory on. Memory that lies apart from all CPUs, such as that
 * of an expander (CXL) or a device, is used only where it is named, or is the nearest that some CPU has. */
enum {
    /* All pages on nodes[0]; count is 1. */
    NODEWISE_LAYOUT_ON = 0,
    /* Page after page round the nodes with CPUs. */
    NODEWISE_LAYOUT_INTERLEAVED = 1,
    /* The same with weights[i] pages in a row on nodes[i]; the weights' sum is at most 65536. */
    NODEWISE_LAYOUT_WEIGHTED = 2,
    /* One block of neighbouring pages on each node with CPUs. */
    NODEWISE_LAYOUT_BLOCKED = 3
};

typedef struct nodewise_layout {
    /* NODEWISE_LAYOUT_... */
    int kind;
    /* Of nodes and weights, where the layout has them. */
    size_t count;
    const uint32_t *nodes;
    const uint32_t *weights;
} nodewise_layout;

/* Flags for memory. */
enum {
    /* Huge pages of 2 MiB where the system gives them, and layouts in steps of 2 MiB. */
    NODEWISE_HUGE_PAGES = 1,
    /* Base pages, even where the system would give huge ones. What arrays have if nothing is said. */
    NODEWISE_BASE_PAGES = 2,
    /* Pages that find no room on their node stay where the kernel put them, instead of failing. So do those of which nobody knows where they are, as a
     * container's filter refuses memory policies and move_pages(2): where they were touched first, by threads on the CPUs of their nodes, unless the
     * kernel's balancing moves them. */
    NODEWISE_ANYWHERE = 4
};

/* Elements of a fixed size whose pages lie as a layout says; all bits zero at first. The first is at a multiple of a page, and of the largest power of
 * two that divides the size, so that each is aligned as its type asks. */
typedef struct nodewise_array nodewise_array;

/* Makes an array of `len` elements of `element_bytes` each. `flags` are NODEWISE_HUGE_PAGES and the like, or 0. All pages are brought in, each node's
 * by workers of `pool` there, or by a thread for each node if that is NULL; neither it nor the layout is kept.
 * NODEWISE_LAYOUT: the layout names a node that has no memory for this process. NODEWISE_MEMORY: the nodes that this process may have memory on
 * have less, or the kernel refuses a call; or a container's filter does, there are several nodes, and pages may not lie anywhere.
 * NODEWISE_NODE_FULL: pages found no room on their node. NODEWISE_MACHINE: /sys or /proc cannot be read. No error tells of less than that, but more than is free or than the control group may have: the kernel then
 * reclaims memory, and ends processes if it finds none. */
nodewise_result nodewise_array_new(const nodewise_layout *layout, size_t len, size_t element_bytes, uint32_t flags,
                                   const nodewise_pool *pool, nodewise_array **out_array);

/* Gives the memory back to the system. */
void nodewise_array_free(nodewise_array *array);

/* Where the elements are; valid until the array is freed. Threads that read and write there look after each other
 * themselves. */
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
    /* Base pages there. */
    size_t pages;
} nodewise_node_pages;

/* Asks the kernel where the pages of the elements from begin to before end are now, and lists how many are on each node that has some. Pages
 * that elements across an end lie on count whole.
 * NODEWISE_RANGE: there are no such elements. NODEWISE_MEMORY: a container's filter refuses move_pages(2). */
nodewise_result nodewise_array_placement(const nodewise_array *array, size_t begin, size_t end,
                                         nodewise_placement *out_placement, nodewise_node_pages *pages, size_t capacity,
                                         size_t *out_count);

/* The same page by page: lists the node of each base page, NODEWISE_NO_NODE for one that is in no memory now. */
nodewise_result nodewise_array_page_nodes(const nodewise_array *array, size_t begin, size_t end, uint32_t *nodes,
                                          size_t capacity, size_t *out_count);

/* Moves the pages to where another layout wants them; the contents stay as they are. out_placement may be NULL. Exclusive,
 * but the elements may be used meanwhile.
 * Fails as nodewise_array_new(); after NODEWISE_NODE_FULL pages that found room have moved, and the rest have not. */
nodewise_result nodewise_array_lay_out(nodewise_array *array, const nodewise_layout *layout,
                                       nodewise_placement *out_placement);

/* The same for the pages of the elements from begin to before end, as if they were an array of their own. Pages move whole, with the
 * elements beside the range that are on them; of an array in huge pages, so do these. Exclusive, but the elements may be used meanwhile.
 * Fails as nodewise_array_lay_out(); NODEWISE_RANGE: there are no such elements. */
nodewise_result nodewise_array_lay_out_range(nodewise_array *array, size_t begin, size_t end,
                                             const nodewise_layout *layout, nodewise_placement *out_placement);

/* Neighbouring elements on one node: those from begin to before end. An element that lies across two pages belongs to the first. */
typedef struct nodewise_block {
    uint32_t node;
    size_t begin;
    size_t end;
} nodewise_block;

/* Lists the array's blocks, in order. */
nodewise_result nodewise_array_blocks(const nodewise_array *array, nodewise_block *blocks, size_t capacity,
                                      size_t *out_count);

/* `elements` points to the block's first. */
typedef int (*nodewise_block_run)(const nodewise_block *block, void *elements, void *context);

/* Calls `body` with each block or, of larger ones, with pieces, on workers of the block's node, which take them from each other; on any, where the
 * pool has none there. Returns when all are done. Other threads that read and write there meanwhile look after that themselves.
 * NODEWISE_CALLBACK_FAILED: a call of the body did. Pieces that had not begun by then were left out. */
nodewise_result nodewise_array_for_each_block(const nodewise_array *array, const nodewise_pool *pool, nodewise_block_run body,
                                              void *context, int *out_status);

/* Memory for values of any size, in chunks that lie as a layout says. Small blocks that are given back serve requests of about
 * the same size again; those larger than 256 KiB go back to the system. */
typedef struct nodewise_arena nodewise_arena;

/* Makes an arena without memory yet. `flags` are NODEWISE_HUGE_PAGES and the like; if nothing is said, an arena on one node takes huge pages, and
 * others base pages. The layout is not kept.
 * NODEWISE_LAYOUT: it names a node that has no memory for this process. NODEWISE_MACHINE: /sys or /proc cannot be read. */
nodewise_result nodewise_arena_new(const nodewise_layout *layout, uint32_t flags, nodewise_arena **out_arena);

/* Gives all memory back to the system, with the blocks that are still in use. */
void nodewise_arena_free(nodewise_arena *arena);

/* Memory for `bytes`, 0 included, at an address that `align` divides; its contents are not defined. The caller's until given back.
 * NODEWISE_INVALID_ARGUMENT: `align` is no power of two. NODEWISE_MEMORY: the nodes that this process could have memory on when the
 * arena was made had less, or the kernel or, as with arrays, a container's filter refuses a call. NODEWISE_NODE_FULL: pages found no room on their
 * node. The arena can be used on after each. Of more than is free no error tells, as with arrays. */
nodewise_result nodewise_arena_allocate(const nodewise_arena *arena, size_t bytes, size_t align, void **out_block);

/* Gives back a block of this arena, that was asked for with the same `bytes` and `align`; does nothing with NULL. */
nodewise_result nodewise_arena_deallocate(const nodewise_arena *arena, void *block, size_t bytes, size_t align);

/* What the arena has from the system. */
nodewise_result nodewise_arena_reserved_bytes(const nodewise_arena *arena, size_t *out_bytes);

/* Asks the kernel where the arena's pages are now, used or free, and lists how many are on each node that has some. Who needs new memory waits
 * meanwhile. NODEWISE_MEMORY: a container's filter refuses move_pages(2). */
nodewise_result nodewise_arena_placement(const nodewise_arena *arena, nodewise_placement *out_placement,
                                         nodewise_node_pages *pages, size_t capacity, size_t *out_count);

/* Saying how memory is used, to a nodewise that manages this process or, where there is none, to the library itself */

enum {
    /* By one thread or node: it shall be local there. The library moves the pages that are there to the calling thread's node. */
    NODEWISE_HINT_PRIVATE = 0,
    /* Read by many, hardly ever written. The library interleaves it. */
    NODEWISE_HINT_READ_SHARED = 1,
    /* Written by many: it is interleaved. */
    NODEWISE_HINT_WRITE_SHARED = 2
};

enum {
    /* A nodewise that manages this process, from its next round on. */
    NODEWISE_HONOURED_BY_MANAGER = 0,
    /* This library has done what it can. */
    NODEWISE_HONOURED_BY_LIBRARY = 1
};

/* Says how the pages that lie wholly in this memory are used, in place of what was said of them before; a policy that they had gives way. Others may
 * use the memory meanwhile. What is allocated there later is concerned as well, so take hints back before memory is freed; those of arrays and
 * arenas are forgotten with them. *out_honoured_by gets NODEWISE_HONOURED_BY_...; out_honoured_by may be NULL.
 * NODEWISE_HINTS: 1022 ranges have hints already. NODEWISE_MEMORY: not all of the pages are mapped, or a container's filter refuses a call.
 * NODEWISE_MACHINE: /sys or /proc cannot be read. */
nodewise_result nodewise_hint(const void *memory, size_t bytes, int hint, int *out_honoured_by);

/* Takes back what was said of the pages that lie wholly in this memory. They stay where they are, and their policy stays. */
nodewise_result nodewise_forget_hints(const void *memory, size_t bytes);

/* Whether a manager honours this process's hints now. The first call tells managers of this process: a program that wants to leave the work to
 * one asks early, and again after the manager's interval, 1 s by default. */
nodewise_result nodewise_is_managed(bool *out_managed);

/* Elements of which every node with CPUs has a copy, or the nearest node that has memory for this process: for data that all read and few
 * write. They are aligned as those of a nodewise_array. */
typedef struct nodewise_replicated_array nodewise_replicated_array;

typedef int (*nodewise_change)(void *value, void *context);

/* Copies `len` elements of `element_bytes` each to every such node.
 * NODEWISE_MEMORY: the nodes have less than a copy takes, or the kernel refuses a call. NODEWISE_NODE_FULL: a copy found no room on its node.
 * NODEWISE_MACHINE: /sys or /proc cannot be read. Where a container's filter refuses memory policies and move_pages(2), a copy lies where threads on its
 * node's CPUs touch it first. */
nodewise_result nodewise_replicated_array_new(const void *elements, size_t len, size_t element_bytes,
                                              nodewise_replicated_array **out_array);

void nodewise_replicated_array_free(nodewise_replicated_array *array);

/* The copy nearest to the calling thread; valid until the array is freed, and not to be read during an update. */
nodewise_result nodewise_replicated_array_local(const nodewise_replicated_array *array, const void **out_data);

/* The copy nearest to a node; valid as that of nodewise_replicated_array_local(). */
nodewise_result nodewise_replicated_array_near(const nodewise_replicated_array *array, uint32_t node, const void **out_data);

/* Lists the nodes that have a copy, ascending. */
nodewise_result nodewise_replicated_array_nodes(const nodewise_replicated_array *array, uint32_t *nodes, size_t capacity,
                                                size_t *out_count);

/* Changes one copy by `change`, on the calling thread, then makes the others like it. Exclusive.
 * NODEWISE_CALLBACK_FAILED: `change` did; the others are like the changed copy all the same. */
nodewise_result nodewise_replicated_array_update(nodewise_replicated_array *array, nodewise_change change, void *context,
                                                 int *out_status);

/* Values with copies on each node */

/* A value that all read and few write. Reads touch only the nearest copy and never wait; updates change every copy. Reads and updates are
 * linearizable: once one thread has seen a value, none sees an older one. Each node with CPUs has copies, or the nearest that has memory for this
 * process. */
typedef struct nodewise_replicated nodewise_replicated;

/* How a value is copied. Copies lie at addresses that 128 divides, twice on each node, in the node's memory. */
typedef struct nodewise_value_type {
    size_t bytes;
    /* Makes a copy in fresh memory, on any thread; copies byte by byte if NULL. If it fails there is nothing to destroy. */
    int (*copy)(const void *from, void *to, void *context);
    /* Ends a copy, on any thread; may be NULL. */
    void (*destroy)(void *value, void *context);
    /* For all three; kept until the value is freed. */
    void *context;
    /* Taken instead of `copy` if it is not NULL, for values with memory of their own. The arena's memory is on the copy's node, and the copy may
     * keep the arena: it outlives the copy. Memory from elsewhere, malloc() for instance, may lie on any node. */
    int (*copy_in)(const void *from, void *to, const nodewise_arena *arena, void *context);
} nodewise_value_type;

/* Copies `value` to each node, by threads that prefer memory there or, where a container's filter refuses memory policies, are on its CPUs. Neither it
 * nor `type` itself is kept.
 * NODEWISE_CALLBACK_FAILED: a copy did. NODEWISE_MACHINE: /sys or /proc cannot be read. NODEWISE_MEMORY: no more memory can be mapped. */
nodewise_result nodewise_replicated_new(const nodewise_value_type *type, const void *value,
                                        nodewise_replicated **out_replicated);

/* No read may be under way. */
void nodewise_replicated_free(nodewise_replicated *replicated);

/* A read that is under way. */
typedef struct nodewise_read {
    void *guard;
} nodewise_read;

/* The value as it is until nodewise_read_end(). Never waits; updates wait for the read's end, so a thread that reads must not update. */
nodewise_result nodewise_replicated_read(const nodewise_replicated *replicated, nodewise_read *out_read,
                                         const void **out_value);

/* Ends a read, once, on the thread that began it. */
nodewise_result nodewise_read_end(nodewise_read *read);

/* Changes every copy: `change` is called for each, on the calling thread, and must do the same to each. Updates are made one after the
 * other: `change` must not update the same value, or it waits for itself.
 * NODEWISE_CALLBACK_FAILED: `change` did. The value is then as if nothing had been changed if it failed the first time or on the first half of its
 * calls, and as if all had been if later; a copy that fails while that is put right ends the process. */
nodewise_result nodewise_replicated_update(const nodewise_replicated *replicated, nodewise_change change, void *context,
                                           int *out_status);

/* Takes the place of the value with a copy of another of its type. NODEWISE_CALLBACK_FAILED: a copy did, as with an update. */
nodewise_result nodewise_replicated_set(const nodewise_replicated *replicated, const void *value, int *out_status);

/* Asks the kernel where the pages of all copies and of their arenas are now, and lists how many are on each node that has some. An update waits
 * meanwhile if it needs new memory. NODEWISE_MEMORY: a container's filter refuses move_pages(2). */
nodewise_result nodewise_replicated_placement(const nodewise_replicated *replicated, nodewise_placement *out_placement,
                                              nodewise_node_pages *pages, size_t capacity, size_t *out_count);

/* A value that all read and few write, with one copy on each such node, kept alike by a log of operations: an update is done once a node, when it is needed
 * there. Readers wait for updates of their node's copy. Reads and updates are linearizable. */
typedef struct nodewise_node_replicated nodewise_node_replicated;

/* What can be done to a value. */
typedef struct nodewise_operations {
    /* Operations and responses are so many bytes, copied byte by byte, at addresses that 16 divides. Either may be 0. */
    size_t operation_bytes;
    size_t response_bytes;
    /* Does an operation to a copy and stores what comes of it, on any thread that uses the value: the same to equal copies. It cannot fail, and must
     * not use the value by the library. */
    void (*operate)(void *value, const void *operation, void *out_response, void *context);
    /* For operate; kept until the value is freed. */
    void *context;
} nodewise_operations;

/* Copies `value` to each node, as nodewise_replicated_new() does, and fails as it does. Neither it, `type` nor `operations` is kept. */
nodewise_result nodewise_node_replicated_new(const nodewise_value_type *type, const nodewise_operations *operations,
                                             const void *value, nodewise_node_replicated **out_replicated);

/* No read may be under way. */
void nodewise_node_replicated_free(nodewise_node_replicated *replicated);

/* A read that is under way. */
typedef struct nodewise_node_read {
    void *guard[2];
} nodewise_node_read;

/* The value as it is until nodewise_node_read_end(), after all updates that have returned. Updates wait for the read's end, so a thread that reads must
 * neither update nor read again. */
nodewise_result nodewise_node_replicated_read(const nodewise_node_replicated *replicated, nodewise_node_read *out_read,
                                              const void **out_value);

/* Ends a read, once, on the thread that began it. */
nodewise_result nodewise_node_read_end(nodewise_node_read *read);

/* Does an operation, which is copied, to every copy: to the nearest before this returns, to the others when they are read or the log is full. Stores what
 * came of it in out_response, which may be NULL if response_bytes is 0, as `operation` may if operation_bytes is. */
nodewise_result nodewise_node_replicated_update(const nodewise_node_replicated *replicated, const void *operation,
                                                void *out_response);

/* Where the pages of all copies are now, as nodewise_replicated_placement() tells it, and fails. NODEWISE_MEMORY: a container's filter refuses
 * move_pages(2). */
nodewise_result nodewise_node_replicated_placement(const nodewise_node_replicated *replicated,
                                                   nodewise_placement *out_placement, nodewise_node_pages *pages,
                                                   size_t capacity, size_t *out_count);

#ifdef __cplusplus
}
#endif

#endif
