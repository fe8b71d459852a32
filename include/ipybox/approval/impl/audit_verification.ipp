#pragma once
#include <ipybox/approval/audit_verification.hpp>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ipybox/approval/audit_head.hpp>
#include <ipybox/approval/audit_key.hpp>
#include <ipybox/compilation.hpp>
#include <ipybox/detail/beneath.hpp>
#include <ipybox/detail/json_members.hpp>
#include <ipybox/detail/terminal_text.hpp>
#include <ipybox/error.hpp>
#include <limits>
#include <map>
#include <system_error>
#include <utility>

namespace ipybox::approval {

// The public keys by which heads are judged, found by their id.
class PublicKeys {
public:
    explicit PublicKeys(std::filesystem::path directory,
                        const std::vector<std::filesystem::path>& files)
        : directory_(std::move(directory)) {
        for (const auto& file : files) {
            const auto key = AuditKey::read_public(file);
            keys_.emplace(key.id(), key);
        }
    }

    Signature judge(const json::object& head) {
        const auto id = std::string(detail::string_of(head, "key"));
        // It is part of a path.
        if (id.size() != 16 || id.find_first_not_of("0123456789abcdef") != id.npos)
            return Signature::bad;
        auto found = keys_.find(id);
        if (found == keys_.end()) {
            const auto file = AuditKey::public_file(directory_, id);
            std::error_code error;
            if (directory_.empty() || !std::filesystem::exists(file, error))
                return Signature::unknown_key;
            const auto key = AuditKey::read_public(file);
            if (key.id() != id) return Signature::unknown_key;
            found = keys_.emplace(id, key).first;
        }
        return found->second.signed_by(signed_text(head), detail::string_of(head, "signature"))
                   ? Signature::good
                   : Signature::bad;
    }

private:
    std::filesystem::path directory_;
    std::map<std::string, AuditKey> keys_;
};

// A file of a log, as far as it had been written at one moment.
struct LogFile {
    UniqueFd handle;
    std::uint64_t size = 0;
    int error = 0;

    void open(const std::filesystem::path& path) {
        struct stat status{};
        handle.reset(::open(path.c_str(), O_RDONLY | O_NOCTTY | O_CLOEXEC));
        error = handle ? 0 : errno;
        if (handle && ::fstat(handle.get(), &status) != 0) error = errno;
        if (S_ISDIR(status.st_mode)) error = EISDIR;
        size = S_ISREG(status.st_mode) ? static_cast<std::uint64_t>(status.st_size)
                                       : std::numeric_limits<std::uint64_t>::max();
    }

    // Calls `use` with each line, and whether it has its end.
    template <class Function>
    void for_each_line(const std::filesystem::path& path, Function use) {
        std::string line;
        std::string block(1u << 16, '\0');
        for (std::uint64_t left = size; left > 0;) {
            const auto count =
                ::read(handle.get(), block.data(), std::min<std::uint64_t>(block.size(), left));
            if (count < 0 && errno == EINTR) continue;
            if (count < 0) detail::throw_io_error(path.string());
            if (count == 0) break;
            left -= static_cast<std::uint64_t>(count);
            std::string_view rest(block.data(), static_cast<std::size_t>(count));
            for (auto end = rest.find('\n'); end != rest.npos; end = rest.find('\n')) {
                line += rest.substr(0, end);
                use(line, true);
                line.clear();
                rest.remove_prefix(end + 1);
            }
            line += rest;
        }
        if (!line.empty()) use(line, false);
    }
};

// The head in the last line of a file. Throws Error: bad_argument.
inline ChainEnd sent_head(const std::filesystem::path& path) {
    LogFile file;
    file.open(path);
    if (file.error != 0)
        throw Error(errc::bad_argument,
                    path.string() + ": cannot be read: " + std::strerror(file.error));
    std::string last, why = "the file is empty";
    file.for_each_line(path, [&](const std::string& line, bool) {
        if (!line.empty()) last = line;
    });
    const auto record = last.empty() ? std::nullopt : read_chain_record(last, why);
    if (record && record->event == "head")
        return {std::string(detail::string_of(record->record, "chain")), record->seq, record->hash};
    throw Error(errc::bad_argument, path.string() + ": its last line is no head of an audit log" +
                                        (record ? std::string() : ": " + why));
}

// The chain that a file of a log belongs to; empty when its beginning does not say so.
inline std::string chain_of(const std::filesystem::path& path) {
    LogFile file;
    file.open(path);
    if (file.error != 0) return {};
    std::string chain;
    file.size = std::min<std::uint64_t>(file.size, 1u << 20);
    file.for_each_line(path, [&](const std::string& line, bool whole) {
        std::string why;
        const auto record = chain.empty() && whole ? read_chain_record(line, why) : std::nullopt;
        if (record && (record->event == "chain" || record->event == "continued"))
            chain = detail::string_of(record->record, "chain");
    });
    return chain;
}

}  // namespace ipybox::approval

