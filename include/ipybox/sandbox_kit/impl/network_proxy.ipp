#pragma once
#include <ipybox/sandbox_kit/network_proxy.hpp>

#include <ifaddrs.h>
#include <netinet/in.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/network_v4.hpp>
#include <boost/asio/ip/network_v6.hpp>
#include <boost/asio/write.hpp>
#include <ipybox/compilation.hpp>
#include <optional>
#include <utility>

namespace ipybox {

struct NetworkProxy::Impl {
    Impl(asio::any_io_executor e, NetworkProxyOptions o);

    static std::vector<Rule> parse_rules(const std::vector<std::string>& texts, net::RuleList list);

    static Network parse_network(const std::string& text);

    void decided(NetworkDecision decision) const {
        if (!closed && options.on_decision) options.on_decision(decision);
    }
    void close();

    asio::any_io_executor executor;
    NetworkProxyOptions options;
    std::vector<Rule> allow;
    std::vector<Rule> deny;
    std::vector<Network> networks;
    asio::local::stream_protocol::acceptor acceptor;
    Event freed;
    std::list<Connection*> connections;
    bool closed = false;
};

IPYBOX_DECL NetworkProxy::NetworkProxy(asio::any_io_executor executor, NetworkProxyOptions options)
    : state_(std::make_shared<Impl>(std::move(executor), std::move(options))) {}

IPYBOX_DECL void NetworkProxy::listen(const std::filesystem::path& path, uid_t user) {
    net::listen_privately(state_->acceptor, path, user, "the network proxy");
    asio::co_spawn(state_->executor, net::accept_connections(state_, state_->acceptor, &begin),
                   asio::detached);
}

IPYBOX_DECL void NetworkProxy::stop() { state_->close(); }

IPYBOX_DECL net::AddressBytes NetworkProxy::bytes_of(const asio::ip::address& address) {
    if (address.is_v4()) {
        const auto bytes = address.to_v4().to_bytes();
        return {bytes.data(), bytes.size()};
    }
    const auto bytes = address.to_v6().to_bytes();
    return {bytes.data(), bytes.size()};
}

IPYBOX_DECL NetworkProxy::Impl::Impl(asio::any_io_executor e, NetworkProxyOptions o)
    : executor(std::move(e)), options(std::move(o)), acceptor(executor), freed(executor) {
    allow = parse_rules(options.policy.allow, net::RuleList::allow);
    deny = parse_rules(options.policy.deny, net::RuleList::deny);
    if (options.policy.mode != NetworkPolicy::Mode::allow_list) allow.clear();
    for (const auto& text : options.policy.private_networks)
        networks.push_back(parse_network(text));
    if (!options.resolve) options.resolve = system_resolve;
    if (!options.dial) options.dial = system_dial;
}

IPYBOX_DECL std::vector<NetworkProxy::Rule> NetworkProxy::Impl::parse_rules(
    const std::vector<std::string>& texts, net::RuleList list) {
    std::vector<Rule> rules;
    for (const auto& text : texts) {
        const auto rule = net::parse_domain_rule(text, list);
        if (!rule)
            throw Error(errc::bad_config, "network rule \"" + shown(text) +
                                              "\": accepted are HOST and *.HOST with at least "
                                              "one dot, either with :PORT; no addresses");
        rules.push_back({*rule, text});
    }
    return rules;
}

IPYBOX_DECL NetworkProxy::Network NetworkProxy::Impl::parse_network(const std::string& text) {
    boost::system::error_code error4, error6;
    const auto v4 = asio::ip::make_network_v4(text, error4);
    const auto v6 = asio::ip::make_network_v6(text, error6);
    if (error4 && error6)
        throw Error(errc::bad_config, "private network \"" + shown(text) +
                                          "\": accepted are forms such as 10.1.0.0/16 "
                                          "and fd00:1::/32");
    if (!error4) return {bytes_of(v4.address()), v4.prefix_length()};
    return {bytes_of(v6.address()), v6.prefix_length()};
}

IPYBOX_DECL void NetworkProxy::Impl::close() {
    closed = true;
    boost::system::error_code ignored;
    acceptor.close(ignored);
    for (auto* connection : connections) connection->close();
    freed.notify();
}

IPYBOX_DECL NetworkProxy::Connection::Connection(ImplPtr s,
                                                 asio::local::stream_protocol::socket socket)
    : state(std::move(s)),
      client(std::move(socket)),
      server(state->executor),
      timer(state->executor),
      changed(state->executor),
      place(state->connections.insert(state->connections.end(), this)) {}

IPYBOX_DECL NetworkProxy::Connection::~Connection() {
    state->connections.erase(place);
    state->freed.notify();
}

IPYBOX_DECL void NetworkProxy::Connection::close() {
    closed = true;
    boost::system::error_code ignored;
    client.close(ignored);
    server.close(ignored);
    timer.cancel();
    changed.notify();
}

IPYBOX_DECL void NetworkProxy::Connection::limit(Duration time) {
    deadline = deadline_after(time);
    if (deadline < timer.expiry()) timer.cancel();
}

IPYBOX_DECL std::string NetworkProxy::shown(std::string_view text) {
    std::string result(text.substr(0, 253));
    for (char& c : result)
        if (c <= 0x20 || c >= 0x7F) c = '?';
    return result;
}

IPYBOX_DECL std::string NetworkProxy::address_text(const std::string& bytes) {
    if (bytes.size() == 4) {
        asio::ip::address_v4::bytes_type v4;
        std::copy(bytes.begin(), bytes.end(), v4.begin());
        return asio::ip::address_v4(v4).to_string();
    }
    asio::ip::address_v6::bytes_type v6;
    std::copy(bytes.begin(), bytes.end(), v6.begin());
    return asio::ip::address_v6(v6).to_string();
}

IPYBOX_DECL awaitable<NetworkProxy::Addresses> NetworkProxy::system_resolve(std::string host) {
    Tcp::resolver resolver(co_await asio::this_coro::executor);
    const auto found = co_await resolver.async_resolve(host, "", Tcp::resolver::address_configured,
                                                       asio::use_awaitable);
    Addresses addresses;
    for (const auto& entry : found) addresses.push_back(entry.endpoint().address());
    co_return addresses;
}

IPYBOX_DECL awaitable<NetworkProxy::Tcp::socket> NetworkProxy::system_dial(Tcp::endpoint to) {
    Tcp::socket socket(co_await asio::this_coro::executor);
    co_await socket.async_connect(to, asio::use_awaitable);
    co_return socket;
}

IPYBOX_DECL std::vector<net::AddressBytes> NetworkProxy::own_addresses() {
    std::vector<net::AddressBytes> own;
    ifaddrs* list = nullptr;
    if (::getifaddrs(&list) != 0)
        throw Error(errc::io_error, "this machine's addresses cannot be listed");
    for (const auto* entry = list; entry != nullptr; entry = entry->ifa_next) {
        if (entry->ifa_addr == nullptr) continue;
        if (entry->ifa_addr->sa_family == AF_INET)
            own.emplace_back(&reinterpret_cast<const sockaddr_in*>(entry->ifa_addr)->sin_addr, 4u);
        if (entry->ifa_addr->sa_family == AF_INET6)
            own.emplace_back(&reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr)->sin6_addr,
                             16u);
    }
    ::freeifaddrs(list);
    return own;
}

