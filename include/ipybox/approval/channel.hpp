#pragma once
// Approval by other programs: JSON-RPC over a WebSocket, on a listener of this machine that takes
// a token. ApprovalChannel asks, ApprovalClient answers; each is usable alone.
#include <openssl/crypto.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/websocket.hpp>
#include <boost/json/parse_options.hpp>
#include <deque>
#include <functional>
#include <ipybox/approval/approval.hpp>
#include <ipybox/approval/question_text.hpp>
#include <ipybox/detail/base64.hpp>
#include <ipybox/detail/hex.hpp>
#include <ipybox/detail/json_memory.hpp>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/detail/terminal_text.hpp>
#include <ipybox/log.hpp>
#include <ipybox/net/http_listener.hpp>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace ipybox {

// What a channel demands of approvers and of itself.
struct ApprovalChannelOptions {
    // As in the original: unless it is set, request() says yes without asking anybody.
    bool approval_required = false;
    Duration approval_timeout{};  // zero: unlimited, as in the original
    std::string token;            // empty: 32 random bytes in hexadecimal
    std::size_t max_approvers = 16;
    // Web pages that may connect, by origin: "http://localhost:3000"; "*": any. The token is needed
    // besides; browsers keep it for whoever asks next.
    std::vector<std::string> allowed_origins;
    Logger logger;
};

namespace detail {
namespace websocket = boost::beast::websocket;
using tcp = asio::ip::tcp;

// One connection of either side: what is sent waits in a queue.
class JsonSocket : public std::enable_shared_from_this<JsonSocket> {
public:
    static constexpr std::size_t max_queued = 64u << 20;  // bytes

    explicit JsonSocket(HttpSocket socket) : stream(std::move(socket)), changed_(stream.get_executor()) {}

    // Sends, and hands every message to `use`, until the connection ends or close() is called.
    awaitable<void> run(std::function<void(const json::object&)> use) {
        const auto self = shared_from_this();
        auto reading = read(self, std::move(use));
        auto writing = write(self);
        co_await ends_first(std::move(reading), std::move(writing));
    }
    void send(const json::object& message) {
        if (closed_) return;
        queue_.push_back(detail::write_json(message));
        queued_ += queue_.back().size();
        if (queued_ > max_queued) return close();
        changed_.notify();
    }
    // At once, without the farewell of WebSockets: what waits is not sent.
    void close() {
        closed_ = true;
        boost::system::error_code ignored;
        stream.next_layer().close(ignored);
        changed_.notify();
    }
    bool closed() const noexcept { return closed_; }

    websocket::stream<HttpSocket> stream;

private:
    static awaitable<void> read(std::shared_ptr<JsonSocket> self, std::function<void(const json::object&)> use) {
        while (!self->closed_) {
            boost::beast::flat_buffer buffer;
            auto [error, size] = co_await self->stream.async_read(buffer, as_result);
            if (error) break;
            json::parse_options limits;
            limits.max_depth = 128;
            boost::system::error_code wrong;
            const json::value message = detail::parse_exact({static_cast<const char*>(buffer.data().data()), size}, wrong, limits);
            if (!wrong && message.is_object()) use(message.get_object());
        }
        self->close();  // ends what is being written
    }
    static awaitable<void> write(std::shared_ptr<JsonSocket> self) {
        while (!self->closed_) {
            if (self->queue_.empty()) {
                co_await self->changed_.wait();
                continue;
            }
            const std::string text = std::move(self->queue_.front());
            self->queue_.pop_front();
            self->queued_ -= text.size();
            auto [error, size] = co_await self->stream.async_write(asio::buffer(text), as_result);
            if (error) break;
        }
        self->close();
    }

    Event changed_;
    std::deque<std::string> queue_;
    std::size_t queued_ = 0;
    bool closed_ = false;
};

inline websocket::stream_base::timeout websocket_timeouts() {
    websocket::stream_base::timeout limits;
    limits.handshake_timeout = std::chrono::seconds(10);
    limits.idle_timeout = std::chrono::seconds(60);
    limits.keep_alive_pings = true;
    return limits;
}
}  // namespace detail

