// Kernels, tools, packages and servers under sandbox-runtime, in each way that it is used.
#include "executor_fixture.hpp"

namespace {
using namespace ipybox;
using namespace std::chrono_literals;

struct SrtFixture : test::ExecutorFixture {
    static json::object installed(const char* package) {
        json::object options;
        options["srt"] = (test::node_servers() / package / "dist/cli.js").string();
        return options;
    }
    // A home whose directories exist in part only, as the settings allow for.
    SrtFixture() { ::setenv("HOME", home.path().c_str(), 1); }
    ~SrtFixture() { ::setenv("HOME", old_home.c_str(), 1); }
    const test::TemporaryDirectory home;
    const std::string old_home = ::getenv("HOME") != nullptr ? ::getenv("HOME") : "/";

    void begin(json::object srt) {
        options.variables["NODE_SERVERS"] = test::node_servers().string();
        options.sandbox = "srt";
        options.sandbox_options = std::move(srt);
        executor = std::make_unique<CodeExecutor>(context.get_executor(), plugins, options);
        test::run(context, executor->start());
    }
    void settings(std::string_view text) {
        options.sandbox_config = parse_json(text, "test").as_object();
    }
    std::string call_a_tool() {
        const auto params = parse_json(R"({"command": "node", "args":
            ["${NODE_SERVERS}/@modelcontextprotocol/server-everything/dist/index.js", "stdio"]})",
                                       "test");
        test::run(context, executor->generate_mcp_sources("everything", params.as_object()));
        return text(
            "from mcptools.everything import echo\nprint(echo.run(message='x' * 100_000)[:10])\n"
            "import asyncio\n"
            "all = await asyncio.gather(*[echo.run_async(message=str(i)) for i in range(200)])\n"
            "print(all[199])");
    }
    std::string unix_socket() {
        return text(
            "import socket\ntry: socket.socket(socket.AF_UNIX); print('made')\nexcept OSError as "
            "e: print(e)");
    }
};
constexpr const char* latest = "@anthropic-ai/sandbox-runtime";
constexpr const char* pinned_by_the_original = "sandbox-runtime-0.0.21";
constexpr std::string_view answers = "Echo: xxxx\nEcho: 199";
constexpr std::string_view forbidden = "[Errno 97] Address family not supported by protocol";
// As the original brings it.
constexpr std::string_view original_settings = R"({
    "network": {"allowedDomains": [], "deniedDomains": [], "allowLocalBinding": true},
    "filesystem": {"denyRead": [], "allowWrite": [".", "~/Library/Jupyter/", "~/.ipython/"], "denyWrite": []},
    "allowPty": true})";
}  // namespace

BOOST_FIXTURE_TEST_SUITE(srt, SrtFixture)

BOOST_AUTO_TEST_CASE(kernel_and_tools_work_while_unix_sockets_do_not) {
    begin(installed(latest));
    BOOST_TEST(unix_socket() == forbidden);
    BOOST_TEST(call_a_tool() == answers);
    BOOST_TEST(text("print(open('/proc/1/cmdline').read().count('secret'))") == "0");
    BOOST_TEST(!execute("open('/etc/shadow')").ok());
    BOOST_TEST(text("import os; print(os.path.exists('/work'), os.getcwd())")
                   .find(workspace.path().string()) != std::string::npos);
}

BOOST_AUTO_TEST_CASE(the_originals_settings_work) {
    settings(original_settings);
    begin(installed(latest));
    BOOST_TEST(unix_socket() == forbidden);
    BOOST_TEST(call_a_tool() == answers);
}

BOOST_AUTO_TEST_CASE(the_originals_settings_work_with_the_originals_version) {
    settings(original_settings);
    begin(installed(pinned_by_the_original));
    BOOST_TEST(unix_socket() == forbidden);
    BOOST_TEST(call_a_tool() == answers);
    // Its cache goes to scratch space.
    const auto drawn = text(
        "import matplotlib; matplotlib.use('agg')\nimport matplotlib.pyplot as p; p.plot([1]); "
        "print('drawn')");
    BOOST_TEST(drawn.ends_with("drawn"), drawn);
}

BOOST_AUTO_TEST_CASE(unix_sockets_can_be_allowed) {
    auto srt = installed(latest);
    srt["unix_sockets"] = true;
    begin(srt);
    BOOST_TEST(unix_socket() == "made");
    BOOST_TEST(call_a_tool() == answers);
    BOOST_TEST(text("import os; print('/' in os.environ['IPYBOX_TOOL_SOCKET'])") == "True");
}

BOOST_AUTO_TEST_CASE(a_kernel_is_replaced_and_state_is_lost) {
    begin(installed(latest));
    BOOST_TEST(text("x = 1; print(x)") == "1");
    test::run(context, executor->reset());
    BOOST_TEST(!execute("x").ok());
    BOOST_TEST(call_a_tool() == answers);
}

BOOST_AUTO_TEST_CASE(allowed_hosts_and_packages) {
    options.allowed_hosts = {"pypi.org"};
    begin(installed(latest));
    BOOST_TEST(text("import urllib.request as "
                    "u\nprint(u.urlopen('https://pypi.org/simple/iniconfig/').status)") == "200");
    const auto refused = execute("u.urlopen('https://example.com/')");
    BOOST_TEST(!refused.ok());
    BOOST_TEST(refused.error.find("403") != std::string::npos, refused.error);
    test::run(context, executor->install_package("iniconfig==2.0.0", 100s));
    BOOST_TEST(text("import iniconfig; print(iniconfig.__file__)") ==
               (workspace.path() / ".ipybox/site-packages/iniconfig/__init__.py").string());
}

BOOST_AUTO_TEST_CASE(a_server_is_confined_by_srt) {
    const test::TemporaryDirectory elsewhere;
    test::write_file(elsewhere.path() / "secret", "s3cret");
    start("none");
    json::object sandbox;
    sandbox["name"] = "srt";
    sandbox["options"] = installed(latest);
    sandbox["readable"] = {test::node_servers().string()};
    json::object params;
    params["command"] = "node";
    params["args"] = {
        (test::node_servers() / "@modelcontextprotocol/server-filesystem/dist/index.js").string(),
        "/"};
    params["sandbox"] = std::move(sandbox);
    test::run(context, executor->generate_mcp_sources("files", params));
    const auto read = [&](const std::string& path) {
        return execute(
            "from mcptools.files import read_text_file\nprint('READ', read_text_file.run(path='" +
            path + "'))");
    };
    const auto package = test::node_servers() / latest / "package.json";
    BOOST_TEST(read(package.string()).ok());
    const auto refused = read((elsewhere.path() / "secret").string());
    BOOST_TEST(!refused.ok());
    BOOST_TEST(refused.error.find("s3cret") == std::string::npos);
}

BOOST_AUTO_TEST_SUITE_END()
