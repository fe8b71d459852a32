#pragma once
// What an application lists: MCP servers and their tools.
#include <boost/json/object.hpp>
#include <ipybox/detail/json_members.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace ipybox {

// A registered MCP server.
struct ServerInfo {
    enum class State { stopped, starting, running };  // stopped: its next use starts it
    std::string name;
    std::string type;  // its transport: "stdio", "streamable_http", "sse", "local", or a plugin's
    State state = State::stopped;
};

// A tool as its server describes it: texts of others, to be escaped before a person sees them. Its
// hints are claims; absent where the server says nothing.
struct ToolInfo {
    std::string name;  // the server's own
    std::string title, description;
    boost::json::object input_schema;
    boost::json::object output_schema;  // empty: it states none
    std::optional<bool> read_only;      // changes nothing
    std::optional<bool> destructive;    // what it changes may be lost; else it only adds
    std::optional<bool> idempotent;     // a second call changes nothing more
    std::optional<bool> open_world;     // it deals with what lies outside, such as the web

    // tool: an entry of tools/list.
    static ToolInfo of(const boost::json::object& tool) {
        ToolInfo info;
        info.name = detail::string_of(tool, "name");
        info.title = detail::string_of(tool, "title");
        info.description = detail::string_of(tool, "description");
        if (const auto* schema = detail::object_of(tool, "inputSchema"))
            info.input_schema = *schema;
        if (const auto* schema = detail::object_of(tool, "outputSchema"))
            info.output_schema = *schema;
        const auto* hints = detail::object_of(tool, "annotations");
        if (!hints) return info;
        if (info.title.empty()) info.title = detail::string_of(*hints, "title");
        const auto hint = [hints](std::string_view key) {
            const auto* value = hints->if_contains(key);
            return value && value->is_bool() ? std::optional(value->get_bool()) : std::nullopt;
        };
        info.read_only = hint("readOnlyHint");
        info.destructive = hint("destructiveHint");
        info.idempotent = hint("idempotentHint");
        info.open_world = hint("openWorldHint");
        return info;
    }
};

}  // namespace ipybox
