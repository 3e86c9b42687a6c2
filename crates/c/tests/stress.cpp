// The wrapper from many threads at once: pools, counters, replicated values, exceptions. The program's
// argument says how often. `race` makes two tasks race, for sanitizers to find it.
#include <nodewise.hpp>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#define CHECK(condition)                                                            \
    do {                                                                            \
        if (!(condition)) {                                                         \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);    \
            std::abort();                                                           \
        }                                                                           \
    } while (0)

namespace {

struct on_order : std::runtime_error {
    using runtime_error::runtime_error;
};

// The exception that a call throws.
template <class E, class F>
E thrown(F f)
{
    try {
        f();
    } catch (const E &exception) {
        return exception;
    }
    std::fprintf(stderr, "nothing was thrown\n");
    std::abort();
}

// Counts its objects, so that none may be lost or ended twice.
struct counted {
    static inline std::atomic<int> live = 0;
    counted() { live++; }
    counted(const counted &) noexcept { live++; }
    counted &operator=(const counted &) = default;
    ~counted() { live--; }
};

void on_threads(int threads, const std::function<void(int)> &body)
{
    std::vector<std::thread> started;
    for (int thread = 0; thread < threads; thread++)
        started.emplace_back(body, thread);
    for (auto &thread : started)
        thread.join();
}

void counters_lose_nothing(int turns)
{
    nodewise::counter counter;
    nodewise::task_counter tasks;
    std::vector<int> written(4);
    tasks.submit(4);
    on_threads(5, [&](int thread) {
        if (thread == 4) {
            tasks.wait();
            // This thread sees all writes from before `done`.
            for (int value : written)
                CHECK(value == 1);
            return;
        }
        for (int i = 0; i < turns; i++)
            counter.add(1);
        written[static_cast<std::size_t>(thread)] = 1;
        tasks.done();
    });
    CHECK(counter.exact() == std::uint64_t(4 * turns));
    CHECK(counter.approximate() == std::uint64_t(4 * turns));
    CHECK(tasks.count() == 0 && tasks.wait_for(std::chrono::nanoseconds(1)));
}

void tasks_return_and_throw(const nodewise::pool &pool, int turns)
{
    on_threads(3, [&](int thread) {
        for (int i = 0; i < turns; i++) {
            counted held;
            auto sum = pool.spawn([held, i, thread] { return std::to_string(i + thread); });
            auto failing = pool.spawn([held, i]() -> int { throw on_order(std::to_string(i)); });
            CHECK(sum.join() == std::to_string(i + thread));
            CHECK(thrown<on_order>([&] { failing.join(); }).what() == std::to_string(i));
            pool.spawn([held] {});
        }
    });
    int here = 1;
    auto of_here = pool.spawn([&]() -> int & { return here; });
    static_assert(std::is_same_v<decltype(of_here.join()), int &>);
    CHECK(&of_here.join() == &here);
    CHECK(&pool.scope([&](const nodewise::scope &) -> int & { return here; }) == &here);
    CHECK(&pool.join([&]() -> int & { return here; }, [] { return 2; }).first == &here);
    auto none = pool.spawn([] {});
    none.join();
    CHECK(thrown<nodewise::error>([&] { none.join(); }).code() == NODEWISE_INVALID_ARGUMENT);
    CHECK(thrown<nodewise::error>([&] { pool.spawn_on(1000, [] {}); }).code() == NODEWISE_NO_WORKERS);
    std::uint32_t node = pool.nodes().front();
    CHECK(pool.spawn_on(node, [&] { return pool.worker_node(); }).join() == node);
    CHECK(!pool.worker_node());
}

void scopes_end_what_they_began(const nodewise::pool &pool, int turns)
{
    on_threads(3, [&](int) {
        for (int i = 0; i < turns; i++) {
            counted held;
            std::vector<int> squares(20);
            std::string said = pool.scope([&](const nodewise::scope &scope) {
                for (int &square : squares)
                    scope.spawn([&, held](const nodewise::scope &inner) {
                        int root = static_cast<int>(&square - squares.data());
                        inner.spawn([&square, root, held] { square = root * root; });
                    });
                return std::string("said");
            });
            CHECK(said == "said");
            for (int root = 0; root < 20; root++)
                CHECK(squares[static_cast<std::size_t>(root)] == root * root);

            std::atomic<int> ran = 0;
            thrown<on_order>([&] {
                pool.scope([&](const nodewise::scope &scope) {
                    for (int task = 0; task < 20; task++)
                        scope.spawn([&, task, held] {
                            ran++;
                            if (task % 5 == 0)
                                throw on_order("one of four");
                        });
                });
            });
            CHECK(ran == 20);
            pool.scope([&](const nodewise::scope &scope) {
                scope.cancel();
                for (int task = 0; task < 20; task++)
                    scope.spawn([held] { CHECK(false); });
                CHECK(scope.is_cancelled());
            });
        }
    });
}

int fibonacci(const nodewise::pool &pool, int n)
{
    if (n < 2)
        return n;
    auto [a, b] = pool.join([&] { return fibonacci(pool, n - 1); }, [&] { return fibonacci(pool, n - 2); });
    return a + b;
}

void loops_reach_every_number(const nodewise::pool &pool, int turns)
{
    CHECK(fibonacci(pool, 15) == 610);
    on_threads(2, [&](int) {
        for (int i = 0; i < turns; i++) {
            std::vector<int> seen(1000);
            pool.parallel_for(0, seen.size(), [&](std::size_t number) { seen[number]++; });
            for (int times : seen)
                CHECK(times == 1);
            auto text = pool.parallel_reduce(
                0, 300, std::string(), [](std::string word, std::size_t number) { return word + char('a' + number % 26); },
                [](std::string left, std::string right) { return left + right; });
            for (std::size_t number = 0; number < 300; number++)
                CHECK(text[number] == char('a' + number % 26));
            CHECK(thrown<on_order>([&] {
                      pool.parallel_for(0, 1000, [](std::size_t number) {
                          if (number == 500)
                              throw on_order("at 500");
                      });
                  }).what() == std::string("at 500"));
            thrown<on_order>([&] {
                pool.parallel_reduce(
                    0, 1000, std::string("long enough to be on the heap, and lost if it were not freed"),
                    [](std::string word, std::size_t number) {
                        if (number == 999)
                            throw on_order("at the end");
                        return word;
                    },
                    [](std::string left, std::string) { return left; });
            });
            thrown<on_order>([&] { pool.join([] {}, [] { throw on_order("second"); }); });
        }
    });
    CHECK(pool.parallel_reduce(5, 5, 42, [](int, std::size_t) { return 0; }, [](int, int) { return 0; }) == 42);
}

void loops_stop_when_told_to(const nodewise::pool &pool, int turns)
{
    for (int i = 0; i < turns; i++) {
        std::atomic<std::size_t> reached = 0;
        CHECK(!pool.try_parallel_for(0, 1'000'000, [&](std::size_t number) {
            reached++;
            return number != 1000;
        }));
        CHECK(reached < 1'000'000);
        CHECK(pool.try_parallel_for(0, 1000, [&](std::size_t) { return true; }));
        std::atomic<std::size_t> least = 1'000'000;
        pool.parallel_for_parts(
            0, 100'000, [&](std::size_t from, std::size_t to) { least = std::min(least.load(), to - from); }, 20'000);
        CHECK(least >= 20'000);
        CHECK(pool.parallel_reduce(0, 10, 0L, [](long sum, std::size_t number) { return sum + long(number); }, std::plus<>(), 100) == 45);
    }
}

std::size_t mixed(std::size_t i)
{
    return i * 0x9e3779b97f4a7c15 >> 20;
}

// `of` makes an element of a number.
template <class Of>
void all_is_sorted(const nodewise::pool &pool, Of of)
{
    for (std::size_t size : {0u, 1u, 2u, 5000u, 40'000u, 100'001u})
        for (std::size_t values : {1u, 2u, 10u, 1'000'000'000u}) {
            std::vector<decltype(of(0))> ours;
            for (std::size_t i = 0; i < size; i++)
                ours.push_back(of(mixed(i) % values));
            auto theirs = ours;
            for (int again = 0; again < 2; again++) {
                std::sort(theirs.begin(), theirs.end());
                pool.parallel_sort(ours.begin(), ours.end());
                CHECK(ours == theirs);
            }
            std::reverse(theirs.begin(), theirs.end());
            pool.parallel_sort(ours.begin(), ours.end(), std::greater<>());
            CHECK(ours == theirs);
        }
}

void sums_are_of_all_before(const nodewise::pool &pool)
{
    for (std::size_t size : {0u, 1u, 2u, 5000u, 100'001u}) {
        std::vector<std::size_t> numbers, ours(size), theirs(size);
        for (std::size_t i = 0; i < size; i++)
            numbers.push_back(mixed(i) % 1000);
        std::partial_sum(numbers.begin(), numbers.end(), theirs.begin());
        pool.parallel_inclusive_scan(numbers.begin(), numbers.end(), ours.begin());
        CHECK(ours == theirs);
        std::size_t all = pool.parallel_exclusive_scan(numbers.begin(), numbers.end(), numbers.begin(), std::size_t(5));
        CHECK(all == (size == 0 ? 0 : theirs.back()) + 5);
        for (std::size_t i = 0; i < size; i++)
            CHECK(numbers[i] == (i == 0 ? 0 : theirs[i - 1]) + 5);
        std::vector<std::string> words;
        for (std::size_t i = 0; i < size && i < 5000; i++)
            words.push_back(std::string(1, char('a' + i % 26)));
        auto last = [](const std::string &left, const std::string &right) {
            std::string both = left + right;
            return both.size() > 3 ? both.substr(both.size() - 3) : both;
        };
        auto expected = words;
        std::partial_sum(words.begin(), words.end(), expected.begin(), last);
        pool.parallel_inclusive_scan(words.begin(), words.end(), words.begin(), last);
        CHECK(words == expected);
    }
}

void sorting_and_scanning(const nodewise::pool &pool)
{
    for (const nodewise::pool *on : {&pool, (const nodewise::pool *)nullptr}) {
        std::optional<nodewise::pool> three;
        if (!on)
            on = &three.emplace(nodewise::pool_options().workers(3));
        all_is_sorted(*on, [](std::size_t number) { return number; });
        all_is_sorted(*on, [](std::size_t number) { return double(number) / 3 - 1e8; });
        all_is_sorted(*on, [](std::size_t number) { return float(number) - 1e3f; });
        all_is_sorted(*on, [](std::size_t number) { return (long long)(number) - 1000; });
        all_is_sorted(*on, [](std::size_t number) { return (unsigned short)(number); });
        all_is_sorted(*on, [](std::size_t number) { return (signed char)(number); });
        all_is_sorted(*on, [](std::size_t number) { return std::pair(int(number % 3), int(number)); });
        all_is_sorted(*on, [](std::size_t number) { return std::to_string(number); });
        sums_are_of_all_before(*on);
    }
    std::vector<int> numbers(100'000);
    std::iota(numbers.rbegin(), numbers.rend(), 0);
    std::atomic<int> comparisons = 0;
    thrown<on_order>([&] {
        pool.parallel_sort(numbers.begin(), numbers.end(), [&](int left, int right) {
            if (comparisons++ == 300'000)
                throw on_order("a comparison");
            return left < right;
        });
    });
    // Whatever std's sort held aside: they can be sorted again.
    pool.parallel_sort(numbers.begin(), numbers.end());
    CHECK(std::is_sorted(numbers.begin(), numbers.end()));
}

// The value counts updates, twice; whoever has seen a count sees no smaller one.
void replicated_values_are_whole_and_never_older(int turns)
{
    struct value {
        counted held;
        std::map<int, long> halves = {{1, 0}, {2, 0}};
    };
    nodewise::replicated<value> copies{value()};
    std::atomic<long> seen = 0;
    on_threads(4, [&](int thread) {
        for (int i = 0; i < turns; i++) {
            if (thread < 2) {
                long mine = copies.update([](value &value) {
                    value.halves[1]++;
                    return ++value.halves[2];
                });
                CHECK(copies.read()->halves.at(1) >= mine);
                seen = std::max(seen.load(), mine);
            } else {
                long least = seen;
                auto value = copies.read();
                CHECK(value->halves.at(1) == value->halves.at(2) && value->halves.at(1) >= least);
            }
        }
    });
    thrown<on_order>([&] {
        copies.update([](value &value) {
            value.halves[1] = -1;
            throw on_order("half done");
        });
    });
    CHECK(copies.read()->halves.at(1) == 2 * turns);
    value other;
    other.halves[1] = 7;
    copies.set(other);
    CHECK((*copies.read()).halves.at(1) == 7);
    nodewise::replicated<int> plain(3);
    CHECK(plain.update([](int &number) { return number++; }) == 3 && *plain.read() == 4);
    auto doubled = [](int &number) -> int & { return number *= 2; };
    static_assert(std::is_same_v<decltype(plain.update(doubled)), int>, "nothing refers to what may change again");
    CHECK(plain.update(doubled) == 8);

    struct stubborn {
        stubborn() = default;
        stubborn(const stubborn &) { throw on_order("not copied"); }
    };
    thrown<on_order>([] { nodewise::replicated<stubborn> never{stubborn()}; });
}

// Each operation adds 1 to both halves, and its response is its place among all.
void operations_are_done_once_to_every_copy(int turns)
{
    struct value {
        counted held;
        std::map<int, long> halves = {{1, 0}, {2, 0}};
    };
    auto copies = nodewise::operated<long>(value(), [](value &value, const long &added) {
        value.halves[1] += added;
        return value.halves[2] += added;
    });
    std::atomic<long> seen = 0, sum = 0;
    on_threads(4, [&](int thread) {
        for (int i = 0; i < turns; i++) {
            long least = seen;
            if (thread < 3) {
                long mine = copies.update(1);
                CHECK(mine > least);
                sum += mine;
                seen = std::max(seen.load(), mine);
            } else {
                auto value = copies.read();
                CHECK(value->halves.at(1) == value->halves.at(2) && value->halves.at(1) >= least);
            }
        }
    });
    long all = 3L * turns;
    CHECK(copies.read()->halves.at(1) == all && sum == all * (all + 1) / 2);
    auto silent = nodewise::operated<int>(std::string("ab"), [](std::string &text, int i) { text += char('a' + i); });
    silent.update(2);
    auto moved = std::move(silent);
    CHECK(*moved.read() == "abc");
}

struct alignas(1 << 16) wide {
    char bytes[1 << 16];
};

template <class T>
bool is_aligned(const T *elements)
{
    return reinterpret_cast<std::uintptr_t>(elements) % alignof(T) == 0;
}

void elements_are_aligned_above_a_page()
{
    // New mappings lie side by side, so that these begin at several pages of such an element.
    std::vector<nodewise::node_vector<char>> between;
    for (std::size_t len = 1; len < 5; len++) {
        nodewise::node_vector<wide> array(len, nodewise::layout::interleaved());
        between.emplace_back(1, nodewise::layout::interleaved());
        nodewise::replicated_vector<wide> copies{std::vector<wide>(len)};
        between.emplace_back(1, nodewise::layout::interleaved());
        CHECK(is_aligned(array.data()) && is_aligned(copies.local()));
    }
}

void memory_is_where_it_should_be(const nodewise::pool &pool, int turns)
{
    nodewise::node_vector<std::uint32_t> numbers(100'000, nodewise::layout::interleaved(), 0, &pool);
    numbers.for_each_block(pool, [](const nodewise::block &block, std::uint32_t *values) {
        for (std::size_t i = block.begin; i < block.end; i++)
            values[i - block.begin] = static_cast<std::uint32_t>(i);
    });
    auto sum = [](const nodewise::block &block, const std::uint32_t *values) {
        return std::accumulate(values, values + (block.end - block.begin), std::uint64_t(0));
    };
    std::atomic<std::uint64_t> seen = 0;
    std::as_const(numbers).for_each_block(pool, [&](const nodewise::block &block, auto *values) {
        static_assert(std::is_same_v<decltype(values), const std::uint32_t *>);
        seen += std::accumulate(values, values + (block.end - block.begin), std::uint64_t(0));
    });
    CHECK(seen == 50'000ULL * 99'999);
    nodewise::node_vector<double> halves(numbers.size(), nodewise::layout::blocked());
    std::vector<char> odd(numbers.size());
    numbers.for_each_block_with(halves, pool, [](const nodewise::block &block, std::uint32_t *whole, double *half) {
        for (std::size_t i = 0; i < block.end - block.begin; i++) {
            half[i] = whole[i] / 2.0;
            whole[i]++;
        }
    });
    std::as_const(numbers).for_each_block_with(odd, pool, [](const nodewise::block &block, const std::uint32_t *whole, char *is_odd) {
        for (std::size_t i = 0; i < block.end - block.begin; i++)
            is_odd[i] = char(whole[i] % 2);
    });
    for (std::size_t i = 0; i < numbers.size(); i++)
        CHECK(halves[i] == double(i) / 2 && numbers[i] == i + 1 && odd[i] == char((i + 1) % 2));
    std::vector<char> shorter(numbers.size() - 1);
    thrown<std::invalid_argument>([&] { numbers.for_each_block_with(shorter, pool, [](auto &&...) {}); });
    auto lower = [&](const nodewise::block &block) {
        CHECK(block.end - block.begin >= 5000);
        for (std::size_t i = block.begin; i < block.end; i++)
            numbers[i]--;
    };
    pool.for_each_block(numbers.blocks(), lower, 5000);
    auto number_of = [](const nodewise::block &block) { return block.end - block.begin; };
    CHECK(pool.reduce_blocks(numbers.blocks(), std::size_t(0), number_of, std::plus<>(), 1000) == numbers.size());
    CHECK(std::as_const(numbers).reduce_blocks(pool, std::uint64_t(1), sum, std::plus<>()) == 50'000ULL * 99'999 + 1);
    numbers.lay_out(nodewise::layout::blocked());
    std::uint32_t node = numbers.placement().pages_by_node.begin()->first;
    numbers.lay_out(0, 5000, nodewise::layout::on(node));
    numbers.lay_out(5000, 10'000, nodewise::layout::weighted({{node, 3}}));
    CHECK(numbers.placement().misplaced == 0);
    for (std::uint32_t home : numbers.page_nodes(0, 5000))
        CHECK(home == node);
    std::size_t next = 0;
    for (const auto &block : numbers.blocks())
        CHECK(std::exchange(next, block.end) == block.begin);
    std::uint32_t expected = 0;
    for (std::uint32_t number : numbers)
        CHECK(number == expected++);
    thrown<on_order>([&] {
        numbers.for_each_block(pool, [](const nodewise::block &, std::uint32_t *) { throw on_order("block"); });
    });
    CHECK(thrown<nodewise::error>([&] { numbers.lay_out(0, 100'001, nodewise::layout::blocked()); }).code() ==
          NODEWISE_RANGE);
    CHECK(nodewise::say(numbers.data(), 100'000 * sizeof(std::uint32_t), nodewise::hint::read_shared) ==
          nodewise::is_managed());
    nodewise::forget_hints(numbers.data(), 100'000 * sizeof(std::uint32_t));
    auto moved = std::move(numbers);
    CHECK(moved[99'999] == 99'999 && moved.size() == 100'000);
    CHECK(numbers.empty() && !numbers.data() && numbers.begin() == numbers.end());
    numbers = std::move(moved);
    CHECK(numbers[99'999] == 99'999 && moved.empty());
    CHECK(thrown<nodewise::error>([&] { (void)moved.blocks(); }).code() == NODEWISE_INVALID_ARGUMENT);

    nodewise::replicated_vector<int> primes({2, 3, 5});
    primes.update([](int *values) { values[0] = 7; });
    for (std::uint32_t near : primes.nodes())
        CHECK(primes.near(near)[0] == 7 && primes.local()[2] == 5 && primes.size() == 3);
    auto others = std::move(primes);
    CHECK(others.size() == 3 && others.local()[0] == 7 && primes.size() == 0);

    static_assert(!std::is_move_constructible_v<nodewise::arena>, "containers keep its address");

    nodewise::arena arena(nodewise::layout::on(node));
    on_threads(3, [&](int thread) {
        std::pmr::map<int, std::pmr::string> names(&arena);
        for (int i = 0; i < turns; i++) {
            names[i % 50] = std::pmr::string(std::size_t(10 + i % 300), char('a' + thread));
            names.erase((i * 7) % 50);
        }
        for (const auto &[key, name] : names)
            CHECK(name.find_first_not_of(char('a' + thread)) == std::string::npos);
    });
    CHECK(arena.reserved_bytes() > 0 && arena.placement().misplaced == 0);
    thrown<std::bad_alloc>([&] { (void)arena.allocate(std::size_t(1) << 60); });
}

void surroundings()
{
    nodewise::allowance all;
    std::uint32_t node = all.nodes().front();
    CHECK(!all.cpus(node).empty() && all.distance(node, node) == 10 && all.parallelism() > 0);
    CHECK(all.on_nodes({node}).nodes() == std::vector{node});
    CHECK(all.workers(1).size() == all.nodes().size());
    (void)all.has_memory(node);
    (void)all.cpu_quota();
    nodewise::refresh();
    CHECK(thrown<nodewise::error>([] { (void)nodewise::nodes_near("nothing0"); }).code() == NODEWISE_DEVICE);
    std::thread([&] {
        nodewise::bind_thread({node});
        CHECK(nodewise::current_node() == node);
        auto cpus = all.cpus(node);
        CHECK(std::find(cpus.begin(), cpus.end(), nodewise::current_cpu()) != cpus.end());
    }).join();
    nodewise::pool one(nodewise::pool_options().workers(1).nodes({node}).stack_bytes(1 << 20).allowance(all).confined(false).callers_work(true).by_cache(true));
    CHECK(one.workers() == 1 && one.nodes() == std::vector{node} && one.statistics().front().node == node);
}

// Objects in tasks: each is ended once where it is, whether its task runs, throws, is cancelled or cannot be.
void tasks_have_small_objects(const nodewise::pool &pool, int turns)
{
    int live = counted::live;
    for (int turn = 0; turn < turns; turn++) {
        std::atomic<long> sum = 0;
        auto spawn_all = [&](const nodewise::scope &scope) {
            for (std::uint32_t node : pool.nodes())
                for (long i = 0; i < 20; i++) {
                    scope.spawn([&sum, number = std::make_unique<long>(i), token = counted()] { sum += *number; });
                    scope.spawn_on(node, [&sum, number = std::make_shared<long>(i)] { sum += *number; });
                    scope.spawn([&sum, text = std::string("longer than a task has room for"), i] {
                        sum += text.size() == 31 ? i : 0;
                    });
                }
        };
        pool.scope(spawn_all);
        CHECK(sum == long(pool.nodes().size()) * 3 * 190);
        pool.scope([&](const nodewise::scope &scope) {
            scope.cancel();
            spawn_all(scope);
        });
        CHECK(sum == long(pool.nodes().size()) * 3 * 190 && counted::live == live);
        auto throws = [token = counted()] { throw on_order(token.live > 0 ? "with an object" : ""); };
        auto thrown_by = [&](auto spawn) {
            return std::string(thrown<on_order>([&] { pool.scope(spawn); }).what());
        };
        CHECK(thrown_by([&](const nodewise::scope &scope) { scope.spawn(throws); }) == "with an object");
        nodewise::error nowhere = thrown<nodewise::error>(
            [&] { pool.scope([&](const nodewise::scope &scope) { scope.spawn_on(1000, throws); }); });
        CHECK(nowhere.code() == NODEWISE_NO_WORKERS && counted::live == live + 1);
    }
    CHECK(counted::live == live);
}

// The lock is held by one that waits for its own tasks. Without isolation it might begin another that wants
// the lock.
void isolated_waits_take_no_other_tasks(int turns)
{
    nodewise::pool pool(nodewise::pool_options().workers(2));
    std::mutex lock;
    long raised = 0;
    auto raise = [&] {
        std::lock_guard<std::mutex> held(lock);
        raised += pool.isolate([&] {
            std::atomic<long> sum = 0;
            pool.parallel_for(0, 10, [&](std::size_t number) {
                std::this_thread::yield();
                sum += long(number);
            });
            return sum.load();
        });
    };
    for (int turn = 0; turn < turns; turn++)
        pool.scope([&](const nodewise::scope &scope) {
            for (int i = 0; i < 10; i++)
                scope.spawn(raise);
        });
    CHECK(raised == turns * 450L);
    CHECK(thrown<on_order>([&] { pool.isolate([] { throw on_order("isolated"); }); }).what() ==
          std::string("isolated"));
    int number = 5;
    CHECK(&pool.isolate([&]() -> int & { return number; }) == &number);
}

// As the library's own call finds it.
bool index_is_the_librarys(const nodewise::pool &pool)
{
    std::size_t index = 0;
    CHECK(nodewise_pool_worker_index(pool.get(), &index) == NODEWISE_OK);
    return pool.worker_index().value_or(NODEWISE_NO_INDEX) == index;
}

void indices_are_those_of_the_pool_that_is_asked(const nodewise::pool &pool)
{
    nodewise::pool others(nodewise::pool_options().workers(2).callers_work(true));
    auto in_both = [&] {
        CHECK(index_is_the_librarys(pool) && index_is_the_librarys(others));
        return bool(pool.worker_index()) + 2 * bool(others.worker_index());
    };
    CHECK(in_both() == 0);
    CHECK(pool.spawn(in_both).join() == 1);
    CHECK(others.spawn(in_both).join() == 2);
    // A thread that works along has an index until the call returns.
    std::atomic<int> seen = 0;
    others.parallel_for(0, 1000, [&](std::size_t) { seen += in_both() == 2; });
    CHECK(seen == 1000 && in_both() == 0);
    pool.spawn([&] {
            others.parallel_for(0, 1000, [&](std::size_t) { seen += in_both() == 2; });
            CHECK(in_both() == 1);
        })
        .join();
    CHECK(seen == 2000);
    nodewise::pool moved = std::move(others);
    CHECK(moved.spawn([&] { return moved.worker_index() && !others.worker_index(); }).join());
}

// Also from several threads at a time, on top of tasks that wait, and from threads that do not work for the
// pool.
void values_of_workers_sum_up_to_the_whole(const nodewise::pool &pool, int turns)
{
    CHECK(!pool.worker_index() && pool.worker_indices() >= pool.workers());
    std::atomic<std::size_t> made = 0;
    nodewise::per_worker<long> sums(pool, [&] { return made++, 0L; });
    auto add = [&](std::size_t number) { sums.with([&](long &sum) { sum += long(number); }); };
    on_threads(3, [&](int) {
        for (int turn = 0; turn < turns; turn++)
            pool.parallel_for(0, 100, [&](std::size_t number) {
                CHECK(*pool.worker_index() < pool.worker_indices());
                sums.with([&](long &sum) {
                    pool.join([&] { add(number); }, [&] { add(1); });
                    sum++;
                });
            });
        add(1);
    });
    CHECK(thrown<on_order>([&] { sums.with([](long &) { throw on_order("keeps its value"); }); }).what() ==
          std::string("keeps its value"));
    long whole = 0;
    std::size_t values = 0;
    sums.for_each([&](long &sum) { whole += sum, values++; });
    CHECK(whole == 3 * (turns * (99L * 50 + 200) + 1) && values == made);
}

// The canary: a race that no sanitizer may miss.
void race(const nodewise::pool &pool)
{
    int raced = 0;
    std::thread other([&] { raced++; });
    pool.spawn([&] { raced++; }).join();
    other.join();
    std::printf("%d\n", raced);
}

} // namespace

// A pool's end, in each way of waiting for tasks, from outside and in a task. All that was spawned ends, and
// the call that waits returns.
void tasks_delete_their_pool(bool callers_work, int turns)
{
    auto made = [&] { return new nodewise::pool(nodewise::pool_options().workers(3).callers_work(callers_work)); };
    auto leave = [](nodewise::pool *pool, std::atomic<int> &done) {
        pool->spawn([&] { done++; });
        pool->scope([&](const nodewise::scope &scope) {
            for (int i = 0; i < 20; i++)
                scope.spawn([&, i] {
                    if (i == 7)
                        delete pool;
                    done++;
                });
        });
        done++;
    };
    for (int i = 0; i < turns; i++) {
        std::atomic<int> done = 0;
        leave(made(), done);
        CHECK(done == 22);
        auto *pool = made();
        pool->parallel_for(0, 1000, [&](std::size_t number) {
            if (number == 500)
                delete pool;
        });
        pool = made();
        pool->join([&] { delete pool; }, [&] { done++; });
        CHECK(done == 23);
        pool = made();
        nodewise::node_vector<char> array(1 << 16, nodewise::layout::interleaved());
        std::atomic<bool> deleted = false;
        array.for_each_block(*pool, [&](const nodewise::block &, char *) {
            if (!deleted.exchange(true))
                delete pool;
        });
        CHECK(deleted);
        pool = made();
        auto task = pool->spawn([&] { leave(pool, done); });
        task.join();
        // Inside nobody waits for what is no task of the scope.
        while (done < 45)
            std::this_thread::yield();
        pool = made();
        pool->spawn([&, pool] { delete pool; }).join();
    }
}

int main(int argc, char **argv)
{
    if (argc > 1 && argv[1] == std::string("race")) {
        race(nodewise::pool());
        return 0;
    }
    int turns = argc > 1 ? std::atoi(argv[1]) : 20;
    surroundings();
    counters_lose_nothing(turns * 100);
    {
        nodewise::pool pool;
        tasks_return_and_throw(pool, turns);
        scopes_end_what_they_began(pool, turns);
        loops_reach_every_number(pool, turns);
        loops_stop_when_told_to(pool, turns);
        tasks_have_small_objects(pool, turns);
        indices_are_those_of_the_pool_that_is_asked(pool);
        values_of_workers_sum_up_to_the_whole(pool, turns);
        sorting_and_scanning(pool);
        memory_is_where_it_should_be(pool, turns * 10);
    }
    isolated_waits_take_no_other_tasks(turns);
    elements_are_aligned_above_a_page();
    tasks_delete_their_pool(true, turns);
    tasks_delete_their_pool(false, turns);
    replicated_values_are_whole_and_never_older(turns * 10);
    operations_are_done_once_to_every_copy(turns * 10);
    CHECK(counted::live == 0);
    return 0;
}
