// Python source text from untrusted text: names, literals, docstrings and patterns that cannot
// become code. Every function takes UTF-8, tolerates bytes that are not, and never throws for them.
#pragma once

#include <algorithm>
#include <array>
#include <boost/json/value.hpp>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/detail/utf8.hpp>
#include <iterator>
#include <string>
#include <string_view>

namespace ipybox::detail {

inline bool is_ascii_digit(char32_t c) { return c >= '0' && c <= '9'; }
inline bool is_ascii_letter(char32_t c) { return (c | 32) >= 'a' && (c | 32) <= 'z' && c < 128; }
inline bool is_word(char32_t c) { return is_ascii_letter(c) || is_ascii_digit(c) || c == '_'; }

// Takes the first code point off `text`; a malformed byte reads as U+FFFD. Surrogates pass: JSON
// allows them alone, and Python strings can hold them.
inline char32_t take_code_point(std::string_view& text) {
    const auto point = decode_utf8(text, Surrogates::taken);
    text.remove_prefix(point.size);
    return point.valid ? point.value : 0xFFFD;
}

// Characters that a reader cannot see, or that reorder what he sees: controls, bidirectional
// marks, zero-width and tag characters, private use.
inline bool is_invisible(char32_t c) {
    struct Range {
        char32_t first, last;
    };
    static constexpr std::array ranges{
        Range{0x00, 0x1F},       Range{0x7F, 0x9F},       Range{0xAD, 0xAD},
        Range{0x34F, 0x34F},     Range{0x61C, 0x61C},     Range{0x115F, 0x1160},
        Range{0x17B4, 0x17B5},   Range{0x180B, 0x180F},   Range{0x200B, 0x200F},
        Range{0x2028, 0x202E},   Range{0x2060, 0x206F},   Range{0x3164, 0x3164},
        Range{0xD800, 0xF8FF},   Range{0xFEFF, 0xFEFF},   Range{0xFFA0, 0xFFA0},
        Range{0xFFF0, 0xFFFB},   Range{0xFFFE, 0xFFFF},   Range{0x1BCA0, 0x1BCA3},
        Range{0x1D173, 0x1D17A}, Range{0xE0000, 0x10FFFF}};
    const auto* range = std::lower_bound(ranges.begin(), ranges.end(), c,
                                         [](const Range& r, char32_t x) { return r.last < x; });
    return range != ranges.end() && c >= range->first;
}

inline void append_escape(std::string& out, char32_t c) {
    const int digits = c < 0x100 ? 2 : c < 0x10000 ? 4 : 8;
    out += digits == 2 ? "\\x" : digits == 4 ? "\\u" : "\\U";
    for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4)
        out += "0123456789abcdef"[c >> shift & 15];
}

// A one-line string literal; raw where that saves doubled backslashes.
inline std::string python_string(std::string_view text) {
    bool raw = false, plain = true;
    for (auto rest = text; !rest.empty();) {
        const auto c = take_code_point(rest);
        raw = raw || c == '\\';
        plain = plain && c != '"' && c != 0xFFFD && !is_invisible(c);
    }
    // (Pyright reads \N even in a raw string.)
    if (raw && plain && text.back() != '\\' && text.find("\\N") == std::string_view::npos)
        return "r\"" + std::string(text) + '"';
    std::string out = "\"";
    for (auto rest = text; !rest.empty();) {
        const auto c = take_code_point(rest);
        if (c == '\\' || c == '"') {
            out += '\\';
            out += static_cast<char>(c);
        } else if (c == '\n') {
            out += "\\n";
        } else if (is_invisible(c)) {
            append_escape(out, c);
        } else {
            append_utf8(out, c);
        }
    }
    return out + '"';
}

