#pragma once
// Policies as configuration: "ask", {"deny": {...}}, {"rules": [...]}, {"first_match": ["x", ...]},
// nested as needed.
#include <algorithm>
#include <filesystem>
#include <ipybox/approval/approval.hpp>
#include <ipybox/config.hpp>
#include <ipybox/registry.hpp>
#include <set>
#include <string>
#include <vector>

namespace ipybox {

namespace approval {
// Refuses an object with the same key twice: of two conditions, one would be lost. text: JSON.
inline void refuse_repeated_keys(std::string_view text, const std::string& what) {
    std::vector<std::set<std::string_view>> objects;
    for (std::size_t at = 0; at < text.size(); ++at) {
        if (text[at] == '{' || text[at] == '[') objects.emplace_back();
        if ((text[at] == '}' || text[at] == ']') && !objects.empty()) objects.pop_back();
        if (text[at] != '"') continue;
        const std::size_t start = at + 1;
        for (++at; at < text.size() && text[at] != '"'; ++at) at += text[at] == '\\';
        const auto key = text.substr(start, std::min(at, text.size()) - start);
        const auto next = text.find_first_not_of(" \t\r\n", at + 1);
        if (next == text.npos || text[next] != ':' || objects.empty() ||
            objects.back().insert(key).second)
            continue;
        const auto line =
            std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(start), '\n') + 1;
        throw Error(errc::bad_config,
                    what + ": line " + std::to_string(line) + ": \"" + std::string(key) +
                        "\" stands twice in one object; put both into one, or into a rule each");
    }
}
}  // namespace approval

// Reads the configuration of a policy from a file, for make_policy(). Throws Error: bad_argument
// (it cannot be read), bad_config (it is no JSON, or an object has a key twice), naming the file
// and the line.
inline json::value read_policy(const std::filesystem::path& file) {
    const std::string text = read_text_file(file);
    auto policy = parse_json(text, file.string(), Numbers::exact);
    approval::refuse_repeated_keys(text, file.string());
    return policy;
}

// Makes the policy a configuration describes: a plugin's name, an object of one plugin's name
// and its configuration, or an object of one combinator (first_match, all_of, any_of) and its
// members. An array instead of a plugin's configuration is its member of the plugin's name:
// {"rules": [...]} means {"rules": {"rules": [...]}}. where: what the configuration is, such as
// its file, for messages. Throws Error: bad_config (it describes no policy; names the place),
// no_such_plugin (no policy has that name), and what the plugin throws. `host` must outlive the
// policy.
inline PolicyPtr make_policy(PluginRegistry& registry, Host& host, const json::value& config,
                             const std::string& where = "approval", int depth = 0) {
    if (depth > 16) throw Error(errc::bad_config, where + ": nested more than 16 deep");
    const auto make = [&](std::string_view plugin, const json::object& settings) {
        try {
            return registry.make<ApprovalPolicy>(plugin, host, settings);
        } catch (const Error& error) {
            throw Error(error.code(), where + ": " + error.detail());
        }
    };
    if (const auto* name = config.if_string()) return make(std::string_view(*name), json::object{});
    const auto* object = config.if_object();
    if (!object || object->size() != 1)
        throw Error(errc::bad_config,
                    where +
                        ": must be a policy's name or an object of exactly one of "
                        "first_match, all_of, any_of or a policy's name");
    const auto& entry = *object->begin();
    const std::string_view name = entry.key();
    const std::string place = where + "/" + std::string(name);
    if (name != "first_match" && name != "all_of" && name != "any_of") {
        json::object settings;
        if (entry.value().is_array()) {
            settings[name] = entry.value();
        } else if (entry.value().is_object()) {
            settings = entry.value().get_object();
        } else {
            throw Error(errc::bad_config,
                        place + ": must be an object, the configuration of that policy");
        }
        return make(name, settings);
    }
    const auto* list = entry.value().if_array();
    if (!list || list->empty())
        throw Error(errc::bad_config, place + ": must be an array of at least one policy");
    PolicyList members;
    for (std::size_t i = 0; i < list->size(); ++i)
        members.push_back(
            make_policy(registry, host, (*list)[i], place + "/" + std::to_string(i), depth + 1));
    if (name == "first_match") return std::make_unique<FirstMatch>(std::move(members));
    if (name == "all_of") return std::make_unique<AllOf>(std::move(members));
    return std::make_unique<AnyOf>(std::move(members));
}

}  // namespace ipybox
