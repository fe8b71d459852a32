#include "broker.hpp"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "descendants.hpp"
#include "descriptors.hpp"
#include "started.hpp"

namespace ipybox::launcher {
namespace {

constexpr int most_programs = 1024;

// The end of a socket that came over the door. False: nobody is behind the door.
bool receive_link(int door, int& link) {
    link = -1;
    return receive_descriptors(door, MSG_DONTWAIT, &link, 1).bytes != 0;
}

// Waits for the host's word, or until nobody wants it any more. False: refusal says what it is.
bool hear_answer(int answer, int link, Refusal& refusal) {
    char text[sizeof refusal.reason] = "";
    size_t size = 0;
    pollfd events[2] = {{answer, POLLIN, 0}, {link, POLLIN | POLLRDHUP, 0}};
    for (;;) {
        if (poll(events, 2, -1) < 0 && errno != EINTR) return refuse(refusal, EPERM, "poll");
        // A byte from there would be a signal, for which it is too early.
        if (events[1].revents != 0) return refuse(refusal, 0, "");
        if (events[0].revents == 0) continue;
        const ssize_t count = recv(answer, text + size, sizeof text - 1 - size, MSG_DONTWAIT);
        if (count < 0 && (errno == EAGAIN || errno == EINTR)) continue;
        if (count <= 0) break;
        size += static_cast<size_t>(count);
        if (size == sizeof text - 1) break;
    }
    text[size] = '\0';
    // One word, and nothing but that one, is a yes.
    if (size == 1 && text[0] == 'y') return true;
    return refuse(refusal, EPERM,
                  size > 1 && text[0] == 'n' ? text + 1 : "nobody answered whether it may start");
}

bool judge(const Broker& broker, const Request& request, Target& target, int link, int& answer,
           Refusal& refusal) {
    if (broker.host < 0)
        return target.is(broker.interpreter) ||
               refuse(refusal, EPERM, "only the kernel's own interpreter is started here");
    return target.ask(request, broker.host, environ, answer, refusal) &&
           hear_answer(answer, link, refusal);
}

// In a process of its own, the parent of the program.
void serve(const Broker& broker, int link, int waited) {
    static Request request;
    static Target target;
    static Refusal refusal;
    int answer = -1;
    pid_t pid = 0;
    const bool started = request.receive(link, refusal) && target.look(request, refusal) &&
                         judge(broker, request, target, link, answer, refusal) &&
                         start(broker, request, target, pid, refusal);
    if (!started) {
        if (answer >= 0) tell(answer, refusal);
        if (refusal.error != 0) tell(link, refusal);
        return;
    }
    if (answer >= 0) tell(answer, "S", 1);
    // What it got is its own, and the ends of it must be seen by those who use them.
    close_all_but(0, link, waited);
    tell(link, "S", 1);
    accompany(link, waited, pid);
}

void collect(const Broker& broker, int& programs) {
    int status = 0;
    for (pid_t pid = 0; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
        if (pid == broker.ends_with) _exit(exit_code(status));
        --programs;
    }
}

void serve_apart(const Broker& broker, int link, int waited, int& programs) {
    const pid_t child = programs < most_programs ? fork() : -1;
    if (child == 0) {
        setsid();
        close(broker.door);
        close(waited);
        const int own = watch_children();
        if (own >= 0) serve(broker, link, own);
        _exit(0);
    }
    if (child > 0) ++programs;
    close(link);
}

}  // namespace

void broker_main(const Broker& broker) {
    ignore_signals();           // a program may signal its parent
    prctl(PR_SET_DUMPABLE, 0);  // its memory and descriptors are nobody's
    prctl(PR_SET_NAME, "ipybox-programs");
    const int waited = watch_children();
    if (waited < 0) _exit(126);
    int programs = 0;
    pollfd events[2] = {{waited, POLLIN, 0}, {broker.door, POLLIN, 0}};
    for (;;) {
        collect(broker, programs);
        if (poll(events, 2, -1) < 0 && errno != EINTR) _exit(126);
        signalfd_siginfo seen;
        while (read(waited, &seen, sizeof seen) > 0) {
        }
        if (events[1].revents == 0) continue;
        int link = -1;
        if (!receive_link(broker.door, link)) {
            if (broker.ends_with == 0) _exit(0);
            events[1].fd = -1;
        }
        if (link >= 0) serve_apart(broker, link, waited, programs);
    }
}

}  // namespace ipybox::launcher
