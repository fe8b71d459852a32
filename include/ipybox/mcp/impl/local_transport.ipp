#pragma once
#include <ipybox/mcp/local_transport.hpp>

#include <deque>
#include <ipybox/compilation.hpp>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/mcp/engine.hpp>
#include <ipybox/mcp/jsonrpc.hpp>
#include <utility>

namespace ipybox::mcp {

// What goes to the client. Reports beyond what waits for it are lost, answers never.
class LocalOutlet final : public McpOutlet {
public:
    explicit LocalOutlet(const asio::any_io_executor& executor) : changed(executor) {}
    bool notify(json::object message) override {
        if (lines.size() > max_waiting) return false;
        put(message);
        return true;
    }
    void ask(json::object message) override { put(message); }
    void respond(json::object message, unsigned) override { put(message); }
    void abandon() override { changed.notify(); }

    std::deque<std::string> lines;
    Event changed;

private:
    static constexpr std::size_t max_waiting = 1000;
    void put(const json::object& message) {
        lines.push_back(detail::write_json(message));
        changed.notify();
    }
};

}  // namespace ipybox::mcp

namespace ipybox {

struct LocalTransport::Impl {
    explicit Impl(std::shared_ptr<mcp::McpEngine> e) : engine(std::move(e)) {}
    void end() {
        if (session) engine->end(session);
    }
    bool ended() const { return !session || session->ended; }

    std::shared_ptr<mcp::McpEngine> engine;
    std::shared_ptr<mcp::LocalOutlet> outlet;
    mcp::McpSessionPtr session;
    bool closed = false;
};

IPYBOX_DECL LocalTransport::LocalTransport(std::shared_ptr<mcp::McpEngine> engine)
    : state_(std::make_shared<Impl>(std::move(engine))) {}

IPYBOX_DECL LocalTransport::Maker LocalTransport::to(McpServer& server,
                                                     const asio::any_io_executor& executor) {
    if (server.engine_->executor != executor)
        throw Error(errc::bad_argument,
                    "this McpServer works in another io_context or strand: make it with the "
                    "executor of whoever calls its tools");
    return [engine = server.engine_] {
        return std::unique_ptr<McpTransport>(new LocalTransport(engine));
    };
}

IPYBOX_DECL LocalTransport::~LocalTransport() {
    // As the server's destructor does it: what is cancelled is resumed on its executor.
    asio::post(state_->engine->executor, [state = state_] { state->end(); });
}

IPYBOX_DECL awaitable<void> LocalTransport::open(Sandbox&) {
    auto& engine = *state_->engine;
    if (engine.stopping)
        throw Error(errc::mcp_connection, "the application has ended this McpServer");
    state_->end();
    std::string id;
    for (std::size_t n = engine.sessions.size(); id.empty() || engine.sessions.contains(id); ++n)
        id = "local-" + std::to_string(n);
    state_->outlet = std::make_shared<mcp::LocalOutlet>(engine.executor);
    state_->session = engine.open_session(std::move(id), {}, false);
    state_->session->outlet = state_->outlet;
    state_->closed = false;
    co_return;
}

IPYBOX_DECL awaitable<void> LocalTransport::send(json::object message) {
    const auto state = state_;
    if (state->closed || state->ended())
        throw Error(errc::mcp_connection, "the application has ended this McpServer");
    auto read = mcp::read_message(
        detail::write_json(message),
        std::max(detail::default_max_decoded, 3 * state->engine->options.max_message));
    if (read.value.is_object()) {
        state->engine->accept(state->session, state->outlet, std::move(read.value.get_object()));
    } else if (read.asks && !read.id.is_null()) {
        auto refusal = mcp::rpc_error(std::move(read.id), mcp::rpc_invalid_request,
                                      "this message " + read.problem);
        state->outlet->respond(std::move(refusal), 400);
    }
    co_return;
}

IPYBOX_DECL awaitable<json::object> LocalTransport::receive() { return next(state_); }

IPYBOX_DECL awaitable<json::object> LocalTransport::next(ImplPtr state) {
    for (;;) {
        const auto outlet = state->outlet;
        if (state->closed) throw Error(errc::cancelled, "the connection was closed");
        if (!outlet || (outlet->lines.empty() && state->ended()))
            throw Error(errc::mcp_connection, "the application has ended this McpServer");
        if (outlet->lines.empty()) {
            co_await outlet->changed.wait();
            continue;
        }
        const std::string line = std::move(outlet->lines.front());
        outlet->lines.pop_front();
        auto read = mcp::read_message(
            line, std::max(detail::default_max_decoded, 3 * mcp::default_max_message));
        if (read.value.is_object()) co_return std::move(read.value.get_object());
    }
}

// The protocol's own cancellation is all that there is.
IPYBOX_DECL void LocalTransport::cancel(const json::value&) {}

IPYBOX_DECL awaitable<void> LocalTransport::close() {
    const auto state = state_;
    state->closed = true;
    state->end();
    if (state->outlet) state->outlet->changed.notify();
    co_return;
}

}  // namespace ipybox
