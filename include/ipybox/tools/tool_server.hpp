#pragma once
// Carries out the tool calls of a kernel: HTTP/1.1 on a Unix socket or over TLS, one server a session.
// The kernel can name a registered server and a tool, pass arguments, and nothing else.
// Used alone, it serves the programs of this machine on TCP as well: see ToolRunner.
#include <openssl/crypto.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/json/parse.hpp>
#include <filesystem>
#include <ipybox/approval/approval.hpp>
#include <ipybox/approval/audit_log.hpp>
#include <ipybox/config.hpp>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/detail/json_schema.hpp>
#include <ipybox/detail/json_text.hpp>
#include <ipybox/kernel_backend.hpp>
#include <ipybox/mcp/client.hpp>
#include <ipybox/net/http_listener.hpp>
#include <ipybox/net/private_listener.hpp>
#include <ipybox/registry.hpp>
#include <ipybox/tools/detail/server_arguments.hpp>
#include <ipybox/tools/server_start.hpp>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace ipybox {

// Limits of a tool server, and what one that is used alone asks and demands.
struct ToolServerOptions {
    // Of the constructor without a policy. As in the original: unless it is set, every call is
    // allowed. Then `approvers` are asked, all at once; ApprovalChannel::ask() makes one.
    bool approval_required = false;
    std::vector<Approver> approvers;
    Logger logger;
    // What callers present, and what those do who may also register and reset; each empty, or at
    // least 16 characters. Empty: 32 random bytes in hexadecimal.
    std::string token, control_token;
    Duration approval_timeout{};                            // zero: unlimited, as in the original
    Duration connect_timeout = std::chrono::seconds(30);    // to start an MCP server
    Duration call_idle_timeout = std::chrono::seconds(300); // without progress; zero: unlimited
    Duration call_timeout = std::chrono::hours(1);          // in all; zero: unlimited
    bool background_calls = false;  // allow calls while no execution is active
    std::size_t max_request = 32u << 20;   // bytes of one request body
    std::size_t max_buffered = 64u << 20;  // bytes of all bodies being received or handled
    // Of connections that have presented a token. Beyond it the one that has been idle longest is
    // closed; where a call is in flight on each, newcomers wait.
    std::size_t max_connections = 256;
    // Of connections that have not presented a token yet: how many there may be at once, how long each
    // may be one, and how long it is let while others want its place; less, the longer a rush lasts.
    std::size_t max_strangers = 256;
    Duration stranger_timeout = std::chrono::seconds(10);
    Duration crowded_timeout = std::chrono::milliseconds(500);
    std::string session = "default";
    AuditLogPtr audit;  // records every call; null: none is recorded
    bool shell_commands = false;  // answer what ipybox_kernel asks about shell commands
    // ${WORKSPACE} of server parameters, and where confined servers start; empty: the current directory.
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
    // Called when a tool that does not say that it only reads has returned, before the kernel hears of it:
    // makes it see the files that the tool wrote. May throw nothing.
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
    // anybody is asked. MCP servers run unconfined. Throws Error: bad_argument, no_such_plugin.
    ToolServer(asio::any_io_executor executor, PluginRegistry& registry, ToolServerOptions options = {})
        : ToolServer(std::make_shared<Alone>(std::move(executor), registry, options), registry, options) {}

    // policy decides on every call; `servers` is the sandbox in which stdio servers run that ask
    // for none of their own (see UnconfinedServer). Throws errc::bad_argument for tokens.
    ToolServer(PluginRegistry& registry, Host& host, Sandbox& servers, ApprovalPolicy& policy,
               ToolServerOptions options = {})
        : state_(std::make_shared<State>(registry, host, servers, policy, std::move(options))) {}
    ~ToolServer() { state_->close(); }
    ToolServer(const ToolServer&) = delete;
    ToolServer& operator=(const ToolServer&) = delete;

    // What the kernel must present: it opens POST /run and nothing else.
    const std::string& token() const noexcept { return state_->options.token; }
    // What programs of the host present that may register servers and reset; never for a kernel.
    const std::string& control_token() const noexcept { return state_->options.control_token; }

    // Listens at `path`, which must not exist; the socket gets mode 0600 and belongs to `user`.
    // Throws errc::io_error.
    void listen(const std::filesystem::path& path, uid_t user) {
        asio::local::stream_protocol::acceptor acceptor(state_->host.executor);
        detail::listen_privately(acceptor, path, user, "the tool server");
        state_->listener->start(state_, std::move(acceptor));
    }

    // Listens at http://HOST:PORT and returns that; port 0 takes a free one. Here GET /status
    // works too and, with control_token(), PUT /servers and PUT /reset, as ToolRunner sends them.
    // host: an address of this machine's loopback, or "localhost". Throws errc::bad_argument for
    // others, and errc::io_error.
    std::string listen_tcp(const std::string& host = "localhost", unsigned short port = 8900) {
        asio::ip::tcp::acceptor acceptor(state_->host.executor);
        const auto where = detail::listen_on_loopback(acceptor, host, port, "the tool server");
        state_->listener->start(state_, std::move(acceptor));
        return "http://" + where;
    }

