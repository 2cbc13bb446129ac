// Phrase-based statistical machine translation.
//
//   phrases --port P --threads N [--size native|small]
//   phrases --verify
//
// Request key K is a text drawn from K: mostly a short line, now and then a paragraph. A phrase table gives up to 20 translations for each
// phrase of 1 to 4 source words; a language model scores target words by the two before them. The decoder covers the source words phrase by
// phrase, in any order within a distortion limit, and keeps a stack of the best partial translations for each number of covered words
// (Koehn, Och and Marcu 2003; cube pruning after Huang and Chiang 2007). Tables are drawn from a seed at the start, by all threads, and
// only read after that: about 640 MB, or 50 MB with `--size small`. Scores are sums and products of draws, the same everywhere.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <memory>
#include <surefoot/parallel.hpp>
#include <surefoot/random.hpp>
#include <surefoot/service.hpp>
#include <tuple>

using namespace surefoot;

namespace {

constexpr std::uint64_t seed = 71;
constexpr std::size_t longest_source = 4, longest_target = 3, most_options = 20;
// Words that a translation may be moved by; candidates taken for a stack; partial translations that a stack keeps.
constexpr std::size_t distortion_limit = 6, pops = 100, stack_limit = 100;
constexpr float w_language = 0.5f, w_distortion = -0.3f, w_reordering = 0.3f, word_bonus = 0.4f, unknown_score = -10.0f;
constexpr std::array<float, 5> w_translation{0.2f, 0.2f, 0.2f, 0.2f, 0.3f};

using Word = std::uint32_t;

struct Shape {
    Word words;  // of each language
    std::size_t phrases, ngrams;
};
constexpr Shape native{65536, 1'500'000, 8'000'000}, small{8192, 100'000, 500'000};

// A translation of a phrase, with the logarithms that training would have given it.
struct Option {
    std::array<Word, longest_target> word{};
    std::uint32_t length = 0;
    std::array<float, 5> translation{};
    std::array<float, 3> reordering{};  // where it follows on, comes before, or comes after what was translated last
};

// Words by popularity, rank r with a chance of about 1 / (r + 1) of the first one's, at the price of one look-up: tables take tens of
// millions of draws.
class Popularity {
public:
    explicit Popularity(Word words) : rank_(std::size_t{1} << bits) {
        double all = 0, sum = 0;
        for (Word w = 0; w < words; w++) all += 1.0 / (w + 1.0);
        std::size_t at = 0;
        for (Word w = 0; w < words; w++) {
            sum += 1.0 / (w + 1.0);
            const auto to = w + 1 == words ? rank_.size() : static_cast<std::size_t>(sum / all * static_cast<double>(rank_.size()));
            for (; at < to; at++) rank_[at] = w;
        }
    }
    Word draw(Random& random) const { return rank_[random.next() >> (64 - bits)]; }

private:
    static constexpr unsigned bits = 20;
    std::vector<Word> rank_;
};

std::uint64_t key_of(const Word* words, std::size_t n) {
    std::uint64_t key = n;
    for (std::size_t i = 0; i < n; i++) key = mix(key ^ (words[i] + 1));
    return key | 1;  // 0 is an empty slot
}

// Open addressing; filled by many threads at once. Which slot a key gets depends on the threads, what is found does not.
template <class Value>
class Table {
public:
    explicit Table(std::size_t entries) : mask_(std::bit_ceil(entries + entries / 2) - 1), slots_(new Slot[mask_ + 1]()) {}
    // The value's place, which may be another thread's too.
    Value& add(std::uint64_t key) {
        for (std::size_t at = key >> 1;; at++) {
            Slot& s = slots_[at & mask_];
            std::uint64_t seen = 0;
            if (std::atomic_ref(s.key).compare_exchange_strong(seen, key, std::memory_order_relaxed) || seen == key) return s.value;
        }
    }
    const Value* find(std::uint64_t key) const {
        for (std::size_t at = key >> 1;; at++) {
            const Slot& s = slots_[at & mask_];
            if (s.key == key) return &s.value;
            if (s.key == 0) return nullptr;
        }
    }

private:
    struct Slot {
        std::uint64_t key;
        Value value;
    };
    std::size_t mask_;
    std::unique_ptr<Slot[]> slots_;
};

// Backs off from three words to two to one.
class Language {
public:
    Language(const Shape& shape, const Popularity& popularity, unsigned threads) : words_(shape.words), ngrams_(shape.ngrams) {
        for (Word w = 0; w < shape.words; w++) single_.push_back({-1.0f - 0.5f * static_cast<float>(std::bit_width(w + 1u)), -share(mix(w))});
        for (int i = 0; i < 2; i++) single_.push_back({-2.0f, 0.0f});  // begin() and end()
        in_parallel(shape.ngrams, threads, [&](std::size_t from, std::size_t to) {
            for (std::size_t e = from; e < to; e++) {
                Random random(mix(seed + 3), e);
                const std::size_t n = random.below(5) < 2 ? 2 : 3;
                std::array<Word, 3> w{};
                for (std::size_t i = 0; i < n; i++) w[i] = popularity.draw(random);
                const std::uint64_t key = key_of(w.data(), n);
                // A function of the key: who else draws the same words writes the same.
                Score& s = ngrams_.add(key);
                std::atomic_ref(s.log).store(-0.5f - 4.0f * share(key), std::memory_order_relaxed);
                std::atomic_ref(s.back_off).store(-share(mix(key)), std::memory_order_relaxed);
            }
        });
    }
    Word begin() const { return words_; }
    Word end() const { return words_ + 1; }
    // Logarithm of the chance of `w` after `u v`.
    float score(Word u, Word v, Word w) const {
        const std::array<Word, 3> all{u, v, w};
        if (const Score* s = ngrams_.find(key_of(&all[0], 3))) return s->log;
        const Score* context = ngrams_.find(key_of(&all[0], 2));
        const float back = context != nullptr ? context->back_off : 0.0f;
        if (const Score* s = ngrams_.find(key_of(&all[1], 2))) return back + s->log;
        return back + single(v).back_off + single(w).log;
    }

private:
    struct Score {
        float log, back_off;
    };
    static float share(std::uint64_t x) { return static_cast<float>(x >> 40) * 0x1p-24f; }
    // A name that was copied is no word of the language.
    const Score& single(Word w) const { return single_[std::min(w, words_ + 1)]; }
    Word words_;
    std::vector<Score> single_;
    Table<Score> ngrams_;
};

class Model {
public:
    Model(const Shape& shape, unsigned threads)
        : shape_(shape), word_(shape.words), phrase_(shape.phrases), language_(shape, word_, threads), rank_(shape.phrases), first_(shape.phrases + 1) {
        for (std::size_t r = 0; r < shape.phrases; r++) first_[r + 1] = first_[r] + count(r);
        options_ = std::make_unique_for_overwrite<Option[]>(first_.back());
        in_parallel(shape.phrases, threads, [&](std::size_t from, std::size_t to) {
            for (std::size_t r = from; r < to; r++) {
                const Source s = source(r);
                // Of equal phrases the most popular one counts.
                std::atomic_ref rank(rank_.add(key_of(s.word.data(), s.length)));
                for (std::uint32_t old = rank.load(), mine = ~static_cast<std::uint32_t>(r); mine > old && !rank.compare_exchange_weak(old, mine);) {}
                Random random(mix(seed + 2), r);
                for (std::size_t o = first_[r]; o < first_[r + 1]; o++) options_[o] = option(random, s.length, o - first_[r]);
            }
        });
    }

