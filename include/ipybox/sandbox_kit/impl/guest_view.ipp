#pragma once
#include <ipybox/sandbox_kit/guest_view.hpp>

#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <deque>
#include <ipybox/compilation.hpp>
#include <ipybox/detail/file_id.hpp>
#include <ipybox/detail/path_walk.hpp>
#include <ipybox/detail/within.hpp>
#include <ipybox/sandbox_kit/detail/host_run_files.hpp>
#include <ipybox/sandbox_kit/writable_places.hpp>
#include <memory>

namespace ipybox::sandbox_kit {

IPYBOX_DECL std::vector<std::string> components(const fs::path& path) {
    std::vector<std::string> parts;
    for (const auto& part : path) parts.push_back(part);
    return parts;
}

IPYBOX_DECL PathGlobPart::PathGlobPart(std::string_view component) : text(component) {
    std::string plain;
    for (std::size_t i = 0; i < text.size(); ++i) {
        wild = wild || std::string_view("*?[").find(text[i]) != std::string_view::npos;
        if (text[i] == '\\' && i + 1 < text.size()) ++i;
        plain += text[i];
    }
    if (!wild) text = std::move(plain);
}

IPYBOX_DECL PathGlob parse_glob(std::string pattern) {
    if (pattern.ends_with("/**")) pattern.resize(pattern.size() - 3);
    const auto normal = fs::path(pattern).lexically_normal();
    if (pattern.empty() || normal.string().starts_with(".."))
        throw Error(errc::bad_argument, "\"" + pattern +
                                            "\" hides nothing: patterns are "
                                            "relative to the workspace or absolute");
    PathGlob glob;
    for (const auto& part : normal)
        if (!part.empty()) glob.emplace_back(part.native());
    return glob;
}

IPYBOX_DECL fs::path fixed_part(const PathGlob& glob) {
    fs::path path;
    for (auto part = glob.begin(); part != glob.end() && !part->wild; ++part) path /= part->text;
    return path;
}

IPYBOX_DECL bool glob_match(const PathGlob& pattern, std::size_t p,
                            const std::vector<std::string>& path, std::size_t at) {
    for (; p < pattern.size(); ++p, ++at) {
        if (pattern[p].any_depth()) {
            for (std::size_t skip = at; skip <= path.size(); ++skip)
                if (glob_match(pattern, p + 1, path, skip)) return true;
            return false;
        }
        if (at == path.size() || !pattern[p].matches(path[at].c_str())) return false;
    }
    return at == path.size();
}

IPYBOX_DECL bool is_hidden(const SandboxPolicy& policy, const fs::path& path) {
    std::vector<fs::path> roots = policy.readable;
    roots.insert(roots.end(), policy.writable.begin(), policy.writable.end());
    const auto holds = [](const std::vector<fs::path>& list, const fs::path& wanted) {
        return std::find(list.begin(), list.end(), wanted) != list.end();
    };
    std::vector<PathGlob> globs;
    for (const auto& pattern : policy.hidden) {
        const PathGlob glob = parse_glob(pattern);
        if (glob[0].text == "/") {
            globs.push_back(glob);
            continue;
        }
        for (const auto& root : roots) {
            PathGlob whole = parse_glob(literal_glob(root));
            whole.insert(whole.end(), glob.begin(), glob.end());
            globs.push_back(std::move(whole));
        }
    }
    for (auto parts = components(path); !parts.empty(); parts.pop_back()) {
        fs::path at;
        for (const auto& part : parts) at /= part;
        if (holds(policy.shown, at)) return false;
        for (const auto& glob : globs)
            if (glob_match(glob, 0, parts, 0)) return true;
        if (holds(roots, at)) return false;
    }
    return false;
}

IPYBOX_DECL fs::path absolute_path(const fs::path& path) {
    if (!path.is_absolute())
        throw Error(errc::bad_argument, "the sandbox needs absolute paths, not " + path.string());
    auto normal = path.lexically_normal();
    return normal.has_filename() || normal == "/" ? normal : normal.parent_path();
}

IPYBOX_DECL std::optional<struct stat> look_below(const fs::path& base, const fs::path& path) {
    if (path == base || !detail::within(path, base)) return std::nullopt;
    const UniqueFd outer(::open(base.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    open_how how{};
    how.flags = O_PATH | O_NOFOLLOW | O_CLOEXEC;
    how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS;
    const UniqueFd inner(static_cast<int>(::syscall(
        SYS_openat2, outer.get(), path.lexically_relative(base).c_str(), &how, sizeof how)));
    struct stat found{};
    const bool opened = inner && ::fstat(inner.get(), &found) == 0;
    if (opened ? S_ISLNK(found.st_mode) : errno == ELOOP)
        refuse(path.string() + " leads over a symbolic link in " + base.string() +
               ", where a sandbox may have put it: name the place that it leads to");
    return opened ? std::optional(found) : std::nullopt;
}

IPYBOX_DECL bool shows_whole_disk(const SandboxPolicy& policy) {
    return std::any_of(policy.readable.begin(), policy.readable.end(),
                       [](const fs::path& path) { return absolute_path(path) == "/"; });
}

IPYBOX_DECL View::View(const SandboxPolicy& policy, bool without_host_sockets,
                       std::set<fs::path> layered, bool by_directories)
    : by_directories_(by_directories), layered_(std::move(layered)) {
    detail::Placeholders::sweep_what_others_left(config::state_directory());
    for (const auto& path : policy.readable) add_root(path, Kind::readable);
    for (const auto& path : policy.writable) add_root(path, Kind::writable);
    for (const auto& path : policy.shown) shown_.insert(absolute_path(path));
    look_at_roots(policy.cwd);
    for (const auto& path : policy.write_protected) protect(absolute_path(path));
    hide(policy.hidden, policy.cwd.empty() ? fs::path("/") : absolute_path(policy.cwd));
    if (policy.behind_links) {
        *policy.behind_links = std::move(behind_links_);
        policy.behind_links->searched = true;
    }
    if (without_host_sockets) hide_host_sockets();
    add(fs::path("/tmp"), Kind::scratch);
    const auto home = policy.env.find("HOME");
    if (home != policy.env.end() && home->second.starts_with('/') &&
        !root_of(absolute_path(home->second)))
        add(absolute_path(home->second), Kind::scratch);
    std::erase_if(links_, [this](const fs::path& link) { return lies_in_hidden(link); });
    placeholders_.exclude_from_git();
}

IPYBOX_DECL HiddenBehindLinks View::behind_links(const SandboxPolicy& policy) {
    View view;
    view.only_links_ = true;
    for (const auto& path : policy.readable) view.add_root(path, Kind::readable);
    for (const auto& path : policy.writable) view.add_root(path, Kind::writable);
    for (const auto& path : policy.shown) view.shown_.insert(absolute_path(path));
    view.hide(policy.hidden, policy.cwd.empty() ? fs::path("/") : absolute_path(policy.cwd));
    view.behind_links_.searched = true;
    return std::move(view.behind_links_);
}

IPYBOX_DECL bool View::holds_below(const fs::path& directory) const {
    const auto next = mounts_.upper_bound(directory);
    return next != mounts_.end() && detail::within(next->first, directory);
}

IPYBOX_DECL View::Kind View::kind(const fs::path& path) const {
    const auto chosen = mounts_.at(path);
    if (chosen != Kind::writable) return chosen;
    for (const auto& [other, rule] : mounts_)
        if (rule == Kind::write_protected && detail::within(path, other)) return rule;
    return chosen;
}

IPYBOX_DECL std::vector<Access> View::accesses() const {
    std::vector<Access> wanted;
    for (const auto& [path, rule] : roots_) {
        const bool enter = fs::is_directory(path);
        wanted.push_back({path, R_OK | (enter ? X_OK : 0) | (rule == Kind::writable ? W_OK : 0)});
    }
    return wanted;
}

IPYBOX_DECL std::optional<std::pair<std::size_t, fs::path>> View::in_layer(
    const fs::path& path) const {
    const auto root = root_of(path);
    const auto layer = root ? layers_.find(root->first) : layers_.end();
    if (layer == layers_.end()) return std::nullopt;
    return std::pair(static_cast<std::size_t>(std::distance(layers_.begin(), layer)),
                     path.lexically_relative(root->first));
}

IPYBOX_DECL void View::add(const fs::path& path, Kind rule) {
    const auto [place, fresh] = mounts_.try_emplace(path, rule);
    if (!fresh) place->second = std::max(place->second, rule);
}

IPYBOX_DECL void View::add_root(const fs::path& given, Kind rule) {
    const auto path = absolute_path(given);
    for (const auto* own : {"/proc", "/dev", "/run/ipybox"})
        if (detail::within(path, own)) refuse("the sandbox has its own " + path.string());
    if (path == "/" && rule == Kind::writable) refuse("the whole disk cannot be made writable");
    add(path, rule);
    const auto [place, fresh] = roots_.try_emplace(path, rule);
    if (!fresh) place->second = std::max(place->second, rule);
}

IPYBOX_DECL void View::look_at_roots(const fs::path& cwd) {
    std::vector<fs::path> bases;
    for (const auto& [path, rule] : roots_)
        if (rule == Kind::writable) bases.push_back(path);
    if (!cwd.empty() && cwd != "/") bases.push_back(absolute_path(cwd));
    // Where code of other sessions can write, too.
    for (auto& place : writable_places().paths()) bases.push_back(std::move(place));
    for (const auto& base : bases)
        for (const auto& [path, rule] : roots_) {
            if (path == base || !detail::within(path, base)) continue;
            const auto found = look_below(base, path);
            // Until bwrap looks, code could put a link there.
            if (!found) refuse(path.string() + " is not there, or cannot be opened: make it first");
            inner_mounts_[path] = *found;
        }
}

IPYBOX_DECL UniqueFd View::open_root(const fs::path& root) const {
    UniqueFd handle(::open(root.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    const auto seen = inner_mounts_.find(root);
    struct stat now{};
    if (handle && seen != inner_mounts_.end() &&
        (::fstat(handle.get(), &now) != 0 || !detail::same_file(now, seen->second)))
        refuse_exchanged(root);
    return handle;
}

IPYBOX_DECL void View::pin_directories(const fs::path& path) {
    if (only_links_) return;
    const auto root = root_of(path);
    if (!root || root->second != Kind::writable) return;
    for (auto at = path.parent_path(); at != root->first && detail::within(at, root->first);
         at = at.parent_path()) {
        if (inner_mounts_.contains(at)) return;  // and what is around it
        struct stat found{};
        if (::lstat(at.c_str(), &found) != 0) continue;
        if (S_ISLNK(found.st_mode))
            refuse(at.string() +
                   " is a symbolic link, and what lies behind it cannot be hidden: "
                   "name the place that it leads to");
        if (!S_ISDIR(found.st_mode)) continue;
        add(at, Kind::writable);
        inner_mounts_[at] = found;
    }
}

IPYBOX_DECL std::optional<std::pair<fs::path, View::Kind>> View::root_of(
    const fs::path& path) const {
    std::optional<std::pair<fs::path, Kind>> found;
    for (const auto& root : roots_)
        if (detail::within(path, root.first)) found = root;
    return found;
}

IPYBOX_DECL bool View::lies_in_hidden(const fs::path& path) const {
    for (auto at = path.parent_path(); at.has_relative_path(); at = at.parent_path())
        if (const auto mount = mounts_.find(at); mount != mounts_.end())
            if (mount->second == Kind::hidden) return true;
    return false;
}

IPYBOX_DECL void View::protect(const fs::path& path) {
    const auto root = root_of(path);
    if (!root || root->second != Kind::writable) return;  // not writable anyway
    if (path == root->first) return add(path, Kind::write_protected);
    auto at = root->first;
    auto directory = open_root(at);
    if (!directory) throw Error(errc::io_error, lstat_failure(at));
    const auto names = components(path.lexically_relative(at));
    for (std::size_t i = 0; i < names.size(); ++i) {
        const bool last = i + 1 == names.size();
        at /= names[i];
        struct stat found{};
        if (::fstatat(directory.get(), names[i].c_str(), &found, AT_SYMLINK_NOFOLLOW) != 0) {
            if (errno == EACCES) return hide_closed(at);
            if (errno != ENOENT) throw Error(errc::io_error, lstat_failure(at));
            const bool inside =
                !last || (by_directories_ && detail::is_held_as_directory(names[i]));
            if (hold(at, directory, inside)) add(at, Kind::write_protected);
            return;
        }
        if (S_ISLNK(found.st_mode))
            refuse(at.string() +
                   " is a symbolic link and cannot be write-protected: put the "
                   "file itself there");
        const bool left_over = detail::is_placeholder(found);
        if (left_over)
            hold(at, directory, S_ISDIR(found.st_mode));
        else
            inner_mounts_[at] = found;
        if (last || left_over || !S_ISDIR(found.st_mode)) return add(at, Kind::write_protected);
        // A mount of its own: the guest cannot rename it and put another in its place.
        add(at, Kind::writable);
        directory.reset(::openat(directory.get(), names[i].c_str(),
                                 O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
        if (!directory && (errno == ENOENT || errno == ENOTDIR || errno == ELOOP))
            refuse_exchanged(at);
        if (!directory) throw Error(errc::io_error, lstat_failure(at));
    }
}

IPYBOX_DECL void View::hide(const std::vector<std::string>& patterns, const fs::path& cwd) {
    Patterns anywhere, anchored;
    for (const auto& pattern : patterns) {
        const PathGlob glob = parse_glob(pattern);
        const bool absolute = glob[0].text == "/";
        const bool free = glob[0].any_depth() && glob.size() > 1;
        const PathGlob rest(glob.begin() + (free ? 1 : 0), glob.end());
        if (!has_wildcard(rest)) hide_absent(absolute ? fixed_part(rest) : cwd / fixed_part(rest));
        if (absolute) {
            hide_absolute(glob);
        } else if (!has_wildcard(glob)) {
            for (const auto& [root, rule] : roots_) {
                pin_directories(root / fixed_part(glob));  // it may be absent
                hide_path(root / fixed_part(glob));
            }
        } else {
            for (const auto& [root, rule] : roots_) pin_directories(root / fixed_part(glob) / "*");
            (free ? anywhere : anchored).push_back(glob);
        }
    }
    for (const auto& [root, rule] : roots_) {
        if (detail::within(root, "/usr")) continue;
        // A search of an outer directory has met what may lie anywhere in this one.
        const bool inner = std::any_of(roots_.begin(), roots_.end(), [&root](const auto& other) {
            return other.first != root && detail::within(root, other.first);
        });
        auto wanted = anchored;
        if (!inner) wanted.insert(wanted.end(), anywhere.begin(), anywhere.end());
        if (wanted.empty() || !fs::is_directory(fs::symlink_status(root))) continue;
        std::vector<std::string> below;
        search(root, below, wanted);
    }
}

IPYBOX_DECL void View::hide_absolute(const PathGlob& glob) {
    const fs::path start = fixed_part(glob);
    if (!has_wildcard(glob)) {
        pin_directories(start);
        return hide_path(start);
    }
    pin_directories(start / "*");
    for (const auto& [root, rule] : roots_) {
        const bool inside = detail::within(start, root);
        if (!inside && !detail::within(root, start)) continue;
        const fs::path& from = inside ? start : root;
        if (!fs::is_directory(fs::symlink_status(from))) continue;
        std::vector<std::string> below = components(from);
        search(from, below, {glob});
        if (inside) return;
    }
}

IPYBOX_DECL void View::search(const fs::path& directory, std::vector<std::string>& below,
                              const Patterns& patterns) {
    // Nothing can be mounted on a path that is too long, however deep the guest nests it.
    if (directory.native().size() > longest_path - NAME_MAX) return cover(directory);
    UniqueFd handle(
        ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    // Its owner could open it again: what cannot be searched is hidden as a whole.
    if ((!handle || ::faccessat(handle.get(), ".", X_OK, AT_EACCESS) != 0) && errno == EACCES)
        return hide_closed(directory / ".");
    if (!handle && (errno == ENOENT || errno == ENOTDIR || errno == ELOOP)) return;  // exchanged
    std::unique_ptr<DIR, int (*)(DIR*)> listing(handle ? ::fdopendir(handle.get()) : nullptr,
                                                ::closedir);
    if (listing) handle.release();
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
            std::any_of(patterns.begin(), patterns.end(), [&](const PathGlob& pattern) {
                if (!pattern.back().matches(name)) return false;
                below.emplace_back(name);
                const bool all = glob_match(pattern, 0, below, 0);
                below.pop_back();
                return all;
            });
        bool is_directory = entry->d_type == DT_DIR;
        if (entry->d_type == DT_UNKNOWN)
            is_directory = fs::is_directory(fs::symlink_status(directory / name));
        if (matches && ++found_ > max_found)
            refuse("more than " + std::to_string(max_found) + " files, such as " +
                   (directory / name).string() +
                   ", are to be hidden, and there may be no more: remove those that nobody needs");
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

IPYBOX_DECL void View::hide_host_sockets() {
    const auto listing = sandbox_kit::read_proc("/proc/net/unix");
    for (std::size_t start = 0; start < listing.size();) {
        const auto end = std::min(listing.find('\n', start), listing.size());
        const auto line = std::string_view(listing).substr(start, end - start);
        start = end + 1;
        const auto slash = line.find(" /");
        if (slash == std::string_view::npos) continue;
        const fs::path bound(line.substr(slash + 1));
        const auto path = detail::end_of_links(bound.parent_path()) / bound.filename();
        const auto root = root_of(path);
        if (!root || root->first == path) continue;
        // Covered by scratch directories.
        if (root->first == "/" && (detail::within(path, "/run") || detail::within(path, "/tmp")))
            continue;
        if (const auto found = look_at(path); found && S_ISSOCK(found->st_mode)) cover(path);
    }
}

IPYBOX_DECL std::optional<struct stat> View::look_at(const fs::path& path) {
    struct stat found{};
    if (::lstat(path.c_str(), &found) == 0) return found;
    if (errno != ENOENT && errno != ENOTDIR) hide_closed(path);
    return std::nullopt;
}

IPYBOX_DECL void View::hide_closed(const fs::path& path) {
    auto at = path.parent_path();
    for (struct stat found{}; ::lstat(at.c_str(), &found) != 0 && at != at.parent_path();)
        at = at.parent_path();
    const auto root = root_of(at);
    if (!root) return;
    if (at == root->first && root->second == Kind::writable)
        refuse(at.string() +
               " does not let its owner look at what lies in it, which may be to be hidden: "
               "chmod u+rx it");
    cover(at);
}

IPYBOX_DECL void View::look_behind_closed(const fs::path& link) {
    const auto place = detail::end_of_links(link);
    const auto root = root_of(place);
    // Code could let itself in again, and have the host follow the link.
    if (root && root->second == Kind::writable)
        refuse(link.string() + " leads to " + place.string() +
               ", which nobody can look at, and which is to be hidden: let the owner of the "
               "directories on the way in (chmod u+rx), or remove the link");
    hide_closed(place);
}

IPYBOX_DECL void View::hide_path(const fs::path& path) {
    if (!root_of(path) || shown_.contains(path)) return;
    const auto status = look_at(path);
    if (!status) return;
    if (!S_ISLNK(status->st_mode)) return cover(path);
    const UniqueFd behind(::open(path.c_str(), O_PATH | O_CLOEXEC));
    if (!behind && (errno == ENOENT || errno == ENOTDIR || errno == ELOOP)) return;
    if (!behind) return look_behind_closed(path);
    struct stat found{};
    if (::fstat(behind.get(), &found) != 0) throw Error(errc::io_error, lstat_failure(path));
    if (found.st_nlink == 0) refuse_exchanged(path);
    const auto target = fs::read_symlink("/proc/self/fd/" + std::to_string(behind.get()));
    if (shown_.contains(target) || !may_lie_behind_a_link(target, found)) return;
    behind_links_.files.emplace(found.st_dev, found.st_ino);
    cover(target);
    keep_way(path);
}

IPYBOX_DECL void View::cover(const fs::path& path) {
    if (only_links_) return;
    const auto covered = coverable(path);
    pin_directories(covered);
    add(covered, Kind::hidden);
}

IPYBOX_DECL void View::keep_way(const fs::path& path) {
    if (only_links_) return;
    detail::walk_path(path, [this](const fs::path& at, const detail::PathStatus& status) {
        const auto root = root_of(at);
        if (!root || root->second != Kind::writable || at == root->first) return true;
        if (coverable(at) != at) {
            cover(at);
        } else if (S_ISDIR(status.mode)) {
            pin_directories(at / ".");
        } else if (S_ISLNK(status.mode)) {
            links_.insert(at);
        }
        return true;
    });
}

IPYBOX_DECL fs::path View::coverable(const fs::path& given) const {
    fs::path path = given;
    const auto root = root_of(given);
    if (root && root->second == Kind::writable) {
        path = root->first;
        auto part = std::next(given.begin(), std::distance(path.begin(), path.end()));
        for (int depth = 0; depth < max_depth && part != given.end(); ++depth) path /= *part++;
    }
    if (::geteuid() != 0) return path;
    fs::path at = root_of(path)->first;
    for (const auto& part : path.lexically_relative(at).parent_path()) {
        at /= part;
        struct stat found{};
        if (::lstat(at.c_str(), &found) == 0 && found.st_uid == 0 && !(found.st_mode & S_IXOTH))
            return at;
    }
    return path;
}

IPYBOX_DECL bool View::may_lie_behind_a_link(const fs::path& target,
                                             const struct stat& found) const {
    const auto root = root_of(target);
    if (!root || !S_ISREG(found.st_mode)) return false;
    if (root->second == Kind::writable) return true;
    if (root->first != "/" || (found.st_mode & 0111) != 0) return false;
    for (const auto* system :
         {"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc"})
        if (detail::within(target, system)) return false;
    return true;
}

IPYBOX_DECL void View::hide_absent(const fs::path& path) {
    const auto root = root_of(path);
    if (only_links_ || !root || root->second != Kind::writable || path == root->first ||
        shown_.contains(path))
        return;
    const auto outer = open_root(root->first);
    const auto inside = path.parent_path().lexically_relative(root->first);
    open_how how{};
    how.flags = O_PATH | O_DIRECTORY | O_CLOEXEC;
    how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS;
    const UniqueFd parent(
        static_cast<int>(::syscall(SYS_openat2, outer.get(), inside.c_str(), &how, sizeof how)));
    if (!parent) return;
    struct stat found{};
    const bool absent =
        ::fstatat(parent.get(), path.filename().c_str(), &found, AT_SYMLINK_NOFOLLOW) != 0 &&
        errno == ENOENT;
    if ((absent || detail::is_placeholder(found)) && hold(path, parent, false))
        add(path, Kind::hidden);
}

IPYBOX_DECL bool View::hold(const fs::path& path, const UniqueFd& parent, bool directory) {
    const auto name = path.filename().string();
    const auto root = root_of(path)->first;
    struct stat found{};
    const auto is_there = [&] {
        return ::fstatat(parent.get(), name.c_str(), &found, AT_SYMLINK_NOFOLLOW) == 0;
    };
    if (layered_.contains(root)) {
        if (!is_there() || detail::Placeholders::sweep(parent, name)) {
            // Once: each mount on another is one in all places where that one is seen.
            if (held_in_layers_.insert(path).second)
                layers_[root].push_back(path.lexically_relative(root).string() +
                                        (directory ? "/" : ""));
            return true;
        }
        if (!detail::is_placeholder(found)) refuse_exchanged(path);
    }
    if (!placeholders_.hold(root, path.lexically_relative(root), parent, directory)) return false;
    if (!is_there() || S_ISLNK(found.st_mode)) refuse_exchanged(path);
    inner_mounts_[path] = found;
    return true;
}

IPYBOX_DECL void View::refuse_exchanged(const fs::path& path) {
    refuse(path.string() +
           " was exchanged while it was looked at, perhaps by another session in this place, and "
           "cannot be protected: start again");
}

}  // namespace ipybox::sandbox_kit
