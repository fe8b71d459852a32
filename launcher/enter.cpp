// Entering a sandbox that is there already, for a process that forks others into such: a shared
// object that Python loads, without anything of Python in it. The rights are given up before the
// fork, so that no process with more of them is ever inside.
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "confine.hpp"
#include "programs.hpp"

extern "C" {

// Descriptors; -1 for what there is none of.
struct ipybox_entry {
    int init;     // pidfd of the sandbox's first process; -1: no sandbox is entered
    int cgroup;   // cgroup.procs of the group to join
    int options;  // what confine.hpp knows, and --chdir PATH, each word ended by NUL
    int filters[4];
    int nfilters;
    // Become 0, 1, 2 … of the child, from 3 on close-on-exec; all others but those of code are
    // closed.
    int fds[8];
    int nfds;
    // Files of code that libraries of the caller's keep open, by rising number, from `nfds` on: the
    // child has them as the sandbox shows them.
    int code[4];
    const char* code_paths[4];
    int ncode;
    // Where a program is started after a question only: ours of the door that its interpreter's own
    // processes are started behind, the launcher, which starts them, and the interpreter's path.
    int workers, launcher;
    const char* interpreter;
};

__attribute__((visibility("default"))) int ipybox_enter_fork(const ipybox_entry* entry,
                                                             char* problem, int size);

extern const ptrdiff_t __rseq_offset __attribute__((weak));
extern const unsigned __rseq_size __attribute__((weak));
}

