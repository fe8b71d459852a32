#pragma once
#include <ipybox/approval/rules.hpp>

#include <algorithm>
#include <boost/json/parse.hpp>
#include <charconv>
#include <cstdio>
#include <ctime>
#include <ipybox/approval/impl/rule_conditions.ipp>
#include <ipybox/approval/question_text.hpp>
#include <ipybox/compilation.hpp>
#include <ipybox/detail/json_members.hpp>
#include <ipybox/detail/json_schema.hpp>
#include <ipybox/detail/pattern.hpp>
#include <ipybox/detail/terminal_text.hpp>
#include <iterator>
#include <memory>
#include <set>
#include <utility>

namespace ipybox::approval {

// JSON Schema's own rules, for what a person may have mistyped; the reader of schemas is lenient.
inline constexpr std::string_view strict_schema = R"({"$ref": "#/$defs/schema", "$defs": {
 "list": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/schema"}},
 "map": {"type": "object", "additionalProperties": {"$ref": "#/$defs/schema"}},
 "count": {"type": "integer", "minimum": 0}, "texts": {"type": "array",
  "items": {"type": "string"}},
 "type": {"enum": ["string", "integer", "number", "boolean", "array", "object", "null"]},
 "schema": {"type": ["object", "boolean"], "additionalProperties": false, "properties": {
  "$schema": {"type": "string"}, "$id": {"type": "string"}, "$ref": {"type": "string"},
   "$comment": {"type": "string"},
  "$defs": {"$ref": "#/$defs/map"}, "definitions": {"$ref": "#/$defs/map"},
  "title": {"type": "string"}, "description": {"type": "string"}, "format": {"type": "string"},
   "default": true, "examples": true,
  "type": {"anyOf": [{"$ref": "#/$defs/type"}, {"type": "array",
   "items": {"$ref": "#/$defs/type"}}]},
  "enum": {"type": "array"}, "const": true, "minimum": {"type": "number"},
   "maximum": {"type": "number"},
  "exclusiveMinimum": {"type": "number"}, "exclusiveMaximum": {"type": "number"},
   "multipleOf": {"type": "number", "exclusiveMinimum": 0},
  "minLength": {"$ref": "#/$defs/count"}, "maxLength": {"$ref": "#/$defs/count"},
   "pattern": {"type": "string"},
  "minItems": {"$ref": "#/$defs/count"}, "maxItems": {"$ref": "#/$defs/count"},
   "uniqueItems": {"type": "boolean"},
  "minContains": {"$ref": "#/$defs/count"}, "maxContains": {"$ref": "#/$defs/count"},
  "minProperties": {"$ref": "#/$defs/count"}, "maxProperties": {"$ref": "#/$defs/count"},
  "prefixItems": {"$ref": "#/$defs/list"}, "items": {"$ref": "#/$defs/schema"},
   "contains": {"$ref": "#/$defs/schema"},
  "properties": {"$ref": "#/$defs/map"}, "patternProperties": {"$ref": "#/$defs/map"},
   "additionalProperties": {"$ref": "#/$defs/schema"},
  "propertyNames": {"$ref": "#/$defs/schema"}, "dependentSchemas": {"$ref": "#/$defs/map"},
  "dependentRequired": {"type": "object", "additionalProperties": {"$ref": "#/$defs/texts"}},
   "required": {"$ref": "#/$defs/texts"},
  "unevaluatedItems": {"$ref": "#/$defs/schema"},
   "unevaluatedProperties": {"$ref": "#/$defs/schema"},
  "allOf": {"$ref": "#/$defs/list"}, "anyOf": {"$ref": "#/$defs/list"},
   "oneOf": {"$ref": "#/$defs/list"}, "not": {"$ref": "#/$defs/schema"},
  "if": {"$ref": "#/$defs/schema"}, "then": {"$ref": "#/$defs/schema"},
   "else": {"$ref": "#/$defs/schema"}}}}})";

IPYBOX_DECL std::optional<std::chrono::seconds> time_span(std::string_view text) {
    long amount = 0;
    const auto* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, amount);
    const std::string_view unit(stop, static_cast<std::size_t>(end - stop));
    const long seconds = unit == "s"   ? 1
                         : unit == "m" ? 60
                         : unit == "h" ? 3600
                         : unit == "d" ? 86400
                                       : 0;
    if (error != std::errc() || amount < 1 || amount > 10'000 || seconds == 0) return std::nullopt;
    return std::chrono::seconds(amount * seconds);
}

