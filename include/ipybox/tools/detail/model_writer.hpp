#pragma once
// The Python classes of one JSON Schema.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/detail/python_source.hpp>
#include <ipybox/detail/schema_document.hpp>
#include <ipybox/detail/schema_validator.hpp>
#include <ipybox/detail/utf8.hpp>
#include <ipybox/error.hpp>
#include <ipybox/tools/detail/passable_type.hpp>
#include <ipybox/tools/detail/rule_writer.hpp>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace ipybox::detail {

// A Python type expression; `checks` is the metadata of Annotated.
struct PythonType {
    std::string base;
    std::vector<std::string> checks;
    bool none = false;  // says None at its top level
    // What an object's type is joined with when its schema allows more than objects.
    std::string beside{};

    std::string text() const {
        auto out = checks.empty() ? base : "Annotated[" + base;
        for (const auto& check : checks) out += ", " + check;
        if (!checks.empty()) out += ']';
        return beside.empty() ? out : out + " | " + beside;
    }
    bool any() const { return base == "Any"; }
};

// A name and a number behind it, which does not read as a part of one that is there already.
inline std::string numbered(std::string name, std::size_t number) {
    if (!name.empty() && is_ascii_digit(static_cast<unsigned char>(name.back()))) name += '_';
    return name + std::to_string(number);
}

// Names that are not taken yet: the wanted one, or the first free of wanted2, wanted3, …, in time
// that does not grow with how many there are already.
class FreshNames {
public:
    template <class IsFree>
    std::string make(const std::string& wanted, std::string_view before_number,
                     const IsFree& is_free) {
        if (is_free(wanted)) return wanted;
        for (auto& number = numbers_.try_emplace(wanted, 2).first->second;; ++number)
            if (auto name = numbered(wanted + std::string(before_number), number); is_free(name))
                return name;
    }
    // The names of `wanted` that are free again are given out once more.
    void give_back(const std::string& wanted) { numbers_.erase(wanted); }

private:
    std::map<std::string, std::size_t> numbers_;
};

// The identifiers in Python code, without what string literals hold.
inline std::set<std::string, std::less<>> identifiers_in(std::string_view code) {
    std::set<std::string, std::less<>> names;
    for (std::size_t i = 0; i < code.size();) {
        const std::size_t start = i;
        if (is_word(static_cast<unsigned char>(code[i]))) {
            while (i < code.size() && is_word(static_cast<unsigned char>(code[i]))) ++i;
            names.emplace(code.substr(start, i - start));
        } else if (code[i] == '"') {
            for (++i; i < code.size() && code[i] != '"'; ++i)
                if (code[i] == '\\') ++i;
            ++i;
        } else {
            ++i;
        }
    }
    return names;
}

// The classes of one schema, in the order in which they are to be defined.
class ModelWriter {
public:
    struct Definition {
        std::string name;
        std::string text;
        std::set<std::string, std::less<>> uses;  // identifiers
    };
    enum class Side { input, output };

    // `used` holds the class names of the module; new ones are added.
    // Throws Error: bad_argument (the schema is too large to be typed).
    ModelWriter(const json::value& schema, Side side, std::set<std::string>& used)
        : document_(schema), input_(side == Side::input), used_(used) {}

    // Defines `name`, and before it all that it needs.
    std::vector<Definition> write(const std::string& name) {
        used_.insert(name);
        const auto& root = document_.effective(document_.root());
        if (!input_ && root.types != 0 && !(root.types & json_object)) {
            const auto item = type(root, "Item");
            const auto base = "(RootModel[" + item.text() + "])";
            define(name, "class " + name + base + ":\n    pass\n", base);
        } else {
            names_[&document_.root()] = names_[&root] = name;
            class_names_.insert(name);
            write_class(root, name, true);
        }
        return std::move(definitions_);
    }

    // The keyword parameters of a call with the fields of the class that was written last, as in
    // "*, path: str, depth: int = 1"; empty when there are none. open: other names may be passed.
    struct Parameter {
        std::string name, wire;  // in Python, and what is sent
        Schema::Ptr schema;      // of document()
        std::string value;       // its default, in Python
        bool required = false;
    };
    struct Parameters {
        std::string list;
        bool open = false;
        std::vector<Parameter> each{};  // of results too
    };
    const Parameters& parameters() const { return parameters_; }
    SchemaDocument& document() { return document_; }

private:
    static constexpr int max_visits = 20'000;
    static constexpr int max_nesting = 30;
    static constexpr std::size_t max_literals = 5'000;
    static constexpr std::size_t max_steps = 20'000;  // of a validation
    static constexpr std::size_t max_default = 80, max_field_doc = 4'000;

    // `code` holds the types and calls in `text`, whose names have to be imported or defined.
    void define(const std::string& name, std::string text, std::string_view code) {
        if (text.starts_with("class ")) class_names_.insert(name);
        definitions_.push_back({name, std::move(text), identifiers_in(code)});
    }

    std::string fresh_name(const std::string& wanted) {
        static const std::set<std::string, std::less<>> taken{
            "Annotated", "Any",       "False",    "Field", "Literal",      "Model",
            "None",      "NotObject", "Open",     "Out",   "Params",       "Result",
            "RootModel", "SafeInt",   "Sequence", "True",  "TypeAliasType"};
        const auto stem = !input_ && used_.count(wanted) ? "Result" + wanted : wanted;
        auto name = fresh_names_.make(stem, "", [&](const std::string& candidate) {
            return !taken.count(candidate) && !used_.count(candidate);
        });
        used_.insert(name);
        return name;
    }

