#include <bit>
#include <boost/test/unit_test.hpp>
#include <cstdint>
#include <ipybox/detail/canonical_json.hpp>
#include <ipybox/detail/json_memory.hpp>

namespace canonical_json_tests {

namespace json = boost::json;
using namespace ipybox::detail;

namespace {
json::value parsed(std::string_view text) {
    boost::system::error_code error;
    auto value = parse_exact(text, error);
    BOOST_TEST_REQUIRE(!error, text << ": " << error.message());
    return value;
}
std::string exact(std::string_view text) {
    return canonical_json(parsed(text), CanonicalNumbers::exact);
}
}  // namespace

BOOST_AUTO_TEST_SUITE(canonical_json_suite)

// RFC 8785, appendix B: the bits of a double, and its text.
BOOST_AUTO_TEST_CASE(numbers_have_the_texts_of_the_rfc) {
    const struct {
        std::uint64_t bits;
        std::string_view text;
    } cases[] = {
        {0x0000000000000000, "0"},
        {0x8000000000000000, "0"},
        {0x0000000000000001, "5e-324"},
        {0x8000000000000001, "-5e-324"},
        {0x7fefffffffffffff, "1.7976931348623157e+308"},
        {0xffefffffffffffff, "-1.7976931348623157e+308"},
        {0x4340000000000000, "9007199254740992"},
        {0xc340000000000000, "-9007199254740992"},
        {0x4430000000000000, "295147905179352830000"},
        {0x44b52d02c7e14af5, "9.999999999999997e+22"},
        {0x44b52d02c7e14af6, "1e+23"},
        {0x44b52d02c7e14af7, "1.0000000000000001e+23"},
        {0x444b1ae4d6e2ef4e, "999999999999999700000"},
        {0x444b1ae4d6e2ef4f, "999999999999999900000"},
        {0x444b1ae4d6e2ef50, "1e+21"},
        {0x3eb0c6f7a0b5ed8c, "9.999999999999997e-7"},
        {0x3eb0c6f7a0b5ed8d, "0.000001"},
        {0x41b3de4355555553, "333333333.3333332"},
        {0x41b3de4355555554, "333333333.33333325"},
        {0x41b3de4355555555, "333333333.3333333"},
        {0x41b3de4355555556, "333333333.3333334"},
        {0x41b3de4355555557, "333333333.33333343"},
        {0xbecbf647612f3696, "-0.0000033333333333333333"},
        {0x43143ff3c1cb0959, "1424953923781206.2"},
    };
    for (const auto& one : cases) {
        const auto number = std::bit_cast<double>(one.bits);
        BOOST_TEST(ecmascript_number(number) == one.text);
        BOOST_TEST(exact(one.text) == one.text);
        // Written as the log writes it, and read again, it is the same number.
        BOOST_TEST(exact(write_json(json::value(number))) == one.text);
        BOOST_TEST(canonical_json(json::value(number), CanonicalNumbers::exact) == one.text);
    }
}

// RFC 8785, 3.2.2 and 3.2.3.
BOOST_AUTO_TEST_CASE(the_examples_of_the_rfc) {
    const auto value = parsed(R"({
        "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
        "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
        "literals": [null, true, false]})");
    const std::string_view start = R"({"literals":[null,true,false],"numbers":[)";
    const std::string_view end = R"(,1e+30,4.5,0.002,1e-27],"string":"€$\u000f\nA'B\"\\\\\"/"})";
    BOOST_TEST(canonical_json(value, CanonicalNumbers::rounded) ==
               std::string(start) + "333333333.3333333" + std::string(end));
    // No digit gets lost where that matters.
    BOOST_TEST(canonical_json(value, CanonicalNumbers::exact) ==
               std::string(start) + "333333333.33333329" + std::string(end));
    BOOST_TEST(
        exact(R"({"\u20ac": "Euro Sign", "\r": "Carriage Return", "\ufb33": "Hebrew Letter Dalet",
            "1": "One", "\ud83d\ude00": "Grinning Face", "\u0080": "Control", "\u00f6": "o"})") ==
        "{\"\\r\":\"Carriage Return\",\"1\":\"One\",\"\xc2\x80\":\"Control\",\"ö\":\"o\","
        "\"€\":\"Euro Sign\",\"😀\":\"Grinning Face\",\"\xef\xac\xb3\":\"Hebrew Letter Dalet\"}");
}

BOOST_AUTO_TEST_CASE(names_are_sorted_by_units_of_utf_16) {
    const std::string_view order[] = {"", "1", "10", "2", "a", "a\xc2\x80", "b", "\xed\x9f\xbf",
                                      // U+10000 and U+10FFFF, then U+E000 and U+FFFD
                                      "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf", "\xee\x80\x80",
                                      "\xef\xbf\xbd"};
    for (const auto& a : order)
        for (const auto& b : order) BOOST_TEST(utf16_less(a, b) == (&a < &b));
}

BOOST_AUTO_TEST_CASE(equal_values_have_one_text_and_others_another) {
    for (const auto* same : {"100", "1e2", "100.0", "1E+2", "100.00e0"})
        BOOST_TEST(exact(same) == "100");
    BOOST_TEST(exact("-0") == "0");
    BOOST_TEST(exact("-0.0") == "0");
    BOOST_TEST(exact(R"([ {"b": 1, "a": [ ]}, {} ])") == R"([{"a":[],"b":1},{}])");
    // No double holds these: their own digits count, and none can be altered unnoticed.
    for (const auto* digits : {"123456789012345678901", "123456789012345678902", "9007199254740993",
                               "18446744073709551615", "0.30000000000000000001", "1e400", "-1e400"})
        BOOST_TEST(exact(digits) == digits);
    BOOST_TEST(exact("\"123456789012345678901\"") == "\"123456789012345678901\"");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace canonical_json_tests
