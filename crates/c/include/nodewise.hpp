// Nodewise for C++17: nodewise.h with owners for its handles, lambdas and exceptions. The wrapper is a header
// only. Programs link with libnodewise.
//
// nodewise.h documents each function, and the codes of its exceptions, at the function of the same name. Any
// thread may call any const member at any time. Other members want their object for themselves, as a standard
// container does. Nodes and CPUs have the kernel's numbers.
//
// Failures of the library are thrown as nodewise::error. An exception that leaves a task, a loop's body or
// another callback is carried to the thread that waits for it. It is thrown again there once all else has
// ended. If there are several, the first one is thrown. Exceptions of a task that nobody joins are lost.
#ifndef NODEWISE_HPP
#define NODEWISE_HPP

#include "nodewise.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>
#if __has_include(<memory_resource>)
#include <memory_resource>
#endif

namespace nodewise {

// A failure of the library, with its cause and a remedy in words.
class error : public std::runtime_error {
public:
    explicit error(nodewise_result code) : std::runtime_error(nodewise_error_message()), code_(code) {}

    // NODEWISE_...
    nodewise_result code() const noexcept { return code_; }

private:
    nodewise_result code_;
};

namespace detail {

inline void check(nodewise_result result)
{
    if (result != NODEWISE_OK)
        throw error(result);
}

template <class T, void (*free)(T *)>
struct freed {
    void operator()(T *handle) const noexcept { free(handle); }
};

template <class T, void (*free)(T *)>
using handle = std::unique_ptr<T, freed<T, free>>;

// All items that `fill(items, capacity, &count)` lists.
template <class T, class Fill>
std::vector<T> listed(Fill fill)
{
    std::vector<T> items(16);
    for (;;) {
        std::size_t count = 0;
        check(fill(items.data(), items.size(), &count));
        bool all = count <= items.size();
        items.resize(count);
        if (all)
            return items;
    }
}

// The first exception that leaves any of several callbacks.
class caught {
public:
    // Runs a callback's body, and returns 1 if it failed and 0 otherwise.
    template <class Body>
    int run(Body &&body) noexcept
    {
        try {
            body();
            return 0;
        } catch (...) {
            if (!taken_.test_and_set())
                first_ = std::current_exception();
            return 1;
        }
    }

    // Throws the failure, after all callbacks have ended.
    void check(nodewise_result result)
    {
        if (first_)
            std::rethrow_exception(std::exchange(first_, nullptr));
        detail::check(result);
    }

private:
    std::atomic_flag taken_ = ATOMIC_FLAG_INIT;
    std::exception_ptr first_;
};

// The result of a call, void included.
template <class T>
class returned {
public:
    template <class Body>
    void by(Body &&body)
    {
        value_.emplace(std::forward<Body>(body)());
    }
    bool is() const { return value_.has_value(); }
    T take() { return std::move(*value_); }

private:
    std::optional<T> value_;
};

// The referenced object is the callable's business.
template <class T>
class returned<T &> {
public:
    template <class Body>
    void by(Body &&body)
    {
        value_ = std::addressof(std::forward<Body>(body)());
    }
    bool is() const { return value_ != nullptr; }
    T &take() { return *value_; }

private:
    T *value_ = nullptr;
};

template <>
class returned<void> {
public:
    template <class Body>
    void by(Body &&body)
    {
        std::forward<Body>(body)();
        is_ = true;
    }
    bool is() const { return is_; }
    void take() {}

private:
    bool is_ = false;
};

// A pointer or a number that is null or 0 after it was moved from.
template <class T>
class moved {
public:
    moved(T value = T()) noexcept : value_(value) {}
    moved(moved &&other) noexcept : value_(std::exchange(other.value_, T())) {}
    moved &operator=(moved &&other) noexcept
    {
        value_ = std::exchange(other.value_, T());
        return *this;
    }
    operator T() const noexcept { return value_; }

private:
    T value_;
};

// The calling thread's index in the pool of this identity, without a call into the library.
inline std::size_t index_for(const void *identity) noexcept
{
    static thread_local const nodewise_seat *seat = nullptr;
    if (!seat)
        seat = nodewise_this_seat();
    return seat->pool == identity ? seat->index : NODEWISE_NO_INDEX;
}

// Whether the library may move a value byte by byte. It moves other values by their addresses.
template <class T>
inline constexpr bool plain =
    std::is_trivially_copyable_v<T> && std::is_copy_constructible_v<T> && alignof(T) <= 16;

// The object of a callback, on the waiter's stack or on the heap, at the address that comes with the call.
template <class T>
T &from(void *context)
{
    return *static_cast<T *>(context);
}

template <class T>
void delete_context(void *context)
{
    delete static_cast<T *>(context);
}

} // namespace detail

// The place of the calling thread

inline std::uint32_t current_node() noexcept { return nodewise_current_node(); }
inline std::uint32_t current_cpu() noexcept { return nodewise_current_cpu(); }
inline void refresh() { detail::check(nodewise_refresh()); }

inline std::vector<std::uint32_t> nodes_near(const std::string &device)
{
    return detail::listed<std::uint32_t>([&](std::uint32_t *nodes, std::size_t capacity, std::size_t *count) {
        return nodewise_nodes_near(device.c_str(), nodes, capacity, count);
    });
}

inline void bind_thread(const std::vector<std::uint32_t> &nodes)
{
    detail::check(nodewise_bind_thread(nodes.data(), nodes.size()));
}

// Nodes, CPUs and CPU time that the calling thread may use
class allowance {
public:
    allowance()
    {
        nodewise_allowance *made = nullptr;
        detail::check(nodewise_allowance_of_this_thread(&made));
        handle_.reset(made);
    }

    allowance on_nodes(const std::vector<std::uint32_t> &nodes) const
    {
        nodewise_allowance *made = nullptr;
        detail::check(nodewise_allowance_on_nodes(get(), nodes.data(), nodes.size(), &made));
        return allowance(made);
    }

    std::vector<std::uint32_t> nodes() const
    {
        return detail::listed<std::uint32_t>(
            [&](std::uint32_t *nodes, std::size_t capacity, std::size_t *count) {
                return nodewise_allowance_nodes(get(), nodes, capacity, count);
            });
    }

    std::vector<std::uint32_t> cpus(std::uint32_t node) const
    {
        return detail::listed<std::uint32_t>(
            [&](std::uint32_t *cpus, std::size_t capacity, std::size_t *count) {
                return nodewise_allowance_cpus(get(), node, cpus, capacity, count);
            });
    }

    bool has_memory(std::uint32_t node) const
    {
        bool memory = false;
        detail::check(nodewise_allowance_has_memory(get(), node, &memory));
        return memory;
    }

    std::uint32_t distance(std::uint32_t from, std::uint32_t to) const
    {
        std::uint32_t distance = 0;
        detail::check(nodewise_allowance_distance(get(), from, to, &distance));
        return distance;
    }

    // Microseconds of CPU time in each period, and the period, or none without a limit.
    std::optional<std::pair<std::chrono::microseconds, std::chrono::microseconds>> cpu_quota() const
    {
        std::uint64_t quota_us = 0, period_us = 0;
        detail::check(nodewise_allowance_cpu_quota(get(), &quota_us, &period_us));
        if (period_us == 0)
            return std::nullopt;
        return std::pair(std::chrono::microseconds(quota_us), std::chrono::microseconds(period_us));
    }

    std::size_t parallelism() const
    {
        std::size_t threads = 0;
        detail::check(nodewise_allowance_parallelism(get(), &threads));
        return threads;
    }

    std::vector<std::size_t> workers(std::size_t most = std::numeric_limits<std::size_t>::max()) const
    {
        return detail::listed<std::size_t>(
            [&](std::size_t *workers, std::size_t capacity, std::size_t *count) {
                return nodewise_allowance_workers(get(), most, workers, capacity, count);
            });
    }

    const nodewise_allowance *get() const noexcept { return handle_.get(); }

private:
    explicit allowance(nodewise_allowance *made) : handle_(made) {}

    detail::handle<nodewise_allowance, nodewise_allowance_free> handle_;
};

// A count to which all threads add and which few read
class counter {
public:
    counter()
    {
        nodewise_counter *made = nullptr;
        detail::check(nodewise_counter_new(&made));
        handle_.reset(made);
    }

