#include "descendants.hpp"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

bool kill_children() {
    char name[64];
    snprintf(name, sizeof name, "/proc/self/task/%d/children", static_cast<int>(getpid()));
    const int file = open(name, O_RDONLY | O_CLOEXEC);
    if (file < 0) return false;
    // Only part of a number may lie at the buffer's end.
    long pid = 0;
    char buffer[4096];
    for (;;) {
        const ssize_t count = read(file, buffer, sizeof buffer);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) break;
        for (ssize_t i = 0; i < count; ++i) {
            if (buffer[i] >= '0' && buffer[i] <= '9') {
                pid = 10 * pid + (buffer[i] - '0');
                continue;
            }
            // Ours until we wait for it, so the number means nobody else.
            if (pid > 1) kill(static_cast<pid_t>(pid), SIGKILL);
            pid = 0;
        }
    }
    close(file);
    return true;
}

void kill_all() {
    while (kill_children()) {
        if (waitpid(-1, nullptr, 0) < 0 && errno != EINTR) return;
    }
}

int watch_children() {
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child, nullptr);
    return signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
}

void ignore_signals() {
    for (int number = 1; number <= 64; ++number)
        if (number != SIGCHLD) signal(number, SIG_IGN);  // of some it cannot be changed
}

int exit_code(int status) {
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
