// The first program inside a sandbox: takes rights away from itself that the sandbox around it
// cannot take, then becomes the command. Static, because what the guest sees may hold no libraries.
#include <fcntl.h>
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
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include "forward.hpp"
#include "guard.hpp"
#include "relay.hpp"
#include "scratch.hpp"

namespace {

constexpr const char* usage =
    "usage: ipybox-launcher [OPTION]... -- COMMAND [ARGUMENT]...\n"
    "       ipybox-launcher scratch …\n"
    "Becomes COMMAND with fewer rights.\n"
    "  --rlimit-as N, --rlimit-nproc N, --rlimit-nofile N, --rlimit-fsize N, --rlimit-cpu N\n"
    "                        resource limits, in the units of setrlimit(2)\n"
    "  --landlock            where the kernel has Landlock: no writing but as the next two say,\n"
    "                        no abstract sockets or signals of processes outside\n"
    "  --writable PATH       a file or directory that may be written; repeatable\n"
    "  --sockets PATH        a directory in which nothing but sockets may be made; repeatable\n"
    "  --same DEVICE:INODE:PATH\n"
    "                        fails unless this is what lies there; repeatable\n"
    "  --seccomp FD          a system call filter, read from a descriptor; repeatable\n"
    "  --seccomp-file PATH   the same from a file; repeatable\n"
    "  --log                 what they refuse is told to the kernel's audit log\n"
    "  --forward PORT=PATH   connections to 127.0.0.1:PORT go to the Unix socket PATH\n"
    "  --relay IN:OUT        the command comes from descriptor IN, and its loopback connections "
    "are\n"
    "                        carried over IN and OUT; there is none behind --\n"
    "usage: ipybox-launcher relay\n"
    "Runs what standard input says, and carries its loopback connections over standard input and "
    "output.\n"
    "usage: ipybox-launcher guard [scratch …] COMMAND [ARGUMENT]...\n"
    "Runs COMMAND and ends everything it started when it ends, or our parent.\n";

[[noreturn]] void fail(const char* what, const char* detail) {
    std::fprintf(stderr, "ipybox-launcher: %s%s%s: %s\n", what, *detail ? " " : "", detail,
                 std::strerror(errno));
    std::_Exit(126);
}

[[noreturn]] void misuse(const char* what) {
    std::fprintf(stderr, "ipybox-launcher: %s\n%s", what, usage);
    std::_Exit(2);
}

// A whole number up to `most`.
std::uint64_t number(const char* text, std::uint64_t most = UINT64_MAX) {
    char* end = nullptr;
    errno = 0;
    const auto value = std::strtoull(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || *text == '-' || value > most)
        misuse("an option needs a whole number within its range");
    return value;
}

struct Limit {
    const char* option;
    int resource;
};
constexpr Limit limits[] = {{"--rlimit-as", RLIMIT_AS},
                            {"--rlimit-nproc", RLIMIT_NPROC},
                            {"--rlimit-nofile", RLIMIT_NOFILE},
                            {"--rlimit-fsize", RLIMIT_FSIZE},
                            {"--rlimit-cpu", RLIMIT_CPU}};

void set_limit(int resource, rlim_t value) {
    const auto which = static_cast<__rlimit_resource_t>(resource);
    rlimit limit{};
    if (::getrlimit(which, &limit) != 0) fail("getrlimit", "");
    // A stricter limit that is already there stays. The end of processor time comes by a signal
    // that says so, unless that is ignored.
    const rlim_t hard = resource == RLIMIT_CPU && value < RLIM_INFINITY - 1 ? value + 1 : value;
    if (hard < limit.rlim_max) limit.rlim_max = hard;
    limit.rlim_cur = value < limit.rlim_max ? value : limit.rlim_max;
    if (::setrlimit(which, &limit) != 0) fail("setrlimit", "");
}

// A Landlock domain in which only what is named can be written. The mounts around it say the same;
// this holds even if they can be got around.
class WriteOnlyBelow {
public:
    WriteOnlyBelow() {
        const long version = ::syscall(SYS_landlock_create_ruleset, nullptr, 0, 1u /* VERSION */);
        if (version < 0) return;  // a kernel without it: the other layers have to do
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
        if (rules_ < 0) fail("landlock_create_ruleset", "");
    }

