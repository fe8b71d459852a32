#pragma once
// Child processes: started with exactly what was asked for, drained, waited for, and never left
// behind. Written on fork, pidfd and close_range: docs/dependencies.md has what Boost.Process does
// instead, point by point, and tests/unit/boost_process.cpp shows it.
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <ipybox/detail/unique_fd.hpp>
#include <ipybox/error.hpp>
#include <ipybox/sandbox.hpp>
#include <ipybox/sandbox_kit/host_program.hpp>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace ipybox {

// Whom a process started by root becomes; supplementary groups are dropped.
struct Identity {
    uid_t user;
    gid_t group;
};

// What to run, and how.
struct SpawnRequest {
    std::vector<std::string> argv;           // argv[0] is an absolute path
    std::map<std::string, std::string> env;  // exact
    std::filesystem::path cwd = "/";
    Stdio stdio = Stdio::tail;
    // Descriptors handed over: ours and the number (3 or more) the child finds it at. They stay
    // open in this process; everything not listed is closed in the child.
    std::vector<std::pair<int, int>> fds;
    std::vector<std::pair<int, rlim_t>> rlimits;  // RLIMIT_… and its value
    std::optional<Identity> identity;
    std::optional<std::uint64_t> wall_seconds;  // then the tree is killed
    int cgroup = -1;  // cgroup.procs of the group it joins, open for writing
    bool no_new_privileges = false;
    // At SIGQUIT the program ends everything it started, collects it and ends itself: better than
    // what can be done from outside (see launcher/guard.hpp).
    bool ends_its_tree = false;
};

namespace sandbox_kit {
// The soft limit of open files before raise_open_files(); what this process starts has it again.
std::optional<rlim_t>& given_open_files() noexcept;
}  // namespace sandbox_kit

// Lets this process open as many files as the system allows it, instead of the usual 1,024: 64
// sessions need more. What it starts gets the old limit, for programs with select(). For main(),
// before there are threads.
void raise_open_files() noexcept;

// How many files this process may still open; a very large number where that cannot be told.
std::size_t open_files_left() noexcept;

namespace sandbox_kit {

inline constexpr std::size_t tail_size = 8 * 1024;

// What the child was doing when it failed; sent to the parent with errno.
enum class SpawnStage : int { descriptors, limits, identity, parent, directory, program };

// Everything the child needs, allocated before vfork: afterwards only system calls are safe.
struct PreparedChild {
    std::vector<char*> argv;
    std::vector<char*> env;
    std::vector<std::pair<int, int>> fds;  // ours to the child's, standard streams included
    int lowest_free = 3;                   // above every number the child wants
    pid_t parent = 0;
};

// The one on processor time ends a process by a signal that says so, unless that is ignored.
inline rlim_t hard_limit(int resource, rlim_t value) noexcept {
    return resource == RLIMIT_CPU && value < RLIM_INFINITY - 1 ? value + 1 : value;
}

[[noreturn]] void run_child(const SpawnRequest& request, PreparedChild& prepared,
                            int report) noexcept;

Error spawn_error(const SpawnRequest& request, SpawnStage stage, int number);

std::pair<UniqueFd, UniqueFd> make_pipe();
// Of Unix sockets that are connected. type: SOCK_STREAM or SOCK_SEQPACKET. Throws Error: io_error.
std::pair<UniqueFd, UniqueFd> make_socket_pair(int type);

// A child that ends would otherwise end us, when we write to it and nobody has asked for another
// way.
void outlive_broken_pipes() noexcept;

// Signals stay blocked around vfork: a handler of the parent must never run in the child.
class BlockSignals {
public:
    BlockSignals() noexcept;
    ~BlockSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
    BlockSignals(const BlockSignals&) = delete;
    BlockSignals& operator=(const BlockSignals&) = delete;

private:
    sigset_t before_;
};

// Starts the program on the three given streams; returns its pid once exec has succeeded.
pid_t start_process(SpawnRequest& request, int input, int output, int error);

inline UniqueFd open_pidfd(pid_t pid) noexcept {
    return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}
inline void send_signal(const UniqueFd& pidfd, int number) noexcept {
    ::syscall(SYS_pidfd_send_signal, pidfd.get(), number, nullptr, 0);
}

std::string read_proc(const std::string& path);

// How many system call filters Linux applies to a process; nothing when it has ended, or before
// Linux 5.9.
std::optional<unsigned> count_filters(pid_t pid);

// The direct children, oldest first, of every thread of a process.
std::vector<pid_t> children_of(pid_t pid);

// The parent of a process; -1 when it is gone. The command's name may contain anything, so the
// fields are counted from its closing parenthesis.
pid_t parent_of(pid_t pid);

// A handle on a child of `parent` that cannot come to mean another process.
UniqueFd open_child(pid_t child, pid_t parent);

// The newest part of what comes out of a pipe. Read only when asked or told that there is
// something: a pending read would hold what output_tail() should already return.
struct OutputTail {
    OutputTail(asio::any_io_executor executor, UniqueFd& from) : pipe(executor, from.get()) {
        from.release();
    }

