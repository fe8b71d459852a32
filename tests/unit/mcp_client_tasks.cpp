// What McpClient does when a server answers a call with a task, and when that server is hostile.
#include "mcp_client_fixture.hpp"

namespace mcp_client_tasks_tests {

using namespace ipybox;
using namespace ipybox::test;
using namespace std::chrono_literals;

namespace {

// A modern server with tasks; what it says of the task is `states`, one after another; the last
// one stays.
struct TasksFixture : ClientFixture {
    TasksFixture() {
        peer->on_message = [this](Wire& wire, const json::object& message) {
            const auto method = detail::string_of(message, "method");
            if (method == "server/discover") {
                wire.answer(message, object(R"({"resultType":"complete",
                    "supportedVersions":["2026-07-28"],"capabilities":{"tools":{},
                    "extensions":{"io.modelcontextprotocol/tasks":{}}}})"));
            } else if (method == "tools/call") {
                wire.answer(message, object(created));
            } else if (method == "tasks/get") {
                const auto state = states.at(std::min(polls++, states.size() - 1));
                if (state.empty()) return wire.refuse(message, -32602, "taskId is unknown");
                auto answer = object(R"({"resultType":"complete","taskId":"t1","ttlMs":null,
                    "pollIntervalMs":1})");
                for (const auto& member : object(state))
                    answer.insert_or_assign(member.key(), member.value());
                wire.answer(message, std::move(answer));
            } else if (method == "tasks/update" || method == "tasks/cancel") {
                wire.answer(message, object(R"({"resultType":"complete"})"));
            }
        };
    }
    std::string text(CallOptions limits = CallOptions()) {
        const auto result = call("tool", std::move(limits));
        return std::string(result.content.at(0).at("text").as_string());
    }
    // What the call throws, and whether the server was told to stop.
    Error failed(CallOptions limits = CallOptions()) {
        auto error = failure([&] { call("tool", std::move(limits)); });
        settle();
        return error;
    }

    static constexpr const char* done =
        R"({"status":"completed","result":{"content":[{"type":"text","text":"done"}]}})";
    std::string created = R"({"resultType":"task","taskId":"t1","status":"working",
        "createdAt":"2026-07-28T00:00:00Z","lastUpdatedAt":"2026-07-28T00:00:00Z",
        "ttlMs":null,"pollIntervalMs":1})";
    std::vector<std::string> states{done};
    std::size_t polls = 0;
};

std::string question(std::string_view key) {
    return R"({"status":"input_required","inputRequests":{")" + std::string(key) +
           R"(":{"method":"elicitation/create","params":{"message":"Sure?",
           "requestedSchema":{"type":"object","properties":{"yes":{"type":"boolean"}}}}}}})";
}

}  // namespace

BOOST_FIXTURE_TEST_SUITE(mcp_client_tasks, TasksFixture)

