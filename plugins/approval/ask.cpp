// Asks whoever the program lets answer: its user, its application, its client.
#include <ipybox/plugin.hpp>

namespace {
using namespace ipybox;

class Ask final : public ApprovalPolicy {
public:
    explicit Ask(Host& host) : host_(host) {}
    awaitable<Decision> decide(ToolCall call) override {
        if (!host_.ask) co_return Decision(Verdict::deny, "nobody is there to approve this call");
        co_return co_await host_.ask(std::move(call));
    }

private:
    Host& host_;
};

constexpr Plugin self{
    .name = "ask",
    .summary = "asks the application or the person at the terminal",
    .config_schema = R"({"type": "object", "additionalProperties": false})",
    .make = +[](Host& host, const json::object&) -> std::unique_ptr<ApprovalPolicy> {
        return std::make_unique<Ask>(host);
    },
};
}  // namespace

IPYBOX_PLUGIN(ask, self)
