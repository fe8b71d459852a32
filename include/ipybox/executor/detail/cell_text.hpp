#pragma once
// Where the pieces of a cell's text came from, without a second copy of the text.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <ipybox/detail/json_text.hpp>
#include <ipybox/detail/utf8.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ipybox::detail {

// Who wrote a piece of text: the cell to one of its two streams, or a display that has a text.
enum class TextSource : std::uint8_t { standard_output, standard_error, display };

// Told of every piece in order, it takes a text that was joined and stripped apart again.
class TextPieces {
public:
    // Bytes that add() may take, beside the text's.
    std::size_t cost(TextSource source) const noexcept {
        return !runs_.empty() && runs_.back().source == source ? 0 : 2 * sizeof(Run);
    }
    void add(TextSource source, std::size_t size) {
        if (cost(source) != 0) runs_.push_back({size_, source});
        size_ += size;
        runs_.back().end = size_;
    }

    // Returns the joined text without blanks at its ends, which stay known here.
    std::string strip(std::string&& joined) {
        constexpr const char* blanks = " \t\r\n\f\v";
        const auto last = joined.find_last_not_of(blanks) + 1;
        after_ = joined.substr(last);
        joined.erase(last);
        const auto first = std::min(joined.find_first_not_of(blanks), joined.size());
        before_ = joined.substr(0, first);
        joined.erase(0, first);
        return std::move(joined);
    }

    // All of one source, not stripped. stripped: what strip() returned.
    std::string of(TextSource source, std::string_view stripped) const {
        std::string found;
        std::size_t at = 0;
        for (const auto& run : runs_) {
            if (run.source == source) append(found, at, run.end, stripped);
            at = run.end;
        }
        return found;
    }

private:
    struct Run {
        std::size_t end;
        TextSource source;
    };

    void append(std::string& out, std::size_t from, std::size_t to,
                std::string_view stripped) const {
        for (const std::string_view part :
             {std::string_view(before_), stripped, std::string_view(after_)}) {
            if (from < std::min(to, part.size())) out += part.substr(from, to - from);
            from -= std::min(from, part.size());
            to -= std::min(to, part.size());
        }
    }

    std::vector<Run> runs_;
    std::size_t size_ = 0;
    std::string before_, after_;
};

// Text of a peer: valid UTF-8 of at most `most` bytes, cut between characters.
inline std::string bounded_text(std::string_view text, std::size_t most) {
    std::string valid = repair_utf8(text.substr(0, utf8_border(text, most)));
    valid.resize(utf8_border(valid, most));
    return valid;
}

}  // namespace ipybox::detail
