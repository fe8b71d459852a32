// McpClient with real servers of npm over stdio: legacy and modern ones, and what they offer
// beyond tools.
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/test/unit_test.hpp>
#include <ipybox/mcp/client.hpp>
#include <ipybox/registry.hpp>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "test_support.hpp"

namespace plugin_mcp_servers_tests {

using namespace ipybox;
using namespace std::chrono_literals;

namespace {

struct Fixture {
    Fixture() {
        host.executor = context.get_executor();
        registry.load(test::plugin_directory() / "sandbox" / "none.so");
        registry.load(test::plugin_directory() / "transport" / "stdio.so");
        sandbox = registry.make<Sandbox>("none", host, {});
        // Packages of this size take more than five seconds to start on a busy machine.
        options.connect_timeout = 120s;
        options.discover_timeout = 60s;
    }
    ~Fixture() {
        if (client) test::run(context, client->close());
        client.reset();
        context.restart();
        context.poll();
    }

    // Connects to a script below node_modules.
    void connect(const char* script, const std::vector<std::string>& arguments = {},
                 json::object env = {}) {
        json::object config;
        config["command"] = (test::node_servers() / "node/bin/node").string();
        auto& list = config["args"].emplace_array();
        list.emplace_back((test::node_servers() / script).string());
        for (const auto& argument : arguments) list.emplace_back(argument);
        config["env"] = std::move(env);
        options.name = script;
        client = std::make_unique<McpClient>(
            host.executor, registry.make<McpTransport>("stdio", host, config), std::move(options));
        test::run(context, client->connect(*sandbox));
        for (const auto& tool : test::run(context, client->list_tools()))
            tools.emplace(tool.at("name").as_string());
    }
    CallResult call(std::string tool, std::string_view arguments) {
        auto object = json::parse(arguments).as_object();
        return test::run(context,
                         client->call_tool(std::move(tool), std::move(object), CallOptions()));
    }
    std::string text(std::string tool, std::string_view arguments) {
        return json::serialize(call(std::move(tool), arguments).content);
    }
    json::object request(std::string method, std::string_view params) {
        auto object = json::parse(params).as_object();
        return test::run(context,
                         client->request(std::move(method), std::move(object), CallOptions()));
    }
    // Runs everything until the condition holds.
    template <class Condition>
    void until(Condition holds) {
        context.restart();
        const auto limit = Clock::now() + 60s;
        while (!holds())
            if (context.run_one_until(limit) == 0) throw std::runtime_error("it never came");
    }

