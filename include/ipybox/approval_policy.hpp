#pragma once
// Door 4: may this call happen?
#include <cstdint>
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

// Where host.ask keeps what a person changed before they said yes: a policy that makes another
// decision of the answer cannot lose it.
struct EditedArguments {
    std::shared_ptr<const json::object> arguments;  // null: nothing was changed
};

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
    // The line of the cell that makes the call, from 1, as code in the kernel says it; 0: unknown.
    std::uint32_t line = 0;
    // Shared by all copies of the call. Null: it happens as it is, or not at all.
    std::shared_ptr<EditedArguments> edited = {};
    // Who said yes to exactly this call, which is judged again because they changed its arguments;
    // nobody is asked about it once more. Empty: nobody yet.
    std::string agreed_by = {};
    // Null when `arguments` has every digit that was sent; see sent_arguments().
    std::shared_ptr<const json::object> exact_arguments = {};
    // What answers under the name `server`: the command line or URL as it is configured, with
    // variables as ${NAME} and without secrets; "in process"; empty where no server does (shell
    // commands, packages, registrations).
    std::string server_identity;
    // What the server says of the tool: data of an attacker, like the schema and the hints.
    std::string description;
    // SHA-256 of input schema, description and annotations in 64 hexadecimal digits: another one
    // is another tool. Empty where there is none.
    std::string definition_hash;
    // All tools of the server as tools/list gives them, shared like the schema; null: not known.
    std::shared_ptr<const json::array> server_tools = {};
    // False when a policy says that a yes to this call must not hold for later ones.
    bool may_remember = true;
    // When the time to answer is over and the call denied. Set by approve().
    Clock::time_point deadline = never;

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
