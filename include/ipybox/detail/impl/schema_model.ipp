#pragma once
#include <ipybox/detail/schema_model.hpp>

#include <ipybox/compilation.hpp>
#include <ipybox/detail/json_number.hpp>

namespace ipybox::detail {

IPYBOX_DECL bool Schema::has(Key key) const {
    return values.count(key) || schemas.count(key) || lists.count(key) || named.count(key);
}

IPYBOX_DECL bool Schema::has_any(std::initializer_list<Key> keys) const {
    return std::any_of(keys.begin(), keys.end(), [this](Key key) { return has(key); });
}

IPYBOX_DECL const json::value* Schema::value(Key key) const {
    const auto it = values.find(key);
    return it == values.end() ? nullptr : it->second;
}

IPYBOX_DECL Schema::Ptr Schema::schema(Key key) const {
    const auto it = schemas.find(key);
    return it == schemas.end() ? nullptr : it->second;
}

IPYBOX_DECL const std::vector<Schema::Ptr>& Schema::list(Key key) const {
    static const std::vector<Ptr> none;
    const auto it = lists.find(key);
    return it == lists.end() ? none : it->second;
}

IPYBOX_DECL const Schema::Named& Schema::names(Key key) const {
    static const Named none;
    const auto it = named.find(key);
    return it == named.end() ? none : it->second;
}

IPYBOX_DECL void Schema::erase(Key key) {
    values.erase(key);
    schemas.erase(key);
    lists.erase(key);
    named.erase(key);
}

IPYBOX_DECL void Schema::take(Key key, const Schema& other) {
    if (const auto* v = other.value(key)) values[key] = v;
    if (const auto* s = other.schema(key)) schemas[key] = s;
    if (other.lists.count(key)) lists[key] = other.list(key);
    if (other.named.count(key)) named[key] = other.names(key);
}

IPYBOX_DECL bool Schema::trivial() const {
    return !never && !types && values.empty() && schemas.empty() && lists.empty() &&
           named.empty() && required.empty() && dependent_required.empty() && !ref;
}

IPYBOX_DECL unsigned Schema::spoken_types() const {
    unsigned mask = required.empty() && dependent_required.empty() ? 0U : unsigned{json_object};
    const auto add = [&mask](const auto& keys) {
        for (const auto& entry : keys) mask |= key_info(entry.first).types;
    };
    add(values), add(schemas), add(lists), add(named);
    return mask;
}

IPYBOX_DECL Schema::Ptr find(const Schema::Named& named, std::string_view name) {
    for (const auto& [key, schema] : named)
        if (key == name) return schema;
    return nullptr;
}

IPYBOX_DECL std::set<std::string_view> names_of(const Schema::Named& named) {
    std::set<std::string_view> names;
    for (const auto& entry : named) names.insert(entry.first);
    return names;
}

IPYBOX_DECL unsigned type_of(const json::value& value) {
    switch (value.kind()) {
        case json::kind::null:
            return json_null;
        case json::kind::bool_:
            return json_boolean;
        case json::kind::int64:
        case json::kind::uint64:
            return json_integer;
        case json::kind::double_:
            return is_integer(value) ? json_integer : json_number;
        case json::kind::string:
            if (is_exact(value)) return is_integer(value) ? json_integer : json_number;
            return json_string;
        case json::kind::array:
            return json_array;
        case json::kind::object:
            return json_object;
    }
    return 0;
}

IPYBOX_DECL bool type_allowed(unsigned types, unsigned type) {
    return types == 0 || (types & type) != 0 ||
           (type == json_integer && (types & json_number) != 0);
}

IPYBOX_DECL unsigned common_types(unsigned a, unsigned b) {
    if (a == 0 || b == 0) return a | b;
    const auto wide = [](unsigned t) { return t & json_number ? t | json_integer : t; };
    const unsigned common = wide(a) & wide(b);
    return common & json_number ? common & ~unsigned{json_integer} : common;
}

IPYBOX_DECL bool deeper_than(const json::value& value, int levels) {
    if (!value.is_structured()) return false;
    if (levels == 0) return true;
    if (const auto* array = value.if_array())
        return std::any_of(array->begin(), array->end(),
                           [&](const auto& item) { return deeper_than(item, levels - 1); });
    const auto& object = value.get_object();
    return std::any_of(object.begin(), object.end(),
                       [&](const auto& item) { return deeper_than(item.value(), levels - 1); });
}

IPYBOX_DECL bool json_equal(const json::value& a, const json::value& b, int levels) {
    if (levels == 0) return false;
    if (is_number(a) && is_number(b)) return compare_numbers(a, b) == 0;
    if (a.is_array() && b.is_array()) {
        const auto &x = a.get_array(), &y = b.get_array();
        return std::equal(
            x.begin(), x.end(), y.begin(), y.end(),
            [&](const auto& i, const auto& j) { return json_equal(i, j, levels - 1); });
    }
    if (a.is_object() && b.is_object()) {
        const auto &x = a.get_object(), &y = b.get_object();
        return x.size() == y.size() && std::all_of(x.begin(), x.end(), [&](const auto& item) {
                   const auto* other = y.if_contains(item.key());
                   return other && json_equal(item.value(), *other, levels - 1);
               });
    }
    return a.kind() == b.kind() && !a.is_structured() && a == b;
}

IPYBOX_DECL bool any_equal(const json::array& candidates, const json::value& value) {
    return std::any_of(candidates.begin(), candidates.end(),
                       [&](const auto& candidate) { return json_equal(candidate, value); });
}

}  // namespace ipybox::detail
