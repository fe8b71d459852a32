#pragma once
// What values in a request look like (a URL, a file's name, a time), and the words they stand for.
#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ipybox::detail {

// Takes the values out of a request. Each pattern is looked for once from the left, in time that
// grows with the square of the request at most: bound its length.
class QueryShapes {
public:
    explicit QueryShapes(std::string query) : text_(std::move(query)) {
        take(&QueryShapes::url, "url page website domain");
        take_files({"png", "jpg", "jpeg", "gif", "webp", "bmp", "svg"}, "image media file");
        take_files({"mp3", "wav", "flac", "ogg"}, "audio media file");
        take_files({"mp4", "mov", "mkv", "avi"}, "video media file");
        take_files({"pdf"}, "pdf file");
        take_files({"xls", "xlsx", "ods"}, "excel spreadsheet file");
        take(&QueryShapes::any_file, "file");
        take(&QueryShapes::phone, "phone number");
        take(&QueryShapes::place, "latitude longitude coordinate");
        take(&QueryShapes::time, "time");
        take(&QueryShapes::version, "version tag release");
        take(&QueryShapes::size, "width height size");
        take(&QueryShapes::channel, "channel");
        take(&QueryShapes::email, "email");
        take(&QueryShapes::quoted, "");
        take(&QueryShapes::named, "name");
        take(&QueryShapes::number, "");
    }

    // The request without the values.
    const std::string& rest() const { return text_; }
    // What they stand for, each time words parted by blanks.
    const std::vector<std::string_view>& found() const { return found_; }

private:
    using Matcher = std::size_t (QueryShapes::*)(std::size_t at) const;
    static constexpr std::size_t none = 0;  // where a match would end

    template <class EndOfMatch>
    void take_by(const EndOfMatch& end_of_match, std::string_view meaning) {
        std::string rest;
        bool any = false;
        for (std::size_t at = 0; at < text_.size();) {
            const auto end = end_of_match(at);
            if (end == none) {
                rest += text_[at++];
                continue;
            }
            rest += ' ';
            at = end;
            any = true;
        }
        if (any && !meaning.empty()) found_.push_back(meaning);
        if (any) text_ = std::move(rest);
    }
    void take(Matcher matcher, std::string_view meaning) {
        take_by([&](std::size_t at) { return (this->*matcher)(at); }, meaning);
    }
    void take_files(std::initializer_list<std::string_view> endings, std::string_view meaning) {
        take_by([&](std::size_t at) { return file(at, endings); }, meaning);
    }

    // ---- single characters; behind the end there is a NUL ----

    char at(std::size_t i) const { return i < text_.size() ? text_[i] : '\0'; }
    char low(std::size_t i) const {
        const char c = at(i);
        return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
    }
    bool digit(std::size_t i) const { return at(i) >= '0' && at(i) <= '9'; }
    bool letter(std::size_t i) const { return low(i) >= 'a' && low(i) <= 'z'; }
    bool blank(std::size_t i) const {
        return at(i) == ' ' || (at(i) >= '\t' && at(i) <= '\r' && at(i) != '\0');
    }
    bool word(std::size_t i) const {
        return letter(i) || digit(i) || at(i) == '_' || static_cast<unsigned char>(at(i)) >= 0x80;
    }
    bool solid(std::size_t i) const { return i < text_.size() && !blank(i); }
    // Between a word's character and something else.
    bool border(std::size_t i) const { return (i > 0 && word(i - 1)) != word(i); }
    bool begins(std::size_t i) const { return word(i) && border(i); }
    bool says(std::size_t i, std::string_view text) const {
        for (std::size_t k = 0; k < text.size(); ++k)
            if (low(i + k) != text[k]) return false;
        return true;
    }
    std::size_t digits(std::size_t i, std::size_t most = std::string::npos) const {
        const auto begin = i;
        while (digit(i) && i - begin < most) ++i;
        return i;
    }
    std::size_t blanks(std::size_t i) const {
        while (blank(i)) ++i;
        return i;
    }
    std::size_t solids(std::size_t i) const {
        while (solid(i)) ++i;
        return i;
    }
    std::size_t name(std::size_t i, bool with_slashes) const {
        while (word(i) || at(i) == '-' || (with_slashes && at(i) == '/')) ++i;
        return i;
    }
    // Behind ".ending" at i; none without.
    std::size_t ending(std::size_t i, std::initializer_list<std::string_view> endings) const {
        if (at(i) != '.') return none;
        for (const auto end : endings)
            if (says(i + 1, end) && !word(i + 1 + end.size())) return i + 1 + end.size();
        return none;
    }

