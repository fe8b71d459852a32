#pragma once
#include <ipybox/approval/console.hpp>

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <ipybox/approval/detail/prompt.hpp>
#include <ipybox/compilation.hpp>

namespace ipybox {

IPYBOX_DECL Console::Console(asio::any_io_executor executor, ConsoleOptions options)
    : state_(std::make_shared<Impl>(std::move(executor), std::move(options))) {
    const std::weak_ptr<Impl> weak = state_;
    detail::terminal_turns.join(state_.get(), [weak] {
        const auto held = weak.lock();
        if (!held) return;
        asio::post(held->terminal.get_executor(), [weak] {
            if (const auto waiting = weak.lock()) waiting->free.notify();
        });
    });
}

IPYBOX_DECL Console::Impl::Impl(asio::any_io_executor executor, ConsoleOptions o)
    : options(std::move(o)),
      terminal(executor),
      free(executor),
      color(detail::may_color(std::getenv("NO_COLOR"), std::getenv("TERM"))),
      movable(detail::may_move(std::getenv("TERM"))) {
    const int fd = ::open(options.terminal.c_str(), O_RDWR | O_CLOEXEC | O_NOCTTY);
    if (fd < 0) return;
    if (::isatty(fd) == 1)
        terminal.assign(fd);
    else
        ::close(fd);
}

IPYBOX_DECL void Console::Impl::say(std::string_view text) {
    const int fd = terminal.native_handle();
    while (!text.empty()) {
        const auto size = ::write(fd, text.data(), text.size());
        if (size > 0) {
            text.remove_prefix(static_cast<std::size_t>(size));
            continue;
        }
        pollfd ready{fd, POLLOUT, 0};
        if (errno != EINTR && (errno != EAGAIN || ::poll(&ready, 1, 1000) != 1)) return;
    }
}

IPYBOX_DECL Console::Turn::Turn(ImplPtr s, Clock::time_point until)
    : state(std::move(s)),
      countdown(std::make_shared<Countdown>(until, state->terminal.get_executor())) {}

IPYBOX_DECL Console::Turn::~Turn() {
    countdown->over = true;
    countdown->changed.notify();
    // Whoever set the time cancels a moment before or after it.
    const bool late = countdown->until != never &&
                      Clock::now() + std::chrono::milliseconds(100) >= countdown->until;
    if (open) state->say(late ? "\n[no answer in time: denied]\n" : "\n[withdrawn]\n");
    if (begun && state->options.after_question) state->options.after_question();
    detail::terminal_turns.leave();
}

IPYBOX_DECL Decision Console::said(Verdict verdict, std::string by, std::string reason) {
    Decision decision(verdict, std::move(reason));
    decision.by = "console: " + std::move(by);
    return decision;
}

IPYBOX_DECL bool Console::remembered(Impl& state, const ToolCall& call) {
    std::size_t steps = approval::rule_steps;
    for (const auto& rule : state.session_rules)
        if (rule.fits(facts_of(call), std::chrono::system_clock::now(), steps) ==
            approval::Fit::yes)
            return true;
    return false;
}

IPYBOX_DECL awaitable<void> Console::count_down(ImplPtr state,
                                                std::shared_ptr<Countdown> countdown) {
    using std::chrono::seconds;
    while (!countdown->over && Clock::now() < countdown->until) {
        const auto left = std::chrono::ceil<seconds>(countdown->until - Clock::now());
        winsize size{};
        ::ioctl(state->terminal.native_handle(), TIOCGWINSZ, &size);
        const auto text = detail::countdown_text(static_cast<long>(left.count()), state->movable,
                                                 size.ws_col, countdown->prompt.size());
        const bool in_place = detail::counts_in_place(text);
        // Lines come every five seconds.
        const bool due = in_place || left.count() % 5 == 0;
        if (!countdown->prompt.empty() && due) state->say(text);
        const auto next = countdown->until - (left - seconds(1));
        co_await countdown->changed.wait(next);
    }
}

IPYBOX_DECL awaitable<Decision> Console::asked(ImplPtr state, ToolCall call,
                                               Clock::time_point until) {
    if (state->options.always.allow(call)) co_return said(Verdict::allow, "always");
    if (!state->terminal.is_open()) co_return Decision();
    while (!detail::terminal_turns.take()) co_await state->free.wait();
    Turn turn(state, until);
    // Answered while others were asked about.
    if (remembered(*state, call)) co_return said(Verdict::allow, "this session");
    if (state->options.always.allow(call)) co_return said(Verdict::allow, "always");
    const Question question(call);
    const std::string scope = scope_of(call);
    turn.begun = true;
    if (state->options.before_question) state->options.before_question();
    const auto number = detail::terminal_turns.open();
    turn.open = true;
    const std::string text = "Question " + std::to_string(number) + ": " + question.text();
    state->say((state->color ? detail::colored_question(text) : text) +
               detail::hints_line(call.annotations, state->color));
    const auto read_by = Clock::now() + reading_time;
    co_await sleep_until(read_by);
    int early = 0;
    if (::ioctl(state->terminal.native_handle(), FIONREAD, &early) == 0 && early > 0)
        state->say("[what was typed before now is no answer]\n");
    const std::string prompt = "Allow " + question.name() + "? [y/s/a/N/r/?] ";
    if (until != never)
        asio::co_spawn(state->terminal.get_executor(), count_down(state, turn.countdown),
                       asio::detached);
    for (int attempt = 0; attempt < 20; ++attempt) {
        ::tcflush(state->terminal.native_handle(), TCIFLUSH);
        state->say(state->color ? detail::in_color(detail::Color::bold, prompt) : prompt);
        turn.countdown->prompt = prompt;
        std::string line;
        const bool read = co_await read_line(state, line);
        if (!read) co_return said(Verdict::deny, "gone", "the terminal was closed");
        turn.countdown->prompt.clear();
        if (line == "?") {
            state->say("  y  yes, this once\n  s  yes, and " + scope +
                       " for this session\n  a  yes, and " + scope + " always (" +
                       state->options.always.file().string() +
                       ")\n  n  no\n  r  no, with a reason that the code is told\n");
            continue;
        }
        if (line == "r" || line == "reason") {
            ::tcflush(state->terminal.native_handle(), TCIFLUSH);
            state->say("Reason: ");
            std::string reason;
            const bool given = co_await read_line(state, reason);
            if (!given) co_return said(Verdict::deny, "gone", "the terminal was closed");
            turn.open = false;
            co_return said(Verdict::deny, "no",
                           reason.empty() ? "the user said no" : reason.substr(0, 500));
        }
        turn.open = false;
        if (line == "y" || line == "yes") co_return said(Verdict::allow, "once");
        if (line == "s" || line == "session") {
            state->session_rules.emplace_back(session_rule(call), "session",
                                              state->session_rules.size() + 1);
            co_return said(Verdict::allow, "this session");
        }
        if (line == "a" || line == "always") {
            remember(*state, call, scope);
            co_return said(Verdict::allow, "always");
        }
        co_return said(Verdict::deny, "no", "the user said no");
    }
    co_return said(Verdict::deny, "no", "the user said neither yes nor no");
}

IPYBOX_DECL std::string Console::scope_of(const ToolCall& call) {
    if (call.origin == CallOrigin::program) return "this very program, started in this very way";
    if (call.origin != CallOrigin::mcp) return "this very command";
    return approval::plain_name(call.server) + "." + approval::plain_name(call.tool) +
           " with any arguments";
}

IPYBOX_DECL json::value Console::session_rule(const ToolCall& call) {
    json::object rule = rule_allowing(call);
    rule["when"].as_object()["session"] =
        call.session.empty() ? "*" : approval::Glob::quoted(call.session);
    return rule;
}

IPYBOX_DECL void Console::remember(Impl& state, const ToolCall& call, const std::string& scope) {
    try {
        state.options.always.add(call);
        state.say("[" + scope + " is allowed from now on: " + state.options.always.file().string() +
                  "]\n");
    } catch (const Error& error) {
        state.say("[allowed this once; it cannot be remembered: " +
                  detail::printable(error.detail()) + "]\n");
    }
}

IPYBOX_DECL awaitable<bool> Console::read_line(ImplPtr state, std::string& line) {
    std::string text;
    char chunk[256];
    while (text.find('\n') == text.npos && text.size() < 4096) {
        auto [error, size] =
            co_await state->terminal.async_read_some(asio::buffer(chunk), as_result);
        if (error || size == 0) co_return false;
        text.append(chunk, size);
    }
    text.resize(std::min(text.find('\n'), text.size()));
    const auto from = text.find_first_not_of(" \t\r");
    line = from == text.npos
               ? ""
               : detail::printable(text.substr(from, text.find_last_not_of(" \t\r") - from + 1));
    if (line.size() < 10)
        for (char& c : line) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    co_return true;
}

}  // namespace ipybox
