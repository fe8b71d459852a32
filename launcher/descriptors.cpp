#include "descriptors.hpp"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace ipybox::launcher {
namespace {

constexpr size_t room = CMSG_SPACE(sizeof(int) * most_sent);

}  // namespace

bool send_descriptors(int socket, char byte, const int* files, int count) {
    const size_t size = static_cast<size_t>(count) * sizeof *files;
    iovec part = {&byte, 1};
    alignas(cmsghdr) char control[room] = {};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(size);
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_len = CMSG_LEN(size);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    memcpy(CMSG_DATA(header), files, size);
    ssize_t sent = 0;
    do sent = sendmsg(socket, &message, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    return sent == 1;
}

Received receive_descriptors(int socket, int flags, int* files, int most) {
    char byte = 0;
    iovec part = {&byte, 1};
    alignas(cmsghdr) char control[room];
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    Received received;
    do received.bytes = recvmsg(socket, &message, flags | MSG_CMSG_CLOEXEC);
    while (received.bytes < 0 && errno == EINTR);
    if (received.bytes <= 0) return received;
    const cmsghdr* const header = CMSG_FIRSTHDR(&message);
    received.cut = (message.msg_flags & MSG_CTRUNC) != 0;
    if (header == nullptr || header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
        return received;
    const auto all = static_cast<int>((header->cmsg_len - CMSG_LEN(0)) / sizeof *files);
    received.count = all < most ? all : most;
    memcpy(files, CMSG_DATA(header), static_cast<size_t>(received.count) * sizeof *files);
    for (int i = received.count; i < all; ++i) {
        int surplus = -1;
        memcpy(&surplus, CMSG_DATA(header) + static_cast<size_t>(i) * sizeof surplus,
               sizeof surplus);
        close(surplus);
        received.cut = true;
    }
    return received;
}

void close_all_but(int first, int one, int other) {
    const int low = one < other ? one : other, high = one < other ? other : one;
    const auto close_range = [](int from, int to) {
        if (from <= to)
            syscall(SYS_close_range, static_cast<unsigned>(from), static_cast<unsigned>(to), 0u);
    };
    close_range(first, low - 1);
    close_range(low < first ? first : low + 1, high - 1);
    const int rest = high < first ? first : high + 1;
    syscall(SYS_close_range, static_cast<unsigned>(rest), ~0u, 0u);
}

}  // namespace ipybox::launcher
