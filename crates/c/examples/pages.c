/* An array whose pages lie on all nodes, filled where they lie, and summed up by all workers. */
#include <nodewise.h>
#include <stdio.h>
#include <stdlib.h>

enum { LEN = 1 << 20, NODES = 64 };

static void check(nodewise_result result, const char *what)
{
    if (result != NODEWISE_OK) {
        fprintf(stderr, "%s: %s\n", what, nodewise_error_message());
        exit(1);
    }
}

/* On a worker of block->node, whose memory this is. */
static int fill(const nodewise_block *block, void *elements, void *context)
{
    const nodewise_counter *filled = context;
    double *values = elements;
    for (size_t i = block->begin; i < block->end; i++)
        values[i - block->begin] = (double)i;
    return nodewise_counter_add(filled, block->end - block->begin);
}

static int sum_part(size_t begin, size_t end, void *out_value, void *context)
{
    const double *values = context;
    double sum = 0;
    for (size_t i = begin; i < end; i++)
        sum += values[i];
    *(double *)out_value = sum;
    return 0;
}

static int add(void *left, void *right, void *context)
{
    (void)context;
    *(double *)left += *(double *)right;
    return 0;
}

static int greet(void *context)
{
    printf("hello from node %u, to %s\n", (unsigned)nodewise_current_node(), (const char *)context);
    return 0;
}

int main(void)
{
    nodewise_pool *pool;
    check(nodewise_pool_new(NULL, &pool), "pool");
    nodewise_counter *filled;
    check(nodewise_counter_new(&filled), "counter");

    nodewise_layout blocked = {.kind = NODEWISE_LAYOUT_BLOCKED};
    nodewise_array *array;
    check(nodewise_array_new(&blocked, LEN, sizeof(double), 0, pool, &array), "array");
    check(nodewise_array_for_each_block(array, pool, fill, filled, NULL), "fill");

    void *values;
    check(nodewise_array_data(array, &values), "data");
    nodewise_reduction reduction = {.value_bytes = sizeof(double), .part = sum_part, .combine = add};
    double sum = 0;
    check(nodewise_pool_parallel_reduce(pool, 0, LEN, &reduction, values, &sum, NULL), "sum");

    uint64_t elements;
    check(nodewise_counter_exact(filled, &elements), "count");
    printf("%llu elements, whose sum is %.0f\n", (unsigned long long)elements, sum);

    nodewise_placement placement;
    nodewise_node_pages pages[NODES];
    size_t nodes;
    check(nodewise_array_placement(array, 0, LEN, &placement, pages, NODES, &nodes), "placement");
    for (size_t i = 0; i < nodes && i < NODES; i++)
        printf("node %u has %zu pages\n", (unsigned)pages[i].node, pages[i].pages);
    printf("%zu pages are elsewhere than they should be\n", placement.misplaced);

    nodewise_task *task;
    check(nodewise_pool_spawn(pool, greet, "whom it concerns", NULL, &task), "spawn");
    check(nodewise_task_join(task, NULL), "join");

    /* There is no such node: the message says which there are. */
    nodewise_layout nowhere = {.kind = NODEWISE_LAYOUT_ON, .count = 1, .nodes = (uint32_t[]){1000}};
    if (nodewise_array_lay_out(array, &nowhere, NULL) == NODEWISE_LAYOUT)
        printf("refused: %s\n", nodewise_error_message());

    nodewise_array_free(array);
    nodewise_counter_free(filled);
    nodewise_pool_free(pool);
    return elements == LEN && sum == (double)LEN * (LEN - 1) / 2 ? 0 : 1;
}
