#pragma once
// Two rooms in one sandbox: the code's kernel in a pid namespace of its own, with its own /proc
// and Landlock domain, where no program can be started; and outside of that the broker and the
// programs that it starts for the kernel. Needs CAP_SYS_ADMIN for a moment, and drops it.
#include "forward.hpp"

struct Room {
    int host;  // a socket to whoever is asked
    char** words;
    int count;  // of what confine.hpp knows, and others
    char** command;
    bool log;
};

// Becomes the broker. The command finds in IPYBOX_PROGRAM_DOORS the numbers of two sockets: of the
// door for programs, and of that for processes of its own interpreter, which start no programs
// either. Returns only when it fails: an exit code, after it said why.
int room_main(const Room& room, Forwarder& forwarder);
