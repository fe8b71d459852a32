// McpClient against a transport in memory: both eras, lists, timeouts, deaths and hostile servers.
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include "mcp_client_fixture.hpp"

namespace mcp_client_tests {

using namespace ipybox;
using namespace ipybox::test;
using namespace std::chrono_literals;
using Fixture = test::ClientFixture;

BOOST_FIXTURE_TEST_SUITE(mcp_client, Fixture)

BOOST_AUTO_TEST_CASE(legacy_server_is_detected_and_greeted) {
    peer->on_message = legacy;
    connect();
    BOOST_TEST((client().era() == McpEra::legacy));
    BOOST_TEST(client().protocol_version() == "2025-06-18");
    BOOST_TEST(client().server_info().at("name").as_string() == "old");
    BOOST_TEST(client().instructions() == "read me");
    settle();
    BOOST_REQUIRE_EQUAL(peer->sent.size(), 3u);
    const auto& probe = peer->sent[0].at("params").at("_meta").as_object();
    BOOST_TEST(probe.at("io.modelcontextprotocol/protocolVersion").as_string() == "2026-07-28");
    BOOST_TEST(probe.at("io.modelcontextprotocol/clientCapabilities").is_object());
    BOOST_TEST(probe.at("io.modelcontextprotocol/clientInfo").at("name").as_string() == "ipybox");
    const auto& hello = peer->sent[1].at("params").as_object();
    BOOST_TEST(hello.at("protocolVersion").as_string() == "2025-11-25");
    BOOST_TEST(!hello.contains("_meta"));
    BOOST_TEST(peer->sent[2].at("method").as_string() == "notifications/initialized");
    BOOST_TEST(!peer->sent[2].contains("id"));
}

BOOST_AUTO_TEST_CASE(modern_server_is_detected_and_every_request_says_so) {
    peer->on_message = modern;
    connect();
    BOOST_TEST((client().era() == McpEra::modern));
    BOOST_TEST(client().protocol_version() == "2026-07-28");
    BOOST_TEST(client().server_info().at("name").as_string() == "new");
    BOOST_TEST(client().instructions() == "read me too");
    BOOST_TEST(peer->count("initialize") == 0u);
    BOOST_TEST(test::run(context, client().list_tools()).size() == 1u);
    const auto& meta = peer->last("tools/list").at("params").at("_meta").as_object();
    BOOST_TEST(meta.at("io.modelcontextprotocol/protocolVersion").as_string() == "2026-07-28");
    BOOST_TEST(meta.at("io.modelcontextprotocol/clientCapabilities").is_object());
    BOOST_TEST(meta.contains("progressToken"));
}

BOOST_AUTO_TEST_CASE(every_legacy_version_is_accepted_and_no_other) {
    for (const char* version : {"2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"}) {
        Fixture each;
        each.peer->on_message = [version](Wire& wire, const json::object& message) {
            if (detail::string_of(message, "method") == "server/discover")
                wire.refuse(message, -32601, "no");
            json::object result;
            result["protocolVersion"] = version;
            if (detail::string_of(message, "method") == "initialize") wire.answer(message, result);
        };
        each.connect();
        BOOST_TEST(each.client().protocol_version() == version);
    }
    peer->on_message = [](Wire& wire, const json::object& message) {
        json::object result;
        result["protocolVersion"] = "1999-01-01";
        wire.answer(message, result);
    };
    const auto error = failure([&] { connect(); });
    BOOST_TEST((error.code() == errc::mcp_protocol));
    BOOST_TEST(contains(error.detail(), "\"srv\""));
    BOOST_TEST(contains(error.detail(), "1999-01-01"));
}

BOOST_AUTO_TEST_CASE(a_preset_era_saves_the_question) {
    options.era = McpEra::legacy;
    peer->on_message = legacy;
    connect();
    BOOST_TEST(peer->count("server/discover") == 0u);
    Fixture other;
    other.options.era = McpEra::modern;
    other.peer->on_message = modern;
    other.connect();
    BOOST_TEST((other.client().era() == McpEra::modern));
    Fixture wrong;
    wrong.options.era = McpEra::modern;
    wrong.peer->on_message = legacy;
    BOOST_TEST((failure([&] { wrong.connect(); }).code() == errc::mcp_error));
}

BOOST_AUTO_TEST_CASE(a_server_that_ignores_the_question_is_legacy) {
    options.discover_timeout = 20ms;
    peer->on_message = [](Wire& wire, const json::object& message) {
        if (detail::string_of(message, "method") == "server/discover") return;
        legacy(wire, message);
    };
    connect();
    BOOST_TEST((client().era() == McpEra::legacy));
    BOOST_TEST(peer->count("notifications/cancelled") == 0u);
}

BOOST_AUTO_TEST_CASE(a_modern_server_that_answers_late_is_modern) {
    options.discover_timeout = 20ms;
    peer->on_message = [held = std::optional<json::object>()](Wire& wire,
                                                              const json::object& message) mutable {
        if (detail::string_of(message, "method") == "server/discover") {
            held = message;
            return;
        }
        if (detail::string_of(message, "method") == "initialize") modern(wire, *held);
        modern(wire, message);
    };
    connect();
    BOOST_TEST((client().era() == McpEra::modern));
}

BOOST_AUTO_TEST_CASE(a_server_that_ends_at_the_question_is_started_again) {
    peer->on_message = [](Wire& wire, const json::object& message) {
        if (detail::string_of(message, "method") == "server/discover")
            return wire.die("expected initialize");
        legacy(wire, message);
    };
    connect();
    BOOST_TEST(peer->opened == 2);
    BOOST_TEST((client().era() == McpEra::legacy));
}

BOOST_AUTO_TEST_CASE(a_server_that_ends_before_the_question_is_sent_is_started_again) {
    peer->on_message = [](Wire& wire, const json::object& message) {
        if (detail::string_of(message, "method") == "server/discover") {
            wire.die("broken pipe");
            throw *wire.death;
        }
        legacy(wire, message);
    };
    connect();
    BOOST_TEST(peer->opened == 2);
    BOOST_TEST((client().era() == McpEra::legacy));
}

BOOST_AUTO_TEST_CASE(a_server_that_never_lives_fails_with_its_last_words) {
    peer->on_message = [](Wire& wire, const json::object&) {
        wire.die("exit code 7: no such module");
    };
    const auto error = failure([&] { connect(); });
    BOOST_TEST((error.code() == errc::mcp_connection));
    BOOST_TEST(contains(error.detail(), "\"srv\""));
    BOOST_TEST(contains(error.detail(), "exit code 7: no such module"));
}

BOOST_AUTO_TEST_CASE(modern_errors_tell_the_era) {
    peer->on_message = [](Wire& wire, const json::object& message) {
        if (detail::string_of(message, "method") == "initialize") return legacy(wire, message);
        auto refusal = mcp::rpc_error(message.at("id"), -32022, "Unsupported protocol version");
        refusal["error"].as_object()["data"] = json::parse(R"({"supported":["2025-11-25"]})");
        wire.say(refusal);
    };
    connect();
    BOOST_TEST((client().era() == McpEra::legacy));
    Fixture newer;
    newer.peer->on_message = [](Wire& wire, const json::object& message) {
        auto refusal = mcp::rpc_error(message.at("id"), -32022, "Unsupported protocol version");
        refusal["error"].as_object()["data"] = json::parse(R"({"supported":["2031-01-01"]})");
        wire.say(refusal);
    };
    const auto error = failure([&] { newer.connect(); });
    BOOST_TEST((error.code() == errc::mcp_protocol));
    BOOST_TEST(newer.peer->count("initialize") == 0u);
}

BOOST_AUTO_TEST_CASE(connecting_has_a_limit_and_initialize_is_never_cancelled) {
    options.connect_timeout = 50ms;
    options.discover_timeout = 10ms;
    const auto error = failure([&] { connect(); });
    BOOST_TEST((error.code() == errc::timed_out));
    BOOST_TEST(contains(error.detail(), "0.050 s"));
    settle();
    BOOST_TEST(peer->count("initialize") == 1u);
    BOOST_TEST(peer->count("notifications/cancelled") == 0u);
}

BOOST_AUTO_TEST_CASE(a_person_s_time_is_not_the_server_s) {
    options.connect_timeout = 100ms;
    options.discover_timeout = 20ms;
    const auto after_consent = [this](const json::object& message) -> awaitable<void> {
        const json::object asked = message;
        co_await sleep_until(Clock::now() + 300ms);
        modern(*peer, asked);
        if (detail::string_of(asked, "method") == "tools/call") text_result(*peer, asked, "done");
    };
    peer->on_message = [&](Wire& wire, const json::object& message) {
        wire.person_since = Clock::now();
        asio::co_spawn(context, after_consent(message), asio::detached);
    };
    connect();
    BOOST_TEST((client().era() == McpEra::modern));
    CallOptions brief;
    brief.idle_timeout = 50ms;
    BOOST_TEST(call("any", brief).content.size() == 1u);
    // What comes after the person's consent is the server's again.
    peer->on_message = [](Wire& wire, const json::object&) { wire.person_since.reset(); };
    BOOST_TEST((failure([&] { call("any", brief); }).code() == errc::timed_out));
}

BOOST_AUTO_TEST_CASE(calls_need_a_connection) {
    BOOST_TEST((failure([&] { call("x"); }).code() == errc::bad_argument));
}

BOOST_AUTO_TEST_CASE(a_call_carries_its_arguments_and_returns_everything) {
    peer->on_message = [](Wire& wire, const json::object& message) {
        legacy(wire, message);
        if (detail::string_of(message, "method") == "tools/call")
            wire.answer(message, object(R"({"content":[{"type":"text","text":"hi"},
                {"type":"image","data":"AA==","mimeType":"image/png"}],
                "structuredContent":[1,2],"isError":true,"_meta":{"k":"v"}})"));
    };
    connect();
    json::object arguments;
    arguments["nothing"] = nullptr;
    const auto result =
        test::run(context, client().call_tool("t", std::move(arguments), CallOptions()));
    BOOST_TEST(result.content.size() == 2u);
    BOOST_TEST(json::serialize(result.structured_content.value()) == "[1,2]");
    BOOST_TEST(result.is_error);
    BOOST_TEST(json::serialize(result.meta) == R"({"k":"v"})");
    const auto& request = peer->last("tools/call");
    BOOST_TEST(request.at("params").at("name").as_string() == "t");
    BOOST_TEST(json::serialize(request.at("params").at("arguments")) == R"({"nothing":null})");
    BOOST_TEST(request.at("params").at("_meta").at("progressToken") == request.at("id"));
}

