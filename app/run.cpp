// ipybox run: one code action from the command line.
#include <unistd.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <cmath>
#include <iostream>
#include <ipybox/approval_channel.hpp>
#include <ipybox/code_executor.hpp>
#include <ipybox/console.hpp>
#include <iterator>
#include <memory>
#include <set>

#include "commands.hpp"

namespace ipybox::app {
namespace {

struct RunFlags {
    std::string code;
    std::string file;
    std::string approve = "ask";
    std::string policy;
    std::string audit;
    std::vector<std::string> audit_with;
    bool approve_shell = false;
    bool require_shell_escape = false;
    std::string channel;
    double timeout = 120;
    std::string workspace = ".";
    std::string sandbox = "bubblewrap";
    std::string sandbox_config;
    std::string sandbox_user;
    std::string kernel = "zmq";
    std::string python;
    std::string config;
    std::string images_dir = "images";
    std::vector<std::string> env;
    std::vector<std::string> limits;
    std::vector<std::string> hosts;
    std::vector<std::string> packages;
    std::vector<std::string> package_hosts;
    std::string log_level = "warning";
};

std::string read_code(const RunFlags& flags) {
    if (!flags.code.empty()) return flags.code;
    if (flags.file != "-") return read_text_file(flags.file);
    return std::string(std::istreambuf_iterator<char>(std::cin), {});
}

// One line on a terminal that says what is being waited for, and vanishes.
class Progress {
public:
    void show(const std::string& text) {
        if (!terminal_) return;
        std::cerr << "\r\033[K" << detail::printable(text) << std::flush;
        shown_ = true;
    }
    void clear() {
        if (shown_) std::cerr << "\r\033[K" << std::flush;
        shown_ = false;
    }
    ~Progress() { clear(); }

private:
    bool terminal_ = ::isatty(STDERR_FILENO) == 1;
    bool shown_ = false;
};

// Prints an execution's events and answers its approval requests.
class Session {
public:
    Session(asio::io_context& context, const RunFlags& flags)
        : context_(context), flags_(flags), registry_(PluginRegistry::standard()) {
        CodeExecutorOptions options;
        options.sandbox = flags.sandbox;
        // The next start reads them: what they name runs on the host.
        for (const auto& file : {flags.config, flags.sandbox_config, flags.policy})
            if (!file.empty()) protect(options.write_protected, file);
        if (!flags.sandbox_config.empty()) {
            const auto settings = parse_json(read_text_file(flags.sandbox_config), flags.sandbox_config);
            if (!settings.is_object()) throw Error(errc::bad_config, flags.sandbox_config + ": must be a JSON object");
            options.sandbox_config = settings.get_object();
        }
        if (!flags.sandbox_user.empty()) options.sandbox_options["user"] = std::stoll(flags.sandbox_user);
        options.kernel = flags.kernel;
        options.python = flags.python;
        options.workspace = flags.workspace;
        options.images_dir = flags.images_dir;
        options.logger = make_logger(flags.log_level);
        for (const auto& pair : flags.env) {
            const auto equals = pair.find('=');
            if (equals == pair.npos || equals == 0)
                throw Error(errc::bad_argument, "--env: expected NAME=VALUE, got \"" + pair + "\"");
            options.kernel_env[pair.substr(0, equals)] = pair.substr(equals + 1);
        }
        for (const auto& limit : flags.limits) {
            const auto equals = limit.find('=');
            if (equals == limit.npos) throw Error(errc::bad_argument, "--limit: expected NAME=VALUE, got \"" + limit + "\"");
            set_limit(options.limits, limit.substr(0, equals), limit.substr(equals + 1));
        }
        options.allowed_hosts = flags.hosts;
        if (!flags.package_hosts.empty()) options.package_hosts = flags.package_hosts;
        if (std::filesystem::exists(".env")) options.variables = parse_env(read_text_file(".env"), ".env");
        if (!flags.config.empty())
            servers_ = read_mcp_servers(parse_json(read_text_file(flags.config), flags.config), flags.config);
        set_approval(options);
        executor_ = std::make_unique<CodeExecutor>(context.get_executor(), registry_, std::move(options));
    }

