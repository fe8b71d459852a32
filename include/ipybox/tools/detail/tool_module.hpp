#pragma once
// The Python module of one tool, and the names of modules.
#include <algorithm>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <cstddef>
#include <initializer_list>
#include <ipybox/detail/json_members.hpp>
#include <ipybox/detail/python_source.hpp>
#include <ipybox/detail/utf8.hpp>
#include <ipybox/error.hpp>
#include <ipybox/tools/detail/model_writer.hpp>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>

namespace ipybox::detail {

// How the docstring of a package begins.
inline constexpr std::string_view package_title = "Tools of the MCP server ";

// The two forms of a call: by one object or dict, and by the keywords in `list`. def: as "def run".
inline std::string call_overloads(const std::string& def, const std::string& list,
                                  const std::string& result) {
    return "\n\n@overload\n" + def + "(params: Params | dict[str, Any], /) -> " + result +
           ": ...\n@overload\n" + folded_code(def + "(" + list + ") -> " + result + ": ...", 4) +
           '\n';
}

// What a module of one tool is made of.
struct ToolTypes {
    std::string classes;
    std::string rebuild;                              // calls that complete them
    std::string keywords;                             // of run(), as ModelWriter::Parameters
    std::set<std::string, std::less<>> words{"Any"};  // identifiers in all of it
    std::string result = "Any";
};

// A schema that is nullptr says nothing. Throws Error: bad_argument (the schemas cannot be typed).
inline ToolTypes tool_types(const json::object& tool, const json::value* input,
                            const json::value* output) {
    static const json::value anything(
        json::object{{"type", "object"}, {"additionalProperties", true}});
    ToolTypes types;
    std::set<std::string> used{"Params", "Result"};
    ModelWriter writer(input ? *input : anything, ModelWriter::Side::input, used);
    auto definitions = writer.write("Params");
    const auto& keywords = writer.parameters().list;
    const bool open = writer.parameters().open;
    types.keywords = keywords + (open ? (keywords.empty() ? "**more: Any" : ", **more: Any") : "");
    if (!input && object_of(tool, "inputSchema"))
        definitions.back().text += "    # too large to be typed; the host checks the arguments\n";
    if (output) {
        types.result = "Result";
        for (auto& definition :
             ModelWriter(*output, ModelWriter::Side::output, used).write("Result"))
            definitions.push_back(std::move(definition));
    }
    std::map<std::string_view, std::size_t> order;
    for (const auto& definition : definitions) order.try_emplace(definition.name, order.size());
    for (auto it = definitions.begin(); it != definitions.end(); ++it) {
        types.classes += "\n\n" + it->text;
        types.words.insert(it->uses.begin(), it->uses.end());
        const bool forward = std::any_of(it->uses.begin(), it->uses.end(), [&](const auto& name) {
            const auto found = order.find(name);
            return found != order.end() && found->second > order.at(it->name);
        });
        if (forward && it->text.compare(0, 6, "class ") == 0)
            types.rebuild += it->name + ".model_rebuild()\n";
    }
    if (!types.keywords.empty()) types.words.insert("overload");
    if (types.keywords.find("Sequence[") != std::string::npos) types.words.insert("Sequence");
    return types;
}

// Of the names that a module's text may use, those that it does.
inline std::string module_imports(const std::set<std::string, std::less<>>& words) {
    const auto import_from = [&](std::string_view module,
                                 std::initializer_list<const char*> names) {
        std::string list;
        for (const auto* name : names)
            if (words.count(name)) list += (list.empty() ? "" : ", ") + std::string(name);
        return list.empty() ? list : "from " + std::string(module) + " import " + list + '\n';
    };
    return "from __future__ import annotations\n" +
           import_from("typing", {"Annotated", "Any", "Literal", "Sequence", "overload"}) +
           import_from("pydantic", {"Field", "RootModel"}) +
           import_from("typing_extensions", {"TypeAliasType"}) +
           import_from("ipybox_kernel", {"Model", "NotObject", "Open", "Out", "asynchronous",
                                         "call", "call_async", "coroutine", "object_rule", "one_of",
                                         "pattern", "rule", "SafeInt", "unique"});
}

inline constexpr std::size_t max_module = 400'000;
inline constexpr const char* too_large_module = "its module would be too large";

// The module of one tool, which ends with `ending`; a schema that is nullptr says nothing. async:
// its run() is a coroutine. Throws Error: bad_argument (the schemas cannot be typed).
inline std::string tool_module(std::string_view server, const json::object& tool,
                               const json::value* input, const json::value* output, bool async,
                               std::string_view ending) {
    static constexpr std::size_t max_tool_doc = 20'000;
    auto types = tool_types(tool, input, output);
    types.words.insert(async ? "coroutine" : "asynchronous");
    types.words.insert(async ? "call_async" : "call");
    if (!types.rebuild.empty()) types.classes += "\n\n" + types.rebuild;
    auto doc = std::string(string_of(tool, "description"));
    if (doc.empty()) doc = string_of(tool, "title");
    doc = visible_text(doc, max_tool_doc);
    std::string hints;
    if (const auto* annotations = object_of(tool, "annotations"))
        for (const auto* hint : {"readOnly", "destructive", "idempotent", "openWorld"})
            if (const auto* on = annotations->if_contains(std::string(hint) + "Hint");
                on && on->is_bool() && on->get_bool())
                hints += (hints.empty() ? "Hints: " : ", ") + std::string(hint);
    if (!hints.empty()) doc += (doc.empty() ? "" : "\n\n") + hints;

    const std::string def = async ? "async def run" : "def run";
    const auto head = types.keywords.empty()
                          ? "\n\n" + def +
                                "(params: Params | dict[str, Any] | None = None, /) -> " +
                                types.result + ":\n"
                          : call_overloads(def, types.keywords, types.result) + def +
                                "(params: Any = None, /, **kwargs: Any) -> " + types.result + ":\n";
    auto text = module_imports(types.words) + types.classes + head +
                (doc.empty() ? "" : "    " + python_docstring(doc, 4, 2 * max_tool_doc) + '\n') +
                (async ? "    return await call_async(" : "    return call(") +
                python_string(server) + ", " + python_string(string_of(tool, "name")) +
                ", Params, params, " + (types.keywords.empty() ? "{}" : "kwargs") +
                (output ? ", Result" : "") +
                ")\n\n\nrun_async = " + (async ? "coroutine" : "asynchronous") + "(run)\n" +
                std::string(ending);
    if (text.size() > max_module) throw Error(errc::bad_argument, too_large_module);
    return text;
}

// What a type checker needs to know of such a module.
struct ToolStubText {
    std::string text;
    std::string keywords;  // of run(), as ModelWriter::Parameters
};

// Of the module that tool_module() makes of the same. Throws what it throws.
inline ToolStubText tool_stub(const json::object& tool, const json::value* input,
                              const json::value* output, bool async) {
    auto types = tool_types(tool, input, output);
    auto text = module_imports(types.words) + types.classes;
    for (const auto* def : {async ? "async def run" : "def run", "async def run_async"})
        text += types.keywords.empty()
                    ? std::string("\n\n") + def +
                          "(params: Params | dict[str, Any] | None = None, /) -> " + types.result +
                          ": ...\n"
                    : call_overloads(def, types.keywords, types.result);
    if (text.size() > max_module) throw Error(errc::bad_argument, too_large_module);
    return {std::move(text), std::move(types.keywords)};
}

// Module names are those of the original ("get-User" -> get_user), made importable and unique. A
// tool that has its module's name keeps it whatever others there are.
inline std::map<std::string, std::string> module_names(const std::set<std::string>& tools) {
    std::map<std::string, std::string> names;
    std::set<std::string> taken{"__init__", "__main__", "__pycache__"};
    FreshNames fresh;
    const auto plain = [](const std::string& tool) {
        std::string name;
        for (std::string_view rest = tool; !rest.empty() && name.size() < 80;) {
            const auto c = take_code_point(rest);
            name += !is_word(c) ? '_' : static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
        }
        if (name.find_first_not_of('_') == std::string::npos) name = "tool";
        if (name.compare(0, 2, "__") == 0) name.erase(0, name.find_first_not_of('_'));
        if (is_ascii_digit(static_cast<unsigned char>(name[0]))) name = "tool_" + name;
        return is_python_keyword(name) ? name + '_' : name;
    };
    for (const auto& tool : tools)
        if (plain(tool) == tool && taken.insert(tool).second) names[tool] = tool;
    for (const auto& tool : tools) {
        if (names.count(tool)) continue;
        const auto stem = plain(tool);
        names[tool] = fresh.make(
            stem, "_", [&](const std::string& name) { return taken.insert(name).second; });
    }
    return names;
}

// The first sentence on one line.
inline std::string summary(std::string_view description) {
    static constexpr std::size_t limit = 120;
    std::string line;
    for (const char c : visible_text(description, 4 * limit)) {
        if (c != '\n' && c != '\t' && c != ' ')
            line += c;
        else if (line.empty() || line.back() == '.') {
            if (!line.empty()) break;
        } else if (line.back() != ' ')
            line += ' ';
    }
    if (line.size() > limit) {
        auto cut = line.find_last_of(' ', limit);
        if (cut == std::string::npos) cut = utf8_border(line, limit);
        line.resize(cut);
        line += " …";
    }
    return line;
}

}  // namespace ipybox::detail