    // The way to the socket holds no more than so many connections at a time. Calls beyond what fits
    // wait; connections without one leave some places free.
    void fit(std::size_t connections) { state_->listener->fit(connections); }

    // What a kernel needs to reach a server that listens over TLS.
    struct TlsAddress {
        std::string url;           // https://NAME:PORT
        std::string certificates;  // PEM; the only ones that the kernel is to trust
    };

    // Listens over TLS 1.2 or newer. Throws errc::bad_config, which names the field of the kernel
    // option tool_channel, and errc::io_error.
    TlsAddress listen(const ToolListener& where) {
        const auto context = std::make_shared<asio::ssl::context>(asio::ssl::context::tls_server);
        auto address = load_certificate(*context, where);
        boost::system::error_code error;
        const asio::ip::tcp::endpoint endpoint(asio::ip::make_address(where.address, error), where.port);
        if (error) throw Error(errc::bad_config, "tool_channel/listen: \"" + where.address + "\" is no IP address");
        asio::ip::tcp::acceptor acceptor(state_->host.executor);
        error = detail::listen_at(acceptor, endpoint);
        if (error)
            throw Error(errc::io_error, "tool_channel/listen: cannot listen at " + where.address + " port " +
                                            std::to_string(where.port) + ": " + error.message());
        const auto port = where.name_port != 0 ? where.name_port : acceptor.local_endpoint().port();
        const bool v6 = where.name.find(':') != where.name.npos;
        address.url = "https://" + (v6 ? "[" + where.name + "]" : where.name) + ":" + std::to_string(port);
        state_->listener->start(state_, std::move(acceptor), context);
        return address;
    }

    // Makes a server callable by `name`; it starts on its first use. Replaces, and stops, the
    // server that had the name. Variables in `params` are replaced when connecting. Throws
    // errc::bad_config for parameters of a wrong form.
    void register_server(const std::string& name, const json::object& params) {
        register_in(*state_, name, checked_params(name, params));
    }

    // Where ${NAME} in server parameters is looked up besides the environment; ${WORKSPACE} is defined.
    void set_variables(Variables variables) { state_->define(std::move(variables)); }

    // All tools of a registered server as tools/list gives them; starts it. Throws
    // errc::bad_argument for an unknown name, and what McpClient throws.
    awaitable<json::array> list_tools(std::string name) {
        auto state = state_;
        auto server = find(*state, name);
        co_await connect(state, server);
        co_return server->tools;
    }

    // The same as they were listed last, without asking the server; empty when it never started.
    const json::array& listed_tools(std::string_view name) const { return find(*state_, name)->tools; }

    // Calls are accepted between these two; ending withdraws what is pending.
    void begin_execution() { state_->active = true; }
    // The number of the execution in audit records.
    unsigned long execution() const noexcept { return state_->execution; }
    // The other one of the two.
    void end_execution() { state_->withdraw(); }
    // Whether calls are accepted now.
    bool execution_active() const noexcept { return state_->active; }

    // Puts what is no call of a tool to the policy, and records it. The verdict is allow or deny.
    // Throws errc::io_error when it must be recorded and cannot be.
    awaitable<Decision> decide(ToolCall call) {
        auto state = state_;
        call.session = state->options.session;
        AuditedCall audit(state->options.audit, call, state->secrets, state->execution);
        const Decision decision = co_await approve(state->policy, std::move(call), state->options.approval_timeout);
        audit.decided(decision);
        audit.ended("approved");
        co_return decision;
    }

    // Withdraws every call and stops every MCP server; they start again on their next use.
    awaitable<void> reset() { return stop_servers(state_); }

    // Hides values that came from variables or server parameters.
    std::string hide_secrets(std::string text) const { return state_->secrets.hide(std::move(text)); }

private:
    static constexpr std::string_view own_name = "ipybox";  // the "server" of what is no MCP server's tool

    // What a session would provide.
    struct Alone {
        Alone(asio::any_io_executor executor, PluginRegistry& registry, const ToolServerOptions& options) {
            host.executor = std::move(executor);
            host.logger = options.logger;
            host.ask = [approvers = options.approvers](ToolCall call) { return first_answer(approvers, std::move(call)); };
            sandbox = registry.make<Sandbox>("none", host, json::object{});
            policy = registry.make<ApprovalPolicy>(options.approval_required ? "ask" : "allow", host, json::object{});
        }
        Host host;
        std::unique_ptr<Sandbox> sandbox;
        PolicyPtr policy;
    };
    ToolServer(const std::shared_ptr<Alone>& alone, PluginRegistry& registry, ToolServerOptions options)
        : ToolServer(registry, alone->host, *alone->sandbox, *alone->policy, for_use_alone(alone, std::move(options))) {}
    static ToolServerOptions for_use_alone(const std::shared_ptr<Alone>& alone, ToolServerOptions options) {
        options.background_calls = true;
        options.owner = alone;
        return options;
    }

