// McpServer on pipes: both eras, questions to the client, cancellation, lists, limits.
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/write.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/test/unit_test.hpp>
#include <ipybox/mcp/detail/event_backlog.hpp>
#include <ipybox/mcp/server.hpp>
#include <map>
#include <memory>
#include <string>

#include "mcp_server_fixture.hpp"

namespace mcp_server_tests {

using namespace ipybox;
using namespace std::chrono_literals;
using namespace test::server;

namespace {

json::object name_schema() {
    return object(
        R"({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]})");
}

void add_tools(McpServer& server, std::shared_ptr<Seen> seen) {
    using Result = awaitable<McpToolResult>;
    server.add_tool(
        {.name = "echo",
         .description = "Returns its argument",
         .input_schema = object(R"({"type": "object", "properties": {"text": {"type": "string"}},
                                                "required": ["text"]})"),
         .call = [](McpContext, json::object arguments) -> Result {
             co_return std::string_view(arguments.at("text").as_string());
         }});
    server.add_tool({.name = "fail", .call = [](McpContext, json::object) -> Result {
                         throw Error(errc::io_error, "the disk is full; free some space");
                         co_return "";
                     }});
    server.add_tool({.name = "hang", .call = [seen](McpContext, json::object) -> Result {
                         struct Gone {
                             std::shared_ptr<Seen> seen;
                             ~Gone() { ++seen->cancelled; }
                         } const gone{seen};
                         ++seen->runs;
                         co_await sleep_until(Clock::now() + 1h);
                         co_await sleep_until(Clock::now() + 1h);
                         co_return "";
                     }});
    server.add_tool({.name = "ask", .call = [seen](McpContext context, json::object) -> Result {
                         ++seen->runs;
                         auto schema = name_schema();
                         const auto answer =
                             co_await context.elicit("Who?", std::move(schema), "who");
                         co_return json::serialize(answer);
                     }});
    server.add_tool({.name = "talk", .call = [](McpContext context, json::object) -> Result {
                         context.progress(1, 2, "half");
                         context.log("info", "to know");
                         context.log("error", "to fear", "here");
                         co_return "talked";
                     }});
    server.add_tool(
        {.name = "count",
         .output_schema = object(R"({"type": "object", "properties": {"n": {"type": "integer"}},
                                                 "required": ["n"]})"),
         .call = [](McpContext, json::object arguments) -> Result {
             McpToolResult result;
             if (const auto* n = arguments.if_contains("n"))
                 result.structured = json::object{{"n", *n}};
             co_return result;
         }});
    server.add_tool(
        {.name = "large", .call = [](McpContext context, json::object arguments) -> Result {
             const auto size = arguments.at("size").to_number<std::size_t>();
             if (const auto* pieces = arguments.if_contains("pieces"))
                 for (int i = 0; i < pieces->to_number<int>(); ++i)
                     context.log("error", std::string(size, 'x'));
             co_return std::string(size, 'y');
         }});
}

struct Pipes : ServerPipes {
    explicit Pipes(McpServerOptions options = {}) : ServerPipes(add_tools, std::move(options)) {}
};

}  // namespace

BOOST_AUTO_TEST_SUITE(mcp_server)

// ---- without I/O ----

BOOST_AUTO_TEST_CASE(header_values_are_decoded_strictly) {
    const auto decode = [](std::string_view text) { return detail::decode_header_value(text); };
    BOOST_TEST(decode("us-west1").value() == "us-west1");
    BOOST_TEST(decode("=?base64?SGVsbG8sIOS4lueVjA==?=").value() == "Hello, 世界");
    BOOST_TEST(decode("=?base64?SGVsbG8").value() == "=?base64?SGVsbG8");
    for (const auto* bad : {"=?base64?SGVsbG8?=", "=?base64?SGVs!!!bG8=?=", "caf\xc3\xa9", "a\x01"})
        BOOST_TEST(!decode(bad).has_value(), bad);
}

