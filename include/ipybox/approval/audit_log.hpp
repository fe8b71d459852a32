#pragma once
// What was called, who allowed it and what came of it: JSON lines in a file that only grows.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <deque>
#include <filesystem>
#include <ipybox/approval_policy.hpp>
#include <ipybox/config.hpp>
#include <ipybox/detail/hex.hpp>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/detail/unique_fd.hpp>
#include <ipybox/detail/within.hpp>
#include <ipybox/log.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace ipybox {

// What is recorded, and what happens when it cannot be.
struct AuditOptions {
    bool fsync = false;       // a record reaches the disk before the call goes on
    bool code_text = false;   // the code itself, beside its hash
    // When a record cannot be written: refuse calls until it can (nothing is lost), or log a
    // warning and go on.
    bool stop_on_failure = true;
    std::filesystem::path workspace;  // code can write here: a file in it is refused …
    bool inside_workspace = false;    // … unless the caller protects it and says so
};

namespace detail {
// Where a record of a call is cut. Names and scalars are never left out: of a text that is too long
// stand its beginning, length and hash; of numbers that are too many the first, their number and hash.
struct RecordLimits {
    std::size_t text = 16 * 1024;      // bytes
    std::size_t numbers = 100'000;     // in a row, of one array
};

inline std::string recorded(std::string text, std::size_t longest) {
    if (text.size() <= longest) return text;
    const std::string note = "… [" + std::to_string(text.size()) + " bytes, sha256 " + sha256_hex(text) + "]";
    while (longest > 0 && (static_cast<unsigned char>(text[longest]) & 0xC0) == 0x80) --longest;  // no character is cut
    text.resize(longest);
    return text + note;
}

// A copy without what is secret by its name or is a known value, within limits.
inline json::value masked(const json::value& value, const Secrets& secrets, const RecordLimits& limits = {}, int depth = 0) {
    // A number that is longer than a record becomes a text.
    if (const auto digits = exact_text(value); !digits.empty())
        return digits.size() <= limits.text ? value : json::value(recorded(std::string(digits), limits.text));
    if (const auto* text = value.if_string()) return json::value(recorded(secrets.hide(std::string(*text)), limits.text));
    if (depth > 128) return json::value(recorded(secrets.hide(detail::write_json(value)), limits.text));
    if (const auto* list = value.if_array()) {
        json::array result;
        std::size_t numbers = 0;  // since the last text, array or object
        json::array left_out;
        const auto close = [&] {
            if (!left_out.empty())
                result.push_back(json::value("… [" + std::to_string(left_out.size()) + " more numbers, sha256 " +
                                             sha256_hex(detail::write_json(left_out)) + "]"));
            left_out.clear();
            numbers = 0;
        };
        for (const auto& item : *list) {
            if (is_text(item) || item.is_structured()) {
                close();
                result.push_back(masked(item, secrets, limits, depth + 1));
            } else {
                (++numbers > limits.numbers ? left_out : result).push_back(masked(item, secrets, limits, depth + 1));
            }
        }
        close();
        return result;
    }
    if (const auto* object = value.if_object()) {
        json::object result;
        for (const auto& entry : *object) {
            std::string name = recorded(secrets.hide(std::string(entry.key())), limits.text);
            while (result.contains(name)) name += '\'';  // two that hide the same secret
            const bool hide = names_a_secret(entry.key()) && !entry.value().is_null() && !entry.value().is_bool();
            result[name] = hide ? json::value("[hidden]") : masked(entry.value(), secrets, limits, depth + 1);
        }
        return result;
    }
    return value;
}
}  // namespace detail

