// IPython kernels as processes of this machine, spoken to over Unix sockets in ZeroMQ's protocol.
// Where the guest cannot make any, it listens on loopback ports, to which the sandbox's own sockets
// lead. No library of ZeroMQ: that takes a message whole, however many frames it has.
#include <unistd.h>

#include <algorithm>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <cstdlib>
#include <ipybox/detail/hex.hpp>
#include <ipybox/detail/json_memory.hpp>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/detail/private_directory.hpp>
#include <ipybox/jupyter/execution.hpp>
#include <ipybox/jupyter/wire.hpp>
#include <ipybox/jupyter/zmtp.hpp>
#include <ipybox/memory_budget.hpp>
#include <ipybox/plugin.hpp>
#include <ipybox/sandbox_kit/process.hpp>
#include <ipybox/sandbox_kit/start_failure.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>

namespace {
using namespace ipybox;
using namespace std::chrono_literals;
using detail::PrivateDirectory;
using jupyter::WireMessage;
using jupyter::WireSession;
using Descriptor = asio::posix::stream_descriptor;

// What the connection file calls ports; a socket's path is <ip>-<port>.
enum Port { shell_port = 1, iopub_port, stdin_port, control_port, heartbeat_port };

std::string socket_name(Port port) { return "s-" + std::to_string(port); }

// A socket path of 108 bytes must hold the guest's directory, "/s-N" and a NUL.
constexpr std::size_t longest_directory = 100;
// A kernel that does not take its requests may leave so much of them here, in bytes.
constexpr std::size_t most_unsent = std::size_t{1} << 20;
// A message of this size needs no share of the memory budget, in bytes.
constexpr std::size_t small_message = std::size_t{64} << 10;
// Bytes taken off a connection at a time.
constexpr std::size_t largest_read = std::size_t{1} << 20;
// Steps after which others have their turn, should a kernel send without end.
constexpr unsigned steps_in_turn = 64;
// How often to look for what tells nobody when it happens.
constexpr Duration poll_interval = 2ms;
// What ipykernel_launcher does, without the debugger: nobody asks for it, and its import takes a
// tenth of a start. Code in a cell may still import debugpy.
constexpr const char* launcher = R"(import sys
if sys.path[0] == "":
    del sys.path[0]
sys.modules["debugpy"] = None
try:
    import ipykernel.debugger
except ImportError:
    pass
del sys.modules["debugpy"]
from ipykernel import kernelapp
kernelapp.launch_new_instance())";
// A message that has begun may keep us waiting this long, all pauses together.
constexpr Duration message_patience = 30s;

// Everything a kernel consists of. Shared by its handle and by the handlers that Asio still holds
// when the handle is gone; close() makes those harmless.
struct Link : std::enable_shared_from_this<Link> {
    // To one of the kernel's sockets. What nobody takes stays in the kernel: at most one message is
    // read ahead.
    struct Connection {
        Connection(Link& link, std::string_view socket_type)
            : type(socket_type),
              socket(link.executor),
              reader({link.session.limits().frames, link.session.limits().bytes}),
              memory(link.budget) {}

        std::string_view type;
        asio::local::stream_protocol::socket socket;
        jupyter::ZmtpReader reader;
        MemoryReservation memory;  // for the message that is being read
        Duration waited = {};      // for the rest of that message
        std::string unsent;
        std::size_t sent = 0;                   // of `unsent`
        bool reading = false, writing = false;  // a handler waits for the socket
        bool starved = false;                   // others hold the memory that the message needs
        bool lost = false;

        void close() noexcept {
            boost::system::error_code ignored;
            socket.close(ignored);
            memory.release();
        }
    };

