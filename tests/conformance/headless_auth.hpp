#pragma once
// What the conformance suite's authorization scenarios need: a person who consents at once, and
// the configuration that a scenario's context stands for.
#include <cstdlib>
#include <ipybox/config.hpp>
#include <ipybox/net/http_client.hpp>
#include <memory>
#include <string>
#include <utility>

namespace ipybox::conformance {

// Host::browse without a browser: the suite's consent pages redirect at once.
inline std::function<awaitable<std::string>(std::string)> headless_browse(
    asio::any_io_executor executor) {
    HttpClientOptions options;
    options.max_redirects = 0;  // the redirect is the answer
    auto client = std::make_shared<HttpClient>(executor, options);
    return [client](std::string url) -> awaitable<std::string> {
        HttpRequest request;
        request.url = url;
        request.deadline = deadline_after(std::chrono::seconds(10));
        const auto response = co_await client->send(std::move(request));
        co_return std::string(find_header(response->headers(), "Location"));
    };
}

// server_params' "auth" for the scenario in the environment.
inline json::object auth_of_scenario() {
    const auto variable = [](const char* name) {
        const char* value = std::getenv(name);
        return std::string(value == nullptr ? "" : value);
    };
    const auto scenario = variable("MCP_CONFORMANCE_SCENARIO");
    json::object context;
    if (const auto text = variable("MCP_CONFORMANCE_CONTEXT"); !text.empty())
        context = parse_json(text, "MCP_CONFORMANCE_CONTEXT").as_object();
    json::object auth;
    // Counts only where the authorization server takes such documents.
    auth["client_metadata_url"] = "https://conformance-test.local/client-metadata.json";
    const std::pair<const char*, const char*> names[] = {
        {"client_id", "client_id"}, {"client_secret", "client_secret"},
        {"issuer", "issuer"},       {"private_key_pem", "private_key"},
        {"valid_jwt", "assertion"},
    };
    for (const auto& [from, to] : names)
        if (const auto* value = context.if_contains(from)) auth[to] = *value;
    if (scenario.find("client-credentials") != scenario.npos) auth["grant"] = "client_credentials";
    if (scenario.find("wif-jwt-bearer") != scenario.npos) auth["grant"] = "jwt_bearer";
    if (scenario.find("enterprise-managed") != scenario.npos) {
        auth["grant"] = "identity_assertion";
        json::object provider;
        provider["client_id"] = context.at("idp_client_id");
        provider["id_token"] = context.at("idp_id_token");
        provider["token_endpoint"] = context.at("idp_token_endpoint");
        auth["identity_provider"] = std::move(provider);
    }
    return auth;
}

// No scenario may find what an earlier one left: without these, tokens stay in memory.
inline void forget_token_store() {
    ::unsetenv("XDG_DATA_HOME");
    ::unsetenv("HOME");
}

}  // namespace ipybox::conformance
