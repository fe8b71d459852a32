#include "init.hpp"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "descendants.hpp"
#include "descriptors.hpp"

namespace {

int fail(const char* what) {
    fprintf(stderr, "ipybox-launcher: %s: %s\n", what, strerror(errno));
    return 126;
}

bool send_handle(int socket) {
    const int self = static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0));
    if (self < 0) return false;
    const bool sent = ipybox::launcher::send_descriptors(socket, 'r', &self, 1);
    close(self);
    return sent;
}

}  // namespace

int init_main(int socket, char** command) {
    fcntl(socket, F_SETFD, FD_CLOEXEC);
    if (command != nullptr) {
        const pid_t started = fork();
        if (started < 0) return fail("fork");
        if (started == 0) {
            setsid();
            // Only 3 is for it, of what is not a standard stream.
            syscall(SYS_close_range, 4u, ~0u, 0u);
            execv(command[0], command);
            fprintf(stderr, "ipybox-launcher: cannot start %s: %s\n", command[0], strerror(errno));
            _exit(127);
        }
    }
    const int ended = watch_children();
    if (ended < 0) return fail("signalfd");
    if (!send_handle(socket)) return fail("cannot send a handle of the sandbox");
    // What the command got is its own, and the ends of it must be seen by those who use them.
    close(0);
    close(1);
    ipybox::launcher::close_all_but(3, socket, ended);
    pollfd waited[2] = {{socket, POLLIN, 0}, {ended, POLLIN, 0}};
    for (;;) {
        while (waitpid(-1, nullptr, WNOHANG) > 0) {
        }
        if (poll(waited, 2, -1) < 0 && errno != EINTR) return fail("poll");
        signalfd_siginfo seen;
        while (read(ended, &seen, sizeof seen) > 0) {
        }
        char byte = 0;
        if (waited[0].revents != 0) {
            const ssize_t count = recv(socket, &byte, 1, MSG_DONTWAIT);
            if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)) return 0;
        }
    }
}
