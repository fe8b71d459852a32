// The history of `ipybox repl`.
#include "repl_history.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json/parse.hpp>
#include <cerrno>
#include <cstring>
#include <ipybox/config.hpp>
#include <ipybox/detail/file_id.hpp>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/detail/terminal_text.hpp>
#include <ipybox/detail/unique_fd.hpp>
#include <ipybox/error.hpp>
#include <ipybox/sandbox_kit/writable_places.hpp>

namespace ipybox::app {
namespace {

constexpr std::size_t largest_history = std::size_t{32} << 20;  // of the file

[[noreturn]] void history_failed(const std::filesystem::path& file) {
    throw Error(errc::io_error, file.string() + ": " + std::strerror(errno));
}

void write_history(int fd, const std::filesystem::path& file, std::string_view text) {
    while (!text.empty()) {
        const auto size = ::write(fd, text.data(), text.size());
        if (size < 0 && errno != EINTR) history_failed(file);
        if (size > 0) text.remove_prefix(static_cast<std::size_t>(size));
    }
}

// What an editor can show; anything else was not typed.
bool is_cell(std::string_view text) {
    while (!text.empty()) {
        const auto point = detail::decode_utf8(text);
        const bool blank = point.value == '\n' || point.value == '\t';
        if (!point.valid || (detail::is_deceptive(point.value) && !blank)) return false;
        text.remove_prefix(point.size);
    }
    return true;
}

}  // namespace

std::filesystem::path ReplHistory::standard_file() {
    const auto directory = config::state_directory();
    return directory.empty() ? directory : directory / "repl-history.jsonl";
}

int ReplHistory::open(int flags) const {
    if (const auto place = writable_places().holds(file_))
        throw Error(errc::denied, "code in a sandbox could have written " + file_.string() +
                                      ", in " + place->string() +
                                      ": set XDG_STATE_HOME to a "
                                      "directory outside of it");
    std::error_code ignored;
    const auto directory = file_.parent_path();
    std::filesystem::create_directories(directory.parent_path(), ignored);
    if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) history_failed(directory);
    struct stat status{}, named{};
    UniqueFd fd;
    do {  // until it is the file that others find, which shorten() replaces
        fd.reset(
            ::open(file_.c_str(), flags | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600));
        if (!fd || ::flock(fd.get(), LOCK_EX) != 0 || ::fstat(fd.get(), &status) != 0 ||
            (::lstat(file_.c_str(), &named) != 0 && errno != ENOENT))
            history_failed(file_);
    } while (!detail::same_file(status, named));
    if (!S_ISREG(status.st_mode) || status.st_uid != ::geteuid() || (status.st_mode & 0077) != 0)
        throw Error(errc::denied, file_.string() +
                                      " must be a regular file that only you can read and write: "
                                      "chmod 600 it, or remove it");
    return fd.release();
}

std::vector<std::string> ReplHistory::load() const {
    std::vector<std::string> cells;
    if (file_.empty()) return cells;
    const UniqueFd fd(open(O_RDWR));
    std::string text;
    char part[1 << 14];
    for (ssize_t size = 0; (size = ::read(fd.get(), part, sizeof part)) != 0;) {
        if (size < 0) history_failed(file_);
        text.append(part, static_cast<std::size_t>(size));
        if (text.size() > largest_history)
            throw Error(errc::io_error, file_.string() + " is too large: remove it");
    }
    std::size_t lines = 0;
    for (std::string_view rest = text; !rest.empty(); ++lines) {
        const auto end = std::min(rest.find('\n'), rest.size());
        boost::system::error_code wrong;
        const auto value = boost::json::parse(rest.substr(0, end), wrong);
        if (!wrong && value.is_string() && is_cell(value.get_string()))
            cells.emplace_back(value.get_string());
        rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    if (cells.size() > most) cells.erase(cells.begin(), cells.end() - most);
    if (lines > 2 * most) shorten(cells);
    return cells;
}

void ReplHistory::shorten(const std::vector<std::string>& cells) const {
    const auto fresh = file_.string() + ".new";
    ::unlink(fresh.c_str());
    const UniqueFd fd(
        ::open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!fd) history_failed(fresh);
    std::string text;
    for (const auto& cell : cells)
        text += detail::write_json(boost::json::value(boost::json::string(cell))) + '\n';
    write_history(fd.get(), fresh, text);
    if (::rename(fresh.c_str(), file_.c_str()) != 0) history_failed(file_);
}

void ReplHistory::add(std::string_view cell) const {
    if (file_.empty() || cell.empty() || cell.front() == ' ' || cell.size() > longest) return;
    const UniqueFd fd(open(O_WRONLY | O_APPEND));
    const auto line = detail::write_json(boost::json::value(boost::json::string(cell))) + '\n';
    write_history(fd.get(), file_, line);
}

}  // namespace ipybox::app
