#pragma once
// A kernel gateway of our own, in a sandbox of this machine.
#include <ipybox/kernel_backend.hpp>

#include "link.hpp"

namespace ipybox::gateway {

// Starts it; returns when it answers. Throws Error: kernel_start_failed, missing_dependency,
// timed_out, and what the sandbox throws.
awaitable<void> launch_gateway(Sandbox& sandbox, KernelSpec spec, LinkPtr link,
                               Clock::time_point deadline);

// Throws what has gone wrong with a start by now: Error as above, or what ended the link.
void require_start(const Link& link, Clock::time_point deadline);

}  // namespace ipybox::gateway
