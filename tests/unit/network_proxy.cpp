#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/asio/connect.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <boost/test/unit_test.hpp>
#include <ipybox/sandbox_kit/network_proxy.hpp>
#include <map>

#include "test_support.hpp"

namespace network_proxy_tests {

namespace {
using namespace ipybox;
using namespace std::string_literals;
using Tcp = asio::ip::tcp;
using Unix = asio::local::stream_protocol;
using std::chrono::milliseconds;
using std::chrono::seconds;

// Reads until the other side ends, or an error says that it is gone.
template <class Socket>
awaitable<std::string> read_all(Socket& socket) {
    std::string text;
    char chunk[8192];
    for (;;) {
        auto [error, size] = co_await socket.async_read_some(asio::buffer(chunk), as_result);
        if (error) co_return text;
        text.append(chunk, size);
    }
}

template <class Socket>
awaitable<std::string> read_until(Socket& socket, std::string end) {
    std::string text;
    char byte;
    while (!text.ends_with(end)) {
        auto [error, size] = co_await socket.async_read_some(asio::buffer(&byte, 1), as_result);
        if (error) co_return text;
        text += byte;
    }
    co_return text;
}

template <class Socket>
awaitable<void> write(Socket& socket, std::string text) {
    co_await asio::async_write(socket, asio::buffer(text), as_result);
}

asio::ip::address address(const char* text) { return asio::ip::make_address(text); }

// A proxy whose every name and address leads to one server on this machine's loopback.
struct Fixture {
    asio::io_context context;
    test::TemporaryDirectory directory;
    std::string path = (directory.path() / "network").string();
    Tcp::acceptor origin{context, Tcp::endpoint(asio::ip::address_v4::loopback(), 0)};
    NetworkProxyOptions options;
    std::unique_ptr<NetworkProxy> proxy;
    // What the proxy did.
    std::vector<NetworkDecision> decisions;
    std::vector<std::string> looked_up;
    std::vector<Tcp::endpoint> dialled;
    // What the names lead to, and how the server behaves.
    std::map<std::string, std::vector<asio::ip::address>> names;
    std::function<awaitable<void>(Tcp::socket&)> behaviour;
    std::string received;

    Fixture() {
        options.policy.mode = NetworkPolicy::Mode::allow_list;
        options.policy.allow = {"example.com", "*.example.com", "ported.org:8443"};
        options.on_decision = [this](const NetworkDecision& decision) {
            decisions.push_back(decision);
        };
        options.resolve = [this](std::string host) { return resolve(std::move(host)); };
        options.dial = [this](Tcp::endpoint to) { return dial(to); };
        for (const char* name : {"example.com", "a.example.com", "ported.org", "evil.org"})
            names[name] = {address("93.184.215.14")};
        behaviour = [this](Tcp::socket& socket) { return echo(socket); };
    }
    ~Fixture() {
        proxy.reset();
        origin.close();
        context.restart();
        context.run_for(seconds(30));
        BOOST_TEST(context.stopped(), "something outlived the proxy");
    }

    void start() {
        proxy = std::make_unique<NetworkProxy>(context.get_executor(), options);
        proxy->listen(path, ::geteuid());
        asio::co_spawn(context, accept(), asio::detached);
    }
    // For tests that change the options and start again.
    void restart() {
        proxy.reset();
        ::unlink(path.c_str());
        decisions.clear();
        looked_up.clear();
        dialled.clear();
        received.clear();
        proxy = std::make_unique<NetworkProxy>(context.get_executor(), options);
        proxy->listen(path, ::geteuid());
    }

    awaitable<std::vector<asio::ip::address>> resolve(std::string host) {
        looked_up.push_back(host);
        const auto found = names.find(host);
        if (found == names.end()) throw boost::system::system_error(asio::error::host_not_found);
        co_return found->second;
    }
    awaitable<Tcp::socket> dial(Tcp::endpoint to) {
        dialled.push_back(to);
        const auto real = origin.local_endpoint();
        Tcp::socket socket(context);
        co_await socket.async_connect(real, asio::use_awaitable);
        co_return socket;
    }

    awaitable<void> accept() {
        for (;;) {
            auto [error, socket] = co_await origin.async_accept(as_result);
            if (error) co_return;
            asio::co_spawn(context, behave(std::move(socket)), asio::detached);
        }
    }
    awaitable<void> behave(Tcp::socket socket) { co_await behaviour(socket); }
    awaitable<void> echo(Tcp::socket& socket) {
        char chunk[8192];
        for (;;) {
            auto [error, size] = co_await socket.async_read_some(asio::buffer(chunk), as_result);
            if (error) co_return;
            received.append(chunk, size);
            co_await write(socket, std::string(chunk, size));
        }
    }
    // Answers when `end` has come, and keeps all that comes before and after.
    std::function<awaitable<void>(Tcp::socket&)> http(std::string reply,
                                                      std::string end = "\r\n\r\n") {
        return [this, reply, end](Tcp::socket& socket) { return serve_http(socket, reply, end); };
    }
    awaitable<void> serve_http(Tcp::socket& socket, std::string reply, std::string end) {
        received += co_await read_until(socket, end);
        co_await write(socket, reply);
        boost::system::error_code ignored;
        socket.shutdown(asio::socket_base::shutdown_send, ignored);
        received += co_await read_all(socket);
    }

    awaitable<Unix::socket> connect() {
        Unix::socket socket(context);
        const Unix::endpoint endpoint(path);
        co_await socket.async_connect(endpoint, asio::use_awaitable);
        co_return socket;
    }
    // Sends all of it, ends its half if told so, and returns everything that comes back.
    std::string exchange(std::string text, bool end = false) {
        return test::run(context, exchange_all(std::move(text), end));
    }
    awaitable<std::string> exchange_all(std::string text, bool end) {
        Unix::socket socket = co_await connect();
        co_await write(socket, text);
        boost::system::error_code ignored;
        if (end) socket.shutdown(asio::socket_base::shutdown_send, ignored);
        std::string all = co_await read_all(socket);
        co_return all;
    }

