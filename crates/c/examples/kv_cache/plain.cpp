// A cache of keys and values in shards, each served by a thread, under a load of reads and some writes.
//
// c++ -std=c++17 -O2 plain.cpp -pthread -o kv_cache && ./kv_cache [KEYS]
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

constexpr std::uint64_t requests_a_key = 10;

// Numbers that look random (SplitMix64).
static std::uint64_t mix(std::uint64_t number)
{
    number += 0x9e3779b97f4a7c15;
    number = (number ^ (number >> 30)) * 0xbf58476d1ce4e5b9;
    return number ^ (number >> 31);
}

// 64 to 575 bytes.
static std::string value_of(std::uint64_t key)
{
    return std::string(64 + mix(key) % 512, static_cast<char>(key % 128));
}

class shard {
public:
    void put(std::uint64_t key, const std::string &value) { values_[key].assign(value); }

    // How many keys were there, and the sum of their values' bytes.
    std::pair<std::uint64_t, std::uint64_t> serve(const std::vector<std::uint64_t> &requests)
    {
        std::uint64_t hits = 0, sum = 0;
        for (std::uint64_t request : requests) {
            std::uint64_t key = request / requests_a_key;
            if (request % requests_a_key == 0) {
                put(key, value_of(key));
            } else if (auto found = values_.find(key); found != values_.end()) {
                hits++;
                sum = std::accumulate(found->second.begin(), found->second.end(), sum);
            }
        }
        return {hits, sum};
    }

private:
    std::unordered_map<std::uint64_t, std::string> values_;
};

int main(int count, char **arguments)
{
    std::uint64_t keys = count > 1 ? std::stoull(arguments[1]) : 200000;
    std::vector<shard> shards;
    for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); i++)
        shards.emplace_back();

    // Whoever starts the cache fills it, from a file for instance.
    for (std::uint64_t key = 0; key < keys; key++)
        shards[key % shards.size()].put(key, value_of(key));
    std::vector<std::vector<std::uint64_t>> requests(shards.size());
    for (std::uint64_t i = 0; i < keys * requests_a_key; i++) {
        std::uint64_t request = mix(i) % (keys * requests_a_key);
        requests[request / requests_a_key % shards.size()].push_back(request);
    }

    auto began = std::chrono::steady_clock::now();
    std::vector<std::pair<std::uint64_t, std::uint64_t>> results(shards.size());
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < shards.size(); i++)
        threads.emplace_back([&, i] { results[i] = shards[i].serve(requests[i]); });
    for (std::thread &thread : threads)
        thread.join();
    std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;

    std::fprintf(stderr, "%.0f requests a second\n", static_cast<double>(keys * requests_a_key) / took.count());
    std::uint64_t hits = 0, sum = 0;
    for (auto [of_shard, bytes] : results)
        hits += of_shard, sum += bytes;
    std::printf("%llu hits, sum %llu\n", static_cast<unsigned long long>(hits), static_cast<unsigned long long>(sum));
}
