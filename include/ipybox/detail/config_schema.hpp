#pragma once
// What is wrong with the JSON Schema that a plugin states for its configuration.
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <string>
#include <string_view>

namespace ipybox::detail {

// The keyword that would be ignored although its author meant it to hold, with the way to it; empty
// without one.
inline std::string malformed_keyword(const boost::json::object& schema) {
    for (const auto& [keyword, value] : schema) {
        const std::string_view name = keyword;
        const bool good = name == "type"                   ? value.is_string() || value.is_array()
                          : name == "required"             ? value.is_array()
                          : name == "properties"           ? value.is_object()
                          : name == "additionalProperties" ? value.is_bool() || value.is_object()
                                                           : true;
        if (!good) return std::string(name);
        if (name != "properties") continue;
        for (const auto& [field, member] : value.get_object()) {
            if (member.is_bool()) continue;
            if (!member.is_object()) return "properties/" + std::string(field);
            if (auto inner = malformed_keyword(member.get_object()); !inner.empty())
                return "properties/" + std::string(field) + "/" + inner;
        }
    }
    return {};
}

}  // namespace ipybox::detail