BOOST_AUTO_TEST_CASE(answers_find_their_calls_in_any_order) {
    peer->on_message = legacy;
    connect();
    for (const char* name : {"a", "b", "c"}) start_call(name);
    settle();
    std::vector<json::object> requests;
    for (const auto& message : peer->sent)
        if (detail::string_of(message, "method") == "tools/call") requests.push_back(message);
    BOOST_REQUIRE_EQUAL(requests.size(), 3u);
    for (const int at : {2, 0, 1}) {
        const auto& name =
            requests[static_cast<std::size_t>(at)].at("params").at("name").as_string();
        text_result(*peer, requests[static_cast<std::size_t>(at)], name);
        settle();
    }
    BOOST_REQUIRE_EQUAL(results.size(), 3u);
    std::string order;
    for (const auto& [error, result] : results)
        order += result.content.at(0).at("text").as_string();
    BOOST_TEST(order == "cab");
}

BOOST_AUTO_TEST_CASE(an_error_answer_names_server_tool_and_code) {
    peer->on_message = [](Wire& wire, const json::object& message) {
        legacy(wire, message);
        if (detail::string_of(message, "method") == "tools/call")
            wire.refuse(message, -32602, "bad\x1b[31m arguments " + std::string(10'000, 'x'));
    };
    connect();
    const auto error = failure([&] { call("mytool"); });
    BOOST_TEST((error.code() == errc::mcp_error));
    for (const char* part : {"\"srv\"", "\"mytool\"", "bad[31m arguments", "-32602"})
        BOOST_TEST(contains(error.detail(), part), part);
    BOOST_TEST(error.detail().size() < 5'000u);
}

BOOST_AUTO_TEST_CASE(broken_results_are_protocol_errors) {
    for (const char* result :
         {R"("text")", R"(null)", R"([1])", R"({"content":"x"})", R"({"content":[1]})"}) {
        Fixture each;
        each.peer->on_message = [result](Wire& wire, const json::object& message) {
            legacy(wire, message);
            if (detail::string_of(message, "method") != "tools/call") return;
            json::object answer;
            answer["jsonrpc"] = "2.0";
            answer["id"] = message.at("id");
            answer["result"] = json::parse(result);
            wire.say(answer);
        };
        each.connect();
        BOOST_TEST((failure([&] { each.call("t"); }).code() == errc::mcp_protocol), result);
    }
}

BOOST_AUTO_TEST_CASE(three_pages_of_tools_become_one_list) {
    peer->on_message = [](Wire& wire, const json::object& message) {
        if (detail::string_of(message, "method") != "tools/list") return legacy(wire, message);
        const auto cursor = detail::string_of(message.at("params").as_object(), "cursor");
        if (cursor.empty())
            wire.answer(message,
                        object(R"({"tools":[{"name":"a"},{"name":"b"}],"nextCursor":"p2"})"));
        if (cursor == "p2") wire.answer(message, object(R"({"tools":[],"nextCursor":"p3"})"));
        if (cursor == "p3") wire.answer(message, object(R"({"tools":[{"name":"c"}]})"));
    };
    connect();
    const auto tools = test::run(context, client().list_tools());
    std::string names;
    for (const auto& tool : tools) names += tool.at("name").as_string();
    BOOST_TEST(names == "abc");
    BOOST_TEST(peer->count("tools/list") == 3u);
}

BOOST_AUTO_TEST_CASE(a_cursor_that_comes_twice_is_an_error) {
    peer->on_message = [](Wire& wire, const json::object& message) {
        legacy(wire, message);
        if (detail::string_of(message, "method") == "tools/list") {
            wire.to_client.clear();
            wire.answer(message, object(R"({"tools":[{"name":"a"}],"nextCursor":"same"})"));
        }
    };
    connect();
    const auto error = failure([&] { test::run(context, client().list_tools()); });
    BOOST_TEST((error.code() == errc::mcp_protocol));
    BOOST_TEST(contains(error.detail(), "same"));
    BOOST_TEST(peer->count("tools/list") == 2u);
}

BOOST_AUTO_TEST_CASE(endless_pages_and_endless_tools_are_errors) {
    const auto endless = [](std::string tool, int tools) {
        return [tool, tools, page = 0](Wire& to, const json::object& message) mutable {
            if (detail::string_of(message, "method") != "tools/list") return legacy(to, message);
            json::object result;
            result["nextCursor"] = std::to_string(++page);
            auto& list = result["tools"].emplace_array();
            for (int count = 0; count < tools; ++count) {
                json::object entry;
                entry["name"] = tool;
                list.push_back(entry);
            }
            to.answer(message, std::move(result));
        };
    };
    for (const auto& [tool, tools] :
         {std::pair<std::string, int>("a", 1'000), {"a", 0}, {std::string(1 << 20, 'x'), 10}}) {
        Fixture each;
        each.peer->on_message = endless(tool, tools);
        each.connect();
        BOOST_TEST((failure([&] { test::run(each.context, each.client().list_tools()); }).code() ==
                    errc::mcp_protocol));
    }
}

BOOST_AUTO_TEST_CASE(nameless_tools_are_left_out) {
    peer->on_message = [](Wire& wire, const json::object& message) {
        if (detail::string_of(message, "method") != "tools/list") return legacy(wire, message);
        wire.answer(message, object(R"({"tools":[1,{"name":""},{"name":7},{},{"name":"good"}]})"));
    };
    connect();
    BOOST_TEST(test::run(context, client().list_tools()).size() == 1u);
}

BOOST_AUTO_TEST_CASE(a_server_without_tools_is_not_asked) {
    peer->on_message = [](Wire& wire, const json::object& message) {
        if (detail::string_of(message, "method") == "server/discover") return legacy(wire, message);
        wire.answer(message, object(R"({"protocolVersion":"2025-11-25","capabilities":{}})"));
    };
    connect();
    BOOST_TEST(test::run(context, client().list_tools()).empty());
    BOOST_TEST(peer->count("tools/list") == 0u);
}

BOOST_AUTO_TEST_CASE(death_fails_all_pending_calls_with_the_same_words) {
    peer->on_message = legacy;
    connect();
    for (const char* name : {"a", "b", "c"}) start_call(name);
    settle();
    peer->die("exit code 3; last words");
    settle();
    BOOST_REQUIRE_EQUAL(results.size(), 3u);
    for (const auto& [error, result] : results) {
        BOOST_TEST((code_of(error) == errc::mcp_connection));
        try {
            std::rethrow_exception(error);
        } catch (const Error& thrown) {
            BOOST_TEST(thrown.detail() == "MCP server \"srv\": exit code 3; last words");
        }
    }
    BOOST_TEST((failure([&] { call("d"); }).code() == errc::mcp_connection));
}

BOOST_AUTO_TEST_CASE(the_idle_limit_ends_a_call_and_says_so) {
    peer->on_message = legacy;
    connect();
    CallOptions limits;
    limits.idle_timeout = 30ms;
    const auto error = failure([&] { call("t", limits); });
    BOOST_TEST((error.code() == errc::timed_out));
    BOOST_TEST(contains(error.detail(), "0.030 s (idle timeout)"));
    settle();
    const auto& id = peer->last("tools/call").at("id");
    BOOST_TEST(peer->last("notifications/cancelled").at("params").at("requestId") == id);
    BOOST_REQUIRE_EQUAL(peer->cancelled.size(), 1u);
    BOOST_TEST(peer->cancelled[0] == id);
}

BOOST_AUTO_TEST_CASE(progress_postpones_the_idle_limit_but_not_the_absolute_one) {
    peer->on_message = legacy;
    connect();
    const auto report = [this](bool finish) -> awaitable<void> {
        asio::steady_timer timer(context);
        for (int step = 0; step < 15; ++step) {
            timer.expires_after(100ms);
            co_await timer.async_wait(asio::use_awaitable);
            if (peer->count("tools/call") == 0) continue;
            json::object params;
            params["progressToken"] = peer->last("tools/call").at("id");
            params["progress"] = step;
            params["total"] = 15.5;
            params["message"] = "working";
            peer->say(mcp::rpc_notification("notifications/progress", params));
        }
        if (finish) text_result(*peer, peer->last("tools/call"), "done");
    };
    std::vector<CallProgress> reports;
    CallOptions limits;
    limits.idle_timeout = 1s;
    limits.on_progress = [&](const CallProgress& progress) { reports.push_back(progress); };
    asio::co_spawn(context, report(true), asio::detached);
    const auto result = call("t", limits);
    BOOST_TEST(result.content.size() == 1u);
    BOOST_REQUIRE_GE(reports.size(), 10u);
    BOOST_TEST(reports.back().progress == 14);
    BOOST_TEST(reports.back().total.value() == 15.5);
    BOOST_TEST(reports.back().message == "working");

    limits.total_timeout = 300ms;
    asio::co_spawn(context, report(false), asio::detached);
    const auto error = failure([&] { call("t", limits); });
    BOOST_TEST((error.code() == errc::timed_out));
    BOOST_TEST(contains(error.detail(), "0.300 s (absolute timeout)"));
}

BOOST_AUTO_TEST_CASE(a_limit_of_zero_is_no_limit) {
    peer->on_message = [this](Wire&, const json::object& message) {
        legacy(*peer, message);
        if (detail::string_of(message, "method") == "tools/call")
            asio::post(context, [this, message] { text_result(*peer, message, "ok"); });
    };
    connect();
    CallOptions limits;
    limits.idle_timeout = limits.total_timeout = Duration::zero();
    BOOST_TEST(call("t", limits).content.size() == 1u);
}

BOOST_AUTO_TEST_CASE(a_failing_progress_callback_does_no_harm) {
    peer->on_message = [](Wire& wire, const json::object& message) {
        legacy(wire, message);
        if (detail::string_of(message, "method") != "tools/call") return;
        json::object params;
        params["progressToken"] = message.at("id");
        wire.say(mcp::rpc_notification("notifications/progress", params));
        text_result(wire, message, "fine");
    };
    connect();
    CallOptions limits;
    limits.on_progress = [](const CallProgress&) { throw std::runtime_error("my own fault"); };
    BOOST_TEST(call("t", limits).content.size() == 1u);
}

BOOST_AUTO_TEST_CASE(cancelling_the_coroutine_tells_the_server_and_a_late_answer_does_nothing) {
    peer->on_message = legacy;
    connect();
    asio::cancellation_signal signal;
    std::exception_ptr error;
    asio::co_spawn(context, client().call_tool("t", json::object(), CallOptions()),
                   asio::bind_cancellation_slot(
                       signal.slot(), [&](std::exception_ptr e, CallResult) { error = e; }));
    settle();
    signal.emit(asio::cancellation_type::terminal);
    settle();
    BOOST_TEST((code_of(error) == errc::cancelled));
    const auto request = peer->last("tools/call");
    BOOST_TEST(peer->last("notifications/cancelled").at("params").at("requestId") ==
               request.at("id"));
    BOOST_TEST(peer->cancelled.size() == 1u);
    text_result(*peer, request, "late");
    settle();
    peer->on_message = [](Wire& to, const json::object& message) {
        text_result(to, message, "next");
    };
    BOOST_TEST(call("u").content.at(0).at("text").as_string() == "next");
}

BOOST_AUTO_TEST_CASE(a_limit_holds_even_when_nothing_can_be_sent) {
    peer->on_message = legacy;
    connect();
    settle();
    peer->blocks = true;
    CallOptions limits;
    limits.idle_timeout = 30ms;
    BOOST_TEST((failure([&] { call("t", limits); }).code() == errc::timed_out));
    client_.reset();
    settle();
    BOOST_TEST(peer->transports == 0);
}

BOOST_AUTO_TEST_CASE(requests_of_the_server_are_answered) {
    options.roots.push_back(object(R"({"uri":"file:///w"})"));
    peer->on_message = legacy;
    connect();
    const auto asked = [this](std::string_view method) {
        const auto before = peer->sent.size();
        peer->say(mcp::rpc_request("q", method, json::object()));
        settle();
        BOOST_REQUIRE_EQUAL(peer->sent.size(), before + 1);
        BOOST_TEST(peer->sent.back().at("id").as_string() == "q");
        return peer->sent.back();
    };
    BOOST_TEST(asked("ping").at("result").as_object().empty());
    BOOST_TEST(json::serialize(asked("roots/list").at("result")) ==
               R"({"roots":[{"uri":"file:///w"}]})");
    BOOST_TEST(asked("elicitation/create").at("result").at("action").as_string() == "decline");
    const auto sample = asked("sampling/createMessage");
    BOOST_TEST(sample.at("error").at("code").as_int64() == -1);
    BOOST_TEST(contains(std::string(sample.at("error").at("message").as_string()), "declined"));
    BOOST_TEST(asked("no/such").at("error").at("code").as_int64() == -32601);
    BOOST_TEST(
        peer->last("initialize").at("params").at("capabilities").as_object().contains("roots"));
}

BOOST_AUTO_TEST_CASE(the_application_may_answer_requests) {
    options.on_request = [](std::string method, json::object params) -> awaitable<json::object> {
        if (method == "sampling/createMessage") throw Error(errc::denied, "not today");
        json::object result;
        result["got"] = params.at("x");
        co_return result;
    };
    peer->on_message = legacy;
    connect();
    peer->say(R"({"jsonrpc":"2.0","id":1,"method":"elicitation/create","params":{"x":5}})");
    settle();
    BOOST_TEST(json::serialize(peer->sent.back().at("result")) == R"({"got":5})");
    peer->say(R"({"jsonrpc":"2.0","id":2,"method":"elicitation/create"})");
    settle();
    BOOST_TEST(peer->sent.back().at("error").at("code").as_int64() == -32603);
    peer->say(R"({"jsonrpc":"2.0","id":3,"method":"sampling/createMessage"})");
    settle();
    BOOST_TEST(peer->sent.back().at("error").at("message").as_string() == "not today");
}

BOOST_AUTO_TEST_CASE(notifications_reach_logger_and_callback) {
    std::vector<std::pair<LogLevel, std::string>> lines;
    options.logger.level = LogLevel::info;
    options.logger.write = [&](LogLevel level, std::string_view line) {
        lines.emplace_back(level, line);
    };
    int changes = 0;
    options.on_tools_changed = [&] { ++changes; };
    peer->on_message = legacy;
    connect();
    peer->say(R"({"jsonrpc":"2.0","method":"notifications/message",
        "params":{"level":"error","data":"\u001b[2Jboom"}})");
    peer->say(
        R"({"jsonrpc":"2.0","method":"notifications/message","params":{"level":"debug","data":"no"}})");
    peer->say(
        R"({"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":{"a":1}}})");
    peer->say(R"({"jsonrpc":"2.0","method":"notifications/tools/list_changed"})");
    peer->say(R"({"jsonrpc":"2.0","method":"notifications/of/tomorrow"})");
    settle();
    BOOST_REQUIRE_EQUAL(lines.size(), 2u);
    BOOST_TEST((lines[0].first == LogLevel::error));
    BOOST_TEST(lines[0].second == "MCP server \"srv\": log: [2Jboom");
    BOOST_TEST(lines[1].second == "MCP server \"srv\": log: {\"a\":1}");
    until([&] { return changes > 0; });
    BOOST_TEST(changes == 1);
    lines.clear();
    for (int line = 0; line < 2'000; ++line)
        peer->say(
            R"({"jsonrpc":"2.0","method":"notifications/message","params":{"level":"error","data":"x"}})");
    settle();
    BOOST_TEST(lines.size() < 1'000u);
}

BOOST_AUTO_TEST_CASE(a_callback_may_destroy_the_client) {
    options.on_tools_changed = [this] { client_.reset(); };
    peer->on_message = legacy;
    connect();
    start_call("t");
    settle();
    peer->say(R"({"jsonrpc":"2.0","method":"notifications/tools/list_changed"})");
    until([&] { return !client_; });
    settle();
    BOOST_REQUIRE_EQUAL(results.size(), 1u);
    BOOST_TEST((code_of(results[0].first) == errc::cancelled));
    BOOST_TEST(peer->transports == 0);
}

BOOST_AUTO_TEST_CASE(hostile_messages_do_no_harm) {
    peer->on_message = legacy;
    connect();
    start_call("t");
    settle();
    const auto request = peer->last("tools/call");
    for (
        const char* text : {
            R"({})",
            R"({"jsonrpc":"2.0"})",
            R"({"jsonrpc":"2.0","id":999,"result":{}})",
            R"({"jsonrpc":"2.0","id":-1,"result":{}})",
            R"({"jsonrpc":"2.0","id":"4","result":{}})",
            R"({"jsonrpc":"2.0","id":18446744073709551615,"error":{}})",
            R"({"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"?"}})",
            R"({"jsonrpc":"2.0","method":"notifications/progress"})",
            R"({"jsonrpc":"2.0","method":"notifications/progress","params":[1]})",
            R"({"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"4"}})",
            R"({"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":77}})",
            R"({"jsonrpc":"2.0","method":"notifications/message","params":{"level":7}})",
            R"({"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":4}})",
        })
        peer->say(text);
    settle();
    BOOST_TEST(results.empty());
    text_result(*peer, request, "first");
    text_result(*peer, request, "second");
    settle();
    BOOST_REQUIRE_EQUAL(results.size(), 1u);
    BOOST_TEST(results[0].second.content.at(0).at("text").as_string() == "first");
}

BOOST_AUTO_TEST_CASE(a_malformed_answer_fails_its_call) {
    peer->on_message = legacy;
    connect();
    start_call("t");
    settle();
    json::object answer;
    answer["jsonrpc"] = "2.0";
    answer["id"] = peer->last("tools/call").at("id");
    peer->say(answer);
    settle();
    BOOST_REQUIRE_EQUAL(results.size(), 1u);
    BOOST_TEST((code_of(results[0].first) == errc::mcp_protocol));
}

BOOST_AUTO_TEST_CASE(a_flood_of_requests_is_not_answered_without_end) {
    peer->on_message = legacy;
    connect();
    settle();
    peer->blocks = true;
    for (int number = 0; number < 10'000; ++number)
        peer->say(R"({"jsonrpc":"2.0","id":1,"method":"ping"})");
    settle();
    const auto before = peer->sent.size();
    peer->blocks = false;
    peer->arrived.notify();
    settle();
    BOOST_TEST(peer->sent.size() - before < 100u);
}

BOOST_AUTO_TEST_CASE(close_fails_what_is_pending) {
    peer->on_message = legacy;
    connect();
    start_call("t");
    settle();
    test::run(context, client().close());
    settle();
    BOOST_TEST(peer->closed);
    BOOST_REQUIRE_EQUAL(results.size(), 1u);
    BOOST_TEST((code_of(results[0].first) == errc::cancelled));
    BOOST_TEST((failure([&] { call("u"); }).code() == errc::cancelled));
    test::run(context, client().close());
}

BOOST_AUTO_TEST_CASE(destruction_is_safe_at_any_step) {
    // After each number of steps of the io_context, from the first to after the last.
    for (int steps = 1; steps < 60; ++steps) {
        Fixture each;
        each.peer->on_message = [](Wire& to, const json::object& message) {
            legacy(to, message);
            if (detail::string_of(message, "method") == "tools/call") text_result(to, message, "x");
        };
        bool finished = false;
        asio::co_spawn(
            each.context,
            [](McpClient& victim, Sandbox& box) -> awaitable<void> {
                co_await victim.connect(box);
                co_await victim.call_tool("t", json::object(), CallOptions());
            }(each.client(), each.sandbox),
            [&finished](std::exception_ptr) { finished = true; });
        for (int step = 0; step < steps; ++step) each.context.poll_one();
        each.client_.reset();
        each.settle();
        BOOST_TEST(each.peer->transports == 0, "after " << steps << " steps");
    }
}

BOOST_AUTO_TEST_CASE(the_context_may_go_first) {
    {
        auto local = std::make_unique<asio::io_context>();
        auto inner = std::make_shared<Wire>(local->get_executor());
        inner->on_message = legacy;
        McpClientOptions own;
        auto inner_client = std::make_unique<McpClient>(
            local->get_executor(), std::make_unique<MemoryTransport>(inner), std::move(own));
        test::run(*local, inner_client->connect(sandbox));
        inner_client.reset();
        local.reset();
        BOOST_TEST(inner->transports == 0);
    }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace mcp_client_tests
