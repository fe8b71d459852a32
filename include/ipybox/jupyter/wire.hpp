#pragma once
// Jupyter messaging 5.3/5.4 without sockets: build signed requests, check and read what a kernel
// sent. The kernel knows the key, so a good signature proves only where bytes came from: every
// count, size and depth is bounded. https://jupyter-client.readthedocs.io/en/stable/messaging.html
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>

#include <array>
#include <boost/json/object.hpp>
#include <boost/system/result.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <initializer_list>
#include <ipybox/detail/hex.hpp>
#include <ipybox/detail/json_members.hpp>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/detail/json_text.hpp>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ipybox::jupyter {

namespace json = boost::json;

// What Python runs (-c) to be a kernel gateway: not -m, which imports from the working directory,
// where code may have written.
inline constexpr const char* gateway_start =
    "import sys; sys.path = [p for p in sys.path if p]; from ipybox_kernel.gateway import main; "
    "main(sys.argv[1:])";

struct WireLimits {
    std::size_t frames = 1024;      // of one message, identities and buffers included
    std::size_t bytes = 32U << 20;  // of all its frames together
    std::size_t header =
        64U << 10;            // of each of its two headers, and of a WebSocket message's metadata
    std::size_t depth = 128;  // nesting of each JSON part
    std::size_t decoded = detail::default_max_decoded;  // memory that each JSON part may take
};

enum class WireFault {
    frame_count,
    too_large,
    no_delimiter,
    bad_signature,
    bad_json,
    too_costly,
    bad_header
};

inline const char* describe(WireFault fault) noexcept {
    switch (fault) {
        case WireFault::frame_count:
            return "a message with a wrong number of frames";
        case WireFault::too_large:
            return "a message over the size limit";
        case WireFault::no_delimiter:
            return "a message without its delimiter";
        case WireFault::bad_signature:
            return "a message with a bad signature";
        case WireFault::bad_json:
            return "a message that is not valid or too deeply nested JSON";
        case WireFault::too_costly:
            return "a message that takes too much memory once decoded";
        case WireFault::bad_header:
            return "a message with an incomplete or overlong header";
    }
    return "a malformed message";
}

template <class T>
using WireResult = boost::system::result<T, WireFault>;

// One JSON object from the wire. Python encodes text that is no valid Unicode (a file name, say)
// into bytes that are no valid UTF-8: those become U+FFFD instead of costing the kernel its life.
inline WireResult<json::object> read_object(std::string_view text, std::size_t max_depth,
                                            std::size_t max_decoded = detail::default_max_decoded) {
    auto read = detail::read_json(text, max_depth, max_decoded);
    if (read.problem == detail::costs_too_much) return WireFault::too_costly;
    if (!read.value.is_object()) return WireFault::bad_json;
    detail::round_numbers(read.value);
    return std::move(read.value.get_object());
}

// ISO 8601 in UTC with microseconds, as the specification wants dates.
inline std::string wire_date() {
    using namespace std::chrono;
    const auto now = system_clock::now().time_since_epoch();
    const auto whole = static_cast<std::time_t>(duration_cast<seconds>(now).count());
    const auto micro = static_cast<int>(duration_cast<microseconds>(now).count() % 1'000'000);
    std::tm utc{};
    ::gmtime_r(&whole, &utc);
    std::array<char, 24> date{};
    std::strftime(date.data(), date.size(), "%Y-%m-%dT%H:%M:%S", &utc);
    std::array<char, 12> fraction{};
    std::snprintf(fraction.data(), fraction.size(), ".%06dZ", micro);
    return std::string(date.data()) + fraction.data();
}

// The header of a request.
inline json::object wire_header(std::string_view id, std::string_view type,
                                std::string_view session) {
    json::object header;
    header["msg_id"] = id;
    header["msg_type"] = type;
    header["username"] = "ipybox";
    header["session"] = session;
    header["date"] = wire_date();
    header["version"] = "5.3";
    return header;
}

// What a message says about itself. The views point into the frames it was read from.
struct WireMessage {
    std::string type;
    std::string id;
    std::string parent_id;     // empty: answers no request
    std::string_view content;  // JSON; read_object() parses it when somebody wants to know
    std::size_t buffers = 0;
};

// One client session: its key, its message ids. Not copyable; one per kernel.
class WireSession {
public:
    static constexpr std::string_view delimiter = "<IDS|MSG>";

