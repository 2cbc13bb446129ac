// What a process uses: CPU time, resident memory, and the pages that it touches.
#pragma once
#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

namespace surefoot {

// From its making on. MB are 10^6 bytes. What the kernel does not tell is not a number.
class Meter {
public:
    Meter() : start_(std::chrono::steady_clock::now()) {
        // Forgets which pages were touched; the kernel then marks those that are.
        std::ofstream("/proc/self/clear_refs") << 1 << std::flush;
        ::getrusage(RUSAGE_SELF, &before_);
    }
    // One object of JSON: the rest of it after `beginning`, which is its first fields.
    std::string json(const std::string& beginning) const {
        rusage now{};
        ::getrusage(RUSAGE_SELF, &now);
        const std::chrono::duration<double> since = std::chrono::steady_clock::now() - start_;
        return "{" + beginning + field("seconds", since.count()) + field("user_s", seconds(now.ru_utime) - seconds(before_.ru_utime)) +
               field("sys_s", seconds(now.ru_stime) - seconds(before_.ru_stime)) + field("rss_mb", pages_mb("Rss:")) +
               "\"touched_mb\": " + number(pages_mb("Referenced:")) + "}";
    }
    static std::string field(const std::string& name, double value) { return "\"" + name + "\": " + number(value) + ", "; }

private:
    static std::string number(double value) {
        if (!std::isfinite(value)) return "null";
        char text[32];
        std::snprintf(text, sizeof text, "%.6g", value);
        return text;
    }
    static double seconds(const timeval& t) { return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec); }
    static double pages_mb(const std::string& name) {
        std::ifstream in("/proc/self/smaps_rollup");
        for (std::string word; in >> word;) {
            double kib = 0;
            if (word == name && in >> kib) return kib * 1024 / 1e6;
        }
        return std::numeric_limits<double>::quiet_NaN();
    }
    std::chrono::steady_clock::time_point start_;
    rusage before_{};
};

// CPU time of the calling thread.
inline double thread_cpu_ms() {
    timespec t{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return 1e3 * static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_nsec);
}

// Mean, coefficient of variation and percentiles of times, as fields of JSON whose names begin with `prefix`.
inline std::string summary(const std::string& prefix, std::vector<double> times_ms) {
    std::sort(times_ms.begin(), times_ms.end());
    const auto n = static_cast<double>(times_ms.size());
    double mean = 0, square = 0;
    for (const double t : times_ms) mean += t / n;
    for (const double t : times_ms) square += (t - mean) * (t - mean) / n;
    const auto at = [&](double q) { return times_ms[std::min(times_ms.size() - 1, static_cast<std::size_t>(q * n))]; };
    return Meter::field(prefix + "mean_ms", mean) + Meter::field(prefix + "cv", std::sqrt(square) / mean) + Meter::field(prefix + "p50_ms", at(0.5)) +
           Meter::field(prefix + "p95_ms", at(0.95)) + Meter::field(prefix + "p99_ms", at(0.99)) + Meter::field(prefix + "max_ms", times_ms.back());
}

}  // namespace surefoot
