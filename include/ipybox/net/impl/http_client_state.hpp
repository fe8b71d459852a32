#pragma once
#include <ipybox/net/http_client.hpp>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>

#include <boost/asio/ip/network_v4.hpp>
#include <boost/asio/ip/network_v6.hpp>
#include <boost/asio/ssl/context.hpp>
#include <exception>
#include <ipybox/compilation.hpp>
#include <ipybox/detail/build_info.hpp>
#include <list>
#include <unordered_set>

namespace ipybox {

// ---- connections ----
struct HttpClient::Impl {
    Impl(asio::any_io_executor e, HttpClientOptions o)
        : executor(std::move(e)), options(std::move(o)), idle_timer(executor) {}

    // The context of TLS; made when first needed, because reading the system's CAs takes a while.
    asio::ssl::context& tls();

    // Most requests go where the one before went.
    const TargetPtr& target(const std::string& text);

    ConnectionPtr take(const std::string& key);
    void forget(const std::string& key) {
        idle.remove_if([&key](const ConnectionPtr& connection) { return connection->key == key; });
    }
    static void keep(const ImplPtr& state, ConnectionPtr connection, Duration time);
    // Idle connections end in time, also when nobody asks for one.
    static void sweep(const ImplPtr& state);

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
    Exchange(std::shared_ptr<HttpClient::Impl> s, net::HttpTargetPtr t)
        : state(std::move(s)), target(std::move(t)) {}
    const HttpUrl& url() const noexcept { return target->url; }
    ~Exchange() { release(false); }

    void hold(net::HttpConnectionPtr fresh);
    // Gives the connection up: kept for the next request, or closed.
    void release(bool reuse);

    std::shared_ptr<HttpClient::Impl> state;
    net::HttpTargetPtr target;
    net::HttpConnectionPtr connection;  // null once the body has come
    std::optional<net::HttpResponseParser> parser;
};

struct HttpClient::Lookup {
    explicit Lookup(const asio::any_io_executor& executor) : resolver(executor), done(executor) {}
    asio::ip::tcp::resolver resolver;
    Event done;
    bool finished = false;
    boost::system::error_code error;
    std::vector<asio::ip::tcp::endpoint> found;
};

}  // namespace ipybox
