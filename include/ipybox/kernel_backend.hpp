#pragma once
// Door 2: where do IPython kernels live and how does one talk to them?
#include <filesystem>
#include <ipybox/async.hpp>
#include <ipybox/error.hpp>
#include <ipybox/log.hpp>
#include <ipybox/sandbox.hpp>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace ipybox {

// What to start.
struct KernelSpec {
    std::filesystem::path python;                    // interpreter that has ipykernel
    std::vector<std::filesystem::path> interpreter;  // directories it reads outside /usr
    SandboxPolicy policy;                 // view, environment and working directory of the kernel
    std::vector<Channel> channels;        // the tool socket and the ipybox_kernel package
    std::vector<std::string> extensions;  // IPython extensions loaded before the first cell
    bool allow_input = false;             // some of its executions may ask for input
    Duration init_timeout = std::chrono::seconds(10);
    Logger logger;
    // Holds the sandbox and the backend while kernels start that nobody waits for; without it there
    // are no such kernels.
    std::shared_ptr<void> owner;
};

// One cell.
struct ExecuteRequest {
    std::string code;
    bool silent = false;       // no output, no effect on Out and history
    bool allow_input = false;  // input() and getpass() ask, by InputWanted
};

// Text that the cell printed.
struct Stream {
    bool is_stderr = false;
    std::string text;
};
// display_data, execute_result and update_display_data: a MIME bundle.
struct Display {
    bool is_result = false;
    bool is_update = false;
    json::object data;
    json::object metadata;
    std::string display_id;  // max_display_id bytes at most; empty without one
};
inline constexpr std::size_t max_display_id = 200;
// The exception that ended the cell.
struct PythonError {
    std::string name;
    std::string value;
    std::string traceback;  // lines joined by "\n", as the kernel sent it
};
// The end of an execution.
struct Done {
    bool ok = true;  // false after PythonError or an abort
};
// input() or getpass(): the code waits for Kernel::answer_input(). The text is its own.
struct InputWanted {
    std::string prompt;
    bool is_password = false;
};
using KernelOutput = std::variant<Stream, Display, PythonError, Done, InputWanted>;

// A live kernel; destruction kills it. Pull: output waits in the kernel until next() takes it,
// so a slow consumer loses nothing. One execution at a time, one next() at a time.
class Kernel {
public:
    virtual ~Kernel() = default;

    // Begins an execution. Throws Error: busy (another one has not reached Done), kernel_died (the
    // kernel has ended).
    virtual awaitable<void> execute(ExecuteRequest request) = 0;
    // The next output of the running execution; Done is the last one; nullopt when `deadline`
    // passed first. Throws Error: kernel_died (it has ended), kernel_protocol (it sent what no
    // kernel may send); after either, the kernel is no longer usable. Cancelling the coroutine
    // loses no output.
    virtual awaitable<std::optional<KernelOutput>> next(Clock::time_point deadline) = 0;
    // Raises KeyboardInterrupt in the running cell; output and Done still follow through next().
    virtual awaitable<void> interrupt() = 0;
    // Asks the kernel to end, then kills it.
    virtual awaitable<void> shutdown() = 0;
    // False once the process has ended or broke the protocol.
    virtual bool alive() const noexcept = 0;
    // The process on this machine that holds the kernel, which the host asks what it ran into
    // (SandboxedProcess::violations) and before each cell to see what others have changed
    // (refresh_view). Null for a kernel elsewhere, and after shutdown(). Nobody keeps it: what the
    // sandbox made goes with the last holder.
    virtual std::shared_ptr<SandboxedProcess> process() const = 0;
    // What the newest InputWanted of the running execution waits for; nullopt refuses, and the code
    // gets an EOFError. Returns at once; does nothing where nothing waits. Throws Error:
    // kernel_died, kernel_protocol, cancelled (after shutdown()).
    virtual void answer_input(std::optional<std::string> text) { static_cast<void>(text); }
};

// Starts kernels that share this machine's files and run through its sandbox; for others, see
// RemoteBackend in remote_kernel.hpp. A plugin.
class KernelBackend {
public:
    virtual ~KernelBackend() = default;

    // Returns a kernel that answered its first request. Throws Error: kernel_start_failed (with the
    // tail of what the process printed), timed_out (after spec.init_timeout), sandbox_refused (the
    // sandbox cannot enforce the policy), missing_dependency (such as ipykernel). The sandbox must
    // outlive the kernel and the backend.
    virtual awaitable<std::unique_ptr<Kernel>> start(Sandbox& sandbox, KernelSpec spec) = 0;

    // Whether its kernels know ExecuteRequest::allow_input.
    virtual bool takes_input() const noexcept { return false; }
    // Ends what it has made ready for the next start(), such as spare kernels.
    virtual void release_spares() noexcept {}
};

}  // namespace ipybox
