#pragma once
#include <ipybox/oauth/oauth.hpp>

#include <boost/asio/ip/address.hpp>
#include <ipybox/compilation.hpp>
#include <ipybox/oauth/impl/oauth_state.hpp>

namespace ipybox {

IPYBOX_DECL std::filesystem::path default_token_store() {
    const auto directory = config::data_directory();
    return directory.empty() ? directory : directory / "tokens.json";
}

IPYBOX_DECL OAuth::Impl::Grant OAuth::Impl::grant_of(std::string_view name) {
    return name == "client_credentials"   ? Grant::client_credentials
           : name == "device_code"        ? Grant::device_code
           : name == "jwt_bearer"         ? Grant::jwt_bearer
           : name == "identity_assertion" ? Grant::identity_assertion
                                          : Grant::code;
}

IPYBOX_DECL void OAuth::Impl::remember(std::string value) {
    hidden.push_back(std::move(value));
    if (hidden.size() > 32) hidden.pop_front();
}

IPYBOX_DECL Error OAuth::Impl::unanswered(const std::string& place, unsigned status) {
    return {errc::mcp_connection,
            "the MCP server wants authorization, and how to get it cannot be found out: " +
                place.substr(0, place.find('?')) +
                ", asked for metadata, answers with HTTP "
                "status " +
                std::to_string(status) + "; try again later, or give a token by \"headers\""};
}

IPYBOX_DECL OAuth::Impl::Busy::~Busy() {
    state.busy = false;
    state.changed.notify();
}

IPYBOX_DECL OAuth::Impl::Person::~Person() {
    state.people += Clock::now() - *state.person_since;
    state.person_since.reset();
}

IPYBOX_DECL OAuth::Impl::Impl(asio::any_io_executor e, OAuthOptions o)
    : executor(std::move(e)),
      options(std::move(o)),
      url(HttpUrl::parse(options.url)),
      resource(url.origin() + (url.path == "/" ? "" : url.path) + url.query),
      local(is_loopback(url.host)),
      usable(url.tls || local),
      grant(grant_of(setting("grant"))),
      records(options.store, resource, setting("client_id"), grant_name()),
      changed(executor) {
    // A server on the internet must not make us ask around in this machine or its network.
    boost::system::error_code error;
    const auto literal = asio::ip::make_address(url.host, error);
    const auto kind_of = [](const asio::ip::address& address) {
        if (address.is_v4()) {
            const auto bytes = address.to_v4().to_bytes();
            return net::classify_address(net::AddressBytes(bytes.data(), bytes.size()), {});
        }
        const auto bytes = address.to_v6().to_bytes();
        return net::classify_address(net::AddressBytes(bytes.data(), bytes.size()), {});
    };
    const bool near = local || oauth::flag_member(options.auth, "private_network") ||
                      (!error && kind_of(literal) == net::AddressKind::private_);
    const auto allowed = [near, here = local](net::AddressKind kind) {
        return kind == net::AddressKind::public_ || (here && kind == net::AddressKind::loopback) ||
               (near && kind == net::AddressKind::private_);
    };
    options.http.may_connect = [allowed, kind_of](const asio::ip::address& address) {
        return allowed(kind_of(address));
    };
    options.http.may_name = [allowed](const std::string& host) {
        return allowed(net::classify_name(host));
    };
    http = std::make_unique<HttpClient>(executor, options.http);
}

IPYBOX_DECL Secrets OAuth::Impl::secrets() const {
    Secrets all;
    for (const char* key : {"client_secret", "private_key", "assertion"}) all.add(setting(key));
    if (const auto* provider = detail::object_of(options.auth, "identity_provider"))
        for (const char* key : {"client_secret", "id_token"})
            all.add(std::string(detail::string_of(*provider, key)));
    if (token)
        for (const auto* value : {&token->access, &token->refresh, &token->key}) all.add(*value);
    for (const auto& value : hidden) all.add(value);
    return all;
}

IPYBOX_DECL void OAuth::Impl::load() {
    if (loaded) return;
    token = records.token();
    loaded = true;
}

IPYBOX_DECL void OAuth::Impl::forget_token() {
    if (token) {
        remember(token->access);
        remember(token->refresh);
    }
    token.reset();
    stepped_up.clear();
    records.forget_token();
}

// ---- headers ----
IPYBOX_DECL HttpHeaders OAuth::Impl::authorization(const std::string& method,
                                                   const std::string& to) {
    HttpHeaders result;
    if (!token) return result;
    result.emplace_back("Authorization", token->type + " " + token->access);
    if (token->type == "DPoP") {
        last_nonce = resource_nonce;
        result.emplace_back("DPoP", proof(method, to, token->key, resource_nonce, token->access));
    }
    return result;
}

// A proof that we hold the key a token is bound to (RFC 9449, 4.2).
IPYBOX_DECL std::string OAuth::Impl::proof(const std::string& method, const std::string& to,
                                           const std::string& key, const std::string& nonce,
                                           const std::string& access) const {
    const auto signer = detail::SigningKey::from_pem(key, "the key of the stored token");
    json::object header;
    header["typ"] = "dpop+jwt";
    header["jwk"] = signer.public_jwk();
    json::object claims;
    claims["jti"] = detail::random_text(16);
    claims["htm"] = method;
    claims["htu"] = HttpUrl::parse(to).printable();
    claims["iat"] = detail::unix_seconds();
    if (!access.empty()) claims["ath"] = detail::encode_base64url(detail::sha256(access));
    if (!nonce.empty()) claims["nonce"] = nonce;
    return detail::make_jwt(std::move(header), claims, signer);
}

// True: the response brought a nonce other than `nonce`.
IPYBOX_DECL bool OAuth::Impl::adopt_nonce(const HttpHeaders& response, std::string& nonce) const {
    const auto fresh = find_header(response, "DPoP-Nonce");
    if (!oauth::is_header_text(fresh) || fresh.size() > 1024 || fresh == nonce) return false;
    nonce = fresh;
    return true;
}

// Alone: gets or widens a token.
IPYBOX_DECL awaitable<bool> OAuth::Impl::handle(unsigned status, oauth::AuthChallenge challenge) {
    if (failure && Clock::now() - failed < options.failure_holds) throw *failure;
    load();
    const auto before = token ? token->access : std::string();
    Discovery found = co_await discover(challenge.resource_metadata);
    if (status == 403) {
        const auto had = token ? token->requested : std::string();
        const auto wanted = oauth::unite_scopes(had, challenge.scope);
        // The same question again would get the same answer.
        const bool asked = oauth::covers_scopes(stepped_up, wanted) ||
                           (token && oauth::covers_scopes(token->scope, challenge.scope));
        if (challenge.scope.empty() || asked) co_return false;
        stepped_up = wanted;
        co_await acquire(std::move(found), wanted);
        co_return true;
    }
    // Another process may have logged in.
    const auto stored = records.persistent() ? records.token() : std::nullopt;
    if (stored && stored->access != before && stored->issuer == found.server.issuer) {
        token = stored;
        ++generation;
        if (!token->expired()) co_return true;
    }
    if (token && !token->refresh.empty()) {
        const bool refreshed = co_await refresh(found);
        if (refreshed) co_return true;
    }
    const auto requested = token ? token->requested : std::string();
    const auto scope = first_scope(found, challenge.scope, requested);
    co_await acquire(std::move(found), scope);
    co_return true;
}

// ---- the public functions ----
IPYBOX_DECL OAuth::OAuth(asio::any_io_executor executor, OAuthOptions options)
    : state_(std::make_shared<Impl>(std::move(executor), std::move(options))) {}

IPYBOX_DECL awaitable<HttpHeaders> OAuth::headers(std::string method, std::string url) {
    return headers(state_, std::move(method), std::move(url));
}

IPYBOX_DECL awaitable<bool> OAuth::challenged(unsigned status, HttpHeaders response) {
    return challenged(state_, status, std::move(response), HttpHeaders());
}

IPYBOX_DECL awaitable<bool> OAuth::challenged(unsigned status, HttpHeaders response,
                                              HttpHeaders sent) {
    return challenged(state_, status, std::move(response), std::move(sent));
}

IPYBOX_DECL awaitable<void> OAuth::login(HttpHeaders response) {
    return login(state_, std::move(response));
}

IPYBOX_DECL awaitable<bool> OAuth::logout() { return logout(state_); }

IPYBOX_DECL bool OAuth::silent() const noexcept {
    return !state_->usable || (state_->loaded && !state_->token);
}

IPYBOX_DECL void OAuth::observe(const HttpHeaders& response) {
    state_->adopt_nonce(response, state_->resource_nonce);
}

IPYBOX_DECL Duration OAuth::people_took() const {
    const auto& since = state_->person_since;
    return state_->people + (since ? Clock::now() - *since : Duration::zero());
}

IPYBOX_DECL std::string OAuth::hide(std::string text) const {
    return state_->hide(std::move(text));
}

IPYBOX_DECL OAuth::Status OAuth::status() const {
    state_->load();
    Status result;
    if (const auto& token = state_->token) {
        result.token = true;
        result.expired = token->expired();
        result.refreshable = !token->refresh.empty();
        result.issuer = token->issuer;
        result.client_id = token->client_id;
        result.scope = token->scope;
        result.expires_at = token->expires_at;
    }
    return result;
}

IPYBOX_DECL awaitable<HttpHeaders> OAuth::headers(ImplPtr state, std::string method,
                                                  std::string url) {
    std::optional<Error> trouble;
    try {
        if (!state->usable || HttpUrl::parse(url).origin() != state->url.origin())
            co_return HttpHeaders();
        state->load();
        if (state->token && state->token->expires_soon()) co_await state->renew();
        co_return state->authorization(method, url);
    } catch (const Error& error) {
        trouble = state->translated(error);
    }
    throw *trouble;
}

IPYBOX_DECL awaitable<bool> OAuth::challenged(ImplPtr state, unsigned status, HttpHeaders response,
                                              HttpHeaders sent) {
    oauth::AuthChallenge challenge;
    for (const auto& [name, value] : response)
        if (same_header(name, "WWW-Authenticate"))
            oauth::read_challenges(std::string_view(value).substr(0, 16 * 1024), challenge);
    if (status != 401 && !(status == 403 && challenge.error == "insufficient_scope"))
        co_return false;
    if (status == 401 && challenge.error == "use_dpop_nonce" && state->token) {
        // A nonce that differs from the one the request had; never twice for the same.
        state->adopt_nonce(response, state->resource_nonce);
        std::string used = state->last_nonce;
        if (const auto proof = find_header(sent, "DPoP"); !proof.empty())
            used = detail::string_of(detail::jwt_claims(proof), "nonce");
        co_return state->resource_nonce != used;
    }
    // Others may be at it: what they get is ours as well.
    auto generation = state->generation;
    const auto failures = state->failures;
    const auto had = find_header(sent, "Authorization");
    if (!had.empty() && (!state->token || had != state->token->type + " " + state->token->access))
        --generation;  // the request had an older token
    while (state->busy) co_await state->changed.wait();
    if (state->generation != generation && state->token) {
        const bool enough =
            status == 401 || oauth::covers_scopes(state->token->scope, challenge.scope);
        if (enough) co_return true;
    }
    if (state->failures != failures && state->failure) throw *state->failure;
    const Impl::Busy working(*state);
    try {
        const bool better = co_await state->handle(status, challenge);
        state->failure.reset();
        co_return better;
    } catch (const Error& error) {
        state->failure = state->translated(error);
        state->failed = Clock::now();
        ++state->failures;
    }
    throw *state->failure;
}

IPYBOX_DECL awaitable<void> OAuth::login(ImplPtr state, HttpHeaders response) {
    oauth::AuthChallenge challenge;
    for (const auto& [name, value] : response)
        if (same_header(name, "WWW-Authenticate"))
            oauth::read_challenges(std::string_view(value).substr(0, 16 * 1024), challenge);
    while (state->busy) co_await state->changed.wait();
    const Impl::Busy working(*state);
    std::optional<Error> trouble;
    try {
        Impl::Discovery found = co_await state->discover(challenge.resource_metadata);
        const auto scope = state->first_scope(found, challenge.scope, "");
        co_await state->acquire(std::move(found), scope);
    } catch (const Error& error) {
        trouble = state->translated(error);
    }
    if (trouble) throw *trouble;
}

IPYBOX_DECL awaitable<bool> OAuth::logout(ImplPtr state) {
    while (state->busy) co_await state->changed.wait();
    const Impl::Busy working(*state);
    state->load();
    if (!state->token) co_return false;
    const auto old = *state->token;
    try {  // RFC 7009; whether or not it works, the token is forgotten here
        Impl::Discovery found = co_await state->discover("");
        const auto client = state->known_client(found.server);
        if (state->token && !found.server.revocation_endpoint.empty() && client &&
            client->id == old.client_id) {
            oauth::Form form;
            form.emplace_back("token", old.refresh.empty() ? old.access : old.refresh);
            HttpRequest request;
            request.method = "POST";
            request.url = found.server.revocation_endpoint;
            request.headers.emplace_back("Content-Type", "application/x-www-form-urlencoded");
            state->sign_in(*client, found.server, form, request.headers);
            request.body = oauth::encode_form(form);
            co_await state->fetch(std::move(request));
        }
    } catch (const Error& error) {
        state->log(LogLevel::info, error.detail());
    }
    state->forget_token();
    state->records.forget_client(old.issuer);
    state->records.unbind();
    co_return true;
}

}  // namespace ipybox
