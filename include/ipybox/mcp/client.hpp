#pragma once
// Speaks MCP with one server, through any transport, in both eras of the protocol: legacy (a
// handshake opens a session; 2024-11-05 to 2025-11-25) and modern (stateless; 2026-07-28).
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>
#include <cstdint>
#include <exception>
#include <functional>
#include <ipybox/async.hpp>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/detail/json_schema.hpp>
#include <ipybox/error.hpp>
#include <ipybox/log.hpp>
#include <ipybox/mcp/detail/form_defaults.hpp>
#include <ipybox/mcp/detail/handshake.hpp>
#include <ipybox/mcp/detail/wire.hpp>
#include <ipybox/mcp/era.hpp>
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

namespace ipybox {

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
    // Results keep numbers that Boost.JSON would write otherwise (1e2, integers beyond 64 bits)
    // with their text, to be handled as detail/json_number.hpp says. Otherwise they have the
    // nearest double.
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
    // The least severe messages that a server with a log should send: "debug" to "emergency".
    // Empty: those that `logger` shows, and with on_log those from "info" on.
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
    // Starts again with each progress report; the time that a person takes to log in does not
    // count.
    Duration idle_timeout = std::chrono::seconds(300);
    Duration total_timeout = std::chrono::hours(1);  // progress does not extend it
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
// destructor need connect() to have returned. What waits for the server throws Error:
// mcp_connection (it cannot be started or reached, or died: exit code and the tail of its standard
// error are in the text), mcp_protocol (it broke the protocol), mcp_error (it answered with an
// error), timed_out (the text tells which limit), cancelled (the coroutine was cancelled, or the
// client closed). Errors name the server.
class McpClient {
public:
    // Starts nothing: connect() does. The client owns the transport.
    McpClient(asio::any_io_executor executor, std::unique_ptr<McpTransport> transport,
              McpClientOptions options);
    // At any moment, also from a callback: what is pending throws Error: cancelled. The server ends
    // as soon as the executor runs again, or is destroyed; close() ends it in order.
    ~McpClient();
    McpClient(const McpClient&) = delete;
    McpClient& operator=(const McpClient&) = delete;

    // Starts the server and agrees on a protocol version, within options.connect_timeout: asks
    // with server/discover (2026-07-28), and shakes hands with initialize (2025-11-25 or older)
    // if the answer is not a modern one. A server that ends when it is asked is started again.
    // Call once. After an error the client is no longer usable.
    awaitable<void> connect(Sandbox& sandbox);

    // All pages of tools/list: objects with a non-empty string "name"; others are left out with a
    // warning, and so are, in the modern era, tools with invalid "x-mcp-header" annotations. Empty
    // for a server without tools. Throws Error: mcp_protocol (a cursor comes twice, or there are
    // more than 10,000 tools or 16 MiB of memory), timed_out (after five minutes).
    awaitable<json::array> list_tools();
    // Whether the last list_tools() still holds: the server announced no change, and the time for
    // which it vouched (ttlMs; at least ten seconds) has not passed.
    bool tools_current() const noexcept {
        return !state_->tools_changed && Clock::now() < state_->tools_expire;
    }

    // tools/call. When a limit of `options` passes or the coroutine is cancelled, the server is
    // told (notifications/cancelled) and a late answer is ignored. A server that asks for input
    // first is given what on_request and roots have, and asked again, within the same
    // total_timeout and at most 32 times. A server that answers with a task (the extension
    // io.modelcontextprotocol/tasks) is polled until it has ended, within the same limits; then
    // progress is what the server says of the task, and a task that nobody waits for any more is
    // cancelled.
    awaitable<CallResult> call_tool(std::string name, json::object arguments, CallOptions options);

    // Any other request of the protocol; returns its result. As call_tool() for the rest.
    awaitable<json::object> request(std::string method, json::object params, CallOptions options);

    // Has changes of a resource told to on_notification, as notifications/resources/updated.
    // Returns when the server has agreed. In the modern era the subscription is renewed when it
    // breaks; a server that ends it for good is logged.
    awaitable<void> subscribe(std::string uri);
    // Ends what subscribe() began.
    awaitable<void> unsubscribe(std::string uri);

