#pragma once
// MCP over HTTP as a client: streamable HTTP in both eras (2025-03-26 to 2026-07-28), and HTTP+SSE
// of 2024-11-05. The plugins streamable_http and sse are made of it.
#include <boost/asio/cancellation_signal.hpp>
#include <cstdint>
#include <deque>
#include <ipybox/config.hpp>
#include <ipybox/detail/base64.hpp>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/mcp/detail/header_parameters.hpp>
#include <ipybox/mcp/detail/http_session.hpp>
#include <ipybox/mcp/detail/wire.hpp>
#include <ipybox/mcp/jsonrpc.hpp>
#include <ipybox/mcp/sse.hpp>
#include <ipybox/mcp_transport.hpp>
#include <ipybox/memory_budget.hpp>
#include <ipybox/net/http_client.hpp>
#include <ipybox/oauth/oauth.hpp>
#include <ipybox/plugin.hpp>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ipybox {

// A value of an Mcp-* header: as it is when it is printable ASCII without outer blanks, else as
// =?base64?…?= (2026-07-28, "Transports").
std::string mcp_header_value(std::string_view value);

// One server. send() of a request returns once its answer is there for receive(), and throws when
// none will come; it says so for that request alone, because the next may find the server again.
// What a session needs is done here: its id, its renewal when the server has forgotten it (followed
// by a notifications/tools/list_changed of our own making), streams that are taken up again.
class HttpTransport final : public McpTransport, public WaitsForPeople {
public:
    enum class Wire { streamable, sse };

    // config: "url", "headers" for every request, "auth" for OAuth, "name" for messages. A server
    // of the streamable kind that turns out to be one of HTTP+SSE is treated as such. Throws Error:
    // bad_argument (the URL).
    HttpTransport(Host& host, const json::object& config, Wire wire);
    ~HttpTransport() override;

    awaitable<void> open(Sandbox&) override { return open(state_); }
    awaitable<void> send(json::object message) override { return send(state_, std::move(message)); }
    bool send_now(std::int64_t id, std::string_view method, json::object& params,
                  const std::shared_ptr<Sender>& sender) override;
    awaitable<json::object> receive() override { return receive(state_); }
    void cancel(const json::value& request_id) override;
    awaitable<void> close() override { return close(state_); }
    Duration people_took() const override { return people_took(*state_); }

private:
    // A message on its way, until its answer has come.
    struct Call {
        explicit Call(const asio::any_io_executor& executor) : done(executor) {}

        json::value id;  // null for what has no answer
        std::string method;
        std::string version;  // of a modern message
        HttpHeaders headers;  // of this message alone
        bool first_page = true;
        bool own = false;  // made here: its answer is kept in `reply`
        std::optional<json::object> reply;
        bool answered = false;
        bool finished = false;
        std::optional<Error> failure;
        std::shared_ptr<Sender> sender;  // of send_now(): told of the failure
        Event done;
        asio::cancellation_signal stop;
    };
    using CallPtr = std::shared_ptr<Call>;

    // What is known of one stream of events, over all connections that carry it.
    struct Stream {
        mcp::SseParser parser{mcp::default_max_message};
        MemoryReservation memory;  // for a long event
        detail::StreamResumption resumption;
        std::optional<Error> broken;
    };
    using StreamPtr = std::shared_ptr<Stream>;
    using ResponsePtr = std::shared_ptr<HttpResponse>;

    struct Incoming {
        json::object message;
        std::size_t size;
    };

    // Shared with every coroutine of the transport, so that each may end after it.
    struct Impl {
        explicit Impl(const asio::any_io_executor& e)
            : executor(e), arrived(e), taken(e), unblocked(e), renewed(e) {}

        asio::any_io_executor executor;
        Logger logger;
        std::string name;  // the server's, for messages; may be empty
        HttpUrl url;
        HttpHeaders headers;  // as configured: may hold secrets
        Wire wire = Wire::streamable;
        Wire configured = Wire::streamable;
        std::string post_url;
        std::shared_ptr<HttpClient> http;
        std::shared_ptr<OAuth> oauth;  // null when the configuration brings its own Authorization
        bool closed = false;
        std::optional<Error> end;  // why the server is gone (HTTP+SSE)

        std::deque<Incoming> incoming;
        std::size_t incoming_size = 0;
        Event arrived;
        Event taken;

        std::list<CallPtr> calls;
        std::list<asio::cancellation_signal> tasks;
        int blockers = 0;  // messages that those after them must wait for
        Event unblocked;

