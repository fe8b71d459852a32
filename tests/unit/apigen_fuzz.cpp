// Random and mutated schemas, full of text that wants to be code, through the generator; what comes
// out is judged by tests/support/check_modules.py. The same seed gives the same schemas.
//
// A few rounds by default. IPYBOX_FUZZ_SECONDS=300 goes on for so long, IPYBOX_FUZZ_SEED=N starts
// elsewhere. A finding leaves its tools in a file whose name is printed.
#include <algorithm>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <ipybox/tools/apigen.hpp>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "test_support.hpp"

namespace apigen_fuzz_tests {

namespace fs = std::filesystem;
namespace json = boost::json;

namespace {

class SchemaFuzzer {
public:
    explicit SchemaFuzzer(std::uint64_t seed) : random_(seed) {}

    // Schemas to mutate, beside those made up.
    void add_sample(const json::object& tool) { samples_.push_back(tool); }

    json::object tool() {
        auto tool = samples_.empty() || one_in(2) ? invented() : samples_[below(samples_.size())];
        for (auto n = below(6); n > 0; --n) mutate(tool);
        return tool;
    }

private:
    std::size_t below(std::size_t n) { return random_() % n; }
    bool one_in(std::size_t n) { return below(n) == 0; }
    template <class List>
    auto& any_of(const List& list) {
        return list[below(std::size(list))];
    }

    // Text that ends a literal, a comment or a line, collides with names, or is a pattern.
    std::string text() {
        static const std::vector<std::string> plain{"a",
                                                    "b",
                                                    "name",
                                                    "",
                                                    "string",
                                                    "integer",
                                                    "object",
                                                    "array",
                                                    "null",
                                                    "#",
                                                    "a b",
                                                    "a-b",
                                                    "a_b",
                                                    "\"\"\"\nimport os; os.abort()\n\"\"\"",
                                                    "'''",
                                                    "\\",
                                                    "\"",
                                                    "\\\"",
                                                    "\"\"",
                                                    "\\\"\"\"",
                                                    "\n",
                                                    "\r",
                                                    "\r\n    x = 1",
                                                    "__import__('os').abort()",
                                                    "{__import__('os')}",
                                                    "# --- your code below is kept ---",
                                                    "\n# --- your code below is kept ---\n",
                                                    "\xE2\x80\xAE",
                                                    "\xE2\x80\xA8",
                                                    "\xC2\x85",
                                                    "\x0C",
                                                    std::string("\0", 1),
                                                    "\x1B[31m",
                                                    "\xED\xA0\x80",
                                                    "\xED\xB0\x80",
                                                    "\xFF",
                                                    "\xF0\x9F\x98\x80",
                                                    "\xEF\xAC\x80",
                                                    "é",
                                                    "ß",
                                                    "日本",
                                                    "\\N{DASH}",
                                                    "\\u{110000}",
                                                    "\\x",
                                                    "\\U00110000",
                                                    "from",
                                                    "None",
                                                    "True",
                                                    "class",
                                                    "match",
                                                    "type",
                                                    "str",
                                                    "int",
                                                    "list",
                                                    "dict",
                                                    "Any",
                                                    "Field",
                                                    "Literal",
                                                    "Annotated",
                                                    "Model",
                                                    "Params",
                                                    "Result",
                                                    "call",
                                                    "run",
                                                    "run_async",
                                                    "params",
                                                    "kwargs",
                                                    "self",
                                                    "cls",
                                                    "rule",
                                                    "pattern",
                                                    "unique",
                                                    "TypeAliasType",
                                                    "RootModel",
                                                    "model_dump",
                                                    "model_config",
                                                    "model_fields",
                                                    "model_rebuild",
                                                    "copy",
                                                    "json",
                                                    "schema",
                                                    "root",
                                                    "_rule",
                                                    "__nullable__",
                                                    "__pydantic_extra__",
                                                    "__class__",
                                                    "__init__",
                                                    "_x",
                                                    "field",
                                                    "p_model_dump",
                                                    "items",
                                                    "1a",
                                                    "#/$defs/a",
                                                    "#/$defs/b",
                                                    "#/properties/a",
                                                    "#a",
                                                    "http://x/y",
                                                    "#/definitions/from",
                                                    "y.json#/a",
                                                    "^(?<x>a)$",
                                                    "[",
                                                    "(a+)+$",
                                                    "^[a-z]+(-[a-z]+)*$",
                                                    "(?=a)b",
                                                    "\\p{L}+",
                                                    "(a)\\1",
                                                    "a{1,3}",
                                                    "[\\]\"]",
                                                    "x{,3}",
                                                    "(?i)a",
                                                    "email",
                                                    "date-time",
                                                    "uri",
                                                    "http://json-schema.org/draft-07/schema#"};
        if (!one_in(12)) return any_of(plain);
        std::string mixed;
        for (auto n = below(8); n > 0; --n) mixed += any_of(plain);
        return mixed;
    }

