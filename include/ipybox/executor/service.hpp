#pragma once
// The tools, resources and prompts by which the model of an MCP client runs code actions: what
// `ipybox serve` serves, and what a program of your own can add to its McpServer.

#include <ipybox/approval/question.hpp>
#include <ipybox/detail/json_members.hpp>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/detail/workspace_files.hpp>
#include <ipybox/executor/code_executor.hpp>
#include <ipybox/mcp/server.hpp>
#include <ipybox/sandbox_kit/process.hpp>
#include <ipybox/tools/remembered_servers.hpp>
#include <ipybox/tools/tool_search.hpp>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace ipybox {

// What an McpService serves, and to how many.
struct McpServiceOptions {
    // Of every session's executor. Its workspace is that of the only session, or the one in which
    // sessions get directories of their own.
    CodeExecutorOptions executor;
    std::map<std::string, json::object> servers;  // MCP servers registered when a session begins
    // Policies (approval/config.hpp) for what the client asks for, not the code:
    // register_mcp_server and install_package.
    json::value registration = "allow";
    json::value installation = "allow";
    // What the executor's policy asks is put before the person at the client, by elicitation,
    // beside executor.approvers.
    bool ask_client = true;
    // Where the servers that clients registered are kept, so that their packages, which outlive
    // this process, go on working in the next one; see RememberedServers. Not with separate
    // sessions. Empty: nowhere.
    std::filesystem::path remembered;
    bool structured =
        false;  // results have structured content, which some clients show instead of text

    // One kernel for each client session and, there, for each value of the argument `session`.
    // Otherwise all requests share one, which start() starts.
    bool separate = false;
    bool shared_workspace = false;  // separate sessions work in the same directory
    std::size_t max_sessions = 64;  // separate ones
    // Separate sessions that wait for their clients, with their kernels and servers. Not for
    // clients whose files are found again, nor when kernels have a limit of wall time.
    std::size_t spare_sessions = 0;
    std::size_t max_session_directories = 1024;  // that ended sessions may leave behind, with files
    std::size_t starts_at_once = 2;  // of kernels with their servers; others wait for their turn
    Duration session_idle =
        std::chrono::minutes(30);  // then a separate session's kernel ends; zero: never
    Duration keep_alive = std::chrono::seconds(10);  // between reports of progress of a silent cell
    // A cell that takes longer becomes a task, for clients that take tasks; zero: none does.
    Duration task_after = std::chrono::seconds(5);
    std::size_t max_result = std::size_t{8} << 20;  // bytes of one result, as JSON
    McpServerOptions server;  // on_session_end is called after the service's own
};

namespace executor {

// Whoever holds a place goes on once fewer than `width` others stand before them.
class WaitingLine {
public:
    WaitingLine(const asio::any_io_executor& executor, std::size_t width)
        : width_(width), moved_(executor) {}
    bool empty() const noexcept { return places_.empty(); }
    // Leaves the line when it is destroyed; the line must outlive it.
    class Place {
    public:
        explicit Place(WaitingLine& line)
            : line_(line), at_(line.places_.insert(line.places_.end(), 0)) {}
        ~Place();
        Place(const Place&) = delete;
        Place& operator=(const Place&) = delete;
        bool first() const noexcept;
        awaitable<void> turn() {
            while (!first()) co_await line_.moved_.wait();
        }

    private:
        WaitingLine& line_;
        std::list<char>::iterator at_;
    };

private:
    std::size_t width_;
    std::list<char> places_;
    Event moved_;
};

// Tells the client what a cell prints while it runs, and that it still does.
class CellReport {
public:
    CellReport(const asio::any_io_executor& executor, const McpContext& context,
               Duration keep_alive);
    ~CellReport();
    CellReport(const CellReport&) = delete;
    CellReport& operator=(const CellReport&) = delete;

    static constexpr std::size_t max_message = 16 << 10;

    void add(std::string_view text);
    // What is not yet told.
    void flush() { backlog_->send(); }

private:
    // What the cell printed and the client was not told yet, and when to tell it.
    struct Backlog {
        Backlog(const asio::any_io_executor& executor, const McpContext& c)
            : context(c), changed(executor) {}
        void send();
        McpContext context;
        Event changed;
        std::string text;
        std::size_t skipped = 0;
        double count = 0;
        Duration keep_alive{};
        Clock::time_point started = Clock::now();
        bool done = false;
    };

