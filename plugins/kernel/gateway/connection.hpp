#pragma once
// The WebSocket that carries a kernel's messages, and how it is kept up.
#include <boost/beast/websocket/stream.hpp>
#include <deque>
#include <ipybox/async.hpp>
#include <ipybox/jupyter/websocket.hpp>
#include <ipybox/net/http_client.hpp>
#include <memory>

namespace ipybox::gateway {

struct Link;

// Bytes that may wait until the server reads them; a connection with more is closed. Sources that
// can wait do so long before, at ReliableLink::send_window.
inline constexpr std::size_t most_unwritten = std::size_t{32} << 20;
// Connections of one kernel that may end so. With the last of them it is given up.
inline constexpr int most_unread_connections = 3;

struct Connection {
    explicit Connection(std::shared_ptr<HttpStream> connected);

    // Returns at once; what waits to be written goes when the socket takes it. Everything that is
    // sent passes here: beyond most_unwritten it closes the connection.
    void send(const jupyter::OutgoingMessage& message);
    void close();

    std::shared_ptr<HttpStream> stream;
    boost::beast::websocket::stream<HttpStream&> socket;
    bool v1 = false;  // the server knows the subprotocol
    bool broken = false;
    bool unread = false;  // it was closed because the server does not read
    std::deque<jupyter::WebsocketFrame> outbox;
    std::size_t unwritten = 0;  // bytes of the outbox and of the frame that is being written
    Event changed;
};
using ConnectionPtr = std::shared_ptr<Connection>;

// Opens the kernel's WebSocket. Throws Error: kernel_died when the server does not know the kernel,
// http_failed or timed_out when there is no server to be reached.
awaitable<ConnectionPtr> open_connection(std::shared_ptr<Link> link, Clock::time_point deadline);

// Keeps the kernel connected until it ends, from a connection that is open.
awaitable<void> keep_connected(std::shared_ptr<Link> link, ConnectionPtr connection);

}  // namespace ipybox::gateway
