#pragma once
// Who takes part in measurements, and the tables that come of them.
#include <openssl/evp.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <ipybox/registry.hpp>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "required.hpp"

namespace bench {
using namespace ipybox;

[[noreturn]] inline void wrong_output(const std::string& who) {
    throw std::runtime_error(who + " lost or changed output; its times mean nothing");
}

inline std::string sha256(std::string_view text) {
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned size = 0;
    EVP_Digest(text.data(), text.size(), digest, &size, EVP_sha256(), nullptr);
    std::string hex;
    char two[3];
    for (unsigned i = 0; i < size; ++i) {
        std::snprintf(two, sizeof two, "%02x", digest[i]);
        hex += two;
    }
    return hex;
}

// One row each for whoever takes part in a measurement; milliseconds.
class Table {
public:
    Table(std::string title, std::string floor)
        : title_(std::move(title)), floor_(std::move(floor)) {}

    void add(const std::string& who, double milliseconds) {
        if (!samples_.contains(who)) order_.push_back(who);
        samples_[who].push_back(milliseconds);
    }

    // Ratios are of medians: to the floor, and of ours to that row.
    void print(const std::string& ours) {
        std::printf("\n%s\n%-34s %6s %10s %10s %10s %9s %9s\n", title_.c_str(), "", "n", "min ms",
                    "p50 ms", "p99 ms", "x floor", "x ipybox");
        for (const auto& who : order_) {
            auto& values = samples_[who];
            std::sort(values.begin(), values.end());
            std::printf("%-34s %6zu %10.3f %10.3f %10.3f %9.2f %9.2f\n", who.c_str(), values.size(),
                        values.front(), median(who), at(values, 0.99), median(who) / median(floor_),
                        median(who) / median(ours));
        }
    }

    double median(const std::string& who) {
        auto& values = samples_.at(who);
        std::sort(values.begin(), values.end());
        return at(values, 0.5);
    }

private:
    static double at(const std::vector<double>& sorted, double part) {
        return sorted[static_cast<std::size_t>(part * static_cast<double>(sorted.size() - 1) +
                                               0.5)];
    }

    std::string title_, floor_;
    std::vector<std::string> order_;
    std::map<std::string, std::vector<double>> samples_;
};

// Rows of a table in docs/performance.md, which `scripts/bench --write` puts there: nobody types a
// figure.
class Report {
public:
    explicit Report(std::string name) : name_(std::move(name)) {}

    void add(const std::string& what, const std::string& figure, const std::string& against) {
        rows_ += "| " + what + " | " + figure + " | " + against + " |\n";
    }
    static std::string milliseconds(double value) {
        char text[32];
        std::snprintf(text, sizeof text, value < 100 ? "%.3g ms" : "%.0f ms", value);
        return text;
    }
    // "1.3 ×" or "1/150", and the milliseconds.
    static std::string ratio(double ours, double other) {
        char text[32];
        if (ours <= 0 || other <= 0) return "?";
        if (other / ours >= 3)
            std::snprintf(text, sizeof text, "1/%.0f", other / ours);
        else
            std::snprintf(text, sizeof text, "%.2f ×", ours / other);
        return std::string(text) + " (" + milliseconds(ours) + ")";
    }
    // Between the two lines with its name. Throws std::runtime_error: they are not there.
    void write(const std::string& file) const {
        std::stringstream text;
        text << std::ifstream(file).rdbuf();
        auto page = text.str();
        const auto begin = "<!-- " + name_ + " -->\n", end = "<!-- end of " + name_ + " -->";
        const auto from = page.find(begin), to = page.find(end);
        if (from == page.npos || to == page.npos || to < from)
            throw std::runtime_error(file + " has no place for the table " + name_);
        page.replace(from + begin.size(), to - from - begin.size(),
                     "| what | ipybox | against |\n|---|---|---|\n" + rows_);
        std::ofstream(file) << page;
    }

private:
    std::string name_, rows_;
};

class Stopwatch {
public:
    double milliseconds() const {
        return std::chrono::duration<double, std::milli>(Clock::now() - start_).count();
    }

private:
    Clock::time_point start_ = Clock::now();
};

template <class T>
T run(asio::io_context& context, awaitable<T> work) {
    std::optional<T> value;
    std::exception_ptr failure;
    asio::co_spawn(context, std::move(work), [&](std::exception_ptr error, T result) {
        failure = error;
        value.emplace(std::move(result));
    });
    context.restart();
    while (!value && context.run_one() > 0) {
    }
    if (failure) std::rethrow_exception(failure);
    return std::move(*value);
}

// The host's side of everything that runs in this process.
struct Machine {
    explicit Machine(const std::string& sandbox_name) {
        host.executor = context.get_executor();
        registry.add_directory(required("IPYBOX_TEST_PLUGINS"));
        none = registry.make<Sandbox>("none", host, {});
        sandbox = registry.make<Sandbox>(sandbox_name, host, {});
        confined = sandbox_name != "none";
        backend = registry.make<KernelBackend>("zmq", host, {});
        gateway = registry.make<KernelBackend>("gateway", host, {});
    }
    std::unique_ptr<KernelBackend> forked(int spares) {
        json::object config;
        config["start"] = "forked";
        config["spares"] = spares;
        return registry.make<KernelBackend>("fork", host, config);
    }