    void add(std::uint64_t number) const { detail::check(nodewise_counter_add(get(), number)); }

    std::uint64_t approximate() const
    {
        std::uint64_t count = 0;
        detail::check(nodewise_counter_approximate(get(), &count));
        return count;
    }

    // The exact count, or none if additions kept coming.
    std::optional<std::uint64_t> exact() const
    {
        std::uint64_t count = 0;
        nodewise_result result = nodewise_counter_exact(get(), &count);
        if (result == NODEWISE_BUSY)
            return std::nullopt;
        detail::check(result);
        return count;
    }

    std::uint64_t on_node(std::uint32_t node) const
    {
        std::uint64_t count = 0;
        detail::check(nodewise_counter_on_node(get(), node, &count));
        return count;
    }

    const nodewise_counter *get() const noexcept { return handle_.get(); }

private:
    detail::handle<nodewise_counter, nodewise_counter_free> handle_;
};

// Tasks that were submitted and are not yet done, to wait for
class task_counter {
public:
    task_counter()
    {
        nodewise_task_counter *made = nullptr;
        detail::check(nodewise_task_counter_new(&made));
        handle_.reset(made);
    }

    void submit(std::uint64_t tasks = 1) const { detail::check(nodewise_task_counter_submit(get(), tasks)); }
    void done(std::uint64_t tasks = 1) const { detail::check(nodewise_task_counter_done(get(), tasks)); }
    void wait() const { detail::check(nodewise_task_counter_wait(get())); }

    // Whether all tasks were done in time.
    bool wait_for(std::chrono::nanoseconds timeout) const
    {
        bool all_done = false;
        auto timeout_ns = static_cast<std::uint64_t>(timeout.count() < 0 ? 0 : timeout.count());
        detail::check(nodewise_task_counter_wait_timeout(get(), timeout_ns, &all_done));
        return all_done;
    }

    std::uint64_t count() const
    {
        std::uint64_t count = 0;
        detail::check(nodewise_task_counter_count(get(), &count));
        return count;
    }

    const nodewise_task_counter *get() const noexcept { return handle_.get(); }

private:
    detail::handle<nodewise_task_counter, nodewise_task_counter_free> handle_;
};

// The settings of a pool: pool_options().workers(4).nodes({0, 2})
class pool_options {
public:
    pool_options()
    {
        nodewise_pool_options *made = nullptr;
        detail::check(nodewise_pool_options_new(&made));
        handle_.reset(made);
    }

    pool_options &workers(std::size_t most)
    {
        detail::check(nodewise_pool_options_workers(handle_.get(), most));
        return *this;
    }

    pool_options &nodes(const std::vector<std::uint32_t> &nodes)
    {
        detail::check(nodewise_pool_options_nodes(handle_.get(), nodes.data(), nodes.size()));
        return *this;
    }

    pool_options &stack_bytes(std::size_t bytes)
    {
        detail::check(nodewise_pool_options_stack_bytes(handle_.get(), bytes));
        return *this;
    }

    pool_options &allowance(const nodewise::allowance &allowance)
    {
        detail::check(nodewise_pool_options_allowance(handle_.get(), allowance.get()));
        return *this;
    }

    pool_options &confined(bool confined)
    {
        detail::check(nodewise_pool_options_confined(handle_.get(), confined));
        return *this;
    }

    pool_options &callers_work(bool work)
    {
        detail::check(nodewise_pool_options_callers_work(handle_.get(), work));
        return *this;
    }

    pool_options &by_cache(bool by_cache)
    {
        detail::check(nodewise_pool_options_by_cache(handle_.get(), by_cache));
        return *this;
    }

    const nodewise_pool_options *get() const noexcept { return handle_.get(); }

private:
    detail::handle<nodewise_pool_options, nodewise_pool_options_free> handle_;
};

// A task that was spawned. The task goes on by itself if its object ends.
template <class T>
class task {
public:
    // Waits until the task has ended, and returns its result or throws its exception. A task is joined once.
    T join()
    {
        auto handle = std::move(handle_);
        nodewise_result result = nodewise_task_wait(handle.get(), nullptr);
        if (!handle)
            throw error(result);
        outcome_->failure.check(result);
        return outcome_->result.take();
    }

    bool is_finished() const
    {
        bool finished = false;
        detail::check(nodewise_task_is_finished(handle_.get(), &finished));
        return finished;
    }

private:
    friend class pool;

    struct outcome {
        detail::returned<T> result;
        detail::caught failure;
    };

    detail::handle<nodewise_task, nodewise_task_free> handle_;
    // In the task.
    outcome *outcome_ = nullptr;
};

// Spawns tasks that may use variables in the frame of pool::scope. A scope is valid until that returns, and
// may be copied.
class scope {
public:
    // Spawns a task: a callable of nothing, or of a const scope &.
    template <class F>
    void spawn(F &&f) const
    {
        using context = spawned<std::decay_t<F>>;
        // A small context goes into the task.
        if constexpr (is_small<context> && std::is_trivially_copyable_v<context>) {
            context made{std::forward<F>(f), failure_};
            detail::check(nodewise_scope_spawn_copy(handle_, context::run, &made, sizeof(made)));
        } else if constexpr (is_small<context>) {
            spawn_moved(NODEWISE_NO_NODE, context{std::forward<F>(f), failure_});
        } else {
            auto *made = new context{std::forward<F>(f), failure_};
            detail::check(nodewise_scope_spawn(handle_, context::run, made, detail::delete_context<context>));
        }
    }

    // The same for a task that only workers of this node run.
    template <class F>
    void spawn_on(std::uint32_t node, F &&f) const
    {
        using context = spawned<std::decay_t<F>>;
        if constexpr (is_small<context>) {
            spawn_moved(node, context{std::forward<F>(f), failure_});
        } else {
            auto *made = new context{std::forward<F>(f), failure_};
            detail::check(
                nodewise_scope_spawn_on(handle_, node, context::run, made, detail::delete_context<context>));
        }
    }

    void cancel() const { detail::check(nodewise_scope_cancel(handle_)); }

    bool is_cancelled() const
    {
        bool cancelled = false;
        detail::check(nodewise_scope_is_cancelled(handle_, &cancelled));
        return cancelled;
    }

private:
    friend class pool;

    scope(const nodewise_scope *handle, detail::caught *failure) : handle_(handle), failure_(failure) {}

    template <class F>
    static decltype(auto) call(F &f, const scope &scope)
    {
        if constexpr (std::is_invocable_v<F &, const nodewise::scope &>)
            return f(scope);
        else
            return f();
    }

    template <class F>
    struct spawned {
        F f;
        detail::caught *failure;

        static int run(const nodewise_scope *handle, void *context)
        {
            auto &self = detail::from<spawned>(context);
            return self.failure->run([&] { call(self.f, scope(handle, self.failure)); });
        }
    };

    // Whether a context has room in a task, and can be moved there.
    template <class Context>
    static constexpr bool is_small =
        sizeof(Context) <= 32 && alignof(Context) <= 8 && std::is_nothrow_move_constructible_v<Context>;

    template <class Context>
    void spawn_moved(std::uint32_t node, Context made) const
    {
        auto move = [](void *from, void *to) { new (to) Context(std::move(detail::from<Context>(from))); };
        auto run = [](const nodewise_scope *handle, void *pointer) {
            auto &self = detail::from<Context>(pointer);
            int status = handle ? Context::run(handle, pointer) : 0;
            self.~Context();
            return status;
        };
        detail::check(nodewise_scope_spawn_moved(handle_, node, run, &made, sizeof(made), move));
    }

    const nodewise_scope *handle_;
    detail::caught *failure_;
};

using node_statistics = nodewise_node_statistics;

// Workers that are confined to their node's CPUs and run tasks, their own node's first. The pool's end waits
// for everything that was spawned. Libraries that may be closed by dlclose() end their static pools before
// that. nodewise.h gives the reason, and another way.
class pool {
public:
    pool() { start(nullptr); }
    explicit pool(const pool_options &options) { start(options.get()); }

    // The process's default pool, whose workers all share that ask for it. They end with the last owner.
    static pool shared()
    {
        nodewise_pool *shared = nullptr;
        detail::check(nodewise_default_pool(&shared));
        return pool(shared);
    }

