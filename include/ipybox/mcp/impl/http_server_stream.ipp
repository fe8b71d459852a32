#pragma once
#include <ipybox/mcp/http_server.hpp>

#include <ipybox/compilation.hpp>
#include <ipybox/detail/hex.hpp>

namespace ipybox::mcp {

IPYBOX_DECL bool HttpServerStream::notify(json::object message) {
    if (ended || (standalone && !listened)) return false;
    std::string data = detail::write_json(message);
    if (backlog_.crowded(data.size())) return false;
    begin();
    add(data);
    return true;
}

IPYBOX_DECL void HttpServerStream::ask(json::object message) {
    if (ended) return;
    begin();
    add(detail::write_json(message));
}

IPYBOX_DECL void HttpServerStream::respond(json::object message, unsigned status) {
    if (ended) return;
    if (streaming) {
        add_answer(message);
    } else {
        answers.push_back(std::move(message));
        answer_status = status;
    }
    if (!standalone && --expected == 0) end();
    changed.notify();
}

IPYBOX_DECL void HttpServerStream::abandon() {
    if (expected > 1 && !standalone) {
        --expected;
    } else {
        end();
    }
    changed.notify();
}

IPYBOX_DECL void HttpServerStream::close_stream() {
    if (!style_.resumable || ended) return;
    begin();
    closing = true;
    changed.notify();
}

IPYBOX_DECL void HttpServerStream::begin() {
    if (streaming) return;
    streaming = true;
    if (style_.resumable) {
        if (const auto home = home_.lock()) {
            if (!standalone) number_ = ++home->last_stream;
            home->streams[number_] = shared_from_this();
        }
        if (style_.primed) backlog_.add(sse_event({}, {}, next_id(), style_.retry));
    }
    for (const auto& answer : answers) add_answer(answer);
    answers.clear();
}

IPYBOX_DECL std::size_t HttpServerStream::max_answer() const noexcept {
    constexpr std::size_t envelope = 2048;
    return streaming ? style_.max_event - std::min(style_.max_event, envelope) : SIZE_MAX;
}

IPYBOX_DECL void HttpServerStream::name_endpoint(std::string_view address) {
    begin();
    backlog_.add(sse_event(address, "endpoint", {}));
}

IPYBOX_DECL std::string HttpServerStream::take(std::size_t size) {
    std::string text;
    while (backlog_.pending() && text.size() < size) text += backlog_.take();
    return text;
}

IPYBOX_DECL void HttpServerStream::end() {
    ended = true;
    ended_at = Clock::now();
}

IPYBOX_DECL void HttpServerStream::add(const std::string& data) {
    auto text = sse_event(data, "message", style_.resumable ? next_id() : std::string());
    backlog_.add(std::move(text));
    if (const auto home = style_.resumable ? home_.lock() : nullptr) home->trim();
    changed.notify();
}

IPYBOX_DECL void HttpServerStream::add_answer(const json::object& message) {
    auto data = detail::write_json(message);
    if (data.size() > style_.max_event) {
        const auto* id = message.if_contains("id");
        data = detail::write_json(rpc_error(
            id != nullptr ? *id : json::value(), rpc_internal_error,
            "the answer takes " + std::to_string(data.size()) + " bytes, more than the " +
                std::to_string(style_.max_event) + " that one event may have; ask for less"));
    }
    add(data);
}

IPYBOX_DECL void HttpServerSession::trim() {
    constexpr std::size_t max_streams = 1000;
    std::size_t total = 0;
    for (const auto& [number, stream] : streams) total += stream->size();
    for (auto at = streams.begin(); at != streams.end();) {
        const auto& stream = *at->second;
        if (total <= max_replay && streams.size() <= max_streams) break;
        if (stream.ended && !stream.pending()) {
            total -= stream.size();
            at = streams.erase(at);
        } else {
            ++at;
        }
    }
    // Still too much: what clients never fetched goes too, oldest first.
    for (auto at = streams.begin(); at != streams.end() && total > 2 * max_replay;) {
        const auto& stream = *at->second;
        if (stream.ended && !stream.attached) {
            total -= stream.size();
            at = streams.erase(at);
        } else {
            ++at;
        }
    }
}

}  // namespace ipybox::mcp
