#pragma once
// MCP over HTTP as a client: streamable HTTP in both eras (2025-03-26 to 2026-07-28), and HTTP+SSE
// of 2024-11-05. The plugins streamable_http and sse are made of it.
#include <algorithm>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <boost/json/parse.hpp>
#include <charconv>
#include <cstdint>
#include <deque>
#include <exception>
#include <ipybox/config.hpp>
#include <ipybox/detail/base64.hpp>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/mcp/jsonrpc.hpp>
#include <ipybox/mcp/sse.hpp>
#include <ipybox/mcp_transport.hpp>
#include <ipybox/memory_budget.hpp>
#include <ipybox/net/http_client.hpp>
#include <ipybox/oauth/oauth.hpp>
#include <ipybox/plugin.hpp>
#include <iterator>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ipybox {

// A value of an Mcp-* header: as it is when it is printable ASCII without outer blanks, else as
// =?base64?…?= (2026-07-28, "Transports").
inline std::string mcp_header_value(std::string_view value) {
    bool safe = !value.starts_with(' ') && !value.ends_with(' ') &&
                !(value.starts_with("=?base64?") && value.ends_with("?="));
    for (const char c : value) safe = safe && c >= 0x20 && c < 0x7F;
    return safe ? std::string(value) : "=?base64?" + detail::encode_base64(value) + "?=";
}

// One server. send() of a request returns once its answer is there for receive(), and throws when
// none will come; it says so for that request alone, because the next may find the server again.
// What a session needs is done here: its id, its renewal when the server has forgotten it (followed
// by a notifications/tools/list_changed of our own making), streams that are taken up again.
class HttpTransport final : public McpTransport {
public:
    enum class Wire { streamable, sse };

    // config: "url", "headers" for every request, "auth" for OAuth, "name" for messages. A server
    // of the streamable kind that turns out to be one of HTTP+SSE is treated as such. Throws
    // errc::bad_argument for the URL.
    HttpTransport(Host& host, const json::object& config, Wire wire);
    ~HttpTransport() override;

    awaitable<void> open(Sandbox&) override { return open(state_); }
    awaitable<void> send(json::object message) override { return send(state_, std::move(message)); }
    bool send_now(std::int64_t id, std::string_view method, json::object& params,
                  const std::shared_ptr<Sender>& sender) override;
    awaitable<json::object> receive() override { return receive(state_); }
    void cancel(const json::value& request_id) override;
    awaitable<void> close() override { return close(state_); }
    Duration people_took() const override { return people_took(*state_); }

private:
    // A message on its way, until its answer has come.
    struct Call {
        explicit Call(const asio::any_io_executor& executor) : done(executor) {}

        json::value id;  // null for what has no answer
        std::string method;
        std::string version;  // of a modern message
        HttpHeaders headers;  // of this message alone
        bool first_page = true;
        bool own = false;  // made here: its answer is kept in `reply`
        std::optional<json::object> reply;
        bool answered = false;
        bool finished = false;
        std::optional<Error> failure;
        std::shared_ptr<Sender> sender;  // of send_now(): told of the failure
        Event done;
        asio::cancellation_signal stop;
    };
    using CallPtr = std::shared_ptr<Call>;

    // What is known of one stream of events, over all connections that carry it.
    struct Stream {
        detail::SseParser parser{detail::default_max_message};
        MemoryReservation memory;  // for a long event
        std::string last_id;
        std::optional<std::chrono::milliseconds> retry;
        bool progressed = false;  // an event came since the last connection
        std::optional<Error> broken;
    };
    using StreamPtr = std::shared_ptr<Stream>;
    using ResponsePtr = std::shared_ptr<HttpResponse>;

    // An argument that is repeated in a header (x-mcp-header of a tool's schema).
    struct Mirrored {
        std::vector<std::string> path;
        std::string header;
    };

    struct Incoming {
        json::object message;
        std::size_t size;
    };

    // Shared with every coroutine of the transport, so that each may end after it.
    struct State {
        explicit State(const asio::any_io_executor& e)
            : executor(e), arrived(e), taken(e), unblocked(e), reopened(e) {}

        asio::any_io_executor executor;
        Logger logger;
        std::string name;  // the server's, for messages; may be empty
        HttpUrl url;
        HttpHeaders headers;  // as configured: may hold secrets
        Wire wire = Wire::streamable;
        Wire configured = Wire::streamable;
        std::string post_url;
        std::shared_ptr<HttpClient> http;
        std::shared_ptr<OAuth> oauth;  // null when the configuration brings its own Authorization
        bool closed = false;
        std::optional<Error> end;  // why the server is gone (HTTP+SSE)

        std::deque<Incoming> incoming;
        std::size_t incoming_size = 0;
        Event arrived;
        Event taken;

        std::list<CallPtr> calls;
        std::list<asio::cancellation_signal> tasks;
        int blockers = 0;  // messages that those after them must wait for
        Event unblocked;

        std::string session;
        std::string protocol_version;
        std::string modern_version;    // of modern requests; empty once a session is asked for
        std::uint64_t generation = 0;  // of the session
        json::object initialize;       // the message that opened it
        // What else holds for a session and has to be said again in the next, by what it is about.
        std::map<std::string, json::object> lasting;
        bool reopening = false;
        std::uint64_t reopenings = 0;
        std::optional<Error> not_reopened;
        Event reopened;
        int noise = 0;  // events that were no message, logged
        bool told_of_repairs = false;
        std::map<std::string, std::vector<Mirrored>, std::less<>> mirrored;

