#pragma once
// Runs code actions: kernel, tools and approval behind one class.
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/multiple_exceptions.hpp>
#include <boost/asio/post.hpp>
#include <cctype>
#include <deque>
#include <filesystem>
#include <ipybox/approval/audit_log.hpp>
#include <ipybox/approval/config.hpp>
#include <ipybox/approval/question_text.hpp>
#include <ipybox/detail/base64.hpp>
#include <ipybox/detail/beneath.hpp>
#include <ipybox/detail/hex.hpp>
#include <ipybox/detail/json_memory.hpp>
#include <ipybox/detail/kernel_package.hpp>
#include <ipybox/detail/private_directory.hpp>
#include <ipybox/detail/within.hpp>
#include <ipybox/detail/workspace_files.hpp>
#include <ipybox/executor/server_sandbox.hpp>
#include <ipybox/kernel_backend.hpp>
#include <ipybox/net/domain_rule.hpp>
#include <ipybox/sandbox_kit/file_watch.hpp>
#include <ipybox/sandbox_kit/guest_view.hpp>
#include <ipybox/sandbox_kit/kernel_policy.hpp>
#include <ipybox/sandbox_kit/mux_frames.hpp>
#include <ipybox/sandbox_kit/protected_files.hpp>
#include <ipybox/sandbox_kit/python_environment.hpp>
#include <ipybox/sandbox_kit/sandbox_config.hpp>
#include <ipybox/tools/apigen.hpp>
#include <ipybox/tools/tool_server.hpp>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace ipybox {

// What an executor is made of, and its limits.
struct CodeExecutorOptions {
    // Plugins and their configuration.
    std::string sandbox = "bubblewrap";
    json::object sandbox_options;                      // fits the sandbox plugin's schema
    std::optional<json::object> sandbox_config;        // settings in sandbox-runtime's schema
    std::vector<std::string> allowed_hosts;            // the kernel's network, beside those of sandbox_config
    std::vector<std::string> package_hosts = {"pypi.org", "files.pythonhosted.org"};  // install_package's network
    std::string kernel = "zmq";
    json::object kernel_options;
    json::value approval = "ask";                      // see approval/config.hpp
    std::string approval_name = "approval";            // what messages call it, such as its file
    std::function<PolicyPtr(Host&)> make_policy;       // instead of `approval`, when set

    std::filesystem::path python;                      // empty: found as find_python() does
    std::filesystem::path workspace;                   // what the kernel may write; empty: the current directory
    std::optional<std::filesystem::path> working_dir;  // set: restored after every cell
    std::filesystem::path images_dir = "images";       // relative to the workspace
    bool async_api = false;                            // run() of generated modules is a coroutine
    std::map<std::string, std::string> kernel_env;     // beside PATH, all that the kernel gets
    Variables variables;                               // for ${NAME} in server parameters

    // Who is asked when the policy asks, all at once: the first answer counts, a pass is none.
    // Empty: the reader of the execution's events, by ApprovalRequest.
    std::vector<Approver> approvers;
    std::string session = "default";                   // its name in policies and in the audit log
    AuditLogPtr audit;                                 // records executions and calls, when set
    // What MCP servers may ask the application, and tell it: see ToolServerOptions.
    std::function<void(const std::string& server, McpClientOptions& options)> on_mcp_connect;
    // Numbers in tools' results that are no integers become decimal.Decimal, with the digits that the server sent.
    bool exact_numbers = false;
    // `!command`, `%%bash` and their kin ask the policy first. A guard written in Python: code that
    // wants to get around it can. The sandbox is what confines commands.
    bool approve_shell_cmds = false;
    bool require_shell_escape = false;                 // and subprocess, os.system and their kin are refused

    Duration approval_timeout = std::chrono::seconds(60);    // zero: unlimited
    Duration connect_timeout = std::chrono::seconds(30);     // to start an MCP server
    Duration tool_timeout = std::chrono::seconds(300);       // for a tool to answer or report progress; zero: unlimited
    Duration kernel_init_timeout = std::chrono::seconds(10);
    Duration interrupt_grace = std::chrono::seconds(5);      // for a cell to end once interrupted
    bool timeout_excludes_approval = false;
    bool background_calls = false;                           // tool calls between executions
    std::vector<std::filesystem::path> write_protected;  // files of the host that the kernel must not change
    bool allow_home = false;                                 // as workspace: a home directory, or what holds one
    // Files that programs of the host run by themselves (docs/sandboxing.md) are write-protected in
    // the workspace, but for these paths, relative to it, and what lies in them.
    std::vector<std::filesystem::path> allow_write;
    bool protect_strict = false;                             // those that run on a person's act are too
    std::uint64_t max_output = std::uint64_t{1} << 30;       // bytes of one execution's output: text, and displays in memory
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
    enum class Status { ok, error, timed_out, cancelled, kernel_lost, output_limit };

    Status status = Status::ok;
    std::optional<std::string> text;                // all output, stripped; absent when there was none
    std::vector<std::filesystem::path> images;      // files in images_dir, in order
    std::vector<json::object> displays;             // full MIME bundles, in order
    std::string error;                              // Python's traceback, or what happened and what to do
    // What the sandbox was seen to stop meanwhile, and files that came or changed which the host
    // runs or obeys (layer "files"); 100 at most.
    std::vector<Violation> violations;

    // Whether the code ran to its end.
    bool ok() const noexcept { return status == Status::ok; }
    // This result, or Error: code_failed, timed_out, cancelled, kernel_died, output_limit.
    const CodeExecutionResult& value() const {
        static constexpr errc codes[] = {errc::code_failed, errc::code_failed, errc::timed_out,
                                         errc::cancelled, errc::kernel_died, errc::output_limit};
        if (!ok()) throw Error(codes[static_cast<int>(status)], error);
        return *this;
    }
};

// A call that waits for an answer. Copies share the one answer; the first counts, and none counts
// once the call was withdrawn. accept() and reject() may be called from any thread.
class ApprovalRequest {
public:
    // What is called, as code in the kernel wrote it: escape it before a person sees it.
    const std::string& server_name() const noexcept { return state_->call.server; }
    const std::string& tool_name() const noexcept { return state_->call.tool; }
    // Of numbers that a double cannot hold, the nearest one; call().sent_arguments() has their digits.
    const json::object& tool_args() const noexcept { return state_->call.arguments; }
    // All that is known of the call, the tool's annotations and schema included.
    const ToolCall& call() const noexcept { return state_->call; }

    // Lets the call happen.
    void accept() const { answer(Decision(Verdict::allow)); }
    // Refuses it; the code gets an ApprovalRejectedError with the reason.
    void reject(std::string reason = {}) const { answer(Decision(Verdict::deny, std::move(reason))); }
    // Anything but an allowance is a denial. decision.by: who says so, for the audit log.
    void answer(Decision decision) const {
        if (decision.by.empty()) decision.by = "application";
        asio::post(state_->executor, [state = state_, decision] {
            if (state->decision) return;
            state->decision = decision;
            state->changed.notify();
        });
    }
    // Returns when the call was answered by anybody, or withdrawn. On the executor's thread.
    awaitable<void> settled() const { return settled(state_); }

    // server.tool(k='v', …) on one line, safe to show on a terminal. Long values are folded, and what
    // cannot be shown whole says so: do not put that before a person. Question makes more lines.
    std::string to_string() const {
        return detail::call_text(state_->call.server, state_->call.tool, state_->call.sent_arguments());
    }

private:
    friend class CodeExecutor;
    struct State {
        State(asio::any_io_executor e, ToolCall c) : executor(e), call(std::move(c)), changed(e) {}
        asio::any_io_executor executor;
        ToolCall call;
        std::optional<Decision> decision;
        Event changed;
    };
    struct Withdrawal {
        std::shared_ptr<State> state;
        ~Withdrawal() {
            if (state->decision) return;
            state->decision = Decision(Verdict::deny, "withdrawn");
            state->changed.notify();
        }
    };
    explicit ApprovalRequest(std::shared_ptr<State> state) : state_(std::move(state)) {}

