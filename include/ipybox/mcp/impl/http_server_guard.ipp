#pragma once
#include <ipybox/mcp/http_server.hpp>

#include <ipybox/compilation.hpp>
#include <ipybox/detail/hex.hpp>
#include <ipybox/net/proxy_protocol.hpp>
#include <span>

namespace ipybox::mcp {

IPYBOX_DECL net::HttpReply mcp::McpHttpService::check(net::HttpPeer& peer, const Request& head) {
    Reply reply;
    check_head(peer, head, reply);
    return reply;
}

IPYBOX_DECL McpHttpService::Digest McpHttpService::digest(std::string_view text) {
    Digest bytes;
    SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), bytes.data());
    return bytes;
}

IPYBOX_DECL net::HttpReply McpHttpService::refusal(unsigned status, const std::string& why) {
    if (status == 503) return http_error(status, why, rpc_internal_error, "Retry-After: 1\r\n");
    return http_error(status, why);
}

IPYBOX_DECL bool accepts(std::string_view header, std::string_view type) {
    return header.empty() || header.find("*/*") != header.npos ||
           header.find(type) != header.npos ||
           header.find(std::string(type.substr(0, type.find('/'))) + "/*") != header.npos;
}

IPYBOX_DECL std::string_view without_port(std::string_view host) {
    if (host.starts_with('[')) return host.substr(0, host.find(']') + 1);
    return host.substr(0, host.find(':'));
}

IPYBOX_DECL bool is_loopback_name(std::string_view host) {
    const auto name = without_port(host);
    return net::same_without_case(name, "localhost") || name == "127.0.0.1" || name == "[::1]";
}

IPYBOX_DECL bool McpHttpService::host_allowed(std::string_view host) const {
    if (is_loopback_name(host)) return true;
    for (const auto& allowed : options.allowed_hosts)
        if (allowed == "*" || net::same_without_case(allowed, host) ||
            net::same_without_case(allowed, without_port(host)))
            return true;
    return false;
}

IPYBOX_DECL bool McpHttpService::origin_allowed(std::string_view origin,
                                                unsigned short port) const {
    for (const auto& allowed : options.allowed_origins)
        if (allowed == "*" || net::same_without_case(allowed, origin)) return true;
    return net::is_own_origin(origin, port);
}

// Who presents the token; nullopt: nobody we know. Looks at every token, whichever fits.
IPYBOX_DECL std::optional<std::string> McpHttpService::principal_of(
    std::string_view authorization) const {
    if (tokens.empty()) return std::string();
    constexpr std::string_view scheme = "bearer ";
    if (authorization.size() < scheme.size() ||
        !net::same_without_case(authorization.substr(0, scheme.size()), scheme))
        return std::nullopt;
    authorization.remove_prefix(scheme.size());
    while (authorization.starts_with(' ')) authorization.remove_prefix(1);
    const Digest given = digest(authorization);
    bool known = false;
    for (const auto& token : tokens)
        known |= CRYPTO_memcmp(token.data(), given.data(), given.size()) == 0;
    if (!known) return std::nullopt;
    return detail::hex(std::span(given).first(16));
}

