#pragma once
// Serves an McpServer over HTTP (MCP "Streamable HTTP"): legacy clients with sessions and resumable
// streams (2025-03-26 to 2025-11-25) and modern ones without (2026-07-28), at one address; and at
// another, if wanted, those that know only HTTP+SSE (2024-11-05).
#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <sys/socket.h>

#include <array>
#include <boost/json/parse.hpp>
#include <filesystem>
#include <ipybox/detail/hex.hpp>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/mcp/detail/event_backlog.hpp>
#include <ipybox/mcp/server.hpp>
#include <ipybox/mcp/sse.hpp>
#include <ipybox/net/http_listener.hpp>
#include <span>

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
    // Web pages that may use it, by origin: "https://app.example", or "http://localhost:3000" for one
    // of this machine; "*": any. Without being named only pages from the listener's own port may.
    std::vector<std::string> allowed_origins;
    // Who presents one of these as bearer token may use the server; each is a principal of its
    // own. Empty: everybody may who reaches it.
    std::vector<std::string> tokens;
    // Members of the protected-resource metadata (RFC 9728): authorization_servers,
    // scopes_supported, resource_name. `resource` is derived from the request unless given here.
    json::object resource_metadata;
    std::size_t max_header = std::size_t{32} << 10;  // bytes of a request's head
    std::size_t max_buffered = std::size_t{256}
                               << 20;  // bytes of all bodies received and not yet answered
    // Of connections that have presented a token (or, without tokens, sent a request), as far as five
    // eighths of RLIMIT_NOFILE allow. Beyond it the one that has been idle longest is closed.
    std::size_t max_connections = 16'384;
    // Of others: how many at once, and how long each may take to present one. Beyond the number the
    // oldest is closed, of the address that has most of them.
    std::size_t max_strangers = 256;
    Duration stranger_timeout = std::chrono::seconds(10);
    std::size_t max_sessions = 1'000;
    std::size_t max_stream = std::size_t{1} << 20;     // bytes unsent, or kept for a resumption
    std::size_t max_replay = std::size_t{4} << 20;     // bytes kept for all streams of a session
    Duration session_idle = std::chrono::minutes(30);  // without a request or an open stream
    // Bytes of one event; a longer answer becomes an error. The Python SDK's client gives up at 1 MiB. What nothing
    // came before is no event, but JSON.
    std::size_t max_event = (std::size_t{1} << 20) - (std::size_t{16} << 10);
    Duration replay_time = std::chrono::minutes(5);    // how long an ended stream can be resumed
    Duration connection_idle = std::chrono::seconds(75);
    Duration request_timeout = std::chrono::seconds(60);  // from a request's first byte to its last
    Duration write_timeout = std::chrono::seconds(60);    // for a client that does not read
    Duration keep_alive = std::chrono::seconds(15);       // between signs of life on a quiet stream
    std::chrono::milliseconds retry{1000};  // after which clients come back to a stream
};

namespace detail {
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

    // host: an address or "localhost"; port 0: any. Returns the port. Throws errc::io_error, and
    // errc::bad_argument for an address others can reach while options.allowed_hosts is empty.
    unsigned short listen(const std::string& host, unsigned short port);
    // A Unix socket of mode 0600; the path must not exist. Throws errc::io_error.
    void listen(const std::filesystem::path& path);
    // Closes listeners and connections; sessions end with the McpServer or when they are idle.
    void stop();

    std::size_t connections() const noexcept;

private:
    std::shared_ptr<detail::McpHttpService> state_;
};

namespace detail {

class HttpServerStream;

// What HTTP keeps for a legacy session.
struct HttpSession {
    std::map<std::uint64_t, std::shared_ptr<HttpServerStream>> streams;  // that can be resumed
    std::uint64_t last_stream = 0;
    std::size_t max_replay = 0;
    bool sse = false;  // of HTTP+SSE: it lasts as long as its one stream
    void trim();
};

// The answer to one POST: a JSON object if nothing comes before it, else a stream of events. Or
// the stream of a legacy session for what belongs to no request.
class HttpServerStream final : public McpOutlet, public std::enable_shared_from_this<HttpServerStream> {
public:
    struct Style {
        bool resumable = false;  // events have ids and are kept
        bool primed = false;     // the stream begins with an event that has only an id
        std::chrono::milliseconds retry{1000};
        std::size_t max_event = SIZE_MAX;
    };
    HttpServerStream(const asio::any_io_executor& executor, std::size_t limit, Style style,
               const std::shared_ptr<HttpSession>& home)
        : changed(executor), backlog_(limit, style.resumable), style_(style), home_(home) {}

    bool notify(json::object message) override {
        if (ended || (standalone && !listened)) return false;
        std::string data = detail::write_json(message);
        if (backlog_.crowded(data.size())) return false;
        begin();
        add(data);
        return true;
    }
    void ask(json::object message) override {
        if (ended) return;
        begin();
        add(detail::write_json(message));
    }
    void respond(json::object message, unsigned status) override {
        if (ended) return;
        if (streaming) {
            add_answer(message);
        } else {
            answers.push_back(std::move(message));
            answer_status = status;
        }
        if (!standalone && --expected == 0) end();
        changed.notify();
    }
    void abandon() override {
        if (expected > 1 && !standalone) {
            --expected;
        } else {
            end();
        }
        changed.notify();
    }
    void close_stream() override {
        if (!style_.resumable || ended) return;
        begin();
        closing = true;
        changed.notify();
    }

