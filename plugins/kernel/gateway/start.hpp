#pragma once
// From a server that answers to a kernel that is linked.
#include "link.hpp"

namespace ipybox::gateway {

// Has the server start a kernel; tries again while it cannot be reached. Throws Error:
// kernel_start_failed, timed_out.
awaitable<void> create_kernel(LinkPtr link, Clock::time_point deadline);

// Connects, and starts the kernel's end of the link. settings: the argument of
// python/kernel_start.py. Throws Error: kernel_start_failed, timed_out, and what ended the kernel.
awaitable<void> begin_link(LinkPtr link, json::object settings, Clock::time_point deadline);

}  // namespace ipybox::gateway