// The side that asks. Any number of approvers may be connected: all are asked, the first answer
// counts. Messages are those of the original: {"jsonrpc": "2.0", "method": "approve", "params":
// {server_name, tool_name, tool_args}, "id"}, answered by {"jsonrpc": "2.0", "result": true or
// false, "id"}, to which a "reason" may be added. When another answered, or the call was withdrawn,
// approvers are told by {"method": "settled", "params": {"id"}}. Owned and used on one thread.
//
// Example: tool_calls/main.cpp [ApprovalChannel]
class ApprovalChannel {
    struct State;

public:
    // Throws errc::bad_argument for a token of less than 16 characters.
    explicit ApprovalChannel(asio::any_io_executor executor, ApprovalChannelOptions options = {})
        : state_(std::make_shared<State>(std::move(executor), std::move(options))) {}
    ~ApprovalChannel() { state_->close(); }
    ApprovalChannel(const ApprovalChannel&) = delete;
    ApprovalChannel& operator=(const ApprovalChannel&) = delete;

    // Listens at ws://HOST:PORT/approval and returns that address; port 0 takes a free one. host: an
    // address of this machine's loopback, or "localhost". Throws errc::bad_argument for others, and
    // errc::io_error.
    std::string listen(const std::string& host = "localhost", unsigned short port = 8900) {
        detail::tcp::acceptor acceptor(state_->executor);
        const auto where = detail::listen_on_loopback(acceptor, host, port, "the approval channel");
        state_->listener->start(state_, std::move(acceptor));
        return "ws://" + where + "/approval";
    }
    // What approvers present: "Authorization: Bearer TOKEN", or the password of basic authorization,
    // as in ws://any:TOKEN@localhost:8900/approval. Hand it to nobody else.
    const std::string& token() const noexcept { return state_->options.token; }
    // Whether an approver is connected.
    bool open() const noexcept { return !state_->approvers.empty(); }
    // Ends every connection; what is pending is denied.
    void disconnect() { state_->disconnect(); }

    // As in the original: yes or no. Throws errc::denied when no approver is connected, or the last
    // one left before it answered; errc::timed_out after approval_timeout.
    awaitable<bool> request(std::string server_name, std::string tool_name, json::object tool_args) {
        const auto state = state_;
        if (!state->options.approval_required) co_return true;
        ToolCall call;
        call.server = std::move(server_name);
        call.tool = std::move(tool_name);
        call.set_arguments(std::move(tool_args));
        const Decision decision = co_await asked(state, std::move(call));
        if (decision.verdict == Verdict::pass) throw Error(errc::denied, "Approval channel not connected");
        if (decision.expired) throw Error(errc::timed_out, decision.reason);
        if (decision.by.empty()) throw Error(errc::denied, decision.reason);
        co_return decision.verdict == Verdict::allow;
    }

    // For policies: the first approver's answer, a denial that says why there is none, or a pass
    // when no approver is connected. Cancelling it withdraws the question.
    awaitable<Decision> ask(ToolCall call) { return asked(state_, std::move(call)); }

private:
    using Connection = std::shared_ptr<detail::JsonSocket>;
    struct Pending {
        explicit Pending(const asio::any_io_executor& executor) : changed(executor) {}
        json::object message;
        std::optional<Decision> decision;
        Event changed;
    };

