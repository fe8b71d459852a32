#pragma once
// What a caller may pass for the type of a generated field.
#include <algorithm>
#include <cstddef>
#include <ipybox/detail/python_source.hpp>
#include <string>
#include <string_view>

namespace ipybox::detail {

// Where the text that begins at `quote` ends: behind its other quote.
inline std::size_t behind_text(std::string_view code, std::size_t quote) {
    auto i = quote + 1;
    while (i < code.size() && code[i] != '"') i += code[i] == '\\' ? 2 : 1;
    return i + 1;
}

// Where a comma stands or a bracket is closed that belongs to none opened behind `start`.
inline std::size_t end_of_argument(std::string_view code, std::size_t start, bool at_comma) {
    int depth = 0;
    for (auto i = start; i < code.size(); ++i) {
        if (code[i] == '"') {
            i = behind_text(code, i) - 1;
        } else if (code[i] == '[' || code[i] == '(' || code[i] == '{') {
            ++depth;
        } else if (code[i] == ']' || code[i] == ')' || code[i] == '}') {
            if (depth-- == 0) return i;
        } else if (at_comma && code[i] == ',' && depth == 0) {
            return i;
        }
    }
    return code.size();
}

// A type that the generator wrote, without its checks; a dict does for a class too, any sequence
// for a list, and a list for a tuple. is_class(name): whether the module defines it as one.
template <class IsClass>
std::string passable(std::string_view type, const IsClass& is_class) {
    static constexpr std::string_view annotated = "Annotated[", tuple = "tuple[";
    std::string out;
    for (std::size_t i = 0; i < type.size();) {
        const auto start = i;
        if (type[i] == '"') {
            i = std::min(behind_text(type, i), type.size());
            out += type.substr(start, i - start);
            continue;
        }
        if (!is_word(static_cast<unsigned char>(type[i]))) {
            out += type[i++];
            continue;
        }
        if (type.substr(i).starts_with(annotated)) {
            i += annotated.size();
            out += passable(type.substr(i, end_of_argument(type, i, true) - i), is_class);
            i = end_of_argument(type, i, false) + 1;
            continue;
        }
        if (type.substr(i).starts_with(tuple)) {
            i += tuple.size();
            const auto end = end_of_argument(type, i, false);
            out.append(tuple).append(passable(type.substr(i, end - i), is_class));
            out += "] | list[Any]";
            i = end + 1;
            continue;
        }
        while (i < type.size() && is_word(static_cast<unsigned char>(type[i]))) ++i;
        const auto word = type.substr(start, i - start);
        if (word == "list") {
            out += "Sequence";
        } else if (word == "SafeInt") {
            out += "int";
        } else {
            out += word;
            if (is_class(word)) out += " | dict[str, Any]";
        }
    }
    return out;
}

}  // namespace ipybox::detail