IPYBOX_DECL Rule::Rule(const json::value& value, const std::string& place, std::size_t number) {
    const auto& object = rule_object(value, place, {"name", "when", "then", "budget", "expires"});
    label_ = "rule " + std::to_string(number);
    if (const auto* name = object.if_contains("name")) {
        name_ = rule_text(*name, below(place, "name"));
        label_ += " (" + detail::printable(name_) + ")";
    }
    const auto* then = object.if_contains("then");
    if (!then)
        bad_rule(
            place,
            "\"then\" is missing; accepted: \"allow\", \"ask\", {\"ask\": {\"remember\": false}}, "
            "\"deny\", {\"deny\": \"reason\"}");
    read_effect(*then, below(place, "then"));
    if (const auto* when = object.if_contains("when")) read_when(*when, below(place, "when"));
    if (const auto* budget = object.if_contains("budget"))
        read_budget(*budget, below(place, "budget"));
    if (const auto* expires = object.if_contains("expires"))
        read_expiry(*expires, below(place, "expires"));
}

IPYBOX_DECL Fit Rule::fits(const CallFacts& call, Wall now, std::size_t& steps,
                           std::vector<Part>* why) const {
    Fit result = Fit::yes;
    const auto note = [&](const Part& part) {
        result = part.fit == Fit::no || result == Fit::no ? Fit::no : Fit::unclear;
        if (why) why->push_back(part);
        return !why && result == Fit::no;
    };
    if (expires_ && now >= *expires_ && note({"expires", "the time has come", Fit::no}))
        return result;
    for (const auto& test : tests_) {
        Part part;
        part.fit = test(call, steps, why != nullptr, part);
        if (part.fit != Fit::yes && note(part)) return result;
    }
    return result;
}