    struct State final : detail::HttpService, std::enable_shared_from_this<State> {
        State(asio::any_io_executor e, ApprovalChannelOptions o) : executor(std::move(e)), options(std::move(o)) {
            options.token = detail::checked_token(std::move(options.token), "the approval channel");
            detail::HttpLimits limits;
            limits.max_head = 8 * 1024;
            limits.max_connections = options.max_approvers + 16;  // check() refuses the others
            listener = std::make_shared<detail::HttpListener>(executor, "approval channel", limits, options.logger);
        }
        detail::HttpReply check(detail::HttpPeer& peer, const detail::HttpServerRequest& head) override {
            detail::HttpReply reply;
            reply.status = judge(*this, peer, head);
            if (reply.status == 0) return reply;
            if (reply.status == 401) reply.headers = "WWW-Authenticate: Bearer\r\n";
            options.logger(LogLevel::warning, "approval channel: a connection was refused with status " + std::to_string(reply.status) +
                                                  (reply.status == 403 ? ": a web page whose origin is not in allowed_origins" : ""));
            peer.keep_alive = false;
            return reply;
        }
        awaitable<bool> answer(detail::HttpPeerPtr peer, detail::HttpServerRequest request) override {
            return join(this->shared_from_this(), std::move(peer), std::move(request));
        }
        detail::HttpReply refusal(unsigned, const std::string&) override { return {}; }
        void close() {
            closed = true;
            listener->close();
            disconnect();
        }
        void disconnect() {
            for (const auto& approver : approvers) approver->close();
            approvers.clear();
            deny_all();
        }
        void deny_all() {
            for (auto& [id, one] : pending) {
                if (one->decision) continue;
                one->decision = Decision(Verdict::deny, "the approver disconnected before it answered");
                one->changed.notify();
            }
        }
        void leave(const Connection& connection) {
            approvers.remove(connection);
            if (approvers.empty()) deny_all();
        }
        // Only `true` is a yes. An answer to what is settled already does nothing.
        void take(const json::object& message) {
            const auto* id = message.if_contains("id");
            if (!id || !id->is_string()) return;
            const auto found = pending.find(std::string_view(id->get_string()));
            if (found == pending.end() || found->second->decision) return;
            const auto* result = message.if_contains("result");
            const auto* reason = message.if_contains("reason");
            Decision decision(result && result->is_bool() && result->get_bool() ? Verdict::allow : Verdict::deny);
            if (decision.verdict == Verdict::deny)
                decision.reason = reason && reason->is_string() ? detail::printable(std::string_view(reason->get_string()).substr(0, 500)) : "the approver said no";
            decision.by = "approval channel";
            found->second->decision = std::move(decision);
            found->second->changed.notify();
        }

        asio::any_io_executor executor;
        ApprovalChannelOptions options;
        std::shared_ptr<detail::HttpListener> listener;
        std::list<Connection> approvers;
        std::map<std::string, std::shared_ptr<Pending>, std::less<>> pending;
        bool closed = false;
    };
    using StatePtr = std::shared_ptr<State>;

    struct Settled {  // tells the approvers, however the question ends
        StatePtr state;
        std::string id;
        ~Settled() {
            state->pending.erase(id);
            json::object message, params;
            params["id"] = id;
            message["jsonrpc"] = "2.0";
            message["method"] = "settled";
            message["params"] = std::move(params);
            for (const auto& approver : state->approvers) approver->send(message);
        }
    };

    static awaitable<Decision> asked(StatePtr state, ToolCall call) {
        if (state->approvers.empty()) co_return Decision();
        const auto pending = std::make_shared<Pending>(state->executor);
        const std::string id = detail::random_hex(16);
        auto& message = pending->message;
        json::object params;
        params["server_name"] = std::move(call.server);
        params["tool_name"] = std::move(call.tool);
        params["tool_args"] = call.sent_arguments();
        message["jsonrpc"] = "2.0";
        message["method"] = "approve";
        message["params"] = std::move(params);
        message["id"] = id;
        // Clients take messages of up to a mebibyte, and leave when there is a larger one.
        constexpr std::size_t largest = 1'000'000;
        if (const auto size = detail::write_json(message).size(); size > largest)
            co_return Decision(Verdict::deny, "the arguments are too large to be shown to an approver: " + std::to_string(size) + " bytes");
        state->pending.emplace(id, pending);
        const Settled settled{state, id};
        for (const auto& approver : state->approvers) approver->send(message);
        const auto deadline = deadline_after(state->options.approval_timeout);
        while (!pending->decision && Clock::now() < deadline) co_await pending->changed.wait(deadline);
        if (pending->decision) co_return *pending->decision;
        Decision late(Verdict::deny, "no approver answered in time");
        late.expired = true;
        co_return late;
    }

