// Tool calls under approval without a kernel: the server that carries them out, the channel by
// which it asks, an approver, and a program that calls. Here all four are in one process; each can
// be in one of its own, given host, port and token.
//
//   IPYBOX_PLUGIN_PATH=build/plugins build/examples/tool_calls COMMAND [ARGUMENT...]
//
// starts that MCP server and calls two of its tools, echo and add.
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <iostream>
#include <ipybox/approval/channel.hpp>
#include <ipybox/tools/tool_runner.hpp>
#include <ipybox/tools/tool_server.hpp>

namespace {
using namespace ipybox;

unsigned short port_of(const std::string& url) { return HttpUrl::parse(url).port; }

awaitable<void> call_tools(asio::any_io_executor executor, PluginRegistry& registry,
                           json::object params) {
    //! [ApprovalChannel]
    ApprovalChannelOptions asking;
    asking.approval_required = true;
    asking.approval_timeout = std::chrono::seconds(60);
    ApprovalChannel channel(executor, asking);
    const std::string channel_url = channel.listen("localhost", 0);  // without a port at 8900
    // Approvers present channel.token(). co_await channel.request("mail", "send", {}) puts a
    // question to them, and so does what is handed to others as an Approver:
    const Approver people = [&channel](ToolCall call) { return channel.ask(std::move(call)); };
    //! [ApprovalChannel]

    //! [ToolServer]
    ToolServerOptions serving;
    serving.approval_required = true;  // otherwise every call is allowed
    serving.approvers.push_back(people);
    ToolServer server(executor, registry, serving);
    const std::string server_url = server.listen_tcp("localhost", 0);  // without a port at 8900
    // Who presents server.token() can call tools; server.control_token() also registers servers,
    // as server.register_server("own", params) does here.
    //! [ToolServer]

    //! [ApprovalClient]
    ApprovalClientOptions approving;
    approving.port = port_of(channel_url);
    approving.token = channel.token();
    ApprovalClient approver(
        executor,
        [](ApprovalClient::Request request) -> awaitable<void> {
            std::cout << "asked: " << request.to_string() << std::endl;
            if (request.tool_name() == "echo")
                request.accept();
            else
                request.reject("not this one");
            co_return;
        },
        approving);
    co_await approver.connect();
    //! [ApprovalClient]

    //! [ToolRunner]
    ToolRunnerOptions calling;
    calling.server_params = std::move(params);  // {"command": …, "args": […]} or {"url": …}
    calling.port = port_of(server_url);
    calling.token = server.control_token();
    ToolRunner runner(executor, "own", calling);
    json::object text{{"text", "hello"}}, numbers{{"a", 1}, {"b", 2}};
    const ToolOutput output = co_await runner.run("echo", std::move(text));
    std::cout << "result: " << output.result << std::endl;
    try {
        co_await runner.run("add", std::move(numbers));
    } catch (const Error& error) {
        if (error.code() != errc::denied) throw;
        std::cout << "denied: " << error.detail() << std::endl;
    }
    co_await runner.reset();  // its MCP servers end, and start again with the next call
    //! [ToolRunner]
    co_await approver.disconnect();
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 2) {
        std::cerr << "usage: tool_calls COMMAND [ARGUMENT...]" << std::endl;
        return 2;
    }
    json::array arguments;
    for (int i = 2; i < argc; ++i) arguments.emplace_back(argv[i]);
    json::object params{{"command", argv[1]}, {"args", std::move(arguments)}};
    asio::io_context context(1);
    PluginRegistry registry = PluginRegistry::standard();
    int status = 0;
    asio::co_spawn(context, call_tools(context.get_executor(), registry, std::move(params)),
                   [&](std::exception_ptr failure) {
                       context.stop();
                       if (!failure) return;
                       status = 1;
                       try {
                           std::rethrow_exception(failure);
                       } catch (const std::exception& error) {
                           std::cerr << error.what() << std::endl;
                       }
                   });
    context.run();
    return status;
}
