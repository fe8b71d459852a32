// Measures ipybox against floors and peers in one process, in turns, and prints ratios. Every
// output is compared byte for byte: a fast way to lose some does not count.
#include <openssl/evp.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <ipybox/jupyter/wire.hpp>
#include <ipybox/registry.hpp>
#include <map>
#include <string>
#include <thread>
#include <vector>
#include <zmq.hpp>

#include "apigen.hpp"
#include "approval.hpp"
#include "many_kernels.hpp"
#include "mcp_round_trip.hpp"
#include "tool_calls.hpp"
#include "workspace.hpp"

namespace {
using namespace ipybox;
using jupyter::WireSession;

struct Options {
    int starts = 10;
    int round_trips = 500;
    int prints = 5;
    int tool_calls = 2000;
    int apigen_rounds = 5;
    std::string sandbox = "none";
    std::string only;
};

std::string required(const char* name) {
    const char* value = std::getenv(name);
    if (value == nullptr)
        throw std::runtime_error(std::string(name) + " is not set: use scripts/bench");
    return value;
}

[[noreturn]] void wrong_output(const std::string& who) {
    throw std::runtime_error(who + " lost or changed output; its times mean nothing");
}

std::string sha256(std::string_view text) {
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

class Stopwatch {
public:
    double milliseconds() const {
        return std::chrono::duration<double, std::milli>(Clock::now() - start_).count();
    }

private:
    Clock::time_point start_ = Clock::now();
};

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

    template <class T>
    T run(awaitable<T> work) {
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
    Ours(Machine& machine, bool confined, KernelBackend& backend)
        : machine_(machine), confined_(confined), backend_(backend) {}

    double start() override {
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

private:
    awaitable<std::unique_ptr<Kernel>> open() {
        auto& sandbox = confined_ ? *machine_.sandbox : *machine_.none;
        KernelSpec spec;
        spec.python = required("IPYBOX_TEST_PYTHON");
        spec.policy.cwd = std::filesystem::temp_directory_path();
        spec.policy.env["PATH"] = "/usr/bin:/bin";
        if (confined_) {
            spec.policy.cwd = "/";
            spec.policy.readable.push_back(spec.python.parent_path().parent_path());
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
        package.name = "python";
        package.host_path = required("IPYBOX_TEST_PYTHON_PACKAGE");
        spec.policy.env["PYTHONPATH"] = sandbox.guest_address(spec.policy, package);
        spec.channels.push_back(package);
        spec.extensions.push_back("ipybox_kernel");
        spec.init_timeout = std::chrono::seconds(60);
        auto kernel = co_await backend_.start(sandbox, std::move(spec));
        co_return kernel;
    }

    std::string take(std::string code) {
        const auto work = [](Kernel& kernel, std::string text) -> awaitable<std::string> {
            ExecuteRequest request;
            request.code = std::move(text);
            // As an executor does.
            const auto process = kernel.process();
            if (process && process->may_be_stale()) co_await process->refresh_view();
            co_await kernel.execute(std::move(request));
            std::string output;
            for (;;) {
                auto item = co_await kernel.next(never);
                if (auto* stream = std::get_if<Stream>(&*item)) output += stream->text;
                if (auto* display = std::get_if<Display>(&*item))
                    output += display->data.at("text/plain").as_string();
                if (std::holds_alternative<Done>(*item)) co_return output;
            }
        };
        return machine_.run(work(*kernel_, std::move(code)));
    }

    Machine& machine_;
    bool confined_;
    KernelBackend& backend_;
    std::unique_ptr<Kernel> kernel_;
};

// The least that a ZeroMQ client in C++ can do: blocking sockets, no check of any signature, no
// JSON parser, one string search per message.
class Floor final : public Contender {
public:
    // With the extension the kernel is the same as ours, so that only the client differs.
    Floor(Machine& machine, bool extension)
        : machine_(machine),
          extension_(extension),
          key_(ipybox::detail::random_hex(16)),
          session_(key_) {}
    ~Floor() override { stop(); }

    double start() override {
        const Stopwatch watch;
        std::string name =
            (std::filesystem::temp_directory_path() / "ipybox-bench-XXXXXX").string();
        if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
        directory_ = name;
        process_ = machine_.run(launch());
        struct stat info{};
        // The iopub socket is the last one that counts.
        while (::stat((name + "/s-2").c_str(), &info) != 0)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        iopub_.set(zmq::sockopt::linger, 0);
        shell_.set(zmq::sockopt::linger, 0);
        iopub_.set(zmq::sockopt::subscribe, "");
        iopub_.connect("ipc://" + name + "/s-2");
        shell_.connect("ipc://" + name + "/s-1");
        request("kernel_info_request", {});
        if (take("1 + 1") != "2") wrong_output("the floor");
        return watch.milliseconds();
    }
    double execute(const std::string& code, const std::string& expected) override {
        const Stopwatch watch;
        const auto output = take(code);
        const auto spent = watch.milliseconds();
        if (output != expected) wrong_output("the floor");
        return spent;
    }
    void stop() override {
        process_.reset();
        std::error_code ignored;
        if (!directory_.empty()) std::filesystem::remove_all(directory_, ignored);
    }

private:
    awaitable<std::unique_ptr<SandboxedProcess>> launch() {
        json::object file;
        file["transport"] = "ipc";
        file["ip"] = (directory_ / "s").string();
        file["signature_scheme"] = "hmac-sha256";
        file["key"] = key_;
        int number = 0;
        for (const auto* name :
             {"shell_port", "iopub_port", "stdin_port", "control_port", "hb_port"})
            file[name] = ++number;
        const auto path = (directory_ / "connection.json").string();
        std::ofstream(path) << json::serialize(file);
        std::vector<std::string> argv = {
            required("IPYBOX_TEST_PYTHON"),  "-m", "ipykernel_launcher", "-f", path,
            "--HistoryManager.enabled=False"};
        SandboxPolicy policy;
        policy.env["PATH"] = "/usr/bin:/bin";
        policy.env["IPYTHONDIR"] = directory_ / "ipython";
        policy.env["PYTHONPATH"] = required("IPYBOX_TEST_PYTHON_PACKAGE");
        policy.cwd = directory_;
        policy.network.mode = NetworkPolicy::Mode::full;
        if (extension_) argv.emplace_back("--ext=ipybox_kernel");
        std::vector<Channel> channels;
        auto process = co_await machine_.none->launch(std::move(policy), std::move(argv),
                                                      std::move(channels), Stdio::tail);
        co_return process;
    }

    std::string request(std::string_view type, const json::object& content) {
        const auto message = session_.request(type, content);
        for (const auto& frame : message.frames)
            shell_.send(zmq::buffer(frame), &frame == &message.frames.back()
                                                ? zmq::send_flags::none
                                                : zmq::send_flags::sndmore);
        return message.id;
    }

    // The frames after the delimiter: signature, header, parent, metadata, content.
    static std::vector<zmq::message_t> receive(zmq::socket_t& socket) {
        std::vector<zmq::message_t> parts;
        bool body = false;
        for (bool more = true; more;) {
            zmq::message_t part;
            if (!socket.recv(part, zmq::recv_flags::none)) break;
            more = part.more();
            if (body)
                parts.push_back(std::move(part));
            else
                body = part.to_string_view() == WireSession::delimiter;
        }
        return parts;
    }

    std::string take(const std::string& code) {
        json::object content;
        content["code"] = code;
        content["silent"] = false;
        content["store_history"] = false;
        const auto id = request("execute_request", content);
        std::string output;
        const auto has = [](const zmq::message_t& part, std::string_view text) {
            return part.to_string_view().find(text) != std::string_view::npos;
        };
        for (bool idle = false, replied = false; !idle || !replied;) {
            zmq::pollitem_t items[] = {{iopub_.handle(), 0, ZMQ_POLLIN, 0},
                                       {shell_.handle(), 0, ZMQ_POLLIN, 0}};
            zmq::poll(items, 2, std::chrono::seconds(60));
            if (items[0].revents != 0) {
                const auto parts = receive(iopub_);
                if (!has(parts[2], id)) continue;
                const auto& body = parts[4];
                if (has(parts[1], "\"status\"")) {
                    idle = idle || has(body, "\"idle\"");
                } else if (has(parts[1], "\"stream\"")) {
                    output += json::parse(body.to_string_view()).at("text").as_string();
                } else if (has(parts[1], "\"execute_result\"")) {
                    output +=
                        json::parse(body.to_string_view()).at("data").at("text/plain").as_string();
                }
            }
            if (items[1].revents != 0) replied = has(receive(shell_)[2], id) || replied;
        }
        return output;
    }

    Machine& machine_;
    bool extension_;
    std::string key_;
    WireSession session_;
    std::filesystem::path directory_;
    zmq::context_t context_{1};
    zmq::socket_t shell_{context_, zmq::socket_type::dealer};
    zmq::socket_t iopub_{context_, zmq::socket_type::sub};
    std::unique_ptr<SandboxedProcess> process_;
};

// A peer written in Python, in a process of its own; see jupyter_client_peer.py.
class PythonPeer final : public Contender {
public:
    PythonPeer(std::string name, std::string python, std::string script) : name_(std::move(name)) {
        script = IPYBOX_BENCHMARKS "/" + script;
        int to[2], from[2];
        if (::pipe(to) != 0 || ::pipe(from) != 0) throw std::runtime_error("pipe failed");
        pid_ = ::fork();
        if (pid_ == 0) {
            ::dup2(to[0], 0);
            ::dup2(from[1], 1);
            for (const int fd : {to[0], to[1], from[0], from[1]}) ::close(fd);
            ::execl(python.c_str(), python.c_str(), script.c_str(), nullptr);
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

// sandbox-runtime around a program that does nothing, as the user that ours would run it as: what
// it costs without us.
class SrtAlone final : public Contender {
public:
    SrtAlone() {
        const auto settings = place_.path / "settings.json";
        std::ofstream(settings) << R"({"network": {"allowedDomains": [], "deniedDomains": []},
            "filesystem": {"denyRead": ["/home"], "allowWrite": [")"
                                << place_.path.string() << R"("], "denyWrite": []}})";
        const std::string as_guest =
            ::geteuid() == 0 ? "setpriv --reuid 65534 --regid 65534 --clear-groups " : "";
        command_ = "cd " + place_.path.string() + " && HOME=$PWD " + as_guest + "srt --settings " +
                   settings.string() + " true >/dev/null 2>&1";
    }

    double start() override {
        const Stopwatch watch;
        if (std::system(command_.c_str()) != 0)
            throw std::runtime_error("`srt true` failed: " + command_);
        return watch.milliseconds();
    }
    double execute(const std::string&, const std::string&) override { return 0; }
    void stop() override {}

private:
    Workspace place_;
    std::string command_;
};

// Each contender once per round, so that whatever else the machine does hits all of them.
void in_turns(Table& table, const std::vector<std::pair<std::string, Contender*>>& contenders,
              int rounds, const std::function<double(Contender&)>& measure) {
    for (int i = 0; i < rounds; ++i)
        for (const auto& [who, contender] : contenders) table.add(who, measure(*contender));
}

void kernels(const Options& options) {
    Machine machine(options.sandbox);
    const std::string ours = "ipybox", same = "minimal C++ client, same kernel",
                      plain = "minimal C++ client, plain ipykernel", peer = "jupyter_client";
    Ours ipybox(machine, false), confined(machine, true);
    Floor same_floor(machine, true), plain_floor(machine, false);
    PythonPeer jupyter(peer, required("IPYBOX_TEST_PYTHON"), "jupyter_client_peer.py");
    std::vector<std::pair<std::string, Contender*>> all = {
        {ours, &ipybox}, {same, &same_floor}, {plain, &plain_floor}, {peer, &jupyter}};
    if (machine.confined) all.emplace_back("ipybox, " + options.sandbox, &confined);
    std::printf("%s\n", jupyter.versions.c_str());

    const auto wanted = [&](const char* what) {
        return options.only.empty() || options.only == what;
    };
    if (wanted("start")) {
        Table table("cold start to the first result", peer);
        std::vector<std::pair<std::string, Contender*>> starters = {{ours, &ipybox},
                                                                    {peer, &jupyter}};
        if (machine.confined) starters.push_back(all.back());
        std::optional<SrtAlone> srt;
        if (options.sandbox == "srt") starters.emplace_back("`srt true`", &srt.emplace());
        in_turns(table, starters, options.starts, [](Contender& contender) {
            const auto spent = contender.start();
            contender.stop();
            return spent;
        });
        table.print(ours);
        if (srt) {
            const double added = table.median("ipybox, srt") - table.median(ours);
            std::printf("srt adds %.0f ms, %.2f x `srt true`\n", added,
                        added / table.median("`srt true`"));
        }
    }
    for (const auto& [who, contender] : all) contender->start();
    if (wanted("execute")) {
        Table table("execute round trip, `pass`", same);
        const auto pass = [](Contender& contender) { return contender.execute("pass", ""); };
        Table warm_up("", same);
        in_turns(warm_up, all, 20, pass);
        in_turns(table, all, options.round_trips, pass);
        table.print(ours);
    }
    if (wanted("prints")) {
        Table table("1,000,000 prints", same);
        std::string expected;
        for (int i = 0; i < 1'000'000; ++i) expected += std::to_string(i) + "\n";
        // Plain ipykernel drops what its reader does not take at once, the end of the cell
        // included: its clients would wait forever.
        std::vector<std::pair<std::string, Contender*>> lossless = {{ours, &ipybox},
                                                                    {same, &same_floor}};
        if (machine.confined) lossless.push_back(all.back());
        in_turns(table, lossless, options.prints, [&](Contender& contender) {
            return contender.execute("for i in range(1_000_000): print(i)", expected);
        });
        table.print(ours);
    }
    for (const auto& [who, contender] : all) contender->stop();
}

// The way by a kernel gateway, which is the original's only one.
void gateways(const Options& options) {
    Machine machine(options.sandbox);
    const std::string ours = "ipybox, kernel gateway", direct = "ipybox, zmq",
                      original = "original ipybox";
    Ours gateway(machine, false, *machine.gateway), zmq(machine, false);
    PythonPeer peer(original, required("IPYBOX_BENCH_ORIGINAL_PYTHON"), "original_peer.py");
    std::printf("%s\n", peer.versions.c_str());
    const std::vector<std::pair<std::string, Contender*>> all = {
        {ours, &gateway}, {direct, &zmq}, {original, &peer}};
    Table starts("kernel gateway and kernel, cold start to the first result", direct);
    in_turns(starts, all, options.starts, [](Contender& contender) {
        const auto spent = contender.start();
        contender.stop();
        return spent;
    });
    starts.print(ours);
    for (const auto& [who, contender] : all) contender->start();
    Table trips("execute round trip by a kernel gateway, `pass`", direct), warm_up("", direct);
    const auto pass = [](Contender& contender) { return contender.execute("pass", ""); };
    in_turns(warm_up, all, 20, pass);
    in_turns(trips, all, options.round_trips, pass);
    trips.print(ours);
    for (const auto& [who, contender] : all) contender->stop();
}
}  // namespace

int main(int argc, char** argv) {
    Options options;
    CLI::App app("Measures ipybox against its floors and against jupyter_client, in turns.");
    app.add_option("--starts", options.starts, "cold starts of each contender")
        ->capture_default_str();
    app.add_option("--round-trips", options.round_trips, "executions of `pass`")
        ->capture_default_str();
    app.add_option("--prints", options.prints, "rounds of 1,000,000 prints")->capture_default_str();
    app.add_option("--tool-calls", options.tool_calls, "tool calls")->capture_default_str();
    app.add_option("--apigen-rounds", options.apigen_rounds, "rounds of generated APIs")
        ->capture_default_str();
    app.add_option("--sandbox", options.sandbox, "also measure in this sandbox")
        ->capture_default_str();
    app.add_option("--only", options.only, "one measurement")
        ->check(CLI::IsMember({"start", "execute", "prints", "gateway", "tools", "approval",
                               "apigen", "many-kernels"}));
    CLI11_PARSE(app, argc, argv);
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    try {
        utsname system{};
        ::uname(&system);
        double load[3] = {};
        ::getloadavg(load, 3);
        std::printf("%s %s, %u cores, load %.2f %.2f %.2f\n", system.sysname, system.release,
                    std::thread::hardware_concurrency(), load[0], load[1], load[2]);
        const auto& only = options.only;
        const bool of_kernels = only == "start" || only == "execute" || only == "prints";
        if (only.empty() || of_kernels) kernels(options);
        if (only.empty() || only == "gateway") gateways(options);
        if (only == "many-kernels") measure_many_kernels();
        if (only.empty() || only == "tools") {
            measure_mcp_round_trips(options.tool_calls);
            measure_tool_calls(options.tool_calls);
        }
        if (only.empty() || only == "approval") measure_approval(options.tool_calls);
        if (options.only.empty() || options.only == "apigen") measure_apigen(options.apigen_rounds);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "bench: %s\n", error.what());
        return 1;
    }
}
