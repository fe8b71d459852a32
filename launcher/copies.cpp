// Copies of a warm Python process, which become kernels: a shared object that Python loads, without
// anything of Python in it. What Python does writes to all of its memory, and each page that the
// warm process writes to is one more that every copy has for itself: so it runs none any more.
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <initializer_list>

#include "descriptors.hpp"
#include "enter.hpp"

extern "C" {

// Stays as it is.
struct ipybox_warm {
    int control;  // to the host; in a copy to the warm process
    // Files of code that libraries keep open; see Entry.
    int ncode;  // most_code at most
    const int* code;
    const char* const* code_paths;
    // Memory that a kernel uses until its first cell is done, or at its end: address, bytes, and
    // the advice (madvise) that makes it ready.
    const unsigned long* spans;
    int nspans;
    // Memory that no two copies may have the same in: the states of random generators.
    int nrandom;
    void* random;
    int quiet;  // milliseconds; see below
};

#define IPYBOX_PUBLIC __attribute__((visibility("default")))

// In the warm process: answers requests for kernels (see fork_request.hpp) until the host is gone,
// with which it ends. Keeps a copy at hand, made when for `quiet` nothing was asked, so that it
// takes no processor from a kernel that starts. Returns in each copy, with 0, or -errno in the warm
// process. No other threads.
IPYBOX_PUBLIC int ipybox_copies(const ipybox_warm* warm);
// In a copy: gets random states, makes the spans ready, and waits until it is to become a kernel.
// Ends when the warm process has ended.
IPYBOX_PUBLIC void ipybox_await(const ipybox_warm* warm);
// In a copy that is to become a kernel; see enter_sandbox().
IPYBOX_PUBLIC void ipybox_enter(const ipybox_warm* warm);
}

namespace ipybox::launcher {
namespace {

constexpr int most_code = 4;  // as zygote.py looks for

// A request or an answer, with its descriptors. Not on the stack, for how large it is.
struct Packet {
    alignas(ForkRequest) char data[8192];
    ssize_t size;
    int files[most_descriptors];
    int nfiles;

    // False at the end of the socket.
    bool receive(int socket) {
        const auto received = receive_packet(socket, data, sizeof data - 1, 0, files,
                                             static_cast<int>(most_descriptors));
        size = received.bytes;
        nfiles = received.count;
        if (size >= 0) data[size] = '\0';
        return size > 0;
    }
    bool send(int socket) const {
        return send_packet(socket, data, static_cast<size_t>(size), files, nfiles);
    }
    void close_files() {
        for (int i = 0; i < nfiles; ++i) close(files[i]);
        nfiles = 0;
    }
    void answer(int socket, const ForkAnswer& head, const char* text, size_t length, int file) {
        if (length > sizeof data - sizeof head) length = sizeof data - sizeof head;
        memcpy(data, &head, sizeof head);
        memcpy(data + sizeof head, text, length);
        size = static_cast<ssize_t>(sizeof head + length);
        nfiles = file < 0 ? 0 : 1;
        files[0] = file;
        if (!send(socket)) _exit(0);  // the host is gone
    }
};

Packet packet;
Entry entry;

class Copies {
public:
    Copies(const ipybox_warm& warm, int events) : warm_(warm), events_(events) {}

    // 0 in a copy.
    int serve() {
        int patience = 0;
        for (;;) {
            epoll_event event{};
            const int count = epoll_wait(events_, &event, 1, pid_ > 0 ? -1 : patience);
            if (count < 0 && errno != EINTR) return -errno;
            if (count < 0) continue;
            patience = warm_.quiet;
            bool ours = true;
            if (count == 0)
                ours = make();
            else if (event.data.u64 == 0)
                ours = take_request();
            else
                report(event.data.u64);
            if (!ours) return 0;
            if (failure_ != 0) return -failure_;
        }
    }

    bool watch(int file, std::uint64_t data) const {
        epoll_event event{};
        event.events = EPOLLIN;
        event.data.u64 = data;
        return epoll_ctl(events_, EPOLL_CTL_ADD, file, &event) == 0;
    }

private:
    // False in the copy.
    bool make() {
        int ends[2];
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
            failure_ = errno;
            return true;
        }
        pid_ = fork();
        if (pid_ < 0) failure_ = errno;
        if (pid_ == 0) {
            // Nothing of what the warm process has open is a kernel's, or keeps others from seeing
            // its end.
            int kept[1 + most_code] = {warm_.control};
            memcpy(kept + 1, warm_.code, static_cast<size_t>(warm_.ncode) * sizeof *kept);
            if (dup3(ends[1], warm_.control, O_CLOEXEC) < 0 ||
                !close_all_but(3, kept, 1 + warm_.ncode))
                _exit(1);
            return false;
        }
        close(ends[1]);
        link_ = ends[0];
        return true;
    }

