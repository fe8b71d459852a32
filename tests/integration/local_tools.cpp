// Functions of the application as tools, called from a real kernel, and an agent's turn.
#include <ipybox/agent.hpp>
#include <ipybox/mcp/server.hpp>

#include "executor_fixture.hpp"

using namespace ipybox;
using namespace std::chrono_literals;
namespace data = boost::unit_test::data;

namespace {
const json::object number{{"type", "number"}};

// A server in this process that adds, fails, waits and shows.
struct LocalTools : test::ExecutorFixture {
    void add_crm(std::string_view name = "crm") {
        server = std::make_unique<McpServer>(context.get_executor());
        server->add_tool({
            .name = "add",
            .description = "Adds two numbers.",
            .input_schema = {{"type", "object"},
                             {"properties", {{"a", number}, {"b", number}}},
                             {"required", {"a", "b"}}},
            .output_schema = {{"type", "object"}, {"properties", {{"sum", number}}}},
            .annotations = {{"readOnlyHint", true}},
            .call = [this](McpContext, json::object arguments) -> awaitable<McpToolResult> {
                ++calls;
                McpToolResult result;
                result.structured =
                    json::object{{"sum", arguments.at("a").to_number<double>() +
                                             arguments.at("b").to_number<double>()}};
                co_return result;
            },
        });
        server->add_tool({
            .name = "refuse",
            .description = "Always fails.",
            .call = [](McpContext, json::object) -> awaitable<McpToolResult> {
                throw Error(errc::bad_argument, "no such customer; ask for 1 to 9");
                co_return McpToolResult();
            },
        });
        server->add_tool({
            .name = "wait",
            .description = "Waits.",
            .call = [this](McpContext, json::object) -> awaitable<McpToolResult> {
                struct Gone {
                    int& ended;
                    ~Gone() { ++ended; }
                } const gone{ended};
                co_await sleep_until(Clock::now() + 1h);
                co_return "waited";
            },
        });
        add_raw();
        modules = test::run(context, executor->add_tools(std::string(name), *server));
    }
    // Bytes that are no text, as an application may have them from anywhere.
    void add_raw() {
        server->add_tool({
            .name = "raw",
            .description = "Bytes that would be a number if they were taken as they are.",
            .call = [](McpContext, json::object) -> awaitable<McpToolResult> {
                co_return std::string("\xFF\0001e9", 5);
            },
        });
    }
    ~LocalTools() {
        if (executor) test::run(context, executor->stop());
    }

    int calls = 0, ended = 0;
    std::vector<std::string> modules;
    std::unique_ptr<McpServer> server;
};
}  // namespace

BOOST_FIXTURE_TEST_SUITE(local_tools, LocalTools)

BOOST_DATA_TEST_CASE_F(LocalTools, code_calls_functions_of_the_application,
                       data::make(test::sandboxes), sandbox) {
    start(sandbox);
    add_crm();
    BOOST_TEST(modules == (std::vector<std::string>{"add", "refuse", "wait", "raw"}),
               boost::test_tools::per_element());
    BOOST_TEST(text("from mcptools.crm import add\nprint(add.run(a=2, b=3.5).sum)") == "5.5");
    BOOST_TEST(calls == 1);
    BOOST_TEST(text("from mcptools.crm import refuse\ntry: refuse.run()\n"
                    "except Exception as e: print(type(e).__name__, e)")
                   .find("no such customer; ask for 1 to 9") != std::string::npos);
    // The schema holds for what goes around the generated module, too.
    BOOST_TEST(text("import ipybox_kernel\n"
                    "try: ipybox_kernel._send('crm', 'add', {'a': 'x', 'b': 1})\n"
                    "except Exception as e: print(e)")
                   .find("do not fit its schema") != std::string::npos);
    BOOST_TEST(calls == 1);
    BOOST_TEST(text("from mcptools.crm import raw\nprint(ascii(raw.run()))") != "1000000000.0");
    BOOST_TEST(executor->describe_tool("crm.add").find("a: float") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_policy_decides_on_them_as_on_all_others) {
    options.approval = json::parse(R"({"first_match": [{"rules": [
        {"name": "no adding", "when": {"server": "crm", "tool": "add"}, "then": "deny"}]},
        "ask"]})");
    std::string identity, hash;
    options.approvers.push_back([&](ToolCall call) -> awaitable<Decision> {
        identity = call.server_identity;
        hash = call.definition_hash;
        co_return Decision(Verdict::allow);
    });
    start("bubblewrap");
    add_crm();
    const auto refused = execute("from mcptools.crm import add\nadd.run(a=1, b=2)");
    BOOST_TEST(!refused.ok());
    BOOST_TEST(refused.error.find("ApprovalRejectedError") != std::string::npos);
    BOOST_TEST(calls == 0);
    BOOST_TEST(identity == "");
    test::run(context, executor->execute("from mcptools.crm import raw\nraw.run()"));
    BOOST_TEST(identity == "in process");
    BOOST_TEST(hash.size() == 64u);
}

