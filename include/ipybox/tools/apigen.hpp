// Typed Python packages from the tool lists of MCP servers. generate_package() is pure: tools in,
// files out; write_package() puts them on disk in one step. The generated modules run on
// python/ipybox_kernel/models.py.
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/parse_options.hpp>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <ipybox/detail/beneath.hpp>
#include <ipybox/detail/json_memory.hpp>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/detail/json_schema.hpp>
#include <ipybox/detail/pattern.hpp>
#include <ipybox/detail/python_source.hpp>
#include <ipybox/error.hpp>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace ipybox {

// A tool that got a module.
struct GeneratedTool {
    std::string tool;    // the name on the wire
    std::string module;  // the Python module
};

// A tool, and why it has no module or an untyped one.
struct SkippedTool {
    std::string tool;
    std::string reason;
};

// What run() of a module is: a function that waits for the tool, beside which run_async() is a
// coroutine, or a coroutine itself, of which run_async() is another name.
enum class ApiStyle { blocking, async };

// The Python package of one server, in memory.
struct GeneratedPackage {
    std::map<std::string, std::string> files;  // file name -> UTF-8 text
    std::vector<GeneratedTool> tools;          // sorted by tool name
    std::vector<SkippedTool> untyped;          // have a module, but one that takes or returns anything
    std::vector<SkippedTool> skipped;          // have none
};

// Ends the generated part of a module. What stands below belongs to the user or the agent and is
// carried over when the package is written again.
inline constexpr std::string_view own_code_marker = "# --- your code below is kept ---\n";

// Whether the text of a package's __init__.py is what the original ipybox generates.
inline bool is_of_original(std::string_view init) {
    return init.find("tool_exec.client import ToolRunner\n") != init.npos &&
           init.find("\nCLIENT = ToolRunner(") != init.npos;
}

namespace detail {

// How the docstring of a package begins.
inline constexpr std::string_view package_title = "Tools of the MCP server ";

// A Python type expression; `checks` is the metadata of Annotated.
struct PythonType {
    std::string base;
    std::vector<std::string> checks;
    bool none = false;   // says None at its top level
    std::string beside{};  // what an object's type is joined with when its schema allows more than objects

    std::string text() const {
        auto out = checks.empty() ? base : "Annotated[" + base;
        for (const auto& check : checks) out += ", " + check;
        if (!checks.empty()) out += ']';
        return beside.empty() ? out : out + " | " + beside;
    }
    bool any() const { return base == "Any"; }
};

// Names that are not taken yet: the wanted one, or the first free of wanted2, wanted3, …, in time
// that does not grow with how many there are already.
class FreshNames {
public:
    template <class IsFree>
    std::string make(const std::string& wanted, std::string_view before_number,
                     const IsFree& is_free) {
        if (is_free(wanted)) return wanted;
        for (auto& number = numbers_.try_emplace(wanted, 2).first->second;; ++number)
            if (auto name = wanted + std::string(before_number) + std::to_string(number);
                is_free(name))
                return name;
    }

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

// Which patterns may be tried in Python, whose engine backtracks; the host has one that does not.
class PatternJudge {
public:
    bool allows(std::string_view pattern) {
        static constexpr std::size_t max_length = 2'000;
        const auto [it, fresh] = known_.try_emplace(pattern, false);
        if (fresh && pattern.size() <= max_length && steps_ > 0)
            it->second =
                Pattern::backtracking(pattern, steps_) == Pattern::Backtracking::bounded;
        return it->second;
    }

private:
    std::map<std::string_view, bool> known_;
    std::size_t steps_ = 3'000'000;  // for all patterns of a schema
};

// Writes a schema, or some keywords of it, as the Python literal that rule() checks. References go
// to a table beside it, so that recursion and repetition cost nothing.
class RuleWriter {
public:
    static constexpr std::size_t max_size = 8'000;

    RuleWriter(SchemaDocument& document, PatternJudge& patterns)
        : document_(document), patterns_(patterns) {}

    // Empty when the schema says nothing or is too large for a rule.
    std::string write(const Schema& schema) {
        auto out = schema.never ? std::string("False") : body(schema, 0);
        for (std::size_t i = 0; i < pending_.size() && size_ <= max_size; ++i)
            definitions_ +=
                (i ? ", " : "") + python_string(std::to_string(i)) + ": " + node(*pending_[i], 0);
        if (size_ > max_size || out == "{}") return {};
        if (!definitions_.empty()) {
            out.pop_back();
            out += ", \"$defs\": {" + definitions_ + "}}";
        }
        return out;
    }

private:
    std::string node(const Schema& schema, int depth) {
        if (schema.never) return "False";
        if (schema.trivial()) return "True";
        return body(schema, depth);
    }

