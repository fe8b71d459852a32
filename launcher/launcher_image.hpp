#pragma once
// The launcher's executable file, for sandboxes to put before their guests.
#include <string_view>

namespace ipybox::detail {
std::string_view launcher_image();
}  // namespace ipybox::detail
