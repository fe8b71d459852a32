#pragma once
// An MCP server: tools, resources and prompts whose handlers are coroutines. This header answers
// requests and serves them on standard input and output, in both eras of the protocol at once:
// legacy (a handshake opens a session; 2024-11-05 to 2025-11-25) and modern (stateless;
// 2026-07-28). mcp_http_server.hpp serves the same McpServer over HTTP.
#include <openssl/rand.h>
#include <signal.h>
#include <unistd.h>

#include <any>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <exception>
#include <functional>
#include <ipybox/async.hpp>
#include <ipybox/detail/base64.hpp>
#include <ipybox/detail/build_info.hpp>
#include <ipybox/detail/json_schema.hpp>
#include <ipybox/detail/jsonrpc.hpp>
#include <ipybox/detail/mcp_wire.hpp>
#include <ipybox/error.hpp>
#include <ipybox/log.hpp>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace ipybox {

// Thrown by a handler, it becomes a JSON-RPC error. (An ipybox::Error thrown by a tool becomes a
// result with isError, which a model can read and act on: prefer that.)
class McpError : public Error {
public:
    // rpc_code: of JSON-RPC; data: what the error carries besides.
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

namespace detail {
struct McpCall;
struct McpEngine;
}  // namespace detail

// What a handler knows of the request it answers, and does with its client. A handle: copy it.
class McpContext {
public:
    // The server makes it.
    explicit McpContext(std::shared_ptr<detail::McpCall> call) : call_(std::move(call)) {}

    // The client's session, with what the application keeps for it.
    McpSession& session() const;
    const json::object& client_info() const;  // empty when a modern client does not say
    // What the client says it can do, as the protocol spells it.
    const json::object& client_capabilities() const;
    const json::object& meta() const;  // the request's _meta

    // capability: "sampling", "roots", "elicitation", or with a part: "elicitation.url".
    bool supports(std::string_view capability) const;
    // Throws the protocol's error for a missing capability.
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
    // All of these throw McpError when the client lacks the capability, Error when it refuses
    // (mcp_error), does not answer within options.input_timeout (timed_out) or answers nonsense.
    awaitable<json::object> ask(json::object questions) const;

    // Legacy HTTP: ends the response stream early; the client comes back for the rest.
    void close_stream() const;

private:
    void log_value(std::string_view level, json::value data, std::string_view logger) const;

    std::shared_ptr<detail::McpCall> call_;
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

// Handlers are called on the executor's thread, many at once. Cancelling the request cancels the
// handler's coroutine.
struct McpTool {
    std::string name = {}, title = {}, description = {};
    json::object input_schema = {};   // empty: no parameters
    json::object output_schema = {};  // empty: none
    json::object annotations = {};    // readOnlyHint and the like
    json::object more = {};           // other members of its listing: icons, _meta
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
    std::string name = "ipybox", title, version = std::string(detail::version);
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
    std::size_t max_calls = 20'000;  // being answered at once
    // As servers made with the Python SDK: an argument that is to be something else than a string
    // may be a string of JSON, and calls of unknown tools or with arguments that do not fit get
    // results with isError, from legacy clients of every revision.
    bool lenient_calls = false;
    std::size_t max_batch = 100;     // messages in a batch (2025-03-26)
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

    // Throws errc::bad_argument when the name is taken or a schema malformed.
    void add_tool(McpTool tool);
    // Throws errc::bad_argument when the URI is taken or no template this server understands.
    void add_resource(McpResource resource);
    // Throws errc::bad_argument when the name is taken.
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
    friend class McpHttpServer;
    std::shared_ptr<detail::McpEngine> engine_;
};

namespace detail {

// Where the messages of one request, or those of no request, go to.
class McpOutlet {
public:
    virtual ~McpOutlet() = default;
    // False: lost, because the reader is too far behind.
    virtual bool notify(json::object message) = 0;
    virtual void ask(json::object message) = 0;
    // The answer. status: for HTTP, while that can still be said.
    virtual void respond(json::object message, unsigned status) = 0;
    virtual void abandon() = 0;  // there will be no answer
    virtual void close_stream() {}
};
using OutletPtr = std::shared_ptr<McpOutlet>;
using McpCallPtr = std::shared_ptr<McpCall>;

struct McpSessionState final : McpSession {
    bool begun = false, ended = false, initialized = false;
    int log_severity = 1;  // info
    std::set<std::string, std::less<>> subscriptions;
    struct Question {
        McpCallPtr call;
        std::string key;
    };
    std::map<std::int64_t, Question> questions;  // of legacy requests to the client
    std::int64_t last_question = 0;
    std::map<std::string, std::weak_ptr<McpCall>, std::less<>> calls;  // by id, as JSON
    std::size_t busy = 0;                                              // calls and streams
    Clock::time_point last_used = Clock::now();
    OutletPtr outlet;                 // for messages that belong to no request
    std::shared_ptr<void> transport;  // HTTP's own
};
using SessionPtr = std::shared_ptr<McpSessionState>;

// A request that a handler answers. In the modern era it may come to an end and go on under
// another id, when the client returns with what was asked for.
struct McpCall {
    McpCall(std::shared_ptr<McpEngine> e, SessionPtr s, const asio::any_io_executor& executor)
        : engine(std::move(e)), session(std::move(s)), answered(executor) {}

    std::shared_ptr<McpEngine> engine;
    SessionPtr session;
    bool modern = false, cancelled = false, finished = false;
    std::string method, fingerprint;  // what it asks for: a retry must ask for the same
    asio::cancellation_signal signal;
    // Of the request that waits for the answer.
    json::value id;
    json::object meta, client_info, client_capabilities;
    std::optional<int> log_severity;
    OutletPtr outlet;  // null while the client is gone for an answer
    // Questions to the client, by key: those of every ask() that waits, and the answers.
    json::object asked, given;
    Event answered;
    std::map<std::string, Error, std::less<>> refusals;
    std::string request_state;
    std::string key;           // in session->calls
    std::size_t keys = 0;      // made for questions
    std::size_t repeated = 0;  // answers in a row of which none fits
    // What the client gets when it comes back after the handler has finished, and until when.
    json::object late_result;
    std::optional<McpError> late_failure;
    std::optional<asio::steady_timer> expiry;
};

struct McpSubscription {
    json::value id;
    std::weak_ptr<McpSessionState> session;
    std::weak_ptr<McpOutlet> outlet;
    bool tools = false, prompts = false, resources = false;
    std::set<std::string, std::less<>> uris;
};

struct McpEngine : std::enable_shared_from_this<McpEngine> {
    template <class Item>
    struct Entry {
        std::uint64_t serial = 0;
        Item item;
        json::object listing;
        std::vector<MirroredParameter> mirrored;
        json::value input_schema, output_schema;
        std::unique_ptr<SchemaDocument> input, output;
        std::optional<UriTemplate> pattern;
    };
    using Tool = Entry<McpTool>;
    using Resource = Entry<McpResource>;
    using Prompt = Entry<McpPrompt>;
    template <class E>
    using Entries = std::vector<std::shared_ptr<E>>;

    McpEngine(asio::any_io_executor e, McpServerOptions o)
        : executor(std::move(e)), options(std::move(o)) {}

    asio::any_io_executor executor;
    McpServerOptions options;
    Entries<Tool> tools;
    Entries<Resource> resources, templates;
    Entries<Prompt> prompts;
    bool has_tools = false, has_resources = false, has_prompts = false, has_completions = false;
    std::uint64_t last_serial = 0;
    std::map<std::string, SessionPtr, std::less<>> sessions;
    std::unordered_map<std::string, McpCallPtr> parked;  // by requestState
    std::list<McpSubscription> subscriptions;
    std::size_t calls = 0;
    bool stopping = false;
    bool tell_tools = false, tell_prompts = false, tell_resources = false;

    static constexpr std::size_t max_subscriptions = 10'000;
    static constexpr std::size_t max_parked = 10'000;
    static constexpr std::size_t max_repeated = 5;

    // ---- sessions ----
    static std::string random_hex();
    SessionPtr open_session(std::string id, std::string principal, bool modern);
    void begin(const SessionPtr& session);
    void end(SessionPtr session);
    void stop();

    // ---- messages ----
    // Takes what a client sent; `outlet` gets everything that it leads to. Returns the call that
    // a handler answers, if it is one.
    McpCallPtr accept(const SessionPtr& session, const OutletPtr& outlet, json::object message);
    // Why a batch is refused; empty if it is not (2025-03-26).
    std::string batch_problem(const McpSessionState& session, const json::array& batch) const;
    // How many answers a batch has.
    static std::size_t answers_to(json::array& batch);
    // Takes one that is not refused; `outlet` waits for all its answers.
    void accept_batch(const SessionPtr& session, const OutletPtr& outlet, json::array batch);
    McpCallPtr request(const SessionPtr& session, const OutletPtr& outlet, json::value id,
                       std::string_view method, json::object params);
    void notified(const SessionPtr& session, std::string_view method, const json::object& params);
    void replied(const SessionPtr& session, const RpcMessage& rpc);
    static bool is_modern(const json::object& params);
    static void check_modern(const json::object& meta);
    static void respond_error(const OutletPtr& outlet, json::value id, const McpError& error,
                              bool modern);