    // The check for keywords that no type says; none for results, which must not be refused.
    void add_rule(PythonType& type, const Schema& keywords) {
        if (!input_) return;
        const auto literal = RuleWriter(document_, patterns_).write(keywords);
        if (!literal.empty())
            type.checks.push_back("rule(" + literal + ')');
        else if (!keywords.trivial())
            note_ = "also checked by the host";
    }
    static Schema only(const Schema& schema, std::initializer_list<Key> keys) {
        Schema out;
        for (const auto key : keys) out.take(key, schema);
        return out;
    }

    static std::string name_in_ref(const Schema& schema) {
        if (!schema.ref || (schema.ref->find("$defs/") == std::string_view::npos &&
                            schema.ref->find("definitions/") == std::string_view::npos))
            return {};
        const auto name = schema.ref->substr(schema.ref->rfind('/') + 1);
        const auto pascal = python_class_name(without_percents(name), "");
        for (const auto* plain : {"Items", "Value", "AdditionalProperties", "Schema"})
            if (pascal.substr(0, std::string_view(plain).size()) == plain) return {};
        return pascal;
    }

    // What a URI writes as %3C is a bracket and no 3C.
    static std::string without_percents(std::string_view name) {
        std::string plain(name);
        for (auto at = plain.find('%'); at != std::string::npos; at = plain.find('%', at + 1))
            plain.replace(at, std::min<std::size_t>(3, plain.size() - at), " ");
        return plain;
    }

    PythonType type(const Schema& schema, std::string hint) {
        if (++visits_ > max_visits)
            throw Error(errc::bad_argument, "the schema has too many parts");
        const auto& meaning = document_.effective(schema);
        if (meaning.trivial()) return {"Any", {}};
        if (const auto it = names_.find(&meaning); it != names_.end()) {
            referred_.insert(it->second);
            return {it->second, {}, false, beside_object(meaning)};
        }
        if (const auto it = done_.find(&meaning); it != done_.end()) return it->second;
        if (const auto name = name_in_ref(schema); !name.empty()) hint = name;
        if (nesting_ >= max_nesting) {
            note_ = "too deeply nested to be typed; checked by the host";
            return {"Any", {}};
        }
        const auto [open, fresh] = open_.try_emplace(&meaning, Open{{}, containers_});
        if (!fresh && open->second.containers == containers_)
            return {};  // a union that is its own branch
        if (!fresh) {   // recursion through something that is no class needs a named alias
            if (open->second.alias.empty()) open->second.alias = fresh_name(hint);
            return {open->second.alias, {}};
        }
        ++nesting_;
        auto result = expand(meaning, hint);
        --nesting_;
        if (result.base.empty()) result.base = "Any";
        if (const auto alias = open_[&meaning].alias; !alias.empty()) {
            const auto code = result.text();
            define(alias,
                   alias + " = TypeAliasType(\"" + alias + "\", " + python_string(code) + ")\n",
                   code + " TypeAliasType");
            result = {alias, {}};
        }
        open_.erase(&meaning);
        return done_[&meaning] = result;
    }

    // The type of something inside a container.
    PythonType inner_type(const Schema& schema, const std::string& hint) {
        ++containers_;
        auto result = type(schema, hint);
        --containers_;
        return result;
    }

    PythonType expand(const Schema& s, const std::string& hint) {
        if (s.never) {
            PythonType nothing{"Any", {}};
            add_rule(nothing, s);
            return nothing;
        }
        if (s.has_any({Key::enumeration, Key::constant})) return literal(s);
        if (is_object(s) && (s.names(Key::properties).size() ||
                             !s.has_any({Key::any_of, Key::one_of}) || one_class(s)))
            return object(s, hint);
        if (s.has_any({Key::unevaluated_items,
                       Key::unevaluated_properties})) {  // looks into all the rest
            PythonType result{s.types == json_array ? "list[Any]" : "Any", {}};
            add_rule(result, s);
            return result;
        }
        if (s.lists.count(Key::all_of)) return with_rest(s, {Key::all_of}, hint);
        if (s.has_any({Key::any_of, Key::one_of})) return alternatives(s, hint);
        if (s.has_any({Key::negation, Key::condition}) && s.types != 0)
            return with_rest(s, {Key::negation, Key::condition, Key::consequence, Key::alternative},
                             hint);
        switch (s.types) {
            case 0:
                return untyped(s, hint);
            case json_null:
                return {"None", {}, true};
            case json_boolean:
                return {"bool", {}};
            case json_integer:
            case json_number:
                return number(s);
            case json_string:
                return string(s);
            case json_array:
                return array(s, hint);
            case json_object:
                return object(s, hint);
            default:
                return several_types(s, hint);
        }
    }

    // Types the rest of the schema and checks `keys` on top.
    PythonType with_rest(const Schema& s, std::initializer_list<Key> keys,
                         const std::string& hint) {
        Schema rest = s;
        for (const auto key : keys) rest.erase(key);
        auto result =
            rest.trivial() ? PythonType{"Any", {}} : expand(*document_.add(std::move(rest)), hint);
        if (result.none || !result.beside.empty()) result = {result.text(), {}, result.none};
        add_rule(result, only(s, keys));
        return result;
    }

