/* The nodes of the contents of replicated values, from C, on a machine with several nodes. Each node's thread
 * asks the kernel about every page that it reads, before and after updates. The program prints a line of JSON
 * for each size. */
#include "check.h"
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGE_BYTES = 4096, NODES = 64, VALUES = 5, TURNS = 8 };

/* Bytes in an arena, of a length that updates change. */
struct block {
    unsigned char *data;
    size_t bytes;
    const nodewise_arena *arena;
};

static unsigned char *allocated(const nodewise_arena *arena, size_t bytes)
{
    void *data;
    CHECK(nodewise_arena_allocate(arena, bytes, 8, &data) == NODEWISE_OK);
    return data;
}

static int copy_block(const void *from, void *to, const nodewise_arena *arena, void *context)
{
    const struct block *other = from;
    struct block *block = to;
    (void)context;
    *block = (struct block){allocated(arena, other->bytes), other->bytes, arena};
    memcpy(block->data, other->data, other->bytes);
    return 0;
}

static void destroy_block(void *value, void *context)
{
    struct block *block = value;
    (void)context;
    CHECK(nodewise_arena_deallocate(block->arena, block->data, block->bytes, 8) == NODEWISE_OK);
}

/* To half the length and back. */
static int resize_block(void *value, void *context)
{
    struct block *block = value;
    size_t bytes = *(size_t *)context / (block->bytes == *(size_t *)context ? 2 : 1);
    unsigned char *data = allocated(block->arena, bytes);
    memset(data, 1, bytes);
    destroy_block(block, NULL);
    block->data = data;
    block->bytes = bytes;
    return 0;
}

static int raise(void *value, void *context)
{
    (void)context;
    ((unsigned char *)value)[0]++;
    return 0;
}

static void operate(void *value, const void *operation, void *out_response, void *context)
{
    (void)operation, (void)out_response;
    raise(value, context);
}

struct values {
    size_t bytes, count;
    nodewise_replicated *plain[VALUES], *blocks[VALUES];
    nodewise_node_replicated *logged[VALUES];
};

struct seen {
    const struct values *values;
    uint32_t node;
    size_t pages, elsewhere;
};

static void look(struct seen *seen, const void *contents, size_t bytes)
{
    uintptr_t page = (uintptr_t)contents & ~(uintptr_t)(PAGE_BYTES - 1);
    for (; page < (uintptr_t)contents + bytes; page += PAGE_BYTES) {
        void *address = (void *)page;
        int home = -1;
        CHECK(syscall(SYS_move_pages, 0, 1ul, &address, NULL, &home, 0) == 0);
        seen->pages++;
        seen->elsewhere += home != (int)seen->node;
    }
}

/* On a worker of the node. */
static int look_from_node(void *context)
{
    struct seen *seen = context;
    const struct values *values = seen->values;
    for (size_t i = 0; i < values->count; i++) {
        const void *value;
        nodewise_read read;
        nodewise_node_read node_read;
        CHECK(nodewise_replicated_read(values->plain[i], &read, &value) == NODEWISE_OK);
        look(seen, value, values->bytes);
        CHECK(nodewise_read_end(&read) == NODEWISE_OK);
        CHECK(nodewise_replicated_read(values->blocks[i], &read, &value) == NODEWISE_OK);
        look(seen, value, sizeof(struct block));
        look(seen, ((const struct block *)value)->data, ((const struct block *)value)->bytes);
        CHECK(nodewise_read_end(&read) == NODEWISE_OK);
        CHECK(nodewise_node_replicated_read(values->logged[i], &node_read, &value) == NODEWISE_OK);
        look(seen, value, values->bytes);
        CHECK(nodewise_node_read_end(&node_read) == NODEWISE_OK);
    }
    return 0;
}

