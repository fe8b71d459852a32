#include <boost/json/parse.hpp>
#include <boost/test/unit_test.hpp>
#include <ipybox/detail/terminal_text.hpp>

namespace terminal_text_tests {

using namespace ipybox::detail;

namespace {
std::string call(std::string_view arguments) {
    return call_text("server", "tool", boost::json::parse(arguments).as_object());
}
}  // namespace

BOOST_AUTO_TEST_SUITE(terminal_text)

BOOST_AUTO_TEST_CASE(calls_read_like_python) {
    BOOST_TEST(call(R"({"a": "it's", "n": 1.5, "w": 57.0, "i": 57, "b": true, "z": null, "l": [1, {"k": "v"}]})") ==
               R"(server.tool(a='it\'s', n=1.5, w=57.0, i=57, b=True, z=None, l=[1, {'k': 'v'}]))");
}

BOOST_AUTO_TEST_CASE(nothing_in_a_call_can_deceive) {
    BOOST_TEST(call("{\"a\": \"x\\u001b[2Ky\\n\\u202e\"}") == R"(server.tool(a='x\x1b[2Ky\n\u202e'))");
    BOOST_TEST(call_text("s\x1b", "t\r", {}) == R"(s\x1b.t\r())");
    BOOST_TEST(printable("\xff\xc0\x80 ok \xe2\x80\x8b") == R"(\xff\xc0\x80 ok \u200b)");
}

BOOST_AUTO_TEST_CASE(long_and_deep_arguments_are_cut) {
    boost::json::object arguments;
    arguments["a"] = std::string(1'000'000, 'x');
    BOOST_TEST(call_text("s", "t", arguments).size() < 10'000u);
    boost::json::value deep = 1;
    for (int i = 0; i < 1000; ++i) {
        boost::json::array wrapped;
        wrapped.push_back(std::move(deep));
        deep = std::move(wrapped);
    }
    arguments["a"] = std::move(deep);
    BOOST_TEST(call_text("s", "t", arguments).size() < 10'000u);
}

BOOST_AUTO_TEST_CASE(the_filter_lets_text_through_and_sequences_vanish) {
    TerminalFilter filter;
    BOOST_TEST(filter("plain ü €\ttab\n") == "plain ü €\ttab\n");
    BOOST_TEST(filter("\x1b[31mred\x1b[0m \x1b]0;title\x07text") == "red text");
    BOOST_TEST(filter("a\rb\r\nc") == "a\nb\nc");
    BOOST_TEST(filter("split \x1b") == "split ");
    BOOST_TEST(filter("[2") == "");
    BOOST_TEST(filter("Jdone\xc2\x9b" "1mx") == "donex");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace terminal_text_tests
