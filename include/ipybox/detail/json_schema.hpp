// JSON Schema (draft-07 and 2020-12) as the rest of ipybox needs it: read leniently, dereferenced,
// normalised, merged, and checked against values. Malformed keywords are ignored, network
// references are never fetched, and nesting, size and work are bounded whatever a server sends.
#pragma once

#include <algorithm>
#include <array>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/detail/pattern.hpp>
#include <ipybox/detail/python_source.hpp>
#include <ipybox/error.hpp>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
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

    bool has(Key key) const {
        return values.count(key) || schemas.count(key) || lists.count(key) || named.count(key);
    }
    bool has_any(std::initializer_list<Key> keys) const {
        return std::any_of(keys.begin(), keys.end(), [this](Key key) { return has(key); });
    }
    const json::value* value(Key key) const {
        const auto it = values.find(key);
        return it == values.end() ? nullptr : it->second;
    }
    Ptr schema(Key key) const {
        const auto it = schemas.find(key);
        return it == schemas.end() ? nullptr : it->second;
    }
    const std::vector<Ptr>& list(Key key) const {
        static const std::vector<Ptr> none;
        const auto it = lists.find(key);
        return it == lists.end() ? none : it->second;
    }
    const Named& names(Key key) const {
        static const Named none;
        const auto it = named.find(key);
        return it == named.end() ? none : it->second;
    }
    void erase(Key key) {
        values.erase(key);
        schemas.erase(key);
        lists.erase(key);
        named.erase(key);
    }
    // Copies one keyword of `other`.
    void take(Key key, const Schema& other) {
        if (const auto* v = other.value(key)) values[key] = v;
        if (const auto* s = other.schema(key)) schemas[key] = s;
        if (other.lists.count(key)) lists[key] = other.list(key);
        if (other.named.count(key)) named[key] = other.names(key);
    }
    // True when every value is valid.
    bool trivial() const {
        return !never && !types && values.empty() && schemas.empty() && lists.empty() &&
               named.empty() && required.empty() && dependent_required.empty() && !ref;
    }
    // The types the keywords beside `type` speak about.
    unsigned spoken_types() const {
        unsigned mask = required.empty() && dependent_required.empty() ? 0U : unsigned{json_object};
        const auto add = [&mask](const auto& keys) {
            for (const auto& entry : keys) mask |= key_info(entry.first).types;
        };
        add(values), add(schemas), add(lists), add(named);
        return mask;
    }
};

inline Schema::Ptr find(const Schema::Named& named, std::string_view name) {
    for (const auto& [key, schema] : named)
        if (key == name) return schema;
    return nullptr;
}

inline std::set<std::string_view> names_of(const Schema::Named& named) {
    std::set<std::string_view> names;
    for (const auto& entry : named) names.insert(entry.first);
    return names;
}

inline std::string_view view(const json::string& text) { return {text.data(), text.size()}; }

