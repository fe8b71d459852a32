// The transport streamable_http with real servers of both eras, and with one that does what no
// server should.
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/test/unit_test.hpp>
#include <ipybox/mcp/sse.hpp>
#include <ipybox/oauth/protocol.hpp>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "http_fixture.hpp"

namespace plugin_transport_streamable_http_tests {

using namespace ipybox;
using namespace std::chrono_literals;
using mcp::sse_event;
using test::contains;
using test::HttpMessage;
using test::HttpPeerPtr;
using test::text_of;

namespace {

std::string answer_to(const json::object& request, json::object result) {
    return json::serialize(mcp::rpc_result(request.at("id"), std::move(result)));
}
std::string text_answer(const json::object& request, std::string text) {
    json::object block{{"type", "text"}, {"text", std::move(text)}};
    return answer_to(request, json::object{{"content", json::array{std::move(block)}}});
}
std::string notification(std::string_view method, json::object params = {}) {
    return json::serialize(mcp::rpc_notification(method, std::move(params)));
}
constexpr const char* json_type = "Content-Type: application/json\r\n";
constexpr const char* stream_type = "Content-Type: text/event-stream; charset=utf-8\r\n";

// A server that shakes hands properly and leaves everything else to the test.
struct Fixture : test::HttpFixture {
    using Reaction = std::function<awaitable<void>(json::object, HttpMessage, HttpPeerPtr)>;

    Fixture() : HttpFixture("streamable_http"), server(context, handler()) {
        on_call = [](json::object request, HttpMessage, HttpPeerPtr peer) -> awaitable<void> {
            std::string text = text_answer(request, json::serialize(request.at("params")));
            co_await peer->respond(200, json_type, std::move(text));
        };
        on_get = [](json::object, HttpMessage, HttpPeerPtr peer) -> awaitable<void> {
            co_await peer->respond(405, "", "");
        };
        on_discover = [](json::object, HttpMessage, HttpPeerPtr peer) -> awaitable<void> {
            co_await peer->respond(
                400, json_type,
                R"({"jsonrpc":"2.0","error":{"code":-32000,"message":"no"},"id":null})");
        };
    }

    test::HttpHandler handler() {
        return [this](HttpMessage message, HttpPeerPtr peer) -> awaitable<void> {
            json::object rpc;
            if (message.method == "POST") rpc = json::parse(message.body).as_object();
            const std::string method(detail::string_of(rpc, "method"));
            ++seen[message.method == "POST" ? method : message.method];
            if (message.method == "GET") {
                const auto react = on_get;
                co_await react(std::move(rpc), std::move(message), peer);
            } else if (message.method == "DELETE") {
                sessions.erase(std::string(message.header("Mcp-Session-Id")));
                co_await peer->respond(200, "", "");
            } else if (method == "server/discover") {
                const auto react = on_discover;
                co_await react(std::move(rpc), std::move(message), peer);
            } else if (method == "initialize") {
                co_await initialize(std::move(rpc), peer);
            } else if (!sessions.empty() &&
                       !sessions.contains(std::string(message.header("Mcp-Session-Id")))) {
                co_await peer->respond(404, "Content-Type: text/plain\r\n", "what session?");
            } else if (!rpc.contains("id") || method.empty()) {
                others.push_back(std::move(rpc));
                co_await sleep_until(Clock::now() + 5ms);
                co_await peer->respond(202, "", "");
            } else {
                const auto react = on_call;
                co_await react(std::move(rpc), std::move(message), peer);
            }
        };
    }
    awaitable<void> initialize(json::object rpc, HttpPeerPtr peer) {
        if (refuse_sessions) {
            co_await peer->respond(503, "Content-Type: text/plain\r\n", "overloaded");
            co_return;
        }
        const std::string session = "session-" + std::to_string(seen["initialize"]);
        sessions = {session};
        json::object capabilities{{"tools", json::object()}};
        json::object result{{"protocolVersion", "2025-11-25"},
                            {"capabilities", std::move(capabilities)}};
        std::string text = answer_to(rpc, std::move(result));
        std::string headers = std::string(json_type) + "Mcp-Session-Id: " + session + "\r\n";
        co_await peer->respond(200, std::move(headers), std::move(text));
    }
    void answer_discovery() {
        on_discover = [](json::object request, HttpMessage, HttpPeerPtr peer) -> awaitable<void> {
            json::object capabilities{{"tools", json::object()}};
            json::object result{{"supportedVersions", json::array{"2026-07-28"}},
                                {"capabilities", std::move(capabilities)}};
            std::string text = answer_to(request, std::move(result));
            co_await peer->respond(200, json_type, std::move(text));
        };
    }
    std::string url() const { return server.origin() + "/mcp"; }
    const HttpMessage& last(std::string_view method) const {
        for (auto message = server.seen().rbegin(); message != server.seen().rend(); ++message)
            if (contains(message->body, "\"" + std::string(method) + "\"") ||
                message->method == method)
                return *message;
        throw std::runtime_error("never seen: " + std::string(method));
    }
    void legacy() {
        McpClientOptions options;
        options.era = McpEra::legacy;
        options.on_tools_changed = [this] { ++changes; };
        connect(url(), std::move(options));
    }
    void modern() {
        answer_discovery();
        McpClientOptions options;
        options.era = McpEra::modern;
        connect(url(), std::move(options));
    }

