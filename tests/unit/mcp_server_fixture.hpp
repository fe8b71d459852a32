#pragma once
// An McpServer and its client on two pipes.
#include <unistd.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/write.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <ipybox/mcp/detail/wire.hpp>
#include <ipybox/mcp/server.hpp>
#include <memory>
#include <stdexcept>
#include <string>

#include "test_support.hpp"

namespace ipybox::test::server {

using namespace std::chrono_literals;

inline json::object object(std::string_view text) { return json::parse(text).as_object(); }

inline json::object call(json::value id, std::string_view tool, json::object arguments = {}) {
    json::object params;
    params["name"] = tool;
    params["arguments"] = std::move(arguments);
    return mcp::rpc_request(std::move(id), "tools/call", std::move(params));
}

// As a modern client says it.
inline json::object modern(json::object request, json::object capabilities = {}) {
    auto& meta = request["params"].as_object()["_meta"];
    if (!meta.is_object()) meta.emplace_object();
    meta.as_object()[detail::meta_version] = "2026-07-28";
    meta.as_object()[detail::meta_capabilities] = std::move(capabilities);
    return request;
}

inline std::string text_of(const json::object& answer) {
    return std::string(answer.at("result").at("content").at(0).at("text").as_string());
}
inline int code_of(const json::object& answer) {
    return answer.at("error").at("code").to_number<int>();
}

// What the tests' tools saw.
struct Seen {
    int runs = 0, cancelled = 0, begun = 0, ended = 0;
};

// A server and a client on two pipes, in one thread.
struct ServerPipes {
    using AddTools = void (*)(McpServer&, std::shared_ptr<Seen>);
    ServerPipes(AddTools add_tools, McpServerOptions options) {
        options.on_session_begin = [this](McpSession& session) {
            ++seen->begun;
            session.data = std::string("mine");
        };
        options.on_session_end = [this](McpSession&) { ++seen->ended; };
        server = std::make_unique<McpServer>(context.get_executor(), std::move(options));
        add_tools(*server, seen);
        int to_server[2], to_client[2];
        if (::pipe(to_server) != 0 || ::pipe(to_client) != 0) throw std::runtime_error("no pipes");
        asio::co_spawn(context, server->serve_stdio(to_server[0], to_client[1]),
                       [this](std::exception_ptr error) {
                           failure = error;
                           served = true;
                       });
        while (context.poll_one() > 0) {
        }
        ::close(to_server[0]);  // serve_stdio() has its own
        ::close(to_client[1]);
        output.assign(to_server[1]);
        input.assign(to_client[0]);
    }
    ~ServerPipes() {
        server.reset();
        context.restart();
        context.run_for(100ms);
    }

    void send(std::string text) {
        text += '\n';
        asio::write(output, asio::buffer(text));
    }
    void send(const json::object& message) { send(json::serialize(message)); }
    json::object receive() { return run(context, next()); }
    json::object ask(const json::object& message) {
        send(message);
        return receive();
    }
    awaitable<json::object> next() {
        const std::string text = co_await line();
        co_return object(text);
    }
    awaitable<std::string> line() {
        const auto size = co_await asio::async_read_until(input, asio::dynamic_buffer(received),
                                                          '\n', asio::use_awaitable);
        auto text = received.substr(0, size);
        received.erase(0, size);
        co_return text;
    }
    // Lets the server work until it has nothing more to do.
    void settle(Duration time = 20ms) {
        context.restart();
        context.run_for(time);
    }
    json::object initialize(std::string_view version = "2025-11-25",
                            json::object capabilities = {}) {
        json::object params{{"protocolVersion", version},
                            {"clientInfo", {{"name", "test"}, {"version", "1"}}}};
        params["capabilities"] = std::move(capabilities);
        auto answer = ask(mcp::rpc_request(0, "initialize", std::move(params)));
        send(mcp::rpc_notification("notifications/initialized", {}));
        return answer;
    }

    asio::io_context context;
    std::shared_ptr<Seen> seen = std::make_shared<Seen>();
    std::unique_ptr<McpServer> server;
    asio::posix::stream_descriptor output{context}, input{context};
    std::string received;
    std::exception_ptr failure;
    bool served = false;
};

}  // namespace ipybox::test::server
