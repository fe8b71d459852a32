#pragma once
// HTTP/1.1 and TLS as a client, with connections kept alive; and connected streams for WebSockets.

#include <boost/asio/error.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/role.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>
#include <cstdlib>
#include <functional>
#include <ipybox/async.hpp>
#include <ipybox/detail/base64.hpp>
#include <ipybox/error.hpp>
#include <ipybox/log.hpp>
#include <ipybox/memory_budget.hpp>
#include <ipybox/net/domain_rule.hpp>
#include <ipybox/net/proxy_protocol.hpp>
#include <ipybox/net/url.hpp>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ipybox {

// In the order in which they stand in the message.
using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

// Names of headers compare without case.
inline bool same_header(std::string_view a, std::string_view b) noexcept {
    return net::same_without_case(a, b);
}

// The value of the first header of that name; empty when there is none.
std::string_view find_header(const HttpHeaders& headers, std::string_view name) noexcept;

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
    // Followed within one origin only; a redirect to another one is an error (http_failed) that
    // names both. 0: a redirect is a result like any other.
    int max_redirects = 3;
    // Whether an address may be connected to; empty: any. Behind a proxy, which looks names up by
    // itself, all addresses that a name is known to have here must be allowed.
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
    void close() noexcept;

private:
    friend class HttpClient;
    using Tls = asio::ssl::stream<Socket&>;
    Socket socket_;
    std::optional<Tls> tls_;
};

// How Beast ends a WebSocket's connection.
void teardown(boost::beast::role_type, HttpStream& stream, boost::system::error_code& error);
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

namespace net {

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

    HttpResponseParser(std::size_t max_header, bool without_body);

    // Takes what it can off the beginning of `input`. It stops after a chunk's header and the
    // like, so it is asked until it wants more.
    void take(boost::beast::flat_buffer& input, boost::system::error_code& error);

    unsigned code = 0;
    HttpHeaders headers;
    std::string body;  // what has come and was not taken

private:
    void on_request_impl(boost::beast::http::verb, Text, Text, int, Code&) {}
    void on_response_impl(int status, Text, int, Code& error);
    void on_field_impl(boost::beast::http::field, Text name, Text value, Code&) {
        if (!is_header_done()) headers.emplace_back(name, value);
    }
    void on_trailer_field_impl(boost::beast::http::field, Text, Text, Code&) {}
    void on_header_impl(Code&) {}
    void on_body_init_impl(const boost::optional<std::uint64_t>&, Code&) {}
    std::size_t on_body_impl(Text piece, Code&);
    void on_chunk_header_impl(std::uint64_t, Text, Code&) {}
    std::size_t on_chunk_body_impl(std::uint64_t, Text piece, Code&);
    void on_finish_impl(Code&) {}
};

// A stream with what was read from it too early, and a time limit that closes it.
struct HttpConnection : std::enable_shared_from_this<HttpConnection> {
    explicit HttpConnection(const asio::any_io_executor& executor)
        : stream(executor), timer(executor) {}

    // One timer serves many limits: it is touched only when one is nearer than what it waits for.
    void limit(Clock::time_point when);
    void arm();
    // Nothing has come on an idle connection, and its end has not either.
    bool quiet();

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

}  // namespace net

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
    // The next piece of the body as it comes; empty at its end. Throws Error: http_failed (the body
    // breaks off), timed_out (at `deadline`); a cancelled coroutine gets operation_aborted.
    awaitable<std::string> read_some(Clock::time_point deadline = never);
    // The whole body, if all of it came with the head and is not longer than `limit` bytes; as
    // read_all(), without waiting.
    std::optional<std::string> all_now(std::size_t limit);
    // The rest of the body. Throws Error: http_failed (it breaks off, or is longer than `limit`
    // bytes), timed_out (at `deadline`).
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

    // Any status is a result. Throws Error: http_failed (the server cannot be reached, or breaks
    // off), timed_out (at a limit), bad_argument (URL or headers); a cancelled coroutine gets
    // operation_aborted. No text has a URL's query or credentials, or a header's value.
    awaitable<std::unique_ptr<HttpResponse>> send(HttpRequest request);
    // The same for a request that the caller keeps, and leaves as it is meanwhile.
    awaitable<std::unique_ptr<HttpResponse>> send(std::shared_ptr<const HttpRequest> request);

    // A stream connected to the host of an http, https, ws or wss URL, through a proxy's tunnel
    // where the environment asks for one. Lives on after the client. Throws what send() throws.
    awaitable<std::shared_ptr<HttpStream>> connect(std::string url, Clock::time_point deadline);

