#pragma once
// The rules of an approval policy: read strictly, judged with bounded work, explained to people.
#include <arpa/inet.h>

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>
#include <cctype>
#include <chrono>
#include <ctime>
#include <deque>
#include <functional>
#include <initializer_list>
#include <ipybox/approval/question_text.hpp>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/detail/json_schema.hpp>
#include <ipybox/detail/pattern.hpp>
#include <ipybox/detail/terminal_text.hpp>
#include <ipybox/error.hpp>
#include <ipybox/net/domain_rule.hpp>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ipybox::detail {

// What rules look at. Refers to a call that must live meanwhile.
struct CallFacts {
    std::string_view server, tool, origin, session;
    const json::object& arguments;
    const json::object& annotations;
};

// unclear: the call is written so that nobody can tell, or too large to tell; it is denied.
enum class Fit { no, yes, unclear };

// What judging one call may cost, in steps of a few nanoseconds.
inline constexpr std::size_t rule_steps = 5'000'000;

[[noreturn]] inline void bad_rule(const std::string& place, const std::string& what) {
    throw Error(errc::bad_config, place + ": " + what);
}
inline std::string below(const std::string& place, std::string_view key) {
    std::string path = place + '/';
    for (const char c : key) path += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
    return path;
}
inline const json::object& rule_object(const json::value& value, const std::string& place,
                                       std::initializer_list<std::string_view> keys) {
    const auto* object = value.if_object();
    std::string accepted;
    for (const auto key : keys) accepted += (accepted.empty() ? "" : ", ") + std::string(key);
    if (!object) bad_rule(place, "must be an object with some of " + accepted);
    for (const auto& entry : *object)
        if (std::find(keys.begin(), keys.end(), std::string_view(entry.key())) == keys.end())
            bad_rule(place, "unknown key \"" + printable(entry.key()) + "\"; accepted: " + accepted);
    return *object;
}
inline std::string rule_text(const json::value& value, const std::string& place) {
    if (!is_text(value) || value.get_string().empty()) bad_rule(place, "must be a text that is not empty");
    return std::string(value.get_string());
}
// A text, or an array of at least one.
inline std::vector<std::string> rule_texts(const json::value& value, const std::string& place) {
    const auto* list = value.if_array();
    if (!list) return {rule_text(value, place)};
    if (list->empty()) bad_rule(place, "must be a text or an array of at least one");
    std::vector<std::string> texts;
    for (std::size_t i = 0; i < list->size(); ++i) texts.push_back(rule_text((*list)[i], below(place, std::to_string(i))));
    return texts;
}

// `*` is any text, `?` any one character, `\` takes the next one literally; for the whole text.
class Glob {
public:
    explicit Glob(std::string_view pattern) {
        for (std::size_t i = 0; i < pattern.size(); ++i) {
            if (pattern[i] == '*') {
                if (parts_.empty() || parts_.back().kind != many) parts_.push_back({many, 0});
            } else if (pattern[i] == '?') {
                parts_.push_back({one, 0});
            } else {
                if (pattern[i] == '\\' && i + 1 < pattern.size()) ++i;
                parts_.push_back({literal, pattern[i]});
            }
        }
    }

    // The pattern that matches exactly this text.
    static std::string quoted(std::string_view text) {
        std::string pattern;
        for (const char c : text) {
            if (c == '*' || c == '?' || c == '\\') pattern += '\\';
            pattern += c;
        }
        return pattern;
    }

    Fit matches(std::string_view text, std::size_t& steps) const {
        constexpr auto none = static_cast<std::size_t>(-1);
        std::size_t at = 0, part = 0, star = none, resume = 0;
        while (at < text.size()) {
            if (steps == 0) return Fit::unclear;
            --steps;
            if (part < parts_.size() && parts_[part].kind == many) {
                star = part++;
                resume = at;
            } else if (part < parts_.size() && parts_[part].kind == one) {
                at += decode_utf8(text.substr(at)).size;
                ++part;
            } else if (part < parts_.size() && parts_[part].character == text[at]) {
                ++at;
                ++part;
            } else if (star != none) {
                part = star + 1;
                at = ++resume;
            } else {
                return Fit::no;
            }
        }
        while (part < parts_.size() && parts_[part].kind == many) ++part;
        return part == parts_.size() ? Fit::yes : Fit::no;
    }

private:
    enum Kind : char { literal, one, many };
    struct Part {
        Kind kind;
        char character;
    };
    std::vector<Part> parts_;
};

