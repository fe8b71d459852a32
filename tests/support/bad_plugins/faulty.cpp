// An approval policy with one fault, which the build chooses.
#include <ipybox/plugin.hpp>
#include <stdexcept>

#ifndef SAMPLE_NAME
#define SAMPLE_NAME undefined
#endif

int defined_nowhere();

namespace {
using namespace ipybox;

constexpr Plugin self{
    .name = IPYBOX_STRING(SAMPLE_NAME),
    .summary = "a plugin of the tests",
#ifdef FAULT_SCHEMA
    .config_schema = R"({"type": "object", "properties": {"level": )",
#else
    .config_schema = R"({"type": "object"})",
#endif
    .make = +[](Host&, const json::object&) -> std::unique_ptr<ApprovalPolicy> {
#ifdef FAULT_UNDEFINED
        if (defined_nowhere() == 1) return nullptr;
#endif
#ifdef FAULT_THROWS
        throw std::out_of_range("no such level");
#else
        return nullptr;
#endif
    },
};
}  // namespace

IPYBOX_PLUGIN(faulty, self)