    // Limits the default pool to so many workers. A program does so before its libraries ask for the pool.
    static void limit_shared(std::size_t most) { detail::check(nodewise_default_pool_limit(most)); }

    std::vector<std::uint32_t> nodes() const
    {
        return detail::listed<std::uint32_t>(
            [&](std::uint32_t *nodes, std::size_t capacity, std::size_t *count) {
                return nodewise_pool_nodes(get(), nodes, capacity, count);
            });
    }

    std::size_t workers() const
    {
        std::size_t workers = 0;
        detail::check(nodewise_pool_workers(get(), &workers));
        return workers;
    }

    // The node of the worker that calls this, or none on other threads.
    std::optional<std::uint32_t> worker_node() const
    {
        std::uint32_t node = NODEWISE_NO_NODE;
        detail::check(nodewise_pool_worker_node(get(), &node));
        return node == NODEWISE_NO_NODE ? std::nullopt : std::optional(node);
    }

    // The index of the calling thread among those that work for this pool now, below worker_indices(), or
    // none on other threads. per_worker has values for them.
    std::optional<std::size_t> worker_index() const
    {
        std::size_t index = detail::index_for(identity_);
        return index == NODEWISE_NO_INDEX ? std::nullopt : std::optional(index);
    }

    std::size_t worker_indices() const
    {
        std::size_t indices = 0;
        detail::check(nodewise_pool_worker_indices(get(), &indices));
        return indices;
    }

    std::vector<node_statistics> statistics() const
    {
        return detail::listed<node_statistics>(
            [&](node_statistics *statistics, std::size_t capacity, std::size_t *count) {
                return nodewise_pool_statistics(get(), statistics, capacity, count);
            });
    }

    // Starts a task.
    template <class F>
    auto spawn(F &&f) const
    {
        return spawn_by(NODEWISE_NO_NODE, std::forward<F>(f));
    }

    // Starts a task that only workers of this node run.
    template <class F>
    auto spawn_on(std::uint32_t node, F &&f) const
    {
        return spawn_by(node, std::forward<F>(f));
    }

    // Runs a callable of a const nodewise::scope & on a worker. Returns its result when it and all tasks of
    // the scope have ended.
    template <class F>
    decltype(auto) scope(F &&body) const
    {
        using result = std::invoke_result_t<F &, const nodewise::scope &>;
        struct context {
            F &body;
            detail::returned<result> value;
            detail::caught failure;
        } context{body, {}, {}};
        auto run = [](const nodewise_scope *handle, void *pointer) {
            auto &self = detail::from<struct context>(pointer);
            nodewise::scope scope(handle, &self.failure);
            return self.failure.run([&] { self.value.by([&]() -> result { return self.body(scope); }); });
        };
        context.failure.check(nodewise_pool_scope(get(), run, &context, nullptr));
        return context.value.take();
    }

    // Runs both, and returns their results as a pair, or nothing if they return nothing.
    template <class A, class B>
    auto join(A &&a, B &&b) const
    {
        using ra = std::invoke_result_t<A &>;
        using rb = std::invoke_result_t<B &>;
        static_assert(std::is_void_v<ra> == std::is_void_v<rb>, "both return something, or neither");
        one<A, ra> first{a, {}, {}};
        one<B, rb> second{b, {}, {}};
        nodewise_result result =
            nodewise_pool_join(get(), one<A, ra>::run, &first, one<B, rb>::run, &second, nullptr);
        first.failure.check(NODEWISE_OK);
        second.failure.check(result);
        if constexpr (!std::is_void_v<ra>)
            return std::pair<ra, rb>(first.value.take(), second.value.take());
    }

    // Runs body() on a worker, isolated, and returns its result. A worker that waits in it, or in its tasks,
    // runs no other tasks meanwhile. So `body` may hold a lock that other tasks want.
    template <class F>
    decltype(auto) isolate(F &&body) const
    {
        using result = std::invoke_result_t<F &>;
        one<F, result> isolated{body, {}, {}};
        isolated.failure.check(nodewise_pool_isolate(get(), one<F, result>::run, &isolated, nullptr));
        return isolated.value.take();
    }

    // Calls body(begin, end) with parts of the range, of at least `grain` numbers.
    template <class F>
    void parallel_for_parts(std::size_t begin, std::size_t end, F &&body, std::size_t grain = 1) const
    {
        struct context {
            F &body;
            detail::caught failure;
        } context{body, {}};
        auto run = [](std::size_t from, std::size_t to, void *pointer) {
            auto &self = detail::from<struct context>(pointer);
            return self.failure.run([&] { self.body(from, to); });
        };
        context.failure.check(
            nodewise_pool_parallel_for_grain(get(), begin, end, grain, run, &context, nullptr));
    }

    // Calls body(i) with each number of the range.
    template <class F>
    void parallel_for(std::size_t begin, std::size_t end, F &&body, std::size_t grain = 1) const
    {
        auto part = [&](std::size_t from, std::size_t to) {
            for (std::size_t i = from; i < to; i++)
                body(i);
        };
        parallel_for_parts(begin, end, part, grain);
    }

    // Calls body(i) until a call returns false, and returns whether none did. No part begins after that.
    // Parts that have begun end within 64 numbers.
    template <class F>
    bool try_parallel_for(std::size_t begin, std::size_t end, F &&body, std::size_t grain = 1) const
    {
        std::atomic<bool> stop{false};
        auto part = [&](std::size_t from, std::size_t to) {
            for (std::size_t i = from; i < to && !stop.load(std::memory_order_relaxed);) {
                std::size_t until = to - i < 64 ? to : i + 64;
                for (; i < until; i++)
                    if (!body(i))
                        return stop.store(true, std::memory_order_relaxed);
            }
        };
        parallel_for_parts(begin, end, part, grain);
        return !stop;
    }

    // Folds parts of the range by fold(T, i), each from a copy of `identity` on. Combines neighbours by
    // combine(T, T), in order.
    template <class T, class Fold, class Combine>
    T parallel_reduce(std::size_t begin, std::size_t end, T identity, Fold &&fold, Combine &&combine,
                      std::size_t grain = 1) const
    {
        struct context {
            const T &identity;
            Fold &fold;
            Combine &combine;
            detail::caught failure;
        } context{identity, fold, combine, {}};
        using held = std::conditional_t<detail::plain<T>, T, T *>;
        nodewise_reduction reduction = {};
        reduction.value_bytes = sizeof(held);
        reduction.grain = grain;
        reduction.part = [](std::size_t from, std::size_t to, void *out_value, void *pointer) {
            auto &self = detail::from<struct context>(pointer);
            return self.failure.run([&] {
                // Nothing but a move comes after the loop. A call after it has compilers keep the value
                // elsewhere than in a register.
                if constexpr (detail::plain<T>) {
                    T value = self.identity;
                    for (std::size_t i = from; i < to; i++)
                        value = self.fold(std::move(value), i);
                    new (out_value) T(std::move(value));
                } else {
                    auto made = std::make_unique<T>(self.identity);
                    for (std::size_t i = from; i < to; i++)
                        *made = self.fold(std::move(*made), i);
                    new (out_value) (T *)(made.release());
                }
            });
        };
        reduction.combine = [](void *left, void *right, void *pointer) {
            auto &self = detail::from<struct context>(pointer);
            auto value_at = [](void *at) -> T & {
                if constexpr (detail::plain<T>)
                    return detail::from<T>(at);
                else
                    return *detail::from<T *>(at);
            };
            T &into = value_at(left);
            return self.failure.run(
                [&] { into = self.combine(std::move(into), std::move(value_at(right))); });
        };
        if constexpr (detail::plain<T>) {
            context.failure.check(
                nodewise_pool_parallel_reduce(get(), begin, end, &reduction, &context, &identity, nullptr));
            return identity;
        } else {
            reduction.drop = [](void *value, void *) { delete detail::from<T *>(value); };
            T *value = nullptr;
            nodewise_result result =
                nodewise_pool_parallel_reduce(get(), begin, end, &reduction, &context, &value, nullptr);
            std::unique_ptr<T> owned(value);
            context.failure.check(result);
            return owned ? std::move(*owned) : std::move(identity);
        }
    }

