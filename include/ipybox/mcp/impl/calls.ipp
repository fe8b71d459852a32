#pragma once
#include <ipybox/mcp/calls.hpp>

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/json/parse.hpp>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <exception>
#include <ipybox/async.hpp>
#include <ipybox/compilation.hpp>
#include <ipybox/error.hpp>
#include <ipybox/mcp/detail/wire.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace ipybox::mcp {

// As need() and supports() spell it.
inline constexpr std::string_view tasks_capability = "extensions.io.modelcontextprotocol/tasks";

IPYBOX_DECL void simplify_content(json::array& content, std::string_view revision) {
    for (auto& block : content) {
        auto* object = block.if_object();
        if (object == nullptr) continue;
        const auto type = detail::string_of(*object, "type");
        if (type == "resource_link" && revision < detail::mcp_2025_06_18) {
            *object = McpContent::text(std::string(detail::string_of(*object, "name")) + ": " +
                                       std::string(detail::string_of(*object, "uri")));
        } else if (type == "audio" && revision < detail::mcp_2025_03_26) {
            *object = McpContent::text("(audio, which this version of the protocol cannot carry)");
        }
    }
}

IPYBOX_DECL std::shared_ptr<McpEngine::Tool> McpEngine::find_tool(std::string_view name) const {
    const auto found = find_entry(tools, name);
    return found == tools.end() ? nullptr : *found;
}

IPYBOX_DECL McpCallPtr McpEngine::start(const McpSessionPtr& session, const McpOutletPtr& outlet,
                                        json::value id, std::string_view method,
                                        json::object params, bool modern) {
    if (calls >= options.max_calls)
        throw McpError(rpc_internal_error, "too many requests at once; try again later");
    std::string fingerprint(method);
    for (const std::string_view key : {"name", "uri", "arguments"})
        if (const auto* value = params.if_contains(key))
            fingerprint += '\n' + detail::write_json(*value);
    if (modern && params.contains("requestState"))
        return resume(session, outlet, std::move(id), params, fingerprint);
    auto call = std::make_shared<McpCall>(shared_from_this(), session, executor);
    call->modern = modern;
    call->method = method;
    call->fingerprint = std::move(fingerprint);
    if (modern) {
        if (const auto* responses = params.if_contains("inputResponses")) {
            if (!responses->is_object())
                throw McpError(rpc_invalid_params, "inputResponses must be an object");
            call->given = responses->get_object();
        }
    }
    adopt(call, outlet, std::move(id), params);
    if (session->calls.contains(call->key))
        throw McpError(rpc_invalid_request, "a request with this id is being answered");
    auto work = work_for(call, std::string(method), std::move(params));
    session->calls[call->key] = call;
    ++session->busy;
    ++calls;
    asio::co_spawn(
        executor, run(call, std::move(work)),
        asio::bind_cancellation_slot(call->signal.slot(), [call](std::exception_ptr) {}));
    return call;
}

// From now on the call answers this request.
IPYBOX_DECL void McpEngine::adopt(const McpCallPtr& call, const McpOutletPtr& outlet,
                                  json::value id, const json::object& params) {
    // Modern requests over HTTP share a session: there ids are the connection's own affair.
    call->key = call->session->modern ? std::to_string(++last_serial) : detail::write_json(id);
    call->id = std::move(id);
    call->outlet = outlet;
    const auto* meta = detail::object_of(params, "_meta");
    call->meta = meta != nullptr ? *meta : json::object();
    if (!call->modern) {
        call->log_severity = call->session->log_severity;
        return;
    }
    call->log_severity =
        detail::log_severity(detail::string_of(call->meta, detail::meta_log_level));
    const auto* info = detail::object_of(call->meta, detail::meta_client_info);
    const auto* able = detail::object_of(call->meta, detail::meta_capabilities);
    call->client_info = info != nullptr ? *info : json::object();
    call->client_capabilities = able != nullptr ? *able : json::object();
}

