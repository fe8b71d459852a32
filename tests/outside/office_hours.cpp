// An approval policy: nothing is deleted, and nothing at all out of hours.
#include <ipybox/plugin.hpp>

namespace {
using namespace ipybox;

struct OfficeHours final : ApprovalPolicy {
    explicit OfficeHours(bool open) : open(open) {}
    awaitable<Decision> decide(ToolCall call) override {
        if (call.tool.starts_with("delete_"))
            co_return Decision(Verdict::deny, "customers are deleted by people");
        co_return Decision(open ? Verdict::allow : Verdict::deny, open ? "" : "nobody is at work");
    }
    bool open;
};

constexpr Plugin self{
    .name = "office_hours",
    .summary = "allows calls while somebody is at work",
    .config_schema = R"({"type": "object", "additionalProperties": false, "required": ["open"],
        "properties": {"open": {"type": "boolean"}}})",
    .make = +[](Host&, const json::object& config) -> std::unique_ptr<ApprovalPolicy> {
        return std::make_unique<OfficeHours>(config.at("open").as_bool());
    },
};
}  // namespace

IPYBOX_PLUGIN(office_hours, self)
