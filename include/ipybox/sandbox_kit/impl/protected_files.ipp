#pragma once
#include <ipybox/sandbox_kit/protected_files.hpp>

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <ipybox/compilation.hpp>
#include <ipybox/detail/within.hpp>
#include <ipybox/sandbox_kit/detail/git_config.hpp>
#include <ipybox/sandbox_kit/detail/host_run_files.hpp>
#include <ipybox/sandbox_kit/detail/project_walk.hpp>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ipybox::sandbox_kit {

// Finds what ProtectionRules protect in one workspace.
class ProtectionSearch {
public:
    ProtectionSearch(std::filesystem::path workspace, const ProtectionRules& rules)
        : workspace_(std::move(workspace)),
          rules_(rules),
          // What lies in there is as absent now as code wants it to be. It makes as many as it
          // likes.
          tree_(workspace_, [this](const std::string& closed) { patterned_.push_back(closed); }) {}

    ProtectedFiles run() {
        follow_repositories_around();
        detail::LeftOut deeper;
        walk_project(tree_, rules_.depth, left_out_, deeper,
                     [this](const detail::ProjectDirectory& at) {
                         finish_above(depth_of(at.path));
                         look_at(at);
                         result_.directories.push_back(at);
                     });
        finish_above(std::numeric_limits<std::ptrdiff_t>::max());
        for (const auto& name : patterned_) protect(name);
        result_.left_out = left_out_.texts();
        for (const auto& text : deeper.texts()) result_.deeper = text;
        return std::move(result_);
    }

private:
    using Tree = detail::FileTree;
    using Kind = Tree::Kind;
    static constexpr int max_nesting = 10;

    bool is_wanted(const detail::HostRunFile& file) const {
        const bool config = file.path.starts_with(".git/") && is_git_config(file.path.substr(5));
        if (config && !rules_.git_config) return false;
        return file.when == detail::HostRun::unasked || rules_.strict;
    }

    static std::ptrdiff_t depth_of(const std::string& path) {
        return path.empty() ? 0 : 1 + std::count(path.begin(), path.end(), '/');
    }

    // Mounts are given out from the top down, and at one level to names that code cannot multiply
    // in a directory first: what it makes deeper down takes none from what lies above.
    void look_at(const detail::ProjectDirectory& at) {
        const bool top = at.path.empty();
        std::set<std::string_view> programs;
        for (const auto& name : at.listed)
            for (const auto* file : detail::listed_as(name))
                programs.insert(file->program.empty() ? file->path : file->program);
        for (const auto& file : detail::host_run_files) {
            if (!is_wanted(file)) continue;
            if (is_pattern(file)) continue;
            const bool there = programs.contains(file.program.empty() ? file.path : file.program);
            const bool held = top && rules_.absent && file.absent != detail::Absent::free;
            const bool strict =
                top && rules_.absent && file.when == detail::HostRun::on_persons_act;
            if (there || held || strict) protect(detail::path_in(at.path, file.path), held);
        }
        if (at.listed.contains(".git")) follow_git(at.path);
        if (at.is_repository) look_at_repository(at.path, at.path);
        // With HEAD, objects and refs a directory that has no repository is one itself to git.
        if (top && rules_.absent && rules_.git_config && tree_.kind(".git/HEAD") == Kind::absent)
            protect("HEAD");
        for (const auto& name : at.listed)
            for (const auto* file : detail::listed_as(name))
                if (is_pattern(*file) && is_wanted(*file))
                    patterned_.push_back(detail::path_in(at.path, name));
    }
    static bool is_pattern(const detail::HostRunFile& file) {
        return detail::first_part(file.path).find('*') != std::string_view::npos;
    }

