#pragma once
#include <ipybox/net/http_listener.hpp>

#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <ipybox/compilation.hpp>
#include <map>

namespace ipybox::net {

IPYBOX_DECL std::string_view reason_of(unsigned status) {
    switch (status) {
        case 200:
            return "OK";
        case 202:
            return "Accepted";
        case 204:
            return "No Content";
        case 400:
            return "Bad Request";
        case 401:
            return "Unauthorized";
        case 403:
            return "Forbidden";
        case 404:
            return "Not Found";
        case 405:
            return "Method Not Allowed";
        case 406:
            return "Not Acceptable";
        case 408:
            return "Request Timeout";
        case 409:
            return "Conflict";
        case 411:
            return "Length Required";
        case 413:
            return "Content Too Large";
        case 415:
            return "Unsupported Media Type";
        case 431:
            return "Request Header Fields Too Large";
        case 503:
            return "Service Unavailable";
        default:
            return "Error";
    }
}

IPYBOX_DECL std::string render(const HttpPeer& peer, const HttpReply& reply) {
    std::string text = "HTTP/1.1 " + std::to_string(reply.status) + ' ';
    text += reason_of(reply.status);
    text += "\r\n";
    if (!reply.body.empty()) text += "Content-Type: " + reply.content_type + "\r\n";
    if (reply.status != 204)
        text += "Content-Length: " + std::to_string(reply.body.size()) + "\r\n";
    if (!peer.keep_alive) text += "Connection: close\r\n";
    text += reply.headers;
    text += peer.headers;
    text += "\r\n";
    if (!peer.bodiless) text += reply.body;
    return text;
}

IPYBOX_DECL void HttpListener::start(std::weak_ptr<HttpService> service,
                                     asio::ip::tcp::acceptor acceptor,
                                     std::shared_ptr<asio::ssl::context> tls) {
    begin();
    auto& place = tcp_.emplace_back(std::move(acceptor));
    auto accepting = accept(shared_from_this(), std::move(service), place, std::move(tls));
    asio::co_spawn(executor_, std::move(accepting), asio::detached);
}

IPYBOX_DECL void HttpListener::start(std::weak_ptr<HttpService> service,
                                     asio::local::stream_protocol::acceptor acceptor) {
    begin();
    auto& place = local_.emplace_back(std::move(acceptor));
    auto accepting = accept(shared_from_this(), std::move(service), place, nullptr);
    asio::co_spawn(executor_, std::move(accepting), asio::detached);
}

IPYBOX_DECL void HttpListener::close() {
    closed_ = true;
    boost::system::error_code ignored;
    for (auto& one : tcp_) one.close(ignored);
    for (auto& one : local_) one.close(ignored);
    for (const auto* group : {&strangers_, &others_})
        for (const auto& peer : *group) peer->socket.close(ignored);
    freed_.notify();
    tick_.notify();
}

IPYBOX_DECL void HttpListener::fit(std::size_t places) {
    limits_.max_connections = std::min(limits_.max_connections, places / 8 * 5);
    limits_.max_strangers = std::min(limits_.max_strangers, places / 4);
}

IPYBOX_DECL std::size_t HttpListener::descriptors() {
    rlimit most{};
    if (::getrlimit(RLIMIT_NOFILE, &most) != 0) return 1024;
    return static_cast<std::size_t>(std::min<rlim_t>(most.rlim_cur, 1u << 30));
}

IPYBOX_DECL void HttpListener::drop(HttpPeerPtr peer) {
    if (std::exchange(peer->closed, true)) return;
    (peer->state == State::stranger ? strangers_ : others_).erase(peer->place);
    boost::system::error_code ignored;
    peer->socket.close(ignored);
    freed_.notify();
}

IPYBOX_DECL void HttpListener::give_away(const ServicePtr& service, const HttpPeerPtr& peer) {
    const auto reply =
        service && !peer->tls
            ? service->refusal(408, "the connection was given away before this was read")
            : HttpReply();
    if (reply.status != 0) {
        peer->keep_alive = peer->bodiless = false;
        peer->headers.clear();
        const auto text = render(*peer, reply);
        ::send(peer->socket.native_handle(), text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    drop(peer);
}

IPYBOX_DECL HttpPeerPtr HttpListener::oldest_stranger() const {
    std::map<std::string_view, std::size_t> from;
    std::size_t most = 0;
    for (const auto& peer : strangers_) most = std::max(most, ++from[peer->address]);
    for (const auto& peer : strangers_)
        if (from[peer->address] == most) return peer;
    return nullptr;
}

IPYBOX_DECL HttpPeerPtr HttpListener::longest_idle() const {
    HttpPeerPtr found;
    for (const auto& peer : others_) {
        const bool longer = peer->state == State::known && (!found || peer->since < found->since);
        if (longer && !is_readable(peer->socket.native_handle())) found = peer;
    }
    return found;
}

IPYBOX_DECL void HttpListener::enter(HttpPeer& peer, State state) {
    peer.state = state;
    peer.since = Clock::now();
}

IPYBOX_DECL awaitable<void> HttpListener::admit(Self self, ServicePtr service, HttpPeerPtr peer) {
    self->others_.splice(self->others_.end(), self->strangers_, peer->place);
    self->enter(*peer, State::waiting);
    peer->deadline = never;
    ++self->waiting_;
    struct Leave {
        HttpListener& self;
        ~Leave() {
            --self.waiting_;
            self.freed_.notify();
        }
    } const leave{*self};
    while (!self->closed_ && self->others_.size() - self->waiting_ >= self->room()) {
        if (const auto idle = self->longest_idle()) {
            self->give_away(service, idle);
        } else {
            co_await self->freed_.wait();
        }
    }
    self->enter(*peer, State::known);
}

IPYBOX_DECL std::string HttpListener::prepare(asio::ip::tcp::socket& socket) {
    boost::system::error_code ignored;
    socket.set_option(asio::ip::tcp::no_delay(true), ignored);
    // A machine that vanishes says nothing.
    socket.set_option(asio::socket_base::keep_alive(true), ignored);
    const int seconds = 15, milliseconds = 60'000;
    for (const int option : {TCP_KEEPIDLE, TCP_KEEPINTVL})
        ::setsockopt(socket.native_handle(), IPPROTO_TCP, option, &seconds, sizeof seconds);
    ::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_USER_TIMEOUT, &milliseconds,
                 sizeof milliseconds);
    const auto address = socket.remote_endpoint(ignored).address();
    if (!address.is_v6() || address.to_v6().is_v4_mapped()) return address.to_string();
    auto network = address.to_v6().to_bytes();  // a machine has all addresses of a /64
    std::fill(network.begin() + 8, network.end(), static_cast<unsigned char>(0));
    return asio::ip::address_v6(network).to_string();
}

IPYBOX_DECL awaitable<void> HttpListener::watch_time(Self self) {
    Duration step = std::chrono::seconds(1);
    const auto& limits = self->limits_;
    for (const auto time : {limits.stranger_timeout, limits.request_timeout, limits.idle_timeout,
                            limits.write_timeout})
        if (time > Duration::zero()) step = std::min(step, time / 4);
    step = std::max<Duration>(step, std::chrono::milliseconds(10));
    while (!self->closed_) {
        self->dozing_ = true;
        for (const auto* group : {&self->strangers_, &self->others_})
            for (const auto& peer : *group)
                if (peer->deadline != never) self->dozing_ = false;
        if (self->dozing_) co_await self->tick_.wait();
        if (self->closed_) break;
        const auto next = Clock::now() + step;
        co_await self->tick_.wait(next);
        const auto now = Clock::now();
        boost::system::error_code ignored;
        for (const auto* group : {&self->strangers_, &self->others_})
            for (const auto& peer : *group)
                if (peer->deadline <= now) peer->socket.close(ignored);
    }
}

IPYBOX_DECL awaitable<void> HttpListener::serve(Self self, std::weak_ptr<HttpService> owner,
                                                HttpPeerPtr peer,
                                                std::shared_ptr<asio::ssl::context> tls) {
    struct Leave {
        HttpListener& self;
        HttpPeerPtr peer;
        ~Leave() {
            self.buffered_ -= peer->held;
            self.drop(peer);
        }
    } const leave{*self, peer};
    const ServicePtr service = owner.lock();
    if (!service) co_return;
    if (tls) {
        const auto [error] =
            co_await peer->tls->async_handshake(asio::ssl::stream_base::server, as_result);
        if (error) co_return;
    }
    try {
        bool more = true;
        while (more && !self->closed_ && !peer->closed) {
            HttpServerRequest request;
            HttpReply reply;
            const bool read = co_await self->read(self, service, peer, request, reply);
            if (!read) break;
            if (reply.status != 0) {
                auto text = render(*peer, reply);
                more = co_await peer->write(std::move(text));
                more = more && peer->keep_alive;
            } else {
                self->enter(*peer, State::answering);
                peer->deadline = never;
                more = co_await service->answer(peer, std::move(request));
                self->enter(*peer, State::known);
                if (self->waiting_ > 0) self->freed_.notify();
            }
            self->buffered_ -= std::exchange(peer->held, 0);
            peer->memory.release();
        }
        if (!peer->keep_alive && !self->closed_ && !peer->closed) co_await drain(peer);
    } catch (const std::exception& error) {
        self->logger_(LogLevel::warning, self->who_ + ": " + error.what());
    }
}

IPYBOX_DECL awaitable<bool> HttpListener::read(Self self, ServicePtr service, HttpPeerPtr peer,
                                               HttpServerRequest& request, HttpReply& reply) {
    namespace http = boost::beast::http;
    Parser parser;
    parser.header_limit(self->limits_.max_head);
    parser.body_limit(self->limits_.max_body);
    parser.eager(true);
    auto& buffer = peer->buffer;
    bool head_checked = false;
    peer->headers.clear();
    peer->keep_alive = true;
    peer->bodiless = false;
    bool begun = !buffer.empty();
    const auto patience = begun ? self->limits_.request_timeout : self->limits_.idle_timeout;
    if (peer->state == State::known) peer->limit(patience);
    // An idle connection costs little memory, a large body few reads.
    std::string chunk(2048, '\0');
    for (;;) {
        if (!buffer.empty()) {
            boost::system::error_code error;
            const std::size_t used = parser.put(asio::buffer(buffer), error);
            buffer.erase(0, used);
            if (parser.is_header_done() && !head_checked) {
                head_checked = true;
                const auto& head = parser.get();
                peer->keep_alive = head.keep_alive();
                peer->chunked = head.version() >= 11;
                peer->bodiless = head.method() == http::verb::head;
                reply = service->check(*peer, head);
                if (reply.status >= 400 && peer->state == State::stranger) peer->keep_alive = false;
                if (reply.status == 0 && peer->state == State::stranger) {
                    co_await admit(self, service, peer);
                    peer->limit(self->limits_.request_timeout);
                    begun = true;
                }
                if (reply.status == 0 &&
                    boost::beast::iequals(head[http::field::expect], "100-continue")) {
                    std::string go_on = "HTTP/1.1 100 Continue\r\n\r\n";
                    const bool written = co_await peer->write(std::move(go_on));
                    if (!written || peer->closed) co_return false;
                    peer->limit(self->limits_.request_timeout);
                }
            }
            const std::size_t held =
                reply.status != 0 ? 0 : std::max(parser.get().body().size(), length_of(parser));
            self->buffered_ += held - peer->held;
            peer->held = held;
            if (error && error != http::error::need_more && reply.status == 0) {
                if (error == http::error::body_limit) {
                    reply = service->refusal(413, "the request is larger than " +
                                                      std::to_string(self->limits_.max_body) +
                                                      " bytes");
                } else if (error == http::error::header_limit) {
                    reply = service->refusal(431, "the request's head is larger than " +
                                                      std::to_string(self->limits_.max_head) +
                                                      " bytes");
                } else {
                    reply = service->refusal(400, "not an HTTP/1.1 request: " + error.message());
                }
                if (reply.status == 0) co_return false;
                peer->keep_alive = false;
            }
            const bool fits = peer->memory.resize(held > small_body ? held : 0) &&
                              self->buffered_ <= self->limits_.max_buffered;
            if (reply.status == 0 && !fits) {
                // Those who came first go on.
                self->buffered_ -= std::exchange(peer->held, 0);
                peer->memory.release();
                reply = service->refusal(503, "too much is being received at once; try again");
                peer->keep_alive = false;
            }
            if (parser.is_done() && (!error || error == http::error::need_more)) {
                request = parser.release();
                co_return true;
            }
            if (reply.status != 0) {
                // The rest of the body will not be read.
                peer->keep_alive = false;
                co_return true;
            }
        }
        if (peer->state == State::known && !begun && parser.got_some()) {
            begun = true;
            peer->limit(self->limits_.request_timeout);
        }
        boost::system::error_code error;
        std::size_t size = 0;
        if (peer->tls) {
            std::tie(error, size) =
                co_await peer->tls->async_read_some(asio::buffer(chunk), as_result);
        } else {
            std::tie(error, size) =
                co_await peer->socket.async_read_some(asio::buffer(chunk), as_result);
        }
        // What had arrived before it was dropped counts for nothing.
        if (error || peer->closed) co_return false;
        buffer.append(chunk, 0, size);
        if (size == chunk.size() && size < (std::size_t{256} << 10)) chunk.resize(2 * size);
    }
}

IPYBOX_DECL std::size_t HttpListener::length_of(const Parser& parser) {
    const auto length = parser.is_header_done() ? parser.content_length() : boost::none;
    return length ? static_cast<std::size_t>(*length) : 0;
}

IPYBOX_DECL awaitable<void> HttpListener::drain(HttpPeerPtr peer) {
    boost::system::error_code ignored;
    peer->socket.shutdown(HttpSocket::shutdown_send, ignored);
    peer->limit(std::chrono::seconds(2));
    std::string rest(std::size_t{64} << 10, '\0');
    for (int i = 0; i < 64; ++i) {
        auto [error, size] = co_await peer->socket.async_read_some(asio::buffer(rest), as_result);
        if (error) break;
    }
}

IPYBOX_DECL void HttpPeer::limit(Duration time) {
    deadline = deadline_after(time);
    if (deadline != never && std::exchange(home.dozing_, false)) home.tick_.notify();
}

IPYBOX_DECL awaitable<bool> HttpPeer::write(std::string text) {
    if (state != State::stranger) limit(home.limits_.write_timeout);
    boost::system::error_code error;
    std::size_t size = 0;
    if (tls) {
        std::tie(error, size) = co_await asio::async_write(*tls, asio::buffer(text), as_result);
    } else {
        std::tie(error, size) = co_await asio::async_write(socket, asio::buffer(text), as_result);
    }
    if (state != State::stranger) deadline = never;
    co_return !error;
}

}  // namespace ipybox::net
