#pragma once
// Serves an McpServer over HTTP (MCP "Streamable HTTP"): legacy clients with sessions and resumable
// streams (2025-03-26 to 2025-11-25) and modern ones without (2026-07-28), at one address; and at
// another, if wanted, those that know only HTTP+SSE (2024-11-05).

#include <array>
#include <filesystem>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/mcp/detail/event_backlog.hpp>
#include <ipybox/mcp/server.hpp>
#include <ipybox/mcp/sse.hpp>
#include <ipybox/net/http_listener.hpp>

namespace ipybox {

// Who may use the server, and its limits.
struct McpHttpOptions {
    std::string path = "/mcp";
    // Where clients of 2024-11-05 find HTTP+SSE, "/sse" by custom; empty: nowhere. What goes for
    // `path` goes for it too.
    std::string sse_path;
    // Names under which clients may address the server, besides localhost, 127.0.0.1 and [::1];
    // "*": any. Requests for another host are refused before their body is read: a web page could
    // otherwise reach a server on the visitor's machine.
    std::vector<std::string> allowed_hosts;
    // Web pages that may use it, by origin: "https://app.example", or "http://localhost:3000" for
    // one of this machine; "*": any. Of those not named, only pages from the listener's own port
    // may.
    std::vector<std::string> allowed_origins;
    // Whoever presents one of these as bearer token may use the server; each is a principal of its
    // own. Empty: everybody who reaches it may.
    std::vector<std::string> tokens;
    // Members of the protected-resource metadata (RFC 9728): authorization_servers,
    // scopes_supported, resource_name. `resource` is derived from the request unless given here.
    json::object resource_metadata;
    std::size_t max_header = std::size_t{32} << 10;  // bytes of a request's head
    std::size_t max_buffered = std::size_t{256}
                               << 20;  // bytes of all bodies received and not yet answered
    // Of connections that have presented a token (or, without tokens, sent a request), as far as
    // five eighths of RLIMIT_NOFILE allow. Beyond it the one that has been idle longest is closed.
    std::size_t max_connections = 16'384;
    // Of others: how many at once, and how long each may take to present one. Beyond the number the
    // oldest is closed, of the address that has most of them.
    std::size_t max_strangers = 256;
    Duration stranger_timeout = std::chrono::seconds(10);
    std::size_t max_sessions = 1'000;
    std::size_t max_stream = std::size_t{1} << 20;     // bytes unsent, or kept for a resumption
    std::size_t max_replay = std::size_t{4} << 20;     // bytes kept for all streams of a session
    Duration session_idle = std::chrono::minutes(30);  // without a request or an open stream
    // Bytes of one event; a longer answer becomes an error. The Python SDK's client gives up at 1
    // MiB. What nothing came before is no event, but JSON.
    std::size_t max_event = (std::size_t{1} << 20) - (std::size_t{16} << 10);
    Duration replay_time = std::chrono::minutes(5);  // how long an ended stream can be resumed
    Duration connection_idle = std::chrono::seconds(75);
    Duration request_timeout = std::chrono::seconds(60);  // from a request's first byte to its last
    Duration write_timeout = std::chrono::seconds(60);    // for a client that does not read
    Duration keep_alive = std::chrono::seconds(15);       // between signs of life on a quiet stream
    std::chrono::milliseconds retry{1000};  // after which clients come back to a stream
};

namespace mcp {
struct McpHttpService;
}

// Any number of listeners for one McpServer, on its executor. The McpServer must outlive it.
class McpHttpServer {
public:
    // Serves nobody before listen().
    explicit McpHttpServer(McpServer& server, McpHttpOptions options = {});
    ~McpHttpServer();
    McpHttpServer(const McpHttpServer&) = delete;
    McpHttpServer& operator=(const McpHttpServer&) = delete;

    // host: an address or "localhost"; port 0: any. Returns the port. Throws Error: io_error (it
    // cannot listen there), bad_argument (it is no address, or one that others can reach while
    // options.allowed_hosts is empty).
    unsigned short listen(const std::string& host, unsigned short port);
    // A Unix socket of mode 0600; the path must not exist. Throws Error: io_error (it cannot listen
    // there).
    void listen(const std::filesystem::path& path);
    // Closes listeners and connections; sessions end with the McpServer or when they are idle.
    void stop();

