#pragma once
// What a client over HTTP keeps for one server (2025-03-26 to 2025-11-25 "Session Management",
// "Resumability and Redelivery"), without I/O and without a clock: the session and its renewal, and
// the streams that are taken up again. What happens goes in, what is to be done comes out.
#include <algorithm>
#include <boost/json/object.hpp>
#include <boost/json/string.hpp>
#include <boost/json/value.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <ipybox/error.hpp>
#include <ipybox/mcp/detail/wire.hpp>
#include <ipybox/mcp/jsonrpc.hpp>
#include <ipybox/net/proxy_protocol.hpp>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ipybox::detail {

// The session that a legacy server has opened. A server may forget it: then one of the calls that
// learn of it opens another, the others wait for that, and each is sent once more.
class HttpClientSession {
public:
    static constexpr std::size_t max_id = 4096;
    static constexpr std::size_t max_lasting = 1000;  // messages that are said again

    // The server is reached for the first time, or again after it had ended.
    void reset() {
        id_.clear();
        protocol_version_.clear();
        modern_version_.clear();
        lasting_.clear();
        ++generation_;
    }

    // ---- what requests say ----

    const std::string& id() const noexcept { return id_; }
    const std::string& protocol_version() const noexcept { return protocol_version_; }
    // Counts sessions: what began in another one is not of this one.
    std::uint64_t generation() const noexcept { return generation_; }

    // The modern version of a message; empty for a legacy one. stated: by the message itself, which
    // notifications do not.
    const std::string& modern_version_of(std::string_view method, std::string_view stated) {
        if (method == "initialize") modern_version_.clear();
        if (!stated.empty()) modern_version_ = stated;
        return modern_version_;
    }
    // A message is about to be sent: what holds for the session is kept for the next.
    void sending(std::string_view method, bool modern, const json::object& message) {
        if (method == "initialize") {
            initialize_ = message;
            id_.clear();
            protocol_version_.clear();
        }
        const auto* params = object_of(message, "params");
        if (modern || params == nullptr) return;
        const std::string uri(string_of(*params, "uri"));
        if (method == "resources/unsubscribe") lasting_.erase(uri);
        const bool level = method == "logging/setLevel";
        if ((level || method == "resources/subscribe") && lasting_.size() < max_lasting)
            lasting_[level ? std::string() : uri] = message;
    }
    // The id that came with the answer to initialize; empty for none. False: it is no id, and
    // nothing has changed.
    bool opened(std::string_view id) {
        if (id.size() > max_id || !is_printable(id)) return false;
        id_ = id;
        ++generation_;
        return true;
    }
    // The version in the answer to initialize. Later requests say it in a header, if it can be one.
    void agreed(std::string_view version) {
        const bool fits = version.size() <= max_version && is_printable(version);
        protocol_version_ = fits ? std::string(version) : std::string();
    }

    // ---- what may be sent again ----

    // Whether sending a message twice does what sending it once does.
    static bool repeatable(std::string_view method) noexcept {
        return !method.empty() && method != "tools/call";
    }
    // Whether a refusal says that the session is forgotten: then the server did nothing, and any
    // message may be sent again in the next. used: the id that the message was sent with.
    static bool is_forgotten(std::string_view used, std::string_view method, bool modern,
                             unsigned status, std::string_view body) {
        if (used.empty() || modern || method == "initialize") return false;
        if (status == 404) return true;
        // Some answer 400 where the protocol says 404.
        const std::string words = status == 400 ? net::lower_case(body) : std::string();
        return words.find("session") != words.npos || words.find("not initialized") != words.npos;
    }

    // ---- renewal ----

    // What a call remembers that found its session forgotten.
    struct Loss {
        std::uint64_t generation;  // of the session in which it was sent
        std::uint64_t renewals;    // that had ended before
    };
    Loss lost(std::uint64_t generation) const noexcept { return {generation, renewals_}; }

