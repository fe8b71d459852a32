#pragma once
// The words of a text as a search of tools compares them: parts of names, stems, what stands for
// what. Texts may be anything; words longer than max_search_word are cut.
#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <ipybox/detail/python_source.hpp>
#include <ipybox/detail/utf8.hpp>
#include <ipybox/tools/detail/search_words.hpp>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace ipybox::detail {

inline constexpr std::size_t max_search_word = 48;  // bytes

// Letters and digits of every script.
inline bool is_search_letter(char32_t c) {
    if (c < 0x80) return is_ascii_letter(c) || is_ascii_digit(c);
    if (c < 0xC0) return c == 0xAA || c == 0xB5 || c == 0xBA;
    if (c == 0xD7 || c == 0xF7 || c == 0xFFFD || is_invisible(c)) return false;
    struct Range {
        char32_t first, last;
    };
    static constexpr Range marks[] = {{0x2000, 0x2BFF}, {0x2E00, 0x2E7F},  {0x3000, 0x3004},
                                      {0x3008, 0x3020}, {0xFE10, 0xFE6F},  {0xFF00, 0xFF0F},
                                      {0xFF1A, 0xFF20}, {0xFF3B, 0xFF40},  {0xFF5B, 0xFF65},
                                      {0xFFE0, 0xFFEE}, {0x1F000, 0x1FAFF}};
    return std::none_of(std::begin(marks), std::end(marks),
                        [c](const Range& range) { return c >= range.first && c <= range.last; });
}

inline std::string lower_word(std::string_view word) {
    std::string lower;
    while (!word.empty()) {
        const auto c = take_code_point(word);
        const bool by_32 = (c >= 'A' && c <= 'Z') || (c >= 0xC0 && c <= 0xDE && c != 0xD7) ||
                           (c >= 0x391 && c <= 0x3A9) || (c >= 0x410 && c <= 0x42F);
        append_utf8(lower, by_32 ? c + 32 : c >= 0x400 && c <= 0x40F ? c + 80 : c);
    }
    lower.resize(utf8_border(lower, max_search_word));
    return lower;
}

// Its words as they are written; a genitive's "s" is none.
inline std::vector<std::string_view> written_words(std::string_view text, std::size_t most) {
    std::vector<std::string_view> words;
    std::size_t begin = 0, at = 0;
    bool inside = false, after_apostrophe = false;
    const auto end_word = [&] {
        const auto word = text.substr(begin, at - begin);
        if (std::exchange(inside, false) && !(after_apostrophe && word == "s"))
            words.push_back(word);
    };
    bool apostrophe = false;
    while (at < text.size() && words.size() < most) {
        auto rest = text.substr(at);
        const auto c = take_code_point(rest);
        if (is_search_letter(c)) {
            if (!inside) {
                after_apostrophe = apostrophe;
                begin = at;
            }
            inside = true;
        } else {
            end_word();
            apostrophe = c == '\'' || c == 0x2019;
        }
        at = text.size() - rest.size();
    }
    end_word();
    return words;
}

// The parts of a word in camel case, or of letters and digits.
inline std::vector<std::string_view> parts_of_word(std::string_view word) {
    const auto upper = [&](std::size_t i) {
        return i < word.size() && word[i] >= 'A' && word[i] <= 'Z';
    };
    const auto lower = [&](std::size_t i) {
        return i < word.size() && word[i] >= 'a' && word[i] <= 'z';
    };
    const auto digit = [&](std::size_t i) {
        return i < word.size() && word[i] >= '0' && word[i] <= '9';
    };
    const auto other = [&](std::size_t i) {
        return i < word.size() && static_cast<unsigned char>(word[i]) >= 0x80;
    };
    std::vector<std::string_view> parts;
    for (std::size_t i = 0; i < word.size();) {
        auto end = i;
        if (upper(i)) {
            while (upper(end)) ++end;
            if (lower(end) && end > i + 1) {
                --end;  // the last capital begins the next part
            } else {
                while (lower(end)) ++end;
            }
        } else if (lower(i)) {
            while (lower(end)) ++end;
        } else if (digit(i)) {
            while (digit(end)) ++end;
        } else {
            while (other(end)) ++end;
        }
        if (end == i) end = i + 1;  // never: words have nothing else
        parts.push_back(word.substr(i, end - i));
        i = end;
    }
    return parts;
}

