// Approval from the kernel to the policy: audit records, shell commands, several approvers, and
// `ipybox serve` with one at its approval channel.
#include <boost/json/serialize.hpp>
#include <ipybox/approval/channel.hpp>

#include "executor_fixture.hpp"

using namespace ipybox;
using namespace std::chrono_literals;
namespace data = boost::unit_test::data;

namespace {
struct ApprovalFixture : test::ExecutorFixture {
    void generate_echo() {
        const auto params = parse_json(
            R"({"command": ")" + test::kernel_python().string() + R"(", "args": [")" +
                test::required_environment("IPYBOX_TEST_SUPPORT") + R"(/mcp_server.py"]})",
            "test");
        test::run(context, executor->generate_mcp_sources("own", params.as_object()));
    }
    // But for those about the log itself.
    std::vector<json::object> audit_records() const {
        std::vector<json::object> all;
        std::istringstream lines(test::read_file(audit_file));
        for (std::string line; std::getline(lines, line);) {
            auto record = parse_json(line, "audit").as_object();
            if (record.contains("session")) all.push_back(std::move(record));
        }
        return all;
    }
    // What the policy asks, the approvers answer.
    CodeExecutionResult run(std::string code, Duration timeout) {
        return test::run(context, executor->execute(std::move(code), timeout));
    }
    void record_calls() {
        AuditOptions settings;
        settings.workspace = workspace.path();
        options.audit = std::make_shared<AuditLog>(audit_file, settings);
    }
    // The real program as an MCP server, once its approval channel listens there.
    std::unique_ptr<McpClient> serve(unsigned short port, const std::string& token) {
        const auto support = test::required_environment("IPYBOX_TEST_SUPPORT");
        const json::object own{{"command", "python3"}, {"args", {support + "/mcp_server.py"}}};
        const json::object config{{"mcpServers", {{"own", own}}}};
        const auto file = outside.path() / "mcp.json";
        test::write_file(file, json::serialize(config));
        const json::object env{{"IPYBOX_APPROVAL_TOKEN", token}, {"HOME", outside.path().string()}};
        const json::array arguments{"serve",
                                    "--workspace",
                                    workspace.path().string(),
                                    "--sandbox",
                                    "bubblewrap",
                                    "--approve",
                                    "ask",
                                    "--approval-channel",
                                    "127.0.0.1:" + std::to_string(port),
                                    "--python",
                                    test::kernel_python().string(),
                                    "--config",
                                    file.string(),
                                    "--kernel-init-timeout",
                                    "60"};
        const json::object params{{"command", test::required_environment("IPYBOX_TEST_PROGRAM")},
                                  {"args", arguments},
                                  {"env", env}};
        host.executor = context.get_executor();
        unconfined = plugins.make<Sandbox>("none", host, json::object{});
        auto client = std::make_unique<McpClient>(context.get_executor(),
                                                  plugins.make<McpTransport>("stdio", host, params),
                                                  McpClientOptions());
        test::run(context, client->connect(*unconfined));
        return client;
    }
    // What a cell of it prints.
    std::string cell(McpClient& client, std::string_view code) {
        json::object arguments{{"code", code}};
        const auto result = test::run(
            context, client.call_tool("execute_ipython_cell", std::move(arguments), CallOptions()));
        BOOST_TEST(!result.is_error, json::serialize(result.content));
        return std::string(result.content.at(0).at("text").as_string());
    }
    Host host;
    std::unique_ptr<Sandbox> unconfined;
    test::TemporaryDirectory outside;
    std::filesystem::path audit_file = outside.path() / "audit.jsonl";
};

std::string audit_text(const json::object& record, const char* key) {
    return std::string(detail::string_of(record, key));
}
}  // namespace

BOOST_FIXTURE_TEST_SUITE(approval_integration, ApprovalFixture)

