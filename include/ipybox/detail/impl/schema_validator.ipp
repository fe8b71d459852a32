#pragma once
#include <ipybox/detail/schema_validator.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <ipybox/compilation.hpp>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/detail/nearest.hpp>
#include <ipybox/detail/utf8.hpp>
#include <map>

namespace ipybox::detail {

IPYBOX_DECL SchemaValidator::SchemaValidator(SchemaDocument& document, std::size_t budget)
    : document_(document), budget_(budget), pattern_steps_(10 * budget) {}

IPYBOX_DECL std::optional<std::string> SchemaValidator::problem(const Schema& schema,
                                                                const json::value& value) {
    exhausted_.reset();
    auto found = check(schema, value, {}, nullptr, 0);
    if (exhausted_) found = exhausted_;  // what a branch could not check counts
    if (!found) return std::nullopt;
    return found->at.empty() ? found->what : found->at + ": " + found->what;
}

IPYBOX_DECL std::string SchemaValidator::Place::pointer() const {
    if (!parent) return {};
    std::string token;
    for (const char c : in_array ? std::to_string(index) : std::string(key))
        token += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
    return parent->pointer() + '/' + token;
}

IPYBOX_DECL SchemaValidator::Result SchemaValidator::fail(const Place& place, std::string what) {
    return Problem{place.pointer(), std::move(what)};
}

IPYBOX_DECL SchemaValidator::Result SchemaValidator::exhausted(const Place& place,
                                                               std::string what) {
    if (!exhausted_) exhausted_ = fail(place, std::move(what));
    return exhausted_;
}

IPYBOX_DECL SchemaValidator::Result SchemaValidator::check(const Schema& schema,
                                                           const json::value& value,
                                                           const Place& place, Seen* seen,
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

IPYBOX_DECL SchemaValidator::Result SchemaValidator::check_own(const Schema& schema,
                                                               const json::value& value,
                                                               const Place& place, Seen* seen,
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

IPYBOX_DECL std::string SchemaValidator::type_names(unsigned types) {
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

IPYBOX_DECL std::string SchemaValidator::shortened(const json::value& value) {
    auto text = write_json(value);
    if (text.size() > 200) text = text.substr(0, 200) + "…";
    return text;
}

IPYBOX_DECL bool SchemaValidator::nearly_multiple(const json::value& value,
                                                  const json::value& step) {
    if (!value.is_double()) return false;
    const double quotient = value.get_double() / to_double(step);
    return std::abs(quotient) < 1e12 && std::abs(quotient - std::round(quotient)) <=
                                            1e-15 * std::max(1.0, 8 * std::abs(quotient));
}

IPYBOX_DECL SchemaValidator::Result SchemaValidator::check_number(const Schema& schema,
                                                                  const json::value& value,
                                                                  const Place& place) {
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
        if (!multiple)
            return exhausted(place, "cannot be checked against a step of so many digits");
        if (!*multiple && !nearly_multiple(value, *step))
            return fail(place, "must be a multiple of " + write_json(*step));
    }
    return std::nullopt;
}

IPYBOX_DECL SchemaValidator::Result SchemaValidator::too_long(const Place& place) {
    return exhausted(place, "is too long to be checked against its pattern");
}

IPYBOX_DECL bool SchemaValidator::below(std::size_t count, const json::value* limit) {
    return limit && compare_numbers(json::value(count), *limit) < 0;
}

IPYBOX_DECL bool SchemaValidator::above(std::size_t count, const json::value* limit) {
    return limit && compare_numbers(json::value(count), *limit) > 0;
}

IPYBOX_DECL SchemaValidator::Match SchemaValidator::match(std::string_view pattern,
                                                          std::string_view text) {
    const auto* compiled = document_.pattern(pattern);
    if (!compiled) {
        ++unsure_;
        return Match::unsure;
    }
    const auto found = compiled->search(text, pattern_steps_);
    return !found ? Match::too_long : *found ? Match::yes : Match::no;
}

IPYBOX_DECL SchemaValidator::Result SchemaValidator::check_string(const Schema& schema,
                                                                  std::string_view text,
                                                                  const Place& place) {
    if (const auto* pattern = schema.value(Key::pattern)) {
        const auto matches = match(view(pattern->get_string()), text);
        if (matches == Match::too_long) return too_long(place);
        if (matches == Match::no) return fail(place, "must match " + shortened(*pattern));
    }
    if (!schema.has_any({Key::min_length, Key::max_length})) return std::nullopt;
    const auto length = count_code_points(text);
    if (below(length, schema.value(Key::min_length)))
        return fail(place, "must have at least " + write_json(*schema.value(Key::min_length)) +
                               " characters");
    if (above(length, schema.value(Key::max_length)))
        return fail(place, "must have at most " + write_json(*schema.value(Key::max_length)) +
                               " characters");
    return std::nullopt;
}

IPYBOX_DECL SchemaValidator::Result SchemaValidator::check_array(const Schema& schema,
                                                                 const json::array& array,
                                                                 const Place& place, Seen* seen,
                                                                 int depth) {
    if (below(array.size(), schema.value(Key::min_items)))
        return fail(place,
                    "must have at least " + write_json(*schema.value(Key::min_items)) + " items");
    if (above(array.size(), schema.value(Key::max_items)))
        return fail(place,
                    "must have at most " + write_json(*schema.value(Key::max_items)) + " items");
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

IPYBOX_DECL std::string SchemaValidator::canonical(const json::value& value, int depth) {
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

IPYBOX_DECL SchemaValidator::Result SchemaValidator::check_object(const Schema& schema,
                                                                  const json::value& value,
                                                                  const Place& place, Seen* seen,
                                                                  int depth) {
    const auto& object = value.get_object();
    for (const auto& name : schema.required)
        if (!object.contains(name)) return fail(at(place, name), "is required");
    if (below(object.size(), schema.value(Key::min_properties)))
        return fail(place, "must have at least " + write_json(*schema.value(Key::min_properties)) +
                               " keys");
    if (above(object.size(), schema.value(Key::max_properties)))
        return fail(
            place, "must have at most " + write_json(*schema.value(Key::max_properties)) + " keys");
    const auto& properties = schema.names(Key::properties);
    for (const auto& [name, property] : properties)
        if (const auto* item = object.if_contains(name)) {
            if (auto bad = check(*property, *item, at(place, name), nullptr, depth + 1)) return bad;
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
                if (auto bad =
                        check(*schema_of_pattern, item.value(), at(place, key), nullptr, depth + 1))
                    return bad;
        }
        if (!more || known) continue;
        if (more->never)
            return fail(at(place, key), "is not a known key" +
                                            (depth == 0 ? meant(key, properties) : std::string()));
        if (auto bad = check(*more, item.value(), at(place, key), nullptr, depth + 1)) return bad;
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

IPYBOX_DECL SchemaValidator::Result SchemaValidator::check_combinations(const Schema& schema,
                                                                        const json::value& value,
                                                                        const Place& place,
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
                                         (first->at.empty() ? "" : first->at + ' ') + first->what +
                                         ')');
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

IPYBOX_DECL SchemaValidator::Result SchemaValidator::check_unevaluated_items(
    const Schema& schema, const json::array& array, const Place& place, Seen* seen, int depth) {
    const auto* rest = schema.schema(Key::unevaluated_items);
    for (std::size_t i = 0; rest && seen && i < array.size(); ++i)
        if (seen->items.insert(i).second)
            if (auto bad = check(*rest, array[i], at(place, i), nullptr, depth + 1)) return bad;
    return std::nullopt;
}

IPYBOX_DECL std::string SchemaValidator::meant(std::string_view key, const Schema::Named& names) {
    NearestName nearest(key);
    for (const auto& [name, schema] : names) nearest.offer(name);
    if (nearest.best().empty()) return {};
    return "; did you mean " + write_json(json::value(nearest.best())) + '?';
}

IPYBOX_DECL SchemaValidator::Result SchemaValidator::check_unevaluated_keys(
    const Schema& schema, const json::object& object, const Place& place, Seen* seen, int depth) {
    const auto* rest = schema.schema(Key::unevaluated_properties);
    if (!rest || !seen) return std::nullopt;
    for (const auto& item : object)
        if (seen->keys.insert(item.key()).second)
            if (auto bad = check(*rest, item.value(), at(place, item.key()), nullptr, depth + 1))
                return rest->never ? fail(at(place, item.key()), "is not a known key") : bad;
    return std::nullopt;
}

}  // namespace ipybox::detail
