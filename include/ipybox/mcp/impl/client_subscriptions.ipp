#pragma once
#include <ipybox/mcp/client.hpp>

#include <ipybox/compilation.hpp>

namespace ipybox {

IPYBOX_DECL awaitable<void> McpClient::subscribe(std::string uri) {
    return subscribe(state_, std::move(uri));
}

IPYBOX_DECL awaitable<void> McpClient::unsubscribe(std::string uri) {
    return unsubscribe(state_, std::move(uri));
}

IPYBOX_DECL awaitable<void> McpClient::set_log_level(std::string level) {
    return set_log_level(state_, std::move(level));
}

// What a legacy server is asked to remember, and answers with nothing.
IPYBOX_DECL awaitable<void> McpClient::tell_legacy(ImplPtr state, const char* method,
                                                   const char* name, std::string value) {
    json::object params;
    params.emplace(name, std::move(value));
    CallOptions limits;
    limits.total_timeout = state->options.connect_timeout;
    std::string what = method;
    co_await exchange(state, method, std::move(params), std::move(limits), std::move(what));
}

// ---- subscriptions ----
IPYBOX_DECL awaitable<void> McpClient::subscribe(ImplPtr state, std::string uri) {
    if (state->era != McpEra::modern) {
        co_await tell_legacy(state, "resources/subscribe", "uri", std::move(uri));
        co_return;
    }
    if (state->failure) throw *state->failure;
    if (!state->connected) throw state->error(errc::bad_argument, "is not connected");
    if (uri.empty()) throw state->error(errc::bad_argument, "a resource has no empty URI");
    auto& place = state->subscriptions[uri];
    if (place) co_return;
    auto subscription = std::make_shared<Subscription>(state->executor);
    place = subscription;
    json::array uris;
    uris.emplace_back(uri);
    subscription->filter.emplace("resourceSubscriptions", std::move(uris));
    spawn(state, follow(state, subscription));
    const auto deadline = deadline_after(state->options.connect_timeout);
    std::optional<Error> failure;
    while (!subscription->acknowledged && !failure) {
        co_await subscription->changed.wait(deadline);
        const auto cancellation = co_await asio::this_coro::cancellation_state;
        if (state->failure) throw *state->failure;
        failure = subscription->failure;
        if (cancellation.cancelled() != asio::cancellation_type::none)
            failure = state->error(errc::cancelled, "the subscription was withdrawn");
        else if (Clock::now() >= deadline)
            failure = state->error(errc::timed_out, "did not agree to a subscription within " +
                                                        seconds(state->options.connect_timeout));
    }
    if (!failure) co_return;
    co_await unsubscribe(state, std::move(uri));
    throw *failure;
}

IPYBOX_DECL awaitable<void> McpClient::unsubscribe(ImplPtr state, std::string uri) {
    if (state->era != McpEra::modern) {
        co_await tell_legacy(state, "resources/unsubscribe", "uri", std::move(uri));
        co_return;
    }
    const auto found = state->subscriptions.find(uri);
    if (uri.empty() || found == state->subscriptions.end()) co_return;
    const auto subscription = found->second;
    state->subscriptions.erase(found);
    subscription->stopped = true;
    subscription->changed.notify();
    if (subscription->pending) {
        withdraw(state, subscription->pending, "nobody listens any more");
        subscription->pending->fail(
            state->error(errc::cancelled, "the subscription was withdrawn"));
    }
}

// Listens until told to stop, starting again when the stream breaks (2026-07-28 "Subscriptions").
IPYBOX_DECL awaitable<void> McpClient::follow(ImplPtr state, SubscriptionPtr subscription) {
    Duration pause = std::chrono::seconds(1);
    bool first = true;
    while (!subscription->stopped && !state->failure) {
        json::object params;
        params.emplace("notifications", subscription->filter);
        CallOptions limits;
        limits.idle_timeout = Duration::zero();
        auto pending = start(state, "subscriptions/listen", std::move(params), std::move(limits));
        const Forget forget(state, pending);
        subscription->pending = pending;
        const bool cancelled = co_await settle(state, pending, never);
        if (cancelled || subscription->stopped || state->failure) co_return;
        if (subscription->acknowledged) {
            pause = std::chrono::seconds(1);
            first = false;
        }
        subscription->acknowledged = false;
        const json::value* error = pending->reply ? pending->reply->if_contains("error") : nullptr;
        if (error != nullptr && first) {
            try {
                result_of(state, *pending, "subscriptions/listen");
            } catch (const Error& refused) {
                subscription->failure = refused;
            }
            state->log(LogLevel::info, subscription->failure->detail());
            subscription->changed.notify();
            co_return;
        }
        const auto later = deadline_after(pause);
        co_await subscription->changed.wait(later);
        const auto cancellation = co_await asio::this_coro::cancellation_state;
        if (cancellation.cancelled() != asio::cancellation_type::none) co_return;
        pause = std::min<Duration>(2 * pause, std::chrono::minutes(1));
    }
}

// ---- the server's log ----

// From where on the server's log messages are wanted; empty: not at all.
IPYBOX_DECL std::string McpClient::log_level(const Impl& state) {
    const auto& options = state.options;
    if (!options.log_level.empty()) return options.log_level;
    for (const auto& [level, name] :
         {std::pair(LogLevel::debug, "debug"), std::pair(LogLevel::info, "info"),
          std::pair(LogLevel::warning, "warning"), std::pair(LogLevel::error, "error")})
        if (options.logger.enabled(level) || (options.on_log && level == LogLevel::info))
            return name;
    return {};
}

IPYBOX_DECL awaitable<void> McpClient::set_log_level(ImplPtr state, std::string level) {
    if (!detail::log_severity(level))
        throw state->error(errc::bad_argument, "there is no log level \"" + level + "\"");
    state->options.log_level = level;
    if (state->era != McpEra::modern && state->capabilities.contains("logging"))
        co_await tell_legacy(state, "logging/setLevel", "level", std::move(level));
}

// A legacy server decides by itself what it logs until it is told.
IPYBOX_DECL awaitable<void> McpClient::begin_logging(ImplPtr state) {
    std::string level = log_level(*state);
    if (level.empty()) co_return;
    try {
        co_await tell_legacy(state, "logging/setLevel", "level", std::move(level));
    } catch (const Error& error) {
        if (!state->closed) state->log(LogLevel::debug, error.detail());
    }
}

}  // namespace ipybox