    static std::string connect_head(const std::string& authority) {
        return "CONNECT " + authority + " HTTP/1.1\r\nHost: " + authority + "\r\n\r\n";
    }
    static std::string get_head(const std::string& authority) {
        return "GET http://" + authority + "/ HTTP/1.1\r\nHost: " + authority + "\r\n\r\n";
    }
    static std::string socks(const std::string& host, std::uint16_t port = 443, char command = 1) {
        return "\5\1\0\5"s + command + "\0\3"s + static_cast<char>(host.size()) + host +
               static_cast<char>(port >> 8) + static_cast<char>(port & 0xFF);
    }
    static std::string socks_reply(int code) {
        return "\5\0\5"s + static_cast<char>(code) + "\0\1\0\0\0\0\0\0"s;
    }

    // Refused by the policy, before any name was looked up.
    void check_refused(const std::string& answer, const std::string& what) {
        BOOST_TEST(answer.starts_with("HTTP/1.1 403 "), what << ": " << answer);
        check_untouched(what);
    }
    void check_untouched(const std::string& what) {
        BOOST_TEST(looked_up.empty(), what);
        BOOST_TEST(dialled.empty(), what);
        BOOST_TEST(received.empty(), what);
        BOOST_TEST(decisions.size() == 1u, what);
        for (const auto& decision : decisions) BOOST_TEST(!decision.allowed, what);
        decisions.clear();
    }
};

const std::string established = "HTTP/1.1 200 Connection established\r\n\r\n";
}  // namespace

BOOST_FIXTURE_TEST_SUITE(network_proxy, Fixture)

BOOST_AUTO_TEST_CASE(a_tunnel_to_an_allowed_name) {
    start();
    const auto answer = exchange(connect_head("example.com:443") + "early", true);
    BOOST_TEST(answer == established + "early");
    BOOST_TEST_REQUIRE(decisions.size() == 1u);
    BOOST_TEST(decisions[0].host == "example.com");
    BOOST_TEST(decisions[0].port == 443);
    BOOST_TEST(decisions[0].allowed);
    BOOST_TEST(decisions[0].reason == "allowed by the rule \"example.com\"");
    BOOST_TEST((looked_up == std::vector<std::string>{"example.com"}));
    BOOST_TEST((dialled == std::vector{Tcp::endpoint(address("93.184.215.14"), 443)}));
    // One spelling, whatever the client's.
    BOOST_TEST(exchange(connect_head("A.Example.COM.:8080") + "x", true) == established + "x");
    BOOST_TEST(looked_up.back() == "a.example.com");
    BOOST_TEST(dialled.back().port() == 8080);
}

BOOST_AUTO_TEST_CASE(an_empty_list_allows_nothing) {
    start();
    for (const auto mode :
         {NetworkPolicy::Mode::allow_list, NetworkPolicy::Mode::none, NetworkPolicy::Mode::full}) {
        options.policy = {};
        options.policy.mode = mode;
        if (mode != NetworkPolicy::Mode::allow_list) options.policy.allow = {"example.com"};
        restart();
        check_refused(exchange(connect_head("example.com:443")), "CONNECT");
        check_refused(exchange(get_head("example.com")), "GET");
        BOOST_TEST(exchange(socks("example.com")) == socks_reply(2));
        check_untouched("SOCKS");
    }
}

BOOST_AUTO_TEST_CASE(a_refusal_says_what_and_how_to_allow_it) {
    start();
    for (const auto& request : {connect_head("evil.org:443"), get_head("evil.org:443")}) {
        const auto answer = exchange(request);
        BOOST_TEST(
            answer.starts_with("HTTP/1.1 403 evil.org:443 is not in the sandbox's network "
                               "allow-list\r\nContent-Type: text/plain\r\n"));
        BOOST_TEST(
            answer.ends_with("\r\n\r\nipybox: evil.org:443 is not in the sandbox's network "
                             "allow-list.\nTo allow it, add \"evil.org\" to "
                             "network.allowedDomains of the sandbox's configuration.\n"));
        BOOST_TEST_REQUIRE(decisions.size() == 1u);
        BOOST_TEST(decisions[0].host == "evil.org");
        BOOST_TEST(decisions[0].port == 443);
        BOOST_TEST(decisions[0].reason ==
                   "evil.org:443 is not in the sandbox's network allow-list");
        check_refused(answer, request);
    }
    const auto head = exchange("HEAD http://evil.org/ HTTP/1.1\r\n\r\n");
    BOOST_TEST(head.ends_with("\r\n\r\n"));
    check_refused(head, "HEAD");
}

BOOST_AUTO_TEST_CASE(a_large_refused_upload_still_reads_its_refusal) {
    start();
    const auto answer = test::run(context, [](Fixture& self) -> awaitable<std::string> {
        const std::string body(1 << 20, 'x');
        Unix::socket client = co_await self.connect();
        const std::string head =
            "POST http://evil.org/ HTTP/1.1\r\nContent-Length: 1048576\r\n\r\n";
        co_await write(client, head);
        auto [error, size] = co_await asio::async_write(client, asio::buffer(body), as_result);
        BOOST_TEST(!error, error.message());
        client.shutdown(asio::socket_base::shutdown_send);
        const std::string all = co_await read_all(client);
        co_return all;
    }(*this));
    check_refused(answer, "POST");
}

BOOST_AUTO_TEST_CASE(deny_beats_allow_and_ports_count) {
    options.policy.deny = {"secret.example.com", "*:25", "*.x.example.com:80"};
    names["x.example.com"] = names["b.x.example.com"] = names["example.com"];
    start();
    for (const char* where : {"secret.example.com:443", "SECRET.example.com.:443", "example.com:25",
                              "b.x.example.com:80", "ported.org:443"}) {
        check_refused(exchange(connect_head(where)), where);
        check_refused(exchange(get_head(where)), where);
    }
    for (const char* where :
         {"b.x.example.com:443", "x.example.com:80", "ported.org:8443", "example.com:26"})
        BOOST_TEST(exchange(connect_head(where) + "x", true) == established + "x", where);
    decisions.clear();
    exchange(connect_head("secret.example.com:443"));
    BOOST_TEST(
        decisions.at(0).reason ==
        "secret.example.com:443 is denied to the sandbox by the rule \"secret.example.com\"");
}

BOOST_AUTO_TEST_CASE(hosts_that_are_no_names) {
    options.policy.allow = {"example.com", "*.example.com", "localhost"};
    start();
    for (const auto& host : {"127.0.0.1"s,
                             "2130706433"s,
                             "0x7f000001"s,
                             "0177.0.0.1"s,
                             "127.1"s,
                             "1.2.3.4."s,
                             "[::1]"s,
                             "[::ffff:127.0.0.1]"s,
                             "::1"s,
                             "user@example.com"s,
                             "example.com@evil.org"s,
                             "evil.org%00.example.com"s,
                             "evil.org%2eexample.com"s,
                             "-x.example.com"s,
                             "a..example.com"s,
                             "evil.org\\.example.com"s,
                             "evil_org.example.com"s,
                             "*.example.com"s,
                             "xn--\x81.example.com"s,
                             std::string(64, 'a') + ".example.com",
                             ".example.com"s,
                             "example.com.."s}) {
        const bool http_can_say_it = host.find('\x81') == host.npos;
        if (http_can_say_it) {
            check_refused(exchange(connect_head(host + ":443")), host);
            check_refused(exchange(get_head(host + ":80")), host);
        }
        BOOST_TEST(exchange(socks(host)) == socks_reply(2), host);
        check_untouched(host);
    }
    // What only SOCKS could carry: a NUL that ends the name for the resolver, line ends, nothing.
    for (const auto& host : {"evil.org\0.example.com"s, "evil.org\r\n.example.com"s,
                             "example.com\0"s, "example.com\n"s, "evil.org .example.com"s, ""s}) {
        BOOST_TEST(exchange(socks(host)) == socks_reply(2));
        const auto seen = decisions.empty() ? "\n" : decisions[0].host;
        BOOST_TEST(seen.find_first_of("\r\n "s + '\0') == seen.npos);
        check_untouched(host);
    }
    BOOST_TEST(exchange(socks("example.com", 0)) == socks_reply(2));
    check_untouched("port 0");
}

BOOST_AUTO_TEST_CASE(names_that_lead_inside) {
    start();
    for (const char* where : {"127.0.0.1",
                              "10.0.0.1",
                              "172.16.0.1",
                              "192.168.1.1",
                              "169.254.169.254",
                              "100.64.0.1",
                              "0.0.0.0",
                              "224.0.0.1",
                              "255.255.255.255",
                              "198.18.0.1",
                              "100.100.100.200",
                              "168.63.129.16",
                              "::1",
                              "::",
                              "fc00::1",
                              "fd00:ec2::254",
                              "fe80::1",
                              "ff02::1",
                              "::ffff:127.0.0.1",
                              "::ffff:8.8.8.8",
                              "64:ff9b::7f00:1",
                              "2002:7f00:1::",
                              "2001::1"}) {
        // Alone, and hidden among public ones.
        for (const bool alone : {true, false}) {
            names["example.com"] = {address(where)};
            if (!alone) names["example.com"] = {address("93.184.215.14"), address(where)};
            for (const auto& request : {connect_head("example.com:443"), get_head("example.com")}) {
                const auto answer = exchange(request);
                BOOST_TEST(answer.starts_with("HTTP/1.1 403 example.com leads to "), where);
            }
            BOOST_TEST(exchange(socks("example.com")) == socks_reply(2), where);
        }
    }
    BOOST_TEST(dialled.empty());
    BOOST_TEST(decisions.size() == 23 * 2 * 3u);
    for (const auto& decision : decisions) BOOST_TEST(!decision.allowed);
}

BOOST_AUTO_TEST_CASE(a_name_is_resolved_once) {
    // A resolver that says something else the second time, as in DNS rebinding.
    options.resolve = [this](std::string host) -> awaitable<std::vector<asio::ip::address>> {
        looked_up.push_back(host);
        std::vector<asio::ip::address> found{
            address(looked_up.size() == 1 ? "93.184.215.14" : "127.0.0.1")};
        co_return found;
    };
    start();
    BOOST_TEST(exchange(connect_head("example.com:443"), true) == established);
    BOOST_TEST(looked_up.size() == 1u);
    BOOST_TEST((dialled == std::vector{Tcp::endpoint(address("93.184.215.14"), 443)}));
    BOOST_TEST(exchange(connect_head("example.com:443")).starts_with("HTTP/1.1 403 "));
    BOOST_TEST(dialled.size() == 1u);
}

BOOST_AUTO_TEST_CASE(private_networks_open_themselves_and_nothing_else) {
    options.policy.private_networks = {"10.1.0.0/16", "127.0.0.0/8", "0.0.0.0/0", "fd00:1::/32",
                                       "fd00:ec2::/32"};
    names["example.com"] = {address("10.1.2.3")};
    names["a.example.com"] = {address("fd00:1::5")};
    start();
    BOOST_TEST(exchange(connect_head("example.com:443"), true) == established);
    BOOST_TEST(exchange(connect_head("a.example.com:443"), true) == established);
    for (const char* where : {"127.0.0.1", "169.254.169.254", "fd00:2::5", "fd00:ec2::254"}) {
        names["example.com"] = {address(where)};
        BOOST_TEST(exchange(connect_head("example.com:443")).starts_with("HTTP/1.1 403 "), where);
    }
    options.policy.private_networks = {"10.1.0.0/16", "169.254.169.254/32"};
    restart();
    names["example.com"] = {address("10.2.0.1")};
    const auto refused = exchange(connect_head("example.com:443"));
    BOOST_TEST(refused.starts_with("HTTP/1.1 403 "));
    BOOST_TEST(refused.find("--private-network") != refused.npos);
    // Named itself, and no other.
    names["example.com"] = {address("169.254.169.254")};
    BOOST_TEST(exchange(connect_head("example.com:443"), true) == established);
    names["example.com"] = {address("169.254.170.2")};
    BOOST_TEST(exchange(connect_head("example.com:443")).starts_with("HTTP/1.1 403 "));
}

BOOST_AUTO_TEST_CASE(this_machine_is_out_of_reach) {
    // The system's resolver and dialler.
    options.resolve = nullptr;
    options.dial = nullptr;
    options.policy.allow = {"localhost"};
    start();
    const auto answer =
        exchange(connect_head("localhost:" + std::to_string(origin.local_endpoint().port())));
    BOOST_TEST(answer.starts_with("HTTP/1.1 403 localhost leads to "), answer);
    BOOST_TEST(answer.find("a loopback address") != answer.npos);
    BOOST_TEST(exchange(connect_head("no-such-name.invalid:443")).starts_with("HTTP/1.1 403 "));

    ifaddrs* list = nullptr;
    BOOST_TEST_REQUIRE(::getifaddrs(&list) == 0);
    std::string own;
    for (auto* entry = list; entry != nullptr && own.empty(); entry = entry->ifa_next) {
        if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != AF_INET) continue;
        const auto& raw = reinterpret_cast<const sockaddr_in*>(entry->ifa_addr)->sin_addr;
        const asio::ip::address_v4 found(ntohl(raw.s_addr));
        if (!found.is_loopback()) own = found.to_string();
    }
    ::freeifaddrs(list);
    if (own.empty()) {
        BOOST_TEST_MESSAGE("skipped: this machine has no interface but loopback");
        return;
    }
    Fixture other;
    other.names["example.com"] = {address(own.c_str())};
    other.options.policy.private_networks = {"0.0.0.0/0"};
    other.start();
    const auto refused = other.exchange(connect_head("example.com:443"));
    BOOST_TEST(refused.starts_with("HTTP/1.1 403 example.com leads to " + own), refused);
    BOOST_TEST(other.dialled.empty());
}