    template <class T>
    T run(awaitable<T> work) {
        return bench::run(context, std::move(work));
    }

    // Lets what goes on in the background do so.
    void rest(Duration time) {
        context.restart();
        context.run_for(time);
    }

    asio::io_context context;
    Host host;
    PluginRegistry registry;
    std::unique_ptr<Sandbox> none, sandbox;
    std::unique_ptr<KernelBackend> backend, gateway;
    bool confined = false;
};

// What every contender can do.
class Contender {
public:
    virtual ~Contender() = default;
    virtual double start() = 0;  // to the first result, 1 + 1
    virtual double execute(const std::string& code, const std::string& expected) = 0;
    virtual void stop() = 0;
};

class Ours final : public Contender {
public:
    Ours(Machine& machine, bool confined) : Ours(machine, confined, *machine.backend) {}
    // same: starts are those of one session, which a spare is kept for.
    Ours(Machine& machine, bool confined, KernelBackend& backend, bool same = false)
        : machine_(machine), confined_(confined), backend_(backend), same_(same) {}

    double start() override {
        begin();
        const Stopwatch watch;
        kernel_ = machine_.run(open());
        if (take("1 + 1") != "2") wrong_output("ipybox");
        return watch.milliseconds();
    }
    double execute(const std::string& code, const std::string& expected) override {
        const Stopwatch watch;
        const auto output = take(code);
        const auto spent = watch.milliseconds();
        if (output != expected) wrong_output("ipybox");
        return spent;
    }
    void stop() override { kernel_.reset(); }
    // As CodeExecutor::reset() does.
    double reset() {
        const Stopwatch watch;
        kernel_ = machine_.run(reopen());
        if (take("1 + 1") != "2") wrong_output("ipybox");
        return watch.milliseconds();
    }
    // All at the same time, until each has answered.
    static double start_all(Machine& machine, std::vector<Ours>& all) {
        const auto one = [](Ours& self, std::size_t& left) -> awaitable<void> {
            self.begin();
            self.kernel_ = co_await self.open();
            std::function<void()> nothing;
            const auto text = co_await output_of(*self.kernel_, "1 + 1", nothing);
            if (text != "2") wrong_output("ipybox");
            --left;
        };
        const Stopwatch watch;
        auto left = all.size();
        for (auto& each : all)
            asio::co_spawn(machine.context, one(each, left), [](std::exception_ptr error) {
                if (error) std::rethrow_exception(error);
            });
        machine.context.restart();
        while (left > 0 && machine.context.run_one() > 0) {
        }
        return watch.milliseconds();
    }
    // Whatever it prints.
    double time_of(const std::string& code) {
        const Stopwatch watch;
        take(code);
        return watch.milliseconds();
    }
    // Until the first of what it prints.
    double time_to_first_byte(const std::string& code) {
        const Stopwatch watch;
        double first = 0;
        take(code, [&] { first = watch.milliseconds(); });
        return first;
    }
    pid_t pid() const { return kernel_->process()->pid(); }

private:
    // Another session has no use for what was made ready for this one.
    void begin() {
        static int sessions = 0;
        if (!same_) session_ = ++sessions;
    }
    awaitable<std::unique_ptr<Kernel>> open() {
        auto& sandbox = confined_ ? *machine_.sandbox : *machine_.none;
        KernelSpec spec;
        spec.python = required("IPYBOX_TEST_PYTHON");
        spec.policy.cwd = std::filesystem::temp_directory_path();
        spec.policy.env["PATH"] = "/usr/bin:/bin";
        spec.policy.env["SESSION"] = std::to_string(session_);
        if (confined_) {
            spec.policy.cwd = "/";
            spec.policy.readable.push_back(spec.python.parent_path().parent_path());
            spec.interpreter = spec.policy.readable;
            spec.owner = owner_;
            // What CodeExecutor sets.
            spec.policy.limits.processes = 1024;
            spec.policy.limits.open_files = 4096;
            const auto able = co_await sandbox.probe();
            if (able.scratch_size) spec.policy.limits.scratch_size = std::uint64_t{1} << 30;
            if (able.scratch_inodes) spec.policy.limits.scratch_inodes = 1 << 18;
        } else {
            spec.policy.network.mode = NetworkPolicy::Mode::full;
        }
        Channel package;
        package.name = "lib";
        package.host_path = required("IPYBOX_TEST_PYTHON_PACKAGE");
        spec.policy.env["PYTHONPATH"] = sandbox.guest_address(spec.policy, package);
        spec.channels.push_back(package);
        spec.extensions.push_back("ipybox_kernel");
        spec.init_timeout = std::chrono::seconds(60);
        auto kernel = co_await backend_.start(sandbox, std::move(spec));
        co_return kernel;
    }

