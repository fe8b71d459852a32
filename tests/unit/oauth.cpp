// Authorization against an authorization server that keeps to the rules, and ones that do not.
#include <openssl/evp.h>
#include <sys/stat.h>

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/test/unit_test.hpp>
#include <ipybox/oauth/oauth.hpp>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "http_server.hpp"
#include "test_support.hpp"

namespace oauth_tests {

using namespace ipybox;
using namespace std::chrono_literals;
using test::HttpMessage;
using test::HttpPeerPtr;

namespace {

using Fields = std::map<std::string, std::string>;

Fields fields_of(std::string_view text) { return oauth::parse_query(text).value(); }

bool holds(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

// The detail of the Error that `work` throws.
template <class Work>
std::string error_of(Work work) {
    try {
        work();
    } catch (const Error& error) {
        return error.detail();
    }
    return "no error";
}

// An authorization server, and the MCP server that names it, on ports of their own.
class Authority {
public:
    explicit Authority(asio::io_context& context)
        : server(context,
                 [this](HttpMessage m, HttpPeerPtr p) { return authorize(std::move(m), p); }),
          mcp(context, [this](HttpMessage m, HttpPeerPtr p) { return describe(std::move(m), p); }) {
        issuer = server.origin();
        metadata["issuer"] = issuer;
        metadata["authorization_endpoint"] = issuer + "/authorize";
        metadata["token_endpoint"] = issuer + "/token";
        metadata["registration_endpoint"] = issuer + "/register";
        metadata["device_authorization_endpoint"] = issuer + "/device";
        metadata["code_challenge_methods_supported"] = json::array{"S256"};
        metadata["token_endpoint_auth_methods_supported"] = json::array{"none"};
        metadata["authorization_response_iss_parameter_supported"] = true;
        resource["resource"] = mcp.origin() + "/mcp";
        resource["authorization_servers"] = json::array{issuer};
    }

    std::string url() const { return mcp.origin() + "/mcp"; }

    // A person who consents at once and copies the address.
    awaitable<std::string> browse(std::string page) {
        pages.push_back(fields_of(oauth::query_of(page)));
        const auto& asked = pages.back();
        oauth::Form query;
        query.emplace_back("code", "the-code");
        query.emplace_back("state", state.value_or(asked.at("state")));
        query.emplace_back("iss", iss.value_or(issuer));
        const std::string address = asked.at("redirect_uri") + "?" + oauth::encode_form(query);
        co_return address;
    }

    awaitable<void> describe(HttpMessage message, HttpPeerPtr peer) {
        unsigned status = 404;
        std::string body = "{}";
        if (message.target == "/.well-known/oauth-protected-resource/mcp") {
            status = 200;
            body = json::serialize(resource);
        }
        co_await peer->respond(status, "", std::move(body));
    }

    awaitable<void> authorize(HttpMessage message, HttpPeerPtr peer) {
        unsigned status = 200;
        json::object body;
        if (message.target == "/.well-known/oauth-authorization-server") {
            body = metadata;
        } else if (message.target == "/register") {
            registrations.push_back(json::parse(message.body).as_object());
            status = 201;
            body["client_id"] = "client-of-" + issuer;
        } else if (message.target == "/device") {
            devices.push_back(fields_of(message.body));
            body["device_code"] = "the-device-code";
            body["user_code"] = "ABCD-EFGH";
            body["verification_uri"] = issuer + "/verify";
            body["interval"] = 1;
            body["expires_in"] = 60;
        } else if (message.target == "/token") {
            tokens.push_back(fields_of(message.body));
            proofs.emplace_back(message.header("DPoP"));
            authorizations.emplace_back(message.header("Authorization"));
            if (refusals.empty()) {
                body["access_token"] = "access-token-" + std::to_string(tokens.size());
                body["token_type"] = "Bearer";
                for (const auto& [key, value] : answer) body[key] = value;
            } else {
                status = 400;
                body["error"] = refusals.front();
                body["error_description"] = "about the-code and " + tokens.back()["code_verifier"];
                refusals.erase(refusals.begin());
            }
        } else {
            status = 404;
        }
        std::string text = json::serialize(body);
        co_await peer->respond(status, headers, std::move(text));
    }

    std::string issuer;
    json::object metadata, resource;
    json::object answer;                // put into every token
    std::vector<std::string> refusals;  // of the token endpoint, before it gives tokens
    std::optional<std::string> state, iss;
    std::string headers;  // of the token endpoint's answers
    std::vector<Fields> pages, tokens, devices;
    std::vector<json::object> registrations;
    std::vector<std::string> proofs, authorizations;
    test::HttpServer server, mcp;
};

struct Fixture {
    asio::io_context context{1};
    Authority authority{context};
    std::vector<std::string> log;

    OAuthOptions options(json::object auth = {}) {
        OAuthOptions made;
        made.name = "docs";
        made.url = authority.url();
        made.auth = std::move(auth);
        made.store.clear();
        made.failure_holds = 0s;
        made.browse = [this](std::string page) { return authority.browse(std::move(page)); };
        made.logger.level = LogLevel::trace;
        made.logger.write = [this](LogLevel, std::string_view line) { log.emplace_back(line); };
        return made;
    }
    std::unique_ptr<OAuth> make(json::object auth = {}) {
        return std::make_unique<OAuth>(context.get_executor(), options(std::move(auth)));
    }
    static HttpHeaders challenge(const std::string& parameters = "") {
        HttpHeaders headers;
        headers.emplace_back("WWW-Authenticate", "Bearer " + parameters);
        return headers;
    }
    bool challenged(OAuth& oauth, unsigned status = 401, const std::string& parameters = "") {
        return test::run(context, oauth.challenged(status, challenge(parameters)));
    }
    std::string refusal(OAuth& oauth, unsigned status = 401, const std::string& parameters = "") {
        return error_of([&] { challenged(oauth, status, parameters); });
    }
    std::string authorization(OAuth& oauth) {
        const auto headers = test::run(context, oauth.headers("POST", authority.url()));
        return std::string(find_header(headers, "Authorization"));
    }
};

json::object header_of(const std::string& jwt) { return detail::jwt_claims("." + jwt); }

std::string new_key(const char* kind) {
    const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(
        std::string_view(kind) == "RSA"       ? EVP_RSA_gen(2048)
        : std::string_view(kind) == "ED25519" ? EVP_PKEY_Q_keygen(nullptr, nullptr, kind)
                                              : EVP_EC_gen(kind),
        &EVP_PKEY_free);
    const std::unique_ptr<BIO, decltype(&BIO_free)> bio(BIO_new(BIO_s_mem()), &BIO_free);
    PEM_write_bio_PKCS8PrivateKey(bio.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr);
    char* data = nullptr;
    const auto size = BIO_get_mem_data(bio.get(), &data);
    return std::string(data, static_cast<std::size_t>(size));
}

}  // namespace

BOOST_AUTO_TEST_SUITE(oauth_protocol)

BOOST_AUTO_TEST_CASE(challenges_are_found_among_others) {
    oauth::AuthChallenge found;
    oauth::read_challenges(
        R"(Negotiate abc==, Basic realm="x, Bearer scope=\"no\"", bearer scope="a b", )"
        R"(error=insufficient_scope , Resource_Metadata = "https://h/\"m")",
        found);
    BOOST_TEST(found.scope == "a b");
    BOOST_TEST(found.error == "insufficient_scope");
    BOOST_TEST(found.resource_metadata == "https://h/\"m");
    oauth::AuthChallenge none;
    oauth::read_challenges(R"(Basic scope="a", Digest error="b")", none);
    BOOST_TEST((none.scope + none.error).empty());
    for (const char* odd :
         {"", ",,,", "=", "\"", "Bearer scope=\"", "Bearer =x", "Bearer \"", "Bearer scope"})
        oauth::read_challenges(odd, none);
    BOOST_TEST((none.scope + none.error).empty());
}

BOOST_AUTO_TEST_CASE(metadata_is_looked_for_at_all_its_places_in_order) {
    const auto resource = oauth::resource_metadata_urls("https://h", "/a/mcp", "");
    BOOST_REQUIRE(resource.size() == 2u);
    BOOST_TEST(resource[0] == "https://h/.well-known/oauth-protected-resource/a/mcp");
    BOOST_TEST(resource[1] == "https://h/.well-known/oauth-protected-resource");
    BOOST_TEST(oauth::resource_metadata_urls("https://h", "/", "").size() == 1u);
    const auto tenant = oauth::server_metadata_urls("https://h", "/t/");
    BOOST_REQUIRE(tenant.size() == 3u);
    BOOST_TEST(tenant[0] == "https://h/.well-known/oauth-authorization-server/t");
    BOOST_TEST(tenant[1] == "https://h/.well-known/openid-configuration/t");
    BOOST_TEST(tenant[2] == "https://h/t/.well-known/openid-configuration");
    BOOST_TEST(oauth::server_metadata_urls("https://h", "/").size() == 2u);
}

BOOST_AUTO_TEST_CASE(redirects_are_checked_before_anything_in_them_counts) {
    const oauth::ExpectedRedirect expected{"right", "https://as", true};
    const auto take = [&](const std::string& query) {
        return error_of([&] {
            throw Error(errc::denied, oauth::code_from_redirect("http://x/cb?" + query, expected));
        });
    };
    BOOST_TEST(take("code=c%2Bd&state=right&iss=https%3A%2F%2Fas") == "c+d");
    BOOST_TEST(holds(take("code=c&state=wrong&iss=https://as"), "its state differs"));
    BOOST_TEST(holds(take("code=c&iss=https://as"), "its state differs"));
    BOOST_TEST(holds(take("code=c&state=right"), "does not say which"));
    for (const char* other : {"https://as/", "HTTPS://as", "https://as:443", "https://evil", ""})
        BOOST_TEST(holds(take(std::string("code=c&state=right&iss=") + other),
                         "another authorization server"));
    // What another server says is not repeated.
    const auto foreign =
        take("error=denied&error_description=click+here&state=right&iss=https://evil");
    BOOST_TEST(!holds(foreign, "click here"));
    BOOST_TEST(holds(take("error=denied&state=right&iss=https://as"), "\"denied\""));
    BOOST_TEST(holds(take("code=a&code=b&state=right&iss=https://as"), "malformed"));
    BOOST_TEST(holds(take("code=%zz&state=right&iss=https://as"), "malformed"));
    BOOST_TEST(holds(take("state=right&iss=https://as"), "no code"));
}

BOOST_AUTO_TEST_CASE(token_answers_are_read_strictly) {
    const auto read = [](const char* body) {
        return error_of([&] { oauth::read_token_answer(200, body, {"a token", "", false}); });
    };
    const auto good = oauth::read_token_answer(
        200,
        R"({"access_token": "a", "token_type": "bearer", "expires_in": "60", "scope": "x  y"})",
        {"a token", "", false});
    BOOST_TEST(good.type == "Bearer");
    BOOST_TEST(good.lifetime.value() == 60);
    BOOST_TEST(good.scope.value() == "x y");
    BOOST_TEST(holds(read("[]"), "no JSON object"));
    BOOST_TEST(holds(read(R"({"token_type": "bearer"})"), "access_token"));
    BOOST_TEST(
        holds(read(R"({"access_token": "a\r\nX: y", "token_type": "bearer"})"), "access_token"));
    BOOST_TEST(holds(read(R"({"access_token": "a", "token_type": "mac"})"), "kind other than"));
    const auto lifetime = [](const std::string& text) {
        const auto body =
            R"({"access_token": "a", "token_type": "bearer", "expires_in": )" + text + "}";
        return oauth::read_token_answer(200, body, {"a token", "", false}).lifetime;
    };
    for (const char* odd : {"-1", "\"soon\"", "null", "[]"})
        BOOST_TEST(!lifetime(odd).has_value(), odd);
    BOOST_TEST(lifetime("1e300").value() == std::int64_t{1} << 40);
    const auto refused = error_of([] {
        oauth::read_token_answer(400, R"({"error": "invalid\u001b_grant"})",
                                 {"a token", "", false});
    });
    BOOST_TEST(refused == "the authorization server refused a token: \"invalid\\x1b_grant\"");
}

BOOST_AUTO_TEST_CASE(devices_ask_less_often_when_told_so) {
    oauth::DevicePolling polling(std::nullopt);
    BOOST_TEST(polling.seconds() == 5);
    BOOST_TEST(polling.refused("authorization_pending"));
    BOOST_TEST(polling.seconds() == 5);
    BOOST_TEST(polling.refused("slow_down"));
    BOOST_TEST(polling.seconds() == 10);
    polling.failed();
    BOOST_TEST(polling.seconds() == 20);
    for (int i = 0; i < 100; ++i) polling.refused("slow_down");
    BOOST_TEST(polling.seconds() == 300);
    for (const char* end : {"access_denied", "expired_token", "invalid_grant", ""})
        BOOST_TEST(!polling.refused(end));
    BOOST_TEST(oauth::DevicePolling(0).seconds() == 1);
}

BOOST_AUTO_TEST_CASE(scopes_are_sets_of_proper_words) {
    BOOST_TEST(oauth::unite_scopes("a b", "b  c \"d\"") == "a b c");
    BOOST_TEST(oauth::covers_scopes("a b c", "c a"));
    BOOST_TEST(!oauth::covers_scopes("a", "a b"));
    std::string many;
    for (int i = 0; i < 1000; ++i) many += "s" + std::to_string(i) + " ";
    BOOST_TEST(oauth::split_scope(many).size() == oauth::max_scopes);
}

BOOST_AUTO_TEST_CASE(pkce_is_that_of_rfc_7636) {
    BOOST_TEST(
        detail::encode_base64url(detail::sha256("dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk")) ==
        "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM");
    BOOST_TEST(detail::random_text().size() == 43u);
    BOOST_TEST(detail::random_text() != detail::random_text());
}

BOOST_AUTO_TEST_CASE(every_kind_of_key_signs_as_jose_wants) {
    const std::pair<const char*, std::pair<const char*, std::size_t>> kinds[] = {
        {"P-256", {"ES256", 64}}, {"P-384", {"ES384", 96}},   {"P-521", {"ES512", 132}},
        {"RSA", {"RS256", 256}},  {"ED25519", {"EdDSA", 64}},
    };
    for (const auto& [kind, expected] : kinds) {
        const auto key = detail::SigningKey::from_pem(new_key(kind), "test");
        BOOST_TEST(key.algorithm() == expected.first);
        BOOST_TEST(key.sign("text").size() == expected.second, kind);
    }
    for (const auto& bad : {std::string(), std::string("no key"), new_key("secp256k1")})
        BOOST_TEST(holds(error_of([&] { detail::SigningKey::from_pem(bad, "auth/private_key"); }),
                         "auth/private_key: "));
}

BOOST_AUTO_TEST_CASE(a_signature_verifies_with_the_published_key) {
    const auto key = detail::SigningKey::make();
    json::object claims;
    claims["sub"] = "x";
    const auto jwt = detail::make_jwt(json::object(), claims, key);
    BOOST_TEST(header_of(jwt).at("alg").as_string() == "ES256");
    BOOST_TEST(detail::jwt_claims(jwt).at("sub").as_string() == "x");
    BOOST_TEST(key.thumbprint().size() == 43u);
    BOOST_TEST(key.thumbprint() == detail::SigningKey::from_pem(key.pem(), "test").thumbprint());
    // r and s back into the form that OpenSSL verifies.
    const auto raw = key.sign("text");
    const auto* data = reinterpret_cast<const unsigned char*>(raw.data());
    const std::unique_ptr<ECDSA_SIG, decltype(&ECDSA_SIG_free)> pair(ECDSA_SIG_new(),
                                                                     &ECDSA_SIG_free);
    ECDSA_SIG_set0(pair.get(), BN_bin2bn(data, 32, nullptr), BN_bin2bn(data + 32, 32, nullptr));
    unsigned char* der = nullptr;
    const int size = i2d_ECDSA_SIG(pair.get(), &der);
    const auto pem = key.pem();
    const std::unique_ptr<BIO, decltype(&BIO_free)> bio(
        BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), &BIO_free);
    const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> same(
        PEM_read_bio_PrivateKey(bio.get(), nullptr, nullptr, nullptr), &EVP_PKEY_free);
    const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> check(EVP_MD_CTX_new(),
                                                                        &EVP_MD_CTX_free);
    EVP_DigestVerifyInit(check.get(), nullptr, EVP_sha256(), nullptr, same.get());
    const auto verify = [&](std::string_view text) {
        return EVP_DigestVerify(check.get(), der, static_cast<std::size_t>(size),
                                reinterpret_cast<const unsigned char*>(text.data()), text.size());
    };
    BOOST_TEST(verify("text") == 1);
    OPENSSL_free(der);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_FIXTURE_TEST_SUITE(oauth, Fixture)

BOOST_AUTO_TEST_CASE(a_code_becomes_a_token) {
    authority.resource["scopes_supported"] = json::array{"read", "write"};
    authority.metadata["scopes_supported"] = json::array{"read", "offline_access"};
    const auto oauth = make();
    BOOST_TEST(authorization(*oauth).empty());
    BOOST_TEST(challenged(*oauth));
    BOOST_TEST(authorization(*oauth) == "Bearer access-token-1");
    BOOST_REQUIRE(authority.pages.size() == 1u);
    auto page = authority.pages[0];
    auto token = authority.tokens.at(0);
    BOOST_TEST(page["client_id"] == "client-of-" + authority.issuer);
    BOOST_TEST(page["scope"] == "read write offline_access");
    BOOST_TEST(page["prompt"] == "consent");
    BOOST_TEST(page["resource"] == authority.url());
    BOOST_TEST(token["resource"] == authority.url());
    BOOST_TEST(token["redirect_uri"] == page["redirect_uri"]);
    BOOST_TEST(page["code_challenge_method"] == "S256");
    BOOST_TEST(detail::encode_base64url(detail::sha256(token["code_verifier"])) ==
               page["code_challenge"]);
    const auto& registration = authority.registrations.at(0);
    BOOST_TEST(registration.at("application_type").as_string() == "native");
    BOOST_TEST(registration.at("redirect_uris").as_array().at(0).as_string() ==
               page["redirect_uri"]);
    // Another origin gets nothing.
    BOOST_TEST(test::run(context, oauth->headers("POST", authority.issuer + "/mcp")).empty());
    // No code, verifier or token in the log.
    for (const auto& line : log) {
        BOOST_TEST(!holds(line, "the-code"), line);
        BOOST_TEST(!holds(line, "access-token"), line);
    }
}

BOOST_AUTO_TEST_CASE(the_scope_of_the_challenge_comes_first_and_the_configured_one_before_it) {
    authority.resource["scopes_supported"] = json::array{"all"};
    const auto oauth = make();
    challenged(*oauth, 401, R"(scope="one two")");
    BOOST_TEST(authority.pages.at(0).at("scope") == "one two");
    json::object auth;
    auth["scope"] = "mine";
    const auto configured = make(auth);
    challenged(*configured, 401, R"(scope="one two")");
    BOOST_TEST(authority.pages.at(1).at("scope") == "mine");
}

BOOST_AUTO_TEST_CASE(the_redirect_reaches_the_loopback_address) {
    auto settings = options();
    std::vector<unsigned> statuses;
    std::list<asio::ip::tcp::socket> strangers;
    settings.browse = [&](std::string page) -> awaitable<std::string> {
        const auto asked = fields_of(ipybox::oauth::query_of(page));
        HttpClient client(context.get_executor(), HttpClientOptions());
        // Whoever else finds the port keeps nobody from it.
        const HttpUrl address = HttpUrl::parse(asked.at("redirect_uri"));
        for (int i = 0; i < 400; ++i) {
            strangers.emplace_back(context).connect(
                {asio::ip::address_v4::loopback(), address.port});
            if (i % 2 == 0) asio::write(strangers.back(), asio::buffer("GET /callback?", 14));
        }
        for (const auto& query :
             {std::string("?code=evil&state=guessed"), std::string(),
              "?code=the-code&state=" + asked.at("state") + "&iss=" + authority.issuer}) {
            HttpRequest request;
            request.url = asked.at("redirect_uri") + query;
            const auto response = co_await client.send(std::move(request));
            statuses.push_back(response->status());
        }
        for (;;) co_await sleep_until(never);  // nobody types anything
    };
    OAuth oauth(context.get_executor(), std::move(settings));
    BOOST_TEST(challenged(oauth));
    BOOST_REQUIRE(statuses.size() >= 2u);  // it may have been left before the third was told
    BOOST_TEST(statuses[0] == 400u);
    BOOST_TEST(statuses[1] == 400u);
    BOOST_TEST(authority.tokens.at(0).at("code") == "the-code");
}

BOOST_AUTO_TEST_CASE(an_answer_of_another_server_or_attempt_redeems_nothing) {
    const auto oauth = make();
    authority.iss = "https://other.example";
    BOOST_TEST(holds(refusal(*oauth), "another authorization server"));
    authority.iss = authority.issuer + "/";
    BOOST_TEST(holds(refusal(*oauth), "another authorization server"));
    authority.iss.reset();
    authority.state = "of-another-attempt";
    BOOST_TEST(holds(refusal(*oauth), "its state differs"));
    BOOST_TEST(authority.tokens.empty());
    BOOST_TEST(authorization(*oauth).empty());
}

BOOST_AUTO_TEST_CASE(metadata_of_another_issuer_is_not_used) {
    authority.metadata["issuer"] = "https://honest.example";
    const auto oauth = make();
    BOOST_TEST(holds(refusal(*oauth), "not of \"" + authority.issuer + "\""));
    authority.metadata["issuer"] = authority.issuer + "/";
    BOOST_TEST(holds(refusal(*oauth), "must be the same text"));
    BOOST_TEST(authority.registrations.empty());
    BOOST_TEST(authority.pages.empty());
}

BOOST_AUTO_TEST_CASE(metadata_of_another_resource_is_not_used) {
    const auto oauth = make();
    for (const std::string& other :
         {std::string("https://evil.example/mcp"), authority.mcp.origin() + "/mc",
          authority.mcp.origin() + "/mcp/deeper", std::string(), authority.url() + "#x"}) {
        authority.resource["resource"] = other;
        BOOST_TEST(holds(refusal(*oauth), "no token is asked for in its name"), other);
    }
    BOOST_TEST(authority.server.seen().empty());
    // All of it, and the same with a slash; it is repeated as it was written.
    for (const auto& same : {authority.mcp.origin(), authority.url() + "/"}) {
        authority.resource["resource"] = same;
        BOOST_TEST(challenged(*oauth));
        BOOST_TEST(authority.pages.back().at("resource") == same);
    }
}

BOOST_AUTO_TEST_CASE(servers_without_pkce_are_refused) {
    const auto oauth = make();
    authority.metadata["code_challenge_methods_supported"] = json::array{"plain"};
    BOOST_TEST(holds(refusal(*oauth), "PKCE"));
    authority.metadata.erase("code_challenge_methods_supported");
    BOOST_TEST(holds(refusal(*oauth), "PKCE"));
    BOOST_TEST(authority.pages.empty());
}

BOOST_AUTO_TEST_CASE(a_server_on_the_internet_cannot_make_us_ask_around_here) {
    // Addresses for documentation: taken for public ones, and nothing answers there.
    auto settings = options();
    settings.url = "https://203.0.113.1/mcp";
    settings.request_timeout = 2s;
    OAuth oauth(context.get_executor(), settings);
    const auto port = std::to_string(authority.mcp.port());
    for (const std::string host : {"127.0.0.1", "localhost", "[::1]", "x.localhost"})
        for (const std::string scheme : {"http://", "https://"})
            BOOST_TEST(holds(refusal(oauth, 401,
                                     "resource_metadata=\"" + scheme + host + ":" + port + "/m\""),
                             "is on this machine"),
                       scheme + host);
    BOOST_TEST(holds(refusal(oauth, 401, R"(resource_metadata="http://198.51.100.1/m")"), "TLS"));
    BOOST_TEST(holds(refusal(oauth, 401, R"(resource_metadata="file:///etc/passwd")"),
                     "no https address"));
    BOOST_TEST(holds(refusal(oauth, 401, R"(resource_metadata="https://a:b@198.51.100.1/m")"),
                     "user name"));
    // Not by their names: by where these lead.
    for (const std::string host :
         {"10.0.0.1", "192.168.1.1", "169.254.169.254", "[fe80::1]", "[fd00::1]", "0.0.0.0",
          "[::ffff:127.0.0.1]", "[64:ff9b::7f00:1]", "100.64.0.1"}) {
        const auto text = refusal(oauth, 401, "resource_metadata=\"https://" + host + "/m\"");
        BOOST_TEST(holds(text, "may not be connected to"), host + ": " + text);
    }
    BOOST_TEST(authority.mcp.seen().empty());
    // A server here may name others here, but nothing else without a public address.
    const auto local = make();
    BOOST_TEST(holds(refusal(*local, 401, R"(resource_metadata="https://169.254.169.254/m")"),
                     "may not be connected to"));
}

BOOST_AUTO_TEST_CASE(a_proxy_is_not_asked_for_what_is_near_it) {
    // The authority stands for the proxy: whatever reaches it was asked for.
    const std::string proxy = authority.mcp.origin();
    for (const char* name : {"http_proxy", "https_proxy"}) ::setenv(name, proxy.c_str(), 1);
    struct Clear {
        ~Clear() {
            for (const char* name : {"http_proxy", "https_proxy"}) ::unsetenv(name);
        }
    } const clear;
    auto settings = options();
    settings.url = "https://203.0.113.1/mcp";
    settings.request_timeout = 5s;
    settings.http.proxies_from_environment = true;
    const auto ask = [&](const std::string& host) {
        OAuth oauth(context.get_executor(), settings);
        return refusal(oauth, 401, "resource_metadata=\"https://" + host + "/m\"");
    };
    for (const std::string host :
         {"metadata.google.internal", "instance-data", "printer", "vault.corp",
          "api.svc.cluster.local", "localhost.localdomain", "localhost.", "127.1", "2130706433",
          "0x7f.0.0.1", "10.0.0.1", "169.254.169.254", "[fd00::1]", "[::ffff:127.0.0.1]"})
        BOOST_TEST(holds(ask(host), "may not be connected to"), host);
    BOOST_TEST(authority.mcp.seen().empty());
    BOOST_TEST(!holds(ask("login.example.net"), "may not be connected to"));
    BOOST_REQUIRE(!authority.mcp.seen().empty());
    BOOST_TEST(authority.mcp.seen().front().target == "login.example.net:443");
    // Who says that the network is meant reaches its names, and still nothing that gives
    // credentials.
    settings.auth["private_network"] = true;
    BOOST_TEST(!holds(ask("vault.corp"), "may not be connected to"));
    BOOST_TEST(holds(ask("metadata.google.internal"), "may not be connected to"));
}

BOOST_AUTO_TEST_CASE(endpoints_are_as_limited_as_metadata) {
    const auto oauth = make();
    for (const char* endpoint :
         {"token_endpoint", "authorization_endpoint", "registration_endpoint"}) {
        const auto right = authority.metadata[endpoint];
        for (const char* bad : {"javascript:alert(1)", "http://203.0.113.1/x",
                                "https://203.0.113.1/x#y", "ftp://x/"}) {
            authority.metadata[endpoint] = bad;
            BOOST_TEST(holds(refusal(*oauth), bad), endpoint);
        }
        authority.metadata[endpoint] = right;
    }
    BOOST_TEST(authority.pages.empty());
}

BOOST_AUTO_TEST_CASE(tokens_go_only_where_tls_protects_them) {
    auto settings = options();
    settings.url = "http://203.0.113.1/mcp";
    OAuth oauth(context.get_executor(), settings);
    BOOST_TEST(holds(refusal(oauth), "not protected by TLS"));
}

BOOST_AUTO_TEST_CASE(an_expired_token_is_refreshed) {
    authority.answer["expires_in"] = 0;
    authority.answer["refresh_token"] = "refresh-1";
    const auto oauth = make();
    challenged(*oauth);
    authority.answer["refresh_token"] = "refresh-2";
    BOOST_TEST(authorization(*oauth) == "Bearer access-token-2");
    BOOST_TEST(authority.tokens.at(1).at("grant_type") == "refresh_token");
    BOOST_TEST(authority.tokens.at(1).at("refresh_token") == "refresh-1");
    BOOST_TEST(authority.tokens.at(1).at("resource") == authority.url());
    authority.answer.erase("refresh_token");  // then the old one stays good
    authority.answer["expires_in"] = 3600;
    BOOST_TEST(authorization(*oauth) == "Bearer access-token-3");
    BOOST_TEST(authority.tokens.at(2).at("refresh_token") == "refresh-2");
    BOOST_TEST(authorization(*oauth) == "Bearer access-token-3");
    BOOST_TEST(authority.pages.size() == 1u);
    // Refused in spite of its time: refreshed first, and asked for again when that is refused too.
    BOOST_TEST(challenged(*oauth, 401, "error=invalid_token"));
    BOOST_TEST(authority.tokens.at(3).at("refresh_token") == "refresh-2");
    BOOST_TEST(authority.pages.size() == 1u);
    authority.refusals = {"invalid_grant"};
    BOOST_TEST(challenged(*oauth, 401, "error=invalid_token"));
    BOOST_TEST(authority.pages.size() == 2u);
}

BOOST_AUTO_TEST_CASE(a_changed_authorization_server_gets_nothing_of_the_old_one) {
    authority.answer["refresh_token"] = "refresh-of-the-first";
    const auto oauth = make();
    challenged(*oauth);
    Authority second(context);
    authority.resource["authorization_servers"] = json::array{second.issuer};
    auto settings = options();
    authority.issuer = second.issuer;  // the answers' iss
    BOOST_TEST(challenged(*oauth));
    BOOST_TEST(second.registrations.size() == 1u);
    BOOST_REQUIRE(second.tokens.size() == 1u);
    for (const auto& message : second.server.seen()) {
        BOOST_TEST(!holds(message.body, "refresh-of-the-first"));
        BOOST_TEST(!holds(message.body, std::to_string(authority.server.port())));
    }
    BOOST_TEST(oauth->status().issuer == second.issuer);
}

BOOST_AUTO_TEST_CASE(a_configured_client_stays_with_its_authorization_server) {
    json::object auth;
    auth["client_id"] = "configured-client";
    auth["client_secret"] = "configured-secret";
    authority.metadata["token_endpoint_auth_methods_supported"] =
        json::array{"client_secret_basic"};
    const auto oauth = make(auth);
    challenged(*oauth);
    BOOST_TEST(authority.registrations.empty());
    BOOST_TEST(authority.authorizations.at(0) ==
               "Basic " + detail::encode_base64("configured-client:configured-secret"));
    Authority second(context);
    authority.resource["authorization_servers"] = json::array{second.issuer};
    const auto text = refusal(*oauth);
    BOOST_TEST(holds(text, "does not get its credentials"), text);
    BOOST_TEST(second.tokens.empty());
    auth["issuer"] = "https://somewhere.else";
    const auto other = make(auth);
    BOOST_TEST(holds(refusal(*other), "does not get its credentials"));
}

BOOST_AUTO_TEST_CASE(more_scopes_are_asked_for_once) {
    const auto oauth = make();
    challenged(*oauth, 401, R"(scope="basic")");
    BOOST_TEST(!challenged(*oauth, 403));
    BOOST_TEST(!challenged(*oauth, 403, "error=insufficient_scope"));
    BOOST_TEST(!challenged(*oauth, 403, R"(error="insufficient_scope", scope="basic")"));
    BOOST_TEST(authority.pages.size() == 1u);
    authority.answer["scope"] = "basic";  // it grants less than it is asked for
    BOOST_TEST(challenged(*oauth, 403, R"(error="insufficient_scope", scope="write")"));
    BOOST_TEST(authority.pages.size() == 2u);
    BOOST_TEST(authority.pages[1].at("scope") == "basic write");
    BOOST_TEST(!challenged(*oauth, 403, R"(error="insufficient_scope", scope="write")"));
    BOOST_TEST(authority.pages.size() == 2u);
}

BOOST_AUTO_TEST_CASE(a_person_is_not_asked_without_end) {
    const auto oauth = make();
    for (int i = 0; i < 3; ++i) BOOST_TEST(challenged(*oauth));
    BOOST_TEST(holds(refusal(*oauth), "again and again"));
    for (int i = 0; i < 50; ++i)
        refusal(*oauth, 403, "error=insufficient_scope, scope=s" + std::to_string(i));
    BOOST_TEST(authority.pages.size() == 3u);
}

BOOST_AUTO_TEST_CASE(many_refused_requests_ask_once) {
    const auto oauth = make();
    int retried = 0;
    auto one = [&]() -> awaitable<void> {
        const bool again = co_await oauth->challenged(401, challenge());
        retried += again;
    };
    for (int i = 0; i < 20; ++i) asio::co_spawn(context, one(), asio::detached);
    auto all = [&]() -> awaitable<void> {
        while (retried < 20) co_await asio::post(context, asio::use_awaitable);
    };
    test::run(context, all());
    BOOST_TEST(authority.pages.size() == 1u);
    // A late one, refused with a token that was replaced meanwhile.
    HttpHeaders sent;
    sent.emplace_back("Authorization", "Bearer an-older-one");
    BOOST_TEST(test::run(context, oauth->challenged(401, challenge(), sent)));
    BOOST_TEST(authority.pages.size() == 1u);
}

BOOST_AUTO_TEST_CASE(a_cancelled_login_leaves_the_way_free) {
    auto settings = options();
    bool hang = true;
    settings.browse = [&](std::string page) -> awaitable<std::string> {
        while (hang) co_await sleep_until(never);
        co_return co_await authority.browse(std::move(page));
    };
    OAuth oauth(context.get_executor(), std::move(settings));
    asio::cancellation_signal stop;
    bool ended = false;
    asio::co_spawn(context, oauth.challenged(401, challenge()),
                   asio::bind_cancellation_slot(stop.slot(), [&](std::exception_ptr error, bool) {
                       ended = error != nullptr;
                   }));
    auto wait = [&]() -> awaitable<void> {
        while (authority.registrations.empty()) co_await asio::post(context, asio::use_awaitable);
        co_await sleep_until(Clock::now() + 50ms);
        stop.emit(asio::cancellation_type::terminal);
        while (!ended) co_await asio::post(context, asio::use_awaitable);
    };
    test::run(context, wait());
    hang = false;
    BOOST_TEST(challenged(oauth));
}

BOOST_AUTO_TEST_CASE(nobody_there_is_told_what_to_do) {
    auto settings = options();
    settings.browse = nullptr;
    OAuth without(context.get_executor(), settings);
    BOOST_TEST(holds(refusal(without), "run `ipybox auth login docs --config FILE`"));
    settings.browse = [](std::string) -> awaitable<std::string> { co_return std::string(); };
    OAuth absent(context.get_executor(), settings);
    for (int i = 0; i < 5; ++i)
        BOOST_TEST(holds(refusal(absent), "run `ipybox auth login docs --config FILE`"));
    settings.browse = [](std::string) -> awaitable<std::string> {
        for (;;) co_await sleep_until(never);
    };
    settings.consent_timeout = 100ms;
    OAuth slow(context.get_executor(), settings);
    BOOST_TEST(holds(refusal(slow), "nobody consented"));
    BOOST_TEST((slow.people_took() >= 100ms));
}

BOOST_AUTO_TEST_CASE(errors_hold_no_secrets) {
    json::object auth;
    auth["client_id"] = "configured-client";
    auth["client_secret"] = "configured-secret";
    const auto oauth = make(auth);
    authority.refusals = {"invalid_request"};
    const auto text = refusal(*oauth);
    BOOST_TEST(holds(text, "about [hidden] and [hidden]"), text);
    challenged(*oauth);
    BOOST_TEST(oauth->hide("access-token-2 configured-secret") == "[hidden] [hidden]");
}

BOOST_AUTO_TEST_CASE(devices_get_tokens_by_a_code) {
    json::object auth;
    auth["grant"] = "device_code";
    auto settings = options(auth);
    std::string shown;
    settings.browse = nullptr;
    settings.show_code = [&](const std::string& url, const std::string& code) {
        shown = url + " " + code;
    };
    authority.refusals = {"authorization_pending"};
    OAuth oauth(context.get_executor(), settings);
    BOOST_TEST(challenged(oauth, 401, "scope=read"));
    BOOST_TEST(shown == authority.issuer + "/verify ABCD-EFGH");
    BOOST_REQUIRE(authority.tokens.size() == 2u);
    BOOST_TEST(authority.tokens[1].at("device_code") == "the-device-code");
    BOOST_TEST(authority.devices.at(0).at("scope") == "read");
    BOOST_TEST(authorization(oauth) == "Bearer access-token-2");
    authority.refusals = {"access_denied"};
    OAuth denied(context.get_executor(), settings);
    BOOST_TEST(holds(refusal(denied), "access_denied"));
}

BOOST_AUTO_TEST_CASE(machines_prove_who_they_are_by_a_signature) {
    json::object auth;
    auth["grant"] = "client_credentials";
    auth["client_id"] = "machine";
    auth["private_key"] = new_key("ED25519");
    auth["key_id"] = "k1";
    const auto oauth = make(auth);
    authority.answer["expires_in"] = 0;
    challenged(*oauth, 401, "scope=read");
    auto asked = authority.tokens.at(0);
    BOOST_TEST(asked["grant_type"] == "client_credentials");
    BOOST_TEST(asked["scope"] == "read");
    const auto header = header_of(asked["client_assertion"]);
    BOOST_TEST(header.at("alg").as_string() == "EdDSA");
    BOOST_TEST(header.at("kid").as_string() == "k1");
    const auto claims = detail::jwt_claims(asked["client_assertion"]);
    BOOST_TEST(claims.at("aud").as_string() == authority.issuer);
    BOOST_TEST(claims.at("sub").as_string() == "machine");
    // Before it is over there is another, without anybody being asked.
    authority.answer["expires_in"] = 3600;
    BOOST_TEST(authorization(*oauth) == "Bearer access-token-2");
    authority.metadata["token_endpoint_auth_signing_alg_values_supported"] = json::array{"RS256"};
    BOOST_TEST(holds(refusal(*oauth), "EdDSA"));
}

BOOST_AUTO_TEST_CASE(what_failed_is_not_tried_again_at_once) {
    json::object auth;
    auth["grant"] = "jwt_bearer";
    auth["client_id"] = "workload";
    auth["assertion"] = "the.signed.assertion";
    auto settings = options(auth);
    settings.failure_holds = 1h;
    OAuth oauth(context.get_executor(), settings);
    authority.refusals = {"invalid_grant"};
    const auto text = refusal(oauth);
    BOOST_TEST(holds(text, "invalid_grant"), text);
    BOOST_TEST(refusal(oauth) == text);
    BOOST_REQUIRE(authority.tokens.size() == 1u);
    BOOST_TEST(authority.tokens[0].at("assertion") == "the.signed.assertion");
}

BOOST_AUTO_TEST_CASE(tokens_are_bound_to_a_key_where_that_is_offered) {
    authority.metadata["dpop_signing_alg_values_supported"] = json::array{"ES256"};
    authority.answer["token_type"] = "DPoP";
    authority.refusals = {"use_dpop_nonce"};
    authority.headers = "DPoP-Nonce: nonce-1\r\n";
    const auto oauth = make();
    challenged(*oauth);
    BOOST_REQUIRE(authority.proofs.size() == 2u);
    BOOST_TEST(!detail::jwt_claims(authority.proofs[0]).contains("nonce"));
    BOOST_TEST(detail::jwt_claims(authority.proofs[1]).at("nonce").as_string() == "nonce-1");
    BOOST_TEST(detail::jwt_claims(authority.proofs[1]).at("htu").as_string() ==
               authority.issuer + "/token");
    const auto headers = test::run(context, oauth->headers("POST", authority.url() + "?q"));
    BOOST_TEST(find_header(headers, "Authorization") == "DPoP access-token-2");
    const auto claims = detail::jwt_claims(std::string(find_header(headers, "DPoP")));
    BOOST_TEST(claims.at("htu").as_string() == authority.url());
    BOOST_TEST(claims.at("ath").as_string() ==
               detail::encode_base64url(detail::sha256("access-token-2")));
    // The resource has nonces of its own; one is not taken twice.
    auto asks = challenge();
    asks[0].second = "DPoP error=\"use_dpop_nonce\"";
    asks.emplace_back("DPoP-Nonce", "nonce-2");
    BOOST_TEST(test::run(context, oauth->challenged(401, asks)));
    const auto again = test::run(context, oauth->headers("POST", authority.url()));
    BOOST_TEST(
        detail::jwt_claims(std::string(find_header(again, "DPoP"))).at("nonce").as_string() ==
        "nonce-2");
    BOOST_TEST(!test::run(context, oauth->challenged(401, asks)));
    BOOST_TEST(authority.pages.size() == 1u);
    // Requests at once: one that had no nonce may be sent again although another had it by then.
    BOOST_TEST(test::run(context, oauth->challenged(401, asks, headers)));
    BOOST_TEST(!test::run(context, oauth->challenged(401, asks, again)));
    // A resource that insists on it takes no other token.
    authority.resource["dpop_bound_access_tokens_required"] = true;
    authority.answer["token_type"] = "Bearer";
    const auto strict = make();
    BOOST_TEST(holds(refusal(*strict), "not bound to a key"));
}

BOOST_AUTO_TEST_CASE(servers_without_metadata_are_those_of_2025_03_26) {
    authority.mcp.handle([&](HttpMessage message, HttpPeerPtr peer) -> awaitable<void> {
        if (message.target == "/register" || message.target == "/token") {
            co_await authority.authorize(message, peer);
        } else {
            co_await peer->respond(404, "", "not here");
        }
    });
    authority.issuer = authority.mcp.origin();
    const auto oauth = make();
    BOOST_TEST(challenged(*oauth));
    BOOST_TEST(authorization(*oauth) == "Bearer access-token-1");
    // Some have no route for anything, and say so in their own way.
    for (const unsigned status : {404u, 405u, 501u}) {
        authority.mcp.handle([status](HttpMessage, HttpPeerPtr peer) -> awaitable<void> {
            co_await peer->respond(status, "", "not here");
        });
        const auto text = refusal(*make());
        BOOST_TEST(holds(text, "says nowhere how to get them"), text);
        BOOST_TEST(holds(text, authority.issuer + "/register, where older servers"), text);
        BOOST_TEST(holds(text, "HTTP status " + std::to_string(status)), text);
        json::object auth;
        auth["client_id"] = "me";
        const auto configured = refusal(*make(auth));
        BOOST_TEST(holds(configured, authority.issuer + "/token answers with HTTP status"),
                   configured);
        BOOST_TEST(holds(configured, "put it into \"headers\""), configured);
    }
}

BOOST_AUTO_TEST_CASE(a_server_in_trouble_is_named_with_what_it_was_asked_for) {
    unsigned status = 503;
    authority.server.handle([&](HttpMessage, HttpPeerPtr peer) -> awaitable<void> {
        co_await peer->respond(status, "", "");
    });
    const auto place = authority.issuer + "/.well-known/oauth-authorization-server";
    const auto text = refusal(*make());
    BOOST_TEST(holds(text, place + ", asked for metadata, answers with HTTP status 503"), text);
    for (status = 501; status > 400; status -= 97) {
        const auto absent = refusal(*make());
        BOOST_TEST(holds(absent, "which has no metadata (asked: " + place), absent);
        BOOST_TEST(holds(absent, "\"headers\""), absent);
    }
    // Its endpoints may fail as well.
    authority.server.handle([&](HttpMessage message, HttpPeerPtr peer) -> awaitable<void> {
        if (message.target != "/register")
            co_await authority.authorize(message, peer);
        else
            co_await peer->respond(500, "", "");
    });
    const auto registering = refusal(*make());
    BOOST_TEST(holds(registering, "to register ipybox: " + authority.issuer +
                                      "/register answers with HTTP status 500"),
               registering);
}

BOOST_AUTO_TEST_CASE(broken_documents_are_errors_and_bounded) {
    const auto oauth = make();
    std::string body;
    authority.mcp.handle([&](HttpMessage, HttpPeerPtr peer) -> awaitable<void> {
        co_await peer->respond(200, "", body);
    });
    const auto servers = [&](const std::string& list) {
        return R"({"resource": ")" + authority.url() + R"(", "authorization_servers": )" + list +
               "}";
    };
    body = std::string(300 * 1024, ' ') + "{}";
    BOOST_TEST(holds(refusal(*oauth), "more than"));
    for (const char* list : {"[]", "{}", "[1]", "\"x\""}) {
        body = servers(list);
        BOOST_TEST(holds(refusal(*oauth), "no authorization server"), list);
    }
    body = servers(R"(["not an address"])");
    BOOST_TEST(holds(refusal(*oauth), "no https address"));
    body = servers("[\"" + authority.issuer + "?x\"]");
    BOOST_TEST(holds(refusal(*oauth), "query"));
    body = std::string(1000, '[');
    BOOST_TEST(refusal(*oauth) != "no error");
    BOOST_TEST(authority.server.seen().empty());
}

BOOST_AUTO_TEST_CASE(tokens_are_kept_for_their_owner_alone) {
    test::TemporaryDirectory directory;
    const auto file = directory.path() / "ipybox" / "tokens.json";
    auto settings = options();
    settings.store = file;
    {
        OAuth oauth(context.get_executor(), settings);
        BOOST_TEST(!oauth.status().token);
        challenged(oauth);
    }
    const auto mode = [](const std::filesystem::path& path) {
        struct stat status{};
        ::stat(path.c_str(), &status);
        return status.st_mode & 07777;
    };
    BOOST_TEST(mode(file) == 0600u);
    BOOST_TEST(mode(file.parent_path()) == 0700u);
    OAuth second(context.get_executor(), settings);
    BOOST_TEST(authorization(second) == "Bearer access-token-1");
    BOOST_TEST(second.status().client_id == "client-of-" + authority.issuer);
    // Not for another resource, client or grant.
    auto other = settings;
    other.url += "2";
    BOOST_TEST(!OAuth(context.get_executor(), other).status().token);
    other = settings;
    other.auth["client_id"] = "another";
    BOOST_TEST(!OAuth(context.get_executor(), other).status().token);
    // By whatever means the person consents, it is one token.
    other = settings;
    other.auth["grant"] = "device_code";
    BOOST_TEST(OAuth(context.get_executor(), other).status().token);
    // The registration is used again, at the address it was made for.
    challenged(second);
    BOOST_TEST(authority.registrations.size() == 1u);
    BOOST_TEST(authority.pages.at(1).at("redirect_uri") ==
               authority.pages.at(0).at("redirect_uri"));

    const auto problem = [&] {
        return error_of([&] { OAuth(context.get_executor(), settings).status(); });
    };
    ::chmod(file.c_str(), 0640);
    BOOST_TEST(holds(problem(), "chmod 600 " + file.string()));
    ::chmod(file.c_str(), 0600);
    ::chmod(file.parent_path().c_str(), 0755);
    BOOST_TEST(holds(problem(), "chmod 700"));
    ::chmod(file.parent_path().c_str(), 0700);
    BOOST_TEST(problem() == "no error");
    std::filesystem::create_hard_link(file, directory.path() / "second-name");
    BOOST_TEST(holds(problem(), "second name"));
    std::filesystem::remove(directory.path() / "second-name");
    std::filesystem::rename(file, directory.path() / "elsewhere");
    std::filesystem::create_symlink(directory.path() / "elsewhere", file);
    BOOST_TEST(holds(problem(), "is a link"));
    std::filesystem::remove(file);
    test::write_file(file, "{broken");
    ::chmod(file.c_str(), 0600);
    BOOST_TEST(holds(problem(), "damaged"));
    std::filesystem::remove_all(file.parent_path());
    std::filesystem::create_directory(directory.path() / "real");
    std::filesystem::create_symlink(directory.path() / "real", file.parent_path());
    BOOST_TEST(holds(problem(), "is a link or no directory"));
}

BOOST_AUTO_TEST_CASE(a_registration_that_was_forgotten_is_made_anew) {
    const auto oauth = make();
    authority.refusals = {"invalid_client"};
    BOOST_TEST(holds(refusal(*oauth), "invalid_client"));
    BOOST_TEST(challenged(*oauth));
    BOOST_TEST(authority.registrations.size() == 2u);
}

BOOST_AUTO_TEST_CASE(a_login_asks_for_what_it_is_told_and_no_more) {
    const auto oauth = make();
    challenged(*oauth, 401, R"(scope="read write")");
    test::run(context, oauth->login(challenge("scope=read")));
    BOOST_TEST(authority.pages.at(1).at("scope") == "read");
    BOOST_TEST(oauth->status().scope == "read");
}

BOOST_AUTO_TEST_CASE(processes_share_what_one_has_got) {
    test::TemporaryDirectory directory;
    auto settings = options();
    settings.store = directory.path() / "ipybox" / "tokens.json";
    authority.answer["expires_in"] = 0;
    authority.answer["refresh_token"] = "refresh-1";
    OAuth first(context.get_executor(), settings), second(context.get_executor(), settings);
    challenged(first);
    BOOST_TEST(second.status().token);
    authority.answer["expires_in"] = 3600;
    authority.answer["refresh_token"] = "refresh-2";
    BOOST_TEST(authorization(first) == "Bearer access-token-2");
    // A refresh token that was used is not used again.
    BOOST_TEST(authorization(second) == "Bearer access-token-2");
    BOOST_TEST(authority.tokens.size() == 2u);
    BOOST_TEST(test::run(context, first.logout()));
    BOOST_TEST(!OAuth(context.get_executor(), settings).status().token);
    BOOST_TEST(!holds(test::read_file(settings.store), "client-of"));
    BOOST_TEST(!test::run(context, first.logout()));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace oauth_tests
