// An MCP server with two tools, for an MCP client that starts it.
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <ipybox/mcp/server.hpp>

using namespace ipybox;

namespace {

awaitable<McpToolResult> add(McpContext, json::object arguments) {
    McpToolResult result;
    result.structured = json::object{
        {"sum", arguments.at("a").to_number<double>() + arguments.at("b").to_number<double>()}};
    co_return result;
}

awaitable<McpToolResult> wait(McpContext context, json::object arguments) {
    const int seconds = arguments.at("seconds").to_number<int>();
    if (seconds > 60) throw Error(errc::bad_argument, "one minute at most");
    for (int done = 0; done < seconds; ++done) {
        context.progress(done, seconds, "waiting");
        co_await sleep_until(Clock::now() + std::chrono::seconds(1));
    }
    co_return "waited";
}

}  // namespace

int main() {
    asio::io_context context;
    McpServer server(context.get_executor());
    const json::object number{{"type", "number"}}, seconds{{"type", "integer"}, {"minimum", 0}};
    server.add_tool({
        .name = "add",
        .description = "Adds two numbers",
        .input_schema = {{"type", "object"},
                         {"properties", {{"a", number}, {"b", number}}},
                         {"required", {"a", "b"}}},
        .output_schema = {{"type", "object"}, {"properties", {{"sum", number}}}},
        .annotations = {{"readOnlyHint", true}},
        .call = add,
    });
    server.add_tool({
        .name = "wait",
        .description = "Waits, and reports how far it is",
        .input_schema = {{"type", "object"},
                         {"properties", {{"seconds", seconds}}},
                         {"required", {"seconds"}}},
        .call = wait,
    });
    asio::co_spawn(context, server.serve_stdio(), [&](std::exception_ptr) { context.stop(); });
    context.run();
}