    // An approver, for as long as it stays.
    static awaitable<bool> join(StatePtr state, detail::HttpPeerPtr peer, detail::HttpServerRequest request) {
        if (!peer->buffer.empty()) co_return false;  // it does not wait for the answer
        const auto connection = std::make_shared<detail::JsonSocket>(std::move(peer->socket));
        struct Leave {
            StatePtr state;
            Connection connection;
            ~Leave() { state->leave(connection); }
        } const leave{state, connection};
        auto& stream = connection->stream;
        stream.set_option(detail::websocket_timeouts());
        stream.read_message_max(64 * 1024);
        auto [error] = co_await stream.async_accept(request, as_result);
        if (error || state->closed || state->approvers.size() >= state->options.max_approvers) co_return false;
        state->approvers.push_back(connection);
        state->options.logger(LogLevel::info, "approval channel: an approver is connected");
        for (const auto& [id, one] : state->pending)
            if (!one->decision) connection->send(one->message);
        std::function<void(const json::object&)> use = [raw = state.get()](const json::object& message) { raw->take(message); };
        co_await connection->run(std::move(use));
        co_return false;
    }

    // The HTTP status with which to refuse, or 0.
    static unsigned judge(const State& state, const detail::HttpPeer& peer, const detail::HttpServerRequest& request) {
        if (request.target() != "/approval") return 404;
        const auto& allowed = state.options.allowed_origins;
        const std::string_view origin = request[boost::beast::http::field::origin];
        const auto named = [&](const std::string& one) { return one == "*" || one == origin; };
        if (request.count(boost::beast::http::field::origin) > 0 && !detail::is_own_origin(origin, peer.port) &&
            std::none_of(allowed.begin(), allowed.end(), named))
            return 403;
        std::string_view given = request[boost::beast::http::field::authorization];
        std::optional<std::string> basic;
        if (given.starts_with("Bearer ")) {
            given.remove_prefix(7);
        } else if (given.starts_with("Basic ")) {
            basic = detail::decode_base64(given.substr(6));
            given = basic ? std::string_view(*basic) : std::string_view();
            given.remove_prefix(std::min(given.find(':') + 1, given.size()));
        } else {
            return 401;
        }
        const auto& token = state.options.token;
        if (given.size() != token.size() || CRYPTO_memcmp(given.data(), token.data(), token.size()) != 0) return 401;
        if (!detail::websocket::is_upgrade(request)) return 400;
        return state.approvers.size() >= state.options.max_approvers ? 503 : 0;
    }

    StatePtr state_;
};

// Where the channel is, and what it demands.
struct ApprovalClientOptions {
    std::string host = "localhost";
    unsigned short port = 8900;
    std::string token;
    Duration connect_timeout = std::chrono::seconds(10);
    Logger logger;
};

// The side that answers. Owned and used on one thread.
//
// Example: tool_calls/main.cpp [ApprovalClient]
class ApprovalClient {
    struct State;

public:
    // A question. Copies share the one answer; the first counts.
    class Request {
    public:
        const std::string& server_name() const noexcept { return state_->call.server; }
        const std::string& tool_name() const noexcept { return state_->call.tool; }
        // Of numbers that a double cannot hold, the nearest one; to_string() shows what was sent.
        const json::object& tool_args() const noexcept { return state_->call.arguments; }
        // Yes; does nothing once the question is settled.
        void accept() const { answer(true, {}); }
        // No; the code that called is told the reason.
        void reject(std::string reason = {}) const { answer(false, std::move(reason)); }
        // Returns when this or another approver answered, the call was withdrawn, or the connection
        // ended.
        awaitable<void> settled() const { return settled(state_); }
        // server.tool(k='v', …) on one line, safe to show on a terminal. Long values are folded, and
        // what cannot be shown whole says so: tool_args() has all of it.
        std::string to_string() const { return detail::call_text(server_name(), tool_name(), state_->call.sent_arguments()); }

