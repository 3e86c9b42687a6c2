/* The promises of nodewise.h: codes, messages, statuses, who owns what. */
#include "check.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int dropped; /* atomically */

static void drop(void *context)
{
    CHECK(context == &dropped);
    __atomic_add_fetch(&dropped, 1, __ATOMIC_SEQ_CST);
}

static int drops(void)
{
    return __atomic_exchange_n(&dropped, 0, __ATOMIC_SEQ_CST);
}

static int seven(void *context)
{
    (void)context;
    return 7;
}

static int nothing(void *context)
{
    (void)context;
    return 0;
}

static void arguments(nodewise_pool *pool)
{
    uint64_t count;
    size_t nodes;
    says(nodewise_counter_new(NULL), NODEWISE_INVALID_ARGUMENT, "out_counter is NULL");
    says(nodewise_counter_add(NULL, 1), NODEWISE_INVALID_ARGUMENT, "counter is NULL");
    says(nodewise_counter_exact(NULL, &count), NODEWISE_INVALID_ARGUMENT, "counter is NULL");
    says(nodewise_pool_nodes(pool, NULL, 1, &nodes), NODEWISE_INVALID_ARGUMENT, "nodes is NULL");
    says(nodewise_pool_nodes(pool, NULL, 0, NULL), NODEWISE_INVALID_ARGUMENT, "out_count is NULL");
    says(nodewise_pool_nodes(pool, &(uint32_t){0}, SIZE_MAX, &nodes), NODEWISE_INVALID_ARGUMENT, "nodes cannot have");
    says(nodewise_bind_thread(&(uint32_t){NODEWISE_NO_NODE}, 1), NODEWISE_INVALID_ARGUMENT, "4294967295");
    says(nodewise_bind_thread(&(uint32_t){1000}, 1), NODEWISE_THREAD, "1000");
    says(nodewise_bind_thread(NULL, 0), NODEWISE_THREAD, "no nodes");
    says(nodewise_nodes_near("nothing0", NULL, 0, &nodes), NODEWISE_DEVICE, "nothing0");
    says(nodewise_nodes_near("", NULL, 0, &nodes), NODEWISE_DEVICE, "no name");
    says(nodewise_nodes_near("\xff", NULL, 0, &nodes), NODEWISE_INVALID_ARGUMENT, "UTF-8");
    nodewise_counter_free(NULL);
    nodewise_pool_free(NULL);
    CHECK(nodewise_current_node() != NODEWISE_NO_NODE && nodewise_current_cpu() < 1 << 16);
    CHECK(nodewise_refresh() == NODEWISE_OK);
    CHECK(strcmp(nodewise_version(), "") != 0);
}

static void allowance(void)
{
    nodewise_allowance *all, *none;
    uint32_t nodes[1024], distance;
    size_t count, cpus, threads, workers[1024], sum = 0;
    uint64_t quota_us, period_us;
    bool memory;
    CHECK(nodewise_allowance_of_this_thread(&all) == NODEWISE_OK);
    CHECK(nodewise_allowance_nodes(all, nodes, 1024, &count) == NODEWISE_OK && count > 0);
    CHECK(nodewise_allowance_cpus(all, nodes[0], NULL, 0, &cpus) == NODEWISE_OK && cpus > 0);
    CHECK(nodewise_allowance_has_memory(all, nodes[0], &memory) == NODEWISE_OK);
    CHECK(nodewise_allowance_distance(all, nodes[0], nodes[0], &distance) == NODEWISE_OK && distance == 10);
    CHECK(nodewise_allowance_cpu_quota(all, &quota_us, &period_us) == NODEWISE_OK);
    CHECK((quota_us == 0) == (period_us == 0));
    CHECK(nodewise_allowance_parallelism(all, &threads) == NODEWISE_OK && threads > 0);
    CHECK(nodewise_allowance_workers(all, SIZE_MAX, workers, 1024, &count) == NODEWISE_OK);
    for (size_t i = 0; i < count; i++)
        sum += workers[i];
    CHECK(sum == threads);
    says(nodewise_allowance_cpus(all, 1000, NULL, 0, &cpus), NODEWISE_INVALID_ARGUMENT, "no node 1000");
    says(nodewise_allowance_distance(all, nodes[0], 1000, &distance), NODEWISE_INVALID_ARGUMENT, "no node 1000");
    says(nodewise_allowance_has_memory(all, 1000, &memory), NODEWISE_INVALID_ARGUMENT, "no node 1000");

    CHECK(nodewise_allowance_on_nodes(all, &(uint32_t){1000}, 1, &none) == NODEWISE_OK);
    nodewise_pool_options *options;
    nodewise_pool *pool;
    CHECK(nodewise_pool_options_new(&options) == NODEWISE_OK);
    CHECK(nodewise_pool_options_allowance(options, none) == NODEWISE_OK);
    says(nodewise_pool_new(options, &pool), NODEWISE_NO_WORKERS, "CPU");
    CHECK(nodewise_pool_options_allowance(options, all) == NODEWISE_OK);
    CHECK(nodewise_pool_options_workers(options, 1) == NODEWISE_OK);
    CHECK(nodewise_pool_options_nodes(options, nodes, 1) == NODEWISE_OK);
    CHECK(nodewise_pool_options_stack_bytes(options, 1 << 20) == NODEWISE_OK);
    CHECK(nodewise_pool_options_confined(options, false) == NODEWISE_OK);
    CHECK(nodewise_pool_options_callers_work(options, false) == NODEWISE_OK);
    CHECK(nodewise_pool_options_by_cache(options, true) == NODEWISE_OK);
    CHECK(nodewise_pool_new(options, &pool) == NODEWISE_OK);
    nodewise_pool_options_free(options);
    CHECK(nodewise_pool_workers(pool, &threads) == NODEWISE_OK && threads == 1);
    nodewise_pool_free(pool);
    nodewise_allowance_free(none);
    nodewise_allowance_free(all);
}

