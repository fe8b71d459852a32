#pragma once
// How the host's services listen that speak HTTP/1.1: one accept loop and one reader of requests for
// all. Who has not shown that it may use a service is a stranger: it neither stays, nor sends more than
// a head, nor crowds out anybody but strangers.
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <ipybox/async.hpp>
#include <ipybox/log.hpp>
#include <ipybox/memory_budget.hpp>
#include <ipybox/net/private_listener.hpp>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace ipybox::detail {

// A request's body of this size needs nothing of the memory that all share, in bytes.
inline constexpr std::size_t small_body = std::size_t{16} << 10;

// What a listener lets through. Durations of zero: unlimited.
struct HttpLimits {
    std::uint32_t max_head = 16u << 10;     // bytes of a request's head
    std::size_t max_body = 0;               // bytes of a request's body
    std::size_t max_buffered = 256u << 20;  // bytes of all bodies being received or answered
    // Of those who are no strangers. Beyond it the one that has been idle longest makes room; where
    // all are being answered, newcomers wait.
    std::size_t max_connections = 256;
    // Beyond it the oldest of the address that has most of them makes room.
    std::size_t max_strangers = 256;
    Duration stranger_timeout = std::chrono::seconds(10);       // how long a connection may be one
    Duration crowded_timeout = std::chrono::milliseconds(500);  // how long it is let while others want its place
    Duration request_timeout = std::chrono::seconds(60);        // from a request's first byte to its last
    Duration idle_timeout{};                                    // between requests
    Duration write_timeout{};                                   // for a peer that does not read
};

// The limits that the options of more than one service have, under the same names.
template <class Options>
HttpLimits limits_of(const Options& options, std::size_t max_body) {
    HttpLimits limits;
    limits.max_body = max_body;
    limits.max_buffered = options.max_buffered;
    limits.max_connections = options.max_connections;
    limits.max_strangers = options.max_strangers;
    limits.stranger_timeout = options.stranger_timeout;
    return limits;
}

using HttpSocket = asio::generic::stream_protocol::socket;
using HttpServerRequest = boost::beast::http::request<boost::beast::http::string_body>;

struct HttpReply {
    unsigned status = 0;  // 0: none
    std::string body, content_type = "application/json";
    std::string headers;  // lines of further ones
};

class HttpListener;

// One connection.
struct HttpPeer {
    HttpPeer(HttpListener& listener, HttpSocket connected) : socket(std::move(connected)), home(listener) {}

    // Closes it in `time` from now; zero: never.
    void limit(Duration time);
    // False: it is over.
    awaitable<bool> write(std::string text);

    HttpSocket socket;  // a service may take it: then the connection is its own, and keeps its place
    std::optional<asio::ssl::stream<HttpSocket&>> tls;
    unsigned short port = 0;             // at which it came; 0: a Unix socket
    std::string address;                 // from which; of IPv6 its network; empty for a Unix socket
    std::string buffer;                  // received and not used yet
    // Of the request that is being answered.
    bool keep_alive = true, chunked = true;
    bool bodiless = false;  // it is a HEAD
    std::string headers;    // lines that every answer to it has

private:
    friend class HttpListener;
    enum class State { stranger, waiting, known, answering };
    HttpListener& home;
    std::list<std::shared_ptr<HttpPeer>>::iterator place;
    Clock::time_point deadline = never;
    State state = State::stranger;
    Clock::time_point since = Clock::now();  // it is that
    std::size_t held = 0;                    // of max_buffered
    MemoryReservation memory;                // the same, of what all of the process share
    bool closed = false;
};
using HttpPeerPtr = std::shared_ptr<HttpPeer>;

// Who answers the requests of a listener. Held by its owner, and by connections while they are served.
class HttpService {
public:
    virtual ~HttpService() = default;
    // Judges a request by its head, before any of its body is read. No reply: from now on the peer is
    // no stranger, and answer() follows. Else that is all the peer gets.
    virtual HttpReply check(HttpPeer& peer, const HttpServerRequest& head) = 0;
    // Answers a request that was let through; false: the connection is over.
    virtual awaitable<bool> answer(HttpPeerPtr peer, HttpServerRequest request) = 0;
    // What is said to one that broke the protocol or a limit, or whose connection is given away (408);
    // an empty one: nothing.
    virtual HttpReply refusal(unsigned status, const std::string& why) = 0;
};

