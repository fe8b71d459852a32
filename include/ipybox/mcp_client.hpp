#pragma once
// Speaks MCP with one server, through any transport, in both eras of the protocol: legacy (a
// handshake opens a session; 2024-11-05 to 2025-11-25) and modern (stateless; 2026-07-28).
#include <array>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>
#include <boost/json/serialize.hpp>
#include <cstdint>
#include <exception>
#include <functional>
#include <ipybox/async.hpp>
#include <ipybox/detail/build_info.hpp>
#include <ipybox/detail/jsonrpc.hpp>
#include <ipybox/error.hpp>
#include <ipybox/log.hpp>
#include <ipybox/mcp_transport.hpp>
#include <list>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace ipybox {

// How a server's protocol works. `detect` asks the server; McpClient::era() then tells, so that
// the answer can be kept and given the next time.
enum class McpEra { detect, legacy, modern };

struct McpClientOptions {
    std::string name;  // the server's name in messages
    McpEra era = McpEra::detect;
    Duration connect_timeout = std::chrono::seconds(30);
    Duration discover_timeout = std::chrono::seconds(5);  // for the answer that tells the era
    json::object client_info;                             // empty: ipybox and its version
    json::object capabilities;  // what on_request can answer, as the protocol spells it
    json::array roots;          // {"uri", "name"}; offered as a capability when not empty
    // Answers elicitation/create and sampling/createMessage: gets method and params, returns the
    // result, or throws to refuse. Empty: every such request is declined.
    std::function<awaitable<json::object>(std::string, json::object)> on_request;
    // The server's tools are no longer those that list_tools() returned.
    std::function<void()> on_tools_changed;
    Logger logger;
};

struct CallProgress {
    double progress = 0;
    std::optional<double> total;
    std::string message;
};

struct CallOptions {
    Duration idle_timeout = std::chrono::seconds(300);  // starts anew with each progress report
    Duration total_timeout = std::chrono::hours(1);     // progress does not extend it
    // Called on the executor's thread; what it throws is logged.
    std::function<void(const CallProgress&)> on_progress;
};

struct CallResult {
    json::array content;  // objects with "type": text, image, audio, resource, …
    std::optional<json::value> structured_content;
    bool is_error = false;  // the tool ran and failed; content says why
    json::object meta;
};

// One server, many calls at once, on one thread. All member functions but close() and the
// destructor need connect() to have returned. Errors name the server; what they mean:
// mcp_connection (cannot be started or reached, or died: exit code and the tail of its standard
// error are in the text), mcp_protocol, mcp_error (the server answered with an error), timed_out
// (the text tells which limit), cancelled (the coroutine was cancelled, or the client closed).
class McpClient {
public:
    McpClient(asio::any_io_executor executor, std::unique_ptr<McpTransport> transport,
              McpClientOptions options);
    // At any moment, also from a callback: fails what is pending with errc::cancelled. The server
    // ends as soon as the executor runs again, or is destroyed; close() ends it in order.
    ~McpClient();
    McpClient(const McpClient&) = delete;
    McpClient& operator=(const McpClient&) = delete;

    // Starts the server and agrees on a protocol version, within options.connect_timeout: asks
    // with server/discover (2026-07-28), and shakes hands with initialize (2025-11-25 or older)
    // if the answer is not a modern one. A server that ends when it is asked is started again.
    // Call once. After an error the client is of no more use.
    awaitable<void> connect(Sandbox& sandbox);

    // All pages of tools/list: objects with a non-empty string "name"; others are left out with a
    // warning. Empty for a server without tools. A cursor that comes twice, more than 10,000
    // tools or 64 MiB are errc::mcp_protocol; more than five minutes are errc::timed_out.
    awaitable<json::array> list_tools();

    // tools/call. When a limit of `options` passes or the coroutine is cancelled, the server is
    // told (notifications/cancelled) and a late answer is ignored.
    awaitable<CallResult> call_tool(std::string name, json::object arguments, CallOptions options);

    // Any other request of the protocol; returns its result.
    awaitable<json::object> request(std::string method, json::object params, CallOptions options);

    // Fails what is pending with errc::cancelled and ends the server in order.
    awaitable<void> close();

