#pragma once
// Makes text of unknown origin safe to show on a terminal or in a question to a person.
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace ipybox::detail {

struct CodePoint {
    std::uint32_t value;
    std::size_t size;    // bytes; 1 for a byte that is not UTF-8
    bool valid;
};

// Decodes the first code point of a non-empty text; overlong forms and surrogates are not valid.
inline CodePoint decode_utf8(std::string_view text) {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    const unsigned char first = byte(0);
    if (first < 0x80) return {first, 1, true};
    const std::size_t size = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
    if (first < 0xC2 || first > 0xF4 || text.size() < size) return {first, 1, false};
    std::uint32_t value = first & (0xFFu >> (size + 1));
    for (std::size_t i = 1; i < size; ++i) {
        if ((byte(i) & 0xC0) != 0x80) return {first, 1, false};
        value = (value << 6) | (byte(i) & 0x3Fu);
    }
    static constexpr std::uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    if (value < least[size] || value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) return {first, 1, false};
    return {value, size, true};
}

// Characters that move the cursor, reorder or hide text: controls, bidi controls, zero-width,
// line separators, tags, variation and other invisible formats.
inline bool is_deceptive(std::uint32_t c) {
    return c < 0x20 || (c >= 0x7F && c < 0xA0) || c == 0xAD || c == 0x34F || c == 0x61C || c == 0x115F ||
           c == 0x1160 || c == 0x17B4 || c == 0x17B5 || (c >= 0x180B && c <= 0x180F) ||
           (c >= 0x200B && c <= 0x200F) || (c >= 0x2028 && c <= 0x202E) || (c >= 0x2060 && c <= 0x206F) ||
           c == 0x3164 || c == 0xFEFF || c == 0xFFA0 || (c >= 0xFFF0 && c <= 0xFFFB) ||
           (c >= 0x1D173 && c <= 0x1D17A) || (c >= 0xE0000 && c <= 0xE0FFF);
}

// One line of text in which everything deceptive is shown as an escape (\n, \x1b, \u202e).
inline std::string printable(std::string_view text) {
    std::string result;
    char escape[12];
    while (!text.empty()) {
        const CodePoint point = decode_utf8(text);
        if (!point.valid) {
            std::snprintf(escape, sizeof escape, "\\x%02x", static_cast<unsigned>(point.value));
            result += escape;
        } else if (point.value == '\n') {
            result += "\\n";
        } else if (point.value == '\r') {
            result += "\\r";
        } else if (point.value == '\t') {
            result += "\\t";
        } else if (is_deceptive(point.value)) {
            std::snprintf(escape, sizeof escape, point.value < 0x100 ? "\\x%02x" : point.value < 0x10000 ? "\\u%04x" : "\\U%08x",
                          static_cast<unsigned>(point.value));
            result += escape;
        } else {
            result += text.substr(0, point.size);
        }
        text.remove_prefix(point.size);
    }
    return result;
}

// A JSON value as a Python literal on one printable line, at most about `limit` bytes.
inline void append_python(std::string& out, const boost::json::value& value, std::size_t limit, int depth = 0) {
    if (out.size() > limit || depth > 32) {
        if (!out.ends_with("…")) out += "…";
        return;
    }
    if (const auto* text = value.if_string()) {
        const std::string_view view = *text;
        const bool cut = view.size() > limit;
        std::string quoted;
        for (const char c : view.substr(0, limit)) {
            if (c == '\\' || c == '\'') quoted += '\\';
            quoted += c;
        }
        // A cut may split a character: drop its first bytes.
        while (cut && !quoted.empty() && (static_cast<unsigned char>(quoted.back()) & 0x80)) quoted.pop_back();
        out += '\'' + printable(quoted) + (cut ? "…'" : "'");
    } else if (const auto* list = value.if_array()) {
        out += '[';
        for (std::size_t i = 0; i < list->size() && out.size() <= limit; ++i) {
            if (i > 0) out += ", ";
            append_python(out, (*list)[i], limit, depth + 1);
        }
        out += ']';
    } else if (const auto* object = value.if_object()) {
        out += '{';
        bool first = true;
        for (const auto& entry : *object) {
            if (!first) out += ", ";
            first = false;
            append_python(out, boost::json::value(entry.key()), limit, depth + 1);
            out += ": ";
            append_python(out, entry.value(), limit, depth + 1);
            if (out.size() > limit) break;
        }
        out += '}';
    } else if (value.is_null()) {
        out += "None";
    } else if (value.is_bool()) {
        out += value.get_bool() ? "True" : "False";
    } else if (const auto* real = value.if_double()) {
        char digits[32];
        const auto end = std::to_chars(digits, digits + sizeof digits, *real).ptr;
        const std::string_view shortest(digits, static_cast<std::size_t>(end - digits));
        out += shortest;
        if (shortest.find_first_not_of("-0123456789") == shortest.npos) out += ".0";
    } else {
        out += boost::json::serialize(value);
    }
}

// A call as a person reads it: server.tool(key='value', …). Server and tool are escaped too.
inline std::string call_text(std::string_view server, std::string_view tool, const boost::json::object& arguments,
                             std::size_t limit = 4000) {
    std::string text = printable(server) + "." + printable(tool) + "(";
    bool first = true;
    for (const auto& entry : arguments) {
        if (!first) text += ", ";
        first = false;
        text += printable(entry.key()) + "=";
        append_python(text, entry.value(), limit);
        if (text.size() > limit) break;
    }
    return text + ")";
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
                         : c >= 0x20 && c < 0x30 ? State::escape : State::text;
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
