#pragma once
// Runs a command on the host and lets nothing that it started outlive it, or us.

// The value that sigqueue(3) gives a signal which is for the command's process group; others are
// for the command alone.
inline constexpr int guard_whole_group = 1;

// Arguments after the first: `--pen` and two descriptors if the command is to run in the user and
// pid namespaces that these name; the command, or the subcommand `scratch` with its own. Ends
// everything when the parent is gone, when the command has ended, and at SIGQUIT; passes other
// signals on. Returns the command's exit status, 128 + its signal, or 127 when it cannot be
// started.
int guard_main(int argc, char** argv);
