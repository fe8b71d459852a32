#pragma once
// Carries out the tool calls of a kernel: HTTP/1.1 on a Unix socket or over TLS, one server a session.
// The kernel can name a registered server and a tool, pass arguments, and nothing else.
// Used alone, it serves the programs of this machine on TCP as well: see ToolRunner.
#include <netinet/tcp.h>
#include <openssl/crypto.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <filesystem>
#include <ipybox/approval.hpp>
#include <ipybox/audit_log.hpp>
#include <ipybox/config.hpp>
#include <ipybox/detail/json_schema.hpp>
#include <ipybox/kernel_backend.hpp>
#include <ipybox/mcp_client.hpp>
#include <ipybox/private_listener.hpp>
#include <ipybox/registry.hpp>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
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
    std::size_t max_buffered = 256u << 20; // bytes of all bodies being received or handled
    std::size_t max_connections = 256;
    // Of connections that have not presented a token yet: over TLS, how many there may be at once, how
    // long each may be one, and how long while others wait for its place.
    std::size_t max_strangers = 64;
    Duration stranger_timeout = std::chrono::seconds(10);
    Duration crowded_timeout = std::chrono::seconds(2);
    std::string session = "default";
    AuditLogPtr audit;  // records every call; null: none is recorded
    bool shell_commands = false;  // answer what ipybox_kernel asks about shell commands
    // Makes the sandbox that "sandbox" in a server's parameters asks for; empty: none can be had.
    std::function<std::unique_ptr<Sandbox>(json::object settings)> make_sandbox;
    // The tools of a server are no longer those that were listed before; listed_tools() has them.
    std::function<void(const std::string& server)> on_tools_changed;
    // Called before each connection to a server: fills in what the application answers it and hears
    // of it (on_request with capabilities, roots, on_log with log_level, on_notification). The
    // name, the limits and the logger are the tool server's.
    std::function<void(const std::string& server, McpClientOptions& options)> on_connect;
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
    // for none of their own.
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
        detail::listen_privately(state_->acceptor, path, user, "the tool server");
        asio::co_spawn(state_->host.executor, detail::accept_connections(state_, state_->acceptor, &begin), asio::detached);
    }

    // Listens at http://HOST:PORT and returns that; port 0 takes a free one. Here GET /status
    // works too and, with control_token(), PUT /servers and PUT /reset, as ToolRunner sends them.
    // host: an address of this machine's loopback, or "localhost". Throws errc::bad_argument for
    // others, and errc::io_error.
    std::string listen_tcp(const std::string& host = "localhost", unsigned short port = 8900) {
        const auto where = detail::listen_on_loopback(state_->tcp_acceptor, host, port, "the tool server");
        asio::co_spawn(state_->host.executor, detail::accept_connections(state_, state_->tcp_acceptor, &begin_tcp), asio::detached);
        return "http://" + where;
    }

    // What a kernel needs to reach a server that listens over TLS.
    struct TlsAddress {
        std::string url;           // https://NAME:PORT
        std::string certificates;  // PEM; the only ones that the kernel is to trust
    };

    // Listens over TLS 1.2 or newer. Throws errc::bad_config, which names the field of the kernel
    // option tool_channel, and errc::io_error.
    TlsAddress listen(const ToolListener& where) {
        auto& state = *state_;
        auto& context = state.tls.emplace(asio::ssl::context::tls_server);
        auto address = load_certificate(context, where);
        boost::system::error_code error;
        const asio::ip::tcp::endpoint endpoint(asio::ip::make_address(where.address, error), where.port);
        if (error) throw Error(errc::bad_config, "tool_channel/listen: \"" + where.address + "\" is no IP address");
        auto& acceptor = state.tls_acceptor;
        error = detail::listen_at(acceptor, endpoint);
        if (error)
            throw Error(errc::io_error, "tool_channel/listen: cannot listen at " + where.address + " port " +
                                            std::to_string(where.port) + ": " + error.message());
        const auto port = where.name_port != 0 ? where.name_port : acceptor.local_endpoint().port();
        const bool v6 = where.name.find(':') != where.name.npos;
        address.url = "https://" + (v6 ? "[" + where.name + "]" : where.name) + ":" + std::to_string(port);
        asio::co_spawn(state.host.executor, accept_tls(state_), asio::detached);
        return address;
    }

    // Makes a server callable by `name`; it starts on its first use. Replaces, and stops, the
    // server that had the name. Variables in `params` are replaced when connecting. Throws
    // errc::bad_config for parameters of a wrong form.
    void register_server(const std::string& name, const json::object& params) {
        register_in(*state_, name, checked_params(name, params));
    }

    // Where ${NAME} in server parameters is looked up besides the environment.
    void set_variables(Variables variables) { state_->variables = VariableSource(std::move(variables)); }

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
        return value && value->is_string() ? std::string_view(value->get_string()) : std::string_view();
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
        Event changed;
        json::array tools;
        std::map<std::string, Tool, std::less<>> by_name;

        // False when they are the tools that it had before.
        bool adopt(json::array listed) {
            const bool first = !std::exchange(was_listed, true);
            if (!first && listed == tools) return false;
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

    // How a caller comes: a kernel by its socket or over TLS, another program of this machine.
    enum class Way { socket, tls, loopback };

    // Shared with the timers that end it.
    struct Connection {
        Connection(const asio::any_io_executor& executor, Way by) : way(by), timer(executor), known(by == Way::socket) {}
        void stop_after(const std::shared_ptr<Connection>& self, Duration limit) {
            timer.expires_after(limit);
            timer.async_wait([weak = std::weak_ptr<Connection>(self)](boost::system::error_code error) {
                if (const auto held = weak.lock(); held && !error && held->close) held->close();
            });
        }
        const Way way;
        std::function<void()> close;  // empty when it has ended
        asio::steady_timer timer;
        bool known;  // it has presented a token, or had to pass the socket's rights
        Clock::time_point since = Clock::now();
    };
    using ConnectionPtr = std::shared_ptr<Connection>;

    struct State {
        State(PluginRegistry& r, Host& h, Sandbox& s, ApprovalPolicy& p, ToolServerOptions o)
            : registry(r), host(h), sandbox(s), policy(p), options(std::move(o)),
              acceptor(h.executor), tcp_acceptor(h.executor), tls_acceptor(h.executor), withdrawn(h.executor), freed(h.executor) {
            options.token = detail::checked_token(std::move(options.token), "the tool server");
            options.control_token = detail::checked_token(std::move(options.control_token), "the tool server");
            if (options.token == options.control_token)
                throw Error(errc::bad_argument, "the tool server's token and control_token must differ");
        }
        void withdraw() {
            active = false;
            ++execution;
            withdrawn.notify();
        }
        void close() {
            closed = true;
            boost::system::error_code ignored;
            acceptor.close(ignored);
            tcp_acceptor.close(ignored);
            tls_acceptor.close(ignored);
            for (const auto& connection : connections) connection->close();
            withdraw();
            freed.notify();
            servers.clear();
        }

        PluginRegistry& registry;
        Host& host;
        Sandbox& sandbox;
        ApprovalPolicy& policy;
        ToolServerOptions options;
        asio::local::stream_protocol::acceptor acceptor;
        asio::ip::tcp::acceptor tcp_acceptor;
        std::optional<asio::ssl::context> tls;
        asio::ip::tcp::acceptor tls_acceptor;
        Event withdrawn;
        Event freed;
        std::list<ConnectionPtr> connections;
        std::map<std::string, ServerPtr, std::less<>> servers;
        VariableSource variables;
        Secrets secrets;
        std::size_t buffered = 0;
        unsigned long execution = 0;  // which one; a call belongs to the one it began in
        bool active = false;
        bool closed = false;
    };
    using StatePtr = std::shared_ptr<State>;
    using Socket = asio::generic::stream_protocol::socket;
    using TlsStream = asio::ssl::stream<asio::ip::tcp::socket>;
    enum class Action { run, status, register_server, reset };

    struct Reply {
        json::object body;
        unsigned status = 200;
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
            json::array tools = co_await client->list_tools();
            if (server->adopt(std::move(tools))) tell_changed(*state, *server);
            co_return;
        }
        server->client = nullptr;
        const std::string where = "MCP server " + server->name;
        auto params = substitute_variables(server->params, state->variables, where, state->secrets).as_object();
        for (const char* field : {"env", "headers"})
            if (const auto* values = params.if_contains(field))
                for (const auto& entry : values->as_object()) state->secrets.add(std::string(entry.value().as_string()));
        if (const auto* auth = params.if_contains("auth")) {
            for (const char* field : {"client_secret", "private_key", "assertion"})
                if (const auto* value = auth->as_object().if_contains(field)) state->secrets.add(std::string(value->as_string()));
        }
        if (const auto settings = params.find("sandbox"); settings != params.end()) {
            if (!state->options.make_sandbox) throw Error(errc::bad_config, where + ": \"sandbox\" is not supported here");
            if (!settings->value().is_object()) throw Error(errc::bad_config, where + ": \"sandbox\" must be an object");
            if (!server->sandbox) server->sandbox = state->options.make_sandbox(settings->value().get_object());
            params.erase(settings);
        }
        Sandbox& sandbox = server->sandbox ? *server->sandbox : state->sandbox;
        // What a person is told to do names the server.
        if (params.contains("url")) params["name"] = server->name;
        auto transport = state->registry.make<McpTransport>(transport_of(params), state->host, params);
        McpClientOptions options;
        if (state->options.on_connect) state->options.on_connect(server->name, options);
        options.name = server->name;
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
        json::array tools = co_await client->list_tools();
        const bool differs = server->adopt(std::move(tools));
        server->client = std::move(client);
        if (differs) tell_changed(*state, *server);
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

    static void begin(const StatePtr& state, asio::local::stream_protocol::socket socket) {
        asio::co_spawn(state->host.executor, serve(state, Socket(std::move(socket)), Way::socket), asio::detached);
    }
    static void begin_tcp(const StatePtr& state, asio::ip::tcp::socket socket) {
        boost::system::error_code ignored;
        socket.set_option(asio::ip::tcp::no_delay(true), ignored);
        asio::co_spawn(state->host.executor, serve(state, Socket(std::move(socket)), Way::loopback), asio::detached);
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

    static awaitable<void> accept_tls(StatePtr state) {
        while (!state->closed) {
            const auto stranger = [](const ConnectionPtr& one) { return !one->known; };
            const auto& all = state->connections;
            const auto strangers = static_cast<std::size_t>(std::count_if(all.begin(), all.end(), stranger));
            if (all.size() - strangers >= state->options.max_connections) {
                co_await state->freed.wait();
                continue;
            }
            if (strangers >= state->options.max_strangers) {
                const ConnectionPtr oldest = *std::find_if(all.begin(), all.end(), stranger);
                const auto until = oldest->since + state->options.crowded_timeout;
                if (Clock::now() >= until) oldest->close();
                const auto again = std::max(until, Clock::now() + std::chrono::milliseconds(10));
                co_await state->freed.wait(again);
                continue;
            }
            auto [error, socket] = co_await state->tls_acceptor.async_accept(as_result);
            if (state->closed) break;
            if (error) {
                const auto soon = Clock::now() + std::chrono::milliseconds(50);
                co_await state->freed.wait(soon);
                continue;
            }
            boost::system::error_code ignored;
            socket.set_option(asio::ip::tcp::no_delay(true), ignored);
            // A machine that vanishes says nothing.
            socket.set_option(asio::socket_base::keep_alive(true), ignored);
            const int seconds = 15, milliseconds = 60'000;
            for (const int option : {TCP_KEEPIDLE, TCP_KEEPINTVL})
                ::setsockopt(socket.native_handle(), IPPROTO_TCP, option, &seconds, sizeof seconds);
            ::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_USER_TIMEOUT, &milliseconds, sizeof milliseconds);
            TlsStream stream(std::move(socket), *state->tls);
            asio::co_spawn(state->host.executor, serve(state, std::move(stream), Way::tls), asio::detached);
        }
    }

    // One connection: request, answer, and again until the caller closes it.
    template <class Stream>
    static awaitable<void> serve(StatePtr state, Stream stream, Way way) {
        const auto connection = std::make_shared<Connection>(state->host.executor, way);
        connection->close = [&socket = stream.lowest_layer()] {
            boost::system::error_code ignored;
            socket.close(ignored);
        };
        const auto place = state->connections.insert(state->connections.end(), connection);
        struct Leave {
            StatePtr state;
            std::list<ConnectionPtr>::iterator place;
            ~Leave() {
                (*place)->close = nullptr;
                state->connections.erase(place);
                state->freed.notify();
            }
        } const leave{state, place};
        if (!connection->known) connection->stop_after(connection, state->options.stranger_timeout);
        if constexpr (std::is_same_v<Stream, TlsStream>) {
            const auto [error] = co_await stream.async_handshake(asio::ssl::stream_base::server, as_result);
            if (error) co_return;
        }
        std::string buffer;
        try {
            bool more = true;
            while (more && !state->closed) {
                Buffered held{state, 0};
                std::string body;
                Reply reply;
                Action action = Action::run;
                const bool read = co_await read_request(state, connection, stream, buffer, held, action, body, reply);
                if (!read) break;
                more = reply.status == 200;
                if (more) {
                    auto work = action == Action::run ? handle(state, std::move(body), reply)
                                                      : control(state, action, std::move(body), reply);
                    auto hang_up = watch(stream.lowest_layer());
                    const bool handled = co_await ends_first(std::move(work), std::move(hang_up));
                    if (!handled) break;  // the kernel hung up: handle() was cancelled
                }
                const std::string text = render(reply, more);
                auto [error, written] = co_await asio::async_write(stream, asio::buffer(text), as_result);
                if (error) break;
            }
        } catch (const std::exception& error) {
            state->host.logger(LogLevel::warning, std::string("tool server: ") + error.what());
        }
    }

    struct Buffered {  // the share of max_buffered that one request holds
        StatePtr state;
        std::size_t size;
        ~Buffered() { state->buffered -= size; }
    };

    // False: the connection ended or broke the protocol beyond an answer.
    template <class Stream>
    static awaitable<bool> read_request(StatePtr state, ConnectionPtr connection, Stream& stream, std::string& buffer,
                                        Buffered& held, Action& action, std::string& body, Reply& reply) {
        namespace http = boost::beast::http;
        http::request_parser<http::string_body> parser;
        parser.header_limit(16 * 1024);
        parser.body_limit(state->options.max_request);
        parser.eager(true);
        const struct Stop {
            asio::steady_timer& timer;
            ~Stop() { timer.cancel(); }
        } stop{connection->timer};
        bool head_checked = false;
        char chunk[64 * 1024];
        for (;;) {
            if (!buffer.empty()) {
                boost::system::error_code error;
                const std::size_t used = parser.put(asio::buffer(buffer), error);
                buffer.erase(0, used);
                if (error && error != http::error::need_more) {
                    const bool large = error == http::error::body_limit || error == http::error::header_limit;
                    reply = failure(large ? "the request is larger than " + std::to_string(state->options.max_request) +
                                                " bytes; pass less data, or a path to a file"
                                          : "not an HTTP/1.1 request: " + error.message(),
                                    nullptr, large ? 413 : 400);
                    co_return true;
                }
                if (parser.is_header_done() && !head_checked) {
                    head_checked = true;
                    if (check_head(*state, parser.get(), connection->way, action, reply); reply.status != 200) co_return true;
                    if (!std::exchange(connection->known, true))
                        connection->stop_after(connection, std::chrono::seconds(60));
                    auto length = parser.content_length();
                    if (!length && action != Action::run && parser.is_done()) length = 0;
                    if (!length) {
                        reply = failure("the request has no Content-Length", nullptr, 411);
                        co_return true;
                    }
                    if (state->buffered + *length > state->options.max_buffered) {
                        reply = failure("too much data in tool calls at once; make fewer calls in parallel", nullptr, 503);
                        co_return true;
                    }
                    held.size = static_cast<std::size_t>(*length);
                    state->buffered += held.size;
                }
                if (parser.is_done()) {
                    body = std::move(parser.get().body());
                    co_return true;
                }
            }
            auto [error, size] = co_await stream.async_read_some(asio::buffer(chunk), as_result);
            if (error) co_return false;
            // An idle connection may wait; one that began a request must finish it.
            if (connection->known && buffer.empty() && !parser.got_some())
                connection->stop_after(connection, std::chrono::seconds(60));
            buffer.append(chunk, size);
        }
    }

    template <class Request>
    static void check_head(const State& state, const Request& request, Way way, Action& action, Reply& reply) {
        namespace http = boost::beast::http;
        const auto presented = [given = std::string_view(request[http::field::authorization])](const std::string& token) {
            const std::string expected = "Bearer " + token;
            return given.size() == expected.size() && CRYPTO_memcmp(given.data(), expected.data(), expected.size()) == 0;
        };
        const bool controls = way == Way::loopback && presented(state.options.control_token);
        if (!controls && !presented(state.options.token)) {
            reply = failure("this session's token is missing or wrong", nullptr, 401);
            return;
        }
        const std::string_view target = request.target();
        const auto method = request.method();
        if (method == http::verb::post && target == "/run") {
            action = Action::run;
        } else if (way != Way::loopback) {
            reply = failure("only POST /run exists here", nullptr, 404);
        } else if (method == http::verb::get && target == "/status") {
            action = Action::status;
        } else if (method == http::verb::put && (target == "/servers" || target == "/reset")) {
            action = target == "/reset" ? Action::reset : Action::register_server;
            if (!controls) reply = failure("this token is for calls only; " + std::string(target) + " takes the control token", nullptr, 403);
        } else {
            reply = failure("there are POST /run, GET /status, PUT /servers and PUT /reset", nullptr, 404);
        }
    }

    // Completes when the peer hangs up, or sends what nobody waits for.
    template <class Lowest>
    static awaitable<void> watch(Lowest& socket) {
        for (;;) {
            const auto [error] = co_await socket.async_wait(asio::socket_base::wait_read, as_result);
            if (error || is_readable(socket.native_handle())) co_return;
        }
    }

    static std::string render(const Reply& reply, bool keep_alive) {
        const std::string body = json::serialize(reply.body);
        std::string text = "HTTP/1.1 " + std::to_string(reply.status) +
                           (reply.status == 200 ? " OK" : " Refused") + "\r\nContent-Type: application/json\r\n";
        if (!keep_alive) text += "Connection: close\r\n";
        return text + "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
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
        if (!name || !name->is_string() || !params || !params->is_object() || object->size() != 2)
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
        std::string problem = parse_call(body, request);
        request.session = state->options.session;
        if (state->options.shell_commands && request.server == own_name) {
            if (request.tool == "shell") request.origin = CallOrigin::shell;
            if (request.tool == "shell_magic") request.origin = CallOrigin::shell_magic;
        }
        AuditedCall audit(state->options.audit, request, state->secrets, state->execution);
        try {
            if (problem.empty()) {
                reply = co_await run(state, std::move(request), audit);
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

    // What the policy says, recorded; a reply when the call must not be carried out.
    static awaitable<std::optional<Reply>> decide(StatePtr state, ToolCall request, AuditedCall& audit) {
        const std::string call_name = request.server + "." + request.tool;
        const Decision decision = co_await approve(state->policy, std::move(request), state->options.approval_timeout);
        audit.decided(decision);
        std::optional<Reply> refusal;
        if (decision.expired) {
            refusal = failure("approval request for " + call_name + " expired: " + decision.reason, "timeout");
        } else if (decision.verdict != Verdict::allow) {
            const std::string why = decision.reason.empty() ? "" : ": " + decision.reason;
            refusal = failure("approval request for " + call_name + " rejected" + why, "rejected");
        }
        co_return refusal;
    }

    // "May I run this command?": the kernel runs it, if it keeps to the answer.
    static awaitable<Reply> shell_command(StatePtr state, ToolCall request, AuditedCall& audit) {
        const auto* command = request.arguments.if_contains("cmd");
        if (request.arguments.size() != 1 || !command || !command->is_string())
            throw Error(errc::bad_argument, "a shell command is {\"cmd\": text}");
        auto refusal = co_await decide(state, std::move(request), audit);
        if (refusal) co_return std::move(*refusal);
        audit.ended("ok");
        Reply reply;
        reply.body["result"] = true;
        co_return reply;
    }

    static awaitable<Reply> run(StatePtr state, ToolCall request, AuditedCall& audit) {
        if (request.origin != CallOrigin::mcp) co_return co_await shell_command(state, std::move(request), audit);
        auto server = find(*state, request.server);
        co_await connect(state, server);
        const auto found = server->by_name.find(request.tool);
        if (found == server->by_name.end())
            throw Error(errc::bad_argument, "MCP server " + server->name + " has no tool \"" + request.tool + "\"");
        Tool& tool = found->second;
        if (tool.schema.is_object()) {
            if (!tool.document) tool.document = std::make_unique<detail::SchemaDocument>(tool.schema);
            detail::SchemaValidator validator(*tool.document);
            if (const auto problem = validator.problem(tool.document->root(), request.arguments))
                throw Error(errc::bad_argument, "the arguments of " + request.tool + " do not fit its schema: " + *problem);
            request.input_schema = tool.schema.get_object();
        }
        request.annotations = tool.annotations;
        const std::string name = request.tool;
        json::object arguments = request.arguments;
        auto refusal = co_await decide(state, std::move(request), audit);
        if (refusal) co_return std::move(*refusal);
        auto client = server->client;
        if (!client) throw Error(errc::bad_argument, "MCP server " + server->name + " was stopped");
        CallOptions options;
        options.idle_timeout = state->options.call_idle_timeout;
        options.total_timeout = state->options.call_timeout;
        CallResult result = co_await client->call_tool(name, std::move(arguments), std::move(options));
        audit.ended(result.is_error ? "error" : "ok");
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
        return reply;
    }

    // The problem, or empty. Unknown keys are refused: nothing rides along.
    static std::string parse_call(const std::string& body, ToolCall& request) {
        json::parse_options limits;
        limits.max_depth = 128;
        boost::system::error_code error;
        const json::value value = json::parse(body, error, {}, limits);
        if (error) return "the request is not JSON, or nested more than 128 deep: " + error.message();
        const auto* object = value.if_object();
        if (!object) return "the request must be an object";
        for (const auto& entry : *object)
            if (entry.key() != "server_name" && entry.key() != "tool_name" && entry.key() != "tool_args")
                return "unknown key \"" + std::string(entry.key()) + "\"; accepted: server_name, tool_name, tool_args";
        for (const char* key : {"server_name", "tool_name"})
            if (const auto* field = object->if_contains(key); !field || !field->is_string())
                return std::string(key) + " must be a string";
        const auto* arguments = object->if_contains("tool_args");
        if (!arguments || !arguments->is_object()) return "tool_args must be an object";
        request.server = object->at("server_name").get_string();
        request.tool = object->at("tool_name").get_string();
        request.arguments = arguments->get_object();
        return {};
    }

    StatePtr state_;
};

}  // namespace ipybox
