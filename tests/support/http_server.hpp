#pragma once
// An HTTP server on a loopback port that says exactly what a test wants, proper HTTP or not.
#include <openssl/evp.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/write.hpp>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <ipybox/net/http_client.hpp>
#include <list>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ipybox::test {

struct HttpMessage {
    std::string method;
    std::string target;
    HttpHeaders headers;
    std::string body;
    int connection = 0;  // the first is 1
    std::string_view header(std::string_view name) const { return find_header(headers, name); }
    std::size_t count(std::string_view name) const {
        return static_cast<std::size_t>(
            std::count_if(headers.begin(), headers.end(),
                          [&](const auto& h) { return same_header(h.first, name); }));
    }
};

// One connection. write() throws when the client is gone, which ends the handler.
class HttpPeer {
public:
    explicit HttpPeer(asio::ip::tcp::socket connected) : socket(std::move(connected)) {}

    awaitable<void> write(std::string text) {
        const auto buffer = asio::buffer(text);
        if (tls) {
            co_await asio::async_write(*tls, buffer, asio::use_awaitable);
        } else {
            co_await asio::async_write(socket, buffer, asio::use_awaitable);
        }
    }
    // Empty: the client is gone.
    awaitable<std::string> read() {
        std::string text(16 << 10, '\0');
        const auto buffer = asio::buffer(text);
        std::size_t size = 0;
        if (tls) {
            const auto [error, count] = co_await tls->async_read_some(buffer, as_result);
            size = error ? 0 : count;
        } else {
            const auto [error, count] = co_await socket.async_read_some(buffer, as_result);
            size = error ? 0 : count;
        }
        text.resize(size);
        co_return text;
    }
    awaitable<void> respond(unsigned status, std::string headers, std::string body) {
        std::string text = "HTTP/1.1 " + std::to_string(status) + " X\r\n" + headers +
                           "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
        co_await write(std::move(text));
    }
    awaitable<void> begin_chunks(std::string headers) {
        std::string text = "HTTP/1.1 200 OK\r\n" + headers + "Transfer-Encoding: chunked\r\n\r\n";
        co_await write(std::move(text));
    }
    // An empty one is the last.
    awaitable<void> chunk(std::string piece) {
        char size[20];
        std::snprintf(size, sizeof size, "%zx\r\n", piece.size());
        std::string text = size + piece + "\r\n";
        co_await write(std::move(text));
    }
    // Returns when the client has hung up.
    awaitable<void> wait_for_end() {
        for (;;) {
            const std::string more = co_await read();
            if (more.empty()) co_return;
        }
    }
    awaitable<void> start_tls(asio::ssl::context& context) {
        tls.emplace(socket, context);
        co_await tls->async_handshake(asio::ssl::stream_base::server, asio::use_awaitable);
    }
    void close() {
        boost::system::error_code ignored;
        socket.close(ignored);
    }

    asio::ip::tcp::socket socket;
    std::optional<asio::ssl::stream<asio::ip::tcp::socket&>> tls;
    std::string input;
    bool keep = true;  // false: closed after the handler
    int number = 0;
};
using HttpPeerPtr = std::shared_ptr<HttpPeer>;
using HttpHandler = std::function<awaitable<void>(HttpMessage, HttpPeerPtr)>;

class HttpServer {
public:
    // tls: every connection begins with a handshake.
    HttpServer(asio::io_context& context, HttpHandler handler, asio::ssl::context* tls = nullptr)
        : state_(std::make_shared<Impl>(context)) {
        state_->handler = std::move(handler);
        state_->tls = tls;
        asio::co_spawn(context, accept(state_), asio::detached);
    }
    ~HttpServer() { stop(); }
    HttpServer(const HttpServer&) = delete;
    HttpServer& operator=(const HttpServer&) = delete;

    void stop() {
        boost::system::error_code ignored;
        state_->acceptor.close(ignored);
        for (const auto& weak : state_->peers)
            if (const auto peer = weak.lock()) peer->close();
    }
    std::uint16_t port() const { return state_->port; }
    std::string origin() const { return "http://127.0.0.1:" + std::to_string(port()); }
    int connections() const { return state_->connections; }
    std::size_t open_connections() const {
        return static_cast<std::size_t>(
            std::count_if(state_->peers.begin(), state_->peers.end(),
                          [](const auto& weak) { return !weak.expired(); }));
    }
    // Every request that came whole.
    const std::vector<HttpMessage>& seen() const { return state_->seen; }
    void handle(HttpHandler handler) { state_->handler = std::move(handler); }

private:
    struct Impl {
        explicit Impl(asio::io_context& context)
            : acceptor(context, {asio::ip::address_v4::loopback(), 0}),
              port(acceptor.local_endpoint().port()) {}
        asio::ip::tcp::acceptor acceptor;
        std::uint16_t port;
        HttpHandler handler;
        asio::ssl::context* tls = nullptr;
        std::list<std::weak_ptr<HttpPeer>> peers;
        std::vector<HttpMessage> seen;
        int connections = 0;
    };
    using ImplPtr = std::shared_ptr<Impl>;