BOOST_AUTO_TEST_CASE(a_task_is_awaited_with_progress) {
    states = {R"({"status":"working","statusMessage":"one"})",
              R"({"status":"working","statusMessage":"one"})",
              R"({"status":"working","statusMessage":"two\u001b[31m"})", done};
    std::vector<std::string> told;
    CallOptions limits;
    limits.on_progress = [&](const CallProgress& report) {
        told.push_back(std::to_string(static_cast<int>(report.progress)) + report.message);
        throw std::runtime_error("a callback of the application");
    };
    connect();
    BOOST_TEST(text(std::move(limits)) == "done");
    BOOST_REQUIRE_EQUAL(told.size(), 2u);
    BOOST_TEST(told[0] == "1one");
    BOOST_TEST(told[1].starts_with("2two"));
    BOOST_TEST(polls == 4u);
    BOOST_TEST(peer->count("tasks/cancel") == 0u);
    for (const auto& message : peer->sent) {
        const auto method = detail::string_of(message, "method");
        if (method != "tools/call" && method != "tasks/get") continue;
        const auto& meta = message.at("params").at("_meta").as_object();
        BOOST_TEST(json::serialize(meta.at("io.modelcontextprotocol/clientCapabilities")) ==
                   R"({"extensions":{"io.modelcontextprotocol/tasks":{}}})");
    }
}

BOOST_AUTO_TEST_CASE(the_end_of_a_task_is_that_of_the_call) {
    connect();
    states = {R"({"status":"completed","result":{"content":[],"isError":true}})"};
    BOOST_TEST(call("tool").is_error);
    states = {R"({"status":"failed","error":{"code":-32603,"message":"broken"}})"};
    auto error = failed();
    BOOST_TEST((error.code() == errc::mcp_error));
    BOOST_TEST(contains(error.detail(), "broken (code -32603)"));
    states = {R"({"status":"cancelled"})"};
    BOOST_TEST(contains(failed().detail(), "cancelled by the server"));
    // Nothing is left to cancel.
    BOOST_TEST(peer->count("tasks/cancel") == 0u);
}

BOOST_AUTO_TEST_CASE(each_question_of_a_task_is_answered_once) {
    int asked = 0;
    options.capabilities = object(R"({"elicitation":{}})");
    options.on_request = [&](std::string, json::object) -> awaitable<json::object> {
        ++asked;
        co_return object(R"({"action":"accept","content":{"yes":true}})");
    };
    states = {question("a"), question("a"), question("a"), question("b"), done};
    connect();
    BOOST_TEST(text() == "done");
    BOOST_TEST(asked == 2);
    BOOST_TEST(peer->count("tasks/update") == 2u);
    const auto& params = peer->last("tasks/update").at("params").as_object();
    BOOST_TEST(params.at("taskId").as_string() == "t1");
    BOOST_TEST(json::serialize(params.at("inputResponses")) ==
               R"({"b":{"action":"accept","content":{"yes":true}}})");
}

BOOST_AUTO_TEST_CASE(a_task_that_nobody_waits_for_is_cancelled) {
    states = {R"({"status":"working"})"};
    connect();
    asio::cancellation_signal stop;
    std::exception_ptr outcome;
    asio::co_spawn(
        context, client().call_tool("tool", json::object(), CallOptions()),
        asio::bind_cancellation_slot(
            stop.slot(), [&](std::exception_ptr thrown, CallResult) { outcome = thrown; }));
    until([&] { return polls >= 3; });
    stop.emit(asio::cancellation_type::terminal);
    until([&] { return peer->count("tasks/cancel") == 1; });
    BOOST_TEST((code_of(outcome) == errc::cancelled));
    BOOST_TEST(peer->last("tasks/cancel").at("params").at("taskId").as_string() == "t1");
}

BOOST_AUTO_TEST_CASE(closing_ends_the_wait_for_a_task_at_once) {
    created.replace(created.find("\"pollIntervalMs\":1"), 18, "\"pollIntervalMs\":86400000");
    connect();
    start_call("tool");
    until([&] { return peer->count("tools/call") == 1; });
    settle();
    test::run(context, client().close());
    settle();
    BOOST_REQUIRE_EQUAL(results.size(), 1u);
    BOOST_TEST((code_of(results[0].first) == errc::cancelled));
    BOOST_TEST(polls == 0u);
}

BOOST_AUTO_TEST_CASE(a_task_without_end_takes_no_longer_than_the_call_may) {
    states = {R"({"status":"working","pollIntervalMs":-5})"};
    CallOptions limits;
    limits.idle_timeout = 10s;
    limits.total_timeout = 200ms;
    connect();
    const auto error = failed(limits);
    BOOST_TEST((error.code() == errc::timed_out));
    BOOST_TEST(contains(error.detail(), "absolute timeout"));
    BOOST_TEST(polls <= 5u);  // every 50 ms at most, whatever the server wants
    BOOST_TEST(peer->count("tasks/cancel") == 1u);
}

BOOST_AUTO_TEST_CASE(questions_without_end_are_given_up) {
    options.capabilities = object(R"({"elicitation":{}})");
    options.on_request = [&](std::string, json::object) -> awaitable<json::object> {
        co_return object(R"({"action":"decline"})");
    };
    std::string many = R"({"status":"input_required","inputRequests":{)";
    for (int i = 0; i < 33; ++i)
        many +=
            (i == 0 ? "\"" : ",\"") + std::to_string(i) + R"(":{"method":"elicitation/create"})";
    many += "}}";
    states = {many};
    connect();
    BOOST_TEST(contains(failed().detail(), "more than 32 inputs"));
    BOOST_TEST(peer->count("tasks/update") == 0u);
    BOOST_TEST(peer->count("tasks/cancel") == 1u);
    states.clear();
    polls = 0;
    for (int i = 0; i < 1100; i += 32) {
        std::string next = R"({"status":"input_required","inputRequests":{)";
        for (int k = i; k < i + 32; ++k)
            next += (k == i ? "\"" : ",\"") + std::to_string(k) +
                    R"(":{"method":"elicitation/create"})";
        states.push_back(next + "}}");
    }
    BOOST_TEST(contains(failed().detail(), "again and again"));
}

BOOST_AUTO_TEST_CASE(what_is_no_task_breaks_the_protocol) {
    connect();
    const auto whole = created;
    for (const char* bad : {R"({"resultType":"task"})", R"({"resultType":"task","taskId":""})",
                            R"({"resultType":"task","taskId":7})"}) {
        created = bad;
        BOOST_TEST((failed().code() == errc::mcp_protocol), bad);
    }
    created = R"({"resultType":"task","taskId":")" + std::string(5000, 'x') + "\"}";
    BOOST_TEST((failed().code() == errc::mcp_protocol));
    BOOST_TEST(peer->count("tasks/cancel") == 0u);
    created = whole;
    std::size_t cancelled = 0;
    for (const char* bad :
         {R"({"taskId":"t2","status":"working"})", R"({"taskId":null,"status":"completed"})",
          R"({"status":"completed"})", R"({"status":"completed","result":[]})",
          R"({"status":"completed","result":{"resultType":"task","taskId":"t2"}})",
          R"({"status":"completed","result":{"content":5}})", R"({"status":"input_required"})",
          R"({"status":"input_required","inputRequests":[]})", R"({"status":"asleep"})", "{}"}) {
        states = {bad};
        polls = 0;
        const auto error = failed();
        BOOST_TEST((error.code() == errc::mcp_protocol), bad);
        BOOST_TEST(error.detail().size() < 1000u);
    }
    cancelled = peer->count("tasks/cancel");
    BOOST_TEST(cancelled == 6u);  // those that had not ended by their own word
    states = {""};
    BOOST_TEST((failed().code() == errc::mcp_error));
}

BOOST_AUTO_TEST_CASE(a_server_without_the_extension_makes_no_tasks) {
    const auto with_tasks = peer->on_message;
    peer->on_message = [&](Wire& wire, const json::object& message) {
        if (detail::string_of(message, "method") != "server/discover")
            return with_tasks(wire, message);
        modern(wire, message);
    };
    connect();
    BOOST_TEST((failed().code() == errc::mcp_protocol));
    BOOST_TEST(polls == 0u);
    const auto& meta = peer->last("tools/call").at("params").at("_meta").as_object();
    BOOST_TEST(meta.at("io.modelcontextprotocol/clientCapabilities").as_object().empty());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace mcp_client_tasks_tests
