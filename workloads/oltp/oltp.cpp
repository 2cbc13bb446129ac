// In-memory OLTP engine with optimistic concurrency control, under a TPC-C-like mix.
//
//   oltp --port P --threads N [--warehouses 4]
//   oltp --verify
//
// Request key K is a batch of 8 transactions drawn from K: 45 % new order, 43 % payment, 4 % each order status, delivery and stock
// level, with TPC-C's skewed choice of customers and items and 1 % of new orders rolled back. A record has a version word whose lowest
// bit is a lock. A transaction reads copies, locks what it writes in address order, checks that what it read is unchanged, and writes
// (Silo's commit protocol without its epochs and its log: nothing is durable). Not a TPC-C implementation: no think times, no terminals,
// a district keeps its newest 4096 orders, secondary indexes are arrays.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <surefoot/random.hpp>
#include <surefoot/service.hpp>
#include <type_traits>

using namespace surefoot;

namespace {

constexpr std::size_t districts = 10, customers = 3000, items = 100000, kept_orders = 4096, max_lines = 15, batch = 8;

// One record: a version (even: free; odd: locked by a committing transaction) and its value in words, so that a reader who is
// overtaken by a writer reads a stale word and not a torn one; the version then tells.
template <class T>
struct Record {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % 8 == 0);
    static constexpr std::size_t words = sizeof(T) / 8;
    std::atomic<std::uint64_t> version{0};
    std::array<std::atomic<std::uint64_t>, words> value{};

    void store(const T& v) {
        std::uint64_t w[words];
        std::memcpy(w, &v, sizeof v);
        for (std::size_t i = 0; i < words; i++) value[i].store(w[i], std::memory_order_relaxed);
    }
    T load() const {
        std::uint64_t w[words];
        for (std::size_t i = 0; i < words; i++) w[i] = value[i].load(std::memory_order_relaxed);
        T v;
        std::memcpy(&v, w, sizeof v);
        return v;
    }
};

// Money in cents.
struct Warehouse { std::int64_t tax, year_to_date; };
struct District { std::int64_t tax, year_to_date, next_order, next_delivery; };
struct Customer { std::int64_t discount, balance, paid, payments, deliveries, last_order; };
struct Stock { std::int64_t quantity, year_to_date, orders, remote; };
struct Line { std::int64_t item, supplier, quantity, amount; };
struct Order { std::int64_t number, customer, lines, carrier; std::array<Line, max_lines> line; };

struct Aborted {};

// One attempt. Reads go to copies; writes wait for `commit`.
class Transaction {
public:
    template <class T>
    T read(Record<T>& r) {
        for (const Write& w : writes_)
            if (w.version == &r.version) { T v; std::memcpy(&v, w.value.data(), sizeof v); return v; }
        for (;;) {
            const std::uint64_t before = r.version.load(std::memory_order_acquire);
            if (before & 1) { std::this_thread::yield(); continue; }
            const T v = r.load();
            std::atomic_thread_fence(std::memory_order_acquire);
            if (r.version.load(std::memory_order_relaxed) == before) {
                reads_.push_back({&r.version, before});
                return v;
            }
        }
    }
    template <class T>
    void write(Record<T>& r, const T& v) {
        auto found = std::find_if(writes_.begin(), writes_.end(), [&](const Write& w) { return w.version == &r.version; });
        if (found == writes_.end()) found = writes_.insert(found, Write{&r.version, &r, nullptr, {}});
        found->value.resize(Record<T>::words);
        std::memcpy(found->value.data(), &v, sizeof v);
        found->put = [](void* record, const std::uint64_t* words) {
            auto* to = static_cast<Record<T>*>(record);
            for (std::size_t i = 0; i < Record<T>::words; i++) to->value[i].store(words[i], std::memory_order_relaxed);
        };
    }
    // Throws Aborted where another transaction was in the way; nothing is changed then.
    void commit() {
        // One order for all: no two transactions wait for each other.
        std::sort(writes_.begin(), writes_.end(), [](const Write& a, const Write& b) { return a.version < b.version; });
        for (const Write& w : writes_) {
            for (;;) {
                std::uint64_t free = w.version->load(std::memory_order_relaxed) & ~1ull;
                if (w.version->compare_exchange_weak(free, free | 1, std::memory_order_acquire)) break;
                std::this_thread::yield();
            }
        }
        std::atomic_thread_fence(std::memory_order_seq_cst);
        for (const auto& [version, seen] : reads_) {
            const std::uint64_t now = version->load(std::memory_order_acquire);
            const bool mine = std::any_of(writes_.begin(), writes_.end(), [&](const Write& w) { return w.version == version; });
            if (now != (mine ? seen | 1 : seen)) {
                for (const Write& w : writes_) w.version->fetch_and(~1ull, std::memory_order_release);
                throw Aborted{};
            }
        }
        // Order matters to readers: odd version, then values.
        std::atomic_thread_fence(std::memory_order_release);
        for (const Write& w : writes_) {
            w.put(w.record, w.value.data());
            w.version->fetch_add(1, std::memory_order_release);  // odd to the next even
        }
    }

private:
    struct Write {
        std::atomic<std::uint64_t>* version;
        void* record;
        void (*put)(void*, const std::uint64_t*);
        std::vector<std::uint64_t> value;
    };
    std::vector<std::pair<std::atomic<std::uint64_t>*, std::uint64_t>> reads_;
    std::vector<Write> writes_;
};