// One file; several sessions and processes may append to it. Used on one thread.
class AuditLog {
public:
    // Opens the file, which is made with mode 0600. Throws errc::io_error, and errc::bad_config
    // for a file in the workspace.
    explicit AuditLog(const std::filesystem::path& path, AuditOptions options = {}, Logger logger = {})
        : path_(std::filesystem::absolute(path)), options_(std::move(options)), logger_(std::move(logger)) {
        std::error_code error;
        const auto place = std::filesystem::canonical(path_.parent_path(), error);
        if (error) fail("cannot open the audit log " + path_.string(), ENOENT);
        if (!options_.workspace.empty() && !options_.inside_workspace) {
            if (detail::within(place, std::filesystem::canonical(options_.workspace)))
                throw Error(errc::bad_config, "the audit log " + path_.string() +
                                                  " lies in the workspace, where the code it is about can change it; "
                                                  "choose another place, or say that it may be there");
        }
        file_.reset(::open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK, 0600));
        struct stat status {};
        if (!file_ || ::fstat(file_.get(), &status) != 0) fail("cannot open the audit log " + path_.string(), errno);
        if (S_ISREG(status.st_mode) && (status.st_mode & 0077) != 0 && ::fchmod(file_.get(), 0600) != 0)
            fail("others can read the audit log " + path_.string(), errno);
    }

    const AuditOptions& options() const noexcept { return options_; }
    // Where it lies, as an absolute path. Confined code can neither read nor replace it.
    const std::filesystem::path& path() const noexcept { return path_; }

    // Appends a record; "time" is added. Throws errc::io_error when it cannot be written and
    // options.stop_on_failure is set; it is written before the next one then.
    void write(json::object record) {
        json::object line;
        line["time"] = now();
        for (auto& entry : record) line[entry.key()] = std::move(entry.value());
        waiting_.push_back(detail::write_json(line) + '\n');
        while (!waiting_.empty()) {
            if (const int error = append(waiting_.front()); error != 0) return refuse(error);
            waiting_.pop_front();
        }
    }

private:
    [[noreturn]] static void fail(const std::string& what, int error) {
        throw Error(errc::io_error, what + ": " + std::strerror(error));
    }

    int append(const std::string& line) {
        // What an earlier attempt left behind becomes a line of its own, which readers skip.
        const std::string text = (torn_ ? "\n" : "") + line;
        ssize_t written;
        do written = ::write(file_.get(), text.data(), text.size());
        while (written < 0 && errno == EINTR);
        if (written != static_cast<ssize_t>(text.size())) {
            torn_ = torn_ || written > 0;
            return written < 0 ? errno : ENOSPC;
        }
        torn_ = false;
        // Pipes and devices cannot be synchronized.
        if (options_.fsync && ::fdatasync(file_.get()) != 0 && errno != EINVAL && errno != EROFS) return errno;
        return 0;
    }

    void refuse(int error) {
        constexpr std::size_t kept = 10'000;
        const std::string what = "the audit log " + path_.string() + " cannot be written: " + std::strerror(error);
        if (!options_.stop_on_failure) {
            waiting_.clear();
            logger_(LogLevel::warning, what);
            return;
        }
        // Calls stop, so that few records come; their number is bounded all the same.
        if (waiting_.size() > kept) waiting_.pop_front();
        throw Error(errc::io_error, what + "; no call is carried out until it can");
    }

    static std::string now() {
        timespec time{};
        ::clock_gettime(CLOCK_REALTIME, &time);
        std::tm parts{};
        ::gmtime_r(&time.tv_sec, &parts);
        char text[64], all[80];
        std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &parts);
        std::snprintf(all, sizeof all, "%s.%03ldZ", text, time.tv_nsec / 1'000'000);
        return all;
    }

    std::filesystem::path path_;
    AuditOptions options_;
    Logger logger_;
    UniqueFd file_;
    std::deque<std::string> waiting_;  // could not be written yet
    bool torn_ = false;                // the file ends in a part of a line
};
using AuditLogPtr = std::shared_ptr<AuditLog>;

