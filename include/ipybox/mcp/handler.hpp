#pragma once
// What the author of an MCP server writes: tools, resources and prompts with handlers that are
// coroutines, and what these know of the client they answer.
#include <any>
#include <cstdint>
#include <functional>
#include <ipybox/async.hpp>
#include <ipybox/detail/base64.hpp>
#include <ipybox/detail/build_info.hpp>
#include <ipybox/error.hpp>
#include <ipybox/log.hpp>
#include <ipybox/mcp/jsonrpc.hpp>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ipybox {

// Thrown by a handler, it becomes a JSON-RPC error. (An ipybox::Error thrown by a tool becomes a
// result with isError, which a model can read and act on: prefer that.)
class McpError : public Error {
public:
    // rpc_code: of JSON-RPC; data: what else the error carries.
    McpError(std::int64_t rpc_code, std::string message, json::object data = {})
        : Error(errc::mcp_error, std::move(message)), rpc_code_(rpc_code), data_(std::move(data)) {}
    std::int64_t rpc_code() const noexcept { return rpc_code_; }
    const json::object& data() const noexcept { return data_; }

private:
    std::int64_t rpc_code_;
    json::object data_;
};

// Blocks of content as the protocol spells them; `bytes` are raw and get encoded here.
struct McpContent {
    // A text.
    static json::object text(std::string_view text);
    // A picture; mime_type: "image/png".
    static json::object image(std::string_view bytes, std::string_view mime_type);
    // A sound; mime_type: "audio/wav".
    static json::object audio(std::string_view bytes, std::string_view mime_type);
    // Where a resource is, for clients that want to read it.
    static json::object link(std::string_view uri, std::string_view name,
                             std::string_view mime_type = {});
    // A resource within a result or a message: takes what text_of or blob_of returns.
    static json::object embedded(json::object contents);

    // What reading a resource returns is an array of these: of a text,
    static json::object text_of(std::string_view uri, std::string_view text,
                                std::string_view mime_type = "text/plain");
    // or of bytes.
    static json::object blob_of(std::string_view uri, std::string_view bytes,
                                std::string_view mime_type);

    // A message of a prompt; role: "user" or "assistant".
    static json::object message(std::string_view role, json::object content);
};

// One client. A legacy one begins with initialize; modern requests, which have no session of their
// own, share one for each principal of a listener.
struct McpSession {
    std::string id;
    std::string principal;  // the same for the same bearer token; empty where none is asked for
    bool modern = false;
    std::string protocol_version;
    json::object client_info, client_capabilities;  // legacy: from initialize
    std::any data;  // the application's own; released with the session
};

namespace mcp {
struct McpCall;
struct McpEngine;
}  // namespace mcp

// What a handler knows of the request it answers, and does with its client. A handle: copy it.
class McpContext {
public:
    // The server makes it.
    explicit McpContext(std::shared_ptr<mcp::McpCall> call) : call_(std::move(call)) {}

    // The client's session, with what the application keeps for it.
    McpSession& session() const;
    const json::object& client_info() const;  // empty when a modern client does not say
    // What the client says it can do, as the protocol spells it.
    const json::object& client_capabilities() const;
    const json::object& meta() const;  // the request's _meta

    // capability: "sampling", "roots", "elicitation", or with a part: "elicitation.url".
    bool supports(std::string_view capability) const;
    // Throws McpError (rpc_missing_capability) when the client lacks it.
    void require(std::string_view capability) const;

    // Reports how far the work is, if the client asked for it; `done` must grow from one report to
    // the next. Never waits: a client that does not read loses reports.
    void progress(double done, std::optional<double> total = {},
                  std::string_view message = {}) const;
    // level: "debug" to "emergency" (RFC 5424). Reaches clients that want this level.
    void log(std::string_view level, std::string_view text, std::string_view logger = {}) const;
    // The same with structured data.
    void log(std::string_view level, json::object data, std::string_view logger = {}) const;

    // Asks the person for what `schema` (a flat object schema) describes. Returns {"action":
    // "accept", "decline" or "cancel", "content"}; accepted content fits the schema. The handler
    // waits meanwhile, in both eras; in the modern one the client is answered `input_required`
    // and comes back with the answer. key: names the question within this request.
    awaitable<json::object> elicit(std::string message, json::object schema,
                                   std::string key = "") const;
    // Sends the person to an address; the same result without content.
    awaitable<json::object> elicit_url(std::string message, std::string url,
                                       std::string key = "") const;
    // Asks the client's model; takes and returns what sampling/createMessage does.
    awaitable<json::object> sample(json::object params, std::string key = "") const;
    // The client's roots: {"uri", "name"}.
    awaitable<json::array> roots(std::string key = "") const;
    // Several questions at once: {key: {"method", "params"}}; returns {key: result}. Coroutines of
    // one handler may also ask side by side, each under keys of its own.
    // All of these throw McpError when the client lacks the capability. Throws Error: mcp_error
    // (the client refuses, or its answer makes no sense), timed_out (after options.input_timeout).
    awaitable<json::object> ask(json::object questions) const;

    // Answers the client with a task, as which the handler goes on: the client polls for the
    // result, is asked when it polls, and cancels the task. False: it is none, because its tool
    // makes none, the client takes none or has as many as it may, or is away for an answer; in that
    // last case it becomes one when the client brings the answer.
    bool become_task() const;
    bool is_task() const noexcept;

    // Bytes of a result as JSON, for now: the server's max_result, or less where the answer would
    // be one event of a stream that reports of progress have begun. A larger one becomes an error.
    std::size_t max_result() const noexcept;