    private:
        friend class ApprovalClient;
        struct Shared {
            explicit Shared(const asio::any_io_executor& executor) : changed(executor) {}
            ToolCall call;
            std::string id;
            std::weak_ptr<detail::JsonSocket> connection;
            bool settled = false;
            Event changed;
            void settle() {
                settled = true;
                changed.notify();
            }
        };
        explicit Request(std::shared_ptr<Shared> state) : state_(std::move(state)) {}
        static awaitable<void> settled(std::shared_ptr<Shared> state) {
            while (!state->settled) co_await state->changed.wait();
        }
        void answer(bool yes, std::string reason) const {
            const auto connection = state_->connection.lock();
            if (state_->settled || !connection) return;
            json::object message;
            message["jsonrpc"] = "2.0";
            message["result"] = yes;
            message["id"] = state_->id;
            if (!reason.empty()) message["reason"] = std::move(reason);
            connection->send(message);
            state_->settle();
        }
        std::shared_ptr<Shared> state_;
    };
    // Runs once for each question, many at a time; an exception is logged and answers nothing.
    using Callback = std::function<awaitable<void>(Request)>;

    // Connects to nothing yet. callback is called on `executor`.
    ApprovalClient(asio::any_io_executor executor, Callback callback, ApprovalClientOptions options = {})
        : state_(std::make_shared<State>(std::move(executor), std::move(callback), std::move(options))) {}
    ~ApprovalClient() { state_->close(); }
    ApprovalClient(const ApprovalClient&) = delete;
    ApprovalClient& operator=(const ApprovalClient&) = delete;

    // Connects to a channel. Throws errc::io_error when it cannot be reached, errc::denied when it
    // refuses the token, errc::timed_out.
    awaitable<void> connect() {
        const auto state = state_;
        std::optional<Error> failure;
        auto work = connect_into(state, failure);
        const auto limit = Clock::now() + state->options.connect_timeout;
        auto timer = sleep_until(limit);
        const bool ended = co_await ends_first(std::move(work), std::move(timer));
        if (!ended) throw Error(errc::timed_out, "the approval channel at " + state->where() + " did not answer in time");
        if (failure) throw *failure;
    }
    bool connected() const noexcept { return state_->connection && !state_->connection->closed(); }

    // Leaves; what this approver alone was asked is denied there.
    awaitable<void> disconnect() {
        const auto state = state_;
        const auto connection = std::move(state->connection);
        state->connection = nullptr;
        if (connection && !connection->closed()) {
            auto farewell = say_goodbye(connection);
            const auto limit = Clock::now() + std::chrono::seconds(2);
            auto timer = sleep_until(limit);
            co_await ends_first(std::move(farewell), std::move(timer));
            connection->close();
        }
        state->settle_all();
    }

private:
    struct State {
        State(asio::any_io_executor e, Callback c, ApprovalClientOptions o) : executor(std::move(e)), callback(std::move(c)), options(std::move(o)) {}
        std::string where() const { return options.host + ":" + std::to_string(options.port); }
        void close() {
            if (connection) connection->close();
            settle_all();
        }
        void settle_all() {
            for (auto& [id, request] : requests)
                if (const auto held = request.lock()) held->settle();
            requests.clear();
        }
        asio::any_io_executor executor;
        Callback callback;
        ApprovalClientOptions options;
        std::shared_ptr<detail::JsonSocket> connection;
        std::map<std::string, std::weak_ptr<Request::Shared>, std::less<>> requests;
    };
    using StatePtr = std::shared_ptr<State>;

    static awaitable<void> say_goodbye(std::shared_ptr<detail::JsonSocket> connection) {
        co_await connection->stream.async_close(detail::websocket::close_code::normal, as_result);
    }

