// Denies every call, with a reason that the calling code sees.
#include <ipybox/plugin.hpp>

namespace {
using namespace ipybox;

class Deny final : public ApprovalPolicy {
public:
    explicit Deny(std::string reason) : reason_(std::move(reason)) {}
    awaitable<Decision> decide(ToolCall) override { co_return Decision(Verdict::deny, reason_); }

private:
    std::string reason_;
};

constexpr Plugin self{
    .name = "deny",
    .summary = "denies every call",
    .config_schema = R"({"type": "object", "additionalProperties": false, "properties": {
        "reason": {"type": "string", "description": "what the calling code is told"}}})",
    .make = +[](Host&, const json::object& config) -> std::unique_ptr<ApprovalPolicy> {
        const auto* reason = config.if_contains("reason");
        return std::make_unique<Deny>(reason ? std::string(reason->as_string())
                                             : "every tool call is denied by configuration");
    },
};
}  // namespace

IPYBOX_PLUGIN(deny, self)