    static bool is_object(const Schema& s) {
        return s.types == json_object || (s.types == 0 && s.has(Key::properties) &&
                                          !s.has_any({Key::prefix_items, Key::items}));
    }
    // Values that are no objects fit a schema that only says something about objects.
    std::string beside_object(const Schema& s) {
        const auto objects_only = [&](Key key) {
            const auto& branches = s.list(key);
            return !branches.empty() &&
                   std::all_of(branches.begin(), branches.end(), [&](const auto* branch) {
                       return document_.effective(*branch).types == json_object;
                   });
        };
        if (!input_ || s.types != 0 || objects_only(Key::any_of) || objects_only(Key::one_of))
            return {};
        Schema rest;
        for (const auto& info : key_table)
            if (info.types != json_object) rest.take(info.key, s);
        PythonType others{"NotObject", {}};
        add_rule(others, rest);
        return others.text();
    }
    // Branches that only narrow the same object belong to one class with a rule.
    bool one_class(const Schema& s) {
        if (s.has_any({Key::properties, Key::additional_properties, Key::pattern_properties}) ||
            !s.required.empty())
            return true;
        for (const auto key : {Key::any_of, Key::one_of})
            for (const auto* branch : s.list(key)) {
                const auto& b = document_.effective(*branch);
                if (!b.trivial() && b.types == 0 && b.spoken_types() == json_object &&
                    !b.has(Key::properties))
                    return true;
            }
        return false;
    }

    PythonType literal(const Schema& s) {
        SchemaValidator validator(document_, max_steps);
        std::vector<const json::value*> values, fitting;
        if (const auto* only_value = s.value(Key::constant))
            values.push_back(only_value);
        else
            for (const auto& item : s.value(Key::enumeration)->get_array()) values.push_back(&item);
        Schema rest = s;
        if (!s.has(Key::constant) || !s.has(Key::enumeration))
            rest.erase(Key::constant), rest.erase(Key::enumeration);
        for (const auto* value : values)
            if (rest.trivial() || validator.valid(rest, *value)) fitting.push_back(value);
        if (fitting.empty()) fitting = values;  // a contradiction; believe the list
        if (fitting.size() > max_literals) {
            note_ = "too many values to list; checked by the host";
            return {"Any", {}};
        }

        bool plain = true, booleans = false, integers = false;
        for (const auto* value : fitting) {
            plain = plain && !value->is_structured() && !value->is_double() &&
                    !(is_exact(*value) && !is_python_integer(*value)) &&
                    !(value->is_string() && has_surrogate(view(value->get_string())));
            booleans = booleans || value->is_bool();
            integers = integers || value->is_int64() || value->is_uint64() || is_exact(*value);
        }
        plain = plain && !(booleans && integers);  // True == 1 in a Literal
        std::string list;
        std::set<std::string> seen;
        for (const auto* value : fitting)
            if (auto text = python_literal(*value); seen.insert(text).second)
                list += (list.empty() ? "" : ", ") + text;
        if (list == "None") return {"None", {}, true};
        if (plain) return {"Literal[" + list + ']', {}, seen.count("None") != 0};
        return {"Any", {"one_of(" + list + ')'}};
    }

    // Half a surrogate pair: pydantic refuses it in a Literal and in an alias.
    static bool has_surrogate(std::string_view text) {
        while (!text.empty())
            if (is_surrogate(take_code_point(text))) return true;
        return false;
    }

    PythonType alternatives(const Schema& s, const std::string& hint) {
        const auto key = s.has(Key::any_of) ? Key::any_of : Key::one_of;
        Schema rest = s;
        rest.erase(key);
        std::vector<Schema::Ptr> branches;
        std::size_t classes = 0;
        for (const auto* branch : s.list(key)) {
            const auto& b = document_.effective(*branch);
            Schema types_only;
            types_only.types = rest.types;
            const bool implied = rest.trivial() || (rest.spoken_types() == 0 && b.types != 0 &&
                                                    common_types(rest.types, b.types) == b.types);
            branches.push_back(implied ? branch
                                       : &document_.effective(*document_.combine(
                                             Key::all_of, {document_.add(rest), branch})));
            classes += b.has(Key::properties);
        }
        const auto tag = input_ ? find_tag(branches) : std::nullopt;
        std::vector<PythonType> types;
        for (std::size_t i = 0; i < branches.size(); ++i) {
            const auto& b = document_.effective(*branches[i]);
            if (b.never) continue;
            const auto title =
                python_class_name(!branches[i]->title.empty() ? branches[i]->title : b.title, "");
            types.push_back(type(*branches[i], !title.empty()                  ? title
                                               : tag && !tag->names[i].empty() ? tag->names[i]
                                               : classes > 1 ? numbered(hint, i + 1)
                                                             : hint));
        }
        auto result = tag ? tagged(*tag, types) : join(types);
        if (result.any() || (key == Key::one_of && !disjoint(branches)))
            add_rule(result, only(s, {key}));
        return result;
    }

    // A property whose text says which branch of a union is meant.
    struct Tag {
        std::string_view wire;
        std::vector<std::string> names;  // of the branches' classes, by their text; "" for null
    };

    std::optional<Tag> find_tag(const std::vector<Schema::Ptr>& branches) {
        std::vector<const Schema*> objects;
        for (const auto* branch : branches)
            if (const auto& b = document_.effective(*branch); b.types == json_object)
                objects.push_back(&b);
            else if (b.types != json_null)
                return std::nullopt;
        if (objects.size() < 2) return std::nullopt;
        for (const auto& wire : objects.front()->required) {
            std::set<std::string_view> all;
            std::map<const Schema*, std::string> names;
            for (const auto* object : objects) {
                const auto texts = tag_texts(*object, wire);
                if (texts.empty()) break;
                for (const auto text : texts)
                    if (!all.insert(text).second) return std::nullopt;
                names[object] = python_class_name(texts.front(), "");
            }
            if (names.size() != objects.size()) continue;
            Tag tag{wire, {}};
            for (const auto* branch : branches)
                tag.names.push_back(names[&document_.effective(*branch)]);
            return tag;
        }
        return std::nullopt;
    }

