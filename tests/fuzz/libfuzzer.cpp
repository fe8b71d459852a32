// One target as a libFuzzer program: compiled with -DTARGET=http or another name of targets.hpp.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "targets.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    ipybox::fuzz::TARGET(std::string_view(reinterpret_cast<const char*>(data), size));
    return 0;
}
