// An MCP server that is a child process: one JSON-RPC message a line on its standard streams
// (MCP 2025-11-25 and 2026-07-28, "Transports: stdio").
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/wait.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <ipybox/config.hpp>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/mcp/jsonrpc.hpp>
#include <ipybox/plugin.hpp>
#include <ipybox/sandbox_kit/process.hpp>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace {
using namespace ipybox;
using boost::system::error_code;

constexpr auto patience = std::chrono::seconds(2);            // between close, SIGTERM and SIGKILL
constexpr std::size_t max_outgoing = std::size_t{256} << 20;  // for a server that does not read
constexpr std::size_t max_after_exit = std::size_t{2} << 20;  // more than any pipe holds
constexpr int max_noise_lines = 20;  // of output that is no message, logged

struct Settings {
    std::string command;
    std::vector<std::string> arguments;
    std::map<std::string, std::string> env;  // as configured: may hold secrets
    std::filesystem::path cwd;
    std::size_t max_message = mcp::default_max_message;
    Logger logger;

    // The path of a directory, such as the workspace, is no secret.
    static bool is_directory(const std::string& value) {
        std::error_code ignored;
        return value.starts_with('/') && std::filesystem::is_directory(value, ignored);
    }

    // Text of the server without the values of its configured environment.
    std::string redacted(std::string text) const {
        Secrets given;
        for (const auto& [name, secret] : env)
            if (!is_directory(secret)) given.add(secret);
        return given.hide(std::move(text));
    }
};

// One run of the server. Held by every coroutine that works on it, so that the transport may be
// destroyed while they wait.
struct Connection {
    Connection(asio::any_io_executor executor, std::shared_ptr<const Settings> server)
        : shared_settings(std::move(server)),
          settings(*shared_settings),
          input(executor),
          output(executor),
          changed(executor),
          splitter(settings.max_message, [this](const mcp::BadLine& line) { noise(line); }) {}

    void noise(const mcp::BadLine& line) {
        if (++noise_lines > max_noise_lines) return;
        const std::string what = line.problem.empty()
                                     ? " printed a line that is no message: "
                                     : " sent a message that " + std::string(line.problem) + ": ";
        settings.logger(
            line.problem.empty() ? LogLevel::info : LogLevel::warning,
            settings.command + what +
                mcp::excerpt(settings.redacted(std::string(line.text.substr(0, 4096))), 512));
    }

    void tell_of_repairs() {
        if (!splitter.repaired() || std::exchange(told_of_repairs, true)) return;
        settings.logger(LogLevel::warning, settings.command + std::string(detail::repaired_text));
    }

    std::shared_ptr<const Settings> shared_settings;
    const Settings& settings;
    std::unique_ptr<SandboxedProcess> process;
    asio::posix::stream_descriptor input;
    asio::posix::stream_descriptor output;
    Event changed;  // something below did
    mcp::MessageSplitter splitter;
    std::deque<std::string> outgoing;  // lines that the pipe had no room for
    std::size_t outgoing_size = 0;
    std::size_t sent_of_first = 0;
    std::uint64_t queued = 0;  // lines ever put into outgoing, and written from it
    std::uint64_t written = 0;
    std::size_t read_after_exit = 0;
    int noise_lines = 0;
    bool told_of_repairs = false;
    bool spoke = false;  // a message came
    bool exited = false;
    bool closed = false;
    bool broken = false;       // nothing can be written any more
    std::optional<Error> end;  // why the server is gone
};
using ConnectionPtr = std::shared_ptr<Connection>;

[[noreturn]] void throw_closed() { throw Error(errc::cancelled, "the connection was closed"); }

std::string last_words_of(const Connection& connection) {
    return mcp::excerpt(connection.settings.redacted(connection.process->output_tail()),
                        std::size_t{8} << 10);
}

// Sets connection->end: how the server ended, and its last words. Kills one that lives on without
// its streams.
awaitable<void> find_out(ConnectionPtr connection) {
    const auto deadline = Clock::now() + std::chrono::seconds(1);
    while (!connection->exited && !connection->closed && Clock::now() < deadline)
        co_await connection->changed.wait(deadline);
    if (connection->end || connection->closed) co_return;
    const auto status = connection->process->exit_status();
    std::string text = connection->settings.command;
    if (!status) {
        text += connection->broken ? " closed its standard input" : " closed its standard output";
        connection->process->kill_tree();
    } else if (status->signalled) {
        const int number = status->code - 128;
        const char* name = ::sigabbrev_np(number);
        text += " was killed by signal " + std::to_string(number) +
                (name != nullptr ? std::string(" (SIG") + name + ")" : std::string());
    } else {
        text += " ended with exit code " + std::to_string(status->code);
    }
    if (!connection->spoke) text += " before it answered";
    for (const auto& violation : connection->process->violations()) text += ", " + violation.what;
    const auto tail = last_words_of(*connection);
    text += tail.empty() ? "; it wrote nothing to standard error"
                         : "; its standard error ends in:\n" + tail;
    connection->end = Error(errc::mcp_connection, text);
    connection->changed.notify();
}