    // Connected, and neither closed nor failed.
    bool alive() const noexcept { return state_->connected && !state_->failure; }
    McpEra era() const noexcept { return state_->era; }
    const std::string& protocol_version() const noexcept { return state_->protocol_version; }
    const json::object& server_info() const noexcept { return state_->server_info; }
    const json::object& capabilities() const noexcept { return state_->capabilities; }
    const std::string& instructions() const noexcept { return state_->instructions; }

private:
    // A request without its answer.
    struct Pending {
        explicit Pending(const asio::any_io_executor& executor) : wake(executor) {}
        bool done() const noexcept { return reply || failure; }
        void fail(const Error& error) {
            if (done()) return;
            failure = error;
            wake.cancel();
        }

        asio::steady_timer wake;
        std::int64_t id = 0;
        std::optional<json::object> reply;  // the whole message
        std::optional<Error> failure;
        CallOptions limits;
        Clock::time_point idle_deadline = never;
    };
    using PendingPtr = std::shared_ptr<Pending>;

    // Shared with every coroutine of the client, so that each may end after it.
    struct State {
        asio::any_io_executor executor;
        McpClientOptions options;
        std::unique_ptr<McpTransport> transport;
        std::unordered_map<std::int64_t, PendingPtr> pending;
        std::list<asio::cancellation_signal> tasks;  // one for each coroutine of spawn()
        std::optional<Error> failure;                // why nothing will be answered any more
        bool closed = false;
        bool connected = false;
        std::int64_t last_id = 0;
        std::size_t answering = 0;       // requests of the server being answered
        Clock::time_point log_second{};  // in which log_lines were logged for it
        std::size_t log_lines = 0;
        McpEra era = McpEra::detect;
        std::string protocol_version;
        json::object server_info;
        json::object capabilities;
        std::string instructions;

        std::string named(std::string_view text) const {
            return "MCP server \"" + options.name + "\": " + std::string(text);
        }
        Error error(errc code, std::string_view text) const { return {code, named(text)}; }
        // What is logged is up to the server: only so much of it.
        void log(LogLevel level, std::string_view text) {
            if (!options.logger.enabled(level)) return;
            const auto now = Clock::now();
            if (now - log_second >= std::chrono::seconds(1)) {
                log_second = now;
                log_lines = 0;
            }
            if (++log_lines <= max_log_lines) options.logger(level, named(text));
        }
        void fail(const Error& reason) {
            if (failure) return;
            failure = reason;
            for (const auto& [id, waiting] : pending) waiting->fail(reason);
        }
        void stop() {
            closed = true;
            fail(error(errc::cancelled, "the client was closed"));
        }
        void cancel_tasks() {
            for (auto task = tasks.begin(); task != tasks.end();)
                (task++)->emit(asio::cancellation_type::terminal);
        }
    };
    using StatePtr = std::shared_ptr<State>;

    // A request is forgotten when the coroutine that made it lets go of it: later answers to it
    // are ignored.
    class Forget {
    public:
        Forget(StatePtr state, const PendingPtr& pending)
            : state_(std::move(state)), id_(pending->id) {}
        ~Forget() { state_->pending.erase(id_); }
        Forget(const Forget&) = delete;
        Forget& operator=(const Forget&) = delete;

    private:
        StatePtr state_;
        std::int64_t id_;
    };

    static constexpr std::string_view modern_version = "2026-07-28";
    // Newest first: the first one is offered, any is accepted.
    static constexpr std::array<std::string_view, 4> legacy_versions = {"2025-11-25", "2025-06-18",
                                                                        "2025-03-26", "2024-11-05"};
    static constexpr Duration list_timeout = std::chrono::minutes(5);  // for all pages
    static constexpr std::size_t max_tools = 10'000;
    static constexpr std::size_t max_pages = 10'000;
    static constexpr std::size_t max_tools_size = std::size_t{64} << 20;
    static constexpr std::size_t max_answering = 64;
    static constexpr std::size_t max_log_lines = 100;  // a second
    static constexpr std::size_t max_text = 4096;  // of a server's words in an error or a log line

    static void spawn(const StatePtr& state, awaitable<void> work);
    static Error translate(const StatePtr& state, std::exception_ptr failure);
    static std::string seconds(Duration duration);

    static awaitable<void> connect(StatePtr state, Sandbox& sandbox);
    static awaitable<void> attempt(StatePtr state, Sandbox& sandbox, std::exception_ptr& failure);
    static awaitable<void> open(StatePtr state, Sandbox& sandbox, Clock::time_point deadline);
    static bool adopt_discovery(const StatePtr& state, const Pending& probe);
    static void adopt_initialize(const StatePtr& state, const json::object& result);
    static json::object offered(const StatePtr& state);
    static json::object client_info(const StatePtr& state);

