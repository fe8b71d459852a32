#pragma once
#include <ipybox/approval/tool_binding.hpp>

#include <algorithm>
#include <ipybox/approval/question_text.hpp>
#include <ipybox/approval/rules.hpp>
#include <ipybox/compilation.hpp>
#include <ipybox/detail/canonical_json.hpp>
#include <ipybox/detail/hex.hpp>
#include <ipybox/detail/json_members.hpp>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/detail/utf8.hpp>
#include <utility>
#include <vector>

namespace ipybox::approval {

inline std::string hash_of(const json::value& value) {
    return detail::sha256_hex(detail::canonical_json(value, detail::CanonicalNumbers::exact));
}

// Enough to tell that a part changed; what counts is the hash of the whole.
inline std::string part_hash(const json::value& value) { return hash_of(value).substr(0, 16); }

inline json::object part_hashes(const json::object& parts) {
    json::object result;
    for (const auto& [name, value] : parts) result[name] = part_hash(value);
    return result;
}

// A tool, as far as it is kept: "hash", and hashes of its parts for telling what changed.
inline json::object record_of(const json::object& schema, std::string_view description,
                              const json::object& annotations, std::string hash) {
    constexpr std::size_t most_parts = 300;  // of those of which each is told
    json::object rest = schema, record, parameters;
    const auto* properties = detail::object_of(schema, "properties");
    if (properties && properties->size() <= most_parts) {
        std::vector<json::value> others;
        for (const auto& [name, value] : *properties) parameters[name] = json::array{value, false};
        if (const auto* required = schema.if_contains("required"); required && required->is_array())
            for (const auto& name : required->get_array()) {
                auto* parameter =
                    name.is_string() ? parameters.if_contains(name.get_string()) : nullptr;
                if (parameter)
                    parameter->get_array()[1] = true;
                else
                    others.push_back(name);
            }
        rest.erase("properties");
        rest["required"] = json::array(others.begin(), others.end());
    }
    record["hash"] = std::move(hash);
    record["description"] = part_hash(json::string(description));
    record["parameters"] = part_hashes(parameters);
    if (annotations.size() <= most_parts) record["hints"] = part_hashes(annotations);
    record["schema"] = part_hash(rest);
    return record;
}

inline std::string shown_identity(const std::string& text) {
    constexpr std::size_t longest = 400;
    if (text.size() <= longest) return approval::quoted(text);
    return approval::quoted(text.substr(0, detail::utf8_border(text, longest))) + " [" +
           std::to_string(text.size()) + " bytes, sha256 " +
           detail::sha256_hex(text).substr(0, 32) + "]";
}

// "+added, -removed, ~changed", or empty.
inline std::string differences(const json::object& before, const json::object& now) {
    constexpr std::size_t most_shown = 12;
    std::vector<std::string> found;
    for (const auto& [name, value] : now)
        if (const auto* old = before.if_contains(name); !old || *old != value)
            found.push_back((old ? "~" : "+") + plain_name(name));
    for (const auto& entry : before)
        if (!now.contains(entry.key())) found.push_back("-" + plain_name(entry.key()));
    std::string text;
    for (std::size_t i = 0; i < std::min(found.size(), most_shown); ++i)
        text += (i == 0 ? "" : ", ") + found[i];
    if (found.size() > most_shown)
        text += " and " + std::to_string(found.size() - most_shown) + " more";
    return text;
}

IPYBOX_DECL std::string definition_hash(const json::object& schema, std::string_view description,
                                        const json::object& annotations) {
    json::object whole;
    whole["annotations"] = annotations;
    whole["description"] = description;
    whole["inputSchema"] = schema;
    return hash_of(whole);
}

IPYBOX_DECL ToolBinding ToolBinding::of(const ToolCall& call, bool one_tool) {
    ToolBinding binding;
    binding.server_ = call.server_identity;
    if (!one_tool && call.server_tools)
        for (const auto& entry : *call.server_tools) {
            const auto& tool = entry.as_object();
            static const json::object nothing;
            const auto* schema = detail::object_of(tool, "inputSchema");
            const auto* hints = detail::object_of(tool, "annotations");
            const auto description = detail::string_of(tool, "description");
            const auto& stated = schema ? *schema : nothing;
            const auto& hinted = hints ? *hints : nothing;
            binding.tools_[std::string(detail::string_of(tool, "name"))] = record_of(
                stated, description, hinted, definition_hash(stated, description, hinted));
        }
    binding.tools_[call.tool] =
        record_of(*call.input_schema, call.description, call.annotations, call.definition_hash);
    return binding;
}

IPYBOX_DECL ToolBinding ToolBinding::read(const json::value& value, const std::string& place) {
    const auto& object = rule_object(value, place, {"server", "tools"});
    const auto* server = object.if_contains("server");
    const auto* tools = object.if_contains("tools");
    if (!server || !tools || !tools->is_object())
        bad_rule(place, "must be {\"server\": text, \"tools\": object}");
    ToolBinding binding;
    binding.server_ = server->is_string() ? std::string(server->get_string())
                                          : rule_text(*server, below(place, "server"));
    for (const auto& [name, tool] : tools->get_object()) {
        const auto where = below(below(place, "tools"), name);
        const auto& record =
            rule_object(tool, where, {"hash", "description", "parameters", "hints", "schema"});
        if (!detail::find_string(record, "hash")) bad_rule(where, "\"hash\" must be a text");
        binding.tools_[name] = record;
    }
    return binding;
}

IPYBOX_DECL json::object ToolBinding::to_json() const {
    json::object result, tools;
    for (const auto& [name, record] : tools_) tools[name] = record;
    result["server"] = server_;
    result["tools"] = std::move(tools);
    return result;
}

IPYBOX_DECL std::string ToolBinding::changes(const ToolCall& call) const {
    if (server_ != call.server_identity)
        return "the server is another than you allowed: it was " + shown_identity(server_) +
               " and is " + shown_identity(call.server_identity);
    const auto found = tools_.find(call.tool);
    if (found == tools_.end()) return "the tool is new since you allowed this server";
    const auto& before = found->second;
    if (detail::string_of(before, "hash") == call.definition_hash) return {};
    const auto now =
        record_of(*call.input_schema, call.description, call.annotations, call.definition_hash);
    std::string text;
    const auto tell = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
    const auto differs = [&](const char* part) {
        const auto *old = before.if_contains(part), *fresh = now.if_contains(part);
        return (old != nullptr) != (fresh != nullptr) || (old && *old != *fresh);
    };
    const auto tell_parts = [&](const char* part) {
        if (!differs(part)) return;
        const auto *old = detail::object_of(before, part), *fresh = detail::object_of(now, part);
        const auto names = old && fresh ? differences(*old, *fresh) : std::string();
        tell(part + (names.empty() ? "" : ": " + names));
    };
    if (differs("description")) tell("description");
    tell_parts("hints");
    if (differs("schema")) tell("schema");
    tell_parts("parameters");
    return "the tool changed since you allowed it" + (text.empty() ? "" : ": " + text);
}

}  // namespace ipybox::approval
