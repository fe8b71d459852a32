// Patterns of schemas: what they match, and that nothing hostile costs much.
#include <boost/test/unit_test.hpp>
#include <ipybox/detail/pattern.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pattern_tests {

using ipybox::detail::Pattern;

namespace {

bool matches(std::string_view pattern, std::string_view text) {
    const auto compiled = Pattern::compile(pattern);
    BOOST_REQUIRE_MESSAGE(compiled, pattern);
    std::size_t steps = 100'000;
    const auto found = compiled->search(text, steps);
    BOOST_REQUIRE(found.has_value());
    return *found;
}
Pattern::Backtracking backtracking(std::string_view pattern) {
    std::size_t steps = 1'000'000;
    return Pattern::backtracking(pattern, steps);
}
std::string repeated(std::size_t times, std::string_view part) {
    std::string text;
    while (times-- > 0) text += part;
    return text;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(pattern)

BOOST_AUTO_TEST_CASE(what_matches) {
    struct Case {
        const char* pattern;
        std::vector<std::string_view> yes, no;
    };
    const std::vector<Case> cases{
        {"", {"", "x"}, {}},
        {"b", {"abc"}, {"a", ""}},
        {"^b$", {"b"}, {"ab", "b\n", ""}},
        {"^a|b$", {"ax", "xb"}, {"xa", "bx"}},
        {"^(a|b)*c{2,3}$", {"cc", "abbaccc"}, {"c", "cccc", "abc"}},
        {"^a{2}$", {"aa"}, {"a", "aaa"}},
        {"^a{2,}?$", {"aa", "aaaa"}, {"a"}},
        {"^a{,2}$", {"a{,2}"}, {"a", ""}},
        {"^x{$", {"x{"}, {"x"}},
        {"^[a-c_-]+$", {"a-_b"}, {"d", ""}},
        {"^[^a-c]$", {"d", "é", "\xF0\x9F\x98\x80"}, {"a", "dd"}},
        {"^[\\w.-]+@[\\w-]+$", {"a.b@c-d"}, {"a b@c"}},
        {"^[]$", {}, {"", "]"}},
        {"^[^]$", {"]", "\n"}, {""}},
        {"^.$", {"x", "é"}, {"\n", "\r", "\xE2\x80\xA8"}},
        {"^\\d\\D\\w\\W\\s\\S$", {"1x_- y"}, {"1xx_ y"}},
        {"^\\s$", {" ", "\xC2\xA0", "\xEF\xBB\xBF"}, {"x"}},
        {"\\bfoo\\B", {"a foot"}, {"foo", "xfoot"}},
        {"^\\/\\-\\.\\x41\\u0042\\u{43}\\cJ\\t\\0$", {std::string_view("/-.ABC\n\t\0", 9)}, {"/"}},
        {"^\\ud83d\\ude00$", {"\xF0\x9F\x98\x80"}, {"x"}},
        {"^(?!admin$)[a-z]+$", {"adm", "admins"}, {"admin", ""}},
        {"^(?=.*\\d)(?=.*[a-z]).{4,}$", {"abc1", "1abcd"}, {"abcd", "1234", "a1"}},
        {"(?<=\\$)\\d+", {"cost $5"}, {"cost 5"}},
        {"(?<!\\$)\\b\\d+", {"cost 5"}, {"cost $5"}},
        {"^(?<year>\\d{4})-(?:0[1-9]|1[0-2])$", {"2024-12"}, {"2024-13"}},
        {"^(?P<name>a)\\Z", {"a"}, {"a\n"}},
        {"^(a?){3}(b*)*$", {"", "aabbb"}, {"aaaa"}},
        {"^(a|)+$", {"", "aaa"}, {"b"}},
    };
    for (const auto& [pattern, yes, no] : cases) {
        for (const auto& text : yes) BOOST_TEST(matches(pattern, text), pattern << " on " << text);
        for (const auto& text : no) BOOST_TEST(!matches(pattern, text), pattern << " on " << text);
    }
}

BOOST_AUTO_TEST_CASE(what_cannot_be_matched_within_bounds_is_not_compiled) {
    for (const auto* pattern :
         {"(a)\\1", "(?<x>a)\\k<x>", "\\p{L}", "[\\p{L}]", "(?i)a", "(?i:a)", "a++", "(?>a)"}) {
        BOOST_TEST(!Pattern::compile(pattern), pattern);
        BOOST_TEST((backtracking(pattern) == Pattern::Backtracking::bounded), pattern);
    }
    for (const auto* pattern : {"(", ")", "a)", "[", "[b-a]", "*", "a**", "a{3,2}", "^*", "\\",
                                "\\u{110000}", "\\x4", "(?", "(?<a", "(?#c)", "(?=a", "[\\p]"}) {
        BOOST_TEST(!Pattern::compile(pattern), pattern);
        BOOST_TEST((backtracking(pattern) == Pattern::Backtracking::not_a_pattern), pattern);
    }
    BOOST_TEST(!Pattern::compile("(a{1000}){1000}"));
    BOOST_TEST(!Pattern::compile("((((){1000000}){1000000}){1000000}){1000000}"));
    BOOST_TEST(!Pattern::compile("a{99999999999999999999}"));
    BOOST_TEST(!Pattern::compile(repeated(100'000, "(")));
    BOOST_TEST(!Pattern::compile(repeated(100'000, "a|") + "b"));
}

BOOST_AUTO_TEST_CASE(backtracking_is_foreseen) {
    for (const auto* pattern :
         {"(a+)+$", "(a*)*$", "(a|a)*$", "(a|aa)+$", "(\\w+\\s?)*$", "^(([a-z])+.)+[A-Z]",
          "(.*a){20}", "(a{1,50}){1,50}b", "(?=(x+x+)+y)", "^(\\d+|[0-9]*x)*$"})
        BOOST_TEST((backtracking(pattern) == Pattern::Backtracking::exponential), pattern);
    for (const auto* pattern :
         {"^[a-z]+(-[a-z]+)*$", "^\\d{1,3}(\\.\\d{1,3}){3}$", "^([0-9a-f]{2})+$", "^.{1,2000}$",
          "a*b*c*", "^[\\w.+-]+@[\\w-]+\\.[\\w.-]+$", "^(?:https?|ftp)://[^\\s/$.?#].[^\\s]*$",
          "^(a|b)*$"})
        BOOST_TEST((backtracking(pattern) == Pattern::Backtracking::bounded), pattern);
    std::size_t steps = 50;
    BOOST_TEST(
        (Pattern::backtracking(repeated(400, "a*"), steps) == Pattern::Backtracking::exponential));
    BOOST_TEST(steps == 0U);
}

BOOST_AUTO_TEST_CASE(work_is_bounded) {
    const auto text = repeated(5'000, "a") + "!";
    for (const auto* pattern : {"^(a+)+$", "^(a|a)*$", "^(a|aa)+$", "(x+x+)+y", "a*a*a*a*b"})
        BOOST_TEST(!matches(pattern, text), pattern);
    std::size_t steps = 1000;
    BOOST_TEST(!Pattern::compile("b")->search(text, steps));
    BOOST_TEST(steps == 0U);
    steps = 100'000;
    BOOST_TEST(!Pattern::compile("(?=a*b)a*(?=a*b)x")->search(text, steps));
    BOOST_TEST(steps == 0U);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace pattern_tests
