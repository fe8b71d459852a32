#pragma once
// The only way from a sandbox to the network: a proxy on a Unix socket that speaks HTTP CONNECT,
// plain HTTP and SOCKS5, and connects to allowed names only. Everything its client sends is
// hostile.
#include <unistd.h>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <filesystem>
#include <functional>
#include <ipybox/async.hpp>
#include <ipybox/error.hpp>
#include <ipybox/log.hpp>
#include <ipybox/net/domain_rule.hpp>
#include <ipybox/net/private_listener.hpp>
#include <ipybox/net/proxy_protocol.hpp>
#include <ipybox/sandbox.hpp>
#include <list>
#include <memory>
#include <string>
#include <vector>

namespace ipybox {

// One request of the sandbox and what became of it.
struct NetworkDecision {
    std::string host;  // as asked for, in printable ASCII; empty when none was understood
    std::uint16_t port = 0;
    bool allowed = false;  // false: nothing was connected to
    std::string reason;
};

// What a proxy lets through, and its limits.
struct NetworkProxyOptions {
    // Rules are HOST or *.HOST, either with :PORT, else for every port. The deny list wins. Any
    // mode but allow_list allows nothing, and so does an empty list. A cloud's metadata address
    // stays refused unless it is a private network itself, as 169.254.169.254/32.
    NetworkPolicy policy;
    // Called once a request, before connecting; must not throw. Empty: nobody wants to know.
    std::function<void(const NetworkDecision&)> on_decision;
    // How names become addresses, and addresses connections; empty: by the system. What is in
    // flight when the proxy stops is cancelled (dial) or forgotten (resolve).
    std::function<awaitable<std::vector<asio::ip::address>>(std::string host)> resolve;
    std::function<awaitable<asio::ip::tcp::socket>(asio::ip::tcp::endpoint)> dial;
    Duration head_timeout = std::chrono::seconds(30);     // to say what is wanted
    Duration connect_timeout = std::chrono::seconds(30);  // to resolve and connect
    Duration idle_timeout = std::chrono::minutes(10);     // without a byte in either direction
    std::size_t max_head = 64u << 10;                     // bytes of a request's or answer's head
    std::size_t max_connections = 256;                    // more of them wait
};

// Owned by one session. Methods are called on the executor given. Destruction ends every
// connection and calls none of the functions in the options any more.
class NetworkProxy {
public:
    // Throws Error: bad_config (a rule or network of a wrong form).
    NetworkProxy(asio::any_io_executor executor, NetworkProxyOptions options);
    ~NetworkProxy() { stop(); }
    NetworkProxy(const NetworkProxy&) = delete;
    NetworkProxy& operator=(const NetworkProxy&) = delete;

    // Listens at `path`, which must not exist; the socket gets mode 0600 and belongs to `user`.
    // Throws Error: io_error (it cannot listen there).
    void listen(const std::filesystem::path& path, uid_t user);

    // Ends every connection and accepts no more.
    void stop();

private:
    using Tcp = asio::ip::tcp;
    using Addresses = std::vector<asio::ip::address>;
    struct Connection;
    using ConnectionPtr = std::shared_ptr<Connection>;

    struct Rule {
        net::DomainRule rule;
        std::string text;
    };
    struct Network {
        net::AddressBytes address;
        unsigned prefix;
    };

    static net::AddressBytes bytes_of(const asio::ip::address& address);
    struct Impl;
    using ImplPtr = std::shared_ptr<Impl>;

    // Lives until every coroutine that serves it has ended.
    struct Connection {
        Connection(ImplPtr s, asio::local::stream_protocol::socket socket);
        ~Connection();
        Connection(const Connection&) = delete;
        Connection& operator=(const Connection&) = delete;

        void close();
        // Ends the connection in `time` from now unless called again.
        void limit(Duration time);

        ImplPtr state;
        asio::local::stream_protocol::socket client;
        Tcp::socket server;
        asio::steady_timer timer;
        Event changed;
        Clock::time_point deadline = never;
        std::string input;   // read from the client, not used yet
        std::string output;  // read from the server, not used yet
        Addresses addresses;
        std::string lookup_problem;
        bool looked_up = false;
        int flowing = 0;  // directions of a tunnel that are open
        bool closed = false;
        std::list<Connection*>::iterator place;
    };

