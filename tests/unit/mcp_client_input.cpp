// What McpClient does beyond calls and answers: rounds of input, subscriptions, freshness of the
#include <boost/json/serialize.hpp>
// list of tools, output schemas, and what it offers to servers.
#include "mcp_client_fixture.hpp"

namespace mcp_client_input_tests {

using namespace ipybox;
using namespace ipybox::test;
using namespace std::chrono_literals;

namespace {

constexpr std::string_view form = R"({"resultType":"input_required","requestState":"{\"a\": 1}=",
    "inputRequests":{"sure":{"method":"elicitation/create","params":{"message":"Sure?",
    "requestedSchema":{"type":"object","properties":{"yes":{"type":"boolean","default":true},
    "name":{"type":"string","default":"me"},"other":{"type":"string"}}}}}}})";

bool is(const json::object& message, std::string_view method) {
    return detail::string_of(message, "method") == method;
}

// A modern server whose answers to calls are `next`, one after another; the last one stays.
struct InputFixture : ClientFixture {
    InputFixture() {
        peer->on_message = [this](Wire& wire, const json::object& message) {
            modern(wire, message);
            if (!is(message, "tools/call") && !is(message, "prompts/get")) return;
            const auto at = std::min(calls++, next.size() - 1);
            wire.answer(message, object(next[at]));
        };
    }
    std::vector<json::object> sent(std::string_view method) const {
        std::vector<json::object> found;
        for (const auto& message : peer->sent)
            if (is(message, method)) found.push_back(message.at("params").as_object());
        return found;
    }

