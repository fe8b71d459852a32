#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/json/parse.hpp>
#include <boost/test/unit_test.hpp>
#include <csignal>
#include <ipybox/approval/audit_log.hpp>
#include <ipybox/approval/audit_verification.hpp>
#include <ipybox/detail/canonical_json.hpp>
#include <ipybox/detail/json_memory.hpp>
#include <thread>

#include "test_support.hpp"

namespace audit_chain_tests {

using namespace ipybox;
using Outcome = AuditVerification::Outcome;

namespace {

std::string_view name(Outcome outcome) {
    return outcome == Outcome::whole     ? "whole"
           : outcome == Outcome::unknown ? "not proven"
                                         : "broken";
}

struct ChainFixture {
    AuditOptions options(std::uint64_t head_every = 5) const {
        AuditOptions made;
        made.state_directory = state;
        made.head_every = head_every;
        return made;
    }
    // Records "first" to "last" of one session, and the closing head.
    void write(int first, int last, std::uint64_t head_every = 5) const {
        AuditLog log(file, options(head_every));
        for (int number = first; number <= last; ++number) log.write(record(number));
    }
    static json::object record(int number) {
        return {{"event", "call"}, {"session", "s"}, {"number", number}, {"verdict", "deny"}};
    }
    // A log that its process did not close: the file as it was before the closing head, and what
    // the host knew then.
    void crash(int first, int last) const {
        const pid_t child = ::fork();
        if (child == 0) {
            AuditLog log(file, options());
            for (int number = first; number <= last; ++number) log.write(record(number));
            ::_exit(0);
        }
        int status = 0;
        BOOST_TEST(::waitpid(child, &status, 0) == child);
        BOOST_TEST(status == 0);
    }
    AuditVerification verify(std::vector<std::filesystem::path> files = {}) const {
        if (files.empty()) files = {file};
        AuditVerificationOptions how;
        how.state_directory = state;
        return verify_audit_log(files, how);
    }
    void check(Outcome outcome, std::string_view part,
               std::vector<std::filesystem::path> files = {}) const {
        const auto found = verify(std::move(files));
        BOOST_TEST(name(found.outcome) == name(outcome), found.what);
        BOOST_TEST(found.what.find(part) != std::string::npos, found.what);
    }
    std::vector<std::string> lines() const {
        std::vector<std::string> all;
        std::istringstream text(test::read_file(file));
        for (std::string line; std::getline(text, line);) all.push_back(line);
        return all;
    }
    // In place, as an attacker writes who cannot replace the file.
    void set_lines(const std::vector<std::string>& all) const {
        std::string text;
        for (const auto& line : all) text += line + '\n';
        test::write_file(file, text);
    }
    static std::size_t find(const std::vector<std::string>& all, const std::string& part) {
        for (std::size_t at = 0; at < all.size(); ++at)
            if (all[at].find(part) != std::string::npos) return at;
        BOOST_FAIL("no line has " + part);
        return 0;
    }
    // Computes seq and prev of all lines from `first` on anew, which everybody can.
    static void forge(std::vector<std::string>& all, std::size_t first) {
        for (std::size_t at = first; at < all.size(); ++at) {
            std::string why;
            const auto before = approval::read_chain_record(all[at - 1], why);
            BOOST_TEST_REQUIRE(before.has_value(), why);
            boost::system::error_code error;
            auto value = detail::parse_exact(all[at], error);
            value.as_object()["seq"] = before->seq + 1;
            value.as_object()["prev"] = before->hash;
            all[at] = detail::write_json(value);
        }
    }
    static void replace(std::string& line, const std::string& old, const std::string& fresh) {
        const auto at = line.find(old);
        BOOST_TEST_REQUIRE(at != std::string::npos, line);
        line.replace(at, old.size(), fresh);
    }
    std::filesystem::path head_file() const {
        for (const auto& entry : std::filesystem::directory_iterator(state / "audit"))
            if (entry.path().extension() == ".head") return entry.path();
        BOOST_FAIL("no head is kept");
        return {};
    }

