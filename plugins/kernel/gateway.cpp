// IPython kernels behind a Jupyter server: on another machine, or in a sandbox of this one with a
// kernel gateway of its own. REST starts and ends them, a WebSocket carries their messages.
//
// What makes that as good as sockets of one's own is python/ipybox_kernel/link.py, at the other end:
// it numbers what the kernel publishes and sends anew what did not arrive, and it carries the
// channels of a KernelSpec where no file and no socket can be shared.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/websocket/error.hpp>
#include <boost/beast/websocket/stream.hpp>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <deque>
#include <fstream>
#include <ipybox/config.hpp>
#include <ipybox/detail/base64.hpp>
#include <ipybox/detail/hex.hpp>
#include <ipybox/detail/json_memory.hpp>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/detail/private_directory.hpp>
#include <ipybox/detail/terminal_text.hpp>
#include <ipybox/jupyter/execution.hpp>
#include <ipybox/jupyter/websocket.hpp>
#include <ipybox/memory_budget.hpp>
#include <ipybox/net/http_client.hpp>
#include <ipybox/plugin.hpp>
#include <ipybox/remote_kernel.hpp>
#include <ipybox/sandbox_kit/process.hpp>
#include <map>
#include <optional>
#include <sstream>
#include <string>

namespace {
using namespace ipybox;
using namespace std::chrono_literals;
namespace websocket = boost::beast::websocket;
using detail::IncomingMessage;
using detail::OutgoingMessage;
using detail::PrivateDirectory;
using detail::WebsocketFrame;

// Servers refuse messages of 10 MiB; this leaves room for what surrounds the text.
constexpr std::size_t longest_request = std::size_t{8} << 20;
// What the JSON of a server's answer may take; it describes one kernel.
constexpr std::size_t most_decoded_answer = std::size_t{16} << 20;
// Of the files of a library in one message, and of a tunnel.
constexpr std::size_t piece = std::size_t{256} << 10;
// What may wait for a kernel that does not take it; more stays where it comes from.
constexpr std::size_t tunnel_window = std::size_t{4} << 20;
constexpr std::size_t max_tunnels = 300;
// Of a file that is read, in one answer.
constexpr std::size_t file_block = std::size_t{1} << 20;
// What may wait on the host, for all tunnels together.
constexpr std::size_t max_pending = std::size_t{64} << 20;
// After so many bytes or messages the kernel is told that it need not keep them. It waits at 16 MiB.
constexpr std::size_t acknowledged_bytes = std::size_t{1} << 20;
constexpr std::size_t acknowledged_messages = 500;
// Of the kernel's output, what the host takes before anybody asks for it.
constexpr std::size_t unread_bytes = std::size_t{4} << 20;
// What each kernel may leave unread without a share of the memory budget.
constexpr std::size_t free_unread = std::size_t{1} << 20;
// What a kernel that keeps to the rules leaves unread: it waits for the budget, others are ended.
constexpr std::size_t most_unread = std::size_t{24} << 20;
constexpr std::size_t tunnel_piece = std::size_t{1} << 20;
// How long a kernel may have to wait for memory that others hold.
constexpr Duration memory_patience = 30s;

struct Settings {
    std::string url;              // of the server, without a slash at its end
    HttpHeaders headers;
    std::string kernel_name;
    json::object env;             // for the server's launcher: KERNEL_* and what it allows
    std::string cwd;
    std::vector<std::string> gateway_options;
    Duration ping_interval = 10s;
    Duration reconnect_timeout = 60s;
    int connect_retries = 10;
    Duration retry_interval = 1s;
    std::string ca_file;
    detail::WireLimits limits;
};

std::string shown(std::string_view text) {
    return detail::printable(std::string(text.substr(0, 300)));
}

// ---- REST ----

struct Answer {
    unsigned status = 0;
    json::value body;

    // What the server says about its refusal.
    std::string reason() const {
        const auto* object = body.if_object();
        if (object == nullptr) return {};
        for (const char* key : {"message", "reason"})
            if (const auto* text = object->if_contains(key); text && text->is_string() && !text->get_string().empty())
                return ": " + shown(text->get_string());
        return {};
    }
};

// One server's API. Its connections are kept alive.
class Server {
public:
    Server(const asio::any_io_executor& executor, const Settings& settings, HttpClientOptions options)
        : url(settings.url), headers_(settings.headers), http_(executor, std::move(options)) {}

    const std::string url;

    // Any status is an answer. Throws what HttpClient throws.
    static awaitable<Answer> call(std::shared_ptr<Server> self, std::string method, std::string path,
                                  std::string body, Clock::time_point deadline) {
        Answer answer = co_await once(self, method, path, body, deadline);
        // Without a token, servers want what only a page of theirs gives away.
        if (answer.status == 403 && method != "GET" && !self->cookies_.contains("_xsrf")) {
            static constexpr const char* pages[] = {"/login", "/tree"};
            for (const char* page : pages) {
                if (self->cookies_.contains("_xsrf")) break;
                co_await once(self, "GET", page, std::string(), deadline);
            }
            if (self->cookies_.contains("_xsrf"))
                answer = co_await once(self, std::move(method), std::move(path), std::move(body), deadline);
        }
        co_return answer;
    }

    // A stream for a WebSocket.
    static awaitable<std::shared_ptr<HttpStream>> connect(std::shared_ptr<Server> self,
                                                          Clock::time_point deadline) {
        co_return co_await self->http_.connect(self->url, deadline);
    }

    HttpHeaders headers() const {
        HttpHeaders all = headers_;
        std::string cookies;
        for (const auto& [name, value] : cookies_) cookies += (cookies.empty() ? "" : "; ") + name + "=" + value;
        if (!cookies.empty()) all.emplace_back("Cookie", cookies);
        if (const auto token = cookies_.find("_xsrf"); token != cookies_.end())
            all.emplace_back("X-XSRFToken", token->second);
        return all;
    }

    // Why a status that is none of success is one, for a person.
    std::string refusal(const Answer& answer, const std::string& what) const {
        const std::string server = "the Jupyter server at " + url;
        const std::string status = " (HTTP status " + std::to_string(answer.status) + ")";
        const bool anonymous = find_header(headers_, "Authorization").empty();
        if (answer.status == 401 || answer.status == 403)
            return server + (anonymous ? " wants a token: set \"token\"" : " refuses; unless it says why, set \"token\" to a valid one") +
                   status + answer.reason();
        if (answer.status == 404 || answer.status == 405)
            return "there is no Jupyter server at " + url + ": check the URL's path" + status + answer.reason();
        return server + " " + what + status + answer.reason();
    }

private:
    static awaitable<Answer> once(std::shared_ptr<Server> self, std::string method, std::string path,
                                  std::string body, Clock::time_point deadline) {
        HttpRequest request;
        request.method = std::move(method);
        request.url = self->url + path;
        request.headers = self->headers();
        if (!body.empty()) request.headers.emplace_back("Content-Type", "application/json");
        request.body = std::move(body);
        request.deadline = deadline;
        const auto response = co_await self->http_.send(std::move(request));
        for (const auto& [name, value] : response->headers()) {
            const auto equals = value.find('=');
            if (!same_header(name, "Set-Cookie") || equals == value.npos || self->cookies_.size() > 20) continue;
            self->cookies_[value.substr(0, equals)] = value.substr(equals + 1, value.find(';') - equals - 1);
        }
        Answer answer;
        answer.status = response->status();
        const std::string text = co_await response->read_all(longest_request, deadline);
        boost::system::error_code not_json;
        answer.body = detail::parse_within(text, 32, most_decoded_answer, not_json);
        co_return answer;
    }

    HttpHeaders headers_;
    std::map<std::string, std::string> cookies_;
    HttpClient http_;
};
using ServerPtr = std::shared_ptr<Server>;

// ---- the connection ----

using WebSocket = websocket::stream<HttpStream&>;

struct Connection {
    explicit Connection(std::shared_ptr<HttpStream> connected)
        : stream(std::move(connected)), socket(*stream), changed(stream->get_executor()) {}

    void send(const OutgoingMessage& message) {
        if (broken) return;
        outbox.push_back(v1 ? detail::encode_v1(message) : detail::encode_json(message));
        changed.notify();
    }
    void close() {
        broken = true;
        stream->close();
        changed.notify();
    }

