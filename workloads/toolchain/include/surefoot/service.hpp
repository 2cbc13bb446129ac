// The frame of our services: HTTP/1.1 GET on 127.0.0.1, a fixed number of worker threads, nothing else that takes CPU time.
//
// All workers wait on one epoll set in which every connection is armed for one event at a time. Requests of all connections so form
// one queue, served in order of arrival by whichever worker is free (the queue of TailBench's harness; a server that gives each thread
// connections of its own makes a request wait behind its own connection while other threads idle).
#pragma once
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <latch>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <surefoot/meter.hpp>
#include <thread>
#include <vector>

namespace surefoot {

[[noreturn]] inline void die(int code, const std::string& text) {
    std::fprintf(stderr, "%s\n", text.c_str());
    std::exit(code);
}

// Command line: `--name value` pairs, and words. Asking for an option says its range; unknown options are refused by `done`.
class Arguments {
public:
    Arguments(int argc, char** argv) {
        for (int i = 1; i < argc; i++) {
            const std::string text = argv[i];
            if (text.rfind("--", 0) != 0) {
                words_.push_back(text);
            } else if (i + 1 < argc && std::strncmp(argv[i + 1], "--", 2) != 0) {
                options_[text.substr(2)] = argv[++i];
            } else {
                options_[text.substr(2)] = "";
            }
        }
    }
    const std::vector<std::string>& words() const { return words_; }
    bool has(const std::string& name) const { return options_.count(name) > 0; }
    bool flag(const std::string& name) { return options_.erase(name) > 0; }
    std::string text(const std::string& name, const std::string& otherwise) {
        const auto found = options_.find(name);
        if (found == options_.end()) return otherwise;
        std::string value = found->second;
        options_.erase(found);
        return value;
    }
    std::int64_t number(const std::string& name, std::int64_t otherwise, std::int64_t lo, std::int64_t hi) {
        const std::string value = text(name, std::to_string(otherwise));
        std::int64_t v = 0;
        const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), v);
        if (error != std::errc() || end != value.data() + value.size() || v < lo || v > hi)
            die(2, "--" + name + " \"" + value + "\" is not a whole number from " + std::to_string(lo) + " to " + std::to_string(hi));
        return v;
    }
    void done() const {
        if (!options_.empty()) die(2, "unknown option --" + options_.begin()->first);
    }

private:
    std::vector<std::string> words_;
    std::map<std::string, std::string> options_;
};

// Answers request number `key`; runs in one worker's thread only.
using Handler = std::function<std::string(std::uint64_t key)>;
// Makes a worker's handler, in the worker's own thread, so that what it allocates is near.
using MakeHandler = std::function<Handler(unsigned worker)>;

