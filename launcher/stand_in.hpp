#pragma once
// Standing for a program that is started outside: a process that shares the memory of whoever made
// it and runs none of its code, so that making one copies nothing, however large that is. For code
// that Python loads; see starting.py.
#include <stdint.h>

extern "C" {

// Files are what follows the byte of a request; see request.hpp.
constexpr int ipybox_most_files = 253;

struct ipybox_program {
    int door;            // of the broker
    int told;            // gets what kept the program from starting, as subprocess reads it, and is
                         // closed when it runs
    int drained;         // a pipe that the program does not read; -1: none
    int session, leads;  // whether the process gets a session, a group of its own
    int count;           // of files
    uint64_t blocked;    // signals, 1 << number - 1, while somebody is asked
    uint64_t not_ignored;  // that shall end it then, whatever its maker ignores
    int files[ipybox_most_files];
};

// Returns the number of a child that asks for the program, stands for it and ends as it ends, or
// -errno.
__attribute__((visibility("default"))) int ipybox_start_program(const ipybox_program* program);
}