    std::vector<std::string> next{std::string(form), R"({"resultType":"complete","content":[]})"};
    std::size_t calls = 0;
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(mcp_client_input, InputFixture)

BOOST_AUTO_TEST_CASE(input_is_given_and_the_state_comes_back_as_it_was) {
    options.capabilities = object(R"({"elicitation":{}})");
    options.on_request = [](std::string, json::object params) -> awaitable<json::object> {
        json::object result;
        result["action"] = "accept";
        result["content"] = detail::form_defaults(params);
        co_return result;
    };
    connect();
    call("t");
    const auto requests = sent("tools/call");
    BOOST_REQUIRE_EQUAL(requests.size(), 2u);
    BOOST_TEST(!requests[0].contains("inputResponses"));
    BOOST_TEST(!requests[0].contains("requestState"));
    BOOST_TEST(json::serialize(requests[1].at("inputResponses")) ==
               R"({"sure":{"action":"accept","content":{"yes":true,"name":"me"}}})");
    BOOST_TEST(requests[1].at("requestState").as_string() == "{\"a\": 1}=");
    BOOST_TEST(requests[1].at("name").as_string() == "t");
    BOOST_TEST(requests[0].at("_meta").at("progressToken") !=
               requests[1].at("_meta").at("progressToken"));
    const auto& meta = requests[1].at("_meta").as_object();
    BOOST_TEST(json::serialize(meta.at("io.modelcontextprotocol/clientCapabilities")) ==
               R"({"elicitation":{}})");
    call("another");
    BOOST_TEST(!sent("tools/call").back().contains("requestState"));
    BOOST_TEST(!sent("tools/call").back().contains("inputResponses"));
}

BOOST_AUTO_TEST_CASE(forms_are_declined_when_nobody_answers) {
    connect();
    call("t");
    const auto response = sent("tools/call").at(1).at("inputResponses").at("sure");
    BOOST_TEST(response.at("action").as_string() == "decline");
    BOOST_TEST(contains(json::serialize(response), "nobody to ask"));
}

BOOST_AUTO_TEST_CASE(a_state_from_an_earlier_round_is_not_sent_again) {
    next.insert(next.begin() + 1, R"({"resultType":"input_required","inputRequests":
        {"where":{"method":"roots/list"}}})");
    options.roots.push_back(object(R"({"uri":"file:///w"})"));
    connect();
    json::object params;
    params["name"] = "p";
    test::run(context, client().request("prompts/get", std::move(params), CallOptions()));
    const auto requests = sent("prompts/get");
    BOOST_REQUIRE_EQUAL(requests.size(), 3u);
    BOOST_TEST(requests[1].contains("requestState"));
    BOOST_TEST(!requests[2].contains("requestState"));
    BOOST_TEST(json::serialize(requests[2].at("inputResponses")) ==
               R"({"where":{"roots":[{"uri":"file:///w"}]}})");
}

BOOST_AUTO_TEST_CASE(a_state_alone_is_brought_back) {
    next[0] = R"({"resultType":"input_required","requestState":"later"})";
    connect();
    call("t");
    const auto requests = sent("tools/call");
    BOOST_REQUIRE_EQUAL(requests.size(), 2u);
    BOOST_TEST(requests[1].at("requestState").as_string() == "later");
    BOOST_TEST(!requests[1].contains("inputResponses"));
}

BOOST_AUTO_TEST_CASE(input_that_cannot_be_had_fails_the_call) {
    next[0] = R"({"resultType":"input_required","inputRequests":
        {"x":{"method":"sampling/createMessage","params":{}}}})";
    connect();
    auto error = failure([&] { call("tool"); });
    BOOST_TEST((error.code() == errc::mcp_error));
    BOOST_TEST(contains(error.detail(), "no model to sample from"));
    BOOST_TEST(contains(error.detail(), "\"tool\""));
    for (const char* broken : {R"({"resultType":"input_required"})", R"({"resultType":"task"})",
                               R"({"resultType":"input_required","inputRequests":{"x":5}})",
                               R"({"resultType":"input_required","inputRequests":{"x":{}}})"}) {
        calls = 0;
        next[0] = broken;
        BOOST_TEST((failure([&] { call("tool"); }).code() == errc::mcp_protocol), broken);
    }
    json::object many;
    for (int number = 0; number < 100; ++number)
        many[std::to_string(number)] = object(R"({"method":"roots/list"})");
    next[0] = R"({"resultType":"input_required","inputRequests":)" + json::serialize(many) + "}";
    calls = 0;
    BOOST_TEST((failure([&] { call("tool"); }).code() == errc::mcp_protocol));
}

BOOST_AUTO_TEST_CASE(rounds_without_end_are_ended) {
    next.pop_back();
    connect();
    const auto error = failure([&] { call("tool"); });
    BOOST_TEST((error.code() == errc::mcp_error));
    BOOST_TEST(contains(error.detail(), "again and again"));
    BOOST_TEST(calls < 100u);
}

BOOST_AUTO_TEST_CASE(input_is_waited_for_within_the_limit_of_the_call) {
    int asked = 0;
    options.on_request = [&](std::string, json::object) -> awaitable<json::object> {
        ++asked;
        co_await sleep_until(never);
        co_return json::object();
    };
    connect();
    CallOptions limits;
    limits.total_timeout = 30ms;
    const auto error = failure([&] { call("t", limits); });
    BOOST_TEST((error.code() == errc::timed_out));
    BOOST_TEST(contains(error.detail(), "no input within 0.030 s"));
    BOOST_TEST(asked == 1);
    // Withdrawn while somebody is being asked.
    calls = 0;
    asio::cancellation_signal withdraw;
    std::exception_ptr failed;
    asio::co_spawn(context, client().call_tool("t", json::object(), CallOptions()),
                   asio::bind_cancellation_slot(
                       withdraw.slot(),
                       [&](std::exception_ptr problem, const CallResult&) { failed = problem; }));
    until([&] { return asked == 2; });
    asio::post(context, [&] { withdraw.emit(asio::cancellation_type::terminal); });
    until([&] { return failed != nullptr; });
    BOOST_TEST(calls == 1u);
}

BOOST_AUTO_TEST_CASE(only_offered_modes_are_answered) {
    options.capabilities = object(R"({"elicitation":{"url":{}}})");
    options.on_request = [](std::string, json::object) -> awaitable<json::object> {
        json::object result;
        result["action"] = "accept";
        co_return result;
    };
    peer->on_message = legacy;
    connect();
    const auto asked = [this](std::string_view params) {
        peer->say(mcp::rpc_request("q", "elicitation/create", object(params)));
        settle();
        return json::serialize(peer->sent.back());
    };
    BOOST_TEST(contains(asked(R"({"mode":"url","url":"https://a"})"), "accept"));
    BOOST_TEST(contains(asked(R"({"mode":"form"})"), "-32602"));
    BOOST_TEST(contains(asked(R"({})"), "-32602"));
}

BOOST_AUTO_TEST_CASE(nothing_is_offered_that_cannot_be_answered) {
    options.capabilities = object(R"({"elicitation":{},"sampling":{},"experimental":{"x":{}}})");
    peer->on_message = legacy;
    connect();
    BOOST_TEST(json::serialize(peer->last("initialize").at("params").at("capabilities")) ==
               R"({"experimental":{"x":{}}})");
}

BOOST_AUTO_TEST_CASE(pages_are_visited_and_the_call_made_again) {
    options.capabilities = object(R"({"elicitation":{"url":{}}})");
    std::string visited;
    options.on_request = [&](std::string, json::object params) -> awaitable<json::object> {
        visited = params.at("url").as_string();
        json::object result;
        result["action"] = "accept";
        co_return result;
    };
    int number = 0;
    peer->on_message = [&](Wire& wire, const json::object& message) {
        legacy(wire, message);
        if (!is(message, "tools/call")) return;
        if (number++ > 0) return text_result(wire, message, "welcome");
        auto refusal = mcp::rpc_error(message.at("id"), -32042, "log in first");
        refusal["error"].as_object()["data"] = object(
            R"({"elicitations":[{"elicitationId":"e1","url":"https://login.example","message":"m"}]})");
        wire.say(refusal);
    };
    connect();
    start_call("t");
    until([&] { return !visited.empty(); });
    settle();
    BOOST_TEST(visited == "https://login.example");
    BOOST_TEST(results.empty());
    peer->say(R"({"jsonrpc":"2.0","method":"notifications/elicitation/complete",
        "params":{"elicitationId":"e2"}})");
    settle();
    BOOST_TEST(results.empty());
    peer->say(R"({"jsonrpc":"2.0","method":"notifications/elicitation/complete",
        "params":{"elicitationId":"e1"}})");
    until([&] { return !results.empty(); });
    BOOST_TEST(results[0].second.content.at(0).at("text").as_string() == "welcome");
}

BOOST_AUTO_TEST_CASE(a_page_that_nobody_can_visit_is_a_clear_error) {
    peer->on_message = [&](Wire& wire, const json::object& message) {
        legacy(wire, message);
        if (is(message, "tools/call")) wire.refuse(message, -32042, "log in first");
    };
    connect();
    BOOST_TEST(contains(failure([&] { call("t"); }).detail(), "log in first"));
}

// ---- versions ----

BOOST_AUTO_TEST_CASE(a_refusal_of_the_version_it_supports_is_not_taken_for_an_answer) {
    int asked = 0;
    peer->on_message = [&](Wire& wire, const json::object& message) {
        if (is(message, "server/discover") && asked++ == 0) {
            auto refusal = mcp::rpc_error(message.at("id"), -32022, "no");
            refusal["error"].as_object()["data"] = object(R"({"supported":["2026-07-28"]})");
            return wire.say(refusal);
        }
        modern(wire, message);
    };
    connect();
    BOOST_TEST((client().era() == McpEra::modern));
    BOOST_TEST(asked == 2);
}

BOOST_AUTO_TEST_CASE(a_server_that_refuses_a_version_gets_one_it_knows) {
    peer->on_message = [&](Wire& wire, const json::object& message) {
        if (is(message, "initialize") &&
            message.at("params").at("protocolVersion").as_string() != "2024-11-05") {
            auto refusal = mcp::rpc_error(message.at("id"), -32602, "Unsupported");
            refusal["error"].as_object()["data"] = object(R"({"supported":["2024-11-05"]})");
            return wire.say(refusal);
        }
        legacy(wire, message);
    };
    connect();
    BOOST_TEST(peer->count("initialize") == 2u);
}

BOOST_AUTO_TEST_CASE(members_that_are_written_out_as_null_are_none) {
    peer->on_message = [&](Wire& wire, const json::object& message) {
        legacy(wire, message);
        if (!is(message, "tools/call")) return;
        auto answer = object(R"({"jsonrpc":"2.0","result":{"content":[]},"error":null})");
        if (calls++ > 0)
            answer = object(R"({"jsonrpc":"2.0","result":null,"error":{"code":1,"message":"no"}})");
        answer["id"] = message.at("id");
        wire.say(answer);
    };
    connect();
    BOOST_TEST(call("t").content.empty());
    BOOST_TEST(contains(failure([&] { call("t"); }).detail(), "failed: no"));
}

// ---- lists ----

BOOST_AUTO_TEST_CASE(changes_of_tools_are_told_once_and_known_at_once) {
    int changes = 0;
    options.on_tools_changed = [&] { ++changes; };
    peer->on_message = legacy;
    connect();
    test::run(context, client().list_tools());
    BOOST_TEST(client().tools_current());
    for (int number = 0; number < 50; ++number)
        peer->say(R"({"jsonrpc":"2.0","method":"notifications/tools/list_changed"})");
    settle();
    BOOST_TEST(!client().tools_current());
    until([&] { return changes > 0; });
    settle();
    BOOST_TEST(changes == 1);
    test::run(context, client().list_tools());
    BOOST_TEST(client().tools_current());
}

BOOST_AUTO_TEST_CASE(lists_hold_as_long_as_the_server_says) {
    std::string page = R"({"tools":[],"ttlMs":3600000,"nextCursor":""})";
    peer->on_message = [&](Wire& wire, const json::object& message) {
        if (is(message, "tools/list")) return wire.answer(message, object(page));
        modern(wire, message);
    };
    connect();
    for (const char* ttl : {"3600000", "1", "0", "-5", "9223372036854775807", "\"x\""}) {
        page = std::string(R"({"tools":[],"ttlMs":)") + ttl + "}";
        test::run(context, client().list_tools());
        BOOST_TEST(client().tools_current(), ttl);
    }
}

BOOST_AUTO_TEST_CASE(tools_with_broken_header_annotations_are_left_out) {
    const std::string tools = R"({"tools":[
        {"name":"good","inputSchema":{"properties":{"a":{"type":"string","x-mcp-header":"A"},
            "in":{"properties":{"b":{"type":"integer","x-mcp-header":"B"}}}}}},
        {"name":"data","inputSchema":{"properties":{"a":{"const":{"x-mcp-header":""}}}}},
        {"name":"property","inputSchema":{"properties":{"x-mcp-header":{"type":"string"}}}},
        {"name":"x1","inputSchema":{"properties":{"a":{"type":"string","x-mcp-header":""}}}},
        {"name":"x2","inputSchema":{"properties":{"a":{"type":"string","x-mcp-header":"A b"}}}},
        {"name":"x3","inputSchema":{"properties":{"a":{"type":"number","x-mcp-header":"A"}}}},
        {"name":"x4","inputSchema":{"properties":{"a":{"type":"string","x-mcp-header":"A"},
            "b":{"type":"string","x-mcp-header":"a"}}}},
        {"name":"x5","inputSchema":{"properties":{"a":{"items":{"type":"string","x-mcp-header":"A"}}}}},
        {"name":"x6","inputSchema":{"anyOf":[{"properties":{"a":{"type":"string","x-mcp-header":"A"}}}]}},
        {"name":"x7","inputSchema":{"type":"string","x-mcp-header":"A"}},
        {"name":"x8","inputSchema":{"properties":{"a":{"type":"string","x-mcp-header":5}}}},
        {"name":"x9","inputSchema":{"$defs":{"d":{"properties":{"a":{"type":"string","x-mcp-header":"A"}}}}}}
        ]})";
    for (const bool is_modern : {true, false}) {
        ClientFixture each;
        int warnings = 0;
        each.options.logger.level = LogLevel::warning;
        each.options.logger.write = [&](LogLevel, std::string_view) { ++warnings; };
        each.peer->on_message = [&](Wire& wire, const json::object& message) {
            if (is(message, "tools/list")) return wire.answer(message, object(tools));
            is_modern ? modern(wire, message) : legacy(wire, message);
        };
        each.connect();
        const auto listed = test::run(each.context, each.client().list_tools());
        BOOST_TEST(listed.size() == (is_modern ? 3u : 12u));
        BOOST_TEST(warnings == (is_modern ? 9 : 0));
    }
}

BOOST_AUTO_TEST_CASE(structured_results_are_held_against_their_schema) {
    std::string answer;
    peer->on_message = [&](Wire& wire, const json::object& message) {
        if (is(message, "tools/list"))
            return wire.answer(message, object(R"({"tools":[{"name":"t","outputSchema":
                {"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}}]})"));
        modern(wire, message);
        if (is(message, "tools/call")) wire.answer(message, object(answer));
    };
    connect();
    test::run(context, client().list_tools());
    const auto problem = [&](std::string_view text) {
        answer = text;
        return call("t").problem;
    };
    BOOST_TEST(problem(R"({"structuredContent":{"n":1}})") == "");
    BOOST_TEST(contains(problem(R"({"structuredContent":{"n":"one"}})"), "/n"));
    BOOST_TEST(!problem(R"({"structuredContent":null})").empty());
    BOOST_TEST(contains(problem(R"({"content":[]})"), "no structured content"));
    BOOST_TEST(problem(R"({"content":null,"isError":true})") == "");
    BOOST_TEST(call("unlisted").problem == "");
}

// ---- subscriptions ----

BOOST_AUTO_TEST_CASE(modern_subscriptions_are_agreed_on_and_renewed) {
    std::vector<std::string> told;
    options.on_notification = [&](const std::string& method, const json::object& params) {
        told.push_back(method + " " + std::string(params.at("uri").as_string()));
    };
    int listens = 0;
    peer->on_message = [&](Wire& wire, const json::object& message) {
        modern(wire, message);
        if (!is(message, "subscriptions/listen")) return;
        ++listens;
        auto params = object(R"({"notifications":{"resourceSubscriptions":["x:/1"]},"_meta":{}})");
        params["_meta"].as_object()["io.modelcontextprotocol/subscriptionId"] = message.at("id");
        wire.say(mcp::rpc_notification("notifications/subscriptions/acknowledged", params));
    };
    connect();
    test::run(context, client().subscribe("x:/1"));
    test::run(context, client().subscribe("x:/1"));
    BOOST_TEST(listens == 1);
    const auto& listen = peer->last("subscriptions/listen");
    BOOST_TEST(json::serialize(listen.at("params").at("notifications")) ==
               R"({"resourceSubscriptions":["x:/1"]})");
    peer->say(
        R"({"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"x:/1"}})");
    settle();
    BOOST_REQUIRE_EQUAL(told.size(), 1u);
    BOOST_TEST(told[0] == "notifications/resources/updated x:/1");
    // The server ends it: it begins again.
    peer->answer(listen, object(R"({"resultType":"complete"})"));
    until([&] { return listens == 2; });
    settle();
    const auto id = peer->last("subscriptions/listen").at("id");
    test::run(context, client().unsubscribe("x:/1"));
    settle();
    BOOST_TEST(peer->last("notifications/cancelled").at("params").at("requestId") == id);
    BOOST_TEST(peer->cancelled.back() == id);
    test::run(context, client().unsubscribe("x:/1"));
    BOOST_TEST(listens == 2);
}

