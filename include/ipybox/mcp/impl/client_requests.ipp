#pragma once
#include <ipybox/mcp/client.hpp>

#include <ipybox/compilation.hpp>
#include <ipybox/mcp/detail/header_parameters.hpp>
#include <set>

namespace ipybox {

IPYBOX_DECL awaitable<void> McpClient::Wait::begin() {
    auto start = [this](Handler handler) { hold(std::move(handler)); };
    co_await asio::async_initiate<const asio::use_awaitable_t<>, void()>(std::move(start),
                                                                         asio::use_awaitable);
    // It names us, who may be gone when the coroutine is cancelled elsewhere.
    slot_.clear();
}

IPYBOX_DECL void McpClient::Wait::hold(Handler handler) {
    slot_ = asio::get_associated_cancellation_slot(handler);
    if (slot_.is_connected()) slot_.assign([this](asio::cancellation_type) { wake(); });
    handler_.emplace(std::move(handler));
}

IPYBOX_DECL std::optional<McpClient::Wait::Handler> McpClient::Wait::release() {
    auto waiting = std::move(handler_);
    handler_.reset();
    return waiting;
}

IPYBOX_DECL void McpClient::Pending::fail(const Error& error) {
    if (done()) return;
    failure = error;
    wait.wake();
}

// ---- requests ----

// Sends a request without waiting for its answer; the caller forgets it in time.
IPYBOX_DECL McpClient::PendingPtr McpClient::start(const ImplPtr& state, std::string_view method,
                                                   json::object params, CallOptions limits) {
    auto pending = std::make_shared<Pending>();
    pending->client = state;
    pending->id = ++state->last_id;
    pending->limits = std::move(limits);
    if (state->era == McpEra::modern) {
        auto& meta = params["_meta"];
        if (!meta.is_object()) meta.emplace_object();
        auto& entries = meta.get_object();
        entries[detail::meta_version] = detail::mcp_modern_version;
        entries[detail::meta_capabilities] = offered(state);
        entries[detail::meta_client_info] = client_info(state);
        if (state->capabilities.contains("logging"))
            if (const auto level = log_level(*state); !level.empty())
                entries[detail::meta_log_level] = level;
    }
    state->pending.emplace(pending->id, pending);
    if (!state->transport->send_now(pending->id, method, params, pending))
        spawn(state,
              deliver(state, mcp::rpc_request(pending->id, method, std::move(params)), pending));
    return pending;
}

// The transport's word on it.
IPYBOX_DECL void McpClient::Pending::failed(const Error& error) {
    if (const auto state = client.lock()) fail({error.code(), state->named(error.detail())});
}

// Sends a message on its own, so that neither a limit nor a cancellation can cut it in two.
IPYBOX_DECL awaitable<void> McpClient::deliver(ImplPtr state, json::object message,
                                               PendingPtr pending) {
    std::exception_ptr failure;
    try {
        co_await state->transport->send(std::move(message));
    } catch (const std::exception&) {
        failure = std::current_exception();
    }
    if (!failure) co_return;
    const Error error = translate(state, failure);
    if (pending) {
        pending->fail(error);
    } else {
        state->log(LogLevel::debug, error.detail());
    }
}

// Returns when the request is done, the deadline has passed, or (the value) the coroutine was
// cancelled.
IPYBOX_DECL awaitable<bool> McpClient::settle(ImplPtr state, PendingPtr pending,
                                              Clock::time_point deadline) {
    pending->deadline = deadline;
    ring_at(state, deadline);
    while (!pending->done() && Clock::now() < deadline) {
        co_await pending->wait.begin();
        const auto cancellation = co_await asio::this_coro::cancellation_state;
        if (cancellation.cancelled() != asio::cancellation_type::none) co_return true;
    }
    co_return false;
}

// The deadline without the time that people have taken since they had taken `before`. While one is
// waited for it is always a little ahead.
IPYBOX_DECL Clock::time_point McpClient::postponed(const Impl& state, Clock::time_point deadline,
                                                   Duration before) {
    const auto taken = state.people_took() - before;
    if (deadline == never || taken <= Duration::zero()) return deadline;
    const auto later = deadline + taken;
    const auto now = Clock::now();
    return later > now && later - now < std::chrono::milliseconds(100)
               ? now + std::chrono::milliseconds(100)
               : later;
}

// As settle(), but for a deadline that people postpone.
IPYBOX_DECL awaitable<bool> McpClient::settle_patiently(ImplPtr state, PendingPtr pending,
                                                        Clock::time_point deadline,
                                                        Duration before) {
    for (;;) {
        const auto until = postponed(*state, deadline, before);
        const bool cancelled = co_await settle(state, pending, until);
        if (cancelled || pending->done() || postponed(*state, deadline, before) <= Clock::now())
            co_return cancelled;
    }
}

IPYBOX_DECL awaitable<void> McpClient::until_late(ImplPtr state, Clock::time_point deadline) {
    const auto before = state->people_took();
    for (auto until = deadline; Clock::now() < until;) {
        co_await sleep_until(until);
        const auto cancellation = co_await asio::this_coro::cancellation_state;
        if (cancellation.cancelled() != asio::cancellation_type::none) co_return;
        until = postponed(*state, deadline, before);
    }
}

// Sees to it that keep_time() looks at the requests at `deadline`. Most deadlines are later than
// the one before: nothing to do.
IPYBOX_DECL void McpClient::ring_at(const ImplPtr& state, Clock::time_point deadline) {
    if (deadline >= state->alarm) return;
    state->alarm = deadline;
    if (state->keeping_time) {
        state->clock.expires_at(deadline);
    } else {
        state->keeping_time = true;
        spawn(state, keep_time(state));
    }
}

IPYBOX_DECL awaitable<void> McpClient::keep_time(ImplPtr state) {
    struct Stop {
        Impl& state;
        ~Stop() {
            state.keeping_time = false;
            state.alarm = never;
        }
    };
    const Stop stop{*state};
    while (!state->failure && state->alarm != never) {
        state->clock.expires_at(state->alarm);
        co_await state->clock.async_wait(as_result);
        const auto cancellation = co_await asio::this_coro::cancellation_state;
        if (cancellation.cancelled() != asio::cancellation_type::none) co_return;
        const auto now = Clock::now();
        if (now < state->alarm) continue;
        state->alarm = never;
        for (const auto& [id, waiting] : state->pending) {
            if (waiting->deadline <= now) {
                waiting->wait.wake();
            } else {
                state->alarm = std::min(state->alarm, waiting->deadline);
            }
        }
    }
}

// Tells the server that nobody waits any more (2025-11-25 and 2026-07-28, "Cancellation").
IPYBOX_DECL void McpClient::withdraw(const ImplPtr& state, const PendingPtr& pending,
                                     std::string_view reason) {
    json::object params;
    params.emplace("requestId", pending->id);
    params.emplace("reason", reason);
    spawn(state, deliver(state, mcp::rpc_notification("notifications/cancelled", std::move(params)),
                         PendingPtr()));
    state->transport->cancel(pending->id);
}

IPYBOX_DECL json::object McpClient::result_of(const ImplPtr& state, Pending& pending,
                                              std::string_view what) {
    if (pending.failure) throw *pending.failure;
    if (json::value* result = pending.reply->if_contains("result")) {
        if (result->is_object()) return std::move(result->get_object());
        throw state->error(errc::mcp_protocol,
                           "answered " + std::string(what) + " with a result that is no object");
    }
    const auto& error = pending.reply->at("error").get_object();
    const auto code = mcp::integer_of(error.if_contains("code"));
    throw state->error(errc::mcp_error,
                       std::string(what) + " failed: " +
                           mcp::excerpt(detail::string_of(error, "message"), max_text) +
                           (code ? " (code " + std::to_string(*code) + ")" : std::string()));
}

// Sends a request and waits for its answer, within its limits.
IPYBOX_DECL awaitable<McpClient::PendingPtr> McpClient::answered(ImplPtr state, std::string method,
                                                                 json::object params,
                                                                 CallOptions limits,
                                                                 Clock::time_point total_deadline,
                                                                 std::string what) {
    auto& meta = params["_meta"];
    if (!meta.is_object()) meta.emplace_object();
    meta.get_object()["progressToken"] = state->last_id + 1;
    const Duration idle = limits.idle_timeout, total = limits.total_timeout;
    auto pending = start(state, method, std::move(params), std::move(limits));
    const Forget forget(state, pending);
    pending->idle_deadline = deadline_after(idle);
    auto people = state->people_took();
    for (;;) {
        const bool cancelled =
            co_await settle(state, pending, std::min(pending->idle_deadline, total_deadline));
        // Even with an answer: the caller may be about to use a client that is gone.
        if (state->closed) throw *state->failure;
        if (pending->done()) break;
        if (cancelled) {
            withdraw(state, pending, "the caller withdrew the request");
            throw state->error(errc::cancelled, what + " was withdrawn");
        }
        const auto now = Clock::now();
        if (now >= total_deadline) {
            withdraw(state, pending, "it took too long");
            throw state->error(errc::timed_out, what + " took longer than " + seconds(total) +
                                                    " (absolute timeout)");
        }
        if (now < pending->idle_deadline) continue;
        pending->idle_deadline = postponed(*state, pending->idle_deadline, people);
        people = state->people_took();
        if (now >= pending->idle_deadline) {
            withdraw(state, pending, "neither an answer nor progress in time");
            throw state->error(errc::timed_out, what +
                                                    " brought neither an answer nor progress for " +
                                                    seconds(idle) + " (idle timeout)");
        }
    }
    co_return pending;
}

// A request from its first sending to its result, with the rounds of input that the server wants
// in between (2026-07-28 "Multi Round-Trip Requests", 2025-11-25 "URL mode elicitation").
IPYBOX_DECL awaitable<json::object> McpClient::exchange(ImplPtr state, std::string method,
                                                        json::object params, CallOptions limits,
                                                        std::string what) {
    if (state->failure) throw *state->failure;
    if (!state->connected) throw state->error(errc::bad_argument, "is not connected");
    const auto total_deadline = deadline_after(limits.total_timeout);
    const bool may_ask =
        method == "tools/call" || method == "prompts/get" || method == "resources/read";
    const bool modern = state->era == McpEra::modern;
    const bool keep = may_ask && (modern || state->options.on_request);
    Duration pause = std::chrono::milliseconds(100);
    for (int round = 0;; ++round) {
        json::object sent;
        if (keep) {
            sent = params;
        } else {
            sent = std::move(params);
        }
        auto pending =
            co_await answered(state, method, std::move(sent), limits, total_deadline, what);
        json::object asked;
        json::array pages = elicitations_of(state, *pending);
        if (pages.empty()) {
            asked = result_of(state, *pending, what);
            const auto type = detail::string_of(asked, "resultType");
            if (!modern || type.empty() || type == "complete") co_return asked;
            if (type == "task" && method == "tools/call" && has_tasks(*state))
                co_return co_await follow_task(state, std::move(asked), std::move(limits),
                                               total_deadline, what);
            if (type != "input_required" || !may_ask)
                throw state->error(errc::mcp_protocol, what + " returned a result of the type \"" +
                                                           mcp::excerpt(type, 80) +
                                                           "\", which has no place there");
        }
        if (round >= max_rounds)
            throw state->error(errc::mcp_error,
                               what + " asks for input again and again: given up after " +
                                   std::to_string(max_rounds) + " times");
        std::optional<Error> failure;
        json::object responses;
        bool in_time = true;
        if (!pages.empty()) {
            auto work = send_away(state, std::move(pages), failure, what);
            auto limit = sleep_until(total_deadline);
            in_time = co_await ends_first(std::move(work), std::move(limit));
        } else {
            if (const auto* inputs = detail::object_of(asked, "inputRequests")) {
                json::object requests = *inputs;
                auto work = fill_in(state, std::move(requests), responses, failure, what);
                auto limit = sleep_until(total_deadline);
                in_time = co_await ends_first(std::move(work), std::move(limit));
            } else if (!asked.contains("requestState")) {
                throw state->error(errc::mcp_protocol, what + " asks for input, but not for which");
            } else {
                // The server only wants to be asked again.
                const auto soon = std::min(deadline_after(pause), total_deadline);
                co_await sleep_until(soon);
                pause = std::min<Duration>(2 * pause, std::chrono::seconds(5));
            }
            params.erase("inputResponses");
            params.erase("requestState");
            if (!responses.empty()) params.emplace("inputResponses", std::move(responses));
            if (json::value* opaque = asked.if_contains("requestState"))
                params.emplace("requestState", std::move(*opaque));
        }
        const auto cancellation = co_await asio::this_coro::cancellation_state;
        if (state->failure) throw *state->failure;
        if (cancellation.cancelled() != asio::cancellation_type::none)
            throw state->error(errc::cancelled, what + " was withdrawn");
        if (!in_time)
            throw state->error(errc::timed_out, what + " got no input within " +
                                                    seconds(limits.total_timeout) +
                                                    " (absolute timeout)");
        if (failure) throw *failure;
    }
}

// The answers to the requests of one round, by their keys.
IPYBOX_DECL awaitable<void> McpClient::fill_in(ImplPtr state, json::object requests,
                                               json::object& responses,
                                               std::optional<Error>& failure, std::string what) {
    if (requests.size() > max_inputs) {
        failure =
            state->error(errc::mcp_protocol, what + " asks for more than " +
                                                 std::to_string(max_inputs) + " inputs at once");
        co_return;
    }
    for (auto& [key, entry] : requests) {
        auto* request = entry.if_object();
        std::string method(request != nullptr ? detail::string_of(*request, "method") : "");
        if (method.empty()) {
            failure = state->error(errc::mcp_protocol, what + " asks for input without a method");
            co_return;
        }
        json::object params;
        if (auto* given = request->if_contains("params"); given != nullptr && given->is_object())
            params = std::move(given->get_object());
        Response response = co_await respond(state, method, std::move(params));
        if (!response.refusal.empty() && method == "elicitation/create") {
            response.result["action"] = "decline";
        } else if (!response.refusal.empty()) {
            failure = state->error(errc::mcp_error, what + " asks for input by " +
                                                        mcp::excerpt(method, 200) + ": " +
                                                        mcp::excerpt(response.refusal, max_text));
            co_return;
        }
        responses.emplace(key, std::move(response.result));
    }
}

// The pages that somebody must visit before a legacy request can succeed: parameters of
// elicitation/create. Empty unless they are the answer, and can be shown to somebody.
IPYBOX_DECL json::array McpClient::elicitations_of(const ImplPtr& state, const Pending& pending) {
    if (!state->options.on_request || !pending.reply) return {};
    const auto* refusal = detail::object_of(*pending.reply, "error");
    if (refusal == nullptr ||
        mcp::integer_of(refusal->if_contains("code")) != mcp::rpc_url_elicitation_required)
        return {};
    const auto* offer = detail::object_of(state->options.capabilities, "elicitation");
    if (offer == nullptr || !offer->contains("url")) return {};
    const auto* data = detail::object_of(*refusal, "data");
    const auto* listed = data != nullptr ? data->if_contains("elicitations") : nullptr;
    if (listed == nullptr || !listed->is_array() || listed->get_array().size() > max_inputs)
        return {};
    for (const auto& entry : listed->get_array())
        if (!entry.is_object()) return {};
    return listed->get_array();
}

// Sends somebody to pages, and waits until the server says that they are done with them.
IPYBOX_DECL awaitable<void> McpClient::send_away(ImplPtr state, json::array elicitations,
                                                 std::optional<Error>& failure, std::string what) {
    struct Await {
        Impl& state;
        std::set<std::string> ids;
        ~Await() {
            for (const auto& id : ids) state.elicitations.erase(id);
        }
    };
    Await await{*state, {}};
    for (const auto& entry : elicitations) {
        std::string id(detail::string_of(entry.get_object(), "elicitationId"));
        if (id.empty() || state->elicitations.contains(id)) continue;
        state->elicitations.emplace(id, false);
        await.ids.insert(std::move(id));
    }
    for (auto& entry : elicitations) {
        json::object params = entry.get_object();
        params["mode"] = "url";
        Response response = co_await respond(state, "elicitation/create", std::move(params));
        if (!response.refusal.empty() || detail::string_of(response.result, "action") != "accept") {
            failure = state->error(errc::mcp_error,
                                   what + " needs a page to be visited, which was declined");
            co_return;
        }
    }
    const auto done = [&state, &await] {
        return std::all_of(await.ids.begin(), await.ids.end(),
                           [&state](const std::string& id) { return state->elicitations.at(id); });
    };
    // A server need not tell: then trying is the way to find out.
    const auto deadline = deadline_after(elicitation_patience);
    while (!done() && !state->failure && Clock::now() < deadline)
        co_await state->elicited.wait(deadline);
}

IPYBOX_DECL awaitable<json::array> McpClient::list(ImplPtr state) {
    if (state->failure) throw *state->failure;
    json::array tools;
    if (!state->capabilities.contains("tools")) co_return tools;
    std::set<std::string, std::less<>> cursors;
    std::map<std::string, OutputSchema, std::less<>> schemas;
    std::optional<std::int64_t> ttl;  // milliseconds; the shortest of all pages
    state->tools_changed = false;     // what changes from here on comes too late for some page
    std::size_t size = 0, left_out = 0;
    std::string cursor;
    const auto deadline = deadline_after(list_timeout);
    for (std::size_t page = 0;; ++page) {
        json::object params;
        if (page > 0) params.emplace("cursor", cursor);
        CallOptions limits;
        limits.total_timeout = std::max<Duration>(deadline - Clock::now(), Duration(1));
        std::string method = "tools/list", what = method;
        auto result = co_await exchange(state, std::move(method), std::move(params),
                                        std::move(limits), std::move(what));
        json::value* listed = result.if_contains("tools");
        if (listed == nullptr || !listed->is_array())
            throw state->error(errc::mcp_protocol, "answered tools/list without a list of tools");
        size += detail::memory_size(*listed);
        for (auto& tool : listed->get_array()) {
            if (!tool.is_object() || detail::string_of(tool.get_object(), "name").empty()) {
                ++left_out;
                continue;
            }
            const auto& object = tool.get_object();
            std::string name(detail::string_of(object, "name"));
            const json::value* input = object.if_contains("inputSchema");
            if (state->era == McpEra::modern && input != nullptr) {
                const detail::HeaderAnnotations annotations(*input);
                if (!annotations.problem().empty()) {
                    state->log(LogLevel::warning, "the tool \"" + mcp::excerpt(name, 200) +
                                                      "\" is left out: it has " +
                                                      std::string(annotations.problem()));
                    continue;
                }
            }
            if (const json::value* output = object.if_contains("outputSchema");
                output != nullptr && output->is_object())
                schemas.insert_or_assign(std::move(name), OutputSchema(*output));
            tools.push_back(std::move(tool));
        }
        if (const auto lasts = mcp::integer_of(result.if_contains("ttlMs")))
            ttl = std::min(ttl.value_or(*lasts), *lasts);
        const json::value* next = result.if_contains("nextCursor");
        // Some servers end their lists with an empty cursor.
        const bool more = next != nullptr && next->is_string() && !next->get_string().empty();
        if (more) cursor = next->get_string();
        size += cursor.size();
        if (tools.size() + left_out > max_tools || page >= max_pages)
            throw state->error(errc::mcp_protocol,
                               "lists more than " + std::to_string(max_tools) + " tools");
        if (size > max_tools_size)
            throw state->error(errc::mcp_protocol,
                               "lists tools that take more than 16 MiB of memory");
        if (!more) break;
        if (!cursors.insert(cursor).second)
            throw state->error(errc::mcp_protocol, "lists its tools in a circle: the cursor \"" +
                                                       mcp::excerpt(cursor, 80) + "\" came twice");
    }
    state->output_schemas = std::move(schemas);
    state->tools_expire = never;
    if (ttl && *ttl > 0 && *ttl < std::int64_t{1000} * 60 * 60 * 24 * 365) {
        const Duration lasts = std::chrono::milliseconds(*ttl);
        state->tools_expire = deadline_after(std::max(lasts, shortest_ttl));
    }
    if (left_out > 0)
        state->log(LogLevel::warning,
                   std::to_string(left_out) + " of its tools have no name: left out");
    co_return tools;
}

IPYBOX_DECL awaitable<CallResult> McpClient::call(ImplPtr state, std::string name,
                                                  json::object arguments, CallOptions limits) {
    const std::string what = "tool \"" + mcp::excerpt(name, 200) + "\"";
    std::string method = "tools/call", called = what;
    json::object params;
    params.reserve(3);
    params.emplace("name", name);
    params.emplace("arguments", std::move(arguments));
    auto answer = co_await exchange(state, std::move(method), std::move(params), std::move(limits),
                                    std::move(called));
    const auto broken = [&state, &what](std::string_view how) {
        return state->error(errc::mcp_protocol, what + " returned " + std::string(how));
    };
    CallResult result;
    if (json::value* content = answer.if_contains("content");
        content != nullptr && !content->is_null()) {
        if (!content->is_array()) throw broken("content that is no array");
        for (const auto& block : content->get_array())
            if (!block.is_object()) throw broken("a content block that is no object");
        result.content = std::move(content->get_array());
    }
    if (json::value* structured = answer.if_contains("structuredContent"))
        result.structured_content = std::move(*structured);
    if (const json::value* failed = answer.if_contains("isError"))
        result.is_error = !failed->is_bool() || failed->get_bool();
    if (json::value* meta = answer.if_contains("_meta"); meta != nullptr && meta->is_object())
        result.meta = std::move(meta->get_object());
    result.problem = schema_problem(state, name, result);
    if (!result.problem.empty())
        state->log(LogLevel::warning, what + " returned what its output schema does not allow: " +
                                          mcp::excerpt(result.problem, max_text));
    co_return result;
}

IPYBOX_DECL std::string McpClient::schema_problem(const ImplPtr& state, std::string_view tool,
                                                  const CallResult& result) {
    const auto found = state->output_schemas.find(tool);
    if (result.is_error || found == state->output_schemas.end()) return {};
    if (!result.structured_content) return "it has no structured content";
    OutputSchema& output = found->second;
    try {
        if (!output.document)
            output.document = std::make_unique<detail::SchemaDocument>(output.schema);
        detail::SchemaValidator validator(*output.document);
        return validator.problem(output.document->root(), *result.structured_content).value_or("");
    } catch (const Error& error) {
        return error.detail();
    }
}

}  // namespace ipybox
