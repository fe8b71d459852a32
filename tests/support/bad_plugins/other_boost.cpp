// A descriptor as another Boost and another compiler would have left it.
#include <ipybox/plugin.hpp>

namespace {
using namespace ipybox;

constexpr Plugin self{
    .abi = "ipybox " IPYBOX_STRING(IPYBOX_API_VERSION) ", Boost 1_74, another compiler",
    .name = "other_boost",
    .summary = "never usable",
    .config_schema = "{}",
    .make = Factory<ApprovalPolicy>{},
};
}  // namespace

IPYBOX_PLUGIN(other_boost, self)
