#pragma once
// Door 4: may this call happen?
#include <ipybox/async.hpp>
#include <ipybox/decision.hpp>
#include <ipybox/detail/json_number.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace ipybox {

// Where a call comes from: a tool of an MCP server, !cmd, %%bash, install_package,
// register_mcp_server, or a program that code starts.
enum class CallOrigin { mcp, shell, shell_magic, package, registration, program };

// As in policies and the audit log.
constexpr std::string_view to_string(CallOrigin origin) noexcept {
    switch (origin) {
        case CallOrigin::mcp:
            return "mcp";
        case CallOrigin::shell:
            return "shell";
        case CallOrigin::shell_magic:
            return "shell_magic";
        case CallOrigin::package:
            return "package";
        case CallOrigin::registration:
            return "register";
        case CallOrigin::program:
            return "program";
    }
    return "mcp";
}

// What is to be decided. server, tool and arguments are written by code in the kernel: data of
// an attacker, to be escaped before a person sees it. The rest comes from the host.
struct ToolCall {
    std::string server;
    std::string tool;
    json::object arguments;    // of numbers that a double cannot hold, the nearest one
    json::object annotations;  // the tool's hints as the MCP server states them
    // What the tool takes, in JSON Schema; never null. Copies of the call share it, and it lives as
    // long as they do, whatever becomes of the server.
    std::shared_ptr<const json::object> input_schema = no_schema();
    std::string session;
    // Of this call and of the execution that makes it, as in spans and in the audit log: 16
    // hexadecimal digits. execution: empty between executions, and of what no code asks for.
    std::string id, execution;
    CallOrigin origin = CallOrigin::mcp;
    // Null when `arguments` has every digit that was sent; see sent_arguments().
    std::shared_ptr<const json::object> exact_arguments = {};

    // Of what states none: an empty object.
    static const std::shared_ptr<const json::object>& no_schema() {
        static const auto empty = std::make_shared<const json::object>();
        return empty;
    }
    // The arguments as they are sent: numbers that Boost.JSON would write otherwise have their own
    // text. To be written with detail::write_json(), and read with what detail/json_number.hpp has.
    const json::object& sent_arguments() const noexcept {
        return exact_arguments ? *exact_arguments : arguments;
    }
    // sent: as parsed by detail::parse_exact(), or with ordinary numbers alone.
    void set_arguments(json::object sent) {
        exact_arguments.reset();
        arguments = std::move(sent);
        if (!detail::holds_exact(arguments)) return;
        exact_arguments = std::make_shared<const json::object>(arguments);
        detail::round_numbers(arguments);
    }
};

// Judges calls. Made by a plugin or by the application; combined as approval/approval.hpp does.
class ApprovalPolicy {
public:
    virtual ~ApprovalPolicy() = default;
    // May wait for a person. An exception is a denial. May run for many calls at once; the
    // coroutine is cancelled when the call is withdrawn. Only approve() calls this.
    virtual awaitable<Decision> decide(ToolCall call) = 0;
};

}  // namespace ipybox