    Link(asio::any_io_executor on, KernelSpec with, uid_t owner, jupyter::WireLimits limits)
        : executor(std::move(on)),
          logger(std::move(with.logger)),
          guest(owner),
          key(ipybox::detail::random_hex(16)),
          session(key, limits),
          directory(owner, owner),
          budget(limits.bytes + small_message, &MemoryBudget::process()),
          shell(*this, "DEALER"),
          iopub(*this, "SUB"),
          control(*this, "DEALER"),
          input(*this, "DEALER"),
          changed(executor) {
        // By it the kernel finds on the one socket whoever asked it on the other.
        if (with.allow_input) identity = ipybox::detail::random_hex(8);
    }

    asio::any_io_executor executor;
    Logger logger;
    uid_t guest;
    std::string key;
    WireSession session;
    PrivateDirectory directory;
    // Where the sandbox listens for us, out of the guest's sight; absent when the guest does.
    std::optional<PrivateDirectory> relayed;
    std::shared_ptr<SandboxedProcess> process;
    std::optional<Descriptor> pidfd;
    MemoryBudget budget;  // for messages that arrive
    Connection shell, iopub, control;
    Connection input;      // connected only if the code may ask at all
    std::string identity;  // of shell and input; empty: it may not
    bool asks = false;     // the running execution may
    bool asked = false;    // and waits for its answer: until then nothing is read of `input`
    Event changed;

    bool stopping = false;
    bool closed = false;
    bool exited = false;
    Clock::time_point end_grace = never;  // when the last words of an ended kernel are over
    std::optional<Error> failure;

    std::set<std::string> probes;  // kernel_info_requests of the start
    bool probe_answered = false;
    bool probe_idle = false;

    JupyterExecution execution;
    bool oversized = false;  // the message at hand: its content cannot be decoded

    // Ends everything at once; what waits wakes up and sees `closed`.
    void close() noexcept {
        if (std::exchange(closed, true)) return;
        if (process) process->kill_tree();
        process.reset();
        pidfd.reset();
        for (Connection* connection : {&shell, &iopub, &control, &input}) connection->close();
        directory.remove();
        relayed.reset();
        changed.notify();
    }

    std::string tail_text() const {
        std::string tail = process ? process->output_tail() : std::string();
        while (!tail.empty() && (tail.back() == '\n' || tail.back() == ' ')) tail.pop_back();
        return tail.empty() ? tail : "; the last it printed:\n" + tail;
    }

    // The kernel is no longer usable: remembers why, kills it, throws.
    [[noreturn]] void fail(errc code, const std::string& detail) {
        if (!failure) failure.emplace(code, detail);
        execution.abandon();
        if (process) process->kill_tree();
        changed.notify();
        throw *failure;
    }
    [[noreturn]] void fail_protocol(const std::string& what) {
        fail(errc::kernel_protocol, "the kernel broke the protocol (" + what +
                                        ") and was killed; reset() starts a new kernel");
    }

    void require_usable() const {
        if (stopping || closed) throw Error(errc::cancelled, "the kernel was shut down");
        if (failure) throw *failure;
    }

    // Wakes `changed` when there is something to read, or when memory may be there for it.
    void arm(Connection& connection) {
        if (connection.reading || connection.lost || connection.starved) return;
        connection.reading = true;
        connection.socket.async_wait(
            asio::socket_base::wait_read,
            [self = shared_from_this(), &connection](boost::system::error_code) {
                connection.reading = false;
                self->changed.notify();
            });
    }

    // Waits for news until `deadline`. A message that has begun must go on.
    awaitable<void> wait_for_output(Clock::time_point deadline) {
        const auto started = Clock::now();
        arm(iopub);
        arm(shell);
        if (hears_input()) arm(input);
        if (iopub.starved || shell.starved || (hears_input() && input.starved))
            deadline = std::min(deadline, started + poll_interval);
        co_await changed.wait(deadline);
        for (Connection* connection : {&iopub, &shell, &input}) {
            if (connection->memory.size() == 0) continue;
            connection->waited += Clock::now() - started;
            if (connection->waited > message_patience)
                fail_protocol("a message that does not come to its end");
        }
    }

