#pragma once
#include <ipybox/oauth/protocol.hpp>

#include <openssl/crypto.h>

#include <boost/json/array.hpp>
#include <boost/json/parse.hpp>
#include <charconv>
#include <ipybox/compilation.hpp>
#include <ipybox/detail/json_members.hpp>
#include <ipybox/detail/terminal_text.hpp>
#include <ipybox/net/proxy_protocol.hpp>

namespace ipybox::oauth {

IPYBOX_DECL std::string in_quotes(std::string_view text, std::size_t limit) {
    return "\"" + detail::printable(text.substr(0, limit)) + (text.size() > limit ? "…\"" : "\"");
}

IPYBOX_DECL bool contains(const std::vector<std::string>& list, std::string_view text) {
    return std::find(list.begin(), list.end(), text) != list.end();
}

IPYBOX_DECL std::string login_command(const std::string& name, const char* what) {
    return "`ipybox auth " + std::string(what) + " " +
           (name.empty() ? "NAME" : detail::printable(name)) + " --config FILE`";
}

IPYBOX_DECL std::vector<std::string> split_scope(std::string_view text) {
    std::vector<std::string> scopes;
    while (!text.empty() && scopes.size() < max_scopes) {
        const auto end = std::min(text.find(' '), text.size());
        const auto scope = text.substr(0, end);
        text.remove_prefix(std::min(end + 1, text.size()));
        const bool good = !scope.empty() && scope.size() <= 256 &&
                          std::all_of(scope.begin(), scope.end(), [](char c) {
                              return c > 0x20 && c < 0x7F && c != '"' && c != '\\';
                          });
        if (good && !contains(scopes, scope)) scopes.emplace_back(scope);
    }
    return scopes;
}

IPYBOX_DECL std::string join_scope(const std::vector<std::string>& scopes) {
    std::string text;
    for (const auto& scope : scopes) text += (text.empty() ? "" : " ") + scope;
    return text;
}

IPYBOX_DECL std::string unite_scopes(std::string_view first, std::string_view second) {
    return join_scope(split_scope(std::string(first) + " " + std::string(second)));
}

IPYBOX_DECL bool covers_scopes(std::string_view granted, std::string_view asked) {
    const auto have = split_scope(granted);
    const auto want = split_scope(asked);
    return std::all_of(want.begin(), want.end(), [&](const auto& s) { return contains(have, s); });
}

IPYBOX_DECL std::string percent_encode(std::string_view text) {
    static constexpr char digits[] = "0123456789ABCDEF";
    std::string result;
    for (const char c : text) {
        const bool plain = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
                           (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '_' || c == '~';
        if (plain) {
            result += c;
        } else {
            const auto byte = static_cast<unsigned char>(c);
            result += {'%', digits[byte >> 4], digits[byte & 15]};
        }
    }
    return result;
}

IPYBOX_DECL std::string encode_form(const Form& form) {
    std::string text;
    for (const auto& [name, value] : form) {
        if (value.empty()) continue;
        text += (text.empty() ? "" : "&") + percent_encode(name) + "=" + percent_encode(value);
    }
    return text;
}

IPYBOX_DECL std::optional<std::string> decode_form_text(std::string_view text) {
    std::string result;
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] == '+') {
            result += ' ';
        } else if (text[i] == '%') {
            unsigned byte = 0;
            const auto* from = text.data() + i + 1;
            if (i + 2 >= text.size() || std::from_chars(from, from + 2, byte, 16).ptr != from + 2)
                return std::nullopt;
            result += static_cast<char>(byte);
            i += 2;
        } else {
            result += text[i];
        }
    }
    return result;
}

IPYBOX_DECL std::optional<std::map<std::string, std::string>> parse_query(std::string_view query) {
    std::map<std::string, std::string> result;
    while (!query.empty()) {
        const auto end = std::min(query.find('&'), query.size());
        const auto part = query.substr(0, end);
        query.remove_prefix(std::min(end + 1, query.size()));
        if (part.empty()) continue;
        const auto equals = std::min(part.find('='), part.size());
        auto name = decode_form_text(part.substr(0, equals));
        auto value = decode_form_text(part.substr(std::min(equals + 1, part.size())));
        if (!name || !value || result.size() >= 100) return std::nullopt;
        if (!result.emplace(std::move(*name), std::move(*value)).second) return std::nullopt;
    }
    return result;
}

