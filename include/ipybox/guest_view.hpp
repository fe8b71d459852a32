#pragma once
// What a sandboxed process sees of the disk, worked out from its policy.
#include <fcntl.h>
#include <fnmatch.h>
#include <linux/openat2.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <filesystem>
#include <ipybox/error.hpp>
#include <ipybox/guest_identity.hpp>
#include <ipybox/process.hpp>
#include <ipybox/sandbox.hpp>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ipybox::detail {

inline constexpr std::size_t max_searched = 500'000;  // files looked at for hidden ones

// Files and directories made on the host so that there is something to mount over. They are empty
// (but for commondir), read-only and carry a time stamp that tells them from anything else, so that one left behind by
// a crash is recognised. Several sandboxes may share one; a lock tells whether it is in use.
class Placeholders {
public:
    Placeholders() = default;
    Placeholders(Placeholders&&) = default;
    Placeholders& operator=(Placeholders&&) = delete;
    ~Placeholders() {
        for (auto held = held_.rbegin(); held != held_.rend(); ++held) {
            struct stat now {};
            struct stat ours {};
            // Removing it would take the mount away from another sandbox that still uses it.
            if (::flock(held->file.get(), LOCK_EX | LOCK_NB) != 0) continue;
            if (::fstat(held->file.get(), &ours) == 0 && is_ours(ours) &&
                ::fstatat(held->parent.get(), held->name.c_str(), &now, AT_SYMLINK_NOFOLLOW) == 0 &&
                now.st_ino == ours.st_ino && now.st_dev == ours.st_dev)
                ::unlinkat(held->parent.get(), held->name.c_str(),
                           S_ISDIR(ours.st_mode) ? AT_REMOVEDIR : 0);
        }
    }

    static bool is_ours(const struct stat& file) {
        return file.st_mtim.tv_sec == stamp &&
               (S_ISDIR(file.st_mode) || (S_ISREG(file.st_mode) && file.st_size <= 1));
    }

    // Makes parent/name, or adopts what an earlier run made. False when nobody can create
    // anything there, so that there is nothing to protect.
    bool hold(const UniqueFd& parent, const std::string& name, bool directory) {
        for (int attempt = 0; attempt < 100; ++attempt) {
            const bool made = create(parent, name, directory);
            if (!made && (errno == EROFS || errno == EACCES || errno == EPERM)) return false;
            if (!made && errno != EEXIST)
                throw Error(errc::io_error, "cannot protect " + name + ": " + errno_text());
            Held held{UniqueFd(::fcntl(parent.get(), F_DUPFD_CLOEXEC, 3)), name,
                      UniqueFd(::openat(parent.get(), name.c_str(),
                                        O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC))};
            if (!held.file) continue;
            if (made) {
                // Whatever the umask is, another user of the workspace can recognise it. We may want
                // to make what a directory stands for; the guest has it mounted read-only.
                ::fchmod(held.file.get(), directory ? 0755 : 0444);
                const timespec times[2] = {{stamp, 0}, {stamp, 0}};
                ::futimens(held.file.get(), times);
            }
            // Another sandbox may be removing it at this moment: look again once it is locked.
            struct stat locked {};
            struct stat now {};
            if (::flock(held.file.get(), LOCK_SH | LOCK_NB) == 0 &&
                ::fstat(held.file.get(), &locked) == 0 &&
                ::fstatat(parent.get(), name.c_str(), &now, AT_SYMLINK_NOFOLLOW) == 0 &&
                now.st_ino == locked.st_ino && now.st_dev == locked.st_dev) {
                held_.push_back(std::move(held));
                return true;
            }
        }
        throw Error(errc::io_error, "cannot protect " + name + ": it keeps changing");
    }

private:
    struct Held {
        UniqueFd parent;
        std::string name;
        UniqueFd file;
    };
    static constexpr long stamp = 424'242;

    static bool create(const UniqueFd& parent, const std::string& name, bool directory) {
        if (directory) return ::mkdirat(parent.get(), name.c_str(), 0755) == 0;
        const UniqueFd file(::openat(parent.get(), name.c_str(),
                                     O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0444));
        // git gives up on an empty one; this says what is so without it.
        return file && (name != "commondir" || ::write(file.get(), ".", 1) == 1);
    }

