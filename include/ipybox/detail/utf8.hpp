#pragma once
// UTF-8, one code point at a time: decoding, encoding, and where a text may be cut.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace ipybox::detail {

// The largest code point; what is larger is none.
inline constexpr std::uint32_t max_code_point = 0x10FFFF;
// What is written for bytes that are not UTF-8: U+FFFD.
inline constexpr std::string_view replacement_character = "\xEF\xBF\xBD";

// Half of a pair in UTF-16: no character, and not valid in UTF-8.
constexpr bool is_surrogate(std::uint32_t c) noexcept { return c >= 0xD800 && c < 0xE000; }

// A byte that goes on with a code point, instead of beginning one.
constexpr bool is_continuation(char byte) noexcept {
    return (static_cast<unsigned char>(byte) & 0xC0) == 0x80;
}

// Bytes of the code point that begins with `first`, whether the others are there or not; 0 for a
// byte that begins none.
constexpr std::size_t utf8_size(char first) noexcept {
    const auto byte = static_cast<unsigned char>(first);
    if (byte < 0x80) return 1;
    if (byte < 0xC2 || byte > 0xF4) return 0;
    return byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

struct CodePoint {
    std::uint32_t value;  // of a byte that is not UTF-8, that byte
    std::size_t size;     // bytes; 1 for a byte that is not UTF-8
    bool valid;
};

// Surrogates in three bytes: JSON allows them alone, and Python strings can hold them.
enum class Surrogates { refused, taken };

// Decodes the first code point of a non-empty text. Overlong forms and what is cut off are not
// valid.
constexpr CodePoint decode_utf8(std::string_view text,
                                Surrogates surrogates = Surrogates::refused) noexcept {
    const auto byte = [text](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    const CodePoint invalid{byte(0), 1, false};
    const std::size_t size = utf8_size(text[0]);
    if (size == 1) return {byte(0), 1, true};
    if (size == 0 || size > text.size()) return invalid;
    std::uint32_t value = byte(0) & (0xFFU >> (size + 1));
    for (std::size_t i = 1; i < size; ++i) {
        if (!is_continuation(text[i])) return invalid;
        value = value << 6 | (byte(i) & 0x3FU);
    }
    constexpr std::uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    if (value < least[size] || value > max_code_point) return invalid;
    if (is_surrogate(value) && surrogates == Surrogates::refused) return invalid;
    return {value, size, true};
}

// Appends a code point, surrogates as well. c: at most max_code_point.
inline void append_utf8(std::string& out, std::uint32_t c) {
    const auto put = [&out](std::uint32_t byte) { out += static_cast<char>(byte); };
    if (c < 0x80) return put(c);
    if (c < 0x800) {
        put(0xC0 | c >> 6);
    } else {
        if (c < 0x10000) {
            put(0xE0 | c >> 12);
        } else {
            put(0xF0 | c >> 18);
            put(0x80 | (c >> 12 & 0x3F));
        }
        put(0x80 | (c >> 6 & 0x3F));
    }
    put(0x80 | (c & 0x3F));
}

// Whether all of a text is UTF-8.
constexpr bool is_utf8(std::string_view text) noexcept {
    while (!text.empty()) {
        const auto point = decode_utf8(text);
        if (!point.valid) return false;
        text.remove_prefix(point.size);
    }
    return true;
}

// How many bytes at the beginning of a text are ASCII.
inline std::size_t ascii_size(std::string_view text) noexcept {
    std::size_t at = 0;
    // Eight at a time: most of what is printed is nothing else.
    for (std::uint64_t eight = 0; at + sizeof eight <= text.size(); at += sizeof eight) {
        std::memcpy(&eight, text.data() + at, sizeof eight);
        if ((eight & 0x8080808080808080U) != 0) break;
    }
    while (at < text.size() && static_cast<unsigned char>(text[at]) < 0x80) ++at;
    return at;
}

// The number of code points; of what is not UTF-8, of the bytes that do not go on with one.
inline std::size_t count_code_points(std::string_view text) noexcept {
    return static_cast<std::size_t>(
        std::count_if(text.begin(), text.end(), [](char byte) { return !is_continuation(byte); }));
}

// The last place, at most `at`, where a text can be cut without cutting a code point.
constexpr std::size_t utf8_border(std::string_view text, std::size_t at) noexcept {
    if (at >= text.size()) return text.size();
    while (at > 0 && is_continuation(text[at])) --at;
    return at;
}

// Without the first bytes of a code point of which the rest is missing.
constexpr std::string_view whole_characters(std::string_view bytes) noexcept {
    for (std::size_t back = 1; back <= 3 && back <= bytes.size(); ++back) {
        const char byte = bytes[bytes.size() - back];
        if (is_continuation(byte)) continue;
        return utf8_size(byte) > back ? bytes.substr(0, bytes.size() - back) : bytes;
    }
    return bytes;
}

}  // namespace ipybox::detail
