#pragma once
// JSON text of a peer that is not quite JSON: what can be repaired, and whom the rest was for.
#include <boost/json/error.hpp>
#include <boost/json/value.hpp>
#include <boost/system/errc.hpp>
#include <boost/system/error_code.hpp>
#include <cstddef>
#include <cstdint>
#include <ipybox/detail/json_memory.hpp>
#include <ipybox/detail/utf8.hpp>
#include <string>
#include <string_view>
#include <utility>

namespace ipybox::detail {

namespace json = boost::json;

// `text` with every byte that is not part of well-formed UTF-8 replaced by U+FFFD, and every half
// of a surrogate pair.
inline std::string repair_utf8(std::string_view text) {
    std::string out;
    out.reserve(text.size() + 16);
    for (;;) {
        const auto plain = ascii_size(text);
        out.append(text, 0, plain);
        text.remove_prefix(plain);
        if (text.empty()) return out;
        // Half of a surrogate pair is one character to who wrote it.
        const auto point = decode_utf8(text, Surrogates::taken);
        if (point.valid && !is_surrogate(point.value))
            out.append(text, 0, point.size);
        else
            out += replacement_character;
        text.remove_prefix(point.size);
    }
}

// Half a surrogate pair, as `\ud83d` in JSON, becomes U+FFFD: what a JavaScript slice() through an
// emoji leaves.
inline void repair_surrogates(std::string& text) noexcept {
    // What `\uXXXX` at this place says; beyond all code units if there is none.
    const auto unit = [&text](std::size_t at) -> std::uint32_t {
        constexpr std::uint32_t none = 0x10000;
        if (at + 6 > text.size() || text[at] != '\\' || text[at + 1] != 'u') return none;
        std::uint32_t value = 0;
        for (std::size_t i = at + 2; i < at + 6; ++i) {
            const char digit = text[i];
            const int worth = digit >= '0' && digit <= '9'   ? digit - '0'
                              : digit >= 'a' && digit <= 'f' ? digit - 'a' + 10
                              : digit >= 'A' && digit <= 'F' ? digit - 'A' + 10
                                                             : -1;
            if (worth < 0) return none;
            value = value * 16 + static_cast<std::uint32_t>(worth);
        }
        return value;
    };
    const auto leads = [](std::uint32_t value) { return value >= 0xD800 && value < 0xDC00; };
    const auto trails = [](std::uint32_t value) { return value >= 0xDC00 && value < 0xE000; };
    for (std::size_t at = text.find('\\'); at < text.size(); at = text.find('\\', at)) {
        const auto value = unit(at);
        if (leads(value) && trails(unit(at + 6))) {
            at += 12;
            continue;
        }
        if (leads(value) || trails(value)) text.replace(at + 2, 4, "fffd");
        at += 2;
    }
}

// Finds in a JSON-RPC message what its sender must be answered by, be the rest too long or no JSON
// at all.
class EnvelopeScanner {
public:
    void feed(std::string_view text) {
        for (const char c : text) take(c);
    }

    // Its id, if that is an integer or a short string; else null.
    json::value id() const {
        boost::system::error_code error;
        const json::value value = parse_exact(id_, error);
        const bool usable = !error && (value.is_int64() || value.is_uint64() || is_text(value));
        return usable ? value : json::value();
    }
    // Whether it has a method: a request or a notification then, no answer.
    bool asks() const noexcept { return asks_; }
    // Whether a number is none: NaN or an infinity, as Python's json writes them.
    bool not_a_number() const noexcept { return not_a_number_; }

private:
    static constexpr std::size_t longest = 1024;

    void take(char c) {
        if (in_string_) {
            keep(c);
            if (escaped_) {
                escaped_ = false;
            } else if (c == '\\') {
                escaped_ = true;
            } else if (c == '"') {
                in_string_ = false;
            }
            return;
        }
        switch (c) {
            case '"':
                in_string_ = true;
                if (depth_ == 1 && !in_value_) text_.clear();
                keep(c);
                break;
            case '{':
            case '[':
                keep(c);
                if (++depth_ == 1) object_ = c == '{';
                break;
            case ':':
                if (depth_ != 1 || in_value_) break;
                key_ = std::exchange(text_, {});
                in_value_ = true;
                break;
            case ',':
                if (depth_ == 1) end_value();
                break;
            case '}':
            case ']':
                if (depth_ == 1) end_value();
                if (depth_ > 0) --depth_;
                break;
            case ' ':
            case '\t':
            case '\r':
            case '\n':
                break;
            default:
                // The second letters of NaN and of Infinity.
                not_a_number_ =
                    not_a_number_ || (last_ == 'N' && c == 'a') || (last_ == 'I' && c == 'n');
                keep(c);
        }
        last_ = c;
    }
    void keep(char c) {
        if (depth_ == 1 && text_.size() <= longest) text_ += c;
    }
    void end_value() {
        if (object_ && in_value_ && key_ == "\"id\"")
            id_ = text_.size() <= longest ? text_ : std::string();
        if (object_ && in_value_ && key_ == "\"method\"") asks_ = true;
        in_value_ = false;
        text_.clear();
    }

    std::string id_, key_, text_;
    std::size_t depth_ = 0;
    char last_ = '\0';  // outside strings
    bool object_ = false, in_value_ = false, in_string_ = false, escaped_ = false;
    bool asks_ = false, not_a_number_ = false;
};

// What a person is told, once, of a peer whose text was repaired; its name comes before.
inline constexpr std::string_view repaired_text =
    " sent text that is no Unicode (half of a surrogate pair, say); such characters become U+FFFD";

// A text of a peer, read.
struct ReadJson {
    json::value value;    // null when there is a problem
    std::string problem;  // why it cannot be taken, to follow "a message that …"; empty when it can
    bool repaired = false;  // text that is no Unicode became U+FFFD
    json::value id;         // what to answer by when there is a problem, as far as it can be told
    bool asks = false;      // then: it is a request or a notification, no answer
};

// parse_exact() for a message of a peer. depth: levels at most. memory: bytes it may take, see
// decoded_size(). Does not throw for what is in the text.
inline ReadJson read_json(std::string_view text, std::size_t depth, std::size_t memory) {
    ReadJson read;
    boost::system::error_code error;
    const auto too_large = [&error] { return error == boost::system::errc::not_enough_memory; };
    read.value = parse_within(text, depth, memory, error);
    if (!error) return read;
    if (!too_large() && text.size() < memory / 4) {
        // Bytes become three at most.
        auto repaired = repair_utf8(text);
        repair_surrogates(repaired);
        if (repaired != text) {
            error.clear();
            read.value = parse_within(repaired, depth, memory - repaired.size(), error);
            read.repaired = !error;
            if (!error) return read;
        }
    }
    EnvelopeScanner scanner;
    scanner.feed(text);
    read.id = scanner.id();
    read.asks = scanner.asks();
    if (too_large()) {
        read.problem = costs_too_much;
    } else if (error == json::error::exponent_overflow) {
        read.problem =
            "holds a number whose exponent has too many digits; no number needs more than 9";
    } else if (scanner.not_a_number()) {
        read.problem =
            "holds NaN or an infinity, which JSON has no number for; send null or a string instead";
    } else {
        read.problem = "is no JSON, or nested more than " + std::to_string(depth) +
                       " deep: " + error.message();
    }
    return read;
}

}  // namespace ipybox::detail
