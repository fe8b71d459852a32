#pragma once
// Approval by other programs: JSON-RPC over a WebSocket, on a listener of this machine that takes
// a token. ApprovalChannel asks, ApprovalClient answers; each is usable alone.

#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/websocket.hpp>
#include <boost/json/parse_options.hpp>
#include <deque>
#include <functional>
#include <ipybox/approval/approval.hpp>
#include <ipybox/approval/question_text.hpp>
#include <ipybox/detail/base64.hpp>
#include <ipybox/detail/hex.hpp>
#include <ipybox/detail/json_members.hpp>
#include <ipybox/detail/json_memory.hpp>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/detail/pending_approval.hpp>
#include <ipybox/detail/terminal_text.hpp>
#include <ipybox/log.hpp>
#include <ipybox/net/http_listener.hpp>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace ipybox {

// What a channel demands of approvers and of itself.
struct ApprovalChannelOptions {
    // As in the original: unless it is set, request() says yes without asking anybody.
    bool approval_required = false;
    Duration approval_timeout{};  // zero: unlimited, as in the original
    std::string token;            // empty: 32 random bytes in hexadecimal
    std::size_t max_approvers = 16;
    // Web pages that may connect, by origin: "http://localhost:3000"; "*": any. The token is needed
    // as well: browsers keep it for whoever asks next.
    std::vector<std::string> allowed_origins;
    Logger logger;
};

namespace approval {
namespace websocket = boost::beast::websocket;
using tcp = asio::ip::tcp;

// One connection of either side: what is sent waits in a queue.
class JsonSocket : public std::enable_shared_from_this<JsonSocket> {
public:
    static constexpr std::size_t max_queued = 64u << 20;  // bytes

    explicit JsonSocket(net::HttpSocket socket)
        : stream(std::move(socket)), changed_(stream.get_executor()) {}

    // Sends, and hands every message to `use`, until the connection ends or close() is called.
    awaitable<void> run(std::function<void(const json::object&)> use);
    void send(const json::object& message);
    // At once, without the closing handshake of WebSockets: what waits is not sent.
    void close();
    bool closed() const noexcept { return closed_; }

    websocket::stream<net::HttpSocket> stream;

private:
    static awaitable<void> read(std::shared_ptr<JsonSocket> self,
                                std::function<void(const json::object&)> use);
    static awaitable<void> write(std::shared_ptr<JsonSocket> self);

    Event changed_;
    std::deque<std::string> queue_;
    std::size_t queued_ = 0;
    bool closed_ = false;
};

websocket::stream_base::timeout websocket_timeouts();
}  // namespace approval

// The side that asks. Any number of approvers may be connected: all are asked, the first answer
// counts. Messages are those of the original: {"jsonrpc": "2.0", "method": "approve", "params":
// {server_name, tool_name, tool_args}, "id"}, answered by {"jsonrpc": "2.0", "result": true or
// false, "id"}, to which a "reason" may be added. When another answered, or the call was withdrawn,
// approvers are told by {"method": "settled", "params": {"id"}}. Owned and used on one thread.
//
// Example: tool_calls/main.cpp [ApprovalChannel]
class ApprovalChannel {
    struct Impl;

public:
    // Throws Error: bad_argument (a token of less than 16 characters).
    explicit ApprovalChannel(asio::any_io_executor executor, ApprovalChannelOptions options = {});
    ~ApprovalChannel();
    ApprovalChannel(const ApprovalChannel&) = delete;
    ApprovalChannel& operator=(const ApprovalChannel&) = delete;

    // Listens at ws://HOST:PORT/approval and returns that address; port 0 takes a free one. host:
    // an address of this machine's loopback, or "localhost". Throws Error: bad_argument (another
    // host), io_error (it cannot listen there).
    std::string listen(const std::string& host = "localhost", unsigned short port = 8900);
    // What approvers present: "Authorization: Bearer TOKEN", or the password of basic
    // authorization, as in ws://any:TOKEN@localhost:8900/approval. Hand it to nobody else.
    const std::string& token() const noexcept;
    // Whether an approver is connected.
    bool open() const noexcept;
    // Ends every connection; what is pending is denied.
    void disconnect();

    // As in the original: yes or no. Throws Error: denied (no approver is connected, or the last
    // one left before it answered), timed_out (after approval_timeout).
    awaitable<bool> request(std::string server_name, std::string tool_name, json::object tool_args);

    // For policies: the first approver's answer, a denial that says why there is none, or a pass
    // when no approver is connected. Cancelling it withdraws the question.
    awaitable<Decision> ask(ToolCall call) { return asked(state_, std::move(call)); }

private:
    using Connection = std::shared_ptr<approval::JsonSocket>;
    struct Pending {
        explicit Pending(const asio::any_io_executor& executor) : changed(executor) {}
        json::object message;
        detail::PendingApproval question{
            Decision(Verdict::deny, "the approver disconnected before it answered")};
        Event changed;
    };
    using ImplPtr = std::shared_ptr<Impl>;

