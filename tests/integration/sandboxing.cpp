// What the program around a sandbox does for it: allowed hosts, packages, confined MCP servers.
#include "executor_fixture.hpp"

namespace {
using namespace ipybox;
using namespace std::chrono_literals;

struct Fixture : test::ExecutorFixture {
    // The filesystem server, told that it may serve everything: only a sandbox holds it back.
    json::object file_server(json::object sandbox) const {
        json::object params;
        params["command"] = "node";
        params["args"] = {
            (test::node_servers() / "@modelcontextprotocol/server-filesystem/dist/index.js")
                .string(),
            "/"};
        if (!sandbox.empty()) params["sandbox"] = std::move(sandbox);
        return params;
    }
    std::string read_by_tool(const std::filesystem::path& file) {
        const auto result = execute(
            "from mcptools.files import read_text_file\n"
            "try: print('READ', read_text_file.run(path='" +
            file.string() +
            "'))\n"
            "except Exception as e: print('FAILED', e)");
        return result.text.value_or(result.error);
    }
    void generate(json::object params) {
        test::run(context, executor->generate_mcp_sources("files", std::move(params)));
    }
};

bool contains(const std::string& text, std::string_view words) {
    return text.find(words) != text.npos;
}
}  // namespace

BOOST_FIXTURE_TEST_SUITE(sandboxing, Fixture)

BOOST_AUTO_TEST_CASE(a_server_sees_what_its_sandbox_names) {
    const test::TemporaryDirectory outside;
    test::write_file(outside.path() / "shown", "shown text");
    const test::TemporaryDirectory elsewhere;
    test::write_file(elsewhere.path() / "secret", "s3cret");
    start("bubblewrap");

    generate(file_server({}));
    BOOST_TEST(contains(read_by_tool(elsewhere.path() / "secret"), "s3cret"));

    json::object sandbox;
    sandbox["readable"] = {test::node_servers().string(), outside.path().string()};
    sandbox["limits"] = {{"processes", 50}, {"memory-total", "1G"}};
    if (::geteuid() != 0) sandbox["limits"].get_object().erase("memory-total");
    generate(file_server(sandbox));
    const auto shown = read_by_tool(outside.path() / "shown");
    BOOST_TEST(contains(shown, "shown text"), shown);
    const auto refused = read_by_tool(elsewhere.path() / "secret");
    BOOST_TEST(contains(refused, "FAILED"), refused);
    BOOST_TEST(!contains(refused, "s3cret"), refused);
}

BOOST_AUTO_TEST_CASE(a_server_is_confined_by_settings_of_sandbox_runtime) {
    const test::TemporaryDirectory elsewhere;
    test::write_file(elsewhere.path() / "secret", "s3cret");
    test::write_file(elsewhere.path() / "plain", "plain text");
    start("bubblewrap");
    json::object filesystem;
    filesystem["denyRead"] = {(elsewhere.path() / "secret").string()};
    // The checkout may lie in /tmp, which is the sandbox's own.
    filesystem["allowRead"] = {test::node_servers().string()};
    json::object config;
    config["filesystem"] = std::move(filesystem);
    json::object sandbox;
    sandbox["config"] = std::move(config);
    generate(file_server(sandbox));
    // Everything but what is denied; scratch space hides /tmp, where the test's files are.
    BOOST_TEST(contains(read_by_tool("/etc/hostname"), "READ"));
    BOOST_TEST(contains(read_by_tool(elsewhere.path() / "secret"), "FAILED"));
}

BOOST_AUTO_TEST_CASE(links_that_the_kernel_made_lead_no_server_astray) {
    const test::TemporaryDirectory elsewhere;
    start("bubblewrap");
    text("import os; os.symlink('" + elsewhere.path().string() + "', 'data')");
    json::object sandbox;
    sandbox["writable"] = json::array{"data/below"};
    std::filesystem::create_directory(elsewhere.path() / "below");
    BOOST_CHECK_EXCEPTION(generate(file_server(sandbox)), Error, [](const Error& error) {
        return contains(error.what(), "symbolic link");
    });
}

BOOST_AUTO_TEST_CASE(mistakes_in_a_servers_sandbox_are_named) {
    start("none");
    const auto refuses = [&](json::object sandbox, std::string_view words) {
        BOOST_CHECK_EXCEPTION(generate(file_server(std::move(sandbox))), Error,
                              [&](const Error& error) {
                                  BOOST_TEST_INFO(error.what());
                                  return contains(error.detail(), words);
                              });
    };
    refuses({{"readable", "/x"}}, "readable");
    refuses({{"nonsense", 1}}, "nonsense");
    refuses({{"name", "nonsense"}}, "nonsense");
    refuses({{"limits", {{"memory", "lots"}}}}, "lots");
    refuses({{"limits", {{"nonsense", 1}}}}, "nonsense");
    refuses({{"hosts", {"http://x"}}}, "http://x");
    refuses({{"config", json::object()}, {"hosts", {"example.com"}}}, "one of them");
    json::object remote;
    remote["url"] = "http://localhost/mcp";
    remote["sandbox"] = json::object();
    BOOST_CHECK_THROW(executor->register_server("remote", remote), Error);
}

