// Machine translation, English to Spanish, with Apertium.
//
//   translate --port P --threads N
//   translate --verify
//
// Request key K: three sentences put together from K. A worker has a pipeline of Apertium's programs of its own (`translator`) and
// hands it one text at a time, so that about one of the pipeline's processes runs at any moment.
#include <fcntl.h>

#include <array>
#include <surefoot/random.hpp>
#include <surefoot/service.hpp>

using namespace surefoot;

namespace {

template <std::size_t n>
const char* pick(Random& random, const std::array<const char*, n>& from) { return from[random.below(n)]; }

std::string sentence(Random& random) {
    static const std::array<const char*, 16> adjectives{"old", "new", "small", "big", "red", "white", "good", "bad", "strong", "young", "long", "short", "rich", "poor", "cheap", "clean"};
    static const std::array<const char*, 24> nouns{"house", "dog", "city", "book", "car", "doctor", "friend", "tree", "river", "table", "window", "street", "teacher", "train", "letter", "garden", "door", "boat", "child", "woman", "worker", "horse", "king", "map"};
    static const std::array<const char*, 16> verbs{"sees", "buys", "sells", "finds", "opens", "closes", "reads", "writes", "paints", "wants", "has", "loses", "wins", "moves", "cleans", "breaks"};
    static const std::array<const char*, 8> places{"in the kitchen", "near the sea", "in the morning", "after the war", "with his brother", "without money", "on the mountain", "before the meeting"};
    static const std::array<const char*, 4> forms{"The", "My", "This", "Our"};
    std::string text = std::string(pick(random, forms)) + " " + pick(random, adjectives) + " " + pick(random, nouns) + " " + pick(random, verbs) + " the " +
                       pick(random, adjectives) + " " + pick(random, nouns) + " " + pick(random, places);
    if (random.below(2) == 0) text += std::string(" and the ") + pick(random, nouns) + " " + pick(random, verbs) + " a " + pick(random, nouns);
    return text + ".";
}

std::string text_of(std::uint64_t key) {
    Random random(91, key);
    return sentence(random) + " " + sentence(random) + " " + sentence(random);
}

class Translator {
public:
    Translator() {
        int to[2], from[2];
        if (::pipe2(to, O_CLOEXEC) != 0 || ::pipe2(from, O_CLOEXEC) != 0) throw std::runtime_error("no pipes");
        const pid_t child = ::fork();
        if (child == 0) {
            ::dup2(to[0], 0);
            ::dup2(from[1], 1);
            ::execlp("translator", "translator", static_cast<char*>(nullptr));
            ::_exit(127);
        }
        ::close(to[0]);
        ::close(from[1]);
        in_ = to[1];
        out_ = from[0];
        if (translate("The house is white.").empty()) throw std::runtime_error("Apertium translates nothing");
    }
    Translator(const Translator&) = delete;
    Translator& operator=(const Translator&) = delete;
    std::string translate(const std::string& text) {
        // "[]" is an empty piece of formatting: without it the last full stop waits for what may follow. The zero byte ends the text.
        static const std::string end = "[]\n";
        const std::string all = text + end;
        for (std::size_t at = 0; at <= all.size();) {
            const ssize_t n = ::write(in_, all.c_str() + at, all.size() + 1 - at);
            if (n <= 0) throw std::runtime_error("Apertium has ended");
            at += static_cast<std::size_t>(n);
        }
        std::string spanish;
        for (char buffer[4096];;) {
            const ssize_t n = ::read(out_, buffer, sizeof buffer);
            if (n <= 0) throw std::runtime_error("Apertium has ended");
            spanish.append(buffer, static_cast<std::size_t>(n));
            if (spanish.back() == '\0') break;
        }
        if (spanish.size() < end.size() + 1) throw std::runtime_error("Apertium translates nothing");
        spanish.resize(spanish.size() - end.size() - 1);
        return spanish;
    }

private:
    int in_ = -1, out_ = -1;
};

void verify() {
    Translator one, two;
    const std::string white = one.translate("The house is white.");
    must(white == "La casa es blanca.", "\"The house is white.\" is \"La casa es blanca.\", not \"" + white + "\"");
    std::size_t unknown = 0;
    for (std::uint64_t key = 0; key < 300; key++) {
        const std::string text = text_of(key), spanish = one.translate(text);
        must(two.translate(text) == spanish, "a text is translated in the same way each time");
        must(std::count(spanish.begin(), spanish.end(), '.') == 3, "three sentences stay three: " + spanish);
        // Apertium marks words that it does not know, or cannot inflect, with * and #.
        unknown += static_cast<std::size_t>(std::count_if(spanish.begin(), spanish.end(), [](char c) { return c == '*' || c == '#' || c == '@'; }));
    }
    must(unknown < 100, "few words are unknown: " + std::to_string(unknown));
    std::printf("verify: ok, %s -> %s\n", text_of(1).c_str(), one.translate(text_of(1)).c_str());
}

}  // namespace

int main(int argc, char** argv) {
    std::signal(SIGPIPE, SIG_IGN);
    Arguments arguments(argc, argv);
    if (arguments.flag("verify")) {
        arguments.done();
        verify();
        return 0;
    }
    serve(arguments, [](unsigned) {
        return Handler([translator = std::make_shared<Translator>()](std::uint64_t key) { return translator->translate(text_of(key)) + "\n"; });
    });
}
