#pragma once
// Keeps files that hold the place of absent names (Placeholders) out of git's sight: a marked block
// in the repository's info/exclude, which git reads for this one clone only.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <filesystem>
#include <ipybox/detail/beneath.hpp>
#include <ipybox/detail/unique_fd.hpp>
#include <ipybox/sandbox_kit/detail/placeholder.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace ipybox::detail {

inline constexpr std::string_view exclude_begin = "# ipybox: held while code runs here {";
inline constexpr std::string_view exclude_end = "# } ipybox";

// `path`, relative to a repository, as the pattern that means it alone.
inline std::string exclude_pattern(const std::filesystem::path& path) {
    std::string pattern = "/";
    for (const char c : path.native()) {
        if (std::string_view("*?[\\ ").find(c) != std::string_view::npos) pattern += '\\';
        pattern += c;
    }
    return pattern;
}

// The text of an exclude file whose block has the given lines; without any, no block.
inline std::string with_exclude_block(std::string_view text, const std::set<std::string>& lines) {
    std::string result;
    bool inside = false;
    // Looked for once: code can write a file of nothing but beginnings.
    const auto last = text.rfind(exclude_end);
    const char* const last_end = last == text.npos ? nullptr : text.data() + last;
    while (!text.empty()) {
        const auto end = std::min(text.find('\n'), text.size());
        const auto line = text.substr(0, end);
        text.remove_prefix(std::min(end + 1, text.size()));
        const bool begins = line == exclude_begin;
        // A block without an end was cut off by hand: what follows is not ours to drop.
        if (begins && last_end != nullptr && text.data() <= last_end) inside = true;
        if (!inside && !begins) (result += line) += '\n';
        if (line == exclude_end) inside = false;
    }
    if (lines.empty()) return result;
    (result += exclude_begin) += '\n';
    for (const auto& line : lines) (result += line) += '\n';
    return (result += exclude_end) += '\n';
}

// Brings the block up to date: those of `names`, relative to `place`, that are placeholders at this
// moment are in it. Does nothing where no directory `.git` is at the place or around it, or what
// lies there is not what git makes: code may have made it, so no link is followed. Never throws.
inline void exclude_from_git(const std::filesystem::path& place,
                             const std::set<std::string>& names) noexcept {
    try {
        std::filesystem::path top = place;
        UniqueFd git;
        for (;; top = top.parent_path()) {
            git.reset(
                ::open((top / ".git").c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
            if (git || !top.has_relative_path()) break;
        }
        const auto info =
            git ? open_beneath(git.get(), "info", O_RDONLY | O_DIRECTORY) : UniqueFd();
        if (!info) return;
        const auto old = open_beneath(info.get(), "exclude", O_RDONLY | O_NONBLOCK | O_NOCTTY);
        const bool absent = !old && errno == ENOENT;
        std::string why;
        const auto text = absent ? std::optional(std::string()) : read_regular(old, 1 << 20, why);
        if (!text) return;
        std::set<std::string> lines;
        const UniqueFd below(::open(place.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
        for (const auto& name : names) {
            // It would be a line of its own, and code can have names protected that it chose.
            if (name.find('\n') != name.npos) continue;
            struct stat found{};
            const auto file = open_beneath(below.get(), name, O_PATH);
            if (file && ::fstat(file.get(), &found) == 0 && S_ISREG(found.st_mode) &&
                is_placeholder(found))
                lines.insert(exclude_pattern((place / name).lexically_relative(top)));
        }
        const auto wanted = with_exclude_block(*text, lines);
        if (wanted == *text || wanted == *text + '\n') return;
        const std::string fresh = "exclude.ipybox-" + std::to_string(::getpid());
        const auto made = open_beneath(info.get(), fresh, O_WRONLY | O_CREAT | O_EXCL, 0644);
        if (!made) return;
        struct stat status{};
        if (old && ::fstat(old.get(), &status) == 0) {
            ::fchmod(made.get(), status.st_mode & 0666);
            if (::geteuid() == 0 && ::fchown(made.get(), status.st_uid, status.st_gid) != 0)
                why = "not given back";
        } else {
            give_to_owner_of(info.get(), made.get());
        }
        try {
            write_all(made.get(), wanted, fresh);
        } catch (const Error& error) {
            why = error.detail();
        }
        if (!why.empty() || ::renameat(info.get(), fresh.c_str(), info.get(), "exclude") != 0)
            ::unlinkat(info.get(), fresh.c_str(), 0);
    } catch (const std::exception&) {
        // git then shows the files as untracked, no more.
    }
}

}  // namespace ipybox::detail