BOOST_AUTO_TEST_CASE(every_call_is_recorded_with_its_execution_its_decision_and_its_end) {
    record_calls();
    options.session = "mine";
    options.approval = parse_json(R"({"first_match": [{"rules": [
        {"name": "no second", "when": {"arguments": {"/text": {"equals": "second"}}}, "then": {"deny": "once is enough"}}]}, "ask"]})",
                                  "test");
    start("bubblewrap");
    generate_echo();
    const std::string code =
        "from mcptools.own import echo, error\nimport ipybox_kernel\n"
        "for call in (lambda: echo.run(text='first'), lambda: echo.run(text='second'), lambda: "
        "error.run(),\n"
        "             lambda: ipybox_kernel._send('own', 'nosuch', {})):\n"
        "    try:\n        print(call())\n    except Exception as e:\n        "
        "print(type(e).__name__)";
    const auto seen = stream(code, test::accept);
    BOOST_TEST_REQUIRE(seen.result.ok(), seen.result.error);
    BOOST_TEST(seen.chunks == "first\nApprovalRejectedError\nToolRunnerError\nToolRunnerError\n");
    const auto all = audit_records();
    BOOST_TEST_REQUIRE(all.size() == 8u);
    BOOST_TEST(audit_text(all[7], "event") == "execution_end");
    BOOST_TEST(audit_text(all[7], "outcome") == "ok");
    BOOST_TEST((all[7].at("execution") == all[0].at("execution")));
    BOOST_TEST(audit_text(all[0], "event") == "execution");
    BOOST_TEST(audit_text(all[0], "code_sha256") == detail::sha256_hex(code));
    const std::vector<std::array<std::string, 5>> expected = {
        {"call", "allow", "application", "", ""},
        {"result", "", "", "", "ok"},
        {"call", "deny", "rules: rule 1 (no second)", "once is enough", ""},
        {"call", "allow", "application", "", ""},
        {"result", "", "", "", "error"},
        {"call", "deny", "tool server", "MCP server own has no tool \"nosuch\"", ""}};
    for (std::size_t i = 0; i < expected.size(); ++i) {
        const auto& record = all[i + 1];
        const char* keys[] = {"event", "verdict", "by", "reason", "outcome"};
        for (std::size_t k = 0; k < 5; ++k)
            BOOST_TEST(audit_text(record, keys[k]) == expected[i][k]);
        BOOST_TEST(audit_text(record, "session") == "mine");
        BOOST_TEST((record.at("execution") == all[0].at("execution")));
    }
}

BOOST_AUTO_TEST_CASE(edited_arguments_are_sent_recorded_and_judged_by_the_policy_again) {
    record_calls();
    // The person is asked in the middle of a policy that makes decisions of its own.
    options.approval = parse_json(R"({"all_of": [{"rules": [
        {"name": "secret", "when": {"arguments": {"/text": {"glob": "*secret*"}}}, "then": {"deny": "not this"}},
        {"then": "ask"}]}, {"rules": [{"then": "allow"}]}]})",
                                  "test");
    std::size_t asked = 0;
    json::object fresh{{"text", "edited"}};
    options.approvers.push_back([&](ToolCall) -> awaitable<Decision> {
        ++asked;
        Decision decision(Verdict::allow);
        decision.by = "page: edited";
        decision.arguments = std::make_shared<const json::object>(fresh);
        co_return decision;
    });
    start("bubblewrap");
    generate_echo();
    const std::string code = "from mcptools.own import echo\nprint(echo.run(text='as asked'))";
    BOOST_TEST(run(code, 60s).text.value_or("") == "edited");
    BOOST_TEST(asked == 1u);
    auto record = audit_records().at(1);
    BOOST_TEST(json::serialize(record.at("arguments")) == R"({"text":"as asked"})");
    BOOST_TEST(json::serialize(record.at("edited")) == R"({"text":"edited"})");
    BOOST_TEST(audit_text(record, "verdict") == "allow");
    // What the policy denies, nobody edits into being.
    fresh["text"] = "a secret";
    auto refused = run(code, 60s);
    BOOST_TEST(refused.error_name == "ApprovalRejectedError");
    BOOST_TEST(refused.error_value.find("not this") != std::string::npos, refused.error_value);
    // Nor what the tool does not take.
    fresh["text"] = 5;
    refused = run(code, 60s);
    BOOST_TEST(refused.error_value.find("do not fit its schema") != std::string::npos,
               refused.error_value);
    BOOST_TEST(asked == 3u);
    for (const auto& one : audit_records())
        if (audit_text(one, "event") == "result") BOOST_TEST(audit_text(one, "outcome") == "ok");
}

