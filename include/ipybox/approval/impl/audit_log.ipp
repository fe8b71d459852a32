#pragma once
#include <ipybox/approval/audit_log.hpp>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <ipybox/compilation.hpp>
#include <ipybox/detail/file_id.hpp>
#include <ipybox/detail/sha256.hpp>
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
      logger_(std::move(logger)),
      key_((options_.state_directory = approval::audit_directory(options_.state_directory),
            AuditKey::of(options_.state_directory))),
      writer_(detail::random_hex(8)) {
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
    open_file();
    struct stat status{};
    if (::fstat(file_.get(), &status) == 0 && S_ISREG(status.st_mode))
        head_.emplace(options_.state_directory, place / path_.filename());
}

IPYBOX_DECL AuditLog::~AuditLog() {
    self_.reset();
    if (const auto timer = sign_timer_.lock()) timer->cancel();
    if (!opened_ && waiting_.empty()) return;
    try {
        std::optional<approval::AuditHead::Lock> lock;
        if (head_) lock.emplace(head_->lock());
        write_waiting();
        if (opened_) put_head(true);
    } catch (const std::exception& error) {
        logger_(LogLevel::warning,
                std::string("the audit log has no closing head: ") + error.what());
    }
    tell_heads();
}

IPYBOX_DECL void AuditLog::open_file() {
    // Readable, because what a crash left at its end has to be known.
    constexpr int flags = O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK;
    struct stat status{};
    const bool regular =
        ::lstat(path_.c_str(), &status) != 0 ? errno == ENOENT : S_ISREG(status.st_mode);
    file_.reset(::open(path_.c_str(), flags | (regular ? O_RDWR : O_WRONLY), 0600));
    if (!file_ || ::fstat(file_.get(), &status) != 0)
        fail("cannot open the audit log " + path_.string(), errno);
    if (S_ISREG(status.st_mode) && (status.st_mode & 0077) != 0 && ::fchmod(file_.get(), 0600) != 0)
        fail("others can read the audit log " + path_.string(), errno);
}

IPYBOX_DECL json::object AuditLog::event(std::string_view name) const {
    return {{"time", now()}, {"event", name}};
}

IPYBOX_DECL void AuditLog::write(json::object record) {
    json::object line;
    line["time"] = now();
    for (auto& entry : record) line[entry.key()] = std::move(entry.value());
    waiting_.push_back(std::move(line));
    try {
        std::optional<approval::AuditHead::Lock> lock;
        if (head_) lock.emplace(head_->lock());
        write_waiting();
    } catch (const Error& error) {
        refuse(error);
    }
    tell_heads();
    expect_head();
}

IPYBOX_DECL void AuditLog::sign_within(Duration limit, asio::any_io_executor executor) {
    sign_limit_ = limit;
    sign_executor_ = std::move(executor);
    self_ = std::make_shared<AuditLog*>(this);
    expect_head();
}

IPYBOX_DECL void AuditLog::expect_head() {
    if (!self_ || !sign_timer_.expired() || end_.end.seq == end_.head) return;
    const auto timer = std::make_shared<asio::steady_timer>(sign_executor_, sign_limit_);
    sign_timer_ = timer;
    // Nobody else holds it, so that it is gone when it has rung.
    timer->async_wait([timer, weak = std::weak_ptr<AuditLog*>(self_)](const auto& error) {
        if (const auto self = weak.lock(); self && !error) (*self)->sign();
    });
}

IPYBOX_DECL void AuditLog::sign() noexcept {
    try {
        {
            std::optional<approval::AuditHead::Lock> lock;
            if (head_) lock.emplace(head_->lock());
            write_waiting();
            if (end_.end.seq > end_.head) put_head(false);
        }
        tell_heads();
    } catch (const std::exception& error) {
        logger_(LogLevel::warning, std::string("the audit log has no newer head: ") + error.what());
    }
}

IPYBOX_DECL void AuditLog::tell_heads() {
    for (const auto& head : std::exchange(fresh_heads_, {})) try {
            if (options_.on_head) options_.on_head(head);
        } catch (const std::exception& error) {
            logger_(LogLevel::warning, std::string("a head of the audit log: ") + error.what());
        }
}

IPYBOX_DECL void AuditLog::write_waiting() {
    find_end();
    if (!opened_) {
        auto record = event("opened");
        record["writer"] = writer_;
        put(std::move(record));
        opened_ = true;
    }
    if (lost_ > 0) {
        auto record = event("lost");
        record["records"] = lost_;
        put(std::move(record));
        lost_ = 0;
    }
    while (!waiting_.empty()) {
        put(waiting_.front(), true);
        waiting_.pop_front();
        if (end_.end.seq - end_.head >= options_.head_every) put_head(false);
    }
}