BOOST_AUTO_TEST_CASE(a_package_is_installed_for_the_workspace_only) {
    start("bubblewrap");
    BOOST_TEST(
        contains(text("try: import iniconfig\nexcept ImportError as e: print(e)"), "No module"));
    const auto said = test::run(context, executor->install_package("iniconfig==2.0.0", 100s));
    BOOST_TEST(contains(said, "iniconfig-2.0.0"), said);
    BOOST_TEST(text("import iniconfig; print(iniconfig.__file__)") ==
               (workspace.path() / ".ipybox/site-packages/iniconfig/__init__.py").string());
    for (const char* bad : {"", "--index-url=x", "a\nb"})
        BOOST_CHECK_THROW(test::run(context, executor->install_package(bad)), Error);
    BOOST_CHECK_EXCEPTION(
        test::run(context, executor->install_package(
                               "git+https://github.com/pytest-dev/iniconfig@v2.0.0", 100s)),
        Error, [](const Error& error) {
            return contains(error.detail(),
                            "; --package-host github.com (package_hosts) opens that host");
        });
}

BOOST_AUTO_TEST_CASE(packages_install_without_a_sandbox_too) {
    start("none");
    test::run(context, executor->install_package("iniconfig==2.0.0", 100s));
    BOOST_TEST(
        contains(text("import iniconfig; print(iniconfig.__file__)"), ".ipybox/site-packages"));
}

BOOST_AUTO_TEST_CASE(allowed_hosts_and_no_others_are_reached) {
    options.allowed_hosts = {"pypi.org", "files.pythonhosted.org"};
    std::vector<std::string> log;
    options.logger.level = LogLevel::info;
    options.logger.write = [&log](LogLevel, std::string_view line) { log.emplace_back(line); };
    start("bubblewrap");
    BOOST_TEST(text("import urllib.request as "
                    "u\nprint(u.urlopen('https://pypi.org/simple/iniconfig/').status)") == "200");
    const auto refused = execute("u.urlopen('https://example.com/')");
    BOOST_TEST(!refused.ok());
    BOOST_TEST(contains(refused.error, "403"), refused.error);
    const auto installed = execute(
        "!pip install -q iniconfig 2>&1\nimport iniconfig; print(iniconfig.__name__)", 100s);
    BOOST_TEST(installed.ok(), installed.error);
    BOOST_TEST(contains(installed.text.value_or(""), "iniconfig"));
    const auto logged = [&](std::string_view words) {
        return std::any_of(log.begin(), log.end(),
                           [&](const auto& line) { return contains(line, words); });
    };
    BOOST_TEST(logged("pypi.org:443 allowed"));
    BOOST_TEST(logged("example.com:443 refused"));
    // A proxy of the next kernel takes the place of the last one's.
    test::run(context, executor->reset());
    BOOST_TEST(text("import urllib.request as "
                    "u\nprint(u.urlopen('https://pypi.org/simple/iniconfig/').status)") == "200");
}

BOOST_AUTO_TEST_CASE(what_the_sandbox_stopped_is_told) {
    std::vector<std::string> told;
    options.on_violation = [&told](const Violation& violation) { told.push_back(violation.layer); };
    options.allowed_hosts = {"example.com"};
    options.limits.open_files = 200;
    start("bubblewrap");
    const auto refused = execute(
        "import urllib.request as u\n"
        "for i in range(2):\n"
        "    try: u.urlopen('http://other.example.org/')\n"
        "    except OSError as e: print(e)");
    BOOST_TEST(refused.ok(), refused.error);
    BOOST_TEST_REQUIRE(refused.violations.size() == 1u);
    BOOST_TEST(refused.violations[0].layer == "network");
    BOOST_TEST(refused.violations[0].count == 2u);
    BOOST_TEST(contains(refused.violations[0].what, "other.example.org:80"),
               refused.violations[0].what);
    const auto full = execute("files = []\nwhile True: files.append(open('/dev/null'))");
    BOOST_TEST(contains(full.error, "Too many open files"), full.error);
    BOOST_TEST(contains(full.error, "the sandbox's limit open-files"), full.error);
    BOOST_TEST(full.violations.empty());
    const auto over = execute("import os, signal\nos.kill(os.getpid(), signal.SIGXCPU)");
    BOOST_TEST((over.status == CodeExecutionResult::Status::kernel_lost));
    BOOST_TEST(contains(over.error, "the limit cpu"), over.error);
    BOOST_TEST_REQUIRE(over.violations.size() == 1u);
    BOOST_TEST(over.violations[0].layer == "cpu");
    BOOST_TEST((told == std::vector<std::string>{"network", "network", "cpu"}));
}

BOOST_AUTO_TEST_CASE(a_kernel_that_may_open_too_few_files_says_so) {
    options.limits.open_files = 8;
    BOOST_CHECK_EXCEPTION(start("bubblewrap"), Error, [](const Error& error) {
        BOOST_TEST_INFO(error.what());
        return error.code() == errc::kernel_start_failed &&
               contains(error.what(), "raise the sandbox's limit open-files");
    });
}

BOOST_AUTO_TEST_CASE(private_networks_are_options_of_the_sandbox) {
    options.allowed_hosts = {"example.com"};
    options.sandbox_options["private_networks"] = json::array{"10.1.0.0/99"};
    BOOST_CHECK_EXCEPTION(start("bubblewrap"), Error, [](const Error& error) {
        return error.code() == errc::bad_config && contains(error.detail(), "10.1.0.0/99");
    });
    options.sandbox_options["private_networks"] = json::array{"intranet"};
    BOOST_CHECK_THROW(start("bubblewrap"), Error);
}

BOOST_AUTO_TEST_CASE(a_sandbox_that_cannot_filter_refuses_allowed_hosts) {
    options.allowed_hosts = {"pypi.org"};
    BOOST_CHECK_EXCEPTION(start("none"), Error,
                          [](const Error& error) { return error.code() == errc::sandbox_refused; });
}

BOOST_AUTO_TEST_SUITE_END()
