#pragma once
// Goes along a path step by step, as the system resolves it, so that each link on the way can be
// judged.
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace ipybox::detail {

// A directory that keeps its number and birth time when it is moved or mounted elsewhere.
struct DirectoryId {
    std::uint64_t inode = 0;
    std::int64_t born = 0;  // nanoseconds since 1970; 0: the file system does not tell
    bool operator==(const DirectoryId& other) const {
        return born != 0 && inode == other.inode && born == other.born;
    }
};

// What lies at a path, no link followed.
struct PathStatus {
    mode_t mode = 0;  // 0: nothing, or nothing that can be seen
    DirectoryId id;
};

inline PathStatus path_status(const std::filesystem::path& path) noexcept {
    PathStatus found;
    struct statx seen{};
    if (::statx(AT_FDCWD, path.c_str(), AT_SYMLINK_NOFOLLOW, STATX_TYPE | STATX_INO | STATX_BTIME,
                &seen) != 0)
        return found;
    found.mode = seen.stx_mode;
    found.id.inode = seen.stx_ino;
    if (seen.stx_mask & STATX_BTIME)
        found.id.born = seen.stx_btime.tv_sec * 1'000'000'000 + seen.stx_btime.tv_nsec;
    return found;
}

struct PathWalk {
    std::filesystem::path at;  // where the path really lies, or where the walk ended
    bool whole = false;
    std::filesystem::path rest;  // behind the place where it ended

    // Where it would lead if that were a directory; no further than there when it goes back up.
    std::filesystem::path by_name() const {
        auto path = at;
        if (std::find(rest.begin(), rest.end(), "..") == rest.end())
            for (const auto& name : rest) path /= name;
        return path;
    }
};

// path: absolute; what is absent is gone along by its name. pass(place, status) is asked at each
// step, before a link is followed, and false ends the walk there; so do a link that cannot be read
// and the 41st.
template <class Pass>
PathWalk walk_path(const std::filesystem::path& path, const Pass& pass) {
    namespace fs = std::filesystem;
    std::vector<std::string> rest;  // the next name comes last
    const auto push = [&rest](const fs::path& more) {
        const std::vector<std::string> names(more.begin(), more.end());
        rest.insert(rest.end(), names.rbegin(), names.rend());
    };
    push(path.relative_path());
    PathWalk walk{"/", true, {}};
    const auto ended_at = [&rest](fs::path&& at) {
        PathWalk ended{std::move(at), false, {}};
        for (; !rest.empty(); rest.pop_back()) ended.rest /= rest.back();
        return ended;
    };
    for (int links = 0; !rest.empty();) {
        const auto name = std::move(rest.back());
        rest.pop_back();
        if (name.empty() || name == ".") continue;
        if (name == "..") {
            walk.at = walk.at.parent_path();
            continue;
        }
        auto next = walk.at / name;
        const auto status = path_status(next);
        const bool link = S_ISLNK(status.mode);
        std::error_code error;
        if (!pass(std::as_const(next), status) || (link && ++links > 40))
            return ended_at(std::move(next));
        const auto target = link ? fs::read_symlink(next, error) : fs::path();
        if (error) return ended_at(std::move(next));
        if (!link) {
            walk.at = std::move(next);
            continue;
        }
        if (target.is_absolute()) walk.at = "/";
        push(target.relative_path());
    }
    return walk;
}

// Where an absolute path leads; where links go round in circles, one of them.
inline std::filesystem::path end_of_links(const std::filesystem::path& path) {
    return walk_path(path, [](const auto&, const auto&) { return true; }).at;
}

}  // namespace ipybox::detail