BOOST_AUTO_TEST_CASE(what_has_no_arguments_to_change_is_denied_when_they_are_changed) {
    options.approve_shell_cmds = true;
    options.approvers.push_back([](ToolCall) -> awaitable<Decision> {
        Decision decision(Verdict::allow);
        decision.arguments = std::make_shared<const json::object>();
        co_return decision;
    });
    start("bubblewrap");
    const auto result = run("!echo started", 60s);
    BOOST_TEST(!result.ok());
    BOOST_TEST(result.error_value.find("cannot be changed") != std::string::npos,
               result.error_value);
    BOOST_TEST(!result.text.has_value());
}

BOOST_AUTO_TEST_CASE(a_watcher_sees_code_output_and_calls_with_their_line) {
    struct Watcher final : SessionWatcher {
        void began(const std::string& session, const std::string& execution,
                   const std::string& code, std::function<void()> stop) override {
            seen.push_back("began " + session + " " + code.substr(0, 12));
            current = execution;
            cancel = std::move(stop);
        }
        void printed(const std::string& execution, std::string_view text, bool error) override {
            BOOST_TEST(execution == current);
            all += (error ? "!" : "") + std::string(text);
        }
        void displayed(const std::string& execution, const json::object& data) override {
            BOOST_TEST(execution == current);
            seen.push_back("displayed " + json::serialize(data.at("text/plain")));
        }
        void ended(const std::string& execution, std::string_view outcome, Duration) override {
            BOOST_TEST(execution == current);
            seen.push_back("ended " + std::string(outcome));
        }
        void decided(const ToolCall& call, const json::object* edited,
                     const Decision& decision) override {
            BOOST_TEST(!edited);
            BOOST_TEST(call.execution == current);
            seen.push_back("decided " + call.tool + " line " + std::to_string(call.line) +
                           (decision.verdict == Verdict::allow ? " yes" : " no"));
        }
        void called(const std::string&, std::string_view outcome, Duration) override {
            seen.push_back("called " + std::string(outcome));
        }
        std::vector<std::string> seen;
        std::string current, all;
        std::function<void()> cancel;
    };
    const auto watcher = std::make_shared<Watcher>();
    options.watcher = watcher;
    options.session = "mine";
    start("bubblewrap");
    generate_echo();
    execute(
        "from mcptools.own import echo\nimport sys\ndef call():\n    return "
        "echo.run(text='x')\n\nprint(call())\nprint('wrong', file=sys.stderr)\n6 * 7");
    const std::vector<std::string> expected = {"began mine from mcptool", "decided echo line 6 yes",
                                               "called ok", "displayed \"42\"", "ended ok"};
    BOOST_TEST(watcher->seen == expected, boost::test_tools::per_element());
    BOOST_TEST(watcher->all == "x\n!wrong\n");
    // It can end a cell, for as long as there is one.
    watcher->cancel();
    watcher->seen.clear();
    asio::steady_timer timer(context, 500ms);
    timer.async_wait([&](boost::system::error_code) { watcher->cancel(); });
    BOOST_TEST(
        (execute("import time\ntime.sleep(60)").status == CodeExecutionResult::Status::cancelled));
    BOOST_TEST(watcher->seen.back() == "ended cancelled");
}

BOOST_AUTO_TEST_CASE(time_in_which_somebody_is_asked_does_not_count) {
    options.approvers.push_back([](ToolCall) -> awaitable<Decision> {
        const auto later = Clock::now() + 3s;
        co_await sleep_until(later);
        co_return Decision(Verdict::allow);
    });
    start("bubblewrap");
    generate_echo();
    const std::string code = "from mcptools.own import echo\necho.run(text='x')";
    BOOST_TEST(run(code, 2s).ok());
    options.timeout_excludes_approval = false;
    test::run(context, executor->stop());
    start("bubblewrap");
    generate_echo();
    BOOST_TEST((run(code, 2s).status == CodeExecutionResult::Status::timed_out));
}