private:
    friend class HttpResponse;
    using Connection = net::HttpConnection;
    using ConnectionPtr = net::HttpConnectionPtr;
    using Parser = net::HttpResponseParser;
    using Exchange = HttpResponse::Exchange;
    using ExchangePtr = std::shared_ptr<Exchange>;
    struct Impl;
    using ImplPtr = std::shared_ptr<Impl>;
    struct Lookup;

    using TargetPtr = net::HttpTargetPtr;
    using RequestPtr = std::shared_ptr<const HttpRequest>;

    static awaitable<std::unique_ptr<HttpResponse>> send(ImplPtr state, RequestPtr request);
    static awaitable<std::shared_ptr<HttpStream>> connect(ImplPtr state, std::string url,
                                                          Clock::time_point deadline);
    static awaitable<ExchangePtr> exchange(ImplPtr state, TargetPtr target, RequestPtr request);
    static awaitable<bool> attempt(ImplPtr state, ExchangePtr exchange, std::string head,
                                   RequestPtr request, bool may_fail);
    static awaitable<void> dial(ImplPtr state, HttpUrl url, bool tunnel, ConnectionPtr& connected,
                                Clock::time_point deadline);
    [[noreturn]] static void refuse_address(const HttpUrl& url);
    static awaitable<void> check_name(ImplPtr state, HttpUrl url, Clock::time_point deadline);
    static awaitable<std::vector<asio::ip::tcp::endpoint>> resolve(ImplPtr state, std::string host,
                                                                   std::uint16_t port,
                                                                   Clock::time_point deadline);
    static awaitable<ConnectionPtr> dial_local(ImplPtr state, Clock::time_point deadline);
    static awaitable<void> open_tunnel(ImplPtr state, ConnectionPtr connection, HttpUrl url,
                                       net::HttpProxy proxy);
    static awaitable<void> start_tls(ImplPtr state, ConnectionPtr connection, HttpUrl url);
    static constexpr std::size_t chunk = std::size_t{16} << 10;          // bytes of one read
    static constexpr std::size_t free_of_budget = std::size_t{1} << 20;  // of a body
    static awaitable<boost::system::error_code> fill(ConnectionPtr connection);
    static boost::system::error_code fill_now(Connection& connection);
    static awaitable<std::string> read_some(ExchangePtr exchange, Clock::time_point deadline);
    static awaitable<std::string> read_all(ExchangePtr exchange, std::size_t limit,
                                           Clock::time_point deadline);
    static void feed(const Impl& state, Exchange& exchange);
    static std::optional<net::HttpProxy> proxy_for(const Impl& state, const HttpUrl& url);
    static std::string head_of(const Impl& state, const net::HttpTarget& target,
                               const HttpRequest& request, bool through_proxy);
    static void check(const HttpRequest& request);
    [[noreturn]] static void fail(const Connection* connection, const HttpUrl& url,
                                  boost::system::error_code error, std::string_view what);

    ImplPtr state_;
};

// For whoever requests something on behalf of more than HTTP: http_failed becomes `code`, in the
// same words; other errors stay as they are.
inline Error http_failure_as(errc code, const Error& error) {
    return error.code() == errc::http_failed ? Error(code, error.detail()) : error;
}

}  // namespace ipybox

#ifndef IPYBOX_SEPARATE_COMPILATION
#include <ipybox/net/impl/http_client.ipp>
#include <ipybox/net/impl/http_dial.ipp>
#include <ipybox/net/impl/http_exchange.ipp>
#endif