    std::string body(const Schema& schema, int depth) {
        std::string out;
        const auto add = [&](std::string_view key, const std::string& value) {
            out += (out.empty() ? "{" : ", ") + python_string(key) + ": " + value;
            size_ += key.size() + value.size() / (1 + static_cast<std::size_t>(depth)) + 6;
        };
        if (depth > 30) size_ = max_size + 1;
        if (size_ > max_size) return "{}";
        if (schema.ref) {
            const auto* target = document_.target(schema);
            if (target && !target->trivial()) add("$ref", reference(target));
        }
        if (schema.types) add("type", types(schema.types));
        for (const auto& info : key_table) {
            if (const auto* value = schema.value(info.key))
                add(info.name, info.key == Key::pattern ? pattern(view(value->get_string()))
                                                        : python_literal(*value));
            if (const auto* child = schema.schema(info.key))
                add(info.name, node(*child, depth + 1));
            if (schema.lists.count(info.key)) add(info.name, list(schema.list(info.key), depth));
            if (schema.named.count(info.key))
                add(info.name, named(info.key, schema.names(info.key), depth));
        }
        if (!schema.required.empty()) add("required", strings(schema.required));
        if (!schema.dependent_required.empty()) {
            std::string needs;
            for (const auto& [name, others] : schema.dependent_required)
                needs += (needs.empty() ? "" : ", ") + python_string(name) + ": " + strings(others);
            add("dependentRequired", '{' + needs + '}');
        }
        return out.empty() ? "{}" : out + '}';
    }

    std::string list(const std::vector<Schema::Ptr>& schemas, int depth) {
        std::string out;
        for (const auto* schema : schemas)
            out += (out.empty() ? "" : ", ") + node(*schema, depth + 1);
        return '[' + out + ']';
    }
    std::string named(Key key, const Schema::Named& schemas, int depth) {
        std::string out;
        for (const auto& [name, schema] : schemas)
            out += (out.empty() ? "" : ", ") +
                   (key == Key::pattern_properties ? pattern(name) : python_string(name)) + ": " + node(*schema, depth + 1);
        return '{' + out + '}';
    }
    // None: one that is not for Python to try.
    std::string pattern(std::string_view text) {
        return patterns_.allows(text) ? python_string(python_pattern(text)) : "None";
    }
    static std::string strings(const Schema::Names& names) {
        std::string out;
        for (const auto& name : names) out += (out.empty() ? "" : ", ") + python_string(name);
        return '[' + out + ']';
    }
    static std::string types(unsigned mask) {
        Schema::Names names;
        for (const auto& [name, bit] : json_types)
            if (mask & bit) names.push_back(name);
        return names.size() == 1 ? python_string(names[0]) : strings(names);
    }
    std::string reference(Schema::Ptr target) {
        auto it = std::find(pending_.begin(), pending_.end(), target);
        const auto index = it - pending_.begin();
        if (it == pending_.end()) pending_.push_back(target);
        return python_string(std::to_string(index));
    }

    SchemaDocument& document_;
    PatternJudge& patterns_;
    std::vector<Schema::Ptr> pending_;
    std::string definitions_;
    std::size_t size_ = 0;
};

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
    // Throws Error (bad_argument) when the schema is too large to be typed.
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
            write_class(root, name, true);
        }
        return std::move(definitions_);
    }

