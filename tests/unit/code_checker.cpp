// What is told of a cell before it runs, without a type checker: its messages, and which of them
// become whose words.
#include <boost/json/parse.hpp>
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <ipybox/executor/detail/check_preface.hpp>
#include <ipybox/executor/detail/check_wording.hpp>
#include <ipybox/executor/detail/lsp_messages.hpp>
#include <ipybox/tools/apigen.hpp>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "test_support.hpp"

namespace code_checker_tests {

using namespace ipybox;
using namespace std::string_literals;
namespace data = boost::unit_test::data;

constexpr std::string_view tools = R"([
    {"name": "read_file",
     "inputSchema": {"type": "object", "required": ["path"], "properties": {
         "path": {"type": "string", "description": "a = \"b\", c"}, "limit": {"type": "integer"},
         "mode": {"enum": ["text = 1", "binary, or not"]}, "str": {"type": "string"}}},
     "outputSchema": {"type": "object", "required": ["content"], "properties": {
         "content": {"type": "string", "description": "One.\n\nTwo."},
         "size": {"type": "integer"}}}},
    {"name": "now", "inputSchema": {"type": "object", "additionalProperties": false}},
    {"name": "anything", "inputSchema": {"type": "object", "additionalProperties": true}}])";

std::vector<ToolStub> stubs() { return generate_stubs(boost::json::parse(tools).as_array()); }

detail::CheckedPackages packages() {
    detail::CheckedPackages all;
    for (auto& stub : stubs()) {
        auto module = stub.module;
        all["mcptools.files"].emplace(std::move(module), std::move(stub));
    }
    return all;
}

constexpr std::string_view uri = "file:///run/check/stubs";

detail::TypeFault fault(std::string code, std::string message, std::string module = {}) {
    detail::TypeFault made;
    made.code = std::move(code), made.message = std::move(message);
    if (!module.empty()) made.declared_in = std::string(uri) + "/mcptools/files/" + module + ".pyi";
    return made;
}

const detail::OwnCode nothing_own = [](const auto&, const auto&, const auto&) { return false; };

BOOST_AUTO_TEST_SUITE(code_checker)

BOOST_AUTO_TEST_CASE(a_stub_says_what_a_module_takes) {
    const auto all = stubs();
    BOOST_TEST_REQUIRE(all.size() == 3u);
    const auto& read = all[2];
    BOOST_TEST(read.module == "read_file");
    std::string parameters;
    for (const auto& one : read.parameters) parameters += one.name + (one.required ? "! " : " ");
    BOOST_TEST(parameters == "path! limit mode str_ ");
    BOOST_TEST(read.wire_names.contains("str"));
    BOOST_TEST(read.text.find("async def run_async(") != read.text.npos);
    BOOST_TEST(read.text.find("call(") == read.text.npos);
    BOOST_TEST(all[1].parameters.empty());
    BOOST_TEST(all[1].text.find("overload") == all[1].text.npos);
    BOOST_TEST(all[0].text.find("**more: Any") != all[0].text.npos);
    BOOST_TEST(all[0].parameters.empty());
    const auto fields = detail::fields_of(read.text, "Result");
    BOOST_TEST((fields == std::vector<std::string>{"content", "size"}));
}

BOOST_AUTO_TEST_CASE(messages_are_cut_out_wherever_they_are_split) {
    const auto one = detail::lsp_frame({{"id", 1}, {"text", "ä\r\n\r\n"}});
    const auto both = "Content-Type: x\r\n" + one + detail::lsp_frame({{"id", 2}});
    for (std::size_t split = 0; split <= both.size(); ++split) {
        detail::LspReader reader;
        std::vector<json::object> got;
        for (const auto& part : {both.substr(0, split), both.substr(split)}) {
            reader.add(part);
            while (auto message = reader.next()) got.push_back(std::move(*message));
        }
        BOOST_TEST_REQUIRE(got.size() == 2u);
        BOOST_TEST(detail::string_of(got[0], "text") == "ä\r\n\r\n");
    }
}