// The first that is not `no` would do, but a later `yes` outweighs an unclear one.
template <class List, class Function>
Fit any_fit(const List& list, Function fit) {
    Fit result = Fit::no;
    for (const auto& one : list) {
        const Fit found = fit(one);
        if (found == Fit::yes) return found;
        if (found == Fit::unclear) result = found;
    }
    return result;
}

// Whether servers read a path in different ways: what some take for a variable or a command ($HOME,
// %USERPROFILE%, `id`), or decode, once or more (%2e, %252e, %u002e), for a separator or a dot
// after normalization (U+FF0F), or leave out (blanks and dots at the end of "..%20", zero width).
inline bool reads_differently(std::string_view path) {
    bool blank_or_dot = true;  // nothing else in this name so far
    std::size_t name = 0;      // bytes of it
    std::size_t dots = 0;
    for (std::string_view rest = path;; ) {
        const bool end = rest.empty() || rest.front() == '/';
        if (end) {
            if (name > 0 && blank_or_dot && !(dots == name && name <= 2)) return true;
            if (rest.empty()) return false;
            blank_or_dot = true;
            name = dots = 0;
            rest.remove_prefix(1);
            continue;
        }
        const CodePoint point = decode_utf8(rest);
        const auto c = point.value;
        if (!point.valid || is_deceptive(c) || c == '\\' || c == '$' || c == '`') return true;
        if (c == '%' && rest.size() > 1 && (std::isalnum(static_cast<unsigned char>(rest[1])) || rest[1] == '%')) return true;
        // Full-width and small forms of / \ . and ~, and dot leaders.
        if (c == 0xFF0F || c == 0xFF3C || c == 0xFF0E || c == 0xFF5E || c == 0xFE52 || c == 0xFE68 || c == 0x2024 || c == 0x2025) return true;
        const bool blank = c == ' ' || c == 0xA0 || c == 0x3000 || (c >= 0x2000 && c <= 0x200A) || c == 0x202F || c == 0x205F || c == 0x2026;
        blank_or_dot = blank_or_dot && (blank || c == '.');
        dots += c == '.' ? 1 : 0;
        name += point.size;
        rest.remove_prefix(point.size);
    }
}

// An absolute path without "." and "..", by its text alone: links are not followed. A relative one
// starts at `base`. Nothing for what servers read in different ways.
inline std::optional<std::string> normal_path(std::string_view path, std::string_view base) {
    if (path.empty() || path.front() == '~' || path.front() == ' ' || path.back() == ' ' || reads_differently(path)) return {};
    std::string start(path.substr(0, 5));
    for (char& c : start) c = static_cast<char>(c | 0x20);
    if (start == "file:" || (path.front() != '/' && base.empty())) return {};
    const std::string whole = path.front() == '/' ? std::string(path) : std::string(base) + '/' + std::string(path);
    std::vector<std::string_view> names;
    std::string_view rest = whole;
    while (!rest.empty()) {
        const auto end = std::min(rest.find('/'), rest.size());
        const auto name = rest.substr(0, end);
        rest.remove_prefix(std::min(end + 1, rest.size()));
        if (name.empty() || name == ".") continue;
        if (name != "..") names.push_back(name);
        else if (!names.empty()) names.pop_back();
    }
    std::string result;
    for (const auto name : names) result += '/' + std::string(name);
    return result.empty() ? "/" : result;
}

// A host, or an address in its one spelling, and the port of a URL.
struct UrlHost {
    std::string host;
    std::uint16_t port = 0;
    bool address = false;
};
inline std::optional<UrlHost> host_or_address(std::string_view text, std::uint16_t port) {
    UrlHost found;
    found.port = port;
    char spelling[INET6_ADDRSTRLEN];
    unsigned char bytes[16];
    const bool bracketed = text.size() > 2 && text.front() == '[' && text.back() == ']';
    const std::string address(bracketed ? text.substr(1, text.size() - 2) : text);
    const int family = bracketed ? AF_INET6 : AF_INET;
    if (::inet_pton(family, address.c_str(), bytes) == 1 && ::inet_ntop(family, bytes, spelling, sizeof spelling) != nullptr) {
        found.host = spelling;
        found.address = true;
        return found;
    }
    auto name = bracketed ? std::nullopt : canonical_host(text);
    if (!name) return {};
    found.host = std::move(*name);
    return found;
}
// Strict on purpose: what clients parse in different ways has no host. http, https, ws and wss.
inline std::optional<UrlHost> url_host(std::string_view url) {
    for (const char c : url)
        if (c <= ' ' || c >= 0x7F || c == '\\') return {};
    const auto colon = url.find("://");
    if (colon == url.npos) return {};
    std::string scheme(url.substr(0, colon));
    for (char& c : scheme) c = static_cast<char>(c | 0x20);
    const bool plain = scheme == "http" || scheme == "ws";
    if (!plain && scheme != "https" && scheme != "wss") return {};
    auto authority = url.substr(colon + 3);
    authority = authority.substr(0, authority.find_first_of("/?#"));
    if (authority.find_first_of("@%") != authority.npos) return {};
    std::uint16_t port = plain ? 80 : 443;
    const auto end = authority.find(':', authority.starts_with('[') ? std::min(authority.find(']'), authority.size()) : 0);
    if (end != authority.npos) {
        const auto given = parse_port(authority.substr(end + 1));
        if (!given) return {};
        port = *given;
        authority = authority.substr(0, end);
    }
    return host_or_address(authority, port);
}

