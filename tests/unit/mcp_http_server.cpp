// McpHttpServer on a port: who may use it, sessions and their streams, hostile clients, many
// clients.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/read.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/test/unit_test.hpp>
#include <fstream>
#include <iostream>
#include <ipybox/mcp/client.hpp>
#include <ipybox/mcp/http_server.hpp>
#include <ipybox/mcp/http_transport.hpp>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "test_support.hpp"

namespace mcp_http_server_tests {

using namespace ipybox;
using namespace std::chrono_literals;

namespace {

using Tcp = asio::ip::tcp;
using Result = awaitable<McpToolResult>;

json::object object(std::string_view text) { return json::parse(text).as_object(); }

struct Answer {
    unsigned status = 0;
    std::string head, body;
    std::string header(std::string_view name) const {
        std::size_t at = 0;
        while ((at = head.find("\r\n", at)) != head.npos) {
            at += 2;
            const auto colon = head.find(':', at);
            if (colon != head.npos &&
                net::same_without_case(std::string_view(head).substr(at, colon - at), name))
                return head.substr(colon + 2, head.find("\r\n", colon) - colon - 2);
        }
        return {};
    }
    json::object json() const { return object(body); }
    // What the events of a stream carry; chunk sizes are skipped.
    std::vector<json::object> messages() const {
        std::vector<json::object> found;
        for (const auto& line : lines("data: {")) found.push_back(object("{" + line));
        return found;
    }
    std::vector<std::string> lines(std::string_view prefix) const {
        std::vector<std::string> found;
        for (std::size_t at = 0; at < body.size();) {
            const auto end = std::min(body.find('\n', at), body.size());
            const auto line = std::string_view(body).substr(at, end - at);
            if (line.starts_with(prefix)) found.emplace_back(line.substr(prefix.size()));
            at = end + 1;
        }
        return found;
    }
};

// One connection, spoken on by hand.
struct Connection {
    Connection(asio::io_context& context, unsigned short port) : socket(context) {
        socket.connect({asio::ip::address_v4::loopback(), port});
    }
    awaitable<void> send(std::string text) {
        co_await asio::async_write(socket, asio::buffer(text), asio::use_awaitable);
    }
    // Reads until `end` has come; false when the server closed first.
    awaitable<bool> read_to(std::string end) {
        while (received.find(end) == received.npos) {
            char chunk[16384];
            auto [error, size] = co_await socket.async_read_some(asio::buffer(chunk), as_result);
            if (error) co_return false;
            received.append(chunk, size);
        }
        co_return true;
    }
    // A whole answer: by its length, to the last chunk, or to the end of the connection.
    awaitable<Answer> read() {
        Answer answer;
        const bool whole = co_await read_to("\r\n\r\n");
        if (!whole) throw std::runtime_error("no answer");
        const auto split = received.find("\r\n\r\n") + 2;
        answer.head = received.substr(0, split);
        received.erase(0, split + 2);
        answer.status = static_cast<unsigned>(std::stoi(answer.head.substr(9)));
        if (const auto length = answer.header("Content-Length"); !length.empty()) {
            while (received.size() < std::stoul(length)) {
                char chunk[65536];
                const auto size =
                    co_await socket.async_read_some(asio::buffer(chunk), asio::use_awaitable);
                received.append(chunk, size);
            }
            answer.body = received.substr(0, std::stoul(length));
            received.erase(0, std::stoul(length));
        } else if (answer.status >= 200 && answer.status != 204) {
            const bool chunked = co_await read_to("0\r\n\r\n");
            const auto end = chunked ? received.find("0\r\n\r\n") + 5 : received.size();
            answer.body = received.substr(0, end);
            received.erase(0, end);
        }
        co_return answer;
    }
    Tcp::socket socket;
    std::string received;
};

struct Fixture {
    explicit Fixture(McpHttpOptions http_options = {}, McpServerOptions options = {}) {
        options.on_session_end = [this](McpSession&) { ++ended; };
        options.max_message = std::size_t{1} << 20;
        server = std::make_unique<McpServer>(context.get_executor(), std::move(options));
        server->add_tool({.name = "echo", .call = [](McpContext, json::object arguments) -> Result {
                              co_return json::serialize(arguments);
                          }});
        server->add_tool({.name = "hang", .call = [this](McpContext, json::object) -> Result {
                              struct Gone {
                                  int& cancelled;
                                  ~Gone() { ++cancelled; }
                              } const gone{cancelled};
                              co_await sleep_until(Clock::now() + 1h);
                              co_await sleep_until(Clock::now() + 1h);
                              co_return "";
                          }});
        server->add_tool({.name = "polled", .call = [](McpContext client, json::object) -> Result {
                              client.log("error", "before");
                              client.close_stream();
                              co_await sleep_until(Clock::now() + 20ms);
                              client.log("error", "after");
                              co_return "done";
                          }});
        server->add_tool(
            {.name = "flood", .call = [this](McpContext client, json::object) -> Result {
                 for (int i = 0; i < 200; ++i) {
                     client.log("error", std::string(100'000, 'x'));
                     co_await sleep_until(Clock::now() + 1ms);
                 }
                 ++flooded;
                 co_return "done";
             }});
        server->add_tool(
            {.name = "region",
             .input_schema = object(
                 R"({"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}})"),
             .call = [](McpContext, json::object) -> Result { co_return "ok"; }});
        http = std::make_unique<McpHttpServer>(*server, std::move(http_options));
        port = http->listen("127.0.0.1", 0);
    }
    ~Fixture() {
        http.reset();
        server.reset();
        settle();
    }
    void settle(Duration time = 20ms) {
        context.restart();
        context.run_for(time);
    }
    std::string host() const { return "127.0.0.1:" + std::to_string(port); }
    std::string head(std::string_view line, std::string_view headers = {}) const {
        return std::string(line) + " HTTP/1.1\r\nHost: " + host() + "\r\n" + std::string(headers);
    }
    std::string post(const json::value& body, std::string_view headers = {}) const {
        const auto text = json::serialize(body);
        return head("POST /mcp", headers) +
               "Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"
               "Content-Length: " +
               std::to_string(text.size()) + "\r\n\r\n" + text;
    }
    // As a modern client says it, with the headers it needs.
    std::string modern(std::string_view method, json::object params,
                       std::string_view headers = {}) const {
        params["_meta"] = json::object{{detail::meta_version, "2026-07-28"},
                                       {detail::meta_capabilities, json::object()}};
        const auto* name = params.if_contains("name");
        std::string all = "MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: " + std::string(method) +
                          "\r\n" + std::string(headers);
        if (name != nullptr) all += "Mcp-Name: " + std::string(name->as_string()) + "\r\n";
        return post(mcp::rpc_request(1, method, std::move(params)), all);
    }
    Answer ask(std::string text) {
        Connection connection(context, port);
        return ask(connection, std::move(text));
    }
    Answer ask(Connection& connection, std::string text) {
        return test::run(context, [](Connection& one, std::string said) -> awaitable<Answer> {
            co_await one.send(std::move(said));
            co_return co_await one.read();
        }(connection, std::move(text)));
    }
    // Begins a legacy session; the headers its requests carry.
    std::string begin(std::string_view version = "2025-11-25", std::string_view headers = {}) {
        json::object params{{"protocolVersion", version},
                            {"capabilities", json::object()},
                            {"clientInfo", json::object{{"name", "t"}, {"version", "1"}}}};
        const auto told = ask(post(mcp::rpc_request(0, "initialize", std::move(params)), headers));
        BOOST_REQUIRE(told.status == 200u);
        std::string session = "Mcp-Session-Id: " + told.header("Mcp-Session-Id") +
                              "\r\nMCP-Protocol-Version: " + std::string(version) + "\r\n" +
                              std::string(headers);
        BOOST_TEST(
            ask(post(mcp::rpc_notification("notifications/initialized", {}), session)).status ==
            202u);
        return session;
    }
    static json::object call(json::value id, std::string_view tool, json::object arguments = {}) {
        return mcp::rpc_request(std::move(id), "tools/call",
                                {{"name", tool}, {"arguments", std::move(arguments)}});
    }

