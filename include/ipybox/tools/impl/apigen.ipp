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
#include <set>
#include <tuple>
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

IPYBOX_DECL GeneratedPackage generate_package(std::string_view server_name,
                                              const boost::json::array& listed, ApiStyle style) {
    check_server_name(server_name);
    boost::json::value simplified;
    if (std::any_of(listed.begin(), listed.end(),
                    [](const auto& tool) { return detail::holds_exact(tool); })) {
        simplified = listed;
        detail::simplify_numbers(simplified);
    }
    const auto& tools = simplified.is_array() ? simplified.get_array() : listed;
    GeneratedPackage package;
    std::map<std::string, const boost::json::object*> by_name;
    for (const auto& entry : tools) {
        const auto* tool = entry.if_object();
        const auto name = tool ? std::string(detail::string_of(*tool, "name")) : std::string{};
        if (name.empty())
            package.skipped.push_back({name, "it has no name"});
        else if (name.size() > 1000)
            package.skipped.push_back({name.substr(0, 100) + "…", "its name is too long"});
        else if (const auto [it, fresh] = by_name.try_emplace(name, tool); !fresh) {
            package.skipped.push_back({name, "another tool has the same name"});
            // the order of the list must not matter
            if (detail::write_json(*tool) < detail::write_json(*it->second)) it->second = tool;
        }
    }
    std::set<std::string> names;
    for (const auto& [name, tool] : by_name) names.insert(name);
    const auto modules = detail::module_names(names);
    std::string index;
    for (const auto& [name, tool] : by_name) {
        const auto schema = [&t = *tool](const char* key) {
            const auto* value = t.if_contains(key);
            return value && value->is_object() ? value : nullptr;
        };
        const auto& module = modules.at(name);
        const auto *input = schema("inputSchema"), *output = schema("outputSchema");
        std::string text, reason;
        for (const auto& [in, out] :
             {std::pair{input, output}, {input, nullptr}, {nullptr, output}, {nullptr, nullptr}}) {
            try {
                text = detail::tool_module(server_name, *tool, in, out, style == ApiStyle::async,
                                           own_code_marker);
                break;
            } catch (const Error& error) {
                if (reason.empty()) reason = error.detail();  // the next attempt types less
            }
        }
        if (text.empty()) {
            package.skipped.push_back({name, "its module would be too large"});
            continue;
        }
        package.files[module + ".py"] = std::move(text);
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
            0, 10'000'000) +
        '\n';
    return package;
}

}  // namespace ipybox
