#pragma once
// A call as the person who decides about it sees it: whole, or folded in a way that hides nothing
// they would want to know, and with nothing in it that could deceive.
#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <cctype>
#include <ipybox/detail/hex.hpp>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/detail/terminal_text.hpp>
#include <ipybox/detail/utf8.hpp>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ipybox::approval {

inline constexpr std::size_t question_bytes = 8000;         // of one question: some screens
inline constexpr std::size_t longest_unfolded = 500;        // bytes of a value
inline constexpr std::size_t longest_whole_path = 4096;     // bytes: Linux's PATH_MAX
inline constexpr std::size_t largest_arguments = 4u << 20;  // bytes that can be asked about
inline constexpr int deepest_arguments = 128;
inline constexpr std::size_t longest_blank = 8;  // blanks that are shown as they are

// Looks like a space, or like nothing, and is none: shown as an escape.
inline bool is_odd_blank(std::uint32_t c) {
    return c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x202F || c == 0x205F ||
           c == 0x2800 || c == 0x3000;
}
// Has no look that is the same everywhere: for private use, or no character at all.
inline bool is_unassigned(std::uint32_t c) {
    return (c >= 0xE000 && c <= 0xF8FF) || (c >= 0xF0000) || (c >= 0xFDD0 && c <= 0xFDEF) ||
           (c & 0xFFFE) == 0xFFFE;
}
// Controls of single scripts, which may be shown as nothing.
inline bool is_format(std::uint32_t c) {
    return (c >= 0x600 && c <= 0x605) || c == 0x6DD || c == 0x70F || c == 0x890 || c == 0x891 ||
           c == 0x8E2 || c == 0x110BD || c == 0x110CD;
}
// Is drawn over its neighbours.
inline bool is_combining(std::uint32_t c) {
    return (c >= 0x300 && c <= 0x36F) || (c >= 0x483 && c <= 0x489) ||
           (c >= 0x1AB0 && c <= 0x1AFF) || (c >= 0x1DC0 && c <= 0x1DFF) ||
           (c >= 0x20D0 && c <= 0x20FF) || (c >= 0xFE20 && c <= 0xFE2F);
}

// A quoted text on one line: nothing in it ends the quotes, moves, hides or reorders anything, and
// many blanks are a number: 'a\[3600 blanks]b'.
inline std::string quoted(std::string_view text) {
    std::string result = "'";
    std::size_t marks = 2;  // combining characters in a row; none may join the quote
    while (!text.empty()) {
        const detail::CodePoint point = detail::decode_utf8(text);
        const std::uint32_t c = point.value;
        marks = point.valid && is_combining(c) ? marks + 1 : 0;
        if (c == ' ') {
            const auto size = std::min(text.find_first_not_of(' '), text.size());
            result += size > longest_blank ? "\\[" + std::to_string(size) + " blanks]"
                                           : std::string(size, ' ');
            text.remove_prefix(size);
            continue;
        }
        if (c == '\\' || c == '\'') {
            result += '\\';
            result += static_cast<char>(c);
        } else if (!point.valid || detail::is_deceptive(c) || is_odd_blank(c) || is_unassigned(c) ||
                   is_format(c) || marks > 2) {
            result += detail::escape_of(point);
        } else {
            result += text.substr(0, point.size);
        }
        text.remove_prefix(point.size);
    }
    return result + '\'';
}

// A name as it is when nothing in it can be taken for anything else, otherwise quoted.
inline std::string plain_name(std::string_view name) {
    const auto plain = [](char c) {
        return std::isalnum(static_cast<unsigned char>(c)) ||
               std::string_view("_-./:").find(c) != std::string_view::npos;
    };
    return !name.empty() && name.size() <= 128 && std::all_of(name.begin(), name.end(), plain)
               ? std::string(name)
               : quoted(name);
}

// Which values are shown whole however long they are, by what their argument is called.
enum class Weight { ordinary, place, command };

inline Weight weight_of(std::string_view name) {
    static constexpr std::string_view places[] = {
        "path",     "paths",  "file",        "files",       "filename", "filenames", "filepath",
        "dir",      "dirs",   "directory",   "directories", "folder",   "folders",   "uri",
        "uris",     "url",    "urls",        "link",        "href",     "cwd",       "root",
        "location", "source", "destination", "target"};
    static constexpr std::string_view commands[] = {"command", "commands", "cmd",        "cmds",
                                                    "shell",   "script",   "sql",        "query",
                                                    "argv",    "args",     "environment"};
    Weight weight = Weight::ordinary;
    std::string word;
    for (std::size_t i = 0; i <= name.size(); ++i) {
        const auto byte = static_cast<unsigned char>(i < name.size() ? name[i] : ' ');
        const bool begins =
            std::isupper(byte) && i > 0 && !std::isupper(static_cast<unsigned char>(name[i - 1]));
        if (begins || !std::isalnum(byte)) {
            if (std::find(std::begin(commands), std::end(commands), word) != std::end(commands))
                return Weight::command;
            if (std::find(std::begin(places), std::end(places), word) != std::end(places))
                weight = Weight::place;
            word.clear();
        }
        if (std::isalnum(byte) && word.size() < 16) word += static_cast<char>(std::tolower(byte));
    }
    return weight;
}

