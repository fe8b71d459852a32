// Whether Python that is being typed is whole, and how far its next line is indented.
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <cell_input.hpp>
#include <string>
#include <utility>

namespace cell_input_tests {

using namespace ipybox::app;
namespace data = boost::unit_test::data;

BOOST_AUTO_TEST_SUITE(cell_input)

BOOST_DATA_TEST_CASE(whole_cells_run_at_once,
                     data::make<std::string>({
                         "",
                         "  ",
                         "x",
                         "x = 1",
                         "f(1,\n2)",
                         "[\n]",
                         "'''a\nb'''",
                         "\"\"\"\n\"\"\"",
                         "for i in x: print(i)",
                         "def f():\n    return 1\n",
                         "@d\ndef f(): pass\n",
                         "!ls (",
                         "%time x(",
                         "x # (",
                         "x # a: b",
                         "'#' + \"(\"",
                         "'it\\'s ('",
                         "r'\\\\'",
                         ":tools (",
                         "x \\\n  + 1",
                         "a = ''",
                         "a = ''''''",
                         "if x:\n    y\nelse: z",
                         "%%bash\nls (\n",
                         "await x",
                         "{'a': 1}",
                         "  x = 1",
                         "\n  x",
                         "  # x",
                         "f(\n    1)",
                         "x = [\n    1,\n    ]",
                         "'''\n  a\n  '''",
                     }),
                     text) {
    BOOST_TEST(is_whole(text));
}

BOOST_DATA_TEST_CASE(open_cells_go_on,
                     data::make<std::string>({
                         "f(",
                         "f(1,\n",
                         "[\n\n",
                         "'''",
                         "'''a\n\n",
                         "\"\"\"it's",
                         "x = {'a':",
                         "def f():",
                         "def f(): # does",
                         "def f():\n    return 1",
                         "@decorator",
                         "x \\",
                         "x = 1 + \\\n",
                         "if x:\n    y\nelse:",
                         "%%bash",
                         "%%bash\nls",
                         "f('(', '''",
                         "class A:\n    def f(self): pass",
                         "f(')'",
                     }),
                     text) {
    BOOST_TEST(!is_whole(text));
}

// Python says what is wrong.
BOOST_DATA_TEST_CASE(what_is_wrong_counts_as_whole,
                     data::make<std::string>({"'abc", "f(1))", "]", "1 +", "x = \"a\ny"}), text) {
    BOOST_TEST(is_whole(text));
}

BOOST_AUTO_TEST_CASE(no_text_is_too_strange) {
    // Every text of five characters that matter.
    constexpr std::string_view some = "'\"\\\n(:#%a ";
    for (std::size_t i = 0; i < 100000; ++i) {
        std::string text;
        for (std::size_t left = i, j = 0; j < 5; ++j, left /= some.size())
            text += some[left % some.size()];
        const auto open = open_code(text);
        BOOST_REQUIRE(open.line <= text.size());
        static_cast<void>(is_whole(text));
        BOOST_REQUIRE(is_blank(indentation_after(text)));
    }
}

BOOST_AUTO_TEST_CASE(the_next_line_is_indented_as_the_code_is) {
    const std::pair<std::string, std::size_t> cases[] = {
        {"x = 1", 0},
        {"def f():", 4},
        {"def f(): # that", 4},
        {"class A:\n    def f(self):", 8},
        {"def f():\n    x = 1", 4},
        {"def f():\n    return 1", 0},
        {"def f():\n    returned = 1", 4},
        {"for x in y:\n    if x:\n        break", 4},
        {"f(", 4},
        {"f(1,", 0},
        {"x = [\n    1,", 4},
        {"'''text", 0},
        {"pass", 0},
        {"", 0},
        {"if x:\n\ty", 1},
    };
    for (const auto& [text, blanks] : cases)
        BOOST_TEST(indentation_after(text).size() == blanks, text);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace cell_input_tests
