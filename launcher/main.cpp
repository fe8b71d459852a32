// The first program inside a sandbox: takes rights away from itself that the sandbox around it
// cannot take, then becomes the command. Static, because what the guest sees may hold no libraries.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "confine.hpp"
#include "forward.hpp"
#include "guard.hpp"
#include "init.hpp"
#include "programs.hpp"
#include "relay.hpp"
#include "room.hpp"
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
    "                        fails unless this is what is mounted there; repeatable\n"
    "  --mounted PATH        fails unless something is mounted there; repeatable\n"
    "  --seccomp FD          a system call filter, read from a descriptor; repeatable\n"
    "  --seccomp-file PATH   the same from a file; repeatable\n"
    "  --no-exec             COMMAND is the last program: neither it nor its children can start "
    "another\n"
    "  --ask-programs FD     the same, but programs are started for it outside of its own pid "
    "namespace,\n"
    "                        each after a yes over the socket FD; needs CAP_SYS_ADMIN, and drops "
    "it\n"
    "  --programs-door FD    with --init and --ask-programs: where whoever enters asks for "
    "programs\n"
    "  --log                 what they refuse is told to the kernel's audit log\n"
    "  --forward PORT=PATH   connections to 127.0.0.1:PORT go to the Unix socket PATH\n"
    "  --relay IN:OUT        the command comes from descriptor IN, and its loopback connections "
    "are\n"
    "                        carried over IN and OUT; there is none behind --\n"
    "  --init FD             is the sandbox's first process: sends a handle of itself over the "
    "socket FD,\n"
    "                        starts the command if there is one, collects what ends, and ends "
    "when the\n"
    "                        other end of the socket is closed\n"
    "usage: ipybox-launcher relay\n"
    "Runs what standard input says, and carries its loopback connections over standard input and "
    "output.\n"
    "usage: ipybox-launcher workers FD READY INTERPRETER log|quiet\n"
    "Starts INTERPRETER as a last program for whoever asks at the other end of the socket FD;\n"
    "writes a byte to the descriptor READY when it does.\n"
    "usage: ipybox-launcher guard [--pen USER PID] [scratch …] COMMAND [ARGUMENT]...\n"
    "Runs COMMAND and ends everything it started when it ends, or our parent. --pen: descriptors\n"
    "of the namespaces in which it runs.\n";

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
    unsigned long long value = 0;
    if (!ipybox::launcher::read_number(text, most, value))
        misuse("an option needs a whole number within its range");
    return value;
}

// Ends us with what went wrong.
void require(bool good, const ipybox::launcher::Problem& problem) {
    if (good) return;
    if (problem.misuse) misuse(problem.what);
    fail(problem.what, problem.detail);
}

