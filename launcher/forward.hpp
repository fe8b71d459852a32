#pragma once
// The only way out of a sandbox that has a network: loopback ports that lead to Unix sockets of
// the host, behind which its proxy decides.
#include <cstdint>

class Forwarder {
public:
    // Takes connections to 127.0.0.1:port for the Unix socket `path`, which must outlive this.
    // False with errno.
    bool listen(std::uint16_t port, const char* path);
    // Leaves a process behind that carries the connections until the sandbox ends; nothing when
    // there is no port. no_exec: that process can start no program. False with errno.
    bool start(bool no_exec);

private:
    static constexpr int max_ports = 8;
    struct Port {
        int socket;
        const char* path;
    };
    Port ports_[max_ports];
    int count_ = 0;
};
