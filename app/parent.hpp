#pragma once
// Programs that serve the one that started them end with it.
#include <unistd.h>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <ipybox/async.hpp>
#include <ipybox/sandbox_kit/process.hpp>

namespace ipybox::app {

// Returns when the process that started this one is gone; something else may hold the input open.
inline awaitable<void> parent_gone() {
    const auto parent = ::getppid();
    asio::posix::stream_descriptor watch(co_await asio::this_coro::executor);
    if (auto handle = sandbox_kit::open_pidfd(parent); parent > 1 && handle)
        watch.assign(handle.release());
    bool watched = watch.is_open();
    while (watched && ::getppid() == parent) {
        const auto [error] =
            co_await watch.async_wait(asio::posix::descriptor_base::wait_read, as_result);
        watched = !error;
    }
    // A container's first process, or a kernel that cannot tell.
    if (!watched) co_await sleep_until(never);
}

}  // namespace ipybox::app