    // False in a copy.
    bool take_request() {
        if (!packet.receive(warm_.control)) _exit(0);  // the host has no use for this any more
        ForkAnswer head{};
        memcpy(&head.id, packet.data, sizeof head.id);
        char text[1024];
        ssize_t said = -1;
        for (int i = 0; i < 2; ++i) {
            if (pid_ <= 0 && !make()) return false;
            if (failure_ != 0) return true;
            const bool taken = packet.send(link_);
            if (taken) do
                    said = recv(link_, text, sizeof text, 0);
                while (said < 0 && errno == EINTR);
            close(link_);
            while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
            }
            pid_ = link_ = -1;
            if (said > 0) break;  // else something has killed that one, be it an instant ago
        }
        packet.close_files();
        int number = 0, handle = -1;
        if (said == sizeof number) {
            memcpy(&number, text, sizeof number);
            handle = static_cast<int>(syscall(SYS_pidfd_open, number, 0));
            if (handle < 0 ||
                !watch(handle, std::uint64_t{head.id} << 32 | static_cast<unsigned>(handle)))
                failure_ = errno;
            said = 0;
        } else if (said <= 0) {
            constexpr char killed[] = "the copy that was to enter it was killed";
            memcpy(text, killed, sizeof killed);
            said = sizeof killed - 1;
        }
        head.kind = handle < 0 ? ForkAnswer::refused : ForkAnswer::exists;
        packet.answer(warm_.control, head, text, static_cast<size_t>(said), handle);
        // Why a sandbox could not be entered may name a session's paths: not for later copies.
        explicit_bzero(text, sizeof text);
        explicit_bzero(packet.data, sizeof packet.data);
        return true;
    }

    // A kernel has ended; whoever outlives its processes waits for it here.
    void report(std::uint64_t data) {
        const int handle = static_cast<int>(data & 0xffffffff);
        siginfo_t info{};
        // The host's copy of the handle makes that not wait: seen an instant before it may.
        if (waitid(static_cast<idtype_t>(3) /* P_PIDFD */, static_cast<id_t>(handle), &info,
                   WEXITED) != 0 &&
            (errno == EAGAIN || errno == EINTR))
            return;
        // It would go on being watched: the host has a copy.
        epoll_ctl(events_, EPOLL_CTL_DEL, handle, nullptr);
        close(handle);
        ForkAnswer head{};
        head.id = static_cast<std::uint32_t>(data >> 32);
        head.kind = ForkAnswer::ended;
        head.code = info.si_code;
        head.status = info.si_status;
        packet.answer(warm_.control, head, "", 0, -1);
    }

    const ipybox_warm& warm_;
    int events_;
    pid_t pid_ = -1;  // of the copy, and its link
    int link_ = -1;
    int failure_ = 0;
};

// Changes nothing there. Stops when `control` can be read, and where Linux cannot do it (before
// 5.14).
void make_ready(const ipybox_warm& warm) {
    for (int i = 0; i < warm.nspans; ++i) {
        pollfd wanted{warm.control, POLLIN, 0};
        if (i % 32 == 0 && poll(&wanted, 1, 0) != 0) return;
        const unsigned long* const span = warm.spans + std::ptrdiff_t{3} * i;
        void* const start = reinterpret_cast<void*>(span[0]);
        if (madvise(start, span[1], static_cast<int>(span[2])) != 0 && errno == EINVAL) return;
    }
}

bool randomize(char* place, ssize_t size) {
    while (size > 0) {
        const ssize_t count = getrandom(place, static_cast<size_t>(size), 0);
        if (count < 0 && errno != EINTR) return false;
        if (count > 0) place += count, size -= count;
    }
    return true;
}

[[noreturn]] void refuse(int control, const char* why) {
    send(control, why, strlen(why), MSG_NOSIGNAL);
    _exit(1);
}

}  // namespace
}  // namespace ipybox::launcher

using namespace ipybox::launcher;

int ipybox_copies(const ipybox_warm* warm) {
    if (warm->ncode > most_code) return -E2BIG;
    const int events = epoll_create1(EPOLL_CLOEXEC);
    if (events < 0) return -errno;
    Copies copies(*warm, events);
    return copies.watch(warm->control, 0) ? copies.serve() : -errno;
}

void ipybox_await(const ipybox_warm* warm) {
    if (!randomize(static_cast<char*>(warm->random), warm->nrandom))
        refuse(warm->control, "there are no random numbers");
    make_ready(*warm);
    if (!packet.receive(warm->control)) _exit(0);
    ForkRequest request;
    if (packet.size < static_cast<ssize_t>(sizeof request))
        refuse(warm->control, "a short request");
    memcpy(&request, packet.data, sizeof request);
    const bool asked = request.path > 0;
    const int* next = packet.files;
    const unsigned count =
        6 + request.filters + (request.enters != 0) + (request.has_group != 0) + (asked ? 4u : 0u);
    if (request.filters > most_filters || static_cast<unsigned>(packet.nfiles) != count ||
        static_cast<std::size_t>(packet.size) != sizeof request + request.path)
        refuse(warm->control, "a request that is not what it says");
    const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null < 0) refuse(warm->control, "/dev/null cannot be opened");
    entry = Entry();
    const int link = *next++, out_r = *next++, out_w = *next++, err_r = *next++, err_w = *next++;
    for (const int file : {null, out_w, err_w, link, out_r, err_r}) entry.fds[entry.nfds++] = file;
    entry.options = *next++;
    while (entry.nfilters < static_cast<int>(request.filters))
        entry.filters[entry.nfilters++] = *next++;
    if (request.enters != 0) entry.init = *next++;
    if (request.has_group != 0) entry.cgroup = *next++;
    if (asked) {
        for (int i = 0; i < 2; ++i) entry.fds[entry.nfds++] = *next++;
        entry.workers = *next++;
        entry.launcher = *next++;
        entry.interpreter = packet.data + sizeof request;
    }
    entry.code = warm->code;
    entry.code_paths = warm->code_paths;
    entry.ncode = warm->ncode;
}

void ipybox_enter(const ipybox_warm* warm) {
    enter_sandbox(entry, warm->control);
    // Paths of the session's are not for its code.
    explicit_bzero(packet.data, sizeof packet.data);
}
