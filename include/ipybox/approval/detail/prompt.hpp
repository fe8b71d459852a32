#pragma once
// How a question looks on a terminal: what the server says of its tool, and the time left.
#include <algorithm>
#include <boost/json/object.hpp>
#include <ipybox/detail/terminal_color.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace ipybox::detail {

// A tool's hints in words, as far as its server states them: "read-only, not open-world". Nothing
// of the server's own text is in it.
inline std::string hints_text(const boost::json::object& annotations) {
    constexpr std::pair<std::string_view, std::string_view> hints[] = {
        {"readOnlyHint", "read-only"},
        {"destructiveHint", "destructive"},
        {"openWorldHint", "open-world"}};
    std::string text;
    for (const auto& [name, word] : hints) {
        const auto* value = annotations.if_contains(name);
        if (!value || !value->is_bool()) continue;
        text += text.empty() ? "" : ", ";
        text += value->get_bool() ? "" : "not ";
        text += word;
    }
    return text;
}

// text: of a Question, so that all in it that is not ipybox's own is quoted and escaped. Colours
// are put around it, and nothing is left out: its first line, the names of arguments, and the marks
// of what is folded, which are no part of any value.
inline std::string colored_question(std::string_view text) {
    constexpr std::string_view folded = "[folded: ";
    const auto first = std::min(text.find('\n'), text.size());
    std::string result = in_color(Color::bold, text.substr(0, first));
    bool named = false;  // the line's argument
    for (std::size_t at = first; at < text.size();) {
        std::size_t end = at + 1;
        std::optional<Color> color;
        if (text[at] == '\n') {
            named = false;
        } else if (text[at] == '\'') {  // to the quote that no backslash precedes
            while (end < text.size() && text[end] != '\'') end += text[end] == '\\' ? 2 : 1;
            end = std::min(end + 1, text.size());
            if (!std::exchange(named, true)) color = Color::cyan;
        } else if (text.substr(at).starts_with(folded)) {
            end = std::min(text.find(']', at), text.size() - 1) + 1;
            color = Color::yellow;
        }
        const auto part = text.substr(at, end - at);
        result += color ? in_color(*color, part) : std::string(part);
        at = end;
    }
    return result;
}

// The line below the arguments; empty without hints. What may destroy something stands out.
inline std::string hints_line(const boost::json::object& annotations, bool color) {
    const std::string hints = hints_text(annotations);
    if (hints.empty()) return {};
    const auto* destructive = annotations.if_contains("destructiveHint");
    const bool alarming = destructive && destructive->is_bool() && destructive->get_bool();
    return "  the server says of itself: " +
           (color ? in_color(alarming ? Color::red : Color::yellow, hints) : hints) + '\n';
}

// What is printed while an answer is waited for, `left` seconds before silence counts as no: at the
// right end of the prompt's line, which is not left, when the terminal can do that and has room, or
// as a line of its own. columns: of the terminal, 0 when they are not known.
inline std::string countdown_text(long left, bool movable, std::size_t columns,
                                  std::size_t prompt_size) {
    std::string text = "no in " + std::to_string(left) + " s";
    constexpr std::size_t width = 16, room_to_type = 16;
    if (!movable || columns < prompt_size + room_to_type + width || text.size() > width)
        return "\n[without an answer: " + text + "] ";
    text.insert(0, width - text.size(), ' ');
    // Saves the place of the cursor and puts it back.
    return "\0337\033[" + std::to_string(columns - width) + "G" + text + "\0338";
}

// Whether countdown_text() writes over what it wrote before.
inline bool counts_in_place(const std::string& countdown) { return countdown.front() == '\033'; }

}  // namespace ipybox::detail
