#pragma once
// Jupyter messages in WebSocket frames, without sockets: the subprotocol
// v1.kernel.websocket.jupyter.org, and the JSON form of servers that do not know it.
// https://jupyter-server.readthedocs.io/en/latest/developers/websocket-protocols.html
#include <cstdint>
#include <ipybox/jupyter/wire.hpp>
#include <optional>

namespace ipybox::jupyter {

inline constexpr std::string_view websocket_protocol = "v1.kernel.websocket.jupyter.org";

// What goes to the server; it signs.
struct OutgoingMessage {
    std::string_view channel;
    std::string header, content;  // JSON
    std::vector<std::string> buffers;
};

struct WebsocketFrame {
    std::string bytes;
    bool binary = true;
};

namespace websocket_frames {
template <class Number>
void put(std::string& to, std::uint64_t value, bool little) {
    for (std::size_t i = 0; i < sizeof(Number); ++i) {
        const auto shift = 8 * (little ? i : sizeof(Number) - 1 - i);
        to += static_cast<char>((value >> shift) & 0xFF);
    }
}
template <class Number>
std::uint64_t get(std::string_view from, std::size_t at, bool little) {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < sizeof(Number); ++i) {
        const auto byte = static_cast<unsigned char>(from[at + i]);
        value |= std::uint64_t{byte} << (8 * (little ? i : sizeof(Number) - 1 - i));
    }
    return value;
}
}  // namespace websocket_frames

// As the subprotocol wants it: a table of offsets, the channel's name, the parts.
inline WebsocketFrame encode_v1(const OutgoingMessage& message) {
    std::vector<std::string_view> parts = {message.channel, message.header, "{}", "{}",
                                           message.content};
    for (const auto& buffer : message.buffers) parts.emplace_back(buffer);
    WebsocketFrame frame;
    websocket_frames::put<std::uint64_t>(frame.bytes, parts.size() + 1, true);
    std::uint64_t offset = sizeof(std::uint64_t) * (parts.size() + 2);
    websocket_frames::put<std::uint64_t>(frame.bytes, offset, true);
    for (const auto part : parts) {
        offset += part.size();
        websocket_frames::put<std::uint64_t>(frame.bytes, offset, true);
    }
    frame.bytes.reserve(offset);
    for (const auto part : parts) frame.bytes += part;
    return frame;
}

// One JSON text; with buffers, binary: their number and offsets, the text, the buffers.
inline WebsocketFrame encode_json(const OutgoingMessage& message) {
    std::string text = "{\"channel\":\"" + std::string(message.channel) +
                       "\",\"header\":" + message.header +
                       ",\"parent_header\":{},\"metadata\":{},\"content\":" + message.content + "}";
    WebsocketFrame frame;
    frame.binary = !message.buffers.empty();
    if (!frame.binary) {
        frame.bytes = std::move(text);
        return frame;
    }
    const auto count = message.buffers.size() + 1;
    websocket_frames::put<std::uint32_t>(frame.bytes, count, false);
    std::uint64_t offset = sizeof(std::uint32_t) * (count + 1);
    websocket_frames::put<std::uint32_t>(frame.bytes, offset, false);
    offset += text.size();
    for (std::size_t i = 0; i + 1 < count; ++i) {
        websocket_frames::put<std::uint32_t>(frame.bytes, offset, false);
        offset += message.buffers[i].size();
    }
    frame.bytes += text;
    for (const auto& buffer : message.buffers) frame.bytes += buffer;
    return frame;
}

// What came from the server. The views point into the frame it was read from.
struct IncomingMessage {
    std::string channel, type, id, parent_id;
    json::object metadata;
    std::string_view content;  // JSON, unless it was parsed with the rest:
    std::optional<json::object> parsed;
    std::vector<std::string_view> buffers;

    // extra_depth: levels that its sender put around it.
    WireResult<json::object> read_content(const WireLimits& limits, std::size_t extra_depth = 0) {
        if (parsed) return std::move(*parsed);
        return read_object(content, limits.depth + extra_depth, limits.decoded);
    }
};