namespace ipybox {

IPYBOX_DECL AuditVerification verify_audit_log(const std::vector<std::filesystem::path>& files,
                                               const AuditVerificationOptions& options) {
    namespace fs = std::filesystem;
    using approval::LogFile;
    if (files.empty()) throw Error(errc::bad_argument, "name the files of the audit log");
    const auto directory = approval::audit_directory(options.state_directory);
    approval::PublicKeys keys(directory, options.keys);
    approval::ChainCheck check([&](const json::object& head) { return keys.judge(head); });
    if (!options.head.empty()) check.expect(approval::sent_head(options.head));

    // Nobody writes between the look at the newest head and the look at the last file's size.
    LogFile newest;
    const auto& last = files.back();
    const auto look = [&] { newest.open(last); };
    std::error_code error;
    const auto place = fs::canonical(fs::absolute(last).parent_path(), error) / last.filename();
    auto known = approval::AuditHead::find(directory, place, look);
    if (!known && fs::is_symlink(place, error))
        known = approval::AuditHead::find(directory, fs::canonical(place, error), look);
    // Where the log itself lies no earlier file of it is as good.
    if (known) known->borders.clear();
    AuditVerification found;
    if (newest.error == ENOENT && known && known->end.seq > 0) {
        found.what = detail::printable(last.string()) + ": is not there; the host knows of " +
                     std::to_string(known->end.seq) +
                     (known->end.seq == 1 ? " record" : " records") + ": the log was removed";
        return found;
    }
    if (newest.error != 0)
        throw Error(errc::bad_argument, last.string() + ": cannot be read: " +
                                            std::strerror(newest.error) + "; is it an audit log?");
    // A file that was moved is found by its chain.
    if (!known)
        if (const auto chain = approval::chain_of(last); !chain.empty())
            known = approval::AuditHead::find_chain(directory, chain);

    for (const auto& path : files) {
        LogFile file;
        if (&path == &last)
            file = std::move(newest);
        else
            file.open(path);
        if (file.error != 0)
            throw Error(errc::bad_argument, path.string() +
                                                ": cannot be read: " + std::strerror(file.error) +
                                                "; is it an audit log?");
        check.begin_file(path.string());
        file.for_each_line(
            path, [&](const std::string& line, bool whole) { check.add_line(line, whole); });
    }
    check.finish(known);

    found.notes = check.notes();
    found.first = check.first();
    found.last = check.end().seq;
    const auto records = found.last == 0             ? std::string()
                         : found.first == found.last ? "record " + std::to_string(found.last)
                                                     : "records " + std::to_string(found.first) +
                                                           " to " + std::to_string(found.last);
    if (!check.fault().empty()) {
        found.what = check.fault();
    } else if (!check.doubts().empty()) {
        found.outcome = AuditVerification::Outcome::unknown;
        for (const auto& doubt : check.doubts())
            found.what += (found.what.empty() ? "" : "; ") + doubt;
        if (!records.empty()) found.what = records + " are as they were written, but " + found.what;
    } else {
        found.outcome = AuditVerification::Outcome::whole;
        found.what = records + " are as they were written and all that there are";
    }
    return found;
}

}  // namespace ipybox
