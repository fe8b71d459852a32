#pragma once
// CodeExecutor for programs without coroutines: it runs its own thread, the caller waits.
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_future.hpp>
#include <functional>
#include <future>
#include <ipybox/executor/code_executor.hpp>
#include <memory>
#include <thread>
#include <utility>

namespace ipybox {

// Methods block, throw what CodeExecutor's do, and may be called from one thread at a time;
// cancel() from any. Construction starts nothing: call start(). Destruction does what stop() does,
// and waits for it.
class BlockingCodeExecutor {
public:
    // Receives every event of an execution on the calling thread. Answer an ApprovalRequest
    // before returning or later, from any thread.
    using EventHandler = std::function<void(ExecutionEvent&)>;

    // With the plugins that PluginRegistry::standard() finds. Throws what CodeExecutor's
    // constructor does.
    explicit BlockingCodeExecutor(CodeExecutorOptions options)
        : BlockingCodeExecutor(PluginRegistry::standard(), std::move(options)) {}
    // With the plugins of the caller's registry.
    BlockingCodeExecutor(PluginRegistry registry, CodeExecutorOptions options)
        : registry_(std::move(registry)), work_(asio::make_work_guard(context_)) {
        executor_ =
            std::make_unique<CodeExecutor>(context_.get_executor(), registry_, std::move(options));
        thread_ = std::thread([this] { context_.run(); });
    }
    ~BlockingCodeExecutor() {
        try {
            stop();
        } catch (const std::exception&) {
            // Destruction kills what stop() could not end.
        }
        work_.reset();
        context_.stop();
        thread_.join();
    }

    // Starts the kernel.
    void start() { wait(executor_->start()); }
    // Ends the kernel and the MCP servers.
    void stop() { wait(executor_->stop()); }
    // A new kernel; the state of the old one is lost.
    void reset() { wait(executor_->reset()); }

    // Runs code to its end. What the policy asks is asked of options.approvers; without any it is
    // denied.
    CodeExecutionResult execute(std::string code, Duration timeout = std::chrono::seconds(120),
                                bool check = false) {
        return wait(executor_->execute(std::move(code), timeout, check));
    }
    // The same with all options.
    CodeExecutionResult execute(std::string code, ExecutionOptions how) {
        return wait(executor_->execute(std::move(code), how));
    }
    // The same, with everything allowed that the policy asks. Its denials stand.
    CodeExecutionResult execute_approved(std::string code,
                                         Duration timeout = std::chrono::seconds(120),
                                         bool check = false) {
        return wait(executor_->execute_approved(std::move(code), timeout, check));
    }

    // The same with all options.
    CodeExecutionResult execute_approved(std::string code, ExecutionOptions how) {
        return wait(executor_->execute_approved(std::move(code), how));
    }

    // Runs code, passing requests and chunks to on_event; returns the result. text: whether it has
    // again what the chunks had.
    CodeExecutionResult stream(std::string code, const EventHandler& on_event,
                               Duration timeout = std::chrono::seconds(120),
                               ResultText text = ResultText::whole, bool check = false) {
        ExecutionOptions how;
        how.timeout = timeout;
        how.chunks = true;
        how.text = text;
        how.check = check;
        return stream(std::move(code), on_event, how);
    }
    // The same with the events that `how` asks for.
    CodeExecutionResult stream(std::string code, const EventHandler& on_event,
                               ExecutionOptions how) {
        auto execution = wait(begin(std::move(code), how));
        for (;;) {
            auto event = wait(execution->next());
            if (!event) throw Error(errc::cancelled, "the execution ended without a result");
            if (auto* result = std::get_if<CodeExecutionResult>(&*event)) {
                CodeExecutionResult last = std::move(*result);
                wait(release(std::move(execution)));
                return last;
            }
            on_event(*event);
        }
    }

    // Interrupts the running execution, if any; its result says cancelled.
    void cancel() {
        asio::post(context_, [this] { executor_->cancel(); });
    }

    // The variables of the code that ran so far; see CodeExecutor.
    std::vector<CodeVariable> variables() { return wait(executor_->variables()); }
    // How `code` can go on; see CodeExecutor.
    CodeCompletions complete(std::string code) {
        return wait(executor_->complete(std::move(code)));
    }