    std::shared_ptr<HttpStream> stream;
    WebSocket socket;
    bool v1 = false;
    bool broken = false;
    std::deque<WebsocketFrame> outbox;
    Event changed;
};
using ConnectionPtr = std::shared_ptr<Connection>;

awaitable<void> write_outbox(ConnectionPtr connection) {
    while (!connection->broken) {
        if (connection->outbox.empty()) {
            co_await connection->changed.wait();
            continue;
        }
        const WebsocketFrame frame = std::move(connection->outbox.front());
        connection->outbox.pop_front();
        connection->socket.binary(frame.binary);
        const auto buffer = asio::buffer(frame.bytes);
        const auto [error, size] = co_await connection->socket.async_write(buffer, as_result);
        if (error) connection->close();
    }
}

// A message with the bytes that its views point into.
struct Received {
    std::string bytes;
    IncomingMessage message;
    std::uint64_t number = 0;  // 0: not of the sequence
    std::size_t weight = 0;    // what it takes in memory
};

// One of the kernel's connections to a channel of the host.
struct Tunnel {
    explicit Tunnel(const asio::any_io_executor& executor) : socket(executor), changed(executor) {}
    asio::local::stream_protocol::socket socket;
    std::deque<std::string> pending;
    std::size_t pending_bytes = 0;
    bool closed = false;
    Event changed;

    void close() {
        closed = true;
        boost::system::error_code ignored;
        socket.close(ignored);
        changed.notify();
    }
};

// A file that is being written or read.
struct FileTransfer {
    std::size_t wanted = 0;  // bytes that the answer may bring
    std::string bytes;
    std::optional<json::object> answer;
};

// Everything a kernel consists of. Shared by its handle and the coroutines that serve it.
struct Link : std::enable_shared_from_this<Link> {
    Link(asio::any_io_executor on, const Settings& with, Logger log)
        : executor(std::move(on)), settings(with), logger(std::move(log)), changed(executor) {}

    asio::any_io_executor executor;
    Settings settings;
    Logger logger;
    ServerPtr server;
    std::string kernel;  // its id; empty until it is created
    std::string session = detail::random_hex(16);
    std::uint64_t requests = 0;
    ConnectionPtr connection;
    Event changed;

    // Only of a gateway of our own.
    std::shared_ptr<SandboxedProcess> process;
    std::optional<PrivateDirectory> directory, relayed;
    UniqueFd gateway_socket;
    bool exited = false;

    bool closed = false, stopping = false;
    std::optional<Error> failure;

    // What the kernel publishes, in order.
    bool linked = false;              // the kernel's end has answered once
    std::string resuming;             // the token of the answer that is awaited; empty: none
    std::uint64_t last = 0;           // number of the newest message that came
    std::uint64_t tokens = 0;
    std::deque<std::unique_ptr<Received>> inbox;  // for next()
    std::size_t inbox_bytes = 0;      // what they take in memory
    std::size_t begun_bytes = 0;      // of the message that is being read
    MemoryReservation inbox_memory, tunnel_memory;
    std::size_t unacknowledged = 0, unacknowledged_bytes = 0;
    Clock::time_point heard{};        // when the newest message came

    // What the host sends in order.
    struct Sent {
        std::uint64_t number;
        json::object content;
        std::string buffer;
    };
    std::deque<Sent> sent;
    std::size_t sent_bytes = 0;
    std::uint64_t sent_number = 0;

    std::string boot;                 // msg_id of the request that starts the kernel's end
    std::optional<json::object> booted;
    std::string interrupt;            // msg_id of an interrupt_request
    JupyterExecution execution;
    std::optional<OutgoingMessage> request;  // the running execution's
    std::vector<Channel> channels;    // what the kernel's end stands in for
    std::map<std::string, std::string> library;  // what of it the kernel has
    std::map<std::uint64_t, std::shared_ptr<Tunnel>> tunnels;
    std::map<std::uint64_t, FileTransfer> transfers;
    std::uint64_t last_transfer = 0;

    void require_usable() const {
        if (stopping || closed) throw Error(errc::cancelled, "the kernel was shut down");
        if (failure) throw *failure;
    }

    // The kernel is of no more use: remembers why. What it printed before is still to be had.
    void end(errc code, const std::string& detail) {
        if (!failure) failure.emplace(code, detail);
        disconnect();
        changed.notify();
    }
    void end_protocol(const std::string& what) {
        execution.abandon();
        inbox.clear();
        end(errc::kernel_protocol,
            "the kernel broke the protocol (" + what + ") and was given up; reset() starts a new kernel");
    }
    void end_dead(const std::string& how) {
        std::string text = "the kernel ended (" + how + ")";
        if (process)
            for (const auto& violation : process->violations()) text += ", " + violation.what;
        end(errc::kernel_died, text + "; reset() starts a new kernel" + tail_text());
    }

    std::string tail_text() const {
        std::string tail = process ? process->output_tail() : std::string();
        while (!tail.empty() && (tail.back() == '\n' || tail.back() == ' ')) tail.pop_back();
        return tail.empty() ? tail : "; the last it printed:\n" + tail;
    }

    void disconnect() {
        if (connection) connection->close();
        for (auto& [number, tunnel] : tunnels) tunnel->close();
        tunnels.clear();
    }

    // Ends everything; what waits wakes up and sees `closed`.
    void close() {
        if (std::exchange(closed, true)) return;
        disconnect();
        if (process) process->kill_tree();
        process.reset();
        if (directory) directory->remove();
        relayed.reset();
        gateway_socket.reset();
        changed.notify();
    }

    std::string next_id() { return session + "_" + std::to_string(++requests); }

    OutgoingMessage make(std::string_view channel, std::string_view type, const std::string& id,
                         const json::object& content) const {
        OutgoingMessage message;
        message.channel = channel;
        message.header = detail::write_json(detail::wire_header(id, type, session));
        message.content = detail::write_json(content);
        return message;
    }
    void send(const OutgoingMessage& message) {
        if (connection) connection->send(message);
    }

    // To the kernel's end of the link, past whatever runs.
    void tell(json::object content, std::string buffer = {}) {
        json::object wrapped;
        wrapped["value"] = "";
        wrapped["ipybox"] = std::move(content);
        auto message = make("stdin", "input_reply", next_id(), wrapped);
        if (!buffer.empty()) message.buffers.push_back(std::move(buffer));
        send(message);
    }
    // The same, kept until the kernel has it. Returns the message's number.
    std::uint64_t tell_surely(json::object content, std::string buffer = {}) {
        content["number"] = ++sent_number;
        sent_bytes += buffer.size();
        sent.push_back({sent_number, content, buffer});
        if (linked && resuming.empty()) tell(std::move(content), std::move(buffer));
        return sent_number;
    }
    void kernel_received(std::uint64_t number) {
        while (!sent.empty() && sent.front().number <= number) {
            sent_bytes -= sent.front().buffer.size();
            sent.pop_front();
        }
        changed.notify();
    }

    // What it leaves unread; there is a copy soon of what is being read.
    std::size_t unread_size() const { return inbox_bytes + 2 * begun_bytes; }
    // The part of it that comes out of the memory that all share.
    std::size_t shared_unread() const { return unread_size() - std::min(unread_size(), free_unread); }

    // Of what came in order, the kernel need not keep what has been consumed in order.
    void consumed(std::size_t bytes) {
        unacknowledged_bytes += bytes;
        if (++unacknowledged < acknowledged_messages && unacknowledged_bytes < acknowledged_bytes) return;
        unacknowledged = unacknowledged_bytes = 0;
        // What waits for next() is safe here; much of it makes the kernel wait, a little must not
        // hold up its channels and files.
        const auto unread = inbox_bytes < unread_bytes ? inbox.end() : inbox.begin();
        const auto waiting = std::find_if(unread, inbox.end(), [](const auto& one) { return one->number != 0; });
        json::object content;
        content["op"] = "ack";
        content["number_seen"] = waiting == inbox.end() ? last : (*waiting)->number - 1;
        tell(std::move(content));
    }

    void ask_to_resume() {
        json::object content;
        content["op"] = "resume";
        content["token"] = resuming;
        if (linked) {
            content["after"] = last;
        } else {
            content["after"] = nullptr;
        }
        tell(std::move(content));
    }

    // ---- what comes ----

    void take(std::unique_ptr<Received> received) {
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
        } else if (message.channel == "control" && !interrupt.empty() && message.parent_id == interrupt) {
            interrupt.clear();
            changed.notify();
        }
    }