IPYBOX_DECL awaitable<json::object> McpEngine::work_for(McpCallPtr call, std::string method,
                                                        json::object params) {
    const std::string name(detail::string_of(params, "name"));
    json::object arguments;
    if (auto* given = params.if_contains("arguments"); given != nullptr && !given->is_null()) {
        if (!given->is_object()) throw McpError(rpc_invalid_params, "arguments must be an object");
        arguments = std::move(given->get_object());
    }
    if (method == "tools/call") {
        auto tool = find_tool(name);
        if (!tool && options.lenient_calls && !call->modern) return unknown_tool(name);
        if (!tool)
            throw McpError(rpc_invalid_params, "unknown tool \"" + excerpt(name, 200) + "\"");
        return call_tool(std::move(call), std::move(tool), std::move(arguments));
    }
    if (method == "prompts/get") {
        const auto found = find_entry(prompts, name);
        if (found == prompts.end())
            throw McpError(rpc_invalid_params, "unknown prompt \"" + excerpt(name, 200) + "\"");
        for (const auto& argument : (*found)->item.arguments)
            if (argument.required && !arguments.contains(argument.name))
                throw McpError(rpc_invalid_params, "argument \"" + argument.name + "\" is missing");
        for (const auto& argument : arguments)
            if (!detail::is_text(argument.value()))
                throw McpError(rpc_invalid_params, "the arguments of a prompt are strings");
        return get(std::move(call), *found, std::move(arguments));
    }
    if (method == "resources/read") {
        std::string uri(detail::string_of(params, "uri"));
        if (const auto found = find_entry(resources, uri); found != resources.end())
            return read(std::move(call), *found, std::move(uri), {});
        for (const auto& entry : templates)
            if (auto variables = entry->pattern->match(uri))
                return read(std::move(call), entry, std::move(uri), std::move(*variables));
        json::object data{{"uri", uri}};
        throw McpError(call->modern ? rpc_invalid_params : rpc_resource_not_found,
                       "resource not found: " + excerpt(uri, 500), std::move(data));
    }
    const auto* ref = detail::object_of(params, "ref");
    const auto* argument = detail::object_of(params, "argument");
    if (ref == nullptr || argument == nullptr)
        throw McpError(rpc_invalid_params, "completion/complete needs ref and argument");
    std::shared_ptr<void> owner;
    const McpCompleter* completer = nullptr;
    const auto type = detail::string_of(*ref, "type");
    if (type == "ref/prompt") {
        const auto found = find_entry(prompts, detail::string_of(*ref, "name"));
        if (found == prompts.end()) throw McpError(rpc_invalid_params, "unknown prompt");
        owner = *found;
        completer = &(*found)->item.complete;
    } else if (type == "ref/resource") {
        const auto uri = detail::string_of(*ref, "uri");
        auto found = find_entry(templates, uri);
        if (found == templates.end()) {
            found = find_entry(resources, uri);
            if (found == resources.end())
                throw McpError(rpc_invalid_params, "unknown resource template");
        }
        owner = *found;
        completer = &(*found)->item.complete;
    } else {
        throw McpError(rpc_invalid_params, "ref is neither ref/prompt nor ref/resource");
    }
    json::object others;
    if (const auto* context = detail::object_of(params, "context"))
        if (const auto* settled = detail::object_of(*context, "arguments")) others = *settled;
    return complete(std::move(call), std::move(owner), completer,
                    std::string(detail::string_of(*argument, "name")),
                    std::string(detail::string_of(*argument, "value")), std::move(others));
}

IPYBOX_DECL awaitable<void> McpEngine::run(McpCallPtr call, awaitable<json::object> work) {
    std::optional<McpError> failure;
    json::object result;
    try {
        result = co_await std::move(work);
    } catch (const McpError& error) {
        failure = error;
    } catch (const Error& error) {
        const bool callers = error.code() == errc::bad_argument;
        failure.emplace(callers ? rpc_invalid_params : rpc_internal_error, error.detail());
    } catch (const std::exception& error) {
        failure.emplace(rpc_internal_error, error.what());
    }
    call->engine->finish(call, std::move(result), failure ? &*failure : nullptr);
}