BOOST_AUTO_TEST_CASE(header_parameters_are_found_and_compared) {
    const auto schema = object(R"({"type": "object", "properties": {
        "region": {"type": "string", "x-mcp-header": "Region"},
        "deep": {"type": "object", "properties": {"n": {"type": "integer", "x-mcp-header": "N"}}}}})");
    const auto found = detail::header_parameters(schema);
    BOOST_REQUIRE(found.size() == 2);
    const auto arguments = object(R"({"region": "eu", "deep": {"n": 42}})");
    const auto says = [&](std::size_t i, std::string_view value) {
        return detail::mirrors(found[i], arguments, &value);
    };
    BOOST_TEST(says(0, "eu"));
    BOOST_TEST(says(0, "=?base64?ZXU=?="));
    BOOST_TEST(!says(0, "EU"));
    BOOST_TEST(says(1, "42.0"));
    BOOST_TEST(!says(1, "43"));
    BOOST_TEST(!says(1, "42x"));
    BOOST_TEST(!detail::mirrors(found[0], arguments, nullptr));
    BOOST_TEST(detail::mirrors(found[0], object(R"({"region": null})"), nullptr));
    const std::string_view three = "3";
    BOOST_TEST(!detail::mirrors(found[1], object(R"({"deep": 3})"), &three));
    for (const auto* bad : {R"({"properties": {"a": {"type": "string", "x-mcp-header": ""}}})",
                            R"({"properties": {"a": {"type": "string", "x-mcp-header": "a b"}}})",
                            R"({"properties": {"a": {"type": "number", "x-mcp-header": "A"}}})",
                            R"({"properties": {"a": {"type": "string", "x-mcp-header": "A"},
                                               "b": {"type": "string", "x-mcp-header": "a"}}})"})
        BOOST_CHECK_THROW(detail::header_parameters(object(bad)), Error);
    // What would make a client drop the tool: one in a place that no argument has, and too many.
    BOOST_CHECK_THROW(detail::header_parameters(
                          object(R"({"$defs": {"d": {"type": "string", "x-mcp-header": "A"}}})")),
                      Error);
    json::object properties;
    for (std::size_t i = 0; i < detail::HeaderAnnotations::max_parameters; ++i)
        properties["p" + std::to_string(i)] =
            json::object{{"type", "string"}, {"x-mcp-header", "H" + std::to_string(i)}};
    BOOST_TEST(detail::header_parameters(json::object{{"properties", properties}}).size() ==
               detail::HeaderAnnotations::max_parameters);
    properties["more"] = json::object{{"type", "string"}, {"x-mcp-header", "More"}};
    BOOST_CHECK_THROW(detail::header_parameters(json::object{{"properties", properties}}), Error);
}

BOOST_AUTO_TEST_CASE(uri_templates_match_whole_uris) {
    const detail::UriTemplate notes("notes://{user}/{name}.md");
    const auto found = notes.match("notes://ann/a%20b.md");
    BOOST_REQUIRE(found.has_value());
    BOOST_TEST(found->at("user").as_string() == "ann");
    BOOST_TEST(found->at("name").as_string() == "a b");
    for (const auto* other :
         {"notes://ann/x/y.md", "notes:///a.md", "notes://ann/.md", "notes://ann/a.mdx", "x"})
        BOOST_TEST(!notes.match(other).has_value(), other);
    BOOST_TEST(
        detail::UriTemplate("f:///{+path}").match("f:///a/b?c").value().at("path").as_string() ==
        "a/b?c");
    for (const auto* bad : {"a{", "a}b", "a{}", "a{x}{y}", "a{?q}", "a{x*}"})
        BOOST_CHECK_THROW(detail::UriTemplate{bad}, Error);
}

BOOST_AUTO_TEST_CASE(a_backlog_keeps_what_is_unsent_and_what_fits) {
    detail::EventBacklog kept(10, true);
    for (const auto* text : {"1111", "2222", "3333", "4444"}) kept.add(text);
    BOOST_TEST(kept.unsent() == 16u);
    BOOST_TEST(kept.crowded(1));
    std::string all;
    while (kept.pending()) all += kept.take();
    BOOST_TEST(all == "1111222233334444");
    kept.add("5555");  // what was sent makes room
    BOOST_TEST(kept.size() <= 10u);
    kept.rewind(0);  // events 1 to 3 are gone
    all.clear();
    while (kept.pending()) all += kept.take();
    BOOST_TEST(all == "44445555");
    kept.rewind(4);
    BOOST_TEST(kept.take() == "5555");
    kept.rewind(999);
    BOOST_TEST(!kept.pending());
    detail::EventBacklog passing(10, false);
    passing.add("one");
    BOOST_TEST(passing.take() == "one");
    BOOST_TEST(passing.size() == 0u);
    BOOST_TEST(passing.coming() == 2u);
}

// ---- standard input and output ----

BOOST_AUTO_TEST_CASE(legacy_clients_shake_hands_and_call) {
    for (const auto* version : {"2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"}) {
        Pipes pipes;
        const auto early = pipes.ask(call(1, "echo", {{"text", "x"}}));
        BOOST_TEST(code_of(early) == mcp::rpc_invalid_request);
        const auto told = pipes.initialize(version);
        BOOST_TEST(told.at("result").at("protocolVersion").as_string() == version);
        BOOST_TEST(text_of(pipes.ask(call("a", "echo", {{"text", "hello"}}))) == "hello");
        const auto failed = pipes.ask(call(2, "fail"));
        BOOST_TEST(failed.at("result").at("isError").as_bool());
        BOOST_TEST(text_of(failed) == "the disk is full; free some space");
        BOOST_TEST(code_of(pipes.ask(call(3, "nothing"))) == mcp::rpc_invalid_params);
        const auto wrong = pipes.ask(call(4, "echo", {{"text", 1}}));
        if (std::string_view(version) < "2025-11-25") {
            BOOST_TEST(code_of(wrong) == mcp::rpc_invalid_params);
        } else {
            BOOST_TEST(wrong.at("result").at("isError").as_bool());
        }
        BOOST_TEST(code_of(pipes.ask(mcp::rpc_request(5, "no/method", {}))) ==
                   mcp::rpc_method_not_found);
        BOOST_TEST(pipes.ask(mcp::rpc_request(6, "ping", {})).at("result").as_object().empty());
        BOOST_TEST(pipes.seen->begun == 1);
    }
}

