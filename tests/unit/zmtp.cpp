// The ZMTP client's side without a socket: what it says, and what it takes from a hostile peer.
#include <boost/test/unit_test.hpp>
#include <cstring>
#include <ipybox/jupyter/zmtp.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace unit_zmtp_tests {

using namespace ipybox::jupyter;
using namespace std::string_literals;
using Messages = std::vector<std::vector<std::string>>;
using Advanced = boost::system::result<bool, ZmtpFault>;

namespace {

// What a peer says before its first message.
std::string opening() { return zmtp_opening("ROUTER"); }

std::string message(std::initializer_list<std::string_view> frames) {
    std::string text;
    std::size_t left = frames.size();
    for (const auto frame : frames) append_zmtp_frame(text, frame, --left > 0);
    return text;
}

// A long header: this many bytes follow.
std::string announce(std::uint64_t size, bool more = false) {
    std::string text(1, static_cast<char>(more ? 3 : 2));
    for (int shift = 56; shift >= 0; shift -= 8) text += static_cast<char>(size >> shift & 0xFF);
    return text;
}

// Moves what fits of the text, at most `size` bytes, into the reader.
void feed(ZmtpReader& reader, std::string_view& text, std::size_t size) {
    const auto room = reader.room();
    const auto count = std::min({room.size, size, text.size()});
    std::memcpy(room.data, text.data(), count);
    reader.add(count);
    text.remove_prefix(count);
}

// Feeds `text` in pieces of `size`; collects messages until the end or the fault.
struct Fed {
    Messages messages;
    std::optional<ZmtpFault> fault;

    Fed(ZmtpReader& reader, std::string_view text, std::size_t size) {
        for (;;) {
            const auto done = reader.advance();
            if (!done) {
                fault = done.error();
                return;
            }
            if (*done) {
                messages.emplace_back(reader.frames().begin(), reader.frames().end());
                reader.drop();
                continue;
            }
            if (text.empty()) return;
            feed(reader, text, size);
        }
    }
};

std::optional<ZmtpFault> fault_of(std::string_view text, ZmtpReader::Limits limits = {}) {
    ZmtpReader reader(limits);
    const Fed fed(reader, text, 1 << 16);
    ZmtpReader again(limits);
    const Fed bytewise(again, text, 1);
    BOOST_TEST((fed.fault == bytewise.fault));
    return fed.fault;
}
}  // namespace

BOOST_AUTO_TEST_SUITE(zmtp)

BOOST_AUTO_TEST_CASE(an_opening_is_a_greeting_and_a_ready_command) {
    const auto text = zmtp_opening("DEALER");
    BOOST_TEST(text.substr(0, 12) == "\xFF\0\0\0\0\0\0\0\x01\x7F\x03\0"s);
    BOOST_TEST(text.substr(12, 20) == "NULL" + std::string(16, '\0'));
    BOOST_TEST(text.substr(32, 32) == std::string(32, '\0'));
    BOOST_TEST(text.substr(64) ==
               "\x04\x1C\x05READY\x0BSocket-Type\0\0\0\x06"
               "DEALER"s);
    BOOST_TEST(zmtp_opening("DEALER", "me").substr(64) ==
               "\x04\x2B\x05READY\x0BSocket-Type\0\0\0\x06"
               "DEALER\x08Identity\0\0\0\x02me"s);
}

