#include "start.hpp"

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <cctype>
#include <kernel_start.hpp>
#include <optional>

#include "launch.hpp"

namespace ipybox::gateway {
namespace {

// It becomes a part of paths.
bool is_kernel_id(std::string_view id) {
    return !id.empty() && id.size() <= 100 && std::all_of(id.begin(), id.end(), [](char c) {
        return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_';
    });
}

// Takes the kernel's id from the server's answer. Throws Error: kernel_start_failed.
void take_id(Link& link, const Answer& answer) {
    if (answer.status / 100 != 2)
        throw Error(errc::kernel_start_failed,
                    link.server->refusal(answer, "did not start a kernel"));
    const auto* model = answer.body.if_object();
    const auto id = model ? detail::string_of(*model, "id") : std::string_view();
    if (!is_kernel_id(id))
        throw Error(errc::kernel_start_failed, "what answers at " + link.settings.url +
                                                   " is no Jupyter server: check the URL");
    link.kernel = id;
}

// A wrong certificate or name does not get better.
bool hopeless(const Error& problem) {
    return problem.detail().find("certificate") != std::string::npos ||
           problem.detail().find("TLS") != std::string::npos ||
           problem.code() == errc::bad_argument;
}

errc start_code(const Error& problem) {
    return problem.code() == errc::timed_out ? errc::timed_out : errc::kernel_start_failed;
}

// The request that starts the kernel's end of the link.
json::object start_request(const json::object& settings) {
    ExecuteRequest request;
    request.code = kernel_start;
    request.silent = true;
    json::object content = execute_content(std::move(request));
    // A string literal of JSON is one of Python as well.
    const auto literal = detail::write_json(json::value(detail::write_json(settings)));
    json::object expressions;
    expressions["ipybox"] = "_ipybox_start(__import__('json').loads(" + literal + "))";
    content["user_expressions"] = std::move(expressions);
    return content;
}

void require_started(const json::object& reply) {
    const auto* results = detail::object_of(reply, "user_expressions");
    const auto* own = results ? detail::object_of(*results, "ipybox") : nullptr;
    if (own != nullptr && detail::string_of(*own, "status") == "ok") return;
    const auto* outcome = own ? own : &reply;
    throw Error(errc::kernel_start_failed,
                "the kernel did not take ipybox's start (" +
                    shown(detail::string_of(*outcome, "ename")) + ": " +
                    shown(detail::string_of(*outcome, "evalue")) +
                    "); it must be a Python kernel (ipykernel 6 or newer)");
}

}  // namespace

awaitable<void> create_kernel(LinkPtr link, Clock::time_point deadline) {
    const auto& settings = link->settings;
    json::object wanted;
    if (!settings.kernel_name.empty()) wanted["name"] = settings.kernel_name;
    if (!settings.env.empty()) wanted["env"] = settings.env;
    const std::string body = detail::write_json(wanted);
    for (int attempt = 0;; ++attempt) {
        std::optional<Error> problem;
        Answer answer;
        try {
            answer = co_await Server::call(link->server, "POST", "/api/kernels", body, deadline);
        } catch (const Error& error) {
            problem = error;
        }
        if (!problem) {
            take_id(*link, answer);
            co_return;
        }
        const bool late = Clock::now() + settings.retry_interval >= deadline;
        if (attempt >= settings.connect_retries || late || hopeless(*problem))
            throw Error(start_code(*problem), "no kernel could be started: " + problem->detail());
        const auto again = Clock::now() + settings.retry_interval;
        co_await sleep_until(again);
        co_await throw_if_cancelled();
    }
}

awaitable<void> begin_link(LinkPtr link, json::object settings, Clock::time_point deadline) {
    std::optional<Error> problem;
    ConnectionPtr connection;
    try {
        connection = co_await open_connection(link, deadline);
    } catch (const Error& error) {
        problem = error;
    }
    if (problem) throw Error(start_code(*problem), problem->detail());
    link->heard = Clock::now();
    asio::co_spawn(link->executor, keep_connected(link, connection), asio::detached);
    link->boot = link->next_id();
    const auto content = start_request(settings);
    const auto message = link->make("shell", "execute_request", link->boot, content);
    while (!link->connection) {
        require_start(*link, deadline);
        co_await link->changed.wait(deadline);
    }
    link->send(message);
    while (!link->booted) {
        require_start(*link, deadline);
        co_await link->changed.wait(deadline);
        co_await throw_if_cancelled();
    }
    require_started(*link->booted);
    link->booted->clear();
    link->boot.clear();
    link->resume();
    while (!link->delivery.linked()) {
        require_start(*link, deadline);
        co_await link->changed.wait(deadline);
        co_await throw_if_cancelled();
    }
}

}  // namespace ipybox::gateway
