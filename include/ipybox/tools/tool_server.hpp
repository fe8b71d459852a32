#pragma once
// Carries out the tool calls of a kernel: HTTP/1.1 on a Unix socket or over TLS, one server a
// session. The kernel can name a registered server and a tool, pass arguments, and ask which tools
// there are; nothing else. Used alone, it serves the programs of this machine on TCP as well: see
// ToolRunner.

#include <boost/asio/ssl/context.hpp>
#include <filesystem>
#include <ipybox/approval/approval.hpp>
#include <ipybox/approval/audit_log.hpp>
#include <ipybox/config.hpp>
#include <ipybox/detail/json_members.hpp>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/detail/json_schema.hpp>
#include <ipybox/mcp/client.hpp>
#include <ipybox/mcp_transport.hpp>
#include <ipybox/net/http_listener.hpp>
#include <ipybox/registry.hpp>
#include <ipybox/remote_kernel.hpp>
#include <ipybox/span.hpp>
#include <ipybox/tools/detail/server_arguments.hpp>
#include <ipybox/tools/server_start.hpp>
#include <ipybox/tools/tool_catalogue.hpp>
#include <ipybox/tools/tool_info.hpp>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace ipybox {

class McpServer;

// Limits of a tool server, and what one that is used alone asks and demands.
struct ToolServerOptions {
    // Of the constructor without a policy. As in the original: unless it is set, every call is
    // allowed. Then `approvers` are asked, all at once; ApprovalChannel::ask() makes one.
    bool approval_required = false;
    std::vector<Approver> approvers;
    Logger logger;
    // What callers present, and what those present that may also register servers and reset; each
    // of at least 16 characters. Empty: 32 random bytes in hexadecimal.
    std::string token, control_token;
    Duration approval_timeout{};                             // zero: unlimited, as in the original
    Duration connect_timeout = std::chrono::seconds(30);     // to start an MCP server
    Duration call_idle_timeout = std::chrono::seconds(300);  // without progress; zero: unlimited
    Duration call_timeout = std::chrono::hours(1);           // in all; zero: unlimited
    bool background_calls = false;         // allow calls while no execution is active
    std::size_t max_request = 32u << 20;   // bytes of one request body
    std::size_t max_buffered = 64u << 20;  // bytes of all bodies being received or handled
    // Of connections that have presented a token. Beyond it the one that has been idle longest is
    // closed; where a call is in flight on each, newcomers wait.
    std::size_t max_connections = 256;
    // Of connections that have not presented a token yet: how many there may be at once, how long
    // each may take to present one, and how long while others want its place, which is less the
    // longer a rush lasts.
    std::size_t max_strangers = 256;
    Duration stranger_timeout = std::chrono::seconds(10);
    Duration crowded_timeout = std::chrono::milliseconds(500);
    std::string session = "default";
    AuditLogPtr audit;          // records every call; null: none is recorded
    SpanTellerPtr spans;        // told of every call and approval; null: nobody is
    SessionWatcherPtr watcher;  // sees every call; null: nobody does
    // Told how far a call is, by its id; messages are the server's, up to 4096 bytes. What it
    // throws is logged.
    std::function<void(const std::string& call, const CallProgress& report)> on_progress;
    bool shell_commands = false;  // answer what ipybox_kernel asks about shell commands
    bool async_api = false;       // the generated run() are coroutines; descriptions say so
    // ${WORKSPACE} of server parameters, and where confined servers start; empty: the current
    // directory.
    std::filesystem::path workspace;
    // The user that code of the session runs as on this machine: never that of a server that root
    // starts. nullopt: none runs here; its own: nothing confines it. Empty: as nullopt.
    std::function<std::optional<uid_t>()> kernel_user;
    // Called before a server starts on the host: see ServerPlace.
    std::function<awaitable<bool>()> record_places;
    // Makes the sandbox that "sandbox" in a server's parameters asks for; empty: none can be had.
    std::function<std::unique_ptr<Sandbox>(json::object settings)> make_sandbox;
    // The tools of a server are no longer those that were listed before; listed_tools() has them.
    std::function<void(const std::string& server)> on_tools_changed;
    // Called before each connection to a server: fills in what the application answers it and hears
    // of it (on_request with capabilities, roots, on_log with log_level, on_notification). The
    // name, the limits and the logger are the tool server's.
    std::function<void(const std::string& server, McpClientOptions& options)> on_connect;
    // Called when a tool that does not say that it only reads has returned, before the kernel hears
    // of it: makes it see the files that the tool wrote. Must not throw.
    std::function<awaitable<void>()> after_call;
    // Owns what the constructor takes by reference; calls that are being withdrawn hold it too.
    std::shared_ptr<void> owner;
};

