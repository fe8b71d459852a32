#pragma once
// What holds the place of names that a workspace lacks, where no overlay can
// (detail/workspace_layer.hpp).
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <filesystem>
#include <functional>
#include <ipybox/detail/beneath.hpp>
#include <ipybox/detail/file_id.hpp>
#include <ipybox/detail/unique_fd.hpp>
#include <ipybox/error.hpp>
#include <ipybox/sandbox_kit/detail/git_exclude.hpp>
#include <ipybox/sandbox_kit/detail/placeholder.hpp>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ipybox::detail {

// Which names this process holds, in a file of ipybox's state that it has locked; no more without
// such a state. Found unlocked it is a killed process's, and the next one that starts a sandbox
// goes through it.
class PlaceholderRecord {
public:
    using Names = std::map<std::filesystem::path, std::set<std::string>>;  // below each place

    // state: ipybox's directory for it; empty where there is none.
    explicit PlaceholderRecord(const std::filesystem::path& state) : base_(below(state)) {}
    PlaceholderRecord(PlaceholderRecord&&) = default;
    PlaceholderRecord& operator=(PlaceholderRecord&&) = delete;
    ~PlaceholderRecord() {
        if (file_ && !left_) ::unlink(path_.c_str());
    }

    // Throws Error: io_error (it cannot be written).
    void add(const std::filesystem::path& place, const std::string& name) {
        if (!file_) open();
        // A name may hold a line's end, never a zero.
        if (file_) write_all(file_.get(), place.native() + '\0' + name + '\0', path_);
    }

    // Something is left that this process cannot remove: the next one that starts a sandbox may.
    void leave() noexcept { left_ = true; }

    // Calls `sweep` with the names of all processes that were killed, and forgets them; where it
    // returns false, because something is left, only when no process lives that may hold it.
    // Never throws.
    static void sweep_left(const std::filesystem::path& state,
                           const std::function<bool(const Names&)>& sweep) noexcept {
        try {
            Names names;
            bool others = false;
            std::vector<std::pair<std::filesystem::path, UniqueFd>> records;
            std::error_code error;
            for (std::filesystem::directory_iterator entry(below(state), error), end;
                 !error && entry != end; entry.increment(error)) {
                UniqueFd file(
                    ::open(entry->path().c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
                if (!file) continue;
                if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
                    others = true;
                    continue;
                }
                std::string why;
                if (const auto text = read_regular(file, 16u << 20, why)) parse(*text, names);
                records.emplace_back(entry->path(), std::move(file));
            }
            if (records.empty() || (!sweep(names) && others)) return;
            for (const auto& record : records) ::unlink(record.first.c_str());
        } catch (const std::exception&) {
            // They stay, for the next one.
        }
    }

private:
    static std::filesystem::path below(const std::filesystem::path& state) {
        return state.empty() ? state : state / "placeholders";
    }
    static void parse(std::string_view text, Names& names) {
        while (true) {
            const auto place = text.find('\0'), name = text.find('\0', place + 1);
            if (place == text.npos || name == text.npos) return;
            names[text.substr(0, place)].emplace(text.substr(place + 1, name - place - 1));
            text.remove_prefix(name + 1);
        }
    }
    void open() {
        if (base_.empty()) return;
        std::error_code ignored;
        std::filesystem::create_directories(base_.parent_path().parent_path(), ignored);
        if (!make_own_directory(base_.parent_path()) || !make_own_directory(base_)) return;
        for (int attempt = 0; attempt < 10 && !file_; ++attempt) {
            std::string path = base_ / "held-XXXXXX";
            UniqueFd made(::mkostemp(path.data(), O_CLOEXEC));
            // Another process may have found it before it was locked.
            struct stat ours{};
            if (!made || ::flock(made.get(), LOCK_EX | LOCK_NB) != 0 ||
                ::fstat(made.get(), &ours) != 0 || ours.st_nlink == 0)
                continue;
            path_ = std::move(path);
            file_ = std::move(made);
        }
    }

    std::filesystem::path base_;
    std::string path_;
    UniqueFd file_;
    bool left_ = false;
};

// Files and directories made on the host so that there is something to mount over. They are empty
// (but for commondir) and carry a time stamp that tells them from anything else, so that one left
// behind by a crash is recognised. The host may write to them, which makes them its own, but for a
// directory that is empty: only the guest has them read-only. Several sandboxes may share one; a
// lock tells whether it is in use.
class Placeholders {
public:
    // state: ipybox's directory for what it remembers; empty where there is none.
    explicit Placeholders(const std::filesystem::path& state) : record_(state) {}
    Placeholders(Placeholders&&) = default;
    Placeholders& operator=(Placeholders&&) = delete;
    ~Placeholders() {
        for (auto held = held_.rbegin(); held != held_.rend(); ++held) {
            // Removing it would take the mount away from another sandbox that still uses it.
            if (::flock(held->file.get(), LOCK_EX | LOCK_NB) == 0)
                remove(held->parent, held->name, held->file, true);
            if (is_directory(held->parent, held->name)) record_.leave();
        }
        exclude_from_git();
    }

    // Has git see none of those held at this moment as untracked. Never throws.
    void exclude_from_git() const noexcept {
        for (const auto& [place, names] : files_) detail::exclude_from_git(place, names);
    }