    // must: the start is refused rather than a link left in its place, where no code can have made
    // one.
    void protect(const std::string& name, bool must = false) {
        if (name.empty() || Tree::is_outside(name) || !seen_.insert(name).second) return;
        const auto path = workspace_ / name;
        for (const auto& opened : rules_.opened)
            if (detail::within(path, opened)) return result_.opened.push_back(path);
        // What is mounted is named in full.
        if (path.native().size() > 3'500)
            return left_out_.add("its path is too long to be protected", name.substr(0, 100) + "…");
        if (!must && tree_.kind(name) == Kind::link)
            return left_out_.add(
                "is a symbolic link, or reached over one, and cannot be protected: put the file "
                "itself there",
                name);
        std::size_t mounts = 1;
        for (auto at = name.rfind('/'); at != name.npos;
             at = at == 0 ? name.npos : name.rfind('/', at - 1))
            mounts += pinned_.contains(name.substr(0, at)) ? 0 : 1;
        if (mounts_ + mounts > detail::max_protected)
            return left_out_.add("not protected, because that would take more than " +
                                     std::to_string(detail::max_protected) + " mounts",
                                 name);
        mounts_ += mounts;
        for (auto at = name.rfind('/'); at != name.npos;
             at = at == 0 ? name.npos : name.rfind('/', at - 1))
            pinned_.insert(name.substr(0, at));
        result_.paths.push_back(path);
    }

    // The name of what `path`, in a file of `directory`, leads to, be it outside.
    std::optional<std::string> anywhere(const std::string& directory, std::string_view path) const {
        if (path.empty() || path.find('\0') != path.npos || path.size() > 4'000)
            return std::nullopt;
        std::filesystem::path target(path);
        if (path.starts_with("~/")) {
            const char* home = ::getenv("HOME");
            if (home == nullptr) return std::nullopt;
            target = std::filesystem::path(home) / std::filesystem::path(path.substr(2));
        } else if (path.front() == '~') {
            return std::nullopt;
        }
        target = (workspace_ / directory / target).lexically_normal();
        if (!target.has_filename()) target = target.parent_path();
        const auto relative = target.lexically_relative(workspace_);
        if (relative.empty()) return std::nullopt;
        return relative == "." ? std::string() : relative.string();
    }
    // The same, nothing outside of the workspace.
    std::optional<std::string> inside(const std::string& directory, std::string_view path) const {
        auto name = anywhere(directory, path);
        if (name && Tree::is_outside(*name)) name.reset();
        return name;
    }
    // The same for a path of git's, with the working tree that it is of: the user's own may lead
    // outside, those that code can make may not.
    std::optional<std::string> from_git(const std::string& working_tree,
                                        const std::string& directory, std::string_view path) const {
        return working_tree.empty() || Tree::is_outside(working_tree) ? anywhere(directory, path)
                                                                      : inside(directory, path);
    }

    // The workspace may be a part of a repository: what git runs for that may lie in it. git obeys
    // none of somebody else's.
    void follow_repositories_around() {
        struct stat own{}, found{};
        tree_.kind("", &own);
        std::string at;
        for (auto above = workspace_; above.has_relative_path(); above = above.parent_path()) {
            at += at.empty() ? ".." : "/..";
            if (tree_.kind(detail::path_in(at, ".git"), &found) != Kind::absent &&
                (found.st_uid == ::geteuid() || found.st_uid == own.st_uid))
                follow_git(at);
        }
    }

    // The .git of a directory, which may also be a file that leads elsewhere.
    void follow_git(const std::string& directory) {
        const auto git = detail::path_in(directory, ".git");
        const auto kind = tree_.kind(git);
        if (kind == Kind::directory) return look_at_repository(git, directory);
        if (kind != Kind::file) return;
        std::string why;
        const auto text = tree_.read(git, why);
        if (!text || !text->starts_with("gitdir:")) return;
        auto path = text->substr(7);
        path.erase(0, path.find_first_not_of(" \t"));
        if (const auto end = path.find_first_of("\r\n"); end != path.npos) path.resize(end);
        if (const auto target = from_git(directory, directory, path))
            look_at_repository(*target, directory);
    }

    // git: where its hooks and configuration lie. directory: where git runs what they name.
    void look_at_repository(const std::string& git, const std::string& directory, int nesting = 0) {
        if (nesting > max_nesting || tree_.kind(git) != Kind::directory ||
            !repositories_.insert(git).second)
            return;
        protect(detail::path_in(git, "hooks"));
        if (rules_.git_config)
            for (const char* name : {"config", "commondir", "config.worktree"})
                protect(detail::path_in(git, name));
        read_config(detail::path_in(git, "config"), directory);
        read_config(detail::path_in(git, "config.worktree"), directory);
        read_hooks(detail::path_in(git, "hooks"), directory);
        std::string why;
        if (auto common = tree_.read(detail::path_in(git, "commondir"), why)) {
            while (!common->empty() && common->back() == '\n') common->pop_back();
            if (const auto target = from_git(directory, git, *common))
                look_at_repository(*target, directory, nesting + 1);
        }
        if (Tree::is_outside(git)) return;
        // git follows a submodule into modules, and a working tree into worktrees.
        for (const char* name : {"modules", "worktrees"})
            if (const auto inner = detail::path_in(git, name); nesting < max_nesting)
                waiting_.emplace(depth_of(inner), std::pair(inner, nesting + 1));
    }
    // What waited until all directories nearer to the top than `depth` were looked at.
    void finish_above(std::ptrdiff_t depth) {
        if (depth > std::exchange(depth_, depth))
            for (const auto& name : std::exchange(patterned_, {})) protect(name);
        while (!waiting_.empty() && waiting_.begin()->first < depth) {
            const auto next = waiting_.extract(waiting_.begin());
            look_for_repositories(next.mapped().first, next.mapped().second);
        }
    }
    // is_one: the directory is a repository itself, and has what they have.
    void look_for_repositories(const std::string& directory, int nesting, bool is_one = false) {
        if (nesting > max_nesting) return;
        std::vector<std::string> found;
        const auto most = std::min(detail::max_listing,
                                   detail::max_entries - std::min(detail::max_entries, listed_));
        const bool all = tree_.list(directory, most, [&](std::string_view name, bool is_directory) {
            ++listed_;
            if (is_directory && !(is_one && is_of_git(name)))
                found.push_back(detail::path_in(directory, name));
        });
        if (!all)
            left_out_.add("has too many entries, not all of which are searched for repositories",
                          directory);
        for (const auto& path : found) {
            // HEAD code can take away, the others are protected. And it can make any directory
            // look like a repository, so that there may be others below.
            bool repository = false;
            for (const char* name : {"HEAD", "config", "commondir"})
                repository = repository || tree_.kind(detail::path_in(path, name)) != Kind::absent;
            if (repository) look_at_repository(path, path, nesting);
            look_for_repositories(path, nesting + 1, repository);
        }
    }
    // Of these modules and worktrees are looked at elsewhere.
    static bool is_of_git(std::string_view name) {
        for (const std::string_view own : {"branches", "hooks", "info", "lfs", "logs", "modules",
                                           "objects", "refs", "worktrees"})
            if (name == own) return true;
        return false;
    }

    std::optional<std::string> read(const std::string& name, const char* what) {
        if (!read_.insert(name).second || tree_.kind(name) == Kind::absent) return std::nullopt;
        std::string why = "more than " + std::to_string(detail::max_read) + " such files are there";
        std::optional<std::string> text;
        if (++read_count_ <= detail::max_read) text = tree_.read(name, why);
        if (!text)
            left_out_.add(std::string(what) + " was not read for further files: " + why, name);
        return text;
    }

    void read_config(const std::string& name, const std::string& directory, int nesting = 0) {
        const auto text =
            nesting > max_nesting ? std::nullopt : read(name, "a configuration of git");
        if (!text) return;
        const auto from = std::filesystem::path(name).parent_path().string();
        for (const auto& setting : detail::GitConfigReader(*text).read()) {
            if (detail::names_settings(setting)) {
                if (const auto target = from_git(directory, from, setting.value)) {
                    // One that is absent could come to be.
                    if (rules_.git_config) protect(*target);
                    read_config(*target, directory, nesting + 1);
                }
            } else if (setting.key == "hookspath" || setting.key == "templatedir") {
                protect_hooks(setting.value, directory);
            } else if (detail::names_command(setting)) {
                protect_scripts(setting.value, {directory}, directory);
            }
        }
    }

    void protect_hooks(const std::string& value, const std::string& directory) {
        const auto target = from_git(directory, directory, value);
        if (!target) return;
        if (target->empty() || std::filesystem::path(*target).filename() == "..")
            return left_out_.add("git finds its hooks there, and it cannot be protected as a whole",
                                 "the workspace");
        // husky keeps its own part of them in `_`.
        if (const auto parent = target->rfind("/_");
            parent != target->npos && parent + 2 == target->size())
            protect(target->substr(0, parent));
        protect(*target);
        read_hooks(*target, directory);
    }
    void read_hooks(const std::string& hooks, const std::string& directory) {
        std::vector<std::string> names;
        tree_.list(hooks, 64, [&](std::string_view name, bool is_directory) {
            if (!is_directory && !name.ends_with(".sample"))
                names.push_back(detail::path_in(hooks, name));
        });
        for (const auto& name : names) {
            if (tree_.kind(name) != Kind::link) {
                read_script(name, directory);
            } else if (const auto target = tree_.link_target(name)) {
                protect_script(*target, {hooks}, directory, true);
            }
        }
    }

    // What a program of the host runs by that word in one of the directories, if it is a script of
    // the workspace. starts_in: where that program starts.
    void protect_script(const std::string& word, const std::vector<std::string>& directories,
                        const std::string& starts_in, bool sure = false) {
        std::set<std::string> names;
        const auto slash = word.find('/');
        for (const auto& directory : directories) {
            if (const auto name = inside(directory, word)) names.insert(*name);
            // "$ROOT/x", "$(dirname "$0")/x" and the like.
            if (slash != word.npos && slash + 1 < word.size())
                if (const auto name = inside(directory, word.substr(slash + 1)))
                    names.insert(*name);
        }
        for (const auto& name : names) {
            if (name.empty()) continue;
            struct stat status{};
            const auto kind = tree_.kind(name, &status);
            if (kind == Kind::absent || kind == Kind::directory) continue;
            const bool link = kind == Kind::link;
            if (!sure && !is_script(name) && (link || (status.st_mode & 0111) == 0)) continue;
            if (link || is_vendored(name)) {
                left_out_.add(
                    "git's hooks or settings run it, and it cannot be protected: it is a link or "
                    "was installed there",
                    name);
                continue;
            }
            protect(name);
            read_script(name, starts_in);
        }
    }
    void read_script(const std::string& name, const std::string& directory) {
        const auto text = read(name, "a script that git runs");
        if (!text || text->find('\0') != text->npos) return;
        protect_scripts(*text, {directory, std::filesystem::path(name).parent_path().string()},
                        directory);
    }
    void protect_scripts(const std::string& text, const std::vector<std::string>& directories,
                         const std::string& starts_in) {
        const auto words = detail::words_of(text);
        const std::set<std::string> different(words.begin(), words.end());
        for (const auto& word : different)
            if (++words_ <= detail::max_words) protect_script(word, directories, starts_in);
        if (words_ > detail::max_words)
            left_out_.add("has more than " + std::to_string(detail::max_words) +
                              " words in the scripts that git runs; the rest was not looked up",
                          "the workspace");
    }
    static bool is_script(std::string_view name) {
        for (const std::string_view end :
             {".sh", ".bash", ".zsh", ".py", ".pl", ".rb", ".js", ".mjs", ".cjs", ".ts", ".mts",
              ".php", ".lua", ".ps1", ".cmd", ".bat"})
            if (name.ends_with(end)) return true;
        return false;
    }
    static bool is_vendored(const std::string& name) {
        const auto* end = std::end(detail::vendored_directories);
        for (const auto& part : std::filesystem::path(name))
            if (std::find(std::begin(detail::vendored_directories), end, part.native()) != end)
                return true;
        return false;
    }

    std::filesystem::path workspace_;
    const ProtectionRules& rules_;
    detail::FileTree tree_;
    ProtectedFiles result_;
    detail::LeftOut left_out_;
    std::set<std::string> seen_, pinned_, repositories_, read_;
    // Directories in which git keeps repositories, by their depth; how nested they are.
    std::multimap<std::ptrdiff_t, std::pair<std::string, int>> waiting_;
    std::vector<std::string> patterned_;  // found at this level by a pattern
    std::ptrdiff_t depth_ = 0;
    std::size_t mounts_ = 0, listed_ = 0, read_count_ = 0, words_ = 0;
};

IPYBOX_DECL ProtectedFiles protected_files(const std::filesystem::path& workspace,
                                           const ProtectionRules& rules) {
    return ProtectionSearch(workspace, rules).run();
}

}  // namespace ipybox::sandbox_kit