private:
    static constexpr int max_visits = 20'000;
    static constexpr int max_nesting = 30;
    static constexpr std::size_t max_literals = 5'000;
    static constexpr std::size_t max_steps = 20'000;  // of a validation
    static constexpr std::size_t max_default = 80, max_field_doc = 4'000;

    // `code` holds the types and calls in `text`, whose names have to be imported or defined.
    void define(const std::string& name, std::string text, std::string_view code) {
        definitions_.push_back({name, std::move(text), identifiers_in(code)});
    }

    std::string fresh_name(const std::string& wanted) {
        static const std::set<std::string, std::less<>> taken{
            "Annotated", "Any", "False",  "Field",  "Literal",   "Model", "None",
            "NotObject", "Open", "Out",   "Params", "Result",    "RootModel", "True",
            "TypeAliasType"};
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
        const auto pascal = python_class_name(name, "");
        for (const auto* plain : {"Items", "Value", "AdditionalProperties", "Schema"})
            if (pascal.substr(0, std::string_view(plain).size()) == plain) return {};
        return pascal;
    }

    PythonType type(const Schema& schema, std::string hint) {
        if (++visits_ > max_visits)
            throw Error(errc::bad_argument, "the schema has too many parts");
        const auto& meaning = document_.effective(schema);
        if (meaning.trivial()) return {"Any", {}};
        if (const auto it = names_.find(&meaning); it != names_.end())
            return {it->second, {}, false, beside_object(meaning)};
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
            plain =
                plain && !value->is_structured() && !value->is_double() &&
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
            if (take_code_point(text) >> 11 == 0x1B) return true;
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
        std::vector<PythonType> types;
        for (std::size_t i = 0; i < branches.size(); ++i) {
            const auto& b = document_.effective(*branches[i]);
            if (b.never) continue;
            const auto title =
                python_class_name(!branches[i]->title.empty() ? branches[i]->title : b.title, "");
            types.push_back(type(*branches[i], !title.empty() ? title
                                               : classes > 1  ? hint + std::to_string(i + 1)
                                                              : hint));
        }
        auto result = join(types);
        if (result.any() || (key == Key::one_of && !disjoint(branches)))
            add_rule(result, only(s, {key}));
        return result;
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
            if (!type.beside.empty() && std::find(wide.begin(), wide.end(), type.beside) == wide.end())
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
        // What takes values of any type comes first: pydantic prefers the first of those that fit as
        // well, and must not make a number of a text that may stay one.
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

    static bool is_zero(const json::value& v) { return compare_numbers(v, 0) == 0; }
    static std::string whole(const json::value& v) {
        return integer_text(v, max_digits);
    }
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
            return v && small(*v) ? static_cast<std::size_t>(to_double(*v))
                                  : std::size_t(-1);
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
                        inner_type(*prefix[i], singular(hint) + std::to_string(i + 1)).text();
            return {"tuple[" + list + ']', {}};
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
            const auto name = fresh_name(hint.empty() ? "Item" : hint);
            names_[&s] = name;
            write_class(s, name, false);
            return {name, {}, false, beside_object(s)};
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

    // What fields cannot say about an object.
    static Schema object_rule(const Schema& s) {
        Schema rule = only(
            s, {Key::enumeration, Key::constant, Key::any_of, Key::one_of, Key::all_of,
                Key::negation, Key::condition, Key::consequence, Key::alternative, Key::dependent_schemas, Key::min_properties,
                Key::max_properties, Key::property_names, Key::pattern_properties});
        rule.dependent_required = s.dependent_required;
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
        bool certain;  // whichever branch holds, its values are of one of the types that branches say
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
                    return all.size() <= 50 && std::all_of(all.begin(), all.end(), [&](const auto* each) {
                        return judges(each, name);
                    });
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

        auto code = extra + '\n';
        for (const auto& field : fields) code += field.type.text() + '\n';
        name_fields(fields, identifiers_in(code));

        std::string body, nullable;
        for (auto& field : fields)
            body += field_text(field, nullable), code += field.type.text() + '\n';
        if (!extra.empty() && extra != "Any")
            body += "    __pydantic_extra__: dict[str, " + extra + "]  # pyright: ignore\n";
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
                   name != "Field" && name != "Annotated" && name.compare(0, 14, "model_validate") != 0 &&
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
                if (!type.none && !type.any()) type = {type.text() + " | None", {}, true};
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
        auto out = "    " + field.name + ": " + type.text() + (value.empty() ? "" : " = " + value);
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
    std::string note_;
    int visits_ = 0, nesting_ = 0, containers_ = 0;
};

inline std::string_view text_member(const json::object& object, const char* key) {
    const auto* value = object.if_contains(key);
    return value && value->is_string() ? view(value->get_string()) : std::string_view{};
}

// The module of one tool; a schema that is nullptr says nothing. Throws Error (bad_argument) when
// the schemas cannot be typed.
inline std::string tool_module(std::string_view server, const json::object& tool,
                               const json::value* input, const json::value* output,
                               ApiStyle style) {
    static constexpr std::size_t max_tool_doc = 20'000, max_module = 400'000;
    static const json::value anything(
        json::object{{"type", "object"}, {"additionalProperties", true}});
    std::set<std::string> used{"Params", "Result"};
    auto definitions =
        ModelWriter(input ? *input : anything, ModelWriter::Side::input, used).write("Params");
    const auto* schema = tool.if_contains("inputSchema");
    if (!input && schema && schema->is_object())
        definitions.back().text += "    # too large to be typed; the host checks the arguments\n";
    if (output)
        for (auto& definition :
             ModelWriter(*output, ModelWriter::Side::output, used).write("Result"))
            definitions.push_back(std::move(definition));

    const bool async = style == ApiStyle::async;
    std::set<std::string, std::less<>> words{"Any", async ? "coroutine" : "asynchronous", async ? "call_async" : "call"};
    std::string body, rebuild;
    std::map<std::string_view, std::size_t> order;
    for (const auto& definition : definitions) order.try_emplace(definition.name, order.size());
    for (auto it = definitions.begin(); it != definitions.end(); ++it) {
        body += "\n\n" + it->text;
        words.insert(it->uses.begin(), it->uses.end());
        const bool forward = std::any_of(it->uses.begin(), it->uses.end(), [&](const auto& name) {
            const auto found = order.find(name);
            return found != order.end() && found->second > order.at(it->name);
        });
        if (forward && it->text.compare(0, 6, "class ") == 0)
            rebuild += it->name + ".model_rebuild()\n";
    }
    if (!rebuild.empty()) body += "\n\n" + rebuild;
    const auto import_from = [&](std::string_view module,
                                 std::initializer_list<const char*> names) {
        std::string list;
        for (const auto* name : names)
            if (words.count(name)) list += (list.empty() ? "" : ", ") + std::string(name);
        return list.empty() ? list : "from " + std::string(module) + " import " + list + '\n';
    };
    auto doc = std::string(text_member(tool, "description"));
    if (doc.empty()) doc = text_member(tool, "title");
    doc = visible_text(doc, max_tool_doc);
    std::string hints;
    if (const auto* annotations = tool.if_contains("annotations");
        annotations && annotations->is_object())
        for (const auto* hint : {"readOnly", "destructive", "idempotent", "openWorld"})
            if (const auto* on = annotations->get_object().if_contains(std::string(hint) + "Hint");
                on && on->is_bool() && on->get_bool())
                hints += (hints.empty() ? "Hints: " : ", ") + std::string(hint);
    if (!hints.empty()) doc += (doc.empty() ? "" : "\n\n") + hints;

    const std::string result = output ? "Result" : "Any";
    auto text =
        "from __future__ import annotations\n" +
        import_from("typing", {"Annotated", "Any", "Literal"}) +
        import_from("pydantic", {"Field", "RootModel"}) +
        import_from("typing_extensions", {"TypeAliasType"}) +
        import_from("ipybox_kernel", {"Model", "NotObject", "Open", "Out", "asynchronous", "call",
                                      "call_async", "coroutine", "object_rule", "one_of", "pattern", "rule", "unique"}) +
        body + (async ? "\n\nasync def" : "\n\ndef") + " run(params: Params | None = None, /, **kwargs: Any) -> " + result + ":\n" +
        (doc.empty() ? "" : "    " + python_docstring(doc, 4, 2 * max_tool_doc) + '\n') +
        (async ? "    return await call_async(" : "    return call(") + python_string(server) + ", " +
        python_string(text_member(tool, "name")) + ", Params, params, kwargs" +
        (output ? ", Result" : "") + ")\n\n\nrun_async = " + (async ? "coroutine" : "asynchronous") +
        "(run)\n" +
        std::string(own_code_marker);
    if (text.size() > max_module) throw Error(errc::bad_argument, "its module would be too large");
    return text;
}

// Module names are those of the original ("get-User" -> get_user), made importable and unique. A
// tool that has its module's name keeps it whatever others there are.
inline std::map<std::string, std::string> module_names(const std::set<std::string>& tools) {
    std::map<std::string, std::string> names;
    std::set<std::string> taken{"__init__", "__main__", "__pycache__"};
    FreshNames fresh;
    const auto plain = [](const std::string& tool) {
        std::string name;
        for (std::string_view rest = tool; !rest.empty() && name.size() < 80;) {
            const auto c = take_code_point(rest);
            name += !is_word(c) ? '_' : static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
        }
        if (name.find_first_not_of('_') == std::string::npos) name = "tool";
        if (name.compare(0, 2, "__") == 0) name.erase(0, name.find_first_not_of('_'));
        if (is_ascii_digit(static_cast<unsigned char>(name[0]))) name = "tool_" + name;
        return is_python_keyword(name) ? name + '_' : name;
    };
    for (const auto& tool : tools)
        if (plain(tool) == tool && taken.insert(tool).second) names[tool] = tool;
    for (const auto& tool : tools) {
        if (names.count(tool)) continue;
        const auto stem = plain(tool);
        names[tool] = fresh.make(
            stem, "_", [&](const std::string& name) { return taken.insert(name).second; });
    }
    return names;
}

// The first sentence on one line.
inline std::string summary(std::string_view description) {
    static constexpr std::size_t limit = 120;
    std::string line;
    for (const char c : visible_text(description, 4 * limit)) {
        if (c != '\n' && c != '\t' && c != ' ')
            line += c;
        else if (line.empty() || line.back() == '.') {
            if (!line.empty()) break;
        } else if (line.back() != ' ')
            line += ' ';
    }
    if (line.size() > limit) {
        auto cut = line.find_last_of(' ', limit);
        if (cut == std::string::npos)
            for (cut = limit; (line[cut] & 0xC0) == 0x80;) --cut;
        line.resize(cut);
        line += " …";
    }
    return line;
}

}  // namespace detail