BOOST_AUTO_TEST_CASE(a_question_that_is_taken_back_is_no_fault_of_the_policy) {
    record_calls();
    options.timeout_excludes_approval = false;
    options.approvers.push_back([](ToolCall) -> awaitable<Decision> {
        co_await sleep_until(never);
        co_return Decision(Verdict::allow);
    });
    start("bubblewrap");
    generate_echo();
    const auto result = run("from mcptools.own import echo\necho.run(text='x')", 1s);
    BOOST_TEST((result.status == CodeExecutionResult::Status::timed_out));
    const auto all = audit_records();
    BOOST_TEST_REQUIRE(all.size() >= 2u);
    BOOST_TEST(audit_text(all[1], "verdict") == "deny");
    BOOST_TEST(audit_text(all[1], "by") == "nobody");
    BOOST_TEST(audit_text(all[1], "reason") == "withdrawn before anybody answered");
}

BOOST_AUTO_TEST_CASE(calls_stop_when_the_audit_log_is_full) {
    start("none");
    generate_echo();
    test::run(context, executor->stop());
    options.audit = std::make_shared<AuditLog>("/dev/full");
    start("none");
    BOOST_CHECK_EXCEPTION(execute("print('x')"), Error,
                          [](const Error& error) { return error.code() == errc::io_error; });
}

BOOST_AUTO_TEST_CASE(shell_commands_ask_with_the_expanded_command) {
    record_calls();
    options.approve_shell_cmds = true;
    start("bubblewrap");
    const auto seen = stream(
        "name, odd = 'wor' + 'ld', '{name} $name'\n"
        "!echo hello {name} $name {odd}\n"
        "lines = !echo captured {name}\nprint(lines)\n"
        "def function():\n    local = 'inner'\n    get_ipython().system('echo "
        "{local}')\nfunction()\n"
        "from ipybox_kernel import ApprovalRejectedError\n"
        "try:\n    get_ipython().system('echo refused')\nexcept ApprovalRejectedError as e:\n    "
        "print(e)\n"
        "get_ipython().run_line_magic('sx', 'echo by magic')\n"
        "get_ipython().run_cell_magic('sh', '', 'echo in a {name} script')\n"
        "get_ipython().run_cell_magic('script', 'cat -', 'text')\n"
        "import subprocess; print(subprocess.run(['echo', 'direct'], capture_output=True, "
        "text=True).stdout)",
        [](const ApprovalRequest& request) {
            BOOST_TEST(request.server_name() == "ipybox");
            const std::string command(request.tool_args().at("cmd").as_string());
            BOOST_TEST(
                (request.call().origin ==
                 (request.tool_name() == "shell" ? CallOrigin::shell : CallOrigin::shell_magic)));
            if (command == "echo refused")
                request.reject("not this one");
            else
                request.accept();
        });
    BOOST_TEST_REQUIRE(seen.result.ok(), seen.result.error);
    const std::vector<std::string> asked = {
        "ipybox.shell(cmd='echo hello world world {name} $name')",
        "ipybox.shell(cmd='echo captured world')",
        "ipybox.shell(cmd='echo inner')",
        "ipybox.shell(cmd='echo refused')",
        "ipybox.shell(cmd='echo by magic')",
        "ipybox.shell_magic(cmd='echo in a {name} script')",
        R"(ipybox.shell_magic(cmd='%%script cat -\ntext'))"};
    BOOST_TEST(seen.requests == asked, boost::test_tools::per_element());
    for (const char* printed : {"hello world world {name}", "['captured world']", "inner",
                                "rejected: not this one", "in a {name} script", "text", "direct"})
        BOOST_TEST(seen.chunks.find(printed) != std::string::npos,
                   printed << " is not in " << seen.chunks);
    BOOST_TEST(seen.chunks.find("refused\n") == std::string::npos);
    const auto all = audit_records();
    BOOST_TEST_REQUIRE(all.size() >= 3u);
    BOOST_TEST(audit_text(all[1], "origin") == "shell");
    BOOST_TEST(audit_text(all[1], "verdict") == "allow");
}