    static PendingPtr start(const StatePtr& state, std::string_view method, json::object params,
                            CallOptions limits);
    static awaitable<void> deliver(StatePtr state, json::object message, PendingPtr pending);
    static awaitable<bool> settle(PendingPtr pending, Clock::time_point deadline);
    static void withdraw(const StatePtr& state, const PendingPtr& pending, std::string_view reason);
    static json::object result_of(const StatePtr& state, Pending& pending, std::string_view what);
    static awaitable<json::object> exchange(StatePtr state, std::string method, json::object params,
                                            CallOptions limits, std::string what);
    static awaitable<json::array> list(StatePtr state);
    static awaitable<CallResult> call(StatePtr state, std::string name, json::object arguments,
                                      CallOptions limits);

    static awaitable<void> read(StatePtr state);
    static void dispatch(const StatePtr& state, json::object message);
    static void notified(const StatePtr& state, std::string_view method,
                         const json::object& params);
    static void progressed(const StatePtr& state, const json::object& params);
    static void logged(const StatePtr& state, const json::object& params);
    static awaitable<void> answer(StatePtr state, json::value id, std::string method,
                                  json::object params);
    static awaitable<void> shut(StatePtr state);

    StatePtr state_;
};

inline McpClient::McpClient(asio::any_io_executor executor, std::unique_ptr<McpTransport> transport,
                            McpClientOptions options)
    : state_(std::make_shared<State>()) {
    state_->executor = std::move(executor);
    state_->options = std::move(options);
    state_->transport = std::move(transport);
}

inline McpClient::~McpClient() {
    state_->stop();
    // On the executor, not here: Asio (1.81) lets a signal that is emitted elsewhere outlive what
    // it is meant for. The transport goes with the last coroutine that holds the state.
    asio::post(state_->executor, [state = state_] { state->cancel_tasks(); });
}

inline awaitable<void> McpClient::connect(Sandbox& sandbox) { return connect(state_, sandbox); }
inline awaitable<json::array> McpClient::list_tools() { return list(state_); }
inline awaitable<CallResult> McpClient::call_tool(std::string name, json::object arguments,
                                                  CallOptions options) {
    return call(state_, std::move(name), std::move(arguments), std::move(options));
}
inline awaitable<json::object> McpClient::request(std::string method, json::object params,
                                                  CallOptions options) {
    std::string what = detail::excerpt(method, max_text);
    return exchange(state_, std::move(method), std::move(params), std::move(options),
                    std::move(what));
}
inline awaitable<void> McpClient::close() { return shut(state_); }

// Runs a coroutine on its own until it ends or the client is destroyed.
inline void McpClient::spawn(const StatePtr& state, awaitable<void> work) {
    const auto task = state->tasks.emplace(state->tasks.end());
    asio::co_spawn(state->executor, std::move(work),
                   asio::bind_cancellation_slot(task->slot(), [state, task](std::exception_ptr) {
                       state->tasks.erase(task);
                   }));
}

// What a transport threw, as an error that names the server.
inline Error McpClient::translate(const StatePtr& state, std::exception_ptr failure) {
    try {
        std::rethrow_exception(failure);
    } catch (const Error& error) {
        return {error.code(), state->named(error.detail())};
    } catch (const boost::system::system_error& error) {
        const bool cancelled = error.code() == asio::error::operation_aborted;
        return state->error(cancelled ? errc::cancelled : errc::mcp_connection, error.what());
    } catch (const std::exception& error) {
        return state->error(errc::mcp_connection, error.what());
    }
}

inline std::string McpClient::seconds(Duration duration) {
    const auto milliseconds =
        std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
    auto text = std::to_string(milliseconds / 1000);
    if (const auto rest = milliseconds % 1000; rest != 0)
        text += "." + std::to_string(1000 + rest).substr(1);
    return text + " s";
}

// ---- opening ----

