#pragma once
// The tools of an MCP server that is started for that alone.
#include <ipybox/approval/config.hpp>
#include <ipybox/registry.hpp>
#include <ipybox/tools/tool_server.hpp>
#include <string>

namespace ipybox::app {

// Connects to the server through the same service that later calls its tools. registry: must
// outlive this. Throws what ToolServer's list_tools() throws.
inline awaitable<json::array> listed_tools(PluginRegistry& registry, std::string name,
                                           json::object params, Variables variables,
                                           Duration connect_timeout, Logger logger) {
    Host host;
    host.executor = co_await asio::this_coro::executor;
    host.logger = logger;
    const auto sandbox = registry.make<Sandbox>("none", host, json::object());
    const auto policy = registry.make<ApprovalPolicy>("deny", host, json::object());
    ToolServerOptions options;
    options.connect_timeout = connect_timeout;
    options.logger = logger;
    ToolServer server(registry, host, *sandbox, *policy, std::move(options));
    server.set_variables(std::move(variables));
    server.register_server(name, params);
    auto tools = co_await server.list_tools(name);
    co_await server.reset();
    co_return tools;
}

}  // namespace ipybox::app
