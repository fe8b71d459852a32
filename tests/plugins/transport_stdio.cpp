// The stdio transport with real servers, and with one that misbehaves on demand.
#include <limits.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/test/unit_test.hpp>
#include <fstream>
#include <iostream>
#include <ipybox/mcp/client.hpp>
#include <ipybox/registry.hpp>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "test_support.hpp"

namespace plugin_transport_stdio_tests {

using namespace ipybox;
using namespace std::chrono_literals;

namespace {

using Arguments = std::vector<std::string>;

struct Fixture {
    Fixture() {
        host.executor = context.get_executor();
        host.logger.level = LogLevel::debug;
        host.logger.write = [this](LogLevel, std::string_view line) { log.emplace_back(line); };
        registry.load(test::plugin_directory() / "sandbox" / "none.so");
        registry.load(test::plugin_directory() / "transport" / "stdio.so");
        sandbox = registry.make<Sandbox>("none", host, {});
    }
    ~Fixture() {
        if (client) test::run(context, client->close());
        client.reset();
        context.restart();
        context.poll();
    }

    std::unique_ptr<McpTransport> transport(const json::object& config) {
        return registry.make<McpTransport>("stdio", host, config);
    }
    static json::object params(std::string command, const Arguments& arguments) {
        json::object config;
        config["command"] = std::move(command);
        auto& list = config["args"].emplace_array();
        for (const auto& argument : arguments) list.emplace_back(argument);
        return config;
    }
    // The configurable server of tests/support.
    json::object server(Arguments flags = {}) {
        const std::filesystem::path support = test::required_environment("IPYBOX_TEST_SUPPORT");
        flags.insert(flags.begin(), (support / "mcp_server.py").string());
        flags.insert(flags.end(), {"--pid-file", (directory.path() / "pid").string()});
        return params("python3", flags);
    }
    static json::object node_server(const std::string& name, const Arguments& arguments) {
        Arguments all = arguments;
        all.insert(
            all.begin(),
            (test::node_servers() / "@modelcontextprotocol" / name / "dist" / "index.js").string());
        return params("node", all);
    }
    void connect(const json::object& config, McpClientOptions options = McpClientOptions()) {
        options.name = "srv";
        client = std::make_unique<McpClient>(host.executor, transport(config), std::move(options));
        test::run(context, client->connect(*sandbox));
    }
    CallResult call(std::string tool, std::string_view arguments,
                    CallOptions limits = CallOptions()) {
        auto object = json::parse(arguments).as_object();
        return test::run(context,
                         client->call_tool(std::move(tool), std::move(object), std::move(limits)));
    }
    static std::string text(const CallResult& result) {
        return std::string(result.content.at(0).at("text").as_string());
    }
    template <class Work>
    static Error failure(Work work) {
        try {
            work();
        } catch (const Error& error) {
            return error;
        }
        throw std::runtime_error("nothing was thrown");
    }
    pid_t pid() const { return std::stoi(test::read_file(directory.path() / "pid")); }
    bool logged(std::string_view part) const {
        for (const auto& line : log)
            if (line.find(part) != line.npos) return true;
        return false;
    }

