#pragma once
// Door 1: how does a process run so that it can only touch what the policy names?
#include <sys/types.h>

#include <boost/asio/readable_pipe.hpp>
#include <boost/asio/writable_pipe.hpp>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <ipybox/async.hpp>
#include <ipybox/detail/unique_fd.hpp>
#include <ipybox/error.hpp>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ipybox {

// Which hosts a process may reach.
struct NetworkPolicy {
    enum class Mode { none, allow_list, full };
    Mode mode = Mode::none;
    std::vector<std::string> allow;  // host, *.host or either with :port; used by allow_list
    std::vector<std::string> deny;   // wins over allow
    // Private networks, as 10.1.0.0/16, that allowed hosts may have their addresses in; without,
    // such an address is refused whatever the host's name.
    std::vector<std::string> private_networks;

    bool operator==(const NetworkPolicy&) const = default;
};

// Absent means not limited by ipybox. Sizes in bytes.
struct Limits {
    std::optional<std::uint64_t> memory_per_process;
    std::optional<std::uint64_t> memory_total;
    std::optional<std::uint64_t> processes;
    std::optional<std::uint64_t> open_files;
    std::optional<std::uint64_t> file_size;
    std::optional<std::uint64_t> cpu_seconds;     // per process
    std::optional<std::uint64_t> wall_seconds;    // then the whole tree is killed
    std::optional<std::uint64_t> scratch_size;    // /tmp, /dev/shm and the home directory, each
    std::optional<std::uint64_t> scratch_inodes;  // files and directories there, each
    std::optional<std::uint64_t> workspace_size;  // what the writable paths may grow to, together

    bool operator==(const Limits&) const = default;
};

// Whether what runs may execute other programs, from the file system or from memory. ask: each is
// started for it outside, after a question.
enum class Programs { allow, deny, ask };

// The glob that matches this path and no other, for SandboxPolicy::hidden.
inline std::string literal_glob(const std::filesystem::path& path) {
    std::string glob;
    for (const char c : path.native()) {
        if (c == '*' || c == '?' || c == '[' || c == '\\') glob += '\\';
        glob += c;
    }
    return glob;
}

// Files that are hidden because links with hidden names lead to them, as of one moment.
struct HiddenBehindLinks {
    bool searched = false;
    std::set<std::pair<dev_t, ino_t>> files;
};

// Where an answer goes, which is no part of what is wanted: all of them are equal.
template <class Value>
struct AnswerTo : std::shared_ptr<Value> {
    AnswerTo() = default;
    // place: null when nobody wants to know.
    AnswerTo(std::shared_ptr<Value> place) : std::shared_ptr<Value>(std::move(place)) {}
    // Always.
    bool operator==(const AnswerTo&) const noexcept { return true; }
};

// What a process may touch. Paths are absolute host paths; the guest sees them at the same place.
struct SandboxPolicy {
    std::vector<std::filesystem::path> readable;
    std::vector<std::filesystem::path> writable;
    std::vector<std::string> hidden;                     // globs under writable and readable paths
    std::vector<std::filesystem::path> shown;            // which of these are not hidden after all
    std::vector<std::filesystem::path> write_protected;  // holds even while the path is absent
    std::map<std::string, std::string> env;              // exact: nothing is inherited
    std::filesystem::path cwd;
    NetworkPolicy network;
    Limits limits;
    // deny, ask: what is started is the last program. It can fork, and run what code it likes
    // itself.
    Programs programs = Programs::allow;
    // ask: called once by launch(), before anything runs, with the socket over which questions
    // come; see launcher/broker.hpp. The guest cannot reach the other end. Null: nobody answers.
    std::shared_ptr<const std::function<void(UniqueFd)>> on_questions;
    // The uid that a process started by root drops to; absent: the owner of cwd, or 65534.
    std::optional<uid_t> user;
    // Filled by a sandbox that hides files, when it starts the process; null: nobody wants to know.
    AnswerTo<HiddenBehindLinks> behind_links;

    bool operator==(const SandboxPolicy&) const = default;
};

// The name of the channel to the network proxy: a socket, there when the mode is allow_list. A
// sandbox leads the guest's connections to it, or leaves it out and filters them itself.
inline constexpr std::string_view network_channel = "network";

