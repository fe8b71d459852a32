#include "host.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ipybox/detail/json_number.hpp>
#include <ipybox/executor/code_executor.hpp>
#include <ipybox/sandbox_kit/process.hpp>

#include "contenders.hpp"
#include "workspace.hpp"

extern char** environ;

namespace {
using namespace bench;

constexpr const char* server_script = IPYBOX_BENCHMARKS "/echo_server.py";
constexpr const char* calling = "from mcptools.echo import echo\n_ = echo.run(text='x')";

json::object server_params() {
    return {{"command", "python3"}, {"args", json::array{server_script}}};
}

// `ipybox host` as a program that embeds it sees it: blocking reads and writes.
class HostProgram {
public:
    // approval: "ask" asks this side, which says yes at once.
    explicit HostProgram(const char* approval) {
        int to[2], from[2];
        if (::pipe2(to, O_CLOEXEC) != 0 || ::pipe2(from, O_CLOEXEC) != 0)
            throw std::runtime_error("pipe failed");
        posix_spawn_file_actions_t actions;
        ::posix_spawn_file_actions_init(&actions);
        ::posix_spawn_file_actions_adddup2(&actions, to[0], STDIN_FILENO);
        ::posix_spawn_file_actions_adddup2(&actions, from[1], STDOUT_FILENO);
        const auto program = required("IPYBOX_TEST_PROGRAM");
        std::string name = program, command = "host";
        char* argv[] = {name.data(), command.data(), nullptr};
        if (::posix_spawn(&pid_, program.c_str(), &actions, nullptr, argv, environ) != 0)
            throw std::runtime_error("cannot start " + program);
        ::posix_spawn_file_actions_destroy(&actions);
        ::close(to[0]);
        ::close(from[1]);
        in_.reset(to[1]);
        out_.reset(from[0]);
        call("initialize",
             {{"protocol_version", 1}, {"client", {{"name", "bench"}, {"version", "1"}}}});
        const auto made = call("session/create", {{"options",
                                                   {{"sandbox", "none"},
                                                    {"workspace", workspace_.path.string()},
                                                    {"approval", approval},
                                                    {"kernel_init_timeout", 60},
                                                    {"python", required("IPYBOX_TEST_PYTHON")}}}});
        session_ = std::string(made.at("session").as_string());
        call("session/start", {{"session", session_}});
        call("session/add_server",
             {{"session", session_}, {"name", "echo"}, {"params", server_params()}});
    }
    ~HostProgram() {
        in_.reset();
        ::waitpid(pid_, nullptr, 0);
    }
    HostProgram(const HostProgram&) = delete;
    HostProgram& operator=(const HostProgram&) = delete;

    double execute(const std::string& code) {
        const Stopwatch watch;
        const auto result = call("session/execute", {{"session", session_}, {"code", code}});
        const auto spent = watch.milliseconds();
        if (result.at("status").as_string() != "ok") wrong_output("ipybox host");
        return spent;
    }

private:
    json::object call(std::string_view method, json::object params) {
        const auto number = send(method, std::move(params));
        for (;;) {
            auto message = read();
            if (message.contains("method")) {
                if (message.at("method").as_string() != "approval/requested") continue;
                send("approval/answer",
                     {{"approval", message.at("params").at("approval")}, {"verdict", "allow"}});
            } else if (message.at("id").as_int64() == number) {
                if (message.contains("error"))
                    throw std::runtime_error(ipybox::detail::write_json(message.at("error")));
                return std::move(message.at("result").as_object());
            }
        }
    }
    std::int64_t send(std::string_view method, json::object params) {
        const json::object message{
            {"jsonrpc", "2.0"}, {"id", ++number_}, {"method", method}, {"params", params}};
        const auto line = ipybox::detail::write_json(message) + "\n";
        if (::write(in_.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size()))
            throw std::runtime_error("ipybox host does not read");
        return number_;
    }
    json::object read() {
        for (;;) {
            const auto end = waiting_.find('\n');
            if (end != waiting_.npos) {
                auto message = json::parse(waiting_.substr(0, end)).as_object();
                waiting_.erase(0, end + 1);
                return message;
            }
            char buffer[65536];
            const auto size = ::read(out_.get(), buffer, sizeof buffer);
            if (size <= 0) throw std::runtime_error("ipybox host has ended");
            waiting_.append(buffer, static_cast<std::size_t>(size));
        }
    }

    Workspace workspace_;
    pid_t pid_ = -1;
    UniqueFd in_, out_;
    std::string waiting_, session_;
    std::int64_t number_ = 0;
};

// The same in this process, with somebody who says yes at once.
class Direct {
public:
    explicit Direct(const char* approval) {
        CodeExecutorOptions options;
        options.approval = approval;
        options.sandbox = "none";
        options.workspace = workspace_.path;
        options.kernel_init_timeout = std::chrono::seconds(60);
        options.python = required("IPYBOX_TEST_PYTHON");
        options.approvers.push_back(
            [](ToolCall) -> awaitable<Decision> { co_return Decision(Verdict::allow); });
        registry_.add_directory(required("IPYBOX_TEST_PLUGINS"));
        executor_ =
            std::make_unique<CodeExecutor>(context_.get_executor(), registry_, std::move(options));
        run(executor_->start());
        run(add());
    }
    double execute(const std::string& code) {
        double spent = 0;
        run(measure(code, spent));
        return spent;
    }

private:
    awaitable<void> add() { co_await executor_->add_server("echo", server_params()); }
    awaitable<void> measure(std::string code, double& spent) {
        const Stopwatch watch;
        const auto result = co_await executor_->execute(code);
        spent = watch.milliseconds();
        if (!result.ok()) wrong_output("CodeExecutor");
    }
    void run(awaitable<void> work) {
        std::exception_ptr failure;
        bool ended = false;
        asio::co_spawn(context_, std::move(work), [&](std::exception_ptr error) {
            failure = error;
            ended = true;
        });
        while (!ended) context_.run_one();
        if (failure) std::rethrow_exception(failure);
    }

    Workspace workspace_;
    asio::io_context context_{1};
    PluginRegistry registry_;
    std::unique_ptr<CodeExecutor> executor_;
};

}  // namespace

void measure_host(int rounds) {
    const std::string by_host = "ipybox host", direct = "CodeExecutor";
    struct Case {
        const char* what;
        const char* code;
        const char* approval;
    };
    for (const auto& [what, code, approval] :
         {Case{"`pass` by ipybox host", "pass", "ask"},
          Case{"a tool call by ipybox host", calling, "allow"},
          Case{"a tool call that its client is asked about", calling, "ask"}}) {
        HostProgram host(approval);
        Direct here(approval);
        Table table(what, direct);
        for (int i = 0; i < 50; ++i) host.execute(code), here.execute(code);
        for (int i = 0; i < rounds; ++i) {
            table.add(by_host, host.execute(code));
            table.add(direct, here.execute(code));
        }
        table.print(by_host);
        std::printf("added at the median: %.0f us, limit 60 us\n",
                    1000 * (table.median(by_host) - table.median(direct)));
    }
}