    // Calls body(const block &) with each of these blocks, or with pieces of a larger one that have at least
    // `grain` elements. Workers of the block's node do so, or any where the pool has none there. A loop over
    // several arrays of one layout takes the blocks of one of them.
    template <class F>
    void for_each_block(const std::vector<nodewise_block> &blocks, F &&body, std::size_t grain = 1) const
    {
        struct context {
            F &body;
            detail::caught failure;
        } context{body, {}};
        auto run = [](const nodewise_block *where, void *pointer) {
            auto &self = detail::from<struct context>(pointer);
            return self.failure.run([&] { self.body(*where); });
        };
        context.failure.check(nodewise_pool_for_each_block(get(), blocks.data(), blocks.size(), grain, run,
                                                           &context, nullptr));
    }

    // Puts together the results of part(const block &) for all blocks or pieces. It does so by combine(R, R),
    // from `identity` on and in any order. combine has to be associative and commutative.
    template <class R, class Part, class Combine>
    R reduce_blocks(const std::vector<nodewise_block> &blocks, R identity, Part &&part, Combine &&combine,
                    std::size_t grain = 1) const
    {
        std::mutex one_at_a_time;
        auto body = [&](const nodewise_block &where) {
            R of_part = part(where);
            std::lock_guard<std::mutex> lock(one_at_a_time);
            identity = combine(std::move(identity), std::move(of_part));
        };
        for_each_block(blocks, body, grain);
        return identity;
    }

    // Sorts the elements between random access iterators, without keeping the order of equal elements. If an
    // exception leaves a comparison, the elements are valid and no more is known of them. std::sort does the
    // same, and may hold one of them aside.
    template <class Iterator, class Less = std::less<>>
    void parallel_sort(Iterator begin, Iterator end, Less less = Less()) const;

    // Stores the sum, by sum(T, T), of the elements up to each, itself included, from `out` on, which may be
    // `begin`. sum has to be associative.
    template <class Iterator, class Out, class Sum = std::plus<>>
    void parallel_inclusive_scan(Iterator begin, Iterator end, Out out, Sum sum = Sum()) const;

    // Stores the sum of `first` and the elements before each. Returns the sum of all.
    template <class Iterator, class Out, class T, class Sum = std::plus<>>
    T parallel_exclusive_scan(Iterator begin, Iterator end, Out out, T first, Sum sum = Sum()) const;

    const nodewise_pool *get() const noexcept { return handle_.get(); }

private:
    // scan(T *before, from, to) goes through a part with the sum of all before it, and returns the sum with
    // the part. The first part needs no sum, so that one worker goes through it while others sum up theirs.
    // There is one part more than there are workers, so that nobody waits.
    template <class T, class Iterator, class Sum, class Scan>
    std::optional<T> scan(Iterator begin, std::size_t size, std::optional<T> first, Sum &sum, Scan scan) const;

    template <class T>
    friend class per_worker;

    explicit pool(nodewise_pool *owned) { own(owned); }

    void start(const nodewise_pool_options *options)
    {
        nodewise_pool *made = nullptr;
        detail::check(nodewise_pool_new(options, &made));
        own(made);
    }

    void own(nodewise_pool *made)
    {
        handle_.reset(made);
        const void *identity = nullptr;
        detail::check(nodewise_pool_identity(made, &identity));
        identity_ = identity;
    }

    template <class F, class R>
    struct one {
        F &f;
        detail::returned<R> value;
        detail::caught failure;

        static int run(void *context)
        {
            auto &self = detail::from<one>(context);
            return self.failure.run([&] { self.value.by([&]() -> R { return self.f(); }); });
        }
    };

    template <class F>
    auto spawn_by(std::uint32_t node, F &&f) const
    {
        using function = std::decay_t<F>;
        using result = std::invoke_result_t<function &>;
        // The callable, which ends with the task, and what comes of it.
        struct called : task<result>::outcome {
            std::optional<function> f;

            explicit called(function &&given) : f(std::move(given)) {}

            void run() noexcept
            {
                this->failure.run([&] { this->result.by([&]() -> result { return (*f)(); }); });
                f.reset();
            }
        };
        // The task has room for this, and it can be moved there.
        constexpr bool fits = alignof(called) <= 16 && std::is_nothrow_move_constructible_v<function>;
        using object = std::conditional_t<fits, called, std::unique_ptr<called>>;
        struct context {
            std::conditional_t<fits, function, std::unique_ptr<called>> given;
            called *moved;
        };
        auto move = [](void *from, void *to) {
            auto &self = detail::from<context>(from);
            auto *made = new (to) object(std::move(self.given));
            if constexpr (fits)
                self.moved = made;
            else
                self.moved = made->get();
        };
        auto run = [](void *pointer) {
            if constexpr (fits)
                detail::from<object>(pointer).run();
            else
                detail::from<object>(pointer)->run();
            return 0;
        };
        auto drop = [](void *pointer) { detail::from<object>(pointer).~object(); };
        auto spawn = [&](context context) {
            task<result> made;
            nodewise_task *handle = nullptr;
            detail::check(
                nodewise_pool_spawn_moved(get(), node, run, &context, sizeof(object), move, drop, &handle));
            made.handle_.reset(handle);
            made.outcome_ = context.moved;
            return made;
        };
        if constexpr (fits)
            return spawn({function(std::forward<F>(f)), nullptr});
        else
            return spawn({std::make_unique<called>(function(std::forward<F>(f))), nullptr});
    }

    detail::handle<nodewise_pool, nodewise_pool_free> handle_;
    detail::moved<const void *> identity_;
};

namespace detail {

// A quicksort. The workers partition a large range together, and sort a small one by themselves.
template <class Iterator, class Less>
class sorting {
public:
    sorting(const pool &pool, Less &less, std::size_t size)
        : pool_(pool), less_(less), alone_(std::max<std::size_t>(size / (pool.workers() * 8), 4096))
    {
    }

    // Sorts with the help of as many workers as there are for these elements. std's sort takes over after so
    // many halvings. No order of the elements makes it slow.
    void sort(Iterator begin, Iterator end, std::size_t workers, int halvings) const
    {
        if (std::size_t(end - begin) <= alone_)
            return sort_alone(begin, end, halvings);
        if (halvings == 0)
            return std::sort(begin, end, less_);
        auto [middle, larger] = divided(begin, end, workers);
        Iterator smaller_end = middle, larger_begin = larger;
        std::size_t of_smaller = std::size_t(smaller_end - begin),
                    of_larger = std::size_t(end - larger_begin);
        std::size_t helpers = std::max<std::size_t>(
            workers * of_larger / std::max<std::size_t>(of_smaller + of_larger, 1), 1);
        pool_.join([&] { sort(begin, smaller_end, workers > helpers ? workers - helpers : 1, halvings - 1); },
                   [&] { sort(larger_begin, end, helpers, halvings - 1); });
    }

private:
    using difference = typename std::iterator_traits<Iterator>::difference_type;
    using value = typename std::iterator_traits<Iterator>::value_type;

    static constexpr difference block = 128;

    // std's sort mispredicts every other comparison of numbers.
    void sort_alone(Iterator begin, Iterator end, int halvings) const
    {
        if constexpr (std::is_arithmetic_v<value> || std::is_pointer_v<value>) {
            while (end - begin > 32 && halvings-- > 0) {
                auto [middle, larger] = divided(begin, end, 1);
                sort_alone(begin, middle, halvings);
                begin = larger;
            }
        }
        std::sort(begin, end, less_);
    }

    // The ends of the elements smaller than a pivot, and of those equal to it.
    std::pair<Iterator, Iterator> divided(Iterator begin, Iterator end, std::size_t workers) const
    {
        difference sample = end - begin > 20'000 ? 63 : 9, step = (end - begin) / sample;
        for (difference i = 0; i < sample; i++)
            std::iter_swap(begin + i, begin + (i * step + step / 2));
        std::nth_element(begin, begin + sample / 2, begin + sample, less_);
        std::iter_swap(begin, begin + sample / 2);
        const value &pivot = *begin;
        Iterator middle = partition(
            begin + 1, end, [&](const value &element) { return bool(less_(element, pivot)); }, workers);
        Iterator larger = middle;
        // Many may be equal if few are smaller.
        if (middle - begin < (end - begin) / 8)
            larger = partition(
                middle, end, [&](const value &element) { return !less_(pivot, element); }, workers);
        std::iter_swap(begin, middle - 1);
        return {middle - 1, larger};
    }