    // From now on it is a stream of events.
    void begin() {
        if (streaming) return;
        streaming = true;
        if (style_.resumable) {
            if (const auto home = home_.lock()) {
                if (!standalone) number_ = ++home->last_stream;
                home->streams[number_] = shared_from_this();
            }
            if (style_.primed) backlog_.add(sse_event({}, {}, next_id(), style_.retry));
        }
        for (const auto& answer : answers) add_answer(answer);
        answers.clear();
    }
    std::size_t max_answer() const noexcept override {
        constexpr std::size_t envelope = 2048;
        return streaming ? style_.max_event - std::min(style_.max_event, envelope) : SIZE_MAX;
    }
    // HTTP+SSE: says first where the client's messages are to be sent.
    void name_endpoint(std::string_view address) {
        begin();
        backlog_.add(sse_event(address, "endpoint", {}));
    }
    bool pending() const noexcept { return backlog_.pending(); }
    bool crowded() const noexcept { return backlog_.crowded(0); }
    // Events to send, of about `size` bytes.
    std::string take(std::size_t size) {
        std::string text;
        while (backlog_.pending() && text.size() < size) text += backlog_.take();
        return text;
    }
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
    void end() {
        ended = true;
        ended_at = Clock::now();
    }
    std::string next_id() const {
        return std::to_string(number_) + '-' + std::to_string(backlog_.coming());
    }
    void add(const std::string& data) {
        auto text = sse_event(data, "message", style_.resumable ? next_id() : std::string());
        backlog_.add(std::move(text));
        if (const auto home = style_.resumable ? home_.lock() : nullptr) home->trim();
        changed.notify();
    }
    // What would be too much for one event is an error in its place.
    void add_answer(const json::object& message) {
        auto data = detail::write_json(message);
        if (data.size() > style_.max_event) {
            const auto* id = message.if_contains("id");
            data = detail::write_json(rpc_error(id != nullptr ? *id : json::value(), rpc_internal_error,
                                             "the answer takes " + std::to_string(data.size()) + " bytes, more than the " +
                                                 std::to_string(style_.max_event) + " that one event may have; ask for less"));
        }
        add(data);
    }

    EventBacklog backlog_;
    Style style_;
    std::weak_ptr<HttpSession> home_;
    std::uint64_t number_ = 0;
};

inline void HttpSession::trim() {
    constexpr std::size_t max_streams = 1000;
    std::size_t total = 0;
    for (const auto& [number, stream] : streams) total += stream->size();
    for (auto at = streams.begin(); at != streams.end();) {
        const auto& stream = *at->second;
        if (total <= max_replay && streams.size() <= max_streams) break;
        if (stream.ended && !stream.pending()) {
            total -= stream.size();
            at = streams.erase(at);
        } else {
            ++at;
        }
    }
    // Still too much: what clients never fetched goes too, oldest first.
    for (auto at = streams.begin(); at != streams.end() && total > 2 * max_replay;) {
        const auto& stream = *at->second;
        if (stream.ended && !stream.attached) {
            total -= stream.size();
            at = streams.erase(at);
        } else {
            ++at;
        }
    }
}

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

struct McpHttpService final : HttpService, std::enable_shared_from_this<McpHttpService> {
    using Request = HttpServerRequest;
    using Reply = HttpReply;
    using Digest = std::array<unsigned char, SHA256_DIGEST_LENGTH>;

    McpHttpService(std::shared_ptr<McpEngine> e, McpHttpOptions o)
        : engine(std::move(e)),
          options(std::move(o)),
          tick(engine->executor) {
        for (const auto& token : options.tokens) tokens.push_back(digest(token));
        HttpLimits limits = limits_of(options, engine->options.max_message);
        limits.max_head = static_cast<std::uint32_t>(options.max_header);
        limits.request_timeout = options.request_timeout;
        limits.idle_timeout = options.connection_idle;
        limits.write_timeout = options.write_timeout;
        listener = std::make_shared<HttpListener>(engine->executor, "MCP over HTTP", limits, engine->options.logger);
    }

    HttpReply check(HttpPeer& peer, const Request& head) override {
        Reply reply;
        check_head(peer, head, reply);
        return reply;
    }
    awaitable<bool> answer(HttpPeerPtr peer, Request request) override {
        return respond(shared_from_this(), std::move(peer), std::move(request));
    }
    HttpReply refusal(unsigned status, const std::string& why) override;

    std::shared_ptr<McpEngine> engine;
    McpHttpOptions options;
    std::shared_ptr<HttpListener> listener;
    std::vector<Digest> tokens;
    Event tick;
    bool closed = false, watching = false;

    void stop() {
        closed = true;
        listener->close();
        tick.notify();
    }
    template <class Acceptor>
    void start(Acceptor acceptor) {
        listener->start(weak_from_this(), std::move(acceptor));
        if (!std::exchange(watching, true)) asio::co_spawn(engine->executor, watch_time(shared_from_this()), asio::detached);
    }

