// The generator of typed Python packages, and the writer that swaps them in.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <boost/json/parse.hpp>
#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <fstream>
#include <ipybox/tools/apigen.hpp>
#include <ipybox/tools/detail/package_root.hpp>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace apigen_tests {

namespace fs = std::filesystem;
namespace json = boost::json;

namespace {

struct Folder {
    fs::path path;
    Folder() {
        std::string name = (fs::temp_directory_path() / "ipybox-apigen-XXXXXX").string();
        path = ::mkdtemp(name.data());
    }
    ~Folder() { fs::remove_all(path); }
};

json::array tools(const std::string& text) { return ipybox::parse_tools(text); }

std::string module(const std::string& schema, const std::string& more = "") {
    const auto package = ipybox::generate_package(
        "demo", tools(R"([{"name": "t", "inputSchema": )" + schema + more + "}]"));
    BOOST_REQUIRE_EQUAL(package.tools.size(), 1U);
    return package.files.at("t.py");
}
// The field lines of Params for the given properties.
std::string fields(const std::string& properties, const std::string& more = "") {
    auto text = module(R"({"type": "object", "properties": )" + properties + more + "}");
    text = text.substr(text.find("class Params"));
    text = text.substr(text.find('\n') + 1);
    return text.substr(0, text.find("\n\n"));
}
bool has(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

std::string read(const fs::path& path) {
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}
std::vector<std::string> names(const fs::path& folder) {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(folder))
        found.push_back(entry.path().filename());
    std::sort(found.begin(), found.end());
    return found;
}
ipybox::GeneratedPackage package(const std::string& description = "") {
    return ipybox::generate_package("demo",
                                    tools(R"([{"name": "a", "description": ")" + description +
                                          R"(", "inputSchema": {"type": "object"}}])"));
}

}  // namespace

BOOST_AUTO_TEST_SUITE(apigen)

BOOST_AUTO_TEST_CASE(a_whole_module) {
    const auto text = module(R"({"type": "object", "required": ["query"], "properties": {
            "query": {"type": "string", "minLength": 1, "description": "What to look for."},
            "safe": {"enum": ["off", "strict"], "default": "strict"},
            "user-id": {"type": ["string", "null"]}}})",
                             R"(, "description": "Search.", "annotations": {"openWorldHint": true},
            "outputSchema": {"type": "object", "properties": {"hits": {"type": "array", "items": {"type": "string"}}}})");
    BOOST_TEST(text == R"(from __future__ import annotations
from typing import Annotated, Any, Literal, overload
from pydantic import Field
from ipybox_kernel import Model, Out, asynchronous, call


class Params(Model):
    query: Annotated[str, Field(min_length=1)]
    """What to look for."""
    safe: Literal["off", "strict"] = "strict"
    user_id: Annotated[str | None, Field(alias="user-id")] = None
    __nullable__ = ("user_id",)


class Result(Out):
    hits: list[str] | None = None


@overload
def run(params: Params | dict[str, Any], /) -> Result: ...
@overload
def run(*, query: str, safe: Literal["off", "strict"] = "strict", user_id: str | None = None) -> Result: ...
def run(params: Any = None, /, **kwargs: Any) -> Result:
    """Search.

    Hints: openWorld
    """
    return call("demo", "t", Params, params, kwargs, Result)


run_async = asynchronous(run)
# --- your code below is kept ---
)");
}

BOOST_AUTO_TEST_CASE(modules_whose_run_is_a_coroutine) {
    const auto list =
        tools(R"([{"name": "t", "description": "Does it.", "inputSchema": {"type": "object"}}])");
    const auto package = ipybox::generate_package("demo", list, ipybox::ApiStyle::async);
    BOOST_TEST(package.files.at("t.py") == R"(from __future__ import annotations
from typing import Any
from ipybox_kernel import Model, call_async, coroutine


class Params(Model):
    pass


async def run(params: Params | dict[str, Any] | None = None, /) -> Any:
    """Does it."""
    return await call_async("demo", "t", Params, params, {})


run_async = coroutine(run)
# --- your code below is kept ---
)");
    // One takes the other's place as the same package does.
    const Folder folder;
    std::string kept_as;
    ipybox::write_package(folder.path, "demo", ipybox::generate_package("demo", list));
    std::ofstream(folder.path / "demo" / "t.py", std::ios::app) << "own = 1\n";
    BOOST_TEST(ipybox::write_package(folder.path, "demo", package, &kept_as));
    BOOST_TEST(kept_as.empty());
    BOOST_TEST(has(read(folder.path / "demo" / "t.py"), "kept ---\nown = 1\n"));
}

