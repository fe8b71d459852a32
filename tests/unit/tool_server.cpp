// ToolServer and ToolRunner used alone: on TCP and on a Unix socket, with a real MCP server.
#include <algorithm>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <boost/json/parse.hpp>
#include <boost/test/unit_test.hpp>
#include <ipybox/approval/granted_rules.hpp>
#include <ipybox/approval/question_text.hpp>
#include <ipybox/tools/server_start.hpp>
#include <ipybox/tools/tool_runner.hpp>
#include <ipybox/tools/tool_server.hpp>

#include "test_support.hpp"

namespace tool_server_tests {

using namespace ipybox;
using namespace std::chrono_literals;

namespace {
struct AloneFixture {
    AloneFixture() {
        registry.add_directory(test::plugin_directory());
        // The server writes there, which root starts as another user.
        std::filesystem::permissions(directory.path(), std::filesystem::perms(0777));
    }
    // The server of tests/support; each of its starts adds a line to a file.
    json::object own() const {
        const auto program = test::required_environment("IPYBOX_TEST_SUPPORT") + "/mcp_server.py";
        json::array arguments{"-c", "echo started >> \"$0\"; exec python3 \"$1\"",
                              starts().string(), program};
        return json::object{{"command", "sh"}, {"args", std::move(arguments)}};
    }
    std::filesystem::path starts() const { return directory.path() / "starts"; }
    long times_started() const {
        const auto text = test::read_file(starts());
        return std::count(text.begin(), text.end(), '\n');
    }
    void serve() {
        server = std::make_unique<ToolServer>(context.get_executor(), registry, options);
        port = HttpUrl::parse(server->listen_tcp("localhost", 0)).port;
    }
    ToolRunner runner(std::string token, std::optional<json::object> params = {}) {
        ToolRunnerOptions settings;
        settings.port = port;
        settings.token = std::move(token);
        settings.server_params = std::move(params);
        return ToolRunner(context.get_executor(), "own", std::move(settings));
    }
    ToolOutput call(ToolRunner& runner, std::string tool, json::object arguments = {}) {
        return test::run(context, runner.run(std::move(tool), std::move(arguments)));
    }
    json::object text(std::string_view value) { return json::object{{"text", value}}; }
    template <class Work>
    void fails(Work work, errc code, std::string_view words) {
        BOOST_CHECK_EXCEPTION(test::run(context, work()), Error, [&](const Error& error) {
            BOOST_TEST_INFO(error.what());
            return error.code() == code && error.detail().find(words) != std::string::npos;
        });
    }
    // The status of the answer to a request written by hand.
    std::string raw(const std::string& request, const std::string& token) {
        asio::ip::tcp::socket socket(context);
        socket.connect({asio::ip::address_v4::loopback(), port});
        asio::write(socket,
                    asio::buffer(request + " HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " +
                                 token + "\r\nContent-Length: 2\r\n\r\n{}"));
        std::string answer(12, '\0');
        const auto read = [](asio::ip::tcp::socket& from, std::string& into) -> awaitable<void> {
            co_await asio::async_read(from, asio::buffer(into), as_result);
        };
        test::run(context, read(socket, answer));
        return answer.substr(9);
    }

