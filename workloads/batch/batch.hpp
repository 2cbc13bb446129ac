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

// How much data a job works on: as the native input of the original, or little enough for a cache.
enum class Size { native, small };

struct Kind {
    const char* name;
    const char* unit;  // what the rate counts
    bool sized;        // whether the sizes differ
    std::unique_ptr<Job> (*make)(unsigned threads, std::uint64_t seed, Size size);
    void (*verify)(Size size);
};

// All kinds, in the catalogue's order; ends with a null name.
extern const Kind kinds[];

std::unique_ptr<Job> blackscholes(unsigned threads, std::uint64_t seed, Size size);
std::unique_ptr<Job> hog(unsigned threads, std::uint64_t seed, Size size);
std::unique_ptr<Job> sort(unsigned threads, std::uint64_t seed, Size size);
void verify_blackscholes(Size size);
void verify_hog(Size size);
void verify_sort(Size size);

std::unique_ptr<Job> streamcluster(unsigned threads, std::uint64_t seed, Size size);
std::unique_ptr<Job> particles(unsigned threads, std::uint64_t seed, Size size);
std::unique_ptr<Job> annealing(unsigned threads, std::uint64_t seed, Size size);
void verify_streamcluster(Size size);
void verify_particles(Size size);
void verify_annealing(Size size);

std::unique_ptr<Job> bfs(unsigned threads, std::uint64_t seed, Size size);
std::unique_ptr<Job> bc(unsigned threads, std::uint64_t seed, Size size);
std::unique_ptr<Job> components(unsigned threads, std::uint64_t seed, Size size);
void verify_bfs(Size size);
void verify_bc(Size size);
void verify_components(Size size);

}  // namespace batch
