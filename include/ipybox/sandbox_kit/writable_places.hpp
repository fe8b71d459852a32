#pragma once
// Which places code in sandboxes could write, on record beyond the end of its session: the host
// runs nothing that lies there.
#include <sys/stat.h>

#include <algorithm>
#include <boost/json/parse.hpp>
#include <cstring>
#include <filesystem>
#include <ipybox/config.hpp>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/detail/path_walk.hpp>
#include <ipybox/detail/unique_fd.hpp>
#include <ipybox/detail/within.hpp>
#include <ipybox/error.hpp>
#include <ipybox/sandbox.hpp>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace ipybox {

namespace sandbox_kit {

std::filesystem::path without_end_slash(const std::filesystem::path& path);

// A place that code could write, and what in it was write-protected each time.
struct WritablePlace {
    std::filesystem::path path;  // real
    detail::DirectoryId id;
    std::vector<std::filesystem::path> kept;  // relative to `path`; "." is all of it
    bool pinned = false;                      // what holds a kept path could not be renamed either
    bool confined = true;                     // by code that could write nothing else

    bool keeps(const std::filesystem::path& relative) const;
    // A directory that code could fill, but not replace.
    bool pins(const std::filesystem::path& relative) const {
        return pinned && std::any_of(kept.begin(), kept.end(), [&](const auto& name) {
                   return detail::within(name, relative);
               });
    }
    // Keeps what both this and the other recording of the place keep.
    void meet(const WritablePlace& other);
};

using PlaceList = std::vector<WritablePlace>;

// Adds a recording; true when that changed the list.
bool add_place(PlaceList& places, const WritablePlace& added);

// Makes room without forgetting a place that is there: neighbours become the directory that holds
// them, of which nothing counts as protected.
void bound_places(PlaceList& places, std::size_t most);

// Nothing can be mounted over a link, so that one is never protected.
inline bool leads_over_link(std::filesystem::path at, const std::filesystem::path& name) {
    return std::any_of(name.begin(), name.end(), [&](const auto& part) {
        return S_ISLNK(detail::path_status(at /= part).mode);
    });
}

// The places that a policy makes writable. pinned, confined: as WritablePlaces::record() says.
PlaceList places_of(const SandboxPolicy& policy, bool pinned, bool confined);

// Whose code.
enum class Writer { any, confined };

// Where in the places a path leads over something that code could have put there; each link on the
// way counts, and so does what is absent.
std::optional<std::filesystem::path> find_written(const std::vector<const PlaceList*>& lists,
                                                  const std::filesystem::path& path, Writer writer);

}  // namespace sandbox_kit

// Places that some kernel's policy made writable, on record in ipybox's state directory beyond the
// session's end. What was write-protected in a place each time that it was recorded counts as the
// user's. Its methods may be called from any thread; other processes may use the same record.
class WritablePlaces {
public:
    // state_directory: absolute, or empty to remember nothing beyond this process; nothing is made
    // in it until record().
    explicit WritablePlaces(std::filesystem::path state_directory)
        : directory_(std::move(state_directory)) {}
    WritablePlaces(const WritablePlaces&) = delete;
    WritablePlaces& operator=(const WritablePlaces&) = delete;

    // Puts on record what a policy makes writable, and what it write-protects there; from now on
    // that counts in this process, and in every other that has the same state directory. Where no
    // such directory can be made, this process alone remembers: see problem(). pinned: the guest
    // can rename no directory that holds a write-protected path. confined: it can write nothing but
    // what the policy says. Throws Error: io_error (there is a record that cannot be read or
    // replaced; names it and the remedy).
    void record(const SandboxPolicy& policy, bool pinned = false, bool confined = true);

    // The recorded place in which code could have written `path`; nullopt when there is none. The
    // path is resolved step by step: a link that lies in such a place could have been made to lead
    // elsewhere, and what is absent there could be made. path: absolute. writer: confined leaves
    // out code without a sandbox, which could write whatever its user may, so that a place tells
    // nothing of it. Throws Error: io_error (the record cannot be read: what it would tell is
    // unknown), bad_argument (the path is not absolute).
    std::optional<std::filesystem::path> holds(
        const std::filesystem::path& path,
        sandbox_kit::Writer writer = sandbox_kit::Writer::any) const;

    // Where paths that the host is about to open to code really lie. Throws what holds() throws,
    // and Error: sandbox_refused (one leads over a link in a recorded place: code could have made
    // that, and could lead the host wherever it likes; says what to name instead). paths: absolute;
    // what is absent is gone along by its name.
    std::vector<std::filesystem::path> real_paths(
        const std::vector<std::filesystem::path>& paths) const;

    // The recorded places. Throws Error: io_error.
    std::vector<std::filesystem::path> paths() const;

    // Why places are not remembered beyond this process, and the remedy; empty when they are. Known
    // once record() was called.
    std::string problem() const;

    // The record, for messages; empty when there is no state directory.
    std::filesystem::path file() const {
        return directory_.empty() ? directory_ : directory_ / file_name;
    }

private:
    static constexpr const char* file_name = "writable-places.json";
    static constexpr std::size_t most_places = 512;
    static constexpr std::size_t most_bytes = 64u << 20;

    [[noreturn]] void fail(const std::string& why) const;

    // An empty handle: there is none, and with `make` none can be made.
    UniqueFd open_directory(bool make) const;

    UniqueFd lock_record(const UniqueFd& directory) const;

    struct Seen {
        ino_t inode = 0;
        timespec changed{};
        off_t size = 0;
        bool operator==(const Seen& other) const;
    };

    // All places, by the newest record.
    std::vector<const sandbox_kit::PlaceList*> lists() const;

    // Reads the record again when it has changed.
    void load(const UniqueFd& directory) const;

    sandbox_kit::PlaceList parse(const std::string& text) const;

    // Another process sees the old record or the new one, never a part of it.
    void save(const UniqueFd& directory) const;

    const std::filesystem::path directory_;
    mutable std::mutex mutex_;
    mutable std::string problem_;
    mutable sandbox_kit::PlaceList recorded_;  // as the file has it
    mutable Seen seen_;
    sandbox_kit::PlaceList own_;  // of this process: they count even when the file is gone
};

// The record of this process's user, for all sessions in it. Nobody hands it around, so that nobody
// can forget it.
WritablePlaces& writable_places();

}  // namespace ipybox

#ifndef IPYBOX_SEPARATE_COMPILATION
#include <ipybox/sandbox_kit/impl/writable_places.ipp>
#endif
