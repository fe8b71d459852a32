#pragma once
// How the host's services listen for one sandbox: on a Unix socket that its user alone can open.
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <boost/asio/local/stream_protocol.hpp>
#include <filesystem>
#include <ipybox/async.hpp>
#include <ipybox/error.hpp>
#include <memory>
#include <string>
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

// Hands every connection to `begin` until the service closes. State has `acceptor`, `connections`,
// `freed` (an Event: a connection ended, or `closed` is true) and options.max_connections.
template <class State>
awaitable<void> accept_connections(std::shared_ptr<State> state,
                                   void (*begin)(const std::shared_ptr<State>&,
                                                 asio::local::stream_protocol::socket)) {
    while (!state->closed) {
        if (state->connections.size() >= state->options.max_connections) {
            co_await state->freed.wait();
            continue;
        }
        auto [error, socket] = co_await state->acceptor.async_accept(as_result);
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
