// The nodes of the contents of replicated values, from C++, on a machine with several nodes. Each node's
// thread asks the kernel about every page that it reads, before and after updates. The program prints a line
// of JSON for each kind of value.
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

    void change()
    {
        // Up to 4 MiB.
        numbers.resize(numbers.size() * 2 > 1 << 19 ? 1 : numbers.size() * 2);
        names[static_cast<int>(names.size() * 7 % 1000)] = "another name that is too long to lie in the string";
    }
};

struct change {
    char nothing;
};

template <class T>
void of_kind(const char *name, const nodewise::pool &pool, int values, int updates)
{
    auto original = std::make_unique<T>();
    auto operate = [](T &value, const change &) { value.change(); };
    std::vector<nodewise::replicated<T>> sides;
    std::vector<nodewise::node_replicated<T, change, decltype(operate)>> logged;
    for (int i = 0; i < values; i++) {
        sides.emplace_back(*original);
        logged.emplace_back(*original, operate);
    }
    std::size_t pages = 0, elsewhere = 0, misplaced = 0;
    for (int round = 0; round < 2; round++) {
        for (std::uint32_t node : pool.nodes()) {
            looker seen{node};
            auto look = [&] {
                for (int i = 0; i < values; i++) {
                    sides[i].read()->look(seen);
                    logged[i].read()->look(seen);
                }
            };
            pool.spawn_on(node, [&] { look(); }).join();
            pages += seen.pages;
            elsewhere += seen.elsewhere;
        }
        for (std::uint32_t node : pool.nodes()) {
            pool.spawn_on(node, [&] {
                    for (int update = 0; update < updates; update++) {
                        sides[update % values].update([](T &value) { value.change(); });
                        logged[update % values].update({});
                    }
                }).join();
        }
        // Its elements come from an assignment now.
        for (int i = 0; round == 0 && i < values; i += 2)
            sides[i].set(*original);
    }
    for (int i = 0; i < values; i++) {
        for (auto placement : {sides[i].placement(), logged[i].placement()}) {
            misplaced += placement.misplaced + placement.absent + placement.unknown;
            CHECK(placement.pages_by_node.size() == pool.nodes().size());
        }
    }
    std::printf("{\"kind\":\"%s\",\"nodes\":%zu,\"pages\":%zu,\"elsewhere\":%zu,\"misplaced\":%zu}\n", name,
                pool.nodes().size(), pages, elsewhere, misplaced);
}

} // namespace

int main()
{
    nodewise::pool pool;
    of_kind<plain<8>>("8 bytes", pool, 5, 1250);
    of_kind<plain<100>>("100 bytes", pool, 5, 20);
    of_kind<plain<4096>>("a page", pool, 5, 20);
    of_kind<plain<8192>>("two pages", pool, 5, 20);
    of_kind<plain<1 << 20>>("1 MiB", pool, 1, 20);
    of_kind<plain<4 << 20>>("4 MiB", pool, 1, 20);
    of_kind<words>("words", pool, 2, 50);
}