// A way between host and guest that the host made for this one process.
struct Channel {
    enum class Kind {
        directory,  // files of host_path
        socket,     // the host listens on the Unix socket host_path, the guest connects
        listener,   // the guest listens, the host connects to the Unix socket host_path
    };
    // What the guest may do in a directory. A sandbox that cannot tell sockets from files lets it
    // write those as well.
    enum class Access { read, sockets, write };
    std::string name;  // [a-z_]+; the guest finds it under this name
    std::filesystem::path host_path;
    Access access = Access::read;
    Kind kind = Kind::directory;

    bool operator==(const Channel&) const = default;
};

// What a sandbox can enforce on this machine, found by trying. A policy that needs a capability
// that is false is refused (sandbox_refused) before launch() of a plugin is reached.
struct Capabilities {
    bool available = false;
    bool filesystem = false;
    bool network_none = false;
    bool network_allow_list = false;
    bool process_isolation = false;
    // memory_per_process, open files, file size, cpu and, with process_isolation, processes
    bool limits_per_process = false;
    bool memory_total = false;
    bool wall_time = false;
    bool scratch_size = false;  // the places that Limits::scratch_size names are the guest's own
    bool scratch_inodes = false;
    // The guest can rename no directory that holds something write-protected, and put another in
    // its place.
    bool pinned_protection = false;
    bool workspace_size = false;  // where the file system of the writable paths has quotas
    std::string problem;          // why not, and the remedy; empty when all is well
    // Why a limit that it has elsewhere cannot be enforced on this machine, and the remedy, by the
    // name of the field of Limits.
    std::map<std::string, std::string> reasons;
};

// How a process ended.
struct ExitStatus {
    int code = 0;  // exit code, or 128 + signal
    bool signalled = false;
};

// What the process and its descendants used so far; absent where it cannot be measured.
struct Statistics {
    std::optional<Duration> cpu_time;
    std::optional<std::uint64_t> peak_memory;   // bytes
    std::optional<std::uint64_t> processes;     // now
    std::optional<std::uint64_t> memory_kills;  // processes ended for exceeding memory_total
};

// A limit that the guest ran into, or another thing that it was kept from, as far as that can be
// seen from outside: most walls just answer the guest with an error.
struct Violation {
    std::string
        layer;  // network, seccomp, or the name of a limit: memory-total, cpu, file-size, wall
    std::string what;  // for people; without secrets
    std::uint64_t count = 1;
};

// A running process. Destruction kills the whole tree and removes what launch() made.
class SandboxedProcess {
public:
    virtual ~SandboxedProcess() = default;

    // The outermost process as the host sees it; -1 after it was reaped.
    virtual pid_t pid() const noexcept = 0;
    // Set once the outermost process has ended.
    virtual std::optional<ExitStatus> exit_status() const noexcept = 0;
    // Waits until the process has ended or the deadline passed; tells which by its value.
    virtual awaitable<std::optional<ExitStatus>> wait(Clock::time_point deadline) = 0;
    // Its standard input; only when launched with Stdio::pipes.
    virtual asio::writable_pipe& input() = 0;
    // Its standard output, for the caller to read; only when launched with Stdio::pipes.
    virtual asio::readable_pipe& output() = 0;
    // The newest lines (at most 8 KiB) of standard error and, without pipes, standard output.
    virtual std::string output_tail() const = 0;
    // Of the whole tree, where a cgroup measures it; of the outermost process elsewhere.
    virtual Statistics statistics() const noexcept = 0;
    // What was seen so far: at most one of a layer, whose count grows.
    virtual std::vector<Violation> violations() const { return {}; }
    // Whether Linux tells of the command itself that it runs under the wall of Programs::deny and
    // ask; asked once the command has begun. False where that was not asked for or nothing can be
    // told.
    virtual bool is_last_program() const noexcept { return false; }
    // Returns when the process sees what the host has changed in its writable places. Elsewhere
    // than behind an overlay it does at once. Any number at a time; cancelling one harms no other.
    virtual awaitable<void> refresh_view() { co_return; }
    // Whether refresh_view() does anything.
    virtual bool may_be_stale() const noexcept { return false; }
    // SIGINT to the command itself, inside whatever wraps it.
    virtual void interrupt() noexcept = 0;
    // SIGTERM or another signal to the process group.
    virtual void signal(int number) noexcept = 0;
    // SIGKILL to everything that descends from the process.
    virtual void kill_tree() noexcept = 0;
};

// Where a process lives that forks others into sandboxes. Its namespaces hold those of the
// sandboxes that are opened for it, which is what lets it enter them without any right of its own.
struct Pen {
    std::unique_ptr<SandboxedProcess> process;  // all in it ends with this
    UniqueFd init;                              // pidfd of its first process
    UniqueFd user_namespace, pid_namespace;
};

