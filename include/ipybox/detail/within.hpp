#pragma once
// Where a path lies, by its name alone.
#include <filesystem>
#include <string_view>
#include <vector>

namespace ipybox::detail {

// Is `path` the place `root` or below it? Both normal, and absolute or relative alike.
inline bool within(const std::filesystem::path& path, const std::filesystem::path& root) {
    const std::string_view whole = path.native();
    std::string_view start = root.native();
    if (start.ends_with('/')) start.remove_suffix(1);
    return whole.starts_with(start) && (whole.size() == start.size() || whole[start.size()] == '/');
}

// The outermost of the roots around `path`, which whoever may write it cannot exchange; null
// without.
inline const std::filesystem::path* outermost_around(
    const std::filesystem::path& path, const std::vector<std::filesystem::path>& roots) {
    const std::filesystem::path* found = nullptr;
    for (const auto& root : roots)
        if (within(path, root) && (found == nullptr || within(*found, root))) found = &root;
    return found;
}

}  // namespace ipybox::detail