const std::string refused_streams[] = {
    std::string(5000, 'x'),
    "Content-Length: 99999999999999999999999\r\n\r\n{}",
    "Content-Length: 9999999\r\n\r\n{}",
    "Content-Length: -1\r\n\r\n{}",
    "Content-Type: x\r\n\r\n{}",
    "Content-Length: 4\r\n\r\n[{}]",
    "Content-Length: 2\r\n\r\n{x",
    "Content-Length: 100\r\n\r\n" + std::string(50, '[') + std::string(50, ']'),
    // Small as text, and huge once it is parsed.
    "Content-Length: 1000000\r\n\r\n{\"a\":[" +
        [] {
            std::string zeros;
            for (int i = 0; i < 499'996; ++i) zeros += "0,";
            return zeros + "0]}";
        }(),
};

BOOST_DATA_TEST_CASE(what_is_no_message_is_refused, data::make(refused_streams)) {
    detail::LspReader reader;
    reader.add(sample);
    BOOST_CHECK_EXCEPTION(reader.next(), Error,
                          [](const Error& error) { return error.code() == errc::io_error; });
}

BOOST_AUTO_TEST_CASE(faults_are_read_and_bounded) {
    const auto one =
        R"({"code": "c", "message": "m", "range": {"start": {"line": 2, "character": 3},
        "end": {"line": -4, "character": 1e9}}, "relatedInformation": [{"location": {"uri": "file:///a"}}]})"s;
    const auto answer =
        boost::json::parse(R"({"result": {"items": [1, )" + one + ", " + one + "]}}");
    const auto faults = detail::type_faults(answer.as_object(), 1);
    BOOST_TEST_REQUIRE(faults.size() == 1u);
    BOOST_TEST(faults[0].begin.line == 2u);
    BOOST_TEST(faults[0].begin.column == 3u);
    BOOST_TEST(faults[0].end.line == 0u);
    BOOST_TEST(faults[0].declared_in == "file:///a");
    for (const auto* bad :
         {R"({})", R"({"result": 1})", R"({"result": {"items": {}}})", R"({"error": {"code": 1}})"})
        BOOST_CHECK_THROW(detail::type_faults(boost::json::parse(bad).as_object(), 9), Error);
    BOOST_TEST(detail::first_location(
                   boost::json::parse(R"({"result": [{"uri": "u"}]})").as_object()) == "u");
    for (const auto* bad :
         {R"({})", R"({"result": null})", R"({"result": [1]})", R"({"result": []})"})
        BOOST_TEST(detail::first_location(boost::json::parse(bad).as_object()) == "");
}

BOOST_AUTO_TEST_CASE(places_beyond_the_cell_are_nowhere) {
    const detail::CellText text("ab\ncd");
    BOOST_TEST(text.between({0, 1}, {1, 1}) == "b\nc");
    BOOST_TEST(text.between({1, 1}, {0, 1}) == "");
    BOOST_TEST(text.between({7, 0}, {9, 9}) == "");
    BOOST_TEST(text.between({1, 0}, {1, std::size_t(-1)}) == "cd");
    BOOST_TEST(text.between({0, std::size_t(-1)}, {1, 0}) == "");
}

// "keywords/positional/unpacks" of a call, or ? when it is not understood.
std::string arguments(std::string_view call) {
    const auto found = detail::arguments_of(call);
    if (!found.understood) return "?";
    return detail::comma_list(found.keywords) + '/' + std::to_string(found.positional) +
           (found.unpacks ? "/*" : "");
}

