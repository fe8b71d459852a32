#pragma once
#include <ipybox/mcp/http_transport.hpp>

#include <ipybox/compilation.hpp>

namespace ipybox {

// ---- streams ----

// The answer as a stream of events, taken up again where it broke off.
IPYBOX_DECL awaitable<void> HttpTransport::follow(ImplPtr state, CallPtr call,
                                                  ResponsePtr response) {
    const auto stream = std::make_shared<Stream>();
    co_await read_stream(state, call, response, stream);
    response.reset();
    using Resumption = detail::StreamResumption;
    while (!call->answered) {
        std::string why =
            state->url.printable() + " ended the stream of " + call->method + " before the answer";
        if (stream->broken) why += ": " + stream->broken->detail();
        const auto decision = stream->resumption.interrupted(!call->version.empty());
        if (decision.next == Resumption::Next::lost) throw Error(errc::mcp_connection, why);
        if (decision.next == Resumption::Next::given_up)
            throw Error(errc::mcp_connection, why + ", and could not be taken up again");
        co_await sleep_until(Clock::now() + decision.delay);
        try {
            response = co_await get(state, stream->resumption.last_id(), Clock::now() + patience);
        } catch (const Error& error) {
            stream->broken = error;
            continue;
        }
        const auto answer = Resumption::answer(response->status(), is_stream(*response));
        if (answer == Resumption::Answer::later) continue;
        if (answer == Resumption::Answer::refused)
            throw Error(errc::mcp_connection, why +
                                                  ", and does not take it up again (HTTP status " +
                                                  std::to_string(response->status()) + ")");
        stream->parser = mcp::SseParser(mcp::default_max_message);
        co_await read_stream(state, call, response, stream);
        response.reset();
    }
}

// Messages that belong to no request (legacy).
IPYBOX_DECL awaitable<void> HttpTransport::listen(ImplPtr state, std::uint64_t generation) {
    const auto stream = std::make_shared<Stream>();
    using Resumption = detail::StreamResumption;
    for (auto next = Resumption::Next::connect; next == Resumption::Next::connect;) {
        const auto started = Clock::now();
        try {
            const auto response = co_await get(state, stream->resumption.last_id(), never);
            const auto answer = Resumption::answer(response->status(), is_stream(*response));
            if (answer == Resumption::Answer::refused) {
                state->logger(LogLevel::debug,
                              state->url.printable() +
                                  " offers no stream of its own messages (HTTP status " +
                                  std::to_string(response->status()) + ")");
                co_return;
            }
            if (answer == Resumption::Answer::stream) {
                stream->parser = mcp::SseParser(mcp::default_max_message);
                co_await read_stream(state, nullptr, response, stream);
            }
        } catch (const Error& error) {
            state->logger(LogLevel::debug, error.detail());
        }
        const auto decision = stream->resumption.ended(Clock::now() - started);
        co_await sleep_until(Clock::now() + decision.delay);
        if (state->closed || state->session.generation() != generation) co_return;
        next = decision.next;
    }
    state->logger(LogLevel::warning, state->url.printable() +
                                         " keeps closing the stream of its own messages: given up");
}

IPYBOX_DECL awaitable<HttpTransport::ResponsePtr> HttpTransport::get(ImplPtr state,
                                                                     std::string last_id,
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
IPYBOX_DECL awaitable<void> HttpTransport::find_endpoint(ImplPtr state,
                                                         Clock::time_point deadline) {
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
IPYBOX_DECL awaitable<void> HttpTransport::pump(ImplPtr state, ResponsePtr response,
                                                StreamPtr stream) {
    const auto generation = state->session.generation();
    std::optional<Error> failure;
    try {
        co_await read_stream(state, nullptr, response, stream);
        failure = stream->broken;
    } catch (const Error& error) {
        failure = error;
    }
    if (state->closed || state->session.generation() != generation) co_return;
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
IPYBOX_DECL awaitable<void> HttpTransport::read_stream(ImplPtr state, CallPtr call,
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
                                std::to_string(mcp::default_max_message >> 20) + " MiB");
            stream->resumption.named(stream->parser.last_id(), stream->parser.retry());
            more = event->has_value();
            if (!more) break;
            stream->resumption.progressed();
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

IPYBOX_DECL void HttpTransport::feed(const Impl& state, Stream& stream, std::string_view piece) {
    stream.parser.feed(piece);
    const auto held = stream.parser.held();
    if (!stream.memory.resize(held > free_of_budget ? held : 0))
        throw Error(errc::mcp_protocol, state.url.printable() + " sent a message that " +
                                            std::string(detail::costs_too_much));
}

// One JSON text: a message or, in 2025-03-26, an array of them.
IPYBOX_DECL awaitable<void> HttpTransport::take(ImplPtr state, CallPtr call, std::string text,
                                                bool must_be_json) {
    auto read = mcp::read_message(text);
    json::value& value = read.value;
    if (read.problem == detail::costs_too_much)
        throw Error(errc::mcp_protocol,
                    state->url.printable() + " sent a message that " + read.problem);
    if (read.repaired && !std::exchange(state->told_of_repairs, true))
        state->logger(LogLevel::warning,
                      state->url.printable() + std::string(detail::repaired_text));
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
        throw Error(errc::mcp_protocol,
                    state->url.printable() + " answered with what is no JSON object" +
                        (read.problem.empty() ? std::string() : ": it " + read.problem));
    } else if (++state->noise <= max_noise) {
        state->logger(LogLevel::debug,
                      state->url.printable() + " sent an event that is no message");
    }
}

// Hands a message to receive(), unless too much is there already.
IPYBOX_DECL bool HttpTransport::pass_now(const ImplPtr& state, const CallPtr& call,
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
IPYBOX_DECL awaitable<void> HttpTransport::pass(ImplPtr state, CallPtr call, json::object message,
                                                std::size_t size) {
    while (!pass_now(state, call, message, size)) co_await state->taken.wait();
}

// What the wire needs to know of an answer.
IPYBOX_DECL void HttpTransport::learn(const ImplPtr& state, const Call& call,
                                      const json::object& message) {
    if (call.method != "initialize" && call.method != "tools/list") return;
    const auto* result = detail::object_of(message, "result");
    if (result == nullptr) return;
    if (call.method == "initialize") {
        state->session.agreed(detail::string_of(*result, "protocolVersion"));
    } else if (call.method == "tools/list" && !call.version.empty()) {
        if (call.first_page) state->header_parameters.clear();
        const json::value* tools = result->if_contains("tools");
        if (tools == nullptr || !tools->is_array()) return;
        for (const auto& tool : tools->get_array()) {
            if (!tool.is_object()) continue;
            const json::value* schema = tool.get_object().if_contains("inputSchema");
            if (schema == nullptr) continue;
            // The client leaves out tools with a fault: nobody should call them.
            auto found = detail::HeaderAnnotations(*schema).take_parameters();
            if (!found.empty())
                state
                    ->header_parameters[std::string(detail::string_of(tool.get_object(), "name"))] =
                    std::move(found);
        }
    }
}

// ---- sessions ----

// Returns when a call may be sent again whose session the server has forgotten; one coroutine
// opens the next session for all.
IPYBOX_DECL awaitable<void> HttpTransport::renew(ImplPtr state,
                                                 detail::HttpClientSession::Loss loss) {
    using Renewal = detail::HttpClientSession::Renewal;
    auto& session = state->session;
    for (auto renewal = session.renewal(loss); renewal != Renewal::renew;
         renewal = session.renewal(loss)) {
        if (renewal == Renewal::send_again) co_return;
        if (renewal == Renewal::failed) throw *session.failure();
        co_await state->renewed.wait();
    }
    const Renewing renewing{*state};
    ++state->blockers;
    const Unblock unblock{*state};
    try {
        co_await begin_session(state);
    } catch (const Error& error) {
        session.fail(
            {errc::mcp_connection,
             state->url.printable() +
                 " has ended the session, and it could not be opened again: " + error.detail()});
    }
    if (session.failure()) throw *session.failure();
    co_await say_again(state, session.lasting());
    spawn(state, listen(state, session.generation()));
    // It may be another version of the server.
    auto changed = mcp::rpc_notification("notifications/tools/list_changed", json::object());
    co_await pass(state, nullptr, std::move(changed), 64);
}

// A message of our own making.
IPYBOX_DECL HttpTransport::CallPtr HttpTransport::own_call(const ImplPtr& state,
                                                           const json::object& message) {
    auto call = std::make_shared<Call>(state->executor);
    call->own = true;
    call->method = detail::string_of(message, "method");
    if (const json::value* id = message.if_contains("id")) call->id = *id;
    return call;
}

IPYBOX_DECL awaitable<void> HttpTransport::begin_session(ImplPtr state) {
    json::object message = state->session.initialize();
    CallPtr call = own_call(state, message);
    std::string body = detail::write_json(message);
    co_await exchange(state, call, std::move(body));
    if (!call->reply || !call->reply->contains("result"))
        throw Error(errc::mcp_connection, "it refuses to begin another");
    message = mcp::rpc_notification("notifications/initialized", json::object());
    call = own_call(state, message);
    body = detail::write_json(message);
    co_await exchange(state, call, std::move(body));
}

IPYBOX_DECL awaitable<void> HttpTransport::say_again(ImplPtr state,
                                                     std::vector<json::object> messages) {
    for (const auto& message : messages) {
        const CallPtr call = own_call(state, message);
        std::string body = detail::write_json(message);
        try {
            co_await exchange(state, call, std::move(body));
        } catch (const Error& error) {
            state->logger(LogLevel::warning, "in a new session: " + error.detail());
        }
    }
}

}  // namespace ipybox
