// Where, as whom and with what MCP servers start that nothing confines; with real servers.
#include <sys/stat.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <ipybox/tools/tool_server.hpp>

#include "test_support.hpp"

namespace server_start_tests {
namespace {
using namespace ipybox;

struct Fixture {
    asio::io_context context;
    PluginRegistry registry;
    test::TemporaryDirectory directory;  // the workspace
    ToolServerOptions options;
    std::unique_ptr<ToolServer> server;
    std::string log;

    Fixture() {
        registry.add_directory(test::plugin_directory());
        std::filesystem::permissions(directory.path(), std::filesystem::perms(0777));
        options.workspace = directory.path();
        options.logger.level = LogLevel::info;
        options.logger.write = [this](LogLevel, std::string_view line) {
            log += std::string(line) + "\n";
        };
    }

    static std::string program() {
        return test::required_environment("IPYBOX_TEST_SUPPORT") + "/mcp_server.py";
    }
    // The server of tests/support, which first runs `report` in a shell; what that prints, seen()
    // returns.
    json::object reporting(const std::string& report) const {
        return {{"command", "sh"},
                {"args",
                 {"-c", "{ " + report + "; } > \"$0\"; exec python3 \"$1\"", report_file().string(),
                  program()}}};
    }
    std::filesystem::path report_file() const { return directory.path() / "report"; }
    void start(const json::object& params) {
        if (!server)
            server = std::make_unique<ToolServer>(context.get_executor(), registry, options);
        server->register_server("own", params);
        restart();
    }
    void restart() {
        std::error_code ignored;
        std::filesystem::remove(report_file(), ignored);
        BOOST_TEST(!test::run(context, server->list_tools("own")).empty());
    }
    std::string seen(const json::object& params) {
        start(params);
        return test::read_file(report_file());
    }
    std::string refusal(const json::object& params) {
        try {
            start(params);
        } catch (const Error& error) {
            BOOST_TEST((error.code() == errc::bad_config), error.detail());
            return error.detail();
        }
        return "none";
    }
    static bool contains(const std::string& text, const std::string& words) {
        return text.find(words) != text.npos;
    }
};

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }
}  // namespace

BOOST_FIXTURE_TEST_SUITE(server_start, Fixture)

BOOST_AUTO_TEST_CASE(a_server_starts_in_an_empty_directory_of_its_own) {
    const auto report = seen(reporting("pwd; stat --format=%a .; ls -A | wc -l; touch left"));
    const auto first = first_line(report);
    BOOST_TEST(report == first + "\n700\n0\n");
    BOOST_TEST(first != directory.path().string());
    BOOST_TEST(first != std::filesystem::current_path().string());
    BOOST_TEST(std::filesystem::exists(first + "/left"));
    // Nobody else can write the directories above, into which programs look as well.
    for (auto path = std::filesystem::path(first).parent_path(); ::geteuid() == 0;
         path = path.parent_path()) {
        struct stat info{};
        BOOST_REQUIRE(::stat(path.c_str(), &info) == 0);
        BOOST_TEST(info.st_uid == 0u, path);
        BOOST_TEST((info.st_mode & 022) == 0u, path);
        if (path == "/") break;
    }
    // After a reset it starts in another one, which is as empty.
    test::run(context, server->reset());
    restart();
    const auto second = first_line(test::read_file(report_file()));
    BOOST_TEST(test::read_file(report_file()) == second + "\n700\n0\n");
    BOOST_TEST(!std::filesystem::exists(first));
    server.reset();
    BOOST_TEST(!std::filesystem::exists(second));
}

BOOST_AUTO_TEST_CASE(a_configured_directory_is_kept) {
    auto params = reporting("pwd");
    params["cwd"] = "${WORKSPACE}";
    BOOST_TEST(seen(params) == directory.path().string() + "\n");
    // Relative arguments are none of our business then.
    test::write_file(directory.path() / "server.py",
                     "import runpy; runpy.run_path('" + program() + "', run_name='__main__')");
    start({{"command", "python3"}, {"args", {"server.py"}}, {"cwd", "${WORKSPACE}"}});
    const auto problem = refusal({{"command", "python3"}, {"args", {"server.py"}}});
    BOOST_TEST(contains(problem, "MCP server own: \"server.py\" is a relative path"), problem);
    BOOST_TEST(
        contains(
            problem,
            R"(write "args": ["${WORKSPACE}/server.py"], "cwd": "${WORKSPACE}", "trust_cwd": true if)"),
        problem);
    start({{"command", "python3"}, {"args", {"${WORKSPACE}/server.py"}}});
}

BOOST_AUTO_TEST_CASE(the_workspace_is_a_variable_that_nothing_else_sets) {
    ::setenv("WORKSPACE", "/somewhere/else", 1);
    server = std::make_unique<ToolServer>(context.get_executor(), registry, options);
    server->set_variables({{"WORKSPACE", "/from/dotenv"}});
    auto params = reporting("echo $PLACE");
    params["env"] = {{"PLACE", "${WORKSPACE}"}};
    BOOST_TEST(seen(params) == directory.path().string() + "\n");
    ::unsetenv("WORKSPACE");
    // Errors show it: it is no secret.
    params = {{"command", "sh"},
              {"args", {"-c", "echo at ${WORKSPACE} >&2; exit 1"}},
              {"env", {{"PLACE", "${WORKSPACE}"}}}};
    try {
        start(params);
        BOOST_ERROR("it started");
    } catch (const Error& error) {
        BOOST_TEST(contains(error.detail(), "at " + directory.path().string()), error.detail());
    }
}

