#pragma once
// The directories of a workspace and what lies in them, read by directory handles, over no link.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <deque>
#include <filesystem>
#include <functional>
#include <ipybox/detail/beneath.hpp>
#include <ipybox/detail/unique_fd.hpp>
#include <ipybox/sandbox_kit/detail/git_config.hpp>
#include <ipybox/sandbox_kit/detail/host_run_files.hpp>
#include <ipybox/sandbox_kit/detail/project_directory.hpp>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace ipybox::detail {

// Entries of the list whose first part is `name`.
inline std::vector<const HostRunFile*> listed_as(std::string_view name) {
    struct Index {
        std::unordered_map<std::string_view, std::vector<const HostRunFile*>> exact;
        std::vector<const HostRunFile*> patterns;
        Index() {
            for (const auto& file : host_run_files) {
                const auto part = first_part(file.path);
                if (part.find('*') == part.npos)
                    exact[part].push_back(&file);
                else
                    patterns.push_back(&file);
            }
        }
    };
    static const Index index;
    std::vector<const HostRunFile*> found;
    if (const auto known = index.exact.find(name); known != index.exact.end())
        found = known->second;
    for (const auto* file : index.patterns)
        if (fits(first_part(file->path), name)) found.push_back(file);
    return found;
}

// The files below one directory, each named relative to it; "" is the directory itself. A name that
// begins with ".." is what lies outside, where links are the user's own and are followed.
class FileTree {
public:
    enum class Kind { absent, file, directory, link, other };
    using TellClosed = std::function<void(const std::string&)>;

    // tell_closed: called with each directory that keeps this user from looking at what lies in it.
    // Code that owns one could open it again: what was absent, or not listed, may be there.
    explicit FileTree(const std::filesystem::path& directory, TellClosed tell_closed = {})
        : top_(open_directory(directory)), tell_closed_(std::move(tell_closed)) {}

    static bool is_outside(std::string_view name) {
        return name == ".." || name.starts_with("../");
    }

    // `link` also when one stands on the way.
    Kind kind(const std::string& name, struct stat* found = nullptr) const {
        const auto handle = open(name, O_PATH | O_NOFOLLOW);
        struct stat status{};
        if (!handle || ::fstat(handle.get(), &status) != 0) {
            if (errno == ELOOP || errno == EXDEV) return Kind::link;
            if (errno == EACCES) look_for_closed(name);
            return Kind::absent;
        }
        if (found) *found = status;
        if (S_ISLNK(status.st_mode)) return Kind::link;
        if (S_ISDIR(status.st_mode)) return Kind::directory;
        return S_ISREG(status.st_mode) ? Kind::file : Kind::other;
    }

    UniqueFd directory(const std::string& name) const { return open(name, O_RDONLY | O_DIRECTORY); }

    // A regular file of at most max_settings bytes; without one, `why` says why not.
    std::optional<std::string> read(const std::string& name, std::string& why) const {
        // Without waiting, because opening a pipe would.
        const auto file = open(name, O_RDONLY | O_NONBLOCK | O_NOCTTY);
        return read_regular(file, max_settings, why);
    }

    // At most so many bytes of a regular file.
    std::string beginning(const std::string& name, std::size_t bytes) const {
        const auto file = open(name, O_RDONLY | O_NONBLOCK | O_NOCTTY);
        struct stat status{};
        if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return {};
        std::string text(bytes, '\0');
        const auto count = ::pread(file.get(), text.data(), bytes, 0);
        text.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
        return text;
    }

    std::optional<std::string> link_target(const std::string& name) const {
        const auto handle = open(name, O_PATH | O_NOFOLLOW);
        char target[4096];
        const auto size = handle ? ::readlinkat(handle.get(), "", target, sizeof target) : -1;
        if (size <= 0 || size == sizeof target) return std::nullopt;
        return std::string(target, static_cast<std::size_t>(size));
    }

    // Calls use(name, is_directory) for up to `most` entries; false when there are more. before:
    // what the directory was before it was read.
    template <class Use>
    bool list(const std::string& name, std::size_t most, const Use& use,
              struct stat* before = nullptr) const {
        auto handle = directory(name);
        if (!handle && errno == EACCES) look_for_closed(name);
        if (handle && before) ::fstat(handle.get(), before);
        const std::unique_ptr<DIR, int (*)(DIR*)> listing(
            handle ? ::fdopendir(handle.get()) : nullptr, ::closedir);
        if (!listing) return true;
        handle.release();
        while (const dirent* entry = ::readdir(listing.get())) {
            const std::string_view found(entry->d_name);
            if (found == "." || found == "..") continue;
            if (most-- == 0) return false;
            bool is_directory = entry->d_type == DT_DIR;
            if (entry->d_type == DT_UNKNOWN) {
                struct stat status{};
                is_directory = ::fstatat(::dirfd(listing.get()), entry->d_name, &status,
                                         AT_SYMLINK_NOFOLLOW) == 0 &&
                               S_ISDIR(status.st_mode);
            }
            use(found, is_directory);
        }
        return true;
    }

private:
    UniqueFd open(const std::string& name, int flags) const {
        const std::string path = name.empty() ? "." : name;
        if (!is_outside(name)) return open_beneath(top_.get(), path, flags);
        return UniqueFd(::openat(top_.get(), path.c_str(), flags | O_CLOEXEC));
    }