    // Why a request is not served.
    struct Refusal {
        unsigned status = 0;  // HTTP's; 0: served
        unsigned char socks = 0;
        std::string reason;
        std::string remedy;
    };
    static constexpr unsigned char socks_not_allowed = 2, socks_unreachable = 4, socks_refused = 5,
                                   socks_command = 7, socks_address_type = 8;
    static constexpr std::size_t relay_buffer = 32 * 1024;

    // Text of unknown origin for a log or a status line.
    static std::string shown(std::string_view text);

    // `bytes` are 4 or 16.
    static std::string address_text(const std::string& bytes);

    static awaitable<Addresses> system_resolve(std::string host);

    static awaitable<Tcp::socket> system_dial(Tcp::endpoint to);

    // Asked again each time: interfaces come and go.
    static std::vector<net::AddressBytes> own_addresses();

    static void begin(const ImplPtr& state, asio::local::stream_protocol::socket socket);

    // Closes the connection at its deadline, which moves meanwhile.
    static void watch(ConnectionPtr connection);

    static awaitable<void> serve(ConnectionPtr connection);

    // Reads until there are `size` bytes of input; false when the client is gone.
    static awaitable<bool> fill(ConnectionPtr connection, std::size_t size);

    // Policy, then the resolver, then every address, then a connection to one that was checked.
    static awaitable<Refusal> connect(ConnectionPtr connection, std::string asked,
                                      std::uint16_t port);

    // `why` becomes the reason for allowing.
    static Refusal judge(const Impl& state, const std::string& asked, std::uint16_t port,
                         std::string& why);

    // One address that is not public refuses them all: a name that leads inside is no accident.
    static Refusal judge_addresses(const Impl& state, const std::string& name,
                                   const Addresses& addresses, const std::string& problem);

    // On its own, because a resolver cannot be cancelled; it may end after everybody else.
    static awaitable<void> look_up(ConnectionPtr connection, std::string name);

    static awaitable<void> dial(ConnectionPtr connection, Tcp::endpoint to, std::string& problem);

    // --- HTTP

    static awaitable<void> serve_http(ConnectionPtr connection);

    // The reason is in the status line too, which is all that many clients show.
    static awaitable<void> refuse_http(ConnectionPtr connection, Refusal refusal, bool head_only);

    // Lets the client read the answer: closing with bytes unread would cut it off.
    static awaitable<void> finish(ConnectionPtr connection);

    // One request, whose body ends where its head says, and one answer, which ends the connection.
    static awaitable<void> forward(ConnectionPtr connection, net::ProxyRequest request);

    // The problem, or empty. What follows the head is left in `output`.
    static awaitable<std::string> relay_response_head(ConnectionPtr connection);

    // What follows the body is thrown away: it would be a request nobody has judged.
    static awaitable<void> send_body(ConnectionPtr connection, net::ProxyRequest::Body kind,
                                     std::uint64_t length);

    // --- tunnels

    // What was read ahead belongs to the other side.
    static awaitable<void> tunnel(ConnectionPtr connection);

    static awaitable<void> flow_out(ConnectionPtr connection);

    // One side may end while the other goes on; an error ends both.
    static void ended(Connection& connection, bool whole);

    // Copies until the end, which it passes on; true then, false after an error. No more is read
    // before what was read is written.
    template <class From, class To>
    static awaitable<bool> pump(ConnectionPtr connection, From& from, To& to);

    // --- SOCKS5 (RFC 1928): CONNECT to a name, without authentication

    enum SocksAddress : unsigned char { socks_v4 = 1, socks_name = 3, socks_v6 = 4 };

    static unsigned char byte_at(const std::string& text, std::size_t at) {
        return static_cast<unsigned char>(text[at]);
    }

    static awaitable<void> serve_socks(ConnectionPtr connection);

    ImplPtr state_;
};

// Starts a proxy that carries out policy.network at `path`, in the place of an older one, logs
// what it decides, tells on_refusal of what it refuses, and returns network_channel, which
// leads to it. Throws what NetworkProxy's constructor and listen() throw.
Channel open_proxy(std::unique_ptr<NetworkProxy>& proxy, asio::any_io_executor executor,
                   Logger logger, const SandboxPolicy& policy, const Sandbox& sandbox,
                   const std::filesystem::path& path,
                   std::function<void(const Violation&)> on_refusal = nullptr);

}  // namespace ipybox

#ifndef IPYBOX_SEPARATE_COMPILATION
#include <ipybox/sandbox_kit/impl/network_proxy.ipp>
#endif
