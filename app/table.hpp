#pragma once
// Rows that people read: columns under each other, the last one wrapped to the terminal.
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ipybox/detail/terminal_color.hpp>
#include <ipybox/detail/terminal_text.hpp>
#include <ipybox/detail/utf8.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ipybox::app {

// Columns of the terminal behind a descriptor; 0: there is none, or it does not say.
inline std::size_t terminal_columns(int descriptor) {
    winsize size{};
    if (::isatty(descriptor) != 1 || ::ioctl(descriptor, TIOCGWINSZ, &size) != 0) return 0;
    return size.ws_col;
}

// How many characters; what is wider than one column counts as one.
inline std::size_t text_width(std::string_view text) {
    return static_cast<std::size_t>(std::count_if(
        text.begin(), text.end(), [](char c) { return !detail::is_continuation(c); }));
}

// Lines of at most `width` characters, cut at blanks where there are any; 0: one line.
inline std::vector<std::string> wrapped(std::string_view text, std::size_t width) {
    std::vector<std::string> lines;
    while (width > 0 && text_width(text) > width) {
        std::size_t end = 0, blank = 0;
        for (std::size_t count = 0; end < text.size(); ++end) {
            if (detail::is_continuation(text[end])) continue;
            if (text[end] == ' ') blank = end;
            if (count++ == width) break;
        }
        const auto cut = blank > 0 ? blank : end;
        lines.emplace_back(text.substr(0, cut));
        text.remove_prefix(blank > 0 ? cut + 1 : cut);
    }
    lines.emplace_back(text);
    return lines;
}

// Text of cells may come from anywhere: what could deceive is shown as escapes.
class Table {
public:
    // headings: empty for a table without.
    explicit Table(std::vector<std::string> headings = {}) : headings_(std::move(headings)) {}

    // color: of the first column.
    void add(std::vector<std::string> cells, std::optional<detail::Color> color = {}) {
        for (auto& cell : cells) cell = detail::printable(cell);
        rows_.push_back({std::move(cells), color});
    }
    bool empty() const { return rows_.empty(); }

    // columns: to wrap to, 0 for none.
    std::string text(std::size_t columns, bool color) const {
        std::vector<std::size_t> widths;
        const auto measure = [&widths](const std::vector<std::string>& cells) {
            widths.resize(std::max(widths.size(), cells.size()));
            for (std::size_t i = 0; i + 1 < cells.size(); ++i)
                widths[i] = std::max(widths[i], text_width(cells[i]));
        };
        measure(headings_);
        for (const auto& row : rows_) measure(row.cells);
        std::string result;
        if (!headings_.empty())
            append(result, {headings_, detail::Color::bold}, widths, columns, color, true);
        for (const auto& row : rows_) append(result, row, widths, columns, color, false);
        return result;
    }
    // For standard output.
    std::string text() const {
        const auto columns = terminal_columns(STDOUT_FILENO);
        return text(columns,
                    columns > 0 && detail::may_color(std::getenv("NO_COLOR"), std::getenv("TERM")));
    }

private:
    struct Row {
        std::vector<std::string> cells;
        std::optional<detail::Color> color;
    };
    static constexpr std::size_t gap = 2, least = 20;

    static void append(std::string& result, const Row& row, const std::vector<std::size_t>& widths,
                       std::size_t columns, bool color, bool whole_row) {
        std::size_t indent = 0;
        for (std::size_t i = 0; i < row.cells.size(); ++i) {
            const auto& cell = row.cells[i];
            const auto paint = [&](const std::string& text) {
                const bool painted = color && row.color && (i == 0 || whole_row);
                return painted && !text.empty() ? detail::in_color(*row.color, text) : text;
            };
            if (i + 1 < row.cells.size()) {
                const auto width = widths[i] + gap;
                result += paint(cell) + std::string(width - text_width(cell), ' ');
                indent += width;
                continue;
            }
            const auto room = columns > indent + least ? columns - indent : 0;
            bool first = true;
            for (const auto& line : wrapped(cell, room)) {
                if (!std::exchange(first, false)) result += '\n' + std::string(indent, ' ');
                result += paint(line);
            }
        }
        result.erase(result.find_last_not_of(' ') + 1);
        result += '\n';
    }

    std::vector<std::string> headings_;
    std::vector<Row> rows_;
};

}  // namespace ipybox::app
