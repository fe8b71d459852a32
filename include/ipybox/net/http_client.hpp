#pragma once
// HTTP/1.1 and TLS as a client, with connections kept alive; and connected streams for WebSockets.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/ip/network_v4.hpp>
#include <boost/asio/ip/network_v6.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/role.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/url/parse.hpp>
#include <boost/url/url.hpp>
#include <boost/url/url_view.hpp>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <exception>
#include <functional>
#include <initializer_list>
#include <ipybox/async.hpp>
#include <ipybox/detail/base64.hpp>
#include <ipybox/detail/build_info.hpp>
#include <ipybox/error.hpp>
#include <ipybox/log.hpp>
#include <ipybox/memory_budget.hpp>
#include <ipybox/net/domain_rule.hpp>
#include <ipybox/net/proxy_protocol.hpp>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

namespace ipybox {

// In the order in which they stand in the message.
using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

// Names of headers compare without case.
inline bool same_header(std::string_view a, std::string_view b) noexcept {
    const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [&](char x, char y) { return lower(x) == lower(y); });
}

// The value of the first header of that name; empty when there is none.
inline std::string_view find_header(const HttpHeaders& headers, std::string_view name) noexcept {
    for (const auto& [key, value] : headers)
        if (same_header(key, name)) return value;
    return {};
}

// An absolute address, checked and taken apart.
struct HttpUrl {
    bool tls = false;
    std::string host;  // lower case; an IPv6 address without brackets
    std::uint16_t port = 0;
    std::string path;         // begins with /
    std::string query;        // empty, or begins with ?
    std::string credentials;  // "user:password", decoded

    // Accepts http, https, ws and wss. Throws errc::bad_argument, without the credentials and
    // query of `text`.
    static HttpUrl parse(std::string_view text);
    // What a redirect or a link of this resource leads to. Throws errc::bad_argument.
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

// What to send.
struct HttpRequest {
    std::string method = "GET";
    std::string url;
    // The last of several with one name counts. Host, Content-Length and the like are set by the
    // client and refused here.
    HttpHeaders headers;
    std::string body;
    Clock::time_point deadline = never;  // until the head of the response has come
    // May reach the server twice without harm. GET, HEAD, OPTIONS, PUT and DELETE always may.
    bool repeatable = false;
};

// Limits of a client, whom it trusts and where it may go.
struct HttpClientOptions {
    Duration connect_timeout = std::chrono::seconds(10);  // name, connection and TLS together
    std::size_t max_header = std::size_t{64} << 10;       // bytes of a response's head
    std::size_t max_idle_connections = 8;
    Duration idle_timeout = std::chrono::seconds(60);  // servers that announce a shorter one win
    std::string ca_file;                   // PEM; empty: the system's, or $SSL_CERT_FILE's
    std::string unix_socket;               // connect there, whatever host a URL names
    bool proxies_from_environment = true;  // HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY
    // Followed within one origin only; another one is errc::mcp_connection naming both. 0: a
    // redirect is a result like any other.
    int max_redirects = 3;
    // Whether an address may be connected to; empty: any. Behind a proxy, which looks names up by
    // itself, all addresses must be allowed that a name is known to have here.
    std::function<bool(const asio::ip::address&)> may_connect;
    // Whether a proxy may be asked for the host of this name; empty: any.
    std::function<bool(const std::string&)> may_name;
    Logger logger;
};

// A connection of TCP or TLS that satisfies Asio's AsyncReadStream and AsyncWriteStream, and as
// websocket::stream<HttpStream&> Beast's needs. Neither copied nor moved.
class HttpStream {
public:
    using executor_type = asio::any_io_executor;
    using Socket = asio::ip::tcp::socket;

    // Not connected: HttpClient::connect() makes one that is.
    explicit HttpStream(const executor_type& executor) : socket_(executor) {}

    // As Asio and Beast ask for it.
    executor_type get_executor() { return socket_.get_executor(); }
    // The socket below TLS.
    Socket& socket() noexcept { return socket_; }
    bool is_tls() const noexcept { return tls_.has_value(); }

    // Reads some bytes; completes as Asio's function of that name.
    template <class Buffers, class Token>
    auto async_read_some(const Buffers& buffers, Token&& token) {
        if (tls_) return tls_->async_read_some(buffers, std::forward<Token>(token));
        return socket_.async_read_some(buffers, std::forward<Token>(token));
    }
    // Writes some bytes; completes as Asio's function of that name.
    template <class Buffers, class Token>
    auto async_write_some(const Buffers& buffers, Token&& token) {
        if (tls_) return tls_->async_write_some(buffers, std::forward<Token>(token));
        return socket_.async_write_some(buffers, std::forward<Token>(token));
    }
    // Everything that waits on the stream fails with operation_aborted.
    void close() noexcept {
        boost::system::error_code ignored;
        socket_.close(ignored);
    }

private:
    friend class HttpClient;
    using Tls = asio::ssl::stream<Socket&>;
    Socket socket_;
    std::optional<Tls> tls_;
};

// How Beast ends a WebSocket's connection.
inline void teardown(boost::beast::role_type, HttpStream& stream,
                     boost::system::error_code& error) {
    stream.socket().close(error);
}
// The same without waiting.
template <class Handler>
void async_teardown(boost::beast::role_type, HttpStream& stream, Handler&& handler) {
    boost::system::error_code error;
    stream.socket().close(error);
    asio::post(stream.get_executor(),
               [h = std::forward<Handler>(handler), error]() mutable { h(error); });
}

// How Beast breaks off a WebSocket that is silent for too long.
inline void beast_close_socket(HttpStream& stream) { stream.close(); }

class HttpClient;

namespace detail {

// An address, and what follows from it alone.
struct HttpTarget {
    explicit HttpTarget(HttpUrl to);