IPYBOX_DECL Rule::Effect Rule::spend(std::string_view session, Steady now, std::string& reason) {
    reason = reason_;
    if (!budget_) return effect_;
    if (budget_->used.size() > 10'000) budget_->used.clear();  // sessions do not end here
    auto& used = budget_->used[std::string(session)];
    while (budget_->per && !used.empty() && now - used.front() >= *budget_->per) used.pop_front();
    if (used.size() < budget_->calls) {
        used.push_back(now);
        return effect_;
    }
    reason = "the budget of " + label_ + " is spent: " + budget_->text;
    return budget_->exceeded;
}

IPYBOX_DECL std::optional<Rule::Effect> Rule::effect_of(const json::value& value) {
    const auto* text = value.if_string();
    if (text && *text == "allow") return Effect::allow;
    if (text && *text == "deny") return Effect::deny;
    if (text && *text == "ask") return Effect::ask;
    return {};
}

IPYBOX_DECL void Rule::read_effect(const json::value& value, const std::string& place) {
    const auto effect = effect_of(value);
    const auto* object = value.if_object();
    if (effect) {
        effect_ = *effect;
    } else if (object && object->size() == 1 && object->contains("deny")) {
        effect_ = Effect::deny;
        reason_ = rule_text(object->at("deny"), below(place, "deny"));
    } else if (object && object->size() == 1 && object->contains("ask")) {
        effect_ = Effect::ask;
        const auto where = below(place, "ask");
        const auto& how = rule_object(object->at("ask"), where, {"remember"});
        if (const auto* remember = how.if_contains("remember")) {
            if (!remember->is_bool()) bad_rule(below(where, "remember"), "must be true or false");
            may_remember_ = remember->get_bool();
        }
    } else {
        bad_rule(place,
                 "accepted: \"allow\", \"ask\", {\"ask\": {\"remember\": false}}, \"deny\", "
                 "{\"deny\": \"reason\"}");
    }
    if (effect_ == Effect::deny && reason_.empty()) reason_ = "denied by " + label_;
}

IPYBOX_DECL void Rule::read_when(const json::value& value, const std::string& place) {
    const auto& when =
        rule_object(value, place,
                    {"server", "tool", "origin", "session", "annotations", "arguments", "schema"});
    add_globs(when, place, "server", &CallFacts::server);
    add_globs(when, place, "tool", &CallFacts::tool);
    add_globs(when, place, "origin", &CallFacts::origin);
    add_globs(when, place, "session", &CallFacts::session);
    if (const auto* hints = when.if_contains("annotations"))
        add_hints(*hints, below(place, "annotations"));
    if (const auto* arguments = when.if_contains("arguments")) {
        const auto where = below(place, "arguments");
        if (!arguments->is_object() || arguments->get_object().empty())
            bad_rule(where,
                     "must be an object of conditions by JSON pointer, such as {\"/path\": "
                     "{\"under\": \"/work\"}}");
        for (const auto& entry : arguments->get_object())
            add_conditions(entry.key(), entry.value(), below(where, entry.key()));
        // A program's arguments, the first among them, are what code says of it.
        const auto* origin = when.if_contains("origin");
        if (effect_ == Effect::allow && origin && *origin == "program" &&
            !arguments->get_object().contains("/path"))
            bad_rule(where,
                     "a rule that allows programs by their arguments must also have \"/path\"");
    }
    if (const auto* schema = when.if_contains("schema"))
        add_schema(*schema, below(place, "schema"));
    if (effect_ == Effect::allow && (when.contains("arguments") || when.contains("schema")))
        add_path_of_program(when);
}

IPYBOX_DECL void Rule::add_path_of_program(const json::object& when) {
    const auto* arguments = detail::object_of(when, "arguments");
    const bool names_path = arguments && arguments->contains("/path");
    tests_.push_back([names_path](const CallFacts& call, std::size_t&, bool explain, Part& part) {
        if (call.origin != "program" || (names_path && call.arguments.contains("path")))
            return Fit::yes;
        if (explain)
            part.what = "origin",
            part.value = "\"program\", which is allowed by its arguments only with a \"/path\"";
        return Fit::no;
    });
}

IPYBOX_DECL void Rule::add_globs(const json::object& when, const std::string& place,
                                 const char* key, std::string_view CallFacts::* field) {
    const auto* value = when.if_contains(key);
    if (!value) return;
    const auto where = below(place, key);
    std::vector<Glob> globs;
    for (const auto& text : rule_texts(*value, where)) {
        globs.emplace_back(text);
        if (std::string_view(key) != "origin") continue;
        static constexpr std::string_view origins[] = {"mcp",     "shell",    "shell_magic",
                                                       "package", "register", "program"};
        std::size_t steps = rule_steps;
        if (std::none_of(std::begin(origins), std::end(origins), [&](auto origin) {
                return globs.back().matches(origin, steps) == Fit::yes;
            }))
            bad_rule(
                where,
                "\"" + detail::printable(text) +
                    "\" matches no origin; there are: mcp, shell, shell_magic, package, register, "
                    "program");
    }
    tests_.push_back(
        [globs, field, key](const CallFacts& call, std::size_t& steps, bool explain, Part& part) {
            const std::string_view text = call.*field;
            if (explain)
                part.what = key, part.value = '"' + detail::printable(text.substr(0, 200)) + '"';
            return any_fit(globs, [&](const Glob& glob) { return glob.matches(text, steps); });
        });
}

IPYBOX_DECL bool Rule::hint(const json::object& annotations, std::string_view name) {
    const auto* given = annotations.if_contains(name);
    if (given && given->is_bool()) return given->get_bool();
    if (name == "destructiveHint") return !hint(annotations, "readOnlyHint");
    return name == "openWorldHint";
}

IPYBOX_DECL void Rule::add_hints(const json::value& value, const std::string& place) {
    const auto& hints = rule_object(
        value, place, {"readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"});
    if (hints.empty()) bad_rule(place, "needs at least one hint");
    for (const auto& entry : hints) {
        if (!entry.value().is_bool()) bad_rule(below(place, entry.key()), "must be true or false");
        tests_.push_back([name = std::string(entry.key()), wanted = entry.value().get_bool()](
                             const CallFacts& call, std::size_t&, bool explain, Part& part) {
            const bool is = hint(call.annotations, name);
            if (explain) {
                part.what = "annotations/" + name;
                part.value =
                    std::string(is ? "true" : "false") +
                    (call.annotations.contains(name) ? "" : ", as the server says nothing");
            }
            return is == wanted ? Fit::yes : Fit::no;
        });
    }
}

IPYBOX_DECL std::vector<std::string> Rule::tokens_of(std::string_view pointer,
                                                     const std::string& place) {
    if (!pointer.starts_with('/'))
        bad_rule(place, "must be a JSON pointer: it begins with /, as in \"/path\"");
    std::vector<std::string> tokens;
    for (std::size_t i = 0; i < pointer.size(); ++i) {
        if (pointer[i] == '/') {
            tokens.emplace_back();
        } else if (pointer[i] == '~') {
            const char next = i + 1 < pointer.size() ? pointer[i + 1] : ' ';
            if (next != '0' && next != '1')
                bad_rule(place, "is no JSON pointer: ~ is written ~0, / in a name ~1");
            tokens.back() += next == '0' ? '~' : '/';
            ++i;
        } else {
            tokens.back() += pointer[i];
        }
    }
    return tokens;
}

IPYBOX_DECL const json::value* Rule::find(const json::object& arguments,
                                          const std::vector<std::string>& tokens) {
    const json::value* value = arguments.if_contains(tokens.front());
    for (std::size_t i = 1; i < tokens.size() && value; ++i) {
        if (const auto* object = value->if_object()) {
            value = object->if_contains(tokens[i]);
        } else if (const auto* list = value->if_array()) {
            std::size_t index = 0;
            const auto* end = tokens[i].data() + tokens[i].size();
            const auto [stop, error] = std::from_chars(tokens[i].data(), end, index);
            value = error == std::errc() && stop == end && index < list->size() ? &(*list)[index]
                                                                                : nullptr;
        } else {
            value = nullptr;
        }
    }
    return value && value->is_null() ? nullptr : value;
}

IPYBOX_DECL void Rule::add_conditions(std::string_view pointer, const json::value& value,
                                      const std::string& place) {
    tests_.push_back([tokens = tokens_of(pointer, place),
                      conditions = ConditionReader::read(value, place),
                      what = below("arguments", pointer)](const CallFacts& call, std::size_t& steps,
                                                          bool explain, Part& part) {
        const auto* found = find(call.arguments, tokens);
        std::string failed;
        const Fit fit =
            ConditionReader::all_fit(conditions, found, steps, explain ? &failed : nullptr);
        if (explain) {
            part.what = what + (failed.empty() ? "" : "/" + failed);
            part.value = found ? literal_text(*found) : "absent";
        }
        return fit;
    });
}

IPYBOX_DECL void Rule::check_patterns(const json::value& schema, const std::string& place) {
    const auto check = [&](std::string_view text, const std::string& where) {
        if (!detail::Pattern::compile(text))
            bad_rule(where, "is no regular expression that can be matched with bounded work");
    };
    if (const auto* list = schema.if_array())
        for (std::size_t i = 0; i < list->size(); ++i)
            check_patterns((*list)[i], below(place, std::to_string(i)));
    if (!schema.is_object()) return;
    for (const auto& [key, value] : schema.get_object()) {
        if (key == "const" || key == "enum" || key == "default" || key == "examples") continue;
        if (key == "pattern" && value.is_string()) check(value.get_string(), below(place, key));
        if (key == "patternProperties" && value.is_object())
            for (const auto& entry : value.get_object())
                check(entry.key(), below(below(place, key), entry.key()));
        check_patterns(value, below(place, key));
    }
}

IPYBOX_DECL void Rule::add_schema(const json::value& value, const std::string& place) {
    static const json::value meta = json::parse(std::string(strict_schema));
    if (detail::deeper_than(value, 50)) bad_rule(place, "nested more than 50 deep");
    if (const auto problem = detail::validate(meta, value)) {
        const bool inside = problem->starts_with('/');
        bad_rule(inside ? place + problem->substr(0, problem->find(": ")) : place,
                 inside ? problem->substr(problem->find(": ") + 2) : *problem);
    }
    check_patterns(value, place);
    struct Compiled {
        explicit Compiled(const json::value& v) : schema(v), document(schema) {}
        json::value schema;
        detail::SchemaDocument document;
    };
    tests_.push_back([compiled = std::make_shared<Compiled>(value)](
                         const CallFacts& call, std::size_t&, bool explain, Part& part) {
        detail::SchemaValidator validator(compiled->document, rule_steps / 10);
        const json::value arguments = call.arguments;
        const auto problem = validator.problem(compiled->document.root(), arguments);
        if (explain)
            part.what = "schema",
            part.value = problem ? detail::printable(problem->substr(0, 200)) : "";
        return validator.gave_up() ? Fit::unclear : problem ? Fit::no : Fit::yes;
    });
}

IPYBOX_DECL void Rule::read_budget(const json::value& value, const std::string& place) {
    const auto& object = rule_object(value, place, {"calls", "per", "exceeded"});
    if (effect_ == Effect::deny) bad_rule(place, "a rule that denies has no budget");
    const auto* calls = object.if_contains("calls");
    if (!calls || !calls->is_int64() || calls->get_int64() < 1 || calls->get_int64() > 100'000)
        bad_rule(below(place, "calls"), "must be a whole number from 1 to 100000");
    Budget budget;
    budget.calls = static_cast<std::size_t>(calls->get_int64());
    budget.text = std::to_string(budget.calls) + " calls";
    if (const auto* per = object.if_contains("per")) {
        const std::string text = per->is_string() ? std::string(per->get_string()) : "";
        budget.per = time_span(text);
        if (!budget.per)
            bad_rule(below(place, "per"),
                     "must be a time such as \"30s\", \"5m\", \"1h\" or \"7d\"; without it the "
                     "count is for good");
        budget.text += " per " + text;
    }
    if (const auto* exceeded = object.if_contains("exceeded")) {
        const auto effect = effect_of(*exceeded);
        const bool passes = exceeded->is_string() && exceeded->get_string() == "pass";
        if (!passes && (!effect || *effect == Effect::allow))
            bad_rule(below(place, "exceeded"), "accepted: \"deny\", \"ask\", \"pass\"");
        budget.exceeded = passes ? Effect::pass : *effect;
    }
    budget_ = std::move(budget);
}

IPYBOX_DECL void Rule::read_expiry(const json::value& value, const std::string& place) {
    const std::string text = value.is_string() ? std::string(value.get_string()) : "";
    std::tm time{};
    const char* rest = ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &time);
    int hours = 0, minutes = 0, used = 0;
    char sign = 0;
    bool good = rest != nullptr;
    if (good && std::string_view(rest) != "Z")
        good = std::sscanf(rest, "%c%2d:%2d%n", &sign, &hours, &minutes, &used) == 3 &&
               (sign == '+' || sign == '-') && rest[used] == '\0' && hours >= 0 && hours < 24 &&
               minutes >= 0 && minutes < 60;
    if (!good)
        bad_rule(
            place,
            "must be a time such as \"2030-12-31T23:59:59Z\" or \"2030-12-31T23:59:59+01:00\"");
    const auto shift = std::chrono::minutes((sign == '-' ? -1 : 1) * (hours * 60 + minutes));
    // The clock counts to the year 2262; what expires later must not seem to have expired long ago.
    using std::chrono::seconds;
    const auto border = std::chrono::duration_cast<seconds>(Wall::duration::max());
    const auto at = std::clamp(seconds(::timegm(&time)) - shift, -border, border);
    expires_ = Wall(std::chrono::duration_cast<Wall::duration>(at));
}

IPYBOX_DECL RuleSet::RuleSet(const json::value& value, const std::string& place) {
    const auto* list = value.if_array();
    if (!list || list->empty()) bad_rule(place, "must be an array of at least one rule");
    std::set<std::string> names;
    for (const auto& entry : *list) {
        const auto where = below(place, std::to_string(rules_.size()));
        rules_.emplace_back(entry, where, rules_.size() + 1);
        if (const auto& name = rules_.back().name(); !name.empty() && !names.insert(name).second)
            bad_rule(below(where, "name"),
                     "\"" + detail::printable(name) + "\" is the name of another rule");
    }
}

IPYBOX_DECL RuleSet::Judgement RuleSet::judge(const CallFacts& call, Rule::Wall wall,
                                              Rule::Steady now) {
    std::size_t steps = rule_steps;
    for (auto& rule : rules_) {
        const Fit fit = rule.fits(call, wall, steps);
        if (fit == Fit::no) continue;
        Judgement result;
        result.rule = &rule;
        if (fit == Fit::unclear) {
            std::vector<Rule::Part> why;
            std::size_t again = rule_steps;
            rule.fits(call, wall, again, &why);
            result.effect = Rule::Effect::deny;
            result.reason = "it cannot be told whether " + rule.label() + " is about this call";
            for (const auto& part : why)
                if (part.fit == Fit::unclear) result.reason += "; " + unclear_text(part);
            return result;
        }
        result.effect = rule.spend(call.session, now, result.reason);
        if (result.effect != Rule::Effect::pass) return result;
    }
    return {};
}

IPYBOX_DECL std::string RuleSet::unclear_text(const Rule::Part& part) {
    std::string text = part.what + " cannot be checked on " + part.value;
    if (part.what.ends_with("/under"))
        text += " (relative paths need \"base\"; ~, $, file:, backslashes and %2e are refused)";
    if (part.what.ends_with("/url_host"))
        text += " (an http(s) URL without user name and odd characters is needed)";
    return text;
}

}  // namespace ipybox::approval