IPYBOX_DECL void read_challenges(std::string_view header, AuthChallenge& result) {
    std::size_t at = 0;
    const auto space = [&] {
        while (at < header.size() && (header[at] == ' ' || header[at] == '\t')) ++at;
    };
    const auto word = [&] {
        const auto from = at;
        while (at < header.size() && header[at] > ' ' && header[at] != ',' && header[at] != '=' &&
               header[at] != '"')
            ++at;
        return header.substr(from, at - from);
    };
    bool ours = false;
    while (at < header.size()) {
        space();
        if (at < header.size() && header[at] == ',') {
            ++at;
            continue;
        }
        const auto name = word();
        space();
        if (at >= header.size() || header[at] != '=') {  // a scheme
            if (name.empty()) {
                ++at;  // nothing that belongs here: go on behind it
                continue;
            }
            const auto scheme = net::lower_case(name);
            ours = scheme == "bearer" || scheme == "dpop";
            continue;
        }
        ++at;
        space();
        std::string value;
        if (at < header.size() && header[at] == '"') {
            for (++at; at < header.size() && header[at] != '"'; ++at) {
                if (header[at] == '\\' && at + 1 < header.size()) ++at;
                value += header[at];
            }
            ++at;
        } else {
            value = word();
            while (at < header.size() && header[at] == '=') ++at;  // the end of a token68
        }
        if (!ours || value.size() > 4096) continue;
        const auto key = net::lower_case(name);
        auto* field = key == "resource_metadata" ? &result.resource_metadata
                      : key == "scope"           ? &result.scope
                      : key == "error"           ? &result.error
                                                 : nullptr;
        if (field != nullptr && field->empty()) *field = std::move(value);
    }
}

IPYBOX_DECL std::vector<std::string> resource_metadata_urls(const std::string& origin,
                                                            const std::string& path,
                                                            const std::string& query) {
    const std::string root = origin + "/.well-known/oauth-protected-resource";
    if (path == "/" && query.empty()) return {root};
    return {root + (path == "/" ? "" : path) + query, root};
}

IPYBOX_DECL std::vector<std::string> server_metadata_urls(const std::string& origin,
                                                          std::string path) {
    while (path.ends_with('/')) path.pop_back();
    const std::string known = origin + "/.well-known/";
    std::vector<std::string> urls{known + "oauth-authorization-server" + path,
                                  known + "openid-configuration" + path};
    if (!path.empty()) urls.push_back(origin + path + "/.well-known/openid-configuration");
    return urls;
}

IPYBOX_DECL std::optional<boost::json::object> parse_document(std::string_view body) {
    boost::system::error_code error;
    auto value = boost::json::parse(body, error);
    if (error || !value.is_object()) return std::nullopt;
    return std::move(value.get_object());
}

IPYBOX_DECL bool flag_member(const boost::json::object& object, std::string_view key) {
    const auto* value = object.if_contains(key);
    return value && value->is_bool() && value->get_bool();
}

IPYBOX_DECL std::vector<std::string> list_member(const boost::json::object& object,
                                                 std::string_view key) {
    std::vector<std::string> result;
    if (const auto* list = object.if_contains(key); list && list->is_array())
        for (const auto& item : list->get_array())
            if (item.is_string() && result.size() < 1000) result.emplace_back(item.get_string());
    return result;
}

IPYBOX_DECL std::optional<std::int64_t> seconds_member(const boost::json::object& object,
                                                       std::string_view key) {
    constexpr std::int64_t most = std::int64_t{1} << 40;
    const auto* value = object.if_contains(key);
    if (value == nullptr) return std::nullopt;
    std::optional<double> number;
    if (value->is_number()) {
        number = value->to_number<double>();
    } else if (const auto* text = value->if_string()) {
        std::int64_t parsed = 0;
        const auto [end, error] = std::from_chars(text->begin(), text->end(), parsed);
        if (error == std::errc() && end == text->end()) number = static_cast<double>(parsed);
    }
    if (!number || !(*number >= 0)) return std::nullopt;
    return *number >= static_cast<double>(most) ? most : static_cast<std::int64_t>(*number);
}

IPYBOX_DECL ServerMetadata ServerMetadata::read(const boost::json::object& document,
                                                const std::string& issuer, const std::string& url) {
    ServerMetadata server;
    server.issuer = detail::string_of(document, "issuer");
    if (server.issuer != issuer)
        throw Error(errc::mcp_protocol, "the metadata of the authorization server at " + url +
                                            " is that of " + in_quotes(server.issuer) +
                                            ", not of " + in_quotes(issuer) +
                                            ": it is not used; the two must be the same text");
    server.authorization_endpoint = detail::string_of(document, "authorization_endpoint");
    server.token_endpoint = detail::string_of(document, "token_endpoint");
    server.registration_endpoint = detail::string_of(document, "registration_endpoint");
    server.device_authorization_endpoint =
        detail::string_of(document, "device_authorization_endpoint");
    server.revocation_endpoint = detail::string_of(document, "revocation_endpoint");
    server.scopes = list_member(document, "scopes_supported");
    server.auth_methods = list_member(document, "token_endpoint_auth_methods_supported");
    server.signing_algorithms =
        list_member(document, "token_endpoint_auth_signing_alg_values_supported");
    server.pkce = contains(list_member(document, "code_challenge_methods_supported"), "S256");
    server.announces_iss = flag_member(document, "authorization_response_iss_parameter_supported");
    server.client_documents = flag_member(document, "client_id_metadata_document_supported");
    server.dpop = contains(list_member(document, "dpop_signing_alg_values_supported"), "ES256");
    return server;
}