    HttpUrl url;
    std::string authority;
    std::string origin;
    bool loopback = false;  // never through a proxy
};
using HttpTargetPtr = std::shared_ptr<const HttpTarget>;

// One response, told apart by Beast; its body is taken away piece by piece. None of the functions
// is marked override: newer versions of Beast ask for one more.
class HttpResponseParser : public boost::beast::http::basic_parser<false> {
public:
    using Text = boost::beast::string_view;
    using Code = boost::beast::error_code;

    HttpResponseParser(std::size_t max_header, bool without_body) {
        headers.reserve(8);
        header_limit(static_cast<std::uint32_t>(std::min<std::size_t>(max_header, UINT32_MAX)));
        body_limit(boost::none);
        eager(true);
        skip(without_body);
    }

    // Takes what it can off the beginning of `input`. It stops after a chunk's header and the
    // like, so it is asked until it wants more.
    void take(boost::beast::flat_buffer& input, boost::system::error_code& error) {
        while (!error && input.size() > 0 && !is_done()) {
            const std::size_t used = put(asio::const_buffer(input.cdata()), error);
            input.consume(used);
            if (used == 0 && !error) break;
        }
        if (error == boost::beast::http::error::need_more) error.clear();
    }

    unsigned code = 0;
    HttpHeaders headers;
    std::string body;  // what has come and was not taken

private:
    void on_request_impl(boost::beast::http::verb, Text, Text, int, Code&) {}
    void on_response_impl(int status, Text, int, Code& error) {
        code = static_cast<unsigned>(status);
        if (status < 100) error = boost::beast::http::error::bad_status;
    }
    void on_field_impl(boost::beast::http::field, Text name, Text value, Code&) {
        if (!is_header_done()) headers.emplace_back(name, value);
    }
    void on_trailer_field_impl(boost::beast::http::field, Text, Text, Code&) {}
    void on_header_impl(Code&) {}
    void on_body_init_impl(const boost::optional<std::uint64_t>&, Code&) {}
    std::size_t on_body_impl(Text piece, Code&) {
        body.append(piece);
        return piece.size();
    }
    void on_chunk_header_impl(std::uint64_t, Text, Code&) {}
    std::size_t on_chunk_body_impl(std::uint64_t, Text piece, Code&) {
        body.append(piece);
        return piece.size();
    }
    void on_finish_impl(Code&) {}
};

// A stream with what was read from it too early, and a time limit that closes it.
struct HttpConnection : std::enable_shared_from_this<HttpConnection> {
    explicit HttpConnection(const asio::any_io_executor& executor)
        : stream(executor), timer(executor) {}

    // One timer serves many limits: it is touched only when one is nearer than what it waits for.
    void limit(Clock::time_point when) {
        deadline = when;
        expired = false;
        if (deadline < armed) arm();
    }
    void arm() {
        armed = deadline;
        timer.expires_at(armed);
        timer.async_wait([weak = weak_from_this()](boost::system::error_code error) {
            const auto self = weak.lock();
            if (error || !self) return;
            self->armed = never;
            if (Clock::now() >= self->deadline) {
                self->expired = true;
                self->stream.close();
            } else if (self->deadline != never) {
                self->arm();
            }
        });
    }
    // Nothing has come on an idle connection, and its end has not either.
    bool quiet() {
        char byte = 0;
        const auto got = ::recv(stream.socket().native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
        return got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
    }

    HttpStream stream;
    boost::beast::flat_buffer input;
    std::string key;  // whom it is connected to, and through whom
    Clock::time_point deadline = never;
    bool expired = false;
    Clock::time_point idle_until{};

private:
    asio::steady_timer timer;
    Clock::time_point armed = never;
};
using HttpConnectionPtr = std::shared_ptr<HttpConnection>;

// A forward proxy, as the environment names it.
struct HttpProxy {
    std::string host;
    std::uint16_t port = 0;
    std::string credentials;
};

// Whether a NO_PROXY list covers a host: * for all, NAME for it and what is below it, .NAME for
// what is below, addresses and networks as 10.0.0.0/8; each with :PORT for that port alone.
// Loopback never goes through a proxy.
bool bypasses_proxy(std::string_view list, const std::string& host, std::uint16_t port);

}  // namespace detail

// A response whose body is still to be read. Destroying one unread closes its connection, and
// ends a read_some() that waits. One read at a time.
class HttpResponse {
public:
    ~HttpResponse();
    HttpResponse(const HttpResponse&) = delete;
    HttpResponse& operator=(const HttpResponse&) = delete;

