#pragma once
// The two eras of MCP.

namespace ipybox {

// How a server's protocol works: legacy (a handshake opens a session; 2024-11-05 to 2025-11-25) or
// modern (stateless; 2026-07-28). `detect` asks the server; McpClient::era() then tells, so that
// the answer can be kept and given the next time.
enum class McpEra { detect, legacy, modern };

}  // namespace ipybox
