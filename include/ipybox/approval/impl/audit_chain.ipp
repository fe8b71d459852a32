#pragma once
#include <ipybox/approval/audit_chain.hpp>

#include <algorithm>
#include <ipybox/compilation.hpp>
#include <ipybox/detail/canonical_json.hpp>
#include <ipybox/detail/hex.hpp>
#include <ipybox/detail/json_members.hpp>
#include <ipybox/detail/json_memory.hpp>
#include <ipybox/detail/terminal_text.hpp>
#include <utility>

namespace ipybox::approval {

inline std::string text_member(const json::object& record, std::string_view key) {
    return std::string(detail::string_of(record, key));
}
inline std::uint64_t number_member(const json::object& record, std::string_view key) {
    const auto* value = record.if_contains(key);
    boost::system::error_code error;
    const auto number = value && value->is_number() ? value->to_number<std::uint64_t>(error) : 0;
    return error ? 0 : number;
}
inline std::string counted(std::uint64_t count, const char* one, const char* many) {
    return std::to_string(count) + " " + (count == 1 ? one : many);
}
inline std::string line_numbers(std::uint64_t first, std::uint64_t last) {
    return first == last ? "line " + std::to_string(first)
                         : "lines " + std::to_string(first) + " to " + std::to_string(last);
}

IPYBOX_DECL std::optional<ChainRecord> read_chain_record(std::string_view line, std::string& why) {
    boost::system::error_code error;
    json::parse_options options;
    options.max_depth = 256;  // arguments are recorded down to 128
    auto value = detail::parse_exact(line, error, options);
    const auto* object = error ? nullptr : value.if_object();
    if (!object) {
        why = "is no JSON object";
        return std::nullopt;
    }
    ChainRecord found;
    found.seq = number_member(*object, "seq");
    found.prev = text_member(*object, "prev");
    found.event = text_member(*object, "event");
    if (found.seq == 0 || found.prev.size() != no_record.size() || found.event.empty()) {
        why = "has no place in a chain: seq, prev or event is missing";
        return std::nullopt;
    }
    // A name that stands there twice, or blanks, would not change the hash.
    if (detail::write_json(*object) != line) {
        why = "is not written as ipybox writes it";
        return std::nullopt;
    }
    found.hash =
        detail::sha256_hex(detail::canonical_json(*object, detail::CanonicalNumbers::exact));
    found.record = std::move(value.get_object());
    return found;
}

IPYBOX_DECL std::string signed_text(json::object head) {
    head.erase("signature");
    return detail::canonical_json(head, detail::CanonicalNumbers::exact);
}

IPYBOX_DECL std::string ChainCheck::text_of(const Place& place) {
    return detail::printable(place.file) + ", line " + std::to_string(place.line);
}

IPYBOX_DECL void ChainCheck::begin_file(std::string name) {
    // The part of a line that a crash left at the end of a file tells nothing that counts.
    if (gap_ && gap_->cut_off && fault_.empty()) {
        notes_.push_back(detail::printable(file_) + ": line " + std::to_string(gap_->first) +
                         " was cut off when it was written");
        gap_.reset();
    }
    judge_gap();
    file_ = std::move(name);
    line_ = bytes_ = 0;
    file_hash_ = {};
}

IPYBOX_DECL void ChainCheck::add_line(std::string_view text, bool whole) {
    ++line_;
    if (!fault_.empty()) return;
    std::string why = "is cut off";
    const auto found = whole ? read_chain_record(text, why) : std::nullopt;
    if (found)
        add_record(*found);
    else
        add_to_gap(text, whole, why);
    file_hash_.add(text);
    if (whole) file_hash_.add("\n");
    bytes_ += text.size() + (whole ? 1 : 0);
}

IPYBOX_DECL void ChainCheck::add_to_gap(std::string_view text, bool whole, const std::string& why) {
    if (!gap_) {
        gap_.emplace();
        gap_->first = line_;
        gap_->why = why;
        gap_->cut_off = !whole;
    } else {
        gap_->cut_off = false;
    }
    gap_->last = line_;
    gap_->bytes += text.size() + (whole ? 1 : 0);
    gap_->hash.add(text);
    if (whole) gap_->hash.add("\n");
}

IPYBOX_DECL void ChainCheck::add_record(const ChainRecord& one) {
    if (one.event == "chain" && one.seq == 1 && one.prev == no_record)
        begin_chain(one);
    else if (one.event == "continued" && bytes_ == 0)
        go_on(one);
    else if (one.event == "torn" && one.record.contains("foreign"))
        fail(here() + ": the " + counted(number_member(one.record, "bytes"), "byte", "bytes") +
             " before it were written by somebody else than ipybox");
    else if (one.event == "torn" && gap_)
        explain_gap(one);
    else
        follow(one);
    if (!fault_.empty()) return;
    end_.seq = one.seq;
    end_.hash = one.hash;
    last_ = {file_, line_};
    if (first_ == 0) first_ = one.seq;
    judge_sent(one);
    ++records_;
    ++since_head_;
    closed_ = false;
    const auto writer = text_member(one.record, "writer");
    if (one.event == "opened") open_[writer] = last_;
    if (one.event == "lost")
        notes_.push_back(here() + ": " +
                         counted(number_member(one.record, "records"), "record", "records") +
                         " could not be written, and calls went on all the same (lossy)");
    if (one.event == "head") judge_head(one);
}

IPYBOX_DECL void ChainCheck::begin_chain(const ChainRecord& one) {
    const auto* before = detail::object_of(one.record, "before");
    if (before && (number_member(*before, "bytes") != bytes_ ||
                   text_member(*before, "sha256") != file_hash_.hex()))
        return fail(here() + ": what stands before it is not what ipybox found there, " +
                    counted(number_member(*before, "bytes"), "byte", "bytes") +
                    ": the lines before it were changed afterwards");
    if (!before && bytes_ > 0)
        return fail(here() + ": a chain begins at the start of a file, and " +
                    line_numbers(1, line_ - 1) + " of another stand before it");
    if (const auto* expected = detail::object_of(one.record, "expected"))
        return fail(here() + ": when it was written, the log no longer ended with record " +
                    std::to_string(number_member(*expected, "seq")) +
                    ", which the host knew: somebody changed or shortened what stands before it");
    if (gap_ && before)
        notes_.push_back(detail::printable(file_) + ": " + line_numbers(gap_->first, gap_->last) +
                         " stood there before the chain began; what they said before then nobody "
                         "knows");
    const auto id = text_member(one.record, "chain");
    if (end_.seq > 0 && id == end_.chain)
        return fail(here() +
                    ": the chain begins here, and records of it stand before: the files "
                    "are not in their order, or lines were exchanged");
    if (end_.seq > 0)
        doubts_.push_back(here() +
                          ": another chain begins, whose writer knew nothing of the one "
                          "before; whether that lost records at its end is unknown");
    gap_.reset();
    open_.clear();
    end_ = {};
    end_.chain = id;
}

IPYBOX_DECL void ChainCheck::go_on(const ChainRecord& one) {
    const auto id = text_member(one.record, "chain");
    if (end_.seq > 0) return follow(one);
    end_.chain = id;
    notes_.push_back(here() + ": goes on from record " + std::to_string(one.seq - 1) +
                     " of an earlier file, which is not looked at");
}

IPYBOX_DECL void ChainCheck::follow(const ChainRecord& one) {
    judge_gap();
    if (!fault_.empty()) return;
    const auto number = [](std::uint64_t seq) { return std::to_string(seq); };
    if (end_.seq == 0)
        return fail(here() + ": the log begins with record " + number(one.seq) +
                    ", which is not the first of a file: what stood before it was removed");
    const auto id = text_member(one.record, "chain");
    if (!id.empty() && id != end_.chain)
        return fail(here() + ": record " + number(one.seq) + " belongs to another log");
    const auto wanted = end_.seq + 1;
    if (one.seq > wanted)
        return fail(here() + ": record " + number(one.seq) + " follows record " + number(end_.seq) +
                    ": " + counted(one.seq - wanted, "record was", "records were") +
                    " removed, or lines were exchanged");
    if (one.seq < wanted)
        return fail(here() + ": record " + number(one.seq) + " follows record " + number(end_.seq) +
                    ": it was put there, or lines were exchanged");
    if (one.prev != end_.hash)
        fail(text_of(last_) + ": record " + number(end_.seq) +
             " is not the one that the next record names: it was changed after it was written");
}

IPYBOX_DECL void ChainCheck::explain_gap(const ChainRecord& one) {
    if (number_member(one.record, "bytes") != gap_->bytes ||
        text_member(one.record, "sha256") != gap_->hash.hex())
        return judge_gap();
    const auto lines = detail::printable(file_) + ": " + line_numbers(gap_->first, gap_->last);
    notes_.push_back(lines +
                     ": a part of a record that could not be written whole (a full disk "
                     "or a crash)");
    gap_.reset();
    follow(one);
}

IPYBOX_DECL void ChainCheck::judge_gap() {
    if (gap_)
        fail(detail::printable(file_) + ": " + line_numbers(gap_->first, gap_->last) + ": " +
             gap_->why + ": changed or added by somebody else than ipybox");
    gap_.reset();
}

IPYBOX_DECL void ChainCheck::judge_head(const ChainRecord& one) {
    const auto judged = signature_(one.record);
    if (judged == Signature::bad) {
        const auto since = good_head_.line == 0
                               ? std::string("the beginning")
                               : "the last good head (" + text_of(good_head_) + ")";
        return fail(here() +
                    ": the signature of this head does not fit: the log was changed between " +
                    since + " and here, and the hashes computed anew");
    }
    if (judged == Signature::unknown_key) {
        ++unknown_keys_;
        unknown_key_ = text_member(one.record, "key");
    } else {
        good_head_ = last_;
        since_head_ = 0;
    }
    if (const auto writer = text_member(one.record, "closes"); !writer.empty()) {
        open_.erase(writer);
        closed_ = true;
    }
}

IPYBOX_DECL void ChainCheck::judge_sent(const ChainRecord& one) {
    if (!sent_ || one.seq != sent_->seq || end_.chain != sent_->chain) return;
    sent_seen_ = true;
    if (one.hash != sent_->hash)
        fail(here() + ": record " + std::to_string(one.seq) +
             " is not the head that was sent out: the log was changed, and the hashes computed "
             "anew");
}

IPYBOX_DECL void ChainCheck::finish(const std::optional<KnownEnd>& known) {
    if (!fault_.empty()) return;
    if (gap_ && gap_->cut_off && (!known || known->next)) {
        doubts_.push_back(detail::printable(file_) + ": line " + std::to_string(gap_->first) +
                          " is cut off: a record that a crash or a full disk kept from being "
                          "written");
        gap_.reset();
    }
    judge_gap();
    if (!fault_.empty()) return;
    if (known && known->end.seq > 0 && records_ == 0)
        return fail(detail::printable(file_) + ": has no record; the host knows of " +
                    std::to_string(known->end.seq) + ": they were removed");
    if (known && records_ > 0) compare(*known);
    if (sent_ && !sent_seen_ && records_ == 0)
        fail(detail::printable(file_) + ": has no record, and a head was sent out");
    else if (sent_ && !sent_seen_)
        fail(text_of(last_) + ": ends with record " + std::to_string(end_.seq) +
             (end_.chain == sent_->chain ? " and has not record " + std::to_string(sent_->seq) +
                                               ", whose head was sent out: it was removed"
                                         : " of another log than the head that was sent out"));
    if (fault_.empty()) add_doubts(known);
}

IPYBOX_DECL void ChainCheck::add_doubts(const std::optional<KnownEnd>& known) {
    if (records_ == 0) {
        doubts_.push_back("there is no record");
        return;
    }
    const bool attested = sent_ && sent_->seq == end_.seq;
    if (!known && !attested)
        doubts_.push_back(
            (sent_ ? "behind record " + std::to_string(sent_->seq) + ", whose head was sent out, "
                   : "this host knows no newest head of the log, so that ") +
            "records may be missing at its end" +
            (since_head_ == 0 ? std::string()
                              : ", and the last " + counted(since_head_, "record", "records") +
                                    ", which no signed head follows, may be anybody's"));
    if (unknown_keys_ > 0)
        doubts_.push_back(counted(unknown_keys_, "head is", "heads are") +
                          " signed with a key that is not known here, " +
                          detail::printable(unknown_key_) + ": name its public half with --key");
    // What is open at the end of an earlier file is closed in one that follows.
    if (known &&
        std::find(known->borders.begin(), known->borders.end(), end_) != known->borders.end())
        return;
    if (!open_.empty() || !closed_)
        doubts_.push_back("it ended without a closing head" +
                          (open_.empty() ? std::string()
                                         : " (opened at " + text_of(open_.begin()->second) + ")") +
                          ", by a crash, or a program still writes it; " +
                          counted(since_head_, "record follows", "records follow") +
                          " the last signed head");
}

IPYBOX_DECL void ChainCheck::compare(const KnownEnd& known) {
    const auto number = [](std::uint64_t seq) { return std::to_string(seq); };
    const bool at_border =
        std::find(known.borders.begin(), known.borders.end(), end_) != known.borders.end();
    if (at_border && !(known.end == end_)) {
        notes_.push_back("the log goes on in another file, which is not looked at");
        return;
    }
    if (known.end.chain != end_.chain)
        return fail(text_of(last_) +
                    ": this log is another one than the host knows: it was "
                    "replaced as a whole");
    if (end_ == known.end || (known.next && end_ == *known.next)) return;
    if (end_.seq < known.end.seq)
        return fail(text_of(last_) + ": ends with record " + number(end_.seq) +
                    "; the host knows of " + number(known.end.seq) + ": " +
                    counted(known.end.seq - end_.seq, "record was", "records were") +
                    " removed at the end");
    if (end_.seq == known.end.seq)
        return fail(text_of(last_) + ": record " + number(end_.seq) +
                    " is not the one that the host knows: it was changed, or what stands before "
                    "it was and the hashes computed anew");
    fail(text_of(last_) + ": ends with record " + number(end_.seq) + "; the host knows of " +
         number(known.end.seq) +
         ": the others were added by somebody else, or the machine "
         "stopped before its disk had all");
}

}  // namespace ipybox::approval
