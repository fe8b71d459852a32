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
    virtual ~McpTransport() = default;  // ends the server process or connection

    // Starts or reaches the server; again, once receive() has said that it is gone. Throws Error:
    // mcp_connection (it cannot be started or reached), missing_dependency (its program is not
    // there). The sandbox must outlive the transport.
    virtual awaitable<void> open(Sandbox& sandbox) = 0;
    // Sends a message. Throws Error: mcp_connection (the server is gone).
    virtual awaitable<void> send(json::object message) = 0;
    // Who sends by send_now().
    class Sender {
    public:
        virtual ~Sender() = default;
        // The request will have no answer, and this is why. Called on the transport's executor,
        // at most once; it may be before send_now() has returned.
        virtual void failed(const Error& error) = 0;
    };
    // A shortcut for requests, which saves the caller a coroutine for each; a transport need not
    // have it. True: the request {id, method, params} is on its way as if send() had been called
    // now, in order with every other; `params` may have been emptied; a failure is told to
    // `sender`, which is held until then, or by receive() if the server is gone. False: nothing was
    // sent, nobody will be told, `params` are whole, and send() is the way; so says a transport
    // that would have to wait. Throws what send() throws, and then nothing was sent.
    virtual bool send_now(std::int64_t /*id*/, std::string_view /*method*/,
                          json::object& /*params*/, const std::shared_ptr<Sender>& /*sender*/) {
        return false;
    }
    // The next message. Throws Error: mcp_connection (the server is gone; with exit code and the
    // tail of its standard error where there is one), cancelled (after close()).
    virtual awaitable<json::object> receive() = 0;
    // The client gave up on a request: free what the wire holds for it. The protocol's own
    // cancellation message is the client's business.
    virtual void cancel(const json::value& request_id) = 0;
    // Ends in order (close, ask, kill); receive() fails from then on.
    virtual awaitable<void> close() = 0;
    // What the server wrote for people lately, without secrets: a part of the error when it does
    // not answer.
    virtual std::string last_words() const { return {}; }
};

// Also implemented by a transport whose open() and send() may wait for a person, who consents to a
// login for example: the client's limits on the server do not count that time.
class WaitsForPeople {
public:
    // How long people were waited for, in all and until now; never less than at an earlier call.
    virtual Duration people_took() const = 0;

protected:
    ~WaitsForPeople() = default;
};

}  // namespace ipybox
