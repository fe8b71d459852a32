#pragma once
#include <ipybox/config.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <ipybox/compilation.hpp>
#include <ipybox/detail/beneath.hpp>
#include <ipybox/detail/json_members.hpp>
#include <sstream>

namespace ipybox {

IPYBOX_DECL std::string read_text_file(const std::filesystem::path& path, std::size_t limit) {
    std::error_code error;
    if (std::filesystem::is_directory(path, error))
        throw Error(errc::bad_argument, path.string() + ": is a directory, a file is needed");
    std::ifstream in(path, std::ios::binary);
    if (!in) throw Error(errc::bad_argument, path.string() + ": cannot be read; does it exist?");
    std::string text(limit + 1, '\0');
    in.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<std::size_t>(in.gcount()));
    if (text.size() > limit)
        throw Error(errc::bad_argument,
                    path.string() + ": larger than " + std::to_string(limit) + " bytes");
    return text;
}

IPYBOX_DECL json::value parse_json(std::string_view text, const std::string& what,
                                   Numbers numbers) {
    boost::system::error_code error;
    std::size_t used = 0;
    auto value = detail::parse_exact(text, error, {}, &used);
    if (!error) {
        if (numbers == Numbers::rounded) detail::round_numbers(value);
        return value;
    }
    const auto before = text.substr(0, std::min(used, text.size()));
    const auto line = std::count(before.begin(), before.end(), '\n') + 1;
    const auto column = before.size() - (before.rfind('\n') + 1) + 1;
    throw Error(errc::bad_config, what + ": not valid JSON at line " + std::to_string(line) +
                                      ", column " + std::to_string(column) + ": " +
                                      error.message());
}

IPYBOX_DECL Variables parse_env(std::string_view text, const std::string& what) {
    Variables variables;
    std::istringstream lines{std::string(text)};
    std::string line;
    for (int number = 1; std::getline(lines, line); ++number) {
        const auto fail = [&](const char* why) {
            throw Error(errc::bad_config, what + ", line " + std::to_string(number) + ": " + why);
        };
        std::string_view rest = line;
        const auto trim = [](std::string_view s) {
            const auto from = s.find_first_not_of(" \t\r");
            return from == s.npos ? std::string_view{}
                                  : s.substr(from, s.find_last_not_of(" \t\r") - from + 1);
        };
        rest = trim(rest);
        if (rest.empty() || rest.front() == '#') continue;
        if (rest.starts_with("export ")) rest = trim(rest.substr(7));
        const auto equals = rest.find('=');
        if (equals == rest.npos || equals == 0) fail("expected NAME=value");
        const auto name = trim(rest.substr(0, equals));
        for (const char c : name)
            if (!std::isalnum(static_cast<unsigned char>(c)) && c != '_')
                fail("a name has letters, digits and _ only");
        rest = trim(rest.substr(equals + 1));
        std::string value;
        if (!rest.empty() && (rest.front() == '"' || rest.front() == '\'')) {
            const char quote = rest.front();
            std::size_t at = 1;
            for (; at < rest.size() && rest[at] != quote; ++at) {
                if (quote == '"' && rest[at] == '\\' && at + 1 < rest.size()) {
                    const char next = rest[++at];
                    value += next == 'n' ? '\n' : next == 't' ? '\t' : next;
                } else {
                    value += rest[at];
                }
            }
            if (at >= rest.size()) fail("the quote is not closed");
            const auto after = trim(rest.substr(at + 1));
            if (!after.empty() && after.front() != '#') fail("text after the closing quote");
        } else {
            const auto comment = rest.find(" #");
            value = trim(rest.substr(0, comment));
        }
        variables[std::string(name)] = value;
    }
    return variables;
}

IPYBOX_DECL Variables read_env_file(const std::filesystem::path& directory, const Logger& logger) {
    constexpr std::size_t limit = 1u << 20;
    const auto path = (directory / ".env").lexically_normal();
    const UniqueFd file(
        ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    if (!file && errno == ENOENT) return {};
    std::string why;
    if (const auto text = detail::read_regular(file, limit, why)) return parse_env(*text, ".env");
    logger(LogLevel::warning, path.string() + " is not read: " + why);
    return {};
}

}  // namespace ipybox