    struct Source {
        std::array<Word, longest_source> word{};
        std::size_t length = 1;
    };
    // The phrase of a rank: each single word, then draws of several.
    Source source(std::size_t rank) const {
        Source s;
        s.word[0] = static_cast<Word>(rank);
        if (rank < shape_.words) return s;
        Random random(mix(seed + 1), rank);
        const std::uint64_t at = random.below(10);
        s.length = at < 5 ? 2 : at < 8 ? 3 : 4;
        for (std::size_t i = 0; i < s.length; i++) s.word[i] = word_.draw(random);
        return s;
    }
    // First and last + 1 of a phrase's translations; equal where it has none.
    std::pair<const Option*, const Option*> translations(const Word* words, std::size_t n) const {
        const std::uint32_t* found = rank_.find(key_of(words, n));
        if (found == nullptr) return {nullptr, nullptr};
        const std::size_t r = ~*found;
        return {&options_[first_[r]], &options_[first_[r]] + count(r)};
    }
    const Language& language() const { return language_; }

    // Request `key`'s text: phrases drawn by popularity; one word in 100 is a name that no table knows.
    std::vector<Word> text(std::uint64_t key) const {
        Random random(mix(seed + 4), key);
        const std::uint64_t kind = random.below(1000);
        const std::int64_t length = kind < 500   ? random.between(2, 10)
                                    : kind < 930 ? random.between(10, 34)
                                    : kind < 985 ? random.between(30, 100)
                                                 : random.between(300, 460);
        std::vector<Word> words;
        while (words.size() < static_cast<std::size_t>(length)) {
            if (random.below(100) == 0) {
                words.push_back(shape_.words + static_cast<Word>(random.below(100000)));
                continue;
            }
            const Source s = source(phrase_.draw(random));
            words.insert(words.end(), s.word.begin(), s.word.begin() + static_cast<std::ptrdiff_t>(s.length));
        }
        words.resize(static_cast<std::size_t>(length));
        return words;
    }

private:
    // Single words have more translations than phrases of several.
    std::uint32_t count(std::size_t rank) const {
        const std::uint64_t h = mix(seed + 5 + rank);
        return static_cast<std::uint32_t>(rank < shape_.words ? 4 + h % (most_options - 3) : 1 + h % 6);
    }
    Option option(Random& random, std::size_t source_length, std::size_t place) const {
        Option o;
        o.length = 1 + static_cast<std::uint32_t>(random.below(std::min(longest_target, source_length + 1)));
        for (std::size_t i = 0; i < o.length; i++) o.word[i] = word_.draw(random);
        for (float& x : o.translation) x = -0.3f * static_cast<float>(place) - 2.0f * static_cast<float>(random.uniform());
        for (float& x : o.reordering) x = -2.0f * static_cast<float>(random.uniform());
        return o;
    }
    Shape shape_;
    Popularity word_;
    Zipf phrase_;
    Language language_;
    Table<std::uint32_t> rank_;  // inverted, so that an empty one is the least popular
    std::vector<std::uint32_t> first_;
    std::unique_ptr<Option[]> options_;
};

// What of a translation does not depend on what stands before it.
float alone(const Option& o) {
    float score = word_bonus * static_cast<float>(o.length);
    for (std::size_t i = 0; i < w_translation.size(); i++) score += w_translation[i] * o.translation[i];
    return score;
}

// 0: goes on where the last phrase ended; 1: goes back; 2: leaves a gap.
std::size_t orientation(std::size_t last_end, std::size_t from) { return from == last_end ? 0 : from < last_end ? 1 : 2; }

// A translation's words and its score after a partial translation that ends in `u v` and at source word `last_end`.
float following(const Language& language, const Option& o, Word& u, Word& v, std::size_t last_end, std::size_t from) {
    const std::size_t jump = from > last_end ? from - last_end : last_end - from;
    float score = w_distortion * static_cast<float>(jump) + w_reordering * o.reordering[orientation(last_end, from)];
    for (std::size_t i = 0; i < o.length; i++) {
        score += w_language * language.score(u, v, o.word[i]);
        u = v;
        v = o.word[i];
    }
    return score;
}

// Source words that are covered: all before `gap`, and gap + i for each bit i of `beyond`.
struct Coverage {
    std::uint32_t gap = 0, beyond = 0;
    bool is_free(std::size_t from, std::size_t n) const { return (beyond >> (from - gap) & ((1u << n) - 1)) == 0; }
    Coverage with(std::size_t from, std::size_t n) const {
        Coverage c{gap, beyond | ((1u << n) - 1) << (from - gap)};
        for (; (c.beyond & 1) != 0; c.beyond >>= 1) c.gap++;
        return c;
    }
    bool operator==(const Coverage&) const = default;
};

// Whether source words `from` to `from + n` may be next: within the limit of where the last phrase ended, and not so far ahead that the
// first gap could not be reached again.
bool may_follow(const Coverage& c, std::size_t last_end, std::size_t from, std::size_t n, std::size_t words) {
    const std::size_t jump = from > last_end ? from - last_end : last_end - from;
    return from + n <= words && jump <= distortion_limit && (from == c.gap || from + n <= c.gap + distortion_limit) && c.is_free(from, n);
}

struct Translation {
    std::vector<Word> words;
    float score = 0;
    std::size_t evaluated = 0;  // partial translations that were scored
    struct Step {
        std::size_t from, to;
        const Option* option;
    };
    std::vector<Step> steps;
};

class Decoder {
public:
    explicit Decoder(const Model& model, std::size_t pop_limit = pops, std::size_t keep = stack_limit) : model_(model), pops_(pop_limit), keep_(keep) {}