    // Puts the elements that are `left` first, and returns where the others begin. Each of the workers does a
    // part. Then elements on the wrong sides of two neighbouring parts change places.
    template <class Left>
    Iterator partition(Iterator begin, Iterator end, const Left &left, std::size_t workers) const
    {
        if (workers < 2 || end - begin < (1 << 15))
            return partition_alone(begin, end, left);
        Iterator half = begin + (end - begin) / 2, of_first = half, of_second = half;
        pool_.join([&] { of_first = partition(begin, half, left, workers - workers / 2); },
                   [&] { of_second = partition(half, end, left, workers / 2); });
        difference change = std::min(half - of_first, of_second - half);
        std::swap_ranges(of_first, of_first + change, of_second - change);
        return of_first + (of_second - half);
    }

    // Partitions as Edelkamp and Weiss do ('Block Quicksort', 2016). It first notes the elements of a block
    // that are on the wrong side, without a branch for each. They then change places with those of a block
    // from the other end.
    template <class Left>
    static Iterator partition_alone(Iterator begin, Iterator end, const Left &left)
    {
        unsigned char from_begin[block], from_end[block];
        difference begin_next = 0, begin_end = 0, end_next = 0, end_end = 0;
        while (end - begin > 2 * block) {
            if (begin_next == begin_end) {
                begin_next = begin_end = 0;
                for (difference i = 0; i < block; i++) {
                    from_begin[begin_end] = static_cast<unsigned char>(i);
                    begin_end += !left(begin[i]);
                }
            }
            if (end_next == end_end) {
                end_next = end_end = 0;
                for (difference i = 0; i < block; i++) {
                    from_end[end_end] = static_cast<unsigned char>(i);
                    end_end += left(end[-1 - i]);
                }
            }
            difference change = std::min(begin_end - begin_next, end_end - end_next);
            for (difference i = 0; i < change; i++)
                std::iter_swap(begin + from_begin[begin_next + i], end - 1 - from_end[end_next + i]);
            begin_next += change;
            end_next += change;
            if (begin_next == begin_end)
                begin += block;
            if (end_next == end_end)
                end -= block;
        }
        Iterator middle = begin;
        for (Iterator place = begin; place != end; ++place) {
            bool is_left = left(*place);
            std::iter_swap(middle, place);
            middle += is_left;
        }
        return middle;
    }

    const pool &pool_;
    Less &less_;
    std::size_t alone_;
};

} // namespace detail

namespace detail {

// The type for nodewise_pool_sort(), or -1 for what is no such number.
template <class T>
constexpr int number_type()
{
    constexpr int by_size[] = {-1, 0, 1, -1, 2, -1, -1, -1, 3};
    if constexpr (std::is_same_v<T, float>)
        return NODEWISE_FLOAT;
    else if constexpr (std::is_same_v<T, double>)
        return NODEWISE_DOUBLE;
    else if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool> && sizeof(T) <= 8)
        return (std::is_signed_v<T> ? NODEWISE_INT8 : NODEWISE_UINT8) + by_size[sizeof(T)];
    else
        return -1;
}

// Whether these are numbers in a row, in their own order.
template <class Iterator, class Less, class T = typename std::iterator_traits<Iterator>::value_type>
inline constexpr bool sorts_numbers =
    number_type<T>() >= 0 &&
    (std::is_same_v<Iterator, T *> || std::is_same_v<Iterator, typename std::vector<T>::iterator>) &&
    (std::is_same_v<Less, std::less<>> || std::is_same_v<Less, std::less<T>>);

} // namespace detail

template <class Iterator, class Less>
void pool::parallel_sort(Iterator begin, Iterator end, Less less) const
{
    std::size_t size = std::size_t(end - begin);
    if constexpr (detail::sorts_numbers<Iterator, Less>) {
        constexpr int type = detail::number_type<typename std::iterator_traits<Iterator>::value_type>();
        detail::check(nodewise_pool_sort(get(), size == 0 ? nullptr : &*begin, size, type));
    } else {
        if (std::is_sorted(begin, end, less))
            return;
        int halvings = 0;
        for (std::size_t left = size; left > 0; left /= 2)
            halvings += 2;
        // Inside, so that the joins need not begin again and again.
        scope([&](const nodewise::scope &) {
            detail::sorting<Iterator, Less>(*this, less, size).sort(begin, end, workers(), halvings);
        });
    }
}

namespace detail {

template <class T, class Iterator, class Sum, class Scan>
class scanning {
public:
    struct part {
        std::size_t begin, end;
        // The sum of its elements, then of all before it, and in the end of both. The sum of both at once, if
        // the part was gone through in its turn.
        std::optional<T> sum;
        bool is_scanned;
    };

    scanning(const pool &pool, Iterator begin, Sum &sum, Scan &scan)
        : pool_(pool), begin_(begin), sum_(sum), scan_(scan)
    {
    }

    std::optional<T> all(std::size_t size, std::optional<T> first, std::size_t number) const
    {
        std::vector<part> parts(number);
        for (std::size_t i = 0; i < number; i++)
            parts[i] = {size / number * i + size % number * i / number,
                        size / number * (i + 1) + size % number * (i + 1) / number, std::nullopt, false};
        // The last part's sum is nobody's.
        go(parts.data(), parts.data() + number - 1, std::move(first));
        std::size_t left = 1;
        while (left + 1 < number && parts[left].is_scanned)
            left++;
        std::optional<T> before = std::move(parts[left - 1].sum);
        for (std::size_t i = left; i < number; i++) {
            std::optional<T> with_part;
            if (i + 1 < number)
                with_part = sum_(*before, std::move(*parts[i].sum));
            parts[i].sum = std::exchange(before, std::move(with_part));
        }
        pool_.parallel_for(left, number, [&](std::size_t i) {
            parts[i].sum = scan_(std::move(parts[i].sum), parts[i].begin, parts[i].end);
        });
        return std::move(parts.back().sum);
    }

private:
    // Goes through the parts from the first on, with the sum of all before them. Workers that come for later
    // parts meanwhile sum these up. If none comes in time, this is all that one thread would do.
    void go(part *first, part *end, std::optional<T> before) const
    {
        if (end - first == 1) {
            first->sum = scan_(std::move(before), first->begin, first->end);
            first->is_scanned = true;
            return;
        }
        part *rest = first + (end - first + 1) / 2;
        std::atomic<bool> is_known{false};
        pool_.join(
            [&] {
                go(first, rest, std::move(before));
                is_known.store(rest[-1].is_scanned, std::memory_order_release);
            },
            [&] {
                if (is_known.load(std::memory_order_acquire))
                    go(rest, end, rest[-1].sum);
                else
                    sum_up(rest, end);
            });
    }

    void sum_up(part *first, part *end) const
    {
        if (end - first > 1) {
            part *rest = first + (end - first) / 2;
            return pool_.join([&] { sum_up(first, rest); }, [&] { sum_up(rest, end); });
        }
        Iterator in = begin_ + std::ptrdiff_t(first->begin), last = begin_ + std::ptrdiff_t(first->end);
        T all = *in;
        while (++in != last)
            all = sum_(std::move(all), *in);
        first->sum = std::move(all);
    }

    const pool &pool_;
    Iterator begin_;
    Sum &sum_;
    Scan &scan_;
};

} // namespace detail

template <class T, class Iterator, class Sum, class Scan>
std::optional<T> pool::scan(Iterator begin, std::size_t size, std::optional<T> first, Sum &sum, Scan scan) const
{
    std::size_t parts = workers() + 1;
    if (parts == 2 || size < 4096)
        return size == 0 ? first : scan(std::move(first), 0, size);
    return scope([&](const nodewise::scope &) {
        detail::scanning<T, Iterator, Sum, Scan> scanning(*this, begin, sum, scan);
        return scanning.all(size, std::move(first), parts);
    });
}

