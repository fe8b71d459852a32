#pragma once
#include <ipybox/tools/remembered_servers.hpp>

#include <dirent.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <boost/json/parse.hpp>
#include <cerrno>
#include <ipybox/compilation.hpp>
#include <ipybox/detail/json_members.hpp>
#include <ipybox/detail/path_walk.hpp>
#include <ipybox/detail/within.hpp>
#include <memory>
#include <system_error>
#include <vector>

namespace ipybox {

IPYBOX_DECL std::map<std::string, json::object> RememberedServers::read() const {
    std::error_code error;
    if (file_.empty() || !std::filesystem::exists(file_, error)) return {};
    return read_mcp_servers(parse_json(read_text_file(file_), file_.string()), file_.string());
}

IPYBOX_DECL void RememberedServers::add(const std::string& name, const json::object& params) const {
    if (file_.empty()) return;
    std::error_code ignored;
    std::filesystem::create_directories(file_.parent_path(), ignored);
    const auto directory = open_directory(file_.parent_path());
    if (!directory || ::flock(directory.get(), LOCK_EX) != 0)
        detail::throw_io_error(file_.parent_path().string());
    json::object list, whole;
    try {
        for (auto& [key, value] : read()) list[key] = std::move(value);
    } catch (const Error&) {
        // Who registers again wants a record that can be read.
    }
    list[name] = params;
    whole["workspace"] = workspace_.string();
    whole["above"] = places_above(workspace_);
    whole["mcpServers"] = std::move(list);
    const std::string fresh = file_.string() + ".new";  // nobody else's, under the lock
    ::unlink(fresh.c_str());
    const UniqueFd out(
        ::open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!out) detail::throw_io_error(fresh);
    detail::write_all(out.get(), detail::write_json(whole), fresh);
    if (::fdatasync(out.get()) != 0 || ::rename(fresh.c_str(), file_.c_str()) != 0)
        detail::throw_io_error(file_.string());
}

IPYBOX_DECL void RememberedServers::forget_gone() const noexcept {
    try {
        const auto handle = file_.empty() ? UniqueFd() : open_directory(file_.parent_path());
        if (!handle || ::flock(handle.get(), LOCK_EX | LOCK_NB) != 0) return;
        ::utimensat(handle.get(), file_.filename().c_str(), nullptr, AT_SYMLINK_NOFOLLOW);
        const int own = ::fcntl(handle.get(), F_DUPFD_CLOEXEC, 3);
        const std::unique_ptr<DIR, int (*)(DIR*)> names(own < 0 ? nullptr : ::fdopendir(own),
                                                        ::closedir);
        if (!names && own >= 0) ::close(own);
        int entries = 0, records = 0;
        for (const dirent* entry = nullptr;
             names && entries < 20'000 && records < 2'000 && (entry = ::readdir(names.get()));
             ++entries) {
            const std::string name = entry->d_name;
            if (!is_record(name) || !is_old(handle, name)) continue;
            ++records;
            if (tells_of_gone(handle, name)) ::unlinkat(handle.get(), name.c_str(), 0);
        }
    } catch (const std::exception&) {
        // No memory or descriptors: next time.
    }
}

IPYBOX_DECL std::filesystem::path RememberedServers::real(const std::filesystem::path& workspace) {
    std::error_code error;
    auto path = std::filesystem::weakly_canonical(workspace, error);
    return error ? workspace : path;
}

IPYBOX_DECL RememberedServers::Place RememberedServers::place_of(
    const std::filesystem::path& path) {
    const auto id = detail::path_status(path).id;
    struct stat status{};
    if (::lstat(path.c_str(), &status) != 0) return {};
    return {id.inode, status.st_dev, id.born};
}

IPYBOX_DECL json::array RememberedServers::places_above(const std::filesystem::path& workspace) {
    json::array places;
    std::filesystem::path at = "/";
    for (const auto& part : workspace.relative_path()) {
        const auto place = place_of(at);
        places.push_back(json::array{place.inode, place.device, place.born});
        at /= part;
    }
    return places;
}

IPYBOX_DECL RememberedServers::Place RememberedServers::place_in(const json::value& value) {
    const auto* numbers = value.if_array();
    if (!numbers || numbers->size() != 3) return {};
    for (const auto& number : *numbers)
        if (!number.is_number()) return {};
    boost::system::error_code ignored;
    return {numbers->at(0).to_number<std::uint64_t>(ignored),
            numbers->at(1).to_number<std::uint64_t>(ignored),
            numbers->at(2).to_number<std::int64_t>(ignored)};
}

IPYBOX_DECL bool RememberedServers::is_automounter(const std::filesystem::path& path) {
    constexpr decltype(statfs::f_type) autofs = 0x0187;
    struct statfs system{};
    return ::statfs(path.c_str(), &system) != 0 || system.f_type == autofs;
}

IPYBOX_DECL bool RememberedServers::is_record(const std::string& name) {
    return name.size() == name_size + std::string_view(name_end).size() &&
           name.ends_with(name_end) && name.find_first_not_of("0123456789abcdef") == name_size;
}

IPYBOX_DECL bool RememberedServers::is_old(const UniqueFd& directory, const std::string& name) {
    struct stat status{};
    if (::fstatat(directory.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0 ||
        !S_ISREG(status.st_mode))
        return false;
    return std::chrono::system_clock::now() -
               std::chrono::system_clock::from_time_t(status.st_mtime) >
           patience;
}

IPYBOX_DECL bool RememberedServers::tells_of_gone(const UniqueFd& directory,
                                                  const std::string& name) {
    const UniqueFd file(
        ::openat(directory.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    std::string why;
    const auto text = detail::read_regular(file, std::size_t{4} << 20, why);
    boost::system::error_code error;
    const auto value = text ? json::parse(*text, error) : json::value();
    const auto* whole = value.if_object();
    const auto* workspace = whole && !error ? detail::find_string(*whole, "workspace") : nullptr;
    const auto* above = workspace ? whole->if_contains("above") : nullptr;
    if (!above || !above->is_array()) return false;
    const std::filesystem::path path{std::string(*workspace)};
    if (!path.is_absolute() ||
        detail::sha256_hex(path.string()).substr(0, name_size) + name_end != name)
        return false;
    return is_gone(path, above->get_array());
}

IPYBOX_DECL bool RememberedServers::is_gone(const std::filesystem::path& workspace,
                                            const json::array& above) {
    std::filesystem::path at = "/";
    std::size_t depth = 0;
    for (const auto& part : workspace.relative_path()) {
        const auto next = at / part;
        struct stat status{};
        if (::lstat(next.c_str(), &status) != 0)
            return errno == ENOENT && depth < above.size() &&
                   place_of(at).is(place_in(above[depth])) && !is_automounter(at);
        if (!S_ISDIR(status.st_mode)) return false;
        at = next;
        ++depth;
    }
    return false;
}

}  // namespace ipybox
