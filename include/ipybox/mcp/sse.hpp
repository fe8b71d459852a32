#pragma once
// Server-sent events (WHATWG HTML, "Server-sent events") without I/O: a parser fed with whatever
// pieces arrive, and the writing of events. What is parsed is hostile: nothing here throws on it.
#include <boost/system/result.hpp>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <ipybox/error.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace ipybox::mcp {

struct SseEvent {
    std::string type;  // empty: "message"
    std::string data;  // its lines joined by \n; may be empty
};

// Feed bytes, then take events until there is none. Lines end with CR LF, LF or CR, cut anywhere;
// a byte order mark is skipped; comments and unknown fields are too.
class SseParser {
public:
    // limit: bytes of one event, and of one line.
    explicit SseParser(std::size_t limit = std::size_t{64} << 20) : limit_(limit) {}

    void feed(std::string_view bytes) {
        if (begin_ > 0) {
            buffer_.erase(0, begin_);
            scanned_ -= begin_;
            begin_ = 0;
        }
        buffer_.append(bytes);
    }

    // The next event; nullopt when more bytes are needed. Returns the error mcp_protocol when one
    // exceeds the limit: then the stream is no longer usable.
    boost::system::result<std::optional<SseEvent>> next() {
        while (!too_long_) {
            const auto line = take_line();
            if (!line) break;
            if (!line->empty()) {
                take_field(*line);
                continue;
            }
            last_id_ = id_;
            if (!has_data_) {
                event_ = {};
                continue;
            }
            has_data_ = false;
            return std::optional(std::exchange(event_, {}));
        }
        if (too_long_ || buffer_.size() - begin_ > limit_) {
            too_long_ = true;
            return make_error_code(errc::mcp_protocol);
        }
        return std::optional<SseEvent>();
    }

    // Bytes it keeps for what is not complete.
    std::size_t held() const noexcept { return buffer_.capacity() + event_.data.capacity(); }
    // The id of the newest event that is complete, for Last-Event-ID; empty when there was none.
    const std::string& last_id() const noexcept { return last_id_; }
    // How long to wait before connecting again, if the server has said so.
    std::optional<std::chrono::milliseconds> retry() const noexcept { return retry_; }

private:
    static constexpr std::size_t max_id = 4096;

    // The next whole line without its end. Valid until feed().
    std::optional<std::string_view> take_line() {
        if (after_cr_ && begin_ < buffer_.size()) {
            if (buffer_[begin_] == '\n') ++begin_;
            after_cr_ = false;
        }
        if (scanned_ < begin_) scanned_ = begin_;
        const char* const from = buffer_.data() + scanned_;
        auto size = buffer_.size() - scanned_;
        if (size == 0) return std::nullopt;
        const auto* stop = static_cast<const char*>(std::memchr(from, '\n', size));
        if (stop != nullptr) size = static_cast<std::size_t>(stop - from);
        const auto* cr = static_cast<const char*>(std::memchr(from, '\r', size));
        if (cr != nullptr) stop = cr;
        if (stop == nullptr) {
            scanned_ = buffer_.size();
            return std::nullopt;
        }
        std::string_view line(buffer_.data() + begin_,
                              static_cast<std::size_t>(stop - buffer_.data()) - begin_);
        begin_ = scanned_ = static_cast<std::size_t>(stop - buffer_.data()) + 1;
        after_cr_ = cr != nullptr;
        if (std::exchange(first_, false) && line.starts_with("\xEF\xBB\xBF")) line.remove_prefix(3);
        return line;
    }

    void take_field(std::string_view line) {
        const auto colon = line.find(':');
        const auto name = line.substr(0, colon);
        auto value = colon == line.npos ? std::string_view() : line.substr(colon + 1);
        if (value.starts_with(' ')) value.remove_prefix(1);
        if (name == "data") {
            if (value.size() + event_.data.size() >= limit_) {
                too_long_ = true;
                return;
            }
            if (std::exchange(has_data_, true)) event_.data += '\n';
            event_.data.append(value);
        } else if (name == "event") {
            event_.type = value.substr(0, max_id);
        } else if (name == "id") {
            // It comes back as a header, so what no header may carry is no id.
            for (const char c : value)
                if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) return;
            if (value.size() <= max_id) id_ = value;
        } else if (name == "retry") {
            unsigned milliseconds = 0;
            const auto* const end = value.data() + value.size();
            const auto [stop, error] = std::from_chars(value.data(), end, milliseconds);
            if (!value.empty() && stop == end && error == std::errc())
                retry_ = std::chrono::milliseconds(milliseconds);
        }
    }

    std::size_t limit_;
    std::string buffer_;
    std::size_t begin_ = 0;    // of the line not yet taken
    std::size_t scanned_ = 0;  // no line end before this
    bool after_cr_ = false;    // an LF that comes next belongs to the line end before
    bool first_ = true;
    bool too_long_ = false;
    SseEvent event_;
    bool has_data_ = false;
    std::string id_;
    std::string last_id_;
    std::optional<std::chrono::milliseconds> retry_;
};

// One event as text. Line ends in `data` make several data lines; `type` and `id` must have none.
// An empty type and id are left out; without a type it is a "message".
inline std::string sse_event(std::string_view data, std::string_view type = {},
                             std::string_view id = {},
                             std::optional<std::chrono::milliseconds> retry = std::nullopt) {
    std::string text;
    text.reserve(data.size() + type.size() + id.size() + 48);
    const auto field = [&text](std::string_view name, std::string_view value) {
        text.append(name).append(": ").append(value) += '\n';
    };
    if (!type.empty()) field("event", type);
    if (!id.empty()) field("id", id);
    if (retry) field("retry", std::to_string(retry->count()));
    for (;;) {
        const auto end = data.find_first_of("\r\n");
        field("data", data.substr(0, end));
        if (end == data.npos) break;
        data.remove_prefix(end + (data.substr(end).starts_with("\r\n") ? 2 : 1));
    }
    return text += '\n';
}

// A line that says nothing and keeps a connection alive.
inline constexpr std::string_view sse_keep_alive = ":\n\n";

}  // namespace ipybox::mcp
