// Numbers with all their digits: parsed, compared, written.
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <cmath>
#include <ipybox/approval/question_text.hpp>
#include <ipybox/approval/rules.hpp>
#include <ipybox/approval_policy.hpp>
#include <ipybox/detail/json_schema.hpp>
#include <ipybox/detail/json_text.hpp>
#include <limits>
#include <string>
#include <string_view>

namespace json_number_tests {

using namespace ipybox;
using namespace ipybox::approval;
using namespace ipybox::detail;

namespace {

json::value parsed(std::string_view text) {
    boost::system::error_code error;
    auto value = parse_exact(text, error);
    BOOST_TEST(!error, text.substr(0, 80) << ": " << error.message());
    return value;
}
int order(std::string_view a, std::string_view b) {
    const int found = compare_numbers(parsed(a), parsed(b));
    return found < 0 ? -1 : found > 0 ? 1 : 0;
}
bool valid(std::string_view schema, std::string_view value) {
    return !validate(parsed(schema), parsed(value));
}

constexpr const char* texts[] = {"0",
                                 "-0",
                                 "0.0",
                                 "-0.0",
                                 "1",
                                 "-1",
                                 "1.0",
                                 "1e2",
                                 "1E2",
                                 "1e+2",
                                 "0.1",
                                 "0.1000",
                                 "1.50",
                                 "1e-7",
                                 "1e-07",
                                 "1e16",
                                 "1e+16",
                                 "9007199254740993",
                                 "9007199254740993.0",
                                 "9223372036854775807",
                                 "9223372036854775808",
                                 "18446744073709551615",
                                 "18446744073709551616",
                                 "-9223372036854775808",
                                 "-9223372036854775809",
                                 "123456789012345678901",
                                 "1.2345678901234567e+20",
                                 "3.141592653589793238462643383279502884197",
                                 "1e308",
                                 "1.7976931348623157e+308",
                                 "1e309",
                                 "-1e999",
                                 "1e-999",
                                 "5e-324",
                                 "1e999999999",
                                 "100000000000000000000",
                                 "1.0E10"};

}  // namespace

BOOST_AUTO_TEST_SUITE(json_number)

BOOST_AUTO_TEST_CASE(numbers_are_written_with_the_text_they_came_with) {
    for (const std::string text : texts) {
        const std::string whole = "{\"a\":[" + text + "],\"b\":" + text + "}";
        const auto read = read_json(whole, 10, 1 << 20);
        BOOST_TEST(read.problem == "");
        BOOST_TEST(write_json(read.value) == whole);
        BOOST_TEST(write_json(parsed(text)) == text);
        BOOST_TEST(number_text(parsed(text)) == text);
        BOOST_TEST(is_number(parsed(text)));
        BOOST_TEST(!is_text(parsed(text)));
    }
    const std::string long_number(100'000, '7');
    BOOST_TEST(write_json(parsed(long_number)) == long_number);
}

BOOST_AUTO_TEST_CASE(ordinary_numbers_are_ordinary_values) {
    for (const auto* text : {"0", "-1", "9223372036854775807", "18446744073709551615", "0.1", "1.0",
                             "-0.0", "1e-05", "1e+16"})
        BOOST_TEST(parsed(text).is_number(), text);
    // Boost.JSON's own parser is off by a bit.
    for (const auto* text :
         {"0.30000000000000004", "1.7976931348623157e+308", "2.2250738585072014e-308", "5e-324"})
        BOOST_TEST(parsed(text).as_double() == std::strtod(text, nullptr), text);
}

BOOST_AUTO_TEST_CASE(doubles_are_written_as_python_writes_them) {
    const std::pair<double, const char*> doubles[] = {{0.0, "0.0"},
                                                      {-0.0, "-0.0"},
                                                      {1.0, "1.0"},
                                                      {1e5, "100000.0"},
                                                      {1e15, "1000000000000000.0"},
                                                      {1e16, "1e+16"},
                                                      {1e22, "1e+22"},
                                                      {0.0001, "0.0001"},
                                                      {0.00001, "1e-05"},
                                                      {123456.789, "123456.789"},
                                                      {-2.5, "-2.5"},
                                                      {9999999999999998.0, "9999999999999998.0"}};
    for (const auto& [number, text] : doubles) BOOST_TEST(write_json(json::value(number)) == text);
    BOOST_TEST(write_json(json::value(std::nan(""))) == "null");
    BOOST_TEST(write_json(json::value(-std::numeric_limits<double>::infinity())) == "null");
}

BOOST_AUTO_TEST_CASE(no_peer_can_write_what_is_taken_for_a_number) {
    // The mark as a string of JSON: no UTF-8 is no JSON, and repaired it is U+FFFD.
    for (const std::string& text :
         {std::string("\"\xFF\\u00001e5\""), "\"" + std::string("\xFF\0", 2) + "1e5\"",
          std::string("\"\\u00ff\\u00001e5\""), std::string("\"\\xff\\u00001e5\""),
          std::string("\"\\udcff\\u00001e5\"")}) {
        const auto read = read_json(text, 10, 1 << 20);
        BOOST_TEST(!is_number(read.value), text);
    }
    // Bytes of another source are a text unless all of them are a number.
    for (const auto* rest :
         {"", "01", "1e", "1.", "--1", "1 ", "NaN", "1,2", "0x1", "1\n", "+1", ".5", "\"", "1}"}) {
        const json::value value(std::string("\xFF\0", 2) + rest);
        BOOST_TEST(!is_number(value), rest);
        BOOST_TEST(write_json(value).starts_with("\"\xEF\xBF\xBD\\u0000"), rest);
    }
    // Written by somebody who does not know of it, it is no JSON.
    boost::system::error_code error;
    json::parse(json::serialize(parsed("1e5")), error);
    BOOST_TEST(error.failed());
}

BOOST_AUTO_TEST_CASE(text_is_written_as_json_that_everybody_reads) {
    BOOST_TEST(write_json(json::value("a\"\\/\b\f\n\r\t\x01\x1f\x7fé€😀")) ==
               "\"a\\\"\\\\/\\b\\f\\n\\r\\t\\u0001\\u001f\x7fé€😀\"");
    BOOST_TEST(write_json(json::value("x\xC3")) == "\"x\xEF\xBF\xBD\"");
    BOOST_TEST(write_json(json::value("\xED\xA0\x80!")) ==
               "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD!\"");
    BOOST_TEST(write_json(json::object{
                   {"\xFF", json::array{}}, {"b", json::object{}}, {"c", nullptr}, {"d", true}}) ==
               "{\"\xEF\xBF\xBD\":[],\"b\":{},\"c\":null,\"d\":true}");
}

BOOST_AUTO_TEST_CASE(depth_costs_no_stack) {
    constexpr int levels = 200'000;
    json::value deep = parsed("1e2");
    for (int i = 0; i < levels; ++i) {
        json::array around;
        around.push_back(std::move(deep));
        deep = std::move(around);
    }
    BOOST_TEST(holds_exact(deep));
    BOOST_TEST(write_json(deep).size() == 2 * levels + 3U);
    round_numbers(deep);
    BOOST_TEST(!holds_exact(deep));
    // Boost.JSON's own destructor is recursive.
    while (deep.is_array()) deep = json::value(std::move(deep.get_array().front()));
}

BOOST_AUTO_TEST_CASE(comparisons_are_exact) {
    for (const auto& [a, b] : {std::pair("1", "1.0"),
                               {"1", "1e0"},
                               {"1.0", "10e-1"},
                               {"100", "1e2"},
                               {"0", "-0"},
                               {"0.0", "-0e5"},
                               {"0.1", "0.1000"},
                               {"100000000000000000000", "1e20"},
                               {"1E400", "10e399"},
                               {"18446744073709551616", "18446744073709551616.000"}}) {
        BOOST_TEST(order(a, b) == 0, a << " " << b);
        BOOST_TEST(json_equal(parsed(a), parsed(b)), a << " " << b);
        BOOST_TEST(canonical_number(parsed(a)) == canonical_number(parsed(b)), a << " " << b);
    }
    for (const auto& [a, b] : {std::pair("123456789012345678901", "123456789012345678902"),
                               {"9007199254740992.0", "9007199254740993"},
                               {"18446744073709551615", "18446744073709551616"},
                               {"-9223372036854775809", "-9223372036854775808"},
                               {"1e308", "1e309"},
                               {"1e999999998", "1e999999999"},
                               {"-1e999999999", "-1e999999998"},
                               {"-1e999", "0"},
                               {"0", "1e-999"},
                               {"-1e-999", "0"},
                               {"1e-999", "1e-998"},
                               {"0.1", "0.10000000000000000000001"},
                               {"99", "1e2"},
                               {"-1e2", "-99"}}) {
        BOOST_TEST(order(a, b) == -1, a << " " << b);
        BOOST_TEST(order(b, a) == 1, a << " " << b);
        BOOST_TEST(!json_equal(parsed(a), parsed(b)), a << " " << b);
    }
}

BOOST_AUTO_TEST_CASE(exponents_cost_no_work) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < 2000; ++i) {
        BOOST_REQUIRE(
            valid(R"({"type": "integer", "multipleOf": 5, "minimum": 1, "maximum": 1e999999999})",
                  "1e999999998"));
        BOOST_REQUIRE(!valid(R"({"multipleOf": 7})", "1e999999999"));
        BOOST_REQUIRE(integer_text(parsed("1e999999999"), 4000).empty());
    }
    BOOST_TEST((std::chrono::steady_clock::now() - begin < std::chrono::seconds(20)));
    // More digits than the parser counts.
    const auto read = read_json(R"({"id": 7, "n": 1e99999999999})", 10, 1 << 20);
    BOOST_TEST(read.problem.find("exponent") != std::string::npos, read.problem);
    BOOST_TEST(read.id == json::value(7));
}

