#pragma once
// How the host's services listen: for one sandbox on a Unix socket that its user alone can open,
// for programs of this machine on a port of its loopback.
#include <unistd.h>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <filesystem>
#include <ipybox/async.hpp>
#include <ipybox/detail/terminal_text.hpp>
#include <ipybox/error.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace ipybox::net {

// Listens at `path`, which must not exist; the socket gets mode 0600 and belongs to `user`.
// Throws Error: io_error (it cannot listen there; names the service as `who`).
void listen_privately(asio::local::stream_protocol::acceptor& acceptor,
                      const std::filesystem::path& path, uid_t user, const std::string& who);

// Makes an acceptor that is not open listen; when it cannot, it is closed again.
boost::system::error_code listen_at(asio::ip::tcp::acceptor& acceptor,
                                    const asio::ip::tcp::endpoint& endpoint);

// Listens at a port of this machine's loopback; 0 takes a free one. host: one of its addresses, or
// "localhost". Returns HOST:PORT. Throws Error: bad_argument (another host), io_error (it cannot
// listen there); both name the service as `who`.
std::string listen_on_loopback(asio::ip::tcp::acceptor& acceptor, const std::string& host,
                               unsigned short port, const std::string& who);

// What callers of a service present: `given`, or 32 random bytes in hexadecimal when that is empty.
// Throws Error: bad_argument (less than 16 characters; names the service as `who`).
std::string checked_token(std::string given, const std::string& who);

// Whether a web page's origin is the listener itself, at `port` of this machine's loopback. Those
// of other ports are other programs, and what they serve is not to be trusted with this one.
bool is_own_origin(std::string_view origin, unsigned short port);

// Hands every connection to `begin` until the service closes. Service holds the acceptor, and has
// `connections`, `freed` (an Event: a connection ended, or `closed` is true) and
// options.max_connections.
template <class Service, class Acceptor>
awaitable<void> accept_connections(std::shared_ptr<Service> service, Acceptor& acceptor,
                                   void (*begin)(const std::shared_ptr<Service>&,
                                                 typename Acceptor::protocol_type::socket)) {
    while (!service->closed) {
        if (service->connections.size() >= service->options.max_connections) {
            co_await service->freed.wait();
            continue;
        }
        auto [error, socket] = co_await acceptor.async_accept(as_result);
        if (service->closed) break;
        if (error) {
            // Out of descriptors, most likely: wait for a connection to end, not in a circle.
            const auto soon = Clock::now() + std::chrono::milliseconds(50);
            co_await service->freed.wait(soon);
            continue;
        }
        begin(service, std::move(socket));
    }
}

}  // namespace ipybox::net

#ifndef IPYBOX_SEPARATE_COMPILATION
#include <ipybox/net/impl/private_listener.ipp>
#endif
