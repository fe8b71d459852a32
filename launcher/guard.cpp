#include "guard.hpp"

#include <errno.h>
#include <fcntl.h>
#include <linux/nsfs.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "descendants.hpp"
#include "scratch.hpp"

namespace {

// Where we were started from an open file: the command has no use for it.
void leave_own_file() {
    int own = -1;
    const auto* name = reinterpret_cast<const char*>(getauxval(AT_EXECFN));
    if (name != nullptr && sscanf(name, "/proc/self/fd/%d", &own) == 1 && own > 2) close(own);
}

// Ends us as the command has ended: by the same signal, which whoever started us can tell from an
// exit.
int end_as(int status) {
    if (WIFSIGNALED(status)) {
        const int number = WTERMSIG(status);
        prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);  // the core that there is to see is the command's
        signal(number, SIG_DFL);
        sigset_t none;
        sigemptyset(&none);
        raise(number);
        sigprocmask(SIG_SETMASK, &none, nullptr);
    }
    return exit_code(status);
}

bool is_same(int one, int other) {
    struct stat first, second;
    return fstat(one, &first) == 0 && fstat(other, &second) == 0 && first.st_ino == second.st_ino;
}

// What we start from now on is in the pen's pid namespace. That belongs to the outermost of the
// pen's user namespaces (bwrap makes one more within it), and can be entered from there only.
bool enter_pen(int pid_namespace) {
    const int owner = ioctl(pid_namespace, NS_GET_USERNS);
    if (owner < 0 || setns(owner, CLONE_NEWUSER) != 0 || setns(pid_namespace, CLONE_NEWPID) != 0)
        return false;
    close(owner);
    // With other rights comes another owner of what /proc says of us.
    return prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) == 0;
}

// Those whom the pen's zygote enters lie within its own user namespace. bwrap looks for its child
// in /proc by the number that this pid namespace gives it.
bool settle_in_pen(int user_namespace) {
    if (unshare(CLONE_NEWNS) != 0 ||
        mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) != 0)
        return false;
    const int here = open("/proc/self/ns/user", O_RDONLY | O_CLOEXEC);
    const bool inside = here >= 0 && is_same(here, user_namespace);
    if (here < 0 || (!inside && setns(user_namespace, CLONE_NEWUSER) != 0)) return false;
    close(here);
    close(user_namespace);
    return prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) == 0;
}

}  // namespace

int guard_main(int argc, char** argv) {
    const bool penned = argc > 4 && strcmp(argv[1], "--pen") == 0;
    const int user_namespace = penned ? atoi(argv[2]) : -1;
    const int pid_namespace = penned ? atoi(argv[3]) : -1;
    if (penned) {
        argc -= 3;
        argv += 3;
    }
    if (argc < 2) {
        fputs("ipybox guard: no command\n", stderr);
        return 125;
    }
    sigset_t all, before;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before);
    // Until here the parent's end kills us, as whoever started us has arranged; from here on it
    // is a signal that can be handled.
    const pid_t parent = getppid();
    // Before the next line, because it forgets what that arranges.
    if (penned && !enter_pen(pid_namespace)) {
        fprintf(stderr, "ipybox guard: cannot enter the pen: %s\n", strerror(errno));
        return 125;
    }
    prctl(PR_SET_PDEATHSIG, SIGTERM, 0, 0, 0);
    if (penned && getppid() != parent) return 125;
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    leave_own_file();
    // Not by its number, which in a pen means nothing.
    const int guard = static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0));
    const pid_t command = fork();
    if (command == 0) {
        if (penned && !settle_in_pen(user_namespace)) {
            dprintf(2, "ipybox guard: cannot settle in the pen: %s\n", strerror(errno));
            _exit(125);
        }
        close(pid_namespace);
        prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
        pollfd ended = {guard, POLLIN, 0};
        if (guard < 0 || poll(&ended, 1, 0) != 0) _exit(127);
        setpgid(0, 0);
        sigprocmask(SIG_SETMASK, &before, nullptr);
        // Ourselves again, without another exec.
        if (strcmp(argv[1], "scratch") == 0) _exit(scratch_main(argc - 1, argv + 1));
        execv(argv[1], argv + 1);
        dprintf(2, "ipybox guard: cannot start %s: %s\n", argv[1], strerror(errno));
        _exit(127);
    }
    if (command < 0) {
        fprintf(stderr, "ipybox guard: fork: %s\n", strerror(errno));
        return 125;
    }
    // A group without us, so that a signal for all of it reaches each once. Both sides, as either
    // may be first.
    setpgid(command, command);
    // What was handed over is the command's, and the ends of these streams must be seen by those
    // who use them.
    syscall(SYS_close_range, 3u, ~0u, 0u);
    const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null >= 0) {
        dup2(null, 0);
        dup2(null, 1);
    }
    for (;;) {
        siginfo_t cause;
        const int number = sigwaitinfo(&all, &cause);
        if (getppid() != parent) {
            // Time for the command to remove its files.
            kill(command, SIGTERM);
            const timespec patience = {1, 0};
            sigset_t child;
            sigemptyset(&child);
            sigaddset(&child, SIGCHLD);
            sigtimedwait(&child, nullptr, &patience);
            kill_all();
            return 128 + SIGTERM;
        }
        if (number == SIGQUIT) {
            kill_all();
            return 128 + SIGKILL;
        }
        if (number == SIGCHLD) {
            for (int status = 0;;) {
                const pid_t ended = waitpid(-1, &status, WNOHANG);
                if (ended <= 0) break;
                if (ended != command) continue;
                kill_all();
                return end_as(status);
            }
        } else if (number > 0) {
            const bool group =
                cause.si_code == SI_QUEUE && cause.si_value.sival_int == guard_whole_group;
            kill(group ? -command : command, number);
        }
    }
}