IPYBOX_DECL void McpEngine::finish(const McpCallPtr& call, json::object result,
                                   const McpError* error) {
    call->finished = true;
    --calls;
    call->session->calls.erase(call->key);
    call->task_timer.reset();
    if (call->task) return settle(call, std::move(result), error);
    --call->session->busy;
    call->session->last_used = Clock::now();
    if (call->cancelled) {
        if (call->outlet) call->outlet->abandon();
        call->outlet.reset();
        return;
    }
    if (call->outlet) {
        reply(*call, std::move(result), error);
    } else if (!call->request_state.empty()) {
        call->late_result = std::move(result);
        if (error != nullptr) call->late_failure = *error;
        call->expiry.emplace(executor, deadline_after(options.input_timeout));
        call->expiry->async_wait(
            [weak = std::weak_ptr<McpCall>(call)](boost::system::error_code ended) {
                if (const auto late = weak.lock(); late && !ended) unpark(late);
            });
    }
}

IPYBOX_DECL void McpEngine::reply(McpCall& call, json::object result, const McpError* error) {
    const auto outlet = std::move(call.outlet);
    call.outlet.reset();
    if (error != nullptr) {
        respond_error(outlet, std::move(call.id), *error, call.modern);
    } else {
        if (call.modern) result.emplace("resultType", "complete");
        outlet->respond(rpc_result(std::move(call.id), std::move(result)), 200);
    }
}

IPYBOX_DECL void McpEngine::cancel(const McpCallPtr& call) {
    if (call->finished || std::exchange(call->cancelled, true)) return;
    unpark(call);
    call->signal.emit(asio::cancellation_type::terminal);
    call->answered.notify();
}

IPYBOX_DECL std::optional<json::value> value_in_string(std::string_view text,
                                                       std::string_view type) {
    const auto from = text.find_first_not_of(" \t\r\n");
    if (from == text.npos) return {};
    text = text.substr(from, text.find_last_not_of(" \t\r\n") - from + 1);
    if (type == "number" || type == "integer") {
        if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
        const char* end = text.data() + text.size();
        std::int64_t whole = 0;
        if (const auto read = std::from_chars(text.data(), end, whole);
            read.ec == std::errc() && read.ptr == end)
            return whole;
        double number = 0;
        const auto read = std::from_chars(text.data(), end, number);
        if (read.ec != std::errc() || read.ptr != end || !std::isfinite(number)) return {};
        return number;
    }
    boost::system::error_code error;
    json::value value = json::parse(text, error);
    if (error) return {};
    const bool fits = (type == "object" && value.is_object()) ||
                      (type == "array" && value.is_array()) ||
                      (type == "boolean" && value.is_bool());
    return fits ? std::optional(std::move(value)) : std::nullopt;
}

IPYBOX_DECL void parse_arguments(json::object& arguments, const json::value& schema) {
    const auto* properties =
        schema.is_object() ? detail::object_of(schema.get_object(), "properties") : nullptr;
    if (properties == nullptr) return;
    for (auto&& argument : arguments) {
        const auto* wanted = detail::object_of(*properties, argument.key());
        if (wanted == nullptr || !argument.value().is_string()) continue;
        if (auto value =
                value_in_string(argument.value().get_string(), detail::string_of(*wanted, "type")))
            argument.value() = std::move(*value);
    }
}

IPYBOX_DECL awaitable<json::object> McpEngine::unknown_tool(std::string name) {
    json::object answer;
    answer.emplace("content", json::array{McpContent::text("Unknown tool: " + excerpt(name, 200))});
    answer.emplace("isError", true);
    co_return answer;
}