struct Counts { std::uint64_t committed = 0, rolled_back = 0, retried = 0, paid = 0, ordered = 0; };

class Engine {
public:
    explicit Engine(std::size_t warehouses)
        : w_(warehouses), warehouse_(w_), district_(w_ * districts), customer_(w_ * districts * customers), stock_(w_ * items), order_(w_ * districts * kept_orders) {
        Random random(61);
        for (auto& w : warehouse_) w.store({random.between(0, 20), 0});
        for (auto& d : district_) d.store({random.between(0, 20), 0, 1, 1});
        for (auto& c : customer_) c.store({random.between(0, 50), 0, 0, 0, 0, 0});
        for (auto& s : stock_) s.store({random.between(10, 100), 0, 0, 0});
        for (std::size_t i = 0; i < items; i++) price_.push_back(random.between(100, 10000));
    }

    // Ends when the transaction has committed or rolled itself back.
    void run(Random& random, Counts& counts) {
        // Drawn once: a retry must do the same.
        const std::uint64_t seed = random.next();
        for (;; counts.retried++) {
            Random mine(seed);
            Transaction t;
            Counts after = counts;
            try {
                const auto which = mine.below(100);
                const bool done = which < 45   ? new_order(t, mine, after)
                                  : which < 88 ? payment(t, mine, after)
                                  : which < 92 ? order_status(t, mine)
                                  : which < 96 ? delivery(t, mine)
                                               : stock_level(t, mine);
                if (done) {
                    t.commit();
                    after.committed++;
                } else {
                    after.rolled_back++;
                }
                counts = after;
                return;
            } catch (const Aborted&) {
            }
        }
    }