// JSON Schema's own rules, for what a person may have mistyped; the reader of schemas is lenient.
inline constexpr std::string_view strict_schema = R"({"$ref": "#/$defs/schema", "$defs": {
 "list": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/schema"}},
 "map": {"type": "object", "additionalProperties": {"$ref": "#/$defs/schema"}},
 "count": {"type": "integer", "minimum": 0}, "texts": {"type": "array", "items": {"type": "string"}},
 "type": {"enum": ["string", "integer", "number", "boolean", "array", "object", "null"]},
 "schema": {"type": ["object", "boolean"], "additionalProperties": false, "properties": {
  "$schema": {"type": "string"}, "$id": {"type": "string"}, "$ref": {"type": "string"}, "$comment": {"type": "string"},
  "$defs": {"$ref": "#/$defs/map"}, "definitions": {"$ref": "#/$defs/map"},
  "title": {"type": "string"}, "description": {"type": "string"}, "format": {"type": "string"}, "default": true, "examples": true,
  "type": {"anyOf": [{"$ref": "#/$defs/type"}, {"type": "array", "items": {"$ref": "#/$defs/type"}}]},
  "enum": {"type": "array"}, "const": true, "minimum": {"type": "number"}, "maximum": {"type": "number"},
  "exclusiveMinimum": {"type": "number"}, "exclusiveMaximum": {"type": "number"}, "multipleOf": {"type": "number", "exclusiveMinimum": 0},
  "minLength": {"$ref": "#/$defs/count"}, "maxLength": {"$ref": "#/$defs/count"}, "pattern": {"type": "string"},
  "minItems": {"$ref": "#/$defs/count"}, "maxItems": {"$ref": "#/$defs/count"}, "uniqueItems": {"type": "boolean"},
  "minContains": {"$ref": "#/$defs/count"}, "maxContains": {"$ref": "#/$defs/count"},
  "minProperties": {"$ref": "#/$defs/count"}, "maxProperties": {"$ref": "#/$defs/count"},
  "prefixItems": {"$ref": "#/$defs/list"}, "items": {"$ref": "#/$defs/schema"}, "contains": {"$ref": "#/$defs/schema"},
  "properties": {"$ref": "#/$defs/map"}, "patternProperties": {"$ref": "#/$defs/map"}, "additionalProperties": {"$ref": "#/$defs/schema"},
  "propertyNames": {"$ref": "#/$defs/schema"}, "dependentSchemas": {"$ref": "#/$defs/map"},
  "dependentRequired": {"type": "object", "additionalProperties": {"$ref": "#/$defs/texts"}}, "required": {"$ref": "#/$defs/texts"},
  "unevaluatedItems": {"$ref": "#/$defs/schema"}, "unevaluatedProperties": {"$ref": "#/$defs/schema"},
  "allOf": {"$ref": "#/$defs/list"}, "anyOf": {"$ref": "#/$defs/list"}, "oneOf": {"$ref": "#/$defs/list"}, "not": {"$ref": "#/$defs/schema"},
  "if": {"$ref": "#/$defs/schema"}, "then": {"$ref": "#/$defs/schema"}, "else": {"$ref": "#/$defs/schema"}}}}})";

// One thing that a value of a call's arguments must fulfil; absent and null are nullptr.
struct Condition {
    std::string what;
    std::function<Fit(const json::value*, std::size_t&)> fits;
};