    static awaitable<void> settled(std::shared_ptr<State> state) {
        while (!state->decision) co_await state->changed.wait();
    }
    std::shared_ptr<State> state_;
};

using ExecutionEvent = std::variant<ApprovalRequest, CodeExecutionChunk, CodeExecutionResult>;

namespace detail {
// Without a copy: the text may be large.
inline std::string strip(std::string&& text) {
    text.erase(text.find_last_not_of(" \t\r\n\f\v") + 1);
    text.erase(0, text.find_first_not_of(" \t\r\n\f\v"));
    return std::move(text);
}
inline std::string strip(std::string_view text) { return strip(std::string(text)); }

// The private directory of one executor: the sockets of host services and the ipybox_kernel package.
// Hostile code cannot write to it (unless there is no sandbox), the guest user can enter it.
class RunDirectory {
public:
    explicit RunDirectory(uid_t guest) : directory_(::geteuid(), guest, 0711) {
        const auto package = path() / "lib" / "ipybox_kernel";
        std::filesystem::create_directories(package);
        for (const auto& made : {path() / "lib", package})
            if (::chmod(made.c_str(), 0755) != 0) throw_io_error(made.string());
        const UniqueFd handle = open_directory(package);
        for (const auto& file : kernel_package) {
            write_new_file(handle.get(), std::string(file.name), file.text);
            if (::chmod((package / file.name).c_str(), 0644) != 0) throw_io_error(std::string(file.name));
        }
    }
    const std::filesystem::path& path() const noexcept { return directory_.path(); }

    // Makes lib/NAME anew, for the guest to read.
    void write_library_file(const std::string& name, std::string_view text) {
        const UniqueFd handle = open_directory(path() / "lib");
        ::unlinkat(handle.get(), name.c_str(), 0);
        write_new_file(handle.get(), name, text);
        if (::fchmodat(handle.get(), name.c_str(), 0644, 0) != 0) throw_io_error(name);
    }

private:
    PrivateDirectory directory_;
};
}  // namespace detail

// One kernel with its tools. All methods run on the executor's thread (ApprovalRequest answers
// may come from any); the io_context must run. The registry must outlive the executor object and
// everything it returned.
class CodeExecutor {
    struct Session;
    struct Run;

public:
    // One running execution. Destroying it before its result cancels it.
    class Execution {
    public:
        // The next event; the last one is a CodeExecutionResult, then nullopt for ever. Output
        // waits in the kernel while nobody asks for it.
        awaitable<std::optional<ExecutionEvent>> next() {
            auto run = run_;
            while (run->events.empty() && !run->finished) co_await run->changed.wait();
            if (run->events.empty()) co_return std::nullopt;
            std::optional<ExecutionEvent> event(std::move(run->events.front()));
            run->events.pop_front();
            if (const auto* chunk = std::get_if<CodeExecutionChunk>(&*event)) {
                run->queued -= chunk->text.size();
                run->changed.notify();
            }
            co_return event;
        }
        // Interrupts the cell; the kernel's state stays. The result says cancelled.
        void cancel() { run_->request_stop(CodeExecutionResult::Status::cancelled); }

        ~Execution() {
            if (!run_) return;
            run_->abandoned = true;
            cancel();
        }
        // What was moved from cancels nothing.
        Execution(Execution&&) noexcept = default;
        Execution& operator=(Execution&&) = delete;

    private:
        friend class CodeExecutor;
        explicit Execution(std::shared_ptr<Run> run) : run_(std::move(run)) {}
        std::shared_ptr<Run> run_;
    };

// Makes the plugins, starts nothing. executor: of an io_context that one thread runs. Throws
// Error: bad_argument, bad_config, no_such_plugin, bad_plugin.
    CodeExecutor(asio::any_io_executor executor, PluginRegistry& registry, CodeExecutorOptions options)
        : session_(std::make_shared<Session>(std::move(executor), registry, std::move(options))) {
        session_->prepare(session_);
    }
    ~CodeExecutor() { session_->abandon(); }
    CodeExecutor(const CodeExecutor&) = delete;
    CodeExecutor& operator=(const CodeExecutor&) = delete;

    // Starts the kernel. Throws Error: kernel_start_failed, missing_dependency, sandbox_refused,
    // bad_config, timed_out, io_error.
    awaitable<void> start() {
        auto session = session_;
        co_await session->start();
    }

    // Ends the kernel and the MCP servers; a running execution ends as cancelled.
    awaitable<void> stop() {
        auto session = session_;
        co_await session->stop();
    }

    // A new kernel; MCP servers stop and start again on their next use. State of the old kernel
    // is lost. Works also after the kernel died. Throws what start() throws.
    awaitable<void> reset() {
        auto session = session_;
        co_await session->stop();
        co_await session->start();
    }

    // Begins an execution. timeout: from now until it is interrupted, zero means never. chunks:
    // whether next() yields CodeExecutionChunk events. Throws errc::busy while another one is
    // running, errc::kernel_died when reset() is due.
    awaitable<Execution> stream(std::string code, Duration timeout = std::chrono::seconds(120), bool chunks = false) {
        auto session = session_;
        auto run = co_await session->begin(session, std::move(code), timeout, chunks, false);
        co_return Execution(std::move(run));
    }

    // Runs code to its end. What the policy would ask is answered with yes; denials stand.
    awaitable<CodeExecutionResult> execute(std::string code, Duration timeout = std::chrono::seconds(120)) {
        auto session = session_;
        Execution execution(co_await session->begin(session, std::move(code), timeout, false, true));
        for (;;) {
            auto event = co_await execution.next();
            if (!event) throw Error(errc::cancelled, "the execution ended without a result");
            if (auto* result = std::get_if<CodeExecutionResult>(&*event)) co_return std::move(*result);
        }
    }

    // Interrupts the running execution, if any.
    void cancel() {
        if (session_->run) session_->run->request_stop(CodeExecutionResult::Status::cancelled);
    }

    // Puts what is no call of a tool, such as the registration of a server, to the policy and into
    // the audit log. The verdict is allow or deny. Throws errc::io_error when it must be recorded
    // and cannot be.
    awaitable<Decision> decide(ToolCall call) {
        auto session = session_;
        co_return co_await session->tools->decide(std::move(call));
    }

    // Makes an MCP server callable by name. Throws errc::bad_config.
    void register_server(const std::string& name, const json::object& params) {
        check_server_name(name);
        session_->tools->register_server(name, params);
    }

    // Registers the server and writes its Python API to root_dir/<name> (relative to the
    // workspace). Returns the names of the tools' modules in the server's order; what could not be
    // generated is logged. When the server says later that its tools changed, the API is written
    // anew, between two executions.
    awaitable<std::vector<std::string>> generate_mcp_sources(std::string name, json::object params,
                                                             std::filesystem::path root_dir = "mcptools") {
        auto session = session_;
        register_server(name, params);
        const json::array tools = co_await session->tools->list_tools(name);
        const auto package = generate_package(name, tools, session->api_style());
        session->write_api(name, root_dir, package);
        session->generated[name] = root_dir;
        co_await session->deliver_apis();
        std::map<std::string_view, std::string_view> modules;
        for (const auto& made : package.tools) modules.emplace(made.tool, made.module);
        std::vector<std::string> names;
        for (const auto& tool : tools) {
            const auto* text = tool.as_object().if_contains("name");
            const auto made = modules.find(text && text->is_string() ? std::string_view(text->get_string()) : "");
            if (made == modules.end()) continue;
            names.emplace_back(made->second);
            modules.erase(made);
        }
        co_return names;
    }

    // Installs a Python package for the kernel by pip, in a sandbox that reaches options.package_hosts
    // and writes .ipybox/site-packages of the workspace, nothing else; what runs at its installation
    // is as confined. package: a requirement, URL or git+https:// address. timeout: zero means
    // never. Returns what pip said at its end. Throws Error: bad_argument, code_failed (pip's
    // message), timed_out, sandbox_refused, missing_dependency.
    awaitable<std::string> install_package(std::string package, Duration timeout = std::chrono::minutes(5)) {
        auto session = session_;
        co_return co_await session->install_package(std::move(package), timeout);
    }

    // The longest file that upload() and download() carry.
    static constexpr std::size_t max_file = std::size_t{256} << 20;

