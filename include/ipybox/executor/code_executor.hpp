#pragma once
// Runs code actions: kernel, tools and approval behind one class.
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <ipybox/approval/audit_log.hpp>
#include <ipybox/approval/config.hpp>
#include <ipybox/approval/question_text.hpp>
#include <ipybox/approval/session_watcher.hpp>
#include <ipybox/detail/base64.hpp>
#include <ipybox/detail/hex.hpp>
#include <ipybox/detail/json_members.hpp>
#include <ipybox/detail/json_memory.hpp>
#include <ipybox/detail/pending_approval.hpp>
#include <ipybox/detail/private_directory.hpp>
#include <ipybox/detail/workspace_files.hpp>
#include <ipybox/executor/detail/cell_text.hpp>
#include <ipybox/executor/execution.hpp>
#include <ipybox/executor/input_request.hpp>
#include <ipybox/kernel_backend.hpp>
#include <ipybox/net/domain_rule.hpp>
#include <ipybox/remote_kernel.hpp>
#include <ipybox/sandbox_kit/kernel_policy.hpp>
#include <ipybox/sandbox_kit/protected_files.hpp>
#include <ipybox/sandbox_kit/python_environment.hpp>
#include <ipybox/sandbox_kit/sandbox_config.hpp>
#include <ipybox/span.hpp>
#include <ipybox/tools/apigen.hpp>
#include <ipybox/tools/tool_server.hpp>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace ipybox {

// What an executor is made of, and its limits.
struct CodeExecutorOptions {
    // Plugins and their configuration.
    std::string sandbox = "bubblewrap";
    json::object sandbox_options;                // fits the sandbox plugin's schema
    std::optional<json::object> sandbox_config;  // settings in sandbox-runtime's schema
    std::vector<std::string> allowed_hosts;  // the kernel's network, beside those of sandbox_config
    std::vector<std::string> package_hosts = {
        "pypi.org", "files.pythonhosted.org"};  // install_package's network
    // The kernel backend; "auto" takes "fork" where that works, else "zmq".
    std::string kernel = "auto";
    json::object kernel_options;   // fits the backend's schema; with "auto" that of "fork"
    json::value approval = "ask";  // see approval/config.hpp
    std::string approval_name = "approval";       // what messages call it, such as its file
    std::function<PolicyPtr(Host&)> make_policy;  // instead of `approval`, when set

    std::filesystem::path python;     // empty: found as find_python() does
    std::filesystem::path workspace;  // what the kernel may write; empty: the current directory
    std::optional<std::filesystem::path> working_dir;  // set: restored after every cell
    std::filesystem::path images_dir = "images";       // relative to the workspace
    bool async_api = false;                            // run() of generated modules is a coroutine
    std::map<std::string, std::string> kernel_env;     // beside PATH, all that the kernel gets
    Variables variables;                               // for ${NAME} in server parameters

    // Who is asked when the policy asks, all at once: the first answer counts, a pass is none.
    // Empty: of stream() the reader of its events, by ApprovalRequest; of execute() nobody, which
    // is a denial.
    std::vector<Approver> approvers;
    std::string session = "default";  // its name in policies and in the audit log
    AuditLogPtr audit;                // records executions and calls, when set
    // Told of executions, calls and approvals, for tracing; not after the executor is destroyed.
    SpanHook on_span;
    SessionWatcherPtr watcher;  // sees code, output and calls, when set
    // Told how far a tool call is, by ToolCall::id; messages are the server's: escape them before a
    // person sees them. On the executor's thread; what it throws is logged.
    std::function<void(const std::string& call, const CallProgress& report)> on_progress;
    // input() and getpass() of code ask the reader of stream()'s events, by InputRequest. Kernels
    // of "fork" and "zmq" only.
    bool allow_input = false;
    // What MCP servers may ask the application, and tell it: see ToolServerOptions.
    std::function<void(const std::string& server, McpClientOptions& options)> on_mcp_connect;
    // Numbers in tools' results that are no integers become decimal.Decimal, with the digits that
    // the server sent.
    bool exact_numbers = false;
    // `!command`, `%%bash` and the like ask the policy first. A guard written in Python: code that
    // wants to get around it can. The sandbox is what confines commands.
    bool approve_shell_cmds = false;
    bool require_shell_escape = false;  // and subprocess, os.system and the like are refused
    // deny: code cannot start programs, by whatever way; a system call filter sees to it, for
    // threads and forks too. Where the sandbox cannot, the kernel does not start. Forking goes on
    // working, and so do MCP servers and install_package(), which run elsewhere. ask: each program
    // that code starts is a call of the origin "program" that `approval` judges; without a yes it
    // does not start, whatever way code tries.
    Programs programs = Programs::allow;
    // Every cell is looked through before it runs, see code_checker.hpp. One with faults does not
    // run; one that cannot be checked runs, and says so.
    bool check = false;

