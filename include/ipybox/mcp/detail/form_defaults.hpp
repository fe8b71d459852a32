#pragma once
// Forms of elicitations (2025-11-25 "Elicitation"), without I/O.
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <ipybox/detail/json_members.hpp>
#include <ipybox/mcp/jsonrpc.hpp>

namespace ipybox::detail {

// What a form holds before anybody fills it in: the defaults of its fields, by name. `params` are
// those of elicitation/create.
inline json::object form_defaults(const json::object& params) {
    json::object content;
    const auto* schema = object_of(params, "requestedSchema");
    const auto* fields = schema != nullptr ? object_of(*schema, "properties") : nullptr;
    if (fields == nullptr) return content;
    for (const auto& [name, field] : *fields) {
        if (!field.is_object()) continue;
        if (const auto* value = field.get_object().if_contains("default"))
            content.emplace(name, *value);
    }
    return content;
}

}  // namespace ipybox::detail