    void allow(const char* path) {
        if (rules_ < 0) return;
        const int file = ::open(path, O_PATH | O_CLOEXEC);
        if (file < 0) fail("cannot open", path);
        struct stat status{};
        if (::fstat(file, &status) != 0) fail("cannot look at", path);
        auto rights = writes_;
        if (!S_ISDIR(status.st_mode)) rights &= LANDLOCK_ACCESS_FS_WRITE_FILE | truncate;
        add(file, rights);
    }
    // Where sockets are made, and removed to be made again.
    void allow_sockets(const char* path) {
        if (rules_ < 0) return;
        const int file = ::open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (file < 0) fail("cannot open", path);
        add(file, LANDLOCK_ACCESS_FS_MAKE_SOCK | LANDLOCK_ACCESS_FS_REMOVE_FILE);
    }
    // Existing files only, such as /dev/null.
    void allow_writing_files(const char* path) {
        const int file = rules_ < 0 ? -1 : ::open(path, O_PATH | O_CLOEXEC);
        if (file >= 0) add(file, writes_ & (LANDLOCK_ACCESS_FS_WRITE_FILE | truncate));
    }
    void enforce(bool log) {
        if (rules_ < 0) return;
        // Programs that the command executes are left out of the log unless asked for; version 7
        // on.
        const unsigned flags = log && version_ >= 7 ? 2u : 0u;
        if (::syscall(SYS_landlock_restrict_self, rules_, flags) != 0)
            fail("landlock_restrict_self", "");
        ::close(rules_);
    }

private:
    static constexpr std::uint64_t refer = 1u << 13, truncate = 1u << 14;
    static constexpr std::uint64_t scope_all = 3;  // abstract Unix sockets, signals

    void add(int file, std::uint64_t rights) {
        landlock_path_beneath_attr rule{};
        rule.allowed_access = rights;
        rule.parent_fd = file;
        if (::syscall(SYS_landlock_add_rule, rules_, LANDLOCK_RULE_PATH_BENEATH, &rule, 0u) != 0)
            fail("landlock_add_rule", "");
        ::close(file);
    }

    int rules_ = -1;
    long version_ = 0;
    std::uint64_t writes_ = 0;
};

// Whether what the host looked at is what was mounted. Afterwards nobody can change that.
void require_same(char* text) {
    std::uint64_t numbers[2];
    for (auto& value : numbers) {
        char* colon = std::strchr(text, ':');
        if (colon == nullptr) misuse("--same needs DEVICE:INODE:PATH");
        *colon = '\0';
        value = number(text);
        text = colon + 1;
    }
    const int file = ::open(text, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    struct stat found{};
    if (file < 0 || ::fstat(file, &found) != 0) fail("cannot look at", text);
    ::close(file);
    errno = ESTALE;
    if (found.st_dev != numbers[0] || found.st_ino != numbers[1])
        fail("somebody has replaced", text);
}

void apply_filter(int file, bool log) {
    sock_filter program[BPF_MAXINSNS];
    std::size_t size = 0;
    for (ssize_t count = 0;; size += static_cast<std::size_t>(count)) {
        // By position: the descriptor may be shared with whoever wrote it.
        count = ::pread(file, reinterpret_cast<char*>(program) + size, sizeof program - size,
                        static_cast<off_t>(size));
        if (count < 0) fail("cannot read the system call filter", "");
        if (count == 0) break;
    }
    if (size == 0 || size % sizeof *program != 0) misuse("--seccomp: this is no filter");
    const sock_fprog filter{static_cast<unsigned short>(size / sizeof *program), program};
    const unsigned flags = log ? SECCOMP_FILTER_FLAG_LOG : 0u;
    if (::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &filter) != 0) fail("seccomp", "");
    ::close(file);
}

}  // namespace