    // Tells of the innermost directory on the way that can be named at all.
    void look_for_closed(std::string name) const {
        if (!tell_closed_ || is_outside(name)) return;
        while (!name.empty() && !open(name, O_PATH | O_DIRECTORY | O_NOFOLLOW)) {
            const auto slash = name.rfind('/');
            name.resize(slash == name.npos ? 0 : slash);
        }
        tell_closed_(name);
    }

    UniqueFd top_;
    TellClosed tell_closed_;
};

inline std::string path_in(const std::string& directory, std::string_view name) {
    return directory.empty() ? std::string(name) : directory + "/" + std::string(name);
}

// Whether a file named config is that of a repository: git writes one of the two at its beginning.
inline bool begins_like_a_repository(std::string_view config) {
    const auto settings = GitConfigReader(config).read();
    return std::any_of(settings.begin(), settings.end(), [](const GitSetting& setting) {
        return setting.section == "core" && setting.subsection.empty() &&
               (setting.key == "repositoryformatversion" || setting.key == "bare");
    });
}

// Collects what was left out, the first of each kind by name.
class LeftOut {
public:
    void add(const std::string& kind, const std::string& name) {
        auto& [first, count] = kinds_[kind];
        if (count++ == 0) first = name;
    }
    std::vector<std::string> texts() const {
        std::vector<std::string> all;
        for (const auto& [kind, seen] : kinds_) {
            const auto& [first, count] = seen;
            all.push_back(first + (count > 1 ? " and " + std::to_string(count - 1) + " more" : "") +
                          ": " + kind);
        }
        return all;
    }

private:
    std::map<std::string, std::pair<std::string, std::size_t>> kinds_;
};

// Visits the directories of a workspace, those near its top first.
inline void walk_project(const FileTree& tree, int depth, LeftOut& left_out, LeftOut& deeper,
                         const std::function<void(const ProjectDirectory&)>& visit) {
    const auto too_deep =
        "deeper than " + std::to_string(depth) + " levels, where nothing is searched";
    std::deque<std::pair<std::string, int>> waiting{{"", 0}};
    std::size_t entries = 0;
    for (; !waiting.empty(); waiting.pop_front()) {
        const std::string path = waiting.front().first;
        const int level = waiting.front().second;
        if (entries >= max_entries) {
            left_out.add("not searched, because more than " + std::to_string(max_entries) +
                             " files lie before it",
                         path);
            continue;
        }
        ProjectDirectory found;
        found.path = path;
        int shape = 0;
        bool has_config = false;
        const auto look = [&](std::string_view name, bool is_directory) {
            ++entries;
            const auto listed = listed_as(name);
            if (!listed.empty()) found.listed.emplace(name);
            shape |= name == "HEAD" ? 1 : name == "objects" ? 2 : name == "refs" ? 4 : 0;
            has_config = has_config || (name == "config" && !is_directory);
            const bool whole = std::any_of(listed.begin(), listed.end(), [](const auto* file) {
                return file->path.find('/') == file->path.npos;
            });
            if (!is_directory || whole || name == ".git") return;
            const auto* end = std::end(vendored_directories);
            if (std::find(std::begin(vendored_directories), end, name) != end) return;
            if (level < depth)
                waiting.emplace_back(path_in(path, name), level + 1);
            else
                deeper.add(too_deep, path_in(path, name));
        };
        if (!tree.list(path, max_listing, look, &found.status)) {
            left_out.add("has more than " + std::to_string(max_listing) +
                             " entries, of whose directories not all are searched",
                         path.empty() ? "the workspace" : path);
            // The names themselves can be asked for.
            for (const auto& file : host_run_files)
                if (const std::string name(first_part(file.path));
                    tree.kind(path_in(path, name)) != FileTree::Kind::absent)
                    found.listed.insert(name);
        }
        // Of what makes it one to git, code can take away all but its configuration.
        found.is_repository =
            shape == 7 ||
            (has_config && begins_like_a_repository(tree.beginning(path_in(path, "config"), 4096)));
        if (!found.listed.empty() || found.is_repository || path.empty()) visit(found);
    }
}

}  // namespace ipybox::detail
