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

bool send_packet(int socket, const void* data, unsigned long size, const int* files, int count) {
    const size_t length = static_cast<size_t>(count) * sizeof *files;
    iovec part = {const_cast<void*>(data), size};
    alignas(cmsghdr) char control[room] = {};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (count > 0) {
        message.msg_control = control;
        message.msg_controllen = CMSG_SPACE(length);
        cmsghdr* const header = CMSG_FIRSTHDR(&message);
        header->cmsg_len = CMSG_LEN(length);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        memcpy(CMSG_DATA(header), files, length);
    }
    ssize_t sent = 0;
    do sent = sendmsg(socket, &message, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    return sent == static_cast<ssize_t>(size);
}

bool send_descriptors(int socket, char byte, const int* files, int count) {
    return send_packet(socket, &byte, 1, files, count);
}

Received receive_packet(int socket, void* data, unsigned long size, int flags, int* files,
                        int most) {
    iovec part = {data, size};
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

Received receive_descriptors(int socket, int flags, int* files, int most) {
    char byte = 0;
    return receive_packet(socket, &byte, 1, flags, files, most);
}

bool close_all_but(int first, const int* kept, int count) {
    const auto close_range = [](int from, unsigned to) {
        return syscall(SYS_close_range, static_cast<unsigned>(from), to, 0u) == 0;
    };
    for (int i = 0; i < count; ++i) {
        if (kept[i] < first) continue;
        if (kept[i] > first && !close_range(first, static_cast<unsigned>(kept[i]) - 1))
            return false;
        first = kept[i] + 1;
    }
    return close_range(first, ~0u);
}

void close_all_but(int first, int one, int other) {
    const int kept[] = {one < other ? one : other, one < other ? other : one};
    close_all_but(first, kept, 2);
}

}  // namespace ipybox::launcher