// Owned by one session, or used alone. Methods are called on the host's executor. The objects given
// to the constructor must outlive this one and, unless options.owner holds them, the calls that its
// destruction withdraws.
//
// Example: tool_calls/main.cpp [ToolServer]
class ToolServer {
public:
    // For use alone: calls are accepted at any time, and options.approval_required says whether
    // anybody is asked. MCP servers run unconfined. Throws Error: bad_argument (a token of less
    // than 16 characters, or two that are the same), no_such_plugin (the plugin "none" is missing).
    ToolServer(asio::any_io_executor executor, PluginRegistry& registry,
               ToolServerOptions options = {})
        : ToolServer(std::make_shared<Alone>(std::move(executor), registry, options), registry,
                     options) {}

    // policy decides on every call; `servers` is the sandbox in which stdio servers run unless they
    // ask for one of their own (see UnconfinedServer). Throws Error: bad_argument (a token of less
    // than 16 characters, or two that are the same).
    ToolServer(PluginRegistry& registry, Host& host, Sandbox& servers, ApprovalPolicy& policy,
               ToolServerOptions options = {});
    ~ToolServer();
    ToolServer(const ToolServer&) = delete;
    ToolServer& operator=(const ToolServer&) = delete;

    // What the kernel must present: it opens POST /run and nothing else.
    const std::string& token() const noexcept;
    // Presented by programs of the host that may also register servers and reset; never for a
    // kernel.
    const std::string& control_token() const noexcept;

    // Listens at `path`, which must not exist; the socket gets mode 0600 and belongs to `user`.
    // Throws Error: io_error (it cannot listen there).
    void listen(const std::filesystem::path& path, uid_t user);

    // Listens at http://HOST:PORT and returns that; port 0 takes a free one. Here GET /status
    // works too and, with control_token(), PUT /servers and PUT /reset, as ToolRunner sends them.
    // host: an address of this machine's loopback, or "localhost". Throws Error: bad_argument
    // (another host), io_error (it cannot listen there).
    std::string listen_tcp(const std::string& host = "localhost", unsigned short port = 8900);

    // The way to the socket holds no more than so many connections at a time. Calls beyond what
    // fits wait; connections without one leave some places free.
    void fit(std::size_t connections);

    // What a kernel needs to reach a server that listens over TLS.
    struct TlsAddress {
        std::string url;           // https://NAME:PORT
        std::string certificates;  // PEM; the only ones that the kernel is to trust
    };

    // Listens over TLS 1.2 or newer. Throws Error: bad_config (names the field of the kernel option
    // tool_channel), io_error (it cannot listen there).
    TlsAddress listen(const ToolListener& where);

    // Makes a server callable by `name`; it starts on its first use. Replaces, and stops, the
    // server that had the name. Variables in `params` are replaced when connecting. Throws Error:
    // bad_config (parameters of a wrong form).
    void register_server(const std::string& name, const json::object& params) {
        register_in(*state_, name, checked_params(name, params));
    }