    // ---- what is answered at once ----
    json::object server_info() const;
    json::object capabilities() const;
    json::object initialize(const SessionPtr& session, const json::object& params);
    json::object discover() const;
    template <class E>
    json::object list(const Entries<E>& entries, std::string_view member,
                      const json::object& params, bool modern) const;
    void listen(const SessionPtr& session, const OutletPtr& outlet, json::value id,
                const json::object& params);
    void cacheable(json::object& result) const;

    // ---- what handlers answer ----
    McpCallPtr start(const SessionPtr& session, const OutletPtr& outlet, json::value id,
                     std::string_view method, json::object params, bool modern);
    awaitable<json::object> work_for(McpCallPtr call, std::string method, json::object params);
    McpCallPtr resume(const SessionPtr& session, const OutletPtr& outlet, json::value id,
                      const json::object& params, const std::string& fingerprint);
    void adopt(const McpCallPtr& call, const OutletPtr& outlet, json::value id,
               const json::object& params);
    static awaitable<void> run(McpCallPtr call, awaitable<json::object> work);
    void finish(const McpCallPtr& call, json::object result, const McpError* error);
    static void reply(McpCall& call, json::object result, const McpError* error);
    void cancel(const McpCallPtr& call);
    static awaitable<json::object> unknown_tool(std::string name);
    static awaitable<json::object> call_tool(McpCallPtr call, std::shared_ptr<Tool> tool,
                                             json::object arguments);
    static awaitable<json::object> read(McpCallPtr call, std::shared_ptr<Resource> resource,
                                        std::string uri, json::object variables);
    static awaitable<json::object> get(McpCallPtr call, std::shared_ptr<Prompt> prompt,
                                       json::object arguments);
    static awaitable<json::object> complete(McpCallPtr call, std::shared_ptr<void> owner,
                                            const McpCompleter* completer, std::string argument,
                                            std::string typed, json::object others);
    std::shared_ptr<Tool> find_tool(std::string_view name) const;

    // ---- questions to the client ----
    static awaitable<json::object> ask(McpCallPtr call, json::object questions);
    static awaitable<json::object> ask_one(McpCallPtr call, std::string method, json::object params,
                                           std::string key);
    static awaitable<json::array> ask_roots(McpCallPtr call, std::string key);
    static void park(const McpCallPtr& call);
    static void unpark(const McpCallPtr& call);
    static void need(const McpCall& call, std::string_view capability);
    static bool supports(const McpCall& call, std::string_view capability);
    static void check_question(const McpCall& call, const json::value& question);
    static bool fits(const json::object& question, const json::value* answer);
    static const json::object& capabilities_of(const McpCall& call);

