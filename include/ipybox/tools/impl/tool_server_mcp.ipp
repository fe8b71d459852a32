#pragma once
// The MCP servers behind a ToolServer: registered, placed, connected to, and listed anew.
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <ipybox/compilation.hpp>
#include <ipybox/mcp/local_transport.hpp>
#include <ipybox/tools/impl/tool_server_state.hpp>
#include <ipybox/tools/server_identity.hpp>
#include <ipybox/tools/tool_server.hpp>

namespace ipybox {

IPYBOX_DECL void ToolServer::check_name(const std::string& name) {
    if (name == own_name)
        throw Error(
            errc::bad_config,
            "MCP server " + name + ": ipybox itself answers under this name; choose another");
}

IPYBOX_DECL json::object ToolServer::checked_params(const std::string& name,
                                                    const json::object& params) {
    check_name(name);
    return check_server_params(params, "MCP server " + name);
}

IPYBOX_DECL ToolServer::Server& ToolServer::register_in(Impl& state, const std::string& name,
                                                        json::object params) {
    state.catalogue = nullptr;
    state.unregistered.erase(name);
    if (auto old = state.servers.find(name); old != state.servers.end()) {
        old->second->client = nullptr;
        state.servers.erase(old);
    }
    // Who lets a server send more has room for its answers.
    if (const auto* most = params.if_contains("max_message");
        most && most->is_int64() && most->get_int64() > 0) {
        const auto room = 4 * static_cast<std::size_t>(most->get_int64());
        state.memory.ensure(room);
        MemoryBudget::process().ensure(room);
    }
    auto server = std::make_shared<Server>(name, std::move(params), state.host.executor);
    server->identity = server_identity(server->params);
    return *state.servers.emplace(name, std::move(server)).first->second;
}

IPYBOX_DECL void ToolServer::register_server(const std::string& name, McpServer& server) {
    check_name(name);
    auto local = LocalTransport::to(server, state_->host.executor);
    auto& registered = register_in(*state_, name, {{"type", "local"}});
    registered.local = std::move(local);
    registered.identity = "in process";
}

IPYBOX_DECL awaitable<void> ToolServer::unregister_server(std::string name) {
    const auto state = state_;
    // Later: a tool of that server may be what asks, and would be cancelled while it runs.
    co_await asio::post(state->host.executor, asio::use_awaitable);
    const auto server = find(*state, name);
    state->catalogue = nullptr;
    state->servers.erase(server->name);
    state->unregistered.insert(server->name);
    server->removed = true;
    state->withdrawn.notify();
    if (const auto client = std::exchange(server->client, nullptr)) co_await client->close();
}

IPYBOX_DECL std::vector<ServerInfo> ToolServer::servers() const {
    std::vector<ServerInfo> all;
    for (const auto& [name, server] : state_->servers) {
        ServerInfo info;
        info.name = name;
        info.type = transport_of(server->params);
        if (server->client && server->client->alive())
            info.state = ServerInfo::State::running;
        else if (server->connecting)
            info.state = ServerInfo::State::starting;
        all.push_back(std::move(info));
    }
    return all;
}

IPYBOX_DECL bool ToolServer::Server::adopt(json::array listed) {
    const bool first = !std::exchange(was_listed, true);
    if (!first && listed == *tools) return false;
    ++listing;
    by_name.clear();
    tools = std::make_shared<const json::array>(std::move(listed));
    for (const auto& entry : *tools) {
        const auto& object = entry.as_object();
        Tool tool;
        tool.description = detail::string_of(object, "description");
        if (const auto* hints = detail::object_of(object, "annotations")) tool.annotations = *hints;
        if (const auto* schema = detail::object_of(object, "inputSchema"))
            tool.schema = std::make_shared<const json::value>(*schema);
        by_name.insert_or_assign(std::string(detail::string_of(object, "name")), std::move(tool));
    }
    return !first;
}

IPYBOX_DECL awaitable<void> ToolServer::stop_servers(ImplPtr state) {
    state->withdraw();
    std::vector<std::shared_ptr<McpClient>> clients;  // servers may be registered meanwhile
    for (auto& [name, server] : state->servers)
        if (auto client = std::exchange(server->client, nullptr))
            clients.push_back(std::move(client));
    for (const auto& client : clients) co_await client->close();
}

IPYBOX_DECL ToolServer::ServerPtr ToolServer::find(Impl& state, std::string_view name) {
    if (const auto found = state.servers.find(name); found != state.servers.end())
        return found->second;
    std::string known;
    for (const auto& entry : state.servers) known += (known.empty() ? "" : ", ") + entry.first;
    const std::string why = state.unregistered.contains(name)
                                ? "MCP server \"" + std::string(name) + "\" was unregistered"
                                : "no MCP server is registered as \"" + std::string(name) + '"';
    throw Error(errc::bad_argument, why + "; registered: " + (known.empty() ? "none" : known));
}

IPYBOX_DECL awaitable<void> ToolServer::connect(ImplPtr state, ServerPtr server) {
    std::optional<Error> failure;
    try {
        co_await connect_once(state, server);
    } catch (const Error& error) {
        failure.emplace(error.code(), state->secrets.hide(error.detail()));
    }
    if (failure) throw *failure;
}

IPYBOX_DECL awaitable<void> ToolServer::connect_once(ImplPtr state, ServerPtr server) {
    const auto require_registered = [&server] {
        if (server->removed)
            throw Error(errc::bad_argument,
                        "MCP server " + server->name + " was unregistered while it started");
    };
    while (server->connecting) co_await server->changed.wait();
    require_registered();
    if (server->client && server->client->alive() && server->client->tools_current()) co_return;
    server->connecting = true;
    struct Finished {
        Server& server;
        ~Finished() {
            server.connecting = false;
            server.changed.notify();
        }
    } const finished{*server};
    if (server->client && server->client->alive()) {  // its tools changed since they were listed
        auto client = server->client;
        json::value tools = co_await client->list_tools();
        state->secrets.hide_in_result(tools);
        state->catalogue = nullptr;
        if (server->adopt(std::move(tools.as_array()))) tell_changed(*state, *server);
        co_return;
    }
    server->client = nullptr;
    const std::string where = "MCP server " + server->name;
    auto params =
        substitute_variables(server->params, state->variables, where, state->secrets).as_object();
    const bool own = has_own_transport(params);
    for (const char* field : {"env", "headers"})
        if (const auto* values = own ? params.if_contains(field) : nullptr)
            for (const auto& entry : values->as_object()) {
                const bool confidential = config::names_a_secret(entry.key());
                std::string value(entry.value().as_string());
                if (!confidential && is_directory_name(value)) continue;
                // Of "Bearer TOKEN" the second word.
                if (const auto blank = value.rfind(' '); confidential && blank != value.npos)
                    state->secrets.add(value.substr(blank + 1), true);
                state->secrets.add(std::move(value), confidential);
            }
    if (const auto* auth = own ? params.if_contains("auth") : nullptr) {
        for (const char* field : {"client_secret", "private_key", "assertion"})
            if (const auto* value = auth->as_object().if_contains(field))
                state->secrets.add(std::string(value->as_string()), true);
    }
    // What a transport with parameters of its own starts is not known before: it is placed, too.
    if (own ? params.contains("command") : !server->local) place_server(*state, *server, params);
    Sandbox& sandbox = server->sandbox ? *server->sandbox : state->sandbox;
    auto transport = make_transport(*state, *server, std::move(params));
    McpClientOptions options;
    if (state->options.on_connect) state->options.on_connect(server->name, options);
    options.name = server->name;
    options.exact_numbers = true;
    options.era = server->era;
    options.connect_timeout = state->options.connect_timeout;
    options.logger.level = state->host.logger.level;
    if (state->host.logger.write)
        options.logger.write = [weak = std::weak_ptr<Impl>(state)](LogLevel level,
                                                                   std::string_view line) {
            if (const auto held = weak.lock())
                held->host.logger(level, held->secrets.hide(std::string(line)));
        };
    options.on_tools_changed = [weak_state = std::weak_ptr<Impl>(state),
                                weak = std::weak_ptr<Server>(server)] {
        auto held = weak_state.lock();
        auto changed = weak.lock();
        if (held && changed)
            asio::co_spawn(held->host.executor, relist(held, changed), asio::detached);
    };
    auto client =
        std::make_shared<McpClient>(state->host.executor, std::move(transport), std::move(options));
    co_await client->connect(sandbox);
    server->era = client->era();
    json::value tools = co_await client->list_tools();
    if (server->removed) co_await client->close();
    require_registered();
    state->secrets.hide_in_result(tools);  // code reads the sources that are made of them
    state->catalogue = nullptr;
    const bool differs = server->adopt(std::move(tools.as_array()));
    server->client = std::move(client);
    if (differs) tell_changed(*state, *server);
}

IPYBOX_DECL std::unique_ptr<McpTransport> ToolServer::make_transport(Impl& state,
                                                                     const Server& server,
                                                                     json::object params) try {
    if (server.local) return server.local();
    const auto plugin = transport_of(params);
    params.erase("type");  // said which plugin it is, in words of several clients
    // What a person is told to do names the server.
    if (state.registry.takes<McpTransport>(plugin, "name")) params["name"] = server.name;
    return state.registry.make<McpTransport>(plugin, state.host, params);
} catch (const Error& error) {
    throw Error(error.code(), "MCP server " + server.name + ": " + error.detail());
}

IPYBOX_DECL bool ToolServer::is_directory_name(const std::string& value) {
    std::error_code ignored;
    return value.starts_with('/') && std::filesystem::is_directory(value, ignored);
}

IPYBOX_DECL void ToolServer::place_server(Impl& state, Server& server, json::object& params) {
    const std::string where = "MCP server " + server.name;
    const auto& workspace = state.options.workspace;
    const bool own = has_own_transport(params);
    if (const auto settings = params.find("sandbox"); settings != params.end()) {
        if (!state.options.make_sandbox)
            throw Error(errc::bad_config, where + ": \"sandbox\" is not supported here");
        if (!settings->value().is_object())
            throw Error(errc::bad_config, where + ": \"sandbox\" must be an object");
        if (!server.sandbox)
            server.sandbox = state.options.make_sandbox(settings->value().get_object());
        params.erase(settings);
        if (!own) return;
        params.erase("trust_cwd");  // what it confines needs no trust
        if (!params.contains("cwd")) params["cwd"] = workspace.string();
        return;
    }
    if (own && !params.contains("cwd")) {
        std::error_code ignored;
        detail::ServerArguments arguments(where, server.params, params, workspace,
                                          std::filesystem::current_path(ignored));
        const auto notices = arguments.correct();
        if (!std::exchange(server.told, true))
            for (const auto& notice : notices)
                state.host.logger(notice.level, state.secrets.hide(notice.text));
    }
    if (!server.sandbox)
        server.sandbox = std::make_unique<UnconfinedServer>(
            state.sandbox, server.name, own ? params : json::object{},
            ServerPlace{workspace, state.options.kernel_user, state.host.logger,
                        state.options.record_places});
    if (!own) return;
    for (const char* field : {"user", "trust_cwd"}) params.erase(field);  // not the transport's
}

IPYBOX_DECL void ToolServer::tell_changed(const Impl& state, const Server& server) {
    state.host.logger(LogLevel::info, "the tools of MCP server " + server.name + " changed");
    if (state.options.on_tools_changed) state.options.on_tools_changed(server.name);
}

IPYBOX_DECL awaitable<void> ToolServer::relist(ImplPtr state, ServerPtr server) {
    if (state->closed || !server->client || !server->client->alive()) co_return;
    try {
        co_await connect(state, server);
    } catch (const std::exception& error) {
        state->host.logger(LogLevel::warning,
                           std::string("its changed tools could not be listed: ") + error.what());
    }
}

}  // namespace ipybox
