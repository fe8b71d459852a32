// What a call is called everywhere, spans of it, and what changes while a kernel runs: servers, the
// policy, and answers to input().
#include <boost/json/serialize.hpp>
#include <ipybox/executor/blocking.hpp>
#include <ipybox/mcp/server.hpp>
#include <map>
#include <sstream>

#include "../../examples/trace/otlp.hpp"
#include "executor_fixture.hpp"

namespace trace_tests {

using namespace ipybox;
using namespace std::chrono_literals;
using Status = CodeExecutionResult::Status;

namespace {
const char* const attempt =
    "import ipybox_kernel\n"
    "def attempt(tool, server='crm', **arguments):\n"
    "    try: print(ipybox_kernel._send(server, tool, arguments))\n"
    "    except Exception as e: print(type(e).__name__, e)\n";

struct TraceFixture : test::ExecutorFixture {
    ~TraceFixture() {
        if (executor) test::run(context, executor->stop());
    }
    void start_with_tools() {
        start("none");
        server = std::make_unique<McpServer>(context.get_executor());
        server->add_tool(
            {.name = "echo",
             .description = "Says it again.",
             .input_schema = {{"type", "object"}, {"properties", {{"text", {{"type", "string"}}}}}},
             .annotations = {{"readOnlyHint", true}, {"destructiveHint", false}},
             .call = [](McpContext, json::object arguments) -> awaitable<McpToolResult> {
                 co_return std::string(arguments.at("text").as_string());
             }});
        server->add_tool({.name = "refuse",
                          .description = "Always fails.",
                          .call = [](McpContext, json::object) -> awaitable<McpToolResult> {
                              throw Error(errc::bad_argument, "no such customer");
                              co_return McpToolResult();
                          }});
        server->add_tool({.name = "steps",
                          .description = "Tells how far it is.",
                          .call = [](McpContext asker, json::object) -> awaitable<McpToolResult> {
                              asker.progress(1, 2, "half");
                              co_return "done";
                          }});
        server->add_tool({.name = "wait",
                          .description = "Waits.",
                          .call = [this](McpContext, json::object) -> awaitable<McpToolResult> {
                              if (on_wait) on_wait();
                              co_await sleep_until(Clock::now() + 1h);
                              co_return "waited";
                          }});
        test::run(context, executor->add_tools("crm", *server));
        text(attempt);
    }
    void keep_spans() {
        options.on_span = [this](const Span& span) {
            (span.end == 0 ? begun : ended).push_back(span);
        };
    }
    void record() {
        AuditOptions settings;
        settings.workspace = workspace.path();
        options.audit = std::make_shared<AuditLog>(audit_file, settings);
    }
    std::vector<json::object> records(std::string_view event) const {
        std::vector<json::object> all;
        std::istringstream lines(test::read_file(audit_file));
        for (std::string line; std::getline(lines, line);) {
            auto record = parse_json(line, "audit").as_object();
            if (record.at("event").as_string() == event) all.push_back(std::move(record));
        }
        return all;
    }
    // The spans of a kind, "name outcome" each, in the order of their ends.
    std::vector<std::string> outcomes(Span::Kind kind) const {
        std::vector<std::string> all;
        for (const auto& span : ended)
            if (span.kind == kind) all.push_back(span.name + " " + span.outcome);
        return all;
    }

    using OnEvent = std::function<void(ExecutionEvent&)>;
    CodeExecutionResult watch(std::string code, OnEvent on_event, Duration timeout = 60s) {
        return test::run(context, watching(std::move(code), std::move(on_event), timeout));
    }
    awaitable<CodeExecutionResult> watching(std::string code, OnEvent on_event, Duration timeout) {
        auto execution = co_await executor->stream(std::move(code), timeout);
        execution_id = execution.id();
        for (;;) {
            auto event = co_await execution.next();
            if (auto* result = std::get_if<CodeExecutionResult>(&*event))
                co_return std::move(*result);
            on_event(*event);
        }
    }