IPYBOX_DECL void NetworkProxy::begin(const ImplPtr& state,
                                     asio::local::stream_protocol::socket socket) {
    auto connection = std::make_shared<Connection>(state, std::move(socket));
    connection->limit(state->options.head_timeout);
    watch(connection);
    asio::co_spawn(state->executor, serve(std::move(connection)), asio::detached);
}

IPYBOX_DECL void NetworkProxy::watch(ConnectionPtr connection) {
    auto& timer = connection->timer;
    timer.expires_at(connection->deadline);
    timer.async_wait([connection = std::move(connection)](boost::system::error_code) mutable {
        if (connection->closed) return;
        if (Clock::now() >= connection->deadline) return connection->close();
        watch(std::move(connection));
    });
}

IPYBOX_DECL awaitable<void> NetworkProxy::serve(ConnectionPtr connection) {
    try {
        const bool any = co_await fill(connection, 1);
        const char first = any ? connection->input.front() : '\0';
        if (first == 5) {
            co_await serve_socks(connection);
        } else if ((first >= 'A' && first <= 'Z') || (first >= 'a' && first <= 'z')) {
            co_await serve_http(connection);
        } else if (any) {
            connection->state->decided({"", 0, false, "neither HTTP nor SOCKS5"});
        }
    } catch (const std::exception& error) {
        connection->state->decided({"", 0, false, error.what()});
    }
    connection->close();
}

