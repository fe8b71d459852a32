#pragma once
#include <ipybox/detail/schema_document.hpp>

#include <algorithm>
#include <charconv>
#include <ipybox/compilation.hpp>
#include <ipybox/detail/json_members.hpp>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/error.hpp>

namespace ipybox::detail {

IPYBOX_DECL SchemaDocument::SchemaDocument(const json::value& root) : json_(root) {
    bases_.emplace("");
    base_ = &*bases_.begin();
    if (const auto* object = root.if_object()) {
        draft7_ = string_of(*object, "$schema").find("draft-0") != std::string_view::npos;
        base_ = base_of(*object, base_);
    }
    root_ = compile(root, base_, 0);
}

IPYBOX_DECL Schema::Ptr SchemaDocument::target(const Schema& schema) {
    if (!schema.ref) return nullptr;
    const auto [it, fresh] = targets_.try_emplace(&schema, nullptr);
    auto& result = it->second;
    if (fresh) {
        if (const auto [value, base] = locate(*schema.ref, schema.base); value)
            return targets_[&schema] = compile(*value, base, 0);
    }
    return result;
}

IPYBOX_DECL const SchemaDocument::Conjuncts& SchemaDocument::conjuncts(const Schema& schema) {
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

IPYBOX_DECL const Schema& SchemaDocument::effective(const Schema& schema) {
    if (!schema.ref && !schema.lists.count(Key::all_of)) return schema;
    const auto [it, fresh] = effective_.try_emplace(&schema, &any_);
    if (!fresh || following_ > max_depth) return *it->second;
    ++following_;
    const auto [others, own] = conjuncts(schema);
    std::vector<Schema::Ptr> parts;
    for (const auto* part : others)
        if (const auto& meaning = effective(*part); !meaning.trivial()) parts.push_back(&meaning);
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

IPYBOX_DECL Schema::Ptr SchemaDocument::combine(Key key, const std::vector<Schema::Ptr>& parts) {
    auto& combined = combined_[{key, parts}];
    if (!combined) {
        Schema schema;
        schema.lists[key] = parts;
        combined = add(std::move(schema));
    }
    return combined;
}

IPYBOX_DECL const Pattern* SchemaDocument::pattern(std::string_view text) {
    static constexpr std::size_t max_states = 200'000;
    const auto [it, fresh] = patterns_.try_emplace(text, std::nullopt);
    if (fresh && pattern_states_ < max_states) {
        it->second = Pattern::compile(text);
        pattern_states_ += it->second ? it->second->size() : Pattern::max_size / 100;
    }
    return it->second ? &*it->second : nullptr;
}

IPYBOX_DECL Schema::Ptr SchemaDocument::add(Schema schema) {
    if (schemas_.size() >= max_schemas) throw Error(errc::bad_argument, "the schema is too large");
    schemas_.push_back(std::move(schema));
    return &schemas_.back();
}

IPYBOX_DECL const std::string* SchemaDocument::base_of(const json::object& object,
                                                       const std::string* base) {
    const auto text = string_of(object, "$id");
    const auto uri = text.substr(0, text.find('#'));
    return uri.empty() ? base : &*bases_.insert(resolve_uri(*base, uri)).first;
}

IPYBOX_DECL std::string SchemaDocument::resolve_uri(std::string_view base, std::string_view uri) {
    const auto colon = uri.find(':');
    if (colon != std::string_view::npos && uri.substr(0, colon).find('/') == std::string_view::npos)
        return std::string(uri);
    const auto scheme = base.find("://");
    const auto path = base.find('/', scheme == std::string_view::npos ? 0 : scheme + 3);
    if (uri[0] == '/') return std::string(base.substr(0, path)) + std::string(uri);
    const auto slash = base.rfind('/');
    if (slash == std::string_view::npos || (path == std::string_view::npos && scheme != path))
        return std::string(uri);
    return std::string(base.substr(0, slash + 1)) + std::string(uri);
}

IPYBOX_DECL std::string SchemaDocument::unescape(std::string_view token) {
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

IPYBOX_DECL SchemaDocument::Location SchemaDocument::follow(Location from,
                                                            std::string_view pointer) {
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
        if (const auto* object = from.value->if_object()) from.base = base_of(*object, from.base);
    }
    return from.value->is_object() || from.value->is_bool() ? from : Location{};
}

IPYBOX_DECL SchemaDocument::Location SchemaDocument::locate(std::string_view ref,
                                                            const std::string* base) {
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

IPYBOX_DECL void SchemaDocument::index(const json::value& value, const std::string* base,
                                       int depth) {
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
        if (const auto* anchor = find_string(*object, key))
            add_name(*inner + '#' + std::string(view(*anchor)));
    if (const auto id = string_of(*object, "$id"); id.starts_with('#'))
        add_name(*inner + std::string(id));
    for (const auto& [key, item] : *object)
        if (key != "enum" && key != "const" && key != "default" && key != "examples")
            index(item, inner, depth + 1);
}

IPYBOX_DECL Schema::Ptr SchemaDocument::compile(const json::value& value, const std::string* base,
                                                int depth) {
    auto& known = compiled_[&value];
    if (known) return known;
    known = add({});
    auto& schema = schemas_.back();
    if (const auto* object = value.if_object(); object && depth < max_depth)
        compile_object(schema, *object, base_of(*object, base), depth);
    schema.never = value.is_bool() && !value.get_bool();
    return &schema;
}

IPYBOX_DECL void SchemaDocument::compile_object(Schema& schema, const json::object& object,
                                                const std::string* base, int depth) {
    const SubSchemas sub{*this, base, depth + 1};
    schema.base = base;
    schema.title = string_of(object, "title");
    schema.description = string_of(object, "description");
    schema.format = string_of(object, "format");
    schema.default_value = object.if_contains("default");
    for (const auto* key : {"$ref", "$dynamicRef", "$recursiveRef"})
        if (const auto* ref = find_string(object, key); ref && !schema.ref) schema.ref = view(*ref);
    if (schema.ref && draft7_) return;  // draft-07 ignores what stands beside a reference

    read_types(schema, object);
    for (const auto& info : key_table)
        if (const auto* value = object.if_contains(info.name)) read_key(schema, info, *value, sub);
    read_older_forms(schema, object, sub);
    if (const auto* required = object.if_contains("required"); required && required->is_array())
        schema.required = strings(required->get_array());
    // Alone, `if` still tells unevaluatedProperties and -Items what it has judged.
    if (!schema.has(Key::condition) ||
        (!schema.has_any({Key::consequence, Key::alternative}) && !looks_into_branches()))
        for (const auto key : {Key::condition, Key::consequence, Key::alternative})
            schema.erase(key);
}

IPYBOX_DECL Schema::Ptr SchemaDocument::SubSchemas::operator()(const json::value& value) const {
    return document.compile(value, base, depth);
}

IPYBOX_DECL Schema::Names SchemaDocument::strings(const json::array& array) {
    Schema::Names names;
    for (const auto& item : array)
        if (item.is_string()) names.push_back(view(item.get_string()));
    return names;
}

IPYBOX_DECL void SchemaDocument::read_types(Schema& schema, const json::object& object) {
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

IPYBOX_DECL void SchemaDocument::read_key(Schema& schema, const KeyInfo& info,
                                          const json::value& value, const SubSchemas& sub) {
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

IPYBOX_DECL void SchemaDocument::read_older_forms(Schema& schema, const json::object& object,
                                                  const SubSchemas& sub) {
    if (const auto* items = object.if_contains("items"); items && items->is_array()) {
        for (const auto& item : items->get_array())
            schema.lists[Key::prefix_items].push_back(sub(item));
        const auto* more = object.if_contains("additionalItems");
        if (more && (more->is_object() || more->is_bool())) schema.schemas[Key::items] = sub(*more);
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
        const auto* dependencies = object_of(object, key);
        if (!dependencies) continue;
        for (const auto& [name, needed] : *dependencies) {
            if (needed.is_array())
                schema.dependent_required.emplace_back(name, strings(needed.get_array()));
            else if (needed.is_object() || needed.is_bool())
                schema.named[Key::dependent_schemas].emplace_back(std::string_view(name),
                                                                  sub(needed));
        }
    }
}

IPYBOX_DECL bool SchemaDocument::looks_into_branches() {
    if (!looks_into_branches_) looks_into_branches_ = names_unevaluated(json_, 0);
    return *looks_into_branches_;
}

IPYBOX_DECL bool SchemaDocument::names_unevaluated(const json::value& value, int depth) {
    if (depth > 2 * max_depth) return true;
    if (const auto* array = value.if_array())
        return std::any_of(array->begin(), array->end(),
                           [&](const auto& item) { return names_unevaluated(item, depth + 1); });
    const auto* object = value.if_object();
    return object &&
           (object->contains("unevaluatedProperties") || object->contains("unevaluatedItems") ||
            std::any_of(object->begin(), object->end(), [&](const auto& item) {
                return names_unevaluated(item.value(), depth + 1);
            }));
}

IPYBOX_DECL bool SchemaDocument::closed(const Schema& schema) {
    const auto* more = schema.schema(Key::additional_properties);
    return more && more->never && !schema.has(Key::pattern_properties);
}

IPYBOX_DECL void SchemaDocument::open_intersection(Conjuncts& conjuncts) {
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

}  // namespace ipybox::detail
