/* The nodes of the contents of replicated values, from C, on a machine with several nodes. Each node's thread
 * asks the kernel about every page that it reads, before and after updates, of which the program's argument
 * says how many. The program prints a line of JSON for each size. */
#include "check.h"
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGE_BYTES = 4096, NODES = 64, TURNS = 8, MOVES_EACH = 32 };

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

/* In place. */
static int raise_block(void *value, void *context)
{
    return raise(((struct block *)value)->data, context);
}

struct values {
    size_t bytes;
    nodewise_replicated *plain, *block;
    nodewise_node_replicated *logged;
    /* Updates that each of the three has had. */
    size_t updates, moves;
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
    const void *value;
    nodewise_read read;
    nodewise_node_read node_read;
    CHECK(nodewise_replicated_read(values->plain, &read, &value) == NODEWISE_OK);
    look(seen, value, values->bytes);
    CHECK(nodewise_read_end(&read) == NODEWISE_OK);
    CHECK(nodewise_replicated_read(values->block, &read, &value) == NODEWISE_OK);
    look(seen, value, sizeof(struct block));
    look(seen, ((const struct block *)value)->data, ((const struct block *)value)->bytes);
    CHECK(nodewise_read_end(&read) == NODEWISE_OK);
    CHECK(nodewise_node_replicated_read(values->logged, &node_read, &value) == NODEWISE_OK);
    look(seen, value, values->bytes);
    CHECK(nodewise_node_read_end(&node_read) == NODEWISE_OK);
    return 0;
}

/* The library's count of the same. */
static size_t misplaced(const struct values *values)
{
    size_t sum = 0, count;
    nodewise_placement placement;
    nodewise_node_pages pages[NODES];
    CHECK(nodewise_replicated_placement(values->plain, &placement, pages, NODES, &count) == NODEWISE_OK);
    sum += placement.misplaced + placement.absent + placement.unknown;
    CHECK(nodewise_replicated_placement(values->block, &placement, pages, NODES, &count) == NODEWISE_OK);
    sum += placement.misplaced + placement.absent + placement.unknown;
    CHECK(nodewise_node_replicated_placement(values->logged, &placement, pages, NODES, &count) == NODEWISE_OK);
    sum += placement.misplaced + placement.absent + placement.unknown;
    for (size_t node = 0; node < count; node++)
        CHECK(pages[node].pages >= (values->bytes + PAGE_BYTES - 1) / PAGE_BYTES);
    return sum;
}

static size_t updates_in_turn = 10000 / TURNS;

static int update_from_node(void *context)
{
    struct values *values = context;
    for (size_t update = 0; update < updates_in_turn; update++) {
        int moves = update % MOVES_EACH == 0;
        CHECK(nodewise_replicated_update(values->plain, raise, NULL, NULL) == NODEWISE_OK);
        CHECK(nodewise_node_replicated_update(values->logged, NULL, NULL) == NODEWISE_OK);
        CHECK(nodewise_replicated_update(values->block, moves ? resize_block : raise_block, &values->bytes, NULL) == NODEWISE_OK);
        values->updates++;
        values->moves += (size_t)moves;
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
    struct values values = {.bytes = bytes};
    nodewise_value_type plain = {.bytes = bytes};
    nodewise_value_type in_arena = {.bytes = sizeof(struct block), .copy_in = copy_block, .destroy = destroy_block};
    nodewise_operations operations = {.operate = operate};
    uint32_t nodes[NODES];
    size_t count;
    struct block block = {calloc(bytes, 1), bytes, NULL};
    CHECK(block.data != NULL);
    CHECK(nodewise_replicated_new(&plain, block.data, &values.plain) == NODEWISE_OK);
    CHECK(nodewise_replicated_new(&in_arena, &block, &values.block) == NODEWISE_OK);
    CHECK(nodewise_node_replicated_new(&plain, &operations, block.data, &values.logged) == NODEWISE_OK);
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
    printf("{\"bytes\":%zu,\"nodes\":%zu,\"pages\":%zu,\"elsewhere\":%zu,\"misplaced\":%zu,\"updates\":%zu,\"moves\":%zu}\n",
           bytes, count, sum.pages, sum.elsewhere, misplaced(&values), values.updates, values.moves);
    nodewise_replicated_free(values.plain);
    nodewise_replicated_free(values.block);
    nodewise_node_replicated_free(values.logged);
    free(block.data);
}

int main(int argc, char **argv)
{
    nodewise_pool *pool;
    if (argc > 1)
        updates_in_turn = strtoul(argv[1], NULL, 10) / TURNS;
    CHECK(nodewise_pool_new(NULL, &pool) == NODEWISE_OK);
    const size_t sizes[] = {8, 100, 1000, 4 << 10, 8 << 10, 64 << 10, 1 << 20, 4 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        of_size(pool, sizes[i]);
    nodewise_pool_free(pool);
    return 0;
}
