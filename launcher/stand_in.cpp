#include "stand_in.hpp"

#include <errno.h>
#include <linux/close_range.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include <initializer_list>

namespace {

// The C library keeps errno, and more, for a thread of our maker's: none of it may be used here.
long call(long number, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0) {
#if defined(__x86_64__)
    long result;
    register long fourth asm("r10") = d;
    register long fifth asm("r8") = e;
    asm volatile("syscall"
                 : "=a"(result)
                 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth), "r"(fifth)
                 : "rcx", "r11", "memory");
    return result;
#elif defined(__aarch64__)
    register long eighth asm("x8") = number;
    register long first asm("x0") = a;
    register long second asm("x1") = b;
    register long third asm("x2") = c;
    register long fourth asm("x3") = d;
    register long fifth asm("x4") = e;
    asm volatile("svc #0"
                 : "+r"(first)
                 : "r"(eighth), "r"(second), "r"(third), "r"(fourth), "r"(fifth)
                 : "memory");
    return first;
#else
#error "how is the system called here?"
#endif
}
long address(const void* place) { return reinterpret_cast<long>(place); }

constexpr uint64_t bit(int number) { return uint64_t{1} << (number - 1); }
constexpr size_t mask_size = sizeof(uint64_t);

// Those of faults would come back at once.
constexpr uint64_t kept = bit(SIGCHLD) | bit(SIGSEGV) | bit(SIGBUS) | bit(SIGILL) | bit(SIGFPE);
constexpr uint64_t passed = ~(kept | bit(SIGKILL) | bit(SIGSTOP) | bit(32) | bit(33));
// Of a signal it is not known whether it was meant for a process or its group. These make sense
// for all of it.
constexpr uint64_t for_groups =
    bit(SIGHUP) | bit(SIGINT) | bit(SIGQUIT) | bit(SIGCONT) | bit(SIGTSTP);

// What a process stands on, kept for the next one when it has gone.
struct Place {
    int in_use;  // Linux clears it when the process has ended
    Place* next;
    ipybox_program program;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * ipybox_most_files)];
    char heard[2048];
};
constexpr size_t place_size = 64u << 10;  // with the stack
Place* places = nullptr;

bool send_files(Place& place, long socket, char byte, const int* files, int count) {
    const size_t size = static_cast<size_t>(count) * sizeof *files;
    iovec part = {&byte, 1};
    auto* const header = reinterpret_cast<cmsghdr*>(place.control);
    header->cmsg_len = CMSG_LEN(size);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    memcpy(CMSG_DATA(header), files, size);
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = place.control;
    message.msg_controllen = CMSG_SPACE(size);
    long sent = 0;
    do sent = call(SYS_sendmsg, socket, address(&message), MSG_NOSIGNAL);
    while (sent == -EINTR);
    return sent == 1;
}

void set_mask(uint64_t mask) {
    call(SYS_rt_sigprocmask, SIG_SETMASK, address(&mask), 0, mask_size);
}

// Of the kernel's own form.
struct Action {
    void* handler;
    unsigned long flags;
    void* restorer;
    uint64_t mask;
};
void set_default(int number) {
    const Action action = {};
    call(SYS_rt_sigaction, number, address(&action), 0, mask_size);
}

// Handlers are our maker's, and would run in its memory.
void drop_handlers(uint64_t not_ignored) {
    for (int number = 1; number <= 64; ++number) {
        Action action = {};
        if (call(SYS_rt_sigaction, number, 0, address(&action), mask_size) != 0) continue;
        const bool ignored = action.handler == reinterpret_cast<void*>(SIG_IGN);
        if (action.handler != nullptr && (!ignored || (not_ignored & bit(number)) != 0))
            set_default(number);
    }
}

// All but these; -1 is none.
void close_all_but(long one, long other, long third) {
    long from = 0;
    for (;;) {
        long to = -1;  // the least one from there on
        for (const long kept_one : {one, other, third})
            if (kept_one >= from && (to < 0 || kept_one < to)) to = kept_one;
        if (to != from) call(SYS_close_range, from, to < 0 ? ~0u : to - 1, 0);
        if (to < 0) return;
        from = to + 1;
    }
}

[[noreturn]] void leave(int code) {
    for (;;) call(SYS_exit_group, code);
}

// As subprocess expects it: the name of an exception, errno in hexadecimal, words.
[[noreturn]] void fail(const Place& place, int error, const char* words, size_t size) {
    char text[1200];
    size_t used = 0;
    const auto add = [&](const char* more, size_t count) {
        if (count > sizeof text - used) count = sizeof text - used;
        memcpy(text + used, more, count);
        used += count;
    };
    if (error == EPERM && size > 0) {
        add("PermissionError:0:", 18);
        add(words, size);
    } else {
        const auto number = static_cast<unsigned>(error);
        const char* const digits = "0123456789abcdef";
        const char hex[3] = {digits[number >> 8 & 15], digits[number >> 4 & 15],
                             digits[number & 15]};
        add("OSError:", 8);
        add(hex, sizeof hex);
        add(":", 1);
    }
    call(SYS_write, place.program.told, address(text), static_cast<long>(used));
    leave(255);
}
[[noreturn]] void fail_alone(const Place& place) {
    constexpr char words[] = "nobody is there any more to start programs";
    fail(place, EPERM, words, sizeof words - 1);
}

