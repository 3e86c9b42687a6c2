// oneTBB's part in compare.rs, which builds and starts this: takes the number of workers, then for each line of a contest's name and a number of
// operations, with a tab between, does them and answers with the nanoseconds they took all together; -1 for a contest that it does not know.
#include <oneapi/tbb.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <iostream>
#include <map>
#include <semaphore.h>
#include <string>
#include <thread>

namespace {

using std::chrono::steady_clock;

// As std::hint::black_box: the value lies in memory, and somebody may look at it.
template <class T>
inline void use_up(T value)
{
    asm volatile("" : : "r"(&value) : "memory");
}

// As compare.rs has it.
inline void microsecond(std::uint64_t rounds)
{
    std::uint64_t state = 1;
    for (std::uint64_t round = 0; round < rounds; round++) {
        state = state * 6364136223846793005 + 1;
        asm volatile("" : : "r"(&state) : "memory");
    }
}

std::int64_t ns(steady_clock::duration duration)
{
    return std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count();
}

std::int64_t taken_ns(const std::function<void()> &body)
{
    auto begin = steady_clock::now();
    body();
    return ns(steady_clock::now() - begin);
}

std::uint64_t rounds_a_microsecond()
{
    constexpr std::uint64_t rounds = 100'000;
    std::int64_t least = INT64_MAX;
    for (int i = 0; i < 20; i++)
        least = std::min(least, std::max<std::int64_t>(taken_ns([] { microsecond(rounds); }), 1));
    return std::max<std::uint64_t>(rounds * 1000 / static_cast<std::uint64_t>(least), 1);
}

inline std::uint64_t square(std::size_t i)
{
    return i * i ^ i >> 3;
}

using range = tbb::blocked_range<std::size_t>;

void each(std::size_t len)
{
    tbb::parallel_for(range(0, len), [](const range &part) {
        for (std::size_t i = part.begin(); i < part.end(); i++)
            use_up(i);
    });
}

std::uint64_t fibonacci(unsigned n)
{
    if (n < 2)
        return n;
    std::uint64_t a = 0, b = 0;
    tbb::parallel_invoke([&] { a = fibonacci(n - 1); }, [&] { b = fibonacci(n - 2); });
    return a + b;
}

// A contest's turn, given how many operations.
using turn = std::function<std::int64_t(std::size_t)>;

} // namespace

int main(int argc, char **argv)
{
    int workers = argc > 1 ? std::atoi(argv[1]) : 2;
    // Threads besides this one; as many as the others' pools have, where they must be woken, and one less where this thread works, too.
    tbb::global_control threads(tbb::global_control::max_allowed_parallelism, static_cast<std::size_t>(workers) + 1);
    tbb::task_arena inside(workers);
    tbb::task_arena outside(workers, 0);
    std::uint64_t rounds = rounds_a_microsecond();
    sem_t all_done;
    sem_init(&all_done, 0, 0);

    auto in_arena = [&](const std::function<void()> &body) { return taken_ns([&] { inside.execute(body); }); };
    auto tasks = [&](std::uint64_t work) {
        return [&, work](std::size_t count) {
            return in_arena([&] {
                tbb::task_group group;
                for (std::size_t i = 0; i < count; i++)
                    group.run([work] { microsecond(work); });
                group.wait();
            });
        };
    };
    auto loop = [&](std::size_t len) { return in_arena([&] { each(len); }); };
    auto reduce = [&](std::size_t len) {
        return in_arena([&] {
            use_up(tbb::parallel_reduce(
                range(0, len), std::uint64_t(0),
                [](const range &part, std::uint64_t sum) {
                    for (std::size_t i = part.begin(); i < part.end(); i++)
                        sum += square(i);
                    return sum;
                },
                std::plus<>()));
        });
    };
    auto from_outside = [&](std::size_t count) {
        return taken_ns([&] {
            std::atomic<std::size_t> left = count;
            for (std::size_t i = 0; i < count; i++)
                outside.enqueue([&] {
                    if (left.fetch_sub(1, std::memory_order_acq_rel) == 1)
                        sem_post(&all_done);
                });
            while (sem_wait(&all_done) != 0) {
            }
        });
    };
    auto wake = [&](std::size_t) {
        std::array<std::int64_t, 11> times;
        for (auto &time : times) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
            time = from_outside(1);
        }
        std::sort(times.begin(), times.end());
        return times[times.size() / 2];
    };
    // Nanoseconds of CPU time in a second.
    auto idle = [&](std::size_t) {
        auto cpu_ns = [] {
            timespec time;
            clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
            return std::int64_t(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
        };
        loop(1000);
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        auto begin = cpu_ns();
        std::this_thread::sleep_for(std::chrono::seconds(1));
        return cpu_ns() - begin;
    };

    std::map<std::string, turn> contests = {
        {"empty tasks", tasks(0)},
        {"1 us tasks", tasks(rounds)},
        {"parallel_for, 1e6", loop},
        {"parallel_for, 1e8", loop},
        {"reduce, 1e6", reduce},
        {"reduce, 1e8", reduce},
        {"nested joins", [&](std::size_t) { return in_arena([] { use_up(fibonacci(22)); }); }},
        {"nested loops", [&](std::size_t) {
             return in_arena([] { tbb::parallel_for(0, 100, [](int) { each(1000); }); });
         }},
        {"tasks from outside", from_outside},
        {"wake-up and back", wake},
        {"idle CPU", idle},
    };

    std::string name, operations;
    while (std::getline(std::cin, name, '\t') && std::getline(std::cin, operations)) {
        auto contest = contests.find(name);
        bool known = contest != contests.end();
        std::cout << (known ? contest->second(std::strtoull(operations.c_str(), nullptr, 10)) : -1) << std::endl;
    }
    return 0;
}
