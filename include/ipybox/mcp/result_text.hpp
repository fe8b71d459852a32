#pragma once
// What fits into a result for a model, and what can be shown in one.
#include <algorithm>
#include <cstddef>
#include <ipybox/detail/utf8.hpp>
#include <string>
#include <string_view>
#include <utility>

namespace ipybox::mcp {

// The bytes that text takes as JSON.
inline std::size_t json_cost(unsigned char c) noexcept {
    if (c >= 0x20) return c == '"' || c == '\\' ? 2 : 1;
    return c == '\b' || c == '\f' || c == '\n' || c == '\r' || c == '\t' ? 2 : 6;
}

// Where to cut `text` so that it has at most `characters` code points and `bytes` bytes of JSON.
inline std::size_t text_fits(std::string_view text, std::size_t characters,
                             std::size_t bytes) noexcept {
    std::size_t end = 0;
    while (end < text.size() && characters > 0) {
        std::size_t next = end + 1;
        std::size_t cost = json_cost(static_cast<unsigned char>(text[end]));
        while (next < text.size() && detail::is_continuation(text[next])) ++next, ++cost;
        if (cost > bytes) break;
        bytes -= cost;
        --characters;
        end = next;
    }
    return end;
}

// Text that arrives in pieces, without the white space around it; what comes after `most` bytes is
// counted on, not kept.
class StrippedText {
public:
    explicit StrippedText(std::size_t most) : most_(most) {}

    void add(std::string_view piece) {
        if (text_.empty())
            piece.remove_prefix(std::min(piece.find_first_not_of(space), piece.size()));
        const auto kept = std::min(piece.size(), most_ - text_.size());
        text_ += piece.substr(0, kept);
        if (piece.find_first_not_of(space, kept) != piece.npos) cut_ = true;
    }
    // The text, or its first `most` bytes.
    std::string take() {
        if (!cut_) text_.erase(text_.find_last_not_of(space) + 1);
        return std::move(text_);
    }

private:
    static constexpr std::string_view space = " \t\r\n\f\v";
    std::string text_;
    std::size_t most_;
    bool cut_ = false;  // more than white space came after what is kept
};

// Models are sent images of these types; one that only claims to be of it breaks conversations.
inline std::string_view image_type(std::string_view bytes) noexcept {
    using namespace std::string_view_literals;
    if (bytes.starts_with("\x89PNG\r\n\x1a\n"sv)) return "image/png";
    if (bytes.starts_with("\xFF\xD8\xFF"sv)) return "image/jpeg";
    if (bytes.starts_with("GIF87a"sv) || bytes.starts_with("GIF89a"sv)) return "image/gif";
    if (bytes.size() > 12 && bytes.starts_with("RIFF"sv) && bytes.substr(8, 4) == "WEBP"sv)
        return "image/webp";
    return {};
}

// Whether it is text that can be shown as such.
inline bool is_text(std::string_view bytes) {
    return detail::is_utf8(bytes) && bytes.find('\0') == bytes.npos;
}

}  // namespace ipybox::mcp
