#pragma once
// A program, from its start to its end.
#include <sys/types.h>

#include "broker.hpp"
#include "question.hpp"

namespace ipybox::launcher {

// Becomes the parent of the program. False: refusal says what Linux said.
bool start(const Broker& broker, Request& request, const Target& target, pid_t& pid,
           Refusal& refusal);

// Passes signals on until the program ends, or until nobody is at the other end: then it is killed
// with its group. waited: signalfd of SIGCHLD.
void accompany(int link, int waited, pid_t pid);

// Whether all of it went.
bool tell(int socket, const void* data, unsigned long size);
// 'E', its error, its reason.
void tell(int socket, const Refusal& refusal);

}  // namespace ipybox::launcher