    void keep(std::unique_ptr<Received> received) {
        const auto& message = received->message;
        received->weight = sizeof(Received) + detail::per_allocation + received->bytes.size() + message.type.size() + message.id.size() +
                           message.parent_id.size() + message.buffers.size() * sizeof(std::string_view) +
                           detail::memory_size(message.metadata);
        if (message.parsed) received->weight += detail::memory_size(*message.parsed);
        inbox_bytes += received->weight;
        // The kernel's end waits for us long before that.
        if (inbox_bytes > settings.limits.bytes + settings.limits.decoded)
            return end_protocol("it sends without waiting");
        inbox.push_back(std::move(received));
        changed.notify();
    }

    void take_iopub(std::unique_ptr<Received> received) {
        auto& message = received->message;
        const auto* number = message.metadata.if_contains("ipybox");
        const auto* type = message.metadata.if_contains("type");
        if (number == nullptr) return take_from_server(message);
        if (!number->is_int64() || number->get_int64() < 0 || type == nullptr || !type->is_string())
            return end_protocol("a message with a wrong number");
        received->number = static_cast<std::uint64_t>(number->get_int64());
        message.type = type->get_string();
        if (message.type == "resume") return take_resume(message);
        if (!linked || !resuming.empty() || received->number <= last) return;
        if (received->number != last + 1) return resume();  // the server dropped something
        last = received->number;
        if (message.type == "tunnel") {
            take_tunnel(message);
            consumed(received->bytes.size());
        } else {
            keep(std::move(received));
        }
    }

    void take_from_server(IncomingMessage& message) {
        if (message.type != "status") return;
        auto content = message.read_content(settings.limits);
        const auto* state = content ? content->if_contains("execution_state") : nullptr;
        if (state == nullptr || !state->is_string()) return;
        const std::string_view word = state->get_string();
        if (word == "restarting" || word == "autorestarting" || word == "dead")
            end_dead("its server reports it as " + std::string(word));
    }

    // What the kernel's end wrapped.
    std::optional<json::object> data_of(IncomingMessage& message) {
        auto content = message.read_content(settings.limits, 2);
        auto* data = content ? content->if_contains("data") : nullptr;
        if (data == nullptr || !data->is_object()) return std::nullopt;
        return std::move(data->get_object());
    }
    static std::optional<std::uint64_t> number_in(const json::object& object, std::string_view name) {
        const auto* value = object.if_contains(name);
        if (value == nullptr || !value->is_int64() || value->get_int64() < 0) return std::nullopt;
        return static_cast<std::uint64_t>(value->get_int64());
    }
    static std::string_view text_in(const json::object& object, std::string_view name) {
        const auto* value = object.if_contains(name);
        return value && value->is_string() ? std::string_view(value->get_string()) : std::string_view();
    }

    void take_resume(IncomingMessage& message) {
        const auto data = data_of(message);
        if (!data) return end_protocol("an answer without its content");
        if (resuming.empty() || text_in(*data, "token") != resuming) return;  // an older one
        const auto after = number_in(*data, "after");
        const auto received = number_in(*data, "received");
        const auto* whole = data->if_contains("whole");
        if (!after || !received || !whole || !whole->is_bool())
            return end_protocol("an answer without its numbers");
        if (!whole->get_bool() || (linked && *after != last))
            return end(errc::kernel_died,
                       "the connection to the kernel broke and some of its output is lost; reset() "
                       "starts a new kernel");
        if (!linked) last = *after;
        linked = true;
        resuming.clear();
        kernel_received(*received);
        for (const auto& missing : sent) tell(missing.content, missing.buffer);
        if (!execution.id().empty() && !execution.replied() && request) repeat_request(*data);
        changed.notify();
    }

    // The request or its reply may be what was lost.
    void repeat_request(const json::object& state) {
        if (text_in(state, "finished") == execution.id()) {
            const auto* reply = state.if_contains("reply");
            if (!reply || !reply->is_object()) return end_protocol("a reply that is none");
            auto repeated = std::make_unique<Received>();
            repeated->message.type = "execute_reply";
            repeated->message.parent_id = execution.id();
            repeated->message.channel = "shell";
            repeated->message.parsed = reply->get_object();
            keep(std::move(repeated));
        } else if (text_in(state, "running") != execution.id()) {
            // The kernel takes no message with the same signature twice.
            send(*request);
        }
    }

    void resume() {
        if (!resuming.empty() || closed || failure) return;
        resuming = session + "-" + std::to_string(++tokens);
        asio::co_spawn(executor, insist(shared_from_this(), resuming), asio::detached);
    }
    // The answer may be lost as well, while the server has not subscribed to the kernel's output.
    static awaitable<void> insist(std::shared_ptr<Link> self, std::string token) {
        for (Duration pause = 100ms; !self->closed && !self->failure && self->resuming == token;) {
            self->ask_to_resume();
            const auto again = Clock::now() + pause;
            while (!self->closed && !self->failure && self->resuming == token && Clock::now() < again)
                co_await self->changed.wait(again);
            pause = std::min<Duration>(2 * pause, 2s);
        }
    }

    // ---- channels ----

    void take_file(json::object answer, const IncomingMessage& message) {
        const auto found = transfers.find(number_in(answer, "id").value_or(0));
        if (found == transfers.end()) return;  // nobody waits for it any more
        auto& transfer = found->second;
        for (const auto buffer : message.buffers) transfer.bytes += buffer;
        if (transfer.bytes.size() > transfer.wanted) return end_protocol("more of a file than was asked for");
        transfer.answer = std::move(answer);
        changed.notify();
    }

    void take_tunnel(IncomingMessage& message) {
        auto data = data_of(message);
        if (!data) return end_protocol("a message of a channel without its content");
        if (const auto received = number_in(*data, "received")) kernel_received(*received);
        const auto op = text_in(*data, "op");
        if (op == "file") return take_file(std::move(*data), message);
        const auto number = number_in(*data, "stream");
        if (op == "received" || !number) return;
        auto found = tunnels.find(*number);
        if (op == "close") {
            if (found == tunnels.end()) return;
            found->second->close();
            tunnels.erase(found);
            return;
        }
        if (const auto name = text_in(*data, "channel"); !name.empty() && found == tunnels.end()) {
            const auto channel = std::find_if(channels.begin(), channels.end(), [&](const Channel& one) {
                return one.kind == Channel::Kind::socket && one.name == name;
            });
            if (channel == channels.end() || tunnels.size() >= max_tunnels) return end_tunnel(*number);
            found = tunnels.emplace(*number, std::make_shared<Tunnel>(executor)).first;
            asio::co_spawn(executor, serve(shared_from_this(), found->second, *number, channel->host_path),
                           asio::detached);
        }
        if (found == tunnels.end()) return;
        auto& tunnel = *found->second;
        for (const auto buffer : message.buffers) {
            tunnel.pending.emplace_back(buffer);
            tunnel.pending_bytes += buffer.size();
        }
        // The tool server takes or refuses what comes; this is for a kernel that goes on regardless.
        std::size_t waiting = 0;
        for (const auto& entry : tunnels) waiting += entry.second->pending_bytes;
        if (waiting > max_pending || !tunnel_memory.resize(waiting > tunnel_piece ? waiting : 0)) {
            tunnel.close();
            tunnels.erase(found);
            return end_tunnel(*number);
        }
        tunnel.changed.notify();
    }

    void end_tunnel(std::uint64_t number) {
        json::object content;
        content["op"] = "data";
        content["stream"] = number;
        content["end"] = true;
        tell_surely(std::move(content));
    }

