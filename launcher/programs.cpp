#include "programs.hpp"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace ipybox::launcher {
namespace {

// The one ABI that may be used at all; 0: there is no filter for this machine.
#if defined(__x86_64__) && !defined(__ILP32__)
constexpr unsigned machine = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
constexpr unsigned machine = AUDIT_ARCH_AARCH64;
#else
constexpr unsigned machine = 0;
#endif
constexpr unsigned x32 = 0x40000000;        // numbers from here on are another ABI of x86-64
constexpr unsigned new_listener = 1u << 3;  // a flag of seccomp(2)
constexpr unsigned io_uring[] = {425, 426, 427};

// What execve's fourth, fifth and sixth register must hold.
struct Ticket {
    uint64_t words[3];
};

bool fail(Problem& problem, const char* what) {
    problem = {"--no-exec:", what, false};
    return false;
}

class Filter {
public:
    explicit Filter(const Ticket* ticket) {
        constexpr unsigned argument = offsetof(seccomp_data, args);
        load(offsetof(seccomp_data, arch));
        unless(machine, EPERM);
        load(offsetof(seccomp_data, nr));
        add(BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, x32, 0, 1));
        answer(ENOSYS);
        // It executes nothing today, but its operations are calls that no filter sees.
        for (const unsigned number : io_uring) when(number, ENOSYS);
        when(SYS_execveat, EPERM);
        // Whoever answers for a filter comes after ours anyway.
        add(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_seccomp, 0, 4));
        load(argument + sizeof(uint64_t));
        add(BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, new_listener, 0, 1));
        answer(EPERM);
        allow();
        add(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_execve, 1, 0));
        allow();
        for (unsigned i = 0; ticket != nullptr && i < 6; ++i) {
            load(argument + 3 * sizeof(uint64_t) + i * sizeof(uint32_t));
            uint32_t half = 0;
            memcpy(&half, reinterpret_cast<const char*>(ticket) + i * sizeof half, sizeof half);
            unless(half, EPERM);
        }
        if (ticket != nullptr)
            allow();
        else
            answer(EPERM);
    }
    // False with errno.
    bool install(bool log) {
        const sock_fprog program{static_cast<unsigned short>(size_), code_};
        const unsigned flags = log ? SECCOMP_FILTER_FLAG_LOG : 0u;
        const bool good = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program) == 0;
        explicit_bzero(code_, sizeof code_);
        return good;
    }

private:
    void add(sock_filter step) { code_[size_++] = step; }
    void load(unsigned offset) { add(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offset)); }
    void answer(unsigned error) { add(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error)); }
    void allow() { add(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)); }
    void when(unsigned value, unsigned error) {
        add(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1));
        answer(error);
    }
    void unless(unsigned value, unsigned error) {
        add(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 1, 0));
        answer(error);
    }

    unsigned size_ = 0;
    sock_filter code_[48];
};

// Neither names a program, so that they fail without the filter, too, but otherwise.
bool is_refused() {
    const bool first = syscall(SYS_execve, "", nullptr, nullptr, 0L, 0L, 0L) < 0 && errno == EPERM;
    return first && syscall(SYS_execveat, -1, "", nullptr, nullptr, 0L) < 0 && errno == EPERM;
}

bool install(const Ticket* ticket, bool log, Problem& problem) {
    errno = ENOTSUP;
    if (machine == 0) return fail(problem, "there is no filter for this machine");
    if (syscall(SYS_landlock_create_ruleset, nullptr, 0, 1u /* VERSION */) < 1)
        return fail(problem, "Landlock (Linux 5.13) is needed");
    if (!Filter(ticket).install(log)) return fail(problem, "seccomp");
    if (!is_refused()) return fail(problem, "the filter does not hold");
    return true;
}

}  // namespace

bool refuse_programs(bool log, Problem& problem) { return install(nullptr, log, problem); }

bool become_last_program(const char* path, char** argv, char** env, bool log, Problem& problem) {
    Ticket ticket;
    if (getrandom(&ticket, sizeof ticket, 0) != sizeof ticket) return fail(problem, "getrandom");
    if (!install(&ticket, log, problem)) return false;
    syscall(SYS_execve, path, argv, env, ticket.words[0], ticket.words[1], ticket.words[2]);
    return true;
}

}  // namespace ipybox::launcher