// A light stemmer for English: plurals, -ing, -ed and the commonest derivations. `word` is in lower
// case.
inline std::string stem_of(std::string word) {
    static const std::set<std::string, std::less<>> unstemmed = [] {
        std::set<std::string, std::less<>> all;
        for (const auto one : written_words(unstemmed_words, std::string::npos)) all.emplace(one);
        return all;
    }();
    const auto plain = [](char c) { return c >= 'a' && c <= 'z'; };
    if (word.size() <= 3 || !std::all_of(word.begin(), word.end(), plain) || unstemmed.count(word))
        return word;
    const auto ends = [&](std::string_view end) { return word.ends_with(end); };
    const auto cut = [&](std::size_t bytes, std::string_view instead = "") {
        word.resize(word.size() - bytes);
        word += instead;
    };
    if (ends("sses") || ends("xes") || ends("ches") || ends("shes") || ends("zes")) {
        cut(2);
    } else if (ends("ies")) {
        word.size() > 4 ? cut(3, "y") : cut(1);
    } else if (ends("s") && !ends("ss") && !ends("us") && !ends("is")) {
        cut(1);
    }
    for (const std::string_view end : {"ingly", "edly", "ing", "ed"}) {
        if (!ends(end)) continue;
        std::string base = word.substr(0, word.size() - end.size());
        if (base.size() >= 3 && base.find_first_of("aeiouy") != base.npos) {
            const char last = base.back();
            if (base.size() > 3 && last == base[base.size() - 2] && last != 'l' && last != 's' &&
                last != 'z')
                base.pop_back();
            word = std::move(base);
        }
        break;
    }
    static constexpr std::pair<std::string_view, std::string_view> derived[] = {
        {"ization", "ize"}, {"isation", "ize"}, {"ication", "icate"}, {"ctions", "ct"},
        {"ction", "ct"},    {"ption", "pt"},    {"ation", "ate"},     {"ally", "al"},
        {"ly", ""},         {"iest", "y"},      {"est", ""}};
    for (const auto& [end, instead] : derived) {
        if (!ends(end) || word.size() < end.size() + 4) continue;
        cut(end.size(), instead);
        break;
    }
    if (ends("e") && word.size() > 3) word.pop_back();
    if (ends("y") && word.size() > 3) word.back() = 'i';
    return word;
}

// The stems of a text, of a word in parts those of the parts and then of the whole. At most `most`.
inline std::vector<std::string> stems_of(std::string_view text, std::size_t most) {
    std::vector<std::string> stems;
    for (const auto word : written_words(text, most)) {
        const auto parts = parts_of_word(word);
        for (const auto part : parts)
            if (stems.size() < most) stems.push_back(stem_of(lower_word(part)));
        if (parts.size() > 1 && stems.size() < most) stems.push_back(stem_of(lower_word(word)));
    }
    return stems;
}

// What search_words.hpp has, by stems.
class SearchTables {
public:
    struct Phrase {
        std::vector<std::string> words, stems;          // "…": up to three words between
        std::vector<std::vector<std::string>> meaning;  // stems; one of each list is wanted
    };
    enum class Kind : char { none, create, remove, update, send, read };

    static const SearchTables& get() {
        static const SearchTables tables;
        return tables;
    }

    bool says_nothing(std::string_view word) const { return stop_.count(word) != 0; }
    bool says_little(std::string_view stem) const { return light_.count(stem) != 0; }