    // The texts that a required property may have; none where others are possible.
    std::vector<std::string_view> tag_texts(const Schema& object, std::string_view wire) {
        std::vector<std::string_view> texts;
        const auto* property = find(object.names(Key::properties), wire);
        if (!property || std::find(object.required.begin(), object.required.end(), wire) ==
                             object.required.end())
            return texts;
        const auto& s = document_.effective(*property);
        const auto* constant = s.value(Key::constant);
        const auto* list = s.value(Key::enumeration);
        if ((constant && list) || (!constant && !list)) return texts;
        const auto add = [&](const json::value& value) {
            if (!is_text(value)) return false;
            texts.push_back(view(value.get_string()));
            return true;
        };
        if (constant ? !add(*constant)
                     : !std::all_of(list->get_array().begin(), list->get_array().end(), add))
            texts.clear();
        return texts;
    }

    // A union of classes of which the tag chooses one, so that errors are about that one alone.
    PythonType tagged(const Tag& tag, std::vector<PythonType> types) {
        const auto all = join(types);
        std::string field;
        std::set<std::string> seen;
        std::erase_if(types, [](const auto& type) { return type.base == "None"; });
        for (const auto& type : types) {
            const auto found = tags_.find({type.base, std::string(tag.wire)});
            if (!type.checks.empty() || !type.beside.empty() || found == tags_.end() ||
                (!field.empty() && field != found->second) || !seen.insert(type.base).second)
                return all;
            field = found->second;
        }
        auto result = join(types);
        result.checks.push_back("Field(discriminator=" + python_string(field) + ')');
        return all.none ? PythonType{result.text() + " | None", {}, true} : result;
    }

    // True when no value fits two of the schemas.
    bool disjoint(const std::vector<Schema::Ptr>& schemas) {
        if (schemas.size() > 50) return false;
        for (std::size_t i = 0; i < schemas.size(); ++i)
            for (std::size_t j = 0; j < i; ++j)
                if (!disjoint(document_.effective(*schemas[i]), document_.effective(*schemas[j]),
                              3))
                    return false;
        return true;
    }
    bool disjoint(const Schema& a, const Schema& b, int depth) {
        if (a.types && b.types && common_types(a.types, b.types) == 0) return true;
        const auto values = [](const Schema& s) {
            std::vector<const json::value*> out;
            if (const auto* only_value = s.value(Key::constant))
                out.push_back(only_value);
            else if (const auto* list = s.value(Key::enumeration))
                for (const auto& item : list->get_array()) out.push_back(&item);
            return out;
        };
        const auto x = values(a), y = values(b);
        const auto in = [](const auto& list, const json::value& v) {
            return std::any_of(list.begin(), list.end(),
                               [&](const auto* item) { return json_equal(*item, v); });
        };
        if (!x.empty() && !y.empty() &&
            std::none_of(x.begin(), x.end(), [&](const auto* v) { return in(y, *v); }))
            return true;
        for (const auto& [one, other] : {std::pair{&x, &b}, std::pair{&y, &a}})
            if (!one->empty() && other->types &&
                std::none_of(one->begin(), one->end(), [&, t = other->types](const auto* v) {
                    return type_allowed(t, type_of(*v));
                }))
                return true;
        if (depth == 0 || a.types != json_object || b.types != json_object) return false;
        for (const auto& name : a.required) {
            if (std::find(b.required.begin(), b.required.end(), name) == b.required.end()) continue;
            const auto *p = find(a.names(Key::properties), name),
                       *q = find(b.names(Key::properties), name);
            if (p && q && disjoint(document_.effective(*p), document_.effective(*q), depth - 1))
                return true;
        }
        return false;
    }

    // A union: Literals joined, None last, Any swallowing the rest.
    static PythonType join(const std::vector<PythonType>& types) {
        std::vector<std::string> parts, wide;
        std::string literals;
        std::size_t literal_at = 0;
        bool none = false;
        const auto add = [&](const std::string& text) {
            auto& list = text.compare(0, 13, "Annotated[Any") == 0 ? wide : parts;
            if (std::find(list.begin(), list.end(), text) == list.end()) list.push_back(text);
        };
        for (auto type : types) {
            if (type.base.empty()) continue;
            if (type.any() && type.checks.empty()) return type;
            if (!type.beside.empty() &&
                std::find(wide.begin(), wide.end(), type.beside) == wide.end())
                wide.push_back(type.beside);
            type.beside.clear();
            auto base = type.base;
            none = none || type.none;
            if (type.none && type.checks.empty()) {
                if (base == "None") continue;
                if (base.size() > 7 && base.compare(base.size() - 7, 7, " | None") == 0)
                    base.resize(base.size() - 7);
            }
            if (type.checks.empty() && base.compare(0, 8, "Literal[") == 0 &&
                base.find("] | ") == std::string::npos) {
                if (literals.empty()) literal_at = parts.size(), parts.emplace_back();
                literals += (literals.empty() ? "" : ", ") + base.substr(8, base.size() - 9);
            } else {
                add(type.checks.empty() ? base : type.text());
            }
        }
        if (!literals.empty()) parts[literal_at] = "Literal[" + literals + ']';
        // Older pydantic takes True for a float unless bool comes first.
        std::stable_partition(parts.begin(), parts.end(),
                              [](const auto& part) { return part == "bool"; });
        // What takes values of any type comes first: pydantic prefers the first of those that fit
        // as well, and must not make a number of a text that may stay one.
        parts.insert(parts.begin(), wide.begin(), wide.end());
        std::string text;
        for (const auto& part : parts) text += (text.empty() ? "" : " | ") + part;
        if (none) text += text.empty() ? "None" : " | None";
        return {text.empty() ? "Any" : text, {}, none};
    }