    // Writes a file for the code, whole or not at all: in the workspace or, where the kernel shares
    // no files with this machine, in the directory in which it started, whatever it executes
    // meanwhile. Makes directories; a link in the file's place is replaced, none on the way there is
    // followed. path: relative, without "..". Throws Error: bad_argument, denied for what is_guarded()
    // names, io_error; with a kernel elsewhere also kernel_died and timed_out.
    awaitable<void> upload(std::string path, std::string bytes, bool overwrite = true) {
        auto session = session_;
        co_await session->upload(std::move(path), std::move(bytes), overwrite);
    }

    // Up to `limit` bytes of such a file, from `offset` on, and the size of the whole. Throws what
    // upload() throws.
    awaitable<FilePart> download(std::string path, std::uint64_t offset = 0, std::size_t limit = max_file) {
        auto session = session_;
        co_return co_await session->download(std::move(path), offset, limit);
    }

    // The same of a file on this machine, wherever the kernel runs.
    FilePart read_here(const std::string& path, std::uint64_t offset = 0, std::size_t limit = max_file) const {
        return session_->read_here(session_->checked_path(path, false), offset, limit);
    }

    // Whether the kernel works with the files of this machine, below workspace(). If not, upload()
    // and download() need a kernel that is running.
    bool shares_files() const noexcept { return session_->doors->backend->shares_files(); }

    // Whether the file is one that code in a sandbox could not read or, to_write, change: whoever
    // carries files for it must not either. relative: to the workspace, without "..".
    bool is_guarded(const std::filesystem::path& relative, bool to_write) const {
        return session_->is_guarded(relative, to_write);
    }

    // The workspace as an absolute path without links.
    const std::filesystem::path& workspace() const noexcept { return session_->workspace; }

    // Whether there is a kernel that can run code; when it has ended, reset() starts a new one.
    bool kernel_alive() const noexcept { return session_->kernel && session_->kernel->alive(); }

    // What the kernel's backend calls it; empty without a kernel, and where kernels have no names.
    std::string kernel_id() const { return session_->kernel ? session_->kernel->id() : std::string(); }

private:
    using Status = CodeExecutionResult::Status;
    static constexpr std::size_t queue_limit = 4u << 20;  // bytes of chunks before the kernel waits

    struct Run {
        explicit Run(const asio::any_io_executor& executor) : changed(executor) {}
        void push(ExecutionEvent event) {
            if (const auto* chunk = std::get_if<CodeExecutionChunk>(&event)) queued += chunk->text.size();
            events.push_back(std::move(event));
            changed.notify();
        }
        void request_stop(Status why) {
            if (finished || stop) return;
            stop = why;
            changed.notify();
        }
        bool backlog() const { return chunks && !stop && !abandoned && queued > queue_limit; }

        std::deque<ExecutionEvent> events;
        std::size_t queued = 0;
        Event changed;
        std::optional<Status> stop;       // why it is being interrupted
        std::string stop_reason;
        std::vector<Violation> violations;
        bool kernel_lost = false;         // it did not react, and was killed
        bool finished = false;
        bool abandoned = false;
        bool chunks = false;
        bool auto_approve = false;
        Duration timeout{};
        Clock::time_point started = Clock::now();
        int approvals = 0;                // waiting now
        Clock::time_point approvals_since{};
        Duration approvals_waited{};
    };

    // What plugins made; tool calls that are being withdrawn keep it alive beyond the session.
    struct Doors {
        Host host;
        std::unique_ptr<Sandbox> sandbox;
        std::unique_ptr<Sandbox> servers_sandbox;  // for MCP servers
        std::unique_ptr<KernelBackend> backend;
        PolicyPtr policy;
    };

    // Owned by the executor and by its coroutines, so that none outlives what it uses.
    struct Session : std::enable_shared_from_this<Session> {
        Session(asio::any_io_executor executor, PluginRegistry& r, CodeExecutorOptions o)
            : registry(r), options(std::move(o)), doors(std::make_shared<Doors>()), host(doors->host), idle(executor) {
            host.executor = std::move(executor);
            host.logger = options.logger;
        }

        void prepare(const std::weak_ptr<Session>& self) {
            workspace = std::filesystem::absolute(options.workspace.empty() ? "." : options.workspace);
            std::error_code error;
            workspace = std::filesystem::canonical(workspace, error);
            if (error || !std::filesystem::is_directory(workspace))
                throw Error(errc::bad_argument, "workspace " + options.workspace.string() + ": not a directory; create it first");
            check_allow_write();
            if (options.require_shell_escape && !options.approve_shell_cmds)
                throw Error(errc::bad_argument, "require_shell_escape needs approve_shell_cmds");
            host.ask = [self](ToolCall call) { return ask(self, std::move(call)); };
            doors->sandbox = registry.make<Sandbox>(options.sandbox, host, options.sandbox_options);
            doors->servers_sandbox = registry.make<Sandbox>("none", host, json::object{});
            doors->backend = registry.make<KernelBackend>(options.kernel, host, options.kernel_options);
            doors->policy = options.make_policy ? options.make_policy(host) : make_policy(registry, host, options.approval, options.approval_name);
            if (!doors->policy) throw Error(errc::bad_argument, "make_policy returned no policy");
            keep_program();
            make_tool_server();
        }

        // What runs on the host at the next start, where it lies in the workspace.
        void keep_program() {
            for (const auto& path : registry.in_use()) {
                std::error_code error;
                const auto real = std::filesystem::canonical(path, error);
                if (!error && detail::within(real, workspace)) options.write_protected.push_back(real);
            }
        }

        void make_tool_server() {
            ToolServerOptions settings;
            settings.approval_timeout = options.approval_timeout;
            settings.connect_timeout = options.connect_timeout;
            settings.call_idle_timeout = options.tool_timeout;
            if (options.tool_timeout <= Duration::zero() || options.tool_timeout > settings.call_timeout)
                settings.call_timeout = options.tool_timeout;
            settings.background_calls = options.background_calls;
            settings.owner = doors;
            settings.session = options.session;
            settings.audit = options.audit;
            settings.on_connect = [self = weak_from_this(), use = options.on_mcp_connect](const std::string& server,
                                                                                         McpClientOptions& client) {
                if (const auto session = self.lock()) session->look_at_files();  // before the host starts it
                if (use) use(server, client);
            };
            settings.after_call = [self = weak_from_this()] { return refresh_view(self); };
            settings.shell_commands = options.approve_shell_cmds;
            settings.workspace = workspace;
            settings.kernel_user = [self = weak_from_this()]() -> std::optional<uid_t> {
                const auto session = self.lock();
                if (!session || !session->doors->backend->shares_files()) return std::nullopt;
                return session->doors->sandbox->guest_user(session->base_policy());
            };
            settings.record_places = [self = weak_from_this()] { return record_places(self); };
            settings.make_sandbox = [this](json::object wanted) -> std::unique_ptr<Sandbox> {
                const auto socket = "network-" + std::to_string(++server_sandboxes);
                return std::make_unique<ServerSandbox>(registry, host, std::move(wanted), policy_sources(),
                                                       run_place().path() / socket);
            };
            settings.on_tools_changed = [self = weak_from_this()](const std::string& name) {
                const auto session = self.lock();
                if (!session || !session->generated.contains(name)) return;
                session->outdated.insert(name);
                session->renew_apis();
            };
            tools = std::make_unique<ToolServer>(registry, host, *doors->servers_sandbox, *doors->policy, std::move(settings));
            tools->set_variables(options.variables);
        }

        static awaitable<void> refresh_view(std::weak_ptr<Session> weak) {
            const auto self = weak.lock();
            if (self && self->kernel && self->kernel->alive()) co_await self->kernel->refresh_view();
        }

        ApiStyle api_style() const { return options.async_api ? ApiStyle::async : ApiStyle::blocking; }

