#pragma once
#include <ipybox/mcp/client.hpp>

#include <boost/asio/associated_cancellation_slot.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/co_spawn.hpp>
#include <ipybox/compilation.hpp>
#include <ipybox/detail/build_info.hpp>
#include <vector>

namespace ipybox {

IPYBOX_DECL void McpClient::Impl::log(LogLevel level, std::string_view text) {
    if (!options.logger.enabled(level)) return;
    const auto now = Clock::now();
    if (now - log_second >= std::chrono::seconds(1)) {
        log_second = now;
        log_lines = 0;
    }
    if (++log_lines <= max_log_lines) options.logger(level, named(text));
}

IPYBOX_DECL void McpClient::Impl::fail(const Error& reason) {
    if (failure) return;
    failure = reason;
    for (const auto& [id, waiting] : pending) waiting->fail(reason);
    for (const auto& [uri, subscription] : subscriptions) subscription->changed.notify();
    elicited.notify();
    clock.cancel();
}

IPYBOX_DECL void McpClient::Impl::abandon() {
    std::vector<PendingPtr> waiting;
    for (const auto& [id, request] : pending) waiting.push_back(request);
    for (const auto& request : waiting) request->wait.drop();
}

IPYBOX_DECL void McpClient::Impl::stop() {
    closed = true;
    fail(error(errc::cancelled, "the client was closed"));
}

IPYBOX_DECL void McpClient::Impl::cancel_tasks() {
    for (auto task = tasks.begin(); task != tasks.end();)
        (task++)->emit(asio::cancellation_type::terminal);
}

IPYBOX_DECL McpClient::McpClient(asio::any_io_executor executor,
                                 std::unique_ptr<McpTransport> transport, McpClientOptions options)
    : state_(std::make_shared<Impl>(std::move(executor))) {
    state_->options = std::move(options);
    state_->transport = std::move(transport);
    state_->people = dynamic_cast<const WaitsForPeople*>(state_->transport.get());
}

IPYBOX_DECL McpClient::~McpClient() {
    state_->stop();
    // On the executor, not here: Asio (1.81) lets a signal that is emitted elsewhere outlive what
    // it is meant for. The transport goes with the last coroutine that holds the state.
    asio::post(state_->executor, [state = state_] { state->cancel_tasks(); });
}

IPYBOX_DECL awaitable<json::array> McpClient::list_tools() { return list(state_); }

IPYBOX_DECL awaitable<CallResult> McpClient::call_tool(std::string name, json::object arguments,
                                                       CallOptions options) {
    return call(state_, std::move(name), std::move(arguments), std::move(options));
}

IPYBOX_DECL awaitable<json::object> McpClient::request(std::string method, json::object params,
                                                       CallOptions options) {
    std::string what = mcp::excerpt(method, max_text);
    return exchange(state_, std::move(method), std::move(params), std::move(options),
                    std::move(what));
}

IPYBOX_DECL awaitable<void> McpClient::close() { return shut(state_); }

// Runs a coroutine on its own until it ends or the client is destroyed.
IPYBOX_DECL void McpClient::spawn(const ImplPtr& state, awaitable<void> work) {
    const auto task = state->tasks.emplace(state->tasks.end());
    asio::co_spawn(state->executor, std::move(work),
                   asio::bind_cancellation_slot(task->slot(), [state, task](std::exception_ptr) {
                       state->tasks.erase(task);
                   }));
}

// What a transport threw, as an error that names the server.
IPYBOX_DECL Error McpClient::translate(const ImplPtr& state, std::exception_ptr failure) {
    try {
        std::rethrow_exception(failure);
    } catch (const Error& error) {
        return {error.code(), state->named(error.detail())};
    } catch (const boost::system::system_error& error) {
        const bool cancelled = error.code() == asio::error::operation_aborted;
        return state->error(cancelled ? errc::cancelled : errc::mcp_connection, error.what());
    } catch (const std::exception& error) {
        return state->error(errc::mcp_connection, error.what());
    }
}

IPYBOX_DECL std::string McpClient::seconds(Duration duration) {
    const auto milliseconds =
        std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
    auto text = std::to_string(milliseconds / 1000);
    if (const auto rest = milliseconds % 1000; rest != 0)
        text += "." + std::to_string(1000 + rest).substr(1);
    return text + " s";
}

IPYBOX_DECL awaitable<void> McpClient::shut(ImplPtr state) {
    state->stop();
    std::exception_ptr failure;
    try {
        co_await state->transport->close();
    } catch (const std::exception&) {
        failure = std::current_exception();
    }
    if (failure) state->log(LogLevel::warning, translate(state, failure).detail());
    state->cancel_tasks();
}

}  // namespace ipybox
