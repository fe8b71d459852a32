#pragma once
// What was called, who allowed it and what came of it: JSON lines in a file that only grows.

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstring>
#include <deque>
#include <filesystem>
#include <functional>
#include <ipybox/approval/audit_head.hpp>
#include <ipybox/approval/audit_key.hpp>
#include <ipybox/approval/session_watcher.hpp>
#include <ipybox/approval_policy.hpp>
#include <ipybox/async.hpp>
#include <ipybox/config.hpp>
#include <ipybox/detail/hex.hpp>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/detail/unique_fd.hpp>
#include <ipybox/log.hpp>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ipybox {

// What is recorded, and what happens when it cannot be.
struct AuditOptions {
    bool fsync = false;      // a record reaches the disk before the call goes on
    bool code_text = false;  // the code itself, beside its hash
    bool results = false;    // what tools answered
    // When a record cannot be written: refuse calls until it can (nothing is lost), or log a
    // warning and go on.
    bool stop_on_failure = true;
    std::filesystem::path workspace;  // code can write here: a file in it is refused …
    bool inside_workspace = false;    // … unless the caller protects it and says so
    // Where the key that signs and the newest head of the log are kept: absolute; a directory in
    // it is made. Empty: ipybox's own for this user. No code may see it or write there.
    std::filesystem::path state_directory;
    std::uint64_t head_every = 100;  // records, after which a signed head follows
    // Called with each signed head that was written, a line of the log without its end; must not
    // wait for anything. What it throws is logged.
    std::function<void(const std::string& head)> on_head;
};

namespace approval {
// Where a record of a call is cut. Names and scalars are never left out: a text that is too long is
// recorded by its beginning, length and hash; too many numbers by the first of them, their count
// and hash.
struct RecordLimits {
    std::size_t text = 16 * 1024;   // bytes
    std::size_t numbers = 100'000;  // in a row, of one array
};

std::string recorded(std::string text, std::size_t longest);

// A copy without what is secret by its name or is a known value, within limits.
json::value masked(const json::value& value, const Secrets& secrets,
                   const RecordLimits& limits = {}, int depth = 0);
}  // namespace approval

// One file; several sessions and processes may append to it. Each record names the hash of the one
// before; every so many, and when this object ends, a signed head follows. What the log has to end
// with is kept in the host's state directory after each record, unless the log is a pipe or a
// device. A file that was moved away is followed by a new one, which goes on with the chain. Used
// on one thread.
class AuditLog {
public:
    // Opens the file, which is made with mode 0600. Throws Error: io_error (it, the key or the
    // newest head cannot be opened), bad_config (it lies in the workspace; others can read or
    // write the key or the newest head; there is no state directory).
    explicit AuditLog(const std::filesystem::path& path, AuditOptions options = {},
                      Logger logger = {});
    AuditLog(const AuditLog&) = delete;
    AuditLog& operator=(const AuditLog&) = delete;
    // Writes the closing head, if anything was written.
    ~AuditLog();

    const AuditOptions& options() const noexcept { return options_; }
    // Where it lies, as an absolute path. Confined code can neither read nor replace it.
    const std::filesystem::path& path() const noexcept { return path_; }
    // Where the key and the newest head are. Confined code sees nothing of it.
    const std::filesystem::path& state_directory() const noexcept {
        return options_.state_directory;
    }

    // Appends a record; "seq", "prev" and "time" are added. Throws Error: io_error (it cannot be
    // written, and options.stop_on_failure is set; it is written before the next one then).
    void write(json::object record);
    // From now on a signed head follows each record within this time, by a timer on `executor`,
    // which runs where this is used. What cannot be written then is a warning.
    void sign_within(Duration limit, asio::any_io_executor executor);

private:
    [[noreturn]] static void fail(const std::string& what, int error) {
        throw Error(errc::io_error, what + ": " + std::strerror(error));
    }
    [[noreturn]] void fail_to_write(int error) const {
        fail("the audit log " + path_.string() + " cannot be written", error);
    }

    void open_file();
    json::object event(std::string_view name) const;