BOOST_AUTO_TEST_CASE(lenient_servers_read_strings_and_answer_with_results) {
    const auto schema = object(R"({"properties": {
        "number": {"type": "number"}, "whole": {"type": "integer"}, "object": {"type": "object"},
        "list": {"type": "array"}, "flag": {"type": "boolean"}, "text": {"type": "string"},
        "either": {"type": ["number", "string"]}, "any": {}}})");
    const auto parsed = [&](std::string_view name, std::string_view text) {
        json::object arguments{{name, text}};
        mcp::parse_arguments(arguments, schema);
        return json::serialize(arguments.at(name));
    };
    for (const auto& [name, text, result] : {std::tuple("number", " 60 ", "60"),
                                             {"number", "2.5", "2.5E0"},
                                             {"number", "+.5", "5E-1"},
                                             {"whole", "-7", "-7"},
                                             {"whole", "7.0", "7E0"},
                                             {"object", R"({"a": 1})", R"({"a":1})"},
                                             {"list", "[1]", "[1]"},
                                             {"flag", "true", "true"}})
        BOOST_TEST(parsed(name, text) == result);
    for (const auto& [name, text] : {std::tuple("number", "60 s"),
                                     {"number", ""},
                                     {"number", "nan"},
                                     {"number", "inf"},
                                     {"number", "1e999"},
                                     {"number", "true"},
                                     {"whole", "+-7"},
                                     {"object", "[1]"},
                                     {"object", "{bad"},
                                     {"list", "1"},
                                     {"flag", "1"},
                                     {"text", "1"},
                                     {"either", "1"},
                                     {"any", "1"},
                                     {"other", "1"}})
        BOOST_TEST(parsed(name, text) == json::serialize(json::value(text)));

    McpServerOptions options;
    options.lenient_calls = true;
    for (const auto* version : {"2024-11-05", "2025-11-25"}) {
        Pipes pipes(options);
        pipes.initialize(version);
        const auto unknown = pipes.ask(call(1, "nothing"));
        BOOST_TEST(unknown.at("result").at("isError").as_bool());
        BOOST_TEST(text_of(unknown) == "Unknown tool: nothing");
        const auto wrong = pipes.ask(call(2, "echo", {{"text", 1}}));
        BOOST_TEST(wrong.at("result").at("isError").as_bool());
        BOOST_TEST(text_of(wrong).starts_with("Error executing tool echo: "));
    }
    Pipes pipes(options);
    BOOST_TEST(code_of(pipes.ask(modern(call(3, "nothing")))) == mcp::rpc_invalid_params);
}

BOOST_AUTO_TEST_CASE(an_unknown_legacy_version_gets_the_newest) {
    Pipes pipes;
    BOOST_TEST(pipes.initialize("1999-01-01").at("result").at("protocolVersion").as_string() ==
               "2025-11-25");
}

BOOST_AUTO_TEST_CASE(modern_clients_need_no_handshake) {
    Pipes pipes;
    const auto told = pipes.ask(modern(mcp::rpc_request(1, "server/discover", {})));
    BOOST_TEST(told.at("result").at("supportedVersions").at(0).as_string() == "2026-07-28");
    BOOST_TEST(told.at("result").at("resultType").as_string() == "complete");
    const auto answer = pipes.ask(modern(call(2, "echo", {{"text", "x"}})));
    BOOST_TEST(text_of(answer) == "x");
    BOOST_TEST(answer.at("result").at("resultType").as_string() == "complete");
    const auto listed = pipes.ask(modern(mcp::rpc_request(3, "tools/list", {})));
    BOOST_TEST(listed.at("result").at("ttlMs").to_number<int>() == 0);
    BOOST_TEST(listed.at("result").at("cacheScope").as_string() == "private");
    BOOST_TEST(code_of(pipes.ask(modern(mcp::rpc_request(4, "ping", {})))) ==
               mcp::rpc_method_not_found);
    BOOST_TEST(code_of(pipes.ask(mcp::rpc_request(5, "server/discover", {}))) ==
               mcp::rpc_invalid_params);
    auto future = modern(mcp::rpc_request(6, "tools/list", {}));
    future["params"].as_object()["_meta"].as_object()[detail::meta_version] = "2099-01-01";
    const auto refused = pipes.ask(future);
    BOOST_TEST(code_of(refused) == mcp::rpc_unsupported_version);
    BOOST_TEST(refused.at("error").at("data").at("requested").as_string() == "2099-01-01");
}

