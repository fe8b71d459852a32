// Allows every call.
#include <ipybox/plugin.hpp>

namespace {
using namespace ipybox;

class Allow final : public ApprovalPolicy {
public:
    awaitable<Decision> decide(ToolCall) override { co_return Decision(Verdict::allow); }
};

constexpr Plugin self{
    .name = "allow",
    .summary = "allows every call",
    .config_schema = R"({"type": "object", "additionalProperties": false})",
    .make = +[](Host&, const json::object&) -> std::unique_ptr<ApprovalPolicy> {
        return std::make_unique<Allow>();
    },
};
}  // namespace

IPYBOX_PLUGIN(allow, self)