    asio::io_context context;
    int ended = 0, cancelled = 0, flooded = 0;
    std::unique_ptr<McpServer> server;
    std::unique_ptr<McpHttpServer> http;
    unsigned short port = 0;
};

std::size_t peak_memory(pid_t process) {
    std::ifstream status("/proc/" + std::to_string(process) + "/status");
    for (std::string word; status >> word;)
        if (word == "VmHWM:") {
            std::size_t kilobytes = 0;
            status >> kilobytes;
            return kilobytes << 10;
        }
    return 0;
}

// The HTTP transport starts nothing.
class NoSandbox final : public Sandbox {
public:
    awaitable<Capabilities> probe() override { co_return Capabilities(); }
    std::string guest_address(const SandboxPolicy&, const Channel&) const override { return {}; }
    uid_t guest_user(const SandboxPolicy&) const override { return 0; }
    awaitable<std::unique_ptr<SandboxedProcess>> launch(SandboxPolicy, std::vector<std::string>,
                                                        std::vector<Channel>, Stdio) override {
        throw Error(errc::sandbox_refused, "nothing is launched here");
        co_return nullptr;
    }
};

// A schema whose one annotated parameter lies under `depth` others; and arguments with it.
json::object nested_schema(int depth) {
    json::object schema{{"type", "string"}, {"x-mcp-header", "Deep"}};
    for (int level = 0; level <= depth; ++level)
        schema = {{"type", "object"}, {"properties", json::object{{"p", std::move(schema)}}}};
    return schema;
}
json::object nested_arguments(int depth) {
    json::object arguments{{"p", "dö"}};
    for (int level = 0; level < depth; ++level) arguments = {{"p", std::move(arguments)}};
    return arguments;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(mcp_http_server)

BOOST_AUTO_TEST_CASE(strange_hosts_and_origins_are_refused_before_the_body) {
    Fixture fixture;
    const std::string rest =
        "Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n";  // no body follows
    const auto host = [&](std::string_view name) {
        return fixture.ask("POST /mcp HTTP/1.1\r\nHost: " + std::string(name) + "\r\n" + rest)
            .status;
    };
    for (const auto* bad : {"evil.example.com", "evil.example.com:80", "127.0.0.1.evil.example",
                            "localhost@evil", ""})
        BOOST_TEST(host(bad) == 403u, bad);
    BOOST_TEST(fixture.ask("POST /mcp HTTP/1.1\r\n" + rest).status == 403u);
    BOOST_TEST(
        fixture.ask("POST /mcp HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n" + rest).status ==
        403u);
    // Pages that other programs of this machine serve are strangers like any other.
    const auto port = ":" + std::to_string(fixture.port);
    for (const std::string bad :
         {"http://evil.example.com", "null", "http://localhost.evil.example", "file://localhost",
          "http://localhost:3000", "http://127.0.0.1", "http://localhost"}) {
        const auto answer =
            fixture.ask(fixture.head("POST /mcp", "Origin: " + bad + "\r\n") + rest);
        BOOST_TEST(answer.status == 403u, bad);
        BOOST_TEST(answer.header("Access-Control-Allow-Origin") == "");
    }
    for (const auto& bad : {"https://localhost" + port, "http://x.localhost" + port,
                            "http://localhost" + port + "0", "http://localhost@evil" + port})
        BOOST_TEST(
            fixture.ask(fixture.head("POST /mcp", "Origin: " + bad + "\r\n") + rest).status == 403u,
            bad);
    const json::object ping = mcp::rpc_request(1, "ping", {});
    for (const auto& good :
         {"http://localhost" + port, "http://127.0.0.1" + port, "http://[::1]" + port}) {
        const auto answer = fixture.ask(fixture.post(ping, "Origin: " + good + "\r\n"));
        BOOST_TEST(answer.status == 400u, good);  // there is no session, and that was looked at
        BOOST_TEST(answer.header("Access-Control-Allow-Origin") == good);
        BOOST_TEST(answer.header("Access-Control-Expose-Headers").find("Mcp-Session-Id") !=
                   std::string::npos);
    }
    McpHttpOptions options;
    options.allowed_hosts = {"mcp.example"};
    options.allowed_origins = {"https://app.example", "http://localhost:3000"};
    Fixture named(std::move(options));
    BOOST_TEST(named.ask(named.post(ping, "Origin: http://localhost:3000\r\n")).status == 400u);
    BOOST_TEST(named.ask(named.post(ping, "Origin: http://localhost:3001\r\n")).status == 403u);
    BOOST_TEST(
        named
            .ask(
                "POST /mcp HTTP/1.1\r\nHost: mcp.example:99\r\nOrigin: https://app.example\r\n\r\n")
            .status == 415u);
}

BOOST_AUTO_TEST_CASE(pages_ask_before_they_send) {
    Fixture fixture;
    const auto answer = fixture.ask(
        fixture.head("OPTIONS /mcp",
                     "Origin: http://" + fixture.host() +
                         "\r\nAccess-Control-Request-Method: POST\r\n"
                         "Access-Control-Request-Headers: content-type, mcp-param-region\r\n") +
        "\r\n");
    BOOST_TEST(answer.status == 204u);
    BOOST_TEST(answer.header("Access-Control-Allow-Headers") == "content-type, mcp-param-region");
    BOOST_TEST(answer.header("Access-Control-Allow-Methods").find("DELETE") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(tokens_are_checked_and_explained) {
    McpHttpOptions options;
    options.tokens = {"sesame", "other"};
    options.resource_metadata = {{"authorization_servers", json::array{"https://login.example"}}};
    Fixture fixture(std::move(options));
    const auto refused = fixture.ask(fixture.head("POST /mcp") + "Content-Length: 5\r\n\r\n");
    BOOST_TEST(refused.status == 401u);
    const auto challenge = refused.header("WWW-Authenticate");
    BOOST_TEST(challenge == "Bearer resource_metadata=\"http://" + fixture.host() +
                                "/.well-known/oauth-protected-resource/mcp\"");
    for (const auto* bad : {"Bearer sesam", "Bearer sesame2", "Basic sesame", "Bearer "})
        BOOST_TEST(
            fixture.ask(fixture.head("POST /mcp", "Authorization: " + std::string(bad) + "\r\n") +
                        "\r\n")
                    .header("WWW-Authenticate")
                    .find("invalid_token") != std::string::npos,
            bad);
    const auto document =
        fixture.ask(fixture.head("GET /.well-known/oauth-protected-resource/mcp") + "\r\n").json();
    BOOST_TEST(document.at("resource").as_string() == "http://" + fixture.host() + "/mcp");
    BOOST_TEST(document.at("authorization_servers").at(0).as_string() == "https://login.example");
    // A session belongs to who began it.
    const auto session = fixture.begin("2025-11-25", "Authorization: Bearer sesame\r\n");
    BOOST_TEST(fixture.ask(fixture.post(fixture.call(1, "echo"), session)).status == 200u);
    const auto stolen =
        session.substr(0, session.find("Authorization")) + "Authorization: Bearer other\r\n";
    BOOST_TEST(fixture.ask(fixture.post(fixture.call(1, "echo"), stolen)).status == 404u);
}

BOOST_AUTO_TEST_CASE(requests_of_a_wrong_form_are_told_what_is_wrong) {
    McpHttpOptions options;
    options.max_header = 4096;
    Fixture fixture(std::move(options));
    const std::string json_type = "Content-Type: application/json\r\nAccept: */*\r\n";
    BOOST_TEST(fixture.ask(fixture.head("POST /other") + "\r\n").status == 404u);
    BOOST_TEST(fixture.ask(fixture.head("PUT /mcp") + "\r\n").status == 405u);
    BOOST_TEST(
        fixture.ask(fixture.head("GET /mcp", "Accept: text/event-stream\r\n") + "\r\n").status ==
        405u);
    BOOST_TEST(
        fixture.ask(fixture.head("POST /mcp", "Content-Type: text/plain\r\n") + "\r\n").status ==
        415u);
    BOOST_TEST(
        fixture
            .ask(fixture.head("POST /mcp",
                              "Content-Type: application/json\r\nAccept: application/json\r\n") +
                 "\r\n")
            .status == 406u);
    BOOST_TEST(
        fixture.ask(fixture.head("POST /mcp", json_type + "Content-Length: 9999999\r\n") + "\r\n")
            .status == 413u);
    BOOST_TEST(
        fixture
            .ask(fixture.head("POST /mcp", json_type + "X: " + std::string(9000, 'x') + "\r\n") +
                 "\r\n")
            .status == 431u);
    BOOST_TEST(fixture.ask("nonsense\r\n\r\n").status == 400u);
    BOOST_TEST(
        fixture.ask(fixture.head("POST /mcp", json_type + "Content-Length: 3\r\n") + "\r\n{x}")
            .status == 400u);
    BOOST_TEST(
        fixture.ask(fixture.head("POST /mcp", json_type + "Content-Length: 2\r\n") + "\r\n42")
            .status == 400u);
    BOOST_TEST(
        fixture.ask(fixture.post(fixture.call(1, "echo"), "Mcp-Session-Id: none\r\n")).status ==
        404u);
    BOOST_TEST(
        fixture.ask(fixture.post(fixture.call(1, "echo"), "MCP-Protocol-Version: 1999-01-01\r\n"))
            .status == 400u);
    // A body may come in chunks, and after it was asked for.
    const auto session = fixture.begin();
    const std::string body = R"({"jsonrpc":"2.0","id":1,"method":"ping"})";
    char size[16];
    const std::string hex(size, std::to_chars(size, size + 16, body.size(), 16).ptr);
    const auto chunked =
        fixture.head("POST /mcp", session + json_type + "Transfer-Encoding: chunked\r\n") + "\r\n" +
        hex + "\r\n" + body + "\r\n0\r\n\r\n";
    BOOST_TEST(fixture.ask(chunked).status == 200u);
    Connection waiting(fixture.context, fixture.port);
    BOOST_TEST(
        fixture
            .ask(waiting, fixture.head("POST /mcp", session + json_type +
                                                        "Expect: 100-continue\r\nContent-Length: " +
                                                        std::to_string(body.size()) + "\r\n") +
                              "\r\n")
            .status == 100u);
    BOOST_TEST(fixture.ask(waiting, body).status == 200u);
    // Two requests at once on one connection.
    BOOST_TEST(fixture.ask(waiting, chunked + chunked).status == 200u);
    BOOST_TEST(fixture.ask(waiting, "").status == 200u);
    // A HEAD has no body after its head, which says how long it would be.
    const auto head_only = fixture.head("HEAD /mcp") + "\r\n";
    test::run(fixture.context, waiting.send(head_only + chunked));
    BOOST_TEST(test::run(fixture.context, waiting.read_to("\r\n\r\n")));
    BOOST_TEST(waiting.received.starts_with("HTTP/1.1 405"));
    waiting.received.erase(0, waiting.received.find("\r\n\r\n") + 4);
    BOOST_TEST(fixture.ask(waiting, "").status == 200u);
}

BOOST_AUTO_TEST_CASE(headers_of_modern_requests_match_the_body) {
    Fixture fixture;
    const json::object echo{{"name", "echo"}, {"arguments", json::object{{"a", 1}}}};
    const auto good = fixture.ask(fixture.modern("tools/call", echo));
    BOOST_TEST(good.status == 200u);
    BOOST_TEST(good.header("Mcp-Session-Id").empty());
    BOOST_TEST(good.json().at("result").at("resultType").as_string() == "complete");
    const auto refused = [&](std::string text) {
        const auto answer = fixture.ask(std::move(text));
        return answer.status == 400 &&
               answer.json().at("error").at("code").to_number<int>() == mcp::rpc_header_mismatch;
    };
    const auto without = [](std::string text, std::string_view line) {
        const auto at = text.find(line);
        return text.erase(at, text.find("\r\n", at) + 2 - at);
    };
    for (const auto* header : {"MCP-Protocol-Version", "Mcp-Method", "Mcp-Name"})
        BOOST_TEST(refused(without(fixture.modern("tools/call", echo), header)), header);
    BOOST_TEST(refused(fixture.modern("tools/call", echo, "Mcp-Method: tools/call\r\n")));  // twice
    const json::object region{{"name", "region"}, {"arguments", json::object{{"region", "eu"}}}};
    BOOST_TEST(refused(fixture.modern("tools/call", region)));
    BOOST_TEST(refused(fixture.modern("tools/call", region, "Mcp-Param-Region: us\r\n")));
    BOOST_TEST(
        fixture.ask(fixture.modern("tools/call", region, "mcp-param-region:  eu \r\n")).status ==
        200u);
    const auto unknown = fixture.ask(fixture.modern("no/method", {}));
    BOOST_TEST(unknown.status == 404u);
    BOOST_TEST(unknown.json().at("id").to_number<int>() == 1);
}

BOOST_AUTO_TEST_CASE(batches_are_for_the_version_that_has_them) {
    Fixture fixture;
    const auto session = fixture.begin("2025-03-26");
    json::array batch;
    batch.push_back(fixture.call("a", "echo"));
    batch.push_back(mcp::rpc_notification("notifications/x", {}));
    batch.push_back(fixture.call("b", "polled"));  // a log line: the answers come as a stream
    const auto streamed = fixture.ask(fixture.post(batch, session));
    BOOST_TEST(streamed.header("Content-Type") == "text/event-stream");
    batch.pop_back();
    batch.push_back(mcp::rpc_request("c", "ping", {}));
    batch.push_back(17);
    const auto answers = json::parse(fixture.ask(fixture.post(batch, session)).body).as_array();
    BOOST_TEST(answers.size() == 3u);
    BOOST_TEST(
        fixture
            .ask(fixture.post(json::array{mcp::rpc_notification("notifications/x", {})}, session))
            .status == 202u);
    BOOST_TEST(fixture.ask(fixture.post(json::array(), session)).status == 400u);
    BOOST_TEST(fixture.ask(fixture.post(batch, fixture.begin("2025-06-18"))).status == 400u);
}

BOOST_AUTO_TEST_CASE(a_stream_that_ended_early_is_resumed_by_its_session_only) {
    Fixture fixture;
    const auto session = fixture.begin(), other = fixture.begin();
    const auto first = fixture.ask(fixture.post(fixture.call(1, "polled"), session));
    BOOST_TEST(first.header("X-Accel-Buffering") == "no");
    const auto ids = first.lines("id: ");
    BOOST_REQUIRE(ids.size() == 2u);  // the priming event and the log line
    BOOST_TEST(first.lines("retry: ").size() == 1u);
    BOOST_TEST(first.messages().at(0).at("params").at("data").as_string() == "before");
    const auto resume = [&](const std::string& from, const std::string& by) {
        return fixture.ask(
            fixture.head("GET /mcp",
                         by + "Accept: text/event-stream\r\nLast-Event-ID: " + from + "\r\n") +
            "\r\n");
    };
    const auto rest = resume(ids[1], session);
    BOOST_REQUIRE(rest.messages().size() == 2u);
    BOOST_TEST(rest.messages()[0].at("params").at("data").as_string() == "after");
    BOOST_TEST(rest.messages()[1].at("id").to_number<int>() == 1);
    BOOST_TEST(resume(ids[0], session).messages().size() == 3u);  // from further back, once more
    BOOST_TEST(resume(ids[0], other).status == 400u);
    for (const auto* bad : {"x", "1", "1-", "99-1", "-1-1", "99999999999999999999-1"})
        BOOST_TEST(resume(bad, session).status == 400u, bad);
    BOOST_TEST(resume(rest.lines("id: ").back(), session).status == 405u);  // nothing is left
    // Older clients are not primed.
    const auto old =
        fixture.ask(fixture.post(fixture.call(1, "polled"), fixture.begin("2025-06-18")));
    BOOST_TEST(old.lines("id: ").size() == 1u);
}

BOOST_AUTO_TEST_CASE(news_reach_the_stream_of_a_session) {
    Fixture fixture;
    const auto session = fixture.begin();
    const auto get = fixture.head("GET /mcp", session + "Accept: text/event-stream\r\n") + "\r\n";
    auto listener = std::make_unique<Connection>(fixture.context, fixture.port);
    const auto read_to = [&](std::string_view words) {
        return test::run(fixture.context, listener->read_to(std::string(words)));
    };
    test::run(fixture.context, listener->send(get));
    BOOST_TEST(read_to("data: \n"));
    BOOST_TEST(fixture.ask(get).status == 409u);
    fixture.server->tools_changed();
    BOOST_TEST(read_to("tools/list_changed"));
    listener.reset();
    fixture.settle();
    fixture.server->prompts_changed();  // nobody is there: kept for who comes back
    fixture.settle();
    listener = std::make_unique<Connection>(fixture.context, fixture.port);
    test::run(fixture.context, listener->send(get));
    BOOST_TEST(read_to("prompts/list_changed"));
    BOOST_TEST(fixture.ask(fixture.head("DELETE /mcp", session) + "\r\n").status == 204u);
    BOOST_TEST(read_to("0\r\n\r\n"));
    BOOST_TEST(fixture.ended == 1);
    BOOST_TEST(fixture.ask(fixture.post(fixture.call(1, "echo"), session)).status == 404u);
}

BOOST_AUTO_TEST_CASE(a_task_belongs_to_its_token_and_outlives_its_connection) {
    McpHttpOptions options;
    options.tokens = {"sesame", "other"};
    options.session_idle = 1ms;
    Fixture fixture(std::move(options));
    fixture.server->add_tool({.name = "job",
                              .task = McpTaskUse::optional,
                              .task_after = Duration::zero(),
                              .call = [&fixture](McpContext context, json::object) -> Result {
                                  struct Gone {
                                      int& cancelled;
                                      ~Gone() { ++cancelled; }
                                  } const gone{fixture.cancelled};
                                  auto schema = object(R"({"type": "object"})");
                                  co_await context.elicit("Go on?", std::move(schema), "go");
                                  co_return "done";
                              }});
    const auto request = [&](std::string_view method, json::object params, std::string_view token,
                             std::string_view named) {
        params["_meta"] = object(R"({"io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {"elicitation": {},
            "extensions": {"io.modelcontextprotocol/tasks": {}}}})");
        return fixture.post(mcp::rpc_request(1, method, std::move(params)),
                            "MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: " +
                                std::string(method) + "\r\nMcp-Name: " + std::string(named) +
                                "\r\nAuthorization: Bearer " + std::string(token) + "\r\n");
    };
    const auto created =
        fixture.ask(request("tools/call", {{"name", "job"}}, "sesame", "job")).json();
    BOOST_TEST(created.at("result").at("resultType").as_string() == "task");
    const std::string id(created.at("result").at("taskId").as_string());
    const auto about = [&](std::string_view method, std::string_view token,
                           json::object more = {}) {
        more["taskId"] = id;
        return fixture.ask(request(method, std::move(more), token, id)).json();
    };
    const auto status = [&] {
        return std::string(about("tasks/get", "sesame").at("result").at("status").as_string());
    };
    // The connection is gone, and its session idle: the task is not.
    fixture.settle(1200ms);
    BOOST_TEST(status() == "input_required");
    // Who has another token can neither see it, nor answer for its owner, nor end it.
    const auto answers =
        object(R"({"inputResponses": {"go": {"action": "accept", "content": {}}}})");
    const auto nothing = fixture.ask(request("tasks/get", {{"taskId", "0"}}, "sesame", "0")).json();
    for (const auto& refused : {about("tasks/get", "other"), about("tasks/cancel", "other"),
                                about("tasks/update", "other", answers)})
        BOOST_TEST(json::serialize(refused) == json::serialize(nothing));
    BOOST_TEST(status() == "input_required");
    BOOST_TEST(fixture.cancelled == 0);
    // What is routed by the header is what is asked for.
    const auto crossed = fixture.ask(request("tasks/cancel", {{"taskId", id}}, "sesame", "0"));
    BOOST_TEST(crossed.status == 400u);
    BOOST_TEST(crossed.json().at("error").at("code").to_number<int>() == mcp::rpc_header_mismatch);
    BOOST_TEST(about("tasks/update", "sesame", answers).contains("result"));
    fixture.settle(1200ms);
    BOOST_TEST(status() == "completed");
}

BOOST_AUTO_TEST_CASE(clients_of_2024_11_05_have_a_stream_and_a_place_to_post) {
    McpHttpOptions options;
    options.sse_path = "/sse";
    options.tokens = {"sesame", "other"};
    options.max_stream = 100'000;
    Fixture fixture(std::move(options));
    const std::string token = "Authorization: Bearer sesame\r\n";
    const auto get = [&](std::string_view headers) {
        return fixture.head("GET /sse", "Accept: text/event-stream\r\n" + std::string(headers)) +
               "\r\n";
    };
    // As at the other address.
    BOOST_TEST(fixture.ask("GET /sse HTTP/1.1\r\nHost: evil.example\r\n\r\n").status == 403u);
    BOOST_TEST(fixture.ask(get(token + "Origin: http://evil.example\r\n")).status == 403u);
    const auto nobody = fixture.ask(get(""));
    BOOST_TEST(nobody.status == 401u);
    BOOST_TEST(nobody.header("WWW-Authenticate").ends_with("oauth-protected-resource/sse\""));
    const auto known =
        fixture.ask(fixture.head("GET /.well-known/oauth-protected-resource/sse") + "\r\n");
    BOOST_TEST(known.json().at("resource").as_string() == "http://" + fixture.host() + "/sse");
    BOOST_TEST(fixture.ask(fixture.head("DELETE /sse", token) + "\r\n").status == 405u);

    auto stream = std::make_unique<Connection>(fixture.context, fixture.port);
    test::run(fixture.context, stream->send(get(token)));
    const auto read_to = [&](std::string_view words) {
        const bool came = test::run(fixture.context, stream->read_to(std::string(words)));
        const auto at = stream->received.find(words);
        auto before = stream->received.substr(0, at);
        if (came) stream->received.erase(0, at + words.size());
        return came ? before : "the end";
    };
    BOOST_TEST(read_to("event: endpoint\ndata: ").starts_with("HTTP/1.1 200"));
    const auto endpoint = read_to("\n\n");
    BOOST_TEST(endpoint.starts_with("/sse?session="));
    const auto post = [&](const json::object& message, std::string headers) {
        const auto text = json::serialize(message);
        return fixture
            .ask(fixture.head("POST " + endpoint, headers) +
                 "Content-Type: application/json\r\nContent-Length: " +
                 std::to_string(text.size()) + "\r\n\r\n" + text)
            .status;
    };
    BOOST_TEST(post(fixture.call(1, "echo"), token) == 202u);
    BOOST_TEST(read_to("must be initialize").find("\"id\":1") != std::string::npos);
    json::object params{{"protocolVersion", "2024-11-05"}};
    BOOST_TEST(post(mcp::rpc_request(2, "initialize", params), token) == 202u);
    read_to("\"protocolVersion\":\"2024-11-05\"");
    BOOST_TEST(post(mcp::rpc_notification("notifications/initialized", {}), token) == 202u);
    BOOST_TEST(post(mcp::rpc_request(3, "server/discover", {}), token) == 202u);
    read_to("older versions");
    fixture.server->tools_changed();
    BOOST_TEST(read_to("tools/list_changed") != "the end");
    // Nobody else's, by neither address.
    BOOST_TEST(post(fixture.call(4, "echo"), "Authorization: Bearer other\r\n") == 404u);
    BOOST_TEST(post(fixture.call(4, "echo"), "") == 401u);
    const auto id = endpoint.substr(endpoint.find('=') + 1);
    BOOST_TEST(
        fixture.ask(fixture.post(fixture.call(4, "echo"), token + "Mcp-Session-Id: " + id + "\r\n"))
            .status == 404u);
    const auto streamable = fixture.begin("2025-06-18", token);
    // A cancelled call ends itself, not the stream.
    BOOST_TEST(post(fixture.call("h", "hang"), token) == 202u);
    BOOST_TEST(post(mcp::rpc_notification("notifications/cancelled", {{"requestId", "h"}}),
                    token) == 202u);
    fixture.settle();
    BOOST_TEST(fixture.cancelled == 1);
    BOOST_TEST(post(fixture.call("e", "echo", {{"a", "b"}}), token) == 202u);
    BOOST_TEST(read_to("\"id\":\"e\"") != "the end");
    // Who does not read gets no more answers.
    const json::object large{{"text", std::string(500'000, 'x')}};
    unsigned status = 202;
    for (int i = 0; i < 100 && status == 202; ++i)
        status = post(fixture.call(i, "echo", large), token);
    BOOST_TEST(status == 503u);
    // The session ends with its stream, and takes its calls along.
    while (read_to("\n") != "the end" && post(fixture.call("h", "hang"), token) != 202) {
    }
    stream.reset();
    fixture.settle();
    BOOST_TEST(fixture.ended == 1);
    BOOST_TEST(fixture.cancelled == 2);
    BOOST_TEST(post(fixture.call(5, "echo"), token) == 404u);
    BOOST_TEST(fixture.ask(fixture.post(fixture.call(1, "echo"), streamable)).status == 200u);

    Fixture without;
    BOOST_TEST(without.ask(without.head("GET /sse") + "\r\n").status == 404u);
}

BOOST_AUTO_TEST_CASE(modern_clients_cancel_by_hanging_up_and_legacy_ones_by_saying_so) {
    Fixture fixture;
    const auto session = fixture.begin();
    auto first = std::make_unique<Connection>(fixture.context, fixture.port);
    auto second = std::make_unique<Connection>(fixture.context, fixture.port);
    test::run(fixture.context, first->send(fixture.modern("tools/call", {{"name", "hang"}})));
    test::run(fixture.context, second->send(fixture.post(fixture.call("h", "hang"), session)));
    fixture.settle();
    BOOST_TEST(fixture.cancelled == 0);
    first.reset();
    fixture.settle();
    BOOST_TEST(fixture.cancelled == 1);
    second.reset();
    fixture.settle();
    BOOST_TEST(fixture.cancelled == 1);
    BOOST_TEST(
        fixture
            .ask(fixture.post(
                mcp::rpc_notification("notifications/cancelled", {{"requestId", "h"}}), session))
            .status == 202u);
    fixture.settle();
    BOOST_TEST(fixture.cancelled == 2);
    // The end of a session cancels what it has begun.
    Connection third(fixture.context, fixture.port);
    test::run(fixture.context, third.send(fixture.post(fixture.call(1, "hang"), session)));
    fixture.settle();
    BOOST_TEST(fixture.ask(fixture.head("DELETE /mcp", session) + "\r\n").status == 204u);
    fixture.settle();
    BOOST_TEST(fixture.cancelled == 3);
}

BOOST_AUTO_TEST_CASE(a_client_that_does_not_read_stalls_nobody_and_costs_little) {
    McpHttpOptions options;
    options.max_stream = 300'000;
    Fixture fixture(std::move(options));
    const auto session = fixture.begin();
    Connection slow(fixture.context, fixture.port);
    test::run(fixture.context, slow.send(fixture.post(fixture.call(1, "flood"), session)));
    for (int i = 0; i < 50; ++i)
        BOOST_TEST(fixture.ask(fixture.post(fixture.call(i, "echo"), session)).status == 200u);
    for (int i = 0; i < 500 && fixture.flooded == 0; ++i) fixture.settle();
    BOOST_TEST(fixture.flooded == 1);  // the handler was not held up either
    const auto answer = test::run(fixture.context, slow.read());
    BOOST_TEST(answer.messages().back().at("result").at("content").at(0).at("text").as_string() ==
               "done");
    BOOST_TEST(answer.messages().size() < 200u);  // 20 MB were logged; what was too much is lost
}

BOOST_AUTO_TEST_CASE(quiet_streams_show_that_they_live) {
    McpHttpOptions options;
    options.keep_alive = 10ms;
    Fixture fixture(std::move(options));
    Connection connection(fixture.context, fixture.port);
    test::run(fixture.context, connection.send(fixture.modern("tools/call", {{"name", "hang"}})));
    BOOST_TEST(test::run(fixture.context, connection.read_to(": still here\n\n")));
}

BOOST_AUTO_TEST_CASE(sessions_and_connections_have_limits) {
    McpHttpOptions options;
    options.max_sessions = 2;
    options.session_idle = 1ms;
    options.connection_idle = 1ms;
    options.stranger_timeout = 1s;
    Fixture fixture(std::move(options));
    fixture.begin();
    fixture.begin();
    const json::object params{{"protocolVersion", "2025-11-25"}};
    BOOST_TEST(fixture.ask(fixture.post(mcp::rpc_request(0, "initialize", params))).status == 503u);
    Connection idle(fixture.context, fixture.port);
    fixture.settle(2200ms);
    BOOST_TEST(fixture.ended == 2);
    BOOST_TEST(fixture.http->connections() == 0u);
    fixture.begin();
}

BOOST_AUTO_TEST_CASE(who_has_a_token_finds_room_among_those_who_have_none) {
    McpHttpOptions options;
    options.tokens = {"sesame"};
    options.max_connections = 4;
    options.max_strangers = 16;
    Fixture fixture(std::move(options));
    const std::string token = "Authorization: Bearer sesame\r\n";
    const auto session = fixture.begin("2025-11-25", token);
    Connection streaming(fixture.context, fixture.port);
    test::run(fixture.context,
              streaming.send(fixture.head("GET /mcp", session + "Accept: text/event-stream\r\n") +
                             "\r\n"));
    fixture.settle();
    std::list<Connection> strangers, idle;
    for (int i = 0; i < 200; ++i) strangers.emplace_back(fixture.context, fixture.port);
    BOOST_TEST(fixture.ask(fixture.post(mcp::rpc_request(1, "ping", {}), session)).status == 200u);
    // Of one's own, the longest idle goes; the stream stays.
    for (int i = 0; i < 8; ++i) {
        idle.emplace_back(fixture.context, fixture.port);
        BOOST_TEST(fixture.ask(idle.back(), fixture.post(mcp::rpc_request(1, "ping", {}), session))
                       .status == 200u);
    }
    fixture.settle();
    BOOST_TEST(fixture.http->connections() <= 4u + 17u);
    BOOST_TEST(
        fixture.ask(fixture.head("GET /mcp", session + "Accept: text/event-stream\r\n") + "\r\n")
            .status == 409u);
}

BOOST_AUTO_TEST_CASE(a_server_ends_with_everything_open) {
    Fixture fixture;
    const auto session = fixture.begin();
    Connection streaming(fixture.context, fixture.port), hanging(fixture.context, fixture.port),
        half(fixture.context, fixture.port);
    test::run(fixture.context,
              streaming.send(fixture.head("GET /mcp", session + "Accept: text/event-stream\r\n") +
                             "\r\n"));
    test::run(fixture.context, hanging.send(fixture.modern("tools/call", {{"name", "hang"}})));
    test::run(fixture.context, half.send("POST /mcp HT"));
    fixture.settle();
    fixture.http.reset();
    fixture.server.reset();
    fixture.settle();
    BOOST_TEST(fixture.cancelled == 1);
}

BOOST_AUTO_TEST_CASE(addresses_others_can_reach_need_names) {
    Fixture fixture;
    BOOST_CHECK_THROW(fixture.http->listen("0.0.0.0", 0), Error);
    BOOST_CHECK_THROW(fixture.http->listen("nowhere", 0), Error);
    BOOST_CHECK_THROW(fixture.http->listen("127.0.0.1", fixture.port), Error);
}

BOOST_AUTO_TEST_CASE(a_unix_socket_serves_too) {
    Fixture fixture;
    test::TemporaryDirectory directory;
    const auto path = directory.path() / "mcp.sock";
    fixture.http->listen(path);
    asio::local::stream_protocol::socket socket(fixture.context);
    socket.connect({path.string()});
    const auto status =
        test::run(fixture.context, [](auto& one, std::string text) -> awaitable<std::string> {
            co_await asio::async_write(one, asio::buffer(text), asio::use_awaitable);
            std::string answer(12, '\0');
            co_await asio::async_read(one, asio::buffer(answer), asio::use_awaitable);
            co_return answer;
        }(socket, fixture.modern("tools/list", {})));
    BOOST_TEST(status == "HTTP/1.1 200");
}

// Calls that are all in flight at once, over 100 sessions, against a server in a process of its
// own. IPYBOX_LOAD_CALLS: how many; 10,000 need about 10,100 descriptors in each process.
BOOST_AUTO_TEST_CASE(many_calls_of_many_sessions_are_neither_lost_nor_mixed_up) {
    constexpr std::size_t sessions = 100;
    const char* wanted = ::getenv("IPYBOX_LOAD_CALLS");
    std::size_t calls = wanted != nullptr ? std::stoul(wanted) : 2000;
    rlimit descriptors{};
    ::getrlimit(RLIMIT_NOFILE, &descriptors);
    descriptors.rlim_cur = descriptors.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &descriptors);
    if (calls + 200 > descriptors.rlim_max) {
        calls = descriptors.rlim_max - 200;
        std::cout << "only " << calls << " calls: the limit on descriptors\n";
    }
    int report[2];
    BOOST_REQUIRE(::pipe(report) == 0);
    const pid_t child = ::fork();
    BOOST_REQUIRE(child >= 0);
    if (child == 0) {
        asio::io_context context(1);
        McpServer server(context.get_executor());
        // Answers when all calls have come: they are in flight together.
        std::size_t arrived = 0;
        Event all(context.get_executor());
        server.add_tool(
            {.name = "gather", .call = [&](McpContext call, json::object arguments) -> Result {
                 if (++arrived == calls) all.notify();
                 while (arrived < calls) co_await all.wait();
                 arguments["session"] = call.session().id;
                 co_return json::serialize(arguments);
             }});
        server.add_tool({.name = "echo", .call = [](McpContext, json::object arguments) -> Result {
                             co_return json::serialize(arguments);
                         }});
        McpHttpOptions options;
        options.keep_alive = 10min;
        options.connection_idle = 10min;
        McpHttpServer http(server, options);
        const auto port = http.listen("127.0.0.1", 0);
        if (::write(report[1], &port, sizeof port) != sizeof port) ::_exit(1);
        context.run();
        ::_exit(0);
    }
    unsigned short port = 0;
    BOOST_REQUIRE(::read(report[0], &port, sizeof port) == sizeof port);
    asio::io_context context(1);
    const auto post = [port](const json::object& message, std::string_view headers) {
        const auto text = json::serialize(message);
        return "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:" + std::to_string(port) + "\r\n" +
               std::string(headers) +
               "Content-Type: application/json\r\nAccept: application/json, "
               "text/event-stream\r\nContent-Length: " +
               std::to_string(text.size()) + "\r\n\r\n" + text;
    };
    std::vector<std::string> ids(sessions);
    std::vector<double> milliseconds;
    std::size_t right = 0, wrong = 0;
    const auto use = [&](std::size_t i) -> awaitable<void> {
        auto connection = std::make_unique<Connection>(context, port);
        const std::string& session = ids[i % sessions];
        const std::string headers = "Mcp-Session-Id: " + session + "\r\n";
        json::object arguments{{"number", i}};
        auto text = post(Fixture::call(i, "gather", arguments), headers);
        co_await connection->send(std::move(text));
        auto answer = co_await connection->read();
        const auto told = answer.json();
        const auto back = object(told.at("result").at("content").at(0).at("text").as_string());
        const bool same = told.at("id").to_number<std::size_t>() == i &&
                          back.at("number").to_number<std::size_t>() == i &&
                          back.at("session").as_string() == session;
        ++(same ? right : wrong);
        const auto start = Clock::now();
        text = post(Fixture::call(i, "echo", arguments), headers);
        co_await connection->send(std::move(text));
        answer = co_await connection->read();
        milliseconds.push_back(
            std::chrono::duration<double, std::milli>(Clock::now() - start).count());
        if (answer.json().at("id").to_number<std::size_t>() != i) ++wrong;
    };
    for (auto& id : ids) {
        Connection connection(context, port);
        const auto text =
            post(mcp::rpc_request(0, "initialize", {{"protocolVersion", "2025-11-25"}}), "");
        id = test::run(context, [](Connection& one, std::string said) -> awaitable<std::string> {
            co_await one.send(std::move(said));
            const auto answer = co_await one.read();
            co_return answer.header("Mcp-Session-Id");
        }(connection, text));
    }
    const auto before = peak_memory(child);
    std::size_t failed = 0;
    for (std::size_t i = 0; i < calls; ++i)
        asio::co_spawn(context, use(i),
                       [&](std::exception_ptr error) { failed += error != nullptr; });
    context.restart();
    context.run_for(5min);
    const auto grown = peak_memory(child) - before;
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    BOOST_TEST(right == calls);
    BOOST_TEST(wrong == 0u);
    BOOST_TEST(failed == 0u);
    BOOST_TEST(grown / calls < 64u << 10);  // bytes a call
    std::sort(milliseconds.begin(), milliseconds.end());
    BOOST_REQUIRE(milliseconds.size() == calls);
    std::cout << calls << " calls at once over " << sessions
              << " sessions: " << grown / calls / 1024
              << " KiB a call; then echo, all at once: median " << milliseconds[calls / 2]
              << " ms, 99 % " << milliseconds[calls * 99 / 100] << " ms\n";
}

BOOST_AUTO_TEST_CASE(client_transport_and_server_agree_on_header_parameters_of_any_depth) {
    Fixture each;
    for (const int depth : {0, 14, 17, 20, 31, 34, 40, 50})
        each.server->add_tool({.name = "deep" + std::to_string(depth),
                               .input_schema = nested_schema(depth),
                               .call = [](McpContext, json::object) -> Result { co_return "ok"; }});
    Host host{each.context.get_executor(), Logger()};
    NoSandbox sandbox;
    McpClientOptions options;
    options.name = "deep";
    const json::object config{{"url", "http://" + each.host() + "/mcp"}};
    McpClient client(each.context.get_executor(),
                     std::make_unique<HttpTransport>(host, config, HttpTransport::Wire::streamable),
                     std::move(options));
    test::run(each.context, client.connect(sandbox));
    BOOST_REQUIRE((client.era() == McpEra::modern));
    const auto listed = test::run(each.context, client.list_tools());
    for (const int depth : {0, 14, 17, 20, 31, 34, 40, 50}) {
        const std::string name = "deep" + std::to_string(depth);
        BOOST_TEST(
            std::any_of(listed.begin(), listed.end(),
                        [&](const auto& tool) { return tool.at("name").get_string() == name; }),
            name);
        // Without its header the server would refuse the call.
        const auto result =
            test::run(each.context, client.call_tool(name, nested_arguments(depth), CallOptions()));
        BOOST_TEST(!result.is_error, name);
        const auto refused = each.ask(
            each.modern("tools/call", {{"name", name}, {"arguments", nested_arguments(depth)}}));
        BOOST_TEST(refused.status == 400u, name);
        BOOST_TEST(refused.json().at("error").at("code") == mcp::rpc_header_mismatch, name);
    }
    test::run(each.context, client.close());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace mcp_http_server_tests
