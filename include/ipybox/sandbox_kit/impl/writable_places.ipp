#pragma once
#include <ipybox/sandbox_kit/writable_places.hpp>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <ipybox/compilation.hpp>
#include <ipybox/detail/json_members.hpp>
#include <map>
#include <string_view>

namespace ipybox::sandbox_kit {

IPYBOX_DECL std::filesystem::path without_end_slash(const std::filesystem::path& path) {
    auto normal = path.lexically_normal();
    return normal.has_filename() || !normal.has_relative_path() ? normal : normal.parent_path();
}

IPYBOX_DECL bool WritablePlace::keeps(const std::filesystem::path& relative) const {
    return std::any_of(kept.begin(), kept.end(), [&](const auto& name) {
        return name == "." || detail::within(relative, name);
    });
}

IPYBOX_DECL void WritablePlace::meet(const WritablePlace& other) {
    std::vector<std::filesystem::path> both;
    for (const auto& name : kept)
        if (other.keeps(name)) both.push_back(name);
    for (const auto& name : other.kept)
        if (keeps(name) && std::find(both.begin(), both.end(), name) == both.end())
            both.push_back(name);
    kept = std::move(both);
    pinned = pinned && other.pinned;
}

IPYBOX_DECL bool add_place(PlaceList& places, const WritablePlace& added) {
    for (auto& place : places) {
        if (place.path != added.path || place.confined != added.confined) continue;
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

IPYBOX_DECL void bound_places(PlaceList& places, std::size_t most) {
    if (places.size() > most)
        std::erase_if(places,
                      [](const auto& place) { return detail::path_status(place.path).mode == 0; });
    while (places.size() > most) {
        std::map<std::filesystem::path, std::size_t> parents;
        for (const auto& place : places) ++parents[place.path.parent_path()];
        auto chosen = parents.begin();
        const auto depth = [](const auto& path) { return std::distance(path.begin(), path.end()); };
        for (auto at = parents.begin(); at != parents.end(); ++at)
            if (std::pair(at->second, depth(at->first)) >
                std::pair(chosen->second, depth(chosen->first)))
                chosen = at;
        const auto parent = chosen->first;
        const auto in_parent = [&](const auto& place) {
            return detail::within(place.path, parent);
        };
        const bool confined = std::any_of(places.begin(), places.end(), [&](const auto& place) {
            return place.confined && in_parent(place);
        });
        std::erase_if(places, in_parent);
        places.push_back({parent, {}, {}, false, confined});
        if (parent == "/") return;
    }
}

IPYBOX_DECL PlaceList places_of(const SandboxPolicy& policy, bool pinned, bool confined) {
    namespace fs = std::filesystem;
    // Code can make many names that are protected: what is left out of the record counts as
    // written.
    constexpr std::size_t most_kept = 16u << 10;  // bytes for one place
    PlaceList places;
    for (const auto& given : policy.writable) {
        const auto named = without_end_slash(given);
        std::error_code error;
        WritablePlace place;
        place.pinned = pinned;
        place.confined = confined;
        place.path = fs::weakly_canonical(named, error);
        if (error) place.path = named;
        place.path = without_end_slash(place.path);
        const auto status = detail::path_status(place.path);
        if (S_ISDIR(status.mode)) place.id = status.id;
        // Sorted by depth: what lies at the top is what the host starts from.
        std::vector<std::pair<std::ptrdiff_t, std::string>> names;
        for (const auto& path : policy.write_protected) {
            const auto protected_path = without_end_slash(path);
            for (const auto& root : {named, place.path}) {
                fs::path name;
                if (detail::within(root, protected_path))
                    name = ".";
                else if (detail::within(protected_path, root))
                    name = protected_path.lexically_relative(root);
                else
                    continue;
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

// Where the places are, as far as a path has been followed.
class PlacesOnTheWay {
public:
    PlacesOnTheWay(const std::vector<const PlaceList*>& lists, const std::filesystem::path& path,
                   Writer writer)
        : lists_(lists), writer_(writer) {
        if (!path.is_absolute())
            throw Error(
                errc::bad_argument,
                "where code could write is asked of absolute paths, not of " + path.string());
    }
    // The place in which code could have put what lies there; last: it is no directory on the way.
    std::optional<std::filesystem::path> written(const std::filesystem::path& at, bool last) const {
        const auto could_be = [&](const std::filesystem::path& root, const WritablePlace& place) {
            if (writer_ == Writer::confined && !place.confined) return false;
            if (!detail::within(at, root) || (!last && at == root)) return false;
            const auto name = at.lexically_relative(root);
            return !place.keeps(name) && (last || !place.pins(name));
        };
        for (const auto* list : lists_)
            for (const auto& place : *list)
                if (could_be(place.path, place)) return place.path;
        for (const auto& [root, place] : elsewhere_)
            if (could_be(root, *place)) return root;
        return std::nullopt;
    }
    // A place that was moved there, or is mounted there as well.
    void meet(const std::filesystem::path& at, const detail::PathStatus& status) {
        if (!S_ISDIR(status.mode) || status.id.born == 0) return;
        for (const auto* list : lists_)
            for (const auto& place : *list)
                if (place.id == status.id && place.path != at) elsewhere_.emplace_back(at, &place);
    }

private:
    const std::vector<const PlaceList*>& lists_;
    const Writer writer_;
    std::vector<std::pair<std::filesystem::path, const WritablePlace*>> elsewhere_;
};

IPYBOX_DECL std::optional<std::filesystem::path> find_written(
    const std::vector<const PlaceList*>& lists, const std::filesystem::path& path, Writer writer) {
    PlacesOnTheWay places(lists, path, writer);
    std::optional<std::filesystem::path> found;
    const auto walk = detail::walk_path(
        path, [&](const std::filesystem::path& at, const detail::PathStatus& status) {
            found = places.written(at, false);
            if (found) return false;
            // Those of /proc lead elsewhere than they say, into what a guest has mounted.
            if (S_ISLNK(status.mode)) return !detail::within(at, "/proc") || at == "/proc/self";
            places.meet(at, status);
            return true;
        });
    if (!walk.whole) return found ? found : walk.at;
    return places.written(walk.at, true);
}

}  // namespace ipybox::sandbox_kit

namespace ipybox {

IPYBOX_DECL void WritablePlaces::record(const SandboxPolicy& policy, bool pinned, bool confined) {
    const auto added = sandbox_kit::places_of(policy, pinned, confined);
    if (added.empty()) return;
    const std::lock_guard lock(mutex_);
    for (const auto& place : added) sandbox_kit::add_place(own_, place);
    sandbox_kit::bound_places(own_, most_places);
    const UniqueFd directory = open_directory(true);
    if (!directory) return;
    const UniqueFd guard = lock_record(directory);
    load(directory);
    bool changed = false;
    for (const auto& place : added) changed = sandbox_kit::add_place(recorded_, place) || changed;
    if (!changed) return;
    sandbox_kit::bound_places(recorded_, most_places);
    save(directory);
}

IPYBOX_DECL std::optional<std::filesystem::path> WritablePlaces::holds(
    const std::filesystem::path& path, sandbox_kit::Writer writer) const {
    const std::lock_guard lock(mutex_);
    return sandbox_kit::find_written(lists(), path, writer);
}

IPYBOX_DECL std::vector<std::filesystem::path> WritablePlaces::real_paths(
    const std::vector<std::filesystem::path>& paths) const {
    const std::lock_guard lock(mutex_);
    const auto recorded = lists();
    std::vector<std::filesystem::path> real;
    for (const auto& path : paths) {
        sandbox_kit::PlacesOnTheWay places(recorded, path, sandbox_kit::Writer::any);
        auto walk = detail::walk_path(
            path, [&](const std::filesystem::path& at, const detail::PathStatus& status) {
                places.meet(at, status);
                return !S_ISLNK(status.mode) || !places.written(at, true);
            });
        if (!walk.whole)
            throw Error(errc::sandbox_refused,
                        path.string() + " leads over the link " + walk.at.string() +
                            ", which code in a sandbox may have put there: name the place that it "
                            "leads to, if that is meant");
        real.push_back(std::move(walk.at));
    }
    return real;
}

IPYBOX_DECL std::vector<std::filesystem::path> WritablePlaces::paths() const {
    const std::lock_guard lock(mutex_);
    std::vector<std::filesystem::path> found;
    for (const auto* list : lists())
        for (const auto& place : *list) found.push_back(place.path);
    std::sort(found.begin(), found.end());
    found.erase(std::unique(found.begin(), found.end()), found.end());
    return found;
}

IPYBOX_DECL std::string WritablePlaces::problem() const {
    const std::lock_guard lock(mutex_);
    return problem_;
}

IPYBOX_DECL void WritablePlaces::fail(const std::string& why) const {
    throw Error(errc::io_error,
                file().string() + ": " + why +
                    "; it says which places code could write, and nothing is started without "
                    "it: repair it, or remove it if nothing was planted in your workspaces");
}

IPYBOX_DECL UniqueFd WritablePlaces::open_directory(bool make) const {
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
    if (!handle && errno == EACCES && !make)
        fail("its directory cannot be opened (Permission denied)");
    if (handle || !make) return handle;
    std::error_code error;
    std::filesystem::create_directories(directory_.parent_path(), error);
    // Users that MCP servers run as have directories of their own below: they pass, and see
    // nothing.
    if (!error && ::mkdir(directory_.c_str(), 0711) != 0 && errno != EEXIST)
        error = std::error_code(errno, std::generic_category());
    if (!error) handle = open();
    if (!handle)
        problem_ = "the directory " + directory_.string() + " cannot be made (" +
                   (error ? error.message() : std::string(std::strerror(errno))) +
                   "): make it, or set XDG_STATE_HOME";
    return handle;
}

IPYBOX_DECL UniqueFd WritablePlaces::lock_record(const UniqueFd& directory) const {
    constexpr int flags = O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    UniqueFd file(::openat(directory.get(), "writable-places.lock", flags, 0600));
    int locked = -1;
    do locked = file ? ::flock(file.get(), LOCK_EX) : -1;
    while (locked != 0 && file && errno == EINTR);
    if (locked != 0)
        fail(std::string("the lock beside it cannot be taken (") + std::strerror(errno) + ")");
    return file;
}

IPYBOX_DECL std::vector<const sandbox_kit::PlaceList*> WritablePlaces::lists() const {
    if (const UniqueFd directory = open_directory(false))
        load(directory);
    else
        recorded_.clear(), seen_ = {};
    return {&recorded_, &own_};
}

IPYBOX_DECL bool WritablePlaces::Seen::operator==(const Seen& other) const {
    return inode == other.inode && size == other.size && changed.tv_sec == other.changed.tv_sec &&
           changed.tv_nsec == other.changed.tv_nsec;
}

IPYBOX_DECL void WritablePlaces::load(const UniqueFd& directory) const {
    const UniqueFd file(
        ::openat(directory.get(), file_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (!file && errno == ENOENT) {
        recorded_.clear();
        seen_ = {};
        return;
    }
    struct stat status{};
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

IPYBOX_DECL sandbox_kit::PlaceList WritablePlaces::parse(const std::string& text) const {
    boost::system::error_code error;
    json::parse_options options;
    options.allow_invalid_utf8 = true;  // names of files are bytes
    const auto value = json::parse(text, error, {}, options);
    if (error) fail("is no JSON");
    const auto bad = [this]() { fail("holds something else than places"); };
    const auto* root = value.if_object();
    const auto* list = root ? root->if_contains("places") : nullptr;
    if (!list || !list->is_array()) bad();
    sandbox_kit::PlaceList places;
    for (const auto& item : list->get_array()) {
        const auto* entry = item.if_object();
        const auto path = entry ? detail::string_of(*entry, "path") : std::string_view();
        const auto* kept = entry ? entry->if_contains("protected") : nullptr;
        if (!path.starts_with('/') || !kept || !kept->is_array()) bad();
        sandbox_kit::WritablePlace place;
        place.path = path;
        for (const auto& name : kept->get_array()) {
            if (!name.is_string() || name.get_string().empty()) bad();
            place.kept.emplace_back(std::string(name.get_string()));
        }
        const auto* pinned = entry->if_contains("pinned");
        place.pinned = pinned && pinned->is_bool() && pinned->get_bool();
        // A record of before tells the two apart by a name that every sandbox keeps.
        const auto* confined = entry->if_contains("confined");
        place.confined =
            confined && confined->is_bool() ? confined->get_bool() : place.keeps(".env");
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

IPYBOX_DECL void WritablePlaces::save(const UniqueFd& directory) const {
    json::array list;
    for (const auto& place : recorded_) {
        json::array kept;
        for (const auto& name : place.kept) kept.emplace_back(name.string());
        list.push_back(json::object{{"path", place.path.string()},
                                    {"inode", place.id.inode},
                                    {"born", place.id.born},
                                    {"pinned", place.pinned},
                                    {"confined", place.confined},
                                    {"protected", std::move(kept)}});
    }
    const auto text = detail::write_json_bytes(json::object{{"places", std::move(list)}});
    // Under the lock nobody else has one of this name.
    constexpr const char* fresh = "writable-places.new";
    ::unlinkat(directory.get(), fresh, 0);
    const UniqueFd file(::openat(directory.get(), fresh,
                                 O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    bool done = static_cast<bool>(file);
    for (std::size_t size = 0; done && size < text.size();) {
        const auto count = ::write(file.get(), text.data() + size, text.size() - size);
        if (count < 0 && errno == EINTR) continue;
        done = count > 0;
        if (done) size += static_cast<std::size_t>(count);
    }
    done = done && ::fdatasync(file.get()) == 0 &&
           ::renameat(directory.get(), fresh, directory.get(), file_name) == 0;
    if (!done) {
        const std::string why = std::strerror(errno);
        ::unlinkat(directory.get(), fresh, 0);
        fail("cannot be written (" + why + ")");
    }
    seen_ = {};
}

IPYBOX_DECL WritablePlaces& writable_places() {
    static WritablePlaces places(config::state_directory());
    return places;
}

}  // namespace ipybox
