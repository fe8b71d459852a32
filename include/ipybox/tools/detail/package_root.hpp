#pragma once
// Directories of generated packages, to which whoever else can write may write.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <ipybox/detail/beneath.hpp>
#include <ipybox/detail/unique_fd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace ipybox::detail {

// The folder of all packages, held open: whoever else can write to it can plant links, so every
// name below is a single component, opened without following one.
class PackageRoot {
public:
    // The caller vouches for the folders above `path`. With `create`, missing ones are made;
    // without, a missing folder is an empty one. Throws Error: io_error.
    PackageRoot(const std::filesystem::path& path, bool create) {
        auto folder = std::filesystem::absolute(path).lexically_normal();
        if (!folder.has_filename()) folder = folder.parent_path();
        name_ = folder.string();
        if (create) {
            std::error_code ignored;  // opening it says what is wrong
            std::filesystem::create_directories(folder.parent_path(), ignored);
        } else if (!std::filesystem::exists(folder.parent_path())) {
            return;
        }
        const auto parent = open_directory(folder.parent_path());
        const bool made = create && ::mkdirat(parent.get(), folder.filename().c_str(), 0755) == 0;
        handle_ = open_folder(parent.get(), folder.filename());
        if (!handle_ && (create || errno != ENOENT)) fail("cannot open");
        if (made) give_to_owner_of(parent.get(), handle_.get());
    }

    // The folder behind a handle that the caller keeps.
    explicit PackageRoot(int folder)
        : name_("its folder"), handle_(::fcntl(folder, F_DUPFD_CLOEXEC, 0)) {
        if (!handle_) fail("cannot open");
    }

    explicit operator bool() const { return static_cast<bool>(handle_); }
    int get() const { return handle_.get(); }

    [[noreturn]] void fail(const std::string& what) const { throw_io_error(what + ' ' + name_); }

    static UniqueFd open_folder(int parent, const std::string& name) {
        return open_beneath(parent, name, O_RDONLY | O_DIRECTORY);
    }

    // The text of a regular file of at most 4 MB; nullopt for anything else.
    static std::optional<std::string> read(int folder, const std::string& name) {
        static constexpr off_t limit = 4 << 20;
        const auto file = open_beneath(folder, name, O_RDONLY | O_NONBLOCK);
        struct stat status{};
        if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode) ||
            status.st_size > limit)
            return std::nullopt;
        std::string text(static_cast<std::size_t>(status.st_size), '\0');
        std::size_t size = 0;
        while (size < text.size()) {
            const auto n = ::read(file.get(), &text[size], text.size() - size);
            if (n <= 0) break;
            size += static_cast<std::size_t>(n);
        }
        text.resize(size);
        return text;
    }

    static std::vector<std::string> entries(int folder) {
        std::vector<std::string> names;
        const int copy = ::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        DIR* stream = copy < 0 ? nullptr : ::fdopendir(copy);
        while (const auto* entry = stream ? ::readdir(stream) : nullptr) {
            const std::string_view name = entry->d_name;
            if (name != "." && name != "..") names.emplace_back(name);
        }
        if (stream)
            ::closedir(stream);
        else if (copy >= 0)
            ::close(copy);
        return names;
    }

    // Removes what `name` is, as far as permissions allow. A folder is flattened level by level:
    // its depth is not ours to bound, and descending would cost a descriptor a level.
    void remove(const std::string& name) const {
        if (::unlinkat(get(), name.c_str(), 0) == 0) return;
        const auto top = open_folder(get(), name);
        bool progress = static_cast<bool>(top);
        for (int level = 0; progress && level < 10'000; ++level) {
            progress = false;
            std::size_t moved = 0;
            for (const auto& entry : entries(top.get())) {
                if (::unlinkat(top.get(), entry.c_str(), 0) == 0) {
                    progress = true;
                    continue;
                }
                if (const auto inner = open_folder(top.get(), entry))
                    for (const auto& deeper : entries(inner.get())) {
                        const auto flat = std::to_string(level) + '_' + std::to_string(moved++);
                        if (::unlinkat(inner.get(), deeper.c_str(), 0) == 0 ||
                            ::renameat(inner.get(), deeper.c_str(), top.get(), flat.c_str()) == 0)
                            progress = true;
                    }
                progress = ::unlinkat(top.get(), entry.c_str(), AT_REMOVEDIR) == 0 || progress;
            }
        }
        ::unlinkat(get(), name.c_str(), AT_REMOVEDIR);
    }

    // Puts `fresh` in the place of `name`; what was there is at `fresh` afterwards.
    void swap(const std::string& fresh, const std::string& name) const {
        const auto rename = [&](unsigned flags) {
            return ::syscall(SYS_renameat2, get(), fresh.c_str(), get(), name.c_str(), flags) == 0;
        };
        for (int attempt = 0; attempt < 10; ++attempt) {  // others may make or remove the target
            if (rename(RENAME_EXCHANGE)) return;
            if (errno != ENOENT) break;
            if (rename(RENAME_NOREPLACE)) return;
            if (errno != EEXIST) break;
        }
        fail("cannot replace the package " + name + " in");
    }

private:
    std::string name_;
    UniqueFd handle_;
};

}  // namespace ipybox::detail
