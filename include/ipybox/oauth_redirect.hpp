#pragma once
// The address on this machine that a consent page leads back to (RFC 8252).
#include <algorithm>
#include <array>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <cstdint>
#include <ipybox/async.hpp>
#include <ipybox/detail/oauth_protocol.hpp>
#include <ipybox/error.hpp>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace ipybox::detail {

// Answers http://127.0.0.1:PORT/callback until a request brings the expected state. Browsers open
// connections and say nothing on them, so that several are served at once.
struct RedirectListener {
    using Tcp = asio::ip::tcp;
    static constexpr std::size_t max_connections = 32;
    static constexpr std::size_t max_request = 16 * 1024;

    struct Shared {
        explicit Shared(const asio::any_io_executor& executor)
            : acceptor(executor), arrived(executor) {}
        Tcp::acceptor acceptor;
        Event arrived;
        std::list<Tcp::socket*> connections;
        std::string path;
        std::string state;
        std::string target;  // of the request that was waited for
    };

    // port 0: any. Throws errc::io_error when it is taken.
    RedirectListener(asio::any_io_executor executor, std::uint16_t wanted, std::string path,
                     std::string state)
        : shared(std::make_shared<Shared>(executor)) {
        shared->path = std::move(path);
        shared->state = std::move(state);
        boost::system::error_code error;
        const Tcp::endpoint endpoint(asio::ip::address_v4::loopback(), wanted);
        shared->acceptor.open(endpoint.protocol(), error);
        if (!error) shared->acceptor.set_option(Tcp::acceptor::reuse_address(true), error);
        if (!error) shared->acceptor.bind(endpoint, error);
        if (!error) shared->acceptor.listen(16, error);
        if (!error) port = shared->acceptor.local_endpoint(error).port();
        if (error)
            throw Error(errc::io_error, "cannot listen on 127.0.0.1:" + std::to_string(wanted) +
                                            " for the end of the login: " + error.message());
        asio::co_spawn(executor, accept(shared), asio::detached);
    }
    ~RedirectListener() {
        boost::system::error_code ignored;
        shared->acceptor.close(ignored);
        for (auto* socket : shared->connections) socket->close(ignored);
    }
    RedirectListener(const RedirectListener&) = delete;
    RedirectListener& operator=(const RedirectListener&) = delete;

    // Returns when the redirect has come or at `deadline`.
    static awaitable<void> wait(std::shared_ptr<Shared> shared, Clock::time_point deadline) {
        while (shared->target.empty() && Clock::now() < deadline)
            co_await shared->arrived.wait(deadline);
    }

    static awaitable<void> accept(std::shared_ptr<Shared> shared) {
        for (;;) {
            auto [error, socket] = co_await shared->acceptor.async_accept(as_result);
            if (!shared->acceptor.is_open()) co_return;
            if (error) {  // for want of descriptors, say
                co_await sleep_until(Clock::now() + std::chrono::milliseconds(100));
                continue;
            }
            if (shared->connections.size() >= max_connections) continue;
            auto executor = shared->acceptor.get_executor();
            asio::co_spawn(executor, serve(shared, std::move(socket)), asio::detached);
        }
    }

    static awaitable<void> serve(std::shared_ptr<Shared> shared, Tcp::socket socket) {
        const auto place = shared->connections.insert(shared->connections.end(), &socket);
        struct Leave {
            Shared& shared;
            std::list<Tcp::socket*>::iterator place;
            ~Leave() { shared.connections.erase(place); }
        } const leave{*shared, place};
        std::string request;
        const auto deadline = Clock::now() + std::chrono::seconds(10);
        co_await ends_first(read(socket, request), sleep_until(deadline));
        if (request.find("\r\n\r\n") == request.npos) co_return;
        const auto line = request.substr(0, request.find("\r\n"));
        std::string_view target = line;
        target.remove_prefix(std::min(target.size(), target.find(' ') + 1));
        target = target.substr(0, target.find(' '));
        const bool ours = line.starts_with("GET ") && shared->target.empty() &&
                          target.substr(0, target.find('?')) == shared->path;
        const char* status = "404 Not Found";
        const char* text = "There is nothing here.";
        if (ours) {
            // Whoever else on this machine found the port cannot end the login.
            const auto query = detail::parse_query(detail::query_of(target));
            const auto found = query ? query->find("state") : decltype(query->end())();
            const bool expected =
                query && found != query->end() && detail::same_secret(found->second, shared->state);
            status = expected ? "200 OK" : "400 Bad Request";
            text = expected ? "ipybox has the answer. You may close this window."
                            : "This belongs to another login. Start again.";
            if (expected) shared->target = target;
        }
        const std::string body = "<!doctype html><meta charset=utf-8><title>ipybox</title><p>" +
                                 std::string(text) + "</p>\n";
        const std::string answer =
            "HTTP/1.1 " + std::string(status) +
            "\r\nContent-Type: text/html; charset=utf-8\r\nCache-Control: no-store\r\n"
            "Referrer-Policy: no-referrer\r\nContent-Security-Policy: default-src 'none'\r\n"
            "Connection: close\r\nContent-Length: " +
            std::to_string(body.size()) + "\r\n\r\n" + body;
        co_await ends_first(write(socket, answer), sleep_until(deadline));
        boost::system::error_code ignored;
        socket.shutdown(Tcp::socket::shutdown_send, ignored);
        shared->arrived.notify();
    }

    static awaitable<void> read(Tcp::socket& socket, std::string& request) {
        std::array<char, 2048> buffer;
        while (request.size() < max_request && request.find("\r\n\r\n") == request.npos) {
            const auto [error, size] =
                co_await socket.async_read_some(asio::buffer(buffer), as_result);
            request.append(buffer.data(), size);
            if (error) co_return;
        }
    }
    static awaitable<void> write(Tcp::socket& socket, const std::string& answer) {
        co_await asio::async_write(socket, asio::buffer(answer), as_result);
    }

    std::shared_ptr<Shared> shared;
    std::uint16_t port = 0;
};

}  // namespace ipybox::detail