inline awaitable<void> McpClient::connect(StatePtr state, Sandbox& sandbox) {
    if (state->failure) throw *state->failure;
    if (state->connected) throw state->error(errc::bad_argument, "connect() was called twice");
    const auto deadline = deadline_after(state->options.connect_timeout);
    const auto late = [&state](std::string_view what) {
        return state->error(errc::timed_out, std::string(what) + " within " +
                                                 seconds(state->options.connect_timeout) +
                                                 " (connect timeout)");
    };
    const McpEra preset = state->options.era;
    co_await open(state, sandbox, deadline);

    std::optional<Forget> forget_probe;
    PendingPtr probe;
    if (preset != McpEra::legacy) {
        CallOptions limits;
        json::object params;
        state->era = McpEra::modern;
        probe = start(state, "server/discover", std::move(params), std::move(limits));
        forget_probe.emplace(state, probe);
        auto allowance = deadline;
        if (preset == McpEra::detect)
            allowance = std::min(deadline, deadline_after(state->options.discover_timeout));
        const bool cancelled = co_await settle(probe, allowance);
        if (cancelled) throw state->error(errc::cancelled, "connecting was cancelled");
        if (state->closed) throw *state->failure;
        if (adopt_discovery(state, *probe)) co_return;
        if (preset == McpEra::modern) {
            if (!probe->done()) throw late("did not answer server/discover");
            result_of(state, *probe, "server/discover");
            throw state->error(errc::mcp_protocol, "does not speak protocol version 2026-07-28");
        }
        if (probe->failure && !state->failure) {
            // The sender found it gone; so will the reader, unless it is not.
            auto gone = std::make_shared<Pending>(state->executor);
            gone->id = ++state->last_id;
            state->pending.emplace(gone->id, gone);
            const Forget forget_gone(state, gone);
            auto soon = std::min(deadline, deadline_after(std::chrono::seconds(1)));
            co_await settle(gone, soon);
            if (state->closed) throw *state->failure;
        }
        if (state->failure) {
            // Some servers end when their first message is not initialize.
            state->failure.reset();
            co_await open(state, sandbox, deadline);
        }
    }

    state->era = McpEra::legacy;
    json::object params;
    params.emplace("protocolVersion", legacy_versions.front());
    params.emplace("capabilities", offered(state));
    params.emplace("clientInfo", client_info(state));
    CallOptions limits;
    auto handshake = start(state, "initialize", std::move(params), std::move(limits));
    const Forget forget_handshake(state, handshake);
    const bool cancelled = co_await settle(handshake, deadline);
    if (cancelled) throw state->error(errc::cancelled, "connecting was cancelled");
    if (state->closed) throw *state->failure;
    if (!handshake->done()) throw late("did not answer initialize");
    const bool refused = handshake->reply && handshake->reply->contains("error");
    // A modern server may have been too slow for the allowance.
    if (refused && probe && adopt_discovery(state, *probe)) co_return;
    adopt_initialize(state, result_of(state, *handshake, "initialize"));
    json::object nothing;
    spawn(state,
          deliver(state, detail::rpc_notification("notifications/initialized", std::move(nothing)),
                  PendingPtr()));
    state->connected = true;
}

inline awaitable<void> McpClient::attempt(StatePtr state, Sandbox& sandbox,
                                          std::exception_ptr& failure) {
    try {
        co_await state->transport->open(sandbox);
    } catch (const std::exception&) {
        failure = std::current_exception();
    }
}

// Opens the transport and starts reading from it.
inline awaitable<void> McpClient::open(StatePtr state, Sandbox& sandbox,
                                       Clock::time_point deadline) {
    std::exception_ptr failure;
    auto attempted = attempt(state, sandbox, failure);
    auto limit = sleep_until(deadline);
    const bool in_time = co_await ends_first(std::move(attempted), std::move(limit));
    if (state->closed) throw *state->failure;
    if (!in_time)
        throw state->error(errc::timed_out, "could not be started or reached within " +
                                                seconds(state->options.connect_timeout) +
                                                " (connect timeout)");
    if (failure) throw translate(state, failure);
    spawn(state, read(state));
}