    static json::object checked_params(const std::string& name, const json::object& params) {
        if (name == own_name)
            throw Error(errc::bad_config, "MCP server " + name + ": shell commands are asked for under this name; choose another");
        return check_server_params(params, "MCP server " + name);
    }

    static std::string_view text_of(const json::object& object, std::string_view key) {
        const auto* value = object.if_contains(key);
        return value && detail::is_text(*value) ? std::string_view(value->get_string()) : std::string_view();
    }

    struct Tool {
        json::object annotations;
        json::value schema;
        // Compiled when the tool is first called; refers to `schema`.
        std::unique_ptr<detail::SchemaDocument> document;
    };

    struct Server {
        Server(std::string n, json::object p, const asio::any_io_executor& executor)
            : name(std::move(n)), params(std::move(p)), changed(executor) {}
        std::string name;
        json::object params;
        std::unique_ptr<Sandbox> sandbox;    // its own; outlives the client
        std::shared_ptr<McpClient> client;
        McpEra era = McpEra::detect;  // known from the second start on
        bool connecting = false;
        bool was_listed = false;
        bool told = false;  // what its arguments are taken for
        unsigned long listing = 0;    // grows when the tools change
        Event changed;
        json::array tools;
        std::map<std::string, Tool, std::less<>> by_name;

        // False when they are the tools that it had before.
        bool adopt(json::array listed) {
            const bool first = !std::exchange(was_listed, true);
            if (!first && listed == tools) return false;
            ++listing;
            by_name.clear();
            tools = std::move(listed);
            for (const auto& entry : tools) {
                const auto& object = entry.as_object();
                Tool tool;
                if (const auto* hints = object.if_contains("annotations"); hints && hints->is_object())
                    tool.annotations = hints->get_object();
                if (const auto* schema = object.if_contains("inputSchema"); schema && schema->is_object())
                    tool.schema = *schema;
                by_name.insert_or_assign(std::string(text_of(object, "name")), std::move(tool));
            }
            return !first;
        }
    };
    using ServerPtr = std::shared_ptr<Server>;

    struct State final : detail::HttpService, std::enable_shared_from_this<State> {
        State(PluginRegistry& r, Host& h, Sandbox& s, ApprovalPolicy& p, ToolServerOptions o)
            : registry(r), host(h), sandbox(s), policy(p), options(std::move(o)),
              withdrawn(h.executor) {
            options.token = detail::checked_token(std::move(options.token), "the tool server");
            options.control_token = detail::checked_token(std::move(options.control_token), "the tool server");
            if (options.token == options.control_token)
                throw Error(errc::bad_argument, "the tool server's token and control_token must differ");
            std::error_code ignored;
            auto& workspace = options.workspace;
            workspace = std::filesystem::absolute(workspace.empty() ? "." : workspace, ignored).lexically_normal();
            if (!workspace.has_filename() && workspace.has_relative_path()) workspace = workspace.parent_path();
            define({});
            detail::HttpLimits limits = detail::limits_of(options, options.max_request);
            limits.crowded_timeout = options.crowded_timeout;
            listener = std::make_shared<detail::HttpListener>(host.executor, "tool server", limits, host.logger);
        }
        detail::HttpReply check(detail::HttpPeer& peer, const detail::HttpServerRequest& head) override {
            Reply reply = judge(*this, peer, head);
            if (reply.status == 200) return {};
            peer.keep_alive = false;
            return to_http(reply);
        }
        awaitable<bool> answer(detail::HttpPeerPtr peer, detail::HttpServerRequest request) override {
            return ToolServer::answer(this->shared_from_this(), std::move(peer), std::move(request));
        }
        detail::HttpReply refusal(unsigned status, const std::string& why) override {
            if (status == 413) return to_http(failure(why + "; pass less data, or a path to a file", nullptr, status));
            if (status == 503) return to_http(failure("too much data in tool calls at once; make fewer calls in parallel", nullptr, status));
            return to_http(failure(why, nullptr, status));
        }
        void define(Variables given) { variables = VariableSource(std::move(given), {{"WORKSPACE", options.workspace.string()}}); }
        void withdraw() {
            active = false;
            ++execution;
            withdrawn.notify();
        }
        void close() {
            closed = true;
            listener->close();
            withdraw();
            servers.clear();
        }

        // For the arguments of one session's calls and their answers.
        MemoryBudget memory{std::size_t{100} << 20, &MemoryBudget::process()};
        PluginRegistry& registry;
        Host& host;
        Sandbox& sandbox;
        ApprovalPolicy& policy;
        ToolServerOptions options;
        std::shared_ptr<detail::HttpListener> listener;
        Event withdrawn;
        std::map<std::string, ServerPtr, std::less<>> servers;
        VariableSource variables;
        Secrets secrets;
        unsigned long execution = 0;  // which one; a call belongs to the one it began in
        bool active = false;
        bool closed = false;
    };
    using StatePtr = std::shared_ptr<State>;
    enum class Action { run, status, register_server, reset };