// Checks that a server can be a Python package: an ASCII identifier, no keyword, at most 64
// characters. Throws Error (bad_argument) otherwise.
inline void check_server_name(std::string_view name) {
    if (name.size() > 64 || !detail::is_python_identifier(name) || detail::is_python_keyword(name))
        throw Error(errc::bad_argument,
                    "the server name " +
                        detail::write_json(boost::json::value(name.substr(0, 80))) +
                        " must be a Python identifier of at most 64 ASCII characters");
}

// Parses a tools/list result, or its `tools` array alone, nested up to 25,000 levels. Half a surrogate
// pair, which JSON allows and Boost.JSON refuses, becomes the three bytes that UTF-8 would give it.
// Throws Error (bad_argument) when the text is something else.
inline boost::json::array parse_tools(std::string_view text) {
    std::string repaired;
    const auto unit = [&](std::size_t at) -> unsigned {
        unsigned code = 0;
        const bool escape =
            at + 6 <= text.size() && text[at] == '\\' && text[at + 1] == 'u' &&
            std::from_chars(&text[at + 2], &text[at] + 6, code, 16).ptr == &text[at] + 6;
        return escape ? code : 0;
    };
    for (std::size_t i = 0; i < text.size();) {
        const unsigned code = unit(i);
        const unsigned next = code >> 10 == 0x36 ? unit(i + 6) : 0;
        const std::size_t length = text[i] != '\\'      ? 1
                                   : code == 0          ? 2
                                   : next >> 10 == 0x37 ? 12
                                                        : 6;
        if (length == 6 && code >> 11 == 0x1B)
            detail::append_utf8(repaired, code);
        else
            repaired += text.substr(i, length);
        i += length;
    }
    boost::json::parse_options options;
    options.max_depth = 25'000;  // the parser is recursive
    options.allow_invalid_utf8 = true;
    boost::system::error_code failure;
    auto value = detail::parse_exact(repaired, failure, options);
    detail::simplify_numbers(value);
    if (failure) throw Error(errc::bad_argument, "the tool list is not JSON: " + failure.message());
    if (const auto* result = value.if_object())
        if (const auto* tools = result->if_contains("tools"); tools && tools->is_array())
            return tools->get_array();
    if (!value.is_array())
        throw Error(errc::bad_argument, "the tool list is neither an array nor has it `tools`");
    return std::move(value.get_array());
}

