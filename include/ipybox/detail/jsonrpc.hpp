#pragma once
// JSON-RPC 2.0 as MCP uses it, without I/O: messages are built, told apart, and cut out of a
// stream of bytes. What arrives is hostile: nothing here throws on it.
#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <boost/system/result.hpp>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <ipybox/detail/json_memory.hpp>
#include <ipybox/detail/terminal_text.hpp>
#include <ipybox/error.hpp>
#include <ipybox/memory_budget.hpp>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace ipybox::detail {

namespace json = boost::json;

// JSON-RPC 2.0 section 5.1, and MCP 2026-07-28 "Error codes".
enum RpcCode : std::int64_t {
    rpc_parse_error = -32700,
    rpc_invalid_request = -32600,
    rpc_method_not_found = -32601,
    rpc_invalid_params = -32602,
    rpc_internal_error = -32603,
    rpc_resource_not_found = -32002,  // up to 2025-11-25
    rpc_header_mismatch = -32020,
    rpc_missing_capability = -32021,
    rpc_unsupported_version = -32022,
    rpc_url_elicitation_required = -32042,
    rpc_rejected_by_user = -1,
};

inline constexpr std::size_t max_message_depth = 128;
inline constexpr std::size_t default_max_message = std::size_t{32} << 20;

inline json::object rpc_request(json::value id, std::string_view method, json::object params) {
    json::object message;
    message.reserve(4);
    message.emplace("jsonrpc", "2.0");
    message.emplace("id", std::move(id));
    message.emplace("method", method);
    message.emplace("params", std::move(params));
    return message;
}

// Empty params are left out.
inline json::object rpc_notification(std::string_view method, json::object params) {
    json::object message;
    message.emplace("jsonrpc", "2.0");
    message.emplace("method", method);
    if (!params.empty()) message.emplace("params", std::move(params));
    return message;
}

inline json::object rpc_result(json::value id, json::object result) {
    json::object message;
    message.emplace("jsonrpc", "2.0");
    message.emplace("id", std::move(id));
    message.emplace("result", std::move(result));
    return message;
}

inline json::object rpc_error(json::value id, std::int64_t code, std::string_view text) {
    json::object error;
    error.emplace("code", code);
    error.emplace("message", text);
    json::object message;
    message.emplace("jsonrpc", "2.0");
    message.emplace("id", std::move(id));
    message.emplace("error", std::move(error));
    return message;
}

// What a received message is. Points into the message it was made from.
struct RpcMessage {
    enum class Kind { result, error, request, notification, malformed };

    Kind kind = Kind::malformed;
    json::value* id = nullptr;  // integer or string; null for notifications and errors without one
    std::string_view method;    // requests and notifications
    json::value* body = nullptr;  // result, error or params; null when params are absent
    const char* problem = "";     // why it is malformed
};

// Tells what a message is. A malformed one keeps its id when that is usable, so that whoever
// waits for it can be told.
inline RpcMessage classify(json::object& message) noexcept {
    using Kind = RpcMessage::Kind;
    constexpr std::size_t max_name = 1024;
    RpcMessage found;
    const auto malformed = [&found](const char* why) {
        found.kind = Kind::malformed;
        found.problem = why;
        return found;
    };
    json::value *id = nullptr, *dialect = nullptr, *method = nullptr, *result = nullptr,
                *error = nullptr, *params = nullptr;
    for (auto& member : message) {
        const std::string_view key = member.key();
        json::value& value = member.value();
        if (key == "id") id = &value;
        if (key == "jsonrpc") dialect = &value;
        if (key == "method") method = &value;
        if (key == "result") result = &value;
        if (key == "error") error = &value;
        if (key == "params") params = &value;
    }
    if (id != nullptr && !id->is_null()) {
        const bool usable = id->is_int64() || id->is_uint64() ||
                            (id->is_string() && id->get_string().size() <= max_name);
        if (!usable) return malformed("its id is neither an integer nor a short string");
        found.id = id;
    }
    if (dialect == nullptr || !dialect->is_string() || dialect->get_string() != "2.0")
        return malformed("it does not say \"jsonrpc\": \"2.0\"");
    if ((method != nullptr) + (result != nullptr) + (error != nullptr) != 1)
        return malformed("it has not exactly one of method, result and error");
    if (method != nullptr) {
        if (!method->is_string() || method->get_string().size() > max_name)
            return malformed("its method is not a short string");
        if (id != nullptr && found.id == nullptr) return malformed("the id of a request is null");
        found.body = params;
        if (found.body != nullptr && !found.body->is_structured())
            return malformed("its params are neither an object nor an array");
        found.method = method->get_string();
        found.kind = found.id != nullptr ? Kind::request : Kind::notification;
        return found;
    }
    found.body = result != nullptr ? result : error;
    if (result != nullptr && found.id == nullptr) return malformed("a result has no id");
    if (error != nullptr && !error->is_object()) return malformed("its error is not an object");
    found.kind = result != nullptr ? Kind::result : Kind::error;
    return found;
}

