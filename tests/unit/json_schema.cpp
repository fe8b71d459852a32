// The schema algebra, and the validator that checks arguments and plugin configurations.
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <ipybox/detail/json_schema.hpp>
#include <sstream>
#include <string>

#include "test_support.hpp"

namespace json_schema_tests {

using namespace ipybox::detail;

namespace {

json::value parse(std::string_view text) {
    json::parse_options options;
    options.max_depth = 100'000;
    return json::parse(json::string_view(text.data(), text.size()), {}, options);
}
std::string problem(std::string_view schema, std::string_view value) {
    return validate(parse(schema), parse(value)).value_or("");
}
bool has_text(const std::string& text, std::string_view part) {
    return text.find(part) != std::string::npos;
}
bool valid(std::string_view schema, std::string_view value) {
    return problem(schema, value).empty();
}

std::string repeated(int times, const std::string& open, const std::string& leaf,
                     const std::string& close) {
    std::string text;
    for (int i = 0; i < times; ++i) text += open;
    text += leaf;
    for (int i = 0; i < times; ++i) text += close;
    return text;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(json_schema)

BOOST_AUTO_TEST_CASE(problems_name_the_field) {
    const auto* schema =
        R"({"type": "object", "required": ["url"], "additionalProperties": false, "properties": {
        "url": {"type": "string", "minLength": 1},
        "retries": {"type": "integer", "minimum": 0, "maximum": 5},
        "mode": {"enum": ["a", "b"]},
        "list": {"type": "array", "items": {"type": ["string", "null"]}, "maxItems": 2}}})";
    BOOST_TEST(problem(schema, R"({"url": "x", "retries": 5, "mode": "b", "list": ["x", null]})") ==
               "");
    BOOST_TEST(problem(schema, "[]") == "must be an object");
    BOOST_TEST(problem(schema, "{}") == "/url: is required");
    BOOST_TEST(problem(schema, R"({"url": ""})") == "/url: must have at least 1 characters");
    BOOST_TEST(problem(schema, R"({"url": "x", "retries": 6})") == "/retries: must be at most 5");
    BOOST_TEST(problem(schema, R"({"url": "x", "retries": "1"})") ==
               "/retries: must be an integer");
    BOOST_TEST(problem(schema, R"({"url": "x", "mode": "c"})") ==
               R"(/mode: must be one of ["a","b"])");
    BOOST_TEST(problem(schema, R"({"url": "x", "list": ["a", 1]})") ==
               "/list/1: must be a string or null");
    BOOST_TEST(problem(schema, R"({"url": "x", "a/b~": 1})") == "/a~1b~0: is not a known key");
    BOOST_TEST(problem(schema, R"({"url": "x", "retrys": 1})") ==
               R"(/retrys: is not a known key; did you mean "retries"?)");
}

BOOST_AUTO_TEST_CASE(numbers) {
    BOOST_TEST(valid(R"({"type": "integer"})", "5.0"));
    BOOST_TEST(!valid(R"({"type": "integer"})", "5.5"));
    BOOST_TEST(!valid(R"({"type": "number"})", "true"));
    BOOST_TEST(valid(R"({"const": 1})", "1.0"));
    BOOST_TEST(!valid(R"({"const": 1})", "true"));
    BOOST_TEST(valid(R"({"multipleOf": 0.01})", "19.99"));
    BOOST_TEST(!valid(R"({"multipleOf": 2})", "7"));
    BOOST_TEST(!valid(R"({"minimum": 3, "exclusiveMinimum": true})", "3"));
    BOOST_TEST(!valid(R"({"maximum": 9007199254740992})", "9007199254740993"));
}

