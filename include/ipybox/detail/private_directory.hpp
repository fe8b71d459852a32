#pragma once
// Directories of our own for one sandbox: sockets, and files that the guest reads or even writes.
#include <dirent.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <ipybox/detail/unique_fd.hpp>
#include <ipybox/error.hpp>
#include <string>
#include <string_view>
#include <utility>

namespace ipybox::detail {

// A fresh directory, removed at the end with everything that hostile code may have planted in it:
// every step is relative to a directory handle, and no link is followed. A lock tells the next
// start whether whoever made it still lives; what a killed host left behind is removed then.
class PrivateDirectory {
public:
    // owner: to whom it belongs. It lies in $XDG_RUNTIME_DIR if that is us and `for_guest`, who
    // must be able to enter it, is us as well; root's own in /run where that is memory, because a
    // new file on a large disk can take a millisecond; else in /tmp. Throws Error: io_error.
    explicit PrivateDirectory(uid_t owner, uid_t for_guest, mode_t mode = 0700)
        : PrivateDirectory(parent_for(owner, for_guest), owner, mode) {}
    // The same in `parent`, which exists.
    PrivateDirectory(const std::filesystem::path& parent, uid_t owner, mode_t mode = 0700) {
        remove_abandoned(parent);
        std::string name = (parent / (std::string(name_start) + "XXXXXX")).string();
        if (::mkdtemp(name.data()) == nullptr) fail("create", name);
        path_ = name;
        handle_.reset(::open(name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
        if (!handle_ || ::flock(handle_.get(), LOCK_SH | LOCK_NB) != 0 ||
            ::fchmod(handle_.get(), mode) != 0 ||
            (owner != ::geteuid() && ::fchown(handle_.get(), owner, gid_t(-1)) != 0)) {
            ::rmdir(name.c_str());
            fail("set up", name);
        }
    }
    PrivateDirectory(PrivateDirectory&& other) noexcept
        : path_(std::exchange(other.path_, {})), handle_(std::move(other.handle_)) {}
    PrivateDirectory& operator=(PrivateDirectory&&) = delete;
    ~PrivateDirectory() { remove(); }

    const std::filesystem::path& path() const noexcept { return path_; }
    int handle() const noexcept { return handle_.get(); }

    // A new file that belongs to `owner`. Throws Error: io_error.
    void write_file(const char* name, std::string_view text, uid_t owner,
                    mode_t mode = 0600) const {
        constexpr int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
        const UniqueFd file(::openat(handle_.get(), name, flags, mode));
        const auto size = static_cast<ssize_t>(text.size());
        if (!file || ::write(file.get(), text.data(), text.size()) != size ||
            ::fchmod(file.get(), mode) != 0 ||
            (owner != ::geteuid() && ::fchown(file.get(), owner, gid_t(-1)) != 0))
            fail("write", path_ / name);
    }

    void remove() noexcept {
        if (!handle_) return;
        empty(handle_.get());
        handle_.reset();
        ::rmdir(path_.c_str());
    }
    // Removes it while the guest has it: what we hold handles on goes on, and nobody can make
    // anything in it again, so that no guest fills the host's inodes. Throws Error: io_error.
    void seal() {
        const std::string path = path_.string();
        remove();
        struct stat info{};
        if (::lstat(path.c_str(), &info) == 0 || errno != ENOENT) fail("remove", path);
    }

private:
    static constexpr std::string_view name_start = "ipybox-";

    [[noreturn]] static void fail(const char* what, const std::filesystem::path& path) {
        throw Error(errc::io_error, std::string("cannot ") + what + " " + path.string() + ": " +
                                        std::strerror(errno));
    }

    static std::filesystem::path parent_for(uid_t owner, uid_t guest) {
        const char* runtime = std::getenv("XDG_RUNTIME_DIR");
        struct stat info{};
        // The path of a socket in it must stay short.
        if (runtime != nullptr && *runtime == '/' && guest == ::geteuid() &&
            std::strlen(runtime) < 60 && ::stat(runtime, &info) == 0 && S_ISDIR(info.st_mode) &&
            info.st_uid == ::geteuid() && ::access(runtime, W_OK) == 0)
            return runtime;
        // Not for what the guest may fill.
        struct statfs system{};
        if (owner == 0 && ::geteuid() == 0 && ::statfs("/run", &system) == 0 &&
            system.f_type == TMPFS_MAGIC && ::access("/run", W_OK) == 0)
            return "/run";
        return "/tmp";
    }

    static void remove_abandoned(const std::filesystem::path& parent) noexcept {
        const UniqueFd place(::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        if (!place) return;
        for_each(place.get(), [&](const char* name) {
            const std::string_view text = name;
            if (!text.starts_with(name_start) || text.size() != name_start.size() + 6) return;
            const UniqueFd directory(
                ::openat(place.get(), name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
            struct stat info{};
            if (!directory || ::fstat(directory.get(), &info) != 0) return;
            // One just made may not be locked yet; a guest may have put the time into the future.
            const auto age = ::time(nullptr) - info.st_mtime;
            if ((info.st_uid != ::geteuid() && ::geteuid() != 0) || (age >= 0 && age < 60) ||
                ::flock(directory.get(), LOCK_EX | LOCK_NB) != 0)
                return;
            empty(directory.get());
            ::unlinkat(place.get(), name, AT_REMOVEDIR);
        });
    }

    // Directories inside directories are moved up before they are emptied, so that no depth a
    // guest builds costs more than two handles. The bound is far above what one needs.
    static void empty(int top) noexcept {
        unsigned serial = 0;
        for (int budget = 1'000'000; budget > 0;) {
            const int before = budget;
            bool nothing = true;
            for_each(top, [&](const char* name) {
                nothing = false;
                --budget;
                if (::unlinkat(top, name, 0) == 0) return;
                const UniqueFd child = open_directory(top, name);
                if (child) {
                    for_each(child.get(), [&](const char* inner) {
                        --budget;
                        if (::unlinkat(child.get(), inner, 0) == 0) return;
                        open_directory(child.get(), inner);  // only for the right to move it
                        const auto fresh = ".ipybox-" + std::to_string(++serial);
                        ::renameat(child.get(), inner, top, fresh.c_str());
                    });
                }
                ::unlinkat(top, name, AT_REMOVEDIR);
            });
            if (nothing || before == budget) break;
        }
    }

    static UniqueFd open_directory(int parent, const char* name) noexcept {
        const UniqueFd path(::openat(parent, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
        if (!path) return UniqueFd();
        const auto self = "/proc/self/fd/" + std::to_string(path.get());
        ::chmod(self.c_str(), 0700);  // the guest may have taken our rights away
        return UniqueFd(::open(self.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    }

    template <class Function>
    static void for_each(int directory, Function use) noexcept {
        const UniqueFd fresh(::openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        DIR* stream = fresh ? ::fdopendir(::fcntl(fresh.get(), F_DUPFD_CLOEXEC, 3)) : nullptr;
        if (stream == nullptr) return;
        while (const dirent* entry = ::readdir(stream)) {
            const std::string_view name = entry->d_name;
            if (name != "." && name != "..") use(entry->d_name);
        }
        ::closedir(stream);
    }

    std::filesystem::path path_;
    UniqueFd handle_;
};

// A handle on a Unix socket of `owner` in a directory that the guest can write to; empty while
// there is nothing of that name. Throws Error: kernel_protocol (something else lies there).
inline UniqueFd open_socket(const PrivateDirectory& directory, const std::string& name,
                            uid_t owner) {
    UniqueFd socket(::openat(directory.handle(), name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    struct stat info{};
    if (!socket && errno == ENOENT) return UniqueFd();
    if (!socket || ::fstat(socket.get(), &info) != 0 || !S_ISSOCK(info.st_mode) ||
        info.st_uid != owner)
        throw Error(errc::kernel_protocol,
                    "the kernel put something else in the place of its socket " + name);
    return socket;
}

}  // namespace ipybox::detail