BOOST_AUTO_TEST_CASE(types_of_fields) {
    BOOST_TEST(fields(R"({"a": {"type": "number", "minimum": 0, "exclusiveMaximum": 1.5}})") ==
               "    a: Annotated[int | float, Field(ge=0, lt=1.5)] | None = None");
    BOOST_TEST(fields(R"({"a": {"type": "integer", "multipleOf": 5}})") ==
               "    a: Annotated[int, rule({\"multipleOf\": 5})] | None = None");
    BOOST_TEST(fields(R"({"a": {"type": "string", "pattern": "^\\d$"}}, "required": ["a"])") ==
               "    a: Annotated[str, pattern(r\"^\\d\\Z\")]");
    BOOST_TEST(fields(R"({"a": {"anyOf": [{"type": "null"}, {"type": "string"}]}})") ==
               "    a: str | None = None\n    __nullable__ = (\"a\",)");
    BOOST_TEST(
        fields(R"({"a": {"type": "array", "items": {"type": "integer"}, "uniqueItems": true}})") ==
        "    a: Annotated[list[int], unique] | None = None");
    BOOST_TEST(fields(R"({"a": {"enum": [1, true, 2.5]}}, "required": ["a"])") ==
               "    a: Annotated[Any, one_of(1, True, 2.5)]");
    BOOST_TEST(
        fields(
            R"({"a": {"type": "object", "additionalProperties": {"type": "integer"}}}, "required": ["a"])") ==
        "    a: dict[str, int]");
    BOOST_TEST(fields(R"({"a": {"type": "string", "format": "uri"}}, "required": ["a"])") ==
               "    a: str\n    \"\"\"(format: uri)\"\"\"");
    BOOST_TEST(fields(R"({"a": {"type": "array", "default": [1]}})") ==
               "    a: list[Any] | None = None\n    \"\"\"(default: [1])\"\"\"");
    BOOST_TEST(fields(R"({"a": {"type": "integer", "default": "x"}})") ==
               "    a: int | None = None\n    \"\"\"(default: \"x\")\"\"\"");
}

// The signature that takes keywords.
std::string keywords(const std::string& schema) {
    const auto text = module(schema);
    const auto from = text.find("def run(*, ");
    BOOST_REQUIRE_MESSAGE(from != text.npos, text);
    return text.substr(from, text.find(" -> ", from) - from);
}

BOOST_AUTO_TEST_CASE(what_may_be_passed_by_keyword) {
    const auto one = [](const std::string& type) {
        return keywords(R"({"required": ["a"], "properties": {"a": )" + type + "}}");
    };
    BOOST_TEST(one(R"({"type": "string", "minLength": 1})") == "def run(*, a: str)");
    BOOST_TEST(one(R"({"type": "array", "items": {"enum": ["a[, ", "]"]}, "maxItems": 3})") ==
               R"(def run(*, a: Sequence[Literal["a[, ", "]"]]))");
    BOOST_TEST(one(R"({"type": "object", "required": ["b"], "properties": {"b": {}}})") ==
               "def run(*, a: A | dict[str, Any])");
    BOOST_TEST(one(R"({"type": ["array", "null"], "items": {"properties": {"b": {}},
        "type": "object"}})") == "def run(*, a: Sequence[AItem | dict[str, Any]] | None)");
    BOOST_TEST(one(R"({"type": "array", "prefixItems": [{"type": "string"}, {"type": "array",
        "items": {"type": "string"}}], "minItems": 2, "maxItems": 2})") ==
               "def run(*, a: tuple[str, Sequence[str]] | list[Any])");
    BOOST_TEST(one(R"({"type": "integer", "maximum": 9007199254740991})") == "def run(*, a: int)");
    BOOST_TEST(keywords(R"({"properties": {"class": {"type": "string"}, "n": {"default": 2}}})") ==
               "def run(*, class_: str | None = None, n: Any = 2)");
    BOOST_TEST(keywords(R"({"properties": {"a": {}}, "additionalProperties": true})") ==
               "def run(*, a: Any = None, **more: Any)");
    BOOST_TEST(keywords(R"({"type": "object",
            "properties": {"kids": {"type": "array", "items": {"$ref": "#"}}}})") ==
               "def run(*, kids: Sequence[Params | dict[str, Any]] | None = None)");
    BOOST_TEST(has(module(R"({"additionalProperties": {"type": "integer"}})"),
                   "def run(**more: Any) -> Any: ...\n"));
    BOOST_TEST(has(module(R"({"type": "object"})"),
                   "\ndef run(params: Params | dict[str, Any] | None = None, /) -> Any:\n"));
}