    enum class Renewal {
        wait,        // another call renews it: ask again when renewing() has ended
        send_again,  // there is a new session
        failed,      // the renewal that was waited for failed: failure() says why
        renew,       // the call must renew it: send initialize(), then end_renewal() in any case
    };
    Renewal renewal(const Loss& loss) {
        if (renewing_) return Renewal::wait;
        if (generation_ != loss.generation) return Renewal::send_again;
        if (renewals_ != loss.renewals && failure_) return Renewal::failed;
        renewing_ = true;
        failure_.reset();
        forgotten_ = {id_, protocol_version_, generation_};
        id_.clear();
        protocol_version_.clear();
        return Renewal::renew;
    }
    bool renewing() const noexcept { return renewing_; }
    // The message that opened the session, under an id of its own.
    json::object initialize() const {
        json::object message = initialize_;
        message["id"] = json::string("ipybox-session-" + std::to_string(forgotten_.generation));
        return message;
    }
    void fail(Error why) { failure_ = std::move(why); }
    const std::optional<Error>& failure() const noexcept { return failure_; }
    // Also of a renewal that was broken off. Without a new session the forgotten one is used by the
    // next call, which then tries to renew it.
    void end_renewal() {
        if (!renewing_) return;
        if (generation_ == forgotten_.generation) {
            id_ = forgotten_.id;
            protocol_version_ = forgotten_.protocol_version;
        }
        renewing_ = false;
        ++renewals_;
    }
    // What else held for the forgotten session and is said again in the new one: log level and
    // subscriptions, under ids of their own. What the server had to say in between is lost.
    std::vector<json::object> lasting() const {
        std::vector<json::object> messages;
        for (const auto& [about, request] : lasting_) {
            messages.push_back(request);
            messages.back()["id"] = json::string("ipybox-again-" + about);
        }
        return messages;
    }

private:
    static constexpr std::size_t max_version = 64;

    static bool is_printable(std::string_view text) noexcept {
        return std::all_of(text.begin(), text.end(), [](char c) { return c > 0x20 && c < 0x7F; });
    }

    struct Forgotten {
        std::string id, protocol_version;
        std::uint64_t generation = 0;
    };

    std::string id_, protocol_version_;
    std::string modern_version_;  // of modern requests; empty once a session is asked for
    std::uint64_t generation_ = 0;
    json::object initialize_;                      // the message that opened it
    std::map<std::string, json::object> lasting_;  // by URI; "" is the log level
    bool renewing_ = false;
    Forgotten forgotten_;
    std::uint64_t renewals_ = 0;
    std::optional<Error> failure_;
};

// One stream of events, over all connections that carry it.
class StreamResumption {
public:
    using Milliseconds = std::chrono::milliseconds;
    static constexpr int max_attempts = 5;  // without an event
    static constexpr Milliseconds first_delay{1000}, min_delay{50}, max_delay{60'000};
    // A connection that lasted so long was no failure, even without an event.
    static constexpr std::chrono::seconds long_enough{5};

    enum class Next {
        connect,   // after the delay
        lost,      // nothing leads back to it
        given_up,  // tried often enough
    };
    struct Decision {
        Next next;
        Milliseconds delay{0};
    };
    // What the answer to a GET for it means.
    enum class Answer { stream, later, refused };

    // For Last-Event-ID; empty when no event had an id.
    const std::string& last_id() const noexcept { return last_id_; }

    // An id or a delay that the server has named: absent ones change nothing.
    void named(std::string_view id, std::optional<Milliseconds> retry) {
        if (!id.empty()) last_id_ = id;
        if (retry) retry_ = retry;
    }
    // An event has come.
    void progressed() noexcept { progressed_ = true; }

    // The stream of a request ended before the answer, or could not be reached. modern: that
    // protocol has no way back, and only the client knows whether to ask again.
    Decision interrupted(bool modern) {
        if (modern || last_id_.empty()) return {Next::lost};
        if (std::exchange(progressed_, false)) attempts_ = 0;
        if (attempts_ == max_attempts) return {Next::given_up};
        return {Next::connect, delay(attempts_++)};
    }
    // The stream for what belongs to no request ended, or could not be reached.
    Decision ended(std::chrono::nanoseconds lasted) {
        const bool good = std::exchange(progressed_, false) || lasted > long_enough;
        attempts_ = good ? 0 : attempts_ + 1;
        return {attempts_ > max_attempts ? Next::given_up : Next::connect, delay(attempts_)};
    }
    static Answer answer(unsigned status, bool is_stream) noexcept {
        if (status >= 500) return Answer::later;
        return is_stream ? Answer::stream : Answer::refused;
    }

private:
    Milliseconds delay(int attempts) const {
        const auto asked = std::clamp(retry_.value_or(first_delay), min_delay, max_delay);
        return std::min(asked * (1 << std::min(attempts, 6)), max_delay);
    }

    std::string last_id_;
    std::optional<Milliseconds> retry_;
    bool progressed_ = false;  // since the last connection
    int attempts_ = 0;
};

}  // namespace ipybox::detail
