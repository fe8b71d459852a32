#pragma once
// The MCP servers that were registered for a workspace: kept beyond the process, forgotten when the workspace is gone.
#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <boost/json/parse.hpp>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <ipybox/config.hpp>
#include <ipybox/detail/beneath.hpp>
#include <ipybox/detail/hex.hpp>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/detail/path_walk.hpp>
#include <ipybox/detail/unique_fd.hpp>
#include <ipybox/detail/within.hpp>
#include <map>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace ipybox {

// A file of server parameters as they were given, in a directory of such files. Several processes may share it.
class RememberedServers {
public:
    // How long a record of a workspace that is gone stays after its last use.
    static constexpr std::chrono::hours patience{24 * 30};

    // file: empty to remember nothing; its directory is made when it is needed. workspace: whose servers they are.
    RememberedServers(std::filesystem::path file, const std::filesystem::path& workspace)
        : file_(std::move(file)), workspace_(real(workspace)) {}

    // The name of a workspace's file: forget_gone() knows records by it.
    static std::string file_name(const std::filesystem::path& workspace) {
        return detail::sha256_hex(real(workspace).string()).substr(0, name_size) + name_end;
    }

    // The servers by name; none when there is no record. Throws Error: bad_config when it holds something else,
    // io_error when it cannot be read.
    std::map<std::string, json::object> read() const {
        std::error_code error;
        if (file_.empty() || !std::filesystem::exists(file_, error)) return {};
        return read_mcp_servers(parse_json(read_text_file(file_), file_.string()), file_.string());
    }