template <class Iterator, class Out, class Sum>
void pool::parallel_inclusive_scan(Iterator begin, Iterator end, Out out, Sum sum) const
{
    using value = typename std::iterator_traits<Iterator>::value_type;
    auto part = [&](std::optional<value> before, std::size_t from, std::size_t to) -> std::optional<value> {
        Iterator in = begin + std::ptrdiff_t(from), last = begin + std::ptrdiff_t(to);
        Out at = out + std::ptrdiff_t(from);
        value all = before ? value(sum(std::move(*before), *in)) : value(*in);
        for (*at = all; ++in != last;) {
            all = sum(std::move(all), *in);
            *++at = all;
        }
        return all;
    };
    scan<value>(begin, std::size_t(end - begin), std::nullopt, sum, part);
}

template <class Iterator, class Out, class T, class Sum>
T pool::parallel_exclusive_scan(Iterator begin, Iterator end, Out out, T first, Sum sum) const
{
    auto part = [&](std::optional<T> before, std::size_t from, std::size_t to) -> std::optional<T> {
        Iterator in = begin + std::ptrdiff_t(from), last = begin + std::ptrdiff_t(to);
        Out at = out + std::ptrdiff_t(from);
        T all = std::move(*before);
        for (; in != last; ++in, ++at) {
            T next = sum(all, *in);
            *at = std::move(all);
            all = std::move(next);
        }
        return all;
    };
    return *scan<T>(begin, std::size_t(end - begin), std::optional<T>(std::move(first)), sum, part);
}

// A value for each thread that works for a pool, which has to outlive this: a buffer, or a part of a sum. A
// thread makes its value when it first asks, so that the value's memory is the thread's own. A task that
// waits in the middle of a use may run others on top of itself. One that asks there gets another value.
// Threads that do not work for the pool may ask as well.
template <class T>
class per_worker {
public:
    explicit per_worker(const pool &pool, std::function<T()> make = [] { return T(); })
        : pool_(pool.identity_), make_(std::move(make)), slots_(pool.worker_indices() + 1)
    {
    }

    // Returns the result of body(T &). No other thread, nor another use on this one, has the value meanwhile.
    template <class F>
    decltype(auto) with(F &&body)
    {
        std::size_t index = detail::index_for(pool_);
        slot &own = slots_[std::min(index, slots_.size() - 1)];
        // No other thread has the index. Threads that have none share the last slot, where no value stays.
        bool is_own = index != NODEWISE_NO_INDEX;
        in_use value{own, is_own ? std::exchange(own.value, nullptr) : nullptr, is_own};
        if (!value.value)
            value.value = another(own);
        return body(*value.value);
    }

    // Calls body(T &) with each value that there is. No thread may be in with() meanwhile.
    template <class F>
    void for_each(F &&body)
    {
        for (slot &own : slots_) {
            if (own.value)
                body(*own.value);
            for (const auto &value : own.others)
                body(*value);
        }
    }

private:
    struct alignas(128) slot {
        // The value, unless it is in use or was never asked for.
        std::unique_ptr<T> value;
        // The values of uses that began while it was.
        std::mutex lock;
        std::vector<std::unique_ptr<T>> others;
    };

    std::unique_ptr<T> another(slot &own)
    {
        {
            std::lock_guard<std::mutex> locked(own.lock);
            if (!own.others.empty()) {
                std::unique_ptr<T> kept = std::move(own.others.back());
                own.others.pop_back();
                return kept;
            }
        }
        return std::make_unique<T>(make_());
    }

    // A value until it is put back.
    struct in_use {
        slot &own;
        std::unique_ptr<T> value;
        bool is_own;

        ~in_use()
        {
            if (is_own && !own.value) {
                own.value = std::move(value);
            } else if (value) {
                std::lock_guard<std::mutex> locked(own.lock);
                own.others.push_back(std::move(value));
            }
        }
    };

    const void *pool_;
    std::function<T()> make_;
    std::vector<slot> slots_;
};

// The nodes to which the pages of an array or an arena go
class layout {
public:
    static layout on(std::uint32_t node) { return layout(NODEWISE_LAYOUT_ON, {node}, {}); }
    static layout interleaved() { return layout(NODEWISE_LAYOUT_INTERLEAVED, {}, {}); }
    static layout blocked() { return layout(NODEWISE_LAYOUT_BLOCKED, {}, {}); }

    // Nodes, and the number of pages in a row that each of them gets.
    static layout weighted(const std::vector<std::pair<std::uint32_t, std::uint32_t>> &weights)
    {
        layout made(NODEWISE_LAYOUT_WEIGHTED, {}, {});
        for (auto [node, weight] : weights) {
            made.nodes_.push_back(node);
            made.weights_.push_back(weight);
        }
        return made;
    }

    // The layout for functions of nodewise.h, valid as long as this object.
    nodewise_layout get() const noexcept { return {kind_, nodes_.size(), nodes_.data(), weights_.data()}; }

private:
    layout(int kind, std::vector<std::uint32_t> nodes, std::vector<std::uint32_t> weights)
        : kind_(kind), nodes_(std::move(nodes)), weights_(std::move(weights))
    {
    }

    int kind_;
    std::vector<std::uint32_t> nodes_;
    std::vector<std::uint32_t> weights_;
};

// The nodes of base pages
struct placement {
    std::map<std::uint32_t, std::size_t> pages_by_node;
    std::size_t misplaced = 0;
    std::size_t absent = 0;
    std::size_t unknown = 0;
};

namespace detail {

template <class Fill>
placement placed(Fill fill)
{
    nodewise_placement found = {};
    placement placement;
    auto listing = listed<nodewise_node_pages>(
        [&](nodewise_node_pages *pages, std::size_t capacity, std::size_t *count) {
            return fill(&found, pages, capacity, count);
        });
    for (auto [node, pages] : listing)
        placement.pages_by_node[node] = pages;
    placement.misplaced = found.misplaced;
    placement.absent = found.absent;
    placement.unknown = found.unknown;
    return placement;
}

} // namespace detail

using block = nodewise_block;

// Elements whose pages lie as a layout says. All bits are zero at first. The size is fixed. The vector can be
// moved, not copied, and is empty once it was moved from.
template <class T>
class node_vector {
    static_assert(std::is_trivially_copyable_v<T>, "elements begin as zeros and end without a destructor");

public:
    using value_type = T;

    // `flags` are NODEWISE_HUGE_PAGES and the like. The pool's workers bring in the pages, if a pool is
    // given.
    node_vector(std::size_t size, const layout &layout, std::uint32_t flags = 0, const pool *pool = nullptr)
        : size_(size)
    {
        nodewise_layout given = layout.get();
        nodewise_array *made = nullptr;
        detail::check(
            nodewise_array_new(&given, size, sizeof(T), flags, pool ? pool->get() : nullptr, &made));
        handle_.reset(made);
        void *data = nullptr;
        detail::check(nodewise_array_data(made, &data));
        data_ = static_cast<T *>(data);
    }

    T *data() noexcept { return data_; }
    const T *data() const noexcept { return data_; }
    std::size_t size() const noexcept { return size_; }
    bool empty() const noexcept { return size_ == 0; }
    T *begin() noexcept { return data_; }
    T *end() noexcept { return data_ + size_; }
    const T *begin() const noexcept { return data_; }
    const T *end() const noexcept { return data_ + size_; }
    T &operator[](std::size_t i) noexcept { return data_[i]; }
    const T &operator[](std::size_t i) const noexcept { return data_[i]; }

    nodewise::placement placement() const { return placement(0, size_); }

    // The placement of the pages of the elements from begin to before end.
    nodewise::placement placement(std::size_t begin, std::size_t end) const
    {
        return detail::placed(
            [&](auto... out) { return nodewise_array_placement(handle_.get(), begin, end, out...); });
    }

    // The node of each base page, or NODEWISE_NO_NODE for one that is in no memory now.
    std::vector<std::uint32_t> page_nodes(std::size_t begin, std::size_t end) const
    {
        return detail::listed<std::uint32_t>(
            [&](std::uint32_t *nodes, std::size_t capacity, std::size_t *count) {
                return nodewise_array_page_nodes(handle_.get(), begin, end, nodes, capacity, count);
            });
    }

    void lay_out(const layout &layout)
    {
        nodewise_layout given = layout.get();
        detail::check(nodewise_array_lay_out(handle_.get(), &given, nullptr));
    }

    void lay_out(std::size_t begin, std::size_t end, const layout &layout)
    {
        nodewise_layout given = layout.get();
        detail::check(nodewise_array_lay_out_range(handle_.get(), begin, end, &given, nullptr));
    }

