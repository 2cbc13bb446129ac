// Login: find the user, check the password with Argon2id, open a session.
//
//   login --port P --threads N [--users 256] [--memory-kib 1024] [--passes 1]
//   login --verify
//
// Request key K: user K mod users; every 16th key comes with a wrong password. Argon2id's default cost is far below what protects
// stored passwords (OWASP: 19 MiB, 2 passes): at 20 ms a check a service could not have the 5 ms target of the papers' login.
#include <argon2.h>

#include <mutex>
#include <surefoot/random.hpp>
#include <surefoot/service.hpp>
#include <unordered_map>

using namespace surefoot;

namespace {

struct User {
    std::string name;
    std::string encoded;  // "$argon2id$..." with its salt and cost
};

std::string password(std::uint64_t user) { return word(mix(user) % 1000000) + std::to_string(user); }

// Sessions by token, in shards so that threads rarely wait for one another; the oldest gives way.
class Sessions {
public:
    void open(std::uint64_t token, std::uint64_t user) {
        Shard& s = shards_[token % shards];
        const std::lock_guard<std::mutex> hold(s.lock);
        std::uint64_t& oldest = s.ring[s.next++ % per_shard];
        s.user_of.erase(oldest);
        oldest = token;
        s.user_of[token] = user;
    }
    bool is_of(std::uint64_t token, std::uint64_t user) {
        Shard& s = shards_[token % shards];
        const std::lock_guard<std::mutex> hold(s.lock);
        const auto found = s.user_of.find(token);
        return found != s.user_of.end() && found->second == user;
    }

private:
    static constexpr std::size_t shards = 64, per_shard = 4096;
    struct Shard {
        std::mutex lock;
        std::unordered_map<std::uint64_t, std::uint64_t> user_of;
        std::vector<std::uint64_t> ring = std::vector<std::uint64_t>(per_shard);
        std::size_t next = 0;
    };
    std::vector<Shard> shards_ = std::vector<Shard>(shards);
};

class Login {
public:
    Login(std::size_t users, std::uint32_t memory_kib, std::uint32_t passes) {
        for (std::size_t u = 0; u < users; u++) {
            const std::uint64_t salt[2] = {mix(u), mix(~u)};
            char encoded[128];
            const std::string secret = password(u);
            const int error = argon2id_hash_encoded(passes, memory_kib, 1, secret.data(), secret.size(), salt, sizeof salt, 32, encoded, sizeof encoded);
            if (error != ARGON2_OK) die(1, std::string("argon2: ") + argon2_error_message(error));
            number_of_[word(u)] = users_.size();
            users_.push_back({word(u), encoded});
        }
    }
    bool wrong(std::uint64_t key) const { return key % 16 == 15; }
    // "session TOKEN", or "refused".
    std::string answer(std::uint64_t key, Random& random) {
        const std::uint64_t u = number_of_.at(word(key % users_.size()));
        const std::string given = wrong(key) ? "guess" : password(u);
        if (argon2id_verify(users_[u].encoded.c_str(), given.data(), given.size()) != ARGON2_OK) return "refused\n";
        const std::uint64_t token = random.next();
        sessions_.open(token, u);
        return (sessions_.is_of(token, u) ? "session " + std::to_string(token) : std::string("lost")) + "\n";
    }

private:
    std::vector<User> users_;
    std::unordered_map<std::string, std::uint64_t> number_of_;
    Sessions sessions_;
};

}  // namespace

int main(int argc, char** argv) {
    Arguments arguments(argc, argv);
    const bool verify = arguments.flag("verify");
    const auto users = static_cast<std::size_t>(arguments.number("users", 256, 1, 100000));
    const auto memory_kib = static_cast<std::uint32_t>(arguments.number("memory-kib", 1024, 8, 1 << 20));
    const auto passes = static_cast<std::uint32_t>(arguments.number("passes", 1, 1, 100));
    Login login(users, memory_kib, passes);
    if (verify) {
        arguments.done();
        Random random(1);
        // Three rounds, so that sessions of one user meet; 256 is a multiple of 16, so wrong passwords meet the same users again.
        for (std::uint64_t key = 0; key < 3 * users; key++)
            must(login.answer(key, random).rfind(login.wrong(key) ? "refused" : "session ", 0) == 0, "login of request " + std::to_string(key));
        std::puts("verify: ok");
        return 0;
    }
    serve(arguments, [&](unsigned worker) {
        // A token must only be unlike the others; a real service would ask the kernel for secret ones.
        return Handler([&login, random = std::make_shared<Random>(2, worker)](std::uint64_t key) { return login.answer(key, *random); });
    });
}