IPYBOX_DECL void AuditLog::find_end() {
    if (!head_) {
        if (end_.end.seq == 0) begin_chain(0);
        return;
    }
    struct stat ours{}, there{};
    // Somebody may move the file away, or put what cannot be opened in its place for a while.
    if (!file_ || ::fstat(file_.get(), &ours) != 0 || ::lstat(path_.c_str(), &there) != 0 ||
        !detail::same_file(there, ours)) {
        open_file();
        if (::fstat(file_.get(), &ours) != 0) fail_to_write(errno);
    }
    const auto size = static_cast<std::uint64_t>(ours.st_size);
    end_ = head_->read();
    const bool same = end_.device == ours.st_dev && end_.inode == ours.st_ino;
    const bool begun = end_.end.seq > 0 || end_.next;
    if (same && begun && size == end_.bytes && !end_.next) return;
    end_.device = ours.st_dev;
    end_.inode = ours.st_ino;
    if (!begun) return begin_chain(size);
    if (!same) return find_end_in_other_file(size);
    const bool torn = end_.next.has_value();
    const bool settled = settle_next(size);
    if (settled && size <= end_.bytes) return;
    if (size == 0 && end_.end.seq > 0) return go_on_in_new_file();
    if (size < end_.bytes) return begin_chain(size);
    if (size > end_.bytes) explain_bytes(size, torn && !settled);
}

IPYBOX_DECL void AuditLog::find_end_in_other_file(std::uint64_t size) {
    if (size == 0) return go_on_in_new_file();
    // A copy in the place of the log, whole, is as good as the log.
    constexpr std::uint64_t longest = 1u << 20;
    const auto tail = size == end_.bytes
                          ? read_back(size - std::min(size, longest), std::min(size, longest))
                          : std::string();
    std::string why;
    if (tail.ends_with('\n')) {
        const auto line = std::string_view(tail).substr(0, tail.size() - 1);
        const auto last = approval::read_chain_record(line.substr(line.rfind('\n') + 1), why);
        if (last && last->hash == end_.end.hash) {
            end_.next.reset();
            return;
        }
    }
    begin_chain(size);
}

// Whether the record that was being written when its process ended, or failed, is there whole.
IPYBOX_DECL bool AuditLog::settle_next(std::uint64_t size) {
    if (!end_.next) return false;
    const auto next = *std::exchange(end_.next, std::nullopt);
    if (size + 1 < end_.next_bytes || size < end_.bytes) return false;
    const auto length = end_.next_bytes - end_.bytes;
    const auto text = read_back(end_.bytes, std::min(size - end_.bytes, length));
    if (text.size() == length && text.back() != '\n') return false;
    std::string why;
    const auto record =
        approval::read_chain_record(std::string_view(text).substr(0, length - 1), why);
    if (!record || record->hash != next.hash) return false;
    if (text.size() < length) append("\n");
    end_.end = next;
    end_.bytes = end_.next_bytes;
    if (record->event == "head") end_.head = next.seq;
    save(false);
    if (next.hash == putting_ && !waiting_.empty()) waiting_.pop_front();
    putting_.clear();
    return true;
}

IPYBOX_DECL void AuditLog::begin_chain(std::uint64_t size) {
    auto record = event("chain");
    const auto known = std::exchange(end_.end, {});
    record["chain"] = end_.end.chain = detail::random_hex(16);
    end_.head = 0;
    end_.next.reset();
    if (size > 0) {
        if (read_back(size - 1, 1) != "\n") {
            append("\n");
            ++size;
        }
        record["before"] = {{"bytes", size}, {"sha256", hash_back(0, size)}};
    }
    end_.bytes = size;
    if (known.seq > 0) {
        record["expected"] = {{"chain", known.chain}, {"seq", known.seq}, {"hash", known.hash}};
        logger_(LogLevel::warning, "the audit log " + path_.string() +
                                       " no longer ends with record " + std::to_string(known.seq) +
                                       ": somebody changed or shortened it; `ipybox audit verify` "
                                       "says where, and a new chain begins behind what is there");
        head_->add_border(known);
    }
    put(std::move(record));
}

IPYBOX_DECL void AuditLog::go_on_in_new_file() {
    head_->add_border(end_.end);
    end_.bytes = 0;
    end_.next.reset();
    auto record = event("continued");
    record["chain"] = end_.end.chain;
    put(std::move(record));
}

IPYBOX_DECL void AuditLog::explain_bytes(std::uint64_t size, bool own) {
    const auto from = end_.bytes;
    if (read_back(size - 1, 1) != "\n") {
        append("\n");
        ++size;
    }
    auto record = event("torn");
    record["bytes"] = size - from;
    record["sha256"] = hash_back(from, size - from);
    if (!own) {
        record["foreign"] = true;
        logger_(LogLevel::warning, "somebody else wrote into the audit log " + path_.string() +
                                       ", " + std::to_string(size - from) +
                                       " bytes; `ipybox audit verify` says where");
    }
    end_.bytes = size;
    put(std::move(record));
}