inline std::string python_number(double number) {
    if (std::isnan(number)) return "None";
    if (std::isinf(number)) return number > 0 ? "1e999" : "-1e999";
    std::array<char, 32> text{};
    const auto end = std::to_chars(text.data(), text.data() + text.size(), number).ptr;
    std::string out(text.data(), end);
    if (out.find_first_of(".e") == std::string::npos) out += ".0";
    return out;
}

// A literal that evaluates to `value`. Recursive: the caller bounds the nesting.
inline std::string python_literal(const boost::json::value& value) {
    using boost::json::kind;
    switch (value.kind()) {
        case kind::null:
            return "None";
        case kind::bool_:
            return value.get_bool() ? "True" : "False";
        case kind::int64:
            return std::to_string(value.get_int64());
        case kind::uint64:
            return std::to_string(value.get_uint64());
        case kind::double_:
            return python_number(value.get_double());
        case kind::string:
            if (const auto number = exact_text(value); !number.empty()) return std::string(number);
            return python_string(value.get_string());
        case kind::array: {
            std::string out = "[";
            for (const auto& item : value.get_array()) {
                if (out.size() > 1) out += ", ";
                out += python_literal(item);
            }
            return out + ']';
        }
        case kind::object:
            break;
    }
    std::string out = "{";
    for (const auto& [key, item] : value.get_object()) {
        if (out.size() > 1) out += ", ";
        out += python_string(key) + ": " + python_literal(item);
    }
    return out + '}';
}

// Text as a reader should see it: line breaks normalised, invisible characters gone, trailing
// blanks cut, and no longer than `limit` bytes.
inline std::string visible_text(std::string_view text, std::size_t limit) {
    std::string out;
    bool after_return = false;
    while (!text.empty()) {
        const auto c = take_code_point(text);
        const bool line_break = c == '\n' || c == '\r' || c == 0x0B || c == 0x0C || c == 0x85 ||
                                c == 0x2028 || c == 0x2029;
        if (line_break && !(c == '\n' && after_return)) {
            out.erase(out.find_last_not_of(" \t") + 1);
            if (!out.empty()) out += '\n';
        } else if (c == '\t' || !is_invisible(c)) {
            append_utf8(out, c);
        }
        after_return = c == '\r';
        if (out.size() > limit) {
            out += " […]";
            break;
        }
    }
    out.erase(out.find_last_not_of(" \t\n") + 1);
    out.erase(0, out.find_first_not_of(' '));
    return out;
}

// The width at which what is generated is folded, where it can be.
inline constexpr std::size_t python_width = 120;

// Lines that are longer, folded at blanks with room for quotes and indentation. Rows of tables stay
// whole.
inline std::string folded_text(std::string_view text) {
    static constexpr std::size_t width = python_width - 8;
    std::string out;
    while (!text.empty()) {
        const auto end = std::min(text.find('\n'), text.size());
        const auto line = text.substr(0, end);
        const bool table = line.starts_with('|');
        auto start = line.find_first_not_of(' ');  // indentation is not a place to fold at
        for (auto rest = line; !rest.empty();) {
            auto cut = rest.size() <= width || table ? rest.npos : rest.rfind(' ', width);
            if (cut != rest.npos && cut <= start) cut = rest.find(' ', width);
            out += rest.substr(0, cut);
            if (cut == rest.npos) break;
            out += '\n';
            rest.remove_prefix(cut + 1);
            start = 0;
        }
        if (end == text.size()) break;
        out += '\n';
        text.remove_prefix(end + 1);
    }
    return out;
}

// One line of code as several, folded behind commas within brackets if it is too long.
inline std::string folded_code(std::string_view line, std::size_t indent) {
    std::string out;
    std::size_t begun = 0, fold = 0;  // of the line that is written, and behind its last comma
    int depth = 0;
    for (std::size_t i = 0; i < line.size(); ++i) {
        out += line[i];
        if (line[i] == '"') {
            for (++i; i < line.size(); ++i) {
                out += line[i];
                if (line[i] == '\\' && i + 1 < line.size())
                    out += line[++i];
                else if (line[i] == '"')
                    break;
            }
        }
        depth += line[i] == '[' || line[i] == '(' || line[i] == '{';
        depth -= line[i] == ']' || line[i] == ')' || line[i] == '}';
        if (out.size() - begun > python_width && fold > begun) {
            out.replace(fold, 1, '\n' + std::string(indent, ' '));
            begun = fold + 1;
        }
        if (depth > 0 && line[i] == ',' && i + 1 < line.size() && line[i + 1] == ' ')
            fold = out.size();
    }
    return out;
}

