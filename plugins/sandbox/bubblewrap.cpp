// Confinement by bubblewrap: own user, pid, network, ipc, uts, cgroup and mount namespaces, a view
// made of nothing but what the policy names and the system's own programs; inside, the launcher adds
// a system call filter, Landlock and limits, and carries the way to the network proxy.
#include <fcntl.h>
#include <fnmatch.h>
#include <linux/openat2.h>
#include <pwd.h>
#include <sched.h>
#include <seccomp.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <ipybox/cgroup.hpp>
#include <ipybox/plugin.hpp>
#include <ipybox/process.hpp>
#include <launcher_image.hpp>
#include <sstream>

namespace {
using namespace ipybox;
namespace fs = std::filesystem;

constexpr uid_t nobody = 65534;
constexpr std::size_t max_options = 8'000;     // bwrap itself gives up at 9000
constexpr std::size_t max_searched = 500'000;  // files looked at for hidden ones

[[noreturn]] void refuse(const std::string& why) { throw Error(errc::sandbox_refused, why); }

std::string errno_text() { return std::strerror(errno); }

// The tests build this file a second time, with walls that can be taken down one by one: an attack
// that fails with all of them must get through without the one that is said to stop it.
#ifdef IPYBOX_TEST_WEAKENED
bool without(std::string_view layer) {
    const char* layers = std::getenv("IPYBOX_TEST_WITHOUT");
    return layers != nullptr && ("," + std::string(layers) + ",").find("," + std::string(layer) +
                                                                       ",") != std::string::npos;
}
#define IPYBOX_BUBBLEWRAP bubblewrap_weakened
#else
constexpr bool without(std::string_view) { return false; }
#define IPYBOX_BUBBLEWRAP bubblewrap
#endif

// Where the guest finds the way to the proxy, when it may use the network.
constexpr const char* proxy_url = "http://127.0.0.1:3128";
constexpr const char* proxy_port = "3128";

// ---- system call filter -------------------------------------------------------------------------

// What the namespaces and the lack of capabilities already forbid (kept as a second wall), and what
// reaches deep into the kernel.
constexpr const char* denied_calls =
    "acct add_key adjtimex bpf chroot clock_adjtime clock_settime delete_module fanotify_init "
    "finit_module fsconfig fsmount fsopen fspick init_module ioperm iopl kcmp kexec_file_load "
    "kexec_load keyctl lookup_dcookie mbind migrate_pages modify_ldt mount mount_setattr "
    "move_mount move_pages nfsservctl open_by_handle_at open_tree perf_event_open pidfd_getfd "
    "pivot_root process_madvise process_vm_readv process_vm_writev ptrace quotactl quotactl_fd "
    "reboot request_key set_mempolicy setdomainname sethostname setns settimeofday swapoff swapon "
    "syslog umount2 unshare userfaultfd uselib ustat vhangup vmsplice";

// No such call: programs then take the older way, whose arguments a filter can see.
constexpr const char* absent_calls =
    "clone3 openat2 io_uring_setup io_uring_enter io_uring_register";

// Allows everything but the above and some arguments.
class SyscallFilter {
public:
    SyscallFilter() : filter_(seccomp_init(SCMP_ACT_ALLOW), seccomp_release) {
        if (!filter_) refuse("libseccomp cannot build a filter for this machine");
        std::string name;
        for (std::istringstream names(denied_calls); names >> name;) deny(name.c_str(), EPERM);
        for (std::istringstream names(absent_calls); names >> name;) deny(name.c_str(), ENOSYS);
        // set_mempolicy_home_node, statmount, listmount, open_tree_attr, file_getattr,
        // file_setattr, listns: too new for some versions of libseccomp to know by name.
        for (const int number : {450, 457, 458, 467, 468, 469, 470}) deny(number, ENOSYS);
        for (const unsigned flag :
             {0x00020000u /* NEWNS */, 0x02000000u /* NEWCGROUP */, 0x04000000u /* NEWUTS */,
              0x08000000u /* NEWIPC */, 0x10000000u /* NEWUSER */, 0x20000000u /* NEWPID */,
              0x40000000u /* NEWNET */, 0x00000080u /* NEWTIME */})
            deny("clone", EPERM, {masked(0, flag)});
        // The kernel looks at 32 bits of the request only.
        for (const unsigned request : {0x5412u /* TIOCSTI */, 0x541cu /* TIOCLINUX */})
            deny("ioctl", EPERM, {low_half(1, request)});
        deny_sockets();
        deny_setuid_bits();
    }

