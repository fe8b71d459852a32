#pragma once
#include <ipybox/oauth/oauth.hpp>

#include <algorithm>
#include <boost/asio/ip/address.hpp>
#include <ipybox/compilation.hpp>
#include <ipybox/oauth/impl/oauth_state.hpp>

namespace ipybox {

// What to ask for: as configured, as the challenge says, or all that the resource knows; and what
// was asked for before.
IPYBOX_DECL std::string OAuth::Impl::first_scope(const Discovery& found,
                                                 const std::string& challenged,
                                                 const std::string& before) const {
    auto scope = setting("scope");
    if (scope.empty()) scope = challenged;
    if (scope.empty()) scope = oauth::join_scope(found.scopes);
    return oauth::unite_scopes(before, scope);
}

// The key to bind a token to: where both sides can, unless the configuration says otherwise.
IPYBOX_DECL std::string OAuth::Impl::dpop_key(const Discovery& found) const {
    const auto* wanted = options.auth.if_contains("dpop");
    const bool set = wanted != nullptr && wanted->is_bool();
    if (set && !wanted->get_bool()) return {};
    if (!found.server.dpop) {
        if (found.dpop_required || set)
            throw Error(errc::mcp_connection,
                        "tokens must be bound to a key (DPoP), and the "
                        "authorization server does not offer that with ES256");
        return {};
    }
    return token && !token->key.empty() ? token->key : detail::SigningKey::make().pem();
}

// ---- tokens ----
IPYBOX_DECL awaitable<oauth::TokenAnswer> OAuth::Impl::ask_token(Discovery found, Client client,
                                                                 oauth::Form form, std::string key,
                                                                 std::string what) {
    const auto endpoint = found.server.token_endpoint;
    form.emplace_back("resource", found.audience);
    for (int attempt = 0;; ++attempt) {
        auto fields = form;
        HttpRequest request;
        request.method = "POST";
        request.url = endpoint;
        request.headers.emplace_back("Content-Type", "application/x-www-form-urlencoded");
        sign_in(client, found.server, fields, request.headers);
        if (server_nonces.size() > 16) server_nonces.clear();
        auto& nonce = server_nonces[endpoint];
        if (!key.empty())
            request.headers.emplace_back("DPoP", proof("POST", endpoint, key, nonce, ""));
        request.body = oauth::encode_form(fields);
        const Reply reply = co_await fetch(std::move(request));
        const bool fresh = !key.empty() && adopt_nonce(reply.headers, server_nonces[endpoint]);
        if (fresh && attempt == 0 && reply.status != 200) {
            const auto document = oauth::parse_document(reply.body);
            if (document && detail::string_of(*document, "error") == "use_dpop_nonce") continue;
        }
        if (reply.status == 400 || reply.status == 401) {
            // A registration that the server has forgotten is made again the next time.
            const auto document = oauth::parse_document(reply.body);
            if (document && detail::string_of(*document, "error") == "invalid_client")
                records.forget_client(found.server.issuer);
        }
        const oauth::AuthQuestion question{what, endpoint, found.server.guessed};
        co_return oauth::read_token_answer(reply.status, reply.body, question);
    }
}

IPYBOX_DECL void OAuth::Impl::accept(const Discovery& found, const Client& client,
                                     oauth::TokenAnswer answer, const std::string& requested,
                                     const std::string& key, std::string old_refresh) {
    if (answer.type == "N_A")
        throw Error(errc::mcp_protocol, "the authorization server gave a token that is none");
    if (answer.type == "DPoP" && key.empty())
        throw Error(errc::mcp_protocol,
                    "the authorization server gave a DPoP token without a proof");
    const auto* wanted = options.auth.if_contains("dpop");
    const bool must = found.dpop_required || (wanted && wanted->is_bool() && wanted->get_bool());
    if (must && answer.type != "DPoP")
        throw Error(errc::mcp_protocol,
                    "the authorization server gave a token that is not bound "
                    "to a key, and it must be (DPoP)");
    if (token) {
        remember(token->access);
        remember(token->refresh);
    }
    Token fresh;
    fresh.issuer = found.server.issuer;
    fresh.client_id = client.id;
    fresh.access = std::move(answer.access_token);
    fresh.type = std::move(answer.type);
    fresh.refresh = answer.refresh_token.empty() ? std::move(old_refresh) : answer.refresh_token;
    fresh.requested = requested;
    fresh.scope = answer.scope.value_or(requested);
    fresh.key = key;
    if (answer.lifetime) {
        fresh.lifetime = *answer.lifetime;
        fresh.expires_at = detail::unix_seconds() + fresh.lifetime;
    }
    token = fresh;
    loaded = true;
    ++generation;
    records.save(fresh);
}

// A person is not asked again and again by a server that is never content.
IPYBOX_DECL void OAuth::Impl::count_login() {
    const auto from = Clock::now() - login_window;
    while (!logins.empty() && logins.front() < from) logins.pop_front();
    if (logins.size() >= max_logins)
        throw Error(errc::mcp_connection,
                    "the MCP server asks for authorization again and again; it was given " +
                        std::to_string(max_logins) +
                        " times within five minutes, and is refused for the rest of them");
    logins.push_back(Clock::now());
}

IPYBOX_DECL awaitable<void> OAuth::Impl::acquire(Discovery found, std::string scope) {
    bind_client(found.server.issuer);
    const bool lasting =
        interactive() && !scope.empty() && oauth::contains(found.server.scopes, "offline_access");
    if (lasting) scope = oauth::unite_scopes(scope, "offline_access");
    const auto key = dpop_key(found);
    if (grant == Grant::code) {
        co_await by_code(std::move(found), std::move(scope), key);
    } else if (grant == Grant::device_code) {
        co_await by_device(std::move(found), std::move(scope), key);
    } else {
        co_await by_assertion(std::move(found), std::move(scope), key);
    }
}

// The grants without a person.
IPYBOX_DECL awaitable<void> OAuth::Impl::by_assertion(Discovery found, std::string scope,
                                                      std::string key) {
    const auto client = known_client(found.server);
    if (!client)
        throw Error(errc::bad_config,
                    "the grant \"" + setting("grant") + "\" needs \"client_id\" in \"auth\"");
    oauth::Form form;
    if (grant == Grant::client_credentials) {
        form.emplace_back("grant_type", "client_credentials");
    } else {
        std::string assertion;
        if (grant == Grant::identity_assertion) {
            assertion = co_await identity_grant(found, scope);
        } else {
            const auto file = setting("assertion_file");
            assertion = file.empty() ? setting("assertion") : read_text_file(file, 64 * 1024);
            while (!assertion.empty() && static_cast<unsigned char>(assertion.back()) <= ' ')
                assertion.pop_back();
        }
        remember(assertion);
        form.emplace_back("grant_type", "urn:ietf:params:oauth:grant-type:jwt-bearer");
        form.emplace_back("assertion", assertion);
    }
    form.emplace_back("scope", scope);
    auto answer = co_await ask_token(found, *client, form, key, "a token");
    accept(found, *client, std::move(answer), scope, key, "");
}

// Exchanges the identity provider's token for an assertion that the authorization server takes
// (RFC 8693; MCP's enterprise-managed authorization).
IPYBOX_DECL awaitable<std::string> OAuth::Impl::identity_grant(Discovery found, std::string scope) {
    const auto* settings = detail::object_of(options.auth, "identity_provider");
    if (settings == nullptr)
        throw Error(errc::bad_config,
                    "the grant \"identity_assertion\" needs \"identity_provider\" in \"auth\"");
    const json::object provider = *settings;
    const std::string file(detail::string_of(provider, "id_token_file"));
    auto identity = file.empty() ? std::string(detail::string_of(provider, "id_token"))
                                 : read_text_file(file, 64 * 1024);
    while (!identity.empty() && static_cast<unsigned char>(identity.back()) <= ' ')
        identity.pop_back();
    remember(identity);
    oauth::Form form;
    form.emplace_back("grant_type", "urn:ietf:params:oauth:grant-type:token-exchange");
    form.emplace_back("requested_token_type", "urn:ietf:params:oauth:token-type:id-jag");
    form.emplace_back("subject_token", identity);
    form.emplace_back("subject_token_type", "urn:ietf:params:oauth:token-type:id_token");
    form.emplace_back("audience", found.server.issuer);
    form.emplace_back("resource", found.audience);
    form.emplace_back("scope", scope);
    form.emplace_back("client_id", detail::string_of(provider, "client_id"));
    form.emplace_back("client_secret", detail::string_of(provider, "client_secret"));
    HttpRequest request;
    request.method = "POST";
    request.url = checked_url(std::string(detail::string_of(provider, "token_endpoint")),
                              "auth/identity_provider/token_endpoint")
                      .text();
    request.headers.emplace_back("Content-Type", "application/x-www-form-urlencoded");
    request.body = oauth::encode_form(form);
    const Reply reply = co_await fetch(std::move(request));
    const std::string endpoint(detail::string_of(provider, "token_endpoint"));
    const oauth::AuthQuestion question{"an identity assertion", endpoint, false};
    auto answer = oauth::read_token_answer(reply.status, reply.body, question);
    if (answer.issued_type != "urn:ietf:params:oauth:token-type:id-jag")
        throw Error(errc::mcp_protocol,
                    "the identity provider gave a token of another kind than asked for");
    co_return answer.access_token;
}

IPYBOX_DECL awaitable<void> OAuth::Impl::by_code(Discovery found, std::string scope,
                                                 std::string key) {
    const auto& server = found.server;
    if (!options.browse)
        throw Error(
            errc::mcp_connection,
            "the MCP server wants authorization, and nobody is here to give it: " + remedy());
    if (server.authorization_endpoint.empty())
        throw Error(errc::mcp_connection,
                    "the authorization server has no page where a person could consent: set "
                    "\"grant\" in the server's \"auth\"");
    if (!server.pkce)
        throw Error(errc::mcp_protocol,
                    "the authorization server does not say that it supports "
                    "PKCE with S256: it is not used");
    count_login();
    oauth::ExpectedRedirect expected;
    expected.state = detail::random_text();
    expected.issuer = server.issuer;
    expected.iss_required = server.announces_iss;

    // Where the page leads back to: as configured, as registered before, or any free port here.
    const auto stored = records.client(server.issuer);
    auto client = known_client(server);
    const bool registered = client && setting("client_id").empty() && stored &&
                            client->id == detail::string_of(*stored, "client_id");
    std::string address = setting("redirect_uri");
    const bool fixed = !address.empty();
    if (!fixed && registered) address = detail::string_of(*stored, "redirect_uri");
    std::unique_ptr<Listener> listener;
    if (!address.empty()) {
        const HttpUrl at = HttpUrl::parse(address);
        if (is_loopback(at.host)) {
            try {
                listener = std::make_unique<Listener>(executor, at.port, at.path, expected.state);
            } catch (const Error&) {
                if (fixed) throw;
                client.reset();  // the port of last time is taken: register another one
            }
        }
    }
    if (!listener && !fixed) {
        listener = std::make_unique<Listener>(executor, 0, "/callback", expected.state);
        address = "http://127.0.0.1:" + std::to_string(listener->port) + "/callback";
    }
    if (!client) client = co_await register_client(server, address);

    const auto verifier = detail::random_text();
    remember(verifier);
    oauth::Form form;
    form.emplace_back("response_type", "code");
    form.emplace_back("client_id", client->id);
    form.emplace_back("redirect_uri", address);
    form.emplace_back("scope", scope);
    form.emplace_back("state", expected.state);
    form.emplace_back("code_challenge", detail::encode_base64url(detail::sha256(verifier)));
    form.emplace_back("code_challenge_method", "S256");
    form.emplace_back("resource", found.audience);
    // OpenID Connect gives refresh tokens only to those who let the person confirm.
    if (oauth::contains(oauth::split_scope(scope), "offline_access"))
        form.emplace_back("prompt", "consent");
    if (!key.empty())
        form.emplace_back("dpop_jkt",
                          detail::SigningKey::from_pem(key, "the DPoP key").thumbprint());
    std::string page = server.authorization_endpoint;
    page += (page.find('?') == page.npos ? "?" : "&") + oauth::encode_form(form);
    const std::string reached = co_await redirect(page, listener.get());
    const auto code = oauth::code_from_redirect(reached, expected);
    remember(code);

    oauth::Form exchange;
    exchange.emplace_back("grant_type", "authorization_code");
    exchange.emplace_back("code", code);
    exchange.emplace_back("redirect_uri", address);
    exchange.emplace_back("code_verifier", verifier);
    auto answer = co_await ask_token(found, *client, exchange, key, "to redeem the code");
    accept(found, *client, std::move(answer), scope, key, "");
    log(LogLevel::info, "a token of " + server.issuer + " for " + resource);
}

// Shows the page, and waits for what comes first: the redirect, or the address typed in.
IPYBOX_DECL awaitable<std::string> OAuth::Impl::redirect(std::string page, Listener* listener) {
    std::string typed;
    std::exception_ptr trouble;
    auto show = [&]() -> awaitable<void> {
        try {
            typed = co_await options.browse(page);
        } catch (...) {
            trouble = std::current_exception();
        }
    };
    const auto deadline = deadline_after(options.consent_timeout);
    auto shared =
        listener != nullptr ? listener->shared : std::make_shared<Listener::Shared>(executor);
    const Person person(*this);
    const bool shown = co_await ends_first(show(), Listener::wait(shared, deadline));
    if (!shared->target.empty()) co_return shared->target;
    if (!shown)
        throw Error(errc::timed_out,
                    "nobody consented within " +
                        std::to_string(std::chrono::duration_cast<std::chrono::seconds>(
                                           options.consent_timeout)
                                           .count()) +
                        " s; " + remedy());
    if (trouble) std::rethrow_exception(trouble);
    if (typed.empty()) {
        logins.pop_back();  // nobody was asked
        throw Error(
            errc::mcp_connection,
            "the MCP server wants authorization, and nobody is here to give it: " + remedy());
    }
    co_return typed;
}

// RFC 8628.
IPYBOX_DECL awaitable<void> OAuth::Impl::by_device(Discovery found, std::string scope,
                                                   std::string key) {
    const auto& server = found.server;
    if (server.device_authorization_endpoint.empty())
        throw Error(errc::mcp_connection,
                    "the authorization server does not offer the device code grant");
    count_login();
    auto client = known_client(server);
    if (!client) client = co_await register_client(server, "");
    oauth::Form form;
    form.emplace_back("scope", scope);
    form.emplace_back("resource", found.audience);
    HttpRequest request;
    request.method = "POST";
    request.url = server.device_authorization_endpoint;
    request.headers.emplace_back("Content-Type", "application/x-www-form-urlencoded");
    sign_in(*client, server, form, request.headers);
    request.body = oauth::encode_form(form);
    const Reply reply = co_await fetch(std::move(request));
    const auto document = oauth::parse_document(reply.body).value_or(json::object());
    if (reply.status != 200)
        oauth::throw_refusal(reply.status, document,
                             {"a device code", server.device_authorization_endpoint, false});
    const std::string device(detail::string_of(document, "device_code"));
    const std::string code(detail::string_of(document, "user_code"));
    const std::string page(detail::string_of(document, "verification_uri"));
    std::string complete(detail::string_of(document, "verification_uri_complete"));
    if (device.empty() || code.empty() || code.size() > 100)
        throw Error(errc::mcp_protocol, "the authorization server gave no device code");
    remember(device);
    checked_url(page, "the verification page");
    if (!complete.empty()) checked_url(complete, "the verification page");
    if (options.show_code) {
        options.show_code(page, code);
    } else if (!options.browse || complete.empty()) {
        throw Error(
            errc::mcp_connection,
            "the MCP server wants authorization, and nobody is here to give it: " + remedy());
    }

    oauth::DevicePolling polling(oauth::seconds_member(document, "interval"));
    const auto lifetime = std::clamp<std::int64_t>(
        oauth::seconds_member(document, "expires_in").value_or(600), 1, 1800);
    const auto end = Clock::now() + std::chrono::seconds(lifetime);
    std::optional<oauth::TokenAnswer> answer;
    std::exception_ptr trouble;
    auto poll = [&]() -> awaitable<void> {
        while (!answer && !trouble) {
            co_await sleep_until(Clock::now() + std::chrono::seconds(polling.seconds()));
            if (Clock::now() >= end) co_return;
            oauth::Form ask;
            ask.emplace_back("grant_type", "urn:ietf:params:oauth:grant-type:device_code");
            ask.emplace_back("device_code", device);
            try {
                answer = co_await ask_token(found, *client, ask, key, "a token");
            } catch (const oauth::AuthRefusal& refusal) {
                if (!polling.refused(refusal.reason())) trouble = std::current_exception();
            } catch (const Error& error) {
                if (error.code() != errc::timed_out && error.code() != errc::mcp_connection)
                    trouble = std::current_exception();
                polling.failed();
            }
        }
    };
    auto show = [&]() -> awaitable<void> {
        if (!options.show_code) {
            try {
                co_await options.browse(complete);
            } catch (...) {  // the page can be opened by hand
            }
        }
        for (;;) co_await sleep_until(never);
    };
    {
        const Person person(*this);
        co_await ends_first(poll(), show());
    }
    if (trouble) std::rethrow_exception(trouble);
    if (!answer) throw Error(errc::timed_out, "the code was not entered in time; " + remedy());
    accept(found, *client, std::move(*answer), scope, key, "");
}

// False: the refresh token is no longer good. One process at a time: a server that gives out new
// refresh tokens takes two uses of one for a theft.
IPYBOX_DECL awaitable<bool> OAuth::Impl::refresh(Discovery found) {
    const auto name = detail::encode_base64url(detail::sha256(resource)).substr(0, 16);
    UniqueFd lock;
    if (records.persistent()) {
        const auto end = deadline_after(options.request_timeout);
        for (lock = records.try_lock(name); !lock && Clock::now() < end;
             lock = records.try_lock(name))
            co_await sleep_until(Clock::now() + std::chrono::milliseconds(50));
        const auto stored = records.token();
        if (stored && token && stored->access != token->access &&
            stored->issuer == found.server.issuer && !stored->expires_soon()) {
            token = stored;  // another process was faster
            ++generation;
            co_return true;
        }
    }
    const auto client = known_client(found.server);
    if (!token || token->refresh.empty() || token->issuer != found.server.issuer || !client ||
        client->id != token->client_id)
        co_return false;
    oauth::Form form;
    form.emplace_back("grant_type", "refresh_token");
    form.emplace_back("refresh_token", token->refresh);
    const Token before = *token;
    std::optional<oauth::TokenAnswer> answer;
    try {
        answer = co_await ask_token(found, *client, form, before.key, "to refresh the token");
    } catch (const oauth::AuthRefusal& refusal) {
        log(LogLevel::info, refusal.detail());
        if (refusal.reason().empty()) throw;  // a server in trouble, not a judgement
    }
    if (!answer) {
        if (token) token->refresh.clear();
        co_return false;
    }
    const auto granted = answer->scope.value_or(before.scope);
    answer->scope = granted;
    accept(found, *client, std::move(*answer), before.requested, before.key, before.refresh);
    co_return true;
}

// A token is about to expire. Whatever goes wrong here shows again, and better, when the server
// refuses the request.
IPYBOX_DECL awaitable<void> OAuth::Impl::renew() {
    if (busy && token && !token->expired()) co_return;
    while (busy) co_await changed.wait();
    if (!token || !token->expires_soon()) co_return;
    if (token->refresh.empty() && interactive()) co_return;
    const Busy working(*this);
    try {
        Discovery found;
        if (discovery && Clock::now() - discovered < discovery_holds) {
            found = *discovery;
        } else {
            found = co_await discover("");
        }
        if (!token) co_return;
        const bool refreshed = co_await refresh(found);
        const auto scope = token ? token->requested : std::string();
        if (!refreshed && !interactive()) co_await acquire(std::move(found), scope);
    } catch (const Error& error) {
        log(LogLevel::warning, error.detail());
    }
}

}  // namespace ipybox
