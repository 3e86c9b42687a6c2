// A C++ library's part in compare.rs, which builds it with ONETBB, OPENMP or NODEWISE defined and starts it.
// It takes the number of workers. Then it takes lines of a contest's name and a number of operations, with a
// tab between. It does them, and answers with the nanoseconds that they took all together, or with -1 for a
// contest that it does not know.
#if defined ONETBB
#include <oneapi/tbb.h>
#elif defined OPENMP
#include <omp.h>
#elif defined NODEWISE
#include <nodewise.hpp>
#endif

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <iostream>
#include <map>
#include <mutex>
#include <numeric>
#include <semaphore.h>
#include <string>
#include <thread>
#include <vector>

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

template <class Body>
std::int64_t taken_ns(Body &&body)
{
    auto begin = steady_clock::now();
    body();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(steady_clock::now() - begin).count();
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

// A sparse matrix in compressed rows, as compare.rs has it: the Laplacian of a grid, with numbers of the rows
// instead of ones.
struct matrix {
    std::vector<std::size_t> begins;
    std::vector<std::uint32_t> columns;
    std::vector<double> values;

    explicit matrix(std::size_t rows)
    {
        std::ptrdiff_t side = 1000, n = std::ptrdiff_t(rows);
        begins.push_back(0);
        for (std::ptrdiff_t row = 0; row < n; row++) {
            for (std::ptrdiff_t column : {row - side, row - 1, row, row + 1, row + side})
                if (column >= 0 && column < n) {
                    columns.push_back(std::uint32_t(column));
                    values.push_back(double(row % 7));
                }
            begins.push_back(columns.size());
        }
    }

    double of_row(std::size_t row, const double *x) const
    {
        double sum = 0;
        for (std::size_t i = begins[row]; i < begins[row + 1]; i++)
            sum += values[i] * x[columns[i]];
        return sum;
    }
};

constexpr unsigned cut_off = 15;
// As compare.rs has them.
constexpr std::size_t searched = 10'000'000, sought = 10'000, passes = 10, service = 1000;

// Recursion that no compiler can unroll: gcc would to some depth, and clang and rustc not.
struct recursion {
    std::uint64_t (*call)(recursion, unsigned);
};

std::uint64_t fibonacci_by(recursion again, unsigned n)
{
    return n < 2 ? n : again.call(again, n - 1) + again.call(again, n - 2);
}

std::uint64_t fibonacci_alone(unsigned n)
{
    recursion again{fibonacci_by};
    asm volatile("" : "+r"(again.call));
    return again.call(again, n);
}

// As compare.rs has it: where the elements that are not smaller than the middle one begin.
std::size_t partition(std::uint64_t *elements, std::size_t size)
{
    std::uint64_t pivot = elements[size / 2];
    std::size_t low = 0, high = size - 1;
    for (;; low++, high--) {
        while (elements[low] < pivot)
            low++;
        while (elements[high] > pivot)
            high--;
        if (low >= high)
            return high + 1;
        std::swap(elements[low], elements[high]);
    }
}

void insert(std::uint64_t *elements, std::size_t size)
{
    for (std::size_t i = 1; i < size; i++) {
        std::uint64_t element = elements[i];
        std::size_t place = i;
        for (; place > 0 && elements[place - 1] > element; place--)
            elements[place] = elements[place - 1];
        elements[place] = element;
    }
}

constexpr std::size_t inserted = 24, sorted_alone = 2000;

void quicksort_alone(std::uint64_t *elements, std::size_t size)
{
    while (size > inserted) {
        std::size_t middle = partition(elements, size);
        quicksort_alone(elements, middle);
        elements += middle;
        size -= middle;
    }
    insert(elements, size);
}

std::vector<std::uint64_t> mixed(std::size_t size)
{
    std::vector<std::uint64_t> numbers(size);
    for (std::size_t i = 0; i < size; i++)
        numbers[i] = (i + 1) * 0x9e3779b97f4a7c15 >> 7;
    return numbers;
}

// Each library: `inside` runs a body where loops and tasks may be made; the rest is for such bodies.
#if defined ONETBB

using range = tbb::blocked_range<std::size_t>;

class library {
public:
    // Threads besides this one. They are as many as the others' pools have, where they must be woken, and one
    // less where this thread works, too.
    explicit library(int workers)
        : threads_(tbb::global_control::max_allowed_parallelism, static_cast<std::size_t>(workers) + 1), inside_(workers),
          outside_(workers, 0)
    {
    }

    template <class Body>
    void inside(Body &&body)
    {
        inside_.execute(body);
    }

    template <class Task>
    void tasks(std::size_t count, Task task)
    {
        tbb::task_group group;
        for (std::size_t i = 0; i < count; i++)
            group.run(task);
        group.wait();
    }

    template <class Body>
    void each(std::size_t size, Body body)
    {
        tbb::parallel_for(range(0, size), [&](const range &part) {
            for (std::size_t i = part.begin(); i < part.end(); i++)
                body(i);
        });
    }

    template <class T, class Term>
    T sum(std::size_t size, Term term)
    {
        return tbb::parallel_reduce(
            range(0, size), T(0),
            [&](const range &part, T all) {
                for (std::size_t i = part.begin(); i < part.end(); i++)
                    all += term(i);
                return all;
            },
            std::plus<>());
    }

    template <class A, class B>
    void both(A a, B b)
    {
        tbb::parallel_invoke(a, b);
    }

    void sort(std::vector<std::uint64_t> &numbers) { tbb::parallel_sort(numbers.begin(), numbers.end()); }

    void scan(std::vector<std::uint64_t> &numbers)
    {
        tbb::parallel_scan(
            range(0, numbers.size()), std::uint64_t(0),
            [&](const range &part, std::uint64_t all, bool is_final) {
                for (std::size_t i = part.begin(); i < part.end(); i++) {
                    all += numbers[i];
                    if (is_final)
                        numbers[i] = all;
                }
                return all;
            },
            std::plus<>());
    }

    template <class Task>
    bool from_outside(Task task)
    {
        outside_.enqueue(task);
        return true;
    }

    int index() { return tbb::this_task_arena::current_thread_index(); }

    std::size_t sum_by_thread(std::size_t size)
    {
        tbb::enumerable_thread_specific<std::size_t> sums(std::size_t(0));
        each(size, [&](std::size_t i) { sums.local() += i; });
        return sums.combine(std::plus<>());
    }

    template <class Body>
    void of_grain(std::size_t size, std::size_t grain, Body body)
    {
        auto of_part = [&](const range &part) {
            for (std::size_t i = part.begin(); i < part.end(); i++)
                body(i);
        };
        tbb::parallel_for(range(0, size, grain), of_part, tbb::simple_partitioner());
    }

    // Until the body returns false.
    template <class Body>
    void breaking_off(std::size_t size, Body body)
    {
        tbb::task_group_context context;
        auto of_part = [&](const range &part) {
            for (std::size_t i = part.begin(); i < part.end(); i++)
                if (!body(i)) {
                    context.cancel_group_execution();
                    return;
                }
        };
        tbb::parallel_for(range(0, size), of_part, context);
    }

    template <class Body>
    void isolated(Body body)
    {
        tbb::this_task_arena::isolate(body);
    }

    // Loops whose parts stay on their threads from one to the next.
    template <class Body>
    void again(std::size_t times, std::size_t size, Body body)
    {
        static tbb::affinity_partitioner partitioner;
        for (std::size_t time = 0; time < times; time++)
            tbb::parallel_for(
                range(0, size),
                [&](const range &part) {
                    for (std::size_t i = part.begin(); i < part.end(); i++)
                        body(i);
                },
                partitioner);
    }

private:
    tbb::global_control threads_;
    tbb::task_arena inside_, outside_;
};

#elif defined OPENMP

class library {
public:
    explicit library(int workers) { omp_set_num_threads(workers); }

    template <class Body>
    void inside(Body &&body)
    {
        body();
    }

    template <class Task>
    void tasks(std::size_t count, Task task)
    {
#pragma omp parallel
#pragma omp single
        for (std::size_t i = 0; i < count; i++) {
#pragma omp task firstprivate(task)
            task();
        }
    }

    template <class Body>
    void each(std::size_t size, Body body)
    {
#pragma omp parallel for schedule(static)
        for (std::size_t i = 0; i < size; i++)
            body(i);
    }

    template <class T, class Term>
    T sum(std::size_t size, Term term)
    {
        T all = 0;
#pragma omp parallel for schedule(static) reduction(+ : all)
        for (std::size_t i = 0; i < size; i++)
            all += term(i);
        return all;
    }

    // Within `tree`.
    template <class A, class B>
    void both(A a, B b)
    {
#pragma omp task shared(a)
        a();
        b();
#pragma omp taskwait
    }

    template <class Body>
    void tree(Body body)
    {
#pragma omp parallel
#pragma omp single
        body();
    }

    void scan(std::vector<std::uint64_t> &numbers)
    {
        std::uint64_t all = 0;
#pragma omp parallel for reduction(inscan, + : all)
        for (std::size_t i = 0; i < numbers.size(); i++) {
            all += numbers[i];
#pragma omp scan inclusive(all)
            numbers[i] = all;
        }
    }

    int index() { return omp_get_thread_num(); }

    std::size_t sum_by_thread(std::size_t size)
    {
        struct alignas(128) padded {
            std::size_t sum = 0;
        };
        std::vector<padded> sums(static_cast<std::size_t>(omp_get_max_threads()));
        each(size, [&](std::size_t i) { sums[std::size_t(omp_get_thread_num())].sum += i; });
        std::size_t all = 0;
        for (const padded &own : sums)
            all += own.sum;
        return all;
    }

    template <class Body>
    void of_grain(std::size_t size, std::size_t grain, Body body)
    {
#pragma omp parallel for schedule(dynamic, grain)
        for (std::size_t i = 0; i < size; i++)
            body(i);
    }

    template <class Body>
    void again(std::size_t times, std::size_t size, Body body)
    {
        for (std::size_t time = 0; time < times; time++)
            each(size, body);
    }
};

#elif defined NODEWISE

class library {
public:
    explicit library(int workers) : pool_(nodewise::pool_options().workers(static_cast<std::size_t>(workers))) {}

    template <class Body>
    void inside(Body &&body)
    {
        body();
    }

    template <class Task>
    void tasks(std::size_t count, Task task)
    {
        pool_.scope([&](const nodewise::scope &scope) {
            for (std::size_t i = 0; i < count; i++)
                scope.spawn(task);
        });
    }

    template <class Body>
    void each(std::size_t size, Body body)
    {
        pool_.parallel_for(0, size, body);
    }

    template <class T, class Term>
    T sum(std::size_t size, Term term)
    {
        return pool_.parallel_reduce(
            0, size, T(0), [&](T all, std::size_t i) { return all + term(i); }, std::plus<>());
    }

    template <class A, class B>
    void both(A a, B b)
    {
        pool_.join(a, b);
    }

    template <class Body>
    void tree(Body body)
    {
        pool_.scope([&](const nodewise::scope &) { body(); });
    }

    void sort(std::vector<std::uint64_t> &numbers) { pool_.parallel_sort(numbers.begin(), numbers.end()); }

    void scan(std::vector<std::uint64_t> &numbers)
    {
        pool_.parallel_inclusive_scan(numbers.begin(), numbers.end(), numbers.begin());
    }

    template <class Task>
    bool from_outside(Task task)
    {
        pool_.spawn(task);
        return true;
    }

    std::size_t index() { return *pool_.worker_index(); }

    std::size_t sum_by_thread(std::size_t size)
    {
        nodewise::per_worker<std::size_t> sums(pool_);
        each(size, [&](std::size_t i) { sums.with([&](std::size_t &sum) { sum += i; }); });
        std::size_t all = 0;
        sums.for_each([&](std::size_t sum) { all += sum; });
        return all;
    }

    template <class Body>
    void of_grain(std::size_t size, std::size_t grain, Body body)
    {
        pool_.parallel_for(0, size, body, grain);
    }

    template <class Body>
    void breaking_off(std::size_t size, Body body)
    {
        pool_.try_parallel_for(0, size, body);
    }

    template <class Body>
    void isolated(Body body)
    {
        pool_.isolate(body);
    }

    const nodewise::pool &pool() const { return pool_; }

private:
    nodewise::pool pool_;
};

#endif

std::uint64_t fibonacci(library &on, unsigned n, unsigned alone)
{
    if (n < 2)
        return n;
    if (n < alone)
        return fibonacci_alone(n);
    std::uint64_t a = 0, b = 0;
    on.both([&] { a = fibonacci(on, n - 1, alone); }, [&] { b = fibonacci(on, n - 2, alone); });
    return a + b;
}

void quicksort(library &on, std::uint64_t *elements, std::size_t size)
{
    if (size <= sorted_alone)
        return quicksort_alone(elements, size);
    std::size_t middle = partition(elements, size);
    on.both([&] { quicksort(on, elements, middle); }, [&] { quicksort(on, elements + middle, size - middle); });
}

// A contest's turn, given how many operations.
using turn = std::function<std::int64_t(std::size_t)>;

template <class T>
T &once(std::size_t size)
{
    static T made(size);
    return made;
}

} // namespace

