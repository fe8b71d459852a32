#pragma once
// MCP servers as other clients' configurations write them (Claude, Cursor, VS Code, Codex, Cline,
// Gemini CLI, Windsurf, fastmcp, LangChain), in the words of ours.
#include <algorithm>
#include <boost/json/object.hpp>
#include <cctype>
#include <ipybox/detail/python_source.hpp>
#include <ipybox/error.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ipybox::detail {

namespace json = boost::json;

// What a client's field comes to here.
struct ClientField {
    std::string_view name;
    std::string_view instead;  // empty: nothing that a person has to know; else what to do here
};
inline constexpr ClientField client_fields[] = {
    {"description", {}},
    {"name", {}},
    {"icon", {}},
    {"gallery", {}},
    {"trust", {}},
    {"tags", {}},
    {"metadata", {}},
    {"version", {}},
    {"disabled", {}},
    {"enabled", {}},
    {"keep_alive", {}},
    {"dev", {}},
    {"autoApprove", "calls are decided by a policy: see --policy"},
    {"alwaysAllow", "calls are decided by a policy: see --policy"},
    {"autoApproveTools", "calls are decided by a policy: see --policy"},
    {"timeout", "clients mean seconds or milliseconds by it"},
    {"initTimeout", "clients mean seconds or milliseconds by it"},
    {"sse_read_timeout", "streams may be silent for any time"},
    {"session_kwargs", "it is for LangChain's sessions"},
    {"encoding_error_handler", "what is no UTF-8 becomes U+FFFD"},
    {"envFile", "it is not read: name the variables in \"env\""},
    {"includeTools", "all tools are offered; a policy can deny the others"},
    {"excludeTools", "all tools are offered; a policy can deny these"},
    {"disabledTools", "all tools are offered; a policy can deny these"},
    {"allowedTools", "all tools are offered; a policy can deny the others"},
    {"tools", "all tools are offered; a policy can deny some"},
    {"oauth", "see \"auth\" in docs/configuration.md"},
    {"authProviderType", "see \"auth\" in docs/configuration.md"},
    {"required", {}},
    {"supports_parallel_tool_calls", {}},
    {"startup_timeout_sec", "see --connect-timeout"},
    {"startup_timeout_ms", "see --connect-timeout"},
    {"tool_timeout_sec", "see --tool-timeout"},
    {"enabled_tools", "all tools are offered; a policy can deny the others"},
    {"disabled_tools", "all tools are offered; a policy can deny these"},
    {"default_tools_approval_mode", "calls are decided by a policy: see --policy"},
    {"experimental_environment", "servers start on this machine"},
    {"scopes", "see \"auth\" in docs/configuration.md"},
    {"oauth_resource", "see \"auth\" in docs/configuration.md"},
};

// Whether another client would leave this server out.
inline bool is_disabled(const json::object& params) {
    const auto says = [&params](std::string_view key, bool value) {
        const auto* field = params.if_contains(key);
        return field != nullptr && field->is_bool() && field->get_bool() == value;
    };
    return says("disabled", true) || says("enabled", false);
}

// In small letters, without what separates words.
inline std::string plain_word(std::string_view text) {
    std::string plain;
    for (const char c : text)
        if (c != '-' && c != '_' && c != ' ')
            plain += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return plain;
}

// "stdio", "http" or "sse" for every spelling of it; else as it stands.
inline std::string transport_type(std::string_view written) {
    const auto plain = plain_word(written);
    if (plain == "stdio" || plain == "local") return "stdio";
    if (plain == "sse") return "sse";
    if (plain == "http" || plain == "streamablehttp" || plain == "remote") return "http";
    return std::string(written);
}

