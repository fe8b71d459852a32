#include "tool_calls.hpp"

#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <cstdio>
#include <ipybox/executor/blocking.hpp>
#include <ipybox/sandbox_kit/process.hpp>
#include <thread>

#include "required.hpp"
#include "workspace.hpp"

namespace {
using namespace ipybox;
using bench::required;

// Parses and serializes what it gets, one connection; the least that a tool server could do.
class EchoServer {
public:
    explicit EchoServer(const std::filesystem::path& path)
        : listener_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        path.string().copy(address.sun_path, sizeof address.sun_path - 1);
        if (::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
            ::chmod(path.c_str(), 0666) != 0 || ::listen(listener_.get(), 1) != 0)
            throw std::runtime_error("cannot listen at " + path.string());
        thread_ = std::thread([this] { serve(); });
    }
    ~EchoServer() {
        ::shutdown(listener_.get(), SHUT_RDWR);
        thread_.join();
    }

private:
    void serve() {
        const UniqueFd connection(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        char buffer[65536];
        for (;;) {
            const auto size = ::read(connection.get(), buffer, sizeof buffer);
            if (size <= 0) return;
            const auto answer =
                json::serialize(json::parse({buffer, static_cast<std::size_t>(size)}));
            if (::write(connection.get(), answer.data(), answer.size()) < 0) return;
        }
    }
    UniqueFd listener_;
    std::thread thread_;
};

// Lines to a Python process that sends them back, in microseconds.
std::vector<double> pipe_echo(int rounds) {
    int to[2], from[2];
    if (::pipe2(to, O_CLOEXEC) != 0 || ::pipe2(from, O_CLOEXEC) != 0)
        throw std::runtime_error("pipe failed");
    const auto python = required("IPYBOX_TEST_PYTHON");
    const pid_t pid = ::fork();
    if (pid == 0) {
        ::dup2(to[0], 0);
        ::dup2(from[1], 1);
        ::execl(python.c_str(), python.c_str(), "-c",
                "import os\nwhile True:\n    data = os.read(0, 65536)\n    if not data: break\n    "
                "os.write(1, data)",
                nullptr);
        ::_exit(127);
    }
    ::close(to[0]);
    ::close(from[1]);
    const UniqueFd input(to[1]), output(from[0]);
    const std::string line =
        R"({"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"text":"x"}}})"
        "\n";
    std::vector<double> samples;
    char buffer[65536];
    for (int i = 0; i < rounds + 100; ++i) {
        const auto start = Clock::now();
        if (::write(input.get(), line.data(), line.size()) < 0 ||
            ::read(output.get(), buffer, sizeof buffer) <= 0)
            throw std::runtime_error("the echo process died");
        if (i >= 100)
            samples.push_back(
                std::chrono::duration<double, std::micro>(Clock::now() - start).count());
    }
    return samples;
}

// Runs in the kernel: the socket echo, the call without and with the generated API, in turns.
constexpr const char* code = R"(
import json, os, socket, time
import ipybox_kernel
from mcptools.own import echo
s = socket.socket(socket.AF_UNIX); s.connect(os.environ["ECHO_SOCKET"])
def bare():
    s.sendall(json.dumps({"server_name": "own", "tool_name": "echo", "tool_args": {"text": "x"}}).encode())
    return json.loads(s.recv(65536))
def send(): return ipybox_kernel._send("own", "echo", {"text": "x"})
def run(): return echo.run(text="x")
assert send() == run() == "x"
samples = {"bare": [], "send": [], "run": []}
clock = time.perf_counter
for i in range(ROUNDS + 100):
    for name, call in (("bare", bare), ("send", send), ("run", run)):
        start = clock(); call(); spent = clock() - start
        if i >= 100: samples[name].append(spent * 1e6)
print(json.dumps(samples))
)";

double quantile(std::vector<double>& values, double part) {
    std::sort(values.begin(), values.end());
    return values[static_cast<std::size_t>(part * static_cast<double>(values.size() - 1) + 0.5)];
}
}  // namespace

ToolCalls measure_tool_calls(int rounds) {
    const Workspace workspace;
    const EchoServer echo(workspace.path / "echo.sock");
    CodeExecutorOptions options;
    // A sandbox masks sockets of the host that are not its own, the floor's for one.
    options.sandbox = "none";
    options.approval = "allow";
    options.workspace = workspace.path;
    options.python = required("IPYBOX_TEST_PYTHON");
    options.kernel_init_timeout = std::chrono::seconds(60);
    options.kernel_env["ECHO_SOCKET"] = workspace.path / "echo.sock";
    PluginRegistry registry;
    registry.add_directory(required("IPYBOX_TEST_PLUGINS"));
    BlockingCodeExecutor executor(std::move(registry), std::move(options));
    executor.start();
    json::object server;
    server["command"] = required("IPYBOX_TEST_PYTHON");
    json::array arguments;
    arguments.emplace_back(IPYBOX_BENCHMARKS "/echo_server.py");
    server["args"] = std::move(arguments);
    executor.generate_mcp_sources("own", server);
    std::string text = code;
    text.replace(text.find("ROUNDS"), 6, std::to_string(rounds));
    const auto result = executor.execute(text, std::chrono::minutes(10));
    const auto samples = json::parse(result.ok_or_throw().text.value()).as_object();

    std::map<std::string, std::vector<double>> rows;
    for (const auto& [name, values] : samples)
        for (const auto& value : values.as_array())
            rows[std::string(name)].push_back(value.to_number<double>());
    rows["pipe"] = pipe_echo(rounds);
    const double floor = quantile(rows["bare"], 0.5) + quantile(rows["pipe"], 0.5);
    std::printf("\ntool call from the kernel\n%-40s %6s %9s %9s %9s %9s\n", "", "n", "min us",
                "p50 us", "p99 us", "x floor");
    static constexpr std::pair<const char*, const char*> names[] = {
        {"bare", "JSON echo over a Unix socket"},
        {"pipe", "echo over a pipe"},
        {"send", "tool call, ipybox_kernel._send"},
        {"run", "tool call, generated run()"}};
    for (const auto& [key, label] : names)
        std::printf("%-40s %6d %9.1f %9.1f %9.1f %9.2f\n", label, rounds, quantile(rows[key], 0),
                    quantile(rows[key], 0.5), quantile(rows[key], 0.99),
                    quantile(rows[key], 0.5) / floor);
    return {floor, quantile(rows["send"], 0.5), quantile(rows["run"], 0.5)};
}

double measure_original_tool_calls(int rounds) {
    const auto parsed = json::parse(
        bench::output_of(required("IPYBOX_BENCH_ORIGINAL_PYTHON") +
                         " -W ignore '" IPYBOX_BENCHMARKS "/original_tool_calls.py' " +
                         std::to_string(rounds) + " '" IPYBOX_BENCHMARKS "/echo_server.py'"));
    std::vector<double> samples;
    for (const auto& value : parsed.as_array()) samples.push_back(value.to_number<double>());
    const double median = quantile(samples, 0.5);
    std::printf("%-40s %6d %9.1f %9.1f %9.1f\n", "original ipybox, run()", rounds,
                quantile(samples, 0), median, quantile(samples, 0.99));
    return median;
}
