#include "guard.hpp"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
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

}  // namespace

int guard_main(int argc, char** argv) {
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
    prctl(PR_SET_PDEATHSIG, SIGTERM, 0, 0, 0);
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    leave_own_file();
    const pid_t guard = getpid();
    const pid_t command = fork();
    if (command == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
        if (getppid() != guard) _exit(127);
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
