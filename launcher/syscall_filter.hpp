#pragma once
// The system calls that a guest may make, as the two programs that Linux runs at each of them. The
// first lists what is allowed; the second refuses some of that by its arguments, with the error
// that programs expect. Where both refuse, Linux gives the error of the one that was added last.
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <seccomp.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <ipybox/detail/unique_fd.hpp>
#include <ipybox/error.hpp>
#include <iterator>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace ipybox::launcher {

// What Python, NumPy, pandas, Matplotlib, multiprocessing, Node.js, git, pip and compilers were
// seen to use, with the older and newer ways to the same on other architectures and C libraries.
inline constexpr std::string_view allowed_calls =
    // files and directories
    "access chdir chmod chown close close_range copy_file_range creat dup dup2 dup3 faccessat "
    "faccessat2 fadvise64 fallocate fchdir fchmod fchmodat fchown fchownat fcntl fdatasync "
    "fgetxattr "
    "flistxattr flock fremovexattr fsetxattr fstat fstatfs fsync ftruncate futimesat getcwd "
    "getdents "
    "getdents64 getxattr inotify_add_watch inotify_init inotify_init1 inotify_rm_watch lchown "
    "lgetxattr link linkat listxattr llistxattr lremovexattr lseek lsetxattr lstat mkdir mkdirat "
    "mknod "
    "mknodat newfstatat open openat pread64 preadv preadv2 pwrite64 pwritev pwritev2 read "
    "readahead "
    "readlink readlinkat readv removexattr rename renameat renameat2 rmdir sendfile setxattr "
    "splice stat "
    "statfs statx symlink symlinkat sync sync_file_range syncfs tee truncate umask unlink unlinkat "
    "utime utimensat utimes write writev "
    // memory
    "brk madvise membarrier memfd_create mincore mlock mlock2 mlockall mmap mprotect mremap msync "
    "munlock munlockall munmap get_mempolicy pkey_alloc pkey_free pkey_mprotect "
    // processes and threads
    "arch_prctl capget capset clone execve execveat exit exit_group fork futex futex_waitv "
    "get_robust_list getcpu getegid geteuid getgid getgroups getpgid getpgrp getpid getppid "
    "getpriority getrandom getresgid getresuid getrlimit getrusage getsid gettid getuid ioprio_get "
    "ioprio_set kill personality pidfd_open pidfd_send_signal pipe pipe2 prctl prlimit64 "
    "restart_syscall "
    "rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend "
    "rt_sigtimedwait rt_tgsigqueueinfo sched_get_priority_max sched_get_priority_min "
    "sched_getaffinity sched_getattr sched_getparam sched_getscheduler sched_rr_get_interval "
    "sched_setaffinity sched_setattr sched_setparam sched_setscheduler sched_yield set_robust_list "
    "set_tid_address setfsgid setfsuid setgid setgroups setpgid setpriority setregid setresgid "
    "setresuid setreuid setrlimit setsid setuid sigaltstack signalfd signalfd4 sysinfo tgkill "
    "tkill "
    "uname vfork wait4 waitid "
    // time, and waiting for several things
    "alarm clock_getres clock_gettime clock_nanosleep epoll_create epoll_create1 epoll_ctl "
    "epoll_pwait "
    "epoll_pwait2 epoll_wait eventfd eventfd2 getitimer gettimeofday nanosleep pause poll ppoll "
    "pselect6 select setitimer time timer_create timer_delete timer_getoverrun timer_gettime "
    "timer_settime timerfd_create timerfd_gettime timerfd_settime times "
    // sockets
    "accept accept4 bind connect getpeername getsockname getsockopt listen recvfrom recvmmsg "
    "recvmsg "
    "shutdown socket socketpair "
    // giving up more rights
    "landlock_add_rule landlock_create_ruleset landlock_restrict_self seccomp";