    static awaitable<void> serve(std::shared_ptr<Link> self, std::shared_ptr<Tunnel> tunnel,
                                 std::uint64_t number, std::filesystem::path path) {
        const asio::local::stream_protocol::endpoint endpoint(path.string());
        const auto [refused] = co_await tunnel->socket.async_connect(endpoint, as_result);
        if (!refused) asio::co_spawn(self->executor, write(tunnel), asio::detached);
        std::string buffer(piece, '\0');
        while (!refused && !tunnel->closed) {
            while (self->sent_bytes > tunnel_window && !tunnel->closed) co_await self->changed.wait();
            const auto [error, size] = co_await tunnel->socket.async_read_some(asio::buffer(buffer), as_result);
            if (error || tunnel->closed) break;
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

    static awaitable<void> write(std::shared_ptr<Tunnel> tunnel) {
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
};
using LinkPtr = std::shared_ptr<Link>;

awaitable<void> throw_if_cancelled() {
    const auto state = co_await asio::this_coro::cancellation_state;
    if (state.cancelled() != asio::cancellation_type::none)
        throw boost::system::system_error(asio::error::operation_aborted);
}

std::string path_of(const Link& link) { return "/api/kernels/" + link.kernel; }

// Opens the kernel's WebSocket. Throws Error: kernel_died when the server does not know the kernel,
// mcp_connection or timed_out when there is no server to be reached.
awaitable<ConnectionPtr> open(LinkPtr link, Clock::time_point deadline) {
    const auto server = link->server;
    auto stream = co_await Server::connect(server, deadline);
    auto connection = std::make_shared<Connection>(std::move(stream));
    auto& socket = connection->socket;
    websocket::stream_base::timeout limits{};
    limits.handshake_timeout = std::max<Duration>(1ms, std::min<Duration>(deadline - Clock::now(), 60s));
    // Half of it without a message brings a ping.
    limits.idle_timeout = 2 * link->settings.ping_interval;
    limits.keep_alive_pings = true;
    socket.set_option(limits);
    const auto headers = server->headers();
    const auto decorate = [&headers](websocket::request_type& request) {
        request.set(boost::beast::http::field::sec_websocket_protocol, detail::websocket_protocol);
        for (const auto& [name, value] : headers) request.set(name, value);
    };
    socket.set_option(websocket::stream_base::decorator(decorate));
    socket.read_message_max(link->settings.limits.bytes);
    const HttpUrl url = HttpUrl::parse(server->url + path_of(*link) + "/channels?session_id=" + link->session);
    websocket::response_type response;
    const std::string host = url.authority(), target = url.path + url.query;
    const auto [error] = co_await socket.async_handshake(response, host, target, as_result);
    // The one handed to the socket refers to `headers`.
    socket.set_option(websocket::stream_base::decorator([](websocket::request_type&) {}));
    if (error == websocket::error::upgrade_declined) {
        Answer answer;
        answer.status = response.result_int();
        if (answer.status == 404)
            throw Error(errc::kernel_died,
                        "the Jupyter server at " + server->url +
                            " does not know the kernel any more: it was culled or deleted, or the "
                            "server was started anew; reset() starts a new kernel");
        const auto code = answer.status == 401 || answer.status == 403 ? errc::kernel_died : errc::mcp_connection;
        throw Error(code, server->refusal(answer, "refused the kernel's WebSocket"));
    }
    if (error == boost::beast::error::timeout)
        throw Error(errc::timed_out, "the Jupyter server at " + server->url + " did not open the kernel's WebSocket in time");
    if (error)
        throw Error(errc::mcp_connection, "the Jupyter server at " + server->url +
                                              " did not open the kernel's WebSocket: " + error.message());
    connection->v1 = response[boost::beast::http::field::sec_websocket_protocol] == detail::websocket_protocol;
    co_return connection;
}

// Jupyter servers leave Nagle's algorithm on: each message waits for the acknowledgement of the one
// before, which the system delays by 40 ms unless asked, each time, not to.
void acknowledge_at_once(int socket) {
    const int yes = 1;
    ::setsockopt(socket, IPPROTO_TCP, TCP_QUICKACK, &yes, sizeof yes);
}

// Takes what one kernel sends out of the memory that all share; waits while others hold it. False
// when the kernel ended meanwhile. `begun`: bytes of the message that is being read, of which there
// is a copy soon.
awaitable<bool> make_room(LinkPtr link, std::size_t begun) {
    const auto give_up = Clock::now() + memory_patience;
    link->begun_bytes = begun;
    for (;;) {
        if (link->inbox_memory.resize(link->shared_unread())) co_return true;
        if (link->closed || link->failure) co_return false;
        if (link->unread_size() > most_unread && Clock::now() >= give_up) {
            link->end_protocol("it sends more than there is memory left for");
            co_return false;
        }
        const auto again = Clock::now() + 5ms;
        co_await link->changed.wait(again);
    }
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
            const auto [failed, read] = co_await connection->socket.async_read_some(buffer, piece, as_result);
            error = failed;
        } while (!error && !connection->broken && !connection->socket.is_message_done());
        const auto size = buffer.size();
        if (error || connection->broken) {
            if (error == websocket::error::message_too_big || error == websocket::error::buffer_overflow)
                link->end_protocol(describe(detail::WireFault::too_large));
            break;
        }
        auto received = std::make_unique<Received>();
        const auto data = buffer.data();
        received->bytes.assign(static_cast<const char*>(data.data()), data.size());
        buffer.consume(size);
        if (buffer.capacity() > (std::size_t{2} << 20)) buffer = boost::beast::flat_buffer();
        const bool binary = connection->socket.got_binary();
        auto message = connection->v1 && binary
                           ? detail::decode_v1(received->bytes, link->settings.limits)
                           : detail::decode_json(received->bytes, binary, link->settings.limits);
        if (!message) {
            link->end_protocol(describe(message.error()));
            break;
        }
        received->message = std::move(*message);
        link->take(std::move(received));
    }
    connection->close();
}

// A new connection after one that broke; null when there is none to be had.
awaitable<ConnectionPtr> reconnect(LinkPtr link) {
    const auto give_up = Clock::now() + link->settings.reconnect_timeout;
    link->logger(LogLevel::warning, "the connection to the kernel at " + link->server->url + " broke; connecting anew");
    Duration pause = 100ms;
    while (!link->closed && !link->failure) {
        std::optional<Error> problem;
        ConnectionPtr connection;
        try {
            const auto deadline = std::min(give_up, Clock::now() + 15s);
            connection = co_await open(link, deadline);
        } catch (const Error& error) {
            problem = error;
        } catch (const std::exception& error) {
            problem.emplace(errc::mcp_connection, error.what());
        }
        if (link->closed || link->failure) break;
        if (connection) co_return connection;
        if (problem->code() == errc::kernel_died) {
            link->end(errc::kernel_died, problem->detail());
        } else if (Clock::now() >= give_up) {
            link->end(errc::kernel_died, "the connection to the kernel broke and could not be made anew: " +
                                             problem->detail() + "; reset() starts a new kernel");
        } else {
            const auto again = std::min(give_up, Clock::now() + pause);
            while (!link->closed && !link->failure && Clock::now() < again) co_await link->changed.wait(again);
            pause = std::min<Duration>(2 * pause, link->settings.retry_interval);
        }
    }
    co_return nullptr;
}

// Keeps the kernel connected until it ends.
awaitable<void> serve(LinkPtr link, ConnectionPtr connection) {
    while (connection) {
        link->connection = connection;
        asio::co_spawn(link->executor, write_outbox(connection), asio::detached);
        if (link->linked) {
            link->resuming.clear();
            link->resume();
        }
        link->changed.notify();
        co_await read_all(link, connection);
        link->connection = nullptr;
        if (link->closed || link->failure) break;
        connection = co_await reconnect(link);
    }
}

// Whether the server still knows the kernel; ends it if not. Other trouble is the connection's.
awaitable<void> check_kernel(LinkPtr link) {
    Answer answer;
    try {
        const auto deadline = Clock::now() + 10s;
        answer = co_await Server::call(link->server, "GET", path_of(*link), std::string(), deadline);
    } catch (const std::exception&) {
        co_return;
    }
    if (link->closed || link->failure) co_return;
    if (answer.status == 404)
        link->end_dead("the server does not know it any more: it was culled or deleted");
    const auto* model = answer.body.if_object();
    if (model != nullptr && Link::text_in(*model, "execution_state") == "dead")
        link->end_dead("its server reports it as dead");
}

// A server tells nobody that it culled a kernel: asks, while nothing comes.
awaitable<void> watch_kernel(LinkPtr link) {
    while (!link->closed && !link->failure) {
        const auto quiet_until = std::max(link->heard, Clock::now() - link->settings.ping_interval) + link->settings.ping_interval;
        const auto next = std::max(quiet_until, Clock::now() + link->settings.ping_interval / 2);
        while (!link->closed && !link->failure && Clock::now() < next) co_await link->changed.wait(next);
        if (link->closed || link->failure) co_return;
        if (link->connection && Clock::now() - link->heard >= link->settings.ping_interval)
            co_await check_kernel(link);
    }
}

awaitable<void> watch_process(LinkPtr link, std::shared_ptr<SandboxedProcess> process) {
    co_await process->wait(never);
    process.reset();  // with the last reference, what the sandbox made goes
    link->exited = true;
    if (!link->closed && link->linked) link->end_dead("its gateway ended");
    link->changed.notify();
}

awaitable<void> delete_kernel(ServerPtr server, std::string path) {
    try {
        const auto deadline = Clock::now() + 5s;
        co_await Server::call(server, "DELETE", std::move(path), std::string(), deadline);
    } catch (const std::exception&) {
        // It is culled some day, or is gone already.
    }
}

awaitable<std::optional<KernelOutput>> next_output(LinkPtr link, Clock::time_point deadline) {
    auto& execution = link->execution;
    for (;;) {
        if (link->stopping || link->closed) link->require_usable();
        auto output = execution.take();
        if (output) co_return output;
        if (!link->inbox.empty()) {
            const auto received = std::move(link->inbox.front());
            link->inbox.pop_front();
            link->inbox_bytes -= received->weight;
            if (const auto shared = link->shared_unread(); shared < link->inbox_memory.size())
                static_cast<void>(link->inbox_memory.resize(shared));  // giving back never fails
            link->changed.notify();
            auto& message = received->message;
            try {
                if (message.channel == "shell") {
                    execution.on_shell(message.type, message.parent_id, [&] {
                        auto content = message.read_content(link->settings.limits);
                        if (!content) throw JupyterBreach(describe(content.error()));
                        return std::move(*content);
                    });
                } else if (detail::decoded_size(message.content) <= link->settings.limits.decoded ||
                           !execution.leave_out(message.type, link->settings.limits.decoded)) {
                    execution.on_iopub(message.type, message.parent_id, [&] {
                        if (message.type == "status") {
                            auto content = message.read_content(link->settings.limits);
                            if (!content) throw JupyterBreach(describe(content.error()));
                            return std::move(*content);
                        }
                        auto data = link->data_of(message);
                        if (!data) throw JupyterBreach("a message without its content");
                        return std::move(*data);
                    });
                }
            } catch (const JupyterBreach& breach) {
                link->end_protocol(breach.what());
            }
            if (received->number != 0) link->consumed(received->bytes.size());
            continue;
        }
        link->require_usable();
        if (execution.id().empty())
            throw Error(errc::bad_argument, "next() needs a running execution; call execute() first");
        // A connection that is being made anew may bring the reply.
        if (link->connection && link->resuming.empty()) execution.expect_reply(5s);
        if (Clock::now() >= deadline) co_return std::nullopt;
        const auto soonest = std::min(deadline, execution.reply_grace());
        co_await link->changed.wait(soonest);
        co_await throw_if_cancelled();
    }
}

// ---- files ----

// One request for a file, withdrawn at the end if it is not answered.
class FileRequest {
public:
    FileRequest(LinkPtr link, std::string op, std::filesystem::path path, std::size_t wanted)
        : link_(std::move(link)), op_(std::move(op)), path_(std::move(path)), number_(++link_->last_transfer) {
        const auto name = path_.generic_string();
        if (detail::repair_utf8(name) != name)
            throw Error(errc::bad_argument, "path: is not valid UTF-8; rename the file");
        link_->transfers[number_].wanted = wanted;
    }
    ~FileRequest() {
        const bool answered = transfer().answer.has_value();
        link_->transfers.erase(number_);
        if (answered || link_->closed || link_->failure) return;
        auto content = message("abandon");
        link_->tell_surely(std::move(content));
    }
    FileRequest(const FileRequest&) = delete;
    FileRequest& operator=(const FileRequest&) = delete;

