#pragma once
#include <ipybox/approval/channel.hpp>

#include <openssl/crypto.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/address.hpp>
#include <ipybox/compilation.hpp>

namespace ipybox {

struct ApprovalChannel::Impl final : net::HttpService, std::enable_shared_from_this<Impl> {
    using Answerer = detail::PendingApproval::Answerer;

    Impl(asio::any_io_executor e, ApprovalChannelOptions o);
    net::HttpReply check(net::HttpPeer& peer, const net::HttpServerRequest& head) override;
    awaitable<bool> answer(net::HttpPeerPtr peer, net::HttpServerRequest request) override;
    net::HttpReply refusal(unsigned, const std::string&) override { return {}; }
    void close();
    void disconnect();
    void show(Answerer who, Pending& one);
    void leave(Answerer who);
    // Only `true` is a yes.
    void take(Answerer who, const json::object& message);

    asio::any_io_executor executor;
    ApprovalChannelOptions options;
    std::shared_ptr<net::HttpListener> listener;
    std::map<Answerer, Connection> approvers;
    Answerer newest = 0;
    std::map<std::string, std::shared_ptr<Pending>, std::less<>> pending;
    bool closed = false;
};

}  // namespace ipybox

namespace ipybox::approval {

IPYBOX_DECL awaitable<void> JsonSocket::run(std::function<void(const json::object&)> use) {
    const auto self = shared_from_this();
    auto reading = read(self, std::move(use));
    auto writing = write(self);
    co_await ends_first(std::move(reading), std::move(writing));
}

IPYBOX_DECL void JsonSocket::send(const json::object& message) {
    if (closed_) return;
    queue_.push_back(detail::write_json(message));
    queued_ += queue_.back().size();
    if (queued_ > max_queued) return close();
    changed_.notify();
}

IPYBOX_DECL void JsonSocket::close() {
    closed_ = true;
    boost::system::error_code ignored;
    stream.next_layer().close(ignored);
    changed_.notify();
}

IPYBOX_DECL awaitable<void> JsonSocket::read(std::shared_ptr<JsonSocket> self,
                                             std::function<void(const json::object&)> use) {
    while (!self->closed_) {
        boost::beast::flat_buffer buffer;
        auto [error, size] = co_await self->stream.async_read(buffer, as_result);
        if (error) break;
        json::parse_options limits;
        limits.max_depth = 128;
        boost::system::error_code wrong;
        const json::value message = detail::parse_exact(
            {static_cast<const char*>(buffer.data().data()), size}, wrong, limits);
        if (!wrong && message.is_object()) use(message.get_object());
    }
    self->close();  // ends what is being written
}

IPYBOX_DECL awaitable<void> JsonSocket::write(std::shared_ptr<JsonSocket> self) {
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

IPYBOX_DECL websocket::stream_base::timeout websocket_timeouts() {
    websocket::stream_base::timeout limits;
    limits.handshake_timeout = std::chrono::seconds(10);
    limits.idle_timeout = std::chrono::seconds(60);
    limits.keep_alive_pings = true;
    return limits;
}

}  // namespace ipybox::approval

namespace ipybox {

IPYBOX_DECL ApprovalChannel::ApprovalChannel(asio::any_io_executor executor,
                                             ApprovalChannelOptions options)
    : state_(std::make_shared<Impl>(std::move(executor), std::move(options))) {}

IPYBOX_DECL ApprovalChannel::~ApprovalChannel() { state_->close(); }

IPYBOX_DECL std::string ApprovalChannel::listen(const std::string& host, unsigned short port) {
    approval::tcp::acceptor acceptor(state_->executor);
    const auto where = net::listen_on_loopback(acceptor, host, port, "the approval channel");
    state_->listener->start(state_, std::move(acceptor));
    return "ws://" + where + "/approval";
}

IPYBOX_DECL const std::string& ApprovalChannel::token() const noexcept {
    return state_->options.token;
}

IPYBOX_DECL bool ApprovalChannel::open() const noexcept { return !state_->approvers.empty(); }

IPYBOX_DECL void ApprovalChannel::disconnect() { state_->disconnect(); }

IPYBOX_DECL awaitable<bool> ApprovalChannel::request(std::string server_name, std::string tool_name,
                                                     json::object tool_args) {
    const auto state = state_;
    if (!state->options.approval_required) co_return true;
    ToolCall call;
    call.server = std::move(server_name);
    call.tool = std::move(tool_name);
    call.set_arguments(std::move(tool_args));
    const Decision decision = co_await asked(state, std::move(call));
    if (decision.verdict == Verdict::pass)
        throw Error(errc::denied, "Approval channel not connected");
    if (decision.expired) throw Error(errc::timed_out, decision.reason);
    if (decision.by.empty()) throw Error(errc::denied, decision.reason);
    co_return decision.verdict == Verdict::allow;
}

IPYBOX_DECL ApprovalChannel::Impl::Impl(asio::any_io_executor e, ApprovalChannelOptions o)
    : executor(std::move(e)), options(std::move(o)) {
    options.token = net::checked_token(std::move(options.token), "the approval channel");
    net::HttpLimits limits;
    limits.max_head = 8 * 1024;
    limits.max_connections = options.max_approvers + 16;  // check() refuses the others
    listener =
        std::make_shared<net::HttpListener>(executor, "approval channel", limits, options.logger);
}

IPYBOX_DECL net::HttpReply ApprovalChannel::Impl::check(net::HttpPeer& peer,
                                                        const net::HttpServerRequest& head) {
    net::HttpReply reply;
    reply.status = judge(*this, peer, head);
    if (reply.status == 0) return reply;
    if (reply.status == 401) reply.headers = "WWW-Authenticate: Bearer\r\n";
    options.logger(
        LogLevel::warning,
        "approval channel: a connection was refused with status " + std::to_string(reply.status) +
            (reply.status == 403 ? ": a web page whose origin is not in allowed_origins" : ""));
    peer.keep_alive = false;
    return reply;
}

IPYBOX_DECL awaitable<bool> ApprovalChannel::Impl::answer(net::HttpPeerPtr peer,
                                                          net::HttpServerRequest request) {
    return join(this->shared_from_this(), std::move(peer), std::move(request));
}

IPYBOX_DECL void ApprovalChannel::Impl::close() {
    closed = true;
    listener->close();
    disconnect();
}

IPYBOX_DECL void ApprovalChannel::Impl::disconnect() {
    while (!approvers.empty()) {
        approvers.begin()->second->close();
        leave(approvers.begin()->first);
    }
}

IPYBOX_DECL void ApprovalChannel::Impl::show(Answerer who, Pending& one) {
    one.question.show(who);
    approvers.at(who)->send(one.message);
}

IPYBOX_DECL void ApprovalChannel::Impl::leave(Answerer who) {
    approvers.erase(who);
    for (const auto& [id, one] : pending)
        if (one->question.leave(who)) one->changed.notify();
}

IPYBOX_DECL void ApprovalChannel::Impl::take(Answerer who, const json::object& message) {
    const auto found = pending.find(detail::string_of(message, "id"));
    if (found == pending.end()) return;
    const auto* result = message.if_contains("result");
    Decision decision(result && result->is_bool() && result->get_bool() ? Verdict::allow
                                                                        : Verdict::deny);
    if (decision.verdict == Verdict::deny) {
        const auto* reason = detail::find_string(message, "reason");
        decision.reason = reason ? detail::printable(std::string_view(*reason).substr(0, 500))
                                 : "the approver said no";
    }
    decision.by = "approval channel";
    if (found->second->question.answer(who, std::move(decision))) found->second->changed.notify();
}

IPYBOX_DECL ApprovalChannel::Settled::~Settled() {
    state->pending.erase(id);
    json::object message, params;
    params["id"] = id;
    message["jsonrpc"] = "2.0";
    message["method"] = "settled";
    message["params"] = std::move(params);
    for (const auto& [who, approver] : state->approvers) approver->send(message);
}

IPYBOX_DECL awaitable<Decision> ApprovalChannel::asked(ImplPtr state, ToolCall call) {
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
        co_return Decision(Verdict::deny,
                           "the arguments are too large to be shown to an approver: " +
                               std::to_string(size) + " bytes");
    state->pending.emplace(id, pending);
    const Settled settled{state, id};
    for (const auto& [who, approver] : state->approvers) state->show(who, *pending);
    const auto deadline = deadline_after(state->options.approval_timeout);
    while (pending->question.open() && Clock::now() < deadline)
        co_await pending->changed.wait(deadline);
    pending->question.expire("no approver answered in time");
    co_return pending->question.take();
}

IPYBOX_DECL awaitable<bool> ApprovalChannel::join(ImplPtr state, net::HttpPeerPtr peer,
                                                  net::HttpServerRequest request) {
    if (!peer->buffer.empty()) co_return false;  // it does not wait for the answer
    const auto connection = std::make_shared<approval::JsonSocket>(std::move(peer->socket));
    struct Leave {
        ImplPtr state;
        Impl::Answerer who;
        ~Leave() { state->leave(who); }
    } const leave{state, ++state->newest};
    const auto who = leave.who;
    auto& stream = connection->stream;
    stream.set_option(approval::websocket_timeouts());
    stream.read_message_max(64 * 1024);
    auto [error] = co_await stream.async_accept(request, as_result);
    if (error || state->closed || state->approvers.size() >= state->options.max_approvers)
        co_return false;
    state->approvers.emplace(who, connection);
    state->options.logger(LogLevel::info, "approval channel: an approver is connected");
    for (const auto& [id, one] : state->pending)
        if (one->question.open()) state->show(who, *one);
    std::function<void(const json::object&)> use =
        [raw = state.get(), who](const json::object& message) { raw->take(who, message); };
    co_await connection->run(std::move(use));
    co_return false;
}

IPYBOX_DECL unsigned ApprovalChannel::judge(const Impl& state, const net::HttpPeer& peer,
                                            const net::HttpServerRequest& request) {
    if (request.target() != "/approval") return 404;
    const auto& allowed = state.options.allowed_origins;
    const std::string_view origin = request[boost::beast::http::field::origin];
    const auto named = [&](const std::string& one) { return one == "*" || one == origin; };
    if (request.count(boost::beast::http::field::origin) > 0 &&
        !net::is_own_origin(origin, peer.port) &&
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
    if (given.size() != token.size() ||
        CRYPTO_memcmp(given.data(), token.data(), token.size()) != 0)
        return 401;
    if (!approval::websocket::is_upgrade(request)) return 400;
    return state.approvers.size() >= state.options.max_approvers ? 503 : 0;
}

IPYBOX_DECL void ApprovalClient::Request::Shared::settle() {
    settled = true;
    changed.notify();
}

IPYBOX_DECL void ApprovalClient::Request::answer(bool yes, std::string reason) const {
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

IPYBOX_DECL awaitable<void> ApprovalClient::connect() {
    const auto state = state_;
    std::optional<Error> failure;
    auto work = connect_into(state, failure);
    const auto limit = Clock::now() + state->options.connect_timeout;
    auto timer = sleep_until(limit);
    const bool ended = co_await ends_first(std::move(work), std::move(timer));
    if (!ended)
        throw Error(errc::timed_out,
                    "the approval channel at " + state->where() + " did not answer in time");
    if (failure) throw *failure;
}

IPYBOX_DECL awaitable<void> ApprovalClient::disconnect() {
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

IPYBOX_DECL void ApprovalClient::Impl::close() {
    if (connection) connection->close();
    settle_all();
}

IPYBOX_DECL void ApprovalClient::Impl::settle_all() {
    for (auto& [id, request] : requests)
        if (const auto held = request.lock()) held->settle();
    requests.clear();
}

IPYBOX_DECL awaitable<void> ApprovalClient::connect_into(ImplPtr state,
                                                         std::optional<Error>& failure) {
    const auto fail = [&](errc code, const std::string& why) {
        failure.emplace(code, "the approval channel at " + state->where() + ": " + why);
    };
    approval::tcp::resolver resolver(state->executor);
    auto [not_found, endpoints] = co_await resolver.async_resolve(
        state->options.host, std::to_string(state->options.port), as_result);
    if (not_found) co_return fail(errc::io_error, not_found.message());
    approval::tcp::socket socket(state->executor);
    boost::system::error_code error = asio::error::host_not_found;
    for (const auto& entry : endpoints) {
        boost::system::error_code ignored;
        socket.close(ignored);
        const approval::tcp::endpoint endpoint = entry.endpoint();
        auto [refused] = co_await socket.async_connect(endpoint, as_result);
        error = refused;
        if (!error) break;
    }
    if (error) co_return fail(errc::io_error, error.message());
    const auto connection = std::make_shared<approval::JsonSocket>(std::move(socket));
    auto& stream = connection->stream;
    stream.set_option(approval::websocket_timeouts());
    stream.read_message_max(4u << 20);
    // The stream keeps this for as long as it lives, so it must not hold the state, which holds the
    // stream.
    const std::string bearer = "Bearer " + state->options.token;
    stream.set_option(approval::websocket::stream_base::decorator(
        [bearer](approval::websocket::request_type& request) {
            request.set(boost::beast::http::field::authorization, bearer);
        }));
    approval::websocket::response_type response;
    auto [declined] =
        co_await stream.async_handshake(response, state->where(), "/approval", as_result);
    if (declined && response.result_int() == 401)
        co_return fail(errc::denied, "it refused the token");
    if (declined) co_return fail(errc::io_error, declined.message());
    state->close();
    state->connection = connection;
    asio::co_spawn(state->executor, receive(state, connection), asio::detached);
}

IPYBOX_DECL awaitable<void> ApprovalClient::receive(
    ImplPtr state, std::shared_ptr<approval::JsonSocket> connection) {
    const std::weak_ptr<Impl> weak = state;
    const std::weak_ptr<approval::JsonSocket> socket = connection;
    std::function<void(const json::object&)> use = [weak, socket](const json::object& message) {
        if (const auto held = weak.lock()) take(held, socket, message);
    };
    co_await connection->run(std::move(use));
    if (state->connection == connection) state->connection = nullptr;
    state->settle_all();
}

IPYBOX_DECL void ApprovalClient::take(const ImplPtr& state,
                                      const std::weak_ptr<approval::JsonSocket>& connection,
                                      const json::object& message) {
    const auto* params = detail::object_of(message, "params");
    if (!params) return;
    const auto& object = *params;
    const auto method = detail::string_of(message, "method");
    if (method == "settled") {
        const auto found = state->requests.find(std::string(detail::string_of(object, "id")));
        if (found == state->requests.end()) return;
        if (const auto held = found->second.lock()) held->settle();
        state->requests.erase(found);
        return;
    }
    const auto* arguments = detail::object_of(object, "tool_args");
    if (method != "approve" || !arguments || detail::string_of(message, "id").empty()) return;
    auto shared = std::make_shared<Request::Shared>(state->executor);
    shared->call.server = detail::string_of(object, "server_name");
    shared->call.tool = detail::string_of(object, "tool_name");
    shared->call.set_arguments(*arguments);
    shared->id = detail::string_of(message, "id");
    shared->connection = connection;
    state->requests.insert_or_assign(shared->id, shared);
    asio::co_spawn(state->executor, consult(state, Request(std::move(shared))), asio::detached);
}

IPYBOX_DECL awaitable<void> ApprovalClient::consult(ImplPtr state, Request request) {
    try {
        co_await state->callback(request);
    } catch (const std::exception& error) {
        state->options.logger(LogLevel::error, std::string("approval callback: ") + error.what());
    }
}

}  // namespace ipybox
