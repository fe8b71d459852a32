#pragma once
// Speaks MCP with one server, through any transport, in both eras of the protocol: legacy (a
// handshake opens a session; 2024-11-05 to 2025-11-25) and modern (stateless; 2026-07-28).
#include <array>
#include <boost/asio/associated_cancellation_slot.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>
#include <cstdint>
#include <exception>
#include <functional>
#include <ipybox/async.hpp>
#include <ipybox/detail/build_info.hpp>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/detail/json_schema.hpp>
#include <ipybox/error.hpp>
#include <ipybox/log.hpp>
#include <ipybox/mcp/detail/schema.hpp>
#include <ipybox/mcp/detail/wire.hpp>
#include <ipybox/mcp/jsonrpc.hpp>
#include <ipybox/mcp_transport.hpp>
#include <ipybox/memory_budget.hpp>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace ipybox {

// How a server's protocol works. `detect` asks the server; McpClient::era() then tells, so that
// the answer can be kept and given the next time.
enum class McpEra { detect, legacy, modern };

// A log message of a server; as hostile as all its words.
struct McpLogMessage {
    std::string level;   // "debug" to "emergency" (RFC 5424)
    std::string logger;  // who speaks within the server; may be empty
    json::value data;    // a text, mostly
};

// What a client says of itself, and how long it waits.
struct McpClientOptions {
    std::string name;  // the server's name in messages
    McpEra era = McpEra::detect;
    // The time in which a person is waited for, because the server wants a login, does not count.
    Duration connect_timeout = std::chrono::seconds(30);
    Duration discover_timeout = std::chrono::seconds(5);  // for the answer that tells the era
    json::object client_info;                             // empty: ipybox and its version
    // What on_request can answer, as the protocol spells it: {"elicitation": {"form": {}, "url":
    // {}}, "sampling": {}}. Neither is offered to the server without on_request.
    json::object capabilities;
    json::array roots;  // {"uri", "name"}; offered as a capability when not empty
    // Results keep numbers that Boost.JSON would write otherwise (1e2, integers beyond 64 bits) with their text, to
    // be handled as detail/json_number.hpp says. Otherwise they have the nearest double.
    bool exact_numbers = false;
    // Answers elicitation/create and sampling/createMessage: gets method and params, returns the
    // result, or throws to refuse. Empty: every such request is declined. Whoever accepts a form
    // starts from detail::form_defaults(params).
    std::function<awaitable<json::object>(std::string, json::object)> on_request;
    // The server's tools are no longer those that list_tools() returned. Changes in quick
    // succession are told once; tools_current() knows of them at once.
    std::function<void()> on_tools_changed;
    // Gets each log message of the server; `logger` gets them too.
    std::function<void(const McpLogMessage&)> on_log;
    // The least severe messages that a server with a log shall send: "debug" to "emergency". Empty:
    // those that `logger` shows, and with on_log those from "info" on.
    std::string log_level;
    // Every notification but those about progress, logging and tools: method and params.
    std::function<void(const std::string&, const json::object&)> on_notification;
    Logger logger;
};

// A report of a server that works on a request.
struct CallProgress {
    double progress = 0;
    std::optional<double> total;
    std::string message;
};

// How long one request may take, and who is told of its progress.
struct CallOptions {
    // Starts anew with each progress report; a person who logs in is no idleness of the server.
    Duration idle_timeout = std::chrono::seconds(300);
    Duration total_timeout = std::chrono::hours(1);     // progress does not extend it
    // Called on the executor's thread; what it throws is logged.
    std::function<void(const CallProgress&)> on_progress;
};

// What a tool returned.
struct CallResult {
    json::array content;  // objects with "type": text, image, audio, resource, …
    std::optional<json::value> structured_content;
    bool is_error = false;  // the tool ran and failed; content says why
    json::object meta;
    // How structured_content breaks the schema that the tool's listing promises; empty if it does
    // not, or is_error.
    std::string problem;
};

// One server, many calls at once, on one thread. All member functions but close() and the
// destructor need connect() to have returned. Errors name the server; what they mean:
// mcp_connection (cannot be started or reached, or died: exit code and the tail of its standard
// error are in the text), mcp_protocol, mcp_error (the server answered with an error), timed_out
// (the text tells which limit), cancelled (the coroutine was cancelled, or the client closed).
class McpClient {
public:
    // Starts nothing: connect() does. The client owns the transport.
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
    // warning, and so are, in the modern era, tools with invalid "x-mcp-header" annotations. Empty
    // for a server without tools. A cursor that comes twice, more than 10,000 tools or 16 MiB of memory are
    // errc::mcp_protocol; more than five minutes are errc::timed_out.
    awaitable<json::array> list_tools();
    // Whether the last list_tools() still holds: the server announced no change, and the time for
    // which it vouched (ttlMs; at least ten seconds) has not passed.
    bool tools_current() const noexcept {
        return !state_->tools_changed && Clock::now() < state_->tools_expire;
    }

    // tools/call. When a limit of `options` passes or the coroutine is cancelled, the server is
    // told (notifications/cancelled) and a late answer is ignored. A server that asks for input
    // first is given what on_request and roots have, and asked again, within the same
    // total_timeout and at most 32 times.
    awaitable<CallResult> call_tool(std::string name, json::object arguments, CallOptions options);

    // Any other request of the protocol; returns its result. As call_tool() for the rest.
    awaitable<json::object> request(std::string method, json::object params, CallOptions options);

    // Has changes of a resource told to on_notification, as notifications/resources/updated.
    // Returns when the server has agreed. In the modern era the subscription is renewed when it
    // breaks; a server that ends it for good is logged.
    awaitable<void> subscribe(std::string uri);
    // Ends what subscribe() began.
    awaitable<void> unsubscribe(std::string uri);

    // Sets options.log_level anew. Returns when a legacy server has agreed (logging/setLevel);
    // modern ones are told with each request; those without a log need not know. Throws
    // errc::bad_argument for a level that is none.
    awaitable<void> set_log_level(std::string level);

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
    // Where one coroutine waits for its answer. A timer could do that, but not wake it at once.
    class Wait {
    public:
        // Until woken, or the coroutine is cancelled.
        awaitable<void> begin() {
            auto start = [this](Handler handler) { hold(std::move(handler)); };
            co_await asio::async_initiate<const asio::use_awaitable_t<>, void()>(
                std::move(start), asio::use_awaitable);
            // It names us, who may be gone when the coroutine is cancelled elsewhere.
            slot_.clear();
        }
        // When the executor gets round to it.
        void wake() {
            if (auto waiting = release()) asio::post(std::move(*waiting));
        }
        // Runs the coroutine before it returns, up to where it waits again.
        void wake_now() {
            if (auto waiting = release()) asio::dispatch(std::move(*waiting));
        }
        // Ends the coroutine without running it.
        void drop() { release(); }

