#pragma once
// Runs a command on the host and lets nothing that it started outlive it, or us.

// Arguments after the first: the command. Ends everything when the parent is gone, and when the
// command has ended. Returns its exit status, 128 + its signal, or 127 when it cannot be started.
int guard_main(int argc, char** argv);
