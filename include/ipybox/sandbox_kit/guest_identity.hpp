#pragma once
// Whose rights a sandboxed process has, for sandboxes started by root and by others.
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <ipybox/error.hpp>
#include <ipybox/sandbox.hpp>
#include <ipybox/sandbox_kit/process.hpp>
#include <optional>
#include <string>
#include <vector>

namespace ipybox::sandbox_kit {
namespace fs = std::filesystem;

inline constexpr uid_t nobody = 65534;

[[noreturn]] inline void refuse(const std::string& why) { throw Error(errc::sandbox_refused, why); }

inline std::string errno_text() { return std::strerror(errno); }

inline Identity identity_of(uid_t user) {
    char buffer[4096];
    passwd entry{};
    passwd* found = nullptr;
    ::getpwuid_r(user, &entry, buffer, sizeof buffer, &found);
    return {user, found != nullptr ? found->pw_gid : static_cast<gid_t>(user)};
}

struct Access {
    fs::path path;
    int mode;  // R_OK | W_OK | X_OK
};

// What the calling thread may do with files is what that user may, as long as this lives. Only root
// may become somebody else so. By system calls, because libc's are for all threads.
class FileRightsOf {
public:
    // Throws Error: io_error.
    explicit FileRightsOf(const Identity& who) {
        const int count = ::getgroups(0, nullptr);
        groups_.resize(static_cast<std::size_t>(std::max(count, 0)));
        if (count < 0 || ::getgroups(count, groups_.data()) != count ||
            ::syscall(SYS_setgroups, 0, nullptr) != 0)
            throw Error(errc::io_error, "the groups of this process: " + errno_text());
        group_ = static_cast<gid_t>(::setfsgid(who.group));
        user_ = static_cast<uid_t>(::setfsuid(who.user));
        // They do not say whether they did it.
        is_right_ = static_cast<gid_t>(::setfsgid(who.group)) == who.group &&
                    static_cast<uid_t>(::setfsuid(who.user)) == who.user;
    }
    ~FileRightsOf() {
        ::setfsuid(user_);
        ::setfsgid(group_);
        // With fewer groups than it had nothing more is allowed.
        ::syscall(SYS_setgroups, groups_.size(), groups_.data());
    }
    FileRightsOf(const FileRightsOf&) = delete;
    FileRightsOf& operator=(const FileRightsOf&) = delete;

    // Throws Error: sandbox_refused (Linux cannot tell).
    bool may(const Access& wanted) const {
        if (!is_right_) return false;
        if (::syscall(SYS_faccessat2, AT_FDCWD, wanted.path.c_str(), wanted.mode, AT_EACCESS) == 0)
            return true;
        if (errno == ENOSYS) refuse("Linux 5.8 or newer is needed to run it as another user");
        return false;
    }

private:
    std::vector<gid_t> groups_;
    uid_t user_ = 0;
    gid_t group_ = 0;
    bool is_right_ = false;
};

// The index of the first access that is not granted; the kernel is asked, because only it knows
// what modes, groups and ACLs add up to. nullopt as `who`: this process as it is.
inline std::optional<std::size_t> first_refused(const std::optional<Identity>& who,
                                                const std::vector<Access>& wanted) {
    std::optional<FileRightsOf> rights;
    if (who) rights.emplace(*who);
    for (std::size_t i = 0; i < wanted.size(); ++i)
        if (rights ? !rights->may(wanted[i])
                   : ::access(wanted[i].path.c_str(), wanted[i].mode) != 0)
            return i;
    return std::nullopt;
}

// Whom root becomes; nothing for everybody else. configured: where the policy names nobody.
// Throws Error: sandbox_refused (nobody suits; says how to choose).
inline std::optional<Identity> guest_identity(const SandboxPolicy& policy,
                                              std::optional<uid_t> configured) {
    const auto chosen = policy.user ? policy.user : configured;
    if (::geteuid() != 0) {
        if (chosen && *chosen != ::geteuid())
            refuse("only root can run a sandbox as uid " + std::to_string(*chosen));
        return std::nullopt;
    }
    const std::string remedy =
        ": choose an unprivileged user that may write there with --sandbox-user UID "
        "(configuration: sandbox.user), or chown the directory";
    if (chosen) {
        if (*chosen == 0) refuse("the sandbox does not run as root" + remedy);
        return identity_of(*chosen);
    }
    struct stat owner{};
    if (policy.cwd.empty() || policy.cwd == "/") return identity_of(nobody);
    if (::stat(policy.cwd.c_str(), &owner) != 0)
        refuse("cannot look at " + policy.cwd.string() + ": " + errno_text());
    if (owner.st_uid != 0) return identity_of(owner.st_uid);
    const auto fallback = identity_of(nobody);
    if (first_refused(fallback, {{policy.cwd, R_OK | W_OK | X_OK}}))
        refuse("started as root, and " + policy.cwd.string() +
               " belongs to root and cannot be written by uid " + std::to_string(nobody) + remedy);
    return fallback;
}

// Throws Error: sandbox_refused (a path cannot be reached; names the first one, and why).
inline void check_reach(const std::optional<Identity>& identity,
                        const std::vector<Access>& wanted) {
    for (const auto& [path, mode] : wanted)
        if (::access(path.c_str(), F_OK) != 0 && errno == ENOENT)
            refuse(path.string() +
                   " does not exist and cannot be shown to the sandbox: create it, "
                   "or leave it out");
    const auto refused = first_refused(identity, wanted);
    if (!refused) return;
    const auto& [path, mode] = wanted[*refused];
    const auto user = std::to_string(identity ? identity->user : ::geteuid());
    // The first directory on the way that is closed, if it is not the path itself.
    std::vector<Access> way;
    fs::path at;
    for (const auto& part : path.parent_path()) way.push_back({at /= part, X_OK});
    const auto closed = first_refused(identity, way);
    refuse("uid " + user + " cannot " + (mode & W_OK ? "write " : "read ") + path.string() +
           (closed ? ", because " + way[*closed].path.string() + " is closed to it" : "") +
           ": give it access, choose another user with --sandbox-user UID (configuration: "
           "sandbox.user), or use something it can reach, such as an interpreter under /usr");
}

}  // namespace ipybox::sandbox_kit