        // Returns false when the files were as they should be.
        bool write_api(const std::string& name, const std::filesystem::path& root_dir, const GeneratedPackage& package) {
            for (const auto& skipped : package.skipped)
                host.logger(LogLevel::warning, "no API for " + name + "." + skipped.tool + ": " + skipped.reason);
            // A kernel elsewhere imports it from the library.
            if (!doors->backend->shares_files()) {
                const auto place = root_dir.is_relative() ? root_dir : root_dir.filename();
                library_changed = write_package(run_place().path() / "lib" / place, name, package) || library_changed;
            }
            // By handle: the kernel could put a link in the path's place.
            const auto directory = policy_of_code().open_for_writing(root_dir, name);
            std::string kept_as;
            const bool written = write_package(directory.get(), name, package, &kept_as);
            if (!kept_as.empty())
                host.logger(LogLevel::warning,
                            (root_dir / name).string() + " was not written by this program: what was there is kept as " +
                                (root_dir / kept_as).string() + ". A package of the original ipybox may hold secrets in its __init__.py");
            return written;
        }

        // To a kernel that cannot read them here; one that starts later gets them at its start.
        awaitable<void> deliver_apis() {
            if (std::exchange(library_changed, false) && kernel && kernel->alive()) co_await kernel->refresh();
        }

        // Writes the APIs of servers whose tools changed. Not while code runs: it could import
        // half of the old package and half of the new one.
        void renew_apis() {
            if (run || abandoned) return;
            for (const auto& name : std::exchange(outdated, {})) {
                try {
                    const auto package = generate_package(name, tools->listed_tools(name), api_style());
                    if (write_api(name, generated.at(name), package))
                        host.logger(LogLevel::info, "the API of MCP server " + name + " was written anew: its tools changed");
                } catch (const std::exception& error) {
                    host.logger(LogLevel::warning, "the API of MCP server " + name + " is out of date: " + error.what());
                }
            }
        }

        awaitable<void> start() {
            auto self = shared_from_this();
            if (kernel && kernel->alive()) co_return;
            look_at_files();
            file_watch.reset();
            if (!listening) {
                if (const auto where = doors->backend->tool_listener()) {
                    const auto reached = tools->listen(*where);
                    tool_url = reached.url;
                    run_place().write_library_file(certificate_name, reached.certificates);
                } else {
                    tools->listen(run_place().path() / "tools", doors->sandbox->guest_user(base_policy()));
                }
                listening = true;
            }
            KernelSpec spec;
            if (doors->backend->shares_files()) {
                // Both wait for a process, so they do it together.
                using namespace asio::experimental::awaitable_operators;
                auto both = find_environment() && capabilities();
                Capabilities able;
                std::exception_ptr failure;
                try {
                    able = co_await std::move(both);
                } catch (const asio::multiple_exceptions& failures) {
                    failure = failures.first_exception();
                }
                if (failure) std::rethrow_exception(failure);
                spec = kernel_spec(able);
            } else {
                const Capabilities able = co_await capabilities();
                spec = distant_spec(able);
            }
            kernel.reset();
            seen.clear();
            kernel_limits = spec.policy.limits;
            watch_files(spec.policy);
            kernel = co_await doors->backend->start(*doors->sandbox, std::move(spec));
            if (unconfined() && doors->backend->shares_files() && !std::exchange(told_unprotected, true))
                host.logger(LogLevel::warning, "sandbox \"none\" protects nothing: the code may change every file that you may, "
                                               "and so what runs on this machine later");
            if (const auto problem = writable_places().problem(); !problem.empty() && !std::exchange(told_unrecorded, true))
                host.logger(LogLevel::warning, "which places code could write is remembered for this run only: " + problem);
        }

        // See ServerPlace: a server may start before the first kernel does.
        static awaitable<bool> record_places(std::weak_ptr<Session> weak) {
            const auto self = weak.lock();
            if (!self || !self->doors->backend->shares_files()) co_return true;
            if (self->unconfined()) co_return false;
            const Capabilities able = co_await self->doors->sandbox->probe();
            if (!able.available || (self->kernel && self->kernel->alive())) co_return true;
            try {
                co_await self->find_environment();
            } catch (const Error&) {
                // The start of the kernel tells; until then nothing of an interpreter is protected.
            }
            const auto policy = able.filesystem ? self->policy_of_code().policy() : self->base_policy();
            writable_places().record(policy, able.pinned_protection);
            co_return true;
        }

        // Code that nothing confines could have changed whatever its user can: nothing is worth judging.
        bool unconfined() const { return options.sandbox == "none"; }

        void report(const Violation& violation) {
            if (options.on_violation && !abandoned) options.on_violation(violation);
            if (!run && violation.layer != files_layer) return;
            auto& list = run ? run->violations : waiting_violations;  // for the next execution
            const auto known = std::find_if(list.begin(), list.end(), [&](const Violation& other) {
                return other.layer == violation.layer && other.what == violation.what;
            });
            if (known != list.end())
                known->count += violation.count;
            else if (list.size() < 100)
                list.push_back(violation);
        }

        // Asks the kernel's process what it ran into since the last time.
        void report_new(const Kernel& from) {
            for (auto violation : from.violations()) {
                const auto before = std::exchange(seen[violation.layer], violation.count);
                if (violation.count <= before) continue;
                violation.count -= before;
                host.logger(LogLevel::warning, "sandbox: " + violation.layer + ": " + violation.what);
                report(violation);
            }
        }

        // The paths of allow_write, absolute. Throws errc::bad_argument.
        void check_allow_write() {
            const auto refuse = [](const std::filesystem::path& given, const std::string& why) {
                throw Error(errc::bad_argument, "allow_write " + given.string() + ": " + why);
            };
            for (const auto& given : options.allow_write) {
                auto path = (workspace / given).lexically_normal();
                if (!path.has_filename()) path = path.parent_path();
                if (!detail::within(path, workspace))
                    refuse(given, "lies outside of the workspace, where nothing is protected; leave it out");
                const auto relative = path.lexically_relative(workspace);
                if (relative == ".") refuse(given, "is the whole workspace; name the protected file or directory in it");
                const auto text = "/" + relative.string();
                for (const auto& file : detail::host_run_files)
                    if (text.find("/" + std::string(file.path) + "/") != std::string::npos)
                        refuse(given, "lies in " + std::string(file.path) + ", which is protected as a whole; name that");
                opened.push_back(std::move(path));
            }
        }

        detail::ProtectionRules protection() const {
            detail::ProtectionRules rules;
            rules.strict = options.protect_strict;
            rules.opened = opened;
            return rules;
        }

        // Says and records what is not protected, once the kernel is about to start.
        void tell_protection(const detail::ProtectedFiles& found) {
            json::array names;
            for (const auto& path : found.opened) {
                const auto name = path.lexically_relative(workspace).string();
                host.logger(LogLevel::warning, "allow_write: the code may write " + detail::printable(name) +
                                                   ", which is protected otherwise");
                names.emplace_back(name);
            }
            for (const auto& path : opened)
                if (std::none_of(found.opened.begin(), found.opened.end(),
                                 [&](const auto& one) { return detail::within(one, path); }))
                    host.logger(LogLevel::warning,
                                "allow_write " + detail::printable(path.lexically_relative(workspace).string()) +
                                    " opens nothing: nothing there is protected");
            if (!names.empty()) {
                json::object record;
                record["event"] = "files_opened";
                record["paths"] = std::move(names);
                record_files(std::move(record));
            }
            for (const auto& text : found.left_out) tell_files("not protected: " + text, true);
            if (!found.deeper.empty())
                host.logger(LogLevel::info, "files that programs of the host run: " + detail::printable(found.deeper));
        }

        void record_files(json::object record) {
            if (!options.audit) return;
            record["session"] = options.session;
            record["execution"] = tools->execution();
            try {
                options.audit->write(std::move(record));
            } catch (const Error& error) {  // the log keeps it, and refuses the next execution
                host.logger(LogLevel::warning, error.detail());
            }
        }

        void tell_files(const std::string& what, bool first) {
            Violation violation;
            violation.layer = files_layer;
            violation.what = detail::printable(what);
            if (first) host.logger(LogLevel::warning, "sandbox: files: " + violation.what);
            report(violation);
        }

