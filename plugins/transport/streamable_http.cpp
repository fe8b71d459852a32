// An MCP server over streamable HTTP: the legacy form with sessions and the modern one without
// (MCP 2025-03-26 to 2026-07-28), and HTTP+SSE where a server turns out to be that old.
#include <ipybox/mcp/http_transport.hpp>
#include <ipybox/plugin.hpp>

namespace {
using namespace ipybox;

constexpr Plugin self{
    .name = "streamable_http",
    .summary = "an MCP server over streamable HTTP",
    .config_schema = R"({
        "type": "object",
        "properties": {
            "type": {"enum": ["streamable_http", "streamable-http", "http"]},
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
        return std::make_unique<HttpTransport>(host, config, HttpTransport::Wire::streamable);
    },
};
}  // namespace

IPYBOX_PLUGIN(streamable_http, self)