IPYBOX_DECL awaitable<bool> NetworkProxy::fill(ConnectionPtr connection, std::size_t size) {
    while (connection->input.size() < size) {
        char chunk[4096];
        auto [error, count] =
            co_await connection->client.async_read_some(asio::buffer(chunk), as_result);
        if (error || connection->closed) co_return false;
        connection->input.append(chunk, count);
    }
    co_return true;
}

IPYBOX_DECL awaitable<NetworkProxy::Refusal> NetworkProxy::connect(ConnectionPtr connection,
                                                                   std::string asked,
                                                                   std::uint16_t port) {
    const auto state = connection->state;
    connection->limit(Duration::zero());  // the deadline below is told to the client
    const std::string host = shown(asked);
    std::string why;
    Refusal refusal = judge(*state, asked, port, why);
    if (refusal.status != 0) {
        state->decided({host, port, false, refusal.reason});
        co_return refusal;
    }
    const std::string name = *net::canonical_host(asked);
    const auto deadline = deadline_after(state->options.connect_timeout);
    asio::co_spawn(state->executor, look_up(connection, name), asio::detached);
    while (!connection->looked_up && !connection->closed && Clock::now() < deadline)
        co_await connection->changed.wait(deadline);
    if (!connection->looked_up) connection->lookup_problem = "no answer in time";
    const Addresses addresses = connection->addresses;
    refusal = judge_addresses(*state, name, addresses, connection->lookup_problem);
    if (refusal.status != 0) {
        state->decided({host, port, false, refusal.reason});
        co_return refusal;
    }
    state->decided({host, port, true, why});
    std::string problem = "no answer in time";
    for (std::size_t i = 0; i < addresses.size() && !connection->closed; ++i) {
        // An address that swallows everything leaves time for the others.
        const auto share = (deadline - Clock::now()) / static_cast<int>(addresses.size() - i);
        const auto limit = deadline == never ? never : Clock::now() + share;
        auto work = dial(connection, Tcp::endpoint(addresses[i], port), problem);
        auto end = connection->changed.wait(limit);
        co_await ends_first(std::move(work), std::move(end));
        if (connection->server.is_open()) {
            connection->limit(state->options.idle_timeout);
            co_return refusal;
        }
    }
    refusal.status = problem == "no answer in time" ? 504 : 502;
    refusal.socks = problem == "no answer in time" ? socks_unreachable : socks_refused;
    refusal.reason = host + ":" + std::to_string(port) + " cannot be connected to: " + problem;
    co_return refusal;
}

IPYBOX_DECL NetworkProxy::Refusal NetworkProxy::judge(const Impl& state, const std::string& asked,
                                                      std::uint16_t port, std::string& why) {
    Refusal refusal{403, socks_not_allowed, "", ""};
    const auto name = net::canonical_host(asked);
    if (!name) {
        refusal.reason = "\"" + shown(asked) + "\" is not a host name";
        refusal.remedy = "The sandbox reaches hosts by their DNS name only, not by address.";
        return refusal;
    }
    const std::string where = *name + ":" + std::to_string(port);
    if (port == 0) {
        refusal.reason = where + " is no place to connect to";
        return refusal;
    }
    for (const auto& [rule, text] : state.deny)
        if (rule.matches(*name, port)) {
            refusal.reason = where + " is denied to the sandbox by the rule \"" + text + "\"";
            refusal.remedy =
                "Remove that rule from network.deniedDomains of the sandbox's configuration to "
                "allow it.";
            return refusal;
        }
    for (const auto& [rule, text] : state.allow)
        if (rule.matches(*name, port)) {
            why = "allowed by the rule \"" + text + "\"";
            return {};
        }
    refusal.reason = where + " is not in the sandbox's network allow-list";
    refusal.remedy = "To allow it, add \"" + *name +
                     "\" to network.allowedDomains of the sandbox's configuration.";
    return refusal;
}

IPYBOX_DECL NetworkProxy::Refusal NetworkProxy::judge_addresses(const Impl& state,
                                                                const std::string& name,
                                                                const Addresses& addresses,
                                                                const std::string& problem) {
    Refusal refusal{502, socks_unreachable, "", ""};
    if (addresses.empty()) {
        refusal.reason = name + " could not be resolved" + (problem.empty() ? "" : ": " + problem);
        return refusal;
    }
    const auto own = own_addresses();
    for (const auto& address : addresses) {
        const auto bytes = bytes_of(address);
        const auto kind = net::classify_address(bytes, own);
        if (kind == net::AddressKind::public_) continue;
        const auto opened = [&](const Network& network) {
            return bytes.within(network.address, network.prefix) &&
                   (kind == net::AddressKind::private_ ||
                    (kind == net::AddressKind::metadata && network.prefix == 8 * bytes.size));
        };
        if (std::any_of(state.networks.begin(), state.networks.end(), opened)) continue;
        refusal.status = 403;
        refusal.socks = socks_not_allowed;
        refusal.reason =
            name + " leads to " + address.to_string() + ", " + std::string(describe(kind));
        refusal.remedy = kind == net::AddressKind::private_
                             ? "To allow it, name its network by --private-network, or in the "
                               "sandbox's option private_networks."
                             : "The sandbox may not reach such addresses.";
        return refusal;
    }
    return {};
}

