// ipybox serve: code actions for the model of an MCP client.
#include <unistd.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <iostream>
#include <ipybox/executor/service.hpp>
#include <ipybox/mcp/http_server.hpp>
#include <ipybox/sandbox_kit/writable_places.hpp>
#include <memory>
#include <optional>
#include <sstream>

#include "asking.hpp"
#include "executor_flags.hpp"
#include "keep_warm.hpp"
#include "own_files.hpp"
#include "parent.hpp"
#include "run_to_end.hpp"

extern char** environ;

namespace ipybox::app {
namespace {

namespace fs = std::filesystem;

struct ServeFlags : ExecutorFlags {
    ServeFlags() {
        sandbox = "none";
        log_level = "info";
    }
    bool structured = false;
    double approval_timeout = 60;
    std::optional<double> kernel_init_timeout;
    std::string http;
    std::vector<std::string> http_names, http_origins;
    bool legacy_sse = false;
    bool shared_workspace = false;
    bool allow_register = false;
    std::size_t max_sessions = 64, spare_sessions = 0;
    std::uint64_t max_message = std::uint64_t{32} << 20;
    std::uint64_t max_result = 0;
    std::size_t starts_at_once = 2;
    double session_idle = 1800, task_after = 5;
    // Of the original's command; what they set up does not exist here, or is made another way.
    std::string tool_server_host, gateway_host;
    int tool_server_port = 0, gateway_port = 0;
};

constexpr std::string_view kernel_prefix = "KERNEL_ENV_";
constexpr const char* token_variable = "IPYBOX_HTTP_TOKEN";

// Variables that begin so are the kernel's, without it. Those of the environment hold against .env.
void add_kernel_env(CodeExecutorOptions& options) {
    const auto take = [&](std::string_view name, std::string_view value) {
        if (name.starts_with(kernel_prefix) && name.size() > kernel_prefix.size())
            options.kernel_env.try_emplace(std::string(name.substr(kernel_prefix.size())), value);
    };
    for (char** entry = environ; *entry != nullptr; ++entry) {
        const std::string_view text = *entry;
        const auto equals = text.find('=');
        if (equals != text.npos) take(text.substr(0, equals), text.substr(equals + 1));
    }
    for (const auto& [name, value] : options.variables) take(name, value);
}

// Policy, answers and audit log; what the start-up message says of them.
std::string set_approval(const ServeFlags& flags, McpServiceOptions& options) {
    auto& executor = options.executor;
    const auto deny = [](const char* why) { return json::value{{"deny", {{"reason", why}}}}; };
    std::string said;
    if (!flags.http.empty() && !flags.allow_register)
        options.registration = deny(
            "clients of this server cannot register MCP servers; its operator can, by --config, or "
            "let them, by --allow-register or a policy");
    if (!flags.policy.empty()) {
        // What the policy passes on is as without one.
        options.registration =
            json::object{{"first_match", json::array{executor.approval, options.registration}}};
        options.installation =
            json::object{{"first_match", json::array{executor.approval, options.installation}}};
        said = "tool calls need approval by " + flags.policy;
        if (flags.approve == "allow" || flags.approve == "deny") {
            const bool yes = flags.approve == "allow";
            said += ", and where it asks, --approve " + flags.approve;
            options.ask_client = false;
            executor.approvers.push_back([yes](ToolCall) -> awaitable<Decision> {
                Decision decision(yes ? Verdict::allow : Verdict::deny,
                                  yes ? "" : "--approve deny");
                decision.by = "--approve";
                co_return decision;
            });
        } else {
            said += ", and where it asks, by the user of the client";
        }
    } else if (flags.approve == "ask" || (flags.approve.empty() && !flags.page.empty())) {
        executor.approval = "ask";
        said = "every tool call is asked about: the user of the client" +
               std::string(flags.page.empty() ? "" : ", and whoever opens the approval page");
    } else if (flags.approve == "deny") {
        executor.approval = deny("--approve deny");
        said = "every tool call is denied";
    } else {
        executor.approval = "allow";
        said = "every tool call is allowed (--approve ask or --policy FILE changes that)";
    }
    if (!flags.audit.empty()) said += "; audit log " + flags.audit;
    return said;
}

McpServiceOptions service_options(ServeFlags& flags, std::string& said) {
    // As the original: a relative "cwd" of a server starts at the workspace, and so does its
    // --sandbox-config, unless it is found from here.
    if (!flags.working_dir.empty() && !flags.http.empty() && !flags.shared_workspace)
        throw Error(errc::bad_argument,
                    "--working-dir: over HTTP each session has a workspace of its own; it needs "
                    "--shared-workspace");
    const auto workspace = writable_places().real_paths({fs::absolute(flags.workspace)}).front();
    fs::create_directories(workspace);
    flags.workspace = workspace.string();
    const auto logger = make_logger(flags.log_level);
    if (!flags.sandbox_config.empty() && !fs::exists(flags.sandbox_config)) {
        if (fs::exists(workspace / flags.sandbox_config)) {
            flags.sandbox_config = (workspace / flags.sandbox_config).string();
        } else {
            logger(LogLevel::warning, "--sandbox-config " + flags.sandbox_config +
                                          " does not exist: the sandbox keeps its defaults");
            flags.sandbox_config.clear();
        }
    }
    if ((flags.no_exec || flags.approve_programs) && flags.sandbox == "none")
        throw Error(errc::bad_argument,
                    std::string(flags.no_exec ? "--no-exec" : "--approve-programs") +
                        " is a wall of the sandbox: add --sandbox, without which nothing "
                        "confines the code here");
    flags.python = find_python(flags.python).string();
    McpServiceOptions options;
    options.executor = executor_options(flags);
    auto& executor = options.executor;
    executor.variables = read_own_env(workspace, logger);
    add_kernel_env(executor);
    executor.approval_timeout = seconds(flags.approval_timeout);
    // With many kernels on one machine each takes its time.
    executor.kernel_init_timeout =
        seconds(flags.kernel_init_timeout.value_or(flags.http.empty() ? 10 : 60));
    options.servers = configured_servers(flags, logger);
    name_packages_of_original(flags, options.servers, logger);
    options.separate = !flags.http.empty();
    if (options.separate) keep_warm(executor);
    options.shared_workspace = flags.shared_workspace;
    options.max_sessions = flags.max_sessions;
    options.spare_sessions = flags.spare_sessions;
    options.starts_at_once = flags.starts_at_once;
    options.session_idle = seconds(flags.session_idle);
    options.structured = flags.structured;
    options.task_after = seconds(flags.task_after);
    if (const auto settings = config::config_directory(); !settings.empty())
        options.remembered = settings / "registered" / RememberedServers::file_name(workspace);
    options.server.logger = logger;
    options.server.max_message = flags.max_message;
    if (flags.max_result > 0) {
        options.max_result = flags.max_result;
        options.server.max_result = flags.max_result + (std::size_t{64} << 10);
    }
    const auto approval = set_approval(flags, options);
    said = "workspace " + workspace.string() + "; sandbox " + flags.sandbox +
           (flags.sandbox == "none" ? ": code runs with your rights (--sandbox confines it)" : "") +
           (flags.no_exec            ? "; code starts no programs"
            : flags.approve_programs ? "; programs that code starts are judged, too"
                                     : "") +
           "; " + approval +
           (flags.approval_timeout > 0
                ? "; a question waits " + CLI::detail::to_string(flags.approval_timeout) + " s"
                : "") +
           "; a cell may run 120 s unless the client says otherwise";
    fs::current_path(workspace);
    return options;
}

// The tokens of the environment, or a new one, which is then said.
std::vector<std::string> bearer_tokens(std::string& said) {
    std::vector<std::string> tokens;
    if (const char* given = std::getenv(token_variable)) {
        std::istringstream list{std::string(given)};
        for (std::string token; std::getline(list, token, ',');) {
            token = executor::strip(token);
            if (token.size() < 16)
                throw Error(errc::bad_argument,
                            std::string(token_variable) + ": a token needs at least 16 characters");
            tokens.push_back(std::move(token));
        }
        // What runs here needs no token.
        ::unsetenv(token_variable);
    }
    if (tokens.empty()) {
        tokens.push_back(detail::random_hex(32));
        said += "; bearer token " + tokens.back();
    }
    return tokens;
}

McpHttpOptions http_options(const ServeFlags& flags, std::string& said) {
    McpHttpOptions options;
    options.tokens = bearer_tokens(said);
    options.allowed_hosts = flags.http_names;
    options.allowed_origins = flags.http_origins;
    options.session_idle = seconds(flags.session_idle);
    if (flags.max_result > 0) options.max_event = flags.max_result + (std::size_t{64} << 10);
    if (flags.legacy_sse) options.sse_path = "/sse";
    return options;
}

struct Ending {
    explicit Ending(const asio::any_io_executor& executor) : changed(executor) {}
    Event changed;
    bool wanted = false;
};

awaitable<void> serve_until(McpService& service, Ending& ending, bool on_stdio) {
    if (on_stdio) {
        co_await service.server().serve_stdio();
    } else {
        while (!ending.wanted) co_await ending.changed.wait();
    }
    co_await service.stop();
}

int serve(ServeFlags flags) {
    std::string said;
    auto options = service_options(flags, said);
    std::optional<McpHttpOptions> http;
    if (!flags.http.empty()) http = http_options(flags, said);
    const auto registry =
        std::make_unique<PluginRegistry>(PluginRegistry::standard(flags.plugin_dirs));
    asio::io_context context(1);
    sign_soon(flags, options.executor, context.get_executor());
    const auto channel = open_channel(context.get_executor(), flags, options.server.logger);
    if (channel)
        options.executor.approvers.push_back(
            [&channel](ToolCall call) { return channel->ask(std::move(call)); });
    const auto page = open_page(context.get_executor(), flags, std::make_shared<GrantedRules>(),
                                options.executor.approval_timeout, options.server.logger);
    if (page) {
        options.executor.watcher = page->watcher();
        options.executor.approvers.push_back(
            [&page](ToolCall call) { return page->ask(std::move(call)); });
    }
    McpService service(context.get_executor(), *registry, std::move(options));
    service.start();
    std::unique_ptr<McpHttpServer> listener;
    std::string where = "on standard input and output";
    if (http) {
        const auto [name, port] = host_and_port(flags.http, "--http");
        boost::system::error_code error;
        const auto address =
            asio::ip::make_address(name == "localhost" ? "127.0.0.1" : name, error);
        if (!error && !address.is_loopback() && flags.http_names.empty())
            throw Error(errc::bad_argument,
                        "--http " + flags.http +
                            " can be reached from other machines: say by --http-name under "
                            "which names, or listen at 127.0.0.1");
        listener = std::make_unique<McpHttpServer>(service.server(), *http);
        const auto bound = listener->listen(name, port);
        where = "at http://" + (name.find(':') == name.npos ? name : "[" + name + "]") + ":" +
                std::to_string(bound) + "/mcp" + (flags.legacy_sse ? " and /sse" : "");
    }
    if (flags.log_level != "off" || http)
        std::cerr << "ipybox: serving " << where << "; " << detail::printable(said) << std::endl;
    warn_of_allow(flags);
    Ending ending(context.get_executor());
    const auto end = [&] {
        ending.wanted = true;
        ending.changed.notify();
        if (listener) listener->stop();
        service.server().stop();
    };
    asio::signal_set signals(context, SIGINT, SIGTERM, SIGHUP);
    signals.async_wait([&](boost::system::error_code error, int) {
        if (!error) end();
    });
    if (!http) asio::co_spawn(context, parent_gone(), [&](std::exception_ptr) { end(); });
    run_to_end(context, serve_until(service, ending, !http));
    return 0;
}

void add_http_flags(CLI::App& command, ServeFlags& flags) {
    auto* http = command.add_option(
        "--http", flags.http,
        "Serve over HTTP instead: each client session has a kernel of its own; the bearer token is "
        "$IPYBOX_HTTP_TOKEN or printed");
    http->type_name("HOST:PORT");
    command
        .add_option("--http-name", flags.http_names,
                    "Name or address by which clients may address the server; needed when others "
                    "than this machine can; repeatable")
        ->type_name("HOST")
        ->allow_extra_args(false)
        ->needs(http);
    command
        .add_option(
            "--http-origin", flags.http_origins,
            "Web page whose scripts may use the server, as https://HOST or, of this machine, "
            "http://localhost:PORT; repeatable")
        ->type_name("ORIGIN")
        ->allow_extra_args(false)
        ->needs(http);
    command
        .add_flag("--legacy-sse", flags.legacy_sse,
                  "Serve clients that know only HTTP+SSE as well, at /sse")
        ->needs(http);
    command
        .add_flag("--shared-workspace", flags.shared_workspace,
                  "Sessions work in the workspace, not in directories of their own in it")
        ->needs(http);
    command
        .add_flag("--allow-register", flags.allow_register,
                  "Clients over HTTP may register MCP servers, which run with your rights")
        ->needs(http);
    command.add_option("--max-sessions", flags.max_sessions, "Kernels at most over HTTP")
        ->check(CLI::Range(1, 100000))
        ->capture_default_str();
    command
        .add_option("--spare-sessions", flags.spare_sessions,
                    "Kernels, with the servers, that wait for sessions to come")
        ->check(CLI::Range(0, 1000))
        ->capture_default_str()
        ->needs(http);
    command
        .add_option("--starts-at-once", flags.starts_at_once, "Kernels that start at the same time")
        ->check(CLI::Range(1, 1000))
        ->capture_default_str();
    command
        .add_option("--session-idle", flags.session_idle,
                    "Seconds without use after which a session over HTTP ends; 0 means never")
        ->check(CLI::Range(0.0, 1e8))
        ->capture_default_str();
}

}  // namespace

void add_serve(CLI::App& app, Action& action) {
    auto flags = std::make_shared<ServeFlags>();
    auto* command = app.add_subcommand(
        "serve", "Serve code actions to an MCP client, on standard input and output");
    command->footer(
        "Examples:\n"
        "  ipybox serve --workspace work --sandbox --approve ask --config mcp.json\n"
        "  ipybox serve --http 127.0.0.1:8080 --workspace work --sandbox\n\n"
        "`ipybox --workspace DIR …` without a command means the same. Variables of the environment "
        "and of .env in the\n"
        "workspace whose names begin with KERNEL_ENV_ reach the kernel, without that; "
        "docs/mcp-server.md.");
    command
        ->add_option("--workspace", flags->workspace,
                     "Directory the code works in and may write to; made if need be")
        ->type_name("DIR")
        ->capture_default_str();
    add_sandbox_flags(
        *command, *flags,
        "Sandbox plugin that confines the kernel; none without this flag, without its value");
    add_approval_flags(*command, *flags);
    command
        ->add_option("--approve", flags->approve,
                     "Calls about which a policy asks, or all without a policy: ask the client's "
                     "user, allow or deny")
        ->check(CLI::IsMember({"ask", "allow", "deny"}));
    command
        ->add_option("--approval-timeout", flags->approval_timeout,
                     "Seconds until a question counts as denied; 0 means never")
        ->check(CLI::Range(0.0, 1e6))
        ->capture_default_str();
    command->add_flag(
        "--structured-output", flags->structured,
        "Results have structured content too, which some clients show instead of the text");
    command
        ->add_option("--task-after", flags->task_after,
                     "Seconds after which a cell becomes a task, for clients that take tasks; 0: "
                     "none does")
        ->capture_default_str()
        ->check(CLI::Range(0.0, 1e6));
    command
        ->add_option("--kernel-init-timeout", flags->kernel_init_timeout,
                     "Seconds for a kernel to start: 10, with --http 60")
        ->check(CLI::Range(0.1, 1e6));
    add_http_flags(*command, *flags);
    command
        ->add_option("--max-message", flags->max_message,
                     "Bytes of a message of the client; a request that is longer is answered with "
                     "an error: 32M")
        ->transform(CLI::AsSizeValue(false))
        ->check(CLI::Range(std::uint64_t{4096}, std::uint64_t{1} << 30));
    command
        ->add_option("--max-result", flags->max_result,
                     "Bytes of a result as JSON: 8M, but 1M over HTTP after reports of progress, "
                     "of which some clients take no more")
        ->transform(CLI::AsSizeValue(false))
        ->check(CLI::Range(std::uint64_t{4096}, std::uint64_t{1} << 30));
    add_executor_flags(*command, *flags);
    command->add_option("--log-level", flags->log_level, "What is logged to standard error")
        ->check(CLI::IsMember({"trace", "debug", "info", "warning", "error", "critical", "off"},
                              CLI::ignore_case))
        ->transform([](std::string text) {
            text = CLI::detail::to_lower(text);
            return text == "critical" ? "error" : text;
        })
        ->capture_default_str();
    const std::string unused = "Accepted for configurations of the original";
    command->add_option("--tool-server-host", flags->tool_server_host, unused)->group("");
    command->add_option("--tool-server-port", flags->tool_server_port, unused)->group("");
    command->add_option("--kernel-gateway-host", flags->gateway_host, unused)->group("");
    command->add_option("--kernel-gateway-port", flags->gateway_port, unused)->group("");
    command->callback([&action, flags] { action = [flags] { return serve(*flags); }; });
}

}  // namespace ipybox::app