        detail::HttpClientSession session;
        Event renewed;
        int noise = 0;  // events that were no message, logged
        bool told_of_repairs = false;
        // By tool.
        std::map<std::string, std::vector<detail::HeaderParameter>, std::less<>> header_parameters;

        // Words of the server, fit for an error text.
        std::string excerpt(std::string text) const;
        void stop_all();
    };
    using ImplPtr = std::shared_ptr<Impl>;

    // Sets a counter back however its scope ends, and tells those who wait.
    struct Unblock {
        Impl& state;
        ~Unblock();
    };
    // Ends the renewal of a session however its scope ends, and tells those who wait.
    struct Renewing {
        Impl& state;
        ~Renewing();
    };

    enum class Outcome { done, session_lost };

    static constexpr std::size_t max_queued = std::size_t{16} << 20;     // bytes not yet received
    static constexpr std::size_t free_of_budget = std::size_t{1} << 20;  // of an event
    static constexpr std::size_t max_error_body = std::size_t{1} << 20;
    static constexpr std::size_t max_excerpt = 500;
    static constexpr int max_noise = 20;
    static constexpr auto short_patience = std::chrono::seconds(2);
    static constexpr auto patience = std::chrono::seconds(30);

    static awaitable<void> open(ImplPtr state);
    static awaitable<void> send(ImplPtr state, json::object message);
    static void launch(const ImplPtr& state, const CallPtr& call, json::object message);
    static awaitable<json::object> receive(ImplPtr state);
    static awaitable<void> close(ImplPtr state);
    static Duration people_took(const Impl& state) {
        return state.oauth ? state.oauth->people_took() : Duration::zero();
    }
    static std::string wants_credentials(const Impl& state);

    static void spawn(const ImplPtr& state, awaitable<void> work);
    static CallPtr outline(const ImplPtr& state, const json::object& message);
    static void mirror(const ImplPtr& state, Call& call, const json::object& params);
    static awaitable<void> perform(ImplPtr state, CallPtr call, json::object message);
    static awaitable<Outcome> exchange(ImplPtr state, CallPtr call, std::string body);
    static awaitable<void> accept(ImplPtr state, CallPtr call, ResponsePtr response);
    static awaitable<Outcome> refused(ImplPtr state, CallPtr call, ResponsePtr response,
                                      std::string used, std::string body);
    static awaitable<void> follow(ImplPtr state, CallPtr call, ResponsePtr response);
    static awaitable<void> renew(ImplPtr state, detail::HttpClientSession::Loss loss);
    static awaitable<void> begin_session(ImplPtr state);
    static awaitable<void> say_again(ImplPtr state, std::vector<json::object> messages);
    static CallPtr own_call(const ImplPtr& state, const json::object& message);
    static awaitable<void> listen(ImplPtr state, std::uint64_t generation);
    static awaitable<void> find_endpoint(ImplPtr state, Clock::time_point deadline);
    static awaitable<void> pump(ImplPtr state, ResponsePtr response, StreamPtr stream);
    static awaitable<ResponsePtr> request(ImplPtr state, std::shared_ptr<HttpRequest> request,
                                          bool probe = false);
    static awaitable<ResponsePtr> get(ImplPtr state, std::string last_id,
                                      Clock::time_point deadline);
    static void feed(const Impl& state, Stream& stream, std::string_view piece);
    static awaitable<void> read_stream(ImplPtr state, CallPtr call, ResponsePtr response,
                                       StreamPtr stream);
    static awaitable<void> take(ImplPtr state, CallPtr call, std::string text, bool must_be_json);
    static awaitable<void> pass(ImplPtr state, CallPtr call, json::object message,
                                std::size_t size);
    static bool pass_now(const ImplPtr& state, const CallPtr& call, json::object& message,
                         std::size_t size);
    static awaitable<void> refuse_discovery(ImplPtr state, CallPtr call, std::string why);
    static void learn(const ImplPtr& state, const Call& call, const json::object& message);
    static void finish(Call& call);
    static std::string_view content_type(const HttpResponse& response);
    static bool is_type(const HttpResponse& response, std::string_view type) {
        return same_header(content_type(response), type);
    }
    static bool is_stream(const HttpResponse& response) {
        return response.status() == 200 && is_type(response, "text/event-stream");
    }
    [[noreturn]] static void throw_closed() {
        throw Error(errc::cancelled, "the connection was closed");
    }

    ImplPtr state_;
};

}  // namespace ipybox

#ifndef IPYBOX_SEPARATE_COMPILATION
#include <ipybox/mcp/impl/http_transport.ipp>
#include <ipybox/mcp/impl/http_transport_streams.ipp>
#endif