IPYBOX_DECL awaitable<json::object> McpEngine::call_tool(McpCallPtr call,
                                                         std::shared_ptr<Tool> tool,
                                                         json::object arguments) {
    const std::string revision =
        call->modern ? std::string(detail::mcp_modern_version) : call->session->protocol_version;
    McpToolResult result;
    std::optional<std::string> failure;
    detail::SchemaValidator fits_input(*tool->input);
    const bool lenient = call->engine->options.lenient_calls;
    if (lenient) parse_arguments(arguments, tool->input_schema);
    json::value checked(std::move(arguments));
    if (const auto problem = fits_input.problem(tool->input->root(), checked)) {
        failure = "the arguments of " + tool->item.name + " do not fit its schema: " + *problem;
        if (revision < detail::mcp_2025_11_25 && !lenient)
            throw McpError(rpc_invalid_params, *failure);
        if (lenient) failure = "Error executing tool " + tool->item.name + ": " + *failure;
    } else {
        try {
            call->task_use = tool->item.task;
            if (call->task_use == McpTaskUse::required) {
                if (!call->modern)
                    throw Error(errc::mcp_error, "this tool needs a client of " +
                                                     std::string(detail::mcp_modern_version) +
                                                     " that takes tasks");
                need(*call, tasks_capability);
            }
            if (tool->item.task_after) become_task_in(call, *tool->item.task_after);
            detail::round_numbers(checked);
            auto work = tool->item.call(McpContext(call), std::move(checked.get_object()));
            result = co_await std::move(work);
        } catch (const McpError&) {
            throw;
        } catch (const Error& error) {
            failure = error.detail();
        } catch (const std::exception& error) {
            failure = error.what();
        }
    }
    if (!failure && !result.is_error && tool->output) {
        detail::SchemaValidator fits_output(*tool->output);
        if (!result.structured) {
            failure = "the tool did not return the structured content that it promises";
        } else if (const auto problem =
                       fits_output.problem(tool->output->root(), *result.structured)) {
            failure = "the tool's structured content does not fit its output schema: " + *problem;
        }
    }
    if (!failure && result.content.empty() && result.structured)
        result.content.push_back(McpContent::text(detail::write_json(*result.structured)));
    json::object answer;
    if (!failure) {
        if (!call->modern) simplify_content(result.content, revision);
        const bool carried = call->modern || (revision >= detail::mcp_2025_06_18 &&
                                              result.structured && result.structured->is_object());
        answer.emplace("content", std::move(result.content));
        if (result.structured && carried)
            answer.emplace("structuredContent", std::move(*result.structured));
        if (!result.meta.empty()) answer.emplace("_meta", std::move(result.meta));
        if (result.is_error) answer.emplace("isError", true);
        const std::size_t size = text_size(answer);
        if (size > max_result(*call))
            failure = "the result takes " + std::to_string(size) + " bytes, more than the " +
                      std::to_string(max_result(*call)) + " allowed; ask for less";
    }
    if (failure) {
        answer.clear();
        answer.emplace("content", json::array{McpContent::text(*failure)});
        answer.emplace("isError", true);
    }
    co_return answer;
}

IPYBOX_DECL std::size_t McpEngine::max_result(const McpCall& call) noexcept {
    return std::min(call.engine->options.max_result,
                    call.outlet ? call.outlet->max_answer() : SIZE_MAX);
}

IPYBOX_DECL void check_size(const McpCall& call, const json::object& answer) {
    if (text_size(answer) > McpEngine::max_result(call))
        throw McpError(rpc_internal_error, "the result is larger than " +
                                               std::to_string(McpEngine::max_result(call)) +
                                               " bytes; ask for less");
}

IPYBOX_DECL awaitable<json::object> McpEngine::read(McpCallPtr call,
                                                    std::shared_ptr<Resource> resource,
                                                    std::string uri, json::object variables) {
    auto work = resource->item.read(McpContext(call), std::move(uri), std::move(variables));
    auto contents = co_await std::move(work);
    json::object answer;
    answer.emplace("contents", std::move(contents));
    check_size(*call, answer);
    if (call->modern) call->engine->cacheable(answer);
    co_return answer;
}

IPYBOX_DECL awaitable<json::object> McpEngine::get(McpCallPtr call, std::shared_ptr<Prompt> prompt,
                                                   json::object arguments) {
    auto work = prompt->item.get(McpContext(call), std::move(arguments));
    auto messages = co_await std::move(work);
    json::object answer;
    if (!prompt->item.description.empty()) answer.emplace("description", prompt->item.description);
    answer.emplace("messages", std::move(messages));
    check_size(*call, answer);
    co_return answer;
}

