#pragma once
#include <ipybox/approval/audit_head.hpp>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/json/parse.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ipybox/compilation.hpp>
#include <ipybox/detail/beneath.hpp>
#include <ipybox/detail/hex.hpp>
#include <ipybox/detail/json_members.hpp>
#include <ipybox/error.hpp>
#include <sstream>
#include <system_error>
#include <thread>
#include <utility>

namespace ipybox::approval {

// A file has one record of this size, which is overwritten, and lines that are added: which log it
// is, and where files of it ended.
inline constexpr std::size_t head_size = 512;
inline constexpr std::string_view head_suffix = ".head";

// Where the newest head of a log is kept.
inline std::filesystem::path head_file(const std::filesystem::path& directory,
                                       const std::filesystem::path& log) {
    return directory / (detail::sha256_hex(log.string()).substr(0, 32) + std::string(head_suffix));
}

inline json::object end_object(const ChainEnd& end) {
    return {{"chain", end.chain}, {"seq", end.seq}, {"hash", end.hash}};
}
inline ChainEnd end_in(const json::object& object) {
    return {text_member(object, "chain"), number_member(object, "seq"),
            text_member(object, "hash")};
}

IPYBOX_DECL AuditHead::AuditHead(const std::filesystem::path& directory,
                                 const std::filesystem::path& log)
    : AuditHead(head_file(directory, log), log.string(), true) {}

IPYBOX_DECL AuditHead::AuditHead(std::filesystem::path file, std::string log, bool make)
    : file_(std::move(file)), log_(std::move(log)) {
    open(make);
}

IPYBOX_DECL void AuditHead::open(bool make) {
    const int flags = O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
    handle_.reset(::open(file_.c_str(), make ? flags | O_CREAT : flags, 0600));
    written_.clear();
    struct stat status{};
    if (!handle_ && !make && errno == ENOENT) return;
    if (!handle_ || ::fstat(handle_.get(), &status) != 0 || !S_ISREG(status.st_mode))
        throw Error(errc::io_error, file_.string() + ", which keeps the newest head of the audit " +
                                        "log " + log_ +
                                        ", cannot be opened: " + std::strerror(errno));
    if (status.st_uid != ::geteuid() || (status.st_mode & 022) != 0)
        throw Error(errc::bad_config, file_.string() +
                                          ", which keeps the newest head of the audit log " + log_ +
                                          ": others can write it");
}

IPYBOX_DECL bool AuditHead::is_there() const {
    struct stat status{};
    return handle_ && ::fstat(handle_.get(), &status) == 0 && status.st_nlink > 0;
}

IPYBOX_DECL AuditHead::Lock::~Lock() {
    if (file_ >= 0) ::flock(file_, LOCK_UN);
}

IPYBOX_DECL AuditHead::Lock AuditHead::lock() {
    if (!is_there()) open(true);
    // A process that was stopped while it wrote must not stop this one for good.
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (::flock(handle_.get(), LOCK_EX | LOCK_NB) != 0) {
        if ((errno != EWOULDBLOCK && errno != EINTR) || std::chrono::steady_clock::now() > until)
            throw Error(errc::io_error, "the audit log " + log_ +
                                            " cannot be locked: another process writes it and "
                                            "does not come to an end");
        std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    return Lock(handle_.get());
}

IPYBOX_DECL LogEnd AuditHead::read() {
    std::string text(head_size, '\0');
    const auto size = ::pread(handle_.get(), text.data(), text.size(), 0);
    if (size == 0) return end_ = {};
    if (size == static_cast<ssize_t>(head_size) && text == written_) return end_;
    boost::system::error_code error;
    const auto value =
        size == static_cast<ssize_t>(head_size) ? json::parse(text, error) : json::value();
    const auto* object = error ? nullptr : value.if_object();
    LogEnd end;
    if (object) {
        end.end = end_in(*object);
        end.bytes = number_member(*object, "bytes");
        end.device = number_member(*object, "device");
        end.inode = number_member(*object, "inode");
        end.head = number_member(*object, "head");
        if (const auto* next = detail::object_of(*object, "next")) {
            end.next = end_in(*next);
            end.next->chain = end.end.chain;
            end.next_bytes = number_member(*next, "bytes");
        }
    }
    if (end.end.chain.empty() || end.end.hash.size() != no_record.size())
        throw Error(errc::io_error,
                    file_.string() + ", which keeps the newest head of the audit log " + log_ +
                        ", is damaged: look at the log with `ipybox audit verify`, and remove that "
                        "file; a new chain begins then");
    written_ = std::move(text);
    return end_ = std::move(end);
}

IPYBOX_DECL void AuditHead::write(const LogEnd& end, bool sync) {
    auto object = end_object(end.end);
    object["bytes"] = end.bytes;
    object["device"] = end.device;
    object["inode"] = end.inode;
    object["head"] = end.head;
    if (end.next)
        object["next"] = {
            {"seq", end.next->seq}, {"hash", end.next->hash}, {"bytes", end.next_bytes}};
    auto text = detail::write_json(object);
    text.resize(head_size - 1, ' ');
    text += '\n';
    const bool first = written_.empty() && ::lseek(handle_.get(), 0, SEEK_END) == 0;
    if (first) text += detail::write_json(json::object{{"log", log_}}) + '\n';
    const auto size = ::pwrite(handle_.get(), text.data(), text.size(), 0);
    if (size != static_cast<ssize_t>(text.size())) {
        if (size >= 0) errno = ENOSPC;
        if (first && ::ftruncate(handle_.get(), 0) != 0) errno = EIO;
        detail::throw_io_error(file_.string() + ", which keeps the newest head of the audit log");
    }
    if (sync && ::fdatasync(handle_.get()) != 0) detail::throw_io_error(file_.string());
    text.resize(head_size);
    written_ = std::move(text);
    end_ = end;
}

IPYBOX_DECL void AuditHead::add_border(const ChainEnd& border) {
    const auto text = detail::write_json(json::object{{"border", end_object(border)}}) + '\n';
    const auto at = ::lseek(handle_.get(), 0, SEEK_END);
    if (at < 0 ||
        ::pwrite(handle_.get(), text.data(), text.size(), at) != static_cast<ssize_t>(text.size()))
        detail::throw_io_error(file_.string() + ", which keeps the newest head of the audit log");
}

IPYBOX_DECL std::string AuditHead::whole() const {
    const UniqueFd file(::open(file_.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    std::string why;
    auto text = detail::read_regular(file, std::size_t{16} << 20, why);
    if (!text) throw Error(errc::io_error, file_.string() + ": cannot be read: " + why);
    return std::move(*text);
}

IPYBOX_DECL KnownEnd AuditHead::known() {
    KnownEnd found;
    const auto end = read();
    found.end = end.end;
    found.next = end.next;
    const auto text = whole();
    std::istringstream lines(text.size() > head_size ? text.substr(head_size) : std::string());
    for (std::string line; std::getline(lines, line);) {
        boost::system::error_code error;
        const auto value = json::parse(line, error);
        const auto* object = error ? nullptr : value.if_object();
        if (const auto* border = object ? detail::object_of(*object, "border") : nullptr)
            found.borders.push_back(end_in(*border));
    }
    return found;
}

IPYBOX_DECL std::optional<KnownEnd> AuditHead::find(const std::filesystem::path& directory,
                                                    const std::filesystem::path& log,
                                                    const std::function<void()>& looked) {
    AuditHead head(head_file(directory, log), log.string(), false);
    if (!head.handle_) {
        looked();
        return std::nullopt;
    }
    const auto lock = head.lock();
    auto found = head.known();
    looked();
    if (found.end.chain.empty()) return std::nullopt;
    return found;
}

IPYBOX_DECL std::optional<KnownEnd> AuditHead::find_chain(const std::filesystem::path& directory,
                                                          const std::string& chain) {
    std::error_code error;
    for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
         entry.increment(error)) {
        if (entry->path().extension() != head_suffix) continue;
        AuditHead head(entry->path(), entry->path().string(), false);
        if (!head.handle_) continue;
        const auto lock = head.lock();
        auto found = head.known();
        const bool ended = std::any_of(found.borders.begin(), found.borders.end(),
                                       [&](const auto& border) { return border.chain == chain; });
        if (found.end.chain == chain || ended) return found;
    }
    return std::nullopt;
}

}  // namespace ipybox::approval
