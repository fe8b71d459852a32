#pragma once
// Reads and writes files of a workspace for somebody who cannot reach the disk. Code that runs in
// the workspace can exchange any file for a link, a pipe or a device at any time.
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <sys/random.h>
#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <ipybox/detail/beneath.hpp>
#include <ipybox/detail/unique_fd.hpp>
#include <ipybox/error.hpp>
#include <string>
#include <string_view>

namespace ipybox::detail {

// The path of a file below a workspace, without "." in it. Throws Error: bad_argument (it is no
// such path).
inline std::filesystem::path workspace_path(std::string_view text) {
    const std::filesystem::path given(text);
    const auto refuse = [&](const std::string& why) {
        throw Error(errc::bad_argument,
                    "path: " + why + "; name a file in the workspace, such as data/table.csv");
    };
    if (text.empty() || text.size() > 4000) refuse("is empty or too long");
    if (text.find('\0') != text.npos) refuse("has a zero byte");
    if (given.is_absolute()) refuse("is absolute");
    std::filesystem::path path;
    for (const auto& part : given) {
        if (part == "..") refuse("has \"..\" in it");
        if (!part.empty() && part != ".") path /= part;
    }
    if (path.empty()) refuse("names no file");
    return path;
}

struct FilePart {
    std::string bytes;
    std::uint64_t size = 0;  // of the whole file
};

[[noreturn]] inline void throw_irregular(const std::filesystem::path& path) {
    throw Error(errc::io_error, path.string() + ": is no regular file");
}
// Of one that code in a sandbox could not touch.
[[noreturn]] inline void throw_guarded(const std::filesystem::path& path) {
    throw Error(errc::denied, path.string() + ": is protected; it holds settings or secrets");
}
// Of a file that could not be put in its place, for the reason in errno.
[[noreturn]] inline void throw_not_placed(const std::filesystem::path& path, bool overwrite) {
    if (errno == EEXIST && !overwrite)
        throw Error(errc::io_error,
                    path.string() + ": exists already; set overwrite to replace it");
    throw_io_error(path.string());
}

// `limit` bytes of a regular file from `offset` on. may_read: asked about the file that was opened.
// Throws Error: io_error, denied.
inline FilePart read_beneath(int root, const std::filesystem::path& path, std::uint64_t offset,
                             std::size_t limit,
                             const std::function<bool(const struct stat&)>& may_read = {}) {
    // Without waiting, because opening a pipe would.
    const UniqueFd file = open_beneath(root, path.string(), O_RDONLY | O_NONBLOCK | O_NOCTTY);
    if (!file) throw_io_error(path.string());
    struct stat status{};
    if (::fstat(file.get(), &status) != 0) throw_io_error(path.string());
    if (!S_ISREG(status.st_mode)) throw_irregular(path);
    if (may_read && !may_read(status)) throw_guarded(path);
    FilePart part;
    part.size = static_cast<std::uint64_t>(status.st_size);
    if (offset >= part.size) return part;
    part.bytes.resize(static_cast<std::size_t>(std::min<std::uint64_t>(limit, part.size - offset)));
    std::size_t have = 0;
    while (have < part.bytes.size()) {
        const ssize_t got = ::pread(file.get(), part.bytes.data() + have, part.bytes.size() - have,
                                    static_cast<off_t>(offset + have));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) throw_io_error(path.string());
        if (got == 0) break;
        have += static_cast<std::size_t>(got);
    }
    part.bytes.resize(have);
    return part;
}

// Writes a file in one step, making directories; a link, or a second name of another file, that
// stands in its place is replaced, never followed. Throws Error: io_error.
inline void write_beneath(int root, const std::filesystem::path& path, std::string_view bytes,
                          bool overwrite) {
    const UniqueFd directory = make_directory_beneath(root, path.parent_path());
    std::uint64_t random = 0;
    if (::getrandom(&random, sizeof random, 0) != sizeof random)
        throw_io_error("no random numbers");
    const std::string fresh = ".upload-" + std::to_string(random);
    struct Remove {
        int directory;
        const std::string& name;
        ~Remove() { ::unlinkat(directory, name.c_str(), 0); }
    };
    const Remove remove{directory.get(), fresh};
    const UniqueFd file = open_beneath(directory.get(), fresh, O_WRONLY | O_CREAT | O_EXCL, 0644);
    if (!file) throw_io_error(path.string());
    give_to_owner_of(directory.get(), file.get());
    write_all(file.get(), bytes, path.string());
    const std::string name = path.filename().string();
    const unsigned how = overwrite ? 0 : RENAME_NOREPLACE;
    if (::renameat2(directory.get(), fresh.c_str(), directory.get(), name.c_str(), how) == 0)
        return;
    throw_not_placed(path, overwrite);
}

}  // namespace ipybox::detail
