#pragma once
// Times McpClient::call_tool over stdio and streamable HTTP, each against the same exchange with
// the same server without McpClient, and prints tables.
void measure_mcp_round_trips(int rounds);
