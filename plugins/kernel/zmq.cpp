// IPython kernels as processes of this machine, spoken to over Unix sockets by ZeroMQ. Where the
// guest cannot make any, it listens on loopback ports, to which the sandbox's own sockets lead.
#include <fcntl.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ipybox/detail/hex.hpp>
#include <ipybox/detail/jupyter_wire.hpp>
#include <ipybox/detail/private_directory.hpp>
#include <ipybox/jupyter_execution.hpp>
#include <ipybox/plugin.hpp>
#include <ipybox/process.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <zmq.hpp>

namespace {
using namespace ipybox;
using namespace std::chrono_literals;
using detail::PrivateDirectory;
using detail::WireMessage;
using detail::WireSession;
using Descriptor = asio::posix::stream_descriptor;

// What the connection file calls ports; a socket's path is <ip>-<port>.
enum Port { shell_port = 1, iopub_port, stdin_port, control_port, heartbeat_port };
constexpr Port used_ports[] = {shell_port, iopub_port, control_port};

std::string socket_name(Port port) { return "s-" + std::to_string(port); }

// A socket path of 108 bytes must hold the guest's directory, "/s-N" and a NUL.
constexpr std::size_t longest_directory = 100;
// The host holds at most this many messages; more wait in the kernel.
constexpr int queued_messages = 8;

[[noreturn]] void fail_io(const std::string& what) {
    throw Error(errc::io_error, what + ": " + std::strerror(errno));
}

// Everything a kernel consists of. Shared by its handle and by the handlers that Asio still holds
// when the handle is gone; close() makes those harmless.
struct Link : std::enable_shared_from_this<Link> {
    // A ZeroMQ socket on the reactor. Its descriptor is edge-triggered: read until there is
    // nothing left, then arm(), which looks at the descriptor's state anew.
    struct Port {
        zmq::socket_t socket;
        std::optional<Descriptor> ready;
        bool armed = false;

        void watch(const asio::any_io_executor& on) {
            ready.emplace(on, socket.get(zmq::sockopt::fd));
        }
        void close() noexcept {
            if (ready) ready->release();  // the descriptor belongs to ZeroMQ
            ready.reset();
            socket.close();
        }
    };

    Link(asio::any_io_executor on, KernelSpec with, uid_t owner, detail::WireLimits limits)
        : executor(std::move(on)),
          logger(std::move(with.logger)),
          guest(owner),
          key(ipybox::detail::random_hex(16)),
          session(key, limits),
          directory(owner, owner),
          context(1),
          changed(executor) {}

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
    std::optional<Descriptor> created;  // inotify, until the sockets exist
    bool created_armed = false;
    std::vector<UniqueFd> sockets;      // what ZeroMQ connects to, and nothing else in its place
    zmq::context_t context;
    Port shell, iopub, control, shell_monitor, iopub_monitor;
    Event changed;

    bool stopping = false;
    bool closed = false;
    bool exited = false;
    bool shell_lost = false, iopub_lost = false;
    Clock::time_point end_grace = never;    // when the last words of an ended kernel are over
    std::optional<Error> failure;

    std::set<std::string> probes;           // kernel_info_requests of the start
    bool probe_answered = false;
    bool probe_idle = false;

    JupyterExecution execution;

    // Ends everything at once; what waits wakes up and sees `closed`.
    void close() noexcept {
        if (std::exchange(closed, true)) return;
        if (process) process->kill_tree();
        process.reset();
        pidfd.reset();
        created.reset();
        for (Port* port : {&shell, &iopub, &control, &shell_monitor, &iopub_monitor}) port->close();
        context.close();
        sockets.clear();
        directory.remove();
        relayed.reset();
        changed.notify();
    }

    std::string tail_text() const {
        std::string tail = process ? process->output_tail() : std::string();
        while (!tail.empty() && (tail.back() == '\n' || tail.back() == ' ')) tail.pop_back();
        return tail.empty() ? tail : "; the last it printed:\n" + tail;
    }

    // The kernel is of no more use: remembers why, kills it, throws.
    [[noreturn]] void fail(errc code, const std::string& detail) {
        if (!failure) failure.emplace(code, detail);
        execution.abandon();
        if (process) process->kill_tree();
        changed.notify();
        throw *failure;
    }
    [[noreturn]] void fail_protocol(const std::string& what) {
        fail(errc::kernel_protocol,
             "the kernel broke the protocol (" + what + ") and was killed; reset() starts a new kernel");
    }