IPYBOX_DECL awaitable<json::object> McpEngine::complete(McpCallPtr call,
                                                        std::shared_ptr<void> owner,
                                                        const McpCompleter* completer,
                                                        std::string argument, std::string typed,
                                                        json::object others) {
    McpCompletion found;
    if (*completer) {
        auto work = (*completer)(McpContext(call), std::move(argument), std::move(typed),
                                 std::move(others));
        found = co_await std::move(work);
    }
    owner.reset();
    json::array values;
    for (std::size_t i = 0; i < found.values.size() && i < 100; ++i)
        values.emplace_back(found.values[i]);
    json::object completion;
    completion.emplace(
        "hasMore", found.values.size() > values.size() || found.total.value_or(0) > values.size());
    completion.emplace("values", std::move(values));
    completion.emplace("total", found.total.value_or(found.values.size()));
    json::object answer;
    answer.emplace("completion", std::move(completion));
    co_return answer;
}

// ---- questions to the client ----
IPYBOX_DECL const json::object& McpEngine::capabilities_of(const McpCall& call) {
    return call.modern ? call.client_capabilities : call.session->client_capabilities;
}

IPYBOX_DECL bool McpEngine::supports(const McpCall& call, std::string_view capability) {
    const auto dot = capability.find('.');
    const auto* whole = detail::object_of(capabilities_of(call), capability.substr(0, dot));
    if (whole == nullptr || dot == capability.npos) return whole != nullptr;
    const auto part = capability.substr(dot + 1);
    // An elicitation capability without parts means forms.
    return whole->contains(part) || (capability == "elicitation.form" && !whole->contains("url"));
}

IPYBOX_DECL void McpEngine::need(const McpCall& call, std::string_view capability) {
    if (supports(call, capability)) return;
    const auto dot = capability.find('.');
    json::object parts, required, data;
    if (dot != capability.npos) parts.emplace(capability.substr(dot + 1), json::object());
    required.emplace(capability.substr(0, dot), std::move(parts));
    data.emplace("requiredCapabilities", std::move(required));
    const std::string text =
        "this needs the client's capability \"" + std::string(capability) + "\"";
    // Legacy clients have no such error: a tool's result says it.
    if (!call.modern) throw Error(errc::mcp_error, text + ", which it did not declare");
    throw McpError(rpc_missing_capability, text, std::move(data));
}

IPYBOX_DECL void McpEngine::check_question(const McpCall& call, const json::value& question) {
    const auto* object = question.if_object();
    const auto method =
        object != nullptr ? detail::string_of(*object, "method") : std::string_view();
    const auto* params = object != nullptr ? detail::object_of(*object, "params") : nullptr;
    if (method == "elicitation/create") {
        const bool url = params != nullptr && detail::string_of(*params, "mode") == "url";
        need(call, url ? "elicitation.url" : "elicitation.form");
    } else if (method == "sampling/createMessage") {
        need(call, "sampling");
    } else if (method == "roots/list") {
        need(call, "roots");
    } else {
        throw Error(errc::bad_argument, "a client cannot be asked \"" + std::string(method) + "\"");
    }
}

// Why an answer is none to the question; empty when it is one. Forms have no null: a field that is
// null was left out.
IPYBOX_DECL std::string McpEngine::misfit(const json::object& question, json::value* answer) {
    auto* object = answer != nullptr ? answer->if_object() : nullptr;
    if (object == nullptr) return "it is no object";
    const auto method = detail::string_of(question, "method");
    if (method == "roots/list") {
        const auto* roots = object->if_contains("roots");
        return roots != nullptr && roots->is_array() ? "" : "it has no list of roots";
    }
    if (method == "sampling/createMessage")
        return object->contains("content") ? "" : "it has no content";
    const auto action = detail::string_of(*object, "action");
    if (action == "decline" || action == "cancel") return {};
    if (action != "accept") return "its action is neither accept, decline nor cancel";
    const auto* params = detail::object_of(question, "params");
    const auto* schema = params != nullptr ? params->if_contains("requestedSchema") : nullptr;
    if (schema == nullptr) return {};
    auto* content = object->if_contains("content");
    if (content == nullptr || !content->is_object()) return "it has no content";
    json::object filled;
    for (auto& field : content->get_object())
        if (!field.value().is_null()) filled.emplace(field.key(), std::move(field.value()));
    *content = std::move(filled);
    return detail::validate(*schema, *content).value_or(std::string());
}

