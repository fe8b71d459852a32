#pragma once
// Members of JSON objects that a peer sent: of the kind that is wanted, or none at all.
#include <boost/json/object.hpp>
#include <boost/json/string.hpp>
#include <boost/json/value.hpp>
#include <ipybox/detail/json_number.hpp>
#include <string_view>

namespace ipybox::detail {

// The text of `key`; null when there is none, or it is something else. A number that is kept with
// its digits is no text.
inline const json::string* find_string(const json::object& object, std::string_view key) noexcept {
    const auto* value = object.if_contains(key);
    return value != nullptr && is_text(*value) ? value->if_string() : nullptr;
}

// The same where an empty text means as little as none. Valid as long as the object's member.
inline std::string_view string_of(const json::object& object, std::string_view key) noexcept {
    const auto* text = find_string(object, key);
    return text != nullptr ? std::string_view(*text) : std::string_view();
}

// The object of `key`; null when there is none, or it is something else.
inline const json::object* object_of(const json::object& object, std::string_view key) noexcept {
    const auto* value = object.if_contains(key);
    return value != nullptr ? value->if_object() : nullptr;
}

}  // namespace ipybox::detail
