#pragma once
// What a person said yes to for longer than one call: one memory of it for all who ask.
#include <chrono>
#include <ipybox/approval/remembered_rules.hpp>
#include <ipybox/approval_policy.hpp>
#include <optional>
#include <string>
#include <vector>

namespace ipybox {

// How long a person's yes holds: for the execution or the session of the call, or for all sessions
// of this person on this machine; and in any case no longer than `until`.
struct GrantLifetime {
    enum class Kind { cell, session, always } kind = Kind::session;
    std::optional<std::chrono::system_clock::time_point> until = {};
};

// Rules for calls that need not be asked about again. A yes is bound to what was allowed: the
// server's identity, and the definition of each tool that the rule is about (all of its server's,
// if it names none). A tool that changed, that is new or of another server is asked about again. A
// rule of RememberedRules that denies or asks goes before all that allow. Used on one thread.
class GrantedRules {
public:
    // remembered: where "always" is kept.
    explicit GrantedRules(RememberedRules remembered = RememberedRules())
        : remembered_(std::move(remembered)) {}

    // What was decided before and fits the call as it is now: an allowance whose `by` is "always",
    // "this session" or "this cell", or a denial by a remembered rule. nullopt: ask. Throws Error:
    // bad_config (a mistake in the file of "always", or others can write it), bad_argument (it
    // cannot be read).
    std::optional<Decision> find(const ToolCall& call) const;

    // What must be said when asking although such a call was allowed before, on one line that is
    // safe to show: "the tool changed since you allowed it: description, parameters: +force".
    // Empty: nothing. Throws what find() throws.
    std::string changes(const ToolCall& call) const;

    // Remembers a yes to the call. rule: {"when": ...} as in policies, such as rule_allowing()
    // makes; it must be about the call. "always" takes the place of the same rule for the same
    // server. Throws Error: bad_config (a mistake in the rule or the file, the rule is not about
    // the call, `until` is past, or kind is `cell` and no execution made the call), denied
    // (may_remember() is false), io_error (the file cannot be replaced), bad_argument (it cannot be
    // read).
    void grant(const ToolCall& call, json::object rule, GrantLifetime lifetime);

    // What held for this execution holds no longer.
    void end_execution(const std::string& execution);

    // Whether a yes to the call may hold for others: not if the policy that asks forbids it.
    bool may_remember(const ToolCall& call) const noexcept { return call.may_remember; }

    const RememberedRules& remembered() const noexcept { return remembered_; }

private:
    struct Grant {
        approval::Rule rule;
        approval::ToolBinding binding;
        GrantLifetime lifetime;
        std::string session, execution;
    };
    // Whether a rule of this process is about the call, whatever became of the tool.
    static bool covers(const Grant& grant, const ToolCall& call, approval::Rule::Wall now);

    RememberedRules remembered_;
    std::vector<Grant> grants_;
};

}  // namespace ipybox

#ifndef IPYBOX_SEPARATE_COMPILATION
#include <ipybox/approval/impl/granted_rules.ipp>
#endif
