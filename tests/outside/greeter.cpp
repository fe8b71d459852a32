// A transport with parameters of its own: {"type": "greeter", "address": …}. Its MCP server is in
// here, and has one tool.
#include <deque>
#include <ipybox/plugin.hpp>

namespace {
using namespace ipybox;

class Greeter final : public McpTransport {
public:
    Greeter(asio::any_io_executor executor, std::string address)
        : address_(std::move(address)), changed_(std::move(executor)) {}

    awaitable<void> open(Sandbox&) override {
        open_ = true;
        co_return;
    }
    awaitable<void> send(json::object message) override {
        if (!message.contains("id")) co_return;  // a notification
        json::object answer{{"jsonrpc", "2.0"}, {"id", message.at("id")}};
        const std::string method(message.at("method").as_string());
        if (method == "initialize")
            answer["result"] = {{"protocolVersion", "2025-11-25"},
                                {"capabilities", {{"tools", json::object()}}},
                                {"serverInfo", {{"name", "greeter"}, {"version", "1"}}}};
        else if (method == "tools/list")
            answer["result"] = {
                {"tools", json::array{json::object{{"name", "greet"},
                                                   {"inputSchema", {{"type", "object"}}}}}}};
        else if (method == "tools/call")
            answer["result"] = {
                {"content",
                 json::array{json::object{{"type", "text"}, {"text", "hello from " + address_}}}}};
        else
            answer["error"] = {{"code", -32601}, {"message", "not known here"}};
        answers_.push_back(std::move(answer));
        changed_.notify();
    }
    awaitable<json::object> receive() override {
        while (open_ && answers_.empty()) co_await changed_.wait();
        if (!open_) throw Error(errc::cancelled, "the connection was closed");
        json::object answer = std::move(answers_.front());
        answers_.pop_front();
        co_return answer;
    }
    void cancel(const json::value&) override {}
    awaitable<void> close() override {
        open_ = false;
        changed_.notify();
        co_return;
    }

private:
    std::string address_;
    Event changed_;
    std::deque<json::object> answers_;
    bool open_ = false;
};

constexpr Plugin self{
    .name = "greeter",
    .summary = "an MCP server in this plugin, which greets from an address",
    .config_schema = R"({"type": "object", "additionalProperties": false,
        "required": ["address"], "properties": {"address": {"type": "string"}}})",
    .make = +[](Host& host, const json::object& config) -> std::unique_ptr<McpTransport> {
        return std::make_unique<Greeter>(host.executor,
                                         std::string(config.at("address").as_string()));
    },
};
}  // namespace

IPYBOX_PLUGIN(greeter, self)
