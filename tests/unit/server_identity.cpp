#include <boost/json/parse.hpp>
#include <boost/test/unit_test.hpp>
#include <ipybox/tools/server_identity.hpp>
#include <set>
#include <string>

namespace server_identity_tests {

using namespace ipybox;

namespace {
std::string of(const std::string& params) {
    return server_identity(boost::json::parse(params).as_object());
}
}  // namespace

BOOST_AUTO_TEST_SUITE(server_identity_of)

BOOST_AUTO_TEST_CASE(is_the_command_line_or_the_url) {
    BOOST_TEST(of(R"({"command": "npx", "args": ["-y", "@mcp/files@1.2", "${WORKSPACE}"]})") ==
               "npx -y @mcp/files@1.2 ${WORKSPACE}");
    BOOST_TEST(of(R"({"command": "python", "args": ["s.py"], "cwd": "/srv/x",
                      "env": {"B": "2", "API_KEY": "sk-123"}})") ==
               "python s.py; cwd: /srv/x; env: API_KEY B");
    BOOST_TEST(
        of(R"({"url": "https://host:8443/mcp", "headers": {"Authorization": "Bearer x"}})") ==
        "https://host:8443/mcp; headers: Authorization");
    BOOST_TEST(of(R"({"type": "websocket", "url": "wss://host/mcp", "token": "abc", "n": 1})") ==
               R"(websocket {"url":"wss://host/mcp","token":"[hidden]","n":1})");
}

BOOST_AUTO_TEST_CASE(has_no_secrets) {
    BOOST_TEST(of(R"({"command": "s", "args": ["--token", "abc", "--api-key=abc", "API_KEY=abc",
                      "-H", "Authorization: Bearer abc", "--password", "--verbose", "x=1"]})") ==
               "s --token [hidden] --api-key=[hidden] API_KEY=[hidden] -H \"Authorization: "
               "[hidden]\" --password --verbose x=1");
    BOOST_TEST(of(R"({"command": "s", "args": ["--token", "${TOKEN}", "--key=${A}${B}",
                      "Authorization: Bearer ${T}", "--key=a${B}", "--key=${B:-abc}",
                      "x${TOKEN:-abc}", "${DIR:-/tmp}"]})") ==
               "s --token ${TOKEN} --key=${A}${B} \"Authorization: Bearer ${T}\" --key=[hidden] "
               "--key=[hidden] x${TOKEN:-[hidden]} ${DIR:-/tmp}");
    BOOST_TEST(of(R"({"url": "https://me:abc@host/mcp?key=abc&project=p&flag#part=abc"})") ==
               "https://[hidden]@host/mcp?key=[hidden]&project=[hidden]&flag#part=[hidden]");
    BOOST_TEST(of(R"({"url": "https://host/mcp?key=${KEY}"})") == "https://host/mcp?key=${KEY}");
    BOOST_TEST(
        of(R"({"command": "s", "args": ["--url=https://me:abc@host/", "postgres://u:p@h/d"]})") ==
        "s --url=https://[hidden]@host/ postgres://[hidden]@h/d");
}

BOOST_AUTO_TEST_CASE(differs_where_what_runs_differs) {
    const std::string all[] = {
        R"({"command": "a", "args": ["b", "c"]})",
        R"({"command": "a", "args": ["b c"]})",
        R"({"command": "a b", "args": ["c"]})",
        R"({"command": "a", "args": ["b", "c", ""]})",
        R"({"command": "a", "args": ["b", "c;"]})",
        R"({"command": "a", "args": ["b", "c; cwd: /x"]})",
        R"({"command": "a", "args": ["b", "c"], "cwd": "/x"})",
        R"({"command": "a", "args": ["b", "c"], "env": {"X": "1"}})",
        R"({"command": "a", "args": ["b", "c"], "env": {"X": "1", "Y": "1"}})",
        R"({"command": "a", "args": ["b", "c"], "env": {"X Y": "1"}})",
        R"({"command": "a", "args": ["b", "c\n"]})",
        R"({"url": "http://a/"})",
        R"({"url": "http://a/b"})"};
    std::set<std::string> seen;
    for (const auto& params : all) BOOST_TEST(seen.insert(of(params)).second, params);
    for (const auto& text : seen) BOOST_TEST(text.find('\n') == std::string::npos);
    BOOST_TEST(of(R"({"command": "a", "env": {"X": "1"}})") ==
               of(R"({"command": "a", "env": {"X": "2"}})"));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace server_identity_tests
