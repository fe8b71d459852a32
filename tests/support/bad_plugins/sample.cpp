// An approval policy that is in order; the build makes it unusable in several ways.
#include <ipybox/plugin.hpp>

#include "asio_statics.hpp"

#ifndef SAMPLE_NAME
#define SAMPLE_NAME sample
#endif

namespace {
using namespace ipybox;

class Sample final : public ApprovalPolicy {
public:
    awaitable<Decision> decide(ToolCall) override { co_return Decision(Verdict::allow, "sample"); }
};

constexpr Plugin self{
    .name = IPYBOX_STRING(SAMPLE_NAME),
    .summary = "a plugin of the tests",
    .config_schema = R"({"type": "object", "additionalProperties": false,
        "required": ["level"], "properties": {"level": {"type": "integer", "minimum": 1}}})",
    .make = +[](Host&, const json::object&) -> std::unique_ptr<ApprovalPolicy> {
        return std::make_unique<Sample>();
    },
};
}  // namespace

extern "C" [[gnu::visibility("default")]] void sample_asio_statics(AsioStatics& statics) {
    statics = asio_statics();
}

IPYBOX_PLUGIN(sample, self)
