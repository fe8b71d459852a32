#pragma once
#include <ipybox/mcp/client.hpp>

#include <algorithm>
#include <exception>
#include <ipybox/compilation.hpp>
#include <set>

namespace ipybox {

// Whether requests may be answered with a task: the server knows the extension.
IPYBOX_DECL bool McpClient::has_tasks(const Impl& state) {
    const auto* extensions = detail::object_of(state.capabilities, "extensions");
    return state.era == McpEra::modern && extensions != nullptr &&
           extensions->contains(detail::extension_tasks);
}

IPYBOX_DECL Duration McpClient::poll_interval(const json::object& task) {
    const auto said = mcp::integer_of(task.if_contains("pollIntervalMs")).value_or(1000);
    const auto longest = std::chrono::duration_cast<std::chrono::milliseconds>(longest_poll);
    return std::clamp<Duration>(
        std::chrono::milliseconds(std::clamp<std::int64_t>(said, 0, longest.count())),
        shortest_poll, longest_poll);
}

// A server goes on with its task, for which nobody waits, unless it is told.
IPYBOX_DECL void McpClient::withdraw_task(const ImplPtr& state, const std::string& id) {
    json::object params;
    params.emplace("taskId", id);
    const auto pending = start(state, "tasks/cancel", std::move(params), CallOptions());
    state->pending.erase(pending->id);
}

IPYBOX_DECL awaitable<void> McpClient::wait_for_task(ImplPtr state, Clock::time_point until,
                                                     std::string what) {
    while (!state->failure && Clock::now() < until) {
        co_await state->elicited.wait(until);  // notified when the client fails
        const auto cancellation = co_await asio::this_coro::cancellation_state;
        if (cancellation.cancelled() != asio::cancellation_type::none)
            throw state->error(errc::cancelled, what + " was withdrawn");
    }
    if (state->failure) throw *state->failure;
}

// The server's word on how far a task is: the protocol has no other report of it.
IPYBOX_DECL void McpClient::report_task(const ImplPtr& state, const json::object& task,
                                        const CallOptions& limits, CallProgress& last) {
    const auto message = mcp::excerpt(detail::string_of(task, "statusMessage"), max_text);
    if (message.empty() || message == last.message) return;
    last.message = message;
    ++last.progress;
    if (!limits.on_progress) return;
    try {
        limits.on_progress(last);
    } catch (const std::exception& error) {
        state->log(LogLevel::error, std::string("a callback failed: ") + error.what());
    }
}

// What tasks/get says of a task. An answer that is lost on the way is asked for again.
IPYBOX_DECL awaitable<json::object> McpClient::poll(ImplPtr state, std::string id,
                                                    CallOptions limits,
                                                    Clock::time_point total_deadline,
                                                    std::string what) {
    for (int lost = 0;; ++lost) {
        json::object params;
        params.emplace("taskId", id);
        std::string method = "tasks/get";
        auto pending =
            co_await answered(state, method, std::move(params), limits, total_deadline, what);
        const bool again = pending->failure && pending->failure->code() == errc::mcp_connection &&
                           !state->failure && lost < max_lost_polls;
        if (!again) {
            auto task = result_of(state, *pending, what);
            if (detail::string_of(task, "taskId") != id)
                throw state->error(errc::mcp_protocol,
                                   what + " is a task, and the server tells of another one");
            co_return task;
        }
        const auto soon = std::min(deadline_after(longest_poll / 60), total_deadline);
        co_await wait_for_task(state, soon, what);
    }
}

// Has new questions of a task answered. The server may repeat those it has answers to.
IPYBOX_DECL awaitable<bool> McpClient::answer_task(ImplPtr state, json::object task,
                                                   FollowedTask& followed, CallOptions limits,
                                                   Clock::time_point total_deadline,
                                                   std::string what) {
    const auto* asked = detail::object_of(task, "inputRequests");
    if (asked == nullptr)
        throw state->error(errc::mcp_protocol, what + " asks for input, but not for which");
    json::object requests;
    for (const auto& entry : *asked)
        if (followed.answered.insert(std::string(entry.key())).second)
            requests.emplace(entry.key(), entry.value());
    if (followed.answered.size() > max_inputs * max_rounds)
        throw state->error(errc::mcp_error, what + " asks for input again and again: given up");
    if (requests.empty()) co_return false;
    json::object responses;
    std::optional<Error> failure;
    auto work = fill_in(state, std::move(requests), responses, failure, what);
    auto limit = sleep_until(total_deadline);
    const bool in_time = co_await ends_first(std::move(work), std::move(limit));
    const auto cancellation = co_await asio::this_coro::cancellation_state;
    if (state->failure) throw *state->failure;
    if (cancellation.cancelled() != asio::cancellation_type::none)
        throw state->error(errc::cancelled, what + " was withdrawn");
    if (!in_time)
        throw state->error(
            errc::timed_out,
            what + " got no input within " + seconds(limits.total_timeout) + " (absolute timeout)");
    if (failure) throw *failure;
    json::object params;
    params.emplace("taskId", followed.id);
    params.emplace("inputResponses", std::move(responses));
    std::string method = "tasks/update";
    auto pending =
        co_await answered(state, method, std::move(params), limits, total_deadline, what);
    result_of(state, *pending, what);
    co_return true;
}

// The result of a request that was answered with a task, within the limits of that request; each
// answer about the task is a sign of life.
IPYBOX_DECL awaitable<json::object> McpClient::follow_task(ImplPtr state, json::object task,
                                                           CallOptions limits,
                                                           Clock::time_point total_deadline,
                                                           std::string what) {
    FollowedTask followed;
    followed.id = detail::string_of(task, "taskId");
    if (followed.id.empty() || followed.id.size() > max_task_id)
        throw state->error(errc::mcp_protocol,
                           what + " returned a task without an id, or with one of more than " +
                               std::to_string(max_task_id) + " bytes");
    std::exception_ptr failure;
    try {
        auto result = co_await poll_to_end(state, std::move(task), followed, std::move(limits),
                                           total_deadline, what);
        co_return result;
    } catch (const std::exception&) {
        failure = std::current_exception();
    }
    if (!followed.ended && !state->failure) withdraw_task(state, followed.id);
    std::rethrow_exception(failure);
}

IPYBOX_DECL awaitable<json::object> McpClient::poll_to_end(ImplPtr state, json::object task,
                                                           FollowedTask& followed,
                                                           CallOptions limits,
                                                           Clock::time_point total_deadline,
                                                           std::string what) {
    CallOptions each = limits;
    each.on_progress = nullptr;
    CallProgress last;
    Duration pause = poll_interval(task);
    report_task(state, task, limits, last);
    for (;;) {
        const auto until = std::min(deadline_after(pause), total_deadline);
        co_await wait_for_task(state, until, what);
        if (Clock::now() >= total_deadline)
            throw state->error(errc::timed_out, what + " took longer than " +
                                                    seconds(limits.total_timeout) +
                                                    " (absolute timeout)");
        task = co_await poll(state, followed.id, each, total_deadline, what);
        pause = poll_interval(task);
        const std::string status(detail::string_of(task, "status"));
        if (status == "working") {
            report_task(state, task, limits, last);
        } else if (status == "input_required") {
            const bool told =
                co_await answer_task(state, task, followed, limits, total_deadline, what);
            if (told) pause = shortest_poll;
        } else {
            followed.ended = status == "completed" || status == "failed" || status == "cancelled";
            co_return outcome_of(state, task, what);
        }
    }
}

IPYBOX_DECL json::object McpClient::outcome_of(const ImplPtr& state, json::object& task,
                                               const std::string& what) {
    const auto status = detail::string_of(task, "status");
    if (status == "completed") {
        json::value* result = task.if_contains("result");
        if (result == nullptr || !result->is_object())
            throw state->error(errc::mcp_protocol, what + " is a task that ended without a result");
        const auto type = detail::string_of(result->get_object(), "resultType");
        if (!type.empty() && type != "complete")
            throw state->error(errc::mcp_protocol,
                               what + " is a task whose result has the type \"" +
                                   mcp::excerpt(type, 80) + "\", which has no place there");
        return std::move(result->get_object());
    }
    if (status == "failed") {
        const auto* error = detail::object_of(task, "error");
        const auto code = mcp::integer_of(error != nullptr ? error->if_contains("code") : nullptr);
        const auto why =
            error != nullptr ? detail::string_of(*error, "message") : std::string_view();
        throw state->error(errc::mcp_error,
                           what + " failed: " + mcp::excerpt(why, max_text) +
                               (code ? " (code " + std::to_string(*code) + ")" : std::string()));
    }
    if (status == "cancelled")
        throw state->error(errc::mcp_error, what + " was cancelled by the server");
    throw state->error(errc::mcp_protocol, what + " is a task in the state \"" +
                                               mcp::excerpt(status, 80) + "\", which there is not");
}

}  // namespace ipybox
