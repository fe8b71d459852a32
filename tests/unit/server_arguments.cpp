#include <algorithm>
#include <boost/json/parse.hpp>
#include <boost/test/unit_test.hpp>
#include <ipybox/tools/detail/server_arguments.hpp>
#include <sstream>

#include "test_support.hpp"

namespace server_arguments_tests {
namespace {
using namespace ipybox;

struct Fixture {
    test::TemporaryDirectory workspace, elsewhere;
    std::filesystem::path former = workspace.path();

    Fixture() {
        test::write_file(workspace.path() / "server.py", "");
        test::write_file(workspace.path() / "main", "");
        std::filesystem::create_directories(workspace.path() / "src");
        std::filesystem::create_directories(workspace.path() / "org/pkg");
        std::filesystem::create_directories(workspace.path() / "@scope/pkg");
        test::write_file(workspace.path() / "src/index.js", "");
        test::write_file(elsewhere.path() / "far.py", "");
    }

    struct Outcome {
        std::string error;    // empty when it is accepted
        std::string args;     // as they are used, in one line
        std::string notices;  // one a line
    };
    // line: the command and its arguments, separated by blanks.
    Outcome judge(const std::string& line, const std::string& replaced = {}) const {
        const auto written = params(line);
        auto used = params(replaced.empty() ? line : replaced);
        Outcome outcome;
        try {
            detail::ServerArguments arguments("s", written, used, workspace.path(), former);
            for (const auto& notice : arguments.correct())
                outcome.notices +=
                    (notice.level == LogLevel::info ? "info " : "warning ") + notice.text + "\n";
        } catch (const Error& error) {
            BOOST_TEST((error.code() == errc::bad_config));
            outcome.error = error.detail();
        }
        for (const auto& arg : used.at("args").as_array())
            outcome.args += (outcome.args.empty() ? "" : " ") + std::string(arg.as_string());
        return outcome;
    }
    // The corrected line that the error offers.
    std::string correction(const std::string& line, const std::string& replaced = {}) const {
        const auto error = judge(line, replaced).error;
        const auto from = error.find("write ");
        const auto to =
            std::min(error.find(", or give a \"cwd\""),
                     error.find(" if you answer for what code leaves there, or put it elsewhere"));
        return to == error.npos ? error : error.substr(from + 6, to - from - 6);
    }