    // From now on the server wants tokens, and gives them out itself.
    void protect() {
        const auto mcp = handler();
        server.handle([this, mcp](HttpMessage message, HttpPeerPtr peer) -> awaitable<void> {
            const auto origin = server.origin();
            json::object document;
            if (message.target == "/.well-known/oauth-protected-resource/mcp") {
                document["resource"] = url();
                document["authorization_servers"] = json::array{json::value(origin)};
            } else if (message.target == "/.well-known/oauth-authorization-server") {
                document["issuer"] = origin;
                document["token_endpoint"] = origin + "/token";
                document["authorization_endpoint"] = origin + "/authorize";
                document["response_types_supported"] = json::array{"code"};
                document["code_challenge_methods_supported"] = json::array{"S256"};
                document["grant_types_supported"] = json::array{"client_credentials"};
            } else if (message.target == "/token") {
                document["access_token"] = "token-" + std::to_string(++tokens);
                document["token_type"] = "Bearer";
                document["expires_in"] = 3600;
            } else if (message.target != "/mcp") {
                co_await peer->respond(404, "", "");
                co_return;
            } else if (tokens == 0 || message.header("Authorization") !=
                                          "Bearer token-" + std::to_string(tokens)) {
                std::string challenge = "WWW-Authenticate: Bearer resource_metadata=\"" + origin +
                                        "/.well-known/oauth-protected-resource/mcp\"\r\n";
                co_await peer->respond(401, std::move(challenge), "");
                co_return;
            } else {
                co_await mcp(std::move(message), peer);
                co_return;
            }
            std::string text = json::serialize(document);
            co_await peer->respond(200, json_type, std::move(text));
        });
    }