BOOST_AUTO_TEST_CASE(a_refused_subscription_is_an_error) {
    peer->on_message = [&](Wire& wire, const json::object& message) {
        modern(wire, message);
        if (is(message, "subscriptions/listen")) wire.refuse(message, -32601, "Method not found");
    };
    connect();
    const auto subscribe = [&] { test::run(context, client().subscribe("x:/1")); };
    BOOST_TEST((failure(subscribe).code() == errc::mcp_error));
    peer->on_message = [&](Wire& wire, const json::object& message) {
        if (!is(message, "subscriptions/listen")) return;
        auto params = object(R"({"notifications":{},"_meta":{}})");
        params["_meta"].as_object()["io.modelcontextprotocol/subscriptionId"] = message.at("id");
        wire.say(mcp::rpc_notification("notifications/subscriptions/acknowledged", params));
    };
    BOOST_TEST(contains(failure(subscribe).detail(), "does not tell of changes of x:/1"));
    BOOST_TEST((failure([&] { test::run(context, client().subscribe("")); }).code() ==
                errc::bad_argument));
}

BOOST_AUTO_TEST_CASE(an_agreement_that_never_comes_is_timed_out) {
    options.connect_timeout = 200ms;
    peer->on_message = modern;
    connect();
    const auto error = failure([&] { test::run(context, client().subscribe("x:/1")); });
    BOOST_TEST((error.code() == errc::timed_out));
    settle();
    BOOST_TEST(peer->count("notifications/cancelled") == 1u);
}

