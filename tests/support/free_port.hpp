#pragma once
// Ports for servers that are told where to listen.
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <ipybox/detail/unique_fd.hpp>
#include <random>

namespace ipybox::test {

// A port of loopback that nobody listens on. None of those from which Linux takes the ports of
// connections (32768 and up): another test's would have it before the server.
inline std::uint16_t free_port() {
    std::random_device random;
    std::uniform_int_distribution<unsigned> ports(20'000, 32'000);
    for (;;) {
        const auto port = static_cast<std::uint16_t>(ports(random));
        const UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_port = htons(port);
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        if (::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0)
            return port;
    }
}

}  // namespace ipybox::test