    std::map<std::string, int> seen;  // by method of the protocol, or of HTTP
    int tokens = 0;                   // given out
    std::set<std::string> sessions;
    bool refuse_sessions = false;
    std::vector<json::object> others;  // notifications and answers
    int changes = 0;
    Reaction on_call, on_get, on_discover;
    test::HttpServer server;
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(transport_streamable_http, Fixture)

BOOST_AUTO_TEST_CASE(the_everything_server_works_and_is_found_again_after_its_restart) {
    const auto port = test::free_port();
    auto process = everything("streamableHttp", port);
    McpClientOptions options;
    options.on_tools_changed = [this] { ++changes; };
    connect("http://127.0.0.1:" + std::to_string(port) + "/mcp", std::move(options));
    BOOST_TEST((client->era() == McpEra::legacy));
    BOOST_TEST(test::run(context, client->list_tools()).size() >= 10u);
    BOOST_TEST(contains(text_of(call("echo", R"({"message":"hi"})")), "hi"));
    bool image = false;
    for (const auto& block : call("get-tiny-image", "{}").content)
        image = image || block.at("type").as_string() == "image";
    BOOST_TEST(image);
    BOOST_TEST(call("get-structured-content", R"({"location":"New York"})")
                   .structured_content.has_value());
    int reports = 0;
    CallOptions limits;
    limits.on_progress = [&](const CallProgress&) { ++reports; };
    call("trigger-long-running-operation", R"({"duration":0.2,"steps":4})", limits);
    BOOST_TEST(reports >= 3);
    BOOST_TEST(echoes("echo", 50) == 50);

    changes = 0;
    process.reset();
    const auto gone = call_failure("echo");
    BOOST_TEST((gone.code() == errc::mcp_connection));
    BOOST_TEST(client->alive());
    process = everything("streamableHttp", port);
    BOOST_TEST(contains(text_of(call("echo", R"({"message":"again"})")), "again"));
    until([&] { return changes >= 1; });
}

BOOST_AUTO_TEST_CASE(the_python_sdk_s_server_speaks_the_modern_protocol_and_the_legacy_one) {
    const auto port = test::free_port();
    const auto process = fastmcp("streamable-http", port);
    const std::string where = "http://127.0.0.1:" + std::to_string(port) + "/mcp";
    connect(where);
    BOOST_TEST((client->era() == McpEra::modern));
    BOOST_TEST(test::run(context, client->list_tools()).size() == 6u);
    BOOST_TEST(text_of(call("add", R"({"a":20,"b":22})")) == "42");
    BOOST_TEST(text_of(call("big", R"({"size":3000000})")).size() == 3'000'000u);
    // The server compares the header with the argument.
    for (const char* place : {"north", " blank ", "Zürich", "=?base64?eA==?=", "a\\nb"})
        BOOST_TEST(!text_of(call("region", "{\"where\":\"" + std::string(place) + "\"}")).empty(),
                   place);
    int reports = 0;
    CallOptions limits;
    limits.on_progress = [&](const CallProgress&) { ++reports; };
    BOOST_TEST(text_of(call("report", R"({"steps":5})", limits)) == "reported");
    BOOST_TEST(reports == 5);
    CallOptions brief;
    brief.idle_timeout = 100ms;
    BOOST_TEST(
        (failure([&] { call("slow", R"({"seconds":60})", brief); }).code() == errc::timed_out));

    McpClientOptions options;
    options.era = McpEra::legacy;
    options.capabilities["elicitation"] = json::object();
    options.on_request = [](std::string, json::object) -> awaitable<json::object> {
        co_return json::object{{"action", "accept"}, {"content", json::object{{"name", "Ada"}}}};
    };
    connect(where, std::move(options));
    BOOST_TEST(client->protocol_version() == "2025-11-25");
    BOOST_TEST(text_of(call("ask", "{}")) == "accept: Ada");
    BOOST_TEST(text_of(call("report", R"({"steps":2})", limits)) == "reported");
    BOOST_TEST(
        (failure([&] { call("slow", R"({"seconds":60})", brief); }).code() == errc::timed_out));
    BOOST_TEST(text_of(call("add", R"({"a":1,"b":2})")) == "3");
}

BOOST_AUTO_TEST_CASE(a_legacy_session_has_its_headers_its_order_and_its_end) {
    json::object headers{{"X-Key", "k-123456"}, {"content-type", "text/plain"}};
    connect(url(), McpClientOptions(), std::move(headers));
    BOOST_TEST((client->era() == McpEra::legacy));
    call("any", "{}");
    for (const auto& message : server.seen()) {
        BOOST_TEST(message.header("X-Key") == "k-123456");
        if (message.method != "POST") continue;
        BOOST_TEST(message.count("Content-Type") == 1u);
        BOOST_TEST(message.header("Content-Type") == "application/json");
        BOOST_TEST(message.header("Accept") == "application/json, text/event-stream");
    }
    BOOST_TEST(last("server/discover").header("MCP-Protocol-Version") == "2026-07-28");
    BOOST_TEST(last("initialize").header("MCP-Protocol-Version").empty());
    BOOST_TEST(last("initialize").header("Mcp-Session-Id").empty());
    const auto& called = last("tools/call");
    BOOST_TEST(called.header("Mcp-Session-Id") == "session-1");
    BOOST_TEST(called.header("MCP-Protocol-Version") == "2025-11-25");
    BOOST_TEST(called.header("Mcp-Method").empty());
    // "initialized" was answered before anything else was sent.
    std::vector<std::string> order;
    for (const auto& message : server.seen())
        order.push_back(contains(message.body, "notifications/initialized") ? "initialized"
                        : contains(message.body, "tools/call")              ? "call"
                                                                            : message.method);
    BOOST_TEST((std::find(order.begin(), order.end(), "initialized") <
                std::find(order.begin(), order.end(), "call")));
    until([&] { return seen["GET"] == 1; });
    test::run(context, client->close());
    BOOST_TEST(seen["DELETE"] == 1);
    BOOST_TEST(sessions.empty());
    BOOST_TEST(last("DELETE").header("Mcp-Session-Id") == "session-1");
}

BOOST_AUTO_TEST_CASE(modern_requests_say_in_headers_what_they_are) {
    modern();
    on_call = [](json::object request, HttpMessage, HttpPeerPtr peer) -> awaitable<void> {
        std::string text = text_answer(request, "ok");
        if (detail::string_of(request, "method") == "tools/list")
            text = answer_to(
                request,
                json::parse(
                    R"({"tools": [{"name": "t", "inputSchema": {"type": "object", "properties": {
                "s": {"type": "string", "x-mcp-header": "S"}, "n": {"type": "number", "x-mcp-header": "N"},
                "i": {"type": "integer", "x-mcp-header": "I"}, "b": {"type": "boolean", "x-mcp-header": "B"},
                "z": {"type": "string", "x-mcp-header": "Z"}, "bad": {"type": "string", "x-mcp-header": "a b\r\nX: y"},
                "o": {"type": "object", "properties": {"p": {"type": "string", "x-mcp-header": "P"}}}}}}]})")
                    .as_object());
        co_await peer->respond(200, json_type, std::move(text));
    };
    test::run(context, client->list_tools());
    call("t", R"({"s":"plain text","n":1.5,"i":-7,"b":true,"z":null,"bad":"x","o":{"p":"dö"}})");
    const auto& first = last("tools/call");
    BOOST_TEST(first.header("MCP-Protocol-Version") == "2026-07-28");
    BOOST_TEST(first.header("Mcp-Method") == "tools/call");
    BOOST_TEST(first.header("Mcp-Name") == "t");
    BOOST_TEST(first.header("Mcp-Param-S") == "plain text");
    BOOST_TEST(first.header("Mcp-Param-N") == "1.5");
    BOOST_TEST(first.header("Mcp-Param-I") == "-7");
    BOOST_TEST(first.header("Mcp-Param-B") == "true");
    BOOST_TEST(first.header("Mcp-Param-P") == "=?base64?ZMO2?=");
    BOOST_TEST(first.count("Mcp-Param-Z") == 0u);
    BOOST_TEST(first.count("Mcp-Session-Id") == 0u);
    BOOST_TEST(first.count("X") == 0u);
    call("name\nX-Evil: 1", "{}");
    BOOST_TEST(last("tools/call").header("Mcp-Name") == "=?base64?bmFtZQpYLUV2aWw6IDE=?=");
    BOOST_TEST(last("tools/call").count("X-Evil") == 0u);
    json::object uri{{"uri", "file:///x"}};
    test::run(context, client->request("resources/read", std::move(uri), CallOptions()));
    BOOST_TEST(last("resources/read").header("Mcp-Name") == "file:///x");
    BOOST_TEST(seen["GET"] == 0);
}