// The records of one call: what was decided before it is carried out, and what came of it. A call
// that ends in neither way was withdrawn. Without a log it does nothing.
class AuditedCall {
public:
    // secrets must live as long as this; they may become more until the call is decided.
    AuditedCall(AuditLogPtr log, const ToolCall& call, const Secrets& secrets, unsigned long execution)
        : log_(std::move(log)), secrets_(secrets), execution_(execution) {
        if (!log_) return;
        id_ = detail::random_hex(8);
        call_ = call;
    }
    AuditedCall(const AuditedCall&) = delete;
    AuditedCall& operator=(const AuditedCall&) = delete;
    ~AuditedCall() { failed(decided_ ? "withdrawn" : "withdrawn before it was decided"); }

    // To be called before the call is carried out; an exception means that it must not be.
    void decided(const Decision& decision) {
        if (!log_ || decided_) return;
        decided_ = true;
        allowed_ = decision.verdict == Verdict::allow;
        ended_ = !allowed_;
        json::object record = record_of("call");
        record["origin"] = to_string(call_.origin);
        record["server"] = secrets_.hide(call_.server);
        record["tool"] = secrets_.hide(call_.tool);
        record["arguments"] = shown_arguments();
        record["verdict"] = allowed_ ? "allow" : "deny";
        record["by"] = decision.by.empty() ? "policy" : decision.by;
        if (decision.expired) record["expired"] = true;
        if (!decision.reason.empty()) record["reason"] = secrets_.hide(decision.reason);
        started_ = Clock::now();
        log_->write(std::move(record));
    }
    // outcome: "ok", "error" (the tool says so), "failed" or "withdrawn".
    void ended(std::string_view outcome, const std::string& error = {}) {
        if (!log_ || ended_) return;
        ended_ = true;
        json::object record = record_of("result");
        record["outcome"] = outcome;
        if (!error.empty()) record["error"] = secrets_.hide(error);
        record["duration_ms"] = std::chrono::duration<double, std::milli>(Clock::now() - started_).count();
        log_->write(std::move(record));
    }
    // Whatever else ends a call; never throws.
    void failed(const std::string& why) noexcept {
        try {
            if (!decided_) {
                Decision refused(Verdict::deny, why);
                refused.by = "tool server";
                decided(refused);
            } else {
                ended(why == "withdrawn" ? "withdrawn" : "failed", why == "withdrawn" ? "" : why);
            }
        } catch (...) {
            // The log keeps what it could not write, and refuses the next call.
        }
    }

private:
    json::object record_of(std::string_view event) const {
        json::object record;
        record["event"] = event;
        record["session"] = call_.session;
        record["execution"] = execution_;
        record["call"] = id_;
        return record;
    }
    json::value shown_arguments() {
        const json::value arguments = call_.exact_arguments ? json::value(*call_.exact_arguments) : json::value(std::move(call_.arguments));
        json::value shown = detail::masked(arguments, secrets_);
        // Beyond this only what cannot be left out stands in a record.
        constexpr std::size_t large = 256 * 1024;
        if (detail::write_json(shown).size() > large) shown = detail::masked(arguments, secrets_, {256, 100});
        return shown;
    }

    AuditLogPtr log_;
    const Secrets& secrets_;
    unsigned long execution_;
    std::string id_;
    ToolCall call_;
    Clock::time_point started_{};
    bool decided_ = false, allowed_ = false, ended_ = false;
};

// The record of an execution that begins. Throws errc::io_error as AuditLog::write() does.
inline void audit_execution(AuditLog& log, const std::string& session, unsigned long execution, const std::string& code) {
    json::object record;
    record["event"] = "execution";
    record["session"] = session;
    record["execution"] = execution;
    record["code_sha256"] = detail::sha256_hex(code);
    if (log.options().code_text) record["code"] = code;
    log.write(std::move(record));
}

// The record of its end. Throws errc::io_error as AuditLog::write() does.
inline void audit_execution_end(AuditLog& log, const std::string& session, unsigned long execution, std::string_view outcome,
                                Duration spent) {
    json::object record;
    record["event"] = "execution_end";
    record["session"] = session;
    record["execution"] = execution;
    record["outcome"] = outcome;
    record["duration_ms"] = std::chrono::duration<double, std::milli>(spent).count();
    log.write(std::move(record));
}

}  // namespace ipybox
