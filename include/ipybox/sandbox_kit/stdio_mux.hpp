#pragma once
// Connections between host and guest over two streams, such as the guest's standard streams, for
// guests that cannot reach Unix sockets of the host. The other end is the launcher's relay.

#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/readable_pipe.hpp>
#include <boost/asio/writable_pipe.hpp>
#include <cstring>
#include <filesystem>
#include <functional>
#include <ipybox/async.hpp>
#include <ipybox/detail/terminal_text.hpp>
#include <ipybox/error.hpp>
#include <ipybox/sandbox.hpp>
#include <ipybox/sandbox_kit/mux_frames.hpp>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ipybox {

// A channel that the guest knows as 127.0.0.1:port. Kind socket or listener.
struct MuxChannel {
    Channel::Kind kind = Channel::Kind::socket;
    std::filesystem::path host_path;
    std::uint16_t port = 0;
};

// The loopback ports under which the guests of one sandbox know their channels. Each guest has a
// network of its own, whose ports are all free.
class GuestPorts {
public:
    // The port of a channel; the same whenever its name is the same. Kind socket or listener.
    MuxChannel carry(const Channel& channel) const;
    // What Sandbox::guest_address() answers for it.
    std::string address(const Channel& channel) const {
        return "127.0.0.1:" + std::to_string(carry(channel).port);
    }

private:
    mutable std::map<std::string, std::uint16_t> ports_;  // by the channel's name
};

// What the relay starts, and on what conditions.
struct RelayCommand {
    std::vector<std::string> argv;           // argv[0] is an absolute path of the guest
    std::map<std::string, std::string> env;  // exact, but for kept_env
    std::vector<std::string> kept_env;       // variables that the sandbox has set
    std::filesystem::path cwd = "/";
    // It refuses to start when one of these can be read, or Unix sockets can be made: then the
    // sandbox around it is not what it was meant to be.
    std::vector<std::filesystem::path> unreadable;
    bool no_unix_sockets = false;
    // The relay becomes the command, whose standard streams these then are; no channels.
    bool pipes = false;
};

// The first bytes for a relay's standard input. Throws Error: bad_argument (a text holds a NUL, or
// all of it is over 4 MiB).
std::string relay_start(const RelayCommand& command, const std::vector<MuxChannel>& channels);

namespace sandbox_kit {

using LocalSocket = asio::local::stream_protocol;

struct MuxConnection {
    MuxConnection(const asio::any_io_executor& executor, std::uint8_t on, std::uint16_t with)
        : channel(on), number(with), socket(executor), changed(executor) {}

    std::uint8_t channel;
    std::uint16_t number;
    LocalSocket::socket socket;
    Event changed;
    std::uint32_t credit = mux_window;  // what the guest takes
    std::uint32_t held = 0;             // what it has sent without credit for it
    std::string waiting;                // for the socket
    bool finished = false;              // we have sent close
    bool ended = false;                 // the guest has
    bool given = false;                 // and all before it was passed on
    bool broken = false;                // the socket takes no more
    bool writing = false;               // to the socket
};
using MuxConnectionPtr = std::shared_ptr<MuxConnection>;

struct MuxPort {
    MuxChannel channel;
    std::optional<LocalSocket::acceptor> acceptor;
    std::uint16_t last = 0;
    unsigned open = 0;
};

// Shared with the coroutines, which may outlive the mux by a moment.
struct MuxState : std::enable_shared_from_this<MuxState> {
    MuxState(asio::any_io_executor on, asio::writable_pipe to, asio::readable_pipe from);

    // Above this, local sockets are not read: the guest is behind.
    static constexpr std::size_t enough = 4 * mux_max_data;
    // Above this the guest asks for answers that it does not read.
    static constexpr std::size_t too_much = 4u << 20;

    asio::any_io_executor executor;
    asio::writable_pipe to_guest;
    asio::readable_pipe from_guest;
    std::vector<MuxPort> ports;
    std::map<std::pair<std::uint8_t, std::uint16_t>, MuxConnectionPtr> connections;
    std::string outgoing;
    Event grown, shrunk;  // outgoing
    bool ready = false;
    bool closed = false;
    std::string problem;
    std::function<void()> on_problem;

    void send(MuxHeader header, std::string_view data = {});

    void close() noexcept;

    // The guest is up to something, or out of order.
    void fail(const std::string& what);

    // No more from the guest: what it sent before is still delivered.
    void end();

    MuxConnectionPtr add(std::uint8_t channel, std::uint16_t number);

    void finish(MuxConnection& connection);

    // What the guest still sends is credited and forgotten.
    void give_up(MuxConnection& connection);

    // Forgets a connection that both sides have closed.
    void settle(MuxConnection& connection);

    void handle(MuxHeader header, std::string_view payload);
};
using MuxStatePtr = std::shared_ptr<MuxState>;

awaitable<void> mux_write(MuxStatePtr state);

awaitable<void> mux_read(MuxStatePtr state);

// What the local side has sent, to the guest.
awaitable<void> mux_take(MuxStatePtr state, MuxConnectionPtr connection);

// What the guest has sent, to the local side.
awaitable<void> mux_give(MuxStatePtr state, MuxConnectionPtr connection);

void mux_start(MuxStatePtr state, MuxConnectionPtr connection);

// For a connection that the guest has opened.
awaitable<void> mux_connect(MuxStatePtr state, MuxConnectionPtr connection);

// Connections of the host to what the guest listens on.
awaitable<void> mux_accept(MuxStatePtr state, std::uint8_t channel);

}  // namespace sandbox_kit

// The host's end. Everything that comes from the guest is checked: what breaks the protocol ends
// all connections and is reported once.
class StdioMux {
public:
    // Listens at the host_path of every listener channel and writes `start` (see relay_start) to
    // the guest. on_problem: called at most once, from the executor; not after destruction.
    // Throws Error: io_error (it cannot listen for a channel).
    StdioMux(asio::any_io_executor executor, asio::writable_pipe to_guest,
             asio::readable_pipe from_guest, std::vector<MuxChannel> channels, std::string start,
             std::function<void()> on_problem);
    ~StdioMux() { state_->close(); }
    StdioMux(const StdioMux&) = delete;
    StdioMux& operator=(const StdioMux&) = delete;

    // Sends a signal to the command inside, or to its process group.
    void signal(int number, bool group = false);
    // What the guest did wrong; empty so far.
    const std::string& problem() const noexcept { return state_->problem; }

private:
    std::shared_ptr<sandbox_kit::MuxState> state_;
};

}  // namespace ipybox

#ifndef IPYBOX_SEPARATE_COMPILATION
#include <ipybox/sandbox_kit/impl/stdio_mux.ipp>
#endif
