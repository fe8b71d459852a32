#pragma once
// The file that keeps tokens between runs: for its owner alone, never half written.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <ipybox/detail/beneath.hpp>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/detail/unique_fd.hpp>
#include <ipybox/error.hpp>
#include <string>
#include <string_view>
#include <utility>

namespace ipybox::detail {

class TokenStore {
public:
    // Empty: nothing is kept in a file, and the content lives as long as this object.
    explicit TokenStore(std::filesystem::path file) : file_(std::move(file)) {}

    bool persistent() const noexcept { return !file_.empty(); }

    // The content; empty when there is no file yet. Throws Error: io_error when others can read the
    // file or its directory, when it is a link, or is not what update() writes.
    boost::json::object read() const {
        if (!persistent()) return memory_;
        const auto directory = open(false);
        return directory ? read(directory.get()) : boost::json::object();
    }

    // Changes the content in one step, with other processes locked out. Throws Error: io_error.
    void update(const std::function<void(boost::json::object&)>& change) {
        if (!persistent()) return change(memory_);
        const auto directory = open(true);
        const auto lock = open_lock(directory.get(), ".lock");
        while (::flock(lock.get(), LOCK_EX) != 0)
            if (errno != EINTR) throw_io_error((file_.string() + ".lock"));
        auto content = read(directory.get());
        change(content);
        content["version"] = 1;
        write(directory.get(), write_json(content));
    }

    // The lock `name` of this file if no other process holds it, else an empty handle. Let go by
    // closing it.
    UniqueFd try_lock(std::string_view name) const {
        if (!persistent()) return UniqueFd();
        const auto directory = open(true);
        auto lock = open_lock(directory.get(), "." + std::string(name) + ".lock");
        if (::flock(lock.get(), LOCK_EX | LOCK_NB) == 0) return lock;
        if (errno != EWOULDBLOCK && errno != EINTR) throw_io_error(file_.string());
        return UniqueFd();
    }

private:
    static constexpr std::size_t max_size = std::size_t{4} << 20;

    Error unsafe(const std::string& what, const std::string& remedy) const {
        return Error(errc::io_error, what + "; tokens in it are not used: " + remedy);
    }

    UniqueFd open(bool make) const {
        const auto path = file_.parent_path();
        if (make) {
            std::error_code error;
            std::filesystem::create_directories(path.parent_path(), error);
            if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) throw_io_error(path.string());
        }
        UniqueFd handle(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
        if (!handle && !make && errno == ENOENT) return handle;
        if (!handle && (errno == ELOOP || errno == ENOTDIR))
            throw unsafe(path.string() + " is a link or no directory", "make it a directory");
        if (!handle) throw_io_error(path.string());
        check(handle.get(), path, "chmod 700 ");
        return handle;
    }

    UniqueFd open_lock(int directory, const std::string& ending) const {
        const auto name = file_.filename().string() + ending;
        UniqueFd lock(
            ::openat(directory, name.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
        if (!lock) throw_io_error((file_.parent_path() / name).string());
        return lock;
    }

    // Ours alone.
    void check(int handle, const std::filesystem::path& path, const std::string& remedy) const {
        struct stat status{};
        if (::fstat(handle, &status) != 0) throw_io_error(path.string());
        if (status.st_uid != ::geteuid())
            throw unsafe(path.string() + " belongs to another user",
                         "run ipybox as that user, or set XDG_DATA_HOME");
        if ((status.st_mode & 077) != 0)
            throw unsafe(path.string() + " can be read by others",
                         "run `" + remedy + path.string() + "`, and log in again if they may have");
    }

    boost::json::object read(int directory) const {
        const auto name = file_.filename();
        const UniqueFd handle(
            ::openat(directory, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
        if (!handle && errno == ENOENT) return {};
        if (!handle && errno == ELOOP)
            throw unsafe(file_.string() + " is a link", "replace it by a file");
        if (!handle) throw_io_error(file_.string());
        struct stat status{};
        if (::fstat(handle.get(), &status) != 0) throw_io_error(file_.string());
        if (!S_ISREG(status.st_mode) || status.st_nlink != 1)
            throw unsafe(file_.string() + " is no file, or has a second name", "remove it");
        check(handle.get(), file_, "chmod 600 ");
        std::string text;
        char buffer[16384];
        for (;;) {
            const auto got = ::read(handle.get(), buffer, sizeof buffer);
            if (got < 0 && errno == EINTR) continue;
            if (got < 0) throw_io_error(file_.string());
            if (got == 0) break;
            text.append(buffer, static_cast<std::size_t>(got));
            if (text.size() > max_size) break;
        }
        boost::system::error_code error;
        auto value = boost::json::parse(text, error);
        if (error || text.size() > max_size || !value.is_object())
            throw Error(errc::io_error,
                        file_.string() + ": is damaged; remove it and log in again");
        const auto* format = value.get_object().if_contains("version");
        if (format == nullptr || !format->is_int64() || format->get_int64() != 1)
            throw Error(errc::io_error, file_.string() +
                                            ": was written by another version of ipybox; remove "
                                            "it and log in again");
        return std::move(value.get_object());
    }

    void write(int directory, const std::string& text) const {
        const auto name = file_.filename().string();
        const auto fresh = name + ".new";  // only one at a time: the caller holds the lock
        ::unlinkat(directory, fresh.c_str(), 0);
        {
            const UniqueFd handle(::openat(directory, fresh.c_str(),
                                           O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                                           0600));
            if (!handle) throw_io_error(file_.string());
            write_all(handle.get(), text, file_.string());
            if (::fsync(handle.get()) != 0) throw_io_error(file_.string());
        }
        if (::renameat(directory, fresh.c_str(), directory, name.c_str()) != 0)
            throw_io_error(file_.string());
        ::fsync(directory);
    }

    std::filesystem::path file_;
    boost::json::object memory_;
};

}  // namespace ipybox::detail