    awaitable<int> run(std::string code) {
        for (const auto& package : flags_.packages) co_await install(package);
        co_await prepare();
        auto execution = co_await executor_->stream(std::move(code), timeout(), true);
        asio::signal_set signals(context_, SIGINT, SIGTERM);
        signals.async_wait([&execution](boost::system::error_code error, int) {
            if (!error) execution.cancel();
        });
        int exit_code = 1;
        for (;;) {
            auto event = co_await execution.next();
            if (!event) break;
            if (auto* chunk = std::get_if<CodeExecutionChunk>(&*event)) {
                print(*chunk);
            } else if (auto* request = std::get_if<ApprovalRequest>(&*event)) {
                answer(*request);
            } else {
                exit_code = conclude(std::get<CodeExecutionResult>(*event));
            }
        }
        co_await executor_->stop();
        co_return exit_code;
    }

private:
    void set_approval(CodeExecutorOptions& options) {
        options.approve_shell_cmds = flags_.approve_shell || flags_.require_shell_escape;
        options.require_shell_escape = flags_.require_shell_escape;
        if (!flags_.policy.empty()) {
            const auto policy = read_policy(flags_.policy);
            options.make_policy = [this, policy](Host& host) { return make_policy(registry_, host, policy, flags_.policy); };
        }
        if (!flags_.audit.empty()) {
            AuditOptions settings;
            settings.workspace = flags_.workspace;
            for (const auto& option : flags_.audit_with) {
                settings.fsync |= option == "fsync";
                settings.code_text |= option == "code";
                settings.stop_on_failure &= option != "lossy";
                settings.inside_workspace |= option == "in-workspace";
            }
            options.audit = std::make_shared<AuditLog>(flags_.audit, settings, options.logger);
            if (settings.inside_workspace) protect(options.write_protected, flags_.audit);
        }
        ConsoleOptions at_console;
        at_console.before_question = [this] { fresh_line(); };
        console_ = std::make_unique<Console>(context_.get_executor(), std::move(at_console));
        if (flags_.channel.empty()) return;
        if (flags_.sandbox == "none")
            throw Error(errc::bad_argument, "--approval-channel needs a sandbox: without one the code could approve its own calls");
        ApprovalChannelOptions settings;
        settings.approval_required = true;
        settings.approval_timeout = {};  // the executor's counts
        settings.logger = options.logger;
        if (const char* token = std::getenv("IPYBOX_APPROVAL_TOKEN")) settings.token = token;
        channel_ = std::make_unique<ApprovalChannel>(context_.get_executor(), std::move(settings));
        const auto [host, port] = split_host_port(flags_.channel);
        const auto url = channel_->listen(host, port);
        std::cerr << "approvers connect to " << url;
        if (std::getenv("IPYBOX_APPROVAL_TOKEN") == nullptr) std::cerr << " with the bearer token " << channel_->token();
        std::cerr << std::endl;
    }

    static std::pair<std::string, unsigned short> split_host_port(const std::string& text) {
        const auto [host, port] = detail::split_port(text);
        const auto number = port == "0" ? std::optional<std::uint16_t>(0) : detail::parse_port(port);
        if (host.empty() || !number)
            throw Error(errc::bad_argument, "--approval-channel: expected HOST:PORT such as 127.0.0.1:8900, got \"" + text + "\"");
        return {std::string(host), *number};
    }

    // The file, and the place under which it is found again.
    static void protect(std::vector<std::filesystem::path>& list, const std::filesystem::path& file) {
        namespace fs = std::filesystem;
        const auto absolute = fs::absolute(file);
        list.push_back(fs::canonical(absolute.parent_path()) / absolute.filename());
        list.push_back(fs::canonical(absolute));
    }

    Duration timeout() const {
        return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(flags_.timeout));
    }

    // Kernel and servers start at the same time; the slowest decides.
    awaitable<void> prepare() {
        struct Shared {
            explicit Shared(const asio::any_io_executor& executor) : changed(executor) {}
            Event changed;
            std::set<std::string> waiting;
            std::exception_ptr failure;
        };
        auto shared = std::make_shared<Shared>(context_.get_executor());
        const auto begin = [&](std::string what, awaitable<void> work) {
            shared->waiting.insert(what);
            asio::co_spawn(context_, std::move(work), [shared, what](std::exception_ptr error) {
                if (error && !shared->failure) shared->failure = error;
                shared->waiting.erase(what);
                shared->changed.notify();
            });
        };
        begin("the kernel", executor_->start());
        for (const auto& [name, params] : servers_) begin("MCP server " + name, register_server(name, params));
        while (!shared->waiting.empty() && !shared->failure) {
            std::string names;
            for (const auto& name : shared->waiting) names += (names.empty() ? "" : ", ") + name;
            progress_.show("starting " + names + " …");
            co_await shared->changed.wait();
        }
        progress_.clear();
        if (shared->failure) std::rethrow_exception(shared->failure);
    }

