// Rows that people read.
#include <boost/test/unit_test.hpp>
#include <string>
#include <table.hpp>

namespace table_tests {

using namespace ipybox::app;
using ipybox::detail::Color;

BOOST_AUTO_TEST_SUITE(table)

BOOST_AUTO_TEST_CASE(columns_stand_under_each_other) {
    Table table({"NAME", "WHAT"});
    table.add({"a", "one"});
    table.add({"wörter", "two"});
    table.add({"empty", ""});
    BOOST_TEST(table.text(0, false) == "NAME    WHAT\na       one\nwörter  two\nempty\n");
    BOOST_TEST(Table().text(80, true) == "");
}

BOOST_AUTO_TEST_CASE(the_last_column_is_wrapped_to_the_terminal) {
    Table table;
    table.add({"key", "some words that do not fit into one line"});
    BOOST_TEST(table.text(27, false) == "key  some words that do not\n     fit into one line\n");
    // Where there is no room, the terminal does it.
    BOOST_TEST(table.text(20, false) == "key  some words that do not fit into one line\n");
    BOOST_TEST(wrapped("abcdefgh", 3) == (std::vector<std::string>{"abc", "def", "gh"}));
    BOOST_TEST(wrapped("", 3) == std::vector<std::string>{""});
    BOOST_TEST(wrapped("äöü äöü", 3) == (std::vector<std::string>{"äöü", "äöü"}));
}

BOOST_AUTO_TEST_CASE(colours_are_for_the_first_column_and_cells_have_none_of_their_own) {
    Table table({"A", "B"});
    table.add({"x", "\033[2Jy\n"}, Color::green);
    BOOST_TEST(table.text(0, true) ==
               "\033[1mA\033[m  \033[1mB\033[m\n\033[32mx\033[m  \\x1b[2Jy\\n\n");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace table_tests