    PythonType several_types(const Schema& s, const std::string& hint) {
        std::vector<PythonType> types;
        for (const auto& [name, bit] : json_types) {
            if (!(s.types & bit)) continue;
            Schema one;
            one.types = bit;
            for (const auto& info : key_table)
                if (info.types & bit) one.take(info.key, s);
            if (bit == json_object)
                one.required = s.required, one.dependent_required = s.dependent_required;
            types.push_back(expand(*document_.add(std::move(one)), hint));
        }
        return join(types);
    }

    PythonType untyped(const Schema& s, const std::string& hint) {
        if (s.has(Key::additional_properties) && s.spoken_types() == json_object)
            return object(s, hint);
        PythonType result{"Any", {}};
        add_rule(result, s);
        return result;
    }

    PythonType string(const Schema& s) {
        PythonType result{"str", {}};
        if (!input_) return result;
        add_lengths(result, s, Key::min_length, Key::max_length);
        if (const auto* p = s.value(Key::pattern)) {
            const auto text = view(p->get_string());
            if (patterns_.allows(text))
                result.checks.push_back("pattern(" + python_string(python_pattern(text)) + ')');
            else
                note_ = "has a pattern that is not checked here";
        }
        return result;
    }

    static constexpr double max_safe = 9'007'199'254'740'991;  // 2^53 - 1
    static bool is_zero(const json::value& v) { return compare_numbers(v, 0) == 0; }
    static std::string whole(const json::value& v) { return integer_text(v, max_digits); }
    static bool small(const json::value& v) { return std::abs(to_double(v)) < 1e15; }
    // Python reads integers of up to 4,300 digits.
    static constexpr std::size_t max_digits = 4'000;
    static bool is_python_integer(const json::value& v) {
        const auto text = exact_text(v);
        return !text.empty() && text.size() <= max_digits && text.find_first_of(".eE") == text.npos;
    }

    void add_lengths(PythonType& type, const Schema& s, Key least, Key most) {
        std::string bounds;
        if (const auto* v = s.value(least); v && !is_zero(*v) && small(*v))
            bounds = "min_length=" + whole(*v);
        if (const auto* v = s.value(most); v && small(*v))
            bounds += (bounds.empty() ? "" : ", ") + ("max_length=" + whole(*v));
        if (!bounds.empty()) type.checks.push_back("Field(" + bounds + ')');
    }

    PythonType number(const Schema& s) {
        const bool integer = s.types == json_integer;
        PythonType result{integer ? "int" : "int | float", {}};
        if (!input_) return result;
        static constexpr std::array<std::tuple<Key, const char*, bool>, 4> bounds{
            {{Key::minimum, "ge=", true},
             {Key::maximum, "le=", false},
             {Key::exclusive_minimum, "gt=", false},
             {Key::exclusive_maximum, "lt=", true}}};
        std::string field;
        Schema rest = only(s, {Key::multiple_of});
        for (const auto& [key, name, up] : bounds) {
            const auto* v = s.value(key);
            if (!v) continue;
            if (is_exact(*v) || (v->is_double() && !small(*v))) {
                rest.take(key, s);
                continue;
            }
            const double d = to_double(*v);
            if (integer && std::abs(d) == max_safe && (d < 0) == (key == Key::minimum)) {
                result.base = "SafeInt";  // what is left of a plain "integer" in JavaScript
                continue;
            }
            const bool fraction = d != std::floor(d);
            const auto text =
                !fraction ? whole(*v)
                : integer
                    ? std::to_string(static_cast<std::int64_t>(up ? std::ceil(d) : std::floor(d)))
                    : python_literal(*v);
            field += (field.empty() ? "" : ", ") + (name + text);
        }
        if (!field.empty()) result.checks.push_back("Field(" + field + ')');
        add_rule(result, rest);
        return result;
    }

    static std::string singular(const std::string& hint) {
        const bool plural = hint.size() > 3 && hint.back() == 's' && hint[hint.size() - 2] != 's';
        return plural ? hint.substr(0, hint.size() - 1) : hint + "Item";
    }

    PythonType array(const Schema& s, const std::string& hint) {
        const auto& prefix = s.list(Key::prefix_items);
        const auto* items = s.schema(Key::items);
        const auto count = [&](Key key) {
            const auto* v = s.value(key);
            return v && small(*v) ? static_cast<std::size_t>(to_double(*v)) : std::size_t(-1);
        };
        PythonType result{"list[Any]", {}};
        if (!prefix.empty()) {
            const bool exact =
                count(Key::min_items) == prefix.size() && prefix.size() <= 20 &&
                (count(Key::max_items) == prefix.size() || (items && items->never)) &&
                !s.has_any({Key::unique_items, Key::contains});
            if (!exact) {
                add_rule(result, s);
                return result;
            }
            std::string list;
            for (std::size_t i = 0; i < prefix.size(); ++i)
                list += (i ? ", " : "") +
                        inner_type(*prefix[i], numbered(singular(hint), i + 1)).text();
            if (!input_) return {"tuple[" + list + ']', {}};
            return {"tuple[" + list + ']', {"Field(strict=False)"}};  // a list is one in JSON
        }
        if (items && items->never) return {"list[Any]", {"Field(max_length=0)"}};
        if (items) result.base = "list[" + inner_type(*items, singular(hint)).text() + ']';
        if (!input_) return result;
        add_lengths(result, s, Key::min_items, Key::max_items);
        if (s.value(Key::unique_items)) result.checks.emplace_back("unique");
        if (s.has(Key::contains))
            add_rule(result, only(s, {Key::contains, Key::min_contains, Key::max_contains}));
        return result;
    }

