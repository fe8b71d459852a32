#pragma once
// Of Python that is being typed: whether it is whole, and how far the next line is indented. Knows
// as much of the language as that takes; what is wrong counts as whole, for Python to say so.
#include <cstddef>
#include <string>
#include <string_view>

namespace ipybox::app {

// What a text leaves open at its end.
struct OpenCode {
    int brackets = 0;           // more opened than closed
    bool string = false;        // in a string with three quotes
    bool joined = false;        // the last line ends with a backslash
    char last = '\0';           // the last character that is code and no blank; NUL: there is none
    std::size_t line = 0;       // where the last line that is not blank begins
    std::size_t statement = 0;  // where the line begins that it goes on with, or is
};

inline OpenCode open_code(std::string_view text) {
    OpenCode open;
    std::size_t line = 0, statement = 0;
    const auto three = [&](std::size_t at, char quote) {
        return at + 2 < text.size() && text[at + 1] == quote && text[at + 2] == quote;
    };
    char quote = '\0';  // of the string that is open
    for (std::size_t at = 0; at < text.size(); ++at) {
        const char c = text[at];
        open.joined = false;
        if (c == '\n') {
            line = at + 1;
            if (!open.string && open.brackets == 0) statement = line;
            if (!open.string) quote = '\0';
            continue;
        }
        if (c != ' ' && c != '\t') {
            open.line = line;
            open.statement = statement;
        }
        if (c == '\\') {
            open.joined = at + 1 == text.size() || (text[at + 1] == '\n' && at + 2 == text.size());
            if (++at < text.size() && text[at] == '\n') line = at + 1;
        } else if (quote != '\0') {
            if (c == quote && (!open.string || three(at, quote))) {
                at += open.string ? 2 : 0;
                open.string = false;
                quote = '\0';
                open.last = c;
            }
        } else if (c == '\'' || c == '"') {
            quote = c;
            open.string = three(at, c);
            at += open.string ? 2 : 0;
            open.last = c;
        } else if (c == '#') {
            while (at + 1 < text.size() && text[at + 1] != '\n') ++at;
        } else if (c != ' ' && c != '\t' && c != '\r') {
            if (c == '(' || c == '[' || c == '{') ++open.brackets;
            if ((c == ')' || c == ']' || c == '}') && open.brackets > 0) --open.brackets;
            open.last = c;
        }
    }
    return open;
}

inline bool is_blank(std::string_view text) {
    return text.find_first_not_of(" \t\r\n") == text.npos;
}

// Whether the cell can run as it is. A block ends with an empty line.
inline bool is_whole(std::string_view text) {
    const auto start = text.find_first_not_of(" \t\r\n");
    if (start == text.npos) return true;
    const auto last = text.rfind('\n');
    const bool ended = last != text.npos && is_blank(text.substr(last));
    const auto first = text.substr(start);
    if (first.starts_with("%%")) return ended;
    if (first.front() == '!' || first.front() == '%' || first.front() == ':') return true;
    const auto open = open_code(text);
    if (open.brackets > 0 || open.string || open.joined) return false;
    if (ended) return true;
    const char begins = text[open.statement];
    const bool inner = open.statement > start && (begins == ' ' || begins == '\t');
    return open.last != ':' && !inner && begins != '@';
}

// The blanks that a line begins with which follows `text`.
inline std::string indentation_after(std::string_view text) {
    constexpr std::size_t step = 4;
    const auto open = open_code(text);
    if (open.string || is_blank(text)) return {};
    const auto line = text.substr(open.line);
    std::string blanks(line.substr(0, line.find_first_not_of(" \t")));
    if (open.last == ':' || open.last == '(' || open.last == '[' || open.last == '{')
        return blanks + std::string(step, ' ');
    if (open.brackets > 0) return blanks;
    const auto code = line.substr(blanks.size());
    for (const std::string_view word : {"return", "pass", "break", "continue", "raise"}) {
        const bool alone = code.size() == word.size() ||
                           (code.size() > word.size() &&
                            code.find_first_of(" \t(;\n", word.size()) == word.size());
        if (code.starts_with(word) && alone && blanks.ends_with(std::string(step, ' ')))
            blanks.resize(blanks.size() - step);
    }
    return blanks;
}

}  // namespace ipybox::app
