// ipybox plugins: which plugins there are, where they lie and what they can be configured with.
#include <iostream>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/registry.hpp>
#include <memory>

#include "commands.hpp"

namespace ipybox::app {

void add_plugins(CLI::App& app, Action& action) {
    auto* command =
        app.add_subcommand("plugins", "List plugins: kind, name, file and configuration schema");
    auto as_json = std::make_shared<bool>(false);
    command->add_flag("--json", *as_json, "Print a JSON array instead of text");
    auto directories = std::make_shared<std::vector<std::filesystem::path>>();
    add_plugin_dir(*command, *directories);
    command->callback([&action, as_json, directories] {
        action = [as_json, directories] {
            bool failed = false;
            auto registry = PluginRegistry::standard(*directories);
            const auto entries = registry.list([&](const auto&, const std::string& message) {
                std::cerr << "ipybox: " << message << '\n';
                failed = true;
            });
            json::array listing;
            for (const auto& [plugin, file] : entries) {
                const auto schema = json::parse(std::string(plugin->config_schema));
                if (*as_json) {
                    json::object entry;
                    entry["kind"] = kind_of(*plugin);
                    entry["name"] = plugin->name;
                    entry["summary"] = plugin->summary;
                    entry["file"] = file.string();
                    entry["config_schema"] = schema;
                    listing.push_back(std::move(entry));
                } else {
                    std::cout << kind_of(*plugin) << ' ' << plugin->name << ": " << plugin->summary
                              << "\n  file:   " << file.string()
                              << "\n  config: " << detail::write_json(schema) << "\n";
                }
            }
            if (*as_json) std::cout << detail::write_json(listing) << '\n';
            return failed ? 2 : 0;
        };
    });
}

}  // namespace ipybox::app
