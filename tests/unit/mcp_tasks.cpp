// Calls that become tasks: who gets one, what becomes of it, and what others may do to it.
#include <boost/test/unit_test.hpp>
#include <memory>
#include <string>

#include "mcp_server_fixture.hpp"

namespace mcp_tasks_tests {

using namespace ipybox;
using namespace std::chrono_literals;
using namespace test::server;

namespace {

constexpr std::string_view takes =
    R"({"elicitation": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}})";

json::object name_schema() {
    return object(
        R"({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]})");
}

void add_tools(McpServer& server, std::shared_ptr<Seen> seen) {
    using Result = awaitable<McpToolResult>;
    const auto add = [&server](std::string name, auto call, McpTaskUse use = McpTaskUse::optional,
                               std::optional<Duration> after = Duration::zero()) {
        server.add_tool(
            {.name = std::move(name), .task = use, .task_after = after, .call = std::move(call)});
    };
    add("quick", [](McpContext context, json::object) -> Result {
        co_return context.is_task() ? "a task" : "no task";
    });
    add(
        "plain",
        [](McpContext context, json::object) -> Result {
            co_return context.become_task() ? "a task" : "no task";
        },
        McpTaskUse::none);
    add(
        "strict", [](McpContext, json::object) -> Result { co_return "done"; },
        McpTaskUse::required);
    add("hang", [seen](McpContext context, json::object) -> Result {
        struct Gone {
            std::shared_ptr<Seen> seen;
            ~Gone() { ++seen->cancelled; }
        } const gone{seen};
        ++seen->runs;
        context.progress(1, 4, "a quarter");
        co_await sleep_until(Clock::now() + 1h);
        co_return "";
    });
    add(
        "slow",
        [seen](McpContext context, json::object) -> Result {
            co_await sleep_until(Clock::now() + 60ms);
            co_return context.is_task() ? "a task" : "no task";
        },
        McpTaskUse::optional, 20ms);
    add("fail", [](McpContext, json::object) -> Result {
        throw Error(errc::io_error, "the disk is full");
        co_return "";
    });
    add("break", [](McpContext, json::object) -> Result {
        throw McpError(-32050, "broken", {{"part", 1}});
        co_return "";
    });
    add("large", [](McpContext, json::object arguments) -> Result {
        co_return std::string(arguments.at("size").to_number<std::size_t>(), 'y');
    });
    add("ask", [seen](McpContext context, json::object) -> Result {
        ++seen->runs;
        std::string all;
        for (int i = 0; i < 2; ++i) {
            auto schema = name_schema();
            const auto answer = co_await context.elicit("Who?", std::move(schema), "who");
            all += json::serialize(answer);
        }
        co_return all;
    });
    add(
        "ask_first",
        [seen](McpContext context, json::object) -> Result {
            ++seen->runs;
            auto schema = name_schema();
            const auto first = co_await context.elicit("Who?", std::move(schema), "who");
            if (!context.become_task()) throw Error(errc::io_error, "no task");
            schema = name_schema();
            const auto second = co_await context.elicit("Who?", std::move(schema), "who");
            co_return json::serialize(first) + json::serialize(second);
        },
        McpTaskUse::required, std::nullopt);
}

struct Pipes : ServerPipes {
    explicit Pipes(McpServerOptions options = {}) : ServerPipes(add_tools, std::move(options)) {}

    json::object task_call(std::string_view tool, json::object arguments = {}) {
        return ask(modern(call(++id, tool, std::move(arguments)), object(takes)));
    }
    std::string begin(std::string_view tool, json::object arguments = {}) {
        const auto answer = task_call(tool, std::move(arguments));
        BOOST_TEST_REQUIRE(answer.contains("result"), json::serialize(answer));
        BOOST_TEST(answer.at("result").at("resultType").as_string() == "task");
        return std::string(answer.at("result").at("taskId").as_string());
    }
    json::object about(std::string_view method, std::string_view task, json::object more = {}) {
        more["taskId"] = task;
        return ask(modern(mcp::rpc_request(++id, method, std::move(more)), object(takes)));
    }
    json::object get(std::string_view task) {
        const auto answer = about("tasks/get", task);
        BOOST_TEST_REQUIRE(answer.contains("result"), json::serialize(answer));
        BOOST_TEST(answer.at("result").at("resultType").as_string() == "complete");
        return answer.at("result").as_object();
    }
    std::string status(std::string_view task) {
        return std::string(get(task).at("status").as_string());
    }
    json::object answer(std::string_view task, json::object responses) {
        json::object params;
        params["inputResponses"] = std::move(responses);
        return about("tasks/update", task, std::move(params));
    }
    // Whether the server knows nothing of it any more.
    bool unknown(std::string_view task) {
        for (const auto* method : {"tasks/get", "tasks/cancel"})
            if (!refused(about(method, task))) return false;
        return refused(answer(task, {}));
    }
    static bool refused(const json::object& answer) {
        return answer.contains("error") && code_of(answer) == mcp::rpc_invalid_params;
    }