inline std::string_view reason_of(unsigned status) {
    switch (status) {
        case 200: return "OK";
        case 202: return "Accepted";
        case 204: return "No Content";
        case 400: return "Bad Request";
        case 401: return "Unauthorized";
        case 403: return "Forbidden";
        case 404: return "Not Found";
        case 405: return "Method Not Allowed";
        case 406: return "Not Acceptable";
        case 408: return "Request Timeout";
        case 409: return "Conflict";
        case 411: return "Length Required";
        case 413: return "Content Too Large";
        case 415: return "Unsupported Media Type";
        case 431: return "Request Header Fields Too Large";
        case 503: return "Service Unavailable";
        default: return "Error";
    }
}

inline std::string render(const HttpPeer& peer, const HttpReply& reply) {
    std::string text = "HTTP/1.1 " + std::to_string(reply.status) + ' ';
    text += reason_of(reply.status);
    text += "\r\n";
    if (!reply.body.empty()) text += "Content-Type: " + reply.content_type + "\r\n";
    if (reply.status != 204) text += "Content-Length: " + std::to_string(reply.body.size()) + "\r\n";
    if (!peer.keep_alive) text += "Connection: close\r\n";
    text += reply.headers;
    text += peer.headers;
    text += "\r\n";
    if (!peer.bodiless) text += reply.body;
    return text;
}

// Any number of acceptors for one service. Owned and used on one thread, that of `executor`.
class HttpListener : public std::enable_shared_from_this<HttpListener> {
public:
    // who: the service, for the log.
    HttpListener(asio::any_io_executor executor, std::string who, HttpLimits limits, Logger logger)
        : who_(std::move(who)), limits_(limits), logger_(std::move(logger)), executor_(std::move(executor)),
          freed_(executor_), tick_(executor_), patience_(limits_.crowded_timeout) {}

    // Serves who comes to an acceptor that listens; over TLS, if there is a context. The service must
    // hold this.
    void start(std::weak_ptr<HttpService> service, asio::ip::tcp::acceptor acceptor,
               std::shared_ptr<asio::ssl::context> tls = nullptr) {
        begin();
        auto& place = tcp_.emplace_back(std::move(acceptor));
        auto accepting = accept(shared_from_this(), std::move(service), place, std::move(tls));
        asio::co_spawn(executor_, std::move(accepting), asio::detached);
    }
    void start(std::weak_ptr<HttpService> service, asio::local::stream_protocol::acceptor acceptor) {
        begin();
        auto& place = local_.emplace_back(std::move(acceptor));
        auto accepting = accept(shared_from_this(), std::move(service), place, nullptr);
        asio::co_spawn(executor_, std::move(accepting), asio::detached);
    }
    // Closes acceptors and connections.
    void close() {
        closed_ = true;
        boost::system::error_code ignored;
        for (auto& one : tcp_) one.close(ignored);
        for (auto& one : local_) one.close(ignored);
        for (const auto* group : {&strangers_, &others_})
            for (const auto& peer : *group) peer->socket.close(ignored);
        freed_.notify();
        tick_.notify();
    }
    // What carries the connections has no more than so many places: some of them stay free.
    void fit(std::size_t places) {
        limits_.max_connections = std::min(limits_.max_connections, places / 8 * 5);
        limits_.max_strangers = std::min(limits_.max_strangers, places / 4);
    }
    std::size_t connections() const noexcept { return strangers_.size() + others_.size(); }
    std::size_t strangers() const noexcept { return strangers_.size(); }

private:
    friend struct HttpPeer;
    using Self = std::shared_ptr<HttpListener>;
    using ServicePtr = std::shared_ptr<HttpService>;
    using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;
    using State = HttpPeer::State;

    void begin() {
        if (!std::exchange(watching_, true)) asio::co_spawn(executor_, watch_time(shared_from_this()), asio::detached);
    }

    // Of the descriptors that the program may have, an eighth is for strangers, a quarter for what it
    // does besides.
    static std::size_t descriptors() {
        rlimit most{};
        if (::getrlimit(RLIMIT_NOFILE, &most) != 0) return 1024;
        return static_cast<std::size_t>(std::min<rlim_t>(most.rlim_cur, 1u << 30));
    }
    std::size_t room_for_strangers() const {
        return std::max<std::size_t>(std::min(descriptors() / 8, limits_.max_strangers), 1);
    }
    std::size_t room() const {
        return std::max<std::size_t>(std::min(descriptors() / 8 * 5, limits_.max_connections), 1);
    }

    // ---- places ----