// Whether the answer to server/discover is a modern one (2026-07-28 "Versioning"); takes over
// what it says. Throws when the server is modern and no version is common to both.
inline bool McpClient::adopt_discovery(const StatePtr& state, const Pending& probe) {
    if (!probe.reply) return false;
    const auto lists = [](const json::value* versions, std::string_view version) {
        if (versions == nullptr || !versions->is_array()) return false;
        for (const auto& entry : versions->get_array())
            if (entry.is_string() && entry.get_string() == version) return true;
        return false;
    };
    const auto knows_legacy = [&lists](const json::value* versions) {
        for (const auto version : legacy_versions)
            if (lists(versions, version)) return true;
        return false;
    };
    const json::value* result = probe.reply->if_contains("result");
    if (result != nullptr && result->is_object()) {
        const auto& answer = result->get_object();
        if (!lists(answer.if_contains("supportedVersions"), modern_version)) return false;
        const auto take = [](const json::object& from, std::string_view key) {
            const json::value* value = from.if_contains(key);
            return value != nullptr && value->is_object() ? value->get_object() : json::object();
        };
        state->capabilities = take(answer, "capabilities");
        state->server_info = take(take(answer, "_meta"), "io.modelcontextprotocol/serverInfo");
        state->instructions = detail::string_of(answer, "instructions");
        state->protocol_version = modern_version;
        state->era = McpEra::modern;
        state->connected = true;
        return true;
    }
    const json::value* error = probe.reply->if_contains("error");
    if (error == nullptr || !error->is_object()) return false;
    const auto code = detail::integer_of(error->get_object().if_contains("code"));
    if (code != detail::rpc_header_mismatch && code != detail::rpc_missing_capability &&
        code != detail::rpc_unsupported_version)
        return false;
    const json::value* data = error->get_object().if_contains("data");
    const json::value* supported = data != nullptr && data->is_object()
                                       ? data->get_object().if_contains("supported")
                                       : nullptr;
    if (knows_legacy(supported)) return false;
    throw state->error(
        errc::mcp_protocol,
        "refuses protocol version 2026-07-28: " +
            detail::excerpt(detail::string_of(error->get_object(), "message"), max_text));
}

inline void McpClient::adopt_initialize(const StatePtr& state, const json::object& result) {
    const auto version = detail::string_of(result, "protocolVersion");
    bool known = false;
    for (const auto candidate : legacy_versions) known = known || candidate == version;
    if (!known)
        throw state->error(
            errc::mcp_protocol,
            "speaks protocol version \"" + detail::excerpt(version, 64) +
                "\"; this client knows 2026-07-28, 2025-11-25, 2025-06-18, 2025-03-26 "
                "and 2024-11-05");
    state->protocol_version = version;
    if (const auto* value = result.if_contains("capabilities");
        value != nullptr && value->is_object())
        state->capabilities = value->get_object();
    if (const auto* value = result.if_contains("serverInfo");
        value != nullptr && value->is_object())
        state->server_info = value->get_object();
    state->instructions = detail::string_of(result, "instructions");
}

inline json::object McpClient::offered(const StatePtr& state) {
    json::object capabilities = state->options.capabilities;
    if (!state->options.roots.empty()) capabilities.emplace("roots", json::object());
    return capabilities;
}

inline json::object McpClient::client_info(const StatePtr& state) {
    json::object info = state->options.client_info;
    if (info.empty()) {
        info.emplace("name", "ipybox");
        info.emplace("version", detail::version);
    }
    return info;
}

// ---- requests ----

// Sends a request without waiting for its answer; the caller forgets it in time.
inline McpClient::PendingPtr McpClient::start(const StatePtr& state, std::string_view method,
                                              json::object params, CallOptions limits) {
    auto pending = std::make_shared<Pending>(state->executor);
    pending->id = ++state->last_id;
    pending->limits = std::move(limits);
    if (state->era == McpEra::modern) {
        auto& meta = params["_meta"];
        if (!meta.is_object()) meta.emplace_object();
        auto& entries = meta.get_object();
        entries["io.modelcontextprotocol/protocolVersion"] = modern_version;
        entries["io.modelcontextprotocol/clientCapabilities"] = offered(state);
        entries["io.modelcontextprotocol/clientInfo"] = client_info(state);
    }
    state->pending.emplace(pending->id, pending);
    spawn(state,
          deliver(state, detail::rpc_request(pending->id, method, std::move(params)), pending));
    return pending;
}

// Sends a message on its own, so that neither a limit nor a cancellation can cut it in two.
inline awaitable<void> McpClient::deliver(StatePtr state, json::object message,
                                          PendingPtr pending) {
    std::exception_ptr failure;
    try {
        co_await state->transport->send(std::move(message));
    } catch (const std::exception&) {
        failure = std::current_exception();
    }
    if (!failure) co_return;
    const Error error = translate(state, failure);
    if (pending) {
        pending->fail(error);
    } else {
        state->log(LogLevel::debug, error.detail());
    }
}