    void watch_process() {
        UniqueFd handle =
            process->pid() > 0 ? ipybox::sandbox_kit::open_pidfd(process->pid()) : UniqueFd();
        if (!handle) {
            exited = true;  // it ended before we could look
            return;
        }
        pidfd.emplace(executor, handle.release());
        wait_for_exit();
    }

    // Whether the process has ended, be it an instant ago.
    bool look_for_exit() noexcept {
        if (exited || !pidfd) return exited;
        return exited = is_readable(pidfd->native_handle());
    }

    void wait_for_exit() {
        pidfd->async_wait(Descriptor::wait_read,
                          [self = shared_from_this()](boost::system::error_code error) {
                              if (error || !self->pidfd) return;
                              if (!self->look_for_exit()) return self->wait_for_exit();
                              self->changed.notify();
                          });
    }

    // Connects if the other end is there; false when it is not yet.
    bool connect(Connection& connection, Port number) {
        const auto handle = relayed
                                ? detail::open_socket(*relayed, socket_name(number), ::geteuid())
                                : detail::open_socket(directory, socket_name(number), guest);
        if (!handle && relayed)
            throw Error(errc::io_error, "the sandbox does not listen for the kernel's messages");
        if (!handle) return false;
        // The very socket that was looked at, whatever has its name by now.
        const asio::local::stream_protocol::endpoint endpoint("/proc/self/fd/" +
                                                              std::to_string(handle.get()));
        boost::system::error_code error;
        connection.socket.close(error);
        connection.socket.open(endpoint.protocol(), error);
        if (!error) connection.socket.non_blocking(true, error);
        if (!error) connection.socket.connect(endpoint, error);
        // The kernel binds a path shortly before it listens there.
        if (error == asio::error::connection_refused || error == asio::error::try_again)
            return false;
        if (error)
            throw Error(errc::io_error,
                        "cannot connect to the kernel's socket: " + error.message());
        const bool named = &connection == &shell || &connection == &input;
        const auto opening = jupyter::zmtp_opening(connection.type, named ? identity : "");
        asio::write(connection.socket, asio::buffer(opening),
                    error);  // less than a fresh socket holds
        connection.lost = error.failed();
        return true;
    }

    // Sends what the kernel takes now; the rest goes when it takes more.
    void flush(Connection& connection) {
        while (connection.sent < connection.unsent.size() && !connection.lost) {
            boost::system::error_code error;
            connection.sent += connection.socket.write_some(
                asio::buffer(connection.unsent.data() + connection.sent,
                             connection.unsent.size() - connection.sent),
                error);
            if (error == asio::error::interrupted) continue;
            if (error == asio::error::would_block) {
                if (std::exchange(connection.writing, true)) return;
                connection.socket.async_wait(
                    asio::socket_base::wait_write,
                    [self = shared_from_this(), &connection](boost::system::error_code failed) {
                        connection.writing = false;
                        if (!failed && !self->closed) self->flush(connection);
                    });
                return;
            }
            if (error) connection.lost = true;
        }
        if (connection.lost) changed.notify();
        connection.unsent = std::string();
        connection.sent = 0;
    }

    std::string send(Connection& connection, std::string_view type, const json::object& content) {
        if (connection.unsent.size() - connection.sent > most_unsent)
            fail_protocol("it takes no more requests");
        auto request = session.request(type, content);
        for (std::size_t i = 0; i < request.frames.size(); ++i)
            jupyter::append_zmtp_frame(connection.unsent, request.frames[i],
                                       i + 1 < request.frames.size());
        // When the connection is lost, whoever waits for the answer finds out.
        flush(connection);
        return request.id;
    }

    // One step towards a message, at most one read; true when the message is there, or bytes came.
    bool progress(Connection& connection) {
        if (connection.lost && !connection.reader.complete()) return false;
        const auto done = connection.reader.advance();
        if (!done) {
            if (done.error() != jupyter::ZmtpFault::too_large || &connection != &iopub ||
                !leave_out(connection.reader.frames()))
                fail_protocol(describe(done.error()));
            connection.reader.skip();
            connection.memory.release();
            return true;
        }
        if (!reserve(connection)) return false;
        if (*done) return true;
        const auto room = connection.reader.room();
        boost::system::error_code error;
        const auto size = connection.socket.read_some(
            asio::buffer(room.data, std::min(room.size, largest_read)), error);
        connection.reader.add(size);
        if (error == asio::error::would_block || error == asio::error::interrupted) return false;
        if (error) connection.lost = true;
        return true;
    }