namespace detail {

struct Connection {
    int fd;
    std::string in;
};

inline bool send_all(int fd, std::string_view data) {
    while (!data.empty()) {
        const ssize_t n = ::send(fd, data.data(), data.size(), MSG_NOSIGNAL);
        if (n > 0) {
            data.remove_prefix(static_cast<std::size_t>(n));
        } else if (n < 0 && errno == EAGAIN) {
            pollfd p{fd, POLLOUT, 0};
            if (::poll(&p, 1, 1000) <= 0) return false;
        } else if (n >= 0 || errno != EINTR) {
            return false;
        }
    }
    return true;
}

inline std::string reply(const char* status, const std::string& body) {
    return std::string("HTTP/1.1 ") + status + "\r\nContent-Type: text/plain\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

// `GET /anything?q=KEY HTTP/1.1`: the key, or false.
inline bool key_of(std::string_view request, std::uint64_t& key) {
    const std::string_view line = request.substr(0, request.find("\r\n"));
    const std::size_t at = line.find("?q=");
    if (line.rfind("GET /", 0) != 0 || at == std::string_view::npos) return false;
    const char* from = line.data() + at + 3;
    const auto [end, error] = std::from_chars(from, line.data() + line.size(), key);
    return error == std::errc() && end < line.data() + line.size() && (*end == ' ' || *end == '&');
}

inline std::string answer(const Handler& handler, std::string_view request) {
    std::uint64_t key = 0;
    if (!key_of(request, key)) return reply("400 Bad Request", "give GET /?q=NUMBER\n");
    try {
        return reply("200 OK", handler(key));
    } catch (const std::exception& e) {
        return reply("500 Internal Server Error", std::string(e.what()) + "\n");
    }
}

constexpr std::size_t max_request_bytes = 16384;

// Read what is there and answer every whole request; false: the connection has ended.
inline bool serve_one(Connection& c, const Handler& handler) {
    char buffer[4096];
    for (;;) {
        const std::size_t end = c.in.find("\r\n\r\n");
        if (end != std::string::npos) {
            const bool sent = send_all(c.fd, answer(handler, std::string_view(c.in).substr(0, end)));
            c.in.erase(0, end + 4);
            if (!sent) return false;
            continue;
        }
        if (c.in.size() > max_request_bytes) return false;
        const ssize_t n = ::recv(c.fd, buffer, sizeof buffer, 0);
        if (n > 0) {
            c.in.append(buffer, static_cast<std::size_t>(n));
        } else if (n == 0) {
            return false;
        } else if (errno == EAGAIN) {
            return true;
        } else if (errno != EINTR) {
            return false;
        }
    }
}

inline void work(int poller, int listener, const Handler& handler) {
    for (;;) {
        epoll_event event{};
        if (::epoll_wait(poller, &event, 1, -1) != 1) continue;
        auto* c = static_cast<Connection*>(event.data.ptr);
        epoll_event again{EPOLLIN | EPOLLONESHOT, {.ptr = c}};
        if (c == nullptr) {
            for (int fd; (fd = ::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0;) {
                const int on = 1;
                ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
                epoll_event first{EPOLLIN | EPOLLONESHOT, {.ptr = new Connection{fd, {}}}};
                ::epoll_ctl(poller, EPOLL_CTL_ADD, fd, &first);
            }
            ::epoll_ctl(poller, EPOLL_CTL_MOD, listener, &again);
        } else if (serve_one(*c, handler)) {
            ::epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &again);
        } else {
            ::close(c->fd);
            delete c;
        }
    }
}

}  // namespace detail

// Serve until SIGTERM or SIGINT. The port opens when every worker is ready, so that whoever can connect can measure.
[[noreturn]] inline void serve(std::uint16_t port, unsigned threads, const MakeHandler& make) {
    // The first process of a container gets no default signal handling.
    for (const int s : {SIGTERM, SIGINT}) std::signal(s, [](int) { ::_exit(0); });
    const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), poller = ::epoll_create1(EPOLL_CLOEXEC);
    const int on = 1;
    ::setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
        die(1, "127.0.0.1:" + std::to_string(port) + ": " + std::strerror(errno) + ". Give a free port");
    std::latch ready(threads);
    std::vector<std::thread> workers;
    for (unsigned i = 0; i < threads; i++) {
        workers.emplace_back([&, i] {
            Handler handler;
            try {
                handler = make(i);
            } catch (const std::exception& e) {
                die(1, "worker " + std::to_string(i) + ": " + e.what());
            }
            ready.count_down();
            detail::work(poller, listener, handler);
        });
    }
    ready.wait();
    epoll_event first{EPOLLIN | EPOLLONESHOT, {.ptr = nullptr}};
    if (::listen(listener, 4096) != 0 || ::epoll_ctl(poller, EPOLL_CTL_ADD, listener, &first) != 0)
        die(1, "127.0.0.1:" + std::to_string(port) + ": " + std::strerror(errno));
    std::fprintf(stderr, "ready on 127.0.0.1:%u with %u threads\n", port, threads);
    for (auto& w : workers) w.join();
    std::abort();  // workers never end
}

// Answer requests 0 to n - 1 one after another without a client, after a tenth as many to warm up, and print what they took: service times
// as TailBench's harness counts them, from a request's arrival at a worker to its reply; and how much of them was the worker's CPU time,
// which other programs on the machine do not lengthen.
inline void time_requests(std::int64_t n, const MakeHandler& make) {
    const Handler handler = make(0);
    for (std::int64_t key = 0; key < (n + 9) / 10; key++) handler(static_cast<std::uint64_t>(n + key));
    std::vector<double> times_ms(static_cast<std::size_t>(n)), cpu_ms(times_ms.size());
    const Meter meter;
    for (std::size_t key = 0; key < times_ms.size(); key++) {
        const auto from = std::chrono::steady_clock::now();
        const double cpu_from_ms = thread_cpu_ms();
        handler(key);
        cpu_ms[key] = thread_cpu_ms() - cpu_from_ms;
        times_ms[key] = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - from).count();
    }
    std::puts(meter.json(Meter::field("requests", static_cast<double>(n)) + summary("", times_ms) + summary("cpu_", cpu_ms)).c_str());
}

// How a service is to run: `--port P --threads N`, or `--times N` for service times alone. Every service takes these.
struct Serving {
    std::uint16_t port;
    unsigned threads;
    std::int64_t times;

    explicit Serving(Arguments& arguments)
        : port(static_cast<std::uint16_t>(arguments.number("port", 8080, 1024, 65535))),
          threads(static_cast<unsigned>(arguments.number("threads", 1, 1, 1024))), times(arguments.number("times", 0, 0, 10'000'000)) {
        arguments.done();
    }
    void run(const MakeHandler& make) const {
        if (times == 0) serve(port, threads, make);
        time_requests(times, make);
    }
};

inline void serve(Arguments& arguments, const MakeHandler& make) { Serving(arguments).run(make); }

// A self-check's condition: names itself and ends the program where it does not hold.
inline void must(bool holds, const std::string& what) {
    if (!holds) die(1, "verify: FAILED: " + what);
}

}  // namespace surefoot
