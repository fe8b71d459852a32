#include <boost/json/serialize.hpp>
#include <boost/test/unit_test.hpp>
#include <ipybox/config.hpp>

#include "test_support.hpp"

namespace config_tests {

using namespace ipybox;

namespace {
// The detail of the Error that `work` throws.
template <class Work>
std::string error_of(Work work) {
    try {
        work();
    } catch (const Error& error) {
        return error.detail();
    }
    return "no error";
}

json::value parsed(std::string_view text) { return parse_json(text, "test"); }
}  // namespace

BOOST_AUTO_TEST_SUITE(config)

BOOST_AUTO_TEST_CASE(json_errors_name_line_and_column) {
    const auto error = error_of([] { parse_json("{\n  \"a\": 1,\n  oops\n}", "my.json"); });
    BOOST_TEST(error.starts_with("my.json: not valid JSON at line 3, column "), error);
    BOOST_TEST(error_of([] {
                   parse_json("{} x", "my.json");
               }).starts_with("my.json: not valid JSON at line 1"));
    BOOST_TEST(error_of([] { parse_json("", "my.json"); }).starts_with("my.json: not valid JSON"));
}

BOOST_AUTO_TEST_CASE(env_files) {
    const auto variables = parse_env(
        "# comment\n\nA=plain value # note\nexport B='literal $x # y'\nC=\"two\\nlines\"\n D = "
        "spaced \nE=\n",
        ".env");
    BOOST_TEST(variables.at("A") == "plain value");
    BOOST_TEST(variables.at("B") == "literal $x # y");
    BOOST_TEST(variables.at("C") == "two\nlines");
    BOOST_TEST(variables.at("D") == "spaced");
    BOOST_TEST(variables.at("E") == "");
    BOOST_TEST(error_of([] { parse_env("A=1\nnonsense\n", ".env"); }) ==
               ".env, line 2: expected NAME=value");
    BOOST_TEST(error_of([] { parse_env("A='open\n", ".env"); }) ==
               ".env, line 1: the quote is not closed");
}

BOOST_AUTO_TEST_CASE(variables_are_replaced_everywhere_and_become_secrets) {
    const VariableSource source(Variables{{"TOKEN_OF_TEST", "s3cr3t-value"}});
    Secrets secrets;
    const auto value = substitute_variables(
        parsed(
            R"({"env": {"T": "x${TOKEN_OF_TEST}y"}, "args": ["${UNSET_OF_TEST:-fallback}"], "n": 1})"),
        source, "s", secrets);
    BOOST_TEST(value.at("env").at("T").as_string() == "xs3cr3t-valuey");
    BOOST_TEST(value.at("args").at(0).as_string() == "fallback");
    BOOST_TEST(secrets.hide("error: s3cr3t-value!") == "error: [hidden]!");
    const auto error = error_of([&] {
        substitute_variables(parsed(R"({"a": ["${UNSET_OF_TEST}"]})"), source, "server x", secrets);
    });
    BOOST_TEST(
        error ==
        "server x/a: the variable UNSET_OF_TEST is not set; set it in the environment or in .env");
}

BOOST_AUTO_TEST_CASE(what_ipybox_defines_nothing_else_sets_and_it_is_no_secret) {
    ::setenv("PLACE_OF_TEST", "/from/environment", 1);
    const VariableSource source(Variables{{"PLACE_OF_TEST", "/from/dotenv"}},
                                Variables{{"PLACE_OF_TEST", "/the/workspace"}});
    Secrets secrets;
    BOOST_TEST(substitute_variables(parsed(R"("${PLACE_OF_TEST}/data")"), source, "s", secrets)
                   .as_string() == "/the/workspace/data");
    BOOST_TEST(secrets.hide("at /the/workspace") == "at /the/workspace");
    ::unsetenv("PLACE_OF_TEST");
}

BOOST_AUTO_TEST_CASE(servers_are_checked_field_by_field) {
    const auto servers = read_mcp_servers(parsed(R"({"mcpServers": {
        "a": {"command": "x", "args": ["1"], "env": {"K": "v"}, "alwaysAllow": ["t"]},
        "b": {"url": "http://127.0.0.1/mcp", "headers": {"H": "v"}},
        "off": {"command": "y", "disabled": true}}})"),
                                          "f");
    BOOST_TEST(servers.size() == 2u);
    BOOST_TEST(!servers.at("a").contains("alwaysAllow"));
    const auto problem = [](std::string_view text) {
        return error_of([&] { check_server_params(parsed(text), "s"); });
    };
    BOOST_TEST(problem(R"({"comand": "x"})")
                   .starts_with("s: unknown field \"comand\"; accepted: command"));
    // Those of another plugin's transport are judged by its schema.
    BOOST_TEST(
        check_server_params(parsed(R"({"type": "websocket", "address": "a", "env": 1})"), "s") ==
        parsed(R"({"type": "websocket", "address": "a", "env": 1})").as_object());
    BOOST_TEST(problem(R"({"type": 1, "address": "a"})") == "s: \"type\" must be a string");
    BOOST_TEST(problem(R"({"type": "http", "address": "a"})").starts_with("s: unknown field"));
    BOOST_TEST(problem(R"({})") == "s: needs either \"command\" (stdio) or \"url\" (HTTP)");
    BOOST_TEST(problem(R"({"command": 1})") == "s: \"command\" must be a string");
    BOOST_TEST(problem(R"({"command": "x", "args": "y"})") ==
               "s: \"args\" must be an array of strings");
    for (const char* params : {R"({"command": "x", "max_message": "1"})",
                               R"({"url": "http://x/mcp", "max_message": 9999})"})
        BOOST_TEST(problem(params) ==
                   "s: \"max_message\" must be a number of bytes, and goes with a \"command\"");
    BOOST_TEST(problem(R"({"command": "x", "user": true})") ==
               "s: \"user\" must be a user's name or number");
    for (const char* params : {R"({"url": "http://x/mcp", "user": "a"})",
                               R"({"command": "x", "user": "a", "sandbox": {}})"})
        BOOST_TEST(
            problem(params).starts_with("s: \"user\" is for a \"command\" without \"sandbox\""));
    BOOST_TEST(problem(R"({"command": "x", "env": {"K": 1}})") == "s: \"env/K\" must be a string");
    BOOST_TEST(error_of([] { read_mcp_servers(parsed("[]"), "f"); }) ==
               "f: must be a JSON object with \"mcpServers\"");
}

BOOST_AUTO_TEST_CASE(other_clients_configurations_are_taken_and_what_does_nothing_is_told) {
    std::vector<std::string> notices;
    const auto servers = read_mcp_servers(parsed(R"({"servers": {
        "langchain": {"command": "x", "transport": "stdio", "env": null, "cwd": null, "encoding": "UTF-8", "args": []},
        "cline": {"command": "x", "autoApprove": ["write"], "timeout": 60, "disabled": false},
        "roo": {"url": "https://h/sse", "type": "streamable-http", "alwaysAllow": []},
        "gemini": {"httpUrl": "https://h/x", "excludeTools": ["rm"]},
        "windsurf": {"serverUrl": "https://h/sse"},
        "off": {"command": "x", "enabled": false, "autoApprove": ["all"]},
        "my-server.v2": {"command": "x"}, "3d": {"command": "x"}, "import": {"command": "x"}, "a__b": {"command": "x"},
        "no way!": {"command": "x", "alias": "way"}}, "inputs": []})"),
                                          "f", &notices);
    std::string names;
    for (const auto& [name, params] : servers) names += name + " " + json::serialize(params) + "\n";
    BOOST_TEST(names == R"(_3d {"command":"x"}
a__b {"command":"x"}
cline {"command":"x"}
gemini {"url":"https://h/x","type":"http"}
import_ {"command":"x"}
langchain {"command":"x","type":"stdio","args":[]}
my_server_v2 {"command":"x"}
roo {"url":"https://h/sse","type":"http"}
way {"command":"x"}
windsurf {"url":"https://h/sse"}
)");
    const std::vector<std::string> told = {
        "f, servers/cline: \"autoApprove\" does nothing here: calls are decided by a policy: see "
        "--policy",
        "f, servers/cline: \"timeout\" does nothing here: clients mean seconds or milliseconds by "
        "it",
        "f, servers/gemini: \"excludeTools\" does nothing here: all tools are offered; a policy "
        "can deny these",
        "f, servers/off: \"autoApprove\" does nothing here: calls are decided by a policy: see "
        "--policy",
        "f, servers/my-server.v2: its package is mcptools.my_server_v2; \"alias\" gives it another "
        "name",
        "f, servers/3d: its package is mcptools._3d; \"alias\" gives it another name",
        "f, servers/import: its package is mcptools.import_; \"alias\" gives it another name"};
    BOOST_TEST(notices == told, boost::test_tools::per_element());
    // Contradictions are errors, and so are fields that nobody knows: one may be "sandbox",
    // misspelt.
    const auto problem = [](std::string_view text) {
        return error_of([&] { check_server_params(parsed(text), "s"); });
    };
    BOOST_TEST(
        problem(R"({"command": "x", "sandbx": {}})").starts_with("s: unknown field \"sandbx\""));
    BOOST_TEST(problem(R"({"command": "x", "type": "stdio", "transport": "sse"})") ==
               "s: \"transport\" and \"type\" contradict each other");
    BOOST_TEST(problem(R"({"command": "x", "type": "http"})") ==
               "s: the type \"http\" and a \"command\" contradict each other");
    BOOST_TEST(problem(R"({"url": "http://x", "transport": "stdio"})") ==
               "s: the type \"stdio\" and a \"url\" contradict each other");
    BOOST_TEST(problem(R"({"url": "http://x/a", "serverUrl": "http://x/b"})") ==
               "s: \"serverUrl\" and \"url\" contradict each other");
    BOOST_TEST(problem(R"({"command": "x", "encoding": "latin-1"})") ==
               "s: \"encoding\" must be utf-8: MCP has no other");
    BOOST_TEST(
        error_of([] {
            read_mcp_servers(
                parsed(R"({"mcpServers": {"a-b": {"command": "x"}, "a_b": {"command": "y"}}})"),
                "f");
        }) ==
        "f, mcpServers/a_b: its package would be mcptools.a_b, as that of mcpServers/a-b; give one "
        "of them an \"alias\"");
}

BOOST_AUTO_TEST_CASE(authorization_is_checked_field_by_field) {
    const auto problem = [](std::string_view auth) {
        const auto text = R"({"url": "https://h/mcp", "auth": )" + std::string(auth) + "}";
        return error_of([&] { check_server_params(parsed(text), "s"); });
    };
    BOOST_TEST(
        problem(R"({"client_id": "a", "client_secret": "b", "scope": "x y", "dpop": true})") ==
        "no error");
    BOOST_TEST(problem("true") == "s, auth: must be an object");
    BOOST_TEST(problem(R"({"clientid": "a"})") == "s, auth: unknown field \"clientid\"");
    BOOST_TEST(problem(R"({"client_id": 1})") == "s, auth: \"client_id\" must be a string");
    BOOST_TEST(problem(R"({"dpop": "yes"})") == "s, auth: \"dpop\" must be true or false");
    BOOST_TEST(problem(R"({"grant": "password"})")
                   .starts_with("s, auth: \"grant\" must be authorization_code"));
    BOOST_TEST(problem(R"({"grant": "client_credentials"})") ==
               "s, auth: the grant client_credentials needs \"client_id\"");
    BOOST_TEST(problem(R"({"grant": "jwt_bearer", "client_id": "a"})") ==
               "s, auth: the grant jwt_bearer needs \"assertion\" or \"assertion_file\"");
    BOOST_TEST(problem(R"({"identity_provider": {"secret": "a"}})") ==
               "s, auth: \"identity_provider/secret\" is unknown or no string");
    BOOST_TEST(error_of([] {
                   check_server_params(parsed(R"({"command": "x", "auth": {}})"), "s");
               }) == "s: \"auth\" is for a \"url\", and there is none");
}

BOOST_AUTO_TEST_CASE(the_transport_follows_type_or_url) {
    const auto transport = [](std::string_view text) {
        return transport_of(parsed(text).as_object());
    };
    BOOST_TEST(transport(R"({"command": "x"})") == "stdio");
    BOOST_TEST(transport(R"({"url": "https://h/mcp"})") == "streamable_http");
    BOOST_TEST(transport(R"({"url": "https://h/sse"})") == "sse");
    BOOST_TEST(transport(R"({"url": "https://h/sse", "type": "http"})") == "streamable_http");
    BOOST_TEST(transport(R"({"url": "https://h/a/sse?key=/x#y"})") == "sse");
    BOOST_TEST(transport(R"({"url": "https://h/sse/"})") == "sse");
    for (const char* url : {"https://h/sse-tools/mcp", "https://h/sse/mcp", "https://h/xsse",
                            "https://sse", "https://h/mcp?x=/sse"})
        BOOST_TEST(transport_of(json::object{{"url", url}}) == "streamable_http", url);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace config_tests