// A sandbox that waits for a process of its pen to enter, and what that process must do to itself
// before it runs anything.
struct OpenSandbox {
    std::unique_ptr<SandboxedProcess> process;  // all in it ends with this
    UniqueFd init;                     // pidfd of its first process, whose namespaces to join
    UniqueFd cgroup;                   // its cgroup.procs, open for writing; empty without one
    std::vector<std::string> words;    // the rights to give up, as launcher/confine.hpp has them
    std::vector<std::string> filters;  // system call filters, in the order of adding them
    std::map<std::string, std::string> env;  // exact
    // Programs::ask: the door of those who start programs, for the kernel, and what the launcher
    // is, by which the process has those of its own interpreter started; see launcher/broker.hpp.
    UniqueFd door, launcher;
};

enum class Stdio { tail, pipes };  // tail: standard input empty, output kept as a tail

// Starts processes that are confined. A plugin.
class Sandbox {
public:
    virtual ~Sandbox() = default;

    // Runs a trivial command the way launch() would, once; later calls return the same answer.
    virtual awaitable<Capabilities> probe() = 0;
    // Whether a guest of this policy can make Unix sockets. Without, sockets and listeners among
    // its channels are TCP for it. Throws Error: bad_argument (a policy that launch() refuses as
    // well).
    virtual bool unix_sockets([[maybe_unused]] const SandboxPolicy& policy) const { return true; }
    // Where a guest of this policy will find a channel, known before launch so that argv can name
    // it: an absolute path, or 127.0.0.1:PORT for a socket or listener where unix_sockets() is
    // false. Throws what unix_sockets() throws.
    virtual std::string guest_address(const SandboxPolicy& policy,
                                      const Channel& channel) const = 0;
    // The host uid that files meant for the guest must belong to: the caller's own unless
    // it is root and the sandbox drops to another. Throws Error: sandbox_refused (no user can be
    // chosen).
    virtual uid_t guest_user(const SandboxPolicy& policy) const = 0;
    // Why programs cannot be denied, or started after a question, by a wall that the guest cannot
    // take down, for all its processes; empty: they can. Found by trying, once.
    virtual awaitable<std::string> programs_problem([[maybe_unused]] Programs wanted) {
        co_return wanted == Programs::allow ? std::string() : "this sandbox has no such wall";
    }
    // How names that this policy protects are held while they are absent, for people: a clause;
    // empty when there is nothing to say.
    virtual awaitable<std::string> absent_names(SandboxPolicy) { co_return std::string(); }
    // Starts argv. Throws Error: sandbox_refused (the policy needs what cannot be enforced),
    // missing_dependency (a program is not there), io_error (a file or the start failed). The
    // calling thread must outlive the process.
    virtual awaitable<std::unique_ptr<SandboxedProcess>> launch(SandboxPolicy policy,
                                                                std::vector<std::string> argv,
                                                                std::vector<Channel> channels,
                                                                Stdio stdio) = 0;
    // Whether a process can enter this policy's sandboxes: two policies and sandboxes that give the
    // same text can share a pen; empty where none can be entered.
    virtual std::string pen_key([[maybe_unused]] const SandboxPolicy& policy) const { return {}; }
    // Starts argv in a pen, where it finds the socket `control` as descriptor 3. Throws Error:
    // sandbox_refused (there are none here; says why), and what launch() throws.
    virtual awaitable<Pen> make_pen(SandboxPolicy policy, std::vector<std::string> argv,
                                    std::vector<Channel> channels, int control);
    // Makes a sandbox that a process of this pen can enter, in which nothing runs yet. The pen must
    // outlive the call; the sandbox goes on without it. Throws Error: sandbox_refused (it cannot be
    // entered, or the policy needs what cannot be enforced), and what launch() throws.
    virtual awaitable<OpenSandbox> open(SandboxPolicy policy, std::vector<Channel> channels,
                                        const Pen& pen);
};

inline awaitable<Pen> Sandbox::make_pen(SandboxPolicy, std::vector<std::string>,
                                        std::vector<Channel>, int) {
    throw Error(errc::sandbox_refused, "this sandbox cannot be entered");
    co_return Pen();
}

inline awaitable<OpenSandbox> Sandbox::open(SandboxPolicy, std::vector<Channel>, const Pen&) {
    throw Error(errc::sandbox_refused, "this sandbox cannot be entered");
    co_return OpenSandbox();
}

}  // namespace ipybox