namespace ipybox::config {

IPYBOX_DECL bool names_a_secret(std::string_view name) {
    static constexpr std::string_view words[] = {
        "password",   "passwd",      "passphrase", "pwd",           "pin",      "otp",
        "secret",     "secrets",     "token",      "key",           "apikey",   "accesskey",
        "privatekey", "secretkey",   "authkey",    "authorization", "auth",     "bearer",
        "credential", "credentials", "cookie",     "cookies",       "signature"};
    std::string word;
    for (std::size_t i = 0; i <= name.size(); ++i) {
        const char c = i < name.size() ? name[i] : ' ';
        const auto byte = static_cast<unsigned char>(c);
        const bool begins =
            std::isupper(byte) && i > 0 && !std::isupper(static_cast<unsigned char>(name[i - 1]));
        if (begins || !std::isalnum(byte)) {
            if (std::find(std::begin(words), std::end(words), word) != std::end(words)) return true;
            word.clear();
        }
        if (std::isalnum(byte)) word += static_cast<char>(std::tolower(byte));
    }
    return false;
}

IPYBOX_DECL bool is_plain_place(std::string_view value) {
    std::error_code error;
    if (value.starts_with('/')) return std::filesystem::exists(std::filesystem::path(value), error);
    const auto scheme = value.find("://");
    return scheme != value.npos && value.find_first_of("@?") == value.npos &&
           std::all_of(value.begin(), value.begin() + static_cast<std::ptrdiff_t>(scheme),
                       [](char c) {
                           return std::isalnum(static_cast<unsigned char>(c)) || c == '+' ||
                                  c == '-' || c == '.';
                       });
}

}  // namespace ipybox::config

