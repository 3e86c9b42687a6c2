// Blocks of known sizes by new and by containers.
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#define CALLED __attribute__((noinline)) static

struct alignas(64) line {
    char bytes[64];
};

CALLED double *by_new() { return new double[1 << 15]; }

CALLED line *lines() { return new line[1000]; }

CALLED std::vector<int> filled() { return std::vector<int>(100000, 7); }

CALLED void grow(std::vector<char> &bytes)
{
    for (int i = 0; i < 1 << 20; i++)
        bytes.push_back(char(i));
}

CALLED std::string text() { return std::string(50000, 'x'); }

CALLED bool is_refused()
{
    static volatile std::size_t bytes = std::size_t(1) << 60;
    static char *volatile block;
    try {
        block = new char[bytes];
        delete[] block;
    } catch (const std::bad_alloc &) {
        return true;
    }
    return false;
}

int main()
{
    std::unique_ptr<double[]> numbers(by_new());
    std::unique_ptr<line[]> aligned(lines());
    std::vector<char> grown;
    std::size_t bytes = filled().size();
    std::thread([&] { bytes += text().size(); }).join();
    grow(grown);
    return is_refused() && bytes == 150000 && grown.size() == 1 << 20 ? 0 : 1;
}