    std::deque<Held> held_;
};

inline std::vector<std::string> components(const fs::path& path) {
    std::vector<std::string> parts;
    for (const auto& part : path) parts.push_back(part);
    return parts;
}

// Is `path` the directory `root` or below it?
inline bool within(const fs::path& path, const fs::path& root) {
    const auto [end, ignored] = std::mismatch(root.begin(), root.end(), path.begin(), path.end());
    return end == root.end();
}

inline bool has_wildcard(std::string_view pattern) {
    return pattern.find_first_of("*?[\\") != std::string_view::npos;
}

inline bool name_match(const std::string& pattern, const char* name) {
    return has_wildcard(pattern) && ::fnmatch(pattern.c_str(), name, 0) == 0;
}

// `*`, `?` and `[]` inside a component, `**` for any number of components.
inline bool glob_match(const std::vector<std::string>& pattern, std::size_t p,
                       const std::vector<std::string>& path, std::size_t at) {
    for (; p < pattern.size(); ++p, ++at) {
        if (pattern[p] == "**") {
            for (std::size_t skip = at; skip <= path.size(); ++skip)
                if (glob_match(pattern, p + 1, path, skip)) return true;
            return false;
        }
        if (at == path.size()) return false;
        if (pattern[p] != path[at] && !name_match(pattern[p], path[at].c_str())) return false;
    }
    return at == path.size();
}

inline fs::path absolute_path(const fs::path& path) {
    if (!path.is_absolute())
        throw Error(errc::bad_argument, "the sandbox needs absolute paths, not " + path.string());
    auto normal = path.lexically_normal();
    return normal.has_filename() || normal == "/" ? normal : normal.parent_path();
}

