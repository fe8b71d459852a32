#pragma once
#include <ipybox/mcp/client.hpp>

#include <ipybox/compilation.hpp>

namespace ipybox {

IPYBOX_DECL awaitable<void> McpClient::connect(Sandbox& sandbox) { return connect(state_, sandbox); }

// ---- opening ----
IPYBOX_DECL awaitable<void> McpClient::connect(StatePtr state, Sandbox& sandbox) {
    if (state->failure) throw *state->failure;
    if (state->connected) throw state->error(errc::bad_argument, "connect() was called twice");
    if (const auto& level = state->options.log_level;
        !level.empty() && !detail::log_severity(level))
        throw state->error(errc::bad_argument, "there is no log level \"" + level + "\"");
    const auto deadline = deadline_after(state->options.connect_timeout);
    const auto late = [&state](std::string_view what) {
        const auto words = state->transport->last_words();
        return state->error(errc::timed_out, std::string(what) + " within " +
                                                 seconds(state->options.connect_timeout) +
                                                 " (connect timeout)" +
                                                 (words.empty() ? "" : "; its standard error ends in:\n" + words));
    };
    const McpEra preset = state->options.era;
    const auto people = state->transport->people_took();
    co_await open(state, sandbox, deadline);

    std::optional<Forget> forget_probe;
    PendingPtr probe;
    if (preset != McpEra::legacy) {
        CallOptions limits;
        json::object params;
        state->era = McpEra::modern;
        probe = start(state, "server/discover", std::move(params), std::move(limits));
        forget_probe.emplace(state, probe);
        auto allowance = deadline;
        const auto people_before = state->transport->people_took();
        if (preset == McpEra::detect)
            allowance = std::min(postponed(*state, deadline, people),
                                 deadline_after(state->options.discover_timeout));
        bool cancelled = co_await settle_patiently(state, probe, allowance, people_before);
        // Refused, although the server says that it knows this version: once is a formality.
        if (!cancelled && lists(supported_by(*probe), detail::mcp_modern_version)) {
            json::object again;
            CallOptions same;
            probe = start(state, "server/discover", std::move(again), std::move(same));
            forget_probe.emplace(state, probe);
            cancelled = co_await settle_patiently(state, probe, allowance, people_before);
        }
        if (cancelled) throw state->error(errc::cancelled, "connecting was cancelled");
        if (state->closed) throw *state->failure;
        if (adopt_discovery(state, *probe)) co_return;
        if (preset == McpEra::modern) {
            if (!probe->done()) throw late("did not answer server/discover");
            result_of(state, *probe, "server/discover");
            throw state->error(errc::mcp_protocol, "does not speak protocol version 2026-07-28");
        }
        if (probe->failure && !state->failure) {
            // The sender found it gone; so will the reader, unless it is not.
            auto gone = std::make_shared<Pending>();
            gone->id = ++state->last_id;
            state->pending.emplace(gone->id, gone);
            const Forget forget_gone(state, gone);
            auto soon = deadline_after(std::chrono::seconds(1));
            co_await settle(state, gone, soon);
            if (state->closed) throw *state->failure;
        }
        if (state->failure) {
            // Some servers end when their first message is not initialize.
            state->failure.reset();
            co_await open(state, sandbox, postponed(*state, deadline, people));
        }
    }

    state->era = McpEra::legacy;
    std::optional<Forget> forget_handshake;
    PendingPtr handshake;
    for (auto version = detail::mcp_legacy_versions.front(); !version.empty();) {
        json::object params;
        params.emplace("protocolVersion", version);
        params.emplace("capabilities", offered(state));
        params.emplace("clientInfo", client_info(state));
        CallOptions limits;
        handshake = start(state, "initialize", std::move(params), std::move(limits));
        forget_handshake.emplace(state, handshake);
        const bool cancelled = co_await settle_patiently(state, handshake, deadline, people);
        if (cancelled) throw state->error(errc::cancelled, "connecting was cancelled");
        if (state->closed) throw *state->failure;
        if (!handshake->done()) throw late("did not answer initialize");
        // A modern server may have been too slow for the allowance.
        const bool refused = handshake->reply && handshake->reply->contains("error");
        if (refused && probe && adopt_discovery(state, *probe)) co_return;
        // Some servers refuse where they should propose another version.
        const auto other = legacy_of(supported_by(*handshake));
        version = version == detail::mcp_legacy_versions.front() && other != version ? other : "";
    }
    adopt_initialize(state, result_of(state, *handshake, "initialize"));
    json::object nothing;
    spawn(state,
          deliver(state, detail::rpc_notification("notifications/initialized", std::move(nothing)),
                  PendingPtr()));
    state->connected = true;
    if (state->capabilities.contains("logging")) spawn(state, begin_logging(state));
}

IPYBOX_DECL awaitable<void> McpClient::attempt(StatePtr state, Sandbox& sandbox,
                                          std::exception_ptr& failure) {
    try {
        co_await state->transport->open(sandbox);
    } catch (const std::exception&) {
        failure = std::current_exception();
    }
}

// Opens the transport and starts reading from it.
IPYBOX_DECL awaitable<void> McpClient::open(StatePtr state, Sandbox& sandbox,
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

// The versions that the error "unsupported protocol version" names.
IPYBOX_DECL const json::value* McpClient::supported_by(const Pending& refused) {
    const json::value* error = refused.reply ? refused.reply->if_contains("error") : nullptr;
    const json::value* data =
        error != nullptr && error->is_object() ? error->get_object().if_contains("data") : nullptr;
    return data != nullptr && data->is_object() ? data->get_object().if_contains("supported")
                                                : nullptr;
}

IPYBOX_DECL bool McpClient::lists(const json::value* versions, std::string_view version) {
    if (versions == nullptr || !versions->is_array()) return false;
    for (const auto& entry : versions->get_array())
        if (entry.is_string() && entry.get_string() == version) return true;
    return false;
}

// The newest legacy version in a list; empty when there is none.
IPYBOX_DECL std::string_view McpClient::legacy_of(const json::value* versions) {
    for (const auto version : detail::mcp_legacy_versions)
        if (lists(versions, version)) return version;
    return {};
}

// Whether the answer to server/discover is a modern one (2026-07-28 "Versioning"); takes over
// what it says. Throws when the server is modern and no version is common to both.
IPYBOX_DECL bool McpClient::adopt_discovery(const StatePtr& state, const Pending& probe) {
    if (!probe.reply) return false;
    const json::value* result = probe.reply->if_contains("result");
    if (result != nullptr && result->is_object()) {
        const auto& answer = result->get_object();
        if (!lists(answer.if_contains("supportedVersions"), detail::mcp_modern_version)) return false;
        const auto take = [](const json::object& from, std::string_view key) {
            const json::value* value = from.if_contains(key);
            return value != nullptr && value->is_object() ? value->get_object() : json::object();
        };
        state->capabilities = take(answer, "capabilities");
        state->server_info = take(take(answer, "_meta"), detail::meta_server_info);
        if (state->server_info.empty()) state->server_info = take(answer, "serverInfo");
        state->instructions = detail::string_of(answer, "instructions");
        state->protocol_version = detail::mcp_modern_version;
        state->era = McpEra::modern;
        state->connected = true;
        const auto tools = take(state->capabilities, "tools");
        const json::value* changes = tools.if_contains("listChanged");
        if (state->options.on_tools_changed && changes != nullptr && changes->is_bool() &&
            changes->get_bool()) {
            auto subscription = std::make_shared<Subscription>(state->executor);
            subscription->filter.emplace("toolsListChanged", true);
            state->subscriptions[""] = subscription;
            spawn(state, follow(state, std::move(subscription)));
        }
        return true;
    }
    const json::value* error = probe.reply->if_contains("error");
    if (error == nullptr || !error->is_object()) return false;
    const auto code = detail::integer_of(error->get_object().if_contains("code"));
    if (code != detail::rpc_header_mismatch && code != detail::rpc_missing_capability &&
        code != detail::rpc_unsupported_version)
        return false;
    if (!legacy_of(supported_by(probe)).empty()) return false;
    throw state->error(
        errc::mcp_protocol,
        "refuses protocol version 2026-07-28: " +
            detail::excerpt(detail::string_of(error->get_object(), "message"), max_text));
}

IPYBOX_DECL void McpClient::adopt_initialize(const StatePtr& state, const json::object& result) {
    const auto version = detail::string_of(result, "protocolVersion");
    bool known = false;
    for (const auto candidate : detail::mcp_legacy_versions) known = known || candidate == version;
    if (!known)
        throw state->error(
            errc::mcp_protocol,
            "speaks protocol version \"" + detail::excerpt(version, 64) +
                "\"; this client knows 2026-07-28, 2025-11-25, 2025-06-18, 2025-03-26 "
                "and 2024-11-05");
    state->protocol_version = version;
    if (const auto* value = result.if_contains("capabilities");
        value != nullptr && value->is_object())
        state->capabilities = value->get_object();
    if (const auto* value = result.if_contains("serverInfo");
        value != nullptr && value->is_object())
        state->server_info = value->get_object();
    state->instructions = detail::string_of(result, "instructions");
}

IPYBOX_DECL json::object McpClient::offered(const StatePtr& state) {
    json::object capabilities = state->options.capabilities;
    if (!state->options.on_request) {
        capabilities.erase("elicitation");
        capabilities.erase("sampling");
    }
    if (!state->options.roots.empty()) capabilities.emplace("roots", json::object());
    return capabilities;
}

IPYBOX_DECL json::object McpClient::client_info(const StatePtr& state) {
    json::object info = state->options.client_info;
    if (info.empty()) {
        info.emplace("name", "ipybox");
        info.emplace("version", detail::version);
    }
    return info;
}

}  // namespace ipybox