static void counters(void)
{
    nodewise_counter *counter;
    nodewise_task_counter *tasks;
    uint64_t exact, approximate, on_node;
    bool all_done;
    CHECK(nodewise_counter_new(&counter) == NODEWISE_OK);
    CHECK(nodewise_counter_add(counter, 3) == NODEWISE_OK);
    CHECK(nodewise_counter_exact(counter, &exact) == NODEWISE_OK && exact == 3);
    CHECK(nodewise_counter_approximate(counter, &approximate) == NODEWISE_OK && approximate == 3);
    CHECK(nodewise_counter_on_node(counter, 1000, &on_node) == NODEWISE_OK && on_node == 0);
    nodewise_counter_free(counter);

    CHECK(nodewise_task_counter_new(&tasks) == NODEWISE_OK);
    CHECK(nodewise_task_counter_submit(tasks, 2) == NODEWISE_OK);
    CHECK(nodewise_task_counter_done(tasks, 1) == NODEWISE_OK);
    CHECK(nodewise_task_counter_count(tasks, &exact) == NODEWISE_OK && exact == 1);
    CHECK(nodewise_task_counter_wait_timeout(tasks, 1000, &all_done) == NODEWISE_OK && !all_done);
    CHECK(nodewise_task_counter_done(tasks, 1) == NODEWISE_OK);
    CHECK(nodewise_task_counter_wait(tasks) == NODEWISE_OK);
    says(nodewise_task_counter_submit(tasks, UINT64_MAX), NODEWISE_PANIC, "2^63 tasks or more");
    CHECK(nodewise_task_counter_wait(tasks) == NODEWISE_OK);
    nodewise_task_counter_free(tasks);

    CHECK(nodewise_task_counter_new(&tasks) == NODEWISE_OK);
    CHECK(nodewise_task_counter_done(tasks, 1) == NODEWISE_OK);
    says(nodewise_task_counter_wait(tasks), NODEWISE_PANIC, "submitted");
    says(nodewise_task_counter_count(tasks, &exact), NODEWISE_PANIC, "submitted");
    says(nodewise_task_counter_wait_timeout(tasks, 0, &all_done), NODEWISE_PANIC, "submitted");
    nodewise_task_counter_free(tasks);
}

static int eleven_of_range(size_t begin, size_t end, void *context)
{
    (void)end;
    (void)context;
    return begin == 0 ? 11 : 0;
}

static int of_3000(size_t begin, size_t end, void *context)
{
    (void)context;
    return end - begin < 3000;
}

/* Three tasks: one fails, one cancels, and the others may or may not run; all contexts are dropped. */
static int of_scope(const nodewise_scope *scope, void *context)
{
    (void)scope;
    (void)context;
    return 5;
}

/* An object that knows its address, and whose end counts. */
struct object {
    struct object *self;
    int64_t number;
    struct object **moved;
};

static void move_object(void *from, void *to)
{
    struct object *old = from, *object = to;
    CHECK(old->self == old && (uintptr_t)to % 8 == 0);
    *object = (struct object){object, old->number, NULL};
    if (old->moved != NULL)
        *old->moved = object;
    old->self = NULL;
}

static int raise_object(void *context)
{
    struct object *object = context;
    CHECK(object->self == object && (uintptr_t)object % 16 == 0);
    return (int)++object->number - 8;
}

static void end_object(void *context)
{
    struct object *object = context;
    CHECK(object->self == object && object->number > 0);
    drop(&dropped);
}

/* A task's object stays until the task is joined or freed. */
static void tasks_with_objects(nodewise_pool *pool, uint32_t node)
{
    nodewise_task *task;
    struct object *moved;
    int status;
    struct object object = {&object, 7, &moved};
    CHECK(nodewise_pool_spawn_moved(pool, NODEWISE_NO_NODE, raise_object, &object, sizeof object, move_object, end_object, &task) == NODEWISE_OK);
    CHECK(object.self == NULL);
    CHECK(nodewise_task_wait(task, &status) == NODEWISE_OK && status == 0);
    CHECK(moved->number == 8 && drops() == 0);
    CHECK(nodewise_task_join(task, &status) == NODEWISE_OK && status == 0 && drops() == 1);
    object = (struct object){&object, 16, &moved};
    CHECK(nodewise_pool_spawn_moved(pool, node, raise_object, &object, sizeof object, move_object, end_object, &task) == NODEWISE_OK);
    says(nodewise_task_wait(task, &status), NODEWISE_CALLBACK_FAILED, "returned 9");
    CHECK(status == 9 && moved->number == 17);
    nodewise_task_free(task);
    CHECK(drops() == 1);
    object = (struct object){&object, 1, NULL};
    says(nodewise_pool_spawn_moved(pool, 1000, raise_object, &object, sizeof object, move_object, end_object, &task), NODEWISE_NO_WORKERS, "1000");
    CHECK(object.self == &object);
    says(nodewise_task_wait(NULL, &status), NODEWISE_INVALID_ARGUMENT, "task is NULL");
    CHECK(nodewise_pool_spawn_moved(pool, node, raise_object, &object, sizeof object, move_object, end_object, NULL) == NODEWISE_OK);
    while (__atomic_load_n(&dropped, __ATOMIC_SEQ_CST) == 0)
        ;
    CHECK(drops() == 1);
}

static int of_object(const nodewise_scope *scope, void *context)
{
    struct object *object = context;
    CHECK(object->self == object);
    object->self = NULL;
    __atomic_add_fetch(&dropped, 1, __ATOMIC_SEQ_CST);
    return scope == NULL ? 0 : (int)object->number;
}

