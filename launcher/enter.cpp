// The rights are given up before the process that goes on inside is there, so that none with more
// of them is ever a guest.
#include "enter.hpp"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "confine.hpp"
#include "descriptors.hpp"
#include "programs.hpp"

extern "C" {
extern const ptrdiff_t __rseq_offset __attribute__((weak));
extern const unsigned __rseq_size __attribute__((weak));
}

namespace ipybox::launcher {
namespace {

constexpr int max_words = 8192, first_high = 300;
// Wiped once it is read: the paths of a session are not for its code.
char text[1 << 20];
char* words[max_words];

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

bool move_descriptors(const Entry& entry, int (&filters)[4], Problem& problem) {
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
bool reopen_code(const Entry& entry, Problem& problem) {
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

// Before nothing can be executed any more. In the namespace of those who come after us, where its
// parent is the first process; returns when none of them could read its memory.
bool start_workers(const Entry& entry, int door, int launcher, bool log, Problem& problem) {
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

bool enter(const Entry& entry, int& report, ssize_t& used, Problem& problem) {
    if (entry.cgroup >= 0 && write(entry.cgroup, "0", 1) != 1) return fail(problem, "cgroup");
    constexpr int all = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC |
                        CLONE_NEWUTS | CLONE_NEWCGROUP;
    if (entry.init >= 0 && setns(entry.init, all) != 0) return fail(problem, "setns");
    const int count = entry.options < 0 ? 0 : read_words(entry.options, used);
    if (count < 0) return fail(problem, "options");
    int filters[4];
    const int workers = entry.workers < 0 ? -1 : fcntl(entry.workers, F_DUPFD_CLOEXEC, first_high);
    const int launcher =
        entry.launcher < 0 ? -1 : fcntl(entry.launcher, F_DUPFD_CLOEXEC, first_high);
    const int high = fcntl(report, F_DUPFD_CLOEXEC, first_high);
    if (high < 0) return fail(problem, "descriptors");
    report = high;
    if (!move_descriptors(entry, filters, problem)) return false;
    for (int i = 0; i + 1 < count; ++i)
        if (strcmp(words[i], "--chdir") == 0 && chdir(words[i + 1]) != 0)
            return fail(problem, "the working directory");
    if (entry.init >= 0 && !drop_capabilities(problem)) return false;
    if (!take_rights(words, count, problem)) return false;
    if (!reopen_code(entry, problem)) return false;
    const bool log = has(words, count, "--log");
    for (int i = 0; i < entry.nfilters; ++i)
        if (!apply_filter(filters[i], log, problem)) return false;
    if (!set_limits(words, count, problem)) return false;
    if (entry.workers >= 0 && !start_workers(entry, workers, launcher, log, problem)) return false;
    if (has(words, count, "--no-exec") && !refuse_programs(log, problem)) return false;
    return true;
}

// One process that shares our memory and comes after us: we end at once, without a touch of the
// stack, which is its own from then on. No page tables are copied. `number` becomes its pid, as we
// see it, `tid` as it does. Returns in it, with 0, or -errno.
long continue_in_child(int* number, int* tid) {
    constexpr unsigned long how =
        CLONE_VM | CLONE_PARENT_SETTID | CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID | SIGCHLD;
#if defined(__x86_64__)
    long result = SYS_clone;
    register int* child asm("r10") = tid;
    register long tls asm("r8") = 0;
    asm volatile(
        "syscall\n\ttest %%rax, %%rax\n\tjle 1f\n\t"
        "mov %[end], %%eax\n\txor %%edi, %%edi\n\tsyscall\n\thlt\n1:"
        : "+a"(result)
        : "D"(how), "S"(0L), "d"(number), "r"(child), "r"(tls), [end] "i"(SYS_exit_group)
        : "rcx", "r11", "cc", "memory");
    return result;
#elif defined(__aarch64__)
    register long result asm("x0") = static_cast<long>(how);
    register long stack asm("x1") = 0;
    register int* parent asm("x2") = number;
    register long tls asm("x3") = 0;
    register int* child asm("x4") = tid;
    register long call asm("x8") = SYS_clone;
    asm volatile(
        "svc #0\n\tcmp x0, #0\n\tb.le 1f\n\t"
        "mov x0, #0\n\tmov x8, %[end]\n\tsvc #0\n\tbrk #1\n1:"
        : "+r"(result), "+r"(call)
        : "r"(stack), "r"(parent), "r"(tls), "r"(child), [end] "i"(SYS_exit_group)
        : "cc", "memory");
    return result;
#else
#error "how does a process go on in another one here?"
#endif
}

// What libc believes of this thread, and the kernel forgets of who comes after it.
struct Thread {
    int* tid = nullptr;
    void* robust = nullptr;
    size_t robust_size = 0;

    bool read() {
        return prctl(PR_GET_TID_ADDRESS, &tid) == 0 && tid != nullptr &&
               syscall(SYS_get_robust_list, 0, &robust, &robust_size) == 0;
    }
    void renew() const {
        syscall(SYS_set_robust_list, robust, robust_size);
        if (&__rseq_offset != nullptr && __rseq_size != 0)
            syscall(SYS_rseq, thread_pointer() + __rseq_offset, 32, 0, 0x53053053);
    }
};

// A pipe whose numbers nothing that a kernel has will take.
bool open_high(int (&ends)[2], Problem& problem) {
    int low[2];
    if (pipe2(low, O_CLOEXEC) != 0) return fail(problem, "pipe");
    for (int i = 0; i < 2; ++i) {
        ends[i] = fcntl(low[i], F_DUPFD_CLOEXEC, first_high);
        if (ends[i] < 0) return fail(problem, "descriptors");
        close(low[i]);
    }
    return true;
}

// Returns in the process that goes on, with its pid as the caller of all this sees it, when that
// one has ended: it is in another pid namespace, and must not be there once a guest can write its
// memory. Else returns -errno. gone: a pipe that nobody else has.
long go_on(int& number, const int (&gone)[2]) {
    Thread thread;
    sigset_t all, before;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before);
    long result = 0;
    if (thread.read()) {
        // Our end would write there.
        syscall(SYS_set_tid_address, nullptr);
        result = continue_in_child(&number, thread.tid);
        if (result == 0)
            thread.renew();
        else
            syscall(SYS_set_tid_address, thread.tid);
    } else {  // Linux was built without it: this copies page tables
        result = fork();
        if (result > 0) {
            number = static_cast<int>(result);
            _exit(write(gone[1], &number, sizeof number) == sizeof number ? 0 : 1);
        }
        if (result < 0) result = -errno;
    }
    sigprocmask(SIG_SETMASK, &before, nullptr);
    if (result != 0) return result;
    close(gone[1]);
    for (;;) {
        const ssize_t count = read(gone[0], &number, sizeof number);
        if (count == 0) break;
        if (count < 0 && errno != EINTR) return -errno;
    }
    close(gone[0]);
    return 0;
}

}  // namespace

void enter_sandbox(const Entry& entry, int report) {
    ssize_t used = 0;
    Problem found;
    static int number;
    int gone[2];
    bool good = open_high(gone, found) && enter(entry, report, used, found);
    if (good)
        if (const long result = go_on(number, gone); result != 0) {
            errno = static_cast<int>(-result);
            good = fail(found, "clone");
        }
    if (!good) {
        char problem[512];
        snprintf(problem, sizeof problem, "%s: %s%s%s",
                 strerror(found.misuse || errno == 0 ? EINVAL : errno), found.what,
                 *found.detail ? " " : "", found.detail);
        send(report, problem, strlen(problem), MSG_NOSIGNAL);
        _exit(1);
    }
    explicit_bzero(text, static_cast<size_t>(used));
    // Not optional: kill(0, …) reaches a process group across pid namespaces.
    setsid();
    if (send(report, &number, sizeof number, MSG_NOSIGNAL) != sizeof number ||
        !close_all_but(entry.nfds, entry.code, entry.ncode))
        _exit(1);
}

}  // namespace ipybox::launcher
