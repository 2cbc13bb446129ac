// Work on a range of numbers by several threads at once.
#pragma once
#include <cstddef>
#include <thread>
#include <vector>

namespace surefoot {

// Part `i` of `parts` equal ones of 0 to n - 1: the first number, and the one after the last.
struct Part {
    std::size_t from, to;
    Part(std::size_t n, std::size_t parts, std::size_t i) : from(n / parts * i + n % parts * i / parts), to(n / parts * (i + 1) + n % parts * (i + 1) / parts) {}
};

// f(from, to) for each part, each in a thread of its own; returns when all are done. What f writes must be a function of the numbers
// alone, so that data are the same for any number of threads.
template <class F>
void in_parallel(std::size_t n, unsigned threads, F f) {
    std::vector<std::thread> workers;
    for (unsigned i = 0; i < threads; i++) workers.emplace_back([&f, part = Part(n, threads, i)] { f(part.from, part.to); });
    for (auto& w : workers) w.join();
}

}  // namespace surefoot
