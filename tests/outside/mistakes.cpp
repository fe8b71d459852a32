// A policy with one mistake, which the build chooses.
#include <ipybox/plugin.hpp>
#include <stdexcept>

#ifndef NAME
#define NAME forgotten
#endif

int defined_nowhere();

namespace {
using namespace ipybox;

struct Passes final : ApprovalPolicy {
    awaitable<Decision> decide(ToolCall) override { co_return Decision(); }
};

[[maybe_unused]] constexpr Plugin self{
    .name = IPYBOX_STRING(NAME),
    .summary = "has a mistake",
#ifdef MALFORMED
    .config_schema = R"({"type": "object", "properties": ["open"]})",
#else
    .config_schema = R"({"type": "object"})",
#endif
    .make = +[](Host&, const json::object&) -> std::unique_ptr<ApprovalPolicy> {
#ifdef ABSENT
        if (defined_nowhere() == 1) return nullptr;
#endif
#ifdef THROWING
        throw std::out_of_range("no such hour");
#elif defined(WORKS)
        return std::make_unique<Passes>();
#else
        return nullptr;
#endif
    },
};
}  // namespace

#ifndef FORGOTTEN
IPYBOX_PLUGIN(mistaken, self)
#endif