static int moving(const nodewise_scope *scope, void *context)
{
    for (int i = 0; i < 10; i++) {
        struct object object = {&object, i == 9 ? 27 : 0, NULL};
        CHECK(nodewise_scope_spawn_moved(scope, i % 2 == 0 ? NODEWISE_NO_NODE : *(uint32_t *)context, of_object, &object, sizeof object, move_object) == NODEWISE_OK);
        CHECK(object.self == NULL);
    }
    struct object object = {&object, 0, NULL};
    says(nodewise_scope_spawn_moved(scope, 1000, of_object, &object, sizeof object, move_object), NODEWISE_NO_WORKERS, "1000");
    says(nodewise_scope_spawn_moved(scope, 1000, of_object, &object, 33, move_object), NODEWISE_INVALID_ARGUMENT, "33 bytes");
    CHECK(object.self == &object);
    return 0;
}

static int moving_and_cancelling(const nodewise_scope *scope, void *context)
{
    CHECK(nodewise_scope_cancel(scope) == NODEWISE_OK);
    return moving(scope, context);
}

static int cancelling(const nodewise_scope *scope, void *context)
{
    bool cancelled;
    CHECK(nodewise_scope_cancel(scope) == NODEWISE_OK);
    CHECK(nodewise_scope_is_cancelled(scope, &cancelled) == NODEWISE_OK && cancelled);
    for (int i = 0; i < 10; i++)
        CHECK(nodewise_scope_spawn(scope, of_scope, context, drop) == NODEWISE_OK);
    return 0;
}

static int failing(const nodewise_scope *scope, void *context)
{
    nodewise_pool *pool = context;
    uint32_t node;
    CHECK(nodewise_pool_worker_node(pool, &node) == NODEWISE_OK && node != NODEWISE_NO_NODE);
    CHECK(nodewise_scope_spawn(scope, of_scope, &dropped, drop) == NODEWISE_OK);
    CHECK(nodewise_scope_spawn_on(scope, node, of_scope, &dropped, drop) == NODEWISE_OK);
    says(nodewise_scope_spawn_on(scope, 1000, of_scope, &dropped, drop), NODEWISE_NO_WORKERS, "1000");
    return 0;
}

struct copied {
    long words[6];
};

static long copied_sum; /* atomically */

static int of_copy(const nodewise_scope *scope, void *context)
{
    (void)scope;
    __atomic_add_fetch(&copied_sum, *(long *)context, __ATOMIC_SEQ_CST);
    return 0;
}

static int of_large_copy(const nodewise_scope *scope, void *context)
{
    struct copied *copied = context;
    for (int i = 0; i < 6; i++)
        CHECK(of_copy(scope, &copied->words[i]) == 0);
    return 0;
}

/* The originals are gone, or others, when the tasks run. */
static int copying(const nodewise_scope *scope, void *context)
{
    (void)context;
    for (long i = 0; i < 100; i++) {
        struct copied copied = {{i, i, i, i, i, i}};
        CHECK(nodewise_scope_spawn_copy(scope, of_copy, &i, sizeof(i)) == NODEWISE_OK);
        CHECK(nodewise_scope_spawn_copy(scope, of_copy, &copied, 4 * sizeof(i)) == NODEWISE_OK);
        CHECK(nodewise_scope_spawn_copy(scope, of_large_copy, &copied, sizeof(copied)) == NODEWISE_OK);
    }
    says(nodewise_scope_spawn_copy(scope, of_copy, NULL, 1), NODEWISE_INVALID_ARGUMENT, "context is NULL");
    says(nodewise_scope_spawn_copy(scope, NULL, NULL, 0), NODEWISE_INVALID_ARGUMENT, "run is NULL");
    return 0;
}

static void tasks(nodewise_pool *pool)
{
    int status = -1;
    nodewise_task *task;
    bool finished;
    uint32_t node;
    CHECK(nodewise_pool_worker_node(pool, &node) == NODEWISE_OK && node == NODEWISE_NO_NODE);

    CHECK(nodewise_pool_spawn(pool, nothing, &dropped, drop, &task) == NODEWISE_OK);
    CHECK(nodewise_task_is_finished(task, &finished) == NODEWISE_OK);
    CHECK(nodewise_task_join(task, &status) == NODEWISE_OK && status == 0 && drops() == 1);
    CHECK(nodewise_pool_spawn(pool, seven, &dropped, drop, &task) == NODEWISE_OK);
    says(nodewise_task_join(task, &status), NODEWISE_CALLBACK_FAILED, "returned 7");
    CHECK(status == 7 && drops() == 1);
    CHECK(nodewise_pool_spawn(pool, nothing, NULL, NULL, &task) == NODEWISE_OK);
    nodewise_task_free(task);
    nodewise_task_free(NULL);

    /* A task that cannot be spawned is dropped. */
    says(nodewise_pool_spawn_on(pool, 1000, nothing, &dropped, drop, &task), NODEWISE_NO_WORKERS, "1000");
    says(nodewise_pool_spawn(NULL, nothing, &dropped, drop, &task), NODEWISE_INVALID_ARGUMENT, "pool is NULL");
    says(nodewise_pool_spawn(pool, NULL, &dropped, drop, &task), NODEWISE_INVALID_ARGUMENT, "run is NULL");
    says(nodewise_scope_spawn(NULL, of_scope, &dropped, drop), NODEWISE_INVALID_ARGUMENT, "scope is NULL");
    CHECK(drops() == 4);

    says(nodewise_pool_join(pool, nothing, NULL, seven, NULL, &status), NODEWISE_CALLBACK_FAILED, "7");
    CHECK(status == 7);
    CHECK(nodewise_pool_join(pool, nothing, NULL, nothing, NULL, &status) == NODEWISE_OK && status == 0);
    CHECK(nodewise_pool_isolate(pool, nothing, NULL, &status) == NODEWISE_OK && status == 0);
    says(nodewise_pool_isolate(pool, seven, NULL, &status), NODEWISE_CALLBACK_FAILED, "7");
    CHECK(status == 7);
    says(nodewise_pool_parallel_for(pool, 0, 1000, eleven_of_range, NULL, &status), NODEWISE_CALLBACK_FAILED, "11");
    CHECK(status == 11);
    CHECK(nodewise_pool_parallel_for(pool, 1000, 10, eleven_of_range, NULL, NULL) == NODEWISE_OK);
    CHECK(nodewise_pool_parallel_for_grain(pool, 1, 10000, 3000, of_3000, NULL, NULL) == NODEWISE_OK);
    says(nodewise_pool_parallel_for_grain(pool, 0, 10, 0, eleven_of_range, NULL, NULL), NODEWISE_CALLBACK_FAILED, "11");

    CHECK(nodewise_pool_scope(pool, copying, NULL, &status) == NODEWISE_OK && status == 0);
    CHECK(copied_sum == 8 * 99 * 100 / 2);
    CHECK(nodewise_pool_nodes(pool, &node, 1, &(size_t){0}) == NODEWISE_OK);
    tasks_with_objects(pool, node);
    says(nodewise_pool_scope(pool, moving, &node, &status), NODEWISE_CALLBACK_FAILED, "27");
    CHECK(status == 27 && drops() == 10);
    CHECK(nodewise_pool_scope(pool, moving_and_cancelling, &node, &status) == NODEWISE_OK && drops() == 10);
    says(nodewise_pool_scope(pool, failing, pool, &status), NODEWISE_CALLBACK_FAILED, "5");
    CHECK(status == 5 && drops() == 3);
    CHECK(nodewise_pool_scope(pool, cancelling, &dropped, &status) == NODEWISE_OK && status == 0);
    CHECK(drops() == 10);
}