IPYBOX_DECL awaitable<void> NetworkProxy::look_up(ConnectionPtr connection, std::string name) {
    try {
        Addresses found = co_await connection->state->options.resolve(name);
        connection->addresses = std::move(found);
    } catch (const boost::system::system_error& error) {
        connection->lookup_problem = error.code().message();
    } catch (const std::exception& error) {
        connection->lookup_problem = error.what();
    }
    connection->looked_up = true;
    connection->changed.notify();
}

IPYBOX_DECL awaitable<void> NetworkProxy::dial(ConnectionPtr connection, Tcp::endpoint to,
                                               std::string& problem) {
    try {
        Tcp::socket socket = co_await connection->state->options.dial(to);
        boost::system::error_code ignored;
        socket.set_option(Tcp::no_delay(true), ignored);
        if (!connection->closed) connection->server = std::move(socket);
    } catch (const boost::system::system_error& error) {
        if (error.code() != asio::error::operation_aborted) problem = error.code().message();
    } catch (const std::exception& error) {
        problem = error.what();
    }
}

IPYBOX_DECL awaitable<void> NetworkProxy::serve_http(ConnectionPtr connection) {
    const auto state = connection->state;
    std::size_t length = 0;
    for (std::size_t scanned = 0; length == 0;) {
        length = net::head_length(connection->input, scanned);
        if (length != 0 || connection->input.size() > state->options.max_head) break;
        const std::size_t wanted = connection->input.size() + 1;
        const bool more = co_await fill(connection, wanted);
        if (!more) co_return;
    }
    net::ProxyRequest request;
    Refusal refusal;
    if (length == 0 || (length != net::broken_line && length > state->options.max_head)) {
        refusal = {431, 0, "the head of the request is too large", ""};
    } else {
        auto problem = length == net::broken_line
                           ? std::string("a line that does not end in CR LF")
                           : request.parse(std::string_view(connection->input).substr(0, length));
        if (!problem.empty()) refusal = {400, 0, "bad request: " + problem, ""};
    }
    if (refusal.status != 0) {
        state->decided({shown(request.host), request.port, false, refusal.reason});
    } else {
        connection->input.erase(0, length);
        refusal = co_await connect(connection, request.host, request.port);
    }
    if (refusal.status != 0) {
        co_await refuse_http(connection, std::move(refusal), request.method == "HEAD");
    } else if (request.tunnel) {
        const std::string established = "HTTP/1.1 200 Connection established\r\n\r\n";
        co_await asio::async_write(connection->client, asio::buffer(established), as_result);
        co_await tunnel(connection);
    } else {
        co_await forward(connection, std::move(request));
    }
}

IPYBOX_DECL awaitable<void> NetworkProxy::refuse_http(ConnectionPtr connection, Refusal refusal,
                                                      bool head_only) {
    std::string body = "ipybox: " + refusal.reason + ".\n";
    if (!refusal.remedy.empty()) body += refusal.remedy + "\n";
    std::string text =
        "HTTP/1.1 " + std::to_string(refusal.status) + " " + refusal.reason +
        "\r\nContent-Type: text/plain\r\nContent-Length: " + std::to_string(body.size()) +
        "\r\nConnection: close\r\n\r\n";
    if (!head_only) text += body;
    connection->limit(connection->state->options.head_timeout);
    co_await asio::async_write(connection->client, asio::buffer(text), as_result);
    co_await finish(connection);
}

IPYBOX_DECL awaitable<void> NetworkProxy::finish(ConnectionPtr connection) {
    boost::system::error_code ignored;
    connection->server.close(ignored);
    connection->client.shutdown(asio::socket_base::shutdown_send, ignored);
    connection->limit(std::chrono::seconds(5));
    bool gone = connection->closed;
    while (!gone) {
        char chunk[4096];
        auto [error, count] =
            co_await connection->client.async_read_some(asio::buffer(chunk), as_result);
        gone = error.failed();
    }
}