    static awaitable<void> connect_into(StatePtr state, std::optional<Error>& failure) {
        const auto fail = [&](errc code, const std::string& why) {
            failure.emplace(code, "the approval channel at " + state->where() + ": " + why);
        };
        detail::tcp::resolver resolver(state->executor);
        auto [not_found, endpoints] = co_await resolver.async_resolve(state->options.host, std::to_string(state->options.port), as_result);
        if (not_found) co_return fail(errc::io_error, not_found.message());
        detail::tcp::socket socket(state->executor);
        boost::system::error_code error = asio::error::host_not_found;
        for (const auto& entry : endpoints) {
            boost::system::error_code ignored;
            socket.close(ignored);
            const detail::tcp::endpoint endpoint = entry.endpoint();
            auto [refused] = co_await socket.async_connect(endpoint, as_result);
            error = refused;
            if (!error) break;
        }
        if (error) co_return fail(errc::io_error, error.message());
        const auto connection = std::make_shared<detail::JsonSocket>(std::move(socket));
        auto& stream = connection->stream;
        stream.set_option(detail::websocket_timeouts());
        stream.read_message_max(4u << 20);
        // The stream keeps this for as long as it lives, so it must not hold the state, which holds the stream.
        const std::string bearer = "Bearer " + state->options.token;
        stream.set_option(detail::websocket::stream_base::decorator([bearer](detail::websocket::request_type& request) {
            request.set(boost::beast::http::field::authorization, bearer);
        }));
        detail::websocket::response_type response;
        auto [declined] = co_await stream.async_handshake(response, state->where(), "/approval", as_result);
        if (declined && response.result_int() == 401) co_return fail(errc::denied, "it refused the token");
        if (declined) co_return fail(errc::io_error, declined.message());
        state->close();
        state->connection = connection;
        asio::co_spawn(state->executor, receive(state, connection), asio::detached);
    }

    static awaitable<void> receive(StatePtr state, std::shared_ptr<detail::JsonSocket> connection) {
        const std::weak_ptr<State> weak = state;
        const std::weak_ptr<detail::JsonSocket> socket = connection;
        std::function<void(const json::object&)> use = [weak, socket](const json::object& message) {
            if (const auto held = weak.lock()) take(held, socket, message);
        };
        co_await connection->run(std::move(use));
        if (state->connection == connection) state->connection = nullptr;
        state->settle_all();
    }

    static std::string text(const json::object& object, std::string_view key) {
        const auto* value = object.if_contains(key);
        return value && value->is_string() ? std::string(value->get_string()) : std::string();
    }
    static void take(const StatePtr& state, const std::weak_ptr<detail::JsonSocket>& connection, const json::object& message) {
        const auto* params = message.if_contains("params");
        if (!params || !params->is_object()) return;
        const auto& object = params->get_object();
        const std::string method = text(message, "method");
        if (method == "settled") {
            const auto found = state->requests.find(text(object, "id"));
            if (found == state->requests.end()) return;
            if (const auto held = found->second.lock()) held->settle();
            state->requests.erase(found);
            return;
        }
        const auto* arguments = object.if_contains("tool_args");
        if (method != "approve" || !arguments || !arguments->is_object() || text(message, "id").empty()) return;
        auto shared = std::make_shared<Request::Shared>(state->executor);
        shared->call.server = text(object, "server_name");
        shared->call.tool = text(object, "tool_name");
        shared->call.set_arguments(arguments->get_object());
        shared->id = text(message, "id");
        shared->connection = connection;
        state->requests.insert_or_assign(shared->id, shared);
        asio::co_spawn(state->executor, consult(state, Request(std::move(shared))), asio::detached);
    }
    static awaitable<void> consult(StatePtr state, Request request) {
        try {
            co_await state->callback(request);
        } catch (const std::exception& error) {
            state->options.logger(LogLevel::error, std::string("approval callback: ") + error.what());
        }
    }

    StatePtr state_;
};

}  // namespace ipybox