    static Digest digest(std::string_view text) {
        Digest bytes;
        SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), bytes.data());
        return bytes;
    }

    static awaitable<void> watch_time(std::shared_ptr<McpHttpService> self);
    void sweep();
    static awaitable<bool> respond(std::shared_ptr<McpHttpService> self, HttpPeerPtr connection,
                                  Request request);
    static awaitable<bool> send(HttpPeerPtr peer, Reply reply);
    static awaitable<bool> pump(std::shared_ptr<McpHttpService> self, HttpPeerPtr connection,
                                std::shared_ptr<HttpServerStream> stream, McpCallPtr call);
    static awaitable<void> stream(std::shared_ptr<McpHttpService> self, HttpPeerPtr connection,
                                  std::shared_ptr<HttpServerStream> stream, bool& whole);
    static awaitable<bool> serve_sse(std::shared_ptr<McpHttpService> self,
                                     HttpPeerPtr connection, std::string principal);
    Reply take_sse(Request& request, const std::string& principal);
    static awaitable<void> hang_up(HttpPeerPtr connection);
    static Reply answer_of(HttpServerStream& stream);

    void check_head(HttpPeer& connection, const Request& head, Reply& reply);
    Reply preflight(const Request& head) const;
    Reply metadata(const Request& head, const std::string& path) const;
    std::string public_base(std::string_view host) const;
    bool host_allowed(std::string_view host) const;
    bool origin_allowed(std::string_view origin, unsigned short port) const;
    std::optional<std::string> principal_of(std::string_view authorization) const;
    SessionPtr find_session(const Request& request, const std::string& principal, Reply& reply);
    SessionPtr shared_session(const std::string& principal);
    bool room_for_session();
    void check_headers(const Request& request, std::string_view method, const json::object& params);
    std::shared_ptr<HttpServerStream> make_stream(const SessionPtr& session);
};

// ---- what may come in ----

inline McpHttpService::Reply http_error(unsigned status, std::string_view text,
                                      std::int64_t code = rpc_invalid_request,
                                      std::string headers = "") {
    McpHttpService::Reply reply;
    reply.status = status;
    reply.body = detail::write_json(rpc_error(json::value(), code, text));
    reply.headers = std::move(headers);
    return reply;
}

inline HttpReply McpHttpService::refusal(unsigned status, const std::string& why) {
    if (status == 503) return http_error(status, why, rpc_internal_error, "Retry-After: 1\r\n");
    return http_error(status, why);
}

// Whether an Accept header admits a type; one that is absent admits all.
inline bool accepts(std::string_view header, std::string_view type) {
    return header.empty() || header.find("*/*") != header.npos ||
           header.find(type) != header.npos ||
           header.find(std::string(type.substr(0, type.find('/'))) + "/*") != header.npos;
}

inline std::string_view without_port(std::string_view host) {
    if (host.starts_with('[')) return host.substr(0, host.find(']') + 1);
    return host.substr(0, host.find(':'));
}
inline bool is_loopback_name(std::string_view host) {
    const auto name = without_port(host);
    return same_without_case(name, "localhost") || name == "127.0.0.1" || name == "[::1]";
}

inline bool McpHttpService::host_allowed(std::string_view host) const {
    if (is_loopback_name(host)) return true;
    for (const auto& allowed : options.allowed_hosts)
        if (allowed == "*" || same_without_case(allowed, host) ||
            same_without_case(allowed, without_port(host)))
            return true;
    return false;
}

inline bool McpHttpService::origin_allowed(std::string_view origin, unsigned short port) const {
    for (const auto& allowed : options.allowed_origins)
        if (allowed == "*" || same_without_case(allowed, origin)) return true;
    return is_own_origin(origin, port);
}

inline McpHttpService::Reply unreadable(ReadJson read) {
    McpHttpService::Reply reply;
    reply.status = 400;
    reply.body = detail::write_json(rpc_error(std::move(read.id), rpc_parse_error, "the body " + read.problem));
    return reply;
}

// Who presents the token; nullopt: nobody we know. Looks at every token, whichever fits.
inline std::optional<std::string> McpHttpService::principal_of(std::string_view authorization) const {
    if (tokens.empty()) return std::string();
    constexpr std::string_view scheme = "bearer ";
    if (authorization.size() < scheme.size() ||
        !same_without_case(authorization.substr(0, scheme.size()), scheme))
        return std::nullopt;
    authorization.remove_prefix(scheme.size());
    while (authorization.starts_with(' ')) authorization.remove_prefix(1);
    const Digest given = digest(authorization);
    bool known = false;
    for (const auto& token : tokens)
        known |= CRYPTO_memcmp(token.data(), given.data(), given.size()) == 0;
    if (!known) return std::nullopt;
    return hex(std::span(given).first(16));
}