    // Before the kernel starts, so that a package is there for its first cell.
    awaitable<void> install(std::string package) {
        progress_.show("installing " + package + " …");
        co_await executor_->install_package(std::move(package));
        progress_.clear();
    }

    awaitable<void> register_server(std::string name, json::object params) {
        co_await executor_->generate_mcp_sources(std::move(name), std::move(params));
    }

    void print(const CodeExecutionChunk& chunk) {
        const int fd = chunk.is_stderr ? STDERR_FILENO : STDOUT_FILENO;
        auto& filter = chunk.is_stderr ? error_filter_ : output_filter_;
        auto& stream = chunk.is_stderr ? std::cerr : std::cout;
        // A terminal gets text only: escape sequences of the kernel could fake a question.
        stream << (::isatty(fd) == 1 ? filter(chunk.text) : chunk.text) << std::flush;
        if (!chunk.text.empty()) line_open_ = chunk.text.back() != '\n';
    }

    void fresh_line() {
        if (line_open_ && ::isatty(STDOUT_FILENO) == 1) std::cout << std::endl;
        line_open_ = false;
    }

    void answer(const ApprovalRequest& request) {
        fresh_line();
        if (flags_.approve == "allow") {
            std::cerr << "[allowed] " << request.to_string() << std::endl;
            request.accept();
        } else if (flags_.approve == "deny") {
            std::cerr << "[denied] " << request.to_string() << std::endl;
            request.reject("--approve deny");
        } else {
            asio::co_spawn(context_, consult(request), asio::detached);
        }
    }

    // Whoever can answer is asked at once, until the call is settled.
    awaitable<void> consult(ApprovalRequest request) {
        Decision decision;
        auto asking = ask_all(request.call(), decision);
        auto settled = request.settled();
        const bool answered = co_await ends_first(std::move(asking), std::move(settled));
        if (!answered) co_return;
        if (decision.by == "nobody") {
            const std::string nobody = channel_ ? "no approver connected and no terminal to ask at" : "no terminal to ask at";
            fresh_line();
            std::cerr << "[denied, " << nobody << "] " << request.to_string() << std::endl;
            decision.reason = "there is " + nobody + "; --approve allow would allow every call";
        }
        request.answer(decision);
    }
    awaitable<void> ask_all(ToolCall call, Decision& decision) {
        try {
            std::vector<Approver> approvers;
            approvers.push_back([this](ToolCall one) { return console_->ask(std::move(one)); });
            if (channel_) approvers.push_back([this](ToolCall one) { return channel_->ask(std::move(one)); });
            decision = co_await first_answer(std::move(approvers), std::move(call));
        } catch (const Error& error) {
            decision = Decision(Verdict::deny, error.detail());
        } catch (const std::exception& error) {
            decision = Decision(Verdict::deny, error.what());
        }
    }

    int conclude(const CodeExecutionResult& result) {
        fresh_line();
        for (const auto& image : result.images) std::cout << "[image] " << detail::printable(image.string()) << std::endl;
        if (result.ok()) return 0;
        std::string error = result.error;
        if (::isatty(STDERR_FILENO) == 1) {
            detail::TerminalFilter filter;
            error = filter(error);
        }
        std::cerr << error << std::endl;
        return 1;
    }

    asio::io_context& context_;
    const RunFlags& flags_;
    PluginRegistry registry_;
    std::map<std::string, json::object> servers_;
    std::unique_ptr<CodeExecutor> executor_;
    std::unique_ptr<Console> console_;
    std::unique_ptr<ApprovalChannel> channel_;
    Progress progress_;
    detail::TerminalFilter output_filter_;
    detail::TerminalFilter error_filter_;
    bool line_open_ = false;
};

int run_code(const RunFlags& flags) {
    const std::string code = read_code(flags);
    asio::io_context context(1);
    Session session(context, flags);
    int exit_code = 2;
    std::exception_ptr failure;
    asio::co_spawn(context, session.run(code), [&](std::exception_ptr error, int result) {
        failure = error;
        exit_code = result;
        context.stop();
    });
    context.run();
    if (failure) std::rethrow_exception(failure);
    return exit_code;
}

}  // namespace