// Calls of which only the numbers are known to every supported libseccomp: cachestat, fchmodat2,
// map_shadow_stack, futex_wake, futex_wait and futex_requeue.
inline constexpr int allowed_numbers[] = {451, 452, 453, 454, 455, 456};

// What programs are told they may not do, rather than that the system has no such call: what the
// namespaces and the lack of capabilities forbid as well, and what reaches deep into the kernel.
inline constexpr std::string_view denied_calls =
    "acct add_key adjtimex bpf chroot clock_adjtime clock_settime delete_module fanotify_init "
    "finit_module fsconfig fsmount fsopen fspick init_module ioperm iopl kcmp kexec_file_load "
    "kexec_load keyctl lookup_dcookie mbind migrate_pages modify_ldt mount mount_setattr "
    "move_mount move_pages nfsservctl open_by_handle_at open_tree perf_event_open pidfd_getfd "
    "pivot_root process_madvise process_vm_readv process_vm_writev ptrace quotactl quotactl_fd "
    "reboot request_key set_mempolicy setdomainname sethostname setns settimeofday swapoff swapon "
    "syslog umount2 unshare userfaultfd uselib ustat vhangup vmsplice";

// Requests of ioctl(2): terminals, descriptors, what copies a file, and questions to the network.
inline constexpr unsigned allowed_requests[] = {
    0x5401, 0x5402, 0x5403, 0x5404, 0x5405, 0x5406, 0x5407, 0x5408,  // TCGETS … TCSETAF
    0x5409, 0x540a, 0x540b, 0x540c, 0x540d, 0x540e, 0x540f, 0x5410,  // TCSBRK … TIOCSPGRP
    0x5411, 0x5413, 0x5414, 0x5415, 0x541b,                          // TIOCOUTQ, TIOC[GS]WINSZ,
                                                                     // TIOCMGET, FIONREAD
    0x5420, 0x5421, 0x5422, 0x5425, 0x5429,                          // TIOCPKT, FIONBIO, TIOCNOTTY,
                                                                     // TCSBRKP, TIOCGSID
    0x802c542a, 0x402c542b, 0x402c542c, 0x402c542d,                  // TC[GS]ETS2 and the like
    0x80045430, 0x40045431, 0x80045438, 0x80045439, 0x80045440, 0x5441,  // pseudo-terminals
    0x5450, 0x5451, 0x5452, 0x5460,      // FIONCLEX, FIOCLEX, FIOASYNC, FIOQSIZE
    0x2, 0x80086601, 0x801c581f,         // FIGETBSZ, FS_IOC_GETFLAGS, FS_IOC_FSGETXATTR
    0x40049409, 0x4020940d, 0xc020660b,  // FICLONE, FICLONERANGE, FS_IOC_FIEMAP
    0x8905, 0x8906, 0x8907,              // SIOCATMARK, SIOCGSTAMP[NS]
    0x8910, 0x8912, 0x8913, 0x8915, 0x8917, 0x8919, 0x891b, 0x891d, 0x8921, 0x8927, 0x8933, 0x8942,
    0x8946, 0x8970,  // SIOCGIF…, SIOCETHTOOL
};

// Options of setsockopt(2) by level.
struct SocketOptions {
    unsigned level;
    std::vector<unsigned> allowed;
};
inline const std::vector<SocketOptions>& allowed_socket_options() {
    static const std::vector<SocketOptions> list = {
        // SOL_SOCKET, without filters, marks, devices and zero copy
        {1, {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 12, 13, 15, 16, 18, 19, 20,
             21, 27, 28, 29, 35, 40, 41, 42, 46, 47, 49, 63, 66, 67, 69, 76}},
        // IPPROTO_IP: type of service, time to live, errors, path MTU, multicast, source addresses
        {0, {1, 2, 6, 8, 10, 11, 12, 13, 24, 32, 33, 34, 35, 36, 37, 38, 39, 49, 50, 51}},
        // IPPROTO_TCP, without TCP_ULP, repair, signatures and zero copy
        {6, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 16, 17, 18, 23, 25, 27, 30, 34, 36}},
        {17, {1, 103, 104}},  // IPPROTO_UDP: cork, segments
        {41,
         {16, 17, 18, 19, 20, 21, 23, 24, 25, 26, 49, 50, 51, 66, 67, 70, 72,
          76}},                        // IPPROTO_IPV6: as for IP
        {58, {1}},                     // IPPROTO_ICMPV6: filter
        {270, {1, 2, 3, 10, 11, 12}},  // SOL_NETLINK: groups, packet information, acknowledgements
    };
    return list;
}