    std::size_t connections() const noexcept;

private:
    std::shared_ptr<mcp::McpHttpService> state_;
};

namespace mcp {

class HttpServerStream;

// What HTTP keeps for a legacy session.
struct HttpServerSession {
    std::map<std::uint64_t, std::shared_ptr<HttpServerStream>> streams;  // that can be resumed
    std::uint64_t last_stream = 0;
    std::size_t max_replay = 0;
    bool sse = false;  // of HTTP+SSE: it lasts as long as its one stream
    void trim();
};

// The answer to one POST: a JSON object if nothing comes before it, else a stream of events. Or
// the stream of a legacy session for what belongs to no request.
class HttpServerStream final : public McpOutlet,
                               public std::enable_shared_from_this<HttpServerStream> {
public:
    struct Style {
        bool resumable = false;  // events have ids and are kept
        bool primed = false;     // the stream begins with an event that has only an id
        std::chrono::milliseconds retry{1000};
        std::size_t max_event = SIZE_MAX;
    };
    HttpServerStream(const asio::any_io_executor& executor, std::size_t limit, Style style,
                     const std::shared_ptr<HttpServerSession>& home)
        : changed(executor), backlog_(limit, style.resumable), style_(style), home_(home) {}

    bool notify(json::object message) override;
    void ask(json::object message) override;
    void respond(json::object message, unsigned status) override;
    void abandon() override;
    void close_stream() override;

    // From now on it is a stream of events.
    void begin();
    std::size_t max_answer() const noexcept override;
    // HTTP+SSE: says first where the client's messages are to be sent.
    void name_endpoint(std::string_view address);
    bool pending() const noexcept { return backlog_.pending(); }
    bool crowded() const noexcept { return backlog_.crowded(0); }
    // Events to send, of about `size` bytes.
    std::string take(std::size_t size);
    void rewind(std::uint64_t event) noexcept { backlog_.rewind(event); }
    std::size_t size() const noexcept { return backlog_.size(); }
    void trim(std::size_t limit) { backlog_.trim(limit); }

    Event changed;
    bool standalone = false, listened = false;  // of the session; some client ever asked for it
    bool batch = false;                         // answers come as an array
    bool streaming = false, closing = false, ended = false;
    std::size_t expected = 1;           // answers still to come
    std::vector<json::object> answers;  // while it is no stream
    unsigned answer_status = 200;
    std::uint64_t reader = 0;  // which connection sends it, counted; a new one takes over
    bool attached = false;
    Clock::time_point ended_at = never;

private:
    void end();
    std::string next_id() const {
        return std::to_string(number_) + '-' + std::to_string(backlog_.coming());
    }
    void add(const std::string& data);
    // What would be too much for one event is an error in its place.
    void add_answer(const json::object& message);

    detail::EventBacklog backlog_;
    Style style_;
    std::weak_ptr<HttpServerSession> home_;
    std::uint64_t number_ = 0;
};

// What one request of HTTP+SSE leads to. All answers share a stream, which outlives requests that
// are cancelled.
class SseOutlet final : public McpOutlet {
public:
    explicit SseOutlet(std::shared_ptr<HttpServerStream> stream) : stream_(std::move(stream)) {}
    bool notify(json::object message) override { return stream_->notify(std::move(message)); }
    void ask(json::object message) override { stream_->ask(std::move(message)); }
    void respond(json::object message, unsigned status) override {
        stream_->respond(std::move(message), status);
    }
    void abandon() override {}
    std::size_t max_answer() const noexcept override { return stream_->max_answer(); }

private:
    std::shared_ptr<HttpServerStream> stream_;
};

struct McpHttpService final : net::HttpService, std::enable_shared_from_this<McpHttpService> {
    using Request = net::HttpServerRequest;
    using Reply = net::HttpReply;
    using Digest = std::array<unsigned char, SHA256_DIGEST_LENGTH>;

    McpHttpService(std::shared_ptr<McpEngine> e, McpHttpOptions o);

