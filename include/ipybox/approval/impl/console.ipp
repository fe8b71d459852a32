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
    if (!options.granted) options.granted = std::make_shared<GrantedRules>();
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

IPYBOX_DECL std::optional<Decision> Console::granted(const Impl& state, const ToolCall& call) {
    auto decision = state.options.granted->find(call);
    if (decision) decision->by = "console: " + decision->by;
    return decision;
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
    auto before = granted(*state, call);
    if (before) co_return std::move(*before);
    if (!state->terminal.is_open()) co_return Decision();
    while (!detail::terminal_turns.take()) co_await state->free.wait();
    Turn turn(state, until);
    // Answered while others were asked about.
    before = granted(*state, call);
    if (before) co_return std::move(*before);
    const Question question(call);
    const bool lasting = state->options.granted->may_remember(call);
    turn.begun = true;
    if (state->options.before_question) state->options.before_question();
    const auto number = detail::terminal_turns.open();
    turn.open = true;
    const std::string text = "Question " + std::to_string(number) + ": " + question.text();
    state->say((state->color ? detail::colored_question(text) : text) +
               detail::hints_line(call.annotations, state->color) + changes_line(*state, call));
    const auto read_by = Clock::now() + reading_time;
    co_await sleep_until(read_by);
    int early = 0;
    if (::ioctl(state->terminal.native_handle(), FIONREAD, &early) == 0 && early > 0)
        state->say("[what was typed before now is no answer]\n");
    const std::string prompt =
        "Allow " + question.name() + (lasting ? "? [y/s/a/N/r/?] " : "? [y/N/r/?] ");
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
            state->say(help(*state, call));
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
        const auto word = std::string_view(line).substr(0, line.find(' '));
        if (word == "s" || word == "session" || word == "a" || word == "always") {
            const auto lasting_yes = remember(*state, call, line);
            if (!lasting_yes) continue;
            turn.open = false;
            co_return *lasting_yes;
        }
        turn.open = false;
        if (line == "y" || line == "yes") co_return said(Verdict::allow, "once");
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

IPYBOX_DECL std::string Console::changes_line(const Impl& state, const ToolCall& call) {
    const auto changes = state.options.granted->changes(call);
    if (changes.empty()) return {};
    const auto line = "  asked again: " + changes;
    return (state.color ? detail::in_color(detail::Color::bold, line) : line) + '\n';
}

IPYBOX_DECL std::string Console::help(const Impl& state, const ToolCall& call) {
    std::string text = "  y  yes, this once\n";
    if (state.options.granted->may_remember(call)) {
        const auto scope = scope_of(call);
        text += "  s  yes, and " + scope + " for this session; \"s 2h\": for two hours of it\n" +
                "  a  yes, and " + scope + " always (" +
                state.options.granted->remembered().file().string() +
                "); \"a 7d\": for seven days\n";
        if (call.origin == CallOrigin::mcp)
            text += "     both until the tool, or the server behind its name, changes\n";
    } else {
        text += "     (a policy asks about such calls every time)\n";
    }
    return text + "  n  no\n  r  no, with a reason that the code is told\n";
}

IPYBOX_DECL std::optional<Decision> Console::remember(Impl& state, const ToolCall& call,
                                                      std::string_view answer) {
    const bool always = answer.starts_with('a');
    const auto blank = answer.find(' ');
    GrantLifetime lifetime;
    lifetime.kind = always ? GrantLifetime::Kind::always : GrantLifetime::Kind::session;
    if (blank != answer.npos) {
        const auto span = approval::time_span(answer.substr(answer.find_first_not_of(' ', blank)));
        if (!span) {
            state.say("[a time is a number and s, m, h or d, such as \"s 2h\" or \"a 7d\"]\n");
            return std::nullopt;
        }
        lifetime.until = std::chrono::system_clock::now() + *span;
    }
    if (!state.options.granted->may_remember(call)) {
        state.say("[a policy asks about such calls every time: y or n]\n");
        return std::nullopt;
    }
    try {
        state.options.granted->grant(call, rule_allowing(call), lifetime);
    } catch (const Error& error) {
        state.say("[allowed this once; it cannot be remembered: " +
                  detail::printable(error.detail()) + "]\n");
        return said(Verdict::allow, "once");
    }
    if (!always) return said(Verdict::allow, "this session");
    state.say("[" + scope_of(call) + " is allowed from now on: " +
              state.options.granted->remembered().file().string() + "]\n");
    return said(Verdict::allow, "always");
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