// Generates the package of a server from `listed`, the `tools` of its tools/list results. The same tools in
// any order give the same bytes. A tool whose schemas cannot be typed gets a module that takes any
// arguments; a tool that cannot have a module is listed in `skipped`. Throws Error (bad_argument)
// for a bad server name.
inline GeneratedPackage generate_package(std::string_view server_name,
                                         const boost::json::array& listed,
                                         ApiStyle style = ApiStyle::blocking) {
    check_server_name(server_name);
    boost::json::value simplified;
    if (std::any_of(listed.begin(), listed.end(), [](const auto& tool) { return detail::holds_exact(tool); })) {
        simplified = listed;
        detail::simplify_numbers(simplified);
    }
    const auto& tools = simplified.is_array() ? simplified.get_array() : listed;
    GeneratedPackage package;
    std::map<std::string, const boost::json::object*> by_name;
    for (const auto& entry : tools) {
        const auto* tool = entry.if_object();
        const auto name = tool ? std::string(detail::text_member(*tool, "name")) : std::string{};
        if (name.empty())
            package.skipped.push_back({name, "it has no name"});
        else if (name.size() > 1000)
            package.skipped.push_back({name.substr(0, 100) + "…", "its name is too long"});
        else if (const auto [it, fresh] = by_name.try_emplace(name, tool); !fresh) {
            package.skipped.push_back({name, "another tool has the same name"});
            // the order of the list must not matter
            if (detail::write_json(*tool) < detail::write_json(*it->second))
                it->second = tool;
        }
    }
    std::set<std::string> names;
    for (const auto& [name, tool] : by_name) names.insert(name);
    const auto modules = detail::module_names(names);
    std::string index;
    for (const auto& [name, tool] : by_name) {
        const auto schema = [&t = *tool](const char* key) {
            const auto* value = t.if_contains(key);
            return value && value->is_object() ? value : nullptr;
        };
        const auto& module = modules.at(name);
        const auto *input = schema("inputSchema"), *output = schema("outputSchema");
        std::string text, reason;
        for (const auto& [in, out] :
             {std::pair{input, output}, {input, nullptr}, {nullptr, output}, {nullptr, nullptr}}) {
            try {
                text = detail::tool_module(server_name, *tool, in, out, style);
                break;
            } catch (const Error& error) {
                if (reason.empty()) reason = error.detail();  // the next attempt types less
            }
        }
        if (text.empty()) {
            package.skipped.push_back({name, "its module would be too large"});
            continue;
        }
        package.files[module + ".py"] = std::move(text);
        package.tools.push_back({name, module});
        if (!reason.empty()) package.untyped.push_back({name, reason});
        const auto line = detail::summary(detail::text_member(*tool, "description"));
        index += '\n' + module + (line.empty() ? "" : ": " + line);
    }
    std::sort(package.skipped.begin(), package.skipped.end(), [](const auto& a, const auto& b) {
        return std::tie(a.tool, a.reason) < std::tie(b.tool, b.reason);
    });
    package.files["__init__.py"] =
        detail::python_docstring(
            std::string(detail::package_title) + std::string(server_name) +
                (style == ApiStyle::async ? ", one module each with async run(), Params and maybe Result:\n"
                                          : ", one module each with run(), run_async(), Params and maybe Result:\n") +
                index,
            0, 10'000'000) +
        '\n';
    return package;
}