    int id = 0;
};

json::object accepted(std::string_view name) {
    return {{"action", "accept"}, {"content", {{"name", name}}}};
}

json::object under(std::string_view key, json::object answer) {
    json::object all;
    all[key] = std::move(answer);
    return all;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(mcp_tasks)

BOOST_AUTO_TEST_CASE(only_modern_clients_that_take_tasks_get_them) {
    Pipes pipes;
    const auto told = pipes.ask(modern(mcp::rpc_request(1, "server/discover", {})));
    BOOST_TEST(json::serialize(told.at("result").at("capabilities").at("extensions")) ==
               R"({"io.modelcontextprotocol/tasks":{}})");
    BOOST_TEST(text_of(pipes.ask(modern(call(2, "quick")))) == "no task");
    BOOST_TEST(text_of(pipes.task_call("plain")) == "no task");
    const auto refused = pipes.ask(modern(call(3, "strict")));
    BOOST_TEST(code_of(refused) == mcp::rpc_missing_capability);
    BOOST_TEST(json::serialize(refused.at("error").at("data")) ==
               R"({"requiredCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}})");
    const auto task = pipes.begin("strict");
    // What belongs to tasks needs it too, before anything is looked up.
    for (const auto& id : {task, std::string("nothing")})
        for (const auto* method : {"tasks/get", "tasks/update", "tasks/cancel"})
            BOOST_TEST(code_of(pipes.ask(modern(mcp::rpc_request(4, method, {{"taskId", id}})))) ==
                       mcp::rpc_missing_capability);
    json::object filter{{"notifications", {{"taskIds", json::array{task}}}}};
    BOOST_TEST(code_of(pipes.ask(modern(mcp::rpc_request(5, "subscriptions/listen", filter)))) ==
               mcp::rpc_missing_capability);
    for (const auto* gone : {"tasks/result", "tasks/list"})
        BOOST_TEST(code_of(pipes.about(gone, task)) == mcp::rpc_method_not_found);

