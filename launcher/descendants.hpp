#pragma once
// What a process that adopts its orphaned descendants (PR_SET_CHILD_SUBREAPER) does with them.

// SIGKILL to every child; their children then become ours. Call again on each SIGCHLD until
// waitpid() finds no child. False when they cannot be found for lack of /proc.
bool kill_children();

// Kills and collects children until none is left.
void kill_all();

// What waitpid() stored, as a shell would say it.
int exit_code(int status);