    private:
        using Handler = asio::async_result<asio::use_awaitable_t<>, void()>::handler_type;
        void hold(Handler handler) {
            slot_ = asio::get_associated_cancellation_slot(handler);
            if (slot_.is_connected()) slot_.assign([this](asio::cancellation_type) { wake(); });
            handler_.emplace(std::move(handler));
        }
        std::optional<Handler> release() {
            auto waiting = std::move(handler_);
            handler_.reset();
            return waiting;
        }
        std::optional<Handler> handler_;
        asio::cancellation_slot slot_;
    };

    struct State;

    // A request without its answer.
    struct Pending final : McpTransport::Sender {
        void failed(const Error& error) override;
        bool done() const noexcept { return reply || failure; }
        void fail(const Error& error) {
            if (done()) return;
            failure = error;
            wait.wake();
        }

        Wait wait;
        std::weak_ptr<State> client;
        std::int64_t id = 0;
        std::optional<json::object> reply;  // the whole message
        std::optional<Error> failure;
        CallOptions limits;
        Clock::time_point idle_deadline = never;
        Clock::time_point deadline = never;  // when keep_time() wakes it
    };
    using PendingPtr = std::shared_ptr<Pending>;

    // One subscriptions/listen, renewed as often as it breaks.
    struct Subscription {
        explicit Subscription(const asio::any_io_executor& executor) : changed(executor) {}
        json::object filter;
        PendingPtr pending;            // the current request
        std::optional<Error> failure;  // why it is not renewed
        bool acknowledged = false;     // by the current request
        bool renewed = false;          // there was an acknowledgement before
        bool stopped = false;
        Event changed;
    };
    using SubscriptionPtr = std::shared_ptr<Subscription>;

    // The schema of a tool's structured results.
    struct OutputSchema {
        explicit OutputSchema(json::value from) : schema(std::move(from)) {}
        json::value schema;
        std::unique_ptr<detail::SchemaDocument> document;  // compiled at the first result
    };

    // What the client answers to a request of the server.
    struct Response {
        json::object result;
        std::string refusal;  // instead, when not empty
        std::int64_t code = detail::rpc_internal_error;
    };

