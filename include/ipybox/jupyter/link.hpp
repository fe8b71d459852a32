#pragma once
// The host's end of the link to a kernel that is reached through a Jupyter server only: what is
// numbered, acknowledged and sent again, so that nothing is lost where servers drop output and
// connections break. The kernel's end is python/ipybox_kernel/link.py.
#include <algorithm>
#include <boost/json/object.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <ipybox/detail/json_members.hpp>
#include <ipybox/detail/json_memory.hpp>
#include <ipybox/jupyter/websocket.hpp>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace ipybox {

namespace json = boost::json;

// A message from the kernel, with the bytes that its views point into.
struct LinkMessage {
    std::string bytes;                 // as received
    jupyter::IncomingMessage message;  // what they say
    std::uint64_t number = 0;          // its place in the kernel's sequence; 0: not part of it
    std::size_t weight = 0;            // bytes of memory; ReliableLink::keep() sets it
};

// The state of the link, without its sockets: told what happened, it says what to do.
//
// The kernel's sequence: every message that the kernel publishes has a number, one more than the
// one before. Only the next one is taken; when another comes, the host asks the kernel to resume
// after the last one taken. Until the kernel answers, nothing of the sequence is taken.
//
// The host's sequence: operations that the kernel must receive are numbered too, and kept until
// the kernel reports that it has them. They are sent again whenever the link is resumed.
//
// Everything that comes from the kernel is an attacker's: numbers may go back, leave gaps, or
// acknowledge what was never sent. None of this costs more memory than the limits below.
//
// It has no clock: functions take the time. They throw nothing but std::bad_alloc, never wait,
// and belong to one thread.
class ReliableLink {
public:
    using Time = std::chrono::steady_clock::time_point;
    using Duration = std::chrono::steady_clock::duration;

    // After so many bytes or messages the kernel is told that it need not keep them. It waits when
    // it has sent 16 MiB beyond that.
    static constexpr std::size_t acknowledged_bytes = std::size_t{1} << 20;
    static constexpr std::size_t acknowledged_messages = 500;
    // With more bytes unread, only what was read is acknowledged, which makes the kernel wait.
    static constexpr std::size_t unread_window = std::size_t{4} << 20;
    // Bytes that a kernel may leave unread without a share of the memory budget.
    static constexpr std::size_t free_unread = std::size_t{1} << 20;
    // Bytes that a kernel leaves unread at most if it waits for acknowledgements.
    static constexpr std::size_t most_unread = std::size_t{24} << 20;
    // Bytes and operations that may be on their way to the kernel before sources have to wait.
    static constexpr std::size_t send_window = std::size_t{4} << 20;
    static constexpr std::size_t send_window_count = 4096;
    // Operations kept for a kernel that acknowledges none; it is given up beyond that.
    static constexpr std::size_t most_sent = 16384;
    // Pauses between two requests to resume: the first one, and what doubling leads to.
    static constexpr Duration first_pause = std::chrono::milliseconds(100);
    static constexpr Duration longest_pause = std::chrono::seconds(2);

    // session: names this link in requests to resume.
    // most_kept: bytes of unread messages beyond which keep() refuses.
    ReliableLink(std::string session, std::size_t most_kept)
        : session_(std::move(session)), most_kept_(most_kept) {}

    // ---- what the kernel publishes ----

    // What a published message is.
    enum class Arrival {
        of_server,  // bears no number: the server made it up
        malformed,  // its number or type is none: the protocol is broken
        answer,     // to a request to resume; for answered()
        dropped,    // taken before, or it will come again
        gap,        // something before it is missing: resume() is due
        next,       // the next one of the sequence; it counts as taken
    };
    // Looks at a message of the channel iopub; sets its number and, unless the server made it up,
    // the type that it had before the kernel's end wrapped it.
    Arrival arrived(LinkMessage& received) {
        auto& message = received.message;
        if (!message.metadata.contains("ipybox")) return Arrival::of_server;
        const auto number = number_in(message.metadata, "ipybox");
        const auto* type = detail::find_string(message.metadata, "type");
        if (!number || type == nullptr) return Arrival::malformed;
        received.number = *number;
        message.type = *type;
        if (message.type == "resume") return Arrival::answer;
        if (!linked_ || resuming() || received.number <= last_) return Arrival::dropped;
        if (received.number != last_ + 1) return Arrival::gap;
        last_ = received.number;
        return Arrival::next;
    }