    // Whether these are the first frames of a display, which the cell can do without.
    bool leave_out(std::span<const std::string_view> frames) {
        const auto start = std::find(frames.begin(), frames.end(), WireSession::delimiter);
        if (frames.end() - start < 3 || start[2].size() > session.limits().header) return false;
        const auto header = jupyter::read_object(start[2], session.limits().depth);
        const auto type = header ? detail::string_of(*header, "msg_type") : std::string_view();
        return !type.empty() && execution.leave_out(type, session.limits().bytes);
    }

    // Takes the memory that a message needs out of what all share.
    bool reserve(Connection& connection) {
        const auto size = connection.reader.announced();
        connection.starved = size > small_message && !connection.memory.resize(size);
        return !connection.starved;
    }

    // Goes on with what a connection sends, and hands a complete message to `use`; false when
    // nothing was there.
    template <class Function>
    bool receive(Connection& connection, Function use) {
        if (!progress(connection)) return false;
        if (!connection.reader.complete()) return true;
        const auto message = session.read(connection.reader.frames());
        if (!message) fail_protocol(describe(message.error()));
        oversized = detail::decoded_size(message->content) > session.limits().decoded;
        std::string breach;
        try {
            use(*message);
        } catch (const JupyterBreach& found) {
            breach = found.what();
        }
        connection.reader.drop();
        connection.memory.release();
        connection.waited = {};
        if (!breach.empty()) fail_protocol(breach);
        return true;
    }

    json::object content_of(const WireMessage& message) {
        auto content =
            jupyter::read_object(message.content, session.limits().depth, session.limits().decoded);
        if (!content) fail_protocol(describe(content.error()));
        return std::move(*content);
    }

    void handle_iopub(const WireMessage& message) {
        if (message.type == "status" && probes.contains(message.parent_id)) {
            probe_idle = probe_idle || JupyterExecution::text_of(content_of(message),
                                                                 "execution_state") == "idle";
        } else {
            const auto read = [&] { return content_of(message); };
            if (!oversized || !execution.leave_out(message.type, session.limits().decoded))
                execution.on_iopub(message.type, message.parent_id, read);
        }
    }

    void handle_shell(const WireMessage& message) {
        if (message.type == "kernel_info_reply" && probes.contains(message.parent_id)) {
            const auto version = JupyterExecution::text_of(content_of(message), "protocol_version");
            if (!version.starts_with("5."))
                fail_protocol("it speaks version " + version.substr(0, 16) + ", not 5");
            probe_answered = true;
        } else {
            execution.on_shell(message.type, message.parent_id,
                               [&] { return content_of(message); });
        }
    }

    // Handles some of what waits; false when there is nothing. One message at a time, so that what
    // the consumer has not asked for stays where it is.
    bool read_one() {
        const auto from_iopub = [this](const WireMessage& message) { handle_iopub(message); };
        if (receive(iopub, from_iopub)) return true;
        const auto from_shell = [this](const WireMessage& message) { handle_shell(message); };
        if (receive(shell, from_shell)) return true;
        // Last, so that what was printed before a prompt comes before it.
        const auto from_input = [this](const WireMessage& message) {
            asked = execution.on_stdin(message.type, message.parent_id,
                                       [&] { return content_of(message); });
        };
        return hears_input() && receive(input, from_input);
    }
    bool hears_input() const { return asks && !asked && !execution.id().empty(); }