/* The library's count of the same. */
static size_t misplaced(const struct values *values)
{
    size_t sum = 0, count;
    nodewise_placement placement;
    nodewise_node_pages pages[NODES];
    for (size_t i = 0; i < values->count; i++) {
        CHECK(nodewise_replicated_placement(values->plain[i], &placement, pages, NODES, &count) == NODEWISE_OK);
        sum += placement.misplaced + placement.absent + placement.unknown;
        CHECK(nodewise_replicated_placement(values->blocks[i], &placement, pages, NODES, &count) == NODEWISE_OK);
        sum += placement.misplaced + placement.absent + placement.unknown;
        CHECK(nodewise_node_replicated_placement(values->logged[i], &placement, pages, NODES, &count) == NODEWISE_OK);
        sum += placement.misplaced + placement.absent + placement.unknown;
        for (size_t node = 0; node < count; node++)
            CHECK(pages[node].pages >= (values->bytes + PAGE_BYTES - 1) / PAGE_BYTES);
    }
    return sum;
}

static int update_from_node(void *context)
{
    const struct values *values = context;
    size_t updates = values->bytes == 8 ? 1250 : 20, bytes = values->bytes;
    for (size_t update = 0; update < updates; update++) {
        size_t i = update % values->count;
        CHECK(nodewise_replicated_update(values->plain[i], raise, NULL, NULL) == NODEWISE_OK);
        CHECK(nodewise_node_replicated_update(values->logged[i], NULL, NULL) == NODEWISE_OK);
        if (update < 2 * values->count)
            CHECK(nodewise_replicated_update(values->blocks[i], resize_block, &bytes, NULL) == NODEWISE_OK);
    }
    return 0;
}

static void on_node(nodewise_pool *pool, uint32_t node, nodewise_run run, void *context)
{
    nodewise_task *task;
    CHECK(nodewise_pool_spawn_on(pool, node, run, context, NULL, &task) == NODEWISE_OK);
    CHECK(nodewise_task_join(task, NULL) == NODEWISE_OK);
}

static void of_size(nodewise_pool *pool, size_t bytes)
{
    struct values values = {.bytes = bytes, .count = bytes > 1 << 16 ? 1 : VALUES};
    nodewise_value_type plain = {.bytes = bytes};
    nodewise_value_type in_arena = {.bytes = sizeof(struct block), .copy_in = copy_block, .destroy = destroy_block};
    nodewise_operations operations = {.operate = operate};
    uint32_t nodes[NODES];
    size_t count;
    struct block block = {calloc(bytes, 1), bytes, NULL};
    CHECK(block.data != NULL);
    for (size_t i = 0; i < values.count; i++) {
        CHECK(nodewise_replicated_new(&plain, block.data, &values.plain[i]) == NODEWISE_OK);
        CHECK(nodewise_replicated_new(&in_arena, &block, &values.blocks[i]) == NODEWISE_OK);
        CHECK(nodewise_node_replicated_new(&plain, &operations, block.data, &values.logged[i]) == NODEWISE_OK);
    }
    CHECK(nodewise_pool_nodes(pool, nodes, NODES, &count) == NODEWISE_OK);
    struct seen sum = {0};
    for (int round = 0; round < 2; round++) {
        for (size_t node = 0; node < count; node++) {
            struct seen seen = {.values = &values, .node = nodes[node]};
            on_node(pool, nodes[node], look_from_node, &seen);
            sum.pages += seen.pages;
            sum.elsewhere += seen.elsewhere;
        }
        for (size_t turn = 0; round == 0 && turn < TURNS; turn++)
            on_node(pool, nodes[turn % count], update_from_node, &values);
    }
    printf("{\"bytes\":%zu,\"nodes\":%zu,\"pages\":%zu,\"elsewhere\":%zu,\"misplaced\":%zu}\n", bytes, count, sum.pages,
           sum.elsewhere, misplaced(&values));
    for (size_t i = 0; i < values.count; i++) {
        nodewise_replicated_free(values.plain[i]);
        nodewise_replicated_free(values.blocks[i]);
        nodewise_node_replicated_free(values.logged[i]);
    }
    free(block.data);
}

int main(void)
{
    nodewise_pool *pool;
    CHECK(nodewise_pool_new(NULL, &pool) == NODEWISE_OK);
    const size_t sizes[] = {8, 100, 1000, 4 << 10, 8 << 10, 64 << 10, 1 << 20, 4 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        of_size(pool, sizes[i]);
    nodewise_pool_free(pool);
    return 0;
}