namespace ipybox {

IPYBOX_DECL void Secrets::add(std::string value, bool in_results) {
    if (value.size() < 6) return;
    add_to(values_, value);
    if (in_results) add_to(in_results_, value);
}

IPYBOX_DECL void Secrets::hide_in_result(json::value& result) const {
    if (in_results_.empty()) return;
    if (detail::is_exact(result)) {
        if (holds(std::string_view(result.get_string()))) result = "[hidden]";
    } else if (auto* text = result.if_string()) {
        if (holds(*text)) *text = hidden(std::string(*text), in_results_);
    } else if (auto* list = result.if_array()) {
        for (auto& item : *list) hide_in_result(item);
    } else if (auto* object = result.if_object()) {
        hide_in_result(*object);
    }
}

IPYBOX_DECL void Secrets::hide_in_result(json::object& result) const {
    for (auto& entry : result) hide_in_result(entry.value());
    const auto named = [this](const auto& entry) { return holds(entry.key()); };
    if (std::none_of(result.begin(), result.end(), named)) return;
    json::object renamed;
    for (auto& entry : result)
        renamed[hidden(std::string(entry.key()), in_results_)] = std::move(entry.value());
    result = std::move(renamed);
}

IPYBOX_DECL void Secrets::add_to(std::vector<std::string>& values, const std::string& value) {
    if (std::find(values.begin(), values.end(), value) != values.end()) return;
    values.push_back(value);
    std::sort(values.begin(), values.end(),
              [](const auto& a, const auto& b) { return a.size() > b.size(); });
}

IPYBOX_DECL std::string Secrets::hidden(std::string text, const std::vector<std::string>& values) {
    for (const auto& value : values)
        for (std::size_t at = 0; (at = text.find(value, at)) != text.npos; at += 8)
            text.replace(at, value.size(), "[hidden]");
    return text;
}

IPYBOX_DECL bool Secrets::holds(std::string_view text) const {
    return std::any_of(in_results_.begin(), in_results_.end(),
                       [&](const std::string& value) { return text.find(value) != text.npos; });
}

IPYBOX_DECL std::optional<std::string> VariableSource::find(const std::string& name) const {
    if (const auto found = defined_.find(name); found != defined_.end()) return found->second;
    if (const char* value = std::getenv(name.c_str())) return std::string(value);
    const auto found = variables_.find(name);
    return found == variables_.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace ipybox

namespace ipybox::config {

IPYBOX_DECL std::filesystem::path own_directory(const char* variable, const char* usual) {
    const char* place = std::getenv(variable);
    if (place != nullptr && *place == '/') return std::filesystem::path(place) / "ipybox";
    const char* home = std::getenv("HOME");
    if (home == nullptr || *home != '/') return {};
    return std::filesystem::path(home) / usual / "ipybox";
}

IPYBOX_DECL std::filesystem::path state_directory() {
    const char* place = std::getenv("XDG_STATE_HOME");
    if (::geteuid() == 0 && (place == nullptr || *place != '/')) return "/var/lib/ipybox";
    return own_directory("XDG_STATE_HOME", ".local/state");
}

IPYBOX_DECL std::string substitute_text(std::string_view text, const VariableSource& source,
                                        const std::string& where, Secrets& secrets) {
    std::string result;
    for (;;) {
        const auto from = text.find("${");
        result += text.substr(0, from);
        if (from == text.npos) return result;
        const auto to = text.find('}', from);
        if (to == text.npos)
            throw Error(errc::bad_config, where + ": \"${\" is not closed by \"}\"");
        std::string name(text.substr(from + 2, to - from - 2));
        std::optional<std::string> fallback;
        if (const auto colon = name.find(":-"); colon != name.npos) {
            fallback = name.substr(colon + 2);
            name.resize(colon);
        }
        auto value = source.find(name);
        if (value) {
            if (source.is_secret(name))
                secrets.add(*value, names_a_secret(name) || !is_plain_place(*value));
        } else {
            value = fallback;
        }
        if (!value)
            throw Error(errc::bad_config, where + ": the variable " + name +
                                              " is not set; set it in the environment or in .env");
        result += *value;
        text.remove_prefix(to + 1);
    }
}

}  // namespace ipybox::config

namespace ipybox {

IPYBOX_DECL json::value substitute_variables(const json::value& value, const VariableSource& source,
                                             const std::string& where, Secrets& secrets) {
    if (const auto* text = value.if_string())
        return json::string(config::substitute_text(*text, source, where, secrets));
    if (const auto* list = value.if_array()) {
        json::array result;
        for (const auto& item : *list)
            result.push_back(substitute_variables(item, source, where, secrets));
        return result;
    }
    if (const auto* object = value.if_object()) {
        json::object result;
        for (const auto& [key, item] : *object)
            result[key] =
                substitute_variables(item, source, where + "/" + std::string(key), secrets);
        return result;
    }
    return value;
}

IPYBOX_DECL std::string transport_of(const json::object& params) {
    if (const auto* type = detail::find_string(params, "type")) {
        const std::string_view name = *type;
        return name == "http" || name == "streamable-http" ? "streamable_http" : std::string(name);
    }
    const auto* url = detail::find_string(params, "url");
    if (!url) return "stdio";
    std::string_view text = *url;
    text = text.substr(0, text.find_first_of("?#"));
    const auto host = text.find("://");
    const auto path = text.find('/', host == text.npos ? 0 : host + 3);
    if (text.ends_with('/')) text.remove_suffix(1);
    return path < text.size() && text.substr(path).ends_with("/sse") ? "sse" : "streamable_http";
}

IPYBOX_DECL bool has_own_transport(const json::object& params) {
    const auto transport = transport_of(params);
    return transport == "stdio" || transport == "streamable_http" || transport == "sse";
}

IPYBOX_DECL void check_auth(const json::value& value, const std::string& where) {
    const auto fail = [&](const std::string& why) {
        throw Error(errc::bad_config, where + ": " + why);
    };
    static constexpr std::string_view texts[] = {"grant",         "client_id",
                                                 "client_secret", "client_metadata_url",
                                                 "issuer",        "scope",
                                                 "redirect_uri",  "token_endpoint_auth_method",
                                                 "private_key",   "private_key_file",
                                                 "key_id",        "assertion",
                                                 "assertion_file"};
    static constexpr std::string_view flags[] = {"dpop", "private_network"};
    static constexpr std::string_view provider_texts[] = {
        "token_endpoint", "client_id", "client_secret", "id_token", "id_token_file"};
    static constexpr std::string_view grants[] = {"authorization_code", "client_credentials",
                                                  "device_code", "jwt_bearer",
                                                  "identity_assertion"};
    const auto named = [](const auto& names, std::string_view name) {
        return std::find(std::begin(names), std::end(names), name) != std::end(names);
    };
    if (!value.is_object()) fail("must be an object");
    const auto& auth = value.get_object();
    for (const auto& [key, item] : auth) {
        const std::string name(key);
        if (named(texts, name)) {
            if (!item.is_string()) fail("\"" + name + "\" must be a string");
        } else if (named(flags, name)) {
            if (!item.is_bool()) fail("\"" + name + "\" must be true or false");
        } else if (name == "identity_provider") {
            if (!item.is_object()) fail("\"" + name + "\" must be an object");
            for (const auto& [field, text] : item.get_object())
                if (!named(provider_texts, field) || !text.is_string())
                    fail("\"identity_provider/" + std::string(field) +
                         "\" is unknown or no string");
        } else {
            fail("unknown field \"" + name + "\"");
        }
    }
    std::string_view grant;
    if (const auto* chosen = auth.if_contains("grant")) grant = chosen->get_string();
    if (!grant.empty() && !named(grants, grant))
        fail(
            "\"grant\" must be authorization_code, client_credentials, device_code, jwt_bearer or "
            "identity_assertion");
    const auto needs = [&](const char* field, const char* other) {
        if (!auth.contains(field) && !auth.contains(other))
            fail("the grant " + std::string(grant) + " needs \"" + field + "\"" +
                 (std::string_view(field) == other ? "" : " or \"" + std::string(other) + "\""));
    };
    if (grant == "client_credentials" || grant == "jwt_bearer" || grant == "identity_assertion")
        needs("client_id", "client_id");
    if (grant == "jwt_bearer") needs("assertion", "assertion_file");
    if (grant == "identity_assertion") needs("identity_provider", "identity_provider");
}

IPYBOX_DECL json::object check_server_params(const json::value& value, const std::string& where,
                                             std::vector<std::string>* notices) {
    const auto fail = [&](const std::string& why) {
        throw Error(errc::bad_config, where + ": " + why);
    };
    const auto* params = value.if_object();
    if (!params) fail("must be an object with \"command\" (stdio) or \"url\" (HTTP)");
    static constexpr std::string_view own[] = {"command",   "args",    "env",     "cwd",
                                               "trust_cwd", "user",    "sandbox", "max_message",
                                               "url",       "headers", "type",    "auth"};
    std::vector<std::string> unwanted;
    const auto result = detail::adapt_client_params(*params, where, notices ? *notices : unwanted);
    const auto* const type = result.if_contains("type");
    if (type && !type->is_string()) fail("\"type\" must be a string");
    // Its plugin's schema judges the rest when the server is reached.
    if (!has_own_transport(result)) return result;
    for (const auto& [key, item] : result)
        if (std::find(std::begin(own), std::end(own), std::string_view(key)) == std::end(own))
            fail("unknown field \"" + std::string(key) +
                 "\"; accepted: command, args, env, cwd, trust_cwd, user, sandbox, max_message "
                 "(stdio) or url, headers, auth (HTTP), and type");
    if (result.contains("command") == result.contains("url"))
        fail("needs either \"command\" (stdio) or \"url\" (HTTP)");
    if (result.contains("sandbox") && !result.contains("command"))
        fail("\"sandbox\" confines a \"command\", and there is none");
    if (const auto* trust = result.if_contains("trust_cwd")) {
        if (!trust->is_bool()) fail("\"trust_cwd\" must be true or false");
        if (!result.contains("cwd") || result.contains("sandbox"))
            fail("\"trust_cwd\" is for the \"cwd\" of a \"command\" without \"sandbox\"");
    }
    if (const auto* user = result.if_contains("user")) {
        if (!user->is_string() && !user->is_int64())
            fail("\"user\" must be a user's name or number");
        if (!result.contains("command") || result.contains("sandbox"))
            fail(
                "\"user\" is for a \"command\" without \"sandbox\": a sandbox has an option for "
                "it");
    }
    if (const auto* limit = result.if_contains("max_message");
        limit && !(limit->is_int64() && result.contains("command")))
        fail("\"max_message\" must be a number of bytes, and goes with a \"command\"");
    if (const auto* auth = result.if_contains("auth")) {
        if (!result.contains("url")) fail("\"auth\" is for a \"url\", and there is none");
        check_auth(*auth, where + ", auth");
    }
    const auto string_field = [&](const char* name) {
        if (const auto* field = result.if_contains(name); field && !field->is_string())
            fail(std::string("\"") + name + "\" must be a string");
    };
    for (const char* name : {"command", "cwd", "url"}) string_field(name);
    if (const auto* args = result.if_contains("args")) {
        if (!args->is_array()) fail("\"args\" must be an array of strings");
        for (const auto& arg : args->get_array())
            if (!arg.is_string()) fail("\"args\" must be an array of strings");
    }
    for (const char* name : {"env", "headers"}) {
        const auto* field = result.if_contains(name);
        if (!field) continue;
        if (!field->is_object()) fail(std::string("\"") + name + "\" must be an object of strings");
        for (const auto& entry : field->get_object())
            if (!entry.value().is_string())
                fail(std::string("\"") + name + "/" + std::string(entry.key()) +
                     "\" must be a string");
    }
    return result;
}

IPYBOX_DECL std::map<std::string, json::object> read_mcp_servers(
    const json::value& config, const std::string& what, std::vector<std::string>* notices) {
    const auto* root = config.if_object();
    if (!root) throw Error(errc::bad_config, what + ": must be a JSON object with \"mcpServers\"");
    const char* const key =
        root->contains("mcpServers") || !root->contains("servers") ? "mcpServers" : "servers";
    const auto* block = root->if_contains(key);
    if (!block || !block->is_object())
        throw Error(errc::bad_config,
                    what + ": needs \"mcpServers\", an object of server parameters by name");
    std::map<std::string, json::object> servers;
    std::map<std::string, std::string> written;  // names in the file by those of packages
    for (const auto& [own_name, value] : block->get_object()) {
        const std::string where = what + ", " + key + "/" + std::string(own_name);
        json::value params = value;
        std::string name(own_name);
        if (auto* fields = params.if_object()) {
            if (const auto* alias = fields->if_contains("alias")) {
                if (!alias->is_string() || alias->get_string().empty())
                    throw Error(errc::bad_config,
                                where + ": \"alias\" must be the name of a Python package");
                name = alias->get_string();
                fields->erase("alias");
            } else if (auto usable = detail::package_name(name);
                       usable != name && !usable.empty()) {
                name = std::move(usable);
                if (notices && !detail::is_disabled(*fields))
                    notices->push_back(where + ": its package is mcptools." + name +
                                       "; \"alias\" gives it another name");
            }
        }
        auto checked = check_server_params(params, where, notices);
        if (detail::is_disabled(params.get_object())) continue;
        const auto [same, fresh] = written.emplace(name, own_name);
        if (!fresh)
            throw Error(errc::bad_config, where + ": its package would be mcptools." + name +
                                              ", as that of " + key + "/" + same->second +
                                              "; give one of them an \"alias\"");
        servers.emplace(std::move(name), std::move(checked));
    }
    return servers;
}

}  // namespace ipybox
