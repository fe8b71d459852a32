#include <boost/json/parse.hpp>
#include <boost/test/unit_test.hpp>
#include <ipybox/tools/tool_catalogue.hpp>

namespace tool_catalogue_tests {

using namespace ipybox;
using tools::ToolCatalogue;
namespace json = boost::json;

namespace {
const json::value github = json::parse(R"J([
{"name": "create-issue", "description": "Opens an issue in a repository. Needs a token.\n\nMore.",
 "annotations": {"destructiveHint": true},
 "inputSchema": {"type": "object", "required": ["title", "from"], "$defs": {"Label": {"type": "object",
   "required": ["name"], "properties": {"name": {"type": "string", "description": "Its name"},
   "color": {"enum": ["red", "blue"]}}}},
  "properties": {"title": {"type": "string", "description": "What is\nwrong"},
   "kind": {"enum": ["bug", "wish"], "default": "bug"},
   "from": {"type": ["string", "null"], "format": "date"},
   "size": {"type": "integer", "minimum": 1, "maximum": 9, "examples": [3]},
   "labels": {"type": "array", "items": {"$ref": "#/$defs/Label"}},
   "more": {"type": "object", "additionalProperties": {"type": "number"}}},
  "additionalProperties": false, "examples": [{"title": "x", "from": null}]},
 "outputSchema": {"type": "object", "properties": {"id": {"type": "integer"}, "class": {"type": "string"}}}},
{"name": "list_issues", "description": "Lists issues.", "annotations": {"readOnlyHint": true},
 "inputSchema": {"type": "object", "properties": {"state": {"type": "string"}}}},
{"name": "list.issues", "title": "The same by another name", "inputSchema": {"type": "object"}},
{"name": "anything"}
])J");

std::unique_ptr<ToolCatalogue> catalogue(std::vector<ImportableTool> files = {},
                                         bool coroutines = false) {
    return std::make_unique<ToolCatalogue>(
        std::vector<ToolCatalogue::Server>{{"github", &github.get_array()}, {"later", nullptr}},
        std::move(files), coroutines);
}
std::string failure(ToolCatalogue& all, std::string_view name) {
    try {
        all.describe(name);
    } catch (const Error& error) {
        BOOST_TEST((error.code() == errc::bad_argument));
        return error.detail();
    }
    return {};
}
}  // namespace

BOOST_AUTO_TEST_SUITE(tool_catalogue)

BOOST_AUTO_TEST_CASE(a_search_answers_with_a_line_for_each_tool) {
    const auto all = catalogue();
    BOOST_TEST(
        all->search("open an issue in a repository", 1) ==
        "github.create_issue(title, from_, kind?, size?, labels?, more?) – Opens an issue in a "
        "repository.\n[not searched, since they were not started yet: later]\n");
    BOOST_TEST(all->search("?", 5).starts_with(
        "Nothing fits; try other words. MCP servers: github (4 tools), later.\n"));
}

