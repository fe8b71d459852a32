#pragma once
// A session of a person at a terminal, as `run` and `repl` have it: what starts it, what it prints,
// whom it asks, and what signals do.
#include <unistd.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <filesystem>
#include <functional>
#include <iostream>
#include <ipybox/approval/console.hpp>
#include <ipybox/detail/terminal_color.hpp>
#include <memory>
#include <set>

#include "asking.hpp"
#include "executor_flags.hpp"
#include "own_files.hpp"
#include "terminal_output.hpp"

namespace ipybox::app {

struct TerminalFlags : ExecutorFlags {
    TerminalFlags() { approve = "ask"; }
    double timeout = 120;
    double approval_timeout = 60;
    double kernel_init_timeout = 10;
    std::vector<std::string> packages;
    bool allow_input = false;  // of code: whoever reads the events answers
};

// All but those that say what code is run.
inline void add_terminal_flags(CLI::App& command, TerminalFlags& flags) {
    command
        .add_option(
            "--approve", flags.approve,
            "Tool calls: ask at the terminal, allow or deny all; without a terminal ask denies")
        ->check(CLI::IsMember({"ask", "allow", "deny"}))
        ->capture_default_str();
    add_approval_flags(command, flags);
    command
        .add_option("--timeout", flags.timeout,
                    "Seconds until the code is interrupted, those of questions apart; 0 means "
                    "never")
        ->check(CLI::Range(0.0, 1e6))
        ->capture_default_str();
    command
        .add_option("--approval-timeout", flags.approval_timeout,
                    "Seconds until a question counts as denied; 0 means never")
        ->check(CLI::Range(0.0, 1e6))
        ->capture_default_str();
    command
        .add_option("--kernel-init-timeout", flags.kernel_init_timeout,
                    "Seconds for the kernel to start")
        ->check(CLI::Range(0.1, 1e6))
        ->capture_default_str();
    command
        .add_option("--workspace", flags.workspace, "Directory the code works in and may write to")
        ->type_name("DIR")
        ->capture_default_str();
    add_sandbox_flags(command, flags, "Sandbox plugin that confines the kernel");
    command
        .add_option("--package", flags.packages,
                    "Python package to install for this workspace first, by pip; repeatable")
        ->type_name("PACKAGE")
        ->allow_extra_args(false);
    add_executor_flags(command, flags);
    add_log_level(command, flags.log_level);
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

// Prints what executions say, and answers what their policy asks.
class TerminalSession {
public:
    // flags: outlives this. Throws what CodeExecutor's constructor does, and Error: bad_argument,
    // bad_config (a flag).
    TerminalSession(asio::io_context& context, const TerminalFlags& flags)
        : context_(context), flags_(flags), registry_(PluginRegistry::standard(flags.plugin_dirs)) {
        auto options = executor_options(flags);
        sign_soon(flags, options, context.get_executor());
        options.variables = read_own_env(".", options.logger);
        options.kernel_init_timeout = seconds(flags.kernel_init_timeout);
        // One kernel, which need not wait for a process that others would be forked from.
        if (flags.kernel == "auto" || flags.kernel == "fork")
            options.kernel_options.emplace("start", "cold");
        options.approval_timeout = seconds(flags.approval_timeout);
        options.allow_input = flags.allow_input;
        servers_ = configured_servers(flags, options.logger);
        name_packages_of_original(flags, servers_, options.logger);
        ConsoleOptions at_console;
        at_console.before_question = [this] {
            asked_ = true;
            fresh_line();
        };
        output_.on_release([this] { released_.notify(); });
        const auto granted = std::make_shared<GrantedRules>();
        at_console.granted = granted;
        console_ = std::make_unique<Console>(context_.get_executor(), std::move(at_console));
        channel_ = open_channel(context_.get_executor(), flags, options.logger);
        page_ = open_page(context_.get_executor(), flags, granted, options.approval_timeout,
                          options.logger);
        if (page_) options.watcher = page_->watcher();
        options.approvers.push_back([this](ToolCall call) { return answer(std::move(call)); });
        announce();
        executor_ =
            std::make_unique<CodeExecutor>(context.get_executor(), registry_, std::move(options));
        warn_of_allow(flags);
        watch_signals();
    }
    TerminalSession(const TerminalSession&) = delete;
    TerminalSession& operator=(const TerminalSession&) = delete;

    ~TerminalSession() {
        output_.on_release(nullptr);
        output_.release();
    }

    CodeExecutor& executor() { return *executor_; }

    // Installs packages, starts kernel and servers. Returns early when a signal came. Throws what
    // the first failure threw.
    awaitable<void> prepare() {
        // Before the kernel starts, so that a package is there for its first cell.
        for (const auto& package : flags_.packages) {
            if (signal_ != 0) co_return;
            begin(package, install(package));
            co_await all_begun("installing");
        }
        if (signal_ != 0) co_return;
        // Kernel and servers start at the same time; the slowest decides.
        begin("the kernel", executor_->start());
        for (const auto& [name, params] : servers_)
            begin("MCP server " + name, register_server(name, params));
        co_await all_begun("starting");
    }

    // Runs code and prints what it prints; whether it ran to its end. asked: answers input() of
    // the code, where TerminalFlags::allow_input lets it ask; may be empty. Throws what stream()
    // throws.
    awaitable<bool> run(std::string code, std::function<void(InputRequest)> asked) {
        output_filter_ = error_filter_ = detail::TerminalFilter();
        line_open_ = asked_ = false;
        auto execution = co_await executor_->stream(std::move(code), seconds(flags_.timeout), true,
                                                    ResultText::none);
        cancel_ = [&execution] { execution.cancel(); };
        if (signal_ != 0) cancel_();
        bool ok = false;
        try {
            for (;;) {
                // What a question holds up waits in the kernel.
                while (output_.full()) co_await released_.wait();
                auto event = co_await execution.next();
                if (!event) break;
                if (auto* chunk = std::get_if<CodeExecutionChunk>(&*event)) {
                    print(*chunk);
                } else if (const auto* result = std::get_if<CodeExecutionResult>(&*event)) {
                    ok = conclude(*result);
                } else if (auto* request = std::get_if<InputRequest>(&*event)) {
                    if (asked) asked(std::move(*request));
                }
            }
        } catch (...) {
            cancel_ = nullptr;
            throw;
        }
        cancel_ = nullptr;
        co_return ok;
    }
    // Interrupts what run() runs; false when it runs nothing.
    bool interrupt() {
        if (!cancel_) return false;
        line_open_ = true;  // by the terminal's echo of the key
        cancel_();
        return true;
    }

    // The signal that ends this; 0: none came. The first cancels what runs, the second ends the
    // program, with which kernel and servers end.
    int signal() const { return signal_; }
    // goes_on: told of each signal first; one for which it returns true ends nothing.
    void on_signal(std::function<bool(int number)> goes_on) { goes_on_ = std::move(goes_on); }

    // Ends a line that the code left open.
    void fresh_line() {
        if (line_open_ && ::isatty(STDOUT_FILENO) == 1) output_.print(std::cout, "\n");
        line_open_ = false;
    }

private:
    // What differs from `ipybox serve`, for a person at a terminal.
    void announce() const {
        if (flags_.log_level == "off" || ::isatty(STDERR_FILENO) != 1) return;
        const auto whole = [](double seconds) { return CLI::detail::to_string(seconds) + " s"; };
        std::string calls = flags_.policy.empty() ? "" : "judged by " + flags_.policy + ", else ";
        calls += flags_.approve == "allow"  ? "allowed"
                 : flags_.approve == "deny" ? "denied"
                                            : "asked about";
        if (flags_.approve == "ask" && flags_.approval_timeout > 0)
            calls += ", denied without an answer in " + whole(flags_.approval_timeout);
        const auto time =
            flags_.timeout > 0 ? "may run " + whole(flags_.timeout) : "may run for ever";
        const auto said = "sandbox " + flags_.sandbox + "; workspace " +
                          real_path(flags_.workspace) + "; calls are " + calls + "; the code " +
                          time +
                          (flags_.no_exec            ? ", and starts no programs"
                           : flags_.approve_programs ? ", and its programs are calls, too"
                                                     : "");
        std::cerr << "ipybox: " << detail::printable(said) << std::endl;
    }
    static std::string real_path(const std::string& text) {
        std::error_code failed;
        const auto path = std::filesystem::canonical(text, failed);
        return failed ? text : path.string();
    }

    void watch_signals() {
        signals_.async_wait([this](boost::system::error_code error, int number) {
            if (error) return;
            if (!goes_on_ || !goes_on_(number)) {
                if (signal_ != 0) ::_exit(128 + number);
                signal_ = number;
                interrupt();
                starting_->changed.notify();
            }
            watch_signals();
        });
    }

    // What is being waited for before the code runs.
    struct Starting {
        explicit Starting(const asio::any_io_executor& executor) : changed(executor) {}
        Event changed;
        std::set<std::string> waiting;
        std::exception_ptr failure;
    };
    void begin(std::string what, awaitable<void> work) {
        starting_->waiting.insert(what);
        asio::co_spawn(context_, std::move(work),
                       [shared = starting_, what](std::exception_ptr error) {
                           if (error && !shared->failure) shared->failure = error;
                           shared->waiting.erase(what);
                           shared->changed.notify();
                       });
    }
    // Until all that was begun is there, something failed, which is thrown, or a signal came.
    awaitable<void> all_begun(const char* verb) {
        while (!starting_->waiting.empty() && !starting_->failure && signal_ == 0) {
            std::string names;
            for (const auto& name : starting_->waiting) names += (names.empty() ? "" : ", ") + name;
            progress_.show(std::string(verb) + " " + names + " …");
            co_await starting_->changed.wait();
        }
        progress_.clear();
        if (starting_->failure && signal_ == 0) std::rethrow_exception(starting_->failure);
    }

    awaitable<void> install(std::string package) {
        co_await executor_->install_package(std::move(package));
    }

    awaitable<void> register_server(std::string name, json::object params) {
        co_await executor_->add_server(std::move(name), std::move(params));
    }

    void print(const CodeExecutionChunk& chunk) {
        const int fd = chunk.is_stderr ? STDERR_FILENO : STDOUT_FILENO;
        auto& filter = chunk.is_stderr ? error_filter_ : output_filter_;
        auto& stream = chunk.is_stderr ? std::cerr : std::cout;
        // A terminal gets text only: escape sequences of the kernel could fake a question.
        std::string text = ::isatty(fd) == 1 ? filter(chunk.text) : chunk.text;
        // As it is seen: a newline within an escape sequence ends no line.
        if (!text.empty()) line_open_ = text.back() != '\n';
        output_.print(stream, std::move(text));
        printed_at_ = Clock::now();
    }

    // Of what the policy asks: --approve answers, or whoever can be asked, all at once.
    awaitable<Decision> answer(ToolCall call) {
        const auto until = deadline_after(seconds(flags_.approval_timeout));
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
            co_await ask_all(std::move(call), until, decision);
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
    awaitable<void> ask_all(ToolCall call, Clock::time_point until, Decision& decision) {
        try {
            std::vector<Approver> approvers;
            approvers.push_back(
                [this, until](ToolCall one) { return ask_at_console(std::move(one), until); });
            if (channel_)
                approvers.push_back([this](ToolCall one) { return channel_->ask(std::move(one)); });
            if (page_)
                approvers.push_back([this](ToolCall one) { return page_->ask(std::move(one)); });
            decision = co_await first_answer(std::move(approvers), std::move(call));
        } catch (const Error& error) {
            decision = Decision(Verdict::deny, error.detail());
        } catch (const std::exception& error) {
            decision = Decision(Verdict::deny, error.what());
        }
    }

    // What was printed before a call comes another way than the call, and belongs before the
    // question.
    awaitable<Decision> ask_at_console(ToolCall call, Clock::time_point latest_answer) {
        constexpr auto quiet = std::chrono::milliseconds(50);
        const auto latest = Clock::now() + std::chrono::seconds(1);
        for (auto at = Clock::now() + quiet; Clock::now() < std::min(at, latest);
             at = std::max(at, printed_at_ + quiet)) {
            const auto until = std::min(at, latest);
            co_await sleep_until(until);
        }
        co_return co_await console_->ask(std::move(call), latest_answer);
    }

    bool conclude(const CodeExecutionResult& result) {
        fresh_line();
        for (const auto& image : result.images)
            output_.print(std::cout, "[image] " + detail::printable(image.string()) + '\n');
        if (result.ok()) return true;
        std::string error = result.error;
        const bool terminal = ::isatty(STDERR_FILENO) == 1;
        if (terminal) {
            detail::TerminalFilter filter;
            error = filter(error);
        }
        const auto refused = refusal_in(error);
        // Who answered knows the call; where it stands in the code is noise to them.
        if (asked_ && !refused.empty())
            error = "ipybox: the code stopped at a call that was not allowed: " + refused +
                    "; answer y to a question, or say beforehand what is allowed by --policy FILE "
                    "or --approve allow";
        else if (terminal && colors_at(STDERR_FILENO))
            error = with_last_line_in_color(error);
        output_.print(std::cerr, error + '\n');
        return false;
    }

    // What went wrong stands at the end, below where it did.
    static std::string with_last_line_in_color(const std::string& error) {
        const auto end = error.find_last_not_of('\n') + 1;
        const auto newline = error.rfind('\n', end == 0 ? 0 : end - 1);
        const auto last = newline == error.npos ? 0 : newline + 1;
        return error.substr(0, last) +
               detail::in_color(detail::Color::red, error.substr(last, end - last));
    }

    // The last line of a traceback, without the name of the error, if it is that of a call that was
    // not allowed.
    static std::string refusal_in(const std::string& error) {
        auto last = std::string_view(error);
        last = last.substr(0, last.find_last_not_of('\n') + 1);
        last = last.substr(last.find_last_of('\n') + 1);
        for (const std::string_view name : {"ApprovalRejectedError: ", "ApprovalTimeoutError: "})
            if (last.starts_with(name)) return detail::printable(last.substr(name.size()));
        return {};
    }

    asio::io_context& context_;
    const TerminalFlags& flags_;
    PluginRegistry registry_;
    std::map<std::string, json::object> servers_;
    std::unique_ptr<CodeExecutor> executor_;
    std::unique_ptr<Console> console_;
    std::unique_ptr<ApprovalChannel> channel_;
    std::unique_ptr<ApprovalPage> page_;
    TerminalOutput& output_ = TerminalOutput::instance();
    Event released_{context_.get_executor()};
    Progress progress_;
    asio::signal_set signals_{context_, SIGINT, SIGTERM};
    int signal_ = 0;                    // that ends this; 0: none came
    std::function<bool(int)> goes_on_;  // empty: never
    std::function<void()> cancel_;      // what runs; empty: nothing does
    std::shared_ptr<Starting> starting_ = std::make_shared<Starting>(context_.get_executor());
    bool asked_ = false;  // a question was put to a person
    detail::TerminalFilter output_filter_;
    detail::TerminalFilter error_filter_;
    bool line_open_ = false;
    Clock::time_point printed_at_{};
};

}  // namespace ipybox::app
