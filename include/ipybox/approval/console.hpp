#pragma once
// Asks the person at the terminal: once, for this session, always, no, no with a reason.

#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <ipybox/approval/granted_rules.hpp>
#include <ipybox/approval/question.hpp>
#include <ipybox/approval_policy.hpp>
#include <ipybox/detail/terminal_text.hpp>
#include <ipybox/detail/terminal_turns.hpp>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace ipybox {

// Where the person is, and what they said before.
struct ConsoleOptions {
    std::string terminal = "/dev/tty";
    // What was allowed before, shared with whoever else asks; null: the console's own, with the
    // standard file of "always".
    std::shared_ptr<GrantedRules> granted;
    std::function<void()>
        before_question;  // such as: ends a line that is open, and holds output from now on
    std::function<void()> after_question;  // such as: prints what was held; it must not throw
};

// One question at a time in the whole process, however many calls and consoles wait. What was typed
// before a question, or in the second after it appeared, answers nothing. Colours unless NO_COLOR
// is set or TERM is "dumb" or not set. Calls that are being asked about hold what they need: the
// object may be destroyed meanwhile.
class Console {
public:
    // Opens the terminal, if there is one.
    explicit Console(asio::any_io_executor executor, ConsoleOptions options = {});

    // Whether there is a terminal.
    bool present() const { return state_->terminal.is_open(); }

    // What the person says, or said before; a pass when there is no terminal. until: when the
    // caller will cancel it, for the person to see how much time is left; `never`: nothing is said
    // of that. Cancelling it takes the question back. Throws Error: bad_config (a mistake in the
    // file of "always"), and what Question throws.
    awaitable<Decision> ask(ToolCall call, Clock::time_point until = never) {
        return asked(state_, std::move(call), until);
    }

private:
    struct Impl {
        Impl(asio::any_io_executor executor, ConsoleOptions o);
        ~Impl() { detail::terminal_turns.part(this); }
        // Some thousand characters at most; a terminal that takes none for a second is gone.
        void say(std::string_view text);

        ConsoleOptions options;
        asio::posix::stream_descriptor terminal;
        Event free;
        bool color, movable;  // what the terminal may be sent
    };
    using ImplPtr = std::shared_ptr<Impl>;

    struct Countdown {  // of an open question
        Clock::time_point until;
        Event changed;
        std::string prompt;  // what is shown behind it; empty: nothing is, for now
        bool over = false;
        Countdown(Clock::time_point t, asio::any_io_executor executor)
            : until(t), changed(std::move(executor)) {}
    };

    struct Turn {  // the terminal while a question is open
        ImplPtr state;
        bool open = false;   // unanswered
        bool begun = false;  // before_question was called
        std::shared_ptr<Countdown> countdown;
        Turn(ImplPtr s, Clock::time_point until);
        Turn(const Turn&) = delete;
        Turn& operator=(const Turn&) = delete;
        ~Turn();
    };
    // What is typed sooner is no answer: nobody can have read the question.
    static constexpr auto reading_time = std::chrono::seconds(1);

    static Decision said(Verdict verdict, std::string by, std::string reason = {});

    static awaitable<Decision> asked(ImplPtr state, ToolCall call, Clock::time_point until);
    static awaitable<void> count_down(ImplPtr state, std::shared_ptr<Countdown> countdown);

    // What was decided before, as the console's decision.
    static std::optional<Decision> granted(const Impl& state, const ToolCall& call);
    static std::string scope_of(const ToolCall& call);
    static std::string changes_line(const Impl& state, const ToolCall& call);
    static std::string help(const Impl& state, const ToolCall& call);
    // Remembers a yes, "s" or "a", perhaps with a time behind it; nullopt: another answer is
    // needed, and the person was told why.
    static std::optional<Decision> remember(Impl& state, const ToolCall& call,
                                            std::string_view answer);

    // A line in printable characters, without space at its ends; false when there is none.
    static awaitable<bool> read_line(ImplPtr state, std::string& line);

    ImplPtr state_;
};

}  // namespace ipybox

#ifndef IPYBOX_SEPARATE_COMPILATION
#include <ipybox/approval/impl/console.ipp>
#endif