BOOST_AUTO_TEST_CASE(legacy_subscriptions_are_requests) {
    peer->on_message = [&](Wire& wire, const json::object& message) {
        legacy(wire, message);
        if (detail::string_of(message, "method").starts_with("resources/"))
            wire.answer(message, json::object());
    };
    connect();
    test::run(context, client().subscribe("x:/1"));
    test::run(context, client().unsubscribe("x:/1"));
    for (const char* method : {"resources/subscribe", "resources/unsubscribe"})
        BOOST_TEST(peer->last(method).at("params").at("uri").as_string() == "x:/1");
}

BOOST_AUTO_TEST_CASE(the_list_of_modern_tools_is_watched) {
    int changes = 0, listens = 0;
    options.on_tools_changed = [&] { ++changes; };
    peer->on_message = [&](Wire& wire, const json::object& message) {
        if (is(message, "server/discover"))
            return wire.answer(message, object(R"({"supportedVersions":["2026-07-28"],
                "capabilities":{"tools":{"listChanged":true},"logging":{}}})"));
        modern(wire, message);
        if (!is(message, "subscriptions/listen")) return;
        ++listens;
        auto params = object(R"({"notifications":{"toolsListChanged":true},"_meta":{}})");
        params["_meta"].as_object()["io.modelcontextprotocol/subscriptionId"] = message.at("id");
        wire.say(mcp::rpc_notification("notifications/subscriptions/acknowledged", params));
    };
    connect();
    settle();
    BOOST_TEST(listens == 1);
    BOOST_TEST(
        json::serialize(peer->last("subscriptions/listen").at("params").at("notifications")) ==
        R"({"toolsListChanged":true})");
    BOOST_TEST(client().tools_current());
    // What changed while nobody listened is unknown.
    peer->refuse(peer->last("subscriptions/listen"), -32603, "broken");
    until([&] { return listens == 2; });
    until([&] { return changes == 1; });
    BOOST_TEST(!client().tools_current());
}