    json::object first() const {
        auto content = message(op_);
        content["path"] = path_.generic_string();
        return content;
    }
    json::object message(const std::string& op) const {
        json::object content;
        content["op"] = op;
        content["id"] = number_;
        return content;
    }
    FileTransfer& transfer() const { return link_->transfers.at(number_); }

    // Waits until it is answered, or until less than `most` bytes are on the way to the kernel.
    static awaitable<void> wait(std::shared_ptr<FileRequest> self, std::size_t most) {
        const auto link = self->link_;
        // A connection that breaks may come back meanwhile.
        const auto deadline = Clock::now() + link->settings.reconnect_timeout + 60s;
        for (;;) {
            link->require_usable();
            if (self->transfer().answer || link->sent_bytes < most) co_return;
            if (Clock::now() >= deadline)
                throw Error(errc::timed_out, self->path_.string() + ": the kernel's machine does not answer in time; try again");
            co_await link->changed.wait(deadline);
            co_await throw_if_cancelled();
        }
    }

    // Throws what a file of this machine would give.
    void require_good(bool overwrite) const {
        const auto& answer = *transfer().answer;
        if (Link::text_in(answer, "problem") == "irregular") detail::throw_irregular(path_);
        const auto code = Link::number_in(answer, "errno");
        if (!code) return;
        errno = static_cast<int>(std::min<std::uint64_t>(*code, 4095));
        if (answer.contains("directory")) detail::throw_io_error(path_.parent_path().string());
        detail::throw_not_placed(path_, overwrite);
    }

private:
    LinkPtr link_;
    std::string op_;
    std::filesystem::path path_;
    std::uint64_t number_;
};

awaitable<void> write_distant(LinkPtr link, std::filesystem::path path, std::string bytes, bool overwrite) {
    link->require_usable();
    const auto request = std::make_shared<FileRequest>(link, "write", std::move(path), 0);
    auto content = request->first();
    content["overwrite"] = overwrite;
    for (std::size_t at = 0; !request->transfer().answer; at += piece) {
        const bool end = bytes.size() <= at + piece;
        content["end"] = end;
        link->tell_surely(std::move(content), bytes.substr(at, piece));
        if (end) break;
        content = request->message("write");
        co_await FileRequest::wait(request, tunnel_window);
    }
    co_await FileRequest::wait(request, 0);
    request->require_good(overwrite);
}

awaitable<FilePart> read_distant(LinkPtr link, std::filesystem::path path, std::uint64_t offset, std::size_t limit) {
    link->require_usable();
    FilePart part;
    std::string version;
    for (;;) {
        const std::size_t wanted = std::min(file_block, limit - part.bytes.size());
        const auto request = std::make_shared<FileRequest>(link, "read", path, wanted);
        auto content = request->first();
        content["offset"] = offset + part.bytes.size();
        content["limit"] = wanted;
        link->tell_surely(std::move(content));
        co_await FileRequest::wait(request, 0);
        request->require_good(true);
        const auto& transfer = request->transfer();
        const auto size = Link::number_in(*transfer.answer, "size");
        const std::string found(Link::text_in(*transfer.answer, "version"));
        if (!size) {
            link->end_protocol("a file without its size");
            link->require_usable();
        }
        if (!version.empty() && found != version)
            throw Error(errc::io_error, path.string() + ": was changed while it was read; try again");
        version = found;
        part.size = *size;
        part.bytes += transfer.bytes;
        if (transfer.bytes.empty() || part.bytes.size() >= limit || offset + part.bytes.size() >= part.size)
            co_return part;
    }
}

// A server has it in both cases; what only distant kernels need is not asked of one here.
class GatewayKernel final : public RemoteKernel {
public:
    explicit GatewayKernel(LinkPtr link) : link_(std::move(link)) {}
    ~GatewayKernel() override {
        if (link_->server && !link_->kernel.empty() && !link_->closed && !link_->process)
            asio::co_spawn(link_->executor, delete_kernel(link_->server, path_of(*link_)), asio::detached);
        link_->close();
    }
    GatewayKernel(const GatewayKernel&) = delete;
    GatewayKernel& operator=(const GatewayKernel&) = delete;

    awaitable<void> execute(ExecuteRequest request) override {
        const auto link = link_;
        link->require_usable();
        if (link->execution.busy())
            throw Error(errc::busy, "the kernel runs another execution; take its output to the end first");
        if (detail::repair_utf8(request.code) != request.code)
            throw Error(errc::bad_argument, "the code is not valid UTF-8; encode it so");
        if (request.code.size() > longest_request)
            throw Error(errc::bad_argument, "the code is longer than " + std::to_string(longest_request) +
                                                " bytes, more than a Jupyter server takes; put data into a file");
        if (Clock::now() - link->heard > link->settings.ping_interval) {
            co_await check_kernel(link);
            link->require_usable();
        }
        json::object content;
        content["code"] = std::move(request.code);
        content["silent"] = request.silent;
        content["store_history"] = false;
        content["user_expressions"] = json::object();
        content["allow_stdin"] = false;
        // True would abort requests that arrive shortly after an error: the next cell, say.
        content["stop_on_error"] = false;
        const auto id = link->next_id();
        link->execution.begin(id);
        link->request = link->make("shell", "execute_request", id, content);
        // What is under way anew is sent when the connection is there.
        if (link->resuming.empty()) link->send(*link->request);
    }

    awaitable<std::optional<KernelOutput>> next(Clock::time_point deadline) override {
        return next_output(link_, deadline);
    }
    // That of a gateway in a sandbox of this machine.
    std::shared_ptr<SandboxedProcess> process() const override { return link_->process; }