    Translation translate(const std::vector<Word>& source) {
        const std::size_t n = source.size();
        Translation result;
        find_choices(source);
        estimate(n);
        partial_.clear();
        groups_.assign(n + 1, {});
        partial_.push_back({0, future({}, n), {}, 0, model_.language().begin(), model_.language().begin(), nullptr, 0, 0});
        groups_[0].push_back({0, 1});
        for (std::size_t covered = 1; covered <= n; covered++) result.evaluated += fill(covered, n);
        std::size_t at = groups_[n].front().from;
        for (const Group& g : groups_[n])
            if (partial_[g.from].total > partial_[at].total) at = g.from;
        result.score = partial_[at].score;
        for (; partial_[at].option != nullptr; at = partial_[at].parent) result.steps.push_back({partial_[at].from, partial_[at].end, partial_[at].option});
        std::reverse(result.steps.begin(), result.steps.end());
        for (const auto& s : result.steps) result.words.insert(result.words.end(), s.option->word.begin(), s.option->word.begin() + s.option->length);
        return result;
    }

private:
    struct Choice {
        const Option* option;
        float alone, estimate;
    };
    struct Partial {
        float score, total;  // total: with an estimate of what the rest costs
        Coverage coverage;
        std::uint32_t end;  // of the last phrase
        Word u, v;
        const Option* option;
        std::uint32_t parent, from;
    };
    // Partial translations that can be extended in the same ways, best first.
    struct Group {
        std::size_t from, to;
    };
    struct Edge {
        Group group;
        std::size_t from, length;
        const Choice *first, *last;
    };
    struct Candidate {
        std::uint32_t edge, row, column;
        Partial partial;
        bool operator<(const Candidate& other) const {
            // Equal ones in a fixed order, or answers would depend on the library.
            if (partial.total != other.partial.total) return partial.total < other.partial.total;
            return std::tie(edge, row, column) > std::tie(other.edge, other.row, other.column);
        }
    };

