#pragma once
#include <ipybox/mcp/http_transport.hpp>

#include <algorithm>
#include <ipybox/compilation.hpp>

namespace ipybox {

// ---- streams ----

// The answer as a stream of events, taken up again where it broke off.
IPYBOX_DECL awaitable<void> HttpTransport::follow(StatePtr state, CallPtr call, ResponsePtr response) {
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
IPYBOX_DECL awaitable<void> HttpTransport::listen(StatePtr state, std::uint64_t generation) {
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

IPYBOX_DECL awaitable<HttpTransport::ResponsePtr> HttpTransport::get(StatePtr state, std::string last_id,
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
IPYBOX_DECL awaitable<void> HttpTransport::find_endpoint(StatePtr state, Clock::time_point deadline) {
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
IPYBOX_DECL awaitable<void> HttpTransport::pump(StatePtr state, ResponsePtr response, StreamPtr stream) {
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
IPYBOX_DECL awaitable<void> HttpTransport::read_stream(StatePtr state, CallPtr call,
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

IPYBOX_DECL void HttpTransport::feed(const State& state, Stream& stream, std::string_view piece) {
    stream.parser.feed(piece);
    const auto held = stream.parser.held();
    if (!stream.memory.resize(held > free_of_budget ? held : 0))
        throw Error(errc::mcp_protocol,
                    state.url.printable() + " sent a message that " + std::string(detail::costs_too_much));
}

// One JSON text: a message or, in 2025-03-26, an array of them.
IPYBOX_DECL awaitable<void> HttpTransport::take(StatePtr state, CallPtr call, std::string text,
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
IPYBOX_DECL bool HttpTransport::pass_now(const StatePtr& state, const CallPtr& call,
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
IPYBOX_DECL awaitable<void> HttpTransport::pass(StatePtr state, CallPtr call, json::object message,
                                           std::size_t size) {
    while (!pass_now(state, call, message, size)) co_await state->taken.wait();
}

// What the wire needs to know of an answer.
IPYBOX_DECL void HttpTransport::learn(const StatePtr& state, const Call& call,
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
        if (call.first_page) state->header_parameters.clear();
        const json::value* tools = result->get_object().if_contains("tools");
        if (tools == nullptr || !tools->is_array()) return;
        for (const auto& tool : tools->get_array()) {
            if (!tool.is_object()) continue;
            const json::value* schema = tool.get_object().if_contains("inputSchema");
            if (schema == nullptr) continue;
            // The client leaves out tools with a fault: nobody should call them.
            auto found = detail::HeaderAnnotations(*schema).take_parameters();
            if (!found.empty())
                state->header_parameters[std::string(
                    detail::string_of(tool.get_object(), "name"))] = std::move(found);
        }
    }
}

// ---- sessions ----

// Opens the session again that the server has forgotten; one coroutine does it for all.
IPYBOX_DECL awaitable<void> HttpTransport::reopen(StatePtr state, std::uint64_t generation) {
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

}  // namespace ipybox