    // Nothing is left to read; is there a reason to stop waiting? Sets end_grace when a reason is
    // near: an ended process may still have words on their way, a lost connection usually means
    // that the process is just ending.
    bool is_over() {
        if (!exited && !lost()) return false;
        if (end_grace == never) end_grace = Clock::now() + patience();
        return (exited && shell.lost && iopub.lost) || Clock::now() >= end_grace;
    }
    bool lost() const { return shell.lost || iopub.lost || control.lost; }
    // How far the ends of a connection and of the process may lie apart, on a busy machine too.
    static constexpr Duration patience() { return 3s; }

    awaitable<std::string> ending() {
        const auto held = process;
        const auto status = co_await held->wait(Clock::now() + patience());
        if (!status) co_return std::string();
        co_return ipybox::sandbox_kit::describe_end(*held, *status);
    }
};

using LinkPtr = std::shared_ptr<Link>;

awaitable<void> throw_if_cancelled() {
    const auto state = co_await asio::this_coro::cancellation_state;
    if (state.cancelled() != asio::cancellation_type::none)
        throw boost::system::system_error(asio::error::operation_aborted);
}

// Lets everybody else go on for a moment.
awaitable<void> give_way(LinkPtr link) {
    co_await asio::post(link->executor, asio::use_awaitable);
    co_await throw_if_cancelled();
}

// Ends the wait for a kernel that is over.
awaitable<void> report_end(LinkPtr link) {
    if (!link->exited) link->fail_protocol("it closed its connection");
    const auto how = co_await link->ending();
    link->require_usable();
    link->fail(errc::kernel_died,
               "the kernel ended (" + how + "); reset() starts a new kernel" + link->tail_text());
}

awaitable<std::optional<KernelOutput>> next_output(LinkPtr link, Clock::time_point deadline) {
    for (unsigned step = 1;; ++step) {
        link->require_usable();
        auto output = link->execution.take();
        if (output) co_return output;
        if (link->execution.id().empty())
            throw Error(errc::bad_argument,
                        "next() needs a running execution; call execute() first");
        if (link->read_one()) {
            if (step % steps_in_turn != 0) continue;
            if (Clock::now() >= deadline) co_return std::nullopt;
            co_await give_way(link);
            continue;
        }
        link->execution.expect_reply(2s);
        if (link->is_over()) co_await report_end(link);
        if (Clock::now() >= deadline) co_return std::nullopt;
        const auto soonest =
            std::min(deadline, std::min(link->execution.reply_grace(), link->end_grace));
        co_await link->wait_for_output(soonest);
        co_await throw_if_cancelled();
    }
}

class ZmqKernel final : public Kernel {
public:
    explicit ZmqKernel(LinkPtr link) : link_(std::move(link)) {}
    ~ZmqKernel() override { link_->close(); }
    ZmqKernel(const ZmqKernel&) = delete;
    ZmqKernel& operator=(const ZmqKernel&) = delete;

    awaitable<void> execute(ExecuteRequest request) override {
        const auto held = link_;
        auto& link = *held;
        link.require_usable();
        if (link.execution.busy())
            throw Error(errc::busy,
                        "the kernel runs another execution; take its output to the end first");
        if (link.look_for_exit()) co_await report_end(link_);
        link.asks = request.allow_input && !link.identity.empty();
        link.asked = false;
        request.allow_input = link.asks;
        const auto content = execute_content(std::move(request));
        link.execution.begin(link.send(link.shell, "execute_request", content));
    }

    void answer_input(std::optional<std::string> text) override {
        link_->require_usable();
        if (!std::exchange(link_->asked, false) || link_->execution.id().empty()) return;
        json::object content;
        content["status"] = "ok";
        // Control-D, by which ipykernel knows the end of input.
        content["value"] = text ? detail::repair_utf8(*text) : "\x04";
        link_->send(link_->input, "input_reply", content);
        link_->changed.notify();
    }

    awaitable<std::optional<KernelOutput>> next(Clock::time_point deadline) override {
        return next_output(link_, deadline);
    }
    std::shared_ptr<SandboxedProcess> process() const override { return link_->process; }

