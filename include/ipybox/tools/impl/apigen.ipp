#pragma once
#include <ipybox/tools/apigen.hpp>

#include <algorithm>
#include <boost/json/parse_options.hpp>
#include <charconv>
#include <ipybox/compilation.hpp>
#include <ipybox/detail/json_memory.hpp>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/detail/python_source.hpp>
#include <ipybox/detail/utf8.hpp>
#include <ipybox/error.hpp>
#include <ipybox/tools/detail/tool_module.hpp>
#include <optional>
#include <set>
#include <tuple>
#include <type_traits>
#include <utility>

namespace ipybox {

IPYBOX_DECL bool is_of_original(std::string_view init) {
    return init.find("tool_exec.client import ToolRunner\n") != init.npos &&
           init.find("\nCLIENT = ToolRunner(") != init.npos;
}

IPYBOX_DECL void check_server_name(std::string_view name) {
    if (name.size() > 64 || !detail::is_python_identifier(name) || detail::is_python_keyword(name))
        throw Error(errc::bad_argument,
                    "the server name " +
                        detail::write_json(boost::json::value(name.substr(0, 80))) +
                        " must be a Python identifier of at most 64 ASCII characters");
}

IPYBOX_DECL boost::json::array parse_tools(std::string_view text) {
    std::string repaired;
    const auto unit = [&](std::size_t at) -> unsigned {
        unsigned code = 0;
        const bool escape =
            at + 6 <= text.size() && text[at] == '\\' && text[at + 1] == 'u' &&
            std::from_chars(&text[at + 2], &text[at] + 6, code, 16).ptr == &text[at] + 6;
        return escape ? code : 0;
    };
    for (std::size_t i = 0; i < text.size();) {
        const unsigned code = unit(i);
        const unsigned next = code >> 10 == 0x36 ? unit(i + 6) : 0;
        const std::size_t length = text[i] != '\\'      ? 1
                                   : code == 0          ? 2
                                   : next >> 10 == 0x37 ? 12
                                                        : 6;
        if (length == 6 && detail::is_surrogate(code))
            detail::append_utf8(repaired, code);
        else
            repaired += text.substr(i, length);
        i += length;
    }
    boost::json::parse_options options;
    options.max_depth = 25'000;  // the parser is recursive
    options.allow_invalid_utf8 = true;
    boost::system::error_code failure;
    auto value = detail::parse_exact(repaired, failure, options);
    detail::simplify_numbers(value);
    if (failure) throw Error(errc::bad_argument, "the tool list is not JSON: " + failure.message());
    if (const auto* result = value.if_object())
        if (const auto* tools = result->if_contains("tools"); tools && tools->is_array())
            return tools->get_array();
    if (!value.is_array())
        throw Error(errc::bad_argument, "the tool list is neither an array nor has it `tools`");
    return std::move(value.get_array());
}

}  // namespace ipybox

namespace ipybox::tools {

// The tools of a list that can have a module.
struct NamedTools {
    explicit NamedTools(const boost::json::array& listed);

