#pragma once
// A JSON Schema as the rest of ipybox sees it: keywords in one spelling, whatever the dialect.
#include <algorithm>
#include <array>
#include <boost/json/array.hpp>
#include <boost/json/value.hpp>
#include <cstddef>
#include <initializer_list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ipybox::detail {

namespace json = boost::json;

// JSON types as a bit mask; an integer is a number too, `number` alone means "also fractions".
enum JsonType : unsigned {
    json_null = 1,
    json_boolean = 2,
    json_integer = 4,
    json_number = 8,
    json_string = 16,
    json_array = 32,
    json_object = 64,
};
inline constexpr std::array<std::pair<std::string_view, unsigned>, 7> json_types{
    {{"string", json_string},
     {"integer", json_integer},
     {"number", json_number},
     {"boolean", json_boolean},
     {"array", json_array},
     {"object", json_object},
     {"null", json_null}}};
inline constexpr unsigned json_numeric = json_integer | json_number;
inline constexpr unsigned json_any = 127;

enum class Key : unsigned char {
    enumeration,
    constant,
    minimum,
    maximum,
    exclusive_minimum,
    exclusive_maximum,
    multiple_of,
    min_length,
    max_length,
    pattern,
    min_items,
    max_items,
    unique_items,
    min_contains,
    max_contains,
    min_properties,
    max_properties,
    prefix_items,
    items,
    contains,
    unevaluated_items,
    properties,
    pattern_properties,
    additional_properties,
    property_names,
    dependent_schemas,
    unevaluated_properties,
    all_of,
    any_of,
    one_of,
    negation,
    condition,
    consequence,
    alternative,
};

enum class KeyShape : unsigned char {
    list_of_values,
    value,
    number,
    positive,
    count,
    text,
    flag,
    schema,
    schemas,
    named
};

struct KeyInfo {
    std::string_view name;
    Key key;
    KeyShape shape;
    unsigned types;  // the types of values the keyword says something about
};

inline constexpr std::array key_table{
    KeyInfo{"enum", Key::enumeration, KeyShape::list_of_values, json_any},
    KeyInfo{"const", Key::constant, KeyShape::value, json_any},
    KeyInfo{"minimum", Key::minimum, KeyShape::number, json_numeric},
    KeyInfo{"maximum", Key::maximum, KeyShape::number, json_numeric},
    KeyInfo{"exclusiveMinimum", Key::exclusive_minimum, KeyShape::number, json_numeric},
    KeyInfo{"exclusiveMaximum", Key::exclusive_maximum, KeyShape::number, json_numeric},
    KeyInfo{"multipleOf", Key::multiple_of, KeyShape::positive, json_numeric},
    KeyInfo{"minLength", Key::min_length, KeyShape::count, json_string},
    KeyInfo{"maxLength", Key::max_length, KeyShape::count, json_string},
    KeyInfo{"pattern", Key::pattern, KeyShape::text, json_string},
    KeyInfo{"minItems", Key::min_items, KeyShape::count, json_array},
    KeyInfo{"maxItems", Key::max_items, KeyShape::count, json_array},
    KeyInfo{"uniqueItems", Key::unique_items, KeyShape::flag, json_array},
    KeyInfo{"minContains", Key::min_contains, KeyShape::count, json_array},
    KeyInfo{"maxContains", Key::max_contains, KeyShape::count, json_array},
    KeyInfo{"minProperties", Key::min_properties, KeyShape::count, json_object},
    KeyInfo{"maxProperties", Key::max_properties, KeyShape::count, json_object},
    KeyInfo{"prefixItems", Key::prefix_items, KeyShape::schemas, json_array},
    KeyInfo{"items", Key::items, KeyShape::schema, json_array},
    KeyInfo{"contains", Key::contains, KeyShape::schema, json_array},
    KeyInfo{"unevaluatedItems", Key::unevaluated_items, KeyShape::schema, json_array},
    KeyInfo{"properties", Key::properties, KeyShape::named, json_object},
    KeyInfo{"patternProperties", Key::pattern_properties, KeyShape::named, json_object},
    KeyInfo{"additionalProperties", Key::additional_properties, KeyShape::schema, json_object},
    KeyInfo{"propertyNames", Key::property_names, KeyShape::schema, json_object},
    KeyInfo{"dependentSchemas", Key::dependent_schemas, KeyShape::named, json_object},
    KeyInfo{"unevaluatedProperties", Key::unevaluated_properties, KeyShape::schema, json_object},
    KeyInfo{"allOf", Key::all_of, KeyShape::schemas, json_any},
    KeyInfo{"anyOf", Key::any_of, KeyShape::schemas, json_any},
    KeyInfo{"oneOf", Key::one_of, KeyShape::schemas, json_any},
    KeyInfo{"not", Key::negation, KeyShape::schema, json_any},
    KeyInfo{"if", Key::condition, KeyShape::schema, json_any},
    KeyInfo{"then", Key::consequence, KeyShape::schema, json_any},
    KeyInfo{"else", Key::alternative, KeyShape::schema, json_any},
};
inline const KeyInfo& key_info(Key key) { return key_table[static_cast<std::size_t>(key)]; }

// One schema, normalised. It points into the document, so copies are shallow.
struct Schema {
    using Ptr = const Schema*;
    using Named = std::vector<std::pair<std::string_view, Ptr>>;
    using Names = std::vector<std::string_view>;

    bool never = false;  // the schema `false`
    unsigned types = 0;  // 0: any
    std::map<Key, const json::value*> values;
    std::map<Key, Ptr> schemas;
    std::map<Key, std::vector<Ptr>> lists;
    std::map<Key, Named> named;
    Names required;
    std::vector<std::pair<std::string_view, Names>> dependent_required;
    std::optional<std::string_view> ref;
    const std::string* base = nullptr;  // what `ref` is relative to

    // Annotations: they constrain nothing.
    std::string_view title, description, format;
    const json::value* default_value = nullptr;

    bool has(Key key) const;
    bool has_any(std::initializer_list<Key> keys) const;
    const json::value* value(Key key) const;
    Ptr schema(Key key) const;
    const std::vector<Ptr>& list(Key key) const;
    const Named& names(Key key) const;
    void erase(Key key);
    // Copies one keyword of `other`.
    void take(Key key, const Schema& other);
    // True when every value is valid.
    bool trivial() const;
    // The types the keywords beside `type` speak about.
    unsigned spoken_types() const;
};

Schema::Ptr find(const Schema::Named& named, std::string_view name);

std::set<std::string_view> names_of(const Schema::Named& named);

inline std::string_view view(const json::string& text) { return {text.data(), text.size()}; }

unsigned type_of(const json::value& value);
bool type_allowed(unsigned types, unsigned type);
unsigned common_types(unsigned a, unsigned b);

bool deeper_than(const json::value& value, int levels);

// Equality of JSON Schema: 1 equals 1.0, true does not equal 1. False below 200 levels.
bool json_equal(const json::value& a, const json::value& b, int levels = 200);

bool any_equal(const json::array& candidates, const json::value& value);

}  // namespace ipybox::detail

#ifndef IPYBOX_SEPARATE_COMPILATION
#include <ipybox/detail/impl/schema_model.ipp>
#endif
