#pragma once
// The shared object of enter.cpp, for the processes that enter sandboxes.
#include <string_view>

namespace ipybox::launcher {
std::string_view enter_image();
}  // namespace ipybox::launcher
