#pragma once
#include <ipybox/oauth/oauth.hpp>

#include <ipybox/compilation.hpp>
#include <ipybox/oauth/impl/oauth_state.hpp>

namespace ipybox {

// A configured client without a configured issuer belongs to the first authorization server that
// it is used with: another one, later, does not get it.
IPYBOX_DECL void OAuth::Impl::bind_client(const std::string& issuer) {
    const auto id = setting("client_id");
    if (id.empty()) return;
    std::string bound = setting("issuer");
    if (bound.empty()) bound = records.bound_to();
    if (bound.empty()) return records.bind(issuer);
    if (bound != issuer)
        throw Error(errc::mcp_connection,
                    "the client \"" + id + "\" is registered with " + oauth::in_quotes(bound) +
                        ", and the MCP server now sends us to " + oauth::in_quotes(issuer) +
                        ", which does not get its credentials; if that is right, configure that "
                        "server's client and its \"issuer\", and run " +
                        oauth::login_command(options.name, "logout"));
}

// ---- clients ----
IPYBOX_DECL std::string OAuth::Impl::choose_method(const oauth::ServerMetadata& server,
                                                   bool has_secret) const {
    if (auto chosen = setting("token_endpoint_auth_method"); !chosen.empty()) return chosen;
    if (!setting("private_key").empty() || !setting("private_key_file").empty())
        return "private_key_jwt";
    if (!has_secret) return "none";
    const auto& methods = server.auth_methods;
    if (methods.empty()) return "client_secret_basic";  // RFC 8414's default
    for (const char* method : {"client_secret_basic", "client_secret_post", "none"})
        if (oauth::contains(methods, method)) return method;
    return "client_secret_basic";
}

// Configured, described by a document, or registered before.
IPYBOX_DECL std::optional<OAuth::Impl::Client> OAuth::Impl::known_client(
    const oauth::ServerMetadata& server) const {
    Client client;
    client.id = setting("client_id");
    if (!client.id.empty()) {
        client.secret = setting("client_secret");
        client.method = choose_method(server, !client.secret.empty());
        return client;
    }
    client.id = setting("client_metadata_url");
    if (!client.id.empty() && server.client_documents) {
        client.method = choose_method(server, false);
        return client;
    }
    const auto stored = records.client(server.issuer);
    if (!stored) return std::nullopt;
    client.id = detail::string_of(*stored, "client_id");
    client.secret = detail::string_of(*stored, "client_secret");
    client.method = detail::string_of(*stored, "method");
    return client;
}

// RFC 7591.
IPYBOX_DECL awaitable<OAuth::Impl::Client> OAuth::Impl::register_client(
    oauth::ServerMetadata server, std::string redirect) {
    if (server.registration_endpoint.empty())
        throw Error(errc::mcp_connection,
                    "the authorization server " + oauth::in_quotes(server.issuer) +
                        " registers no clients by itself: register ipybox there, and put "
                        "\"client_id\" (and \"client_secret\") into the server's \"auth\"");
    std::string asked = "none";
    if (!server.auth_methods.empty() && !oauth::contains(server.auth_methods, "none"))
        asked = choose_method(server, true);
    const bool device = grant == Grant::device_code;
    json::object body;
    body["client_name"] = "ipybox";
    body["application_type"] = "native";
    body["token_endpoint_auth_method"] = asked;
    body["grant_types"] =
        json::array{device ? "urn:ietf:params:oauth:grant-type:device_code" : "authorization_code",
                    "refresh_token"};
    if (!device) {
        body["response_types"] = json::array{"code"};
        body["redirect_uris"] = json::array{redirect};
    }
    HttpRequest request;
    request.method = "POST";
    const auto request_url = server.registration_endpoint;
    request.url = request_url;
    request.headers.emplace_back("Content-Type", "application/json");
    request.body = detail::write_json(body);
    const Reply reply = co_await fetch(std::move(request));
    const auto document = oauth::parse_document(reply.body);
    if (server.guessed && (reply.status / 100 == 4 || reply.status == 501))
        throw Error(errc::mcp_connection,
                    "the MCP server wants credentials, and says nowhere how to get them: it has no "
                    "metadata, and " +
                        server.registration_endpoint +
                        ", where older servers register clients, answers with HTTP status " +
                        std::to_string(reply.status) +
                        "; give a token by \"headers\", or a registered \"client_id\" by "
                        "\"auth\"");
    if (reply.status != 200 && reply.status != 201)
        oauth::throw_refusal(reply.status, document.value_or(json::object()),
                             {"to register ipybox", request_url, server.guessed});
    Client client;
    if (document) client.id = detail::string_of(*document, "client_id");
    if (client.id.empty())
        throw Error(errc::mcp_protocol,
                    "the authorization server registered ipybox without a client_id");
    client.secret = detail::string_of(*document, "client_secret");
    remember(client.secret);
    client.method = detail::string_of(*document, "token_endpoint_auth_method");
    if (client.method.empty()) {
        const bool open = oauth::contains(server.auth_methods, "none") || client.secret.empty();
        client.method = open ? "none" : choose_method(server, true);
    }
    const auto expires = oauth::seconds_member(*document, "client_secret_expires_at").value_or(0);
    json::object record;
    record["client_id"] = client.id;
    record["client_secret"] = client.secret;
    record["method"] = client.method;
    record["redirect_uri"] = redirect;
    record["secret_expires_at"] = expires;
    records.save_client(server.issuer, std::move(record));
    log(LogLevel::info, "registered with " + server.issuer);
    co_return client;
}

// Puts what proves who we are into a request of the token endpoint.
IPYBOX_DECL void OAuth::Impl::sign_in(const Client& client, const oauth::ServerMetadata& server,
                                      oauth::Form& form, HttpHeaders& headers) const {
    if (client.method == "client_secret_basic") {
        headers.emplace_back(
            "Authorization",
            "Basic " + detail::encode_base64(oauth::percent_encode(client.id) + ":" +
                                             oauth::percent_encode(client.secret)));
        return;
    }
    form.emplace_back("client_id", client.id);
    if (client.method == "client_secret_post") {
        form.emplace_back("client_secret", client.secret);
    } else if (client.method == "private_key_jwt") {
        const auto file = setting("private_key_file");
        const auto pem = file.empty() ? setting("private_key") : read_text_file(file, 64 * 1024);
        const auto key = detail::SigningKey::from_pem(pem, "auth/private_key");
        if (!server.signing_algorithms.empty() &&
            !oauth::contains(server.signing_algorithms, key.algorithm()))
            throw Error(errc::bad_config,
                        "the authorization server does not accept signatures with " +
                            std::string(key.algorithm()) +
                            ", which auth/private_key makes; use another key");
        json::object header;
        header["typ"] = "JWT";
        if (const auto id = setting("key_id"); !id.empty()) header["kid"] = id;
        json::object claims;
        claims["iss"] = client.id;
        claims["sub"] = client.id;
        claims["aud"] = server.issuer;
        claims["jti"] = detail::random_text(16);
        claims["iat"] = detail::unix_seconds();
        claims["exp"] = detail::unix_seconds() + 120;
        form.emplace_back("client_assertion_type",
                          "urn:ietf:params:oauth:client-assertion-type:jwt-bearer");
        form.emplace_back("client_assertion", detail::make_jwt(std::move(header), claims, key));
    } else if (client.method != "none") {
        throw Error(errc::bad_config,
                    "the authorization server wants " + oauth::in_quotes(client.method) +
                        " as client authentication; ipybox knows none, client_secret_basic, "
                        "client_secret_post and private_key_jwt");
    }
}

}  // namespace ipybox