    // ---- news ----
    void schedule_news(bool& flag);
    void tell(std::string_view method, bool McpSubscription::*wanted);
    void updated(std::string_view uri);
};

}  // namespace detail

// ---- content ----

inline json::object McpContent::text(std::string_view text) {
    return {{"type", "text"}, {"text", text}};
}
inline json::object McpContent::image(std::string_view bytes, std::string_view mime_type) {
    return {{"type", "image"}, {"data", detail::encode_base64(bytes)}, {"mimeType", mime_type}};
}
inline json::object McpContent::audio(std::string_view bytes, std::string_view mime_type) {
    return {{"type", "audio"}, {"data", detail::encode_base64(bytes)}, {"mimeType", mime_type}};
}
inline json::object McpContent::link(std::string_view uri, std::string_view name,
                                     std::string_view mime_type) {
    json::object block{{"type", "resource_link"}, {"uri", uri}, {"name", name}};
    if (!mime_type.empty()) block.emplace("mimeType", mime_type);
    return block;
}
inline json::object McpContent::embedded(json::object contents) {
    return {{"type", "resource"}, {"resource", std::move(contents)}};
}
inline json::object McpContent::text_of(std::string_view uri, std::string_view text,
                                        std::string_view mime_type) {
    return {{"uri", uri}, {"mimeType", mime_type}, {"text", text}};
}
inline json::object McpContent::blob_of(std::string_view uri, std::string_view bytes,
                                        std::string_view mime_type) {
    return {{"uri", uri}, {"mimeType", mime_type}, {"blob", detail::encode_base64(bytes)}};
}
inline json::object McpContent::message(std::string_view role, json::object content) {
    return {{"role", role}, {"content", std::move(content)}};
}

// ---- the server's registry ----

inline McpServer::McpServer(asio::any_io_executor executor, McpServerOptions options)
    : engine_(std::make_shared<detail::McpEngine>(std::move(executor), std::move(options))) {}

inline McpServer::~McpServer() {
    // On the executor, not here: Asio (1.81) lets a signal that is emitted elsewhere outlive what
    // it is meant for.
    engine_->stopping = true;
    asio::post(engine_->executor, [engine = engine_] { engine->stop(); });
}
inline void McpServer::stop() { engine_->stop(); }

namespace detail {

template <class Entries>
auto find_entry(const Entries& entries, std::string_view name) {
    return std::find_if(entries.begin(), entries.end(), [name](const auto& entry) {
        if constexpr (requires { entry->item.uri; }) {
            return entry->item.uri == name;
        } else {
            return entry->item.name == name;
        }
    });
}

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

// Clients below 2025-06-18 know neither links nor, below 2025-03-26, audio: they get text.
inline void simplify_content(json::array& content, std::string_view revision) {
    for (auto& block : content) {
        auto* object = block.if_object();
        if (object == nullptr) continue;
        const auto type = string_of(*object, "type");
        if (type == "resource_link" && revision < "2025-06-18") {
            *object = McpContent::text(std::string(string_of(*object, "name")) + ": " +
                                       std::string(string_of(*object, "uri")));
        } else if (type == "audio" && revision < "2025-03-26") {
            *object = McpContent::text("(audio, which this version of the protocol cannot carry)");
        }
    }
}

}  // namespace detail

inline void McpServer::add_tool(McpTool tool) {
    auto entry = std::make_shared<detail::McpEngine::Tool>();
    if (tool.name.empty() || detail::find_entry(engine_->tools, tool.name) != engine_->tools.end())
        throw Error(errc::bad_argument,
                    "there is already a tool \"" + tool.name + "\", or it has no name");
    if (!tool.call) throw Error(errc::bad_argument, "tool \"" + tool.name + "\" has no handler");
    if (tool.input_schema.empty()) tool.input_schema = {{"type", "object"}};
    if (detail::string_of(tool.input_schema, "type") != "object")
        throw Error(errc::bad_argument,
                    "the input schema of tool \"" + tool.name + "\" has not the type \"object\"");
    entry->mirrored = detail::mirrored_parameters(tool.input_schema);
    entry->listing = detail::listing_of(tool);
    entry->listing.insert_or_assign("inputSchema", tool.input_schema);
    if (!tool.output_schema.empty())
        entry->listing.insert_or_assign("outputSchema", tool.output_schema);
    if (!tool.annotations.empty()) entry->listing.insert_or_assign("annotations", tool.annotations);
    entry->input_schema = std::move(tool.input_schema);
    entry->input = std::make_unique<detail::SchemaDocument>(entry->input_schema);
    if (!tool.output_schema.empty()) {
        entry->output_schema = std::move(tool.output_schema);
        entry->output = std::make_unique<detail::SchemaDocument>(entry->output_schema);
    }
    entry->item = std::move(tool);
    entry->serial = ++engine_->last_serial;
    engine_->tools.push_back(std::move(entry));
    engine_->has_tools = true;
    tools_changed();
}

inline void McpServer::add_resource(McpResource resource) {
    auto entry = std::make_shared<detail::McpEngine::Resource>();
    const bool is_template = resource.uri.find('{') != std::string::npos;
    auto& entries = is_template ? engine_->templates : engine_->resources;
    if (resource.uri.empty() || detail::find_entry(entries, resource.uri) != entries.end())
        throw Error(errc::bad_argument,
                    "there is already a resource \"" + resource.uri + "\", or it has no URI");
    if (!resource.read)
        throw Error(errc::bad_argument, "resource \"" + resource.uri + "\" has no handler");
    if (resource.name.empty()) resource.name = resource.uri;
    if (is_template) entry->pattern.emplace(resource.uri);
    entry->listing = detail::listing_of(resource);
    entry->listing.insert_or_assign(is_template ? "uriTemplate" : "uri", resource.uri);
    if (!resource.mime_type.empty())
        entry->listing.insert_or_assign("mimeType", resource.mime_type);
    engine_->has_completions |= static_cast<bool>(resource.complete);
    entry->item = std::move(resource);
    entry->serial = ++engine_->last_serial;
    entries.push_back(std::move(entry));
    engine_->has_resources = true;
    resources_changed();
}

inline void McpServer::add_prompt(McpPrompt prompt) {
    auto entry = std::make_shared<detail::McpEngine::Prompt>();
    if (prompt.name.empty() ||
        detail::find_entry(engine_->prompts, prompt.name) != engine_->prompts.end())
        throw Error(errc::bad_argument,
                    "there is already a prompt \"" + prompt.name + "\", or it has no name");
    if (!prompt.get)
        throw Error(errc::bad_argument, "prompt \"" + prompt.name + "\" has no handler");
    entry->listing = detail::listing_of(prompt);
    json::array arguments;
    for (const auto& argument : prompt.arguments) {
        json::object listed{{"name", argument.name}, {"required", argument.required}};
        if (!argument.description.empty()) listed.emplace("description", argument.description);
        arguments.push_back(std::move(listed));
    }
    if (!arguments.empty()) entry->listing.insert_or_assign("arguments", std::move(arguments));
    engine_->has_completions |= static_cast<bool>(prompt.complete);
    entry->item = std::move(prompt);
    entry->serial = ++engine_->last_serial;
    engine_->prompts.push_back(std::move(entry));
    engine_->has_prompts = true;
    prompts_changed();
}

inline bool McpServer::remove_tool(std::string_view name) {
    if (!detail::remove_entry(engine_->tools, name)) return false;
    tools_changed();
    return true;
}
inline bool McpServer::remove_resource(std::string_view uri) {
    const bool found = detail::remove_entry(engine_->resources, uri) ||
                       detail::remove_entry(engine_->templates, uri);
    if (found) resources_changed();
    return found;
}
inline bool McpServer::remove_prompt(std::string_view name) {
    if (!detail::remove_entry(engine_->prompts, name)) return false;
    prompts_changed();
    return true;
}
inline void McpServer::resource_updated(std::string_view uri) { engine_->updated(uri); }
inline void McpServer::tools_changed() { engine_->schedule_news(engine_->tell_tools); }
inline void McpServer::prompts_changed() { engine_->schedule_news(engine_->tell_prompts); }
inline void McpServer::resources_changed() { engine_->schedule_news(engine_->tell_resources); }

namespace detail {

// ---- news ----

// Once for all changes that one handler makes.
inline void McpEngine::schedule_news(bool& flag) {
    const bool scheduled = tell_tools || tell_prompts || tell_resources;
    flag = true;
    if (scheduled) return;
    if (sessions.empty() && subscriptions.empty()) {
        flag = false;
        return;
    }
    asio::post(executor, [self = shared_from_this()] {
        if (std::exchange(self->tell_tools, false))
            self->tell("notifications/tools/list_changed", &McpSubscription::tools);
        if (std::exchange(self->tell_prompts, false))
            self->tell("notifications/prompts/list_changed", &McpSubscription::prompts);
        if (std::exchange(self->tell_resources, false))
            self->tell("notifications/resources/list_changed", &McpSubscription::resources);
    });
}

inline json::object tagged(std::string_view method, json::object params, const json::value& id) {
    json::object meta;
    meta.emplace(meta_subscription, id);
    params.insert_or_assign("_meta", std::move(meta));
    return rpc_notification(method, std::move(params));
}

inline void McpEngine::tell(std::string_view method, bool McpSubscription::*wanted) {
    for (const auto& [id, session] : sessions)
        if (session->initialized && session->outlet)
            session->outlet->notify(rpc_notification(method, {}));
    for (auto& subscription : subscriptions)
        if (const auto outlet = subscription.outlet.lock(); outlet && subscription.*wanted)
            if (!outlet->notify(tagged(method, {}, subscription.id))) outlet->abandon();
    std::erase_if(subscriptions, [](const auto& one) { return one.outlet.expired(); });
}

inline void McpEngine::updated(std::string_view uri) {
    json::object params{{"uri", uri}};
    const std::string_view method = "notifications/resources/updated";
    for (const auto& [id, session] : sessions)
        if (session->outlet && session->subscriptions.contains(uri))
            session->outlet->notify(rpc_notification(method, params));
    for (auto& subscription : subscriptions)
        if (const auto outlet = subscription.outlet.lock();
            outlet && subscription.uris.contains(uri))
            if (!outlet->notify(tagged(method, params, subscription.id))) outlet->abandon();
    std::erase_if(subscriptions, [](const auto& one) { return one.outlet.expired(); });
}

// ---- sessions ----

inline std::string McpEngine::random_hex() {
    unsigned char bytes[32];
    if (RAND_bytes(bytes, sizeof bytes) != 1)
        throw Error(errc::io_error, "the system gives no random numbers");
    static constexpr char digits[] = "0123456789abcdef";
    std::string text;
    for (const unsigned char byte : bytes) {
        text += digits[byte >> 4];
        text += digits[byte & 15];
    }
    return text;
}

inline SessionPtr McpEngine::open_session(std::string id, std::string principal, bool modern) {
    auto session = std::make_shared<McpSessionState>();
    session->id = std::move(id);
    session->principal = std::move(principal);
    session->modern = modern;
    if (modern) session->protocol_version = mcp_modern_version;
    sessions[session->id] = session;
    return session;
}

inline void McpEngine::begin(const SessionPtr& session) {
    if (session->begun) return;
    if (options.on_session_begin) options.on_session_begin(*session);
    session->begun = true;
}

inline void McpEngine::end(SessionPtr session) {
    if (std::exchange(session->ended, true)) return;
    sessions.erase(session->id);
    auto running = std::move(session->calls);
    session->calls.clear();
    for (const auto& [id, weak] : running)
        if (const auto call = weak.lock()) cancel(call);
    session->questions.clear();
    // A graceful end of subscriptions says so.
    for (auto& one : subscriptions) {
        const auto outlet = one.outlet.lock();
        if (!outlet || one.session.lock() != session) continue;
        json::object meta, result;
        meta.emplace(meta_subscription, one.id);
        result.emplace("resultType", "complete");
        result.emplace("_meta", std::move(meta));
        outlet->respond(rpc_result(one.id, std::move(result)), 200);
    }
    std::erase_if(subscriptions, [&session](const auto& one) {
        return one.outlet.expired() || one.session.lock() == session;
    });
    if (session->begun && options.on_session_end) options.on_session_end(*session);
    if (session->outlet) session->outlet->abandon();
    session->outlet.reset();
    session->transport.reset();
}

inline void McpEngine::stop() {
    stopping = true;
    auto all = sessions;
    for (const auto& [id, session] : all) end(session);
    auto waiting = std::move(parked);
    parked.clear();
    for (const auto& [state, call] : waiting) cancel(call);
}

// ---- messages ----

inline bool McpEngine::is_modern(const json::object& params) {
    const auto* meta = object_of(params, "_meta");
    return meta != nullptr && (meta->contains(meta_version) || meta->contains(meta_capabilities));
}

// Throws what a modern request with such a _meta is answered.
inline void McpEngine::check_modern(const json::object& meta) {
    const auto revision = string_of(meta, meta_version);
    if (revision.empty())
        throw McpError(rpc_invalid_params,
                       "the request's _meta lacks " + std::string(meta_version));
    if (revision != mcp_modern_version) {
        json::object data;
        data.emplace("supported", json::array{mcp_modern_version});
        data.emplace("requested", revision);
        throw McpError(rpc_unsupported_version, "unsupported protocol version", std::move(data));
    }
    if (object_of(meta, meta_capabilities) == nullptr)
        throw McpError(rpc_invalid_params,
                       "the request's _meta lacks " + std::string(meta_capabilities));
}

inline void McpEngine::respond_error(const OutletPtr& outlet, json::value id, const McpError& error,
                                     bool modern) {
    unsigned status = 200;
    if (modern) {
        if (error.rpc_code() == rpc_method_not_found) status = 404;
        if (error.rpc_code() == rpc_header_mismatch || error.rpc_code() == rpc_missing_capability ||
            error.rpc_code() == rpc_unsupported_version)
            status = 400;
    }
    auto message = rpc_error(std::move(id), error.rpc_code(), error.detail());
    if (!error.data().empty()) message["error"].get_object()["data"] = error.data();
    outlet->respond(std::move(message), status);
}

inline McpCallPtr McpEngine::accept(const SessionPtr& session, const OutletPtr& outlet,
                                    json::object message) {
    using Kind = RpcMessage::Kind;
    const auto rpc = classify(message);
    session->last_used = Clock::now();
    json::object params;
    const bool structured = rpc.kind == Kind::request || rpc.kind == Kind::notification;
    if (structured && rpc.body != nullptr && rpc.body->is_object())
        params = std::move(rpc.body->get_object());
    switch (rpc.kind) {
        case Kind::result:
        case Kind::error:
            replied(session, rpc);
            return nullptr;
        case Kind::notification:
            notified(session, rpc.method, params);
            return nullptr;
        case Kind::malformed:
            outlet->respond(
                rpc_error(rpc.id != nullptr ? *rpc.id : json::value(), rpc_invalid_request,
                          std::string("not a JSON-RPC message: ") + rpc.problem),
                400);
            return nullptr;
        case Kind::request:
            break;
    }
    json::value id = *rpc.id;
    const bool modern = session->modern || is_modern(params) || rpc.method == "server/discover";
    try {
        if (rpc.body != nullptr && !rpc.body->is_object())
            throw McpError(rpc_invalid_params, "params must be an object");
        return request(session, outlet, id, rpc.method, std::move(params));
    } catch (const McpError& error) {
        respond_error(outlet, std::move(id), error, modern);
    } catch (const Error& error) {
        respond_error(outlet, std::move(id), McpError(rpc_internal_error, error.detail()), modern);
    }
    return nullptr;
}

inline std::string McpEngine::batch_problem(const McpSessionState& session,
                                            const json::array& batch) const {
    if (session.protocol_version != "2025-03-26")
        return "only the protocol version 2025-03-26 has batches: send one message at a time";
    if (batch.empty() || batch.size() > options.max_batch)
        return "a batch has 1 to " + std::to_string(options.max_batch) + " messages";
    return {};
}

inline std::size_t McpEngine::answers_to(json::array& batch) {
    using Kind = RpcMessage::Kind;
    std::size_t answers = 0;
    for (auto& one : batch) {
        auto* object = one.if_object();
        const auto kind = object != nullptr ? classify(*object).kind : Kind::malformed;
        answers += kind == Kind::request || kind == Kind::malformed;
    }
    return answers;
}

inline void McpEngine::accept_batch(const SessionPtr& session, const OutletPtr& outlet,
                                    json::array batch) {
    for (auto& one : batch) {
        auto* object = one.if_object();
        if (object == nullptr) {
            outlet->respond(rpc_error(json::value(), rpc_invalid_request, "not an object"), 200);
            continue;
        }
        const auto rpc = classify(*object);
        const auto* params = rpc.body != nullptr ? rpc.body->if_object() : nullptr;
        const bool elsewhere =
            rpc.kind == RpcMessage::Kind::request &&
            (rpc.method == "initialize" || rpc.method == "server/discover" ||
             (params != nullptr && is_modern(*params)));
        if (elsewhere) {
            outlet->respond(rpc_error(std::move(*rpc.id), rpc_invalid_request,
                                      "this request has no place in a batch"),
                            200);
        } else {
            accept(session, outlet, std::move(*object));
        }
    }
}

inline McpCallPtr McpEngine::request(const SessionPtr& session, const OutletPtr& outlet,
                                     json::value id, std::string_view method, json::object params) {
    if (stopping || session->ended) throw McpError(rpc_internal_error, "the server is stopping");
    const bool modern = session->modern || is_modern(params) || method == "server/discover";
    const auto answer = [&outlet, &id](json::object result) {
        outlet->respond(rpc_result(std::move(id), std::move(result)), 200);
        return McpCallPtr();
    };
    if (modern) {
        const auto* meta = object_of(params, "_meta");
        check_modern(meta != nullptr ? *meta : json::object());
        begin(session);
        if (method == "server/discover") return answer(discover());
        if (method == "subscriptions/listen") {
            listen(session, outlet, std::move(id), params);
            return nullptr;
        }
    } else {
        if (method == "initialize") return answer(initialize(session, params));
        if (method == "ping") return answer({});
        if (!session->begun)
            throw McpError(rpc_invalid_request, "the first request must be initialize");
        if (method == "logging/setLevel") {
            const auto severity = log_severity(string_of(params, "level"));
            if (!severity)
                throw McpError(rpc_invalid_params, "level is none of debug to emergency");
            session->log_severity = *severity;
            return answer({});
        }
        const bool subscribe = method == "resources/subscribe";
        if (has_resources && (subscribe || method == "resources/unsubscribe")) {
            const auto uri = string_of(params, "uri");
            if (uri.empty() || uri.size() > 8192)
                throw McpError(rpc_invalid_params, "uri is missing");
            if (!subscribe) {
                session->subscriptions.erase(std::string(uri));
            } else if (session->subscriptions.size() < max_subscriptions) {
                session->subscriptions.emplace(uri);
            } else {
                throw McpError(rpc_invalid_params, "too many subscriptions");
            }
            return answer({});
        }
    }
    if (has_tools && method == "tools/list") {
        auto result = list(tools, "tools", params, modern);
        if (!modern) {
            for (auto& tool : result["tools"].get_array()) {
                // Legacy clients refuse the whole list for a schema of another type.
                auto& object = tool.get_object();
                const auto* schema = object_of(object, "outputSchema");
                if (schema != nullptr && string_of(*schema, "type") != "object")
                    object.erase("outputSchema");
            }
        }
        return answer(std::move(result));
    }
    if (has_resources && method == "resources/list")
        return answer(list(resources, "resources", params, modern));
    if (has_resources && method == "resources/templates/list")
        return answer(list(templates, "resourceTemplates", params, modern));
    if (has_prompts && method == "prompts/list")
        return answer(list(prompts, "prompts", params, modern));
    const bool handled = (has_tools && method == "tools/call") ||
                         (has_resources && method == "resources/read") ||
                         (has_prompts && method == "prompts/get") ||
                         (has_completions && method == "completion/complete");
    if (handled) return start(session, outlet, std::move(id), method, std::move(params), modern);
    throw McpError(rpc_method_not_found,
                   "this server has no method \"" + excerpt(method, 200) + "\"");
}

inline void McpEngine::notified(const SessionPtr& session, std::string_view method,
                                const json::object& params) {
    if (method == "notifications/initialized") {
        session->initialized = true;
    } else if (method == "notifications/cancelled") {
        const auto* id = params.if_contains("requestId");
        if (id == nullptr) return;
        const auto found = session->calls.find(json::serialize(*id));
        if (found != session->calls.end())
            if (const auto call = found->second.lock()) cancel(call);
        std::erase_if(subscriptions, [&](const auto& one) {
            return one.id == *id && one.session.lock() == session;
        });
    } else if (options.on_notification) {
        try {
            options.on_notification(*session, method, params);
        } catch (const std::exception& error) {
            options.logger(LogLevel::warning,
                           std::string("on_notification failed: ") + error.what());
        }
    }
}

// An answer of a legacy client to what a handler asked it.
inline void McpEngine::replied(const SessionPtr& session, const RpcMessage& rpc) {
    const auto id = integer_of(rpc.id);
    const auto found = id ? session->questions.find(*id) : session->questions.end();
    if (found == session->questions.end()) return;
    const auto question = found->second;
    session->questions.erase(found);
    if (rpc.kind == RpcMessage::Kind::result) {
        question.call->given[question.key] = std::move(*rpc.body);
    } else {
        const auto* error = rpc.body != nullptr ? rpc.body->if_object() : nullptr;
        const auto text = error != nullptr ? string_of(*error, "message") : std::string_view();
        Error refusal(errc::mcp_error, "the client refused: " + excerpt(text, 1000));
        question.call->refusals.insert_or_assign(question.key, std::move(refusal));
    }
    question.call->answered.notify();
}

// ---- what is answered at once ----

inline json::object McpEngine::server_info() const {
    json::object info{{"name", options.name}, {"version", options.version}};
    if (!options.title.empty()) info.emplace("title", options.title);
    for (const auto& member : options.info) info.insert_or_assign(member.key(), member.value());
    return info;
}

inline json::object McpEngine::capabilities() const {
    json::object found;
    found.emplace("logging", json::object());
    if (has_tools) found.emplace("tools", json::object{{"listChanged", true}});
    if (has_prompts) found.emplace("prompts", json::object{{"listChanged", true}});
    if (has_resources)
        found.emplace("resources", json::object{{"listChanged", true}, {"subscribe", true}});
    if (has_completions) found.emplace("completions", json::object());
    return found;
}

inline json::object McpEngine::initialize(const SessionPtr& session, const json::object& params) {
    const auto asked = string_of(params, "protocolVersion");
    if (asked.empty()) throw McpError(rpc_invalid_params, "initialize needs a protocolVersion");
    session->protocol_version = is_legacy_version(asked) ? asked : mcp_legacy_versions.front();
    const auto* capabilities_said = object_of(params, "capabilities");
    const auto* info = object_of(params, "clientInfo");
    session->client_capabilities =
        capabilities_said != nullptr ? *capabilities_said : json::object();
    session->client_info = info != nullptr ? *info : json::object();
    begin(session);
    json::object result;
    result.emplace("protocolVersion", session->protocol_version);
    result.emplace("capabilities", capabilities());
    result.emplace("serverInfo", server_info());
    if (!options.instructions.empty()) result.emplace("instructions", options.instructions);
    return result;
}

inline void McpEngine::cacheable(json::object& result) const {
    result.emplace("resultType", "complete");
    result.emplace("ttlMs", options.ttl.count());
    result.emplace("cacheScope", options.cache_scope);
}

inline json::object McpEngine::discover() const {
    json::object result, meta;
    result.emplace("supportedVersions", json::array{mcp_modern_version});
    result.emplace("capabilities", capabilities());
    if (!options.instructions.empty()) result.emplace("instructions", options.instructions);
    meta.emplace(meta_server_info, server_info());
    result.emplace("_meta", std::move(meta));
    cacheable(result);
    return result;
}

// A cursor is the serial number of the last item seen: it stays good when items come and go.
template <class E>
json::object McpEngine::list(const Entries<E>& entries, std::string_view member,
                             const json::object& params, bool modern) const {
    std::uint64_t after = 0;
    if (const auto* cursor = params.if_contains("cursor");
        cursor != nullptr && !cursor->is_null()) {
        const auto text =
            cursor->is_string() ? std::string_view(cursor->get_string()) : std::string_view();
        const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), after);
        if (text.empty() || error != std::errc() || stop != text.data() + text.size() ||
            after > last_serial)
            throw McpError(rpc_invalid_params, "the cursor is none of this server's");
    }
    json::array page;
    json::object result;
    std::uint64_t last = 0;
    for (const auto& entry : entries) {
        if (entry->serial <= after) continue;
        if (options.page_size > 0 && page.size() == options.page_size) {
            result.emplace("nextCursor", std::to_string(last));
            break;
        }
        page.push_back(entry->listing);
        last = entry->serial;
    }
    result.emplace(member, std::move(page));
    if (modern) cacheable(result);
    return result;
}

inline void McpEngine::listen(const SessionPtr& session, const OutletPtr& outlet, json::value id,
                              const json::object& params) {
    const auto* filter = object_of(params, "notifications");
    if (filter == nullptr)
        throw McpError(rpc_invalid_params, "subscriptions/listen needs notifications");
    std::erase_if(subscriptions, [](const auto& one) { return one.outlet.expired(); });
    if (subscriptions.size() >= max_subscriptions)
        throw McpError(rpc_internal_error, "too many subscriptions");
    const auto wants = [filter](std::string_view key) {
        const auto* value = filter->if_contains(key);
        return value != nullptr && value->is_bool() && value->get_bool();
    };
    McpSubscription subscription;
    subscription.id = id;
    subscription.session = session;
    subscription.outlet = outlet;
    subscription.tools = has_tools && wants("toolsListChanged");
    subscription.prompts = has_prompts && wants("promptsListChanged");
    subscription.resources = has_resources && wants("resourcesListChanged");
    json::object agreed;
    if (subscription.tools) agreed.emplace("toolsListChanged", true);
    if (subscription.prompts) agreed.emplace("promptsListChanged", true);
    if (subscription.resources) agreed.emplace("resourcesListChanged", true);
    const auto* uris = filter->if_contains("resourceSubscriptions");
    if (has_resources && uris != nullptr && uris->is_array()) {
        json::array taken;
        for (const auto& uri : uris->get_array()) {
            if (!uri.is_string() || uri.get_string().size() > 8192) continue;
            if (subscription.uris.size() >= max_subscriptions) break;
            if (subscription.uris.emplace(uri.get_string()).second) taken.push_back(uri);
        }
        agreed.emplace("resourceSubscriptions", std::move(taken));
    }
    json::object said{{"notifications", std::move(agreed)}};
    outlet->notify(tagged("notifications/subscriptions/acknowledged", std::move(said), id));
    subscriptions.push_back(std::move(subscription));
}

// ---- what handlers answer ----

inline std::shared_ptr<McpEngine::Tool> McpEngine::find_tool(std::string_view name) const {
    const auto found = find_entry(tools, name);
    return found == tools.end() ? nullptr : *found;
}

inline McpCallPtr McpEngine::start(const SessionPtr& session, const OutletPtr& outlet,
                                   json::value id, std::string_view method, json::object params,
                                   bool modern) {
    if (calls >= options.max_calls)
        throw McpError(rpc_internal_error, "too many requests at once; try again later");
    std::string fingerprint(method);
    for (const std::string_view key : {"name", "uri", "arguments"})
        if (const auto* value = params.if_contains(key))
            fingerprint += '\n' + json::serialize(*value);
    if (modern && params.contains("requestState"))
        return resume(session, outlet, std::move(id), params, fingerprint);
    auto call = std::make_shared<McpCall>(shared_from_this(), session, executor);
    call->modern = modern;
    call->method = method;
    call->fingerprint = std::move(fingerprint);
    if (modern) {
        if (const auto* responses = params.if_contains("inputResponses")) {
            if (!responses->is_object())
                throw McpError(rpc_invalid_params, "inputResponses must be an object");
            call->given = responses->get_object();
        }
    }
    adopt(call, outlet, std::move(id), params);
    if (session->calls.contains(call->key))
        throw McpError(rpc_invalid_request, "a request with this id is being answered");
    auto work = work_for(call, std::string(method), std::move(params));
    session->calls[call->key] = call;
    ++session->busy;
    ++calls;
    asio::co_spawn(
        executor, run(call, std::move(work)),
        asio::bind_cancellation_slot(call->signal.slot(), [call](std::exception_ptr) {}));
    return call;
}

// From now on the call answers this request.
inline void McpEngine::adopt(const McpCallPtr& call, const OutletPtr& outlet, json::value id,
                             const json::object& params) {
    // Modern requests over HTTP share a session: there ids are the connection's own affair.
    call->key = call->session->modern ? std::to_string(++last_serial) : json::serialize(id);
    call->id = std::move(id);
    call->outlet = outlet;
    const auto* meta = object_of(params, "_meta");
    call->meta = meta != nullptr ? *meta : json::object();
    if (!call->modern) {
        call->log_severity = call->session->log_severity;
        return;
    }
    call->log_severity = log_severity(string_of(call->meta, meta_log_level));
    const auto* info = object_of(call->meta, meta_client_info);
    const auto* able = object_of(call->meta, meta_capabilities);
    call->client_info = info != nullptr ? *info : json::object();
    call->client_capabilities = able != nullptr ? *able : json::object();
}

inline awaitable<json::object> McpEngine::work_for(McpCallPtr call, std::string method,
                                                   json::object params) {
    const std::string name(string_of(params, "name"));
    json::object arguments;
    if (auto* given = params.if_contains("arguments"); given != nullptr && !given->is_null()) {
        if (!given->is_object()) throw McpError(rpc_invalid_params, "arguments must be an object");
        arguments = std::move(given->get_object());
    }
    if (method == "tools/call") {
        auto tool = find_tool(name);
        if (!tool && options.lenient_calls && !call->modern) return unknown_tool(name);
        if (!tool)
            throw McpError(rpc_invalid_params, "unknown tool \"" + excerpt(name, 200) + "\"");
        return call_tool(std::move(call), std::move(tool), std::move(arguments));
    }
    if (method == "prompts/get") {
        const auto found = find_entry(prompts, name);
        if (found == prompts.end())
            throw McpError(rpc_invalid_params, "unknown prompt \"" + excerpt(name, 200) + "\"");
        for (const auto& argument : (*found)->item.arguments)
            if (argument.required && !arguments.contains(argument.name))
                throw McpError(rpc_invalid_params, "argument \"" + argument.name + "\" is missing");
        for (const auto& argument : arguments)
            if (!argument.value().is_string())
                throw McpError(rpc_invalid_params, "the arguments of a prompt are strings");
        return get(std::move(call), *found, std::move(arguments));
    }
    if (method == "resources/read") {
        std::string uri(string_of(params, "uri"));
        if (const auto found = find_entry(resources, uri); found != resources.end())
            return read(std::move(call), *found, std::move(uri), {});
        for (const auto& entry : templates)
            if (auto variables = entry->pattern->match(uri))
                return read(std::move(call), entry, std::move(uri), std::move(*variables));
        json::object data{{"uri", uri}};
        throw McpError(call->modern ? rpc_invalid_params : rpc_resource_not_found,
                       "resource not found: " + excerpt(uri, 500), std::move(data));
    }
    const auto* ref = object_of(params, "ref");
    const auto* argument = object_of(params, "argument");
    if (ref == nullptr || argument == nullptr)
        throw McpError(rpc_invalid_params, "completion/complete needs ref and argument");
    std::shared_ptr<void> owner;
    const McpCompleter* completer = nullptr;
    const auto type = string_of(*ref, "type");
    if (type == "ref/prompt") {
        const auto found = find_entry(prompts, string_of(*ref, "name"));
        if (found == prompts.end()) throw McpError(rpc_invalid_params, "unknown prompt");
        owner = *found;
        completer = &(*found)->item.complete;
    } else if (type == "ref/resource") {
        const auto uri = string_of(*ref, "uri");
        auto found = find_entry(templates, uri);
        if (found == templates.end()) {
            found = find_entry(resources, uri);
            if (found == resources.end())
                throw McpError(rpc_invalid_params, "unknown resource template");
        }
        owner = *found;
        completer = &(*found)->item.complete;
    } else {
        throw McpError(rpc_invalid_params, "ref is neither ref/prompt nor ref/resource");
    }
    json::object others;
    if (const auto* context = object_of(params, "context"))
        if (const auto* settled = object_of(*context, "arguments")) others = *settled;
    return complete(std::move(call), std::move(owner), completer,
                    std::string(string_of(*argument, "name")),
                    std::string(string_of(*argument, "value")), std::move(others));
}

inline awaitable<void> McpEngine::run(McpCallPtr call, awaitable<json::object> work) {
    std::optional<McpError> failure;
    json::object result;
    try {
        result = co_await std::move(work);
    } catch (const McpError& error) {
        failure = error;
    } catch (const Error& error) {
        const bool callers = error.code() == errc::bad_argument;
        failure.emplace(callers ? rpc_invalid_params : rpc_internal_error, error.detail());
    } catch (const std::exception& error) {
        failure.emplace(rpc_internal_error, error.what());
    }
    call->engine->finish(call, std::move(result), failure ? &*failure : nullptr);
}

inline void McpEngine::finish(const McpCallPtr& call, json::object result, const McpError* error) {
    call->finished = true;
    --calls;
    --call->session->busy;
    call->session->last_used = Clock::now();
    call->session->calls.erase(call->key);
    if (call->cancelled) {
        if (call->outlet) call->outlet->abandon();
        call->outlet.reset();
        return;
    }
    if (call->outlet) {
        reply(*call, std::move(result), error);
    } else if (!call->request_state.empty()) {
        call->late_result = std::move(result);
        if (error != nullptr) call->late_failure = *error;
        call->expiry.emplace(executor, deadline_after(options.input_timeout));
        call->expiry->async_wait(
            [weak = std::weak_ptr<McpCall>(call)](boost::system::error_code ended) {
                if (const auto late = weak.lock(); late && !ended) unpark(late);
            });
    }
}

inline void McpEngine::reply(McpCall& call, json::object result, const McpError* error) {
    const auto outlet = std::move(call.outlet);
    call.outlet.reset();
    if (error != nullptr) {
        respond_error(outlet, std::move(call.id), *error, call.modern);
    } else {
        if (call.modern) result.emplace("resultType", "complete");
        outlet->respond(rpc_result(std::move(call.id), std::move(result)), 200);
    }
}

inline void McpEngine::cancel(const McpCallPtr& call) {
    if (call->finished || std::exchange(call->cancelled, true)) return;
    unpark(call);
    call->signal.emit(asio::cancellation_type::terminal);
    call->answered.notify();
}

// What a string stands for where a value of `type` is wanted; nothing when it stands for none.
inline std::optional<json::value> value_in_string(std::string_view text, std::string_view type) {
    const auto from = text.find_first_not_of(" \t\r\n");
    if (from == text.npos) return {};
    text = text.substr(from, text.find_last_not_of(" \t\r\n") - from + 1);
    if (type == "number" || type == "integer") {
        if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
        const char* end = text.data() + text.size();
        std::int64_t whole = 0;
        if (const auto read = std::from_chars(text.data(), end, whole);
            read.ec == std::errc() && read.ptr == end)
            return whole;
        double number = 0;
        const auto read = std::from_chars(text.data(), end, number);
        if (read.ec != std::errc() || read.ptr != end || !std::isfinite(number)) return {};
        return number;
    }
    boost::system::error_code error;
    json::value value = json::parse(text, error);
    if (error) return {};
    const bool fits = (type == "object" && value.is_object()) ||
                      (type == "array" && value.is_array()) ||
                      (type == "boolean" && value.is_bool());
    return fits ? std::optional(std::move(value)) : std::nullopt;
}

// Puts in the place of arguments that are strings what they stand for, where the schema wants one
// other type.
inline void parse_arguments(json::object& arguments, const json::value& schema) {
    const auto* properties =
        schema.is_object() ? object_of(schema.get_object(), "properties") : nullptr;
    if (properties == nullptr) return;
    for (auto&& argument : arguments) {
        const auto* wanted = object_of(*properties, argument.key());
        if (wanted == nullptr || !argument.value().is_string()) continue;
        if (auto value = value_in_string(argument.value().get_string(), string_of(*wanted, "type")))
            argument.value() = std::move(*value);
    }
}

inline awaitable<json::object> McpEngine::unknown_tool(std::string name) {
    json::object answer;
    answer.emplace("content", json::array{McpContent::text("Unknown tool: " + excerpt(name, 200))});
    answer.emplace("isError", true);
    co_return answer;
}

inline awaitable<json::object> McpEngine::call_tool(McpCallPtr call, std::shared_ptr<Tool> tool,
                                                    json::object arguments) {
    const std::string revision =
        call->modern ? std::string(mcp_modern_version) : call->session->protocol_version;
    McpToolResult result;
    std::optional<std::string> failure;
    SchemaValidator fits_input(*tool->input);
    const bool lenient = call->engine->options.lenient_calls;
    if (lenient) parse_arguments(arguments, tool->input_schema);
    json::value checked(std::move(arguments));
    if (const auto problem = fits_input.problem(tool->input->root(), checked)) {
        failure = "the arguments of " + tool->item.name + " do not fit its schema: " + *problem;
        if (revision < "2025-11-25" && !lenient) throw McpError(rpc_invalid_params, *failure);
        if (lenient) failure = "Error executing tool " + tool->item.name + ": " + *failure;
    } else {
        try {
            auto work = tool->item.call(McpContext(call), std::move(checked.get_object()));
            result = co_await std::move(work);
        } catch (const McpError&) {
            throw;
        } catch (const Error& error) {
            failure = error.detail();
        } catch (const std::exception& error) {
            failure = error.what();
        }
    }
    if (!failure && !result.is_error && tool->output) {
        SchemaValidator fits_output(*tool->output);
        if (!result.structured) {
            failure = "the tool did not return the structured content that it promises";
        } else if (const auto problem =
                       fits_output.problem(tool->output->root(), *result.structured)) {
            failure = "the tool's structured content does not fit its output schema: " + *problem;
        }
    }
    if (!failure && result.content.empty() && result.structured)
        result.content.push_back(McpContent::text(json::serialize(*result.structured)));
    json::object answer;
    if (!failure) {
        if (!call->modern) simplify_content(result.content, revision);
        const bool carried = call->modern || (revision >= "2025-06-18" && result.structured &&
                                              result.structured->is_object());
        answer.emplace("content", std::move(result.content));
        if (result.structured && carried)
            answer.emplace("structuredContent", std::move(*result.structured));
        if (!result.meta.empty()) answer.emplace("_meta", std::move(result.meta));
        if (result.is_error) answer.emplace("isError", true);
        const std::size_t size = text_size(answer);
        if (size > call->engine->options.max_result)
            failure = "the result takes " + std::to_string(size) + " bytes, more than the " +
                      std::to_string(call->engine->options.max_result) + " allowed; ask for less";
    }
    if (failure) {
        answer.clear();
        answer.emplace("content", json::array{McpContent::text(*failure)});
        answer.emplace("isError", true);
    }
    co_return answer;
}

inline void check_size(const McpEngine& engine, const json::object& answer) {
    if (text_size(answer) > engine.options.max_result)
        throw McpError(
            rpc_internal_error,
            "the result is larger than " + std::to_string(engine.options.max_result) + " bytes");
}

inline awaitable<json::object> McpEngine::read(McpCallPtr call, std::shared_ptr<Resource> resource,
                                               std::string uri, json::object variables) {
    auto work = resource->item.read(McpContext(call), std::move(uri), std::move(variables));
    auto contents = co_await std::move(work);
    json::object answer;
    answer.emplace("contents", std::move(contents));
    check_size(*call->engine, answer);
    if (call->modern) call->engine->cacheable(answer);
    co_return answer;
}

inline awaitable<json::object> McpEngine::get(McpCallPtr call, std::shared_ptr<Prompt> prompt,
                                              json::object arguments) {
    auto work = prompt->item.get(McpContext(call), std::move(arguments));
    auto messages = co_await std::move(work);
    json::object answer;
    if (!prompt->item.description.empty()) answer.emplace("description", prompt->item.description);
    answer.emplace("messages", std::move(messages));
    check_size(*call->engine, answer);
    co_return answer;
}

inline awaitable<json::object> McpEngine::complete(McpCallPtr call, std::shared_ptr<void> owner,
                                                   const McpCompleter* completer,
                                                   std::string argument, std::string typed,
                                                   json::object others) {
    McpCompletion found;
    if (*completer) {
        auto work = (*completer)(McpContext(call), std::move(argument), std::move(typed),
                                 std::move(others));
        found = co_await std::move(work);
    }
    owner.reset();
    json::array values;
    for (std::size_t i = 0; i < found.values.size() && i < 100; ++i)
        values.emplace_back(found.values[i]);
    json::object completion;
    completion.emplace(
        "hasMore", found.values.size() > values.size() || found.total.value_or(0) > values.size());
    completion.emplace("values", std::move(values));
    completion.emplace("total", found.total.value_or(found.values.size()));
    json::object answer;
    answer.emplace("completion", std::move(completion));
    co_return answer;
}

// ---- questions to the client ----

inline const json::object& McpEngine::capabilities_of(const McpCall& call) {
    return call.modern ? call.client_capabilities : call.session->client_capabilities;
}

inline bool McpEngine::supports(const McpCall& call, std::string_view capability) {
    const auto dot = capability.find('.');
    const auto* whole = object_of(capabilities_of(call), capability.substr(0, dot));
    if (whole == nullptr || dot == capability.npos) return whole != nullptr;
    const auto part = capability.substr(dot + 1);
    // An elicitation capability without parts means forms.
    return whole->contains(part) || (capability == "elicitation.form" && !whole->contains("url"));
}

inline void McpEngine::need(const McpCall& call, std::string_view capability) {
    if (supports(call, capability)) return;
    const auto dot = capability.find('.');
    json::object parts, required, data;
    if (dot != capability.npos) parts.emplace(capability.substr(dot + 1), json::object());
    required.emplace(capability.substr(0, dot), std::move(parts));
    data.emplace("requiredCapabilities", std::move(required));
    const std::string text =
        "this needs the client's capability \"" + std::string(capability) + "\"";
    // Legacy clients have no such error: a tool's result says it.
    if (!call.modern) throw Error(errc::mcp_error, text + ", which it did not declare");
    throw McpError(rpc_missing_capability, text, std::move(data));
}

inline void McpEngine::check_question(const McpCall& call, const json::value& question) {
    const auto* object = question.if_object();
    const auto method = object != nullptr ? string_of(*object, "method") : std::string_view();
    const auto* params = object != nullptr ? object_of(*object, "params") : nullptr;
    if (method == "elicitation/create") {
        const bool url = params != nullptr && string_of(*params, "mode") == "url";
        need(call, url ? "elicitation.url" : "elicitation.form");
    } else if (method == "sampling/createMessage") {
        need(call, "sampling");
    } else if (method == "roots/list") {
        need(call, "roots");
    } else {
        throw Error(errc::bad_argument, "a client cannot be asked \"" + std::string(method) + "\"");
    }
}

// Whether an answer is one to the question.
inline bool McpEngine::fits(const json::object& question, const json::value* answer) {
    const auto* object = answer != nullptr ? answer->if_object() : nullptr;
    if (object == nullptr) return false;
    const auto method = string_of(question, "method");
    if (method == "roots/list") {
        const auto* roots = object->if_contains("roots");
        return roots != nullptr && roots->is_array();
    }
    if (method == "sampling/createMessage") return object->contains("content");
    const auto action = string_of(*object, "action");
    if (action == "decline" || action == "cancel") return true;
    if (action != "accept") return false;
    const auto* params = object_of(question, "params");
    const auto* schema = params != nullptr ? params->if_contains("requestedSchema") : nullptr;
    if (schema == nullptr) return true;
    const auto* content = object->if_contains("content");
    return content != nullptr && content->is_object() && !validate(*schema, *content);
}

inline awaitable<json::object> McpEngine::ask(McpCallPtr call, json::object questions) {
    if (call->cancelled) throw Error(errc::cancelled, "the request was cancelled");
    if (questions.empty()) throw Error(errc::bad_argument, "there is nothing to ask");
    if (call->modern && call->method == "completion/complete")
        throw Error(errc::bad_argument, "completions cannot ask the client");
    for (const auto& question : questions) {
        check_question(*call, question.value());
        if (call->asked.contains(question.key()))
            throw Error(errc::busy,
                        "\"" + std::string(question.key()) + "\" is being asked already");
    }
    if (call->asked.empty()) call->repeated = 0;
    struct Done {
        McpCallPtr call;
        const json::object& questions;
        std::vector<std::int64_t> ids;
        ~Done() {
            for (const auto id : ids) call->session->questions.erase(id);
            for (const auto& question : questions) {
                call->asked.erase(question.key());
                call->refusals.erase(std::string(question.key()));
            }
        }
    };
    Done done{call, questions, {}};
    for (const auto& question : questions) call->asked.emplace(question.key(), question.value());
    const auto missing = [&call, &questions] {
        for (const auto& question : questions)
            if (!call->given.contains(question.key())) return true;
        return false;
    };
    if (call->modern) {
        for (const auto& question : questions) {
            const auto found = call->given.find(question.key());
            if (found != call->given.end() && !fits(question.value().get_object(), &found->value()))
                call->given.erase(found);
        }
        // A client that is away already learns of it when it comes back.
        if (missing() && call->outlet) park(call);
    } else {
        for (const auto& question : questions) {
            call->given.erase(question.key());
            const auto id = ++call->session->last_question;
            call->session->questions[id] = {call, question.key()};
            done.ids.push_back(id);
            const auto& object = question.value().get_object();
            const auto* params = object_of(object, "params");
            call->outlet->ask(rpc_request(id, string_of(object, "method"),
                                          params != nullptr ? *params : json::object()));
        }
    }
    const auto deadline = deadline_after(call->engine->options.input_timeout);
    while (missing()) {
        for (const auto& question : questions) {
            const auto refused = call->refusals.find(std::string_view(question.key()));
            if (refused != call->refusals.end()) throw Error(refused->second);
        }
        if (Clock::now() >= deadline)
            throw Error(errc::timed_out, "the client did not answer in time");
        co_await call->answered.wait(deadline);
        if (call->cancelled) throw Error(errc::cancelled, "the request was cancelled");
    }
    json::object answers;
    for (const auto& question : questions) {
        auto& answer = call->given[question.key()];
        if (!fits(question.value().get_object(), &answer))
            throw Error(errc::mcp_protocol, "the client's answer to \"" +
                                                std::string(question.key()) +
                                                "\" does not fit the question");
        answers.emplace(question.key(), std::move(answer));
        call->given.erase(question.key());
    }
    co_return answers;
}

// Answers the request that the call serves with what is still asked; the handler waits on.
inline void McpEngine::park(const McpCallPtr& call) {
    auto& engine = *call->engine;
    if (engine.parked.size() >= max_parked)
        throw Error(errc::busy, "too many requests wait for their clients");
    json::object wanted, result;
    for (const auto& question : call->asked)
        if (!call->given.contains(question.key())) wanted.emplace(question.key(), question.value());
    call->request_state = random_hex();
    engine.parked[call->request_state] = call;
    result.emplace("resultType", "input_required");
    result.emplace("inputRequests", std::move(wanted));
    result.emplace("requestState", call->request_state);
    call->session->calls.erase(call->key);
    call->key = "parked " + call->request_state;
    call->session->calls[call->key] = call;
    const auto outlet = std::move(call->outlet);
    call->outlet.reset();
    outlet->respond(rpc_result(call->id, std::move(result)), 200);
}

inline void McpEngine::unpark(const McpCallPtr& call) {
    if (call->request_state.empty()) return;
    const auto held = call;  // the map may be the last to hold it
    held->engine->parked.erase(held->request_state);
    held->request_state.clear();
    held->expiry.reset();
}

inline McpCallPtr McpEngine::resume(const SessionPtr& session, const OutletPtr& outlet,
                                    json::value id, const json::object& params,
                                    const std::string& fingerprint) {
    const auto found = parked.find(std::string(string_of(params, "requestState")));
    // One text for all: what is wrong with a forged state is nobody's business.
    if (found == parked.end() || found->second->session != session ||
        found->second->fingerprint != fingerprint)
        throw McpError(rpc_invalid_params,
                       "requestState is unknown, expired, used or of another request");
    const auto* responses = params.if_contains("inputResponses");
    if (responses != nullptr && !responses->is_object())
        throw McpError(rpc_invalid_params, "inputResponses must be an object");
    const auto call = found->second;
    unpark(call);
    session->calls.erase(call->key);
    adopt(call, outlet, std::move(id), params);
    if (call->finished) {
        reply(*call, std::move(call->late_result),
              call->late_failure ? &*call->late_failure : nullptr);
        return nullptr;
    }
    session->calls[call->key] = call;
    bool missing = false, useful = false;
    for (const auto& question : call->asked) {
        const auto* given =
            responses != nullptr ? responses->get_object().if_contains(question.key()) : nullptr;
        if (!call->given.contains(question.key()) && fits(question.value().get_object(), given)) {
            call->given[question.key()] = *given;
            useful = true;
        }
        missing |= !call->given.contains(question.key());
    }
    call->repeated = useful ? 0 : call->repeated + 1;
    if (missing && call->repeated >= max_repeated) {
        const Error refusal(errc::mcp_protocol, "the client's answers do not fit the questions");
        for (const auto& question : call->asked)
            call->refusals.insert_or_assign(std::string(question.key()), refusal);
    } else if (missing) {
        park(call);
    }
    call->answered.notify();
    return call;
}

inline awaitable<json::object> McpEngine::ask_one(McpCallPtr call, std::string method,
                                                  json::object params, std::string key) {
    if (key.empty()) key = "input_" + std::to_string(++call->keys);
    json::object question, questions;
    question.emplace("method", method);
    question.emplace("params", std::move(params));
    questions.emplace(key, std::move(question));
    return [](McpCallPtr asking, json::object all) -> awaitable<json::object> {
        auto answers = co_await ask(std::move(asking), std::move(all));
        auto& answer = answers.begin()->value();
        co_return std::move(answer.get_object());
    }(std::move(call), std::move(questions));
}

inline awaitable<json::array> McpEngine::ask_roots(McpCallPtr call, std::string key) {
    json::object nothing;
    auto answer =
        co_await ask_one(std::move(call), "roots/list", std::move(nothing), std::move(key));
    co_return std::move(answer["roots"].get_array());
}

}  // namespace detail

