#pragma once
// Makes text of unknown origin safe to show on a terminal or in a question to a person.
#include <cstdint>
#include <cstdio>
#include <ipybox/detail/utf8.hpp>
#include <string>
#include <string_view>

namespace ipybox::detail {

// Characters that move the cursor, reorder or hide text: controls, bidi controls, zero-width,
// line separators, tags, variation and other invisible formats.
inline bool is_deceptive(std::uint32_t c) {
    return c < 0x20 || (c >= 0x7F && c < 0xA0) || c == 0xAD || c == 0x34F || c == 0x61C ||
           c == 0x115F || c == 0x1160 || c == 0x17B4 || c == 0x17B5 ||
           (c >= 0x180B && c <= 0x180F) || (c >= 0x200B && c <= 0x200F) ||
           (c >= 0x2028 && c <= 0x202E) || (c >= 0x2060 && c <= 0x206F) || c == 0x3164 ||
           (c >= 0xFE00 && c <= 0xFE0F) || c == 0xFEFF || c == 0xFFA0 ||
           (c >= 0xFFF0 && c <= 0xFFFB) || (c >= 0x13430 && c <= 0x1345F) ||
           (c >= 0x1BCA0 && c <= 0x1BCA3) || (c >= 0x1D173 && c <= 0x1D17A) ||
           (c >= 0xE0000 && c <= 0xE0FFF);
}

// What is shown in the place of a character: \n, \x1b, \u202e; \xNN of a byte that is not UTF-8.
inline std::string escape_of(const CodePoint& point) {
    if (point.valid && point.value == '\n') return "\\n";
    if (point.valid && point.value == '\r') return "\\r";
    if (point.valid && point.value == '\t') return "\\t";
    char escape[12];
    std::snprintf(escape, sizeof escape,
                  point.value < 0x100     ? "\\x%02x"
                  : point.value < 0x10000 ? "\\u%04x"
                                          : "\\U%08x",
                  static_cast<unsigned>(point.value));
    return escape;
}

// One line of text in which everything deceptive is shown as an escape (\n, \x1b, \u202e).
inline std::string printable(std::string_view text) {
    std::string result;
    while (!text.empty()) {
        const CodePoint point = decode_utf8(text);
        if (!point.valid || is_deceptive(point.value))
            result += escape_of(point);
        else
            result += text.substr(0, point.size);
        text.remove_prefix(point.size);
    }
    return result;
}

// Lets through what a terminal may show of a kernel's output: text, newlines and tabs. Escape
// sequences vanish whole, also when chunks split them; a carriage return becomes a newline.
class TerminalFilter {
public:
    std::string operator()(std::string_view chunk) {
        std::string result;
        while (!chunk.empty()) {
            const CodePoint point = decode_utf8(chunk);
            const std::string_view bytes = chunk.substr(0, point.size);
            chunk.remove_prefix(point.size);
            const std::uint32_t c = point.value;
            if (state_ == State::string) {  // OSC, DCS and the like end with BEL or ESC backslash
                if (c == 0x07 || c == 0x9C) state_ = State::text;
                if (c == 0x1B) state_ = State::escape;
                continue;
            }
            if (state_ == State::escape) {
                state_ = c == '[' ? State::sequence
                         : c == ']' || c == 'P' || c == '_' || c == '^' || c == 'X' ? State::string
                         : c >= 0x20 && c < 0x30                                    ? State::escape
                                                                                    : State::text;
                continue;
            }
            if (state_ == State::sequence) {
                if (c >= 0x40 && c < 0x7F) state_ = State::text;
                if (c != '\n') continue;
                state_ = State::text;
            }
            if (c == 0x1B) {
                state_ = State::escape;
            } else if (point.valid && c == 0x9B) {
                state_ = State::sequence;
            } else if (c == '\n' || c == '\t') {
                result += static_cast<char>(c);
                after_return_ = false;
            } else if (c == '\r') {
                after_return_ = true;
            } else if (point.valid && !is_deceptive(c)) {
                if (after_return_) result += '\n';
                after_return_ = false;
                result += bytes;
            }
        }
        return result;
    }

private:
    enum class State { text, escape, sequence, string };
    State state_ = State::text;
    bool after_return_ = false;
};

}  // namespace ipybox::detail