    // The same for a server of this process: functions of the application as tools. It may end
    // before; calls of its tools fail then. Throws Error: bad_argument (it has another
    // executor), bad_config (ipybox itself answers under that name).
    void register_server(const std::string& name, McpServer& server);

    // Stops a server and forgets it: calls of it that wait or run fail, and say why. Throws Error:
    // bad_argument (no server has that name).
    awaitable<void> unregister_server(std::string name);

    // The servers that calls reach, by their names.
    std::vector<ServerInfo> servers() const;

    // policy: decides on calls that are made from now on; those that are being judged keep the one
    // they have, and share it. Throws Error: bad_argument (it is null).
    void set_policy(std::shared_ptr<ApprovalPolicy> policy);

    // Where ${NAME} in server parameters is looked up besides the environment; ${WORKSPACE} is
    // defined.
    void set_variables(Variables variables);

    // All tools of a registered server as tools/list gives them; starts it. Throws Error:
    // bad_argument (no server has that name), and what McpClient throws.
    awaitable<json::array> list_tools(std::string name);

    // The same as they were listed last, without asking the server; empty when it never started.
    const json::array& listed_tools(std::string_view name) const;

    // What is said of tools, to models and, as the "server" ipybox, to code. Starts no server; in
    // the workspace, generated packages and saved code are looked at.

    // A line for each tool that fits, the best first: "server.tool(required, optional?) – what it
    // does". query: one wording a line; of a tool the best rank counts. limit: 1 to 50. everything:
    // packages whose server is not registered too.
    std::string search_tools(std::string_view query, std::size_t limit = 5,
                             bool everything = false) const;
    // How a tool is called: its parameters with types, what they mean, an example if the server
    // gives one. name: "server.tool", by the names that code uses or those of the server. Throws
    // Error: bad_argument (there is no such tool; names the nearest).
    std::string describe_tool(std::string_view name) const;
    // All tools of a server, a line each with its parameters and their types. Throws Error:
    // bad_argument (no server has that name, or it was not started yet).
    std::string list_stubs(std::string_view server) const;

    // Calls are accepted from here to end_execution(). id: of the execution, for policies, spans
    // and audit records; empty: it gets one.
    void begin_execution(std::string id = {});
    // The id of the execution that has begun; empty between executions.
    const std::string& execution() const noexcept;
    // Withdraws what is pending; calls are refused until the next execution.
    void end_execution();

    // Answers whoever asks over this socket whether programs may start, as SandboxPolicy's
    // on_questions gets it: as the policy says, of calls of the origin "program". Until its other
    // end is closed.
    void answer_programs(UniqueFd questions);

    // Withdraws every call and stops every MCP server; they start again on their next use.
    awaitable<void> reset() { return stop_servers(state_); }

private:
    static constexpr std::string_view own_name =
        "ipybox";  // the "server" of what is no MCP server's tool

    // What a session would provide.
    struct Alone {
        Alone(asio::any_io_executor executor, PluginRegistry& registry,
              const ToolServerOptions& options);
        Host host;
        std::unique_ptr<Sandbox> sandbox;
        PolicyPtr policy;
    };
    ToolServer(const std::shared_ptr<Alone>& alone, PluginRegistry& registry,
               ToolServerOptions options);
    static ToolServerOptions for_use_alone(const std::shared_ptr<Alone>& alone,
                                           ToolServerOptions options);

    static void check_name(const std::string& name);
    static json::object checked_params(const std::string& name, const json::object& params);

    struct Tool {
        json::object annotations;
        std::string description;
        std::string definition_hash;                // made when the tool is first called
        std::shared_ptr<const json::value> schema;  // null: it states none; calls share it
        // Compiled when the tool is first called; refers to `schema`.
        std::unique_ptr<detail::SchemaDocument> document;
    };