void add_run(CLI::App& app, Action& action) {
    auto flags = std::make_shared<RunFlags>();
    auto* command = app.add_subcommand("run", "Run a code action and print what it prints");
    command->footer("Exit code: 0 the code ran, 1 it failed, timed out or was cancelled, 2 it could not be started.");
    auto* code = command->add_option_group("code", "The code action");
    code->add_option("-c", flags->code, "Python code")->type_name("CODE");
    code->add_option("FILE", flags->file, "File with Python code; - reads standard input");
    code->require_option(1);
    command->add_option("--approve", flags->approve, "Tool calls: ask at the terminal, allow or deny all; without a terminal ask denies")
        ->check(CLI::IsMember({"ask", "allow", "deny"}))->capture_default_str();
    command->add_option("--policy", flags->policy, "File with the policy that decides on calls; what it asks, --approve answers")->type_name("FILE");
    command->add_option("--audit", flags->audit, "File to which every execution and call is appended; `ipybox audit show` reads it")->type_name("FILE");
    command->add_option("--audit-with", flags->audit_with,
                        "code: the code itself; fsync: each record reaches the disk first; lossy: calls go on when it cannot be written; "
                        "in-workspace: the file may be there; repeatable")
        ->check(CLI::IsMember({"code", "fsync", "lossy", "in-workspace"}))->allow_extra_args(false);
    command->add_flag("--approve-shell-cmds", flags->approve_shell, "Shell commands (!command, %%bash and their kin) need approval too");
    command->add_flag("--require-shell-escape", flags->require_shell_escape,
                      "And other ways to start processes are refused, by a guard in Python: no security boundary");
    command->add_option("--approval-channel", flags->channel,
                        "Address on this machine where approvers connect by WebSocket; the token is $IPYBOX_APPROVAL_TOKEN or printed")
        ->type_name("HOST:PORT");
    command->add_option("--timeout", flags->timeout, "Seconds until the code is interrupted; 0 means never")
        ->check(CLI::Range(0.0, 1e6))->capture_default_str();
    command->add_option("--workspace", flags->workspace, "Directory the code works in and may write to")->type_name("DIR")->capture_default_str();
    command->add_option("--sandbox", flags->sandbox, "Sandbox plugin that confines the kernel")->type_name("NAME")->capture_default_str();
    command->add_option("--sandbox-config", flags->sandbox_config, "Settings in sandbox-runtime's JSON format")->type_name("FILE");
    command->add_option("--sandbox-user", flags->sandbox_user, "When started by root: the uid the kernel runs as")
        ->type_name("UID")->check(CLI::Range(1, 2147483647));
    command->add_option("--kernel", flags->kernel, "Kernel backend plugin")->type_name("NAME")->capture_default_str();
    command->add_option("--python", flags->python, "Interpreter with ipykernel and pydantic")->type_name("PATH");
    command->add_option("--config", flags->config, "File with an mcpServers block; its servers become mcptools.NAME")->type_name("FILE");
    command->add_option("--images-dir", flags->images_dir, "Where images are saved, relative to the workspace")->type_name("DIR")->capture_default_str();
    command->add_option("--env", flags->env, "Variable for the kernel, which inherits none; repeatable")->type_name("NAME=VALUE")
        ->allow_extra_args(false);
    command->add_option("--allow-host", flags->hosts,
                        "Host the code may connect to, as HOST, *.HOST or with :PORT; none without; repeatable")
        ->type_name("HOST")->allow_extra_args(false);
    command->add_option("--package", flags->packages, "Python package to install for this workspace first, by pip; repeatable")
        ->type_name("PACKAGE")->allow_extra_args(false);
    command->add_option("--package-host", flags->package_hosts,
                        "Hosts that --package may connect to instead of pypi.org and files.pythonhosted.org; repeatable")
        ->type_name("HOST")->allow_extra_args(false);
    command->add_option("--limit", flags->limits,
                        "What the kernel may use, such as memory=2G, memory-total=4G, processes=100, open-files=1000, file-size=1G, "
                        "cpu=600, wall=3600 (seconds), scratch=1G, scratch-inodes=100000; repeatable")
        ->type_name("NAME=VALUE")->allow_extra_args(false);
    add_log_level(*command, flags->log_level);
    command->callback([&action, flags] { action = [flags] { return run_code(*flags); }; });
}

}  // namespace ipybox::app
