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

// The module of one tool, which ends with `ending`; a schema that is nullptr says nothing. async:
// its run() is a coroutine. Throws Error: bad_argument (the schemas cannot be typed).
inline std::string tool_module(std::string_view server, const json::object& tool,
                               const json::value* input, const json::value* output, bool async,
                               std::string_view ending) {
    static constexpr std::size_t max_tool_doc = 20'000, max_module = 400'000;
    static const json::value anything(
        json::object{{"type", "object"}, {"additionalProperties", true}});
    std::set<std::string> used{"Params", "Result"};
    ModelWriter writer(input ? *input : anything, ModelWriter::Side::input, used);
    auto definitions = writer.write("Params");
    const auto& keywords = writer.parameters().list;
    const bool open = writer.parameters().open;
    if (!input && object_of(tool, "inputSchema"))
        definitions.back().text += "    # too large to be typed; the host checks the arguments\n";
    if (output)
        for (auto& definition :
             ModelWriter(*output, ModelWriter::Side::output, used).write("Result"))
            definitions.push_back(std::move(definition));

    std::set<std::string, std::less<>> words{"Any", async ? "coroutine" : "asynchronous",
                                             async ? "call_async" : "call"};
    std::string body, rebuild;
    std::map<std::string_view, std::size_t> order;
    for (const auto& definition : definitions) order.try_emplace(definition.name, order.size());
    for (auto it = definitions.begin(); it != definitions.end(); ++it) {
        body += "\n\n" + it->text;
        words.insert(it->uses.begin(), it->uses.end());
        const bool forward = std::any_of(it->uses.begin(), it->uses.end(), [&](const auto& name) {
            const auto found = order.find(name);
            return found != order.end() && found->second > order.at(it->name);
        });
        if (forward && it->text.compare(0, 6, "class ") == 0)
            rebuild += it->name + ".model_rebuild()\n";
    }
    if (!rebuild.empty()) body += "\n\n" + rebuild;
    const auto import_from = [&](std::string_view module,
                                 std::initializer_list<const char*> names) {
        std::string list;
        for (const auto* name : names)
            if (words.count(name)) list += (list.empty() ? "" : ", ") + std::string(name);
        return list.empty() ? list : "from " + std::string(module) + " import " + list + '\n';
    };
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

    const std::string result = output ? "Result" : "Any";
    const std::string def = async ? "async def" : "def", dict = "Params | dict[str, Any]";
    std::string head =
        "\n\n" + def + " run(params: " + dict + " | None = None, /) -> " + result + ":\n";
    if (!keywords.empty() || open) {
        const auto list =
            (keywords.empty() ? "" : keywords + (open ? ", " : "")) + (open ? "**more: Any" : "");
        head = "\n\n@overload\n" + def + " run(params: " + dict + ", /) -> " + result +
               ": ...\n@overload\n" +
               folded_code(def + " run(" + list + ") -> " + result + ": ...", 4) + '\n' + def +
               " run(params: Any = None, /, **kwargs: Any) -> " + result + ":\n";
        words.insert("overload");
        if (list.find("Sequence[") != list.npos) words.insert("Sequence");
    }
    auto text = "from __future__ import annotations\n" +
                import_from("typing", {"Annotated", "Any", "Literal", "Sequence", "overload"}) +
                import_from("pydantic", {"Field", "RootModel"}) +
                import_from("typing_extensions", {"TypeAliasType"}) +
                import_from("ipybox_kernel", {"Model", "NotObject", "Open", "Out", "asynchronous",
                                              "call", "call_async", "coroutine", "object_rule",
                                              "one_of", "pattern", "rule", "SafeInt", "unique"}) +
                body + head +
                (doc.empty() ? "" : "    " + python_docstring(doc, 4, 2 * max_tool_doc) + '\n') +
                (async ? "    return await call_async(" : "    return call(") +
                python_string(server) + ", " + python_string(string_of(tool, "name")) +
                ", Params, params, " + (keywords.empty() && !open ? "{}" : "kwargs") +
                (output ? ", Result" : "") +
                ")\n\n\nrun_async = " + (async ? "coroutine" : "asynchronous") + "(run)\n" +
                std::string(ending);
    if (text.size() > max_module) throw Error(errc::bad_argument, "its module would be too large");
    return text;
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