// A directory or file below `base`, found without following links: the guest may have put them
// there, and whoever starts the sandbox would be led elsewhere. Nothing when it cannot be opened or
// is not below. Throws errc::sandbox_refused.
inline std::optional<struct stat> look_below(const fs::path& base, const fs::path& path) {
    if (path == base || !within(path, base)) return std::nullopt;
    const UniqueFd outer(::open(base.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    open_how how{};
    how.flags = O_PATH | O_NOFOLLOW | O_CLOEXEC;
    how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS;
    const UniqueFd inner(static_cast<int>(::syscall(
        SYS_openat2, outer.get(), path.lexically_relative(base).c_str(), &how, sizeof how)));
    struct stat found {};
    const bool opened = inner && ::fstat(inner.get(), &found) == 0;
    if (opened ? S_ISLNK(found.st_mode) : errno == ELOOP)
        refuse(path.string() + " leads over a symbolic link in " + base.string() +
               ", where a sandbox may have put it: name the place that it leads to");
    return opened ? std::optional(found) : std::nullopt;
}

// Collects the mounts of one guest. The most specific path wins; at one path the stricter rule;
// nothing below a protected path is writable.
class View {
public:
    using Patterns = std::vector<std::vector<std::string>>;  // split into components
    enum class Kind { scratch, readable, writable, write_protected, hidden };

    // Searches the disk for what is hidden. Throws Error: sandbox_refused, bad_argument, io_error.
    explicit View(const SandboxPolicy& policy, bool without_host_sockets = true) {
        for (const auto& path : policy.readable) add_root(path, Kind::readable);
        for (const auto& path : policy.writable) add_root(path, Kind::writable);
        look_at_roots(policy.cwd);
        for (const auto& path : policy.write_protected) protect(absolute_path(path));
        hide(policy.hidden, policy.cwd.empty() ? fs::path("/") : absolute_path(policy.cwd));
        if (without_host_sockets) hide_host_sockets();
        add(fs::path("/tmp"), Kind::scratch);
        const auto home = policy.env.find("HOME");
        if (home != policy.env.end() && home->second.starts_with('/') &&
            !root_of(absolute_path(home->second)))
            add(absolute_path(home->second), Kind::scratch);
    }

    // In the order of mounting: a directory comes before what lies in it.
    const std::map<fs::path, Kind>& mounts() const { return mounts_; }
    bool whole_disk() const { return mounts_.contains("/"); }
    bool holds_below(const fs::path& directory) const {
        const auto next = mounts_.upper_bound(directory);
        return next != mounts_.end() && within(next->first, directory);
    }
    Kind kind(const fs::path& path) const {
        const auto chosen = mounts_.at(path);
        if (chosen != Kind::writable) return chosen;
        for (const auto& [other, rule] : mounts_)
            if (rule == Kind::write_protected && within(path, other)) return rule;
        return chosen;
    }
    std::vector<Access> accesses() const {
        std::vector<Access> wanted;
        for (const auto& [path, rule] : roots_) {
            const bool enter = fs::is_directory(path);
            wanted.push_back(
                {path, R_OK | (enter ? X_OK : 0) | (rule == Kind::writable ? W_OK : 0)});
        }
        return wanted;
    }
    // What is to be found where the guest, or one before it, could have put something else.
    const std::map<fs::path, struct stat>& inner_roots() const { return inner_roots_; }
    Placeholders take_placeholders() { return std::move(placeholders_); }

private:
    void add(const fs::path& path, Kind rule) {
        const auto [place, fresh] = mounts_.try_emplace(path, rule);
        if (!fresh) place->second = std::max(place->second, rule);
    }

    void add_root(const fs::path& given, Kind rule) {
        const auto path = absolute_path(given);
        for (const auto* own : {"/proc", "/dev", "/run/ipybox"})
            if (within(path, own)) refuse("the sandbox has its own " + path.string());
        if (path == "/" && rule == Kind::writable) refuse("the whole disk cannot be made writable");
        add(path, rule);
        const auto [place, fresh] = roots_.try_emplace(path, rule);
        if (!fresh) place->second = std::max(place->second, rule);
    }

    void look_at_roots(const fs::path& cwd) {
        std::vector<fs::path> bases;
        for (const auto& [path, rule] : roots_)
            if (rule == Kind::writable) bases.push_back(path);
        if (!cwd.empty() && cwd != "/") bases.push_back(absolute_path(cwd));
        for (const auto& base : bases)
            for (const auto& [path, rule] : roots_)
                if (const auto found = look_below(base, path)) inner_roots_[path] = *found;
    }

    // Mounts of their own, so that the guest cannot rename them: a later search looks for what they
    // hold under the same names.
    void pin_directories(const fs::path& path) {
        const auto root = root_of(path);
        if (!root || root->second != Kind::writable) return;
        for (auto at = path.parent_path(); at != root->first && within(at, root->first);
             at = at.parent_path()) {
            std::error_code ignored;
            const auto status = fs::symlink_status(at, ignored);
            if (fs::is_symlink(status))
                refuse(at.string() +
                       " is a symbolic link, and what lies behind it cannot be hidden: "
                       "name the place that it leads to");
            if (fs::is_directory(status)) add(at, Kind::writable);
        }
    }

    // The innermost root around a path.
    std::optional<std::pair<fs::path, Kind>> root_of(const fs::path& path) const {
        std::optional<std::pair<fs::path, Kind>> found;
        for (const auto& root : roots_)
            if (within(path, root.first)) found = root;
        return found;
    }

    static std::string lstat_failure(const fs::path& path) {
        return "cannot look at " + path.string() + ": " + errno_text();
    }

    void protect(const fs::path& path) {
        const auto root = root_of(path);
        if (!root || root->second != Kind::writable) return;  // not writable anyway
        if (path == root->first) return add(path, Kind::write_protected);
        auto at = root->first;
        UniqueFd directory(::open(at.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
        if (!directory) throw Error(errc::io_error, lstat_failure(at));
        const auto names = components(path.lexically_relative(at));
        for (std::size_t i = 0; i < names.size(); ++i) {
            const bool last = i + 1 == names.size();
            at /= names[i];
            struct stat found {};
            if (::fstatat(directory.get(), names[i].c_str(), &found, AT_SYMLINK_NOFOLLOW) != 0) {
                if (errno != ENOENT) throw Error(errc::io_error, lstat_failure(at));
                if (placeholders_.hold(directory, names[i], !last)) add(at, Kind::write_protected);
                return;
            }
            if (S_ISLNK(found.st_mode))
                refuse(at.string() +
                       " is a symbolic link and cannot be write-protected: put the "
                       "file itself there");
            const bool left_over = Placeholders::is_ours(found);
            if (left_over) placeholders_.hold(directory, names[i], S_ISDIR(found.st_mode));
            if (last || left_over || !S_ISDIR(found.st_mode)) return add(at, Kind::write_protected);
            // A mount of its own: the guest cannot rename it and put another in its place.
            add(at, Kind::writable);
            directory.reset(::openat(directory.get(), names[i].c_str(),
                                     O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
            if (!directory) throw Error(errc::io_error, lstat_failure(at));
        }
    }

    void hide(const std::vector<std::string>& patterns, const fs::path& cwd) {
        Patterns anywhere, anchored;
        for (auto pattern : patterns) {
            if (pattern.ends_with("/**")) pattern.resize(pattern.size() - 3);
            const fs::path normal = fs::path(pattern).lexically_normal();
            if (pattern.empty() || normal.string().starts_with(".."))
                throw Error(errc::bad_argument, "\"" + pattern +
                                                    "\" hides nothing: patterns are "
                                                    "relative to the workspace or absolute");
            const auto parts = components(normal);
            const bool free = parts[0] == "**" && parts.size() > 1;
            const fs::path rest = free ? normal.lexically_relative("**") : normal;
            if (!has_wildcard(rest.string()))
                hide_absent(normal.is_absolute() ? normal : cwd / rest);
            if (normal.is_absolute()) {
                hide_absolute(normal, parts);
            } else if (!has_wildcard(normal.string())) {
                for (const auto& [root, rule] : roots_) {
                    pin_directories(root / normal);
                    hide_path(root / normal);
                }
            } else {
                fs::path start;
                for (std::size_t i = 0; !has_wildcard(parts[i]); ++i) start /= parts[i];
                for (const auto& [root, rule] : roots_) pin_directories(root / start / "*");
                (free ? anywhere : anchored).push_back(parts);
            }
        }
        for (const auto& [root, rule] : roots_) {
            if (within(root, "/usr")) continue;
            // A search of an outer directory has met what may lie anywhere in this one.
            const bool inner =
                std::any_of(roots_.begin(), roots_.end(), [&root](const auto& other) {
                    return other.first != root && within(root, other.first);
                });
            auto wanted = anchored;
            if (!inner) wanted.insert(wanted.end(), anywhere.begin(), anywhere.end());
            if (wanted.empty() || !fs::is_directory(fs::symlink_status(root))) continue;
            std::vector<std::string> below;
            search(root, below, wanted);
        }
    }

    void hide_absolute(const fs::path& pattern, const std::vector<std::string>& parts) {
        if (!has_wildcard(pattern.string())) {
            pin_directories(pattern);
            return hide_path(pattern);
        }
        std::size_t fixed = 0;
        fs::path start;
        while (!has_wildcard(parts[fixed])) start /= parts[fixed++];
        pin_directories(start / "*");
        for (const auto& [root, rule] : roots_) {
            const bool inside = within(start, root);
            if (!inside && !within(root, start)) continue;
            const fs::path& from = inside ? start : root;
            if (!fs::is_directory(fs::symlink_status(from))) continue;
            std::vector<std::string> below = components(from);
            search(from, below, {parts});
            if (inside) return;
        }
    }

    // `below` is what the patterns are matched against: the components of `directory` itself, or
    // of the way to it from a root.
    void search(const fs::path& directory, std::vector<std::string>& below,
                const Patterns& patterns) {
        std::unique_ptr<DIR, int (*)(DIR*)> listing(::opendir(directory.c_str()), ::closedir);
        // Its owner could open it again: what cannot be searched is hidden as a whole.
        if (!listing && errno == EACCES) return add(directory, Kind::hidden);
        if (!listing && errno == ENOENT) return;
        if (!listing) throw Error(errc::io_error, lstat_failure(directory));
        std::vector<std::string> directories;
        while (const dirent* entry = ::readdir(listing.get())) {
            const char* name = entry->d_name;
            if (std::strcmp(name, ".") == 0 || std::strcmp(name, "..") == 0) continue;
            if (++searched_ > max_searched)
                refuse("more than " + std::to_string(max_searched) +
                       " files lie below the readable and writable paths, too many to search for "
                       "hidden ones: name fewer paths, or hide files by their full path");
            // Most names fail at the pattern's last part: tens of thousands of files may lie here.
            const bool matches =
                std::any_of(patterns.begin(), patterns.end(), [&](const auto& pattern) {
                    if (pattern.back() != name && !name_match(pattern.back(), name)) return false;
                    below.emplace_back(name);
                    const bool all = glob_match(pattern, 0, below, 0);
                    below.pop_back();
                    return all;
                });
            bool is_directory = entry->d_type == DT_DIR;
            if (entry->d_type == DT_UNKNOWN)
                is_directory = fs::is_directory(fs::symlink_status(directory / name));
            if (matches)
                hide_path(directory / name);
            else if (is_directory)
                directories.emplace_back(name);
        }
        // One directory open at a time: the guest decides how deep they are nested.
        listing.reset();
        for (const auto& name : directories) {
            below.push_back(name);
            search(directory / name, below, patterns);
            below.pop_back();
        }
    }

    // A read-only mount does not keep anyone from connecting to a socket. Those that are paths of
    // the policy themselves are meant to be seen.
    void hide_host_sockets() {
        const auto listing = detail::read_proc("/proc/net/unix");
        for (std::size_t start = 0; start < listing.size();) {
            const auto end = std::min(listing.find('\n', start), listing.size());
            const auto line = std::string_view(listing).substr(start, end - start);
            start = end + 1;
            const auto slash = line.find(" /");
            if (slash == std::string_view::npos) continue;
            std::error_code error;
            const fs::path bound(line.substr(slash + 1));
            const auto path = fs::canonical(bound.parent_path(), error) / bound.filename();
            const auto root = root_of(path);
            if (error || !root || root->first == path) continue;
            // Covered by scratch directories.
            if (root->first == "/" && (within(path, "/run") || within(path, "/tmp"))) continue;
            if (fs::is_socket(fs::symlink_status(path, error))) add(path, Kind::hidden);
        }
    }

    void hide_path(const fs::path& path) {
        std::error_code error;
        const auto status = fs::symlink_status(path, error);
        if (!fs::exists(status)) return;
        if (!fs::is_symlink(status)) return add(path, Kind::hidden);
        // A link cannot be mounted over; the file it leads to can.
        const auto target = fs::canonical(path, error);
        if (!error && root_of(target) && fs::is_regular_file(target)) add(target, Kind::hidden);
    }

    // Holds a place for a file that the host may make while the guest runs.
    void hide_absent(const fs::path& path) {
        const auto root = root_of(path);
        if (!root || root->second != Kind::writable || path == root->first) return;
        const UniqueFd outer(::open(root->first.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
        const auto inside = path.parent_path().lexically_relative(root->first);
        open_how how{};
        how.flags = O_PATH | O_DIRECTORY | O_CLOEXEC;
        how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS;
        const UniqueFd parent(static_cast<int>(
            ::syscall(SYS_openat2, outer.get(), inside.c_str(), &how, sizeof how)));
        if (!parent) return;
        struct stat found {};
        const auto name = path.filename().string();
        const bool absent =
            ::fstatat(parent.get(), name.c_str(), &found, AT_SYMLINK_NOFOLLOW) != 0 &&
            errno == ENOENT;
        if ((absent || Placeholders::is_ours(found)) && placeholders_.hold(parent, name, false))
            add(path, Kind::hidden);
    }

    std::map<fs::path, Kind> mounts_;
    std::map<fs::path, Kind> roots_;
    std::map<fs::path, struct stat> inner_roots_;
    Placeholders placeholders_;
    std::size_t searched_ = 0;
};

}  // namespace ipybox::detail
