#pragma once
#include <ipybox/mcp/calls.hpp>

#include <ipybox/compilation.hpp>
#include <ipybox/detail/json_memory.hpp>
#include <ipybox/detail/utc_time.hpp>

namespace ipybox::mcp {

// Whether a request's _meta says that its client takes tasks.
inline bool names_tasks(const json::object& capabilities) {
    const auto* extensions = detail::object_of(capabilities, "extensions");
    return extensions != nullptr && extensions->contains(detail::extension_tasks);
}

IPYBOX_DECL bool McpEngine::takes_tasks(const json::object& params) {
    const auto* meta = detail::object_of(params, "_meta");
    const auto* able =
        meta != nullptr ? detail::object_of(*meta, detail::meta_capabilities) : nullptr;
    return able != nullptr && names_tasks(*able);
}

IPYBOX_DECL McpError McpEngine::lacks_tasks() {
    json::object extensions, required, data;
    extensions.emplace(detail::extension_tasks, json::object());
    required.emplace("extensions", std::move(extensions));
    data.emplace("requiredCapabilities", std::move(required));
    return {rpc_missing_capability,
            "this needs the client's extension \"" + std::string(detail::extension_tasks) +
                "\", which the request does not declare",
            std::move(data)};
}

IPYBOX_DECL bool McpEngine::is_about_task(std::string_view method) noexcept {
    return method == "tasks/get" || method == "tasks/update" || method == "tasks/cancel";
}

// Answers the request that the call serves with a task, which is there before the client knows.
IPYBOX_DECL bool McpEngine::become_task(const McpCallPtr& call) {
    auto& engine = *call->engine;
    auto& session = *call->session;
    if (call->task) return true;
    if (call->task_use == McpTaskUse::none || call->finished || call->cancelled || session.ended)
        return false;
    if (!call->outlet) {
        call->wants_task = true;
        return false;
    }
    if (!call->modern || !names_tasks(capabilities_of(*call)) ||
        engine.tasks >= engine.options.max_tasks ||
        session.tasks.size() >= (engine.options.max_tasks + 3) / 4)
        return false;
    auto task = std::make_shared<McpTask>();
    task->id = detail::random_hex(16);
    task->call = call;
    session.calls.erase(call->key);
    call->key = "task " + task->id;
    session.calls[call->key] = call;
    session.tasks[task->id] = task;
    ++engine.tasks;
    call->task = task;
    call->task_timer.reset();
    auto result = engine.describe(*task);
    // What is asked already comes with the first tasks/get.
    result["status"] = "working";
    result.erase("inputRequests");
    result["resultType"] = "task";
    const auto outlet = std::move(call->outlet);
    call->outlet.reset();
    outlet->respond(rpc_result(call->id, std::move(result)), 200);
    return true;
}

IPYBOX_DECL void McpEngine::become_task_in(const McpCallPtr& call, Duration time) {
    if (call->task_use == McpTaskUse::none) return;
    if (time <= Duration::zero()) {
        become_task(call);
        return;
    }
    call->task_timer.emplace(call->engine->executor, deadline_after(time));
    call->task_timer->async_wait(
        [weak = std::weak_ptr<McpCall>(call)](boost::system::error_code stopped) {
            if (const auto running = weak.lock(); running && !stopped) become_task(running);
        });
}

IPYBOX_DECL void McpEngine::report(McpCall& call, double done, std::optional<double> total,
                                   std::string_view message) {
    constexpr std::size_t max_message = 4096;
    auto& task = *call.task;
    task.message = excerpt(message, max_message);
    if (message.empty()) {
        task.message = detail::write_json(json::value(done));
        if (total) task.message += " of " + detail::write_json(json::value(*total));
    }
    task.updated = std::chrono::system_clock::now();
}

// Keeps what came of a task until the client had time to fetch it.
IPYBOX_DECL void McpEngine::settle(const McpCallPtr& call, json::object result,
                                   const McpError* error) {
    auto& engine = *call->engine;
    const auto& session = call->session;
    const auto task = call->task;
    task->ended = true;
    task->cancelled = call->cancelled;
    task->updated = std::chrono::system_clock::now();
    task->message.clear();
    if (session->ended) {
        --session->busy;
        return;
    }
    if (!task->cancelled) {
        const auto bytes = error != nullptr
                               ? error->detail().size() + detail::memory_size(error->data())
                               : detail::memory_size(result);
        if (!engine.make_room(*session, bytes)) {
            task->failure.emplace(rpc_internal_error,
                                  "the result takes " + std::to_string(bytes) +
                                      " bytes, and those of other tasks are still to be fetched: "
                                      "fetch them, and call the tool again");
        } else {
            task->bytes = bytes;
            session->task_bytes += bytes;
            engine.task_bytes += bytes;
            if (error != nullptr) task->failure.emplace(*error);
            if (error == nullptr) task->result = std::move(result);
        }
    }
    task->expiry.emplace(engine.executor, deadline_after(engine.options.task_ttl));
    task->expiry->async_wait([weak = engine.weak_from_this(),
                              whose = std::weak_ptr<McpSessionState>(session),
                              id = task->id](boost::system::error_code stopped) {
        const auto self = weak.lock();
        const auto owner = whose.lock();
        if (self && owner && !stopped) self->forget(*owner, id);
    });
}

// Whether that much can be kept; results that the client has seen make room for it, oldest first.
IPYBOX_DECL bool McpEngine::make_room(McpSessionState& session, std::size_t bytes) {
    const auto most = options.max_task_bytes;
    const auto fits = [&] {
        return session.task_bytes + bytes <= most / 4 && task_bytes + bytes <= most;
    };
    while (!fits()) {
        const McpTask* oldest = nullptr;
        for (const auto& [id, task] : session.tasks)
            if (task->seen && task->bytes > 0 &&
                (oldest == nullptr || task->updated < oldest->updated))
                oldest = task.get();
        if (oldest == nullptr) return false;
        const std::string id = oldest->id;
        forget(session, id);
    }
    return true;
}

IPYBOX_DECL void McpEngine::release(McpSessionState& session, McpTask& task) {
    --tasks;
    task_bytes -= task.bytes;
    session.task_bytes -= task.bytes;
    task.bytes = 0;
    if (task.ended) --session.busy;
}

IPYBOX_DECL void McpEngine::forget(McpSessionState& session, std::string_view id) {
    const auto found = session.tasks.find(id);
    if (found == session.tasks.end()) return;
    const auto task = found->second;
    session.tasks.erase(found);
    release(session, *task);
    session.last_used = Clock::now();
}

// Of a session that ends. Those that run are being cancelled, and no longer busy when they end.
IPYBOX_DECL void McpEngine::forget_tasks(McpSessionState& session) {
    const auto all = std::move(session.tasks);
    session.tasks.clear();
    for (const auto& [id, task] : all) release(session, *task);
}

IPYBOX_DECL json::object McpEngine::about_task(McpSessionState& session, std::string_view method,
                                               const json::object& params) {
    if (!takes_tasks(params)) throw lacks_tasks();
    const auto found = session.tasks.find(detail::string_of(params, "taskId"));
    // One text for all: what other clients have is nobody's business.
    if (found == session.tasks.end())
        throw McpError(rpc_invalid_params, "taskId is unknown or expired");
    const auto task = found->second;
    const auto call = task->call.lock();
    json::object result;
    if (method == "tasks/get") {
        result = describe(*task);
        task->seen = task->ended;
    } else if (method == "tasks/cancel") {
        if (call) cancel(call);
    } else {
        const auto* responses = detail::object_of(params, "inputResponses");
        if (responses == nullptr)
            throw McpError(rpc_invalid_params, "inputResponses must be an object");
        if (call && !call->finished && !call->cancelled) update(*call, *responses);
    }
    result["resultType"] = "complete";
    return result;
}

// Answers to nothing that is asked now are ignored.
IPYBOX_DECL void McpEngine::update(McpCall& call, const json::object& responses) {
    const auto taken = take_answers(call, &responses);
    if (taken.useful) call.repeated = 0;
    if (taken.useful) call.task->updated = std::chrono::system_clock::now();
    if (!taken.why.empty() && !taken.useful && ++call.repeated >= max_repeated)
        refuse_questions(call, taken.why);
    call.answered.notify();
    if (!taken.why.empty())
        throw McpError(rpc_invalid_params, "an answer does not fit its question: " + taken.why);
}

// As tasks/get returns it.
IPYBOX_DECL json::object McpEngine::describe(McpTask& task) const {
    const auto call = task.call.lock();
    const auto milliseconds = [](auto time) {
        return std::chrono::duration_cast<std::chrono::milliseconds>(time).count();
    };
    std::string_view status = "working";
    json::object asked;
    json::value ttl;  // unlimited while it runs
    if (task.cancelled || (call && call->cancelled)) {
        status = "cancelled";
    } else if (task.ended) {
        status = task.failure ? "failed" : "completed";
    } else if (call) {
        for (const auto& question : call->asked)
            if (!call->given.contains(question.key()))
                asked.emplace(call->told.find(std::string_view(question.key()))->second,
                              question.value());
        if (!asked.empty()) status = "input_required";
    }
    if (task.ended)
        ttl =
            std::max<std::int64_t>(milliseconds(task.updated - task.created + options.task_ttl), 1);
    json::object told;
    told.emplace("taskId", task.id);
    told.emplace("status", status);
    if (!task.message.empty()) told.emplace("statusMessage", task.message);
    told.emplace("createdAt", detail::utc_time(task.created));
    told.emplace("lastUpdatedAt", detail::utc_time(task.updated));
    told.emplace("ttlMs", std::move(ttl));
    told.emplace("pollIntervalMs", std::max<std::int64_t>(options.task_poll.count(), 1));
    if (!asked.empty()) told.emplace("inputRequests", std::move(asked));
    if (status == "completed") told.emplace("result", task.result);
    if (status == "failed") {
        json::object error{{"code", task.failure->rpc_code()}, {"message", task.failure->detail()}};
        if (!task.failure->data().empty()) error.emplace("data", task.failure->data());
        told.emplace("error", std::move(error));
    }
    return told;
}

}  // namespace ipybox::mcp
