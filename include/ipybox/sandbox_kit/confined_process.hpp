#pragma once
// What the processes of sandboxes that build on bubblewrap share: what measures them, what goes
// when they are gone, and the relay that carries their channels where a guest has no Unix sockets.
#include <boost/asio/readable_pipe.hpp>
#include <boost/asio/writable_pipe.hpp>
#include <exception>
#include <ipybox/sandbox_kit/cgroup.hpp>
#include <ipybox/sandbox_kit/guest_view.hpp>
#include <ipybox/sandbox_kit/process.hpp>
#include <ipybox/sandbox_kit/stdio_mux.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace ipybox {

// A guest behind bubblewrap. Its sandbox derives from it: what only that one has goes in the
// derived class.
class ConfinedProcess : public ChildProcess {
public:
    // Starts the request; placeholders and group go when the guest is gone. Throws what
    // ChildProcess's constructor throws.
    ConfinedProcess(asio::any_io_executor executor, SpawnRequest request,
                    detail::Placeholders placeholders, std::optional<Cgroup> group)
        : ChildProcess(std::move(executor), std::move(request)),
          placeholders_(std::move(placeholders)),
          group_(std::move(group)) {}
    ~ConfinedProcess() override { end_guest(); }

    // Carries the channels over two pipes to a relay inside; start: what relay_start() returned. A
    // guest that breaks the protocol is killed. Throws Error: io_error (it cannot listen for a
    // channel).
    void relay(asio::any_io_executor executor, asio::writable_pipe to_guest,
               asio::readable_pipe from_guest, std::vector<MuxChannel> channels,
               std::string start) {
        mux_.emplace(std::move(executor), std::move(to_guest), std::move(from_guest),
                     std::move(channels), std::move(start), [this] { kill_tree(); });
    }

    std::string output_tail() const override {
        auto tail = ChildProcess::output_tail();
        if (mux_ && !mux_->problem().empty()) tail += mux_->problem() + "\n";
        return tail;
    }
    Statistics statistics() const noexcept override {
        auto known = ChildProcess::statistics();
        try {
            if (group_) group_->measure(known);
        } catch (const std::exception&) {
            // No memory to read it: what is known so far stands.
        }
        return known;
    }
    std::vector<Violation> violations() const override {
        auto seen = ChildProcess::violations();
        if (group_) group_->report(seen);
        return seen;
    }

    void interrupt() noexcept override { tell(SIGINT, false); }
    void signal(int number) noexcept override {
        if (number == SIGKILL) return kill_tree();
        tell(number, true);
    }

protected:
    // For the destructors of derived classes: the guest must be gone before the places it is kept
    // out of disappear. Idempotent.
    void end_guest() noexcept {
        mux_.reset();
        end();
    }
    bool relayed() const noexcept { return mux_.has_value(); }
    // Signals the command where no relay does. May throw std::exception: then the caller's next
    // step is kill_tree().
    virtual void signal_command(int number, bool group) = 0;

private:
    void tell(int number, bool group) noexcept {
        try {
            if (mux_)
                mux_->signal(number, group);
            else
                signal_command(number, group);
        } catch (const std::exception&) {
            // No memory for it.
        }
    }

    detail::Placeholders placeholders_;
    std::optional<Cgroup> group_;
    std::optional<StdioMux> mux_;
};

}  // namespace ipybox