    asio::io_context context{1};
    Host host;
    PluginRegistry registry;
    std::unique_ptr<Sandbox> sandbox;
    McpClientOptions options;
    std::unique_ptr<McpClient> client;
    std::set<std::string> tools;
};

bool contains(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

constexpr const char* everything = "@modelcontextprotocol/server-everything/dist/index.js";

}  // namespace

BOOST_FIXTURE_TEST_SUITE(mcp_servers, Fixture)

BOOST_AUTO_TEST_CASE(memory_keeps_its_promise_of_structure) {
    const test::TemporaryDirectory directory;
    json::object env;
    env["MEMORY_FILE_PATH"] = (directory.path() / "memory.jsonl").string();
    connect("@modelcontextprotocol/server-memory/dist/index.js", {}, std::move(env));
    BOOST_TEST((client->era() == McpEra::legacy));
    const auto made = call("create_entities",
                           R"({"entities":[{"name":"a","entityType":"b","observations":["c"]}]})");
    BOOST_TEST(made.problem == "");
    BOOST_TEST(!made.is_error);
    const auto graph = call("read_graph", "{}");
    BOOST_TEST(graph.problem == "");
    BOOST_TEST(graph.structured_content.value().at("entities").at(0).at("name").as_string() == "a");
}

BOOST_AUTO_TEST_CASE(sequential_thinking_thinks) {
    connect("@modelcontextprotocol/server-sequential-thinking/dist/index.js");
    const auto thought = call("sequentialthinking", R"({"thought":"t","nextThoughtNeeded":false,
        "thoughtNumber":1,"totalThoughts":1})");
    BOOST_TEST(thought.problem == "");
    BOOST_TEST(thought.structured_content.value().at("thoughtHistoryLength").as_int64() == 1);
}

BOOST_AUTO_TEST_CASE(context7_is_modern) {
    connect("@upstash/context7-mcp/dist/index.js");
    BOOST_TEST((client->era() == McpEra::modern));
    BOOST_TEST(client->server_info().at("name").as_string() == "Context7");
    BOOST_TEST(tools.contains("resolve-library-id"));
    // Refused before it would need a network.
    const auto refused = call("resolve-library-id", R"({"query":5})");
    BOOST_TEST(refused.is_error);
    BOOST_TEST(contains(json::serialize(refused.content), "expected string"));
    BOOST_CHECK_EXCEPTION(call("nosuch", "{}"), Error, [](const Error& error) {
        return error.code() == errc::mcp_error && contains(error.detail(), "nosuch");
    });
    BOOST_TEST(request("prompts/list", "{}").at("prompts").as_array().empty());
}

BOOST_AUTO_TEST_CASE(mongodb_is_modern_and_takes_subscriptions) {
    int changes = 0;
    options.on_tools_changed = [&] { ++changes; };
    connect("mongodb-mcp-server/dist/esm/index.js", {"--telemetry", "disabled"});
    BOOST_TEST((client->era() == McpEra::modern));
    BOOST_TEST(tools.size() > 20u);
    const auto connections = call("list-connections", "{}");
    BOOST_TEST(connections.problem == "");
    BOOST_TEST(connections.structured_content.value().at("connections").as_array().empty());
    BOOST_TEST(request("resources/list", "{}").at("resources").as_array().size() == 2u);
    BOOST_TEST(contains(json::serialize(request("resources/read", R"({"uri":"debug://mongodb"})")),
                        "debug://mongodb"));
    test::run(context, client->subscribe("debug://mongodb"));
    test::run(context, client->unsubscribe("debug://mongodb"));
    BOOST_TEST(!call("list-connections", "{}").is_error);
    BOOST_TEST(changes == 0);
}

BOOST_AUTO_TEST_CASE(everything_has_prompts_resources_and_completion) {
    std::vector<std::string> updated;
    options.on_notification = [&](const std::string& method, const json::object& params) {
        if (method == "notifications/resources/updated")
            updated.emplace_back(params.at("uri").as_string());
    };
    connect(everything, {"stdio"});
    BOOST_TEST(request("prompts/list", "{}").at("prompts").as_array().size() > 1u);
    BOOST_TEST(contains(json::serialize(request(
                            "prompts/get", R"({"name":"args-prompt","arguments":{"city":"Ulm"}})")),
                        "Ulm"));
    const auto completed = request("completion/complete", R"({"ref":{"type":"ref/prompt",
        "name":"completable-prompt"},"argument":{"name":"department","value":"E"}})");
    BOOST_TEST(completed.at("completion").at("values").at(0).as_string() == "Engineering");
    const std::string uri = "demo://resource/dynamic/text/1";
    BOOST_TEST(
        contains(json::serialize(request("resources/read", "{\"uri\":\"" + uri + "\"}")), uri));
    test::run(context, client->subscribe(uri));
    call("toggle-subscriber-updates", "{}");
    until([&] { return !updated.empty(); });
    BOOST_TEST(updated[0] == uri);
    test::run(context, client->unsubscribe(uri));
}

BOOST_AUTO_TEST_CASE(everything_asks_the_application) {
    options.capabilities = json::parse(R"({"elicitation":{},"sampling":{}})").as_object();
    options.roots = json::parse(R"([{"uri":"file:///w","name":"work"}])").as_array();
    std::vector<std::string> asked;
    options.on_request = [&](std::string method, json::object params) -> awaitable<json::object> {
        asked.push_back(method);
        json::object result;
        if (method == "elicitation/create") {
            result["action"] = "accept";
            result["content"] = detail::form_defaults(params);
            result["content"].as_object()["name"] = "Ada";
        } else {
            result = json::parse(R"({"role":"assistant","model":"m",
                "content":{"type":"text","text":"a sample"}})")
                         .as_object();
        }
        co_return result;
    };
    connect(everything, {"stdio"});
    // Tools that need what a client offers appear once the server has seen the offer: after the
    // list of tools was read, or before.
    until([&] { return !client->tools_current() || tools.contains("get-roots-list"); });
    const auto form = text("trigger-elicitation-request", "{}");
    BOOST_TEST(contains(form, "Name: Ada"), form);
    BOOST_TEST(contains(form, "pet-1"), form);  // a default
    const auto sample = text("trigger-sampling-request", R"({"prompt":"p"})");
    BOOST_TEST(contains(sample, "a sample"), sample);
    const auto roots = text("get-roots-list", "{}");
    BOOST_TEST(contains(roots, "file:///w"), roots);
    BOOST_TEST(asked.size() == 2u);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace plugin_mcp_servers_tests
