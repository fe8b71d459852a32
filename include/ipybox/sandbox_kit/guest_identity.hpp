#pragma once
// Whose rights a sandboxed process has, for sandboxes started by root and by others.
#include <grp.h>
#include <pwd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

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

// The index of the first access that is not granted; asked as somebody else in a child process,
// because only the kernel knows what modes, groups and ACLs add up to.
inline std::optional<std::size_t> first_refused(const std::optional<Identity>& who,
                                                const std::vector<Access>& wanted) {
    const auto check = [&wanted]() noexcept -> int {
        for (std::size_t i = 0; i < wanted.size(); ++i)
            if (::access(wanted[i].path.c_str(), wanted[i].mode) != 0) return static_cast<int>(i);
        return -1;
    };
    int answer = -1;
    if (!who) {
        answer = check();
    } else {
        auto [reader, writer] = sandbox_kit::make_pipe();
        pid_t pid = -1;
        {
            const sandbox_kit::BlockSignals blocked;
            pid = ::fork();
            if (pid == 0) {
                answer = 0;
                if (::setgroups(0, nullptr) == 0 &&
                    ::setresgid(who->group, who->group, who->group) == 0 &&
                    ::setresuid(who->user, who->user, who->user) == 0)
                    answer = check();
                const auto sent = ::write(writer.get(), &answer, sizeof answer);
                ::_exit(sent == sizeof answer ? 0 : 1);
            }
        }
        if (pid < 0) throw Error(errc::io_error, "fork failed: " + errno_text());
        writer.reset();
        ssize_t count = 0;
        do count = ::read(reader.get(), &answer, sizeof answer);
        while (count < 0 && errno == EINTR);
        if (count != sizeof answer) answer = 0;
        while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
        }
    }
    return answer < 0 ? std::nullopt : std::optional<std::size_t>(answer);
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