// Sets `reply` when the request is refused, or answered, without looking at its body.
inline void McpHttpService::check_head(HttpPeer& connection, const Request& head,
                                     Reply& reply) {
    namespace http = boost::beast::http;
    const std::string_view host = head[http::field::host], origin = head[http::field::origin];
    if (head.count(http::field::host) != 1 || !host_allowed(host)) {
        reply = http_error(403, "this server does not answer for that host; see allowed_hosts");
        return;
    }
    if (head.count(http::field::origin) > 0) {
        if (head.count(http::field::origin) != 1 || !origin_allowed(origin, connection.port)) {
            reply = http_error(
                403, "this server does not serve pages of that origin; see allowed_origins");
            return;
        }
        connection.headers = "Access-Control-Allow-Origin: " + std::string(origin) +
                          "\r\nVary: Origin\r\nAccess-Control-Expose-Headers: Mcp-Session-Id, "
                          "WWW-Authenticate\r\n";
        if (head.method() == http::verb::options) {
            reply = preflight(head);
            return;
        }
    }
    std::string_view target = head.target();
    target = target.substr(0, target.find('?'));
    constexpr std::string_view well_known = "/.well-known/oauth-protected-resource";
    const bool sse = !options.sse_path.empty() && target == options.sse_path;
    const auto& path = sse ? options.sse_path : options.path;
    if (!tokens.empty() && head.method() == http::verb::get && target.starts_with(well_known)) {
        const auto of = target.substr(well_known.size());
        if (of.empty() || of == options.path || (!of.empty() && of == options.sse_path)) {
            reply = metadata(head, of.empty() ? options.path : std::string(of));
            return;
        }
    }
    if (target != path) {
        reply = http_error(404, "there is only " + options.path + " here");
        return;
    }
    if (!principal_of(head[http::field::authorization])) {
        std::string challenge = "WWW-Authenticate: Bearer resource_metadata=\"" +
                                public_base(host) + std::string(well_known) + path + "\"";
        if (head.count(http::field::authorization) > 0) challenge += ", error=\"invalid_token\"";
        reply = http_error(401, "a valid bearer token is needed", rpc_invalid_request,
                           challenge + "\r\n");
        return;
    }
    const std::string_view accept = head[http::field::accept];
    if (head.method() == http::verb::post) {
        std::string_view type = head[http::field::content_type];
        type = type.substr(0, type.find(';'));
        while (type.ends_with(' ')) type.remove_suffix(1);
        if (!same_without_case(type, "application/json")) {
            reply = http_error(415, "Content-Type must be application/json");
        } else if (!sse && (!accepts(accept, "application/json") ||
                            !accepts(accept, "text/event-stream"))) {
            reply = http_error(406, "Accept must list application/json and text/event-stream");
        }
    } else if (sse && head.method() == http::verb::get) {
        if (!accepts(accept, "text/event-stream"))
            reply = http_error(406, "Accept must list text/event-stream");
    } else if (!sse && (head.method() == http::verb::get || head.method() == http::verb::delete_)) {
        if (names_modern_version(head["MCP-Protocol-Version"]) ||
            head.count("Mcp-Session-Id") == 0) {
            reply = http_error(405, "only POST without a session", rpc_invalid_request,
                               "Allow: POST, OPTIONS\r\n");
        } else if (head.method() == http::verb::get && !accepts(accept, "text/event-stream")) {
            reply = http_error(406, "Accept must list text/event-stream");
        }
    } else {
        reply = http_error(405, "no such method", rpc_invalid_request,
                           sse ? "Allow: GET, POST, OPTIONS\r\n"
                               : "Allow: GET, POST, DELETE, OPTIONS\r\n");
    }
}

inline McpHttpService::Reply McpHttpService::preflight(const Request& head) const {
    namespace http = boost::beast::http;
    Reply reply;
    reply.status = 204;
    // Parameters of tools may come as headers of any name.
    std::string asked(head[http::field::access_control_request_headers]);
    const bool plain = asked.size() < 4096 && std::all_of(asked.begin(), asked.end(), [](char c) {
                           return c == ',' || c == ' ' || is_header_token(std::string_view(&c, 1));
                       });
    if (!plain || asked.empty())
        asked =
            "Content-Type, Accept, Authorization, Mcp-Session-Id, MCP-Protocol-Version, "
            "Last-Event-ID, Mcp-Method, Mcp-Name";
    reply.headers =
        "Access-Control-Allow-Methods: GET, POST, DELETE, OPTIONS\r\n"
        "Access-Control-Max-Age: 600\r\nAccess-Control-Allow-Headers: " +
        asked + "\r\n";
    return reply;
}

// How clients reach this server, without the path: behind a proxy, as `resource` says.
inline std::string McpHttpService::public_base(std::string_view host) const {
    const auto resource = string_of(options.resource_metadata, "resource");
    const auto scheme = resource.find("://");
    if (scheme == resource.npos) return "http://" + std::string(host);
    return std::string(resource.substr(0, resource.find('/', scheme + 3)));
}

inline McpHttpService::Reply McpHttpService::metadata(const Request& head,
                                                  const std::string& path) const {
    Reply reply;
    json::object document = options.resource_metadata;
    if (!document.contains("resource"))
        document.emplace(
            "resource",
            "http://" + std::string(head[boost::beast::http::field::host]) + path);
    if (!document.contains("bearer_methods_supported"))
        document.emplace("bearer_methods_supported", json::array{"header"});
    reply.status = 200;
    reply.body = detail::write_json(document);
    return reply;
}

// ---- one request ----

// Whether the connection serves another request.
inline awaitable<bool> McpHttpService::send(HttpPeerPtr peer, Reply reply) {
    auto text = render(*peer, reply);
    const bool written = co_await peer->write(std::move(text));
    co_return written && peer->keep_alive;
}

// ---- sessions ----

