#pragma once
// One kernel behind a Jupyter kernel gateway or server, without MCP servers: what runs its code and
// collects what that gives.
#include <cstdint>
#include <ipybox/executor/code_executor.hpp>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace ipybox {

// Where the gateway is, and what the kernel is to be.
struct KernelClientOptions {
    std::string host = "localhost";
    std::uint16_t port = 8888;
    std::string url;    // instead of host and port: for TLS or a path
    std::string token;  // ${NAME} is replaced from the environment
    std::optional<std::filesystem::path>
        working_dir;  // on the kernel's machine; restored after every cell
    std::filesystem::path images_dir = "images";  // here, relative to the current directory
    Duration ping_interval = std::chrono::seconds(10);
    Duration kernel_init_timeout = std::chrono::seconds(10);
    json::object kernel_options;  // more of the plugin "gateway"; the above win
    Logger logger;
};

// Creates a kernel of its own and deletes it in the end. All methods run on the executor's thread;
// the registry must outlive the client and what it returned. Those that need a kernel throw what
// CodeExecutor's do, and Error: kernel_died (connect() has not returned).
class KernelClient {
public:
    // Connects to nothing yet.
    KernelClient(asio::any_io_executor executor, PluginRegistry& registry,
                 KernelClientOptions options)
        : executor_(std::move(executor)), registry_(registry), options_(std::move(options)) {}

    // Creates the kernel and connects to it. Tries again when the gateway cannot be reached, for it
    // may be starting. Throws Error: kernel_start_failed (the gateway cannot be reached, or gives
    // no kernel), timed_out (after kernel_init_timeout and the retries), bad_argument (the URL).
    awaitable<void> connect(int retries = 10, Duration retry_interval = std::chrono::seconds(1)) {
        CodeExecutorOptions options;
        options.sandbox = "none";
        options.kernel = "gateway";
        options.approval = "deny";
        options.kernel_options = options_.kernel_options;
        auto& kernel = options.kernel_options;
        kernel["url"] = options_.url.empty()
                            ? "http://" + options_.host + ":" + std::to_string(options_.port)
                            : options_.url;
        if (!options_.token.empty()) kernel["token"] = options_.token;
        kernel["ping_interval"] = std::chrono::duration<double>(options_.ping_interval).count();
        kernel["connect_retries"] = retries;
        kernel["retry_interval"] = std::chrono::duration<double>(retry_interval).count();
        options.working_dir = options_.working_dir;
        options.images_dir = options_.images_dir;
        options.kernel_init_timeout = options_.kernel_init_timeout + retries * retry_interval;
        options.logger = options_.logger;
        auto fresh = std::make_unique<CodeExecutor>(executor_, registry_, std::move(options));
        co_await fresh->start();
        code_ = std::move(fresh);
    }

    // Deletes the kernel; a running execution ends as cancelled.
    awaitable<void> disconnect() {
        if (auto old = std::move(code_)) co_await old->stop();
    }

    // A new kernel in the place of the old one, whose state is lost.
    awaitable<void> reset() { co_await connected().reset(); }

    // Runs code to its end. timeout: then it is interrupted; zero means never.
    awaitable<CodeExecutionResult> execute(std::string code,
                                           Duration timeout = std::chrono::seconds(120)) {
        co_return co_await connected().execute(std::move(code), timeout);
    }

    // The same with all options.
    awaitable<CodeExecutionResult> execute(std::string code, ExecutionOptions how) {
        co_return co_await connected().execute(std::move(code), how);
    }

    // Begins an execution whose next() gives CodeExecutionChunk events and, last, the result.
    // text: whether the result has again what the chunks had.
    awaitable<CodeExecutor::Execution> stream(std::string code,
                                              Duration timeout = std::chrono::seconds(120),
                                              ResultText text = ResultText::whole) {
        co_return co_await connected().stream(std::move(code), timeout, true, text);
    }

    // The same with the events that `how` asks for.
    awaitable<CodeExecutor::Execution> stream(std::string code, ExecutionOptions how) {
        co_return co_await connected().stream(std::move(code), how);
    }

    // The variables of the code that ran so far; see CodeExecutor.
    awaitable<std::vector<CodeVariable>> variables() { co_return co_await connected().variables(); }

    // How `code` can go on; see CodeExecutor.
    awaitable<CodeCompletions> complete(std::string code) {
        co_return co_await connected().complete(std::move(code));
    }

    // Interrupts the running execution, if any.
    void interrupt() { connected().cancel(); }

    // The gateway's name for the kernel; empty without a connection.
    std::string kernel_id() const { return code_ ? code_->kernel_id() : std::string(); }

private:
    CodeExecutor& connected() {
        if (!code_) throw Error(errc::kernel_died, "no kernel is connected; call connect()");
        return *code_;
    }

    asio::any_io_executor executor_;
    PluginRegistry& registry_;
    KernelClientOptions options_;
    std::unique_ptr<CodeExecutor> code_;
};

}  // namespace ipybox