// Whether something was mounted there: a link that somebody put in the place of a directory would
// have led the mount elsewhere. Afterwards nobody can change that. Before Linux 5.8 nothing tells.
struct stat require_mounted(const char* path) {
    const int file = ::open(path, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    struct stat found{};
    struct statx more{};
    if (file < 0 || ::fstat(file, &found) != 0 ||
        ::statx(file, "", AT_EMPTY_PATH, STATX_TYPE, &more) != 0)
        fail("cannot look at", path);
    ::close(file);
    errno = ESTALE;
    if ((more.stx_attributes_mask & ~more.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0)
        fail("somebody has replaced", path);
    return found;
}

// Whether it is what the host looked at, too.
void require_same(char* text) {
    std::uint64_t numbers[2];
    for (auto& value : numbers) {
        char* colon = std::strchr(text, ':');
        if (colon == nullptr) misuse("--same needs DEVICE:INODE:PATH");
        *colon = '\0';
        value = number(text);
        text = colon + 1;
    }
    const auto found = require_mounted(text);
    errno = ESTALE;
    if (found.st_dev != numbers[0] || found.st_ino != numbers[1])
        fail("somebody has replaced", text);
}

}  // namespace

int main(int argc, char** argv) {
    if (argc > 1 && std::strcmp(argv[1], "scratch") == 0) return scratch_main(argc - 1, argv + 1);
    if (argc > 1 && std::strcmp(argv[1], "--help") == 0) return std::fputs(usage, stdout) < 0;
    if (argc > 1 && std::strcmp(argv[1], "relay") == 0) return relay_main(0, 1, false);
    if (argc > 1 && std::strcmp(argv[1], "guard") == 0) return guard_main(argc - 1, argv + 1);
    if (argc == 6 && std::strcmp(argv[1], "workers") == 0)
        return workers_main(static_cast<int>(number(argv[2], INT32_MAX)),
                            static_cast<int>(number(argv[3], INT32_MAX)), argv[4], argv[5]);

    Forwarder forwarder;
    int relay[2] = {-1, -1}, init = -1, host = -1, door = -1;
    int at = 1;
    for (; at < argc && std::strcmp(argv[at], "--") != 0; ++at) {
        const char* option = argv[at];
        bool takes_value = false;
        const bool confining = ipybox::launcher::knows(option, takes_value);
        if (confining && !takes_value) continue;
        if (++at == argc) misuse("an option lacks its value");
        if (std::strcmp(option, "--forward") == 0) {
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
        } else if (std::strcmp(option, "--init") == 0) {
            init = static_cast<int>(number(argv[at], INT32_MAX));
        } else if (std::strcmp(option, "--ask-programs") == 0) {
            host = static_cast<int>(number(argv[at], INT32_MAX));
        } else if (std::strcmp(option, "--programs-door") == 0) {
            door = static_cast<int>(number(argv[at], INT32_MAX));
        } else if (std::strcmp(option, "--same") == 0) {
            require_same(argv[at]);
        } else if (std::strcmp(option, "--mounted") == 0) {
            require_mounted(argv[at]);
        } else if (!confining) {
            misuse("there is an unknown option");
        } else if (std::strncmp(option, "--rlimit-", 9) == 0) {
            number(argv[at]);
        } else if (std::strcmp(option, "--seccomp") == 0) {
            number(argv[at], INT32_MAX);
        }
    }
    const bool commanded = at + 1 < argc;
    if (init < 0 && commanded == (relay[0] >= 0)) misuse("there is no command, or one too many");
    char** command = argv + at + 1;
    const bool log = ipybox::launcher::has(argv + 1, at - 1, "--log");
    const bool no_exec = ipybox::launcher::has(argv + 1, at - 1, "--no-exec");
    if (no_exec && init >= 0 && commanded) misuse("--no-exec: what --init starts would not be");
    if (host >= 0) {
        if (relay[0] >= 0 || commanded != (init < 0) || (init < 0) != (door < 0))
            misuse("--ask-programs: needs a command, or --init with --programs-door");
        if (init < 0) return room_main({host, argv + 1, at - 1, command, log}, forwarder);
        return entered_room_main({host, argv + 1, at - 1, nullptr, log}, init, door, forwarder);
    }

    ipybox::launcher::Problem problem;
    require(ipybox::launcher::take_rights(argv + 1, at - 1, problem), problem);
    // Before the limits: they are the command's, but whatever else confines it confines this too.
    if (!forwarder.start(no_exec)) fail("cannot start the network forwarder", "");
    require(ipybox::launcher::set_limits(argv + 1, at - 1, problem), problem);

    if (init >= 0) {
        if (no_exec) require(ipybox::launcher::refuse_programs(log, problem), problem);
        return init_main(init, commanded ? command : nullptr);
    }
    ::syscall(SYS_close_range, 3u, ~0u, 4u /* CLOSE_RANGE_CLOEXEC */);
    if (relay[0] >= 0) return relay_main(relay[0], relay[1], no_exec);
    if (no_exec)
        require(ipybox::launcher::become_last_program(command[0], command, environ, log, problem),
                problem);
    else
        ::execv(command[0], command);
    const int code = errno == ENOENT ? 127 : 126;
    std::fprintf(stderr, "ipybox-launcher: cannot start %s: %s\n", command[0],
                 std::strerror(errno));
    return code;
}
