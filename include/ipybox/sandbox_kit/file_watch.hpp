#pragma once
// Notices which files that the host runs or obeys (detail/host_run_files.hpp) came or changed while
// code could write a workspace.
#include <sys/stat.h>
#include <time.h>

#include <cstdint>
#include <filesystem>
#include <ipybox/detail/within.hpp>
#include <ipybox/sandbox_kit/detail/host_run_files.hpp>
#include <ipybox/sandbox_kit/detail/placeholder.hpp>
#include <ipybox/sandbox_kit/detail/project_walk.hpp>
#include <ipybox/sandbox_kit/protected_files.hpp>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ipybox::sandbox_kit {

// A change of a listed file that code was able to make.
struct FileChange {
    std::string path;  // relative to the workspace, as code may have chosen it
    const detail::HostRunFile* file;
    bool is_new;
};

// Looks at a workspace when it is made, and later tells what is different. Used on one thread.
class FileWatch {
public:
    // workspace: absolute, without links. depth: levels of directories below it that are looked at.
    // held: absolute paths that code cannot change. change_times: whether the time of the last
    // change counts, which no program can set; not where the host itself changes it. found: what
    // protected_files() has just found there, to the same depth; null: looks itself. Throws Error:
    // io_error (the workspace cannot be opened).
    FileWatch(std::filesystem::path workspace, int depth,
              const std::vector<std::filesystem::path>& held, bool change_times,
              const std::vector<detail::ProjectDirectory>* found = nullptr)
        : tree_(workspace), depth_(depth), change_times_(change_times) {
        for (const auto& path : held)
            if (detail::within(path, workspace))
                held_.insert(path.lexically_relative(workspace).string());
        if (found == nullptr) {
            scan();
            return;
        }
        std::vector<FileChange> known;
        for (const auto& at : *found) look_in(at, known);
    }
    FileWatch(const FileWatch&) = delete;
    FileWatch& operator=(const FileWatch&) = delete;

    // What changed at the top, and in up to max_places directories that held listed files. Its cost
    // does not depend on the size of the workspace.
    std::vector<FileChange> poll() {
        std::vector<FileChange> changes;
        for (auto& [path, place] : places_) {
            struct stat now{};
            if (tree_.kind(path, &now) != detail::FileTree::Kind::directory) continue;
            // A name that came or went changed the directory.
            if (place.changed != change_of(now)) {
                place.changed = change_of(now);
                place.names = names_in(path);
            }
            for (const auto& name : place.names) look_at(path, name, changes);
        }
        return changes;
    }

    // What changed anywhere within the bounds of walk_project(), and since the last look at it.
    std::vector<FileChange> scan() {
        std::vector<FileChange> changes;
        detail::LeftOut left_out, deeper;
        places_.clear();
        walk_project(tree_, depth_, left_out, deeper,
                     [&](const detail::ProjectDirectory& at) { look_in(at, changes); });
        left_out_ = left_out.texts();
        return changes;
    }

    // What the last scan() did not reach, for people.
    const std::vector<std::string>& left_out() const noexcept { return left_out_; }

    static constexpr std::size_t max_places = 64;

private:
    // A directory that poll() looks at.
    struct Place {
        std::pair<std::int64_t, std::int64_t> changed;  // see change_of()
        std::set<std::string> names;                    // in it, of the list
    };

    static constexpr detail::HostRunFile bare_{
        "config", "", detail::HostRun::unasked, detail::Absent::free,
        "git takes its directory for a repository and runs what it names"};

    // When names in a directory last came or went, in seconds and nanoseconds; nothing that is
    // found again while that was so recently that the clock would not tell another time.
    std::pair<std::int64_t, std::int64_t> change_of(const struct stat& directory) {
        timespec now{};
        ::clock_gettime(CLOCK_REALTIME, &now);
        const auto& last = change_times_ ? directory.st_ctim : directory.st_mtim;
        if (now.tv_sec - last.tv_sec < 2) return {-1, ++unsettled_};
        return {last.tv_sec, last.tv_nsec};
    }