IPYBOX_DECL awaitable<void> NetworkProxy::forward(ConnectionPtr connection,
                                                  net::ProxyRequest request) {
    const std::string head = std::move(request.head);
    auto [failed, written] =
        co_await asio::async_write(connection->server, asio::buffer(head), as_result);
    if (failed) co_return;
    asio::co_spawn(connection->state->executor, send_body(connection, request.body, request.length),
                   asio::detached);
    std::string problem = co_await relay_response_head(connection);
    if (connection->closed) co_return;
    if (!problem.empty()) {
        Refusal refusal{502, 0, "the server's answer cannot be passed on: " + problem, ""};
        co_await refuse_http(connection, std::move(refusal), request.method == "HEAD");
        co_return;
    }
    co_await pump(connection, connection->server, connection->client);
    co_await finish(connection);
}

IPYBOX_DECL awaitable<std::string> NetworkProxy::relay_response_head(ConnectionPtr connection) {
    auto& text = connection->output;
    std::size_t scanned = 0;
    for (;;) {
        const std::size_t length = net::head_length(text, scanned);
        if (length == net::broken_line) co_return "a line that does not end in CR LF";
        if (length == 0 && text.size() <= connection->state->options.max_head) {
            char chunk[4096];
            auto [error, count] =
                co_await connection->server.async_read_some(asio::buffer(chunk), as_result);
            if (error) co_return "the connection ended before it";
            connection->limit(connection->state->options.idle_timeout);
            text.append(chunk, count);
            continue;
        }
        if (length == 0) co_return "its head is too large";
        unsigned status = 0;
        std::string rewritten;
        std::string problem =
            net::rewrite_response(std::string_view(text).substr(0, length), status, rewritten);
        if (!problem.empty()) co_return problem;
        text.erase(0, length);
        scanned = 0;
        co_await asio::async_write(connection->client, asio::buffer(rewritten), as_result);
        if (status >= 200) co_return std::string();
    }
}

IPYBOX_DECL awaitable<void> NetworkProxy::send_body(ConnectionPtr connection,
                                                    net::ProxyRequest::Body kind,
                                                    std::uint64_t length) {
    using Body = net::ProxyRequest::Body;
    net::ChunkedBody chunked;
    std::string& input = connection->input;
    bool done = kind == Body::none || (kind == Body::length && length == 0);
    while (!done) {
        const bool more = co_await fill(connection, 1);
        if (!more) co_return connection->close();
        connection->limit(connection->state->options.idle_timeout);
        std::string part;
        if (kind == Body::length) {
            part = input.substr(
                0, static_cast<std::size_t>(std::min<std::uint64_t>(length, input.size())));
            length -= part.size();
            done = length == 0;
        } else {
            const auto progress = chunked.put(input, part);
            if (progress == net::ChunkedBody::State::bad) co_return connection->close();
            done = progress == net::ChunkedBody::State::done;
        }
        input.clear();
        auto [error, written] =
            co_await asio::async_write(connection->server, asio::buffer(part), as_result);
        if (error) co_return;  // the server may have answered all the same
    }
    boost::system::error_code error;
    while (!error) {
        char chunk[4096];
        auto [failed, count] =
            co_await connection->client.async_read_some(asio::buffer(chunk), as_result);
        error = failed;
    }
    // Whoever hung up, or closed his half only, does not wait for an answer for long.
    if (error == asio::error::eof) connection->limit(connection->state->options.head_timeout);
}

IPYBOX_DECL awaitable<void> NetworkProxy::tunnel(ConnectionPtr connection) {
    connection->flowing = 2;
    asio::co_spawn(connection->state->executor, flow_out(connection), asio::detached);
    const bool whole = co_await pump(connection, connection->server, connection->client);
    ended(*connection, whole);
    while (connection->flowing > 0 && !connection->closed) co_await connection->changed.wait();
}

IPYBOX_DECL awaitable<void> NetworkProxy::flow_out(ConnectionPtr connection) {
    const bool whole = co_await pump(connection, connection->client, connection->server);
    ended(*connection, whole);
}

IPYBOX_DECL void NetworkProxy::ended(Connection& connection, bool whole) {
    --connection.flowing;
    if (!whole) connection.close();
    connection.changed.notify();
}