    std::vector<block> blocks() const
    {
        return detail::listed<block>([&](block *blocks, std::size_t capacity, std::size_t *count) {
            return nodewise_array_blocks(handle_.get(), blocks, capacity, count);
        });
    }

    // Calls body(const block &, T *elements) with each block, or with pieces of a larger one, on workers of
    // the block's node. `elements` points to the first element.
    template <class F>
    void for_each_block(const pool &pool, F &&body)
    {
        for_each<T>(pool, body);
    }

    // The same for elements that are only read.
    template <class F>
    void for_each_block(const pool &pool, F &&body) const
    {
        for_each<const T>(pool, body);
    }

    // Calls body(const block &, T *elements, U *others) with the same elements of another array besides. That
    // array has the same size, and may be any container with data() and size(). If it has the same layout
    // too, its pages lie on the same nodes. `const` arrays give pointers to const.
    template <class Other, class F>
    void for_each_block_with(Other &other, const pool &pool, F &&body)
    {
        zipped<T>(other, pool, body);
    }

    template <class Other, class F>
    void for_each_block_with(Other &other, const pool &pool, F &&body) const
    {
        zipped<const T>(other, pool, body);
    }

    // Puts together the results of part(const block &, const T *elements) for all blocks or pieces. It does
    // so by combine(R, R), from `identity` on and in any order. combine has to be associative and
    // commutative.
    template <class R, class Part, class Combine>
    R reduce_blocks(const pool &pool, R identity, Part &&part, Combine &&combine) const
    {
        std::mutex one_at_a_time;
        for_each<const T>(pool, [&](const block &where, const T *elements) {
            R of_part = part(where, elements);
            std::lock_guard<std::mutex> lock(one_at_a_time);
            identity = combine(std::move(identity), std::move(of_part));
        });
        return identity;
    }

private:
    template <class Element, class F>
    void for_each(const pool &pool, F &&body) const
    {
        struct context {
            F &body;
            detail::caught failure;
        } context{body, {}};
        auto run = [](const block *where, void *elements, void *pointer) {
            auto &self = detail::from<struct context>(pointer);
            return self.failure.run([&] { self.body(*where, static_cast<Element *>(elements)); });
        };
        context.failure.check(
            nodewise_array_for_each_block(handle_.get(), pool.get(), run, &context, nullptr));
    }

    template <class Element, class Other, class F>
    void zipped(Other &other, const pool &pool, F &&body) const
    {
        if (other.size() != size_)
            throw std::invalid_argument("nodewise: the arrays have different sizes");
        auto *others = other.data();
        for_each<Element>(pool, [&](const block &where, Element *elements) {
            body(where, elements, others + where.begin);
        });
    }

    detail::handle<nodewise_array, nodewise_array_free> handle_;
    detail::moved<T *> data_;
    detail::moved<std::size_t> size_;
};

#if __has_include(<memory_resource>)
namespace detail {

// An arena as a memory resource. It cannot be moved, since containers keep its address.
class arena_resource : public std::pmr::memory_resource {
public:
    explicit arena_resource(const nodewise_arena *arena) noexcept : arena_(arena) {}
    arena_resource(const arena_resource &) = delete;
    arena_resource &operator=(const arena_resource &) = delete;

private:
    void *do_allocate(std::size_t bytes, std::size_t align) override
    {
        void *memory = nullptr;
        if (nodewise_arena_allocate(arena_, bytes, align, &memory) != NODEWISE_OK)
            throw std::bad_alloc();
        return memory;
    }

    void do_deallocate(void *memory, std::size_t bytes, std::size_t align) override
    {
        // The call cannot fail with memory from do_allocate.
        nodewise_arena_deallocate(arena_, memory, bytes, align);
    }

    bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override
    {
        return this == &other;
    }

    const nodewise_arena *arena_;
};

// An arena that is freed last of all members of a class derived from this.
struct owned_arena {
    owned_arena(const layout &layout, std::uint32_t flags)
    {
        nodewise_layout given = layout.get();
        nodewise_arena *made = nullptr;
        check(nodewise_arena_new(&given, flags, &made));
        handle.reset(made);
    }

    detail::handle<nodewise_arena, nodewise_arena_free> handle;
};

} // namespace detail

// Memory that lies as a layout says, for std::pmr containers. Any thread may allocate and deallocate at any
// time. std::bad_alloc is thrown where there is not so much, and nodewise_error_message() has the reason. An
// arena cannot be moved, since containers keep its address.
class arena final : private detail::owned_arena, public detail::arena_resource {
public:
    explicit arena(const layout &layout, std::uint32_t flags = 0)
        : owned_arena(layout, flags), arena_resource(owned_arena::handle.get())
    {
    }

    std::size_t reserved_bytes() const
    {
        std::size_t bytes = 0;
        detail::check(nodewise_arena_reserved_bytes(handle.get(), &bytes));
        return bytes;
    }

    nodewise::placement placement() const
    {
        return detail::placed([&](auto... out) { return nodewise_arena_placement(handle.get(), out...); });
    }
};
#endif

// The use of memory
enum class hint : int {
    private_ = NODEWISE_HINT_PRIVATE,
    read_shared = NODEWISE_HINT_READ_SHARED,
    write_shared = NODEWISE_HINT_WRITE_SHARED,
};

// Says how the pages that lie wholly in this memory are used. Returns true if a manager honours this, from
// its next round on, and false if the library has.
inline bool say(const void *memory, std::size_t bytes, hint hint)
{
    int honoured_by = NODEWISE_HONOURED_BY_LIBRARY;
    detail::check(nodewise_hint(memory, bytes, static_cast<int>(hint), &honoured_by));
    return honoured_by == NODEWISE_HONOURED_BY_MANAGER;
}

inline void forget_hints(const void *memory, std::size_t bytes)
{
    detail::check(nodewise_forget_hints(memory, bytes));
}

inline bool is_managed()
{
    bool managed = false;
    detail::check(nodewise_is_managed(&managed));
    return managed;
}

// Elements with a copy on every node. The vector can be moved, not copied.
template <class T>
class replicated_vector {
    static_assert(std::is_trivially_copyable_v<T>, "copies are made byte by byte");

public:
    explicit replicated_vector(const std::vector<T> &elements) : size_(elements.size())
    {
        nodewise_replicated_array *made = nullptr;
        detail::check(nodewise_replicated_array_new(elements.data(), elements.size(), sizeof(T), &made));
        handle_.reset(made);
    }

    std::size_t size() const noexcept { return size_; }

    // The copy nearest to the calling thread.
    const T *local() const
    {
        const void *data = nullptr;
        detail::check(nodewise_replicated_array_local(handle_.get(), &data));
        return static_cast<const T *>(data);
    }

    // The copy nearest to a node.
    const T *near(std::uint32_t node) const
    {
        const void *data = nullptr;
        detail::check(nodewise_replicated_array_near(handle_.get(), node, &data));
        return static_cast<const T *>(data);
    }

    std::vector<std::uint32_t> nodes() const
    {
        return detail::listed<std::uint32_t>(
            [&](std::uint32_t *nodes, std::size_t capacity, std::size_t *count) {
                return nodewise_replicated_array_nodes(handle_.get(), nodes, capacity, count);
            });
    }

    // Calls change(T *elements) for one copy, then makes the others like it, also if an exception leaves
    // `change`.
    template <class F>
    void update(F &&change)
    {
        struct context {
            F &change;
            detail::caught failure;
        } context{change, {}};
        auto run = [](void *elements, void *pointer) {
            auto &self = detail::from<struct context>(pointer);
            return self.failure.run([&] { self.change(static_cast<T *>(elements)); });
        };
        context.failure.check(nodewise_replicated_array_update(handle_.get(), run, &context, nullptr));
    }

private:
    detail::handle<nodewise_replicated_array, nodewise_replicated_array_free> handle_;
    detail::moved<std::size_t> size_;
};

