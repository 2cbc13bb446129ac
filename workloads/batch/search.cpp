// Jobs that search: clustering of a stream of points, a particle filter on images, placement by simulated annealing.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <surefoot/parallel.hpp>
#include <surefoot/random.hpp>
#include <surefoot/service.hpp>

#include "batch.hpp"

using namespace surefoot;

namespace batch {
namespace {

// Stream clustering (k-median by local search, as in PARSEC's streamcluster): a stream comes in chunks of points; all workers share the
// chunk, each with a part of it, and meet after every candidate. A candidate becomes a centre if what the points save is worth more than
// a centre costs. Each candidate takes one pass over the chunk: 102 MB at PARSEC's native size.
class Streamcluster : public Job {
public:
    // `planted`: clouds that the points lie in; `tries`: candidates for each chunk.
    struct Shape {
        std::size_t dims, points, planted, tries;
    };
    static Shape shape(Size size) { return size == Size::native ? Shape{128, 200'000, 15, 240} : Shape{64, 4096, 10, 24}; }

    Streamcluster(unsigned threads, std::uint64_t seed, const Shape& shape)
        : shape_(shape), threads_(threads), seed_(seed), serial_(mix(seed)), point_(std::make_unique_for_overwrite<float[]>(shape.points * shape.dims)),
          centre_(shape.points), distance_(shape.points), nearer_(shape.points), saved_(threads), meet_(threads, Serial{this}) {
        in_parallel(shape.points, threads, [&](std::size_t from, std::size_t to) { generate(from, to); });
    }

    std::uint64_t step(unsigned w) override {
        const Part mine(shape_.points, threads_, w);
        if (fresh_) {
            if (chunk_ > 0) generate(mine.from, mine.to);
            std::fill(distance_.begin() + static_cast<std::ptrdiff_t>(mine.from), distance_.begin() + static_cast<std::ptrdiff_t>(mine.to),
                      std::numeric_limits<float>::infinity());
            meet_.arrive_and_wait();
            return 0;
        }
        float saved = 0;
        for (std::size_t p = mine.from; p < mine.to; p++) {
            nearer_[p] = squared(p, candidate_);
            saved += std::max(0.0f, distance_[p] - nearer_[p]);
        }
        saved_[w].value = saved;
        meet_.arrive_and_wait();
        if (opened_ != none) {
            for (std::size_t p = mine.from; p < mine.to; p++) {
                if (nearer_[p] >= distance_[p]) continue;
                distance_[p] = nearer_[p];
                centre_[p] = static_cast<std::uint32_t>(opened_);
            }
        }
        return mine.to - mine.from;
    }
    const std::vector<std::uint32_t>& centres() const { return centre_; }
    const std::vector<float>& distances() const { return distance_; }

private:
    static constexpr std::size_t none = SIZE_MAX;
    struct Serial {
        Streamcluster* me;
        void operator()() noexcept { me->decide(); }
    };
    struct alignas(64) Saved {
        float value = 0;
    };
    // A point is a function of the chunk's and its own number.
    void generate(std::size_t from, std::size_t to) {
        Random clouds(mix(seed_), chunk_);
        std::vector<float> middle(shape_.planted * shape_.dims);
        for (float& x : middle) x = static_cast<float>(100 * clouds.uniform());
        for (std::size_t p = from; p < to; p++) {
            Random random(mix(seed_ + chunk_), p);
            const float* m = &middle[random.below(shape_.planted) * shape_.dims];
            for (std::size_t d = 0; d < shape_.dims; d++) point_[p * shape_.dims + d] = m[d] + static_cast<float>(2 * random.normal());
        }
    }
    float squared(std::size_t a, std::size_t b) const {
        const float *x = &point_[a * shape_.dims], *y = &point_[b * shape_.dims];
        float sum = 0;
        for (std::size_t d = 0; d < shape_.dims; d++) sum += (x[d] - y[d]) * (x[d] - y[d]);
        return sum;
    }
    // What one does while the others wait: judge the candidate, and choose the next one or end the chunk.
    void decide() {
        opened_ = none;
        if (fresh_) {
            fresh_ = false;
            tried_ = 0;
            candidate_ = 0;
            return;
        }
        float saved = 0;
        for (const Saved& s : saved_) saved += s.value;
        // A centre costs what 1/4 of a squared unit in each dimension of each point would.
        if (saved > 0.25f * static_cast<float>(shape_.points * shape_.dims)) opened_ = candidate_;
        if (++tried_ > shape_.tries) {
            fresh_ = true;
            chunk_++;
            return;
        }
        // A far point is a likely centre.
        const auto far = [&](std::size_t p) { return opened_ == none ? distance_[p] : std::min(distance_[p], nearer_[p]); };
        candidate_ = serial_.below(shape_.points);
        for (int i = 0; i < 8; i++) {
            const std::size_t other = serial_.below(shape_.points);
            if (far(other) > far(candidate_)) candidate_ = other;
        }
    }
    Shape shape_;
    unsigned threads_;
    std::uint64_t seed_, chunk_ = 0;
    Random serial_;
    bool fresh_ = true;
    std::size_t tried_ = 0, candidate_ = 0, opened_ = none;
    std::unique_ptr<float[]> point_;
    std::vector<std::uint32_t> centre_;
    std::vector<float> distance_, nearer_;
    std::vector<Saved> saved_;
    std::barrier<Serial> meet_;
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
// read without locks, as canneal does; a swap locks the two elements' stripes, so that the placement stays a permutation.
//
// A move reads two elements and the places of their neighbours, all at random in memory. An element takes the memory that canneal's takes
// with its name, its lists of neighbours and its entry in the index of names, of which moves read the lists and the place only.
class Annealing : public Job {
public:
    // Elements fill the grid: their number is width x height, a multiple of `ring`.
    struct Shape {
        std::uint32_t width, height;
        std::size_t elements() const { return std::size_t{width} * height; }
    };
    static Shape shape(Size size) { return size == Size::native ? Shape{2000, 1250} : Shape{128, 128}; }

    Annealing(unsigned threads, std::uint64_t seed, const Shape& shape)
        : elements_(shape.elements()), spot_(elements_), element_(std::make_unique_for_overwrite<Element[]>(elements_)), workers_(threads) {
        // Neighbours in the netlist are far apart in memory and on the grid.
        const std::vector<std::uint32_t> memory = permutation(mix(seed + 1)), grid = permutation(mix(seed + 2));
        in_parallel(elements_, threads, [&](std::size_t from, std::size_t to) {
            for (std::size_t i = from; i < to; i++) {
                spot_[i] = {static_cast<std::int32_t>(i % shape.width), static_cast<std::int32_t>(i / shape.width)};
                Element& e = element_[memory[i]];
                std::memset(static_cast<void*>(&e), static_cast<int>(i % 251), sizeof e);
                e.place = grid[i];
                for (unsigned n = 0; n < fan; n++) {
                    e.drives[n] = memory[wired(seed, i, n, 1)];
                    e.driven_by[n] = memory[wired(seed, i, n, ring - 1)];
                }
            }
        });
        for (unsigned w = 0; w < threads; w++) {
            workers_[w].random = Random(mix(seed), w);
            workers_[w].last = workers_[w].random.below(elements_);
        }
    }
    std::uint64_t step(unsigned w) override {
        Worker& me = workers_[w];
        const double heat = 1000.0 / static_cast<double>(1 + me.rounds++ / 16);
        for (int i = 0; i < moves; i++) {
            // One new element a move, as canneal does.
            const std::size_t a = me.last, b = me.last = me.random.below(elements_);
            if (a == b) continue;
            const std::uint32_t pa = place(a), pb = place(b);
            const double worse = static_cast<double>(wires(a, pb) + wires(b, pa)) - static_cast<double>(wires(a, pa) + wires(b, pb));
            if (worse > 0 && me.random.uniform() * heat < worse) continue;
            auto &first = stripe_[std::min(a % stripes, b % stripes)], &second = stripe_[std::max(a % stripes, b % stripes)];
            while (first.test_and_set(std::memory_order_acquire)) {}
            if (&first != &second) while (second.test_and_set(std::memory_order_acquire)) {}
            const std::uint32_t keep = place(a);
            std::atomic_ref(element_[a].place).store(place(b), std::memory_order_relaxed);
            std::atomic_ref(element_[b].place).store(keep, std::memory_order_relaxed);
            second.clear(std::memory_order_release);
            if (&first != &second) first.clear(std::memory_order_release);
        }
        return moves;
    }
    // All wires, each counted at both ends.
    double length() const {
        double sum = 0;
        for (std::size_t i = 0; i < elements_; i++) sum += static_cast<double>(wires(i, place(i)));
        return sum;
    }
    bool is_permutation() const {
        std::vector<bool> seen(elements_);
        for (std::size_t i = 0; i < elements_; i++) seen[place(i)] = true;
        return std::all_of(seen.begin(), seen.end(), [](bool b) { return b; });
    }
    // Who drives an element is driven by none other: each wire stands in both lists.
    bool wires_have_two_ends() const {
        for (std::size_t i = 0; i < elements_; i++)
            for (unsigned n = 0; n < fan; n++)
                if (element_[element_[i].drives[n]].driven_by[n] != i) return false;
        return true;
    }

private:
    static constexpr int moves = 4096;
    static constexpr std::size_t stripes = 4096, ring = 32;
    static constexpr unsigned fan = 5;
    // Its place first, its lists in the lines after, then what is written at the start only.
    struct alignas(64) Element {
        std::uint32_t place;
        char name[60];
        std::uint64_t drives[fan];
        char spare_1[24];
        std::uint64_t driven_by[fan];
        char spare_2[24];
        char index[512];
    };
    struct Spot {
        std::int32_t x, y;
    };
    struct alignas(64) Worker {
        Random random{0};
        std::uint64_t rounds = 0;
        std::size_t last = 0;
    };
    // Element i's n-th wire goes round a ring of 32 elements that it lies in, by a step of the ring's own; `way` times, so that
    // 31 times leads back. Even and odd wires have rings that overlap by half. What lies near in number should lie near on the grid:
    // there is something to find.
    std::size_t wired(std::uint64_t seed, std::size_t i, unsigned n, std::size_t way) const {
        const std::size_t shift = n % 2 == 0 ? 0 : ring / 2, at = (i + shift) % elements_, first = at - at % ring;
        const std::size_t by = 1 + mix(mix(seed) ^ (first * fan + n)) % (ring - 1);
        return (first + (at % ring + by * way) % ring + elements_ - shift) % elements_;
    }
    std::vector<std::uint32_t> permutation(std::uint64_t seed) const {
        Random random(seed);
        std::vector<std::uint32_t> p(elements_);
        std::iota(p.begin(), p.end(), 0u);
        for (std::size_t i = elements_ - 1; i > 0; i--) std::swap(p[i], p[random.below(i + 1)]);
        return p;
    }
    std::uint32_t place(std::size_t element) const { return std::atomic_ref(element_[element].place).load(std::memory_order_relaxed); }
    std::int64_t wires(std::size_t element, std::uint32_t at) const {
        const Element& e = element_[element];
        const Spot here = spot_[at];
        std::int64_t sum = 0;
        for (const auto* list : {e.drives, e.driven_by}) {
            for (unsigned n = 0; n < fan; n++) {
                const Spot there = spot_[place(list[n])];
                sum += std::abs(here.x - there.x) + std::abs(here.y - there.y);
            }
        }
        return sum;
    }
    std::size_t elements_;
    std::vector<Spot> spot_;
    std::unique_ptr<Element[]> element_;
    std::vector<std::atomic_flag> stripe_ = std::vector<std::atomic_flag>(stripes);
    std::vector<Worker> workers_;
};

}  // namespace

std::unique_ptr<Job> streamcluster(unsigned threads, std::uint64_t seed, Size size) {
    return std::make_unique<Streamcluster>(threads, seed, Streamcluster::shape(size));
}
std::unique_ptr<Job> particles(unsigned threads, std::uint64_t seed, Size) { return std::make_unique<Particles>(threads, seed); }
std::unique_ptr<Job> annealing(unsigned threads, std::uint64_t seed, Size size) {
    return std::make_unique<Annealing>(threads, seed, Annealing::shape(size));
}

void verify_streamcluster(Size size) {
    const Streamcluster::Shape shape = Streamcluster::shape(size);
    std::vector<std::uint32_t> alone;
    for (const unsigned threads : {1u, 3u}) {
        Streamcluster job(threads, 5, shape);
        // A chunk begins with one step that fills it. Sixty candidates are enough for all clouds.
        const std::size_t steps = 2 + std::min<std::size_t>(shape.tries, 60);
        std::vector<std::thread> workers;
        for (unsigned w = 0; w < threads; w++) workers.emplace_back([&job, steps, w] { for (std::size_t i = 0; i < steps; i++) job.step(w); });
        for (auto& w : workers) w.join();
        std::vector<std::uint32_t> centres = job.centres();
        if (threads == 1) alone = centres;
        must(centres == alone, "the number of workers changes no point's centre");
        std::sort(centres.begin(), centres.end());
        centres.erase(std::unique(centres.begin(), centres.end()), centres.end());
        double sum = 0;
        for (const float d : job.distances()) sum += d;
        sum /= static_cast<double>(shape.points * shape.dims);
        // Planted clouds of deviation 2: two points of one cloud are 2 x 4 = 8 apart (squared) in each dimension, those of two clouds
        // about 2 x 100^2 / 12 = 1,670.
        must(centres.size() == shape.planted, "a centre for each planted cloud, not " + std::to_string(centres.size()));
        must(sum < 16, "points are near their centre: " + std::to_string(sum));
    }
}

void verify_particles(Size) {
    Particles job(2, 5);
    double worst = 0;
    std::thread other([&] { for (int i = 0; i < 60; i++) job.step(1); });
    for (int i = 0; i < 60; i++) job.step(0);
    other.join();
    worst = std::max(worst, job.error());
    // The figure wanders by 2 pixels a frame: 60 frames without tracking would leave it about 2 x sqrt(60) = 15 pixels away.
    must(worst < 6, "the figure is followed: " + std::to_string(worst) + " pixels off");
}

void verify_annealing(Size size) {
    const Annealing::Shape shape = Annealing::shape(size);
    Annealing job(2, 5, shape);
    must(job.wires_have_two_ends() && job.is_permutation(), "a netlist's wires have two ends, and every place has one element");
    const double before = job.length();
    // A few moves for each element, long enough for the heat to fall.
    const std::size_t steps = 200 + shape.elements() / 4096;
    std::thread other([&] { for (std::size_t i = 0; i < steps; i++) job.step(1); });
    for (std::size_t i = 0; i < steps; i++) job.step(0);
    other.join();
    must(job.is_permutation(), "every place has one element after two workers' moves");
    must(job.length() < 0.99 * before, "wires become shorter: " + std::to_string(job.length() / before));
}

}  // namespace batch