awaitable<void> watch(ConnectionPtr connection) {
    co_await connection->process->wait(never);
    connection->exited = true;
    // A grandchild may hold the pipe open: the reader takes what is there and stops waiting.
    error_code ignored;
    connection->output.cancel(ignored);
    connection->changed.notify();
}

awaitable<json::object> receive_from(ConnectionPtr connection) {
    for (;;) {
        if (connection->closed) throw_closed();
        auto next = connection->splitter.next();
        if (!next) {
            if (!connection->end) {
                connection->end = Error(errc::mcp_protocol,
                                        connection->settings.command +
                                            " sent a message that does not end within " +
                                            std::to_string(connection->splitter.most_skipped()) +
                                            " bytes; the server was stopped");
                connection->process->kill_tree();
                connection->changed.notify();
            }
            throw *connection->end;
        }
        if (*next) {
            connection->spoke = true;
            connection->tell_of_repairs();
            co_return std::move(**next);
        }
        const auto room = connection->splitter.prepare();
        const auto buffer = asio::buffer(room.data, room.size);
        const bool exited = connection->exited;
        error_code error;
        std::size_t size = 0;
        if (!exited) {
            const auto [failure, count] =
                co_await connection->output.async_read_some(buffer, as_result);
            error = failure;
            size = count;
        } else if (connection->read_after_exit > max_after_exit) {
            error = asio::error::eof;
        } else {
            size = connection->output.read_some(buffer, error);
            connection->read_after_exit += size;
        }
        if (!error) {
            connection->splitter.commit(size);
            continue;
        }
        if (connection->closed) throw_closed();
        if (error == asio::error::operation_aborted) {
            if (connection->exited && !exited) continue;
            throw boost::system::system_error(error);
        }
        co_await find_out(connection);
        if (connection->closed) throw_closed();
        throw *connection->end;
    }
}

// Writes what the pipe had no room for, whole line after whole line.
awaitable<void> write_out(ConnectionPtr connection) {
    while (!connection->outgoing.empty() && !connection->closed) {
        auto [error] = co_await connection->input.async_wait(
            asio::posix::descriptor_base::wait_write, as_result);
        if (connection->closed) break;
        const auto& line = connection->outgoing.front();
        std::size_t size = 0;
        if (!error)
            size =
                connection->input.write_some(asio::buffer(line) + connection->sent_of_first, error);
        if (error == asio::error::would_block) continue;
        if (error) {
            connection->broken = true;
            connection->changed.notify();
            break;
        }
        connection->sent_of_first += size;
        if (connection->sent_of_first < line.size()) continue;
        connection->outgoing_size -= line.size();
        connection->outgoing.pop_front();
        connection->sent_of_first = 0;
        ++connection->written;
        connection->changed.notify();
    }
}

// A line that is no longer than PIPE_BUF, the pipe takes as a whole or not at all.
bool send_short(Connection& connection, std::int64_t id, std::string_view method,
                const json::object& params) {
    if (connection.closed || connection.end || connection.broken || !connection.outgoing.empty() ||
        connection.process->may_be_stale())
        return false;
    // Not written to be thrown away.
    if (mcp::text_size(params) > PIPE_BUF) return false;
    std::string line = R"({"jsonrpc":"2.0","id":)" + std::to_string(id) + R"(,"method":)";
    detail::append_json_string(line, method);
    line += R"(,"params":)";
    detail::append_json(line, params);
    line += "}\n";
    if (line.size() > PIPE_BUF) return false;
    // What goes wrong, send_to() meets again.
    error_code error;
    return connection.input.write_some(asio::buffer(line), error) > 0;
}