namespace detail {

#if __has_include(<memory_resource>)
// Whether a T gets its memory as std::pmr containers do.
template <class T>
inline constexpr bool takes_arena = std::uses_allocator_v<T, std::pmr::polymorphic_allocator<std::byte>>;

// The arena behind a T in its copy.
template <class T>
arena_resource *arena_behind(void *value)
{
    constexpr std::size_t align = alignof(arena_resource), behind = (sizeof(T) + align - 1) / align * align;
    return reinterpret_cast<arena_resource *>(static_cast<unsigned char *>(value) + behind);
}

template <class T>
void take_arena(nodewise_value_type &type)
{
    type.bytes = sizeof(T) + alignof(arena_resource) + sizeof(arena_resource);
    type.copy_in = [](const void *value, void *to, const nodewise_arena *arena, void *context) {
        return from<caught>(context).run([&] {
            auto *memory = new (arena_behind<T>(to)) arena_resource(arena);
            std::pmr::polymorphic_allocator<std::byte> allocator(memory);
            const T &copied = *static_cast<const T *>(value);
            if constexpr (std::is_constructible_v<T, std::allocator_arg_t, decltype(allocator), const T &>)
                new (to) T(std::allocator_arg, allocator, copied);
            else
                new (to) T(copied, allocator);
        });
    };
    type.destroy = [](void *value, void *) {
        static_cast<T *>(value)->~T();
        std::launder(arena_behind<T>(value))->~arena_resource();
    };
}
#endif

// The way in which copies of a T are made. `copying` catches exceptions.
template <class T>
nodewise_value_type value_type(caught &copying)
{
    static_assert(std::is_copy_constructible_v<T> && alignof(T) <= 128,
                  "copies lie at addresses that 128 divides");
    nodewise_value_type type = {};
    type.bytes = sizeof(T);
    type.context = &copying;
#if __has_include(<memory_resource>)
    if constexpr (takes_arena<T>) {
        take_arena<T>(type);
        return type;
    }
#endif
    if constexpr (!std::is_trivially_copyable_v<T>) {
        type.copy = [](const void *value, void *to, void *context) {
            return from<caught>(context).run([&] { new (to) T(*static_cast<const T *>(value)); });
        };
        type.destroy = [](void *value, void *) { static_cast<T *>(value)->~T(); };
    }
    return type;
}

// A read that is under way.
template <class T, class Handle, class Read, nodewise_result (*begin)(const Handle *, Read *, const void **),
          nodewise_result (*end)(Read *)>
class reading {
public:
    explicit reading(const Handle *handle)
    {
        const void *value = nullptr;
        check(begin(handle, &read_, &value));
        value_ = static_cast<const T *>(value);
    }
    reading(const reading &) = delete;
    reading &operator=(const reading &) = delete;
    ~reading() { end(&read_); }

    const T &operator*() const noexcept { return *value_; }
    const T *operator->() const noexcept { return value_; }

private:
    Read read_ = {};
    const T *value_ = nullptr;
};

} // namespace detail

// A value that all read and few write, with copies on each node. Any thread may read and update at any time.
//
// Memory of the value's own lies on the copy's node as well if T takes an allocator as std::pmr containers
// do. T gets a std::pmr::polymorphic_allocator of an arena there. Memory from elsewhere, std::vector's for
// instance, may lie on any node.
template <class T>
class replicated {
public:
    // The value as it is until this ends. A thread that has one must not update.
    using read_guard =
        detail::reading<T, nodewise_replicated, nodewise_read, nodewise_replicated_read, nodewise_read_end>;

    explicit replicated(const T &value)
    {
        nodewise_value_type type = detail::value_type<T>(*copying_);
        nodewise_replicated *made = nullptr;
        nodewise_result result = nodewise_replicated_new(&type, &value, &made);
        handle_.reset(made);
        copying_->check(result);
    }

    read_guard read() const { return read_guard(handle_.get()); }

    // Calls change(T &) for each copy, and returns the result of the first call. `change` must do the same to
    // each copy, and must not update this value. If an exception leaves `change`, the value is as if nothing
    // had been changed, or as if all had been. A copy that fails while that is put right ends the process.
    template <class F>
    auto update(F &&change) const
    {
        // A copy, even of a reference, which may refer into a value that changes again.
        using result = std::decay_t<std::invoke_result_t<F &, T &>>;
        struct context {
            F &change;
            detail::returned<result> first;
            detail::caught failure;
        } context{change, {}, {}};
        auto run = [](void *value, void *pointer) {
            auto &self = detail::from<struct context>(pointer);
            return self.failure.run([&] {
                auto call = [&]() -> result { return self.change(*static_cast<T *>(value)); };
                if (self.first.is())
                    call();
                else
                    self.first.by(call);
            });
        };
        context.failure.check(nodewise_replicated_update(handle_.get(), run, &context, nullptr));
        return context.first.take();
    }

    // Replaces the value by another.
    void set(const T &value) const
    {
        update([&](T &copy) { copy = value; });
    }

    // The placement of the pages of all copies and of their arenas.
    nodewise::placement placement() const
    {
        return detail::placed(
            [&](auto... out) { return nodewise_replicated_placement(handle_.get(), out...); });
    }

private:
    // Outlives the copies.
    std::unique_ptr<detail::caught> copying_ = std::make_unique<detail::caught>();
    detail::handle<nodewise_replicated, nodewise_replicated_free> handle_;
};

// `replicated` with one copy on each node, which a log of operations keeps alike. operate(T &, const
// Operation &) must do the same to equal values, from any thread. An exception that leaves it ends the
// process. Operations and results are copied byte by byte.
template <class T, class Operation, class F>
class node_replicated {
    using result = std::invoke_result_t<const F &, T &, const Operation &>;
    static_assert(std::is_trivially_copyable_v<Operation> && alignof(Operation) <= 16,
                  "operations are copied byte by byte");
    static_assert(std::is_void_v<result> || std::is_trivially_copyable_v<result>,
                  "responses are copied byte by byte");

public:
    // The value as it is until this ends. A thread that has one must neither update nor read again.
    using read_guard = detail::reading<T, nodewise_node_replicated, nodewise_node_read,
                                       nodewise_node_replicated_read, nodewise_node_read_end>;

    node_replicated(const T &value, F operate) : made_(std::make_unique<made>(std::move(operate)))
    {
        nodewise_value_type type = detail::value_type<T>(made_->copying);
        nodewise_operations operations = {};
        operations.operation_bytes = sizeof(Operation);
        operations.context = &made_->operate;
        operations.operate = [](void *copy, const void *operation, void *response, void *context) noexcept {
            const F &does = *static_cast<const F *>(context);
            T &changed = *static_cast<T *>(copy);
            if constexpr (std::is_void_v<result>)
                does(changed, *static_cast<const Operation *>(operation));
            else
                new (response) result(does(changed, *static_cast<const Operation *>(operation)));
        };
        if constexpr (!std::is_void_v<result>) {
            static_assert(alignof(result) <= 16, "responses lie at addresses that 16 divides");
            operations.response_bytes = sizeof(result);
        }
        nodewise_node_replicated *handle = nullptr;
        nodewise_result code = nodewise_node_replicated_new(&type, &operations, &value, &handle);
        handle_.reset(handle);
        made_->copying.check(code);
    }

    read_guard read() const { return read_guard(handle_.get()); }

    // Does an operation to every copy, and returns its result.
    result update(const Operation &operation) const
    {
        if constexpr (std::is_void_v<result>) {
            detail::check(nodewise_node_replicated_update(handle_.get(), &operation, nullptr));
        } else {
            alignas(result) unsigned char response[sizeof(result)];
            detail::check(nodewise_node_replicated_update(handle_.get(), &operation, response));
            return *std::launder(reinterpret_cast<result *>(response));
        }
    }

    // The placement of the pages of all copies and of their arenas.
    nodewise::placement placement() const
    {
        return detail::placed(
            [&](auto... out) { return nodewise_node_replicated_placement(handle_.get(), out...); });
    }

private:
    struct made {
        explicit made(F f) : operate(std::move(f)) {}
        F operate;
        detail::caught copying;
    };

    // Outlives the copies.
    std::unique_ptr<made> made_;
    detail::handle<nodewise_node_replicated, nodewise_node_replicated_free> handle_;
};

// node_replicated with operations of this type.
template <class Operation, class T, class F>
node_replicated<T, Operation, F> operated(const T &value, F operate)
{
    return node_replicated<T, Operation, F>(value, std::move(operate));
}

} // namespace nodewise

#endif