// Returns when the request is done, the deadline has passed, or (the value) the coroutine was
// cancelled.
inline awaitable<bool> McpClient::settle(PendingPtr pending, Clock::time_point deadline) {
    while (!pending->done() && Clock::now() < deadline) {
        pending->wake.expires_at(deadline);
        co_await pending->wake.async_wait(as_result);
        const auto cancellation = co_await asio::this_coro::cancellation_state;
        if (cancellation.cancelled() != asio::cancellation_type::none) co_return true;
    }
    co_return false;
}

// Tells the server that nobody waits any more (2025-11-25 and 2026-07-28, "Cancellation").
inline void McpClient::withdraw(const StatePtr& state, const PendingPtr& pending,
                                std::string_view reason) {
    json::object params;
    params.emplace("requestId", pending->id);
    params.emplace("reason", reason);
    spawn(state,
          deliver(state, detail::rpc_notification("notifications/cancelled", std::move(params)),
                  PendingPtr()));
    state->transport->cancel(pending->id);
}

inline json::object McpClient::result_of(const StatePtr& state, Pending& pending,
                                         std::string_view what) {
    if (pending.failure) throw *pending.failure;
    if (json::value* result = pending.reply->if_contains("result")) {
        if (result->is_object()) return std::move(result->get_object());
        throw state->error(errc::mcp_protocol,
                           "answered " + std::string(what) + " with a result that is no object");
    }
    const auto& error = pending.reply->at("error").get_object();
    const auto code = detail::integer_of(error.if_contains("code"));
    throw state->error(errc::mcp_error,
                       std::string(what) + " failed: " +
                           detail::excerpt(detail::string_of(error, "message"), max_text) +
                           (code ? " (code " + std::to_string(*code) + ")" : std::string()));
}

inline awaitable<json::object> McpClient::exchange(StatePtr state, std::string method,
                                                   json::object params, CallOptions limits,
                                                   std::string what) {
    if (state->failure) throw *state->failure;
    if (!state->connected) throw state->error(errc::bad_argument, "is not connected");
    auto& meta = params["_meta"];
    if (!meta.is_object()) meta.emplace_object();
    meta.get_object()["progressToken"] = state->last_id + 1;

    const Duration idle = limits.idle_timeout, total = limits.total_timeout;
    auto pending = start(state, method, std::move(params), std::move(limits));
    const Forget forget(state, pending);
    pending->idle_deadline = deadline_after(idle);
    const auto total_deadline = deadline_after(total);
    for (;;) {
        const bool cancelled =
            co_await settle(pending, std::min(pending->idle_deadline, total_deadline));
        // Even with an answer: the caller may be about to use a client that is gone.
        if (state->closed) throw *state->failure;
        if (pending->done()) break;
        if (cancelled) {
            withdraw(state, pending, "the caller withdrew the request");
            throw state->error(errc::cancelled, what + " was withdrawn");
        }
        const auto now = Clock::now();
        if (now >= total_deadline) {
            withdraw(state, pending, "it took too long");
            throw state->error(errc::timed_out, what + " took longer than " + seconds(total) +
                                                    " (absolute timeout)");
        }
        if (now >= pending->idle_deadline) {
            withdraw(state, pending, "neither an answer nor progress in time");
            throw state->error(errc::timed_out, what +
                                                    " brought neither an answer nor progress for " +
                                                    seconds(idle) + " (idle timeout)");
        }
    }
    co_return result_of(state, *pending, what);
}

inline awaitable<json::array> McpClient::list(StatePtr state) {
    if (state->failure) throw *state->failure;
    json::array tools;
    if (!state->capabilities.contains("tools")) co_return tools;
    std::set<std::string, std::less<>> cursors;
    std::size_t size = 0, left_out = 0;
    std::string cursor;
    const auto deadline = deadline_after(list_timeout);
    for (std::size_t page = 0;; ++page) {
        json::object params;
        if (page > 0) params.emplace("cursor", cursor);
        CallOptions limits;
        limits.total_timeout = std::max<Duration>(deadline - Clock::now(), Duration(1));
        std::string method = "tools/list", what = method;
        auto result = co_await exchange(state, std::move(method), std::move(params),
                                        std::move(limits), std::move(what));
        json::value* listed = result.if_contains("tools");
        if (listed == nullptr || !listed->is_array())
            throw state->error(errc::mcp_protocol, "answered tools/list without a list of tools");
        size += detail::text_size(*listed);
        for (auto& tool : listed->get_array()) {
            if (tool.is_object() && !detail::string_of(tool.get_object(), "name").empty()) {
                tools.push_back(std::move(tool));
            } else {
                ++left_out;
            }
        }
        const json::value* next = result.if_contains("nextCursor");
        const bool more = next != nullptr && next->is_string();
        if (more) cursor = next->get_string();
        size += cursor.size();
        if (tools.size() + left_out > max_tools || page >= max_pages)
            throw state->error(errc::mcp_protocol,
                               "lists more than " + std::to_string(max_tools) + " tools");
        if (size > max_tools_size)
            throw state->error(errc::mcp_protocol, "lists tools of more than 64 MiB");
        if (!more) break;
        if (!cursors.insert(cursor).second)
            throw state->error(errc::mcp_protocol, "lists its tools in a circle: the cursor \"" +
                                                       detail::excerpt(cursor, 80) +
                                                       "\" came twice");
    }
    if (left_out > 0)
        state->log(LogLevel::warning,
                   std::to_string(left_out) + " of its tools have no name: left out");
    co_return tools;
}

