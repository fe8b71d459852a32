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
#include <ipybox/detail/json_members.hpp>
#include <ipybox/detail/json_memory.hpp>
#include <ipybox/detail/json_text.hpp>
#include <ipybox/detail/terminal_text.hpp>
#include <ipybox/detail/utf8.hpp>
#include <ipybox/error.hpp>
#include <ipybox/memory_budget.hpp>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace ipybox::mcp {

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

// A message of a peer, or a batch of them. An answer that cannot be taken becomes an error that
// answers the same request, so that whoever waits for it hears why. memory: bytes it may take, see
// decoded_size().
inline detail::ReadJson read_message(std::string_view text,
                                     std::size_t memory = detail::default_max_decoded) {
    auto read = detail::read_json(text, max_message_depth, memory);
    if (!read.problem.empty() && !read.asks && !read.id.is_null()) {
        read.value = rpc_error(std::exchange(read.id, nullptr), rpc_parse_error,
                               "the answer " + read.problem);
        read.problem.clear();
    }
    return read;
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
                            (detail::is_text(*id) && id->get_string().size() <= max_name);
        if (!usable) return malformed("its id is neither an integer nor a short string");
        found.id = id;
    }
    if (dialect == nullptr || !dialect->is_string() || dialect->get_string() != "2.0")
        return malformed("it does not say \"jsonrpc\": \"2.0\"");
    if ((method != nullptr) + (result != nullptr) + (error != nullptr) != 1)
        return malformed("it has not exactly one of method, result and error");
    if (method != nullptr) {
        if (!detail::is_text(*method) || method->get_string().size() > max_name)
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

// A peer's text for a message or a log: at most `limit` bytes of it, as valid UTF-8, and without
// what could deceive a reader (control characters, reordering) but for line ends and tabs.
inline std::string excerpt(std::string_view text, std::size_t limit) {
    std::string clean;
    while (!text.empty()) {
        const detail::CodePoint point = detail::decode_utf8(text);
        if (clean.size() + point.size > limit) {
            clean += "…";
            break;
        }
        if (!point.valid) {
            clean += detail::replacement_character;
        } else if (!detail::is_deceptive(point.value) || point.value == '\n' ||
                   point.value == '\t') {
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

// A line that is no message.
struct BadLine {
    std::string_view text;  // the line, or the beginning of a long one
    std::string_view
        problem;     // to follow "a message that …"; empty for a line that does not mean to be one
    RpcCode code;    // what a request is answered with
    json::value id;  // of the request to answer; null if it has none, or none that can be told
};

// Cuts messages out of a stream in which each is one line (MCP stdio). Lines that are no JSON
// object are skipped and reported; an array is a batch (MCP 2025-03-26) and yields its objects,
// unless somebody wants it whole. An answer that cannot be taken (too long, say, or with NaN in it)
// becomes an error that answers the same request. Text that is no Unicode is repaired.
// One buffer, read into in place: a message is copied only while it straddles two reads.
class MessageSplitter {
public:
    // limit: bytes in one line. on_bad: called with every line that is skipped; may be empty.
    // on_batch: gets batches instead of next(), in their turn; may be empty.
    explicit MessageSplitter(std::size_t limit = default_max_message,
                             std::function<void(const BadLine&)> on_bad = {},
                             std::function<void(json::array)> on_batch = {})
        : limit_(limit), on_bad_(std::move(on_bad)), on_batch_(std::move(on_batch)) {}

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

    // The next message; nullopt when more bytes are needed. Returns the error mcp_protocol when a
    // line does not end within most_skipped() bytes: then the stream is no longer usable.
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
            const std::string_view line(start, size);
            if (!skipped_ && size > limit_)
                skipped_.emplace("is longer than the limit of " + std::to_string(limit_) +
                                 " bytes (max_message)");
            if (!skipped_ && stop == nullptr && !memory_.resize(size > keep ? size + chunk : 0))
                skipped_.emplace(std::string(detail::costs_too_much));
            if (!skipped_ && stop == nullptr) {
                scanned_ = end_;
                return std::optional<json::object>();
            }
            begin_ = scanned_ = begin_ + size + (stop == nullptr ? 0U : 1U);
            memory_.release();
            if (skipped_) {
                skipped_->add(line);
                if (skipped_->size > most_skipped()) return make_error_code(errc::mcp_protocol);
                if (stop == nullptr) return std::optional<json::object>();
            }
            auto message = skipped_ ? skipped() : parse(line);
            if (message) return message;
        }
    }

    // Whether a message was repaired since the last call.
    bool repaired() noexcept { return std::exchange(repaired_, false); }
    // Bytes of a line that is too long to be taken, after which its end is no longer waited for.
    std::size_t most_skipped() const noexcept { return 16 * std::max(limit_, default_max_message); }

private:
    static constexpr std::size_t chunk = std::size_t{64} << 10;
    static constexpr std::size_t keep = std::size_t{1} << 20;

    // A line of which nothing is kept but its beginning.
    struct Skipped {
        explicit Skipped(std::string why) : problem(std::move(why)) {}
        void add(std::string_view piece) {
            start.append(piece.substr(0, 4096 - std::min<std::size_t>(start.size(), 4096)));
            size += piece.size();
            envelope.feed(piece);
        }
        std::string problem, start;
        std::size_t size = 0;
        detail::EnvelopeScanner envelope;
    };

    // Large buffers grow in place, without a moment in which both the old and the new one are
    // there.
    void resize(std::size_t capacity) {
        auto* larger = static_cast<char*>(std::realloc(buffer_.get(), capacity));
        if (larger == nullptr) throw std::bad_alloc();
        static_cast<void>(buffer_.release());
        buffer_.reset(larger);
        capacity_ = capacity;
    }

    static bool means_to_be_one(std::string_view line) noexcept {
        const auto first = line.find_first_not_of(" \t\r");
        return first != line.npos && (line[first] == '{' || line[first] == '[');
    }

    void skip(std::string_view line, std::string_view problem, RpcCode code, json::value id) {
        if (on_bad_) on_bad_({line, problem, code, std::move(id)});
    }
    // What next() returns for a line that was passed over: an error in place of an answer, or
    // nothing.
    std::optional<json::object> skipped() {
        const auto line = std::move(*skipped_);
        skipped_.reset();
        auto id = line.envelope.id();
        if (!means_to_be_one(line.start)) {
            skip(line.start, {}, rpc_parse_error, {});
        } else if (line.envelope.asks() || id.is_null()) {
            skip(line.start, line.problem, rpc_invalid_request, std::move(id));
        } else {
            return rpc_error(std::move(id), rpc_invalid_request, "the answer " + line.problem);
        }
        return std::nullopt;
    }

    // Nothing for a line that is none.
    std::optional<json::object> parse(std::string_view line) {
        if (line.find_first_not_of(" \t\r") == line.npos) return std::nullopt;
        if (!means_to_be_one(line)) {
            skip(line, {}, rpc_parse_error, {});
            return std::nullopt;
        }
        auto read = mcp::read_message(line, std::max(detail::default_max_decoded, 3 * limit_));
        if (!read.problem.empty()) {
            skip(line, read.problem, rpc_parse_error, std::move(read.id));
            return std::nullopt;
        }
        repaired_ = repaired_ || read.repaired;
        if (read.value.is_object()) return std::move(read.value.get_object());
        if (on_batch_) {
            on_batch_(std::move(read.value.get_array()));
            return std::nullopt;
        }
        for (auto& element : read.value.get_array())
            if (element.is_object()) batch_.push_back(std::move(element.get_object()));
        return std::nullopt;
    }

    std::size_t limit_;
    std::function<void(const BadLine&)> on_bad_;
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
    std::optional<Skipped> skipped_;  // the line that is being passed over
    bool repaired_ = false;
    std::deque<json::object> batch_;
};

}  // namespace ipybox::mcp
