// Graph jobs on one shared random graph with few very popular nodes (R-MAT: 2^18 nodes, 2^21 edges, 19 MB): breadth-first search,
// betweenness centrality from sampled sources, connected components. Each worker solves instances of its own.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <surefoot/random.hpp>
#include <surefoot/service.hpp>

#include "batch.hpp"

using namespace surefoot;

namespace batch {
namespace {

using Node = std::uint32_t;
constexpr Node none = UINT32_MAX;

// Undirected; neighbours of node n are to[from[n]] up to to[from[n + 1] - 1].
struct Graph {
    std::vector<std::size_t> from;
    std::vector<Node> to;
    std::size_t size() const { return from.size() - 1; }

    Graph(std::size_t nodes, const std::vector<std::pair<Node, Node>>& edges) : from(nodes + 1), to(2 * edges.size()) {
        for (const auto& [a, b] : edges) from[a + 1]++, from[b + 1]++;
        std::partial_sum(from.begin(), from.end(), from.begin());
        std::vector<std::size_t> next(from.begin(), from.end() - 1);
        for (const auto& [a, b] : edges) to[next[a]++] = b, to[next[b]++] = a;
    }
    template <class F>
    void each(Node n, F f) const {
        for (std::size_t i = from[n]; i < from[n + 1]; i++) f(to[i]);
    }
};

// R-MAT with the quarters 0.57, 0.19, 0.19, 0.05 of Graph500.
Graph popular(std::uint64_t seed) {
    constexpr int bits = 18;
    Random random(seed);
    std::vector<std::pair<Node, Node>> edges(std::size_t{1} << (bits + 3));
    for (auto& [a, b] : edges) {
        a = b = 0;
        for (int i = 0; i < bits; i++) {
            const double at = random.uniform();
            a = 2 * a + (at >= 0.76);
            b = 2 * b + ((at >= 0.57 && at < 0.76) || at >= 0.95);
        }
    }
    return {std::size_t{1} << bits, edges};
}

struct Search {
    std::vector<Node> order;            // nodes by distance
    std::vector<std::uint32_t> depth;  // none: not reached
    std::uint64_t edges = 0;

    void run(const Graph& g, Node source) {
        order.clear();
        depth.assign(g.size(), none);
        order.push_back(source);
        depth[source] = 0;
        edges = 0;
        for (std::size_t at = 0; at < order.size(); at++) {
            const Node n = order[at];
            edges += g.from[n + 1] - g.from[n];
            g.each(n, [&](Node m) {
                if (depth[m] != none) return;
                depth[m] = depth[n] + 1;
                order.push_back(m);
            });
        }
    }
};

// Brandes (2001): adds what paths from `source` contribute to each node.
struct Centrality {
    Search search;
    std::vector<double> paths, depends, score;

    void add(const Graph& g, Node source) {
        search.run(g, source);
        paths.assign(g.size(), 0);
        depends.assign(g.size(), 0);
        score.resize(g.size());
        paths[source] = 1;
        for (const Node n : search.order)
            g.each(n, [&](Node m) { if (search.depth[m] == search.depth[n] + 1) paths[m] += paths[n]; });
        for (auto at = search.order.rbegin(); at != search.order.rend(); ++at) {
            const Node n = *at;
            g.each(n, [&](Node m) { if (search.depth[m] == search.depth[n] + 1) depends[n] += paths[n] / paths[m] * (1 + depends[m]); });
            if (n != source) score[n] += depends[n];
        }
    }
};

// Labels spread to neighbours until nothing changes; the smallest node of a component names it.
struct Components {
    std::vector<Node> label;
    std::uint64_t edges = 0;

    void run(const Graph& g) {
        label.resize(g.size());
        std::iota(label.begin(), label.end(), Node{0});
        edges = 0;
        for (bool changed = true; changed;) {
            changed = false;
            for (Node n = 0; n < g.size(); n++) {
                Node least = label[n];
                g.each(n, [&](Node m) { least = std::min(least, label[m]); });
                changed |= least < label[n];
                label[n] = least;
            }
            edges += g.to.size();
        }
    }
};

template <class Work>
class GraphJob : public Job {
public:
    GraphJob(unsigned threads, std::uint64_t seed) : graph_(popular(seed)), work_(threads) {
        for (unsigned w = 0; w < threads; w++) random_.emplace_back(mix(seed), w);
    }
    std::uint64_t step(unsigned w) override {
        if constexpr (std::is_same_v<Work, Components>) {
            work_[w].run(graph_);
            return work_[w].edges;
        } else {
            // Sources with neighbours, or there is nothing to do.
            Node source = 0;
            do source = static_cast<Node>(random_[w].below(graph_.size()));
            while (graph_.from[source] == graph_.from[source + 1]);
            if constexpr (std::is_same_v<Work, Centrality>) {
                work_[w].add(graph_, source);
                return 3 * work_[w].search.edges;
            } else {
                work_[w].run(graph_, source);
                return work_[w].edges;
            }
        }
    }

private:
    Graph graph_;
    std::vector<Work> work_;
    std::vector<Random> random_;
};

// A random graph in three parts.
Graph parts(std::vector<Node>& part_of) {
    Random random(9);
    std::vector<std::pair<Node, Node>> edges;
    part_of.resize(300);
    for (Node n = 0; n < 300; n++) {
        part_of[n] = n % 3;
        // A tree within the part, and some more edges.
        if (n >= 3) edges.emplace_back(n, static_cast<Node>(random.below(n / 3)) * 3 + n % 3);
        if (n >= 30) edges.emplace_back(n, static_cast<Node>(random.below(n / 3)) * 3 + n % 3);
    }
    return {300, edges};
}

}  // namespace

std::unique_ptr<Job> bfs(unsigned threads, std::uint64_t seed, Size) { return std::make_unique<GraphJob<Search>>(threads, seed); }
std::unique_ptr<Job> bc(unsigned threads, std::uint64_t seed, Size) { return std::make_unique<GraphJob<Centrality>>(threads, seed); }
std::unique_ptr<Job> components(unsigned threads, std::uint64_t seed, Size) { return std::make_unique<GraphJob<Components>>(threads, seed); }

void verify_bfs(Size) {
    std::vector<Node> part;
    const Graph g = parts(part);
    Search s;
    s.run(g, 0);
    // Bellman and Ford's way to the same distances.
    std::vector<std::uint32_t> slow(g.size(), none);
    slow[0] = 0;
    for (bool changed = true; changed;) {
        changed = false;
        for (Node n = 0; n < g.size(); n++)
            if (slow[n] != none) g.each(n, [&](Node m) { if (slow[m] > slow[n] + 1) { slow[m] = slow[n] + 1; changed = true; } });
    }
    must(s.depth == slow, "distances are the shortest");
    must(s.order.size() == 100, "one part is reached, and only that");
}

void verify_bc(Size) {
    // A path of five: node i lies between i x (4 - i) pairs, each counted from both ends.
    const Graph path(5, {{0, 1}, {1, 2}, {2, 3}, {3, 4}});
    Centrality c;
    for (Node n = 0; n < 5; n++) c.add(path, n);
    must(c.score == std::vector<double>({0, 6, 8, 6, 0}), "a path's centralities are 0 6 8 6 0");
}

void verify_components(Size) {
    std::vector<Node> part;
    const Graph g = parts(part);
    Components c;
    c.run(g);
    must(c.label == part, "three parts are three components");
}

}  // namespace batch
