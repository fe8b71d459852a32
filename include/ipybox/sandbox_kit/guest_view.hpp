#pragma once
// What a sandboxed process sees of the disk, worked out from its policy.
#include <fnmatch.h>
#include <limits.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <ipybox/config.hpp>
#include <ipybox/error.hpp>
#include <ipybox/sandbox.hpp>
#include <ipybox/sandbox_kit/detail/placeholders.hpp>
#include <ipybox/sandbox_kit/detail/workspace_layer.hpp>
#include <ipybox/sandbox_kit/guest_identity.hpp>
#include <ipybox/sandbox_kit/process.hpp>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ipybox::sandbox_kit {

inline constexpr std::size_t max_searched = 500'000;  // files looked at for hidden ones
inline constexpr std::size_t max_found = 2'000;       // hidden ones among them: bwrap takes no more
inline constexpr std::size_t longest_path = PATH_MAX - 256;  // bwrap puts something before it
inline constexpr int max_depth = 32;  // of what is hidden alone, below a writable root

std::vector<std::string> components(const fs::path& path);

// One component of a pattern: `*`, `?` and `[]` match in it, `**` is any number of components, and
// after a backslash a character means itself. Without wildcards it is a name.
struct PathGlobPart {
    explicit PathGlobPart(std::string_view component);
    bool any_depth() const { return wild && text == "**"; }
    // What lies on the disk under the pattern's very name counts as well.
    bool matches(const char* name) const {
        return text == name || (wild && ::fnmatch(text.c_str(), name, 0) == 0);
    }

    std::string text;
    bool wild = false;
};
using PathGlob = std::vector<PathGlobPart>;

// A pattern of SandboxPolicy::hidden, absolute or relative to a root. Throws Error: bad_argument
// (it is no such pattern).
PathGlob parse_glob(std::string pattern);

inline bool has_wildcard(const PathGlob& glob) {
    return std::any_of(glob.begin(), glob.end(),
                       [](const PathGlobPart& part) { return part.wild; });
}

// The parts before the first with a wildcard, as a path.
fs::path fixed_part(const PathGlob& glob);

bool glob_match(const PathGlob& pattern, std::size_t p, const std::vector<std::string>& path,
                std::size_t at);

// Whether the policy hides `path`, which is absolute and leads over no link, as View does: a root
// inside what is hidden is seen. Throws Error: bad_argument (a pattern or path of the policy).
bool is_hidden(const SandboxPolicy& policy, const fs::path& path);

fs::path absolute_path(const fs::path& path);

// A directory or file below `base`, found without following links: the guest may have put them
// there, and whoever starts the sandbox would be led elsewhere. Nothing when it cannot be opened or
// is not below. Throws Error: sandbox_refused (the way there leads over a link).
std::optional<struct stat> look_below(const fs::path& base, const fs::path& path);

// Whether the policy shows the whole disk. Throws Error: bad_argument (a path is not absolute).
bool shows_whole_disk(const SandboxPolicy& policy);

// Collects the mounts of one guest. The most specific path wins; at one path the stricter rule;
// nothing below a protected path is writable.
class View {
public:
    using Patterns = std::vector<PathGlob>;
    enum class Kind { scratch, readable, writable, write_protected, hidden };

    // Searches the disk for what is hidden. layered: writable paths of the policy whose absent
    // names are not held on the disk, but by layers(). by_directories: where directories are usual,
    // directories hold absent names. Throws Error: sandbox_refused (something cannot be hidden or
    // protected), bad_argument (a pattern or path), io_error (a file failed).
    explicit View(const SandboxPolicy& policy, bool without_host_sockets = true,
                  std::set<fs::path> layered = {}, bool by_directories = true);

    // What a guest that started now would find hidden because links with hidden names lead to it.
    // Throws what the constructor throws.
    static HiddenBehindLinks behind_links(const SandboxPolicy& policy);

