#pragma once
// Rooms in one sandbox: the code's kernel in a pid namespace of its own, with its own /proc and
// Landlock domain, where no program can be started; the programs that are started for it in
// another; and outside of both the broker that starts them, which neither sees nor can end. Needs
// CAP_SYS_ADMIN for a moment, and drops it.
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

// The same where the kernel enters; room.command is null. What enters is led, over the socket
// `init` (see init.hpp), to the first process of the kernel's namespaces, and has the other end of
// the door.
int entered_room_main(const Room& room, int init, int door, Forwarder& forwarder);

// The broker of an entered kernel's own interpreter, until nobody has the door's other end. Writes
// to `ready` when it is out of reach for what shares its rights.
int workers_main(int door, int ready, const char* interpreter, const char* log);
