#pragma once
// What the program prints. While a question is open on the terminal it waits, so that nothing but
// the question speaks there.
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <ipybox/detail/terminal_color.hpp>
#include <ipybox/detail/terminal_turns.hpp>
#include <mutex>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

namespace ipybox::app {

// Whether what is printed there may have colours: STDOUT_FILENO, STDERR_FILENO.
inline bool colors_at(int descriptor) {
    return ::isatty(descriptor) == 1 &&
           detail::may_color(std::getenv("NO_COLOR"), std::getenv("TERM"));
}

// One for the process.
class TerminalOutput {
public:
    static TerminalOutput& instance() {
        static TerminalOutput output;
        return output;
    }
    static constexpr std::size_t most_held = std::size_t{1} << 20;

    // Code's output: it is never left out, so that who prints it asks full() before they fetch
    // more.
    void print(std::ostream& stream, std::string text) {
        const auto size = text.size();
        hold(size, [&stream, text = std::move(text)] { stream << text << std::flush; });
    }
    // A line of the log: beyond most_held it is counted only.
    void log(std::size_t size, std::function<void()> write) {
        if (full()) {
            const std::lock_guard lock(mutex_);
            ++left_out_;
        } else {
            hold(size, std::move(write));
        }
    }
    bool full() const {
        const std::lock_guard lock(mutex_);
        return open_ && size_ > most_held;
    }
    // released: called when what was held has been printed; empty: nobody waits for that.
    void on_release(std::function<void()> released) { released_ = std::move(released); }
    // tell: prints how many lines of the log were left out.
    void on_left_out(std::function<void(std::size_t lines)> tell) {
        tell_left_out_ = std::move(tell);
    }
    // From now on all waits, as while a question is open; until release().
    void hold_back() {
        const std::lock_guard lock(mutex_);
        open_ = true;
    }
    // Prints what is held.
    void release() {
        std::vector<std::function<void()>> held;
        std::size_t left_out = 0;
        {
            const std::lock_guard lock(mutex_);
            open_ = false;
            size_ = 0;
            held.swap(held_);
            left_out = std::exchange(left_out_, 0);
        }
        for (const auto& write : held) write();
        if (left_out > 0 && tell_left_out_) tell_left_out_(left_out);
        if (released_) released_();
    }

private:
    TerminalOutput() {
        detail::terminal_turns.set_printer([this](bool open) {
            if (open)
                hold_back();
            else
                release();
        });
    }
    ~TerminalOutput() { detail::terminal_turns.set_printer(nullptr); }
    void hold(std::size_t size, std::function<void()> write) {
        {
            const std::lock_guard lock(mutex_);
            if (open_) {
                size_ +=
                    size + sizeof(std::function<void()>) + 128;  // many small ones weigh as well
                held_.push_back(std::move(write));
                return;
            }
        }
        write();
    }

    mutable std::mutex mutex_;
    bool open_ = false;
    std::size_t size_ = 0, left_out_ = 0;
    std::vector<std::function<void()>> held_;
    std::function<void()> released_;
    std::function<void(std::size_t)> tell_left_out_;
};

}  // namespace ipybox::app