namespace websocket_frames {
inline bool take_text(const json::object& object, std::string_view key, std::string& out) {
    out = detail::string_of(object, key);
    return !out.empty();
}

inline bool take_headers(const json::object& header, const json::object& parent,
                         IncomingMessage& message) {
    return take_text(header, "msg_type", message.type) && take_text(header, "msg_id", message.id) &&
           (parent.empty() || take_text(parent, "msg_id", message.parent_id));
}
}  // namespace websocket_frames

inline WireResult<IncomingMessage> decode_v1(std::string_view bytes, const WireLimits& limits) {
    constexpr std::size_t word = sizeof(std::uint64_t);
    if (bytes.size() > limits.bytes) return WireFault::too_large;
    if (bytes.size() < word) return WireFault::frame_count;
    const auto count = websocket_frames::get<std::uint64_t>(bytes, 0, true);
    // The channel, four parts, and the end.
    if (count < 6 || count > limits.frames || bytes.size() / word < count + 1)
        return WireFault::frame_count;
    std::vector<std::string_view> parts;
    auto from = websocket_frames::get<std::uint64_t>(bytes, word, true);
    if (from < word * (count + 1)) return WireFault::frame_count;
    for (std::size_t i = 1; i < count; ++i) {
        const auto to = websocket_frames::get<std::uint64_t>(bytes, word * (i + 1), true);
        if (to < from || to > bytes.size()) return WireFault::frame_count;
        parts.push_back(bytes.substr(from, to - from));
        from = to;
    }
    for (const auto part : {parts[0], parts[1], parts[2], parts[3]})
        if (part.size() > limits.header) return WireFault::too_large;
    auto header = read_object(parts[1], limits.depth);
    auto parent = read_object(parts[2], limits.depth);
    auto metadata = read_object(parts[3], limits.depth);
    if (!header || !parent || !metadata) return WireFault::bad_json;
    IncomingMessage message;
    message.channel = parts[0];
    if (!websocket_frames::take_headers(*header, *parent, message)) return WireFault::bad_header;
    message.metadata = std::move(*metadata);
    message.content = parts[4];
    message.buffers.assign(parts.begin() + 5, parts.end());
    return message;
}

inline WireResult<IncomingMessage> decode_json(std::string_view bytes, bool binary,
                                               const WireLimits& limits) {
    constexpr std::size_t word = sizeof(std::uint32_t);
    if (bytes.size() > limits.bytes) return WireFault::too_large;
    IncomingMessage message;
    std::string_view text = bytes;
    if (binary) {
        if (bytes.size() < word) return WireFault::frame_count;
        const auto count = websocket_frames::get<std::uint32_t>(bytes, 0, false);
        if (count < 1 || count > limits.frames || bytes.size() / word < count + 1)
            return WireFault::frame_count;
        auto from = websocket_frames::get<std::uint32_t>(bytes, word, false);
        for (std::size_t i = 0; i < count; ++i) {
            const bool last = i + 1 == count;
            const auto to =
                last ? bytes.size()
                     : websocket_frames::get<std::uint32_t>(bytes, word * (i + 2), false);
            if (from < word * (count + 1) || to < from || to > bytes.size())
                return WireFault::frame_count;
            const auto part = bytes.substr(from, to - from);
            if (i == 0) text = part;
            if (i > 0) message.buffers.push_back(part);
            from = to;
        }
    }
    // One level more than its parts may have.
    auto whole = read_object(text, limits.depth + 1, limits.decoded);
    if (!whole) return WireFault::bad_json;
    json::object parts[4];
    constexpr std::string_view names[] = {"header", "parent_header", "metadata", "content"};
    for (std::size_t i = 0; i < 4; ++i) {
        auto* part = whole->if_contains(names[i]);
        if (part == nullptr || !part->is_object()) return WireFault::bad_header;
        parts[i] = std::move(part->get_object());
    }
    // Servers leave the channel out of what they make up themselves.
    websocket_frames::take_text(*whole, "channel", message.channel);
    if (!websocket_frames::take_headers(parts[0], parts[1], message)) return WireFault::bad_header;
    for (const auto* name : {&message.channel, &message.type, &message.id, &message.parent_id})
        if (name->size() > limits.header) return WireFault::too_large;
    message.metadata = std::move(parts[2]);
    message.parsed = std::move(parts[3]);
    return message;
}

}  // namespace ipybox::jupyter