    struct Settled {  // tells the approvers, however the question ends
        ImplPtr state;
        std::string id;
        ~Settled();
    };

    static awaitable<Decision> asked(ImplPtr state, ToolCall call);

    // An approver, for as long as it stays.
    static awaitable<bool> join(ImplPtr state, net::HttpPeerPtr peer,
                                net::HttpServerRequest request);

    // The HTTP status with which to refuse, or 0.
    static unsigned judge(const Impl& state, const net::HttpPeer& peer,
                          const net::HttpServerRequest& request);

    ImplPtr state_;
};

// Where the channel is, and what it demands.
struct ApprovalClientOptions {
    std::string host = "localhost";
    unsigned short port = 8900;
    std::string token;
    Duration connect_timeout = std::chrono::seconds(10);
    Logger logger;
};

// The side that answers. Owned and used on one thread.
//
// Example: tool_calls/main.cpp [ApprovalClient]
class ApprovalClient {
    struct Impl;

public:
    // A question. Copies share the one answer; the first counts.
    class Request {
    public:
        const std::string& server_name() const noexcept { return state_->call.server; }
        const std::string& tool_name() const noexcept { return state_->call.tool; }
        // Of numbers that a double cannot hold, the nearest one; to_string() shows what was sent.
        const json::object& tool_args() const noexcept { return state_->call.arguments; }
        // Yes; does nothing once the question is settled.
        void accept() const { answer(true, {}); }
        // No; the code that called is told the reason.
        void reject(std::string reason = {}) const { answer(false, std::move(reason)); }
        // Returns when this or another approver answered, the call was withdrawn, or the connection
        // ended.
        awaitable<void> settled() const { return settled(state_); }
        // server.tool(k='v', …) on one line, safe to show on a terminal. Long values are folded,
        // and what cannot be shown whole says so: tool_args() has all of it.
        std::string to_string() const {
            return approval::call_text(server_name(), tool_name(), state_->call.sent_arguments());
        }

    private:
        friend class ApprovalClient;
        struct Shared {
            explicit Shared(const asio::any_io_executor& executor) : changed(executor) {}
            ToolCall call;
            std::string id;
            std::weak_ptr<approval::JsonSocket> connection;
            bool settled = false;
            Event changed;
            void settle();
        };
        explicit Request(std::shared_ptr<Shared> state) : state_(std::move(state)) {}
        static awaitable<void> settled(std::shared_ptr<Shared> state) {
            while (!state->settled) co_await state->changed.wait();
        }
        void answer(bool yes, std::string reason) const;
        std::shared_ptr<Shared> state_;
    };
    // Runs once for each question, many at a time; an exception is logged and answers nothing.
    using Callback = std::function<awaitable<void>(Request)>;

    // Connects to nothing yet. callback is called on `executor`.
    ApprovalClient(asio::any_io_executor executor, Callback callback,
                   ApprovalClientOptions options = {})
        : state_(std::make_shared<Impl>(std::move(executor), std::move(callback),
                                        std::move(options))) {}
    ~ApprovalClient() { state_->close(); }
    ApprovalClient(const ApprovalClient&) = delete;
    ApprovalClient& operator=(const ApprovalClient&) = delete;

    // Connects to a channel. Throws Error: io_error (it cannot be reached), denied (it refuses the
    // token), timed_out (after connect_timeout).
    awaitable<void> connect();
    bool connected() const noexcept { return state_->connection && !state_->connection->closed(); }

    // Leaves; what this approver alone was asked is denied there.
    awaitable<void> disconnect();

private:
    struct Impl {
        Impl(asio::any_io_executor e, Callback c, ApprovalClientOptions o)
            : executor(std::move(e)), callback(std::move(c)), options(std::move(o)) {}
        std::string where() const { return options.host + ":" + std::to_string(options.port); }
        void close();
        void settle_all();
        asio::any_io_executor executor;
        Callback callback;
        ApprovalClientOptions options;
        std::shared_ptr<approval::JsonSocket> connection;
        std::map<std::string, std::weak_ptr<Request::Shared>, std::less<>> requests;
    };
    using ImplPtr = std::shared_ptr<Impl>;

    static awaitable<void> say_goodbye(std::shared_ptr<approval::JsonSocket> connection) {
        co_await connection->stream.async_close(approval::websocket::close_code::normal, as_result);
    }

    static awaitable<void> connect_into(ImplPtr state, std::optional<Error>& failure);

    static awaitable<void> receive(ImplPtr state, std::shared_ptr<approval::JsonSocket> connection);

    static void take(const ImplPtr& state, const std::weak_ptr<approval::JsonSocket>& connection,
                     const json::object& message);
    static awaitable<void> consult(ImplPtr state, Request request);

    ImplPtr state_;
};

}  // namespace ipybox

#ifndef IPYBOX_SEPARATE_COMPILATION
#include <ipybox/approval/impl/channel.ipp>
#endif