    // What holds between whole transactions, whatever their order; TPC-C's consistency conditions 1 and 2, and two of our own.
    void check(const Counts& total) {
        std::int64_t paid = 0, ordered = 0, stock_orders = 0;
        for (std::size_t w = 0; w < w_; w++) {
            std::int64_t sum = 0;
            for (std::size_t d = 0; d < districts; d++) {
                const District x = district_[w * districts + d].load();
                sum += x.year_to_date;
                ordered += x.next_order - 1;
                must(x.next_delivery <= x.next_order, "no order is delivered before it is made");
                if (x.next_order > 1) must(order(w, d, x.next_order - 1).load().number == x.next_order - 1, "the newest order is there");
            }
            must(sum == warehouse_[w].load().year_to_date, "a warehouse has what its districts have");
            paid += sum;
        }
        for (auto& s : stock_) {
            const Stock x = s.load();
            must(x.quantity >= 0, "stock is never negative");
            stock_orders += x.orders;
        }
        must(paid == static_cast<std::int64_t>(total.paid), "no payment is lost or doubled");
        must(ordered == static_cast<std::int64_t>(total.ordered), "no order is lost or doubled");
        must(stock_orders >= 5 * ordered && stock_orders <= static_cast<std::int64_t>(max_lines) * ordered, "an order has 5 to 15 lines");
    }

private:
    // TPC-C's NURand: a few are hot.
    static std::size_t skewed(Random& random, std::uint64_t a, std::size_t n) {
        return static_cast<std::size_t>((random.below(a + 1) | random.below(n)) % n);
    }
    Record<Order>& order(std::size_t w, std::size_t d, std::int64_t number) {
        return order_[(w * districts + d) * kept_orders + static_cast<std::size_t>(number) % kept_orders];
    }
    Record<Customer>& customer(std::size_t w, std::size_t d, std::size_t c) { return customer_[(w * districts + d) * customers + c]; }

    bool new_order(Transaction& t, Random& random, Counts& counts) {
        const std::size_t w = random.below(w_), d = random.below(districts), c = skewed(random, 1023, customers);
        const Warehouse home = t.read(warehouse_[w]);
        District dist = t.read(district_[w * districts + d]);
        Customer who = t.read(customer(w, d, c));
        Order o{};
        o.number = dist.next_order++;
        o.customer = static_cast<std::int64_t>(c);
        o.lines = random.between(5, max_lines);
        const bool wrong_item = random.below(100) == 0;
        std::int64_t sum = 0;
        for (std::int64_t l = 0; l < o.lines; l++) {
            if (wrong_item && l + 1 == o.lines) return false;
            const std::size_t item = skewed(random, 8191, items);
            const std::size_t from = w_ > 1 && random.below(100) == 0 ? random.below(w_) : w;
            Stock s = t.read(stock_[from * items + item]);
            const std::int64_t quantity = random.between(1, 10);
            s.quantity += s.quantity - quantity < 10 ? 91 - quantity : -quantity;
            s.year_to_date += quantity;
            s.orders++;
            s.remote += from != w;
            t.write(stock_[from * items + item], s);
            o.line[static_cast<std::size_t>(l)] = {static_cast<std::int64_t>(item), static_cast<std::int64_t>(from), quantity, quantity * price_[item]};
            sum += quantity * price_[item];
        }
        sum = sum * (100 - who.discount) / 100 * (100 + home.tax + dist.tax) / 100;
        who.balance += sum;
        who.last_order = o.number;
        t.write(customer(w, d, c), who);
        t.write(district_[w * districts + d], dist);
        t.write(order(w, d, o.number), o);
        counts.ordered++;
        return true;
    }
    bool payment(Transaction& t, Random& random, Counts& counts) {
        const std::size_t w = random.below(w_), d = random.below(districts);
        const std::size_t from = w_ > 1 && random.below(100) < 15 ? random.below(w_) : w;
        auto& payer = customer(from, random.below(districts), skewed(random, 1023, customers));
        const std::int64_t amount = random.between(100, 500000);
        Warehouse home = t.read(warehouse_[w]);
        home.year_to_date += amount;
        t.write(warehouse_[w], home);
        District dist = t.read(district_[w * districts + d]);
        dist.year_to_date += amount;
        t.write(district_[w * districts + d], dist);
        Customer who = t.read(payer);
        who.balance -= amount;
        who.paid += amount;
        who.payments++;
        t.write(payer, who);
        counts.paid += static_cast<std::uint64_t>(amount);
        return true;
    }
    bool order_status(Transaction& t, Random& random) {
        const std::size_t w = random.below(w_), d = random.below(districts);
        const Customer who = t.read(customer(w, d, skewed(random, 1023, customers)));
        if (who.last_order > 0) t.read(order(w, d, who.last_order));
        return true;
    }
    bool delivery(Transaction& t, Random& random) {
        const std::size_t w = random.below(w_);
        const std::int64_t carrier = random.between(1, 10);
        for (std::size_t d = 0; d < districts; d++) {
            District dist = t.read(district_[w * districts + d]);
            // Orders that gave way to newer ones count as delivered.
            dist.next_delivery = std::max(dist.next_delivery, dist.next_order - static_cast<std::int64_t>(kept_orders));
            if (dist.next_delivery >= dist.next_order) continue;
            auto& record = order(w, d, dist.next_delivery++);
            Order o = t.read(record);
            o.carrier = carrier;
            auto& buyer = customer(w, d, static_cast<std::size_t>(o.customer));
            Customer who = t.read(buyer);
            who.deliveries++;
            t.write(record, o);
            t.write(buyer, who);
            t.write(district_[w * districts + d], dist);
        }
        return true;
    }
    bool stock_level(Transaction& t, Random& random) {
        const std::size_t w = random.below(w_), d = random.below(districts);
        const District dist = t.read(district_[w * districts + d]);
        const std::int64_t limit = random.between(10, 20);
        std::vector<std::int64_t> low;
        for (std::int64_t n = std::max<std::int64_t>(1, dist.next_order - 20); n < dist.next_order; n++) {
            const Order o = t.read(order(w, d, n));
            for (std::int64_t l = 0; l < o.lines; l++) {
                const std::int64_t item = o.line[static_cast<std::size_t>(l)].item;
                if (t.read(stock_[w * items + static_cast<std::size_t>(item)]).quantity < limit) low.push_back(item);
            }
        }
        std::sort(low.begin(), low.end());
        low.erase(std::unique(low.begin(), low.end()), low.end());
        return true;
    }

