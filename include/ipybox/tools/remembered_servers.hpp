#pragma once
// The MCP servers that were registered for a workspace: kept beyond the process, forgotten when the
// workspace is gone.
#include <fcntl.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <ipybox/config.hpp>
#include <ipybox/detail/beneath.hpp>
#include <ipybox/detail/hex.hpp>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/detail/unique_fd.hpp>
#include <map>
#include <string>
#include <utility>

namespace ipybox {

// A file of server parameters as they were given, in a directory of such files. Several processes
// may share it.
class RememberedServers {
public:
    // How long a record of a workspace that is gone stays after its last use.
    static constexpr std::chrono::hours patience{24 * 30};

    // file: empty to remember nothing; its directory is made when it is needed. workspace: whose
    // servers they are.
    RememberedServers(std::filesystem::path file, const std::filesystem::path& workspace)
        : file_(std::move(file)), workspace_(real(workspace)) {}

    // The name of a workspace's file: forget_gone() knows records by it.
    static std::string file_name(const std::filesystem::path& workspace) {
        return detail::sha256_hex(real(workspace).string()).substr(0, name_size) + name_end;
    }

    // The servers by name; none when there is no record. Throws Error: bad_config (it holds
    // something else), io_error (it cannot be read).
    std::map<std::string, json::object> read() const;

    // Adds a server, or replaces the one of that name; what cannot be read is replaced as a whole.
    // Throws Error: io_error (it cannot be written).
    void add(const std::string& name, const json::object& params) const;

    // Notes that the record is in use, and removes those beside it whose workspaces are gone and
    // that nobody has used for `patience`. A workspace on a disk that is not mounted is not gone:
    // below the last directory of its path that is there, and is the one that was there when the
    // record was made, its name must be missing. Errors leave records as they are. Looks at a
    // bounded number of them.
    void forget_gone() const noexcept;

private:
    static constexpr std::size_t name_size = 16;
    static constexpr const char* name_end = ".json";

    static std::filesystem::path real(const std::filesystem::path& workspace);
    static UniqueFd open_directory(const std::filesystem::path& path) {
        return UniqueFd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    }

    // What tells a directory from another in its place.
    struct Place {
        std::uint64_t inode = 0, device = 0;
        std::int64_t born = 0;  // 0: the file system does not tell

        // Whether it is known to be the same one. Numbers of devices may change; then it is not.
        bool is(const Place& other) const {
            return inode != 0 && inode == other.inode && born == other.born &&
                   (born != 0 || device == other.device);
        }
    };
    static Place place_of(const std::filesystem::path& path);

    // The directories that lead to the workspace, from the root on.
    static json::array places_above(const std::filesystem::path& workspace);
    static Place place_in(const json::value& value);

    // What lies in an automounter's directory may just not be reached now.
    static bool is_automounter(const std::filesystem::path& path);

    static bool is_record(const std::string& name);
    static bool is_old(const UniqueFd& directory, const std::string& name);

    // Whether a record says which workspace it is of, by its name too, and that one is gone.
    static bool tells_of_gone(const UniqueFd& directory, const std::string& name);
    static bool is_gone(const std::filesystem::path& workspace, const json::array& above);

    std::filesystem::path file_;
    std::filesystem::path workspace_;
};

}  // namespace ipybox

#ifndef IPYBOX_SEPARATE_COMPILATION
#include <ipybox/tools/impl/remembered_servers.ipp>
#endif