BOOST_AUTO_TEST_CASE(rounding) {
    BOOST_TEST(to_double(parsed("1e2")) == 100.0);
    BOOST_TEST(to_double(parsed("123456789012345678901")) == 123456789012345678901.0);
    BOOST_TEST(to_double(parsed("1e999")) == std::numeric_limits<double>::infinity());
    BOOST_TEST(to_double(parsed("-1e999")) == -std::numeric_limits<double>::infinity());
    BOOST_TEST(to_double(parsed("-1e-999")) == 0.0);
    auto value = parsed(R"({"a": [1e2, {"b": 123456789012345678901}], "c": "text", "d": 1})");
    BOOST_TEST(holds_exact(value));
    round_numbers(value);
    BOOST_TEST(!holds_exact(value));
    BOOST_TEST(write_json(value) ==
               R"({"a":[100.0,{"b":1.2345678901234568e+20}],"c":"text","d":1})");
    value = parsed(
        "[1e2, 0.50, 123456789012345678901, 0.12345678901234567890123, 1e999, "
        "100000000000000000000]");
    simplify_numbers(value);
    BOOST_TEST(
        write_json(value) ==
        "[100.0,0.5,123456789012345678901,0.12345678901234567890123,1e999,100000000000000000000]");
    BOOST_TEST(integer_text(parsed("12e1"), 100) == "120");
    BOOST_TEST(integer_text(json::value(1e20), 100) == "100000000000000000000");
    BOOST_TEST(integer_text(parsed("-5.0"), 100) == "-5");
    BOOST_TEST(integer_text(parsed("5.5"), 100).empty());
}

