#include <boost/test/unit_test.hpp>
#include <cstdint>
#include <ipybox/detail/utf8.hpp>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>

namespace utf8_tests {

using namespace ipybox::detail;
using namespace std::string_view_literals;

// What decoding the first code point of `bytes` gives; invalid: its first byte, alone.
struct Case {
    std::string_view bytes;
    bool valid;
    std::uint32_t value;
};
std::ostream& operator<<(std::ostream& out, const Case& one) {
    for (const char byte : one.bytes)
        out << std::hex << static_cast<int>(static_cast<unsigned char>(byte)) << ' ';
    return out;
}

constexpr Case cases[] = {
    // The first and the last of each length.
    {"\0"sv, true, 0},
    {"\x7F"sv, true, 0x7F},
    {"\xC2\x80"sv, true, 0x80},
    {"\xDF\xBF"sv, true, 0x7FF},
    {"\xE0\xA0\x80"sv, true, 0x800},
    {"\xEF\xBF\xBF"sv, true, 0xFFFF},
    {"\xF0\x90\x80\x80"sv, true, 0x10000},
    {"\xF4\x8F\xBF\xBF"sv, true, 0x10FFFF},
    // Beyond the last.
    {"\xF4\x90\x80\x80"sv, false, 0xF4},
    {"\xF5\x80\x80\x80"sv, false, 0xF5},
    {"\xF8\x88\x80\x80\x80"sv, false, 0xF8},
    {"\xFE"sv, false, 0xFE},
    {"\xFF"sv, false, 0xFF},
    // Longer than need be.
    {"\xC0\x80"sv, false, 0xC0},
    {"\xC1\xBF"sv, false, 0xC1},
    {"\xE0\x80\x80"sv, false, 0xE0},
    {"\xE0\x9F\xBF"sv, false, 0xE0},
    {"\xF0\x80\x80\x80"sv, false, 0xF0},
    {"\xF0\x8F\xBF\xBF"sv, false, 0xF0},
    // Around the surrogates.
    {"\xED\x9F\xBF"sv, true, 0xD7FF},
    {"\xED\xA0\x80"sv, false, 0xED},
    {"\xED\xBF\xBF"sv, false, 0xED},
    {"\xEE\x80\x80"sv, true, 0xE000},
    // Nothing begins so, or goes on so.
    {"\x80"sv, false, 0x80},
    {"\xBF\xBF"sv, false, 0xBF},
    {"\xC3("sv, false, 0xC3},
    {"\xC3\xC3"sv, false, 0xC3},
    {"\xE2\x82("sv, false, 0xE2},
    {"\xE2(\xAC"sv, false, 0xE2},
    {"\xF0\x9F\x98("sv, false, 0xF0},
    // Cut off.
    {"\xC3"sv, false, 0xC3},
    {"\xE2"sv, false, 0xE2},
    {"\xE2\x82"sv, false, 0xE2},
    {"\xF0"sv, false, 0xF0},
    {"\xF0\x9F"sv, false, 0xF0},
    {"\xF0\x9F\x98"sv, false, 0xF0},
};

BOOST_AUTO_TEST_SUITE(utf8)

BOOST_AUTO_TEST_CASE(one_code_point_is_decoded_or_one_byte_is_refused) {
    for (const auto& one : cases) {
        BOOST_TEST_CONTEXT(one) {
            const auto point = decode_utf8(one.bytes);
            BOOST_TEST(point.valid == one.valid);
            BOOST_TEST(point.value == one.value);
            BOOST_TEST(point.size == (one.valid ? one.bytes.size() : 1U));
            BOOST_TEST(is_utf8(one.bytes) == one.valid);
            // What comes after it changes nothing.
            const auto followed = decode_utf8(std::string(one.bytes) + "x");
            BOOST_TEST(followed.valid == one.valid);
            BOOST_TEST(followed.size == point.size);
        }
    }
}

BOOST_AUTO_TEST_CASE(every_code_point_comes_back) {
    for (std::uint32_t c = 0; c <= max_code_point; ++c) {
        std::string bytes;
        append_utf8(bytes, c);
        const auto strict = decode_utf8(bytes);
        const auto lenient = decode_utf8(bytes, Surrogates::taken);
        const bool good = strict.valid == !is_surrogate(c) && lenient.valid && lenient.value == c &&
                          lenient.size == bytes.size() && utf8_size(bytes[0]) == bytes.size() &&
                          count_code_points(bytes) == 1;
        if (!good) BOOST_ERROR("code point " << c);
    }
}

BOOST_AUTO_TEST_CASE(surrogates_are_taken_where_they_are_asked_for) {
    for (const auto& [bytes, value] : {std::pair("\xED\xA0\x80"sv, 0xD800U),
                                       {"\xED\xAF\xBF"sv, 0xDBFFU},
                                       {"\xED\xBF\xBF"sv, 0xDFFFU}}) {
        const auto point = decode_utf8(bytes, Surrogates::taken);
        BOOST_TEST(point.valid);
        BOOST_TEST(point.value == value);
        BOOST_TEST(point.size == 3U);
    }
    // Only these: what else is invalid stays so.
    for (const auto& one : cases)
        if (!one.valid && !one.bytes.starts_with('\xED'))
            BOOST_TEST(!decode_utf8(one.bytes, Surrogates::taken).valid, one);
}

BOOST_AUTO_TEST_CASE(a_text_is_valid_as_a_whole) {
    BOOST_TEST(is_utf8(""));
    BOOST_TEST(is_utf8("plain, ü, €, \U0001F600"));
    BOOST_TEST(is_utf8("\0"sv));
    BOOST_TEST(!is_utf8("good until \xFF here"));
    BOOST_TEST(!is_utf8("cut \xE2\x82"));
    BOOST_TEST(count_code_points("aü€\U0001F600") == 4U);
}

// Each place of a text, the border before it, and what a reader of so many bytes has.
BOOST_AUTO_TEST_CASE(no_code_point_is_cut) {
    const auto text = "aü€\U0001F600z"sv;  // borders at 0, 1, 3, 6, 10 and 11
    const std::size_t borders[] = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10, 11};
    BOOST_TEST_REQUIRE(text.size() == 11U);
    for (std::size_t at = 0; at <= text.size(); ++at) {
        BOOST_TEST_CONTEXT("at " << at) {
            BOOST_TEST(utf8_border(text, at) == borders[at]);
            BOOST_TEST(whole_characters(text.substr(0, at)) == text.substr(0, borders[at]));
        }
    }
    BOOST_TEST(utf8_border(text, 100) == 11U);
    BOOST_TEST(utf8_border("\x80\x80\x80"sv, 2) == 0U);
}

// Only what more bytes could complete is left out.
BOOST_AUTO_TEST_CASE(bytes_that_nothing_completes_stay) {
    for (const auto bytes : {"a\xFF"sv, "a\xC0"sv, "\x80\x80\x80\x80"sv, "\xC3\xBC\x80"sv, ""sv})
        BOOST_TEST(whole_characters(bytes) == bytes);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace utf8_tests
