#pragma once
// Which files of a workspace came, changed or went between two moments.
#include <sys/stat.h>

#include <algorithm>
#include <cstddef>
#include <deque>
#include <filesystem>
#include <ipybox/sandbox_kit/detail/project_walk.hpp>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace ipybox::sandbox_kit {

// The regular files and links below a directory that hostile code can write to; no link is
// followed. It is taken in steps, those near the top first.
class WorkspaceSnapshot {
public:
    static constexpr std::size_t max_files = 50'000;     // files and directories
    static constexpr std::size_t max_names = 16u << 20;  // bytes of their paths
    static constexpr std::size_t step_files = 1'000;     // and what one directory has more

    // change_times: whether the time of the last change counts, which no program can set. Throws
    // Error: io_error (the directory cannot be opened).
    WorkspaceSnapshot(const std::filesystem::path& directory, bool change_times)
        : tree_(directory), change_times_(change_times) {}

    // Looks at some more directories; false when there are none left.
    bool step() {
        for (const auto end = seen_ + step_files; !waiting_.empty() && seen_ < end;) {
            const std::string directory = std::move(waiting_.front());
            waiting_.pop_front();
            look_in(directory);
        }
        return !waiting_.empty();
    }
    // False when there were more files than are looked at.
    bool complete() const noexcept { return complete_; }

    // What a file was is told apart by its number, size and times.
    enum class Change { created, changed, removed };
    // Calls tell(path, Change) for each difference of a later snapshot. What one of the two has not
    // looked at is none.
    template <class Tell>
    void compare(const WorkspaceSnapshot& later, const Tell& tell) const {
        for (const auto& [path, file] : later.files_) {
            const auto before = files_.find(path);
            if (before == files_.end()) {
                if (complete_) tell(path, Change::created);
            } else if (before->second != file) {
                tell(path, Change::changed);
            }
        }
        if (!later.complete_) return;
        for (const auto& [path, file] : files_)
            if (!later.files_.contains(path)) tell(path, Change::removed);
    }

private:
    using Tree = detail::FileTree;
    using File = std::tuple<ino_t, mode_t, off_t, time_t, long, time_t, long>;

    void look_in(const std::string& directory) {
        std::vector<std::string> names;
        const auto most = max_files - std::min(max_files, seen_);
        if (!tree_.list(directory, most,
                        [&](std::string_view name, bool) { names.emplace_back(name); }))
            complete_ = false;
        seen_ += names.size() + 1;
        for (const auto& name : names) {
            auto path = detail::path_in(directory, name);
            if (size_ + path.size() > max_names) {
                complete_ = false;
                return;
            }
            size_ += path.size();
            struct stat found{};
            const auto kind = tree_.kind(path, &found);
            if (kind == Tree::Kind::directory) {
                waiting_.push_back(std::move(path));
            } else if (kind == Tree::Kind::file ||
                       (kind == Tree::Kind::link && S_ISLNK(found.st_mode))) {
                files_.emplace(std::move(path), file_of(found));
            }
        }
    }

    File file_of(const struct stat& found) const {
        const timespec changed = change_times_ ? found.st_ctim : timespec{};
        return {found.st_ino,          found.st_mode,  found.st_size,  found.st_mtim.tv_sec,
                found.st_mtim.tv_nsec, changed.tv_sec, changed.tv_nsec};
    }

    Tree tree_;
    bool change_times_;
    bool complete_ = true;
    std::size_t seen_ = 0, size_ = 0;
    std::deque<std::string> waiting_{""};
    std::unordered_map<std::string, File> files_;
};

}  // namespace ipybox::sandbox_kit
