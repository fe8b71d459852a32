#pragma once
// Which files of a workspace the host runs by itself (detail/host_run_files.hpp), found in what
// hostile code may have left there: by directory handles, over no link, with a bound on everything.
#include <sys/stat.h>

#include <cstddef>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace ipybox::detail {

// Bounds of one search, as docs/sandboxing.md states them.
inline constexpr std::size_t max_entries = 20'000;    // names read, of all directories together
inline constexpr std::size_t max_listing = 10'000;    // of these, in one directory
inline constexpr std::size_t max_protected = 400;     // mounts that protection may take
inline constexpr std::size_t max_settings = 1 << 20;  // bytes read of a configuration or a script
inline constexpr std::size_t max_read = 128;          // configurations and scripts read
inline constexpr std::size_t max_words = 10'000;      // of these scripts that could name others

// What is protected in a workspace, and how.
struct ProtectionRules {
    int depth = 3;           // levels of directories searched below the workspace
    bool absent = true;      // at the top, hold the names of `Absent::held` too
    bool strict = false;     // what runs on a person's act is protected as well
    bool git_config = true;  // false: git's configuration may be written
    // Absolute; these and what lies in them may be written.
    std::vector<std::filesystem::path> opened;
};

// One directory of a project.
struct ProjectDirectory {
    std::string path;              // relative to the workspace; "" is the workspace
    std::set<std::string> listed;  // names in it that are a first part in the list
    bool is_repository = false;    // git takes it for one, without .git
    struct stat status {};         // before it was read
};

// What a search found.
struct ProtectedFiles {
    // Those that hold listed names, for a FileWatch: one walk serves both.
    std::vector<ProjectDirectory> directories;
    std::vector<std::filesystem::path> paths;  // absolute; some are absent
    // Of these, those that rules.opened opens.
    std::vector<std::filesystem::path> opened;
    // What the search did not reach or could not hold, for people.
    std::vector<std::string> left_out;
    std::string deeper;  // directories beyond rules.depth, for people; usual in any project
};

// Of the files in a repository's directory, those that git's configuration is made of.
inline bool is_git_config(std::string_view name) {
    return name == "config" || name == "commondir" || name == "config.worktree";
}

// What keeps code that can write `workspace` from what the host runs by itself there. workspace: an
// absolute path without links. Takes about as long as listing 20,000 files at most. Throws
// errc::io_error when the workspace cannot be opened.
ProtectedFiles protected_files(const std::filesystem::path& workspace,
                               const ProtectionRules& rules = {});

}  // namespace ipybox::detail

#ifndef IPYBOX_SEPARATE_COMPILATION
#include <ipybox/sandbox_kit/impl/protected_files.ipp>
#endif
