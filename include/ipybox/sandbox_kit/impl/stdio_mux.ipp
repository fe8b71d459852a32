#pragma once
#include <ipybox/sandbox_kit/stdio_mux.hpp>

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/write.hpp>
#include <ipybox/compilation.hpp>

namespace ipybox {

IPYBOX_DECL MuxChannel GuestPorts::carry(const Channel& channel) const {
    // Below those that the system chooses for outgoing connections.
    const auto next = static_cast<std::uint16_t>(27'000 + ports_.size());
    return {channel.kind, channel.host_path, ports_.try_emplace(channel.name, next).first->second};
}

IPYBOX_DECL std::string relay_start(const RelayCommand& command,
                                    const std::vector<MuxChannel>& channels) {
    std::string records;
    const auto add = [&records](char kind, std::string_view text) {
        if (text.find('\0') != std::string_view::npos)
            throw Error(errc::bad_argument,
                        "an argument or environment variable contains a NUL byte");
        records += kind;
        records += text;
        records += '\0';
    };
    // First what must hold before anything of the guest's is looked at.
    if (command.no_unix_sockets) add('u', "");
    for (const auto& path : command.unreadable) add('x', path.string());
    if (command.pipes) add('p', "");
    for (const auto& text : command.argv) add('a', text);
    for (const auto& [name, value] : command.env) add('e', name + "=" + value);
    for (const auto& name : command.kept_env)
        if (!command.env.contains(name)) add('k', name);
    add('d', command.cwd.string());
    for (const auto& channel : channels)
        add(channel.kind == Channel::Kind::socket ? 'g' : 'h', std::to_string(channel.port));
    if (records.size() > sandbox_kit::mux_max_start ||
        channels.size() > sandbox_kit::mux_max_channels)
        throw Error(errc::bad_argument,
                    "the sandboxed command's arguments and environment are too large");
    std::string frame(sandbox_kit::mux_header_size, '\0');
    sandbox_kit::write_header(
        reinterpret_cast<unsigned char*>(frame.data()),
        {sandbox_kit::MuxFrame::start, 0, 0, static_cast<std::uint32_t>(records.size())});
    return frame + records;
}

}  // namespace ipybox

namespace ipybox::sandbox_kit {

IPYBOX_DECL MuxState::MuxState(asio::any_io_executor on, asio::writable_pipe to,
                               asio::readable_pipe from)
    : executor(std::move(on)),
      to_guest(std::move(to)),
      from_guest(std::move(from)),
      grown(executor),
      shrunk(executor) {}

IPYBOX_DECL void MuxState::send(MuxHeader header, std::string_view data) {
    unsigned char raw[mux_header_size];
    write_header(raw, header);
    outgoing.append(reinterpret_cast<const char*>(raw), sizeof raw);
    outgoing.append(data);
    grown.notify();
}

IPYBOX_DECL void MuxState::close() noexcept {
    if (std::exchange(closed, true)) return;
    boost::system::error_code ignored;
    to_guest.close(ignored);
    from_guest.close(ignored);
    for (auto& port : ports)
        if (port.acceptor) port.acceptor->close(ignored);
    for (auto& [key, connection] : connections) {
        connection->socket.close(ignored);
        connection->changed.notify();
    }
    connections.clear();
    grown.notify();
    shrunk.notify();
    on_problem = nullptr;
}

IPYBOX_DECL void MuxState::fail(const std::string& what) {
    if (closed) return;
    problem = "the sandbox broke the relay's protocol (" + what + ") and was killed";
    const auto tell = std::move(on_problem);
    close();
    if (tell) tell();
}

IPYBOX_DECL void MuxState::end() {
    boost::system::error_code ignored;
    for (auto& port : ports)
        if (port.acceptor) port.acceptor->close(ignored);
    const auto all = connections;
    for (const auto& [key, connection] : all) {
        connection->ended = connection->finished = true;
        connection->changed.notify();
    }
    shrunk.notify();
}

IPYBOX_DECL MuxConnectionPtr MuxState::add(std::uint8_t channel, std::uint16_t number) {
    auto fresh = std::make_shared<MuxConnection>(executor, channel, number);
    connections.emplace(std::pair(channel, number), fresh);
    ++ports[channel].open;
    return fresh;
}

IPYBOX_DECL void MuxState::finish(MuxConnection& connection) {
    if (!std::exchange(connection.finished, true) && !closed)
        send({MuxFrame::close, connection.channel, connection.number, 0});
}

IPYBOX_DECL void MuxState::give_up(MuxConnection& connection) {
    connection.broken = true;
    finish(connection);
    connection.changed.notify();
}

IPYBOX_DECL void MuxState::settle(MuxConnection& connection) {
    if (!connection.finished || !connection.given || closed) return;
    boost::system::error_code ignored;
    connection.socket.close(ignored);
    if (connections.erase({connection.channel, connection.number}) == 0) return;
    --ports[connection.channel].open;
    shrunk.notify();  // for the one that accepts
}

IPYBOX_DECL awaitable<void> mux_write(MuxStatePtr state) {
    std::string batch;
    while (!state->closed) {
        if (state->outgoing.empty()) {
            co_await state->grown.wait();
            continue;
        }
        batch.clear();
        batch.swap(state->outgoing);
        const auto buffer = asio::buffer(batch);
        const auto [error, count] = co_await asio::async_write(state->to_guest, buffer, as_result);
        if (error) co_return;  // the reader sees the end as well
        state->shrunk.notify();
    }
}

IPYBOX_DECL awaitable<void> mux_read(MuxStatePtr state) {
    std::vector<char> buffer(4 * mux_max_data);
    std::size_t filled = 0;
    while (!state->closed) {
        const auto room = asio::buffer(buffer) + filled;
        const auto [error, count] = co_await state->from_guest.async_read_some(room, as_result);
        if (state->closed) break;
        if (error) {
            state->end();
            break;
        }
        filled += count;
        const std::string_view text(buffer.data(), filled);
        std::size_t at = 0;
        while (!state->closed && filled - at >= mux_header_size) {
            const auto header = read_header(reinterpret_cast<const unsigned char*>(&buffer[at]));
            std::size_t size = mux_header_size;
            if (!state->ready && (header.kind != MuxFrame::ready || header.value != mux_version)) {
                state->fail("it began with \"" +
                            detail::printable(std::string(text.substr(0, 200))) + "\"");
                co_return;
            }
            state->ready = true;
            if (header.kind == MuxFrame::data) {
                if (header.value > mux_max_data) {
                    state->fail("a frame of " + std::to_string(header.value) + " bytes");
                    co_return;
                }
                size += header.value;
                if (filled - at < size) break;
            }
            state->handle(header, text.substr(at + mux_header_size, size - mux_header_size));
            at += size;
        }
        std::memmove(buffer.data(), buffer.data() + at, filled - at);
        filled -= at;
    }
}

IPYBOX_DECL awaitable<void> mux_take(MuxStatePtr state, MuxConnectionPtr connection) {
    std::vector<char> buffer(mux_max_data);
    while (!state->closed && !connection->finished) {
        if (connection->credit == 0) {
            co_await connection->changed.wait();
            continue;
        }
        if (state->outgoing.size() > MuxState::enough) {
            co_await state->shrunk.wait();
            continue;
        }
        const auto room =
            asio::buffer(buffer, std::min<std::size_t>(buffer.size(), connection->credit));
        const auto [error, count] = co_await connection->socket.async_read_some(room, as_result);
        if (error || state->closed || connection->finished) break;
        const auto size = static_cast<std::uint32_t>(count);
        connection->credit -= size;
        state->send({MuxFrame::data, connection->channel, connection->number, size},
                    std::string_view(buffer.data(), count));
    }
    state->finish(*connection);
    state->settle(*connection);
    // The guest may go on sending, until the local side is gone altogether: then the guest's end
    // would keep a place for nothing.
    while (!state->closed && connection->socket.is_open()) {
        pollfd event{connection->socket.native_handle(), 0, 0};
        if (::poll(&event, 1, 0) == 1 && (event.revents & (POLLHUP | POLLERR)) != 0) {
            connection->broken = true;
            state->send({MuxFrame::gone, connection->channel, connection->number, 0});
            break;
        }
        const auto [error] =
            co_await connection->socket.async_wait(LocalSocket::socket::wait_error, as_result);
        if (error) break;
    }
}

IPYBOX_DECL awaitable<void> mux_give(MuxStatePtr state, MuxConnectionPtr connection) {
    std::string batch;
    std::uint32_t owed = 0;
    while (!state->closed) {
        if (connection->waiting.empty()) {
            if (connection->ended) break;
            co_await connection->changed.wait();
            continue;
        }
        batch.clear();
        batch.swap(connection->waiting);
        if (!connection->broken) {
            const auto buffer = asio::buffer(batch);
            connection->writing = true;
            const auto [error, count] =
                co_await asio::async_write(connection->socket, buffer, as_result);
            connection->writing = false;
            if (state->closed) break;
            if (error) state->give_up(*connection);
        }
        owed += static_cast<std::uint32_t>(batch.size());
        if (owed >= mux_window / 2 && !connection->ended) {
            state->send({MuxFrame::credit, connection->channel, connection->number, owed});
            connection->held -= owed;
            owed = 0;
        }
    }
    boost::system::error_code ignored;
    connection->socket.shutdown(LocalSocket::socket::shutdown_send, ignored);
    connection->given = true;
    state->settle(*connection);
}

IPYBOX_DECL void mux_start(MuxStatePtr state, MuxConnectionPtr connection) {
    asio::co_spawn(state->executor, mux_take(state, connection), asio::detached);
    asio::co_spawn(state->executor, mux_give(state, connection), asio::detached);
}

IPYBOX_DECL awaitable<void> mux_connect(MuxStatePtr state, MuxConnectionPtr connection) {
    const LocalSocket::endpoint there(state->ports[connection->channel].channel.host_path.string());
    boost::system::error_code error;
    connection->socket.open(LocalSocket(), error);
    if (!error) connection->socket.native_non_blocking(true, error);
    // Not Asio's: it takes EAGAIN, a full queue of the listener, for a connection under way.
    while (!error && ::connect(connection->socket.native_handle(), there.data(),
                               static_cast<socklen_t>(there.size())) != 0) {
        if (errno != EAGAIN && errno != EINTR) {
            error.assign(errno, boost::system::system_category());
            break;
        }
        co_await sleep_until(Clock::now() + std::chrono::milliseconds(5));
        if (state->closed) co_return;
    }
    if (error) {
        state->give_up(*connection);
        co_await mux_give(state, connection);
    } else {
        mux_start(state, connection);
    }
}

IPYBOX_DECL awaitable<void> mux_accept(MuxStatePtr state, std::uint8_t channel) {
    auto& port = state->ports[channel];
    while (!state->closed && port.acceptor->is_open()) {
        if (port.open >= mux_max_connections) {
            co_await state->shrunk.wait();
            continue;
        }
        LocalSocket::socket socket(state->executor);
        const auto [error] = co_await port.acceptor->async_accept(socket, as_result);
        if (state->closed || !port.acceptor->is_open()) break;
        if (error) {
            // Out of descriptors perhaps: not again at once.
            co_await sleep_until(Clock::now() + std::chrono::milliseconds(50));
            continue;
        }
        do ++port.last;
        while (state->connections.contains({channel, port.last}));
        const auto fresh = state->add(channel, port.last);
        fresh->socket = std::move(socket);
        state->send({MuxFrame::open, channel, port.last, 0});
        mux_start(state, fresh);
    }
}

IPYBOX_DECL void MuxState::handle(MuxHeader header, std::string_view payload) {
    if (outgoing.size() > too_much) return fail("it does not read its input");
    if (header.kind == MuxFrame::ready) return;
    if (header.channel >= ports.size()) return fail("an unknown channel");
    const auto found = connections.find({header.channel, header.connection});
    if (header.kind == MuxFrame::open) {
        auto& port = ports[header.channel];
        if (port.channel.kind != Channel::Kind::socket || found != connections.end() ||
            port.open >= mux_max_connections)
            return fail("a connection it may not open");
        const auto self = shared_from_this();
        asio::co_spawn(executor, mux_connect(self, add(header.channel, header.connection)),
                       asio::detached);
        return;
    }
    if (found == connections.end()) {
        // Our close may have crossed with it.
        if (header.kind != MuxFrame::credit) fail("an unknown connection");
        return;
    }
    const auto connection = found->second;
    switch (header.kind) {
        case MuxFrame::data:
            if (connection->ended) return fail("data after the end of a connection");
            if (payload.size() > mux_window - connection->held)
                return fail("more than it may send");
            connection->held += static_cast<std::uint32_t>(payload.size());
            connection->waiting.append(payload);
            break;
        case MuxFrame::close:
            if (connection->ended) return fail("a second end of a connection");
            connection->ended = true;
            // At once where nothing is left to deliver: the next frame may want the place.
            if (connection->finished &&
                (connection->broken || (connection->waiting.empty() && !connection->writing))) {
                connection->given = true;
                settle(*connection);
            }
            break;
        case MuxFrame::credit:
            if (header.value > mux_window - connection->credit) return fail("credit for nothing");
            connection->credit += header.value;
            break;
        default:
            return fail("an unknown frame");
    }
    connection->changed.notify();
}

}  // namespace ipybox::sandbox_kit

namespace ipybox {

IPYBOX_DECL StdioMux::StdioMux(asio::any_io_executor executor, asio::writable_pipe to_guest,
                               asio::readable_pipe from_guest, std::vector<MuxChannel> channels,
                               std::string start, std::function<void()> on_problem)
    : state_(std::make_shared<sandbox_kit::MuxState>(executor, std::move(to_guest),
                                                     std::move(from_guest))) {
    state_->on_problem = std::move(on_problem);
    state_->outgoing = std::move(start);
    for (auto& channel : channels) {
        auto& port = state_->ports.emplace_back();
        port.channel = std::move(channel);
        const auto path = port.channel.host_path.string();
        try {
            const sandbox_kit::LocalSocket::endpoint here(path);
            if (port.channel.kind == Channel::Kind::listener) port.acceptor.emplace(executor, here);
        } catch (const boost::system::system_error& error) {
            throw Error(errc::io_error,
                        "cannot use the socket " + path + ": " + error.code().message());
        }
    }
    for (std::size_t i = 0; i < state_->ports.size(); ++i)
        if (state_->ports[i].acceptor)
            asio::co_spawn(executor, sandbox_kit::mux_accept(state_, static_cast<std::uint8_t>(i)),
                           asio::detached);
    asio::co_spawn(executor, sandbox_kit::mux_write(state_), asio::detached);
    asio::co_spawn(executor, sandbox_kit::mux_read(state_), asio::detached);
}

IPYBOX_DECL void StdioMux::signal(int number, bool group) {
    const auto value = static_cast<std::uint32_t>(number);
    if (!state_->closed) state_->send({sandbox_kit::MuxFrame::signal, 0, group, value});
}

}  // namespace ipybox