static void default_pool(void)
{
    nodewise_pool *one, *other;
    size_t workers;
    int status;
    CHECK(nodewise_default_pool_limit(1) == NODEWISE_OK);
    CHECK(nodewise_default_pool(&one) == NODEWISE_OK && nodewise_default_pool(&other) == NODEWISE_OK);
    CHECK(one == other && nodewise_pool_workers(one, &workers) == NODEWISE_OK && workers == 1);
    says(nodewise_default_pool_limit(2), NODEWISE_BUSY, "in use with 1 workers");
    nodewise_pool_free(one);
    CHECK(nodewise_pool_join(other, nothing, NULL, nothing, NULL, &status) == NODEWISE_OK);
    nodewise_pool_free(other);
    CHECK(nodewise_default_pool_limit(SIZE_MAX) == NODEWISE_OK);
}

struct sums {
    const nodewise_pool *pool;
    const void *identity;
    uint64_t *of_index;
    size_t indices;
};

static int add_at_index(size_t begin, size_t end, void *context)
{
    const struct sums *sums = context;
    size_t index;
    CHECK(nodewise_pool_worker_index(sums->pool, &index) == NODEWISE_OK && index < sums->indices);
    CHECK(nodewise_this_seat()->pool == sums->identity && nodewise_this_seat()->index == index);
    for (size_t i = begin; i < end; i++)
        sums->of_index[index] += i;
    return 0;
}

static void indices(nodewise_pool *pool)
{
    struct sums sums = {.pool = pool};
    size_t index, workers;
    CHECK(nodewise_pool_worker_index(pool, &index) == NODEWISE_OK && index == NODEWISE_NO_INDEX);
    CHECK(nodewise_pool_identity(pool, &sums.identity) == NODEWISE_OK && sums.identity);
    CHECK(!nodewise_this_seat()->pool && nodewise_this_seat()->index == NODEWISE_NO_INDEX);
    CHECK(nodewise_pool_worker_indices(pool, &sums.indices) == NODEWISE_OK);
    CHECK(nodewise_pool_workers(pool, &workers) == NODEWISE_OK && sums.indices >= workers);
    sums.of_index = calloc(sums.indices, sizeof *sums.of_index);
    uint64_t whole = 0;
    CHECK(nodewise_pool_parallel_for(pool, 0, 100000, add_at_index, &sums, NULL) == NODEWISE_OK);
    for (index = 0; index < sums.indices; index++)
        whole += sums.of_index[index];
    CHECK(whole == (uint64_t)99999 * 50000);
    free(sums.of_index);
}

/* Strings as values: parts make them, combinations join them, and each is freed once. */
static int live; /* atomically */

static int digits(size_t begin, size_t end, void *out_value, void *context)
{
    if (context != NULL && begin > 0)
        return 13;
    char *text = malloc((end - begin) + 1);
    for (size_t i = begin; i < end; i++)
        text[i - begin] = (char)('0' + i % 10);
    text[end - begin] = 0;
    *(char **)out_value = text;
    __atomic_add_fetch(&live, 1, __ATOMIC_SEQ_CST);
    return 0;
}

static int append(void *left, void *right, void *context)
{
    (void)context;
    char **text = left;
    const char *more = *(char **)right;
    *text = realloc(*text, strlen(*text) + strlen(more) + 1);
    strcat(*text, more);
    return 0;
}

static void free_text(void *value, void *context)
{
    (void)context;
    free(*(char **)value);
    __atomic_sub_fetch(&live, 1, __ATOMIC_SEQ_CST);
}

static void reductions(nodewise_pool *pool)
{
    nodewise_reduction reduction = {sizeof(char *), digits, append, free_text, 1};
    char *text = NULL;
    int status;
    CHECK(nodewise_pool_parallel_reduce(pool, 3, 1003, &reduction, NULL, &text, NULL) == NODEWISE_OK);
    CHECK(live == 1 && strlen(text) == 1000);
    for (size_t i = 0; i < 1000; i++)
        CHECK(text[i] == (char)('0' + (i + 3) % 10));
    char *kept = text;
    CHECK(nodewise_pool_parallel_reduce(pool, 3, 3, &reduction, NULL, &text, NULL) == NODEWISE_OK && text == kept);
    says(nodewise_pool_parallel_reduce(pool, 0, 1000, &reduction, pool, &text, &status), NODEWISE_CALLBACK_FAILED, "13");
    CHECK(status == 13 && text == kept && live == 1);
    free_text(&text, NULL);
}

