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

#include <initializer_list>

#include "broker.hpp"
#include "confine.hpp"
#include "descendants.hpp"
#include "descriptors.hpp"
#include "init.hpp"
#include "programs.hpp"

namespace {

using ipybox::launcher::close_all_but;
using ipybox::launcher::Problem;

struct Doors {
    int programs[2], workers[2];  // the kernel's end, ours
    int init = -1;                // where a handle is sent to, instead of starting a kernel
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

[[noreturn]] void serve_workers(int door, const char* interpreter, bool log) {
    setsid();
    leave_streams();
    ipybox::launcher::Broker broker;
    broker.door = door;
    broker.interpreter = interpreter;
    broker.log = log;
    close_all_but(3, door, door);
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
    prctl(PR_SET_DUMPABLE, 0);  // before there is anybody who could look
    if (doors.init >= 0) {
        ignore_signals();
        return init_main(doors.init, nullptr);
    }
    const pid_t kernel = fork();
    if (kernel < 0) return fail("fork");
    if (kernel == 0) _exit(become_kernel(room, doors));
    ignore_signals();
    const pid_t workers = fork();
    if (workers == 0) serve_workers(doors.workers[1], room.command[0], room.log);
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

// The first process of the programs' namespace: what they leave behind is collected. Says so over
// `ready` when their /proc is there.
int programs_main(const Room& room, int ready) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_DUMPABLE, 0);
    prctl(PR_SET_NAME, "ipybox-programs");
    ignore_signals();
    setsid();
    if (mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) != 0)
        return fail("a /proc of the programs' own");
    Problem problem;
    errno = 0;
    if (!confine(room, problem)) return fail(problem);
    leave_streams();
    signal(SIGCHLD, SIG_IGN);  // Linux collects them: most of the time there is none to wait for
    if (write(ready, "r", 1) != 1) return 126;
    close_all_but(3, 0, 0);
    for (;;) pause();
}

// Where no program sees it. An exit code.
int forward(const Room& room, const Doors& doors, Forwarder& forwarder) {
    const pid_t helper = fork();
    if (helper < 0) return fail("fork");
    if (helper == 0) {
        for (const int file : {room.host, doors.programs[1], doors.init}) close(file);
        Problem problem;
        errno = 0;
        if (!confine(room, problem)) _exit(fail(problem));
        _exit(forwarder.start(true) ? 0 : fail("cannot start the network forwarder"));
    }
    int status = 0;
    while (waitpid(helper, &status, 0) < 0)
        if (errno != EINTR) return 126;
    return exit_code(status);
}

// What we fork from now on is where programs are: they see neither us nor who made the sandbox, and
// the kernel's first process, whose end is the session's, least of all.
bool leave_for_programs(const Room& room) {
    int ready[2];
    if (unshare(CLONE_NEWPID | CLONE_NEWNS) != 0 ||
        mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        pipe2(ready, O_CLOEXEC) != 0)
        return false;
    const pid_t first = fork();
    if (first == 0) _exit(programs_main(room, ready[1]));
    close(ready[1]);
    char byte = 0;
    ssize_t count = 0;
    do count = read(ready[0], &byte, 1);
    while (count < 0 && errno == EINTR);
    close(ready[0]);
    if (count == 0) errno = ECHILD;
    return first > 0 && count == 1;
}

bool make_door(int (&ends)[2]) {
    return socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0;
}

// Becomes the broker.
int serve_programs(const Room& room, const Doors& doors, Forwarder& forwarder) {
    fcntl(room.host, F_SETFD, FD_CLOEXEC);
    const pid_t between = fork();
    if (between < 0) return fail("fork");
    if (between == 0) {
        close(room.host);  // nobody in there asks
        close(doors.programs[1]);
        _exit(between_main(room, doors));
    }
    if (const int code = forward(room, doors, forwarder); code != 0) return code;
    if (!leave_for_programs(room)) return fail("a pid namespace of the programs' own");
    Problem problem;
    errno = 0;
    if (!confine(room, problem)) return fail(problem);
    ipybox::launcher::Broker broker;
    broker.door = doors.programs[1];
    broker.host = room.host;
    broker.log = room.log;
    broker.ends_with = between;
    leave_streams();
    close_all_but(3, broker.door, broker.host);
    broker_main(broker);
}

}  // namespace

int room_main(const Room& room, Forwarder& forwarder) {
    Doors doors;
    if (!make_door(doors.programs) || !make_door(doors.workers)) return fail("doors");
    return serve_programs(room, doors, forwarder);
}

int entered_room_main(const Room& room, int init, int door, Forwarder& forwarder) {
    Doors doors = {{-1, door}, {-1, -1}, init};
    return serve_programs(room, doors, forwarder);
}

int workers_main(int door, int ready, const char* interpreter, const char* log) {
    prctl(PR_SET_DUMPABLE, 0);
    if (write(ready, "r", 1) != 1) return fail("nobody waits for this");
    serve_workers(door, interpreter, strcmp(log, "log") == 0);
}