    PythonType object(const Schema& s, const std::string& hint) {
        const bool branches =
            s.has_any({Key::any_of, Key::one_of, Key::condition, Key::dependent_schemas}) &&
            one_class(s);
        if (s.has(Key::properties) || (branches && !hoisted(s).empty())) {
            const auto wanted = hint.empty() ? std::string("Item") : hint;
            const auto name = fresh_name(wanted);
            names_[&s] = name;
            write_class(s, name, false);
            if (const auto& same = equal_class(name); same != name) {
                used_.erase(name);
                fresh_names_.give_back(wanted);
                names_[&s] = same;
            }
            return {names_[&s], {}, false, beside_object(s)};
        }
        const auto* more = s.schema(Key::additional_properties);
        PythonType result{"dict[str, Any]", {}};
        Schema rest = object_rule(s);
        rest.required = s.required;
        if (more && more->never && !s.has(Key::pattern_properties)) {
            result.checks.emplace_back("Field(max_length=0)");
        } else {
            if (more && !s.has(Key::pattern_properties))
                result.base = "dict[str, " + inner_type(*more, hint + "Value").text() + ']';
            if (input_) add_lengths(result, s, Key::min_properties, Key::max_properties);
            rest.erase(Key::min_properties);
            rest.erase(Key::max_properties);
        }
        if (!rest.trivial()) add_rule(result, rest);
        result.beside = beside_object(s);
        return result;
    }

    // A class that says the same as the one just defined, which then goes, or that one. Those that
    // refer to themselves stay.
    std::string equal_class(const std::string& name) {
        const auto& text = definitions_.back().text;
        if (referred_.count(name)) return name;
        const auto [it, fresh] = classes_.try_emplace(text.substr(text.find('(')), name);
        if (!fresh) {
            definitions_.pop_back();
            class_names_.erase(name);
        }
        return it->second;
    }

    // As all names of properties are.
    static bool says_only_text(Schema s) {
        if (s.types & json_string) s.types = 0;
        return s.trivial();
    }

    // What fields cannot say about an object.
    static Schema object_rule(const Schema& s) {
        Schema rule = only(s, {Key::enumeration, Key::constant, Key::any_of, Key::one_of,
                               Key::all_of, Key::negation, Key::condition, Key::consequence,
                               Key::alternative, Key::dependent_schemas, Key::min_properties,
                               Key::max_properties, Key::property_names, Key::pattern_properties});
        rule.dependent_required = s.dependent_required;
        if (const auto* names = rule.schema(Key::property_names); names && says_only_text(*names))
            rule.erase(Key::property_names);
        const auto* more = s.schema(Key::additional_properties);
        if (s.has(Key::unevaluated_properties) ||
            (s.has(Key::pattern_properties) && more && !more->trivial())) {
            rule.take(Key::unevaluated_properties, s);
            rule.take(Key::additional_properties, s);
            static const Schema anything{};
            for (const auto& [name, schema] : s.names(Key::properties))
                rule.named[Key::properties].emplace_back(name, &anything);
        }
        return rule;
    }

    // A property that only branches of a schema name.
    struct Hoisted {
        std::string_view name;
        Schema::Ptr schema;
        bool certain;  // whichever branch holds, its values are of one of the types that branches
                       // say
    };

    // They become optional fields, where the schema itself leaves room for them.
    std::vector<Hoisted> hoisted(const Schema& s) {
        std::vector<Hoisted> found;
        const auto* more = s.schema(Key::additional_properties);
        if (more && more->never && !s.has(Key::pattern_properties)) return found;
        std::map<std::string_view, std::size_t> index;  // SIZE_MAX: a property of the schema itself
        for (const auto& entry : s.names(Key::properties)) index[entry.first] = SIZE_MAX;
        hoist(s, 0, found, index);
        return found;
    }

