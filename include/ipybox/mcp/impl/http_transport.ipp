#pragma once
#include <ipybox/mcp/http_transport.hpp>

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <boost/json/parse.hpp>
#include <exception>
#include <ipybox/compilation.hpp>
#include <iterator>

namespace ipybox {

IPYBOX_DECL std::string mcp_header_value(std::string_view value) {
    bool safe = !value.starts_with(' ') && !value.ends_with(' ') &&
                !(value.starts_with("=?base64?") && value.ends_with("?="));
    for (const char c : value) safe = safe && c >= 0x20 && c < 0x7F;
    return safe ? std::string(value) : "=?base64?" + detail::encode_base64(value) + "?=";
}

IPYBOX_DECL std::string HttpTransport::Impl::excerpt(std::string text) const {
    if (oauth) text = oauth->hide(std::move(text));
    Secrets sent;
    for (const auto& [header, secret] : headers) sent.add(secret);
    return mcp::excerpt(sent.hide(std::move(text)), max_excerpt);
}

IPYBOX_DECL void HttpTransport::Impl::stop_all() {
    for (const auto& call : std::list<CallPtr>(calls))
        call->stop.emit(asio::cancellation_type::terminal);
    for (auto task = tasks.begin(); task != tasks.end();)
        (task++)->emit(asio::cancellation_type::terminal);
}

IPYBOX_DECL HttpTransport::Unblock::~Unblock() {
    --state.blockers;
    state.unblocked.notify();
}

IPYBOX_DECL HttpTransport::Renewing::~Renewing() {
    state.session.end_renewal();
    state.renewed.notify();
}

IPYBOX_DECL std::string HttpTransport::wants_credentials(const Impl& state) {
    return "; it wants credentials: log in by " + oauth::login_command(state.name) +
           ", or give them by \"headers\"";
}

IPYBOX_DECL void HttpTransport::finish(Call& call) {
    call.finished = true;
    call.done.notify();
}

IPYBOX_DECL std::string_view HttpTransport::content_type(const HttpResponse& response) {
    const auto value = find_header(response.headers(), "Content-Type");
    return net::trim_blanks(value.substr(0, value.find(';')));
}

IPYBOX_DECL HttpTransport::HttpTransport(Host& host, const json::object& config, Wire wire)
    : state_(std::make_shared<Impl>(host.executor)) {
    Impl& state = *state_;
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

IPYBOX_DECL HttpTransport::~HttpTransport() {
    state_->closed = true;
    state_->http.reset();
    // On the executor, not here: Asio (1.81) lets a signal that is emitted elsewhere outlive what
    // it is meant for.
    asio::post(state_->executor, [state = state_] { state->stop_all(); });
}

IPYBOX_DECL void HttpTransport::cancel(const json::value& request_id) {
    for (const auto& call : state_->calls) {
        if (call->own || call->finished || call->id != request_id) continue;
        asio::post(state_->executor,
                   [call] { call->stop.emit(asio::cancellation_type::terminal); });
        return;
    }
}

// Runs a coroutine on its own until it ends or the transport does.
IPYBOX_DECL void HttpTransport::spawn(const ImplPtr& state, awaitable<void> work) {
    const auto task = state->tasks.emplace(state->tasks.end());
    asio::co_spawn(state->executor, std::move(work),
                   asio::bind_cancellation_slot(task->slot(), [state, task](std::exception_ptr) {
                       state->tasks.erase(task);
                   }));
}

IPYBOX_DECL awaitable<void> HttpTransport::open(ImplPtr state) {
    if (state->closed) throw_closed();
    state->stop_all();
    state->http = std::make_shared<HttpClient>(state->executor, HttpClientOptions());
    state->wire = state->configured;
    state->post_url = state->url.text();
    state->end.reset();
    state->incoming.clear();
    state->incoming_size = 0;
    state->session.reset();
    if (state->wire != Wire::sse) co_return;
    try {
        co_await find_endpoint(state, Clock::now() + patience);
    } catch (const Error& error) {
        throw http_failure_as(errc::mcp_connection, error);
    }
}

IPYBOX_DECL awaitable<json::object> HttpTransport::receive(ImplPtr state) {
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

IPYBOX_DECL awaitable<void> HttpTransport::close(ImplPtr state) {
    if (state->closed) co_return;
    state->closed = true;
    state->arrived.notify();
    state->stop_all();
    const auto http = state->http;
    if (http && state->wire == Wire::streamable && !state->session.id().empty()) {
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
IPYBOX_DECL HttpTransport::CallPtr HttpTransport::outline(const ImplPtr& state,
                                                          const json::object& message) {
    auto call = std::make_shared<Call>(state->executor);
    call->method = detail::string_of(message, "method");
    const json::value* id = message.if_contains("id");
    if (!call->method.empty() && id != nullptr) call->id = *id;
    const auto* given = detail::object_of(message, "params");
    const json::object none;
    const auto& params = given != nullptr ? *given : none;
    call->first_page = !params.contains("cursor");
    if (const auto* meta = detail::object_of(params, "_meta"))
        call->version = detail::string_of(*meta, detail::meta_version);
    call->version = state->session.modern_version_of(call->method, call->version);
    if (call->version.empty() || call->method.empty()) return call;
    call->headers.emplace_back("Mcp-Method", mcp_header_value(call->method));
    if (call->method == "tools/call" || call->method == "prompts/get")
        call->headers.emplace_back("Mcp-Name", mcp_header_value(detail::string_of(params, "name")));
    if (call->method == "resources/read")
        call->headers.emplace_back("Mcp-Name", mcp_header_value(detail::string_of(params, "uri")));
    if (call->method.starts_with("tasks/"))
        call->headers.emplace_back("Mcp-Name",
                                   mcp_header_value(detail::string_of(params, "taskId")));
    if (call->method == "tools/call") mirror(state, *call, params);
    return call;
}

// Arguments that the tool's schema wants to see in headers.
IPYBOX_DECL void HttpTransport::mirror(const ImplPtr& state, Call& call,
                                       const json::object& params) {
    const auto tool = state->header_parameters.find(detail::string_of(params, "name"));
    const auto* arguments = detail::object_of(params, "arguments");
    if (tool == state->header_parameters.end() || arguments == nullptr) return;
    for (const auto& parameter : tool->second) {
        const json::value* value = detail::argument_of(parameter, *arguments);
        if (value == nullptr || value->is_structured()) continue;
        const std::string text =
            detail::is_text(*value) ? std::string(value->get_string()) : detail::write_json(*value);
        call.headers.emplace_back("Mcp-Param-" + parameter.name, mcp_header_value(text));
    }
}

IPYBOX_DECL awaitable<void> HttpTransport::send(ImplPtr state, json::object message) {
    if (state->closed) throw_closed();
    if (state->end) throw *state->end;
    if (!state->http) throw Error(errc::bad_argument, "the transport is not open");
    const CallPtr call = outline(state, message);
    launch(state, call, std::move(message));
    while (!call->finished) co_await call->done.wait();
    if (call->failure) throw *call->failure;
}

IPYBOX_DECL bool HttpTransport::send_now(std::int64_t id, std::string_view method,
                                         json::object& params,
                                         const std::shared_ptr<Sender>& sender) {
    if (state_->closed || state_->end || !state_->http) return false;
    auto message = mcp::rpc_request(id, method, std::move(params));
    const CallPtr call = outline(state_, message);
    call->sender = sender;
    launch(state_, call, std::move(message));
    return true;
}

// Sets a call going on its own: cancelling who waits for it must not break a request off.
IPYBOX_DECL void HttpTransport::launch(const ImplPtr& state, const CallPtr& call,
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
                    call->failure = http_failure_as(errc::mcp_connection, error);
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

IPYBOX_DECL awaitable<void> HttpTransport::perform(ImplPtr state, CallPtr call,
                                                   json::object message) {
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
    if (call->method == "notifications/initialized") {
        // Servers refuse what overtakes it.
        ++state->blockers;
        unblock.emplace(*state);
    }
    state->session.sending(call->method, !call->version.empty(), message);
    std::string body = detail::write_json(message);
    const auto generation = state->session.generation();
    auto outcome = co_await exchange(state, call, std::move(body));
    if (outcome == Outcome::session_lost) {
        const auto loss = state->session.lost(generation);
        co_await renew(state, loss);
        body = detail::write_json(message);
        outcome = co_await exchange(state, call, std::move(body));
        if (outcome == Outcome::session_lost)
            throw Error(errc::mcp_connection,
                        state->url.printable() + " forgets its sessions as soon as they are open");
    }
    if (call->method == "notifications/initialized" && state->wire == Wire::streamable)
        spawn(state, listen(state, state->session.generation()));
    finish(*call);
}

// One POST, and what comes back.
IPYBOX_DECL awaitable<HttpTransport::Outcome> HttpTransport::exchange(ImplPtr state, CallPtr call,
                                                                      std::string body) {
    const auto& method = call->method;
    const auto post = std::make_shared<HttpRequest>();
    post->method = "POST";
    post->url = state->post_url;
    post->headers = call->headers;
    post->headers.emplace_back("Content-Type", "application/json");
    post->headers.emplace_back("Accept", "application/json, text/event-stream");
    if (!call->version.empty()) post->headers.emplace_back("MCP-Protocol-Version", call->version);
    post->repeatable = detail::HttpClientSession::repeatable(method);
    // How long an answer may take is the client's decision: it calls cancel().
    if (call->id.is_null() || call->own) post->deadline = Clock::now() + patience;
    post->body = std::move(body);
    const std::string used = state->session.id();
    const bool probe = method == "server/discover";
    ResponsePtr response = co_await request(state, post, probe);
    const unsigned status = response->status();
    if (status / 100 != 2) {
        const auto outcome = co_await refused(state, call, response, used, std::move(post->body));
        co_return outcome;
    }
    if (method == "initialize" && state->wire == Wire::streamable &&
        !state->session.opened(find_header(response->headers(), "Mcp-Session-Id")))
        throw Error(errc::mcp_protocol, state->url.printable() + " gave a session id that is none");
    co_await accept(state, call, std::move(response));
    co_return Outcome::done;
}

// The answer to a message that the server took.
IPYBOX_DECL awaitable<void> HttpTransport::accept(ImplPtr state, CallPtr call,
                                                  ResponsePtr response) {
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
        const auto type = net::lower_case(content_type(*response));
        why = state->url.printable() + " answered " + call->method + " with HTTP status " +
              std::to_string(response->status()) +
              (type.empty() ? " and no content" : " and content of type " + state->excerpt(type)) +
              ", which is no MCP; is the path of its URL right?";
    } else {
        auto limit = mcp::default_max_message;
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
IPYBOX_DECL awaitable<void> HttpTransport::refuse_discovery(ImplPtr state, CallPtr call,
                                                            std::string why) {
    constexpr std::int64_t server_error = -32000;
    auto answer = mcp::rpc_error(call->id, server_error, why);
    co_await pass(state, call, std::move(answer), why.size());
}

IPYBOX_DECL awaitable<HttpTransport::Outcome> HttpTransport::refused(ImplPtr state, CallPtr call,
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
    if (detail::HttpClientSession::is_forgotten(used, call->method, !call->version.empty(), status,
                                                text))
        co_return Outcome::session_lost;
    boost::system::error_code not_json;
    json::value parsed =
        detail::parse_within(text, mcp::max_message_depth, detail::default_max_decoded, not_json);
    const auto* error =
        !not_json && parsed.is_object() ? detail::object_of(parsed.get_object(), "error") : nullptr;
    const bool rpc = error != nullptr && parsed.get_object().contains("jsonrpc");
    std::string why =
        state->url.printable() + " answered with HTTP status " + std::to_string(status);
    if (rpc && error->contains("message")) text = detail::string_of(*error, "message");
    // Pages for people say nothing here.
    if (!is_type(*response, "text/html") && !text.empty())
        why += ": " + state->excerpt(std::move(text));
    if (status == 401) {
        why += wants_credentials(*state);
    } else if (status == 403) {
        why += "; the credentials, if any, are not enough";
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

// ---- requests ----

// Sends one request with what belongs to every one, authorization included. A server of before
// 2026-07-28 may answer 401 to a `probe` although it wants no credentials.
IPYBOX_DECL awaitable<HttpTransport::ResponsePtr> HttpTransport::request(
    ImplPtr state, std::shared_ptr<HttpRequest> request, bool probe) {
    constexpr int max_challenges = 4;
    const auto http = state->http;
    const auto oauth = state->oauth;
    if (!http) throw_closed();
    if (request->url.empty()) request->url = state->url.text();
    HttpHeaders headers;
    headers.reserve(state->headers.size() + request->headers.size() + 2);
    headers.assign(state->headers.begin(), state->headers.end());
    const auto& session = state->session;
    if (!session.protocol_version().empty())
        headers.emplace_back("MCP-Protocol-Version", session.protocol_version());
    if (!session.id().empty()) headers.emplace_back("Mcp-Session-Id", session.id());
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
