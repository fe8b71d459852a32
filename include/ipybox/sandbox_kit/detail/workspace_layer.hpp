#pragma once
// A writable place as a guest sees it through an overlay: the place itself is the upper layer,
// written through, and the lower one has the names that are held while absent, which the host then
// never sees. The launcher mounts it (launcher/scratch.cpp); this prepares what it needs.
#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <ipybox/detail/beneath.hpp>
#include <ipybox/detail/file_id.hpp>
#include <ipybox/detail/unique_fd.hpp>
#include <ipybox/detail/within.hpp>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ipybox::detail {

// The names that a guest finds below a place although they are absent there: relative, those of
// directories with a slash at the end.
using HeldNames = std::vector<std::string>;

// How many places of one guest may be behind overlays; the launcher takes no more.
inline constexpr std::size_t max_layers = 8;

// Which mount a directory lies on; nothing before Linux 5.8, or when it cannot be looked at.
inline std::optional<std::uint64_t> mount_of(const std::filesystem::path& path) {
    constexpr unsigned mount_id = 0x1000;  // STATX_MNT_ID, which older headers lack
    struct statx found{};
    if (::statx(AT_FDCWD, path.c_str(), 0, mount_id, &found) != 0 ||
        (found.stx_mask & mount_id) == 0)
        return std::nullopt;
    return found.stx_mnt_id;
}

// Whether something else is mounted at the place or below it, which an overlay would not show.
inline bool holds_mounts(const std::filesystem::path& place) {
    std::ifstream mounts("/proc/self/mountinfo");
    for (std::string line; std::getline(mounts, line);) {
        std::size_t at = 0;
        for (int field = 0; field < 4 && at != line.npos; ++field) at = line.find(' ', at + 1);
        if (at == line.npos) continue;
        std::string point;
        for (++at; at < line.size() && line[at] != ' '; ++at) {
            // Spaces and the like are three octal digits.
            if (line[at] == '\\' && at + 3 < line.size()) {
                point += static_cast<char>((line[at + 1] - '0') * 64 + (line[at + 2] - '0') * 8 +
                                           (line[at + 3] - '0'));
                at += 3;
            } else {
                point += line[at];
            }
        }
        if (within(point, place)) return true;
    }
    return false;
}