        // Told in the log the first time, each time in the result and in the audit log.
        void tell_changes(const std::vector<detail::FileChange>& changes) {
            constexpr std::size_t most = 50;  // code can make any number
            for (std::size_t i = 0; i < std::min(most, changes.size()); ++i) {
                const auto& change = changes[i];
                const bool first = told_files.size() < 10'000 && told_files.insert(change.path).second;
                const std::string how = change.is_new ? " is new: " : " was changed: ";
                tell_files(change.path + how + std::string(detail::reason(*change.file)), first);
                json::object record;
                record["event"] = "file_changed";
                record["path"] = change.path;
                record["outcome"] = change.is_new ? "new" : "changed";
                record["runs"] = change.file->when == detail::HostRun::unasked ? "unasked" : "on a person's act";
                record_files(std::move(record));
            }
            if (changes.size() > most)
                tell_files(std::to_string(changes.size() - most) + " more files that the host runs or obeys are new or changed",
                           true);
        }

        // From now on, what code does to files that the host runs or obeys is told.
        void watch_files(const SandboxPolicy& policy) {
            const bool written = std::any_of(policy.writable.begin(), policy.writable.end(), [this](const auto& place) {
                return detail::within(place, workspace) || detail::within(workspace, place);
            });
            if (!protecting || !written) return;
            try {
                // A quota of the workspace changes the time of every file's last change.
                file_watch = std::make_unique<detail::FileWatch>(workspace, protection().depth, policy.write_protected,
                                                            !policy.limits.workspace_size,
                                                            &code_policy->protected_files().directories);
            } catch (const Error& error) {
                tell_files("changes will not be told: " + error.detail(), true);
            }
        }

