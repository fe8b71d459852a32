#pragma once
// Which places code in sandboxes could write, on record beyond the end of its session: the host runs
// nothing that lies there.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json/parse.hpp>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <ipybox/config.hpp>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/detail/path_walk.hpp>
#include <ipybox/detail/unique_fd.hpp>
#include <ipybox/detail/within.hpp>
#include <ipybox/error.hpp>
#include <ipybox/sandbox.hpp>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ipybox {

namespace detail {

inline std::filesystem::path without_end_slash(const std::filesystem::path& path) {
    auto normal = path.lexically_normal();
    return normal.has_filename() || !normal.has_relative_path() ? normal : normal.parent_path();
}

// A place that code could write, and what in it was write-protected each time.
struct WritablePlace {
    std::filesystem::path path;               // real
    DirectoryId id;
    std::vector<std::filesystem::path> kept;  // relative to `path`; "." is all of it
    bool pinned = false;                      // what holds a kept path could not be renamed either

    bool keeps(const std::filesystem::path& relative) const {
        return std::any_of(kept.begin(), kept.end(),
                           [&](const auto& name) { return name == "." || within(relative, name); });
    }
    // A directory that code could fill, but not replace.
    bool pins(const std::filesystem::path& relative) const {
        return pinned && std::any_of(kept.begin(), kept.end(), [&](const auto& name) { return within(name, relative); });
    }
    // Keeps what both this and the other recording of the place keep.
    void meet(const WritablePlace& other) {
        std::vector<std::filesystem::path> both;
        for (const auto& name : kept)
            if (other.keeps(name)) both.push_back(name);
        for (const auto& name : other.kept)
            if (keeps(name) && std::find(both.begin(), both.end(), name) == both.end()) both.push_back(name);
        kept = std::move(both);
        pinned = pinned && other.pinned;
    }
};

using PlaceList = std::vector<WritablePlace>;

// Adds a recording; true when that changed the list.
inline bool add_place(PlaceList& places, const WritablePlace& added) {
    for (auto& place : places) {
        if (place.path != added.path) continue;
        auto before = place.kept;
        const bool pinned = place.pinned;
        place.meet(added);
        std::sort(before.begin(), before.end());
        std::sort(place.kept.begin(), place.kept.end());
        // Another directory at the path of an old one: the old one may have moved.
        const bool same = place.id == added.id || (place.id.born == 0 && added.id.born == 0);
        if (same && before == place.kept && pinned == place.pinned) return false;
        place.id = added.id;
        return true;
    }
    places.push_back(added);
    return true;
}

// Makes room without forgetting a place that is there: neighbours become the directory that holds
// them, of which nothing counts as protected.
inline void bound_places(PlaceList& places, std::size_t most) {
    if (places.size() > most)
        std::erase_if(places, [](const auto& place) { return path_status(place.path).mode == 0; });
    while (places.size() > most) {
        std::map<std::filesystem::path, std::size_t> parents;
        for (const auto& place : places) ++parents[place.path.parent_path()];
        auto chosen = parents.begin();
        const auto depth = [](const auto& path) { return std::distance(path.begin(), path.end()); };
        for (auto at = parents.begin(); at != parents.end(); ++at)
            if (std::pair(at->second, depth(at->first)) > std::pair(chosen->second, depth(chosen->first))) chosen = at;
        const auto parent = chosen->first;
        std::erase_if(places, [&](const auto& place) { return within(place.path, parent); });
        places.push_back({parent, {}, {}, false});
        if (parent == "/") return;
    }
}

// Nothing can be mounted over a link, so that one is never protected.
inline bool leads_over_link(std::filesystem::path at, const std::filesystem::path& name) {
    return std::any_of(name.begin(), name.end(), [&](const auto& part) { return S_ISLNK(path_status(at /= part).mode); });
}

// The places that a policy makes writable. pinned: as WritablePlaces::record() says.
inline PlaceList places_of(const SandboxPolicy& policy, bool pinned) {
    namespace fs = std::filesystem;
    // Code can make many names that are protected: what is left out of the record counts as written.
    constexpr std::size_t most_kept = 16u << 10;  // bytes for one place
    PlaceList places;
    for (const auto& given : policy.writable) {
        const auto named = without_end_slash(given);
        std::error_code error;
        WritablePlace place;
        place.pinned = pinned;
        place.path = fs::weakly_canonical(named, error);
        if (error) place.path = named;
        place.path = without_end_slash(place.path);
        const auto status = path_status(place.path);
        if (S_ISDIR(status.mode)) place.id = status.id;
        // Sorted by depth: what lies at the top is what the host starts from.
        std::vector<std::pair<std::ptrdiff_t, std::string>> names;
        for (const auto& path : policy.write_protected) {
            const auto protected_path = without_end_slash(path);
            for (const auto& root : {named, place.path}) {
                fs::path name;
                if (within(root, protected_path)) name = ".";
                else if (within(protected_path, root)) name = protected_path.lexically_relative(root);
                else continue;
                auto text = name.string();
                const auto depth = text == "." ? -1 : std::count(text.begin(), text.end(), '/');
                names.emplace_back(depth, std::move(text));
                break;
            }
        }
        std::sort(names.begin(), names.end());
        names.erase(std::unique(names.begin(), names.end()), names.end());
        for (auto& [depth, name] : names) place.kept.emplace_back(std::move(name));
        std::size_t bytes = 0;
        std::erase_if(place.kept, [&](const auto& name) {
            return (bytes += name.native().size()) > most_kept || leads_over_link(place.path, name);
        });
        places.push_back(std::move(place));
    }
    return places;
}

// Where in the places a path leads over something that code could have put there; each link on the
// way counts, and so does what is absent.
inline std::optional<std::filesystem::path> find_written(const std::vector<const PlaceList*>& lists,
                                                         const std::filesystem::path& path) {
    namespace fs = std::filesystem;
    if (!path.is_absolute())
        throw Error(errc::bad_argument, "where code could write is asked of absolute paths, not of " + path.string());
    struct Root {
        fs::path path;
        const WritablePlace* place;
    };
    std::vector<Root> roots;
    for (const auto* list : lists)
        for (const auto& place : *list) roots.push_back({place.path, &place});
    const auto written = [&](const fs::path& at, bool last) -> std::optional<fs::path> {
        for (const auto& root : roots) {
            if (!within(at, root.path) || (!last && at == root.path)) continue;
            const auto name = at.lexically_relative(root.path);
            if (!root.place->keeps(name) && (last || !root.place->pins(name))) return root.path;
        }
        return std::nullopt;
    };

    std::optional<fs::path> found;
    const auto walk = walk_path(path, [&](const fs::path& at, const PathStatus& status) {
        found = written(at, false);
        if (found) return false;
        // Those of /proc lead elsewhere than they say, into what a guest has mounted.
        if (S_ISLNK(status.mode)) return !within(at, "/proc") || at == "/proc/self";
        if (!S_ISDIR(status.mode) || status.id.born == 0) return true;
        // A place that was moved, or is mounted here as well.
        for (const auto* list : lists)
            for (const auto& place : *list)
                if (place.id == status.id && place.path != at) roots.push_back({at, &place});
        return true;
    });
    if (!walk.whole) return found ? found : walk.at;
    return written(walk.at, true);
}

}  // namespace detail

