// In-memory ordered store: point reads and writes over B-trees.
//
//   ordered-store --port P --threads N [--keys 1000000]
//   ordered-store --verify
//
// Keys 0 to keys - 1 (hashed) are split into ranges; each range is an Abseil B-tree behind a reader-writer lock, so threads meet only
// within a range. Request key K is a batch as TailBench's client of masstree puts it together: 256 operations on keys drawn evenly, reads
// and writes in turn.
#include <absl/container/btree_map.h>

#include <array>
#include <mutex>
#include <shared_mutex>
#include <surefoot/random.hpp>
#include <surefoot/service.hpp>

using namespace surefoot;

namespace {

constexpr std::size_t value_bytes = 64, operations = 256, range_bits = 8;
using Value = std::array<std::uint64_t, value_bytes / 8>;

// A value says which key it belongs to and how often it was written; the rest must fit both.
Value value_of(std::uint64_t key, std::uint64_t version) {
    Value v{key, version};
    for (std::size_t i = 2; i < v.size(); i++) v[i] = mix(key ^ mix(version + i));
    return v;
}

class Store {
public:
    explicit Store(std::uint64_t keys) : keys_(keys) {
        for (std::uint64_t i = 0; i < keys; i++) range_of(mix(i)).tree[mix(i)] = value_of(mix(i), 0);
    }
    std::uint64_t any(Random& random) const { return mix(random.below(keys_)); }

    bool get(std::uint64_t key, Value& out) {
        Range& r = range_of(key);
        const std::shared_lock<std::shared_mutex> hold(r.lock);
        const auto found = r.tree.find(key);
        if (found == r.tree.end()) return false;
        out = found->second;
        return true;
    }
    void put(std::uint64_t key) {
        Range& r = range_of(key);
        const std::unique_lock<std::shared_mutex> hold(r.lock);
        Value& v = r.tree[key];
        v = value_of(key, v[1] + 1);
    }
    // Every value, in the order of its key.
    std::vector<Value> all() {
        std::vector<Value> out;
        for (Range& r : ranges_) {
            const std::shared_lock<std::shared_mutex> hold(r.lock);
            for (const auto& [key, value] : r.tree) out.push_back(value);
        }
        return out;
    }
    std::uint64_t batch(std::uint64_t request) {
        Random random(31, request);
        std::uint64_t sum = 0;
        for (std::size_t i = 0; i < operations; i++) {
            const std::uint64_t key = any(random);
            Value v{};
            if (i % 2 == 1) {
                put(key);
            } else if (get(key, v)) {
                sum += v[2];
            }
        }
        return sum;
    }
    std::uint64_t size() {
        std::uint64_t n = 0;
        for (Range& r : ranges_) n += r.tree.size();
        return n;
    }

private:
    struct alignas(64) Range {
        std::shared_mutex lock;
        absl::btree_map<std::uint64_t, Value> tree;
    };
    Range& range_of(std::uint64_t key) { return ranges_[key >> (64 - range_bits)]; }

    std::uint64_t keys_;
    std::vector<Range> ranges_ = std::vector<Range>(std::size_t{1} << range_bits);
};

void check() {
    constexpr std::uint64_t keys = 20000;
    Store store(keys);
    must(store.size() == keys, "every key is stored once");
    // Four threads at once; afterwards no value is torn, none is lost.
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 4; t++) threads.emplace_back([&store, t] { for (std::uint64_t i = 0; i < 500; i++) store.batch(i * 4 + t); });
    for (auto& t : threads) t.join();
    const std::vector<Value> all = store.all();
    must(all.size() == keys, "every key is met once");
    std::uint64_t writes = 0;
    for (std::size_t i = 0; i < all.size(); i++) {
        must(i == 0 || all[i - 1][0] < all[i][0], "keys are in order");
        must(all[i] == value_of(all[i][0], all[i][1]), "a value belongs to its key and version");
        writes += all[i][1];
    }
    // What the same 2000 batches must have written, by their own draws.
    std::uint64_t expected = 0;
    std::map<std::uint64_t, std::uint64_t> written;
    for (std::uint64_t request = 0; request < 2000; request++) {
        Random random(31, request);
        for (std::size_t i = 0; i < operations; i++) {
            const std::uint64_t key = store.any(random);
            expected += i % 2;
            if (i % 2 == 1) written[key]++;
        }
    }
    must(writes == expected && expected == 2000 * operations / 2, "half the operations are writes, and none is lost");
    for (const Value& v : all) must(v[1] == (written.contains(v[0]) ? written.at(v[0]) : 0), "each write is of its own key");
}

}  // namespace

int main(int argc, char** argv) {
    Arguments arguments(argc, argv);
    if (arguments.flag("verify")) {
        arguments.done();
        check();
        std::puts("verify: ok");
        return 0;
    }
    Store store(static_cast<std::uint64_t>(arguments.number("keys", 1000000, 1000, 1000000000)));
    serve(arguments, [&](unsigned) { return Handler([&store](std::uint64_t key) { return std::to_string(store.batch(key)) + "\n"; }); });
}