// ---- what handlers use ----

inline McpSession& McpContext::session() const { return *call_->session; }
inline const json::object& McpContext::client_info() const {
    return call_->modern ? call_->client_info : call_->session->client_info;
}
inline const json::object& McpContext::client_capabilities() const {
    return detail::McpEngine::capabilities_of(*call_);
}
inline const json::object& McpContext::meta() const { return call_->meta; }
inline bool McpContext::supports(std::string_view capability) const {
    return detail::McpEngine::supports(*call_, capability);
}
inline void McpContext::require(std::string_view capability) const {
    detail::McpEngine::need(*call_, capability);
}

inline void McpContext::progress(double done, std::optional<double> total,
                                 std::string_view message) const {
    const auto* token = call_->meta.if_contains("progressToken");
    if (token == nullptr || !call_->outlet || call_->cancelled) return;
    const auto number = [](double value) {
        const auto whole = static_cast<std::int64_t>(value);
        return static_cast<double>(whole) == value ? json::value(whole) : json::value(value);
    };
    json::object params;
    params.emplace("progressToken", *token);
    params.emplace("progress", number(done));
    if (total) params.emplace("total", number(*total));
    if (!message.empty()) params.emplace("message", message);
    call_->outlet->notify(detail::rpc_notification("notifications/progress", std::move(params)));
}