    json::value number() {
        static const std::vector<json::value> numbers{
            0,         1,         -1,        2,   3,   5,    100,  0.5,
            -0.0,      1e300,     5e-324,    1.0, 2.5, 1e15, 1e19, std::int64_t{9007199254740993},
            INT64_MAX, INT64_MIN, UINT64_MAX};
        return any_of(numbers);
    }

    json::value value(int depth) {
        switch (below(depth > 3 ? 6 : 8)) {
            case 0:
                return nullptr;
            case 1:
                return one_in(2);
            case 2:
            case 3:
                return number();
            case 4:
            case 5:
                return json::value(text());
            case 6: {
                json::array list;
                for (auto n = below(4); n > 0; --n) list.push_back(value(depth + 1));
                return list;
            }
            default: {
                json::object object;
                for (auto n = below(4); n > 0; --n) object[text()] = value(depth + 1);
                return object;
            }
        }
    }

    // A keyword with what belongs to it, mostly.
    void keyword(json::object& target, int depth) {
        static const std::vector<const char*> all{"type",
                                                  "type",
                                                  "type",
                                                  "enum",
                                                  "const",
                                                  "default",
                                                  "title",
                                                  "description",
                                                  "format",
                                                  "pattern",
                                                  "minLength",
                                                  "maxLength",
                                                  "minimum",
                                                  "maximum",
                                                  "exclusiveMinimum",
                                                  "exclusiveMaximum",
                                                  "multipleOf",
                                                  "minItems",
                                                  "maxItems",
                                                  "uniqueItems",
                                                  "minProperties",
                                                  "maxProperties",
                                                  "minContains",
                                                  "maxContains",
                                                  "required",
                                                  "nullable",
                                                  "$ref",
                                                  "$id",
                                                  "$anchor",
                                                  "$schema",
                                                  "properties",
                                                  "properties",
                                                  "properties",
                                                  "properties",
                                                  "patternProperties",
                                                  "additionalProperties",
                                                  "propertyNames",
                                                  "items",
                                                  "items",
                                                  "prefixItems",
                                                  "additionalItems",
                                                  "contains",
                                                  "anyOf",
                                                  "oneOf",
                                                  "allOf",
                                                  "not",
                                                  "if",
                                                  "then",
                                                  "else",
                                                  "dependentRequired",
                                                  "dependentSchemas",
                                                  "dependencies",
                                                  "unevaluatedItems",
                                                  "unevaluatedProperties",
                                                  "$defs",
                                                  "definitions"};
        const std::string_view key = any_of(all);
        const auto is = [&](std::initializer_list<std::string_view> keys) {
            return std::find(keys.begin(), keys.end(), key) != keys.end();
        };
        json::value content;
        if (one_in(25)) {
            content = value(depth);
        } else if (key == "type") {
            static const std::vector<const char*> types{"string", "integer", "number", "boolean",
                                                        "array",  "object",  "object", "null"};
            if (one_in(6))
                content = json::array{any_of(types), any_of(types), any_of(types)};
            else
                content = any_of(types);
        } else if (is({"enum"})) {
            json::array list;
            for (auto n = 1 + below(4); n > 0; --n)
                list.push_back(one_in(2) ? json::value(text()) : value(3));
            content = std::move(list);
        } else if (is({"const", "default"})) {
            content = value(2);
        } else if (is({"title", "description", "format", "pattern", "$ref", "$id", "$anchor",
                       "$schema"})) {
            content = text();
        } else if (is({"uniqueItems", "nullable"})) {
            content = one_in(2);
        } else if (is({"required"})) {
            json::array list;
            for (auto n = below(4); n > 0; --n) list.push_back(json::value(text()));
            content = std::move(list);
        } else if (is({"properties", "patternProperties", "dependentSchemas", "$defs",
                       "definitions"})) {
            json::object named;
            for (auto n = below(5); n > 0; --n) named[text()] = schema(depth + 1);
            if (key[0] == '$') named["a"] = schema(depth + 1), named["b"] = schema(depth + 1);
            content = std::move(named);
        } else if (is({"dependentRequired", "dependencies"})) {
            json::object needs;
            for (auto n = below(3); n > 0; --n) needs[text()] = json::array{json::value(text())};
            content = std::move(needs);
        } else if (is({"anyOf", "oneOf", "allOf", "prefixItems"})) {
            json::array list;
            for (auto n = 1 + below(3); n > 0; --n) list.push_back(schema(depth + 1));
            content = std::move(list);
        } else if (key.substr(0, 2) == "mi" || key.substr(0, 2) == "ma" ||
                   is({"exclusiveMinimum", "exclusiveMaximum", "multipleOf"})) {
            content = number();
        } else {
            content = schema(depth + 1);
        }
        target[key] = std::move(content);
    }

