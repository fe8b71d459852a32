#pragma once
// Entering a sandbox that is there already, for a process that goes on inside as another.
#include "fork_request.hpp"

namespace ipybox::launcher {

// Descriptors; -1 for what there is none of.
struct Entry {
    int init = -1;     // pidfd of the sandbox's first process; -1: no sandbox is entered
    int cgroup = -1;   // cgroup.procs of the group to join
    int options = -1;  // what confine.hpp knows, and --chdir PATH, each word ended by NUL
    int filters[most_filters] = {};
    int nfilters = 0;
    // Become 0, 1, 2 … of the child, from 3 on close-on-exec; all others but those of code are
    // closed.
    int fds[8] = {};
    int nfds = 0;
    // Files of code that libraries of the caller's keep open, by rising number, from `nfds` on: the
    // child has them as the sandbox shows them.
    const int* code = nullptr;
    const char* const* code_paths = nullptr;
    int ncode = 0;
    // Where a program is started after a question only: ours of the door that its interpreter's own
    // processes are started behind, the launcher, which starts them, and the interpreter's path.
    int workers = -1, launcher = -1;
    const char* interpreter = "";
};

// Returns in the process that is inside and confined, in a session of its own, which has told its
// pid (an int, as seen by the caller) to the socket `report`; the caller has ended then, and its
// nearest subreaper is that one's parent. Else it ends after a text that says what failed. The
// caller has no other threads.
void enter_sandbox(const Entry& entry, int report);

}  // namespace ipybox::launcher
