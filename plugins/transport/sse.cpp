// An MCP server over HTTP+SSE, as protocol version 2024-11-05 has it: a stream of events brings
// the server's messages and the address to which ours are posted.
#include <ipybox/mcp/http_transport.hpp>
#include <ipybox/plugin.hpp>

namespace {
using namespace ipybox;

constexpr Plugin self{
    .name = "sse",
    .summary = "an MCP server over HTTP with server-sent events (the old way)",
    .config_schema = R"({
        "type": "object",
        "properties": {
            "type": {"const": "sse"},
            "url": {"type": "string", "minLength": 1, "description": "http:// or https://; proxies come from the environment"},
            "name": {"type": "string", "description": "the server's, for messages; ipybox puts it there"},
            "headers": {"type": "object", "additionalProperties": {"type": "string"},
                        "description": "sent with every request"},
            "auth": {"type": "object", "description": "how to get tokens (OAuth), where the server's own word is not enough"}
        },
        "required": ["url"],
        "additionalProperties": false
    })",
    .make = +[](Host& host, const json::object& config) -> std::unique_ptr<McpTransport> {
        return std::make_unique<HttpTransport>(host, config, HttpTransport::Wire::sse);
    },
};
}  // namespace

IPYBOX_PLUGIN(sse, self)