    json::value schema(int depth) {
        if (depth > 5 || one_in(12))
            return one_in(2) ? json::value(one_in(2)) : json::value(json::object{});
        json::object made;
        for (auto n = 1 + below(5); n > 0; --n) keyword(made, depth);
        return made;
    }

    json::object invented() {
        json::object tool{{"name", text()}, {"description", text()}, {"inputSchema", schema(0)}};
        if (one_in(2))
            tool["inputSchema"].emplace_object() = {
                {"type", "object"}, {"properties", {{text(), schema(1)}, {text(), schema(1)}}}};
        if (one_in(2)) tool["outputSchema"] = schema(0);
        if (one_in(3)) tool["annotations"] = {{"readOnlyHint", value(3)}, {"title", text()}};
        return tool;
    }

    // Some part of `root`, reached by a random walk.
    json::value& part_of(json::value& root) {
        auto* place = &root;
        for (auto n = below(12); n > 0; --n) {
            if (auto* object = place->if_object(); object && !object->empty())
                place = &(object->begin() + static_cast<std::ptrdiff_t>(below(object->size())))
                             ->value();
            else if (auto* array = place->if_array(); array && !array->empty())
                place = &(*array)[below(array->size())];
            else
                break;
        }
        return *place;
    }

    void mutate(json::object& tool) {
        json::value root(tool);
        auto& place = part_of(root);
        switch (below(10)) {
            case 0:
                place = value(1);
                break;
            case 1:
                place = schema(2);
                break;
            case 2:
                place = json::value(text());
                break;
            case 3:  // a part of another tool
                if (!samples_.empty()) {
                    json::value other(samples_[below(samples_.size())]);
                    place = json::value(part_of(other));
                }
                break;
            case 4:
                if (auto* object = place.if_object(); object && !object->empty())
                    object->erase(object->begin() +
                                  static_cast<std::ptrdiff_t>(below(object->size())));
                break;
            case 5:  // a key renamed
                if (auto* object = place.if_object(); object && !object->empty()) {
                    auto* entry =
                        object->begin() + static_cast<std::ptrdiff_t>(below(object->size()));
                    auto kept = entry->value();
                    object->erase(entry);
                    (*object)[text()] = std::move(kept);
                }
                break;
            case 6:
                if (auto* object = place.if_object()) keyword(*object, 2);
                break;
            case 7: {
                static const std::vector<const char*> around{"anyOf", "oneOf", "allOf",
                                                             "prefixItems", "enum"};
                auto inside = json::value(place);
                place = json::object{{any_of(around), json::array{inside, schema(3), inside}}};
                break;
            }
            case 8:  // nested deeply
                for (auto n = below(one_in(10) ? 400 : 40); n > 0; --n) {
                    static const std::vector<const char*> around{
                        "items", "not", "additionalProperties", "properties"};
                    auto inside = std::move(place);
                    place = json::object{{any_of(around), std::move(inside)}};
                }
                break;
            default:
                place = json::object{{"$ref", text()}};
        }
        if (root.is_object()) tool = std::move(root.get_object());
        if (!tool.if_contains("name") || !tool["name"].is_string()) tool["name"] = text();
    }

