#pragma once
// Which files of a workspace the host runs by itself (detail/host_run_files.hpp), found in what
// hostile code may have left there: by directory handles, over no link, with a bound on everything.
#include <filesystem>
#include <ipybox/sandbox_kit/detail/project_directory.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace ipybox::sandbox_kit {

// What is protected in a workspace, and how.
struct ProtectionRules {
    int depth = 3;           // levels of directories searched below the workspace
    bool absent = true;      // at the top, hold the names of `Absent::held` too
    bool strict = false;     // what runs on a person's act is protected as well
    bool git_config = true;  // false: git's configuration may be written
    // Absolute; these and what lies in them may be written.
    std::vector<std::filesystem::path> opened;
};

// What a search found.
struct ProtectedFiles {
    // Those that hold listed names, for a FileWatch: one walk serves both.
    std::vector<detail::ProjectDirectory> directories;
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
// absolute path without links. Takes about as long as listing 20,000 files at most. Throws Error:
// io_error (the workspace cannot be opened).
ProtectedFiles protected_files(const std::filesystem::path& workspace,
                               const ProtectionRules& rules = {});

}  // namespace ipybox::sandbox_kit

#ifndef IPYBOX_SEPARATE_COMPILATION
#include <ipybox/sandbox_kit/impl/protected_files.ipp>
#endif
