#pragma once
// What an McpServer is inside: sessions, and the messages of both eras of the protocol, whichever
// way they come.

#include <algorithm>
#include <boost/asio/cancellation_signal.hpp>
#include <charconv>
#include <cstdint>
#include <ipybox/async.hpp>
#include <ipybox/detail/hex.hpp>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/detail/json_schema.hpp>
#include <ipybox/error.hpp>
#include <ipybox/log.hpp>
#include <ipybox/mcp/detail/header_parameters.hpp>
#include <ipybox/mcp/detail/wire.hpp>
#include <ipybox/mcp/handler.hpp>
#include <ipybox/mcp/jsonrpc.hpp>
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

namespace ipybox::mcp {

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
    // Bytes of an answer that its reader takes now.
    virtual std::size_t max_answer() const noexcept { return SIZE_MAX; }
};
using McpOutletPtr = std::shared_ptr<McpOutlet>;
using McpCallPtr = std::shared_ptr<McpCall>;

// A call that goes on, and whose result is kept, without a request that waits for it.
struct McpTask {
    std::string id;
    std::weak_ptr<McpCall> call;  // while it runs
    std::chrono::system_clock::time_point created = std::chrono::system_clock::now(),
                                          updated = created;
    std::string message;  // the last report of progress
    // How it ended.
    bool ended = false, cancelled = false, seen = false;
    json::object result;
    std::optional<McpError> failure;
    std::size_t bytes = 0;  // that the result takes
    std::optional<asio::steady_timer> expiry;
};
using McpTaskPtr = std::shared_ptr<McpTask>;

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
    std::map<std::string, McpTaskPtr, std::less<>> tasks;              // by id
    std::size_t task_bytes = 0;
    std::size_t busy = 0;  // calls, streams, and tasks that are kept
    Clock::time_point last_used = Clock::now();
    McpOutletPtr outlet;              // for messages that belong to no request
    std::shared_ptr<void> transport;  // HTTP's own
};
using McpSessionPtr = std::shared_ptr<McpSessionState>;

// A request that a handler answers. In the modern era it may come to an end and go on under
// another id, when the client returns with what was asked for.
struct McpCall {
    McpCall(std::shared_ptr<McpEngine> e, McpSessionPtr s, const asio::any_io_executor& executor)
        : engine(std::move(e)), session(std::move(s)), answered(executor) {}

    std::shared_ptr<McpEngine> engine;
    McpSessionPtr session;
    bool modern = false, cancelled = false, finished = false;
    std::string method, fingerprint;  // what it asks for: a retry must ask for the same
    asio::cancellation_signal signal;
    // Of the request that waits for the answer.
    json::value id;
    json::object meta, client_info, client_capabilities;
    std::optional<int> log_severity;
    McpOutletPtr outlet;  // null while the client is gone for an answer
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
    // As a task: what its questions are called, each by a name of its own.
    McpTaskUse task_use = McpTaskUse::none;
    bool wants_task = false;
    McpTaskPtr task;
    std::optional<asio::steady_timer> task_timer;
    std::map<std::string, std::string, std::less<>> told;
    std::set<std::string, std::less<>> names_told;
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
        std::vector<detail::HeaderParameter> header_parameters;
        json::value input_schema, output_schema;
        std::unique_ptr<detail::SchemaDocument> input, output;
        std::optional<detail::UriTemplate> pattern;
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
    bool has_tasks = false;
    std::uint64_t last_serial = 0;
    std::map<std::string, McpSessionPtr, std::less<>> sessions;
    std::unordered_map<std::string, McpCallPtr> parked;  // by requestState
    std::list<McpSubscription> subscriptions;
    std::size_t calls = 0, tasks = 0, task_bytes = 0;
    bool stopping = false;
    bool tell_tools = false, tell_prompts = false, tell_resources = false;

    static constexpr std::size_t max_subscriptions = 10'000;
    static constexpr std::size_t max_parked = 10'000;
    static constexpr std::size_t max_repeated = 5;

    // ---- sessions ----
    McpSessionPtr open_session(std::string id, std::string principal, bool modern);
    void begin(const McpSessionPtr& session);
    void end(McpSessionPtr session);
    void stop();