    awaitable<std::unique_ptr<Kernel>> reopen() {
        co_await kernel_->shutdown();
        kernel_.reset();
        auto kernel = co_await open();
        co_return kernel;
    }

    static awaitable<std::string> output_of(Kernel& kernel, std::string text,
                                            std::function<void()> begun) {
        ExecuteRequest request;
        request.code = std::move(text);
        // As an executor does.
        const auto process = kernel.process();
        if (process && process->may_be_stale()) co_await process->refresh_view();
        co_await kernel.execute(std::move(request));
        std::string output;
        for (;;) {
            auto item = co_await kernel.next(never);
            if (auto* stream = std::get_if<Stream>(&*item)) {
                if (begun) std::exchange(begun, {})();
                output += stream->text;
            }
            if (auto* display = std::get_if<Display>(&*item))
                if (const auto* plain = display->data.if_contains("text/plain"))
                    output += plain->as_string();
            if (std::holds_alternative<Done>(*item)) co_return output;
        }
    }
    std::string take(std::string code, std::function<void()> on_first = {}) {
        return machine_.run(output_of(*kernel_, std::move(code), std::move(on_first)));
    }

    Machine& machine_;
    bool confined_;
    KernelBackend& backend_;
    bool same_ = false;
    int session_ = 0;
    std::shared_ptr<void> owner_ = std::make_shared<int>();  // the machine lives longer
    std::unique_ptr<Kernel> kernel_;
};

// A peer written in Python, in a process of its own; see jupyter_client_peer.py.
class PythonPeer final : public Contender {
public:
    PythonPeer(std::string name, std::string python, std::string script,
               const std::string& argument = {})
        : name_(std::move(name)) {
        script = IPYBOX_BENCHMARKS "/" + script;
        int to[2], from[2];
        if (::pipe(to) != 0 || ::pipe(from) != 0) throw std::runtime_error("pipe failed");
        pid_ = ::fork();
        if (pid_ == 0) {
            ::dup2(to[0], 0);
            ::dup2(from[1], 1);
            for (const int fd : {to[0], to[1], from[0], from[1]}) ::close(fd);
            ::execl(python.c_str(), python.c_str(), script.c_str(),
                    argument.empty() ? nullptr : argument.c_str(), nullptr);
            ::_exit(127);
        }
        ::close(to[0]);
        ::close(from[1]);
        input_ = ::fdopen(to[1], "w");
        output_ = ::fdopen(from[0], "r");
        const auto hello = answer();
        versions = "Python " + std::string(hello.at("python").as_string()) + ", " +
                   std::string(hello.at("versions").as_string());
    }
    ~PythonPeer() override {
        std::fclose(input_);
        std::fclose(output_);
        ::waitpid(pid_, nullptr, 0);
    }
    PythonPeer(const PythonPeer&) = delete;
    PythonPeer& operator=(const PythonPeer&) = delete;

    double start() override { return ask("start", "1 + 1", "2"); }
    double execute(const std::string& code, const std::string& expected) override {
        return ask("execute", code, expected);
    }
    void stop() override { ask("stop", "", ""); }
    double reset() { return ask("reset", "1 + 1", "2"); }

    std::string versions;

private:
    double ask(const char* what, const std::string& code, const std::string& expected) {
        json::object command;
        command["do"] = what;
        command["code"] = code;
        std::fprintf(input_, "%s\n", json::serialize(command).c_str());
        std::fflush(input_);
        const auto reply = answer();
        if (const auto* digest = reply.if_contains("sha256"))
            if (digest->as_string() != sha256(expected)) wrong_output(name_);
        return reply.at("ns").to_number<double>() / 1e6;
    }
    json::object answer() {
        std::string line;
        for (int c = 0; (c = std::fgetc(output_)) != EOF && c != '\n';)
            line += static_cast<char>(c);
        if (line.empty()) throw std::runtime_error("the peer " + name_ + " died");
        return json::parse(line).as_object();
    }

    std::string name_;
    pid_t pid_ = -1;
    FILE* input_ = nullptr;
    FILE* output_ = nullptr;
};

// Each contender once per round, so that whatever else the machine does hits all of them.
inline void in_turns(Table& table,
                     const std::vector<std::pair<std::string, Contender*>>& contenders, int rounds,
                     const std::function<double(Contender&)>& measure) {
    for (int i = 0; i < rounds; ++i)
        for (const auto& [who, contender] : contenders) table.add(who, measure(*contender));
}

}  // namespace bench
