#pragma once
// The end of a StdioMux inside a sandbox: runs one command, carries its loopback connections over
// standard input and output, and ends with it.

// No arguments: what to run comes as the first frame of standard input (see
// ipybox/detail/mux_frames.hpp). Returns the command's exit status, 128 + its signal, or 125 when
// there is no command to run: the reason is on standard error.
int relay_main(int argc, char** argv);