    // Makes an MCP server callable by name. Throws Error: bad_config (params of a wrong form).
    void register_server(const std::string& name, const json::object& params) {
        there([&] { executor_->register_server(name, params); });
    }
    // Stops an MCP server and forgets it.
    void unregister_server(const std::string& name) { wait(executor_->unregister_server(name)); }
    // The registered servers, by their names.
    std::vector<ServerInfo> servers() {
        return there([&] { return executor_->servers(); });
    }
    // The tools of a registered server; starts it.
    std::vector<ToolInfo> list_tools(const std::string& name) {
        return wait(executor_->list_tools(name));
    }
    // Another policy for the calls that are made from now on.
    void set_policy(const json::value& approval, const std::string& approval_name = "approval") {
        there([&] { executor_->set_policy(approval, approval_name); });
    }
    // The same with one that the application made.
    void set_policy(PolicyPtr policy) {
        there([&] { executor_->set_policy(std::move(policy)); });
    }
    // Registers an MCP server, starts it, and writes its Python API to root_dir/<name>; see
    // CodeExecutor. Returns the names of the tools' modules.
    std::vector<std::string> add_server(const std::string& name, const json::object& params,
                                        const std::filesystem::path& root_dir = "mcptools") {
        return wait(executor_->add_server(name, params, root_dir));
    }
    // The same by the original's name for it.
    std::vector<std::string> generate_mcp_sources(
        const std::string& name, const json::object& params,
        const std::filesystem::path& root_dir = "mcptools") {
        return wait(executor_->generate_mcp_sources(name, params, root_dir));
    }

    // Of the thread on which the work is done: for an McpServer whose tools it shall get.
    asio::any_io_executor get_executor() { return context_.get_executor(); }
    // Tools of the application; see CodeExecutor. Their handlers are called on that thread. The
    // server must not outlive this object.
    std::vector<std::string> add_tools(const std::string& name, McpServer& server,
                                       const std::filesystem::path& root_dir = "mcptools") {
        return wait(executor_->add_tools(name, server, root_dir));
    }

    // What is said of the tools that code can call; see CodeExecutor.
    std::string search_tools(std::string_view query, std::size_t limit = 5,
                             bool everything = false) {
        return there([&] { return executor_->search_tools(query, limit, everything); });
    }
    // How a tool is called.
    std::string describe_tool(std::string_view name) {
        return there([&] { return executor_->describe_tool(name); });
    }
    // All tools of a server, a line each.
    std::string list_stubs(std::string_view server) {
        return there([&] { return executor_->list_stubs(server); });
    }

    // Installs a Python package for the kernel; see CodeExecutor. Returns what pip said at its end.
    std::string install_package(std::string package, Duration timeout = std::chrono::minutes(5)) {
        return wait(executor_->install_package(std::move(package), timeout));
    }
    // Writes a file for the code; see CodeExecutor.
    void upload(std::string path, std::string bytes, bool overwrite = true) {
        wait(executor_->upload(std::move(path), std::move(bytes), overwrite));
    }
    // A part of such a file, wherever the kernel runs.
    FilePart download(std::string path, std::uint64_t offset = 0,
                      std::size_t limit = CodeExecutor::max_file) {
        return wait(executor_->download(std::move(path), offset, limit));
    }
    // The same of a file on this machine.
    FilePart read_here(const std::string& path, std::uint64_t offset = 0,
                       std::size_t limit = CodeExecutor::max_file) {
        return there([&] { return executor_->read_here(path, offset, limit); });
    }

    // Whether the kernel works with the files of this machine, below workspace().
    bool shares_files() {
        return there([&] { return executor_->shares_files(); });
    }
    // The workspace as an absolute path without links; it never changes.
    const std::filesystem::path& workspace() const noexcept { return executor_->workspace(); }
    // Whether there is a kernel that can run code.
    bool kernel_alive() {
        return there([&] { return executor_->kernel_alive(); });
    }
    // What the kernel's backend calls it; may be empty.
    std::string kernel_id() {
        return there([&] { return executor_->kernel_id(); });
    }

private:
    using ExecutionPtr = std::shared_ptr<CodeExecutor::Execution>;

    template <class T>
    T wait(awaitable<T> work) {
        return asio::co_spawn(context_, std::move(work), asio::use_future).get();
    }
    // Calls `work` on the executor's thread.
    template <class Function>
    auto there(Function work) -> decltype(work()) {
        // Held by both: the one who waits may go while the other one still returns.
        auto task = std::make_shared<std::packaged_task<decltype(work())()>>(std::move(work));
        auto done = task->get_future();
        asio::post(context_, [task] { (*task)(); });
        return done.get();
    }
    awaitable<ExecutionPtr> begin(std::string code, ExecutionOptions how) {
        auto execution = co_await executor_->stream(std::move(code), how);
        co_return std::make_shared<CodeExecutor::Execution>(std::move(execution));
    }
    // An Execution belongs to the executor's thread, its end too.
    awaitable<void> release(ExecutionPtr) { co_return; }

    PluginRegistry registry_;
    asio::io_context context_{1};
    asio::executor_work_guard<asio::io_context::executor_type> work_;
    std::unique_ptr<CodeExecutor> executor_;
    std::thread thread_;
};

}  // namespace ipybox
