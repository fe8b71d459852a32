#pragma once
// A question of the code's, for whoever reads an execution's events.
#include <functional>
#include <ipybox/async.hpp>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace ipybox {

// Code waits in input() or getpass(). Copies share the one answer; the first counts, and none
// counts once the code waits no more: it was interrupted, or the execution ended. Meanwhile its
// timeout goes on. All but settled() may be called from any thread.
class InputRequest {
public:
    // What code in the kernel wrote, up to 4096 bytes: escape it before a person sees it.
    const std::string& prompt() const noexcept { return state_->prompt; }
    // The code asks for a secret, or says so: do not show what is typed.
    bool is_password() const noexcept { return state_->password; }
    // The prompt on one line, safe to show on a terminal. Without its blanks at the end; "…" stands
    // where it was cut.
    std::string to_string() const;

    // What was typed, without the end of the line.
    void answer(std::string text) const { settle(std::move(text)); }
    // The code gets an EOFError.
    void refuse() const { settle(std::nullopt); }
    // Returns when the code waits no more. On the executor's thread.
    awaitable<void> settled() const { return settled(state_); }

private:
    friend class CodeExecutor;
    struct Shared {
        explicit Shared(asio::any_io_executor e) : executor(e), changed(e) {}
        void settle() {
            open = false;
            changed.notify();
        }
        asio::any_io_executor executor;
        std::string prompt;
        bool password = false, cut = false, open = true;
        std::function<void(std::optional<std::string>)> reply;
        Event changed;
    };
    explicit InputRequest(std::shared_ptr<Shared> state) : state_(std::move(state)) {}
    void settle(std::optional<std::string> text) const;
    static awaitable<void> settled(std::shared_ptr<Shared> state) {
        while (state->open) co_await state->changed.wait();
    }
    std::shared_ptr<Shared> state_;
};

}  // namespace ipybox

#ifndef IPYBOX_SEPARATE_COMPILATION
#include <ipybox/executor/impl/input_request.ipp>
#endif