inline void McpContext::log(std::string_view level, std::string_view text,
                            std::string_view logger) const {
    log_value(level, json::value(text), logger);
}
inline void McpContext::log(std::string_view level, json::object data,
                            std::string_view logger) const {
    log_value(level, json::value(std::move(data)), logger);
}
inline void McpContext::log_value(std::string_view level, json::value data,
                                  std::string_view logger) const {
    const auto severity = detail::log_severity(level);
    if (!severity)
        throw Error(errc::bad_argument, "there is no log level \"" + std::string(level) + "\"");
    if (!call_->outlet || call_->cancelled || !call_->log_severity ||
        *severity < *call_->log_severity)
        return;
    json::object params;
    params.emplace("level", level);
    if (!logger.empty()) params.emplace("logger", logger);
    params.emplace("data", std::move(data));
    call_->outlet->notify(detail::rpc_notification("notifications/message", std::move(params)));
}

inline awaitable<json::object> McpContext::elicit(std::string message, json::object schema,
                                                  std::string key) const {
    json::object params;
    if (call_->modern) params.emplace("mode", "form");
    params.emplace("message", message);
    params.emplace("requestedSchema", std::move(schema));
    return detail::McpEngine::ask_one(call_, "elicitation/create", std::move(params),
                                      std::move(key));
}
inline awaitable<json::object> McpContext::elicit_url(std::string message, std::string url,
                                                      std::string key) const {
    json::object params{{"mode", "url"}, {"message", message}, {"url", url}};
    if (!call_->modern) params.emplace("elicitationId", detail::McpEngine::random_hex());
    return detail::McpEngine::ask_one(call_, "elicitation/create", std::move(params),
                                      std::move(key));
}
inline awaitable<json::object> McpContext::sample(json::object params, std::string key) const {
    return detail::McpEngine::ask_one(call_, "sampling/createMessage", std::move(params),
                                      std::move(key));
}
inline awaitable<json::array> McpContext::roots(std::string key) const {
    return detail::McpEngine::ask_roots(call_, std::move(key));
}
inline awaitable<json::object> McpContext::ask(json::object questions) const {
    return detail::McpEngine::ask(call_, std::move(questions));
}
inline void McpContext::close_stream() const {
    if (call_->outlet) call_->outlet->close_stream();
}

