#pragma once
// Flags of the commands that run code, and what they make of a CodeExecutor.
#include <CLI/CLI.hpp>
#include <iostream>
#include <ipybox/executor/code_executor.hpp>
#include <ipybox/net/domain_rule.hpp>
#include <ipybox/tools/tool_search.hpp>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "audit_head_sender.hpp"
#include "commands.hpp"
#include "durations.hpp"
#include "own_files.hpp"

namespace ipybox::app {

struct ExecutorFlags {
    std::string workspace = ".";
    std::vector<std::filesystem::path> plugin_dirs;
    std::string sandbox = "bubblewrap";
    std::string sandbox_config;
    std::string sandbox_user;
    std::string sandbox_options;
    std::string kernel_options;
    std::string kernel = "auto";
    std::string python;
    std::string config;
    std::string images_dir = "images";
    std::string working_dir;
    bool async_api = false;
    std::vector<std::string> env;
    std::vector<std::string> limits;
    std::vector<std::string> hosts;
    std::vector<std::string> package_hosts;
    std::vector<std::string> private_networks;
    std::vector<std::string> allow_write;
    std::string protect = "usual";
    std::string policy;
    std::string approve;
    std::string audit;
    std::vector<std::string> audit_with;
    std::string audit_head_to;
    bool approve_shell = false;
    bool require_shell_escape = false;
    bool no_exec = false;
    bool approve_programs = false;
    bool exact_numbers = false;
    bool check = false;
    bool allow_home = false;
    std::string channel;
    std::vector<std::string> channel_origins;
    bool timeout_includes_approval = false;
    std::string page;  // empty: there is none
    bool page_unconfined = false;
    std::string log_level = "warning";
    double connect_timeout = 30;
    double tool_timeout = 300;
};

// Help whose first line says more than CLI11 finds out by itself.
class HelpWithUsage : public CLI::Formatter {
public:
    // lines: each a way to call the command, behind "ipybox NAME ".
    explicit HelpWithUsage(std::vector<std::string> lines) : lines_(std::move(lines)) {}
    std::string make_usage(const CLI::App* command, std::string) const override {
        std::string text = "Usage:";
        for (const auto& line : lines_)
            text += (&line == lines_.data() ? " ipybox " : "\n       ipybox ") +
                    command->get_name() + " " + line;
        return text + '\n';
    }

private:
    std::vector<std::string> lines_;
};

// HOST:PORT of a flag, as in 127.0.0.1:8900 or [::1]:0; nothing for what is neither.
inline std::optional<std::pair<std::string, std::uint16_t>> split_address(std::string_view text) {
    const auto [host, port] = net::split_port(text);
    const auto number = port == "0" ? std::optional<std::uint16_t>(0) : net::parse_port(port);
    if (host.empty() || !number) return std::nullopt;
    const bool bracketed = host.starts_with('[') && host.ends_with(']');
    return std::pair(std::string(bracketed ? host.substr(1, host.size() - 2) : host), *number);
}
inline std::string address_problem(const std::string& text) {
    return "expected HOST:PORT such as 127.0.0.1:8900, got \"" + text + "\"";
}
// Throws Error: bad_argument.
inline std::pair<std::string, std::uint16_t> host_and_port(const std::string& text,
                                                           const std::string& flag) {
    auto parts = split_address(text);
    if (!parts) throw Error(errc::bad_argument, flag + ": " + address_problem(text));
    return std::move(*parts);
}

// What is wrong with the value of --sandbox, which may have been meant as another argument; empty
// if nothing is.
inline std::string sandbox_problem(const std::string& name,
                                   const std::vector<std::filesystem::path>& plugin_dirs) {
    // The usual ones without loading every plugin. What is wrong with plugins, the start says.
    std::string names;
    if (name == "bubblewrap" || name == "none" || name == "srt") return {};
    try {
        auto registry = PluginRegistry::standard(plugin_dirs);
        for (const auto& entry : registry.list([](const auto&, const auto&) {})) {
            if (kind_of(*entry.plugin) != "sandbox") continue;
            if (entry.plugin->name == name) return {};
            names += (names.empty() ? "" : ", ") + std::string(entry.plugin->name);
        }
    } catch (const Error&) {
        return {};
    }
    return "no sandbox plugin is named \"" + name + "\"; there are: " + names +
           "; write --sandbox=NAME, or --sandbox behind what is not its name";
}

inline void add_sandbox_flags(CLI::App& command, ExecutorFlags& flags, const std::string& text) {
    add_plugin_dir(command, flags.plugin_dirs);  // first: --sandbox looks there
    command.add_option("--sandbox", flags.sandbox, text)
        ->type_name("[NAME]")
        ->expected(0, 1)
        ->default_str("bubblewrap")
        ->check(
            [&flags](const std::string& name) { return sandbox_problem(name, flags.plugin_dirs); });
    command
        .add_option("--sandbox-config", flags.sandbox_config,
                    "Settings in sandbox-runtime's JSON format")
        ->type_name("FILE");
}

// But for --approve, whose meaning differs.
inline void add_approval_flags(CLI::App& command, ExecutorFlags& flags) {
    command
        .add_option("--policy", flags.policy,
                    "File with the policy that decides on calls; what it asks, --approve answers")
        ->type_name("FILE");
    command
        .add_option(
            "--audit", flags.audit,
            "File to which every execution and call is appended; `ipybox audit show` reads it")
        ->type_name("FILE");
    command
        .add_option("--audit-with", flags.audit_with,
                    "code: the code itself; results: what tools answered; fsync: each record "
                    "reaches the disk first; lossy: "
                    "calls go on when it cannot be written; "
                    "in-workspace: the file may be there; repeatable")
        ->check(CLI::IsMember({"code", "results", "fsync", "lossy", "in-workspace"}))
        ->allow_extra_args(false);
    command
        .add_option("--audit-head-to", flags.audit_head_to,
                    "Program, on its standard input, or URL that gets each signed head of the "
                    "audit log, so that nobody here can shorten it unnoticed")
        ->type_name("PROGRAM|URL");
    command.add_flag("--approve-shell-cmds", flags.approve_shell,
                     "Shell commands (!command, %%bash and the like) need approval too");
    command.add_flag("--require-shell-escape", flags.require_shell_escape,
                     "And other ways to start processes are refused, by a guard in Python: no "
                     "security boundary");
    command.add_flag("--no-exec", flags.no_exec,
                     "Code can start no programs, whatever way it tries: a wall of the sandbox, "
                     "which must be bubblewrap");
    command.add_flag("--approve-programs", flags.approve_programs,
                     "Every program that code starts is a question, whatever way it tries: a wall "
                     "of the sandbox, which must be bubblewrap");
    command
        .add_option("--approval-channel", flags.channel,
                    "Address on this machine where approvers connect by WebSocket; the token is "
                    "$IPYBOX_APPROVAL_TOKEN or printed")
        ->type_name("HOST:PORT");
    command
        .add_option(
            "--approval-origin", flags.channel_origins,
            "Web page that may connect there, as http://localhost:PORT or https://HOST; repeatable")
        ->type_name("ORIGIN")
        ->allow_extra_args(false);
    command.add_flag("--timeout-includes-approval", flags.timeout_includes_approval,
                     "The time in which somebody is asked counts for the timeout of the code");
    command
        .add_option("--approval-page", flags.page,
                    "Calls are shown and answered in a browser on this machine, too: the link is "
                    "printed, works once, and leads to a free port without HOST:PORT")
        ->type_name("[HOST:PORT]")
        ->expected(0, 1)
        ->default_str("127.0.0.1:0")
        ->check([](const std::string& text) {
            return split_address(text)
                       ? std::string()
                       : address_problem(text) + "; without a value, put the flag last";
        });
    command.add_flag("--approval-page-unconfined", flags.page_unconfined,
                     "With a sandbox or kernel that does not keep the code from this machine's "
                     "network: the code, or what runs as you, could answer its own calls");
}

// All but those of approval and --workspace, --sandbox, --sandbox-config and --log-level.
inline void add_executor_flags(CLI::App& command, ExecutorFlags& flags) {
    command
        .add_option("--sandbox-user", flags.sandbox_user,
                    "When started by root: the uid the kernel runs as")
        ->type_name("UID")
        ->check(CLI::Range(1, 2147483647));
    command
        .add_option("--sandbox-options", flags.sandbox_options,
                    "The sandbox plugin's own configuration: `ipybox plugins NAME`")
        ->type_name("JSON");
    command
        .add_option("--kernel", flags.kernel, "Kernel plugin; auto: fork where it works, else zmq")
        ->type_name("NAME")
        ->capture_default_str();
    command
        .add_option(
            "--kernel-options", flags.kernel_options,
            "The kernel plugin's own configuration, such as {\"url\": …, \"token\": …} of gateway")
        ->type_name("JSON");
    command.add_option("--python", flags.python, "Interpreter with ipykernel and pydantic")
        ->type_name("PATH");
    command
        .add_option("--config", flags.config,
                    "File with an mcpServers block; its servers become mcptools.NAME; ${WORKSPACE} "
                    "in it is the workspace")
        ->type_name("FILE");
    command
        .add_option("--connect-timeout", flags.connect_timeout,
                    "Seconds for an MCP server to start; npx and uvx install it first")
        ->check(CLI::Range(0.1, 1e6))
        ->capture_default_str();
    command
        .add_option("--tool-timeout", flags.tool_timeout,
                    "Seconds for a tool to answer or to report progress; 0 means never, as long as "
                    "the code may run")
        ->check(CLI::Range(0.0, 1e6))
        ->capture_default_str();
    command
        .add_option("--images-dir", flags.images_dir,
                    "Where images are saved, relative to the workspace")
        ->type_name("DIR")
        ->capture_default_str();
    command
        .add_option("--working-dir", flags.working_dir,
                    "Directory in the workspace, and relative to it, in which every cell starts; "
                    "without it the workspace, and chdir lasts")
        ->type_name("DIR");
    command.add_flag("--async-api", flags.async_api,
                     "Generated tool functions are coroutines: await run(…)");
    command
        .add_option("--env", flags.env, "Variable for the kernel, which inherits none; repeatable")
        ->type_name("NAME=VALUE")
        ->allow_extra_args(false);
    command
        .add_option(
            "--allow-host", flags.hosts,
            "Host the code may connect to, as HOST, *.HOST or with :PORT; none without; repeatable")
        ->type_name("HOST")
        ->allow_extra_args(false);
    command
        .add_option("--private-network", flags.private_networks,
                    "Private network, such as 10.1.0.0/16, that allowed hosts may have their "
                    "addresses in; none without; repeatable")
        ->type_name("NETWORK")
        ->allow_extra_args(false);
    command
        .add_option("--package-host", flags.package_hosts,
                    "Hosts that pip may connect to instead of pypi.org and files.pythonhosted.org; "
                    "repeatable")
        ->type_name("HOST")
        ->allow_extra_args(false);
    command.add_flag("--exact-numbers", flags.exact_numbers,
                     "Numbers of tools that are no integers become decimal.Decimal in Python, with "
                     "all their digits, instead of float");
    command.add_flag("--check", flags.check,
                     "Compares a cell's calls of generated modules with what these take first; "
                     "one with a fault does not run. Needs ty in the kernel's environment");
    command.add_flag("--allow-home", flags.allow_home,
                     "The workspace may be a home directory, or hold one; what its owner's "
                     "programs start from is write-protected");
    command
        .add_option("--allow-write", flags.allow_write,
                    "Path in the workspace, such as .envrc, that the code may write although "
                    "programs of the host run it; repeatable")
        ->type_name("PATH")
        ->allow_extra_args(false);
    command
        .add_option("--protect", flags.protect,
                    "usual: what programs of the host run unasked is write-protected; strict: so "
                    "is what they run or obey when a person says so")
        ->check(CLI::IsMember({"usual", "strict"}))
        ->capture_default_str();
    command
        .add_option("--limit", flags.limits,
                    "What the kernel may use, such as memory=2G, memory-total=4G, processes=100, "
                    "open-files=1000, file-size=1G, cpu=600, wall=3600 (seconds), scratch=1G, "
                    "scratch-inodes=100000, workspace=2G; repeatable")
        ->type_name("NAME=VALUE")
        ->allow_extra_args(false);
}

// A file that the next start reads, or that only the host may write, and the place under which it
// is found again.
inline void protect(std::vector<std::filesystem::path>& list, const std::filesystem::path& file) {
    namespace fs = std::filesystem;
    if (is_stream(file) || !fs::exists(file)) return;  // what is absent is an error that follows
    const auto absolute = fs::absolute(file);
    list.push_back(fs::canonical(absolute.parent_path()) / absolute.filename());
    list.push_back(fs::weakly_canonical(absolute));
}

// What `flag` says in JSON; empty when it is not given.
inline json::object plugin_options(const std::string& text, const std::string& flag) {
    if (text.empty()) return {};
    auto value = parse_json(text, flag);
    if (!value.is_object()) throw Error(errc::bad_config, flag + ": must be a JSON object");
    return std::move(value.get_object());
}

// The directory of --working-dir. It gives code no place that it does not have. Throws
// errc::bad_argument.
inline std::filesystem::path working_directory(const ExecutorFlags& flags) {
    namespace fs = std::filesystem;
    if (flags.kernel == "gateway") return flags.working_dir;  // on the kernel's machine
    std::error_code failed;
    const auto workspace = fs::canonical(flags.workspace, failed);
    const auto place = fs::canonical(workspace / flags.working_dir, failed);
    const auto refuse = [&](const std::string& why) {
        return Error(errc::bad_argument, "--working-dir: " + flags.working_dir + why);
    };
    if (failed || !fs::is_directory(place))
        throw refuse(" is no directory in the workspace " + flags.workspace + ": make it first");
    if (!detail::within(place, workspace))
        throw refuse(" is not in the workspace " + flags.workspace +
                     ": name a directory in it, or a larger --workspace");
    return place;
}

// Options for an executor in the current directory's terms. Throws Error: bad_argument, bad_config.
inline CodeExecutorOptions executor_options(const ExecutorFlags& flags) {
    CodeExecutorOptions options;
    options.sandbox = flags.sandbox;
    // The next start reads them: what they name runs on the host.
    for (const auto& file : {flags.config, flags.sandbox_config, flags.policy})
        if (!file.empty()) protect(options.write_protected, file);
    if (!flags.sandbox_config.empty()) {
        const auto settings = parse_json(read_own_file(flags.sandbox_config), flags.sandbox_config);
        if (!settings.is_object())
            throw Error(errc::bad_config, flags.sandbox_config + ": must be a JSON object");
        options.sandbox_config = settings.get_object();
    }
    options.sandbox_options = plugin_options(flags.sandbox_options, "--sandbox-options");
    options.kernel_options = plugin_options(flags.kernel_options, "--kernel-options");
    for (const auto& network : flags.private_networks) {
        auto& list = options.sandbox_options["private_networks"];
        if (!list.is_array()) list = json::array();
        list.get_array().emplace_back(network);
    }
    if (!flags.sandbox_user.empty())
        options.sandbox_options["user"] = std::stoll(flags.sandbox_user);
    options.kernel = flags.kernel;
    options.timeout_excludes_approval = !flags.timeout_includes_approval;
    options.connect_timeout = seconds(flags.connect_timeout);
    options.tool_timeout = seconds(flags.tool_timeout);
    options.python = flags.python;
    options.workspace = flags.workspace;
    options.images_dir = flags.images_dir;
    if (!flags.working_dir.empty()) options.working_dir = working_directory(flags);
    options.async_api = flags.async_api;
    options.allow_home = flags.allow_home;
    options.logger = make_logger(flags.log_level);
    for (const auto& pair : flags.env) {
        const auto equals = pair.find('=');
        if (equals == pair.npos || equals == 0)
            throw Error(errc::bad_argument, "--env: expected NAME=VALUE, got \"" + pair + "\"");
        options.kernel_env[pair.substr(0, equals)] = pair.substr(equals + 1);
    }
    for (const auto& limit : flags.limits) {
        const auto equals = limit.find('=');
        if (equals == limit.npos)
            throw Error(errc::bad_argument, "--limit: expected NAME=VALUE, got \"" + limit + "\"");
        set_limit(options.limits, limit.substr(0, equals), limit.substr(equals + 1));
    }
    options.allow_write.assign(flags.allow_write.begin(), flags.allow_write.end());
    options.protect_strict = flags.protect == "strict";
    options.allowed_hosts = flags.hosts;
    if (!flags.package_hosts.empty()) options.package_hosts = flags.package_hosts;
    options.approve_shell_cmds = flags.approve_shell || flags.require_shell_escape;
    options.require_shell_escape = flags.require_shell_escape;
    if (flags.no_exec && flags.approve_programs)
        throw Error(errc::bad_argument,
                    "--no-exec starts no program that --approve-programs could "
                    "ask about: leave one of the two out");
    if (flags.no_exec) options.programs = Programs::deny;
    if (flags.approve_programs) options.programs = Programs::ask;
    options.exact_numbers = flags.exact_numbers;
    options.check = flags.check;
    if (!flags.policy.empty()) {
        require_own(flags.policy);
        options.approval = read_policy(flags.policy);
        options.approval_name = flags.policy;
    }
    if (!flags.audit.empty()) {
        AuditOptions settings;
        settings.workspace = flags.workspace;
        for (const auto& option : flags.audit_with) {
            settings.fsync |= option == "fsync";
            settings.code_text |= option == "code";
            settings.results |= option == "results";
            settings.stop_on_failure &= option != "lossy";
            settings.inside_workspace |= option == "in-workspace";
        }
        if (!flags.audit_head_to.empty()) {
            const auto sender =
                std::make_shared<AuditHeadSender>(flags.audit_head_to, options.logger);
            settings.on_head = [sender](const std::string& head) { sender->send(head); };
        }
        options.audit = std::make_shared<AuditLog>(flags.audit, settings, options.logger);
    } else if (!flags.audit_head_to.empty()) {
        throw Error(errc::bad_argument, "--audit-head-to: there is no log; add --audit FILE");
    }
    return options;
}

// Who gets heads of the log elsewhere hears of each record within a second.
inline void sign_soon(const ExecutorFlags& flags, const CodeExecutorOptions& options,
                      asio::any_io_executor executor) {
    if (!flags.audit_head_to.empty())
        options.audit->sign_within(std::chrono::seconds(1), std::move(executor));
}

// The servers of --config. What of it does nothing here is said.
inline std::map<std::string, json::object> configured_servers(const ExecutorFlags& flags,
                                                              const Logger& logger) {
    if (flags.config.empty()) return {};
    std::vector<std::string> notices;
    auto servers = read_mcp_servers(parse_json(read_own_file(flags.config), flags.config),
                                    flags.config, &notices);
    for (const auto& notice : notices) logger(LogLevel::warning, notice);
    return servers;
}

// Packages that the original generated are written again when their servers are registered; of the
// others it is said what to do.
inline void name_packages_of_original(const ExecutorFlags& flags,
                                      const std::map<std::string, json::object>& servers,
                                      const Logger& logger) {
    std::string names;
    for (const auto& name : packages_of_original(flags.workspace))
        if (!servers.contains(name)) names += (names.empty() ? "mcptools/" : ", mcptools/") + name;
    if (!names.empty())
        logger(LogLevel::warning,
               names +
                   ": generated by the original ipybox, cannot be imported here. Name the server "
                   "in --config or "
                   "register it, and its package is written again; the old one is kept");
}

}  // namespace ipybox::app
