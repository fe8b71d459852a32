#pragma once
// Where a path lies, by its name alone.
#include <filesystem>
#include <string_view>

namespace ipybox::detail {

// Is `path` the place `root` or below it? Both normal, and absolute or relative alike.
inline bool within(const std::filesystem::path& path, const std::filesystem::path& root) {
    const std::string_view whole = path.native();
    std::string_view start = root.native();
    if (start.ends_with('/')) start.remove_suffix(1);
    return whole.starts_with(start) && (whole.size() == start.size() || whole[start.size()] == '/');
}

}  // namespace ipybox::detail