    // ---- the patterns ----

    std::size_t url(std::size_t i) const {
        for (const std::string_view scheme : {"http://", "https://"})
            if (says(i, scheme) && solid(i + scheme.size())) return solids(i);
        return begins(i) ? ending(name(i, false), {"com", "org", "net", "io", "dev"}) : none;
    }
    std::size_t file(std::size_t i, std::initializer_list<std::string_view> endings) const {
        return begins(i) ? ending(name(i, true), endings) : none;
    }
    std::size_t any_file(std::size_t i) const {
        if (i > 0 && (word(i - 1) || at(i - 1) == '.')) return none;
        auto end = name(i, true);
        if (at(end) != '.' || !letter(end + 1)) return none;
        end += 2;
        for (int more = 0; more < 3 && (letter(end) || digit(end)); ++more) ++end;
        return word(end) ? none : end;
    }
    std::size_t phone(std::size_t i) const {
        const auto end = at(i) == '+' ? digits(i + 1) : none;
        return end >= i + 4 ? end : none;
    }
    std::size_t fraction(std::size_t i) const {
        if (at(i) == '-') ++i;
        const auto dot = digits(i);
        if (dot == i || at(dot) != '.' || !digit(dot + 1)) return none;
        return digits(dot + 1);
    }
    std::size_t place(std::size_t i) const {
        const auto first = fraction(i);
        if (first == none || at(blanks(first)) != ',') return none;
        return fraction(blanks(blanks(first) + 1));
    }
    std::size_t time(std::size_t i) const {
        if (!begins(i) || !digit(i)) return none;
        const auto hours = digits(i, 2);
        const bool minutes = at(hours) == ':' && digit(hours + 1) && digit(hours + 2);
        const auto clock = minutes ? hours + 3 : hours;
        auto half = blanks(clock);
        if (low(half) == 'a' || low(half) == 'p') {
            ++half;
            if (at(half) == '.') ++half;
            if (low(half) == 'm' && !word(half + 1)) return half + 1;
        }
        return minutes && !word(clock) ? clock : none;
    }
    std::size_t version(std::size_t i) const {
        if (!begins(i) || low(i) != 'v') return none;
        auto end = digits(i + 1);
        if (end == i + 1) return none;
        int parts = 0;
        for (; at(end) == '.' && digit(end + 1); ++parts) end = digits(end + 1);
        return parts > 0 && !word(end) ? end : none;
    }
    std::size_t size(std::size_t i) const {
        if (!begins(i) || !digit(i)) return none;
        auto end = blanks(digits(i));
        if (says(end, "by")) {
            end += 2;
        } else if (low(end) == 'x') {
            end += 1;
        } else {
            return none;
        }
        const auto second = blanks(end);
        end = digits(second);
        return end > second && !word(end) ? end : none;
    }
    std::size_t channel(std::size_t i) const {
        return at(i) == '#' && letter(i + 1) ? name(i + 1, false) : none;
    }
    std::size_t email(std::size_t i) const {
        if (!solid(i) || at(i) == '@' || (i > 0 && solid(i - 1))) return none;
        const auto end = solids(i);
        for (auto sign = i + 1; sign + 1 < end; ++sign)
            if (at(sign) == '@') return end;
        return none;
    }
    std::size_t quoted(std::size_t i) const {
        const auto end = at(i) == '"' ? text_.find('"', i + 1) : std::string::npos;
        return end == std::string::npos ? none : end + 1;
    }
    std::size_t named(std::size_t i) const {
        if (!begins(i)) return none;
        for (const std::string_view verb : {"called", "named", "titled"}) {
            const auto end = i + verb.size();
            if (says(i, verb) && blank(end) && solid(blanks(end))) return solids(blanks(end));
        }
        return none;
    }
    std::size_t number(std::size_t i) const {
        if (!begins(i) || !digit(i)) return none;
        auto end = i;
        while (digit(end) || at(end) == '.' || at(end) == ',') ++end;
        while (end > i && !border(end)) --end;
        return end > i ? end : none;
    }

    std::string text_;
    std::vector<std::string_view> found_;
};

}  // namespace ipybox::detail
