#include "mcp_round_trip.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <cstdio>
#include <cstdlib>
#include <ipybox/mcp/client.hpp>
#include <ipybox/registry.hpp>
#include <ipybox/sandbox_kit/process.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "http_echo.hpp"
#include "required.hpp"

namespace {
using namespace ipybox;
using bench::required;

constexpr const char* server = IPYBOX_BENCHMARKS "/echo_server.py";
constexpr int warm_up = 200;

double since(Clock::time_point start) {
    return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

// The floor: one write, one read.
class Lines {
public:
    Lines() {
        int to[2], from[2];
        if (::pipe2(to, O_CLOEXEC) != 0 || ::pipe2(from, O_CLOEXEC) != 0)
            throw std::runtime_error("pipe failed");
        const auto python = required("IPYBOX_TEST_PYTHON");
        pid_ = ::fork();
        if (pid_ == 0) {
            ::dup2(to[0], 0);
            ::dup2(from[1], 1);
            ::execl(python.c_str(), python.c_str(), server, nullptr);
            ::_exit(127);
        }
        ::close(to[0]);
        ::close(from[1]);
        input_.reset(to[1]);
        output_.reset(from[0]);
    }
    ~Lines() {
        input_.reset();
        ::waitpid(pid_, nullptr, 0);
    }
    double round() {
        static const std::string line =
            R"({"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"text":"x"},)"
            R"("_meta":{"progressToken":1}}})"
            "\n";
        char buffer[65536];
        const auto start = Clock::now();
        if (::write(input_.get(), line.data(), line.size()) < 0 ||
            ::read(output_.get(), buffer, sizeof buffer) <= 0)
            throw std::runtime_error("the server died");
        return since(start);
    }

private:
    pid_t pid_ = 0;
    UniqueFd input_, output_;
};

// Turns of both, so that the machine's moods reach both.
template <class Floor>
awaitable<void> measure(McpClient& client, Sandbox& sandbox, Floor& bare_calls, int rounds,
                        std::vector<double>& floor, std::vector<double>& calls) {
    co_await client.connect(sandbox);
    co_await client.list_tools();
    for (int i = 0; i < rounds + warm_up; ++i) {
        const double bare = bare_calls.round();
        json::object arguments;
        arguments["text"] = "x";
        CallOptions limits;
        const auto start = Clock::now();
        const CallResult result =
            co_await client.call_tool("echo", std::move(arguments), std::move(limits));
        const double spent = since(start);
        if (result.content.empty()) throw std::runtime_error("no result");
        if (i < warm_up) continue;
        floor.push_back(bare);
        calls.push_back(spent);
    }
    co_await client.close();
}

double quantile(std::vector<double>& values, double part) {
    std::sort(values.begin(), values.end());
    return values[static_cast<std::size_t>(part * static_cast<double>(values.size() - 1) + 0.5)];
}

// One transport against its floor.
template <class Floor>
void compare(const char* transport, const json::object& config, Floor& bare_calls,
             const char* bare_label, int rounds) {
    asio::io_context context{1};
    Host host;
    host.executor = context.get_executor();
    PluginRegistry registry;
    registry.add_directory(required("IPYBOX_TEST_PLUGINS"));
    const auto sandbox = registry.make<Sandbox>("none", host, {});
    McpClientOptions options;
    options.name = "echo";
    options.era = McpEra::legacy;
    McpClient client(host.executor, registry.make<McpTransport>(transport, host, config),
                     std::move(options));
    std::vector<double> floor, calls;
    std::exception_ptr failure;
    asio::co_spawn(context, measure(client, *sandbox, bare_calls, rounds, floor, calls),
                   [&](std::exception_ptr problem) {
                       failure = problem;
                       context.stop();
                   });
    context.run();
    if (failure) std::rethrow_exception(failure);
    const double bare = quantile(floor, 0.5);
    std::printf("\nMCP server over %s\n%-40s %6s %9s %9s %9s %9s\n", transport, "", "n", "min us",
                "p50 us", "p99 us", "x floor");
    for (auto& [label, samples] :
         {std::pair{bare_label, &floor}, std::pair{"McpClient::call_tool", &calls}})
        std::printf("%-40s %6d %9.1f %9.1f %9.1f %9.2f\n", label, rounds, quantile(*samples, 0),
                    quantile(*samples, 0.5), quantile(*samples, 0.99),
                    quantile(*samples, 0.5) / bare);
}
}  // namespace

void measure_mcp_round_trips(int rounds) {
    Lines lines;
    const json::object program = {{"command", required("IPYBOX_TEST_PYTHON")},
                                  {"args", json::array({server})}};
    compare("stdio", program, lines, "write and read of its lines", rounds);
    const HttpEcho echo;
    BarePosts posts(echo.port());
    const json::object address = {
        {"url", "http://127.0.0.1:" + std::to_string(echo.port()) + "/mcp"}};
    compare("streamable_http", address, posts, "POST of Beast, kept alive", rounds);
}