class ConditionReader {
public:
    // All of them must hold.
    static std::vector<Condition> read(const json::value& value, const std::string& place, int depth = 0) {
        if (depth > 8) bad_rule(place, "nested more than 8 deep");
        const auto& object = rule_object(value, place, {"present", "equals", "one_of", "glob", "regex", "minimum", "maximum",
                                                        "under", "base", "url_host", "every", "some", "not"});
        std::vector<Condition> all;
        for (const auto& entry : object) {
            const std::string_view key = entry.key();
            if (key == "base") {
                if (!object.contains("under")) bad_rule(below(place, key), "needs \"under\" beside it");
                continue;
            }
            all.push_back({std::string(key), one(key, entry.value(), object, below(place, key), depth)});
        }
        if (all.empty()) bad_rule(place, "needs at least one condition, such as {\"equals\": …} or {\"present\": true}");
        return all;
    }
    static Fit all_fit(const std::vector<Condition>& conditions, const json::value* value, std::size_t& steps,
                       std::string* failed = nullptr) {
        Fit result = Fit::yes;
        for (const auto& condition : conditions) {
            const Fit fit = condition.fits(value, steps);
            if (fit == Fit::yes) continue;
            if (failed && (result == Fit::yes || fit == Fit::no)) *failed = condition.what;
            result = fit;
            if (fit == Fit::no) break;
        }
        return result;
    }

private:
    using Test = std::function<Fit(const json::value*, std::size_t&)>;

    template <class Function>
    static Test text_test(Function fits) {
        return [fits = std::move(fits)](const json::value* value, std::size_t& steps) {
            if (!value) return Fit::no;
            return is_text(*value) ? fits(std::string_view(value->get_string()), steps) : Fit::unclear;
        };
    }

    static Test one(std::string_view key, const json::value& setting, const json::object& all, const std::string& place, int depth) {
        if (key == "present") {
            if (!setting.is_bool()) bad_rule(place, "must be true or false");
            return [wanted = setting.get_bool()](const json::value* value, std::size_t&) {
                return (value != nullptr) == wanted ? Fit::yes : Fit::no;
            };
        }
        if (key == "equals" || key == "one_of") {
            if (key == "one_of" && (!setting.is_array() || setting.get_array().empty()))
                bad_rule(place, "must be an array of at least one value");
            json::array wanted;
            if (key == "equals") wanted.push_back(setting);
            else wanted = setting.get_array();
            return [wanted](const json::value* value, std::size_t&) {
                static const json::value null;
                return any_equal(wanted, value ? *value : null) ? Fit::yes : Fit::no;
            };
        }
        if (key == "glob") {
            std::vector<Glob> globs;
            for (const auto& text : rule_texts(setting, place)) globs.emplace_back(text);
            return text_test([globs](std::string_view text, std::size_t& steps) {
                return any_fit(globs, [&](const Glob& glob) { return glob.matches(text, steps); });
            });
        }
        if (key == "regex") return regex(rule_text(setting, place), place);
        if (key == "minimum" || key == "maximum") {
            if (!is_number(setting)) bad_rule(place, "must be a number");
            return [setting, least = key == "minimum"](const json::value* value, std::size_t&) {
                if (!value) return Fit::no;
                if (!is_number(*value)) return Fit::unclear;
                const int order = compare_numbers(*value, setting);
                return (least ? order >= 0 : order <= 0) ? Fit::yes : Fit::no;
            };
        }
        if (key == "under") return under(setting, all, place);
        if (key == "url_host") return hosts(setting, place);
        auto inner = read(setting, place, depth + 1);
        if (key == "not")
            return [inner](const json::value* value, std::size_t& steps) {
                if (!value) return Fit::no;
                const Fit fit = all_fit(inner, value, steps);
                return fit == Fit::unclear ? fit : fit == Fit::yes ? Fit::no : Fit::yes;
            };
        return [inner, every = key == "every"](const json::value* value, std::size_t& steps) {
            if (!value) return Fit::no;
            const auto* list = value->if_array();
            if (!list) return Fit::unclear;
            Fit result = every ? Fit::yes : Fit::no;
            for (const auto& item : *list) {
                const Fit fit = steps == 0 ? Fit::unclear : (--steps, all_fit(inner, item.is_null() ? nullptr : &item, steps));
                if (fit == (every ? Fit::no : Fit::yes)) return fit;
                if (fit == Fit::unclear) result = fit;
            }
            return result;
        };
    }

    static Test regex(const std::string& text, const std::string& place) {
        auto pattern = Pattern::compile(text);  // by itself first: "a)(b" is none
        if (pattern) pattern = Pattern::compile("^(?:" + text + ")$");
        if (!pattern)
            bad_rule(place, "is no regular expression that can be matched with bounded work: no back-references, flags or "
                            "\\p{…}, and not too large");
        return text_test([pattern = std::make_shared<Pattern>(std::move(*pattern))](std::string_view value, std::size_t& steps) {
            if (value.size() > 1u << 20) return Fit::unclear;
            const auto found = pattern->search(value, steps);
            return !found ? Fit::unclear : *found ? Fit::yes : Fit::no;
        });
    }