BOOST_AUTO_TEST_CASE(failures_are_told) {
    names.erase("example.com");
    start();
    auto answer = exchange(connect_head("example.com:443"));
    BOOST_TEST(answer.starts_with("HTTP/1.1 502 example.com could not be resolved: Host not found"),
               answer);
    BOOST_TEST(exchange(socks("example.com")) == socks_reply(4));
    BOOST_TEST(decisions.size() == 2u);
    BOOST_TEST(!decisions[0].allowed);

    names["example.com"] = {address("93.184.215.14"), address("93.184.215.15")};
    options.dial = [this](Tcp::endpoint to) -> awaitable<Tcp::socket> {
        dialled.push_back(to);
        throw boost::system::system_error(asio::error::connection_refused);
        co_return Tcp::socket(context);
    };
    restart();
    answer = exchange(connect_head("example.com:443") + "never seen");
    BOOST_TEST(answer.starts_with(
                   "HTTP/1.1 502 example.com:443 cannot be connected to: Connection refused"),
               answer);
    BOOST_TEST(dialled.size() == 2u);
    BOOST_TEST(exchange(socks("example.com")) == socks_reply(5));
    BOOST_TEST(decisions.size() == 2u);
    BOOST_TEST(decisions[0].allowed);

    // The second address serves when the first does not answer.
    options.connect_timeout = milliseconds(400);
    options.dial = [this](Tcp::endpoint to) -> awaitable<Tcp::socket> {
        const bool first = dialled.empty();
        if (!first) {
            Tcp::socket socket = co_await dial(to);
            co_return socket;
        }
        dialled.push_back(to);
        co_await sleep_until(never);
        co_return Tcp::socket(context);
    };
    restart();
    BOOST_TEST(exchange(connect_head("example.com:443"), true) == established);
    BOOST_TEST(dialled.at(1).address() == address("93.184.215.15"));
}