BOOST_AUTO_TEST_CASE(patterns) {
    BOOST_TEST(problem(R"({"properties": {"a": {"pattern": "^\\d+$"}}})", R"({"a": "x"})") ==
               R"(/a: must match "^\\d+$")");
    BOOST_TEST(valid(R"({"pattern": "^\\d+$"})", R"("12")"));
    BOOST_TEST(valid(R"({"pattern": "^\\d+$"})", "12"));
    const auto* named =
        R"({"patternProperties": {"^x": {"type": "string"}, "y$": {"maxLength": 1}}, "properties": {"p": true},
        "additionalProperties": false})";
    BOOST_TEST(valid(named, R"({"x1": "", "y": "a", "p": 1})"));
    BOOST_TEST(problem(named, R"({"x1": 1})") == "/x1: must be a string");
    BOOST_TEST(problem(named, R"({"xy": "ab"})") == "/xy: must have at most 1 characters");
    BOOST_TEST(problem(named, R"({"z": 1})") == "/z: is not a known key");
    BOOST_TEST(!valid(R"({"patternProperties": {"^x": true}, "unevaluatedProperties": false})",
                      R"({"y": 1})"));
    // What cannot be matched within bounds refuses nothing, wherever it stands.
    for (const auto* schema :
         {R"({"pattern": "(a)\\1"})", R"({"not": {"pattern": "(a)\\1"}})",
          R"({"oneOf": [{"pattern": "(a)\\1"}, {"type": "string"}]})",
          R"({"if": {"pattern": "(a)\\1"}, "then": false})", R"({"pattern": "("})"})
        BOOST_TEST(valid(schema, R"("b")"), schema);
    BOOST_TEST(valid(R"({"patternProperties": {"(a)\\1": false}, "additionalProperties": false})",
                     R"({"b": 1})"));
    // A text that is too long for its pattern is refused, also where that would help it.
    const std::string text = '"' + std::string(2'000'000, 'a') + '"';
    for (const auto* schema :
         {R"({"pattern": "^(a*b*c*d*e*)*$"})", R"({"not": {"pattern": "(a?){30}b"}})"})
        BOOST_TEST(has_text(problem(schema, text), "too long to be checked"), schema);
    BOOST_TEST(valid(R"({"pattern": "^(a+)+$"})", text));
}

BOOST_AUTO_TEST_CASE(combinations) {
    BOOST_TEST(valid(R"({"oneOf": [{"type": "integer"}, {"type": "string"}]})", "1"));
    BOOST_TEST(!valid(R"({"oneOf": [{"type": "integer"}, {"minimum": 2}]})", "3"));
    BOOST_TEST(!valid(R"({"anyOf": [{"type": "integer"}, {"type": "string"}]})", "null"));
    BOOST_TEST(!valid(R"({"not": {"required": ["a"]}})", R"({"a": 1})"));
    const auto* conditional =
        R"({"if": {"properties": {"k": {"const": 1}}, "required": ["k"]}, "then": {"required": ["x"]},
                                  "else": {"required": ["y"]}})";
    BOOST_TEST(valid(conditional, R"({"k": 1, "x": 0})"));
    BOOST_TEST(!valid(conditional, R"({"k": 2, "x": 0})"));
    BOOST_TEST(!valid(R"({"dependentRequired": {"a": ["b"]}})", R"({"a": 1})"));
    BOOST_TEST(!valid(R"({"dependencies": {"a": {"required": ["b"]}}})", R"({"a": 1})"));
    BOOST_TEST(!valid(R"({"contains": {"type": "null"}, "maxContains": 1})", "[null, null]"));
    BOOST_TEST(!valid(R"({"uniqueItems": true})", R"([{"a": 1, "b": 2}, {"b": 2.0, "a": 1}])"));
    BOOST_TEST(
        !valid(R"({"items": [{"type": "string"}], "additionalItems": false})", R"(["a", 1])"));
    BOOST_TEST(!valid(R"({"propertyNames": {"maxLength": 2}})", R"({"abc": 1})"));
}