    unsigned status() const noexcept;
    const HttpHeaders& headers() const noexcept;
    const HttpUrl& url() const noexcept;  // after redirects
    // The next piece of the body as it comes; empty at its end. Throws errc::mcp_connection when
    // the body breaks off, errc::timed_out; a cancelled coroutine gets operation_aborted.
    awaitable<std::string> read_some(Clock::time_point deadline = never);
    // The whole body, if all of it came with the head and is not longer than `limit` bytes; as
    // read_all(), without waiting.
    std::optional<std::string> all_now(std::size_t limit);
    // The rest of the body; errc::mcp_connection when it is longer than `limit` bytes.
    awaitable<std::string> read_all(std::size_t limit, Clock::time_point deadline = never);

private:
    friend class HttpClient;
    struct Exchange;
    explicit HttpResponse(std::shared_ptr<Exchange> exchange) : exchange_(std::move(exchange)) {}
    std::shared_ptr<Exchange> exchange_;
};

// Any number of requests at once, each on a connection of its own, on one thread. Certificates
// are verified always. Destroying it breaks off everything in flight.
class HttpClient {
public:
    // Connects to nothing yet.
    HttpClient(asio::any_io_executor executor, HttpClientOptions options);
    ~HttpClient();
    HttpClient(const HttpClient&) = delete;
    HttpClient& operator=(const HttpClient&) = delete;

    // Any status is a result. Throws errc::mcp_connection, errc::timed_out, errc::bad_argument
    // (URL or headers); a cancelled coroutine gets operation_aborted. No text has a URL's query
    // or credentials, or a header's value.
    awaitable<std::unique_ptr<HttpResponse>> send(HttpRequest request);
    // The same for a request that the caller keeps, and leaves as it is meanwhile.
    awaitable<std::unique_ptr<HttpResponse>> send(std::shared_ptr<const HttpRequest> request);

    // A stream connected to the host of an http, https, ws or wss URL, through a proxy's tunnel
    // where the environment asks for one. Lives on after the client. Errors as those of send().
    awaitable<std::shared_ptr<HttpStream>> connect(std::string url, Clock::time_point deadline);

private:
    friend class HttpResponse;
    using Connection = detail::HttpConnection;
    using ConnectionPtr = detail::HttpConnectionPtr;
    using Parser = detail::HttpResponseParser;
    using Exchange = HttpResponse::Exchange;
    using ExchangePtr = std::shared_ptr<Exchange>;
    struct State;
    using StatePtr = std::shared_ptr<State>;
    struct Lookup;

    using TargetPtr = detail::HttpTargetPtr;
    using RequestPtr = std::shared_ptr<const HttpRequest>;

    static awaitable<std::unique_ptr<HttpResponse>> send(StatePtr state, RequestPtr request);
    static awaitable<std::shared_ptr<HttpStream>> connect(StatePtr state, std::string url,
                                                          Clock::time_point deadline);
    static awaitable<ExchangePtr> exchange(StatePtr state, TargetPtr target, RequestPtr request);
    static awaitable<bool> attempt(StatePtr state, ExchangePtr exchange, std::string head,
                                   RequestPtr request, bool may_fail);
    static awaitable<void> dial(StatePtr state, HttpUrl url, bool tunnel, ConnectionPtr& connected,
                                Clock::time_point deadline);
    [[noreturn]] static void refuse_address(const HttpUrl& url);
    static awaitable<void> check_name(StatePtr state, HttpUrl url, Clock::time_point deadline);
    static awaitable<std::vector<asio::ip::tcp::endpoint>> resolve(StatePtr state, std::string host,
                                                                   std::uint16_t port,
                                                                   Clock::time_point deadline);
    static awaitable<ConnectionPtr> dial_local(StatePtr state, Clock::time_point deadline);
    static awaitable<void> open_tunnel(StatePtr state, ConnectionPtr connection, HttpUrl url,
                                       detail::HttpProxy proxy);
    static awaitable<void> start_tls(StatePtr state, ConnectionPtr connection, HttpUrl url);
    static constexpr std::size_t chunk = std::size_t{16} << 10;  // bytes of one read
    static constexpr std::size_t free_of_budget = std::size_t{1} << 20;  // of a body
    static awaitable<boost::system::error_code> fill(ConnectionPtr connection);
    static boost::system::error_code fill_now(Connection& connection);
    static awaitable<std::string> read_some(ExchangePtr exchange, Clock::time_point deadline);
    static awaitable<std::string> read_all(ExchangePtr exchange, std::size_t limit,
                                           Clock::time_point deadline);
    static void feed(const State& state, Exchange& exchange);
    static std::optional<detail::HttpProxy> proxy_for(const State& state, const HttpUrl& url);
    static std::string head_of(const State& state, const detail::HttpTarget& target,
                               const HttpRequest& request, bool through_proxy);
    static void check(const HttpRequest& request);
    [[noreturn]] static void fail(const Connection* connection, const HttpUrl& url,
                                  boost::system::error_code error, std::string_view what);