// Refuses machines whose calls nobody compared with these lists: there, a number could mean another
// call. Those that are known give calls from 424 on the same numbers. architecture: a constant of
// libseccomp.
// Throws Error: sandbox_refused (the machine is another one).
inline void check_machine(std::uint32_t architecture = seccomp_arch_native()) {
    if (architecture != SCMP_ARCH_X86_64 && architecture != SCMP_ARCH_AARCH64)
        throw Error(errc::sandbox_refused,
                    "there is no system call filter for this machine: ipybox knows x86_64 and "
                    "aarch64 in 64-bit programs");
}

// One program for Linux, built by libseccomp.
class SyscallProgram {
public:
    // otherwise: what happens to a call that no rule names.
    explicit SyscallProgram(std::uint32_t otherwise)
        : filter_(seccomp_init(otherwise), seccomp_release) {
        check_machine();
        if (!filter_) fail("libseccomp cannot build a filter");
    }

    void allow(int number, const std::vector<scmp_arg_cmp>& when = {}) {
        add(SCMP_ACT_ALLOW, number, when);
    }
    void allow(std::string_view name, const std::vector<scmp_arg_cmp>& when = {}) {
        allow(number_of(name), when);
    }
    void deny(int number, int error, const std::vector<scmp_arg_cmp>& when = {}) {
        add(SCMP_ACT_ERRNO(static_cast<std::uint16_t>(error)), number, when);
    }
    void deny(std::string_view name, int error, const std::vector<scmp_arg_cmp>& when = {}) {
        deny(number_of(name), error, when);
    }

    // The program as the kernel reads it. unknown: the first number of a call that did not exist
    // when this was written; from there on there is no such call. Zero: all are as the rules say.
    std::string code(unsigned unknown = 0) const {
        const UniqueFd file(::memfd_create("seccomp", MFD_CLOEXEC));
        if (!file || seccomp_export_bpf(filter_.get(), file.get()) != 0)
            fail("libseccomp cannot export the filter");
        std::string text(static_cast<std::size_t>(::lseek(file.get(), 0, SEEK_END)), '\0');
        if (::pread(file.get(), text.data(), text.size(), 0) != static_cast<ssize_t>(text.size()))
            fail("the system call filter cannot be read back");
        if (unknown > 0) {
            // libseccomp cannot compare numbers of calls. Jumps in what follows are relative.
            const sock_filter before[] = {
                BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, unknown, 0, 1),
                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS)};
            text.insert(0, reinterpret_cast<const char*>(before), sizeof before);
        }
        return text;
    }

    // The number of a call on this machine, below zero where it does not exist.
    static int number_of(std::string_view name) {
        const std::string text(name);
        const int number = seccomp_syscall_resolve_name(text.c_str());
        if (number == __NR_SCMP_ERROR)
            fail("libseccomp does not know the system call " + text +
                 ": install libseccomp 2.5.3 or newer");
        return number;
    }
    // A condition on the lower 32 bits of an argument, which are all that Linux looks at.
    static scmp_arg_cmp low_half(unsigned argument, unsigned value) {
        return scmp_arg_cmp{argument, SCMP_CMP_MASKED_EQ, 0xffffffffu, value};
    }
    // All of `bits` are set; or, with `value` zero, none is.
    static scmp_arg_cmp masked(unsigned argument, unsigned bits, unsigned value) {
        return scmp_arg_cmp{argument, SCMP_CMP_MASKED_EQ, bits, value};
    }

    [[noreturn]] static void fail(const std::string& what) {
        throw Error(errc::sandbox_refused, what);
    }

