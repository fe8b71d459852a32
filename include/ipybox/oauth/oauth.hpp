#pragma once
// Authorization for MCP servers over HTTP: discovery, registration, the grants and refreshing
// (revisions 2025-03-26 to 2026-07-28 of MCP's authorization).
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <ipybox/async.hpp>
#include <ipybox/config.hpp>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/error.hpp>
#include <ipybox/log.hpp>
#include <ipybox/net/http_client.hpp>
#include <ipybox/oauth/detail/jwt.hpp>
#include <ipybox/oauth/detail/records.hpp>
#include <ipybox/oauth/protocol.hpp>
#include <memory>
#include <string>

namespace ipybox {

// $XDG_DATA_HOME/ipybox/tokens.json, or the same below ~/.local/share. Empty, which keeps tokens
// in memory, when neither variable is an absolute path.
std::filesystem::path default_token_store();

// For which server, and who there is to ask.
struct OAuthOptions {
    std::string name;  // the server's, for messages; may be empty
    std::string url;   // the MCP server's: what tokens are for
    // server_params' "auth", as check_server_params() lets it through, variables replaced.
    json::object auth;
    std::filesystem::path store = default_token_store();  // empty: tokens die with the object
    // Shows a person the page at `url`. Returns the address that page led back to if it was typed
    // in, and empty when nobody is there. Cancelled when the redirect arrives by itself, so it may
    // wait forever. Empty: nobody is there.
    std::function<awaitable<std::string>(std::string url)> browse;
    // Shows a person where to type in which code (device code grant).
    std::function<void(const std::string& url, const std::string& code)> show_code;
    HttpClientOptions http;  // may_connect and may_name are set by OAuth
    Duration request_timeout = std::chrono::seconds(30);  // for one answer of a server
    Duration consent_timeout = std::chrono::minutes(10);  // for the person
    // What failed is not tried again for so long: other requests get the same error, and a person
    // who refused is not asked by each of them.
    Duration failure_holds = std::chrono::seconds(10);
    Logger logger;
};

// Tokens for one MCP server (one resource). All functions belong to the executor's thread; any
// number of them may run at once, and one of them alone talks to the authorization server. Throws
// Error: mcp_connection (nobody can consent, or a server refused), mcp_protocol (a server's
// document is not acceptable), bad_config (options.auth), io_error (the token store), timed_out (a
// server or a person did not answer); none of them holds a token, code or secret. Cancelling the
// coroutine ends what it began, with operation_aborted.
class OAuth {
public:
    // Asks nobody yet. Throws Error: bad_argument (the URL), bad_config (options.auth).
    OAuth(asio::any_io_executor executor, OAuthOptions options);
    OAuth(const OAuth&) = delete;
    OAuth& operator=(const OAuth&) = delete;

    // What goes into one request to the MCP server: Authorization, and a DPoP proof for `method`
    // and `url` where the token is bound to a key. Empty when there is no token, or `url` has
    // another origin than the server. Refreshes a token that is about to expire.
    awaitable<HttpHeaders> headers(std::string method, std::string url);
    // Whether headers() would be empty for any request; false when that takes a look at the store.
    bool silent() const noexcept;

    // The server answered 401 or 403. True: there is a token that may be accepted; send the request
    // once more, with new headers(). A request may need that three times: for a token, for a nonce,
    // and for more scopes.
    awaitable<bool> challenged(unsigned status, HttpHeaders response);
    // `sent` are the headers that the refused request had; they tell a token that another request
    // has replaced meanwhile.
    awaitable<bool> challenged(unsigned status, HttpHeaders response, HttpHeaders sent);

    // A server may hand out the next DPoP nonce with any answer.
    void observe(const HttpHeaders& response);

    // Gets a new token, even where there is one. `response`: the headers of a 401, or none.
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
    // Throws Error: io_error (the token store cannot be used).
    Status status() const;

    // How long, in all and until now, a person was waited for. No limit on a server counts it.
    Duration people_took() const;

    // Hides tokens, codes and secrets in a text.
    std::string hide(std::string text) const;

private:
    struct Impl;
    using ImplPtr = std::shared_ptr<Impl>;
    static awaitable<HttpHeaders> headers(ImplPtr state, std::string method, std::string url);
    static awaitable<bool> challenged(ImplPtr state, unsigned status, HttpHeaders response,
                                      HttpHeaders sent);
    static awaitable<void> login(ImplPtr state, HttpHeaders response);
    static awaitable<bool> logout(ImplPtr state);

    ImplPtr state_;
};

}  // namespace ipybox

#ifndef IPYBOX_SEPARATE_COMPILATION
#include <ipybox/oauth/impl/oauth.ipp>
#include <ipybox/oauth/impl/oauth_clients.ipp>
#include <ipybox/oauth/impl/oauth_discovery.ipp>
#include <ipybox/oauth/impl/oauth_grants.ipp>
#endif
