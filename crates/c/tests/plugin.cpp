// A shared library with a pool that is made while it is loaded, and a part in the process's default pool.

#include <nodewise.hpp>
#include <optional>

static std::optional<nodewise::pool> pool(std::in_place);

extern "C" long sum_below(long end)
{
    return pool->parallel_reduce(
        0, end, 0L, [](long sum, std::size_t i) { return sum + static_cast<long>(i); },
        [](long a, long b) { return a + b; });
}

static std::optional<nodewise::pool> shared;

// The pool that the process's libraries share.
extern "C" const void *shared_pool()
{
    if (!shared)
        shared = nodewise::pool::shared();
    return shared->get();
}

extern "C" unsigned long shared_workers()
{
    return shared->workers();
}

extern "C" void end_pool()
{
    pool.reset();
    shared.reset();
}
