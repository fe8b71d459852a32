#pragma once
// Starting no program any more: a system call filter of our own, the last of all. Only system
// calls, as in confine.hpp.
#include "confine.hpp"

namespace ipybox::launcher {

// From now on nobody here, no thread made later and no child can execute a program, by whatever
// call and in whatever ABI of the machine. Tried at once. log: refusals are told to the kernel's
// audit log. False, and nothing has changed or everything is refused: the machine is not known,
// has no Landlock (without, code could have a process outside of the filter execute), or no filter
// can be added.
bool refuse_programs(bool log, Problem& problem);

// The same, but becomes one last program: by a call that the filter knows by random numbers in the
// registers that execve does not use. They are gone with our memory. Returns only when it fails:
// false as above; true with errno when the program cannot be executed.
bool become_last_program(const char* path, char** argv, char** env, bool log, Problem& problem);

}  // namespace ipybox::launcher