    struct Server {
        Server(std::string n, json::object p, const asio::any_io_executor& executor)
            : name(std::move(n)), params(std::move(p)), changed(executor) {}
        std::string name;
        json::object params;
        std::string identity;                                  // for people and their rules
        std::function<std::unique_ptr<McpTransport>()> local;  // of one in this process
        std::unique_ptr<Sandbox> sandbox;                      // its own; outlives the client
        std::shared_ptr<McpClient> client;
        McpEra era = McpEra::detect;  // known from the second start on
        bool connecting = false;
        bool was_listed = false;
        bool told = false;          // what its arguments are taken for
        bool removed = false;       // unregistered: calls end
        unsigned long listing = 0;  // grows when the tools change
        Event changed;
        std::shared_ptr<const json::array> tools = std::make_shared<const json::array>();
        std::map<std::string, Tool, std::less<>> by_name;

        // False when they are the tools that it had before.
        bool adopt(json::array listed);
    };
    using ServerPtr = std::shared_ptr<Server>;
    struct Impl;
    using ImplPtr = std::shared_ptr<Impl>;
    enum class Action { run, status, register_server, reset };

    struct Reply {
        json::object body;
        unsigned status = 200;
        MemoryReservation memory;  // for it, until it is sent
    };

    static Reply failure(std::string message, const char* type = nullptr, unsigned status = 200);

    static Server& register_in(Impl& state, const std::string& name, json::object params);

    static awaitable<void> stop_servers(ImplPtr state);

    static ServerPtr find(Impl& state, std::string_view name);

    // As the tools are now; made again when they, or the files of the workspace, have changed.
    static tools::ToolCatalogue& catalogue(Impl& state);
    // What code asks about tools: no call, so nobody decides on it and nothing is carried out.
    static bool is_question(const ToolCall& request);
    // Throws Error: bad_argument (of another form, or there is no such tool).
    static Reply answer_question(Impl& state, const ToolCall& request);

    // Connects once, however many calls wait for it. What goes wrong is told without secrets.
    static awaitable<void> connect(ImplPtr state, ServerPtr server);

    static awaitable<void> connect_once(ImplPtr state, ServerPtr server);

    // The path of a directory is no secret, and errors are of no use without it.
    static bool is_directory_name(const std::string& value);

    // Decides where a server of a "command" runs: in its own sandbox, or on the host by
    // UnconfinedServer.
    static void place_server(Impl& state, Server& server, json::object& params);

    // The transport's own parameters are what its plugin judges and gets.
    static std::unique_ptr<McpTransport> make_transport(Impl& state, const Server& server,
                                                        json::object params);

    static void tell_changed(const Impl& state, const Server& server);

    // Lists the tools of a server that said that they changed, if it is still there.
    static awaitable<void> relist(ImplPtr state, ServerPtr server);

    // Loads what `where` names; what a kernel is to trust comes back.
    static TlsAddress load_certificate(asio::ssl::context& context, const ToolListener& where);

    static Action action_of(const net::HttpServerRequest& head);

    // Status 200 lets a request through. A kernel comes by its socket or over TLS, and programs of
    // this machine by a port of the loopback.
    static Reply judge(const Impl& state, const net::HttpPeer& peer,
                       const net::HttpServerRequest& head);

    static awaitable<bool> answer(ImplPtr state, net::HttpPeerPtr peer,
                                  net::HttpServerRequest request);

    // Completes when the peer hangs up, or sends what nobody waits for.
    static awaitable<void> watch(net::HttpSocket& socket);

    // What a call needs of the memory that all share; small ones need nothing, so that they work
    // while others use it up.
    static bool reserve(MemoryReservation& memory, std::size_t bytes);
    static Reply too_much() {
        return failure(
            "too much data in tool calls at once; make fewer calls in parallel, or pass less");
    }

    static net::HttpReply to_http(const Reply& reply);

    // What is no call.
    static awaitable<void> control(ImplPtr state, Action action, std::string body, Reply& reply);
    // The same parameters again change nothing: the server that runs goes on.
    static void register_by_request(Impl& state, const json::value& request);

