#pragma once
// What code may touch: one policy, for its kernel and for all that reads or writes on its behalf.
#include <sys/stat.h>

#include <algorithm>
#include <boost/json/object.hpp>
#include <cstdlib>
#include <filesystem>
#include <ipybox/config.hpp>
#include <ipybox/detail/beneath.hpp>
#include <ipybox/detail/path_walk.hpp>
#include <ipybox/error.hpp>
#include <ipybox/sandbox.hpp>
#include <ipybox/sandbox_kit/guest_view.hpp>
#include <ipybox/sandbox_kit/protected_files.hpp>
#include <ipybox/sandbox_kit/sandbox_config.hpp>
#include <optional>
#include <string_view>
#include <vector>

namespace ipybox {

namespace sandbox_kit {

// The home directory as HOME says, and as the system's list of users does.
std::vector<std::filesystem::path> home_directories();

// Below a home directory, besides every name that starts with a dot: what its owner's programs are
// found by or start from. These hold while they are absent, too.
inline constexpr std::string_view home_protected[] = {
    ".local/bin",   ".local/lib", ".local/share",  ".config",     ".cache",
    ".ssh",         ".gnupg",     ".npmrc",        ".npm",        ".pypirc",
    ".netrc",       ".profile",   ".bashrc",       ".vim",        ".vimrc",
    ".zshenv",      ".zshrc",     ".bash_profile", ".bash_login", ".zprofile",
    ".zlogin",      ".emacs",     ".emacs.d",      ".inputrc",    ".gdbinit",
    ".bash_logout", ".gitconfig", ".xprofile",     ".docker",     ".cargo",
    ".ipython",     ".jupyter",   "bin",           ".xsessionrc", ".pam_environment"};

inline bool within_any(const std::filesystem::path& path,
                       const std::vector<std::filesystem::path>& roots) {
    return std::any_of(roots.begin(), roots.end(),
                       [&](const auto& root) { return detail::within(path, root); });
}

// The roots as they are given, and as they are without links.
std::vector<std::filesystem::path> with_real_places(std::vector<std::filesystem::path> roots);

// Where `path` really lies, though it may not exist; it ends before a link that code could
// exchange, because that lies in a place that it may write.
detail::PathWalk real_place(const std::filesystem::path& path,
                            const std::vector<std::filesystem::path>& writable);

}  // namespace sandbox_kit

// What a policy is made from. All paths are absolute.
struct PolicySources {
    std::filesystem::path workspace;       // without links
    std::filesystem::path working_dir;     // where the kernel starts, if it is another place
    std::optional<json::object> settings;  // in sandbox-runtime's schema
    std::vector<std::filesystem::path> interpreter;  // what Python reads outside /usr
    std::vector<std::filesystem::path>
        write_protected;  // files of the host that code must not change
    sandbox_kit::ProtectionRules
        protection;                   // of files that programs of the host run by themselves
    std::filesystem::path audit_log;  // empty without
    std::vector<std::filesystem::path> own = config::own_directories();
    std::vector<std::filesystem::path> homes = sandbox_kit::home_directories();
};

// What ipybox keeps for itself from whoever has such a policy, whatever its roots are: its own
// directories and the audit log are hidden, the host's files, the interpreter and what a home
// directory starts programs from are write-protected. Makes directories of ipybox's own where code
// could make them otherwise. Throws Error: bad_argument (a root lies in one of them),
// sandbox_refused (code could exchange a link that leads to them), io_error (a directory cannot be
// made).
void keep_own_state(SandboxPolicy& policy, const PolicySources& sources);

// Programs start from a home directory at every turn. Throws Error: sandbox_refused (the workspace
// is or holds one).
void refuse_home(const PolicySources& sources);

// Hides and protects what lies in a workspace that code may write. Returns what was found of files
// that programs of the host run by themselves.
sandbox_kit::ProtectedFiles guard_workspace(SandboxPolicy& policy,
                                            const std::filesystem::path& workspace,
                                            const sandbox_kit::ProtectionRules& rules);

// The policy of one kernel, and what it says about files that others read or write for the code.
// Matching looks at no links: whoever opens what is allowed here must not follow any.
class KernelPolicy {
public:
    // base: env, limits and network, whose places are added. Throws what keep_own_state() and
    // apply_srt_settings() throw.
    explicit KernelPolicy(const PolicySources& sources, SandboxPolicy base = {});

    const SandboxPolicy& policy() const noexcept { return policy_; }
    // The files found that programs of the host run, and which of them could not be protected.
    const sandbox_kit::ProtectedFiles& protected_files() const noexcept { return protected_; }

    // Whether the code may read this file. path: absolute or relative to the workspace, without
    // "..".
    bool may_read(const std::filesystem::path& path) const { return !is_hidden(absolute(path)); }
    // The same of a file that was opened, whatever its name is by now.
    bool may_read(const struct stat& opened) const {
        return !behind_links().files.contains({opened.st_dev, opened.st_ino});
    }
    // Whether it may make or change it.
    bool may_write(const std::filesystem::path& path) const {
        return sandbox_kit::within_any(absolute(path), writable_) && !is_kept(absolute(path));
    }

    // A directory for the file or directory `name`, which the host writes there for the code; made
    // when it is absent. path: absolute or relative to the workspace. In a place that the code may
    // write no link is followed, and nothing hidden or protected may lie there; elsewhere the host
    // may write as it likes, but over no link that code of another session could have made. Throws
    // Error: denied (the code may not write there), sandbox_refused (such a link), io_error (it
    // cannot be made or opened).
    UniqueFd open_for_writing(const std::filesystem::path& path,
                              const std::filesystem::path& name = {}) const;

private:
    std::filesystem::path absolute(const std::filesystem::path& path) const {
        return sandbox_kit::absolute_path(workspace_ / path);
    }
    // As the kernel found it when it started: code may since have removed a link, or renamed a
    // directory that holds a file. Where no kernel has started, as it is.
    const HiddenBehindLinks& behind_links() const;
    bool is_hidden(const std::filesystem::path& path) const;
    bool is_hidden_or_below_kept(const std::filesystem::path& path) const {
        return is_hidden(path) || sandbox_kit::within_any(path, policy_.write_protected);
    }
    // A file in the place of a directory that leads to a protected name would be as good as that
    // name.
    bool is_kept(const std::filesystem::path& path) const;

    std::filesystem::path workspace_;
    SandboxPolicy policy_;
    std::vector<std::filesystem::path> writable_;  // with and without links
    sandbox_kit::ProtectedFiles protected_;
};

// The limits of whoever is confined and was given none: kernels, MCP servers, and pip but for
// `scratch`, bytes of each place for temporary files.
void set_default_limits(Limits& limits, const Capabilities& able,
                        std::uint64_t scratch = std::uint64_t{1} << 30);

}  // namespace ipybox

#ifndef IPYBOX_SEPARATE_COMPILATION
#include <ipybox/sandbox_kit/impl/kernel_policy.ipp>
#endif