BOOST_AUTO_TEST_CASE(arguments_are_told_apart) {
    BOOST_TEST(arguments("run()") == "/0");
    BOOST_TEST(arguments("run(a=1, b = f(x=2, y=[3, 4]),\n  c='x, d=1)')") == "a, b, c/0");
    BOOST_TEST(arguments("m.f(q=1)(9).run({'a': 1}, )") == "/1");
    BOOST_TEST(arguments("run(x == 1, y[a:=2], \"a=b\")") == "/3");
    BOOST_TEST(arguments("run(**d, a=1, *l)") == "a/0/*");
    BOOST_TEST(arguments("run( # (\n  a='''x)\n''', b=r'\\')") == "?");
    BOOST_TEST(arguments("run( # ('\n  a='''x)'\n''')") == "a/0");
    BOOST_TEST(arguments("run(a=1") == "?");
    BOOST_TEST(arguments("run)") == "?");
    BOOST_TEST(arguments("run(a=1).b") == "?");
    BOOST_TEST(arguments("") == "?");
    BOOST_TEST(arguments("run(lambda a=1: a, b=2)") == "b/1");
    BOOST_TEST(arguments(std::string(100'000, '(')) == "?");
}

BOOST_AUTO_TEST_CASE(slips_find_what_was_meant) {
    const std::vector<std::string> names{"path", "limit", "max_results", "id"};
    BOOST_TEST(detail::nearest_name("pth", names) == "path");
    BOOST_TEST(detail::nearest_name("maxresults", names) == "max_results");
    BOOST_TEST(detail::nearest_name("ix", names) == "id");
    BOOST_TEST(detail::nearest_name("directory", names) == "");
    BOOST_TEST(detail::nearest_name("zz", names) == "");
    BOOST_TEST(detail::nearest_name(std::string(100'000, 'x'), names) == "");
}

struct Judged {
    std::string_view expected, found;
    bool wrong;
};
std::ostream& operator<<(std::ostream& out, const Judged& one) {
    return out << one.expected << " / " << one.found;
}
const Judged judged[] = {
    {"str", "Literal[1]", true},
    {"str", "int", true},
    {"str", "float*", true},
    {"str", "Result", true},
    {"int", "str", true},
    {"int", "Literal[\"x\"]", true},
    {"Sequence[str]", "list[int]", true},
    {"str", "CoroutineType[Any, Any, Result]", true},
    {"Literal[\"a\", \"b\"]", "Literal[\"c\"]", true},
    // What may be fine when it runs.
    {"Literal[\"a\", \"b\"]", "str", false},
    {"Literal[1, 2]", "int", false},
    {"Literal[\"a\", \"b\"]", "Literal[\"a\", \"c\"]", false},
    {"list[Literal[\"a\"]]", "list[str]", false},
    {"int", "float", false},
    {"int", "float*", false},
    {"int", "None", false},
    {"str", "Path", false},
    {"str", "datetime", false},
    {"str", "Literal[Color.RED]", false},
    {"Sequence[str]", "set[str]", false},
    {"Sequence[str]", "list[int | str]", false},
    {"str", "int | None", false},
    {"str", "list[Unknown]", false},
    {"Opts | dict[str, Any]", "Result", false},
    {"tuple[float, float]", "list[int]", false},
    {"dict[str, int | float]", "dict[str, int]", false},
    {"Any", "CoroutineType[Any, Any, Result]", false},
};
BOOST_DATA_TEST_CASE(only_what_python_refuses_is_wrong, data::make(judged)) {
    BOOST_TEST(detail::certainly_wrong(sample.expected, sample.found) == sample.wrong);
}

struct Call {
    std::string_view code, message, module, text, said;
};
std::ostream& operator<<(std::ostream& out, const Call& one) { return out << one.text; }
constexpr std::string_view overload = "No overload of function `run` matches arguments\n\ninfo: x";
const Call calls[] = {
    {"no-matching-overload", overload, "read_file", "run(pth='a')",
     "run() of files.read_file has no argument \"pth\"; did you mean path?"},
    {"no-matching-overload", "No overload of function `run_async` matches arguments", "read_file",
     "read_file.run_async(x=1, y=2)",
     "run_async() of files.read_file has no argument \"x\", \"y\"; it takes path, limit, mode, "
     "str_"},
    {"no-matching-overload", overload, "read_file", "run()", "run() of files.read_file needs path"},
    {"no-matching-overload", overload, "read_file", "run(limit=1)",
     "run() of files.read_file needs path"},
    {"no-matching-overload", overload, "read_file", "run({}, path=1)",
     "run() of files.read_file takes either one Params object or dict, or arguments by name"},
    {"no-matching-overload", overload, "read_file", "run(1, 2)",
     "run() of files.read_file takes its arguments by name, or one Params object or dict"},
    {"no-matching-overload", overload, "read_file", "run(pth='a', **d)",
     "run() of files.read_file has no argument \"pth\"; did you mean path?"},
    // A name on the wire does as well, and what is unpacked may have the rest.
    {"no-matching-overload", overload, "read_file", "run(path='a', str='b')", ""},
    {"no-matching-overload", overload, "read_file", "run(**d)", ""},
    {"no-matching-overload", overload, "read_file", "run(path='a')", ""},
    {"no-matching-overload", overload, "read_file", "run(", ""},
    {"no-matching-overload", "No overload of function `f` matches", "read_file", "f(pth=1)", ""},
    {"unknown-argument", "Argument `x` does not match any known parameter of function `run`", "now",
     "x=1", "run() of files.now has no argument \"x\"; it takes none"},
    {"too-many-positional-arguments", "Too many positional arguments to function `run`", "now", "2",
     "run() of files.now takes one Params object or dict at most"},
    {"invalid-argument-type",
     "Argument to function `run` is incorrect: Expected `str`, found `Literal[1]`", "read_file",
     "path=1", "run() of files.read_file: path must be str, not 1"},
    {"invalid-argument-type",
     "Argument to function `run` is incorrect: Expected `Params | dict[str, Any]`, found "
     "`Literal[\"a\"]`",
     "read_file", "'a'",
     "run() of files.read_file takes its arguments by name, or one Params object or dict, not "
     "\"a\""},
    {"invalid-argument-type",
     "Argument to function `run` is incorrect: Expected `str`, found `CoroutineType[Any, Any, R]`",
     "read_file", "path=g()",
     "run() of files.read_file: path must be str, not a coroutine; await it"},
    {"invalid-argument-type",
     "Argument to function `run` is incorrect: Expected `str`, found `Path`", "read_file", "path=p",
     ""},
    {"invalid-argument-type",
     "Argument to function `run` is incorrect: Expected `str`, found `int`", "read_file", "**d",
     ""},
    {"invalid-argument-type", "`run`", "read_file", "path=p", ""},
};
BOOST_DATA_TEST_CASE(faults_of_calls_have_words, data::make(calls)) {
    const auto all = packages();
    const auto made =
        fault(std::string(sample.code), std::string(sample.message), std::string(sample.module));
    const auto in = detail::module_at(all, made.declared_in, uri);
    BOOST_TEST_REQUIRE(in.module);
    BOOST_TEST(detail::worded_call(made, sample.text, in) == sample.said);
}

const Call constructions[] = {
    {"missing-argument", "No argument provided for required parameter `path`", "", "P(limit=1)",
     "P() of files.read_file needs path"},
    {"missing-argument", "No arguments provided for required parameters `path`, `x`", "", "P()",
     "P() of files.read_file needs path, x"},
    {"missing-argument", "No argument provided for required parameter `path`", "", "P(**d)", ""},
    {"missing-argument", "No argument provided for required parameter `str_`", "", "P(str=1)", ""},
    {"unknown-argument", "Argument `pth` does not match any known parameter", "", "pth=1",
     "P() of files.read_file has no argument \"pth\"; did you mean path?"},
    {"unknown-argument", "Argument `str` does not match any known parameter", "", "str=1", ""},
    {"invalid-argument-type", "Argument is incorrect: Expected `str | None`, found `int`", "",
     "path=n", "P() of files.read_file: path must be str | None, not int"},
    {"invalid-argument-type", "Argument is incorrect: Expected `Opts`, found `int`", "", "path=n",
     ""},
    {"invalid-argument-type", "Argument is incorrect: Expected `str`, found `list[int]`", "",
     "path=n", ""},
    {"invalid-argument-type", "Argument is incorrect: Expected `str`, found `int`", "", "**d", ""},
};
BOOST_DATA_TEST_CASE(faults_of_classes_have_words, data::make(constructions)) {
    const auto all = packages();
    const auto in = detail::module_named(all, "mcptools.files.read_file");
    const auto made = fault(std::string(sample.code), std::string(sample.message));
    BOOST_TEST(detail::worded_construction(made, sample.text, in, "P", {"path", "limit"}) ==
               sample.said);
}

BOOST_AUTO_TEST_CASE(a_call_is_found_around_its_argument) {
    const std::string cell = "x = 1  # (\ny = m.P('(', q=[f(1), 2],\n  z=3)\n";
    const detail::CellText text(cell);
    const auto z = text.callee_at({2, 2});
    BOOST_TEST(z.first == "P");
    BOOST_TEST(z.second.line == 1u);
    BOOST_TEST(z.second.column == 6u);
    BOOST_TEST(text.callee_at({1, 18}).first == "f");
    BOOST_TEST(text.callee_at({1, 13}).first == "P");
    BOOST_TEST(text.callee_at({1, 21}).first == "");  // in a list
    BOOST_TEST(text.callee_at({0, 3}).first == "");
    BOOST_TEST(text.callee_of_call({1, 4}, {2, 6}).first == "P");
    BOOST_TEST(text.callee_of_call({1, 4}, {2, 5}).first == "");
}

BOOST_AUTO_TEST_CASE(only_stubs_are_generated_modules) {
    const auto all = packages();
    for (const auto* other : {"", "file:///run/check/stubs", "file:///run/check/stubs/.pyi",
                              "file:///etc/passwd", "file:///run/check/stubs/pydantic/__init__.pyi",
                              "file:///run/check/stubs/mcptools/files/nothing.pyi",
                              "file:///run/check/stubs2/mcptools/files/now.pyi",
                              "file:///run/check/stubs/mcptools/files/now.py"})
        BOOST_TEST(!detail::module_at(all, other, uri).module);
    BOOST_TEST(detail::module_at(all, std::string(uri) + "/mcptools/files/now.pyi", uri).shown() ==
               "files.now");
}

struct Name {
    std::string_view code, message, said;
};
std::ostream& operator<<(std::ostream& out, const Name& one) { return out << one.message; }
const Name names[] = {
    {"missing-module-member", "Module `mcptools.files` has no member `raed_file`",
     "mcptools.files has no module raed_file; did you mean read_file?"},
    {"missing-attribute", "Module `mcptools.files.read_file` has no member `rn`",
     "mcptools.files.read_file has no rn; did you mean run?"},
    {"import-not-found", "Cannot resolve imported module `mcptools.files.delete`\n\ninfo: x",
     "mcptools.files has no module delete"},
    {"import-not-found", "Cannot resolve imported module `mcptools.fils`",
     "mcptools has no package fils; did you mean files?"},
    // Others may be there.
    {"import-not-found", "Cannot resolve imported module `mcptools.github`", ""},
    {"import-not-found", "Cannot resolve imported module `numpy`", ""},
    {"import-not-found", "Cannot resolve imported module `numpy.x`", ""},
    {"missing-attribute", "Module `mcptools.files` has no member `read_file`", ""},
    {"missing-attribute", "Module `mcptools.files` has no member `__path__`", ""},
    {"missing-attribute", "Module `os` has no member `pth`", ""},
    {"missing-attribute", "Object of type `str` has no attribute `x`", ""},
    {"missing-attribute", "Module `mcptools.files` has no member `a b`", ""},
    {"missing-attribute", "", ""},
};
BOOST_DATA_TEST_CASE(names_that_are_not_there_have_words, data::make(names)) {
    const auto made = fault(std::string(sample.code), std::string(sample.message));
    BOOST_TEST(detail::worded_name(made, packages(), nothing_own) == sample.said);
    const detail::OwnCode all_own = [](const auto&, const auto&, const auto&) { return true; };
    BOOST_TEST(detail::worded_name(made, packages(), all_own) == "");
}

BOOST_AUTO_TEST_CASE(a_field_is_wrong_only_when_it_looks_like_a_slip) {
    const auto all = packages();
    const auto in = detail::module_named(all, "mcptools.files.read_file");
    BOOST_TEST_REQUIRE(in.module);
    const auto said = [&](const std::string& message) {
        return detail::worded_field(fault("missing-attribute", message), in);
    };
    BOOST_TEST(said("Object of type `Result` has no attribute `contnt`") ==
               "Result of files.read_file has no field contnt; did you mean content?");
    BOOST_TEST(said("Object of type `Result` has no attribute `etag`") == "");
    BOOST_TEST(said("Object of type `Result | None` has no attribute `contnt`") == "");
    BOOST_TEST(said("Object of type `Other` has no attribute `contnt`") == "");
}

BOOST_AUTO_TEST_CASE(an_object_is_asked_for_only_by_its_name) {
    const std::string cell = "r.contnt\nrun().contnt\n";
    const detail::CellText text(cell);
    auto made = fault("missing-attribute", "Object of type `Result` has no attribute `contnt`");
    made.end = {0, 8};
    const auto place = detail::object_of_attribute(made, text);
    BOOST_TEST_REQUIRE(place.has_value());
    BOOST_TEST(place->column == 0u);
    made.end = {1, 12};
    BOOST_TEST(!detail::object_of_attribute(made, text));
    made.end = {9, 3};
    BOOST_TEST(!detail::object_of_attribute(made, text));
}

struct Meaning {
    std::string_view name, meaning, line;
};
std::ostream& operator<<(std::ostream& out, const Meaning& one) {
    return out << one.name << ' ' << one.meaning;
}
const Meaning meanings[] = {
    {"files", "mcptools.files", "import mcptools.files as files\n"},
    {"rf", "mcptools.files.read_file", "import mcptools.files.read_file as rf\n"},
    {"run", "mcptools.files.now:run", "from mcptools.files.now import run as run\n"},
    {"r", "mcptools.files.read_file:Result()",
     "from mcptools.files.read_file import Result as _ipybox_7\nr = _ipybox_cast(_ipybox_7, 0)\n"},
    {"mcptools", "mcptools",
     "import mcptools.files.anything\nimport mcptools.files.now\nimport "
     "mcptools.files.read_file\n"},
    // What a kernel may say to get a word of its own in.
    {"x\nimport os", "mcptools.files", ""},
    {"class", "mcptools.files", ""},
    {"x", "os", ""},
    {"x", "os:system", ""},
    {"x", "mcptools.files.now:a\nimport os", ""},
    {"x", "mcptools.files.now:class", ""},
    {"x", "mcptools.files.now:", ""},
    {"x", "mcptools.files.now:()", ""},
    {"x", "mcptools.files.now:run()()", ""},
    {"x", "mcptools", ""},
    {"x", "", ""},
    {"", "mcptools.files", ""},
};
BOOST_DATA_TEST_CASE(a_kernel_names_only_what_is_known, data::make(meanings)) {
    BOOST_TEST(detail::preface_line(packages(), sample.name, sample.meaning, 7) == sample.line);
}

BOOST_AUTO_TEST_CASE(a_preface_is_bounded) {
    std::map<std::string, std::string> many;
    for (int i = 0; i < 9000; ++i) many["name" + std::to_string(i)] = "mcptools.files.now:run";
    const auto text = detail::check_preface(packages(), many, 500);
    BOOST_TEST(std::count(text.begin(), text.end(), '\n') == 501);
}

BOOST_AUTO_TEST_CASE(cells_of_other_languages_are_told) {
    BOOST_TEST(detail::is_cell_magic("%%bash\nls"));
    BOOST_TEST(detail::is_cell_magic("\n  %%time"));
    BOOST_TEST(!detail::is_cell_magic("%time x"));
    BOOST_TEST(!detail::is_cell_magic(""));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace code_checker_tests