/* Numbers that are in no order, in ascending order. */
static void sorting(nodewise_pool *pool)
{
    enum { COUNT = 100000 };
    int64_t *integers = malloc(COUNT * sizeof *integers);
    double *numbers = malloc(COUNT * sizeof *numbers);
    uint8_t bytes[] = {200, 3, 0, 100};
    for (size_t i = 0; i < COUNT; i++) {
        integers[i] = (int64_t)((i + 1) * 0x9e3779b97f4a7c15);
        numbers[i] = (double)integers[i] / 3;
    }
    numbers[0] = 0.0;
    numbers[1] = -0.0;
    CHECK(nodewise_pool_sort(pool, integers, COUNT, NODEWISE_INT64) == NODEWISE_OK);
    CHECK(nodewise_pool_sort(pool, numbers, COUNT, NODEWISE_DOUBLE) == NODEWISE_OK);
    CHECK(nodewise_pool_sort(pool, bytes, 4, NODEWISE_UINT8) == NODEWISE_OK);
    CHECK(bytes[0] == 0 && bytes[1] == 3 && bytes[2] == 100 && bytes[3] == 200);
    CHECK(integers[0] < 0 && numbers[0] < 0);
    for (size_t i = 1; i < COUNT; i++) {
        CHECK(integers[i - 1] <= integers[i] && numbers[i - 1] <= numbers[i]);
        if (numbers[i - 1] == 0 && numbers[i] == 0)
            CHECK(signbit(numbers[i - 1]) && !signbit(numbers[i]));
    }
    CHECK(nodewise_pool_sort(pool, NULL, 0, NODEWISE_FLOAT) == NODEWISE_OK);
    says(nodewise_pool_sort(pool, NULL, 1, NODEWISE_FLOAT), NODEWISE_INVALID_ARGUMENT, "numbers is NULL");
    says(nodewise_pool_sort(pool, numbers, COUNT, 10), NODEWISE_INVALID_ARGUMENT, "10 is no type of numbers");
    free(integers);
    free(numbers);
}

static int fill(const nodewise_block *block, void *elements, void *context)
{
    unsigned char *bytes = elements;
    if (context != NULL)
        return 17;
    for (size_t i = block->begin; i < block->end; i++)
        for (size_t byte = 0; byte < 24; byte++)
            bytes[(i - block->begin) * 24 + byte] = (unsigned char)i;
    return 0;
}

static int count_elements(const nodewise_block *block, void *context)
{
    CHECK(block->end - block->begin >= 100 && (block->node == 0 || block->node == 7));
    __atomic_add_fetch((size_t *)context, block->end - block->begin, __ATOMIC_RELAXED);
    return *(size_t *)context > 3000 ? 23 : 0;
}

static int raise_first(void *value, void *context)
{
    ++*(uint32_t *)value;
    return context == NULL ? 0 : 19;
}

