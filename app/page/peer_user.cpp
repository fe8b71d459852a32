#include "peer_user.hpp"

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>

namespace ipybox::app {

std::optional<uid_t> user_of(int socket) {
    sockaddr_storage mine{}, theirs{};
    socklen_t mine_size = sizeof mine, theirs_size = sizeof theirs;
    if (::getsockname(socket, reinterpret_cast<sockaddr*>(&mine), &mine_size) != 0 ||
        ::getpeername(socket, reinterpret_cast<sockaddr*>(&theirs), &theirs_size) != 0)
        return std::nullopt;
    // As the kernel writes it: words in this machine's order.
    const auto text = [](const sockaddr_storage& address) {
        char out[64];
        std::string all;
        if (address.ss_family == AF_INET) {
            const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
            std::snprintf(out, sizeof out, "%08X:%04X", v4.sin_addr.s_addr, ntohs(v4.sin_port));
            return std::string(out);
        }
        const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
        for (const auto word : v6.sin6_addr.s6_addr32) {
            std::snprintf(out, sizeof out, "%08X", word);
            all += out;
        }
        std::snprintf(out, sizeof out, ":%04X", ntohs(v6.sin6_port));
        return all + out;
    };
    const auto wanted_local = text(theirs), wanted_remote = text(mine);
    std::ifstream table(mine.ss_family == AF_INET ? "/proc/net/tcp" : "/proc/net/tcp6");
    std::string line;
    while (std::getline(table, line)) {
        std::istringstream fields(line);
        std::string number, local, remote, state, queues, timer, retransmits, timeout;
        uid_t uid = 0;
        std::uint64_t inode = 0;
        // Of a socket that its program has closed nobody knows whose it was: root's, it says.
        if (fields >> number >> local >> remote >> state >> queues >> timer >> retransmits >> uid >>
                timeout >> inode &&
            local == wanted_local && remote == wanted_remote && inode != 0)
            return uid;
    }
    return std::nullopt;
}

}  // namespace ipybox::app
