// The wrapper takes no memory for small tasks, nor for small values of reductions. This counts the requests
// of all threads to the C library.
#include <nodewise.hpp>

#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

static std::atomic<long> allocations = 0;

// The C library's own.
extern "C" void *__libc_malloc(std::size_t bytes);

extern "C" void *malloc(std::size_t bytes)
{
    allocations++;
    return __libc_malloc(bytes);
}

namespace {

// Allocations of each of many calls, on average.
template <class F>
double allocations_each(long calls, F many)
{
    // Memory that is kept from call to call.
    many();
    long before = allocations;
    many();
    return double(allocations - before) / double(calls);
}

// It is in one place at a time.
struct moved_only {
    bool is_here = true;

    moved_only() = default;
    moved_only(moved_only &&other) noexcept : is_here(std::exchange(other.is_here, false)) {}
};

bool few(const char *name, double each, double most)
{
    std::printf("%s: %.3f allocations each\n", name, each);
    return each <= most;
}

} // namespace

int main()
{
    nodewise::pool pool;
    std::vector<double> a(100'000, 0.5), b(100'000, 2);

    double sum = 0;
    double reduction = allocations_each(100, [&] {
        for (int i = 0; i < 100; i++)
            sum += pool.parallel_reduce(
                0, a.size(), 0.0, [&](double sum, std::size_t i) { return sum + a[i] * b[i]; },
                [](double left, double right) { return left + right; });
    });
    if (sum != 200.0 * 100'000)
        return 1;

    std::atomic<long> ran = 0;
    const long tasks = 20'000;
    double spawn = allocations_each(tasks, [&] {
        pool.scope([&](const nodewise::scope &scope) {
            for (long i = 0; i < tasks; i++)
                scope.spawn([&ran, i, one = 1L] { ran += i > 0 ? one : 1; });
        });
    });
    if (ran != 2 * tasks)
        return 1;

    // As small, but no mere bytes.
    double moved = allocations_each(tasks, [&] {
        pool.scope([&](const nodewise::scope &scope) {
            std::uint32_t node = pool.nodes().front();
            for (long i = 0; i < tasks; i += 2) {
                scope.spawn([&ran, token = moved_only()] { ran += token.is_here; });
                scope.spawn_on(node, [&ran, token = moved_only()] { ran += token.is_here; });
            }
        });
    });
    if (ran != 4 * tasks)
        return 1;

    double apart = allocations_each(1000, [&] {
        for (int i = 0; i < 1000; i++)
            pool.spawn([&ran, i] { ran += i; }).join();
    });

    bool reductions = few("a reduction", reduction, 2), spawns = few("a small task", spawn, 0.1);
    spawns &= few("a small task with an object", moved, 0.1);
    // The allocation is the task, with the function and its result.
    bool joined = few("a task of its own", apart, 1.1);
    return reductions && spawns && joined ? 0 : 1;
}
