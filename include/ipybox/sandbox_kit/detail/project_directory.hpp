#pragma once
// One directory of a workspace, as a search finds it, and the bounds of searches.
#include <sys/stat.h>

#include <cstddef>
#include <set>
#include <string>

namespace ipybox::detail {

// Bounds of one search, as docs/sandboxing.md states them.
inline constexpr std::size_t max_entries = 20'000;    // names read, of all directories together
inline constexpr std::size_t max_listing = 10'000;    // of these, in one directory
inline constexpr std::size_t max_protected = 400;     // mounts that protection may take
inline constexpr std::size_t max_settings = 1 << 20;  // bytes read of a configuration or a script
inline constexpr std::size_t max_read = 128;          // configurations and scripts read
inline constexpr std::size_t max_words = 10'000;      // of these scripts that could name others

// One directory of a project.
struct ProjectDirectory {
    std::string path;              // relative to the workspace; "" is the workspace
    std::set<std::string> listed;  // names in it that are a first part in the list
    bool is_repository = false;    // git takes it for one, without .git
    struct stat status{};          // before it was read
};

}  // namespace ipybox::detail
