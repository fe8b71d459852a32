#pragma once
// OAuth as MCP uses it, without I/O: challenges, metadata documents, redirects, token answers.
// Everything read here comes from servers that may be hostile.
#include <algorithm>
#include <boost/json/object.hpp>
#include <cstddef>
#include <cstdint>
#include <ipybox/error.hpp>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ipybox::oauth {

// A server's words in an error: one printable line, cut.
std::string in_quotes(std::string_view text, std::size_t limit = 200);

bool contains(const std::vector<std::string>& list, std::string_view text);

// What a person types to log in; `name` is the server's, empty when nobody knows it.
std::string login_command(const std::string& name, const char* what = "login");

// ---- scopes ----

inline constexpr std::size_t max_scopes = 100;

// The scopes of a space-separated list, each once; those that are none by RFC 6749 are left out.
std::vector<std::string> split_scope(std::string_view text);

// The text of a scope parameter.
std::string join_scope(const std::vector<std::string>& scopes);

// What either has, each once.
std::string unite_scopes(std::string_view first, std::string_view second);

// Whether all that is asked for was granted.
bool covers_scopes(std::string_view granted, std::string_view asked);

// ---- forms and queries ----

using Form = std::vector<std::pair<std::string, std::string>>;

// With all but the unreserved characters of RFC 3986 as %XX.
std::string percent_encode(std::string_view text);

// application/x-www-form-urlencoded, also as a query; empty values are left out.
std::string encode_form(const Form& form);

// Nothing when a % is not followed by two hexadecimal digits.
std::optional<std::string> decode_form_text(std::string_view text);

// The parameters of a query; nothing when one is malformed or stands there twice.
std::optional<std::map<std::string, std::string>> parse_query(std::string_view query);

// ---- challenges ----

// What WWW-Authenticate says about getting a token (RFC 6750, RFC 9449, RFC 9728).
struct AuthChallenge {
    std::string resource_metadata;
    std::string scope;
    std::string error;
};

// Adds what one header's Bearer and DPoP challenges say; the first word on each matter counts.
void read_challenges(std::string_view header, AuthChallenge& result);

// ---- metadata ----

// Where a resource's metadata may be (RFC 9728, 3.1). `path` begins with /; `query` with ?, or
// is empty.
std::vector<std::string> resource_metadata_urls(const std::string& origin, const std::string& path,
                                                const std::string& query);

// Where an authorization server's metadata may be (RFC 8414, 3.1 and 5; OpenID Connect).
std::vector<std::string> server_metadata_urls(const std::string& origin, std::string path);

// A JSON object of at most 32 levels; nothing for anything else.
std::optional<boost::json::object> parse_document(std::string_view body);

// A flag or a list of texts in an object; false or empty when it is absent or of another type.
bool flag_member(const boost::json::object& object, std::string_view key);
std::vector<std::string> list_member(const boost::json::object& object, std::string_view key);
// A number of seconds, also where a server writes it as text; nothing when absent or no number.
std::optional<std::int64_t> seconds_member(const boost::json::object& object, std::string_view key);

// An authorization server, as its metadata describes it.
struct ServerMetadata {
    std::string issuer;
    std::string authorization_endpoint;
    std::string token_endpoint;
    std::string registration_endpoint;
    std::string device_authorization_endpoint;
    std::string revocation_endpoint;
    std::vector<std::string> scopes;
    std::vector<std::string> auth_methods;  // empty: it does not say
    std::vector<std::string> signing_algorithms;
    bool pkce = false;
    bool announces_iss = false;
    bool client_documents = false;
    bool dpop = false;     // with ES256
    bool guessed = false;  // it has no metadata

    // Throws Error: mcp_protocol (the document is not acceptable, or its issuer not the very text
    // `issuer`).
    static ServerMetadata read(const boost::json::object& document, const std::string& issuer,
                               const std::string& url);
    // Revision 2025-03-26, for MCP servers without any metadata: fixed paths at their own origin.
    static ServerMetadata at_default_endpoints(const std::string& origin);
};

// ---- redirects ----

// Takes the same time wherever they differ.
bool same_secret(std::string_view a, std::string_view b);

// What the page after the consent must bring along.
struct ExpectedRedirect {
    std::string state;
    std::string issuer;
    bool iss_required = false;
};

// The query of an address, without a fragment.
std::string_view query_of(std::string_view url);

// The authorization code of a redirect, after state and issuer (RFC 9207) were compared as text.
// Throws Error: mcp_connection (it is refused, or not the one expected; what a server says in a
// redirect that is not its own is not shown).
std::string code_from_redirect(std::string_view url, const ExpectedRedirect& expected);

// ---- answers of the token endpoint ----

struct TokenAnswer {
    std::string access_token;
    std::string type;  // Bearer, DPoP, or N_A
    std::string refresh_token;
    std::optional<std::string> scope;
    std::optional<std::int64_t> lifetime;  // seconds
    std::string issued_type;
};

// A refusal by an authorization server, with its code: invalid_grant, slow_down …
class AuthRefusal : public Error {
public:
    AuthRefusal(std::string code, std::string detail);
    const std::string& reason() const noexcept { return code_; }

private:
    std::string code_;
};

// What was asked for, in the words of an error, and where.
struct AuthQuestion {
    std::string what;
    std::string url;
    bool guessed = false;  // the address: the server has no metadata that name one
};

// Throws AuthRefusal with what `document`, the body of an answer that is not 200, says.
[[noreturn]] void throw_refusal(unsigned status, const boost::json::object& document,
                                const AuthQuestion& question);

// A value that goes into a header.
bool is_header_text(std::string_view text);

// Throws AuthRefusal, and Error: mcp_protocol (the answer is malformed).
TokenAnswer read_token_answer(unsigned status, std::string_view body, const AuthQuestion& question);

// How long to wait between questions for a device's token (RFC 8628, 3.5).
class DevicePolling {
public:
    explicit DevicePolling(std::optional<std::int64_t> interval);
    std::int64_t seconds() const noexcept { return seconds_; }
    // True: ask again after seconds(). An unknown refusal ends it.
    bool refused(std::string_view reason);
    // The connection failed: ask less often.
    void failed() { seconds_ = std::min<std::int64_t>(seconds_ * 2, 300); }

private:
    std::int64_t seconds_;
};

}  // namespace ipybox::oauth

#ifndef IPYBOX_SEPARATE_COMPILATION
#include <ipybox/oauth/impl/protocol.ipp>
#endif