    awaitable<void> interrupt() override {
        const auto link = link_;
        link->require_usable();
        if (link->execution.id().empty()) co_return;
        // ipybox_kernel interrupts this execution or none, even if it has not begun yet.
        json::object content;
        content["msg_id"] = link->execution.id();
        const auto id = link->next_id();
        link->interrupt = id;
        link->send(link->make("control", "interrupt_request", id, content));
        const auto deadline = Clock::now() + 1s;
        while (link->interrupt == id && Clock::now() < deadline) {
            co_await link->changed.wait(deadline);
            link->require_usable();
        }
        if (link->interrupt != id) co_return;
        const auto limit = Clock::now() + 5s;
        co_await Server::call(link->server, "POST", path_of(*link) + "/interrupt", "{}", limit);
    }

    awaitable<void> refresh() override {
        const auto link = link_;
        link->require_usable();
        const auto files = changed_files(*link);
        json::object group;
        std::size_t size = 0;
        std::uint64_t number = 0;
        const auto ship = [&] {
            json::object content;
            content["op"] = "files";
            content["files"] = std::exchange(group, {});
            number = link->tell_surely(std::move(content));
            size = 0;
        };
        for (const auto& [name, text] : files) {
            if (size + text.size() > piece && !group.empty()) ship();
            group[name] = text;
            size += text.size();
        }
        if (!group.empty()) ship();
        const auto deadline = Clock::now() + 30s;
        while (!link->sent.empty() && link->sent.front().number <= number) {
            if (Clock::now() >= deadline)
                throw Error(errc::timed_out, "the kernel did not take the generated files in time; interrupt what it runs");
            co_await link->changed.wait(deadline);
            link->require_usable();
        }
    }

    awaitable<void> write_file(std::filesystem::path path, std::string bytes, bool overwrite) override {
        return write_distant(link_, std::move(path), std::move(bytes), overwrite);
    }
    awaitable<FilePart> read_file(std::filesystem::path path, std::uint64_t offset, std::size_t limit) override {
        return read_distant(link_, std::move(path), offset, limit);
    }

    awaitable<void> shutdown() override {
        const auto link = link_;
        if (std::exchange(link->stopping, true)) co_return;
        link->changed.notify();
        if (link->server && !link->kernel.empty() && !link->exited) {
            json::object content;
            content["op"] = "bye";
            link->tell(std::move(content));
            co_await delete_kernel(link->server, path_of(*link));
        }
        if (link->process) {
            link->process->kill_tree();
            const auto deadline = Clock::now() + 5s;
            while (!link->closed && !link->exited && Clock::now() < deadline) co_await link->changed.wait(deadline);
        }
        link->close();
    }

    bool alive() const noexcept override { return !link_->closed && !link_->failure; }
    std::string id() const override { return link_->kernel; }

    // Files of the directory channels that the kernel has not, or has in another version; by their
    // names relative to the channel. They count as shipped from now on.
    static std::map<std::string, std::string> changed_files(Link& link) {
        std::map<std::string, std::string> changed;
        for (const auto& channel : link.channels) {
            if (channel.kind != Channel::Kind::directory) continue;
            for (const auto& entry : std::filesystem::recursive_directory_iterator(channel.host_path)) {
                if (!entry.is_regular_file()) continue;
                std::ostringstream text;
                text << std::ifstream(entry.path(), std::ios::binary).rdbuf();
                if (text.view().size() > longest_request) continue;
                const auto name = entry.path().lexically_relative(channel.host_path).generic_string();
                auto& known = link.library[name];
                if (known == text.view()) continue;
                known = detail::repair_utf8(text.view());
                changed[name] = known;
            }
        }
        return changed;
    }

private:
    LinkPtr link_;
};

// ---- starting ----

// Defined in the kernel and called once, by a user expression: while a cell runs, IPython may have
// put something of its own over the streams. The library is unpacked there when the host's is out
// of reach.
constexpr std::string_view boot_code = R"py(def _ipybox_start(settings):
    import os, sys
    shell = get_ipython()
    shell.history_manager.enabled = False
    directory = None
    if settings["remote"]:
        import fcntl, tempfile
        directory = tempfile.mkdtemp(prefix="ipybox-kernel-")
        try:
            # Held as long as the process lives: the next kernel's start asks for it.
            fcntl.flock(os.open(directory, os.O_RDONLY), fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            pass
        library = os.path.join(directory, "lib")
        os.mkdir(library)
        for name, text in settings["files"].items():
            path = os.path.join(library, *name.split("/"))
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8", newline="") as file:
                file.write(text)
        sys.path.insert(1, library)
        for name, value in settings["env"].items():
            os.environ[name] = value.replace(settings["library"], library) if settings["library"] else value
    if settings["cwd"]:
        os.chdir(settings["cwd"])
    for extension in settings["extensions"]:
        shell.extension_manager.load_extension(extension)
    from ipybox_kernel.link import start
    start(shell, {"directory": directory, "channels": settings["channels"]})
    del shell.user_ns["_ipybox_start"]
)py";

constexpr std::string_view config_schema = R"({
  "type": "object",
  "additionalProperties": false,
  "properties": {
    "url": {
      "type": "string",
      "description": "Base URL of a Jupyter server, kernel gateway or enterprise gateway; without it, a kernel gateway is started in the sandbox."
    },
    "token": {"type": "string", "description": "The server's token. ${NAME} here, in user, password and headers is replaced from the environment."},
    "user": {"type": "string", "description": "For basic authentication, with password."},
    "password": {"type": "string"},
    "headers": {
      "type": "object", "additionalProperties": {"type": "string"},
      "description": "Sent with every request."
    },
    "ca_file": {"type": "string", "description": "PEM file of the authorities to trust; default: the system's."},
    "kernel_name": {"type": "string", "description": "Kernel specification; default: the server's default."},
    "env": {
      "type": "object", "additionalProperties": {"type": "string"},
      "description": "Parameters of the kernel's launch: KERNEL_* and what else the server lets pass."
    },
    "cwd": {"type": "string", "description": "Directory on the kernel's machine in which it starts."},
    "ping_interval": {
      "type": "number", "minimum": 0.1, "default": 10,
      "description": "Seconds of silence after which the server and the kernel are asked for a sign of life."
    },
    "reconnect_timeout": {
      "type": "number", "minimum": 0, "default": 60,
      "description": "Seconds to try for a new connection when one breaks."
    },
    "connect_retries": {
      "type": "integer", "minimum": 0, "default": 10,
      "description": "How often to try again when the server cannot be reached at the start."
    },
    "retry_interval": {"type": "number", "minimum": 0.01, "default": 1, "description": "Seconds between two attempts."},
    "tool_channel": {
      "type": "object", "additionalProperties": false,
      "required": ["listen", "advertise", "certificate", "key"],
      "description": "Tool calls come over TLS instead of travelling in the kernel's messages; needs url.",
      "properties": {
        "listen": {"type": "string", "description": "ADDRESS:PORT of this machine; port 0: any that is free."},
        "advertise": {"type": "string", "description": "https://NAME[:PORT] by which kernels reach it; without PORT, the one listened at."},
        "certificate": {"type": "string", "description": "PEM file, made out to NAME. Kernels trust it and nothing else; no authority is needed."},
        "key": {"type": "string", "description": "PEM file of its key, without a passphrase."}
      }
    },
    "gateway_options": {
      "type": "array", "items": {"type": "string"},
      "description": "More options for a kernel gateway that is started here."
    },
    "max_message_bytes": {
      "type": "integer", "minimum": 1048576, "maximum": 2147483647, "default": 33554432,
      "description": "Largest message taken from the kernel, a plot or one huge print, in bytes."
    }
  }
})";

