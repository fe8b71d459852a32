// Tools without a kernel: tool servers of the client's, and those that listen over HTTP.
#include "answers.hpp"
#include "host.hpp"
#include "options.hpp"

namespace ipybox::app::host {
namespace {

json::object open_tools(HostState& host, Request& request) {
    const auto tools = std::make_shared<Tools>();
    tools->handle = host.next_handle('t');
    auto given = take_object(request.params, "options");
    const std::weak_ptr<HostState> weak = host.weak_from_this();
    const auto doors = std::make_shared<Tools::Doors>();
    doors->host.executor = host.executor;
    doors->host.logger = host.logger;
    doors->host.ask = [weak, handle = tools->handle](ToolCall call) {
        std::vector<Approver> client;
        client.emplace_back(
            [weak, handle](ToolCall one) { return ask_client(weak, {}, handle, std::move(one)); });
        return first_answer(std::move(client), std::move(call));
    };
    doors->sandbox = host.registry.make<Sandbox>("none", doors->host, json::object());
    const auto* policy = given.if_contains("approval");
    doors->policy = make_policy(host.registry, doors->host, policy ? *policy : json::value("ask"),
                                text_of(given, "approval_name", "approval"));
    ToolServerOptions options;
    options.logger = host.logger;
    options.background_calls = true;
    options.owner = doors;
    options.on_progress = [weak, handle = tools->handle](const std::string& call,
                                                         const CallProgress& report) {
        if (const auto live = weak.lock())
            live->offer("call/progress", progress_json({}, handle, call, report));
    };
    set_options(options, given, [weak](const std::string& file, const std::string& head) {
        if (const auto live = weak.lock()) live->offer("audit/head", head_json(file, head));
    });
    tools->doors = doors;
    tools->directory = std::make_unique<detail::PrivateDirectory>(::geteuid(), ::geteuid());
    tools->server = std::make_unique<ToolServer>(host.registry, doors->host, *doors->sandbox,
                                                 *doors->policy, std::move(options));
    tools->server->set_variables(variables_of(given, "variables"));
    tools->server->listen(tools->directory->path() / "socket", ::geteuid());
    host.tools.emplace(tools->handle, tools);
    return only("tools", tools->handle);
}

json::object listen_for_tools(HostState& host, Request& request) {
    const auto tools = host.tools_of(request);
    if (tools->listens) throw Error(errc::busy, "this tool server listens already");
    const auto port = static_cast<unsigned short>(count_of(request.params, "port", 0));
    json::object result;
    result.emplace("url",
                   tools->server->listen_tcp(text_of(request.params, "host", "localhost"), port));
    tools->listens = true;
    result.emplace("token", tools->server->token());
    result.emplace("control_token", tools->server->control_token());
    return result;
}

json::object register_in_tools(HostState& host, Request& request) {
    const auto params = take_object(request.params, "params");
    host.tools_of(request)->server->register_server(text_of(request.params, "name"), params);
    return {};
}

awaitable<json::object> unregister_in_tools(HostPtr host, RequestPtr request) {
    const auto tools = host->tools_of(*request);
    auto name = text_of(request->params, "name");
    tools->runners.erase(name);
    co_await tools->server->unregister_server(std::move(name));
    co_return json::object();
}

json::object servers_of_tools(HostState& host, Request& request) {
    return servers_json(host.tools_of(request)->server->servers());
}

awaitable<json::object> list_of_tools(HostPtr host, RequestPtr request) {
    const auto tools = host->tools_of(*request);
    auto name = text_of(request->params, "name");
    const auto listed = co_await tools->server->list_tools(std::move(name));
    std::vector<ToolInfo> infos;
    for (const auto& tool : listed) infos.push_back(ToolInfo::of(tool.as_object()));
    co_return tools_json(std::move(infos));
}

// A call by way of the socket, as every other one.
awaitable<json::object> call_of_tools(HostPtr host, RequestPtr request) {
    const auto tools = host->tools_of(*request);
    auto& params = request->params;
    const auto server = text_of(params, "server");
    ToolRunnerOptions options;
    options.unix_socket = (tools->directory->path() / "socket").string();
    options.token = tools->server->token();
    options.timeout = seconds_of(params, "timeout", 0);
    // Connections are kept where the time is not limited.
    const bool kept = options.timeout == Duration::zero();
    std::shared_ptr<ToolRunner> runner;
    if (const auto found = tools->runners.find(server); kept && found != tools->runners.end())
        runner = found->second;
    if (!runner) {
        runner = std::make_shared<ToolRunner>(host->executor, server, options);
        if (kept && tools->runners.size() < max_objects) tools->runners.emplace(server, runner);
    }
    auto tool = text_of(params, "tool");
    auto arguments = take_object(params, "arguments");
    auto output = co_await runner->run(std::move(tool), std::move(arguments));
    co_return output_json(std::move(output));
}

json::object set_policy_of_tools(HostState& host, Request& request) {
    const auto tools = host.tools_of(request);
    // The host and its registry outlive it: calls hold the doors.
    std::shared_ptr<ApprovalPolicy> policy =
        make_policy(host.registry, tools->doors->host, request.params.at("approval"),
                    text_of(request.params, "approval_name", "approval"));
    tools->server->set_policy(std::move(policy));
    return {};
}

awaitable<json::object> reset_tools(HostPtr host, RequestPtr request) {
    const auto tools = host->tools_of(*request);
    co_await tools->server->reset();
    co_return json::object();
}

awaitable<json::object> close_tools(HostPtr host, RequestPtr request) {
    const auto tools = host->tools_of(*request);
    host->tools.erase(tools->handle);
    co_await tools->server->reset();
    // Calls that wait for a connection fail as well, and nobody is asked about them.
    tools->server.reset();
    co_return json::object();
}

ToolRunnerOptions runner_options(const json::object& params) {
    ToolRunnerOptions options;
    options.host = text_of(params, "host", "localhost");
    options.port = static_cast<unsigned short>(count_of(params, "port", 8900));
    options.token = text_of(params, "token");
    options.timeout = seconds_of(params, "timeout", 0);
    return options;
}

awaitable<json::object> call_over_http(HostPtr host, RequestPtr request) {
    auto& params = request->params;
    auto options = runner_options(params);
    if (params.contains("server_params"))
        options.server_params = take_object(params, "server_params");
    ToolRunner runner(host->executor, text_of(params, "server"), std::move(options));
    auto tool = text_of(params, "tool");
    auto arguments = take_object(params, "arguments");
    auto output = co_await runner.run(std::move(tool), std::move(arguments));
    co_return output_json(std::move(output));
}

awaitable<json::object> reset_over_http(HostPtr host, RequestPtr request) {
    ToolRunner runner(host->executor, std::string(), runner_options(request->params));
    co_await runner.reset();
    co_return json::object();
}

}  // namespace

Methods tools_methods() {
    return {{"tools/open", open_tools},
            {"tools/listen", listen_for_tools},
            {"tools/register", register_in_tools},
            {"tools/unregister", nullptr, unregister_in_tools},
            {"tools/servers", servers_of_tools},
            {"tools/list", nullptr, list_of_tools},
            {"tools/call", nullptr, call_of_tools},
            {"tools/set_policy", set_policy_of_tools},
            {"tools/reset", nullptr, reset_tools},
            {"tools/close", nullptr, close_tools},
            {"runner/call", nullptr, call_over_http},
            {"runner/reset", nullptr, reset_over_http}};
}

}  // namespace ipybox::app::host