// --- plain HTTP

BOOST_AUTO_TEST_CASE(plain_http_is_rewritten) {
    behaviour = http(
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: keep-alive, X-Hop\r\n"
        "X-Hop: 1\r\nKeep-Alive: timeout=5\r\nX-Kept: 2\r\n\r\nhi");
    start();
    const auto answer = exchange(
        "GET HTTP://Example.com:8080/a/b?c=d HTTP/1.1\r\nHost: evil.org\r\nAccept: */*\r\n"
        "X-Empty:\r\nProxy-Authorization: Basic eA==\r\nProxy-Connection: keep-alive\r\n"
        "Connection: close, X-Mine ,Host\r\nX-Mine: 1\r\nTE: trailers\r\nUpgrade: h2c\r\n"
        "Proxy: http://evil.org\r\nKeep-Alive: 5\r\nCookie:  a=b \r\n\r\n");
    BOOST_TEST(received ==
               "GET /a/b?c=d HTTP/1.1\r\nHost: Example.com:8080\r\nAccept: */*\r\nX-Empty: \r\n"
               "Cookie: a=b\r\nConnection: close\r\n\r\n");
    BOOST_TEST(answer ==
               "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Kept: 2\r\nConnection: close\r\n\r\nhi");
    BOOST_TEST((dialled == std::vector{Tcp::endpoint(address("93.184.215.14"), 8080)}));

    received.clear();
    exchange("GET http://example.com?q HTTP/1.0\r\n\r\n");
    BOOST_TEST(received == "GET /?q HTTP/1.0\r\nHost: example.com\r\nConnection: close\r\n\r\n");
    BOOST_TEST(dialled.back().port() == 80);
}

BOOST_AUTO_TEST_CASE(plain_http_is_filtered) {
    start();
    check_refused(exchange(get_head("evil.org")), "GET");
    check_refused(exchange("GET http://evil.org/ HTTP/1.1\r\nHost: example.com\r\n\r\n"),
                  "other Host");
    check_refused(exchange("POST http://evil.org/http://example.com/ HTTP/1.1\r\n\r\n"), "path");
    check_refused(exchange("GET http://evil.org?@example.com/ HTTP/1.1\r\n\r\n"), "query");
}

BOOST_AUTO_TEST_CASE(one_request_a_connection) {
    const std::string reply = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    for (const auto& second : {get_head("evil.org"), connect_head("evil.org:443"),
                               "GET / HTTP/1.1\r\nHost: evil.org\r\n\r\n"s}) {
        behaviour = http(reply);
        if (!proxy) start();
        received.clear();
        const auto answer = exchange("GET http://example.com/ HTTP/1.1\r\n\r\n" + second);
        BOOST_TEST(received == "GET / HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n\r\n");
        BOOST_TEST(answer.find("HTTP/1.1", 1) == answer.npos);

        behaviour = http(reply, "body");
        received.clear();
        exchange("POST http://example.com/ HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody" + second);
        BOOST_TEST(received.ends_with("\r\nConnection: close\r\n\r\nbody"), received);

        behaviour = http(reply, "0\r\n\r\n");
        received.clear();
        exchange(
            "POST http://example.com/ HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n"
            "4;a=b\r\nbody\r\n0\r\nX-Trailer: 1\r\n\r\n" +
            second);
        BOOST_TEST(received ==
                   "POST / HTTP/1.1\r\nHost: example.com\r\nTransfer-Encoding: chunked\r\n"
                   "Connection: close\r\n\r\n4\r\nbody\r\n0\r\n\r\n");
    }
}