BOOST_AUTO_TEST_CASE(subscriptions_end_with_the_client) {
    peer->on_message = modern;
    connect();
    std::exception_ptr failed;
    asio::co_spawn(context, client().subscribe("x:/1"),
                   [&](std::exception_ptr problem) { failed = problem; });
    settle();
    client_.reset();
    until([&] { return failed != nullptr; });
    settle();
    BOOST_TEST((code_of(failed) == errc::cancelled));
    BOOST_TEST(peer->transports == 0);
}

BOOST_AUTO_TEST_CASE(modern_servers_are_told_which_log_messages_are_wanted) {
    options.logger.level = LogLevel::info;
    options.logger.write = [](LogLevel, std::string_view) {};
    peer->on_message = [&](Wire& wire, const json::object& message) {
        if (is(message, "server/discover"))
            return wire.answer(message, object(R"({"supportedVersions":["2026-07-28"],
                "capabilities":{"tools":{},"logging":{}}})"));
        modern(wire, message);
    };
    connect();
    test::run(context, client().list_tools());
    const auto& meta = peer->last("tools/list").at("params").at("_meta").as_object();
    BOOST_TEST(meta.at("io.modelcontextprotocol/logLevel").as_string() == "info");
}

BOOST_AUTO_TEST_CASE(log_messages_are_events_from_the_wanted_level_on) {
    std::vector<std::string> events;
    options.on_log = [&](const McpLogMessage& message) {
        events.push_back(message.level + " " + message.logger + " " +
                         json::serialize(message.data));
    };
    peer->on_message = [](Wire& wire, const json::object& message) {
        if (is(message, "initialize"))
            return wire.answer(message, object(R"({"protocolVersion":"2025-03-26",
                "capabilities":{"logging":{}}})"));
        if (is(message, "logging/setLevel")) return wire.answer(message, {});
        legacy(wire, message);
    };
    connect();
    settle();
    const auto level = [&] {
        return peer->last("logging/setLevel").at("params").at("level").as_string();
    };
    BOOST_TEST(level() == "info");
    BOOST_TEST(detail::string_of(peer->sent.at(2), "method") == "notifications/initialized");
    test::run(context, client().set_log_level("critical"));
    BOOST_TEST(level() == "critical");
    BOOST_TEST((failure([&] { test::run(context, client().set_log_level("loud")); }).code() ==
                errc::bad_argument));
    peer->say(R"({"jsonrpc":"2.0","method":"notifications/message",
        "params":{"level":"alert","logger":"disk\u001b[2J","data":{"full":true}}})");
    peer->say(R"({"jsonrpc":"2.0","method":"notifications/message","params":{"data":"?"}})");
    peer->say(R"({"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info"}})");
    settle();
    BOOST_TEST(
        (events == std::vector<std::string>{R"(alert disk[2J {"full":true})", R"(debug  "?")"}));
}