    awaitable<void> interrupt() override {
        const auto link = link_;
        link->require_usable();
        if (link->execution.id().empty() || link->exited) co_return;
        // ipybox_kernel interrupts this execution or none, even if it has not begun yet; without it
        // the kernel ignores the name and interrupts whatever runs.
        json::object content;
        content["msg_id"] = link->execution.id();
        const auto id = link->send(link->control, "interrupt_request", content);
        const auto deadline = Clock::now() + 500ms;
        bool answered = false;
        const auto use = [&](const WireMessage& message) {
            answered = answered || message.parent_id == id;
        };
        for (unsigned step = 1; !answered && !link->exited && Clock::now() < deadline; ++step) {
            const bool more = link->receive(link->control, use);
            if (more && step % steps_in_turn == 0) co_await give_way(link);
            if (!more) {
                link->arm(link->control);
                co_await link->changed.wait(deadline);
            }
            link->require_usable();
        }
        if (!answered && !link->exited) link->process->interrupt();
    }

    awaitable<void> shutdown() override {
        const auto link = link_;
        if (std::exchange(link->stopping, true)) co_return;
        link->changed.notify();
        if (link->process && !link->exited && !link->failure) {
            json::object content;
            content["restart"] = false;
            // Without a reader the kernel need not wait for anybody to take its output.
            link->iopub.close();
            try {
                link->send(link->control, "shutdown_request", content);
            } catch (const Error&) {
                // It takes no more requests, so it is killed now.
            }
            const auto deadline = Clock::now() + (link->relayed ? Duration(3s) : 1s);
            while (!link->closed && !link->failure && !link->exited && Clock::now() < deadline)
                co_await link->changed.wait(deadline);
        }
        link->close();
    }

    bool alive() const noexcept override {
        return !link_->closed && !link_->failure && !link_->look_for_exit();
    }

private:
    LinkPtr link_;
};

constexpr std::string_view config_schema = R"({
  "type": "object",
  "additionalProperties": false,
  "properties": {
    "max_message_bytes": {
      "type": "integer", "minimum": 1048576, "maximum": 2147483647, "default": 33554432,
      "description": "Largest message taken from the kernel, a plot or another display, in bytes."
    }
  }
})";

class Zmq final : public KernelBackend {
public:
    Zmq(Host& host, const json::object& config) : executor_(host.executor) {
        if (const auto* bytes = config.if_contains("max_message_bytes"))
            limits_.bytes = bytes->to_number<std::size_t>();
        limits_.decoded = std::max(limits_.decoded, 3 * limits_.bytes);
        MemoryBudget::process().ensure(2 * limits_.bytes);
    }

    bool takes_input() const noexcept override { return true; }