BOOST_AUTO_TEST_CASE(ambiguous_requests_are_refused) {
    start();
    const std::string line = "POST http://example.com/ HTTP/1.1\r\n";
    for (const auto& request : {
             "GET http://example.com/ HTTP/1.1\nHost: example.com\n\n"s,
             line + "A: b\nC: d\r\n\r\n",
             line + "A: b\rC: d\r\n\r\n",
             line + "A: b\0c\r\n\r\n"s,
             line + " A: b\r\n\r\n",
             line + "A: b\r\n folded\r\n\r\n",
             line + "A: b\r\n\tfolded\r\n\r\n",
             line + "A : b\r\n\r\n",
             line + ": b\r\n\r\n",
             line + "A\r\n\r\n",
             line + "A\x80: b\r\n\r\n",
             line + "Host: example.com\r\nHost: evil.org\r\n\r\n",
             line + "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
             line + "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
             line + "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
             line + "Content-Length: 3, 3\r\n\r\nabc",
             line + "Content-Length: +3\r\n\r\nabc",
             line + "Content-Length: -3\r\n\r\nabc",
             line + "Content-Length: 0x3\r\n\r\nabc",
             line + "Content-Length:\r\n\r\n",
             line + "Content-Length: 99999999999999999999\r\n\r\nabc",
             line + "Transfer-Encoding: gzip, chunked\r\n\r\n",
             line + "Transfer-Encoding: identity\r\n\r\n",
             line + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
             line + "Transfer-Encoding: xchunked\r\n\r\n",
             "POST http://example.com/ HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"s,
             "GET  http://example.com/ HTTP/1.1\r\n\r\n"s,
             "GET http://example.com/ x HTTP/1.1\r\n\r\n"s,
             "GET http://example.com/\tHTTP/1.1\r\n\r\n"s,
             "GET http://example.com/ HTTP/2.0\r\n\r\n"s,
             "GET http://example.com/\r\n\r\n"s,
             "GET http://example.com/#x HTTP/1.1\r\n\r\n"s,
             "GET http://example.com/\x7f HTTP/1.1\r\n\r\n"s,
             "GET http://example.com/\xc3\xa9 HTTP/1.1\r\n\r\n"s,
             "GET http://example.com:0/ HTTP/1.1\r\n\r\n"s,
             "GET http://example.com:65536/ HTTP/1.1\r\n\r\n"s,
             "GET http://example.com:/ HTTP/1.1\r\n\r\n"s,
             "GET http://example.com:80:80x/ HTTP/1.1\r\n\r\n"s,
             "GET / HTTP/1.1\r\nHost: example.com\r\n\r\n"s,
             "GET https://example.com/ HTTP/1.1\r\n\r\n"s,
             "GET ftp://example.com/ HTTP/1.1\r\n\r\n"s,
             "GET example.com:80 HTTP/1.1\r\n\r\n"s,
             "G@T http://example.com/ HTTP/1.1\r\n\r\n"s,
             "CONNECT http://example.com/ HTTP/1.1\r\n\r\n"s,
             "CONNECT /example.com:443 HTTP/1.1x\r\n\r\n"s,
             "CONNECT example.com HTTP/1.1\r\n\r\n"s,
             "CONNECT [::1] HTTP/1.1\r\n\r\n"s,
             "CONNECT example.com:https HTTP/1.1\r\n\r\n"s,
             "CONNECT example.com:443 HTTP/1.1\r\nContent-Length: 5\r\n\r\nabcde"s,
             "CONNECT example.com:443 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"s,
             "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"s,
         }) {
        const auto answer = exchange(request);
        BOOST_TEST(answer.starts_with("HTTP/1.1 400 bad request: "), request << answer);
        check_untouched(request);
    }
    for (const auto& request :
         {"\x16\x03\x01\x02"s, "\4\1\0\x50\1\2\3\4\0"s, "\r\n\r\n"s, " GET"s, "\0"s}) {
        BOOST_TEST(exchange(request) == "");
        check_untouched(request);
    }
}

