#pragma once
#include <ipybox/executor/code_executor.hpp>

#include <cctype>
#include <deque>
#include <ipybox/compilation.hpp>
#include <ipybox/detail/beneath.hpp>
#include <ipybox/detail/kernel_package.hpp>
#include <ipybox/executor/code_checker.hpp>
#include <ipybox/remote_kernel.hpp>
#include <ipybox/sandbox_kit/file_watch.hpp>
#include <ipybox/sandbox_kit/network_proxy.hpp>
#include <ipybox/sandbox_kit/workspace_snapshot.hpp>
#include <set>

namespace ipybox {

struct CodeExecutor::Run : std::enable_shared_from_this<CodeExecutor::Run> {
    explicit Run(const asio::any_io_executor& executor);
    const std::string id = detail::random_hex(8);
    void push(ExecutionEvent event);
    void request_stop(Status why);
    bool backlog() const { return !stop && !abandoned && queued > queue_limit; }
    // Bytes that an event takes while it waits.
    static std::size_t weight(const ExecutionEvent& event);

    std::deque<ExecutionEvent> events;
    std::size_t queued = 0;
    Event changed;
    std::optional<Status> stop;  // why it is being interrupted
    std::string stop_reason;
    std::vector<Violation> violations;
    bool kernel_lost = false;  // it did not react, and was killed
    bool ended = false;        // the cell has, its result is being made
    bool finished = false;
    bool abandoned = false;
    ExecutionOptions how;
    // Who is asked what the policy asks, when there are no approvers. host: nobody, because the
    // code is the host's own; it may make no calls, and no record is made of it.
    enum class Asked { reader, nobody, all_allowed, host };
    Asked asked = Asked::reader;
    bool opened = false;  // calls are accepted, the audit log knows of it
    Clock::time_point started = Clock::now();
    std::optional<OpenSpan> span;                 // when somebody wants to know
    std::shared_ptr<InputRequest::Shared> input;  // that of the code waits for an answer
    int approvals = 0;                            // waiting now
    Clock::time_point approvals_since{};
    Duration approvals_waited{};
};

// Owned by the executor and by its coroutines, so that none outlives what it uses.
struct CodeExecutor::Session : std::enable_shared_from_this<Session> {
    Session(asio::any_io_executor executor, PluginRegistry& r, CodeExecutorOptions o);
    struct Output;

    void prepare(const std::weak_ptr<Session>& self);

    // What runs on the host at the next start, where it lies in the workspace.
    void keep_program();

    void make_tool_server();

    // The kernel sees what others have changed in its workspace: before a cell, after a tool call.
    static awaitable<void> refresh_view(std::weak_ptr<Session> weak);

    ApiStyle api_style() const { return options.async_api ? ApiStyle::async : ApiStyle::blocking; }

    // Writes the API of a registered server, and returns the names of its modules in the server's
    // order.
    awaitable<std::vector<std::string>> make_api(std::string name, std::filesystem::path root_dir);
    // Returns false when the files were as they should be.
    bool write_api(const std::string& name, const std::filesystem::path& root_dir,
                   const GeneratedPackage& package);

    // To a kernel that cannot read them here; one that starts later gets them at its start.
    awaitable<void> deliver_apis();

    // Writes the APIs of servers whose tools changed. Not while code runs: it could import
    // half of the old package and half of the new one.
    void renew_apis();

    awaitable<void> start();
    // Of the kernel that has just started, if that was asked for. Throws Error: sandbox_refused,
    // and the kernel is gone.
    void require_last_program();
    // "auto": that of fork, or of zmq where there is none, and says why.
    std::unique_ptr<KernelBackend> make_backend();
    // Kernels of fork are CPython's: "auto" takes zmq for another interpreter. Throws Error:
    // missing_dependency (fork was asked for, and there is another).
    void fit_backend();

    // See ServerPlace: a server may start before the first kernel does.
    static awaitable<bool> record_places(std::weak_ptr<Session> weak);

    // Code that nothing confines could have changed whatever its user can: nothing is worth
    // judging.
    bool unconfined() const { return options.sandbox == "none"; }

    void report(const Violation& violation);

    // Asks the kernel's process, if it is here, what it ran into since the last time.
    void report_new(const Kernel& from);

    // The paths of allow_write, absolute. Throws Error: bad_argument.
    void check_allow_write();

    sandbox_kit::ProtectionRules protection() const;

    // Says and records what is not protected, once the kernel is about to start.
    void tell_protection(const sandbox_kit::ProtectedFiles& found);

    void record_files(json::object record);

    void tell_files(const std::string& what, bool first);

    // Told in the log the first time, each time in the result and in the audit log.
    void tell_changes(const std::vector<sandbox_kit::FileChange>& changes);

    // From now on, what code does to files that the host runs or obeys is told.
    void watch_files(const SandboxPolicy& policy);

    // Looks for changes everywhere, not only where poll() does: not while an answer waits.
    void look_at_files();