awaitable<void> send_to(ConnectionPtr connection, json::object message) {
    if (connection->closed) throw_closed();
    if (connection->end) throw *connection->end;
    auto line = detail::write_json(message);
    line.push_back('\n');
    if (connection->outgoing.empty() && !connection->broken) {
        // Nearly always the pipe has room for it at once: one system call, no wait.
        error_code error;
        const auto size = connection->input.write_some(asio::buffer(line), error);
        if (size == line.size()) co_return;
        connection->broken = error && error != asio::error::would_block;
        connection->sent_of_first = size;
    }
    if (!connection->broken) {
        if (!connection->outgoing.empty() && connection->outgoing_size + line.size() > max_outgoing)
            throw Error(errc::mcp_connection,
                        connection->settings.command + " does not read what it is sent");
        const bool idle = connection->outgoing.empty();
        connection->outgoing_size += line.size();
        connection->outgoing.push_back(std::move(line));
        const auto mine = ++connection->queued;
        if (idle)
            asio::co_spawn(connection->input.get_executor(), write_out(connection), asio::detached);
        while (connection->written < mine && !connection->broken && !connection->closed &&
               !connection->end)
            co_await connection->changed.wait();
        if (connection->written >= mine) co_return;
    }
    if (!connection->closed) co_await find_out(connection);
    if (connection->closed) throw_closed();
    throw *connection->end;
}

// A server reads the files of which it is told as they are now.
awaitable<void> send_fresh(ConnectionPtr connection, json::object message) {
    if (!connection->closed && connection->process->may_be_stale())
        co_await connection->process->refresh_view();
    co_await send_to(connection, std::move(message));
}

// A server that still writes must not wait for us while it ends.
awaitable<void> discard(ConnectionPtr connection) {
    std::vector<char> buffer(std::size_t{64} << 10);
    for (;;) {
        const auto [error, size] =
            co_await connection->output.async_read_some(asio::buffer(buffer), as_result);
        if (error) co_return;
    }
}

awaitable<void> ended(ConnectionPtr connection, Clock::time_point deadline) {
    while (!connection->exited && Clock::now() < deadline)
        co_await connection->changed.wait(deadline);
}

// Ends the server in order: its input closes, it is asked, it is killed.
awaitable<void> close_down(ConnectionPtr connection) {
    error_code ignored;
    if (!connection->closed) {
        connection->closed = true;
        connection->input.close(ignored);
        connection->output.cancel(ignored);
        connection->changed.notify();
        asio::co_spawn(connection->output.get_executor(), discard(connection), asio::detached);
    }
    co_await ended(connection, Clock::now() + patience);
    if (!connection->exited) {
        connection->process->signal(SIGTERM);
        co_await ended(connection, Clock::now() + patience);
    }
    connection->process->kill_tree();
    co_await ended(connection, Clock::now() + patience);
    connection->output.close(ignored);
}

// Ends the server at once; its coroutines end as soon as they run.
void abandon(Connection& connection) {
    error_code ignored;
    connection.closed = true;
    connection.input.close(ignored);
    connection.output.close(ignored);
    connection.process->kill_tree();
    connection.changed.notify();
}

// Our end of one of the process's pipes, independent of the process's life.
void take_over(int pipe, asio::posix::stream_descriptor& end) {
    const int copy = ::fcntl(pipe, F_DUPFD_CLOEXEC, 3);
    if (copy < 0)
        throw Error(errc::io_error, std::string("cannot copy a pipe: ") + ::strerror(errno));
    end.assign(copy);
    end.non_blocking(true);
}

class StdioTransport final : public McpTransport {
public:
    StdioTransport(Host& host, const json::object& config) : state_(std::make_shared<Impl>()) {
        state_->executor = host.executor;
        auto& settings = *state_->settings;
        settings.logger = host.logger;
        settings.command = config.at("command").as_string();
        if (const auto* arguments = config.if_contains("args"))
            for (const auto& argument : arguments->as_array())
                settings.arguments.emplace_back(argument.as_string());
        if (const auto* env = config.if_contains("env"))
            for (const auto& [name, value] : env->as_object())
                settings.env.emplace(name, value.as_string());
        if (const auto* cwd = config.if_contains("cwd"))
            settings.cwd = std::string(cwd->as_string());
        if (const auto* limit = config.if_contains("max_message"))
            settings.max_message = limit->to_number<std::size_t>();
        MemoryBudget::process().ensure(3 * settings.max_message);
    }

    ~StdioTransport() override {
        state_->destroyed = true;
        if (state_->connection) abandon(*state_->connection);
    }

    awaitable<void> open(Sandbox& sandbox) override { return open(state_, sandbox); }
    awaitable<void> send(json::object message) override {
        return send_fresh(connection(), std::move(message));
    }
    // What happens to the server afterwards, receive() tells.
    bool send_now(std::int64_t id, std::string_view method, json::object& params,
                  const std::shared_ptr<Sender>&) override {
        return state_->connection && send_short(*state_->connection, id, method, params);
    }
    awaitable<json::object> receive() override { return receive_from(connection()); }
    std::string last_words() const override {
        return state_->connection ? last_words_of(*state_->connection) : std::string();
    }
    // Nothing is held for a request.
    void cancel(const json::value&) override {}
    awaitable<void> close() override { return close(state_); }

private:
    struct Impl {
        asio::any_io_executor executor;
        std::shared_ptr<Settings> settings = std::make_shared<Settings>();
        ConnectionPtr connection;
        bool closed = false;
        bool destroyed = false;
    };

