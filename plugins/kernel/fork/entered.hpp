#pragma once
// A process that has entered a sandbox, seen as one that was started there.
#include <signal.h>

#include <ipybox/sandbox.hpp>
#include <ipybox/sandbox_kit/process.hpp>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace ipybox::forked {

// Its parent is the zygote: that one tells how it ended.
class Entered final : public SandboxedProcess {
public:
    // around: the sandbox; handle: a pidfd of the process, or empty until it is there. counted: a
    // cgroup counts it, together with the sandbox.
    Entered(asio::any_io_executor executor, std::unique_ptr<SandboxedProcess> around, bool counted)
        : around_(std::move(around)), counted_(counted), changed_(std::move(executor)) {}
    ~Entered() override { around_->kill_tree(); }

    // The process exists. number: its own on this machine.
    void exists(UniqueFd handle, pid_t number) {
        handle_ = std::move(handle);
        number_ = number;
    }
    // It has ended so.
    void ended(ExitStatus status) {
        if (!status_) status_ = status;
        changed_.notify();
    }
    const UniqueFd& handle() const noexcept { return handle_; }
    // The sandbox's first process, under which whoever is left behind in it comes.
    void is_below(UniqueFd first);
    // Opens what is_alone() looks at: for when there is time.
    void prepare_look() noexcept;
    // Whether it has started nobody who is still there; false without prepare_look().
    bool is_alone() const noexcept;
    // Waits until the sandbox has ended, or the deadline passed.
    awaitable<void> wait_around(Clock::time_point deadline) { co_await around_->wait(deadline); }
    // It starts no programs if Linux applies at least so many filters to it.
    void expect_filters(unsigned count) { expected_filters_ = count; }

    pid_t pid() const noexcept override { return exit_status() ? -1 : number_; }
    std::optional<ExitStatus> exit_status() const noexcept override {
        return status_ ? status_ : around_->exit_status();
    }
    awaitable<std::optional<ExitStatus>> wait(Clock::time_point deadline) override;
    asio::writable_pipe& input() override { return around_->input(); }
    asio::readable_pipe& output() override { return around_->output(); }
    std::string output_tail() const override { return around_->output_tail() + last_words_; }
    // What the process has left in its pipes.
    void add_last_words(std::string_view text) {
        last_words_ += text;
        if (last_words_.size() > sandbox_kit::tail_size)
            last_words_.erase(0, last_words_.size() - sandbox_kit::tail_size);
    }
    Statistics statistics() const noexcept override;
    std::vector<Violation> violations() const override;
    awaitable<void> refresh_view() override { return around_->refresh_view(); }
    bool may_be_stale() const noexcept override { return around_->may_be_stale(); }
    bool is_last_program() const noexcept override;
    void interrupt() noexcept override { send(SIGINT, false); }
    void signal(int number) noexcept override { send(number, true); }
    // Without the sandbox around it.
    void kill_alone() noexcept { send(SIGKILL, false); }
    void kill_tree() noexcept override {
        send(SIGKILL, false);  // whoever kills the sandbox may not get to it at once
        around_->kill_tree();
    }

private:
    void send(int number, bool group) noexcept;

    std::unique_ptr<SandboxedProcess> around_;
    bool counted_;
    UniqueFd handle_, first_;
    UniqueFd threads_, first_threads_;  // their directories in /proc
    pid_t number_ = -1, first_number_ = -1;
    std::optional<unsigned> expected_filters_;
    std::optional<ExitStatus> status_;
    std::string last_words_;
    Event changed_;
};

}  // namespace ipybox::forked