enum class LongLines { fold, keep };

// A docstring whose further lines are indented by `indent` spaces.
inline std::string python_docstring(std::string_view text, std::size_t indent, std::size_t limit,
                                    LongLines long_lines = LongLines::fold) {
    auto visible = visible_text(text, limit);
    if (long_lines == LongLines::fold) visible = folded_text(visible);
    const bool one_line = visible.find('\n') == std::string::npos;
    const std::string margin(indent, ' ');
    std::string out = "\"\"\"";
    for (std::size_t i = 0; i < visible.size(); ++i) {
        const char c = visible[i];
        // A bare quote is never followed by another one, so no three of them ever meet.
        const bool second_quote = i > 0 && visible[i - 1] == '"';
        if (c == '\\' || (c == '"' && (second_quote || i + 1 == visible.size()))) out += '\\';
        out += c;
        if (c == '\n' && visible[i + 1] != '\n') out += margin;
    }
    if (!one_line) out += '\n' + margin;
    return out + "\"\"\"";
}

inline bool is_python_keyword(std::string_view name) {
    static constexpr std::array<std::string_view, 35> keywords{
        "False", "None",     "True",  "and",    "as",   "assert", "async",  "await",    "break",
        "class", "continue", "def",   "del",    "elif", "else",   "except", "finally",  "for",
        "from",  "global",   "if",    "import", "in",   "is",     "lambda", "nonlocal", "not",
        "or",    "pass",     "raise", "return", "try",  "while",  "with",   "yield"};
    return std::binary_search(keywords.begin(), keywords.end(), name);
}

inline bool is_python_identifier(std::string_view name) {
    return !name.empty() && !is_ascii_digit(static_cast<unsigned char>(name[0])) &&
           std::all_of(name.begin(), name.end(),
                       [](char c) { return is_word(static_cast<unsigned char>(c)); });
}

// The wire name as an identifier that is public (no leading underscore) but maybe a keyword.
inline std::string python_field_name(std::string_view wire_name) {
    std::string out;
    while (!wire_name.empty() && out.size() < 100) {
        const auto c = take_code_point(wire_name);
        if (is_word(c)) {
            out += static_cast<char>(c);
        } else if (!out.empty() && out.back() != '_') {
            out += '_';
        }
    }
    out.erase(0, out.find_first_not_of('_'));
    if (out.empty()) return "field";
    return is_ascii_digit(static_cast<unsigned char>(out[0])) ? "p_" + out : out;
}

// "user-id list" becomes "UserIdList"; `fallback` when nothing is left.
inline std::string python_class_name(std::string_view text, std::string_view fallback) {
    std::string out;
    bool start = true;
    while (!text.empty() && out.size() < 60) {
        const auto c = take_code_point(text);
        const bool keep = is_ascii_letter(c) || is_ascii_digit(c);
        if (keep && start && c >= 'a' && c <= 'z') {
            out += static_cast<char>(c - 32);
        } else if (keep) {
            out += static_cast<char>(c);
        }
        start = !keep;
    }
    if (out.empty()) return std::string(fallback);
    return is_ascii_digit(static_cast<unsigned char>(out[0])) ? "M" + out : out;
}