    static awaitable<void> tell(std::shared_ptr<Backlog> backlog);
    std::shared_ptr<Backlog> backlog_;
};

}  // namespace executor

// Owns an McpServer with the tools register_mcp_server, execute_ipython_cell, install_package,
// reset, interrupt, list_tools, search_tools, describe_tool, upload_file and download_file, the
// workspace's files as resources, and prompts. Serve it with server().serve_stdio() or an
// McpHttpServer; tools of your own can be added to it. One thread; the registry must outlive it.
class McpService {
public:
    // Starts nothing. Throws Error: bad_argument (an option is wrong), bad_config (a configuration
    // is).
    McpService(asio::any_io_executor executor, PluginRegistry& registry, McpServiceOptions options);
    ~McpService();
    McpService(const McpService&) = delete;
    McpService& operator=(const McpService&) = delete;

    // The server through which to serve it; more tools can be added there.
    McpServer& server() noexcept;

    // Starts the kernel and the MCP servers of the only session, so that its first request need not
    // wait. Returns at once: what fails is logged, and tried again by the request that needs it.
    // Throws what CodeExecutor's constructor does. With separate sessions it checks that only.
    void start();

    // Ends all sessions, their kernels and MCP servers. Returns when they are gone, after a few
    // seconds at most: what is left then ends with the executor's io_context.
    awaitable<void> stop();

    // Sessions with a kernel, or on the way to one.
    std::size_t sessions() const noexcept;

private:
    struct Impl;
    struct Session;
    using ImplPtr = std::shared_ptr<Impl>;
    using SessionPtr = std::shared_ptr<Session>;
    using Line = executor::WaitingLine;

    // A request that uses a session.
    struct Use {
        explicit Use(SessionPtr s);
        ~Use();
        Use(const Use&) = delete;
        Use& operator=(const Use&) = delete;
        SessionPtr session;
    };

    // Whom a policy's questions go to.
    struct Asking {
        Asking(std::optional<McpContext>& p, const McpContext& context) : place(p) {
            place = context;
        }
        ~Asking() { place.reset(); }
        Asking(const Asking&) = delete;
        Asking& operator=(const Asking&) = delete;
        std::optional<McpContext>& place;
    };

    // ---- questions to the person ----

    // Allowed, denied with the person's reason, or a pass when there is nobody to ask.
    static awaitable<Decision> ask_client(std::weak_ptr<Session> weak, ToolCall call, bool alone,
                                          bool judging);

    // Whether the client's person allowed such calls for the session.
    static bool granted(const Session& session, const ToolCall& call);

    static Decision said(Verdict verdict, const std::string& by, std::string reason = {});

    // Clients render Markdown: what code wrote stands in a fence, which nothing in it can close, as
    // a question's lines begin with its own words and contain no others' line breaks.
    static std::string client_question(CallOrigin origin, std::string_view text);

    // One question at a time. Nothing is preselected: only one of the choices that allow is a yes.
    static awaitable<Decision> put(SessionPtr session, McpContext context, ToolCall call);

    // Throws Error: denied (the policy for such requests of the client does not allow it).
    static awaitable<void> judge(ImplPtr state, SessionPtr session, McpContext context,
                                 ToolCall call);

    // ---- tools ----

    // Bytes that a result may take.
    static std::size_t room_for(const Impl& state, const McpContext& context);

    // What fails is a result that a model can read, in the words of the Python SDK's servers.
    static McpToolResult failed(std::string_view tool, const std::string& why);

    // Text of at most `characters`, within what is left of the result's bytes.
    static std::string fitting(std::string text, std::size_t characters, std::size_t& bytes);

    static awaitable<McpToolResult> execute_cell(ImplPtr state, McpContext context,
                                                 json::object arguments);

    static double number_argument(const json::object& arguments, std::string_view name,
                                  double otherwise);
    static Duration duration(double seconds);

    // room: bytes that the result may take.
    static McpToolResult cell_result(const Impl& state, const CodeExecutionResult& result,
                                     std::size_t room, std::size_t characters,
                                     const std::string& lost, bool kernel_lost);

    // A traceback ends with what went wrong; many clients show the beginning only.
    static std::string headed(const std::string& traceback);