namespace detail {

// The folder of all packages, held open: whoever else can write to it can plant links, so every
// name below is a single component, opened without following one.
class PackageRoot {
public:
    // The caller vouches for the folders above `path`. With `create`, missing ones are made;
    // without, a missing folder is an empty one. Throws Error (io_error).
    PackageRoot(const std::filesystem::path& path, bool create) {
        auto folder = std::filesystem::absolute(path).lexically_normal();
        if (!folder.has_filename()) folder = folder.parent_path();
        name_ = folder.string();
        if (create) {
            std::error_code ignored;  // opening it says what is wrong
            std::filesystem::create_directories(folder.parent_path(), ignored);
        } else if (!std::filesystem::exists(folder.parent_path())) {
            return;
        }
        const auto parent = open_directory(folder.parent_path());
        const bool made = create && ::mkdirat(parent.get(), folder.filename().c_str(), 0755) == 0;
        handle_ = open_folder(parent.get(), folder.filename());
        if (!handle_ && (create || errno != ENOENT)) fail("cannot open");
        if (made) give_to_owner_of(parent.get(), handle_.get());
    }

    // The folder behind a handle that the caller keeps.
    explicit PackageRoot(int folder) : name_("its folder"), handle_(::fcntl(folder, F_DUPFD_CLOEXEC, 0)) {
        if (!handle_) fail("cannot open");
    }

    explicit operator bool() const { return static_cast<bool>(handle_); }
    int get() const { return handle_.get(); }

    [[noreturn]] void fail(const std::string& what) const { throw_io_error(what + ' ' + name_); }

    static UniqueFd open_folder(int parent, const std::string& name) {
        return open_beneath(parent, name, O_RDONLY | O_DIRECTORY);
    }