BOOST_AUTO_TEST_CASE(schemas) {
    BOOST_TEST(valid(R"({"type": "integer"})", "123456789012345678901"));
    BOOST_TEST(valid(R"({"type": "integer"})", "1e2"));
    BOOST_TEST(valid(R"({"type": "integer"})", "1.50e1"));
    BOOST_TEST(!valid(R"({"type": "integer"})", "1.50e0"));
    BOOST_TEST(!valid(R"({"type": "integer"})", "123456789012345678901.5"));
    BOOST_TEST(valid(R"({"type": "number"})", "0.1000"));
    for (const auto* text : {"1e2", "123456789012345678901", "0.1000"}) {
        BOOST_TEST(!valid(R"({"type": "string"})", text));
        BOOST_TEST(!valid(R"({"type": ["string", "null"]})", text));
        BOOST_TEST(valid(R"({"maxLength": 1, "pattern": "^x"})", text),
                   "keywords of strings say nothing about numbers");
    }
    BOOST_TEST(valid(R"({"maximum": 123456789012345678901})", "123456789012345678901"));
    BOOST_TEST(!valid(R"({"maximum": 123456789012345678901})", "123456789012345678902"));
    BOOST_TEST(!valid(R"({"exclusiveMinimum": 18446744073709551615})", "18446744073709551615"));
    BOOST_TEST(valid(R"({"exclusiveMinimum": 18446744073709551615})", "18446744073709551616"));
    BOOST_TEST(valid(R"({"const": 1e2})", "100"));
    BOOST_TEST(valid(R"({"enum": [123456789012345678901, 5]})", "123456789012345678901.0"));
    BOOST_TEST(!valid(R"({"enum": [123456789012345678901, 5]})", "123456789012345678900"));
    BOOST_TEST(!valid(R"({"uniqueItems": true})", "[1, 1e0]"));
    BOOST_TEST(!valid(R"({"uniqueItems": true})", "[{\"a\": 0.10}, {\"a\": 0.1}]"));
    BOOST_TEST(valid(R"({"uniqueItems": true})", "[123456789012345678901, 123456789012345678902]"));
    BOOST_TEST(valid(R"({"multipleOf": 0.1})", "0.30"));
    BOOST_TEST(valid(R"({"multipleOf": 0.1})", "0.3"));
    BOOST_TEST(valid(R"({"multipleOf": 0.1})", "0.30000000000000004"), "0.1 + 0.2 of doubles");
    BOOST_TEST(!valid(R"({"multipleOf": 0.1})", "0.35"));
    BOOST_TEST(!valid(R"({"multipleOf": 0.01})", "0.123456789012345678901"));
    BOOST_TEST(valid(R"({"multipleOf": 3})", "123456789012345678903"));
    BOOST_TEST(!valid(R"({"multipleOf": 3})", "123456789012345678901"));
    BOOST_TEST(!valid(R"({"multipleOf": 7})", "1e20"));
    const auto problem =
        validate(parsed(R"({"maximum": 123456789012345678901})"), parsed("1e30")).value_or("");
    BOOST_TEST(problem.find("123456789012345678901") != std::string::npos, problem);
}