    Pipes legacy;
    const auto opened = legacy.initialize("2025-11-25", object(takes));
    BOOST_TEST(!opened.at("result").at("capabilities").as_object().contains("extensions"));
    BOOST_TEST(text_of(legacy.ask(call(1, "quick"))) == "no task");
    BOOST_TEST(legacy.ask(call(2, "strict")).at("result").at("isError").as_bool());
    BOOST_TEST(code_of(legacy.ask(mcp::rpc_request(3, "tasks/get", {{"taskId", "x"}}))) ==
               mcp::rpc_method_not_found);
}

BOOST_AUTO_TEST_CASE(a_task_is_polled_for_its_result) {
    Pipes pipes;
    const auto created = pipes.task_call("quick").at("result").as_object();
    BOOST_TEST(created.at("status").as_string() == "working");
    BOOST_TEST(created.at("ttlMs").is_null());
    BOOST_TEST(!created.contains("result"));
    const std::string task(created.at("taskId").as_string());
    BOOST_TEST(task.size() == 32u);
    for (int twice = 0; twice < 2; ++twice) {
        const auto got = pipes.get(task);
        BOOST_TEST(got.at("status").as_string() == "completed");
        BOOST_TEST(got.at("result").at("content").at(0).at("text").as_string() == "a task");
        BOOST_TEST(got.at("ttlMs").to_number<std::int64_t>() >= 15 * 60 * 1000);
    }
    const auto failed = pipes.get(pipes.begin("fail"));
    BOOST_TEST(failed.at("status").as_string() == "completed");
    BOOST_TEST(failed.at("result").at("isError").as_bool());
    const auto broken = pipes.get(pipes.begin("break"));
    BOOST_TEST(broken.at("status").as_string() == "failed");
    BOOST_TEST(json::serialize(broken.at("error")) ==
               R"({"code":-32050,"message":"broken","data":{"part":1}})");
    BOOST_TEST(!broken.contains("result"));
    const auto hanging = pipes.get(pipes.begin("hang"));
    BOOST_TEST(hanging.at("status").as_string() == "working");
    BOOST_TEST(hanging.at("statusMessage").as_string() == "a quarter");
}

BOOST_AUTO_TEST_CASE(a_call_that_takes_its_time_becomes_a_task_by_itself) {
    Pipes pipes;
    const auto task = pipes.begin("slow");
    pipes.settle(100ms);
    BOOST_TEST(pipes.get(task).at("result").at("content").at(0).at("text").as_string() == "a task");
    BOOST_TEST(text_of(pipes.ask(modern(call(100, "slow")))) == "no task");
}

BOOST_AUTO_TEST_CASE(a_task_is_cancelled_by_its_id_and_by_nothing_else) {
    Pipes pipes;
    const auto task = pipes.begin("hang");
    pipes.send(mcp::rpc_notification("notifications/cancelled", {{"requestId", pipes.id}}));
    pipes.send(mcp::rpc_notification("notifications/cancelled", {{"requestId", "task " + task}}));
    BOOST_TEST(pipes.status(task) == "working");
    BOOST_TEST(pipes.seen->cancelled == 0);
    for (int twice = 0; twice < 2; ++twice) {
        const auto answer = pipes.about("tasks/cancel", task);
        BOOST_TEST(json::serialize(answer.at("result")) == R"({"resultType":"complete"})");
        BOOST_TEST(pipes.status(task) == "cancelled");
    }
    BOOST_TEST(pipes.seen->cancelled == 1);
    const auto done = pipes.begin("quick");
    BOOST_TEST(pipes.about("tasks/cancel", done).contains("result"));
    BOOST_TEST(pipes.status(done) == "completed");
}

BOOST_AUTO_TEST_CASE(a_task_asks_when_it_is_polled) {
    Pipes pipes;
    const auto task = pipes.begin("ask");
    const auto asking = pipes.get(task);
    BOOST_TEST(asking.at("status").as_string() == "input_required");
    BOOST_TEST(asking.at("inputRequests").as_object().size() == 1u);
    BOOST_TEST(asking.at("inputRequests").at("who").at("method").as_string() ==
               "elicitation/create");
    // What nobody asked is ignored; what does not fit is refused, and asked on.
    BOOST_TEST(pipes.answer(task, under("nobody", accepted("eve"))).contains("result"));
    BOOST_TEST(pipes.refused(pipes.answer(task, under("who", {{"action", "accept"}}))));
    BOOST_TEST(pipes.refused(pipes.about("tasks/update", task)));
    BOOST_TEST(pipes.status(task) == "input_required");
    const auto taken = pipes.answer(task, under("who", accepted("ann")));
    BOOST_TEST(json::serialize(taken.at("result")) == R"({"resultType":"complete"})");
    // A second question has a name of its own, so that no late answer is taken for its answer.
    BOOST_TEST(pipes.get(task).at("inputRequests").as_object().begin()->key() == "who_2");
    BOOST_TEST(pipes.answer(task, under("who", accepted("eve"))).contains("result"));
    BOOST_TEST(pipes.status(task) == "input_required");
    pipes.answer(task, under("who_2", accepted("bob")));
    const std::string text(pipes.get(task).at("result").at("content").at(0).at("text").as_string());
    BOOST_TEST(text.find("ann") != text.npos);
    BOOST_TEST(text.find("bob") != text.npos);
    BOOST_TEST(text.find("eve") == text.npos);
    BOOST_TEST(pipes.answer(task, under("who_2", accepted("eve"))).contains("result"));
    BOOST_TEST(pipes.seen->runs == 1);
}

BOOST_AUTO_TEST_CASE(answers_that_never_fit_end_the_question) {
    Pipes pipes;
    const auto task = pipes.begin("ask");
    for (std::size_t i = 0; i < mcp::McpEngine::max_repeated; ++i)
        BOOST_TEST(pipes.refused(pipes.answer(task, under("who", {{"action", "maybe"}}))));
    BOOST_TEST(pipes.get(task).at("result").at("isError").as_bool());
}

BOOST_AUTO_TEST_CASE(input_can_come_before_the_task) {
    Pipes pipes;
    const auto asked = pipes.task_call("ask_first").at("result").as_object();
    BOOST_TEST(asked.at("resultType").as_string() == "input_required");
    BOOST_TEST(!asked.contains("taskId"));
    auto again = call(++pipes.id, "ask_first");
    again["params"].as_object()["requestState"] = asked.at("requestState");
    again["params"].as_object()["inputResponses"] = under("who", accepted("ann"));
    const auto created = pipes.ask(modern(again, object(takes))).at("result").as_object();
    BOOST_TEST(created.at("resultType").as_string() == "task");
    BOOST_TEST(!created.contains("requestState"));
    BOOST_TEST(!created.contains("inputRequests"));
    const std::string task(created.at("taskId").as_string());
    BOOST_TEST(pipes.get(task).at("inputRequests").as_object().begin()->key() == "who_2");
    // The state is used up: it opens no second way to the call.
    again["id"] = ++pipes.id;
    BOOST_TEST(pipes.refused(pipes.ask(modern(again, object(takes)))));
    pipes.answer(task, under("who_2", accepted("bob")));
    BOOST_TEST(pipes.status(task) == "completed");
}

BOOST_AUTO_TEST_CASE(nobody_else_reaches_a_task) {
    Pipes one, other;
    const auto task = one.begin("hang");
    BOOST_TEST(other.unknown(task));
    for (const auto* none : {"", "0", "00000000000000000000000000000000"})
        BOOST_TEST(one.unknown(none));
    BOOST_TEST(one.refused(one.ask(modern(mcp::rpc_request(90, "tasks/get", {}), object(takes)))));
    BOOST_TEST(one.refused(
        one.ask(modern(mcp::rpc_request(91, "tasks/get", {{"taskId", 5}}), object(takes)))));
    BOOST_TEST(one.status(task) == "working");
    BOOST_TEST(one.seen->cancelled == 0);
}

BOOST_AUTO_TEST_CASE(a_result_is_kept_for_its_time) {
    McpServerOptions options;
    options.task_ttl = 1s;
    Pipes pipes(std::move(options));
    const auto running = pipes.begin("hang"), done = pipes.begin("quick");
    BOOST_TEST(pipes.status(done) == "completed");
    pipes.settle(1100ms);
    BOOST_TEST(pipes.unknown(done));
    BOOST_TEST(pipes.status(running) == "working");
    pipes.about("tasks/cancel", running);
    pipes.settle(1100ms);
    BOOST_TEST(pipes.unknown(running));
}

BOOST_AUTO_TEST_CASE(a_flood_of_tasks_gets_answers_instead) {
    McpServerOptions options;
    options.max_tasks = 12;
    options.task_ttl = 1s;
    Pipes pipes(std::move(options));
    for (int i = 0; i < 3; ++i) pipes.begin("quick");
    BOOST_TEST(text_of(pipes.task_call("quick")) == "no task");
    BOOST_TEST(text_of(pipes.task_call("strict")) == "done");
    pipes.settle(1100ms);
    pipes.begin("quick");
}

BOOST_AUTO_TEST_CASE(results_that_nobody_fetches_take_bounded_memory) {
    McpServerOptions options;
    options.max_task_bytes = 400'000;  // 100,000 for one client
    Pipes pipes(std::move(options));
    const auto first = pipes.begin("large", {{"size", 60'000}});
    const auto second = pipes.begin("large", {{"size", 60'000}});
    const auto lost = pipes.get(second);
    BOOST_TEST(lost.at("status").as_string() == "failed");
    BOOST_TEST(lost.at("error").at("message").as_string().find("60") != std::string::npos);
    // What was fetched makes room; what was not stays.
    BOOST_TEST(pipes.status(first) == "completed");
    const auto third = pipes.begin("large", {{"size", 60'000}});
    BOOST_TEST(pipes.unknown(first));
    BOOST_TEST(pipes.status(third) == "completed");
}

BOOST_AUTO_TEST_CASE(a_session_takes_its_tasks_along) {
    Pipes pipes;
    pipes.begin("hang");
    pipes.begin("quick");
    pipes.output.close();
    pipes.settle(200ms);
    BOOST_TEST(pipes.served);
    BOOST_TEST(pipes.seen->cancelled == 1);
    BOOST_TEST(pipes.seen->ended == 1);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace mcp_tasks_tests