    static json::object params(const std::string& line) {
        std::istringstream words(line);
        json::object result;
        json::array args;
        std::string word;
        words >> word;
        result["command"] = word;
        while (words >> word) args.emplace_back(word);
        result["args"] = std::move(args);
        return result;
    }
};
}  // namespace

BOOST_FIXTURE_TEST_SUITE(server_arguments, Fixture)

BOOST_AUTO_TEST_CASE(what_lay_in_the_workspace_gets_a_corrected_line) {
    BOOST_TEST(
        judge("uvx mcp-server-git --repository .").error ==
        "s: \".\" is a relative path, and servers start in an empty directory: write \"args\": "
        "[\"mcp-server-git\", \"--repository\", \"${WORKSPACE}\"], or give a \"cwd\"");
    BOOST_TEST(
        correction("python server.py --quiet") ==
        R"("args": ["${WORKSPACE}/server.py", "--quiet"], "cwd": "${WORKSPACE}", "trust_cwd": true)");
    BOOST_TEST(
        correction("node src/index.js") ==
        R"("args": ["${WORKSPACE}/src/index.js"], "cwd": "${WORKSPACE}", "trust_cwd": true)");
    BOOST_TEST(
        correction("node ./absent.js ../up") ==
        R"("args": ["${WORKSPACE}/absent.js", "${WORKSPACE}/../up"], "cwd": "${WORKSPACE}", "trust_cwd": true)");
    BOOST_TEST(correction("x --dir=./data --port=80") ==
               R"("args": ["--dir=${WORKSPACE}/data", "--port=80"])");
    BOOST_TEST(correction("sh main") ==
               R"("args": ["${WORKSPACE}/main"], "cwd": "${WORKSPACE}", "trust_cwd": true)");
    BOOST_TEST(
        correction("npx tsx server.py") ==
        R"("args": ["tsx", "${WORKSPACE}/server.py"], "cwd": "${WORKSPACE}", "trust_cwd": true)");
    BOOST_TEST(correction("bin/server") ==
               R"("command": "${WORKSPACE}/bin/server", "cwd": "${WORKSPACE}", "trust_cwd": true)");
    BOOST_TEST(
        correction("./server .") ==
        R"("command": "${WORKSPACE}/server", "args": ["${WORKSPACE}"], "cwd": "${WORKSPACE}", "trust_cwd": true)");
}

BOOST_AUTO_TEST_CASE(what_lay_where_ipybox_started_gets_its_full_path) {
    former = elsewhere.path();
    BOOST_TEST(correction("python far.py") ==
               "\"args\": [\"" + (elsewhere.path() / "far.py").string() + "\"]");
    BOOST_TEST(correction("python server.py") ==
               R"("args": ["${WORKSPACE}/server.py"], "cwd": "${WORKSPACE}", "trust_cwd": true)");
}

BOOST_AUTO_TEST_CASE(values_of_variables_are_judged_and_not_shown) {
    BOOST_TEST(correction("python ${NAME}", "python server.py") ==
               R"("args": ["${WORKSPACE}/${NAME}"], "cwd": "${WORKSPACE}", "trust_cwd": true)");
    BOOST_TEST(correction("x --dir=${PLACE}", "x --dir=./hidden") ==
               R"("args": ["--dir=${WORKSPACE}/${PLACE}"])");
    BOOST_TEST(judge("python ${PLACE}/server.py", "python /srv/server.py").error == "");
}

BOOST_AUTO_TEST_CASE(other_words_pass) {
    for (const char* line : {"npx -y @scope/pkg", "npx -y org/pkg", "docker run -i --rm org/pkg",
                             "uvx mcp-server-fetch", "x stdio", "node /srv/index.js src/none.js",
                             "x --flag=value ~/data", "npx -y mcp-remote https://h/./x",
                             "python -c src", "x absent.py", "x absent/dir"})
        BOOST_TEST(judge(line).error == "", line);
    // A name that happens to be one in the workspace is only told.
    const auto outcome = judge("x src");
    BOOST_TEST(outcome.error == "");
    BOOST_TEST(outcome.notices.starts_with("info s: the argument \"src\" is passed on as it is"));
}

BOOST_AUTO_TEST_CASE(a_module_of_the_workspace_is_told) {
    const auto outcome = judge("python3 -m server");
    BOOST_TEST(outcome.error == "");
    BOOST_TEST(outcome.notices.starts_with("warning s: -m server is the installed module"));
    BOOST_TEST(judge("python3 -m http.server").notices == "");
}

BOOST_AUTO_TEST_CASE(directories_of_filesystem_servers_are_the_workspaces) {
    const auto place = workspace.path().string();
    const auto outcome = judge("npx -y @modelcontextprotocol/server-filesystem .");
    BOOST_TEST(outcome.error == "");
    BOOST_TEST(outcome.args == "-y @modelcontextprotocol/server-filesystem " + place);
    BOOST_TEST(outcome.notices ==
               "warning s: \".\" is taken for a directory of the workspace " + place +
                   ", because servers start in an empty one; write \"args\": [\"-y\", "
                   "\"@modelcontextprotocol/server-filesystem\", \"${WORKSPACE}\"]\n");
    BOOST_TEST(judge("npx @modelcontextprotocol/server-filesystem@2026.1.1 data /srv").args ==
               "@modelcontextprotocol/server-filesystem@2026.1.1 " + place + "/data /srv");
    BOOST_TEST(judge("mcp-server-filesystem ./src").args == place + "/src");
    BOOST_TEST(judge("node /n/@modelcontextprotocol/server-filesystem/dist/index.js .").args ==
               "/n/@modelcontextprotocol/server-filesystem/dist/index.js " + place);
    BOOST_TEST(judge("npx -y @modelcontextprotocol/server-filesystem /srv").notices == "");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace server_arguments_tests
