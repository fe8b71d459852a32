#pragma once
// How the host's services listen: for one sandbox on a Unix socket that its user alone can open, for
// programs of this machine on a port of its loopback.
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <filesystem>
#include <ipybox/async.hpp>
#include <ipybox/detail/hex.hpp>
#include <ipybox/detail/terminal_text.hpp>
#include <ipybox/error.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace ipybox::detail {

// Listens at `path`, which must not exist; the socket gets mode 0600 and belongs to `user`.
// Throws errc::io_error, which names the service as `who`.
inline void listen_privately(asio::local::stream_protocol::acceptor& acceptor,
                             const std::filesystem::path& path, uid_t user, const std::string& who) {
    boost::system::error_code error;
    const auto system_error = [&error](int result) {
        if (result != 0) error.assign(errno, boost::system::system_category());
    };
    if (path.native().size() >= sizeof(sockaddr_un::sun_path))
        throw Error(errc::io_error, "the path of " + who + "'s socket is too long: " + path.string());
    const asio::local::stream_protocol::endpoint endpoint(path.string());
    acceptor.open(endpoint.protocol(), error);
    if (!error) acceptor.bind(endpoint, error);
    if (!error) system_error(::chmod(path.c_str(), 0600));
    if (!error && user != ::geteuid())
        system_error(::lchown(path.c_str(), user, static_cast<gid_t>(-1)));
    // A full queue turns non-blocking clients away, so it is as long as the system allows.
    constexpr int queue = asio::socket_base::max_listen_connections;
    if (!error) acceptor.listen(queue, error);
    if (error)
        throw Error(errc::io_error, who + " cannot listen at " + path.string() + ": " + error.message());
}

// Makes an acceptor that is not open listen; when it cannot, it is closed again.
inline boost::system::error_code listen_at(asio::ip::tcp::acceptor& acceptor,
                                           const asio::ip::tcp::endpoint& endpoint) {
    boost::system::error_code error, ignored;
    acceptor.open(endpoint.protocol(), error);
    if (error) return error;
    acceptor.set_option(asio::socket_base::reuse_address(true), error);
    if (!error) acceptor.bind(endpoint, error);
    if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
    if (error) acceptor.close(ignored);
    return error;
}

// Listens at a port of this machine's loopback; 0 takes a free one. host: one of its addresses, or
// "localhost". Returns HOST:PORT. Throws errc::bad_argument for other hosts, and errc::io_error;
// both name the service as `who`.
inline std::string listen_on_loopback(asio::ip::tcp::acceptor& acceptor, const std::string& host,
                                      unsigned short port, const std::string& who) {
    boost::system::error_code error;
    const auto address = asio::ip::make_address(host == "localhost" ? "127.0.0.1" : host, error);
    if (error || !address.is_loopback())
        throw Error(errc::bad_argument, who + " listens on this machine only: localhost, 127.0.0.1 or ::1, not " + printable(host));
    error = listen_at(acceptor, asio::ip::tcp::endpoint(address, port));
    if (error)
        throw Error(errc::io_error, who + " cannot listen at " + host + ":" + std::to_string(port) + ": " + error.message());
    return (address.is_v6() ? "[::1]" : address.to_string()) + ":" + std::to_string(acceptor.local_endpoint().port());
}

// What callers of a service present: `given`, or 32 random bytes in hexadecimal when that is empty.
// Throws errc::bad_argument for less than 16 characters, naming the service as `who`.
inline std::string checked_token(std::string given, const std::string& who) {
    if (given.empty()) given = random_hex(32);
    if (given.size() < 16) throw Error(errc::bad_argument, "the token of " + who + " needs at least 16 characters");
    return given;
}

// Whether a web page's origin is the listener itself, at `port` of this machine's loopback. Those of
// other ports are other programs, and what they serve is not to be trusted with this one.
inline bool is_own_origin(std::string_view origin, unsigned short port) {
    if (port == 0 || !origin.starts_with("http://")) return false;
    origin.remove_prefix(7);
    for (const std::string_view name : {"localhost", "127.0.0.1", "[::1]"})
        if (origin.starts_with(name) && (origin.substr(name.size()) == ":" + std::to_string(port) || (port == 80 && origin == name)))
            return true;
    return false;
}

// Hands every connection to `begin` until the service closes. State holds the acceptor, and has
// `connections`, `freed` (an Event: a connection ended, or `closed` is true) and
// options.max_connections.
template <class State, class Acceptor>
awaitable<void> accept_connections(std::shared_ptr<State> state, Acceptor& acceptor,
                                   void (*begin)(const std::shared_ptr<State>&,
                                                 typename Acceptor::protocol_type::socket)) {
    while (!state->closed) {
        if (state->connections.size() >= state->options.max_connections) {
            co_await state->freed.wait();
            continue;
        }
        auto [error, socket] = co_await acceptor.async_accept(as_result);
        if (state->closed) break;
        if (error) {
            // Out of descriptors, most likely: wait for a connection to end, not in a circle.
            const auto soon = Clock::now() + std::chrono::milliseconds(50);
            co_await state->freed.wait(soon);
            continue;
        }
        begin(state, std::move(socket));
    }
}

}  // namespace ipybox::detail
