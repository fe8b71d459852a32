#pragma once
// `ipybox host`: what its one client made, and the requests that are being answered.
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/thread_pool.hpp>
#include <deque>
#include <functional>
#include <ipybox/detail/pending_approval.hpp>
#include <ipybox/executor/code_executor.hpp>
#include <ipybox/executor/kernel_client.hpp>
#include <ipybox/executor/kernel_gateway.hpp>
#include <ipybox/tools/tool_runner.hpp>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "outbox.hpp"
#include "protocol.hpp"

namespace ipybox::app::host {

// Of everything that the client can make.
inline constexpr std::size_t max_objects = 512;
inline constexpr std::size_t max_requests = 1024;
// Bytes of what requests that wait have as params, and of uploads that are not complete.
inline constexpr std::size_t max_held = std::size_t{512} << 20;

// A request that was not answered yet.
struct Request {
    json::value id;
    std::string_view method;
    json::object params;
    std::size_t size = 0;  // of params, about
    asio::cancellation_signal signal;
    // What `$/cancel` does instead of ending the coroutine; empty: nothing else.
    std::function<void()> interrupt;
    bool cancelled = false;
    // Bytes of output that may be sent; unlimited without a window. Notified when there are more.
    std::optional<std::int64_t> credit;
    std::unique_ptr<Event> credited;
};
using RequestPtr = std::shared_ptr<Request>;

struct Session {
    std::string handle;
    std::unique_ptr<CodeExecutor> code;
    RequestPtr running;  // the execution
    bool approve_all = false;
    std::map<std::string, std::string> uploads;  // what came of files so far, by path
};
using SessionPtr = std::shared_ptr<Session>;

// A tool server without a kernel, and what it is made of.
struct Tools {
    // What tool calls that are being withdrawn keep alive.
    struct Doors {
        Host host;
        std::unique_ptr<Sandbox> sandbox;
        std::shared_ptr<ApprovalPolicy> policy;
    };
    std::string handle;
    std::shared_ptr<Doors> doors;
    std::unique_ptr<detail::PrivateDirectory> directory;  // of the socket
    std::unique_ptr<ToolServer> server;
    std::map<std::string, std::shared_ptr<ToolRunner>> runners;  // by server
    bool listens = false;
};
using ToolsPtr = std::shared_ptr<Tools>;

struct Kernel {
    std::string handle;
    std::unique_ptr<KernelClient> client;
};
using KernelPtr = std::shared_ptr<Kernel>;

struct Gateway {
    std::string handle;
    std::unique_ptr<KernelGateway> process;
};
using GatewayPtr = std::shared_ptr<Gateway>;

// Takes back what was begun, unless it is done.
struct Undo {
    std::function<void()> how;
    mutable bool done = false;
    ~Undo() {
        if (!done) how();
    }
};

// A call that the client is asked about.
struct Question {
    explicit Question(const asio::any_io_executor& executor) : changed(executor) {}
    static constexpr detail::PendingApproval::Answerer client = 0;
    detail::PendingApproval pending{
        Decision(Verdict::deny, "nobody is there to approve this call")};
    Event changed;
    // What the client is told of its end.
    json::value request;
    std::string outcome, by;  // empty: nobody's answer
};

// Everything of one client. On the thread of its executor.
struct HostState : std::enable_shared_from_this<HostState> {
    HostState(asio::any_io_executor io, PluginRegistry& plugins, Logger log)
        : executor(std::move(io)),
          registry(plugins),
          base_logger(std::move(log)),
          logger(base_logger),
          outbox(std::make_shared<Outbox>(executor)),
          changed(executor) {}

    asio::any_io_executor executor;
    PluginRegistry& registry;
    Logger base_logger;  // standard error
    Logger logger;       // and the client, if it wants
    Protocol protocol;
    std::shared_ptr<Outbox> outbox;
    bool initialized = false, ending = false;
    bool leaving_out = false;       // of what is offered, the newest
    LogLevel told = LogLevel::off;  // from which on the client gets the log

