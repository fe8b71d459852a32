#pragma once
#include <ipybox/net/private_listener.hpp>

#include <sys/stat.h>
#include <sys/un.h>

#include <boost/asio/ip/address.hpp>
#include <ipybox/compilation.hpp>
#include <ipybox/detail/hex.hpp>

namespace ipybox::net {

IPYBOX_DECL void listen_privately(asio::local::stream_protocol::acceptor& acceptor,
                                  const std::filesystem::path& path, uid_t user,
                                  const std::string& who) {
    boost::system::error_code error;
    const auto system_error = [&error](int result) {
        if (result != 0) error.assign(errno, boost::system::system_category());
    };
    if (path.native().size() >= sizeof(sockaddr_un::sun_path))
        throw Error(errc::io_error,
                    "the path of " + who + "'s socket is too long: " + path.string());
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
        throw Error(errc::io_error,
                    who + " cannot listen at " + path.string() + ": " + error.message());
}

IPYBOX_DECL boost::system::error_code listen_at(asio::ip::tcp::acceptor& acceptor,
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

IPYBOX_DECL std::string listen_on_loopback(asio::ip::tcp::acceptor& acceptor,
                                           const std::string& host, unsigned short port,
                                           const std::string& who) {
    boost::system::error_code error;
    const auto address = asio::ip::make_address(host == "localhost" ? "127.0.0.1" : host, error);
    if (error || !address.is_loopback())
        throw Error(errc::bad_argument,
                    who + " listens on this machine only: localhost, 127.0.0.1 or ::1, not " +
                        detail::printable(host));
    error = listen_at(acceptor, asio::ip::tcp::endpoint(address, port));
    if (error)
        throw Error(errc::io_error, who + " cannot listen at " + host + ":" + std::to_string(port) +
                                        ": " + error.message());
    return (address.is_v6() ? "[::1]" : address.to_string()) + ":" +
           std::to_string(acceptor.local_endpoint().port());
}

IPYBOX_DECL std::string checked_token(std::string given, const std::string& who) {
    if (given.empty()) given = detail::random_hex(32);
    if (given.size() < 16)
        throw Error(errc::bad_argument, "the token of " + who + " needs at least 16 characters");
    return given;
}

IPYBOX_DECL bool is_own_origin(std::string_view origin, unsigned short port) {
    if (port == 0 || !origin.starts_with("http://")) return false;
    origin.remove_prefix(7);
    for (const std::string_view name : {"localhost", "127.0.0.1", "[::1]"})
        if (origin.starts_with(name) && (origin.substr(name.size()) == ":" + std::to_string(port) ||
                                         (port == 80 && origin == name)))
            return true;
    return false;
}

}  // namespace ipybox::net