BOOST_AUTO_TEST_CASE(giving_up_a_modern_request_closes_its_stream) {
    modern();
    bool hung_up = false;
    on_call = [&](json::object, HttpMessage, HttpPeerPtr peer) -> awaitable<void> {
        co_await peer->begin_chunks(stream_type);
        std::string event = sse_event(notification("notifications/message"));
        co_await peer->chunk(std::move(event));
        co_await peer->wait_for_end();
        hung_up = true;
    };
    CallOptions brief;
    brief.idle_timeout = 50ms;
    BOOST_TEST((call_failure("slow", brief).code() == errc::timed_out));
    until([&] { return hung_up; });
    // Also one that has not even a head yet.
    on_call = [&](json::object, HttpMessage, HttpPeerPtr peer) -> awaitable<void> {
        co_await peer->wait_for_end();
        hung_up = true;
    };
    hung_up = false;
    BOOST_TEST((call_failure("slow", brief).code() == errc::timed_out));
    until([&] { return hung_up; });
    BOOST_TEST(others.empty());
}

BOOST_AUTO_TEST_CASE(servers_of_the_past_are_recognised_whatever_they_answer) {
    using Answer = std::pair<unsigned, std::string>;
    for (
        const auto& [status, body] : std::vector<Answer>{
            {400,
             R"({"jsonrpc":"2.0","error":{"code":-32000,"message":"No valid session ID provided"},"id":null})"},
            {400, R"({"jsonrpc":"2.0","id":"server-error","error":{"code":-32600,"message":"x"}})"},
            {200,
             R"({"jsonrpc":"2.0","error":{"code":-32601,"message":"Method not found"},"id":null})"},
            {404, "<html>Not Found</html>"},
            {401, "who are you"},
            {405, ""},
            {500, "oops"},
            {400, "[1,2"},
            {200, "welcome"},
            {202, ""},
            {403, "{}"},
            {400,
             R"({"jsonrpc":"2.0","id":1,"error":{"code":-32022,"message":"x","data":{"supported":["2025-06-18"]}}})"}}) {
        on_discover = [&](json::object, HttpMessage, HttpPeerPtr peer) -> awaitable<void> {
            std::string headers =
                body.starts_with('{') ? json_type : "Content-Type: text/plain\r\n";
            co_await peer->respond(status, std::move(headers), body);
        };
        connect(url());
        BOOST_TEST((client->era() == McpEra::legacy), status << " " << body);
        BOOST_TEST(contains(text_of(call("x", "{}")), "\"name\":\"x\""));
    }
}

BOOST_AUTO_TEST_CASE(a_forgotten_session_is_opened_once_more_for_all_calls) {
    legacy();
    call("x", R"({"message":"1"})");
    sessions = {"another"};
    BOOST_TEST(echoes("echo", 20) == 20);
    BOOST_TEST(seen["initialize"] == 2);
    BOOST_TEST(seen["notifications/initialized"] == 2);
    BOOST_TEST(seen["tools/call"] <= 41);
    until([&] { return changes == 1; });
    BOOST_TEST(last("tools/call").header("Mcp-Session-Id") == "session-2");
    BOOST_TEST(last("initialize").header("Mcp-Session-Id").empty());

    // What held for the session holds for the next.
    json::object level{{"level", "error"}}, uri{{"uri", "file:///x"}}, other{{"uri", "file:///y"}};
    CallOptions limits;
    test::run(context, client->request("logging/setLevel", level, limits));
    test::run(context, client->subscribe("file:///x"));
    test::run(context, client->subscribe("file:///y"));
    test::run(context, client->unsubscribe("file:///y"));
    sessions = {"another"};
    call("x", "{}");
    BOOST_TEST(seen["logging/setLevel"] == 2);
    BOOST_TEST(seen["resources/subscribe"] == 3);
    BOOST_TEST(last("resources/subscribe").header("Mcp-Session-Id") == "session-3");
    BOOST_TEST(contains(last("resources/subscribe").body, "file:///x"));

    // A server that forgets at once: one more try, then an error.
    on_call = [](json::object, HttpMessage, HttpPeerPtr peer) -> awaitable<void> {
        co_await peer->respond(404, "", "");
    };
    const auto before = seen["initialize"];
    BOOST_TEST(contains(call_failure("x").detail(), "forgets its sessions"));
    BOOST_TEST(seen["initialize"] == before + 1);
    // As some servers say it.
    on_call = [&](json::object request, HttpMessage message, HttpPeerPtr peer) -> awaitable<void> {
        if (message.header("Mcp-Session-Id") == "session-4") {
            co_await peer->respond(
                400, json_type,
                R"({"jsonrpc":"2.0","error":{"code":-32000,"message":"Bad Request: No valid session ID provided"},"id":null})");
        } else {
            std::string text = text_answer(request, "fine");
            co_await peer->respond(200, json_type, std::move(text));
        }
    };
    BOOST_TEST(text_of(call("x", "{}")) == "fine");
}