inline unsigned type_of(const json::value& value) {
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
inline bool type_allowed(unsigned types, unsigned type) {
    return types == 0 || (types & type) != 0 ||
           (type == json_integer && (types & json_number) != 0);
}
inline unsigned common_types(unsigned a, unsigned b) {
    if (a == 0 || b == 0) return a | b;
    const auto wide = [](unsigned t) { return t & json_number ? t | json_integer : t; };
    const unsigned common = wide(a) & wide(b);
    return common & json_number ? common & ~unsigned{json_integer} : common;
}

inline bool deeper_than(const json::value& value, int levels) {
    if (!value.is_structured()) return false;
    if (levels == 0) return true;
    if (const auto* array = value.if_array())
        return std::any_of(array->begin(), array->end(),
                           [&](const auto& item) { return deeper_than(item, levels - 1); });
    const auto& object = value.get_object();
    return std::any_of(object.begin(), object.end(),
                       [&](const auto& item) { return deeper_than(item.value(), levels - 1); });
}

// Equality of JSON Schema: 1 equals 1.0, true does not equal 1. False below 200 levels.
inline bool json_equal(const json::value& a, const json::value& b, int levels = 200) {
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

inline bool any_equal(const json::array& candidates, const json::value& value) {
    return std::any_of(candidates.begin(), candidates.end(),
                       [&](const auto& candidate) { return json_equal(candidate, value); });
}

// A schema document with everything its references reach. Keeps a reference to the JSON value.
class SchemaDocument {
public:
    static constexpr int max_depth = 100;
    static constexpr std::size_t max_schemas = 30'000;
    static constexpr std::size_t max_merging = 1'000'000;  // properties looked at by merges

    // Throws Error (bad_argument) when the document holds more than max_schemas schemas. What is
    // nested deeper than max_depth counts as `true`.
    explicit SchemaDocument(const json::value& root) : json_(root) {
        bases_.emplace("");
        base_ = &*bases_.begin();
        if (const auto* object = root.if_object()) {
            if (const auto* draft = object->if_contains("$schema"); draft && draft->is_string())
                draft7_ = view(draft->get_string()).find("draft-0") != std::string_view::npos;
            base_ = base_of(*object, base_);
        }
        root_ = compile(root, base_, 0);
    }
    SchemaDocument(const SchemaDocument&) = delete;
    SchemaDocument& operator=(const SchemaDocument&) = delete;

    const Schema& root() const { return *root_; }

    // Where `schema.ref` leads; nullptr when nowhere in this document.
    Schema::Ptr target(const Schema& schema) {
        if (!schema.ref) return nullptr;
        const auto [it, fresh] = targets_.try_emplace(&schema, nullptr);
        auto& result = it->second;
        if (fresh) {
            if (const auto [value, base] = locate(*schema.ref, schema.base); value)
                return targets_[&schema] = compile(*value, base, 0);
        }
        return result;
    }

    // The schemas that together mean a schema: its own keywords apart from the rest.
    struct Conjuncts {
        std::vector<Schema::Ptr> others;  // where its reference leads, its allOf
        Schema::Ptr own;
    };

    // Closed objects that no value can satisfy together (a common mistake: the intersection of two
    // objects with additionalProperties false) are closed as one instead.
    const Conjuncts& conjuncts(const Schema& schema) {
        if (const auto it = conjuncts_.find(&schema); it != conjuncts_.end()) return it->second;
        Conjuncts parts;
        if (const auto* referred = target(schema)) parts.others.push_back(referred);
        const auto& all_of = schema.list(Key::all_of);
        parts.others.insert(parts.others.end(), all_of.begin(), all_of.end());
        Schema own = schema;
        own.ref.reset();
        own.erase(Key::all_of);
        parts.own = own.trivial() ? &any_ : add(std::move(own));
        conjuncts_[&schema] = parts;  // seen by a schema that contains itself
        open_intersection(parts);
        return conjuncts_[&schema] = std::move(parts);
    }

    // The schema with its references followed and its allOf merged, as far as a merge can say it;
    // the rest stays in all_of. Schemas that mean the same through references are the same object.
    const Schema& effective(const Schema& schema) {
        if (!schema.ref && !schema.lists.count(Key::all_of)) return schema;
        const auto [it, fresh] = effective_.try_emplace(&schema, &any_);
        if (!fresh || following_ > max_depth) return *it->second;
        ++following_;
        const auto [others, own] = conjuncts(schema);
        std::vector<Schema::Ptr> parts;
        for (const auto* part : others)
            if (const auto& meaning = effective(*part); !meaning.trivial())
                parts.push_back(&meaning);
        const Schema* result = &any_;
        if (own->trivial() && parts.size() == 1) {
            result = parts[0];
        } else if (!own->trivial() || !parts.empty()) {
            auto merged = merge(parts, *own);
            merged.title = schema.title;
            merged.description = schema.description;
            merged.format = schema.format;
            merged.default_value = schema.default_value;
            result = add(std::move(merged));
        }
        --following_;
        effective_[&schema] = result;
        return *result;
    }

    // A schema that holds when all of `parts` (any of, for any_of) do; the same object every time.
    Schema::Ptr combine(Key key, const std::vector<Schema::Ptr>& parts) {
        auto& combined = combined_[{key, parts}];
        if (!combined) {
            Schema schema;
            schema.lists[key] = parts;
            combined = add(std::move(schema));
        }
        return combined;
    }

    // The pattern compiled; nullptr when it cannot be matched within bounds. `text` must live as
    // long as the document.
    const Pattern* pattern(std::string_view text) {
        static constexpr std::size_t max_states = 200'000;
        const auto [it, fresh] = patterns_.try_emplace(text, std::nullopt);
        if (fresh && pattern_states_ < max_states) {
            it->second = Pattern::compile(text);
            pattern_states_ += it->second ? it->second->size() : Pattern::max_size / 100;
        }
        return it->second ? &*it->second : nullptr;
    }

    // Keeps a schema made by the caller alive as long as the document.
    Schema::Ptr add(Schema schema) {
        if (schemas_.size() >= max_schemas)
            throw Error(errc::bad_argument, "the schema is too large");
        schemas_.push_back(std::move(schema));
        return &schemas_.back();
    }

private:
    Schema merge(std::vector<Schema::Ptr> parts, const Schema& own);

    struct Location {
        const json::value* value;
        const std::string* base;
    };

    const std::string* base_of(const json::object& object, const std::string* base) {
        const auto* id = object.if_contains("$id");
        if (!id || !id->is_string()) return base;
        const auto text = view(id->get_string());
        const auto uri = text.substr(0, text.find('#'));
        return uri.empty() ? base : &*bases_.insert(resolve_uri(*base, uri)).first;
    }

    // RFC 3986 as far as schema identifiers need it; nothing is ever fetched.
    static std::string resolve_uri(std::string_view base, std::string_view uri) {
        const auto colon = uri.find(':');
        if (colon != std::string_view::npos &&
            uri.substr(0, colon).find('/') == std::string_view::npos)
            return std::string(uri);
        const auto scheme = base.find("://");
        const auto path = base.find('/', scheme == std::string_view::npos ? 0 : scheme + 3);
        if (uri[0] == '/') return std::string(base.substr(0, path)) + std::string(uri);
        const auto slash = base.rfind('/');
        if (slash == std::string_view::npos || (path == std::string_view::npos && scheme != path))
            return std::string(uri);
        return std::string(base.substr(0, slash + 1)) + std::string(uri);
    }

    static std::string unescape(std::string_view token) {
        std::string out;
        for (std::size_t i = 0; i < token.size(); ++i) {
            unsigned code = 0;
            if (token[i] == '%' && i + 2 < token.size() &&
                std::from_chars(token.data() + i + 1, token.data() + i + 3, code, 16).ptr ==
                    token.data() + i + 3) {
                out += static_cast<char>(code);
                i += 2;
            } else {
                out += token[i];
            }
        }
        for (const auto& [escape, plain] : {std::pair{"~1", "/"}, std::pair{"~0", "~"}})
            for (auto at = out.find(escape); at != std::string::npos; at = out.find(escape, at + 1))
                out.replace(at, 2, plain);
        return out;
    }

    Location follow(Location from, std::string_view pointer) {
        while (!pointer.empty()) {
            pointer.remove_prefix(1);
            const auto end = std::min(pointer.find('/'), pointer.size());
            const auto token = unescape(pointer.substr(0, end));
            pointer.remove_prefix(end);
            if (const auto* object = from.value->if_object()) {
                from.value = object->if_contains(token);
            } else if (const auto* array = from.value->if_array()) {
                std::size_t index = array->size();
                std::from_chars(token.data(), token.data() + token.size(), index);
                from.value = index < array->size() ? &(*array)[index] : nullptr;
            } else {
                from.value = nullptr;
            }
            if (!from.value) return {};
            if (const auto* object = from.value->if_object())
                from.base = base_of(*object, from.base);
        }
        return from.value->is_object() || from.value->is_bool() ? from : Location{};
    }

    Location locate(std::string_view ref, const std::string* base) {
        const auto hash = ref.find('#');
        const auto uri = ref.substr(0, hash);
        const auto fragment =
            hash == std::string_view::npos ? std::string_view{} : ref.substr(hash + 1);
        const Location top{&json_, base_};
        const bool is_pointer = fragment.empty() || fragment[0] == '/';
        if (uri.empty() && is_pointer && base == base_) return follow(top, fragment);
        if (identified_.empty()) {
            identified_[*base_] = top;
            index(json_, base_, 0);
        }
        const auto absolute =
            uri.empty() ? (base ? *base : *base_) : resolve_uri(base ? *base : *base_, uri);
        const auto found =
            identified_.find(is_pointer ? absolute : absolute + '#' + unescape(fragment));
        if (found == identified_.end()) return {};
        if (!is_pointer) return found->second;
        const auto inside = follow(found->second, fragment);
        return inside.value || !uri.empty() ? inside : follow(top, fragment);
    }

    // Finds the embedded resources and anchors.
    void index(const json::value& value, const std::string* base, int depth) {
        if (depth > max_depth) return;
        if (const auto* array = value.if_array())
            for (const auto& item : *array) index(item, base, depth + 1);
        const auto* object = value.if_object();
        if (!object) return;
        const auto* inner = base_of(*object, base);
        const auto add_name = [&](std::string name) {
            identified_.try_emplace(std::move(name), Location{&value, inner});
        };
        if (inner != base) add_name(*inner);
        for (const auto* key : {"$anchor", "$dynamicAnchor"})
            if (const auto* anchor = object->if_contains(key); anchor && anchor->is_string())
                add_name(*inner + '#' + std::string(view(anchor->get_string())));
        if (const auto* id = object->if_contains("$id"); id && id->is_string())
            if (const auto text = view(id->get_string()); !text.empty() && text[0] == '#')
                add_name(*inner + std::string(text));
        for (const auto& [key, item] : *object)
            if (key != "enum" && key != "const" && key != "default" && key != "examples")
                index(item, inner, depth + 1);
    }

    Schema::Ptr compile(const json::value& value, const std::string* base, int depth) {
        auto& known = compiled_[&value];
        if (known) return known;
        known = add({});
        auto& schema = schemas_.back();
        if (const auto* object = value.if_object(); object && depth < max_depth)
            compile_object(schema, *object, base_of(*object, base), depth);
        schema.never = value.is_bool() && !value.get_bool();
        return &schema;
    }

    void compile_object(Schema& schema, const json::object& object, const std::string* base,
                        int depth) {
        const auto sub = [&](const json::value& value) { return compile(value, base, depth + 1); };
        const auto text = [&](const char* key) {
            const auto* value = object.if_contains(key);
            return value && value->is_string() ? view(value->get_string()) : std::string_view{};
        };
        schema.base = base;
        schema.title = text("title");
        schema.description = text("description");
        schema.format = text("format");
        schema.default_value = object.if_contains("default");
        for (const auto* key : {"$ref", "$dynamicRef", "$recursiveRef"})
            if (const auto* ref = object.if_contains(key); ref && ref->is_string() && !schema.ref)
                schema.ref = view(ref->get_string());
        if (schema.ref && draft7_) return;  // draft-07 ignores what stands beside a reference

        read_types(schema, object);
        for (const auto& info : key_table)
            if (const auto* value = object.if_contains(info.name))
                read_key(schema, info, *value, sub);
        read_older_forms(schema, object, sub);
        if (const auto* required = object.if_contains("required"); required && required->is_array())
            schema.required = strings(required->get_array());
        // Alone, `if` still tells unevaluatedProperties and -Items what it has judged.
        if (!schema.has(Key::condition) ||
            (!schema.has_any({Key::consequence, Key::alternative}) && !looks_into_branches()))
            for (const auto key : {Key::condition, Key::consequence, Key::alternative})
                schema.erase(key);
    }

    static Schema::Names strings(const json::array& array) {
        Schema::Names names;
        for (const auto& item : array)
            if (item.is_string()) names.push_back(view(item.get_string()));
        return names;
    }

    static void read_types(Schema& schema, const json::object& object) {
        const auto add_type = [&](const json::value& name) {
            for (const auto& [type_name, bit] : json_types)
                if (name.is_string() && view(name.get_string()) == type_name) schema.types |= bit;
        };
        const auto* type = object.if_contains("type");
        if (type && type->is_array())
            for (const auto& item : type->get_array()) add_type(item);
        else if (type)
            add_type(*type);
        if (schema.types & json_number) schema.types &= ~unsigned{json_integer};
        const auto* nullable = object.if_contains("nullable");
        if (schema.types && nullable && nullable->is_bool() && nullable->get_bool())
            schema.types |= json_null;
    }

    template <class Sub>
    void read_key(Schema& schema, const KeyInfo& info, const json::value& value, const Sub& sub) {
        const auto schema_like = [](const json::value& v) { return v.is_object() || v.is_bool(); };
        const auto add_value = [&](bool well_formed) {
            if (well_formed) schema.values[info.key] = &value;
        };
        switch (info.shape) {
            case KeyShape::list_of_values:
                return add_value(value.is_array() && !value.get_array().empty() &&
                                 !deeper_than(value, 50));
            case KeyShape::value:
                return add_value(!deeper_than(value, 50));
            case KeyShape::number:
                return add_value(is_number(value));
            case KeyShape::positive:
                return add_value(is_number(value) && compare_numbers(value, 0) > 0);
            case KeyShape::count:
                return add_value(type_of(value) == json_integer && compare_numbers(value, 0) >= 0);
            case KeyShape::text:
                return add_value(is_text(value));
            case KeyShape::flag:
                return add_value(value.is_bool() && value.get_bool());
            case KeyShape::schema:
                if (schema_like(value)) schema.schemas[info.key] = sub(value);
                return;
            case KeyShape::schemas:
                if (const auto* array = value.if_array(); array && !array->empty())
                    for (const auto& item : *array) schema.lists[info.key].push_back(sub(item));
                return;
            case KeyShape::named:
                if (const auto* object = value.if_object())
                    for (const auto& [name, item] : *object)
                        schema.named[info.key].emplace_back(std::string_view(name), sub(item));
                return;
        }
    }

    template <class Sub>
    static void read_older_forms(Schema& schema, const json::object& object, const Sub& sub) {
        if (const auto* items = object.if_contains("items"); items && items->is_array()) {
            for (const auto& item : items->get_array())
                schema.lists[Key::prefix_items].push_back(sub(item));
            const auto* more = object.if_contains("additionalItems");
            if (more && (more->is_object() || more->is_bool()))
                schema.schemas[Key::items] = sub(*more);
        }
        for (const auto& [exclusive, bound] : {std::pair{Key::exclusive_minimum, Key::minimum},
                                               std::pair{Key::exclusive_maximum, Key::maximum}}) {
            const auto* flag = object.if_contains(key_info(exclusive).name);
            if (flag && flag->is_bool() && flag->get_bool() && schema.value(bound)) {
                schema.values[exclusive] = schema.value(bound);
                schema.values.erase(bound);
            }
        }
        for (const auto* key : {"dependencies", "dependentRequired"}) {
            const auto* dependencies = object.if_contains(key);
            if (!dependencies || !dependencies->is_object()) continue;
            for (const auto& [name, needed] : dependencies->get_object()) {
                if (needed.is_array())
                    schema.dependent_required.emplace_back(name, strings(needed.get_array()));
                else if (needed.is_object() || needed.is_bool())
                    schema.named[Key::dependent_schemas].emplace_back(std::string_view(name),
                                                                      sub(needed));
            }
        }
    }

    // Whether some schema of the document asks what others have judged.
    bool looks_into_branches() {
        if (!looks_into_branches_) looks_into_branches_ = names_unevaluated(json_, 0);
        return *looks_into_branches_;
    }
    static bool names_unevaluated(const json::value& value, int depth) {
        if (depth > 2 * max_depth) return true;
        if (const auto* array = value.if_array())
            return std::any_of(array->begin(), array->end(), [&](const auto& item) {
                return names_unevaluated(item, depth + 1);
            });
        const auto* object = value.if_object();
        return object && (object->contains("unevaluatedProperties") ||
                          object->contains("unevaluatedItems") ||
                          std::any_of(object->begin(), object->end(), [&](const auto& item) {
                              return names_unevaluated(item.value(), depth + 1);
                          }));
    }

    static bool closed(const Schema& schema) {
        const auto* more = schema.schema(Key::additional_properties);
        return more && more->never && !schema.has(Key::pattern_properties);
    }

    void open_intersection(Conjuncts& conjuncts) {
        std::vector<Schema::Ptr*> parts{&conjuncts.own};
        for (auto& other : conjuncts.others) parts.push_back(&other);
        if (parts.size() == 1) return;
        std::vector<Schema> meanings;
        Schema::Names required, known;
        for (const auto* part : parts) {
            const auto& meaning = meanings.emplace_back(effective(**part));
            required.insert(required.end(), meaning.required.begin(), meaning.required.end());
            for (const auto& [name, schema] : meaning.names(Key::properties)) known.push_back(name);
        }
        const bool contradiction =
            std::any_of(meanings.begin(), meanings.end(), [&](const Schema& part) {
                if (!closed(part)) return false;
                const auto listed = names_of(part.names(Key::properties));
                return std::any_of(required.begin(), required.end(),
                                   [&](auto name) { return !listed.count(name); });
            });
        if (!contradiction || known.size() * parts.size() > 100'000) return;
        for (std::size_t i = 0; i < parts.size(); ++i) {
            if (!closed(meanings[i])) continue;
            auto listed = names_of(meanings[i].names(Key::properties));
            for (const auto& name : known)
                if (listed.insert(name).second)
                    meanings[i].named[Key::properties].emplace_back(name, &any_);
            *parts[i] = add(std::move(meanings[i]));
        }
    }

    const json::value& json_;
    bool draft7_ = false;
    std::set<std::string> bases_;
    const std::string* base_ = nullptr;
    std::map<std::string, Location> identified_;
    std::deque<Schema> schemas_;
    const Schema any_{};
    Schema::Ptr root_ = nullptr;
    int following_ = 0;  // nested references
    std::size_t merging_ = 0;
    std::optional<bool> looks_into_branches_;
    std::unordered_map<const json::value*, Schema::Ptr> compiled_;
    std::unordered_map<Schema::Ptr, Schema::Ptr> targets_, effective_;
    std::unordered_map<Schema::Ptr, Conjuncts> conjuncts_;
    std::map<std::pair<Key, std::vector<Schema::Ptr>>, Schema::Ptr> combined_;
    std::map<std::string_view, std::optional<Pattern>> patterns_;
    std::size_t pattern_states_ = 0;
};

// Merges schemas that have to hold together, as far as keywords can say it; the rest stays in
// all_of.
inline Schema SchemaDocument::merge(std::vector<Schema::Ptr> parts, const Schema& own) {
    Schema out;
    std::vector<Schema::Ptr> rest;
    const auto keep_apart = [&](const Schema& part, std::initializer_list<Key> keys) {
        Schema residue;
        for (const auto key : keys) residue.take(key, part);
        rest.push_back(add(std::move(residue)));
    };
    // Keywords that only mean something together: merged if one side has none of them.
    static constexpr std::array<std::array<Key, 3>, 3> groups{{
        {Key::condition, Key::consequence, Key::alternative},
        {Key::contains, Key::min_contains, Key::max_contains},
        {Key::prefix_items, Key::items, Key::items},
    }};
    static constexpr std::array lower{Key::minimum, Key::exclusive_minimum, Key::min_length,
                                      Key::min_items, Key::min_properties};
    static constexpr std::array upper{Key::maximum, Key::exclusive_maximum, Key::max_length,
                                      Key::max_items, Key::max_properties};
    const auto is_in = [](const auto& keys, Key key) {
        return std::find(keys.begin(), keys.end(), key) != keys.end();
    };
    const auto grouped = [&](Key key) {
        return std::any_of(groups.begin(), groups.end(),
                           [&](const auto& group) { return is_in(group, key); });
    };

    const std::array unevaluated{Key::unevaluated_items, Key::unevaluated_properties};
    std::map<std::string_view, std::size_t> position;  // of a property in out
    std::set<std::string_view> required;
    parts.push_back(&own);
    for (const auto* part : parts) {
        merging_ += out.names(Key::properties).size() + part->names(Key::properties).size();
        if (merging_ > max_merging) throw Error(errc::bad_argument, "the schema is too large");
        const unsigned types = common_types(out.types, part->types);
        if (part->never || (types == 0 && out.types != 0)) {
            Schema never;
            never.never = true;
            return never;
        }
        out.types = types;
        // What a branch leaves unevaluated is its own affair; only the schema itself looks into
        // all.
        if (part != &own && part->has_any({unevaluated[0], unevaluated[1]})) rest.push_back(part);

        for (const auto& group : groups) {
            const auto present = [&](const Schema& s) {
                return s.has_any({group[0], group[1], group[2]});
            };
            const auto same = [&](Key key) {
                return out.value(key) == part->value(key) && out.schema(key) == part->schema(key) &&
                       out.list(key) == part->list(key);
            };
            if (!present(*part)) continue;
            if (!present(out))
                for (const auto key : group) out.take(key, *part);
            else if (!std::all_of(group.begin(), group.end(), same))
                keep_apart(*part, {group[0], group[1], group[2]});
        }
        for (const auto& [key, value] : part->values) {
            if (grouped(key)) continue;
            const auto* mine = out.value(key);
            if (!mine || (is_in(lower, key) && compare_numbers(*value, *mine) > 0) ||
                (is_in(upper, key) && compare_numbers(*value, *mine) < 0))
                out.values[key] = value;
            else if (!is_in(lower, key) && !is_in(upper, key) && !json_equal(*value, *mine))
                keep_apart(*part, {key});
        }
        for (const auto& [key, schema] : part->schemas) {
            if (grouped(key) || key == Key::additional_properties ||
                (part != &own && is_in(unevaluated, key)))
                continue;
            if (!out.schema(key))
                out.schemas[key] = schema;
            else if (out.schema(key) != schema)
                keep_apart(*part, {key});
        }
        for (const auto& [key, list] : part->lists) {
            if (grouped(key)) continue;
            if (key == Key::all_of)
                rest.insert(rest.end(), list.begin(), list.end());
            else if (!out.lists.count(key))
                out.lists[key] = list;
            else if (out.list(key) != list)
                keep_apart(*part, {key});
        }

        // Objects: additionalProperties speaks about the names its own schema does not list.
        const auto* mine = out.schema(Key::additional_properties);
        const auto* theirs = part->schema(Key::additional_properties);
        const auto& my_names = out.names(Key::properties);
        const auto& their_names = part->names(Key::properties);
        const auto meets = [](const Schema& s, const Schema::Named& names) {
            const auto* more = s.schema(Key::additional_properties);
            if (!more || more->trivial()) return false;
            const auto listed = names_of(s.names(Key::properties));
            return std::any_of(names.begin(), names.end(),
                               [&](const auto& entry) { return !listed.count(entry.first); });
        };
        if (meets(out, their_names) ||
            (mine && theirs && mine != theirs && !closed(out) && !closed(*part)))
            keep_apart(out, {Key::properties, Key::pattern_properties, Key::additional_properties});
        if (meets(*part, my_names) ||
            (mine && theirs && mine != theirs && !closed(out) && !closed(*part)))
            keep_apart(*part,
                       {Key::properties, Key::pattern_properties, Key::additional_properties});
        auto& names = out.named[Key::properties];
        for (const auto& [name, schema] : their_names) {
            const auto [it, fresh] = position.try_emplace(name, names.size());
            if (fresh) {
                names.emplace_back(name, schema);
            } else if (auto& mine_too = names[it->second].second;
                       mine_too != schema && !schema->trivial()) {
                mine_too = mine_too->trivial() ? schema : combine(Key::all_of, {mine_too, schema});
            }
        }
        if (names.empty()) out.named.erase(Key::properties);
        if (theirs && (!mine || mine->trivial() || theirs->never))
            out.schemas[Key::additional_properties] = theirs;
        for (const auto key : {Key::pattern_properties, Key::dependent_schemas})
            for (const auto& entry : part->names(key)) {
                auto& all = out.named[key];
                if (!find(all, entry.first))
                    all.push_back(entry);
                else if (find(all, entry.first) != entry.second)
                    keep_apart(*part, {key});
            }
        for (const auto& name : part->required)
            if (required.insert(name).second) out.required.push_back(name);
        out.dependent_required.insert(out.dependent_required.end(),
                                      part->dependent_required.begin(),
                                      part->dependent_required.end());
    }
    if (!rest.empty()) out.lists[Key::all_of] = std::move(rest);
    return out;
}

// Checks values against the schemas of a document, with a bound on the work.
class SchemaValidator {
public:
    explicit SchemaValidator(SchemaDocument& document, std::size_t budget = 2'000'000)
        : document_(document), budget_(budget), pattern_steps_(10 * budget) {}

    bool valid(const Schema& schema, const json::value& value) { return !problem(schema, value); }

    // nullopt when valid, otherwise what is wrong and where ("/limit: must be an integer").
    std::optional<std::string> problem(const Schema& schema, const json::value& value) {
        exhausted_.reset();
        auto found = check(schema, value, {}, nullptr, 0);
        if (exhausted_) found = exhausted_;  // what a branch could not check counts
        if (!found) return std::nullopt;
        return found->at.empty() ? found->what : found->at + ": " + found->what;
    }

    // Whether the last answer is a guess, because the bound on the work was reached.
    bool gave_up() const noexcept { return exhausted_.has_value() || unsure_ > 0; }

private:
    struct Problem {
        std::string at, what;
    };
    using Result = std::optional<Problem>;

    // Schemas within schemas and values within values: five for each level of what a call may carry.
    static constexpr int max_depth = 640;

    // The parts of a value that a keyword has already judged, for unevaluatedProperties and -Items.
    struct Seen {
        std::set<std::string_view> keys;
        std::set<std::size_t> items;
    };

    // A place in the value; the pointer text is only built for a message.
    struct Place {
        const Place* parent = nullptr;
        std::string_view key;
        std::size_t index = 0;
        bool in_array = false;

        std::string pointer() const {
            if (!parent) return {};
            std::string token;
            for (const char c : in_array ? std::to_string(index) : std::string(key))
                token += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
            return parent->pointer() + '/' + token;
        }
    };

    static Result fail(const Place& place, std::string what) {
        return Problem{place.pointer(), std::move(what)};
    }
    Result exhausted(const Place& place, std::string what) {
        if (!exhausted_) exhausted_ = fail(place, std::move(what));
        return exhausted_;
    }

    Result check(const Schema& schema, const json::value& value, const Place& place, Seen* seen,
                 int depth) {
        if (depth > max_depth) return exhausted(place, "is nested too deeply to be checked");
        if (budget_ == 0) return exhausted(place, "is too large to be checked");
        --budget_;
        if (schema.never)
            return fail(place, place.parent ? "is not allowed" : "nothing is allowed here");
        Seen own;
        const bool tracks = schema.has_any({Key::unevaluated_properties, Key::unevaluated_items});
        Seen* marks = tracks || seen ? &own : nullptr;
        const bool compound = schema.ref || schema.lists.count(Key::all_of);
        if (compound)
            for (const auto* part : document_.conjuncts(schema).others)
                if (auto bad = check(*part, value, place, marks, depth + 1)) return bad;
        if (auto bad = check_own(compound ? *document_.conjuncts(schema).own : schema, value, place,
                                 marks, depth))
            return bad;
        if (seen) {
            seen->keys.merge(own.keys);
            seen->items.merge(own.items);
        }
        return std::nullopt;
    }

    Result check_own(const Schema& schema, const json::value& value, const Place& place, Seen* seen,
                     int depth) {
        if (!type_allowed(schema.types, type_of(value)))
            return fail(place, "must be " + type_names(schema.types));
        if (const auto* allowed = schema.value(Key::enumeration);
            allowed && !any_equal(allowed->get_array(), value))
            return fail(place, "must be one of " + shortened(*allowed));
        if (const auto* only = schema.value(Key::constant); only && !json_equal(*only, value))
            return fail(place, "must be " + shortened(*only));
        Result bad;
        if (is_number(value)) bad = check_number(schema, value, place);
        if (is_text(value)) bad = check_string(schema, view(value.get_string()), place);
        if (value.is_array()) bad = check_array(schema, value.get_array(), place, seen, depth);
        if (value.is_object()) bad = check_object(schema, value, place, seen, depth);
        if (!bad) bad = check_combinations(schema, value, place, seen, depth);
        if (!bad && value.is_array())
            bad = check_unevaluated_items(schema, value.get_array(), place, seen, depth);
        if (!bad && value.is_object())
            bad = check_unevaluated_keys(schema, value.get_object(), place, seen, depth);
        return bad;
    }

    static std::string type_names(unsigned types) {
        std::string out;
        for (const auto& [name, bit] : json_types)
            if (types & bit)
                out += (out.empty() ? bit & (json_integer | json_array | json_object) ? "an "
                                      : bit & json_null                               ? ""
                                                                                      : "a "
                                    : " or ") +
                       std::string(name);
        return out;
    }
    static std::string shortened(const json::value& value) {
        auto text = write_json(value);
        if (text.size() > 200) text = text.substr(0, 200) + "…";
        return text;
    }

    // Sums of fractions, such as 0.1 + 0.2, are off by what a double cannot hold.
    static bool nearly_multiple(const json::value& value, const json::value& step) {
        if (!value.is_double()) return false;
        const double quotient = value.get_double() / to_double(step);
        return std::abs(quotient) < 1e12 &&
               std::abs(quotient - std::round(quotient)) <= 1e-15 * std::max(1.0, 8 * std::abs(quotient));
    }

    Result check_number(const Schema& schema, const json::value& value, const Place& place) {
        struct Bound {
            Key key;
            bool (*holds)(int);
            const char* text;
        };
        static constexpr std::array<Bound, 4> bounds{{
            {Key::minimum, [](int order) { return order >= 0; }, "must be at least "},
            {Key::maximum, [](int order) { return order <= 0; }, "must be at most "},
            {Key::exclusive_minimum, [](int order) { return order > 0; }, "must be greater than "},
            {Key::exclusive_maximum, [](int order) { return order < 0; }, "must be less than "},
        }};
        for (const auto& bound : bounds)
            if (const auto* limit = schema.value(bound.key);
                limit && !bound.holds(compare_numbers(value, *limit)))
                return fail(place, bound.text + write_json(*limit));
        if (const auto* step = schema.value(Key::multiple_of)) {
            const auto multiple = is_multiple(value, *step);
            if (!multiple) return exhausted(place, "cannot be checked against a step of so many digits");
            if (!*multiple && !nearly_multiple(value, *step))
                return fail(place, "must be a multiple of " + write_json(*step));
        }
        return std::nullopt;
    }

    Result too_long(const Place& place) {
        return exhausted(place, "is too long to be checked against its pattern");
    }

    // limit >= 0; a count beyond size_t never fails a maximum
    static bool below(std::size_t count, const json::value* limit) {
        return limit && compare_numbers(json::value(count), *limit) < 0;
    }
    static bool above(std::size_t count, const json::value* limit) {
        return limit && compare_numbers(json::value(count), *limit) > 0;
    }

    // Unsure, and counted, when the pattern is one that cannot be matched within bounds.
    enum class Match { no, yes, unsure, too_long };
    Match match(std::string_view pattern, std::string_view text) {
        const auto* compiled = document_.pattern(pattern);
        if (!compiled) {
            ++unsure_;
            return Match::unsure;
        }
        const auto found = compiled->search(text, pattern_steps_);
        return !found ? Match::too_long : *found ? Match::yes : Match::no;
    }

    Result check_string(const Schema& schema, std::string_view text, const Place& place) {
        if (const auto* pattern = schema.value(Key::pattern)) {
            const auto matches = match(view(pattern->get_string()), text);
            if (matches == Match::too_long) return too_long(place);
            if (matches == Match::no) return fail(place, "must match " + shortened(*pattern));
        }
        if (!schema.has_any({Key::min_length, Key::max_length})) return std::nullopt;
        const auto length =
            static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
                return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
            }));
        if (below(length, schema.value(Key::min_length)))
            return fail(place, "must have at least " +
                                   write_json(*schema.value(Key::min_length)) + " characters");
        if (above(length, schema.value(Key::max_length)))
            return fail(place, "must have at most " +
                                   write_json(*schema.value(Key::max_length)) + " characters");
        return std::nullopt;
    }

    Result check_array(const Schema& schema, const json::array& array, const Place& place,
                       Seen* seen, int depth) {
        if (below(array.size(), schema.value(Key::min_items)))
            return fail(place, "must have at least " +
                                   write_json(*schema.value(Key::min_items)) + " items");
        if (above(array.size(), schema.value(Key::max_items)))
            return fail(place, "must have at most " +
                                   write_json(*schema.value(Key::max_items)) + " items");
        const auto& prefix = schema.list(Key::prefix_items);
        const auto* items = schema.schema(Key::items);
        const auto* contains = schema.schema(Key::contains);
        std::size_t matches = 0;
        const auto unsure = unsure_;
        for (std::size_t i = 0; i < array.size(); ++i) {
            const auto* item = i < prefix.size() ? prefix[i] : items;
            if (item) {
                if (auto bad = check(*item, array[i], at(place, i), nullptr, depth + 1)) return bad;
                if (seen) seen->items.insert(i);
            }
            if (contains && !check(*contains, array[i], at(place, i), nullptr, depth + 1)) {
                ++matches;
                if (seen) seen->items.insert(i);
            }
        }
        if (contains) {
            const auto* least = schema.value(Key::min_contains);
            if (least ? below(matches, least) : matches == 0)
                return fail(place, "lacks an item that it must contain");
            if (unsure == unsure_ && above(matches, schema.value(Key::max_contains)))
                return fail(place, "has too many items of one kind");
        }
        if (schema.value(Key::unique_items)) {
            std::set<std::string> known;
            for (const auto& item : array)
                if (!known.insert(canonical(item, 0)).second)
                    return fail(place, "items must be unique");
        }
        return std::nullopt;
    }

    // Text that is equal for equal values.
    static std::string canonical(const json::value& value, int depth) {
        if (depth > 200) return {};
        if (is_number(value)) return canonical_number(value);
        std::string out;
        if (const auto* array = value.if_array()) {
            for (const auto& item : *array) out += canonical(item, depth + 1) + ',';
            return '[' + out + ']';
        }
        if (const auto* object = value.if_object()) {
            std::map<std::string_view, const json::value*> sorted;
            for (const auto& item : *object) sorted[item.key()] = &item.value();
            for (const auto& [key, item] : sorted)
                out += write_json(json::value(key)) + ':' + canonical(*item, depth + 1) + ',';
            return '{' + out + '}';
        }
        return write_json(value);
    }

    static Place at(const Place& parent, std::size_t index) { return {&parent, {}, index, true}; }
    static Place at(const Place& parent, std::string_view key) { return {&parent, key, 0, false}; }

    Result check_object(const Schema& schema, const json::value& value, const Place& place,
                        Seen* seen, int depth) {
        const auto& object = value.get_object();
        for (const auto& name : schema.required)
            if (!object.contains(name)) return fail(at(place, name), "is required");
        if (below(object.size(), schema.value(Key::min_properties)))
            return fail(place, "must have at least " +
                                   write_json(*schema.value(Key::min_properties)) + " keys");
        if (above(object.size(), schema.value(Key::max_properties)))
            return fail(place, "must have at most " +
                                   write_json(*schema.value(Key::max_properties)) + " keys");
        const auto& properties = schema.names(Key::properties);
        for (const auto& [name, property] : properties)
            if (const auto* item = object.if_contains(name)) {
                if (auto bad = check(*property, *item, at(place, name), nullptr, depth + 1))
                    return bad;
                if (seen) seen->keys.insert(name);
            }
        const auto* more = schema.schema(Key::additional_properties);
        const auto* names = schema.schema(Key::property_names);
        const auto& patterns = schema.names(Key::pattern_properties);
        const auto listed = more ? names_of(properties) : std::set<std::string_view>{};
        for (const auto& item : object) {
            const std::string_view key = item.key();
            if (names)
                if (auto bad = check(*names, json::value(key), at(place, key), nullptr, depth + 1))
                    return fail(at(place, key), "the key " + bad->what);
            bool known = listed.count(key) != 0;  // or maybe known
            for (const auto& [pattern, schema_of_pattern] : patterns) {
                const auto matches = match(pattern, key);
                if (matches == Match::too_long) return too_long(at(place, key));
                if (matches == Match::no) continue;
                known = true;
                if (seen) seen->keys.insert(key);
                if (matches == Match::yes)
                    if (auto bad = check(*schema_of_pattern, item.value(), at(place, key), nullptr,
                                         depth + 1))
                        return bad;
            }
            if (!more || known) continue;
            if (more->never) return fail(at(place, key), "is not a known key");
            if (auto bad = check(*more, item.value(), at(place, key), nullptr, depth + 1))
                return bad;
            if (seen) seen->keys.insert(key);
        }
        for (const auto& [name, needed] : schema.dependent_required)
            if (object.contains(name))
                for (const auto& other : needed)
                    if (!object.contains(other))
                        return fail(at(place, other), "is required beside " + std::string(name));
        for (const auto& [name, dependent] : schema.names(Key::dependent_schemas))
            if (object.contains(name))
                if (auto bad = check(*dependent, value, place, seen, depth + 1)) return bad;
        return std::nullopt;
    }

    Result check_combinations(const Schema& schema, const json::value& value, const Place& place,
                              Seen* seen, int depth) {
        for (const auto key : {Key::any_of, Key::one_of}) {
            const auto& branches = schema.list(key);
            if (branches.empty()) continue;
            std::size_t matches = 0;
            const auto unsure = unsure_;
            Result first;
            for (const auto* branch : branches) {
                auto bad = check(*branch, value, place, seen, depth + 1);
                if (!bad)
                    ++matches;
                else if (!first || bad->at.size() > first->at.size())
                    first = std::move(bad);
                if (matches == (key == Key::any_of && !seen ? 1U : 2U) && !seen) break;
            }
            if (matches == 0)
                return branches.size() == 1
                           ? first
                           : fail(place, "fits none of the allowed forms (" +
                                             (first->at.empty() ? "" : first->at + ' ') +
                                             first->what + ')');
            if (key == Key::one_of && matches > 1 && unsure == unsure_)
                return fail(place, "fits more than one of the allowed forms");
        }
        if (const auto* forbidden = schema.schema(Key::negation)) {
            const auto unsure = unsure_;
            if (!check(*forbidden, value, place, nullptr, depth + 1) && unsure == unsure_)
                return fail(place, "has a forbidden form");
        }
        if (const auto* condition = schema.schema(Key::condition)) {
            const auto unsure = unsure_;
            const bool holds = !check(*condition, value, place, seen, depth + 1);
            if (holds && unsure != unsure_) return std::nullopt;
            if (const auto* then = schema.schema(holds ? Key::consequence : Key::alternative))
                return check(*then, value, place, seen, depth + 1);
        }
        return std::nullopt;
    }

    Result check_unevaluated_items(const Schema& schema, const json::array& array,
                                   const Place& place, Seen* seen, int depth) {
        const auto* rest = schema.schema(Key::unevaluated_items);
        for (std::size_t i = 0; rest && seen && i < array.size(); ++i)
            if (seen->items.insert(i).second)
                if (auto bad = check(*rest, array[i], at(place, i), nullptr, depth + 1)) return bad;
        return std::nullopt;
    }
    Result check_unevaluated_keys(const Schema& schema, const json::object& object,
                                  const Place& place, Seen* seen, int depth) {
        const auto* rest = schema.schema(Key::unevaluated_properties);
        if (!rest || !seen) return std::nullopt;
        for (const auto& item : object)
            if (seen->keys.insert(item.key()).second)
                if (auto bad =
                        check(*rest, item.value(), at(place, item.key()), nullptr, depth + 1))
                    return rest->never ? fail(at(place, item.key()), "is not a known key") : bad;
        return std::nullopt;
    }

    SchemaDocument& document_;
    std::size_t budget_, pattern_steps_;
    std::size_t unsure_ = 0;  // how often a pattern could not be checked
    Result exhausted_;        // what was too large, too deep or too long, if anything
};

// Checks `value` against `schema` without any reference outside it. Returns nullopt when it is
// valid, otherwise a sentence that starts with the JSON pointer of the culprit. Keywords that are
// malformed are ignored, and so are patterns that need back-references, Unicode properties or
// flags, which cannot be matched within bounds; `format` is not checked.
inline std::optional<std::string> validate(const json::value& schema, const json::value& value) {
    SchemaDocument document(schema);
    return SchemaValidator(document).problem(document.root(), value);
}

}  // namespace ipybox::detail
