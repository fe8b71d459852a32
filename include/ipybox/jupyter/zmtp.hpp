#pragma once
// ZMTP 3.0, the wire protocol of ZeroMQ, for a client without authentication (NULL) and without
// I/O. The peer is hostile: what a message may cost is checked as each frame announces itself,
// before any of it is kept. https://rfc.zeromq.org/spec/23/
#include <algorithm>
#include <boost/system/result.hpp>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ipybox::jupyter {

enum class ZmtpFault { bad_greeting, bad_handshake, refused, bad_frame, frame_count, too_large };

inline const char* describe(ZmtpFault fault) noexcept {
    switch (fault) {
        case ZmtpFault::bad_greeting:
            return "a greeting that is not ZMTP 3 without authentication";
        case ZmtpFault::bad_handshake:
            return "a malformed ZMTP handshake";
        case ZmtpFault::refused:
            return "it refused the ZMTP connection";
        case ZmtpFault::bad_frame:
            return "a malformed ZMTP frame";
        case ZmtpFault::frame_count:
            return "a message with a wrong number of frames";
        case ZmtpFault::too_large:
            return "a message over the size limit";
    }
    return "malformed ZMTP";
}

// Appends one frame of a message.
inline void append_zmtp_frame(std::string& to, std::string_view body, bool more) {
    const bool is_long = body.size() > 255;
    to += static_cast<char>((more ? 1 : 0) | (is_long ? 2 : 0));
    for (int shift = is_long ? 56 : 0; shift >= 0; shift -= 8)
        to += static_cast<char>((std::uint64_t{body.size()} >> shift) & 0xFF);
    to += body;
}

// What a client says at once. Its first message waits until the peer is ready().
// socket_type: ZeroMQ's name for it, such as "DEALER". identity: by which a ROUTER knows it, up to
// 128 bytes, the first of them not 0; empty: the peer makes one.
inline std::string zmtp_opening(std::string_view socket_type, std::string_view identity = {}) {
    std::string text("\xFF\0\0\0\0\0\0\0\x01\x7F\x03\0NULL", 16);
    text.resize(64, '\0');
    std::string ready("\x05READY\x0BSocket-Type\0\0\0", 21);
    ready += static_cast<char>(socket_type.size());
    ready += socket_type;
    if (!identity.empty()) {
        ready += std::string_view("\x08Identity\0\0\0", 12);
        ready += static_cast<char>(identity.size());
        ready += identity;
    }
    text += '\x04';
    text += static_cast<char>(ready.size());
    text += ready;
    return text;
}

// The message by which a SUB socket subscribes to everything.
inline constexpr std::string_view zmtp_subscription = "\x01";

// What the peer sends, one message at a time: put bytes into room(), tell add(), call advance().
class ZmtpReader {
public:
    struct Limits {
        std::size_t frames = 1024;      // of one message
        std::size_t bytes = 32U << 20;  // of all its frames together
    };
    explicit ZmtpReader(Limits limits) : limits_(limits) {}

    struct Room {
        char* data;
        std::size_t size;  // at least 1
    };
    // Where the next bytes belong, after advance() wanted more; throws std::bad_alloc.
    Room room() {
        const std::size_t missing = left_;
        if (missing >= buffer_size && begin_ == end_ && !skipping_) {
            message_.grow(used_ + missing);
            direct_ = true;
            return {message_.data() + used_, missing};
        }
        direct_ = false;
        input_.grow(buffer_size);
        if (begin_ > 0) {
            std::memmove(input_.data(), input_.data() + begin_, end_ - begin_);
            end_ -= begin_;
            begin_ = 0;
        }
        return {input_.data() + end_, buffer_size - end_};
    }
    // `size` bytes were put there.
    void add(std::size_t size) noexcept {
        if (direct_) {
            used_ += size;
            left_ -= size;
        } else {
            end_ += size;
        }
    }

    // True when a message is complete, and from then on until drop(). False when more bytes are
    // needed. A fault is final, but for too_large: frames() are those before the one that would
    // have been too much, and skip() goes on with the next message.
    boost::system::result<bool, ZmtpFault> advance() {
        if (fault_) return *fault_;
        if (complete_) return true;
        for (;;) {
            if (in_frame_) {
                take_body();
                if (left_ > 0) return false;
                in_frame_ = false;
                if (is_command_ && !read_ready()) return fail(command_fault_);
                if (is_command_ || more_) continue;
                complete_ = true;
                if (skipping_) {
                    drop();
                    continue;
                }
                collect();
                return true;
            }
            const std::string_view input(input_.data() + begin_, end_ - begin_);
            if (!greeted_) {
                if (!is_greeting(input)) return fail(ZmtpFault::bad_greeting);
                if (input.size() < greeting_size) return false;
                begin_ += greeting_size;
                greeted_ = true;
                continue;
            }
            if (input.empty()) return false;
            const auto flags = static_cast<unsigned char>(input.front());
            const std::size_t head = (flags & 2) != 0 ? 9 : 2;
            if ((flags & ~7U) != 0 || flags == 5 || flags == 7) return fail(ZmtpFault::bad_frame);
            // The handshake is one command; version 3.0 knows none after it.
            is_command_ = (flags & 4) != 0;
            if (is_command_ == ready_)
                return fail(ready_ ? ZmtpFault::bad_frame : ZmtpFault::bad_handshake);
            if (input.size() < head) return false;
            std::uint64_t size = 0;
            for (std::size_t i = 1; i < head; ++i)
                size = size << 8 | static_cast<unsigned char>(input[i]);
            if (is_command_ && size > longest_command) return fail(ZmtpFault::bad_handshake);
            if (!is_command_ && sizes_.size() == limits_.frames)
                return fail(ZmtpFault::frame_count);
            if (size > (skipping_ ? most_skipped - skipped_ : limits_.bytes - announced_)) {
                if (skipping_ || size > most_skipped) return fail(ZmtpFault::too_large);
                collect();
                fault_ = ZmtpFault::too_large;
                return *fault_;
            }
            begin_ += head;
            left_ = static_cast<std::size_t>(size);
            more_ = (flags & 1) != 0;
            in_frame_ = true;
            if (is_command_) continue;
            (skipping_ ? skipped_ : announced_) += left_;
            sizes_.push_back(skipping_ ? 0 : left_);
        }
    }