inline bool McpHttpService::room_for_session() {
    if (engine->sessions.size() < options.max_sessions) return true;
    SessionPtr oldest;
    for (const auto& [id, session] : engine->sessions)
        if (session->busy == 0 && session->transport &&
            (!oldest || session->last_used < oldest->last_used))
            oldest = session;
    if (!oldest || Clock::now() - oldest->last_used < std::chrono::minutes(1)) return false;
    engine->end(oldest);
    return true;
}

// The session a legacy request names; else sets `reply`.
inline SessionPtr McpHttpService::find_session(const Request& request, const std::string& principal,
                                             Reply& reply) {
    const std::string_view spoken = request["MCP-Protocol-Version"], id = request["Mcp-Session-Id"];
    if (!spoken.empty() && !is_legacy_version(spoken)) {
        reply =
            http_error(400, "unsupported MCP-Protocol-Version \"" + excerpt(spoken, 100) + "\"");
        return nullptr;
    }
    if (id.empty()) {
        reply = http_error(400, "no session: Mcp-Session-Id is missing; begin with initialize");
        return nullptr;
    }
    const auto found = engine->sessions.find(id);
    const auto home = found == engine->sessions.end()
                          ? nullptr
                          : std::static_pointer_cast<HttpSession>(found->second->transport);
    if (!home || home->sse || found->second->principal != principal) {
        reply = http_error(404, "session not found; begin with initialize");
        return nullptr;
    }
    return found->second;
}

// That of all modern requests of one principal.
inline SessionPtr McpHttpService::shared_session(const std::string& principal) {
    const std::string id = "modern " + principal;
    if (const auto found = engine->sessions.find(id); found != engine->sessions.end())
        return found->second;
    return engine->open_session(id, principal, true);
}

inline std::shared_ptr<HttpServerStream> McpHttpService::make_stream(const SessionPtr& session) {
    HttpServerStream::Style style;
    style.resumable = !session->modern;
    style.primed = !session->modern && session->protocol_version >= "2025-11-25";
    style.retry = options.retry;
    style.max_event = options.max_event;
    return std::make_shared<HttpServerStream>(engine->executor, options.max_stream, style,
                                        std::static_pointer_cast<HttpSession>(session->transport));
}

// Throws what a modern request is answered whose headers and body do not say the same.
inline void McpHttpService::check_headers(const Request& request, std::string_view method,
                                        const json::object& params) {
    const auto mismatch = [](std::string_view header, std::string_view why) {
        return McpError(rpc_header_mismatch,
                        "header mismatch: " + std::string(header) + ' ' + std::string(why));
    };
    const auto the = [&](std::string_view header) {
        const std::size_t count = request.count(std::string(header));
        if (count == 0) throw mismatch(header, "is missing");
        if (count > 1) throw mismatch(header, "comes more than once");
        return std::string_view(request[std::string(header)]);
    };
    const auto* meta = object_of(params, "_meta");
    if (meta == nullptr) throw McpError(rpc_invalid_params, "the request has no _meta");
    const auto spoken = string_of(*meta, meta_version);
    if (!spoken.empty() && the("MCP-Protocol-Version") != spoken)
        throw mismatch("MCP-Protocol-Version", "does not match the request's _meta");
    McpEngine::check_modern(*meta);
    if (the("Mcp-Method") != method)
        throw mismatch("Mcp-Method", "does not match the request's method");
    const bool by_uri = method == "resources/read";
    if (!by_uri && method != "tools/call" && method != "prompts/get") return;
    const auto name = string_of(params, by_uri ? "uri" : "name");
    const auto said = decode_header_value(the("Mcp-Name"));
    if (!said || *said != name) throw mismatch("Mcp-Name", "does not match the request's params");
    if (method != "tools/call") return;
    const auto tool = engine->find_tool(name);
    if (!tool) return;
    const auto* given = object_of(params, "arguments");
    const json::object arguments =
        given != nullptr && !tool->mirrored.empty() ? *given : json::object();
    for (const auto& parameter : tool->mirrored) {
        const std::string header = "Mcp-Param-" + parameter.name;
        const std::size_t count = request.count(header);
        const std::string_view value = request[header];
        if (count > 1 || !mirrors(parameter, arguments, count == 0 ? nullptr : &value))
            throw mismatch(header, "does not match the argument");
    }
}

// ---- HTTP+SSE (2024-11-05) ----

// The stream of a new session, to its end: with it ends the session.
inline awaitable<bool> McpHttpService::serve_sse(std::shared_ptr<McpHttpService> self,
                                               HttpPeerPtr connection,
                                               std::string principal) {
    if (!self->room_for_session()) {
        auto reply = http_error(503, "too many sessions; try again later", rpc_internal_error,
                                "Retry-After: 30\r\n");
        co_return co_await send(connection, std::move(reply));
    }
    const auto engine = self->engine;
    const auto session = engine->open_session(random_hex(32), std::move(principal), false);
    struct End {
        std::shared_ptr<McpEngine> engine;
        SessionPtr session;
        ~End() {
            --session->busy;
            engine->end(session);
        }
    } const end{engine, session};
    ++session->busy;
    const auto home = std::make_shared<HttpSession>();
    home->sse = true;
    session->transport = home;
    auto stream = std::make_shared<HttpServerStream>(
        engine->executor, self->options.max_stream, HttpServerStream::Style{.max_event = self->options.max_event}, home);
    stream->standalone = stream->listened = true;
    stream->name_endpoint(self->options.sse_path + "?session=" + session->id);
    session->outlet = stream;
    connection->keep_alive = false;
    co_return co_await pump(self, connection, std::move(stream), nullptr);
}