        // Looks for changes everywhere, not only where poll() does: not while an answer waits.
        void look_at_files() {
            if (!file_watch) return;
            tell_changes(file_watch->scan());
            for (const auto& text : file_watch->left_out())
                if (told_files.size() < 10'000 && told_files.insert(text).second) tell_files("not looked at: " + text, true);
        }

        detail::RunDirectory& run_place() {
            if (!run_directory) run_directory = std::make_unique<detail::RunDirectory>(doors->sandbox->guest_user(base_policy()));
            return *run_directory;
        }

        awaitable<void> find_environment() {
            if (environment) co_return;
            const auto python = find_python(options.python, unconfined() ? Trust::named : Trust::judged);
            PythonEnvironment found = co_await inspect_python(host.executor, python, std::chrono::seconds(30));
            if (const auto problem = package_problem(found); !problem.empty())
                throw Error(errc::missing_dependency, problem);
            environment = std::move(found);
        }

        awaitable<Capabilities> capabilities() {
            Capabilities able = co_await doors->sandbox->probe();
            if (!able.available) throw Error(errc::sandbox_refused, "sandbox " + options.sandbox + ": " + able.problem);
            co_return able;
        }

        SandboxPolicy base_policy() const {
            SandboxPolicy base;
            base.cwd = options.working_dir ? std::filesystem::absolute(*options.working_dir) : workspace;
            base.writable = {workspace};
            if (options.working_dir && !detail::within(base.cwd, workspace)) base.writable.push_back(base.cwd);
            return base;
        }

        // Before the interpreter was asked, all that is known is where it lies.
        PolicySources policy_sources() const {
            PolicySources sources;
            sources.workspace = workspace;
            if (options.working_dir) sources.working_dir = std::filesystem::absolute(*options.working_dir);
            sources.settings = options.sandbox_config;
            sources.write_protected = options.write_protected;
            sources.protection = protection();
            if (options.audit) sources.audit_log = options.audit->path();
            if (environment) {
                sources.interpreter = environment->readable;
            } else {
                try {
                    const auto prefix = find_python(options.python).parent_path().parent_path();
                    if (detail::within(prefix, workspace)) sources.interpreter = {prefix};
                } catch (const Error&) {
                    // No kernel will start either.
                }
            }
            return sources;
        }

        // That of the kernel, or of the one that would start now. Made anew at each start only: the walk
        // through the workspace takes its time, and what the code made since is its own.
        const KernelPolicy& policy_of_code() {
            if (!code_policy || (environment && !knows_interpreter)) code_policy.emplace(policy_sources());
            knows_interpreter = environment.has_value();
            return *code_policy;
        }

        bool is_guarded(const std::filesystem::path& relative, bool to_write) {
            const auto& policy = policy_of_code();
            return to_write ? !policy.may_write(relative) : !policy.may_read(relative);
        }

        std::filesystem::path checked_path(const std::string& text, bool to_write) {
            auto path = detail::workspace_path(text);
            if (is_guarded(path, to_write)) detail::throw_guarded(path);
            return path;
        }
        FilePart read_here(const std::filesystem::path& path, std::uint64_t offset, std::size_t limit) {
            const auto root = detail::open_directory(workspace);
            return detail::read_beneath(root.get(), path, offset, std::min(limit, max_file),
                                        [this](const struct stat& file) { return policy_of_code().may_read(file); });
        }
        Kernel& distant_kernel() const {
            if (!kernel || !kernel->alive())
                throw Error(errc::kernel_died, "files lie where the kernel runs, and none is running; call start() or reset()");
            return *kernel;
        }

        awaitable<void> upload(std::string text, std::string bytes, bool overwrite) {
            const auto self = shared_from_this();
            // A file among the interpreter's own would run when it starts.
            if (doors->backend->shares_files()) co_await find_environment();
            auto path = checked_path(text, true);
            if (bytes.size() > max_file)
                throw Error(errc::bad_argument, path.string() + ": " + std::to_string(bytes.size()) + " bytes are more than the " +
                                                    std::to_string(max_file) + " that can be uploaded at once");
            if (doors->backend->shares_files()) {
                const auto root = detail::open_directory(workspace);
                detail::write_beneath(root.get(), path, bytes, overwrite);
            } else {
                co_await distant_kernel().write_file(std::move(path), std::move(bytes), overwrite);
            }
        }

        awaitable<FilePart> download(std::string text, std::uint64_t offset, std::size_t limit) {
            const auto self = shared_from_this();
            auto path = checked_path(text, false);
            limit = std::min(limit, max_file);
            if (!doors->backend->shares_files()) co_return co_await distant_kernel().read_file(std::move(path), offset, limit);
            co_return read_here(path, offset, limit);
        }

        KernelSpec kernel_spec(const Capabilities& able) {
            KernelSpec spec;
            spec.python = environment->executable;
            spec.logger = options.logger;
            spec.init_timeout = options.kernel_init_timeout;
            spec.extensions = {"ipybox_kernel"};
            spec.policy = base_policy();
            spec.policy.readable = environment->readable;
            spec.policy.limits = options.limits;
            set_default_limits(spec.policy.limits, able);
            spec.policy.network.mode = able.network_none ? NetworkPolicy::Mode::none : NetworkPolicy::Mode::full;
            if (able.filesystem) spec.policy.env["HOME"] = "/home/user";  // scratch of the sandbox
            if (able.filesystem || options.sandbox_config) {
                const auto sources = policy_sources();
                if (!options.allow_home) refuse_home(sources);
                code_policy.emplace(sources, std::move(spec.policy));
                knows_interpreter = true;
                spec.policy = code_policy->policy();
                protecting = able.filesystem;
                if (protecting) tell_protection(code_policy->protected_files());
            }
            if (!able.filesystem && options.protect_strict)
                throw Error(errc::sandbox_refused, "sandbox " + options.sandbox +
                                                       " protects no files: use bubblewrap or srt, or leave out protect_strict");
            auto& env = spec.policy.env;
            auto& network = spec.policy.network;
            if (!options.allowed_hosts.empty()) {
                if (!able.network_allow_list)
                    throw Error(errc::sandbox_refused, "sandbox " + options.sandbox +
                                                           " cannot restrict the network to allowed hosts: use bubblewrap or srt");
                network.mode = NetworkPolicy::Mode::allow_list;
                network.allow.insert(network.allow.end(), options.allowed_hosts.begin(), options.allowed_hosts.end());
            }
            if (network.mode == NetworkPolicy::Mode::allow_list)
                spec.channels.push_back(open_proxy(proxy, host.executor, host.logger, spec.policy,
                                                   *doors->sandbox, run_place().path() / "network",
                                                   [this](const Violation& violation) { report(violation); }));
            const auto own = own_channels();
            const Channel &socket = own[0], &library = own[1];
            env["PATH"] = (spec.python.parent_path().string() + ":/usr/local/bin:/usr/bin:/bin");
            env["LANG"] = "C.UTF-8";
            if (network.mode != NetworkPolicy::Mode::none) trust_system_certificates(env);
            for (const auto& [name, value] : options.kernel_env) env[name] = value;
            const std::string library_path = doors->sandbox->guest_address(spec.policy, library);
            const auto own_path = options.kernel_env.find("PYTHONPATH");
            env["PYTHONPATH"] = library_path + ":" + site_directory().string();
            if (own_path != options.kernel_env.end()) env["PYTHONPATH"] += ":" + own_path->second;
            // Where `!pip install` puts packages, because it cannot write where the interpreter lives.
            env.try_emplace("PIP_TARGET", site_directory().string());
            env.try_emplace("PIP_DISABLE_PIP_VERSION_CHECK", "1");
            if (able.filesystem) {
                run_directory->write_library_file("gitignore", git_ignored(spec.policy));
                env.try_emplace("GIT_CONFIG_COUNT", "1");
                env.try_emplace("GIT_CONFIG_KEY_0", "core.excludesFile");
                env.try_emplace("GIT_CONFIG_VALUE_0", library_path + "/gitignore");
            }
            const std::string address = doors->sandbox->guest_address(spec.policy, socket);
            if (!address.starts_with('/')) tools->fit(detail::mux_max_connections);  // a relay carries it
            env["IPYBOX_TOOL_SOCKET"] = address;
            env["IPYBOX_TOOL_TOKEN"] = tools->token();
            if (options.working_dir) env["IPYBOX_WORKING_DIR"] = spec.policy.cwd.string();
            if (options.exact_numbers) env["IPYBOX_EXACT_NUMBERS"] = "1";
            if (options.approve_shell_cmds) env["IPYBOX_SHELL"] = options.require_shell_escape ? "only" : "ask";
            spec.channels.insert(spec.channels.end(), own.begin(), own.end());
            try {
                // Python forgets a directory of its path for good that is not there when it starts.
                make_site_directory();
            } catch (const Error& error) {
                host.logger(LogLevel::warning, "packages cannot be installed: " + error.detail());
            }
            return spec;
        }

        // Where nothing else is asked for; scratch: bytes of scratch space.
        // For a kernel on another machine: nothing of this one is there, and nothing here confines it.
        KernelSpec distant_spec(const Capabilities& able) const {
            const auto refuse = [](const std::string& what) {
                throw Error(errc::sandbox_refused, "the kernel runs on another machine, where " + what +
                                                       " has no effect: confine it there, and leave that out here");
            };
            if (able.filesystem || able.process_isolation || able.network_none)
                refuse("sandbox \"" + options.sandbox + "\" (\"none\" says so)");
            if (options.sandbox_config) refuse("sandbox_config");
            if (!options.allowed_hosts.empty()) refuse("allowed_hosts");
            if (options.protect_strict) refuse("protect_strict");
            const auto& limits = options.limits;
            if (limits.memory_per_process || limits.memory_total || limits.processes || limits.open_files ||
                limits.file_size || limits.cpu_seconds || limits.wall_seconds || limits.scratch_size ||
                limits.scratch_inodes || limits.workspace_size)
                refuse("a limit");
            KernelSpec spec;
            spec.logger = options.logger;
            spec.init_timeout = options.kernel_init_timeout;
            spec.extensions = {"ipybox_kernel"};
            spec.channels = own_channels();
            const auto library = spec.channels[1].host_path;
            auto& env = spec.policy.env = options.kernel_env;
            if (tool_url.empty()) {
                env["IPYBOX_TOOL_SOCKET"] = spec.channels[0].host_path.string();
            } else {
                env["IPYBOX_TOOL_SOCKET"] = tool_url;
                env["IPYBOX_TOOL_CERTIFICATE"] = (library / certificate_name).string();
                spec.channels.erase(spec.channels.begin());
            }
            env["IPYBOX_TOOL_TOKEN"] = tools->token();
            auto& path = env["PYTHONPATH"];
            path = library.string() + (path.empty() ? "" : ":" + path);
            if (options.working_dir) env["IPYBOX_WORKING_DIR"] = options.working_dir->string();
            if (options.exact_numbers) env["IPYBOX_EXACT_NUMBERS"] = "1";
            if (options.approve_shell_cmds) env["IPYBOX_SHELL"] = options.require_shell_escape ? "only" : "ask";
            return spec;
        }

        // The tool server's socket, and the library.
        std::vector<Channel> own_channels() const {
            std::vector<Channel> channels(2);
            channels[0].name = "tools";
            channels[0].host_path = run_directory->path() / "tools";
            channels[0].kind = Channel::Kind::socket;
            channels[1].name = "lib";
            channels[1].host_path = run_directory->path() / "lib";
            return channels;
        }

        // Inside, git would stumble over hidden files, and take in what holds the place of absent ones.
        std::string git_ignored(const SandboxPolicy& policy) const {
            std::string patterns = "/.ipybox\n";
            const std::filesystem::path start = literal_glob(workspace);
            for (std::filesystem::path path : policy.hidden) {
                while (path.filename() == "**") path = path.parent_path();
                if (!detail::within(path, start)) continue;
                const auto pattern = path.lexically_relative(start).string();
                patterns += (pattern.starts_with("**/") ? pattern.substr(3) : '/' + pattern) + '\n';
            }
            const auto present = [](const std::filesystem::path& path) {
                struct stat found {};
                return ::lstat(path.c_str(), &found) == 0 && !detail::is_placeholder(found);
            };
            for (auto path : policy.write_protected) {
                if (!detail::within(path, workspace) || present(path)) continue;
                while (path.parent_path() != workspace && !present(path.parent_path())) path = path.parent_path();
                for (const char c : path.filename().string()) {
                    if (std::string_view("*?[\\!# ").find(c) != std::string_view::npos) patterns += '\\';
                    patterns += c;
                }
                patterns += '\n';
            }
            return patterns;
        }

        // Python's packages bring certificates of their own; this machine may trust others as well.
        static void trust_system_certificates(std::map<std::string, std::string>& env) {
            for (const char* bundle : {"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"}) {
                std::error_code error;
                if (!std::filesystem::exists(bundle, error)) continue;
                for (const char* name : {"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT"}) env.try_emplace(name, bundle);
                return;
            }
        }

        // Packages installed for this workspace.
        std::filesystem::path site_directory() const { return workspace / ".ipybox" / "site-packages"; }

        void make_site_directory() { policy_of_code().open_for_writing(site_directory()); }

        awaitable<std::string> install_package(std::string package, Duration timeout) {
            const auto self = shared_from_this();
            if (!doors->backend->shares_files())
                throw Error(errc::bad_argument, "the kernel runs on another machine: install packages there, for "
                                                "instance by running `%pip install NAME` in it");
            const bool printable = std::all_of(package.begin(), package.end(), [](char c) { return c >= ' ' && c < 127; });
            if (package.empty() || package.front() == '-' || !printable)
                throw Error(errc::bad_argument, "\"" + detail::printable(package) +
                                                    "\" is no package: accepted are a name, a requirement such as "
                                                    "\"requests>=2\", a URL or a git+https:// address");
            co_await find_environment();
            const Capabilities able = co_await capabilities();
            look_at_files();
            make_site_directory();
            SandboxPolicy policy;
            // Code wrote the packages' directory: nothing is found there because pip starts in it.
            policy.cwd = "/";
            if (::geteuid() == 0) policy.user = doors->sandbox->guest_user(base_policy());
            policy.writable = {site_directory()};
            policy.readable = environment->readable;
            policy.env = {{"PATH", "/usr/local/bin:/usr/bin:/bin"}, {"LANG", "C.UTF-8"}, {"HOME", "/home/user"}};
            if (!able.filesystem) policy.env["HOME"] = "/nonexistent";
            trust_system_certificates(policy.env);
            for (const auto& [name, value] : options.kernel_env)
                if (name.starts_with("PIP_")) policy.env[name] = value;
            policy.limits = options.limits;
            // The kernel's holds for the directory as well, while there is one.
            policy.limits.workspace_size.reset();
            set_default_limits(policy.limits, able, std::uint64_t{4} << 30);
            policy.network.mode = NetworkPolicy::Mode::full;
            std::vector<Channel> channels;
            std::unique_ptr<NetworkProxy> own_proxy;
            std::string hint;
            if (able.network_allow_list) {
                hint = unreached_host(package);
                policy.network.mode = NetworkPolicy::Mode::allow_list;
                policy.network.allow = options.package_hosts;
                channels.push_back(open_proxy(own_proxy, host.executor, host.logger, policy, *doors->sandbox,
                                              run_place().path() / "packages"));
            } else if (able.network_none) {
                throw Error(errc::sandbox_refused, "sandbox " + options.sandbox + " cannot reach a package index");
            }
            std::vector<std::string> argv = {environment->executable.string(), "-I", "-m", "pip", "install", "--no-input",
                                             "--disable-pip-version-check", "--no-cache-dir", "--progress-bar=off",
                                             "--upgrade", "--target", site_directory().string(), "--", package};
            const auto process = co_await doors->sandbox->launch(std::move(policy), std::move(argv), std::move(channels),
                                                                 Stdio::tail);
            const auto deadline = deadline_after(timeout);
            const auto status = co_await process->wait(deadline);
            const std::string said = detail::strip(process->output_tail());
            if (!status) throw Error(errc::timed_out, "pip did not end in time: " + said);
            if (said.find("No module named pip") != std::string::npos)
                throw Error(errc::missing_dependency, environment->executable.string() +
                                                          " has no pip; install it with `python -m ensurepip`");
            if (status->code != 0) throw Error(errc::code_failed, "pip could not install " + package + ":\n" + said + hint);
            co_return said;
        }

        // What to do about a package from a host that its sandbox does not reach; empty for others.
        std::string unreached_host(std::string_view package) const {
            const auto scheme = package.find("://");
            if (scheme == package.npos) return {};
            auto place = package.substr(scheme + 3);
            place = place.substr(0, place.find_first_of("/?#"));
            place = place.substr(place.rfind('@') + 1);
            const auto name = detail::canonical_host(detail::split_port(place).first);
            if (!name) return {};
            std::string reached;
            for (const auto& each : options.package_hosts) {
                const auto rule = detail::parse_domain_rule(each, detail::RuleList::allow);
                if (rule && rule->matches(*name, rule->port.value_or(0))) return {};
                reached += (reached.empty() ? "" : ", ") + each;
            }
            return "\n[Its sandbox reaches only " + reached + "; --package-host " + *name +
                   " (package_hosts) opens that host, and has to name those of other packages as well.]";
        }

        awaitable<void> stop() {
            auto self = shared_from_this();
            if (run) run->request_stop(Status::cancelled);
            while (run) co_await idle.wait();
            tools->end_execution();
            if (auto old = std::move(kernel)) co_await old->shutdown();
            look_at_files();
            file_watch.reset();
            co_await tools->reset();
        }

        // Without waiting: kills, and withdraws what is pending.
        void abandon() {
            abandoned = true;
            if (run) {
                run->abandoned = true;
                run->request_stop(Status::cancelled);
            } else {
                kernel.reset();
                look_at_files();
                file_watch.reset();
            }
            tools->end_execution();
        }

        // A host.ask of a policy: an event of the running execution.
        static awaitable<Decision> ask(std::weak_ptr<Session> weak, ToolCall call) {
            auto self = weak.lock();
            auto current = self ? self->run : nullptr;
            const bool running = current && !current->finished;
            const bool others = self && !self->options.approvers.empty();
            if (!running && !others) co_return Decision(Verdict::deny, "no execution is there to ask for");
            if (running && current->auto_approve) {
                Decision yes(Verdict::allow);
                yes.by = "execute()";
                co_return yes;
            }
            struct Waiting {
                std::shared_ptr<Run> run;
                ~Waiting() {
                    if (!run) return;
                    if (--run->approvals == 0) run->approvals_waited += Clock::now() - run->approvals_since;
                    run->changed.notify();
                }
            };
            if (current && current->approvals++ == 0) current->approvals_since = Clock::now();
            const Waiting waiting{current};
            if (others) co_return co_await first_answer(self->options.approvers, std::move(call));
            auto state = std::make_shared<ApprovalRequest::State>(self->host.executor, std::move(call));
            const ApprovalRequest::Withdrawal withdrawal{state};
            current->push(ApprovalRequest(state));
            while (!state->decision) co_await state->changed.wait();
            co_return *state->decision;
        }

        awaitable<std::shared_ptr<Run>> begin(std::shared_ptr<Session> self, std::string code, Duration timeout,
                                              bool chunks, bool auto_approve) {
            while (run && run->abandoned) co_await idle.wait();
            if (!run) co_await deliver_apis();
            if (run) throw Error(errc::busy, "an execution is running; wait for its result or cancel it");
            if (!kernel) throw Error(errc::kernel_died, "no kernel is running; call start() or reset()");
            if (!kernel->alive()) throw Error(errc::kernel_died, "the kernel has ended; reset() starts a new one");
            // The pump may end before co_spawn() returns, and with it this->run.
            if (options.audit) audit_execution(*options.audit, options.session, tools->execution(), code);
            const auto fresh = std::make_shared<Run>(host.executor);
            fresh->timeout = timeout;
            fresh->chunks = chunks;
            fresh->auto_approve = auto_approve;
            fresh->violations = std::exchange(waiting_violations, {});
            run = fresh;
            tools->begin_execution();
            asio::co_spawn(host.executor, pump(self, fresh, std::move(code)), asio::detached);
            asio::co_spawn(host.executor, watch(self, fresh), asio::detached);
            co_return fresh;
        }

        // Moves output from the kernel to the consumer until the cell is done.
        static awaitable<void> pump(std::shared_ptr<Session> self, std::shared_ptr<Run> current, std::string code) {
            CodeExecutionResult result;
            Output output{*self, *current, result, {}, 0};
            Kernel& kernel = *self->kernel;  // watch() keeps it alive until this run is finished
            try {
                ExecuteRequest request;
                request.code = std::move(code);
                co_await kernel.execute(std::move(request));
                auto breath = Clock::now();
                for (bool done = false; !done;) {
                    while (current->backlog()) co_await current->changed.wait();
                    // A flood of output leaves no gap for anybody else, not even for the deadline.
                    if (const auto now = Clock::now(); now > breath) {
                        co_await asio::post(asio::use_awaitable);
                        breath = now + std::chrono::milliseconds(5);
                    }
                    auto item = co_await kernel.next(never);
                    if (item) done = output.take(std::move(*item));
                }
            } catch (const Error& error) {
                result.status = Status::kernel_lost;
                result.error = error.detail();
            } catch (const std::exception& error) {
                result.status = Status::kernel_lost;
                result.error = std::string("the connection to the kernel failed: ") + error.what();
            }
            if (current->stop) {
                result.status = *current->stop;
                result.error = current->stop_reason;
                if (current->kernel_lost)
                    result.error += "; the code did not react to the interrupt, so the kernel was killed and its state "
                                    "is lost: reset() starts a new one";
            }
            if (auto text = detail::strip(std::move(output.text)); !text.empty()) result.text = std::move(text);
            self->report_new(kernel);
            if (self->file_watch) self->tell_changes(self->file_watch->poll());
            result.violations = std::move(current->violations);
            if (self->options.audit) self->record_end(*current, result);
            self->tools->end_execution();
            current->finished = true;
            current->push(std::move(result));
            self->run = nullptr;
            self->renew_apis();
            self->idle.notify();
            if (!self->abandoned) co_return;
            self->kernel.reset();
            self->look_at_files();
            self->file_watch.reset();
        }

        void record_end(const Run& current, const CodeExecutionResult& result) {
            static constexpr const char* words[] = {"ok", "error", "timed_out", "cancelled", "kernel_lost", "output_limit"};
            try {
                audit_execution_end(*options.audit, options.session, tools->execution(), words[static_cast<int>(result.status)],
                                    Clock::now() - current.started);
            } catch (const Error& error) {  // the log keeps it, and refuses the next execution
                host.logger(LogLevel::warning, error.detail());
            }
        }

        // Interrupts at the deadline or on request, kills what does not react.
        static awaitable<void> watch(std::shared_ptr<Session> self, std::shared_ptr<Run> current) {
            while (!current->finished && !current->stop) {
                const auto deadline = self->deadline(*current);
                if (Clock::now() >= deadline) {
                    current->stop = Status::timed_out;
                } else {
                    co_await current->changed.wait(deadline);
                }
            }
            if (current->finished) co_return;
            if (*current->stop == Status::timed_out) {
                char seconds[32];
                std::snprintf(seconds, sizeof seconds, "%.2fs", std::chrono::duration<double>(current->timeout).count());
                current->stop_reason = std::string("execution timed out after ") + seconds;
            } else if (*current->stop == Status::cancelled) {
                current->stop_reason = "the execution was cancelled";
            }
            current->changed.notify();  // the pump no longer waits for the consumer
            for (int attempt = 0; attempt < 2 && !current->finished; ++attempt) {
                try {
                    co_await self->kernel->interrupt();
                } catch (const std::exception& error) {
                    self->host.logger(LogLevel::warning, std::string("interrupt: ") + error.what());
                }
                self->tools->end_execution();
                const auto patience = Clock::now() + self->options.interrupt_grace / 2;
                while (!current->finished && Clock::now() < patience) co_await current->changed.wait(patience);
            }
            if (current->finished) co_return;
            current->kernel_lost = true;
            const auto lost = std::move(self->kernel);
            co_await lost->shutdown();
            while (!current->finished) co_await current->changed.wait();
        }

        Clock::time_point deadline(const Run& current) const {
            if (current.timeout <= Duration::zero()) return never;
            auto end = current.started + current.timeout;
            if (options.timeout_excludes_approval) {
                end += current.approvals_waited;
                if (current.approvals > 0) return never;  // looked at again when the answer is there
            }
            return end;
        }

        // Collects what the kernel sends into chunks and a result.
        struct Output {
            Session& session;
            Run& run;
            CodeExecutionResult& result;
            std::string text;
            std::uint64_t size;

            // True when the cell is done.
            bool take(KernelOutput item) {
                if (auto* stream = std::get_if<Stream>(&item)) {
                    add_text(std::move(stream->text), stream->is_stderr);
                } else if (auto* display = std::get_if<Display>(&item)) {
                    add_display(std::move(*display));
                } else if (auto* error = std::get_if<PythonError>(&item)) {
                    result.status = Status::error;
                    TracebackFilter filter;
                    result.error = error->traceback.empty() ? error->name + ": " + error->value : filter(error->traceback);
                    result.error += note_on_limits(*error, session.kernel_limits);
                } else if (const auto* done = std::get_if<Done>(&item)) {
                    if (!done->ok && result.status == Status::ok) {
                        result.status = Status::error;
                        result.error = "the kernel did not run the code to its end";
                    }
                    return true;
                }
                return false;
            }

            using TracebackFilter = detail::TerminalFilter;

            // From inside, a limit is an error like any other; empty when it does not look like one.
            static std::string note_on_limits(const PythonError& error, const Limits& limits) {
                const auto says = [&error](const char* words) { return error.value.find(words) != std::string::npos; };
                const char* name = nullptr;
                if (limits.memory_per_process && error.name == "MemoryError") name = "memory";
                if (limits.processes && (says("[Errno 11]") || says("can't start new thread"))) name = "processes";
                if (limits.open_files && says("[Errno 24]")) name = "open-files";
                if (limits.file_size && says("[Errno 27]")) name = "file-size";
                if ((limits.scratch_size || limits.scratch_inodes) && says("[Errno 28]"))
                    name = "scratch or scratch-inodes of /tmp, /dev/shm and the home directory";
                return name ? std::string("\n[ipybox] this may be the sandbox's limit ") + name : std::string();
            }

            bool fits(std::size_t more) {
                if (size + more <= session.options.max_output) {
                    size += more;
                    return true;
                }
                if (!run.stop) {
                    run.stop_reason = "the output exceeded the limit of " + std::to_string(session.options.max_output) +
                                      " bytes; what came before it is in the result. Print less, write to a file, or "
                                      "raise max_output";
                    run.request_stop(Status::output_limit);
                }
                return false;
            }

            void add_text(std::string piece, bool is_stderr) {
                if (piece.empty() || (run.stop && *run.stop == Status::output_limit) || !fits(piece.size())) return;
                text += piece;
                if (!run.chunks || run.abandoned) return;
                CodeExecutionChunk chunk;
                chunk.text = std::move(piece);
                chunk.is_stderr = is_stderr;
                run.push(std::move(chunk));
            }

            void add_display(Display display) {
                if (!fits(detail::memory_size(display.data))) return;
                bool is_image = false;
                static constexpr std::pair<const char*, const char*> kinds[] = {
                    {"image/png", ".png"}, {"image/jpeg", ".jpg"}, {"image/gif", ".gif"},
                    {"image/webp", ".webp"}, {"image/svg+xml", ".svg"}};
                for (const auto& [mime, extension] : kinds) {
                    const auto* value = display.data.if_contains(mime);
                    if (is_image || !value || !value->is_string()) continue;
                    const std::string_view encoded = value->get_string();
                    const bool as_text = std::string_view(extension) == ".svg";
                    const auto image = as_text ? std::optional<std::string>(encoded) : detail::decode_base64(encoded);
                    if (!image) continue;
                    is_image = true;
                    save_image(*image, extension);
                }
                if (const auto* plain = display.data.if_contains("text/plain"); plain && plain->is_string() && !is_image)
                    add_text(std::string(plain->get_string()) + "\n", false);
                result.displays.push_back(std::move(display.data));
            }

            void save_image(const std::string& bytes, const char* extension) {
                try {
                    const auto wanted = session.workspace / session.options.images_dir;
                    const std::string name = detail::random_hex(4) + extension;
                    const auto directory = session.policy_of_code().open_for_writing(wanted, name);
                    detail::write_new_file(directory.get(), name, bytes);
                    result.images.push_back(wanted / name);
                } catch (const std::exception& error) {
                    add_text(std::string("[ipybox] an image could not be saved: ") + error.what() + "\n", true);
                }
            }
        };

        PluginRegistry& registry;
        CodeExecutorOptions options;
        std::shared_ptr<Doors> doors;
        Host& host;
        Event idle;  // an execution ended
        std::filesystem::path workspace;
        std::vector<std::filesystem::path> opened;  // options.allow_write, absolute
        bool protecting = false;                    // the sandbox keeps files from being written
        std::unique_ptr<detail::FileWatch> file_watch;
        std::set<std::string> told_files;
        std::vector<Violation> waiting_violations;
        static constexpr const char* files_layer = "files";
        std::unique_ptr<detail::RunDirectory> run_directory;
        bool listening = false;
        std::string tool_url;  // of a tool server that listens over TLS
        static constexpr const char* certificate_name = "tool-server.pem";
        unsigned server_sandboxes = 0;
        std::unique_ptr<NetworkProxy> proxy;  // the kernel's way out, when it has one
        std::optional<PythonEnvironment> environment;
        std::optional<KernelPolicy> code_policy;
        bool knows_interpreter = false;  // code_policy does
        std::unique_ptr<ToolServer> tools;
        std::map<std::string, std::filesystem::path> generated;  // root_dir of each server's API
        std::set<std::string> outdated;                          // of these, those to be written anew
        bool library_changed = false;                            // since a distant kernel got it
        std::unique_ptr<Kernel> kernel;
        Limits kernel_limits;                                    // what it was given
        std::map<std::string, std::uint64_t> seen;               // its violations: how many of each layer
        std::shared_ptr<Run> run;
        bool told_unprotected = false;
        bool told_unrecorded = false;
        bool abandoned = false;
    };

    std::shared_ptr<Session> session_;
};

}  // namespace ipybox