    struct Reply {
        json::object body;
        unsigned status = 200;
        MemoryReservation memory;  // for it, until it is sent
    };

    static Reply failure(std::string message, const char* type = nullptr, unsigned status = 200) {
        Reply reply;
        reply.body["error"] = std::move(message);
        if (type != nullptr) reply.body["type"] = type;
        reply.status = status;
        return reply;
    }

    static void register_in(State& state, const std::string& name, json::object params) {
        if (auto old = state.servers.find(name); old != state.servers.end()) {
            old->second->client = nullptr;
            state.servers.erase(old);
        }
        // Who lets a server send more has room for its answers.
        if (const auto* most = params.if_contains("max_message"); most && most->is_int64() && most->get_int64() > 0) {
            const auto room = 4 * static_cast<std::size_t>(most->get_int64());
            state.memory.ensure(room);
            MemoryBudget::process().ensure(room);
        }
        state.servers.emplace(name, std::make_shared<Server>(name, std::move(params), state.host.executor));
    }

    static awaitable<void> stop_servers(StatePtr state) {
        state->withdraw();
        std::vector<std::shared_ptr<McpClient>> clients;  // servers may be registered meanwhile
        for (auto& [name, server] : state->servers)
            if (auto client = std::exchange(server->client, nullptr)) clients.push_back(std::move(client));
        for (const auto& client : clients) co_await client->close();
    }

    static ServerPtr find(State& state, std::string_view name) {
        if (const auto found = state.servers.find(name); found != state.servers.end()) return found->second;
        std::string known;
        for (const auto& entry : state.servers) known += (known.empty() ? "" : ", ") + entry.first;
        throw Error(errc::bad_argument, "no MCP server is registered as \"" + std::string(name) +
                                            "\"; registered: " + (known.empty() ? "none" : known));
    }

    // Connects once, however many calls wait for it. What goes wrong is told without secrets.
    static awaitable<void> connect(StatePtr state, ServerPtr server) {
        std::optional<Error> failure;
        try {
            co_await connect_once(state, server);
        } catch (const Error& error) {
            failure.emplace(error.code(), state->secrets.hide(error.detail()));
        }
        if (failure) throw *failure;
    }

    static awaitable<void> connect_once(StatePtr state, ServerPtr server) {
        while (server->connecting) co_await server->changed.wait();
        if (server->client && server->client->alive() && server->client->tools_current()) co_return;
        server->connecting = true;
        struct Finished {
            Server& server;
            ~Finished() {
                server.connecting = false;
                server.changed.notify();
            }
        } const finished{*server};
        if (server->client && server->client->alive()) {  // its tools changed since they were listed
            auto client = server->client;
            json::value tools = co_await client->list_tools();
            state->secrets.hide_in_result(tools);
            if (server->adopt(std::move(tools.as_array()))) tell_changed(*state, *server);
            co_return;
        }
        server->client = nullptr;
        const std::string where = "MCP server " + server->name;
        auto params = substitute_variables(server->params, state->variables, where, state->secrets).as_object();
        for (const char* field : {"env", "headers"})
            if (const auto* values = params.if_contains(field))
                for (const auto& entry : values->as_object()) {
                    const bool confidential = detail::names_a_secret(entry.key());
                    std::string value(entry.value().as_string());
                    if (!confidential && is_directory_name(value)) continue;
                    // Of "Bearer TOKEN" the second word.
                    if (const auto blank = value.rfind(' '); confidential && blank != value.npos)
                        state->secrets.add(value.substr(blank + 1), true);
                    state->secrets.add(std::move(value), confidential);
                }
        if (const auto* auth = params.if_contains("auth")) {
            for (const char* field : {"client_secret", "private_key", "assertion"})
                if (const auto* value = auth->as_object().if_contains(field)) state->secrets.add(std::string(value->as_string()), true);
        }
        if (params.contains("command")) place_server(*state, *server, params);
        Sandbox& sandbox = server->sandbox ? *server->sandbox : state->sandbox;
        // What a person is told to do names the server.
        if (params.contains("url")) params["name"] = server->name;
        auto transport = state->registry.make<McpTransport>(transport_of(params), state->host, params);
        McpClientOptions options;
        if (state->options.on_connect) state->options.on_connect(server->name, options);
        options.name = server->name;
        options.exact_numbers = true;
        options.era = server->era;
        options.connect_timeout = state->options.connect_timeout;
        options.logger.level = state->host.logger.level;
        if (state->host.logger.write)
            options.logger.write = [weak = std::weak_ptr<State>(state)](LogLevel level, std::string_view line) {
                if (const auto held = weak.lock()) held->host.logger(level, held->secrets.hide(std::string(line)));
            };
        options.on_tools_changed = [weak_state = std::weak_ptr<State>(state), weak = std::weak_ptr<Server>(server)] {
            auto held = weak_state.lock();
            auto changed = weak.lock();
            if (held && changed) asio::co_spawn(held->host.executor, relist(held, changed), asio::detached);
        };
        auto client = std::make_shared<McpClient>(state->host.executor, std::move(transport), std::move(options));
        co_await client->connect(sandbox);
        server->era = client->era();
        json::value tools = co_await client->list_tools();
        state->secrets.hide_in_result(tools);  // code reads the sources that are made of them
        const bool differs = server->adopt(std::move(tools.as_array()));
        server->client = std::move(client);
        if (differs) tell_changed(*state, *server);
    }

