#pragma once
#include <ipybox/oauth/oauth.hpp>

#include <cstdlib>
#include <deque>
#include <ipybox/compilation.hpp>
#include <ipybox/detail/json_members.hpp>
#include <ipybox/net/domain_rule.hpp>
#include <ipybox/oauth/redirect.hpp>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace ipybox {

// ---- what is known about one server ----
struct OAuth::Impl {
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
        oauth::ServerMetadata server;
    };
    using Listener = oauth::RedirectListener;
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

    Impl(asio::any_io_executor e, OAuthOptions o);

    std::string setting(std::string_view key) const {
        return std::string(detail::string_of(options.auth, key));
    }
    static Grant grant_of(std::string_view name);
    // A person's token is the same however it was got.
    std::string grant_name() const { return interactive() ? std::string() : setting("grant"); }
    bool interactive() const { return grant == Grant::code || grant == Grant::device_code; }
    std::string remedy() const { return "run " + oauth::login_command(options.name); }

    Secrets secrets() const;
    Error translated(const Error& error) const { return {error.code(), hide(error.detail())}; }
    std::string hide(std::string text) const { return secrets().hide(std::move(text)); }
    void remember(std::string value);
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
    static Error unanswered(const std::string& place, unsigned status);
    awaitable<Reply> fetch(HttpRequest request);
    awaitable<Discovery> discover(std::string metadata_url);
    awaitable<std::optional<json::object>> resource_metadata(std::string metadata_url);
    awaitable<oauth::ServerMetadata> server_metadata(std::string issuer, bool may_be_absent);
    std::string choose_issuer(const std::vector<std::string>& offered) const;

    std::string choose_method(const oauth::ServerMetadata& server, bool has_secret) const;
    std::optional<Client> known_client(const oauth::ServerMetadata& server) const;
    awaitable<Client> register_client(oauth::ServerMetadata server, std::string redirect);
    void sign_in(const Client& client, const oauth::ServerMetadata& server, oauth::Form& form,
                 HttpHeaders& headers) const;
    std::string first_scope(const Discovery& found, const std::string& challenged,
                            const std::string& before) const;
    std::string dpop_key(const Discovery& found) const;

    awaitable<oauth::TokenAnswer> ask_token(Discovery found, Client client, oauth::Form form,
                                            std::string key, std::string what);
    void accept(const Discovery& found, const Client& client, oauth::TokenAnswer answer,
                const std::string& requested, const std::string& key, std::string old_refresh);

    awaitable<void> acquire(Discovery found, std::string scope);
    awaitable<void> by_code(Discovery found, std::string scope, std::string key);
    awaitable<void> by_device(Discovery found, std::string scope, std::string key);
    awaitable<void> by_assertion(Discovery found, std::string scope, std::string key);
    awaitable<std::string> identity_grant(Discovery found, std::string scope);
    awaitable<std::string> redirect(std::string url, Listener* listener);
    awaitable<bool> refresh(Discovery found);
    awaitable<void> renew();
    awaitable<bool> handle(unsigned status, oauth::AuthChallenge challenge);
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
        explicit Busy(Impl& s) : state(s) { state.busy = true; }
        ~Busy();
        Busy(const Busy&) = delete;
        Busy& operator=(const Busy&) = delete;
        Impl& state;
    };
    // A person is waited for; one at a time, because of Busy.
    struct Person {
        explicit Person(Impl& s) : state(s) { state.person_since = Clock::now(); }
        ~Person();
        Person(const Person&) = delete;
        Person& operator=(const Person&) = delete;
        Impl& state;
    };
};

}  // namespace ipybox
