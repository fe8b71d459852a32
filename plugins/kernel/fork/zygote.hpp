#pragma once
// A warm Python process that kernels are forked from, as the host knows it.
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstdint>
#include <filesystem>
#include <ipybox/detail/private_directory.hpp>
#include <ipybox/kernel_backend.hpp>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "entered.hpp"

namespace ipybox::forked {

// What makes a kernel of it, besides the zygote.
struct ForkRequest {
    UniqueFd link, pipes[4];  // the kernel's end; reading and writing ends of its two streams
    OpenSandbox* sandbox;
    // Where programs are asked about: what processes of its own a kernel may have, and the door to
    // who starts them: its end, the other.
    std::string interpreter;
    UniqueFd workers[2];
};

class Zygote : public std::enable_shared_from_this<Zygote> {
public:
    Zygote(asio::any_io_executor executor, Logger logger);
    ~Zygote();
    Zygote(const Zygote&) = delete;
    Zygote& operator=(const Zygote&) = delete;

    // Starts it in a pen of the sandbox; returns as soon as it exists, long before it is ready.
    // Throws Error: what Sandbox::make_pen() throws.
    awaitable<void> start(Sandbox& sandbox, const KernelSpec& spec,
                          const std::vector<std::string>& preload);

    enum class State { starting, ready, failed };
    State state() const noexcept { return state_; }
    // Waits until it is ready or has failed.
    awaitable<void> settle(Clock::time_point deadline);
    // Why it failed, for people; and which of the preloaded modules are to blame.
    const std::string& problem() const noexcept { return problem_; }
    const std::vector<std::string>& culprits() const noexcept { return culprits_; }
    // Names that an import in a forked kernel would find there already.
    const std::set<std::string>& modules() const noexcept { return modules_; }
    // Bytes of address space that a kernel has from the start.
    std::uint64_t address_space() const noexcept { return address_space_; }
    const Pen& pen() const noexcept { return pen_; }
    // How many system call filters it has itself; nothing where that could not be told.
    std::optional<unsigned> filters() const noexcept { return filters_; }
    // The process itself; -1 when it has ended.
    pid_t pid() const;

    // Forks a kernel into the sandbox of the request. Throws Error: sandbox_refused (entering
    // failed, with the step), timed_out or kernel_start_failed (the zygote is of no use any more,
    // and has ended).
    awaitable<void> fork(ForkRequest request, std::shared_ptr<Entered> entered);

    // Stays that much longer without users, and keeps the io_context running.
    void linger(Duration time);

    // Ends the process; what it has forked goes on.
    void retire(const std::string& why);

private:
    struct Pending {
        std::shared_ptr<Entered> entered;
        bool answered = false;
        std::string error;
    };

    // Reads answers as long as one is to come; so an idle one keeps no io_context running.
    void listen();
    bool expects_answers() const noexcept {
        return state_ == State::starting ||
               (state_ == State::ready && !(requests_.empty() && kernels_.empty()));
    }
    static awaitable<void> read_answers(std::weak_ptr<Zygote> weak);
    static awaitable<void> stay(std::shared_ptr<Zygote> self);
    bool read_answer();
    // False when that is none of what may come.
    bool use(std::string_view text, UniqueFd handle);
    bool become_ready(std::string_view text);
    void find_process();

    asio::any_io_executor executor_;
    Logger logger_;
    std::optional<detail::PrivateDirectory> library_;
    Pen pen_;
    UniqueFd process_;  // a handle of the zygote
    asio::posix::stream_descriptor control_;
    Event changed_;
    State state_ = State::starting;
    bool listening_ = false;
    Clock::time_point lingers_until_{};
    bool lingering_ = false;
    std::string problem_;
    std::vector<std::string> culprits_;
    std::set<std::string> modules_;
    std::uint64_t address_space_ = 0;
    std::optional<unsigned> filters_;
    std::uint32_t serial_ = 0;
    std::map<std::uint32_t, Pending> requests_;                // not answered yet
    std::map<std::uint32_t, std::weak_ptr<Entered>> kernels_;  // not ended yet
};

}  // namespace ipybox::forked