BOOST_AUTO_TEST_CASE(garbage_is_answered_or_ignored_and_the_next_message_is_not) {
    Pipes pipes;
    pipes.send("hello?");
    pipes.send("{broken");
    BOOST_TEST(code_of(pipes.receive()) == mcp::rpc_parse_error);
    BOOST_TEST(code_of(pipes.ask(object(R"({"jsonrpc": "2.0", "id": 1})"))) ==
               mcp::rpc_invalid_request);
    BOOST_TEST(code_of(pipes.ask(
                   object(R"({"jsonrpc": "2.0", "id": 2, "method": "ping", "params": []})"))) ==
               mcp::rpc_invalid_params);
    pipes.send(object(R"({"jsonrpc": "2.0", "id": 77, "result": {}})"));
    pipes.send(object(
        R"({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": [1]}})"));
    BOOST_TEST(pipes.ask(mcp::rpc_request(3, "ping", {})).contains("result"));
    McpServerOptions options;
    options.max_message = 1000;
    Pipes small(std::move(options));
    small.send(std::string(5000, 'x'));
    const auto refused = small.ask(mcp::rpc_request(4, "ping", {{"x", std::string(5000, 'x')}}));
    BOOST_TEST(code_of(refused) == mcp::rpc_invalid_request);
    BOOST_TEST(refused.at("id").as_int64() == 4);
    small.send(R"({"method": "ping", "params": {"x": NaN}, "id": "a", "jsonrpc": "2.0"})");
    const auto unreadable = small.receive();
    BOOST_TEST(code_of(unreadable) == mcp::rpc_parse_error);
    BOOST_TEST(unreadable.at("id").as_string() == "a");
    BOOST_TEST(small.ask(mcp::rpc_request(5, "ping", {})).contains("result"));
}

BOOST_AUTO_TEST_CASE(a_batch_gets_one_answer_where_there_are_batches) {
    Pipes pipes;
    const auto ping = [](int id) { return mcp::rpc_request(id, "ping", {}); };
    const auto batch = [](json::array messages) { return json::serialize(messages); };
    // Before the handshake, and in every other version.
    pipes.send(batch({ping(1), ping(2)}));
    BOOST_TEST(code_of(pipes.receive()) == mcp::rpc_invalid_request);
    for (const std::string version : {"2024-11-05", "2025-06-18", "2025-11-25"}) {
        Pipes other;
        other.initialize(version);
        other.send(batch({ping(1), ping(2)}));
        const auto refused = other.receive();
        BOOST_TEST(code_of(refused) == mcp::rpc_invalid_request);
        BOOST_TEST(refused.at("id").is_null());
        BOOST_TEST(other.ask(ping(3)).at("id").to_number<int>() == 3);
    }
    pipes.initialize("2025-03-26");
    // The slow one of the two holds back both; the log line does not wait for them.
    json::object slow = mcp::rpc_request("slow", "tools/call", {{"name", "talk"}});
    pipes.send(batch({ping(1), mcp::rpc_notification("notifications/x", {}), slow, 17,
                      mcp::rpc_request("again", "initialize", {})}));
    auto line = test::run(pipes.context, pipes.line());
    while (line.starts_with('{')) line = test::run(pipes.context, pipes.line());
    const auto answers = json::parse(line).as_array();
    BOOST_REQUIRE(answers.size() == 4u);
    std::map<std::string, json::object> by_id;
    for (const auto& answer : answers) by_id[json::serialize(answer.at("id"))] = answer.as_object();
    BOOST_TEST(by_id["1"].contains("result"));
    BOOST_TEST(by_id["\"slow\""].contains("result"));
    BOOST_TEST(code_of(by_id["null"]) == mcp::rpc_invalid_request);
    BOOST_TEST(code_of(by_id["\"again\""]) == mcp::rpc_invalid_request);
    // No request, no answer; none at all is a mistake.
    pipes.send(batch({mcp::rpc_notification("notifications/x", {})}));
    pipes.send(batch({}));
    BOOST_TEST(code_of(pipes.receive()) == mcp::rpc_invalid_request);
    pipes.send(batch(json::array(101, ping(1))));
    BOOST_TEST(code_of(pipes.receive()) == mcp::rpc_invalid_request);
    BOOST_TEST(pipes.ask(ping(5)).at("id").to_number<int>() == 5);
}

