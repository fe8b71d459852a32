#pragma once
#include <ipybox/tools/tool_server.hpp>

#include <openssl/crypto.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/json/parse.hpp>
#include <ipybox/approval/tool_binding.hpp>
#include <ipybox/compilation.hpp>
#include <ipybox/detail/json_text.hpp>
#include <ipybox/detail/nearest.hpp>
#include <ipybox/detail/terminal_text.hpp>
#include <ipybox/net/private_listener.hpp>
#include <ipybox/tools/impl/tool_server_state.hpp>

namespace ipybox {

IPYBOX_DECL ToolServer::ToolServer(PluginRegistry& registry, Host& host, Sandbox& servers,
                                   ApprovalPolicy& policy, ToolServerOptions options)
    : state_(std::make_shared<Impl>(registry, host, servers, policy, std::move(options))) {}

IPYBOX_DECL ToolServer::~ToolServer() { state_->close(); }

IPYBOX_DECL const std::string& ToolServer::token() const noexcept { return state_->options.token; }

IPYBOX_DECL const std::string& ToolServer::control_token() const noexcept {
    return state_->options.control_token;
}

IPYBOX_DECL void ToolServer::listen(const std::filesystem::path& path, uid_t user) {
    asio::local::stream_protocol::acceptor acceptor(state_->host.executor);
    net::listen_privately(acceptor, path, user, "the tool server");
    state_->listener->start(state_, std::move(acceptor));
}

IPYBOX_DECL std::string ToolServer::listen_tcp(const std::string& host, unsigned short port) {
    asio::ip::tcp::acceptor acceptor(state_->host.executor);
    const auto where = net::listen_on_loopback(acceptor, host, port, "the tool server");
    state_->listener->start(state_, std::move(acceptor));
    return "http://" + where;
}

IPYBOX_DECL void ToolServer::fit(std::size_t connections) { state_->listener->fit(connections); }

IPYBOX_DECL ToolServer::TlsAddress ToolServer::listen(const ToolListener& where) {
    const auto context = std::make_shared<asio::ssl::context>(asio::ssl::context::tls_server);
    auto address = load_certificate(*context, where);
    boost::system::error_code error;
    const asio::ip::tcp::endpoint endpoint(asio::ip::make_address(where.address, error),
                                           where.port);
    if (error)
        throw Error(errc::bad_config,
                    "tool_channel/listen: \"" + where.address + "\" is no IP address");
    asio::ip::tcp::acceptor acceptor(state_->host.executor);
    error = net::listen_at(acceptor, endpoint);
    if (error)
        throw Error(errc::io_error, "tool_channel/listen: cannot listen at " + where.address +
                                        " port " + std::to_string(where.port) + ": " +
                                        error.message());
    const auto port = where.name_port != 0 ? where.name_port : acceptor.local_endpoint().port();
    const bool v6 = where.name.find(':') != where.name.npos;
    address.url =
        "https://" + (v6 ? "[" + where.name + "]" : where.name) + ":" + std::to_string(port);
    state_->listener->start(state_, std::move(acceptor), context);
    return address;
}

IPYBOX_DECL void ToolServer::set_variables(Variables variables) {
    state_->define(std::move(variables));
}

IPYBOX_DECL awaitable<json::array> ToolServer::list_tools(std::string name) {
    auto state = state_;
    auto server = find(*state, name);
    co_await connect(state, server);
    co_return *server->tools;
}

IPYBOX_DECL const json::array& ToolServer::listed_tools(std::string_view name) const {
    return *find(*state_, name)->tools;
}

IPYBOX_DECL void ToolServer::begin_execution(std::string id) {
    state_->execution = id.empty() ? detail::random_hex(8) : std::move(id);
    state_->active = true;
}

IPYBOX_DECL const std::string& ToolServer::execution() const noexcept { return state_->execution; }

IPYBOX_DECL void ToolServer::set_policy(std::shared_ptr<ApprovalPolicy> policy) {
    if (!policy) throw Error(errc::bad_argument, "set_policy() needs a policy");
    state_->policy = std::move(policy);
}

IPYBOX_DECL void ToolServer::end_execution() { state_->withdraw(); }

IPYBOX_DECL ToolServer::Alone::Alone(asio::any_io_executor executor, PluginRegistry& registry,
                                     const ToolServerOptions& options) {
    host.executor = std::move(executor);
    host.logger = options.logger;
    host.ask = [approvers = options.approvers](ToolCall call) {
        return first_answer(approvers, std::move(call));
    };
    sandbox = registry.make<Sandbox>("none", host, json::object{});
    policy = registry.make<ApprovalPolicy>(options.approval_required ? "ask" : "allow", host,
                                           json::object{});
}

IPYBOX_DECL ToolServer::ToolServer(const std::shared_ptr<Alone>& alone, PluginRegistry& registry,
                                   ToolServerOptions options)
    : ToolServer(registry, alone->host, *alone->sandbox, *alone->policy,
                 for_use_alone(alone, std::move(options))) {}

IPYBOX_DECL ToolServerOptions ToolServer::for_use_alone(const std::shared_ptr<Alone>& alone,
                                                        ToolServerOptions options) {
    options.background_calls = true;
    options.owner = alone;
    return options;
}

IPYBOX_DECL ToolServer::Impl::Impl(PluginRegistry& r, Host& h, Sandbox& s, ApprovalPolicy& p,
                                   ToolServerOptions o)
    : registry(r),
      host(h),
      sandbox(s),
      policy(std::shared_ptr<void>(), &p),  // its owner keeps it
      options(std::move(o)),
      withdrawn(h.executor) {
    options.token = net::checked_token(std::move(options.token), "the tool server");
    options.control_token = net::checked_token(std::move(options.control_token), "the tool server");
    if (options.token == options.control_token)
        throw Error(errc::bad_argument, "the tool server's token and control_token must differ");
    std::error_code ignored;
    auto& workspace = options.workspace;
    workspace =
        std::filesystem::absolute(workspace.empty() ? "." : workspace, ignored).lexically_normal();
    if (!workspace.has_filename() && workspace.has_relative_path())
        workspace = workspace.parent_path();
    define({});
    net::HttpLimits limits = net::limits_of(options, options.max_request);
    limits.crowded_timeout = options.crowded_timeout;
    listener =
        std::make_shared<net::HttpListener>(host.executor, "tool server", limits, host.logger);
}

IPYBOX_DECL net::HttpReply ToolServer::Impl::check(net::HttpPeer& peer,
                                                   const net::HttpServerRequest& head) {
    Reply reply = judge(*this, peer, head);
    if (reply.status == 200) return {};
    peer.keep_alive = false;
    return to_http(reply);
}

IPYBOX_DECL awaitable<bool> ToolServer::Impl::answer(net::HttpPeerPtr peer,
                                                     net::HttpServerRequest request) {
    return ToolServer::answer(this->shared_from_this(), std::move(peer), std::move(request));
}

IPYBOX_DECL net::HttpReply ToolServer::Impl::refusal(unsigned status, const std::string& why) {
    if (status == 413)
        return to_http(failure(why + "; pass less data, or a path to a file", nullptr, status));
    if (status == 503)
        return to_http(failure("too much data in tool calls at once; make fewer calls in parallel",
                               nullptr, status));
    return to_http(failure(why, nullptr, status));
}

IPYBOX_DECL void ToolServer::Impl::withdraw() {
    active = false;
    execution.clear();
    ++turn;
    withdrawn.notify();
}

IPYBOX_DECL void ToolServer::Impl::close() {
    closed = true;
    listener->close();
    withdraw();
    catalogue = nullptr;
    servers.clear();
}

IPYBOX_DECL ToolServer::Reply ToolServer::failure(std::string message, const char* type,
                                                  unsigned status) {
    Reply reply;
    reply.body["error"] = std::move(message);
    if (type != nullptr) reply.body["type"] = type;
    reply.status = status;
    return reply;
}

IPYBOX_DECL ToolServer::TlsAddress ToolServer::load_certificate(asio::ssl::context& context,
                                                                const ToolListener& where) {
    const auto refuse = [](const char* field, const std::filesystem::path& file,
                           const std::string& why) {
        throw Error(errc::bad_config,
                    std::string("tool_channel/") + field + ": " + file.string() + ": " + why);
    };
    auto* native = context.native_handle();
    SSL_CTX_set_min_proto_version(native, TLS1_2_VERSION);
    SSL_CTX_set_options(native, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_TICKET);
    SSL_CTX_set_num_tickets(native, 0);
    SSL_CTX_set_session_cache_mode(native, SSL_SESS_CACHE_OFF);
    boost::system::error_code error;
    // OpenSSL would ask the terminal.
    context.set_password_callback(
        [](std::size_t, asio::ssl::context::password_purpose) { return std::string(); }, error);
    context.use_certificate_chain_file(where.certificate.string(), error);
    if (error) refuse("certificate", where.certificate, error.message());
    context.use_private_key_file(where.key.string(), asio::ssl::context::pem, error);
    if (error)
        refuse("key", where.key,
               error.message() + " (a key without a passphrase is needed, in PEM)");
    X509* const own = SSL_CTX_get0_certificate(native);
    if (X509_cmp_current_time(X509_get0_notAfter(own)) < 0)
        refuse("certificate", where.certificate, "has expired");
    if (X509_check_host(own, where.name.c_str(), where.name.size(), 0, nullptr) != 1 &&
        X509_check_ip_asc(own, where.name.c_str(), 0) != 1)
        refuse("certificate", where.certificate,
               "is not made out to " + where.name + ", which \"advertise\" names");
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

IPYBOX_DECL ToolServer::Action ToolServer::action_of(const net::HttpServerRequest& head) {
    const std::string_view target = head.target();
    if (target == "/status") return Action::status;
    if (target == "/servers") return Action::register_server;
    return target == "/reset" ? Action::reset : Action::run;
}

IPYBOX_DECL ToolServer::Reply ToolServer::judge(const Impl& state, const net::HttpPeer& peer,
                                                const net::HttpServerRequest& head) {
    namespace http = boost::beast::http;
    const auto presented =
        [given = std::string_view(head[http::field::authorization])](const std::string& token) {
            const std::string expected = "Bearer " + token;
            return given.size() == expected.size() &&
                   CRYPTO_memcmp(given.data(), expected.data(), expected.size()) == 0;
        };
    const bool loopback = peer.port != 0 && !peer.tls;
    const bool controls = loopback && presented(state.options.control_token);
    if (!controls && !presented(state.options.token))
        return failure("this session's token is missing or wrong", nullptr, 401);
    const std::string_view target = head.target();
    const auto method = head.method();
    const auto action = action_of(head);
    const auto wanted = action == Action::run      ? http::verb::post
                        : action == Action::status ? http::verb::get
                                                   : http::verb::put;
    const bool exists = method == wanted && (action != Action::run || target == "/run");
    if (!loopback && (!exists || action != Action::run))
        return failure("only POST /run exists here", nullptr, 404);
    if (!exists)
        return failure("there are POST /run, GET /status, PUT /servers and PUT /reset", nullptr,
                       404);
    if (!controls && (action == Action::reset || action == Action::register_server))
        return failure(
            "this token is for calls only; " + std::string(target) + " takes the control token",
            nullptr, 403);
    const bool sized = head.count(http::field::content_length) > 0;
    if (!sized && (action == Action::run || head.count(http::field::transfer_encoding) > 0))
        return failure("the request has no Content-Length", nullptr, 411);
    return {};
}

IPYBOX_DECL awaitable<bool> ToolServer::answer(ImplPtr state, net::HttpPeerPtr peer,
                                               net::HttpServerRequest request) {
    const auto action = action_of(request);
    Reply reply;
    struct Told {
        ProgressPtr progress;
        ~Told() {
            if (progress) end();
        }
        void end() {
            progress->done = true;
            progress->changed.notify();
        }
    } told;
    if (action == Action::run && request.count("Ipybox-Progress") > 0) {
        told.progress = std::make_shared<Progress>(state->host.executor);
        asio::co_spawn(state->host.executor, tell(peer, told.progress), asio::detached);
    }
    auto work = action == Action::run
                    ? handle(state, std::move(request.body()), reply, told.progress)
                    : control(state, action, std::move(request.body()), reply);
    auto hang_up = watch(peer->socket);
    const bool handled = co_await ends_first(std::move(work), std::move(hang_up));
    if (!handled) co_return false;  // the kernel hung up: handle() was cancelled
    if (told.progress) {
        told.end();
        while (told.progress->telling) co_await told.progress->changed.wait();
    }
    auto text = render(*peer, to_http(reply));
    reply.body = json::object();
    if (!reserve(reply.memory, text.size())) text = render(*peer, to_http(too_much()));
    const bool written = co_await peer->write(std::move(text));
    co_return written && peer->keep_alive;
}

IPYBOX_DECL awaitable<void> ToolServer::watch(net::HttpSocket& socket) {
    for (;;) {
        const auto [error] = co_await socket.async_wait(asio::socket_base::wait_read, as_result);
        if (error || is_readable(socket.native_handle())) co_return;
    }
}

IPYBOX_DECL bool ToolServer::reserve(MemoryReservation& memory, std::size_t bytes) {
    constexpr std::size_t small = 16u << 10;
    return memory.resize(bytes > small ? bytes : 0);
}

IPYBOX_DECL net::HttpReply ToolServer::to_http(const Reply& reply) {
    net::HttpReply plain;
    plain.status = reply.status;
    plain.body = detail::write_json(reply.body);
    return plain;
}

IPYBOX_DECL awaitable<void> ToolServer::control(ImplPtr state, Action action, std::string body,
                                                Reply& reply) {
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

IPYBOX_DECL void ToolServer::register_by_request(Impl& state, const json::value& request) {
    const auto* object = request.if_object();
    const auto* name = object ? detail::find_string(*object, "server_name") : nullptr;
    const auto* params = object ? detail::object_of(*object, "server_params") : nullptr;
    if (!name || !params || object->size() != 2)
        throw Error(errc::bad_config,
                    "a registration is {\"server_name\": text, \"server_params\": object}");
    const std::string server(*name);
    auto checked = checked_params(server, *params);
    const auto known = state.servers.find(server);
    if (known == state.servers.end() || known->second->params != checked)
        register_in(state, server, std::move(checked));
}

IPYBOX_DECL awaitable<void> ToolServer::handle(ImplPtr state, std::string body, Reply& reply,
                                               ProgressPtr progress) {
    if (!state->active && !state->options.background_calls) {
        reply = failure(
            "no code is being executed: tools can be called while a cell runs, not after it",
            "inactive");
        co_return;
    }
    ServerPtr serving;
    auto work = call(state, std::move(body), reply, std::move(progress), serving);
    auto end = withdrawal(state, state->turn, serving);
    const bool answered = co_await ends_first(std::move(work), std::move(end));
    if (answered) co_return;
    if (serving && serving->removed) {
        reply = failure(unregistered_text(serving->name));
    } else {
        reply = failure("the execution ended before this call was answered", "withdrawn");
    }
}

IPYBOX_DECL std::string ToolServer::unregistered_text(const std::string& name) {
    return "MCP server " + name + " was unregistered before this call was answered";
}

IPYBOX_DECL awaitable<void> ToolServer::withdrawal(ImplPtr state, unsigned long turn,
                                                   const ServerPtr& serving) {
    for (bool over = false; !over;) {
        co_await state->withdrawn.wait();
        // Asked, because another co_await would throw: that costs too much on the way of every
        // call.
        const auto cancelled = co_await asio::this_coro::cancellation_state;
        over = state->turn != turn || (serving && serving->removed) ||
               cancelled.cancelled() != asio::cancellation_type::none;
    }
}

IPYBOX_DECL Span ToolServer::span_of(const Impl& state, const ToolCall& request, Span::Kind kind) {
    constexpr std::size_t longest = 128;
    const auto shown = [&state](std::string name) {
        name = state.secrets.hide(std::move(name));
        name.resize(detail::utf8_border(name, longest));
        return detail::printable(name);
    };
    Span span;
    span.kind = kind;
    span.id = kind == Span::Kind::call ? request.id : detail::random_hex(8);
    span.parent = kind == Span::Kind::call ? request.execution : request.id;
    span.root = request.execution.empty() ? request.id : request.execution;
    span.session = request.session;
    span.name = "call";  // of none that could be read
    if (!request.server.empty()) span.name = shown(request.server) + "." + shown(request.tool);
    return span;
}

IPYBOX_DECL awaitable<void> ToolServer::call(ImplPtr state, std::string body, Reply& reply,
                                             ProgressPtr progress, ServerPtr& serving) {
    ToolCall request;
    MemoryReservation memory(state->memory);
    std::string problem = parse_call(std::move(body), request, memory);
    request.session = state->options.session;
    if (problem.empty() && is_question(request)) {
        try {
            reply = answer_question(*state, request);
            if (!reserve(memory, 3 * detail::memory_size(reply.body))) reply = too_much();
            reply.memory = std::move(memory);
        } catch (const Error& error) {
            reply = failure(state->secrets.hide(error.detail()));
        }
        co_return;
    }
    if (state->options.shell_commands && request.server == own_name) {
        if (request.tool == "shell") request.origin = CallOrigin::shell;
        if (request.tool == "shell_magic") request.origin = CallOrigin::shell_magic;
    }
    request.id = detail::random_hex(8);
    request.execution = state->execution;
    std::optional<OpenSpan> span;
    if (state->options.spans)
        span.emplace(state->options.spans, span_of(*state, request, Span::Kind::call));
    AuditedCall audit(state->options.audit, request, state->secrets, state->options.watcher,
                      state->host.logger);
    try {
        if (problem.empty()) {
            reply = co_await run(state, std::move(request), audit, std::move(progress), serving);
            if (span) span->end(audit.outcome());
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
    // Its connection may tell of its end before anybody else does.
    if (serving && serving->removed) problem = unregistered_text(serving->name);
    const auto fate = co_await asio::this_coro::cancellation_state;
    if (fate.cancelled() != asio::cancellation_type::none) co_return;  // withdrawn
    audit.failed(problem);
    if (span) span->end(audit.outcome());
    reply = failure(std::move(problem));
}

IPYBOX_DECL awaitable<Decision> ToolServer::judge(ImplPtr state, ToolCall request) {
    std::optional<OpenSpan> span;
    if (state->options.spans)
        span.emplace(state->options.spans, span_of(*state, request, Span::Kind::approval));
    const auto policy = state->policy;  // another may take its place meanwhile
    Decision decision =
        co_await approve(*policy, std::move(request), state->options.approval_timeout);
    if (span)
        span->end(decision.expired                     ? "expired"
                  : decision.verdict == Verdict::allow ? "allowed"
                                                       : "denied");
    co_return decision;
}

IPYBOX_DECL awaitable<Decision> ToolServer::judge_with_edits(ImplPtr state, ServerPtr server,
                                                             ToolCall& request,
                                                             AuditedCall& audit) {
    request.agreed_by.clear();
    const auto edited = std::make_shared<EditedArguments>();
    request.edited = edited;
    Decision decision = co_await judge(state, request);
    request.edited = nullptr;
    if (decision.verdict != Verdict::allow || !edited->arguments) co_return decision;
    // A person's yes does not get past what the policy denies.
    request.set_arguments(*edited->arguments);
    audit.edited(request);
    describe(*server, request);
    request.agreed_by = decision.by.empty() ? "a person" : decision.by;
    co_return co_await judge(state, request);
}

IPYBOX_DECL std::optional<ToolServer::Reply> ToolServer::refusal_of(const Decision& decision,
                                                                    const std::string& call_name) {
    if (decision.expired)
        return failure("approval request for " + call_name + " expired: " + decision.reason,
                       "timeout");
    if (decision.verdict == Verdict::allow) return std::nullopt;
    const std::string why = decision.reason.empty() ? "" : ": " + decision.reason;
    return failure("approval request for " + call_name + " rejected" + why, "rejected");
}

IPYBOX_DECL awaitable<ToolServer::Reply> ToolServer::shell_command(ImplPtr state, ToolCall request,
                                                                   AuditedCall& audit) {
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

IPYBOX_DECL void ToolServer::describe(Server& server, ToolCall& request) {
    const auto found = server.by_name.find(request.tool);
    if (found == server.by_name.end()) {
        detail::NearestName nearest(request.tool);
        for (const auto& [name, other] : server.by_name) nearest.offer(name);
        auto text = "MCP server " + server.name + " has no tool \"" + request.tool + '"';
        if (!nearest.best().empty())
            text += "; did you mean \"" + std::string(nearest.best()) + "\"?";
        throw Error(errc::bad_argument, std::move(text));
    }
    Tool& tool = found->second;
    const auto& schema = tool.schema ? tool.schema->get_object() : *ToolCall::no_schema();
    if (tool.definition_hash.empty())
        tool.definition_hash =
            approval::definition_hash(schema, tool.description, tool.annotations);
    request.annotations = tool.annotations;
    request.description = tool.description;
    request.definition_hash = tool.definition_hash;
    request.server_identity = server.identity;
    request.server_tools = server.tools;
    request.input_schema = ToolCall::no_schema();
    if (!tool.schema) return;
    if (!tool.document) tool.document = std::make_unique<detail::SchemaDocument>(*tool.schema);
    detail::SchemaValidator validator(*tool.document);
    if (const auto problem = validator.problem(tool.document->root(), request.sent_arguments()))
        throw Error(errc::bad_argument,
                    "the arguments of " + request.tool + " do not fit its schema: " + *problem);
    request.input_schema = {tool.schema, &tool.schema->get_object()};
}

IPYBOX_DECL awaitable<ToolServer::Reply> ToolServer::run(ImplPtr state, ToolCall request,
                                                         AuditedCall& audit, ProgressPtr progress,
                                                         ServerPtr& serving) {
    if (request.origin != CallOrigin::mcp)
        co_return co_await shell_command(state, std::move(request), audit);
    auto server = find(*state, request.server);
    serving = server;
    co_await connect(state, server);
    describe(*server, request);
    // What is sent is what was judged: a tool that changed meanwhile is judged again, though not
    // forever.
    unsigned long judged = server->listing;
    Decision decision = co_await judge_with_edits(state, server, request, audit);
    for (int round = 1; decision.verdict == Verdict::allow; ++round) {
        const auto current = state->servers.find(request.server);
        if (current == state->servers.end() || current->second != server)
            throw Error(errc::bad_argument, "MCP server " + server->name +
                                                " was replaced while its call waited for approval");
        const bool ready =
            server->client && server->client->alive() && server->client->tools_current();
        if (!ready) co_await connect(state, server);
        if (server->listing == judged) break;
        judged = server->listing;
        const std::string definition = std::move(request.definition_hash);
        describe(*server, request);
        if (definition == request.definition_hash) break;
        if (round < 3) {
            decision = co_await judge_with_edits(state, server, request, audit);
            continue;
        }
        decision = Decision(Verdict::deny, "the tool changed whenever it was approved");
        decision.by = "tool server";
    }
    audit.decided(decision);
    auto refusal = refusal_of(decision, request.server + "." + request.tool);
    if (refusal) co_return std::move(*refusal);
    const std::string name = std::move(request.tool);
    json::object arguments =
        request.exact_arguments ? *request.exact_arguments : std::move(request.arguments);
    auto client = server->client;
    if (!client) throw Error(errc::bad_argument, "MCP server " + server->name + " was stopped");
    CallOptions options;
    options.idle_timeout = state->options.call_idle_timeout;
    options.total_timeout = state->options.call_timeout;
    if (progress || state->options.on_progress)
        options.on_progress = [state, progress, id = request.id](const CallProgress& report) {
            CallProgress shown = report;
            // A header that the kernel reads whole.
            shown.message = mcp::excerpt(state->secrets.hide(report.message), 4096);
            tell_host(*state, id, shown);
            if (!progress) return;
            progress->report = std::move(shown);
            progress->changed.notify();
        };
    CallResult result = co_await client->call_tool(name, std::move(arguments), std::move(options));
    const auto& structured = result.structured_content;
    audit.answered(result.is_error, result.content, structured ? &*structured : nullptr);
    const auto* reads = request.annotations.if_contains("readOnlyHint");
    const bool only_reads = reads && reads->is_bool() && reads->get_bool();
    if (state->options.after_call && !only_reads) co_await state->options.after_call();
    co_return answer(*state, std::move(result));
}

IPYBOX_DECL ToolServer::Reply ToolServer::answer(const Impl& state, CallResult result) {
    bool only_text = true;
    std::string text;
    for (const auto& entry : result.content) {
        const auto* block = entry.if_object();
        if (!block || detail::string_of(*block, "type") != "text") {
            only_text = false;
            continue;
        }
        if (!text.empty()) text += '\n';
        text += detail::string_of(*block, "text");
    }
    // Some servers say null where they mean nothing.
    const bool structured = result.structured_content &&
                            (!result.structured_content->is_null() || result.content.empty());
    Reply reply;
    if (result.is_error) {
        reply = failure(state.secrets.hide(text.empty() ? "the tool failed without saying why"
                                                        : std::move(text)));
    } else if (!structured && only_text) {
        reply.body["result"] = std::move(text);
    }
    if (structured) reply.body["result"] = std::move(*result.structured_content);
    if (!only_text) reply.body["content"] = std::move(result.content);
    state.secrets.hide_in_result(reply.body);
    return reply;
}

IPYBOX_DECL std::string ToolServer::parse_call(std::string body, ToolCall& request,
                                               MemoryReservation& memory) {
    // Text that is no Unicode is repaired before anybody judges the call, so that what is shown is
    // what is sent.
    auto read = detail::read_json(body, 128, detail::default_max_decoded);
    body = std::string();
    if (read.problem == detail::costs_too_much)
        return "the arguments take more than the " +
               std::to_string(detail::default_max_decoded >> 20) +
               " MiB of memory that those of one call may; pass less data, or a path to a file";
    if (!read.problem.empty()) return "the request " + read.problem;
    auto* object = read.value.if_object();
    if (!object) return "the request must be an object";
    for (const auto& entry : *object)
        if (entry.key() != "server_name" && entry.key() != "tool_name" &&
            entry.key() != "tool_args" && entry.key() != "line")
            return "unknown key \"" + std::string(entry.key()) +
                   "\"; accepted: server_name, tool_name, tool_args, line";
    for (const char* key : {"server_name", "tool_name"})
        if (!detail::find_string(*object, key)) return std::string(key) + " must be a string";
    auto* arguments = object->if_contains("tool_args");
    if (!arguments || !arguments->is_object()) return "tool_args must be an object";
    constexpr std::int64_t last_line = 1'000'000'000;
    if (const auto* line = object->if_contains("line")) {
        if (!line->is_int64() || line->get_int64() < 1 || line->get_int64() > last_line)
            return "line must be an integer from 1 to " + std::to_string(last_line);
        request.line = static_cast<std::uint32_t>(line->get_int64());
    }
    request.server = object->at("server_name").get_string();
    request.tool = object->at("tool_name").get_string();
    // Once for whoever is asked, once for the server; once more with all digits, if there are more
    // than in doubles.
    const std::size_t copies = detail::holds_exact(*arguments) ? 3 : 2;
    if (!reserve(memory, copies * detail::memory_size(*arguments)))
        return "too much data in tool calls at once; make fewer calls in parallel, or pass less";
    request.set_arguments(std::move(arguments->get_object()));
    return {};
}

}  // namespace ipybox