IPYBOX_DECL awaitable<json::object> McpEngine::ask(McpCallPtr call, json::object questions) {
    if (call->cancelled) throw Error(errc::cancelled, "the request was cancelled");
    if (questions.empty()) throw Error(errc::bad_argument, "there is nothing to ask");
    if (call->modern && call->method == "completion/complete")
        throw Error(errc::bad_argument, "completions cannot ask the client");
    for (const auto& question : questions) {
        check_question(*call, question.value());
        if (call->asked.contains(question.key()))
            throw Error(errc::busy,
                        "\"" + std::string(question.key()) + "\" is being asked already");
    }
    if (call->asked.empty()) call->repeated = 0;
    struct Done {
        McpCallPtr call;
        const json::object& questions;
        std::vector<std::int64_t> ids;
        ~Done() {
            for (const auto id : ids) call->session->questions.erase(id);
            for (const auto& question : questions) {
                call->asked.erase(question.key());
                call->refusals.erase(std::string(question.key()));
            }
        }
    };
    Done done{call, questions, {}};
    for (const auto& question : questions) {
        call->asked.emplace(question.key(), question.value());
        std::string name(question.key());
        for (int n = 2; !call->names_told.insert(name).second; ++n)
            name = std::string(question.key()) + '_' + std::to_string(n);
        call->told.insert_or_assign(std::string(question.key()), std::move(name));
    }
    if (call->task) call->task->updated = std::chrono::system_clock::now();
    const auto missing = [&call, &questions] {
        for (const auto& question : questions)
            if (!call->given.contains(question.key())) return true;
        return false;
    };
    if (call->modern) {
        for (const auto& question : questions) {
            const auto found = call->given.find(question.key());
            if (found != call->given.end() &&
                !misfit(question.value().get_object(), &found->value()).empty())
                call->given.erase(found);
        }
        // A client that is away already learns of it when it comes back.
        if (missing() && call->outlet) park(call);
    } else {
        for (const auto& question : questions) {
            call->given.erase(question.key());
            const auto id = ++call->session->last_question;
            call->session->questions[id] = {call, question.key()};
            done.ids.push_back(id);
            const auto& object = question.value().get_object();
            const auto* params = detail::object_of(object, "params");
            call->outlet->ask(rpc_request(id, detail::string_of(object, "method"),
                                          params != nullptr ? *params : json::object()));
        }
    }
    const auto deadline = deadline_after(call->engine->options.input_timeout);
    while (missing()) {
        for (const auto& question : questions) {
            const auto refused = call->refusals.find(std::string_view(question.key()));
            if (refused != call->refusals.end()) throw Error(refused->second);
        }
        if (Clock::now() >= deadline)
            throw Error(errc::timed_out, "the client did not answer in time");
        co_await call->answered.wait(deadline);
        if (call->cancelled) throw Error(errc::cancelled, "the request was cancelled");
    }
    json::object answers;
    for (const auto& question : questions) {
        auto& answer = call->given[question.key()];
        if (const auto why = misfit(question.value().get_object(), &answer); !why.empty())
            throw Error(errc::mcp_protocol, "the client's answer to \"" +
                                                std::string(question.key()) +
                                                "\" does not fit the question: " + why);
        answers.emplace(question.key(), std::move(answer));
        call->given.erase(question.key());
    }
    co_return answers;
}

// Answers the request that the call serves with what is still asked; the handler waits on.
IPYBOX_DECL void McpEngine::park(const McpCallPtr& call) {
    auto& engine = *call->engine;
    if (engine.parked.size() >= max_parked)
        throw Error(errc::busy, "too many requests wait for their clients");
    json::object wanted, result;
    for (const auto& question : call->asked)
        if (!call->given.contains(question.key())) wanted.emplace(question.key(), question.value());
    call->request_state = detail::random_hex(32);
    engine.parked[call->request_state] = call;
    result.emplace("resultType", "input_required");
    result.emplace("inputRequests", std::move(wanted));
    result.emplace("requestState", call->request_state);
    call->session->calls.erase(call->key);
    call->key = "parked " + call->request_state;
    call->session->calls[call->key] = call;
    const auto outlet = std::move(call->outlet);
    call->outlet.reset();
    outlet->respond(rpc_result(call->id, std::move(result)), 200);
}