BOOST_AUTO_TEST_CASE(processes_only_by_the_shell_escapes) {
    options.require_shell_escape = true;
    BOOST_CHECK_EXCEPTION(CodeExecutor(context.get_executor(), plugins, options), Error,
                          [](const Error& error) { return error.code() == errc::bad_argument; });
    options.approve_shell_cmds = true;
    start("none");
    const auto seen = stream(
        "import os, pty, subprocess, platform\n"
        "for start in (lambda: subprocess.run(['true']), lambda: os.system('true'), lambda: "
        "os.execv('/bin/true', ['true']),\n"
        "              lambda: os.posix_spawn('/bin/true', ['true'], {}), lambda: "
        "os.spawnv(os.P_WAIT, '/bin/true', ['true']),\n"
        "              lambda: pty.spawn(['true'])):\n"
        "    try:\n        print('started', start())\n    except RuntimeError as e:\n        "
        "print('refused', isinstance(e, OSError), str(e).split('Direct ')[1].split(' calls')[0])\n"
        "platform.processor()\n"
        "!echo by escape\n"
        "get_ipython().run_cell_magic('bash', '', 'echo by magic; exit 0')",
        test::accept);
    BOOST_TEST_REQUIRE(seen.result.ok(), seen.result.error);
    BOOST_TEST(seen.requests.size() == 2u);
    std::size_t refused = 0;
    for (std::size_t at = 0; (at = seen.chunks.find("refused True", at)) != std::string::npos; ++at)
        ++refused;
    BOOST_TEST(refused == 6u, seen.chunks);
    for (const char* name : {"subprocess", "os.system()", "os.execv()", "os.posix_spawn()",
                             "os.spawnv()", "pty.spawn()"})
        BOOST_TEST(seen.chunks.find(name) != std::string::npos, name);
    BOOST_TEST(seen.chunks.find("by escape") != std::string::npos, seen.chunks);
    BOOST_TEST(seen.chunks.find("by magic") != std::string::npos, seen.chunks);
    const auto result = execute("import subprocess; subprocess.run(['true'])");
    BOOST_TEST(result.error.find("RuntimeError: Direct subprocess calls are not allowed") !=
                   std::string::npos,
               result.error);
}

BOOST_AUTO_TEST_CASE(without_the_option_nobody_is_asked_and_the_name_stays_reserved) {
    start("none");
    const auto seen = stream(
        "!echo quiet\nfrom ipybox_kernel import _send\n_send('ipybox', 'shell', {'cmd': 'ls'})",
        test::accept);
    BOOST_TEST(seen.requests.empty());
    BOOST_TEST(
        seen.result.error.find("no MCP server is registered as \"ipybox\"") != std::string::npos,
        seen.result.error);
    BOOST_CHECK_THROW(executor->register_server(
                          "ipybox", parse_json(R"({"command": "true"})", "test").as_object()),
                      Error);
}

BOOST_AUTO_TEST_CASE(serve_asks_at_its_approval_channel) {
    if (test::kernel_backend() != "fork") {
        BOOST_TEST_MESSAGE(
            "skipped: `ipybox serve` starts its own kernel, whatever the backend here");
        return;
    }
    unsigned short port = 0;
    {
        asio::ip::tcp::acceptor probe(context, {asio::ip::address_v4::loopback(), 0});
        port = probe.local_endpoint().port();
    }
    const std::string token = "the-token-of-this-test";
    const auto serving = serve(port, token);
    const std::string code =
        "from mcptools.own import echo\n"
        "for text in TEXTS:\n"
        "    try:\n        print(echo.run(text=text))\n"
        "    except Exception as error:\n        print(type(error).__name__, error)";
    const auto call = [&](const std::string& texts) {
        return cell(*serving, "TEXTS = " + texts + "\n" + code);
    };
    const std::string rejected = "ApprovalRejectedError approval request for own.echo rejected: ";
    BOOST_TEST(call("['x']") == rejected + "nobody is there to approve this call");

    ApprovalClientOptions settings;
    settings.port = port;
    settings.token = token;
    std::vector<std::string> asked;
    std::unique_ptr<ApprovalClient> approver;
    const auto answer = [&](ApprovalClient::Request request) -> awaitable<void> {
        asked.push_back(request.to_string());
        const auto text = request.tool_args().at("text").as_string();
        if (text == "yes") request.accept();
        if (text == "no") request.reject("not now");
        if (text == "leave") co_await approver->disconnect();
    };
    approver = std::make_unique<ApprovalClient>(context.get_executor(), answer, settings);
    test::run(context, approver->connect());
    BOOST_TEST(call("['yes', 'no', 'leave', 'yes']") ==
               "yes\n" + rejected + "not now\n" + rejected +
                   "the approver disconnected before it answered\n" + rejected +
                   "nobody is there to approve this call");
    BOOST_TEST(asked.size() == 3u);
    BOOST_TEST(asked.at(0) == "own.echo(text='yes')");
    // It may come back.
    test::run(context, approver->connect());
    BOOST_TEST(call("['yes']") == "yes");
    settings.token = "the-token-of-nobody";
    ApprovalClient stranger(context.get_executor(), answer, settings);
    BOOST_CHECK_EXCEPTION(test::run(context, stranger.connect()), Error,
                          [](const Error& error) { return error.code() == errc::denied; });
    test::run(context, serving->close());
}

