// Advertisements: retrieve candidates that fit the user and the page, rank them with a small network, price them.
//
//   ads --port P --threads N [--ads 40000]
//   ads --verify
//
// Request key K is a page view: a user (interests, embedding) on a page (topic). Retrieval takes the ads of 4 interest lists and of the
// page's list, scores each by the dot product of 32-float embeddings, keeps 256; ranking runs a 64-48-1 network on each; the best 4
// by bid x predicted click rate are shown, each at the next one's price. Inventory and weights are drawn from a seed.
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <surefoot/random.hpp>
#include <surefoot/service.hpp>

using namespace surefoot;

namespace {

constexpr std::size_t dims = 32, hidden = 48, interests = 512, per_user = 4, candidates = 256, shown = 4;
using Embedding = std::array<float, dims>;

float dot(const float* a, const float* b, std::size_t n) {
    float sum = 0;
    for (std::size_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

Embedding draw(Random& random) {
    Embedding e;
    for (float& x : e) x = static_cast<float>(random.normal() * 0.25);
    return e;
}

struct Shown {
    std::uint32_t ad;
    float value, price;
};

class Exchange {
public:
    explicit Exchange(std::size_t ads) : popularity_(interests) {
        Random random(20);
        for (std::size_t a = 0; a < ads; a++) {
            embeddings_.push_back(draw(random));
            bids_.push_back(static_cast<float>(0.1 + random.uniform()));
            // Two interests an ad; few interests have most ads.
            for (int i = 0; i < 2; i++) lists_[popularity_.draw(random)].push_back(static_cast<std::uint32_t>(a));
        }
        for (auto& list : lists_) {
            std::sort(list.begin(), list.end());
            list.erase(std::unique(list.begin(), list.end()), list.end());
        }
        for (auto& row : first_)
            for (float& w : row) w = static_cast<float>(random.normal() * 0.2);
        for (float& w : second_) w = static_cast<float>(random.normal() * 0.2);
    }

    struct View {
        std::array<std::size_t, per_user + 1> lists;
        Embedding user;
    };
    View view(std::uint64_t key) const {
        Random random(21, key);
        View v{};
        for (auto& l : v.lists) l = popularity_.draw(random);
        v.user = draw(random);
        return v;
    }

    // Ads of the view's lists with the highest dot products, best first; ties by number.
    std::vector<std::uint32_t> retrieve(const View& v) const {
        std::vector<std::uint32_t> all;
        for (const std::size_t l : v.lists) all.insert(all.end(), lists_[l].begin(), lists_[l].end());
        std::sort(all.begin(), all.end());
        all.erase(std::unique(all.begin(), all.end()), all.end());
        std::vector<std::pair<float, std::uint32_t>> scored;
        scored.reserve(all.size());
        for (const std::uint32_t a : all) scored.emplace_back(-dot(embeddings_[a].data(), v.user.data(), dims), a);
        const std::size_t keep = std::min(candidates, scored.size());
        std::partial_sort(scored.begin(), scored.begin() + static_cast<std::ptrdiff_t>(keep), scored.end());
        std::vector<std::uint32_t> best(keep);
        for (std::size_t i = 0; i < keep; i++) best[i] = scored[i].second;
        return best;
    }

    // Predicted click rate of an ad for a user.
    float click_rate(std::uint32_t ad, const Embedding& user) const {
        std::array<float, 2 * dims> in;
        std::copy(user.begin(), user.end(), in.begin());
        std::copy(embeddings_[ad].begin(), embeddings_[ad].end(), in.begin() + dims);
        float sum = -2.0f;
        for (std::size_t h = 0; h < hidden; h++) sum += second_[h] * std::max(0.0f, dot(first_[h].data(), in.data(), in.size()));
        return 1.0f / (1.0f + std::exp(-sum));
    }

    std::vector<Shown> auction(const View& v) const {
        std::vector<Shown> all;
        for (const std::uint32_t a : retrieve(v)) all.push_back({a, bids_[a] * click_rate(a, v.user), 0});
        std::sort(all.begin(), all.end(), [](const Shown& x, const Shown& y) { return x.value != y.value ? x.value > y.value : x.ad < y.ad; });
        // Each pays what the next one would have been worth.
        for (std::size_t i = 0; i < std::min(shown, all.size()); i++) all[i].price = i + 1 < all.size() ? all[i + 1].value : 0.0f;
        if (all.size() > shown) all.resize(shown);
        return all;
    }
    std::size_t list_size(std::size_t l) const { return lists_[l].size(); }

private:
    Zipf popularity_;
    std::vector<Embedding> embeddings_;
    std::vector<float> bids_;
    std::array<std::vector<std::uint32_t>, interests> lists_;
    std::array<std::array<float, 2 * dims>, hidden> first_;
    std::array<float, hidden> second_;
};

}  // namespace

int main(int argc, char** argv) {
    Arguments arguments(argc, argv);
    const bool verify = arguments.flag("verify");
    const Exchange exchange(static_cast<std::size_t>(arguments.number("ads", 40000, 1000, 10000000)));
    if (verify) {
        arguments.done();
        for (std::uint64_t key = 0; key < 200; key++) {
            const auto v = exchange.view(key);
            const auto best = exchange.retrieve(v);
            const auto won = exchange.auction(v);
            must(!won.empty() && won.size() <= shown, "between 1 and 4 ads are shown");
            for (std::size_t i = 0; i < won.size(); i++) {
                must(std::find(best.begin(), best.end(), won[i].ad) != best.end(), "an ad that is shown was retrieved");
                must(won[i].price <= won[i].value, "nobody pays more than the ad is worth to them");
                must(i == 0 || won[i].value <= won[i - 1].value, "the best ad stands first");
                for (std::size_t j = 0; j < i; j++) must(won[i].ad != won[j].ad, "no ad is shown twice");
            }
        }
        std::puts("verify: ok");
        return 0;
    }
    serve(arguments, [&](unsigned) {
        return Handler([&exchange](std::uint64_t key) {
            std::string text;
            for (const Shown& s : exchange.auction(exchange.view(key))) text += "ad " + std::to_string(s.ad) + " at " + std::to_string(s.price) + "\n";
            return text;
        });
    });
}