BOOST_AUTO_TEST_CASE(a_question_suspends_a_modern_call_without_running_it_again) {
    Pipes pipes;
    const json::object able{{"elicitation", json::object()}};
    const auto asked = pipes.ask(modern(call(1, "ask"), able));
    BOOST_TEST(asked.at("result").at("resultType").as_string() == "input_required");
    const auto& question = asked.at("result").at("inputRequests").at("who");
    BOOST_TEST(question.at("params").at("message").as_string() == "Who?");
    const std::string state(asked.at("result").at("requestState").as_string());
    const auto retry = [&](int id, std::string_view tool, std::string_view with,
                           std::string_view answers, json::object arguments = {}) {
        auto request = call(id, tool, std::move(arguments));
        request["params"].as_object()["requestState"] = with;
        request["params"].as_object()["inputResponses"] = json::parse(answers);
        return pipes.ask(modern(std::move(request), able));
    };
    const std::string_view good = R"({"who": {"action": "accept", "content": {"name": "ann"}}})";
    // Forged, and of another request.
    BOOST_TEST(code_of(retry(2, "ask", state + "x", good)) == mcp::rpc_invalid_params);
    BOOST_TEST(code_of(retry(3, "hang", state, good)) == mcp::rpc_invalid_params);
    BOOST_TEST(code_of(retry(4, "ask", state, good, {{"other", 1}})) == mcp::rpc_invalid_params);
    BOOST_TEST(code_of(retry(5, "ask", state, "[]")) == mcp::rpc_invalid_params);
    // An answer that does not fit the schema is asked for again, under another state.
    const auto again =
        retry(6, "ask", state, R"({"who": {"action": "accept", "content": {"name": 7}}, "x": 1})");
    BOOST_TEST(again.at("result").at("resultType").as_string() == "input_required");
    const std::string second(again.at("result").at("requestState").as_string());
    BOOST_TEST(second != state);
    const auto done = retry(7, "ask", second, good);
    BOOST_TEST(done.at("id").to_number<int>() == 7);
    BOOST_TEST(text_of(done) == R"({"action":"accept","content":{"name":"ann"}})");
    BOOST_TEST(code_of(retry(8, "ask", second, good)) == mcp::rpc_invalid_params);  // used
    BOOST_TEST(pipes.seen->runs == 1);
}

BOOST_AUTO_TEST_CASE(questions_end_with_refusal_expiry_or_too_many_bad_answers) {
    Pipes pipes;
    const json::object able{{"elicitation", json::object()}};
    BOOST_TEST(code_of(pipes.ask(modern(call(1, "ask")))) == mcp::rpc_missing_capability);
    auto asked = pipes.ask(modern(call(2, "ask"), able));
    for (int round = 0; round < 20; ++round) {
        const auto* state = asked.at("result").as_object().if_contains("requestState");
        if (state == nullptr) break;
        auto request = call(3 + round, "ask");
        request["params"].as_object()["requestState"] = *state;
        request["params"].as_object()["inputResponses"] = json::object{{"who", 7}};
        asked = pipes.ask(modern(std::move(request), able));
    }
    BOOST_TEST(asked.at("result").at("isError").as_bool());
    McpServerOptions options;
    options.input_timeout = 300ms;
    Pipes hasty(std::move(options));
    asked = hasty.ask(modern(call(1, "ask"), able));
    hasty.settle(1500ms);  // its end is kept as long again
    auto late = call(2, "ask");
    late["params"].as_object()["requestState"] = asked.at("result").at("requestState");
    late["params"].as_object()["inputResponses"] = object(R"({"who": {"action": "decline"}})");
    BOOST_TEST(code_of(hasty.ask(modern(std::move(late), able))) == mcp::rpc_invalid_params);
}

BOOST_AUTO_TEST_CASE(a_client_that_comes_back_late_gets_the_result) {
    McpServerOptions options;
    options.input_timeout = 500ms;
    Pipes pipes(std::move(options));
    pipes.server->add_tool(
        {.name = "impatient",
         .call = [](McpContext context, json::object) -> awaitable<McpToolResult> {
             auto schema = name_schema();
             auto asking = [](McpContext one, json::object what) -> awaitable<void> {
                 co_await one.elicit("Who?", std::move(what));
             }(context, std::move(schema));
             auto limit = sleep_until(Clock::now() + 100ms);
             const bool answered = co_await ends_first(std::move(asking), std::move(limit));
             co_return answered ? "answered" : "nobody answered";
         }});
    const json::object able{{"elicitation", json::object()}};
    auto retry = call(2, "impatient");
    const auto asked = pipes.ask(modern(call(1, "impatient"), able));
    retry["params"].as_object()["requestState"] = asked.at("result").at("requestState");
    pipes.settle(200ms);
    BOOST_TEST(text_of(pipes.ask(modern(retry, able))) == "nobody answered");
    BOOST_TEST(code_of(pipes.ask(modern(retry, able))) == mcp::rpc_invalid_params);
    const auto again = pipes.ask(modern(call(3, "impatient"), able));
    retry["params"].as_object()["requestState"] = again.at("result").at("requestState");
    pipes.settle(1500ms);
    BOOST_TEST(code_of(pipes.ask(modern(retry, able))) == mcp::rpc_invalid_params);
}

