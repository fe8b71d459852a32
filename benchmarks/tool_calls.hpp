#pragma once
// Times tool calls from the kernel against their floor, a bare JSON echo over a Unix socket plus a
// bare echo over a pipe, and prints a table. Throws what a CodeExecutor throws.
void measure_tool_calls(int rounds);