    std::size_t w_;
    std::vector<Record<Warehouse>> warehouse_;
    std::vector<Record<District>> district_;
    std::vector<Record<Customer>> customer_;
    std::vector<Record<Stock>> stock_;
    std::vector<Record<Order>> order_;
    std::vector<std::int64_t> price_;
};

void verify() {
    // One warehouse and four threads: as much conflict as there can be.
    constexpr unsigned threads = 4;
    Engine engine(1);
    std::array<Counts, threads> counts;
    std::vector<std::thread> all;
    for (unsigned i = 0; i < threads; i++) {
        all.emplace_back([&, i] {
            Random random(62, i);
            for (int n = 0; n < 20000; n++) engine.run(random, counts[i]);
        });
    }
    Counts total;
    for (unsigned i = 0; i < threads; i++) {
        all[i].join();
        total.committed += counts[i].committed;
        total.rolled_back += counts[i].rolled_back;
        total.retried += counts[i].retried;
        total.paid += counts[i].paid;
        total.ordered += counts[i].ordered;
    }
    engine.check(total);
    must(total.committed + total.rolled_back == threads * 20000, "every transaction ends");
    // 80,000 x 45 % x 1 % = 360, deviation 19.
    must(total.rolled_back > 260 && total.rolled_back < 460, "1 % of new orders are rolled back: " + std::to_string(total.rolled_back));
    std::printf("verify: ok, %llu committed, %llu retried\n", static_cast<unsigned long long>(total.committed), static_cast<unsigned long long>(total.retried));
}

}  // namespace

int main(int argc, char** argv) {
    Arguments arguments(argc, argv);
    if (arguments.flag("verify")) {
        arguments.done();
        verify();
        return 0;
    }
    Engine engine(static_cast<std::size_t>(arguments.number("warehouses", 4, 1, 1000)));
    serve(arguments, [&](unsigned) {
        return Handler([&engine](std::uint64_t key) {
            Random random(63, key);
            Counts counts;
            for (std::size_t i = 0; i < batch; i++) engine.run(random, counts);
            return "committed " + std::to_string(counts.committed) + " rolled back " + std::to_string(counts.rolled_back) + "\n";
        });
    });
}