    // What may stand for a stem, and whether it does so as well as the stem itself.
    const std::map<std::string, bool>& synonyms(const std::string& stem) const {
        static const std::map<std::string, bool> none;
        const auto found = groups_.find(stem);
        return found == groups_.end() ? none : found->second;
    }
    // Phrases that begin with the stem, the longest first.
    const std::vector<Phrase>& phrases(const std::string& first) const {
        static const std::vector<Phrase> none;
        const auto found = phrases_.find(first);
        return found == phrases_.end() ? none : found->second;
    }
    Kind kind_of_name(const std::string& stem) const { return kind_in(of_names_, stem); }
    Kind kind_of_request(const std::string& stem) const { return kind_in(of_requests_, stem); }

private:
    using Kinds = std::unordered_map<std::string, Kind>;

    SearchTables() {
        for (const auto word : fields(stop_words, ' ')) stop_.emplace(word);
        for (const auto word : fields(light_words, ' ')) light_.insert(stem_of(std::string(word)));
        for (auto group : fields(word_groups, ';')) {
            const bool strong = group.starts_with('=');
            if (strong) group.remove_prefix(1);
            const auto stems = stems_in(group);
            for (const auto& one : stems)
                for (const auto& other : stems) {
                    if (one == other) continue;
                    auto& known = groups_[one].try_emplace(other, false).first->second;
                    known = known || strong;
                }
        }
        for (const auto line : fields(search_phrases, ';')) {
            const auto arrow = line.find('>');
            Phrase phrase;
            for (const auto word : fields(line.substr(0, arrow), ' ')) {
                phrase.words.emplace_back(word);
                phrase.stems.push_back(stem_of(std::string(word)));
            }
            for (const auto part : fields(line.substr(arrow + 1), '+'))
                phrase.meaning.push_back(stems_in(part));
            phrases_[phrase.stems.front()].push_back(std::move(phrase));
        }
        for (auto& [first, all] : phrases_)
            std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
                return a.words.size() > b.words.size();
            });
        read_kinds(kinds_of_names, of_names_);
        read_kinds(kinds_of_requests, of_requests_);
    }

    // Those between separators, without blanks around them; empty ones are left out. A line's end
    // is a blank.
    static std::vector<std::string_view> fields(std::string_view text, char separator) {
        const std::string_view ends = separator == ' ' ? " \n" : std::string_view(&separator, 1);
        std::vector<std::string_view> all;
        while (!text.empty()) {
            const auto end = std::min(text.find_first_of(ends), text.size());
            auto field = text.substr(0, end);
            text.remove_prefix(std::min(end + 1, text.size()));
            field.remove_prefix(std::min(field.find_first_not_of(" \n"), field.size()));
            field = field.substr(0, field.find_last_not_of(" \n") + 1);
            if (!field.empty()) all.push_back(field);
        }
        return all;
    }
    static std::vector<std::string> stems_in(std::string_view words) {
        std::vector<std::string> stems;
        for (const auto word : fields(words, ' ')) stems.push_back(stem_of(std::string(word)));
        return stems;
    }
    static void read_kinds(std::string_view table, Kinds& kinds) {
        auto kind = Kind::none;
        for (const auto line : fields(table, ';')) {
            kind = static_cast<Kind>(static_cast<char>(kind) + 1);
            for (const auto& stem : stems_in(line.substr(line.find(':') + 1))) kinds[stem] = kind;
        }
    }
    static Kind kind_in(const Kinds& kinds, const std::string& stem) {
        const auto found = kinds.find(stem);
        return found == kinds.end() ? Kind::none : found->second;
    }

    std::set<std::string, std::less<>> stop_, light_;
    std::unordered_map<std::string, std::map<std::string, bool>> groups_;
    std::unordered_map<std::string, std::vector<Phrase>> phrases_;
    Kinds of_names_, of_requests_;
};

}  // namespace ipybox::detail