    net::HttpReply check(net::HttpPeer& peer, const Request& head) override;
    awaitable<bool> answer(net::HttpPeerPtr peer, Request request) override {
        return respond(shared_from_this(), std::move(peer), std::move(request));
    }
    net::HttpReply refusal(unsigned status, const std::string& why) override;

    std::shared_ptr<McpEngine> engine;
    McpHttpOptions options;
    std::shared_ptr<net::HttpListener> listener;
    std::vector<Digest> tokens;
    Event tick;
    bool closed = false, watching = false;

    void stop();
    template <class Acceptor>
    void start(Acceptor acceptor) {
        listener->start(weak_from_this(), std::move(acceptor));
        if (!std::exchange(watching, true))
            asio::co_spawn(engine->executor, watch_time(shared_from_this()), asio::detached);
    }

    static Digest digest(std::string_view text);

    static awaitable<void> watch_time(std::shared_ptr<McpHttpService> self);
    void sweep();
    static awaitable<bool> respond(std::shared_ptr<McpHttpService> self,
                                   net::HttpPeerPtr connection, Request request);
    static awaitable<bool> send(net::HttpPeerPtr peer, Reply reply);
    static awaitable<bool> pump(std::shared_ptr<McpHttpService> self, net::HttpPeerPtr connection,
                                std::shared_ptr<HttpServerStream> stream, McpCallPtr call);
    static awaitable<void> stream(std::shared_ptr<McpHttpService> self, net::HttpPeerPtr connection,
                                  std::shared_ptr<HttpServerStream> stream, bool& whole);
    static awaitable<bool> serve_sse(std::shared_ptr<McpHttpService> self,
                                     net::HttpPeerPtr connection, std::string principal);
    Reply take_sse(Request& request, const std::string& principal);

    // What a request leads to: a stream that brings what `session` answers, or else a reply.
    struct Outcome {
        Reply reply = {};
        std::shared_ptr<HttpServerStream> stream = nullptr;
        McpSessionPtr session = nullptr;
        McpCallPtr call = nullptr;
    };
    Outcome take_get_or_delete(const Request& request, const std::string& principal);
    Outcome open_stream(const McpSessionPtr& session);
    Outcome resume_stream(const McpSessionPtr& session, std::string_view last_event);
    Outcome take_post(Request& request, const std::string& principal);
    Outcome ask(const McpSessionPtr& session, json::object message);
    Outcome take_modern(const Request& request, const std::string& principal, json::object& message,
                        const RpcMessage& rpc);
    Outcome initialize(const std::string& principal, json::object message);
    Outcome take_batch(const Request& request, const std::string& principal, json::array batch);

    static awaitable<void> hang_up(net::HttpPeerPtr connection);
    static Reply answer_of(HttpServerStream& stream);

    void check_head(net::HttpPeer& connection, const Request& head, Reply& reply);
    Reply preflight(const Request& head) const;
    Reply metadata(const Request& head, const std::string& path) const;
    std::string public_base(std::string_view host) const;
    bool host_allowed(std::string_view host) const;
    bool origin_allowed(std::string_view origin, unsigned short port) const;
    std::optional<std::string> principal_of(std::string_view authorization) const;
    McpSessionPtr find_session(const Request& request, const std::string& principal, Reply& reply);
    McpSessionPtr shared_session(const std::string& principal);
    bool room_for_session();
    void check_headers(const Request& request, std::string_view method, const json::object& params);
    std::shared_ptr<HttpServerStream> make_stream(const McpSessionPtr& session);
};

// ---- what may come in ----

McpHttpService::Reply http_error(unsigned status, std::string_view text,
                                 std::int64_t code = rpc_invalid_request, std::string headers = "");

// Whether an Accept header admits a type; one that is absent admits all.
bool accepts(std::string_view header, std::string_view type);

std::string_view without_port(std::string_view host);
bool is_loopback_name(std::string_view host);

McpHttpService::Reply unreadable(detail::ReadJson read);

}  // namespace mcp

}  // namespace ipybox

#ifndef IPYBOX_SEPARATE_COMPILATION
#include <ipybox/mcp/impl/http_server.ipp>
#include <ipybox/mcp/impl/http_server_guard.ipp>
#include <ipybox/mcp/impl/http_server_stream.ipp>
#endif
