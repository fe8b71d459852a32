// ipybox run: one code action from the command line.
#include <unistd.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <cmath>
#include <iostream>
#include <ipybox/approval/console.hpp>
#include <iterator>
#include <memory>
#include <set>

#include "executor_flags.hpp"
#include "run_to_end.hpp"
#include "terminal_output.hpp"

namespace ipybox::app {
namespace {

struct RunFlags : ExecutorFlags {
    RunFlags() { approve = "ask"; }
    std::string code;
    std::string file;
    double timeout = 120;
    double kernel_init_timeout = 10;
    std::vector<std::string> packages;
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

// Prints what an execution says, and answers what its policy asks.
class Session {
public:
    Session(asio::io_context& context, const RunFlags& flags)
        : context_(context), flags_(flags), registry_(PluginRegistry::standard()) {
        auto options = executor_options(flags);
        options.variables = read_env_file(".", options.logger);
        options.kernel_init_timeout = seconds(flags.kernel_init_timeout);
        servers_ = configured_servers(flags, options.logger);
        name_packages_of_original(flags, servers_, options.logger);
        ConsoleOptions at_console;
        at_console.before_question = [this] { fresh_line(); };
        output_.on_release([this] { released_.notify(); });
        console_ = std::make_unique<Console>(context_.get_executor(), std::move(at_console));
        channel_ = open_channel(context_.get_executor(), flags, options.logger);
        options.approvers.push_back([this](ToolCall call) { return answer(std::move(call)); });
        executor_ =
            std::make_unique<CodeExecutor>(context.get_executor(), registry_, std::move(options));
    }

    ~Session() {
        output_.on_release(nullptr);
        output_.release();
    }

    awaitable<int> run(std::string code) {
        for (const auto& package : flags_.packages) co_await install(package);
        co_await prepare();
        auto execution =
            co_await executor_->stream(std::move(code), timeout(), true, ResultText::none);
        asio::signal_set signals(context_, SIGINT, SIGTERM);
        signals.async_wait([&execution](boost::system::error_code error, int) {
            if (!error) execution.cancel();
        });
        int exit_code = 1;
        for (;;) {
            // What a question holds up waits in the kernel.
            while (output_.full()) co_await released_.wait();
            auto event = co_await execution.next();
            if (!event) break;
            if (auto* chunk = std::get_if<CodeExecutionChunk>(&*event)) {
                print(*chunk);
            } else if (const auto* result = std::get_if<CodeExecutionResult>(&*event)) {
                exit_code = conclude(*result);
            }
        }
        co_await executor_->stop();
        co_return exit_code;
    }

private:
    Duration timeout() const { return seconds(flags_.timeout); }

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
        for (const auto& [name, params] : servers_)
            begin("MCP server " + name, register_server(name, params));
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
        output_.print(stream, ::isatty(fd) == 1 ? filter(chunk.text) : chunk.text);
        if (!chunk.text.empty()) line_open_ = chunk.text.back() != '\n';
        printed_at_ = Clock::now();
    }

    void fresh_line() {
        if (line_open_ && ::isatty(STDOUT_FILENO) == 1) output_.print(std::cout, "\n");
        line_open_ = false;
    }

    // Of what the policy asks: --approve answers, or whoever can be asked, all at once.
    awaitable<Decision> answer(ToolCall call) {
        fresh_line();
        const std::string shown =
            approval::call_text(call.server, call.tool, call.sent_arguments());
        Decision decision;
        if (flags_.approve == "allow") {
            output_.print(std::cerr, "[allowed] " + shown + '\n');
            decision = Decision(Verdict::allow);
        } else if (flags_.approve == "deny") {
            output_.print(std::cerr, "[denied] " + shown + '\n');
            decision = Decision(Verdict::deny, "--approve deny");
        } else {
            co_await ask_all(std::move(call), decision);
        }
        if (decision.by == "nobody") {
            const std::string nobody = channel_ ? "no approver connected and no terminal to ask at"
                                                : "no terminal to ask at";
            fresh_line();
            output_.print(std::cerr, "[denied, " + nobody + "] " + shown + '\n');
            decision.reason = "there is " + nobody + "; --approve allow would allow every call";
        }
        if (decision.by.empty()) decision.by = "application";
        co_return decision;
    }
    awaitable<void> ask_all(ToolCall call, Decision& decision) {
        try {
            std::vector<Approver> approvers;
            approvers.push_back([this](ToolCall one) { return ask_at_console(std::move(one)); });
            if (channel_)
                approvers.push_back([this](ToolCall one) { return channel_->ask(std::move(one)); });
            decision = co_await first_answer(std::move(approvers), std::move(call));
        } catch (const Error& error) {
            decision = Decision(Verdict::deny, error.detail());
        } catch (const std::exception& error) {
            decision = Decision(Verdict::deny, error.what());
        }
    }