template <class From, class To>
awaitable<bool> NetworkProxy::pump(ConnectionPtr connection, From& from, To& to) {
    constexpr bool outward = std::is_same_v<To, Tcp::socket>;
    std::string& ahead = outward ? connection->input : connection->output;
    const auto idle = connection->state->options.idle_timeout;
    if (!ahead.empty()) {
        auto [error, written] = co_await asio::async_write(to, asio::buffer(ahead), as_result);
        if (error) co_return false;
        ahead = {};
    }
    std::vector<char> buffer(relay_buffer);
    for (;;) {
        auto [error, size] = co_await from.async_read_some(asio::buffer(buffer), as_result);
        if (error == asio::error::eof) break;
        if (error) co_return false;
        connection->limit(idle);
        auto [failed, written] =
            co_await asio::async_write(to, asio::buffer(buffer.data(), size), as_result);
        if (failed) co_return false;
        connection->limit(idle);
    }
    boost::system::error_code ignored;
    to.shutdown(asio::socket_base::shutdown_send, ignored);
    co_return !connection->closed;
}

IPYBOX_DECL awaitable<void> NetworkProxy::serve_socks(ConnectionPtr connection) {
    std::string& input = connection->input;
    bool more = co_await fill(connection, 2);
    if (!more) co_return;
    std::size_t used = 2u + byte_at(input, 1);
    more = co_await fill(connection, used);
    if (!more) co_return;
    const bool open = std::string_view(input).substr(2, used - 2).find('\0') != input.npos;
    std::string reply("\5\0", 2);
    if (!open) reply[1] = '\xFF';
    input.erase(0, used);
    co_await asio::async_write(connection->client, asio::buffer(reply), as_result);
    if (!open) co_return;
    more = co_await fill(connection, 5);
    if (!more) co_return;
    const unsigned char command = byte_at(input, 1), type = byte_at(input, 3);
    const bool known = type == socks_v4 || type == socks_name || type == socks_v6;
    if (byte_at(input, 0) != 5 || byte_at(input, 2) != 0 || !known) {
        connection->state->decided({"", 0, false, "not a SOCKS5 request"});
        co_return;
    }
    const std::size_t start = type == socks_name ? 5 : 4;
    std::size_t size = type == socks_v4 ? 4 : 16;
    if (type == socks_name) size = byte_at(input, 4);
    used = start + size + 2;
    more = co_await fill(connection, used);
    if (!more) co_return;
    const int high = byte_at(input, used - 2), low = byte_at(input, used - 1);
    const auto port = static_cast<std::uint16_t>(high << 8 | low);
    std::string host = input.substr(start, size);
    if (type != socks_name) host = address_text(host);
    input.erase(0, used);
    Refusal refusal;
    if (command != 1) refusal = {403, socks_command, "a SOCKS command other than CONNECT", ""};
    if (type != socks_name)
        refusal = {403, socks_address_type, "an address; SOCKS needs host names (socks5h://)", ""};
    if (refusal.status != 0)
        connection->state->decided({shown(host), port, false, refusal.reason});
    else
        refusal = co_await connect(connection, std::move(host), port);
    reply.assign("\5\0\0\1\0\0\0\0\0\0", 10);
    reply[1] = static_cast<char>(refusal.socks);
    co_await asio::async_write(connection->client, asio::buffer(reply), as_result);
    if (refusal.status == 0)
        co_await tunnel(connection);
    else
        co_await finish(connection);
}

IPYBOX_DECL Channel open_proxy(std::unique_ptr<NetworkProxy>& proxy, asio::any_io_executor executor,
                               Logger logger, const SandboxPolicy& policy, const Sandbox& sandbox,
                               const std::filesystem::path& path,
                               std::function<void(const Violation&)> on_refusal) {
    NetworkProxyOptions options;
    options.policy = policy.network;
    options.on_decision = [logger = std::move(logger),
                           on_refusal = std::move(on_refusal)](const NetworkDecision& decision) {
        logger(decision.allowed ? LogLevel::info : LogLevel::warning,
               "network: " + decision.host + ":" + std::to_string(decision.port) + " " +
                   (decision.allowed ? "allowed" : "refused") + ": " + decision.reason);
        if (!decision.allowed && on_refusal) on_refusal({"network", decision.reason});
    };
    proxy.reset();
    std::error_code ignored;
    std::filesystem::remove(path, ignored);
    proxy = std::make_unique<NetworkProxy>(std::move(executor), std::move(options));
    proxy->listen(path, sandbox.guest_user(policy));
    Channel channel;
    channel.name = network_channel;
    channel.host_path = path;
    channel.kind = Channel::Kind::socket;
    return channel;
}

}  // namespace ipybox
