// Python source from hostile text: whatever goes in, only a literal comes out.
#include <boost/json/parse.hpp>
#include <boost/test/unit_test.hpp>
#include <ipybox/detail/python_source.hpp>
#include <limits>
#include <string>

namespace python_source_tests {

using namespace ipybox::detail;

BOOST_AUTO_TEST_SUITE(python_source)

BOOST_AUTO_TEST_CASE(strings_keep_their_value_and_stay_strings) {
    BOOST_TEST(python_string("plain") == R"("plain")");
    BOOST_TEST(python_string("a\"b\nc") == R"("a\"b\nc")");
    BOOST_TEST(python_string(R"(^\d+$)") == R"(r"^\d+$")");
    BOOST_TEST(python_string(R"(ends with \)") == R"("ends with \\")");
    BOOST_TEST(python_string(R"(\"both)") == R"("\\\"both")");
    BOOST_TEST(python_string(std::string_view("\0\x7f", 2)) == R"("\x00\x7f")");
    BOOST_TEST(python_string("\u202e\u200b\U000e0041") == R"("\u202e\u200b\U000e0041")");
    BOOST_TEST(python_string("é😀") == "\"é😀\"");
    BOOST_TEST(python_string("\xed\xa0\x80") == R"("\ud800")");
    BOOST_TEST(python_string("\xff") == "\"\ufffd\"");
    BOOST_TEST(python_string(R"(\N{DASH})") == R"("\\N{DASH}")");
}

BOOST_AUTO_TEST_CASE(literals) {
    const auto literal = [](const char* text) { return python_literal(boost::json::parse(text)); };
    BOOST_TEST(literal(R"([1, 2.0, -0.5, true, null, "x", {"k": [1e300]}])") ==
               R"([1, 2.0, -0.5, True, None, "x", {"k": [1e+300]}])");
    BOOST_TEST(literal("18446744073709551615") == "18446744073709551615");
    BOOST_TEST(python_number(std::numeric_limits<double>::infinity()) == "1e999");
}

BOOST_AUTO_TEST_CASE(docstrings_cannot_end_early) {
    BOOST_TEST(python_docstring("plain", 4, 100) == R"("""plain""")");
    BOOST_TEST(python_docstring("\"\"\"", 4, 100) == "\"\"\"\"\\\"\\\"\"\"\"");
    BOOST_TEST(python_docstring("a\"", 4, 100) == R"("""a\"""")");
    BOOST_TEST(python_docstring("a\\", 4, 100) == R"("""a\\""")");
    BOOST_TEST(python_docstring("one\r\ntwo\u2028\n three \v", 4, 100) ==
               "\"\"\"one\n    two\n\n     three\n    \"\"\"");
    BOOST_TEST(python_docstring("a\u202eb\u200b\x01", 0, 100) == R"("""ab""")");
    BOOST_TEST(python_docstring(std::string(1'000'000, 'x'), 0, 50).size() < 80U);
}

BOOST_AUTO_TEST_CASE(a_bare_quote_is_never_followed_by_another) {
    for (const auto* hostile :
         {"\"", "\"\"", "\"\"\"", "\"\"\"\"", "x\"\"\"\nimport os\n\"\"\"", "\\\"\"\"", "\\\\\""}) {
        const auto doc = python_docstring(hostile, 0, 100);
        const auto inner = doc.substr(3, doc.size() - 6);
        bool escaped = false, quote = false;
        for (const char c : inner) {
            const bool bare = c == '"' && !escaped;
            BOOST_TEST(!(bare && quote));
            quote = bare;
            escaped = c == '\\' && !escaped;
        }
        BOOST_TEST(!escaped);
        BOOST_TEST(!quote);
    }
}

BOOST_AUTO_TEST_CASE(code_is_folded_where_python_allows_it) {
    const std::string wide(70, 'x');
    BOOST_TEST(folded_code("a: A[" + wide + ", " + wide + "]", 4) ==
               "a: A[" + wide + ",\n    " + wide + "]");
    // Not within a text, nor outside of brackets.
    for (const auto& whole :
         {"a: L[\"" + wide + ", \\\", " + wide + "\"]", "a = " + wide + ", " + wide})
        BOOST_TEST(folded_code(whole, 4) == whole);
    BOOST_TEST(folded_code("short(a, b)", 4) == "short(a, b)");
}

BOOST_AUTO_TEST_CASE(text_is_folded_at_blanks) {
    const std::string wide(70, 'x');
    BOOST_TEST(folded_text(wide + ' ' + wide + "\nend\n") == wide + '\n' + wide + "\nend\n");
    BOOST_TEST(folded_text("    " + wide + wide + " b") == "    " + wide + wide + "\nb");
    for (const auto& whole : {wide + wide, "| " + wide + " | " + wide + " |", std::string("a b")})
        BOOST_TEST(folded_text(whole) == whole);
}

BOOST_AUTO_TEST_CASE(names) {
    BOOST_TEST(python_field_name("user-id") == "user_id");
    BOOST_TEST(python_field_name("_private") == "private");
    BOOST_TEST(python_field_name("2fa") == "p_2fa");
    BOOST_TEST(python_field_name("") == "field");
    BOOST_TEST(python_field_name("日本") == "field");
    BOOST_TEST(python_class_name("user-id list", "Item") == "UserIdList");
    BOOST_TEST(python_class_name("日本", "Item") == "Item");
    BOOST_TEST(python_class_name("3d", "Item") == "M3d");
    BOOST_TEST(is_python_keyword("lambda"));
    BOOST_TEST(!is_python_keyword("match"));
    BOOST_TEST(is_python_identifier("_a1"));
    BOOST_TEST(!is_python_identifier("1a"));
    BOOST_TEST(!is_python_identifier("é"));
    BOOST_TEST(!is_python_identifier(""));
}

BOOST_AUTO_TEST_CASE(patterns_of_ecma_in_python) {
    BOOST_TEST(python_pattern("^a$") == R"(^a\Z)");
    BOOST_TEST(python_pattern(R"(https?:\/\/x)") == "https?://x");
    BOOST_TEST(python_pattern(R"((?<y>\d)\k<y>(?<=a)(?<!b))") == R"((?P<y>\d)(?P=y)(?<=a)(?<!b))");
    BOOST_TEST(python_pattern(R"(\u{1F600}\u0041\cA)") == R"(\U0001f600\u0041\x01)");
    BOOST_TEST(python_pattern("[[a--b]") == R"([\[a\--b])");
    BOOST_TEST(python_pattern("[]|[^]") == R"((?!)|[\s\S])");
    BOOST_TEST(python_pattern("a{,3}") == R"(a\{,3})");
    BOOST_TEST(python_pattern(R"(\y\-[$])") == R"(y\-[$])");
    BOOST_TEST(python_pattern(R"(\p{L}+)") == R"([A-Za-z\u00aa-\U0010ffff]+)");
    BOOST_TEST(python_pattern("\\") == "\\");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace python_source_tests
