#pragma once
// The launcher's executable file, for sandboxes to put before their guests.
#include <string_view>

namespace ipybox::launcher {
std::string_view launcher_image();
}  // namespace ipybox::launcher
