#pragma once
#include <ipybox/mcp/client.hpp>

#include <ipybox/compilation.hpp>
#include <ipybox/mcp/detail/handshake.hpp>

namespace ipybox {

IPYBOX_DECL awaitable<void> McpClient::connect(Sandbox& sandbox) {
    return connect(state_, sandbox);
}

// ---- opening ----
IPYBOX_DECL awaitable<void> McpClient::connect(ImplPtr state, Sandbox& sandbox) {
    if (state->failure) throw *state->failure;
    if (state->connected) throw state->error(errc::bad_argument, "connect() was called twice");
    if (const auto& level = state->options.log_level;
        !level.empty() && !detail::log_severity(level))
        throw state->error(errc::bad_argument, "there is no log level \"" + level + "\"");
    const auto deadline = deadline_after(state->options.connect_timeout);
    const auto people = state->people_took();
    co_await open(state, sandbox, deadline);
    using Action = detail::Handshake::Action;
    detail::Handshake handshake(state->options.era);
    Action action = handshake.begin();
    const auto people_before = state->people_took();
    std::optional<Clock::time_point> discovery_deadline;
    // Discovery is awaited on, while initialize is: late answers count.
    PendingPtr pending, discovery;
    int discovery_request = 0;
    std::optional<Forget> forget_pending, forget_discovery;
    while (action != Action::connected) {
        if (action == Action::give_up) throw_refusal(state, handshake, *pending);
        if (action == Action::confirm_end) {
            co_await confirm_end(state);
            if (state->closed) throw *state->failure;
            if (state->failure) handshake.ended();
            action = handshake.proceed();
            continue;
        }
        if (action == Action::restart) {
            state->failure.reset();
            co_await open(state, sandbox, postponed(*state, deadline, people));
            action = handshake.restarted();
            continue;
        }
        const int request = handshake.request();
        bool cancelled = false;
        pending = start_opening(state, handshake);
        if (action == Action::discover) {
            discovery = pending;
            discovery_request = request;
            forget_discovery.emplace(state, pending);
            if (!discovery_deadline && handshake.brief())
                discovery_deadline = std::min(postponed(*state, deadline, people),
                                              deadline_after(state->options.discover_timeout));
            const auto until = discovery_deadline.value_or(deadline);
            cancelled = co_await settle_patiently(state, pending, until, people_before);
        } else {
            forget_pending.emplace(state, pending);
            cancelled = co_await settle_patiently(state, pending, deadline, people);
        }
        if (cancelled) throw state->error(errc::cancelled, "connecting was cancelled");
        if (state->closed) throw *state->failure;
        if (state->failure) handshake.ended();
        if (discovery && discovery->reply && discovery != pending)
            handshake.answered(discovery_request, *discovery->reply);
        if (pending->reply) {
            action = handshake.answered(request, *pending->reply);
        } else {
            action = pending->failure ? handshake.lost(request) : handshake.silent(request);
        }
    }
    const auto& agreed = handshake.agreed();
    state->era = agreed.era;
    state->protocol_version = agreed.version;
    state->capabilities = agreed.capabilities;
    state->server_info = agreed.server_info;
    state->instructions = agreed.instructions;
    state->connected = true;
    if (state->era == McpEra::modern) {
        begin_modern(state);
    } else {
        begin_legacy(state);
    }
}

// Sends the request that the handshake wants.
IPYBOX_DECL McpClient::PendingPtr McpClient::start_opening(const ImplPtr& state,
                                                           const detail::Handshake& handshake) {
    json::object params;
    const bool modern = handshake.method() == "server/discover";
    state->era = modern ? McpEra::modern : McpEra::legacy;
    if (!modern) {
        params.emplace("protocolVersion", handshake.version());
        params.emplace("capabilities", offered(state));
        params.emplace("clientInfo", client_info(state));
    }
    return start(state, handshake.method(), std::move(params), CallOptions());
}

// The sender found the server gone; so will the reader, unless it is not.
IPYBOX_DECL awaitable<void> McpClient::confirm_end(ImplPtr state) {
    auto end = std::make_shared<Pending>();
    end->id = ++state->last_id;
    state->pending.emplace(end->id, end);
    const Forget forget(state, end);
    if (state->failure) co_return;
    const auto soon = deadline_after(std::chrono::seconds(1));
    co_await settle(state, end, soon);
}

IPYBOX_DECL void McpClient::throw_refusal(const ImplPtr& state, const detail::Handshake& handshake,
                                          Pending& pending) {
    using Failure = detail::Handshake::Failure;
    if (handshake.failure() == Failure::version)
        throw state->error(errc::mcp_protocol, handshake.problem());
    const std::string method(handshake.method());
    if (handshake.failure() == Failure::answer) {
        result_of(state, pending, method);
        throw state->error(errc::mcp_protocol, "answered " + method + " with what is no answer");
    }
    const auto words = state->transport->last_words();
    throw state->error(errc::timed_out,
                       "did not answer " + method + " within " +
                           seconds(state->options.connect_timeout) + " (connect timeout)" +
                           (words.empty() ? "" : "; its standard error ends in:\n" + words));
}

IPYBOX_DECL void McpClient::begin_modern(const ImplPtr& state) {
    const auto* tools = detail::object_of(state->capabilities, "tools");
    const json::value* changes = tools != nullptr ? tools->if_contains("listChanged") : nullptr;
    if (!state->options.on_tools_changed || changes == nullptr || !changes->is_bool() ||
        !changes->get_bool())
        return;
    auto subscription = std::make_shared<Subscription>(state->executor);
    subscription->filter.emplace("toolsListChanged", true);
    state->subscriptions[""] = subscription;
    spawn(state, follow(state, std::move(subscription)));
}

IPYBOX_DECL void McpClient::begin_legacy(const ImplPtr& state) {
    json::object nothing;
    spawn(state,
          deliver(state, mcp::rpc_notification("notifications/initialized", std::move(nothing)),
                  PendingPtr()));
    if (state->capabilities.contains("logging")) spawn(state, begin_logging(state));
}

IPYBOX_DECL awaitable<void> McpClient::attempt(ImplPtr state, Sandbox& sandbox,
                                               std::exception_ptr& failure) {
    try {
        co_await state->transport->open(sandbox);
    } catch (const std::exception&) {
        failure = std::current_exception();
    }
}

// Opens the transport and starts reading from it.
IPYBOX_DECL awaitable<void> McpClient::open(ImplPtr state, Sandbox& sandbox,
                                            Clock::time_point deadline) {
    std::exception_ptr failure;
    auto attempted = attempt(state, sandbox, failure);
    auto limit = until_late(state, deadline);
    const bool in_time = co_await ends_first(std::move(attempted), std::move(limit));
    if (state->closed) throw *state->failure;
    if (!in_time)
        throw state->error(errc::timed_out, "could not be started or reached within " +
                                                seconds(state->options.connect_timeout) +
                                                " (connect timeout)");
    if (failure) throw translate(state, failure);
    spawn(state, read(state));
}

IPYBOX_DECL json::object McpClient::offered(const ImplPtr& state) {
    json::object capabilities = state->options.capabilities;
    if (!state->options.on_request) {
        capabilities.erase("elicitation");
        capabilities.erase("sampling");
    }
    if (!state->options.roots.empty()) capabilities.emplace("roots", json::object());
    if (has_tasks(*state)) {
        auto& extensions = capabilities["extensions"];
        if (!extensions.is_object()) extensions.emplace_object();
        extensions.get_object()[detail::extension_tasks].emplace_object();
    }
    return capabilities;
}

IPYBOX_DECL json::object McpClient::client_info(const ImplPtr& state) {
    json::object info = state->options.client_info;
    if (info.empty()) {
        info.emplace("name", "ipybox");
        info.emplace("version", detail::build_version);
    }
    return info;
}

}  // namespace ipybox
