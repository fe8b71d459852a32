#pragma once
// Authorization for MCP servers over HTTP: discovery, registration, the grants and refreshing
// (revisions 2025-03-26 to 2026-07-28 of MCP's authorization).
#include <algorithm>
#include <boost/asio/ip/address.hpp>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <functional>
#include <ipybox/async.hpp>
#include <ipybox/config.hpp>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/error.hpp>
#include <ipybox/log.hpp>
#include <ipybox/net/domain_rule.hpp>
#include <ipybox/net/http_client.hpp>
#include <ipybox/oauth/detail/jwt.hpp>
#include <ipybox/oauth/detail/records.hpp>
#include <ipybox/oauth/protocol.hpp>
#include <ipybox/oauth/redirect.hpp>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ipybox {

// $XDG_DATA_HOME/ipybox/tokens.json, or the same below ~/.local/share. Empty, which keeps tokens
// in memory, when neither variable is an absolute path.
inline std::filesystem::path default_token_store() {
    const auto directory = detail::data_directory();
    return directory.empty() ? directory : directory / "tokens.json";
}

// For which server, and who there is to ask.
struct OAuthOptions {
    std::string name;  // the server's, for messages; may be empty
    std::string url;   // the MCP server's: what tokens are for
    // server_params' "auth", as check_server_params() lets it through, variables replaced.
    json::object auth;
    std::filesystem::path store = default_token_store();  // empty: tokens die with the object
    // Shows a person the page at `url`. Returns the address that page led back to if it was typed
    // in, and empty when nobody is there. Cancelled when the redirect arrives by itself, so it may
    // wait for ever. Empty: nobody is there.
    std::function<awaitable<std::string>(std::string url)> browse;
    // Shows a person where to type in which code (device code grant).
    std::function<void(const std::string& url, const std::string& code)> show_code;
    HttpClientOptions http;                               // may_connect and may_name are set by OAuth
    Duration request_timeout = std::chrono::seconds(30);  // for one answer of a server
    Duration consent_timeout = std::chrono::minutes(10);  // for the person
    // What failed is not tried again for so long: other requests get the same error, and a person
    // who refused is not asked by each of them.
    Duration failure_holds = std::chrono::seconds(10);
    Logger logger;
};

// Tokens for one MCP server (one resource). All functions belong to the executor's thread; any
// number of them may run at once, and one of them alone talks to the authorization server. Their
// errors hold no token, code or secret: mcp_connection (nobody can consent, a server refused),
// mcp_protocol (a server's document is not acceptable), bad_config, io_error (the token store),
// timed_out. Cancelling the coroutine ends what it began, with operation_aborted.
class OAuth {
public:
    // Asks nobody yet. Throws errc::bad_argument for a URL that is none.
    OAuth(asio::any_io_executor executor, OAuthOptions options);
    OAuth(const OAuth&) = delete;
    OAuth& operator=(const OAuth&) = delete;

    // What goes into one request to the MCP server: Authorization, and a DPoP proof for `method`
    // and `url` where the token is bound to a key. Empty when there is no token, or `url` has
    // another origin than the server. Refreshes a token that is about to expire.
    awaitable<HttpHeaders> headers(std::string method, std::string url);
    // Whether headers() would be empty for any request; false when that takes a look at the store.
    bool silent() const noexcept;

    // The server answered 401 or 403. True: there is a token that may do; send the request once
    // more, with new headers(). A request may need that three times: for a token, for a nonce, and
    // for more scopes.
    awaitable<bool> challenged(unsigned status, HttpHeaders response);
    // `sent` are the headers that the refused request had; they tell a token that another request
    // has replaced meanwhile.
    awaitable<bool> challenged(unsigned status, HttpHeaders response, HttpHeaders sent);

    // A server may hand out the next DPoP nonce with any answer.
    void observe(const HttpHeaders& response);

    // Gets a token in any case, whatever there is. `response`: the headers of a 401, or none.
    awaitable<void> login(HttpHeaders response);
    // Forgets the server's tokens and the registration they came from, and tells the
    // authorization server if it wants to know. False: there were none.
    awaitable<bool> logout();

    // What is known without asking anybody.
    struct Status {
        bool token = false;
        bool expired = false;
        bool refreshable = false;
        std::string issuer;
        std::string client_id;
        std::string scope;
        std::int64_t expires_at = 0;  // seconds since 1970; 0: unknown
    };
    // Throws errc::io_error when the token store cannot be used.
    Status status() const;

    // How long, in all and until now, a person was waited for. No limit on a server counts it.
    Duration people_took() const;

    // Hides tokens, codes and secrets in a text.
    std::string hide(std::string text) const;

private:
    struct State;
    using StatePtr = std::shared_ptr<State>;
    static awaitable<HttpHeaders> headers(StatePtr state, std::string method, std::string url);
    static awaitable<bool> challenged(StatePtr state, unsigned status, HttpHeaders response,
                                      HttpHeaders sent);
    static awaitable<void> login(StatePtr state, HttpHeaders response);
    static awaitable<bool> logout(StatePtr state);

