#pragma once
// Measures forked kernels (the plugin `fork`, in the sandbox bubblewrap) against the original and
// against floors in Python, and prints tables. Throws Error, or std::runtime_error (output was
// lost).
void measure_forks(int starts, int round_trips);