inline awaitable<CallResult> McpClient::call(StatePtr state, std::string name,
                                             json::object arguments, CallOptions limits) {
    const std::string what = "tool \"" + detail::excerpt(name, 200) + "\"";
    std::string method = "tools/call", called = what;
    json::object params;
    params.reserve(3);
    params.emplace("name", name);
    params.emplace("arguments", std::move(arguments));
    auto answer = co_await exchange(state, std::move(method), std::move(params), std::move(limits),
                                    std::move(called));
    const auto broken = [&state, &what](std::string_view how) {
        return state->error(errc::mcp_protocol, what + " returned " + std::string(how));
    };
    if (detail::string_of(answer, "resultType") == "input_required")
        throw state->error(
            errc::mcp_error,
            what + " asks for input from a person or a model; this client gives none");
    CallResult result;
    if (json::value* content = answer.if_contains("content")) {
        if (!content->is_array()) throw broken("content that is no array");
        for (const auto& block : content->get_array())
            if (!block.is_object()) throw broken("a content block that is no object");
        result.content = std::move(content->get_array());
    }
    if (json::value* structured = answer.if_contains("structuredContent"))
        result.structured_content = std::move(*structured);
    if (const json::value* failed = answer.if_contains("isError"))
        result.is_error = !failed->is_bool() || failed->get_bool();
    if (json::value* meta = answer.if_contains("_meta"); meta != nullptr && meta->is_object())
        result.meta = std::move(meta->get_object());
    co_return result;
}

// ---- what the server sends ----

inline awaitable<void> McpClient::read(StatePtr state) {
    std::exception_ptr failure;
    try {
        for (;;) {
            auto message = co_await state->transport->receive();
            dispatch(state, std::move(message));
        }
    } catch (const std::exception&) {
        failure = std::current_exception();
    }
    state->fail(translate(state, failure));
}

inline void McpClient::dispatch(const StatePtr& state, json::object message) {
    using Kind = detail::RpcMessage::Kind;
    const auto rpc = detail::classify(message);
    if (rpc.kind == Kind::notification || rpc.kind == Kind::request) {
        json::object params;
        if (rpc.body != nullptr && rpc.body->is_object())
            params = std::move(rpc.body->get_object());
        if (rpc.kind == Kind::notification) {
            notified(state, rpc.method, params);
        } else if (state->answering < max_answering) {
            ++state->answering;
            spawn(state,
                  answer(state, std::move(*rpc.id), std::string(rpc.method), std::move(params)));
        } else {
            state->log(LogLevel::warning,
                       "sends more requests than it takes answers: one is dropped");
        }
        return;
    }
    const auto id = detail::integer_of(rpc.id);
    const auto found = id ? state->pending.find(*id) : state->pending.end();
    if (found == state->pending.end() || found->second->done()) {
        if (rpc.kind == Kind::malformed) {
            state->log(LogLevel::warning, std::string("sent a malformed message: ") + rpc.problem);
        } else {
            state->log(LogLevel::debug, "sent an answer nobody waits for");
        }
        return;
    }
    const PendingPtr pending = found->second;
    if (rpc.kind == Kind::malformed) {
        pending->fail(state->error(errc::mcp_protocol,
                                   std::string("sent a malformed answer: ") + rpc.problem));
    } else {
        pending->reply = std::move(message);
        pending->wake.cancel();
    }
}