    StatePtr state_;
};

// ---- what is known about one server ----

struct OAuth::State {
    enum class Grant { code, client_credentials, device_code, jwt_bearer, identity_assertion };

    // Who we are to one authorization server.
    struct Client {
        std::string id;
        std::string secret;
        std::string method;  // none, client_secret_basic, client_secret_post, private_key_jwt
    };
    struct Discovery {
        std::string audience;  // the resource's identifier, as it writes it
        std::vector<std::string> scopes;
        bool dpop_required = false;
        detail::ServerMetadata server;
    };
    using Listener = detail::RedirectListener;
    using Token = detail::OAuthToken;
    struct Reply {
        unsigned status = 0;
        HttpHeaders headers;
        std::string body;
    };

    static constexpr std::size_t max_document = 256 * 1024;
    static constexpr std::size_t max_logins = 3;  // that ask a person, within login_window
    static constexpr Duration login_window = std::chrono::minutes(5);
    static constexpr Duration discovery_holds = std::chrono::minutes(10);

    State(asio::any_io_executor e, OAuthOptions o);

    std::string setting(std::string_view key) const {
        return detail::string_member(options.auth, key);
    }
    static Grant grant_of(std::string_view name) {
        return name == "client_credentials"   ? Grant::client_credentials
               : name == "device_code"        ? Grant::device_code
               : name == "jwt_bearer"         ? Grant::jwt_bearer
               : name == "identity_assertion" ? Grant::identity_assertion
                                              : Grant::code;
    }
    // A person's token is the same however it was got.
    std::string grant_name() const { return interactive() ? std::string() : setting("grant"); }
    bool interactive() const { return grant == Grant::code || grant == Grant::device_code; }
    std::string remedy() const { return "run " + detail::login_command(options.name); }

    Secrets secrets() const;
    Error translated(const Error& error) const { return {error.code(), hide(error.detail())}; }
    std::string hide(std::string text) const { return secrets().hide(std::move(text)); }
    void remember(std::string value) {
        hidden.push_back(std::move(value));
        if (hidden.size() > 32) hidden.pop_front();
    }
    void log(LogLevel level, const std::string& text) const {
        if (options.logger.enabled(level)) options.logger(level, hide("authorization: " + text));
    }

    // What may be asked over the network.
    static bool is_loopback(const std::string& host);
    HttpUrl checked_url(const std::string& url, const std::string& what) const;

    void load();
    void forget_token();
    void bind_client(const std::string& issuer);

    HttpHeaders authorization(const std::string& method, const std::string& url);
    std::string proof(const std::string& method, const std::string& url, const std::string& key,
                      const std::string& nonce, const std::string& access) const;
    bool adopt_nonce(const HttpHeaders& response, std::string& nonce) const;

    // A server that has no such document says 404, or 501, and not that it is in trouble.
    static bool in_trouble(unsigned status) { return status >= 500 && status != 501; }
    static Error unanswered(const std::string& place, unsigned status) {
        return {errc::mcp_connection,
                "the MCP server wants authorization, and how to get it cannot be found out: " +
                    place.substr(0, place.find('?')) +
                    ", asked for metadata, answers with HTTP "
                    "status " +
                    std::to_string(status) + "; try again later, or give a token by \"headers\""};
    }
    awaitable<Reply> fetch(HttpRequest request);
    awaitable<Discovery> discover(std::string metadata_url);
    awaitable<std::optional<json::object>> resource_metadata(std::string metadata_url);
    awaitable<detail::ServerMetadata> server_metadata(std::string issuer, bool may_be_absent);
    std::string choose_issuer(const std::vector<std::string>& offered) const;

    std::string choose_method(const detail::ServerMetadata& server, bool has_secret) const;
    std::optional<Client> known_client(const detail::ServerMetadata& server) const;
    awaitable<Client> register_client(detail::ServerMetadata server, std::string redirect);
    void sign_in(const Client& client, const detail::ServerMetadata& server, detail::Form& form,
                 HttpHeaders& headers) const;
    std::string first_scope(const Discovery& found, const std::string& challenged,
                            const std::string& before) const;
    std::string dpop_key(const Discovery& found) const;

    awaitable<detail::TokenAnswer> ask_token(Discovery found, Client client, detail::Form form,
                                             std::string key, std::string what);
    void accept(const Discovery& found, const Client& client, detail::TokenAnswer answer,
                const std::string& requested, const std::string& key, std::string old_refresh);

    awaitable<void> acquire(Discovery found, std::string scope);
    awaitable<void> by_code(Discovery found, std::string scope, std::string key);
    awaitable<void> by_device(Discovery found, std::string scope, std::string key);
    awaitable<void> by_assertion(Discovery found, std::string scope, std::string key);
    awaitable<std::string> identity_grant(Discovery found, std::string scope);
    awaitable<std::string> redirect(std::string url, Listener* listener);
    awaitable<bool> refresh(Discovery found);
    awaitable<void> renew();
    awaitable<bool> handle(unsigned status, detail::AuthChallenge challenge);
    void count_login();