    // Legacy HTTP: ends the response stream early; the client comes back for the rest.
    void close_stream() const;

private:
    void log_value(std::string_view level, json::value data, std::string_view logger) const;

    std::shared_ptr<mcp::McpCall> call_;
};

// What a tool returns. Structured content comes as text too, unless there is other content.
struct McpToolResult {
    // Without content.
    McpToolResult() = default;
    // One block of text.
    McpToolResult(std::string_view text) { content.push_back(McpContent::text(text)); }
    // One block of text.
    McpToolResult(const std::string& text) : McpToolResult(std::string_view(text)) {}
    // One block of text.
    McpToolResult(const char* text) : McpToolResult(std::string_view(text)) {}
    // Any blocks.
    McpToolResult(json::array blocks) : content(std::move(blocks)) {}

    json::array content;
    std::optional<json::value> structured;  // fits the tool's output schema if it has one
    bool is_error = false;
    json::object meta;
};

// Whether calls of a tool may become tasks (MCP's extension io.modelcontextprotocol/tasks, since
// 2026-07-28). Only clients that say they take tasks get one; where they are required, others are
// refused.
enum class McpTaskUse { none, optional, required };

// Handlers are called on the executor's thread, many at once. Cancelling the request cancels the
// handler's coroutine.
struct McpTool {
    std::string name = {}, title = {}, description = {};
    json::object input_schema = {};   // empty: no parameters
    json::object output_schema = {};  // empty: none
    json::object annotations = {};    // readOnlyHint and the like
    json::object more = {};           // other members of its listing: icons, _meta
    McpTaskUse task = McpTaskUse::none;
    // After how long a call becomes a task by itself; zero: before the handler begins. Empty: when
    // the handler says so.
    std::optional<Duration> task_after = {};
    // Gets arguments that fit the schema. Throws Error: the result has isError and the error's
    // detail as text.
    std::function<awaitable<McpToolResult>(McpContext, json::object arguments)> call = {};
};

// What an argument could be.
struct McpCompletion {
    std::vector<std::string> values;  // 100 are sent
    std::optional<std::size_t> total;
};
// Gets an argument's name, what was typed of it, and the arguments already settled.
using McpCompleter = std::function<awaitable<McpCompletion>(
    McpContext, std::string argument, std::string typed, json::object others)>;

// A resource, or a template of resources when the URI holds variables: "notes://{name}".
struct McpResource {
    std::string uri = {}, name = {}, title = {}, description = {}, mime_type = {};
    json::object more = {};  // other members of its listing: size, icons, annotations, _meta
    // Gets the URI asked for and the values of the variables; returns the contents.
    std::function<awaitable<json::array>(McpContext, std::string uri, json::object variables)>
        read = {};
    McpCompleter complete = {};  // for a template's variables; may be empty
};

// An argument of a prompt: a string.
struct McpArgument {
    std::string name = {}, description = {};
    bool required = false;
};
// Messages that a person picks, by name, to begin with.
struct McpPrompt {
    std::string name = {}, title = {}, description = {};
    std::vector<McpArgument> arguments = {};
    json::object more = {};
    // Returns the messages.
    std::function<awaitable<json::array>(McpContext, json::object arguments)> get = {};
    McpCompleter complete = {};  // may be empty
};

// What a server says of itself, and its limits.
struct McpServerOptions {
    std::string name = "ipybox", title, version = std::string(detail::build_version);
    std::string instructions;   // for the model
    json::object info;          // other members of serverInfo: icons, websiteUrl
    std::size_t page_size = 0;  // items of a list in one answer; zero: all
    // How long modern clients may keep lists and resources, and for whom ("private", "public").
    std::chrono::milliseconds ttl{0};
    std::string cache_scope = "private";
    Duration input_timeout = std::chrono::minutes(10);  // for answers to elicit() and the like
    std::size_t max_message = std::size_t{32} << 20;    // bytes of one message received
    // Bytes of one result; the TypeScript client closes stdio at 10 MiB.
    std::size_t max_result = (std::size_t{10} << 20) - (std::size_t{64} << 10);
    std::size_t max_calls = 20'000;                // being answered at once
    Duration task_ttl = std::chrono::minutes(15);  // for which the result of a task is kept
    std::chrono::milliseconds task_poll{1000};     // after which clients should ask for it again
    std::size_t max_tasks = 1'000;                 // running and kept, a quarter of them a client's
    // Bytes of results of tasks, a quarter of them for one client. Those that it has seen make
    // room.
    std::size_t max_task_bytes = std::size_t{64} << 20;
    // As servers made with the Python SDK: an argument that is to be something else than a string
    // may be a string of JSON, and calls of unknown tools or with arguments that do not fit get
    // results with isError, from legacy clients of every revision.
    bool lenient_calls = false;
    std::size_t max_batch = 100;  // messages in a batch (2025-03-26)
    std::size_t max_queue =
        1u << 20;  // bytes unsent on stdio before less is read, and reports lost
    // A session begins, before the answer to initialize; may throw Error to refuse it.
    std::function<void(McpSession&)> on_session_begin;
    // It ended, its calls are cancelled; must not throw.
    std::function<void(McpSession&)> on_session_end;
    // What legacy clients notify that the server does not handle itself: roots/list_changed.
    std::function<void(McpSession&, std::string_view method, const json::object& params)>
        on_notification;
    Logger logger;
};

}  // namespace ipybox

#ifndef IPYBOX_SEPARATE_COMPILATION
#include <ipybox/mcp/impl/handler.ipp>
#endif