    void require_usable() const {
        if (stopping || closed) throw Error(errc::cancelled, "the kernel was shut down");
        if (failure) throw *failure;
    }

    // Wakes `changed` when the socket has news; once per call.
    void arm(Port& port) {
        if (port.armed || !port.ready) return;
        port.armed = true;
        port.ready->async_wait(Descriptor::wait_read,
                               [self = shared_from_this(), &port](boost::system::error_code) {
                                   port.armed = false;
                                   self->changed.notify();
                               });
    }
    void arm_all() {
        for (Port* port : {&shell, &iopub, &shell_monitor, &iopub_monitor}) arm(*port);
    }

    void watch_process() {
        UniqueFd handle = process->pid() > 0 ? ipybox::detail::open_pidfd(process->pid()) : UniqueFd();
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

    void connect(Port& port, zmq::socket_type type, ::Port number) {
        port.socket = zmq::socket_t(context, type);
        port.socket.set(zmq::sockopt::linger, 0);
        port.socket.set(zmq::sockopt::rcvhwm, queued_messages);
        port.socket.set(zmq::sockopt::maxmsgsize, static_cast<std::int64_t>(session.limits().bytes));
        // The kernel binds a path shortly before it listens there.
        port.socket.set(zmq::sockopt::reconnect_ivl, 5);
        // A relayed connection is there before the kernel is.
        if (relayed) port.socket.set(zmq::sockopt::handshake_ivl, 0);
        if (type == zmq::socket_type::sub) port.socket.set(zmq::sockopt::subscribe, "");
        const auto handle = relayed ? detail::open_socket(*relayed, socket_name(number), ::geteuid())
                                    : detail::open_socket(directory, socket_name(number), guest);
        if (!handle) fail_io("the sandbox does not listen for the kernel's messages");
        const int fixed = ::fcntl(handle.get(), F_DUPFD_CLOEXEC, 3);
        if (fixed < 0) fail_io("cannot keep a handle on the kernel's socket");
        sockets.emplace_back(fixed);
        port.socket.connect("ipc:///proc/self/fd/" + std::to_string(fixed));
        port.watch(executor);
    }

    void monitor(Port& port, Port& of, const char* address) {
        if (zmq_socket_monitor(of.socket.handle(), address, ZMQ_EVENT_DISCONNECTED) != 0)
            throw zmq::error_t();
        port.socket = zmq::socket_t(context, zmq::socket_type::pair);
        port.socket.set(zmq::sockopt::linger, 0);
        port.socket.connect(address);
        port.watch(executor);
    }

    bool sockets_exist() const {
        for (const auto port : used_ports)
            if (!detail::open_socket(directory, socket_name(port), guest)) return false;
        return true;
    }

    std::string send(Port& port, std::string_view type, const json::object& content) {
        auto request = session.request(type, content);
        for (std::size_t i = 0; i < request.frames.size(); ++i) {
            const auto& frame = request.frames[i];
            const int flags = ZMQ_DONTWAIT | (i + 1 < request.frames.size() ? ZMQ_SNDMORE : 0);
            int sent = 0;
            do sent = zmq_send(port.socket.handle(), frame.data(), frame.size(), flags);
            while (sent < 0 && errno == EINTR);
            if (sent < 0) fail_protocol("it takes no more requests");
        }
        return request.id;
    }

    // One frame, if there is one now.
    static bool receive_part(Port& port, zmq::message_t& part) {
        for (;;) {
            if (zmq_msg_recv(part.handle(), port.socket.handle(), ZMQ_DONTWAIT) >= 0) return true;
            if (errno == EAGAIN) return false;
            if (errno != EINTR) throw zmq::error_t();
        }
    }

    // Takes one message off a socket and hands it to `use`; false when there is none.
    template <class Function>
    bool receive(Port& port, Function use) {
        std::vector<zmq::message_t> parts;
        for (bool more = true; more;) {
            zmq::message_t part;
            if (!receive_part(port, part)) return false;
            more = part.more();
            if (parts.size() < session.limits().frames + 1) parts.push_back(std::move(part));
        }
        std::vector<std::string_view> frames;
        frames.reserve(parts.size());
        for (const auto& part : parts) frames.push_back(part.to_string_view());
        const auto message = session.read(frames);
        if (!message) fail_protocol(describe(message.error()));
        std::string breach;
        try {
            use(*message);
        } catch (const JupyterBreach& found) {
            breach = found.what();
        }
        if (!breach.empty()) fail_protocol(breach);
        return true;
    }

    json::object content_of(const WireMessage& message) {
        auto content = detail::read_object(message.content, session.limits().depth);
        if (!content) fail_protocol(describe(content.error()));
        return std::move(*content);
    }

    void handle_iopub(const WireMessage& message) {
        if (message.type == "status" && probes.contains(message.parent_id)) {
            probe_idle = probe_idle ||
                         JupyterExecution::text_of(content_of(message), "execution_state") == "idle";
        } else {
            execution.on_iopub(message.type, message.parent_id, [&] { return content_of(message); });
        }
    }

    void handle_shell(const WireMessage& message) {
        if (message.type == "kernel_info_reply" && probes.contains(message.parent_id)) {
            const auto version =
                JupyterExecution::text_of(content_of(message), "protocol_version");
            if (!version.starts_with("5."))
                fail_protocol("it speaks version " + version.substr(0, 16) + ", not 5");
            probe_answered = true;
        } else {
            execution.on_shell(message.type, message.parent_id, [&] { return content_of(message); });
        }
    }

    // Handles one waiting message; false when there is none. One at a time, so that what the
    // consumer has not asked for stays where it is.
    bool read_one() {
        const auto from_iopub = [this](const WireMessage& message) { handle_iopub(message); };
        if (receive(iopub, from_iopub)) return true;
        const auto from_shell = [this](const WireMessage& message) { handle_shell(message); };
        if (receive(shell, from_shell)) return true;
        zmq::message_t event;
        bool lost = false;
        while (receive_part(shell_monitor, event)) lost = shell_lost = true;
        while (receive_part(iopub_monitor, event)) lost = iopub_lost = true;
        return lost;  // what came just before may be there only now
    }

    // Nothing is left to read; is there a reason to stop waiting? Sets end_grace when a reason is
    // near: an ended process may still have words on their way, a lost connection usually means
    // that the process is just ending.
    bool is_over() {
        if (!exited && !lost()) return false;
        if (end_grace == never) end_grace = Clock::now() + patience();
        return (exited && shell_lost && iopub_lost) || Clock::now() >= end_grace;
    }
    bool lost() const { return shell_lost || iopub_lost; }
    // How far the ends of a connection and of the process may lie apart.
    Duration patience() const { return relayed ? 3s : 500ms; }

    awaitable<std::string> ending() {
        const auto held = process;
        const auto status = co_await held->wait(Clock::now() + patience());
        if (!status) co_return std::string();
        co_return ipybox::detail::describe_end(*held, *status);
    }
};

using LinkPtr = std::shared_ptr<Link>;

awaitable<void> throw_if_cancelled() {
    const auto state = co_await asio::this_coro::cancellation_state;
    if (state.cancelled() != asio::cancellation_type::none)
        throw boost::system::system_error(asio::error::operation_aborted);
}

// Ends the wait for a kernel that is over.
awaitable<void> report_end(LinkPtr link) {
    if (!link->exited)
        link->fail_protocol("it closed its connection");
    const auto how = co_await link->ending();
    link->require_usable();
    link->fail(errc::kernel_died, "the kernel ended (" + how + "); reset() starts a new kernel" +
                                      link->tail_text());
}

awaitable<std::optional<KernelOutput>> next_output(LinkPtr link, Clock::time_point deadline) {
    for (;;) {
        link->require_usable();
        auto output = link->execution.take();
        if (output) co_return output;
        if (link->execution.id().empty())
            throw Error(errc::bad_argument, "next() needs a running execution; call execute() first");
        if (link->read_one()) continue;
        link->execution.expect_reply(2s);
        if (link->is_over()) co_await report_end(link);
        if (Clock::now() >= deadline) co_return std::nullopt;
        link->arm_all();
        const auto soonest = std::min(deadline, std::min(link->execution.reply_grace(), link->end_grace));
        co_await link->changed.wait(soonest);
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
        auto& link = *link_;
        link.require_usable();
        if (link.execution.busy())
            throw Error(errc::busy, "the kernel runs another execution; take its output to the end first");
        if (link.look_for_exit()) co_await report_end(link_);
        if (ipybox::detail::repair_utf8(request.code) != request.code)
            throw Error(errc::bad_argument, "the code is not valid UTF-8; encode it so");
        json::object content;
        content["code"] = std::move(request.code);
        content["silent"] = request.silent;
        content["store_history"] = false;
        content["user_expressions"] = json::object();
        content["allow_stdin"] = false;
        // True would abort requests that arrive shortly after an error: the next cell, say.
        content["stop_on_error"] = false;
        link.execution.begin(link.send(link.shell, "execute_request", content));
    }

    awaitable<std::optional<KernelOutput>> next(Clock::time_point deadline) override {
        return next_output(link_, deadline);
    }
    std::vector<Violation> violations() const override {
        return link_->process ? link_->process->violations() : std::vector<Violation>();
    }

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
        while (!answered && !link->exited && Clock::now() < deadline) {
            if (link->receive(link->control, use)) continue;
            link->arm(link->control);
            co_await link->changed.wait(deadline);
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
            link->iopub_monitor.close();
            try {
                link->send(link->control, "shutdown_request", content);
            } catch (const Error&) {
                // It takes no more requests, so it is killed now.
            }
            const auto deadline = Clock::now() + std::max<Duration>(1s, link->patience());
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
      "type": "integer", "minimum": 1048576, "maximum": 2147483647, "default": 268435456,
      "description": "Largest message taken from the kernel, a plot or one huge print, in bytes."
    }
  }
})";

