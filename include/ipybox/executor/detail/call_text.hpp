#pragma once
// The text of a Python call, as far as its arguments have to be told apart.
#include <algorithm>
#include <cstddef>
#include <ipybox/detail/nearest.hpp>
#include <ipybox/detail/python_source.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace ipybox::detail {

// Behind the comment or string that begins at `at`; `at` where none does.
inline std::size_t behind_opaque(std::string_view code, std::size_t at) {
    if (code[at] == '#') return std::min(code.find('\n', at), code.size());
    const char quote = code[at];
    if (quote != '"' && quote != '\'') return at;
    const bool three = code.substr(at, 3) == std::string(3, quote);
    for (auto i = at + (three ? 3 : 1); i < code.size(); ++i) {
        if (code[i] == '\\')
            ++i;
        else if (code[i] == quote && (!three || code.substr(i, 3) == std::string(3, quote)))
            return std::min(i + (three ? 3 : 1), code.size());
    }
    return code.size();
}

// Where the parenthesis stands that is opened last and not closed in `code`; npos without one.
inline std::size_t innermost_open(std::string_view code) {
    std::vector<std::size_t> open;
    for (std::size_t i = 0; i < code.size();) {
        if (const auto behind = behind_opaque(code, i); behind != i) {
            i = behind;
            continue;
        }
        const char c = code[i++];
        if (c == '(' || c == '[' || c == '{') open.push_back(i - 1);
        if ((c == ')' || c == ']' || c == '}') && !open.empty()) open.pop_back();
    }
    return open.empty() || code[open.back()] != '(' ? code.npos : open.back();
}

inline std::string_view trimmed(std::string_view text) {
    constexpr std::string_view blank = " \t\r\n";
    const auto first = text.find_first_not_of(blank);
    if (first == text.npos) return {};
    return text.substr(first, text.find_last_not_of(blank) - first + 1);
}

// Of "name=value" the name, else nothing.
inline std::string_view keyword_of(std::string_view argument) {
    const auto equals = argument.find('=');
    if (equals == argument.npos || argument.substr(equals, 2) == "==") return {};
    const auto name = trimmed(argument.substr(0, equals));
    return is_python_identifier(name) ? name : std::string_view();
}

struct CallArguments {
    bool understood = false;
    bool unpacks = false;  // *list or **dict
    std::size_t positional = 0;
    std::vector<std::string> keywords;
};

// call: an expression that ends with the parenthesis of its arguments.
inline CallArguments arguments_of(std::string_view call) {
    CallArguments found;
    int depth = 0;
    bool closed = false;
    std::string argument;
    const auto take = [&] {
        const auto one = trimmed(argument);
        if (one.starts_with('*'))
            found.unpacks = true;
        else if (const auto name = keyword_of(one); !name.empty())
            found.keywords.emplace_back(name);
        else if (!one.empty())
            ++found.positional;
        argument.clear();
    };
    for (std::size_t i = 0; i < call.size();) {
        const char c = call[i];
        if (const auto behind = behind_opaque(call, i); behind != i) {
            // Of a string, that there is one is enough.
            if (c != '#') argument += '"';
            i = behind;
            continue;
        }
        ++i;
        if (c == '(' || c == '[' || c == '{') {
            if (depth++ > 0 || c != '(') {
                argument += c;
                continue;
            }
            found = {};  // the parenthesis of an earlier part
            argument.clear();
            closed = false;
        } else if (c == ')' || c == ']' || c == '}') {
            if (depth == 0) return {};
            if (--depth == 0 && c == ')') {
                take();
                closed = i == call.size();
            } else {
                argument += c;
            }
        } else if (c == ',' && depth == 1) {
            take();
        } else {
            argument += c;
        }
    }
    found.understood = closed && depth == 0;
    return found;
}

// The name among `known` that `wanted` was probably meant to be; empty without one.
template <class Names>
std::string nearest_name(std::string_view wanted, const Names& known) {
    std::string best;
    auto least = wanted.size() < 3 ? std::size_t{1} : wanted.size() / 3 + 1;
    if (wanted.size() > max_compared_name) return best;
    for (const std::string_view name : known) {
        if (name.size() > max_compared_name) continue;
        const auto distance = edit_distance(wanted, name);
        if (distance == 0 || distance > least || distance >= name.size()) continue;
        if (best.empty() || distance < least) best = name;
        least = distance;
    }
    return best;
}

}  // namespace ipybox::detail