// Sets `reply` when the request is refused, or answered, without looking at its body.
IPYBOX_DECL void mcp::McpHttpService::check_head(net::HttpPeer& connection, const Request& head,
                                                 Reply& reply) {
    namespace http = boost::beast::http;
    const std::string_view host = head[http::field::host], origin = head[http::field::origin];
    if (head.count(http::field::host) != 1 || !host_allowed(host)) {
        reply = http_error(403, "this server does not answer for that host; see allowed_hosts");
        return;
    }
    if (head.count(http::field::origin) > 0) {
        if (head.count(http::field::origin) != 1 || !origin_allowed(origin, connection.port)) {
            reply = http_error(
                403, "this server does not serve pages of that origin; see allowed_origins");
            return;
        }
        connection.headers = "Access-Control-Allow-Origin: " + std::string(origin) +
                             "\r\nVary: Origin\r\nAccess-Control-Expose-Headers: Mcp-Session-Id, "
                             "WWW-Authenticate\r\n";
        if (head.method() == http::verb::options) {
            reply = preflight(head);
            return;
        }
    }
    std::string_view target = head.target();
    target = target.substr(0, target.find('?'));
    constexpr std::string_view well_known = "/.well-known/oauth-protected-resource";
    const bool sse = !options.sse_path.empty() && target == options.sse_path;
    const auto& path = sse ? options.sse_path : options.path;
    if (!tokens.empty() && head.method() == http::verb::get && target.starts_with(well_known)) {
        const auto of = target.substr(well_known.size());
        if (of.empty() || of == options.path || (!of.empty() && of == options.sse_path)) {
            reply = metadata(head, of.empty() ? options.path : std::string(of));
            return;
        }
    }
    if (target != path) {
        reply = http_error(404, "there is only " + options.path + " here");
        return;
    }
    if (!principal_of(head[http::field::authorization])) {
        std::string challenge = "WWW-Authenticate: Bearer resource_metadata=\"" +
                                public_base(host) + std::string(well_known) + path + "\"";
        if (head.count(http::field::authorization) > 0) challenge += ", error=\"invalid_token\"";
        reply = http_error(401, "a valid bearer token is needed", rpc_invalid_request,
                           challenge + "\r\n");
        return;
    }
    const std::string_view accept = head[http::field::accept];
    if (head.method() == http::verb::post) {
        std::string_view type = head[http::field::content_type];
        type = type.substr(0, type.find(';'));
        while (type.ends_with(' ')) type.remove_suffix(1);
        if (!net::same_without_case(type, "application/json")) {
            reply = http_error(415, "Content-Type must be application/json");
        } else if (!sse && (!accepts(accept, "application/json") ||
                            !accepts(accept, "text/event-stream"))) {
            reply = http_error(406, "Accept must list application/json and text/event-stream");
        }
    } else if (sse && head.method() == http::verb::get) {
        if (!accepts(accept, "text/event-stream"))
            reply = http_error(406, "Accept must list text/event-stream");
    } else if (!sse && (head.method() == http::verb::get || head.method() == http::verb::delete_)) {
        if (detail::names_modern_version(head["MCP-Protocol-Version"]) ||
            head.count("Mcp-Session-Id") == 0) {
            reply = http_error(405, "only POST without a session", rpc_invalid_request,
                               "Allow: POST, OPTIONS\r\n");
        } else if (head.method() == http::verb::get && !accepts(accept, "text/event-stream")) {
            reply = http_error(406, "Accept must list text/event-stream");
        }
    } else {
        reply = http_error(
            405, "no such method", rpc_invalid_request,
            sse ? "Allow: GET, POST, OPTIONS\r\n" : "Allow: GET, POST, DELETE, OPTIONS\r\n");
    }
}

IPYBOX_DECL McpHttpService::Reply McpHttpService::preflight(const Request& head) const {
    namespace http = boost::beast::http;
    Reply reply;
    reply.status = 204;
    // Parameters of tools may come as headers of any name.
    std::string asked(head[http::field::access_control_request_headers]);
    const bool plain =
        asked.size() < 4096 && std::all_of(
                                   asked.begin(), asked.end(),
                                   [](char c) {
                                       return c == ',' || c == ' ' ||
                                              net::is_http_token(std::string_view(&c, 1));
                                   });
    if (!plain || asked.empty())
        asked =
            "Content-Type, Accept, Authorization, Mcp-Session-Id, MCP-Protocol-Version, "
            "Last-Event-ID, Mcp-Method, Mcp-Name";
    reply.headers =
        "Access-Control-Allow-Methods: GET, POST, DELETE, OPTIONS\r\n"
        "Access-Control-Max-Age: 600\r\nAccess-Control-Allow-Headers: " +
        asked + "\r\n";
    return reply;
}

// How clients reach this server, without the path: behind a proxy, as `resource` says.
IPYBOX_DECL std::string McpHttpService::public_base(std::string_view host) const {
    const auto resource = detail::string_of(options.resource_metadata, "resource");
    const auto scheme = resource.find("://");
    if (scheme == resource.npos) return "http://" + std::string(host);
    return std::string(resource.substr(0, resource.find('/', scheme + 3)));
}

IPYBOX_DECL McpHttpService::Reply McpHttpService::metadata(const Request& head,
                                                           const std::string& path) const {
    Reply reply;
    json::object document = options.resource_metadata;
    if (!document.contains("resource"))
        document.emplace("resource",
                         "http://" + std::string(head[boost::beast::http::field::host]) + path);
    if (!document.contains("bearer_methods_supported"))
        document.emplace("bearer_methods_supported", json::array{"header"});
    reply.status = 200;
    reply.body = detail::write_json(document);
    return reply;
}

}  // namespace ipybox::mcp