    // The path of a directory is no secret, and errors are of no use without it.
    static bool is_directory_name(const std::string& value) {
        std::error_code ignored;
        return value.starts_with('/') && std::filesystem::is_directory(value, ignored);
    }

    // Decides where a server of a "command" runs: in its own sandbox, or on the host by UnconfinedServer.
    static void place_server(State& state, Server& server, json::object& params) {
        const std::string where = "MCP server " + server.name;
        const auto& workspace = state.options.workspace;
        if (const auto settings = params.find("sandbox"); settings != params.end()) {
            if (!state.options.make_sandbox) throw Error(errc::bad_config, where + ": \"sandbox\" is not supported here");
            if (!settings->value().is_object()) throw Error(errc::bad_config, where + ": \"sandbox\" must be an object");
            if (!server.sandbox) server.sandbox = state.options.make_sandbox(settings->value().get_object());
            params.erase(settings);
            params.erase("trust_cwd");  // what it confines needs no trust
            if (!params.contains("cwd")) params["cwd"] = workspace.string();
            return;
        }
        if (!params.contains("cwd")) {
            std::error_code ignored;
            detail::ServerArguments arguments(where, server.params, params, workspace, std::filesystem::current_path(ignored));
            const auto notices = arguments.correct();
            if (!std::exchange(server.told, true))
                for (const auto& notice : notices) state.host.logger(notice.level, state.secrets.hide(notice.text));
        }
        if (!server.sandbox)
            server.sandbox = std::make_unique<UnconfinedServer>(
                state.sandbox, server.name, params,
                ServerPlace{workspace, state.options.kernel_user, state.host.logger, state.options.record_places});
        for (const char* field : {"user", "trust_cwd"}) params.erase(field);  // not the transport's
    }

    static void tell_changed(const State& state, const Server& server) {
        state.host.logger(LogLevel::info, "the tools of MCP server " + server.name + " changed");
        if (state.options.on_tools_changed) state.options.on_tools_changed(server.name);
    }

    // Lists the tools of a server that said that they changed, if it is still there.
    static awaitable<void> relist(StatePtr state, ServerPtr server) {
        if (state->closed || !server->client || !server->client->alive()) co_return;
        try {
            co_await connect(state, server);
        } catch (const std::exception& error) {
            state->host.logger(LogLevel::warning, std::string("its changed tools could not be listed: ") + error.what());
        }
    }

    // Loads what `where` names; what a kernel is to trust comes back.
    static TlsAddress load_certificate(asio::ssl::context& context, const ToolListener& where) {
        const auto refuse = [](const char* field, const std::filesystem::path& file, const std::string& why) {
            throw Error(errc::bad_config, std::string("tool_channel/") + field + ": " + file.string() + ": " + why);
        };
        auto* native = context.native_handle();
        SSL_CTX_set_min_proto_version(native, TLS1_2_VERSION);
        SSL_CTX_set_options(native, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_TICKET);
        SSL_CTX_set_num_tickets(native, 0);
        SSL_CTX_set_session_cache_mode(native, SSL_SESS_CACHE_OFF);
        boost::system::error_code error;
        // OpenSSL would ask the terminal.
        context.set_password_callback([](std::size_t, asio::ssl::context::password_purpose) { return std::string(); }, error);
        context.use_certificate_chain_file(where.certificate.string(), error);
        if (error) refuse("certificate", where.certificate, error.message());
        context.use_private_key_file(where.key.string(), asio::ssl::context::pem, error);
        if (error) refuse("key", where.key, error.message() + " (a key without a passphrase is needed, in PEM)");
        X509* const own = SSL_CTX_get0_certificate(native);
        if (X509_cmp_current_time(X509_get0_notAfter(own)) < 0) refuse("certificate", where.certificate, "has expired");
        if (X509_check_host(own, where.name.c_str(), where.name.size(), 0, nullptr) != 1 &&
            X509_check_ip_asc(own, where.name.c_str(), 0) != 1)
            refuse("certificate", where.certificate, "is not made out to " + where.name + ", which \"advertise\" names");
        // Not the file itself, in which the key may stand as well.
        const std::unique_ptr<BIO, decltype(&BIO_free)> text(BIO_new(BIO_s_mem()), BIO_free);
        STACK_OF(X509)* others = nullptr;
        SSL_CTX_get0_chain_certs(native, &others);
        bool written = text && PEM_write_bio_X509(text.get(), own) == 1;
        for (int i = 0; written && i < sk_X509_num(others); ++i)
            written = PEM_write_bio_X509(text.get(), sk_X509_value(others, i)) == 1;
        char* data = nullptr;
        const long size = written ? BIO_get_mem_data(text.get(), &data) : 0;
        if (size <= 0) refuse("certificate", where.certificate, "cannot be written");
        TlsAddress address;
        address.certificates.assign(data, static_cast<std::size_t>(size));
        return address;
    }