[[noreturn]] void end_as(int status) {
    if (!WIFSIGNALED(status)) leave(WEXITSTATUS(status));
    const int number = WTERMSIG(status);
    if (number != SIGKILL) set_default(number);
    call(SYS_kill, call(SYS_getpid), number);
    set_mask(~bit(number));
    leave(126);
}

// Hands signals on until the program ends. used: of heard, from the first byte after 'S'.
[[noreturn]] void accompany(Place& place, long link, size_t used) {
    set_mask(passed);
    const uint64_t wanted = passed;
    const long signals = call(SYS_signalfd4, -1, address(&wanted), mask_size, SFD_CLOEXEC);
    if (signals < 0) leave(126);
    // Whoever waits for the program to be there waits for the end of this.
    call(SYS_close, place.program.told);
    pollfd events[3] = {{static_cast<int>(link), POLLIN, 0},
                        {static_cast<int>(signals), POLLIN, 0},
                        {place.program.drained, POLLIN, 0}};
    while (used < 5) {
        if (call(SYS_ppoll, address(events), 3, 0, 0, 0) < 0) continue;
        if (events[0].revents != 0) {
            const long count =
                call(SYS_read, link, address(place.heard + used), static_cast<long>(5 - used));
            if (count == -EINTR) continue;
            if (count <= 0) end_as(SIGKILL);
            used += static_cast<size_t>(count);
        }
        signalfd_siginfo seen;
        if (events[1].revents != 0 &&
            call(SYS_read, signals, address(&seen), sizeof seen) == sizeof seen) {
            const auto number = static_cast<int>(seen.ssi_signo);
            const bool leads = call(SYS_getpgid, 0) == call(SYS_getpid);
            const char byte =
                static_cast<char>(number | (leads || (for_groups & bit(number)) != 0 ? 0x80 : 0));
            call(SYS_sendto, link, address(&byte), 1, MSG_NOSIGNAL, 0);
        }
        char taken[4096];
        if (events[2].revents != 0 &&
            call(SYS_read, events[2].fd, address(taken), sizeof taken) <= 0)
            events[2].fd = -1;
    }
    int32_t status = 0;
    memcpy(&status, place.heard + 1, sizeof status);
    end_as(status);
}

int stand(void* argument) {
    auto& place = *static_cast<Place*>(argument);
    const auto& program = place.program;
    drop_handlers(program.not_ignored);
    if (program.session != 0)
        call(SYS_setsid);
    else if (program.leads != 0)
        call(SYS_setpgid, 0, 0);
    int ends[2];
    const long made = call(SYS_socketpair, AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, address(ends));
    if (made != 0) fail(place, static_cast<int>(-made), "", 0);
    const long link = ends[0];
    if (!send_files(place, program.door, 'p', &ends[1], 1)) fail_alone(place);
    call(SYS_close, ends[1]);
    if (!send_files(place, link, 'r', program.files, program.count)) fail_alone(place);
    close_all_but(link, program.told, program.drained);
    // Whoever interrupts while somebody is asked ends this, and with it the question.
    set_mask(program.blocked);
    size_t used = 0;
    while (used < sizeof place.heard) {
        const long count = call(SYS_read, link, address(place.heard + used),
                                static_cast<long>(sizeof place.heard - used));
        if (count == -EINTR) continue;
        if (count <= 0) break;
        used += static_cast<size_t>(count);
        if (place.heard[0] != 'S') continue;
        memmove(place.heard, place.heard + 1, --used);
        accompany(place, link, used);
    }
    if (used < 5) fail_alone(place);
    int32_t error = 0;
    memcpy(&error, place.heard + 1, sizeof error);
    fail(place, error, place.heard + 5, used - 5);
}

// One that is nobody's; null with errno.
Place* take_place() {
    for (Place* each = __atomic_load_n(&places, __ATOMIC_ACQUIRE); each; each = each->next) {
        int nobody = 0;
        if (__atomic_compare_exchange_n(&each->in_use, &nobody, 1, false, __ATOMIC_ACQ_REL,
                                        __ATOMIC_RELAXED))
            return each;
    }
    void* const made = mmap(nullptr, place_size, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    if (made == MAP_FAILED) return nullptr;
    auto* const place = static_cast<Place*>(made);
    place->in_use = 1;
    place->next = __atomic_load_n(&places, __ATOMIC_ACQUIRE);
    while (!__atomic_compare_exchange_n(&places, &place->next, place, false, __ATOMIC_ACQ_REL,
                                        __ATOMIC_ACQUIRE)) {
    }
    return place;
}

}  // namespace

int ipybox_start_program(const ipybox_program* program) {
    Place* const place = take_place();
    if (place == nullptr) return -errno;
    place->program = *program;
    // A handler that ran in the child before these are gone would run in our memory.
    const uint64_t all = ~uint64_t{0};
    uint64_t before = 0;
    call(SYS_rt_sigprocmask, SIG_SETMASK, address(&all), address(&before), mask_size);
    const pid_t pid =
        clone(stand, reinterpret_cast<char*>(place) + place_size,
              CLONE_VM | CLONE_CHILD_CLEARTID | SIGCHLD, place, nullptr, nullptr, &place->in_use);
    const int error = errno;
    set_mask(before);
    if (pid < 0) __atomic_store_n(&place->in_use, 0, __ATOMIC_RELEASE);
    return pid < 0 ? -error : pid;
}
