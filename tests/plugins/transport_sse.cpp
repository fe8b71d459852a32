// The transport sse with real servers, and with one that misleads.
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/test/unit_test.hpp>
#include <ipybox/mcp/sse.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "http_fixture.hpp"

namespace plugin_transport_sse_tests {

using namespace ipybox;
using namespace std::chrono_literals;
using mcp::sse_event;
using test::contains;
using test::HttpMessage;
using test::HttpPeerPtr;
using test::text_of;

namespace {

struct Fixture : test::HttpFixture {
    Fixture() : HttpFixture("sse") {}

    // A server that answers by the stream of whoever asked last.
    void serve(std::string endpoint) {
        server = std::make_unique<test::HttpServer>(
            context,
            [this, endpoint = std::move(endpoint)](HttpMessage message,
                                                   HttpPeerPtr peer) -> awaitable<void> {
                if (message.method == "GET") {
                    stream = peer;
                    co_await peer->begin_chunks("Content-Type: text/event-stream\r\n");
                    if (!endpoint.empty())
                        co_await peer->chunk("event: endpoint\r\ndata: " + endpoint + "\r\n\r\n");
                    co_await peer->wait_for_end();
                    co_return;
                }
                co_await peer->respond(202, "", "Accepted");
                const auto rpc = json::parse(message.body).as_object();
                if (!rpc.contains("id")) co_return;
                const auto method = detail::string_of(rpc, "method");
                json::object result{{"content", json::array()}};
                if (method == "initialize")
                    result = {{"protocolVersion", "2024-11-05"}, {"capabilities", json::object()}};
                std::string text = sse_event("garbage") + ":\n\n";
                text += sse_event(json::serialize(mcp::rpc_result(rpc.at("id"), std::move(result))),
                                  "message");
                if (method == "server/discover")
                    text = sse_event(json::serialize(mcp::rpc_error(rpc.at("id"), -32601, "?")));
                if (method != "tools/call" || answers) co_await stream->chunk(std::move(text));
            });
    }
    std::string url() const { return server->origin() + "/sse"; }

    std::unique_ptr<test::HttpServer> server;
    HttpPeerPtr stream;
    bool answers = true;
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(transport_sse, Fixture)

BOOST_AUTO_TEST_CASE(the_everything_server_works) {
    const auto port = test::free_port();
    const auto process = everything("sse", port);
    connect("http://127.0.0.1:" + std::to_string(port) + "/sse");
    BOOST_TEST((client->era() == McpEra::legacy));
    BOOST_TEST(test::run(context, client->list_tools()).size() >= 10u);
    BOOST_TEST(contains(text_of(call("echo", R"({"message":"hi"})")), "hi"));
    int reports = 0;
    CallOptions limits;
    limits.on_progress = [&](const CallProgress&) { ++reports; };
    call("trigger-long-running-operation", R"({"duration":0.2,"steps":4})", limits);
    BOOST_TEST(reports >= 3);
    BOOST_TEST(echoes("echo", 30) == 30);
}

BOOST_AUTO_TEST_CASE(the_python_sdk_s_server_works_and_its_death_is_noticed) {
    const auto port = test::free_port();
    auto process = fastmcp("sse", port);
    McpClientOptions options;
    options.capabilities["elicitation"] = json::object();
    options.on_request = [](std::string, json::object) -> awaitable<json::object> {
        co_return json::object{{"action", "accept"}, {"content", json::object{{"name", "Ada"}}}};
    };
    connect("http://127.0.0.1:" + std::to_string(port) + "/sse", std::move(options));
    BOOST_TEST(text_of(call("add", R"({"a":20,"b":22})")) == "42");
    BOOST_TEST(text_of(call("ask", "{}")) == "accept: Ada");
    BOOST_TEST(text_of(call("big", R"({"size":3000000})")).size() == 3'000'000u);
    CallOptions brief;
    brief.idle_timeout = 100ms;
    BOOST_TEST(
        (failure([&] { call("slow", R"({"seconds":60})", brief); }).code() == errc::timed_out));
    BOOST_TEST(text_of(call("add", R"({"a":1,"b":2})")) == "3");
    process.reset();
    until([&] { return !client->alive(); });
    BOOST_TEST((call_failure("add").code() == errc::mcp_connection));
}

BOOST_AUTO_TEST_CASE(the_endpoint_is_where_the_server_says_but_at_home) {
    serve("/messages?id=1");
    connect(url());
    BOOST_TEST(server->seen().back().target == "/messages?id=1");
    BOOST_TEST(client->protocol_version() == "2024-11-05");
    serve("messages");
    connect(url());
    BOOST_TEST(server->seen().back().target == "/messages");
    test::HttpServer other(context, [](HttpMessage, HttpPeerPtr peer) -> awaitable<void> {
        co_await peer->respond(202, "", "");
    });
    for (const std::string& away :
         {other.origin() + "/x", "//127.0.0.1:" + std::to_string(other.port()) + "/x",
          std::string("file:///x"), std::string("http://["), std::string("data:,x")}) {
        serve(away);
        const auto error = failure([&] { connect(url()); });
        BOOST_TEST((error.code() == errc::mcp_connection || error.code() == errc::bad_argument),
                   away);
        BOOST_TEST(server->seen().size() == 1u);
    }
    BOOST_TEST(other.connections() == 0);
}

BOOST_AUTO_TEST_CASE(what_is_no_event_stream_is_explained) {
    serve("");
    McpClientOptions options;
    options.connect_timeout = 100ms;
    BOOST_TEST((failure([&] { connect(url(), std::move(options)); }).code() == errc::timed_out));
    server->handle([](HttpMessage, HttpPeerPtr peer) -> awaitable<void> {
        co_await peer->respond(404, "", "");
    });
    BOOST_TEST(contains(failure([&] { connect(url()); }).detail(), "404"));
    server->handle([](HttpMessage, HttpPeerPtr peer) -> awaitable<void> {
        co_await peer->respond(401, "", "");
    });
    BOOST_TEST(contains(failure([&] { connect(url()); }).detail(), "ipybox auth login srv "));
    server->handle([](HttpMessage, HttpPeerPtr peer) -> awaitable<void> {
        co_await peer->write(
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: x\n\n");
        peer->keep = false;
    });
    BOOST_TEST(contains(failure([&] { connect(url()); }).detail(), "endpoint"));
}

BOOST_AUTO_TEST_CASE(the_end_of_the_stream_ends_every_call) {
    serve("/messages");
    connect(url());
    BOOST_TEST(call("x", "{}").content.empty());
    answers = false;
    std::optional<Error> ended;
    const auto one = [&]() -> awaitable<void> {
        std::string tool = "x";
        json::object arguments;
        CallOptions limits;
        try {
            co_await client->call_tool(std::move(tool), std::move(arguments), std::move(limits));
        } catch (const Error& error) {
            ended = error;
        }
    };
    asio::co_spawn(context, one(), asio::detached);
    until([&] { return contains(server->seen().back().body, "tools/call"); });
    stream->close();
    until([&] { return ended.has_value(); });
    BOOST_TEST((ended->code() == errc::mcp_connection));
    BOOST_TEST(contains(ended->detail(), "gone or was restarted"));
    BOOST_TEST(!client->alive());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace plugin_transport_sse_tests
