// A transport whose parameters are neither "command" nor "url": reaches nothing, and says where to.
#include <ipybox/plugin.hpp>

namespace {
using namespace ipybox;

class Addressed final : public McpTransport {
public:
    explicit Addressed(std::string address) : address_(std::move(address)) {}

    awaitable<void> open(Sandbox&) override {
        throw Error(errc::mcp_connection, "nobody listens at " + address_);
        co_return;
    }
    awaitable<void> send(json::object) override { co_return; }
    awaitable<json::object> receive() override { co_return json::object(); }
    void cancel(const json::value&) override {}
    awaitable<void> close() override { co_return; }

private:
    std::string address_;
};

constexpr Plugin self{
    .name = "addressed",
    .summary = "a plugin of the tests",
    .config_schema = R"({"type": "object", "additionalProperties": false,
        "required": ["address"], "properties": {"address": {"type": "string"}}})",
    .make = +[](Host&, const json::object& config) -> std::unique_ptr<McpTransport> {
        return std::make_unique<Addressed>(std::string(config.at("address").as_string()));
    },
};
}  // namespace

IPYBOX_PLUGIN(addressed, self)
