#pragma once
// Files under a directory that hostile code can write to: every name is resolved beneath a
// directory handle, without following a single link (openat2(2), RESOLVE_BENEATH).
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <ipybox/detail/unique_fd.hpp>
#include <ipybox/error.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace ipybox::detail {

[[noreturn]] inline void throw_io_error(const std::string& what) {
    const int code = errno;
    std::string why = std::strerror(code);
    if (code == ELOOP || code == EXDEV)
        why += "; the path leads out of its directory or through a link";
    throw Error(errc::io_error, what + ": " + why);
}

// Opens `name` beneath the directory `at`; the caller checks the handle and errno.
inline UniqueFd open_beneath(int at, const std::string& name, int flags, mode_t mode = 0) {
    open_how how{};
    how.flags = static_cast<decltype(how.flags)>(flags | O_CLOEXEC);
    how.mode = (flags & O_CREAT) ? mode : 0;
    how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS;
    return UniqueFd(static_cast<int>(::syscall(SYS_openat2, at, name.c_str(), &how, sizeof how)));
}

// Opens a directory that the host chose. Throws Error: io_error.
inline UniqueFd open_directory(const std::filesystem::path& path) {
    UniqueFd handle(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!handle) throw_io_error(path.string());
    return handle;
}

// Opens a directory whose path led over no link when it was chosen. Throws Error: io_error, also
// when it leads over one by now: code in a sandbox around it may have put that there.
inline UniqueFd open_real_directory(const std::filesystem::path& path) {
    open_how how{};
    how.flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
    how.resolve = RESOLVE_NO_SYMLINKS;
    UniqueFd handle(
        static_cast<int>(::syscall(SYS_openat2, AT_FDCWD, path.c_str(), &how, sizeof how)));
    if (!handle && errno == ELOOP)
        throw Error(errc::io_error, path.string() +
                                        ": leads over a link by now, which code in a sandbox may "
                                        "have put there; put back what was there before");
    if (!handle) throw_io_error(path.string());
    return handle;
}

// Makes a directory where there is none; false when what is there is not ours alone to write.
inline bool make_own_directory(const std::filesystem::path& path) {
    // Root's guests, other users, may have to reach what is theirs in there.
    ::mkdir(path.c_str(), 0711);
    struct stat found{};
    return ::lstat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode) &&
           found.st_uid == ::geteuid() && (found.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

// What root makes in somebody's directory belongs to that somebody.
inline void give_to_owner_of(int directory, int made) {
    struct stat status{};
    if (::geteuid() == 0 && ::fstat(directory, &status) == 0 &&
        ::fchown(made, status.st_uid, status.st_gid) != 0)
        throw_io_error("cannot give a new file to the directory's owner");
}

// Opens, making what is missing, the directory `relative` beneath `root`. Throws Error: io_error.
inline UniqueFd make_directory_beneath(int root, const std::filesystem::path& relative) {
    UniqueFd current(::fcntl(root, F_DUPFD_CLOEXEC, 0));
    if (!current) throw_io_error("cannot duplicate a directory handle");
    for (const auto& part : relative) {
        if (part.empty() || part == ".") continue;
        const bool made = ::mkdirat(current.get(), part.c_str(), 0755) == 0;
        if (!made && errno != EEXIST) throw_io_error(relative.string());
        UniqueFd next = open_beneath(current.get(), part.string(), O_RDONLY | O_DIRECTORY);
        if (!next) throw_io_error(relative.string());
        if (made) give_to_owner_of(root, next.get());
        current = std::move(next);
    }
    return current;
}

// A regular file whole; without it `why` says why not. file: opened with O_NONBLOCK, because
// opening a pipe would wait for somebody to write. limit: bytes, whole KiB or MiB.
inline std::optional<std::string> read_regular(const UniqueFd& file, std::size_t limit,
                                               std::string& why) {
    struct stat status{};
    if (!file || ::fstat(file.get(), &status) != 0) {
        why = errno == ELOOP || errno == EXDEV ? "it is reached over a symbolic link"
                                               : std::strerror(errno);
        return std::nullopt;
    }
    if (!S_ISREG(status.st_mode)) {
        why = "it is no regular file";
        return std::nullopt;
    }
    std::string text;
    char block[16'384];
    while (text.size() <= limit) {
        const auto count = ::read(file.get(), block, sizeof block);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) {
            why = std::strerror(errno);
            return std::nullopt;
        }
        if (count == 0) return text;
        text.append(block, static_cast<std::size_t>(count));
    }
    why = "it has more than " + (limit >> 20 > 0 ? std::to_string(limit >> 20) + " MiB"
                                                 : std::to_string(limit >> 10) + " KiB");
    return std::nullopt;
}

inline void write_all(int fd, std::string_view data, const std::string& what) {
    while (!data.empty()) {
        const ssize_t written = ::write(fd, data.data(), data.size());
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) throw_io_error(what);
        data.remove_prefix(static_cast<std::size_t>(written));
    }
}

// Writes a new file `name` in the directory; an existing one is an error. Throws Error: io_error.
inline void write_new_file(int directory, const std::string& name, std::string_view data) {
    UniqueFd file = open_beneath(directory, name, O_WRONLY | O_CREAT | O_EXCL, 0644);
    if (!file) throw_io_error(name);
    give_to_owner_of(directory, file.get());
    write_all(file.get(), data, name);
}

// The same, for everybody to read whatever this process's umask.
inline void write_readable_file(int directory, const std::string& name, std::string_view data) {
    write_new_file(directory, name, data);
    if (::fchmodat(directory, name.c_str(), 0644, 0) != 0) throw_io_error(name);
}

}  // namespace ipybox::detail
