#pragma once
// The chain of an audit log's records, each of which names the hash of the one before: what makes a
// record, and what is wrong with a log.
#include <boost/json/object.hpp>
#include <cstdint>
#include <functional>
#include <ipybox/detail/sha256.hpp>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ipybox::approval {

namespace json = boost::json;

// What the first record of a chain names as the hash of the one before.
inline const std::string no_record(64, '0');

// Where a chain ends.
struct ChainEnd {
    std::string chain;      // its id: 32 hexadecimal digits; empty: nothing is known
    std::uint64_t seq = 0;  // of the last record; 0: there is none
    std::string hash = no_record;
    bool operator==(const ChainEnd&) const = default;
};

// A line that is a record of a chain.
struct ChainRecord {
    json::object record;
    std::uint64_t seq = 0;
    std::string prev, event;
    std::string hash;  // SHA-256 of its canonical form; numbers count with all their digits
};

// line: without its end. An empty result is no record: `why` says why not. One whose members could
// be read in two ways is none.
std::optional<ChainRecord> read_chain_record(std::string_view line, std::string& why);

// What the signature of a head is about: its canonical form, without the signature.
std::string signed_text(json::object head);

// What the host knows of a log.
struct KnownEnd {
    ChainEnd end;
    std::optional<ChainEnd> next;   // of a record that was being written
    std::vector<ChainEnd> borders;  // where earlier files ended
};

enum class Signature { good, bad, unknown_key };

// Lines that are no records.
struct ChainGap {
    std::uint64_t first = 0, last = 0, bytes = 0;
    std::string why;
    bool cut_off = false;  // nothing but a part of a line
    detail::Sha256 hash;
};

// What is found in the files of a log, in order.
class ChainCheck {
public:
    // signature: judges the head record that it is given.
    explicit ChainCheck(std::function<Signature(const json::object& head)> signature)
        : signature_(std::move(signature)) {}

    // A record that the log must have, as somebody knows to whom its head was sent. Before any
    // line.
    void expect(ChainEnd sent) { sent_ = std::move(sent); }
    // The lines up to the next call, or to finish(), are those of this file.
    void begin_file(std::string name);
    // whole: the line ends with a line end, which is not in `text`.
    void add_line(std::string_view text, bool whole);
    // known: absent when nothing is known about the end.
    void finish(const std::optional<KnownEnd>& known);

    // What is wrong, with its place; empty when nothing is. It stays at what was found first.
    const std::string& fault() const noexcept { return fault_; }
    // What keeps a log without fault from being proven whole; empty: it is whole.
    const std::vector<std::string>& doubts() const noexcept { return doubts_; }
    // What somebody who reads the log should know.
    const std::vector<std::string>& notes() const noexcept { return notes_; }

    const ChainEnd& end() const noexcept { return end_; }
    std::uint64_t records() const noexcept { return records_; }
    std::uint64_t first() const noexcept { return first_; }

private:
    struct Place {
        std::string file;
        std::uint64_t line = 0;
    };
    std::string here() const { return text_of({file_, line_}); }
    static std::string text_of(const Place& place);
    void fail(std::string what) {
        if (fault_.empty()) fault_ = std::move(what);
    }
    void add_record(const ChainRecord& one);
    void add_to_gap(std::string_view text, bool whole, const std::string& why);
    void begin_chain(const ChainRecord& one);
    void go_on(const ChainRecord& one);
    void follow(const ChainRecord& one);
    void explain_gap(const ChainRecord& one);
    void judge_head(const ChainRecord& one);
    void judge_gap();
    void compare(const KnownEnd& known);
    void judge_sent(const ChainRecord& one);
    void add_doubts(const std::optional<KnownEnd>& known);

    std::function<Signature(const json::object&)> signature_;
    std::string fault_;
    std::vector<std::string> doubts_, notes_;

    std::string file_;
    std::uint64_t line_ = 0, bytes_ = 0;
    detail::Sha256 file_hash_;  // of all lines of this file so far
    std::optional<ChainGap> gap_;

    ChainEnd end_;
    std::optional<ChainEnd> sent_;
    bool sent_seen_ = false;
    Place last_, good_head_;  // of the last record, and of the last head that was signed well
    std::uint64_t records_ = 0, first_ = 0, since_head_ = 0, unknown_keys_ = 0;
    std::string unknown_key_;
    std::map<std::string, Place> open_;  // writers that have not closed the log
    bool closed_ = false;                // the last record closes it
};

}  // namespace ipybox::approval

#ifndef IPYBOX_SEPARATE_COMPILATION
#include <ipybox/approval/impl/audit_chain.ipp>
#endif