    asio::any_io_executor executor;
    OAuthOptions options;
    HttpUrl url;
    std::string resource;  // the server's URL in its canonical form
    bool local;            // it is on this machine
    bool usable;           // tokens may be sent to it
    Grant grant;
    std::unique_ptr<HttpClient> http;
    detail::OAuthRecords records;

    std::optional<Token> token;
    bool loaded = false;
    std::optional<Discovery> discovery;
    Clock::time_point discovered{};
    std::map<std::string, std::string> server_nonces;  // by token endpoint
    std::string resource_nonce;
    std::string last_nonce;  // in the last proof for the resource

    Event changed;
    bool busy = false;             // somebody talks to the authorization server
    std::uint64_t generation = 0;  // counts new tokens
    std::uint64_t failures = 0;
    std::optional<Error> failure;  // the last one
    Clock::time_point failed{};
    std::deque<Clock::time_point> logins;
    Duration people{0};                               // waited for, without the last one
    std::optional<Clock::time_point> person_since{};  // who is waited for now
    std::string stepped_up;                           // the scopes that were asked for after a 403
    std::deque<std::string> hidden;

    // Whoever talks to the authorization server.
    struct Busy {
        explicit Busy(State& s) : state(s) { state.busy = true; }
        ~Busy() {
            state.busy = false;
            state.changed.notify();
        }
        Busy(const Busy&) = delete;
        Busy& operator=(const Busy&) = delete;
        State& state;
    };
    // A person is waited for; one at a time, because of Busy.
    struct Person {
        explicit Person(State& s) : state(s) { state.person_since = Clock::now(); }
        ~Person() {
            state.people += Clock::now() - *state.person_since;
            state.person_since.reset();
        }
        Person(const Person&) = delete;
        Person& operator=(const Person&) = delete;
        State& state;
    };
};

inline OAuth::State::State(asio::any_io_executor e, OAuthOptions o)
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
            return detail::classify_address(detail::AddressBytes(bytes.data(), bytes.size()), {});
        }
        const auto bytes = address.to_v6().to_bytes();
        return detail::classify_address(detail::AddressBytes(bytes.data(), bytes.size()), {});
    };
    const bool near = local || detail::flag_member(options.auth, "private_network") ||
                      (!error && kind_of(literal) == detail::AddressKind::private_);
    const auto allowed = [near, here = local](detail::AddressKind kind) {
        return kind == detail::AddressKind::public_ ||
               (here && kind == detail::AddressKind::loopback) ||
               (near && kind == detail::AddressKind::private_);
    };
    options.http.may_connect = [allowed, kind_of](const asio::ip::address& address) {
        return allowed(kind_of(address));
    };
    options.http.may_name = [allowed](const std::string& host) {
        return allowed(detail::classify_name(host));
    };
    http = std::make_unique<HttpClient>(executor, options.http);
}

inline Secrets OAuth::State::secrets() const {
    Secrets all;
    for (const char* key : {"client_secret", "private_key", "assertion"}) all.add(setting(key));
    if (const auto* provider = options.auth.if_contains("identity_provider");
        provider && provider->is_object())
        for (const char* key : {"client_secret", "id_token"})
            all.add(detail::string_member(provider->get_object(), key));
    if (token)
        for (const auto* value : {&token->access, &token->refresh, &token->key}) all.add(*value);
    for (const auto& value : hidden) all.add(value);
    return all;
}

inline bool OAuth::State::is_loopback(const std::string& host) {
    if (host == "localhost" || host.ends_with(".localhost")) return true;
    boost::system::error_code error;
    const auto address = asio::ip::make_address(host, error);
    return !error && address.is_loopback();
}

// An address that a server named. Throws errc::mcp_protocol.
inline HttpUrl OAuth::State::checked_url(const std::string& text, const std::string& what) const {
    const auto refuse = [&](const std::string& why) {
        return Error(errc::mcp_protocol, what + " " + detail::in_quotes(text) + " " + why);
    };
    if (text.size() > 4096) throw refuse("is too long");
    if (!text.starts_with("http://") && !text.starts_with("https://"))
        throw refuse("is no https address");
    std::optional<HttpUrl> parsed;
    try {
        parsed = HttpUrl::parse(text);
    } catch (const Error&) {
        throw refuse("is malformed");
    }
    if (!parsed->credentials.empty() || text.find('#') != text.npos)
        throw refuse("has a user name or a fragment");
    const bool there = is_loopback(parsed->host);
    if (there && !local)
        throw refuse("is on this machine, and the MCP server is not: it is not asked");
    if (!parsed->tls && !there)
        throw refuse("is not protected by TLS: it must begin with https://");
    return *parsed;
}

inline void OAuth::State::load() {
    if (loaded) return;
    token = records.token();
    loaded = true;
}