    // Shared with every coroutine of the client, so that each may end after it.
    struct State {
        explicit State(asio::any_io_executor e) : executor(std::move(e)) {}
        asio::any_io_executor executor;
        McpClientOptions options;
        std::unique_ptr<McpTransport> transport;
        std::unordered_map<std::int64_t, PendingPtr> pending;
        std::list<asio::cancellation_signal> tasks;  // one for each coroutine of spawn()
        std::optional<Error> failure;                // why nothing will be answered any more
        bool closed = false;
        bool connected = false;
        std::int64_t last_id = 0;
        // One timer for the limits of all requests: setting one for each costs a system call.
        asio::steady_timer clock{executor};
        Clock::time_point alarm = never;  // when it rings
        bool keeping_time = false;
        bool tools_changed = false;
        bool announcing = false;  // on_tools_changed is about to be called
        Clock::time_point tools_expire = never;
        std::map<std::string, OutputSchema, std::less<>> output_schemas;
        std::map<std::string, SubscriptionPtr> subscriptions;  // by URI; "" is the list of tools
        std::map<std::string, bool> elicitations;  // by elicitationId, awaited: whether complete
        Event elicited{executor};
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
            for (const auto& [uri, subscription] : subscriptions) subscription->changed.notify();
            elicited.notify();
            clock.cancel();
        }
        // The io_context is being destroyed: who waits for an answer goes with it.
        void abandon() {
            std::vector<PendingPtr> waiting;
            for (const auto& [id, request] : pending) waiting.push_back(request);
            for (const auto& request : waiting) request->wait.drop();
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
    static constexpr std::size_t max_tools_size = std::size_t{16} << 20;
    static constexpr std::size_t max_answering = 64;
    static constexpr int max_rounds = 32;          // of input for one request
    static constexpr std::size_t max_inputs = 32;  // in one round
    static constexpr Duration changes_delay = std::chrono::milliseconds(200);
    static constexpr Duration shortest_ttl = std::chrono::seconds(10);
    static constexpr Duration elicitation_patience = std::chrono::minutes(10);
    static constexpr std::size_t max_log_lines = 100;  // a second
    static constexpr std::size_t max_text = 4096;  // of a server's words in an error or a log line

    static void spawn(const StatePtr& state, awaitable<void> work);
    static Error translate(const StatePtr& state, std::exception_ptr failure);
    static std::string seconds(Duration duration);

    static awaitable<void> connect(StatePtr state, Sandbox& sandbox);
    static awaitable<void> attempt(StatePtr state, Sandbox& sandbox, std::exception_ptr& failure);
    static awaitable<void> open(StatePtr state, Sandbox& sandbox, Clock::time_point deadline);
    static const json::value* supported_by(const Pending& refused);
    static bool lists(const json::value* versions, std::string_view version);
    static std::string_view legacy_of(const json::value* versions);
    static bool adopt_discovery(const StatePtr& state, const Pending& probe);
    static void adopt_initialize(const StatePtr& state, const json::object& result);
    static json::object offered(const StatePtr& state);
    static json::object client_info(const StatePtr& state);

    static PendingPtr start(const StatePtr& state, std::string_view method, json::object params,
                            CallOptions limits);
    static awaitable<void> deliver(StatePtr state, json::object message, PendingPtr pending);
    static awaitable<bool> settle(StatePtr state, PendingPtr pending, Clock::time_point deadline);
    static awaitable<bool> settle_patiently(StatePtr state, PendingPtr pending,
                                            Clock::time_point deadline, Duration before);
    static awaitable<void> until_late(StatePtr state, Clock::time_point deadline);
    static Clock::time_point postponed(const State& state, Clock::time_point deadline,
                                       Duration before);
    static void ring_at(const StatePtr& state, Clock::time_point deadline);
    static awaitable<void> keep_time(StatePtr state);
    static void withdraw(const StatePtr& state, const PendingPtr& pending, std::string_view reason);
    static json::object result_of(const StatePtr& state, Pending& pending, std::string_view what);
    static awaitable<json::object> exchange(StatePtr state, std::string method, json::object params,
                                            CallOptions limits, std::string what);
    static awaitable<PendingPtr> answered(StatePtr state, std::string method, json::object params,
                                          CallOptions limits, Clock::time_point total_deadline,
                                          std::string what);
    static awaitable<void> fill_in(StatePtr state, json::object requests, json::object& responses,
                                   std::optional<Error>& failure, std::string what);
    static awaitable<void> send_away(StatePtr state, json::array elicitations,
                                     std::optional<Error>& failure, std::string what);
    static json::array elicitations_of(const StatePtr& state, const Pending& pending);
    static awaitable<json::array> list(StatePtr state);
    static awaitable<CallResult> call(StatePtr state, std::string name, json::object arguments,
                                      CallOptions limits);
    static std::string schema_problem(const StatePtr& state, std::string_view tool,
                                      const CallResult& result);
    static awaitable<void> subscribe(StatePtr state, std::string uri);
    static awaitable<void> unsubscribe(StatePtr state, std::string uri);
    static awaitable<void> follow(StatePtr state, SubscriptionPtr subscription);
    static std::string log_level(const State& state);
    static awaitable<void> set_log_level(StatePtr state, std::string level);
    static awaitable<void> tell_legacy(StatePtr state, const char* method, const char* name,
                                       std::string value);
    static awaitable<void> begin_logging(StatePtr state);

    static awaitable<void> read(StatePtr state);
    static std::size_t costs(const json::object& params);
    static void dispatch(const StatePtr& state, json::object message);
    static void notified(const StatePtr& state, std::string_view method,
                         const json::object& params);
    static void progressed(const StatePtr& state, const json::object& params);
    static void logged(const StatePtr& state, const json::object& params);
    static void acknowledged(const StatePtr& state, const json::object& params);
    static void tools_changed(const StatePtr& state);
    static awaitable<void> announce(StatePtr state);
    static bool takes(const StatePtr& state, const json::object& params);
    static awaitable<Response> respond(StatePtr state, std::string method, json::object params);
    static awaitable<void> answer(StatePtr state, json::value id, std::string method,
                                  json::object params, MemoryReservation memory);
    static awaitable<void> shut(StatePtr state);

    StatePtr state_;
};

inline McpClient::McpClient(asio::any_io_executor executor, std::unique_ptr<McpTransport> transport,
                            McpClientOptions options)
    : state_(std::make_shared<State>(std::move(executor))) {
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
inline awaitable<void> McpClient::subscribe(std::string uri) {
    return subscribe(state_, std::move(uri));
}
inline awaitable<void> McpClient::unsubscribe(std::string uri) {
    return unsubscribe(state_, std::move(uri));
}
inline awaitable<void> McpClient::set_log_level(std::string level) {
    return set_log_level(state_, std::move(level));
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
    if (const auto& level = state->options.log_level;
        !level.empty() && !detail::log_severity(level))
        throw state->error(errc::bad_argument, "there is no log level \"" + level + "\"");
    const auto deadline = deadline_after(state->options.connect_timeout);
    const auto late = [&state](std::string_view what) {
        const auto words = state->transport->last_words();
        return state->error(errc::timed_out, std::string(what) + " within " +
                                                 seconds(state->options.connect_timeout) +
                                                 " (connect timeout)" +
                                                 (words.empty() ? "" : "; its standard error ends in:\n" + words));
    };
    const McpEra preset = state->options.era;
    const auto people = state->transport->people_took();
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
        const auto people_before = state->transport->people_took();
        if (preset == McpEra::detect)
            allowance = std::min(postponed(*state, deadline, people),
                                 deadline_after(state->options.discover_timeout));
        bool cancelled = co_await settle_patiently(state, probe, allowance, people_before);
        // Refused, although the server says that it knows this version: once is a formality.
        if (!cancelled && lists(supported_by(*probe), modern_version)) {
            json::object again;
            CallOptions same;
            probe = start(state, "server/discover", std::move(again), std::move(same));
            forget_probe.emplace(state, probe);
            cancelled = co_await settle_patiently(state, probe, allowance, people_before);
        }
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
            auto gone = std::make_shared<Pending>();
            gone->id = ++state->last_id;
            state->pending.emplace(gone->id, gone);
            const Forget forget_gone(state, gone);
            auto soon = deadline_after(std::chrono::seconds(1));
            co_await settle(state, gone, soon);
            if (state->closed) throw *state->failure;
        }
        if (state->failure) {
            // Some servers end when their first message is not initialize.
            state->failure.reset();
            co_await open(state, sandbox, postponed(*state, deadline, people));
        }
    }

    state->era = McpEra::legacy;
    std::optional<Forget> forget_handshake;
    PendingPtr handshake;
    for (auto version = legacy_versions.front(); !version.empty();) {
        json::object params;
        params.emplace("protocolVersion", version);
        params.emplace("capabilities", offered(state));
        params.emplace("clientInfo", client_info(state));
        CallOptions limits;
        handshake = start(state, "initialize", std::move(params), std::move(limits));
        forget_handshake.emplace(state, handshake);
        const bool cancelled = co_await settle_patiently(state, handshake, deadline, people);
        if (cancelled) throw state->error(errc::cancelled, "connecting was cancelled");
        if (state->closed) throw *state->failure;
        if (!handshake->done()) throw late("did not answer initialize");
        // A modern server may have been too slow for the allowance.
        const bool refused = handshake->reply && handshake->reply->contains("error");
        if (refused && probe && adopt_discovery(state, *probe)) co_return;
        // Some servers refuse where they should propose another version.
        const auto other = legacy_of(supported_by(*handshake));
        version = version == legacy_versions.front() && other != version ? other : "";
    }
    adopt_initialize(state, result_of(state, *handshake, "initialize"));
    json::object nothing;
    spawn(state,
          deliver(state, detail::rpc_notification("notifications/initialized", std::move(nothing)),
                  PendingPtr()));
    state->connected = true;
    if (state->capabilities.contains("logging")) spawn(state, begin_logging(state));
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
    auto limit = until_late(state, deadline);
    const bool in_time = co_await ends_first(std::move(attempted), std::move(limit));
    if (state->closed) throw *state->failure;
    if (!in_time)
        throw state->error(errc::timed_out, "could not be started or reached within " +
                                                seconds(state->options.connect_timeout) +
                                                " (connect timeout)");
    if (failure) throw translate(state, failure);
    spawn(state, read(state));
}

