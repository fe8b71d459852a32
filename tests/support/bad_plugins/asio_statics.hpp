#pragma once
// What Asio must have once in a process, as whoever includes this sees it.
#include <array>
#include <boost/asio/error.hpp>
#include <boost/asio/io_context.hpp>

using AsioStatics = std::array<const void*, 6>;

// static: each shared object computes with its own references. To be called within a handler, where
// the stack of running handlers is not empty.
[[maybe_unused]] static AsioStatics asio_statics() {
    namespace asio = boost::asio;
    using asio::detail::execution_context_service_base;
    return {&execution_context_service_base<asio::detail::scheduler>::id,
            &execution_context_service_base<asio::detail::epoll_reactor>::id,
            &asio::error::get_netdb_category(),
            &asio::error::get_addrinfo_category(),
            &asio::error::get_misc_category(),
            asio::detail::thread_context::top_of_thread_call_stack()};
}
