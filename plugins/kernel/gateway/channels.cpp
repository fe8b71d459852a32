// Sockets of the host that the kernel reaches through messages, and answers about its files.
#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/write.hpp>
#include <tuple>

#include "link.hpp"

namespace ipybox::gateway {
namespace {

// Connections of one kernel at the same time.
constexpr std::size_t max_tunnels = 300;
// Bytes that may wait on the host, for all tunnels together.
constexpr std::size_t max_pending = std::size_t{64} << 20;
// What may wait without a share of the memory budget.
constexpr std::size_t free_pending = std::size_t{1} << 20;

}  // namespace

void Tunnel::close() {
    closed = true;
    boost::system::error_code ignored;
    socket.close(ignored);
    changed.notify();
}

void Link::take_channel(jupyter::IncomingMessage& message) {
    auto data = data_of(message);
    if (!data) return end_protocol("a message of a channel without its content");
    if (const auto received = ReliableLink::number_in(*data, "received"))
        kernel_received(*received);
    const auto op = detail::string_of(*data, "op");
    if (op == "file") return take_file(std::move(*data), message);
    const auto number = ReliableLink::number_in(*data, "stream");
    if (op == "received" || !number) return;
    const auto found = tunnels.find(*number);
    auto tunnel = found == tunnels.end() ? nullptr : found->second;
    if (op == "close") {
        if (!tunnel) return;
        tunnel->close();
        tunnels.erase(found);
        return;
    }
    const auto name = detail::string_of(*data, "channel");
    if (!tunnel && !name.empty()) {
        tunnel = begin_tunnel(*number, name);
        if (!tunnel) return end_tunnel(*number);
    }
    if (tunnel) take_bytes(*number, *tunnel, message);
}

void Link::take_file(json::object answer, const jupyter::IncomingMessage& message) {
    const auto found = transfers.find(ReliableLink::number_in(answer, "id").value_or(0));
    if (found == transfers.end()) return;  // nobody waits for it any more
    auto& transfer = found->second;
    for (const auto buffer : message.buffers) transfer.bytes += buffer;
    if (transfer.bytes.size() > transfer.wanted)
        return end_protocol("more of a file than was asked for");
    transfer.answer = std::move(answer);
    changed.notify();
}

// Null when there is no such channel, or too many tunnels.
std::shared_ptr<Tunnel> Link::begin_tunnel(std::uint64_t number, std::string_view name) {
    const auto channel = std::find_if(channels.begin(), channels.end(), [&](const Channel& one) {
        return one.kind == Channel::Kind::socket && one.name == name;
    });
    if (channel == channels.end() || tunnels.size() >= max_tunnels) return nullptr;
    auto tunnel = std::make_shared<Tunnel>(executor);
    tunnels.emplace(number, tunnel);
    asio::co_spawn(executor, read(shared_from_this(), tunnel, number, channel->host_path),
                   asio::detached);
    return tunnel;
}

void Link::take_bytes(std::uint64_t number, Tunnel& tunnel,
                      const jupyter::IncomingMessage& message) {
    for (const auto buffer : message.buffers) {
        tunnel.pending.emplace_back(buffer);
        tunnel.pending_bytes += buffer.size();
    }
    // The tool server takes or refuses what comes; this is for a kernel that goes on regardless.
    std::size_t waiting = 0;
    for (const auto& entry : tunnels) waiting += entry.second->pending_bytes;
    if (waiting > max_pending || !tunnel_memory.resize(waiting > free_pending ? waiting : 0)) {
        tunnel.close();
        tunnels.erase(number);
        return end_tunnel(number);
    }
    tunnel.changed.notify();
}

void Link::end_tunnel(std::uint64_t number) {
    json::object content;
    content["op"] = "data";
    content["stream"] = number;
    content["end"] = true;
    tell_surely(std::move(content));
}

awaitable<void> Link::read(std::shared_ptr<Link> self, std::shared_ptr<Tunnel> tunnel,
                           std::uint64_t number, std::filesystem::path path) {
    const asio::local::stream_protocol::endpoint endpoint(path.string());
    boost::system::error_code error;
    std::tie(error) = co_await tunnel->socket.async_connect(endpoint, as_result);
    if (!error) tunnel->socket.non_blocking(true, error);
    if (!error) asio::co_spawn(self->executor, write(tunnel), asio::detached);
    std::string buffer(piece, '\0');
    while (!error && !tunnel->closed) {
        std::tie(error) =
            co_await tunnel->socket.async_wait(asio::socket_base::wait_read, as_result);
        if (error || tunnel->closed) break;
        // Read in the same turn: hundreds of tunnels would each go beyond the window together.
        if (self->delivery.window_full()) {
            co_await self->changed.wait();
            continue;
        }
        const auto size = tunnel->socket.read_some(asio::buffer(buffer), error);
        if (error == asio::error::would_block) {
            error = {};
            continue;
        }
        if (error) break;
        json::object content;
        content["op"] = "data";
        content["stream"] = number;
        content["end"] = false;
        self->tell_surely(std::move(content), buffer.substr(0, size));
    }
    if (tunnel->closed) co_return;
    tunnel->close();
    self->tunnels.erase(number);
    self->end_tunnel(number);
}

awaitable<void> Link::write(std::shared_ptr<Tunnel> tunnel) {
    while (!tunnel->closed) {
        if (tunnel->pending.empty()) {
            co_await tunnel->changed.wait();
            continue;
        }
        const std::string data = std::move(tunnel->pending.front());
        tunnel->pending.pop_front();
        tunnel->pending_bytes -= data.size();
        const auto buffer = asio::buffer(data);
        const auto [error, size] = co_await asio::async_write(tunnel->socket, buffer, as_result);
        if (error) co_return;  // the reader sees it
    }
}

}  // namespace ipybox::gateway