BOOST_AUTO_TEST_CASE(what_is_left_unevaluated) {
    const auto* schema =
        R"({"allOf": [{"properties": {"a": true}}], "unevaluatedProperties": false})";
    BOOST_TEST(valid(schema, R"({"a": 1})"));
    BOOST_TEST(!valid(schema, R"({"a": 1, "b": 1})"));
    BOOST_TEST(
        !valid(R"({"allOf": [{"properties": {"a": true}}, {"unevaluatedProperties": false}]})",
               R"({"a": 1})"));
    BOOST_TEST(
        valid(R"({"prefixItems": [true], "unevaluatedItems": {"type": "string"}})", R"([1, "a"])"));
    BOOST_TEST(
        !valid(R"({"prefixItems": [true], "unevaluatedItems": {"type": "string"}})", "[1, 2]"));
    const auto* judged_by_if =  // alone, it decides nothing, and still has looked at a
        R"({"if": {"properties": {"a": {"const": 1}}}, "unevaluatedProperties": false})";
    BOOST_TEST(valid(judged_by_if, R"({"a": 1})"));
    BOOST_TEST(!valid(judged_by_if, R"({"a": 2})"));
    BOOST_TEST(valid(R"({"if": false})", "1"));
    BOOST_TEST(valid(R"({"then": false, "else": false})", "1"));
}

BOOST_AUTO_TEST_CASE(values_as_deep_as_a_call_may_carry_are_checked) {
    const auto* tree = R"({"$ref": "#/$defs/node", "$defs": {"node": {"anyOf": [
        {"type": "string"}, {"$ref": "#/$defs/list"}]}, "list": {"type": "array", "items": {"$ref": "#/$defs/node"}}}})";
    const auto nested = [](int levels, const std::string& leaf) {
        const auto depth = static_cast<std::size_t>(levels);
        return std::string(depth, '[') + leaf + std::string(depth, ']');
    };
    BOOST_TEST(valid(tree, nested(128, "\"leaf\"")));
    BOOST_TEST(!valid(tree, nested(128, "1")));
    BOOST_TEST(problem(tree, nested(1000, "\"leaf\"")).find("nested too deeply") !=
               std::string::npos);
}

