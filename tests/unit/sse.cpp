// Server-sent events: cut anywhere, ended in any way, hostile in size.
#include <boost/test/unit_test.hpp>
#include <ipybox/mcp/sse.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace sse_tests {

using namespace ipybox;
using mcp::SseParser;

namespace {

// What an event was, as "type|data|last id".
std::vector<std::string> parse(const std::vector<std::string>& pieces,
                               std::size_t limit = 1 << 20) {
    SseParser parser(limit);
    std::vector<std::string> events;
    for (const auto& piece : pieces) {
        parser.feed(piece);
        for (;;) {
            auto event = parser.next();
            if (!event) {
                events.emplace_back("too long");
                return events;
            }
            if (!*event) break;
            events.push_back((*event)->type + "|" + (*event)->data + "|" + parser.last_id());
        }
    }
    return events;
}
using Events = std::vector<std::string>;

}  // namespace

BOOST_AUTO_TEST_SUITE(sse)

BOOST_AUTO_TEST_CASE(fields_lines_and_comments_are_told_apart) {
    BOOST_TEST(parse({"data: a\n\n"}) == Events{"|a|"});
    BOOST_TEST(parse({"event: endpoint\ndata:/x\nid: 7\n\n"}) == Events{"endpoint|/x|7"});
    BOOST_TEST(parse({"data: a\ndata:  b\ndata\ndata:c\n\n"}) == Events{"|a\n b\n\nc|"});
    BOOST_TEST(parse({": comment\n\n:\nother: x\ndata: a\n\n"}) == Events{"|a|"});
    BOOST_TEST(parse({"\xEF\xBB\xBF"
                      "data: a\n\n"}) == Events{"|a|"});
    BOOST_TEST(parse({"data: a\n"}) == Events{});
    BOOST_TEST(parse({"event: x\n\ndata: a\n\n"}) == Events{"|a|"});
    BOOST_TEST(parse({"\xEF\xBB\xBF\xEF\xBB\xBF"
                      "data: a\n\ndata: b\n\n"}) == Events{"|b|"});
}

BOOST_AUTO_TEST_CASE(every_cut_and_every_line_end_gives_the_same_events) {
    const Events expected{"|ä\n😀|1", "t|x|1", "||"};
    for (const std::string end : {"\n", "\r\n", "\r"}) {
        std::string text;
        for (const std::string line :
             {"id: 1", "data: ä", "data: 😀", "", "event: t", "data: x", "", "id", "data", ""})
            text += line + end;
        BOOST_TEST(parse({text}) == expected);
        for (std::size_t cut = 0; cut <= text.size(); ++cut)
            BOOST_TEST(parse({text.substr(0, cut), "", text.substr(cut)}) == expected);
        std::vector<std::string> single;
        for (const char c : text) single.emplace_back(1, c);
        BOOST_TEST(parse(single) == expected);
    }
    // Mixed: CR and LF of two pieces are one line end, CR CR are two.
    BOOST_TEST(parse({"data: a\r", "\n\r", "data: b\r\r"}) == (Events{"|a|", "|b|"}));
}

BOOST_AUTO_TEST_CASE(an_id_counts_when_its_event_is_complete) {
    SseParser parser;
    parser.feed("id: 1\ndata:\n\nid: 2\ndata: x\n");
    const auto first = parser.next();
    BOOST_TEST(first.value().value().data.empty());
    BOOST_TEST(!parser.next().value());
    BOOST_TEST(parser.last_id() == "1");
    parser.feed("\n");
    BOOST_TEST(parser.next().value().value().data == "x");
    BOOST_TEST(parser.last_id() == "2");
    // Without data it is no event, but its id counts; what no header may carry is no id.
    parser.feed("id: 3\n\nid: a\x01\n\nid: " + std::string(5000, 'x') + "\n\n");
    parser.feed(std::string("id: a\0b\n\n", 9));
    BOOST_TEST(!parser.next().value());
    BOOST_TEST(parser.last_id() == "3");
}

BOOST_AUTO_TEST_CASE(retry_is_a_number_or_nothing) {
    SseParser parser;
    parser.feed("retry: 12x\nretry:\nretry: -1\nretry: 99999999999\n");
    BOOST_TEST(!parser.next().value());
    BOOST_TEST(!parser.retry().has_value());
    parser.feed("retry: 1500\n");
    BOOST_TEST(!parser.next().value());
    BOOST_TEST(parser.retry().value().count() == 1500);
}

BOOST_AUTO_TEST_CASE(what_is_too_long_is_refused_for_good) {
    const std::string long_line(1000, 'x');
    BOOST_TEST(parse({"data: " + long_line + "\n\n"}, 2000).size() == 1u);
    BOOST_TEST(parse({"data: " + long_line}, 500) == Events{"too long"});
    BOOST_TEST(parse({": " + long_line}, 500) == Events{"too long"});
    std::string many;
    for (int i = 0; i < 100; ++i) many += "data: 0123456789\n";
    BOOST_TEST(parse({many}, 500) == Events{"too long"});
    SseParser parser(10);
    parser.feed("data: 0123456789abcdef\n\n");
    BOOST_TEST(parser.next().has_error());
    parser.feed("data: a\n\n");
    BOOST_TEST((parser.next().error() == errc::mcp_protocol));
}

BOOST_AUTO_TEST_CASE(what_is_written_is_read_again) {
    using namespace std::chrono_literals;
    BOOST_TEST(mcp::sse_event("x") == "data: x\n\n");
    BOOST_TEST(parse({mcp::sse_event("a\nb\r\nc\rd", "t", "9", 10ms)}) == Events{"t|a\nb\nc\nd|9"});
    BOOST_TEST(parse({mcp::sse_event("", "", "5"), std::string(mcp::sse_keep_alive)}) ==
               Events{"||5"});
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace sse_tests
