#pragma once
#include <ipybox/async.hpp>

// What compiling costs most: instantiated here alone.
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/this_coro.hpp>
#include <ipybox/compilation.hpp>

namespace ipybox {

IPYBOX_DECL awaitable<void> sleep_until(Clock::time_point time) {
    asio::steady_timer timer(co_await asio::this_coro::executor, time);
    co_await timer.async_wait(as_result);
}

IPYBOX_DECL awaitable<bool> ends_first(awaitable<void> work, awaitable<void> other) {
    using namespace asio::experimental::awaitable_operators;
    auto both = std::move(work) || std::move(other);
    const auto first = co_await std::move(both);
    co_return first.index() == 0;
}

IPYBOX_DECL awaitable<void> Event::wait(Clock::time_point deadline) {
    asio::steady_timer timer(executor_, deadline);
    const auto place = waiting_.insert(waiting_.end(), &timer);
    const Leave leave{waiting_, place};
    co_await timer.async_wait(as_result);
}

}  // namespace ipybox
