// Jobs that search: clustering of a stream of points, a particle filter on images, placement by simulated annealing.
#include <algorithm>
#include <array>
#include <cmath>
#include <surefoot/random.hpp>
#include <surefoot/service.hpp>

#include "batch.hpp"

using namespace surefoot;

namespace batch {
namespace {

// Stream clustering (k-median by local search, as in PARSEC's streamcluster): each worker gets chunks of points of a stream of its own
// and opens a centre wherever what the points save is worth more than the centre costs. Reads megabytes again and again.
class Streamcluster : public Job {
public:
    static constexpr std::size_t dims = 64, points = 4096, planted = 10, tries = 24;
    struct Worker {
        std::vector<float> point = std::vector<float>(points * dims);
        std::vector<std::uint32_t> centre = std::vector<std::uint32_t>(points);
        std::vector<float> distance = std::vector<float>(points);
        std::uint64_t chunk = 0;
    };
    Streamcluster(unsigned threads, std::uint64_t seed) : seed_(seed), workers_(threads) {}

    std::uint64_t step(unsigned w) override {
        Worker& me = workers_[w];
        Random random(mix(seed_ + w), me.chunk++);
        std::array<std::array<float, dims>, planted> middle;
        for (auto& m : middle)
            for (float& x : m) x = static_cast<float>(100 * random.uniform());
        for (std::size_t p = 0; p < points; p++) {
            const auto& m = middle[random.below(planted)];
            for (std::size_t d = 0; d < dims; d++) me.point[p * dims + d] = m[d] + static_cast<float>(2 * random.normal());
        }
        for (std::size_t p = 0; p < points; p++) {
            me.centre[p] = 0;
            me.distance[p] = squared(me, p, 0);
        }
        std::uint64_t evaluated = points;
        for (std::size_t t = 0; t < tries; t++) {
            // A far point is a likely centre.
            std::size_t candidate = random.below(points);
            for (int i = 0; i < 8; i++) {
                const std::size_t other = random.below(points);
                if (me.distance[other] > me.distance[candidate]) candidate = other;
            }
            float saved = 0;
            std::vector<float> nearer(points);
            for (std::size_t p = 0; p < points; p++) {
                nearer[p] = squared(me, p, candidate);
                saved += std::max(0.0f, me.distance[p] - nearer[p]);
            }
            evaluated += points;
            if (saved <= opening_cost) continue;
            for (std::size_t p = 0; p < points; p++) {
                if (nearer[p] < me.distance[p]) {
                    me.distance[p] = nearer[p];
                    me.centre[p] = static_cast<std::uint32_t>(candidate);
                }
            }
        }
        return evaluated;
    }
    const Worker& worker(unsigned w) const { return workers_[w]; }

private:
    static constexpr float opening_cost = 60000;
    static float squared(const Worker& me, std::size_t a, std::size_t b) {
        const float *x = &me.point[a * dims], *y = &me.point[b * dims];
        float sum = 0;
        for (std::size_t d = 0; d < dims; d++) sum += (x[d] - y[d]) * (x[d] - y[d]);
        return sum;
    }
    std::uint64_t seed_;
    std::vector<Worker> workers_;
};

// Particle filter that follows a figure of five discs through noisy images (after PARSEC's bodytrack: many likelihoods in parallel, then
// a serial step that all wait for).
class Particles : public Job {
public:
    static constexpr int width = 320, height = 240, discs = 5, radius = 6;
    static constexpr std::size_t count = 2048;
    struct Pose {
        std::array<double, 4> at{};  // x, y, and two angles in radians
    };
    Particles(unsigned threads, std::uint64_t seed)
        : threads_(threads), random_(seed), image_(width * height), particle_(count), weight_(count), meet_(threads, Serial{this}) {
        truth_.at = {width / 2.0, height / 2.0, 0.0, 0.0};
        for (auto& p : particle_) p = truth_;
        frame();
    }
    std::uint64_t step(unsigned w) override {
        std::uint64_t done = 0;
        for (std::size_t i = w; i < count; i += threads_, done++) weight_[i] = likelihood(particle_[i]);
        meet_.arrive_and_wait();
        return done;
    }
    // Pixels between where the figure is taken to be and where it was drawn, at the last frame.
    double error() const { return error_; }

private:
    struct Serial {
        Particles* me;
        void operator()() noexcept { me->resample(); }
    };
    static std::array<std::array<int, 2>, discs> centres(const Pose& p) {
        // A body and four limbs.
        std::array<std::array<int, 2>, discs> c;
        c[0] = {static_cast<int>(p.at[0]), static_cast<int>(p.at[1])};
        for (int i = 1; i < discs; i++) {
            const double turn = p.at[i <= 2 ? 2 : 3] + (i % 2 == 0 ? 0.0 : 3.1415926535);
            c[static_cast<std::size_t>(i)] = {static_cast<int>(p.at[0] + 22 * std::cos(turn)), static_cast<int>(p.at[1] + (i <= 2 ? -12 : 12) + 8 * std::sin(turn))};
        }
        return c;
    }
    double likelihood(const Pose& p) const {
        double sum = 0;
        for (const auto& c : centres(p)) {
            for (int y = -radius; y <= radius; y++) {
                for (int x = -radius; x <= radius; x++) {
                    const int px = c[0] + x, py = c[1] + y;
                    if (x * x + y * y <= radius * radius && px >= 0 && py >= 0 && px < width && py < height)
                        sum += image_[static_cast<std::size_t>(py * width + px)];
                }
            }
        }
        return sum;
    }
    // Move the figure and draw the next image.
    void frame() {
        const std::array<double, 4> size{width, height, 6.3, 6.3};
        for (std::size_t i = 0; i < 4; i++) {
            truth_.at[i] += random_.normal() * (i < 2 ? 2.0 : 0.05);
            if (i < 2) truth_.at[i] = std::clamp(truth_.at[i], 0.25 * size[i], 0.75 * size[i]);
        }
        for (float& pixel : image_) pixel = static_cast<float>(0.25 * random_.uniform());
        for (const auto& c : centres(truth_))
            for (int y = -radius; y <= radius; y++)
                for (int x = -radius; x <= radius; x++)
                    if (x * x + y * y <= radius * radius) image_[static_cast<std::size_t>((c[1] + y) * width + c[0] + x)] += 0.75f;
    }
    void resample() {
        const double best = *std::max_element(weight_.begin(), weight_.end());
        double sum = 0;
        std::vector<double> cumulative(count);
        Pose mean{};
        for (std::size_t i = 0; i < count; i++) {
            const double w = std::exp((weight_[i] - best) * 0.1);
            for (std::size_t d = 0; d < 4; d++) mean.at[d] += w * particle_[i].at[d];
            cumulative[i] = sum += w;
        }
        for (double& x : mean.at) x /= sum;
        error_ = std::hypot(mean.at[0] - truth_.at[0], mean.at[1] - truth_.at[1]);
        std::vector<Pose> next(count);
        const double offset = random_.uniform();
        for (std::size_t i = 0, from = 0; i < count; i++) {
            while (from + 1 < count && cumulative[from] < (static_cast<double>(i) + offset) / count * sum) from++;
            next[i] = particle_[from];
            for (std::size_t d = 0; d < 4; d++) next[i].at[d] += random_.normal() * (d < 2 ? 3.0 : 0.08);
        }
        particle_.swap(next);
        frame();
    }
    unsigned threads_;
    Random random_;
    Pose truth_;
    std::vector<float> image_;
    std::vector<Pose> particle_;
    std::vector<double> weight_;
    double error_ = 0;
    std::barrier<Serial> meet_;
};

// Placement by simulated annealing (after PARSEC's canneal): swap two elements of a netlist on a grid, keep what shortens wires. Lengths are
// read without locks, as canneal does; a swap locks the two elements' stripes, so that the placement stays a permutation. Random reads
// over 24 MB.
class Annealing : public Job {
public:
    static constexpr std::size_t side = 1024, elements = side * side, fan = 5;
    Annealing(unsigned threads, std::uint64_t seed) : place_(elements), net_(elements * fan), workers_(threads) {
        Random random(seed);
        for (std::size_t i = 0; i < elements; i++) place_[i].store(static_cast<std::uint32_t>(i), std::memory_order_relaxed);
        for (std::size_t i = elements - 1; i > 0; i--) {
            const std::size_t j = random.below(i + 1);
            const auto keep = place_[i].load(std::memory_order_relaxed);
            place_[i].store(place_[j].load(std::memory_order_relaxed), std::memory_order_relaxed);
            place_[j].store(keep, std::memory_order_relaxed);
        }
        // Nets are local in the element's number, so that there is something to find.
        for (std::size_t i = 0; i < elements; i++)
            for (std::size_t n = 0; n < fan; n++) net_[i * fan + n] = static_cast<std::uint32_t>((i + 1 + random.below(64)) % elements);
        for (unsigned w = 0; w < threads; w++) workers_[w].random = Random(mix(seed), w);
    }
    std::uint64_t step(unsigned w) override {
        Worker& me = workers_[w];
        const double heat = 1000.0 / static_cast<double>(1 + me.rounds++ / 16);
        for (int i = 0; i < moves; i++) {
            const std::size_t a = me.random.below(elements), b = me.random.below(elements);
            if (a == b) continue;
            const auto pa = place_[a].load(std::memory_order_relaxed), pb = place_[b].load(std::memory_order_relaxed);
            const double worse = static_cast<double>(wire(a, pb) + wire(b, pa)) - static_cast<double>(wire(a, pa) + wire(b, pb));
            if (worse > 0 && me.random.uniform() * heat < worse) continue;
            auto &first = stripe_[std::min(a % stripes, b % stripes)], &second = stripe_[std::max(a % stripes, b % stripes)];
            while (first.test_and_set(std::memory_order_acquire)) {}
            if (&first != &second) while (second.test_and_set(std::memory_order_acquire)) {}
            const auto keep = place_[a].load(std::memory_order_relaxed);
            place_[a].store(place_[b].load(std::memory_order_relaxed), std::memory_order_relaxed);
            place_[b].store(keep, std::memory_order_relaxed);
            second.clear(std::memory_order_release);
            if (&first != &second) first.clear(std::memory_order_release);
        }
        return moves;
    }
    double length() const {
        double sum = 0;
        for (std::size_t i = 0; i < elements; i++) sum += static_cast<double>(wire(i, place_[i].load(std::memory_order_relaxed)));
        return sum;
    }
    bool is_permutation() const {
        std::vector<bool> seen(elements);
        for (const auto& p : place_) seen[p.load(std::memory_order_relaxed)] = true;
        return std::all_of(seen.begin(), seen.end(), [](bool b) { return b; });
    }

private:
    static constexpr int moves = 4096;
    static constexpr std::size_t stripes = 4096;
    struct alignas(64) Worker {
        Random random{0};
        std::uint64_t rounds = 0;
    };
    std::int64_t wire(std::size_t element, std::uint32_t at) const {
        std::int64_t sum = 0;
        for (std::size_t n = 0; n < fan; n++) {
            const auto to = place_[net_[element * fan + n]].load(std::memory_order_relaxed);
            sum += std::abs(static_cast<std::int64_t>(at % side) - static_cast<std::int64_t>(to % side)) +
                   std::abs(static_cast<std::int64_t>(at / side) - static_cast<std::int64_t>(to / side));
        }
        return sum;
    }
    std::vector<std::atomic<std::uint32_t>> place_;
    std::vector<std::uint32_t> net_;
    std::vector<std::atomic_flag> stripe_ = std::vector<std::atomic_flag>(stripes);
    std::vector<Worker> workers_;
};

}  // namespace

std::unique_ptr<Job> streamcluster(unsigned threads, std::uint64_t seed) { return std::make_unique<Streamcluster>(threads, seed); }
std::unique_ptr<Job> particles(unsigned threads, std::uint64_t seed) { return std::make_unique<Particles>(threads, seed); }
std::unique_ptr<Job> annealing(unsigned threads, std::uint64_t seed) { return std::make_unique<Annealing>(threads, seed); }

void verify_streamcluster() {
    Streamcluster job(1, 5);
    job.step(0);
    const auto& w = job.worker(0);
    std::vector<std::uint32_t> centres = w.centre;
    std::sort(centres.begin(), centres.end());
    centres.erase(std::unique(centres.begin(), centres.end()), centres.end());
    double sum = 0;
    for (const float d : w.distance) sum += d;
    // 10 planted clouds of deviation 2 in 64 dimensions: two points of one cloud are 2 x 64 x 4 = 512 apart (squared), those of two
    // clouds about 2 x 64 x 100^2 / 12 = 107,000.
    must(centres.size() == Streamcluster::planted, "a centre for each planted cloud, not " + std::to_string(centres.size()));
    must(sum / Streamcluster::points < 1000, "points are near their centre: " + std::to_string(sum / Streamcluster::points));
}

void verify_particles() {
    Particles job(2, 5);
    double worst = 0;
    std::thread other([&] { for (int i = 0; i < 60; i++) job.step(1); });
    for (int i = 0; i < 60; i++) job.step(0);
    other.join();
    worst = std::max(worst, job.error());
    // The figure wanders by 2 pixels a frame: 60 frames without tracking would leave it about 2 x sqrt(60) = 15 pixels away.
    must(worst < 6, "the figure is followed: " + std::to_string(worst) + " pixels off");
}

void verify_annealing() {
    Annealing job(2, 5);
    const double before = job.length();
    std::thread other([&] { for (int i = 0; i < 200; i++) job.step(1); });
    for (int i = 0; i < 200; i++) job.step(0);
    other.join();
    must(job.is_permutation(), "every place has one element");
    must(job.length() < 0.99 * before, "wires become shorter: " + std::to_string(job.length() / before));
}

}  // namespace batch
