#pragma once
// Files of a kernel that shares none with the host.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <ipybox/kernel_backend.hpp>
#include <string>

#include "link.hpp"

namespace ipybox::gateway {

// As Kernel::write_file() and Kernel::read_file() promise.
awaitable<void> write_distant(LinkPtr link, std::filesystem::path path, std::string bytes,
                              bool overwrite);
awaitable<FilePart> read_distant(LinkPtr link, std::filesystem::path path, std::uint64_t offset,
                                 std::size_t limit);

}  // namespace ipybox::gateway
