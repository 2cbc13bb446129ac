// Jobs that are bound by the core: option pricing, integer arithmetic; and a sort, bound by branches and L2.
#include <algorithm>
#include <cmath>
#include <surefoot/parallel.hpp>
#include <surefoot/random.hpp>
#include <surefoot/service.hpp>

#include "batch.hpp"

using namespace surefoot;

namespace batch {
namespace {

struct Option {
    double spot, strike, rate, volatility, years;
    bool put;
};

// Share of the normal distribution below x.
double normal_below(double x) { return 0.5 * std::erfc(-x * 0.70710678118654752); }

// Black, Scholes (1973): European option without dividends.
double price(const Option& o) {
    const double root = o.volatility * std::sqrt(o.years);
    const double d1 = (std::log(o.spot / o.strike) + (o.rate + 0.5 * o.volatility * o.volatility) * o.years) / root, d2 = d1 - root;
    const double discounted = o.strike * std::exp(-o.rate * o.years);
    return o.put ? discounted * normal_below(-d2) - o.spot * normal_below(-d1) : o.spot * normal_below(d1) - discounted * normal_below(d2);
}

Option option(Random& random) {
    return {50 + 100 * random.uniform(), 50 + 100 * random.uniform(), 0.1 * random.uniform(), 0.1 + 0.5 * random.uniform(), 0.1 + random.uniform(), random.below(2) == 0};
}

// Every worker prices its share of one portfolio from end to end, again and again. Native: the ten million options of PARSEC's input,
// 560 MB with their prices.
class Blackscholes : public Job {
public:
    static std::size_t count(unsigned threads, Size size) { return size == Size::native ? 10'000'000 : threads * std::size_t{65536}; }
    Blackscholes(unsigned threads, std::uint64_t seed, Size size)
        : threads_(threads), count_(count(threads, size)), options_(std::make_unique_for_overwrite<Option[]>(count_)),
          prices_(std::make_unique_for_overwrite<double[]>(count_)), at_(threads) {
        in_parallel(count_, threads, [&](std::size_t from, std::size_t to) {
            for (std::size_t i = from; i < to; i++) {
                Random random(seed, i);
                options_[i] = option(random);
                prices_[i] = 0;
            }
        });
        for (unsigned w = 0; w < threads; w++) at_[w].value = Part(count_, threads, w).from;
    }
    std::uint64_t step(unsigned w) override {
        const Part mine(count_, threads_, w);
        const std::size_t from = at_[w].value, to = std::min(mine.to, from + std::size_t{65536});
        for (std::size_t i = from; i < to; i++) prices_[i] = price(options_[i]);
        at_[w].value = to == mine.to ? mine.from : to;
        return to - from;
    }
    const Option& option_at(std::size_t i) const { return options_[i]; }
    double price_at(std::size_t i) const { return prices_[i]; }

private:
    struct alignas(64) At {
        std::size_t value = 0;
    };
    unsigned threads_;
    std::size_t count_;
    std::unique_ptr<Option[]> options_;
    std::unique_ptr<double[]> prices_;
    std::vector<At> at_;
};

class Hog : public Job {
public:
    Hog(unsigned threads, std::uint64_t seed) {
        for (unsigned w = 0; w < threads; w++) at_.push_back({mix(seed + w)});
    }
    std::uint64_t step(unsigned w) override {
        std::uint64_t x = at_[w].value;
        for (std::uint64_t i = 0; i < rounds; i++) x = mix(x);
        at_[w].value = x;
        return rounds;
    }
    std::uint64_t value(unsigned w) const { return at_[w].value; }
    static constexpr std::uint64_t rounds = 1 << 20;

private:
    struct alignas(64) Value {
        std::uint64_t value;
    };
    std::vector<Value> at_;
};

class Sort : public Job {
public:
    Sort(unsigned threads, std::uint64_t seed) : seed_(seed), data_(threads), round_(threads) {}
    std::uint64_t step(unsigned w) override {
        Random random(mix(seed_ + w), round_[w].value++);
        data_[w].resize(elements);
        for (auto& x : data_[w]) x = random.next();
        std::sort(data_[w].begin(), data_[w].end());
        return elements;
    }
    const std::vector<std::uint64_t>& data(unsigned w) const { return data_[w]; }
    static constexpr std::size_t elements = 1 << 18;

private:
    struct alignas(64) Round {
        std::uint64_t value = 0;
    };
    std::uint64_t seed_;
    std::vector<std::vector<std::uint64_t>> data_;
    std::vector<Round> round_;
};

}  // namespace

std::unique_ptr<Job> blackscholes(unsigned threads, std::uint64_t seed, Size size) { return std::make_unique<Blackscholes>(threads, seed, size); }
std::unique_ptr<Job> hog(unsigned threads, std::uint64_t seed, Size) { return std::make_unique<Hog>(threads, seed); }
std::unique_ptr<Job> sort(unsigned threads, std::uint64_t seed, Size) { return std::make_unique<Sort>(threads, seed); }

void verify_blackscholes(Size size) {
    // A textbook case: spot and strike 100, 5 %, 20 %, one year: 10.4506.
    must(std::abs(price({100, 100, 0.05, 0.2, 1, false}) - 10.4506) < 1e-4, "the textbook's call costs 10.4506");
    Random random(1);
    for (int i = 0; i < 1000; i++) {
        Option o = option(random);
        o.put = false;
        const double call = price(o);
        o.put = true;
        // Put-call parity: call - put = spot - discounted strike.
        must(std::abs(call - price(o) - (o.spot - o.strike * std::exp(-o.rate * o.years))) < 1e-9, "put-call parity holds");
    }
    // Three workers, each through the whole of its share: every option is priced, and the options are those of one worker.
    constexpr unsigned threads = 3;
    Blackscholes job(threads, 5, size);
    const std::size_t count = Blackscholes::count(threads, size);
    for (unsigned w = 0; w < threads; w++)
        for (std::size_t done = 0; done < Part(count, threads, w).to - Part(count, threads, w).from;) done += job.step(w);
    for (std::size_t i = 0; i < count; i += 997) {
        Random same(5, i);
        const Option o = option(same);
        must(o.spot == job.option_at(i).spot && price(o) == job.price_at(i), "option " + std::to_string(i) + " is priced");
    }
}

void verify_hog(Size) {
    Hog one(2, 7), two(2, 7);
    one.step(0);
    two.step(0);
    must(one.value(0) == two.value(0) && one.value(0) != one.value(1), "rounds are a function of the seed");
}

void verify_sort(Size) {
    Sort sort(1, 3);
    sort.step(0);
    Random random(mix(3), 0);
    std::uint64_t sum = 0, sorted = 0;
    for (std::size_t i = 0; i < Sort::elements; i++) sum += random.next();
    for (const std::uint64_t x : sort.data(0)) sorted += x;
    must(std::is_sorted(sort.data(0).begin(), sort.data(0).end()) && sum == sorted, "the same elements, in order");
}

}  // namespace batch