BOOST_AUTO_TEST_CASE(a_session_that_cannot_be_opened_again_is_an_error_for_now) {
    legacy();
    sessions = {"another"};
    refuse_sessions = true;
    const auto error = call_failure("x");
    BOOST_TEST((error.code() == errc::mcp_connection));
    BOOST_TEST(contains(error.detail(), "could not be opened again"));
    BOOST_TEST(contains(error.detail(), "503"));
    refuse_sessions = false;
    BOOST_TEST(contains(text_of(call("x", "{}")), "x"));
}

BOOST_AUTO_TEST_CASE(a_stream_that_breaks_off_is_taken_up_where_it_was) {
    legacy();
    json::object asked;
    on_call = [&](json::object request, HttpMessage, HttpPeerPtr peer) -> awaitable<void> {
        asked = request;
        co_await peer->begin_chunks(stream_type);
        co_await peer->chunk(sse_event("", "", "e1", 60ms));
        co_await peer->chunk("");
    };
    int resumed = 0;
    std::vector<std::string> ids;
    on_get = [&](json::object, HttpMessage message, HttpPeerPtr peer) -> awaitable<void> {
        const std::string id(message.header("Last-Event-ID"));
        if (id.empty()) {
            co_await peer->respond(405, "", "");
            co_return;
        }
        ids.push_back(id);
        co_await peer->begin_chunks(stream_type);
        if (++resumed == 1) {
            peer->keep = false;  // broken off in the middle of an event
            co_await peer->chunk(sse_event(notification("notifications/message"), "", "e2") +
                                 "id: e3\ndata: {\"js");
            co_return;
        }
        co_await peer->chunk(sse_event(text_answer(asked, "late"), "message", "e4"));
        co_await peer->chunk("");
    };
    BOOST_TEST(text_of(call("x", "{}")) == "late");
    BOOST_TEST((ids == std::vector<std::string>{"e1", "e2"}));
    BOOST_TEST(seen["tools/call"] == 1);

    // Not forever.
    on_get = [&](json::object, HttpMessage, HttpPeerPtr peer) -> awaitable<void> {
        co_await peer->begin_chunks(stream_type);
        co_await peer->chunk("");
    };
    on_call = [&](json::object, HttpMessage, HttpPeerPtr peer) -> awaitable<void> {
        co_await peer->begin_chunks(stream_type);
        co_await peer->chunk(sse_event("", "", "e1", 1ms));
        co_await peer->chunk("");
    };
    const auto gets = seen["GET"];
    const auto error = call_failure("x");
    BOOST_TEST(contains(error.detail(), "could not be taken up again"));
    BOOST_TEST(seen["GET"] <= gets + 10);
    // A server that does not want to.
    on_get = [&](json::object, HttpMessage, HttpPeerPtr peer) -> awaitable<void> {
        co_await peer->respond(405, "", "");
    };
    BOOST_TEST(contains(call_failure("x").detail(), "405"));
    // Nothing to take up.
    on_call = [&](json::object, HttpMessage, HttpPeerPtr peer) -> awaitable<void> {
        co_await peer->begin_chunks(stream_type);
        peer->keep = false;
    };
    BOOST_TEST((call_failure("x").code() == errc::mcp_connection));
}

BOOST_AUTO_TEST_CASE(the_server_s_own_messages_come_by_a_stream_that_is_kept_up) {
    std::vector<std::string> ids;
    on_get = [&](json::object, HttpMessage message, HttpPeerPtr peer) -> awaitable<void> {
        ids.emplace_back(message.header("Last-Event-ID"));
        const auto number = std::to_string(ids.size());
        co_await peer->begin_chunks(stream_type);
        co_await peer->chunk(sse_event("", "", number, 10ms) + std::string(mcp::sse_keep_alive));
        co_await peer->chunk(
            sse_event(notification("notifications/tools/list_changed"), "", number + "b"));
        if (ids.size() < 3) {
            co_await peer->chunk("");
        } else {
            co_await peer->chunk(sse_event(R"({"jsonrpc":"2.0","id":"s1","method":"ping"})"));
            co_await peer->wait_for_end();
        }
    };
    legacy();
    until([&] { return changes >= 1 && !others.empty() && others.back().contains("result"); });
    BOOST_TEST((ids == std::vector<std::string>{"", "1b", "2b"}));
    BOOST_TEST(others.back().at("id") == "s1");
    BOOST_TEST(contains(text_of(call("x", "{}")), "x"));
}