private:
    void add(std::uint32_t action, int number, const std::vector<scmp_arg_cmp>& when) {
        const int result = seccomp_rule_add_array(filter_.get(), action, number,
                                                  static_cast<unsigned>(when.size()), when.data());
        // EDOM: the call does not exist on this architecture.
        if (result != 0 && result != -EDOM)
            fail("libseccomp refuses a rule for system call " + std::to_string(number));
    }

    std::unique_ptr<void, void (*)(scmp_filter_ctx)> filter_;
};

// Throws Error: bad_config (a name is no system call of Linux).
inline void check_call_name(const std::string& name) {
    if (seccomp_syscall_resolve_name(name.c_str()) == __NR_SCMP_ERROR)
        throw Error(errc::bad_config, "allow_calls: \"" + name + "\" is no system call of Linux");
}

// Allows what is listed, and answers that all other calls are not permitted. more: names of further
// calls to allow, checked.
inline std::string allowing_filter(const std::vector<std::string>& more = {}) {
    using P = SyscallProgram;
    P filter(SCMP_ACT_ERRNO(EPERM));
    std::set<int> known;
    const auto allow = [&](int number) {
        if (number >= 0 && known.insert(number).second) filter.allow(number);
    };
    std::string name;
    for (std::istringstream names{std::string(allowed_calls)}; names >> name;)
        allow(P::number_of(name));
    for (const int number : allowed_numbers) allow(number);
    for (const auto& wanted : more) allow(P::number_of(wanted));
    for (std::istringstream names{std::string(denied_calls)}; names >> name;)
        known.insert(P::number_of(name));

    const auto partly = [&](std::string_view call) {
        const int number = P::number_of(call);
        // Named in `more`, it is allowed whole.
        return number >= 0 && known.insert(number).second ? number : -1;
    };
    if (const int number = partly("ioctl"); number >= 0)
        for (const unsigned request : allowed_requests)
            filter.allow(number, {P::low_half(1, request)});
    if (const int number = partly("setsockopt"); number >= 0)
        for (const auto& [level, options] : allowed_socket_options())
            for (const unsigned option : options)
                filter.allow(number, {P::low_half(1, level), P::low_half(2, option)});
    // Urgent data of Unix sockets (MSG_OOB) was a way into the kernel, and nothing needs it.
    for (const auto& [call, flags] :
         {std::pair("sendto", 3u), std::pair("sendmsg", 2u), std::pair("sendmmsg", 3u)})
        if (const int number = partly(call); number >= 0)
            filter.allow(number, {P::masked(flags, 1 /* MSG_OOB */, 0)});

    // For these, programs have another way when there is no such call: io_uring, clone3 and
    // openat2, whose arguments a filter cannot see, and everything newer.
    constexpr int first_unknown = 471;
    for (const char* call :
         {"io_uring_setup", "io_uring_enter", "io_uring_register", "clone3", "openat2"})
        if (const int number = P::number_of(call); known.insert(number).second)
            filter.deny(number, ENOSYS);
    for (int number = 443; number < first_unknown; ++number)
        if (known.insert(number).second) filter.deny(number, ENOSYS);
    return filter.code(first_unknown);
}