static void arrays(nodewise_pool *pool)
{
    nodewise_layout interleaved = {.kind = NODEWISE_LAYOUT_INTERLEAVED}, wrong = {.kind = 9};
    nodewise_layout nowhere = {.kind = NODEWISE_LAYOUT_ON, .count = 1, .nodes = (uint32_t[]){1000}};
    nodewise_array *array;
    nodewise_placement placement;
    nodewise_node_pages pages[1024];
    nodewise_block blocks[1024];
    size_t count;
    int status;
    void *data;
    says(nodewise_array_new(&wrong, 1, 1, 0, NULL, &array), NODEWISE_INVALID_ARGUMENT, "kind is 9");
    says(nodewise_array_new(&interleaved, 1, 0, 0, NULL, &array), NODEWISE_INVALID_ARGUMENT, "element_bytes");
    says(nodewise_array_new(&interleaved, 1, 1, 8, NULL, &array), NODEWISE_INVALID_ARGUMENT, "flags");
    says(nodewise_array_new(&interleaved, SIZE_MAX, 2, 0, NULL, &array), NODEWISE_MEMORY, "addresses");
    says(nodewise_array_new(&nowhere, 1, 1, 0, NULL, &array), NODEWISE_LAYOUT, "1000");

    CHECK(nodewise_array_new(&interleaved, 10000, 24, 0, NULL, &array) == NODEWISE_OK);
    CHECK(nodewise_array_data(array, &data) == NODEWISE_OK);
    CHECK(nodewise_array_for_each_block(array, pool, fill, NULL, NULL) == NODEWISE_OK);
    for (size_t i = 0; i < 10000 * 24; i++)
        CHECK(((unsigned char *)data)[i] == (unsigned char)(i / 24));
    says(nodewise_array_for_each_block(array, pool, fill, pool, &status), NODEWISE_CALLBACK_FAILED, "17");
    CHECK(status == 17);
    CHECK(nodewise_array_blocks(array, blocks, 1024, &count) == NODEWISE_OK && count > 0 && blocks[0].begin == 0);
    /* No node has this number, so that any worker takes the block. */
    const nodewise_block pieces[] = {{0, 0, 1000}, {7, 5000, 7000}, {7, 7000, 7000}}, reversed = {0, 2, 1};
    size_t elements = 0;
    CHECK(nodewise_pool_for_each_block(pool, pieces, 3, 100, count_elements, &elements, NULL) == NODEWISE_OK);
    CHECK(elements == 3000);
    CHECK(nodewise_pool_for_each_block(pool, NULL, 0, 0, count_elements, &elements, NULL) == NODEWISE_OK);
    says(nodewise_pool_for_each_block(pool, pieces, 1, 1000, count_elements, &elements, &status), NODEWISE_CALLBACK_FAILED, "23");
    CHECK(status == 23);
    says(nodewise_pool_for_each_block(pool, &reversed, 1, 1, count_elements, &elements, NULL), NODEWISE_INVALID_ARGUMENT, "2 and ends at 1");
    CHECK(nodewise_array_placement(array, 0, 10000, &placement, pages, 1024, &count) == NODEWISE_OK);
    CHECK(count > 0 && placement.misplaced == 0 && placement.absent == 0);
    uint32_t node = pages[0].node, weight = 2;
    nodewise_layout weighted = {NODEWISE_LAYOUT_WEIGHTED, 1, &node, &weight};
    CHECK(nodewise_array_lay_out(array, &weighted, &placement) == NODEWISE_OK && placement.misplaced == 0);
    CHECK(nodewise_array_lay_out_range(array, 5000, 10000, &interleaved, NULL) == NODEWISE_OK);
    says(nodewise_array_lay_out_range(array, 5000, 10001, &interleaved, NULL), NODEWISE_RANGE, "5000..10001");
    says(nodewise_array_lay_out(array, &nowhere, NULL), NODEWISE_LAYOUT, "1000");
    says(nodewise_array_lay_out_range(array, 0, 1, &nowhere, NULL), NODEWISE_LAYOUT, "1000");
    says(nodewise_array_placement(array, SIZE_MAX, 1, &placement, pages, 1024, &count), NODEWISE_RANGE, "10000");
    uint32_t homes[1024];
    CHECK(nodewise_array_page_nodes(array, 0, 1, homes, 1024, &count) == NODEWISE_OK && count == 1 && homes[0] == node);
    says(nodewise_array_page_nodes(array, 0, 10001, homes, 1024, &count), NODEWISE_RANGE, "10001");
    nodewise_array_free(array);

    nodewise_layout on = {.kind = NODEWISE_LAYOUT_ON, .count = 1, .nodes = &node};
    CHECK(nodewise_array_new(&on, 0, 8, NODEWISE_HUGE_PAGES | NODEWISE_ANYWHERE, pool, &array) == NODEWISE_OK);
    nodewise_array_free(array);

    int honoured_by;
    bool managed;
    CHECK(nodewise_is_managed(&managed) == NODEWISE_OK);
    CHECK(nodewise_array_new(&on, 1 << 16, 1, 0, pool, &array) == NODEWISE_OK);
    CHECK(nodewise_array_data(array, &data) == NODEWISE_OK);
    says(nodewise_hint(data, 1 << 16, 3, NULL), NODEWISE_INVALID_ARGUMENT, "hint is 3");
    says(nodewise_hint(NULL, 1, NODEWISE_HINT_PRIVATE, NULL), NODEWISE_INVALID_ARGUMENT, "memory is NULL");
    CHECK(nodewise_hint(data, 1 << 16, NODEWISE_HINT_WRITE_SHARED, &honoured_by) == NODEWISE_OK);
    CHECK(managed || honoured_by == NODEWISE_HONOURED_BY_LIBRARY);
    CHECK(nodewise_forget_hints(data, 1 << 16) == NODEWISE_OK);
    nodewise_array_free(array);

    /* Every other page, so that no two are one range. */
    size_t page = (size_t)sysconf(_SC_PAGESIZE), hinted = 0;
    CHECK(nodewise_array_new(&on, 2 * 1023, page, 0, pool, &array) == NODEWISE_OK);
    CHECK(nodewise_array_data(array, &data) == NODEWISE_OK);
    char *first = data;
    while (hinted < 1022 && nodewise_hint(first + 2 * hinted * page, page, NODEWISE_HINT_PRIVATE, NULL) == NODEWISE_OK)
        hinted++;
    CHECK(hinted == 1022);
    says(nodewise_hint(first + 2 * hinted * page, page, NODEWISE_HINT_PRIVATE, NULL), NODEWISE_HINTS, "1022");
    nodewise_array_free(array);

    nodewise_arena *arena;
    void *small, *large, *again;
    size_t before, after;
    says(nodewise_arena_new(&nowhere, 0, &arena), NODEWISE_LAYOUT, "1000");
    says(nodewise_arena_new(&on, NODEWISE_HUGE_PAGES | NODEWISE_BASE_PAGES, &arena), NODEWISE_INVALID_ARGUMENT, "flags");
    CHECK(nodewise_arena_new(&on, NODEWISE_BASE_PAGES, &arena) == NODEWISE_OK);
    says(nodewise_arena_allocate(arena, 1, 3, &small), NODEWISE_INVALID_ARGUMENT, "power of two");
    says(nodewise_arena_allocate(arena, (size_t)1 << 46, 8, &small), NODEWISE_MEMORY, "more than nodes");
    CHECK(nodewise_arena_allocate(arena, 100, 64, &small) == NODEWISE_OK && (uintptr_t)small % 64 == 0);
    memset(small, 1, 100);
    CHECK(nodewise_arena_reserved_bytes(arena, &before) == NODEWISE_OK);
    CHECK(nodewise_arena_allocate(arena, 1 << 20, 8, &large) == NODEWISE_OK);
    memset(large, 1, 1 << 20);
    CHECK(nodewise_arena_placement(arena, &placement, pages, 1024, &count) == NODEWISE_OK);
    CHECK(count == 1 && pages[0].node == node && placement.misplaced == 0);
    CHECK(nodewise_arena_deallocate(arena, large, 1 << 20, 8) == NODEWISE_OK);
    CHECK(nodewise_arena_deallocate(arena, NULL, 1, 1) == NODEWISE_OK);
    /* The last block of up to 8 MiB is kept for one as large. A larger one goes back to the system. */
    CHECK(nodewise_arena_reserved_bytes(arena, &after) == NODEWISE_OK && after == before + (1 << 20));
    CHECK(nodewise_arena_allocate(arena, 1 << 20, 8, &again) == NODEWISE_OK && again == large);
    CHECK(nodewise_arena_deallocate(arena, again, 1 << 20, 8) == NODEWISE_OK);
    CHECK(nodewise_arena_allocate(arena, 16 << 20, 8, &large) == NODEWISE_OK);
    CHECK(nodewise_arena_deallocate(arena, large, 16 << 20, 8) == NODEWISE_OK);
    CHECK(nodewise_arena_reserved_bytes(arena, &after) == NODEWISE_OK && after == before + (1 << 20));
    nodewise_arena_free(arena);

    nodewise_replicated_array *copies;
    const void *local, *near;
    uint32_t primes[] = {2, 3, 5};
    CHECK(nodewise_replicated_array_new(primes, 3, sizeof *primes, &copies) == NODEWISE_OK);
    CHECK(nodewise_replicated_array_update(copies, raise_first, NULL, NULL) == NODEWISE_OK);
    says(nodewise_replicated_array_update(copies, raise_first, pool, &status), NODEWISE_CALLBACK_FAILED, "19");
    CHECK(nodewise_replicated_array_local(copies, &local) == NODEWISE_OK && *(const uint32_t *)local == 4);
    CHECK(nodewise_replicated_array_near(copies, node, &near) == NODEWISE_OK);
    CHECK(memcmp(local, near, sizeof primes) == 0);
    CHECK(nodewise_replicated_array_nodes(copies, NULL, 0, &count) == NODEWISE_OK && count > 0);
    nodewise_replicated_array_free(copies);
}

