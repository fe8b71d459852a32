#pragma once
// The end of a StdioMux inside a sandbox: runs one command, carries its loopback connections over
// two descriptors, and ends with it.

// What to run comes as the first frame of `input` (see ipybox/sandbox_kit/mux_frames.hpp). The
// command has our standard streams; when `input` is one of them itself, an empty input and our
// standard error. Returns the command's exit status, 128 + its signal, or 125 when there is no
// command to run: the reason is on standard error.
int relay_main(int input, int output);
