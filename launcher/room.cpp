#include "room.hpp"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "broker.hpp"
#include "confine.hpp"
#include "descendants.hpp"
#include "descriptors.hpp"
#include "programs.hpp"

namespace {

using ipybox::launcher::close_all_but;
using ipybox::launcher::Problem;

struct Doors {
    int programs[2], workers[2];  // the kernel's end, ours
};

int fail(const char* what, const char* detail = "") {
    fprintf(stderr, "ipybox-launcher: --ask-programs: %s%s%s: %s\n", what, *detail ? " " : "",
            detail, errno != 0 ? strerror(errno) : "wrong words");
    return 126;
}

int fail(const Problem& problem) {
    if (problem.misuse) errno = 0;
    return fail(problem.what, problem.detail);
}

// What all do to themselves once they need no capability any more.
bool confine(const Room& room, Problem& problem) {
    return ipybox::launcher::drop_capabilities(problem) &&
           ipybox::launcher::take_rights(room.words, room.count, problem) &&
           ipybox::launcher::set_limits(room.words, room.count, problem);
}

// Its standard streams belong to the command: whoever reads them waits for their end.
void leave_streams() {
    const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int file = 0; file < 3 && nothing >= 0; ++file) dup2(nothing, file);
    if (nothing > 2) close(nothing);
}

int become_kernel(const Room& room, const Doors& doors) {
    syscall(SYS_close_range, 3u, ~0u, 4u /* CLOSE_RANGE_CLOEXEC */);
    // Above those that kernels have for something else.
    const int programs = fcntl(doors.programs[0], F_DUPFD, 64);
    const int workers = fcntl(doors.workers[0], F_DUPFD, 64);
    if (programs < 0 || workers < 0) return fail("the kernel's doors");
    char numbers[32];
    snprintf(numbers, sizeof numbers, "%d:%d", programs, workers);
    if (setenv("IPYBOX_PROGRAM_DOORS", numbers, 1) != 0) return fail("setenv");
    Problem problem;
    errno = 0;
    if (!ipybox::launcher::become_last_program(room.command[0], room.command, environ, room.log,
                                               problem))
        return fail(problem);
    const int code = errno == ENOENT ? 127 : 126;
    fail("cannot start", room.command[0]);
    return code;
}

[[noreturn]] void serve_workers(const Room& room, const Doors& doors) {
    setsid();
    leave_streams();
    ipybox::launcher::Broker broker;
    broker.door = doors.workers[1];
    broker.interpreter = room.command[0];
    broker.log = room.log;
    close_all_but(3, broker.door, broker.door);
    broker_main(broker);
}

// The first process of the inner namespace: the kernel is its first child, in its group.
int inner_main(const Room& room, const Doors& doors) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setsid();
    if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) != 0)
        return fail("a /proc of the kernel's own");
    Problem problem;
    errno = 0;
    if (!confine(room, problem)) return fail(problem);
    const pid_t kernel = fork();
    if (kernel < 0) return fail("fork");
    if (kernel == 0) _exit(become_kernel(room, doors));
    prctl(PR_SET_DUMPABLE, 0);
    ignore_signals();
    const pid_t workers = fork();
    if (workers == 0) serve_workers(room, doors);
    leave_streams();
    close_all_but(3, 0, 0);
    for (;;) {
        int status = 0;
        const pid_t ended = waitpid(-1, &status, 0);
        if (ended == kernel) return exit_code(status);
        if (ended < 0 && errno != EINTR) return 126;
    }
}

// Between the two: only its children are in the inner namespace.
int between_main(const Room& room, const Doors& doors) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (unshare(CLONE_NEWPID | CLONE_NEWNS) != 0)
        return fail("a pid namespace of the kernel's own");
    const pid_t inner = fork();
    if (inner < 0) return fail("fork");
    if (inner == 0) _exit(inner_main(room, doors));
    prctl(PR_SET_DUMPABLE, 0);
    Problem problem;
    errno = 0;
    if (!confine(room, problem)) return fail(problem);
    leave_streams();
    close_all_but(3, 0, 0);
    ignore_signals();
    int status = 0;
    while (waitpid(inner, &status, 0) < 0)
        if (errno != EINTR) return 126;
    return exit_code(status);
}

bool make_door(int (&ends)[2]) {
    return socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0;
}

}  // namespace

int room_main(const Room& room, Forwarder& forwarder) {
    Doors doors;
    if (!make_door(doors.programs) || !make_door(doors.workers)) return fail("doors");
    fcntl(room.host, F_SETFD, FD_CLOEXEC);
    const pid_t between = fork();
    if (between < 0) return fail("fork");
    if (between == 0) {
        close(room.host);  // nobody in there asks
        close(doors.programs[1]);
        _exit(between_main(room, doors));
    }
    Problem problem;
    errno = 0;
    if (!confine(room, problem)) return fail(problem);
    if (!forwarder.start(true)) return fail("cannot start the network forwarder");
    ipybox::launcher::Broker broker;
    broker.door = doors.programs[1];
    broker.host = room.host;
    broker.log = room.log;
    broker.ends_with = between;
    leave_streams();
    close_all_but(3, broker.door, broker.host);
    broker_main(broker);
}
