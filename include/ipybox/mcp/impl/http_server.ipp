#pragma once
#include <ipybox/mcp/http_server.hpp>

#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <sys/socket.h>

#include <boost/json/parse.hpp>
#include <ipybox/compilation.hpp>
#include <ipybox/detail/hex.hpp>

namespace ipybox::mcp {

IPYBOX_DECL McpHttpService::McpHttpService(std::shared_ptr<McpEngine> e, McpHttpOptions o)
    : engine(std::move(e)), options(std::move(o)), tick(engine->executor) {
    for (const auto& token : options.tokens) tokens.push_back(digest(token));
    net::HttpLimits limits = net::limits_of(options, engine->options.max_message);
    limits.max_head = static_cast<std::uint32_t>(options.max_header);
    limits.request_timeout = options.request_timeout;
    limits.idle_timeout = options.connection_idle;
    limits.write_timeout = options.write_timeout;
    listener = std::make_shared<net::HttpListener>(engine->executor, "MCP over HTTP", limits,
                                                   engine->options.logger);
}

IPYBOX_DECL void McpHttpService::stop() {
    closed = true;
    listener->close();
    tick.notify();
}

IPYBOX_DECL McpHttpService::Reply http_error(unsigned status, std::string_view text,
                                             std::int64_t code, std::string headers) {
    McpHttpService::Reply reply;
    reply.status = status;
    reply.body = detail::write_json(rpc_error(json::value(), code, text));
    reply.headers = std::move(headers);
    return reply;
}

IPYBOX_DECL McpHttpService::Reply unreadable(detail::ReadJson read) {
    McpHttpService::Reply reply;
    reply.status = 400;
    reply.body = detail::write_json(
        rpc_error(std::move(read.id), rpc_parse_error, "the body " + read.problem));
    return reply;
}

// ---- one request ----

// Whether the connection serves another request.
IPYBOX_DECL awaitable<bool> mcp::McpHttpService::send(net::HttpPeerPtr peer, Reply reply) {
    auto text = render(*peer, reply);
    const bool written = co_await peer->write(std::move(text));
    co_return written && peer->keep_alive;
}

// ---- sessions ----
IPYBOX_DECL bool McpHttpService::room_for_session() {
    if (engine->sessions.size() < options.max_sessions) return true;
    McpSessionPtr oldest;
    for (const auto& [id, session] : engine->sessions)
        if (session->busy == 0 && session->transport &&
            (!oldest || session->last_used < oldest->last_used))
            oldest = session;
    if (!oldest || Clock::now() - oldest->last_used < std::chrono::minutes(1)) return false;
    engine->end(oldest);
    return true;
}

// The session a legacy request names; else sets `reply`.
IPYBOX_DECL McpSessionPtr McpHttpService::find_session(const Request& request,
                                                       const std::string& principal, Reply& reply) {
    const std::string_view spoken = request["MCP-Protocol-Version"], id = request["Mcp-Session-Id"];
    if (!spoken.empty() && !detail::is_legacy_version(spoken)) {
        reply = mcp::http_error(
            400, "unsupported MCP-Protocol-Version \"" + excerpt(spoken, 100) + "\"");
        return nullptr;
    }
    if (id.empty()) {
        reply =
            mcp::http_error(400, "no session: Mcp-Session-Id is missing; begin with initialize");
        return nullptr;
    }
    const auto found = engine->sessions.find(id);
    const auto home = found == engine->sessions.end()
                          ? nullptr
                          : std::static_pointer_cast<HttpServerSession>(found->second->transport);
    if (!home || home->sse || found->second->principal != principal) {
        reply = mcp::http_error(404, "session not found; begin with initialize");
        return nullptr;
    }
    return found->second;
}

// That of all modern requests of one principal.
IPYBOX_DECL McpSessionPtr McpHttpService::shared_session(const std::string& principal) {
    const std::string id = "modern " + principal;
    if (const auto found = engine->sessions.find(id); found != engine->sessions.end())
        return found->second;
    return engine->open_session(id, principal, true);
}

IPYBOX_DECL std::shared_ptr<HttpServerStream> McpHttpService::make_stream(
    const McpSessionPtr& session) {
    HttpServerStream::Style style;
    style.resumable = !session->modern;
    style.primed = !session->modern && session->protocol_version >= detail::mcp_2025_11_25;
    style.retry = options.retry;
    style.max_event = options.max_event;
    return std::make_shared<HttpServerStream>(
        engine->executor, options.max_stream, style,
        std::static_pointer_cast<HttpServerSession>(session->transport));
}

// Throws what a modern request is answered whose headers and body do not say the same.
IPYBOX_DECL void McpHttpService::check_headers(const Request& request, std::string_view method,
                                               const json::object& params) {
    const auto mismatch = [](std::string_view header, std::string_view why) {
        return McpError(rpc_header_mismatch,
                        "header mismatch: " + std::string(header) + ' ' + std::string(why));
    };
    const auto the = [&](std::string_view header) {
        const std::size_t count = request.count(std::string(header));
        if (count == 0) throw mismatch(header, "is missing");
        if (count > 1) throw mismatch(header, "comes more than once");
        return std::string_view(request[std::string(header)]);
    };
    const auto* meta = detail::object_of(params, "_meta");
    if (meta == nullptr) throw McpError(rpc_invalid_params, "the request has no _meta");
    const auto spoken = detail::string_of(*meta, detail::meta_version);
    if (!spoken.empty() && the("MCP-Protocol-Version") != spoken)
        throw mismatch("MCP-Protocol-Version", "does not match the request's _meta");
    McpEngine::check_modern(*meta);
    if (the("Mcp-Method") != method)
        throw mismatch("Mcp-Method", "does not match the request's method");
    const bool by_uri = method == "resources/read", by_id = McpEngine::is_about_task(method);
    if (!by_uri && !by_id && method != "tools/call" && method != "prompts/get") return;
    const auto name = detail::string_of(params, by_uri ? "uri" : by_id ? "taskId" : "name");
    const auto said = detail::decode_header_value(the("Mcp-Name"));
    if (!said || *said != name) throw mismatch("Mcp-Name", "does not match the request's params");
    if (method != "tools/call") return;
    const auto tool = engine->find_tool(name);
    if (!tool) return;
    const auto* given = detail::object_of(params, "arguments");
    const json::object arguments =
        given != nullptr && !tool->header_parameters.empty() ? *given : json::object();
    for (const auto& parameter : tool->header_parameters) {
        const std::string header = "Mcp-Param-" + parameter.name;
        const std::size_t count = request.count(header);
        const std::string_view value = request[header];
        if (count > 1 || !detail::mirrors(parameter, arguments, count == 0 ? nullptr : &value))
            throw mismatch(header, "does not match the argument");
    }
}

// ---- HTTP+SSE (2024-11-05) ----

// The stream of a new session, to its end: with it ends the session.
IPYBOX_DECL awaitable<bool> McpHttpService::serve_sse(std::shared_ptr<McpHttpService> self,
                                                      net::HttpPeerPtr connection,
                                                      std::string principal) {
    if (!self->room_for_session()) {
        auto reply = mcp::http_error(503, "too many sessions; try again later", rpc_internal_error,
                                     "Retry-After: 30\r\n");
        co_return co_await send(connection, std::move(reply));
    }
    const auto engine = self->engine;
    const auto session = engine->open_session(detail::random_hex(32), std::move(principal), false);
    struct End {
        std::shared_ptr<McpEngine> engine;
        McpSessionPtr session;
        ~End() {
            --session->busy;
            engine->end(session);
        }
    } const end{engine, session};
    ++session->busy;
    const auto home = std::make_shared<HttpServerSession>();
    home->sse = true;
    session->transport = home;
    auto stream = std::make_shared<HttpServerStream>(
        engine->executor, self->options.max_stream,
        HttpServerStream::Style{.max_event = self->options.max_event}, home);
    stream->standalone = stream->listened = true;
    stream->name_endpoint(self->options.sse_path + "?session=" + session->id);
    session->outlet = stream;
    connection->keep_alive = false;
    co_return co_await pump(self, connection, std::move(stream), nullptr);
}

// One message of a client: what it leads to comes by the stream.
IPYBOX_DECL McpHttpService::Reply McpHttpService::take_sse(Request& request,
                                                           const std::string& principal) {
    const std::string_view target = request.target();
    constexpr std::string_view key = "?session=";
    const auto at = target.find(key);
    const auto id = at == target.npos ? std::string_view() : target.substr(at + key.size());
    const auto found = engine->sessions.find(id);
    const auto home = found == engine->sessions.end()
                          ? nullptr
                          : std::static_pointer_cast<HttpServerSession>(found->second->transport);
    if (!home || !home->sse || found->second->principal != principal)
        return http_error(404, "session not found; begin with GET " + options.sse_path);
    const auto session = found->second;
    const auto stream = std::static_pointer_cast<HttpServerStream>(session->outlet);
    // Answers are not lost, so who does not read them gets no more.
    if (stream->crowded())
        return http_error(503, "read the answers before you ask again", rpc_internal_error,
                          "Retry-After: 1\r\n");
    auto read = read_message(request.body());
    if (!read.problem.empty()) return unreadable(std::move(read));
    auto* message = read.value.if_object();
    if (message == nullptr) return http_error(400, "the body is no JSON-RPC message");
    const auto rpc = classify(*message);
    if (rpc.kind == RpcMessage::Kind::malformed)
        return http_error(400, std::string("not a JSON-RPC message: ") + rpc.problem);
    const auto* params = rpc.body != nullptr ? rpc.body->if_object() : nullptr;
    const bool modern =
        rpc.method == "server/discover" || (params != nullptr && McpEngine::is_modern(*params));
    const auto outlet = std::make_shared<SseOutlet>(stream);
    if (modern && rpc.kind == RpcMessage::Kind::request) {
        outlet->respond(rpc_error(std::move(*rpc.id), rpc_method_not_found,
                                  "HTTP+SSE is for older versions of the protocol; this one is "
                                  "spoken at " +
                                      options.path),
                        200);
    } else {
        engine->accept(session, outlet, std::move(*message));
    }
    Reply reply;
    reply.status = 202;
    return reply;
}

// ---- GET and DELETE: streams and ends of sessions ----
IPYBOX_DECL McpHttpService::Outcome McpHttpService::take_get_or_delete(
    const Request& request, const std::string& principal) {
    Outcome outcome;
    const auto session = find_session(request, principal, outcome.reply);
    if (!session) return outcome;
    if (request.method() == boost::beast::http::verb::delete_) {
        engine->end(session);
        outcome.reply.status = 204;
        return outcome;
    }
    session->last_used = Clock::now();
    const std::string_view last_event = request["Last-Event-ID"];
    outcome = last_event.empty() ? open_stream(session) : resume_stream(session, last_event);
    if (outcome.stream) outcome.stream->listened = true;
    outcome.session = session;
    return outcome;
}

// The session's stream for what belongs to no request.
IPYBOX_DECL McpHttpService::Outcome McpHttpService::open_stream(const McpSessionPtr& session) {
    const auto stream = std::static_pointer_cast<HttpServerStream>(session->outlet);
    if (stream->attached)
        return {mcp::http_error(409, "this session's stream is open on another connection")};
    stream->begin();
    return {{}, stream};
}

// The stream that an event belongs to, from the one after it on.
IPYBOX_DECL McpHttpService::Outcome McpHttpService::resume_stream(const McpSessionPtr& session,
                                                                  std::string_view last_event) {
    const auto home = std::static_pointer_cast<HttpServerSession>(session->transport);
    std::uint64_t number = 0, event = 0;
    const char* const end = last_event.data() + last_event.size();
    const auto first = std::from_chars(last_event.data(), end, number);
    const bool dashed = first.ec == std::errc() && first.ptr != end && *first.ptr == '-';
    const auto second = dashed ? std::from_chars(first.ptr + 1, end, event) : first;
    const auto found = home->streams.find(number);
    if (!dashed || second.ec != std::errc() || second.ptr != end || found == home->streams.end())
        return {mcp::http_error(400, "there is no stream to resume by that Last-Event-ID")};
    const auto stream = found->second;
    stream->rewind(event);
    // Clients take this for "no more streams" and do not try again.
    if (stream->ended && !stream->pending())
        return {mcp::http_error(405, "the stream has ended, and all of it was read",
                                rpc_invalid_request, "Allow: POST\r\n")};
    return {{}, stream};
}

// ---- POST: messages ----
IPYBOX_DECL McpHttpService::Outcome mcp::McpHttpService::take_post(Request& request,
                                                                   const std::string& principal) {
    auto read = read_message(request.body());
    request.body().clear();
    request.body().shrink_to_fit();
    if (!read.problem.empty()) return {unreadable(std::move(read))};
    if (auto* batch = read.value.if_array())
        return take_batch(request, principal, std::move(*batch));
    auto* message = read.value.if_object();
    if (message == nullptr) return {http_error(400, "the body is no JSON-RPC message")};
    const auto rpc = classify(*message);
    if (rpc.kind == RpcMessage::Kind::malformed)
        return {http_error(400, std::string("not a JSON-RPC message: ") + rpc.problem)};
    const auto* params = rpc.body != nullptr ? rpc.body->if_object() : nullptr;
    const bool is_request = rpc.kind == RpcMessage::Kind::request;
    const bool modern = detail::names_modern_version(request["MCP-Protocol-Version"]) ||
                        (is_request && params != nullptr && McpEngine::is_modern(*params)) ||
                        (is_request && rpc.method == "server/discover");
    if (modern) return take_modern(request, principal, *message, rpc);
    if (is_request && rpc.method == "initialize") return initialize(principal, std::move(*message));
    Outcome outcome;
    const auto session = find_session(request, principal, outcome.reply);
    if (session && is_request) return ask(session, std::move(*message));
    if (session) {
        engine->accept(session, session->outlet, std::move(*message));
        outcome.reply.status = 202;
    }
    return outcome;
}

// A request of a session, whose answer comes by a stream of its own.
IPYBOX_DECL McpHttpService::Outcome McpHttpService::ask(const McpSessionPtr& session,
                                                        json::object message) {
    Outcome outcome;
    outcome.session = session;
    outcome.stream = make_stream(session);
    outcome.call = engine->accept(session, outcome.stream, std::move(message));
    return outcome;
}

IPYBOX_DECL McpHttpService::Outcome McpHttpService::take_modern(const Request& request,
                                                                const std::string& principal,
                                                                json::object& message,
                                                                const RpcMessage& rpc) {
    Outcome outcome;
    // No notification is defined for modern clients over HTTP, and no response.
    if (rpc.kind == RpcMessage::Kind::notification) {
        outcome.reply.status = 202;
        return outcome;
    }
    if (rpc.kind != RpcMessage::Kind::request)
        return {mcp::http_error(400, "only requests are sent to this server")};
    const auto* params = rpc.body != nullptr ? rpc.body->if_object() : nullptr;
    try {
        check_headers(request, rpc.method, params != nullptr ? *params : json::object());
    } catch (const McpError& wrong) {
        auto refusal = rpc_error(*rpc.id, wrong.rpc_code(), wrong.detail());
        if (!wrong.data().empty()) refusal["error"].get_object()["data"] = wrong.data();
        outcome.reply.status = 400;
        outcome.reply.body = detail::write_json(refusal);
        return outcome;
    }
    return ask(shared_session(principal), std::move(message));
}

// Opens a legacy session, unless the engine refuses to.
IPYBOX_DECL McpHttpService::Outcome McpHttpService::initialize(const std::string& principal,
                                                               json::object message) {
    if (!room_for_session())
        return {mcp::http_error(503, "too many sessions; try again later", rpc_internal_error,
                                "Retry-After: 30\r\n")};
    const auto session = engine->open_session(detail::random_hex(32), principal, false);
    const auto home = std::make_shared<HttpServerSession>();
    home->max_replay = options.max_replay;
    session->transport = home;
    const auto stream = make_stream(session);
    engine->accept(session, stream, std::move(message));
    Outcome outcome;
    outcome.reply = answer_of(*stream);
    if (session->begun) {
        auto standalone = make_stream(session);
        standalone->standalone = true;
        session->outlet = std::move(standalone);
        outcome.reply.headers = "Mcp-Session-Id: " + session->id + "\r\n";
    } else {
        engine->end(session);
    }
    return outcome;
}

// Several messages of a legacy session at once (2025-03-26).
IPYBOX_DECL McpHttpService::Outcome McpHttpService::take_batch(const Request& request,
                                                               const std::string& principal,
                                                               json::array batch) {
    Outcome outcome;
    const auto session = find_session(request, principal, outcome.reply);
    if (!session) return outcome;
    if (const auto why = engine->batch_problem(*session, batch); !why.empty())
        return {mcp::http_error(400, why)};
    const auto answers = McpEngine::answers_to(batch);
    const auto stream = make_stream(session);
    stream->expected = answers;
    stream->batch = true;
    engine->accept_batch(session, stream, std::move(batch));
    if (answers == 0) {
        outcome.reply.status = 202;
        return outcome;
    }
    outcome.session = session;
    outcome.stream = stream;
    return outcome;
}

// ---- answering ----
IPYBOX_DECL awaitable<bool> McpHttpService::respond(std::shared_ptr<McpHttpService> self,
                                                    net::HttpPeerPtr connection, Request request) {
    namespace http = boost::beast::http;
    const auto principal = self->principal_of(request[http::field::authorization]).value_or("");
    const std::string_view target = request.target();
    if (!self->options.sse_path.empty() &&
        target.substr(0, target.find('?')) == self->options.sse_path) {
        if (request.method() == http::verb::get)
            co_return co_await serve_sse(self, connection, principal);
        auto reply = self->take_sse(request, principal);
        co_return co_await send(connection, std::move(reply));
    }
    auto outcome = request.method() == http::verb::post
                       ? self->take_post(request, principal)
                       : self->take_get_or_delete(request, principal);
    if (!outcome.stream) co_return co_await send(connection, std::move(outcome.reply));
    struct Busy {
        McpSessionPtr session;
        explicit Busy(McpSessionPtr s) : session(std::move(s)) { ++session->busy; }
        ~Busy() {
            --session->busy;
            session->last_used = Clock::now();
        }
    } const busy(outcome.session);
    co_return co_await pump(self, connection, std::move(outcome.stream), std::move(outcome.call));
}

IPYBOX_DECL McpHttpService::Reply McpHttpService::answer_of(HttpServerStream& stream) {
    Reply reply;
    reply.status = stream.answer_status;
    if (stream.batch) {
        json::array all;
        for (auto& one : stream.answers) all.push_back(std::move(one));
        reply.body = detail::write_json(all);
    } else if (!stream.answers.empty()) {
        reply.body = detail::write_json(stream.answers.front());
    }
    return reply;
}

// Sends what the stream brings until it ends, the client hangs up, or another connection takes
// over.
IPYBOX_DECL awaitable<bool> McpHttpService::pump(std::shared_ptr<McpHttpService> self,
                                                 net::HttpPeerPtr connection,
                                                 std::shared_ptr<HttpServerStream> stream,
                                                 McpCallPtr call) {
    if (stream->ended && !stream->streaming && !stream->answers.empty()) {
        auto reply = answer_of(*stream);
        co_return co_await send(connection, std::move(reply));
    }
    bool whole = false;
    const auto reader = ++stream->reader;
    stream->attached = true;
    stream->changed.notify();
    auto sending = McpHttpService::stream(self, connection, stream, whole);
    auto leaving = hang_up(connection);
    const bool ended = co_await ends_first(std::move(sending), std::move(leaving));
    if (stream->reader == reader) stream->attached = false;
    if (!ended || !whole) {
        // Modern clients cancel by going away; legacy ones may come back.
        if (call && call->modern && call->outlet == stream) self->engine->cancel(call);
        co_return false;
    }
    co_return connection->keep_alive;
}

IPYBOX_DECL awaitable<void> McpHttpService::stream(std::shared_ptr<McpHttpService> self,
                                                   net::HttpPeerPtr connection,
                                                   std::shared_ptr<HttpServerStream> stream,
                                                   bool& whole) {
    const auto reader = stream->reader;
    auto quiet_until = deadline_after(self->options.keep_alive);
    while (!stream->streaming) {
        if (stream->ended && !stream->answers.empty()) {
            auto reply = net::render(*connection, answer_of(*stream));
            whole = co_await connection->write(std::move(reply));
            co_return;
        }
        // Cancelled: there is nothing to come back for either.
        if (stream->ended) stream->streaming = true;
        // Proxies and clients give up on what stays silent.
        if (Clock::now() >= quiet_until) stream->begin();
        if (!stream->streaming) co_await stream->changed.wait(quiet_until);
    }
    if (!connection->chunked) connection->keep_alive = false;
    std::string text =
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache, "
        "no-transform\r\nX-Accel-Buffering: no\r\n";
    text += connection->chunked ? "Transfer-Encoding: chunked\r\n" : "Connection: close\r\n";
    if (connection->chunked && !connection->keep_alive) text += "Connection: close\r\n";
    text += connection->headers + "\r\n";
    const auto put = [&connection, &text](const std::string& events) {
        if (events.empty()) return;
        if (!connection->chunked) {
            text += events;
            return;
        }
        char size[32];
        const auto end = std::to_chars(size, size + sizeof size, events.size(), 16).ptr;
        text.append(size, end);
        text += "\r\n" + events + "\r\n";
    };
    for (;;) {
        if (stream->reader != reader || self->closed) co_return;
        put(stream->take(64 * 1024));
        const bool over = !stream->pending() && (stream->ended || stream->closing);
        if (over && connection->chunked) text += "0\r\n\r\n";
        if (!text.empty()) {
            std::string piece = std::move(text);
            text.clear();
            const bool written = co_await connection->write(std::move(piece));
            if (!written) co_return;
            quiet_until = deadline_after(self->options.keep_alive);
        }
        if (over) {
            stream->closing = false;
            whole = true;
            co_return;
        }
        if (stream->pending()) continue;
        if (stream->ended || stream->closing) continue;
        if (Clock::now() >= quiet_until) {
            put(": still here\n\n");
            continue;
        }
        co_await stream->changed.wait(quiet_until);
    }
}

// Completes when the client hangs up, and not before it does.
IPYBOX_DECL awaitable<void> mcp::McpHttpService::hang_up(net::HttpPeerPtr connection) {
    for (;;) {
        auto [error] =
            co_await connection->socket.async_wait(net::HttpSocket::wait_read, as_result);
        if (error) co_return;
        char byte;
        const auto got =
            ::recv(connection->socket.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR))
            co_return;
        if (got > 0) {
            // The next request already: it waits for its turn, and a hang-up shows on writing.
            co_await sleep_until(Clock::now() + std::chrono::seconds(1));
        }
    }
}