class Zmq final : public KernelBackend {
public:
    Zmq(Host& host, const json::object& config) : executor_(host.executor) {
        if (const auto* bytes = config.if_contains("max_message_bytes"))
            limits_.bytes = bytes->to_number<std::size_t>();
    }

    awaitable<std::unique_ptr<Kernel>> start(Sandbox& sandbox, KernelSpec spec) override {
        const auto deadline = deadline_after(spec.init_timeout);
        if (!find_program(spec.python.string(), ""))
            throw Error(errc::missing_dependency,
                        "there is no Python interpreter at " + spec.python.string() +
                            "; name one that has ipykernel");
        auto link = std::make_shared<Link>(executor_, spec, sandbox.guest_user(spec.policy), limits_);
        // From here on, leaving this function in any way ends the kernel and removes its files.
        std::unique_ptr<Kernel> kernel = std::make_unique<ZmqKernel>(link);
        const auto able = co_await sandbox.probe();
        if (able.unix_sockets)
            watch_directory(link);
        else
            link->relayed.emplace(::geteuid(), ::geteuid());
        co_await launch(sandbox, able, std::move(spec), link);
        co_await connect(link, deadline);
        co_await first_answer(link, deadline);
        link->probes.clear();
        co_return kernel;
    }

private:
    static void watch_directory(const LinkPtr& link) {
        UniqueFd watch(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
        if (!watch || ::inotify_add_watch(watch.get(), link->directory.path().c_str(), IN_CREATE) < 0)
            fail_io("cannot watch the directory of the kernel's sockets");
        link->created.emplace(link->executor, watch.release());
    }

    static awaitable<void> launch(Sandbox& sandbox, Capabilities able, KernelSpec spec,
                                  LinkPtr link) {
        Channel channel;
        channel.name = "kernel";
        channel.host_path = link->directory.path();
        // What fills the sandbox's own scratch space fills no disk of the host's.
        const bool scratch = able.scratch_size;
        channel.access = scratch ? Channel::Access::sockets : Channel::Access::write;
        const std::filesystem::path guest = sandbox.guest_address(channel);
        if (guest.string().size() > longest_directory)
            throw Error(errc::bad_config, "the sandbox shows the kernel's sockets at a path over " +
                                              std::to_string(longest_directory) + " bytes: " +
                                              guest.string());
        json::object file;
        file["transport"] = link->relayed ? "tcp" : "ipc";
        file["ip"] = link->relayed ? "127.0.0.1" : (guest / "s").string();
        file["shell_port"] = shell_port;
        file["iopub_port"] = iopub_port;
        file["stdin_port"] = stdin_port;
        file["control_port"] = control_port;
        file["hb_port"] = heartbeat_port;
        auto channels = std::move(spec.channels);
        if (link->relayed) listen_inside(sandbox, *link->relayed, file, channels);
        file["signature_scheme"] = "hmac-sha256";
        file["key"] = link->key;
        link->directory.write_file("connection.json", json::serialize(file), link->guest);

        auto& env = spec.policy.env;
        const std::filesystem::path files = scratch ? "/dev/shm" : guest;
        env.try_emplace("IPYTHONDIR", files / "ipython");
        env.try_emplace("JUPYTER_RUNTIME_DIR", files);
        if (!env.contains("HOME")) env.try_emplace("MPLCONFIGDIR", files / "matplotlib");
        env.try_emplace("TERM", "dumb");
        env.try_emplace("NO_COLOR", "1");
        // No parent to watch over, and no advice for people at a terminal.
        env.try_emplace("JPY_PARENT_PID", "1");

        std::vector<std::string> argv = {spec.python.string(), "-m", "ipykernel_launcher", "-f",
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
    static void listen_inside(Sandbox& sandbox, const PrivateDirectory& directory,
                              json::object& file, std::vector<Channel>& channels) {
        // Nobody uses the others: the kernel chooses.
        file["stdin_port"] = file["hb_port"] = 0;
        for (const auto& [port, name] :
             {std::pair(shell_port, "shell"), {iopub_port, "iopub"}, {control_port, "control"}}) {
            Channel channel;
            channel.name = name;
            channel.host_path = directory.path() / socket_name(port);
            channel.kind = Channel::Kind::listener;
            const auto address = sandbox.guest_address(channel);
            file[std::string(name) + "_port"] = std::stoi(address.substr(address.rfind(':') + 1));
            channels.push_back(std::move(channel));
        }
    }

    // Waits until the kernel has bound its sockets, then connects to them.
    static awaitable<void> connect(LinkPtr link, Clock::time_point deadline) {
        while (!link->relayed && !link->sockets_exist()) {
            co_await require_start(link, deadline);
            std::array<char, 4096> events;
            while (::read(link->created->native_handle(), events.data(), events.size()) > 0) {}
            // Only now: a socket bound since the first look has raised its event already.
            if (link->sockets_exist()) break;
            if (!std::exchange(link->created_armed, true))
                link->created->async_wait(Descriptor::wait_read,
                                          [link](boost::system::error_code) {
                                              link->created_armed = false;
                                              link->changed.notify();
                                          });
            co_await link->changed.wait(deadline);
            co_await throw_if_cancelled();
        }
        link->created.reset();
        link->connect(link->iopub, zmq::socket_type::sub, iopub_port);
        link->connect(link->shell, zmq::socket_type::dealer, shell_port);
        link->connect(link->control, zmq::socket_type::dealer, control_port);
        link->monitor(link->shell_monitor, link->shell, "inproc://shell-monitor");
        link->monitor(link->iopub_monitor, link->iopub, "inproc://iopub-monitor");
    }

    // The kernel is ready when it has answered and when the end of that answer has come through
    // iopub as well: from then on no output can pass before the subscription is in place.
    static awaitable<void> first_answer(LinkPtr link, Clock::time_point deadline) {
        auto repeat_at = never;
        link->probes.insert(link->send(link->shell, "kernel_info_request", json::object()));
        while (!link->probe_answered || !link->probe_idle) {
            if (link->read_one()) continue;
            co_await require_start(link, deadline);
            if (link->probe_answered && Clock::now() >= repeat_at) {
                link->probe_answered = false;
                repeat_at = never;
                link->probes.insert(link->send(link->shell, "kernel_info_request", json::object()));
            } else if (link->probe_answered && repeat_at == never) {
                repeat_at = Clock::now() + 50ms;
            }
            link->arm_all();
            const auto soonest = std::min(deadline, std::min(repeat_at, link->end_grace));
            co_await link->changed.wait(soonest);
            co_await throw_if_cancelled();
        }
    }

    static awaitable<void> require_start(LinkPtr link, Clock::time_point deadline) {
        link->require_usable();
        if (link->exited) {
            const auto how = co_await link->ending();
            const auto tail = link->tail_text();
            if (tail.find("No module named ipykernel") != std::string::npos ||
                tail.find("No module named 'ipykernel") != std::string::npos)
                link->fail(errc::missing_dependency,
                           "the Python interpreter has no ipykernel; install it with "
                           "`python -m pip install ipykernel`" + tail);
            link->fail(errc::kernel_start_failed,
                       "the kernel ended while it started (" + how +
                           "); `ipybox doctor` checks what it needs" + tail);
        }
        if (link->lost() && link->is_over()) link->fail_protocol("it closed its connection");
        if (Clock::now() >= deadline)
            link->fail(errc::timed_out,
                       "the kernel did not start in time; raise kernel_init_timeout, or see why it "
                       "is slow" + link->tail_text());
    }

    asio::any_io_executor executor_;
    ipybox::detail::WireLimits limits_;
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