// One message of a client: what it leads to comes by the stream.
inline McpHttpService::Reply McpHttpService::take_sse(Request& request, const std::string& principal) {
    const std::string_view target = request.target();
    constexpr std::string_view key = "?session=";
    const auto at = target.find(key);
    const auto id = at == target.npos ? std::string_view() : target.substr(at + key.size());
    const auto found = engine->sessions.find(id);
    const auto home = found == engine->sessions.end()
                          ? nullptr
                          : std::static_pointer_cast<HttpSession>(found->second->transport);
    if (!home || !home->sse || found->second->principal != principal)
        return http_error(404, "session not found; begin with GET " + options.sse_path);
    const auto session = found->second;
    const auto stream = std::static_pointer_cast<HttpServerStream>(session->outlet);
    // Answers are not lost, so who does not read them gets no more.
    if (stream->crowded())
        return http_error(503, "read the answers before you ask again", rpc_internal_error,
                          "Retry-After: 1\r\n");
    auto read = read_message(request.body());
    if (!read.problem.empty()) return unreadable(std::move(read));
    auto* message = read.value.if_object();
    if (message == nullptr) return http_error(400, "the body is no JSON-RPC message");
    const auto rpc = classify(*message);
    if (rpc.kind == RpcMessage::Kind::malformed)
        return http_error(400, std::string("not a JSON-RPC message: ") + rpc.problem);
    const auto* params = rpc.body != nullptr ? rpc.body->if_object() : nullptr;
    const bool modern = rpc.method == "server/discover" ||
                        (params != nullptr && McpEngine::is_modern(*params));
    const auto outlet = std::make_shared<SseOutlet>(stream);
    if (modern && rpc.kind == RpcMessage::Kind::request) {
        outlet->respond(rpc_error(std::move(*rpc.id), rpc_method_not_found,
                                  "HTTP+SSE is for older versions of the protocol; this one is "
                                  "spoken at " + options.path),
                        200);
    } else {
        engine->accept(session, outlet, std::move(*message));
    }
    Reply reply;
    reply.status = 202;
    return reply;
}

// ---- answering ----

