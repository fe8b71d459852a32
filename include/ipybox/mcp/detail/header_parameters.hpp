#pragma once
// Parameters of tools that HTTP headers repeat (2026-07-28 "Custom Headers from Tool Parameters"),
// for all three who must agree on them: the client, its HTTP transport and the server.
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <cstddef>
#include <ipybox/detail/base64.hpp>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/error.hpp>
#include <ipybox/mcp/jsonrpc.hpp>
#include <ipybox/net/proxy_protocol.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ipybox::detail {

// A parameter that the header Mcp-Param-{name} repeats.
struct HeaderParameter {
    std::string name;
    std::vector<std::string> path;  // keys that lead to it in the arguments
};

// The "x-mcp-header" annotations of a tool's input schema. One in a wrong place or of a wrong form
// makes the whole tool unusable over HTTP.
class HeaderAnnotations {
public:
    // No message is deeper, so nothing that came in one is beyond it.
    static constexpr std::size_t max_depth = mcp::max_message_depth;
    // Each keeps its path: without a limit a hostile schema would take its own size many times.
    static constexpr std::size_t max_parameters = 64;

    enum class Fault { none, no_header_name, misplaced, wrong_type, repeated, too_many };

    explicit HeaderAnnotations(const json::value& input_schema) { walk(input_schema, true, 0); }

    // What a header can carry, also of a schema with a fault.
    const std::vector<HeaderParameter>& parameters() const noexcept { return parameters_; }
    std::vector<HeaderParameter> take_parameters() noexcept { return std::move(parameters_); }
    // The first fault: why the tool must not be used.
    Fault fault() const noexcept { return fault_; }
    // The key of the parameter at fault; empty for a schema that is annotated itself.
    const std::string& faulty_parameter() const noexcept { return faulty_parameter_; }
    // The fault as what a tool has; empty without one.
    std::string_view problem() const noexcept {
        switch (fault_) {
            case Fault::none:
                return {};
            case Fault::no_header_name:
                return "an x-mcp-header that is no name of a header";
            case Fault::misplaced:
                return "an x-mcp-header where no argument has one place";
            case Fault::wrong_type:
                return "an x-mcp-header on a parameter that is no string, integer or boolean";
            case Fault::repeated:
                return "the same x-mcp-header twice";
            case Fault::too_many:
                return "more than 64 parameters with an x-mcp-header";
        }
        return {};
    }

private:
    static constexpr std::string_view keyword = "x-mcp-header";

    // reachable: only keys of "properties" lead here from the root.
    void walk(const json::value& value, bool reachable, std::size_t depth) {
        if (depth > max_depth) return;
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
        if (!annotation.is_string() || !net::is_http_token(annotation.get_string()))
            return note(Fault::no_header_name);
        if (!reachable || path_.empty()) return note(Fault::misplaced);
        if (type != "string" && type != "integer" && type != "boolean") note(Fault::wrong_type);
        const std::string_view name = annotation.get_string();
        if (names_.size() == max_parameters) return note(Fault::too_many);
        if (!names_.insert(net::lower_case(name)).second) return note(Fault::repeated);
        HeaderParameter parameter;
        parameter.name = name;
        parameter.path = path_;
        parameters_.push_back(std::move(parameter));
    }

    void note(Fault fault) {
        if (fault_ != Fault::none) return;
        fault_ = fault;
        if (!path_.empty()) faulty_parameter_ = path_.back();
    }

    std::vector<HeaderParameter> parameters_;
    std::set<std::string> names_;  // in lower case
    std::vector<std::string> path_;
    Fault fault_ = Fault::none;
    std::string faulty_parameter_;
};

// Those of a tool that a server is to offer. Throws Error: bad_argument for a fault: clients would
// drop the whole tool.
inline std::vector<HeaderParameter> header_parameters(const json::value& input_schema) {
    HeaderAnnotations annotations(input_schema);
    const auto why = [&annotations]() -> std::string_view {
        using Fault = HeaderAnnotations::Fault;
        switch (annotations.fault()) {
            case Fault::none:
                return {};
            case Fault::no_header_name:
                return "is no name for a header";
            case Fault::misplaced:
                return "is where no argument has one place";
            case Fault::wrong_type:
                return "needs a parameter of type string, integer or boolean";
            case Fault::repeated:
                return "is used twice";
            case Fault::too_many:
                return "is one of more than 64";
        }
        return {};
    }();
    if (!why.empty())
        throw Error(errc::bad_argument, "the x-mcp-header of parameter \"" +
                                            annotations.faulty_parameter() + "\" " +
                                            std::string(why));
    return annotations.take_parameters();
}

// The argument at a parameter's place; null when there is none, or it is null.
inline const json::value* argument_of(const HeaderParameter& parameter,
                                      const json::object& arguments) {
    const json::object* level = &arguments;
    const json::value* value = nullptr;
    for (const auto& key : parameter.path) {
        value = level != nullptr ? level->if_contains(key) : nullptr;
        if (value == nullptr) return nullptr;
        level = value->if_object();
    }
    return value != nullptr && !value->is_null() ? value : nullptr;
}

// The text that a header stands for: "=?base64?…?=" decoded, anything else as it is. nullopt when
// it is malformed or holds what a header must not.
inline std::optional<std::string> decode_header_value(std::string_view value) {
    constexpr std::string_view before = "=?base64?", after = "?=";
    for (const char c : value)
        if (c != '\t' && (c < 0x20 || c > 0x7e)) return std::nullopt;
    if (value.size() < before.size() + after.size() || !value.starts_with(before) ||
        !value.ends_with(after))
        return std::string(value);
    value.remove_prefix(before.size());
    value.remove_suffix(after.size());
    for (const char c : value)
        if (c == ' ' || c == '\t') return std::nullopt;
    return decode_base64(value);
}

// Whether a header says what the argument does. header: null when it was not sent.
inline bool mirrors(const HeaderParameter& parameter, const json::object& arguments,
                    const std::string_view* header) {
    const json::value* value = argument_of(parameter, arguments);
    if (value == nullptr) return header == nullptr;
    if (header == nullptr) return false;
    const auto text = decode_header_value(*header);
    if (!text) return false;
    if (is_number(*value)) {
        if (is_number_text(*text)) return compare_numbers(exact_value(*text), *value) == 0;
        return false;
    }
    if (const auto* string = value->if_string()) return *text == std::string_view(*string);
    if (const auto* flag = value->if_bool()) return *text == (*flag ? "true" : "false");
    return true;  // no such value fits the schema: that is said later
}

}  // namespace ipybox::detail