BOOST_AUTO_TEST_CASE(equal_classes_are_one) {
    const std::string point =
        R"({"type": "object", "required": ["x"], "properties": {"x": {"type": "number"}}})";
    const auto text = module(R"({"properties": {"from": )" + point + R"(, "to": )" + point +
                             R"(, "via": {"type": "array", "items": )" + point +
                             R"(}, "area": {"type": "object", "required": ["x"],
                                "properties": {"x": {"type": "string"}}}}})");
    BOOST_TEST(has(text, "class From(Open):"));
    BOOST_TEST(has(text, "    to: From | None = None\n"));
    BOOST_TEST(has(text, "    via: list[From] | None = None\n"));
    BOOST_TEST(has(text, "class Area(Open):"));  // says something else
    BOOST_TEST(!has(text, "class To"));
    BOOST_TEST(!has(text, "class Via"));
}

BOOST_AUTO_TEST_CASE(unions_are_chosen_by_what_tells_them_apart) {
    const auto shape = [](const std::string& kind, const std::string& field) {
        return R"({"type": "object", "required": ["kind", ")" + field +
               R"("], "properties": {"kind": )" + kind + R"(, ")" + field +
               R"(": {"type": "number"}}})";
    };
    const auto of = [&](const std::string& first, const std::string& second) {
        return module(R"({"required": ["shape"], "properties": {"shape": {"anyOf": [)" +
                      shape(first, "radius") + ", " + shape(second, "width") + "]}}}");
    };
    const auto text = of(R"({"const": "circle"})", R"({"enum": ["square", "box"]})");
    BOOST_TEST(has(text, "class Circle(Open):\n    kind: Literal[\"circle\"]\n"));
    BOOST_TEST(has(text, "class Square(Open):\n    kind: Literal[\"square\", \"box\"]\n"));
    BOOST_TEST(has(text, "    shape: Annotated[Circle | Square, Field(discriminator=\"kind\")]\n"));
    BOOST_TEST(has(text, "shape: Circle | dict[str, Any] | Square | dict[str, Any])"));
    // What tells nothing apart, or is no text, chooses nothing.
    for (const auto& other : {of(R"({"const": "circle"})", R"({"enum": ["box", "circle"]})"),
                              of(R"({"const": 1})", R"({"const": 2})"),
                              of(R"({"const": "circle"})", R"({"type": "string"})")})
        BOOST_TEST(!has(other, "discriminator"), other);
}

BOOST_AUTO_TEST_CASE(numbers_behind_names_read_as_such) {
    const auto text = module(R"({"properties": {"key1": {"anyOf": [
        {"type": "object", "required": ["a"], "properties": {"a": {"type": "string"}}},
        {"type": "object", "required": ["b"], "properties": {"b": {"type": "string"}}}]}}})");
    BOOST_TEST(has(text, "class Key1_1("));
    BOOST_TEST(has(text, "class Key1_2("));
    const auto encoded = module(R"({"properties": {"a": {"$ref": "#/$defs/List%3CItem%3E"}},
        "$defs": {"List<Item>": {"type": "object", "properties": {"a": {"type": "string"}}}}})");
    BOOST_TEST(has(encoded, "class ListItem("), encoded);
}

BOOST_AUTO_TEST_CASE(what_javascript_counts_is_no_news) {
    BOOST_TEST(fields(R"({"a": {"type": "integer", "minimum": -9007199254740991,
                                "maximum": 9007199254740991}})") == "    a: SafeInt | None = None");
    BOOST_TEST(fields(R"({"a": {"type": "integer", "minimum": 0, "maximum": 9007199254740991}})") ==
               "    a: Annotated[SafeInt, Field(ge=0)] | None = None");
    BOOST_TEST(fields(R"({"a": {"type": "object", "propertyNames": {"type": "string"},
                                "additionalProperties": {"type": "integer"}}})") ==
               "    a: dict[str, int] | None = None");
}

BOOST_AUTO_TEST_CASE(long_lines_are_folded) {
    std::string list, words;
    for (int i = 0; i < 60; ++i) {
        list += (i ? ", \"value " : "\"value ") + std::to_string(i) + '"';
        words += "word" + std::to_string(i) + ' ';
    }
    const auto text = module(R"({"properties": {"a": {"enum": [)" + list +
                             R"(], "description": ")" + words + R"("}}, "description": "x"})");
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) BOOST_TEST(line.size() <= 130u, line);
    BOOST_TEST(has(text, "\"value 59\"] | None = None"));
    // The list of a package has a line for each tool, however long.
    const auto sentence = "word0" + std::string(100, 'x') + " end.";
    BOOST_TEST(has(package(sentence).files.at("__init__.py"), "\na: " + sentence + '\n'));
}