    static void add_image(json::array& blocks, const json::object& display, std::size_t& bytes);

    static awaitable<McpToolResult> register_server(ImplPtr state, McpContext context,
                                                    json::object arguments);

    static ToolCall registration_call(const std::string& name, const json::object& params);

    // What a policy or a person judges a server by: values that may be secrets are left out.
    static json::object shown_params(const json::object& params);
    static void find_variables(const json::value& value, std::set<std::string>& names);

    static awaitable<McpToolResult> install(ImplPtr state, McpContext context,
                                            json::object arguments);

    static awaitable<McpToolResult> reset(ImplPtr state, McpContext context,
                                          json::object arguments);

    static awaitable<McpToolResult> interrupt(ImplPtr state, McpContext context,
                                              json::object arguments);

    // ---- what code actions can import ----

    static bool callable(const Session& session, const ImportableTool& tool);
    // The source of one module.
    static std::string source_of(const Session& session, const std::string& server,
                                 const std::string& tool);

    static awaitable<McpToolResult> list_tools(ImplPtr state, McpContext context,
                                               json::object arguments);

    static awaitable<McpToolResult> search(ImplPtr state, McpContext context,
                                           json::object arguments);

    static awaitable<McpToolResult> describe(ImplPtr state, McpContext context,
                                             json::object arguments);

    // ---- files ----

    // A kernel elsewhere has files only while it runs.
    static awaitable<void> files_ready(ImplPtr state, SessionPtr session);

    static awaitable<McpToolResult> upload(ImplPtr state, McpContext context,
                                           json::object arguments);

    static awaitable<McpToolResult> download(ImplPtr state, McpContext context,
                                             json::object arguments);

    static awaitable<json::array> read_resource(std::weak_ptr<Impl> weak, McpContext context,
                                                std::string uri, json::object variables);

    // An image that a cell made lies here, wherever its kernel is.
    static awaitable<json::array> read_image(std::weak_ptr<Impl> weak, McpContext context,
                                             std::string uri, std::string path);

    static json::array contents_of(const std::string& uri, const std::string& path,
                                   const FilePart& part);

    // ---- what clients see ----

    using Handler = awaitable<McpToolResult> (*)(ImplPtr, McpContext, json::object);

    static awaitable<McpToolResult> guarded(std::weak_ptr<Impl> weak, std::string tool,
                                            Handler handler, McpContext context,
                                            json::object arguments);

    static constexpr std::string_view instructions =
        "Act by writing Python instead of calling tools one by one. execute_ipython_cell runs code "
        "in an IPython kernel that "
        "keeps its state. register_mcp_server turns an MCP server into importable modules: from "
        "mcptools.SERVER import TOOL, then "
        "TOOL.run(parameter=value). search_tools finds tools, describe_tool says how one is "
        "called: "
        "ask both before its first use, or in a cell: from ipybox_kernel import tools; "
        "tools.search('what it should do'), tools.describe('server.tool'). Combine many calls in "
        "one cell, filter in Python, and "
        "print only what you need.";

    // Required: the names at the front of `properties`.
    static json::object schema(json::object properties, std::size_t required);
    static json::object parameter(std::string_view type, std::string_view description,
                                  json::value otherwise = nullptr);
    static json::object hints(bool reads, bool destroys, bool repeats, bool world);

    static json::object list_of_texts();

    static void add_tool(Impl& state, std::string name, std::string title, std::string description,
                         json::object properties, std::size_t required, json::object annotations,
                         Handler handler, json::object output = {});
    static void add_tools(Impl& state);
    static void add_setup_tools(Impl& state);  // of servers and packages
    static void add_kernel_tools(Impl& state);
    static void add_search_tools(Impl& state);
    static void add_file_tools(Impl& state);

    static void add_resources(Impl& state);

    static void add_prompts(Impl& state);
    static awaitable<json::array> filled(std::string text, std::string argument);

    ImplPtr state_;
};

}  // namespace ipybox

#ifndef IPYBOX_SEPARATE_COMPILATION
#include <ipybox/executor/impl/service.ipp>
#include <ipybox/executor/impl/service_asking.ipp>
#include <ipybox/executor/impl/service_catalogue.ipp>
#include <ipybox/executor/impl/service_sessions.ipp>
#include <ipybox/executor/impl/service_tools.ipp>
#endif
