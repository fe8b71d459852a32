#pragma once
// A real executor on a fresh workspace; which sandbox, the test says. On which backend the kernels
// are, $IPYBOX_TEST_KERNEL says: fork, zmq, gateway (one started in the sandbox), or behind a
// server on "another machine": server (jupyter_server), kernel_gateway, enterprise.
#include <sys/stat.h>
#include <unistd.h>

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <ipybox/executor/code_executor.hpp>
#include <memory>
#include <string>
#include <vector>

#include "jupyter_server.hpp"
#include "test_support.hpp"

// The values have names only in C++.
BOOST_TEST_DONT_PRINT_LOG_VALUE(ipybox::CodeExecutionResult::Status)

namespace ipybox::test {

inline std::string kernel_backend() {
    const char* name = std::getenv("IPYBOX_TEST_KERNEL");
    return name != nullptr && *name != '\0' ? name : "fork";
}
inline bool distant() {
    const auto name = kernel_backend();
    return name != "zmq" && name != "fork" && name != "gateway";
}

// Nothing here confines a kernel on another machine.
inline const std::vector<std::string> sandboxes =
    distant() ? std::vector<std::string>{"none"}
              : std::vector<std::string>{"none", "bubblewrap", "srt"};

// The server with all distant kernels of this run.
inline const JupyterServer& jupyter_server() {
    static const JupyterServer server = [] {
        const auto kind = kernel_backend();
        if (kind == "enterprise")
            return JupyterServer(kind, {}, required_environment("IPYBOX_TEST_ENTERPRISE_PYTHON"));
        return JupyterServer(kind == "server" ? "server" : "gateway");
    }();
    return server;
}

// The plugins linked into this program or, in a build with shared ones, those of the build tree.
inline PluginRegistry registry() {
    PluginRegistry plugins;
    plugins.load_program();
    if (plugins.list().empty()) plugins.add_directory(plugin_directory());
    return plugins;
}

class ExecutorFixture {
public:
    ExecutorFixture() : plugins(registry()) {
        // Started by root, the sandbox gives up root: the workspace belongs to whom it becomes.
        if (::geteuid() == 0 && ::chown(workspace.path().c_str(), 65534, 65534) != 0)
            throw std::runtime_error("chown failed");
        options.python = kernel_python();
        options.workspace = workspace.path();
        options.kernel_init_timeout = std::chrono::seconds(60);
    }
    ~ExecutorFixture() {
        if (!executor) return;
        run(context, executor->stop());
        executor.reset();
    }

    CodeExecutor& start(const std::string& sandbox) {
        options.sandbox = distant() ? "none" : sandbox;
        if (sandbox == "srt") options.sandbox_options = sandbox_options(sandbox);
        options.kernel = distant() ? "gateway" : kernel_backend();
        if (options.kernel == "fork" && sandbox == "bubblewrap" &&
            !options.kernel_options.contains("start"))
            options.kernel_options["start"] = "forked";
        if (distant()) {
            options.kernel_options = jupyter_server().kernel_options();
            // Enterprise Gateway starts nothing for root.
            json::object env;
            env["KERNEL_USERNAME"] = "ipybox";
            options.kernel_options["env"] = env;
            options.kernel_options["cwd"] = workspace.path().string();
        }
        executor = std::make_unique<CodeExecutor>(context.get_executor(), plugins, options);
        run(context, executor->start());
        return *executor;
    }

    CodeExecutionResult execute(std::string code, Duration timeout = std::chrono::seconds(60)) {
        return run(context, executor->execute_approved(std::move(code), timeout));
    }
    // The text of an execution that must succeed.
    std::string text(std::string code) {
        auto result = execute(std::move(code));
        BOOST_TEST_REQUIRE(result.ok(), result.error);
        return result.text.value_or("");
    }

    // All events of an execution; `on_request` answers.
    struct Streamed {
        std::string chunks;
        std::vector<std::string> requests;
        CodeExecutionResult result;
    };
    Streamed stream(std::string code, std::function<void(const ApprovalRequest&)> on_request,
                    Duration timeout = std::chrono::seconds(60),
                    ResultText text = ResultText::whole) {
        return run(context, collect(std::move(code), std::move(on_request), timeout, text));
    }

    asio::io_context context{1};
    PluginRegistry plugins;
    TemporaryDirectory workspace;
    CodeExecutorOptions options;
    std::unique_ptr<CodeExecutor> executor;

private:
    awaitable<Streamed> collect(std::string code,
                                std::function<void(const ApprovalRequest&)> on_request,
                                Duration timeout, ResultText text) {
        Streamed seen;
        auto execution = co_await executor->stream(std::move(code), timeout, true, text);
        for (;;) {
            auto event = co_await execution.next();
            if (!event) break;
            if (auto* chunk = std::get_if<CodeExecutionChunk>(&*event)) {
                seen.chunks += chunk->text;
            } else if (auto* request = std::get_if<ApprovalRequest>(&*event)) {
                seen.requests.push_back(request->to_string());
                on_request(*request);
            } else {
                seen.result = std::get<CodeExecutionResult>(std::move(*event));
            }
        }
        co_return seen;
    }
};

inline void accept(const ApprovalRequest& request) { request.accept(); }

}  // namespace ipybox::test