BOOST_AUTO_TEST_CASE(a_schema_without_a_type_takes_what_is_no_object) {
    BOOST_TEST(has(module(R"({"type": "object", "required": ["a"], "properties": {
                       "a": {"properties": {"b": {"type": "integer"}}}}})"),
                   "    a: A | NotObject\n    __nullable__ = (\"a\",)"));
    BOOST_TEST(fields(R"({"a": {"additionalProperties": false}}, "required": ["a"])") ==
               "    a: Annotated[dict[str, Any], Field(max_length=0)] | NotObject\n    "
               "__nullable__ = (\"a\",)");
    // A name that is no Python name is the field's, whichever of its types a value has.
    BOOST_TEST(fields(R"({"a-b": {"additionalProperties": false}}, "required": ["a-b"])") ==
               "    a_b: Annotated[Annotated[dict[str, Any], Field(max_length=0)] | NotObject, "
               "Field(alias=\"a-b\")]\n"
               "    __nullable__ = (\"a_b\",)");
    // What else it says holds for them too.
    BOOST_TEST(has(module(R"({"type": "object", "required": ["a"], "properties": {
                       "a": {"properties": {"b": {}}, "minLength": 2}}})"),
                   "    a: A | Annotated[NotObject, rule({\"minLength\": 2})]\n"));
    // Before types that pydantic would convert to.
    BOOST_TEST(has(module(R"({"type": "object", "required": ["a"], "properties": {
                       "a": {"anyOf": [{"type": "integer"}, {"properties": {"b": {}}}]}}})"),
                   "    a: NotObject | int | A\n"));
    BOOST_TEST(has(module(R"({"type": "object", "required": ["a"], "properties": {"a": {
                       "properties": {"k": {}}, "oneOf": [{"type": "object", "required": ["k"]}, {"type": "object"}]}}})"),
                   "    a: A\n"));
}

BOOST_AUTO_TEST_CASE(properties_of_branches) {
    const auto both = [](const char* branches) {
        return module(R"({"type": "object", "properties": {"kind": {"type": "string"}}, )" +
                      std::string(branches) + '}');
    };
    // Every branch says what b is.
    BOOST_TEST(
        has(both(R"("oneOf": [{"properties": {"kind": {"const": "x"}, "b": {"type": "string"}}},
                                     {"properties": {"kind": {"const": "y"}, "b": {"type": "boolean"}}}])"),
            "    b: bool | str | None = None\n"));
    BOOST_TEST(has(both(R"("oneOf": [{"properties": {"b": {"type": "string"}}},
                                     {"properties": {"kind": {}}, "additionalProperties": false}])"),
                   "    b: str | None = None\n"));
    // One of them leaves it open.
    BOOST_TEST(
        has(both(R"("anyOf": [{"properties": {"b": {"type": "string"}}}, {"required": ["kind"]}])"),
            "    b: Any | str | None = None\n"));
    BOOST_TEST(has(
        both(R"("if": {"required": ["kind"]}, "then": {"properties": {"b": {"type": "string"}}})"),
        "    b: Any | str | None = None\n"));
    BOOST_TEST(has(both(R"("anyOf": [{"oneOf": [{"properties": {"b": {"type": "string"}}}]}])"),
                   "    b: Any | str | None = None\n"));
}

BOOST_AUTO_TEST_CASE(patterns_that_could_stall_python_are_left_to_the_host) {
    BOOST_TEST(fields(R"({"a": {"type": "string", "pattern": "^(a+)+$"}}, "required": ["a"])") ==
               "    a: str  # has a pattern that is not checked here");
    BOOST_TEST(has(fields(R"({"a": {"pattern": "^(a+)+$", "minLength": 1}})"),
                   "    a: Annotated[Any, rule({\"minLength\": 1, \"pattern\": None})]"));
    BOOST_TEST(fields(R"({"a": {"type": "string", "pattern": "^(a)\\1$"}}, "required": ["a"])") ==
               "    a: Annotated[str, pattern(r\"^(a)\\1\\Z\")]");
    std::string many = R"({"type": "object", "properties": {)";
    for (int i = 0; i < 2000; ++i)
        many += (i ? ", \"" : "\"") + std::to_string(i) + R"(": {"type": "string", "pattern": ")" +
                std::to_string(i) + "(a*b*c*d*)*" +
                std::string(1000, '?').replace(0, 999, 999, 'x') + "\"}";
    BOOST_TEST(has(module(many + "}}"), "not checked here"));
}

BOOST_AUTO_TEST_CASE(names_of_fields) {
    const auto text = fields(
        R"({"from": {"type": "string"}, "str": {"type": "string"}, "copy": {"type": "string"},
        "_id": {"type": "string"}, "a-b": {"type": "string"}, "a.b": {"type": "string"}, "a_b": {"type": "string"},
        "model_dump": {"type": "string"}, "": {"type": "string"}, "id": {"type": "string"}})");
    for (const auto* line : {"from_: Annotated[str | None, Field(alias=\"from\")]",
                             "str_: ", "copy_: ", "    id_2: ", "    a_b: str",
                             "a_b_2: ", "a_b_3: ", "p_model_dump: ", "field: ", "    id: str |"})
        BOOST_TEST(has(text, line), line << " in\n" << text);
    // Names that an alias needs, though no type does.
    BOOST_TEST(fields(R"({"Annotated": {"const": 1}, "Field": {"const": 1}, "a-b": {"const": 1}})",
                      R"(, "required": ["a-b"])") ==
               "    Annotated_: Annotated[Literal[1] | None, Field(alias=\"Annotated\")] = None\n"
               "    Field_: Annotated[Literal[1] | None, Field(alias=\"Field\")] = None\n"
               "    a_b: Annotated[Literal[1], Field(alias=\"a-b\")]");
    // Names that the type of other keys needs, though no field's does.
    BOOST_TEST(has(module(R"({"type": "object", "properties": {"str": {"default": true}},
        "additionalProperties": {"type": "integer"}})"),
                   "str_: Annotated[Any, Field(alias=\"str\")]"));
    // And what the class calls.
    BOOST_TEST(has(fields(R"({"object_rule": {"type": "string"}})"),
                   "object_rule_: Annotated[str | None, Field(alias=\"object_rule\")]"));
    // Pydantic takes no half of a surrogate pair as a name.
    BOOST_TEST(
        has(module(R"({"type": "object", "properties": {"\uD800": {}}})"),
            "class Params(Model):\n    pass\n    # a key that is not valid Unicode is left out\n"));
}

