// ipybox apigen: writes the Python API of an MCP server's tools.
#include <boost/asio/io_context.hpp>
#include <fstream>
#include <iostream>
#include <ipybox/config.hpp>
#include <ipybox/tools/apigen.hpp>
#include <memory>

#include "commands.hpp"
#include "listed_tools.hpp"
#include "own_files.hpp"
#include "run_to_end.hpp"

namespace ipybox::app {

json::object server_params(const std::string& name, const std::string& config,
                           const std::string& text) {
    if (!text.empty())
        return check_server_params(parse_json(text, "--server-params"), "--server-params");
    auto servers = read_mcp_servers(parse_json(read_own_file(config), config), config);
    auto found = servers.find(name);
    if (found == servers.end()) found = servers.find(detail::package_name(name));
    if (found != servers.end()) return found->second;
    std::string known;
    for (const auto& entry : servers) known += (known.empty() ? "" : ", ") + entry.first;
    throw Error(errc::bad_argument, config + ": mcpServers has no \"" + name +
                                        "\"; it has: " + (known.empty() ? "none" : known));
}

namespace {

struct ApigenFlags {
    std::string name;
    std::string server_params;
    std::string config;
    std::string tools_json;
    std::string out;
    std::string one_tool;
    bool check = false;
    bool async_api = false;
    std::vector<std::filesystem::path> plugin_dirs;
    std::string log_level = "warning";
};

json::array tools_from_server(const ApigenFlags& flags) {
    auto params = server_params(flags.name, flags.config, flags.server_params);
    asio::io_context context(1);
    auto registry = PluginRegistry::standard(flags.plugin_dirs);
    const auto logger = make_logger(flags.log_level);
    return run_to_end(
        context, listed_tools(registry, flags.name, std::move(params), read_own_env(".", logger),
                              ToolServerOptions().connect_timeout, logger));
}

json::array tools_from_file(const ApigenFlags& flags) {
    try {
        return parse_tools(read_text_file(flags.tools_json, 64u << 20));
    } catch (const Error& error) {
        if (error.detail().starts_with(flags.tools_json)) throw;
        throw Error(errc::bad_argument, flags.tools_json + ": " + error.detail());
    }
}

std::string in_quotes(std::string_view text) { return '"' + detail::printable(text) + '"'; }

int print_module(const GeneratedPackage& package, const std::string& name) {
    std::string known;
    for (const auto& [tool, module] : package.tools) {
        if (tool == name) {
            std::cout << package.files.at(module + ".py");
            return 0;
        }
        if (known.size() < 500) known += (known.empty() ? "" : ", ") + detail::printable(tool);
    }
    for (const auto& [tool, reason] : package.skipped)
        if (tool == name)
            throw Error(errc::bad_argument,
                        "--stdout: no API for " + in_quotes(name) + ": " + reason);
    throw Error(errc::bad_argument, "--stdout: no tool is named " + in_quotes(name) +
                                        "; there are: " + (known.empty() ? "none" : known));
}

int run_apigen(const ApigenFlags& flags) {
    check_server_name(flags.name);
    if (flags.out.empty() && flags.one_tool.empty())
        throw Error(errc::bad_argument, "--out needs a directory, --stdout a tool");
    const auto package = generate_package(
        flags.name, flags.tools_json.empty() ? tools_from_server(flags) : tools_from_file(flags),
        flags.async_api ? ApiStyle::async : ApiStyle::blocking);
    if (!flags.one_tool.empty()) return print_module(package, flags.one_tool);
    for (const auto& [tool, reason] : package.untyped)
        std::cerr << "ipybox: the API of " << in_quotes(tool)
                  << " is not typed: " << detail::printable(reason) << '\n';
    for (const auto& [tool, reason] : package.skipped)
        std::cerr << "ipybox: no API for " << in_quotes(tool) << ": " << detail::printable(reason)
                  << '\n';
    const auto changes = package_changes(flags.out, flags.name, package);
    if (flags.check) {
        for (const auto& change : changes) std::cout << change << '\n';
        return changes.empty() ? 0 : 1;
    }
    for (const auto& change : changes)
        if (change.ends_with(" with own code"))
            std::cerr << "ipybox: the server has no such tool any more: " << change.substr(2)
                      << " is removed\n";
    std::string kept_as;
    const bool written = write_package(flags.out, flags.name, package, &kept_as);
    if (!kept_as.empty())
        std::cerr << "ipybox: what was there and is not of this program is kept as "
                  << (std::filesystem::path(flags.out) / kept_as).string() << '\n';
    std::cout << flags.name << ": " << package.tools.size() << " tools, "
              << (written ? "written to " : "unchanged in ")
              << (std::filesystem::path(flags.out) / flags.name).string() << '\n';
    return package.skipped.empty() ? 0 : 1;
}

}  // namespace

void add_apigen(CLI::App& app, Action& action) {
    auto flags = std::make_shared<ApigenFlags>();
    auto* command =
        app.add_subcommand("apigen", "Write the typed Python API of an MCP server's tools");
    command->add_option("NAME", flags->name, "Name of the server and of the Python package")
        ->required();
    auto* source = command->add_option_group("source", "Where the tools come from");
    source
        ->add_option("--server-params", flags->server_params,
                     "JSON: {\"command\": …, \"args\": […]} or {\"url\": …}; ${WORKSPACE} is the "
                     "current directory")
        ->type_name("JSON");
    source->add_option("--config", flags->config, "File with an mcpServers block that has NAME")
        ->type_name("FILE");
    source
        ->add_option("--tools-json", flags->tools_json, "A tools/list result; no server is started")
        ->type_name("FILE");
    source->require_option(1);
    add_plugin_dir(*command, flags->plugin_dirs);
    auto* target = command->add_option_group("target", "What to do with the API");
    target->add_option("--out", flags->out, "Directory in which the package NAME is written")
        ->type_name("DIR");
    auto* one_tool =
        target->add_option("--stdout", flags->one_tool, "Print the module of one tool instead")
            ->type_name("TOOL");
    target->require_option(1);
    command
        ->add_flag("--check", flags->check,
                   "With --out: write nothing, print what would change, exit 1 if anything would")
        ->excludes(one_tool);
    command->add_flag("--async-api", flags->async_api,
                      "The functions are coroutines: await run(…)");
    add_log_level(*command, flags->log_level);
    command->callback([&action, flags] { action = [flags] { return run_apigen(*flags); }; });
}

}  // namespace ipybox::app