// Starts each through the sandbox with a gateway of its own, or on the server that `url` names.
class Gateway final : public KernelBackend {
public:
    Gateway(Host& host, const json::object& config) : executor_(host.executor) {
        const auto text = [&](const char* name) -> std::string {
            const auto* value = config.if_contains(name);
            if (value == nullptr) return {};
            Secrets secrets;
            const auto replaced = substitute_variables(*value, VariableSource(), std::string("kernel_options/") + name, secrets);
            return std::string(replaced.get_string());
        };
        const auto seconds = [&](const char* name, Duration& to) {
            if (const auto* value = config.if_contains(name))
                to = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(value->to_number<double>()));
        };
        remote_ = config.contains("url");
        settings_.url = remote_ ? base_url(text("url")) : "http://localhost";
        if (const auto* headers = config.if_contains("headers")) {
            Secrets secrets;
            const auto replaced = substitute_variables(*headers, VariableSource(), "kernel_options/headers", secrets);
            for (const auto& entry : replaced.get_object())
                settings_.headers.emplace_back(entry.key(), entry.value().get_string());
        }
        const auto token = remote_ ? text("token") : detail::random_hex(16);
        const auto user = text("user");
        if (!user.empty() && !token.empty() && remote_)
            throw Error(errc::bad_config, "kernel_options: give a token, or user and password, not both");
        if (!token.empty()) settings_.headers.emplace_back("Authorization", "token " + token);
        if (!user.empty())
            settings_.headers.emplace_back("Authorization", "Basic " + detail::encode_base64(user + ":" + text("password")));
        settings_.ca_file = text("ca_file");
        settings_.kernel_name = text("kernel_name");
        settings_.cwd = text("cwd");
        if (const auto* env = config.if_contains("env")) settings_.env = env->get_object();
        if (const auto* options = config.if_contains("gateway_options"))
            for (const auto& option : options->get_array()) settings_.gateway_options.emplace_back(option.get_string());
        seconds("ping_interval", settings_.ping_interval);
        seconds("reconnect_timeout", settings_.reconnect_timeout);
        seconds("retry_interval", settings_.retry_interval);
        if (const auto* retries = config.if_contains("connect_retries")) settings_.connect_retries = retries->to_number<int>();
        if (const auto* bytes = config.if_contains("max_message_bytes"))
            settings_.limits.bytes = bytes->to_number<std::size_t>();
        settings_.limits.decoded = std::max(settings_.limits.decoded, 3 * settings_.limits.bytes);
        MemoryBudget::process().ensure(3 * settings_.limits.bytes);
        if (const auto* channel = config.if_contains("tool_channel")) tool_listener_ = read_listener(channel->get_object());
        if (tool_listener_ && !remote_)
            throw Error(errc::bad_config, "kernel_options/tool_channel: needs \"url\"; kernels of this machine have a socket");
    }

    const std::optional<ToolListener>& tool_listener() const noexcept { return tool_listener_; }

    awaitable<std::unique_ptr<Kernel>> start(Sandbox& sandbox, KernelSpec spec) override {
        const auto deadline = deadline_after(spec.init_timeout);
        auto link = std::make_shared<Link>(executor_, settings_, spec.logger);
        // From here on, leaving this function in any way ends the kernel.
        auto kernel = std::make_unique<GatewayKernel>(link);
        json::object boot;
        boot["remote"] = remote_;
        boot["cwd"] = settings_.cwd;
        json::array extensions;
        for (const auto& extension : spec.extensions) extensions.emplace_back(extension);
        boot["extensions"] = std::move(extensions);
        boot["channels"] = json::object();
        if (remote_) {
            prepare_remote(*link, std::move(spec), boot);
        } else {
            co_await launch(sandbox, std::move(spec), link, deadline);
        }
        co_await create(link, deadline);
        co_await begin(link, std::move(boot), deadline);
        // What did not go with the start, because it is large.
        if (remote_) co_await kernel->refresh();
        asio::co_spawn(executor_, watch_kernel(link), asio::detached);
        co_return kernel;
    }

