#pragma once
#include <string>

// Measures forked kernels (the plugin `fork`, in the sandbox bubblewrap) against the original and
// against floors in Python, and prints tables. Throws Error, or std::runtime_error (output was
// lost). page: the file whose table is written; none when empty.
void measure_forks(int starts, int round_trips, int tool_calls, const std::string& page);
