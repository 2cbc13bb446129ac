// Full-text search with Xapian over a generated corpus.
//
//   search index FOLDER [--documents 60000]
//   search verify FOLDER
//   search serve FOLDER --port P --threads N
//
// The corpus: documents of 60 to 300 words, Zipf-drawn from 40,000 words; a third of a document's words come from its topic's 200, so
// that words occur together as in real text. Request key K is a query of 1 to 4 words of one topic, two thirds OR and one third AND,
// answered with the best 10 documents (BM25) and the beginning of each.
#include <xapian.h>

#include <surefoot/random.hpp>
#include <surefoot/service.hpp>

using namespace surefoot;

namespace {

constexpr std::size_t words = 40000, topics = 200, per_topic = 200, shown = 10;

std::string topic_word(std::uint64_t topic, std::size_t i) { return word(mix(topic * per_topic + i) % words); }

std::vector<std::string> document(std::uint64_t number, const Zipf& common, const Zipf& special) {
    Random random(41, number);
    const std::uint64_t topic = random.below(topics);
    std::vector<std::string> text(static_cast<std::size_t>(random.between(60, 300)));
    for (auto& w : text) w = random.below(3) == 0 ? topic_word(topic, special.draw(random)) : word(common.draw(random));
    return text;
}

void index(const std::string& folder, std::uint64_t documents) {
    const Zipf common(words), special(per_topic);
    Xapian::WritableDatabase out(folder, Xapian::DB_CREATE_OR_OVERWRITE);
    for (std::uint64_t n = 0; n < documents; n++) {
        Xapian::Document d;
        std::string beginning;
        for (const auto& w : document(n, common, special)) {
            d.add_term(w);
            if (beginning.size() < 160) beginning += w + " ";
        }
        d.set_data(beginning);
        out.add_document(d);
    }
    out.commit();
    out.close();
}

class Search {
public:
    explicit Search(const std::string& folder) : in_(folder), enquire_(in_), special_(per_topic) {}

    Xapian::MSet find(const std::vector<std::string>& terms, bool all) {
        enquire_.set_query(Xapian::Query(all ? Xapian::Query::OP_AND : Xapian::Query::OP_OR, terms.begin(), terms.end()));
        return enquire_.get_mset(0, shown);
    }
    std::string answer(std::uint64_t key) {
        Random random(42, key);
        const std::uint64_t topic = random.below(topics);
        std::vector<std::string> terms(1 + random.below(4));
        for (auto& t : terms) t = topic_word(topic, special_.draw(random));
        const Xapian::MSet found = find(terms, random.below(3) == 0);
        std::string text = std::to_string(found.get_matches_estimated()) + "\n";
        for (auto at = found.begin(); at != found.end(); ++at) text += std::to_string(*at) + " " + at.get_document().get_data() + "\n";
        return text;
    }

private:
    Xapian::Database in_;
    Xapian::Enquire enquire_;
    Zipf special_;
};

void verify(const std::string& folder) {
    const Zipf common(words), special(per_topic);
    const Xapian::Database in(folder);
    Search search(folder);
    for (std::uint64_t n = 0; n < in.get_doccount(); n += in.get_doccount() / 50) {
        // Its eight rarest words lead to a document; document n has number n + 1 in Xapian.
        auto text = document(n, common, special);
        std::sort(text.begin(), text.end());
        text.erase(std::unique(text.begin(), text.end()), text.end());
        std::sort(text.begin(), text.end(), [&](const auto& a, const auto& b) { return in.get_termfreq(a) < in.get_termfreq(b); });
        text.resize(8);
        const auto found = search.find(text, true);
        bool there = false;
        for (auto at = found.begin(); at != found.end(); ++at) there |= *at == n + 1;
        must(there, "document " + std::to_string(n) + " is found by its rarest words");
    }
    std::size_t hits = 0;
    for (std::uint64_t key = 0; key < 200; key++) hits += search.answer(key).rfind("0\n", 0) != 0;
    must(hits > 150, "most queries find something: " + std::to_string(hits) + " of 200");
}

}  // namespace

int main(int argc, char** argv) try {
    Arguments arguments(argc, argv);
    const auto& words_given = arguments.words();
    if (words_given.size() != 2) die(2, "usage: search index|verify|serve FOLDER [--port P] [--threads N] [--documents N]");
    const std::string what = words_given[0], folder = words_given[1];
    if (what == "index") {
        const auto documents = arguments.number("documents", 60000, 100, 100000000);
        arguments.done();
        index(folder, static_cast<std::uint64_t>(documents));
    } else if (what == "verify") {
        arguments.done();
        verify(folder);
        std::puts("verify: ok");
    } else if (what == "serve") {
        // A database object belongs to one thread; the index itself is shared through the page cache.
        serve(arguments, [&](unsigned) {
            return Handler([search = std::make_shared<Search>(folder)](std::uint64_t key) { return search->answer(key); });
        });
    } else {
        die(2, "\"" + what + "\": give index, verify or serve");
    }
    return 0;
} catch (const Xapian::Error& e) {
    die(1, "xapian: " + e.get_description());
}