// Places that some kernel's policy made writable, on record in ipybox's state directory beyond the
// session's end. What was write-protected in a place each time that it was recorded counts as the
// user's. Its methods may be called from any thread; other processes may use the same record.
class WritablePlaces {
public:
    // state_directory: absolute, or empty to remember nothing beyond this process; nothing is made
    // in it until record().
    explicit WritablePlaces(std::filesystem::path state_directory) : directory_(std::move(state_directory)) {}
    WritablePlaces(const WritablePlaces&) = delete;
    WritablePlaces& operator=(const WritablePlaces&) = delete;

    // Puts on record what a policy makes writable, and what it write-protects there; from now on that
    // counts in this process, and in every other that has the same state directory. Where no such
    // directory can be made, this process alone remembers: see problem(). pinned: the guest can rename no
    // directory that holds a write-protected path. Throws errc::io_error when there is a record that
    // cannot be read or replaced, naming it and the remedy.
    void record(const SandboxPolicy& policy, bool pinned = false) {
        const auto added = detail::places_of(policy, pinned);
        if (added.empty()) return;
        const std::lock_guard lock(mutex_);
        for (const auto& place : added) detail::add_place(own_, place);
        detail::bound_places(own_, most_places);
        const UniqueFd directory = open_directory(true);
        if (!directory) return;
        const UniqueFd guard = lock_record(directory);
        load(directory);
        bool changed = false;
        for (const auto& place : added) changed = detail::add_place(recorded_, place) || changed;
        if (!changed) return;
        detail::bound_places(recorded_, most_places);
        save(directory);
    }

