#pragma once
// What a person answered "always": rules in a file of theirs, outside the reach of the code.
#include <filesystem>
#include <functional>
#include <ipybox/approval/rules.hpp>
#include <ipybox/approval/tool_binding.hpp>
#include <ipybox/approval_policy.hpp>
#include <ipybox/config.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace ipybox {

// The rule that allows such calls from now on: of an MCP tool whatever the arguments, of anything
// else (shell commands, packages, servers) this one call only.
json::object rule_allowing(const ToolCall& call);
// The same for these arguments alone.
json::object rule_allowing_arguments(const ToolCall& call);
// The same for every tool of the server; of what is no MCP tool, this one call only.
json::object rule_allowing_server(const ToolCall& call);

// What the rules of a policy look at; refers to the call.
inline approval::CallFacts facts_of(const ToolCall& call) {
    return {call.server,           call.tool,       to_string(call.origin), call.session,
            call.sent_arguments(), call.annotations};
}

// A rule of the file.
struct RememberedRule {
    approval::Rule rule;
    // What was allowed; absent in rules that a person wrote, and in those of older versions.
    std::optional<approval::ToolBinding> binding;
    std::string since;     // "2030-12-31T23:59:59Z"; empty where there is no binding
    json::object written;  // as it stands in the file
};

// Why a rule decides nothing any more, as far as that is known without a call: "expired", or what
// it lacks. Empty: it holds for the server and tools that it is bound to.
std::string why_stale(const RememberedRule& one, approval::Rule::Wall now);

// The file {"rules": [...]}, read again for every question; several processes may share it. A rule
// is one of a policy, and has "granted" as well when a person was asked: {"since": time, "server":
// identity, "tools": {name: what it was}}.
class RememberedRules {
public:
    RememberedRules() : RememberedRules(standard_file()) {}
    // Empty: nothing is remembered, nothing can be.
    explicit RememberedRules(std::filesystem::path file) : file_(std::move(file)) {}

    // always.json in ipybox's directory of $XDG_CONFIG_HOME or ~/.config; empty without either.
    static std::filesystem::path standard_file() {
        const auto directory = config::config_directory();
        return directory.empty() ? directory : directory / "always.json";
    }
    const std::filesystem::path& file() const noexcept { return file_; }

    // All rules, in their order. Throws Error: bad_config (a mistake in the file, or others can
    // write it), bad_argument (it cannot be read).
    std::vector<RememberedRule> list() const;

    // Adds a rule, in the place of one that allows the same of the same server. rule: of a policy,
    // without "granted". Throws Error: io_error (the file cannot be replaced), and what list()
    // throws.
    void add(json::object rule, const approval::ToolBinding& binding) const;

    // Removes rules by their numbers in list(), counted from 1, all or none. Throws Error:
    // bad_argument (there is no such rule), and what add() throws.
    void forget(const std::vector<std::size_t>& numbers) const;

private:
    json::array read() const;
    void change(const std::function<void(json::array&)>& edit) const;
    void replace(const std::string& text) const;

    std::filesystem::path file_;
};

}  // namespace ipybox

#ifndef IPYBOX_SEPARATE_COMPILATION
#include <ipybox/approval/impl/remembered_rules.ipp>
#endif
