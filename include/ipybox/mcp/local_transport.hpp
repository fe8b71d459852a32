#pragma once
// The way to an McpServer of the same process: no program, no socket.
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <cstdint>
#include <functional>
#include <ipybox/async.hpp>
#include <ipybox/mcp/server.hpp>
#include <ipybox/mcp_transport.hpp>
#include <memory>

namespace ipybox {

// Messages are written and read as on any other way, so that both sides see what they would see
// there. Used on the server's executor, of one thread.
class LocalTransport final : public McpTransport {
public:
    using Maker = std::function<std::unique_ptr<McpTransport>()>;

    // Makes ways to `server`, also after it has ended: then open() says so. executor: of who will
    // use them. Throws Error: bad_argument (the server has another executor).
    static Maker to(McpServer& server, const asio::any_io_executor& executor);

    ~LocalTransport() override;
    awaitable<void> open(Sandbox& sandbox) override;
    awaitable<void> send(json::object message) override;
    awaitable<json::object> receive() override;
    void cancel(const json::value& request_id) override;
    awaitable<void> close() override;

private:
    struct Impl;
    using ImplPtr = std::shared_ptr<Impl>;
    explicit LocalTransport(std::shared_ptr<mcp::McpEngine> engine);
    static awaitable<json::object> next(ImplPtr state);

    ImplPtr state_;
};

}  // namespace ipybox

#ifndef IPYBOX_SEPARATE_COMPILATION
#include <ipybox/mcp/impl/local_transport.ipp>
#endif
