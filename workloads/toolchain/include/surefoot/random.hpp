// Random numbers that are the same everywhere: standard distributions differ between libraries, these do not.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace surefoot {

// splitmix64's finisher: a well-mixed function of its argument.
inline std::uint64_t mix(std::uint64_t x) {
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

// A stream of draws, a pure function of its seed.
class Random {
public:
    explicit Random(std::uint64_t seed) : state_(mix(seed)) {}
    Random(std::uint64_t seed, std::uint64_t stream) : state_(mix(mix(seed) ^ stream)) {}

    std::uint64_t next() { return mix(state_ += 0x9e3779b97f4a7c15ull); }
    // Uniform in 0 to n - 1; the bias for the n used here is below 1e-9.
    std::uint64_t below(std::uint64_t n) { return static_cast<std::uint64_t>((static_cast<unsigned __int128>(next()) * n) >> 64); }
    // Uniform in [0, 1).
    double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
    // Uniform in [lo, hi].
    std::int64_t between(std::int64_t lo, std::int64_t hi) {
        return lo + static_cast<std::int64_t>(below(static_cast<std::uint64_t>(hi - lo) + 1));
    }
    // Mean 0, deviation 1, within +-6, near enough to normal: a sum of 12, because log and cos differ between machines in the last bit.
    double normal() {
        double sum = -6.0;
        for (int i = 0; i < 12; i++) sum += uniform();
        return sum;
    }

private:
    std::uint64_t state_;
};

// Ranks 0 to n - 1, rank r with probability proportional to 1 / (r + 1); other exponents would need pow, which differs in the last bit.
class Zipf {
public:
    explicit Zipf(std::size_t n) : cumulative_(n) {
        double sum = 0;
        for (std::size_t r = 0; r < n; r++) cumulative_[r] = sum += 1.0 / static_cast<double>(r + 1);
    }
    std::size_t draw(Random& random) const {
        const double at = random.uniform() * cumulative_.back();
        const auto found = std::upper_bound(cumulative_.begin(), cumulative_.end(), at);
        return std::min<std::size_t>(static_cast<std::size_t>(found - cumulative_.begin()), cumulative_.size() - 1);
    }

private:
    std::vector<double> cumulative_;
};

// A word for each number: pronounceable, short for small numbers, distinct.
inline std::string word(std::uint64_t n) {
    static const char* const syllables[] = {"ba", "de", "fi", "go", "hu", "ka", "le", "mi", "no", "pu", "ra", "se", "ti", "vo", "zu", "sha"};
    std::string text;
    for (n += 16; n > 0; n /= 16) text += syllables[n % 16];
    return text;
}

}  // namespace surefoot
