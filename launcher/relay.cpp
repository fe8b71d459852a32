#include "relay.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <ipybox/sandbox_kit/mux_frames.hpp>

#include "descendants.hpp"
#include "programs.hpp"

namespace {
using namespace ipybox::sandbox_kit;

[[noreturn]] void fail(const char* what, const char* detail = "", const char* why = "") {
    std::fprintf(stderr, "ipybox-relay: %s%s%s\n", what, detail, why);
    kill_children();
    std::_Exit(125);
}
[[noreturn]] void fail_errno(const char* what, const char* detail = "") {
    char why[128];
    std::snprintf(why, sizeof why, ": %s", std::strerror(errno));
    fail(what, detail, why);
}

template <class T>
T* allocate(T* old, std::size_t count) {
    auto* memory = static_cast<T*>(std::realloc(old, count * sizeof(T)));
    if (memory == nullptr) fail("out of memory");
    return memory;
}

// Bytes that wait; never more than the other side's credit allows.
class Buffer {
public:
    const unsigned char* data() const { return bytes_ + begin_; }
    std::size_t size() const { return end_ - begin_; }

    unsigned char* extend(std::size_t count) {
        if (capacity_ - end_ < count) {
            if (begin_ != 0) std::memmove(bytes_, data(), size());
            end_ -= begin_;
            begin_ = 0;
            if (capacity_ - end_ < count) {
                capacity_ = 2 * (end_ + count);
                bytes_ = allocate(bytes_, capacity_);
            }
        }
        end_ += count;
        return bytes_ + end_ - count;
    }
    void shorten(std::size_t count) { end_ -= count; }
    void consume(std::size_t count) {
        begin_ += count;
        if (begin_ == end_) begin_ = end_ = 0;
    }
    void release() {
        std::free(bytes_);
        bytes_ = nullptr;
        begin_ = end_ = capacity_ = 0;
    }

private:
    unsigned char* bytes_ = nullptr;
    std::size_t begin_ = 0, end_ = 0, capacity_ = 0;
};

struct Channel {
    bool guest_connects;
    std::uint16_t port;
    int listener;
    bool answered;  // the guest has listened once
    std::uint16_t last;
    unsigned open;
};

struct Connection {
    enum class State { unused, refused, connecting, open, broken };
    State state;
    int socket;
    std::uint8_t channel;
    std::uint16_t number;
    std::uint32_t credit;  // what the host takes
    std::uint32_t owed;    // passed on, not yet credited
    bool finished;         // we have sent close
    bool ended;            // the host has
    bool gone;             // and takes nothing any more
    Buffer waiting;        // for the guest
};

class Relay {
public:
    Relay(int input, int output, bool no_exec)
        : input_(input), output_(output), no_exec_(no_exec) {}
    // Reads what to run; returns only when there is a relay to run.
    void prepare();
    int run();

private:
    // Above this, connections are not read: the host is behind.
    static constexpr std::size_t enough = 4 * mux_max_data;
    static constexpr unsigned max_connections = mux_max_channels * mux_max_connections;

    void read_start();
    void check_confinement() const;
    void start_command();
    void close_ourselves();
    void enter();
    void send(MuxHeader header);
    void read_frames();
    void handle(MuxHeader header, const unsigned char* payload);
    Connection* find(MuxHeader header);
    Connection& add(std::uint8_t channel, std::uint16_t number);
    void accept_from(std::uint8_t number);
    void connect_to_guest(Connection& connection);
    void connected(Connection& connection, int error);
    void take(Connection& connection);
    void pass_on(Connection& connection);
    void give_up(Connection& connection);
    void make_room(unsigned channel);
    void finish(Connection& connection);
    void settle(Connection& connection);
    void collect();
    bool done();
    void serve(short events, Connection& connection);