    static std::string directory(const std::string& text, const std::string& place) {
        const auto normal = text.front() == '/' ? normal_path(text, {}) : std::nullopt;
        if (!normal) bad_rule(place, "must be an absolute directory, such as /home/me/project");
        return *normal;
    }
    static Test under(const json::value& setting, const json::object& all, const std::string& place) {
        std::vector<std::string> directories;
        for (const auto& text : rule_texts(setting, place)) directories.push_back(directory(text, place));
        std::string base;
        if (const auto* given = all.if_contains("base")) {
            const auto where = place.substr(0, place.rfind('/')) + "/base";
            base = directory(rule_text(*given, where), where);
        }
        return text_test([directories, base](std::string_view text, std::size_t& steps) {
            if (text.size() > steps) return Fit::unclear;
            steps -= text.size();
            const auto path = normal_path(text, base);
            if (!path) return Fit::unclear;
            return any_fit(directories, [&](const std::string& place_) {
                const bool inside = path->starts_with(place_) &&
                                    (place_ == "/" || path->size() == place_.size() || (*path)[place_.size()] == '/');
                return inside ? Fit::yes : Fit::no;
            });
        });
    }

    static Test hosts(const json::value& setting, const std::string& place) {
        std::vector<DomainRule> rules;
        for (const auto& text : rule_texts(setting, place)) {
            if (auto rule = parse_domain_rule(text, RuleList::allow)) {
                rules.push_back(std::move(*rule));
                continue;
            }
            // An address: "10.0.0.1", "10.0.0.1:8080", "[::1]", "[::1]:8080".
            const auto found = url_host("http://" + text);
            if (!found || !found->address || text.find_first_of("/?#") != text.npos)
                bad_rule(place, "\"" + printable(text) + "\" is no host; accepted: HOST, *.HOST or an address, with :PORT for that port only");
            DomainRule rule;
            rule.host = found->host;
            const auto colon = text.rfind(':');
            if (colon != text.npos && text.back() != ']') rule.port = found->port;
            rules.push_back(std::move(rule));
        }
        return text_test([rules](std::string_view text, std::size_t& steps) {
            if (text.size() > steps) return Fit::unclear;
            steps -= text.size();
            const auto found = url_host(text);
            if (!found) return Fit::unclear;
            return any_fit(rules, [&](const DomainRule& rule) { return rule.matches(found->host, found->port) ? Fit::yes : Fit::no; });
        });
    }
};

// One rule of a policy.
class Rule {
public:
    enum class Effect { allow, deny, ask, pass };
    using Wall = std::chrono::system_clock::time_point;
    using Steady = std::chrono::steady_clock::time_point;

    // place: where it stands, such as "policy.json, rules/2". Throws errc::bad_config naming it.
    Rule(const json::value& value, const std::string& place, std::size_t number) {
        const auto& object = rule_object(value, place, {"name", "when", "then", "budget", "expires"});
        label_ = "rule " + std::to_string(number);
        if (const auto* name = object.if_contains("name")) {
            name_ = rule_text(*name, below(place, "name"));
            label_ += " (" + printable(name_) + ")";
        }
        const auto* then = object.if_contains("then");
        if (!then) bad_rule(place, "\"then\" is missing; accepted: \"allow\", \"ask\", \"deny\", {\"deny\": \"reason\"}");
        read_effect(*then, below(place, "then"));
        if (const auto* when = object.if_contains("when")) read_when(*when, below(place, "when"));
        if (const auto* budget = object.if_contains("budget")) read_budget(*budget, below(place, "budget"));
        if (const auto* expires = object.if_contains("expires")) read_expiry(*expires, below(place, "expires"));
    }

    const std::string& name() const noexcept { return name_; }
    const std::string& label() const noexcept { return label_; }
    Effect effect() const noexcept { return effect_; }
    const std::string& reason() const noexcept { return reason_; }

