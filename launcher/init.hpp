#pragma once
// The first process of a sandbox that others enter, or of the pen that they come from.

// Sends a pidfd of ourselves over the socket, which means the same process in every pid namespace,
// starts the command, if it is not null, and collects what ends. Returns when the other end of the
// socket is closed, whereupon Linux ends everything in the sandbox.
int init_main(int socket, char** command);
