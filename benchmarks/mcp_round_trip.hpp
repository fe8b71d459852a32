#pragma once
// Times McpClient::call_tool over stdio against its floor, the same lines written to the same
// server and read from it without McpClient, and prints a table.
void measure_mcp_round_trips(int rounds);
