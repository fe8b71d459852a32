#pragma once
// Addresses of HTTP servers.
#include <cstdint>
#include <string>
#include <string_view>

namespace ipybox {

// An absolute address, checked and taken apart.
struct HttpUrl {
    bool tls = false;
    std::string host;  // lower case; an IPv6 address without brackets
    std::uint16_t port = 0;
    std::string path;         // begins with /
    std::string query;        // empty, or begins with ?
    std::string credentials;  // "user:password", decoded

    // Accepts http, https, ws and wss. Throws Error: bad_argument (it is no such address; the text
    // has neither its credentials nor its query).
    static HttpUrl parse(std::string_view text);
    // What a redirect or a link of this resource leads to. Throws Error: bad_argument (it is no
    // address).
    HttpUrl resolve(std::string_view reference) const;

    // host, or host:port where the port is not the scheme's own: the Host header.
    std::string authority() const;
    // Scheme, host and port: what says whether two addresses are one server.
    std::string origin() const { return (tls ? "https://" : "http://") + authority(); }
    // For messages: without query and credentials.
    std::string printable() const { return origin() + path; }
    // The whole address but for the credentials.
    std::string text() const { return origin() + path + query; }
};

}  // namespace ipybox

#ifndef IPYBOX_SEPARATE_COMPILATION
#include <ipybox/net/impl/url.ipp>
#endif