    std::function<void()> on_wait;
    std::string execution_id;
    std::vector<Span> begun, ended;
    test::TemporaryDirectory outside;
    std::filesystem::path audit_file = outside.path() / "audit.jsonl";
    std::unique_ptr<McpServer> server;
};

// Typed in one after the other; what is asked beyond that is refused.
struct Typing {
    std::vector<std::string> lines;
    std::vector<std::string> prompts = {};
    std::size_t secrets = 0;
    void operator()(ExecutionEvent& event) {
        const auto* request = std::get_if<InputRequest>(&event);
        if (!request) return;
        prompts.push_back(request->to_string());
        secrets += request->is_password() ? 1 : 0;
        if (prompts.size() <= lines.size()) {
            request->answer(lines[prompts.size() - 1]);
        } else {
            request->refuse();
        }
    }
};
}  // namespace

BOOST_FIXTURE_TEST_SUITE(trace, TraceFixture)

BOOST_AUTO_TEST_CASE(an_id_is_the_same_everywhere) {
    keep_spans();
    record();
    options.session = "mine";
    options.approval = json::parse(R"({"first_match": [{"rules": [
        {"name": "none", "when": {"tool": "wait"}, "then": "deny"}]}, "ask"]})");
    start_with_tools();
    begun.clear();
    ended.clear();
    std::vector<ToolCall> asked;
    const auto result = watch(
        "attempt('echo', text='geheim')\nattempt('refuse')\nattempt('wait')\nattempt('nosuch')",
        [&](ExecutionEvent& event) {
            const auto& request = std::get<ApprovalRequest>(event);
            asked.push_back(request.call());
            request.accept();
        });
    BOOST_TEST_REQUIRE(result.ok(), result.error);
    BOOST_TEST(execution_id.size() == 16u);
    BOOST_TEST(result.execution == execution_id);
    BOOST_TEST_REQUIRE(asked.size() == 2u);
    const auto calls = records("call");
    BOOST_TEST_REQUIRE(calls.size() == 4u);
    for (const auto& record : calls) {
        BOOST_TEST(std::string(record.at("execution").as_string()) == execution_id);
        const std::string id(record.at("call").as_string());
        const auto span =
            std::find_if(ended.begin(), ended.end(), [&](const Span& one) { return one.id == id; });
        BOOST_TEST_REQUIRE((span != ended.end()));
        BOOST_TEST(span->parent == execution_id);
        BOOST_TEST(span->root == execution_id);
        BOOST_TEST(span->session == "mine");
        BOOST_TEST((span->kind == Span::Kind::call));
    }
    for (std::size_t i = 0; i < asked.size(); ++i) {
        BOOST_TEST(asked[i].id == std::string(calls[i].at("call").as_string()));
        BOOST_TEST(asked[i].execution == execution_id);
    }
    BOOST_TEST(records("execution").back().at("execution").as_string() == execution_id);
    BOOST_TEST(records("execution_end").back().at("execution").as_string() == execution_id);

    BOOST_TEST(outcomes(Span::Kind::call) ==
                   (std::vector<std::string>{"crm.echo ok", "crm.refuse error", "crm.wait denied",
                                             "crm.nosuch failed"}),
               boost::test_tools::per_element());
    BOOST_TEST(
        outcomes(Span::Kind::approval) ==
            (std::vector<std::string>{"crm.echo allowed", "crm.refuse allowed", "crm.wait denied"}),
        boost::test_tools::per_element());
    BOOST_TEST(outcomes(Span::Kind::execution) == (std::vector<std::string>{"execution ok"}),
               boost::test_tools::per_element());
    BOOST_TEST(begun.size() == ended.size());
    std::map<std::string, std::int64_t> begins;
    for (const auto& span : begun) begins[span.id] = span.begin;
    for (const auto& span : ended) {
        BOOST_TEST(begins.at(span.id) == span.begin);
        BOOST_TEST(span.end >= span.begin);
        BOOST_TEST((span.parent.empty() || begins.contains(span.parent)));
    }
}

