#pragma once
// The end of a StdioMux inside a sandbox: runs one command, carries its loopback connections over
// two descriptors, and ends with it.

// What to run comes as the first frame of `input` (see ipybox/sandbox_kit/mux_frames.hpp). The
// command has our standard streams; when `input` is one of them itself, an empty input and our
// standard error. Returns the command's exit status, 128 + its signal, or 125 when there is no
// command to run: the reason is on standard error. no_exec: we can start nothing else, which the
// command waits for; that it cannot either is its own launcher's business.
int relay_main(int input, int output, bool no_exec);