    StatePtr state_;
};

// ---- addresses ----

inline HttpUrl HttpUrl::parse(std::string_view text) {
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
        detail::lower_case(std::string_view(view.scheme().data(), view.scheme().size()));
    url.tls = scheme == "https" || scheme == "wss";
    if (!url.tls && scheme != "http" && scheme != "ws")
        throw refuse("begins with neither http:// nor https://");
    url.host = detail::lower_case(view.host_address());
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
        const auto number = detail::parse_port(std::string_view(port.data(), port.size()));
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

inline HttpUrl HttpUrl::resolve(std::string_view reference) const {
    boost::urls::url base(text());
    const auto parsed = boost::urls::parse_uri_reference(reference);
    if (!parsed || !base.resolve(*parsed))
        throw Error(errc::bad_argument, origin() + " gives an address that is malformed");
    return parse(std::string_view(base.buffer().data(), base.buffer().size()));
}

inline std::string HttpUrl::authority() const {
    std::string result = host.find(':') == host.npos ? host : "[" + host + "]";
    if (port != (tls ? 443 : 80)) result += ":" + std::to_string(port);
    return result;
}

inline detail::HttpTarget::HttpTarget(HttpUrl to)
    : url(std::move(to)), authority(url.authority()), origin(url.origin()) {
    boost::system::error_code no_address;
    const auto address = asio::ip::make_address(url.host, no_address);
    loopback = url.host == "localhost" || url.host.ends_with(".localhost") ||
               (!no_address && address.is_loopback());
}

inline bool detail::bypasses_proxy(std::string_view list, const std::string& host,
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

// ---- connections ----

struct HttpClient::State {
    State(asio::any_io_executor e, HttpClientOptions o)
        : executor(std::move(e)), options(std::move(o)), idle_timer(executor) {}

    // The context of TLS; made when first needed, because reading the system's CAs takes a while.
    asio::ssl::context& tls() {
        if (context) return *context;
        asio::ssl::context fresh(asio::ssl::context::tls_client);
        SSL_CTX_set_min_proto_version(fresh.native_handle(), TLS1_2_VERSION);
        boost::system::error_code error;
        if (options.ca_file.empty()) {
            fresh.set_default_verify_paths(error);
        } else {
            fresh.load_verify_file(options.ca_file, error);
        }
        if (error)
            throw Error(errc::bad_argument,
                        "the CA certificates " +
                            (options.ca_file.empty() ? "of the system" : "in " + options.ca_file) +
                            " cannot be read: " + error.message());
        fresh.set_verify_mode(asio::ssl::verify_peer, error);
        context.emplace(std::move(fresh));
        return *context;
    }

    // Most requests go where the one before went.
    const TargetPtr& target(const std::string& text) {
        if (!last_target || text != last_text) {
            last_target = std::make_shared<detail::HttpTarget>(HttpUrl::parse(text));
            last_text = text;
        }
        return last_target;
    }

    ConnectionPtr take(const std::string& key) {
        // The youngest is the one most likely to live.
        for (auto place = idle.end(); place != idle.begin();) {
            --place;
            if ((*place)->key != key) continue;
            ConnectionPtr connection = std::move(*place);
            place = idle.erase(place);
            if (Clock::now() < connection->idle_until && connection->quiet()) return connection;
        }
        return nullptr;
    }
    void forget(const std::string& key) {
        idle.remove_if([&key](const ConnectionPtr& connection) { return connection->key == key; });
    }
    static void keep(const StatePtr& state, ConnectionPtr connection, Duration time) {
        if (state->stopped || state->options.max_idle_connections == 0 ||
            connection->input.size() > 0)
            return;
        connection->limit(never);
        connection->idle_until = Clock::now() + time;
        if (state->idle.size() >= state->options.max_idle_connections) state->idle.pop_front();
        state->idle.push_back(std::move(connection));
        if (!state->sweeping) sweep(state);
    }
    // Idle connections end in time, also when nobody asks for one.
    static void sweep(const StatePtr& state) {
        const auto now = Clock::now();
        auto next = never;
        state->idle.remove_if([&](const ConnectionPtr& connection) {
            next = std::min(next, std::max(connection->idle_until, now + std::chrono::seconds(1)));
            return connection->idle_until <= now;
        });
        state->sweeping = !state->idle.empty();
        if (!state->sweeping) return;
        state->idle_timer.expires_at(next);
        state->idle_timer.async_wait(
            [weak = std::weak_ptr<State>(state)](boost::system::error_code error) {
                if (const auto self = weak.lock(); self && !error) sweep(self);
            });
    }

    asio::any_io_executor executor;
    HttpClientOptions options;
    std::optional<asio::ssl::context> context;
    std::list<ConnectionPtr> idle;         // the youngest is the last
    std::unordered_set<Connection*> busy;  // broken off when the client goes
    asio::steady_timer idle_timer;
    bool sweeping = false;  // it is set
    std::string last_text;
    TargetPtr last_target;
    bool stopped = false;
};

// A request on its way, or its response.
struct HttpResponse::Exchange {
    Exchange(std::shared_ptr<HttpClient::State> s, detail::HttpTargetPtr t)
        : state(std::move(s)), target(std::move(t)) {}
    const HttpUrl& url() const noexcept { return target->url; }
    ~Exchange() { release(false); }

    void hold(detail::HttpConnectionPtr fresh) {
        release(false);
        connection = std::move(fresh);
        state->busy.insert(connection.get());
    }
    // Gives the connection up: kept for the next request, or closed.
    void release(bool reuse) {
        if (!connection) return;
        state->busy.erase(connection.get());
        if (reuse && !connection->expired) {
            Duration time = state->options.idle_timeout;
            // "Keep-Alive: timeout=5": the server hangs up then; a second less avoids a race.
            const std::string_view announced = find_header(parser->headers, "Keep-Alive");
            if (const auto at = announced.find("timeout="); at != announced.npos) {
                unsigned seconds = 0;
                const auto digits = announced.substr(at + 8);
                std::from_chars(digits.data(), digits.data() + digits.size(), seconds);
                time = std::min<Duration>(time,
                                          std::chrono::seconds(seconds) - std::chrono::seconds(1));
            }
            if (time > Duration::zero())
                HttpClient::State::keep(state, std::move(connection), time);
        } else {
            connection->stream.close();
        }
        connection.reset();
    }

    std::shared_ptr<HttpClient::State> state;
    detail::HttpTargetPtr target;
    detail::HttpConnectionPtr connection;  // null once the body has come
    std::optional<detail::HttpResponseParser> parser;
};

inline HttpClient::HttpClient(asio::any_io_executor executor, HttpClientOptions options)
    : state_(std::make_shared<State>(std::move(executor), std::move(options))) {}

inline HttpClient::~HttpClient() {
    state_->stopped = true;
    state_->idle.clear();
    state_->idle_timer.cancel();
    for (auto* connection : state_->busy) connection->stream.close();
}

inline awaitable<std::unique_ptr<HttpResponse>> HttpClient::send(HttpRequest request) {
    return send(state_, std::make_shared<const HttpRequest>(std::move(request)));
}
inline awaitable<std::unique_ptr<HttpResponse>> HttpClient::send(
    std::shared_ptr<const HttpRequest> request) {
    return send(state_, std::move(request));
}
inline awaitable<std::shared_ptr<HttpStream>> HttpClient::connect(std::string url,
                                                                  Clock::time_point deadline) {
    return connect(state_, std::move(url), deadline);
}

// What went wrong with a connection, as the caller's exception.
inline void HttpClient::fail(const Connection* connection, const HttpUrl& url,
                             boost::system::error_code error, std::string_view what) {
    if (connection != nullptr && connection->expired)
        throw Error(errc::timed_out, url.printable() + " " + std::string(what) + " in time");
    if (error == asio::error::operation_aborted) throw boost::system::system_error(error);
    std::string why = error == asio::error::eof || error == asio::ssl::error::stream_truncated
                          ? "it closed the connection"
                          : error.message();
    throw Error(errc::mcp_connection, url.printable() + " " + std::string(what) + ": " + why);
}

struct HttpClient::Lookup {
    explicit Lookup(const asio::any_io_executor& executor) : resolver(executor), done(executor) {}
    asio::ip::tcp::resolver resolver;
    Event done;
    bool finished = false;
    boost::system::error_code error;
    std::vector<asio::ip::tcp::endpoint> found;
};

// The system's resolver cannot be stopped, so it is not waited for beyond the deadline.
inline awaitable<std::vector<asio::ip::tcp::endpoint>> HttpClient::resolve(
    StatePtr state, std::string host, std::uint16_t port, Clock::time_point deadline) {
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
        throw Error(errc::mcp_connection, "the host " + host + " has no known address (" +
                                              lookup->error.message() +
                                              "): check its spelling and the network");
    co_return std::move(lookup->found);
}

inline std::optional<detail::HttpProxy> HttpClient::proxy_for(const State& state,
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
    if (detail::bypasses_proxy(read({"no_proxy", "NO_PROXY"}).second, url.host, url.port))
        return std::nullopt;
    if (value.find("://") == value.npos) value = "http://" + value;
    if (!value.starts_with("http://"))
        throw Error(errc::bad_argument, "the proxy in " + name +
                                            " is no HTTP proxy: write it as http://HOST:PORT, "
                                            "or name the host in NO_PROXY");
    try {
        const auto parsed = HttpUrl::parse(value);
        return detail::HttpProxy{parsed.host, parsed.port, parsed.credentials};
    } catch (const Error& error) {
        throw Error(errc::bad_argument, name + ": " + error.detail());
    }
}

inline void HttpClient::refuse_address(const HttpUrl& url) {
    throw Error(errc::mcp_connection, url.printable() + ": its address may not be connected to");
}

// A name that a proxy will be asked for. Where it leads from there is not known here: the name
// itself decides, and what is known of it.
inline awaitable<void> HttpClient::check_name(StatePtr state, HttpUrl url,
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
inline awaitable<void> HttpClient::dial(StatePtr state, HttpUrl url, bool tunnel,
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
        throw Error(errc::mcp_connection, "cannot connect to " + whom + ": " + failure.message() +
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

inline awaitable<HttpClient::ConnectionPtr> HttpClient::dial_local(StatePtr state,
                                                                   Clock::time_point deadline) {
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
        throw Error(errc::mcp_connection, "cannot connect to the Unix socket: " + error.message());
    connection->limit(deadline);
    co_return connection;
}

inline awaitable<void> HttpClient::open_tunnel(StatePtr state, ConnectionPtr connection,
                                               HttpUrl url, detail::HttpProxy proxy) {
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
        throw Error(errc::mcp_connection,
                    url.printable() + " " + what + ": it answered with HTTP status " +
                        std::to_string(parser.code) +
                        (parser.code == 407 ? "; put user and password into the proxy's URL" : ""));
    if (connection->input.size() > 0)
        throw Error(errc::mcp_connection,
                    url.printable() + " " + what + ": it sent data before it was asked");
}

inline awaitable<void> HttpClient::start_tls(StatePtr state, ConnectionPtr connection,
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
        throw Error(errc::mcp_connection, text);
    }
    if (ERR_GET_REASON(static_cast<unsigned long>(error.value())) == SSL_R_WRONG_VERSION_NUMBER &&
        error.category() == asio::error::get_ssl_category())
        throw Error(errc::mcp_connection,
                    url.origin() + " does not speak TLS; is its URL one with http://?");
    fail(connection.get(), url, error, "did not complete the TLS handshake");
}

// ---- requests ----

inline void HttpClient::check(const HttpRequest& request) {
    if (!detail::is_http_token(request.method))
        throw Error(errc::bad_argument, "an HTTP method that is none");
    for (const auto& [name, value] : request.headers) {
        if (!detail::is_http_token(name))
            throw Error(errc::bad_argument, "an HTTP header has a name that is none");
        for (const std::string_view own :
             {"Host", "Content-Length", "Transfer-Encoding", "Connection", "Expect", "Upgrade"})
            if (same_header(name, own))
                throw Error(errc::bad_argument,
                            "the HTTP header " + name + " cannot be set: ipybox does that");
        // Not the value: it may be a secret.
        for (const char c : value)
            if ((static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7F)
                throw Error(errc::bad_argument, "the value of the HTTP header " + name +
                                                    " has a line end or another control character");
    }
}

inline std::string HttpClient::head_of(const State& state, const detail::HttpTarget& target,
                                       const HttpRequest& request, bool through_proxy) {
    const HttpUrl& url = target.url;
    std::string head;
    head.reserve(512);
    const auto add = [&head](std::string_view name, std::string_view value) {
        head.append(name).append(": ").append(value).append("\r\n");
    };
    head.append(request.method).append(" ");
    if (through_proxy) head += target.origin;
    head.append(url.path).append(url.query).append(" HTTP/1.1\r\n");
    add("Host", target.authority);
    for (auto entry = request.headers.begin(); entry != request.headers.end(); ++entry) {
        const bool again = std::any_of(entry + 1, request.headers.end(), [&](const auto& later) {
            return same_header(later.first, entry->first);
        });
        if (!again) add(entry->first, entry->second);
    }
    if (find_header(request.headers, "User-Agent").empty())
        head.append("User-Agent: ipybox/").append(detail::version).append("\r\n");
    if (!url.credentials.empty() && find_header(request.headers, "Authorization").empty())
        add("Authorization", "Basic " + detail::encode_base64(url.credentials));
    if (through_proxy)
        if (const auto proxy = proxy_for(state, url); proxy && !proxy->credentials.empty())
            add("Proxy-Authorization", "Basic " + detail::encode_base64(proxy->credentials));
    if (!request.body.empty() ||
        (request.method != "GET" && request.method != "HEAD" && request.method != "DELETE"))
        add("Content-Length", std::to_string(request.body.size()));
    return head.append("\r\n");
}

inline awaitable<std::unique_ptr<HttpResponse>> HttpClient::send(StatePtr state,
                                                                 RequestPtr request) {
    check(*request);
    TargetPtr target = state->target(request->url);
    const int max_redirects = state->options.max_redirects;
    for (int followed = 0;; ++followed) {
        auto answered = co_await exchange(state, target, request);
        const unsigned status = answered->parser->code;
        const bool redirect =
            status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
        if (!redirect || max_redirects == 0)
            co_return std::unique_ptr<HttpResponse>(new HttpResponse(std::move(answered)));
        const std::string location(find_header(answered->parser->headers, "Location"));
        if (location.empty())
            co_return std::unique_ptr<HttpResponse>(new HttpResponse(std::move(answered)));
        const HttpUrl& url = target->url;
        if (followed >= max_redirects)
            throw Error(errc::mcp_connection, url.printable() + " redirects more than " +
                                                  std::to_string(max_redirects) + " times");
        HttpUrl next = url.resolve(location);
        if (next.origin() != url.origin())
            throw Error(errc::mcp_connection,
                        url.printable() + " redirects to " + next.printable() +
                            ": another origin is not followed, it would get what is meant for "
                            "the first; if it is the right one, configure that URL");
        if (next.credentials.empty()) next.credentials = url.credentials;
        // Only 303 asks for another method; the others may keep it (RFC 9110, 15.4).
        if (status == 303 && request->method != "HEAD") {
            auto changed = std::make_shared<HttpRequest>(*request);
            changed->method = "GET";
            changed->body.clear();
            std::erase_if(changed->headers, [](const auto& header) {
                return same_header(header.first, "Content-Type");
            });
            request = std::move(changed);
        }
        target = std::make_shared<detail::HttpTarget>(std::move(next));
    }
}

inline awaitable<HttpClient::ExchangePtr> HttpClient::exchange(StatePtr state, TargetPtr target,
                                                               RequestPtr request) {
    const bool proxied = !target->loopback && proxy_for(*state, target->url).has_value();
    const std::string proxied_key = proxied ? "proxied " + target->origin : std::string();
    const std::string& key = proxied ? proxied_key : target->origin;
    std::string head = head_of(*state, *target, *request, proxied && !target->url.tls);
    const bool repeatable = request->repeatable || request->method == "GET" ||
                            request->method == "HEAD" || request->method == "OPTIONS" ||
                            request->method == "PUT" || request->method == "DELETE";
    auto result = std::make_shared<Exchange>(state, target);
    if (auto kept = state->take(key)) {
        result->hold(std::move(kept));
        const bool answered = co_await attempt(state, result, std::move(head), request, repeatable);
        if (answered) co_return result;
        head = head_of(*state, *target, *request, proxied && !target->url.tls);
        // The others of its age are likely to be gone too.
        state->forget(key);
    }
    ConnectionPtr connection;
    co_await dial(state, target->url, false, connection, request->deadline);
    if (state->stopped) throw boost::system::system_error(asio::error::operation_aborted);
    connection->key = key;
    result->hold(std::move(connection));
    co_await attempt(state, result, std::move(head), request, false);
    co_return result;
}

// Writes the request and reads the head of its response. False: the connection was closed before
// it brought anything, and `may_fail` allows to try another.
inline awaitable<bool> HttpClient::attempt(StatePtr state, ExchangePtr exchange, std::string head,
                                           RequestPtr request, bool may_fail) {
    const ConnectionPtr connection = exchange->connection;
    connection->limit(request->deadline);
    boost::system::error_code unsent;
    bool direct = !connection->stream.is_tls();
    std::size_t sent = 0;
    if (direct) {
        // Nearly always the socket has room for all of it: no wait.
        auto& socket = connection->stream.socket();
        if (!socket.non_blocking()) socket.non_blocking(true, unsent);
        const std::array<asio::const_buffer, 2> whole{asio::buffer(head),
                                                      asio::buffer(request->body)};
        if (!unsent) sent = socket.write_some(whole, unsent);
        if (unsent == asio::error::would_block) unsent.clear();
    }
    if (!unsent && sent < head.size() + request->body.size()) {
        const std::array<asio::const_buffer, 2> rest{
            asio::buffer(head) + sent,
            asio::buffer(request->body) + (sent - std::min(sent, head.size()))};
        const auto [error, size] = co_await asio::async_write(connection->stream, rest, as_result);
        unsent = error;
    }
    // A server may refuse a body before it has all of it: its answer counts then.
    if (unsent == asio::error::operation_aborted)
        fail(connection.get(), exchange->url(), unsent, "did not take the request");
    const bool without_body = request->method == "HEAD";
    constexpr int max_interim = 20;
    for (int interim = 0;; ++interim) {
        exchange->parser.emplace(state->options.max_header, without_body);
        if (connection->input.size() > 0) feed(*state, *exchange);
        while (!exchange->parser->is_header_done()) {
            const bool silent =
                interim == 0 && !exchange->parser->got_some() && connection->input.size() == 0;
            boost::system::error_code error = asio::error::would_block;
            // The answer of a server nearby may be there already.
            if (direct) error = fill_now(*connection);
            direct = false;
            if (error == asio::error::would_block) error = co_await fill(connection);
            if (error) {
                const bool aborted = error == asio::error::operation_aborted;
                if (may_fail && silent && !aborted) co_return false;
                fail(connection.get(), exchange->url(), unsent && !aborted ? unsent : error,
                     "did not answer");
            }
            feed(*state, *exchange);
        }
        const unsigned code = exchange->parser->code;
        if (code / 100 != 1 || code == 101) break;
        if (interim == max_interim)
            throw Error(errc::mcp_connection,
                        exchange->url().printable() + " sends interim answers without end");
    }
    connection->limit(never);
    if (exchange->parser->is_done()) exchange->release(!unsent && exchange->parser->keep_alive());
    co_return true;
}

// Reads what comes next into the connection's buffer.
inline awaitable<boost::system::error_code> HttpClient::fill(ConnectionPtr connection) {
    auto& input = connection->input;
    const auto room = input.prepare(chunk);
    const auto [error, size] = co_await connection->stream.async_read_some(room, as_result);
    input.commit(size);
    co_return error;
}

// The same without waiting; would_block when there is nothing. Not for TLS.
inline boost::system::error_code HttpClient::fill_now(Connection& connection) {
    boost::system::error_code error;
    const auto room = connection.input.prepare(chunk);
    connection.input.commit(connection.stream.socket().read_some(room, error));
    return error;
}

// Gives the parser what has come.
inline void HttpClient::feed(const State& state, Exchange& exchange) {
    namespace http = boost::beast::http;
    auto& input = exchange.connection->input;
    boost::system::error_code error;
    exchange.parser->take(input, error);
    if (error == http::error::header_limit ||
        input.size() > state.options.max_header + (std::size_t{64} << 10))
        throw Error(errc::mcp_connection, exchange.url().printable() +
                                              " sends a head of more than " +
                                              std::to_string(state.options.max_header) + " bytes");
    if (error)
        throw Error(errc::mcp_connection, exchange.url().printable() +
                                              " sends what is no HTTP response: " +
                                              error.message() + "; is the URL right?");
}

inline awaitable<std::string> HttpClient::read_some(ExchangePtr exchange,
                                                    Clock::time_point deadline) {
    auto& parser = *exchange->parser;
    if (exchange->connection) exchange->connection->limit(deadline);
    while (parser.body.empty() && exchange->connection) {
        const ConnectionPtr connection = exchange->connection;
        if (parser.is_done()) {
            exchange->release(parser.keep_alive());
            break;
        }
        auto error = co_await fill(connection);
        if (error == asio::error::eof && parser.need_eof()) {
            parser.put_eof(error);
            exchange->release(false);
            break;
        }
        if (error) {
            exchange->release(false);
            fail(connection.get(), exchange->url(), error, "did not complete its answer");
        }
        feed(*exchange->state, *exchange);
    }
    std::string piece = std::move(parser.body);
    parser.body.clear();
    // Ended in one piece: free the connection now, for the next request.
    if (exchange->connection && parser.is_done()) exchange->release(parser.keep_alive());
    co_return piece;
}

inline awaitable<std::string> HttpClient::read_all(ExchangePtr exchange, std::size_t limit,
                                                   Clock::time_point deadline) {
    std::string all;
    MemoryReservation memory;
    for (;;) {
        const std::string piece = co_await read_some(exchange, deadline);
        if (piece.empty()) co_return all;
        if (piece.size() > limit - all.size()) {
            exchange->release(false);
            throw Error(errc::mcp_connection, exchange->url().printable() +
                                                  " answered with more than " +
                                                  std::to_string(limit) + " bytes");
        }
        all += piece;
        if (!memory.resize(all.size() > free_of_budget ? all.capacity() : 0)) {
            exchange->release(false);
            throw Error(errc::mcp_connection, exchange->url().printable() +
                                                  " answered with more than there is memory left for; try again, or ask for less");
        }
    }
}

inline awaitable<std::shared_ptr<HttpStream>> HttpClient::connect(StatePtr state, std::string url,
                                                                  Clock::time_point deadline) {
    const HttpUrl target = HttpUrl::parse(url);
    ConnectionPtr connection;
    co_await dial(state, target, true, connection, deadline);
    connection->limit(never);
    co_return std::shared_ptr<HttpStream>(connection, &connection->stream);
}

inline HttpResponse::~HttpResponse() {
    if (exchange_) exchange_->release(false);
}
inline unsigned HttpResponse::status() const noexcept { return exchange_->parser->code; }
inline const HttpHeaders& HttpResponse::headers() const noexcept {
    return exchange_->parser->headers;
}
inline const HttpUrl& HttpResponse::url() const noexcept { return exchange_->url(); }
inline awaitable<std::string> HttpResponse::read_some(Clock::time_point deadline) {
    return HttpClient::read_some(exchange_, deadline);
}
inline std::optional<std::string> HttpResponse::all_now(std::size_t limit) {
    auto& body = exchange_->parser->body;
    if (exchange_->connection || body.size() > limit) return std::nullopt;
    return std::exchange(body, std::string());
}
inline awaitable<std::string> HttpResponse::read_all(std::size_t limit,
                                                     Clock::time_point deadline) {
    return HttpClient::read_all(exchange_, limit, deadline);
}

}  // namespace ipybox
