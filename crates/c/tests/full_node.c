/* A node without room for an array that is to lie there, from C: full_node NODE, on a machine with several
 * nodes. The program prints how many pages of how many went elsewhere where that was allowed. */
#include "check.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE_BYTES = 4096, NODES = 64 };

/* 0 if there is no such node. */
static size_t free_bytes(unsigned node)
{
    char path[64], line[128];
    snprintf(path, sizeof path, "/sys/devices/system/node/node%u/meminfo", node);
    FILE *meminfo = fopen(path, "r");
    if (meminfo == NULL)
        return 0;
    size_t free_kb = 0;
    while (free_kb == 0 && fgets(line, sizeof line, meminfo))
        sscanf(line, "Node %*u MemFree: %zu", &free_kb);
    fclose(meminfo);
    CHECK(free_kb > 0);
    return free_kb * 1024;
}

static size_t free_bytes_of_all(void)
{
    size_t sum = 0, bytes;
    for (unsigned node = 0; (bytes = free_bytes(node)) > 0; node++)
        sum += bytes;
    return sum;
}

/* Pages from begin to before end that are on the node where they shall be, and on others. */
static void count(const nodewise_array *array, size_t begin, size_t end, unsigned node, size_t *there, size_t *elsewhere)
{
    nodewise_placement placement;
    nodewise_node_pages of_nodes[NODES];
    size_t nodes;
    CHECK(nodewise_array_placement(array, begin, end, &placement, of_nodes, NODES, &nodes) == NODEWISE_OK);
    CHECK(placement.absent == 0);
    *there = *elsewhere = 0;
    for (size_t i = 0; i < nodes && i < NODES; i++)
        *(of_nodes[i].node == node ? there : elsewhere) += of_nodes[i].pages;
    CHECK(*there + *elsewhere == end - begin);
    CHECK(placement.misplaced == *elsewhere);
}

/* Each page has its number in it. */
static void check_numbers(const char *data, size_t pages)
{
    for (size_t page = 0; page < pages; page++)
        CHECK(memcmp(data + page * PAGE_BYTES, &page, sizeof page) == 0);
}

static void write_numbers(char *data, size_t pages)
{
    for (size_t page = 0; page < pages; page++)
        memcpy(data + page * PAGE_BYTES, &page, sizeof page);
}

int main(int arguments, char **argument)
{
    CHECK(arguments == 2);
    uint32_t node = (uint32_t)strtoul(argument[1], NULL, 10), other = NODES;
    /* The one with most room: the system's own memory and files lie on some. */
    for (uint32_t candidate = 0; free_bytes(candidate) > 0; candidate++)
        if (candidate != node && (other == NODES || free_bytes(candidate) > free_bytes(other)))
            other = candidate;
    nodewise_layout on = {.kind = NODEWISE_LAYOUT_ON, .count = 1, .nodes = &node};
    nodewise_layout on_other = {.kind = NODEWISE_LAYOUT_ON, .count = 1, .nodes = &other};
    /* There is room for one such array, and not for two. */
    size_t pages = free_bytes(node) / 4 * 3 / PAGE_BYTES, there, elsewhere;
    nodewise_array *first, *second = NULL;
    CHECK(nodewise_array_new(&on, pages, PAGE_BYTES, 0, NULL, &first) == NODEWISE_OK);
    count(first, 0, pages, node, &there, &elsewhere);
    CHECK(elsewhere == 0);

    const char *words = "found no room on their node";
    says(nodewise_array_new(&on, pages, PAGE_BYTES, 0, NULL, &second), NODEWISE_NODE_FULL, words);
    CHECK(second == NULL);
    says(nodewise_array_new(&on, pages, PAGE_BYTES, NODEWISE_HUGE_PAGES, NULL, &second), NODEWISE_NODE_FULL, words);
    nodewise_arena *arena;
    void *block;
    CHECK(nodewise_arena_new(&on, 0, &arena) == NODEWISE_OK);
    says(nodewise_arena_allocate(arena, pages * PAGE_BYTES, 8, &block), NODEWISE_NODE_FULL, words);
    nodewise_arena_free(arena);

    /* A page that cannot move stays, and keeps its contents. */
    size_t small = pages / 8;
    CHECK(nodewise_array_new(&on_other, pages, PAGE_BYTES, 0, NULL, &second) == NODEWISE_OK);
    void *data;
    CHECK(nodewise_array_data(second, &data) == NODEWISE_OK);
    write_numbers(data, pages);
    says(nodewise_array_lay_out_range(second, pages / 4, pages, &on, NULL), NODEWISE_NODE_FULL, words);
    check_numbers(data, pages);
    count(second, 0, pages / 4, other, &there, &elsewhere);
    CHECK(elsewhere == 0);
    count(second, pages / 4, pages, node, &there, &elsewhere);
    CHECK(there > 0 && elsewhere > 0); /* as many as there was room for */
    CHECK(nodewise_array_lay_out(second, &on_other, NULL) == NODEWISE_OK);
    says(nodewise_array_lay_out(second, &on, NULL), NODEWISE_NODE_FULL, words);
    check_numbers(data, pages);
    nodewise_array_free(second);
    CHECK(nodewise_array_new(&on, small, PAGE_BYTES, 0, NULL, &second) == NODEWISE_OK); /* the pages are back */
    nodewise_array_free(second);

    /* Copies for which all nodes have room but this one, of which the kernel keeps the rest for itself. */
    CHECK(nodewise_array_new(&on, free_bytes(node), 1, NODEWISE_ANYWHERE, NULL, &second) == NODEWISE_OK);
    size_t copied = 2048;
    char *numbers = malloc(copied * PAGE_BYTES);
    CHECK(numbers != NULL);
    memset(numbers, 0, copied * PAGE_BYTES);
    write_numbers(numbers, copied);
    for (uint32_t candidate = 0; free_bytes(candidate) > 0; candidate++)
        CHECK(candidate == node || free_bytes(candidate) / 4 > copied * PAGE_BYTES);
    size_t before = free_bytes_of_all();
    nodewise_replicated_array *copies = NULL;
    says(nodewise_replicated_array_new(numbers, copied, PAGE_BYTES, &copies), NODEWISE_NODE_FULL, words);
    CHECK(copies == NULL);
    CHECK(free_bytes_of_all() + copied * PAGE_BYTES / 2 > before); /* not even one copy is left */
    nodewise_array_free(second);
    CHECK(nodewise_replicated_array_new(numbers, copied, PAGE_BYTES, &copies) == NODEWISE_OK);
    const void *near;
    CHECK(nodewise_replicated_array_near(copies, node, &near) == NODEWISE_OK);
    check_numbers(near, copied);
    nodewise_replicated_array_free(copies);
    free(numbers);

    CHECK(nodewise_array_new(&on, pages, PAGE_BYTES, NODEWISE_ANYWHERE, NULL, &second) == NODEWISE_OK);
    count(second, 0, pages, node, &there, &elsewhere);
    CHECK(elsewhere > 0);
    printf("{\"pages\": %zu, \"elsewhere\": %zu}\n", pages, elsewhere);
    nodewise_array_free(second);
    nodewise_array_free(first);
    return 0;
}
