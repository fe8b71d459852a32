#pragma once
#include <ipybox/tools/server_identity.hpp>

#include <algorithm>
#include <ipybox/compilation.hpp>
#include <ipybox/config.hpp>
#include <ipybox/detail/json_members.hpp>
#include <ipybox/detail/json_number.hpp>
#include <string_view>
#include <vector>

namespace ipybox::tools {

inline constexpr std::string_view hidden_value = "[hidden]";

// As it is when only variables stand in it: they name a secret and are none.
inline std::string without_secret(std::string_view value) {
    std::string_view rest = value;
    for (const std::string_view scheme : {"Bearer ", "Basic "})
        if (rest.starts_with(scheme)) rest.remove_prefix(scheme.size());
    while (rest.starts_with("${")) {
        const auto end = rest.find('}');
        if (end == rest.npos || rest.substr(0, end).find(":-") != rest.npos) break;
        rest.remove_prefix(end + 1);
    }
    return std::string(rest.empty() ? value : hidden_value);
}

// ${TOKEN:-abc} without what stands for a variable that is a secret by its name.
inline std::string without_secret_defaults(std::string_view text) {
    std::string result;
    for (;;) {
        const auto from = text.find("${");
        const auto end = from == text.npos ? text.npos : text.find('}', from);
        if (end == text.npos) return result += text;
        const auto inner = text.substr(from + 2, end - from - 2);
        const auto fallback = inner.find(":-");
        result += text.substr(0, from);
        if (fallback != inner.npos && config::names_a_secret(inner.substr(0, fallback)))
            ((result += "${") += inner.substr(0, fallback + 2)) += hidden_value;
        else
            (result += "${") += inner;
        result += '}';
        text.remove_prefix(end + 1);
    }
}

// A URL without the login before its host and without the values of its query.
inline std::string place_of_url(std::string_view url) {
    std::string result;
    const auto scheme = url.find("://");
    if (scheme != url.npos) {
        result = url.substr(0, scheme + 3);
        url.remove_prefix(scheme + 3);
    }
    const auto authority = std::min(url.find_first_of("/?#"), url.size());
    if (const auto login = url.substr(0, authority).rfind('@'); login != url.npos) {
        (result += hidden_value) += '@';
        url.remove_prefix(login + 1);
    }
    const auto query = std::min(url.find('?'), url.size());
    result += without_secret_defaults(url.substr(0, query));
    url.remove_prefix(query);
    while (!url.empty()) {
        const auto next = std::min(url.find_first_of("&#", 1), url.size());
        const auto part = url.substr(0, next);
        const auto equals = part.find('=');
        result += part.substr(0, equals == part.npos ? part.size() : equals + 1);
        if (equals != part.npos) result += without_secret(part.substr(equals + 1));
        url.remove_prefix(next);
    }
    return result;
}

// Of "--token=abc", "API_KEY=abc" and "Authorization: abc" what is no secret.
inline std::string argument_without_secret(std::string_view word) {
    const auto border = word.find_first_of("=:");
    if (word.find("://") != word.npos && border != word.npos) {
        const auto equals = word.find('=');
        const bool option = equals < word.find("://");
        return option
                   ? std::string(word.substr(0, equals + 1)) + place_of_url(word.substr(equals + 1))
                   : place_of_url(word);
    }
    if (border == word.npos || border > word.find("${") ||
        !config::names_a_secret(word.substr(0, border)))
        return without_secret_defaults(word);
    auto value = border + 1;
    while (value < word.size() && word[value] == ' ') ++value;
    return std::string(word.substr(0, value)) + without_secret(word.substr(value));
}

// So that words with blanks, or none, cannot be taken for others.
inline std::string identity_word(std::string_view text) {
    static constexpr std::string_view plain =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:./~?&#$-{}[]*";
    if (!text.empty() && text.find_first_not_of(plain) == text.npos) return std::string(text);
    return detail::write_json(json::string(text));
}

// Of a transport with parameters of its own: what it is and what it is given.
inline json::value params_without_secrets(const json::value& value) {
    if (const auto* text = value.if_string())
        return json::value(argument_without_secret(std::string_view(*text)));
    if (const auto* list = value.if_array()) {
        json::array result;
        for (const auto& item : *list) result.push_back(params_without_secrets(item));
        return result;
    }
    const auto* object = value.if_object();
    if (!object) return value;
    json::object result;
    for (const auto& [key, item] : *object)
        result[key] = config::names_a_secret(key) && item.is_string()
                          ? json::value(without_secret(std::string_view(item.get_string())))
                          : params_without_secrets(item);
    return result;
}

inline std::string names_in(const json::object& params, const char* field, const char* label) {
    const auto* values = detail::object_of(params, field);
    if (!values || values->empty()) return {};
    std::vector<std::string> names;
    for (const auto& entry : *values) names.push_back(identity_word(entry.key()));
    std::sort(names.begin(), names.end());
    std::string text = std::string("; ") + label + ":";
    for (const auto& name : names) text += ' ' + name;
    return text;
}

}  // namespace ipybox::tools

namespace ipybox {

IPYBOX_DECL std::string server_identity(const json::object& params) {
    using tools::identity_word;
    if (!has_own_transport(params)) {
        json::object others;
        for (const auto& [key, value] : params)
            if (key != "type" && key != "env" && key != "headers" && key != "auth")
                others[key] = value;
        return identity_word(transport_of(params)) + ' ' +
               detail::write_json(tools::params_without_secrets(others)) +
               tools::names_in(params, "env", "env") +
               tools::names_in(params, "headers", "headers");
    }
    std::string text;
    if (const auto* url = detail::find_string(params, "url")) {
        text = identity_word(tools::place_of_url(*url));
    } else {
        text = identity_word(detail::string_of(params, "command"));
        bool secret = false;  // the word before says that this one is
        if (const auto* args = params.if_contains("args"))
            for (const auto& arg : args->as_array()) {
                const std::string_view word = arg.get_string();
                const bool option = word.starts_with('-');
                text +=
                    ' ' + identity_word(secret && !option ? tools::without_secret(word)
                                                          : tools::argument_without_secret(word));
                secret = option && word.find_first_of("=: ") == word.npos &&
                         config::names_a_secret(word);
            }
    }
    if (const auto* cwd = detail::find_string(params, "cwd"))
        text += "; cwd: " + identity_word(std::string_view(*cwd));
    return text + tools::names_in(params, "env", "env") +
           tools::names_in(params, "headers", "headers");
}

}  // namespace ipybox
