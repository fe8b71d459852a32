#pragma once
// What MCP adds to JSON Schema: parameters that HTTP headers repeat (2026-07-28 "Custom Headers
// from Tool Parameters"), and forms with defaults (2025-11-25 "Elicitation").
#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <cctype>
#include <ipybox/mcp/jsonrpc.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ipybox::detail {

// A parameter of a tool that the header Mcp-Param-{name} repeats.
struct HeaderParameter {
    std::string name;
    std::vector<std::string> path;  // keys that lead to it in the arguments
};

// The "x-mcp-header" annotations of an input schema. One in a wrong place or of a wrong form makes
// the whole tool unusable over HTTP.
class HeaderAnnotations {
public:
    explicit HeaderAnnotations(const json::value& input_schema) { walk(input_schema, true, 0); }

    const std::vector<HeaderParameter>& parameters() const noexcept { return parameters_; }
    // Why the tool must not be used; empty when it may.
    const std::string& problem() const noexcept { return problem_; }

private:
    static constexpr std::string_view keyword = "x-mcp-header";
    static constexpr int max_depth = 64;

    // reachable: only keys of "properties" lead here from the root.
    void walk(const json::value& value, bool reachable, int depth) {
        if (depth > max_depth || !problem_.empty()) return;
        if (const auto* elements = value.if_array())
            for (const auto& element : *elements) walk(element, false, depth + 1);
        const auto* schema = value.if_object();
        if (schema == nullptr) return;
        if (const auto* annotation = schema->if_contains(keyword))
            take(*annotation, string_of(*schema, "type"), reachable);
        for (const auto& [key, inner] : *schema) {
            // Data that looks like a schema is none.
            if (key == "enum" || key == "const" || key == "default" || key == "examples") continue;
            const bool named = key == "properties" || key == "$defs" || key == "definitions" ||
                               key == "patternProperties" || key == "dependentSchemas";
            if (!named || !inner.is_object()) {
                if (key != keyword) walk(inner, false, depth + 1);
                continue;
            }
            for (const auto& [name, property] : inner.get_object()) {
                path_.emplace_back(name);
                walk(property, reachable && key == "properties", depth + 1);
                path_.pop_back();
            }
        }
    }

    void take(const json::value& annotation, std::string_view type, bool reachable) {
        const auto is_token = [](std::string_view text) {
            return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
                return (c < 128 && std::isalnum(c) != 0) ||
                       std::string_view("!#$%&'*+-.^_`|~").find(static_cast<char>(c)) !=
                           std::string_view::npos;
            });
        };
        if (!annotation.is_string() || !is_token(annotation.get_string())) {
            problem_ = "an x-mcp-header that is no name of a header";
        } else if (!reachable || path_.empty()) {
            problem_ = "an x-mcp-header where no argument has one place";
        } else if (type != "string" && type != "integer" && type != "boolean") {
            problem_ = "an x-mcp-header on a parameter that is no string, integer or boolean";
        } else {
            std::string name(annotation.get_string());
            std::string folded = name;
            for (auto& c : folded)
                c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
            if (!names_.insert(std::move(folded)).second) {
                problem_ = "the same x-mcp-header twice";
                return;
            }
            HeaderParameter parameter;
            parameter.name = std::move(name);
            parameter.path = path_;
            parameters_.push_back(std::move(parameter));
        }
    }

    std::vector<HeaderParameter> parameters_;
    std::set<std::string> names_;  // in lower case
    std::vector<std::string> path_;
    std::string problem_;
};

// What a form holds before anybody fills it in: the defaults of its fields, by name. `params` are
// those of elicitation/create.
inline json::object form_defaults(const json::object& params) {
    json::object content;
    const auto* schema = params.if_contains("requestedSchema");
    if (schema == nullptr || !schema->is_object()) return content;
    const auto* fields = schema->get_object().if_contains("properties");
    if (fields == nullptr || !fields->is_object()) return content;
    for (const auto& [name, field] : fields->get_object()) {
        if (!field.is_object()) continue;
        if (const auto* value = field.get_object().if_contains("default"))
            content.emplace(name, *value);
    }
    return content;
}

}  // namespace ipybox::detail
