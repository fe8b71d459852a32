#pragma once
// Who is at the other end of a connection on this machine.
#include <sys/types.h>

#include <optional>

namespace ipybox::app {

// The user of the process at the other end of a TCP connection over the loopback; nullopt: unknown,
// as when that process has closed it. socket: connected.
std::optional<uid_t> user_of(int socket);

}  // namespace ipybox::app
