#pragma once
#include <ipybox/oauth/oauth.hpp>

#include <boost/asio/ip/address.hpp>
#include <ipybox/compilation.hpp>
#include <ipybox/detail/mcp_versions.hpp>
#include <ipybox/oauth/impl/oauth_state.hpp>

namespace ipybox {

IPYBOX_DECL bool OAuth::Impl::is_loopback(const std::string& host) {
    if (host == "localhost" || host.ends_with(".localhost")) return true;
    boost::system::error_code error;
    const auto address = asio::ip::make_address(host, error);
    return !error && address.is_loopback();
}

// An address that a server named. Throws Error: mcp_protocol.
IPYBOX_DECL HttpUrl OAuth::Impl::checked_url(const std::string& text,
                                             const std::string& what) const {
    const auto refuse = [&](const std::string& why) {
        return Error(errc::mcp_protocol, what + " " + oauth::in_quotes(text) + " " + why);
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

// ---- discovery ----
IPYBOX_DECL awaitable<OAuth::Impl::Reply> OAuth::Impl::fetch(HttpRequest request) {
    const auto deadline = deadline_after(options.request_timeout);
    request.deadline = deadline;
    request.headers.emplace_back("Accept", "application/json");
    Reply reply;
    try {
        auto response = co_await http->send(std::move(request));
        reply.status = response->status();
        reply.headers = response->headers();
        reply.body = co_await response->read_all(max_document, deadline);
    } catch (const Error& error) {
        throw http_failure_as(errc::mcp_connection, error);
    }
    co_return reply;
}

// The resource's own document; nothing when it has none.
IPYBOX_DECL awaitable<std::optional<json::object>> OAuth::Impl::resource_metadata(
    std::string named) {
    std::vector<std::string> places;
    if (!named.empty()) places.push_back(checked_url(named, "the metadata address").text());
    for (auto& place : oauth::resource_metadata_urls(url.origin(), url.path, url.query))
        if (!oauth::contains(places, place)) places.push_back(std::move(place));
    for (const auto& place : places) {
        HttpRequest request;
        request.url = place;
        request.headers.emplace_back("MCP-Protocol-Version", detail::mcp_2025_11_25);
        const Reply reply = co_await fetch(std::move(request));
        if (in_trouble(reply.status)) throw unanswered(place, reply.status);
        if (reply.status != 200) continue;
        // Some servers answer any address with the same page.
        auto document = oauth::parse_document(reply.body);
        if (document) co_return document;
    }
    co_return std::nullopt;
}

IPYBOX_DECL std::string OAuth::Impl::choose_issuer(const std::vector<std::string>& offered) const {
    const auto configured = setting("issuer");
    if (!configured.empty() && oauth::contains(offered, configured)) return configured;
    if (token && oauth::contains(offered, token->issuer)) return token->issuer;
    return offered.front();
}

// The metadata of one authorization server; without any, an empty issuer if that may be.
IPYBOX_DECL awaitable<oauth::ServerMetadata> OAuth::Impl::server_metadata(std::string issuer,
                                                                          bool may_be_absent) {
    const HttpUrl at = checked_url(issuer, "the authorization server");
    if (!at.query.empty())
        throw Error(errc::mcp_protocol, "the authorization server " + oauth::in_quotes(issuer) +
                                            " has a query in its address");
    std::string tried;
    for (const auto& place : oauth::server_metadata_urls(at.origin(), at.path)) {
        HttpRequest request;
        request.url = place;
        request.headers.emplace_back("MCP-Protocol-Version", detail::mcp_2025_11_25);
        const Reply reply = co_await fetch(std::move(request));
        if (in_trouble(reply.status)) throw unanswered(place, reply.status);
        const auto document =
            reply.status == 200 ? oauth::parse_document(reply.body) : std::nullopt;
        if (document) {
            auto server = oauth::ServerMetadata::read(*document, issuer, place);
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
                    "the MCP server names " + oauth::in_quotes(issuer) +
                        " as its authorization server, which has no metadata (asked: " + tried +
                        "): tell those who run the MCP server, or get a token by hand and put it "
                        "into \"headers\"");
    co_return oauth::ServerMetadata();
}

IPYBOX_DECL awaitable<OAuth::Impl::Discovery> OAuth::Impl::discover(std::string metadata_url) {
    if (!usable)
        throw Error(errc::mcp_connection,
                    url.origin() +
                        " wants authorization, and is not protected by TLS: tokens are "
                        "sent only to https addresses and to this machine");
    Discovery found;
    found.audience = resource;
    const auto document = co_await resource_metadata(std::move(metadata_url));
    if (document) {
        found.audience = detail::string_of(*document, "resource");
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
                                                oauth::in_quotes(found.audience) + ", not of " +
                                                oauth::in_quotes(resource) +
                                                ": no token is asked for in its name");
        found.scopes = oauth::list_member(*document, "scopes_supported");
        found.dpop_required = oauth::flag_member(*document, "dpop_bound_access_tokens_required");
        const auto offered = oauth::list_member(*document, "authorization_servers");
        if (offered.empty())
            throw Error(errc::mcp_protocol,
                        "the MCP server's metadata name no authorization server");
        found.server = co_await server_metadata(choose_issuer(offered), false);
    } else {
        found.server = co_await server_metadata(url.origin(), true);
        if (found.server.issuer.empty())
            found.server = oauth::ServerMetadata::at_default_endpoints(url.origin());
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

}  // namespace ipybox