inline void McpClient::notified(const StatePtr& state, std::string_view method,
                                const json::object& params) {
    try {
        if (method == "notifications/progress") {
            progressed(state, params);
        } else if (method == "notifications/message") {
            logged(state, params);
        } else if (method == "notifications/tools/list_changed") {
            // A copy: the callback may destroy the client.
            if (const auto changed = state->options.on_tools_changed; changed && !state->closed)
                changed();
        }
    } catch (const std::exception& error) {
        state->log(LogLevel::error, std::string("a callback failed: ") + error.what());
    }
}

inline void McpClient::progressed(const StatePtr& state, const json::object& params) {
    const auto token = detail::integer_of(params.if_contains("progressToken"));
    const auto found = token ? state->pending.find(*token) : state->pending.end();
    if (found == state->pending.end() || found->second->done()) return;
    const PendingPtr pending = found->second;
    // The wait notices when its timer expires: no timer is touched here.
    pending->idle_deadline = deadline_after(pending->limits.idle_timeout);
    if (!pending->limits.on_progress) return;
    const auto number = [&params](std::string_view key) -> std::optional<double> {
        const json::value* value = params.if_contains(key);
        if (value == nullptr || !value->is_number()) return std::nullopt;
        return value->to_number<double>();
    };
    CallProgress report;
    report.progress = number("progress").value_or(0);
    report.total = number("total");
    report.message = detail::excerpt(detail::string_of(params, "message"), max_text);
    pending->limits.on_progress(report);
}

inline void McpClient::logged(const StatePtr& state, const json::object& params) {
    const auto level = detail::string_of(params, "level");
    LogLevel at = LogLevel::debug;
    if (level == "info" || level == "notice") at = LogLevel::info;
    if (level == "warning") at = LogLevel::warning;
    if (level == "error" || level == "critical" || level == "alert" || level == "emergency")
        at = LogLevel::error;
    if (!state->options.logger.enabled(at)) return;
    const json::value* data = params.if_contains("data");
    if (data == nullptr) return;
    std::string text(detail::string_of(params, "data"));
    if (!data->is_string() && detail::text_size(*data) <= 64 * max_text)
        text = json::serialize(*data);
    state->log(at, "log: " + detail::excerpt(text, max_text));
}

// Answers a request of the server (2025-11-25 "Client features"; ping is a legacy one).
inline awaitable<void> McpClient::answer(StatePtr state, json::value id, std::string method,
                                         json::object params) {
    struct Answered {
        State& state;
        ~Answered() { --state.answering; }
    };
    const Answered answered{*state};
    const bool asks = method == "elicitation/create" || method == "sampling/createMessage";
    json::object result;
    std::string refusal;
    std::int64_t code = detail::rpc_internal_error;
    if (asks && state->options.on_request) {
        try {
            auto handler = state->options.on_request;
            result = co_await handler(method, std::move(params));
        } catch (const Error& error) {
            refusal = error.detail();
        } catch (const std::exception& error) {
            refusal = error.what();
        }
        if (!refusal.empty() && method == "sampling/createMessage")
            code = detail::rpc_rejected_by_user;
    } else if (method == "roots/list") {
        result.emplace("roots", state->options.roots);
    } else if (method == "elicitation/create") {
        json::object meta;
        meta.emplace("ipybox/reason", "this client has nobody to ask");
        result.emplace("action", "decline");
        result.emplace("_meta", std::move(meta));
        state->log(LogLevel::info, "asked for input from the user: declined");
    } else if (method == "sampling/createMessage") {
        code = detail::rpc_rejected_by_user;
        refusal = "declined: this client has no model to sample from";
        state->log(LogLevel::info, "asked for a sample from a model: declined");
    } else if (method != "ping") {
        code = detail::rpc_method_not_found;
        refusal = "this client has no method \"" + detail::excerpt(method, 200) + "\"";
    }
    json::object message;
    if (refusal.empty()) {
        message = detail::rpc_result(std::move(id), std::move(result));
    } else {
        message = detail::rpc_error(std::move(id), code, refusal);
    }
    co_await deliver(state, std::move(message), PendingPtr());
}

inline awaitable<void> McpClient::shut(StatePtr state) {
    state->stop();
    std::exception_ptr failure;
    try {
        co_await state->transport->close();
    } catch (const std::exception&) {
        failure = std::current_exception();
    }
    if (failure) state->log(LogLevel::warning, translate(state, failure).detail());
    state->cancel_tasks();
}

}  // namespace ipybox
