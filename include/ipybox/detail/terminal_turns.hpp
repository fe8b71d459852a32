#pragma once
// The terminal of this process is asked at by one at a time, and who prints there waits meanwhile.
#include <functional>
#include <map>
#include <mutex>
#include <utility>

namespace ipybox::detail {

// One per process, like its terminal: consoles of the program and of plugins must not put two
// questions at once, of which one would get the other's answer. For any thread.
class TerminalTurns {
public:
    // False when another has it.
    bool take() {
        const std::lock_guard lock(mutex_);
        return !std::exchange(taken_, true);
    }
    // Called by who took the turn: from now on only the question is printed. Returns its number.
    unsigned long open() {
        print(true);
        return ++asked_;
    }
    // Called by who took the turn: what was held is printed, and others may ask.
    void leave() {
        print(false);
        std::map<const void*, std::function<void()>> wakes;
        {
            const std::lock_guard lock(mutex_);
            taken_ = false;
            wakes = waiting_;
        }
        for (const auto& [who, wake] : wakes) wake();
    }
    // wake is called, from any thread, whenever the turn is free, until part().
    void join(const void* who, std::function<void()> wake) {
        const std::lock_guard lock(mutex_);
        waiting_[who] = std::move(wake);
    }
    void part(const void* who) {
        const std::lock_guard lock(mutex_);
        waiting_.erase(who);
    }
    // printer: told when a question is open (true: hold what you print) and when it is settled. One
    // for the process; empty: none.
    void set_printer(std::function<void(bool open)> printer) {
        const std::lock_guard lock(mutex_);
        printer_ = std::move(printer);
    }

private:
    void print(bool open) {
        std::function<void(bool)> printer;
        {
            const std::lock_guard lock(mutex_);
            printer = printer_;
        }
        if (printer) printer(open);
    }

    std::mutex mutex_;
    std::map<const void*, std::function<void()>> waiting_;
    std::function<void(bool)> printer_;
    unsigned long asked_ = 0;  // changed by who has the turn
    bool taken_ = false;
};
inline TerminalTurns terminal_turns;

}  // namespace ipybox::detail