// An integer wherever a peer may have written one, else nothing.
inline std::optional<std::int64_t> integer_of(const json::value* value) noexcept {
    if (value == nullptr) return std::nullopt;
    if (const auto* small = value->if_int64()) return *small;
    if (const auto* large = value->if_uint64())
        if (*large <= static_cast<std::uint64_t>(INT64_MAX))
            return static_cast<std::int64_t>(*large);
    return std::nullopt;
}

inline std::string_view string_of(const json::object& object, std::string_view key) noexcept {
    const json::value* value = object.if_contains(key);
    if (value == nullptr || !value->is_string()) return {};
    return value->get_string();
}

// A peer's text for a message or a log: at most `limit` bytes of it, as valid UTF-8, and without
// what could deceive a reader (control characters, reordering) but for line ends and tabs.
inline std::string excerpt(std::string_view text, std::size_t limit) {
    std::string clean;
    while (!text.empty()) {
        const CodePoint point = decode_utf8(text);
        if (clean.size() + point.size > limit) {
            clean += "…";
            break;
        }
        if (!point.valid) {
            clean += "\uFFFD";
        } else if (!is_deceptive(point.value) || point.value == '\n' || point.value == '\t') {
            clean.append(text.substr(0, point.size));
        }
        text.remove_prefix(point.size);
    }
    return clean;
}

// Roughly the bytes a value takes as text; for caps on what accumulates over several messages.
inline std::size_t text_size(const json::value& value) noexcept {
    std::size_t size = 2;
    if (const auto* text = value.if_string()) {
        size += text->size();
    } else if (const auto* array = value.if_array()) {
        for (const auto& element : *array) size += text_size(element) + 1;
    } else if (const auto* object = value.if_object()) {
        for (const auto& member : *object)
            size += member.key().size() + text_size(member.value()) + 4;
    } else {
        size += 6;
    }
    return size;
}

// Cuts messages out of a stream in which each is one line (MCP stdio). Lines that are no JSON
// object are skipped and reported; an array is a batch (MCP 2025-03-26) and yields its objects,
// unless somebody wants it whole.
// One buffer, read into in place: a message is copied only while it straddles two reads.
class MessageSplitter {
public:
    // limit: bytes in one line. on_noise: called with every line that is skipped; may be empty.
    // on_batch: gets batches instead of next(), in their turn; may be empty.
    explicit MessageSplitter(std::size_t limit = default_max_message,
                             std::function<void(std::string_view)> on_noise = {},
                             std::function<void(json::array)> on_batch = {})
        : limit_(limit), on_noise_(std::move(on_noise)), on_batch_(std::move(on_batch)) {}

    struct Room {
        char* data;
        std::size_t size;  // 64 KiB or more
    };
    // Where the next bytes belong; valid until next() or prepare(). Take all messages first.
    Room prepare() {
        if (begin_ == end_) {
            begin_ = end_ = scanned_ = 0;
            if (capacity_ > keep) resize(2 * chunk);
        }
        if (capacity_ - end_ < chunk && begin_ > 0) {
            std::memmove(buffer_.get(), buffer_.get() + begin_, end_ - begin_);
            scanned_ -= begin_;
            end_ -= begin_;
            begin_ = 0;
        }
        if (capacity_ - end_ < chunk) resize(std::max(2 * capacity_, 2 * chunk));
        return {buffer_.get() + end_, capacity_ - end_};
    }
    // `size` bytes were put there.
    void commit(std::size_t size) noexcept { end_ += size; }