    // Changes options.log_level. Returns when a legacy server has agreed (logging/setLevel);
    // modern ones are told with each request; those without a log need not know. Throws Error:
    // bad_argument (it is no level).
    awaitable<void> set_log_level(std::string level);

    // Ends the server in order; what is pending throws Error: cancelled.
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
        awaitable<void> begin();
        // When the executor runs next.
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
        void hold(Handler handler);
        std::optional<Handler> release();
        std::optional<Handler> handler_;
        asio::cancellation_slot slot_;
    };

    struct Impl;

    // A request without its answer.
    struct Pending final : McpTransport::Sender {
        void failed(const Error& error) override;
        bool done() const noexcept { return reply || failure; }
        void fail(const Error& error);

        Wait wait;
        std::weak_ptr<Impl> client;
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
        std::int64_t code = mcp::rpc_internal_error;
    };

    // Shared with every coroutine of the client, so that each may end after it.
    struct Impl {
        explicit Impl(asio::any_io_executor e) : executor(std::move(e)) {}
        asio::any_io_executor executor;
        McpClientOptions options;
        std::unique_ptr<McpTransport> transport;
        const WaitsForPeople* people = nullptr;  // the transport, if it waits for any
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
        // How long the transport waited for people, in all and until now.
        Duration people_took() const { return people ? people->people_took() : Duration::zero(); }
        // What is logged is up to the server: only so much of it.
        void log(LogLevel level, std::string_view text);
        void fail(const Error& reason);
        // The io_context is being destroyed: who waits for an answer goes with it.
        void abandon();
        void stop();
        void cancel_tasks();
    };
    using ImplPtr = std::shared_ptr<Impl>;

    // A request is forgotten when the coroutine that made it lets go of it: later answers to it
    // are ignored.
    class Forget {
    public:
        Forget(ImplPtr state, const PendingPtr& pending)
            : state_(std::move(state)), id_(pending->id) {}
        ~Forget() { state_->pending.erase(id_); }
        Forget(const Forget&) = delete;
        Forget& operator=(const Forget&) = delete;

    private:
        ImplPtr state_;
        std::int64_t id_;
    };

    // A task that a coroutine waits for.
    struct FollowedTask {
        std::string id;
        std::set<std::string> answered;  // keys of questions
        bool ended = false;
    };

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
    // How often a task is asked for, whatever the server suggests.
    static constexpr Duration shortest_poll = std::chrono::milliseconds(50);
    static constexpr Duration longest_poll = std::chrono::seconds(60);
    static constexpr int max_lost_polls = 5;  // in a row
    static constexpr std::size_t max_task_id = 4096;
    static constexpr std::size_t max_log_lines = 100;  // a second
    static constexpr std::size_t max_text = detail::max_server_text;

    static void spawn(const ImplPtr& state, awaitable<void> work);
    static Error translate(const ImplPtr& state, std::exception_ptr failure);
    static std::string seconds(Duration duration);

    static awaitable<void> connect(ImplPtr state, Sandbox& sandbox);
    static awaitable<void> attempt(ImplPtr state, Sandbox& sandbox, std::exception_ptr& failure);
    static awaitable<void> open(ImplPtr state, Sandbox& sandbox, Clock::time_point deadline);
    static PendingPtr start_opening(const ImplPtr& state, const detail::Handshake& handshake);
    static awaitable<void> confirm_end(ImplPtr state);
    [[noreturn]] static void throw_refusal(const ImplPtr& state, const detail::Handshake& handshake,
                                           Pending& pending);
    static void begin_modern(const ImplPtr& state);
    static void begin_legacy(const ImplPtr& state);
    static json::object offered(const ImplPtr& state);
    static json::object client_info(const ImplPtr& state);