    void hoist(const Schema& s, int depth, std::vector<Hoisted>& found,
               std::map<std::string_view, std::size_t>& index) {
        static constexpr int max_branching = 4;
        if (depth == max_branching) return;
        const auto add = [&](Schema::Ptr branch, const auto& certain) {
            const auto& meaning = document_.effective(*branch);
            for (const auto& [name, schema] : meaning.names(Key::properties)) {
                const auto [it, fresh] = index.try_emplace(name, found.size());
                if (it->second == SIZE_MAX) continue;
                if (fresh) found.push_back({name, schema, false});
                auto& known = found[it->second];
                if (known.schema != schema)
                    known.schema = document_.combine(Key::any_of, {known.schema, schema});
                known.certain = known.certain || (depth == 0 && certain(name));
            }
            hoist(meaning, depth + 1, found, index);
        };
        const auto judges = [&](Schema::Ptr branch, std::string_view name) {
            const auto& meaning = document_.effective(*branch);
            const auto* more = meaning.schema(Key::additional_properties);
            return meaning.never || find(meaning.names(Key::properties), name) ||
                   (meaning.types != 0 && !(meaning.types & json_object)) ||
                   (more && more->never && !meaning.has(Key::pattern_properties));
        };
        for (const auto key : {Key::any_of, Key::one_of})
            for (const auto* branch : s.list(key))
                add(branch, [&](std::string_view name) {
                    const auto& all = s.list(key);
                    return all.size() <= 50 &&
                           std::all_of(all.begin(), all.end(),
                                       [&](const auto* each) { return judges(each, name); });
                });
        for (const auto* branch : s.list(Key::all_of)) add(branch, [](auto) { return true; });
        const auto *then = s.schema(Key::consequence), *otherwise = s.schema(Key::alternative);
        for (const auto* branch : {then, otherwise})
            if (branch)
                add(branch, [&](std::string_view name) {
                    return then && otherwise && judges(then, name) && judges(otherwise, name);
                });
        for (const auto& entry : s.names(Key::dependent_schemas))
            add(entry.second, [&](std::string_view name) { return name == entry.first; });
    }

    struct Field {
        std::string_view wire;
        Schema::Ptr schema;
        PythonType type;
        std::string name;
        std::string note;
        bool required = false;
        std::string value{};      // its default, in Python
        bool given_none = false;  // the type says None already
    };

    void write_class(const Schema& s, const std::string& name, bool root) {
        const auto* more = s.schema(Key::additional_properties);
        std::vector<Field> fields;
        std::string remarks;
        std::set<std::string_view> wire_names;
        const std::set<std::string_view> required(s.required.begin(), s.required.end());
        const auto add = [&](std::string_view wire, Schema::Ptr schema, bool certain = true) {
            if (!wire_names.insert(wire).second) return;
            if (has_surrogate(wire)) {
                remarks = "    # a key that is not valid Unicode is left out\n";
                return;
            }
            Field field{wire, schema, {}, {}, {}, required.count(wire) != 0};
            note_.clear();
            const auto hint = python_class_name(wire, name + "Item");
            field.type = inner_type(*schema, hint);
            if (input_ && !certain)  // the rule of the class says when
                field.type = {field.type.any() ? "Any" : "Any | " + field.type.text(), {}};
            field.note = std::exchange(note_, {});
            fields.push_back(std::move(field));
        };
        for (const auto& [wire, schema] : s.names(Key::properties)) add(wire, schema);
        for (const auto& [wire, schema, certain] : hoisted(s)) add(wire, schema, certain);
        static const Schema anything{};
        for (const auto& wire : s.required) add(wire, more && !more->never ? more : &anything);

        const bool branching = s.has_any(
            {Key::any_of, Key::one_of, Key::all_of, Key::condition, Key::dependent_schemas});
        const auto* rest = s.schema(Key::unevaluated_properties);
        if (!more && rest && !branching) more = rest;  // they mean the same without branches
        std::string extra;
        if (more && !more->never && !more->trivial() && !s.has(Key::pattern_properties))
            extra = inner_type(*more, name + "Extra").text();

        if (!extra.empty() && extra != "Any") extra = "dict[str, " + extra + ']';
        auto code = extra + '\n';
        for (const auto& field : fields) code += field.type.text() + '\n';
        name_fields(fields, identifiers_in(code));

        std::string body, nullable;
        if (root) parameters_ = {};
        for (auto& field : fields) {
            if (field.required && field.type.text().starts_with("Literal["))
                tags_[{name, std::string(field.wire)}] = field.name;
            auto passed = passable(field.type.text(),
                                   [&](auto word) { return class_names_.count(word) > 0; });
            body += field_text(field, nullable), code += field.type.text() + '\n';
            if (root)
                parameters_.each.push_back({field.name, std::string(field.wire), field.schema,
                                            field.value, field.required});
            if (!input_ || !root) continue;
            parameters_.list += (parameters_.list.empty() ? "*, " : ", ") + field.name + ": ";
            if (field.value == "None" && !field.given_none) passed += " | None";
            parameters_.list += passed + (field.value.empty() ? "" : " = " + field.value);
        }
        if (!extra.empty() && extra != "Any")
            body += "    __pydantic_extra__: " + extra + "  # pyright: ignore\n";
        if (input_) {
            auto rule = object_rule(s);
            if (!branching && !s.has(Key::pattern_properties))
                rule.erase(Key::unevaluated_properties);
            if (const auto text = RuleWriter(document_, patterns_).write(rule); !text.empty())
                body += "    _rule = object_rule(" + text + ")\n", code += "object_rule";
            else if (!rule.trivial())
                remarks += "    # the host checks what is beyond these types\n";
            if (!nullable.empty()) body += "    __nullable__ = (" + nullable + ",)\n";
        }

        bool open = more ? !more->never
                         : !root || (s.names(Key::properties).empty() && !object_rule(s).trivial());
        open = open || s.has(Key::pattern_properties) || (rest && branching);
        if (input_ && root) parameters_.open = open;
        const std::string base = !input_ ? "(Out)" : open ? "(Open)" : "(Model)";
        auto head = "class " + name + base + ":\n";
        if (!(input_ && root) && !visible_text(s.description, 1).empty())
            head += "    " + python_docstring(s.description, 4, max_field_doc) + '\n';
        else if (body.empty())
            body = "    pass\n";
        define(name, head + body + remarks, code + base);
    }

