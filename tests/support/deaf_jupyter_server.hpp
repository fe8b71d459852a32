#pragma once
// A Jupyter server that has a kernel started, reads nothing from then on, and has the host send
// everything again and again.
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/websocket.hpp>
#include <boost/json/parse.hpp>
#include <ipybox/async.hpp>
#include <string>

#include "test_support.hpp"

namespace ipybox::test {

class DeafJupyterServer {
public:
    explicit DeafJupyterServer(asio::io_context& context)
        : context_(context), acceptor_(context, {asio::ip::address_v4::loopback(), 0}) {
        asio::co_spawn(context, accept(), asio::detached);
    }
    ~DeafJupyterServer() {
        acceptor_.close();
        attacking = false;
        context_.run_for(std::chrono::milliseconds(50));
    }
    std::string url() const {
        return "http://127.0.0.1:" + std::to_string(acceptor_.local_endpoint().port());
    }

    static constexpr int most_rounds = 60;
    bool attacking = false;  // the host may have something to send now
    bool dropping = false;   // instead it closes each connection to the kernel
    int connections = 0;     // to the kernel
    int rounds = 0;          // in which it asked for everything again

private:
    using Tcp = asio::ip::tcp;
    using WebSocket = boost::beast::websocket::stream<Tcp::socket>;
    using Request = boost::beast::http::request<boost::beast::http::string_body>;
    using Response = boost::beast::http::response<boost::beast::http::string_body>;

    awaitable<void> accept() {
        for (;;) {
            auto [error, socket] = co_await acceptor_.async_accept(as_result);
            if (error) co_return;
            asio::co_spawn(context_, serve(std::move(socket)), asio::detached);
        }
    }

    awaitable<void> serve(Tcp::socket socket) {
        namespace http = boost::beast::http;
        boost::beast::flat_buffer buffer;
        for (;;) {
            Request request;
            const auto [error, size] =
                co_await http::async_read(socket, buffer, request, as_result);
            if (error) co_return;
            if (boost::beast::websocket::is_upgrade(request)) {
                co_await serve_kernel(std::move(socket), std::move(request));
                co_return;
            }
            Response response;
            response.result(request.method() == http::verb::post ? 201 : 200);
            response.body() = R"({"id": "one", "execution_state": "busy"})";
            response.prepare_payload();
            const auto [broken, written] = co_await http::async_write(socket, response, as_result);
            if (broken) co_return;
        }
    }

    awaitable<void> serve_kernel(Tcp::socket socket, Request request) {
        auto stream = std::make_shared<WebSocket>(std::move(socket));
        const auto [error] = co_await stream->async_accept(request, as_result);
        if (error) co_return;
        const std::string target(request.target());
        const auto session = target.substr(target.rfind('=') + 1);
        if (++connections > 1 && dropping) co_return;
        if (connections == 1) {
            // The host begins with this request.
            auto started = message("shell", "execute_reply", R"({"msg_id":")" + session + R"(_1"})",
                                   "{}", R"({"user_expressions":{"ipybox":{"status":"ok"}}})");
            const bool sent = co_await write(stream, std::move(started));
            if (!sent) co_return;
        }
        auto round = co_await read_round(stream, session + "-");
        bool open = round > 0;
        if (open) open = co_await write(stream, answer(session, round));
        while (open && !attacking && !dropping && acceptor_.is_open()) {
            const auto soon = Clock::now() + std::chrono::milliseconds(5);
            co_await sleep_until(soon);
        }
        while (open && attacking && rounds < most_rounds) {
            ++rounds;
            // Not the next number: something is missing.
            auto gap = message("iopub", "comm_open", "{}", R"({"ipybox":9,"type":"stream"})", "{}");
            open = co_await write(stream, std::move(gap));
            // What it asks for now it need not be read for.
            ++round;
            if (open) open = co_await write(stream, answer(session, round));
        }
        // Neither read nor closed: the host has to find out.
        while (open && acceptor_.is_open() && attacking) {
            const auto soon = Clock::now() + std::chrono::milliseconds(5);
            co_await sleep_until(soon);
        }
    }

    // Reads until the host asks to resume. Returns the number of that, or 0 when the connection
    // breaks.
    static awaitable<int> read_round(std::shared_ptr<WebSocket> stream, std::string prefix) {
        for (;;) {
            boost::beast::flat_buffer buffer;
            const auto [error, size] = co_await stream->async_read(buffer, as_result);
            if (error) co_return 0;
            const auto data = buffer.data();
            const std::string_view text(static_cast<const char*>(data.data()), data.size());
            const auto at = text.find("\"token\":\"" + prefix);
            if (at != text.npos)
                co_return std::stoi(std::string(text.substr(at + 9 + prefix.size())));
        }
    }

    static awaitable<bool> write(std::shared_ptr<WebSocket> stream, std::string text) {
        const auto buffer = asio::buffer(text);
        const auto [error, size] = co_await stream->async_write(buffer, as_result);
        co_return !error;
    }

    static std::string message(const std::string& channel, const std::string& type,
                               const std::string& parent, const std::string& metadata,
                               const std::string& content) {
        return R"({"channel":")" + channel + R"(","header":{"msg_id":"m","msg_type":")" + type +
               R"("},"parent_header":)" + parent + R"(,"metadata":)" + metadata + R"(,"content":)" +
               content + "}";
    }
    static std::string answer(const std::string& session, int round) {
        return message("iopub", "comm_open", "{}", R"({"ipybox":0,"type":"resume"})",
                       R"({"data":{"token":")" + session + "-" + std::to_string(round) +
                           R"(","after":0,"received":0,"whole":true}})");
    }

    asio::io_context& context_;
    Tcp::acceptor acceptor_;
};

}  // namespace ipybox::test