    std::map<std::string, RequestPtr> requests;  // by id, as JSON
    std::size_t held = 0;                        // bytes, see max_held
    std::map<std::string, SessionPtr, std::less<>> sessions;
    std::map<std::string, ToolsPtr, std::less<>> tools;
    std::map<std::string, KernelPtr, std::less<>> kernels;
    std::map<std::string, GatewayPtr, std::less<>> gateways;
    std::map<std::string, std::shared_ptr<Question>, std::less<>> questions;
    std::map<std::string, InputRequest, std::less<>> inputs;
    std::uint64_t made = 0, asked = 0, prompted = 0;  // numbers for handles
    // For files that take long to read.
    std::unique_ptr<asio::thread_pool> reader;  // null until it is needed
    std::size_t reading = 0;                    // requests that wait for it
    Event changed;                              // a request was answered

    // A message of the client.
    void accept(json::object message);
    // A line that is no message.
    void refuse(const mcp::BadLine& line);
    void refuse_batch();
    // Ends all that runs, in `grace` or by force.
    static awaitable<void> finish(std::shared_ptr<HostState> self, Duration grace);

    using Urgency = Outbox::Urgency;
    // A notification that its sender had room for, and one that is left out when nobody reads.
    void notify(std::string_view method, json::object params, Urgency urgency = Urgency::now);
    void offer(std::string_view method, json::object params);

    // The log of a session, or of none.
    Logger logger_for(const std::string& session);
    // Whether a handle such as "s7" was given out once.
    static bool was_given(std::string_view handle, char kind, std::uint64_t given);

    // "s1"; refuses when there are too many things already.
    std::string next_handle(char kind);
    SessionPtr session_of(const Request& request) const;
    ToolsPtr tools_of(const Request& request) const;
    KernelPtr kernel_of(const Request& request) const;
    GatewayPtr gateway_of(const Request& request) const;

    // Counts bytes that are held for the client. False: there would be too many.
    bool hold(std::size_t bytes);
    void release(std::size_t bytes) { held -= bytes; }

private:
    void begin(Incoming found);
    void take_notification(const Incoming& found);
    void cancel(const json::value& id);
    void finish_request(const RequestPtr& request, std::exception_ptr error, json::object result);
};
using HostPtr = std::shared_ptr<HostState>;

// The answer to a request that failed.
json::object failure_of(json::value id, const std::exception_ptr& error);
// What data.code says of an error.
std::string_view kind_of_error(const Error& error);

// How a request is answered: at once, or by a coroutine.
using AtOnce = json::object (*)(HostState& host, Request& request);
using InTime = awaitable<json::object> (*)(HostPtr host, RequestPtr request);
struct Method {
    std::string_view name;
    AtOnce at_once = nullptr;
    InTime in_time = nullptr;
};
using Methods = std::vector<Method>;
Methods session_methods();
Methods tools_methods();
Methods kernel_methods();
Methods question_methods();
Methods file_methods();

// Asks the client about a call of that session or tool server; session, tools: handles, one of them
// empty.
awaitable<Decision> ask_client(std::weak_ptr<HostState> weak, std::string session,
                               std::string tools, ToolCall call);
// Passes the code's question on.
void ask_for_input(const HostPtr& host, const RequestPtr& request, InputRequest input);

// Runs an execution to its end, for `request`.
struct ExecutionWanted {
    std::string code;
    ExecutionOptions how;
    bool streams = false;
};
ExecutionWanted execution_of(const json::object& params);
// Before the execution begins: `$/cancel` waits for it, and so does its output for credit.
void begin_execution(HostState& host, Request& request);
awaitable<json::object> run_to_result(HostPtr host, RequestPtr request,
                                      std::shared_ptr<CodeExecutor::Execution> execution,
                                      bool streams);

}  // namespace ipybox::app::host