    static PendingPtr start(const ImplPtr& state, std::string_view method, json::object params,
                            CallOptions limits);
    static awaitable<void> deliver(ImplPtr state, json::object message, PendingPtr pending);
    static awaitable<bool> settle(ImplPtr state, PendingPtr pending, Clock::time_point deadline);
    static awaitable<bool> settle_patiently(ImplPtr state, PendingPtr pending,
                                            Clock::time_point deadline, Duration before);
    static awaitable<void> until_late(ImplPtr state, Clock::time_point deadline);
    static Clock::time_point postponed(const Impl& state, Clock::time_point deadline,
                                       Duration before);
    static void ring_at(const ImplPtr& state, Clock::time_point deadline);
    static awaitable<void> keep_time(ImplPtr state);
    static void withdraw(const ImplPtr& state, const PendingPtr& pending, std::string_view reason);
    static json::object result_of(const ImplPtr& state, Pending& pending, std::string_view what);
    static awaitable<json::object> exchange(ImplPtr state, std::string method, json::object params,
                                            CallOptions limits, std::string what);
    static awaitable<PendingPtr> answered(ImplPtr state, std::string method, json::object params,
                                          CallOptions limits, Clock::time_point total_deadline,
                                          std::string what);
    static awaitable<void> fill_in(ImplPtr state, json::object requests, json::object& responses,
                                   std::optional<Error>& failure, std::string what);
    static bool has_tasks(const Impl& state);
    static Duration poll_interval(const json::object& task);
    static void report_task(const ImplPtr& state, const json::object& task,
                            const CallOptions& limits, CallProgress& last);
    static awaitable<json::object> poll(ImplPtr state, std::string id, CallOptions limits,
                                        Clock::time_point total_deadline, std::string what);
    static awaitable<bool> answer_task(ImplPtr state, json::object task, FollowedTask& followed,
                                       CallOptions limits, Clock::time_point total_deadline,
                                       std::string what);
    static awaitable<json::object> follow_task(ImplPtr state, json::object task, CallOptions limits,
                                               Clock::time_point total_deadline, std::string what);
    static awaitable<json::object> poll_to_end(ImplPtr state, json::object task,
                                               FollowedTask& followed, CallOptions limits,
                                               Clock::time_point total_deadline, std::string what);
    static awaitable<void> wait_for_task(ImplPtr state, Clock::time_point until, std::string what);
    static void withdraw_task(const ImplPtr& state, const std::string& id);
    static json::object outcome_of(const ImplPtr& state, json::object& task,
                                   const std::string& what);
    static awaitable<void> send_away(ImplPtr state, json::array elicitations,
                                     std::optional<Error>& failure, std::string what);
    static json::array elicitations_of(const ImplPtr& state, const Pending& pending);
    static awaitable<json::array> list(ImplPtr state);
    static awaitable<CallResult> call(ImplPtr state, std::string name, json::object arguments,
                                      CallOptions limits);
    static std::string schema_problem(const ImplPtr& state, std::string_view tool,
                                      const CallResult& result);
    static awaitable<void> subscribe(ImplPtr state, std::string uri);
    static awaitable<void> unsubscribe(ImplPtr state, std::string uri);
    static awaitable<void> follow(ImplPtr state, SubscriptionPtr subscription);
    static std::string log_level(const Impl& state);
    static awaitable<void> set_log_level(ImplPtr state, std::string level);
    static awaitable<void> tell_legacy(ImplPtr state, const char* method, const char* name,
                                       std::string value);
    static awaitable<void> begin_logging(ImplPtr state);

    static awaitable<void> read(ImplPtr state);
    static std::size_t costs(const json::object& params);
    static void dispatch(const ImplPtr& state, json::object message);
    static void notified(const ImplPtr& state, std::string_view method, const json::object& params);
    static void progressed(const ImplPtr& state, const json::object& params);
    static void logged(const ImplPtr& state, const json::object& params);
    static void acknowledged(const ImplPtr& state, const json::object& params);
    static void tools_changed(const ImplPtr& state);
    static awaitable<void> announce(ImplPtr state);
    static bool takes(const ImplPtr& state, const json::object& params);
    static awaitable<Response> respond(ImplPtr state, std::string method, json::object params);
    static awaitable<void> answer(ImplPtr state, json::value id, std::string method,
                                  json::object params, MemoryReservation memory);
    static awaitable<void> shut(ImplPtr state);

    ImplPtr state_;
};

}  // namespace ipybox

#ifndef IPYBOX_SEPARATE_COMPILATION
#include <ipybox/mcp/impl/client.ipp>
#include <ipybox/mcp/impl/client_incoming.ipp>
#include <ipybox/mcp/impl/client_opening.ipp>
#include <ipybox/mcp/impl/client_requests.ipp>
#include <ipybox/mcp/impl/client_subscriptions.ipp>
#include <ipybox/mcp/impl/client_tasks.ipp>
#endif