    boost::json::value simplified;
    std::map<std::string, const boost::json::object*> by_name;
    std::map<std::string, std::string> modules;
    std::vector<SkippedTool> skipped;
};

IPYBOX_DECL NamedTools::NamedTools(const boost::json::array& listed) {
    if (std::any_of(listed.begin(), listed.end(),
                    [](const auto& tool) { return detail::holds_exact(tool); })) {
        simplified = listed;
        detail::simplify_numbers(simplified);
    }
    for (const auto& entry : simplified.is_array() ? simplified.get_array() : listed) {
        const auto* tool = entry.if_object();
        const auto name = tool ? std::string(detail::string_of(*tool, "name")) : std::string{};
        if (name.empty())
            skipped.push_back({name, "it has no name"});
        else if (name.size() > 1000)
            skipped.push_back({name.substr(0, 100) + "…", "its name is too long"});
        else if (const auto [it, fresh] = by_name.try_emplace(name, tool); !fresh) {
            skipped.push_back({name, "another tool has the same name"});
            // the order of the list must not matter
            if (detail::write_json(*tool) < detail::write_json(*it->second)) it->second = tool;
        }
    }
    std::set<std::string> names;
    for (const auto& [name, tool] : by_name) names.insert(name);
    modules = detail::module_names(names);
}

// What write(input, output) makes of a tool's schemas, or of less where they cannot be typed;
// nullopt where nothing can. reason: why the first attempt failed.
template <class Write>
auto written(const boost::json::object& tool, std::string& reason, const Write& write)
    -> std::optional<
        std::invoke_result_t<Write, const boost::json::value*, const boost::json::value*>> {
    const auto schema = [&tool](const char* key) {
        const auto* value = tool.if_contains(key);
        return value && value->is_object() ? value : nullptr;
    };
    const auto *input = schema("inputSchema"), *output = schema("outputSchema");
    for (const auto& [in, out] :
         {std::pair{input, output}, {input, nullptr}, {nullptr, output}, {nullptr, nullptr}}) {
        try {
            return write(in, out);
        } catch (const Error& error) {
            if (reason.empty()) reason = error.detail();  // the next attempt types less
        }
    }
    return std::nullopt;
}

// A parameter list of generated code, without "*" and "**more".
IPYBOX_DECL std::vector<ToolStub::Parameter> parameters_in(std::string_view list) {
    std::vector<ToolStub::Parameter> parameters;
    for (std::size_t at = 0; at < list.size();) {
        const auto end = detail::end_of_argument(list, at, true);
        auto one = list.substr(at, end - at);
        at = end + 1;
        one.remove_prefix(std::min(one.find_first_not_of(' '), one.size()));
        if (one.starts_with('*')) continue;
        bool required = true;
        for (std::size_t i = 0; i < one.size(); ++i)
            if (one[i] == '"')
                i = detail::behind_text(one, i) - 1;
            else if (one[i] == '=')
                required = false;
        parameters.push_back({std::string(one.substr(0, one.find(':'))), required});
    }
    return parameters;
}

}  // namespace ipybox::tools

namespace ipybox {

IPYBOX_DECL GeneratedPackage generate_package(std::string_view server_name,
                                              const boost::json::array& listed, ApiStyle style) {
    check_server_name(server_name);
    tools::NamedTools tools(listed);
    GeneratedPackage package;
    package.skipped = std::move(tools.skipped);
    std::string index;
    for (const auto& [name, tool] : tools.by_name) {
        const auto& module = tools.modules.at(name);
        std::string reason;
        const auto write = [&, &t = *tool](const boost::json::value* in,
                                           const boost::json::value* out) {
            return detail::tool_module(server_name, t, in, out, style == ApiStyle::async,
                                       own_code_marker);
        };
        auto text = tools::written(*tool, reason, write);
        if (!text) {
            package.skipped.push_back({name, detail::too_large_module});
            continue;
        }
        package.files[module + ".py"] = std::move(*text);
        package.tools.push_back({name, module});
        if (!reason.empty()) package.untyped.push_back({name, reason});
        const auto line = detail::summary(detail::string_of(*tool, "description"));
        index += '\n' + module + (line.empty() ? "" : ": " + line);
    }
    std::sort(package.skipped.begin(), package.skipped.end(), [](const auto& a, const auto& b) {
        return std::tie(a.tool, a.reason) < std::tie(b.tool, b.reason);
    });
    package.files["__init__.py"] =
        detail::python_docstring(
            std::string(detail::package_title) + std::string(server_name) +
                (style == ApiStyle::async
                     ? ", one module each with async run(), Params and maybe Result:\n"
                     : ", one module each with run(), run_async(), Params and maybe Result:\n") +
                index,
            0, 10'000'000, detail::LongLines::keep) +  // one a tool, as a search reads them
        '\n';
    return package;
}

IPYBOX_DECL std::vector<ToolStub> generate_stubs(const boost::json::array& listed, ApiStyle style) {
    const tools::NamedTools tools(listed);
    std::vector<ToolStub> stubs;
    for (const auto& [name, tool] : tools.by_name) {
        std::string reason;
        const auto write = [&, &t = *tool](const boost::json::value* in,
                                           const boost::json::value* out) {
            return detail::tool_stub(t, in, out, style == ApiStyle::async);
        };
        auto made = tools::written(*tool, reason, write);
        if (!made) continue;
        ToolStub stub;
        stub.module = tools.modules.at(name);
        stub.text = std::move(made->text);
        stub.parameters = tools::parameters_in(made->keywords);
        if (const auto* schema = detail::object_of(*tool, "inputSchema"))
            if (const auto* properties = detail::object_of(*schema, "properties"))
                for (const auto& property : *properties) stub.wire_names.emplace(property.key());
        stubs.push_back(std::move(stub));
    }
    return stubs;
}

}  // namespace ipybox