IPYBOX_DECL void AuditLog::put(json::object record, bool waited) {
    json::object line;
    line["seq"] = end_.end.seq + 1;
    line["prev"] = end_.end.hash;
    for (auto& entry : record) line[entry.key()] = std::move(entry.value());
    const bool head = line.at("event") == "head";
    if (head) line["signature"] = key_.sign(approval::signed_text(line));
    const auto text = detail::write_json(line);
    std::string why;
    const auto read = approval::read_chain_record(text, why);
    if (!read)
        throw Error(errc::io_error,
                    "the audit log " + path_.string() + " cannot be written: a record " + why);
    // What comes is known before it is there: whatever else is found behind the end is foreign.
    end_.next = {end_.end.chain, read->seq, read->hash};
    end_.next_bytes = end_.bytes + text.size() + 1;
    save(options_.fsync);
    putting_ = waited ? read->hash : std::string();
    append(text + '\n');
    putting_.clear();
    end_.end = *std::exchange(end_.next, std::nullopt);
    end_.bytes = end_.next_bytes;
    if (head) end_.head = read->seq;
    save(false);
    if (head) fresh_heads_.push_back(text);
}

IPYBOX_DECL void AuditLog::put_head(bool closing) {
    auto record = event("head");
    record["chain"] = end_.end.chain;
    record["key"] = key_.id();
    if (closing) record["closes"] = writer_;
    put(std::move(record));
}

IPYBOX_DECL void AuditLog::save(bool sync) {
    if (head_) head_->write(end_, sync);
}

IPYBOX_DECL void AuditLog::append(const std::string& text) {
    ssize_t written;
    do written = ::write(file_.get(), text.data(), text.size());
    while (written < 0 && errno == EINTR);
    // What arrived of it is found by the next one.
    if (written != static_cast<ssize_t>(text.size())) fail_to_write(written < 0 ? errno : ENOSPC);
    // Pipes and devices cannot be synchronized.
    if (options_.fsync && ::fdatasync(file_.get()) != 0 && errno != EINVAL && errno != EROFS)
        fail_to_write(errno);
}

IPYBOX_DECL std::string AuditLog::read_back(std::uint64_t from, std::uint64_t size) const {
    std::string text(size, '\0');
    for (std::size_t done = 0; done < text.size();) {
        const auto count = ::pread(file_.get(), text.data() + done, text.size() - done,
                                   static_cast<off_t>(from + done));
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) fail("the audit log " + path_.string() + " cannot be read", errno);
        done += static_cast<std::size_t>(count);
    }
    return text;
}

IPYBOX_DECL std::string AuditLog::hash_back(std::uint64_t from, std::uint64_t size) const {
    detail::Sha256 hash;
    while (size > 0) {
        const auto part = std::min<std::uint64_t>(size, 1u << 20);
        hash.add(read_back(from, part));
        from += part;
        size -= part;
    }
    return hash.hex();
}

IPYBOX_DECL void AuditLog::refuse(const Error& error) {
    constexpr std::size_t kept = 10'000;
    if (!options_.stop_on_failure) {
        lost_ += waiting_.size();
        waiting_.clear();
        logger_(LogLevel::warning, error.detail());
        return;
    }
    // Calls stop, so that few records come; their number is bounded all the same.
    if (waiting_.size() > kept) {
        waiting_.pop_front();
        ++lost_;
    }
    throw Error(errc::io_error, error.detail() + "; no call is carried out until it can");
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
    record["arguments"] =
        within_record(call_.exact_arguments ? json::value(*call_.exact_arguments)
                                            : json::value(std::move(call_.arguments)));
    if (edited_) record["edited"] = within_record(*std::exchange(edited_, {}));
    record["verdict"] = allowed_ ? "allow" : "deny";
    record["by"] = decision.by.empty() ? "policy" : decision.by;
    if (decision.expired) record["expired"] = true;
    if (!decision.reason.empty()) record["reason"] = secrets_.hide(decision.reason);
    log_->write(std::move(record));
}

IPYBOX_DECL bool AuditedCall::end(std::string_view outcome) {
    if (ended_) return false;
    ended_ = true;
    outcome_ = outcome;
    tell_watcher(watcher_, logger_, [&](SessionWatcher& watcher) {
        watcher.called(call_.id, outcome_, Clock::now() - started_);
    });
    return log_ != nullptr;
}

IPYBOX_DECL json::object AuditedCall::record_of_end() const {
    json::object record = record_of("result");
    record["outcome"] = outcome_;
    record["duration_ms"] =
        std::chrono::duration<double, std::milli>(Clock::now() - started_).count();
    return record;
}

IPYBOX_DECL void AuditedCall::ended(std::string_view outcome, const std::string& error) {
    if (!end(outcome)) return;
    auto record = record_of_end();
    if (!error.empty()) record["error"] = secrets_.hide(error);
    log_->write(std::move(record));
}

IPYBOX_DECL void AuditedCall::answered(bool is_error, const json::array& content,
                                       const json::value* structured) {
    if (!end(is_error ? "error" : "ok")) return;
    auto record = record_of_end();
    if (log_->options().results) {
        record["content"] = within_record(content);
        if (structured != nullptr) record["structured"] = within_record(*structured);
    }
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

IPYBOX_DECL json::value AuditedCall::within_record(const json::value& value) const {
    json::value shown = approval::masked(value, secrets_);
    // Beyond this only what cannot be left out stands in a record.
    constexpr std::size_t large = 256 * 1024;
    if (detail::write_json(shown).size() > large)
        shown = approval::masked(value, secrets_, {256, 100});
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