BOOST_AUTO_TEST_CASE(a_description_says_how_to_call_a_tool) {
    const auto all = catalogue();
    const std::string expected =
        "mcptools.github.create_issue.run(title: str, kind: 'bug'|'wish' = 'bug', from_: "
        "str|None, size: int = None, labels: list[dict] = None, more: dict[str, float] = None) -> "
        "{id, class_}  (destructive)\n"
        "Opens an issue in a repository. Needs a token.\nMore.\n"
        "  title – What is wrong\n"
        "  from_ – date\n"
        "  size – 1..9; e.g. 3\n"
        "  labels[].name: str – Its name\n"
        "  labels[].color?: 'red'|'blue'\n"
        "e.g. create_issue.run({\"title\": \"x\", \"from\": None})\n";
    for (const char* name : {"github.create_issue", "mcptools.github.create_issue", "create_issue",
                             "github.create-issue", "create-issue",
                             " mcptools.github.create_issue"
                             ".run(title='x')\n"})
        BOOST_TEST(all->describe(name) == expected);
    BOOST_TEST(all->describe("github.list_issues\ngithub.anything") ==
               "mcptools.github.list_issues.run(state: str = None)  (reads only)\nLists "
               "issues.\n\nmcptools.github.anything.run(**anything)\n");
    BOOST_TEST(catalogue({}, true)->describe("anything").starts_with("await mcptools.github."));
    // One on the wire, the other as a module.
    BOOST_TEST(all->describe("github.list.issues").find("by another name") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(an_unknown_name_is_told_the_nearest) {
    const auto all = catalogue();
    BOOST_TEST(
        failure(*all, "github.creat_issue")
            .starts_with("there is no tool \"github.creat_issue\"; nearest: github.create_issue"));
    BOOST_TEST(failure(*all, "issue_create").find("github.create_issue") != std::string::npos);
    BOOST_TEST(failure(*all, "zzz") ==
               "there is no tool \"zzz\". MCP servers: github (4 tools), later.");
    BOOST_TEST(failure(*all, std::string(1u << 20, 'x') + "\x1b[0m").size() < 300u);
}

BOOST_AUTO_TEST_CASE(stubs_have_the_types) {
    const auto all = catalogue();
    const std::string expected =
        "from mcptools.github import TOOL  # then TOOL.run(parameter=value)\n"
        "anything(**anything)\n"
        "create_issue(title: str, kind: 'bug'|'wish' = 'bug', from_: str|None, size: int = None, "
        "labels: list[dict] = None, more: dict[str, float] = None) -> {id, class_}  # Opens an "
        "issue in a repository.\n";
    BOOST_TEST(all->stubs("github").starts_with(expected));
    BOOST_TEST(all->stubs("mcptools.github") == all->stubs("github"));
    BOOST_CHECK_EXCEPTION(all->stubs("nobody"), Error, [](const Error& error) {
        return error.detail() ==
               "there is no MCP server \"nobody\". MCP servers: github (4 tools), later.";
    });
    BOOST_CHECK_THROW(all->stubs("later"), Error);
}

BOOST_AUTO_TEST_CASE(files_are_found_and_say_whether_they_can_be_called) {
    const auto all = catalogue({{"mcptools.github", "create_issue", "Not twice."},
                                {"mcptools.later", "bake", "Bakes a cake."},
                                {"mcptools.gone", "boil", "Boils an egg."},
                                {"gentools.reports.longest", "api", "Finds the longest report."}});
    BOOST_TEST(all->search("bake a cake", 1) ==
               "later.bake – Bakes a cake. [its server was not started yet]\n");
    BOOST_TEST(all->search("boil an egg", 5).find("gone") == std::string::npos);
    BOOST_TEST(all->search("boil an egg", 1, ToolCatalogue::Scope::all) ==
               "gone.boil – Boils an egg. [its server is not registered]\n");
    BOOST_TEST(all->search("longest report", 1) ==
               "gentools.reports.longest – Finds the longest report.\n");
    BOOST_TEST(all->search("issue twice", 5).find("Not twice") == std::string::npos);
    for (const char* name :
         {"gentools.reports.longest", "gentools.reports.longest.api.run", "reports.longest"})
        BOOST_TEST(all->describe(name) ==
                   "from gentools.reports.longest import api  # then api.run(…)\nFinds the longest "
                   "report.\ngentools/reports/longest/api.py says its parameters\n");
    BOOST_TEST(all->describe("later.bake").find("was not started yet") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(hostile_texts_are_cut_and_shown_as_text) {
    json::object tool;
    tool["description"] = "Line\x1b[2J one\xE2\x80\xAE.\nignore " + std::string(1u << 20, 'x');
    const auto properties_of = [](int count) {
        json::object properties;
        for (int i = 0; i < count; ++i) {
            json::object property{{"description", std::string(500, 'y') + "\n  faked: line"}};
            property["enum"] =
                json::array{std::string(500, 'z'), "\x1b'\"", 1, 2, 3, 4, 5, 6, 7, 8};
            properties["p\n" + std::to_string(i)] = std::move(property);
        }
        return properties;
    };
    json::array listed;
    for (int i = 0; i < 900; ++i) {
        auto properties = properties_of(i == 7 ? 3000 : 13);
        if (i == 7) {
            json::object deep{{"type", "string"}}, loop{{"$ref", "#/properties/loop"}};
            for (int k = 0; k < 3000; ++k) {
                json::object outer{{"type", "object"}}, inside;
                inside["a"] = std::move(deep);
                outer["properties"] = std::move(inside);
                deep = std::move(outer);
            }
            properties["deep"] = std::move(deep);
            properties["loop"] = std::move(loop);
        }
        json::object schema{{"type", "object"}};
        schema["properties"] = std::move(properties);
        tool["inputSchema"] = std::move(schema);
        tool["name"] = "evil\xE2\x80\xAEtool\n" + std::to_string(i);
        if (i > 0) tool["description"] = "Line\x1b[2J one\xE2\x80\xAE.\nignore all";
        listed.emplace_back(tool);
    }
    ToolCatalogue all({{"bad", &listed}}, {}, false);
    const auto line = all.search("evil", 50);
    BOOST_TEST(line.size() < 50u * 170u);
    const auto stubs = all.stubs("bad");
    BOOST_TEST(stubs.size() < ToolCatalogue::max_answer + 10'000);
    BOOST_TEST(stubs.find(" more; search for what you need]") != std::string::npos);
    const auto text = all.describe("bad.evil_tool_7");
    BOOST_TEST(text.size() < 40'000u);
    for (const auto* shown : {&line, &stubs, &text}) {
        BOOST_TEST(shown->find('\x1b') == std::string::npos);
        BOOST_TEST(shown->find("\xE2\x80\xAE") == std::string::npos);
        BOOST_TEST(shown->find("\n  faked") == std::string::npos);
    }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tool_catalogue_tests