namespace {

constexpr int max_words = 8192, first_high = 300;
// Shared with the caller until the fork: wiped then, because it is one session's own.
char text[1 << 20];
char* words[max_words];

using ipybox::launcher::Problem;

char* thread_pointer() {
#if __has_builtin(__builtin_thread_pointer)
    return static_cast<char*>(__builtin_thread_pointer());
#elif defined(__x86_64__)
    char* pointer = nullptr;
    asm("mov %%fs:0, %0" : "=r"(pointer));
    return pointer;
#else
#error "how is the thread pointer read here?"
#endif
}

bool fail(Problem& problem, const char* what) {
    problem = {what, "", false};
    return false;
}

// The number of words; negative when they cannot be read.
int read_words(int file, ssize_t& used) {
    used = 0;
    for (;;) {
        const ssize_t count =
            pread(file, text + used, sizeof text - static_cast<size_t>(used), used);
        if (count < 0) return -1;
        if (count == 0) break;
        used += count;
    }
    if (used == static_cast<ssize_t>(sizeof text) || (used > 0 && text[used - 1] != '\0'))
        return errno = E2BIG, -1;
    int count = 0;
    for (char* at = text; at < text + used; at += strlen(at) + 1) {
        if (count == max_words) return errno = E2BIG, -1;
        words[count++] = at;
    }
    return count;
}

bool move_descriptors(const ipybox_entry& entry, int (&filters)[4], Problem& problem) {
    int high[8];
    for (int i = 0; i < entry.nfds; ++i)
        if ((high[i] = fcntl(entry.fds[i], F_DUPFD, first_high)) < 0)
            return fail(problem, "descriptors");
    for (int i = 0; i < entry.nfilters; ++i)
        if ((filters[i] = fcntl(entry.filters[i], F_DUPFD, first_high)) < 0)
            return fail(problem, "descriptors");
    for (int i = 0; i < entry.nfds; ++i)
        if ((i < 3 ? dup2(high[i], i) : dup3(high[i], i, O_CLOEXEC)) < 0)
            return fail(problem, "descriptors");
    return true;
}

// The caller's open files have one place to read at and one lock for all who fork from it: each is
// opened anew, and must be the same file.
bool reopen_code(const ipybox_entry& entry, Problem& problem) {
    for (int i = 0; i < entry.ncode; ++i) {
        struct stat before, after;
        const int opened =
            open(entry.code_paths[i], O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
        if (opened < 0 || fstat(entry.code[i], &before) != 0 || fstat(opened, &after) != 0)
            return fail(problem, "a library that is kept open");
        if (before.st_dev != after.st_dev || before.st_ino != after.st_ino) {
            errno = ESTALE;
            return fail(problem, "a library that is kept open is another one in the sandbox");
        }
        if (dup3(opened, entry.code[i], O_CLOEXEC) < 0) return fail(problem, "descriptors");
        close(opened);
    }
    return true;
}

bool close_others(const ipybox_entry& entry, Problem& problem) {
    unsigned from = static_cast<unsigned>(entry.nfds);
    for (int i = 0; i < entry.ncode; ++i) {
        const unsigned kept = static_cast<unsigned>(entry.code[i]);
        if (kept > from && syscall(SYS_close_range, from, kept - 1, 0u) != 0)
            return fail(problem, "close_range");
        from = kept + 1;
    }
    return syscall(SYS_close_range, from, ~0u, 0u) == 0 || fail(problem, "close_range");
}

// Before nothing can be executed any more. In the namespace of those who come after us, where its
// parent is the first process; returns when none of them could read its memory.
bool start_workers(const ipybox_entry& entry, int door, int launcher, bool log, Problem& problem) {
    int ready[2];
    if (pipe2(ready, O_CLOEXEC) != 0) return fail(problem, "pipe");
    char numbers[2][16];
    snprintf(numbers[0], sizeof numbers[0], "%d", door);
    snprintf(numbers[1], sizeof numbers[1], "%d", ready[1]);
    const char* const argv[] = {
        "ipybox-launcher",     "workers", numbers[0], numbers[1], entry.interpreter,
        log ? "log" : "quiet", nullptr};
    const char* const none[] = {nullptr};
    const pid_t parent = vfork();
    if (parent == 0) {
        if (vfork() == 0) {
            fcntl(door, F_SETFD, 0);
            fcntl(ready[1], F_SETFD, 0);
            syscall(SYS_execveat, launcher, "", argv, none, 0x1000 /* EMPTY_PATH */);
        }
        _exit(0);
    }
    while (parent > 0 && waitpid(parent, nullptr, 0) < 0 && errno == EINTR) {
    }
    close(ready[1]);
    char byte = 0;
    errno = ECHILD;
    ssize_t count = 0;
    do count = read(ready[0], &byte, 1);
    while (count < 0 && errno == EINTR);
    return count == 1 || fail(problem, "who starts the interpreter's own processes");
}

bool enter(const ipybox_entry& entry, ssize_t& used, Problem& problem) {
    if (entry.cgroup >= 0 && write(entry.cgroup, "0", 1) != 1) return fail(problem, "cgroup");
    constexpr int all = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC |
                        CLONE_NEWUTS | CLONE_NEWCGROUP;
    if (entry.init >= 0 && setns(entry.init, all) != 0) return fail(problem, "setns");
    // Its own, not that of a memory shared with whoever calls.
    const int count = entry.options < 0 ? 0 : read_words(entry.options, used);
    if (count < 0) return fail(problem, "options");
    int filters[4];
    const int workers = entry.workers < 0 ? -1 : fcntl(entry.workers, F_DUPFD_CLOEXEC, first_high);
    const int launcher =
        entry.launcher < 0 ? -1 : fcntl(entry.launcher, F_DUPFD_CLOEXEC, first_high);
    if (!move_descriptors(entry, filters, problem)) return false;
    for (int i = 0; i + 1 < count; ++i)
        if (strcmp(words[i], "--chdir") == 0 && chdir(words[i + 1]) != 0)
            return fail(problem, "the working directory");
    if (entry.init >= 0 && !ipybox::launcher::drop_capabilities(problem)) return false;
    if (!ipybox::launcher::take_rights(words, count, problem)) return false;
    if (!reopen_code(entry, problem)) return false;
    const bool log = ipybox::launcher::has(words, count, "--log");
    for (int i = 0; i < entry.nfilters; ++i)
        if (!ipybox::launcher::apply_filter(filters[i], log, problem)) return false;
    if (!ipybox::launcher::set_limits(words, count, problem)) return false;
    if (entry.workers >= 0 && !start_workers(entry, workers, launcher, log, problem)) return false;
    if (ipybox::launcher::has(words, count, "--no-exec") &&
        !ipybox::launcher::refuse_programs(log, problem))
        return false;
    return close_others(entry, problem);
}

}  // namespace

// Returns 0 in the child, which is inside and confined, in a session of its own; its pid in the
// caller, whose nearest subreaper is its parent; or -errno, with what failed in `problem`. What
// goes between shares the caller's memory (vfork), so that entering copies no page tables.
int ipybox_enter_fork(const ipybox_entry* entry, char* problem, int size) {
    volatile pid_t child = 0;
    volatile ssize_t used = 0;
    Problem found;
    const pid_t between = vfork();
    if (between == 0) {
        ssize_t read = 0;
        child = enter(*entry, read, found) ? 0 : -(found.misuse || errno == 0 ? EINVAL : errno);
        used = read;
        if (child == 0) {
            found.what = "fork";
            child = fork();
            if (child < 0) child = -errno;
        }
        if (child != 0) _exit(0);
        explicit_bzero(text, static_cast<size_t>(read));
        // The kernel forgets the area of a vfork child; libc goes on believing in it.
        if (&__rseq_offset != nullptr && __rseq_size != 0)
            syscall(SYS_rseq, thread_pointer() + __rseq_offset, 32, 0, 0x53053053);
        // Not optional: kill(0, …) reaches a process group across pid namespaces.
        setsid();
        return 0;
    }
    while (between > 0 && waitpid(between, nullptr, 0) < 0 && errno == EINTR) {
    }
    if (between < 0) {
        snprintf(problem, static_cast<size_t>(size), "vfork");
        return -errno;
    }
    if (child <= 0)
        snprintf(problem, static_cast<size_t>(size), "%s%s%s", found.what, *found.detail ? " " : "",
                 found.detail);
    explicit_bzero(text, static_cast<size_t>(used));
    // It was killed before it had forked.
    return child == 0 ? -ECHILD : child;
}