BOOST_AUTO_TEST_CASE(recursion) {
    const auto tree = module(
        R"({"type": "object", "properties": {"x": {"$ref": "#/$defs/Tree"}}, "$defs": {"Tree": {
        "type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}}}}})");
    BOOST_TEST(has(tree, "class Tree(Open):\n    kids: list[Tree] | None = None"));
    const auto value = module(
        R"({"type": "object", "properties": {"x": {"$ref": "#/$defs/Json"}}, "$defs": {"Json": {
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"$ref": "#/$defs/Json"}}]}}})");
    BOOST_TEST(has(value, "Json = TypeAliasType(\"Json\", \"str | list[Json]\")"));
    BOOST_TEST(has(module(R"({"properties": {"x": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"anyOf": [
        {"$ref": "#/$defs/A"}, {"type": "integer"}]}}})"),
                   "x: int | None"));
}

BOOST_AUTO_TEST_CASE(names_of_modules) {
    const auto text =
        R"([{"name": "get-user"}, {"name": "get_user"}, {"name": "Get User"}, {"name": "__init__"},
                          {"name": "import"}, {"name": "2fa"}, {"name": "日本"}, {"name": "get_user_2"}])";
    auto list = tools(text);
    const auto package = ipybox::generate_package("demo", list);
    std::map<std::string, std::string> modules;
    for (const auto& [tool, module] : package.tools) modules[tool] = module;
    BOOST_TEST(modules["get_user"] == "get_user");
    BOOST_TEST(modules["get_user_2"] == "get_user_2");
    BOOST_TEST(modules["Get User"] == "get_user_3");
    BOOST_TEST(modules["get-user"] == "get_user_4");
    BOOST_TEST(modules["__init__"] == "init__");
    BOOST_TEST(modules["import"] == "import_");
    BOOST_TEST(modules["2fa"] == "tool_2fa");
    BOOST_TEST(modules["日本"] == "tool");
    std::reverse(list.begin(), list.end());
    BOOST_TEST((ipybox::generate_package("demo", list).files == package.files));
}

BOOST_AUTO_TEST_CASE(what_cannot_be_generated_is_reported) {
    const auto package = ipybox::generate_package(
        "demo",
        tools(
            R"([3, {"name": ""}, {"name": "a"}, {"name": "a"}, {"name": "b", "inputSchema": 5, "outputSchema": []}])"));
    BOOST_TEST(package.tools.size() == 2U);
    BOOST_TEST(package.skipped.size() == 3U);
    BOOST_TEST(package.skipped.back().tool == "a");
    for (const auto* name : {"", "1a", "class", "a-b", "é", "x/../y"})
        BOOST_CHECK_THROW(ipybox::check_server_name(name), ipybox::Error);
    BOOST_CHECK_THROW(ipybox::check_server_name(std::string(65, 'a')), ipybox::Error);
    BOOST_CHECK_THROW(ipybox::parse_tools("{}"), ipybox::Error);
    BOOST_CHECK_THROW(ipybox::parse_tools("["), ipybox::Error);
}