    // The text of a regular file of at most 4 MB; nullopt for anything else.
    static std::optional<std::string> read(int folder, const std::string& name) {
        static constexpr off_t limit = 4 << 20;
        const auto file = open_beneath(folder, name, O_RDONLY | O_NONBLOCK);
        struct stat status {};
        if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode) ||
            status.st_size > limit)
            return std::nullopt;
        std::string text(static_cast<std::size_t>(status.st_size), '\0');
        std::size_t size = 0;
        while (size < text.size()) {
            const auto n = ::read(file.get(), &text[size], text.size() - size);
            if (n <= 0) break;
            size += static_cast<std::size_t>(n);
        }
        text.resize(size);
        return text;
    }

    static std::vector<std::string> entries(int folder) {
        std::vector<std::string> names;
        const int copy = ::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        DIR* stream = copy < 0 ? nullptr : ::fdopendir(copy);
        while (const auto* entry = stream ? ::readdir(stream) : nullptr) {
            const std::string_view name = entry->d_name;
            if (name != "." && name != "..") names.emplace_back(name);
        }
        if (stream)
            ::closedir(stream);
        else if (copy >= 0)
            ::close(copy);
        return names;
    }

    // Removes what `name` is, as far as permissions allow. A folder is flattened level by level:
    // its depth is not ours to bound, and descending would cost a descriptor a level.
    void remove(const std::string& name) const {
        if (::unlinkat(get(), name.c_str(), 0) == 0) return;
        const auto top = open_folder(get(), name);
        bool progress = static_cast<bool>(top);
        for (int level = 0; progress && level < 10'000; ++level) {
            progress = false;
            std::size_t moved = 0;
            for (const auto& entry : entries(top.get())) {
                if (::unlinkat(top.get(), entry.c_str(), 0) == 0) {
                    progress = true;
                    continue;
                }
                if (const auto inner = open_folder(top.get(), entry))
                    for (const auto& deeper : entries(inner.get())) {
                        const auto flat = std::to_string(level) + '_' + std::to_string(moved++);
                        if (::unlinkat(inner.get(), deeper.c_str(), 0) == 0 ||
                            ::renameat(inner.get(), deeper.c_str(), top.get(), flat.c_str()) == 0)
                            progress = true;
                    }
                progress = ::unlinkat(top.get(), entry.c_str(), AT_REMOVEDIR) == 0 || progress;
            }
        }
        ::unlinkat(get(), name.c_str(), AT_REMOVEDIR);
    }

    // Puts `fresh` in the place of `name`; what was there is at `fresh` afterwards.
    void swap(const std::string& fresh, const std::string& name) const {
        const auto rename = [&](unsigned flags) {
            return ::syscall(SYS_renameat2, get(), fresh.c_str(), get(), name.c_str(), flags) == 0;
        };
        for (int attempt = 0; attempt < 10; ++attempt) {  // others may make or remove the target
            if (rename(RENAME_EXCHANGE)) return;
            if (errno != ENOENT) break;
            if (rename(RENAME_NOREPLACE)) return;
            if (errno != EEXIST) break;
        }
        fail("cannot replace the package " + name + " in");
    }

private:
    std::string name_;
    UniqueFd handle_;
};

// What a user or an agent wrote below the marker of a generated module.
inline std::string_view own_code(std::string_view module) {
    const auto at = module.find("\n" + std::string(own_code_marker));
    return at == std::string_view::npos ? std::string_view{}
                                        : module.substr(at + 1 + own_code_marker.size());
}

struct PackageFiles {
    std::map<std::string, std::string> now, next;  // next carries the own code of now
    std::vector<std::string> kept;                 // what others put there, and stays
    bool foreign = false;  // now has what others wrote, in the place of what is written or part of it
};

inline PackageFiles package_files(const PackageRoot& root, const std::string& server,
                                  const GeneratedPackage& package) {
    PackageFiles files;
    files.next = package.files;
    const auto directory = root ? PackageRoot::open_folder(root.get(), server) : UniqueFd();
    if (!directory) return files;
    static const std::string init = "__init__.py";
    const auto of_original = is_of_original(PackageRoot::read(directory.get(), init).value_or(""));
    for (const auto& name : PackageRoot::entries(directory.get())) {
        if (name == "__pycache__") continue;
        auto text = PackageRoot::read(directory.get(), name);
        const auto it = files.next.find(name);
        const bool ours =
            text && (name == init
                         ? text->compare(0, 3 + package_title.size(), "\"\"\"" + std::string(package_title)) == 0
                         : text->find("\n" + std::string(own_code_marker)) != std::string::npos);
        if (!ours && it == files.next.end() &&
            !(of_original && text && text->find("CLIENT.run") != std::string::npos)) {
            files.kept.push_back(name);
            continue;
        }
        files.foreign = files.foreign || !ours;
        if (ours && it != files.next.end() && name != init) it->second += own_code(*text);
        files.now[name] = text ? std::move(*text) : std::string("\0", 1);
    }
    return files;
}

// Gives what is at `folder` the first free of .NAME.before, .NAME.before2, …, which Python does not
// import. Returns that name.
inline std::string set_aside(const PackageRoot& root, const std::string& folder, const std::string& server) {
    static constexpr int max_kept = 100;
    for (int number = 1; number <= max_kept; ++number) {
        auto name = '.' + server + ".before" + (number == 1 ? "" : std::to_string(number));
        if (::syscall(SYS_renameat2, root.get(), folder.c_str(), root.get(), name.c_str(), RENAME_NOREPLACE) == 0)
            return name;
        if (errno != EEXIST) break;
    }
    root.fail("cannot keep what was at " + server + " as ." + server + ".before in");
}

}  // namespace detail

