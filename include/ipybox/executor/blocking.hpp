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
// cancel() from any. Construction and destruction do not start or wait for kernels: call start()
// and stop().
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

    // Runs code to its end. What the policy would ask is answered with yes; denials stand.
    CodeExecutionResult execute(std::string code, Duration timeout = std::chrono::seconds(120)) {
        return wait(executor_->execute(std::move(code), timeout));
    }

    // Runs code, passing approval requests and chunks to on_event; returns the result.
    CodeExecutionResult stream(std::string code, const EventHandler& on_event,
                               Duration timeout = std::chrono::seconds(120)) {
        auto execution = wait(begin(std::move(code), timeout));
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

    // Makes an MCP server callable by name. Throws Error: bad_config (params of a wrong form).
    void register_server(const std::string& name, const json::object& params) {
        wait(do_register(name, params));
    }
    // Registers the server and writes its Python API to root_dir/<name>. Returns the tools' names.
    std::vector<std::string> generate_mcp_sources(
        const std::string& name, const json::object& params,
        const std::filesystem::path& root_dir = "mcptools") {
        return wait(executor_->generate_mcp_sources(name, params, root_dir));
    }

private:
    using ExecutionPtr = std::shared_ptr<CodeExecutor::Execution>;

    template <class T>
    T wait(awaitable<T> work) {
        return asio::co_spawn(context_, std::move(work), asio::use_future).get();
    }
    awaitable<ExecutionPtr> begin(std::string code, Duration timeout) {
        auto execution = co_await executor_->stream(std::move(code), timeout, true);
        co_return std::make_shared<CodeExecutor::Execution>(std::move(execution));
    }
    // An Execution belongs to the executor's thread, its end too.
    awaitable<void> release(ExecutionPtr) { co_return; }
    awaitable<void> do_register(std::string name, json::object params) {
        executor_->register_server(name, params);
        co_return;
    }

    PluginRegistry registry_;
    asio::io_context context_{1};
    asio::executor_work_guard<asio::io_context::executor_type> work_;
    std::unique_ptr<CodeExecutor> executor_;
    std::thread thread_;
};

}  // namespace ipybox
