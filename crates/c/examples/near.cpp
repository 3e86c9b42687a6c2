// Threads, a pool and memory near a device: near eth0, near nvme0n1, near 0000:3b:00.0.
#include <nodewise.hpp>

#include <cstdio>
#include <vector>

int main(int count, char **arguments)
try {
    if (count != 2) {
        std::fprintf(stderr, "usage: near DEVICE    (`nodewise topo` lists the devices)\n");
        return 2;
    }
    auto nodes = nodewise::nodes_near(arguments[1]);
    nodewise::bind_thread(nodes);
    // Threads that were bound, and what they start, are there now.
    std::printf("%s is near node %u, and so am I\n", arguments[1], nodewise::current_node());

    // Workers there, to handle what comes from the device.
    nodewise::pool pool(nodewise::pool_options().nodes(nodes));
    // Memory there, for what the device writes.
    nodewise::arena buffers(nodewise::layout::on(nodes.front()));
    std::pmr::vector<std::byte> received(1 << 20, &buffers);
    for (auto [node, pages] : buffers.placement().pages_by_node)
        std::printf("node %u has %zu pages of the buffers, and %zu workers\n", node, pages, pool.workers());
} catch (const nodewise::error &error) {
    std::fprintf(stderr, "nodewise: %s\n", error.what());
    return 1;
}
