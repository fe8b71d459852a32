// Whether a terminal is sent colours, and how.
#include <boost/test/unit_test.hpp>
#include <ipybox/detail/terminal_color.hpp>

namespace terminal_color_tests {

using namespace ipybox::detail;

BOOST_AUTO_TEST_SUITE(terminal_color)

BOOST_AUTO_TEST_CASE(colours_are_left_out_where_they_are_not_wanted) {
    BOOST_TEST(may_color(nullptr, "xterm"));
    BOOST_TEST(may_color("", "xterm"));
    BOOST_TEST(!may_color("1", "xterm"));
    BOOST_TEST(may_move("xterm"));
    for (const char* term : {static_cast<const char*>(nullptr), "", "dumb"}) {
        BOOST_TEST(!may_color(nullptr, term));
        BOOST_TEST(!may_move(term));
    }
}

BOOST_AUTO_TEST_CASE(a_colour_ends_with_its_text) {
    BOOST_TEST(in_color(Color::red, "no") == "\033[1;31mno\033[m");
    BOOST_TEST(in_color(Color::green, "yes") == "\033[32myes\033[m");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace terminal_color_tests