    awaitable<std::unique_ptr<Kernel>> start(Sandbox& sandbox, KernelSpec spec) override {
        const auto deadline = deadline_after(spec.init_timeout);
        if (!find_program(spec.python.string(), "", Trust::named))
            throw Error(errc::missing_dependency, "there is no Python interpreter at " +
                                                      spec.python.string() +
                                                      "; name one that has ipykernel");
        auto link =
            std::make_shared<Link>(executor_, spec, sandbox.guest_user(spec.policy), limits_);
        // From here on, leaving this function in any way ends the kernel and removes its files.
        std::unique_ptr<Kernel> kernel = std::make_unique<ZmqKernel>(link);
        const auto able = co_await sandbox.probe();
        if (!sandbox.unix_sockets(spec.policy)) link->relayed.emplace(::geteuid(), ::geteuid());
        co_await launch(sandbox, able, std::move(spec), link);
        co_await connect(link, deadline);
        co_await first_answer(link, deadline);
        link->probes.clear();
        // Elsewhere its files are there, too.
        if (able.scratch_size) co_await seal(link, deadline);
        co_return kernel;
    }

private:
    static awaitable<void> launch(Sandbox& sandbox, Capabilities able, KernelSpec spec,
                                  LinkPtr link) {
        Channel channel;
        channel.name = "kernel";
        channel.host_path = link->directory.path();
        // What fills the sandbox's own scratch space fills no disk of the host's.
        const bool scratch = able.scratch_size;
        channel.access = scratch ? Channel::Access::sockets : Channel::Access::write;
        const std::filesystem::path guest = sandbox.guest_address(spec.policy, channel);
        if (guest.string().size() > longest_directory)
            throw Error(errc::bad_config, "the sandbox shows the kernel's sockets at a path over " +
                                              std::to_string(longest_directory) +
                                              " bytes: " + guest.string());
        json::object file;
        file["transport"] = link->relayed ? "tcp" : "ipc";
        file["ip"] = link->relayed ? "127.0.0.1" : (guest / "s").string();
        file["shell_port"] = shell_port;
        file["iopub_port"] = iopub_port;
        file["stdin_port"] = stdin_port;
        file["control_port"] = control_port;
        file["hb_port"] = heartbeat_port;
        auto channels = std::move(spec.channels);
        if (link->relayed) listen_inside(sandbox, spec, *link->relayed, file, channels);
        file["signature_scheme"] = "hmac-sha256";
        file["key"] = link->key;
        link->directory.write_file("connection.json", detail::write_json(file), link->guest);

        auto& env = spec.policy.env;
        const std::filesystem::path files = scratch ? "/dev/shm" : guest;
        env.try_emplace("IPYTHONDIR", files / "ipython");
        env.try_emplace("JUPYTER_RUNTIME_DIR", files);
        if (!env.contains("HOME")) env.try_emplace("MPLCONFIGDIR", files / "matplotlib");
        env.try_emplace("TERM", "dumb");
        env.try_emplace("NO_COLOR", "1");
        // No parent to watch over, and no advice for people at a terminal.
        env.try_emplace("JPY_PARENT_PID", "1");

        std::vector<std::string> argv = {spec.python.string(),
                                         "-c",
                                         launcher,
                                         "-f",
                                         (guest / "connection.json").string(),
                                         "--HistoryManager.enabled=False"};
        if (!spec.extensions.empty())
            argv.emplace_back("--IPKernelApp.reraise_ipython_extension_failures=True");
        for (const auto& extension : spec.extensions) argv.push_back("--ext=" + extension);
        channels.push_back(std::move(channel));
        link->process = co_await sandbox.launch(std::move(spec.policy), std::move(argv),
                                                std::move(channels), Stdio::tail);
        link->watch_process();
    }

    // Gives the kernel ports to listen on, and the sandbox the sockets that lead there.
    static void listen_inside(const Sandbox& sandbox, const KernelSpec& spec,
                              const PrivateDirectory& directory, json::object& file,
                              std::vector<Channel>& channels) {
        // Nobody uses the others. Were they the kernel's to choose, it would write them into the
        // file.
        for (const auto& [port, name] : {std::pair(shell_port, "shell"),
                                         {iopub_port, "iopub"},
                                         {control_port, "control"},
                                         {stdin_port, "stdin"},
                                         {heartbeat_port, "hb"}}) {
            Channel channel;
            channel.name = name;
            channel.host_path = directory.path() / socket_name(port);
            channel.kind = Channel::Kind::listener;
            const auto address = sandbox.guest_address(spec.policy, channel);
            file[std::string(name) + "_port"] = std::stoi(address.substr(address.rfind(':') + 1));
            if ((port != stdin_port || spec.allow_input) && port != heartbeat_port)
                channels.push_back(std::move(channel));
        }
    }

