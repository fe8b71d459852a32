#include "link.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>

namespace ipybox::gateway {
using jupyter::IncomingMessage;
using jupyter::OutgoingMessage;

Link::Link(asio::any_io_executor on, const Settings& with, Logger log)
    : executor(std::move(on)),
      settings(with),
      logger(std::move(log)),
      changed(executor),
      // The kernel's end waits for us long before that.
      delivery(session, settings.limits.bytes + settings.limits.decoded) {}

void Link::require_usable() const {
    if (stopping || closed) throw Error(errc::cancelled, "the kernel was shut down");
    if (failure) throw *failure;
}

void Link::end(errc code, const std::string& detail) {
    if (!failure) failure.emplace(code, detail);
    disconnect();
    changed.notify();
}

void Link::end_protocol(const std::string& what) {
    execution.abandon();
    delivery.forget_unread();
    end(errc::kernel_protocol, "the kernel broke the protocol (" + what +
                                   ") and was given up; reset() starts a new kernel");
}

void Link::end_dead(const std::string& how) {
    std::string text = "the kernel ended (" + how + ")";
    if (process)
        for (const auto& violation : process->violations()) text += ", " + violation.what;
    end(errc::kernel_died, text + "; reset() starts a new kernel" + tail_text());
}

std::string Link::tail_text() const {
    std::string tail = process ? process->output_tail() : std::string();
    while (!tail.empty() && (tail.back() == '\n' || tail.back() == ' ')) tail.pop_back();
    return tail.empty() ? tail : "; the last it printed:\n" + tail;
}

void Link::disconnect() {
    if (connection) connection->close();
    for (auto& [number, tunnel] : tunnels) tunnel->close();
    tunnels.clear();
}

void Link::close() {
    if (std::exchange(closed, true)) return;
    disconnect();
    if (process) process->kill_tree();
    process.reset();
    if (directory) directory->remove();
    relayed.reset();
    gateway_socket.reset();
    changed.notify();
}

// ---- what goes to the kernel ----

OutgoingMessage Link::make(std::string_view channel, std::string_view type, const std::string& id,
                           const json::object& content) const {
    OutgoingMessage message;
    message.channel = channel;
    message.header = detail::write_json(jupyter::wire_header(id, type, session));
    message.content = detail::write_json(content);
    return message;
}

void Link::send(const OutgoingMessage& message) {
    if (connection) connection->send(message);
}

void Link::tell(json::object content, std::string buffer) {
    json::object wrapped;
    wrapped["value"] = "";
    wrapped["ipybox"] = std::move(content);
    auto message = make("stdin", "input_reply", next_id(), wrapped);
    if (!buffer.empty()) message.buffers.push_back(std::move(buffer));
    send(message);
}

std::uint64_t Link::tell_surely(json::object content, std::string buffer) {
    const auto& sent = delivery.send(std::move(content), std::move(buffer));
    const auto number = sent.number;
    if (delivery.flowing()) tell(sent.content, sent.buffer);
    if (delivery.overfull() && !over()) end_protocol("it does not acknowledge what it is sent");
    return number;
}

void Link::kernel_received(std::uint64_t number) {
    delivery.acknowledged(number);
    changed.notify();
}

void Link::consumed(std::size_t bytes) {
    auto acknowledgement = delivery.consumed(bytes);
    if (acknowledgement) tell(std::move(*acknowledgement));
}

// ---- what comes from it ----

void Link::take(std::unique_ptr<LinkMessage> received) {
    heard = Clock::now();
    auto& message = received->message;
    if (message.channel == "iopub") return take_iopub(std::move(received));
    if (message.channel == "shell") {
        if (!boot.empty() && message.parent_id == boot && message.type == "execute_reply") {
            auto content = message.read_content(settings.limits);
            if (!content) return end_protocol(describe(content.error()));
            booted = std::move(*content);
        } else {
            keep(std::move(received));
        }
        changed.notify();
    } else if (message.channel == "control" && !interrupt.empty() &&
               message.parent_id == interrupt) {
        interrupt.clear();
        changed.notify();
    }
}

void Link::keep(std::unique_ptr<LinkMessage> received) {
    if (!delivery.keep(std::move(received))) return end_protocol("it sends without waiting");
    changed.notify();
}

void Link::take_iopub(std::unique_ptr<LinkMessage> received) {
    auto& message = received->message;
    using Arrival = ReliableLink::Arrival;
    switch (delivery.arrived(*received)) {
        case Arrival::of_server:
            return take_from_server(message);
        case Arrival::malformed:
            return end_protocol("a message with a wrong number");
        case Arrival::answer:
            return take_answer(message);
        case Arrival::dropped:
            return;
        case Arrival::gap:
            return resume();  // the server dropped something
        case Arrival::next:
            break;
    }
    if (message.type != "tunnel") return keep(std::move(received));
    take_channel(message);
    consumed(received->bytes.size());
}

void Link::take_from_server(IncomingMessage& message) {
    if (message.type != "status") return;
    auto content = message.read_content(settings.limits);
    if (!content) return;
    const auto word = detail::string_of(*content, "execution_state");
    if (word == "restarting" || word == "autorestarting" || word == "dead")
        end_dead("its server reports it as " + std::string(word));
}

std::optional<json::object> Link::data_of(IncomingMessage& message) const {
    auto content = message.read_content(settings.limits, 2);
    auto* data = content ? content->if_contains("data") : nullptr;
    if (data == nullptr || !data->is_object()) return std::nullopt;
    return std::move(data->get_object());
}

// ---- resuming ----

void Link::take_answer(IncomingMessage& message) {
    const auto data = data_of(message);
    if (!data) return end_protocol("an answer without its content");
    switch (delivery.answered(*data)) {
        case ReliableLink::Answer::stale:
            return;
        case ReliableLink::Answer::malformed:
            return end_protocol("an answer without its numbers");
        case ReliableLink::Answer::lost:
            return end(errc::kernel_died,
                       "the connection to the kernel broke and some of its output is lost; "
                       "reset() starts a new kernel");
        case ReliableLink::Answer::resumed:
            break;
    }
    answered = true;
    for (const auto& missing : delivery.sent()) tell(missing.content, missing.buffer);
    if (!execution.id().empty() && !execution.replied() && request) repeat_request(*data);
    changed.notify();
}

// The request or its reply may be what was lost.
void Link::repeat_request(const json::object& state) {
    if (detail::string_of(state, "finished") == execution.id()) {
        const auto* reply = detail::object_of(state, "reply");
        if (!reply) return end_protocol("a reply that is none");
        auto repeated = std::make_unique<LinkMessage>();
        repeated->message.type = "execute_reply";
        repeated->message.parent_id = execution.id();
        repeated->message.channel = "shell";
        repeated->message.parsed = *reply;
        keep(std::move(repeated));
    } else if (detail::string_of(state, "running") != execution.id()) {
        // The kernel takes no message with the same signature twice.
        send(*request);
    }
}

void Link::resume() {
    if (!over() && delivery.resume(Clock::now())) begin_asking();
}

void Link::reconnected() {
    if (!over() && delivery.reconnected(Clock::now())) begin_asking();
}

void Link::begin_asking() {
    asio::co_spawn(executor, insist(shared_from_this(), delivery.token()), asio::detached);
}

awaitable<void> Link::insist(std::shared_ptr<Link> self, std::string token) {
    while (!self->over() && self->delivery.token() == token) {
        auto request = self->delivery.ask(Clock::now());
        if (request) self->tell(std::move(*request));
        const auto again = self->delivery.next_ask();
        co_await self->changed.wait(again);
    }
}

awaitable<void> throw_if_cancelled() {
    const auto state = co_await asio::this_coro::cancellation_state;
    if (state.cancelled() != asio::cancellation_type::none)
        throw boost::system::system_error(asio::error::operation_aborted);
}

std::string path_of(const Link& link) { return "/api/kernels/" + link.kernel; }

}  // namespace ipybox::gateway
