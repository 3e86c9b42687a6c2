// A histogram of an array that lies on all nodes, by limits of which every node has a copy.
#include <nodewise.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <stdexcept>
#include <vector>

int main()
try {
    constexpr std::size_t len = 1 << 20;
    nodewise::pool pool;
    nodewise::node_vector<double> samples(len, nodewise::layout::blocked(), 0, &pool);

    // On a worker of block.node, whose memory this is.
    samples.for_each_block(pool, [](const nodewise::block &block, double *values) {
        for (std::size_t i = block.begin; i < block.end; i++)
            values[i - block.begin] = std::fabs(std::sin(static_cast<double>(i)));
    });

    // Each copy's elements are on its node, too.
    nodewise::replicated<std::pmr::vector<double>> limits({0.25, 0.5});
    limits.update([](std::pmr::vector<double> &limits) { limits.push_back(0.75); });

    using histogram = std::vector<std::size_t>;
    auto counts = pool.parallel_reduce(
        0, len, histogram(4),
        [&](histogram counts, std::size_t i) {
            auto local = limits.read();
            counts[std::upper_bound(local->begin(), local->end(), samples[i]) - local->begin()]++;
            return counts;
        },
        [](histogram left, histogram right) {
            std::transform(left.begin(), left.end(), right.begin(), left.begin(), std::plus<>());
            return left;
        });
    for (std::size_t count : counts)
        std::printf("%zu ", count);
    std::printf("samples by quarter\n");

    for (auto [node, pages] : samples.placement().pages_by_node)
        std::printf("node %u has %zu pages\n", node, pages);

    // A std::vector whose memory is on this node.
    nodewise::arena here(nodewise::layout::on(nodewise::current_node()));
    std::pmr::vector<int> numbers(1000, &here);
    std::iota(numbers.begin(), numbers.end(), 0);

    nodewise::counter done;
    pool.scope([&](const nodewise::scope &scope) {
        for (int number : numbers)
            scope.spawn([&, number] { done.add(static_cast<std::uint64_t>(number)); });
    });
    std::printf("%llu counted\n", static_cast<unsigned long long>(done.exact().value_or(0)));

    auto task = pool.spawn([] { throw std::runtime_error("carried to the joiner"); });
    try {
        task.join();
    } catch (const std::runtime_error &error) {
        std::printf("%s\n", error.what());
    }
    bool all = std::accumulate(counts.begin(), counts.end(), std::size_t(0)) == len;
    return all && done.exact() == 499500 ? 0 : 1;
} catch (const nodewise::error &error) {
    std::fprintf(stderr, "nodewise: %s\n", error.what());
    return 1;
}
