#pragma once
#include <ipybox/detail/schema_document.hpp>

#include <algorithm>
#include <array>
#include <ipybox/compilation.hpp>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/error.hpp>

namespace ipybox::detail {

// Merges schemas that have to hold together, as far as keywords can say it; the rest stays in
// all_of.
class SchemaDocument::Merge {
public:
    Merge(SchemaDocument& document, const Schema& own) : document_(document), own_(own) {}

    // False when no value fits all of them.
    bool add(const Schema& part) {
        document_.merging_ +=
            out_.names(Key::properties).size() + part.names(Key::properties).size();
        if (document_.merging_ > max_merging)
            throw Error(errc::bad_argument, "the schema is too large");
        const unsigned types = common_types(out_.types, part.types);
        if (part.never || (types == 0 && out_.types != 0)) return false;
        out_.types = types;
        // What a branch leaves unevaluated is its own affair; only the schema itself looks into
        // all.
        if (&part != &own_ && part.has_any({unevaluated[0], unevaluated[1]}))
            rest_.push_back(&part);
        add_groups(part);
        add_values(part);
        add_schemas(part);
        add_lists(part);
        add_properties(part);
        add_named(part);
        add_required(part);
        return true;
    }

    Schema take() {
        if (!rest_.empty()) out_.lists[Key::all_of] = std::move(rest_);
        return std::move(out_);
    }

private:
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
    static constexpr std::array unevaluated{Key::unevaluated_items, Key::unevaluated_properties};

    template <class Keys>
    static bool is_in(const Keys& keys, Key key) {
        return std::find(keys.begin(), keys.end(), key) != keys.end();
    }
    static bool grouped(Key key) {
        return std::any_of(groups.begin(), groups.end(),
                           [&](const auto& group) { return is_in(group, key); });
    }

    void keep_apart(const Schema& part, std::initializer_list<Key> keys) {
        Schema residue;
        for (const auto key : keys) residue.take(key, part);
        rest_.push_back(document_.add(std::move(residue)));
    }

    void add_groups(const Schema& part) {
        for (const auto& group : groups) {
            const auto present = [&](const Schema& s) {
                return s.has_any({group[0], group[1], group[2]});
            };
            const auto same = [&](Key key) {
                return out_.value(key) == part.value(key) && out_.schema(key) == part.schema(key) &&
                       out_.list(key) == part.list(key);
            };
            if (!present(part)) continue;
            if (!present(out_))
                for (const auto key : group) out_.take(key, part);
            else if (!std::all_of(group.begin(), group.end(), same))
                keep_apart(part, {group[0], group[1], group[2]});
        }
    }

    void add_values(const Schema& part) {
        for (const auto& [key, value] : part.values) {
            if (grouped(key)) continue;
            const auto* mine = out_.value(key);
            if (!mine || (is_in(lower, key) && compare_numbers(*value, *mine) > 0) ||
                (is_in(upper, key) && compare_numbers(*value, *mine) < 0))
                out_.values[key] = value;
            else if (!is_in(lower, key) && !is_in(upper, key) && !json_equal(*value, *mine))
                keep_apart(part, {key});
        }
    }

    void add_schemas(const Schema& part) {
        for (const auto& [key, schema] : part.schemas) {
            if (grouped(key) || key == Key::additional_properties ||
                (&part != &own_ && is_in(unevaluated, key)))
                continue;
            if (!out_.schema(key))
                out_.schemas[key] = schema;
            else if (out_.schema(key) != schema)
                keep_apart(part, {key});
        }
    }

    void add_lists(const Schema& part) {
        for (const auto& [key, list] : part.lists) {
            if (grouped(key)) continue;
            if (key == Key::all_of)
                rest_.insert(rest_.end(), list.begin(), list.end());
            else if (!out_.lists.count(key))
                out_.lists[key] = list;
            else if (out_.list(key) != list)
                keep_apart(part, {key});
        }
    }

    // additionalProperties speaks about the names that its own schema does not list.
    void add_properties(const Schema& part) {
        const auto* mine = out_.schema(Key::additional_properties);
        const auto* theirs = part.schema(Key::additional_properties);
        const auto& their_names = part.names(Key::properties);
        const auto meets = [](const Schema& s, const Schema::Named& names) {
            const auto* more = s.schema(Key::additional_properties);
            if (!more || more->trivial()) return false;
            const auto listed = names_of(s.names(Key::properties));
            return std::any_of(names.begin(), names.end(),
                               [&](const auto& entry) { return !listed.count(entry.first); });
        };
        const bool differ = mine && theirs && mine != theirs && !closed(out_) && !closed(part);
        for (const auto& [one, other] : {std::pair{&std::as_const(out_), &part}, {&part, &out_}})
            if (differ || meets(*one, other->names(Key::properties)))
                keep_apart(*one,
                           {Key::properties, Key::pattern_properties, Key::additional_properties});
        auto& names = out_.named[Key::properties];
        for (const auto& [name, schema] : their_names) {
            const auto [it, fresh] = position_.try_emplace(name, names.size());
            if (fresh) {
                names.emplace_back(name, schema);
            } else if (auto& known = names[it->second].second;
                       known != schema && !schema->trivial()) {
                known = known->trivial() ? schema : document_.combine(Key::all_of, {known, schema});
            }
        }
        if (names.empty()) out_.named.erase(Key::properties);
        if (theirs && (!mine || mine->trivial() || theirs->never))
            out_.schemas[Key::additional_properties] = theirs;
    }

    void add_named(const Schema& part) {
        for (const auto key : {Key::pattern_properties, Key::dependent_schemas})
            for (const auto& entry : part.names(key)) {
                auto& all = out_.named[key];
                if (!find(all, entry.first))
                    all.push_back(entry);
                else if (find(all, entry.first) != entry.second)
                    keep_apart(part, {key});
            }
    }

    void add_required(const Schema& part) {
        for (const auto& name : part.required)
            if (required_.insert(name).second) out_.required.push_back(name);
        out_.dependent_required.insert(out_.dependent_required.end(),
                                       part.dependent_required.begin(),
                                       part.dependent_required.end());
    }

    SchemaDocument& document_;
    const Schema& own_;
    Schema out_;
    std::vector<Schema::Ptr> rest_;
    std::map<std::string_view, std::size_t> position_;  // of a property in out_
    std::set<std::string_view> required_;
};

IPYBOX_DECL Schema SchemaDocument::merge(std::vector<Schema::Ptr> parts, const Schema& own) {
    Merge merge(*this, own);
    parts.push_back(&own);
    for (const auto* part : parts)
        if (!merge.add(*part)) {
            Schema never;
            never.never = true;
            return never;
        }
    return merge.take();
}

}  // namespace ipybox::detail