inline awaitable<bool> McpHttpService::respond(std::shared_ptr<McpHttpService> self,
                                            HttpPeerPtr connection, Request request) {
    namespace http = boost::beast::http;
    auto& engine = *self->engine;
    const auto principal = self->principal_of(request[http::field::authorization]).value_or("");
    Reply reply;
    std::shared_ptr<HttpServerStream> stream;
    McpCallPtr call;
    SessionPtr session;
    const std::string_view target = request.target();
    if (!self->options.sse_path.empty() &&
        target.substr(0, target.find('?')) == self->options.sse_path) {
        if (request.method() == http::verb::get)
            co_return co_await serve_sse(self, connection, principal);
        reply = self->take_sse(request, principal);
        co_return co_await send(connection, std::move(reply));
    }
    if (request.method() != http::verb::post) {
        session = self->find_session(request, principal, reply);
        if (session && request.method() == http::verb::delete_) {
            engine.end(session);
            reply.status = 204;
        } else if (session) {
            session->last_used = Clock::now();
            const auto home = std::static_pointer_cast<HttpSession>(session->transport);
            const std::string_view last = request["Last-Event-ID"];
            if (last.empty()) {
                stream = std::static_pointer_cast<HttpServerStream>(session->outlet);
                if (stream->attached) {
                    stream.reset();
                    reply = http_error(409, "this session's stream is open on another connection");
                } else {
                    stream->begin();
                }
            } else {
                std::uint64_t number = 0, event = 0;
                const char* const end = last.data() + last.size();
                const auto first = std::from_chars(last.data(), end, number);
                const bool dashed =
                    first.ec == std::errc() && first.ptr != end && *first.ptr == '-';
                const auto second = dashed ? std::from_chars(first.ptr + 1, end, event) : first;
                const auto found = home->streams.find(number);
                if (!dashed || second.ec != std::errc() || second.ptr != end ||
                    found == home->streams.end()) {
                    reply = http_error(400, "there is no stream to resume by that Last-Event-ID");
                } else {
                    stream = found->second;
                    stream->rewind(event);
                    if (stream->ended && !stream->pending()) {
                        // Clients take this for "no more streams" and do not try again.
                        stream.reset();
                        reply = http_error(405, "the stream has ended, and all of it was read",
                                           rpc_invalid_request, "Allow: POST\r\n");
                    }
                }
            }
            if (stream) stream->listened = true;
        }
    } else {
        auto read = read_message(request.body());
        request.body().clear();
        request.body().shrink_to_fit();
        std::string_view spoken = request["MCP-Protocol-Version"];
        if (!read.problem.empty()) {
            reply = unreadable(std::move(read));
        } else if (auto* message = read.value.if_object()) {
            auto rpc = classify(*message);
            const auto* params = rpc.body != nullptr ? rpc.body->if_object() : nullptr;
            const bool is_request = rpc.kind == RpcMessage::Kind::request;
            const bool modern =
                names_modern_version(spoken) ||
                (is_request && params != nullptr && McpEngine::is_modern(*params)) ||
                (is_request && rpc.method == "server/discover");
            if (rpc.kind == RpcMessage::Kind::malformed) {
                reply = http_error(400, std::string("not a JSON-RPC message: ") + rpc.problem);
            } else if (modern && is_request) {
                try {
                    self->check_headers(request, rpc.method,
                                        params != nullptr ? *params : json::object());
                    session = self->shared_session(principal);
                } catch (const McpError& wrong) {
                    auto refusal = rpc_error(*rpc.id, wrong.rpc_code(), wrong.detail());
                    if (!wrong.data().empty()) refusal["error"].get_object()["data"] = wrong.data();
                    reply.status = 400;
                    reply.body = detail::write_json(refusal);
                }
            } else if (modern) {
                // No notification is defined for modern clients over HTTP, and no response.
                if (rpc.kind == RpcMessage::Kind::notification) {
                    reply.status = 202;
                } else {
                    reply = http_error(400, "only requests are sent to this server");
                }
            } else if (is_request && rpc.method == "initialize") {
                if (self->room_for_session()) {
                    session = engine.open_session(random_hex(32), principal, false);
                    const auto home = std::make_shared<HttpSession>();
                    home->max_replay = self->options.max_replay;
                    session->transport = home;
                    stream = self->make_stream(session);
                    engine.accept(session, stream, std::move(*message));
                    reply = answer_of(*stream);
                    stream.reset();
                    if (session->begun) {
                        auto standalone = self->make_stream(session);
                        standalone->standalone = true;
                        session->outlet = std::move(standalone);
                        reply.headers = "Mcp-Session-Id: " + session->id + "\r\n";
                    } else {
                        engine.end(session);
                    }
                    session.reset();
                } else {
                    reply = http_error(503, "too many sessions; try again later",
                                       rpc_internal_error, "Retry-After: 30\r\n");
                }
            } else {
                session = self->find_session(request, principal, reply);
                if (session && !is_request) {
                    engine.accept(session, session->outlet, std::move(*message));
                    reply.status = 202;
                }
            }
            if (reply.status == 0 && session) {
                stream = self->make_stream(session);
                call = engine.accept(session, stream, std::move(*message));
            }
        } else if (auto* batch = read.value.if_array()) {
            session = self->find_session(request, principal, reply);
            std::string why;
            if (session) why = engine.batch_problem(*session, *batch);
            if (!why.empty()) reply = http_error(400, why);
            if (session && reply.status == 0) {
                const auto requests = McpEngine::answers_to(*batch);
                stream = self->make_stream(session);
                stream->expected = requests;
                stream->batch = true;
                engine.accept_batch(session, stream, std::move(*batch));
                if (requests == 0) {
                    stream.reset();
                    reply.status = 202;
                }
            }
        } else {
            reply = http_error(400, "the body is no JSON-RPC message");
        }
    }
    if (!stream) co_return co_await send(connection, std::move(reply));
    struct Busy {
        SessionPtr session;
        explicit Busy(SessionPtr s) : session(std::move(s)) { ++session->busy; }
        ~Busy() {
            --session->busy;
            session->last_used = Clock::now();
        }
    } const busy(session);
    co_return co_await pump(self, connection, std::move(stream), std::move(call));
}

inline McpHttpService::Reply McpHttpService::answer_of(HttpServerStream& stream) {
    Reply reply;
    reply.status = stream.answer_status;
    if (stream.batch) {
        json::array all;
        for (auto& one : stream.answers) all.push_back(std::move(one));
        reply.body = detail::write_json(all);
    } else if (!stream.answers.empty()) {
        reply.body = detail::write_json(stream.answers.front());
    }
    return reply;
}

// Sends what the stream brings until it ends, the client hangs up, or another connection takes
// over.
inline awaitable<bool> McpHttpService::pump(std::shared_ptr<McpHttpService> self,
                                          HttpPeerPtr connection,
                                          std::shared_ptr<HttpServerStream> stream, McpCallPtr call) {
    if (stream->ended && !stream->streaming && !stream->answers.empty()) {
        auto reply = answer_of(*stream);
        co_return co_await send(connection, std::move(reply));
    }
    bool whole = false;
    const auto reader = ++stream->reader;
    stream->attached = true;
    stream->changed.notify();
    auto sending = McpHttpService::stream(self, connection, stream, whole);
    auto leaving = hang_up(connection);
    const bool ended = co_await ends_first(std::move(sending), std::move(leaving));
    if (stream->reader == reader) stream->attached = false;
    if (!ended || !whole) {
        // Modern clients cancel by going away; legacy ones may come back.
        if (call && call->modern && call->outlet == stream) self->engine->cancel(call);
        co_return false;
    }
    co_return connection->keep_alive;
}