    static void name_fields(std::vector<Field>& fields,
                            const std::set<std::string, std::less<>>& types) {
        static const std::set<std::string, std::less<>> attributes{"construct",
                                                                   "copy",
                                                                   "dict",
                                                                   "fields",
                                                                   "from_orm",
                                                                   "json",
                                                                   "mro",
                                                                   "parse_file",
                                                                   "parse_obj",
                                                                   "parse_raw",
                                                                   "register",
                                                                   "root",
                                                                   "schema",
                                                                   "schema_json",
                                                                   "update_forward_refs",
                                                                   "validate",
                                                                   "model_computed_fields",
                                                                   "model_config",
                                                                   "model_construct",
                                                                   "model_copy",
                                                                   "model_extra",
                                                                   "model_fields",
                                                                   "model_fields_set",
                                                                   "model_json_schema",
                                                                   "model_parametrized_name",
                                                                   "model_post_init",
                                                                   "model_rebuild"};
        std::set<std::string, std::less<>> taken;
        for (const auto& field : fields) taken.emplace(field.wire);
        FreshNames fresh;
        const auto usable = [&](const std::string& name) {
            return !is_python_keyword(name) && !attributes.count(name) && !types.count(name) &&
                   name != "Field" && name != "Annotated" && name != "object_rule" &&
                   name.compare(0, 14, "model_validate") != 0 &&
                   name.compare(0, 10, "model_dump") != 0;
        };
        for (auto& field : fields) {
            const std::string wire(field.wire);
            if (is_python_identifier(wire) && wire[0] != '_' && usable(wire)) {
                field.name = wire;
                continue;
            }
            auto stem = python_field_name(wire);
            if (stem.compare(0, 6, "model_") == 0 && !usable(stem)) stem = "p_" + stem;
            if (!usable(stem)) stem += '_';
            field.name = fresh.make(stem, stem.back() == '_' ? "" : "_", [&](const auto& name) {
                return !taken.count(name) && usable(name);
            });
            taken.insert(field.name);
        }
    }

    std::string field_text(Field& field, std::string& nullable) {
        const auto& meaning = document_.effective(*field.schema);
        SchemaValidator validator(document_, max_steps);
        auto& type = field.type;
        auto doc = visible_text(
            !field.schema->description.empty() ? field.schema->description : meaning.description,
            max_field_doc);
        std::string value;
        if (validator.valid(meaning, nullptr))
            nullable += (nullable.empty() ? "" : ", ") + python_string(field.name);
        if (!field.required) {
            const auto* given =
                field.schema->default_value ? field.schema->default_value : meaning.default_value;
            if (input_ && given && is_simple(*given) && validator.valid(meaning, *given)) {
                value = meaning.types == json_integer ? whole(*given) : python_literal(*given);
            } else {
                if (input_ && given && !given->is_null() && !deeper_than(*given, 20))
                    if (auto text = detail::write_json(*given); text.size() < 2 * max_default)
                        doc += (doc.empty() ? "" : " ") + ("(default: " + text + ')');
                field.given_none = type.none || type.any();
                if (!field.given_none) type = {type.text() + " | None", {}, true};
                value = "None";
            }
        }
        if (field.name != field.wire) {
            // The alias is the field's, not that of one type it may have.
            if (!type.beside.empty()) type = {type.text(), {}, type.none};
            const auto alias = "alias=" + python_string(field.wire);
            if (type.checks.size() == 1 && type.checks[0].compare(0, 6, "Field(") == 0)
                type.checks[0].insert(6, alias + ", ");
            else
                type.checks.push_back("Field(" + alias + ')');
        }
        const auto format = meaning.format.empty() ? field.schema->format : meaning.format;
        if (!format.empty() && format != "enum" && doc.find(format) == std::string::npos)
            doc += (doc.empty() ? "" : " ") + ("(format: " + std::string(format) + ')');
        field.value = value;
        auto out = folded_code("    " + field.name + ": " + type.text(), 8) +
                   (value.empty() ? "" : " = " + value);
        if (!field.note.empty()) out += "  # " + field.note;
        out += '\n';
        if (!doc.empty()) out += "    " + python_docstring(doc, 4, 2 * max_field_doc) + '\n';
        return out;
    }

    static bool is_simple(const json::value& value) {
        if (const auto digits = exact_text(value); !digits.empty())
            return digits.size() <= max_default && std::isfinite(to_double(value));
        if (value.is_string()) return value.get_string().size() <= max_default;
        return value.is_bool() || value.is_int64() || value.is_uint64() ||
               (value.is_double() && std::isfinite(value.get_double()));
    }

    SchemaDocument document_;
    PatternJudge patterns_;
    const bool input_;
    std::set<std::string>& used_;
    FreshNames fresh_names_;
    std::vector<Definition> definitions_;
    // A type being written, and how many containers deep.
    struct Open {
        std::string alias;
        int containers = 0;
    };
    std::map<Schema::Ptr, Open> open_;
    std::map<Schema::Ptr, std::string> names_;
    std::map<Schema::Ptr, PythonType> done_;
    // The names of fields that may choose a class of a union, by class and wire name.
    std::map<std::pair<std::string, std::string>, std::string, std::less<>> tags_;
    std::set<std::string, std::less<>> referred_;  // classes
    std::set<std::string, std::less<>> class_names_;
    std::map<std::string, std::string> classes_;  // by what stands behind their names
    std::string note_;
    Parameters parameters_;
    int visits_ = 0, nesting_ = 0, containers_ = 0;
};

}  // namespace ipybox::detail
