#pragma once
// What the build knows.
#include <ipybox/version.hpp>

namespace ipybox::detail {

inline constexpr const char* build_version = IPYBOX_VERSION;

}  // namespace ipybox::detail