    static Action action_of(const detail::HttpServerRequest& head) {
        const std::string_view target = head.target();
        if (target == "/status") return Action::status;
        if (target == "/servers") return Action::register_server;
        return target == "/reset" ? Action::reset : Action::run;
    }

    // Status 200 lets a request through. A kernel comes by its socket or over TLS, and programs of this
    // machine by a port of the loopback.
    static Reply judge(const State& state, const detail::HttpPeer& peer, const detail::HttpServerRequest& head) {
        namespace http = boost::beast::http;
        const auto presented = [given = std::string_view(head[http::field::authorization])](const std::string& token) {
            const std::string expected = "Bearer " + token;
            return given.size() == expected.size() && CRYPTO_memcmp(given.data(), expected.data(), expected.size()) == 0;
        };
        const bool loopback = peer.port != 0 && !peer.tls;
        const bool controls = loopback && presented(state.options.control_token);
        if (!controls && !presented(state.options.token))
            return failure("this session's token is missing or wrong", nullptr, 401);
        const std::string_view target = head.target();
        const auto method = head.method();
        const auto action = action_of(head);
        const auto wanted = action == Action::run ? http::verb::post : action == Action::status ? http::verb::get : http::verb::put;
        const bool exists = method == wanted && (action != Action::run || target == "/run");
        if (!loopback && (!exists || action != Action::run)) return failure("only POST /run exists here", nullptr, 404);
        if (!exists) return failure("there are POST /run, GET /status, PUT /servers and PUT /reset", nullptr, 404);
        if (!controls && (action == Action::reset || action == Action::register_server))
            return failure("this token is for calls only; " + std::string(target) + " takes the control token", nullptr, 403);
        const bool sized = head.count(http::field::content_length) > 0;
        if (!sized && (action == Action::run || head.count(http::field::transfer_encoding) > 0))
            return failure("the request has no Content-Length", nullptr, 411);
        return {};
    }

    static awaitable<bool> answer(StatePtr state, detail::HttpPeerPtr peer, detail::HttpServerRequest request) {
        const auto action = action_of(request);
        Reply reply;
        auto work = action == Action::run ? handle(state, std::move(request.body()), reply)
                                          : control(state, action, std::move(request.body()), reply);
        auto hang_up = watch(peer->socket);
        const bool handled = co_await ends_first(std::move(work), std::move(hang_up));
        if (!handled) co_return false;  // the kernel hung up: handle() was cancelled
        auto text = render(*peer, to_http(reply));
        reply.body = json::object();
        if (!reserve(reply.memory, text.size())) text = render(*peer, to_http(too_much()));
        const bool written = co_await peer->write(std::move(text));
        co_return written && peer->keep_alive;
    }

    // Completes when the peer hangs up, or sends what nobody waits for.
    static awaitable<void> watch(detail::HttpSocket& socket) {
        for (;;) {
            const auto [error] = co_await socket.async_wait(asio::socket_base::wait_read, as_result);
            if (error || is_readable(socket.native_handle())) co_return;
        }
    }

    // What a call needs of the memory that all share; small ones need nothing, so that they work
    // while others use it up.
    static bool reserve(MemoryReservation& memory, std::size_t bytes) {
        constexpr std::size_t small = 16u << 10;
        return memory.resize(bytes > small ? bytes : 0);
    }
    static Reply too_much() { return failure("too much data in tool calls at once; make fewer calls in parallel, or pass less"); }

    static detail::HttpReply to_http(const Reply& reply) {
        detail::HttpReply plain;
        plain.status = reply.status;
        plain.body = detail::write_json(reply.body);
        return plain;
    }

    // What is no call.
    static awaitable<void> control(StatePtr state, Action action, std::string body, Reply& reply) {
        if (action == Action::status) {
            reply.body["status"] = "ok";
        } else if (action == Action::reset) {
            co_await stop_servers(state);
            reply.body["reset"] = "success";
        } else {
            try {
                register_by_request(*state, parse_json(body, "the request"));
                reply.body["registered"] = true;
            } catch (const Error& error) {
                reply = failure(state->secrets.hide(error.detail()), "bad_config");
            }
        }
    }
    // The same parameters again change nothing: the server that runs goes on.
    static void register_by_request(State& state, const json::value& request) {
        const auto* object = request.if_object();
        const auto* name = object ? object->if_contains("server_name") : nullptr;
        const auto* params = object ? object->if_contains("server_params") : nullptr;
        if (!name || !detail::is_text(*name) || !params || !params->is_object() || object->size() != 2)
            throw Error(errc::bad_config, "a registration is {\"server_name\": text, \"server_params\": object}");
        const std::string server(name->get_string());
        auto checked = checked_params(server, params->get_object());
        const auto known = state.servers.find(server);
        if (known == state.servers.end() || known->second->params != checked) register_in(state, server, std::move(checked));
    }