    Duration approval_timeout = std::chrono::seconds(60);  // zero: unlimited
    Duration connect_timeout = std::chrono::seconds(30);   // to start an MCP server
    Duration tool_timeout =
        std::chrono::seconds(300);  // for a tool to answer or report progress; zero: unlimited
    Duration kernel_init_timeout = std::chrono::seconds(10);
    Duration interrupt_grace = std::chrono::seconds(5);  // for a cell to end once interrupted
    // While somebody is asked, the time of an execution does not count.
    bool timeout_excludes_approval = true;
    bool background_calls = false;  // tool calls between executions
    std::vector<std::filesystem::path>
        write_protected;      // files of the host that the kernel must not change
    bool allow_home = false;  // as workspace: a home directory, or what holds one
    // Files that programs of the host run by themselves (docs/sandboxing.md) are write-protected in
    // the workspace, but for these paths, relative to it, and what lies in them.
    std::vector<std::filesystem::path> allow_write;
    bool protect_strict = false;  // those that run on a person's act are too
    std::uint64_t max_output =
        std::uint64_t{1} << 30;  // bytes of one execution's output: text, and displays in memory
    // For the kernel. Where the sandbox can: 1024 processes, 4096 open files, 1 GiB and 262144
    // files of scratch space unless set here.
    Limits limits;
    // Told at once what the kernel's sandbox was seen to stop, on the executor's thread; must not
    // throw. The log has it too, and the result of the execution it happened in.
    std::function<void(const Violation&)> on_violation;
    Logger logger;
};

// Text as the cell printed it; all chunks together are the whole output, byte for byte.
struct CodeExecutionChunk {
    std::string text;
    bool is_stderr = false;
};

// How an execution ended, with everything it produced until then.
struct CodeExecutionResult {
    // refused: a check found faults, and nothing ran.
    enum class Status { ok, error, timed_out, cancelled, kernel_lost, output_limit, refused };

    Status status = Status::ok;
    std::string execution;  // its id, as Execution::id()
    // All output, stripped; absent when there was none, or when the caller took it by chunks alone.
    std::optional<std::string> text;
    std::vector<std::filesystem::path> images;  // files in images_dir, in order
    // Full MIME bundles, in order; one that was updated is as it was last, in its old place (of the
    // first 1000 displays with a display_id).
    std::vector<json::object> displays;
    // Python's traceback, or what happened and what to do; of a check, its faults line by line.
    std::string error;
    // The exception that ended the cell, as Python names it, and its message: 1 KiB and 64 KiB at
    // most, valid UTF-8 that code may have chosen; empty without one.
    std::string error_name, error_value;
    Duration duration{};                            // from stream() to the end, approvals included
    std::optional<CodeExecutionMeasures> measures;  // if ExecutionOptions::measure
    // What the sandbox was seen to stop meanwhile, and files that came or changed which the host
    // runs or obeys (layer "files"); 100 at most.
    std::vector<Violation> violations;

    // What the cell wrote to its standard output, byte for byte, without displays; empty
    // where `text` was not kept. `text` is the only copy, so each call makes another from it, and
    // what is done to `text` is seen here.
    std::string stdout_text() const { return text_of(detail::TextSource::standard_output); }
    // The same of its standard error.
    std::string stderr_text() const { return text_of(detail::TextSource::standard_error); }
    // The value of the last expression as Python writes it: `text/plain` of its display, which
    // counts against max_output; absent if there was none.
    std::optional<std::string> value_repr() const;

    // Whether the code ran to its end.
    bool ok() const noexcept { return status == Status::ok; }
    // This result if ok(). Throws Error: code_failed, timed_out, cancelled, kernel_died,
    // output_limit (by its status).
    const CodeExecutionResult& ok_or_throw() const;

private:
    friend class CodeExecutor;
    std::string text_of(detail::TextSource source) const {
        return pieces_.of(source, text ? std::string_view(*text) : std::string_view());
    }

    detail::TextPieces pieces_;            // of `text`
    std::optional<std::size_t> value_at_;  // in `displays`
};

