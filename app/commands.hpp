#pragma once
// The commands of the program: each adds itself to the command line and returns what runs it.
#include <CLI/CLI.hpp>
#include <boost/json/object.hpp>
#include <filesystem>
#include <functional>
#include <ipybox/log.hpp>
#include <string>
#include <vector>

namespace ipybox::app {

// Set by the command that was chosen; its result is the exit code: 0 done, 1 the code failed,
// 2 the command could not be carried out as given.
using Action = std::function<int()>;

void add_run(CLI::App& app, Action& action);
void add_serve(CLI::App& app, Action& action);
void add_apigen(CLI::App& app, Action& action);
void add_auth(CLI::App& app, Action& action);
void add_config(CLI::App& app, Action& action);
void add_doctor(CLI::App& app, Action& action);
void add_host(CLI::App& app, Action& action);
void add_plugins(CLI::App& app, Action& action);
void add_policy(CLI::App& app, Action& action);
void add_repl(CLI::App& app, Action& action);
void add_audit(CLI::App& app, Action& action);

// The parameters of the server `name`: `text`, which is JSON, or else those in the file `config`.
// Throws Error: bad_argument, bad_config.
boost::json::object server_params(const std::string& name, const std::string& config,
                                  const std::string& text);

// A logger that writes to standard error through spdlog; lines are made safe for a terminal.
Logger make_logger(const std::string& level);
// Adds --plugin-dir, for PluginRegistry::standard().
void add_plugin_dir(CLI::App& command, std::vector<std::filesystem::path>& directories);
// Prints all commands and their options as one JSON object: names, texts, values and choices. Man
// pages and completions are made from it.
void print_description(const CLI::App& app);
// Adds --log-level.
void add_log_level(CLI::App& command, std::string& level);

}  // namespace ipybox::app
