#pragma once
// The host's side of two channels into a sandbox.
#include <boost/asio/awaitable.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <filesystem>
#include <string>

namespace ipybox::test {

// Says "stressed" at the socket `out` and "answer" to who connects at `in`: 8 bytes from in there,
// and 8 that come back.
inline boost::asio::awaitable<std::string> talk(boost::asio::local::stream_protocol::acceptor& in,
                                                std::filesystem::path out) {
    namespace asio = boost::asio;
    asio::local::stream_protocol::socket sender(in.get_executor());
    const asio::local::stream_protocol::endpoint there(out.string());
    co_await sender.async_connect(there, asio::use_awaitable);
    const auto sent = asio::buffer("stressed", 8);
    co_await asio::async_write(sender, sent, asio::use_awaitable);
    auto receiver = co_await in.async_accept(asio::use_awaitable);
    std::string text(8, '\0');
    const auto asked = asio::buffer(text);
    co_await asio::async_read(receiver, asked, asio::use_awaitable);
    const auto answer = asio::buffer("answer", 6);
    co_await asio::async_write(receiver, answer, asio::use_awaitable);
    std::string back(8, '\0');
    const auto got = asio::buffer(back);
    co_await asio::async_read(sender, got, asio::use_awaitable);
    co_return text + " " + back;
}

}  // namespace ipybox::test