    std::set<std::string> names_in(const std::string& directory) const {
        std::set<std::string> names;
        const bool all = tree_.list(directory, 1'000, [&](std::string_view name, bool) {
            if (!detail::listed_as(name).empty()) names.emplace(name);
        });
        if (all) return names;
        // What fits a pattern may be found by the next scan() only.
        for (const auto& file : detail::host_run_files)
            if (const std::string name(detail::first_part(file.path));
                tree_.kind(detail::path_in(directory, name)) != detail::FileTree::Kind::absent)
                names.insert(name);
        return names;
    }

    bool is_held(const std::string& path) const {
        if (held_.contains(path)) return true;
        for (auto at = path.rfind('/'); at != path.npos && at > 0; at = path.rfind('/', at - 1))
            if (held_.contains(path.substr(0, at))) return true;
        return false;
    }

    void look_in(const detail::ProjectDirectory& at, std::vector<FileChange>& changes) {
        for (const auto& name : at.listed) look_at(at.path, name, changes);
        if (at.is_repository) look_at(at.path, bare_, changes);
        if (places_.size() < max_places) places_[at.path] = {change_of(at.status), at.listed};
    }
    void look_at(const std::string& directory, const std::string& name,
                 std::vector<FileChange>& changes) {
        for (const auto* file : detail::listed_as(name)) look_at(directory, *file, changes, name);
    }
    void look_at(const std::string& directory, const detail::HostRunFile& file,
                 std::vector<FileChange>& changes, const std::string& name = {}) {
        const bool pattern = detail::first_part(file.path).find('*') != std::string_view::npos;
        const auto path = detail::path_in(directory, pattern ? std::string_view(name) : file.path);
        if (is_held(path)) return;
        struct stat status{};
        const auto kind = tree_.kind(path, &status);
        if (kind == detail::FileTree::Kind::absent) {
            states_.erase(path);
            return;
        }
        std::size_t budget = 1'000;
        const auto state =
            fingerprint(path, status, kind == detail::FileTree::Kind::directory ? 4 : 0, budget);
        // What holds an absent name's place for another session, which nobody can write.
        if (detail::is_placeholder(status) && (!S_ISDIR(status.st_mode) || budget == 1'000)) return;
        // Code can make more than anybody wants to hear of.
        if (states_.size() > 2 * detail::max_entries && !states_.contains(path)) return;
        const auto [known, is_new] = states_.try_emplace(path, state);
        if (!is_new && std::exchange(known->second, state) == state) return;
        // A new repository has several.
        const bool told =
            is_new && !file.program.empty() && !changes.empty() && changes.back().is_new &&
            changes.back().file->program == file.program &&
            changes.back().path == detail::path_in(directory, changes.back().file->path);
        if (!told) changes.push_back({path, &file, is_new});
    }

    // Different, with what code can do, once anything in it is: the directory's files count, not
    // their order.
    std::uint64_t fingerprint(const std::string& path, const struct stat& status, int levels,
                              std::size_t& budget) const {
        std::uint64_t state = 14'695'981'039'346'656'037u;
        const auto mix = [&state](auto value) {
            state ^= static_cast<std::uint64_t>(value);
            state *= 1'099'511'628'211u;
            state ^= state >> 29;
        };
        mix(status.st_ino);
        mix(status.st_mode);
        if (levels == 0) {
            mix(status.st_size);
            mix(status.st_mtim.tv_sec);
            mix(status.st_mtim.tv_nsec);
            if (change_times_) {
                mix(status.st_ctim.tv_sec);
                mix(status.st_ctim.tv_nsec);
            }
            return state;
        }
        std::vector<std::string> names;
        tree_.list(path, budget, [&](std::string_view name, bool) { names.emplace_back(name); });
        for (const auto& name : names) {
            if (budget == 0) break;
            --budget;
            const auto inner = detail::path_in(path, name);
            struct stat found{};
            const bool enter = tree_.kind(inner, &found) == detail::FileTree::Kind::directory;
            state += fingerprint(inner, found, enter ? levels - 1 : 0, budget) ^
                     std::hash<std::string>()(name);
        }
        return state;
    }

    detail::FileTree tree_;
    int depth_;
    bool change_times_;
    std::set<std::string> held_;
    std::map<std::string, std::uint64_t> states_;
    std::map<std::string, Place> places_;
    std::int64_t unsettled_ = 0;
    std::vector<std::string> left_out_;
};

}  // namespace ipybox::sandbox_kit