    // The recorded place in which code could have written `path`; nullopt when there is none. The path
    // is resolved step by step: a link that lies in such a place could have been made to lead
    // elsewhere, and what is absent there could be made. path: absolute. Throws errc::io_error when the
    // record cannot be read (what it would tell is unknown), bad_argument.
    std::optional<std::filesystem::path> holds(const std::filesystem::path& path) const {
        const std::lock_guard lock(mutex_);
        if (const UniqueFd directory = open_directory(false)) load(directory);
        else recorded_.clear(), seen_ = {};
        return detail::find_written({&recorded_, &own_}, path);
    }

    // Why places are not remembered beyond this process, and the remedy; empty when they are. Known
    // once record() was called.
    std::string problem() const {
        const std::lock_guard lock(mutex_);
        return problem_;
    }

    // The record, for messages; empty when there is no state directory.
    std::filesystem::path file() const { return directory_.empty() ? directory_ : directory_ / file_name; }

private:
    static constexpr const char* file_name = "writable-places.json";
    static constexpr std::size_t most_places = 512;
    static constexpr std::size_t most_bytes = 64u << 20;

    [[noreturn]] void fail(const std::string& why) const {
        throw Error(errc::io_error, file().string() + ": " + why +
                                        "; it says which places code could write, and nothing is started without "
                                        "it: repair it, or remove it if nothing was planted in your workspaces");
    }