// ---- time and listening ----
IPYBOX_DECL awaitable<void> McpHttpService::watch_time(std::shared_ptr<McpHttpService> self) {
    while (!self->closed) {
        const auto next = Clock::now() + std::chrono::seconds(1);
        co_await self->tick.wait(next);
        self->sweep();
    }
}

IPYBOX_DECL void McpHttpService::sweep() {
    const auto now = Clock::now();
    std::vector<McpSessionPtr> idle;
    for (const auto& [id, session] : engine->sessions) {
        if (!session->transport && !session->modern) continue;  // standard input
        if (const auto home = std::static_pointer_cast<HttpServerSession>(session->transport))
            std::erase_if(home->streams, [&](const auto& one) {
                return one.second->ended && !one.second->attached &&
                       one.second->ended_at + options.replay_time <= now;
            });
        if (session->busy == 0 && options.session_idle > Duration::zero() &&
            session->last_used + options.session_idle <= now)
            idle.push_back(session);
    }
    for (const auto& session : idle) engine->end(session);
}

}  // namespace ipybox::mcp

namespace ipybox {

IPYBOX_DECL McpHttpServer::McpHttpServer(McpServer& server, McpHttpOptions options)
    : state_(std::make_shared<mcp::McpHttpService>(server.engine_, std::move(options))) {}

IPYBOX_DECL McpHttpServer::~McpHttpServer() { state_->stop(); }

IPYBOX_DECL void McpHttpServer::stop() { state_->stop(); }

IPYBOX_DECL std::size_t McpHttpServer::connections() const noexcept {
    return state_->listener->connections();
}

IPYBOX_DECL unsigned short McpHttpServer::listen(const std::string& host, unsigned short port) {
    boost::system::error_code error;
    const auto address = asio::ip::make_address(host == "localhost" ? "127.0.0.1" : host, error);
    if (error) throw Error(errc::bad_argument, "\"" + host + "\" is no address to listen at");
    if (!address.is_loopback() && state_->options.allowed_hosts.empty())
        throw Error(errc::bad_argument,
                    "listening at " + host +
                        " needs allowed_hosts: the names by which clients address this server");
    asio::ip::tcp::acceptor acceptor(state_->engine->executor);
    error = net::listen_at(acceptor, asio::ip::tcp::endpoint(address, port));
    if (error)
        throw Error(errc::io_error, "cannot listen at " + host + ":" + std::to_string(port) + ": " +
                                        error.message());
    const auto bound = acceptor.local_endpoint().port();
    state_->start(std::move(acceptor));
    return bound;
}

IPYBOX_DECL void McpHttpServer::listen(const std::filesystem::path& path) {
    asio::local::stream_protocol::acceptor acceptor(state_->engine->executor);
    net::listen_privately(acceptor, path, ::geteuid(), "the MCP server");
    state_->start(std::move(acceptor));
}

}  // namespace ipybox