struct text {
    char *characters;
};

static int copy_text(const void *from, void *to, void *context)
{
    int *copies_left = context;
    if (__atomic_fetch_sub(copies_left, 1, __ATOMIC_SEQ_CST) == 0)
        return 23;
    ((struct text *)to)->characters = strdup(((const struct text *)from)->characters);
    __atomic_add_fetch(&live, 1, __ATOMIC_SEQ_CST);
    return 0;
}

static void destroy_text(void *value, void *context)
{
    (void)context;
    free(((struct text *)value)->characters);
    __atomic_sub_fetch(&live, 1, __ATOMIC_SEQ_CST);
}

static int shout(void *value, void *context)
{
    ((struct text *)value)->characters[0] = 'N';
    return context == NULL ? 0 : 29;
}

/* A text in the memory of its copy's node. */
struct local_text {
    char *characters;
    size_t bytes;
    const nodewise_arena *arena;
};

static int copy_local_text(const void *from, void *to, const nodewise_arena *arena, void *context)
{
    const struct local_text *other = from;
    struct local_text *text = to;
    void *block;
    int *copies_left = context;
    if ((*copies_left)-- == 0)
        return 23;
    *text = (struct local_text){.bytes = other->bytes, .arena = arena};
    CHECK(nodewise_arena_allocate(arena, text->bytes, 1, &block) == NODEWISE_OK);
    text->characters = memcpy(block, other->characters, text->bytes);
    live++;
    return 0;
}

static void destroy_local_text(void *value, void *context)
{
    struct local_text *text = value;
    (void)context;
    CHECK(nodewise_arena_deallocate(text->arena, text->characters, text->bytes, 1) == NODEWISE_OK);
    live--;
}

static void replicated_in_arenas(void)
{
    int copies_left = 1000;
    char characters[] = "near";
    struct local_text text = {.characters = characters, .bytes = sizeof characters};
    nodewise_value_type type = {.bytes = sizeof text,
                                .copy_in = copy_local_text,
                                .destroy = destroy_local_text,
                                .context = &copies_left};
    nodewise_replicated *replicated;
    nodewise_read read;
    nodewise_placement placement;
    nodewise_node_pages pages[1024];
    size_t count;
    const void *value;
    CHECK(nodewise_replicated_new(&type, &text, &replicated) == NODEWISE_OK);
    CHECK(nodewise_replicated_update(replicated, shout, NULL, NULL) == NODEWISE_OK);
    CHECK(nodewise_replicated_read(replicated, &read, &value) == NODEWISE_OK);
    CHECK(strcmp(((const struct local_text *)value)->characters, "Near") == 0);
    CHECK(((const struct local_text *)value)->arena != NULL && (uintptr_t)value % 128 == 0);
    CHECK(nodewise_read_end(&read) == NODEWISE_OK);
    CHECK(nodewise_replicated_set(replicated, &text, NULL) == NODEWISE_OK);
    copies_left = 0;
    says(nodewise_replicated_set(replicated, &text, NULL), NODEWISE_CALLBACK_FAILED, "23");
    CHECK(nodewise_replicated_placement(replicated, &placement, pages, 1024, &count) == NODEWISE_OK);
    CHECK(placement.misplaced == 0 && placement.unknown == 0 && count > 0 && pages[0].pages > 0);
    nodewise_replicated_free(replicated);
    CHECK(live == 0);
}