    // One call from parsed request to reply; ends early when its execution does.
    static awaitable<void> handle(StatePtr state, std::string body, Reply& reply) {
        if (!state->active && !state->options.background_calls) {
            reply = failure("no code is being executed: tools can be called while a cell runs, not after it", "inactive");
            co_return;
        }
        auto work = call(state, std::move(body), reply);
        auto end = withdrawal(state, state->execution);
        const bool answered = co_await ends_first(std::move(work), std::move(end));
        if (!answered) reply = failure("the execution ended before this call was answered", "withdrawn");
    }

    static awaitable<void> withdrawal(StatePtr state, unsigned long execution) {
        for (bool over = false; !over;) {
            co_await state->withdrawn.wait();
            // Asked, because another co_await would throw: that is dear on the way of every call.
            const auto cancelled = co_await asio::this_coro::cancellation_state;
            over = state->execution != execution || cancelled.cancelled() != asio::cancellation_type::none;
        }
    }

    static awaitable<void> call(StatePtr state, std::string body, Reply& reply) {
        ToolCall request;
        MemoryReservation memory(state->memory);
        std::string problem = parse_call(std::move(body), request, memory);
        request.session = state->options.session;
        if (state->options.shell_commands && request.server == own_name) {
            if (request.tool == "shell") request.origin = CallOrigin::shell;
            if (request.tool == "shell_magic") request.origin = CallOrigin::shell_magic;
        }
        AuditedCall audit(state->options.audit, request, state->secrets, state->execution);
        try {
            if (problem.empty()) {
                reply = co_await run(state, std::move(request), audit);
                // As it is, as text, and as what is sent.
                if (!reserve(memory, 3 * detail::memory_size(reply.body))) reply = too_much();
                reply.memory = std::move(memory);
                co_return;
            }
        } catch (const Error& error) {
            problem = error.detail();
        } catch (const std::exception& error) {
            problem = error.what();
        }
        problem = state->secrets.hide(std::move(problem));
        audit.failed(problem);
        reply = failure(std::move(problem));
    }

    // What the policy says; it is not recorded yet.
    static awaitable<Decision> judge(StatePtr state, ToolCall request) {
        co_return co_await approve(state->policy, std::move(request), state->options.approval_timeout);
    }
    // A reply when the call must not be carried out.
    static std::optional<Reply> refusal_of(const Decision& decision, const std::string& call_name) {
        if (decision.expired) return failure("approval request for " + call_name + " expired: " + decision.reason, "timeout");
        if (decision.verdict == Verdict::allow) return std::nullopt;
        const std::string why = decision.reason.empty() ? "" : ": " + decision.reason;
        return failure("approval request for " + call_name + " rejected" + why, "rejected");
    }

    // "May I run this command?": the kernel runs it, if it keeps to the answer.
    static awaitable<Reply> shell_command(StatePtr state, ToolCall request, AuditedCall& audit) {
        const auto* command = request.arguments.if_contains("cmd");
        if (request.arguments.size() != 1 || !command || !detail::is_text(*command))
            throw Error(errc::bad_argument, "a shell command is {\"cmd\": text}");
        const std::string call_name = request.server + "." + request.tool;
        const Decision decision = co_await judge(state, std::move(request));
        audit.decided(decision);
        auto refusal = refusal_of(decision, call_name);
        if (refusal) co_return std::move(*refusal);
        audit.ended("ok");
        Reply reply;
        reply.body["result"] = true;
        co_return reply;
    }

    // Adds what the server says of the tool. Throws errc::bad_argument when there is no such tool, or
    // the arguments do not fit its schema.
    static void describe(Server& server, ToolCall& request) {
        const auto found = server.by_name.find(request.tool);
        if (found == server.by_name.end())
            throw Error(errc::bad_argument, "MCP server " + server.name + " has no tool \"" + request.tool + "\"");
        Tool& tool = found->second;
        request.annotations = tool.annotations;
        request.input_schema = json::object();
        if (!tool.schema.is_object()) return;
        if (!tool.document) tool.document = std::make_unique<detail::SchemaDocument>(tool.schema);
        detail::SchemaValidator validator(*tool.document);
        if (const auto problem = validator.problem(tool.document->root(), request.sent_arguments()))
            throw Error(errc::bad_argument, "the arguments of " + request.tool + " do not fit its schema: " + *problem);
        request.input_schema = tool.schema.get_object();
    }