BOOST_AUTO_TEST_CASE(a_server_that_refuses_the_log_level_is_used_all_the_same) {
    options.log_level = "debug";
    peer->on_message = [](Wire& wire, const json::object& message) {
        if (is(message, "initialize"))
            return wire.answer(message, object(R"({"protocolVersion":"2025-03-26",
                "capabilities":{"logging":{}}})"));
        if (is(message, "logging/setLevel")) return wire.refuse(message, -32601, "what?");
        legacy(wire, message);
        if (is(message, "tools/call")) text_result(wire, message, "done");
    };
    connect();
    BOOST_TEST(call("any").content.size() == 1u);
    BOOST_TEST(peer->count("logging/setLevel") == 1u);
}

// ---- limits of many ----

BOOST_AUTO_TEST_CASE(each_of_many_calls_has_its_own_limit) {
    peer->on_message = legacy;
    connect();
    std::vector<int> ended;
    for (const int number : {3, 1, 4, 2, 0}) {
        CallOptions limits;
        limits.total_timeout = std::chrono::milliseconds(40 + 40 * number);
        asio::co_spawn(context, client().call_tool("t", json::object(), std::move(limits)),
                       [&ended, number](std::exception_ptr failed, const CallResult&) {
                           if (failed && code_of(failed) == errc::timed_out)
                               ended.push_back(number);
                       });
    }
    until([&] { return ended.size() == 5; });
    BOOST_TEST(ended == (std::vector{0, 1, 2, 3, 4}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace mcp_client_input_tests