IPYBOX_DECL void McpEngine::unpark(McpCallPtr call) {
    if (call->request_state.empty()) return;
    call->engine->parked.erase(call->request_state);
    call->request_state.clear();
    call->expiry.reset();
}

// Answers that fit no open question are as if they had not come.
IPYBOX_DECL McpEngine::Taken McpEngine::take_answers(McpCall& call, const json::object* responses) {
    Taken taken;
    for (const auto& question : call.asked) {
        if (call.given.contains(question.key())) continue;
        const std::string_view key = question.key();
        const std::string_view name =
            call.task ? std::string_view(call.told.find(key)->second) : key;
        const auto* sent = responses != nullptr ? responses->if_contains(name) : nullptr;
        if (sent == nullptr) {
            taken.missing = true;
            continue;
        }
        auto given = *sent;
        auto wrong = misfit(question.value().get_object(), &given);
        if (wrong.empty()) {
            call.given[question.key()] = std::move(given);
            taken.useful = true;
        } else {
            taken.missing = true;
            taken.why = std::move(wrong);
        }
    }
    return taken;
}

IPYBOX_DECL void McpEngine::refuse_questions(McpCall& call, const std::string& why) {
    const Error refusal(errc::mcp_protocol,
                        "the client's answers do not fit the questions: " + why);
    for (const auto& question : call.asked)
        call.refusals.insert_or_assign(std::string(question.key()), refusal);
}

IPYBOX_DECL McpCallPtr McpEngine::resume(const McpSessionPtr& session, const McpOutletPtr& outlet,
                                         json::value id, const json::object& params,
                                         const std::string& fingerprint) {
    const auto found = parked.find(std::string(detail::string_of(params, "requestState")));
    // One text for all: what is wrong with a forged state is nobody's business.
    if (found == parked.end() || found->second->session != session ||
        found->second->fingerprint != fingerprint)
        throw McpError(rpc_invalid_params,
                       "requestState is unknown, expired, used or of another request");
    const auto* responses = params.if_contains("inputResponses");
    if (responses != nullptr && !responses->is_object())
        throw McpError(rpc_invalid_params, "inputResponses must be an object");
    const auto call = found->second;
    unpark(call);
    session->calls.erase(call->key);
    adopt(call, outlet, std::move(id), params);
    if (call->finished) {
        reply(*call, std::move(call->late_result),
              call->late_failure ? &*call->late_failure : nullptr);
        return nullptr;
    }
    session->calls[call->key] = call;
    const auto taken =
        take_answers(*call, responses != nullptr ? &responses->get_object() : nullptr);
    call->repeated = taken.useful ? 0 : call->repeated + 1;
    if (taken.missing && call->repeated >= max_repeated) {
        refuse_questions(*call, taken.why.empty() ? "there is none" : taken.why);
    } else if (taken.missing) {
        park(call);
    } else if (call->wants_task) {
        become_task(call);
    }
    call->answered.notify();
    return call;
}

IPYBOX_DECL awaitable<json::object> McpEngine::ask_one(McpCallPtr call, std::string method,
                                                       json::object params, std::string key) {
    if (key.empty()) key = "input_" + std::to_string(++call->keys);
    json::object question, questions;
    question.emplace("method", method);
    question.emplace("params", std::move(params));
    questions.emplace(key, std::move(question));
    return [](McpCallPtr asking, json::object all) -> awaitable<json::object> {
        auto answers = co_await ask(std::move(asking), std::move(all));
        auto& answer = answers.begin()->value();
        co_return std::move(answer.get_object());
    }(std::move(call), std::move(questions));
}

IPYBOX_DECL awaitable<json::array> McpEngine::ask_roots(McpCallPtr call, std::string key) {
    json::object nothing;
    auto answer =
        co_await ask_one(std::move(call), "roots/list", std::move(nothing), std::move(key));
    co_return std::move(answer["roots"].get_array());
}

}  // namespace ipybox::mcp

