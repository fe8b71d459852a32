#pragma once
// How a command runs its one coroutine.
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_future.hpp>
#include <chrono>
#include <future>
#include <ipybox/async.hpp>

namespace ipybox::app {

// Runs `work` on `context` until it ends; what else is on it then is no longer waited for.
// Returns its result, throws what it threw.
template <class T>
T run_to_end(asio::io_context& context, awaitable<T> work) {
    auto result = asio::co_spawn(context, std::move(work), asio::use_future);
    while (result.wait_for(std::chrono::seconds(0)) != std::future_status::ready) context.run_one();
    return result.get();
}

}  // namespace ipybox::app