BOOST_AUTO_TEST_CASE(a_cell_that_ends_cancels_the_handler) {
    start("bubblewrap");
    add_crm();
    const auto late = execute("from mcptools.crm import wait\nwait.run()", 2s);
    BOOST_TEST((late.status == CodeExecutionResult::Status::timed_out));
    test::run(context, [&]() -> awaitable<void> {
        for (int i = 0; i < 100 && ended == 0; ++i) co_await sleep_until(Clock::now() + 50ms);
    }());
    BOOST_TEST(ended == 1);
}

BOOST_AUTO_TEST_CASE(tools_come_and_go_and_so_does_the_server) {
    start("bubblewrap");
    add_crm();
    BOOST_TEST(server->remove_tool("refuse"));
    text("from mcptools.crm import add; add.run(a=1, b=1)");
    BOOST_TEST(text("import importlib.util as u\n"
                    "print(u.find_spec('mcptools.crm.refuse'))") == "None");
    // A new kernel reaches it again.
    test::run(context, executor->reset());
    BOOST_TEST(text("from mcptools.crm import add\nprint(add.run(a=1, b=1).sum)") == "2.0");
    server.reset();
    const auto gone = execute("add.run(a=1, b=1)");
    BOOST_TEST(!gone.ok());
    BOOST_TEST(gone.error.find("the application has ended this McpServer") != std::string::npos,
               gone.error);
}

BOOST_AUTO_TEST_CASE(a_server_of_another_thread_is_refused) {
    start("bubblewrap");
    asio::io_context other;
    McpServer elsewhere(other.get_executor());
    const auto is_told = [](const Error& error) {
        return error.code() == errc::bad_argument &&
               error.detail().find("another io_context") != std::string::npos;
    };
    BOOST_CHECK_EXCEPTION(test::run(context, executor->add_tools("crm", elsewhere)), Error,
                          is_told);
    other.run();
}

BOOST_AUTO_TEST_CASE(an_agent_acts_on_a_message_of_its_model) {
    options.approval = "allow";
    start("bubblewrap");
    add_crm();
    auto message = json::parse(R"({"role": "assistant", "tool_calls": [
        {"id": "1", "function": {"name": "execute_ipython_cell", "arguments":
            "{\"code\": \"from mcptools.crm import add; print(add.run(a=20, b=22).sum)\"}"}},
        {"id": "2", "function": {"name": "execute_ipython_cell", "arguments":
            "{\"code\": \"import os, signal; os.kill(os.getpid(), signal.SIGKILL)\"}"}},
        {"id": "3", "function": {"name": "execute_ipython_cell", "arguments":
            "{\"code\": \"1/0\"}"}}]})")
                       .as_object();
    const auto messages = test::run(context, act(*executor, ChatApi::openai, std::move(message)));
    BOOST_TEST_REQUIRE(messages.size() == 3u);
    BOOST_TEST(messages[0].at("content") == "42.0");
    BOOST_TEST(messages[1].at("content").as_string().find("new kernel") != std::string::npos);
    BOOST_TEST(messages[2].at("content").as_string().find("ZeroDivisionError") !=
               std::string::npos);
    const auto prompt = code_prompt(*executor, {"crm"});
    BOOST_TEST(prompt.find("add(a: float, b: float)") != std::string::npos);
    BOOST_TEST(code_prompt(*executor, {"crm"}, 100).find("Search for the tools of: crm.") !=
               std::string::npos);
}

BOOST_AUTO_TEST_SUITE_END()
