#include "kernel.hpp"

#include <algorithm>
#include <ipybox/detail/json_memory.hpp>

namespace ipybox::gateway {
namespace {
using namespace std::chrono_literals;

// How long the reply to an idle kernel's execution may take.
constexpr Duration reply_patience = 5s;

// The content of a message that the kernel's end did not wrap. Throws JupyterBreach.
json::object content_of(const Link& link, jupyter::IncomingMessage& message) {
    auto content = message.read_content(link.settings.limits);
    if (!content) throw JupyterBreach(describe(content.error()));
    return std::move(*content);
}

// Tells the execution of a message. Throws JupyterBreach.
void feed(Link& link, jupyter::IncomingMessage& message) {
    auto& execution = link.execution;
    if (message.channel == "shell")
        return execution.on_shell(message.type, message.parent_id,
                                  [&] { return content_of(link, message); });
    const auto most = link.settings.limits.decoded;
    if (detail::decoded_size(message.content) > most && execution.leave_out(message.type, most))
        return;
    execution.on_iopub(message.type, message.parent_id, [&] {
        if (message.type == "status") return content_of(link, message);
        auto data = link.data_of(message);
        if (!data) throw JupyterBreach("a message without its content");
        return std::move(*data);
    });
}

}  // namespace

awaitable<std::optional<KernelOutput>> next_output(LinkPtr link, Clock::time_point deadline) {
    auto& execution = link->execution;
    for (;;) {
        if (link->stopping || link->closed) link->require_usable();
        auto output = execution.take();
        if (output) co_return output;
        if (const auto received = link->delivery.take()) {
            if (const auto shared = link->delivery.shared_unread();
                shared < link->inbox_memory.size())
                static_cast<void>(link->inbox_memory.resize(shared));  // giving back never fails
            link->changed.notify();
            try {
                feed(*link, received->message);
            } catch (const JupyterBreach& breach) {
                link->end_protocol(breach.what());
            }
            if (received->number != 0) link->consumed(received->bytes.size());
            continue;
        }
        link->require_usable();
        if (execution.id().empty())
            throw Error(errc::bad_argument,
                        "next() needs a running execution; call execute() first");
        // A connection that is being made again may bring the reply.
        if (link->connection && !link->delivery.resuming()) execution.expect_reply(reply_patience);
        if (Clock::now() >= deadline) co_return std::nullopt;
        const auto soonest = std::min(deadline, execution.reply_grace());
        co_await link->changed.wait(soonest);
        co_await throw_if_cancelled();
    }
}

awaitable<void> check_kernel(LinkPtr link) {
    Answer answer;
    try {
        const auto deadline = Clock::now() + 10s;
        answer =
            co_await Server::call(link->server, "GET", path_of(*link), std::string(), deadline);
    } catch (const std::exception&) {
        co_return;
    }
    if (link->over()) co_return;
    if (answer.status == 404)
        link->end_dead("the server does not know it any more: it was culled or deleted");
    const auto* model = answer.body.if_object();
    if (model != nullptr && detail::string_of(*model, "execution_state") == "dead")
        link->end_dead("its server reports it as dead");
}

awaitable<void> watch_kernel(LinkPtr link) {
    const auto interval = link->settings.ping_interval;
    while (!link->over()) {
        const auto quiet_until = std::max(link->heard, Clock::now() - interval) + interval;
        const auto next = std::max(quiet_until, Clock::now() + interval / 2);
        while (!link->over() && Clock::now() < next) co_await link->changed.wait(next);
        if (link->over()) co_return;
        if (link->connection && Clock::now() - link->heard >= interval) co_await check_kernel(link);
    }
}

awaitable<void> delete_kernel(ServerPtr server, std::string path) {
    try {
        const auto deadline = Clock::now() + 5s;
        co_await Server::call(server, "DELETE", std::move(path), std::string(), deadline);
    } catch (const std::exception&) {
        // It is culled some day, or is gone already.
    }
}

}  // namespace ipybox::gateway