BOOST_AUTO_TEST_CASE(one_handler_asks_side_by_side) {
    Pipes pipes;
    pipes.server->add_tool(
        {.name = "both", .call = [](McpContext context, json::object) -> awaitable<McpToolResult> {
             std::string said;
             const auto executor = co_await asio::this_coro::executor;
             Event done(executor);
             for (const std::string key : {"a", "b"}) {
                 asio::co_spawn(
                     executor,
                     [](McpContext one, std::string name) -> awaitable<std::string> {
                         auto schema = name_schema();
                         const auto answer =
                             co_await one.elicit(name + "?", std::move(schema), name);
                         co_return name + std::string(answer.at("action").as_string()) + " ";
                     }(context, key),
                     [&](std::exception_ptr, std::string text) {
                         said += text;
                         done.notify();
                     });
             }
             while (std::count(said.begin(), said.end(), ' ') < 2) co_await done.wait();
             co_return said;
         }});
    // Modern: the second question comes when the client is back for the first.
    const json::object able{{"elicitation", json::object()}};
    auto retry = call(2, "both");
    auto asked = pipes.ask(modern(call(1, "both"), able));
    BOOST_TEST(asked.at("result").at("inputRequests").as_object().size() == 1u);
    retry["params"].as_object()["requestState"] = asked.at("result").at("requestState");
    retry["params"].as_object()["inputResponses"] = object(R"({"a": {"action": "decline"}})");
    asked = pipes.ask(modern(retry, able));
    BOOST_TEST(asked.at("result").at("inputRequests").as_object().contains("b"));
    retry["params"].as_object()["requestState"] = asked.at("result").at("requestState");
    retry["params"].as_object()["inputResponses"] = object(R"({"b": {"action": "cancel"}})");
    BOOST_TEST(text_of(pipes.ask(modern(retry, able))) == "adecline bcancel ");
    // Legacy: both come at once, and are answered in any order.
    pipes.initialize("2025-11-25", {{"elicitation", json::object()}});
    const auto first = pipes.ask(call(3, "both")), second = pipes.receive();
    pipes.send(mcp::rpc_result(second.at("id"), object(R"({"action": "cancel"})")));
    pipes.send(mcp::rpc_result(first.at("id"), object(R"({"action": "decline"})")));
    const auto both = text_of(pipes.receive());
    BOOST_TEST(both.size() == 17u);
    BOOST_TEST(both.find("bcancel ") != both.npos);
    BOOST_TEST(both.find("adecline ") != both.npos);
}