    // The program as the kernel reads it.
    std::string code() const {
        const UniqueFd file(::memfd_create("seccomp", MFD_CLOEXEC));
        if (!file || seccomp_export_bpf(filter_.get(), file.get()) != 0)
            refuse("libseccomp cannot export the filter");
        std::string text(static_cast<std::size_t>(::lseek(file.get(), 0, SEEK_END)), '\0');
        if (::pread(file.get(), text.data(), text.size(), 0) != static_cast<ssize_t>(text.size()))
            refuse("the system call filter cannot be read back");
        return text;
    }

private:
    void deny(int number, int error, const std::vector<scmp_arg_cmp>& when = {}) {
        const int result =
            seccomp_rule_add_array(filter_.get(), SCMP_ACT_ERRNO(static_cast<std::uint16_t>(error)),
                                   number, static_cast<unsigned>(when.size()), when.data());
        // EDOM: the call does not exist on this architecture.
        if (result != 0 && result != -EDOM)
            refuse("libseccomp refuses a rule for system call " + std::to_string(number));
    }
    void deny(const char* name, int error, const std::vector<scmp_arg_cmp>& when = {}) {
        const int number = seccomp_syscall_resolve_name(name);
        if (number == __NR_SCMP_ERROR)
            refuse(std::string("libseccomp does not know the system call ") + name +
                   ": install libseccomp 2.5.3 or newer");
        deny(number, error, when);
    }
    // Unix, IPv4, IPv6 and route netlink (libzmq lists interfaces) are what a kernel needs.
    void deny_sockets() {
        constexpr unsigned allowed[] = {1, 2, 10, 16};
        for (unsigned family = 0; family < 16; ++family)
            if (std::find(std::begin(allowed), std::end(allowed), family) == std::end(allowed))
                deny("socket", EAFNOSUPPORT, {low_half(0, family)});
        const scmp_arg_cmp newer{0, SCMP_CMP_GT, 16, 0}, netlink{0, SCMP_CMP_EQ, 16, 0};
        const scmp_arg_cmp not_route{2, SCMP_CMP_NE, 0, 0};
        deny("socket", EAFNOSUPPORT, {newer});
        deny("socket", EAFNOSUPPORT, {netlink, not_route});
    }
    // A file with the setuid bit in the workspace would serve another user of the host.
    void deny_setuid_bits() {
        struct Call {
            const char* name;
            unsigned mode;
        };
        for (const unsigned bit : {04000u, 02000u}) {
            for (const Call& call : {Call{"chmod", 1},
                                     {"fchmod", 1},
                                     {"fchmodat", 2},
                                     {"creat", 1},
                                     {"mkdir", 1},
                                     {"mkdirat", 2},
                                     {"mknod", 1},
                                     {"mknodat", 2}})
                deny(call.name, EPERM, {masked(call.mode, bit)});
            deny(452 /* fchmodat2 */, EPERM, {masked(2, bit)});
            for (const unsigned creates : {unsigned{O_CREAT}, unsigned{O_TMPFILE & ~O_DIRECTORY}}) {
                deny("open", EPERM, {masked(1, creates), masked(2, bit)});
                deny("openat", EPERM, {masked(2, creates), masked(3, bit)});
            }
        }
    }
    static scmp_arg_cmp low_half(unsigned argument, unsigned value) {
        return scmp_arg_cmp{argument, SCMP_CMP_MASKED_EQ, 0xffffffffu, value};
    }
    static scmp_arg_cmp masked(unsigned argument, unsigned bits) {
        return scmp_arg_cmp{argument, SCMP_CMP_MASKED_EQ, bits, bits};
    }