BOOST_AUTO_TEST_CASE(references_stay_in_the_document) {
    BOOST_TEST(
        !valid(R"({"$ref": "#/$defs/a%20b~1c", "$defs": {"a b/c": {"type": "null"}}})", "1"));
    BOOST_TEST(
        !valid(R"({"$ref": "#name", "$defs": {"x": {"$anchor": "name", "type": "null"}}})", "1"));
    BOOST_TEST(!valid(R"({"$id": "http://x/root.json", "$ref": "item.json",
                          "$defs": {"i": {"$id": "item.json", "type": "null"}}})",
                      "1"));
    BOOST_TEST(valid(R"({"$ref": "https://example.com/schema.json"})", "1"));
    BOOST_TEST(valid(R"({"$ref": "#/$defs/missing"})", "1"));
    BOOST_TEST(
        valid(
            R"({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}})",
            "1") == false);  // endless: refused rather than believed
    const auto* tree =
        R"({"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#"}}}})";
    BOOST_TEST(problem(tree, R"({"kids": [{"kids": [1]}]})") ==
               "/kids/0/kids/0: must be an object");
    // draft-07 ignores what stands beside a reference
    const std::string beside =
        R"("$ref": "#/definitions/a", "maxLength": 1, "definitions": {"a": {"type": "string"}}})";
    BOOST_TEST(!valid("{" + beside, "\"ab\""));
    BOOST_TEST(
        valid(R"({"$schema": "http://json-schema.org/draft-07/schema#", )" + beside, "\"ab\""));
}

BOOST_AUTO_TEST_CASE(malformed_keywords_are_ignored) {
    for (const auto* schema :
         {R"({"type": "any"})", R"({"type": 5})", R"({"required": true})", R"({"enum": []})",
          R"({"minimum": "3"})", R"({"anyOf": {}})", R"({"properties": []})", R"({"items": 3})",
          R"({"minLength": -1})", R"({"multipleOf": 0})", "3", "null"})
        BOOST_TEST(valid(schema, R"({"a": 1})"), schema);
    BOOST_TEST(!valid("false", "1"));
}

BOOST_AUTO_TEST_CASE(closed_objects_that_exclude_each_other_are_closed_together) {
    const auto* schema = R"({"allOf": [
        {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": false},
        {"type": "object", "properties": {"b": {"type": "integer"}}, "required": ["b"], "additionalProperties": false}]})";
    BOOST_TEST(valid(schema, R"({"a": 1, "b": 2})"));
    BOOST_TEST(!valid(schema, R"({"a": 1, "b": "x"})"));
    BOOST_TEST(!valid(schema, R"({"a": 1, "b": 2, "c": 3})"));
}

BOOST_AUTO_TEST_CASE(merging) {
    const auto schema = parse(
        R"({"$ref": "#/$defs/base", "properties": {"b": {"type": "integer"}}, "required": ["b"],
        "maximum": 3, "$defs": {"base": {"type": "object", "properties": {"a": {}, "b": {"minimum": 1}},
        "required": ["a"], "maximum": 5}}})");
    SchemaDocument document(schema);
    const auto& merged = document.effective(document.root());
    BOOST_TEST(merged.types == unsigned{json_object});
    BOOST_TEST(merged.names(Key::properties).size() == 2U);
    BOOST_TEST(merged.required.size() == 2U);
    BOOST_TEST(merged.value(Key::maximum)->as_int64() == 3);
    const auto& b = document.effective(*find(merged.names(Key::properties), "b"));
    BOOST_TEST(b.types == unsigned{json_integer});
    BOOST_TEST(b.has(Key::minimum));
    BOOST_TEST(&document.effective(document.root()) == &merged);
}

BOOST_AUTO_TEST_CASE(work_is_bounded) {
    const auto deep = repeated(10'000, R"({"properties": {"x": )", R"({"type": "integer"})", "}}");
    BOOST_TEST(valid(deep, "{}"));
    BOOST_TEST(valid(R"({"const": )" + repeated(10'000, "[", "1", "]") + "}", "3"));
    const auto* tree = R"({"type": "array", "items": {"$ref": "#"}})";
    BOOST_TEST(valid(tree, repeated(50, "[", "[]", "]")));
    BOOST_TEST(!valid(tree, repeated(10'000, "[", "[]", "]")));
    // 2^100 ways through the schema
    std::string bomb = R"({"$ref": "#/$defs/0", "$defs": {)";
    for (int i = 0; i < 100; ++i) {
        const auto next = R"({"$ref": "#/$defs/)" + std::to_string(i + 1) + "\"}";
        bomb += "\"" + std::to_string(i) + R"(": {"allOf": [)" + next + "," + next + "]},";
    }
    BOOST_TEST(
        !valid(bomb + R"("100": {"type": "integer"}}})", "1"));  // too much to check: refused
}

// The JSON-Schema-Test-Suite as tools: {inputSchema, valid, invalid}. Not in the repository.
BOOST_AUTO_TEST_CASE(test_suite) {
    const std::filesystem::path support = ipybox::test::required_environment("IPYBOX_TEST_SUPPORT");
    const auto corpus = support / "../../../shared/corpus/jsts.json";
    std::ifstream file(corpus);
    if (!file) {
        std::cerr << "skipped: json_schema/test_suite, which needs " << corpus << '\n';
        return;
    }
    std::stringstream text;
    text << file.rdbuf();
    std::size_t wrong = 0, all = 0;
    const auto tools = parse(text.str());
    for (const auto& tool : tools.as_array()) {
        const auto& schema = tool.at("inputSchema");
        for (const auto& [key, expected] : {std::pair{"valid", true}, {"invalid", false}})
            for (const auto& value : tool.at(key).as_array()) {
                const auto found = validate(schema, value);
                ++all;
                if (found.has_value() == expected) {
                    ++wrong;
                    BOOST_TEST_MESSAGE(json::serialize(tool.at("name"))
                                       << json::serialize(value) << found.value_or(""));
                }
            }
    }
    BOOST_TEST(all > 1000U);
    BOOST_TEST(wrong == 0U);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace json_schema_tests