BOOST_AUTO_TEST_CASE(a_legacy_client_is_asked_by_a_request) {
    Pipes pipes;
    pipes.initialize("2025-11-25", {{"elicitation", json::object()}});
    const auto question = pipes.ask(call(1, "ask"));
    BOOST_TEST(question.at("method").as_string() == "elicitation/create");
    pipes.send(mcp::rpc_result(question.at("id"), object(R"({"action": "decline"})")));
    BOOST_TEST(text_of(pipes.receive()) == R"({"action":"decline"})");
    // Forms have no null: what is null was left out.
    const auto form = pipes.ask(call(3, "ask"));
    pipes.send(mcp::rpc_result(
        form.at("id"),
        object(R"({"action": "accept", "content": {"name": "Ada", "nick": null}})")));
    BOOST_TEST(text_of(pipes.receive()) == R"({"action":"accept","content":{"name":"Ada"}})");
    const auto wrong = pipes.ask(call(4, "ask"));
    pipes.send(mcp::rpc_result(wrong.at("id"),
                               object(R"({"action": "accept", "content": {"name": null}})")));
    BOOST_TEST(text_of(pipes.receive())
                   .find("the client's answer to \"who\" does not fit the question: ") !=
               std::string::npos);
    const auto second = pipes.ask(call(2, "ask"));
    pipes.send(mcp::rpc_error(second.at("id"), -1, "nobody is here"));
    const auto refused = pipes.receive();
    BOOST_TEST(refused.at("result").at("isError").as_bool());
    BOOST_TEST(text_of(refused).find("nobody is here") != std::string::npos);
    Pipes unable;
    unable.initialize();
    BOOST_TEST(text_of(unable.ask(call(1, "ask"))).find("elicitation") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_cancelled_call_is_cancelled_and_not_answered) {
    Pipes pipes;
    pipes.initialize();
    pipes.send(call("x", "hang"));
    pipes.settle();
    BOOST_TEST(pipes.seen->runs == 1);
    BOOST_TEST(code_of(pipes.ask(call("x", "hang"))) ==
               mcp::rpc_invalid_request);  // the id is in use
    pipes.send(mcp::rpc_notification("notifications/cancelled", {{"requestId", "x"}}));
    BOOST_TEST(pipes.ask(mcp::rpc_request(2, "ping", {})).at("id").to_number<int>() == 2);
    BOOST_TEST(pipes.seen->cancelled == 1);
}

BOOST_AUTO_TEST_CASE(reports_and_log_lines_go_to_those_who_want_them) {
    Pipes pipes;
    pipes.initialize();
    auto request = call(1, "talk");
    request["params"].as_object()["_meta"] = json::object{{"progressToken", "t"}};
    const auto report = pipes.ask(request);
    BOOST_TEST(report.at("method").as_string() == "notifications/progress");
    BOOST_TEST(report.at("params").at("progressToken").as_string() == "t");
    BOOST_TEST(report.at("params").at("message").as_string() == "half");
    BOOST_TEST(pipes.receive().at("params").at("data").as_string() == "to know");
    BOOST_TEST(pipes.receive().at("params").at("logger").as_string() == "here");
    BOOST_TEST(text_of(pipes.receive()) == "talked");
    pipes.ask(mcp::rpc_request(2, "logging/setLevel", {{"level", "error"}}));
    BOOST_TEST(pipes.ask(call(3, "talk")).at("params").at("data").as_string() == "to fear");
    BOOST_TEST(text_of(pipes.receive()) == "talked");
    BOOST_TEST(code_of(pipes.ask(mcp::rpc_request(4, "logging/setLevel", {{"level", "loud"}}))) ==
               mcp::rpc_invalid_params);
    BOOST_TEST(text_of(pipes.ask(modern(call(5, "talk")))) == "talked");  // no level, no lines
    auto wanted = modern(call(6, "talk"));
    wanted["params"].as_object()["_meta"].as_object()[detail::meta_log_level] = "error";
    BOOST_TEST(pipes.ask(wanted).at("params").at("data").as_string() == "to fear");
}

BOOST_AUTO_TEST_CASE(structured_results_fit_their_schema_and_results_their_limit) {
    McpServerOptions options;
    options.max_result = 10'000;
    Pipes pipes(std::move(options));
    pipes.initialize();
    const auto good = pipes.ask(call(1, "count", {{"n", 3}}));
    BOOST_TEST(good.at("result").at("structuredContent").at("n").to_number<int>() == 3);
    BOOST_TEST(text_of(good) == R"({"n":3})");
    BOOST_TEST(pipes.ask(call(2, "count", {{"n", "x"}})).at("result").at("isError").as_bool());
    BOOST_TEST(pipes.ask(call(3, "count")).at("result").at("isError").as_bool());
    const auto large = pipes.ask(call(4, "large", {{"size", 20'000}}));
    BOOST_TEST(large.at("result").at("isError").as_bool());
    BOOST_TEST(text_of(large).find("10000") != std::string::npos);
    Pipes old;
    old.initialize("2025-03-26");
    BOOST_TEST(!old.ask(call(1, "count", {{"n", 3}}))
                    .at("result")
                    .as_object()
                    .contains("structuredContent"));
}

BOOST_AUTO_TEST_CASE(lists_come_in_pages_that_survive_changes) {
    McpServerOptions options;
    options.page_size = 3;
    Pipes pipes(std::move(options));
    pipes.initialize();
    std::vector<std::string> names;
    json::object params;
    for (int page = 0; page < 10; ++page) {
        const auto listed =
            pipes.ask(mcp::rpc_request(page, "tools/list", params)).at("result").as_object();
        for (const auto& tool : listed.at("tools").as_array())
            names.emplace_back(tool.at("name").as_string());
        const auto* next = listed.if_contains("nextCursor");
        if (next == nullptr) break;
        params["cursor"] = *next;
        if (page == 0) {
            BOOST_TEST(pipes.server->remove_tool(names.back()));
            BOOST_TEST(pipes.receive().at("method").as_string() ==
                       "notifications/tools/list_changed");
        }
    }
    BOOST_TEST(names.size() == 7u);
    BOOST_TEST(code_of(pipes.ask(mcp::rpc_request(20, "tools/list", {{"cursor", "zz"}}))) ==
               mcp::rpc_invalid_params);
    BOOST_TEST(code_of(pipes.ask(mcp::rpc_request(21, "tools/list", {{"cursor", "99999"}}))) ==
               mcp::rpc_invalid_params);
}

BOOST_AUTO_TEST_CASE(resources_are_read_watched_and_completed) {
    Pipes pipes;
    pipes.server->add_resource(
        {.uri = "note://one",
         .read = [](McpContext, std::string uri, json::object) -> awaitable<json::array> {
             json::array contents;
             contents.push_back(McpContent::blob_of(uri, "\x01\x02", "application/x"));
             co_return contents;
         }});
    pipes.server->add_resource(
        {.uri = "note://of/{who}",
         .read = [](McpContext, std::string uri, json::object variables) -> awaitable<json::array> {
             json::array contents;
             contents.push_back(McpContent::text_of(uri, variables.at("who").as_string()));
             co_return contents;
         },
         .complete = [](McpContext, std::string, std::string typed,
                        json::object) -> awaitable<McpCompletion> {
             McpCompletion found;
             for (int i = 0; i < 150; ++i) found.values.push_back(typed + std::to_string(i));
             co_return found;
         }});
    pipes.initialize();
    const auto read = [&](int id, std::string_view uri) {
        return pipes.ask(mcp::rpc_request(id, "resources/read", {{"uri", uri}}));
    };
    BOOST_TEST(read(1, "note://one").at("result").at("contents").at(0).at("blob").as_string() ==
               "AQI=");
    BOOST_TEST(read(2, "note://of/ann").at("result").at("contents").at(0).at("text").as_string() ==
               "ann");
    BOOST_TEST(code_of(read(3, "note://two")) == mcp::rpc_resource_not_found);
    const auto completed = pipes.ask(mcp::rpc_request(
        4, "completion/complete",
        object(
            R"({"ref": {"type": "ref/resource", "uri": "note://of/{who}"}, "argument": {"name": "who", "value": "a"}})")));
    BOOST_TEST(completed.at("result").at("completion").at("values").as_array().size() == 100u);
    BOOST_TEST(completed.at("result").at("completion").at("hasMore").as_bool());
    pipes.ask(mcp::rpc_request(5, "resources/subscribe", {{"uri", "note://one"}}));
    pipes.server->resource_updated("note://two");
    pipes.server->resource_updated("note://one");
    BOOST_TEST(pipes.receive().at("params").at("uri").as_string() == "note://one");
    pipes.ask(mcp::rpc_request(6, "resources/unsubscribe", {{"uri", "note://one"}}));
    pipes.server->resource_updated("note://one");
    BOOST_TEST(pipes.ask(mcp::rpc_request(7, "ping", {})).at("id").to_number<int>() == 7);
    // The same in the modern era.
    auto listen = mcp::rpc_request(
        8, "subscriptions/listen",
        object(
            R"({"notifications": {"resourceSubscriptions": ["note://one"], "promptsListChanged": true}})"));
    const auto acknowledged = pipes.ask(modern(std::move(listen)));
    BOOST_TEST(acknowledged.at("method").as_string() == "notifications/subscriptions/acknowledged");
    BOOST_TEST(
        !acknowledged.at("params").at("notifications").as_object().contains("promptsListChanged"));
    pipes.server->resource_updated("note://one");
    const auto updated = pipes.receive();
    BOOST_TEST(updated.at("params").at("_meta").at(detail::meta_subscription).to_number<int>() ==
               8);
    pipes.send(mcp::rpc_notification("notifications/cancelled", {{"requestId", 8}}));
    pipes.settle();
    pipes.server->resource_updated("note://one");
    BOOST_TEST(pipes.ask(mcp::rpc_request(9, "ping", {})).at("id").to_number<int>() == 9);
}

BOOST_AUTO_TEST_CASE(serving_ends_with_the_input_and_with_stop) {
    Pipes pipes;
    pipes.initialize();
    pipes.send(call(1, "hang"));
    pipes.settle();
    pipes.output.close();
    pipes.settle();
    BOOST_TEST(pipes.served);
    BOOST_TEST(!pipes.failure);
    BOOST_TEST(pipes.seen->cancelled == 1);
    BOOST_TEST(pipes.seen->ended == 1);
    Pipes stopped;
    stopped.initialize();
    stopped.send(call(1, "hang"));
    stopped.settle();
    stopped.server->stop();
    stopped.settle();
    BOOST_TEST(stopped.served);
    BOOST_TEST(stopped.seen->cancelled == 1);
    Pipes destroyed;
    destroyed.initialize("2025-11-25", {{"elicitation", json::object()}});
    destroyed.send(call(1, "hang"));
    destroyed.send(call(2, "ask"));
    destroyed.settle();
    destroyed.server.reset();
    destroyed.settle();
    BOOST_TEST(destroyed.served);
    BOOST_TEST(destroyed.seen->cancelled == 1);
    BOOST_TEST(destroyed.seen->ended == 1);
}

BOOST_AUTO_TEST_CASE(a_client_that_does_not_read_costs_little_memory) {
    McpServerOptions options;
    options.max_queue = 100'000;
    Pipes pipes(std::move(options));
    pipes.initialize();
    // A hundred log lines of 100 kB: most are lost, the answer is not.
    pipes.send(call(1, "large", {{"size", 100'000}, {"pieces", 100}}));
    pipes.settle();
    std::size_t lines = 0;
    for (;; ++lines)
        if (pipes.receive().contains("id")) break;
    BOOST_TEST(lines < 10u);
}

BOOST_AUTO_TEST_CASE(mistakes_of_the_embedder_are_told) {
    asio::io_context context;
    McpServer server(context.get_executor());
    const auto nothing = [](McpContext, json::object) -> awaitable<McpToolResult> { co_return ""; };
    server.add_tool({.name = "a", .call = nothing});
    BOOST_CHECK_THROW(server.add_tool({.name = "a", .call = nothing}), Error);
    BOOST_CHECK_THROW(server.add_tool({.name = "", .call = nothing}), Error);
    BOOST_CHECK_THROW(server.add_tool({.name = "b"}), Error);
    BOOST_CHECK_THROW(
        server.add_tool(
            {.name = "b", .input_schema = object(R"({"type": "string"})"), .call = nothing}),
        Error);
    BOOST_CHECK_THROW(server.add_resource({.uri = "x://{",
                                           .read = [](McpContext, std::string,
                                                      json::object) -> awaitable<json::array> {
                                               co_return json::array();
                                           }}),
                      Error);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace mcp_server_tests
