#pragma once
#include <ipybox/net/http_client.hpp>

#include <openssl/ssl.h>

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/write.hpp>
#include <initializer_list>
#include <ipybox/compilation.hpp>
#include <ipybox/net/impl/http_client_state.hpp>

namespace ipybox {

IPYBOX_DECL bool net::bypasses_proxy(std::string_view list, const std::string& host,
                                     std::uint16_t port) {
    boost::system::error_code error;
    const auto address = asio::ip::make_address(host, error);
    const bool literal = !error;
    if (host == "localhost" || host.ends_with(".localhost") || (literal && address.is_loopback()))
        return true;
    const auto within = [&](const std::string& network) {
        if (network.find('/') == network.npos) {
            const auto other = asio::ip::make_address(network, error);
            return !error && other == address;
        }
        if (address.is_v4()) {
            const auto range = asio::ip::make_network_v4(network, error);
            return !error && range.canonical() ==
                                 asio::ip::make_network_v4(address.to_v4(), range.prefix_length())
                                     .canonical();
        }
        const auto range = asio::ip::make_network_v6(network, error);
        return !error &&
               range.canonical() ==
                   asio::ip::make_network_v6(address.to_v6(), range.prefix_length()).canonical();
    };
    while (!list.empty()) {
        const auto end = std::min(list.find(','), list.size());
        std::string entry = lower_case(trim_blanks(list.substr(0, end)));
        list.remove_prefix(std::min(end + 1, list.size()));
        if (entry == "*") return true;
        if (entry.starts_with('[')) {
            const auto bracket = std::min(entry.find(']'), entry.size() - 1);
            const auto rest = entry.substr(bracket + 1);
            if (rest.starts_with(':') && parse_port(std::string_view(rest).substr(1)) != port)
                continue;
            entry = entry.substr(1, bracket - 1);
        } else if (std::count(entry.begin(), entry.end(), ':') == 1) {
            const auto [name, number] = split_port(entry);
            if (number.empty() || parse_port(number) != port) continue;
            entry = std::string(name);
        }
        if (literal) {
            if (within(entry)) return true;
            continue;
        }
        if (entry.starts_with("*.")) entry.erase(0, 1);
        const bool below_only = entry.starts_with('.');
        if (below_only) entry.erase(0, 1);
        if (entry.empty()) continue;
        if (!below_only && host == entry) return true;
        if (host.size() > entry.size() && host.ends_with(entry) &&
            host[host.size() - entry.size() - 1] == '.')
            return true;
    }
    return false;
}

// What went wrong with a connection, as the caller's exception.
IPYBOX_DECL void HttpClient::fail(const Connection* connection, const HttpUrl& url,
                                  boost::system::error_code error, std::string_view what) {
    if (connection != nullptr && connection->expired)
        throw Error(errc::timed_out, url.printable() + " " + std::string(what) + " in time");
    if (error == asio::error::operation_aborted) throw boost::system::system_error(error);
    std::string why = error == asio::error::eof || error == asio::ssl::error::stream_truncated
                          ? "it closed the connection"
                          : error.message();
    throw Error(errc::http_failed, url.printable() + " " + std::string(what) + ": " + why);
}

// The system's resolver cannot be stopped, so it is not waited for beyond the deadline.
IPYBOX_DECL awaitable<std::vector<asio::ip::tcp::endpoint>> HttpClient::resolve(
    ImplPtr state, std::string host, std::uint16_t port, Clock::time_point deadline) {
    using Tcp = asio::ip::tcp;
    std::vector<Tcp::endpoint> found;
    boost::system::error_code no_address;
    const auto address = asio::ip::make_address(host, no_address);
    if (!no_address) {
        found.emplace_back(address, port);
        co_return found;
    }
    auto lookup = std::make_shared<Lookup>(state->executor);
    lookup->resolver.async_resolve(
        host, std::to_string(port), Tcp::resolver::numeric_service,
        [lookup](boost::system::error_code error, const Tcp::resolver::results_type& results) {
            lookup->error = error;
            for (const auto& entry : results) lookup->found.push_back(entry.endpoint());
            lookup->finished = true;
            lookup->done.notify();
        });
    while (!lookup->finished && Clock::now() < deadline) co_await lookup->done.wait(deadline);
    if (!lookup->finished)
        throw Error(errc::timed_out, "the address of the host " + host + " was not found in time");
    if (lookup->error || lookup->found.empty())
        throw Error(errc::http_failed, "the host " + host + " has no known address (" +
                                           lookup->error.message() +
                                           "): check its spelling and the network");
    co_return std::move(lookup->found);
}

IPYBOX_DECL std::optional<net::HttpProxy> HttpClient::proxy_for(const Impl& state,
                                                                const HttpUrl& url) {
    if (!state.options.proxies_from_environment || !state.options.unix_socket.empty())
        return std::nullopt;
    const auto read =
        [](std::initializer_list<const char*> names) -> std::pair<std::string, std::string> {
        for (const char* name : names)
            if (const char* value = std::getenv(name); value != nullptr && *value != '\0')
                return {name, value};
        return {};
    };
    auto [name, value] = url.tls ? read({"https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"})
                                 : read({"http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"});
    if (value.empty()) return std::nullopt;
    if (net::bypasses_proxy(read({"no_proxy", "NO_PROXY"}).second, url.host, url.port))
        return std::nullopt;
    if (value.find("://") == value.npos) value = "http://" + value;
    if (!value.starts_with("http://"))
        throw Error(errc::bad_argument, "the proxy in " + name +
                                            " is no HTTP proxy: write it as http://HOST:PORT, "
                                            "or name the host in NO_PROXY");
    try {
        const auto parsed = HttpUrl::parse(value);
        return net::HttpProxy{parsed.host, parsed.port, parsed.credentials};
    } catch (const Error& error) {
        throw Error(errc::bad_argument, name + ": " + error.detail());
    }
}

IPYBOX_DECL void HttpClient::refuse_address(const HttpUrl& url) {
    throw Error(errc::http_failed, url.printable() + ": its address may not be connected to");
}

// A name that a proxy will be asked for. Where it leads from there is not known here: the name
// itself decides, and what is known of it.
IPYBOX_DECL awaitable<void> HttpClient::check_name(ImplPtr state, HttpUrl url,
                                                   Clock::time_point deadline) {
    const auto& options = state->options;
    if (options.may_name && !options.may_name(url.host)) refuse_address(url);
    if (!options.may_connect) co_return;
    std::vector<asio::ip::tcp::endpoint> known;
    deadline = std::min(deadline, Clock::now() + std::chrono::seconds(2));
    try {
        known = co_await resolve(state, url.host, url.port, deadline);
    } catch (const Error&) {
        // Where proxies are needed, names of the internet are often unknown.
    }
    for (const auto& endpoint : known)
        if (!options.may_connect(endpoint.address())) refuse_address(url);
}

// Connects; `tunnel` asks a proxy for a tunnel also where TLS does not need one.
IPYBOX_DECL awaitable<void> HttpClient::dial(ImplPtr state, HttpUrl url, bool tunnel,
                                             ConnectionPtr& connected, Clock::time_point deadline) {
    if (state->options.connect_timeout > Duration::zero())
        deadline = std::min(deadline, Clock::now() + state->options.connect_timeout);
    if (!state->options.unix_socket.empty()) {
        connected = co_await dial_local(state, deadline);
        co_return;
    }
    const auto proxy = proxy_for(*state, url);
    const auto& may_connect = state->options.may_connect;
    boost::system::error_code no_address;
    const auto literal = asio::ip::make_address(url.host, no_address);
    if (may_connect && !no_address && !may_connect(literal)) refuse_address(url);
    if (proxy && no_address) co_await check_name(state, url, deadline);
    std::string host = proxy ? proxy->host : url.host;
    const std::uint16_t port = proxy ? proxy->port : url.port;
    auto endpoints = co_await resolve(state, std::move(host), port, deadline);
    if (may_connect && !proxy) {
        std::erase_if(endpoints,
                      [&](const auto& endpoint) { return !may_connect(endpoint.address()); });
        if (endpoints.empty()) refuse_address(url);
    }
    ConnectionPtr connection;
    boost::system::error_code failure;
    for (std::size_t i = 0; i < endpoints.size(); ++i) {
        // No address may use up the time of those after it.
        const auto share = (deadline - Clock::now()) / static_cast<long>(endpoints.size() - i);
        connection = std::make_shared<Connection>(state->executor);
        connection->limit(deadline == never ? never : Clock::now() + share);
        const auto [error] =
            co_await connection->stream.socket().async_connect(endpoints[i], as_result);
        failure = error;
        if (!failure) break;
        if (failure == asio::error::operation_aborted && !connection->expired)
            throw boost::system::system_error(failure);
    }
    if (failure) {
        const std::string whom =
            url.origin() + (proxy ? " by way of the proxy " + proxy->host : "");
        if (connection->expired)
            throw Error(errc::timed_out,
                        "cannot connect to " + whom + " in time; is the address right?");
        throw Error(errc::http_failed, "cannot connect to " + whom + ": " + failure.message() +
                                           (proxy ? "; is the proxy of the environment right?"
                                                  : "; is the server running?"));
    }
    connection->limit(deadline);
    boost::system::error_code ignored;
    connection->stream.socket().set_option(asio::ip::tcp::no_delay(true), ignored);
    connection->stream.socket().set_option(asio::socket_base::keep_alive(true), ignored);
    // A peer that is gone without a word is noticed within two minutes, also on a silent stream.
    constexpr std::array<std::pair<int, int>, 3> probes{
        {{TCP_KEEPIDLE, 60}, {TCP_KEEPINTVL, 20}, {TCP_KEEPCNT, 3}}};
    for (const auto& [option, value] : probes)
        ::setsockopt(connection->stream.socket().native_handle(), IPPROTO_TCP, option, &value,
                     sizeof value);
    if (proxy && (url.tls || tunnel)) co_await open_tunnel(state, connection, url, *proxy);
    if (url.tls) co_await start_tls(state, connection, url);
    connected = std::move(connection);
}

IPYBOX_DECL awaitable<HttpClient::ConnectionPtr> HttpClient::dial_local(
    ImplPtr state, Clock::time_point deadline) {
    using Local = asio::local::stream_protocol;
    auto connection = std::make_shared<Connection>(state->executor);
    Local::socket socket(state->executor);
    const Local::endpoint endpoint(state->options.unix_socket);
    boost::system::error_code error;
    socket.connect(endpoint, error);  // connects at once or not at all
    // From here on it is a stream like any other.
    if (!error)
        connection->stream.socket().assign(asio::ip::tcp::v4(), socket.release(error), error);
    if (error)
        throw Error(errc::http_failed, "cannot connect to the Unix socket: " + error.message());
    connection->limit(deadline);
    co_return connection;
}

IPYBOX_DECL awaitable<void> HttpClient::open_tunnel(ImplPtr state, ConnectionPtr connection,
                                                    HttpUrl url, net::HttpProxy proxy) {
    const std::string host = url.host.find(':') == url.host.npos ? url.host : "[" + url.host + "]";
    const std::string target = host + ":" + std::to_string(url.port);
    std::string head = "CONNECT " + target + " HTTP/1.1\r\nHost: " + target + "\r\n";
    if (!proxy.credentials.empty())
        head += "Proxy-Authorization: Basic " + detail::encode_base64(proxy.credentials) + "\r\n";
    head += "\r\n";
    const auto buffer = asio::buffer(head);
    const std::array<asio::const_buffer, 2> buffers{buffer, asio::const_buffer()};
    auto [error, size] = co_await asio::async_write(connection->stream, buffers, as_result);
    const std::string what = "cannot be reached by way of the proxy " + proxy.host;
    if (error) fail(connection.get(), url, error, what);
    // An answer of 2xx to CONNECT has no body, whatever it says.
    Parser parser(state->options.max_header, true);
    while (!parser.is_header_done()) {
        const auto failure = co_await fill(connection);
        if (failure) fail(connection.get(), url, failure, what);
        boost::system::error_code broken;
        parser.take(connection->input, broken);
        if (broken) fail(connection.get(), url, broken, what);
    }
    if (parser.code / 100 != 2)
        throw Error(errc::http_failed,
                    url.printable() + " " + what + ": it answered with HTTP status " +
                        std::to_string(parser.code) +
                        (parser.code == 407 ? "; put user and password into the proxy's URL" : ""));
    if (connection->input.size() > 0)
        throw Error(errc::http_failed,
                    url.printable() + " " + what + ": it sent data before it was asked");
}

IPYBOX_DECL awaitable<void> HttpClient::start_tls(ImplPtr state, ConnectionPtr connection,
                                                  HttpUrl url) {
    auto& stream = connection->stream;
    stream.tls_.emplace(stream.socket_, state->tls());
    SSL* ssl = stream.tls_->native_handle();
    boost::system::error_code no_address;
    asio::ip::make_address(url.host, no_address);
    bool ready = true;
    if (no_address) {
        // The macro of OpenSSL casts in C's way.
        ready = SSL_ctrl(ssl, SSL_CTRL_SET_TLSEXT_HOSTNAME, TLSEXT_NAMETYPE_host_name,
                         url.host.data()) == 1 &&
                SSL_set1_host(ssl, url.host.c_str()) == 1;
        SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    } else {
        ready = X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), url.host.c_str()) == 1;
    }
    static constexpr unsigned char protocols[] = "\x08http/1.1";
    SSL_set_alpn_protos(ssl, protocols, sizeof(protocols) - 1);
    if (!ready)
        throw Error(errc::bad_argument, url.origin() + ": TLS does not take this host name");
    auto [error] = co_await stream.tls_->async_handshake(asio::ssl::stream_base::client, as_result);
    if (!error) co_return;
    const long verdict = SSL_get_verify_result(ssl);
    if (!connection->expired && verdict != X509_V_OK) {
        std::string text = "the certificate of " + url.origin() +
                           " is not accepted: " + X509_verify_cert_error_string(verdict);
        if (verdict == X509_V_ERR_HOSTNAME_MISMATCH || verdict == X509_V_ERR_IP_ADDRESS_MISMATCH) {
            text += "; use the name that the certificate was made for";
        } else if (verdict == X509_V_ERR_CERT_HAS_EXPIRED ||
                   verdict == X509_V_ERR_CERT_NOT_YET_VALID) {
            text += "; renew it, or set this machine's clock";
        } else {
            text +=
                "; if you trust its issuer, put the issuer's certificate into a PEM file and name "
                "that in "
                "SSL_CERT_FILE";
        }
        throw Error(errc::http_failed, text);
    }
    if (ERR_GET_REASON(static_cast<unsigned long>(error.value())) == SSL_R_WRONG_VERSION_NUMBER &&
        error.category() == asio::error::get_ssl_category())
        throw Error(errc::http_failed,
                    url.origin() + " does not speak TLS; is its URL one with http://?");
    fail(connection.get(), url, error, "did not complete the TLS handshake");
}

}  // namespace ipybox