// A call that waits for an answer. Copies share the one answer; the first counts, and none counts
// once the call was withdrawn. accept() and reject() may be called from any thread.
class ApprovalRequest {
public:
    // What is called, as code in the kernel wrote it: escape it before a person sees it.
    const std::string& server_name() const noexcept { return state_->call.server; }
    const std::string& tool_name() const noexcept { return state_->call.tool; }
    // Of numbers that a double cannot hold, the nearest one; call().sent_arguments() has their
    // digits.
    const json::object& tool_args() const noexcept { return state_->call.arguments; }
    // All that is known of the call, the tool's annotations and schema included.
    const ToolCall& call() const noexcept { return state_->call; }

    // Lets the call happen.
    void accept() const { answer(Decision(Verdict::allow)); }
    // Refuses it; the code gets an ApprovalRejectedError with the reason.
    void reject(std::string reason = {}) const {
        answer(Decision(Verdict::deny, std::move(reason)));
    }
    // Anything but an allowance is a denial. decision.by: who says so, for the audit log.
    void answer(Decision decision) const;
    // Returns when the call was answered by anybody, or withdrawn. On the executor's thread.
    awaitable<void> settled() const { return settled(state_); }

    // server.tool(k='v', …) on one line, safe to show on a terminal. Long values are folded, and
    // what cannot be shown whole says so: do not put that before a person. Question makes more
    // lines.
    std::string to_string() const {
        return approval::call_text(state_->call.server, state_->call.tool,
                                   state_->call.sent_arguments());
    }

private:
    friend class CodeExecutor;
    struct Shared {
        Shared(asio::any_io_executor e, ToolCall c) : executor(e), call(std::move(c)), changed(e) {}
        asio::any_io_executor executor;
        ToolCall call;
        detail::PendingApproval question{
            Decision(Verdict::deny, "nobody is there to approve this call")};
        Event changed;
    };
    static constexpr detail::PendingApproval::Answerer application = 0;
    struct Withdrawal {
        std::shared_ptr<Shared> state;
        ~Withdrawal();
    };
    explicit ApprovalRequest(std::shared_ptr<Shared> state) : state_(std::move(state)) {}

    static awaitable<void> settled(std::shared_ptr<Shared> state) {
        while (state->question.open()) co_await state->changed.wait();
    }
    std::shared_ptr<Shared> state_;
};

using ExecutionEvent = std::variant<ApprovalRequest, CodeExecutionChunk, CodeExecutionDisplay,
                                    CodeExecutionResult, InputRequest>;

namespace executor {
// Without a copy: the text may be large.
std::string strip(std::string&& text);
inline std::string strip(std::string_view text) { return strip(std::string(text)); }

// The private directory of one executor: the sockets of host services and the ipybox_kernel
// package. Hostile code cannot write to it (unless there is no sandbox), the guest user can enter
// it.
class RunDirectory {
public:
    explicit RunDirectory(uid_t guest);
    const std::filesystem::path& path() const noexcept { return directory_.path(); }

    // Writes lib/NAME for the guest to read, in the place of an older one.
    void write_library_file(const std::string& name, std::string_view text);

private:
    // A directory with the package's files.
    static int written_package(uid_t guest);

    detail::PrivateDirectory directory_;
};
}  // namespace executor

// One kernel with its tools. All methods run on the executor's thread or strand (answers to
// ApprovalRequest and InputRequest may come from any); the io_context must run. The registry must
// outlive the executor object and everything it returned.
class CodeExecutor {
    struct Session;
    struct Run;

public:
    // One running execution. Destroying it before its result cancels it.
    class Execution {
    public:
        // The next event; the last one is a CodeExecutionResult, then nullopt forever. Output and
        // calls wait in the kernel while nobody asks for them: a few MiB of events are kept.
        awaitable<std::optional<ExecutionEvent>> next();
        // Interrupts the cell; the kernel's state stays. The result says cancelled.
        void cancel();
        // Its id, as in the result, ToolCall::execution, spans and the audit log.
        const std::string& id() const noexcept;

        ~Execution();
        // What was moved from cancels nothing.
        Execution(Execution&&) noexcept = default;
        Execution& operator=(Execution&&) = delete;

    private:
        friend class CodeExecutor;
        explicit Execution(std::shared_ptr<Run> run);
        std::shared_ptr<Run> run_;
    };

    // Makes the plugins, starts nothing. executor: of an io_context that one thread runs,
    // or a strand. Throws Error: bad_argument (an option is wrong), bad_config (a configuration
    // is), no_such_plugin (none has that name), bad_plugin (one cannot be loaded).
    CodeExecutor(asio::any_io_executor executor, PluginRegistry& registry,
                 CodeExecutorOptions options);
    ~CodeExecutor();
    CodeExecutor(const CodeExecutor&) = delete;
    CodeExecutor& operator=(const CodeExecutor&) = delete;

