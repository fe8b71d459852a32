#include <boost/test/unit_test.hpp>
#include <ipybox/detail/terminal_text.hpp>

namespace terminal_text_tests {

using namespace ipybox::detail;

BOOST_AUTO_TEST_SUITE(terminal_text)

BOOST_AUTO_TEST_CASE(what_deceives_is_shown_as_an_escape) {
    BOOST_TEST(printable("\xff\xc0\x80 ok \xe2\x80\x8b") == R"(\xff\xc0\x80 ok \u200b)");
    BOOST_TEST(printable("a\xef\xb8\x8f") == R"(a\ufe0f)");
}

BOOST_AUTO_TEST_CASE(the_filter_lets_text_through_and_sequences_vanish) {
    TerminalFilter filter;
    BOOST_TEST(filter("plain ü €\ttab\n") == "plain ü €\ttab\n");
    BOOST_TEST(filter("\x1b[31mred\x1b[0m \x1b]0;title\x07text") == "red text");
    BOOST_TEST(filter("a\rb\r\nc") == "a\nb\nc");
    BOOST_TEST(filter("split \x1b") == "split ");
    BOOST_TEST(filter("[2") == "");
    BOOST_TEST(filter("Jdone\xc2\x9b"
                      "1mx") == "donex");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace terminal_text_tests
