// ipybox plugins: which plugins there are, where they lie and what they can be configured with.
#include <algorithm>
#include <iostream>
#include <ipybox/detail/json_members.hpp>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/registry.hpp>
#include <memory>

#include "commands.hpp"
#include "table.hpp"

namespace ipybox::app {
namespace {

struct PluginsFlags {
    std::string name;  // empty: all
    bool as_json = false;
    std::vector<std::filesystem::path> directories;
};

struct ListedPlugin {
    std::string kind, name, summary, file;
    json::object schema;
};

// What a field of a configuration can be, in a word: "string", "true or false", "auto, warm".
std::string kind_of_field(const json::object& field) {
    if (const auto* values = field.if_contains("enum"); values && values->is_array()) {
        std::string text;
        for (const auto& value : values->get_array())
            text +=
                (text.empty() ? "" : ", ") +
                (value.is_string() ? std::string(value.get_string()) : detail::write_json(value));
        return text;
    }
    const auto type = detail::string_of(field, "type");
    if (type == "boolean") return "true or false";
    if (type != "array") return std::string(type);
    const auto* items = detail::object_of(field, "items");
    return "list of " + (items ? kind_of_field(*items) : "anything");
}

void describe(const ListedPlugin& plugin) {
    std::cout << plugin.kind << ' ' << plugin.name << ": " << detail::printable(plugin.summary)
              << "\nfile: " << detail::printable(plugin.file) << '\n';
    const auto* fields = detail::object_of(plugin.schema, "properties");
    if (!fields || fields->empty()) {
        std::cout << "There is nothing to configure.\n";
        return;
    }
    const auto* required = plugin.schema.if_contains("required");
    Table table({"FIELD", "TYPE", "DEFAULT", "MEANING"});
    for (const auto& [name, value] : *fields) {
        const auto& field = value.as_object();
        const auto* usual = field.if_contains("default");
        const bool needed = required && required->is_array() &&
                            std::find(required->get_array().begin(), required->get_array().end(),
                                      json::value(name)) != required->get_array().end();
        table.add({std::string(name), kind_of_field(field),
                   needed  ? "required"
                   : usual ? detail::write_json(*usual)
                           : "",
                   std::string(detail::string_of(field, "description"))});
    }
    std::cout << '\n' << table.text();
}

json::object to_json(const ListedPlugin& plugin) {
    json::object entry;
    entry["kind"] = plugin.kind;
    entry["name"] = plugin.name;
    entry["summary"] = plugin.summary;
    entry["file"] = plugin.file;
    entry["config_schema"] = plugin.schema;
    return entry;
}

int list_plugins(const PluginsFlags& flags) {
    bool failed = false;
    auto registry = PluginRegistry::standard(flags.directories);
    const auto entries = registry.list([&](const auto&, const std::string& message) {
        std::cerr << "ipybox: " << message << '\n';
        failed = true;
    });
    std::vector<ListedPlugin> found;
    std::string names;
    for (const auto& [plugin, file] : entries) {
        names += (names.empty() ? "" : ", ") + std::string(plugin->name);
        if (!flags.name.empty() && plugin->name != flags.name) continue;
        found.push_back({std::string(kind_of(*plugin)), std::string(plugin->name),
                         std::string(plugin->summary), file.string(),
                         json::parse(std::string(plugin->config_schema)).as_object()});
    }
    if (found.empty() && !flags.name.empty())
        throw Error(errc::no_such_plugin, "no plugin is named " + flags.name +
                                              (names.empty() ? "" : "; there are: " + names));
    if (flags.as_json) {
        json::array listing;
        for (const auto& plugin : found) listing.push_back(to_json(plugin));
        std::cout << detail::write_json(listing) << '\n';
    } else if (!flags.name.empty()) {
        for (const auto& plugin : found) describe(plugin);
    } else {
        Table table({"KIND", "NAME", "WHAT IT DOES"});
        for (const auto& plugin : found) table.add({plugin.kind, plugin.name, plugin.summary});
        std::cout << table.text()
                  << "\n`ipybox plugins NAME` tells its file and how it can be configured.\n";
    }
    return failed ? 2 : 0;
}

}  // namespace

void add_plugins(CLI::App& app, Action& action) {
    auto flags = std::make_shared<PluginsFlags>();
    auto* command =
        app.add_subcommand("plugins", "List plugins; with a name, how one can be configured");
    command->add_option("NAME", flags->name,
                        "Only what has this name, with file and configuration");
    command->add_flag("--json", flags->as_json,
                      "Print a JSON array instead of text: kind, name, summary, file and "
                      "config_schema of each");
    add_plugin_dir(*command, flags->directories);
    command->callback([&action, flags] { action = [flags] { return list_plugins(*flags); }; });
}

}  // namespace ipybox::app