int main(int argc, char** argv) {
    if (argc > 1 && std::strcmp(argv[1], "scratch") == 0) return scratch_main(argc - 1, argv + 1);
    if (argc > 1 && std::strcmp(argv[1], "--help") == 0) return std::fputs(usage, stdout) < 0;
    if (argc > 1 && std::strcmp(argv[1], "relay") == 0) return relay_main(0, 1);
    if (argc > 1 && std::strcmp(argv[1], "guard") == 0) return guard_main(argc - 1, argv + 1);

    Forwarder forwarder;
    bool landlock = false, log = false;
    int relay[2] = {-1, -1};
    int at = 1;
    for (; at < argc && std::strcmp(argv[at], "--") != 0; ++at) {
        if (std::strcmp(argv[at], "--landlock") == 0) {
            landlock = true;
            continue;
        }
        if (std::strcmp(argv[at], "--log") == 0) {
            log = true;
            continue;
        }
        const char* option = argv[at];
        if (++at == argc) misuse("an option lacks its value");
        if (std::strcmp(option, "--seccomp") == 0) {
            number(argv[at], INT32_MAX);
        } else if (std::strcmp(option, "--forward") == 0) {
            char* equals = std::strchr(argv[at], '=');
            if (equals == nullptr) misuse("--forward needs PORT=PATH");
            *equals = '\0';
            if (!forwarder.listen(static_cast<std::uint16_t>(number(argv[at], 65535)), equals + 1))
                fail("cannot listen on 127.0.0.1, port", argv[at]);
        } else if (std::strcmp(option, "--relay") == 0) {
            char* colon = std::strchr(argv[at], ':');
            if (colon == nullptr) misuse("--relay needs IN:OUT");
            *colon = '\0';
            relay[0] = static_cast<int>(number(argv[at], INT32_MAX));
            relay[1] = static_cast<int>(number(colon + 1, INT32_MAX));
        } else if (std::strcmp(option, "--same") == 0) {
            require_same(argv[at]);
        } else if (std::strcmp(option, "--writable") != 0 &&
                   std::strcmp(option, "--sockets") != 0 &&
                   std::strcmp(option, "--seccomp-file") != 0) {
            bool known = false;
            for (const auto& limit : limits)
                known = known || std::strcmp(option, limit.option) == 0;
            if (!known) misuse("there is an unknown option");
            number(argv[at]);
        }
    }
    if ((at + 1 >= argc) != (relay[0] >= 0)) misuse("there is no command, or one too many");
    char** command = argv + at + 1;

    if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) fail("no_new_privs", "");
    if (landlock) {
        WriteOnlyBelow domain;
        for (int i = 1; i < at; ++i) {
            if (std::strcmp(argv[i], "--writable") == 0) {
                domain.allow(argv[++i]);
            } else if (std::strcmp(argv[i], "--sockets") == 0) {
                domain.allow_sockets(argv[++i]);
            }
        }
        for (const char* path : {"/dev", "/proc"}) domain.allow_writing_files(path);
        domain.enforce(log);
    }
    for (int i = 1; i < at; ++i) {
        if (std::strcmp(argv[i], "--seccomp") == 0)
            apply_filter(static_cast<int>(number(argv[++i])), log);
        else if (std::strcmp(argv[i], "--seccomp-file") == 0)
            apply_filter(::open(argv[++i], O_RDONLY | O_CLOEXEC), log);
    }
    // Before the limits: they are the command's, but whatever else confines it confines this too.
    if (!forwarder.start()) fail("cannot start the network forwarder", "");
    for (int i = 1; i < at; ++i)
        for (const auto& limit : limits)
            if (std::strcmp(argv[i], limit.option) == 0)
                set_limit(limit.resource, number(argv[++i]));

    ::syscall(SYS_close_range, 3u, ~0u, 4u /* CLOSE_RANGE_CLOEXEC */);
    if (relay[0] >= 0) return relay_main(relay[0], relay[1]);
    ::execv(command[0], command);
    const int code = errno == ENOENT ? 127 : 126;
    std::fprintf(stderr, "ipybox-launcher: cannot start %s: %s\n", command[0],
                 std::strerror(errno));
    return code;
}