    // Starts the kernel. Throws Error: kernel_start_failed (the kernel did not come up),
    // missing_dependency (such as ipykernel), denied (code could have written the interpreter),
    // sandbox_refused (the sandbox cannot enforce the policy), bad_config (a configuration is
    // wrong), bad_plugin (the backend started no RemoteKernel where it must), timed_out (after
    // kernel_init_timeout), io_error (a file or socket failed).
    awaitable<void> start();

    // Ends the kernel and the MCP servers; a running execution ends as cancelled.
    awaitable<void> stop();

    // A new kernel; MCP servers stop and start again on their next use. State of the old kernel
    // is lost. Works also after the kernel died. Throws what start() throws.
    awaitable<void> reset();

    // Begins an execution. Throws Error: busy (another one is running), kernel_not_started (start()
    // is due), kernel_died (reset() is due).
    awaitable<Execution> stream(std::string code, ExecutionOptions how);
    // The same with the options that are asked for most.
    awaitable<Execution> stream(std::string code, Duration timeout = std::chrono::seconds(120),
                                bool chunks = false, ResultText text = ResultText::whole,
                                bool check = false);

    // Runs code to its end. What the policy asks is asked of options.approvers; without any it is
    // denied, and the code told so. As stream() for the rest.
    awaitable<CodeExecutionResult> execute(std::string code, ExecutionOptions how);
    // The same with the options that are asked for most.
    awaitable<CodeExecutionResult> execute(std::string code,
                                           Duration timeout = std::chrono::seconds(120),
                                           bool check = false);

    // The same, with everything allowed that the policy asks, and nobody asked. Its denials stand.
    awaitable<CodeExecutionResult> execute_approved(std::string code, ExecutionOptions how);
    // The same with the options that are asked for most.
    awaitable<CodeExecutionResult> execute_approved(std::string code,
                                                    Duration timeout = std::chrono::seconds(120),
                                                    bool check = false);

    // Interrupts the running execution, if any.
    void cancel();

    // The variables of the code that ran so far, 1000 at most, in the order of their making: not
    // what begins with "_", nor IPython's own. The kernel runs none of their code to tell. What
    // threads print meanwhile comes with the next execution. Throws Error: kernel_protocol (the
    // kernel does not say), output_limit (it says too much, or threads print), timed_out (after ten
    // seconds), and what stream() throws.
    awaitable<std::vector<CodeVariable>> variables();

    // How `code` can go on: names, attributes, modules, parameters, keys and files. code: what
    // stands before the cursor, of UTF-8; of more than 64 KiB the end. The kernel runs no code of
    // the user's to tell: no property, no __getattr__ or __dir__, no import. Throws what
    // variables() throws, timed_out after two seconds.
    awaitable<CodeCompletions> complete(std::string code);

    // Makes an MCP server callable by name. Throws Error: bad_config (params of a wrong form).
    void register_server(const std::string& name, const json::object& params);

    // Registers an MCP server, starts it, and writes its Python API to root_dir/<name> (relative to
    // the workspace). Returns the names of the tools' modules in the server's order; what could not
    // be generated is logged. When the server says later that its tools changed, the API is written
    // again, between two executions. Throws what register_server() and list_tools() throw, and
    // Error: bad_argument (the name is no module's), io_error (the API cannot be written).
    awaitable<std::vector<std::string>> add_server(std::string name, json::object params,
                                                   std::filesystem::path root_dir = "mcptools");
    // The same by the original's name for it.
    awaitable<std::vector<std::string>> generate_mcp_sources(
        std::string name, json::object params, std::filesystem::path root_dir = "mcptools");

    // Tools of the application itself: coroutines in C++ that code calls as those of any other MCP
    // server, through policy, schema checks and an API in root_dir/<name>. server: made with the
    // same executor as this; once it has ended, calls of its tools fail. Returns the names of the
    // modules. When tools come or go, the API is written again, between two executions. Throws
    // Error: bad_argument (the name is no module's, or the server has another executor),
    // bad_config (ipybox itself answers under that name).
    awaitable<std::vector<std::string>> add_tools(std::string name, McpServer& server,
                                                  std::filesystem::path root_dir = "mcptools");

    // Stops an MCP server and forgets it. Calls of it that wait or run fail, and later ones too;
    // both say why. Its generated API stays where it is. Throws Error: bad_argument (no server has
    // that name).
    awaitable<void> unregister_server(std::string name);

    // The registered servers, by their names.
    std::vector<ServerInfo> servers() const;

    // The tools of a registered server with their hints, in the server's order; starts it. Throws
    // Error: bad_argument (no server has that name), and what McpClient throws.
    awaitable<std::vector<ToolInfo>> list_tools(std::string name);