inline awaitable<void> McpHttpService::stream(std::shared_ptr<McpHttpService> self,
                                            HttpPeerPtr connection,
                                            std::shared_ptr<HttpServerStream> stream, bool& whole) {
    const auto reader = stream->reader;
    auto quiet_until = deadline_after(self->options.keep_alive);
    while (!stream->streaming) {
        if (stream->ended && !stream->answers.empty()) {
            auto reply = render(*connection, answer_of(*stream));
            whole = co_await connection->write(std::move(reply));
            co_return;
        }
        // Cancelled: there is nothing to come back for either.
        if (stream->ended) stream->streaming = true;
        // Proxies and clients give up on what stays silent.
        if (Clock::now() >= quiet_until) stream->begin();
        if (!stream->streaming) co_await stream->changed.wait(quiet_until);
    }
    if (!connection->chunked) connection->keep_alive = false;
    std::string text =
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache, "
        "no-transform\r\nX-Accel-Buffering: no\r\n";
    text += connection->chunked ? "Transfer-Encoding: chunked\r\n" : "Connection: close\r\n";
    if (connection->chunked && !connection->keep_alive) text += "Connection: close\r\n";
    text += connection->headers + "\r\n";
    const auto put = [&connection, &text](const std::string& events) {
        if (events.empty()) return;
        if (!connection->chunked) {
            text += events;
            return;
        }
        char size[32];
        const auto end = std::to_chars(size, size + sizeof size, events.size(), 16).ptr;
        text.append(size, end);
        text += "\r\n" + events + "\r\n";
    };
    for (;;) {
        if (stream->reader != reader || self->closed) co_return;
        put(stream->take(64 * 1024));
        const bool over = !stream->pending() && (stream->ended || stream->closing);
        if (over && connection->chunked) text += "0\r\n\r\n";
        if (!text.empty()) {
            std::string piece = std::move(text);
            text.clear();
            const bool written = co_await connection->write(std::move(piece));
            if (!written) co_return;
            quiet_until = deadline_after(self->options.keep_alive);
        }
        if (over) {
            stream->closing = false;
            whole = true;
            co_return;
        }
        if (stream->pending()) continue;
        if (stream->ended || stream->closing) continue;
        if (Clock::now() >= quiet_until) {
            put(": still here\n\n");
            continue;
        }
        co_await stream->changed.wait(quiet_until);
    }
}

// Completes when the client hangs up, and not before it does.
inline awaitable<void> McpHttpService::hang_up(HttpPeerPtr connection) {
    for (;;) {
        auto [error] = co_await connection->socket.async_wait(HttpSocket::wait_read, as_result);
        if (error) co_return;
        char byte;
        const auto got =
            ::recv(connection->socket.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR))
            co_return;
        if (got > 0) {
            // The next request already: it waits for its turn, and a hang-up shows on writing.
            co_await sleep_until(Clock::now() + std::chrono::seconds(1));
        }
    }
}

// ---- time and listening ----

inline awaitable<void> McpHttpService::watch_time(std::shared_ptr<McpHttpService> self) {
    while (!self->closed) {
        const auto next = Clock::now() + std::chrono::seconds(1);
        co_await self->tick.wait(next);
        self->sweep();
    }
}

inline void McpHttpService::sweep() {
    const auto now = Clock::now();
    std::vector<SessionPtr> idle;
    for (const auto& [id, session] : engine->sessions) {
        if (!session->transport && !session->modern) continue;  // standard input
        if (const auto home = std::static_pointer_cast<HttpSession>(session->transport))
            std::erase_if(home->streams, [&](const auto& one) {
                return one.second->ended && !one.second->attached &&
                       one.second->ended_at + options.replay_time <= now;
            });
        if (session->busy == 0 && options.session_idle > Duration::zero() &&
            session->last_used + options.session_idle <= now)
            idle.push_back(session);
    }
    for (const auto& session : idle) engine->end(session);
}

}  // namespace detail

inline McpHttpServer::McpHttpServer(McpServer& server, McpHttpOptions options)
    : state_(std::make_shared<detail::McpHttpService>(server.engine_, std::move(options))) {}
inline McpHttpServer::~McpHttpServer() { state_->stop(); }
inline void McpHttpServer::stop() { state_->stop(); }
inline std::size_t McpHttpServer::connections() const noexcept {
    return state_->listener->connections();
}

inline unsigned short McpHttpServer::listen(const std::string& host, unsigned short port) {
    boost::system::error_code error;
    const auto address = asio::ip::make_address(host == "localhost" ? "127.0.0.1" : host, error);
    if (error) throw Error(errc::bad_argument, "\"" + host + "\" is no address to listen at");
    if (!address.is_loopback() && state_->options.allowed_hosts.empty())
        throw Error(errc::bad_argument,
                    "listening at " + host +
                        " needs allowed_hosts: the names by which clients address this server");
    asio::ip::tcp::acceptor acceptor(state_->engine->executor);
    error = detail::listen_at(acceptor, asio::ip::tcp::endpoint(address, port));
    if (error)
        throw Error(errc::io_error, "cannot listen at " + host + ":" + std::to_string(port) + ": " +
                                        error.message());
    const auto bound = acceptor.local_endpoint().port();
    state_->start(std::move(acceptor));
    return bound;
}

inline void McpHttpServer::listen(const std::filesystem::path& path) {
    asio::local::stream_protocol::acceptor acceptor(state_->engine->executor);
    detail::listen_privately(acceptor, path, ::geteuid(), "the MCP server");
    state_->start(std::move(acceptor));
}

}  // namespace ipybox