    // Keeps a message until take() returns it.
    // Returns false, and drops it, when more is unread than a kernel that waits would leave.
    [[nodiscard]] bool keep(std::unique_ptr<LinkMessage> received) {
        received->weight = weigh(*received);
        unread_bytes_ += received->weight;
        if (unread_bytes_ > most_kept_) {
            unread_bytes_ -= received->weight;
            return false;
        }
        unread_.push_back(std::move(received));
        return true;
    }
    // Returns the oldest message kept, or null.
    std::unique_ptr<LinkMessage> take() {
        if (unread_.empty()) return nullptr;
        auto received = std::move(unread_.front());
        unread_.pop_front();
        unread_bytes_ -= received->weight;
        return received;
    }
    // Forgets all messages kept.
    void forget_unread() {
        unread_.clear();
        unread_bytes_ = 0;
    }

    // `bytes` of a message are read so far; 0: none is being read.
    void reading(std::size_t bytes) noexcept { begun_bytes_ = bytes; }
    // Bytes of memory that unread messages take. What is being read counts twice, because it is
    // copied when it is complete.
    std::size_t unread_size() const noexcept { return unread_bytes_ + 2 * begun_bytes_; }
    // The part of unread_size() that comes out of the memory budget.
    std::size_t shared_unread() const noexcept {
        return unread_size() - std::min(unread_size(), free_unread);
    }

    // A message of the sequence, of `bytes` as received, was taken and dealt with.
    // Returns the acknowledgement that is to be sent now, if one is due.
    std::optional<json::object> consumed(std::size_t bytes) {
        unacknowledged_bytes_ += bytes;
        ++unacknowledged_;
        if (unacknowledged_ < acknowledged_messages && unacknowledged_bytes_ < acknowledged_bytes)
            return std::nullopt;
        unacknowledged_ = unacknowledged_bytes_ = 0;
        // Unread messages are safe here. Many of them make the kernel wait; a few must not hold up
        // its channels and files.
        const auto from = unread_bytes_ < unread_window ? unread_.end() : unread_.begin();
        const auto oldest =
            std::find_if(from, unread_.end(), [](const auto& one) { return one->number != 0; });
        json::object content;
        content["op"] = "ack";
        content["number_seen"] = oldest == unread_.end() ? last_ : (*oldest)->number - 1;
        return content;
    }

    // ---- resuming ----

    // The kernel's end has answered once.
    bool linked() const noexcept { return linked_; }
    // An answer is awaited; nothing of the two sequences moves until it comes.
    bool resuming() const noexcept { return !token_.empty(); }
    // Names the answer that is awaited; empty when none is.
    const std::string& token() const noexcept { return token_; }

    // Begins to ask the kernel to go on after the last message taken: ask() is due from now on.
    // Returns false, and changes nothing, when this is under way.
    bool resume(Time now) {
        if (resuming()) return false;
        token_ = session_ + "-" + std::to_string(++tokens_);
        next_ask_ = now;
        pause_ = first_pause;
        return true;
    }
    // There is a new connection: begins to resume, under a new token, if the kernel's end has
    // answered before. What was asked over the old connection counts no more.
    // Returns whether it does.
    bool reconnected(Time now) {
        if (!linked_) return false;
        token_.clear();
        return resume(now);
    }
    // Returns the request to resume when it is to be sent now. Requests and answers may be lost
    // while the server has not subscribed to the kernel's output, so it is due again and again.
    std::optional<json::object> ask(Time now) {
        if (!resuming() || now < next_ask_) return std::nullopt;
        next_ask_ = now + pause_;
        pause_ = std::min(2 * pause_, longest_pause);
        json::object content;
        content["op"] = "resume";
        content["token"] = token_;
        if (linked_) {
            content["after"] = last_;
        } else {
            content["after"] = nullptr;
        }
        return content;
    }
    // When ask() has a request again; of no meaning unless resuming().
    Time next_ask() const noexcept { return next_ask_; }