// The versions that the error "unsupported protocol version" names.
inline const json::value* McpClient::supported_by(const Pending& refused) {
    const json::value* error = refused.reply ? refused.reply->if_contains("error") : nullptr;
    const json::value* data =
        error != nullptr && error->is_object() ? error->get_object().if_contains("data") : nullptr;
    return data != nullptr && data->is_object() ? data->get_object().if_contains("supported")
                                                : nullptr;
}

inline bool McpClient::lists(const json::value* versions, std::string_view version) {
    if (versions == nullptr || !versions->is_array()) return false;
    for (const auto& entry : versions->get_array())
        if (entry.is_string() && entry.get_string() == version) return true;
    return false;
}

// The newest legacy version in a list; empty when there is none.
inline std::string_view McpClient::legacy_of(const json::value* versions) {
    for (const auto version : legacy_versions)
        if (lists(versions, version)) return version;
    return {};
}

// Whether the answer to server/discover is a modern one (2026-07-28 "Versioning"); takes over
// what it says. Throws when the server is modern and no version is common to both.
inline bool McpClient::adopt_discovery(const StatePtr& state, const Pending& probe) {
    if (!probe.reply) return false;
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
        if (state->server_info.empty()) state->server_info = take(answer, "serverInfo");
        state->instructions = detail::string_of(answer, "instructions");
        state->protocol_version = modern_version;
        state->era = McpEra::modern;
        state->connected = true;
        const auto tools = take(state->capabilities, "tools");
        const json::value* changes = tools.if_contains("listChanged");
        if (state->options.on_tools_changed && changes != nullptr && changes->is_bool() &&
            changes->get_bool()) {
            auto subscription = std::make_shared<Subscription>(state->executor);
            subscription->filter.emplace("toolsListChanged", true);
            state->subscriptions[""] = subscription;
            spawn(state, follow(state, std::move(subscription)));
        }
        return true;
    }
    const json::value* error = probe.reply->if_contains("error");
    if (error == nullptr || !error->is_object()) return false;
    const auto code = detail::integer_of(error->get_object().if_contains("code"));
    if (code != detail::rpc_header_mismatch && code != detail::rpc_missing_capability &&
        code != detail::rpc_unsupported_version)
        return false;
    if (!legacy_of(supported_by(probe)).empty()) return false;
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
    if (!state->options.on_request) {
        capabilities.erase("elicitation");
        capabilities.erase("sampling");
    }
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
    auto pending = std::make_shared<Pending>();
    pending->client = state;
    pending->id = ++state->last_id;
    pending->limits = std::move(limits);
    if (state->era == McpEra::modern) {
        auto& meta = params["_meta"];
        if (!meta.is_object()) meta.emplace_object();
        auto& entries = meta.get_object();
        entries["io.modelcontextprotocol/protocolVersion"] = modern_version;
        entries["io.modelcontextprotocol/clientCapabilities"] = offered(state);
        entries["io.modelcontextprotocol/clientInfo"] = client_info(state);
        if (state->capabilities.contains("logging"))
            if (const auto level = log_level(*state); !level.empty())
                entries["io.modelcontextprotocol/logLevel"] = level;
    }
    state->pending.emplace(pending->id, pending);
    if (!state->transport->send_now(pending->id, method, params, pending))
        spawn(state,
              deliver(state, detail::rpc_request(pending->id, method, std::move(params)), pending));
    return pending;
}