static void replicated(void)
{
    int copies_left = 1000, status;
    char characters[] = "near";
    struct text text = {characters};
    nodewise_value_type type = {
        .bytes = sizeof text, .copy = copy_text, .destroy = destroy_text, .context = &copies_left};
    nodewise_replicated *replicated;
    nodewise_read read;
    const void *value;
    CHECK(nodewise_replicated_new(&type, &text, &replicated) == NODEWISE_OK);
    says(nodewise_replicated_update(replicated, shout, &status, &status), NODEWISE_CALLBACK_FAILED, "29");
    CHECK(status == 29);
    CHECK(nodewise_replicated_read(replicated, &read, &value) == NODEWISE_OK);
    CHECK(strcmp(((const struct text *)value)->characters, "near") == 0);
    CHECK(nodewise_read_end(&read) == NODEWISE_OK);
    CHECK(nodewise_replicated_update(replicated, shout, NULL, &status) == NODEWISE_OK && status == 0);
    CHECK(nodewise_replicated_read(replicated, &read, &value) == NODEWISE_OK);
    CHECK(strcmp(((const struct text *)value)->characters, "Near") == 0);
    CHECK(nodewise_read_end(&read) == NODEWISE_OK);
    CHECK(nodewise_replicated_set(replicated, &text, &status) == NODEWISE_OK && status == 0);
    __atomic_store_n(&copies_left, 0, __ATOMIC_SEQ_CST);
    says(nodewise_replicated_set(replicated, &text, &status), NODEWISE_CALLBACK_FAILED, "23");
    CHECK(status == 23);
    nodewise_replicated_free(replicated);
    CHECK(live == 0);
    __atomic_store_n(&copies_left, 1, __ATOMIC_SEQ_CST);
    says(nodewise_replicated_new(&type, &text, &replicated), NODEWISE_CALLBACK_FAILED, "23");
    CHECK(live == 0);

    nodewise_value_type plain = {.bytes = sizeof(uint64_t)};
    uint64_t number = 42;
    CHECK(nodewise_replicated_new(&plain, &number, &replicated) == NODEWISE_OK);
    CHECK(nodewise_replicated_read(replicated, &read, &value) == NODEWISE_OK && *(const uint64_t *)value == 42);
    CHECK(nodewise_read_end(&read) == NODEWISE_OK);
    nodewise_replicated_free(replicated);
}

struct deposit {
    char from[5];
    int64_t amount;
};

static void deposit(void *value, const void *operation, void *out_response, void *context)
{
    struct deposit deposited;
    memcpy(&deposited, operation, sizeof deposited);
    CHECK((uintptr_t)operation % 16 == 0 && (uintptr_t)out_response % 16 == 0);
    CHECK(strcmp(deposited.from, "near") == 0 && *(int *)context == 31);
    *(int64_t *)out_response = *(int64_t *)value += deposited.amount;
}

static void raise_text(void *value, const void *operation, void *out_response, void *context)
{
    (void)operation, (void)out_response, (void)context;
    ((struct text *)value)->characters[0]++;
}

static void node_replicated(void)
{
    int thirty_one = 31, copies_left = 1000;
    int64_t account = 5, balance;
    struct deposit two = {"near", 2};
    nodewise_value_type type = {.bytes = sizeof account};
    nodewise_operations operations = {sizeof two, sizeof balance, deposit, &thirty_one};
    nodewise_node_replicated *replicated;
    nodewise_node_read read;
    nodewise_placement placement;
    nodewise_node_pages pages[1024];
    size_t count;
    const void *value;
    CHECK(nodewise_node_replicated_new(&type, &operations, &account, &replicated) == NODEWISE_OK);
    CHECK(nodewise_node_replicated_update(replicated, &two, &balance) == NODEWISE_OK && balance == 7);
    CHECK(nodewise_node_replicated_update(replicated, &two, &balance) == NODEWISE_OK && balance == 9);
    says(nodewise_node_replicated_update(replicated, NULL, &balance), NODEWISE_INVALID_ARGUMENT, "operation");
    says(nodewise_node_replicated_update(replicated, &two, NULL), NODEWISE_INVALID_ARGUMENT, "out_response");
    CHECK(nodewise_node_replicated_read(replicated, &read, &value) == NODEWISE_OK && *(const int64_t *)value == 9);
    CHECK(nodewise_node_read_end(&read) == NODEWISE_OK);
    CHECK(nodewise_node_replicated_placement(replicated, &placement, pages, 1024, &count) == NODEWISE_OK);
    CHECK(placement.misplaced == 0 && placement.unknown == 0 && count > 0 && pages[0].pages > 0);
    nodewise_node_replicated_free(replicated);
    nodewise_node_replicated_free(NULL);

    char characters[] = "near";
    struct text text = {characters};
    nodewise_value_type texts = {
        .bytes = sizeof text, .copy = copy_text, .destroy = destroy_text, .context = &copies_left};
    nodewise_operations raising = {.operate = raise_text};
    CHECK(nodewise_node_replicated_new(&texts, &raising, &text, &replicated) == NODEWISE_OK);
    CHECK(nodewise_node_replicated_update(replicated, NULL, NULL) == NODEWISE_OK);
    CHECK(nodewise_node_replicated_read(replicated, &read, &value) == NODEWISE_OK);
    CHECK(strcmp(((const struct text *)value)->characters, "oear") == 0);
    CHECK(nodewise_node_read_end(&read) == NODEWISE_OK);
    nodewise_node_replicated_free(replicated);
    CHECK(live == 0);
    raising.operate = NULL;
    says(nodewise_node_replicated_new(&texts, &raising, &text, &replicated), NODEWISE_INVALID_ARGUMENT, "operate");
    raising.operate = raise_text;
    raising.operation_bytes = SIZE_MAX;
    says(nodewise_node_replicated_new(&texts, &raising, &text, &replicated), NODEWISE_INVALID_ARGUMENT, "operation");
    raising.operation_bytes = 0;
    __atomic_store_n(&copies_left, 0, __ATOMIC_SEQ_CST);
    says(nodewise_node_replicated_new(&texts, &raising, &text, &replicated), NODEWISE_CALLBACK_FAILED, "23");
    CHECK(live == 0);
}

int main(void)
{
    nodewise_pool *pool;
    nodewise_node_statistics statistics[1024];
    size_t count;
    CHECK(strcmp(nodewise_error_message(), "") == 0);
    CHECK(nodewise_pool_new(NULL, &pool) == NODEWISE_OK);
    arguments(pool);
    allowance();
    counters();
    tasks(pool);
    default_pool();
    indices(pool);
    reductions(pool);
    sorting(pool);
    arrays(pool);
    replicated();
    replicated_in_arenas();
    node_replicated();
    CHECK(nodewise_pool_statistics(pool, statistics, 1024, &count) == NODEWISE_OK && statistics[0].run > 0);
    nodewise_pool_free(pool);
    return 0;
}
