// Refers to none of the program's symbols but the anchor: loads anywhere, works nowhere unless
// that is shared.
#include <ipybox/plugin.hpp>

namespace {
using namespace ipybox;

constexpr Plugin self{
    .name = "without_json",
    .summary = "a plugin of the tests",
    .config_schema = "{}",
    .make = Factory<ApprovalPolicy>{},
};
}  // namespace

IPYBOX_PLUGIN(without_json, self)
