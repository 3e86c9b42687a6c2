// A shared library with a pool that is made while it is loaded.

#include <nodewise.hpp>
#include <optional>

static std::optional<nodewise::pool> pool(std::in_place);

extern "C" long sum_below(long end)
{
    return pool->parallel_reduce(
        0, end, 0L, [](long sum, std::size_t i) { return sum + static_cast<long>(i); },
        [](long a, long b) { return a + b; });
}

extern "C" void end_pool()
{
    pool.reset();
}
