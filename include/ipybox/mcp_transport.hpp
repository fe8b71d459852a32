#pragma once
// Door 3: how do JSON-RPC messages reach an MCP server?
#include <cstdint>
#include <ipybox/async.hpp>
#include <ipybox/error.hpp>
#include <ipybox/sandbox.hpp>
#include <memory>
#include <string>
#include <string_view>

namespace ipybox {

// Moves whole JSON-RPC messages; knows nothing of MCP beyond what its wire needs. Configured by
// server_params (the plugin's config). One receive() at a time; any number of send() overlap with
// it and with each other, and keep the order in which they were called. Cancelling a coroutine of
// send() never leaves half a message on the wire.
class McpTransport {
public:
    virtual ~McpTransport() = default;   // ends the server process or connection

    // Starts or reaches the server; again, once receive() has said that it is gone. Throws
    // errc::mcp_connection, errc::missing_dependency. The sandbox must outlive the transport.
    virtual awaitable<void> open(Sandbox& sandbox) = 0;
    // Throws errc::mcp_connection once the server is gone.
    virtual awaitable<void> send(json::object message) = 0;
    // Who sends by send_now().
    class Sender {
    public:
        virtual ~Sender() = default;
        // The request will have no answer, and this is why. Called on the transport's executor.
        virtual void failed(const Error& error) = 0;
    };
    // Sends a request as send() does, without a coroutine of the caller's: it may empty `params`,
    // and tells `sender` what it learns afterwards. False: nothing was sent, `params` are whole,
    // and send() is the way. A transport need not have it.
    virtual bool send_now(std::int64_t /*id*/, std::string_view /*method*/,
                          json::object& /*params*/, const std::shared_ptr<Sender>& /*sender*/) {
        return false;
    }
    // The next message. Throws errc::mcp_connection when the server is gone, with exit code and
    // the tail of its standard error where there is one; errc::cancelled after close().
    virtual awaitable<json::object> receive() = 0;
    // The client gave up on a request: free what the wire holds for it. The protocol's own
    // cancellation message is the client's business.
    virtual void cancel(const json::value& request_id) = 0;
    // Ends in order (close, ask, kill); receive() fails from then on.
    virtual awaitable<void> close() = 0;
    // How long, in all and until now, open() and send() waited for a person who consents to a
    // login: the limits on the server do not count it.
    virtual Duration people_took() const { return Duration::zero(); }
    // What the server wrote for people lately, without secrets: a part of the error when it does not answer.
    virtual std::string last_words() const { return {}; }
};

}  // namespace ipybox