    std::size_t span(std::size_t from, std::size_t length) const { return from * longest_source + length - 1; }

    void find_choices(const std::vector<Word>& source) {
        const std::size_t n = source.size();
        choices_.assign(n * longest_source, {});
        names_.clear();
        names_.reserve(n);
        for (std::size_t from = 0; from < n; from++) {
            for (std::size_t length = 1; length <= std::min(longest_source, n - from); length++) {
                auto& here = choices_[span(from, length)];
                const auto [first, last] = model_.translations(&source[from], length);
                for (const Option* o = first; o != last; o++) {
                    const float score = alone(*o);
                    here.push_back({o, score, score + estimate_of(*o)});
                }
                if (here.empty() && length == 1) {
                    names_.push_back({{source[from]}, 1, {}, {}});
                    here.push_back({&names_.back(), unknown_score, unknown_score + estimate_of(names_.back())});
                }
                std::stable_sort(here.begin(), here.end(), [](const Choice& a, const Choice& b) { return a.estimate > b.estimate; });
            }
        }
    }
    // What the language model will say about a translation, as far as its own words tell.
    float estimate_of(const Option& o) const {
        const Language& language = model_.language();
        float score = 0;
        Word u = language.end(), v = language.end();
        for (std::size_t i = 0; i < o.length; i++) {
            score += w_language * language.score(u, v, o.word[i]);
            u = v;
            v = o.word[i];
        }
        return score;
    }
    // The best that runs of uncovered words can add: run_ for short ones, rest_ for those up to the end.
    void estimate(std::size_t n) {
        run_.assign(n * distortion_limit, -INFINITY);
        rest_.assign(n + 1, -INFINITY);
        rest_[n] = 0;
        for (std::size_t from = n; from-- > 0;) {
            for (std::size_t length = 1; length <= std::min(longest_source, n - from); length++) {
                if (choices_[span(from, length)].empty()) continue;
                const float best = choices_[span(from, length)].front().estimate;
                rest_[from] = std::max(rest_[from], best + rest_[from + length]);
                for (std::size_t all = length; all <= std::min(distortion_limit, n - from); all++) {
                    float& run = run_[from * distortion_limit + all - 1];
                    run = std::max(run, best + (all == length ? 0.0f : run_[(from + length) * distortion_limit + all - length - 1]));
                }
            }
        }
    }
    float future(const Coverage& c, std::size_t n) const {
        if (c.beyond == 0) return rest_[std::min<std::size_t>(c.gap, n)];
        const std::size_t end = c.gap + static_cast<std::size_t>(std::bit_width(c.beyond));
        float sum = rest_[end];
        for (std::size_t at = c.gap; at < end;) {
            std::size_t to = at;
            while ((c.beyond >> (to - c.gap) & 1) == 0) to++;
            if (to > at) sum += run_[at * distortion_limit + to - at - 1];
            at = to + 1;
        }
        return sum;
    }
    Candidate candidate(const std::vector<Edge>& edges, std::size_t edge, std::size_t row, std::size_t column, std::size_t n) const {
        const Edge& e = edges[edge];
        const std::size_t parent = e.group.from + row;
        const Partial& before = partial_[parent];
        const Choice& choice = e.first[column];
        Partial p{before.score + choice.alone, 0, before.coverage.with(e.from, e.length), static_cast<std::uint32_t>(e.from + e.length),
                  before.u, before.v, choice.option, static_cast<std::uint32_t>(parent), static_cast<std::uint32_t>(e.from)};
        p.score += following(model_.language(), *choice.option, p.u, p.v, before.end, e.from);
        if (p.coverage.gap == n) p.score += w_language * model_.language().score(p.u, p.v, model_.language().end());
        p.total = p.score + future(p.coverage, n);
        return {static_cast<std::uint32_t>(edge), static_cast<std::uint32_t>(row), static_cast<std::uint32_t>(column), p};
    }
    // The stack of partial translations that cover `covered` words; how many candidates were scored for it.
    std::size_t fill(std::size_t covered, std::size_t n) {
        edges_.clear();
        for (std::size_t length = 1; length <= std::min(longest_source, covered); length++) {
            for (const Group& g : groups_[covered - length]) {
                const Partial& any = partial_[g.from];
                for (std::size_t from = any.coverage.gap; from <= any.coverage.gap + distortion_limit; from++) {
                    if (!may_follow(any.coverage, any.end, from, length, n)) continue;
                    const auto& here = choices_[span(from, length)];
                    if (!here.empty()) edges_.push_back({g, from, length, here.data(), here.data() + here.size()});
                }
            }
        }
        std::vector<Candidate> heap;
        std::size_t scored = edges_.size();
        for (std::size_t e = 0; e < edges_.size(); e++) heap.push_back(candidate(edges_, e, 0, 0, n));
        std::make_heap(heap.begin(), heap.end());
        const auto push = [&](std::size_t e, std::size_t row, std::size_t column) {
            if (row >= edges_[e].group.to - edges_[e].group.from || column >= static_cast<std::size_t>(edges_[e].last - edges_[e].first)) return;
            heap.push_back(candidate(edges_, e, row, column, n));
            std::push_heap(heap.begin(), heap.end());
            scored++;
        };
        std::vector<Partial> stack;
        for (std::size_t i = 0; i < pops_ && !heap.empty(); i++) {
            std::pop_heap(heap.begin(), heap.end());
            const Candidate c = heap.back();
            heap.pop_back();
            stack.push_back(c.partial);
            // Each cell of an edge's grid has one way to it: along its row, and down the first column.
            if (c.column == 0) push(c.edge, c.row + 1, 0);
            push(c.edge, c.row, c.column + 1);
        }
        keep(stack, covered);
        return scored;
    }
    // Of equal states only the best goes on; the best of what is left make the stack.
    void keep(std::vector<Partial>& stack, std::size_t covered) {
        const auto ways = [](const Partial& p) { return std::tie(p.coverage.gap, p.coverage.beyond, p.end); };
        const auto state = [](const Partial& p) { return std::tie(p.coverage.gap, p.coverage.beyond, p.end, p.u, p.v); };
        std::stable_sort(stack.begin(), stack.end(), [&](const Partial& a, const Partial& b) {
            return state(a) != state(b) ? state(a) < state(b) : a.total > b.total;
        });
        stack.erase(std::unique(stack.begin(), stack.end(), [&](const Partial& a, const Partial& b) { return state(a) == state(b); }), stack.end());
        if (stack.size() > keep_) {
            std::stable_sort(stack.begin(), stack.end(), [](const Partial& a, const Partial& b) { return a.total > b.total; });
            stack.resize(keep_);
        }
        std::stable_sort(stack.begin(), stack.end(), [&](const Partial& a, const Partial& b) {
            return ways(a) != ways(b) ? ways(a) < ways(b) : a.total > b.total;
        });
        for (std::size_t i = 0; i < stack.size(); i++) {
            if (i == 0 || ways(stack[i - 1]) != ways(stack[i])) groups_[covered].push_back({partial_.size(), partial_.size()});
            partial_.push_back(stack[i]);
            groups_[covered].back().to = partial_.size();
        }
    }