    // What was printed before a call comes another way than the call, and belongs before the
    // question.
    awaitable<Decision> ask_at_console(ToolCall call) {
        constexpr auto quiet = std::chrono::milliseconds(50);
        const auto latest = Clock::now() + std::chrono::seconds(1);
        for (auto at = Clock::now() + quiet; Clock::now() < std::min(at, latest);
             at = std::max(at, printed_at_ + quiet)) {
            const auto until = std::min(at, latest);
            co_await sleep_until(until);
        }
        co_return co_await console_->ask(std::move(call));
    }

    int conclude(const CodeExecutionResult& result) {
        fresh_line();
        for (const auto& image : result.images)
            output_.print(std::cout, "[image] " + detail::printable(image.string()) + '\n');
        if (result.ok()) return 0;
        std::string error = result.error;
        if (::isatty(STDERR_FILENO) == 1) {
            detail::TerminalFilter filter;
            error = filter(error);
        }
        output_.print(std::cerr, error + '\n');
        return 1;
    }

    asio::io_context& context_;
    const RunFlags& flags_;
    PluginRegistry registry_;
    std::map<std::string, json::object> servers_;
    std::unique_ptr<CodeExecutor> executor_;
    std::unique_ptr<Console> console_;
    std::unique_ptr<ApprovalChannel> channel_;
    TerminalOutput& output_ = TerminalOutput::instance();
    Event released_{context_.get_executor()};
    Progress progress_;
    detail::TerminalFilter output_filter_;
    detail::TerminalFilter error_filter_;
    bool line_open_ = false;
    Clock::time_point printed_at_{};
};

int run_code(const RunFlags& flags) {
    const std::string code = read_code(flags);
    asio::io_context context(1);
    Session session(context, flags);
    return run_to_end(context, session.run(code));
}

}  // namespace

void add_run(CLI::App& app, Action& action) {
    auto flags = std::make_shared<RunFlags>();
    auto* command = app.add_subcommand("run", "Run a code action and print what it prints");
    command->footer(
        "Exit code: 0 the code ran, 1 it failed, timed out or was cancelled, 2 it could not be "
        "started.");
    auto* code = command->add_option_group("code", "The code action");
    code->add_option("-c", flags->code, "Python code")->type_name("CODE");
    code->add_option("FILE", flags->file, "File with Python code; - reads standard input");
    code->require_option(1);
    command
        ->add_option(
            "--approve", flags->approve,
            "Tool calls: ask at the terminal, allow or deny all; without a terminal ask denies")
        ->check(CLI::IsMember({"ask", "allow", "deny"}))
        ->capture_default_str();
    add_approval_flags(*command, *flags);
    command
        ->add_option("--timeout", flags->timeout,
                     "Seconds until the code is interrupted; 0 means never")
        ->check(CLI::Range(0.0, 1e6))
        ->capture_default_str();
    command
        ->add_option("--kernel-init-timeout", flags->kernel_init_timeout,
                     "Seconds for the kernel to start")
        ->check(CLI::Range(0.1, 1e6))
        ->capture_default_str();
    command
        ->add_option("--workspace", flags->workspace,
                     "Directory the code works in and may write to")
        ->type_name("DIR")
        ->capture_default_str();
    add_sandbox_flags(*command, *flags, "Sandbox plugin that confines the kernel");
    command
        ->add_option("--package", flags->packages,
                     "Python package to install for this workspace first, by pip; repeatable")
        ->type_name("PACKAGE")
        ->allow_extra_args(false);
    add_executor_flags(*command, *flags);
    add_log_level(*command, flags->log_level);
    command->callback([&action, flags] { action = [flags] { return run_code(*flags); }; });
}

}  // namespace ipybox::app