    std::mt19937_64 random_;
    std::vector<json::object> samples_;
};

// The corpora beside the checkout, if there.
void add_corpora(SchemaFuzzer& fuzzer) {
    const fs::path folder = fs::path(ipybox::test::required_environment("IPYBOX_TEST_SUPPORT")) /
                            "../../../shared/corpus";
    std::vector<fs::path> files;
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(folder, none))
        if (entry.path().extension() == ".json") files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    std::size_t count = 0;
    for (const auto& path : files) {
        std::ifstream file(path);
        const std::string text{std::istreambuf_iterator<char>(file), {}};
        for (const auto& tool : ipybox::parse_tools(text))
            if (tool.is_object() && ++count % 7 == 0) fuzzer.add_sample(tool.get_object());
    }
    if (files.empty())
        std::cerr << "apigen_fuzz: no corpora in " << folder << "; all schemas are made up\n";
}

std::uint64_t number_from(const char* variable, std::uint64_t otherwise) {
    const char* text = std::getenv(variable);
    return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(apigen_fuzz)

BOOST_AUTO_TEST_CASE(nothing_becomes_code) {
    using Clock = std::chrono::steady_clock;
    const auto end = Clock::now() + std::chrono::seconds(number_from("IPYBOX_FUZZ_SECONDS", 0));
    const auto seed = number_from("IPYBOX_FUZZ_SEED", 1);
    const auto python = ipybox::test::required_environment("IPYBOX_TEST_PYTHON");
    const fs::path support = ipybox::test::required_environment("IPYBOX_TEST_SUPPORT");
    SchemaFuzzer fuzzer(seed);
    add_corpora(fuzzer);
    std::size_t tools = 0;
    for (int round = 0; round < 4 || Clock::now() < end; ++round) {
        const ipybox::test::TemporaryDirectory folder;
        json::array list;
        for (int i = 0; i < 100; ++i) {
            auto tool = fuzzer.tool();
            // The names of a list differ; those that are the same have a test of their own.
            tool["name"] =
                std::string(tool["name"].get_string()) + (i % 10 ? std::to_string(i) : "");
            list.push_back(std::move(tool));
        }
        const auto text = json::serialize(list);
        const auto package = ipybox::generate_package("fuzz", ipybox::parse_tools(text));
        tools += package.tools.size();
        for (const auto& [name, module] : package.files) BOOST_REQUIRE(module.size() < 1'000'000U);
        std::reverse(list.begin(), list.end());
        const auto again =
            ipybox::generate_package("fuzz", ipybox::parse_tools(json::serialize(list)));
        bool good = again.files == package.files;
        ipybox::write_package(folder.path(), "fuzz", package);
        const auto check = python + " " + (support / "check_modules.py").string() + " --import " +
                           folder.path().string();
        good = std::system((check + " > " + (folder.path() / "log").string() + " 2>&1").c_str()) ==
                   0 &&
               good;
        if (!good) {
            std::ifstream log(folder.path() / "log");
            const auto kept = fs::temp_directory_path() / ("ipybox-fuzz-" + std::to_string(seed) +
                                                           '-' + std::to_string(round) + ".json");
            std::ofstream(kept) << text;
            BOOST_ERROR("seed " << seed << ", round " << round << ", tools in " << kept << '\n'
                                << std::string(std::istreambuf_iterator<char>(log), {}));
        }
    }
    BOOST_TEST(tools > 300U);
    std::cerr << "apigen_fuzz: " << tools << " modules from seed " << seed << '\n';
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace apigen_fuzz_tests