    int input_, output_;  // to and from the host
    bool no_exec_;
    char* start_ = nullptr;  // the start frame: the records point into it
    char** argv_ = nullptr;
    char** env_ = nullptr;
    unsigned arguments_ = 0, variables_ = 0;
    const char* directory_ = "/";
    bool pipes_ = false;
    bool no_unix_sockets_ = false;
    Channel channels_[mux_max_channels] = {};
    unsigned channel_count_ = 0;
    Connection* connections_ = nullptr;
    unsigned used_ = 0;  // entries of connections_ that were ever in use
    Buffer in_, out_;
    pid_t command_ = -1;
    int status_ = 0;
    bool over_ = false;
};

sockaddr_in loopback(std::uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

void no_delay(int socket) {
    const int on = 1;
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

void read_fully(int from, void* to, std::size_t size) {
    for (auto* at = static_cast<char*>(to); size > 0;) {
        const ssize_t count = read(from, at, size);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) fail("the host has gone before it said what to run");
        at += count;
        size -= static_cast<std::size_t>(count);
    }
}

void Relay::read_start() {
    // Not a byte more than the frame: what follows may be the command's input.
    unsigned char raw[mux_header_size];
    read_fully(input_, raw, sizeof raw);
    const auto header = read_header(raw);
    if (header.kind != MuxFrame::start || header.value == 0 || header.value > mux_max_start)
        fail("the host did not say what to run");
    start_ = allocate<char>(nullptr, header.value);
    read_fully(input_, start_, header.value);
    if (start_[header.value - 1] != '\0') fail("the start frame is not whole");
    std::size_t records = 0;
    for (std::size_t i = 0; i < header.value; ++i) records += start_[i] == '\0';
    argv_ = allocate<char*>(nullptr, records + 1);
    env_ = allocate<char*>(nullptr, records + 1);
    for (char* at = start_; at < start_ + header.value; at += std::strlen(at) + 1) {
        char* text = at + 1;
        switch (*at) {
            case 'a':
                argv_[arguments_++] = text;
                break;
            case 'e':
                env_[variables_++] = text;
                break;
            case 'k':
                if (char* value = std::getenv(text)) {
                    // getenv() points behind the name in the environment itself.
                    env_[variables_++] = value - std::strlen(text) - 1;
                }
                break;
            case 'd':
                directory_ = text;
                break;
            case 'g':
            case 'h': {
                if (channel_count_ == mux_max_channels) fail("too many channels");
                auto& channel = channels_[channel_count_++];
                channel.guest_connects = *at == 'g';
                channel.port = static_cast<std::uint16_t>(std::atoi(text));
                channel.listener = -1;
                break;
            }
            case 'x': {
                const int file = open(text, O_RDONLY | O_CLOEXEC);
                if (file >= 0) fail("the sandbox does not confine: it can read ", text);
                break;
            }
            case 'u':
                no_unix_sockets_ = true;
                break;
            case 'p':
                pipes_ = true;
                break;
            default:
                fail("the start frame has an unknown record");
        }
    }
    argv_[arguments_] = env_[variables_] = nullptr;
    if (arguments_ == 0) fail("there is no command");
}

void Relay::check_confinement() const {
    if (!no_unix_sockets_) return;
    const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (socket >= 0) fail("the sandbox does not confine: Unix sockets can be made in it");
}

void make_directories(const char* path) {
    char part[4096];
    for (std::size_t i = 0; i + 1 < sizeof part; ++i) {
        if (i > 0 && (path[i] == '/' || path[i] == '\0')) {
            part[i] = '\0';
            mkdir(part, 0700);
        }
        if (path[i] == '\0') break;
        part[i] = path[i];
    }
}

// Becomes the command; only on failure it returns to whoever forked us.
void Relay::enter() {
    // A home that is scratch space of the sandbox has to be made in it.
    for (char** variable = env_; *variable != nullptr; ++variable)
        if (std::strncmp(*variable, "HOME=/", 6) == 0) make_directories(*variable + 5);
    if (chdir(directory_) != 0) fail_errno("cannot enter ", directory_);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    for (int number = 1; number < NSIG; ++number) signal(number, SIG_DFL);
    syscall(SYS_close_range, 3u, ~0u, 4u /* CLOSE_RANGE_CLOEXEC */);
    execve(argv_[0], argv_, env_);
    const int code = errno == ENOENT ? 127 : 126;
    std::fprintf(stderr, "ipybox-relay: cannot start %s: %s\n", argv_[0], std::strerror(errno));
    std::_Exit(code);
}

void Relay::prepare() {
    read_start();
    check_confinement();
    if (pipes_) enter();
    for (unsigned i = 0; i < channel_count_; ++i) {
        auto& channel = channels_[i];
        if (!channel.guest_connects) continue;
        channel.listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        const auto address = loopback(channel.port);
        if (channel.listener < 0 ||
            bind(channel.listener, reinterpret_cast<const sockaddr*>(&address), sizeof address) !=
                0 ||
            listen(channel.listener, 4096) != 0)
            fail_errno("cannot listen on 127.0.0.1");
    }
    connections_ = allocate<Connection>(nullptr, max_connections);
}

void Relay::start_command() {
    const pid_t relay = getpid();
    int ready[2];
    if (pipe2(ready, O_CLOEXEC) != 0) fail_errno("cannot make a pipe");
    command_ = fork();
    if (command_ < 0) fail_errno("cannot fork");
    if (command_ > 0) {
        close_ourselves();
        if (write(ready[1], "", 1) != 1) fail_errno("the command is gone");
        close(ready[0]);
        close(ready[1]);
        return;
    }
    close(ready[1]);
    char byte = 0;
    if (read(ready[0], &byte, 1) != 1) std::_Exit(125);
    setsid();
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    if (getppid() != relay) std::_Exit(125);
    if (input_ == 0) {
        const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
        if (null < 0 || dup2(null, 0) < 0 || dup2(2, 1) < 0)
            fail_errno("cannot set up the streams");
    }
    enter();
}

// The command is somebody else's program, we are not.
void Relay::close_ourselves() {
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    ipybox::launcher::Problem problem;
    if (no_exec_ && !ipybox::launcher::refuse_programs(false, problem))
        fail_errno(problem.what, problem.detail);
}

void Relay::send(MuxHeader header) { write_header(out_.extend(mux_header_size), header); }

Connection* Relay::find(MuxHeader header) {
    for (unsigned i = 0; i < used_; ++i) {
        auto& connection = connections_[i];
        if (connection.state != Connection::State::unused && connection.channel == header.channel &&
            connection.number == header.connection)
            return &connection;
    }
    return nullptr;
}

Connection& Relay::add(std::uint8_t channel, std::uint16_t number) {
    unsigned place = 0;
    while (place < used_ && connections_[place].state != Connection::State::unused) ++place;
    if (place == used_) ++used_;
    auto& connection = connections_[place];
    connection = Connection{};
    connection.socket = -1;
    connection.channel = channel;
    connection.number = number;
    connection.credit = mux_window;
    ++channels_[channel].open;
    return connection;
}

void Relay::handle(MuxHeader header, const unsigned char* payload) {
    if (header.kind == MuxFrame::signal) {
        const pid_t whom = header.connection == 1 ? -command_ : command_;
        if (command_ > 0 && !over_) kill(whom, static_cast<int>(header.value));
        return;
    }
    if (header.channel >= channel_count_) fail("the host names an unknown channel");
    auto* connection = find(header);
    if (header.kind == MuxFrame::open) {
        const auto& channel = channels_[header.channel];
        if (channel.guest_connects || connection != nullptr || channel.open == mux_max_connections)
            fail("the host opens a connection it may not open");
        auto& fresh = add(header.channel, header.connection);
        fresh.state = Connection::State::refused;
        connect_to_guest(fresh);
        return;
    }
    if (connection == nullptr) {
        // Our close may have crossed with it.
        if (header.kind != MuxFrame::credit && header.kind != MuxFrame::gone)
            fail("the host names an unknown connection");
        return;
    }
    switch (header.kind) {
        case MuxFrame::data:
            if (connection->ended || connection->waiting.size() + header.value > mux_window)
                fail("the host sends more than it may");
            std::memcpy(connection->waiting.extend(header.value), payload, header.value);
            pass_on(*connection);
            break;
        case MuxFrame::close:
            connection->ended = true;
            pass_on(*connection);
            break;
        case MuxFrame::gone:
            if (!connection->ended) fail("the host leaves a connection that it has not closed");
            connection->gone = true;
            pass_on(*connection);
            break;
        case MuxFrame::credit:
            if (header.value > mux_window - connection->credit)
                fail("the host takes more than it was sent");
            connection->credit += header.value;
            break;
        default:
            fail("the host sends an unknown frame");
    }
    settle(*connection);
}

void Relay::read_frames() {
    auto* to = in_.extend(2 * mux_max_data);
    const ssize_t count = read(input_, to, 2 * mux_max_data);
    const int error = errno;
    in_.shorten(2 * mux_max_data - static_cast<std::size_t>(count > 0 ? count : 0));
    if (count < 0 && (error == EAGAIN || error == EINTR)) return;
    if (count <= 0) {
        // The host is done with us, or gone.
        kill_all();
        std::_Exit(125);
    }
    while (in_.size() >= mux_header_size) {
        const auto header = read_header(in_.data());
        std::size_t size = mux_header_size;
        if (header.kind == MuxFrame::data) {
            if (header.value > mux_max_data) fail("the host sends too large a frame");
            size += header.value;
            if (in_.size() < size) break;
        }
        handle(header, in_.data() + mux_header_size);
        in_.consume(size);
    }
}

void Relay::accept_from(std::uint8_t number) {
    auto& channel = channels_[number];
    const int socket = accept4(channel.listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (socket < 0) return;
    MuxHeader header{MuxFrame::open, number, channel.last, 0};
    do header.connection = ++channel.last;
    while (find(header) != nullptr);
    auto& connection = add(number, header.connection);
    connection.state = Connection::State::open;
    connection.socket = socket;
    no_delay(socket);
    send(header);
}

void Relay::connect_to_guest(Connection& connection) {
    connection.socket = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (connection.socket < 0) return give_up(connection);
    connection.state = Connection::State::connecting;
    const auto address = loopback(channels_[connection.channel].port);
    const int result =
        connect(connection.socket, reinterpret_cast<const sockaddr*>(&address), sizeof address);
    if (result == 0 || errno != EINPROGRESS) connected(connection, result == 0 ? 0 : errno);
}

// The guest may not listen yet: then again a little later, until it has listened once.
void Relay::connected(Connection& connection, int error) {
    auto& channel = channels_[connection.channel];
    sockaddr_in own{};
    socklen_t size = sizeof own;
    // A port connects to itself when the system happens to choose it as our end.
    if (error == 0 &&
        getsockname(connection.socket, reinterpret_cast<sockaddr*>(&own), &size) == 0 &&
        own.sin_port == htons(channel.port))
        error = ECONNREFUSED;
    if (error == 0) {
        connection.state = Connection::State::open;
        channel.answered = true;
        no_delay(connection.socket);
        return pass_on(connection);
    }
    close(connection.socket);
    connection.socket = -1;
    connection.state = Connection::State::refused;
    if (error != ECONNREFUSED || channel.answered || over_) give_up(connection);
}

// Sends close once.
void Relay::finish(Connection& connection) {
    if (connection.finished) return;
    connection.finished = true;
    send({MuxFrame::close, connection.channel, connection.number, 0});
}

// The guest takes no more: what the host still sends is credited and forgotten.
void Relay::give_up(Connection& connection) {
    connection.state = Connection::State::broken;
    finish(connection);
    pass_on(connection);
    settle(connection);
}

// Takes what the guest has sent.
void Relay::take(Connection& connection) {
    const auto most = connection.credit < mux_max_data ? connection.credit : mux_max_data;
    auto* frame = out_.extend(mux_header_size + most);
    const ssize_t count = recv(connection.socket, frame + mux_header_size, most, 0);
    if (count <= 0) {
        const int error = errno;
        out_.shorten(mux_header_size + most);
        if (count < 0 && (error == EAGAIN || error == EINTR)) return;
        if (count < 0) return give_up(connection);
        finish(connection);
        return settle(connection);
    }
    const auto size = static_cast<std::uint32_t>(count);
    write_header(frame, {MuxFrame::data, connection.channel, connection.number, size});
    out_.shorten(most - size);
    connection.credit -= size;
}

// Gives the guest what the host has sent.
void Relay::pass_on(Connection& connection) {
    auto& waiting = connection.waiting;
    if (connection.state == Connection::State::broken) {
        connection.owed += static_cast<std::uint32_t>(waiting.size());
        waiting.consume(waiting.size());
    } else if (connection.state != Connection::State::open) {
        return;
    }
    while (waiting.size() > 0) {
        const ssize_t count =
            ::send(connection.socket, waiting.data(), waiting.size(), MSG_NOSIGNAL);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0 && errno == EAGAIN) break;
        if (count < 0) return give_up(connection);
        waiting.consume(static_cast<std::size_t>(count));
        connection.owed += static_cast<std::uint32_t>(count);
    }
    if (connection.owed >= mux_window / 2 && !connection.ended) {
        send({MuxFrame::credit, connection.channel, connection.number, connection.owed});
        connection.owed = 0;
    }
    if (waiting.size() > 0 || connection.state != Connection::State::open) return;
    if (connection.gone) return give_up(connection);
    if (connection.ended) shutdown(connection.socket, SHUT_WR);
}

// Where there is no place left: who does not read what the host left behind does without.
void Relay::make_room(unsigned number) {
    for (unsigned i = 0; i < used_; ++i) {
        auto& connection = connections_[i];
        if (connection.channel == number && connection.state == Connection::State::open &&
            connection.gone)
            return give_up(connection);
    }
}

// Forgets a connection that both sides have closed.
void Relay::settle(Connection& connection) {
    if (!connection.finished || !connection.ended || connection.waiting.size() > 0 ||
        connection.state == Connection::State::unused)
        return;
    if (connection.socket >= 0) close(connection.socket);
    connection.waiting.release();
    connection.state = Connection::State::unused;
    --channels_[connection.channel].open;
}

void Relay::collect() {
    for (int status = 0;;) {
        const pid_t ended = waitpid(-1, &status, WNOHANG);
        if (ended <= 0) break;
        if (ended != command_) continue;
        over_ = true;
        status_ = exit_code(status);
    }
    // What it left behind would keep connections open.
    if (over_) kill_children();
}

// The command is gone, and all it has said has been passed on.
bool Relay::done() {
    if (!over_ || out_.size() > 0) return false;
    for (unsigned i = 0; i < used_; ++i)
        if (connections_[i].state != Connection::State::unused && !connections_[i].finished)
            return false;
    return true;
}

void Relay::serve(short events, Connection& connection) {
    if (connection.state == Connection::State::connecting) {
        if ((events & (POLLOUT | POLLERR | POLLHUP)) == 0) return;
        int error = 0;
        socklen_t size = sizeof error;
        getsockopt(connection.socket, SOL_SOCKET, SO_ERROR, &error, &size);
        return connected(connection, error);
    }
    if ((events & POLLOUT) != 0) pass_on(connection);
    if ((events & (POLLIN | POLLHUP | POLLERR)) != 0 && !connection.finished &&
        connection.state == Connection::State::open && connection.credit > 0 &&
        out_.size() < enough)
        take(connection);
    settle(connection);
}

int Relay::run() {
    const int signals = watch_children();
    if (signals < 0) fail_errno("signalfd");
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    send({MuxFrame::ready, 0, 0, mux_version});
    start_command();
    for (const int stream : {input_, output_})
        fcntl(stream, F_SETFL, fcntl(stream, F_GETFL) | O_NONBLOCK);

    // In this order: the streams, the children, the listeners, the connections.
    constexpr unsigned first = 3 + mux_max_channels;
    auto* polled = allocate<pollfd>(nullptr, first + max_connections);
    while (!done()) {
        const bool room = out_.size() < enough;
        polled[0] = {input_, POLLIN, 0};
        polled[1] = {out_.size() > 0 ? output_ : -1, POLLOUT, 0};
        polled[2] = {signals, POLLIN, 0};
        for (unsigned i = 0; i < mux_max_channels; ++i) {
            const auto& channel = channels_[i];
            if (channel.open == mux_max_connections) make_room(i);
            const bool wanted = i < channel_count_ && channel.guest_connects && !over_ &&
                                channel.open < mux_max_connections;
            polled[3 + i] = {wanted ? channel.listener : -1, POLLIN, 0};
        }
        int patience = -1;
        for (unsigned i = 0; i < used_; ++i) {
            auto& connection = connections_[i];
            short events = 0;
            if (connection.state == Connection::State::refused) {
                connect_to_guest(connection);
                if (connection.state == Connection::State::refused) patience = 5;
            }
            if (connection.state == Connection::State::open) {
                if (!connection.finished && connection.credit > 0 && room) events |= POLLIN;
                if (connection.waiting.size() > 0) events |= POLLOUT;
            } else if (connection.state == Connection::State::connecting) {
                events = POLLOUT;
            }
            // Without a wish not even an end is reported, which would be reported forever.
            polled[first + i] = {events != 0 ? connection.socket : -1, events, 0};
        }
        const unsigned watched = used_;
        if (poll(polled, first + watched, patience) < 0 && errno != EINTR) fail_errno("poll");

        if (polled[1].revents != 0) {
            const ssize_t count = write(output_, out_.data(), out_.size());
            if (count > 0) out_.consume(static_cast<std::size_t>(count));
            if (count < 0 && errno != EAGAIN && errno != EINTR) {
                kill_all();
                std::_Exit(125);
            }
        }
        if (polled[0].revents != 0) read_frames();
        for (unsigned i = 0; i < channel_count_; ++i)
            if (polled[3 + i].revents != 0) accept_from(static_cast<std::uint8_t>(i));
        for (unsigned i = 0; i < watched; ++i) {
            auto& connection = connections_[i];
            // It may have ended, or become another one, in the meantime.
            if (polled[first + i].revents != 0 && connection.socket == polled[first + i].fd)
                serve(polled[first + i].revents, connection);
        }
        if (polled[2].revents != 0) {
            signalfd_siginfo ignored;
            while (read(signals, &ignored, sizeof ignored) > 0) {
            }
            collect();
        }
    }
    kill_children();
    return status_;
}

}  // namespace

int relay_main(int input, int output, bool no_exec) {
    static Relay relay(input, output, no_exec);
    relay.prepare();
    return relay.run();
}