    test::TemporaryDirectory directory;
    std::filesystem::path state = directory.path() / "state";
    std::filesystem::path file = directory.path() / "audit.jsonl";
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(audit_chain, ChainFixture)

BOOST_AUTO_TEST_CASE(a_log_that_nobody_touched_is_whole) {
    write(1, 12);
    check(Outcome::whole, "records 1 to 17 are as they were written");
    write(13, 14);
    check(Outcome::whole, "records 1 to 21");
    const auto all = lines();
    std::string why, prev = approval::no_record;
    for (std::size_t at = 0; at < all.size(); ++at) {
        const auto one = approval::read_chain_record(all[at], why);
        BOOST_TEST_REQUIRE(one.has_value(), why);
        BOOST_TEST(one->seq == at + 1);
        BOOST_TEST(one->prev == prev);
        prev = one->hash;
    }
    // Anybody can compute the hash: SHA-256 of the canonical form.
    boost::system::error_code error;
    BOOST_TEST(prev ==
               detail::sha256_hex(detail::canonical_json(detail::parse_exact(all.back(), error),
                                                         detail::CanonicalNumbers::rounded)));
    BOOST_TEST(approval::read_chain_record(all[4], why)->event == "call");
    BOOST_TEST(approval::read_chain_record(all[5], why)->event == "head");
    BOOST_TEST(approval::read_chain_record(all.back(), why)->record.contains("closes"));
}

BOOST_AUTO_TEST_CASE(what_is_edited_is_found_with_its_place) {
    write(1, 12);
    const auto good = lines();
    const auto at = find(good, "\"number\":7");
    const auto line = "line " + std::to_string(at + 1);
    const auto edited = [&](const std::string& old, const std::string& fresh,
                            std::string_view part) {
        auto all = good;
        replace(all[at], old, fresh);
        set_lines(all);
        check(Outcome::broken, line);
        check(Outcome::broken, part);
    };
    edited("deny", "allow", "was changed after it was written");
    edited("\"number\":7", "\"number\":8", "was changed after it was written");
    // What another reader would take for the value.
    edited("{", "{\"verdict\":\"allow\",", "is not written as ipybox writes it");
    edited("\"session\":\"s\"", "\"session\": \"s\"", "is not written as ipybox writes it");
    edited("\"session\":\"s\"", "\"session\":\"\\u0073\"", "is not written as ipybox writes it");
    edited("{", "", "is no JSON object");
    edited("\"seq\"", "\"SEQ\"", "has no place in a chain");
    // Every byte of every line, and the line ends.
    const auto text = test::read_file(file);
    set_lines(good);
    auto whole = test::read_file(file);
    for (std::size_t byte = 0; byte < whole.size(); ++byte) {
        const char was = std::exchange(whole[byte], whole[byte] == 'x' ? 'y' : 'x');
        test::write_file(file, whole);
        const auto found = verify();
        if (found.outcome != Outcome::broken) BOOST_FAIL("byte " << byte << ": " << found.what);
        whole[byte] = was;
    }
    set_lines(good);
    check(Outcome::whole, "records 1 to 17");
}

BOOST_AUTO_TEST_CASE(lines_that_are_exchanged_removed_or_put_in_are_found) {
    write(1, 12);
    const auto good = lines();
    const auto changed = [&](auto change, std::string_view place, std::string_view part) {
        auto all = good;
        change(all);
        set_lines(all);
        check(Outcome::broken, place);
        check(Outcome::broken, part);
    };
    changed([](auto& all) { std::swap(all[6], all[7]); }, "line 7", "lines were exchanged");
    changed([](auto& all) { all.erase(all.begin() + 8); }, "line 9", "1 record was removed");
    changed([](auto& all) { all.erase(all.begin() + 8, all.begin() + 11); }, "line 9",
            "3 records were removed");
    changed([](auto& all) { all.erase(all.begin()); }, "line 1",
            "what stood before it was removed");
    changed([](auto& all) { all.insert(all.begin() + 8, all[3]); }, "line 9", "it was put there");
    changed([](auto& all) { all.insert(all.begin() + 8, "{\"event\":\"call\"}"); }, "line 9",
            "added by somebody else");
    changed([](auto& all) { all.push_back("{\"event\":\"call\"}"); }, "line 18",
            "added by somebody else");
    changed([](auto& all) { all.insert(all.begin(), "an older line"); }, "line 2",
            "line 1 of another stand before it");
}

BOOST_AUTO_TEST_CASE(a_tail_that_is_cut_off_is_found_by_the_head_that_the_host_keeps) {
    write(1, 12);
    const auto good = lines();
    for (std::size_t left = 1; left < good.size(); ++left) {
        set_lines({good.begin(), good.begin() + static_cast<std::ptrdiff_t>(left)});
        check(Outcome::broken, "line " + std::to_string(left) + ": ends with record " +
                                   std::to_string(left) + "; the host knows of 17");
    }
    // Within a line.
    const auto text = test::read_file(file);
    test::write_file(file, text.substr(0, text.size() - 20));
    check(Outcome::broken, "is cut off");
    test::write_file(file, "");
    check(Outcome::broken, "has no record; the host knows of 17");
    std::filesystem::remove(file);
    check(Outcome::broken, "is not there; the host knows of 17 records: the log was removed");
}

BOOST_AUTO_TEST_CASE(a_forged_tail_needs_the_key) {
    write(1, 12);
    auto all = lines();
    const auto at = find(all, "\"number\":7");
    replace(all[at], "deny", "allow");
    forge(all, at + 1);
    set_lines(all);
    // The next head of the log itself says so, wherever the log is looked at.
    const auto head =
        find({all.begin() + static_cast<std::ptrdiff_t>(at), all.end()}, "\"event\":\"head\"") + at;
    check(Outcome::broken, "line " + std::to_string(head + 1) + ": the signature of this head");
    check(Outcome::broken, "between the last good head (" + file.string() + ", line 6)");
    // Without heads only what the host knows is left.
    std::erase_if(all, [](const auto& line) { return line.find("\"head\"") != line.npos; });
    forge(all, 1);
    set_lines(all);
    check(Outcome::broken, "ends with record 14; the host knows of 17");
    // As long as it was.
    all.insert(all.end(), 3, all.back());
    forge(all, 1);
    set_lines(all);
    check(Outcome::broken, "line 17: record 17 is not the one that the host knows");
}

BOOST_AUTO_TEST_CASE(a_log_that_is_replaced_by_another_is_found) {
    write(1, 3);
    const auto other = directory.path() / "other.jsonl";
    {
        AuditLog log(other, options());
        for (int number = 0; number < 30; ++number) log.write(record(number));
    }
    std::filesystem::rename(other, file);
    check(Outcome::broken, "it was replaced as a whole");
}

BOOST_AUTO_TEST_CASE(without_the_head_it_says_what_it_cannot_know) {
    write(1, 12);
    auto all = lines();
    std::filesystem::remove(head_file());
    check(Outcome::unknown, "this host knows no newest head of the log");
    set_lines({all.begin(), all.begin() + 9});
    check(Outcome::unknown, "the last 3 records, which no signed head follows, may be anybody's");
    // Where the key is unknown as well.
    set_lines(all);
    AuditVerificationOptions elsewhere;
    elsewhere.state_directory = directory.path() / "elsewhere";
    auto found = verify_audit_log({file}, elsewhere);
    BOOST_TEST(name(found.outcome) == name(Outcome::unknown), found.what);
    BOOST_TEST(
        found.what.find("3 heads are signed with a key that is not known") != std::string::npos,
        found.what);
    BOOST_TEST(!std::filesystem::exists(elsewhere.state_directory));
    // With the key of the machine that wrote it, and the last head that it sent.
    const auto key = directory.path() / "key.pub", head = directory.path() / "head.json";
    test::write_file(key, AuditKey::of(state / "audit").public_text());
    test::write_file(head, all.back() + "\n");
    elsewhere.keys = {key};
    elsewhere.head = head;
    found = verify_audit_log({file}, elsewhere);
    BOOST_TEST(name(found.outcome) == name(Outcome::whole), found.what);
    set_lines({all.begin(), all.end() - 1});
    found = verify_audit_log({file}, elsewhere);
    BOOST_TEST(name(found.outcome) == name(Outcome::broken), found.what);
    BOOST_TEST(found.what.find("whose head was sent out: it was removed") != std::string::npos,
               found.what);
    replace(all[5], "\"head\"", "\"HEAD\"");
    BOOST_CHECK_EXCEPTION((test::write_file(head, all[5]), verify_audit_log({file}, elsewhere)),
                          Error,
                          [](const Error& error) { return error.code() == errc::bad_argument; });
}

BOOST_AUTO_TEST_CASE(a_crash_leaves_a_log_without_a_closing_head) {
    crash(1, 7);
    check(Outcome::unknown,
          "records 1 to 10 are as they were written, but it ended without a "
          "closing head (opened at " +
              file.string() + ", line 2)");
    check(Outcome::unknown, "4 records follow the last signed head");
    // Who comes next closes what is its own.
    write(8, 9);
    check(Outcome::unknown, "(opened at " + file.string() + ", line 2)");
    auto all = lines();
    set_lines({all.begin(), all.end() - 2});
    check(Outcome::broken, "2 records were removed at the end");
}

BOOST_AUTO_TEST_CASE(between_the_head_and_the_line_nothing_is_ambiguous) {
    crash(1, 3);
    const auto known = test::read_file(head_file());
    const auto before = test::read_file(file);
    crash(4, 4);
    const auto text = test::read_file(file);
    // The host announces a record before it writes it, so that both ends are right.
    const auto last = text.rfind('\n', text.size() - 2) + 1;
    std::string why;
    const auto next = approval::read_chain_record(
        std::string_view(text).substr(last, text.size() - last - 1), why);
    BOOST_TEST_REQUIRE(next.has_value());
    const auto previous = text.rfind('\n', last - 2) + 1;
    const auto end = approval::read_chain_record(
        std::string_view(text).substr(previous, last - previous - 1), why);
    boost::system::error_code error;
    auto kept = json::parse(test::read_file(head_file()).substr(0, 512), error).as_object();
    kept["seq"] = end->seq;
    kept["hash"] = end->hash;
    kept["bytes"] = last;
    kept["next"] = {{"seq", next->seq}, {"hash", next->hash}, {"bytes", text.size()}};
    auto record = detail::write_json(kept);
    record.resize(511, ' ');
    const auto announced = record + '\n' + test::read_file(head_file()).substr(512);
    const auto died = [&](std::size_t size) {
        test::write_file(head_file(), announced);
        test::write_file(file, text.substr(0, size));
    };
    for (const std::size_t size : {text.size(), last}) {
        died(size);
        check(Outcome::unknown, "it ended without a closing head");
        write(5, 5);
        check(Outcome::unknown, "it ended without a closing head");
        BOOST_TEST((test::read_file(file).find("\"number\":4") != std::string::npos) ==
                   (size == text.size()));
    }
    // In the midst of the line, and before its end alone.
    died(last + 30);
    check(Outcome::unknown, "is cut off");
    write(5, 5);
    check(Outcome::unknown, "it ended without a closing head");
    const auto found = verify();
    BOOST_TEST_REQUIRE(found.notes.size() == 1u);
    BOOST_TEST(found.notes[0].find("a part of a record that could not be written whole") !=
                   std::string::npos,
               found.notes[0]);
    died(text.size() - 1);
    write(5, 5);
    check(Outcome::unknown, "it ended without a closing head");
    BOOST_TEST(verify().notes.empty());
    BOOST_TEST(test::read_file(file).find("\"number\":4") != std::string::npos);
    // What was not announced is not the host's, whoever computed its hash.
    test::write_file(head_file(), known);
    test::write_file(file, before + text.substr(before.size()));
    check(Outcome::broken, "added by somebody else");
    write(5, 5);
    check(Outcome::broken, "bytes before it were written by somebody else than ipybox");
}

BOOST_AUTO_TEST_CASE(an_ending_that_was_cut_while_nobody_looked_is_told_by_the_next_writer) {
    write(1, 12);
    const auto all = lines();
    set_lines({all.begin(), all.begin() + 9});
    std::string warned;
    Logger logger;
    logger.write = [&](LogLevel, std::string_view line) { warned += line; };
    {
        AuditLog log(file, options(), logger);
        log.write(record(13));
    }
    BOOST_TEST(warned.find("no longer ends with record 17") != std::string::npos, warned);
    check(Outcome::broken, "line 10: when it was written, the log no longer ended with record 17");
    // Nothing that follows makes it good.
    write(14, 15);
    check(Outcome::broken, "line 10");
}

BOOST_AUTO_TEST_CASE(several_writers_make_one_chain) {
    std::vector<pid_t> children;
    for (int child = 0; child < 4; ++child) {
        const pid_t id = ::fork();
        if (id == 0) {
            {
                AuditLog log(file, options(7));
                for (int number = 0; number < 100; ++number) log.write(record(number));
            }
            ::_exit(0);
        }
        children.push_back(id);
    }
    // And in one process, by turns.
    {
        AuditLog one(file, options(7)), two(file, options(7));
        for (int number = 0; number < 50; ++number) {
            one.write(record(number));
            two.write(record(number));
        }
    }
    for (const pid_t id : children) {
        int status = 0;
        BOOST_TEST(::waitpid(id, &status, 0) == id);
        BOOST_TEST(status == 0);
    }
    check(Outcome::whole, "are as they were written and all that there are");
    std::size_t calls = 0;
    for (const auto& line : lines()) calls += line.find("\"call\"") != line.npos;
    BOOST_TEST(calls == 500u);
}

BOOST_AUTO_TEST_CASE(a_new_file_goes_on_with_the_chain) {
    const auto old = directory.path() / "audit.jsonl.1";
    const auto older = directory.path() / "audit.jsonl.2";
    {
        AuditLog log(file, options());
        for (int number = 1; number <= 6; ++number) log.write(record(number));
        std::filesystem::rename(file, older);
        for (int number = 7; number <= 12; ++number) log.write(record(number));
    }
    std::filesystem::rename(file, old);
    write(13, 14);
    struct stat status{};
    BOOST_TEST(::stat(file.c_str(), &status) == 0);
    BOOST_TEST((status.st_mode & 0777) == 0600u);
    check(Outcome::whole, "records 1 to 24", {older, old, file});
    // Alone each says what it follows, and that another one follows.
    check(Outcome::whole, "records 20 to 24");
    BOOST_TEST(verify().notes.at(0).find("goes on from record 19 of an earlier file") !=
               std::string::npos);
    check(Outcome::whole, "records 1 to 9", {older});
    BOOST_TEST(verify({older}).notes.at(0).find("goes on in another file") != std::string::npos);
    check(Outcome::broken, "the files are not in their order", {old, older});
    check(Outcome::broken, "record 20 follows record 9: 10 records were removed", {older, file});
}

BOOST_AUTO_TEST_CASE(an_old_file_is_not_taken_for_the_log) {
    const auto old = directory.path() / "audit.jsonl.1";
    write(1, 6);
    std::filesystem::rename(file, old);
    write(7, 9);
    std::filesystem::copy_file(old, file, std::filesystem::copy_options::overwrite_existing);
    check(Outcome::broken, "records were removed at the end");
    std::filesystem::remove(file);
    std::filesystem::create_symlink(old, file);
    check(Outcome::broken, "records were removed at the end");
}

BOOST_AUTO_TEST_CASE(programs_that_are_killed_at_any_moment_leave_nothing_to_doubt) {
    std::vector<pid_t> running;
    const auto start = [&] {
        const pid_t id = ::fork();
        if (id == 0) {
            AuditLog log(file, options(3));
            for (int number = 0;; ++number) log.write(record(number));
        }
        running.push_back(id);
    };
    start();
    for (int round = 0; round < 60; ++round) {
        start();
        // Some before they wrote anything, most in the midst of it.
        std::this_thread::sleep_for(std::chrono::microseconds(137 * (round % 40)));
        ::kill(running.front(), SIGKILL);
        BOOST_TEST(::waitpid(running.front(), nullptr, 0) == running.front());
        running.erase(running.begin());
    }
    ::kill(running.front(), SIGKILL);
    BOOST_TEST(::waitpid(running.front(), nullptr, 0) == running.front());
    check(Outcome::unknown, "ended without a closing head");
    write(1, 2);
    check(Outcome::unknown, "ended without a closing head");
    BOOST_TEST(test::read_file(file).find("foreign") == std::string::npos);
    BOOST_TEST(test::read_file(file).find("expected") == std::string::npos);
}

BOOST_AUTO_TEST_CASE(what_is_lost_by_option_is_counted) {
    {
        auto how = options();
        how.stop_on_failure = false;
        AuditLog log(file, how);
        log.write(record(1));
        std::filesystem::rename(file, directory.path() / "moved");
        std::filesystem::create_directory(file);  // nothing can be opened there
        log.write(record(2));
        log.write(record(3));
        std::filesystem::remove(file);
        std::filesystem::rename(directory.path() / "moved", file);
        log.write(record(4));
    }
    check(Outcome::whole, "are as they were written");
    BOOST_TEST_REQUIRE(verify().notes.size() == 1u);
    BOOST_TEST(verify().notes[0].find("2 records could not be written") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(an_old_file_that_was_shortened_is_found) {
    const auto old = directory.path() / "audit.jsonl.1";
    write(1, 6);
    std::filesystem::rename(file, old);
    write(7, 9);
    std::istringstream text(test::read_file(old));
    std::string shorter, line;
    for (int left = 5; left > 0 && std::getline(text, line); --left) shorter += line + '\n';
    test::write_file(old, shorter);
    check(Outcome::broken, "records were removed", {old, file});
    check(Outcome::broken, "ends with record 5", {old});
}

BOOST_AUTO_TEST_CASE(a_log_that_was_emptied_in_place_goes_on) {
    AuditLog log(file, options());
    log.write(record(1));
    std::filesystem::copy(file, directory.path() / "copy");
    test::write_file(file, "");
    log.write(record(2));
    BOOST_TEST(lines().at(0).find("\"continued\"") != std::string::npos);
    check(Outcome::unknown, "records 4 to 6", {file});
    check(Outcome::unknown, "records 1 to 6", {directory.path() / "copy", file});
}

BOOST_AUTO_TEST_CASE(what_stood_in_the_file_before_is_covered_by_its_hash) {
    test::write_file(file, "{\"event\":\"old\"}\n{\"event\":\"older\"}");
    write(1, 2);
    check(Outcome::whole, "records 1 to 5");
    BOOST_TEST(verify().notes.at(0).find("lines 1 to 2 stood there before the chain began") !=
               std::string::npos);
    auto all = lines();
    replace(all[0], "old", "new");
    set_lines(all);
    check(Outcome::broken, "line 3: what stands before it is not what ipybox found there");
    // A host that lost what it knew begins anew, and says what that means.
    replace(all[0], "new", "old");
    set_lines(all);
    std::filesystem::remove(head_file());
    write(3, 4);
    check(Outcome::unknown, "another chain begins, whose writer knew nothing of the one before");
}

BOOST_AUTO_TEST_CASE(no_digit_is_altered_unnoticed) {
    {
        AuditLog log(file, options());
        json::object arguments;
        arguments["large"] = detail::exact_value("123456789012345678901");
        arguments["small"] = detail::exact_value("0.30000000000000000001");
        arguments["integer"] = std::int64_t{9007199254740993};
        arguments["plain"] = detail::exact_value("1e2");
        log.write({{"event", "call"}, {"arguments", std::move(arguments)}});
    }
    const auto good = lines();
    check(Outcome::whole, "records 1 to 4");
    const auto edited = [&](const std::string& old, const std::string& fresh) {
        auto all = good;
        replace(all[2], old, fresh);
        set_lines(all);
        return verify().outcome;
    };
    BOOST_TEST(name(edited("123456789012345678901", "123456789012345678902")) ==
               name(Outcome::broken));
    BOOST_TEST(name(edited("0.30000000000000000001", "0.30000000000000000002")) ==
               name(Outcome::broken));
    BOOST_TEST(name(edited("9007199254740993", "9007199254740992")) == name(Outcome::broken));
    BOOST_TEST(name(edited("123456789012345678901", "\"123456789012345678901\"")) ==
               name(Outcome::broken));
    // The same record by RFC 8785, and as good: the value is what counts.
    BOOST_TEST(name(edited("1e2", "100")) == name(Outcome::whole));
}

BOOST_AUTO_TEST_CASE(a_key_that_others_can_reach_signs_nothing) {
    write(1, 1);
    const auto key = state / "audit" / "key.pem";
    struct stat status{};
    BOOST_TEST(::stat(key.c_str(), &status) == 0);
    BOOST_TEST((status.st_mode & 07777) == 0600u);
    BOOST_TEST(::stat(key.parent_path().c_str(), &status) == 0);
    BOOST_TEST((status.st_mode & 07777) == 0700u);
    const auto refused = [&](std::string_view part) {
        BOOST_CHECK_EXCEPTION(AuditLog(file, options()), Error, [&](const Error& error) {
            BOOST_TEST(error.detail().find(part) != std::string::npos, error.detail());
            return error.code() == errc::bad_config;
        });
    };
    for (const mode_t mode : {0644, 0620, 0602, 0640}) {
        ::chmod(key.c_str(), mode);
        refused("key.pem, which signs audit logs: others can read or write it; remove it");
    }
    ::chmod(key.c_str(), 0600);
    ::chmod(key.parent_path().c_str(), 0770);
    refused("others can reach the key");
    ::chmod(key.parent_path().c_str(), 0700);
    ::chmod(head_file().c_str(), 0666);
    refused("others can write it");
    ::chmod(head_file().c_str(), 0600);
    test::write_file(key, "no key");
    refused("no key of Ed25519");
    // A link is not followed.
    std::filesystem::rename(key, directory.path() / "moved");
    std::filesystem::create_symlink(directory.path() / "moved", key);
    BOOST_CHECK_THROW(AuditLog(file, options()), Error);
    std::filesystem::remove(key);
    write(2, 2);
    // What the old key signed can still be verified.
    check(Outcome::whole, "records 1 to 7");
    test::write_file(head_file(), "nonsense");
    BOOST_CHECK_EXCEPTION(write(3, 3), Error, [](const Error& error) {
        return error.detail().find("is damaged") != std::string::npos;
    });
}

BOOST_AUTO_TEST_CASE(heads_are_handed_out_as_they_stand_in_the_log) {
    std::vector<std::string> heads;
    {
        auto how = options();
        how.on_head = [&](const std::string& head) {
            heads.push_back(head);
            throw std::runtime_error("nobody listens");
        };
        std::string warned;
        Logger logger;
        logger.write = [&](LogLevel, std::string_view line) { warned += line; };
        AuditLog log(file, how, logger);
        for (int number = 0; number < 9; ++number) log.write(record(number));
        BOOST_TEST(warned.find("nobody listens") != std::string::npos);
    }
    BOOST_TEST_REQUIRE(heads.size() == 3u);
    const auto all = lines();
    BOOST_TEST(heads.back() == all.back());
    BOOST_TEST(all[find(all, "\"event\":\"head\"")] == heads.front());
}

BOOST_AUTO_TEST_CASE(a_head_follows_soon_where_that_is_wanted) {
    asio::io_context context(1);
    std::vector<std::string> heads;
    auto how = options(1000);
    how.on_head = [&](const std::string& head) { heads.push_back(head); };
    auto log = std::make_unique<AuditLog>(file, how);
    log->sign_within(std::chrono::milliseconds(30), context.get_executor());
    for (int number = 0; number < 4; ++number) log->write(record(number));
    BOOST_TEST(heads.empty());
    context.run();
    BOOST_TEST_REQUIRE(heads.size() == 1u);
    BOOST_TEST(lines().back() == heads.back());
    // Not again, until there is something new.
    context.restart();
    BOOST_TEST(context.run() == 0u);
    log->write(record(5));
    context.restart();
    context.run();
    BOOST_TEST(heads.size() == 2u);
    // It ends before its time.
    log->write(record(6));
    log.reset();
    BOOST_TEST(heads.size() == 3u);
    context.restart();
    context.run();
    BOOST_TEST(heads.size() == 3u);
    check(Outcome::whole, "");
}

BOOST_AUTO_TEST_CASE(a_pipe_has_a_chain_and_no_head_outside) {
    const auto pipe = directory.path() / "pipe";
    BOOST_TEST_REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
    const UniqueFd reader(::open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    {
        AuditLog log(pipe, options());
        log.write(record(1));
    }
    std::string text(1 << 16, '\0');
    text.resize(static_cast<std::size_t>(::read(reader.get(), text.data(), text.size())));
    test::write_file(file, text);
    check(Outcome::unknown,
          "records 1 to 4 are as they were written, but this host knows no newest");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace audit_chain_tests