    // Removes what processes that were killed left, in whatever place they held names. Never
    // throws.
    static void sweep_what_others_left(const std::filesystem::path& state) noexcept {
        PlaceholderRecord::sweep_left(state, [](const PlaceholderRecord::Names& left) {
            bool clean = true;
            for (const auto& [place, names] : left) {
                const UniqueFd top(::open(place.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
                if (!top) continue;
                // What is in a directory before the directory: who came between another's making
                // one and marking it took it for a user's, and held names in it.
                for (auto name = names.rbegin(); name != names.rend(); ++name) {
                    const std::filesystem::path path(*name);
                    const auto inside = path.has_parent_path() ? path.parent_path().string() : ".";
                    const auto parent = open_beneath(top.get(), inside, O_PATH | O_DIRECTORY);
                    if (!parent) continue;
                    sweep(parent, path.filename().string(), true);
                    if (is_directory(parent, path.filename().string())) clean = false;
                }
                detail::exclude_from_git(place, names);
            }
            return clean;
        });
    }

    // Removes parent/name if an earlier run left it and nobody uses it. recorded: such a run had
    // announced it, and may have been killed before it marked the directory it had made.
    static bool sweep(const UniqueFd& parent, const std::string& name, bool recorded = false) {
        const UniqueFd left(
            ::openat(parent.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
        return left && ::flock(left.get(), LOCK_EX | LOCK_NB) == 0 &&
               remove(parent, name, left, recorded);
    }

    // Makes `relative` below `place`, in its directory `parent`, or adopts what an earlier run
    // made. False when nobody can create anything there, so that there is nothing to protect.
    // Throws Error: io_error, sandbox_refused (it keeps changing).
    bool hold(const std::filesystem::path& place, const std::filesystem::path& relative,
              const UniqueFd& parent, bool directory) {
        const std::string name = relative.filename();
        // Before it is there: we may be killed at any moment.
        record_.add(place, relative);
        if (!directory) files_[place].insert(relative);
        for (int attempt = 0; attempt < 100; ++attempt) {
            const bool made = create(parent, name, directory);
            if (!made && (errno == EROFS || errno == EACCES || errno == EPERM)) return false;
            if (!made && errno != EEXIST)
                throw Error(errc::io_error, "cannot protect " + name + ": " + std::strerror(errno));
            Held held{UniqueFd(::fcntl(parent.get(), F_DUPFD_CLOEXEC, 3)), name,
                      UniqueFd(::openat(parent.get(), name.c_str(),
                                        O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC))};
            if (!held.file) continue;
            if (made) {
                // Whatever the umask is, another user of the workspace can recognise it.
                ::fchmod(held.file.get(), directory ? 0755 : 0644);
                ::futimens(held.file.get(), stamp);
            }
            // Another sandbox may be removing it at this moment: look again once it is locked.
            struct stat locked{};
            struct stat now{};
            if (::flock(held.file.get(), LOCK_SH | LOCK_NB) == 0 &&
                ::fstat(held.file.get(), &locked) == 0 &&
                ::fstatat(parent.get(), name.c_str(), &now, AT_SYMLINK_NOFOLLOW) == 0 &&
                same_file(now, locked)) {
                held_.push_back(std::move(held));
                return true;
            }
        }
        throw Error(errc::sandbox_refused,
                    "cannot protect " + relative.string() + ": it keeps changing; start again");
    }

private:
    struct Held {
        UniqueFd parent;
        std::string name;
        UniqueFd file;
    };
    // file: what lies there, locked. unmarked: a directory need not be marked, only empty.
    static bool remove(const UniqueFd& parent, const std::string& name, const UniqueFd& file,
                       bool unmarked = false) {
        struct stat now{};
        struct stat ours{};
        return ::fstat(file.get(), &ours) == 0 &&
               (is_placeholder(ours) || (unmarked && S_ISDIR(ours.st_mode))) &&
               ::fstatat(parent.get(), name.c_str(), &now, AT_SYMLINK_NOFOLLOW) == 0 &&
               same_file(now, ours) &&
               ::unlinkat(parent.get(), name.c_str(), S_ISDIR(ours.st_mode) ? AT_REMOVEDIR : 0) ==
                   0;
    }

    static bool is_directory(const UniqueFd& parent, const std::string& name) {
        struct stat found{};
        return ::fstatat(parent.get(), name.c_str(), &found, AT_SYMLINK_NOFOLLOW) == 0 &&
               S_ISDIR(found.st_mode);
    }

    static constexpr timespec stamp[2] = {{placeholder_time, 0}, {placeholder_time, 0}};

    static bool create(const UniqueFd& parent, const std::string& name, bool directory) {
        if (directory) return ::mkdirat(parent.get(), name.c_str(), 0755) == 0;
        // Without a name until it can be recognised, for the same reason.
        if (const UniqueFd nameless(
                ::openat(parent.get(), ".", O_WRONLY | O_TMPFILE | O_CLOEXEC, 0644));
            nameless) {
            if (name == "commondir" && ::write(nameless.get(), ".", 1) != 1) return false;
            if (::futimens(nameless.get(), stamp) != 0) return false;
            const auto path = "/proc/self/fd/" + std::to_string(nameless.get());
            return ::linkat(AT_FDCWD, path.c_str(), parent.get(), name.c_str(),
                            AT_SYMLINK_FOLLOW) == 0;
        }
        // Not every file system has such files.
        if (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT) return false;
        const UniqueFd file(::openat(parent.get(), name.c_str(),
                                     O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644));
        // git gives up on an empty one; this says what is so without it.
        return file && (name != "commondir" || ::write(file.get(), ".", 1) == 1);
    }

    std::deque<Held> held_;
    std::map<std::filesystem::path, std::set<std::string>> files_;
    PlaceholderRecord record_;
};

}  // namespace ipybox::detail