    static awaitable<void> accept(ImplPtr state) {
        for (;;) {
            auto [error, socket] = co_await state->acceptor.async_accept(as_result);
            if (error) co_return;
            auto peer = std::make_shared<HttpPeer>(std::move(socket));
            peer->number = ++state->connections;
            state->peers.push_back(peer);
            asio::co_spawn(state->acceptor.get_executor(), serve(state, peer), asio::detached);
        }
    }
    static awaitable<void> serve(ImplPtr state, HttpPeerPtr peer) {
        try {
            if (state->tls != nullptr) co_await peer->start_tls(*state->tls);
            while (peer->keep) {
                HttpMessage message;
                message.connection = peer->number;
                const bool whole = co_await read_message(peer, message);
                if (!whole) break;
                state->seen.push_back(message);
                const auto handler = state->handler;  // handle() may replace it meanwhile
                co_await handler(std::move(message), peer);
            }
        } catch (const std::exception&) {
            // The client is gone: tests look at what it saw.
        }
        peer->close();
    }
    static awaitable<bool> read_message(HttpPeerPtr peer, HttpMessage& message) {
        auto& input = peer->input;
        std::size_t end = 0;
        while ((end = input.find("\r\n\r\n")) == input.npos) {
            const std::string more = co_await peer->read();
            if (more.empty()) co_return false;
            input += more;
        }
        std::string head = input.substr(0, end + 2);
        input.erase(0, end + 4);
        const auto line_end = head.find("\r\n");
        const std::string line = head.substr(0, line_end);
        message.method = line.substr(0, line.find(' '));
        message.target = line.substr(line.find(' ') + 1, line.rfind(' ') - line.find(' ') - 1);
        head.erase(0, line_end + 2);
        while (!head.empty()) {
            const auto stop = head.find("\r\n");
            const auto colon = head.find(": ");
            message.headers.emplace_back(head.substr(0, colon),
                                         head.substr(colon + 2, stop - colon - 2));
            head.erase(0, stop + 2);
        }
        const auto length = message.header("Content-Length");
        const std::size_t size = length.empty() ? 0 : std::stoul(std::string(length));
        while (input.size() < size) {
            const std::string more = co_await peer->read();
            if (more.empty()) co_return false;
            input += more;
        }
        message.body = input.substr(0, size);
        input.erase(0, size);
        co_return true;
    }

    ImplPtr state_;
};

// A certificate that vouches for itself, for the names in `alternatives` ("DNS:localhost"), and
// its key; the certificate is also written to `file`.
inline void make_certificate(asio::ssl::context& context, const std::filesystem::path& file,
                             const std::string& alternatives, long first_day = 0,
                             long last_day = 1) {
    const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(EVP_EC_gen("P-256"),
                                                                  EVP_PKEY_free);
    const std::unique_ptr<X509, decltype(&X509_free)> certificate(X509_new(), X509_free);
    X509* x509 = certificate.get();
    X509_set_version(x509, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(x509), 1);
    X509_gmtime_adj(X509_getm_notBefore(x509), first_day * 86400 - 3600);
    X509_gmtime_adj(X509_getm_notAfter(x509), last_day * 86400);
    X509_set_pubkey(x509, key.get());
    X509_NAME* name = X509_get_subject_name(x509);
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>("test"), -1, -1, 0);
    X509_set_issuer_name(x509, name);
    X509_EXTENSION* names =
        X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, alternatives.c_str());
    X509_add_ext(x509, names, -1);
    X509_EXTENSION_free(names);
    if (X509_sign(x509, key.get(), EVP_sha256()) == 0) throw std::runtime_error("no certificate");
    std::FILE* out = std::fopen(file.c_str(), "w");
    if (out == nullptr || PEM_write_X509(out, x509) != 1)
        throw std::runtime_error("no certificate file");
    std::fclose(out);
    SSL_CTX_use_certificate(context.native_handle(), x509);
    SSL_CTX_use_PrivateKey(context.native_handle(), key.get());
}

}  // namespace ipybox::test