    // ---- messages ----
    // Takes what a client sent; `outlet` gets everything that it leads to. Returns the call that
    // a handler answers, if it is one.
    McpCallPtr accept(const McpSessionPtr& session, const McpOutletPtr& outlet,
                      json::object message);
    // Why a batch is refused; empty if it is not (2025-03-26).
    std::string batch_problem(const McpSessionState& session, const json::array& batch) const;
    // How many answers a batch has.
    static std::size_t answers_to(json::array& batch);
    // Takes one that is not refused; `outlet` waits for all its answers.
    void accept_batch(const McpSessionPtr& session, const McpOutletPtr& outlet, json::array batch);
    McpCallPtr request(const McpSessionPtr& session, const McpOutletPtr& outlet, json::value id,
                       std::string_view method, json::object params);
    void notified(const McpSessionPtr& session, std::string_view method,
                  const json::object& params);
    void replied(const McpSessionPtr& session, const RpcMessage& rpc);
    static bool is_modern(const json::object& params);
    static void check_modern(const json::object& meta);
    static void respond_error(const McpOutletPtr& outlet, json::value id, const McpError& error,
                              bool modern);

    // ---- what is answered at once ----
    json::object server_info() const;
    json::object capabilities(bool modern) const;
    json::object initialize(const McpSessionPtr& session, const json::object& params);
    json::object discover() const;
    template <class E>
    json::object list(const Entries<E>& entries, std::string_view member,
                      const json::object& params, bool modern) const;
    void listen(const McpSessionPtr& session, const McpOutletPtr& outlet, json::value id,
                const json::object& params);
    void cacheable(json::object& result) const;

    // ---- what handlers answer ----
    McpCallPtr start(const McpSessionPtr& session, const McpOutletPtr& outlet, json::value id,
                     std::string_view method, json::object params, bool modern);
    awaitable<json::object> work_for(McpCallPtr call, std::string method, json::object params);
    McpCallPtr resume(const McpSessionPtr& session, const McpOutletPtr& outlet, json::value id,
                      const json::object& params, const std::string& fingerprint);
    void adopt(const McpCallPtr& call, const McpOutletPtr& outlet, json::value id,
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

    // ---- calls that became tasks ----
    static bool takes_tasks(const json::object& capabilities);
    static McpError lacks_tasks();
    static bool is_about_task(std::string_view method) noexcept;
    static bool become_task(const McpCallPtr& call);
    static void become_task_in(const McpCallPtr& call, Duration time);
    static void report(McpCall& call, double done, std::optional<double> total,
                       std::string_view message);
    static void settle(const McpCallPtr& call, json::object result, const McpError* error);
    bool make_room(McpSessionState& session, std::size_t bytes);
    void release(McpSessionState& session, McpTask& task);
    void forget(McpSessionState& session, std::string_view id);
    void forget_tasks(McpSessionState& session);
    json::object about_task(McpSessionState& session, std::string_view method,
                            const json::object& params);
    json::object describe(McpTask& task) const;
    static void update(McpCall& call, const json::object& responses);

    // ---- questions to the client ----
    // What a client's answers brought.
    struct Taken {
        bool missing = false, useful = false;  // some question is still open; some was answered
        std::string why;                       // the last answer that fits none does not
    };
    static Taken take_answers(McpCall& call, const json::object* responses);
    static void refuse_questions(McpCall& call, const std::string& why);
    static awaitable<json::object> ask(McpCallPtr call, json::object questions);
    static awaitable<json::object> ask_one(McpCallPtr call, std::string method, json::object params,
                                           std::string key);
    static awaitable<json::array> ask_roots(McpCallPtr call, std::string key);
    static void park(const McpCallPtr& call);
    static void unpark(McpCallPtr call);  // by value: the map may be the last to hold it
    static void need(const McpCall& call, std::string_view capability);
    static bool supports(const McpCall& call, std::string_view capability);
    static void check_question(const McpCall& call, const json::value& question);
    static std::size_t max_result(const McpCall& call) noexcept;
    static std::string misfit(const json::object& question, json::value* answer);
    static const json::object& capabilities_of(const McpCall& call);

    // ---- news ----
    void schedule_news(bool& flag);
    void tell(std::string_view method, bool McpSubscription::* wanted);
    void updated(std::string_view uri);
};

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

json::object tagged(std::string_view method, json::object params, const json::value& id);

// A cursor is the serial number of the last item seen: it stays good when items come and go.
template <class E>
json::object McpEngine::list(const Entries<E>& entries, std::string_view member,
                             const json::object& params, bool modern) const {
    std::uint64_t after = 0;
    if (const auto* cursor = params.if_contains("cursor");
        cursor != nullptr && !cursor->is_null()) {
        const auto text = detail::string_of(params, "cursor");
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

}  // namespace ipybox::mcp

#ifndef IPYBOX_SEPARATE_COMPILATION
#include <ipybox/mcp/impl/engine.ipp>
#endif
