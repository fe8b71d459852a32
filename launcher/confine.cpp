#include "confine.hpp"

#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

namespace ipybox::launcher {
namespace {

struct Limit {
    const char* option;
    int resource;
};
constexpr Limit limits[] = {{"--rlimit-as", RLIMIT_AS},
                            {"--rlimit-nproc", RLIMIT_NPROC},
                            {"--rlimit-nofile", RLIMIT_NOFILE},
                            {"--rlimit-fsize", RLIMIT_FSIZE},
                            {"--rlimit-cpu", RLIMIT_CPU}};

bool is(const char* word, const char* name) { return std::strcmp(word, name) == 0; }

bool fail(Problem& problem, const char* what, const char* detail = "") {
    problem = {what, detail, false};
    return false;
}

bool misuse(Problem& problem, const char* what) {
    problem = {what, "", true};
    return false;
}

bool set_limit(int resource, rlim_t value, Problem& problem) {
    const auto which = static_cast<__rlimit_resource_t>(resource);
    rlimit limit{};
    if (::getrlimit(which, &limit) != 0) return fail(problem, "getrlimit");
    // A stricter limit that is already there stays. The end of processor time comes by a signal
    // that says so, unless that is ignored.
    const rlim_t hard = resource == RLIMIT_CPU && value < RLIM_INFINITY - 1 ? value + 1 : value;
    if (hard < limit.rlim_max) limit.rlim_max = hard;
    limit.rlim_cur = value < limit.rlim_max ? value : limit.rlim_max;
    return ::setrlimit(which, &limit) == 0 || fail(problem, "setrlimit");
}

// A Landlock domain in which only what is named can be written. The mounts around it say the same;
// this holds even if they can be got around.
class WriteOnlyBelow {
public:
    bool make(Problem& problem) {
        const long version = ::syscall(SYS_landlock_create_ruleset, nullptr, 0, 1u /* VERSION */);
        if (version < 0) return true;  // a kernel without it: the other layers have to do
        version_ = version;
        // Version 1 knows all but the last two.
        writes_ = LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_REMOVE_DIR |
                  LANDLOCK_ACCESS_FS_REMOVE_FILE | LANDLOCK_ACCESS_FS_MAKE_CHAR |
                  LANDLOCK_ACCESS_FS_MAKE_DIR | LANDLOCK_ACCESS_FS_MAKE_REG |
                  LANDLOCK_ACCESS_FS_MAKE_SOCK | LANDLOCK_ACCESS_FS_MAKE_FIFO |
                  LANDLOCK_ACCESS_FS_MAKE_BLOCK | LANDLOCK_ACCESS_FS_MAKE_SYM;
        if (version >= 2) writes_ |= refer;
        if (version >= 3) writes_ |= truncate;
        // The header of an older system does not know the later members.
        const std::uint64_t attributes[] = {writes_, 0, version >= 6 ? scope_all : 0};
        const std::size_t size = version >= 6 ? 24 : version >= 4 ? 16 : 8;
        rules_ = static_cast<int>(::syscall(SYS_landlock_create_ruleset, attributes, size, 0u));
        return rules_ >= 0 || fail(problem, "landlock_create_ruleset");
    }

    bool allow(const char* path, Problem& problem) {
        if (rules_ < 0) return true;
        const int file = ::open(path, O_PATH | O_CLOEXEC);
        if (file < 0) return fail(problem, "cannot open", path);
        struct stat status{};
        if (::fstat(file, &status) != 0) return fail(problem, "cannot look at", path);
        auto rights = writes_;
        if (!S_ISDIR(status.st_mode)) rights &= LANDLOCK_ACCESS_FS_WRITE_FILE | truncate;
        return add(file, rights, problem);
    }
    // Where sockets are made, and removed to be made again.
    bool allow_sockets(const char* path, Problem& problem) {
        if (rules_ < 0) return true;
        const int file = ::open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (file < 0) return fail(problem, "cannot open", path);
        return add(file, LANDLOCK_ACCESS_FS_MAKE_SOCK | LANDLOCK_ACCESS_FS_REMOVE_FILE, problem);
    }
    // Existing files only, such as /dev/null.
    bool allow_writing_files(const char* path, Problem& problem) {
        const int file = rules_ < 0 ? -1 : ::open(path, O_PATH | O_CLOEXEC);
        return file < 0 || add(file, writes_ & (LANDLOCK_ACCESS_FS_WRITE_FILE | truncate), problem);
    }
    bool enforce(bool log, Problem& problem) {
        if (rules_ < 0) return true;
        // Programs that the command executes are left out of the log unless asked for; version 7
        // on.
        const unsigned flags = log && version_ >= 7 ? 2u : 0u;
        if (::syscall(SYS_landlock_restrict_self, rules_, flags) != 0)
            return fail(problem, "landlock_restrict_self");
        ::close(rules_);
        return true;
    }

private:
    static constexpr std::uint64_t refer = 1u << 13, truncate = 1u << 14;
    static constexpr std::uint64_t scope_all = 3;  // abstract Unix sockets, signals

