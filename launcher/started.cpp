#include "started.hpp"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "programs.hpp"

namespace ipybox::launcher {
namespace {

constexpr int last_signal = 64;

bool is_set(uint64_t signals, int number) { return ((signals >> (number - 1)) & 1) != 0; }

void set_signals(const Head& head) {
    sigset_t blocked;
    sigemptyset(&blocked);
    for (int number = 1; number <= last_signal; ++number) {
        if (is_set(head.blocked, number)) sigaddset(&blocked, number);
        struct sigaction action = {};
        action.sa_handler = is_set(head.ignored, number) ? SIG_IGN : SIG_DFL;
        sigaction(number, &action, nullptr);  // of some it cannot be changed
    }
    sigprocmask(SIG_SETMASK, &blocked, nullptr);
}

// False with errno. Ours are at least as strict.
bool set_limits(const Request& request) {
    for (uint32_t i = 0; i < request.head.limits; ++i) {
        const LimitWanted& wanted = request.limits[i];
        if (wanted.resource >= RLIM_NLIMITS || wanted.resource == RLIMIT_CORE) continue;
        const rlimit limit = {wanted.soft, wanted.hard};
        if (setrlimit(static_cast<__rlimit_resource_t>(wanted.resource), &limit) != 0) return false;
    }
    return true;
}

// Gives the program its descriptors and closes all others when it is executed. False with errno.
bool move_descriptors(const Request& request, const Target& target, int& executed, int& told) {
    const uint32_t count = request.head.descriptors;
    int high = count > 0 ? static_cast<int>(request.numbers[count - 1]) + 1 : 3;
    if (high < static_cast<int>(target.copy_number) + 1)
        high = static_cast<int>(target.copy_number) + 1;
    // They may need more than the program will be allowed.
    rlimit open_files{};
    getrlimit(RLIMIT_NOFILE, &open_files);
    open_files.rlim_cur = open_files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &open_files);
    int moved[Request::most_descriptors];
    for (uint32_t i = 0; i < count; ++i)
        if ((moved[i] = fcntl(request.descriptors[i], F_DUPFD_CLOEXEC, high)) < 0) return false;
    told = fcntl(told, F_DUPFD_CLOEXEC, high);
    executed = target.copy >= 0 ? fcntl(target.copy, F_DUPFD_CLOEXEC, high) : -1;
    const int directory = fcntl(request.directory, F_DUPFD_CLOEXEC, high);
    if (told < 0 || directory < 0 || (target.copy >= 0 && executed < 0)) return false;
    if (fchdir(directory) != 0) return false;
    syscall(SYS_close_range, 0u, static_cast<unsigned>(high - 1), 0u);
    syscall(SYS_close_range, static_cast<unsigned>(high), ~0u, 4u /* CLOSE_RANGE_CLOEXEC */);
    for (uint32_t i = 0; i < count; ++i)
        if (dup2(moved[i], static_cast<int>(request.numbers[i])) < 0) return false;
    return !(target.script && target.copy >= 0) ||
           dup2(executed, static_cast<int>(target.copy_number)) >= 0;
}

void take_terminal(const Request& request) {
    for (uint32_t i = 0; i < request.head.descriptors && request.numbers[i] < 3; ++i)
        if (isatty(static_cast<int>(request.numbers[i]))) {
            ioctl(static_cast<int>(request.numbers[i]), TIOCSCTTY, 0);
            return;
        }
}

// In the child. Returns only when it fails, with errno.
void become(const Broker& broker, Request& request, const Target& target, int& told) {
    setsid();
    // It can end its parent, which is among programs, and ends itself by that.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    umask(request.head.umask & 0777);
    int executed = -1;
    if (!move_descriptors(request, target, executed, told)) return;
    if (request.head.terminal != 0) take_terminal(request);
    if (!set_limits(request)) return;
    set_signals(request.head);
    if (broker.host < 0) {
        Problem problem;
        // Not by the interpreter's name, which may lead through links that code can change.
        become_last_program(target.path, target.argv, request.variables, broker.log, problem);
    } else if (target.script) {
        execve(target.interpreter, target.argv, request.variables);
    } else if (executed >= 0) {
        syscall(SYS_execveat, executed, "", target.argv, request.variables,
                0x1000 /* EMPTY_PATH */);
    } else {
        execve(target.path, target.argv, request.variables);
    }
}

// Who sends a signal may mean one process or its group; for some, only the latter makes sense.
void pass_signal(pid_t pid, unsigned char byte) {
    const int number = byte & 0x7f;
    if (number < 1 || number > last_signal) return;
    kill((byte & 0x80) != 0 ? -pid : pid, number);
}

}  // namespace

bool tell(int socket, const void* data, unsigned long size) {
    const char* bytes = static_cast<const char*>(data);
    while (size > 0) {
        const ssize_t count = send(socket, bytes, size, MSG_NOSIGNAL);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) return false;
        bytes += count;
        size -= static_cast<unsigned long>(count);
    }
    return true;
}

void tell(int socket, const Refusal& refusal) {
    char message[5 + sizeof refusal.reason] = "E";
    const int32_t error = refusal.error;
    memcpy(message + 1, &error, sizeof error);
    const size_t size = strnlen(refusal.reason, sizeof refusal.reason);
    memcpy(message + 5, refusal.reason, size);
    tell(socket, message, 5 + size);
}

bool start(const Broker& broker, Request& request, const Target& target, pid_t& pid,
           Refusal& refusal) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return refuse(refusal, errno, "");
    pid = fork();
    if (pid < 0) return refuse(refusal, errno, "");
    if (pid == 0) {
        int told = ends[1];
        become(broker, request, target, told);
        const int32_t error = errno;
        const ssize_t ignored = write(told, &error, sizeof error);
        _exit(ignored == sizeof error ? 127 : 126);
    }
    close(ends[1]);
    int32_t error = 0;
    ssize_t count = 0;
    do count = read(ends[0], &error, sizeof error);
    while (count < 0 && errno == EINTR);
    close(ends[0]);
    if (count == 0) return true;
    while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
    }
    return refuse(refusal, count == sizeof error ? error : EIO, "");
}

void accompany(int link, int waited, pid_t pid) {
    pollfd events[2] = {{link, POLLIN, 0}, {waited, POLLIN, 0}};
    for (;;) {
        int status = 0;
        if (waitpid(pid, &status, WNOHANG) == pid) {
            char message[5] = {'X'};
            const int32_t value = status;
            memcpy(message + 1, &value, sizeof value);
            tell(link, message, sizeof message);
            return;
        }
        if (poll(events, 2, -1) < 0 && errno != EINTR) break;
        signalfd_siginfo seen;
        while (read(waited, &seen, sizeof seen) > 0) {
        }
        if (events[0].revents == 0) continue;
        unsigned char byte = 0;
        const ssize_t count = recv(link, &byte, 1, MSG_DONTWAIT);
        if (count == 1) pass_signal(pid, byte);
        if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)) break;
    }
    kill(-pid, SIGKILL);
    kill(pid, SIGKILL);
    while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
    }
}

}  // namespace ipybox::launcher
