#pragma once
#include <ipybox/net/url.hpp>

#include <algorithm>
#include <boost/url/parse.hpp>
#include <boost/url/url.hpp>
#include <boost/url/url_view.hpp>
#include <ipybox/compilation.hpp>
#include <ipybox/error.hpp>
#include <ipybox/net/domain_rule.hpp>
#include <ipybox/net/proxy_protocol.hpp>

namespace ipybox {

IPYBOX_DECL HttpUrl HttpUrl::parse(std::string_view text) {
    // Only the part that holds no secrets, and no control characters.
    const auto shown = [&] {
        auto rest = text.substr(0, std::min(text.find_first_of("?#"), std::size_t{200}));
        std::string scheme;
        if (const auto at = rest.find("://"); at != rest.npos) {
            scheme = rest.substr(0, at + 3);
            rest.remove_prefix(at + 3);
        }
        const auto end = rest.find('/');
        if (const auto at = rest.substr(0, end).rfind('@'); at != rest.npos)
            rest.remove_prefix(at + 1);
        for (const char c : rest)
            scheme += static_cast<unsigned char>(c) < 0x20 || c == 0x7F ? '?' : c;
        return "the URL \"" + scheme + "\"";
    };
    const auto refuse = [&](const std::string& why) {
        return Error(errc::bad_argument, shown() + " " + why);
    };
    const auto parsed = boost::urls::parse_uri(text);
    if (!parsed) throw refuse("is malformed: write it as https://HOST/PATH");
    const boost::urls::url_view& view = *parsed;
    HttpUrl url;
    const auto scheme =
        net::lower_case(std::string_view(view.scheme().data(), view.scheme().size()));
    url.tls = scheme == "https" || scheme == "wss";
    if (!url.tls && scheme != "http" && scheme != "ws")
        throw refuse("begins with neither http:// nor https://");
    url.host = net::lower_case(view.host_address());
    const bool literal = view.host_type() == boost::urls::host_type::ipv4 ||
                         view.host_type() == boost::urls::host_type::ipv6;
    const bool name = view.host_type() == boost::urls::host_type::name && !url.host.empty() &&
                      url.host.size() <= 253 &&
                      std::all_of(url.host.begin(), url.host.end(), [](char c) {
                          return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' ||
                                 c == '.' || c == '_';
                      });
    if (!literal && !name) throw refuse("names no proper host");
    url.port = url.tls ? 443 : 80;
    // Boost.URL 1.81 takes ports beyond 65535, and what is no port for a path.
    const auto port = view.port();
    if (!port.empty()) {
        const auto number = net::parse_port(std::string_view(port.data(), port.size()));
        if (!number) throw refuse("has a port that is none");
        url.port = *number;
    }
    const auto target = view.encoded_path();
    url.path.assign(target.data(), target.size());
    if (!url.path.empty() && url.path.front() != '/') throw refuse("has a port that is none");
    if (url.path.empty()) url.path = "/";
    if (view.has_query())
        url.query = "?" + std::string(view.encoded_query().data(), view.encoded_query().size());
    if (view.has_userinfo()) url.credentials = view.user() + ":" + view.password();
    return url;
}

IPYBOX_DECL HttpUrl HttpUrl::resolve(std::string_view reference) const {
    boost::urls::url base(text());
    const auto parsed = boost::urls::parse_uri_reference(reference);
    if (!parsed || !base.resolve(*parsed))
        throw Error(errc::bad_argument, origin() + " gives an address that is malformed");
    return parse(std::string_view(base.buffer().data(), base.buffer().size()));
}

IPYBOX_DECL std::string HttpUrl::authority() const {
    std::string result = host.find(':') == host.npos ? host : "[" + host + "]";
    if (port != (tls ? 443 : 80)) result += ":" + std::to_string(port);
    return result;
}

}  // namespace ipybox
