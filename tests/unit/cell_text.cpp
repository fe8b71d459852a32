#include <boost/test/unit_test.hpp>
#include <ipybox/executor/detail/cell_text.hpp>
#include <string>

namespace cell_text_tests {

using namespace ipybox::detail;
using Source = TextSource;

BOOST_AUTO_TEST_SUITE(cell_text)

struct Cell {
    void add(Source source, const std::string& piece) {
        joined += piece;
        pieces.add(source, piece.size());
    }
    std::string joined;
    TextPieces pieces;
};

BOOST_AUTO_TEST_CASE(what_was_joined_and_stripped_comes_apart_as_it_was_written) {
    Cell cell;
    cell.add(Source::standard_output, " \n");
    cell.add(Source::standard_error, "\t warn");
    cell.add(Source::standard_error, "ing\n");
    cell.add(Source::standard_output, "out");
    cell.add(Source::display, "'shown'\n");
    cell.add(Source::standard_output, "more ");
    cell.add(Source::standard_error, "\n\n");
    const auto text = cell.pieces.strip(std::move(cell.joined));
    BOOST_TEST(text == "warning\nout'shown'\nmore");
    BOOST_TEST(cell.pieces.of(Source::standard_output, text) == " \noutmore ");
    BOOST_TEST(cell.pieces.of(Source::standard_error, text) == "\t warning\n\n\n");
    BOOST_TEST(cell.pieces.of(Source::display, text) == "'shown'\n");
}

BOOST_AUTO_TEST_CASE(blanks_alone_are_kept_apart_as_well) {
    Cell cell;
    cell.add(Source::standard_output, " \n");
    cell.add(Source::standard_error, "\t");
    const auto text = cell.pieces.strip(std::move(cell.joined));
    BOOST_TEST(text.empty());
    BOOST_TEST(cell.pieces.of(Source::standard_output, text) == " \n");
    BOOST_TEST(cell.pieces.of(Source::standard_error, text) == "\t");
    const TextPieces none;
    BOOST_TEST(none.of(Source::standard_output, "text of somebody else's").empty());
}

BOOST_AUTO_TEST_CASE(a_text_that_was_cut_meanwhile_is_no_danger) {
    Cell cell;
    cell.add(Source::standard_output, "one");
    cell.add(Source::standard_error, "two");
    cell.add(Source::standard_output, "three");
    cell.pieces.strip(std::move(cell.joined));
    BOOST_TEST(cell.pieces.of(Source::standard_output, "onet") == "one");
    BOOST_TEST(cell.pieces.of(Source::standard_error, "onet") == "t");
    BOOST_TEST(cell.pieces.of(Source::standard_output, "").empty());
}

BOOST_AUTO_TEST_CASE(only_a_change_of_the_source_costs) {
    TextPieces pieces;
    BOOST_TEST(pieces.cost(Source::standard_output) > 0U);
    pieces.add(Source::standard_output, 5);
    BOOST_TEST(pieces.cost(Source::standard_output) == 0U);
    BOOST_TEST(pieces.cost(Source::standard_error) > 0U);
}

BOOST_AUTO_TEST_CASE(text_of_a_peer_is_bounded_and_valid) {
    BOOST_TEST(bounded_text("äöü", 5) == "äö");
    BOOST_TEST(bounded_text("abc", 3) == "abc");
    BOOST_TEST(bounded_text("a\xff", 9) == "a\xEF\xBF\xBD");
    // A replacement is longer than what it replaces.
    BOOST_TEST(bounded_text("\xff\xff", 2).empty());
    BOOST_TEST(bounded_text("\xff\xff", 4) == "\xEF\xBF\xBD");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace cell_text_tests