private:
    static ToolListener read_listener(const json::object& channel) {
        const auto text = [&](const char* name) { return std::string(channel.at(name).get_string()); };
        const auto refuse = [](const char* name, const std::string& why) {
            throw Error(errc::bad_config, std::string("kernel_options/tool_channel/") + name + ": " + why);
        };
        ToolListener where;
        const auto listen = text("listen");
        const auto colon = std::min(listen.rfind(':'), listen.size());
        where.address = listen.substr(0, colon);
        if (where.address.starts_with('[') && where.address.ends_with(']'))
            where.address = where.address.substr(1, where.address.size() - 2);
        const auto number = listen.substr(std::min(colon + 1, listen.size()));
        const auto [end, wrong] = std::from_chars(number.data(), number.data() + number.size(), where.port);
        boost::system::error_code no_address;
        asio::ip::make_address(where.address, no_address);
        if (no_address || number.empty() || wrong != std::errc() || end != number.data() + number.size())
            refuse("listen", "must be ADDRESS:PORT with an IP address, such as 0.0.0.0:9443");
        const auto advertise = text("advertise");
        std::optional<HttpUrl> url;
        try {
            url = HttpUrl::parse(advertise);
        } catch (const Error& error) {
            refuse("advertise", error.detail());
        }
        if (!url->tls || url->path != "/" || !url->query.empty() || !url->credentials.empty())
            refuse("advertise", "must be https://NAME or https://NAME:PORT and nothing more");
        where.name = url->host;
        const auto last = advertise.find_last_of(":]");
        if (advertise[last] == ':' && last > advertise.find("//")) where.name_port = url->port;
        where.certificate = text("certificate");
        where.key = text("key");
        return where;
    }

    static std::string base_url(const std::string& text) {
        const auto url = HttpUrl::parse(text);
        if (!url.query.empty())
            throw Error(errc::bad_config, "kernel_options/url: leave out what follows \"?\"; a token goes to \"token\"");
        std::string base = url.origin() + url.path;
        while (base.ends_with('/')) base.pop_back();
        return base;
    }

    void prepare_remote(Link& link, KernelSpec spec, json::object& boot) const {
        HttpClientOptions options;
        options.ca_file = settings_.ca_file;
        options.logger = spec.logger;
        link.server = std::make_shared<Server>(executor_, settings_, std::move(options));
        link.channels = std::move(spec.channels);
        if (const auto own = spec.policy.env.find("IPYBOX_WORKING_DIR"); own != spec.policy.env.end())
            boot["cwd"] = own->second;
        json::object env, channels;
        for (const auto& [name, value] : spec.policy.env) env[name] = value;
        boot["env"] = std::move(env);
        boot["library"] = "";
        for (const auto& channel : link.channels) {
            // What the environment calls them; here nothing else has that place.
            if (channel.kind == Channel::Kind::socket) channels[channel.name] = channel.host_path.string();
            if (channel.kind == Channel::Kind::directory) boot["library"] = channel.host_path.string();
        }
        boot["channels"] = std::move(channels);
        json::object files;
        std::size_t size = 0;
        for (auto& [name, text] : GatewayKernel::changed_files(link)) {
            // Our own package is needed first.
            const bool first = name.starts_with("ipybox_kernel/");
            if (!first && size + text.size() > (std::size_t{1} << 20)) {
                link.library.erase(name);
                continue;
            }
            size += text.size();
            files[name] = text;
        }
        boot["files"] = std::move(files);
    }

    // ---- a gateway of our own ----

    awaitable<void> launch(Sandbox& sandbox, KernelSpec spec, LinkPtr link, Clock::time_point deadline) const {
        if (!find_program(spec.python.string(), "", Trust::named))
            throw Error(errc::missing_dependency, "there is no Python interpreter at " + spec.python.string() +
                                                      "; name one that has ipykernel and jupyter_kernel_gateway");
        const uid_t guest_uid = sandbox.guest_user(spec.policy);
        link->directory.emplace(guest_uid, guest_uid);
        Channel channel;
        channel.name = "kernel";
        channel.host_path = link->directory->path();
        const auto able = co_await sandbox.probe();
        // What fills the sandbox's own scratch space fills no disk of the host's.
        const bool scratch = able.scratch_size;
        channel.access = scratch ? Channel::Access::sockets : Channel::Access::write;
        const std::filesystem::path guest = sandbox.guest_address(spec.policy, channel);
        const std::filesystem::path files = scratch ? "/dev/shm" : guest;
        auto channels = std::move(spec.channels);
        channels.push_back(std::move(channel));
        std::string address = guest / "gateway";
        if (!sandbox.unix_sockets(spec.policy)) {
            link->relayed.emplace(::geteuid(), ::geteuid());
            Channel listener;
            listener.name = "gateway";
            listener.host_path = link->relayed->path() / "gateway";
            listener.kind = Channel::Kind::listener;
            address = sandbox.guest_address(spec.policy, listener);
            channels.push_back(std::move(listener));
        }
        auto& env = spec.policy.env;
        env.try_emplace("IPYTHONDIR", files / "ipython");
        env.try_emplace("JUPYTER_RUNTIME_DIR", files / "jupyter-runtime");
        env.try_emplace("JUPYTER_CONFIG_DIR", files / "jupyter-config");
        env.try_emplace("JUPYTER_DATA_DIR", files / "jupyter-data");
        if (!env.contains("HOME")) env.try_emplace("MPLCONFIGDIR", files / "matplotlib");
        env.try_emplace("TERM", "dumb");
        env.try_emplace("NO_COLOR", "1");
        env["IPYBOX_GATEWAY_TOKEN"] = find_header(settings_.headers, "Authorization").substr(6);
        std::vector<std::string> argv = {
            spec.python.string(), "-c", detail::gateway_start, "--listen", address,
            "--log-level=WARN",
            "--ZMQChannelsWebsocketConnection.limit_rate=False",
            // How soon the end of a kernel is noticed, in seconds.
            "--KernelRestarter.time_to_dead=0.3",
            "--KernelManager.shutdown_wait_time=1.0"};
        argv.insert(argv.end(), settings_.gateway_options.begin(), settings_.gateway_options.end());
        link->process = co_await sandbox.launch(std::move(spec.policy), std::move(argv), std::move(channels), Stdio::tail);
        asio::co_spawn(executor_, watch_process(link, link->process), asio::detached);
        co_await find_gateway(link, guest_uid, deadline);
        HttpClientOptions options;
        options.unix_socket = "/proc/self/fd/" + std::to_string(link->gateway_socket.get());
        options.logger = link->logger;
        link->server = std::make_shared<Server>(executor_, settings_, std::move(options));
        for (;;) {
            co_await require_start(link, deadline);
            bool answers = false;
            try {
                const auto soon = std::min(deadline, Clock::now() + 5s);
                const Answer answer = co_await Server::call(link->server, "GET", "/api", std::string(), soon);
                answers = answer.status == 200;
            } catch (const Error&) {
                // It does not listen yet.
            }
            if (answers) break;
            const auto again = Clock::now() + 20ms;
            co_await link->changed.wait(again);
            co_await throw_if_cancelled();
        }
        // Its socket has served by name; elsewhere its files are there, too.
        if (scratch) link->directory->seal();
    }

    static awaitable<void> find_gateway(LinkPtr link, uid_t guest, Clock::time_point deadline) {
        for (;;) {
            auto found = link->relayed ? detail::open_socket(*link->relayed, "gateway", ::geteuid())
                                       : detail::open_socket(*link->directory, "gateway", guest);
            if (found) {
                link->gateway_socket = std::move(found);
                co_return;
            }
            co_await require_start(link, deadline);
            const auto again = Clock::now() + 20ms;
            co_await link->changed.wait(again);
            co_await throw_if_cancelled();
        }
    }

    // ---- a kernel ----

    awaitable<void> create(LinkPtr link, Clock::time_point deadline) const {
        json::object wanted;
        if (!settings_.kernel_name.empty()) wanted["name"] = settings_.kernel_name;
        if (!settings_.env.empty()) wanted["env"] = settings_.env;
        const std::string body = detail::write_json(wanted);
        for (int attempt = 0;; ++attempt) {
            std::optional<Error> problem;
            Answer answer;
            try {
                answer = co_await Server::call(link->server, "POST", "/api/kernels", body, deadline);
            } catch (const Error& error) {
                problem = error;
            }
            if (!problem && answer.status / 100 == 2) {
                const auto* model = answer.body.if_object();
                const auto id = model ? Link::text_in(*model, "id") : std::string_view();
                const bool usable = !id.empty() && id.size() <= 100 && std::all_of(id.begin(), id.end(), [](char c) {
                    return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_';
                });
                if (!usable)
                    throw Error(errc::kernel_start_failed, "what answers at " + settings_.url +
                                                               " is no Jupyter server: check the URL");
                link->kernel = id;
                co_return;
            }
            if (!problem)
                throw Error(errc::kernel_start_failed, link->server->refusal(answer, "did not start a kernel"));
            const bool late = Clock::now() + settings_.retry_interval >= deadline;
            // A wrong certificate or name does not get better.
            const bool hopeless = problem->detail().find("certificate") != std::string::npos ||
                                  problem->detail().find("TLS") != std::string::npos;
            if (attempt >= settings_.connect_retries || late || hopeless || problem->code() == errc::bad_argument)
                throw Error(problem->code() == errc::timed_out ? errc::timed_out : errc::kernel_start_failed,
                            "no kernel could be started: " + problem->detail());
            const auto again = Clock::now() + settings_.retry_interval;
            co_await sleep_until(again);
            co_await throw_if_cancelled();
        }
    }

    // Connects, and starts the kernel's end of the link.
    awaitable<void> begin(LinkPtr link, json::object boot, Clock::time_point deadline) const {
        std::optional<Error> problem;
        ConnectionPtr connection;
        try {
            connection = co_await open(link, deadline);
        } catch (const Error& error) {
            problem = error;
        }
        if (problem) throw Error(problem->code() == errc::timed_out ? errc::timed_out : errc::kernel_start_failed, problem->detail());
        link->heard = Clock::now();
        asio::co_spawn(executor_, serve(link, connection), asio::detached);
        json::object content;
        content["code"] = boot_code;
        content["silent"] = true;
        content["store_history"] = false;
        // A string literal of JSON is one of Python as well.
        const auto literal = detail::write_json(json::value(detail::write_json(boot)));
        json::object expressions;
        expressions["ipybox"] = "_ipybox_start(__import__('json').loads(" + literal + "))";
        content["user_expressions"] = std::move(expressions);
        content["allow_stdin"] = false;
        content["stop_on_error"] = false;
        link->boot = link->next_id();
        const auto message = link->make("shell", "execute_request", link->boot, content);
        while (!link->connection) {
            co_await require_start(link, deadline);
            co_await link->changed.wait(deadline);
        }
        link->send(message);
        while (!link->booted) {
            co_await require_start(link, deadline);
            co_await link->changed.wait(deadline);
            co_await throw_if_cancelled();
        }
        require_booted(*link->booted);
        link->booted->clear();
        link->boot.clear();
        link->resume();
        while (!link->linked) {
            co_await require_start(link, deadline);
            co_await link->changed.wait(deadline);
            co_await throw_if_cancelled();
        }
    }

    static void require_booted(const json::object& reply) {
        const json::object* outcome = &reply;
        if (const auto* results = reply.if_contains("user_expressions"); results && results->is_object())
            if (const auto* own = results->get_object().if_contains("ipybox"); own && own->is_object())
                outcome = &own->get_object();
        if (outcome != &reply && Link::text_in(*outcome, "status") == "ok") return;
        throw Error(errc::kernel_start_failed,
                    "the kernel did not take ipybox's start (" + shown(Link::text_in(*outcome, "ename")) + ": " +
                        shown(Link::text_in(*outcome, "evalue")) +
                        "); it must be a Python kernel (ipykernel 6 or newer)");
    }

    static awaitable<void> require_start(LinkPtr link, Clock::time_point deadline) {
        link->require_usable();
        if (link->exited) {
            const auto tail = link->tail_text();
            if (tail.find("needs jupyter_kernel_gateway") != std::string::npos)
                throw Error(errc::missing_dependency,
                            "the Python interpreter has no jupyter_kernel_gateway; install it with "
                            "`python -m pip install jupyter_kernel_gateway`" + tail);
            throw Error(errc::kernel_start_failed, "the kernel gateway ended while it started" + tail);
        }
        if (Clock::now() >= deadline)
            throw Error(errc::timed_out, "the kernel did not start in time; raise kernel_init_timeout, or see why "
                                         "it is slow" + link->tail_text());
        co_return;
    }

    asio::any_io_executor executor_;
    Settings settings_;
    bool remote_ = false;
    std::optional<ToolListener> tool_listener_;
};

// With `url`: nothing of this machine is where the kernels are.
class DistantGateway final : public RemoteBackend {
public:
    DistantGateway(Host& host, const json::object& config) : gateway_(host, config) {}

    awaitable<std::unique_ptr<Kernel>> start(Sandbox& sandbox, KernelSpec spec) override {
        return gateway_.start(sandbox, std::move(spec));
    }
    std::optional<ToolListener> tool_listener() const override { return gateway_.tool_listener(); }

private:
    Gateway gateway_;
};

constexpr Plugin self{
    .name = "gateway",
    .summary = "IPython kernels behind a Jupyter server, kernel gateway or enterprise gateway, here or elsewhere",
    .config_schema = config_schema,
    .make = Factory<KernelBackend>(
        +[](Host& host, const json::object& config) -> std::unique_ptr<KernelBackend> {
            if (config.contains("url")) return std::make_unique<DistantGateway>(host, config);
            return std::make_unique<Gateway>(host, config);
        }),
};
}  // namespace

IPYBOX_PLUGIN(gateway, self)