    test::TemporaryDirectory directory;
    asio::io_context context;
    Host host;
    std::vector<std::string> log;
    PluginRegistry registry;
    std::unique_ptr<Sandbox> sandbox;
    std::unique_ptr<McpClient> client;
};

bool contains(const std::string& text, std::string_view part) {
    return text.find(part) != text.npos;
}

bool alive(pid_t pid) { return ::kill(pid, 0) == 0; }

std::size_t open_files() {
    std::size_t count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
        ++count;
    return count;
}

// How often this process has called read() and write(); not where the kernel does not count.
std::optional<std::pair<long, long>> reads_and_writes() {
    std::ifstream file("/proc/self/io");
    std::map<std::string, long> counts;
    std::string name;
    for (long count = 0; file >> name >> count;) counts[name] = count;
    if (!counts.contains("syscr:") || !counts.contains("syscw:")) return std::nullopt;
    return std::pair(counts["syscr:"], counts["syscw:"]);
}

}  // namespace

BOOST_FIXTURE_TEST_SUITE(transport_stdio, Fixture)

BOOST_AUTO_TEST_CASE(the_filesystem_server_reads_a_file) {
    test::write_file(directory.path() / "hello.txt", "hello from a file");
    connect(node_server("server-filesystem", {directory.path().string()}));
    BOOST_TEST(!client->server_info().empty());
    const auto tools = test::run(context, client->list_tools());
    BOOST_TEST(tools.size() >= 10u);
    const auto path =
        json::serialize(json::value(json::string((directory.path() / "hello.txt").string())));
    BOOST_TEST(text(call("read_text_file", "{\"path\":" + path + "}")) == "hello from a file");
    BOOST_TEST(call("read_text_file", R"({"path":"/etc/passwd"})").is_error);
}

BOOST_AUTO_TEST_CASE(the_everything_server_returns_text_image_structure_and_progress) {
    connect(node_server("server-everything", {}));
    BOOST_TEST(contains(text(call("echo", R"({"message":"hi"})")), "hi"));
    bool image = false;
    for (const auto& block : call("get-tiny-image", "{}").content)
        image = image || (block.at("type").as_string() == "image" &&
                          block.at("mimeType").as_string() == "image/png" &&
                          !block.at("data").as_string().empty());
    BOOST_TEST(image);
    BOOST_TEST(call("get-structured-content", R"({"location":"New York"})")
                   .structured_content.has_value());
    int reports = 0;
    CallOptions limits;
    limits.on_progress = [&](const CallProgress&) { ++reports; };
    call("trigger-long-running-operation", R"({"duration":1,"steps":4})", limits);
    BOOST_TEST(reports >= 3);
}

BOOST_AUTO_TEST_CASE(both_eras_and_all_kinds_of_results) {
    for (const char* era : {"legacy", "modern", "both"}) {
        Fixture each;
        each.connect(each.server({"--era", era}));
        BOOST_TEST((each.client->era() ==
                    (std::string(era) == "legacy" ? McpEra::legacy : McpEra::modern)));
        BOOST_TEST(each.client->instructions() == "Use me.");
        BOOST_TEST(
            each.call("add", R"({"a":2,"b":3})").structured_content->at("sum").to_number<int>() ==
            5);
        BOOST_TEST(each.call("error", "{}").is_error);
        BOOST_TEST((failure([&] { each.call("error", R"({"protocol":true})"); }).code() ==
                    errc::mcp_error));
        BOOST_TEST(
            each.call("structured", R"({"value":[null,{"x":[]}]})").meta.at("source").as_string() ==
            "test");
        BOOST_TEST(each.call("image", "{}").content.at(1).at("mimeType").as_string() ==
                   "image/png");
    }
}

BOOST_AUTO_TEST_CASE(pages_of_tools) {
    connect(server({"--page", "5", "--tools", "8"}));
    const auto tools = test::run(context, client->list_tools());
    BOOST_TEST(tools.size() == 23u);
    BOOST_TEST(tools.at(22).at("name").as_string() == "extra_7");
}

BOOST_AUTO_TEST_CASE(cursors_that_lead_nowhere) {
    for (const char* cursor : {"stays", "endless"}) {
        Fixture each;
        each.connect(each.server({"--page", "5", "--cursor", cursor}));
        BOOST_TEST((failure([&] { test::run(each.context, each.client->list_tools()); }).code() ==
                    errc::mcp_protocol));
    }
}

BOOST_AUTO_TEST_CASE(servers_that_dislike_the_question) {
    for (const char* flag : {"--exit-on-discover", "--silent-on-discover"}) {
        Fixture each;
        McpClientOptions options;
        options.discover_timeout = 1s;
        each.connect(each.server({flag}), std::move(options));
        BOOST_TEST((each.client->era() == McpEra::legacy));
        BOOST_TEST(text(each.call("echo", R"({"text":"a"})")) == "a");
    }
}

BOOST_AUTO_TEST_CASE(requests_of_the_server_and_its_notifications) {
    int changes = 0;
    McpClientOptions options;
    options.on_tools_changed = [&] { ++changes; };
    options.logger = host.logger;
    connect(server(), std::move(options));
    BOOST_TEST(text(call("ask", R"({"method":"ping"})")) == R"({"result": {}})");
    BOOST_TEST(text(call("ask", R"({"method":"roots/list"})")) == R"({"result": {"roots": []}})");
    BOOST_TEST(contains(text(call("ask", R"({"method":"sampling/createMessage"})")), "declined"));
    call("log", R"({"level":"error","text":"watch out"})");
    call("change_tools", "{}");
    context.restart();
    while (changes == 0 && context.run_one_for(10s) > 0) {
    }
    BOOST_TEST(changes == 1);
    BOOST_TEST(logged("watch out"));
}

BOOST_AUTO_TEST_CASE(many_calls_at_once_are_not_mixed_up) {
    connect(server());
    int right = 0, finished = 0;
    for (int number = 0; number < 500; ++number) {
        json::object arguments;
        arguments["text"] =
            std::to_string(number) + std::string(static_cast<std::size_t>(number) * 40, 'x');
        const auto expected = std::string(arguments["text"].as_string());
        asio::co_spawn(context, client->call_tool("echo", std::move(arguments), CallOptions()),
                       [&, expected](std::exception_ptr error, CallResult result) {
                           ++finished;
                           right += !error && text(result) == expected;
                       });
    }
    call("echo", R"({"text":"last"})");
    context.restart();
    while (finished < 500 && context.run_one_for(10s) > 0) {
    }
    BOOST_TEST(right == 500);
}

BOOST_AUTO_TEST_CASE(messages_of_ten_megabytes_both_ways) {
    connect(server());
    BOOST_TEST(text(call("big", R"({"size":10000000})")).size() == 10'000'000u);
    const std::string large(10'000'000, 'y');
    BOOST_TEST((text(call("echo", "{\"text\":\"" + large + "\"}")) == large));
}

BOOST_AUTO_TEST_CASE(requests_about_as_long_as_a_pipe_takes_at_once_arrive_whole) {
    connect(server());
    for (std::size_t size = PIPE_BUF - 160; size < PIPE_BUF + 8; ++size) {
        const std::string given(size, 'z');
        BOOST_REQUIRE((text(call("echo", "{\"text\":\"" + given + "\"}")) == given));
    }
}

// What keeps a round trip near that of bare pipes (docs/performance.md).
BOOST_AUTO_TEST_CASE(a_call_is_one_write_and_at_most_two_reads) {
    constexpr long calls = 100;
    connect(server());
    call("echo", R"({"text":"warm"})");
    const auto before = reads_and_writes();
    if (!before) {
        std::cerr << "skipped: this kernel does not count reads and writes (/proc/self/io)\n";
        return;
    }
    for (long i = 0; i < calls; ++i) call("echo", R"({"text":"x"})");
    const auto after = reads_and_writes();
    BOOST_TEST(after->second - before->second == calls);
    // Reading the counts takes some, too.
    BOOST_TEST(after->first - before->first <= 2 * calls + 20);
}

BOOST_AUTO_TEST_CASE(a_message_beyond_the_limit_is_one_clear_error) {
    auto config = server();
    config["max_message"] = 1'000'000;
    connect(config);
    BOOST_TEST(text(call("big", R"({"size":900000})")).size() == 900'000u);
    const auto error = failure([&] { call("big", R"({"size":1000000})"); });
    BOOST_TEST((error.code() == errc::mcp_error));
    BOOST_TEST(contains(error.detail(),
                        "the answer is longer than the limit of 1000000 bytes (max_message)"));
    BOOST_TEST(text(call("echo", R"({"text":"goes on"})")) == "goes on");
}

BOOST_AUTO_TEST_CASE(a_server_that_is_too_slow_has_its_last_words_told) {
    auto config = params("sh", {"-c", "echo \"installing with $KEY\" >&2; exec sleep 100"});
    config["env"] = {{"KEY", "s3cret-of-the-tests"}};
    McpClientOptions options;
    options.connect_timeout = 2s;
    const auto error = failure([&] { connect(config, std::move(options)); });
    BOOST_TEST((error.code() == errc::timed_out));
    BOOST_TEST(contains(error.detail(),
                        "(connect timeout); its standard error ends in:\ninstalling with "));
    BOOST_TEST(!contains(error.detail(), "s3cret"));
}

BOOST_AUTO_TEST_CASE(garbage_lines_are_skipped_and_logged_within_bounds) {
    connect(server({"--garbage", "40"}));
    BOOST_TEST(text(call("echo", R"({"text":"clear"})")) == "clear");
    BOOST_TEST(logged("printed a line that is no message: [31mnoise 0[0m {not json}"));
    BOOST_TEST(log.size() < 30u);
}

BOOST_AUTO_TEST_CASE(a_flood_on_standard_error_blocks_nothing) {
    connect(server({"--stderr", "3000000"}));
    BOOST_TEST(text(call("echo", R"({"text":"through"})")) == "through");
}

BOOST_AUTO_TEST_CASE(death_in_a_call_fails_every_call_with_exit_code_and_last_words) {
    connect(server());
    std::vector<std::string> errors;
    for (int number = 0; number < 3; ++number) {
        json::object arguments;
        arguments["seconds"] = 60;
        asio::co_spawn(context, client->call_tool("slow", std::move(arguments), CallOptions()),
                       [&](std::exception_ptr error, CallResult) {
                           try {
                               if (error) std::rethrow_exception(error);
                           } catch (const Error& thrown) {
                               errors.push_back(thrown.detail());
                           }
                       });
    }
    const auto error = failure([&] { call("die", R"({"code":41,"message":"out of cheese"})"); });
    BOOST_TEST((error.code() == errc::mcp_connection));
    for (const char* part : {"\"srv\"", "python3", "exit code 41", "out of cheese"})
        BOOST_TEST(contains(error.detail(), part), part);
    context.restart();
    while (errors.size() < 3 && context.run_one_for(10s) > 0) {
    }
    BOOST_REQUIRE_EQUAL(errors.size(), 3u);
    for (const auto& other : errors) BOOST_TEST(other == error.detail());
    BOOST_TEST((failure([&] { call("echo", R"({"text":"a"})"); }).detail() == error.detail()));
}

BOOST_AUTO_TEST_CASE(death_by_signal_is_named) {
    connect(server());
    const auto error = failure([&] { call("die", R"({"signal":9})"); });
    BOOST_TEST(contains(error.detail(), "signal 9 (SIGKILL)"));
}

BOOST_AUTO_TEST_CASE(a_server_that_fails_at_start) {
    const auto error = failure([&] { connect(server({"--exit", "7"})); });
    BOOST_TEST((error.code() == errc::mcp_connection));
    for (const char* part : {"\"srv\"", "python3", "exit code 7", "cannot start: the test says so"})
        BOOST_TEST(contains(error.detail(), part), part);
}

BOOST_AUTO_TEST_CASE(a_server_that_is_too_slow) {
    McpClientOptions options;
    options.connect_timeout = 300ms;
    const auto error =
        failure([&] { connect(server({"--slow-start", "60"}), std::move(options)); });
    BOOST_TEST((error.code() == errc::timed_out));
}

BOOST_AUTO_TEST_CASE(a_command_that_does_not_exist) {
    const auto error = failure([&] { connect(params("no-such-command-anywhere", {})); });
    BOOST_TEST((error.code() == errc::missing_dependency));
    BOOST_TEST(contains(error.detail(), "no-such-command-anywhere"));
    const auto path = failure([&] { connect(params("./no/such/file", {})); });
    BOOST_TEST((path.code() == errc::missing_dependency));
}

BOOST_AUTO_TEST_CASE(a_command_that_is_no_server) {
    const auto error =
        failure([&] { connect(params("sh", {"-c", "echo hello; read line; exit 0"})); });
    BOOST_TEST((error.code() == errc::mcp_connection));
    BOOST_TEST(contains(error.detail(), "exit code 0 before it answered"));
}

BOOST_AUTO_TEST_CASE(a_grandchild_that_keeps_the_pipe_does_not_hide_the_end) {
    const auto error = failure([&] { connect(params("sh", {"-c", "setsid sleep 20 & exit 5"})); });
    BOOST_TEST(contains(error.detail(), "exit code 5"));
}

BOOST_AUTO_TEST_CASE(a_server_that_closes_its_output_is_gone) {
    const auto error = failure([&] { connect(params("sh", {"-c", "exec >&-; sleep 60"})); });
    BOOST_TEST((error.code() == errc::mcp_connection));
    BOOST_TEST(contains(error.detail(), "closed its standard output"));
}

BOOST_AUTO_TEST_CASE(timeouts_and_cancellation_reach_the_server) {
    connect(server());
    CallOptions limits;
    limits.idle_timeout = 300ms;
    const auto error = failure([&] { call("slow", R"({"seconds":60})", limits); });
    BOOST_TEST((error.code() == errc::timed_out));
    asio::cancellation_signal signal;
    std::exception_ptr cancelled;
    json::object arguments;
    arguments["seconds"] = 60;
    asio::co_spawn(context, client->call_tool("slow", std::move(arguments), CallOptions()),
                   asio::bind_cancellation_slot(
                       signal.slot(), [&](std::exception_ptr e, CallResult) { cancelled = e; }));
    call("echo", R"({"text":"between"})");
    signal.emit(asio::cancellation_type::terminal);
    BOOST_TEST(text(call("echo", R"({"text":"after"})")) == "after");
    BOOST_TEST((cancelled != nullptr));
}

BOOST_AUTO_TEST_CASE(a_server_that_does_not_read_blocks_nobody) {
    connect(server());
    ::kill(pid(), SIGSTOP);
    const std::string large(1 << 20, 'x');
    CallOptions limits;
    limits.idle_timeout = 300ms;
    BOOST_TEST((failure([&] { call("echo", "{\"text\":\"" + large + "\"}", limits); }).code() ==
                errc::timed_out));
    ::kill(pid(), SIGCONT);
    // The interrupted message arrived whole: the stream still works.
    BOOST_TEST(text(call("echo", R"({"text":"again"})")) == "again");
}

BOOST_AUTO_TEST_CASE(the_environment_is_the_safe_part_and_what_is_configured) {
    ::setenv("IPYBOX_TEST_UNRELATED_SECRET", "do not pass on", 1);
    auto config = server();
    config["env"].emplace_object()["API_TOKEN"] = "t0p-s3cret-value";
    connect(config);
    const auto names = "\n" + text(call("environment", "{}")) + "\n";
    ::unsetenv("IPYBOX_TEST_UNRELATED_SECRET");
    BOOST_TEST(contains(names, "\nPATH\n"));
    BOOST_TEST(contains(names, "\nAPI_TOKEN\n"));
    BOOST_TEST(!contains(names, "UNRELATED_SECRET"));
}

BOOST_AUTO_TEST_CASE(configured_secrets_appear_in_no_error_and_no_log) {
    auto config = params("sh", {"-c", "echo out $API_TOKEN; echo err $API_TOKEN >&2; exit 1"});
    config["env"].emplace_object()["API_TOKEN"] = "t0p-s3cret-value";
    McpClientOptions options;
    options.logger = host.logger;
    const auto error = failure([&] { connect(config, std::move(options)); });
    BOOST_TEST(contains(error.detail(), "err [hidden]"));
    BOOST_TEST(logged("out [hidden]"));
    BOOST_TEST(!contains(error.what(), "t0p"));
    BOOST_TEST(!logged("t0p"));
}

BOOST_AUTO_TEST_CASE(the_working_directory_is_the_configured_one) {
    const auto script = directory.path() / "server.sh";
    test::write_file(script, "#!/bin/sh\npwd >&2\nexit 1\n");
    ::chmod(script.c_str(), 0755);
    auto config = params("./server.sh", {});
    config["cwd"] = directory.path().string();
    const auto error = failure([&] { connect(config); });
    BOOST_TEST(contains(error.detail(), directory.path().string()));
    config["cwd"] = "/no/such/directory";
    BOOST_TEST((failure([&] { connect(config); }).code() == errc::missing_dependency));
    // Where this program happens to run is none.
    const auto relative = failure([&] { connect(params("./server.sh", {})); });
    BOOST_TEST((relative.code() == errc::missing_dependency));
    BOOST_TEST(contains(relative.detail(),
                        "\"./server.sh\" is a relative path: give its full path, or a \"cwd\""));
    const auto report = failure([&] { connect(params("sh", {"-c", "pwd >&2; exit 1"})); });
    BOOST_TEST(report.detail().ends_with(":\n/\n"), report.detail());
}

BOOST_AUTO_TEST_CASE(close_ends_a_willing_server_by_closing_its_input) {
    connect(server());
    const auto server_pid = pid();
    test::run(context, client->close());
    BOOST_TEST(!alive(server_pid));
}

BOOST_AUTO_TEST_CASE(close_ends_an_unwilling_server_by_force) {
    connect(server({"--ignore-eof"}));
    const auto server_pid = pid();
    test::run(context, client->close());
    BOOST_TEST(!alive(server_pid));
    connect(server({"--ignore-eof", "--ignore-term"}));
    const auto stubborn = pid();
    BOOST_TEST(stubborn != server_pid);
    test::run(context, client->close());
    BOOST_TEST(!alive(stubborn));
}

BOOST_AUTO_TEST_CASE(destruction_ends_the_server) {
    connect(server({"--ignore-eof", "--ignore-term"}));
    const auto server_pid = pid();
    client.reset();
    context.restart();
    while (alive(server_pid) && context.run_one_for(10s) > 0) {
    }
    BOOST_TEST(!alive(server_pid));
}

BOOST_AUTO_TEST_CASE(nothing_is_left_open) {
    connect(server());
    test::run(context, client->close());
    client.reset();
    context.restart();
    context.poll();
    const auto before = open_files();
    for (int round = 0; round < 3; ++round) {
        connect(server());
        call("echo", R"({"text":"a"})");
        test::run(context, client->close());
        client.reset();
        failure([&] { connect(server({"--exit", "1"})); });
        client.reset();
        context.restart();
        context.poll();
    }
    BOOST_TEST(open_files() == before);
}

BOOST_AUTO_TEST_CASE(the_configuration_is_checked) {
    for (const char* config :
         {R"({})", R"({"command":""})", R"({"command":"sh","args":"x"})",
          R"({"command":"sh","env":{"A":1}})", R"({"command":"sh","type":"sse"})",
          R"({"command":"sh","comand":"x"})", R"({"command":"sh","max_message":0})"})
        BOOST_TEST((failure([&] { transport(json::parse(config).as_object()); }).code() ==
                    errc::bad_config),
                   config);
}

BOOST_AUTO_TEST_CASE(a_transport_that_is_not_open_says_so) {
    auto unopened = transport(params("sh", {}));
    BOOST_TEST(
        (failure([&] { test::run(context, unopened->receive()); }).code() == errc::bad_argument));
    BOOST_TEST(
        (failure([&] { test::run(context, unopened->send({})); }).code() == errc::bad_argument));
    test::run(context, unopened->close());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace plugin_transport_stdio_tests