    struct Part {
        std::string what;     // "tool", "arguments/~1path/under"
        std::string value;    // what the call has there, printable
        Fit fit = Fit::yes;
    };
    // Whether the rule is about this call; `why` gets the parts that do not hold.
    Fit fits(const CallFacts& call, Wall now, std::size_t& steps, std::vector<Part>* why = nullptr) const {
        Fit result = Fit::yes;
        const auto note = [&](const Part& part) {
            result = part.fit == Fit::no || result == Fit::no ? Fit::no : Fit::unclear;
            if (why) why->push_back(part);
            return !why && result == Fit::no;
        };
        if (expires_ && now >= *expires_ && note({"expires", "the time has come", Fit::no})) return result;
        for (const auto& test : tests_) {
            Part part;
            part.fit = test(call, steps, why != nullptr, part);
            if (part.fit != Fit::yes && note(part)) return result;
        }
        return result;
    }
    std::size_t parts() const noexcept { return tests_.size() + (expires_ ? 1 : 0); }

    // What the budget makes of a call that fits, which counts from now on.
    Effect spend(std::string_view session, Steady now, std::string& reason) {
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

private:
    using Test = std::function<Fit(const CallFacts&, std::size_t&, bool explain, Part&)>;
    struct Budget {
        std::size_t calls = 0;
        std::optional<std::chrono::seconds> per;
        Effect exceeded = Effect::deny;
        std::string text;
        std::map<std::string, std::deque<Steady>, std::less<>> used;
    };

    static std::optional<Effect> effect_of(const json::value& value) {
        const auto* text = value.if_string();
        if (text && *text == "allow") return Effect::allow;
        if (text && *text == "deny") return Effect::deny;
        if (text && *text == "ask") return Effect::ask;
        return {};
    }
    void read_effect(const json::value& value, const std::string& place) {
        const auto effect = effect_of(value);
        const auto* object = value.if_object();
        if (effect) {
            effect_ = *effect;
        } else if (object && object->size() == 1 && object->contains("deny")) {
            effect_ = Effect::deny;
            reason_ = rule_text(object->at("deny"), below(place, "deny"));
        } else {
            bad_rule(place, "accepted: \"allow\", \"ask\", \"deny\", {\"deny\": \"reason\"}");
        }
        if (effect_ == Effect::deny && reason_.empty()) reason_ = "denied by " + label_;
    }

    void read_when(const json::value& value, const std::string& place) {
        const auto& when = rule_object(value, place, {"server", "tool", "origin", "session", "annotations", "arguments", "schema"});
        add_globs(when, place, "server", [](const CallFacts& call) { return call.server; });
        add_globs(when, place, "tool", [](const CallFacts& call) { return call.tool; });
        add_globs(when, place, "origin", [](const CallFacts& call) { return call.origin; });
        add_globs(when, place, "session", [](const CallFacts& call) { return call.session; });
        if (const auto* hints = when.if_contains("annotations")) add_hints(*hints, below(place, "annotations"));
        if (const auto* arguments = when.if_contains("arguments")) {
            const auto where = below(place, "arguments");
            if (!arguments->is_object() || arguments->get_object().empty())
                bad_rule(where, "must be an object of conditions by JSON pointer, such as {\"/path\": {\"under\": \"/work\"}}");
            for (const auto& entry : arguments->get_object()) add_conditions(entry.key(), entry.value(), below(where, entry.key()));
        }
        if (const auto* schema = when.if_contains("schema")) add_schema(*schema, below(place, "schema"));
    }

    template <class Field>
    void add_globs(const json::object& when, const std::string& place, const char* key, Field field) {
        const auto* value = when.if_contains(key);
        if (!value) return;
        const auto where = below(place, key);
        std::vector<Glob> globs;
        for (const auto& text : rule_texts(*value, where)) {
            globs.emplace_back(text);
            if (std::string_view(key) != "origin") continue;
            static constexpr std::string_view origins[] = {"mcp", "shell", "shell_magic", "package", "register"};
            std::size_t steps = rule_steps;
            if (std::none_of(std::begin(origins), std::end(origins),
                             [&](auto origin) { return globs.back().matches(origin, steps) == Fit::yes; }))
                bad_rule(where, "\"" + printable(text) + "\" matches no origin; there are: mcp, shell, shell_magic, package, register");
        }
        tests_.push_back([globs, field, key](const CallFacts& call, std::size_t& steps, bool explain, Part& part) {
            const std::string_view text = field(call);
            if (explain) part.what = key, part.value = '"' + printable(text.substr(0, 200)) + '"';
            return any_fit(globs, [&](const Glob& glob) { return glob.matches(text, steps); });
        });
    }

    // A hint that a server does not give has the value that MCP says: the less harmless one.
    static bool hint(const json::object& annotations, std::string_view name) {
        const auto* given = annotations.if_contains(name);
        if (given && given->is_bool()) return given->get_bool();
        if (name == "destructiveHint") return !hint(annotations, "readOnlyHint");
        return name == "openWorldHint";
    }
    void add_hints(const json::value& value, const std::string& place) {
        const auto& hints = rule_object(value, place, {"readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"});
        if (hints.empty()) bad_rule(place, "needs at least one hint");
        for (const auto& entry : hints) {
            if (!entry.value().is_bool()) bad_rule(below(place, entry.key()), "must be true or false");
            tests_.push_back([name = std::string(entry.key()), wanted = entry.value().get_bool()](
                                 const CallFacts& call, std::size_t&, bool explain, Part& part) {
                const bool is = hint(call.annotations, name);
                if (explain) {
                    part.what = "annotations/" + name;
                    part.value = std::string(is ? "true" : "false") + (call.annotations.contains(name) ? "" : ", as the server says nothing");
                }
                return is == wanted ? Fit::yes : Fit::no;
            });
        }
    }

    static std::vector<std::string> tokens_of(std::string_view pointer, const std::string& place) {
        if (!pointer.starts_with('/')) bad_rule(place, "must be a JSON pointer: it begins with /, as in \"/path\"");
        std::vector<std::string> tokens;
        for (std::size_t i = 0; i < pointer.size(); ++i) {
            if (pointer[i] == '/') {
                tokens.emplace_back();
            } else if (pointer[i] == '~') {
                const char next = i + 1 < pointer.size() ? pointer[i + 1] : ' ';
                if (next != '0' && next != '1') bad_rule(place, "is no JSON pointer: ~ is written ~0, / in a name ~1");
                tokens.back() += next == '0' ? '~' : '/';
                ++i;
            } else {
                tokens.back() += pointer[i];
            }
        }
        return tokens;
    }
    static const json::value* find(const json::object& arguments, const std::vector<std::string>& tokens) {
        const json::value* value = arguments.if_contains(tokens.front());
        for (std::size_t i = 1; i < tokens.size() && value; ++i) {
            if (const auto* object = value->if_object()) {
                value = object->if_contains(tokens[i]);
            } else if (const auto* list = value->if_array()) {
                std::size_t index = 0;
                const auto* end = tokens[i].data() + tokens[i].size();
                const auto [stop, error] = std::from_chars(tokens[i].data(), end, index);
                value = error == std::errc() && stop == end && index < list->size() ? &(*list)[index] : nullptr;
            } else {
                value = nullptr;
            }
        }
        return value && value->is_null() ? nullptr : value;
    }
    void add_conditions(std::string_view pointer, const json::value& value, const std::string& place) {
        tests_.push_back([tokens = tokens_of(pointer, place), conditions = ConditionReader::read(value, place),
                          what = below("arguments", pointer)](const CallFacts& call, std::size_t& steps, bool explain, Part& part) {
            const auto* found = find(call.arguments, tokens);
            std::string failed;
            const Fit fit = ConditionReader::all_fit(conditions, found, steps, explain ? &failed : nullptr);
            if (explain) {
                part.what = what + (failed.empty() ? "" : "/" + failed);
                part.value = found ? literal_text(*found) : "absent";
            }
            return fit;
        });
    }

    static void check_patterns(const json::value& schema, const std::string& place) {
        const auto check = [&](std::string_view text, const std::string& where) {
            if (!Pattern::compile(text)) bad_rule(where, "is no regular expression that can be matched with bounded work");
        };
        if (const auto* list = schema.if_array())
            for (std::size_t i = 0; i < list->size(); ++i) check_patterns((*list)[i], below(place, std::to_string(i)));
        if (!schema.is_object()) return;
        for (const auto& [key, value] : schema.get_object()) {
            if (key == "const" || key == "enum" || key == "default" || key == "examples") continue;
            if (key == "pattern" && value.is_string()) check(value.get_string(), below(place, key));
            if (key == "patternProperties" && value.is_object())
                for (const auto& entry : value.get_object()) check(entry.key(), below(below(place, key), entry.key()));
            check_patterns(value, below(place, key));
        }
    }
    void add_schema(const json::value& value, const std::string& place) {
        static const json::value meta = json::parse(std::string(strict_schema));
        if (deeper_than(value, 50)) bad_rule(place, "nested more than 50 deep");
        if (const auto problem = validate(meta, value)) {
            const bool inside = problem->starts_with('/');
            bad_rule(inside ? place + problem->substr(0, problem->find(": ")) : place,
                     inside ? problem->substr(problem->find(": ") + 2) : *problem);
        }
        check_patterns(value, place);
        struct Compiled {
            explicit Compiled(const json::value& v) : schema(v), document(schema) {}
            json::value schema;
            SchemaDocument document;
        };
        tests_.push_back([compiled = std::make_shared<Compiled>(value)](const CallFacts& call, std::size_t&, bool explain, Part& part) {
            SchemaValidator validator(compiled->document, rule_steps / 10);
            const json::value arguments = call.arguments;
            const auto problem = validator.problem(compiled->document.root(), arguments);
            if (explain) part.what = "schema", part.value = problem ? printable(problem->substr(0, 200)) : "";
            return validator.gave_up() ? Fit::unclear : problem ? Fit::no : Fit::yes;
        });
    }

    void read_budget(const json::value& value, const std::string& place) {
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
            long amount = 0;
            const auto* end = text.data() + text.size();
            const auto [stop, error] = std::from_chars(text.data(), end, amount);
            const std::string_view unit(stop, static_cast<std::size_t>(end - stop));
            const long seconds = unit == "s" ? 1 : unit == "m" ? 60 : unit == "h" ? 3600 : unit == "d" ? 86400 : 0;
            if (error != std::errc() || amount < 1 || amount > 10'000 || seconds == 0)
                bad_rule(below(place, "per"), "must be a time such as \"30s\", \"5m\", \"1h\" or \"7d\"; without it the count is for good");
            budget.per = std::chrono::seconds(amount * seconds);
            budget.text += " per " + text;
        }
        if (const auto* exceeded = object.if_contains("exceeded")) {
            const auto effect = effect_of(*exceeded);
            const bool passes = exceeded->is_string() && exceeded->get_string() == "pass";
            if (!passes && (!effect || *effect == Effect::allow)) bad_rule(below(place, "exceeded"), "accepted: \"deny\", \"ask\", \"pass\"");
            budget.exceeded = passes ? Effect::pass : *effect;
        }
        budget_ = std::move(budget);
    }

    void read_expiry(const json::value& value, const std::string& place) {
        const std::string text = value.is_string() ? std::string(value.get_string()) : "";
        std::tm time{};
        const char* rest = ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &time);
        int hours = 0, minutes = 0, used = 0;
        char sign = 0;
        bool good = rest != nullptr;
        if (good && std::string_view(rest) != "Z")
            good = std::sscanf(rest, "%c%2d:%2d%n", &sign, &hours, &minutes, &used) == 3 && (sign == '+' || sign == '-') &&
                   rest[used] == '\0' && hours >= 0 && hours < 24 && minutes >= 0 && minutes < 60;
        if (!good) bad_rule(place, "must be a time such as \"2030-12-31T23:59:59Z\" or \"2030-12-31T23:59:59+01:00\"");
        const auto shift = std::chrono::minutes((sign == '-' ? -1 : 1) * (hours * 60 + minutes));
        expires_ = std::chrono::system_clock::from_time_t(::timegm(&time)) - shift;
    }