// A server's parameters without the fields that only other clients have, and with their words for
// ours. notices: what of it does nothing here, for a person; a line each, beginning with `where`.
// Throws Error: bad_config (two fields contradict each other).
inline json::object adapt_client_params(const json::object& params, const std::string& where,
                                        std::vector<std::string>& notices) {
    json::object result;
    const auto fail = [&](const std::string& why) {
        throw Error(errc::bad_config, where + ": " + why);
    };
    const auto put = [&](std::string_view key, json::value value, std::string_view from) {
        const auto [at, fresh] = result.emplace(key, value);
        if (!fresh && at->value() != value)
            fail("\"" + std::string(from) + "\" and \"" + std::string(key) +
                 "\" contradict each other");
    };
    const auto text = [](const json::value& value) {
        return value.is_string() ? std::string_view(value.get_string()) : std::string_view();
    };
    for (const auto& [name, value] : params) {
        const std::string_view key = name;
        const auto* const known =
            std::find_if(std::begin(client_fields), std::end(client_fields),
                         [&](const ClientField& field) { return field.name == key; });
        if (known != std::end(client_fields)) {
            // An empty list, or false, asks for nothing.
            const bool asks = !value.is_null() && value != json::value(false) &&
                              !(value.is_array() && value.get_array().empty());
            if (asks && !known->instead.empty())
                notices.push_back(where + ": \"" + std::string(key) +
                                  "\" does nothing here: " + std::string(known->instead));
        } else if (value.is_null()) {
            continue;  // what is null was left out
        } else if (key == "transport" || key == "type") {
            put("type", value.is_string() ? json::value(transport_type(text(value))) : value, key);
        } else if (key == "serverUrl" || key == "httpUrl") {
            put("url", value, key);
            if (key == "httpUrl") put("type", "http", key);
        } else if (key == "encoding") {
            if (plain_word(text(value)) != "utf8")
                fail("\"encoding\" must be utf-8: MCP has no other");
        } else {
            put(key, value, key);
        }
    }
    const auto type = result.contains("type") ? text(result.at("type")) : std::string_view();
    if (type == "stdio" && result.contains("url"))
        fail("the type \"stdio\" and a \"url\" contradict each other");
    if ((type == "http" || type == "sse") && result.contains("command"))
        fail("the type \"" + std::string(type) + "\" and a \"command\" contradict each other");
    return result;
}

// A server's parameters as Codex writes them, with what it takes from variables as ${NAME}. What
// has another form than Codex gives it stays, and check_server_params() refuses it.
inline json::object codex_params(const json::object& params) {
    json::object result, headers, env;
    const auto variable = [](const json::value& name) {
        return "${" + std::string(name.get_string()) + "}";
    };
    // Adds the strings of a table; false when it holds something else.
    const auto add = [](json::object& to, const json::value& table, const auto& text) {
        const auto* fields = table.if_object();
        if (!fields || !std::all_of(fields->begin(), fields->end(),
                                    [](const auto& field) { return field.value().is_string(); }))
            return false;
        for (const auto& [name, value] : *fields) to[name] = text(value);
        return true;
    };
    const auto as_it_is = [](const json::value& value) { return std::string(value.get_string()); };
    for (const auto& [name, value] : params) {
        const std::string_view key = name;
        if (key == "http_headers" && add(headers, value, as_it_is)) continue;
        if (key == "env_http_headers" && add(headers, value, variable)) continue;
        if (key == "env" && add(env, value, as_it_is)) continue;
        if (key == "bearer_token_env_var" && value.is_string()) {
            headers["Authorization"] = "Bearer " + variable(value);
            continue;
        }
        const auto* names = key == "env_vars" ? value.if_array() : nullptr;
        if (names && std::all_of(names->begin(), names->end(),
                                 [](const auto& one) { return one.is_string(); })) {
            for (const auto& one : *names) env.emplace(one.get_string(), variable(one));
            continue;
        }
        result[name] = value;
    }
    if (!headers.empty()) result["headers"] = std::move(headers);
    if (!env.empty()) result["env"] = std::move(env);
    return result;
}

// The name of a Python package for a server that others call so: what cannot stand in one becomes
// "_". Empty when nothing of it is left.
inline std::string package_name(std::string_view server) {
    if (server.size() <= 64 && is_python_identifier(server) && !is_python_keyword(server))
        return std::string(server);
    std::string name;
    for (const char c : server.substr(0, 64)) {
        const bool usable = is_word(static_cast<unsigned char>(c));
        if (usable || (!name.empty() && name.back() != '_')) name += usable ? c : '_';
    }
    while (name.ends_with('_')) name.pop_back();
    if (name.empty()) return name;
    if (is_ascii_digit(static_cast<unsigned char>(name.front()))) name.insert(0, "_");
    if (is_python_keyword(name)) name += '_';
    return name.substr(0, 64);
}

}  // namespace ipybox::detail