IPYBOX_DECL ServerMetadata ServerMetadata::at_default_endpoints(const std::string& origin) {
    ServerMetadata server;
    server.issuer = origin;
    server.authorization_endpoint = origin + "/authorize";
    server.token_endpoint = origin + "/token";
    server.registration_endpoint = origin + "/register";
    server.pkce = true;
    server.guessed = true;
    return server;
}

IPYBOX_DECL bool same_secret(std::string_view a, std::string_view b) {
    return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

IPYBOX_DECL std::string_view query_of(std::string_view url) {
    const auto at = url.find('?');
    if (at == url.npos) return {};
    url.remove_prefix(at + 1);
    return url.substr(0, url.find('#'));
}

IPYBOX_DECL std::string code_from_redirect(std::string_view url, const ExpectedRedirect& expected) {
    const auto refuse = [](const std::string& why) {
        return Error(errc::mcp_connection, "the authorization failed: " + why);
    };
    const auto query = parse_query(query_of(url));
    if (!query) throw refuse("the address it led back to is malformed");
    const auto value = [&](const char* name) {
        const auto found = query->find(name);
        return found == query->end() ? std::string() : found->second;
    };
    if (!same_secret(value("state"), expected.state))
        throw refuse(
            "the address it led back to belongs to another attempt (its state differs); "
            "start again, and use the address of the page that is opened then");
    const bool has_issuer = query->contains("iss");
    if (!has_issuer && expected.iss_required)
        throw refuse(
            "the answer does not say which authorization server it is from, and this one "
            "announces that it does");
    if (has_issuer && value("iss") != expected.issuer)
        throw refuse("the answer is from another authorization server than " +
                     in_quotes(expected.issuer));
    if (query->contains("error")) {
        const auto about = value("error_description");
        throw refuse("the authorization server says " + in_quotes(value("error")) +
                     (about.empty() ? "" : ", " + in_quotes(about)));
    }
    if (value("code").empty()) throw refuse("the address it led back to has no code");
    return value("code");
}

IPYBOX_DECL AuthRefusal::AuthRefusal(std::string code, std::string detail)
    : Error(errc::mcp_connection, std::move(detail)), code_(std::move(code)) {}

[[noreturn]] IPYBOX_DECL void throw_refusal(unsigned status, const boost::json::object& document,
                                            const AuthQuestion& question) {
    const std::string code(detail::string_of(document, "error"));
    const std::string about(detail::string_of(document, "error_description"));
    std::string text = "the authorization server refused " + question.what + ": ";
    text += code.empty() ? question.url.substr(0, question.url.find('?')) +
                               " answers with HTTP status " + std::to_string(status)
                         : in_quotes(code);
    if (!about.empty()) text += ", " + in_quotes(about);
    if (code.empty() && question.guessed)
        text +=
            "; the MCP server has no metadata, and that is where its revision of the protocol has "
            "it: if it gives out its tokens elsewhere, get one there and put it into \"headers\"";
    throw AuthRefusal(code, text);
}

IPYBOX_DECL bool is_header_text(std::string_view text) {
    return !text.empty() && text.size() <= 64 * 1024 &&
           std::all_of(text.begin(), text.end(), [](char c) { return c > 0x20 && c < 0x7F; });
}

IPYBOX_DECL TokenAnswer read_token_answer(unsigned status, std::string_view body,
                                          const AuthQuestion& question) {
    const auto document = parse_document(body);
    if (status != 200) throw_refusal(status, document.value_or(boost::json::object()), question);
    const auto broken = [&](const char* why) {
        return Error(errc::mcp_protocol,
                     "the authorization server answered " + question.what + " with " + why);
    };
    if (!document) throw broken("what is no JSON object");
    TokenAnswer answer;
    answer.access_token = detail::string_of(*document, "access_token");
    if (!is_header_text(answer.access_token)) throw broken("no proper \"access_token\"");
    const std::string type(detail::string_of(*document, "token_type"));
    const auto lower = net::lower_case(type);
    answer.type = lower == "bearer" ? "Bearer"
                  : lower == "dpop" ? "DPoP"
                  : lower == "n_a"  ? "N_A"
                                    : "";
    if (answer.type.empty()) throw broken("a token of a kind other than Bearer and DPoP");
    answer.refresh_token = detail::string_of(*document, "refresh_token");
    answer.issued_type = detail::string_of(*document, "issued_token_type");
    answer.lifetime = seconds_member(*document, "expires_in");
    if (document->contains("scope"))
        answer.scope = join_scope(split_scope(detail::string_of(*document, "scope")));
    return answer;
}

IPYBOX_DECL DevicePolling::DevicePolling(std::optional<std::int64_t> interval)
    : seconds_(std::clamp<std::int64_t>(interval.value_or(5), 1, 60)) {}

IPYBOX_DECL bool DevicePolling::refused(std::string_view reason) {
    if (reason == "slow_down") seconds_ = std::min<std::int64_t>(seconds_ + 5, 300);
    return reason == "slow_down" || reason == "authorization_pending";
}

}  // namespace ipybox::oauth