BOOST_AUTO_TEST_CASE(messages_arrive_however_they_are_cut) {
    const std::string large(300'000, 'x'), medium(256, 'm');
    const std::string text = opening() + message({"one"}) + message({"", "a", ""}) +
                             message({large, medium, "end", large}) + message({"last"});
    const Messages expected = {{"one"}, {"", "a", ""}, {large, medium, "end", large}, {"last"}};
    for (const std::size_t size : {1U, 2U, 7U, 63U, 64U, 65U, 4096U, 65'536U, 1'000'000U}) {
        ZmtpReader reader({});
        BOOST_TEST(!reader.ready());
        const Fed fed(reader, text, size);
        BOOST_TEST(!fed.fault.has_value());
        BOOST_TEST((fed.messages == expected), size);
        BOOST_TEST(reader.ready());
        BOOST_TEST(reader.announced() == 0U);
    }
}

BOOST_AUTO_TEST_CASE(a_message_stays_until_it_is_dropped) {
    ZmtpReader reader({});
    Fed(reader, opening(), 1000);
    const auto text = message({"a", "b"}) + message({"c"});
    const auto room = reader.room();
    std::memcpy(room.data, text.data(), text.size());
    reader.add(text.size());
    for (int i = 0; i < 3; ++i) {
        BOOST_TEST((reader.advance() == Advanced(true)));
        BOOST_TEST(reader.frames()[1] == "b");
        BOOST_TEST(reader.announced() == 2U);
    }
    reader.drop();
    BOOST_TEST((reader.advance() == Advanced(true)));
    BOOST_TEST(reader.frames()[0] == "c");
    reader.drop();
    BOOST_TEST((reader.advance() == Advanced(false)));
}

BOOST_AUTO_TEST_CASE(what_is_no_zmtp_is_refused_at_its_first_wrong_byte) {
    for (const auto& text : {"HTTP/1.1 200 OK\r\n"s, "\xFF\0\0\0\0\0\0\0\x01\x7E"s,
                             "\xFF\0\0\0\0\0\0\0\x01\x7F\x01"s, std::string(100, '\xFF')})
        BOOST_TEST((fault_of(text) == ZmtpFault::bad_greeting));
    auto curve = opening();
    curve.replace(12, 5, "CURVE");
    BOOST_TEST((fault_of(curve) == ZmtpFault::bad_greeting));

    const auto greeting = opening().substr(0, 64);
    BOOST_TEST((fault_of(greeting + message({"x"})) == ZmtpFault::bad_handshake));
    BOOST_TEST((fault_of(greeting + "\x04\x05\x04PING"s) == ZmtpFault::bad_handshake));
    BOOST_TEST((fault_of(greeting + "\x04\x08\x05"
                                    "ERROR\x01no"s) == ZmtpFault::refused));
    BOOST_TEST(
        (fault_of(greeting + "\x06"s + announce(1 << 20).substr(1)) == ZmtpFault::bad_handshake));
    for (const auto& text :
         {"\xFF"s, "\x08\x01x"s, "\x05\x01x"s, "\x04\x05\x05READY"s, "\x04\x05\x04PING"s})
        BOOST_TEST((fault_of(opening() + text) == ZmtpFault::bad_frame));
}

BOOST_AUTO_TEST_CASE(what_a_message_may_cost_is_checked_before_it_is_there) {
    ZmtpReader::Limits limits;
    limits.frames = 3;
    limits.bytes = 1000;
    // The header alone is enough; nothing follows it.
    BOOST_TEST((fault_of(opening() + announce(1001), limits) == ZmtpFault::too_large));
    BOOST_TEST((fault_of(opening() + announce(~std::uint64_t{0}), limits) == ZmtpFault::too_large));
    const std::string half(600, 'x');
    std::string first;
    append_zmtp_frame(first, half, true);
    BOOST_TEST((fault_of(opening() + first + announce(401), limits) == ZmtpFault::too_large));
    BOOST_TEST((fault_of(opening() + first + announce(~std::uint64_t{0}), limits) ==
                ZmtpFault::too_large));
    BOOST_TEST(!fault_of(opening() + first + announce(400), limits).has_value());
    // Frames without end, even empty ones.
    BOOST_TEST(!fault_of(opening() + message({"", "", ""}), limits).has_value());
    BOOST_TEST((fault_of(opening() + message({"", "", "", ""}), limits) == ZmtpFault::frame_count));
    // The next message counts from zero.
    BOOST_TEST(!fault_of(opening() + message({half, "", ""}) + message({half, "", ""}), limits)
                    .has_value());
}

BOOST_AUTO_TEST_CASE(a_message_that_is_too_large_can_be_let_go_by) {
    ZmtpReader::Limits limits;
    limits.frames = 4;
    limits.bytes = 1000;
    const std::string large(300'000, 'x');
    const std::string text = opening() + message({"a", "b", large, "c"}) + message({"next"});
    for (const std::size_t size : {1U, 100U, 65'536U, 1'000'000U}) {
        ZmtpReader reader(limits);
        std::string_view left = text;
        Messages messages;
        int skipped = 0;
        for (;;) {
            const auto done = reader.advance();
            if (!done) {
                BOOST_TEST_REQUIRE((done.error() == ZmtpFault::too_large));
                BOOST_TEST_REQUIRE(reader.frames().size() == 2U);
                BOOST_TEST(reader.frames()[1] == "b");
                reader.skip();
                BOOST_TEST_REQUIRE(++skipped == 1);
            } else if (*done) {
                messages.emplace_back(reader.frames().begin(), reader.frames().end());
                reader.drop();
            } else {
                BOOST_TEST(reader.announced() <= limits.bytes);
                if (left.empty()) break;
                feed(reader, left, size);
            }
        }
        BOOST_TEST((messages == Messages{{"next"}}));
    }
    // Not without end: neither in one frame nor in frames.
    for (const auto& rest : {announce(~std::uint64_t{0}), announce((1ULL << 30) + 1)})
        BOOST_TEST((fault_of(opening() + rest, limits) == ZmtpFault::too_large));
    ZmtpReader reader(limits);
    const Fed first(reader, opening() + announce(5000, true), 5000);
    reader.skip();
    std::string many(5000, 'x');
    for (int i = 0; i < 4; ++i) append_zmtp_frame(many, "", true);
    BOOST_TEST((Fed(reader, many, 100).fault == ZmtpFault::frame_count));
    reader.skip();
    BOOST_TEST((reader.advance().error() == ZmtpFault::frame_count));
}

BOOST_AUTO_TEST_CASE(a_fault_is_final) {
    ZmtpReader reader({});
    const Fed fed(reader, "no", 10);
    BOOST_TEST(fed.fault.has_value());
    BOOST_TEST((reader.advance().error() == *fed.fault));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace unit_zmtp_tests
