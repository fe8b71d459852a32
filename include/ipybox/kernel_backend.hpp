#pragma once
// Door 2: where do IPython kernels live and how does one talk to them?
#include <cstdint>
#include <filesystem>
#include <ipybox/async.hpp>
#include <ipybox/detail/workspace_files.hpp>
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
    std::filesystem::path python;       // interpreter that has ipykernel
    SandboxPolicy policy;               // view, environment and working directory of the kernel
    std::vector<Channel> channels;      // the tool socket and the ipybox_kernel package
    std::vector<std::string> extensions;  // IPython extensions loaded before the first cell
    Duration init_timeout = std::chrono::seconds(10);
    Logger logger;
};

// One cell.
struct ExecuteRequest {
    std::string code;
    bool silent = false;                // no output, no effect on Out and history
};

// Text that the cell printed.
struct Stream {
    bool is_stderr = false;
    std::string text;
};
// display_data and execute_result: a MIME bundle.
struct Display {
    bool is_result = false;
    json::object data;
    json::object metadata;
};
// The exception that ended the cell.
struct PythonError {
    std::string name;
    std::string value;
    std::string traceback;              // lines joined by "\n", as the kernel sent it
};
// The end of an execution.
struct Done {
    bool ok = true;                     // false after PythonError or an abort
};
using KernelOutput = std::variant<Stream, Display, PythonError, Done>;

// Bytes of a file, and the size of the whole.
using FilePart = detail::FilePart;

// A live kernel; destruction kills it. Pull: output waits in the kernel until next() takes it,
// so a slow consumer loses nothing. One execution at a time, one next() at a time.
class Kernel {
public:
    virtual ~Kernel() = default;

    // Throws errc::busy while an execution has not reached Done, errc::kernel_died after the end.
    virtual awaitable<void> execute(ExecuteRequest request) = 0;
    // The next output of the running execution; Done is the last one; nullopt when `deadline`
    // passed first. Throws errc::kernel_died or errc::kernel_protocol, after which the kernel
    // is of no more use. Cancelling the coroutine loses no output.
    virtual awaitable<std::optional<KernelOutput>> next(Clock::time_point deadline) = 0;
    // Raises KeyboardInterrupt in the running cell; output and Done still follow through next().
    virtual awaitable<void> interrupt() = 0;
    // Asks the kernel to end, then kills it.
    virtual awaitable<void> shutdown() = 0;
    // False once the process has ended or broke the protocol.
    virtual bool alive() const noexcept = 0;
    // The process on this machine that holds the kernel; null for a kernel elsewhere, and after
    // shutdown(). To be held no longer than it takes: what the sandbox made goes with the last holder.
    virtual std::shared_ptr<SandboxedProcess> process() const { return nullptr; }
    // Files of the spec's channels have changed: a kernel that shares no files with the host has
    // them when this returns. May be called while an execution runs.
    virtual awaitable<void> refresh() { co_return; }
    // Returns when a kernel on this machine sees what others than it have changed in its workspace:
    // tools, say. execute() does so itself. May be called while an execution runs.
    virtual awaitable<void> refresh_view() {
        const auto held = process();
        if (held) co_await held->refresh_view();
    }
    // Writes and reads files of a kernel that shares none with the host, below the directory in
    // which it started, whatever it executes meanwhile. A file is written whole or not at all; no
    // link is followed. path: as workspace_path() gives it. Throws errc::io_error as
    // detail/workspace_files.hpp does, kernel_died, timed_out.
    virtual awaitable<void> write_file(std::filesystem::path path, std::string, bool /*overwrite*/) {
        throw Error(errc::bad_argument, path.string() + ": this kernel shares its files with the host");
    }
    // `limit` bytes from `offset` on.
    virtual awaitable<FilePart> read_file(std::filesystem::path path, std::uint64_t, std::size_t) {
        throw Error(errc::bad_argument, path.string() + ": this kernel shares its files with the host");
    }
    // What the kernel ran into so far, where its process can be seen; see SandboxedProcess.
    virtual std::vector<Violation> violations() const {
        const auto held = process();
        return held ? held->violations() : std::vector<Violation>();
    }
    // What the backend calls the kernel; empty where it has no name.
    virtual std::string id() const { return {}; }
};

// Where the host listens for tool calls over TLS, and how kernels reach it.
struct ToolListener {
    std::string address;           // of this machine, as numbers
    std::uint16_t port = 0;        // 0: any that is free
    std::string name;              // a name or address for which the certificate is made out
    std::uint16_t name_port = 0;   // 0: the one listened at
    std::filesystem::path certificate, key;  // PEM; intermediate certificates may follow the first
};

// Starts kernels. A plugin.
class KernelBackend {
public:
    virtual ~KernelBackend() = default;

    // Returns a kernel that answered its first request. Throws Error: kernel_start_failed (with
    // the tail of what the process printed), timed_out, sandbox_refused, missing_dependency.
    // The sandbox must outlive the kernel.
    virtual awaitable<std::unique_ptr<Kernel>> start(Sandbox& sandbox, KernelSpec spec) = 0;
    // False: kernels run where this machine's files, interpreter and sandbox are not. Then a spec
    // has no interpreter and a policy of nothing but the environment, and its channels are carried
    // there: the environment names them by their host paths, which the backend translates.
    virtual bool shares_files() const noexcept { return true; }
    // Of a backend that shares no files: tool calls come that way, and the spec has no tool socket.
    virtual std::optional<ToolListener> tool_listener() const { return std::nullopt; }
};

}  // namespace ipybox