// The directory that an overlay works in, on the mount of its upper layer, where no guest sees it.
// Gone with the object; what a killed process left is removed when the next one is made beside it.
class LayerWork {
public:
    // base: as make_own_directory() made it. user, group: of the guest. Throws Error: io_error.
    LayerWork(const std::filesystem::path& base, uid_t user, gid_t group) {
        sweep(base);
        for (int attempt = 0; attempt < 10 && !held_; ++attempt) {
            std::string path = (base / "work-XXXXXX").string();
            if (::mkdtemp(path.data()) == nullptr) break;
            UniqueFd made(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
            // Another process may have swept it away before it was locked.
            struct stat now{};
            struct stat ours{};
            if (!made || ::flock(made.get(), LOCK_EX | LOCK_NB) != 0 ||
                ::fstat(made.get(), &ours) != 0 || ::lstat(path.c_str(), &now) != 0 ||
                !same_file(now, ours))
                continue;
            path_ = path;
            held_ = std::move(made);
        }
        if (!held_ || (::geteuid() == 0 && ::fchown(held_.get(), user, group) != 0))
            throw_io_error("cannot make a directory in " + base.string());
    }
    LayerWork(LayerWork&& other) noexcept
        : path_(std::exchange(other.path_, {})), held_(std::move(other.held_)) {}
    LayerWork& operator=(LayerWork&&) = delete;
    ~LayerWork() {
        if (!path_.empty()) remove(path_);
    }

    const std::filesystem::path& path() const noexcept { return path_; }
    struct stat status() const {
        struct stat found{};
        if (::fstat(held_.get(), &found) != 0) throw_io_error(path_.string());
        return found;
    }

private:
    static void remove(const std::filesystem::path& path) {
        // The overlay's own directories in there have no permissions at all.
        for (const char* name : {"work", "work/incompat", "work/incompat/volatile", "index"})
            ::chmod((path / name).c_str(), 0700);
        std::error_code ignored;
        std::filesystem::remove_all(path, ignored);
    }
    static void sweep(const std::filesystem::path& base) {
        std::error_code error;
        for (std::filesystem::directory_iterator entry(base, error), end; !error && entry != end;
             entry.increment(error)) {
            const UniqueFd left(
                ::open(entry->path().c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
            if (left && ::flock(left.get(), LOCK_EX | LOCK_NB) == 0) remove(entry->path());
        }
    }

    std::filesystem::path path_;
    UniqueFd held_;
};

// Removes what overlays note at files of their upper layer: code with the same rights can write
// such notes as well. directories: relative to the place, "" for itself. inner: of the directories
// in them too.
inline void remove_layer_marks(const UniqueFd& place, const std::set<std::string>& directories,
                               bool inner) {
    const auto clear = [](int directory) {
        char names[65'536];  // XATTR_LIST_MAX: none can be hidden behind others
        const auto size = ::flistxattr(directory, names, sizeof names);
        for (ssize_t at = 0; at < size;
             at += static_cast<ssize_t>(std::string_view(names + at).size()) + 1)
            if (std::string_view(names + at).starts_with("user.overlay."))
                ::fremovexattr(directory, names + at);
    };
    std::size_t most = 10'000;  // of all together: code may have made very many
    for (const auto& name : directories) {
        auto directory =
            open_beneath(place.get(), name.empty() ? "." : name, O_RDONLY | O_DIRECTORY);
        if (!directory) continue;
        clear(directory.get());
        if (!inner) continue;
        const std::unique_ptr<DIR, int (*)(DIR*)> listing(::fdopendir(directory.get()), ::closedir);
        if (!listing) continue;
        const int at = directory.release();
        while (const dirent* entry = most > 0 ? ::readdir(listing.get()) : nullptr) {
            --most;
            if (entry->d_type != DT_DIR && entry->d_type != DT_UNKNOWN) continue;
            const std::string_view found(entry->d_name);
            if (found == "." || found == "..") continue;
            const UniqueFd one(::openat(
                at, entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
            if (one) clear(one.get());
        }
    }
}

// One place behind an overlay. Its destruction removes what the overlay left.
class WorkspaceLayer {
public:
    // place: absolute, on the mount of `base`; seen: what is to lie there, where code could have
    // put something else. Throws Error: sandbox_refused (it does not), io_error.
    WorkspaceLayer(const std::filesystem::path& place, const struct stat* seen,
                   const HeldNames& names, const std::filesystem::path& base, uid_t user,
                   gid_t group)
        : place_(open_directory(place)), work_(base, user, group), directories_{""} {
        struct stat found{};
        if (::fstat(place_.get(), &found) != 0) throw_io_error(place.string());
        if (seen != nullptr && !same_file(found, *seen))
            throw Error(errc::sandbox_refused,
                        place.string() +
                            " was exchanged, perhaps by another session around it: start again");
        for (const auto& name : names)
            for (auto at = name.find('/'); at != name.npos && at + 1 < name.size();
                 at = name.find('/', at + 1))
                directories_.insert(name.substr(0, at));
        remove_layer_marks(place_, directories_, false);
        for (const auto& word :
             {place.string(), file_id(found), work_.path().string(), file_id(work_.status())})
            add(word);
        for (const auto& name : names) add(name);
        add("");
    }
    WorkspaceLayer(WorkspaceLayer&& other) = default;
    WorkspaceLayer& operator=(WorkspaceLayer&&) = delete;
    ~WorkspaceLayer() {
        if (!description_.empty()) remove_layer_marks(place_, directories_, true);
    }

    // For `ipybox-launcher scratch --layers`.
    const std::string& description() const noexcept { return description_; }

private:
    void add(const std::string& word) { (description_ += word) += '\0'; }

    UniqueFd place_;  // its name may mean another when the guest ends
    LayerWork work_;
    std::set<std::string> directories_;  // of the place in which names are held
    std::string description_;
};

}  // namespace ipybox::detail