// Whether a text looks like a path or a URL.
inline bool is_place(std::string_view text) {
    if (text.starts_with('/') || text.starts_with('~') || text.starts_with("./") ||
        text.starts_with("../"))
        return true;
    const auto colon = text.substr(0, 32).find("://");
    return colon != text.npos && colon > 0;
}

// The arguments of a call as text. Use it once.
class ArgumentsText {
public:
    // layout: one argument a line, or all on one; whole: nothing is folded, and breaks of lines in
    // values are breaks, for a file.
    enum class Layout { lines, line, whole };
    explicit ArgumentsText(Layout layout, std::size_t limit) : layout_(layout), room_(limit) {}

    std::string operator()(const boost::json::object& arguments) {
        auto entries = entries_of(arguments, Weight::ordinary, 0);
        std::string text;
        for (const auto& entry : entries) {
            if (layout_ == Layout::line)
                text += (text.empty() ? "" : ", ") + entry;
            else
                text += "  " + entry + '\n';
        }
        return text;
    }
    // One value alone.
    std::string operator()(const boost::json::value& value) {
        return value_text(value, Weight::ordinary, 1);
    }
    // Something is not shown whole.
    bool folded() const noexcept { return folded_; }
    // What must be shown whole has no room, or is nested too deeply: the text is good for nothing.
    bool too_much() const noexcept { return too_much_; }

private:
    // Asked before a text is escaped, which makes it longer: what is sent costs no more than is
    // shown.
    bool has_room(std::size_t size) {
        too_much_ = too_much_ || size > room_;
        return !too_much_;
    }
    std::string take(std::string text) {
        if (text.size() > room_) too_much_ = true;
        room_ -= std::min(room_, text.size());
        return too_much_ ? std::string() : std::move(text);
    }

    // Those with something folded come last.
    std::vector<std::string> entries_of(const boost::json::object& object, Weight weight,
                                        int depth) {
        std::vector<std::string> entries, later;
        for (const auto& entry : object) {
            if (too_much_) break;
            const std::string_view key = entry.key();
            const bool before = std::exchange(folded_, false);
            const bool bare = depth == 0 && layout_ == Layout::line && is_identifier(key);
            if (!has_room(key.size())) break;
            std::string text = take(bare ? std::string(key) : quoted(key));
            text += take(depth == 0 && layout_ == Layout::line ? "=" : ": ");
            const Weight own = weight_of(key);
            text += value_text(entry.value(), own == Weight::ordinary ? weight : own, depth + 1);
            (folded_ ? later : entries).push_back(std::move(text));
            folded_ = folded_ || before;
        }
        entries.insert(entries.end(), std::make_move_iterator(later.begin()),
                       std::make_move_iterator(later.end()));
        return entries;
    }

    std::string value_text(const boost::json::value& value, Weight weight, int depth) {
        if (too_much_ || depth > deepest_arguments) {
            too_much_ = true;
            return {};
        }
        if (detail::is_number(value)) {
            // Before a copy is made of digits that there is no room for.
            const auto exact = detail::exact_text(value);
            return has_room(exact.size())
                       ? take(exact.empty() ? detail::number_text(value) : std::string(exact))
                       : std::string();
        }
        if (const auto* text = value.if_string()) return string_text(*text, weight);
        if (const auto* list = value.if_array()) {
            std::string result = take("[");
            for (std::size_t i = 0; i < list->size() && !too_much_; ++i)
                result += (i > 0 ? take(", ") : "") + value_text((*list)[i], weight, depth + 1);
            return result + take("]");
        }
        if (const auto* object = value.if_object()) {
            // What the names in it say outweighs the name it has.
            const auto entries = entries_of(*object, Weight::ordinary, depth);
            std::string result = take("{");
            for (std::size_t i = 0; i < entries.size() && !too_much_; ++i)
                result += (i > 0 ? take(", ") : "") + entries[i];
            return result + take("}");
        }
        return take(value.is_null() ? "None" : value.get_bool() ? "True" : "False");
    }

    std::string string_text(std::string_view text, Weight weight) {
        if (layout_ == Layout::whole)
            return has_room(text.size()) ? take(whole_text(text)) : std::string();
        const bool one_line = text.find_first_of("\r\n") == text.npos;
        const bool place = one_line && text.size() <= longest_whole_path &&
                           (weight == Weight::place || is_place(text));
        if (text.size() <= longest_unfolded || place || weight == Weight::command)
            return has_room(text.size()) ? take(quoted(text)) : std::string();
        folded_ = true;
        return take(folded_text(text));
    }

