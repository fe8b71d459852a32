#pragma once
// A Jupyter kernel gateway of this machine, used alone: others connect to it by host and port.
#include <csignal>
#include <cstdint>
#include <ipybox/detail/hex.hpp>
#include <ipybox/executor/code_executor.hpp>
#include <ipybox/jupyter/wire.hpp>
#include <ipybox/sandbox_kit/process.hpp>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace ipybox {

// How the gateway listens, and what its kernels get.
struct KernelGatewayOptions {
    std::string host = "localhost";
    std::uint16_t port = 8888;
    std::optional<std::filesystem::path> working_dir;  // absent: the current directory
    std::map<std::string, std::string> env;            // beside PATH, all that kernels get
    std::string log_level = "INFO";
    std::filesystem::path
        python;         // empty: found as find_python() does; needs jupyter_kernel_gateway
    std::string token;  // what clients must present; empty: one is made up
};

// Unconfined: whoever presents the token runs code as this user. Confined kernels are those of a
// CodeExecutor with a sandbox, whose plugin "gateway" starts a gateway inside. Destruction kills
// the gateway and its kernels.
class KernelGateway {
public:
    // Starts nothing yet. Throws Error: io_error (the system has no random numbers for a token).
    KernelGateway(asio::any_io_executor executor, KernelGatewayOptions options)
        : executor_(std::move(executor)), options_(std::move(options)) {
        if (options_.token.empty()) options_.token = detail::random_hex(16);
    }

    // Starts the process; it listens a second or two later, for which KernelClient::connect()
    // waits. Throws Error: busy (it runs already), io_error (it cannot be started), and what
    // find_python() and inspect_python() throw.
    awaitable<void> start() {
        if (process_ && !process_->exit_status())
            throw Error(errc::busy, "the kernel gateway is running; stop() it first");
        const auto python = find_python(options_.python);
        const PythonEnvironment environment =
            co_await inspect_python(executor_, python, std::chrono::seconds(30));
        if (!library_) library_ = std::make_unique<executor::RunDirectory>(::geteuid());
        SpawnRequest request;
        request.argv = {environment.executable.string(),
                        "-c",
                        jupyter::gateway_start,
                        "--listen",
                        options_.host + ":" + std::to_string(options_.port),
                        "--log-level=" + (options_.log_level == "WARNING" ? std::string("WARN")
                                                                          : options_.log_level),
                        "--ZMQChannelsWebsocketConnection.limit_rate=False"};
        request.env = options_.env;
        request.env.try_emplace("PATH", environment.executable.parent_path().string() +
                                            ":/usr/local/bin:/usr/bin:/bin");
        auto& path = request.env["PYTHONPATH"];
        path = (library_->path() / "lib").string() + (path.empty() ? "" : ":" + path);
        request.env["IPYBOX_GATEWAY_TOKEN"] = options_.token;
        request.cwd = std::filesystem::absolute(options_.working_dir.value_or("."));
        request.stdio = Stdio::tail;
        process_ = std::make_shared<ChildProcess>(executor_, std::move(request));
    }

    // Ends the gateway and its kernels, by force after `timeout`.
    awaitable<void> stop(Duration timeout = std::chrono::seconds(10)) {
        const auto process = std::exchange(process_, nullptr);
        if (!process) co_return;
        process->signal(SIGTERM);
        const auto deadline = Clock::now() + timeout;
        co_await process->wait(deadline);
        process->kill_tree();
    }

    // Waits until the gateway has ended; its exit status, absent when it was not started.
    awaitable<std::optional<ExitStatus>> join() {
        const auto process = process_;
        std::optional<ExitStatus> status;
        if (process) status = co_await process->wait(never);
        co_return status;
    }

    // What clients present.
    const std::string& token() const noexcept { return options_.token; }
    // The newest lines that the gateway printed.
    std::string output_tail() const { return process_ ? process_->output_tail() : std::string(); }

private:
    asio::any_io_executor executor_;
    KernelGatewayOptions options_;
    std::unique_ptr<executor::RunDirectory> library_;
    std::shared_ptr<SandboxedProcess> process_;
};

}  // namespace ipybox