BOOST_AUTO_TEST_CASE(answers_that_are_none_are_one_clear_error_each) {
    legacy();
    using Wrong = std::pair<std::string, std::string>;
    for (const auto& [body, part] :
         std::vector<Wrong>{{"{\"jsonrpc\"", "no JSON"},
                            {"42", "no JSON object"},
                            {"", "no JSON"},
                            {"[]", "did not answer"},
                            {R"({"jsonrpc":"2.0","id":987654,"result":{}})", "did not answer"},
                            {R"({"jsonrpc":"2.0","method":"x"})", "did not answer"},
                            {std::string(100'000, '['), "no JSON"}}) {
        on_call = [&](json::object, HttpMessage, HttpPeerPtr peer) -> awaitable<void> {
            co_await peer->respond(200, json_type, body);
        };
        BOOST_TEST(contains(call_failure("x").detail(), part), body.substr(0, 60));
    }
    on_call = [&](json::object, HttpMessage, HttpPeerPtr peer) -> awaitable<void> {
        co_await peer->respond(200, "Content-Type: text/html\r\n", "<html>");
    };
    BOOST_TEST(contains(call_failure("x").detail(), "text/html"));
    on_call = [&](json::object, HttpMessage, HttpPeerPtr peer) -> awaitable<void> {
        co_await peer->respond(202, "", "");
    };
    BOOST_TEST(contains(call_failure("x").detail(), "no content"));
    on_call = [&](json::object, HttpMessage, HttpPeerPtr peer) -> awaitable<void> {
        peer->keep = false;
        co_return;
    };
    BOOST_TEST((call_failure("x").code() == errc::mcp_connection));
    on_call = [&](json::object, HttpMessage, HttpPeerPtr peer) -> awaitable<void> {
        co_await peer->respond(
            400, json_type,
            R"({"jsonrpc":"2.0","id":null,"error":{"code":-32602,"message":"bad input"}})");
    };
    const auto refused = call_failure("x");
    BOOST_TEST((refused.code() == errc::mcp_error));
    BOOST_TEST(contains(refused.detail(), "bad input"));
}

BOOST_AUTO_TEST_CASE(noise_in_a_stream_is_skipped_and_each_request_gets_one_answer) {
    legacy();
    on_call = [&](json::object request, HttpMessage, HttpPeerPtr peer) -> awaitable<void> {
        co_await peer->begin_chunks(stream_type);
        std::string noise =
            ":\r\n\r\ndata: nonsense\r\n\r\ndata: {\"jsonrpc\":1}\n\nevent: other\ndata: "
            "{}\n\ndata:\n\n";
        noise += sse_event(R"({"jsonrpc":"2.0","id":987654,"result":{}})");
        noise +=
            sse_event(R"({"jsonrpc":"2.0","id":"never sent","error":{"code":1,"message":"x"}})");
        co_await peer->chunk(std::move(noise));
        std::string text = sse_event(text_answer(request, "first"));
        text += sse_event(text_answer(request, "second"));
        for (const char c : text) co_await peer->chunk(std::string(1, c));
        co_await peer->chunk("");
    };
    BOOST_TEST(text_of(call("x", "{}")) == "first");
    BOOST_TEST(text_of(call("x", "{}")) == "first");
    // One that neither ends its stream nor stops sending after its answer.
    bool hung_up = false;
    on_call = [&](json::object request, HttpMessage, HttpPeerPtr peer) -> awaitable<void> {
        co_await peer->begin_chunks(stream_type);
        std::string text = sse_event(text_answer(request, "endless"));
        co_await peer->chunk(std::move(text));
        co_await peer->wait_for_end();
        hung_up = true;
    };
    BOOST_TEST(text_of(call("x", "{}")) == "endless");
    until([&] { return hung_up; });
}

BOOST_AUTO_TEST_CASE(a_message_beyond_all_measure_ends_its_request_alone) {
    legacy();
    on_call = [&](json::object, HttpMessage message, HttpPeerPtr peer) -> awaitable<void> {
        std::string type = contains(message.body, "stream") ? stream_type : json_type;
        co_await peer->begin_chunks(std::move(type));
        const std::string piece(1 << 20, 'x');
        co_await peer->chunk("data: \"");
        for (int i = 0; i < 100; ++i) co_await peer->chunk(piece);
        co_await peer->chunk("");
    };
    const auto streamed = call_failure("stream");
    BOOST_TEST((streamed.code() == errc::mcp_protocol));
    BOOST_TEST(contains(streamed.detail(), "32 MiB"));
    BOOST_TEST(contains(call_failure("whole").detail(), "bytes"));
    on_call = [](json::object request, HttpMessage, HttpPeerPtr peer) -> awaitable<void> {
        std::string text = text_answer(request, std::string(20 << 20, 'y'));
        co_await peer->respond(200, json_type, std::move(text));
    };
    BOOST_TEST(text_of(call("large", "{}")).size() == std::size_t{20} << 20);
}

BOOST_AUTO_TEST_CASE(an_endless_stream_neither_stalls_others_nor_grows) {
    std::size_t sent = 0;
    on_call = [&](json::object request, HttpMessage message, HttpPeerPtr peer) -> awaitable<void> {
        if (contains(message.body, "endless")) {
            co_await peer->begin_chunks(stream_type);
            const json::object params{{"level", "debug"}, {"data", std::string(10'000, 'x')}};
            const std::string event = sse_event(notification("notifications/message", params));
            for (;;) {
                co_await peer->chunk(event);
                sent += event.size();
            }
        }
        std::string text = text_answer(request, json::serialize(request.at("params")));
        co_await peer->respond(200, json_type, std::move(text));
    };
    legacy();
    CallOptions brief;
    brief.total_timeout = 400ms;
    std::optional<Error> ended;
    const auto endless = [&]() -> awaitable<void> {
        std::string tool = "endless";
        json::object arguments;
        try {
            co_await client->call_tool(std::move(tool), std::move(arguments), brief);
        } catch (const Error& error) {
            ended = error;
        }
    };
    asio::co_spawn(context, endless(), asio::detached);
    BOOST_TEST(echoes("echo", 20) == 20);
    until([&] { return ended.has_value(); });
    BOOST_TEST((ended->code() == errc::timed_out));
    test::run(context, client->close());

    // Nobody takes the messages: the server has to wait.
    sent = 0;
    auto raw = transport(url());
    test::run(context, raw->open(*sandbox));
    auto request = mcp::rpc_request(1, "tools/call", {{"name", "endless"}});
    sessions.clear();
    asio::co_spawn(context, raw->send(std::move(request)), asio::detached);
    std::size_t before = 1;
    while (before != sent) {
        before = sent;
        test::run(context, sleep_until(Clock::now() + 200ms));
    }
    BOOST_TEST(sent > std::size_t{1} << 20);
    // Ours is 16 MiB; the system's buffers hold what it lets them grow to, 36 MiB on newer kernels.
    BOOST_TEST(sent < std::size_t{64} << 20);
    const auto message = test::run(context, raw->receive());
    BOOST_TEST(detail::string_of(message, "method") == "notifications/message");
}

BOOST_AUTO_TEST_CASE(redirects_and_secrets_stay_at_home) {
    test::HttpServer other(context, [](HttpMessage, HttpPeerPtr peer) -> awaitable<void> {
        co_await peer->respond(200, "", "");
    });
    json::object headers{{"Authorization", "Bearer s3cret-value"}};
    McpClientOptions options;
    options.era = McpEra::legacy;
    connect(url() + "?key=s3cret-value", std::move(options), std::move(headers));
    on_call = [&](json::object request, HttpMessage message, HttpPeerPtr peer) -> awaitable<void> {
        std::string text = text_answer(request, "moved");
        if (contains(message.body, "away")) {
            co_await peer->respond(307, "Location: " + other.origin() + "/mcp\r\n", "");
        } else if (message.target.starts_with("/mcp")) {
            co_await peer->respond(307, "Location: /other/\r\n", "");
        } else {
            co_await peer->respond(200, json_type, std::move(text));
        }
    };
    BOOST_TEST(text_of(call("near", "{}")) == "moved");
    const auto away = call_failure("away").detail();
    BOOST_TEST(contains(away, other.origin()));
    BOOST_TEST(other.connections() == 0);
    on_call = [&](json::object, HttpMessage message, HttpPeerPtr peer) -> awaitable<void> {
        std::string echo = "you sent " + std::string(message.header("Authorization"));
        co_await peer->respond(500, "Content-Type: text/plain\r\n", std::move(echo));
    };
    const auto broken = call_failure("x");
    BOOST_TEST((broken.code() == errc::mcp_connection));
    BOOST_TEST(contains(broken.detail(), "500: you sent [hidden]"));
    on_call = [&](json::object, HttpMessage, HttpPeerPtr peer) -> awaitable<void> {
        co_await peer->respond(401, "", "");
    };
    const auto unknown = call_failure("x");
    BOOST_TEST(contains(unknown.detail(), "ipybox auth login srv "));
    for (const auto& text : {away, broken.detail(), unknown.detail()})
        BOOST_TEST(!contains(text, "s3cret"));
    for (const auto& line : log) BOOST_TEST(!contains(line, "s3cret"));
}

BOOST_AUTO_TEST_CASE(a_wrong_address_is_explained) {
    const auto why = [&](const std::string& where) {
        return failure([&] { connect(where); }).detail();
    };
    const auto port = std::to_string(test::free_port());
    BOOST_TEST(contains(why("http://127.0.0.1:" + port + "/mcp"), "is the server running?"));
    BOOST_TEST(contains(why("file:///etc/passwd"), "http://"));
    server.handle([](HttpMessage, HttpPeerPtr peer) -> awaitable<void> {
        co_await peer->respond(404, "Content-Type: text/html\r\n", "<html>nothing here</html>");
    });
    BOOST_TEST(contains(why(url()), "404; is the path of its URL right?"));
    server.handle([](HttpMessage, HttpPeerPtr peer) -> awaitable<void> {
        co_await peer->respond(401, "WWW-Authenticate: Bearer\r\n", "");
    });
    BOOST_TEST(contains(why(url()), "ipybox auth login srv "));
    server.handle([](HttpMessage, HttpPeerPtr peer) -> awaitable<void> {
        co_await peer->write("SSH-2.0-x\r\n");
        peer->keep = false;
    });
    BOOST_TEST(contains(why(url()), "no HTTP response"));
}

BOOST_AUTO_TEST_CASE(a_server_that_wants_tokens_gets_them) {
    protect();
    json::object auth{
        {"grant", "client_credentials"}, {"client_id", "me"}, {"client_secret", "s3cret-value"}};
    json::object config{{"url", url()}, {"auth", auth}};
    ::setenv("XDG_DATA_HOME", directory.path().c_str(), 1);
    McpClientOptions options;
    options.name = "srv";
    options.era = McpEra::legacy;
    client = std::make_unique<McpClient>(
        host.executor, registry.make<McpTransport>(plugin, host, config), std::move(options));
    test::run(context, client->connect(*sandbox));
    BOOST_TEST(tokens == 1);
    BOOST_TEST(contains(text_of(call("x", "{}")), "x"));
    BOOST_TEST(last("tools/call").header("Authorization") == "Bearer token-1");
    BOOST_TEST(seen["tools/call"] == 1);
    // The server forgets it: there is another.
    ++tokens;
    BOOST_TEST(contains(text_of(call("x", "{}")), "x"));
    BOOST_TEST(tokens == 3);
    BOOST_TEST(seen["tools/call"] == 2);
    test::run(context, client->close());
    ::unsetenv("XDG_DATA_HOME");
    for (const auto& line : log)
        BOOST_TEST((!contains(line, "s3cret") && !contains(line, "token-1")));
}

BOOST_AUTO_TEST_CASE(a_person_may_take_longer_than_the_server) {
    protect();
    const test::TemporaryDirectory home;
    ::setenv("XDG_DATA_HOME", home.path().c_str(), 1);
    int asked = 0;
    host.browse = [&](std::string page) -> awaitable<std::string> {
        ++asked;
        co_await sleep_until(Clock::now() + 1200ms);
        const auto query = oauth::parse_query(oauth::query_of(page)).value();
        oauth::Form answer;
        answer.emplace_back("code", "c");
        answer.emplace_back("state", query.at("state"));
        co_return query.at("redirect_uri") + "?" + oauth::encode_form(answer);
    };
    json::object auth{{"client_id", "me"}};
    json::object config{{"url", url()}, {"auth", auth}};
    McpClientOptions options;
    options.name = "srv";
    options.era = McpEra::modern;
    options.connect_timeout = 800ms;
    answer_discovery();
    client = std::make_unique<McpClient>(
        host.executor, registry.make<McpTransport>(plugin, host, config), std::move(options));
    test::run(context, client->connect(*sandbox));
    BOOST_TEST(asked == 1);
    // Nor does it count as the server's idleness in a call.
    ++tokens;
    CallOptions brief;
    brief.idle_timeout = 800ms;
    BOOST_TEST(contains(text_of(call("x", "{}", brief)), "x"));
    BOOST_TEST(asked == 2);
    test::run(context, client->close());
    ::unsetenv("XDG_DATA_HOME");
}

BOOST_AUTO_TEST_CASE(closing_and_destroying_end_what_is_in_flight) {
    legacy();
    int waiting = 0, hung_up = 0;
    on_call = [&](json::object, HttpMessage, HttpPeerPtr peer) -> awaitable<void> {
        ++waiting;
        co_await peer->begin_chunks(stream_type);
        co_await peer->wait_for_end();
        ++hung_up;
    };
    int cancelled = 0;
    const auto one = [&]() -> awaitable<void> {
        std::string tool = "x";
        json::object arguments;
        CallOptions limits;
        try {
            co_await client->call_tool(std::move(tool), std::move(arguments), std::move(limits));
        } catch (const Error& error) {
            cancelled += error.code() == errc::cancelled;
        }
    };
    for (int i = 0; i < 5; ++i) asio::co_spawn(context, one(), asio::detached);
    until([&] { return waiting == 5; });
    test::run(context, client->close());
    until([&] { return cancelled == 5 && hung_up == 5; });
    legacy();
    for (int i = 0; i < 5; ++i) asio::co_spawn(context, one(), asio::detached);
    until([&] { return waiting == 10; });
    client.reset();
    until([&] { return cancelled == 10 && hung_up == 10; });
    auto raw = transport(url());
    test::run(context, raw->open(*sandbox));
    test::run(context, raw->close());
    BOOST_TEST((failure([&] { test::run(context, raw->receive()); }).code() == errc::cancelled));
    BOOST_TEST((failure([&] {
                    test::run(context, raw->send(mcp::rpc_notification("x", {})));
                }).code() == errc::cancelled));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace plugin_transport_streamable_http_tests