    executor::RunDirectory& run_place();

    awaitable<void> find_environment();

    awaitable<Capabilities> capabilities();

    SandboxPolicy base_policy() const;

    // Before the interpreter was asked, all that is known is where it lies.
    PolicySources policy_sources() const;

    // That of the kernel, or of the one that would start now. Made at each start only: the
    // walk through the workspace takes its time, and what the code made since is its own.
    const KernelPolicy& policy_of_code();

    // Whether code in a sandbox could not read the file or, to_write, change it: whoever carries
    // files for it must not either. relative: to the workspace, without "..".
    bool is_guarded(const std::filesystem::path& relative, bool to_write);

    std::filesystem::path checked_path(const std::string& text, bool to_write);
    FilePart read_here(const std::filesystem::path& path, std::uint64_t offset, std::size_t limit);
    // The only two places that ask what kind these are. Null: kernels share this machine's files.
    RemoteBackend* remote_backend() const;
    // Null: there is no kernel, or it is none of a server's.
    RemoteKernel* remote_kernel() const;
    bool shares_files() const { return remote_backend() == nullptr; }
    // Throws Error: kernel_died.
    RemoteKernel& distant_kernel() const;

    awaitable<void> upload(std::string text, std::string bytes, bool overwrite);

    awaitable<FilePart> download(std::string text, std::uint64_t offset, std::size_t limit);

    std::shared_ptr<const std::function<void(UniqueFd)>> hears_questions();
    KernelSpec kernel_spec(const Capabilities& able);

    // Where nothing else is asked for; scratch: bytes of scratch space.
    // For a kernel on another machine: nothing of this one is there, and nothing here confines it.
    KernelSpec distant_spec(const Capabilities& able) const;

    // The tool server's socket, and the library.
    std::vector<Channel> own_channels() const;

    // Inside, git would stumble over hidden files, and take in what holds the place of absent ones.
    std::string git_ignored(const SandboxPolicy& policy) const;

    // Python's packages bring certificates of their own; this machine may trust others as well.
    static void trust_system_certificates(std::map<std::string, std::string>& env);

    // Packages installed for this workspace.
    std::filesystem::path site_directory() const { return workspace / ".ipybox" / "site-packages"; }

    void make_site_directory() { policy_of_code().open_for_writing(site_directory()); }

    awaitable<std::string> install_package(std::string package, Duration timeout);

    // What to do about a package from a host that its sandbox does not reach; empty for others.
    std::string unreached_host(std::string_view package) const;

    // for_good: no start() follows at once.
    awaitable<void> stop(bool for_good);

    // Without waiting: kills, and withdraws what is pending.
    void abandon();

    // A host.ask of a policy: an event of the running execution.
    static awaitable<Decision> ask(std::weak_ptr<Session> weak, ToolCall call);

    awaitable<std::shared_ptr<Run>> begin(std::shared_ptr<Session> self, std::string code,
                                          ExecutionOptions how, Run::Asked asked);
    static awaitable<CodeExecutionResult> run_to_end(std::shared_ptr<Session> self,
                                                     std::string code, ExecutionOptions how,
                                                     Run::Asked asked);

    // What tell(`arguments`) of ipybox_kernel's `module` answers between two executions. Throws
    // what CodeExecutor::variables() throws. what: named by the error.
    static awaitable<json::object> told(std::shared_ptr<Session> self, std::string module,
                                        std::string arguments, std::string what, Duration limit);
    static awaitable<std::vector<CodeVariable>> variables(std::shared_ptr<Session> self);
    static awaitable<CodeCompletions> complete(std::shared_ptr<Session> self, std::string code);
    // What of the kernel's answer is of the form that ipybox_kernel/completion.py writes, and goes
    // on with what ends `code`.
    static CodeCompletions completions_in(const json::object& answer, std::string_view code);
    // What of the kernel's answer is of the form that ipybox_kernel/variables.py writes.
    static std::vector<CodeVariable> variables_in(const json::object& answer);

    // Records the execution, and lets its calls through. Throws Error: io_error.
    void open_execution(Run& current, const std::string& code);

    // Moves output from the kernel to the consumer until the cell is done.
    static awaitable<void> pump(std::shared_ptr<Session> self, std::shared_ptr<Run> current,
                                std::string code);

    // Of an execution that was opened.
    template <class Tell>
    void tell_watcher(const Run& current, Tell tell) {
        if (current.opened) ipybox::tell_watcher(options.watcher, host.logger, std::move(tell));
    }
    // How an execution ended, as spans and the audit log say it.
    static std::string_view outcome_of(Status status);
    void record_end(const Run& current, const CodeExecutionResult& result);

    void set_policy(PolicyPtr policy, std::optional<json::value> config);

    // Puts the code's question before the reader of events, or refuses it.
    void ask_input(const std::shared_ptr<Run>& current, InputWanted wanted);
    // Nobody needs an answer any more.
    static void withdraw_input(Run& current);

    // ---- checks before a cell runs ----