    // `key` is the connection file's; throws std::runtime_error when OpenSSL cannot serve.
    explicit WireSession(std::string_view key, WireLimits limits = WireLimits())
        : limits_(limits), session_(detail::random_hex(16)) {
        mac_.reset(EVP_MAC_fetch(nullptr, "HMAC", nullptr));
        if (mac_) context_.reset(EVP_MAC_CTX_new(mac_.get()));
        char digest[] = "SHA256";
        const OSSL_PARAM parameters[] = {OSSL_PARAM_construct_utf8_string("digest", digest, 0),
                                         OSSL_PARAM_construct_end()};
        const auto* bytes = reinterpret_cast<const unsigned char*>(key.data());
        if (!context_ || EVP_MAC_init(context_.get(), bytes, key.size(), parameters) != 1)
            throw std::runtime_error("OpenSSL offers no HMAC-SHA256");
    }

    const WireLimits& limits() const noexcept { return limits_; }

    struct Request {
        std::string id;
        std::vector<std::string> frames;
    };

    // The frames of a request, signed. Ids never repeat: ipykernel drops a repeated signature.
    Request request(std::string_view type, const json::object& content) {
        Request request;
        request.id = session_ + "_" + std::to_string(++counter_);
        const auto header = wire_header(request.id, type, session_);
        std::string head = detail::write_json(header), body = detail::write_json(content);
        std::string signature = sign({head, "{}", "{}", body});
        request.frames.reserve(6);
        request.frames.emplace_back(delimiter);
        request.frames.push_back(std::move(signature));
        request.frames.push_back(std::move(head));
        request.frames.emplace_back("{}");
        request.frames.emplace_back("{}");
        request.frames.push_back(std::move(body));
        return request;
    }

    // Checks and reads one received message; trusts nothing in it.
    WireResult<WireMessage> read(std::span<const std::string_view> frames) const {
        if (frames.size() > limits_.frames) return WireFault::frame_count;
        std::size_t total = 0;
        for (const std::string_view frame : frames) {
            if (frame.size() > limits_.bytes - total) return WireFault::too_large;
            total += frame.size();
        }
        std::size_t at = 0;
        while (at < frames.size() && frames[at] != delimiter) ++at;
        if (at == frames.size()) return WireFault::no_delimiter;
        const auto parts = frames.subspan(at + 1);
        if (parts.size() < 5) return WireFault::frame_count;
        const std::string expected = sign({parts[1], parts[2], parts[3], parts[4]});
        if (parts[0].size() != expected.size() ||
            CRYPTO_memcmp(parts[0].data(), expected.data(), expected.size()) != 0)
            return WireFault::bad_signature;

        if (parts[1].size() > limits_.header || parts[2].size() > limits_.header)
            return WireFault::bad_header;
        const auto header = read_object(parts[1], limits_.depth);
        const auto parent = read_object(parts[2], limits_.depth);
        if (!header || !parent) return WireFault::bad_json;
        WireMessage message;
        const auto text = [](const json::object& object, std::string_view key, std::string& out) {
            out = detail::string_of(object, key);
            return !out.empty();
        };
        if (!text(*header, "msg_type", message.type) || !text(*header, "msg_id", message.id))
            return WireFault::bad_header;
        if (!parent->empty() && !text(*parent, "msg_id", message.parent_id))
            return WireFault::bad_header;
        message.content = parts[4];
        message.buffers = parts.size() - 5;
        return message;
    }

    // Lower-case hexadecimal HMAC-SHA256 of the parts in order.
    std::string sign(std::initializer_list<std::string_view> parts) const {
        std::array<unsigned char, 32> digest{};
        std::size_t size = 0;
        // A copy, because early OpenSSL 3.0 cannot restart a keyed context.
        const std::unique_ptr<EVP_MAC_CTX, Free> copy(EVP_MAC_CTX_dup(context_.get()));
        bool good = copy != nullptr;
        for (const std::string_view part : parts) {
            const auto* bytes = reinterpret_cast<const unsigned char*>(part.data());
            good = good && EVP_MAC_update(copy.get(), bytes, part.size()) == 1;
        }
        good = good && EVP_MAC_final(copy.get(), digest.data(), &size, digest.size()) == 1;
        if (!good || size != digest.size()) throw std::runtime_error("HMAC-SHA256 failed");
        return detail::hex(digest);
    }

private:
    struct Free {
        void operator()(EVP_MAC* mac) const noexcept { EVP_MAC_free(mac); }
        void operator()(EVP_MAC_CTX* context) const noexcept { EVP_MAC_CTX_free(context); }
    };
    WireLimits limits_;
    std::string session_;
    std::uint64_t counter_ = 0;
    std::unique_ptr<EVP_MAC, Free> mac_;
    std::unique_ptr<EVP_MAC_CTX, Free> context_;
};

}  // namespace ipybox::jupyter