// What write_package() would do, one line a file: "+ new.py", "~ changed.py", "- gone.py", the last
// followed by " with own code" when a tool that is gone takes such code along.
inline std::vector<std::string> package_changes(const std::filesystem::path& root_dir,
                                                std::string_view server_name,
                                                const GeneratedPackage& package) {
    check_server_name(server_name);
    const auto files = detail::package_files(detail::PackageRoot(root_dir, false),
                                             std::string(server_name), package);
    const auto &now = files.now, &next = files.next;
    std::vector<std::string> changes;
    for (const auto& [name, text] : next)
        if (const auto it = now.find(name); it == now.end())
            changes.push_back("+ " + name);
        else if (it->second != text)
            changes.push_back("~ " + name);
    for (const auto& [name, text] : now)
        if (!next.count(name))
            changes.push_back("- " + name +
                              (detail::own_code(text).empty() ? "" : " with own code"));
    return changes;
}

// Replaces root_dir/server_name by the package in one step: readers see the old or the new one, and
// a failure leaves the old one and nothing else. What stands below own_code_marker in a module that
// stays is kept, and so are files that others put there. Where such a file has the name of one that
// is written, or the original ipybox generated the package, all of the old package is kept beside the
// new one, and *kept_as is its name in root_dir. Returns false, and writes nothing, when all files
// are as they should be. Run as root, the files belong to the owner of root_dir. Throws Error
// (bad_argument, io_error).
inline bool write_package(const detail::PackageRoot& root, std::string_view server_name,
                          const GeneratedPackage& package, std::string* kept_as = nullptr) {
    check_server_name(server_name);
    for (const auto& [name, text] : package.files)
        if (name.size() < 4 || name.substr(name.size() - 3) != ".py" ||
            !detail::is_python_identifier(std::string_view(name).substr(0, name.size() - 3)))
            throw Error(errc::bad_argument, "not a module's file name: " + name);
    const std::string server(server_name);
    const auto files = detail::package_files(root, server, package);
    if (files.now == files.next) return false;

    std::uint64_t random = 0;
    if (::getrandom(&random, sizeof random, 0) != sizeof random) root.fail("no randomness for");
    const std::string fresh = "." + server + "." + std::to_string(random);
    if (::mkdirat(root.get(), fresh.c_str(), 0755) != 0) root.fail("cannot create a folder in");
    struct Cleanup {
        const detail::PackageRoot& root;
        const std::string& name;
        ~Cleanup() { root.remove(name); }
    } cleanup{root, fresh};
    const auto directory = detail::PackageRoot::open_folder(root.get(), fresh);
    if (!directory) root.fail("cannot open a new folder in");
    detail::give_to_owner_of(root.get(), directory.get());
    for (const auto& [name, text] : files.next) detail::write_new_file(directory.get(), name, text);
    root.swap(fresh, server);
    const auto old = detail::PackageRoot::open_folder(root.get(), fresh);
    const auto move_kept = [&](int from, int to) {
        bool all = true;
        for (const auto& name : files.kept)
            all = ::syscall(SYS_renameat2, from, name.c_str(), to, name.c_str(), RENAME_NOREPLACE) == 0 && all;
        return all;
    };
    const bool moved = !old || move_kept(old.get(), directory.get());
    std::string aside;
    try {
        if (files.foreign || !moved) aside = detail::set_aside(root, fresh, server);
    } catch (const Error&) {
        // Rather the old package than none of it.
        if (old) move_kept(directory.get(), old.get());
        root.swap(fresh, server);
        throw;
    }
    if (kept_as) *kept_as = aside;
    return true;
}

// The same; root_dir is made when it is absent.
inline bool write_package(const std::filesystem::path& root_dir, std::string_view server_name,
                          const GeneratedPackage& package, std::string* kept_as = nullptr) {
    check_server_name(server_name);
    return write_package(detail::PackageRoot(root_dir, true), server_name, package, kept_as);
}

// The same into an open directory, which nobody can exchange for another.
inline bool write_package(int root_dir, std::string_view server_name, const GeneratedPackage& package,
                          std::string* kept_as = nullptr) {
    return write_package(detail::PackageRoot(root_dir), server_name, package, kept_as);
}

}  // namespace ipybox
