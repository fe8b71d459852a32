#pragma once

// Medians in microseconds. floor: a bare JSON echo over a Unix socket plus a bare echo over a pipe.
struct ToolCalls {
    double floor = 0, send = 0, run = 0;
};

// Times tool calls from the kernel against their floor, and prints a table. Throws what a
// CodeExecutor throws.
ToolCalls measure_tool_calls(int rounds);
// The median of the original's calls, each accepted by its CodeExecutor, in microseconds. Throws
// std::runtime_error.
double measure_original_tool_calls(int rounds);
