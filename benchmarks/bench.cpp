// Measures ipybox against floors and peers in one process, in turns, and prints ratios. Every
// output is compared byte for byte: a fast way to lose some does not count.
#include <sched.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <cstdio>
#include <fstream>
#include <ipybox/jupyter/wire.hpp>
#include <ipybox/registry.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>
#include <zmq.hpp>

#include "apigen.hpp"
#include "approval.hpp"
#include "contenders.hpp"
#include "forks.hpp"
#include "host.hpp"
#include "many_kernels.hpp"
#include "mcp_round_trip.hpp"
#include "programs.hpp"
#include "tool_calls.hpp"
#include "workspace.hpp"

namespace {
using namespace ipybox;
using namespace bench;
using jupyter::WireSession;

struct Options {
    int starts = 10;
    int round_trips = 500;
    int prints = 5;
    int tool_calls = 2000;
    int apigen_rounds = 5;
    std::string sandbox = "none";
    std::string only;
    bool awake = false;
    std::string write;
};

// A loop on each processor that gives way to everything else.
class Awake {
public:
    Awake() {
        for (unsigned i = 0; i < std::thread::hardware_concurrency(); ++i)
            loops_.emplace_back([this] {
                const sched_param none{};
                ::sched_setscheduler(0, SCHED_IDLE, &none);  // of this thread
                while (!over_.load(std::memory_order_relaxed)) continue;
            });
    }
    ~Awake() {
        over_ = true;
        for (auto& loop : loops_) loop.join();
    }
    Awake(const Awake&) = delete;
    Awake& operator=(const Awake&) = delete;

private:
    std::atomic<bool> over_ = false;
    std::vector<std::thread> loops_;
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
    app.add_option("--write", options.write,
                   "a page, docs/performance.md: the table of forked kernels is written there");
    app.add_flag("--awake", options.awake,
                 "keep the processors from halting: in a virtual machine waking one takes as long "
                 "as what is measured");
    app.add_option("--only", options.only, "one measurement")
        ->check(CLI::IsMember({"start", "execute", "prints", "gateway", "tools", "approval",
                               "apigen", "many-kernels", "fork", "programs", "host"}));
    CLI11_PARSE(app, argc, argv);
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    try {
        utsname system{};
        ::uname(&system);
        double load[3] = {};
        ::getloadavg(load, 3);
        std::printf("%s %s, %u cores, load %.2f %.2f %.2f\n", system.sysname, system.release,
                    std::thread::hardware_concurrency(), load[0], load[1], load[2]);
        std::optional<Awake> awake;
        if (options.awake) awake.emplace();
        const auto& only = options.only;
        const bool of_kernels = only == "start" || only == "execute" || only == "prints";
        if (only.empty() || of_kernels) kernels(options);
        if (only.empty() || only == "gateway") gateways(options);
        if (only == "many-kernels") measure_many_kernels();
        if (only.empty() || only == "programs") measure_programs(200);
        if (only.empty() || only == "host") measure_host(options.round_trips);
        if (only.empty() || only == "fork")
            measure_forks(options.starts, options.round_trips, options.tool_calls, options.write);
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