    std::unique_ptr<void, void (*)(scmp_filter_ctx)> filter_;
};

// ---- whose rights the guest has -----------------------------------------------------------------

Identity identity_of(uid_t user) {
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
std::optional<std::size_t> first_refused(const std::optional<Identity>& who,
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
        auto [reader, writer] = detail::make_pipe();
        pid_t pid = -1;
        {
            const detail::BlockSignals blocked;
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

// ---- paths that hold while they are absent ------------------------------------------------------

// Files and directories made on the host so that there is something to mount over. They are empty,
// read-only and carry a time stamp that tells them from anything else, so that one left behind by
// a crash is recognised. Several sandboxes may share one; a lock tells whether it is in use.
class Placeholders {
public:
    Placeholders() = default;
    Placeholders(Placeholders&&) = default;
    Placeholders& operator=(Placeholders&&) = delete;
    ~Placeholders() {
        for (auto held = held_.rbegin(); held != held_.rend(); ++held) {
            struct stat now {};
            struct stat ours {};
            // Removing it would take the mount away from another sandbox that still uses it.
            if (::flock(held->file.get(), LOCK_EX | LOCK_NB) != 0) continue;
            if (::fstat(held->file.get(), &ours) == 0 && is_ours(ours) &&
                ::fstatat(held->parent.get(), held->name.c_str(), &now, AT_SYMLINK_NOFOLLOW) == 0 &&
                now.st_ino == ours.st_ino && now.st_dev == ours.st_dev)
                ::unlinkat(held->parent.get(), held->name.c_str(),
                           S_ISDIR(ours.st_mode) ? AT_REMOVEDIR : 0);
        }
    }

    static bool is_ours(const struct stat& file) {
        return file.st_mtim.tv_sec == stamp &&
               (S_ISDIR(file.st_mode) || (S_ISREG(file.st_mode) && file.st_size == 0));
    }

    // Makes parent/name, or adopts what an earlier run made. False when nobody can create
    // anything there, so that there is nothing to protect.
    bool hold(const UniqueFd& parent, const std::string& name, bool directory) {
        for (int attempt = 0; attempt < 100; ++attempt) {
            const bool made = create(parent, name, directory);
            if (!made && (errno == EROFS || errno == EACCES || errno == EPERM)) return false;
            if (!made && errno != EEXIST)
                throw Error(errc::io_error, "cannot protect " + name + ": " + errno_text());
            Held held{UniqueFd(::fcntl(parent.get(), F_DUPFD_CLOEXEC, 3)), name,
                      UniqueFd(::openat(parent.get(), name.c_str(),
                                        O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC))};
            if (!held.file) continue;
            if (made) {
                // Whatever the umask is, another user of the workspace can recognise it.
                ::fchmod(held.file.get(), directory ? 0555 : 0444);
                const timespec times[2] = {{stamp, 0}, {stamp, 0}};
                ::futimens(held.file.get(), times);
            }
            // Another sandbox may be removing it at this moment: look again once it is locked.
            struct stat locked {};
            struct stat now {};
            if (::flock(held.file.get(), LOCK_SH | LOCK_NB) == 0 &&
                ::fstat(held.file.get(), &locked) == 0 &&
                ::fstatat(parent.get(), name.c_str(), &now, AT_SYMLINK_NOFOLLOW) == 0 &&
                now.st_ino == locked.st_ino && now.st_dev == locked.st_dev) {
                held_.push_back(std::move(held));
                return true;
            }
        }
        throw Error(errc::io_error, "cannot protect " + name + ": it keeps changing");
    }

private:
    struct Held {
        UniqueFd parent;
        std::string name;
        UniqueFd file;
    };
    static constexpr long stamp = 424'242;

    static bool create(const UniqueFd& parent, const std::string& name, bool directory) {
        if (directory) return ::mkdirat(parent.get(), name.c_str(), 0555) == 0;
        return static_cast<bool>(UniqueFd(
            ::openat(parent.get(), name.c_str(), O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0444)));
    }

    std::deque<Held> held_;
};

// ---- what the guest sees ------------------------------------------------------------------------

std::vector<std::string> components(const fs::path& path) {
    std::vector<std::string> parts;
    for (const auto& part : path) parts.push_back(part);
    return parts;
}

// Is `path` the directory `root` or below it?
bool within(const fs::path& path, const fs::path& root) {
    const auto [end, ignored] = std::mismatch(root.begin(), root.end(), path.begin(), path.end());
    return end == root.end();
}

bool has_wildcard(std::string_view pattern) {
    return pattern.find_first_of("*?[\\") != std::string_view::npos;
}

bool name_match(const std::string& pattern, const char* name) {
    return has_wildcard(pattern) && ::fnmatch(pattern.c_str(), name, 0) == 0;
}

// `*`, `?` and `[]` inside a component, `**` for any number of components.
bool glob_match(const std::vector<std::string>& pattern, std::size_t p,
                const std::vector<std::string>& path, std::size_t at) {
    for (; p < pattern.size(); ++p, ++at) {
        if (pattern[p] == "**") {
            for (std::size_t skip = at; skip <= path.size(); ++skip)
                if (glob_match(pattern, p + 1, path, skip)) return true;
            return false;
        }
        if (at == path.size()) return false;
        if (pattern[p] != path[at] && !name_match(pattern[p], path[at].c_str())) return false;
    }
    return at == path.size();
}

fs::path absolute_path(const fs::path& path) {
    if (!path.is_absolute())
        throw Error(errc::bad_argument, "the sandbox needs absolute paths, not " + path.string());
    auto normal = path.lexically_normal();
    return normal.has_filename() || normal == "/" ? normal : normal.parent_path();
}

// Collects the mounts of one guest. The most specific path wins; at one path the stricter rule;
// nothing below a protected path is writable.
class View {
public:
    using Patterns = std::vector<std::vector<std::string>>;  // split into components
    enum class Kind { scratch, readable, writable, write_protected, hidden };

    explicit View(const SandboxPolicy& policy) {
        for (const auto& path : policy.readable) add_root(path, Kind::readable);
        for (const auto& path : policy.writable) add_root(path, Kind::writable);
        if (without("view")) add_root("/", Kind::readable);
        if (!without("protect"))
            for (const auto& path : policy.write_protected) protect(absolute_path(path));
        if (!without("hidden"))
            hide(policy.hidden, policy.cwd.empty() ? fs::path("/") : absolute_path(policy.cwd));
        if (!without("view")) hide_host_sockets();
        add(fs::path("/tmp"), Kind::scratch);
        const auto home = policy.env.find("HOME");
        if (home != policy.env.end() && home->second.starts_with('/') &&
            !root_of(absolute_path(home->second)))
            add(absolute_path(home->second), Kind::scratch);
    }

    // In the order of mounting: a directory comes before what lies in it.
    const std::map<fs::path, Kind>& mounts() const { return mounts_; }
    bool whole_disk() const { return mounts_.contains("/"); }
    bool holds_below(const fs::path& directory) const {
        const auto next = mounts_.upper_bound(directory);
        return next != mounts_.end() && within(next->first, directory);
    }
    Kind kind(const fs::path& path) const {
        const auto chosen = mounts_.at(path);
        if (chosen != Kind::writable) return chosen;
        for (const auto& [other, rule] : mounts_)
            if (rule == Kind::write_protected && within(path, other)) return rule;
        return chosen;
    }
    std::vector<Access> accesses() const {
        std::vector<Access> wanted;
        for (const auto& [path, rule] : roots_) {
            const bool enter = fs::is_directory(path);
            wanted.push_back(
                {path, R_OK | (enter ? X_OK : 0) | (rule == Kind::writable ? W_OK : 0)});
        }
        return wanted;
    }
    Placeholders take_placeholders() { return std::move(placeholders_); }

private:
    void add(const fs::path& path, Kind rule) {
        const auto [place, fresh] = mounts_.try_emplace(path, rule);
        if (!fresh) place->second = std::max(place->second, rule);
    }

    void add_root(const fs::path& given, Kind rule) {
        const auto path = absolute_path(given);
        for (const auto* own : {"/proc", "/dev", "/run/ipybox"})
            if (within(path, own)) refuse("the sandbox has its own " + path.string());
        if (path == "/" && rule == Kind::writable) refuse("the whole disk cannot be made writable");
        add(path, rule);
        const auto [place, fresh] = roots_.try_emplace(path, rule);
        if (!fresh) place->second = std::max(place->second, rule);
    }

    // The innermost root around a path.
    std::optional<std::pair<fs::path, Kind>> root_of(const fs::path& path) const {
        std::optional<std::pair<fs::path, Kind>> found;
        for (const auto& root : roots_)
            if (within(path, root.first)) found = root;
        return found;
    }

    static std::string lstat_failure(const fs::path& path) {
        return "cannot look at " + path.string() + ": " + errno_text();
    }

    void protect(const fs::path& path) {
        const auto root = root_of(path);
        if (!root || root->second != Kind::writable) return;  // not writable anyway
        if (path == root->first) return add(path, Kind::write_protected);
        auto at = root->first;
        UniqueFd directory(::open(at.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
        if (!directory) throw Error(errc::io_error, lstat_failure(at));
        const auto names = components(path.lexically_relative(at));
        for (std::size_t i = 0; i < names.size(); ++i) {
            const bool last = i + 1 == names.size();
            at /= names[i];
            struct stat found {};
            if (::fstatat(directory.get(), names[i].c_str(), &found, AT_SYMLINK_NOFOLLOW) != 0) {
                if (errno != ENOENT) throw Error(errc::io_error, lstat_failure(at));
                if (placeholders_.hold(directory, names[i], !last)) add(at, Kind::write_protected);
                return;
            }
            if (S_ISLNK(found.st_mode))
                refuse(at.string() +
                       " is a symbolic link and cannot be write-protected: put the "
                       "file itself there");
            const bool left_over = Placeholders::is_ours(found);
            if (left_over) placeholders_.hold(directory, names[i], S_ISDIR(found.st_mode));
            if (last || left_over || !S_ISDIR(found.st_mode)) return add(at, Kind::write_protected);
            // A mount of its own: the guest cannot rename it and put another in its place.
            add(at, Kind::writable);
            directory.reset(::openat(directory.get(), names[i].c_str(),
                                     O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
            if (!directory) throw Error(errc::io_error, lstat_failure(at));
        }
    }

    void hide(const std::vector<std::string>& patterns, const fs::path& cwd) {
        Patterns anywhere, anchored;
        for (auto pattern : patterns) {
            if (pattern.ends_with("/**")) pattern.resize(pattern.size() - 3);
            const fs::path normal = fs::path(pattern).lexically_normal();
            if (pattern.empty() || normal.string().starts_with(".."))
                throw Error(errc::bad_argument, "\"" + pattern +
                                                    "\" hides nothing: patterns are "
                                                    "relative to the workspace or absolute");
            const auto parts = components(normal);
            const bool free = parts[0] == "**" && parts.size() > 1;
            const fs::path rest = free ? normal.lexically_relative("**") : normal;
            if (!has_wildcard(rest.string()))
                hide_absent(normal.is_absolute() ? normal : cwd / rest);
            if (normal.is_absolute()) {
                hide_absolute(normal, parts);
            } else if (!has_wildcard(normal.string())) {
                for (const auto& [root, rule] : roots_) hide_path(root / normal);
            } else {
                (free ? anywhere : anchored).push_back(parts);
            }
        }
        for (const auto& [root, rule] : roots_) {
            if (within(root, "/usr")) continue;
            // A search of an outer directory has met what may lie anywhere in this one.
            const bool inner =
                std::any_of(roots_.begin(), roots_.end(), [&root](const auto& other) {
                    return other.first != root && within(root, other.first);
                });
            auto wanted = anchored;
            if (!inner) wanted.insert(wanted.end(), anywhere.begin(), anywhere.end());
            if (wanted.empty() || !fs::is_directory(fs::symlink_status(root))) continue;
            std::vector<std::string> below;
            search(root, below, wanted);
        }
    }

    void hide_absolute(const fs::path& pattern, const std::vector<std::string>& parts) {
        if (!has_wildcard(pattern.string())) return hide_path(pattern);
        std::size_t fixed = 0;
        fs::path start;
        while (!has_wildcard(parts[fixed])) start /= parts[fixed++];
        for (const auto& [root, rule] : roots_) {
            const bool inside = within(start, root);
            if (!inside && !within(root, start)) continue;
            const fs::path& from = inside ? start : root;
            if (!fs::is_directory(fs::symlink_status(from))) continue;
            std::vector<std::string> below = components(from);
            search(from, below, {parts});
            if (inside) return;
        }
    }

    // `below` is what the patterns are matched against: the components of `directory` itself, or
    // of the way to it from a root.
    void search(const fs::path& directory, std::vector<std::string>& below,
                const Patterns& patterns) {
        std::unique_ptr<DIR, int (*)(DIR*)> listing(::opendir(directory.c_str()), ::closedir);
        // Its owner could open it again: what cannot be searched is hidden as a whole.
        if (!listing && errno == EACCES) return add(directory, Kind::hidden);
        if (!listing && errno == ENOENT) return;
        if (!listing) throw Error(errc::io_error, lstat_failure(directory));
        std::vector<std::string> directories;
        while (const dirent* entry = ::readdir(listing.get())) {
            const char* name = entry->d_name;
            if (std::strcmp(name, ".") == 0 || std::strcmp(name, "..") == 0) continue;
            if (++searched_ > max_searched)
                refuse("more than " + std::to_string(max_searched) +
                       " files lie below the readable and writable paths, too many to search for "
                       "hidden ones: name fewer paths, or hide files by their full path");
            // Most names fail at the pattern's last part: tens of thousands of files may lie here.
            const bool matches =
                std::any_of(patterns.begin(), patterns.end(), [&](const auto& pattern) {
                    if (pattern.back() != name && !name_match(pattern.back(), name)) return false;
                    below.emplace_back(name);
                    const bool all = glob_match(pattern, 0, below, 0);
                    below.pop_back();
                    return all;
                });
            bool is_directory = entry->d_type == DT_DIR;
            if (entry->d_type == DT_UNKNOWN)
                is_directory = fs::is_directory(fs::symlink_status(directory / name));
            if (matches)
                hide_path(directory / name);
            else if (is_directory)
                directories.emplace_back(name);
        }
        // One directory open at a time: the guest decides how deep they are nested.
        listing.reset();
        for (const auto& name : directories) {
            below.push_back(name);
            search(directory / name, below, patterns);
            below.pop_back();
        }
    }

    // A read-only mount does not keep anyone from connecting to a socket. Those that are paths of
    // the policy themselves are meant to be seen.
    void hide_host_sockets() {
        const auto listing = detail::read_proc("/proc/net/unix");
        for (std::size_t start = 0; start < listing.size();) {
            const auto end = std::min(listing.find('\n', start), listing.size());
            const auto line = std::string_view(listing).substr(start, end - start);
            start = end + 1;
            const auto slash = line.find(" /");
            if (slash == std::string_view::npos) continue;
            std::error_code error;
            const fs::path bound(line.substr(slash + 1));
            const auto path = fs::canonical(bound.parent_path(), error) / bound.filename();
            const auto root = root_of(path);
            if (error || !root || root->first == path) continue;
            // Covered by scratch directories.
            if (root->first == "/" && (within(path, "/run") || within(path, "/tmp"))) continue;
            if (fs::is_socket(fs::symlink_status(path, error))) add(path, Kind::hidden);
        }
    }

    void hide_path(const fs::path& path) {
        std::error_code error;
        const auto status = fs::symlink_status(path, error);
        if (!fs::exists(status)) return;
        if (!fs::is_symlink(status)) return add(path, Kind::hidden);
        // A link cannot be mounted over; the file it leads to can.
        const auto target = fs::canonical(path, error);
        if (!error && root_of(target) && fs::is_regular_file(target)) add(target, Kind::hidden);
    }

    // Holds a place for a file that the host may make while the guest runs.
    void hide_absent(const fs::path& path) {
        const auto root = root_of(path);
        if (!root || root->second != Kind::writable || path == root->first) return;
        const UniqueFd outer(::open(root->first.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
        const auto inside = path.parent_path().lexically_relative(root->first);
        open_how how{};
        how.flags = O_PATH | O_DIRECTORY | O_CLOEXEC;
        how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS;
        const UniqueFd parent(static_cast<int>(
            ::syscall(SYS_openat2, outer.get(), inside.c_str(), &how, sizeof how)));
        if (!parent) return;
        struct stat found {};
        const auto name = path.filename().string();
        const bool absent =
            ::fstatat(parent.get(), name.c_str(), &found, AT_SYMLINK_NOFOLLOW) != 0 &&
            errno == ENOENT;
        if ((absent || Placeholders::is_ours(found)) && placeholders_.hold(parent, name, false))
            add(path, Kind::hidden);
    }

    std::map<fs::path, Kind> mounts_;
    std::map<fs::path, Kind> roots_;
    Placeholders placeholders_;
    std::size_t searched_ = 0;
};

// ---- the command line ---------------------------------------------------------------------------

// bwrap's options and the descriptors they name. Options travel in a descriptor: other users of
// the host can read a command line, and the environment is among them.
class Options {
public:
    template <class... Words>
    void add(const Words&... words) {
        (words_.emplace_back(words), ...);
    }
    // The number under which bwrap finds `text` in a descriptor.
    std::string data(std::string_view text) {
        UniqueFd file(::memfd_create("ipybox", MFD_CLOEXEC));
        // Large ones do not pass in one go.
        for (auto rest = text; file && !rest.empty();) {
            const auto count = ::write(file.get(), rest.data(), rest.size());
            if (count <= 0) file.reset();
            rest.remove_prefix(static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
        }
        if (!file || ::lseek(file.get(), 0, SEEK_SET) != 0)
            throw Error(errc::io_error, "cannot hand data to bwrap: " + errno_text());
        files_.push_back(std::move(file));
        return std::to_string(first + files_.size() - 1);
    }
    void file(const char* path, std::string_view text, const char* mode = "0444") {
        add("--perms", mode, "--ro-bind-data", data(text), path);
    }
    // Completes the request: bwrap with these options and `command` behind them.
    void fill(SpawnRequest& request, const fs::path& bwrap, std::vector<std::string> command) {
        if (words_.size() > max_options)
            refuse("the sandbox's view has too many parts: hide or protect fewer single files");
        std::string joined;
        for (const auto& word : words_) {
            if (word.find('\0') != std::string::npos)
                throw Error(errc::bad_argument,
                            "a path or environment variable contains a NUL byte");
            joined += word;
            joined += '\0';
        }
        request.argv = {bwrap, "--args", data(joined), "--"};
        std::move(command.begin(), command.end(), std::back_inserter(request.argv));
        for (std::size_t i = 0; i < files_.size(); ++i)
            request.fds.emplace_back(files_[i].get(), static_cast<int>(first + i));
    }

private:
    static constexpr std::size_t first = 10;
    std::vector<std::string> words_;
    std::vector<UniqueFd> files_;
};

// bwrap, its init process inside, and the command as that one's first child.
class Confined final : public ChildProcess {
public:
    Confined(asio::any_io_executor executor, SpawnRequest request, Placeholders placeholders,
             std::optional<Cgroup> group)
        : ChildProcess(std::move(executor), std::move(request)),
          placeholders_(std::move(placeholders)),
          group_(std::move(group)) {}
    // The guest must be gone before the places it is kept out of disappear.
    ~Confined() override {
        if (kill_init()) ended_within(std::chrono::seconds(2));
        end();
    }

    Statistics statistics() const noexcept override {
        auto known = ChildProcess::statistics();
        try {
            if (group_) group_->measure(known);
        } catch (const std::exception&) {
            // No memory to read it: what is known so far stands.
        }
        return known;
    }
    void interrupt() noexcept override { signal_command(SIGINT, false); }
    void signal(int number) noexcept override { signal_command(number, true); }
    void kill_tree() noexcept override {
        if (!kill_init()) ChildProcess::kill_tree();
    }

private:
    struct Init {
        pid_t pid = -1;
        UniqueFd handle;
    };

    Init find_init() const {
        if (exit_status()) return Init();
        const auto inner = detail::children_of(pid());
        if (inner.empty()) return Init();
        return Init{inner.front(), detail::open_child(inner.front(), pid())};
    }

    // The kernel ends a pid namespace with its init, and bwrap outside collects it and follows:
    // no orphans are left to whoever is process 1 here. False when there is no init yet.
    bool kill_init() noexcept {
        try {
            const auto init = find_init();
            if (init.handle) detail::send_signal(init.handle, SIGKILL);
            return static_cast<bool>(init.handle);
        } catch (const std::exception&) {
            return false;
        }
    }

    // The command's group is that of the init process, which ignores signals.
    void signal_command(int number, bool group) noexcept {
        try {
            const auto init = find_init();
            if (!init.handle) return;
            const auto commands = detail::children_of(init.pid);
            if (commands.empty()) return;
            const auto command = detail::open_child(commands.front(), init.pid);
            if (!command) return;
            if (group && ::getpgid(commands.front()) == init.pid)
                ::kill(-init.pid, number);
            else
                detail::send_signal(command, number);
        } catch (const std::exception&) {
            // No memory to look for it: the caller's next step is kill_tree().
        }
    }

    Placeholders placeholders_;
    std::optional<Cgroup> group_;
};

class Bubblewrap final : public Sandbox {
public:
    Bubblewrap(Host& host, const json::object& config)
        : executor_(host.executor), filter_(SyscallFilter().code()) {
        const char* path = std::getenv("PATH");
        const auto* name = config.if_contains("bwrap");
        const std::string wanted(name != nullptr ? std::string_view(name->as_string()) : "bwrap");
        const auto found = find_program(wanted, path != nullptr ? path : "/usr/bin:/bin");
        if (found) bwrap_ = *found;
        const auto* user = config.if_contains("user");
        if (user != nullptr) user_ = user->to_number<uid_t>();
        missing_ = wanted;
    }

    awaitable<Capabilities> probe() override {
        if (!probed_) {
            auto found = co_await try_out();
            probed_ = std::move(found);
        }
        co_return *probed_;
    }

    std::string guest_address(const Channel& channel) const override {
        return "/run/ipybox/" + channel.name;
    }

    uid_t guest_user(const SandboxPolicy& policy) const override {
        const auto identity = drop_to(policy);
        return identity ? identity->user : ::geteuid();
    }

    awaitable<std::unique_ptr<SandboxedProcess>> launch(SandboxPolicy policy,
                                                        std::vector<std::string> argv,
                                                        std::vector<Channel> channels,
                                                        Stdio stdio) override {
        const auto able = co_await probe();
        if (!able.available)
            throw Error(bwrap_.empty() ? errc::missing_dependency : errc::sandbox_refused,
                        able.problem);
        co_return start(policy, std::move(argv), channels, stdio);
    }

private:
    std::unique_ptr<Confined> start(const SandboxPolicy& policy, std::vector<std::string> argv,
                                    const std::vector<Channel>& channels, Stdio stdio) {
        const bool proxied = policy.network.mode == NetworkPolicy::Mode::allow_list;
        if (proxied && std::none_of(channels.begin(), channels.end(), is_proxy))
            throw Error(errc::bad_argument,
                        "a list of allowed hosts needs the channel \"network\" to their proxy");
        if (policy.limits.workspace_size)
            refuse("sandbox \"bubblewrap\" cannot limit the size of the workspace");
        if (policy.limits.scratch_inodes && !can_make_namespaces())
            refuse("sandbox \"bubblewrap\" cannot limit the number of files in the scratch space "
                   "here: only bwrap may make user namespaces");
        if (argv.empty() || !argv[0].starts_with('/'))
            throw Error(errc::bad_argument, "a sandboxed program is started by its absolute path");
        SpawnRequest request;
        request.stdio = stdio;
        request.identity = drop_to(policy);
        request.rlimits = {{RLIMIT_CORE, 0}};
        request.wall_seconds = policy.limits.wall_seconds;
        // Only as far as bwrap: a directory it may not be able to enter comes later, inside.
        request.cwd = "/";

        View view(policy);
        auto wanted = view.accesses();
        for (const auto& channel : channels) {
            if (channel.name.empty() ||
                channel.name.find_first_not_of("abcdefghijklmnopqrstuvwxyz_") != std::string::npos)
                throw Error(errc::bad_argument, "\"" + channel.name + "\" cannot name a channel");
            wanted.push_back(
                {absolute_path(channel.host_path), channel.writable ? R_OK | W_OK : F_OK});
        }
        check_reach(request.identity, wanted);

        std::optional<Cgroup> group;
        if (policy.limits.memory_total && !without("limits")) {
            group.emplace(*policy.limits.memory_total);
            request.cgroup = group->entrance();
        }

        Options options;
        add_namespaces(options, policy);
        add_system(options, policy, view.whole_disk());
        add_view(options, policy, view);
        for (const auto& channel : channels)
            options.add(channel.writable ? "--bind" : "--ro-bind", absolute_path(channel.host_path),
                        guest_address(channel));
        auto command = launcher(options, policy, view, channels);
        options.add("--remount-ro", "/dev");
        if (!view.whole_disk()) options.add("--remount-ro", "/");
        options.add("--chdir", policy.cwd.empty() ? fs::path("/") : policy.cwd);
        std::move(argv.begin(), argv.end(), std::back_inserter(command));
        options.fill(request, bwrap_, std::move(command));
        if (policy.limits.scratch_inodes && !without("limits")) limit_inodes(request, policy.limits);
        return std::make_unique<Confined>(executor_, std::move(request), view.take_placeholders(),
                                          std::move(group));
    }

    static bool is_proxy(const Channel& channel) {
        return channel.name == "network" && channel.kind == Channel::Kind::socket;
    }

    // What runs first inside and takes more rights away; see launcher/main.cpp.
    std::vector<std::string> launcher(Options& options, const SandboxPolicy& policy,
                                      const View& view,
                                      const std::vector<Channel>& channels) const {
        const std::string program = "/run/ipybox/launcher";
        std::vector<std::string> command = {program};
        const auto add = [&command](const auto&... words) { (command.emplace_back(words), ...); };
        options.file(program.c_str(), detail::launcher_image(), "0555");
        if (!without("seccomp")) add("--seccomp", options.data(filter_));
        if (!without("landlock")) {
            add("--landlock");
            for (const auto& [path, rule] : view.mounts())
                if (rule == View::Kind::writable || rule == View::Kind::scratch)
                    add("--writable", path);
            add("--writable", "/dev/shm");
            for (const auto& channel : channels)
                if (channel.writable) add("--writable", guest_address(channel));
        }
        if (policy.network.mode == NetworkPolicy::Mode::allow_list)
            for (const auto& channel : channels)
                if (is_proxy(channel))
                    add("--forward", std::string(proxy_port) + "=" + guest_address(channel));
        if (!without("limits")) {
            const auto limit = [&add](const char* option, const auto& value) {
                if (value) add(option, std::to_string(*value));
            };
            limit("--rlimit-as", policy.limits.memory_per_process);
            limit("--rlimit-nproc", policy.limits.processes);
            limit("--rlimit-nofile", policy.limits.open_files);
            limit("--rlimit-fsize", policy.limits.file_size);
            limit("--rlimit-cpu", policy.limits.cpu_seconds);
        }
        add("--");
        return command;
    }

    void add_namespaces(Options& options, const SandboxPolicy& policy) const {
        options.add("--unshare-user", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try",
                    "--uid", "1000", "--gid", "1000", "--hostname", "sandbox", "--cap-drop", "ALL",
                    "--die-with-parent", "--new-session", "--clearenv");
        if (!without("pid")) options.add("--unshare-pid");
        if (userns_can_be_disabled_ && !without("pid")) options.add("--disable-userns");
        if (policy.network.mode != NetworkPolicy::Mode::full && !without("network"))
            options.add("--unshare-net");
        auto env = policy.env;
        if (policy.network.mode == NetworkPolicy::Mode::allow_list) {
            for (const char* name : {"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"}) {
                env.try_emplace(name, proxy_url);
                std::string small = name;
                for (char& c : small) c = static_cast<char>(c | (c == '_' ? 0 : 0x20));
                env.try_emplace(small, proxy_url);
            }
            // Servers inside are not the proxy's business.
            for (const char* name : {"NO_PROXY", "no_proxy"})
                env.try_emplace(name, "localhost,127.0.0.1,::1");
        }
        for (const auto& [name, value] : env) options.add("--setenv", name, value);
    }

    // What every program needs, whatever the policy names.
    static void add_system(Options& options, const SandboxPolicy& policy, bool whole_disk) {
        if (whole_disk) {
            // A read-only mount does not keep anyone from connecting to a socket of the host.
            options.add("--ro-bind", "/", "/", "--tmpfs", "/run");
        } else {
            options.add("--ro-bind", "/usr", "/usr");
            for (const auto* directory : {"/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"}) {
                const auto status = fs::symlink_status(directory);
                if (fs::is_symlink(status))
                    options.add("--symlink", fs::read_symlink(directory), directory);
                else if (fs::exists(status))
                    options.add("--ro-bind", directory, directory);
            }
            for (const auto* path : {"/etc/ld.so.cache", "/etc/alternatives", "/etc/ssl/certs",
                                     "/etc/pki/tls/certs", "/etc/localtime", "/etc/fonts"})
                options.add("--ro-bind-try", path, path);
        }
        // Nothing can be made on the whole disk to mount over.
        const auto file = [&](const char* path, const std::string& text) {
            if (!whole_disk || fs::exists(path)) options.file(path, text);
        };
        const auto home = policy.env.find("HOME");
        file("/etc/passwd",
             "user:x:1000:1000::" + (home != policy.env.end() ? home->second : "/") + ":/bin/sh\n");
        file("/etc/group", "user:x:1000:\n");
        if (policy.network.mode != NetworkPolicy::Mode::full) {
            file("/etc/hosts", "127.0.0.1 localhost sandbox\n::1 localhost\n");
            file("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n");
        } else {
            for (const fs::path path : {"/etc/hosts", "/etc/resolv.conf", "/etc/nsswitch.conf",
                                        "/etc/services", "/etc/gai.conf"}) {
                std::error_code error;
                const auto real = fs::canonical(path, error);
                if (error) continue;
                // The resolver's file is often a link into /run, which is hidden.
                if (!whole_disk)
                    options.add("--ro-bind", real, path);
                else if (within(real, "/run"))
                    options.add("--ro-bind", real, real);
            }
        }
        options.add("--proc", "/proc", "--dev", "/dev");
        add_scratch(options, policy, "/dev/shm", 0);
    }

    // number: 0 is /dev/shm, the others are counted from 1.
    static void add_scratch(Options& options, const SandboxPolicy& policy, const fs::path& path,
                            int number) {
        if (policy.limits.scratch_inodes && !without("limits"))
            return options.add("--bind", "/sys/" + std::to_string(number), path);
        if (policy.limits.scratch_size && !without("limits"))
            options.add("--size", std::to_string(*policy.limits.scratch_size));
        options.add("--perms", path.parent_path() == "/home" ? "0700" : "1777", "--tmpfs", path);
    }

    // bwrap starts with file systems that it binds, made as launcher/scratch.cpp tells.
    void limit_inodes(SpawnRequest& request, const Limits& limits) const {
        constexpr int image = 9;  // below what Options hands over
        std::string mounts = "mode=1777,nr_inodes=" + std::to_string(*limits.scratch_inodes);
        if (limits.scratch_size) mounts += ",size=" + std::to_string(*limits.scratch_size);
        std::vector<std::string> argv = {"/proc/self/fd/" + std::to_string(image), "scratch",
                                         std::move(mounts), std::to_string(scratch_places), "--"};
        std::move(request.argv.begin(), request.argv.end(), std::back_inserter(argv));
        request.argv = std::move(argv);
        request.fds.emplace_back(launcher_file(), image);
    }

    // The launcher as a file that can be executed, made when it is first needed.
    int launcher_file() const {
        static const UniqueFd file = [] {
            UniqueFd made(::memfd_create("ipybox-launcher", MFD_CLOEXEC));
            const auto image = detail::launcher_image();
            if (!made ||
                ::write(made.get(), image.data(), image.size()) != static_cast<ssize_t>(image.size()))
                throw Error(errc::io_error, "cannot keep the launcher in memory: " + errno_text());
            return made;
        }();
        return file.get();
    }

    // Whether a program that is not bwrap may make user namespaces; AppArmor may know better.
    static bool can_make_namespaces() {
        static const bool able = [] {
            const detail::BlockSignals blocked;
            const pid_t pid = ::fork();
            if (pid == 0) ::_exit(::unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0 ? 0 : 1);
            int status = 1;
            while (pid > 0 && ::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
            }
            return pid > 0 && status == 0;
        }();
        return able;
    }

    static void add_view(Options& options, const SandboxPolicy& policy, const View& view) {
        std::vector<fs::path> frozen;
        int scratch = 0;
        for (const auto& [path, rule] : view.mounts()) {
            switch (view.kind(path)) {
                case View::Kind::scratch:
                    add_scratch(options, policy, path, ++scratch);
                    break;
                case View::Kind::writable:
                    options.add("--bind", path, path);
                    break;
                case View::Kind::readable:
                    if (path == "/") break;  // came first
                    [[fallthrough]];
                case View::Kind::write_protected:
                    options.add("--ro-bind", path, path);
                    break;
                case View::Kind::hidden:
                    if (!fs::is_directory(fs::symlink_status(path))) {
                        // Devices cannot be opened on bwrap's mounts: EACCES, not an empty file.
                        options.add("--ro-bind", "/dev/null", path);
                    } else {
                        options.add("--perms", view.holds_below(path) ? "0111" : "0000", "--tmpfs",
                                    path);
                        frozen.push_back(path);
                    }
            }
        }
        for (const auto& path : frozen) options.add("--remount-ro", path);
    }

    // Whom root becomes; nothing for everybody else.
    std::optional<Identity> drop_to(const SandboxPolicy& policy) const {
        const auto chosen = policy.user ? policy.user : user_;
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
        struct stat owner {};
        if (policy.cwd.empty() || policy.cwd == "/") return identity_of(nobody);
        if (::stat(policy.cwd.c_str(), &owner) != 0)
            refuse("cannot look at " + policy.cwd.string() + ": " + errno_text());
        if (owner.st_uid != 0) return identity_of(owner.st_uid);
        const auto fallback = identity_of(nobody);
        if (first_refused(fallback, {{policy.cwd, R_OK | W_OK | X_OK}}))
            refuse("started as root, and " + policy.cwd.string() +
                   " belongs to root and cannot be written by uid " + std::to_string(nobody) +
                   remedy);
        return fallback;
    }

    static void check_reach(const std::optional<Identity>& identity,
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

    awaitable<Capabilities> try_out() {
        Capabilities found;
        if (bwrap_.empty()) {
            found.problem = missing_ + " is not installed: apt-get install bubblewrap";
            co_return found;
        }
        std::optional<ExitStatus> status;
        std::string said;
        for (int attempt = 0; attempt < 2; ++attempt) {
            try {
                SandboxPolicy nothing;
                auto trial = start(nothing, {"/usr/bin/true"}, {}, Stdio::tail);
                const auto limit = deadline_after(std::chrono::seconds(10));
                status = co_await trial->wait(limit);
                said = trial->output_tail();
            } catch (const Error& error) {
                said = error.detail();
            }
            if (said.find("--disable-userns") == std::string::npos) break;
            // Before 0.8. The filter alone then keeps the guest from making user namespaces.
            userns_can_be_disabled_ = false;
        }
        found.available = status && status->code == 0;
        if (!found.available) {
            found.problem = diagnosis(said);
            co_return found;
        }
        found.filesystem = found.network_none = found.process_isolation = true;
        found.unix_sockets = found.wall_time = found.scratch_size = true;
        found.network_allow_list = found.limits_per_process = true;
        found.scratch_inodes = can_make_namespaces();
        try {
            const Cgroup trial(std::uint64_t{1} << 30);
            found.memory_total = true;
        } catch (const Error&) {
            // It is told when a policy asks for it.
        }
        co_return found;
    }

    // Why a trivial sandbox did not run, and what to do about it.
    std::string diagnosis(std::string said) const {
        while (!said.empty() && said.back() == '\n') said.pop_back();
        const std::string why =
            "bubblewrap does not work here (" + (said.empty() ? "no answer in 10 s" : said) + "): ";
        if (setting("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1")
            return why + "AppArmor blocks unprivileged user namespaces; allow them for " +
                   bwrap_.string() +
                   " by an AppArmor profile with \"userns,\", or for all programs by "
                   "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0";
        if (setting("/proc/sys/kernel/unprivileged_userns_clone") == "0")
            return why +
                   "unprivileged user namespaces are off; sudo sysctl "
                   "kernel.unprivileged_userns_clone=1";
        if (setting("/proc/sys/user/max_user_namespaces") == "0")
            return why + "user namespaces are off; sudo sysctl user.max_user_namespaces=10000";
        if (said.find("nknown option") != std::string::npos)
            return why + "install bubblewrap 0.6 or newer";
        return why +
               "user namespaces must be permitted; inside a container, start it with a seccomp "
               "profile that allows them (docker run --security-opt seccomp=unconfined "
               "--security-opt apparmor=unconfined --security-opt systempaths=unconfined)";
    }

    static std::string setting(const char* path) {
        auto text = detail::read_proc(path);
        while (!text.empty() && text.back() == '\n') text.pop_back();
        return text;
    }

    static constexpr int scratch_places = 3;  // /dev/shm, /tmp and the home directory

    asio::any_io_executor executor_;
    std::string filter_;
    fs::path bwrap_;       // empty: not found
    std::string missing_;  // what was looked for
    std::optional<uid_t> user_;
    std::optional<Capabilities> probed_;
    bool userns_can_be_disabled_ = true;
};

constexpr Plugin self{
    .name = IPYBOX_STRING(IPYBOX_BUBBLEWRAP),
    .summary = "Linux namespaces, a minimal view of the disk and a system call filter, by bwrap",
    .config_schema = R"({
        "type": "object",
        "properties": {
            "bwrap": {"type": "string", "minLength": 1,
                      "description": "bubblewrap's program: a path, or a name looked up in PATH"},
            "user": {"type": "integer", "minimum": 1, "maximum": 4294967294,
                     "description": "uid that a sandbox started by root drops to"}
        },
        "additionalProperties": false})",
    .make =
        Factory<Sandbox>(+[](Host& host, const json::object& config) -> std::unique_ptr<Sandbox> {
            return std::make_unique<Bubblewrap>(host, config);
        }),
};
}  // namespace

IPYBOX_PLUGIN(IPYBOX_BUBBLEWRAP, self)