    // Ends a connection, and gives its place away at once.
    void drop(HttpPeerPtr peer) {
        if (std::exchange(peer->closed, true)) return;
        (peer->state == State::stranger ? strangers_ : others_).erase(peer->place);
        boost::system::error_code ignored;
        peer->socket.close(ignored);
        freed_.notify();
    }
    // The same for one that is idle. What it sent meanwhile is not carried out, which no peer could
    // tell from a connection that just ended: it is told.
    void give_away(const ServicePtr& service, const HttpPeerPtr& peer) {
        const auto reply = service && !peer->tls ? service->refusal(408, "the connection was given away before this was read") : HttpReply();
        if (reply.status != 0) {
            peer->keep_alive = peer->bodiless = false;
            peer->headers.clear();
            const auto text = render(*peer, reply);
            ::send(peer->socket.native_handle(), text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
        }
        drop(peer);
    }
    HttpPeerPtr oldest_stranger() const {
        std::map<std::string_view, std::size_t> from;
        std::size_t most = 0;
        for (const auto& peer : strangers_) most = std::max(most, ++from[peer->address]);
        for (const auto& peer : strangers_)
            if (from[peer->address] == most) return peer;
        return nullptr;
    }
    // Of those on which nothing has arrived that waits to be read.
    HttpPeerPtr longest_idle() const {
        HttpPeerPtr found;
        for (const auto& peer : others_) {
            const bool longer = peer->state == State::known && (!found || peer->since < found->since);
            if (longer && !is_readable(peer->socket.native_handle())) found = peer;
        }
        return found;
    }
    void enter(HttpPeer& peer, State state) {
        peer.state = state;
        peer.since = Clock::now();
    }

    // A stranger has shown that it may be here.
    static awaitable<void> admit(Self self, ServicePtr service, HttpPeerPtr peer) {
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

    template <class Acceptor>
    static awaitable<void> accept(Self self, std::weak_ptr<HttpService> service, Acceptor& acceptor,
                                  std::shared_ptr<asio::ssl::context> tls) {
        constexpr bool is_tcp = std::is_same_v<Acceptor, asio::ip::tcp::acceptor>;
        while (!self->closed_) {
            if (self->waiting_ > 0) {
                co_await self->freed_.wait();
                continue;
            }
            auto [error, socket] = co_await acceptor.async_accept(as_result);
            if (self->closed_) break;
            if (error) {
                // Out of descriptors, most likely: not in a circle.
                if (const auto stranger = self->oldest_stranger()) self->drop(stranger);
                else if (const auto idle = self->longest_idle()) self->give_away(service.lock(), idle);
                const auto soon = Clock::now() + std::chrono::milliseconds(50);
                co_await self->freed_.wait(soon);
                continue;
            }
            HttpPeerPtr peer;
            if constexpr (is_tcp) {
                const auto from = prepare(socket);
                peer = std::make_shared<HttpPeer>(*self, HttpSocket(std::move(socket)));
                peer->address = from;
                boost::system::error_code ignored;
                peer->port = acceptor.local_endpoint(ignored).port();
                if (tls) peer->tls.emplace(peer->socket, *tls);
            } else {
                peer = std::make_shared<HttpPeer>(*self, HttpSocket(std::move(socket)));
            }
            peer->place = self->strangers_.insert(self->strangers_.end(), peer);
            peer->limit(self->limits_.stranger_timeout);
            asio::co_spawn(self->executor_, serve(self, service, std::move(peer), tls), asio::detached);
            const auto most = self->room_for_strangers();
            if (self->strangers_.size() <= most / 2) self->patience_ = self->limits_.crowded_timeout;
            while (!self->closed_ && self->strangers_.size() > most) {
                const auto oldest = self->oldest_stranger();
                const auto until = oldest->since + self->patience_;
                if (Clock::now() >= until) {
                    self->drop(oldest);
                    // The longer the rush lasts, the less it is let.
                    self->patience_ = self->patience_ * 9 / 10;
                } else {
                    co_await self->freed_.wait(until);
                }
            }
        }
    }

    // Sets the options of a connection, and says from where it comes.
    static std::string prepare(asio::ip::tcp::socket& socket) {
        boost::system::error_code ignored;
        socket.set_option(asio::ip::tcp::no_delay(true), ignored);
        // A machine that vanishes says nothing.
        socket.set_option(asio::socket_base::keep_alive(true), ignored);
        const int seconds = 15, milliseconds = 60'000;
        for (const int option : {TCP_KEEPIDLE, TCP_KEEPINTVL})
            ::setsockopt(socket.native_handle(), IPPROTO_TCP, option, &seconds, sizeof seconds);
        ::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_USER_TIMEOUT, &milliseconds, sizeof milliseconds);
        const auto address = socket.remote_endpoint(ignored).address();
        if (!address.is_v6() || address.to_v6().is_v4_mapped()) return address.to_string();
        auto network = address.to_v6().to_bytes();  // a machine has all addresses of a /64
        std::fill(network.begin() + 8, network.end(), static_cast<unsigned char>(0));
        return asio::ip::address_v6(network).to_string();
    }

    // ---- time ----

    // One clock for all: a timer for each request would be what a call costs most.
    static awaitable<void> watch_time(Self self) {
        Duration step = std::chrono::seconds(1);
        const auto& limits = self->limits_;
        for (const auto time : {limits.stranger_timeout, limits.request_timeout, limits.idle_timeout, limits.write_timeout})
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

    // ---- one connection ----

    static awaitable<void> serve(Self self, std::weak_ptr<HttpService> owner, HttpPeerPtr peer,
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
            const auto [error] = co_await peer->tls->async_handshake(asio::ssl::stream_base::server, as_result);
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

    // False: the connection is over. A reply that is set: the service has let nothing through.
    static awaitable<bool> read(Self self, ServicePtr service, HttpPeerPtr peer, HttpServerRequest& request,
                                HttpReply& reply) {
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
                    if (reply.status == 0 && boost::beast::iequals(head[http::field::expect], "100-continue")) {
                        std::string go_on = "HTTP/1.1 100 Continue\r\n\r\n";
                        const bool written = co_await peer->write(std::move(go_on));
                        if (!written || peer->closed) co_return false;
                        peer->limit(self->limits_.request_timeout);
                    }
                }
                const std::size_t held = reply.status != 0 ? 0 : std::max(parser.get().body().size(), length_of(parser));
                self->buffered_ += held - peer->held;
                peer->held = held;
                if (error && error != http::error::need_more && reply.status == 0) {
                    if (error == http::error::body_limit) {
                        reply = service->refusal(413, "the request is larger than " + std::to_string(self->limits_.max_body) + " bytes");
                    } else if (error == http::error::header_limit) {
                        reply = service->refusal(431, "the request's head is larger than " + std::to_string(self->limits_.max_head) + " bytes");
                    } else {
                        reply = service->refusal(400, "not an HTTP/1.1 request: " + error.message());
                    }
                    if (reply.status == 0) co_return false;
                    peer->keep_alive = false;
                }
                const bool fits = peer->memory.resize(held > small_body ? held : 0) && self->buffered_ <= self->limits_.max_buffered;
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
                std::tie(error, size) = co_await peer->tls->async_read_some(asio::buffer(chunk), as_result);
            } else {
                std::tie(error, size) = co_await peer->socket.async_read_some(asio::buffer(chunk), as_result);
            }
            // What had arrived before it was dropped counts for nothing.
            if (error || peer->closed) co_return false;
            buffer.append(chunk, 0, size);
            if (size == chunk.size() && size < (std::size_t{256} << 10)) chunk.resize(2 * size);
        }
    }
    // What the request's body has been announced to be.
    static std::size_t length_of(const Parser& parser) {
        const auto length = parser.is_header_done() ? parser.content_length() : boost::none;
        return length ? static_cast<std::size_t>(*length) : 0;
    }