inline void OAuth::State::forget_token() {
    if (token) {
        remember(token->access);
        remember(token->refresh);
    }
    token.reset();
    stepped_up.clear();
    records.forget_token();
}

// A configured client without a configured issuer belongs to the first authorization server that
// it is used with: another one, later, does not get it.
inline void OAuth::State::bind_client(const std::string& issuer) {
    const auto id = setting("client_id");
    if (id.empty()) return;
    std::string bound = setting("issuer");
    if (bound.empty()) bound = records.bound_to();
    if (bound.empty()) return records.bind(issuer);
    if (bound != issuer)
        throw Error(errc::mcp_connection,
                    "the client \"" + id + "\" is registered with " + detail::in_quotes(bound) +
                        ", and the MCP server now sends us to " + detail::in_quotes(issuer) +
                        ", which does not get its credentials; if that is right, configure that "
                        "server's client and its \"issuer\", and run " +
                        detail::login_command(options.name, "logout"));
}

// ---- headers ----

inline HttpHeaders OAuth::State::authorization(const std::string& method, const std::string& to) {
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
inline std::string OAuth::State::proof(const std::string& method, const std::string& to,
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
inline bool OAuth::State::adopt_nonce(const HttpHeaders& response, std::string& nonce) const {
    const auto fresh = find_header(response, "DPoP-Nonce");
    if (!detail::is_header_text(fresh) || fresh.size() > 1024 || fresh == nonce) return false;
    nonce = fresh;
    return true;
}

// ---- discovery ----

inline awaitable<OAuth::State::Reply> OAuth::State::fetch(HttpRequest request) {
    const auto deadline = deadline_after(options.request_timeout);
    request.deadline = deadline;
    request.headers.emplace_back("Accept", "application/json");
    auto response = co_await http->send(std::move(request));
    Reply reply;
    reply.status = response->status();
    reply.headers = response->headers();
    reply.body = co_await response->read_all(max_document, deadline);
    co_return reply;
}

// The resource's own document; nothing when it has none.
inline awaitable<std::optional<json::object>> OAuth::State::resource_metadata(std::string named) {
    std::vector<std::string> places;
    if (!named.empty()) places.push_back(checked_url(named, "the metadata address").text());
    for (auto& place : detail::resource_metadata_urls(url.origin(), url.path, url.query))
        if (!detail::contains(places, place)) places.push_back(std::move(place));
    for (const auto& place : places) {
        HttpRequest request;
        request.url = place;
        request.headers.emplace_back("MCP-Protocol-Version", "2025-11-25");
        const Reply reply = co_await fetch(std::move(request));
        if (in_trouble(reply.status)) throw unanswered(place, reply.status);
        if (reply.status != 200) continue;
        // Some servers answer any address with the same page.
        auto document = detail::parse_document(reply.body);
        if (document) co_return document;
    }
    co_return std::nullopt;
}

inline std::string OAuth::State::choose_issuer(const std::vector<std::string>& offered) const {
    const auto configured = setting("issuer");
    if (!configured.empty() && detail::contains(offered, configured)) return configured;
    if (token && detail::contains(offered, token->issuer)) return token->issuer;
    return offered.front();
}

// The metadata of one authorization server; without any, an empty issuer if that may be.
inline awaitable<detail::ServerMetadata> OAuth::State::server_metadata(std::string issuer,
                                                                       bool may_be_absent) {
    const HttpUrl at = checked_url(issuer, "the authorization server");
    if (!at.query.empty())
        throw Error(errc::mcp_protocol, "the authorization server " + detail::in_quotes(issuer) +
                                            " has a query in its address");
    std::string tried;
    for (const auto& place : detail::server_metadata_urls(at.origin(), at.path)) {
        HttpRequest request;
        request.url = place;
        request.headers.emplace_back("MCP-Protocol-Version", "2025-11-25");
        const Reply reply = co_await fetch(std::move(request));
        if (in_trouble(reply.status)) throw unanswered(place, reply.status);
        const auto document =
            reply.status == 200 ? detail::parse_document(reply.body) : std::nullopt;
        if (document) {
            auto server = detail::ServerMetadata::read(*document, issuer, place);
            checked_url(server.token_endpoint, "the token endpoint");
            for (const auto* endpoint :
                 {&server.authorization_endpoint, &server.registration_endpoint,
                  &server.device_authorization_endpoint, &server.revocation_endpoint})
                if (!endpoint->empty())
                    checked_url(*endpoint, "the authorization server's endpoint");
            co_return server;
        }
        tried += (tried.empty() ? "" : ", ") + place;
    }
    if (!may_be_absent)
        throw Error(errc::mcp_connection,
                    "the MCP server names " + detail::in_quotes(issuer) +
                        " as its authorization server, which has no metadata (asked: " + tried +
                        "): tell those who run the MCP server, or get a token by hand and put it "
                        "into \"headers\"");
    co_return detail::ServerMetadata();
}

inline awaitable<OAuth::State::Discovery> OAuth::State::discover(std::string metadata_url) {
    if (!usable)
        throw Error(errc::mcp_connection,
                    url.origin() +
                        " wants authorization, and is not protected by TLS: tokens are "
                        "sent only to https addresses and to this machine");
    Discovery found;
    found.audience = resource;
    const auto document = co_await resource_metadata(std::move(metadata_url));
    if (document) {
        found.audience = detail::string_member(*document, "resource");
        std::optional<HttpUrl> named;
        try {
            named = HttpUrl::parse(found.audience);
        } catch (const Error&) {
        }
        // The whole origin, or a part of it in which the server's address lies.
        const auto closed = [](std::string path) {
            return path.ends_with('/') ? path : path + "/";
        };
        const bool within = named && named->origin() == url.origin() &&
                            closed(url.path).starts_with(closed(named->path)) &&
                            (named->query.empty() || named->query == url.query);
        if (!within || found.audience.find('#') != std::string::npos)
            throw Error(errc::mcp_protocol, "the MCP server's metadata is that of " +
                                                detail::in_quotes(found.audience) + ", not of " +
                                                detail::in_quotes(resource) +
                                                ": no token is asked for in its name");
        found.scopes = detail::list_member(*document, "scopes_supported");
        found.dpop_required = detail::flag_member(*document, "dpop_bound_access_tokens_required");
        const auto offered = detail::list_member(*document, "authorization_servers");
        if (offered.empty())
            throw Error(errc::mcp_protocol,
                        "the MCP server's metadata name no authorization server");
        found.server = co_await server_metadata(choose_issuer(offered), false);
    } else {
        found.server = co_await server_metadata(url.origin(), true);
        if (found.server.issuer.empty())
            found.server = detail::ServerMetadata::at_default_endpoints(url.origin());
    }
    // Tokens of another authorization server are of no use here, and none of its business.
    load();
    if (token && token->issuer != found.server.issuer) {
        log(LogLevel::warning, "the MCP server has changed from the authorization server " +
                                   token->issuer + " to " + found.server.issuer);
        forget_token();
    }
    discovery = found;
    discovered = Clock::now();
    co_return found;
}

// ---- clients ----

inline std::string OAuth::State::choose_method(const detail::ServerMetadata& server,
                                               bool has_secret) const {
    if (auto chosen = setting("token_endpoint_auth_method"); !chosen.empty()) return chosen;
    if (!setting("private_key").empty() || !setting("private_key_file").empty())
        return "private_key_jwt";
    if (!has_secret) return "none";
    const auto& methods = server.auth_methods;
    if (methods.empty()) return "client_secret_basic";  // RFC 8414's default
    for (const char* method : {"client_secret_basic", "client_secret_post", "none"})
        if (detail::contains(methods, method)) return method;
    return "client_secret_basic";
}

// Configured, described by a document, or registered before.
inline std::optional<OAuth::State::Client> OAuth::State::known_client(
    const detail::ServerMetadata& server) const {
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
    client.id = detail::string_member(*stored, "client_id");
    client.secret = detail::string_member(*stored, "client_secret");
    client.method = detail::string_member(*stored, "method");
    return client;
}

// RFC 7591.
inline awaitable<OAuth::State::Client> OAuth::State::register_client(detail::ServerMetadata server,
                                                                     std::string redirect) {
    if (server.registration_endpoint.empty())
        throw Error(errc::mcp_connection,
                    "the authorization server " + detail::in_quotes(server.issuer) +
                        " registers no clients by itself: register ipybox there, and put "
                        "\"client_id\" (and \"client_secret\") into the server's \"auth\"");
    std::string asked = "none";
    if (!server.auth_methods.empty() && !detail::contains(server.auth_methods, "none"))
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
    const auto document = detail::parse_document(reply.body);
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
        detail::throw_refusal(reply.status, document.value_or(json::object()),
                              {"to register ipybox", request_url, server.guessed});
    Client client;
    if (document) client.id = detail::string_member(*document, "client_id");
    if (client.id.empty())
        throw Error(errc::mcp_protocol,
                    "the authorization server registered ipybox without a client_id");
    client.secret = detail::string_member(*document, "client_secret");
    remember(client.secret);
    client.method = detail::string_member(*document, "token_endpoint_auth_method");
    if (client.method.empty()) {
        const bool open = detail::contains(server.auth_methods, "none") || client.secret.empty();
        client.method = open ? "none" : choose_method(server, true);
    }
    const auto expires = detail::seconds_member(*document, "client_secret_expires_at").value_or(0);
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
inline void OAuth::State::sign_in(const Client& client, const detail::ServerMetadata& server,
                                  detail::Form& form, HttpHeaders& headers) const {
    if (client.method == "client_secret_basic") {
        headers.emplace_back(
            "Authorization",
            "Basic " + detail::encode_base64(detail::percent_encode(client.id) + ":" +
                                             detail::percent_encode(client.secret)));
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
            !detail::contains(server.signing_algorithms, key.algorithm()))
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
                    "the authorization server wants " + detail::in_quotes(client.method) +
                        " as client authentication; ipybox knows none, client_secret_basic, "
                        "client_secret_post and private_key_jwt");
    }
}

// What to ask for: as configured, as the challenge says, or all that the resource knows; and what
// was asked for before.
inline std::string OAuth::State::first_scope(const Discovery& found, const std::string& challenged,
                                             const std::string& before) const {
    auto scope = setting("scope");
    if (scope.empty()) scope = challenged;
    if (scope.empty()) scope = detail::join_scope(found.scopes);
    return detail::unite_scopes(before, scope);
}

// The key to bind a token to: where both sides can, unless the configuration says otherwise.
inline std::string OAuth::State::dpop_key(const Discovery& found) const {
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

inline awaitable<detail::TokenAnswer> OAuth::State::ask_token(Discovery found, Client client,
                                                              detail::Form form, std::string key,
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
        request.body = detail::encode_form(fields);
        const Reply reply = co_await fetch(std::move(request));
        const bool fresh = !key.empty() && adopt_nonce(reply.headers, server_nonces[endpoint]);
        if (fresh && attempt == 0 && reply.status != 200) {
            const auto document = detail::parse_document(reply.body);
            if (document && detail::string_member(*document, "error") == "use_dpop_nonce") continue;
        }
        if (reply.status == 400 || reply.status == 401) {
            // A registration that the server has forgotten is made anew the next time.
            const auto document = detail::parse_document(reply.body);
            if (document && detail::string_member(*document, "error") == "invalid_client")
                records.forget_client(found.server.issuer);
        }
        const detail::AuthQuestion question{what, endpoint, found.server.guessed};
        co_return detail::read_token_answer(reply.status, reply.body, question);
    }
}

inline void OAuth::State::accept(const Discovery& found, const Client& client,
                                 detail::TokenAnswer answer, const std::string& requested,
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
inline void OAuth::State::count_login() {
    const auto from = Clock::now() - login_window;
    while (!logins.empty() && logins.front() < from) logins.pop_front();
    if (logins.size() >= max_logins)
        throw Error(errc::mcp_connection,
                    "the MCP server asks for authorization again and again; it was given " +
                        std::to_string(max_logins) +
                        " times within five minutes, and is refused for the rest of them");
    logins.push_back(Clock::now());
}

inline awaitable<void> OAuth::State::acquire(Discovery found, std::string scope) {
    bind_client(found.server.issuer);
    const bool lasting =
        interactive() && !scope.empty() && detail::contains(found.server.scopes, "offline_access");
    if (lasting) scope = detail::unite_scopes(scope, "offline_access");
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
inline awaitable<void> OAuth::State::by_assertion(Discovery found, std::string scope,
                                                  std::string key) {
    const auto client = known_client(found.server);
    if (!client)
        throw Error(errc::bad_config,
                    "the grant \"" + setting("grant") + "\" needs \"client_id\" in \"auth\"");
    detail::Form form;
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
inline awaitable<std::string> OAuth::State::identity_grant(Discovery found, std::string scope) {
    const auto* settings = options.auth.if_contains("identity_provider");
    if (settings == nullptr || !settings->is_object())
        throw Error(errc::bad_config,
                    "the grant \"identity_assertion\" needs \"identity_provider\" in \"auth\"");
    const json::object provider = settings->get_object();
    const auto file = detail::string_member(provider, "id_token_file");
    auto identity = file.empty() ? detail::string_member(provider, "id_token")
                                 : read_text_file(file, 64 * 1024);
    while (!identity.empty() && static_cast<unsigned char>(identity.back()) <= ' ')
        identity.pop_back();
    remember(identity);
    detail::Form form;
    form.emplace_back("grant_type", "urn:ietf:params:oauth:grant-type:token-exchange");
    form.emplace_back("requested_token_type", "urn:ietf:params:oauth:token-type:id-jag");
    form.emplace_back("subject_token", identity);
    form.emplace_back("subject_token_type", "urn:ietf:params:oauth:token-type:id_token");
    form.emplace_back("audience", found.server.issuer);
    form.emplace_back("resource", found.audience);
    form.emplace_back("scope", scope);
    form.emplace_back("client_id", detail::string_member(provider, "client_id"));
    form.emplace_back("client_secret", detail::string_member(provider, "client_secret"));
    HttpRequest request;
    request.method = "POST";
    request.url = checked_url(detail::string_member(provider, "token_endpoint"),
                              "auth/identity_provider/token_endpoint")
                      .text();
    request.headers.emplace_back("Content-Type", "application/x-www-form-urlencoded");
    request.body = detail::encode_form(form);
    const Reply reply = co_await fetch(std::move(request));
    const auto endpoint = detail::string_member(provider, "token_endpoint");
    const detail::AuthQuestion question{"an identity assertion", endpoint, false};
    auto answer = detail::read_token_answer(reply.status, reply.body, question);
    if (answer.issued_type != "urn:ietf:params:oauth:token-type:id-jag")
        throw Error(errc::mcp_protocol,
                    "the identity provider gave a token of another kind than asked for");
    co_return answer.access_token;
}

inline awaitable<void> OAuth::State::by_code(Discovery found, std::string scope, std::string key) {
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
    detail::ExpectedRedirect expected;
    expected.state = detail::random_text();
    expected.issuer = server.issuer;
    expected.iss_required = server.announces_iss;

    // Where the page leads back to: as configured, as registered before, or any free port here.
    const auto stored = records.client(server.issuer);
    auto client = known_client(server);
    const bool registered = client && setting("client_id").empty() && stored &&
                            client->id == detail::string_member(*stored, "client_id");
    std::string address = setting("redirect_uri");
    const bool fixed = !address.empty();
    if (!fixed && registered) address = detail::string_member(*stored, "redirect_uri");
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
    detail::Form form;
    form.emplace_back("response_type", "code");
    form.emplace_back("client_id", client->id);
    form.emplace_back("redirect_uri", address);
    form.emplace_back("scope", scope);
    form.emplace_back("state", expected.state);
    form.emplace_back("code_challenge", detail::encode_base64url(detail::sha256(verifier)));
    form.emplace_back("code_challenge_method", "S256");
    form.emplace_back("resource", found.audience);
    // OpenID Connect gives refresh tokens only to those who let the person confirm.
    if (detail::contains(detail::split_scope(scope), "offline_access"))
        form.emplace_back("prompt", "consent");
    if (!key.empty())
        form.emplace_back("dpop_jkt",
                          detail::SigningKey::from_pem(key, "the DPoP key").thumbprint());
    std::string page = server.authorization_endpoint;
    page += (page.find('?') == page.npos ? "?" : "&") + detail::encode_form(form);
    const std::string reached = co_await redirect(page, listener.get());
    const auto code = detail::code_from_redirect(reached, expected);
    remember(code);

    detail::Form exchange;
    exchange.emplace_back("grant_type", "authorization_code");
    exchange.emplace_back("code", code);
    exchange.emplace_back("redirect_uri", address);
    exchange.emplace_back("code_verifier", verifier);
    auto answer = co_await ask_token(found, *client, exchange, key, "to redeem the code");
    accept(found, *client, std::move(answer), scope, key, "");
    log(LogLevel::info, "a token of " + server.issuer + " for " + resource);
}

// Shows the page, and waits for what comes first: the redirect, or the address typed in.
inline awaitable<std::string> OAuth::State::redirect(std::string page, Listener* listener) {
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
inline awaitable<void> OAuth::State::by_device(Discovery found, std::string scope,
                                               std::string key) {
    const auto& server = found.server;
    if (server.device_authorization_endpoint.empty())
        throw Error(errc::mcp_connection,
                    "the authorization server does not offer the device code grant");
    count_login();
    auto client = known_client(server);
    if (!client) client = co_await register_client(server, "");
    detail::Form form;
    form.emplace_back("scope", scope);
    form.emplace_back("resource", found.audience);
    HttpRequest request;
    request.method = "POST";
    request.url = server.device_authorization_endpoint;
    request.headers.emplace_back("Content-Type", "application/x-www-form-urlencoded");
    sign_in(*client, server, form, request.headers);
    request.body = detail::encode_form(form);
    const Reply reply = co_await fetch(std::move(request));
    const auto document = detail::parse_document(reply.body).value_or(json::object());
    if (reply.status != 200)
        detail::throw_refusal(reply.status, document,
                              {"a device code", server.device_authorization_endpoint, false});
    const auto device = detail::string_member(document, "device_code");
    const auto code = detail::string_member(document, "user_code");
    const auto page = detail::string_member(document, "verification_uri");
    auto complete = detail::string_member(document, "verification_uri_complete");
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

    detail::DevicePolling polling(detail::seconds_member(document, "interval"));
    const auto lifetime = std::clamp<std::int64_t>(
        detail::seconds_member(document, "expires_in").value_or(600), 1, 1800);
    const auto end = Clock::now() + std::chrono::seconds(lifetime);
    std::optional<detail::TokenAnswer> answer;
    std::exception_ptr trouble;
    auto poll = [&]() -> awaitable<void> {
        while (!answer && !trouble) {
            co_await sleep_until(Clock::now() + std::chrono::seconds(polling.seconds()));
            if (Clock::now() >= end) co_return;
            detail::Form ask;
            ask.emplace_back("grant_type", "urn:ietf:params:oauth:grant-type:device_code");
            ask.emplace_back("device_code", device);
            try {
                answer = co_await ask_token(found, *client, ask, key, "a token");
            } catch (const detail::AuthRefusal& refusal) {
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
inline awaitable<bool> OAuth::State::refresh(Discovery found) {
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
    detail::Form form;
    form.emplace_back("grant_type", "refresh_token");
    form.emplace_back("refresh_token", token->refresh);
    const Token before = *token;
    std::optional<detail::TokenAnswer> answer;
    try {
        answer = co_await ask_token(found, *client, form, before.key, "to refresh the token");
    } catch (const detail::AuthRefusal& refusal) {
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
inline awaitable<void> OAuth::State::renew() {
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

// Alone: gets or widens a token.
inline awaitable<bool> OAuth::State::handle(unsigned status, detail::AuthChallenge challenge) {
    if (failure && Clock::now() - failed < options.failure_holds) throw *failure;
    load();
    const auto before = token ? token->access : std::string();
    Discovery found = co_await discover(challenge.resource_metadata);
    if (status == 403) {
        const auto had = token ? token->requested : std::string();
        const auto wanted = detail::unite_scopes(had, challenge.scope);
        // The same question again would get the same answer.
        const bool asked = detail::covers_scopes(stepped_up, wanted) ||
                           (token && detail::covers_scopes(token->scope, challenge.scope));
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

inline OAuth::OAuth(asio::any_io_executor executor, OAuthOptions options)
    : state_(std::make_shared<State>(std::move(executor), std::move(options))) {}

inline awaitable<HttpHeaders> OAuth::headers(std::string method, std::string url) {
    return headers(state_, std::move(method), std::move(url));
}
inline awaitable<bool> OAuth::challenged(unsigned status, HttpHeaders response) {
    return challenged(state_, status, std::move(response), HttpHeaders());
}
inline awaitable<bool> OAuth::challenged(unsigned status, HttpHeaders response, HttpHeaders sent) {
    return challenged(state_, status, std::move(response), std::move(sent));
}
inline awaitable<void> OAuth::login(HttpHeaders response) {
    return login(state_, std::move(response));
}
inline awaitable<bool> OAuth::logout() { return logout(state_); }
inline bool OAuth::silent() const noexcept {
    return !state_->usable || (state_->loaded && !state_->token);
}
inline void OAuth::observe(const HttpHeaders& response) {
    state_->adopt_nonce(response, state_->resource_nonce);
}
inline Duration OAuth::people_took() const {
    const auto& since = state_->person_since;
    return state_->people + (since ? Clock::now() - *since : Duration::zero());
}
inline std::string OAuth::hide(std::string text) const { return state_->hide(std::move(text)); }

inline OAuth::Status OAuth::status() const {
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

inline awaitable<HttpHeaders> OAuth::headers(StatePtr state, std::string method, std::string url) {
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

inline awaitable<bool> OAuth::challenged(StatePtr state, unsigned status, HttpHeaders response,
                                         HttpHeaders sent) {
    detail::AuthChallenge challenge;
    for (const auto& [name, value] : response)
        if (same_header(name, "WWW-Authenticate"))
            detail::read_challenges(std::string_view(value).substr(0, 16 * 1024), challenge);
    if (status != 401 && !(status == 403 && challenge.error == "insufficient_scope"))
        co_return false;
    if (status == 401 && challenge.error == "use_dpop_nonce" && state->token) {
        // A nonce that differs from the one the request had; never twice for the same.
        state->adopt_nonce(response, state->resource_nonce);
        std::string used = state->last_nonce;
        if (const auto proof = find_header(sent, "DPoP"); !proof.empty())
            used = detail::string_member(detail::jwt_claims(proof), "nonce");
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
            status == 401 || detail::covers_scopes(state->token->scope, challenge.scope);
        if (enough) co_return true;
    }
    if (state->failures != failures && state->failure) throw *state->failure;
    const State::Busy working(*state);
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

inline awaitable<void> OAuth::login(StatePtr state, HttpHeaders response) {
    detail::AuthChallenge challenge;
    for (const auto& [name, value] : response)
        if (same_header(name, "WWW-Authenticate"))
            detail::read_challenges(std::string_view(value).substr(0, 16 * 1024), challenge);
    while (state->busy) co_await state->changed.wait();
    const State::Busy working(*state);
    std::optional<Error> trouble;
    try {
        State::Discovery found = co_await state->discover(challenge.resource_metadata);
        const auto scope = state->first_scope(found, challenge.scope, "");
        co_await state->acquire(std::move(found), scope);
    } catch (const Error& error) {
        trouble = state->translated(error);
    }
    if (trouble) throw *trouble;
}

inline awaitable<bool> OAuth::logout(StatePtr state) {
    while (state->busy) co_await state->changed.wait();
    const State::Busy working(*state);
    state->load();
    if (!state->token) co_return false;
    const auto old = *state->token;
    try {  // RFC 7009; whether or not it works, the token is forgotten here
        State::Discovery found = co_await state->discover("");
        const auto client = state->known_client(found.server);
        if (state->token && !found.server.revocation_endpoint.empty() && client &&
            client->id == old.client_id) {
            detail::Form form;
            form.emplace_back("token", old.refresh.empty() ? old.access : old.refresh);
            HttpRequest request;
            request.method = "POST";
            request.url = found.server.revocation_endpoint;
            request.headers.emplace_back("Content-Type", "application/x-www-form-urlencoded");
            state->sign_in(*client, found.server, form, request.headers);
            request.body = detail::encode_form(form);
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
