// What the BE jobs share: a job is made once, and each worker thread then steps it for ever.
#pragma once
#include <atomic>
#include <barrier>
#include <cstdint>
#include <memory>
#include <string>

namespace batch {

// A best-effort job. Work is a pure function of seed and number of threads.
class Job {
public:
    Job() = default;
    Job(const Job&) = delete;
    Job& operator=(const Job&) = delete;
    virtual ~Job() = default;
    // A piece of work of some milliseconds; how many units it did. Called by each worker, again and again.
    virtual std::uint64_t step(unsigned worker) = 0;
};

struct Kind {
    const char* name;
    const char* unit;  // what the rate counts
    std::unique_ptr<Job> (*make)(unsigned threads, std::uint64_t seed);
    void (*verify)();
};

// All kinds, in the catalogue's order; ends with a null name.
extern const Kind kinds[];

std::unique_ptr<Job> blackscholes(unsigned threads, std::uint64_t seed);
std::unique_ptr<Job> hog(unsigned threads, std::uint64_t seed);
std::unique_ptr<Job> sort(unsigned threads, std::uint64_t seed);
void verify_blackscholes();
void verify_hog();
void verify_sort();

std::unique_ptr<Job> streamcluster(unsigned threads, std::uint64_t seed);
std::unique_ptr<Job> particles(unsigned threads, std::uint64_t seed);
std::unique_ptr<Job> annealing(unsigned threads, std::uint64_t seed);
void verify_streamcluster();
void verify_particles();
void verify_annealing();

std::unique_ptr<Job> bfs(unsigned threads, std::uint64_t seed);
std::unique_ptr<Job> bc(unsigned threads, std::uint64_t seed);
std::unique_ptr<Job> components(unsigned threads, std::uint64_t seed);
void verify_bfs();
void verify_bc();
void verify_components();

}  // namespace batch