    // An empty handle: there is none, and with `make` none can be made.
    UniqueFd open_directory(bool make) const {
        const auto open = [&] {
            return UniqueFd(::open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        };
        if (directory_.empty()) {
            problem_ = "there is no directory to keep it in: set HOME or XDG_STATE_HOME";
            return UniqueFd();
        }
        auto handle = open();
        if (!handle && errno != ENOENT && errno != EACCES && errno != ENOTDIR)
            fail(std::string("its directory cannot be opened (") + std::strerror(errno) + ")");
        if (!handle && errno == EACCES && !make) fail("its directory cannot be opened (Permission denied)");
        if (handle || !make) return handle;
        std::error_code error;
        std::filesystem::create_directories(directory_.parent_path(), error);
        // Users that MCP servers run as have directories of their own below: they pass, and see nothing.
        if (!error && ::mkdir(directory_.c_str(), 0711) != 0 && errno != EEXIST)
            error = std::error_code(errno, std::generic_category());
        if (!error) handle = open();
        if (!handle)
            problem_ = "the directory " + directory_.string() + " cannot be made (" +
                       (error ? error.message() : std::string(std::strerror(errno))) + "): make it, or set XDG_STATE_HOME";
        return handle;
    }

    UniqueFd lock_record(const UniqueFd& directory) const {
        constexpr int flags = O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
        UniqueFd file(::openat(directory.get(), "writable-places.lock", flags, 0600));
        int locked = -1;
        do locked = file ? ::flock(file.get(), LOCK_EX) : -1;
        while (locked != 0 && file && errno == EINTR);
        if (locked != 0) fail(std::string("the lock beside it cannot be taken (") + std::strerror(errno) + ")");
        return file;
    }

    struct Seen {
        ino_t inode = 0;
        timespec changed{};
        off_t size = 0;
        bool operator==(const Seen& other) const {
            return inode == other.inode && size == other.size && changed.tv_sec == other.changed.tv_sec &&
                   changed.tv_nsec == other.changed.tv_nsec;
        }
    };

    // Reads the record anew when it has changed.
    void load(const UniqueFd& directory) const {
        const UniqueFd file(::openat(directory.get(), file_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
        if (!file && errno == ENOENT) {
            recorded_.clear();
            seen_ = {};
            return;
        }
        struct stat status {};
        if (!file || ::fstat(file.get(), &status) != 0)
            fail(std::string("cannot be read (") + std::strerror(errno) + ")");
        if (!S_ISREG(status.st_mode)) fail("is no regular file");
        if ((status.st_uid != ::geteuid() && status.st_uid != 0) || (status.st_mode & 022) != 0)
            fail("can be written by other users");
        if (static_cast<std::uint64_t>(status.st_size) > most_bytes) fail("is too large");
        const Seen now{status.st_ino, status.st_ctim, status.st_size};
        if (now == seen_) return;
        std::string text(static_cast<std::size_t>(status.st_size), '\0');
        for (std::size_t size = 0; size < text.size();) {
            const auto count = ::read(file.get(), text.data() + size, text.size() - size);
            if (count < 0 && errno == EINTR) continue;
            if (count <= 0) fail("cannot be read");
            size += static_cast<std::size_t>(count);
        }
        recorded_ = parse(text);
        seen_ = now;
    }

    detail::PlaceList parse(const std::string& text) const {
        boost::system::error_code error;
        json::parse_options options;
        options.allow_invalid_utf8 = true;  // names of files are bytes
        const auto value = json::parse(text, error, {}, options);
        if (error) fail("is no JSON");
        const auto bad = [this]() { fail("holds something else than places"); };
        const auto* root = value.if_object();
        const auto* list = root ? root->if_contains("places") : nullptr;
        if (!list || !list->is_array()) bad();
        detail::PlaceList places;
        for (const auto& item : list->get_array()) {
            const auto* entry = item.if_object();
            const auto* path = entry ? entry->if_contains("path") : nullptr;
            const auto* kept = entry ? entry->if_contains("protected") : nullptr;
            if (!path || !path->is_string() || !path->get_string().starts_with("/") || !kept || !kept->is_array()) bad();
            detail::WritablePlace place;
            place.path = std::string(path->get_string());
            for (const auto& name : kept->get_array()) {
                if (!name.is_string() || name.get_string().empty()) bad();
                place.kept.emplace_back(std::string(name.get_string()));
            }
            const auto* pinned = entry->if_contains("pinned");
            place.pinned = pinned && pinned->is_bool() && pinned->get_bool();
            const auto* inode = entry->if_contains("inode");
            const auto* born = entry->if_contains("born");
            boost::system::error_code ignored;
            if (inode && inode->is_number() && born && born->is_number()) {
                place.id.inode = inode->to_number<std::uint64_t>(ignored);
                place.id.born = born->to_number<std::int64_t>(ignored);
            }
            places.push_back(std::move(place));
        }
        return places;
    }

    // Another process sees the old record or the new one, never a part of it.
    void save(const UniqueFd& directory) const {
        json::array list;
        for (const auto& place : recorded_) {
            json::array kept;
            for (const auto& name : place.kept) kept.emplace_back(name.string());
            list.push_back(json::object{{"path", place.path.string()},
                                        {"inode", place.id.inode},
                                        {"born", place.id.born},
                                        {"pinned", place.pinned},
                                        {"protected", std::move(kept)}});
        }
        const auto text = detail::write_json_bytes(json::object{{"places", std::move(list)}});
        // Under the lock nobody else has one of this name.
        constexpr const char* fresh = "writable-places.new";
        ::unlinkat(directory.get(), fresh, 0);
        const UniqueFd file(::openat(directory.get(), fresh, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
        bool done = static_cast<bool>(file);
        for (std::size_t size = 0; done && size < text.size();) {
            const auto count = ::write(file.get(), text.data() + size, text.size() - size);
            if (count < 0 && errno == EINTR) continue;
            done = count > 0;
            if (done) size += static_cast<std::size_t>(count);
        }
        done = done && ::fdatasync(file.get()) == 0 && ::renameat(directory.get(), fresh, directory.get(), file_name) == 0;
        if (!done) {
            const std::string why = std::strerror(errno);
            ::unlinkat(directory.get(), fresh, 0);
            fail("cannot be written (" + why + ")");
        }
        seen_ = {};
    }

    const std::filesystem::path directory_;
    mutable std::mutex mutex_;
    mutable std::string problem_;
    mutable detail::PlaceList recorded_;  // as the file has it
    mutable Seen seen_;
    detail::PlaceList own_;  // of this process: they count even when the file is gone
};

// The record of this process's user, for all sessions in it. Nobody hands it around, so that nobody
// can forget it.
inline WritablePlaces& writable_places() {
    static WritablePlaces places(detail::state_directory());
    return places;
}

}  // namespace ipybox