    const Model& model_;
    std::size_t pops_, keep_;
    std::vector<std::vector<Choice>> choices_;
    std::vector<Option> names_;
    std::vector<float> run_, rest_;
    std::vector<Partial> partial_;
    std::vector<std::vector<Group>> groups_;  // by the number of covered words
    std::vector<Edge> edges_;
};

std::string as_text(const std::vector<Word>& words) {
    std::string text;
    for (const Word w : words) text += (text.empty() ? "" : " ") + word(w);
    return text;
}

// The score of a derivation, word by word, without anything that the search keeps.
float score_of(const Model& model, const std::vector<Translation::Step>& steps) {
    const Language& language = model.language();
    float score = 0;
    std::size_t end = 0;
    Word u = language.begin(), v = language.begin();
    for (const auto& s : steps) {
        // A name that was copied has no translation in the table.
        score += s.option->translation == std::array<float, 5>{} ? unknown_score : alone(*s.option);
        score += following(language, *s.option, u, v, end, s.from);
        end = s.to;
    }
    return score + w_language * language.score(u, v, language.end());
}

// The best derivation there is, by trying all.
void exhaust(const Model& model, const std::vector<Word>& source, const Coverage& covered, std::size_t end, std::vector<Translation::Step>& steps, float& best) {
    if (covered.gap == source.size()) {
        best = std::max(best, score_of(model, steps));
        return;
    }
    for (std::size_t from = covered.gap; from < source.size(); from++) {
        for (std::size_t n = 1; n <= std::min(longest_source, source.size() - from); n++) {
            if (!may_follow(covered, end, from, n, source.size())) continue;
            const auto [first, last] = model.translations(&source[from], n);
            for (const Option* o = first; o != last; o++) {
                steps.push_back({from, from + n, o});
                exhaust(model, source, covered.with(from, n), from + n, steps, best);
                steps.pop_back();
            }
        }
    }
}

void verify() {
    const Model one(small, 1), many(small, 3);
    Decoder decoder(one), other(many), complete(one, SIZE_MAX, SIZE_MAX);
    std::uint64_t sum = 0;
    std::size_t moved = 0, names = 0, work = 0;
    double mean = 0, square = 0;
    constexpr std::uint64_t texts = 3000, twice = 200;
    for (std::uint64_t key = 0; key < texts; key++) {
        const std::vector<Word> source = one.text(key);
        const Translation t = decoder.translate(source);
        must(key >= twice || other.translate(many.text(key)).words == t.words, "tables and answers do not depend on the number of threads");
        std::vector<bool> covered(source.size());
        for (std::size_t i = 0; i < t.steps.size(); i++) {
            for (std::size_t at = t.steps[i].from; at < t.steps[i].to; at++) {
                must(!covered[at], "no source word is translated twice");
                covered[at] = true;
            }
            moved += i > 0 && t.steps[i].from != t.steps[i - 1].to;
            names += t.steps[i].option->word[0] >= small.words;
        }
        must(std::find(covered.begin(), covered.end(), false) == covered.end(), "every source word is translated");
        must(std::abs(score_of(one, t.steps) - t.score) < 1e-3f * (1 + std::abs(t.score)), "a score is that of its derivation");
        for (const char c : as_text(t.words)) sum = mix(sum ^ static_cast<unsigned char>(c));
        work += t.evaluated;
        mean += static_cast<double>(t.evaluated) / texts;
        square += static_cast<double>(t.evaluated) * static_cast<double>(t.evaluated) / texts;
    }
    // Short texts without a limit, against all derivations there are.
    std::size_t tried = 0;
    for (std::uint64_t key = 0; tried < 60; key++) {
        std::vector<Word> source = one.text(key);
        source.resize(std::min<std::size_t>(source.size(), 3));
        if (std::any_of(source.begin(), source.end(), [](Word w) { return w >= small.words; })) continue;
        std::vector<Translation::Step> steps;
        float best = -INFINITY;
        exhaust(one, source, {}, 0, steps, best);
        const float found = complete.translate(source).score;
        must(std::abs(found - best) < 1e-3f * (1 + std::abs(best)), "the search finds the best derivation: " + std::to_string(found) + " of " + std::to_string(best));
        const float limited = decoder.translate(source).score;
        must(limited <= best + 1e-3f * (1 + std::abs(best)), "no search beats all derivations");
        tried++;
    }
    must(moved > 0 && names > 0, "phrases are moved, and names copied");
    const double cv = std::sqrt(square - mean * mean) / mean;
    std::printf("verify: %zu candidates in %llu texts, cv %.2f, checksum %016llx\n", work, static_cast<unsigned long long>(texts), cv,
                static_cast<unsigned long long>(sum));
    must(cv > 2.2 && cv < 2.6, "the work of a request varies as Moses' does, cv 2.4: " + std::to_string(cv));
    must(sum == 0xf98741ed18c847d0, "the answers are the known ones");
}

}  // namespace

int main(int argc, char** argv) {
    Arguments arguments(argc, argv);
    if (arguments.flag("verify")) {
        arguments.done();
        verify();
        std::puts("verify: ok");
        return 0;
    }
    const std::string size = arguments.text("size", "native");
    if (size != "native" && size != "small") die(2, "--size \"" + size + "\": give native or small");
    const Serving serving(arguments);
    const Model model(size == "native" ? native : small, serving.threads);
    serving.run([&](unsigned) {
        return Handler([&model, decoder = std::make_shared<Decoder>(model)](std::uint64_t key) {
            return as_text(decoder->translate(model.text(key)).words) + "\n";
        });
    });
}