// ---- standard input and output ----

namespace detail {

// One queue for everything that goes to the client.
class StdioOutlet final : public McpOutlet {
public:
    StdioOutlet(const asio::any_io_executor& executor, std::size_t limit)
        : changed(executor), limit_(limit) {}
    bool notify(json::object message) override {
        if (bytes_ > limit_) return false;
        put(json::serialize(message));
        return true;
    }
    void ask(json::object message) override { put(json::serialize(message)); }
    void respond(json::object message, unsigned) override { put(json::serialize(message)); }
    void respond(const json::array& batch) { put(json::serialize(batch)); }
    void abandon() override { changed.notify(); }

    bool crowded() const noexcept { return bytes_ > limit_; }
    // Everything that waits, as one piece.
    std::string take() {
        bytes_ = 0;
        return std::exchange(lines_, {});
    }
    bool empty() const noexcept { return lines_.empty(); }

    Event changed;
    bool broken = false;  // nothing can be written any more
    bool writing = false;

private:
    void put(std::string_view line) {
        if (broken) return;
        lines_ += line;
        lines_ += '\n';
        bytes_ = lines_.size();
        changed.notify();
    }
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
    void respond(json::object message, unsigned) override {
        answers_.emplace_back(std::move(message));
        abandon();
    }
    void abandon() override {
        if (--expected_ == 0 && !answers_.empty()) line_->respond(answers_);
    }

private:
    std::shared_ptr<StdioOutlet> line_;
    std::size_t expected_;
    json::array answers_;
};

inline awaitable<void> write_lines(std::shared_ptr<StdioOutlet> outlet,
                                   std::shared_ptr<asio::posix::stream_descriptor> output) {
    while (!outlet->broken) {
        if (outlet->empty()) {
            co_await outlet->changed.wait();
            continue;
        }
        outlet->writing = true;
        const std::string lines = outlet->take();
        auto [error, size] = co_await asio::async_write(*output, asio::buffer(lines), as_result);
        outlet->writing = false;
        if (error) outlet->broken = true;
        outlet->changed.notify();
    }
}

inline awaitable<void> read_lines(std::shared_ptr<McpEngine> engine, SessionPtr session,
                                  std::shared_ptr<StdioOutlet> outlet,
                                  std::shared_ptr<asio::posix::stream_descriptor> input) {
    const auto noise = [outlet](std::string_view line) {
        // Noise that means to be a message deserves an answer.
        const auto first = line.find_first_not_of(" \t\r");
        if (first != line.npos && (line[first] == '{' || line[first] == '['))
            outlet->respond(rpc_error(json::value(), rpc_parse_error, "this line is no JSON"), 400);
    };
    const auto batch = [engine, session, outlet](json::array messages) {
        if (const auto why = engine->batch_problem(*session, messages); !why.empty())
            return outlet->respond(rpc_error(json::value(), rpc_invalid_request, why), 400);
        auto answers = std::make_shared<BatchOutlet>(outlet, McpEngine::answers_to(messages));
        engine->accept_batch(session, answers, std::move(messages));
    };
    MessageSplitter splitter(engine->options.max_message, noise, batch);
    while (!engine->stopping && !outlet->broken) {
        // A client that sends and does not read is not read from either.
        if (outlet->crowded()) {
            co_await outlet->changed.wait();
            continue;
        }
        const auto room = splitter.prepare();
        auto [error, size] =
            co_await input->async_read_some(asio::buffer(room.data, room.size), as_result);
        if (error) co_return;
        splitter.commit(size);
        for (;;) {
            auto message = splitter.next();
            if (!message) {
                outlet->respond(
                    rpc_error(json::value(), rpc_invalid_request,
                              "a message is longer than " +
                                  std::to_string(engine->options.max_message) + " bytes"),
                    400);
                co_return;
            }
            if (!*message) break;
            engine->accept(session, outlet, std::move(**message));
        }
    }
}

inline awaitable<void> until_stopped(std::shared_ptr<McpEngine> engine,
                                     std::shared_ptr<StdioOutlet> outlet) {
    while (!engine->stopping && !outlet->broken) co_await outlet->changed.wait();
}

inline awaitable<void> serve_lines(std::shared_ptr<McpEngine> engine, int in, int out) {
    struct sigaction action {};
    ::sigaction(SIGPIPE, nullptr, &action);
    if (action.sa_handler == SIG_DFL) ::signal(SIGPIPE, SIG_IGN);
    const int in_copy = ::dup(in), out_copy = ::dup(out);
    if (in_copy < 0 || out_copy < 0) {
        if (in_copy >= 0) ::close(in_copy);
        if (out_copy >= 0) ::close(out_copy);
        throw Error(errc::io_error, "standard input or output is not open");
    }
    auto input = std::make_shared<asio::posix::stream_descriptor>(engine->executor, in_copy);
    auto output = std::make_shared<asio::posix::stream_descriptor>(engine->executor, out_copy);
    auto outlet = std::make_shared<StdioOutlet>(engine->executor, engine->options.max_queue);
    auto session = engine->open_session("stdio", {}, false);
    session->outlet = outlet;
    asio::co_spawn(engine->executor, write_lines(outlet, output), asio::detached);
    auto reading = read_lines(engine, session, outlet, input);
    auto stopping = until_stopped(engine, outlet);
    co_await ends_first(std::move(reading), std::move(stopping));
    engine->end(session);
    // What is already answered still reaches a client that reads.
    const auto deadline = Clock::now() + std::chrono::seconds(1);
    while (!outlet->broken && (outlet->writing || !outlet->empty()) && Clock::now() < deadline)
        co_await outlet->changed.wait(deadline);
    outlet->broken = true;
    outlet->changed.notify();
    boost::system::error_code ignored;
    output->cancel(ignored);
}

}  // namespace detail

inline awaitable<void> McpServer::serve_stdio(int input, int output) {
    return detail::serve_lines(engine_, input, output);
}

}  // namespace ipybox