BOOST_AUTO_TEST_CASE(hostile_schemas_are_bounded) {
    const auto nested = [](const std::string& open, const std::string& close) {
        std::string text;
        for (int i = 0; i < 10'000; ++i) text += open;
        text += "true";
        for (int i = 0; i < 10'000; ++i) text += close;
        return text;
    };
    for (const auto& schema :
         {nested(R"({"type": "object", "properties": {"x": )", "}}"), nested(R"({"items": )", "}"),
          nested(R"({"allOf": [)", "]}"), nested(R"({"not": )", "}"),
          R"({"properties": {"x": {"enum": [)" + nested("[", "]") + "]}}}"})
        BOOST_TEST(module(schema).size() < 50'000U);
    std::string chain = R"({"properties": {"x": {"$ref": "#/$defs/0"}}, "$defs": {)", bomb = chain;
    for (int i = 0; i < 10'000; ++i) {
        const auto next = R"({"$ref": "#/$defs/)" + std::to_string(i + 1) + "\"}";
        chain += '"' + std::to_string(i) + R"(": )" + next + ',';
        if (i < 100)
            bomb += '"' + std::to_string(i) + R"(": {"anyOf": [{"type": "array", "items": )" +
                    next + R"(}, {"type": "object", "additionalProperties": )" + next + "}]},";
    }
    BOOST_TEST(module(chain + R"("z": {}}})").size() < 10'000U);
    BOOST_TEST(module(bomb + R"("z": {}}})").size() < 400'001U);
    BOOST_TEST(module(R"({"description": ")" + std::string(1'000'000, 'x') + "\"}").size() <
               50'000U);
    // Names that are the same once they are identifiers, more than a quadratic effort could number.
    std::string same = R"({"properties": {)";
    for (int i = 0; i < 20'000; ++i)
        same += (i ? ", \"" : "\"") + std::string(static_cast<std::size_t>(i % 200 + 1), '-') +
                "a" + std::string(static_cast<std::size_t>(i / 200), '-') + "\": {}";
    BOOST_TEST(has(module(same + "}}"), "too large to be typed"));
}

BOOST_AUTO_TEST_CASE(a_tool_too_large_to_be_typed_is_reported_and_the_others_are_written) {
    std::string big = R"({"type": "object", "properties": {"list": {"enum": [0)";
    for (int i = 1; big.size() < 10'000'000; ++i) big += "," + std::to_string(i);
    big += "]}";
    for (int i = 0; i < 40'000; ++i)
        big += ", \"p" + std::to_string(i) + R"(": {"type": "string"})";
    const auto package = ipybox::generate_package(
        "demo", tools(R"([{"name": "big", "inputSchema": )" + big + R"(}}}, {"name": "small"}])"));
    BOOST_TEST(package.tools.size() == 2U);
    BOOST_TEST(package.skipped.empty());
    BOOST_REQUIRE(package.untyped.size() == 1U);
    BOOST_TEST(package.untyped[0].tool == "big");
    BOOST_TEST(package.untyped[0].reason == "the schema is too large");
    BOOST_TEST(has(package.files.at("big.py"),
                   "class Params(Open):\n    pass\n    # too large to be typed; the host checks "
                   "the arguments\n"));
}

BOOST_AUTO_TEST_CASE(writing_replaces_as_one) {
    const Folder folder;
    const auto root = folder.path / "new" / "mcptools";
    BOOST_TEST(ipybox::package_changes(root, "demo", package()) ==
                   (std::vector<std::string>{"+ __init__.py", "+ a.py"}),
               boost::test_tools::per_element());
    BOOST_TEST(ipybox::write_package(root, "demo", package()));
    BOOST_TEST(!ipybox::write_package(root, "demo", package()));
    std::ofstream(root / "demo" / "gone.py") << "x = 1\n" << ipybox::own_code_marker;
    fs::create_directories(root / "demo" / "__pycache__" / "deep" / "er");
    BOOST_TEST(ipybox::write_package(root, "demo", package("new")));
    BOOST_TEST(names(root) == std::vector<std::string>{"demo"}, boost::test_tools::per_element());
    BOOST_TEST(names(root / "demo") == (std::vector<std::string>{"__init__.py", "a.py"}),
               boost::test_tools::per_element());
    BOOST_TEST(has(read(root / "demo" / "a.py"), "new"));
}

BOOST_AUTO_TEST_CASE(own_code_is_kept) {
    const Folder folder;
    ipybox::write_package(folder.path, "demo", package());
    const std::string own = "\nimport re\n\ndef run_parsed():\n    return 1  # \xff no newline";
    std::ofstream(folder.path / "demo" / "a.py", std::ios::app) << own;
    BOOST_TEST(!ipybox::write_package(folder.path, "demo", package()));
    BOOST_TEST(ipybox::write_package(folder.path, "demo", package("changed")));
    const auto text = read(folder.path / "demo" / "a.py");
    BOOST_TEST(has(text, "changed"));
    BOOST_TEST(has(text, std::string(ipybox::own_code_marker) + own));
    // a description cannot pose as the marker
    const auto fake = module("{}", R"(, "description": "x\n# --- your code below is kept ---\ny")");
    BOOST_TEST(has(fake, "\n    # --- your code"));
}

BOOST_AUTO_TEST_CASE(files_of_others_in_a_package_stay) {
    const Folder folder;
    ipybox::write_package(folder.path, "demo", package());
    std::ofstream(folder.path / "demo" / "helper.py") << "x = 1\n";
    fs::create_directories(folder.path / "demo" / "data" / "deep");
    std::ofstream(folder.path / "demo" / "data" / "deep" / "notes") << "mine";
    BOOST_TEST(ipybox::package_changes(folder.path, "demo", package()).empty());
    BOOST_TEST(!ipybox::write_package(folder.path, "demo", package()));
    std::string kept_as = "?";
    BOOST_TEST(ipybox::write_package(folder.path, "demo", package("new"), &kept_as));
    BOOST_TEST(kept_as.empty());
    BOOST_TEST(read(folder.path / "demo" / "helper.py") == "x = 1\n");
    BOOST_TEST(read(folder.path / "demo" / "data" / "deep" / "notes") == "mine");
    BOOST_TEST(names(folder.path) == std::vector<std::string>{"demo"},
               boost::test_tools::per_element());
}

// Code can put there what it likes, and files with holes cost it nothing.
BOOST_AUTO_TEST_CASE(a_package_is_not_read_without_end) {
    const Folder folder;
    ipybox::write_package(folder.path, "demo", package());
    for (int i = 0; i < 20; ++i) {
        const auto file = folder.path / "demo" / ("planted" + std::to_string(i) + ".py");
        std::ofstream(file) << "\n# --- your code below is kept ---\n";
        fs::resize_file(file, std::size_t{4} << 20);
    }
    BOOST_CHECK_EXCEPTION(ipybox::write_package(folder.path, "demo", package("new")), ipybox::Error,
                          [](const ipybox::Error& error) {
                              return error.detail().find("demo has more than 64 MiB") !=
                                     std::string::npos;
                          });
}

BOOST_AUTO_TEST_CASE(a_package_of_the_original_is_replaced_and_kept) {
    const Folder folder;
    const auto demo = folder.path / "demo";
    const std::string init =
        "import os\nfrom mcpygen.tool_exec.client import ToolRunner\n\nCLIENT = ToolRunner(\n    "
        "server_name='demo',\n)\n";
    const auto lay = [&] {
        fs::create_directories(demo);
        std::ofstream(demo / "__init__.py") << init;
        std::ofstream(demo / "a.py") << "from . import CLIENT\n# edited by hand\n";
        std::ofstream(demo / "old.py") << "def run(params):\n    return CLIENT.run_sync('old')\n";
        std::ofstream(demo / "mine.py") << "x = 1\n";
    };
    lay();
    BOOST_TEST(ipybox::is_of_original(init));
    BOOST_TEST(!ipybox::is_of_original(package().files.at("__init__.py")));
    BOOST_TEST(ipybox::package_changes(folder.path, "demo", package()) ==
                   (std::vector<std::string>{"~ __init__.py", "~ a.py", "- old.py"}),
               boost::test_tools::per_element());
    std::string kept_as;
    BOOST_TEST(ipybox::write_package(folder.path, "demo", package(), &kept_as));
    BOOST_TEST(kept_as == ".demo.before");
    BOOST_TEST(names(demo) == (std::vector<std::string>{"__init__.py", "a.py", "mine.py"}),
               boost::test_tools::per_element());
    BOOST_TEST(has(read(folder.path / kept_as / "a.py"), "edited by hand"));
    BOOST_TEST(fs::exists(folder.path / kept_as / "old.py"));
    BOOST_TEST(!ipybox::write_package(folder.path, "demo", package(), &kept_as));

    lay();  // once more, by somebody
    BOOST_TEST(ipybox::write_package(folder.path, "demo", package(), &kept_as));
    BOOST_TEST(kept_as == ".demo.before2");
    BOOST_TEST(has(read(folder.path / ".demo.before" / "a.py"), "edited by hand"));

    lay();  // where nothing more can be kept, nothing is replaced
    for (int number = 3; number <= 100; ++number)
        fs::create_directory(folder.path / (".demo.before" + std::to_string(number)));
    BOOST_CHECK_THROW(ipybox::write_package(folder.path, "demo", package()), ipybox::Error);
    BOOST_TEST(has(read(demo / "a.py"), "edited by hand"));
    BOOST_TEST(read(demo / "mine.py") == "x = 1\n");
}

BOOST_AUTO_TEST_CASE(a_package_of_the_users_own_is_kept) {
    const Folder folder;
    fs::create_directories(folder.path / "demo" / "a.py");  // in the place of a module
    std::ofstream(folder.path / "demo" / "a.py" / "inner") << "mine";
    std::string kept_as;
    BOOST_TEST(ipybox::write_package(folder.path, "demo", package(), &kept_as));
    BOOST_TEST(read(folder.path / kept_as / "a.py" / "inner") == "mine");
}

BOOST_AUTO_TEST_CASE(own_code_of_a_tool_that_is_gone_is_announced) {
    const Folder folder;
    ipybox::write_package(folder.path, "demo", package());
    std::ofstream(folder.path / "demo" / "a.py", std::ios::app) << "x = 1\n";
    const auto empty = ipybox::generate_package("demo", tools("[]"));
    BOOST_TEST(ipybox::package_changes(folder.path, "demo", empty) ==
                   (std::vector<std::string>{"~ __init__.py", "- a.py with own code"}),
               boost::test_tools::per_element());
}

// Whoever reads while the package is replaced sees all of the old one or all of the new one.
BOOST_AUTO_TEST_CASE(readers_see_one_package) {
    const Folder folder;
    const auto one = package("one"), two = package("two");
    ipybox::write_package(folder.path, "demo", one);
    std::atomic<bool> done{false};
    std::size_t whole = 0, torn = 0;
    std::thread reader([&] {
        const ipybox::detail::PackageRoot root(folder.path, false);
        while (!done || whole == 0) {
            const auto before = ipybox::detail::PackageRoot::open_folder(root.get(), "demo");
            const auto init = ipybox::detail::PackageRoot::read(before.get(), "__init__.py");
            const auto a = ipybox::detail::PackageRoot::read(before.get(), "a.py");
            const auto after = ipybox::detail::PackageRoot::open_folder(root.get(), "demo");
            struct stat x{}, y{};
            if (!before || !after || ::fstat(before.get(), &x) != 0 ||
                ::fstat(after.get(), &y) != 0) {
                ++torn;                         // there is always a package
            } else if (x.st_ino == y.st_ino) {  // not replaced meanwhile
                const auto is = [&](const ipybox::GeneratedPackage& package) {
                    return init == package.files.at("__init__.py") && a == package.files.at("a.py");
                };
                ++(is(one) || is(two) ? whole : torn);
            }
        }
    });
    for (int i = 0; i < 200; ++i) ipybox::write_package(folder.path, "demo", i % 2 ? one : two);
    done = true;
    reader.join();
    BOOST_TEST(torn == 0U);
    BOOST_TEST(whole > 0U);
}

BOOST_AUTO_TEST_CASE(planted_links_are_not_followed) {
    const Folder folder, outside;
    std::ofstream(outside.path / "precious") << "keep";
    fs::create_directory_symlink(outside.path, folder.path / "demo");
    BOOST_TEST(ipybox::write_package(folder.path, "demo", package()));
    BOOST_TEST(!fs::is_symlink(folder.path / "demo"));
    fs::create_directory_symlink(outside.path, folder.path / "demo" / "link");
    fs::create_symlink(outside.path / "precious", folder.path / "demo" / "link.py");
    ::mkfifo((folder.path / "demo" / "pipe.py").c_str(), 0600);
    BOOST_TEST(ipybox::write_package(folder.path, "demo", package("again")));
    BOOST_TEST(read(outside.path / "precious") == "keep");
    BOOST_TEST(names(folder.path) == std::vector<std::string>{"demo"},
               boost::test_tools::per_element());
    fs::create_directory_symlink(outside.path, folder.path / "root");
    BOOST_CHECK_THROW(ipybox::write_package(folder.path / "root", "demo", package()),
                      ipybox::Error);
    BOOST_TEST(names(outside.path) == std::vector<std::string>{"precious"},
               boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_failure_changes_nothing) {
    const Folder folder;
    ipybox::write_package(folder.path, "demo", package());
    auto bad = package("new");
    bad.files["../evil.py"] = "";
    BOOST_CHECK_THROW(ipybox::write_package(folder.path, "demo", bad), ipybox::Error);
    BOOST_CHECK_THROW(ipybox::write_package("/proc/nowhere", "demo", package()), ipybox::Error);
    auto failing = package("new");
    failing.files[std::string(300, 'x') + ".py"] =
        "";  // the system refuses the name after others are written
    BOOST_CHECK_THROW(ipybox::write_package(folder.path, "demo", failing), ipybox::Error);
    BOOST_TEST(names(folder.path) == std::vector<std::string>{"demo"},
               boost::test_tools::per_element());
    BOOST_TEST(!has(read(folder.path / "demo" / "a.py"), "new"));
}

BOOST_AUTO_TEST_CASE(root_writes_for_the_owner_of_the_folder) {
    if (::geteuid() != 0) return;
    const Folder folder;
    BOOST_REQUIRE(::chown(folder.path.c_str(), 12345, 12345) == 0);
    ipybox::write_package(folder.path, "demo", package());
    for (const auto& path : {folder.path / "demo", folder.path / "demo" / "a.py"}) {
        struct stat status{};
        BOOST_REQUIRE(::stat(path.c_str(), &status) == 0);
        BOOST_TEST(status.st_uid == 12345U);
    }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace apigen_tests
