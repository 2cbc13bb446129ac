// Best-effort jobs, one program.
//
//   batch JOB --threads N [--seed 1] [--seconds S]    endless without --seconds
//   batch verify                                      every job's self-check
//
// Every second one line: seconds since start and units of work a second (options, distances, moves, edges ...: see `kinds`).
#include "batch.hpp"

#include <chrono>
#include <surefoot/service.hpp>

using namespace surefoot;

namespace batch {

const Kind kinds[] = {
    {"blackscholes", "options", blackscholes, verify_blackscholes},
    {"streamcluster", "distances", streamcluster, verify_streamcluster},
    {"particles", "likelihoods", particles, verify_particles},
    {"annealing", "moves", annealing, verify_annealing},
    {"bfs", "edges", bfs, verify_bfs},
    {"bc", "edges", bc, verify_bc},
    {"components", "edges", components, verify_components},
    {"hog", "rounds", hog, verify_hog},
    {"sort", "elements", sort, verify_sort},
    {nullptr, nullptr, nullptr, nullptr},
};

}  // namespace batch

namespace {

// A line of its own for each counter: shared lines would measure the counters.
struct alignas(64) Counter {
    std::atomic<std::uint64_t> units{0};
};

void run(const batch::Kind& kind, unsigned threads, std::uint64_t seed, std::int64_t seconds) {
    const auto job = kind.make(threads, seed);
    std::vector<Counter> counters(threads);
    const auto start = std::chrono::steady_clock::now();
    for (unsigned i = 0; i < threads; i++) {
        std::thread([&, i] {
            for (;;) counters[i].units.fetch_add(job->step(i), std::memory_order_relaxed);
        }).detach();
    }
    auto last = start;
    std::uint64_t before = 0;
    for (std::int64_t tick = 1; seconds == 0 || tick <= seconds; tick++) {
        std::this_thread::sleep_until(start + std::chrono::seconds(tick));
        std::uint64_t sum = 0;
        for (const auto& c : counters) sum += c.units.load(std::memory_order_relaxed);
        const auto now = std::chrono::steady_clock::now();
        const std::chrono::duration<double> since = now - start, step = now - last;
        std::printf("%.1f %.0f\n", since.count(), static_cast<double>(sum - before) / step.count());
        if (std::fflush(stdout) != 0) ::_exit(1);
        before = sum;
        last = now;
    }
    // Workers never end by themselves.
    ::_exit(0);
}

}  // namespace

int main(int argc, char** argv) {
    for (const int s : {SIGTERM, SIGINT}) std::signal(s, [](int) { ::_exit(0); });
    Arguments arguments(argc, argv);
    std::string known;
    for (const batch::Kind* k = batch::kinds; k->name != nullptr; k++) known += std::string(k == batch::kinds ? "" : "|") + k->name;
    const auto words = arguments.words();
    if (words.size() != 1) die(2, "usage: batch " + known + " [--threads N] [--seed N] [--seconds N], or batch verify");
    if (words[0] == "verify") {
        arguments.done();
        for (const batch::Kind* k = batch::kinds; k->name != nullptr; k++) {
            k->verify();
            std::printf("verify: %s ok\n", k->name);
        }
        return 0;
    }
    const auto threads = static_cast<unsigned>(arguments.number("threads", 1, 1, 256));
    const auto seed = static_cast<std::uint64_t>(arguments.number("seed", 1, 0, INT64_MAX));
    const auto seconds = arguments.number("seconds", 0, 0, 86400);
    arguments.done();
    for (const batch::Kind* k = batch::kinds; k->name != nullptr; k++)
        if (words[0] == k->name) run(*k, threads, seed, seconds);
    die(2, "job \"" + words[0] + "\": give one of " + known);
}
