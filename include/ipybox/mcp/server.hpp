#pragma once
// An MCP server: tools, resources and prompts whose handlers are coroutines. This header serves
// them on standard input and output, in both eras of the protocol at once: legacy (a handshake
// opens a session; 2024-11-05 to 2025-11-25) and modern (stateless; 2026-07-28).
// mcp/http_server.hpp serves the same McpServer over HTTP.

#include <boost/asio/posix/stream_descriptor.hpp>
#include <ipybox/async.hpp>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/detail/json_schema.hpp>
#include <ipybox/error.hpp>
#include <ipybox/mcp/calls.hpp>
#include <ipybox/mcp/detail/wire.hpp>
#include <ipybox/mcp/jsonrpc.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace ipybox {

// One thread. Everything may be added, removed and changed while it serves; clients that asked to
// be told are told.
class McpServer {
public:
    // Serves nobody before serve_stdio() or McpHttpServer::listen().
    explicit McpServer(asio::any_io_executor executor, McpServerOptions options = {});
    // As stop(). Handlers are cancelled when the executor runs next.
    ~McpServer();
    McpServer(const McpServer&) = delete;
    McpServer& operator=(const McpServer&) = delete;

    // Throws Error: bad_argument (the name is taken, or a schema malformed).
    void add_tool(McpTool tool);
    // Throws Error: bad_argument (the URI is taken, or a template that this server does not
    // understand).
    void add_resource(McpResource resource);
    // Throws Error: bad_argument (the name is taken).
    void add_prompt(McpPrompt prompt);
    // False: there was none. Calls that run go on.
    bool remove_tool(std::string_view name);
    // The same for a resource or template.
    bool remove_resource(std::string_view uri);
    // The same for a prompt.
    bool remove_prompt(std::string_view name);
    // Tells those who subscribed to it that a resource changed.
    void resource_updated(std::string_view uri);
    // Tells clients to list the tools again; adding and removing does it by itself.
    void tools_changed();
    // The same for prompts.
    void prompts_changed();
    // The same for resources.
    void resources_changed();

    // Serves one client on two descriptors, which stay open. Returns when the input ends or after
    // stop(); what is still being answered then is cancelled. Ignores SIGPIPE for the process if
    // nobody handles it. Call once.
    awaitable<void> serve_stdio(int input = 0, int output = 1);

    // Ends all sessions and cancels what is being answered; serve_stdio() returns. Call it on the
    // executor's thread.
    void stop();

private:
    friend class LocalTransport;
    friend class McpHttpServer;
    std::shared_ptr<mcp::McpEngine> engine_;
};

namespace mcp {

template <class Entries>
bool remove_entry(Entries& entries, std::string_view name) {
    const auto found = find_entry(entries, name);
    if (found == entries.end()) return false;
    entries.erase(found);
    return true;
}

template <class Item>
json::object listing_of(const Item& item) {
    json::object listing;
    listing.emplace("name", item.name);
    if (!item.title.empty()) listing.emplace("title", item.title);
    if (!item.description.empty()) listing.emplace("description", item.description);
    for (const auto& member : item.more) listing.insert_or_assign(member.key(), member.value());
    return listing;
}

}  // namespace mcp

// ---- standard input and output ----

namespace mcp {

// One queue for everything that goes to the client.
class StdioOutlet final : public McpOutlet {
public:
    StdioOutlet(const asio::any_io_executor& executor, std::size_t limit)
        : changed(executor), limit_(limit) {}
    bool notify(json::object message) override;
    void ask(json::object message) override { put(detail::write_json(message)); }
    void respond(json::object message, unsigned) override { put(detail::write_json(message)); }
    void respond(const json::array& batch) { put(detail::write_json(batch)); }
    void abandon() override { changed.notify(); }

    bool crowded() const noexcept { return bytes_ > limit_; }
    // Everything that waits, as one piece.
    std::string take();
    bool empty() const noexcept { return lines_.empty(); }

    Event changed;
    bool broken = false;  // nothing can be written any more
    bool writing = false;

private:
    void put(std::string_view line);
    std::size_t limit_, bytes_ = 0;
    std::string lines_;
};

// The answers to one batch: they go out together, when the last is there.
class BatchOutlet final : public McpOutlet {
public:
    BatchOutlet(std::shared_ptr<StdioOutlet> line, std::size_t expected)
        : line_(std::move(line)), expected_(expected) {}
    bool notify(json::object message) override { return line_->notify(std::move(message)); }
    void ask(json::object message) override { line_->ask(std::move(message)); }
    void respond(json::object message, unsigned) override;
    void abandon() override {
        if (--expected_ == 0 && !answers_.empty()) line_->respond(answers_);
    }

private:
    std::shared_ptr<StdioOutlet> line_;
    std::size_t expected_;
    json::array answers_;
};

awaitable<void> write_lines(std::shared_ptr<StdioOutlet> outlet,
                            std::shared_ptr<asio::posix::stream_descriptor> output);

awaitable<void> read_lines(std::shared_ptr<McpEngine> engine, McpSessionPtr session,
                           std::shared_ptr<StdioOutlet> outlet,
                           std::shared_ptr<asio::posix::stream_descriptor> input);

awaitable<void> until_stopped(std::shared_ptr<McpEngine> engine,
                              std::shared_ptr<StdioOutlet> outlet);

awaitable<void> serve_lines(std::shared_ptr<McpEngine> engine, int in, int out);

}  // namespace mcp

}  // namespace ipybox

#ifndef IPYBOX_SEPARATE_COMPILATION
#include <ipybox/mcp/impl/server.ipp>
#endif
