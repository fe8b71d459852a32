#pragma once
#include <ipybox/mcp/client.hpp>

#include <ipybox/compilation.hpp>

namespace ipybox {

// ---- what the server sends ----
IPYBOX_DECL awaitable<void> McpClient::read(ImplPtr state) {
    struct Abandon {
        Impl* state;
        ~Abandon() {
            if (state != nullptr) state->abandon();
        }
    };
    Abandon abandon{state.get()};
    std::exception_ptr failure;
    try {
        for (;;) {
            auto message = co_await state->transport->receive();
            dispatch(state, std::move(message));
        }
    } catch (const std::exception&) {
        failure = std::current_exception();
    }
    abandon.state = nullptr;
    state->fail(translate(state, failure));
}

// What the parameters of a request take of the memory that all share while it is answered; small
// ones, of which there are few, nothing.
IPYBOX_DECL std::size_t McpClient::costs(const json::object& params) {
    const auto size = detail::memory_size(params);
    return size > (std::size_t{16} << 10) ? size : 0;
}

IPYBOX_DECL void McpClient::dispatch(const ImplPtr& state, json::object message) {
    using Kind = mcp::RpcMessage::Kind;
    // Some servers write out the one of the two that they do not use: a fourth member.
    for (const auto& [used, unused] :
         {std::pair("result", "error"), std::pair("error", "result")}) {
        if (message.size() < 4) break;
        const json::value* empty = message.if_contains(unused);
        if (empty != nullptr && empty->is_null() && message.contains(used)) message.erase(unused);
    }
    const auto rpc = mcp::classify(message);
    // Callbacks of applications know no other numbers.
    if (rpc.body != nullptr && !(rpc.kind == Kind::result && state->options.exact_numbers))
        detail::round_numbers(*rpc.body);
    if (rpc.kind == Kind::notification || rpc.kind == Kind::request) {
        json::object params;
        if (rpc.body != nullptr && rpc.body->is_object())
            params = std::move(rpc.body->get_object());
        if (rpc.kind == Kind::notification) {
            notified(state, rpc.method, params);
        } else if (MemoryReservation memory;
                   state->answering < max_answering && memory.resize(costs(params))) {
            ++state->answering;
            spawn(state, answer(state, std::move(*rpc.id), std::string(rpc.method),
                                std::move(params), std::move(memory)));
        } else {
            state->log(LogLevel::warning,
                       "sends more requests than it takes answers: one is dropped");
        }
        return;
    }
    const auto id = mcp::integer_of(rpc.id);
    const auto found = id ? state->pending.find(*id) : state->pending.end();
    if (found == state->pending.end() || found->second->done()) {
        if (rpc.kind == Kind::malformed) {
            state->log(LogLevel::warning, std::string("sent a malformed message: ") + rpc.problem);
        } else {
            state->log(LogLevel::debug, "sent an answer nobody waits for");
        }
        return;
    }
    const PendingPtr pending = found->second;
    if (rpc.kind == Kind::malformed) {
        pending->fail(state->error(errc::mcp_protocol,
                                   std::string("sent a malformed answer: ") + rpc.problem));
    } else {
        pending->reply = std::move(message);
        try {
            pending->wait.wake_now();
        } catch (...) {
            // Of whatever the caller's coroutine ends in: not the reader's business.
            asio::post(state->executor,
                       [thrown = std::current_exception()] { std::rethrow_exception(thrown); });
        }
    }
}

IPYBOX_DECL void McpClient::notified(const ImplPtr& state, std::string_view method,
                                     const json::object& params) {
    try {
        if (method == "notifications/progress") {
            progressed(state, params);
        } else if (method == "notifications/message") {
            logged(state, params);
        } else if (method == "notifications/tools/list_changed") {
            tools_changed(state);
        } else if (method == "notifications/subscriptions/acknowledged") {
            acknowledged(state, params);
        } else {
            if (method == "notifications/elicitation/complete") {
                const auto found = state->elicitations.find(
                    std::string(detail::string_of(params, "elicitationId")));
                if (found != state->elicitations.end()) found->second = true;
                state->elicited.notify();
            }
            // A copy: the callback may destroy the client.
            if (const auto told = state->options.on_notification; told && !state->closed)
                told(std::string(method), params);
        }
    } catch (const std::exception& error) {
        state->log(LogLevel::error, std::string("a callback failed: ") + error.what());
    }
}

IPYBOX_DECL void McpClient::acknowledged(const ImplPtr& state, const json::object& params) {
    const auto* meta = detail::object_of(params, "_meta");
    const auto id = meta != nullptr ? mcp::integer_of(meta->if_contains(detail::meta_subscription))
                                    : std::nullopt;
    for (const auto& [uri, subscription] : state->subscriptions) {
        if (!id || !subscription->pending || subscription->pending->id != *id) continue;
        const auto* agreed = detail::object_of(params, "notifications");
        const char* wanted = uri.empty() ? "toolsListChanged" : "resourceSubscriptions";
        const bool honoured = agreed != nullptr && agreed->contains(wanted);
        if (!honoured)
            subscription->failure = state->error(
                errc::mcp_error, "does not tell of changes of " +
                                     (uri.empty() ? "its tools" : mcp::excerpt(uri, max_text)));
        // Changes before now went unnoticed.
        if (uri.empty() && honoured && subscription->renewed) tools_changed(state);
        subscription->acknowledged = honoured;
        subscription->renewed = true;
        subscription->changed.notify();
    }
}

IPYBOX_DECL void McpClient::tools_changed(const ImplPtr& state) {
    state->tools_changed = true;
    if (state->announcing || !state->options.on_tools_changed) return;
    state->announcing = true;
    spawn(state, announce(state));
}

// Tells of changed tools when no more changes follow at once.
IPYBOX_DECL awaitable<void> McpClient::announce(ImplPtr state) {
    const auto soon = deadline_after(changes_delay);
    co_await sleep_until(soon);
    state->announcing = false;
    // A copy: the callback may destroy the client.
    const auto changed = state->options.on_tools_changed;
    if (state->closed || state->failure) co_return;
    try {
        changed();
    } catch (const std::exception& error) {
        state->log(LogLevel::error, std::string("a callback failed: ") + error.what());
    }
}

IPYBOX_DECL void McpClient::progressed(const ImplPtr& state, const json::object& params) {
    const auto token = mcp::integer_of(params.if_contains("progressToken"));
    const auto found = token ? state->pending.find(*token) : state->pending.end();
    if (found == state->pending.end() || found->second->done()) return;
    const PendingPtr pending = found->second;
    // The wait notices when its timer expires: no timer is touched here.
    pending->idle_deadline = deadline_after(pending->limits.idle_timeout);
    if (!pending->limits.on_progress) return;
    const auto number = [&params](std::string_view key) -> std::optional<double> {
        const json::value* value = params.if_contains(key);
        if (value == nullptr || !value->is_number()) return std::nullopt;
        return value->to_number<double>();
    };
    CallProgress report;
    report.progress = number("progress").value_or(0);
    report.total = number("total");
    report.message = mcp::excerpt(detail::string_of(params, "message"), max_text);
    pending->limits.on_progress(report);
}

IPYBOX_DECL void McpClient::logged(const ImplPtr& state, const json::object& params) {
    const auto level = detail::string_of(params, "level");
    LogLevel at = LogLevel::debug;
    if (level == "info" || level == "notice") at = LogLevel::info;
    if (level == "warning") at = LogLevel::warning;
    if (level == "error" || level == "critical" || level == "alert" || level == "emergency")
        at = LogLevel::error;
    const json::value* data = params.if_contains("data");
    if (data == nullptr) return;
    // A copy: the callback may destroy the client.
    if (const auto told = state->options.on_log; told && !state->closed) {
        McpLogMessage message;
        message.level = detail::log_severity(level) ? level : "debug";
        message.logger = mcp::excerpt(detail::string_of(params, "logger"), max_text);
        message.data = *data;
        told(message);
    }
    if (!state->options.logger.enabled(at)) return;
    std::string text(detail::string_of(params, "data"));
    if (!data->is_string() && mcp::text_size(*data) <= 64 * max_text)
        text = detail::write_json(*data);
    state->log(at, "log: " + mcp::excerpt(text, max_text));
}

// Whether the mode of an elicitation is one that was offered; forms need not be named.
IPYBOX_DECL bool McpClient::takes(const ImplPtr& state, const json::object& params) {
    const auto* offer = detail::object_of(state->options.capabilities, "elicitation");
    if (offer == nullptr) return true;
    const auto mode = detail::string_of(params, "mode");
    if (mode.empty() || mode == "form") return offer->empty() || offer->contains("form");
    return offer->contains(mode);
}

// The answer to a request of the server (2025-11-25 "Client features"; ping is a legacy one).
IPYBOX_DECL awaitable<McpClient::Response> McpClient::respond(ImplPtr state, std::string method,
                                                              json::object params) {
    const bool form = method == "elicitation/create";
    const bool sample = method == "sampling/createMessage";
    Response response;
    if (form && state->options.on_request && !takes(state, params)) {
        response.code = mcp::rpc_invalid_params;
        response.refusal = "this client does not take elicitations of this mode";
    } else if ((form || sample) && state->options.on_request) {
        try {
            auto handler = state->options.on_request;
            response.result = co_await handler(method, std::move(params));
        } catch (const Error& error) {
            response.refusal = error.detail();
        } catch (const std::exception& error) {
            response.refusal = error.what();
        }
        if (!response.refusal.empty() && sample) response.code = mcp::rpc_rejected_by_user;
    } else if (method == "roots/list") {
        response.result.emplace("roots", state->options.roots);
    } else if (form) {
        json::object meta;
        meta.emplace("ipybox/reason", "this client has nobody to ask");
        response.result.emplace("action", "decline");
        response.result.emplace("_meta", std::move(meta));
        state->log(LogLevel::info, "asked for input from the user: declined");
    } else if (sample) {
        response.code = mcp::rpc_rejected_by_user;
        response.refusal = "declined: this client has no model to sample from";
        state->log(LogLevel::info, "asked for a sample from a model: declined");
    } else if (method != "ping") {
        response.code = mcp::rpc_method_not_found;
        response.refusal = "this client has no method \"" + mcp::excerpt(method, 200) + "\"";
    }
    co_return response;
}

IPYBOX_DECL awaitable<void> McpClient::answer(ImplPtr state, json::value id, std::string method,
                                              json::object params,
                                              MemoryReservation /* until then */) {
    struct Answered {
        Impl& state;
        ~Answered() { --state.answering; }
    };
    const Answered answered{*state};
    Response response = co_await respond(state, std::move(method), std::move(params));
    json::object message;
    if (response.refusal.empty()) {
        message = mcp::rpc_result(std::move(id), std::move(response.result));
    } else {
        message = mcp::rpc_error(std::move(id), response.code, response.refusal);
    }
    co_await deliver(state, std::move(message), PendingPtr());
}

}  // namespace ipybox
