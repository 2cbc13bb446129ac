// Image recognition: a small CNN in ONNX Runtime reads digits.
//
//   digits serve FOLDER --port P --threads N
//   digits verify FOLDER
//
// FOLDER holds digits.onnx and digits.bin (made by digits.py). Request key K: image K mod 1000, moved by up to two pixels and with
// fresh noise, both drawn from K. Each worker has a session of its own that uses one thread.
#include <dlfcn.h>
#include <onnxruntime_c_api.h>

#include <array>
#include <fstream>
#include <iterator>
#include <surefoot/random.hpp>
#include <surefoot/service.hpp>

using namespace surefoot;

namespace {

constexpr std::size_t side = 28, pixels = side * side, record_bytes = pixels + 1;

const OrtApi* api = nullptr;

void check(OrtStatus* status) {
    if (status == nullptr) return;
    const std::string text = api->GetErrorMessage(status);
    api->ReleaseStatus(status);
    throw std::runtime_error("ONNX Runtime: " + text);
}

// Loaded at run time: the library is of a newer Debian than the compiler, and only its C interface is used.
void open_library() {
    void* library = ::dlopen("libonnxruntime.so.1.21", RTLD_NOW);
    if (library == nullptr) library = ::dlopen("libonnxruntime.so.1", RTLD_NOW);
    if (library == nullptr) die(1, std::string("ONNX Runtime: ") + ::dlerror());
    const auto base = reinterpret_cast<const OrtApiBase* (*)()>(::dlsym(library, "OrtGetApiBase"));
    api = base == nullptr ? nullptr : base()->GetApi(ORT_API_VERSION);
    if (api == nullptr) die(1, "ONNX Runtime: the library is older than version 1." + std::to_string(ORT_API_VERSION));
}

struct Images {
    explicit Images(const std::string& file) {
        std::ifstream in(file, std::ios::binary);
        bytes.assign(std::istreambuf_iterator<char>(in), {});
        if (bytes.empty() || bytes.size() % record_bytes != 0) die(1, file + ": missing or cut short. Make it with digits.py");
    }
    std::size_t count() const { return bytes.size() / record_bytes; }
    int digit(std::uint64_t key) const { return bytes[(key % count()) * record_bytes + pixels]; }
    std::array<float, pixels> image(std::uint64_t key) const {
        Random random(51, key);
        const auto dx = random.between(-2, 2), dy = random.between(-2, 2);
        const auto* from = reinterpret_cast<const unsigned char*>(bytes.data()) + (key % count()) * record_bytes;
        std::array<float, pixels> out;
        for (std::int64_t y = 0; y < static_cast<std::int64_t>(side); y++) {
            for (std::int64_t x = 0; x < static_cast<std::int64_t>(side); x++) {
                const std::int64_t fx = x + dx, fy = y + dy, n = side;
                const float ink = fx < 0 || fy < 0 || fx >= n || fy >= n ? 0.0f : static_cast<float>(from[fy * n + fx]) / 255.0f;
                const float noisy = ink + 0.06f * static_cast<float>(random.uniform() - 0.5);
                out[static_cast<std::size_t>(y * n + x)] = std::min(1.0f, std::max(0.0f, noisy));
            }
        }
        return out;
    }
    std::vector<char> bytes;
};

class Reader {
public:
    Reader(OrtEnv* env, const std::string& model) {
        OrtSessionOptions* options = nullptr;
        check(api->CreateSessionOptions(&options));
        // The workers are the threads: a session's own ones would escape --threads.
        check(api->SetIntraOpNumThreads(options, 1));
        check(api->SetInterOpNumThreads(options, 1));
        check(api->CreateSession(env, model.c_str(), options, &session_));
        api->ReleaseSessionOptions(options);
        check(api->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &memory_));
    }
    Reader(const Reader&) = delete;
    Reader& operator=(const Reader&) = delete;
    ~Reader() {
        api->ReleaseMemoryInfo(memory_);
        api->ReleaseSession(session_);
    }
    int read(std::array<float, pixels>& image) {
        const std::array<std::int64_t, 4> shape{1, 1, side, side};
        OrtValue *in = nullptr, *out = nullptr;
        check(api->CreateTensorWithDataAsOrtValue(memory_, image.data(), sizeof image, shape.data(), shape.size(), ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &in));
        const char *in_name = "image", *out_name = "scores";
        const OrtValue* inputs[] = {in};
        check(api->Run(session_, nullptr, &in_name, inputs, 1, &out_name, 1, &out));
        float* scores = nullptr;
        check(api->GetTensorMutableData(out, reinterpret_cast<void**>(&scores)));
        const int digit = static_cast<int>(std::max_element(scores, scores + 10) - scores);
        api->ReleaseValue(out);
        api->ReleaseValue(in);
        return digit;
    }

private:
    OrtSession* session_ = nullptr;
    OrtMemoryInfo* memory_ = nullptr;
};

}  // namespace

int main(int argc, char** argv) {
    Arguments arguments(argc, argv);
    const auto words = arguments.words();
    if (words.size() != 2 || (words[0] != "serve" && words[0] != "verify")) die(2, "usage: digits serve|verify FOLDER [--port P] [--threads N]");
    open_library();
    OrtEnv* env = nullptr;
    check(api->CreateEnv(ORT_LOGGING_LEVEL_WARNING, "digits", &env));
    const Images images(words[1] + "/digits.bin");
    const std::string model = words[1] + "/digits.onnx";
    if (words[0] == "verify") {
        arguments.done();
        Reader reader(env, model);
        int right = 0;
        for (std::uint64_t key = 0; key < 2000; key++) {
            auto image = images.image(key);
            right += reader.read(image) == images.digit(key);
        }
        std::printf("verify: %d of 2000 read rightly\n", right);
        // Moved images are harder than those that the model was tested on.
        must(right >= 1700, "at least 85 % are read rightly");
        std::puts("verify: ok");
        return 0;
    }
    serve(arguments, [&](unsigned) {
        return Handler([reader = std::make_shared<Reader>(env, model), &images](std::uint64_t key) {
            auto image = images.image(key);
            return std::to_string(reader->read(image)) + "\n";
        });
    });
}