    // The next message; nullopt when more bytes are needed. errc::mcp_protocol when a line exceeds
    // the limit, or not_enough_memory (boost::system::errc) when it would take more than
    // default_max_decoded (or three times the limit) once decoded, or more than the memory budget has left: the stream is of
    // no more use then.
    boost::system::result<std::optional<json::object>> next() {
        for (;;) {
            if (!batch_.empty()) {
                std::optional<json::object> message(std::move(batch_.front()));
                batch_.pop_front();
                return message;
            }
            char* const start = buffer_.get() + begin_;
            const auto* stop = end_ == scanned_
                                   ? nullptr
                                   : static_cast<const char*>(std::memchr(buffer_.get() + scanned_,
                                                                          '\n', end_ - scanned_));
            const auto size =
                stop == nullptr ? end_ - begin_ : static_cast<std::size_t>(stop - start);
            if (size > limit_) return make_error_code(errc::mcp_protocol);
            if (stop == nullptr) {
                scanned_ = end_;
                const auto held = size > keep ? size + chunk : 0;
                if (!memory_.resize(held)) return too_costly();
                return std::optional<json::object>();
            }
            begin_ = scanned_ = begin_ + size + 1;
            memory_.release();
            boost::system::error_code error;
            auto message = parse(std::string_view(start, size), error);
            if (error) return error;
            if (message) return message;
        }
    }

private:
    static constexpr std::size_t chunk = std::size_t{64} << 10;
    static constexpr std::size_t keep = std::size_t{1} << 20;

    static boost::system::error_code too_costly() noexcept {
        return boost::system::errc::make_error_code(boost::system::errc::not_enough_memory);
    }

    // Large buffers grow in place, without a moment in which both the old and the new one are there.
    void resize(std::size_t capacity) {
        auto* larger = static_cast<char*>(std::realloc(buffer_.get(), capacity));
        if (larger == nullptr) throw std::bad_alloc();
        static_cast<void>(buffer_.release());
        buffer_.reset(larger);
        capacity_ = capacity;
    }

    // Nothing for a line that is none; an error for one that costs too much.
    std::optional<json::object> parse(std::string_view line, boost::system::error_code& failed) {
        const auto first = line.find_first_not_of(" \t\r");
        if (first == line.npos) return std::nullopt;
        if (line[first] == '{' || line[first] == '[') {
            boost::system::error_code error;
            const auto most = std::max(default_max_decoded, 3 * limit_);
            json::value value = parse_within(line, max_message_depth, most, error);
            if (error == too_costly()) {
                failed = error;
                return std::nullopt;
            }
            if (!error && value.is_object()) return std::move(value.get_object());
            if (!error && value.is_array()) {
                if (on_batch_) {
                    on_batch_(std::move(value.get_array()));
                    return std::nullopt;
                }
                for (auto& element : value.get_array()) {
                    if (element.is_object()) batch_.push_back(std::move(element.get_object()));
                }
                return std::nullopt;
            }
        }
        if (on_noise_) on_noise_(line);
        return std::nullopt;
    }

    std::size_t limit_;
    std::function<void(std::string_view)> on_noise_;
    std::function<void(json::array)> on_batch_;
    struct Free {
        void operator()(char* memory) const noexcept { std::free(memory); }
    };
    std::unique_ptr<char[], Free> buffer_;
    MemoryReservation memory_;  // for a long line
    std::size_t capacity_ = 0;
    std::size_t begin_ = 0;    // of the first line not yet taken
    std::size_t scanned_ = 0;  // no line end before this
    std::size_t end_ = 0;
    std::deque<json::object> batch_;
};

}  // namespace ipybox::detail
