// The same misbehaviour over each transport: one clear error or the right answer, and no hang.
#include <array>
#include <boost/test/unit_test.hpp>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "http_fixture.hpp"

namespace plugin_mcp_chaos_tests {

using namespace ipybox;
using namespace std::chrono_literals;

namespace {

// Against tests/support/chaos_server.py. mode: "stdio", "sse", "stream" or "json".
struct Chaos : test::HttpFixture {
    explicit Chaos(std::string how)
        : HttpFixture(how == "stdio" || how == "sse" ? how : "streamable_http"),
          mode(std::move(how)) {
        begin();
    }
    // Starts the server where it does not run, and a client.
    void begin() {
        const std::filesystem::path support = test::required_environment("IPYBOX_TEST_SUPPORT");
        const auto script = (support / "chaos_server.py").string();
        json::object config{{"command", "python3"}, {"args", json::array{script, mode}}};
        if (mode != "stdio") {
            const auto port = std::to_string(test::free_port());
            process =
                start({"python3", script, mode, port}, static_cast<std::uint16_t>(std::stoi(port)));
            config = {{"url", "http://127.0.0.1:" + port + "/" + mode}};
        }
        McpClientOptions options;
        options.name = "chaos";
        options.era = McpEra::legacy;
        // What it takes to start Python on a busy machine is no misbehaviour.
        options.connect_timeout = 100s;
        if (client) test::run(context, client->close());
        client = std::make_unique<McpClient>(
            host.executor, registry.make<McpTransport>(plugin, host, config), std::move(options));
        test::run(context, client->connect(*sandbox));
    }
    // What a call came to, in a word.
    std::string outcome(std::string tool) {
        CallOptions limits;
        limits.idle_timeout = tool == "hang" ? Duration(300ms) : Duration(20s);
        // As plain JSON it ends at the limit of a message.
        const bool endless = tool == "endless" && mode != "json";
        limits.total_timeout = endless ? Duration(500ms) : Duration(60s);
        try {
            return test::text_of(call(std::move(tool), "{}", std::move(limits)));
        } catch (const Error& error) {
            text = error.detail();
            BOOST_TEST(test::contains(text, "MCP server \"chaos\""), text);
            BOOST_TEST(text.size() < 2000u);
            if (error.code() == errc::mcp_connection) return "connection";
            if (error.code() == errc::mcp_protocol) return "protocol";
            if (error.code() == errc::mcp_error) return "error";
            return error.code() == errc::timed_out ? "timeout" : text;
        } catch (const std::runtime_error& hang) {  // of the harness: this says in which call
            return hang.what();
        }
    }

    std::string mode, text;
    std::unique_ptr<ChildProcess> process;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(mcp_chaos)

BOOST_AUTO_TEST_CASE(every_misbehaviour_is_one_clear_error_over_every_transport) {
    // In the order of stdio, HTTP+SSE, streamable HTTP with events and with plain JSON.
    const std::map<std::string, std::array<std::string, 4>> expected{
        {"fine", {"right", "right", "right", "right"}},
        {"killed", {"connection", "connection", "connection", "error"}},
        {"half", {"connection", "connection", "connection", "error"}},
        {"hang", {"timeout", "timeout", "timeout", "timeout"}},
        {"garbage", {"right", "right", "right", "protocol"}},
        {"emoji", {"half \uFFFD", "half \uFFFD", "half \uFFFD", "half \uFFFD"}},
        {"nan", {"error", "error", "error", "error"}},
        {"huge", {"error", "protocol", "protocol", "connection"}},
        {"endless", {"timeout", "timeout", "timeout", "connection"}},
        {"twice", {"right", "right", "right", "right"}},
        {"never", {"right", "right", "right", "protocol"}},
    };
    const char* modes[] = {"stdio", "sse", "stream", "json"};
    for (std::size_t at = 0; at < 4; ++at) {
        Chaos chaos(modes[at]);
        for (const auto& [tool, outcomes] : expected) {
            BOOST_TEST_CONTEXT(chaos.mode << ", " << tool) {
                chaos.text.clear();
                BOOST_TEST(chaos.outcome(tool) == outcomes[at], chaos.text);
                if (tool == "nan")
                    BOOST_TEST(test::contains(chaos.text, "the answer holds NaN"), chaos.text);
                if (tool == "huge" && chaos.mode == "stdio")
                    BOOST_TEST(
                        test::contains(chaos.text, "longer than the limit of 33554432 bytes"),
                        chaos.text);
                // What is lost is the call, or the server; never the way to a next one.
                if (tool == "killed" || !chaos.client->alive()) chaos.begin();
                BOOST_TEST(chaos.outcome("fine") == "right");
            }
        }
        const auto circle =
            chaos.failure([&] { test::run(chaos.context, chaos.client->list_tools()); });
        BOOST_TEST((circle.code() == errc::mcp_protocol), chaos.mode);
        BOOST_TEST(test::contains(circle.detail(), "in a circle"), circle.detail());
    }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace plugin_mcp_chaos_tests