// An ECMA-262 pattern in the syntax of Python's `re`, to be compiled with re.ASCII. What Python
// cannot compile after that, the runtime does not check.
inline std::string python_pattern(std::string_view ecma) {
    std::string out;
    bool in_class = false;
    std::size_t class_start = 0;
    const auto next = [&] { return ecma.empty() ? '\0' : ecma.front(); };
    const auto until = [&](char close) {  // "{…}" or "<…>" after an escape, without the brackets
        const auto end = ecma.find(close);
        if (end == std::string_view::npos) return std::string_view{};
        const auto name = ecma.substr(1, end - 1);
        ecma.remove_prefix(end + 1);
        return name;
    };
    while (!ecma.empty()) {
        const auto here = ecma;
        const auto c = take_code_point(ecma);
        if (c == '\\' && !ecma.empty()) {
            const auto escaped = take_code_point(ecma);
            if ((escaped == 'p' || escaped == 'P') && next() == '{') {
                // Unicode properties become the nearest class that refuses nothing valid.
                const auto name = until('}');
                const bool letter = !name.empty() && (name[0] == 'L' || name[0] == 'A' ||
                                                      name[0] == 'S' || name[0] == 'I');
                const bool number = !name.empty() && name[0] == 'N';
                const std::string set = letter   ? "A-Za-z\\u00aa-\\U0010ffff"
                                        : number ? "0-9\\u00b2-\\U0010ffff"
                                                 : "\\x00-\\U0010ffff";
                if (escaped == 'p')
                    out += in_class ? set : '[' + set + ']';
                else
                    out += in_class           ? "\\x00-\\U0010ffff"
                           : letter || number ? "[^A-Za-z0-9]"
                                              : "[\\s\\S]";
            } else if (escaped == 'k' && next() == '<') {
                out += "(?P=" + std::string(until('>')) + ')';
            } else if (escaped == 'u' && next() == '{') {
                const auto digits = until('}');
                std::uint32_t code = 0;
                std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
                append_escape(out, std::min<std::uint32_t>(code, 0x10FFFF));
            } else if (escaped == 'c' && is_ascii_letter(static_cast<unsigned char>(next()))) {
                append_escape(out, static_cast<char32_t>(take_code_point(ecma) & 31));
            } else if (escaped == 'z') {
                out += "\\Z";
            } else if (is_ascii_letter(escaped) &&
                       std::string_view("AbBdDfnrsStuvwWxZ").find(static_cast<char>(escaped)) ==
                           std::string_view::npos) {
                out += static_cast<char>(escaped);  // an identity escape, an error in Python
            } else if (escaped == '/' || escaped >= 128) {
                append_utf8(out, escaped);
            } else {
                out += '\\';
                append_utf8(out, escaped);
            }
        } else if (in_class) {
            const bool doubled =
                (c == '-' || c == '&' || c == '~' || c == '|') && next() == static_cast<char>(c);
            if (c == ']') {
                in_class = false;
                if (out.size() == class_start + 1) {  // [] matches nothing
                    out.replace(class_start, 1, "(?!)");
                    continue;
                }
                if (out.compare(class_start, std::string::npos, "[^") == 0) {
                    out.replace(class_start, 2, "[\\s\\S]");
                    continue;
                }
            } else if (c == '[' || doubled) {
                out += '\\';  // sets of sets in a future Python
            }
            append_utf8(out, c);
        } else if (c == '[') {
            in_class = true;
            class_start = out.size();
            out += '[';
            if (next() == '^') {
                out += '^';
                ecma.remove_prefix(1);
            }
        } else if (c == '$') {
            out += "\\Z";  // Python's $ also matches before a final line break
        } else if (c == '(' && here.substr(0, 3) == "(?<" && here.size() > 3 && here[3] != '=' &&
                   here[3] != '!') {
            out += "(?P<";
            ecma.remove_prefix(2);
        } else if (c == '{' && next() == ',') {
            out += "\\{";  // {,3} is text in ECMA, a quantifier in Python
        } else {
            append_utf8(out, c);
        }
    }
    return out;
}

}  // namespace ipybox::detail
