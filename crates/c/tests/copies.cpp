// The nodes of the contents of replicated values, from C++, on a machine with several nodes. Each node's
// thread asks the kernel about every page that it reads, before and after updates, of which the program's
// argument says how many. The program prints a line of JSON for each kind of value.
#include <nodewise.hpp>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <memory_resource>
#include <string>
#include <sys/syscall.h>
#include <unistd.h>
#include <vector>

#define CHECK(condition)                                                            \
    do {                                                                            \
        if (!(condition)) {                                                         \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);    \
            std::abort();                                                           \
        }                                                                           \
    } while (0)

namespace {

// Counts pages, and those that are on another node than the thread's.
struct looker {
    std::uint32_t node;
    std::size_t pages = 0, elsewhere = 0;

    void look(const void *contents, std::size_t bytes)
    {
        constexpr std::uintptr_t page_bytes = 4096;
        auto begin = reinterpret_cast<std::uintptr_t>(contents);
        for (std::uintptr_t page = begin & ~(page_bytes - 1); page < begin + bytes; page += page_bytes) {
            void *address = reinterpret_cast<void *>(page);
            int home = -1;
            CHECK(syscall(SYS_move_pages, 0, 1ul, &address, nullptr, &home, 0) == 0);
            pages++;
            elsewhere += home != static_cast<int>(node);
        }
    }
};

template <std::size_t bytes>
struct plain {
    std::array<unsigned char, bytes> value = {};

    void look(looker &seen) const { seen.look(this, sizeof *this); }
    void change() { value[0]++; }
    // It has no contents elsewhere.
    void move() { change(); }
};

struct words {
    using allocator_type = std::pmr::polymorphic_allocator<std::byte>;
    std::pmr::vector<long> numbers;
    std::pmr::map<int, std::pmr::string> names;

    words() : numbers(1000), names{{1, "a name that is too long to lie in the string"}} {}
    words(const words &other, allocator_type allocator)
        : numbers(other.numbers, allocator), names(other.names, allocator)
    {
    }
    words(const words &) = default;
    words &operator=(const words &) = default;

    void look(looker &seen) const
    {
        seen.look(this, sizeof *this);
        seen.look(numbers.data(), numbers.size() * sizeof(long));
        for (const auto &name : names) {
            seen.look(&name, sizeof name);
            seen.look(name.second.data(), name.second.size());
        }
    }

    void change() { numbers[0]++; }

    // To other memory.
    void move()
    {
        // Up to 4 MiB.
        numbers.resize(numbers.size() * 2 > 1 << 19 ? 1 : numbers.size() * 2);
        numbers.shrink_to_fit();
        names[static_cast<int>(names.size() * 7 % 1000)] = "another name that is too long to lie in the string";
    }
};

// Whether the value's contents move.
using moves = bool;

// One update of so many moves contents.
constexpr int moves_each = 32;

template <class T>
void of_kind(const char *name, const nodewise::pool &pool, int updates)
{
    auto original = std::make_unique<T>();
    auto operate = [](T &value, const moves &moves) { moves ? value.move() : value.change(); };
    nodewise::replicated<T> sides(*original);
    nodewise::node_replicated<T, moves, decltype(operate)> logged(*original, operate);
    std::size_t pages = 0, elsewhere = 0, misplaced = 0, moved = 0;
    auto nodes = pool.nodes();
    auto look_everywhere = [&] {
        for (std::uint32_t node : nodes) {
            looker seen{node};
            auto look = [&] {
                sides.read()->look(seen);
                logged.read()->look(seen);
            };
            pool.spawn_on(node, [&] { look(); }).join();
            pages += seen.pages;
            elsewhere += seen.elsewhere;
        }
    };
    int turns = 8, done = 0;
    for (int turn = 0; turn < turns; turn++) {
        look_everywhere();
        pool.spawn_on(nodes[turn % nodes.size()], [&] {
                for (int end = updates * (turn + 1) / turns; done < end; done++) {
                    bool moves = done % moves_each == 0;
                    sides.update([&](T &value) { operate(value, moves); });
                    logged.update(moves);
                    moved += moves;
                }
            }).join();
        // Its elements come from an assignment now.
        if (turn % 4 == 2)
            sides.set(*original);
    }
    look_everywhere();
    for (auto placement : {sides.placement(), logged.placement()}) {
        misplaced += placement.misplaced + placement.absent + placement.unknown;
        CHECK(placement.pages_by_node.size() == nodes.size());
    }
    std::printf("{\"kind\":\"%s\",\"nodes\":%zu,\"pages\":%zu,\"elsewhere\":%zu,\"misplaced\":%zu,\"updates\":%d,\"moves\":%zu}\n",
                name, nodes.size(), pages, elsewhere, misplaced, done, moved);
}

} // namespace

int main(int argc, char **argv)
{
    nodewise::pool pool;
    int updates = argc > 1 ? std::atoi(argv[1]) : 10'000;
    of_kind<plain<8>>("8 bytes", pool, updates);
    of_kind<plain<100>>("100 bytes", pool, updates);
    of_kind<plain<4096>>("a page", pool, updates);
    of_kind<plain<8192>>("two pages", pool, updates);
    of_kind<plain<1 << 20>>("1 MiB", pool, updates);
    of_kind<plain<4 << 20>>("4 MiB", pool, updates);
    of_kind<words>("words", pool, updates);
}
