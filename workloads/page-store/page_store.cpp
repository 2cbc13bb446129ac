// Store of pages that needs memory more than anything else: what is said of memory limits and of compressed memory is tried on it.
//
//   page-store --port P --threads N [--mb 420] [--skew 990] [--random 500]
//   page-store --verify
//
// The working set is --mb MiB of pages of 4 KiB, all of them written before the first request. Of each page --random thousandths are random
// bytes and the rest is one byte over and over, so that a page compresses to about that. Request key K reads sixteen pages and writes one. A
// page of rank r is drawn with probability proportional to 1 / (r + 1)^(--skew / 1000); with 0 all pages are alike. Ranks lie scattered.
#include <array>
#include <cmath>
#include <mutex>
#include <shared_mutex>
#include <surefoot/random.hpp>
#include <surefoot/service.hpp>

using namespace surefoot;

namespace {

constexpr std::size_t page_bytes = 4096, reads = 16, range_bits = 6;
// Greater than any number of pages, and prime: times it, modulo that number, every rank has a page of its own.
constexpr std::uint64_t stride = 4294967311ull;
using Page = std::array<std::uint64_t, page_bytes / 8>;

// Which pages are asked for how often.
class Popularity {
public:
    Popularity(std::size_t pages, double skew) : cumulative_(pages) {
        double sum = 0;
        for (std::size_t r = 0; r < pages; r++) cumulative_[r] = sum += std::pow(static_cast<double>(r + 1), -skew);
    }
    std::size_t draw(Random& random) const {
        const double at = random.uniform() * cumulative_.back();
        const auto found = std::upper_bound(cumulative_.begin(), cumulative_.end(), at);
        const std::size_t rank = std::min<std::size_t>(static_cast<std::size_t>(found - cumulative_.begin()), cumulative_.size() - 1);
        return static_cast<std::size_t>(rank * stride % cumulative_.size());
    }

private:
    std::vector<double> cumulative_;
};

class Store {
public:
    Store(std::size_t pages, double skew, std::size_t random_words) : pages_(pages), popularity_(pages, skew) {
        for (std::size_t p = 0; p < pages; p++) {
            Random random(41, p);
            Page& page = pages_[p];
            for (std::size_t i = 0; i < page.size(); i++) page[i] = i < random_words ? random.next() : 0x0707070707070707ull;
            // How often it was written.
            page.back() = 0;
        }
    }
    std::uint64_t batch(std::uint64_t request) {
        Random random(43, request);
        std::uint64_t sum = 0;
        for (std::size_t i = 0; i < reads; i++) {
            const std::size_t p = popularity_.draw(random);
            const std::shared_lock<std::shared_mutex> hold(lock_of(p));
            sum += pages_[p][0] + pages_[p].back();
        }
        const std::size_t p = popularity_.draw(random);
        const std::unique_lock<std::shared_mutex> hold(lock_of(p));
        pages_[p].back()++;
        return sum;
    }
    std::uint64_t writes() const {
        std::uint64_t n = 0;
        for (const Page& page : pages_) n += page.back();
        return n;
    }
    const std::vector<Page>& pages() const { return pages_; }

private:
    std::shared_mutex& lock_of(std::size_t page) { return locks_[page % locks_.size()]; }

    std::vector<Page> pages_;
    Popularity popularity_;
    std::vector<std::shared_mutex> locks_ = std::vector<std::shared_mutex>(std::size_t{1} << range_bits);
};

void check() {
    constexpr std::size_t pages = 1000;
    Store store(pages, 0.99, page_bytes / 16);
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 4; t++) threads.emplace_back([&store, t] { for (std::uint64_t i = 0; i < 500; i++) store.batch(i * 4 + t); });
    for (auto& t : threads) t.join();
    must(store.writes() == 2000, "each request writes one page, and none is lost");
    for (std::size_t p = 0; p < pages; p++) must(store.pages()[p][0] == Random(41, p).next(), "a page keeps what it was filled with");
    // Every rank is a page: of as many draws as could miss one only once in e^46, all are met; with skew the first is met most.
    for (const double skew : {0.0, 0.99}) {
        const Popularity popularity(64, skew);
        std::vector<std::uint64_t> met(64);
        Random random(47);
        for (int i = 0; i < 64 * 1000; i++) met[popularity.draw(random)]++;
        must(*std::min_element(met.begin(), met.end()) > 0, "every page is asked for");
        // 1 / H(64, 0.99) = 0.208 of all, and with 0 one in 64.
        const double first = static_cast<double>(met[0]) / (64 * 1000);
        must(skew == 0.0 ? first < 0.02 : first > 0.19 && first < 0.23, "the most popular page is asked for as often as its rank says");
    }
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
    const auto pages = static_cast<std::size_t>(arguments.number("mb", 420, 1, 1048576)) * (1048576 / page_bytes);
    const double skew = static_cast<double>(arguments.number("skew", 990, 0, 2000)) / 1000;
    const auto random_words = static_cast<std::size_t>(arguments.number("random", 500, 0, 1000)) * (page_bytes / 8 - 1) / 1000;
    Store store(pages, skew, random_words);
    serve(arguments, [&](unsigned) { return Handler([&store](std::uint64_t key) { return std::to_string(store.batch(key)) + "\n"; }); });
}