    // What an answer of the kernel's end does.
    enum class Answer {
        stale,      // nothing: it answers another request, or none
        malformed,  // a number is missing: the protocol is broken
        lost,       // output is gone for good: the kernel is no longer usable
        resumed,    // both sequences go on; the operations of sent() are to be sent again
    };
    // data: what the kernel's end wrapped.
    Answer answered(const json::object& data) {
        if (!resuming() || detail::string_of(data, "token") != token_) return Answer::stale;
        const auto after = number_in(data, "after");
        const auto received = number_in(data, "received");
        const auto* whole = data.if_contains("whole");
        if (!after || !received || whole == nullptr || !whole->is_bool()) return Answer::malformed;
        if (!whole->get_bool() || (linked_ && *after != last_)) return Answer::lost;
        last_ = *after;
        linked_ = true;
        token_.clear();
        acknowledged(*received);
        return Answer::resumed;
    }

    // ---- what the host sends ----

    // An operation for the kernel's end.
    struct Sent {
        std::uint64_t number;
        json::object content;  // bears the number as well
        std::string buffer;    // bytes that go with it
    };
    // Numbers an operation and keeps it until the kernel has it.
    // Returns the operation, valid until the next call; to be sent now if flowing().
    const Sent& send(json::object content, std::string buffer) {
        content["number"] = ++sent_number_;
        sent_bytes_ += buffer.size();
        sent_.push_back({sent_number_, std::move(content), std::move(buffer)});
        return sent_.back();
    }
    // Operations can be sent; otherwise they go when the link is resumed.
    bool flowing() const noexcept { return linked_ && !resuming(); }
    // The kernel has all operations up to `number`. One that was never sent acknowledges nothing
    // that is sent later.
    void acknowledged(std::uint64_t number) {
        while (!sent_.empty() && sent_.front().number <= number) {
            sent_bytes_ -= sent_.front().buffer.size();
            sent_.pop_front();
        }
    }
    // The operations that the kernel may not have, oldest first.
    const std::deque<Sent>& sent() const noexcept { return sent_; }
    // Bytes that go with them.
    std::size_t sent_bytes() const noexcept { return sent_bytes_; }
    // The kernel may not have the operation of that number.
    bool on_its_way(std::uint64_t number) const noexcept {
        return !sent_.empty() && sent_.front().number <= number;
    }
    // Sources that can wait have to.
    bool window_full() const noexcept {
        return sent_bytes_ > send_window || sent_.size() > send_window_count;
    }
    // The kernel causes operations and acknowledges none: it is to be given up.
    bool overfull() const noexcept { return sent_.size() > most_sent; }

    // A member of an object that is a number of 0 or more.
    static std::optional<std::uint64_t> number_in(const json::object& object,
                                                  std::string_view name) {
        const auto* value = object.if_contains(name);
        if (value == nullptr || !value->is_int64() || value->get_int64() < 0) return std::nullopt;
        return static_cast<std::uint64_t>(value->get_int64());
    }

private:
    static std::size_t weigh(const LinkMessage& received) {
        const auto& message = received.message;
        std::size_t weight = sizeof received + detail::per_allocation + received.bytes.size() +
                             message.type.size() + message.id.size() + message.parent_id.size() +
                             message.buffers.size() * sizeof(std::string_view) +
                             detail::memory_size(message.metadata);
        if (message.parsed) weight += detail::memory_size(*message.parsed);
        return weight;
    }

    std::string session_;
    std::size_t most_kept_;

    bool linked_ = false;
    std::uint64_t last_ = 0;  // number of the newest message taken
    std::deque<std::unique_ptr<LinkMessage>> unread_;
    std::size_t unread_bytes_ = 0, begun_bytes_ = 0;
    std::size_t unacknowledged_ = 0, unacknowledged_bytes_ = 0;

    std::string token_;
    std::uint64_t tokens_ = 0;
    Time next_ask_{};
    Duration pause_ = first_pause;

    std::deque<Sent> sent_;
    std::size_t sent_bytes_ = 0;
    std::uint64_t sent_number_ = 0;
};

}  // namespace ipybox