    // What waits, and what has to be written before it. All below hold the lock, and throw Error.
    void write_waiting();
    void find_end();
    void find_end_in_other_file(std::uint64_t size);
    bool settle_next(std::uint64_t size);
    void begin_chain(std::uint64_t size);
    void go_on_in_new_file();
    void explain_bytes(std::uint64_t size, bool own);
    void put(json::object record, bool waited = false);
    void put_head(bool closing);
    void save(bool sync);
    void append(const std::string& text);
    std::string read_back(std::uint64_t from, std::uint64_t size) const;
    std::string hash_back(std::uint64_t from, std::uint64_t size) const;

    void refuse(const Error& error);
    void tell_heads();
    void expect_head();
    void sign() noexcept;

    static std::string now();

    std::filesystem::path path_;
    AuditOptions options_;
    Logger logger_;
    AuditKey key_;
    std::optional<approval::AuditHead> head_;  // absent: a pipe or a device
    UniqueFd file_;
    approval::LogEnd end_;
    std::string writer_;  // who writes, in this log
    bool opened_ = false;
    std::uint64_t lost_ = 0;            // records, by option
    std::deque<json::object> waiting_;  // could not be written yet
    std::string putting_;  // the hash of the first of them, when it may be there by now
    std::vector<std::string> fresh_heads_;
    // sign_within()
    Duration sign_limit_{};
    asio::any_io_executor sign_executor_;
    std::weak_ptr<asio::steady_timer> sign_timer_;  // while one runs
    std::shared_ptr<AuditLog*> self_;               // for it
};
using AuditLogPtr = std::shared_ptr<AuditLog>;

// The records of one call: what was decided before it is carried out, and what came of it. A call
// that ends in neither way was withdrawn. Without a log it records nothing, but knows the outcome.
class AuditedCall {
public:
    // secrets must live as long as this; they may become more until the call is decided. watcher:
    // told the same, if there is one. logger: of what it throws.
    AuditedCall(AuditLogPtr log, const ToolCall& call, const Secrets& secrets,
                SessionWatcherPtr watcher = nullptr, Logger logger = {});
    AuditedCall(const AuditedCall&) = delete;
    AuditedCall& operator=(const AuditedCall&) = delete;
    ~AuditedCall() { failed(decided_ ? "withdrawn" : "withdrawn before it was decided"); }

    // To be called before the call is carried out. Throws what AuditLog::write() throws: then the
    // call must not be carried out.
    void decided(const Decision& decision);
    // A person changed the arguments, and the call has them now; both are recorded.
    void edited(const ToolCall& call);
    // outcome: a literal: "ok", "error" (the tool says so), "failed" or "withdrawn".
    void ended(std::string_view outcome, const std::string& error = {});
    // The same of a tool that answered, with what it answered if the log is to have that.
    void answered(bool is_error, const json::array& content, const json::value* structured);
    // Whatever else ends a call; never throws.
    void failed(const std::string& why) noexcept;
    // What came of it: "denied", "expired" (nobody answered in time), or as of ended(). While
    // nothing is known, "withdrawn".
    std::string_view outcome() const noexcept { return outcome_; }

private:
    json::object record_of(std::string_view event) const;
    // False: it ended before, or no log is to have it.
    bool end(std::string_view outcome);
    json::object record_of_end() const;
    json::value within_record(const json::value& value) const;

    AuditLogPtr log_;
    const Secrets& secrets_;
    SessionWatcherPtr watcher_;
    Logger logger_;
    ToolCall call_;
    std::optional<json::object> edited_;
    std::string_view outcome_ = "withdrawn";  // a literal
    Clock::time_point started_{};
    bool decided_ = false, allowed_ = false, ended_ = false;
};

// The record of an execution that begins. Throws what AuditLog::write() throws.
void audit_execution(AuditLog& log, const std::string& session, const std::string& execution,
                     const std::string& code);

// The record of its end. Throws what AuditLog::write() throws.
void audit_execution_end(AuditLog& log, const std::string& session, const std::string& execution,
                         std::string_view outcome, Duration spent);

}  // namespace ipybox

#ifndef IPYBOX_SEPARATE_COMPILATION
#include <ipybox/approval/impl/audit_log.ipp>
#endif
