// Best-effort jobs, one program.
//
//   batch JOB --threads N [--size native|small] [--seed 1] [--seconds S [--report]]    endless without --seconds
//   batch verify [--size small|native]                                      every job's self-check; native takes 2 GB
//
// The size is that of the native input of the original, unless `small` is asked for. The data are made at the start by all threads; the
// line "ready: JOB" on stderr says that they are. --report adds a last line: what the job used in these seconds, as JSON.
// Every second one line: seconds since start and units of work a second (options, distances, moves, edges ...: see `kinds`).
#include "batch.hpp"

#include <chrono>
#include <surefoot/service.hpp>

using namespace surefoot;

namespace batch {

const Kind kinds[] = {
    {"blackscholes", "options", true, blackscholes, verify_blackscholes},
    {"streamcluster", "distances", true, streamcluster, verify_streamcluster},
    {"particles", "likelihoods", false, particles, verify_particles},
    {"annealing", "moves", true, annealing, verify_annealing},
    {"bfs", "edges", false, bfs, verify_bfs},
    {"bc", "edges", false, bc, verify_bc},
    {"components", "edges", false, components, verify_components},
    {"hog", "rounds", false, hog, verify_hog},
    {"sort", "elements", false, sort, verify_sort},
    {nullptr, nullptr, false, nullptr, nullptr},
};

}  // namespace batch

namespace {

// A line of its own for each counter: shared lines would measure the counters.
struct alignas(64) Counter {
    std::atomic<std::uint64_t> units{0};
};

void run(const batch::Kind& kind, unsigned threads, std::uint64_t seed, batch::Size size, std::int64_t seconds, bool report) {
    const auto job = kind.make(threads, seed, size);
    std::fprintf(stderr, "ready: %s\n", kind.name);
    std::vector<Counter> counters(threads);
    const Meter meter;
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
    if (report) std::printf("%s\n", meter.json("\"job\": \"" + std::string(kind.name) + "\", ").c_str());
    if (std::fflush(stdout) != 0) ::_exit(1);
    // Workers never end by themselves.
    ::_exit(0);
}

batch::Size size_of(Arguments& arguments, const char* otherwise) {
    const std::string text = arguments.text("size", otherwise);
    if (text != "native" && text != "small") die(2, "--size \"" + text + "\": give native or small");
    return text == "native" ? batch::Size::native : batch::Size::small;
}

}  // namespace

int main(int argc, char** argv) {
    for (const int s : {SIGTERM, SIGINT}) std::signal(s, [](int) { ::_exit(0); });
    Arguments arguments(argc, argv);
    std::string known;
    for (const batch::Kind* k = batch::kinds; k->name != nullptr; k++) known += std::string(k == batch::kinds ? "" : "|") + k->name;
    const auto words = arguments.words();
    if (words.size() != 1) die(2, "usage: batch " + known + " [--threads N] [--size native|small] [--seed N] [--seconds N], or batch verify [--size small|native]");
    if (words[0] == "verify") {
        const batch::Size size = size_of(arguments, "small");
        arguments.done();
        for (const batch::Kind* k = batch::kinds; k->name != nullptr; k++) {
            k->verify(size);
            std::printf("verify: %s ok\n", k->name);
        }
        return 0;
    }
    const auto threads = static_cast<unsigned>(arguments.number("threads", 1, 1, 256));
    const auto seed = static_cast<std::uint64_t>(arguments.number("seed", 1, 0, INT64_MAX));
    const auto seconds = arguments.number("seconds", 0, 0, 86400);
    const bool report = arguments.flag("report"), asked = arguments.has("size");
    const batch::Size size = size_of(arguments, "native");
    arguments.done();
    for (const batch::Kind* k = batch::kinds; k->name != nullptr; k++) {
        if (words[0] != k->name) continue;
        if (report && seconds == 0) die(2, "--report comes at the end: give --seconds too");
        if (asked && !k->sized) die(2, "--size: " + words[0] + " has one size only. Leave --size out");
        run(*k, threads, seed, size, seconds, report);
    }
    die(2, "job \"" + words[0] + "\": give one of " + known);
}