    // Connects as soon as the kernel listens. Nothing tells when that is but what code in a kernel
    // could use up for all of its user's processes: inotify, say.
    static awaitable<void> connect(LinkPtr link, Clock::time_point deadline) {
        std::vector<std::pair<Link::Connection*, Port>> connections = {
            {&link->iopub, iopub_port}, {&link->shell, shell_port}, {&link->control, control_port}};
        if (!link->identity.empty()) connections.emplace_back(&link->input, stdin_port);
        for (const auto& [connection, number] : connections) {
            while (!link->connect(*connection, number)) {
                co_await require_start(link, deadline);
                co_await link->changed.wait(std::min(deadline, Clock::now() + poll_interval));
                co_await throw_if_cancelled();
            }
        }
        for (const auto& [connection, number] : connections) {
            while (!connection->reader.ready()) {
                const bool more = link->progress(*connection);
                if (connection->reader.ready()) break;
                co_await require_start(link, deadline);
                if (more) continue;
                link->arm(*connection);
                co_await link->changed.wait(std::min(deadline, link->end_grace));
                co_await throw_if_cancelled();
            }
        }
        jupyter::append_zmtp_frame(link->iopub.unsent, jupyter::zmtp_subscription, false);
        link->flush(link->iopub);
    }

    // The kernel is ready when it has answered and when the end of that answer has come through
    // iopub as well: from then on no output can pass before the subscription is in place.
    static awaitable<void> first_answer(LinkPtr link, Clock::time_point deadline) {
        auto repeat_at = never;
        link->probes.insert(link->send(link->shell, "kernel_info_request", json::object()));
        for (unsigned step = 1; !link->probe_answered || !link->probe_idle; ++step) {
            const bool more = link->read_one();
            if (more && step % steps_in_turn != 0) continue;
            co_await require_start(link, deadline);
            if (more) {
                co_await give_way(link);
                continue;
            }
            if (link->probe_answered && Clock::now() >= repeat_at) {
                link->probe_answered = false;
                repeat_at = never;
                link->probes.insert(link->send(link->shell, "kernel_info_request", json::object()));
            } else if (link->probe_answered && repeat_at == never) {
                repeat_at = Clock::now() + 50ms;
            }
            const auto soonest = std::min(deadline, std::min(repeat_at, link->end_grace));
            co_await link->wait_for_output(soonest);
            co_await throw_if_cancelled();
        }
    }

    // Once the kernel has all its sockets nobody needs their names any more.
    static awaitable<void> seal(LinkPtr link, Clock::time_point deadline) {
        if (link->relayed) co_return link->directory.seal();  // they have none there
        static constexpr Port others[] = {stdin_port, heartbeat_port};
        for (const auto number : others) {
            while (!detail::open_socket(link->directory, socket_name(number), link->guest)) {
                co_await require_start(link, deadline);
                co_await link->changed.wait(std::min(deadline, Clock::now() + poll_interval));
                co_await throw_if_cancelled();
            }
        }
        link->directory.seal();
    }

    static awaitable<void> require_start(LinkPtr link, Clock::time_point deadline) {
        link->require_usable();
        if (link->exited) {
            const auto how = co_await link->ending();
            const auto tail = link->tail_text();
            if (tail.find("No module named ipykernel") != std::string::npos ||
                tail.find("No module named 'ipykernel") != std::string::npos)
                link->fail(errc::missing_dependency,
                           "the Python interpreter has no ipykernel (pip install ipykernel); "
                           "`ipybox doctor` says how to get it here" +
                               tail);
            link->fail(errc::kernel_start_failed, sandbox_kit::start_failure(how, tail));
        }
        if (link->lost() && link->is_over()) link->fail_protocol("it closed its connection");
        if (Clock::now() >= deadline)
            link->fail(errc::timed_out,
                       "the kernel did not start in time; raise kernel_init_timeout, or see why it "
                       "is slow" +
                           link->tail_text());
    }

    asio::any_io_executor executor_;
    ipybox::jupyter::WireLimits limits_;
};

constexpr Plugin self{
    .name = "zmq",
    .summary = "IPython kernels on this machine, over Unix sockets in a private directory",
    .config_schema = config_schema,
    .make = Factory<KernelBackend>(
        +[](Host& host, const json::object& config) -> std::unique_ptr<KernelBackend> {
            return std::make_unique<Zmq>(host, config);
        }),
};
}  // namespace

IPYBOX_PLUGIN(zmq, self)
