#pragma once
// Configuration files as git reads them, and which of their values git runs.
#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ipybox::detail {

// One setting: `section.subsection.key` in lower case, and its value.
struct GitSetting {
    std::string section;
    std::string subsection;  // in its own case
    std::string key;
    std::string value;
};

// The settings of a configuration file, in their order; where git would give up, so does this.
class GitConfigReader {
public:
    explicit GitConfigReader(std::string_view text) : text_(text) {
        if (text_.starts_with("\xef\xbb\xbf")) at_ = 3;
    }

    std::vector<GitSetting> read() {
        std::vector<GitSetting> settings;
        std::string section, subsection;
        while (at_ < text_.size() && settings.size() < 10'000) {
            const char c = next();
            if (c == '\n' || blank(c)) continue;
            if (c == '#' || c == ';') {
                skip_line();
            } else if (c == '[') {
                if (!read_section(section, subsection)) break;
            } else {
                GitSetting setting{section, subsection, {}, {}};
                if (!letter(c) || !read_setting(c, setting)) break;
                settings.push_back(std::move(setting));
            }
        }
        return settings;
    }

private:
    static bool blank(char c) {
        return c == ' ' || c == '\t' || c == '\r' || c == '\v' || c == '\f';
    }
    static bool letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
    static bool word(char c) { return letter(c) || (c >= '0' && c <= '9') || c == '-'; }
    static char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c; }

    // "\r\n" is one line end.
    char next() {
        const char c = text_[at_++];
        if (c == '\r' && at_ < text_.size() && text_[at_] == '\n')
            ++at_;
        else
            return c;
        return '\n';
    }
    void skip_line() {
        while (at_ < text_.size() && next() != '\n') {
        }
    }

    // What follows "[".
    bool read_section(std::string& section, std::string& subsection) {
        section.clear();
        subsection.clear();
        while (at_ < text_.size()) {
            const char c = next();
            if (c == ']') {
                // The old form, [section.subsection], is not case-sensitive.
                if (const auto dot = section.find('.'); dot != section.npos) {
                    subsection = section.substr(dot + 1);
                    section.resize(dot);
                }
                return true;
            }
            if (blank(c)) return read_subsection(subsection);
            if (!word(c) && c != '.') return false;
            section += lower(c);
        }
        return false;
    }
    bool read_subsection(std::string& subsection) {
        char c = ' ';
        while (blank(c) && at_ < text_.size()) c = next();
        if (c != '"') return false;
        while (at_ < text_.size()) {
            c = next();
            if (c == '\n') return false;
            if (c == '"') return at_ < text_.size() && next() == ']';
            if (c == '\\') {
                if (at_ == text_.size()) return false;
                c = next();
                if (c == '\n') return false;
            }
            subsection += c;
        }
        return false;
    }

    bool read_setting(char c, GitSetting& setting) {
        setting.key = lower(c);
        bool ended = true;
        while (at_ < text_.size()) {
            c = next();
            if (!word(c)) {
                ended = false;
                break;
            }
            setting.key += lower(c);
        }
        while (!ended && blank(c)) {
            if (at_ == text_.size()) return true;
            c = next();
        }
        if (ended || c == '\n') return true;  // a key alone means true
        return c == '=' && read_value(setting.value);
    }
    bool read_value(std::string& value) {
        bool quoted = false;
        std::size_t kept = 0;  // without the blanks at its end
        while (at_ < text_.size()) {
            char c = next();
            if (c == '\n') {
                value.resize(kept);
                return !quoted;
            }
            if (blank(c) && !quoted) {
                if (!value.empty()) value += c;
                continue;
            }
            if (!quoted && (c == '#' || c == ';')) {
                skip_line();
                value.resize(kept);
                return true;
            }
            if (c == '"') {
                quoted = !quoted;
                kept = value.size();
                continue;
            }
            if (c == '\\') {
                if (at_ == text_.size()) return false;
                c = next();
                if (c == '\n') continue;
                static constexpr std::pair<char, char> known[] = {
                    {'n', '\n'}, {'t', '\t'}, {'b', '\b'}, {'"', '"'}, {'\\', '\\'}};
                const auto* found = std::find_if(std::begin(known), std::end(known),
                                                 [c](const auto& pair) { return pair.first == c; });
                if (found == std::end(known)) return false;
                c = found->second;
            }
            value += c;
            kept = value.size();
        }
        value.resize(kept);
        return !quoted;
    }

    std::string_view text_;
    std::size_t at_ = 0;
};

// Whether git reads another file of settings there.
inline bool names_settings(const GitSetting& setting) {
    return setting.key == "path" &&
           (setting.section == "include" || setting.section == "includeif");
}

// Whether git runs its value, as a program or as a line of a shell.
inline bool names_command(const GitSetting& setting) {
    static constexpr std::string_view keys[] = {"fsmonitor",
                                                "sshcommand",
                                                "editor",
                                                "pager",
                                                "askpass",
                                                "gitproxy",
                                                "alternaterefscommand",
                                                "program",
                                                "external",
                                                "command",
                                                "textconv",
                                                "clean",
                                                "smudge",
                                                "process",
                                                "driver",
                                                "helper",
                                                "difffilter",
                                                "cmd",
                                                "path",
                                                "packobjectshook",
                                                "uploadpack",
                                                "receivepack",
                                                "browser",
                                                "tocmd",
                                                "cccmd",
                                                "headercmd",
                                                "sendmailcmd",
                                                "smtpserver",
                                                "recentobjectshook",
                                                "defaultkeycommand",
                                                "guitool",
                                                "update"};
    if (setting.section == "alias" || setting.section == "pager") return true;
    if (names_settings(setting) || (setting.section == "submodule" && setting.key == "path"))
        return false;
    return std::find(std::begin(keys), std::end(keys), setting.key) != std::end(keys);
}

// What a line of a shell could name files by: its words without quotes and what shells substitute.
inline std::vector<std::string> words_of(std::string_view text, std::size_t most = 20'000) {
    static constexpr std::string_view ends = " \t\r\n\"'`;|&()<>{}=$,!";
    std::vector<std::string> words;
    for (std::size_t at = 0; at < text.size() && words.size() < most;) {
        const auto start = text.find_first_not_of(ends, at);
        if (start == text.npos) break;
        at = std::min(text.find_first_of(ends, start), text.size());
        // Longer ones name no file.
        if (at - start < 1'000) words.emplace_back(text.substr(start, at - start));
    }
    return words;
}

}  // namespace ipybox::detail