    const ConnectionPtr& connection() const {
        if (!state_->connection) throw Error(errc::bad_argument, "the transport is not open");
        return state_->connection;
    }

    static awaitable<void> open(std::shared_ptr<Impl> state, Sandbox& sandbox) {
        const Settings& settings = *state->settings;
        if (state->connection) abandon(*state->connection);
        state->connection.reset();
        SandboxPolicy policy;
        policy.network.mode = NetworkPolicy::Mode::full;
        policy.env = environment(settings);
        // Without a directory the sandbox chooses one: ours may be one that code can write.
        std::error_code ignored;
        if (!settings.cwd.empty()) policy.cwd = std::filesystem::absolute(settings.cwd, ignored);
        std::vector<std::string> argv{locate(settings, policy)};
        argv.insert(argv.end(), settings.arguments.begin(), settings.arguments.end());

        auto fresh = std::make_shared<Connection>(state->executor, state->settings);
        std::vector<Channel> channels;
        std::optional<Error> failure;
        try {
            fresh->process = co_await sandbox.launch(std::move(policy), std::move(argv),
                                                     std::move(channels), Stdio::pipes);
            take_over(fresh->process->input().native_handle(), fresh->input);
            take_over(fresh->process->output().native_handle(), fresh->output);
            // Only our copies stay open: closing ours tells the server.
            fresh->process->input().close();
            fresh->process->output().close();
        } catch (const Error& error) {
            failure = error.code() == errc::io_error ? Error(errc::mcp_connection, error.detail())
                                                     : error;
        }
        if (failure) throw *failure;
        if (state->closed || state->destroyed) throw_closed();
        state->connection = fresh;
        asio::co_spawn(state->executor, watch(fresh), asio::detached);
    }

    static awaitable<void> close(std::shared_ptr<Impl> state) {
        state->closed = true;
        if (state->connection) co_await close_down(state->connection);
    }

    // What MCP clients pass on from their own environment, and what the configuration adds.
    static std::map<std::string, std::string> environment(const Settings& settings) {
        auto env = settings.env;
        for (const char* name : {"HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "SHELL",
                                 "TERM", "TMPDIR", "TZ", "USER"})
            if (const char* value = std::getenv(name)) env.emplace(name, value);
        return env;
    }

    static std::string locate(const Settings& settings, const SandboxPolicy& policy) {
        const auto path = policy.env.find("PATH");
        auto command = settings.command;
        if (command.find('/') != command.npos) {
            if (policy.cwd.empty() && command.front() != '/')
                throw Error(errc::missing_dependency,
                            "the command \"" + command +
                                "\" is a relative path: give its full path, or a \"cwd\"");
            command = (policy.cwd / command).string();
        }
        // Whether it may run on the host is judged there (sandbox_kit/program_judgement.hpp); in a
        // sandbox all may.
        const auto found = find_program(
            command, path == policy.env.end() ? std::string_view() : std::string_view(path->second),
            Trust::named);
        if (found) return found->string();
        throw Error(errc::missing_dependency,
                    "the command \"" + settings.command +
                        (settings.command.find('/') == std::string::npos
                             ? "\" is not on PATH: install it, or give its full path"
                             : "\" is no executable file: correct its path"));
    }

    std::shared_ptr<Impl> state_;
};

constexpr Plugin self{
    .name = "stdio",
    .summary = "an MCP server as a child process, one message a line",
    .config_schema = R"({
        "type": "object",
        "properties": {
            "type": {"const": "stdio"},
            "command": {"type": "string", "minLength": 1, "description": "a program on PATH or its path"},
            "args": {"type": "array", "items": {"type": "string"}},
            "env": {"type": "object", "additionalProperties": {"type": "string"},
                    "description": "added to HOME, PATH and the like; nothing else is inherited"},
            "cwd": {"type": "string", "minLength": 1, "description": "default: an empty directory of its own, \"/\" outside of sessions"},
            "max_message": {"type": "integer", "minimum": 4096, "maximum": 1073741824,
                            "description": "bytes of one message of the server; the answer to a request that is longer becomes an error; default: 32 MiB"}
        },
        "required": ["command"],
        "additionalProperties": false
    })",
    .make = +[](Host& host, const json::object& config) -> std::unique_ptr<McpTransport> {
        return std::make_unique<StdioTransport>(host, config);
    },
};
}  // namespace

IPYBOX_PLUGIN(stdio, self)
