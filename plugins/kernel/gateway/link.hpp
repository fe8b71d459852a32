#pragma once
// Everything a kernel consists of on the host: the state of its link, what runs, and what the
// kernel reaches through messages.
#include <boost/asio/local/stream_protocol.hpp>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <ipybox/detail/private_directory.hpp>
#include <ipybox/jupyter/execution.hpp>
#include <ipybox/jupyter/link.hpp>
#include <ipybox/kernel_backend.hpp>
#include <ipybox/memory_budget.hpp>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "connection.hpp"
#include "options.hpp"
#include "server.hpp"

namespace ipybox::gateway {

// Servers refuse messages of 10 MiB; this leaves room for what surrounds the text, and for what
// JSON makes of it.
inline constexpr std::size_t longest_request = std::size_t{8} << 20;
inline constexpr std::size_t longest_content = (std::size_t{10} << 20) - (std::size_t{64} << 10);
// Bytes that are read at once: of a message, of a socket of the host, of files for the kernel.
inline constexpr std::size_t piece = std::size_t{256} << 10;

// One of the kernel's connections to a channel of the host.
struct Tunnel {
    explicit Tunnel(const asio::any_io_executor& executor) : socket(executor), changed(executor) {}
    asio::local::stream_protocol::socket socket;
    std::deque<std::string> pending;
    std::size_t pending_bytes = 0;
    bool closed = false;
    Event changed;

    void close();
};

// A file that is being written or read.
struct FileTransfer {
    std::size_t wanted = 0;  // bytes that the answer may bring
    std::string bytes;
    std::optional<json::object> answer;
};

// Shared by the kernel's handle and the coroutines that serve it.
struct Link : std::enable_shared_from_this<Link> {
    Link(asio::any_io_executor on, const Settings& with, Logger log);

    asio::any_io_executor executor;
    Settings settings;
    Logger logger;
    ServerPtr server;
    std::string kernel;  // its id; empty until it is created
    std::string session = detail::random_hex(16);
    std::uint64_t requests = 0;
    ConnectionPtr connection;
    bool answered = false;       // the kernel's end, over this connection
    int unread_connections = 0;  // that were closed because the server did not read
    Event changed;

    // Only of a gateway of our own.
    std::shared_ptr<SandboxedProcess> process;
    std::optional<detail::PrivateDirectory> directory, relayed;
    UniqueFd gateway_socket;
    bool exited = false;

    bool closed = false, stopping = false;
    std::optional<Error> failure;

    ReliableLink delivery;
    MemoryReservation inbox_memory, tunnel_memory;
    Clock::time_point heard{};  // when the newest message came

    std::string boot;  // msg_id of the request that starts the kernel's end
    std::optional<json::object> booted;
    std::string interrupt;  // msg_id of an interrupt_request
    JupyterExecution execution;
    std::optional<jupyter::OutgoingMessage> request;  // the running execution's
    std::vector<Channel> channels;                    // what the kernel's end stands in for
    std::map<std::string, std::string> library;       // what of it the kernel has
    std::map<std::uint64_t, std::shared_ptr<Tunnel>> tunnels;
    std::map<std::uint64_t, FileTransfer> transfers;
    std::uint64_t last_transfer = 0;

    // The kernel is no longer usable, or is being shut down.
    bool over() const noexcept { return closed || failure.has_value(); }
    // Throws Error: cancelled after a shutdown, what ended the kernel after its end.
    void require_usable() const;

    // The kernel is no longer usable: remembers why. What it printed before is still to be had.
    void end(errc code, const std::string& detail);
    void end_protocol(const std::string& what);
    void end_dead(const std::string& how);
    // The last that a gateway of our own printed, for a message.
    std::string tail_text() const;
    void disconnect();
    // Ends everything; what waits wakes up and sees `closed`.
    void close();

    std::string next_id() { return session + "_" + std::to_string(++requests); }
    jupyter::OutgoingMessage make(std::string_view channel, std::string_view type,
                                  const std::string& id, const json::object& content) const;
    void send(const jupyter::OutgoingMessage& message);
    // To the kernel's end of the link, past whatever runs.
    void tell(json::object content, std::string buffer = {});
    // The same, kept until the kernel has it. Returns the message's number.
    std::uint64_t tell_surely(json::object content, std::string buffer = {});
    void kernel_received(std::uint64_t number);
    // A message of the sequence was dealt with: acknowledges when that is due.
    void consumed(std::size_t bytes);

    // What comes from the kernel.
    void take(std::unique_ptr<LinkMessage> received);
    // What the kernel's end wrapped.
    std::optional<json::object> data_of(jupyter::IncomingMessage& message) const;

    // Asks the kernel to go on after what has been taken, until it answers.
    void resume();
    // There is a new connection.
    void reconnected();

private:
    void keep(std::unique_ptr<LinkMessage> received);
    void take_iopub(std::unique_ptr<LinkMessage> received);
    void take_from_server(jupyter::IncomingMessage& message);
    void take_answer(jupyter::IncomingMessage& message);
    void repeat_request(const json::object& state);
    void begin_asking();
    static awaitable<void> insist(std::shared_ptr<Link> self, std::string token);

    // channels.cpp
    void take_channel(jupyter::IncomingMessage& message);
    void take_file(json::object answer, const jupyter::IncomingMessage& message);
    std::shared_ptr<Tunnel> begin_tunnel(std::uint64_t number, std::string_view name);
    void take_bytes(std::uint64_t number, Tunnel& tunnel, const jupyter::IncomingMessage& message);
    void end_tunnel(std::uint64_t number);
    static awaitable<void> read(std::shared_ptr<Link> self, std::shared_ptr<Tunnel> tunnel,
                                std::uint64_t number, std::filesystem::path path);
    static awaitable<void> write(std::shared_ptr<Tunnel> tunnel);
};
using LinkPtr = std::shared_ptr<Link>;

// To be called after a wait that ends early when the coroutine is cancelled.
awaitable<void> throw_if_cancelled();

// Where the REST API has the kernel.
std::string path_of(const Link& link);

}  // namespace ipybox::gateway
