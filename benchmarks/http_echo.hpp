#pragma once
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <string>
#include <thread>
#include <vector>

// The least that an MCP server over HTTP can do, with Beast and a thread for each connection: one
// tool that returns its text.
class HttpEcho {
public:
    HttpEcho();
    ~HttpEcho();
    unsigned short port() const { return acceptor_.local_endpoint().port(); }

private:
    void serve();
    boost::asio::io_context context_;
    boost::asio::ip::tcp::acceptor acceptor_;
    std::thread thread_;
    std::vector<std::thread> connections_;  // each ends with its client
};

// The floor: POSTs of Beast over one connection that is kept alive, with the bytes that MCP asks
// for; the time is that of writing, waiting and reading alone.
class BarePosts {
public:
    explicit BarePosts(unsigned short port);
    double round();  // microseconds

private:
    std::string host_;
    boost::asio::io_context context_;
    boost::asio::ip::tcp::socket socket_;
};
