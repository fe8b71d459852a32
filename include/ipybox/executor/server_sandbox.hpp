#pragma once
// The sandbox of one MCP server, made from "sandbox" in its server parameters.
#include <unistd.h>

#include <filesystem>
#include <ipybox/config.hpp>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/registry.hpp>
#include <ipybox/sandbox_kit/kernel_policy.hpp>
#include <ipybox/sandbox_kit/network_proxy.hpp>
#include <ipybox/sandbox_kit/sandbox_config.hpp>
#include <memory>
#include <string>
#include <vector>

namespace ipybox {

// What "sandbox" beside "command" may hold.
inline constexpr std::string_view server_sandbox_schema = R"({
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "description": "the plugin; default bubblewrap"},
        "options": {"type": "object", "description": "of the plugin"},
        "readable": {"type": "array", "items": {"type": "string", "minLength": 1},
                     "description": "paths the server may read besides the system's programs"},
        "writable": {"type": "array", "items": {"type": "string", "minLength": 1},
                     "description": "paths the server may read and write"},
        "hosts": {"type": "array", "items": {"type": "string", "minLength": 1},
                  "description": "hosts it may connect to, as HOST, *.HOST or with :PORT; none without"},
        "config": {"type": "object",
                   "description": "settings in sandbox-runtime's format, instead of the three above"},
        "limits": {"type": "object",
                   "additionalProperties": {"type": ["string", "integer"]},
                   "description": "such as {\"memory\": \"1G\", \"processes\": 50}"}
    },
    "additionalProperties": false})";

// Gives what a transport starts the policy that the server's parameters ask for, with a kernel's
// protections and default limits, and hands it to the sandbox they name. Owns that sandbox and the
// server's network proxy.
class ServerSandbox final : public Sandbox {
public:
    // settings: fits server_sandbox_schema. sources: of the kernel's policy, whose own settings do
    // not count; relative paths start in the workspace. proxy: a path, free and reachable by the
    // sandbox's user, for the network proxy's socket. Throws Error: bad_config (a setting is wrong;
    // names the field), and what PluginRegistry::make() throws. registry and host must outlive
    // this.
    ServerSandbox(PluginRegistry& registry, Host& host, json::object settings,
                  PolicySources sources, std::filesystem::path proxy);
    ~ServerSandbox() override;

    // Throws Error: bad_config (`settings` do not fit the schema; names `where` and the field).
    static void check(const json::value& settings, const std::string& where);

    awaitable<Capabilities> probe() override { return sandbox_->probe(); }
    bool unix_sockets(const SandboxPolicy& policy) const override {
        return sandbox_->unix_sockets(confined(policy));
    }
    std::string guest_address(const SandboxPolicy& policy, const Channel& channel) const override {
        return sandbox_->guest_address(confined(policy), channel);
    }
    uid_t guest_user(const SandboxPolicy& policy) const override {
        return sandbox_->guest_user(policy);
    }

    awaitable<std::unique_ptr<SandboxedProcess>> launch(SandboxPolicy policy,
                                                        std::vector<std::string> argv,
                                                        std::vector<Channel> channels,
                                                        Stdio stdio) override;

private:
    static void read_limits(const json::object& settings, Limits& limits);

    SandboxPolicy confined(SandboxPolicy policy) const;

    void confine(SandboxPolicy& policy) const;

    // A tool call is a way for code to have something written, or read.
    void guard_writable(SandboxPolicy& policy) const;

    Host& host_;
    json::object settings_;
    PolicySources sources_;
    std::filesystem::path workspace_;
    std::filesystem::path proxy_path_;
    std::unique_ptr<Sandbox> sandbox_;
    std::unique_ptr<NetworkProxy> proxy_;
};

}  // namespace ipybox

#ifndef IPYBOX_SEPARATE_COMPILATION
#include <ipybox/executor/impl/server_sandbox.ipp>
#endif
