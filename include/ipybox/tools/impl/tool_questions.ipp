#pragma once
#include <ipybox/tools/tool_server.hpp>

#include <ipybox/compilation.hpp>
#include <ipybox/detail/json_members.hpp>
#include <ipybox/tools/impl/tool_server_state.hpp>

namespace ipybox {

IPYBOX_DECL tools::ToolCatalogue& ToolServer::catalogue(Impl& state) {
    const auto begun = Clock::now();
    if (state.catalogue && begun < state.files_trusted_until) return *state.catalogue;
    std::vector<ImportableTool> files;
    try {
        files = importable_tools(state.options.workspace);
    } catch (const Error&) {
        // There is no workspace, and so nothing in it.
    }
    if (!state.catalogue || state.catalogue->files() != files) {
        std::vector<tools::ToolCatalogue::Server> servers;
        for (const auto& [name, server] : state.servers)
            servers.push_back({name, server->was_listed ? server->tools.get() : nullptr});
        state.catalogue = std::make_unique<tools::ToolCatalogue>(servers, std::move(files),
                                                                 state.options.async_api);
    }
    // Code that asks all the time in a workspace full of files costs a twentieth of it at most.
    const auto end = Clock::now();
    if (end - begun > std::chrono::milliseconds(10))
        state.files_trusted_until = end + 20 * (end - begun);
    return *state.catalogue;
}

IPYBOX_DECL std::string ToolServer::search_tools(std::string_view query, std::size_t limit,
                                                 bool everything) const {
    using Scope = tools::ToolCatalogue::Scope;
    return catalogue(*state_).search(query, limit, everything ? Scope::all : Scope::callable);
}

IPYBOX_DECL std::string ToolServer::describe_tool(std::string_view name) const {
    return catalogue(*state_).describe(name);
}

IPYBOX_DECL std::string ToolServer::list_stubs(std::string_view server) const {
    return catalogue(*state_).stubs(server);
}

IPYBOX_DECL bool ToolServer::is_question(const ToolCall& request) {
    return request.server == own_name &&
           (request.tool == "search_tools" || request.tool == "describe_tool" ||
            request.tool == "list_stubs");
}

IPYBOX_DECL ToolServer::Reply ToolServer::answer_question(Impl& state, const ToolCall& request) {
    const auto& arguments = request.arguments;
    const auto refuse = [&](const char* form) {
        throw Error(errc::bad_argument, request.tool + " takes " + form);
    };
    const auto only_text = [&](std::string_view key, const char* form) {
        if (arguments.size() != 1 || !detail::find_string(arguments, key)) refuse(form);
        return detail::string_of(arguments, key);
    };
    Reply reply;
    if (request.tool == "describe_tool") {
        reply.body["result"] =
            catalogue(state).describe(only_text("name", "{\"name\": \"server.tool\"}"));
    } else if (request.tool == "list_stubs") {
        reply.body["result"] = catalogue(state).stubs(only_text("server", "{\"server\": text}"));
    } else {
        constexpr auto form = "{\"query\": text, \"limit\": 1 to 50}";
        const auto* limit = arguments.if_contains("limit");
        const auto query = detail::string_of(arguments, "query");
        if (!detail::find_string(arguments, "query") || arguments.size() != (limit ? 2u : 1u))
            refuse(form);
        const auto most = limit && limit->is_int64() ? limit->get_int64() : limit ? 0 : 5;
        if (most < 1 || most > static_cast<std::int64_t>(tools::ToolCatalogue::max_found))
            refuse(form);
        reply.body["result"] = catalogue(state).search(query, static_cast<std::size_t>(most));
    }
    return reply;
}

}  // namespace ipybox