    // What a caller that wants to know is told of its call: the latest report, before the answer.
    struct Progress {
        explicit Progress(asio::any_io_executor executor) : changed(std::move(executor)) {}
        std::optional<CallProgress> report;
        bool done = false, telling = true;
        Event changed;
    };
    using ProgressPtr = std::shared_ptr<Progress>;
    static awaitable<void> tell(net::HttpPeerPtr peer, ProgressPtr progress);
    static void tell_host(const Impl& state, const std::string& call, const CallProgress& report);

    // One call from parsed request to reply; ends early when its execution does.
    static awaitable<void> handle(ImplPtr state, std::string body, Reply& reply,
                                  ProgressPtr progress);

    // serving: the server of the call, once it is known.
    static awaitable<void> withdrawal(ImplPtr state, unsigned long turn, const ServerPtr& serving);

    static awaitable<void> call(ImplPtr state, std::string body, Reply& reply, ProgressPtr progress,
                                ServerPtr& serving);
    static std::string unregistered_text(const std::string& name);
    // How a call is named in spans.
    static Span span_of(const Impl& state, const ToolCall& request, Span::Kind kind);

    // What the policy says; it is not recorded yet.
    static awaitable<Decision> judge(ImplPtr state, ToolCall request);
    // The same, and once more with the arguments that a person changed, which the call has then.
    // Throws Error: bad_argument (they do not fit the tool's schema).
    static awaitable<Decision> judge_with_edits(ImplPtr state, ServerPtr server, ToolCall& request,
                                                AuditedCall& audit);
    // A reply when the call must not be carried out.
    static std::optional<Reply> refusal_of(const Decision& decision, const std::string& call_name);

    // "May I run this command?": the kernel runs it, if it keeps to the answer.
    static awaitable<Reply> shell_command(ImplPtr state, ToolCall request, AuditedCall& audit);

    struct AskedProgram;
    using AskedProgramPtr = std::shared_ptr<AskedProgram>;
    static awaitable<void> hear_programs(ImplPtr state, UniqueFd questions);
    // Null: there is none, or none that could be answered.
    static AskedProgramPtr receive_program(const Impl& state, int socket, bool& ended);
    static awaitable<void> answer_program(ImplPtr state, AskedProgramPtr asked);
    static awaitable<void> judge_program(ImplPtr state, ToolCall request,
                                         std::optional<Decision>& decision);
    static awaitable<void> hung_up(AskedProgramPtr asked);
    // Returns when the execution ends or the one that asked is gone.
    static awaitable<void> unwanted(ImplPtr state, AskedProgramPtr asked);
    static void send_answer(AskedProgram& asked, std::string_view text);

    // Adds what the server says of the tool. Throws Error: bad_argument (there is no such tool, or
    // the arguments do not fit its schema).
    static void describe(Server& server, ToolCall& request);

    static awaitable<Reply> run(ImplPtr state, ToolCall request, AuditedCall& audit,
                                ProgressPtr progress, ServerPtr& serving);

    // Text and structured results go as "result", as in the original; media as "content", with a
    // structured result beside it where there is one. An error has "error" as well.
    static Reply answer(const Impl& state, CallResult result);

    // The problem, or empty. Unknown keys are refused: nothing rides along.
    // memory: becomes what the arguments take until the call is over.
    static std::string parse_call(std::string body, ToolCall& request, MemoryReservation& memory);

    ImplPtr state_;
};

}  // namespace ipybox

#ifndef IPYBOX_SEPARATE_COMPILATION
#include <ipybox/tools/impl/tool_progress.ipp>
#include <ipybox/tools/impl/tool_questions.ipp>
#include <ipybox/tools/impl/tool_server.ipp>
#include <ipybox/tools/impl/tool_server_mcp.ipp>
#include <ipybox/tools/impl/tool_server_programs.ipp>
#endif