BOOST_AUTO_TEST_CASE(approvers_take_the_place_of_events) {
    std::size_t asked = 0;
    const Approver absent = [](ToolCall) -> awaitable<Decision> { co_return Decision(); };
    const Approver person = [&asked](ToolCall) -> awaitable<Decision> {
        ++asked;
        Decision yes(Verdict::allow);
        co_return yes;
    };
    options.approvers = {absent, person};
    options.background_calls = true;
    start("none");
    generate_echo();
    const std::string code = "from mcptools.own import echo\nprint(echo.run(text='x'))";
    const auto seen = stream(code, test::accept);
    BOOST_TEST(seen.chunks == "x\n");
    BOOST_TEST(seen.requests.empty());
    BOOST_TEST(asked == 1u);
    // They need no execution, as its events do.
    execute(
        "import threading, time\nlate = []\ndef work():\n    time.sleep(0.5)\n    "
        "late.append(echo.run(text='y'))\n"
        "thread = threading.Thread(target=work)\nthread.start()");
    for (int i = 0; i < 600 && asked < 2; ++i) test::run(context, sleep_until(Clock::now() + 50ms));
    BOOST_TEST(asked == 2u);
    BOOST_TEST(text("thread.join()\nprint(late)") == "['y']");
    options.background_calls = false;
    test::run(context, executor->stop());
    options.approvers = {absent};
    start("none");
    generate_echo();
    const auto denied = stream(code, test::accept);
    BOOST_TEST(denied.result.error.find("rejected: nobody is there to approve this call") !=
                   std::string::npos,
               denied.result.error);
}

BOOST_AUTO_TEST_CASE(execute_asks_the_approvers_and_nobody_else) {
    options.approval = "ask";
    const std::string call =
        "from mcptools.own import echo\n"
        "try: print(echo.run(text='x'))\nexcept Exception as e: print(e)";
    start("bubblewrap");
    generate_echo();
    const auto run_it = [&](auto&& execution) { return test::run(context, std::move(execution)); };
    const auto denied = run_it(executor->execute(call, 60s));
    BOOST_TEST(denied.text.value_or("").find("execute_approved()") != std::string::npos,
               denied.text.value_or(""));
    BOOST_TEST(run_it(executor->execute_approved(call, 60s)).text.value_or("") == "x");

    int asked = 0;
    options.approvers = {[&asked](ToolCall) -> awaitable<Decision> {
        ++asked;
        co_return Decision(Verdict::allow);
    }};
    executor.reset();
    start("bubblewrap");
    generate_echo();
    BOOST_TEST(run_it(executor->execute(call, 60s)).text.value_or("") == "x");
    BOOST_TEST(asked == 1);

    options.approvers.clear();
    options.approval = "deny";
    executor.reset();
    start("bubblewrap");
    generate_echo();
    BOOST_TEST(run_it(executor->execute_approved(call, 60s)).text.value_or("").find("rejected") !=
               std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_kernel_that_was_never_started_has_not_died) {
    CodeExecutor fresh(context.get_executor(), plugins, options);
    BOOST_CHECK_EXCEPTION(test::run(context, fresh.execute("1")), Error, [](const Error& error) {
        return error.code() == errc::kernel_not_started &&
               error.detail().find("start()") != std::string::npos;
    });
}

BOOST_AUTO_TEST_SUITE_END()