// Refuses by their arguments some of the calls that the other one allows. unix_sockets: whether the
// guest can make Unix sockets; pairs of stream sockets it always can.
inline std::string denying_filter(bool unix_sockets = true) {
    using P = SyscallProgram;
    P filter(SCMP_ACT_ALLOW);
    // No such call: programs then take the older way, whose arguments a filter can see.
    for (const char* call : {"clone3", "openat2"}) filter.deny(call, ENOSYS);
    for (const unsigned flag :
         {0x00020000u /* NEWNS */, 0x02000000u /* NEWCGROUP */, 0x04000000u /* NEWUTS */,
          0x08000000u /* NEWIPC */, 0x10000000u /* NEWUSER */, 0x20000000u /* NEWPID */,
          0x40000000u /* NEWNET */, 0x00000080u /* NEWTIME */})
        filter.deny("clone", EPERM, {P::masked(0, flag, flag)});

    // Unix, IPv4, IPv6 and route netlink (libzmq lists interfaces) are what a kernel needs.
    constexpr unsigned families[] = {1, 2, 10, 16};
    for (unsigned family = 0; family < 16; ++family)
        if (std::find(std::begin(families), std::end(families), family) == std::end(families))
            filter.deny("socket", EAFNOSUPPORT, {P::low_half(0, family)});
    const scmp_arg_cmp newer{0, SCMP_CMP_GT, 16, 0}, netlink{0, SCMP_CMP_EQ, 16, 0};
    const scmp_arg_cmp not_route{2, SCMP_CMP_NE, 0, 0};
    filter.deny("socket", EAFNOSUPPORT, {newer});
    filter.deny("socket", EAFNOSUPPORT, {netlink, not_route});
    // Not TCP, UDP or ICMP: SCTP, MPTCP, L2TP …, and DCCP.
    for (const unsigned family : {2u, 10u}) {
        filter.deny("socket", EPROTONOSUPPORT,
                    {P::low_half(0, family), scmp_arg_cmp{2, SCMP_CMP_GT, 58, 0}});
        filter.deny("socket", EPROTONOSUPPORT, {P::low_half(0, family), P::low_half(2, 33)});
    }
    // Only Unix sockets come in pairs, but others are made and their modules loaded first.
    filter.deny("socketpair", EAFNOSUPPORT, {scmp_arg_cmp{0, SCMP_CMP_NE, 1, 0}});

    if (!unix_sockets) {
        filter.deny("socket", EAFNOSUPPORT, {P::low_half(0, 1)});
        // One of a pair can be connected again, or send to any name, unless it is a stream. Linux
        // takes a raw one for a datagram socket.
        for (unsigned type = 0; type < 16; ++type)
            if (type != 1 /* SOCK_STREAM */)
                filter.deny("socketpair", ESOCKTNOSUPPORT, {P::masked(1, 0xf, type)});
        // Makes sockets that no filter sees, whatever else was allowed.
        filter.deny("io_uring_setup", ENOSYS);
    }

    // A file with the setuid bit in the workspace would serve another user of the host.
    struct Call {
        const char* name;
        unsigned mode;
    };
    for (const unsigned bit : {04000u, 02000u}) {
        for (const Call& call : {Call{"chmod", 1},
                                 {"fchmod", 1},
                                 {"fchmodat", 2},
                                 {"creat", 1},
                                 {"mkdir", 1},
                                 {"mkdirat", 2},
                                 {"mknod", 1},
                                 {"mknodat", 2}})
            filter.deny(call.name, EPERM, {P::masked(call.mode, bit, bit)});
        filter.deny(452 /* fchmodat2 */, EPERM, {P::masked(2, bit, bit)});
        for (const unsigned creates : {unsigned{O_CREAT}, unsigned{O_TMPFILE & ~O_DIRECTORY}}) {
            filter.deny("open", EPERM, {P::masked(1, creates, creates), P::masked(2, bit, bit)});
            filter.deny("openat", EPERM, {P::masked(2, creates, creates), P::masked(3, bit, bit)});
        }
    }
    // What programs that want no core dumps take for a system without them.
    filter.deny("setrlimit", EINVAL, {P::low_half(0, RLIMIT_CORE)});
    filter.deny("prlimit64", EINVAL,
                {P::low_half(1, RLIMIT_CORE), scmp_arg_cmp{2, SCMP_CMP_NE, 0, 0}});
    return filter.code();
}

}  // namespace ipybox::launcher
