// Decides by ordered rules of a configuration; the first that is about a call decides.
#include <ipybox/approval/approval.hpp>
#include <ipybox/approval/rules.hpp>
#include <ipybox/plugin.hpp>

namespace {
using namespace ipybox;
using Effect = approval::Rule::Effect;

class Rules final : public ApprovalPolicy {
public:
    Rules(Host& host, const json::object& config) : host_(host), rules_(config.at("rules")) {}

    awaitable<Decision> decide(ToolCall call) override {
        const approval::CallFacts facts{
            call.server,           call.tool,       to_string(call.origin), call.session,
            call.sent_arguments(), call.annotations};
        const auto found =
            rules_.judge(facts, std::chrono::system_clock::now(), std::chrono::steady_clock::now());
        if (found.effect == Effect::pass) co_return Decision{};
        const std::string by = "rules: " + found.rule->label();
        Decision decision(Verdict::allow);
        if (found.effect == Effect::deny) {
            decision = Decision(Verdict::deny, found.reason);
        } else if (found.effect == Effect::ask) {
            call.may_remember = call.may_remember && found.rule->may_remember();
            decision = co_await ask_person(host_.ask, std::move(call));
        }
        decision.by = decision.by.empty() ? by : by + ", " + decision.by;
        co_return decision;
    }

private:
    Host& host_;
    approval::RuleSet rules_;
};

constexpr Plugin self{
    .name = "rules",
    .summary =
        "decides by ordered rules: servers, tools, hints, arguments, budgets; docs/approval.md",
    // What is in a rule the reader of rules checks: it names the place and what is accepted.
    .config_schema =
        R"({"type": "object", "additionalProperties": false, "required": ["rules"], "properties": {
        "rules": {"type": "array", "minItems": 1, "description": "in order, the first that fits decides: objects of name, when (server, tool, origin, session, annotations, arguments, schema), then (allow, ask, deny), budget, expires"}}})",
    .make = +[](Host& host, const json::object& config) -> std::unique_ptr<ApprovalPolicy> {
        return std::make_unique<Rules>(host, config);
    },
};
}  // namespace

IPYBOX_PLUGIN(rules, self)
