// Asks whoever the program lets answer: its user, its application, its client.
#include <ipybox/approval/approval.hpp>
#include <ipybox/plugin.hpp>

namespace {
using namespace ipybox;

class Ask final : public ApprovalPolicy {
public:
    Ask(Host& host, bool may_remember) : host_(host), may_remember_(may_remember) {}
    awaitable<Decision> decide(ToolCall call) override {
        call.may_remember = call.may_remember && may_remember_;
        co_return co_await ask_person(host_.ask, std::move(call));
    }

private:
    Host& host_;
    bool may_remember_;
};

constexpr Plugin self{
    .name = "ask",
    .summary = "asks the application or the person at the terminal",
    .config_schema = R"({"type": "object", "additionalProperties": false, "properties": {
        "remember": {"type": "boolean", "description": "false: a yes never holds for later calls"}}})",
    .make = +[](Host& host, const json::object& config) -> std::unique_ptr<ApprovalPolicy> {
        const auto* remember = config.if_contains("remember");
        return std::make_unique<Ask>(host, !remember || remember->get_bool());
    },
};
}  // namespace

IPYBOX_PLUGIN(ask, self)