int main(int argc, char **argv)
{
    int workers = argc > 1 ? std::atoi(argv[1]) : 2;
    library on(workers);
    std::uint64_t rounds = rounds_a_microsecond();

    // The body is made once, and timed where loops and tasks may be made.
    auto timed = [&](auto body) {
        return [&on, body](std::size_t operations) { return taken_ns([&] { on.inside([&] { body(operations); }); }); };
    };
    auto tree = [&](auto body) {
        return timed([&, body](std::size_t operations) {
#if defined ONETBB
            body(operations);
#else
            on.tree([&] { body(operations); });
#endif
        });
    };
    auto tasks = [&](std::uint64_t work) {
        return timed([&on, work](std::size_t count) { on.tasks(count, [work] { microsecond(work); }); });
    };
    auto loop = timed([&](std::size_t size) { on.each(size, [](std::size_t i) { use_up(i); }); });
    auto reduce = timed([&](std::size_t size) { use_up(on.sum<std::uint64_t>(size, [](std::size_t i) { return square(i); })); });

    std::map<std::string, turn> contests = {
        {"empty tasks", tasks(0)},
        {"1 us tasks", tasks(rounds)},
        {"parallel_for, 1e6", loop},
        {"parallel_for, 1e8", loop},
        {"reduce, 1e6", reduce},
        {"reduce, 1e8", reduce},
        {"nested joins", tree([&](std::size_t) { use_up(fibonacci(on, 22, 0)); })},
        {"fib with cut-off", tree([&](std::size_t) { use_up(fibonacci(on, 32, cut_off)); })},
        {"scan, 1e6", [&](std::size_t size) {
             auto numbers = mixed(size);
             return timed([&](std::size_t) { on.scan(numbers); })(size);
         }},
        {"quicksort, 1e6", [&](std::size_t size) {
             auto numbers = mixed(size);
             return tree([&](std::size_t) { quicksort(on, numbers.data(), size); })(size);
         }},
        {"dot, 1e6", [&](std::size_t size) {
             static std::vector<double> a(size, 0.5), b(size, 2);
             const double *x = a.data(), *y = b.data();
             return timed([&](std::size_t) { use_up(on.sum<double>(size, [=](std::size_t i) { return x[i] * y[i]; })); })(size);
         }},
    };
#if defined NODEWISE
    const nodewise::pool &pool = on.pool();
    contests["dot of blocks, 1e6"] = [&](std::size_t size) {
        static nodewise::node_vector<double> a(size, nodewise::layout::blocked()), b(size, nodewise::layout::blocked());
        a[0] = b[0] = 1;
        return taken_ns([&] {
            auto part = [](const nodewise::block &block, const double *x) {
                const double *y = b.data() + block.begin;
                return std::inner_product(x, x + (block.end - block.begin), y, 0.0);
            };
            use_up(std::as_const(a).reduce_blocks(pool, 0.0, part, std::plus<>()));
        });
    };
    contests["SpMV, 1e6 rows"] = [&](std::size_t rows) {
        static nodewise::node_vector<double> x(rows, nodewise::layout::blocked()), y(rows, nodewise::layout::blocked());
        const matrix &a = once<matrix>(rows);
        return taken_ns([&] {
            y.for_each_block(pool, [&](const nodewise::block &block, double *to) {
                for (std::size_t row = block.begin; row < block.end; row++)
                    to[row - block.begin] = a.of_row(row, x.data());
            });
        });
    };
    auto over_blocks = [&](std::size_t times) {
        return [&pool, times](std::size_t operations) {
            std::size_t size = operations / times;
            static nodewise::node_vector<double> to(size, nodewise::layout::blocked()), from(size, nodewise::layout::blocked());
            return taken_ns([&] {
                for (std::size_t time = 0; time < times; time++)
                    to.for_each_block_with(from, pool, [](const nodewise::block &block, double *x, const double *y) {
                        for (std::size_t i = 0; i < block.end - block.begin; i++)
                            x[i] = x[i] * 0.5 + y[i];
                    });
            });
        };
    };
    contests["zipped blocks, 1e6"] = over_blocks(1);
    contests["passes over blocks"] = over_blocks(passes);
    nodewise::pool of_caches(nodewise::pool_options().workers(std::size_t(workers)).by_cache(true));
    contests["loops, by cache"] = [&](std::size_t) {
        return taken_ns([&] {
            of_caches.parallel_for(0, 100, [&](std::size_t) { of_caches.parallel_for(0, 1000, [](std::size_t i) { use_up(i); }); });
        });
    };
#else
    auto over_blocks = [&](std::size_t times) {
        return timed([&on, times](std::size_t operations) {
            std::size_t size = operations / times;
            static std::vector<double> to(size), from(size);
            double *x = to.data();
            const double *y = from.data();
            on.again(times, size, [=](std::size_t i) { x[i] = x[i] * 0.5 + y[i]; });
        });
    };
    contests["zipped blocks, 1e6"] = over_blocks(1);
    contests["passes over blocks"] = over_blocks(passes);
    contests["dot of blocks, 1e6"] = contests["dot, 1e6"];
    contests["SpMV, 1e6 rows"] = [&](std::size_t rows) {
        static std::vector<double> x(rows), y(rows);
        const matrix &a = once<matrix>(rows);
        return timed([&](std::size_t) { on.each(rows, [&](std::size_t row) { y[row] = a.of_row(row, x.data()); }); })(rows);
    };
#endif
    contests["worker index"] = tree([&](std::size_t calls) {
        for (std::size_t i = 0; i < calls; i++)
            use_up(on.index());
    });
    contests["per-worker sum, 1e6"] = timed([&](std::size_t size) { use_up(on.sum_by_thread(size)); });
    contests["grain of 1000, 1e6"] = timed([&](std::size_t size) { on.of_grain(size, 1000, [](std::size_t i) { use_up(i); }); });
#if !defined OPENMP
    contests["loop that breaks off"] = timed([&](std::size_t) {
        on.breaking_off(searched, [](std::size_t i) {
            use_up(i);
            return i != sought;
        });
    });
    contests["isolated loops"] = timed([&](std::size_t) {
        on.each(100, [&](std::size_t) { on.isolated([&] { on.each(1000, [](std::size_t i) { use_up(i); }); }); });
    });
    contests["loop waits for a user"] = [&](std::size_t) {
        return taken_ns([&] {
            std::mutex lock;
            std::condition_variable changed;
            std::size_t asked = 0, served = 0;
            bool over = false;
            std::thread user([&] {
                std::unique_lock<std::mutex> locked(lock);
                for (;;) {
                    changed.wait(locked, [&] { return over || asked > served; });
                    if (asked == served)
                        return;
                    locked.unlock();
                    on.each(service, [](std::size_t i) { use_up(i); });
                    locked.lock();
                    served++;
                    changed.notify_all();
                }
            });
            on.inside([&] {
                on.each(std::size_t(workers), [&](std::size_t) {
                    std::unique_lock<std::mutex> locked(lock);
                    std::size_t own = ++asked;
                    changed.notify_all();
                    changed.wait(locked, [&] { return served >= own; });
                });
            });
            {
                std::lock_guard<std::mutex> locked(lock);
                over = true;
            }
            changed.notify_all();
            user.join();
        });
    };
    contests["nested loops"] = timed([&](std::size_t) {
        on.each(100, [&](std::size_t) { on.each(1000, [](std::size_t i) { use_up(i); }); });
    });
#if defined ONETBB
    contests["loops, by cache"] = contests["nested loops"];
#endif
    contests["sort, 1e6"] = [&](std::size_t size) {
        auto numbers = mixed(size);
        return timed([&](std::size_t) { on.sort(numbers); })(size);
    };
    sem_t all_done;
    sem_init(&all_done, 0, 0);
    auto from_outside = [&](std::size_t count) {
        return taken_ns([&] {
            std::atomic<std::size_t> left = count;
            for (std::size_t i = 0; i < count; i++)
                on.from_outside([&] {
                    if (left.fetch_sub(1, std::memory_order_acq_rel) == 1)
                        sem_post(&all_done);
                });
            while (sem_wait(&all_done) != 0) {
            }
        });
    };
    contests["tasks from outside"] = from_outside;
    contests["wake-up and back"] = [&](std::size_t) {
        std::array<std::int64_t, 5> times;
        for (auto &time : times) {
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
            time = from_outside(1);
        }
        std::sort(times.begin(), times.end());
        return times[times.size() / 2];
    };
#endif
    // Nanoseconds of CPU time in a second.
    contests["idle CPU"] = [&](std::size_t) {
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

    std::string name, operations;
    while (std::getline(std::cin, name, '\t') && std::getline(std::cin, operations)) {
        auto contest = contests.find(name);
        bool known = contest != contests.end();
        std::cout << (known ? contest->second(std::strtoull(operations.c_str(), nullptr, 10)) : -1) << std::endl;
    }
    return 0;
}
