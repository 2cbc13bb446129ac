// Speech recognition with PocketSphinx and its US English model.
//
//   speech serve FOLDER --port P --threads N
//   speech verify FOLDER
//
// FOLDER holds sentences.txt and one recording for each line: NN.raw, 16 kHz, 16 bits, mono. Request key K decodes recording
// K mod their number, with soft noise drawn from K, in full vocabulary with the model's trigrams. Each worker has a decoder of its own.
#include <pocketsphinx.h>

#include <fstream>
#include <iterator>
#include <sstream>
#include <surefoot/random.hpp>
#include <surefoot/service.hpp>

using namespace surefoot;

namespace {

constexpr double noise = 12.0;  // deviation; full scale is 32768

struct Speech {
    explicit Speech(const std::string& folder) {
        std::ifstream lines(folder + "/sentences.txt");
        for (std::string line; std::getline(lines, line);) {
            char name[32];
            std::snprintf(name, sizeof name, "/%02zu.raw", sentences.size());
            std::ifstream in(folder + name, std::ios::binary);
            const std::string bytes{std::istreambuf_iterator<char>(in), {}};
            if (bytes.empty()) die(1, folder + name + ": missing or empty");
            std::vector<std::int16_t> samples(bytes.size() / 2);
            std::memcpy(samples.data(), bytes.data(), samples.size() * 2);
            recordings.push_back(std::move(samples));
            sentences.push_back(line);
        }
        if (sentences.empty()) die(1, folder + "/sentences.txt: missing or empty");
    }
    std::vector<std::int16_t> recording(std::uint64_t key) const {
        auto samples = recordings[key % recordings.size()];
        Random random(81, key);
        for (auto& s : samples) s = static_cast<std::int16_t>(std::clamp(s + noise * random.normal(), -32768.0, 32767.0));
        return samples;
    }
    std::vector<std::string> sentences;
    std::vector<std::vector<std::int16_t>> recordings;
};

class Decoder {
public:
    Decoder() {
        const std::string model = "/usr/share/pocketsphinx/model/en-us";
        cmd_ln_t* config = cmd_ln_init(nullptr, ps_args(), TRUE, "-hmm", (model + "/en-us").c_str(), "-lm", (model + "/en-us.lm.bin").c_str(), "-dict",
                                       (model + "/cmudict-en-us.dict").c_str(), "-logfn", "/dev/null", nullptr);
        decoder_ = config == nullptr ? nullptr : ps_init(config);
        if (decoder_ == nullptr) throw std::runtime_error("PocketSphinx does not start with the model in " + model);
        cmd_ln_free_r(config);
    }
    Decoder(const Decoder&) = delete;
    Decoder& operator=(const Decoder&) = delete;
    ~Decoder() { ps_free(decoder_); }
    std::string decode(const std::vector<std::int16_t>& samples) {
        if (ps_start_utt(decoder_) < 0 || ps_process_raw(decoder_, samples.data(), samples.size(), FALSE, TRUE) < 0 || ps_end_utt(decoder_) < 0)
            throw std::runtime_error("PocketSphinx cannot decode this");
        std::int32_t score = 0;
        const char* text = ps_get_hyp(decoder_, &score);
        return text == nullptr ? "" : text;
    }

private:
    ps_decoder_t* decoder_;
};

// Words to insert, drop or replace to make `a` from `b`.
std::size_t word_errors(const std::string& a, const std::string& b) {
    const auto split = [](const std::string& text) {
        std::istringstream in(text);
        return std::vector<std::string>{std::istream_iterator<std::string>(in), {}};
    };
    const auto x = split(a), y = split(b);
    std::vector<std::size_t> row(y.size() + 1);
    for (std::size_t j = 0; j <= y.size(); j++) row[j] = j;
    for (std::size_t i = 1; i <= x.size(); i++) {
        std::size_t diagonal = row[0];
        row[0] = i;
        for (std::size_t j = 1; j <= y.size(); j++) {
            const std::size_t here = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (x[i - 1] == y[j - 1] ? 0 : 1)});
            diagonal = row[j];
            row[j] = here;
        }
    }
    return row[y.size()];
}

void verify(const Speech& speech) {
    Decoder decoder;
    std::size_t errors = 0, words = 0;
    for (std::size_t i = 0; i < speech.sentences.size(); i++) {
        const std::string heard = decoder.decode(speech.recording(i));
        errors += word_errors(speech.sentences[i], heard);
        words += static_cast<std::size_t>(std::count(speech.sentences[i].begin(), speech.sentences[i].end(), ' ')) + 1;
        std::printf("%s | %s\n", speech.sentences[i].c_str(), heard.c_str());
    }
    std::printf("verify: %zu of %zu words wrong\n", errors, words);
    // A synthetic voice is understood badly, but far better than noise.
    must(errors * 4 < words * 3, "less than 75 % of the words are wrong");
    std::puts("verify: ok");
}

}  // namespace

int main(int argc, char** argv) {
    Arguments arguments(argc, argv);
    const auto words = arguments.words();
    if (words.size() != 2 || (words[0] != "serve" && words[0] != "verify")) die(2, "usage: speech serve|verify FOLDER [--port P] [--threads N]");
    const Speech speech(words[1]);
    if (words[0] == "verify") {
        arguments.done();
        verify(speech);
        return 0;
    }
    serve(arguments, [&](unsigned) {
        return Handler([decoder = std::make_shared<Decoder>(), &speech](std::uint64_t key) { return decoder->decode(speech.recording(key)) + "\n"; });
    });
}