    static awaitable<Reply> run(StatePtr state, ToolCall request, AuditedCall& audit) {
        if (request.origin != CallOrigin::mcp) co_return co_await shell_command(state, std::move(request), audit);
        auto server = find(*state, request.server);
        co_await connect(state, server);
        describe(*server, request);
        // What is sent is what was judged: a tool that changed meanwhile is judged again, though not
        // for ever.
        unsigned long judged = server->listing;
        Decision decision = co_await judge(state, request);
        for (int round = 1; decision.verdict == Verdict::allow; ++round) {
            const auto current = state->servers.find(request.server);
            if (current == state->servers.end() || current->second != server)
                throw Error(errc::bad_argument, "MCP server " + server->name + " was replaced while its call waited for approval");
            const bool ready = server->client && server->client->alive() && server->client->tools_current();
            if (!ready) co_await connect(state, server);
            if (server->listing == judged) break;
            judged = server->listing;
            const json::object annotations = std::move(request.annotations), schema = std::move(request.input_schema);
            describe(*server, request);
            if (annotations == request.annotations && schema == request.input_schema) break;
            if (round < 3) {
                decision = co_await judge(state, request);
                continue;
            }
            decision = Decision(Verdict::deny, "the tool changed whenever it was approved");
            decision.by = "tool server";
        }
        audit.decided(decision);
        auto refusal = refusal_of(decision, request.server + "." + request.tool);
        if (refusal) co_return std::move(*refusal);
        const std::string name = std::move(request.tool);
        json::object arguments = request.exact_arguments ? *request.exact_arguments : std::move(request.arguments);
        auto client = server->client;
        if (!client) throw Error(errc::bad_argument, "MCP server " + server->name + " was stopped");
        CallOptions options;
        options.idle_timeout = state->options.call_idle_timeout;
        options.total_timeout = state->options.call_timeout;
        CallResult result = co_await client->call_tool(name, std::move(arguments), std::move(options));
        audit.ended(result.is_error ? "error" : "ok");
        const auto* reads = request.annotations.if_contains("readOnlyHint");
        const bool only_reads = reads && reads->is_bool() && reads->get_bool();
        if (state->options.after_call && !only_reads) co_await state->options.after_call();
        co_return answer(*state, std::move(result));
    }

    // Text and structured results go as "result", as in the original; media as "content", with a
    // structured result beside it where there is one. An error has "error" besides.
    static Reply answer(const State& state, CallResult result) {
        bool only_text = true;
        std::string text;
        for (const auto& entry : result.content) {
            const auto* block = entry.if_object();
            if (!block || text_of(*block, "type") != "text") {
                only_text = false;
                continue;
            }
            if (!text.empty()) text += '\n';
            text += text_of(*block, "text");
        }
        // Some servers say null where they mean nothing.
        const bool structured = result.structured_content &&
                                (!result.structured_content->is_null() || result.content.empty());
        Reply reply;
        if (result.is_error) {
            reply = failure(state.secrets.hide(text.empty() ? "the tool failed without saying why" : std::move(text)));
        } else if (!structured && only_text) {
            reply.body["result"] = std::move(text);
        }
        if (structured) reply.body["result"] = std::move(*result.structured_content);
        if (!only_text) reply.body["content"] = std::move(result.content);
        state.secrets.hide_in_result(reply.body);
        return reply;
    }

    // The problem, or empty. Unknown keys are refused: nothing rides along.
    // memory: becomes what the arguments take until the call is over.
    static std::string parse_call(std::string body, ToolCall& request, MemoryReservation& memory) {
        // Text that is no Unicode is repaired before anybody judges the call, so that what is shown is what is sent.
        auto read = detail::read_json(body, 128, detail::default_max_decoded);
        body = std::string();
        if (read.problem == detail::costs_too_much)
            return "the arguments take more than the " + std::to_string(detail::default_max_decoded >> 20) +
                   " MiB of memory that those of one call may; pass less data, or a path to a file";
        if (!read.problem.empty()) return "the request " + read.problem;
        auto* object = read.value.if_object();
        if (!object) return "the request must be an object";
        for (const auto& entry : *object)
            if (entry.key() != "server_name" && entry.key() != "tool_name" && entry.key() != "tool_args")
                return "unknown key \"" + std::string(entry.key()) + "\"; accepted: server_name, tool_name, tool_args";
        for (const char* key : {"server_name", "tool_name"})
            if (const auto* field = object->if_contains(key); !field || !detail::is_text(*field))
                return std::string(key) + " must be a string";
        auto* arguments = object->if_contains("tool_args");
        if (!arguments || !arguments->is_object()) return "tool_args must be an object";
        request.server = object->at("server_name").get_string();
        request.tool = object->at("tool_name").get_string();
        // Once for whoever is asked, once for the server; once more with all digits, if there are more than in doubles.
        const std::size_t copies = detail::holds_exact(*arguments) ? 3 : 2;
        if (!reserve(memory, copies * detail::memory_size(*arguments)))
            return "too much data in tool calls at once; make fewer calls in parallel, or pass less";
        request.set_arguments(std::move(arguments->get_object()));
        return {};
    }

    StatePtr state_;
};

}  // namespace ipybox