    // Each line is a literal of its own.
    static std::string whole_text(std::string_view text) {
        std::string result;
        while (result.empty() || !text.empty()) {
            const auto size = std::min(text.find('\n'), text.size() - 1) + 1;
            const auto line = text.substr(0, text.empty() ? 0 : size);
            result += (result.empty() ? "" : "\n    ") + quoted(line);
            text.remove_prefix(line.size());
        }
        return result;
    }

    static std::string folded_text(std::string_view text) {
        constexpr std::size_t shown = 100;  // bytes of the first and of the last line
        std::size_t characters = 0, first = 0;
        const auto body = text.substr(0, text.find_last_not_of("\r\n") + 1);
        const auto first_end = std::min({body.find_first_of("\r\n"), body.size(), shown});
        const auto last_break = body.find_last_of("\r\n");
        std::size_t last = std::max(last_break == body.npos ? 0 : last_break + 1,
                                    body.size() - std::min(body.size(), shown));
        bool last_found = false;
        for (std::size_t at = 0; at < text.size(); ++characters) {
            if (at >= last && !last_found) {  // no character is cut
                last = at;
                last_found = true;
            }
            at += detail::decode_utf8(text.substr(at)).size;
            if (at <= first_end) first = at;
        }
        const auto lines = static_cast<std::size_t>(std::count(body.begin(), body.end(), '\n')) + 1;
        return quoted(text.substr(0, first)) + " … " +
               quoted(body.substr(std::min(last, body.size()))) +
               " [folded: " + std::to_string(characters) + " characters, " +
               std::to_string(text.size()) + " bytes, " + std::to_string(lines) +
               (lines == 1 ? " line" : " lines") + ", sha256 " +
               detail::sha256_hex(text).substr(0, 32) + "]";
    }

    static bool is_identifier(std::string_view name) {
        const auto part = [](char c) {
            return std::isalnum(static_cast<unsigned char>(c)) || c == '_';
        };
        return !name.empty() && name.size() <= longest_unfolded &&
               !std::isdigit(static_cast<unsigned char>(name.front())) &&
               std::all_of(name.begin(), name.end(), part);
    }

    Layout layout_;
    std::size_t room_;  // bytes left
    bool folded_ = false, too_much_ = false;
};

// What is put before a person. Either `problem` says why it cannot be, or `text` has one argument a
// line after the call's name, names, short values, paths, URLs and commands whole and first.
struct QuestionText {
    std::string name;     // server.tool, on one line
    std::string text;     // lines
    std::string whole;    // the same with nothing folded, for a file; empty when nothing is
    std::string problem;  // for the code: what to do
};

inline QuestionText question_text(std::string_view server, std::string_view tool,
                                  const boost::json::object& arguments) {
    QuestionText question;
    if (server.size() + tool.size() > question_bytes) {
        question.problem = "the call cannot be put before a person: its name is too long";
        return question;
    }
    question.name = plain_name(server) + "." + plain_name(tool);
    using Layout = ArgumentsText::Layout;
    ArgumentsText shown(Layout::lines,
                        question_bytes - std::min(question_bytes, question.name.size()));
    question.text = arguments.empty() ? "  (no arguments)\n" : shown(arguments);
    if (shown.too_much()) {
        question.problem =
            "the call cannot be put before a person: its names, short values, paths and commands "
            "are more than " +
            std::to_string(question_bytes) +
            " bytes, which nobody can be asked to read; make several calls, or name a file";
        return question;
    }
    if (!shown.folded()) return question;
    ArgumentsText everything(Layout::whole, largest_arguments);
    question.whole = question.name + '\n' + everything(arguments);
    if (everything.too_much()) {
        question.whole.clear();
        question.problem = "the call cannot be put before a person: its arguments are more than " +
                           std::to_string(largest_arguments >> 20) +
                           " MiB; make several calls, or name a file";
    }
    return question;
}

// A call on one line: server.tool(key='value', …), for logs and programs that hold the arguments
// themselves. Folded as questions are, and never cut: one with too much to show has their number.
inline std::string call_text(std::string_view server, std::string_view tool,
                             const boost::json::object& arguments) {
    const auto name = [](std::string_view part) {
        return part.size() <= question_bytes
                   ? plain_name(part)
                   : "[a name of " + std::to_string(part.size()) + " bytes]";
    };
    ArgumentsText shown(ArgumentsText::Layout::line, question_bytes);
    std::string text = shown(arguments);
    if (shown.too_much())
        text = "[" + std::to_string(arguments.size()) + " arguments, too much to be shown]";
    return name(server) + "." + name(tool) + "(" + text + ")";
}

// A value on one line, folded as in questions.
inline std::string literal_text(const boost::json::value& value) {
    ArgumentsText shown(ArgumentsText::Layout::line, question_bytes);
    std::string text = shown(value);
    return shown.too_much() ? "[too much to be shown]" : text;
}

}  // namespace ipybox::approval
