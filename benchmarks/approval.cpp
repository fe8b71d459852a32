#include "approval.hpp"

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <cstdio>
#include <cstdlib>
#include <ipybox/approval/config.hpp>
#include <ipybox/config.hpp>
#include <stdexcept>

namespace {
using namespace ipybox;

// Twelve rules such as people write; the call is decided by the last.
constexpr std::string_view policy_text = R"json({"first_match": [{"rules": [
    {"when": {"tool": ["*delete*", "*remove*"]}, "then": "deny"},
    {"when": {"origin": "shell*"}, "then": "deny"},
    {"when": {"server": "web", "arguments": {"/url": {"url_host": ["*.wikipedia.org", "docs.python.org"]}}}, "then": "allow"},
    {"when": {"server": "mail"}, "then": "deny"},
    {"when": {"annotations": {"readOnlyHint": true}, "tool": "list_*"}, "then": "allow"},
    {"when": {"arguments": {"/path": {"under": ["/etc", "/usr", "/home/me/.ssh"]}}}, "then": "deny"},
    {"when": {"arguments": {"/path": {"regex": ".*\\.(pem|key|env)"}}}, "then": "deny"},
    {"when": {"arguments": {"/mode": {"one_of": ["append", "replace"]}}}, "then": "deny"},
    {"when": {"arguments": {"/size": {"minimum": 1000000}}}, "then": "deny"},
    {"when": {"schema": {"required": ["path", "force"], "properties": {"force": {"const": true}}}}, "then": "deny"},
    {"when": {"session": "guest-*"}, "then": "deny"},
    {"when": {"server": "files", "tool": "write_file", "arguments": {"/path": {"under": "/home/me/project"}}},
     "budget": {"calls": 100000, "per": "1h"}, "then": "allow"}]}, "deny"]})json";

awaitable<void> measure(ApprovalPolicy& policy, int rounds, std::vector<double>& samples) {
    ToolCall call;
    call.server = "files";
    call.tool = "write_file";
    call.session = "default";
    call.arguments["path"] = "/home/me/project/src/../notes/today.md";
    call.arguments["content"] = std::string(2000, 'x');
    call.arguments["size"] = 2000;
    for (int i = 0; i < rounds + 100; ++i) {
        ToolCall copy = call;
        const auto start = Clock::now();
        const Decision decision =
            co_await approve(policy, std::move(copy), std::chrono::seconds(60));
        const double spent =
            std::chrono::duration<double, std::micro>(Clock::now() - start).count();
        if (decision.verdict != Verdict::allow)
            throw std::runtime_error("the policy denies: " + decision.reason);
        if (i >= 100) samples.push_back(spent);
    }
}
}  // namespace

void measure_approval(int rounds) {
    const char* plugins = std::getenv("IPYBOX_TEST_PLUGINS");
    if (plugins == nullptr)
        throw std::runtime_error("IPYBOX_TEST_PLUGINS is not set: use scripts/bench");
    asio::io_context context(1);
    Host host;
    host.executor = context.get_executor();
    PluginRegistry registry;
    registry.add_directory(plugins);
    const auto policy = make_policy(registry, host, parse_json(policy_text, "policy"));
    std::vector<double> samples;
    std::exception_ptr failure;
    asio::co_spawn(context, measure(*policy, rounds, samples),
                   [&](std::exception_ptr error) { failure = error; });
    context.run();
    if (failure) std::rethrow_exception(failure);
    std::sort(samples.begin(), samples.end());
    const auto quantile = [&](double part) {
        return samples[static_cast<std::size_t>(part * static_cast<double>(samples.size() - 1) +
                                                0.5)];
    };
    std::printf("\napproval by policy, added to a call\n%-40s %6s %9s %9s %9s %9s\n", "", "n",
                "min us", "p50 us", "p99 us", "limit p50");
    std::printf("%-40s %6d %9.1f %9.1f %9.1f %9d\n", "approve(), twelve rules", rounds, quantile(0),
                quantile(0.5), quantile(0.99), 50);
}