    // Whether the peer has introduced itself, as it does before its first message.
    bool ready() const noexcept { return ready_; }
    // Of the complete message, until it is dropped.
    std::span<const std::string_view> frames() const noexcept { return views_; }
    // The complete message has served.
    void drop() noexcept {
        if (!complete_) return;
        complete_ = skipping_ = false;
        sizes_.clear();
        views_.clear();
        announced_ = used_ = skipped_ = 0;
        if (message_.size() > kept) message_.clear();
    }
    // After too_large: lets the rest of the message go by, up to 1 GiB.
    void skip() noexcept {
        if (fault_ != ZmtpFault::too_large || input_.size() == 0) return;
        fault_.reset();
        skipping_ = true;
        announced_ = used_ = 0;
        views_.clear();
        std::fill(sizes_.begin(), sizes_.end(), 0);
        message_.clear();
    }
    // Bytes of the message that is being read, or complete, as announced so far.
    std::size_t announced() const noexcept { return announced_; }
    bool complete() const noexcept { return complete_; }

private:
    static constexpr std::size_t greeting_size = 64;
    static constexpr std::size_t longest_command = 4096;
    static constexpr std::size_t buffer_size = 64U << 10;
    static constexpr std::size_t kept = 256U << 10;
    static constexpr std::size_t most_skipped = 1U << 30;

    // Grows in place where the system can, and is not touched before it is used.
    class Memory {
    public:
        char* data() const noexcept { return data_.get(); }
        std::size_t size() const noexcept { return size_; }
        void grow(std::size_t size) {
            if (size <= size_) return;
            auto* larger = static_cast<char*>(std::realloc(data_.get(), size));
            if (larger == nullptr) throw std::bad_alloc();
            static_cast<void>(data_.release());
            data_.reset(larger);
            size_ = size;
        }
        void clear() noexcept {
            data_.reset();
            size_ = 0;
        }

    private:
        struct Free {
            void operator()(char* memory) const noexcept { std::free(memory); }
        };
        std::unique_ptr<char, Free> data_;
        std::size_t size_ = 0;
    };

    ZmtpFault fail(ZmtpFault fault) {
        fault_ = fault;
        input_.clear();
        message_.clear();
        begin_ = end_ = 0;
        return fault;
    }

    // Whether this can be the start of a greeting: refused at its first wrong byte.
    static bool is_greeting(std::string_view text) noexcept {
        static constexpr std::string_view mechanism("NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 20);
        if (!text.empty() && text[0] != '\xFF') return false;
        if (text.size() > 9 && text[9] != '\x7F') return false;
        if (text.size() > 10 && static_cast<unsigned char>(text[10]) < 3) return false;
        return text.size() < 32 || text.substr(12, 20) == mechanism;
    }

    // Moves what has arrived of a frame to the rest of its message.
    void take_body() {
        const auto size = std::min(left_, end_ - begin_);
        if (size == 0) return;
        left_ -= size;
        if (skipping_) {
            begin_ += size;
            return;
        }
        if (used_ + size > message_.size())
            message_.grow(std::max(used_ + size, 2 * message_.size()));
        std::memcpy(message_.data() + used_, input_.data() + begin_, size);
        used_ += size;
        begin_ += size;
    }

    bool read_ready() noexcept {
        const std::string_view command(message_.data(), used_);
        used_ = 0;
        ready_ = command.starts_with("\x05READY");
        command_fault_ = command.starts_with(
                             "\x05"
                             "ERROR")
                             ? ZmtpFault::refused
                             : ZmtpFault::bad_handshake;
        return ready_;
    }

    void collect() {
        const char* at = message_.data();
        for (const auto size : sizes_) {
            views_.emplace_back(at, size);
            at += size;
        }
    }

    Limits limits_;
    Memory input_;  // what was read and not yet looked at is at [begin_, end_)
    std::size_t begin_ = 0, end_ = 0;
    Memory message_;  // the frames one after the other; used_ of it has arrived
    std::size_t used_ = 0;
    std::size_t left_ = 0;       // of the current frame, yet to come
    std::size_t announced_ = 0;  // bytes of this message's frames so far
    std::vector<std::size_t> sizes_;
    std::vector<std::string_view> views_;
    std::optional<ZmtpFault> fault_;
    ZmtpFault command_fault_ = ZmtpFault::bad_handshake;
    bool greeted_ = false, ready_ = false;
    bool in_frame_ = false, is_command_ = false, more_ = false;
    bool direct_ = false;  // room() was that of the message itself
    bool complete_ = false;
    bool skipping_ = false;
    std::size_t skipped_ = 0;  // bytes of the frames that went by
};

}  // namespace ipybox::jupyter