    bool add(int file, std::uint64_t rights, Problem& problem) {
        landlock_path_beneath_attr rule{};
        rule.allowed_access = rights;
        rule.parent_fd = file;
        if (::syscall(SYS_landlock_add_rule, rules_, LANDLOCK_RULE_PATH_BENEATH, &rule, 0u) != 0)
            return fail(problem, "landlock_add_rule");
        ::close(file);
        return true;
    }

    int rules_ = -1;
    long version_ = 0;
    std::uint64_t writes_ = 0;
};

bool enter_landlock(char** words, int count, bool log, Problem& problem) {
    WriteOnlyBelow domain;
    if (!domain.make(problem)) return false;
    for (int i = 0; i + 1 < count; ++i) {
        if (is(words[i], "--writable") && !domain.allow(words[++i], problem)) return false;
        if (is(words[i], "--sockets") && !domain.allow_sockets(words[++i], problem)) return false;
    }
    for (const char* path : {"/dev", "/proc"})
        if (!domain.allow_writing_files(path, problem)) return false;
    return domain.enforce(log, problem);
}

}  // namespace

bool has(char** words, int count, const char* name) {
    for (int i = 0; i < count; ++i)
        if (is(words[i], name)) return true;
    return false;
}

bool knows(const char* word, bool& takes_value) {
    takes_value = false;
    for (const char* name : {"--landlock", "--no-exec", "--log"})
        if (is(word, name)) return true;
    takes_value = true;
    for (const char* name : {"--writable", "--sockets", "--seccomp", "--seccomp-file"})
        if (is(word, name)) return true;
    for (const auto& limit : limits)
        if (is(word, limit.option)) return true;
    return false;
}

bool drop_capabilities(Problem& problem) {
    for (int capability = 0; ::prctl(PR_CAPBSET_READ, capability) >= 0; ++capability)
        if (::prctl(PR_CAPBSET_DROP, capability) != 0) return fail(problem, "bounding set");
    __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct none[2] = {};
    if (::syscall(SYS_capset, &head, none) != 0 ||
        ::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) != 0)
        return fail(problem, "capabilities");
    return true;
}

bool read_number(const char* text, unsigned long long most, unsigned long long& value) {
    char* end = nullptr;
    errno = 0;
    value = std::strtoull(text, &end, 10);
    return errno == 0 && end != text && *end == '\0' && *text != '-' && value <= most;
}

bool apply_filter(int file, bool log, Problem& problem) {
    sock_filter program[BPF_MAXINSNS];
    std::size_t size = 0;
    for (ssize_t count = 0;; size += static_cast<std::size_t>(count)) {
        // By position: the descriptor may be shared with whoever wrote it.
        count = ::pread(file, reinterpret_cast<char*>(program) + size, sizeof program - size,
                        static_cast<off_t>(size));
        if (count < 0) return fail(problem, "cannot read the system call filter");
        if (count == 0) break;
    }
    if (size == 0 || size % sizeof *program != 0)
        return misuse(problem, "--seccomp: this is no filter");
    const sock_fprog filter{static_cast<unsigned short>(size / sizeof *program), program};
    const unsigned flags = log ? SECCOMP_FILTER_FLAG_LOG : 0u;
    if (::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &filter) != 0)
        return fail(problem, "seccomp");
    ::close(file);
    return true;
}

bool take_rights(char** words, int count, Problem& problem) {
    const bool log = has(words, count, "--log");
    if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return fail(problem, "no_new_privs");
    if (has(words, count, "--landlock") && !enter_landlock(words, count, log, problem))
        return false;
    for (int i = 0; i + 1 < count; ++i) {
        unsigned long long file = 0;
        if (is(words[i], "--seccomp")) {
            if (!read_number(words[++i], INT32_MAX, file))
                return misuse(problem, "--seccomp needs a descriptor");
            if (!apply_filter(static_cast<int>(file), log, problem)) return false;
        } else if (is(words[i], "--seccomp-file")) {
            if (!apply_filter(::open(words[++i], O_RDONLY | O_CLOEXEC), log, problem)) return false;
        }
    }
    return true;
}

bool set_limits(char** words, int count, Problem& problem) {
    for (int i = 0; i + 1 < count; ++i)
        for (const auto& limit : limits)
            if (is(words[i], limit.option)) {
                unsigned long long value = 0;
                if (!read_number(words[i + 1], UINT64_MAX, value))
                    return misuse(problem, "a limit needs a whole number");
                if (!set_limit(limit.resource, value, problem)) return false;
            }
    return true;
}

}  // namespace ipybox::launcher