    // In the order of mounting: a directory comes before what lies in it.
    const std::map<fs::path, Kind>& mounts() const { return mounts_; }
    bool whole_disk() const { return mounts_.contains("/"); }
    bool holds_below(const fs::path& directory) const;
    Kind kind(const fs::path& path) const;
    std::vector<Access> accesses() const;
    // What is to be found where the guest, or one before it, could have put something else.
    const std::map<fs::path, struct stat>& inner_mounts() const { return inner_mounts_; }
    detail::Placeholders take_placeholders() { return std::move(placeholders_); }
    // What each of the layered paths has to hold; those without are missing.
    const std::map<fs::path, detail::HeldNames>& layers() const { return layers_; }
    // The layer that a path is seen through, by its place among layers(), and what it is called
    // there.
    std::optional<std::pair<std::size_t, fs::path>> in_layer(const fs::path& path) const;
    // Those to be hidden: who goes along paths cannot mount on them.
    const std::set<fs::path>& links() const { return links_; }
    // Whether it is one of the names that a layer holds.
    bool holds_in_layer(const fs::path& path) const { return held_in_layers_.contains(path); }

private:
    View() = default;

    void add(const fs::path& path, Kind rule);

    void add_root(const fs::path& given, Kind rule);

    void look_at_roots(const fs::path& cwd);

    // A root as look_at_roots() has found it.
    UniqueFd open_root(const fs::path& root) const;

    // Mounts of their own, so that the guest cannot rename them: a later search looks for what they
    // hold under the same names.
    void pin_directories(const fs::path& path);

    // The innermost root around a path.
    std::optional<std::pair<fs::path, Kind>> root_of(const fs::path& path) const;

    bool lies_in_hidden(const fs::path& path) const;

    // The guest of another sandbox has put something else there between two looks.
    [[noreturn]] static void refuse_exchanged(const fs::path& path);

    static std::string lstat_failure(const fs::path& path) {
        return "cannot look at " + path.string() + ": " + errno_text();
    }

    void protect(const fs::path& path);

    void hide(const std::vector<std::string>& patterns, const fs::path& cwd);

    void hide_absolute(const PathGlob& glob);

    // `below` is what the patterns are matched against: the components of `directory` itself, or
    // of the way to it from a root.
    void search(const fs::path& directory, std::vector<std::string>& below,
                const Patterns& patterns);

    // A read-only mount does not keep anyone from connecting to a socket. Those that are paths of
    // the policy themselves are meant to be seen.
    void hide_host_sockets();

    void hide_path(const fs::path& path);

    // What lies there, no link followed; nothing also when it cannot be seen, and hide_closed() was
    // called.
    std::optional<struct stat> look_at(const fs::path& path);

    // Hides the directory that keeps everybody from looking at `path`: the guest may own it, and
    // could open it again.
    void hide_closed(const fs::path& path);

    // The same for what a link with a hidden name leads to.
    void look_behind_closed(const fs::path& link);

    // Hides what lies there, or what is coverable() around it, and keeps the guest from moving a
    // directory around that to where the search for the next one has been already.
    void cover(const fs::path& path);

    // Keeps the guest from leading a link with a hidden name elsewhere, or removing it: the search
    // for the next one would miss what it leads to.
    void keep_way(const fs::path& path);

    // What can be mounted on: `path` or a directory around it. Deeper than max_depth the guest
    // could have nested more than can be mounts; and root's guest, another user, can do nothing in
    // a directory that is closed to it, but it can be kept out of it.
    fs::path coverable(const fs::path& path) const;

    // The guest makes links: none may take away what the next one is started with.
    bool may_lie_behind_a_link(const fs::path& target, const struct stat& found) const;

    // Holds a place for a file that the host may make while the guest runs.
    void hide_absent(const fs::path& path);

    // Holds the place of `path`, which is absent or what somebody held it by.
    bool hold(const fs::path& path, const UniqueFd& parent, bool directory);

    std::map<fs::path, Kind> mounts_;
    std::map<fs::path, Kind> roots_;
    std::map<fs::path, struct stat> inner_mounts_;
    std::set<fs::path> shown_;
    HiddenBehindLinks behind_links_;
    bool only_links_ = false;
    detail::Placeholders placeholders_{config::state_directory()};
    bool by_directories_ = true;
    std::set<fs::path> layered_;
    std::map<fs::path, detail::HeldNames> layers_;
    std::set<fs::path> held_in_layers_;
    std::set<fs::path> links_;
    std::size_t searched_ = 0;
    std::size_t found_ = 0;
};

}  // namespace ipybox::sandbox_kit

#ifndef IPYBOX_SEPARATE_COMPILATION
#include <ipybox/sandbox_kit/impl/guest_view.ipp>
#endif
