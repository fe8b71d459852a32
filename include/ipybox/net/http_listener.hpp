#pragma once
// How the host's HTTP/1.1 services listen: one accept loop and one reader of requests for all. Who
// has not shown that it may use a service is a stranger: it neither stays, nor sends more than a
// head, nor crowds out anybody but other strangers.

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
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace ipybox::net {

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
    Duration stranger_timeout = std::chrono::seconds(10);  // how long a connection may be one
    Duration crowded_timeout =
        std::chrono::milliseconds(500);  // how long it may be one while others want its place
    Duration request_timeout = std::chrono::seconds(60);  // from a request's first byte to its last
    Duration idle_timeout{};                              // between requests
    Duration write_timeout{};                             // for a peer that does not read
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
    HttpPeer(HttpListener& listener, HttpSocket connected)
        : socket(std::move(connected)), home(listener) {}

    // Closes it in `time` from now; zero: never.
    void limit(Duration time);
    // False: it is over.
    awaitable<bool> write(std::string text);

    HttpSocket
        socket;  // a service may take it: then the connection is its own, and keeps its place
    std::optional<asio::ssl::stream<HttpSocket&>> tls;
    unsigned short port = 0;  // at which it came; 0: a Unix socket
    std::string address;      // from which; of IPv6 its network; empty for a Unix socket
    std::string buffer;       // received and not used yet
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

// Who answers the requests of a listener. Held by its owner, and by connections while they are
// served.
class HttpService {
public:
    virtual ~HttpService() = default;
    // Judges a request by its head, before any of its body is read. No reply: from now on the peer
    // is no stranger, and answer() follows. Else that is all the peer gets.
    virtual HttpReply check(HttpPeer& peer, const HttpServerRequest& head) = 0;
    // Answers a request that was let through; false: the connection is over.
    virtual awaitable<bool> answer(HttpPeerPtr peer, HttpServerRequest request) = 0;
    // What is said to one that broke the protocol or a limit, or whose connection is given away
    // (408); an empty one: nothing.
    virtual HttpReply refusal(unsigned status, const std::string& why) = 0;
};

std::string_view reason_of(unsigned status);

std::string render(const HttpPeer& peer, const HttpReply& reply);

// Any number of acceptors for one service. Owned and used on one thread, that of `executor`.
class HttpListener : public std::enable_shared_from_this<HttpListener> {
public:
    // who: the service, for the log.
    HttpListener(asio::any_io_executor executor, std::string who, HttpLimits limits, Logger logger)
        : who_(std::move(who)),
          limits_(limits),
          logger_(std::move(logger)),
          executor_(std::move(executor)),
          freed_(executor_),
          tick_(executor_),
          patience_(limits_.crowded_timeout) {}

    // Serves who comes to an acceptor that listens; over TLS, if there is a context. The service
    // must hold this.
    void start(std::weak_ptr<HttpService> service, asio::ip::tcp::acceptor acceptor,
               std::shared_ptr<asio::ssl::context> tls = nullptr);
    void start(std::weak_ptr<HttpService> service, asio::local::stream_protocol::acceptor acceptor);
    // Closes acceptors and connections.
    void close();
    // What carries the connections has no more than so many places: some of them stay free.
    void fit(std::size_t places);
    std::size_t connections() const noexcept { return strangers_.size() + others_.size(); }
    std::size_t strangers() const noexcept { return strangers_.size(); }

private:
    friend struct HttpPeer;
    using Self = std::shared_ptr<HttpListener>;
    using ServicePtr = std::shared_ptr<HttpService>;
    using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;
    using State = HttpPeer::State;

    void begin() {
        if (!std::exchange(watching_, true))
            asio::co_spawn(executor_, watch_time(shared_from_this()), asio::detached);
    }

    // Of the descriptors that the program may have, an eighth is for strangers, a quarter for
    // whatever else it does.
    static std::size_t descriptors();
    std::size_t room_for_strangers() const {
        return std::max<std::size_t>(std::min(descriptors() / 8, limits_.max_strangers), 1);
    }
    std::size_t room() const {
        return std::max<std::size_t>(std::min(descriptors() / 8 * 5, limits_.max_connections), 1);
    }

    // ---- places ----

    // Ends a connection, and gives its place away at once.
    void drop(HttpPeerPtr peer);
    // The same for one that is idle. What it sent meanwhile is not carried out, which no peer could
    // tell from a connection that just ended: it is told.
    void give_away(const ServicePtr& service, const HttpPeerPtr& peer);
    HttpPeerPtr oldest_stranger() const;
    // Of those on which nothing has arrived that waits to be read.
    HttpPeerPtr longest_idle() const;
    void enter(HttpPeer& peer, State state);

    // A stranger has shown that it may be here.
    static awaitable<void> admit(Self self, ServicePtr service, HttpPeerPtr peer);

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
                if (const auto stranger = self->oldest_stranger())
                    self->drop(stranger);
                else if (const auto idle = self->longest_idle())
                    self->give_away(service.lock(), idle);
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
            asio::co_spawn(self->executor_, serve(self, service, std::move(peer), tls),
                           asio::detached);
            const auto most = self->room_for_strangers();
            if (self->strangers_.size() <= most / 2)
                self->patience_ = self->limits_.crowded_timeout;
            while (!self->closed_ && self->strangers_.size() > most) {
                const auto oldest = self->oldest_stranger();
                const auto until = oldest->since + self->patience_;
                if (Clock::now() >= until) {
                    self->drop(oldest);
                    // The longer the rush lasts, the less time strangers get.
                    self->patience_ = self->patience_ * 9 / 10;
                } else {
                    co_await self->freed_.wait(until);
                }
            }
        }
    }

    // Sets the options of a connection, and says from where it comes.
    static std::string prepare(asio::ip::tcp::socket& socket);

    // ---- time ----

    // One clock for all: a timer for each request would be what a call costs most.
    static awaitable<void> watch_time(Self self);

    // ---- one connection ----

    static awaitable<void> serve(Self self, std::weak_ptr<HttpService> owner, HttpPeerPtr peer,
                                 std::shared_ptr<asio::ssl::context> tls);

    // False: the connection is over. A reply that is set: the service has let nothing through.
    static awaitable<bool> read(Self self, ServicePtr service, HttpPeerPtr peer,
                                HttpServerRequest& request, HttpReply& reply);
    // What the request's body has been announced to be.
    static std::size_t length_of(const Parser& parser);

    // What a refused peer still sends would otherwise reset the connection before it reads why.
    static awaitable<void> drain(HttpPeerPtr peer);

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

}  // namespace ipybox::net

#ifndef IPYBOX_SEPARATE_COMPILATION
#include <ipybox/net/impl/http_listener.ipp>
#endif