BOOST_AUTO_TEST_CASE(broken_chunks_end_the_connection) {
    std::string trailers = "0\r\n";
    for (int i = 0; i < 10'000; ++i) trailers += "X: yyyy\r\n";
    behaviour = [this](Tcp::socket& socket) -> awaitable<void> {
        received += co_await read_all(socket);
    };
    start();
    for (const auto& body :
         {"4\nbody\r\n0\r\n\r\n"s, "4\r\nbodyX\r\n0\r\n\r\n"s, "x\r\n"s, "-1\r\n"s,
          "0x4\r\nbody\r\n"s, "4 \r\nbody\r\n"s, "\r\n"s, "10000000000000000\r\n"s,
          "4\r\nbody\n\n0\r\n\r\n"s, "4;a\rb\r\nbody"s, std::string(5000, '1'), trailers}) {
        received.clear();
        const auto answer = exchange(
            "POST http://example.com/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + body);
        BOOST_TEST(answer == "", body);
        BOOST_TEST(received.find("0\r\n\r\n") == received.npos, body);
    }
}

BOOST_AUTO_TEST_CASE(answers_are_checked_too) {
    behaviour = http("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\nX: y\r\n\r\n");
    start();
    const auto request = get_head("example.com");
    BOOST_TEST(exchange(request) ==
               "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\nX: y\r\nConnection: "
               "close\r\n\r\n");
    for (const auto& reply :
         {"HTTP/1.1 101 Switching Protocols\r\n\r\n"s, "nonsense\r\n\r\n"s,
          "HTTP/1.1 2000\r\n\r\n"s, "HTTP/1.1 99 x\r\n\r\n"s, "HTTP/1.1 200 OK\n\n"s,
          "HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n"s, ""s, "HTTP/1.1 200 OK\r\n"s,
          "HTTP/1.1 200 OK\r\nA: " + std::string(70'000, 'x')}) {
        behaviour = http(reply);
        BOOST_TEST(
            exchange(request).starts_with("HTTP/1.1 502 the server's answer cannot be passed on"),
            reply);
    }
    // The body is what comes until the end, and large ones arrive whole.
    const std::string body(3 << 20, 'b');
    behaviour = http("HTTP/1.1 200 OK\r\n\r\n" + body);
    const std::string answer = exchange(request);
    BOOST_TEST((answer == "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + body));
}

BOOST_AUTO_TEST_CASE(heads_have_a_limit) {
    options.max_head = 1000;
    start();
    const auto answer =
        exchange("GET http://example.com/ HTTP/1.1\r\nA: " + std::string(2000, 'x'));
    BOOST_TEST(answer.starts_with("HTTP/1.1 431 "), answer);
    check_untouched("431");
    behaviour = http("HTTP/1.1 200 OK\r\n\r\n");
    const auto small =
        exchange("GET http://example.com/ HTTP/1.1\r\nA: " + std::string(900, 'x') + "\r\n\r\n");
    BOOST_TEST(small.starts_with("HTTP/1.1 200 "), small);
}

// --- tunnels

BOOST_AUTO_TEST_CASE(read_ahead_bytes_flow_after_the_200_only) {
    Event released(context.get_executor());
    bool open = false;
    options.dial = [&](Tcp::endpoint to) -> awaitable<Tcp::socket> {
        while (!open) co_await released.wait();
        Tcp::socket socket = co_await dial(to);
        co_return socket;
    };
    // The server speaks as soon as it is reached.
    behaviour = [this](Tcp::socket& socket) -> awaitable<void> {
        co_await write(socket, "banner");
        received += co_await read_all(socket);
    };
    start();
    test::run(context, [](Fixture& self, Event& go, bool& opened) -> awaitable<void> {
        Unix::socket client = co_await self.connect();
        co_await write(client, connect_head("example.com:443") + connect_head("evil.org:443"));
        while (self.decisions.empty()) co_await sleep_until(Clock::now() + milliseconds(1));
        BOOST_TEST(client.available() == 0u);
        BOOST_TEST(self.received == "");
        opened = true;
        go.notify();
        const std::string answer = co_await read_until(client, "banner");
        BOOST_TEST(answer == established + "banner");
        boost::system::error_code ignored;
        client.shutdown(asio::socket_base::shutdown_send, ignored);
        const std::string rest = co_await read_all(client);
        BOOST_TEST(rest == "");
    }(*this, released, open));
    // A second CONNECT is data for the server, not for the proxy.
    BOOST_TEST(received == connect_head("evil.org:443"));
    BOOST_TEST(decisions.size() == 1u);
}

BOOST_AUTO_TEST_CASE(either_side_may_end_first) {
    // The client ends, the server answers after that.
    behaviour = [this](Tcp::socket& socket) -> awaitable<void> {
        received += co_await read_all(socket);
        co_await write(socket, "after the end");
    };
    start();
    BOOST_TEST(exchange(connect_head("example.com:443") + "question", true) ==
               established + "after the end");
    BOOST_TEST(received == "question");
    // The server ends, the client goes on.
    received.clear();
    bool over = false;
    behaviour = [this, &over](Tcp::socket& socket) -> awaitable<void> {
        co_await write(socket, "only this");
        socket.shutdown(asio::socket_base::shutdown_send);
        received += co_await read_all(socket);
        over = true;
    };
    test::run(context, [](Fixture& self, bool& ended) -> awaitable<void> {
        Unix::socket client = co_await self.connect();
        co_await write(client, connect_head("example.com:443"));
        const std::string all = co_await read_all(client);
        BOOST_TEST(all == established + "only this");
        co_await write(client, "still here");
        client.close();
        while (!ended) co_await sleep_until(Clock::now() + milliseconds(1));
    }(*this, over));
    BOOST_TEST(received == "still here");
}

BOOST_AUTO_TEST_CASE(a_slow_reader_holds_the_sender_back) {
    const std::size_t total = 64u << 20;
    std::size_t sent = 0;
    behaviour = [&](Tcp::socket& socket) -> awaitable<void> {
        const std::string part(64 * 1024, 'x');
        while (sent < total) {
            auto [error, size] = co_await asio::async_write(socket, asio::buffer(part), as_result);
            if (error) co_return;
            sent += size;
        }
    };
    start();
    test::run(context,
              [](Fixture& self, const std::size_t& progress, std::size_t size) -> awaitable<void> {
                  Unix::socket client = co_await self.connect();
                  co_await write(client, connect_head("example.com:443"));
                  co_await read_until(client, "\r\n\r\n");
                  // Until nothing moves any more.
                  for (std::size_t before = 1; before != progress || progress == 0;) {
                      before = progress;
                      co_await sleep_until(Clock::now() + milliseconds(300));
                  }
                  BOOST_TEST(progress < size);
                  std::size_t read = 0;
                  std::vector<char> chunk(1 << 20);
                  for (;;) {
                      auto [error, count] =
                          co_await client.async_read_some(asio::buffer(chunk), as_result);
                      if (error) break;
                      read += count;
                  }
                  BOOST_TEST(read == size);
              }(*this, sent, total));
}

BOOST_AUTO_TEST_CASE(a_reset_ends_both_sides) {
    behaviour = [](Tcp::socket& socket) -> awaitable<void> {
        co_await read_until(socket, "go");
        socket.set_option(asio::socket_base::linger(true, 0));
        socket.close();
    };
    start();
    BOOST_TEST(exchange(connect_head("example.com:443") + "go") == established);
}

// --- SOCKS5

BOOST_AUTO_TEST_CASE(socks_connects_to_names) {
    start();
    BOOST_TEST(exchange(socks("Example.com", 8443) + "data", true) == socks_reply(0) + "data");
    BOOST_TEST((dialled == std::vector{Tcp::endpoint(address("93.184.215.14"), 8443)}));
    BOOST_TEST(decisions.at(0).host == "Example.com");
    // Several methods, among them the one that is accepted.
    const auto more = "\5\3\2\1\0"s + socks("example.com").substr(3) + "x";
    BOOST_TEST(exchange(more, true) == socks_reply(0) + "x");
}

BOOST_AUTO_TEST_CASE(socks_refuses_the_rest) {
    start();
    // Authentication nobody offers: the answer says so, and that is all.
    BOOST_TEST(exchange("\5\1\2"s) == "\5\xFF"s);
    BOOST_TEST(exchange("\5\0"s) == "\5\xFF"s);
    BOOST_TEST(decisions.empty());
    for (const char command : {2, 3, 0, 9}) {
        BOOST_TEST(exchange(socks("example.com", 443, command)) == socks_reply(7));
        check_untouched("command");
    }
    const std::pair<std::string, std::string> addresses[] = {
        {"\1\x5d\xb8\xd7\x0e"s, "93.184.215.14"}, {"\4"s + std::string(15, '\0') + "\1", "::1"}};
    for (const auto& [where, text] : addresses) {
        BOOST_TEST(exchange("\5\1\0\5\1\0"s + where + "\1\xbb") == socks_reply(8));
        BOOST_TEST(decisions.at(0).host == text);
        check_untouched("address");
    }
    for (const auto& request :
         {"\5\1\0\5\1\0\2abc\1\xbb"s, "\5\1\0\4\1\0\3\1a\1\xbb"s, "\5\1\0\5\1\1\3\1a\1\xbb"s}) {
        BOOST_TEST(exchange(request) == "\5\0"s);
        check_untouched("form");
    }
    BOOST_TEST(exchange(socks("evil.org")) == socks_reply(2));
    BOOST_TEST(decisions.at(0).host == "evil.org");
    check_untouched("evil.org");
}

// --- limits

BOOST_AUTO_TEST_CASE(slow_clients_are_hung_up_on) {
    options.head_timeout = milliseconds(100);
    start();
    for (const auto& part : {""s, "C"s, "CONNECT example.com:443 HT"s, "\5"s, "\5\1\0\5\1\0\3"s}) {
        const auto answer = exchange(part);
        BOOST_TEST(answer == (part.size() > 3 && part[0] == 5 ? "\5\0"s : ""s));
    }
    // A byte now and then does not help.
    test::run(context, [](Fixture& self) -> awaitable<void> {
        Unix::socket client = co_await self.connect();
        boost::system::error_code failed;
        co_await write(client, "GET http://example.com/");
        while (!failed) {
            co_await sleep_until(Clock::now() + milliseconds(20));
            auto [error, size] = co_await client.async_write_some(asio::buffer("x", 1), as_result);
            failed = error;
        }
    }(*this));
    BOOST_TEST(dialled.empty());
}

BOOST_AUTO_TEST_CASE(idle_connections_end) {
    options.idle_timeout = milliseconds(100);
    start();
    BOOST_TEST(exchange(connect_head("example.com:443") + "x") == established + "x");
    // A server that never answers.
    behaviour = [this](Tcp::socket& socket) -> awaitable<void> {
        received += co_await read_all(socket);
    };
    BOOST_TEST(exchange(get_head("example.com")) == "");
    // Whoever says goodbye waits for head_timeout at most.
    options.idle_timeout = std::chrono::hours(1);
    options.head_timeout = milliseconds(100);
    restart();
    BOOST_TEST(exchange(get_head("example.com"), true) == "");
    BOOST_TEST(received.starts_with("GET / HTTP/1.1\r\n"));
}

BOOST_AUTO_TEST_CASE(connecting_has_a_deadline) {
    options.connect_timeout = milliseconds(100);
    options.head_timeout = milliseconds(50);  // does not count any more
    Event released(context.get_executor());
    options.dial = [this](Tcp::endpoint) -> awaitable<Tcp::socket> {
        co_await sleep_until(never);
        co_return Tcp::socket(context);
    };
    start();
    BOOST_TEST(
        exchange(connect_head("example.com:443"))
            .starts_with("HTTP/1.1 504 example.com:443 cannot be connected to: no answer in time"));
    BOOST_TEST(exchange(socks("example.com")) == socks_reply(4));
    bool open = false;
    options.resolve = [&](std::string) -> awaitable<std::vector<asio::ip::address>> {
        while (!open) co_await released.wait();
        co_return std::vector<asio::ip::address>();
    };
    restart();
    BOOST_TEST(
        exchange(connect_head("example.com:443"))
            .starts_with("HTTP/1.1 502 example.com could not be resolved: no answer in time"));
    open = true;
    released.notify();
    // The late answer finds nobody.
    proxy.reset();
    origin.close();
    context.restart();
    context.run_for(seconds(30));
    BOOST_TEST(context.stopped());
}

BOOST_AUTO_TEST_CASE(connections_beyond_the_limit_wait) {
    options.max_connections = 3;
    std::size_t arrived = 0, served = 0;
    bool open = false;
    Event gate(context.get_executor());
    behaviour = [&](Tcp::socket& socket) -> awaitable<void> {
        ++arrived;
        while (!open) co_await gate.wait();
        co_await echo(socket);
    };
    start();
    for (int i = 0; i < 20; ++i)
        asio::co_spawn(
            context,
            [](Fixture& fixture, std::size_t& done) -> awaitable<void> {
                const auto request = connect_head("example.com:443") + "hello";
                const std::string all = co_await fixture.exchange_all(request, true);
                BOOST_TEST(all == established + "hello");
                ++done;
            }(*this, served),
            asio::detached);
    context.restart();
    while (arrived < 3) context.run_one_for(seconds(30));
    // Nobody else arrives while these three stay.
    context.run_for(milliseconds(200));
    BOOST_TEST(arrived == 3u);
    BOOST_TEST(decisions.size() == 3u);
    open = true;
    gate.notify();
    const auto limit = Clock::now() + std::chrono::minutes(1);
    while (served < 20 && context.run_one_until(limit) != 0) {
    }
    BOOST_TEST(served == 20u);
}

BOOST_AUTO_TEST_CASE(many_connections_at_once) {
    std::size_t now = 0, served = 0;
    Event all_here(context.get_executor());
    behaviour = [&](Tcp::socket& socket) -> awaitable<void> {
        ++now;
        all_here.notify();
        while (now < 200) co_await all_here.wait();
        co_await echo(socket);
    };
    start();
    test::run(context, [](Fixture& self, std::size_t& count) -> awaitable<void> {
        for (int i = 0; i < 200; ++i)
            asio::co_spawn(
                self.context,
                [](Fixture& fixture, std::size_t& done, int number) -> awaitable<void> {
                    const auto text = std::string(10'000, static_cast<char>('a' + number % 26));
                    const auto head =
                        number % 2 ? connect_head("example.com:443") : socks("example.com");
                    const std::string all = co_await fixture.exchange_all(head + text, true);
                    BOOST_TEST((all == (number % 2 ? established : socks_reply(0)) + text));
                    ++done;
                }(self, count, i),
                asio::detached);
        while (count < 200) co_await sleep_until(Clock::now() + milliseconds(5));
    }(*this, served));
}

// --- the end

BOOST_AUTO_TEST_CASE(stopping_while_busy_ends_everything) {
    Event released(context.get_executor());
    bool open = false;
    std::size_t waiting = 0;
    names["slow.example.com"] = names["dial.example.com"] = names["example.com"];
    options.resolve = [&](std::string host) -> awaitable<std::vector<asio::ip::address>> {
        if (host == "slow.example.com") {
            ++waiting;
            while (!open) co_await released.wait();
        }
        std::vector<asio::ip::address> found = names.at(host);
        if (host == "dial.example.com") found = {address("93.184.215.99")};
        co_return found;
    };
    options.dial = [&](Tcp::endpoint to) -> awaitable<Tcp::socket> {
        if (to.address() == address("93.184.215.99")) {
            ++waiting;
            co_await sleep_until(never);
        }
        Tcp::socket socket = co_await dial(to);
        co_return socket;
    };
    // Sends without end; `waiting` counts those that reached it.
    behaviour = [&](Tcp::socket& socket) -> awaitable<void> {
        ++waiting;
        const std::string part(64 * 1024, 'x');
        for (boost::system::error_code failed; !failed;) {
            auto [error, size] = co_await asio::async_write(socket, asio::buffer(part), as_result);
            failed = error;
        }
    };
    start();
    std::vector<std::string> requests;
    for (int i = 0; i < 5; ++i)
        for (const auto& request :
             {"CONNECT exa"s, connect_head("slow.example.com:443"),
              connect_head("dial.example.com:443"), connect_head("example.com:443"),
              socks("example.com"),
              "POST http://example.com/ HTTP/1.1\r\nContent-Length: 1000\r\n\r\npart"s})
            requests.push_back(request);
    const bool by_destruction = true;
    for (const bool destroy : {!by_destruction, by_destruction}) {
        std::size_t ended = 0;
        test::run(context,
                  [](Fixture& self, const std::vector<std::string>& texts, std::size_t& count,
                     const std::size_t& busy, bool destroyed) -> awaitable<void> {
                      std::list<Unix::socket> clients;
                      for (const auto& text : texts) {
                          clients.push_back(co_await self.connect());
                          co_await write(clients.back(), text);
                      }
                      // All but the unfinished requests are under way somewhere.
                      while (busy < texts.size() * 5 / 6)
                          co_await sleep_until(Clock::now() + milliseconds(1));
                      const auto before = self.decisions.size();
                      if (destroyed)
                          self.proxy.reset();
                      else
                          self.proxy->stop();
                      for (auto& client : clients) {
                          co_await read_all(client);
                          ++count;
                      }
                      BOOST_TEST(self.decisions.size() == before);
                  }(*this, requests, ended, waiting, destroy));
        BOOST_TEST(ended == requests.size());
        open = true;
        released.notify();
        const auto decided = decisions.size();
        context.restart();
        context.run_for(milliseconds(50));
        BOOST_TEST(decisions.size() == decided);
        open = false;
        waiting = 0;
        if (!destroy) restart();
    }
}

BOOST_AUTO_TEST_CASE(a_decision_may_end_the_proxy) {
    options.on_decision = [this](const NetworkDecision&) { proxy->stop(); };
    start();
    BOOST_TEST(exchange(connect_head("example.com:443")) == "");
    BOOST_TEST(dialled.empty());
}

BOOST_AUTO_TEST_CASE(the_context_may_go_with_connections_open) {
    auto other = std::make_unique<Fixture>();
    other->start();
    test::run(other->context, [](Fixture& self) -> awaitable<void> {
        Unix::socket client = co_await self.connect();
        co_await write(client, connect_head("example.com:443"));
        co_await read_until(client, "\r\n\r\n");
        co_await write(client, "x");
        asio::co_spawn(self.context, self.exchange_all("CONNECT", false), asio::detached);
    }(*other));
    BOOST_TEST(other->dialled.size() == 1u);
    other.reset();
}

BOOST_AUTO_TEST_CASE(the_socket_belongs_to_its_user) {
    start();
    struct stat status{};
    BOOST_TEST_REQUIRE(::lstat(path.c_str(), &status) == 0);
    BOOST_TEST((status.st_mode & 07777) == 0600u);
    NetworkProxy second(context.get_executor(), options);
    const auto fails = [](const Error& error) { return error.code() == errc::io_error; };
    BOOST_CHECK_EXCEPTION(second.listen(path, ::geteuid()), Error, fails);
    NetworkProxy third(context.get_executor(), options);
    BOOST_CHECK_EXCEPTION(third.listen(directory.path() / std::string(200, 'x'), ::geteuid()),
                          Error, fails);
    if (::geteuid() != 0) {
        BOOST_TEST_MESSAGE("skipped in part: only root gives a socket to another user");
        return;
    }
    NetworkProxy fourth(context.get_executor(), options);
    const auto theirs = directory.path() / "theirs";
    fourth.listen(theirs, 65534);
    BOOST_TEST_REQUIRE(::lstat(theirs.c_str(), &status) == 0);
    BOOST_TEST(status.st_uid == 65534u);
}

BOOST_AUTO_TEST_CASE(wrong_rules_are_refused) {
    const auto fails = [](const Error& error) {
        return error.code() == errc::bad_config &&
               error.detail().find("accepted are") != std::string::npos;
    };
    for (const char* rule :
         {"*", "*.com", "10.0.0.1", "https://example.com", "example.com:0", ""}) {
        auto bad = options;
        bad.policy.allow.push_back(rule);
        BOOST_CHECK_EXCEPTION(NetworkProxy(context.get_executor(), bad), Error, fails);
    }
    auto bad = options;
    bad.policy.deny = {"*", "a b"};
    BOOST_CHECK_EXCEPTION(NetworkProxy(context.get_executor(), bad), Error, fails);
    bad = options;
    bad.policy.private_networks = {"10.0.0.0/33"};
    BOOST_CHECK_EXCEPTION(NetworkProxy(context.get_executor(), bad), Error, fails);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace network_proxy_tests
