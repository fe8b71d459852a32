#pragma once
// Whether a terminal is sent colours, and how.
#include <string>
#include <string_view>

namespace ipybox::detail {

// Whether the cursor of a terminal of that kind can be moved. term: the environment variable TERM,
// null where there is none.
inline bool may_move(const char* term) {
    return term && *term != '\0' && std::string_view(term) != "dumb";
}
// And colours be shown. no_color: the environment variable NO_COLOR, null where there is none.
inline bool may_color(const char* no_color, const char* term) {
    return may_move(term) && (!no_color || *no_color == '\0');
}

enum class Color { bold, red, yellow, cyan, green };

inline std::string in_color(Color color, std::string_view text) {
    constexpr std::string_view codes[] = {"1", "1;31", "33", "36", "32"};
    return "\033[" + std::string(codes[static_cast<int>(color)]) + "m" + std::string(text) +
           "\033[m";
}

}  // namespace ipybox::detail