        // Words of the server, fit for an error text.
        std::string excerpt(std::string text) const {
            if (oauth) text = oauth->hide(std::move(text));
            Secrets sent;
            for (const auto& [header, secret] : headers) sent.add(secret);
            return detail::excerpt(sent.hide(std::move(text)), max_excerpt);
        }
        void stop_all() {
            for (const auto& call : std::list<CallPtr>(calls))
                call->stop.emit(asio::cancellation_type::terminal);
            for (auto task = tasks.begin(); task != tasks.end();)
                (task++)->emit(asio::cancellation_type::terminal);
        }
    };
    using StatePtr = std::shared_ptr<State>;

    // Sets a counter back however its scope ends, and tells those who wait.
    struct Unblock {
        State& state;
        ~Unblock() {
            --state.blockers;
            state.unblocked.notify();
        }
    };
    struct Reopening {
        State& state;
        std::string session, version;  // as they were: what failed is tried again by the next
        std::uint64_t generation;
        ~Reopening() {
            if (state.generation == generation) {
                state.session = session;
                state.protocol_version = version;
            }
            state.reopening = false;
            ++state.reopenings;
            state.reopened.notify();
        }
    };

    enum class Outcome { done, session_lost };

    static constexpr std::size_t max_queued = std::size_t{16} << 20;  // bytes not yet received
    static constexpr std::size_t free_of_budget = std::size_t{1} << 20;  // of an event
    static constexpr std::size_t max_error_body = std::size_t{1} << 20;
    static constexpr std::size_t max_excerpt = 500;
    static constexpr std::size_t max_session_id = 4096;
    static constexpr std::size_t max_mirrored = 64;  // headers of one tool
    static constexpr std::size_t max_lasting = 1000;
    static constexpr int max_attempts = 5;  // to take a stream up, without an event
    static constexpr int max_noise = 20;
    static constexpr auto first_delay = std::chrono::milliseconds(1000);
    static constexpr auto min_delay = std::chrono::milliseconds(50);
    static constexpr auto max_delay = std::chrono::milliseconds(60'000);
    static constexpr auto short_patience = std::chrono::seconds(2);
    static constexpr auto patience = std::chrono::seconds(30);

    static awaitable<void> open(StatePtr state);
    static awaitable<void> send(StatePtr state, json::object message);
    static void launch(const StatePtr& state, const CallPtr& call, json::object message);
    static awaitable<json::object> receive(StatePtr state);
    static awaitable<void> close(StatePtr state);
    static Duration people_took(const State& state) {
        return state.oauth ? state.oauth->people_took() : Duration::zero();
    }
    static std::string wants_credentials(const State& state) {
        return "; it wants credentials: log in by " + detail::login_command(state.name) +
               ", or give them by \"headers\"";
    }

    static void spawn(const StatePtr& state, awaitable<void> work);
    static CallPtr outline(const StatePtr& state, const json::object& message);
    static void keep_lasting(const StatePtr& state, const Call& call, const json::object& message);
    static void mirror(const StatePtr& state, Call& call, const json::object& params);
    static awaitable<void> perform(StatePtr state, CallPtr call, json::object message);
    static awaitable<Outcome> exchange(StatePtr state, CallPtr call, std::string body);
    static awaitable<void> accept(StatePtr state, CallPtr call, ResponsePtr response);
    static awaitable<Outcome> refused(StatePtr state, CallPtr call, ResponsePtr response,
                                      std::string used, std::string body);
    static awaitable<void> follow(StatePtr state, CallPtr call, ResponsePtr response);
    static awaitable<void> reopen(StatePtr state, std::uint64_t generation);
    static awaitable<void> listen(StatePtr state, std::uint64_t generation);
    static awaitable<void> find_endpoint(StatePtr state, Clock::time_point deadline);
    static awaitable<void> pump(StatePtr state, ResponsePtr response, StreamPtr stream);
    static awaitable<ResponsePtr> request(StatePtr state, std::shared_ptr<HttpRequest> request,
                                          bool probe = false);
    static awaitable<ResponsePtr> get(StatePtr state, std::string last_id,
                                      Clock::time_point deadline);
    static void feed(const State& state, Stream& stream, std::string_view piece);
    static awaitable<void> read_stream(StatePtr state, CallPtr call, ResponsePtr response,
                                       StreamPtr stream);
    static awaitable<void> take(StatePtr state, CallPtr call, std::string text, bool must_be_json);
    static awaitable<void> pass(StatePtr state, CallPtr call, json::object message,
                                std::size_t size);
    static bool pass_now(const StatePtr& state, const CallPtr& call, json::object& message,
                         std::size_t size);
    static awaitable<void> refuse_discovery(StatePtr state, CallPtr call, std::string why);
    static void learn(const StatePtr& state, const Call& call, const json::object& message);
    static void learn_mirrored(const json::value& schema, std::vector<std::string>& path,
                               std::vector<Mirrored>& found);
    static void finish(Call& call) {
        call.finished = true;
        call.done.notify();
    }
    static Duration delay(const Stream& stream, int attempts) {
        const auto asked = std::clamp(stream.retry.value_or(first_delay), min_delay, max_delay);
        return std::min<Duration>(asked * (1 << std::min(attempts, 6)), max_delay);
    }
    static std::string_view content_type(const HttpResponse& response) {
        const auto value = find_header(response.headers(), "Content-Type");
        return detail::trim_blanks(value.substr(0, value.find(';')));
    }
    static bool is_type(const HttpResponse& response, std::string_view type) {
        return same_header(content_type(response), type);
    }
    static bool is_stream(const HttpResponse& response) {
        return response.status() == 200 && is_type(response, "text/event-stream");
    }
    [[noreturn]] static void throw_closed() {
        throw Error(errc::cancelled, "the connection was closed");
    }

    StatePtr state_;
};

inline HttpTransport::HttpTransport(Host& host, const json::object& config, Wire wire)
    : state_(std::make_shared<State>(host.executor)) {
    State& state = *state_;
    state.logger = host.logger;
    state.name = detail::string_of(config, "name");
    state.wire = state.configured = wire;
    state.url = HttpUrl::parse(std::string_view(config.at("url").as_string()));
    if (!state.url.credentials.empty()) {
        state.headers.emplace_back("Authorization",
                                   "Basic " + detail::encode_base64(state.url.credentials));
        state.url.credentials.clear();
    }
    if (const auto* headers = config.if_contains("headers"))
        for (const auto& [name, value] : headers->as_object())
            state.headers.emplace_back(name, value.as_string());
    const json::value* auth = config.if_contains("auth");
    if (auth == nullptr && !find_header(state.headers, "Authorization").empty()) return;
    OAuthOptions options;
    options.name = state.name;
    options.url = state.url.text();
    if (auth != nullptr) options.auth = auth->as_object();
    options.browse = host.browse;
    options.logger = host.logger;
    state.oauth = std::make_shared<OAuth>(host.executor, std::move(options));
}

inline HttpTransport::~HttpTransport() {
    state_->closed = true;
    state_->http.reset();
    // On the executor, not here: Asio (1.81) lets a signal that is emitted elsewhere outlive what
    // it is meant for.
    asio::post(state_->executor, [state = state_] { state->stop_all(); });
}

inline void HttpTransport::cancel(const json::value& request_id) {
    for (const auto& call : state_->calls) {
        if (call->own || call->finished || call->id != request_id) continue;
        asio::post(state_->executor,
                   [call] { call->stop.emit(asio::cancellation_type::terminal); });
        return;
    }
}

// Runs a coroutine on its own until it ends or the transport does.
inline void HttpTransport::spawn(const StatePtr& state, awaitable<void> work) {
    const auto task = state->tasks.emplace(state->tasks.end());
    asio::co_spawn(state->executor, std::move(work),
                   asio::bind_cancellation_slot(task->slot(), [state, task](std::exception_ptr) {
                       state->tasks.erase(task);
                   }));
}

inline awaitable<void> HttpTransport::open(StatePtr state) {
    if (state->closed) throw_closed();
    state->stop_all();
    state->http = std::make_shared<HttpClient>(state->executor, HttpClientOptions());
    state->wire = state->configured;
    state->post_url = state->url.text();
    state->end.reset();
    state->incoming.clear();
    state->incoming_size = 0;
    state->session.clear();
    state->protocol_version.clear();
    state->modern_version.clear();
    state->lasting.clear();
    ++state->generation;
    if (state->wire == Wire::sse) co_await find_endpoint(state, Clock::now() + patience);
}

inline awaitable<json::object> HttpTransport::receive(StatePtr state) {
    for (;;) {
        if (state->closed) throw_closed();
        if (!state->incoming.empty()) {
            Incoming next = std::move(state->incoming.front());
            state->incoming.pop_front();
            state->incoming_size -= next.size;
            state->taken.notify();
            co_return std::move(next.message);
        }
        if (state->end) throw *state->end;
        co_await state->arrived.wait();
    }
}

inline awaitable<void> HttpTransport::close(StatePtr state) {
    if (state->closed) co_return;
    state->closed = true;
    state->arrived.notify();
    state->stop_all();
    const auto http = state->http;
    if (http && state->wire == Wire::streamable && !state->session.empty()) {
        auto farewell = std::make_shared<HttpRequest>();
        farewell->method = "DELETE";
        farewell->deadline = Clock::now() + short_patience;
        try {
            const auto response = co_await request(state, std::move(farewell));
        } catch (const std::exception& error) {
            state->logger(LogLevel::debug, std::string("ending the session: ") + error.what());
        }
    }
    state->http.reset();
}

// ---- sending ----

// What the wire needs to know of a message.
inline HttpTransport::CallPtr HttpTransport::outline(const StatePtr& state,
                                                     const json::object& message) {
    auto call = std::make_shared<Call>(state->executor);
    call->method = detail::string_of(message, "method");
    const json::value* id = message.if_contains("id");
    if (!call->method.empty() && id != nullptr) call->id = *id;
    const json::value* value = message.if_contains("params");
    const json::object none;
    const auto& params = value != nullptr && value->is_object() ? value->get_object() : none;
    call->first_page = !params.contains("cursor");
    if (const json::value* meta = params.if_contains("_meta"); meta != nullptr && meta->is_object())
        call->version =
            detail::string_of(meta->get_object(), "io.modelcontextprotocol/protocolVersion");
    // Notifications do not say it themselves.
    if (call->method == "initialize") state->modern_version.clear();
    if (!call->version.empty()) state->modern_version = call->version;
    call->version = state->modern_version;
    if (call->version.empty() || call->method.empty()) return call;
    call->headers.emplace_back("Mcp-Method", mcp_header_value(call->method));
    if (call->method == "tools/call" || call->method == "prompts/get")
        call->headers.emplace_back("Mcp-Name", mcp_header_value(detail::string_of(params, "name")));
    if (call->method == "resources/read")
        call->headers.emplace_back("Mcp-Name", mcp_header_value(detail::string_of(params, "uri")));
    if (call->method == "tools/call") mirror(state, *call, params);
    return call;
}

// Log level and subscriptions of a legacy session.
inline void HttpTransport::keep_lasting(const StatePtr& state, const Call& call,
                                        const json::object& message) {
    const json::value* params = message.if_contains("params");
    if (!call.version.empty() || params == nullptr || !params->is_object()) return;
    const std::string uri(detail::string_of(params->get_object(), "uri"));
    if (call.method == "resources/unsubscribe") state->lasting.erase(uri);
    const bool level = call.method == "logging/setLevel";
    if ((level || call.method == "resources/subscribe") && state->lasting.size() < max_lasting)
        state->lasting[level ? std::string() : uri] = message;
}

// Arguments that the tool's schema wants to see in headers.
inline void HttpTransport::mirror(const StatePtr& state, Call& call, const json::object& params) {
    const auto tool = state->mirrored.find(detail::string_of(params, "name"));
    if (tool == state->mirrored.end()) return;
    for (const auto& [path, header] : tool->second) {
        const json::value* value = params.if_contains("arguments");
        for (const auto& name : path)
            value = value != nullptr && value->is_object() ? value->get_object().if_contains(name)
                                                           : nullptr;
        if (value == nullptr || value->is_structured() || value->is_null()) continue;
        const std::string text =
            detail::is_text(*value) ? std::string(value->get_string()) : detail::write_json(*value);
        call.headers.emplace_back("Mcp-Param-" + header, mcp_header_value(text));
    }
}

inline awaitable<void> HttpTransport::send(StatePtr state, json::object message) {
    if (state->closed) throw_closed();
    if (state->end) throw *state->end;
    if (!state->http) throw Error(errc::bad_argument, "the transport is not open");
    const CallPtr call = outline(state, message);
    launch(state, call, std::move(message));
    while (!call->finished) co_await call->done.wait();
    if (call->failure) throw *call->failure;
}

inline bool HttpTransport::send_now(std::int64_t id, std::string_view method, json::object& params,
                                    const std::shared_ptr<Sender>& sender) {
    if (state_->closed || state_->end || !state_->http) return false;
    auto message = detail::rpc_request(id, method, std::move(params));
    const CallPtr call = outline(state_, message);
    call->sender = sender;
    launch(state_, call, std::move(message));
    return true;
}

// Sets a call going on its own: cancelling who waits for it must not break a request off.
inline void HttpTransport::launch(const StatePtr& state, const CallPtr& call,
                                  json::object message) {
    const auto place = state->calls.insert(state->calls.end(), call);
    asio::co_spawn(
        state->executor, perform(state, call, std::move(message)),
        asio::bind_cancellation_slot(
            call->stop.slot(), [state, call, place](std::exception_ptr failure) {
                state->calls.erase(place);
                if (call->finished) return;
                try {
                    if (failure) std::rethrow_exception(failure);
                } catch (const Error& error) {
                    call->failure = error;
                } catch (const boost::system::system_error& error) {
                    const bool cancelled = error.code() == asio::error::operation_aborted;
                    call->failure = cancelled ? Error(errc::cancelled, "the request was withdrawn")
                                              : Error(errc::mcp_connection, error.what());
                } catch (const std::exception& error) {
                    call->failure = Error(errc::mcp_connection, error.what());
                }
                finish(*call);
                if (call->failure && call->sender) call->sender->failed(*call->failure);
            }));
}

inline awaitable<void> HttpTransport::perform(StatePtr state, CallPtr call, json::object message) {
    while (state->blockers > 0) co_await state->unblocked.wait();
    // A modern request is cancelled by closing its stream.
    if (!call->version.empty() && call->method == "notifications/cancelled") co_return;
    // No revision with discovery has HTTP+SSE; servers that answer all the same cannot ask back.
    if (state->wire == Wire::sse && call->method == "server/discover") {
        std::string why = "HTTP+SSE belongs to older revisions of the protocol";
        co_await refuse_discovery(state, call, std::move(why));
        co_return;
    }
    std::optional<Unblock> unblock;
    if (call->method == "initialize") {
        state->initialize = message;
        state->session.clear();
        state->protocol_version.clear();
    } else if (call->method == "notifications/initialized") {
        // Servers refuse what overtakes it.
        ++state->blockers;
        unblock.emplace(*state);
    }
    keep_lasting(state, *call, message);
    std::string body = detail::write_json(message);
    const auto generation = state->generation;
    auto outcome = co_await exchange(state, call, std::move(body));
    if (outcome == Outcome::session_lost) {
        co_await reopen(state, generation);
        body = detail::write_json(message);
        outcome = co_await exchange(state, call, std::move(body));
        if (outcome == Outcome::session_lost)
            throw Error(errc::mcp_connection,
                        state->url.printable() + " forgets its sessions as soon as they are open");
    }
    if (call->method == "notifications/initialized" && state->wire == Wire::streamable)
        spawn(state, listen(state, state->generation));
    finish(*call);
}

// One POST, and what comes back.
inline awaitable<HttpTransport::Outcome> HttpTransport::exchange(StatePtr state, CallPtr call,
                                                                 std::string body) {
    const auto& method = call->method;
    const auto post = std::make_shared<HttpRequest>();
    post->method = "POST";
    post->url = state->post_url;
    post->headers = call->headers;
    post->headers.emplace_back("Content-Type", "application/json");
    post->headers.emplace_back("Accept", "application/json, text/event-stream");
    if (!call->version.empty()) post->headers.emplace_back("MCP-Protocol-Version", call->version);
    post->repeatable = !method.empty() && method != "tools/call";
    // How long an answer may take is the client's decision: it calls cancel().
    if (call->id.is_null() || call->own) post->deadline = Clock::now() + patience;
    post->body = std::move(body);
    const std::string used = state->session;
    const bool probe = method == "server/discover";
    ResponsePtr response = co_await request(state, post, probe);
    const unsigned status = response->status();
    if (status / 100 != 2) {
        const auto outcome = co_await refused(state, call, response, used, std::move(post->body));
        co_return outcome;
    }
    if (method == "initialize" && state->wire == Wire::streamable) {
        const auto session = find_header(response->headers(), "Mcp-Session-Id");
        bool proper = session.size() <= max_session_id;
        for (const char c : session) proper = proper && c > 0x20 && c < 0x7F;
        if (!proper)
            throw Error(errc::mcp_protocol,
                        state->url.printable() + " gave a session id that is none");
        state->session = session;
        ++state->generation;
    }
    co_await accept(state, call, std::move(response));
    co_return Outcome::done;
}

// The answer to a message that the server took.
inline awaitable<void> HttpTransport::accept(StatePtr state, CallPtr call, ResponsePtr response) {
    if (call->id.is_null() || state->wire == Wire::sse) {
        // Read, so that the connection can be used again.
        constexpr std::size_t limit = 64u << 10;
        try {
            co_await response->read_all(limit, Clock::now() + short_patience);
        } catch (const Error&) {
            // Nobody waits for it.
        }
        co_return;
    }
    if (is_type(*response, "text/event-stream")) {
        co_await follow(state, call, response);
        co_return;
    }
    std::string why;
    if (!is_type(*response, "application/json")) {
        const auto type = detail::lower_case(content_type(*response));
        why = state->url.printable() + " answered " + call->method + " with HTTP status " +
              std::to_string(response->status()) +
              (type.empty() ? " and no content" : " and content of type " + state->excerpt(type)) +
              ", which is no MCP; is the path of its URL right?";
    } else {
        auto limit = detail::default_max_message;
        auto body = response->all_now(limit);
        if (!body) {
            const auto deadline = call->own ? Clock::now() + patience : never;
            body = co_await response->read_all(limit, deadline);
        }
        co_await take(state, call, std::move(*body), true);
        if (call->answered) co_return;
        why = state->url.printable() + " did not answer " + call->method + " in its response to it";
    }
    if (call->method != "server/discover") throw Error(errc::mcp_protocol, why);
    co_await refuse_discovery(state, call, std::move(why));
}

// A server of before 2026-07-28 refuses in its own way: the client gets it as an answer.
inline awaitable<void> HttpTransport::refuse_discovery(StatePtr state, CallPtr call,
                                                       std::string why) {
    constexpr std::int64_t server_error = -32000;
    auto answer = detail::rpc_error(call->id, server_error, why);
    co_await pass(state, call, std::move(answer), why.size());
}

inline awaitable<HttpTransport::Outcome> HttpTransport::refused(StatePtr state, CallPtr call,
                                                                ResponsePtr response,
                                                                std::string used,
                                                                std::string body) {
    const unsigned status = response->status();
    std::string text;
    try {
        text = co_await response->read_all(max_error_body, Clock::now() + patience);
    } catch (const Error&) {
        // The status says enough.
    }
    const bool is_request = !call->id.is_null();
    if (!used.empty() && call->version.empty() && call->method != "initialize") {
        // Some answer 400 where the protocol says 404.
        const std::string words = status == 400 ? detail::lower_case(text) : std::string();
        const bool lost = status == 404 || words.find("session") != words.npos ||
                          words.find("not initialized") != words.npos;
        if (lost) co_return Outcome::session_lost;
    }
    boost::system::error_code not_json;
    json::value parsed = detail::parse_within(text, detail::max_message_depth, detail::default_max_decoded, not_json);
    const json::value* error =
        !not_json && parsed.is_object() ? parsed.get_object().if_contains("error") : nullptr;
    const bool rpc =
        error != nullptr && error->is_object() && parsed.get_object().contains("jsonrpc");
    std::string why =
        state->url.printable() + " answered with HTTP status " + std::to_string(status);
    if (rpc && error->get_object().contains("message"))
        text = detail::string_of(error->get_object(), "message");
    // Pages for people say nothing here.
    if (!is_type(*response, "text/html") && !text.empty())
        why += ": " + state->excerpt(std::move(text));
    if (status == 401) {
        why += wants_credentials(*state);
    } else if (status == 403) {
        why += "; the credentials, if any, do not suffice";
    } else if (status == 404 || status == 405) {
        why += "; is the path of its URL right?";
    }
    if (is_request && rpc && status != 401 && status != 403) {
        auto& answer = parsed.get_object();
        answer["id"] = call->id;
        co_await pass(state, call, std::move(answer), max_excerpt);
        co_return Outcome::done;
    }
    if (call->method == "server/discover") {
        co_await refuse_discovery(state, call, std::move(why));
        co_return Outcome::done;
    }
    const bool older = status == 400 || status == 404 || status == 405;
    if (call->method == "initialize" && older && !call->own && state->wire == Wire::streamable) {
        // Perhaps it speaks HTTP+SSE (2025-11-25, "Transports: Backwards Compatibility").
        bool found = false;
        try {
            co_await find_endpoint(state, Clock::now() + short_patience);
            found = true;
        } catch (const Error& other) {
            state->logger(LogLevel::debug, "it does not speak HTTP+SSE either: " + other.detail());
        }
        if (found) {
            const auto outcome = co_await exchange(state, call, std::move(body));
            co_return outcome;
        }
    }
    throw Error(errc::mcp_connection, why);
}

// ---- streams ----

// The answer as a stream of events, taken up again where it broke off.
inline awaitable<void> HttpTransport::follow(StatePtr state, CallPtr call, ResponsePtr response) {
    const auto stream = std::make_shared<Stream>();
    co_await read_stream(state, call, response, stream);
    response.reset();
    for (int attempts = 0; !call->answered; ++attempts) {
        std::string why =
            state->url.printable() + " ended the stream of " + call->method + " before the answer";
        if (stream->broken) why += ": " + stream->broken->detail();
        // The modern protocol has no way back: only the client knows whether to ask again.
        if (!call->version.empty() || stream->last_id.empty())
            throw Error(errc::mcp_connection, why);
        if (stream->progressed) attempts = 0;
        if (attempts == max_attempts)
            throw Error(errc::mcp_connection, why + ", and could not be taken up again");
        stream->progressed = false;
        co_await sleep_until(Clock::now() + delay(*stream, attempts));
        try {
            response = co_await get(state, stream->last_id, Clock::now() + patience);
        } catch (const Error& error) {
            stream->broken = error;
            continue;
        }
        if (response->status() >= 500) continue;
        if (!is_stream(*response))
            throw Error(errc::mcp_connection, why +
                                                  ", and does not take it up again (HTTP status " +
                                                  std::to_string(response->status()) + ")");
        stream->parser = detail::SseParser(detail::default_max_message);
        co_await read_stream(state, call, response, stream);
        response.reset();
    }
}

// Messages that belong to no request (legacy).
inline awaitable<void> HttpTransport::listen(StatePtr state, std::uint64_t generation) {
    const auto stream = std::make_shared<Stream>();
    for (int failures = 0; failures <= max_attempts;) {
        const auto started = Clock::now();
        stream->progressed = false;
        try {
            const auto response = co_await get(state, stream->last_id, never);
            const bool fine = is_stream(*response);
            if (!fine && response->status() < 500) {
                state->logger(LogLevel::debug,
                              state->url.printable() +
                                  " offers no stream of its own messages (HTTP status " +
                                  std::to_string(response->status()) + ")");
                co_return;
            }
            if (fine) {
                stream->parser = detail::SseParser(detail::default_max_message);
                co_await read_stream(state, nullptr, response, stream);
            }
        } catch (const Error& error) {
            state->logger(LogLevel::debug, error.detail());
        }
        // A connection that idled for a while was no failure.
        const bool good = stream->progressed || Clock::now() - started > std::chrono::seconds(5);
        failures = good ? 0 : failures + 1;
        co_await sleep_until(Clock::now() + delay(*stream, failures));
        if (state->closed || state->generation != generation) co_return;
    }
    state->logger(LogLevel::warning, state->url.printable() +
                                         " keeps closing the stream of its own messages: given up");
}

inline awaitable<HttpTransport::ResponsePtr> HttpTransport::get(StatePtr state, std::string last_id,
                                                                Clock::time_point deadline) {
    auto get = std::make_shared<HttpRequest>();
    get->url = state->url.text();
    get->headers.emplace_back("Accept", "text/event-stream");
    get->headers.emplace_back("Cache-Control", "no-store");
    if (!last_id.empty()) get->headers.emplace_back("Last-Event-ID", std::move(last_id));
    get->deadline = deadline;
    auto response = co_await request(state, std::move(get));
    co_return response;
}

// HTTP+SSE: the stream by which everything comes, and the address that it names for POST.
inline awaitable<void> HttpTransport::find_endpoint(StatePtr state, Clock::time_point deadline) {
    const std::string none;
    const auto people_took_before = people_took(*state);
    const ResponsePtr response = co_await get(state, none, deadline);
    deadline += people_took(*state) - people_took_before;
    const std::string where = state->url.printable();
    if (!is_stream(*response))
        throw Error(errc::mcp_connection,
                    where + " answered with HTTP status " + std::to_string(response->status()) +
                        (response->status() == 401
                             ? wants_credentials(*state)
                             : " and no stream of events; is the path of its URL right?"));
    const auto stream = std::make_shared<Stream>();
    for (;;) {
        const auto event = stream->parser.next();
        if (!event) throw Error(errc::mcp_protocol, where + " sent an event that is too long");
        if (*event) {
            if ((*event)->type != "endpoint") continue;
            const auto endpoint = state->url.resolve((*event)->data);
            if (endpoint.origin() != state->url.origin())
                throw Error(errc::mcp_connection,
                            where + " wants messages to be sent to " + endpoint.printable() +
                                ": another origin is refused, it would get what is meant for "
                                "the first");
            state->post_url = endpoint.text();
            break;
        }
        const std::string piece = co_await response->read_some(deadline);
        if (piece.empty())
            throw Error(errc::mcp_connection,
                        where + " ended its stream of events before it named its endpoint");
        feed(*state, *stream, piece);
    }
    state->wire = Wire::sse;
    spawn(state, pump(state, response, stream));
}

// All messages of a server of HTTP+SSE; when they end, it is gone.
inline awaitable<void> HttpTransport::pump(StatePtr state, ResponsePtr response, StreamPtr stream) {
    const auto generation = state->generation;
    std::optional<Error> failure;
    try {
        co_await read_stream(state, nullptr, response, stream);
        failure = stream->broken;
    } catch (const Error& error) {
        failure = error;
    }
    if (state->closed || state->generation != generation) co_return;
    if (failure && failure->code() == errc::mcp_protocol) {
        state->end = failure;
    } else {
        const std::string why =
            failure ? failure->detail() : state->url.printable() + " ended its stream of events";
        state->end = Error(errc::mcp_connection, why + "; the server is gone or was restarted");
    }
    state->arrived.notify();
}

// Passes on what comes until the stream ends or breaks off. After the answer it may linger a
// little, so that the connection can be used again.
inline awaitable<void> HttpTransport::read_stream(StatePtr state, CallPtr call,
                                                  ResponsePtr response, StreamPtr stream) {
    stream->broken.reset();
    // Nobody gives up on what is asked here but this.
    auto deadline = call && call->own ? Clock::now() + patience : never;
    for (;;) {
        for (bool more = true; more;) {
            auto event = stream->parser.next();
            if (!event)
                throw Error(errc::mcp_protocol,
                            state->url.printable() + " sent a message of more than " +
                                std::to_string(detail::default_max_message >> 20) + " MiB");
            if (!stream->parser.last_id().empty()) stream->last_id = stream->parser.last_id();
            if (stream->parser.retry()) stream->retry = stream->parser.retry();
            more = event->has_value();
            if (!more) break;
            stream->progressed = true;
            const auto& type = (*event)->type;
            // Without data it only brings an id (2025-11-25, "Sending Messages to the Server").
            if ((*event)->data.empty() || (!type.empty() && type != "message")) continue;
            std::string text = std::move((*event)->data);
            co_await take(state, call, std::move(text), false);
        }
        if (call && call->answered && !call->finished) {
            deadline = Clock::now() + std::chrono::seconds(1);
            finish(*call);
        }
        std::string piece;
        try {
            piece = co_await response->read_some(deadline);
        } catch (const Error& error) {
            stream->broken = error;
        }
        if (piece.empty()) co_return;
        feed(*state, *stream, piece);
    }
}

inline void HttpTransport::feed(const State& state, Stream& stream, std::string_view piece) {
    stream.parser.feed(piece);
    const auto held = stream.parser.held();
    if (!stream.memory.resize(held > free_of_budget ? held : 0))
        throw Error(errc::mcp_protocol,
                    state.url.printable() + " sent a message that " + std::string(detail::costs_too_much));
}

// One JSON text: a message or, in 2025-03-26, an array of them.
inline awaitable<void> HttpTransport::take(StatePtr state, CallPtr call, std::string text,
                                           bool must_be_json) {
    auto read = detail::read_message(text);
    json::value& value = read.value;
    if (read.problem == detail::costs_too_much)
        throw Error(errc::mcp_protocol, state->url.printable() + " sent a message that " + read.problem);
    if (read.repaired && !std::exchange(state->told_of_repairs, true))
        state->logger(LogLevel::warning, state->url.printable() + std::string(detail::repaired_text));
    const std::size_t size = detail::memory_size(value);
    text = std::string();
    if (value.is_object()) {
        // An error without an id can mean nothing but the request that it responds to.
        auto& message = value.get_object();
        const json::value* id = message.if_contains("id");
        if (must_be_json && message.contains("error") && (id == nullptr || id->is_null()))
            message["id"] = call->id;
        if (!pass_now(state, call, message, size))
            co_await pass(state, call, std::move(message), size);
    } else if (value.is_array()) {
        for (auto& element : value.get_array()) {
            if (!element.is_object()) continue;
            const auto share = detail::memory_size(element);
            co_await pass(state, call, std::move(element.get_object()), share);
        }
    } else if (must_be_json) {
        throw Error(
            errc::mcp_protocol,
            state->url.printable() + " answered with what is no JSON object" +
                (read.problem.empty() ? std::string() : ": it " + read.problem));
    } else if (++state->noise <= max_noise) {
        state->logger(LogLevel::debug,
                      state->url.printable() + " sent an event that is no message");
    }
}

// Hands a message to receive(), unless too much is there already.
inline bool HttpTransport::pass_now(const StatePtr& state, const CallPtr& call,
                                    json::object& message, std::size_t size) {
    if (call && !call->answered && !call->id.is_null() && !message.contains("method")) {
        const json::value* id = message.if_contains("id");
        if (id != nullptr && *id == call->id) {
            learn(state, *call, message);
            call->answered = true;
            if (call->own) {
                call->reply = std::move(message);
                return true;
            }
        }
    }
    if (!state->closed && !state->incoming.empty() && state->incoming_size + size > max_queued)
        return false;
    state->incoming.emplace_back(std::move(message), size);
    state->incoming_size += size;
    state->arrived.notify();
    return true;
}

// Hands a message to receive(); waits while too much is there already.
inline awaitable<void> HttpTransport::pass(StatePtr state, CallPtr call, json::object message,
                                           std::size_t size) {
    while (!pass_now(state, call, message, size)) co_await state->taken.wait();
}

// What the wire needs to know of an answer.
inline void HttpTransport::learn(const StatePtr& state, const Call& call,
                                 const json::object& message) {
    if (call.method != "initialize" && call.method != "tools/list") return;
    const json::value* result = message.if_contains("result");
    if (result == nullptr || !result->is_object()) return;
    if (call.method == "initialize") {
        const auto version = detail::string_of(result->get_object(), "protocolVersion");
        bool proper = version.size() <= 64;
        for (const char c : version) proper = proper && c > 0x20 && c < 0x7F;
        state->protocol_version = proper ? std::string(version) : std::string();
    } else if (call.method == "tools/list" && !call.version.empty()) {
        if (call.first_page) state->mirrored.clear();
        const json::value* tools = result->get_object().if_contains("tools");
        if (tools == nullptr || !tools->is_array()) return;
        for (const auto& tool : tools->get_array()) {
            if (!tool.is_object()) continue;
            const json::value* schema = tool.get_object().if_contains("inputSchema");
            std::vector<std::string> path;
            std::vector<Mirrored> found;
            if (schema != nullptr) learn_mirrored(*schema, path, found);
            if (!found.empty())
                state->mirrored[std::string(detail::string_of(tool.get_object(), "name"))] =
                    std::move(found);
        }
    }
}

// Only what is reached by "properties" alone: nothing else says where a value is.
inline void HttpTransport::learn_mirrored(const json::value& schema, std::vector<std::string>& path,
                                          std::vector<Mirrored>& found) {
    constexpr std::size_t max_depth = 16;
    if (!schema.is_object() || path.size() > max_depth) return;
    const json::value* properties = schema.get_object().if_contains("properties");
    if (properties == nullptr || !properties->is_object()) return;
    for (const auto& [name, property] : properties->get_object()) {
        if (!property.is_object() || found.size() >= max_mirrored) continue;
        path.emplace_back(name);
        const auto header = detail::string_of(property.get_object(), "x-mcp-header");
        if (detail::is_http_token(header)) found.push_back({path, std::string(header)});
        learn_mirrored(property, path, found);
        path.pop_back();
    }
}

// ---- sessions ----

// Opens the session again that the server has forgotten; one coroutine does it for all.
inline awaitable<void> HttpTransport::reopen(StatePtr state, std::uint64_t generation) {
    const auto before = state->reopenings;
    while (state->reopening) co_await state->reopened.wait();
    if (state->generation != generation) co_return;
    if (state->reopenings != before && state->not_reopened) throw *state->not_reopened;
    state->reopening = true;
    state->not_reopened.reset();
    const Reopening reopening{*state, state->session, state->protocol_version, generation};
    ++state->blockers;
    const Unblock unblock{*state};
    try {
        auto call = std::make_shared<Call>(state->executor);
        call->own = true;
        call->method = "initialize";
        call->id = json::string("ipybox-session-" + std::to_string(generation));
        json::object message = state->initialize;
        message["id"] = call->id;
        std::string body = detail::write_json(message);
        state->session.clear();
        state->protocol_version.clear();
        co_await exchange(state, call, std::move(body));
        if (!call->reply || !call->reply->contains("result"))
            throw Error(errc::mcp_connection, "it refuses to begin another");
        auto confirm = std::make_shared<Call>(state->executor);
        confirm->own = true;
        confirm->method = "notifications/initialized";
        body = detail::write_json(detail::rpc_notification(confirm->method, json::object()));
        co_await exchange(state, confirm, std::move(body));
    } catch (const Error& error) {
        state->not_reopened = Error(
            errc::mcp_connection,
            state->url.printable() +
                " has ended the session, and it could not be opened again: " + error.detail());
    }
    if (state->not_reopened) throw *state->not_reopened;
    const auto lasting = state->lasting;
    for (const auto& [about, request] : lasting) {
        auto call = std::make_shared<Call>(state->executor);
        call->own = true;
        call->method = detail::string_of(request, "method");
        call->id = json::string("ipybox-again-" + about);
        json::object message = request;
        message["id"] = call->id;
        std::string body = detail::write_json(message);
        try {
            co_await exchange(state, call, std::move(body));
        } catch (const Error& error) {
            state->logger(LogLevel::warning, "in a new session: " + error.detail());
        }
    }
    spawn(state, listen(state, state->generation));
    // It may be another version of the server.
    auto changed = detail::rpc_notification("notifications/tools/list_changed", json::object());
    co_await pass(state, nullptr, std::move(changed), 64);
}

// ---- requests ----

// Sends one request with what belongs to every one, authorization included. A server of before
// 2026-07-28 may answer 401 to a `probe` although it wants no credentials.
inline awaitable<HttpTransport::ResponsePtr> HttpTransport::request(
    StatePtr state, std::shared_ptr<HttpRequest> request, bool probe) {
    constexpr int max_challenges = 4;
    const auto http = state->http;
    const auto oauth = state->oauth;
    if (!http) throw_closed();
    if (request->url.empty()) request->url = state->url.text();
    HttpHeaders headers;
    headers.reserve(state->headers.size() + request->headers.size() + 2);
    headers.assign(state->headers.begin(), state->headers.end());
    if (!state->protocol_version.empty())
        headers.emplace_back("MCP-Protocol-Version", state->protocol_version);
    if (!state->session.empty()) headers.emplace_back("Mcp-Session-Id", state->session);
    std::move(request->headers.begin(), request->headers.end(), std::back_inserter(headers));
    request->headers = std::move(headers);
    for (int challenges = 0;; ++challenges) {
        HttpHeaders credentials;
        std::shared_ptr<const HttpRequest> sent = request;
        if (oauth && !oauth->silent()) {
            credentials = co_await oauth->headers(request->method, request->url);
            auto signed_request = std::make_shared<HttpRequest>(*request);
            signed_request->headers.insert(signed_request->headers.end(), credentials.begin(),
                                           credentials.end());
            sent = std::move(signed_request);
        }
        auto answer = co_await http->send(std::move(sent));
        ResponsePtr response(std::move(answer));
        if (!oauth) co_return response;
        oauth->observe(response->headers());
        const unsigned status = response->status();
        if ((status != 401 && status != 403) || challenges == max_challenges) co_return response;
        const auto started = Clock::now();
        bool again = false;
        try {
            again = co_await oauth->challenged(status, response->headers(), std::move(credentials));
        } catch (const Error&) {
            if (!probe) throw;
        }
        if (!again) co_return response;
        // A person's time is not the server's.
        if (request->deadline != never) request->deadline += Clock::now() - started;
    }
}

}  // namespace ipybox