// The transport's word on it.
inline void McpClient::Pending::failed(const Error& error) {
    if (const auto state = client.lock()) fail({error.code(), state->named(error.detail())});
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
inline awaitable<bool> McpClient::settle(StatePtr state, PendingPtr pending,
                                         Clock::time_point deadline) {
    pending->deadline = deadline;
    ring_at(state, deadline);
    while (!pending->done() && Clock::now() < deadline) {
        co_await pending->wait.begin();
        const auto cancellation = co_await asio::this_coro::cancellation_state;
        if (cancellation.cancelled() != asio::cancellation_type::none) co_return true;
    }
    co_return false;
}

// The deadline without the time that people have taken since they had taken `before`. While one is
// waited for it is always a little ahead.
inline Clock::time_point McpClient::postponed(const State& state, Clock::time_point deadline,
                                              Duration before) {
    const auto taken = state.transport->people_took() - before;
    if (deadline == never || taken <= Duration::zero()) return deadline;
    const auto later = deadline + taken;
    const auto now = Clock::now();
    return later > now && later - now < std::chrono::milliseconds(100)
               ? now + std::chrono::milliseconds(100)
               : later;
}

// As settle(), but for a deadline that people postpone.
inline awaitable<bool> McpClient::settle_patiently(StatePtr state, PendingPtr pending,
                                                   Clock::time_point deadline, Duration before) {
    for (;;) {
        const auto until = postponed(*state, deadline, before);
        const bool cancelled = co_await settle(state, pending, until);
        if (cancelled || pending->done() || postponed(*state, deadline, before) <= Clock::now())
            co_return cancelled;
    }
}

inline awaitable<void> McpClient::until_late(StatePtr state, Clock::time_point deadline) {
    const auto before = state->transport->people_took();
    for (auto until = deadline; Clock::now() < until;) {
        co_await sleep_until(until);
        const auto cancellation = co_await asio::this_coro::cancellation_state;
        if (cancellation.cancelled() != asio::cancellation_type::none) co_return;
        until = postponed(*state, deadline, before);
    }
}

// Sees to it that keep_time() looks at the requests at `deadline`. Most deadlines are later than
// the one before: nothing to do.
inline void McpClient::ring_at(const StatePtr& state, Clock::time_point deadline) {
    if (deadline >= state->alarm) return;
    state->alarm = deadline;
    if (state->keeping_time) {
        state->clock.expires_at(deadline);
    } else {
        state->keeping_time = true;
        spawn(state, keep_time(state));
    }
}

inline awaitable<void> McpClient::keep_time(StatePtr state) {
    struct Stop {
        State& state;
        ~Stop() {
            state.keeping_time = false;
            state.alarm = never;
        }
    };
    const Stop stop{*state};
    while (!state->failure && state->alarm != never) {
        state->clock.expires_at(state->alarm);
        co_await state->clock.async_wait(as_result);
        const auto cancellation = co_await asio::this_coro::cancellation_state;
        if (cancellation.cancelled() != asio::cancellation_type::none) co_return;
        const auto now = Clock::now();
        if (now < state->alarm) continue;
        state->alarm = never;
        for (const auto& [id, waiting] : state->pending) {
            if (waiting->deadline <= now) {
                waiting->wait.wake();
            } else {
                state->alarm = std::min(state->alarm, waiting->deadline);
            }
        }
    }
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

// Sends a request and waits for its answer, within its limits.
inline awaitable<McpClient::PendingPtr> McpClient::answered(StatePtr state, std::string method,
                                                            json::object params, CallOptions limits,
                                                            Clock::time_point total_deadline,
                                                            std::string what) {
    auto& meta = params["_meta"];
    if (!meta.is_object()) meta.emplace_object();
    meta.get_object()["progressToken"] = state->last_id + 1;
    const Duration idle = limits.idle_timeout, total = limits.total_timeout;
    auto pending = start(state, method, std::move(params), std::move(limits));
    const Forget forget(state, pending);
    pending->idle_deadline = deadline_after(idle);
    auto people = state->transport->people_took();
    for (;;) {
        const bool cancelled =
            co_await settle(state, pending, std::min(pending->idle_deadline, total_deadline));
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
        if (now < pending->idle_deadline) continue;
        pending->idle_deadline = postponed(*state, pending->idle_deadline, people);
        people = state->transport->people_took();
        if (now >= pending->idle_deadline) {
            withdraw(state, pending, "neither an answer nor progress in time");
            throw state->error(errc::timed_out, what +
                                                    " brought neither an answer nor progress for " +
                                                    seconds(idle) + " (idle timeout)");
        }
    }
    co_return pending;
}

// A request from its first sending to its result, with the rounds of input that the server wants
// in between (2026-07-28 "Multi Round-Trip Requests", 2025-11-25 "URL mode elicitation").
inline awaitable<json::object> McpClient::exchange(StatePtr state, std::string method,
                                                   json::object params, CallOptions limits,
                                                   std::string what) {
    if (state->failure) throw *state->failure;
    if (!state->connected) throw state->error(errc::bad_argument, "is not connected");
    const auto total_deadline = deadline_after(limits.total_timeout);
    const bool may_ask =
        method == "tools/call" || method == "prompts/get" || method == "resources/read";
    const bool modern = state->era == McpEra::modern;
    const bool keep = may_ask && (modern || state->options.on_request);
    Duration pause = std::chrono::milliseconds(100);
    for (int round = 0;; ++round) {
        json::object sent;
        if (keep) {
            sent = params;
        } else {
            sent = std::move(params);
        }
        auto pending =
            co_await answered(state, method, std::move(sent), limits, total_deadline, what);
        json::object asked;
        json::array pages = elicitations_of(state, *pending);
        if (pages.empty()) {
            asked = result_of(state, *pending, what);
            const auto type = detail::string_of(asked, "resultType");
            if (!modern || type.empty() || type == "complete") co_return asked;
            if (type != "input_required" || !may_ask)
                throw state->error(errc::mcp_protocol, what + " returned a result of the type \"" +
                                                           detail::excerpt(type, 80) +
                                                           "\", which has no place there");
        }
        if (round >= max_rounds)
            throw state->error(errc::mcp_error,
                               what + " asks for input again and again: given up after " +
                                   std::to_string(max_rounds) + " times");
        std::optional<Error> failure;
        json::object responses;
        bool in_time = true;
        if (!pages.empty()) {
            auto work = send_away(state, std::move(pages), failure, what);
            auto limit = sleep_until(total_deadline);
            in_time = co_await ends_first(std::move(work), std::move(limit));
        } else {
            const json::value* inputs = asked.if_contains("inputRequests");
            if (inputs != nullptr && inputs->is_object()) {
                json::object requests = inputs->get_object();
                auto work = fill_in(state, std::move(requests), responses, failure, what);
                auto limit = sleep_until(total_deadline);
                in_time = co_await ends_first(std::move(work), std::move(limit));
            } else if (!asked.contains("requestState")) {
                throw state->error(errc::mcp_protocol, what + " asks for input, but not for which");
            } else {
                // The server only wants to be asked again.
                const auto soon = std::min(deadline_after(pause), total_deadline);
                co_await sleep_until(soon);
                pause = std::min<Duration>(2 * pause, std::chrono::seconds(5));
            }
            params.erase("inputResponses");
            params.erase("requestState");
            if (!responses.empty()) params.emplace("inputResponses", std::move(responses));
            if (json::value* opaque = asked.if_contains("requestState"))
                params.emplace("requestState", std::move(*opaque));
        }
        const auto cancellation = co_await asio::this_coro::cancellation_state;
        if (state->failure) throw *state->failure;
        if (cancellation.cancelled() != asio::cancellation_type::none)
            throw state->error(errc::cancelled, what + " was withdrawn");
        if (!in_time)
            throw state->error(errc::timed_out, what + " got no input within " +
                                                    seconds(limits.total_timeout) +
                                                    " (absolute timeout)");
        if (failure) throw *failure;
    }
}

// The answers to the requests of one round, by their keys.
inline awaitable<void> McpClient::fill_in(StatePtr state, json::object requests,
                                          json::object& responses, std::optional<Error>& failure,
                                          std::string what) {
    if (requests.size() > max_inputs) {
        failure =
            state->error(errc::mcp_protocol, what + " asks for more than " +
                                                 std::to_string(max_inputs) + " inputs at once");
        co_return;
    }
    for (auto& [key, entry] : requests) {
        auto* request = entry.if_object();
        std::string method(request != nullptr ? detail::string_of(*request, "method") : "");
        if (method.empty()) {
            failure = state->error(errc::mcp_protocol, what + " asks for input without a method");
            co_return;
        }
        json::object params;
        if (auto* given = request->if_contains("params"); given != nullptr && given->is_object())
            params = std::move(given->get_object());
        Response response = co_await respond(state, method, std::move(params));
        if (!response.refusal.empty() && method == "elicitation/create") {
            response.result["action"] = "decline";
        } else if (!response.refusal.empty()) {
            failure = state->error(errc::mcp_error,
                                   what + " asks for input by " + detail::excerpt(method, 200) +
                                       ": " + detail::excerpt(response.refusal, max_text));
            co_return;
        }
        responses.emplace(key, std::move(response.result));
    }
}

// The pages that somebody must visit before a legacy request can succeed: parameters of
// elicitation/create. Empty unless they are the answer, and can be shown to somebody.
inline json::array McpClient::elicitations_of(const StatePtr& state, const Pending& pending) {
    if (!state->options.on_request || !pending.reply) return {};
    const json::value* error = pending.reply->if_contains("error");
    if (error == nullptr || !error->is_object()) return {};
    const auto& refusal = error->get_object();
    if (detail::integer_of(refusal.if_contains("code")) != detail::rpc_url_elicitation_required)
        return {};
    const json::value* offer = state->options.capabilities.if_contains("elicitation");
    if (offer == nullptr || !offer->is_object() || !offer->get_object().contains("url")) return {};
    const json::value* data = refusal.if_contains("data");
    const json::value* listed = data != nullptr && data->is_object()
                                    ? data->get_object().if_contains("elicitations")
                                    : nullptr;
    if (listed == nullptr || !listed->is_array() || listed->get_array().size() > max_inputs)
        return {};
    for (const auto& entry : listed->get_array())
        if (!entry.is_object()) return {};
    return listed->get_array();
}

// Sends somebody to pages, and waits until the server says that they are done with them.
inline awaitable<void> McpClient::send_away(StatePtr state, json::array elicitations,
                                            std::optional<Error>& failure, std::string what) {
    struct Await {
        State& state;
        std::set<std::string> ids;
        ~Await() {
            for (const auto& id : ids) state.elicitations.erase(id);
        }
    };
    Await await{*state, {}};
    for (const auto& entry : elicitations) {
        std::string id(detail::string_of(entry.get_object(), "elicitationId"));
        if (id.empty() || state->elicitations.contains(id)) continue;
        state->elicitations.emplace(id, false);
        await.ids.insert(std::move(id));
    }
    for (auto& entry : elicitations) {
        json::object params = entry.get_object();
        params["mode"] = "url";
        Response response = co_await respond(state, "elicitation/create", std::move(params));
        if (!response.refusal.empty() || detail::string_of(response.result, "action") != "accept") {
            failure = state->error(errc::mcp_error,
                                   what + " needs a page to be visited, which was declined");
            co_return;
        }
    }
    const auto done = [&state, &await] {
        return std::all_of(await.ids.begin(), await.ids.end(),
                           [&state](const std::string& id) { return state->elicitations.at(id); });
    };
    // A server need not tell: then trying is the way to find out.
    const auto deadline = deadline_after(elicitation_patience);
    while (!done() && !state->failure && Clock::now() < deadline)
        co_await state->elicited.wait(deadline);
}

inline awaitable<json::array> McpClient::list(StatePtr state) {
    if (state->failure) throw *state->failure;
    json::array tools;
    if (!state->capabilities.contains("tools")) co_return tools;
    std::set<std::string, std::less<>> cursors;
    std::map<std::string, OutputSchema, std::less<>> schemas;
    std::optional<std::int64_t> ttl;  // milliseconds; the shortest of all pages
    state->tools_changed = false;     // what changes from here on comes too late for some page
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
        size += detail::memory_size(*listed);
        for (auto& tool : listed->get_array()) {
            if (!tool.is_object() || detail::string_of(tool.get_object(), "name").empty()) {
                ++left_out;
                continue;
            }
            const auto& object = tool.get_object();
            std::string name(detail::string_of(object, "name"));
            const json::value* input = object.if_contains("inputSchema");
            if (state->era == McpEra::modern && input != nullptr) {
                const detail::HeaderAnnotations annotations(*input);
                if (!annotations.problem().empty()) {
                    state->log(LogLevel::warning, "the tool \"" + detail::excerpt(name, 200) +
                                                      "\" is left out: it has " +
                                                      annotations.problem());
                    continue;
                }
            }
            if (const json::value* output = object.if_contains("outputSchema");
                output != nullptr && output->is_object())
                schemas.insert_or_assign(std::move(name), OutputSchema(*output));
            tools.push_back(std::move(tool));
        }
        if (const auto lasts = detail::integer_of(result.if_contains("ttlMs")))
            ttl = std::min(ttl.value_or(*lasts), *lasts);
        const json::value* next = result.if_contains("nextCursor");
        // Some servers end their lists with an empty cursor.
        const bool more = next != nullptr && next->is_string() && !next->get_string().empty();
        if (more) cursor = next->get_string();
        size += cursor.size();
        if (tools.size() + left_out > max_tools || page >= max_pages)
            throw state->error(errc::mcp_protocol,
                               "lists more than " + std::to_string(max_tools) + " tools");
        if (size > max_tools_size)
            throw state->error(errc::mcp_protocol, "lists tools that take more than 16 MiB of memory");
        if (!more) break;
        if (!cursors.insert(cursor).second)
            throw state->error(errc::mcp_protocol, "lists its tools in a circle: the cursor \"" +
                                                       detail::excerpt(cursor, 80) +
                                                       "\" came twice");
    }
    state->output_schemas = std::move(schemas);
    state->tools_expire = never;
    if (ttl && *ttl > 0 && *ttl < std::int64_t{1000} * 60 * 60 * 24 * 365) {
        const Duration lasts = std::chrono::milliseconds(*ttl);
        state->tools_expire = deadline_after(std::max(lasts, shortest_ttl));
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
    CallResult result;
    if (json::value* content = answer.if_contains("content");
        content != nullptr && !content->is_null()) {
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
    result.problem = schema_problem(state, name, result);
    if (!result.problem.empty())
        state->log(LogLevel::warning, what + " returned what its output schema does not allow: " +
                                          detail::excerpt(result.problem, max_text));
    co_return result;
}

inline std::string McpClient::schema_problem(const StatePtr& state, std::string_view tool,
                                             const CallResult& result) {
    const auto found = state->output_schemas.find(tool);
    if (result.is_error || found == state->output_schemas.end()) return {};
    if (!result.structured_content) return "it has no structured content";
    OutputSchema& output = found->second;
    try {
        if (!output.document)
            output.document = std::make_unique<detail::SchemaDocument>(output.schema);
        detail::SchemaValidator validator(*output.document);
        return validator.problem(output.document->root(), *result.structured_content).value_or("");
    } catch (const Error& error) {
        return error.detail();
    }
}

// What a legacy server is asked to remember, and answers with nothing.
inline awaitable<void> McpClient::tell_legacy(StatePtr state, const char* method, const char* name,
                                              std::string value) {
    json::object params;
    params.emplace(name, std::move(value));
    CallOptions limits;
    limits.total_timeout = state->options.connect_timeout;
    std::string what = method;
    co_await exchange(state, method, std::move(params), std::move(limits), std::move(what));
}

// ---- subscriptions ----

inline awaitable<void> McpClient::subscribe(StatePtr state, std::string uri) {
    if (state->era != McpEra::modern) {
        co_await tell_legacy(state, "resources/subscribe", "uri", std::move(uri));
        co_return;
    }
    if (state->failure) throw *state->failure;
    if (!state->connected) throw state->error(errc::bad_argument, "is not connected");
    if (uri.empty()) throw state->error(errc::bad_argument, "a resource has no empty URI");
    auto& place = state->subscriptions[uri];
    if (place) co_return;
    auto subscription = std::make_shared<Subscription>(state->executor);
    place = subscription;
    json::array uris;
    uris.emplace_back(uri);
    subscription->filter.emplace("resourceSubscriptions", std::move(uris));
    spawn(state, follow(state, subscription));
    const auto deadline = deadline_after(state->options.connect_timeout);
    std::optional<Error> failure;
    while (!subscription->acknowledged && !failure) {
        co_await subscription->changed.wait(deadline);
        const auto cancellation = co_await asio::this_coro::cancellation_state;
        if (state->failure) throw *state->failure;
        failure = subscription->failure;
        if (cancellation.cancelled() != asio::cancellation_type::none)
            failure = state->error(errc::cancelled, "the subscription was withdrawn");
        else if (Clock::now() >= deadline)
            failure = state->error(errc::timed_out, "did not agree to a subscription within " +
                                                        seconds(state->options.connect_timeout));
    }
    if (!failure) co_return;
    co_await unsubscribe(state, std::move(uri));
    throw *failure;
}

inline awaitable<void> McpClient::unsubscribe(StatePtr state, std::string uri) {
    if (state->era != McpEra::modern) {
        co_await tell_legacy(state, "resources/unsubscribe", "uri", std::move(uri));
        co_return;
    }
    const auto found = state->subscriptions.find(uri);
    if (uri.empty() || found == state->subscriptions.end()) co_return;
    const auto subscription = found->second;
    state->subscriptions.erase(found);
    subscription->stopped = true;
    subscription->changed.notify();
    if (subscription->pending) {
        withdraw(state, subscription->pending, "nobody listens any more");
        subscription->pending->fail(
            state->error(errc::cancelled, "the subscription was withdrawn"));
    }
}

// Listens until told to stop, beginning anew when the stream breaks (2026-07-28 "Subscriptions").
inline awaitable<void> McpClient::follow(StatePtr state, SubscriptionPtr subscription) {
    Duration pause = std::chrono::seconds(1);
    bool first = true;
    while (!subscription->stopped && !state->failure) {
        json::object params;
        params.emplace("notifications", subscription->filter);
        CallOptions limits;
        limits.idle_timeout = Duration::zero();
        auto pending = start(state, "subscriptions/listen", std::move(params), std::move(limits));
        const Forget forget(state, pending);
        subscription->pending = pending;
        const bool cancelled = co_await settle(state, pending, never);
        if (cancelled || subscription->stopped || state->failure) co_return;
        if (subscription->acknowledged) {
            pause = std::chrono::seconds(1);
            first = false;
        }
        subscription->acknowledged = false;
        const json::value* error = pending->reply ? pending->reply->if_contains("error") : nullptr;
        if (error != nullptr && first) {
            try {
                result_of(state, *pending, "subscriptions/listen");
            } catch (const Error& refused) {
                subscription->failure = refused;
            }
            state->log(LogLevel::info, subscription->failure->detail());
            subscription->changed.notify();
            co_return;
        }
        const auto later = deadline_after(pause);
        co_await subscription->changed.wait(later);
        const auto cancellation = co_await asio::this_coro::cancellation_state;
        if (cancellation.cancelled() != asio::cancellation_type::none) co_return;
        pause = std::min<Duration>(2 * pause, std::chrono::minutes(1));
    }
}

// ---- the server's log ----

// From where on the server's log messages are wanted; empty: not at all.
inline std::string McpClient::log_level(const State& state) {
    const auto& options = state.options;
    if (!options.log_level.empty()) return options.log_level;
    for (const auto& [level, name] :
         {std::pair(LogLevel::debug, "debug"), std::pair(LogLevel::info, "info"),
          std::pair(LogLevel::warning, "warning"), std::pair(LogLevel::error, "error")})
        if (options.logger.enabled(level) || (options.on_log && level == LogLevel::info))
            return name;
    return {};
}

inline awaitable<void> McpClient::set_log_level(StatePtr state, std::string level) {
    if (!detail::log_severity(level))
        throw state->error(errc::bad_argument, "there is no log level \"" + level + "\"");
    state->options.log_level = level;
    if (state->era != McpEra::modern && state->capabilities.contains("logging"))
        co_await tell_legacy(state, "logging/setLevel", "level", std::move(level));
}

// A legacy server decides by itself what it logs until it is told.
inline awaitable<void> McpClient::begin_logging(StatePtr state) {
    std::string level = log_level(*state);
    if (level.empty()) co_return;
    try {
        co_await tell_legacy(state, "logging/setLevel", "level", std::move(level));
    } catch (const Error& error) {
        if (!state->closed) state->log(LogLevel::debug, error.detail());
    }
}

// ---- what the server sends ----

inline awaitable<void> McpClient::read(StatePtr state) {
    struct Abandon {
        State* state;
        ~Abandon() {
            if (state != nullptr) state->abandon();
        }
    };
    Abandon abandon{state.get()};
    std::exception_ptr failure;
    try {
        for (;;) {
            auto message = co_await state->transport->receive();
            dispatch(state, std::move(message));
        }
    } catch (const std::exception&) {
        failure = std::current_exception();
    }
    abandon.state = nullptr;
    state->fail(translate(state, failure));
}

// What the parameters of a request take of the memory that all share while it is answered; small
// ones, of which there are few, nothing.
inline std::size_t McpClient::costs(const json::object& params) {
    const auto size = detail::memory_size(params);
    return size > (std::size_t{16} << 10) ? size : 0;
}

inline void McpClient::dispatch(const StatePtr& state, json::object message) {
    using Kind = detail::RpcMessage::Kind;
    // Some servers write out the one of the two that they do not use: a fourth member.
    for (const auto& [used, unused] :
         {std::pair("result", "error"), std::pair("error", "result")}) {
        if (message.size() < 4) break;
        const json::value* empty = message.if_contains(unused);
        if (empty != nullptr && empty->is_null() && message.contains(used)) message.erase(unused);
    }
    const auto rpc = detail::classify(message);
    // Callbacks of applications know no other numbers.
    if (rpc.body != nullptr && !(rpc.kind == Kind::result && state->options.exact_numbers)) detail::round_numbers(*rpc.body);
    if (rpc.kind == Kind::notification || rpc.kind == Kind::request) {
        json::object params;
        if (rpc.body != nullptr && rpc.body->is_object())
            params = std::move(rpc.body->get_object());
        if (rpc.kind == Kind::notification) {
            notified(state, rpc.method, params);
        } else if (MemoryReservation memory; state->answering < max_answering && memory.resize(costs(params))) {
            ++state->answering;
            spawn(state, answer(state, std::move(*rpc.id), std::string(rpc.method), std::move(params),
                                std::move(memory)));
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
        try {
            pending->wait.wake_now();
        } catch (...) {
            // Of whatever the caller's coroutine ends in: not the reader's business.
            asio::post(state->executor,
                       [thrown = std::current_exception()] { std::rethrow_exception(thrown); });
        }
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
            tools_changed(state);
        } else if (method == "notifications/subscriptions/acknowledged") {
            acknowledged(state, params);
        } else {
            if (method == "notifications/elicitation/complete") {
                const auto found = state->elicitations.find(
                    std::string(detail::string_of(params, "elicitationId")));
                if (found != state->elicitations.end()) found->second = true;
                state->elicited.notify();
            }
            // A copy: the callback may destroy the client.
            if (const auto told = state->options.on_notification; told && !state->closed)
                told(std::string(method), params);
        }
    } catch (const std::exception& error) {
        state->log(LogLevel::error, std::string("a callback failed: ") + error.what());
    }
}

inline void McpClient::acknowledged(const StatePtr& state, const json::object& params) {
    const json::value* meta = params.if_contains("_meta");
    const auto id = meta != nullptr && meta->is_object()
                        ? detail::integer_of(meta->get_object().if_contains(
                              "io.modelcontextprotocol/subscriptionId"))
                        : std::nullopt;
    for (const auto& [uri, subscription] : state->subscriptions) {
        if (!id || !subscription->pending || subscription->pending->id != *id) continue;
        const json::value* agreed = params.if_contains("notifications");
        const char* wanted = uri.empty() ? "toolsListChanged" : "resourceSubscriptions";
        const bool honoured =
            agreed != nullptr && agreed->is_object() && agreed->get_object().contains(wanted);
        if (!honoured)
            subscription->failure = state->error(
                errc::mcp_error, "does not tell of changes of " +
                                     (uri.empty() ? "its tools" : detail::excerpt(uri, max_text)));
        // Changes before now went unnoticed.
        if (uri.empty() && honoured && subscription->renewed) tools_changed(state);
        subscription->acknowledged = honoured;
        subscription->renewed = true;
        subscription->changed.notify();
    }
}

inline void McpClient::tools_changed(const StatePtr& state) {
    state->tools_changed = true;
    if (state->announcing || !state->options.on_tools_changed) return;
    state->announcing = true;
    spawn(state, announce(state));
}

// Tells of changed tools when no more changes follow at once.
inline awaitable<void> McpClient::announce(StatePtr state) {
    const auto soon = deadline_after(changes_delay);
    co_await sleep_until(soon);
    state->announcing = false;
    // A copy: the callback may destroy the client.
    const auto changed = state->options.on_tools_changed;
    if (state->closed || state->failure) co_return;
    try {
        changed();
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
    const json::value* data = params.if_contains("data");
    if (data == nullptr) return;
    // A copy: the callback may destroy the client.
    if (const auto told = state->options.on_log; told && !state->closed) {
        McpLogMessage message;
        message.level = detail::log_severity(level) ? level : "debug";
        message.logger = detail::excerpt(detail::string_of(params, "logger"), max_text);
        message.data = *data;
        told(message);
    }
    if (!state->options.logger.enabled(at)) return;
    std::string text(detail::string_of(params, "data"));
    if (!data->is_string() && detail::text_size(*data) <= 64 * max_text)
        text = detail::write_json(*data);
    state->log(at, "log: " + detail::excerpt(text, max_text));
}

// Whether the mode of an elicitation is one that was offered; forms need not be named.
inline bool McpClient::takes(const StatePtr& state, const json::object& params) {
    const json::value* offer = state->options.capabilities.if_contains("elicitation");
    if (offer == nullptr || !offer->is_object()) return true;
    const auto mode = detail::string_of(params, "mode");
    if (mode.empty() || mode == "form")
        return offer->get_object().empty() || offer->get_object().contains("form");
    return offer->get_object().contains(mode);
}

// The answer to a request of the server (2025-11-25 "Client features"; ping is a legacy one).
inline awaitable<McpClient::Response> McpClient::respond(StatePtr state, std::string method,
                                                         json::object params) {
    const bool form = method == "elicitation/create";
    const bool sample = method == "sampling/createMessage";
    Response response;
    if (form && state->options.on_request && !takes(state, params)) {
        response.code = detail::rpc_invalid_params;
        response.refusal = "this client does not take elicitations of this mode";
    } else if ((form || sample) && state->options.on_request) {
        try {
            auto handler = state->options.on_request;
            response.result = co_await handler(method, std::move(params));
        } catch (const Error& error) {
            response.refusal = error.detail();
        } catch (const std::exception& error) {
            response.refusal = error.what();
        }
        if (!response.refusal.empty() && sample) response.code = detail::rpc_rejected_by_user;
    } else if (method == "roots/list") {
        response.result.emplace("roots", state->options.roots);
    } else if (form) {
        json::object meta;
        meta.emplace("ipybox/reason", "this client has nobody to ask");
        response.result.emplace("action", "decline");
        response.result.emplace("_meta", std::move(meta));
        state->log(LogLevel::info, "asked for input from the user: declined");
    } else if (sample) {
        response.code = detail::rpc_rejected_by_user;
        response.refusal = "declined: this client has no model to sample from";
        state->log(LogLevel::info, "asked for a sample from a model: declined");
    } else if (method != "ping") {
        response.code = detail::rpc_method_not_found;
        response.refusal = "this client has no method \"" + detail::excerpt(method, 200) + "\"";
    }
    co_return response;
}

inline awaitable<void> McpClient::answer(StatePtr state, json::value id, std::string method,
                                         json::object params, MemoryReservation /* until then */) {
    struct Answered {
        State& state;
        ~Answered() { --state.answering; }
    };
    const Answered answered{*state};
    Response response = co_await respond(state, std::move(method), std::move(params));
    json::object message;
    if (response.refusal.empty()) {
        message = detail::rpc_result(std::move(id), std::move(response.result));
    } else {
        message = detail::rpc_error(std::move(id), response.code, response.refusal);
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