    // Another policy for the calls that are made from now on; those that are being judged keep the
    // one they have. approval, approval_name: as in the options. The audit log records it. Throws
    // Error: bad_config, no_such_plugin (they describe none), io_error (the audit log cannot be
    // written); the policy stays as it was then.
    void set_policy(const json::value& approval, const std::string& approval_name = "approval");
    // The same with one that the application made. Throws Error: bad_argument (it is null),
    // io_error.
    void set_policy(PolicyPtr policy);

    // What is said of the tools that code can call; see ToolServer. Code gets the same by `from
    // ipybox_kernel import tools`. Starts no server. A line for each tool that fits `query`, the
    // best first; limit: 1 to 50. everything: packages whose server is not registered too.
    std::string search_tools(std::string_view query, std::size_t limit = 5,
                             bool everything = false) const;
    // How a tool is called. name: "server.tool". Throws Error: bad_argument (there is no such tool;
    // names the nearest).
    std::string describe_tool(std::string_view name) const;
    // All tools of a server, a line each with the types of the parameters. Throws Error:
    // bad_argument (no server has that name, or it was not started yet).
    std::string list_stubs(std::string_view server) const;

    // Installs a Python package for the kernel by pip, in a sandbox that reaches
    // options.package_hosts and writes .ipybox/site-packages of the workspace, nothing else; what
    // runs at its installation is as confined. package: a requirement, URL or git+https:// address.
    // timeout: zero means never. Returns what pip said at its end. Throws Error: bad_argument (it
    // is none of these, or the kernel is elsewhere), code_failed (pip's message), timed_out (after
    // `timeout`), sandbox_refused (the sandbox cannot confine pip), missing_dependency (such as
    // pip).
    awaitable<std::string> install_package(std::string package,
                                           Duration timeout = std::chrono::minutes(5));

    // The longest file that upload() and download() carry.
    static constexpr std::size_t max_file = std::size_t{256} << 20;

    // Writes a file for the code, whole or not at all: in the workspace or, where the kernel shares
    // no files with this machine, in the directory in which it started, whatever it executes
    // meanwhile. Makes directories; a link in the file's place is replaced, none on the way there
    // is followed. path: relative, without "..". Throws Error: bad_argument (the path), denied
    // (code in a sandbox could not change that file), io_error (it cannot be written, or is there
    // and `overwrite` is false), kernel_died (a kernel elsewhere has ended), timed_out (it did not
    // answer).
    awaitable<void> upload(std::string path, std::string bytes, bool overwrite = true);

    // Up to `limit` bytes of such a file, from `offset` on, and the size of the whole. Throws what
    // upload() throws; denied (code in a sandbox could not read that file).
    awaitable<FilePart> download(std::string path, std::uint64_t offset = 0,
                                 std::size_t limit = max_file);

    // The same of a file on this machine, wherever the kernel runs.
    FilePart read_here(const std::string& path, std::uint64_t offset = 0,
                       std::size_t limit = max_file) const;

    // Whether the kernel works with the files of this machine, below workspace(). If not, upload()
    // and download() need a kernel that is running.
    bool shares_files() const noexcept;

    // The workspace as an absolute path without links.
    const std::filesystem::path& workspace() const noexcept;

    // Whether there is a kernel that can run code; when it has ended, reset() starts a new one.
    bool kernel_alive() const noexcept;

    // What the kernel's backend calls it; empty without a kernel, and where kernels have no names.
    std::string kernel_id() const;

private:
    using Status = CodeExecutionResult::Status;
    static constexpr std::size_t queue_limit = 4u << 20;  // bytes of events before the kernel waits

    // What plugins made; tool calls that are being withdrawn keep it alive beyond the session.
    struct Doors {
        Host host;
        std::unique_ptr<Sandbox> sandbox;
        std::unique_ptr<Sandbox> servers_sandbox;  // for MCP servers
        std::unique_ptr<KernelBackend> backend;
        std::shared_ptr<ApprovalPolicy> policy;
    };

    std::shared_ptr<Session> session_;
};

}  // namespace ipybox

#ifndef IPYBOX_SEPARATE_COMPILATION
#include <ipybox/executor/impl/checks.ipp>
#include <ipybox/executor/impl/code_executor.ipp>
#include <ipybox/executor/impl/kernel_spec.ipp>
#include <ipybox/executor/impl/packages.ipp>
#include <ipybox/executor/impl/results.ipp>
#include <ipybox/executor/impl/runs.ipp>
#include <ipybox/executor/impl/session.ipp>
#include <ipybox/executor/impl/session_files.ipp>
#endif
