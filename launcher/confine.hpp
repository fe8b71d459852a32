#pragma once
// Taking rights away from oneself, as words say it: for the launcher, which then becomes a command,
// and for a process that enters a sandbox which is there already (enter.cpp). Only system calls: it
// also runs in a process of Python's.

namespace ipybox::launcher {

// The words that say it, without their program:
//   --rlimit-as N, --rlimit-nproc N, --rlimit-nofile N, --rlimit-fsize N, --rlimit-cpu N
//   --landlock, --writable PATH, --sockets PATH, --seccomp FD, --seccomp-file PATH, --log
//   --no-exec: comes last, by programs.hpp; nothing here does it
// as the launcher's --help explains them.

// What failed, with errno; `detail` may be empty. `misuse`: the words are wrong, errno says
// nothing.
struct Problem {
    const char* what = "";
    const char* detail = "";
    bool misuse = false;
};

// Whether `name` is among the words.
bool has(char** words, int count, const char* name);

// Whether `word` is one of these words; takes_value: whether another follows.
bool knows(const char* word, bool& takes_value);

// A whole number up to `most`. False when the text is none.
bool read_number(const char* text, unsigned long long most, unsigned long long& value);

// Sets no_new_privs, Landlock and the filters. Ignores words that are not its own, so that a
// caller need not take its own out.
bool take_rights(char** words, int count, Problem& problem);
// No capability any more, nor a way to get one back.
bool drop_capabilities(Problem& problem);
// Sets the limits.
bool set_limits(char** words, int count, Problem& problem);

// A system call filter, read from a file from its beginning, whatever its position.
bool apply_filter(int file, bool log, Problem& problem);

}  // namespace ipybox::launcher