    // Adds a server, or replaces the one of that name; what cannot be read is replaced as a whole. Throws errc::io_error.
    void add(const std::string& name, const json::object& params) const {
        if (file_.empty()) return;
        std::error_code ignored;
        std::filesystem::create_directories(file_.parent_path(), ignored);
        const auto directory = open_directory(file_.parent_path());
        if (!directory || ::flock(directory.get(), LOCK_EX) != 0) detail::throw_io_error(file_.parent_path().string());
        json::object list, whole;
        try {
            for (auto& [key, value] : read()) list[key] = std::move(value);
        } catch (const Error&) {
            // Who registers anew wants a record that can be read.
        }
        list[name] = params;
        whole["workspace"] = workspace_.string();
        whole["above"] = places_above(workspace_);
        whole["mcpServers"] = std::move(list);
        const std::string fresh = file_.string() + ".new";  // nobody else's, under the lock
        ::unlink(fresh.c_str());
        const UniqueFd out(::open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
        if (!out) detail::throw_io_error(fresh);
        detail::write_all(out.get(), detail::write_json(whole), fresh);
        if (::fdatasync(out.get()) != 0 || ::rename(fresh.c_str(), file_.c_str()) != 0) detail::throw_io_error(file_.string());
    }

    // Notes that the record is in use, and removes those beside it whose workspaces are gone and that nobody has used
    // for `patience`. A workspace on a disk that is not mounted is not gone: below the last directory of its path that
    // is there, and is the one that was there when the record was made, its name must be missing. Errors leave records
    // as they are. Looks at a bounded number of them.
    void forget_gone() const noexcept {
        try {
            const auto handle = file_.empty() ? UniqueFd() : open_directory(file_.parent_path());
            if (!handle || ::flock(handle.get(), LOCK_EX | LOCK_NB) != 0) return;
            ::utimensat(handle.get(), file_.filename().c_str(), nullptr, AT_SYMLINK_NOFOLLOW);
            const int own = ::fcntl(handle.get(), F_DUPFD_CLOEXEC, 3);
            const std::unique_ptr<DIR, int (*)(DIR*)> names(own < 0 ? nullptr : ::fdopendir(own), ::closedir);
            if (!names && own >= 0) ::close(own);
            int entries = 0, records = 0;
            for (const dirent* entry = nullptr; names && entries < 20'000 && records < 2'000 && (entry = ::readdir(names.get())); ++entries) {
                const std::string name = entry->d_name;
                if (!is_record(name) || !is_old(handle, name)) continue;
                ++records;
                if (tells_of_gone(handle, name)) ::unlinkat(handle.get(), name.c_str(), 0);
            }
        } catch (const std::exception&) {
            // No memory or descriptors: next time.
        }
    }

private:
    static constexpr std::size_t name_size = 16;
    static constexpr const char* name_end = ".json";

    static std::filesystem::path real(const std::filesystem::path& workspace) {
        std::error_code error;
        auto path = std::filesystem::weakly_canonical(workspace, error);
        return error ? workspace : path;
    }
    static UniqueFd open_directory(const std::filesystem::path& path) {
        return UniqueFd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    }

    // What tells a directory from another in its place.
    struct Place {
        std::uint64_t inode = 0, device = 0;
        std::int64_t born = 0;  // 0: the file system does not tell

        // Whether it is known to be the same one. Numbers of devices may change; then it is not.
        bool is(const Place& other) const {
            return inode != 0 && inode == other.inode && born == other.born && (born != 0 || device == other.device);
        }
    };
    static Place place_of(const std::filesystem::path& path) {
        const auto id = detail::path_status(path).id;
        struct stat status {};
        if (::lstat(path.c_str(), &status) != 0) return {};
        return {id.inode, status.st_dev, id.born};
    }

    // The directories that lead to the workspace, from the root on.
    static json::array places_above(const std::filesystem::path& workspace) {
        json::array places;
        std::filesystem::path at = "/";
        for (const auto& part : workspace.relative_path()) {
            const auto place = place_of(at);
            places.push_back(json::array{place.inode, place.device, place.born});
            at /= part;
        }
        return places;
    }
    static Place place_in(const json::value& value) {
        const auto* numbers = value.if_array();
        if (!numbers || numbers->size() != 3) return {};
        for (const auto& number : *numbers)
            if (!number.is_number()) return {};
        boost::system::error_code ignored;
        return {numbers->at(0).to_number<std::uint64_t>(ignored), numbers->at(1).to_number<std::uint64_t>(ignored),
                numbers->at(2).to_number<std::int64_t>(ignored)};
    }

    // What lies in an automounter's directory may just not be reached now.
    static bool is_automounter(const std::filesystem::path& path) {
        constexpr decltype(statfs::f_type) autofs = 0x0187;
        struct statfs system {};
        return ::statfs(path.c_str(), &system) != 0 || system.f_type == autofs;
    }

    static bool is_record(const std::string& name) {
        return name.size() == name_size + std::string_view(name_end).size() && name.ends_with(name_end) &&
               name.find_first_not_of("0123456789abcdef") == name_size;
    }
    static bool is_old(const UniqueFd& directory, const std::string& name) {
        struct stat status {};
        if (::fstatat(directory.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(status.st_mode)) return false;
        return std::chrono::system_clock::now() - std::chrono::system_clock::from_time_t(status.st_mtime) > patience;
    }

    // Whether a record says which workspace it is of, by its name too, and that one is gone.
    static bool tells_of_gone(const UniqueFd& directory, const std::string& name) {
        const UniqueFd file(::openat(directory.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
        std::string why;
        const auto text = detail::read_regular(file, std::size_t{4} << 20, why);
        boost::system::error_code error;
        const auto value = text ? json::parse(*text, error) : json::value();
        const auto* whole = value.if_object();
        const auto* workspace = whole && !error ? whole->if_contains("workspace") : nullptr;
        const auto* above = workspace ? whole->if_contains("above") : nullptr;
        if (!above || !workspace->is_string() || !above->is_array()) return false;
        const std::filesystem::path path(std::string(workspace->get_string()));
        if (!path.is_absolute() || detail::sha256_hex(path.string()).substr(0, name_size) + name_end != name) return false;
        return is_gone(path, above->get_array());
    }
    static bool is_gone(const std::filesystem::path& workspace, const json::array& above) {
        std::filesystem::path at = "/";
        std::size_t depth = 0;
        for (const auto& part : workspace.relative_path()) {
            const auto next = at / part;
            struct stat status {};
            if (::lstat(next.c_str(), &status) != 0)
                return errno == ENOENT && depth < above.size() && place_of(at).is(place_in(above[depth])) && !is_automounter(at);
            if (!S_ISDIR(status.st_mode)) return false;
            at = next;
            ++depth;
        }
        return false;
    }

    std::filesystem::path file_;
    std::filesystem::path workspace_;
};

}  // namespace ipybox
