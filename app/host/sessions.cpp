// Sessions, and executions in them.
#include "answers.hpp"
#include "host.hpp"
#include "options.hpp"

namespace ipybox::app::host {

ExecutionWanted execution_of(const json::object& params) {
    ExecutionWanted wanted;
    wanted.code = text_of(params, "code");
    wanted.how.timeout = seconds_of(params, "timeout", 120);
    wanted.how.chunks = flag_of(params, "chunks");
    wanted.how.displays = flag_of(params, "displays");
    wanted.how.text =
        text_of(params, "text", "whole") == "none" ? ResultText::none : ResultText::whole;
    wanted.how.check = flag_of(params, "check");
    wanted.how.silent = flag_of(params, "silent");
    wanted.how.measure = flag_of(params, "measure");
    wanted.streams = flag_of(params, "streams");
    return wanted;
}

namespace {

// Returns when more of the execution's output may be sent.
awaitable<void> may_send(HostPtr host, RequestPtr request) {
    while (request->credit && *request->credit <= 0 && !request->cancelled && !host->ending)
        co_await request->credited->wait();
    co_await Outbox::room(host->outbox);
}

void spend(Request& request, std::size_t bytes) {
    if (request.credit) *request.credit -= static_cast<std::int64_t>(bytes);
}

}  // namespace

void begin_execution(HostState& host, Request& request) {
    request.interrupt = [] {};
    if (request.params.contains("window")) {
        request.credit = static_cast<std::int64_t>(count_of(request.params, "window", 0));
        request.credited = std::make_unique<Event>(host.executor);
    }
    request.params.clear();
}

awaitable<json::object> run_to_result(HostPtr host, RequestPtr request,
                                      std::shared_ptr<CodeExecutor::Execution> execution,
                                      bool streams) {
    request->interrupt = [weak = std::weak_ptr(execution), credited = request->credited.get()] {
        if (const auto running = weak.lock()) running->cancel();
        if (credited != nullptr) credited->notify();
    };
    if (request->cancelled) execution->cancel();
    json::object started;
    started.emplace("request", request->id);
    started.emplace("execution", execution->id());
    host->notify("execution/started", std::move(started), Outbox::Urgency::soon);
    for (;;) {
        // What the client does not read waits in the kernel.
        co_await may_send(host, request);
        auto event = co_await execution->next();
        if (!event) throw Error(errc::cancelled, "the execution ended without a result");
        if (auto* chunk = std::get_if<CodeExecutionChunk>(&*event)) {
            json::object params;
            params.emplace("request", request->id);
            params.emplace("text", chunk->text);
            params.emplace("stderr", chunk->is_stderr);
            spend(*request, chunk->text.size());
            host->notify("execution/output", std::move(params));
        } else if (auto* display = std::get_if<CodeExecutionDisplay>(&*event)) {
            auto params = display_json(std::move(*display));
            params.emplace("request", request->id);
            spend(*request, mcp::text_size(params));
            host->notify("execution/display", std::move(params));
        } else if (auto* input = std::get_if<InputRequest>(&*event)) {
            ask_for_input(host, request, std::move(*input));
        } else if (auto* result = std::get_if<CodeExecutionResult>(&*event)) {
            co_return result_json(std::move(*result), streams);
        }
    }
}

namespace {

json::object status_json(const Session& session) {
    const auto& code = *session.code;
    json::object status;
    status.emplace("alive", code.kernel_alive());
    status.emplace("kernel_id", code.kernel_id());
    status.emplace("request", session.running ? session.running->id : json::value());
    status.emplace("workspace", code.workspace().string());
    status.emplace("shares_files", code.shares_files());
    return status;
}

json::object create_session(HostState& host, Request& request) {
    const auto session = std::make_shared<Session>();
    session->handle = host.next_handle('s');
    CodeExecutorOptions options;
    options.logger = host.logger_for(session->handle);
    const std::weak_ptr<HostState> weak = host.weak_from_this();
    auto given = take_object(request.params, "options");
    const bool spans = flag_of(given, "spans");
    set_options(options, std::move(given),
                [weak](const std::string& file, const std::string& head) {
                    if (const auto live = weak.lock())
                        live->offer("audit/head", head_json(file, head));
                });
    options.approvers.push_back([weak, handle = session->handle](ToolCall call) {
        return ask_client(weak, handle, {}, std::move(call));
    });
    options.on_violation = [weak, handle = session->handle](const Violation& violation) {
        const auto live = weak.lock();
        if (!live) return;
        auto params = only("session", handle);
        params.emplace("violation", violation_json(violation));
        live->offer("session/violation", std::move(params));
    };
    options.on_progress = [weak, handle = session->handle](const std::string& call,
                                                           const CallProgress& report) {
        if (const auto live = weak.lock())
            live->offer("call/progress", progress_json(handle, {}, call, report));
    };
    if (spans)
        options.on_span = [weak, handle = session->handle](const Span& span) {
            const auto live = weak.lock();
            if (!live) return;
            auto params = only("session", handle);
            params.emplace("span", span_json(span));
            live->offer("session/span", std::move(params));
        };
    session->code =
        std::make_unique<CodeExecutor>(host.executor, host.registry, std::move(options));
    json::object result;
    result.emplace("session", session->handle);
    result.emplace("workspace", session->code->workspace().string());
    result.emplace("shares_files", session->code->shares_files());
    host.sessions.emplace(session->handle, session);
    return result;
}

awaitable<json::object> start_session(HostPtr host, RequestPtr request) {
    const auto session = host->session_of(*request);
    co_await session->code->start();
    co_return status_json(*session);
}

awaitable<json::object> stop_session(HostPtr host, RequestPtr request) {
    const auto session = host->session_of(*request);
    co_await session->code->stop();
    co_return json::object();
}

awaitable<json::object> reset_session(HostPtr host, RequestPtr request) {
    const auto session = host->session_of(*request);
    co_await session->code->reset();
    co_return status_json(*session);
}

awaitable<json::object> close_session(HostPtr host, RequestPtr request) {
    const auto handle = text_of(request->params, "session");
    if (!host->sessions.contains(handle) && HostState::was_given(handle, 's', host->made))
        co_return json::object();
    const auto session = host->session_of(*request);
    for (const auto& [path, bytes] : session->uploads) host->release(bytes.size());
    session->uploads.clear();
    host->sessions.erase(session->handle);
    co_await session->code->stop();
    co_return json::object();
}

json::object status_of_session(HostState& host, Request& request) {
    return status_json(*host.session_of(request));
}

json::object set_session_policy(HostState& host, Request& request) {
    host.session_of(request)->code->set_policy(
        request.params.at("approval"), text_of(request.params, "approval_name", "approval"));
    return {};
}

// What a session runs, as long as it does.
struct Running {
    Running(SessionPtr s, const RequestPtr& request, bool approve_all) : session(std::move(s)) {
        // CodeExecutor refuses a second one.
        if (session->running) return;
        session->running = mine = request;
        session->approve_all = approve_all;
    }
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;
    ~Running() {
        if (mine) session->running = nullptr;
    }
    SessionPtr session;
    RequestPtr mine;
};

awaitable<json::object> execute_in_session(HostPtr host, RequestPtr request) {
    const auto session = host->session_of(*request);
    auto wanted = execution_of(request->params);
    const Running running(session, request, text_of(request->params, "approve", "ask") == "all");
    begin_execution(*host, *request);
    auto begun = co_await session->code->stream(std::move(wanted.code), wanted.how);
    auto execution = std::make_shared<CodeExecutor::Execution>(std::move(begun));
    co_return co_await run_to_result(host, request, std::move(execution), wanted.streams);
}

json::object cancel_execution(HostState& host, Request& request) {
    host.session_of(request)->code->cancel();
    return {};
}

awaitable<json::object> list_variables(HostPtr host, RequestPtr request) {
    const auto session = host->session_of(*request);
    const auto found = co_await session->code->variables();
    co_return variables_json(found);
}

awaitable<json::object> complete_in_session(HostPtr host, RequestPtr request) {
    const auto session = host->session_of(*request);
    auto code = text_of(request->params, "code");
    const auto found = co_await session->code->complete(std::move(code));
    co_return completions_json(found);
}

json::object register_in_session(HostState& host, Request& request) {
    const auto session = host.session_of(request);
    const auto params = take_object(request.params, "params");
    session->code->register_server(text_of(request.params, "name"), params);
    return {};
}

awaitable<json::object> add_to_session(HostPtr host, RequestPtr request) {
    const auto session = host->session_of(*request);
    auto params = take_object(request->params, "params");
    auto name = text_of(request->params, "name");
    const auto root = text_of(request->params, "root_dir", "mcptools");
    const auto modules =
        co_await session->code->add_server(std::move(name), std::move(params), root);
    co_return only("modules", texts_json(modules));
}

awaitable<json::object> unregister_in_session(HostPtr host, RequestPtr request) {
    const auto session = host->session_of(*request);
    auto name = text_of(request->params, "name");
    co_await session->code->unregister_server(std::move(name));
    co_return json::object();
}

json::object servers_of_session(HostState& host, Request& request) {
    return servers_json(host.session_of(request)->code->servers());
}

awaitable<json::object> tools_of_session(HostPtr host, RequestPtr request) {
    const auto session = host->session_of(*request);
    auto name = text_of(request->params, "name");
    auto tools = co_await session->code->list_tools(std::move(name));
    co_return tools_json(std::move(tools));
}

json::object search_session(HostState& host, Request& request) {
    const auto& params = request.params;
    return only("text", host.session_of(request)->code->search_tools(
                            text_of(params, "query"), count_of(params, "limit", 5),
                            flag_of(params, "everything")));
}

json::object describe_for_session(HostState& host, Request& request) {
    return only("text",
                host.session_of(request)->code->describe_tool(text_of(request.params, "name")));
}

json::object stubs_of_session(HostState& host, Request& request) {
    return only("text",
                host.session_of(request)->code->list_stubs(text_of(request.params, "name")));
}

awaitable<json::object> install_in_session(HostPtr host, RequestPtr request) {
    const auto session = host->session_of(*request);
    auto package = text_of(request->params, "package");
    const auto timeout = seconds_of(request->params, "timeout", 300);
    const auto said = co_await session->code->install_package(std::move(package), timeout);
    co_return only("text", said);
}

}  // namespace

Methods session_methods() {
    return {{"session/create", create_session},
            {"session/start", nullptr, start_session},
            {"session/stop", nullptr, stop_session},
            {"session/reset", nullptr, reset_session},
            {"session/close", nullptr, close_session},
            {"session/status", status_of_session},
            {"session/set_policy", set_session_policy},
            {"session/execute", nullptr, execute_in_session},
            {"execution/cancel", cancel_execution},
            {"session/variables", nullptr, list_variables},
            {"session/complete", nullptr, complete_in_session},
            {"session/register_server", register_in_session},
            {"session/add_server", nullptr, add_to_session},
            {"session/unregister_server", nullptr, unregister_in_session},
            {"session/servers", servers_of_session},
            {"session/list_tools", nullptr, tools_of_session},
            {"session/search_tools", search_session},
            {"session/describe_tool", describe_for_session},
            {"session/stubs", stubs_of_session},
            {"session/install_package", nullptr, install_in_session}};
}

}  // namespace ipybox::app::host
