#pragma once
#include <ipybox/mcp/engine.hpp>

#include <boost/asio/post.hpp>
#include <exception>
#include <ipybox/compilation.hpp>

namespace ipybox::mcp {

// ---- news ----

// Once for all changes that one handler makes.
IPYBOX_DECL void McpEngine::schedule_news(bool& flag) {
    const bool scheduled = tell_tools || tell_prompts || tell_resources;
    flag = true;
    if (scheduled) return;
    if (sessions.empty() && subscriptions.empty()) {
        flag = false;
        return;
    }
    asio::post(executor, [self = shared_from_this()] {
        if (std::exchange(self->tell_tools, false))
            self->tell("notifications/tools/list_changed", &McpSubscription::tools);
        if (std::exchange(self->tell_prompts, false))
            self->tell("notifications/prompts/list_changed", &McpSubscription::prompts);
        if (std::exchange(self->tell_resources, false))
            self->tell("notifications/resources/list_changed", &McpSubscription::resources);
    });
}

IPYBOX_DECL json::object tagged(std::string_view method, json::object params,
                                const json::value& id) {
    json::object meta;
    meta.emplace(detail::meta_subscription, id);
    params.insert_or_assign("_meta", std::move(meta));
    return rpc_notification(method, std::move(params));
}

IPYBOX_DECL void McpEngine::tell(std::string_view method, bool McpSubscription::* wanted) {
    for (const auto& [id, session] : sessions)
        if (session->initialized && session->outlet)
            session->outlet->notify(rpc_notification(method, {}));
    for (auto& subscription : subscriptions)
        if (const auto outlet = subscription.outlet.lock(); outlet && subscription.*wanted)
            if (!outlet->notify(tagged(method, {}, subscription.id))) outlet->abandon();
    std::erase_if(subscriptions, [](const auto& one) { return one.outlet.expired(); });
}

IPYBOX_DECL void McpEngine::updated(std::string_view uri) {
    json::object params{{"uri", uri}};
    const std::string_view method = "notifications/resources/updated";
    for (const auto& [id, session] : sessions)
        if (session->outlet && session->subscriptions.contains(uri))
            session->outlet->notify(rpc_notification(method, params));
    for (auto& subscription : subscriptions)
        if (const auto outlet = subscription.outlet.lock();
            outlet && subscription.uris.contains(uri))
            if (!outlet->notify(tagged(method, params, subscription.id))) outlet->abandon();
    std::erase_if(subscriptions, [](const auto& one) { return one.outlet.expired(); });
}

// ---- sessions ----
IPYBOX_DECL McpSessionPtr McpEngine::open_session(std::string id, std::string principal,
                                                  bool modern) {
    auto session = std::make_shared<McpSessionState>();
    session->id = std::move(id);
    session->principal = std::move(principal);
    session->modern = modern;
    if (modern) session->protocol_version = detail::mcp_modern_version;
    sessions[session->id] = session;
    return session;
}

IPYBOX_DECL void McpEngine::begin(const McpSessionPtr& session) {
    if (session->begun) return;
    if (options.on_session_begin) options.on_session_begin(*session);
    session->begun = true;
}

IPYBOX_DECL void McpEngine::end(McpSessionPtr session) {
    if (std::exchange(session->ended, true)) return;
    sessions.erase(session->id);
    auto running = std::move(session->calls);
    session->calls.clear();
    for (const auto& [id, weak] : running)
        if (const auto call = weak.lock()) cancel(call);
    forget_tasks(*session);
    session->questions.clear();
    // A graceful end of subscriptions says so.
    for (auto& one : subscriptions) {
        const auto outlet = one.outlet.lock();
        if (!outlet || one.session.lock() != session) continue;
        json::object meta, result;
        meta.emplace(detail::meta_subscription, one.id);
        result.emplace("resultType", "complete");
        result.emplace("_meta", std::move(meta));
        outlet->respond(rpc_result(one.id, std::move(result)), 200);
    }
    std::erase_if(subscriptions, [&session](const auto& one) {
        return one.outlet.expired() || one.session.lock() == session;
    });
    if (session->begun && options.on_session_end) options.on_session_end(*session);
    if (session->outlet) session->outlet->abandon();
    session->outlet.reset();
    session->transport.reset();
}

IPYBOX_DECL void McpEngine::stop() {
    stopping = true;
    auto all = sessions;
    for (const auto& [id, session] : all) end(session);
    auto waiting = std::move(parked);
    parked.clear();
    for (const auto& [state, call] : waiting) cancel(call);
}

// ---- messages ----
IPYBOX_DECL bool McpEngine::is_modern(const json::object& params) {
    const auto* meta = detail::object_of(params, "_meta");
    return meta != nullptr &&
           (meta->contains(detail::meta_version) || meta->contains(detail::meta_capabilities));
}

// Throws what a modern request with such a _meta is answered.
IPYBOX_DECL void McpEngine::check_modern(const json::object& meta) {
    const auto revision = detail::string_of(meta, detail::meta_version);
    if (revision.empty())
        throw McpError(rpc_invalid_params,
                       "the request's _meta lacks " + std::string(detail::meta_version));
    if (revision != detail::mcp_modern_version) {
        json::object data;
        data.emplace("supported", json::array{detail::mcp_modern_version});
        data.emplace("requested", revision);
        throw McpError(rpc_unsupported_version, "unsupported protocol version", std::move(data));
    }
    if (detail::object_of(meta, detail::meta_capabilities) == nullptr)
        throw McpError(rpc_invalid_params,
                       "the request's _meta lacks " + std::string(detail::meta_capabilities));
}

IPYBOX_DECL void McpEngine::respond_error(const McpOutletPtr& outlet, json::value id,
                                          const McpError& error, bool modern) {
    unsigned status = 200;
    if (modern) {
        if (error.rpc_code() == rpc_method_not_found) status = 404;
        if (error.rpc_code() == rpc_header_mismatch || error.rpc_code() == rpc_missing_capability ||
            error.rpc_code() == rpc_unsupported_version)
            status = 400;
    }
    auto message = rpc_error(std::move(id), error.rpc_code(), error.detail());
    if (!error.data().empty()) message["error"].get_object()["data"] = error.data();
    outlet->respond(std::move(message), status);
}

IPYBOX_DECL McpCallPtr McpEngine::accept(const McpSessionPtr& session, const McpOutletPtr& outlet,
                                         json::object message) {
    using Kind = RpcMessage::Kind;
    const auto rpc = classify(message);
    session->last_used = Clock::now();
    json::object params;
    const bool structured = rpc.kind == Kind::request || rpc.kind == Kind::notification;
    if (structured && rpc.body != nullptr && rpc.body->is_object())
        params = std::move(rpc.body->get_object());
    // Arguments are rounded for handlers once they were held against the tool's schema.
    for (auto& entry : params)
        if (entry.key() != "arguments") detail::round_numbers(entry.value());
    switch (rpc.kind) {
        case Kind::result:
        case Kind::error:
            replied(session, rpc);
            return nullptr;
        case Kind::notification:
            notified(session, rpc.method, params);
            return nullptr;
        case Kind::malformed:
            outlet->respond(
                rpc_error(rpc.id != nullptr ? *rpc.id : json::value(), rpc_invalid_request,
                          std::string("not a JSON-RPC message: ") + rpc.problem),
                400);
            return nullptr;
        case Kind::request:
            break;
    }
    json::value id = *rpc.id;
    const bool modern = session->modern || is_modern(params) || rpc.method == "server/discover";
    try {
        if (rpc.body != nullptr && !rpc.body->is_object())
            throw McpError(rpc_invalid_params, "params must be an object");
        return request(session, outlet, id, rpc.method, std::move(params));
    } catch (const McpError& error) {
        respond_error(outlet, std::move(id), error, modern);
    } catch (const Error& error) {
        respond_error(outlet, std::move(id), McpError(rpc_internal_error, error.detail()), modern);
    }
    return nullptr;
}

IPYBOX_DECL std::string McpEngine::batch_problem(const McpSessionState& session,
                                                 const json::array& batch) const {
    if (session.protocol_version != detail::mcp_2025_03_26)
        return "only the protocol version " + std::string(detail::mcp_2025_03_26) +
               " has batches: send one message at a time";
    if (batch.empty() || batch.size() > options.max_batch)
        return "a batch has 1 to " + std::to_string(options.max_batch) + " messages";
    return {};
}

IPYBOX_DECL std::size_t McpEngine::answers_to(json::array& batch) {
    using Kind = RpcMessage::Kind;
    std::size_t answers = 0;
    for (auto& one : batch) {
        auto* object = one.if_object();
        const auto kind = object != nullptr ? classify(*object).kind : Kind::malformed;
        answers += kind == Kind::request || kind == Kind::malformed;
    }
    return answers;
}

IPYBOX_DECL void McpEngine::accept_batch(const McpSessionPtr& session, const McpOutletPtr& outlet,
                                         json::array batch) {
    for (auto& one : batch) {
        auto* object = one.if_object();
        if (object == nullptr) {
            outlet->respond(rpc_error(json::value(), rpc_invalid_request, "not an object"), 200);
            continue;
        }
        const auto rpc = classify(*object);
        const auto* params = rpc.body != nullptr ? rpc.body->if_object() : nullptr;
        const bool elsewhere = rpc.kind == RpcMessage::Kind::request &&
                               (rpc.method == "initialize" || rpc.method == "server/discover" ||
                                (params != nullptr && is_modern(*params)));
        if (elsewhere) {
            outlet->respond(rpc_error(std::move(*rpc.id), rpc_invalid_request,
                                      "this request has no place in a batch"),
                            200);
        } else {
            accept(session, outlet, std::move(*object));
        }
    }
}

IPYBOX_DECL McpCallPtr McpEngine::request(const McpSessionPtr& session, const McpOutletPtr& outlet,
                                          json::value id, std::string_view method,
                                          json::object params) {
    if (stopping || session->ended) throw McpError(rpc_internal_error, "the server is stopping");
    const bool modern = session->modern || is_modern(params) || method == "server/discover";
    const auto answer = [&outlet, &id](json::object result) {
        outlet->respond(rpc_result(std::move(id), std::move(result)), 200);
        return McpCallPtr();
    };
    if (modern) {
        const auto* meta = detail::object_of(params, "_meta");
        check_modern(meta != nullptr ? *meta : json::object());
        begin(session);
        if (method == "server/discover") return answer(discover());
        if (has_tasks && is_about_task(method)) return answer(about_task(*session, method, params));
        if (method == "subscriptions/listen") {
            listen(session, outlet, std::move(id), params);
            return nullptr;
        }
    } else {
        if (method == "initialize") return answer(initialize(session, params));
        if (method == "ping") return answer({});
        if (!session->begun)
            throw McpError(rpc_invalid_request, "the first request must be initialize");
        if (method == "logging/setLevel") {
            const auto severity = detail::log_severity(detail::string_of(params, "level"));
            if (!severity)
                throw McpError(rpc_invalid_params, "level is none of debug to emergency");
            session->log_severity = *severity;
            return answer({});
        }
        const bool subscribe = method == "resources/subscribe";
        if (has_resources && (subscribe || method == "resources/unsubscribe")) {
            const auto uri = detail::string_of(params, "uri");
            if (uri.empty() || uri.size() > 8192)
                throw McpError(rpc_invalid_params, "uri is missing");
            if (!subscribe) {
                session->subscriptions.erase(std::string(uri));
            } else if (session->subscriptions.size() < max_subscriptions) {
                session->subscriptions.emplace(uri);
            } else {
                throw McpError(rpc_invalid_params, "too many subscriptions");
            }
            return answer({});
        }
    }
    if (has_tools && method == "tools/list") {
        auto result = list(tools, "tools", params, modern);
        if (!modern) {
            for (auto& tool : result["tools"].get_array()) {
                // Legacy clients refuse the whole list for a schema of another type.
                auto& object = tool.get_object();
                const auto* schema = detail::object_of(object, "outputSchema");
                if (schema != nullptr && detail::string_of(*schema, "type") != "object")
                    object.erase("outputSchema");
            }
        }
        return answer(std::move(result));
    }
    if (has_resources && method == "resources/list")
        return answer(list(resources, "resources", params, modern));
    if (has_resources && method == "resources/templates/list")
        return answer(list(templates, "resourceTemplates", params, modern));
    if (has_prompts && method == "prompts/list")
        return answer(list(prompts, "prompts", params, modern));
    const bool handled = (has_tools && method == "tools/call") ||
                         (has_resources && method == "resources/read") ||
                         (has_prompts && method == "prompts/get") ||
                         (has_completions && method == "completion/complete");
    if (handled) return start(session, outlet, std::move(id), method, std::move(params), modern);
    throw McpError(rpc_method_not_found,
                   "this server has no method \"" + excerpt(method, 200) + "\"");
}

IPYBOX_DECL void McpEngine::notified(const McpSessionPtr& session, std::string_view method,
                                     const json::object& params) {
    if (method == "notifications/initialized") {
        session->initialized = true;
    } else if (method == "notifications/cancelled") {
        const auto* id = params.if_contains("requestId");
        if (id == nullptr) return;
        const auto found = session->calls.find(detail::write_json(*id));
        if (found != session->calls.end())
            if (const auto call = found->second.lock()) cancel(call);
        std::erase_if(subscriptions, [&](const auto& one) {
            return one.id == *id && one.session.lock() == session;
        });
    } else if (options.on_notification) {
        try {
            options.on_notification(*session, method, params);
        } catch (const std::exception& error) {
            options.logger(LogLevel::warning,
                           std::string("on_notification failed: ") + error.what());
        }
    }
}

// An answer of a legacy client to what a handler asked it.
IPYBOX_DECL void McpEngine::replied(const McpSessionPtr& session, const RpcMessage& rpc) {
    const auto id = integer_of(rpc.id);
    const auto found = id ? session->questions.find(*id) : session->questions.end();
    if (found == session->questions.end()) return;
    const auto question = found->second;
    session->questions.erase(found);
    if (rpc.kind == RpcMessage::Kind::result) {
        detail::round_numbers(*rpc.body);
        question.call->given[question.key] = std::move(*rpc.body);
    } else {
        const auto* error = rpc.body != nullptr ? rpc.body->if_object() : nullptr;
        const auto text =
            error != nullptr ? detail::string_of(*error, "message") : std::string_view();
        Error refusal(errc::mcp_error, "the client refused: " + excerpt(text, 1000));
        question.call->refusals.insert_or_assign(question.key, std::move(refusal));
    }
    question.call->answered.notify();
}

// ---- what is answered at once ----
IPYBOX_DECL json::object McpEngine::server_info() const {
    json::object info{{"name", options.name}, {"version", options.version}};
    if (!options.title.empty()) info.emplace("title", options.title);
    for (const auto& member : options.info) info.insert_or_assign(member.key(), member.value());
    return info;
}

IPYBOX_DECL json::object McpEngine::capabilities(bool modern) const {
    json::object found;
    found.emplace("logging", json::object());
    if (has_tools) found.emplace("tools", json::object{{"listChanged", true}});
    if (has_prompts) found.emplace("prompts", json::object{{"listChanged", true}});
    if (has_resources)
        found.emplace("resources", json::object{{"listChanged", true}, {"subscribe", true}});
    if (has_completions) found.emplace("completions", json::object());
    if (modern && has_tasks)
        found.emplace("extensions", json::object{{detail::extension_tasks, json::object()}});
    return found;
}

IPYBOX_DECL json::object McpEngine::initialize(const McpSessionPtr& session,
                                               const json::object& params) {
    const auto asked = detail::string_of(params, "protocolVersion");
    if (asked.empty()) throw McpError(rpc_invalid_params, "initialize needs a protocolVersion");
    session->protocol_version =
        detail::is_legacy_version(asked) ? asked : detail::mcp_legacy_versions.front();
    const auto* capabilities_said = detail::object_of(params, "capabilities");
    const auto* info = detail::object_of(params, "clientInfo");
    session->client_capabilities =
        capabilities_said != nullptr ? *capabilities_said : json::object();
    session->client_info = info != nullptr ? *info : json::object();
    begin(session);
    json::object result;
    result.emplace("protocolVersion", session->protocol_version);
    result.emplace("capabilities", capabilities(false));
    result.emplace("serverInfo", server_info());
    if (!options.instructions.empty()) result.emplace("instructions", options.instructions);
    return result;
}

IPYBOX_DECL void McpEngine::cacheable(json::object& result) const {
    result.emplace("resultType", "complete");
    result.emplace("ttlMs", options.ttl.count());
    result.emplace("cacheScope", options.cache_scope);
}

IPYBOX_DECL json::object McpEngine::discover() const {
    json::object result, meta;
    result.emplace("supportedVersions", json::array{detail::mcp_modern_version});
    result.emplace("capabilities", capabilities(true));
    if (!options.instructions.empty()) result.emplace("instructions", options.instructions);
    meta.emplace(detail::meta_server_info, server_info());
    result.emplace("_meta", std::move(meta));
    cacheable(result);
    return result;
}

IPYBOX_DECL void McpEngine::listen(const McpSessionPtr& session, const McpOutletPtr& outlet,
                                   json::value id, const json::object& params) {
    const auto* filter = detail::object_of(params, "notifications");
    if (filter == nullptr)
        throw McpError(rpc_invalid_params, "subscriptions/listen needs notifications");
    if (has_tasks && filter->contains("taskIds") && !takes_tasks(params)) throw lacks_tasks();
    std::erase_if(subscriptions, [](const auto& one) { return one.outlet.expired(); });
    if (subscriptions.size() >= max_subscriptions)
        throw McpError(rpc_internal_error, "too many subscriptions");
    const auto wants = [filter](std::string_view key) {
        const auto* value = filter->if_contains(key);
        return value != nullptr && value->is_bool() && value->get_bool();
    };
    McpSubscription subscription;
    subscription.id = id;
    subscription.session = session;
    subscription.outlet = outlet;
    subscription.tools = has_tools && wants("toolsListChanged");
    subscription.prompts = has_prompts && wants("promptsListChanged");
    subscription.resources = has_resources && wants("resourcesListChanged");
    json::object agreed;
    if (subscription.tools) agreed.emplace("toolsListChanged", true);
    if (subscription.prompts) agreed.emplace("promptsListChanged", true);
    if (subscription.resources) agreed.emplace("resourcesListChanged", true);
    const auto* uris = filter->if_contains("resourceSubscriptions");
    if (has_resources && uris != nullptr && uris->is_array()) {
        json::array taken;
        for (const auto& uri : uris->get_array()) {
            if (!uri.is_string() || uri.get_string().size() > 8192) continue;
            if (subscription.uris.size() >= max_subscriptions) break;
            if (subscription.uris.emplace(uri.get_string()).second) taken.push_back(uri);
        }
        agreed.emplace("resourceSubscriptions", std::move(taken));
    }
    json::object said{{"notifications", std::move(agreed)}};
    outlet->notify(tagged("notifications/subscriptions/acknowledged", std::move(said), id));
    subscriptions.push_back(std::move(subscription));
}

}  // namespace ipybox::mcp
