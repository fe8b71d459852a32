#pragma once

// Measures what it takes to start a program in a kernel whose programs need a yes, against one
// that starts them itself, and prints a table. Throws Error, or std::runtime_error (a program did
// not run). rounds: programs of each.
void measure_programs(int rounds);
