#pragma once
#include <ipybox/approval/rules.hpp>

#include <arpa/inet.h>

#include <algorithm>
#include <cctype>
#include <ipybox/compilation.hpp>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/detail/json_schema.hpp>
#include <ipybox/detail/pattern.hpp>
#include <ipybox/detail/terminal_text.hpp>
#include <ipybox/detail/utf8.hpp>
#include <ipybox/net/domain_rule.hpp>
#include <memory>
#include <utility>

namespace ipybox::approval {

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

template <class Function>
std::function<Fit(const json::value*, std::size_t&)> text_test(Function fits) {
    return [fits = std::move(fits)](const json::value* value, std::size_t& steps) {
        if (!value) return Fit::no;
        return detail::is_text(*value) ? fits(std::string_view(value->get_string()), steps)
                                       : Fit::unclear;
    };
}

[[noreturn]] IPYBOX_DECL void bad_rule(const std::string& place, const std::string& what) {
    throw Error(errc::bad_config, place + ": " + what);
}

IPYBOX_DECL std::string below(const std::string& place, std::string_view key) {
    std::string path = place + '/';
    for (const char c : key) path += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
    return path;
}

IPYBOX_DECL const json::object& rule_object(const json::value& value, const std::string& place,
                                            std::initializer_list<std::string_view> keys) {
    const auto* object = value.if_object();
    std::string accepted;
    for (const auto key : keys) accepted += (accepted.empty() ? "" : ", ") + std::string(key);
    if (!object) bad_rule(place, "must be an object with some of " + accepted);
    for (const auto& entry : *object)
        if (std::find(keys.begin(), keys.end(), std::string_view(entry.key())) == keys.end())
            bad_rule(place, "unknown key \"" + detail::printable(entry.key()) +
                                "\"; accepted: " + accepted);
    return *object;
}

IPYBOX_DECL std::string rule_text(const json::value& value, const std::string& place) {
    if (!detail::is_text(value) || value.get_string().empty())
        bad_rule(place, "must be a text that is not empty");
    return std::string(value.get_string());
}

IPYBOX_DECL std::vector<std::string> rule_texts(const json::value& value,
                                                const std::string& place) {
    const auto* list = value.if_array();
    if (!list) return {rule_text(value, place)};
    if (list->empty()) bad_rule(place, "must be a text or an array of at least one");
    std::vector<std::string> texts;
    for (std::size_t i = 0; i < list->size(); ++i)
        texts.push_back(rule_text((*list)[i], below(place, std::to_string(i))));
    return texts;
}

IPYBOX_DECL Glob::Glob(std::string_view pattern) {
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

IPYBOX_DECL std::string Glob::quoted(std::string_view text) {
    std::string pattern;
    for (const char c : text) {
        if (c == '*' || c == '?' || c == '\\') pattern += '\\';
        pattern += c;
    }
    return pattern;
}

IPYBOX_DECL Fit Glob::matches(std::string_view text, std::size_t& steps) const {
    constexpr auto none = static_cast<std::size_t>(-1);
    std::size_t at = 0, part = 0, star = none, resume = 0;
    while (at < text.size()) {
        if (steps == 0) return Fit::unclear;
        --steps;
        if (part < parts_.size() && parts_[part].kind == many) {
            star = part++;
            resume = at;
        } else if (part < parts_.size() && parts_[part].kind == one) {
            at += detail::decode_utf8(text.substr(at)).size;
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

IPYBOX_DECL bool reads_differently(std::string_view path) {
    bool blank_or_dot = true;  // nothing else in this name so far
    std::size_t name = 0;      // bytes of it
    std::size_t dots = 0;
    for (std::string_view rest = path;;) {
        const bool end = rest.empty() || rest.front() == '/';
        if (end) {
            if (name > 0 && blank_or_dot && !(dots == name && name <= 2)) return true;
            if (rest.empty()) return false;
            blank_or_dot = true;
            name = dots = 0;
            rest.remove_prefix(1);
            continue;
        }
        const detail::CodePoint point = detail::decode_utf8(rest);
        const auto c = point.value;
        if (!point.valid || detail::is_deceptive(c) || c == '\\' || c == '$' || c == '`')
            return true;
        if (c == '%' && rest.size() > 1 &&
            (std::isalnum(static_cast<unsigned char>(rest[1])) || rest[1] == '%'))
            return true;
        // Full-width and small forms of / \ . and ~, and dot leaders.
        if (c == 0xFF0F || c == 0xFF3C || c == 0xFF0E || c == 0xFF5E || c == 0xFE52 ||
            c == 0xFE68 || c == 0x2024 || c == 0x2025)
            return true;
        const bool blank = c == ' ' || c == 0xA0 || c == 0x3000 || (c >= 0x2000 && c <= 0x200A) ||
                           c == 0x202F || c == 0x205F || c == 0x2026;
        blank_or_dot = blank_or_dot && (blank || c == '.');
        dots += c == '.' ? 1 : 0;
        name += point.size;
        rest.remove_prefix(point.size);
    }
}

IPYBOX_DECL std::optional<std::string> normal_path(std::string_view path, std::string_view base) {
    if (path.empty() || path.front() == '~' || path.front() == ' ' || path.back() == ' ' ||
        reads_differently(path))
        return {};
    std::string start(path.substr(0, 5));
    for (char& c : start) c = static_cast<char>(c | 0x20);
    if (start == "file:" || (path.front() != '/' && base.empty())) return {};
    const std::string whole =
        path.front() == '/' ? std::string(path) : std::string(base) + '/' + std::string(path);
    std::vector<std::string_view> names;
    std::string_view rest = whole;
    while (!rest.empty()) {
        const auto end = std::min(rest.find('/'), rest.size());
        const auto name = rest.substr(0, end);
        rest.remove_prefix(std::min(end + 1, rest.size()));
        if (name.empty() || name == ".") continue;
        if (name != "..")
            names.push_back(name);
        else if (!names.empty())
            names.pop_back();
    }
    std::string result;
    for (const auto name : names) result += '/' + std::string(name);
    return result.empty() ? "/" : result;
}

IPYBOX_DECL std::optional<UrlHost> host_or_address(std::string_view text, std::uint16_t port) {
    UrlHost found;
    found.port = port;
    char spelling[INET6_ADDRSTRLEN];
    unsigned char bytes[16];
    const bool bracketed = text.size() > 2 && text.front() == '[' && text.back() == ']';
    const std::string address(bracketed ? text.substr(1, text.size() - 2) : text);
    const int family = bracketed ? AF_INET6 : AF_INET;
    if (::inet_pton(family, address.c_str(), bytes) == 1 &&
        ::inet_ntop(family, bytes, spelling, sizeof spelling) != nullptr) {
        found.host = spelling;
        found.address = true;
        return found;
    }
    auto name = bracketed ? std::nullopt : net::canonical_host(text);
    if (!name) return {};
    found.host = std::move(*name);
    return found;
}

IPYBOX_DECL std::optional<UrlHost> url_host(std::string_view url) {
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
    const auto end = authority.find(
        ':', authority.starts_with('[') ? std::min(authority.find(']'), authority.size()) : 0);
    if (end != authority.npos) {
        const auto given = net::parse_port(authority.substr(end + 1));
        if (!given) return {};
        port = *given;
        authority = authority.substr(0, end);
    }
    return host_or_address(authority, port);
}

IPYBOX_DECL std::vector<Condition> ConditionReader::read(const json::value& value,
                                                         const std::string& place, int depth) {
    if (depth > 8) bad_rule(place, "nested more than 8 deep");
    const auto& object =
        rule_object(value, place,
                    {"present", "equals", "one_of", "glob", "regex", "minimum", "maximum", "under",
                     "base", "url_host", "every", "some", "not"});
    std::vector<Condition> all;
    for (const auto& entry : object) {
        const std::string_view key = entry.key();
        if (key == "base") {
            if (!object.contains("under")) bad_rule(below(place, key), "needs \"under\" beside it");
            continue;
        }
        all.push_back(
            {std::string(key), one(key, entry.value(), object, below(place, key), depth)});
    }
    if (all.empty())
        bad_rule(place,
                 "needs at least one condition, such as {\"equals\": …} or {\"present\": true}");
    return all;
}

IPYBOX_DECL Fit ConditionReader::all_fit(const std::vector<Condition>& conditions,
                                         const json::value* value, std::size_t& steps,
                                         std::string* failed) {
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

IPYBOX_DECL ConditionReader::Test ConditionReader::one(std::string_view key,
                                                       const json::value& setting,
                                                       const json::object& all,
                                                       const std::string& place, int depth) {
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
        if (key == "equals")
            wanted.push_back(setting);
        else
            wanted = setting.get_array();
        return [wanted](const json::value* value, std::size_t&) {
            static const json::value null;
            return detail::any_equal(wanted, value ? *value : null) ? Fit::yes : Fit::no;
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
        if (!detail::is_number(setting)) bad_rule(place, "must be a number");
        return [setting, least = key == "minimum"](const json::value* value, std::size_t&) {
            if (!value) return Fit::no;
            if (!detail::is_number(*value)) return Fit::unclear;
            const int order = detail::compare_numbers(*value, setting);
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
            const Fit fit =
                steps == 0 ? Fit::unclear
                           : (--steps, all_fit(inner, item.is_null() ? nullptr : &item, steps));
            if (fit == (every ? Fit::no : Fit::yes)) return fit;
            if (fit == Fit::unclear) result = fit;
        }
        return result;
    };
}

IPYBOX_DECL ConditionReader::Test ConditionReader::regex(const std::string& text,
                                                         const std::string& place) {
    auto pattern = detail::Pattern::compile(text);  // by itself first: "a)(b" is none
    if (pattern) pattern = detail::Pattern::compile("^(?:" + text + ")$");
    if (!pattern)
        bad_rule(place,
                 "is no regular expression that can be matched with bounded work: no "
                 "back-references, flags or "
                 "\\p{…}, and not too large");
    return text_test([pattern = std::make_shared<detail::Pattern>(std::move(*pattern))](
                         std::string_view value, std::size_t& steps) {
        if (value.size() > 1u << 20) return Fit::unclear;
        const auto found = pattern->search(value, steps);
        return !found ? Fit::unclear : *found ? Fit::yes : Fit::no;
    });
}

IPYBOX_DECL std::string ConditionReader::directory(const std::string& text,
                                                   const std::string& place) {
    const auto normal = text.front() == '/' ? normal_path(text, {}) : std::nullopt;
    if (!normal) bad_rule(place, "must be an absolute directory, such as /home/me/project");
    return *normal;
}

IPYBOX_DECL ConditionReader::Test ConditionReader::under(const json::value& setting,
                                                         const json::object& all,
                                                         const std::string& place) {
    std::vector<std::string> directories;
    for (const auto& text : rule_texts(setting, place))
        directories.push_back(directory(text, place));
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
            const bool inside =
                path->starts_with(place_) &&
                (place_ == "/" || path->size() == place_.size() || (*path)[place_.size()] == '/');
            return inside ? Fit::yes : Fit::no;
        });
    });
}

IPYBOX_DECL ConditionReader::Test ConditionReader::hosts(const json::value& setting,
                                                         const std::string& place) {
    std::vector<net::DomainRule> rules;
    for (const auto& text : rule_texts(setting, place)) {
        if (auto rule = net::parse_domain_rule(text, net::RuleList::allow)) {
            rules.push_back(std::move(*rule));
            continue;
        }
        // An address: "10.0.0.1", "10.0.0.1:8080", "[::1]", "[::1]:8080".
        const auto found = url_host("http://" + text);
        if (!found || !found->address || text.find_first_of("/?#") != text.npos)
            bad_rule(place, "\"" + detail::printable(text) +
                                "\" is no host; accepted: HOST, *.HOST or an address, with :PORT "
                                "for that port only");
        net::DomainRule rule;
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
        return any_fit(rules, [&](const net::DomainRule& rule) {
            return rule.matches(found->host, found->port) ? Fit::yes : Fit::no;
        });
    });
}

}  // namespace ipybox::approval
