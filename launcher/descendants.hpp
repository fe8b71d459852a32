#pragma once
// What processes that outlive what they start, or adopt what others started, do with it.

// SIGKILL to every child; their children then become ours. Call again on each SIGCHLD until
// waitpid() finds no child. False when they cannot be found for lack of /proc.
bool kill_children();

// Kills and collects children until none is left.
void kill_all();

// From now on a child's end is no signal, but something to read from what this returns; -1 with
// errno.
int watch_children();

// But for that of a child's end, none is for us any more.
void ignore_signals();

// What waitpid() stored, as a shell would say it.
int exit_code(int status);