    // Takes what has been written, within bounds: the writer may never stop. False at the end.
    bool take_available();
    std::string newest() const;

    asio::posix::stream_descriptor pipe;
    std::string text;
};

awaitable<void> drain(std::shared_ptr<OutputTail> tail);

// What outlives a ChildProcess while a coroutine still waits for it.
struct ProcessState {
    ProcessState(asio::any_io_executor executor, pid_t started, UniqueFd& pidfd, bool guarded);

    // Collects the process if it has ended; true when there is nothing left to collect.
    bool reap() noexcept;

    pid_t pid;
    bool ends_its_tree;
    bool out_of_time = false;
    std::optional<ExitStatus> status;
    Event ended;
    asio::posix::stream_descriptor watch;

private:
    int wait_for(siginfo_t& info, int options) const noexcept;
};

awaitable<void> watch_exit(std::shared_ptr<ProcessState> state);

awaitable<std::optional<ExitStatus>> await_exit(std::shared_ptr<ProcessState> state,
                                                Clock::time_point deadline);

// Freezes the tree before killing it, so that nothing forks away from under the walk.
// Returns handles on the descendants.
std::vector<UniqueFd> kill_descendants(ProcessState& state) noexcept;

// Asks those who can do it themselves.
void end_tree(ProcessState& state) noexcept;

// Adds up what can be read of a process and its descendants; what ended before counts through
// the parent that waited for it.
Statistics measure_tree(pid_t root);

awaitable<void> end_at(std::shared_ptr<ProcessState> state, Clock::time_point deadline);

// The signal that ended a process, or its descendant for which it stands; 0 for none.
int ending_signal(const ExitStatus& status);

// What a signal tells that the kernel sends for one reason only; empty for others.
Violation violation_of(int signal);

// How a process ended, for people, with what was seen or is likely to be behind it.
std::string describe_end(const SandboxedProcess& process, const ExitStatus& status);

}  // namespace sandbox_kit

// A program running as our child, in a session of its own, killed when the thread that started it
// ends. Destruction kills it with all its descendants and collects it, without running the
// io_context; coroutines that wait for it may outlive it.
class ChildProcess : public SandboxedProcess {
public:
    // Returns when the program runs. Throws Error: missing_dependency (no such program),
    // sandbox_refused (user or limits), bad_argument (the request), io_error (everything else).
    // Ignores SIGPIPE for this process when its disposition is the default one and the child's
    // input is a pipe: a child that ends would otherwise end us.
    ChildProcess(asio::any_io_executor executor, SpawnRequest request);

    ~ChildProcess() override { end(); }
    ChildProcess(const ChildProcess&) = delete;
    ChildProcess& operator=(const ChildProcess&) = delete;

    pid_t pid() const noexcept override { return state_->pid; }
    std::optional<ExitStatus> exit_status() const noexcept override;
    awaitable<std::optional<ExitStatus>> wait(Clock::time_point deadline) override {
        return sandbox_kit::await_exit(state_, deadline);
    }
    // Throws Error: bad_argument (it was not started with Stdio::pipes).
    asio::writable_pipe& input() override { return piped(input_); }
    asio::readable_pipe& output() override { return piped(output_); }
    std::string output_tail() const override;
    Statistics statistics() const noexcept override;
    std::vector<Violation> violations() const override;
    void interrupt() noexcept override {
        if (!state_->reap()) ::kill(state_->pid, SIGINT);
    }
    void signal(int number) noexcept override {
        if (!state_->reap()) ::kill(-state_->pid, number);
    }
    void kill_tree() noexcept override { sandbox_kit::end_tree(*state_); }

protected:
    // Kills the tree, waits until it is gone (at most `patience`) and lets waiting coroutines go.
    // For destructors of derived classes that clean up behind the process; idempotent.
    void end(std::chrono::milliseconds patience = std::chrono::seconds(5)) noexcept;

private:
    static void wait_readable(int fd, Clock::time_point deadline) noexcept;

    template <class Pipe>
    static Pipe& piped(std::optional<Pipe>& pipe) {
        if (!pipe) throw Error(errc::bad_argument, "the process was not started with pipes");
        return *pipe;
    }

    std::shared_ptr<sandbox_kit::ProcessState> state_;
    std::shared_ptr<sandbox_kit::OutputTail> tail_;
    std::optional<asio::writable_pipe> input_;
    std::optional<asio::readable_pipe> output_;
};

}  // namespace ipybox

#ifndef IPYBOX_SEPARATE_COMPILATION
#include <ipybox/sandbox_kit/impl/process.ipp>
#endif
