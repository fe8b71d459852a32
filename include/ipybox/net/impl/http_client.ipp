#pragma once
#include <ipybox/net/http_client.hpp>

#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <ipybox/compilation.hpp>
#include <ipybox/net/certificates.hpp>
#include <ipybox/net/impl/http_client_state.hpp>

namespace ipybox {

IPYBOX_DECL std::string_view find_header(const HttpHeaders& headers,
                                         std::string_view name) noexcept {
    for (const auto& [key, value] : headers)
        if (same_header(key, name)) return value;
    return {};
}

IPYBOX_DECL void HttpStream::close() noexcept {
    boost::system::error_code ignored;
    socket_.close(ignored);
}

IPYBOX_DECL void teardown(boost::beast::role_type, HttpStream& stream,
                          boost::system::error_code& error) {
    stream.socket().close(error);
}

}  // namespace ipybox

namespace ipybox::net {

IPYBOX_DECL HttpResponseParser::HttpResponseParser(std::size_t max_header, bool without_body) {
    headers.reserve(8);
    header_limit(static_cast<std::uint32_t>(std::min<std::size_t>(max_header, UINT32_MAX)));
    body_limit(boost::none);
    eager(true);
    skip(without_body);
}

IPYBOX_DECL void HttpResponseParser::take(boost::beast::flat_buffer& input,
                                          boost::system::error_code& error) {
    while (!error && input.size() > 0 && !is_done()) {
        const std::size_t used = put(asio::const_buffer(input.cdata()), error);
        input.consume(used);
        if (used == 0 && !error) break;
    }
    if (error == boost::beast::http::error::need_more) error.clear();
}

IPYBOX_DECL void HttpResponseParser::on_response_impl(int status, Text, int, Code& error) {
    code = static_cast<unsigned>(status);
    if (status < 100) error = boost::beast::http::error::bad_status;
}

IPYBOX_DECL std::size_t HttpResponseParser::on_body_impl(Text piece, Code&) {
    body.append(piece);
    return piece.size();
}

IPYBOX_DECL std::size_t HttpResponseParser::on_chunk_body_impl(std::uint64_t, Text piece, Code&) {
    body.append(piece);
    return piece.size();
}

IPYBOX_DECL void HttpConnection::limit(Clock::time_point when) {
    deadline = when;
    expired = false;
    if (deadline < armed) arm();
}

IPYBOX_DECL void HttpConnection::arm() {
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

IPYBOX_DECL bool HttpConnection::quiet() {
    char byte = 0;
    const auto got = ::recv(stream.socket().native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
}

// Whether `directory` has certificates under the names by which OpenSSL looks them up.
inline bool has_hashed_certificates(const std::filesystem::path& directory) {
    std::error_code error;
    for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
         entry.increment(error))
        if (entry->path().extension() == ".0") return true;
    return false;
}

// Has `context` trust the authorities in `ca_file` (PEM); where that is empty those of
// $SSL_CERT_FILE and $SSL_CERT_DIR, else this machine's. Throws Error: bad_argument (certificates
// cannot be read; names the file).
inline void trust_authorities(asio::ssl::context& context, const std::string& ca_file) {
    const auto variable = [](const char* name) {
        const char* value = std::getenv(name);
        return std::string(value == nullptr ? "" : value);
    };
    const bool named = !ca_file.empty();
    std::string file = named ? ca_file : variable(X509_get_default_cert_file_env());
    const std::string directory = variable(X509_get_default_cert_dir_env());
    // A directory is read when a certificate is looked for in it; a bundle takes 50 ms to load.
    if (std::error_code error; file.empty() && directory.empty() &&
                               !std::filesystem::exists(X509_get_default_cert_file(), error) &&
                               !has_hashed_certificates(X509_get_default_cert_dir()))
        // OpenSSL was built for another distribution than this one, as that of the wheel may be.
        if (const auto bundle = certificate_bundle()) file = bundle->string();
    boost::system::error_code error;
    if (!file.empty())
        context.load_verify_file(file, error);
    else if (directory.empty())
        context.set_default_verify_paths(error);
    if (!named && !directory.empty()) SSL_CTX_set_default_verify_dir(context.native_handle());
    if (error)
        throw Error(
            errc::bad_argument,
            "the CA certificates " + (file.empty() ? "of the system" : "in " + file) +
                " cannot be read: " + error.message() +
                (named || file.empty() ? ""
                                       : "; name a PEM file of certificates in SSL_CERT_FILE"));
}

}  // namespace ipybox::net

namespace ipybox {

IPYBOX_DECL net::HttpTarget::HttpTarget(HttpUrl to)
    : url(std::move(to)), authority(url.authority()), origin(url.origin()) {
    boost::system::error_code no_address;
    const auto address = asio::ip::make_address(url.host, no_address);
    loopback = url.host == "localhost" || url.host.ends_with(".localhost") ||
               (!no_address && address.is_loopback());
}

IPYBOX_DECL asio::ssl::context& HttpClient::Impl::tls() {
    if (context) return *context;
    asio::ssl::context fresh(asio::ssl::context::tls_client);
    SSL_CTX_set_min_proto_version(fresh.native_handle(), TLS1_2_VERSION);
    net::trust_authorities(fresh, options.ca_file);
    boost::system::error_code error;
    fresh.set_verify_mode(asio::ssl::verify_peer, error);
    context.emplace(std::move(fresh));
    return *context;
}

IPYBOX_DECL const HttpClient::TargetPtr& HttpClient::Impl::target(const std::string& text) {
    if (!last_target || text != last_text) {
        last_target = std::make_shared<net::HttpTarget>(HttpUrl::parse(text));
        last_text = text;
    }
    return last_target;
}

IPYBOX_DECL HttpClient::ConnectionPtr HttpClient::Impl::take(const std::string& key) {
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

IPYBOX_DECL void HttpClient::Impl::keep(const ImplPtr& state, ConnectionPtr connection,
                                        Duration time) {
    if (state->stopped || state->options.max_idle_connections == 0 || connection->input.size() > 0)
        return;
    connection->limit(never);
    connection->idle_until = Clock::now() + time;
    if (state->idle.size() >= state->options.max_idle_connections) state->idle.pop_front();
    state->idle.push_back(std::move(connection));
    if (!state->sweeping) sweep(state);
}

IPYBOX_DECL void HttpClient::Impl::sweep(const ImplPtr& state) {
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
        [weak = std::weak_ptr<Impl>(state)](boost::system::error_code error) {
            if (const auto self = weak.lock(); self && !error) sweep(self);
        });
}

IPYBOX_DECL void HttpResponse::Exchange::hold(net::HttpConnectionPtr fresh) {
    release(false);
    connection = std::move(fresh);
    state->busy.insert(connection.get());
}

IPYBOX_DECL void HttpResponse::Exchange::release(bool reuse) {
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
            time =
                std::min<Duration>(time, std::chrono::seconds(seconds) - std::chrono::seconds(1));
        }
        if (time > Duration::zero()) HttpClient::Impl::keep(state, std::move(connection), time);
    } else {
        connection->stream.close();
    }
    connection.reset();
}

IPYBOX_DECL HttpClient::HttpClient(asio::any_io_executor executor, HttpClientOptions options)
    : state_(std::make_shared<Impl>(std::move(executor), std::move(options))) {}

IPYBOX_DECL HttpClient::~HttpClient() {
    state_->stopped = true;
    state_->idle.clear();
    state_->idle_timer.cancel();
    for (auto* connection : state_->busy) connection->stream.close();
}

IPYBOX_DECL awaitable<std::shared_ptr<HttpStream>> HttpClient::connect(std::string url,
                                                                       Clock::time_point deadline) {
    return connect(state_, std::move(url), deadline);
}

IPYBOX_DECL awaitable<std::shared_ptr<HttpStream>> HttpClient::connect(ImplPtr state,
                                                                       std::string url,
                                                                       Clock::time_point deadline) {
    const HttpUrl target = HttpUrl::parse(url);
    ConnectionPtr connection;
    co_await dial(state, target, true, connection, deadline);
    connection->limit(never);
    co_return std::shared_ptr<HttpStream>(connection, &connection->stream);
}

}  // namespace ipybox
