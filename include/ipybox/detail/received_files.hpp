#pragma once
// Descriptors that come over a Unix socket.
#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <ipybox/detail/unique_fd.hpp>
#include <utility>

namespace ipybox::detail {

struct ReceivedFiles {
    ssize_t bytes = -1;     // as recvmsg() says: 0 at the end, -1 with errno
    std::size_t count = 0;  // of descriptors
    // More came than were wanted, or than there was room for in this process; those are closed.
    bool cut = false;

    // Whether nothing will come any more.
    bool ended() const noexcept {
        return bytes == 0 || (bytes < 0 && errno != EAGAIN && errno != EINTR);
    }
};

// Like recv() without waiting; descriptors that come along are put into `files`.
template <std::size_t most>
ReceivedFiles receive_files(int socket, void* data, std::size_t size, UniqueFd (&files)[most]) {
    iovec part{data, size};
    alignas(cmsghdr) char control[CMSG_SPACE(most * sizeof(int))];
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    ReceivedFiles received;
    received.bytes = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    const cmsghdr* header = received.bytes > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
    if (header == nullptr || header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
        return received;
    received.cut = (message.msg_flags & MSG_CTRUNC) != 0;
    const auto all = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < all; ++i) {
        UniqueFd file;
        int number = -1;
        std::memcpy(&number, CMSG_DATA(header) + i * sizeof number, sizeof number);
        file.reset(number);
        if (i < most)
            files[received.count++] = std::move(file);
        else
            received.cut = true;
    }
    return received;
}

}  // namespace ipybox::detail
