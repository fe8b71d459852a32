#pragma once
#include <ipybox/approval/audit_log.hpp>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <ipybox/compilation.hpp>
#include <ipybox/detail/utf8.hpp>
#include <ipybox/detail/within.hpp>
#include <utility>

namespace ipybox::approval {

IPYBOX_DECL std::string recorded(std::string text, std::size_t longest) {
    if (text.size() <= longest) return text;
    const std::string note =
        "… [" + std::to_string(text.size()) + " bytes, sha256 " + detail::sha256_hex(text) + "]";
    text.resize(detail::utf8_border(text, longest));
    return text + note;
}

IPYBOX_DECL json::value masked(const json::value& value, const Secrets& secrets,
                               const RecordLimits& limits, int depth) {
    // A number that is longer than a record becomes a text.
    if (const auto digits = detail::exact_text(value); !digits.empty())
        return digits.size() <= limits.text
                   ? value
                   : json::value(recorded(std::string(digits), limits.text));
    if (const auto* text = value.if_string())
        return json::value(recorded(secrets.hide(std::string(*text)), limits.text));
    if (depth > 128)
        return json::value(recorded(secrets.hide(detail::write_json(value)), limits.text));
    if (const auto* list = value.if_array()) {
        json::array result;
        std::size_t numbers = 0;  // since the last text, array or object
        json::array left_out;
        const auto close = [&] {
            if (!left_out.empty())
                result.push_back(
                    json::value("… [" + std::to_string(left_out.size()) + " more numbers, sha256 " +
                                detail::sha256_hex(detail::write_json(left_out)) + "]"));
            left_out.clear();
            numbers = 0;
        };
        for (const auto& item : *list) {
            if (detail::is_text(item) || item.is_structured()) {
                close();
                result.push_back(masked(item, secrets, limits, depth + 1));
            } else {
                (++numbers > limits.numbers ? left_out : result)
                    .push_back(masked(item, secrets, limits, depth + 1));
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
            const bool hide = config::names_a_secret(entry.key()) && !entry.value().is_null() &&
                              !entry.value().is_bool();
            result[name] =
                hide ? json::value("[hidden]") : masked(entry.value(), secrets, limits, depth + 1);
        }
        return result;
    }
    return value;
}

}  // namespace ipybox::approval

namespace ipybox {

IPYBOX_DECL AuditLog::AuditLog(const std::filesystem::path& path, AuditOptions options,
                               Logger logger)
    : path_(std::filesystem::absolute(path)),
      options_(std::move(options)),
      logger_(std::move(logger)) {
    std::error_code error;
    const auto place = std::filesystem::canonical(path_.parent_path(), error);
    if (error) fail("cannot open the audit log " + path_.string(), ENOENT);
    if (!options_.workspace.empty() && !options_.inside_workspace) {
        if (detail::within(place, std::filesystem::canonical(options_.workspace)))
            throw Error(errc::bad_config,
                        "the audit log " + path_.string() +
                            " lies in the workspace, where the code it is about can change it; "
                            "choose another place, or say that it may be there");
    }
    file_.reset(::open(
        path_.c_str(),
        O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK, 0600));
    struct stat status{};
    if (!file_ || ::fstat(file_.get(), &status) != 0)
        fail("cannot open the audit log " + path_.string(), errno);
    if (S_ISREG(status.st_mode) && (status.st_mode & 0077) != 0 && ::fchmod(file_.get(), 0600) != 0)
        fail("others can read the audit log " + path_.string(), errno);
}

IPYBOX_DECL void AuditLog::write(json::object record) {
    json::object line;
    line["time"] = now();
    for (auto& entry : record) line[entry.key()] = std::move(entry.value());
    waiting_.push_back(detail::write_json(line) + '\n');
    while (!waiting_.empty()) {
        if (const int error = append(waiting_.front()); error != 0) return refuse(error);
        waiting_.pop_front();
    }
}

IPYBOX_DECL int AuditLog::append(const std::string& line) {
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
    if (options_.fsync && ::fdatasync(file_.get()) != 0 && errno != EINVAL && errno != EROFS)
        return errno;
    return 0;
}

IPYBOX_DECL void AuditLog::refuse(int error) {
    constexpr std::size_t kept = 10'000;
    const std::string what =
        "the audit log " + path_.string() + " cannot be written: " + std::strerror(error);
    if (!options_.stop_on_failure) {
        waiting_.clear();
        logger_(LogLevel::warning, what);
        return;
    }
    // Calls stop, so that few records come; their number is bounded all the same.
    if (waiting_.size() > kept) waiting_.pop_front();
    throw Error(errc::io_error, what + "; no call is carried out until it can");
}

IPYBOX_DECL std::string AuditLog::now() {
    timespec time{};
    ::clock_gettime(CLOCK_REALTIME, &time);
    std::tm parts{};
    ::gmtime_r(&time.tv_sec, &parts);
    char text[64], all[80];
    std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &parts);
    std::snprintf(all, sizeof all, "%s.%03ldZ", text, time.tv_nsec / 1'000'000);
    return all;
}

IPYBOX_DECL AuditedCall::AuditedCall(AuditLogPtr log, const ToolCall& call, const Secrets& secrets,
                                     SessionWatcherPtr watcher, Logger logger)
    : log_(std::move(log)),
      secrets_(secrets),
      watcher_(std::move(watcher)),
      logger_(std::move(logger)) {
    if (log_ || watcher_) call_ = call;
}

IPYBOX_DECL void AuditedCall::decided(const Decision& decision) {
    if (decided_) return;
    decided_ = true;
    allowed_ = decision.verdict == Verdict::allow;
    ended_ = !allowed_;
    if (!allowed_) outcome_ = decision.expired ? "expired" : "denied";
    started_ = Clock::now();
    tell_watcher(watcher_, logger_, [&](SessionWatcher& watcher) {
        watcher.decided(call_, edited_ ? &*edited_ : nullptr, decision);
    });
    if (!log_) return;
    json::object record = record_of("call");
    record["origin"] = to_string(call_.origin);
    record["server"] = secrets_.hide(call_.server);
    record["tool"] = secrets_.hide(call_.tool);
    record["arguments"] = shown_arguments(
        call_.exact_arguments ? json::object(*call_.exact_arguments) : std::move(call_.arguments));
    if (edited_) record["edited"] = shown_arguments(*std::exchange(edited_, {}));
    record["verdict"] = allowed_ ? "allow" : "deny";
    record["by"] = decision.by.empty() ? "policy" : decision.by;
    if (decision.expired) record["expired"] = true;
    if (!decision.reason.empty()) record["reason"] = secrets_.hide(decision.reason);
    log_->write(std::move(record));
}

IPYBOX_DECL void AuditedCall::ended(std::string_view outcome, const std::string& error) {
    if (ended_) return;
    ended_ = true;
    outcome_ = outcome;
    tell_watcher(watcher_, logger_, [&](SessionWatcher& watcher) {
        watcher.called(call_.id, outcome_, Clock::now() - started_);
    });
    if (!log_) return;
    json::object record = record_of("result");
    record["outcome"] = outcome;
    if (!error.empty()) record["error"] = secrets_.hide(error);
    record["duration_ms"] =
        std::chrono::duration<double, std::milli>(Clock::now() - started_).count();
    log_->write(std::move(record));
}

IPYBOX_DECL void AuditedCall::failed(const std::string& why) noexcept {
    try {
        if (!decided_) {
            Decision refused(Verdict::deny, why);
            refused.by = "tool server";
            decided(refused);
            outcome_ = "failed";
        } else {
            ended(why == "withdrawn" ? "withdrawn" : "failed", why == "withdrawn" ? "" : why);
        }
    } catch (...) {
        // The log keeps what it could not write, and refuses the next call.
    }
}

IPYBOX_DECL json::object AuditedCall::record_of(std::string_view event) const {
    json::object record;
    record["event"] = event;
    record["session"] = call_.session;
    if (!call_.execution.empty()) record["execution"] = call_.execution;
    record["call"] = call_.id;
    return record;
}

IPYBOX_DECL void AuditedCall::edited(const ToolCall& call) {
    if (log_ || watcher_) edited_ = call.sent_arguments();
}

IPYBOX_DECL json::value AuditedCall::shown_arguments(json::object sent) const {
    const json::value arguments(std::move(sent));
    json::value shown = approval::masked(arguments, secrets_);
    // Beyond this only what cannot be left out stands in a record.
    constexpr std::size_t large = 256 * 1024;
    if (detail::write_json(shown).size() > large)
        shown = approval::masked(arguments, secrets_, {256, 100});
    return shown;
}

IPYBOX_DECL void audit_execution(AuditLog& log, const std::string& session,
                                 const std::string& execution, const std::string& code) {
    json::object record;
    record["event"] = "execution";
    record["session"] = session;
    record["execution"] = execution;
    record["code_sha256"] = detail::sha256_hex(code);
    if (log.options().code_text) record["code"] = code;
    log.write(std::move(record));
}

IPYBOX_DECL void audit_execution_end(AuditLog& log, const std::string& session,
                                     const std::string& execution, std::string_view outcome,
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