    // Throws Error: missing_dependency, denied, sandbox_refused.
    awaitable<void> make_checker();

    // The name that code imports a server's package by; empty where it cannot.
    std::string package_of(const std::string& server) const;

    // Tells the checker of APIs that were written since the last time.
    void renew_stubs();

    bool has_own_code(const std::string& package, const std::string& module,
                      const std::string& name) const;

    // What the kernel says of its names. What else it prints is the cell's.
    static awaitable<KnownNames> known_names(std::shared_ptr<Session> self, Output& output);

    // Opens the execution; false when the cell must not run: the result says why.
    static awaitable<bool> passes_check(std::shared_ptr<Session> self, Output& output,
                                        std::string code);

    // The workspace as it is now; null where the kernel does not share it.
    static awaitable<std::unique_ptr<sandbox_kit::WorkspaceSnapshot>> look_at_workspace(
        std::shared_ptr<Session> self);
    // before: what look_at_workspace() returned before the cell.
    static awaitable<void> measure(std::shared_ptr<Session> self, CodeExecutionResult& result,
                                   const Kernel& from,
                                   std::unique_ptr<sandbox_kit::WorkspaceSnapshot> before);

    // Interrupts at the deadline or on request, kills what does not react.
    static awaitable<void> watch(std::shared_ptr<Session> self, std::shared_ptr<Run> current);

    Clock::time_point deadline(const Run& current) const;

    // Collects what the kernel sends into chunks and a result.
    struct Output {
        Session& session;
        Run& run;
        CodeExecutionResult& result;
        std::string text;
        std::uint64_t size;
        // Where in result.displays the newest with a display_id is.
        std::map<std::string, std::size_t> shown;
        static constexpr std::size_t max_shown = 1000;

        // True when the cell is done.
        bool take(KernelOutput item);

        using TracebackFilter = detail::TerminalFilter;

        // From inside, a limit is an error like any other; empty when it does not look like one.
        static std::string note_on_limits(const PythonError& error, const Limits& limits);

        bool fits(std::size_t more);
        std::uint64_t limit() const;

        using Source = detail::TextSource;
        void add_text(std::string piece, Source source);

        void add_display(Display display);
        // Puts it in the result, in the place of what it updates.
        void keep(Display display);

        void add_error(const PythonError& error);

        // Of the host's own code; keeps what is not meant for it for the next execution.
        bool take_answer(KernelOutput item);

        void save_image(const std::string& bytes, const char* extension);
    };

    PluginRegistry& registry;
    CodeExecutorOptions options;
    std::shared_ptr<Doors> doors;
    Host& host;
    Event idle;           // an execution ended
    SpanTellerPtr spans;  // null: nobody wants to know
    std::unique_ptr<Sandbox> checker_sandbox;
    std::unique_ptr<CodeChecker> checker;  // once there was something to check
    std::set<std::string> unchecked;       // servers whose stubs the checker does not have
    std::filesystem::path workspace;
    std::vector<std::filesystem::path> opened;  // options.allow_write, absolute
    bool protecting = false;                    // the sandbox keeps files from being written
    std::unique_ptr<sandbox_kit::FileWatch> file_watch;
    std::set<std::string> told_files;
    std::vector<Violation> waiting_violations;
    static constexpr const char* files_layer = "files";
    std::unique_ptr<executor::RunDirectory> run_directory;
    bool listening = false;
    std::string tool_url;  // of a tool server that listens over TLS
    static constexpr const char* certificate_name = "tool-server.pem";
    unsigned server_sandboxes = 0;
    std::unique_ptr<NetworkProxy> proxy;  // the kernel's way out, when it has one
    std::optional<PythonEnvironment> environment;
    std::optional<KernelPolicy> code_policy;
    // Programs::ask: where a sandbox brings its questions.
    std::shared_ptr<const std::function<void(UniqueFd)>> on_questions;
    bool knows_interpreter = false;  // code_policy does
    std::unique_ptr<ToolServer> tools;
    std::map<std::string, std::filesystem::path> generated;  // root_dir of each server's API
    std::set<std::string> outdated;                          // of these, those to be written again
    bool library_changed = false;                            // since a distant kernel got it
    bool started = false;                                    // at least once
    std::unique_ptr<Kernel> kernel;
    Limits kernel_limits;                       // what it was given
    std::map<std::string, std::uint64_t> seen;  // its violations: how many of each layer
    std::shared_ptr<Run> run;
    // What the kernel sent besides its answer to the host's own code: the next execution's.
    std::deque<KernelOutput> unclaimed;
    std::uint64_t unclaimed_size = 0;
    static constexpr std::uint64_t max_answer = 8u << 20;  // bytes of an answer and of these
    static constexpr const char* answer_type = "application/vnd.ipybox.answer+json";
    bool told_unprotected = false;
    bool left_fork = false;  // see fit_backend()
    bool told_unrecorded = false;
    bool abandoned = false;
};

}  // namespace ipybox
