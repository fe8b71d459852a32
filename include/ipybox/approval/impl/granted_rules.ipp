#pragma once
#include <ipybox/approval/granted_rules.hpp>

#include <algorithm>
#include <ipybox/compilation.hpp>
#include <ipybox/detail/json_members.hpp>
#include <ipybox/detail/utc_time.hpp>
#include <utility>

namespace ipybox::approval {

inline Fit fit_of(const Rule& rule, const ToolCall& call, Rule::Wall now) {
    std::size_t steps = rule_steps;
    return rule.fits(facts_of(call), now, steps);
}

// What keeps a remembered rule from allowing a call that it is about; empty: nothing.
inline std::string staleness(const RememberedRule& one, const ToolCall& call) {
    if (one.binding) return one.binding->changes(call);
    // Commands and packages are what their arguments say: there is no tool that could change.
    if (call.origin != CallOrigin::mcp) return {};
    return "a rule of yours allows it, but does not say what server and tool it was made for";
}

}  // namespace ipybox::approval

namespace ipybox {

IPYBOX_DECL bool GrantedRules::covers(const Grant& grant, const ToolCall& call,
                                      approval::Rule::Wall now) {
    return grant.session == call.session &&
           (grant.lifetime.kind != GrantLifetime::Kind::cell ||
            grant.execution == call.execution) &&
           (!grant.lifetime.until || now < *grant.lifetime.until) &&
           approval::fit_of(grant.rule, call, now) == approval::Fit::yes;
}

IPYBOX_DECL std::optional<Decision> GrantedRules::find(const ToolCall& call) const {
    using Effect = approval::Rule::Effect;
    using approval::Fit;
    const auto now = std::chrono::system_clock::now();
    const auto stored = remembered_.list();
    std::vector<Fit> fits;
    bool ask = !call.may_remember, allowed = false;
    for (const auto& one : stored) {
        const auto fit = approval::fit_of(one.rule, call, now);
        if (fit == Fit::no) continue;
        if (one.rule.effect() == Effect::deny) {
            const auto& why = one.rule.reason();
            Decision decision(Verdict::deny, fit == Fit::yes && !why.empty()
                                                 ? why
                                                 : one.rule.label() + " of " +
                                                       remembered_.file().string() + " denies it");
            decision.by = "always";
            return decision;
        }
        // A call of which it cannot be told is for a person.
        if (fit == Fit::unclear || one.rule.effect() == Effect::ask) ask = true;
        if (one.rule.effect() == Effect::allow && approval::staleness(one, call).empty())
            allowed = true;
    }
    if (ask) return std::nullopt;
    Decision decision(Verdict::allow);
    for (const auto& grant : grants_) {
        if (!covers(grant, call, now) || !grant.binding.changes(call).empty()) continue;
        decision.by =
            grant.lifetime.kind == GrantLifetime::Kind::cell ? "this cell" : "this session";
        return decision;
    }
    if (!allowed) return std::nullopt;
    decision.by = "always";
    return decision;
}

IPYBOX_DECL std::string GrantedRules::changes(const ToolCall& call) const {
    if (!call.may_remember) return {};
    const auto now = std::chrono::system_clock::now();
    std::string result;
    for (const auto& one : remembered_.list()) {
        if (one.rule.effect() != approval::Rule::Effect::allow ||
            approval::fit_of(one.rule, call, now) != approval::Fit::yes)
            continue;
        result = approval::staleness(one, call);
        if (result.empty()) return result;
    }
    for (const auto& grant : grants_) {
        if (!covers(grant, call, now)) continue;
        result = grant.binding.changes(call);
        if (result.empty()) return result;
    }
    return result;
}

IPYBOX_DECL void GrantedRules::grant(const ToolCall& call, json::object rule,
                                     GrantLifetime lifetime) {
    using Kind = GrantLifetime::Kind;
    const auto now = std::chrono::system_clock::now();
    if (!may_remember(call))
        throw Error(errc::denied,
                    "a policy asks about such calls every time: a yes to one cannot "
                    "be remembered");
    approval::rule_object(rule, "the rule", {"name", "when", "then"});
    if (rule.contains("then") && rule["then"] != "allow")
        throw Error(errc::bad_config, "the rule/then: accepted: \"allow\"");
    rule["then"] = "allow";
    if (lifetime.until && *lifetime.until <= now)
        throw Error(errc::bad_config, "the time until which a yes is to hold is past");
    if (lifetime.kind == Kind::cell && call.execution.empty())
        throw Error(errc::bad_config, "no cell made this call: a yes cannot hold for one");
    if (lifetime.kind == Kind::always && lifetime.until)
        rule["expires"] = detail::utc_time(*lifetime.until);
    Grant fresh{approval::Rule(rule, "the rule", 1), {}, lifetime, call.session, call.execution};
    if (approval::fit_of(fresh.rule, call, now) != approval::Fit::yes)
        throw Error(errc::bad_config, "the rule is not about this call");
    const auto* when = detail::object_of(rule, "when");
    const bool one_tool =
        when && detail::string_of(*when, "tool") == approval::Glob::quoted(call.tool);
    fresh.binding = approval::ToolBinding::of(call, one_tool);
    if (lifetime.kind == Kind::always) return remembered_.add(std::move(rule), fresh.binding);
    // One cell runs at a time.
    std::erase_if(grants_, [&](const Grant& old) {
        return (old.lifetime.kind == Kind::cell && old.session == call.session &&
                old.execution != call.execution) ||
               (old.lifetime.until && *old.lifetime.until <= now);
    });
    grants_.push_back(std::move(fresh));
}

IPYBOX_DECL void GrantedRules::end_execution(const std::string& execution) {
    std::erase_if(grants_, [&](const Grant& old) {
        return old.lifetime.kind == GrantLifetime::Kind::cell && old.execution == execution;
    });
}

}  // namespace ipybox