    std::string name_, label_, reason_;
    Effect effect_ = Effect::deny;
    std::vector<Test> tests_;
    std::optional<Budget> budget_;
    std::optional<Wall> expires_;
};

// Rules in their order; the first that fits decides.
class RuleSet {
public:
    RuleSet() = default;
    // place: where the array stands, such as "policy.json, rules". Throws errc::bad_config.
    explicit RuleSet(const json::value& value, const std::string& place = "rules") {
        const auto* list = value.if_array();
        if (!list || list->empty()) bad_rule(place, "must be an array of at least one rule");
        std::set<std::string> names;
        for (const auto& entry : *list) {
            const auto where = below(place, std::to_string(rules_.size()));
            rules_.emplace_back(entry, where, rules_.size() + 1);
            if (const auto& name = rules_.back().name(); !name.empty() && !names.insert(name).second)
                bad_rule(below(where, "name"), "\"" + printable(name) + "\" is the name of another rule");
        }
    }

    struct Judgement {
        Rule::Effect effect = Rule::Effect::pass;
        const Rule* rule = nullptr;  // none: no rule fits
        std::string reason;          // of a denial
    };
    // Counts the call in the budget of the rule that decides.
    Judgement judge(const CallFacts& call, Rule::Wall wall, Rule::Steady now) {
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
    static std::string unclear_text(const Rule::Part& part) {
        std::string text = part.what + " cannot be checked on " + part.value;
        if (part.what.ends_with("/under")) text += " (relative paths need \"base\"; ~, $, file:, backslashes and %2e are refused)";
        if (part.what.ends_with("/url_host")) text += " (an http(s) URL without user name and odd characters is needed)";
        return text;
    }

    const std::vector<Rule>& rules() const noexcept { return rules_; }

private:
    std::vector<Rule> rules_;
};

}  // namespace ipybox::detail
