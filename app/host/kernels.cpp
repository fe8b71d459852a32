// Kernels alone: gateways of this machine, and kernels behind any.
#include "answers.hpp"
#include "host.hpp"
#include "options.hpp"

namespace ipybox::app::host {
namespace {

std::uint16_t port_of(const json::object& params) {
    return static_cast<std::uint16_t>(count_of(params, "port", 8888));
}

awaitable<json::object> start_gateway(HostPtr host, RequestPtr request) {
    const auto& params = request->params;
    KernelGatewayOptions options;
    options.host = text_of(params, "host", "localhost");
    options.port = port_of(params);
    if (params.contains("working_dir")) options.working_dir = text_of(params, "working_dir");
    for (const auto& [name, value] : variables_of(params, "env")) options.env[name] = value;
    options.log_level = text_of(params, "log_level", "INFO");
    options.python = text_of(params, "python");
    options.token = text_of(params, "token");
    const auto gateway = std::make_shared<Gateway>();
    gateway->handle = host->next_handle('g');
    gateway->process = std::make_unique<KernelGateway>(host->executor, std::move(options));
    // While it starts it counts, and ends with the host.
    host->gateways.emplace(gateway->handle, gateway);
    const Undo undo{[host, gateway] { host->gateways.erase(gateway->handle); }};
    co_await gateway->process->start();
    undo.done = true;
    json::object result;
    result.emplace("gateway", gateway->handle);
    result.emplace("token", gateway->process->token());
    co_return result;
}

json::object status_of_gateway(HostState& host, Request& request) {
    return only("output", host.gateway_of(request)->process->output_tail());
}

awaitable<json::object> join_gateway(HostPtr host, RequestPtr request) {
    const auto gateway = host->gateway_of(*request);
    const auto status = co_await gateway->process->join();
    json::object result;
    const bool ended = status.has_value();
    result.emplace("exit_code",
                   ended && !status->signalled ? json::value(status->code) : json::value());
    result.emplace("signal",
                   ended && status->signalled ? json::value(status->code - 128) : json::value());
    co_return result;
}

awaitable<json::object> stop_gateway(HostPtr host, RequestPtr request) {
    const auto gateway = host->gateway_of(*request);
    host->gateways.erase(gateway->handle);
    const auto timeout = seconds_of(request->params, "timeout", 10);
    co_await gateway->process->stop(timeout);
    co_return json::object();
}

awaitable<json::object> connect_kernel(HostPtr host, RequestPtr request) {
    auto& params = request->params;
    KernelClientOptions options;
    options.host = text_of(params, "host", "localhost");
    options.port = port_of(params);
    options.url = text_of(params, "url");
    options.token = text_of(params, "token");
    if (params.contains("working_dir")) options.working_dir = text_of(params, "working_dir");
    options.images_dir = text_of(params, "images_dir", "images");
    options.ping_interval = seconds_of(params, "ping_interval", 10);
    options.kernel_init_timeout = seconds_of(params, "kernel_init_timeout", 10);
    options.kernel_options = take_object(params, "kernel_options");
    options.logger = host->logger;
    const auto retries = static_cast<int>(count_of(params, "retries", 10));
    const auto interval = seconds_of(params, "retry_interval", 1);
    const auto kernel = std::make_shared<Kernel>();
    kernel->handle = host->next_handle('k');
    kernel->client =
        std::make_unique<KernelClient>(host->executor, host->registry, std::move(options));
    host->kernels.emplace(kernel->handle, kernel);
    const Undo undo{[host, kernel] { host->kernels.erase(kernel->handle); }};
    co_await kernel->client->connect(retries, interval);
    undo.done = true;
    json::object result;
    result.emplace("kernel", kernel->handle);
    result.emplace("kernel_id", kernel->client->kernel_id());
    co_return result;
}

awaitable<json::object> execute_in_kernel(HostPtr host, RequestPtr request) {
    const auto kernel = host->kernel_of(*request);
    auto wanted = execution_of(request->params);
    begin_execution(*host, *request);
    auto begun = co_await kernel->client->stream(std::move(wanted.code), wanted.how);
    auto execution = std::make_shared<CodeExecutor::Execution>(std::move(begun));
    co_return co_await run_to_result(host, request, std::move(execution), wanted.streams);
}

json::object interrupt_kernel(HostState& host, Request& request) {
    host.kernel_of(request)->client->interrupt();
    return {};
}

awaitable<json::object> reset_kernel(HostPtr host, RequestPtr request) {
    const auto kernel = host->kernel_of(*request);
    co_await kernel->client->reset();
    co_return only("kernel_id", kernel->client->kernel_id());
}

awaitable<json::object> variables_of_kernel(HostPtr host, RequestPtr request) {
    const auto kernel = host->kernel_of(*request);
    const auto found = co_await kernel->client->variables();
    co_return variables_json(found);
}

awaitable<json::object> complete_in_kernel(HostPtr host, RequestPtr request) {
    const auto kernel = host->kernel_of(*request);
    auto code = text_of(request->params, "code");
    const auto found = co_await kernel->client->complete(std::move(code));
    co_return completions_json(found);
}

awaitable<json::object> disconnect_kernel(HostPtr host, RequestPtr request) {
    const auto kernel = host->kernel_of(*request);
    host->kernels.erase(kernel->handle);
    co_await kernel->client->disconnect();
    co_return json::object();
}

}  // namespace

Methods kernel_methods() {
    return {{"gateway/start", nullptr, start_gateway},
            {"gateway/status", status_of_gateway},
            {"gateway/join", nullptr, join_gateway},
            {"gateway/stop", nullptr, stop_gateway},
            {"kernel/connect", nullptr, connect_kernel},
            {"kernel/execute", nullptr, execute_in_kernel},
            {"kernel/interrupt", interrupt_kernel},
            {"kernel/reset", nullptr, reset_kernel},
            {"kernel/variables", nullptr, variables_of_kernel},
            {"kernel/complete", nullptr, complete_in_kernel},
            {"kernel/disconnect", nullptr, disconnect_kernel}};
}

}  // namespace ipybox::app::host