    // What a refused peer still sends would otherwise reset the connection before it reads why.
    static awaitable<void> drain(HttpPeerPtr peer) {
        boost::system::error_code ignored;
        peer->socket.shutdown(HttpSocket::shutdown_send, ignored);
        peer->limit(std::chrono::seconds(2));
        std::string rest(std::size_t{64} << 10, '\0');
        for (int i = 0; i < 64; ++i) {
            auto [error, size] = co_await peer->socket.async_read_some(asio::buffer(rest), as_result);
            if (error) break;
        }
    }

    const std::string who_;
    HttpLimits limits_;
    Logger logger_;
    asio::any_io_executor executor_;
    std::list<asio::ip::tcp::acceptor> tcp_;
    std::list<asio::local::stream_protocol::acceptor> local_;
    std::list<HttpPeerPtr> strangers_, others_;
    Event freed_, tick_;
    Duration patience_{};  // with strangers, while they are too many
    std::size_t buffered_ = 0, waiting_ = 0;
    bool closed_ = false, watching_ = false, dozing_ = false;
};

inline void HttpPeer::limit(Duration time) {
    deadline = deadline_after(time);
    if (deadline != never && std::exchange(home.dozing_, false)) home.tick_.notify();
}

inline awaitable<bool> HttpPeer::write(std::string text) {
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

}  // namespace ipybox::detail
