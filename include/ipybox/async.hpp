#pragma once
// The coroutine type of every asynchronous function, and the two things coroutines wait for.
// Everything here belongs to one thread: the one that runs the executor's io_context.
#include <poll.h>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <chrono>
#include <list>
#include <utility>

namespace ipybox {

namespace asio = boost::asio;
namespace json = boost::json;
using asio::awaitable;
using Clock = std::chrono::steady_clock;
using Duration = std::chrono::nanoseconds;

// No deadline.
inline constexpr Clock::time_point never = Clock::time_point::max();

// When `limit` from now ends; zero or negative means never.
inline Clock::time_point deadline_after(Duration limit) {
    return limit <= Duration::zero() ? never : Clock::now() + limit;
}

// Completes with (error_code, …) instead of throwing.
inline constexpr auto as_result = asio::as_tuple(asio::use_awaitable);

// Whether a descriptor has something to read, or has ended. To be asked after a wait for that: Asio
// may report an event of the descriptor that had its place before.
inline bool is_readable(int descriptor) noexcept {
    pollfd event{descriptor, POLLIN, 0};
    return ::poll(&event, 1, 0) == 1;
}

// Returns at `time`, or earlier when the coroutine is cancelled.
awaitable<void> sleep_until(Clock::time_point time);

// Runs both until one has ended, cancels the other and waits for that; true when `work` ended
// first. Neither may throw, except when it is cancelled.
awaitable<bool> ends_first(awaitable<void> work, awaitable<void> other);

// Something happened: wakes every coroutine that waits. A wake-up between a check and the wait
// cannot be lost, because both run on the same thread without suspension between them.
class Event {
public:
    // executor: of the thread that notifies and waits.
    explicit Event(asio::any_io_executor executor) : executor_(std::move(executor)) {}
    Event(const Event&) = delete;
    Event& operator=(const Event&) = delete;

    // Wakes all who wait now; who waits later is not woken.
    void notify() {
        for (auto* timer : waiting_) timer->cancel();
    }

    // Returns when notified or at `deadline`; the caller checks its condition again.
    // Cancelling the coroutine wakes it as well.
    awaitable<void> wait(Clock::time_point deadline = never);

private:
    using Waiting = std::list<asio::steady_timer*>;
    struct Leave {
        Waiting& list;
        Waiting::iterator place;
        ~Leave() { list.erase(place); }
    };
    asio::any_io_executor executor_;
    Waiting waiting_;
};

}  // namespace ipybox

#ifndef IPYBOX_SEPARATE_COMPILATION
#include <ipybox/impl/async.ipp>
#endif
