#include "forward.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <initializer_list>

#include "programs.hpp"

namespace {

constexpr int max_connections = 256;
constexpr std::size_t buffer_size = 64 * 1024;

// Bytes on their way from one socket to another.
struct Direction {
    int from, to;
    std::size_t start, end;  // what is in `buffer`
    bool ended;              // `from` has no more
    bool closed;             // and `to` knows
    char buffer[buffer_size];

    bool wants_input() const { return !ended && start == end; }
    bool wants_output() const { return start < end; }

    // False when the connection is broken.
    bool read() {
        const auto count = ::read(from, buffer, sizeof buffer);
        if (count < 0) return errno == EAGAIN || errno == EINTR;
        start = 0;
        end = static_cast<std::size_t>(count);
        ended = count == 0;
        return true;
    }
    bool write() {
        const auto count = ::send(to, buffer + start, end - start, MSG_NOSIGNAL);
        if (count < 0) return errno == EAGAIN || errno == EINTR;
        start += static_cast<std::size_t>(count);
        return true;
    }
    void pass_end() {
        if (!ended || closed || start < end) return;
        ::shutdown(to, SHUT_WR);
        closed = true;
    }
};

struct Connection {
    bool open;
    int inner, outer;
    Direction out, in;

    void close() {
        ::close(inner);
        ::close(outer);
        open = false;
    }
};

// All zeros: whoever forwards nothing has no page of it.
constinit Connection connections[max_connections]{};

int connect_to(const char* path) {
    const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (fd < 0 || std::strlen(path) >= sizeof address.sun_path) return -1;
    std::strcpy(address.sun_path, path);
    const auto* plain = reinterpret_cast<const sockaddr*>(&address);
    if (::connect(fd, plain, sizeof address) == 0) return fd;
    ::close(fd);
    return -1;
}

void accept_one(int listener, const char* path) {
    Connection* free = nullptr;
    for (auto& connection : connections)
        if (!connection.open) free = &connection;
    if (free == nullptr) return;  // waits in the backlog
    const int inner = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (inner < 0) return;
    const int outer = connect_to(path);
    if (outer < 0) {
        ::close(inner);
        return;
    }
    const int flags = 1;
    ::setsockopt(inner, IPPROTO_TCP, TCP_NODELAY, &flags, sizeof flags);
    ::ioctl(outer, FIONBIO, &flags);
    free->open = true;
    free->inner = inner;
    free->outer = outer;
    free->out.from = free->in.to = inner;
    free->out.to = free->in.from = outer;
    for (auto* way : {&free->out, &free->in}) {
        way->start = way->end = 0;
        way->ended = way->closed = false;
    }
}

// What the two directions want of a socket that one reads and the other writes. A socket of which
// nothing is wanted is left out: poll would report its end forever.
pollfd wanted(int socket, const Direction& reads, const Direction& writes) {
    const int events = (reads.wants_input() ? POLLIN : 0) | (writes.wants_output() ? POLLOUT : 0);
    return {events != 0 ? socket : -1, static_cast<short>(events), 0};
}

void serve(Connection& connection, short inner, short outer) {
    Direction &out = connection.out, &in = connection.in;
    bool good = true;
    constexpr short readable = POLLIN | POLLHUP | POLLERR;
    if ((inner & readable) != 0 && out.wants_input()) good = good && out.read();
    if ((outer & readable) != 0 && in.wants_input()) good = good && in.read();
    if (out.wants_output()) good = good && out.write();
    if (in.wants_output()) good = good && in.write();
    out.pass_end();
    in.pass_end();
    if (!good || (out.closed && in.closed)) connection.close();
}

}  // namespace

bool Forwarder::listen(std::uint16_t port, const char* path) {
    if (count_ == max_ports) {
        errno = ENOSPC;
        return false;
    }
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const auto* plain = reinterpret_cast<const sockaddr*>(&address);
    if (fd < 0 || ::bind(fd, plain, sizeof address) != 0 || ::listen(fd, 128) != 0) return false;
    ports_[count_++] = {fd, path};
    return true;
}

bool Forwarder::start(bool no_exec) {
    if (count_ == 0) return true;
    const pid_t child = ::fork();
    if (child != 0) {
        int status = 0;
        if (child > 0) ::waitpid(child, &status, 0);
        for (int i = 0; i < count_; ++i) ::close(ports_[i].socket);
        return child > 0 && status == 0;
    }
    ipybox::launcher::Problem problem;
    if (no_exec && !ipybox::launcher::refuse_programs(false, problem)) ::_exit(1);
    // A grandchild belongs to the sandbox's init: the command finds no child it did not make.
    const pid_t grandchild = ::fork();
    if (grandchild != 0) ::_exit(grandchild < 0);
    ::setsid();
    ::prctl(PR_SET_NAME, "ipybox-network");
    // What connects through here is the guest's own; its memory is not.
    ::prctl(PR_SET_DUMPABLE, 0);
    ::signal(SIGPIPE, SIG_IGN);
    // Standard streams belong to the command: whoever reads them waits for their end.
    for (int fd = 0; fd < 3; ++fd) ::close(fd);

    static pollfd polled[max_ports + 2 * max_connections];
    static Connection* owners[max_connections];
    for (;;) {
        nfds_t size = 0;
        for (int i = 0; i < count_; ++i) polled[size++] = {ports_[i].socket, POLLIN, 0};
        int busy = 0;
        for (auto& connection : connections) {
            if (!connection.open) continue;
            owners[busy++] = &connection;
            polled[size++] = wanted(connection.inner, connection.out, connection.in);
            polled[size++] = wanted(connection.outer, connection.in, connection.out);
        }
        // With every place taken, new connections wait for one to end.
        const nfds_t skipped = busy == max_connections ? static_cast<nfds_t>(count_) : 0;
        if (::poll(polled + skipped, size - skipped, -1) < 0 && errno != EINTR) ::_exit(1);
        for (int i = 0; i < busy; ++i) {
            const auto* events = polled + count_ + 2 * i;
            if (events[0].revents != 0 || events[1].revents != 0)
                serve(*owners[i], events[0].revents, events[1].revents);
        }
        if (skipped != 0) continue;
        for (int i = 0; i < count_; ++i)
            if (polled[i].revents != 0) accept_one(ports_[i].socket, ports_[i].path);
    }
}
