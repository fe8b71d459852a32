// ipybox config import: the MCP servers that other clients are configured with, as a file for
// --config.
#include <fcntl.h>
#include <unistd.h>

#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 1
#include <toml++/toml.h>

#include <boost/json/parse_options.hpp>
#include <cmath>
#include <iostream>
#include <ipybox/config.hpp>
#include <ipybox/detail/beneath.hpp>
#include <ipybox/detail/client_config.hpp>
#include <ipybox/detail/json_memory.hpp>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/detail/terminal_text.hpp>
#include <ipybox/detail/unique_fd.hpp>
#include <ipybox/sandbox_kit/writable_places.hpp>
#include <memory>

#include "commands.hpp"

namespace ipybox::app {
namespace {
namespace fs = std::filesystem;

// The files of a client.
std::vector<fs::path> places_of(const std::string& client) {
    const char* home_variable = std::getenv("HOME");
    const fs::path home = home_variable != nullptr ? home_variable : "/nonexistent";
    const fs::path settings = config::config_directory().parent_path();
    const fs::path here = fs::current_path();
    if (client == "claude")
        return {here / ".mcp.json", home / ".claude.json",
                settings / "Claude/claude_desktop_config.json"};
    if (client == "codex") {
        const char* own = std::getenv("CODEX_HOME");
        return {here / ".codex/config.toml",
                (own != nullptr && *own == '/' ? fs::path(own) : home / ".codex") / "config.toml"};
    }
    if (client == "cursor") return {here / ".cursor/mcp.json", home / ".cursor/mcp.json"};
    return {here / ".vscode/mcp.json", settings / "Code/User/mcp.json"};
}

// VS Code's and Cursor's variables in the words of ours; `input` becomes a variable that a person
// sets.
void translate_variables(std::string& text, std::vector<std::string>& wanted) {
    const std::pair<std::string_view, std::string_view> same[] = {
        {"${workspaceFolder}", "${WORKSPACE}"},
        {"${workspaceRoot}", "${WORKSPACE}"},
        {"${userHome}", "${HOME}"}};
    for (const auto& [theirs, ours] : same)
        for (std::size_t at = 0; (at = text.find(theirs, at)) != text.npos; at += ours.size())
            text.replace(at, theirs.size(), ours);
    for (const std::string_view kind : {"${env:", "${input:"}) {
        for (std::size_t at = 0; (at = text.find(kind, at)) != text.npos;) {
            const auto end = text.find('}', at);
            if (end == text.npos) break;
            std::string name = text.substr(at + kind.size(), end - at - kind.size());
            if (kind == "${input:") {
                for (char& c : name)
                    c = std::isalnum(static_cast<unsigned char>(c))
                            ? static_cast<char>(std::toupper(static_cast<unsigned char>(c)))
                            : '_';
                wanted.push_back(name);
            }
            const auto ours = "${" + name + "}";
            text.replace(at, end - at + 1, ours);
            at += ours.size();
        }
    }
}
void translate_variables(json::value& value, std::vector<std::string>& wanted) {
    if (auto* text = value.if_string()) {
        std::string changed(*text);
        translate_variables(changed, wanted);
        *text = changed;
    } else if (auto* array = value.if_array()) {
        for (auto& element : *array) translate_variables(element, wanted);
    } else if (auto* object = value.if_object()) {
        for (auto& member : *object) translate_variables(member.value(), wanted);
    }
}

// What a server's parameters may hold; null for the rest of TOML, such as dates.
json::value json_of(const toml::node& node, int depth) {
    if (const auto* text = node.as_string()) return json::value(text->get());
    if (const auto* number = node.as_integer()) return json::value(number->get());
    if (const auto* number = node.as_floating_point(); number && std::isfinite(number->get()))
        return json::value(number->get());
    if (const auto* truth = node.as_boolean()) return json::value(truth->get());
    if (depth == 0) return nullptr;
    if (const auto* list = node.as_array()) {
        json::array values;
        for (const auto& element : *list) values.push_back(json_of(element, depth - 1));
        return values;
    }
    if (const auto* table = node.as_table()) {
        json::object fields;
        for (const auto& [key, value] : *table) fields[key.str()] = json_of(value, depth - 1);
        return fields;
    }
    return nullptr;
}

// The servers of Codex, in the form of the other clients'.
json::value read_toml(const fs::path& file) {
    toml::table root;
    try {
        root = toml::parse(read_text_file(file));
    } catch (const toml::parse_error& error) {
        throw Error(errc::bad_config, "line " + std::to_string(error.source().begin.line) +
                                          ": it is no TOML: " + std::string(error.description()));
    }
    json::object servers;
    if (const auto* tables = root.get_as<toml::table>("mcp_servers"))
        for (const auto& [name, table] : *tables) {
            const auto params = json_of(table, 8);
            servers[name.str()] = params.is_object()
                                      ? json::value(detail::codex_params(params.get_object()))
                                      : params;
        }
    return json::object{{"mcpServers", std::move(servers)}};
}

// Of a client's file; what VS Code calls JSON has comments.
json::value read_config(const fs::path& file) {
    if (file.extension() == ".toml") return read_toml(file);
    boost::system::error_code error;
    json::parse_options options;
    options.allow_comments = options.allow_trailing_commas = true;
    auto value = detail::parse_exact(read_text_file(file), error, options);
    if (error) throw Error(errc::bad_config, "it is no JSON: " + error.message());
    detail::round_numbers(value);
    return value;
}

// The servers in a client's file. Claude Code keeps those of single projects in its own.
json::object servers_in(json::value root) {
    json::object servers;
    const auto add = [&servers](json::object& holder, std::string_view key) {
        if (auto* block = holder.if_contains(key); block && block->is_object())
            for (auto& [name, params] : block->get_object())
                servers.emplace(name, std::move(params));
    };
    auto* object = root.if_object();
    if (!object) return servers;
    add(*object, "mcpServers");
    add(*object, "servers");
    auto* projects = object->if_contains("projects");
    auto* project = projects && projects->is_object()
                        ? projects->get_object().if_contains(fs::current_path().string())
                        : nullptr;
    if (project && project->is_object()) add(project->get_object(), "mcpServers");
    return servers;
}

// Adds the servers of one file; says what comes of each.
void take(const fs::path& file, json::object& servers, std::vector<std::string>& wanted) {
    const auto say = [&](const std::string& what) {
        std::cerr << detail::printable(file.string() + ": " + what) << '\n';
    };
    std::error_code ignored;
    if (!fs::exists(file, ignored)) return;
    json::object block;
    try {
        // A home may have been a workspace, too.
        if (const auto written = writable_places().holds(file))
            throw Error(errc::denied, "code in a sandbox could write " + written->string() +
                                          ": copy what is yours of it by hand");
        block = servers_in(read_config(file));
    } catch (const Error& error) {
        return say("is left out: " + error.detail());
    }
    if (block.empty()) say("no servers");
    for (auto& [name, params] : block) {
        const std::string server(name);
        const json::object one{{"mcpServers", json::object{{name, params}}}};
        std::vector<std::string> notices;
        try {
            auto read = read_mcp_servers(one, file.string(), &notices);
            for (const auto& notice : notices) std::cerr << detail::printable(notice) << '\n';
            if (read.empty()) say(server + " is disabled there");
            for (auto& [package, checked] : read) {
                if (servers.contains(package)) {
                    say(server + " is left out: another file has one of this name");
                    continue;
                }
                json::value translated = std::move(checked);
                translate_variables(translated, wanted);
                say(server + " becomes " + package);
                servers.emplace(package, std::move(translated));
            }
        } catch (const Error& error) {
            say(server + " is left out: " + error.detail());
        }
    }
}

int import_from(const std::string& client, const std::string& out) {
    json::object servers;
    std::vector<std::string> wanted;
    std::string searched;
    for (const auto& place : places_of(client)) {
        take(place, servers, wanted);
        searched += (searched.empty() ? "" : ", ") + place.string();
    }
    if (servers.empty())
        throw Error(errc::bad_argument,
                    "no servers of " + client + " found; searched: " + searched);
    for (const auto& name : wanted)
        std::cerr << "set " << detail::printable(name) << " in .env or the environment: " << client
                  << " asks for it\n";
    const std::string text =
        detail::write_json(json::object{{"mcpServers", std::move(servers)}}) + "\n";
    if (out.empty()) {
        std::cout << text;
        return 0;
    }
    // It may hold secrets, and replaces nothing.
    const UniqueFd file(
        ::open(out.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!file)
        throw Error(errc::bad_argument,
                    "--out: " + out + " cannot be made: " + std::strerror(errno));
    detail::write_all(file.get(), text, "--out: " + out);
    std::cerr << "written to " << detail::printable(out) << "; use it with --config\n";
    return 0;
}
}  // namespace

void add_config(CLI::App& app, Action& action) {
    auto* command = app.add_subcommand("config", "Take over configurations of other MCP clients");
    command->require_subcommand(1);
    auto* importing = command->add_subcommand(
        "import", "Print the MCP servers that another client is configured with, for --config");
    auto client = std::make_shared<std::string>();
    auto out = std::make_shared<std::string>();
    importing
        ->add_option("CLIENT", *client,
                     "claude, codex, cursor or vscode: files of this directory and of your home")
        ->required()
        ->check(CLI::IsMember({"claude", "codex", "cursor", "vscode"}));
    importing->add_option("--out", *out, "New file to write instead, readable by you alone")
        ->type_name("FILE");
    importing->callback(
        [&action, client, out] { action = [client, out] { return import_from(*client, *out); }; });
}

}  // namespace ipybox::app