BOOST_AUTO_TEST_CASE(progress_names_its_call) {
    keep_spans();
    options.approval = "allow";
    std::vector<std::string> told;
    options.on_progress = [&](const std::string& call, const CallProgress& report) {
        told.push_back(call + " " + report.message);
        throw std::runtime_error("which is logged");
    };
    start_with_tools();
    ended.clear();
    BOOST_TEST(text("attempt('steps')") == "done");
    BOOST_TEST(told == std::vector<std::string>{ended.front().parent + " half"},
               boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(names_that_code_wrote_are_escaped_and_cut) {
    keep_spans();
    start_with_tools();
    text("attempt('x' * 500, server='\\x1b[2J')");
    const auto names = outcomes(Span::Kind::call);
    BOOST_TEST_REQUIRE(names.size() == 1u);
    BOOST_TEST(names[0] == "\\x1b[2J." + std::string(128, 'x') + " failed");
}

BOOST_AUTO_TEST_CASE(what_a_hook_throws_is_logged_and_changes_nothing) {
    std::vector<std::string> lines;
    options.logger.write = [&](LogLevel, std::string_view line) { lines.emplace_back(line); };
    options.on_span = [](const Span&) { throw std::runtime_error("the collector is full"); };
    options.approval = "allow";
    start_with_tools();
    BOOST_TEST(text("attempt('echo', text='x')") == "x");
    BOOST_TEST(std::count(lines.begin(), lines.end(), "on_span: the collector is full") >= 4);
}

BOOST_AUTO_TEST_CASE(spans_of_what_is_broken_off_end) {
    keep_spans();
    record();
    options.approval = "allow";
    start_with_tools();
    on_wait = [this] { executor->cancel(); };
    BOOST_TEST((execute("attempt('wait')").status == Status::cancelled));
    BOOST_TEST(outcomes(Span::Kind::call).back() == "crm.wait withdrawn");
    BOOST_TEST(outcomes(Span::Kind::execution).back() == "execution cancelled");
    // Begin and end are of one execution, though calls were withdrawn between them.
    BOOST_TEST(records("execution").back().at("execution").as_string() ==
               records("execution_end").back().at("execution").as_string());

    on_wait = [this] { context.stop(); };
    bool over = false;
    asio::co_spawn(context, executor->execute_approved("attempt('wait')", 0s),
                   [&over](std::exception_ptr, CodeExecutionResult) { over = true; });
    context.restart();
    context.run();
    context.restart();
    executor.reset();
    BOOST_TEST(begun.size() == ended.size());
    BOOST_TEST(outcomes(Span::Kind::execution).back() == "execution withdrawn");
    const auto told = ended.size();
    while (!over && context.run_one() > 0) continue;
    BOOST_TEST(over);
    BOOST_TEST(ended.size() == told);
}

BOOST_AUTO_TEST_CASE(an_exporter_for_opentelemetry) {
    std::ostringstream lines;
    options.on_span = OtlpLines(lines, "shop");
    options.approval = "allow";
    start_with_tools();
    lines.str("");
    text("attempt('echo', text='geheim')");
    BOOST_TEST(lines.str().find("geheim") == std::string::npos);
    std::istringstream all(lines.str());
    std::vector<json::object> spans;
    for (std::string line; std::getline(all, line);) {
        const auto told = json::parse(line);
        const auto& resource = told.at("resourceSpans").at(0);
        BOOST_TEST(json::serialize(resource.at("resource").at("attributes")) ==
                   R"([{"key":"service.name","value":{"stringValue":"shop"}}])");
        spans.push_back(resource.at("scopeSpans").at(0).at("spans").at(0).as_object());
    }
    BOOST_TEST_REQUIRE(spans.size() == 3u);  // in the order of their ends
    const auto& approval = spans[0];
    const auto& call = spans[1];
    const auto& execution = spans[2];
    BOOST_TEST(approval.at("name").as_string() == "approval crm.echo");
    BOOST_TEST(call.at("name").as_string() == "call crm.echo");
    BOOST_TEST(execution.at("name").as_string() == "execution");
    BOOST_TEST((approval.at("parentSpanId") == call.at("spanId")));
    BOOST_TEST((call.at("parentSpanId") == execution.at("spanId")));
    BOOST_TEST(execution.at("parentSpanId").as_string().empty());
    for (const auto& span : spans) {
        BOOST_TEST((span.at("traceId") == execution.at("traceId")));
        BOOST_TEST(span.at("traceId").as_string().size() == 32u);
        BOOST_TEST(span.at("status").at("code").to_number<int>() == 1);
        const std::string begin(span.at("startTimeUnixNano").as_string());
        BOOST_TEST(begin.size() == 19u);  // until 2286
        BOOST_TEST(std::stoll(begin) <= std::stoll(span.at("endTimeUnixNano").as_string().c_str()));
    }
}

BOOST_AUTO_TEST_CASE(servers_and_their_tools_are_listed) {
    start_with_tools();
    executor->register_server("later", {{"command", "false"}});
    executor->register_server("web", {{"url", "https://example.com/mcp"}});
    const auto servers = executor->servers();
    BOOST_TEST_REQUIRE(servers.size() == 3u);
    BOOST_TEST(servers[0].name == "crm");
    BOOST_TEST(servers[0].type == "local");
    BOOST_TEST((servers[0].state == ServerInfo::State::running));
    BOOST_TEST(servers[1].type == "stdio");
    BOOST_TEST((servers[1].state == ServerInfo::State::stopped));
    BOOST_TEST(servers[2].type == "streamable_http");

    test::run(context, executor->reset());
    BOOST_TEST((executor->servers()[0].state == ServerInfo::State::stopped));
    const auto tools = test::run(context, executor->list_tools("crm"));  // starts it
    BOOST_TEST((executor->servers()[0].state == ServerInfo::State::running));
    BOOST_TEST_REQUIRE(tools.size() == 4u);
    BOOST_TEST(tools[0].name == "echo");
    BOOST_TEST(tools[0].description == "Says it again.");
    BOOST_TEST(tools[0].input_schema.at("properties").as_object().contains("text"));
    BOOST_TEST((tools[0].read_only == true));
    BOOST_TEST((tools[0].destructive == false));
    BOOST_TEST(!tools[0].idempotent.has_value());
    BOOST_TEST(!tools[1].read_only.has_value());
    BOOST_CHECK_EXCEPTION(test::run(context, executor->list_tools("nosuch")), Error,
                          [](const Error& e) { return e.code() == errc::bad_argument; });
}

BOOST_AUTO_TEST_CASE(a_server_is_unregistered_while_its_tool_runs) {
    keep_spans();
    record();
    options.approval = "allow";
    start_with_tools();
    on_wait = [this] {
        asio::co_spawn(context, executor->unregister_server("crm"), asio::detached);
    };
    const auto seen = text(
        "attempt('wait')\nfrom mcptools.crm import echo\n"
        "try: echo.run(text='x')\nexcept Exception as e: print(type(e).__name__, e)");
    BOOST_TEST(seen ==
               "ToolRunnerError MCP server crm was unregistered before this call was answered\n"
               "ToolRunnerError MCP server \"crm\" was unregistered; registered: none");
    BOOST_TEST(executor->servers().empty());
    BOOST_TEST(outcomes(Span::Kind::call).front() == "crm.wait withdrawn");
    BOOST_TEST(records("result").back().at("outcome").as_string() == "withdrawn");
    BOOST_CHECK_EXCEPTION(test::run(context, executor->unregister_server("crm")), Error,
                          [](const Error& e) { return e.code() == errc::bad_argument; });
    test::run(context, executor->add_tools("crm", *server));
    BOOST_TEST(text("attempt('echo', text='again')") == "again");
}

BOOST_AUTO_TEST_CASE(a_server_is_unregistered_while_somebody_is_asked) {
    start_with_tools();
    std::optional<ApprovalRequest> asked;
    const auto result = watch("attempt('echo', text='x')", [&](ExecutionEvent& event) {
        asked = std::get<ApprovalRequest>(event);
        asio::co_spawn(context, executor->unregister_server("crm"), asio::detached);
    });
    BOOST_TEST_REQUIRE(result.ok(), result.error);
    BOOST_TEST(result.text.value_or("") ==
               "ToolRunnerError MCP server crm was unregistered before this call was answered");
    BOOST_TEST_REQUIRE(asked.has_value());
    test::run(context, asked->settled());
}

BOOST_AUTO_TEST_CASE(another_policy_judges_the_next_call) {
    record();
    start_with_tools();
    bool bad = false;
    const auto result =
        watch("attempt('echo', text='first')\nattempt('echo', text='second')",
              [&](ExecutionEvent& event) {
                  try {
                      executor->set_policy({{"any_of", json::array()}}, "new rules");
                  } catch (const Error& error) {
                      bad = error.detail().find("new rules/any_of") != std::string::npos;
                  }
                  executor->set_policy("deny");
                  std::get<ApprovalRequest>(event).accept();
              });
    BOOST_TEST(bad);
    const auto text_of = result.text.value_or("");
    BOOST_TEST(text_of.starts_with("first\nApprovalRejectedError"), text_of);
    BOOST_TEST(records("policy").size() == 1u);
    BOOST_TEST(records("policy")[0].at("approval").as_string() == "deny");
    BOOST_TEST(records("policy")[0].at("execution").as_string() == execution_id);

    struct Mine final : ApprovalPolicy {
        awaitable<Decision> decide(ToolCall call) override {
            co_return Decision(call.execution.empty() ? Verdict::deny : Verdict::allow);
        }
    };
    executor->set_policy(std::make_unique<Mine>());
    BOOST_TEST(text("attempt('echo', text='third')") == "third");
    BOOST_CHECK_THROW(executor->set_policy(PolicyPtr()), Error);
    BOOST_TEST(text("attempt('echo', text='fourth')") == "fourth");
}

BOOST_AUTO_TEST_CASE(input_is_answered_by_the_reader_of_events) {
    if (test::distant() || test::kernel_backend() == "gateway") return;
    options.allow_input = true;
    start("none");
    Typing typing{{"Ada", "geheim", "", "Zoë"}};
    const auto result = watch(
        "import getpass\n"
        "name = input('Who? ')\n"
        "word = getpass.getpass('Password: ')\n"
        "print([name, word, input()])\n"
        "print(input('\\x1b[31m' + 'x' * 5000))\n"
        "try: input('more? ')\nexcept EOFError as e: print('EOFError', e)\n",
        std::ref(typing));
    BOOST_TEST_REQUIRE(result.ok(), result.error);
    BOOST_TEST(result.text.value_or("") ==
               "['Ada', 'geheim', '']\nZoë\nEOFError the request for input was refused");
    BOOST_TEST_REQUIRE(typing.prompts.size() == 5u);
    BOOST_TEST(typing.prompts[0] == "Who?");
    BOOST_TEST(typing.secrets == 1u);
    BOOST_TEST(typing.prompts[3] == "\\x1b[31m" + std::string(4091, 'x') + "…");
    // execute() has nobody who could answer.
    BOOST_TEST(execute("input()").error.find("nobody answers input() here") != std::string::npos);
    BOOST_TEST(text("print('next')") == "next");
}

BOOST_DATA_TEST_CASE_F(TraceFixture, input_from_a_sandbox,
                       boost::unit_test::data::make(test::sandboxes), sandbox) {
    if (test::distant() || test::kernel_backend() == "gateway") return;
    options.allow_input = true;
    start(sandbox);
    const auto result = watch("print(input('a') + input('b'))", Typing{{"1", "2"}});
    BOOST_TEST(result.text.value_or(result.error) == "12");
}

BOOST_AUTO_TEST_CASE(a_question_ends_with_its_cell) {
    if (test::distant() || test::kernel_backend() == "gateway") return;
    options.allow_input = true;
    start("none");
    std::optional<InputRequest> asked;
    const auto result = watch("input('still there? ')", [&](ExecutionEvent& event) {
        asked = std::get<InputRequest>(event);
        executor->cancel();
    });
    BOOST_TEST((result.status == Status::cancelled));
    BOOST_TEST_REQUIRE(asked.has_value());
    test::run(context, asked->settled());
    asked->answer("too late");
    // And is no answer to the next one.
    const auto next = watch("print(input('next '))", Typing{{"in time"}});
    BOOST_TEST(next.text.value_or(next.error) == "in time");
}

BOOST_AUTO_TEST_CASE(a_flood_of_questions_stays_in_the_kernel) {
    if (test::distant() || test::kernel_backend() == "gateway") return;
    const bool forked = test::kernel_backend() == "fork";
    options.allow_input = true;
    start("none");
    int asked = 0;
    const auto result =
        watch(forked ? "from ipybox_kernel.frames import TAPE\n"
                       "for i in range(2000):\n"
                       "    TAPE.send('q', {'prompt': 'x' * 500, 'password': False})\n"
                       "import time; time.sleep(1)\nprint('done')"
                     : "kernel = get_ipython().kernel\n"
                       "parent = kernel.get_parent('shell')\n"
                       "ident = (kernel._get_shell_context_var(kernel._shell_parent_ident)\n"
                       "         if hasattr(kernel, '_shell_parent_ident') else "
                       "kernel._parent_ident['shell'])\n"
                       "for i in range(2000):\n"
                       "    kernel.session.send(kernel.stdin_socket, 'input_request',\n"
                       "                        {'prompt': 'x' * 500, 'password': False}, parent, "
                       "ident=ident)\n"
                       "import time; time.sleep(1)\nprint('done')",
              [&](ExecutionEvent&) { ++asked; });
    BOOST_TEST(result.text.value_or(result.error) == "done");
    BOOST_TEST(asked <= 1);
    // What is left of them is none of the next cell's.
    Typing typing{{"yes"}};
    const auto next = watch("print(input('really? '))", std::ref(typing));
    BOOST_TEST(next.text.value_or(next.error) == "yes");
    BOOST_TEST(typing.prompts == std::vector<std::string>{"really?"},
               boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(without_the_option_code_is_told_what_to_do) {
    start("none");
    const auto result = watch("input('?')", [](ExecutionEvent&) {});
    BOOST_TEST(result.error.find("StdinNotImplementedError: nobody answers input() here: put what "
                                 "the code needs into the code") != std::string::npos,
               result.error);
    auto elsewhere = options;
    elsewhere.kernel = "gateway";
    elsewhere.allow_input = true;
    BOOST_CHECK_EXCEPTION(
        CodeExecutor(context.get_executor(), plugins, elsewhere), Error,
        [](const Error& e) { return e.detail().find("allow_input") != std::string::npos; });
}

BOOST_AUTO_TEST_CASE(the_blocking_facade_has_it_too) {
    if (test::distant() || test::kernel_backend() == "gateway") return;
    options.sandbox = "none";
    options.allow_input = true;
    BlockingCodeExecutor blocking(test::registry(), options);
    blocking.start();
    McpServer own(blocking.get_executor());
    own.add_tool(
        {.name = "echo",
         .description = "Says it again.",
         .call = [](McpContext, json::object) -> awaitable<McpToolResult> { co_return "echoed"; }});
    blocking.add_tools("own", own);
    BOOST_TEST(blocking.servers().at(0).name == "own");
    BOOST_TEST(blocking.list_tools("own").at(0).name == "echo");
    BOOST_TEST(blocking.describe_tool("own.echo").find("Says it again.") != std::string::npos);
    BOOST_TEST(blocking.search_tools("says it again").starts_with("own.echo"));
    BOOST_TEST(!blocking.list_stubs("own").empty());
    blocking.set_policy("allow");
    BOOST_TEST(blocking.execute("from mcptools.own import echo\nprint(echo.run())").text.value() ==
               "echoed");
    blocking.set_policy(PolicyPtr(std::make_unique<AllOf>([] {
        PolicyList none_left;
        struct No final : ApprovalPolicy {
            awaitable<Decision> decide(ToolCall) override { co_return Decision(Verdict::deny); }
        };
        none_left.push_back(std::make_unique<No>());
        return none_left;
    }())));
    BOOST_TEST(!blocking.execute_approved("echo.run()").ok());
    const auto answered =
        blocking.stream("print(input('a'))", Typing{{"typed"}}, 60s, ResultText::whole, false);
    BOOST_TEST(answered.text.value_or(answered.error) == "typed");
    blocking.upload("up.txt", "12345");
    BOOST_TEST(blocking.download("up.txt", 1, 2).bytes == "23");
    BOOST_TEST(blocking.read_here("up.txt").bytes == "12345");
    BOOST_TEST(blocking.shares_files());
    BOOST_TEST(blocking.kernel_alive());
    BOOST_TEST(blocking.kernel_id().empty());
    BOOST_TEST(blocking.workspace() == std::filesystem::canonical(workspace.path()));
    blocking.unregister_server("own");
    BOOST_TEST(blocking.servers().empty());
    blocking.stop();
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace trace_tests