namespace ipybox {

// ---- what handlers use ----
IPYBOX_DECL McpSession& McpContext::session() const { return *call_->session; }

IPYBOX_DECL const json::object& McpContext::client_info() const {
    return call_->modern ? call_->client_info : call_->session->client_info;
}

IPYBOX_DECL const json::object& McpContext::client_capabilities() const {
    return mcp::McpEngine::capabilities_of(*call_);
}

IPYBOX_DECL const json::object& McpContext::meta() const { return call_->meta; }

IPYBOX_DECL bool McpContext::supports(std::string_view capability) const {
    return mcp::McpEngine::supports(*call_, capability);
}

IPYBOX_DECL void McpContext::require(std::string_view capability) const {
    mcp::McpEngine::need(*call_, capability);
}

IPYBOX_DECL void McpContext::progress(double done, std::optional<double> total,
                                      std::string_view message) const {
    if (call_->task) return mcp::McpEngine::report(*call_, done, total, message);
    const auto* token = call_->meta.if_contains("progressToken");
    if (token == nullptr || !call_->outlet || call_->cancelled) return;
    const auto number = [](double value) {
        const auto whole = static_cast<std::int64_t>(value);
        return static_cast<double>(whole) == value ? json::value(whole) : json::value(value);
    };
    json::object params;
    params.emplace("progressToken", *token);
    params.emplace("progress", number(done));
    if (total) params.emplace("total", number(*total));
    if (!message.empty()) params.emplace("message", message);
    call_->outlet->notify(mcp::rpc_notification("notifications/progress", std::move(params)));
}

IPYBOX_DECL void McpContext::log(std::string_view level, std::string_view text,
                                 std::string_view logger) const {
    log_value(level, json::value(text), logger);
}

IPYBOX_DECL void McpContext::log(std::string_view level, json::object data,
                                 std::string_view logger) const {
    log_value(level, json::value(std::move(data)), logger);
}

IPYBOX_DECL void McpContext::log_value(std::string_view level, json::value data,
                                       std::string_view logger) const {
    const auto severity = detail::log_severity(level);
    if (!severity)
        throw Error(errc::bad_argument, "there is no log level \"" + std::string(level) + "\"");
    if (!call_->outlet || call_->cancelled || !call_->log_severity ||
        *severity < *call_->log_severity)
        return;
    json::object params;
    params.emplace("level", level);
    if (!logger.empty()) params.emplace("logger", logger);
    params.emplace("data", std::move(data));
    call_->outlet->notify(mcp::rpc_notification("notifications/message", std::move(params)));
}

IPYBOX_DECL bool McpContext::become_task() const { return mcp::McpEngine::become_task(call_); }

IPYBOX_DECL bool McpContext::is_task() const noexcept { return call_->task != nullptr; }

IPYBOX_DECL std::size_t McpContext::max_result() const noexcept {
    return mcp::McpEngine::max_result(*call_);
}

IPYBOX_DECL awaitable<json::object> McpContext::elicit(std::string message, json::object schema,
                                                       std::string key) const {
    json::object params;
    if (call_->modern) params.emplace("mode", "form");
    params.emplace("message", message);
    params.emplace("requestedSchema", std::move(schema));
    return mcp::McpEngine::ask_one(call_, "elicitation/create", std::move(params), std::move(key));
}

IPYBOX_DECL awaitable<json::object> McpContext::elicit_url(std::string message, std::string url,
                                                           std::string key) const {
    json::object params{{"mode", "url"}, {"message", message}, {"url", url}};
    if (!call_->modern) params.emplace("elicitationId", detail::random_hex(32));
    return mcp::McpEngine::ask_one(call_, "elicitation/create", std::move(params), std::move(key));
}

IPYBOX_DECL awaitable<json::object> McpContext::sample(json::object params, std::string key) const {
    return mcp::McpEngine::ask_one(call_, "sampling/createMessage", std::move(params),
                                   std::move(key));
}

IPYBOX_DECL awaitable<json::array> McpContext::roots(std::string key) const {
    return mcp::McpEngine::ask_roots(call_, std::move(key));
}

IPYBOX_DECL awaitable<json::object> McpContext::ask(json::object questions) const {
    return mcp::McpEngine::ask(call_, std::move(questions));
}

IPYBOX_DECL void McpContext::close_stream() const {
    if (call_->outlet) call_->outlet->close_stream();
}

}  // namespace ipybox
