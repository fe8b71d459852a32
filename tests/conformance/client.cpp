// The client that the MCP conformance suite runs: conformance_client URL. The suite says in
// MCP_CONFORMANCE_SCENARIO what to play. It does what an application would, by McpClient and the
// plugins of the build: connect, look at what the server has, and use it.
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <cstdlib>
#include <iostream>
#include <ipybox/config.hpp>
#include <ipybox/mcp/client.hpp>
#include <ipybox/registry.hpp>

#include "headless_auth.hpp"

using namespace ipybox;

namespace {

std::string variable(const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
}

// Arguments that an input schema accepts: its required parameters.
json::object some_arguments(const json::object& tool) {
    json::object arguments;
    const auto* schema = tool.if_contains("inputSchema");
    if (schema == nullptr || !schema->is_object()) return arguments;
    const auto* properties = schema->get_object().if_contains("properties");
    const auto* required = schema->get_object().if_contains("required");
    if (properties == nullptr || required == nullptr || !required->is_array()) return arguments;
    for (const auto& name : required->get_array()) {
        const auto* property = properties->as_object().if_contains(name.as_string());
        const auto type =
            property != nullptr ? detail::string_of(property->as_object(), "type") : "string";
        auto& value = arguments[name.as_string()];
        if (type == "integer" || type == "number") {
            value = 5;
        } else if (type == "boolean") {
            value = true;
        } else if (type == "array") {
            value.emplace_array();
        } else if (type == "object") {
            value.emplace_object();
        } else {
            value = "text";
        }
    }
    return arguments;
}

// Accepts what it is asked, with the values that are proposed.
awaitable<json::object> accept(std::string method, json::object params) {
    json::object result;
    if (method == "elicitation/create") {
        result["action"] = "accept";
        if (detail::string_of(params, "mode") != "url")
            result["content"] = detail::form_defaults(params);
    } else {
        result = json::parse(R"({"role":"assistant","model":"none","stopReason":"endTurn",
            "content":{"type":"text","text":"a sample"}})")
                     .as_object();
    }
    co_return result;
}

awaitable<void> use_tools(McpClient& client, const json::object& context) {
    const json::array tools = co_await client.list_tools();
    const auto* calls = context.if_contains("toolCalls");
    json::array wanted;
    if (calls != nullptr) {
        wanted = calls->as_array();
    } else {
        for (const auto& entry : tools) {
            const auto& tool = entry.as_object();
            json::object call;
            call["name"] = tool.at("name");
            call["arguments"] = some_arguments(tool);
            // Shows that a schema arrives as it was sent.
            if (tool.at("name") == "json_schema_echo" && tools.size() > 1)
                call["arguments"].as_object()["schema"] = tools[0].at("inputSchema");
            wanted.emplace_back(std::move(call));
        }
    }
    for (const auto& entry : wanted) {
        const auto& call = entry.as_object();
        std::string name(call.at("name").as_string());
        json::object arguments = call.at("arguments").as_object();
        CallOptions limits;
        limits.total_timeout = std::chrono::seconds(20);
        const CallResult result =
            co_await client.call_tool(name, std::move(arguments), std::move(limits));
        std::cout << name << ": " << json::serialize(result.content) << "\n";
    }
}

// Lists what `method` lists under `key`, and asks for each by its `name`.
awaitable<void> use_others(McpClient& client, std::string method, std::string key, std::string get,
                           std::string name) {
    json::object none;
    CallOptions limits;
    const json::object listed = co_await client.request(method, std::move(none), std::move(limits));
    const auto* entries = listed.if_contains(key);
    if (entries == nullptr || !entries->is_array()) co_return;
    for (const auto& entry : entries->get_array()) {
        json::object params;
        params[name] = entry.at(name);
        CallOptions same;
        const json::object got = co_await client.request(get, std::move(params), std::move(same));
        std::cout << get << ": " << json::serialize(got) << "\n";
    }
}

awaitable<void> play(Host& host, PluginRegistry& registry, Sandbox& sandbox, std::string url) {
    json::object context;
    if (const auto text = variable("MCP_CONFORMANCE_CONTEXT"); !text.empty())
        context = parse_json(text, "MCP_CONFORMANCE_CONTEXT").as_object();
    json::object params;
    params["url"] = url;
    params["auth"] = conformance::auth_of_scenario();
    McpClientOptions options;
    options.name = "conformance";
    options.logger = host.logger;
    options.capabilities =
        json::parse(R"({"elicitation":{"form":{},"url":{}},"sampling":{}})").as_object();
    options.on_request = accept;
    options.on_tools_changed = [] {};
    McpClient client(host.executor, registry.make<McpTransport>("streamable_http", host, params),
                     std::move(options));
    co_await client.connect(sandbox);
    const auto& capabilities = client.capabilities();
    co_await use_tools(client, context);
    if (capabilities.contains("resources"))
        co_await use_others(client, "resources/list", "resources", "resources/read", "uri");
    if (capabilities.contains("prompts"))
        co_await use_others(client, "prompts/list", "prompts", "prompts/get", "name");
    co_await client.close();
}

}  // namespace

int main(int count, char** arguments) {
    if (count != 2) {
        std::cerr << "usage: conformance_client URL\n";
        return 2;
    }
    try {
        asio::io_context context{1};
        Host host;
        host.executor = context.get_executor();
        host.browse = conformance::headless_browse(host.executor);
        conformance::forget_token_store();
        host.logger.level = LogLevel::info;
        host.logger.write = [](LogLevel, std::string_view line) { std::cerr << line << "\n"; };
        host.browse = conformance::headless_browse(host.executor);
        conformance::forget_token_store();
        auto registry = PluginRegistry::standard();
        // This program lies beside the build's plugins, one directory deeper.
        std::error_code ignored;
        const auto plugins =
            std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path() / "plugins";
        if (std::filesystem::is_directory(plugins, ignored)) registry.add_directory(plugins);
        const auto sandbox = registry.make<Sandbox>("none", host, {});
        std::exception_ptr failure;
        asio::co_spawn(context, play(host, registry, *sandbox, arguments[1]),
                       [&](std::exception_ptr problem) {
                           failure = problem;
                           context.stop();
                       });
        context.run();
        if (failure) std::rethrow_exception(failure);
    } catch (const std::exception& error) {
        std::cerr << error.what() << "\n";
        return 1;
    }
}