    asio::io_context context;
    PluginRegistry registry;
    test::TemporaryDirectory directory;
    ToolServerOptions options;
    std::unique_ptr<ToolServer> server;
    unsigned short port = 0;
};

// A transport of the application's own, which tells by what it would start programs.
struct Starting final : McpTransport {
    awaitable<void> open(Sandbox& sandbox) override {
        const bool placed = dynamic_cast<UnconfinedServer*>(&sandbox) != nullptr;
        throw Error(errc::mcp_connection, placed ? "starts are judged" : "starts are not judged");
        co_return;
    }
    awaitable<void> send(json::object) override { co_return; }
    awaitable<json::object> receive() override { co_return json::object(); }
    void cancel(const json::value&) override {}
    awaitable<void> close() override { co_return; }
};
}  // namespace

BOOST_FIXTURE_TEST_SUITE(tool_server, AloneFixture)

BOOST_AUTO_TEST_CASE(the_original_defaults) {
    BOOST_TEST(!options.approval_required);
    BOOST_TEST((options.approval_timeout == Duration::zero()));
    BOOST_TEST((options.connect_timeout == 30s));
    const ToolRunnerOptions runner;
    BOOST_TEST(runner.host == "localhost");
    BOOST_TEST(runner.port == 8900);
    BOOST_TEST(!runner.server_params.has_value());
}

BOOST_AUTO_TEST_CASE(numbers_are_judged_shown_and_forwarded_with_their_digits) {
    std::string asked;
    json::object plain;
    options.approval_required = true;
    options.approvers.push_back([&](ToolCall call) -> awaitable<Decision> {
        asked = approval::call_text(call.server, call.tool, call.sent_arguments());
        plain = call.arguments;
        co_return Decision(Verdict::allow);
    });
    serve();
    json::array program{test::required_environment("IPYBOX_TEST_SUPPORT") + "/number_server.py"};
    server->register_server("numbers",
                            json::object{{"command", "python3"}, {"args", std::move(program)}});
    const std::string sent = R"({"n":123456789012345678901,"x":[1e2,0.1000,1.0,-0,1e999,5,0.1]})";
    const std::string body =
        R"({"server_name":"numbers","tool_name":"same","tool_args":)" + sent + "}";
    asio::ip::tcp::socket socket(context);
    socket.connect({asio::ip::address_v4::loopback(), port});
    asio::write(socket,
                asio::buffer(
                    "POST /run HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer " +
                    server->token() + "\r\nContent-Length: " + std::to_string(body.size()) +
                    "\r\n\r\n" + body));
    std::string answer;
    const auto read = [](asio::ip::tcp::socket& from, std::string& into) -> awaitable<void> {
        co_await asio::async_read(from, asio::dynamic_buffer(into), as_result);
    };
    test::run(context, read(socket, answer));
    BOOST_TEST(answer.substr(answer.find("\r\n\r\n") + 4) == "{\"result\":" + sent + "}");
    BOOST_TEST(asked ==
               "numbers.same(n=123456789012345678901, x=[1e2, 0.1000, 1.0, -0, 1e999, 5, 0.1])");
    // For whoever compares: numbers, not texts.
    BOOST_TEST(plain.at("n").is_double());
    BOOST_TEST(plain.at("x").at(0).to_number<double>() == 100.0);
}

BOOST_AUTO_TEST_CASE(progress_is_told_to_callers_that_ask_for_it) {
    serve();
    server->register_server("own", own());
    const auto answer = [&](std::string_view wish) {
        const std::string body =
            R"({"server_name":"own","tool_name":"progress","tool_args":{"steps":2000,"interval":0}})";
        asio::ip::tcp::socket socket(context);
        socket.connect({asio::ip::address_v4::loopback(), port});
        asio::write(socket, asio::buffer("POST /run HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" +
                                         std::string(wish) + "Authorization: Bearer " +
                                         server->token() + "\r\nContent-Length: " +
                                         std::to_string(body.size()) + "\r\n\r\n" + body));
        std::string all;
        const auto read = [](asio::ip::tcp::socket& from, std::string& into) -> awaitable<void> {
            co_await asio::async_read(from, asio::dynamic_buffer(into), as_result);
        };
        test::run(context, read(socket, all));
        return all;
    };
    BOOST_TEST(answer("").starts_with("HTTP/1.1 200 "));
    std::string told = answer("Ipybox-Progress: 1\r\n");
    std::string last;
    std::size_t reports = 0;
    while (told.starts_with("HTTP/1.1 102 ")) {
        const auto end = told.find("\r\n\r\n");
        last = told.substr(0, end);
        told.erase(0, end + 4);
        ++reports;
    }
    // A flood becomes few reports, of which the last is not lost.
    BOOST_TEST(reports >= 1u);
    BOOST_TEST(reports < 1000u);
    const auto report = json::parse(last.substr(last.find('{')));
    BOOST_TEST(report.at("progress").to_number<int>() == 2000);
    BOOST_TEST(report.at("message").as_string() == "step 2000");
    BOOST_TEST(told.starts_with("HTTP/1.1 200 "));
    BOOST_TEST(told.ends_with("{\"result\":\"done\"}"));
}

BOOST_AUTO_TEST_CASE(tools_answer_with_text_structure_media_and_errors) {
    serve();
    auto own_runner = runner(server->control_token(), own());
    BOOST_TEST(call(own_runner, "echo", text("hello")).result.as_string() == "hello");
    const json::object numbers{{"a", 1}, {"b", 2.5}};
    BOOST_TEST(call(own_runner, "add", numbers).result.at("sum").to_number<double>() == 3.5);
    const auto image = call(own_runner, "image");
    BOOST_TEST(image.result.is_null());
    BOOST_TEST(image.content.at(1).at("mimeType").as_string() == "image/png");
    fails([&] { return own_runner.run("error", {}); }, errc::mcp_error, "it went wrong");
    fails([&] { return own_runner.run("nosuch", {}); }, errc::mcp_error, "has no tool");
    fails([&] { return own_runner.run("echo", {}); }, errc::mcp_error, "do not fit its schema");
    // Registered once, it is there for others too; the same parameters leave it running.
    auto other = runner(server->token());
    BOOST_TEST(call(other, "echo", text("x")).result.as_string() == "x");
    auto again = runner(server->control_token(), own());
    BOOST_TEST(call(again, "echo", text("y")).result.as_string() == "y");
    BOOST_TEST(times_started() == 1);
    test::run(context, again.reset());
    BOOST_TEST(call(other, "echo", text("z")).result.as_string() == "z");
    BOOST_TEST(times_started() == 2);
}

BOOST_AUTO_TEST_CASE(each_token_opens_what_it_is_for) {
    options.token = "a-token-for-calls";
    serve();
    BOOST_TEST(server->token() == "a-token-for-calls");
    BOOST_TEST(server->control_token().size() == 64u);
    auto stranger = runner("a-token-for-callz");
    fails([&] { return stranger.run("echo", {}); }, errc::denied, "token");
    auto caller = runner(server->token(), own());
    fails([&] { return caller.run("echo", {}); }, errc::denied, "control token");
    fails([&] { return caller.reset(); }, errc::denied, "control token");
    auto unregistered = runner(server->token());
    fails([&] { return unregistered.run("echo", {}); }, errc::mcp_error, "registered: none");
    auto wrong = runner(server->control_token(), json::object{{"comand", "x"}});
    fails([&] { return wrong.run("echo", {}); }, errc::bad_config, "command");
    BOOST_TEST(raw("GET /status", server->token()) == "200");
    BOOST_TEST(raw("GET /status", "nobody's") == "401");
    BOOST_TEST(raw("PUT /reset", server->token()) == "403");
    BOOST_TEST(raw("GET /approval", server->control_token()) == "404");
    // On the socket that a kernel gets there are calls only, whatever is presented.
    const auto path = directory.path() / "socket";
    server->listen(path, ::geteuid());
    server->register_server("own", own());
    ToolRunnerOptions local;
    local.unix_socket = path.string();
    local.token = server->token();
    ToolRunner inside(context.get_executor(), "own", local);
    BOOST_TEST(call(inside, "echo", text("here")).result.as_string() == "here");
    fails([&] { return inside.reset(); }, errc::mcp_error, "only POST /run");
    local.token = server->control_token();
    ToolRunner controls(context.get_executor(), "own", local);
    fails([&] { return controls.reset(); }, errc::denied, "token");
}

BOOST_AUTO_TEST_CASE(the_application_answers_servers_and_hears_their_log) {
    std::vector<std::string> heard;
    options.on_connect = [&](const std::string& name, McpClientOptions& client) {
        client.name = "not this";
        client.capabilities["elicitation"] = json::object();
        client.on_request = [name](std::string, json::object) -> awaitable<json::object> {
            json::object content{{"name", name}};
            co_return json::object{{"action", "accept"}, {"content", std::move(content)}};
        };
        client.on_log = [&](const McpLogMessage& message) {
            heard.push_back(message.level + " " + std::string(message.data.as_string()));
        };
    };
    serve();
    auto own_runner = runner(server->control_token(), own());
    const json::object question{{"method", "elicitation/create"}};
    const auto asked = call(own_runner, "ask", question);
    BOOST_TEST(asked.result.as_string().find("accept") != std::string::npos);
    BOOST_TEST(asked.result.as_string().find("own") != std::string::npos);
    const json::object line{{"level", "warning"}, {"text", "low on ink"}};
    call(own_runner, "log", line);
    BOOST_TEST((heard == std::vector<std::string>{"warning low on ink"}));
    fails([&] { return own_runner.run("error", {{"protocol", true}}); }, errc::mcp_error,
          "\"own\"");
}

BOOST_AUTO_TEST_CASE(a_yes_holds_for_this_server_and_its_tools_as_they_are) {
    ::setenv("IPYBOX_TEST_TOKEN", "sk-hunter2-hunter2", 1);
    GrantedRules granted{RememberedRules(directory.path() / "rules" / "always.json")};
    std::vector<ToolCall> asked;
    std::vector<std::string> changes;
    json::object (*scope)(const ToolCall&) = rule_allowing;
    options.approval_required = true;
    options.approvers.push_back([&](ToolCall call) -> awaitable<Decision> {
        auto before = granted.find(call);
        if (before) co_return std::move(*before);
        asked.push_back(call);
        changes.push_back(granted.changes(call));
        if (call.tool != "change_tools")
            granted.grant(call, scope(call), {GrantLifetime::Kind::always});
        co_return Decision(Verdict::allow);
    });
    serve();
    auto params = own();
    params["args"].as_array().push_back("--token");
    params["args"].as_array().push_back("${IPYBOX_TEST_TOKEN}");
    params["env"] = json::object{{"API_KEY", "${IPYBOX_TEST_TOKEN}"}, {"OTHER", "literal-value"}};
    server->register_server("own", params);
    auto runner_of_own = runner(server->token());
    const auto echo = [&] { call(runner_of_own, "echo", text("x")); };
    echo();
    echo();
    BOOST_TEST_REQUIRE(asked.size() == 1u);
    const auto& first = asked.front();
    BOOST_TEST(first.server_identity.starts_with("sh -c "), first.server_identity);
    BOOST_TEST(first.server_identity.ends_with("--token ${IPYBOX_TEST_TOKEN}; env: API_KEY OTHER"),
               first.server_identity);
    BOOST_TEST(first.server_identity.find("hunter2") == std::string::npos);
    BOOST_TEST(first.description == "Returns its text.");
    BOOST_TEST(first.definition_hash == approval::definition_hash(*first.input_schema,
                                                                  first.description,
                                                                  first.annotations));
    BOOST_TEST_REQUIRE(static_cast<bool>(first.server_tools));
    BOOST_TEST(first.server_tools->size() > 5u);
    // The server is the same after a restart, and the text of a tool is another.
    test::run(context, server->reset());
    echo();
    BOOST_TEST(asked.size() == 1u);
    call(runner_of_own, "change_tools", json::object{{"rewords", "echo"}});
    echo();
    BOOST_TEST_REQUIRE(asked.size() == 3u);
    BOOST_TEST(changes[2] == "the tool changed since you allowed it: description");
    echo();
    BOOST_TEST(asked.size() == 3u);
    // All of the server's tools: a new one asks.
    scope = rule_allowing_server;
    call(runner_of_own, "add", json::object{{"a", 1}, {"b", 2}});
    BOOST_TEST(asked.size() == 4u);
    call(runner_of_own, "structured", json::object{{"value", 1}});
    BOOST_TEST(asked.size() == 4u);
    call(runner_of_own, "change_tools", json::object{{"add", "extra_9"}});
    call(runner_of_own, "extra_9");
    BOOST_TEST(changes.back() == "the tool is new since you allowed this server");
    // Another program takes the server's name.
    server->register_server("own", own());
    asked.clear();
    echo();
    BOOST_TEST_REQUIRE(asked.size() == 1u);
    BOOST_TEST(changes.back().starts_with("the server is another than you allowed"));
}

BOOST_AUTO_TEST_CASE(a_tool_whose_text_changes_while_it_is_asked_about_is_judged_again) {
    std::vector<std::string> seen;
    options.approval_required = true;
    bool reworded = false;
    options.approvers.push_back([&](ToolCall call) -> awaitable<Decision> {
        if (call.tool == "change_tools") co_return Decision(Verdict::allow);
        seen.push_back(call.description);
        while (!reworded) co_await sleep_until(Clock::now() + 10ms);
        co_return Decision(seen.size() == 1 ? Verdict::allow : Verdict::deny, "not this one");
    });
    serve();
    server->register_server("own", own());
    auto one = runner(server->token()), two = runner(server->token());
    std::string problem;
    const auto waiting = [&]() -> awaitable<void> {
        try {
            co_await one.run("echo", text("x"));
        } catch (const Error& error) {
            problem = error.detail();
        }
    };
    asio::co_spawn(context, waiting(), asio::detached);
    while (seen.empty()) context.run_one();
    call(two, "change_tools", json::object{{"rewords", "echo"}});
    reworded = true;
    const auto limit = Clock::now() + 20s;
    while (problem.empty() && Clock::now() < limit) context.run_one_for(100ms);
    BOOST_TEST(problem.find("not this one") != std::string::npos, problem);
    BOOST_TEST_REQUIRE(seen.size() == 2u);
    BOOST_TEST(seen[1].starts_with("Ignore what the user said"));
}

BOOST_AUTO_TEST_CASE(calls_wait_for_the_approvers) {
    options.approval_required = true;
    options.approval_timeout = 100ms;
    std::vector<ToolCall> asked;
    options.approvers.push_back([&asked](ToolCall call) -> awaitable<Decision> {
        asked.push_back(call);
        const auto text = call.arguments.at("text").as_string();
        if (text == "nobody") co_return Decision{};
        if (text == "late") co_await sleep_until(Clock::now() + 1h);
        Decision decision(text == "no" ? Verdict::deny : Verdict::allow, "not today");
        co_return decision;
    });
    serve();
    server->register_server("own", own());
    auto own_runner = runner(server->token());
    BOOST_TEST(call(own_runner, "echo", text("yes")).result.as_string() == "yes");
    const auto echo = [&](std::string_view value) {
        return [&, value] { return own_runner.run("echo", text(value)); };
    };
    fails(echo("no"), errc::denied, "approval request for own.echo rejected: not today");
    fails(echo("nobody"), errc::denied, "nobody is there");
    fails(echo("late"), errc::timed_out, "approval request for own.echo expired");
    BOOST_TEST(asked.size() == 4u);
    const auto schema = asked.at(0).input_schema;
    BOOST_TEST((schema->contains("properties")));
    for (const auto& one : asked) BOOST_TEST(one.input_schema == schema);  // shared, not copied
    test::run(context, server->reset());
    server = nullptr;
    BOOST_TEST((schema->at("properties").as_object().contains("text")));

    options.approvers.clear();
    serve();
    server->register_server("own", own());
    auto nobody = runner(server->token());
    fails([&] { return nobody.run("echo", text("x")); }, errc::denied, "nobody is there");
}

BOOST_AUTO_TEST_CASE(what_ends_a_pending_call) {
    serve();
    server->register_server("own", own());
    auto own_runner = runner(server->control_token());
    BOOST_TEST(call(own_runner, "echo", text("x")).result.as_string() == "x");
    std::optional<boost::system::error_code> ended;
    const auto wait_for_end = [&] {
        context.restart();
        while (!ended && context.run_one_for(30s) > 0) {
        }
        BOOST_TEST_REQUIRE(ended.has_value());
    };
    const auto begin = [&](ToolRunner& with) {
        ended.reset();
        json::object minute{{"seconds", 60}};
        asio::co_spawn(context, with.run("slow", std::move(minute)),
                       [&](std::exception_ptr error, ToolOutput) {
                           ended.emplace();
                           try {
                               if (error) std::rethrow_exception(error);
                           } catch (const Error& failure) {
                               ended = failure.code();
                           }
                       });
    };
    begin(own_runner);
    auto other = runner(server->control_token());
    test::run(context, other.reset());
    wait_for_end();
    BOOST_TEST((*ended == errc::cancelled));

    ToolRunnerOptions hasty;
    hasty.port = port;
    hasty.token = server->token();
    hasty.timeout = 100ms;
    ToolRunner impatient(context.get_executor(), "own", hasty);
    begin(impatient);
    wait_for_end();
    BOOST_TEST((*ended == errc::timed_out));

    begin(own_runner);
    asio::steady_timer pause(context, 100ms);
    test::run(context, pause.async_wait(asio::use_awaitable));
    server.reset();
    wait_for_end();
    BOOST_TEST((*ended == errc::io_error));
    fails([&] { return own_runner.run("echo", text("x")); }, errc::io_error, "the tool server");
}

BOOST_AUTO_TEST_CASE(questions_about_tools_start_no_server_and_follow_what_is_registered) {
    options.approval_required = true;
    options.approvers.push_back(
        [](ToolCall) -> awaitable<Decision> { co_return Decision(Verdict::deny, "never"); });
    options.workspace = directory.path();
    serve();
    ToolRunnerOptions settings;
    settings.port = port;
    settings.token = server->token();
    ToolRunner asking(context.get_executor(), "ipybox", std::move(settings));
    const auto ask = [&](std::string question, json::object arguments) {
        return std::string(
            call(asking, std::move(question), std::move(arguments)).result.as_string());
    };
    const json::object add{{"query", "add numbers"}}, described{{"name", "own.add"}};
    BOOST_TEST(ask("search_tools", add).find("No MCP server is registered.") != std::string::npos);
    server->register_server("own", own());
    BOOST_TEST(ask("search_tools", add).find("not started yet: own]") != std::string::npos);
    fails([&] { return asking.run("describe_tool", described); }, errc::mcp_error, "no tool");
    BOOST_TEST(!std::filesystem::exists(starts()));
    test::run(context, server->list_tools("own"));
    BOOST_TEST(ask("search_tools", add).starts_with("own.add(a, b) – Adds two numbers.\n"));
    BOOST_TEST(ask("describe_tool", described) == server->describe_tool("mcptools.own.add"));
    BOOST_TEST(ask("list_stubs", json::object{{"server", "own"}}) == server->list_stubs("own"));
    std::filesystem::create_directories(directory.path() / "gentools/reports/longest");
    test::write_file(directory.path() / "gentools/reports/longest/api.py",
                     "\"\"\"Finds the longest report.\"\"\"\n");
    // What it had is not there any more once it was replaced.
    server->register_server("own", json::object{{"command", "false"}});
    fails([&] { return asking.run("describe_tool", described); }, errc::mcp_error, "no tool");
    BOOST_CHECK_EXCEPTION(server->register_server("ipybox", own()), Error, [](const Error& error) {
        return error.detail().find("choose another") != std::string::npos;
    });
    // Code that was saved since then is found.
    BOOST_TEST(ask("search_tools", json::object{{"query", "longest report"}})
                   .starts_with("gentools.reports.longest – Finds the longest report.\n"));
    BOOST_TEST(times_started() == 1);
}

BOOST_AUTO_TEST_CASE(what_a_transport_of_ones_own_starts_is_judged_too) {
    PluginRegistry::Callable<McpTransport> make = [](Host&, const json::object& config) {
        BOOST_TEST(config.at("program") == "/bin/sh");
        return std::make_unique<Starting>();
    };
    registry.add<McpTransport>("starting", std::move(make));
    serve();
    server->register_server("own", json::object{{"type", "starting"}, {"program", "/bin/sh"}});
    fails([&] { return server->list_tools("own"); }, errc::mcp_connection, "starts are judged");
}

BOOST_AUTO_TEST_CASE(it_listens_at_this_machine_only) {
    serve();
    for (const auto* host : {"0.0.0.0", "::", "example.com", ""})
        BOOST_CHECK_EXCEPTION(server->listen_tcp(host, 0), Error, [](const Error& error) {
            return error.code() == errc::bad_argument;
        });
    const auto busy = port;
    auto first = std::move(server);
    server = std::make_unique<ToolServer>(context.get_executor(), registry);
    BOOST_CHECK_EXCEPTION(server->listen_tcp("localhost", busy), Error,
                          [](const Error& error) { return error.code() == errc::io_error; });
    BOOST_TEST(server->listen_tcp("127.0.0.1", 0).starts_with("http://127.0.0.1:"));
    options.token = "short";
    BOOST_CHECK_THROW(ToolServer(context.get_executor(), registry, options), Error);
    options.token = options.control_token = "one-token-for-both";
    BOOST_CHECK_THROW(ToolServer(context.get_executor(), registry, options), Error);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tool_server_tests
