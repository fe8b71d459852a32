#include "connection.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/websocket/error.hpp>
#include <optional>

#include "link.hpp"

namespace ipybox::gateway {

namespace websocket = boost::beast::websocket;

Connection::Connection(std::shared_ptr<HttpStream> connected)
    : stream(std::move(connected)), socket(*stream), changed(stream->get_executor()) {}

void Connection::send(const jupyter::OutgoingMessage& message) {
    if (broken) return;
    outbox.push_back(v1 ? jupyter::encode_v1(message) : jupyter::encode_json(message));
    unwritten += outbox.back().bytes.size();
    if (unwritten > most_unwritten) {
        unread = true;
        return close();
    }
    changed.notify();
}

void Connection::close() {
    broken = true;
    stream->close();
    outbox.clear();
    changed.notify();
}

namespace {
using namespace std::chrono_literals;

// Between two connections, even if the server takes each and drops it.
constexpr Duration connection_pause = 100ms;
// How long a kernel may have to wait for memory that others hold.
constexpr Duration memory_patience = 30s;
// A buffer that grew beyond this for one message is not kept for the next.
constexpr std::size_t largest_kept_buffer = std::size_t{2} << 20;

awaitable<void> write_outbox(ConnectionPtr connection) {
    while (!connection->broken) {
        if (connection->outbox.empty()) {
            co_await connection->changed.wait();
            continue;
        }
        const jupyter::WebsocketFrame frame = std::move(connection->outbox.front());
        connection->outbox.pop_front();
        connection->socket.binary(frame.binary);
        const auto buffer = asio::buffer(frame.bytes);
        const auto [error, size] = co_await connection->socket.async_write(buffer, as_result);
        connection->unwritten -= frame.bytes.size();
        if (error) connection->close();
    }
}

// Why the server did not open the kernel's WebSocket.
Error refusal(const Server& server, boost::system::error_code error, unsigned status) {
    if (error == websocket::error::upgrade_declined) {
        Answer answer;
        answer.status = status;
        if (status == 404)
            return Error(errc::kernel_died,
                         "the Jupyter server at " + server.url +
                             " does not know the kernel any more: it was culled or deleted, or the "
                             "server was restarted; reset() starts a new kernel");
        const bool forbidden = status == 401 || status == 403;
        return Error(forbidden ? errc::kernel_died : errc::http_failed,
                     server.refusal(answer, "refused the kernel's WebSocket"));
    }
    if (error == boost::beast::error::timeout)
        return Error(errc::timed_out, "the Jupyter server at " + server.url +
                                          " did not open the kernel's WebSocket in time");
    return Error(errc::http_failed, "the Jupyter server at " + server.url +
                                        " did not open the kernel's WebSocket: " + error.message());
}

// Jupyter servers leave Nagle's algorithm on: each message waits for the acknowledgement of the one
// before, which the system delays by 40 ms unless asked, each time, not to.
void acknowledge_at_once(int socket) {
    const int yes = 1;
    ::setsockopt(socket, IPPROTO_TCP, TCP_QUICKACK, &yes, sizeof yes);
}

// Takes what one kernel sends out of the memory that all share; waits while others hold it. False
// when the kernel ended meanwhile. begun: bytes read of the message that is being read.
awaitable<bool> make_room(LinkPtr link, std::size_t begun) {
    const auto give_up = Clock::now() + memory_patience;
    link->delivery.reading(begun);
    for (;;) {
        if (link->inbox_memory.resize(link->delivery.shared_unread())) co_return true;
        if (link->over()) co_return false;
        if (link->delivery.unread_size() > ReliableLink::most_unread && Clock::now() >= give_up) {
            link->end_protocol("it sends more than there is memory left for");
            co_return false;
        }
        const auto again = Clock::now() + 5ms;
        co_await link->changed.wait(again);
    }
}

// Takes a message that was read whole. False when it breaks the protocol.
bool take(Link& link, const Connection& connection, std::string bytes) {
    auto received = std::make_unique<LinkMessage>();
    received->bytes = std::move(bytes);
    const bool binary = connection.socket.got_binary();
    auto message = connection.v1 && binary
                       ? jupyter::decode_v1(received->bytes, link.settings.limits)
                       : jupyter::decode_json(received->bytes, binary, link.settings.limits);
    if (!message) {
        link.end_protocol(describe(message.error()));
        return false;
    }
    received->message = std::move(*message);
    link.take(std::move(received));
    return true;
}

// Reads until the connection breaks.
awaitable<void> read_all(LinkPtr link, ConnectionPtr connection) {
    boost::beast::flat_buffer buffer;
    while (!connection->broken) {
        boost::system::error_code error = asio::error::operation_aborted;
        do {
            const bool room = co_await make_room(link, buffer.size());
            if (!room) break;
            acknowledge_at_once(connection->stream->socket().native_handle());
            const auto [failed, read] =
                co_await connection->socket.async_read_some(buffer, piece, as_result);
            error = failed;
        } while (!error && !connection->broken && !connection->socket.is_message_done());
        if (error || connection->broken) {
            if (error == websocket::error::message_too_big ||
                error == websocket::error::buffer_overflow)
                link->end_protocol(describe(jupyter::WireFault::too_large));
            break;
        }
        const auto data = buffer.data();
        std::string bytes(static_cast<const char*>(data.data()), data.size());
        buffer.consume(data.size());
        if (buffer.capacity() > largest_kept_buffer) buffer = boost::beast::flat_buffer();
        if (!take(*link, *connection, std::move(bytes))) break;
    }
    connection->close();
}

// The connection was closed because the server reads nothing. A kernel that has it so again and
// again is given up.
void note_unread(Link& link) {
    const auto what = "the Jupyter server at " + link.server->url +
                      ", or what is before it, left more than " +
                      std::to_string(most_unwritten >> 20) + " MiB unread that the kernel was sent";
    if (++link.unread_connections < most_unread_connections)
        return link.logger(LogLevel::warning, what + "; the connection was closed");
    link.end(errc::kernel_protocol, what + ", on " + std::to_string(most_unread_connections) +
                                        " connections, and the kernel was given up; reset() "
                                        "starts a new kernel");
}

// A new connection after one that broke; null when there is none to be had. since: when the kernel
// was reached no more.
awaitable<ConnectionPtr> reconnect(LinkPtr link, Clock::time_point since) {
    const auto give_up = since + link->settings.reconnect_timeout;
    link->logger(LogLevel::warning, "the connection to the kernel at " + link->server->url +
                                        " broke; connecting again");
    Duration pause = 100ms;
    while (!link->over()) {
        std::optional<Error> problem;
        ConnectionPtr connection;
        try {
            const auto deadline = std::min(give_up, Clock::now() + 15s);
            connection = co_await open_connection(link, deadline);
        } catch (const Error& error) {
            problem = error;
        } catch (const std::exception& error) {
            problem.emplace(errc::http_failed, error.what());
        }
        if (link->over()) break;
        if (connection) co_return connection;
        if (problem->code() == errc::kernel_died) {
            link->end(errc::kernel_died, problem->detail());
        } else if (Clock::now() >= give_up) {
            link->end(errc::kernel_died,
                      "the connection to the kernel broke and could not be made again: " +
                          problem->detail() + "; reset() starts a new kernel");
        } else {
            const auto again = std::min(give_up, Clock::now() + pause);
            while (!link->over() && Clock::now() < again) co_await link->changed.wait(again);
            pause = std::min<Duration>(2 * pause, link->settings.retry_interval);
        }
    }
    co_return nullptr;
}

}  // namespace

awaitable<ConnectionPtr> open_connection(LinkPtr link, Clock::time_point deadline) {
    const auto server = link->server;
    auto stream = co_await Server::connect(server, deadline);
    auto connection = std::make_shared<Connection>(std::move(stream));
    auto& socket = connection->socket;
    websocket::stream_base::timeout limits{};
    limits.handshake_timeout =
        std::max<Duration>(1ms, std::min<Duration>(deadline - Clock::now(), 60s));
    // Half of it without a message brings a ping.
    limits.idle_timeout = 2 * link->settings.ping_interval;
    limits.keep_alive_pings = true;
    socket.set_option(limits);
    const auto headers = server->headers();
    const auto decorate = [&headers](websocket::request_type& request) {
        request.set(boost::beast::http::field::sec_websocket_protocol, jupyter::websocket_protocol);
        for (const auto& [name, value] : headers) request.set(name, value);
    };
    socket.set_option(websocket::stream_base::decorator(decorate));
    socket.read_message_max(link->settings.limits.bytes);
    const HttpUrl url =
        HttpUrl::parse(server->url + path_of(*link) + "/channels?session_id=" + link->session);
    websocket::response_type response;
    const std::string host = url.authority(), target = url.path + url.query;
    const auto [error] = co_await socket.async_handshake(response, host, target, as_result);
    // The one handed to the socket refers to `headers`.
    socket.set_option(websocket::stream_base::decorator([](websocket::request_type&) {}));
    if (error) throw refusal(*server, error, response.result_int());
    connection->v1 =
        response[boost::beast::http::field::sec_websocket_protocol] == jupyter::websocket_protocol;
    co_return connection;
}

awaitable<void> keep_connected(LinkPtr link, ConnectionPtr connection) {
    auto reached = Clock::now();
    while (connection) {
        const auto opened = Clock::now(), next = opened + connection_pause;
        link->connection = connection;
        link->answered = false;
        asio::co_spawn(link->executor, write_outbox(connection), asio::detached);
        link->reconnected();
        link->changed.notify();
        co_await read_all(link, connection);
        link->connection = nullptr;
        if (connection->unread && !link->over()) note_unread(*link);
        // A server that takes connections and drops them does not start the time anew; a kernel
        // that is busy may answer late.
        if (link->answered || Clock::now() - opened >= link->settings.ping_interval)
            reached = Clock::now();
        if (!link->over() && !link->answered &&
            Clock::now() >= reached + link->settings.reconnect_timeout)
            link->end(errc::kernel_died,
                      "the Jupyter server at " + link->server->url +
                          " takes connections to the kernel and drops them before the kernel "
                          "answers; reset() starts a new kernel");
        while (!link->over() && Clock::now() < next) co_await link->changed.wait(next);
        if (link->over()) break;
        connection = co_await reconnect(link, reached);
    }
}

}  // namespace ipybox::gateway