BOOST_AUTO_TEST_CASE(root_starts_servers_as_a_user_of_their_own) {
    auto params = reporting("id -u; id -g; echo $HOME $USER; stat --format='%u %a' $HOME");
    if (::geteuid() != 0) {
        BOOST_TEST(seen(params).starts_with(std::to_string(::geteuid()) + "\n"));
        params["user"] = "root";
        BOOST_TEST(contains(refusal(params), "only root can start a server as uid 0"));
        return;
    }
    const auto own = tools::server_user(std::nullopt).user;
    const auto home = "/var/lib/ipybox/servers/" + std::to_string(own);
    const auto number = std::to_string(own);
    BOOST_TEST(seen(params) == number + "\n" + number + "\n" + home + "\n" + number + " 700\n");
    // Configured otherwise.
    params["env"] = {{"HOME", directory.path().string()}};
    BOOST_TEST(contains(seen(params), "\n" + directory.path().string() + "\n"));
    params.erase("env");
    params["user"] = "root";
    BOOST_TEST(seen(params).starts_with("0\n0\n"));
    params["user"] = 12345;
    BOOST_TEST(seen(params).starts_with("12345\n"));
    params["user"] = "no-such-user";
    BOOST_TEST(
        contains(refusal(params), "MCP server \"own\": user: there is no \"no-such-user\" here"));
}

BOOST_AUTO_TEST_CASE(a_server_is_never_the_kernels_user) {
    if (::geteuid() != 0) {  // then there is nobody else
        options.kernel_user = [] { return ::geteuid(); };
        BOOST_TEST(seen(reporting("id -u")) == std::to_string(::geteuid()) + "\n");
        return;
    }
    const auto own = tools::server_user(std::nullopt).user;
    BOOST_TEST(tools::server_user(own).user == own + 1);
    options.kernel_user = [own] { return own; };
    auto params = reporting("id -u");
    BOOST_TEST(seen(params) == std::to_string(own + 1) + "\n");
    params["user"] = static_cast<std::int64_t>(own);
    BOOST_TEST(contains(refusal(params), "the kernel runs as uid " + std::to_string(own)));
    // Nothing confines it: then another user would protect nothing.
    server.reset();
    options.kernel_user = [] { return uid_t{0}; };
    params.erase("user");
    BOOST_TEST(seen(params) == "0\n");
}

BOOST_AUTO_TEST_CASE(what_that_user_cannot_reach_is_named_at_start) {
    const auto closed = directory.path() / "closed";
    std::filesystem::create_directory(closed);
    std::filesystem::permissions(closed, std::filesystem::perms(0700));
    test::write_file(closed / "server.py",
                     "import runpy; runpy.run_path('" + program() + "', run_name='__main__')");
    json::object params{{"command", "python3"}, {"args", {"${WORKSPACE}/closed/server.py"}}};
    if (::geteuid() != 0) return start(params);  // nothing is closed to who made it
    const auto problem = refusal(params);
    BOOST_TEST(contains(problem, "cannot read " + (closed / "server.py").string() + ", because " +
                                     closed.string() + " is closed to it"),
               problem);
    BOOST_TEST(contains(problem, "\"user\": \"root\" keeps root's rights"), problem);
    params["user"] = "root";
    start(params);
    // What it can only read is told.
    std::filesystem::permissions(closed, std::filesystem::perms(0755));
    params = reporting("true");
    params["args"].as_array().emplace_back(closed.string());
    start(params);
    BOOST_TEST(contains(log, "can read " + closed.string() + " and not write there"), log);
}

BOOST_AUTO_TEST_CASE(a_program_of_path_that_the_user_can_run_is_taken) {
    const auto closed = directory.path() / "closed", open = directory.path() / "open";
    for (const auto& place : {closed, open}) {
        std::filesystem::create_directory(place);
        test::write_file(place / "tool", "#!/bin/sh\nexec python3 " + program() + "\n");
        std::filesystem::permissions(place / "tool", std::filesystem::perms(0755));
    }
    std::filesystem::permissions(closed, std::filesystem::perms(0700));
    const auto path = closed.string() + ":/usr/bin:/bin";
    json::object params{{"command", "tool"}, {"env", {{"PATH", path}}}};
    if (::geteuid() != 0) return start(params);
    const auto problem = refusal(params);
    BOOST_TEST(contains(problem, "cannot run " + (closed / "tool").string() + ", because " +
                                     closed.string() + " is closed to it"),
               problem);
    params["env"] = {{"PATH", path + ":" + open.string()}};
    start(params);
    BOOST_TEST(contains(log, (open / "tool").string() + " is started, because uid "), log);
    BOOST_TEST(contains(log, "cannot run " + (closed / "tool").string()), log);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace server_start_tests