BOOST_AUTO_TEST_CASE(questions_show_the_digits) {
    const auto arguments = parsed(
        R"({"n": 123456789012345678901, "x": [1e2, 0.1000, 1.0, 5, -0], "s": "1e2", "big": 1e999})");
    BOOST_TEST(
        call_text("bank", "pay", arguments.as_object()) ==
        "bank.pay(n=123456789012345678901, x=[1e2, 0.1000, 1.0, 5, -0], s='1e2', big=1e999)");
    // Digits that nobody can read are not asked about.
    const auto endless = parsed("{\"n\": " + std::string(100'000, '1') + "}");
    BOOST_TEST(!approval::question_text("bank", "pay", endless.as_object()).problem.empty());
}

BOOST_AUTO_TEST_CASE(rules_compare_all_digits) {
    const auto verdict = [](std::string_view conditions, std::string_view value) {
        const auto read = approval::ConditionReader::read(parsed(conditions), "test");
        const auto number = parsed(value);
        std::size_t steps = 1000;
        return approval::ConditionReader::all_fit(read, &number, steps);
    };
    BOOST_TEST(
        (verdict(R"({"maximum": 123456789012345678901})", "123456789012345678901") == Fit::yes));
    BOOST_TEST(
        (verdict(R"({"maximum": 123456789012345678901})", "123456789012345678902") == Fit::no));
    BOOST_TEST((verdict(R"({"minimum": 100})", "1e2") == approval::Fit::yes));
    BOOST_TEST((verdict(R"({"minimum": 100})", "99.99999999999999999999") == approval::Fit::no));
    BOOST_TEST(
        (verdict(R"({"equals": 123456789012345678901})", "123456789012345678901") == Fit::yes));
    BOOST_TEST(
        (verdict(R"({"equals": 123456789012345678901})", "123456789012345678900") == Fit::no));
    BOOST_TEST((verdict(R"({"one_of": [1, 2]})", "2e0") == approval::Fit::yes));
    BOOST_CHECK_THROW(verdict(R"({"glob": 1e2})", "1"), Error);
    BOOST_CHECK_THROW(verdict(R"({"minimum": "1e2"})", "1"), Error);
    BOOST_TEST((verdict(R"({"glob": "*"})", "1e2") == approval::Fit::unclear));
    BOOST_TEST((verdict(R"({"regex": ".*"})", "123456789012345678901") == approval::Fit::unclear));
}

BOOST_AUTO_TEST_CASE(a_call_has_ordinary_numbers_for_policies_and_exact_ones_to_send) {
    ToolCall call;
    call.set_arguments(parsed(R"({"amount": 1e9, "n": 123456789012345678901})").as_object());
    // What a policy of an application compares must not be a text that it passes over.
    BOOST_TEST(call.arguments.at("amount").as_double() == 1e9);
    BOOST_TEST(call.arguments.at("n").as_double() == 123456789012345678901.0);
    BOOST_TEST(write_json(call.sent_arguments()) == R"({"amount":1e9,"n":123456789012345678901})");
    call.set_arguments(parsed(R"({"amount": 1})").as_object());
    BOOST_TEST(!call.exact_arguments);
    BOOST_TEST(&call.sent_arguments() == &call.arguments);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace json_number_tests
