// Confinement by bubblewrap: own user, pid, network, ipc, uts, cgroup and mount namespaces, a view
// made of nothing but what the policy names and the system's own programs; inside, the launcher
// adds a system call filter, Landlock and limits, and carries the way to the network proxy; or,
// where the whole disk is in view and there are no Unix sockets, all channels.
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <enter_image.hpp>
#include <ipybox/config.hpp>
#include <ipybox/detail/file_id.hpp>
#include <ipybox/net/certificates.hpp>
#include <ipybox/plugin.hpp>
#include <ipybox/sandbox_kit/cgroup.hpp>
#include <ipybox/sandbox_kit/confined_process.hpp>
#include <ipybox/sandbox_kit/file_state.hpp>
#include <ipybox/sandbox_kit/guest_identity.hpp>
#include <ipybox/sandbox_kit/guest_view.hpp>
#include <ipybox/sandbox_kit/process.hpp>
#include <ipybox/sandbox_kit/project_quota.hpp>
#include <ipybox/sandbox_kit/system_package.hpp>
#include <launcher_file.hpp>
#include <launcher_image.hpp>
#include <launcher_init.hpp>
#include <launcher_options.hpp>
#include <map>
#include <mutex>
#include <set>
#include <syscall_filter.hpp>
#include <tuple>

namespace {
using namespace ipybox;
namespace fs = std::filesystem;
using sandbox_kit::absolute_path, sandbox_kit::check_reach, sandbox_kit::errno_text,
    detail::Placeholders, sandbox_kit::refuse, sandbox_kit::View, detail::within;

constexpr std::size_t max_options = 8'000;          // bwrap itself gives up at 9000
constexpr std::size_t max_command_bytes = 1 << 20;  // Linux gives up at twice that

// The tests build this file a second time, with walls that can be taken down one by one: an attack
// that fails with all of them must get through without the one that is said to stop it.
#ifdef IPYBOX_TEST_WEAKENED
bool without(std::string_view layer) {
    const char* layers = std::getenv("IPYBOX_TEST_WITHOUT");
    return layers != nullptr &&
           ("," + std::string(layers) + ",").find("," + std::string(layer) + ",") !=
               std::string::npos;
}
#define IPYBOX_BUBBLEWRAP bubblewrap_weakened
#else
constexpr bool without(std::string_view) { return false; }
#define IPYBOX_BUBBLEWRAP bubblewrap
#endif

// Where the guest finds the way to the proxy, when it may use the network.
constexpr const char* proxy_url = "http://127.0.0.1:3128";
constexpr std::uint16_t proxy_port = 3128;

// Where the guest finds the launcher.
constexpr const char* launcher_path = "/run/ipybox/launcher";
// And who enters sandboxes, or has programs started, the code to do it with.
constexpr const char* enter_path = "/run/ipybox/enter.so";
// The launcher's way to us as a sandbox's first process; below what Options hands over.
constexpr int init_socket = 4;
// And over which it asks about programs; a pen has its program's there.
constexpr int question_socket = 3;

// How far below the guard the command is, and one that has a room of its own (launcher/room.cpp).
constexpr int depth_of_command = 3, depth_of_kernel = 6;

// How long a sandbox's first process may take to end those in it when it is killed, in ms.
constexpr int first_patience = 5'000;

// ---- the command line ---------------------------------------------------------------------------

// bwrap's options and the descriptors they name. Options travel in a descriptor: other users of
// the host can read a command line, and the environment is among them.
class Options {
public:
    template <class... Words>
    void add(const Words&... words) {
        (words_.emplace_back(words), ...);
    }
    // The number under which bwrap finds `text` in a descriptor.
    std::string data(std::string_view text) {
        UniqueFd file(::memfd_create("ipybox", MFD_CLOEXEC));
        // Large ones do not pass in one go.
        for (auto rest = text; file && !rest.empty();) {
            const auto count = ::write(file.get(), rest.data(), rest.size());
            if (count <= 0) file.reset();
            rest.remove_prefix(static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
        }
        if (!file || ::lseek(file.get(), 0, SEEK_SET) != 0)
            throw Error(errc::io_error, "cannot hand data to bwrap: " + errno_text());
        return keep(std::move(file));
    }
    // The number under which bwrap and what it starts find a descriptor.
    std::string keep(UniqueFd file) {
        files_.push_back(std::move(file));
        return std::to_string(first + files_.size() - 1);
    }
    void file(const char* path, std::string_view text, const char* mode = "0444") {
        add("--perms", mode, "--file", data(text), path);
    }
    // One that lies over another. AppArmor's profile for bwrap in Ubuntu lets nobody open it, for
    // such a file has no name: the others do without.
    void file_over(const char* path, std::string_view text) {
        add("--perms", "0444", "--ro-bind-data", data(text), path);
    }
    const std::vector<std::string>& words() const noexcept { return words_; }
    // Completes the request: bwrap with these options and `command` behind them.
    void fill(SpawnRequest& request, const fs::path& bwrap, std::vector<std::string> command) {
        std::size_t bytes = 0;
        for (const auto& word : command) bytes += word.size() + 1;
        if (words_.size() > max_options || bytes > max_command_bytes)
            refuse(
                "the sandbox's view has too many parts: hide or protect fewer single files, and "
                "remove those, such as .env, that nobody needs");
        std::string joined;
        for (const auto& word : words_) {
            if (word.find('\0') != std::string::npos)
                throw Error(errc::bad_argument,
                            "a path or environment variable contains a NUL byte");
            joined += word;
            joined += '\0';
        }
        request.argv = {bwrap, "--args", data(joined), "--"};
        std::move(command.begin(), command.end(), std::back_inserter(request.argv));
        for (std::size_t i = 0; i < files_.size(); ++i)
            request.fds.emplace_back(files_[i].get(), static_cast<int>(first + i));
    }

private:
    static constexpr std::size_t first = 10;
    std::vector<std::string> words_;
    std::vector<UniqueFd> files_;
};

// Places that the guest sees through overlays, and the way to whoever keeps these fresh.
struct Layers {
    std::vector<detail::WorkspaceLayer> mounted;
    UniqueFd description, control, launcher_control;
};

// Asks the launcher to make the guest see what the host has changed behind an overlay.
class LayerControl {
public:
    LayerControl(const asio::any_io_executor& executor, UniqueFd socket)
        : socket_(executor, asio::local::stream_protocol(), socket.release()) {}

    // Returns when that is so; at once where nobody answers, and then for good: names stay fresh
    // within a second without it.
    awaitable<void> refresh() {
        if (!socket_.is_open()) co_return;
        char byte = 'r';
        bool answered = ::send(socket_.native_handle(), &byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT) == 1;
        // Nearly always it takes less time than to wait for it in turn with others.
        pollfd event{socket_.native_handle(), POLLIN, 0};
        if (answered && waiting_ == 0 && ::poll(&event, 1, 1) == 1 &&
            ::recv(event.fd, &byte, 1, MSG_DONTWAIT) == 1)
            co_return;
        // Answers come in the order of the questions.
        ++waiting_;
        if (answered)
            answered =
                co_await ends_first(answer(), sleep_until(Clock::now() + std::chrono::seconds(2)));
        --waiting_;
        if (!answered) close();
    }
    // Makes the names that layers hold read-only; before anything else is asked, and before there
    // is code inside. Throws Error: sandbox_refused.
    awaitable<void> pin() {
        const char byte = 'p';
        answer_ = 0;
        if (::send(socket_.native_handle(), &byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT) == 1)
            co_await ends_first(answer(), sleep_until(Clock::now() + std::chrono::seconds(10)));
        if (answer_ != byte)
            refuse(
                "names that a writable place lacks cannot be protected: something has changed its "
                "directories meanwhile; start again");
    }
    void close() noexcept {
        boost::system::error_code ignored;
        socket_.close(ignored);
    }

private:
    awaitable<void> answer() {
        co_await socket_.async_read_some(asio::buffer(&answer_, 1), as_result);
    }

    int waiting_ = 0;
    char answer_ = 0;
    asio::local::stream_protocol::socket socket_;
};

// The launcher as guard, bwrap, its init process inside, and the command as that one's first child.
// bwrap alone would do but for the moment in which its init exists and does not follow it yet: a
// host that is killed then would leave the guest behind.
class Confined final : public ConfinedProcess {
public:
    Confined(asio::any_io_executor executor, SpawnRequest request, Placeholders placeholders,
             std::optional<Cgroup> group, std::optional<sandbox_kit::ProjectQuota> quota,
             Layers layers, std::unique_ptr<launcher::InitSocket> init, int depth,
             unsigned own_filters)
        : ConfinedProcess(executor, std::move(request), std::move(placeholders), std::move(group)),
          quota_(std::move(quota)),
          layers_(std::move(layers.mounted)),
          init_(std::move(init)),
          depth_(depth),
          own_filters_(own_filters) {
        if (init_) init_->started();
        if (layers.control)
            control_ = std::make_shared<LayerControl>(executor, std::move(layers.control));
    }
    ~Confined() override {
        if (control_) control_->close();
        end_guest();
        if (!first_) return;
        pollfd ends{first_->native_handle(), POLLIN, 0};
        while (::poll(&ends, 1, first_patience) < 0 && errno == EINTR) {
        }
    }

    // Its first process, when that is the launcher's and not bwrap's.
    awaitable<UniqueFd> first_process() {
        auto handle = co_await init_->first_process(*this);
        UniqueFd own(::fcntl(handle.get(), F_DUPFD_CLOEXEC, 3));
        if (!own) throw Error(errc::io_error, "cannot keep a handle: " + errno_text());
        first_ = std::make_shared<Handle>(co_await asio::this_coro::executor, own.get());
        own.release();
        co_return handle;
    }
    // In a pen that one's end is seen by the pen's first process and not by the guard, which may be
    // gone before it; with it ends whoever is in its pid namespace.
    awaitable<std::optional<ExitStatus>> wait(Clock::time_point deadline) override {
        auto guard = ConfinedProcess::wait(deadline);
        if (!first_) return guard;
        return both_end(std::move(guard), first_, deadline);
    }
    // Whether a first process that has told of itself is still there.
    bool lives() const noexcept {
        return !exit_status() && first_ && !is_readable(first_->native_handle());
    }
    // Returns when it is not.
    awaitable<void> first_ended() const { return ended(first_); }
    // What was to be pinned later; throws as LayerControl::pin() does.
    awaitable<void> pin_names() {
        if (control_) co_await control_->pin();
    }

    awaitable<void> refresh_view() override { return refreshed(control_); }
    bool may_be_stale() const noexcept override { return control_ != nullptr; }

    // Filters cannot be read from outside, but counted: the command has more than the sandbox's
    // first process, which has those that bwrap was given.
    bool is_last_program() const noexcept override {
        if (own_filters_ == 0 || exit_status()) return false;
        if (without("last-program")) return true;
        try {
            const auto [init, init_handle] = inner(2);
            const auto [command, handle] = inner(relayed() ? depth_ + 1 : depth_);
            if (!init_handle || !handle) return false;
            const auto around = sandbox_kit::count_filters(init);
            const auto within = sandbox_kit::count_filters(command);
            // By now their numbers might mean others.
            const bool there = !is_readable(init_handle.get()) && !is_readable(handle.get());
            return there && around && within && *within >= *around + own_filters_;
        } catch (const std::exception&) {
            return false;  // no memory to look
        }
    }

private:
    struct Inner {
        pid_t pid = -1;
        UniqueFd handle;  // empty: there is none
    };
    // The first child of the first child …: 1 is bwrap, 2 the first process of the sandbox, depth_
    // the command, or the relay whose first child it is.
    Inner inner(int depth) const {
        Inner at;
        at.pid = pid();
        while (depth-- > 0) {
            const auto children = sandbox_kit::children_of(at.pid);
            if (children.empty()) return Inner();
            const auto parent = std::exchange(at.pid, children.front());
            at.handle = sandbox_kit::open_child(at.pid, parent);
            if (!at.handle) return Inner();
        }
        return at;
    }

    // The command's group is that of the init process, which ignores signals.
    void signal_command(int number, bool group) override {
        if (exit_status()) return;
        const auto [at, handle] = inner(depth_);
        if (!handle) return;
        const auto parent = sandbox_kit::parent_of(at);
        // While the command lives, its group's number means no other.
        if (group && ::getpgid(at) == parent)
            ::kill(-parent, number);
        else
            sandbox_kit::send_signal(handle, number);
    }

    using Handle = asio::posix::stream_descriptor;

    static awaitable<void> ended(std::shared_ptr<Handle> process) {
        co_await process->async_wait(Handle::wait_read, as_result);
    }
    static awaitable<std::optional<ExitStatus>> both_end(awaitable<std::optional<ExitStatus>> guard,
                                                         std::shared_ptr<Handle> first,
                                                         Clock::time_point deadline) {
        auto status = co_await std::move(guard);
        if (!status || is_readable(first->native_handle())) co_return status;
        const bool gone = co_await ends_first(ended(first), sleep_until(deadline));
        if (!gone) status.reset();
        co_return status;
    }

    static awaitable<void> refreshed(std::shared_ptr<LayerControl> control) {
        if (control) co_await control->refresh();
    }

    std::optional<sandbox_kit::ProjectQuota> quota_;
    std::vector<detail::WorkspaceLayer> layers_;
    std::shared_ptr<LayerControl> control_;
    std::unique_ptr<launcher::InitSocket> init_;
    std::shared_ptr<Handle> first_;  // of its first process, where init_ tells
    int depth_;
    unsigned own_filters_;  // that the command has besides bwrap's; 0: nobody has asked
};

// What trials have found out about this machine, which is the same for every sandbox of the process
// that has these settings. What failed is tried again by the next: somebody may have mended it.
struct Trials {
    bool works = false;
    bool userns_can_be_disabled = true;
    bool launcher_namespaces = true;  // that the launcher may make some, and not only bwrap
    // Why not; empty: it works. Of deny and ask; and of places in overlays, by mount, directory for
    // the work, and user.
    std::optional<std::string> programs[2];
    std::map<std::tuple<std::uint64_t, fs::path, uid_t>, std::string> layers;

    // settings: all that a trial depends on.
    static Trials known(const std::string& settings) {
        const std::lock_guard lock(mutex);
        const auto found = all.find(settings);
        return found == all.end() ? Trials() : found->second;
    }
    void keep(const std::string& settings) const {
        // It may have gone without something because the machine was busy.
        if (!works || !userns_can_be_disabled || !launcher_namespaces) return;
        Trials good = *this;
        for (auto& problem : good.programs)
            if (problem && !problem->empty()) problem.reset();
        std::erase_if(good.layers, [](const auto& tried) { return !tried.second.empty(); });
        const std::lock_guard lock(mutex);
        all[settings] = std::move(good);
    }

private:
    static inline std::mutex mutex;
    static inline std::map<std::string, Trials> all;
};

// What is started: a command, the pen of those who enter, or a sandbox to be entered.
struct Role {
    enum class Kind { command, pen, open };
    Kind kind = Kind::command;
    int control = -1;          // of a pen: its program's
    const Pen* pen = nullptr;  // around what is opened
};

class Bubblewrap final : public Sandbox {
public:
    Bubblewrap(Host& host, const json::object& config) : executor_(host.executor) {
        const char* path = std::getenv("PATH");
        const auto* name = config.if_contains("bwrap");
        const std::string wanted(name != nullptr ? std::string_view(name->as_string()) : "bwrap");
        const auto found = find_program(wanted, path != nullptr ? path : "/usr/bin:/bin");
        if (found) bwrap_ = *found;
        const auto* user = config.if_contains("user");
        if (user != nullptr) user_ = user->to_number<uid_t>();
        if (const auto* calls = config.if_contains("allow_calls"))
            for (const auto& call : calls->get_array()) {
                allow_calls_.emplace_back(call.get_string());
                launcher::check_call_name(allow_calls_.back());
            }
        const auto* log = config.if_contains("kernel_log");
        kernel_log_ = log != nullptr && log->get_bool();
        const auto* absent = config.if_contains("absent_names");
        overlay_ = absent == nullptr || absent->get_string() == "overlay";
        missing_ = wanted;
        settings_ = detail::write_json(config) + " " + bwrap_.string() + " " +
                    sandbox_kit::file_state(bwrap_) + " " + std::to_string(::geteuid());
        trials_ = Trials::known(settings_);
    }

    awaitable<Capabilities> probe() override {
        if (!probed_) {
            auto found = co_await try_out();
            probed_ = std::move(found);
        }
        co_return *probed_;
    }

    awaitable<std::string> programs_problem(Programs wanted) override {
        if (wanted == Programs::allow) co_return std::string();
        auto& known = trials_.programs[wanted == Programs::ask ? 1 : 0];
        if (!known) {
            std::string found = co_await try_programs(wanted);
            known = std::move(found);
            trials_.keep(settings_);
        }
        co_return *known;
    }

    awaitable<std::string> absent_names(SandboxPolicy policy) override {
        co_await probe();
        const auto layered = co_await find_layered(policy);
        co_return layered.reason.empty()
            ? "by an overlay: the host sees nothing of it"
            : "by files and directories in their place, because " + layered.reason;
    }

    // Among all files of the host lie sockets that nobody can find beforehand: bound by a relative
    // path, made later, or renamed.
    bool unix_sockets(const SandboxPolicy& policy) const override {
        return !sandbox_kit::shows_whole_disk(policy);
    }

    std::string guest_address(const SandboxPolicy& policy, const Channel& channel) const override {
        if (channel.kind == Channel::Kind::directory || unix_sockets(policy))
            return "/run/ipybox/" + channel.name;
        return "127.0.0.1:" + std::to_string(carry(channel).port);
    }

    uid_t guest_user(const SandboxPolicy& policy) const override {
        const auto identity = sandbox_kit::guest_identity(policy, user_);
        return identity ? identity->user : ::geteuid();
    }

    awaitable<std::unique_ptr<SandboxedProcess>> launch(SandboxPolicy policy,
                                                        std::vector<std::string> argv,
                                                        std::vector<Channel> channels,
                                                        Stdio stdio) override {
        co_await require_available();
        const auto layered = co_await find_layered(policy);
        co_return start(policy, std::move(argv), std::move(channels), stdio, layered).process;
    }

    std::string pen_key(const SandboxPolicy& policy) const override {
        // What is reached over a relay, and the machine's own network, nobody enters.
        if (!unix_sockets(policy) || policy.network.mode == NetworkPolicy::Mode::full) return {};
        std::string key =
            "bubblewrap " + bwrap_.string() + " " + std::to_string(guest_user(policy));
        for (const auto& call : allow_calls_) key += " " + call;
        return key;
    }

    awaitable<Pen> make_pen(SandboxPolicy policy, std::vector<std::string> argv,
                            std::vector<Channel> channels, int control) override {
        co_await require_available();
        if (policy.programs != Programs::allow)
            refuse("what kernels are forked from is a program that the pen starts");
        Role role;
        role.kind = Role::Kind::pen;
        role.control = control;
        auto process =
            start(policy, std::move(argv), std::move(channels), Stdio::tail, Layered(), role)
                .process;
        Pen pen;
        pen.init = co_await process->first_process();
        const auto place = "/proc/" + std::to_string(launcher::number_of(pen.init)) + "/ns/";
        for (const auto& [name, space] :
             {std::pair("user", &pen.user_namespace), {"pid", &pen.pid_namespace}}) {
            space->reset(::open((place + name).c_str(), O_RDONLY | O_CLOEXEC));
            if (!*space) refuse("the pen cannot be entered: " + errno_text());
        }
        // Else the number might be another's by now.
        if (is_readable(pen.init.get())) refuse("the pen ended: " + process->output_tail());
        pen.process = std::move(process);
        co_return pen;
    }

    awaitable<OpenSandbox> open(SandboxPolicy policy, std::vector<Channel> channels,
                                const Pen& pen) override {
        co_await require_available();
        if (policy.network.mode == NetworkPolicy::Mode::full)
            refuse("a sandbox with the machine's own network cannot be entered");
        const auto layered = co_await find_layered(policy);
        Role role;
        role.kind = Role::Kind::open;
        role.pen = &pen;
        const bool ahead = may_open_ahead(policy, layered);
        auto started =
            start(policy, {}, channels, Stdio::tail, layered, role, [&](const std::string& view) {
                return ahead ? take_ahead(policy, channels, view) : std::nullopt;
            });
        if (!started.opened.init) {
            started.opened.init = co_await started.process->first_process();
            if (pins_later(policy, role)) co_await started.process->pin_names();
        }
        if (ahead) open_next(policy, std::move(channels), pen, layered, started);
        started.opened.process = std::move(started.process);
        co_return std::move(started.opened);
    }

private:
    struct Started {
        std::unique_ptr<Confined> process;
        OpenSandbox opened;  // of one to be entered, without its process
    };

    // For each writable place whose absent names an overlay can hold: the directory for its work.
    // Why another cannot, for people.
    struct Layered {
        std::map<fs::path, fs::path> bases;
        std::string reason;
    };

    // What bwrap finds of the disk.
    struct Disk {
        std::map<fs::path, std::string> writable;  // nothing else is; DEVICE:INODE
        std::set<fs::path> covered;                // links
    };

    // ---- ahead of who asks --------------------------------------------------------------------

    // Who opens the same sandbox again and again, as sessions do that are reset, finds one opened
    // already. It is looked at what one would be that is opened now, in full: with any difference
    // it is not taken.
    struct Next {
        SandboxPolicy policy;
        std::vector<Channel> channels;
        std::string view;  // of `ready`, as view_key() has it
        std::optional<Started> ready;
        std::uint64_t serial = 0;  // of the newest open()
        bool in_use = false;       // what that has opened, or it was until just now
        bool opening = false;
    };

    // What has effects elsewhere, or runs out, is opened when it is wanted.
    static bool may_open_ahead(const SandboxPolicy& policy, const Layered& layered) {
        const auto held = [&](const auto& path) {
            return layered.bases.contains(absolute_path(path));
        };
        return policy.network.mode == NetworkPolicy::Mode::none &&
               policy.programs != Programs::ask && !policy.limits.memory_total &&
               !policy.limits.workspace_size && !policy.limits.wall_seconds &&
               std::all_of(policy.writable.begin(), policy.writable.end(), held);
    }

    std::optional<Started> take_ahead(const SandboxPolicy& policy,
                                      const std::vector<Channel>& channels,
                                      const std::string& view) {
        if (!next_->ready) return std::nullopt;
        auto ready = *std::exchange(next_->ready, std::nullopt);
        if (next_->policy == policy && next_->channels == channels && next_->view == view &&
            ready.process->lives())
            return ready;
        return std::nullopt;
    }

    void open_next(SandboxPolicy policy, std::vector<Channel> channels, const Pen& pen,
                   const Layered& layered, const Started& now) {
        policy.behind_links.reset();  // what is opened ahead answers nobody
        auto& next = *next_;
        ++next.serial;
        const bool again = next.policy == policy && next.channels == channels;
        next.policy = std::move(policy);
        next.channels = std::move(channels);
        next.in_use = again;
        if (!again) return;
        asio::co_spawn(executor_, drop_next(next_, next.serial, now.process->first_ended()),
                       asio::detached);
        if (std::exchange(next.opening, true)) return;
        Pen same;
        for (const auto& [from, to] : {std::pair(&pen.user_namespace, &same.user_namespace),
                                       {&pen.pid_namespace, &same.pid_namespace}})
            to->reset(::fcntl(from->get(), F_DUPFD_CLOEXEC, 3));
        asio::co_spawn(executor_, keep_next(this, next_, std::move(same), layered), asio::detached);
    }

    // Nobody keeps it beyond the one that is in use, but for the time of a reset.
    static awaitable<void> drop_next(std::weak_ptr<Next> weak, std::uint64_t serial,
                                     awaitable<void> end) {
        co_await std::move(end);
        co_await sleep_until(Clock::now() + std::chrono::milliseconds(200));
        if (const auto next = weak.lock(); next && next->serial == serial) {
            next->in_use = false;
            next->ready.reset();
        }
    }

    // self is there as long as it holds `weak`.
    static awaitable<void> keep_next(Bubblewrap* self, std::weak_ptr<Next> weak, Pen pen,
                                     Layered layered) {
        // Whoever has just got a sandbox goes first.
        co_await sleep_until(Clock::now() + std::chrono::milliseconds(20));
        std::optional<Started> started;
        std::string view;
        SandboxPolicy policy;
        std::vector<Channel> channels;
        if (const auto next = weak.lock(); next && next->in_use) {
            Role role;
            role.kind = Role::Kind::open;
            role.pen = &pen;
            policy = next->policy;
            channels = next->channels;
            try {
                started = self->start(policy, {}, channels, Stdio::tail, layered, role,
                                      [&](const std::string& seen) -> std::optional<Started> {
                                          view = seen;
                                          return std::nullopt;
                                      });
            } catch (const std::exception&) {
                // Whoever needs one tries it again, and is told.
            }
        }
        if (started) {
            try {
                started->opened.init = co_await started->process->first_process();
                co_await started->process->pin_names();
            } catch (const std::exception&) {
                started.reset();
            }
        }
        if (const auto next = weak.lock()) {
            next->opening = false;
            if (started && next->in_use && next->policy == policy && next->channels == channels) {
                next->ready = std::move(started);
                next->view = std::move(view);
            }
        }
    }

    // All that tells what would be opened from another, besides its policy and channels: words for
    // bwrap, and which files their paths mean at this moment. Whoever replaces a file that
    // something is mounted on takes the mount away, in every sandbox.
    static std::string view_key(const SpawnRequest& request, const Options& options,
                                const View& view, const Layered& layered, const Disk& disk,
                                const Pen* pen) {
        std::string key;
        const auto add = [&key](std::string_view word) { (key += word) += '\0'; };
        const auto add_file = [&add](const fs::path& path, bool follow = false) {
            struct stat found{};
            add(path.native());
            if ((follow ? ::stat(path.c_str(), &found) : ::lstat(path.c_str(), &found)) != 0)
                return add("");
            add(detail::file_id(found));
            // Links to the same file are told apart by nothing else.
            if (!S_ISDIR(found.st_mode))
                add(std::to_string(found.st_ctim.tv_sec) + "." +
                    std::to_string(found.st_ctim.tv_nsec));
        };
        for (const auto& word : request.argv) add(word);
        const auto& words = options.words();
        for (std::size_t i = 0; i < words.size(); ++i) {
            add(words[i]);
            if (words[i].find("-bind") != std::string::npos && i + 1 < words.size())
                add_file(words[i + 1], true);
        }
        for (const auto& [path, kind] : view.mounts()) add_file(path);
        for (const auto& [path, found] : view.inner_mounts()) add_file(path);
        for (const auto& path : disk.covered) add_file(path);
        for (const auto& [place, names] : view.layers()) {
            add(layered.bases.at(place).native());
            std::set<fs::path> holders;
            for (const auto& name : names) {
                add(name);
                for (auto at = fs::path(name).parent_path(); holders.insert(place / at).second;)
                    at = at.parent_path();
            }
            for (const auto& path : holders) add_file(path);
        }
        for (const auto& [path, file] : disk.writable) {
            add(path.native());
            add(file);
        }
        if (request.identity)
            add(std::to_string(request.identity->user) + ":" +
                std::to_string(request.identity->group));
        for (const auto* space : {&pen->user_namespace, &pen->pid_namespace}) {
            struct stat found{};
            add(::fstat(space->get(), &found) == 0 ? detail::file_id(found) : "");
        }
        return key;
    }

    awaitable<void> require_available() {
        const auto able = co_await probe();
        if (!able.available)
            throw Error(bwrap_.empty() ? errc::missing_dependency : errc::sandbox_refused,
                        able.problem);
    }

    awaitable<Layered> find_layered(const SandboxPolicy& policy) {
        Layered found;
        if (!overlay_)
            found.reason = "the option absent_names says so";
        else if (!trials_.launcher_namespaces)
            found.reason = "only bwrap may make user namespaces here";
        // Whoever sees the whole disk would see what lies behind an overlay as well.
        else if (sandbox_kit::shows_whole_disk(policy))
            found.reason = "the whole disk is in view";
        if (!found.reason.empty() || without("view")) co_return found;
        const auto identity = sandbox_kit::guest_identity(policy, user_);
        for (const auto& given : policy.writable) {
            const auto place = absolute_path(given);
            if (found.bases.size() == detail::max_layers && !found.bases.contains(place)) {
                found.reason =
                    "more than " + std::to_string(detail::max_layers) + " places can be written";
                break;
            }
            const auto mount = detail::mount_of(place);
            if (!mount || detail::holds_mounts(place)) {
                found.reason = place.string() + " is or holds a mount point";
                continue;
            }
            const std::vector<fs::path> bases = {
                config::state_directory() / "layers",
                fs::temp_directory_path() / ("ipybox-layers-" + std::to_string(::geteuid()))};
            std::string reason =
                "neither ipybox's state nor the temporary directory lies on its file system";
            for (const auto& base : bases) {
                if (detail::mount_of(base.parent_path()) != mount ||
                    !detail::make_own_directory(base))
                    continue;
                const auto key = std::tuple(*mount, base, identity ? identity->user : ::geteuid());
                auto known = trials_.layers.find(key);
                if (known == trials_.layers.end()) {
                    std::string problem = co_await try_layer(place, base, identity);
                    known = trials_.layers.emplace(key, std::move(problem)).first;
                    trials_.keep(settings_);
                }
                reason = known->second;
                if (!reason.empty()) continue;
                found.bases.emplace(place, base);
                break;
            }
            if (!reason.empty()) found.reason = place.string() + ": " + reason;
        }
        co_return found;
    }

    // Why the file system of a place takes no part in an overlay, found by mounting one; empty: it
    // does.
    awaitable<std::string> try_layer(fs::path place, fs::path base,
                                     std::optional<Identity> identity) const {
        try {
            SpawnRequest request;
            request.stdio = Stdio::tail;
            request.identity = identity;
            request.ends_its_tree = true;
            request.argv = {"/usr/bin/true"};
            auto layers =
                make_layers({{place, {"ipybox-probe"}}}, {}, {{{place, base}}, {}}, identity);
            start_by_launcher(request, Limits(), layers, {}, nullptr);
            ChildProcess trial(executor_, std::move(request));
            const auto status = co_await trial.wait(deadline_after(std::chrono::seconds(10)));
            if (status && status->code == 0) co_return std::string();
            auto said = trial.output_tail();
            while (!said.empty() && said.back() == '\n') said.pop_back();
            co_return said.empty() ? "no answer in 10 s" : said;
        } catch (const Error& error) {
            co_return error.detail();
        }
    }

    // seen: what is to be found at places that code could have exchanged.
    static Layers make_layers(const std::map<fs::path, detail::HeldNames>& held,
                              const std::map<fs::path, struct stat>& seen, const Layered& bases,
                              const std::optional<Identity>& identity) {
        Layers layers;
        if (held.empty()) return layers;
        std::string description;
        for (const auto& [place, names] : held) {
            const auto known = seen.find(place);
            layers.mounted.emplace_back(
                place, known == seen.end() ? nullptr : &known->second, names, bases.bases.at(place),
                identity ? identity->user : ::geteuid(), identity ? identity->group : ::getegid());
            description += layers.mounted.back().description();
        }
        layers.description.reset(::memfd_create("ipybox-layers", MFD_CLOEXEC));
        if (!layers.description)
            throw Error(errc::io_error, "cannot describe overlays: " + errno_text());
        detail::write_all(layers.description.get(), description, "a description of overlays");
        std::tie(layers.control, layers.launcher_control) =
            sandbox_kit::make_socket_pair(SOCK_STREAM);
        return layers;
    }

    // Takes those out of the channels that are not bound into the sandbox but go over two pipes.
    std::vector<MuxChannel> take_relayed(const SandboxPolicy& policy, bool unix_sockets,
                                         std::vector<Channel>& channels) const {
        std::vector<MuxChannel> relayed;
        for (const auto& channel : channels) {
            if (channel.name.empty() ||
                channel.name.find_first_not_of("abcdefghijklmnopqrstuvwxyz_") != std::string::npos)
                throw Error(errc::bad_argument, "\"" + channel.name + "\" cannot name a channel");
            if (!unix_sockets && channel.kind != Channel::Kind::directory)
                relayed.push_back(carry(channel));
            else if (channel.kind == Channel::Kind::listener)
                throw Error(errc::bad_argument,
                            "channel " + channel.name + ": use a directory and a Unix socket");
        }
        if (!unix_sockets)
            std::erase_if(channels, [](const auto& channel) {
                return channel.kind != Channel::Kind::directory;
            });
        if (!relayed.empty() && policy.network.mode == NetworkPolicy::Mode::full)
            refuse(
                "what sees the whole disk is reached through ports of a network of its own: "
                "restrict the "
                "network, or name directories instead of \"/\"");
        return relayed;
    }

    static void require_startable(const SandboxPolicy& policy, const std::vector<std::string>& argv,
                                  const std::vector<Channel>& channels, const Role& role) {
        if (policy.network.mode == NetworkPolicy::Mode::allow_list &&
            std::none_of(channels.begin(), channels.end(), is_proxy))
            throw Error(errc::bad_argument,
                        "a list of allowed hosts needs the channel \"network\" to their proxy");
        if (role.kind != Role::Kind::open && (argv.empty() || !argv[0].starts_with('/')))
            throw Error(errc::bad_argument, "a sandboxed program is started by its absolute path");
    }

    View view_of(const SandboxPolicy& policy, bool unix_sockets, const Layered& layered) const {
        auto seen = policy;
        if (without("view")) seen.readable.emplace_back("/");
        if (without("protect")) seen.write_protected.clear();
        if (without("hidden")) seen.hidden.clear();
        std::set<fs::path> places;
        for (const auto& [place, base] : layered.bases) places.insert(place);
        return View(seen, unix_sockets && !without("view"), std::move(places));
    }

    std::optional<sandbox_kit::ProjectQuota> quota_of(const SandboxPolicy& policy) const {
        std::optional<sandbox_kit::ProjectQuota> quota;
        if (policy.limits.workspace_size && !without("limits")) {
            std::vector<fs::path> limited;
            for (const auto& path : policy.writable) limited.push_back(absolute_path(path));
            quota.emplace(limited, *policy.limits.workspace_size);
        }
        return quota;
    }

    std::optional<Cgroup> join_group(const SandboxPolicy& policy, SpawnRequest& request) const {
        std::optional<Cgroup> group;
        if (policy.limits.memory_total && !without("limits")) {
            group.emplace(*policy.limits.memory_total);
            request.cgroup = group->entrance();
        }
        return group;
    }

    template <class Environment, class Relayed>
    std::string relay_beginning(const SandboxPolicy& policy, std::vector<std::string> argv,
                                Environment env, const Relayed& relayed) const {
        RelayCommand told;
        told.argv = {launcher_path};
        if (denies_programs(policy)) told.argv.emplace_back("--no-exec");
        if (!without("limits")) launcher::add_rlimits(told.argv, policy.limits);
        told.argv.emplace_back("--");
        std::move(argv.begin(), argv.end(), std::back_inserter(told.argv));
        told.env = std::move(env);
        told.kept_env = {"PWD"};
        if (!policy.cwd.empty()) told.cwd = policy.cwd;
        told.no_unix_sockets = !without("unix") && !without("seccomp");
        return relay_start(told, relayed);
    }

    static void require_relayable(const SandboxPolicy& policy, const Role& role) {
        if (role.kind != Role::Kind::command)
            refuse("a sandbox that is reached over a relay cannot be entered");
        if (policy.programs == Programs::ask)
            refuse(
                "where the whole disk is in view nobody starts programs for the code: name "
                "directories instead of \"/\", or leave out --approve-programs");
    }

    SpawnRequest request_for(const SandboxPolicy& policy, Stdio stdio) const {
        SpawnRequest request;
        request.stdio = stdio;
        request.identity = sandbox_kit::guest_identity(policy, user_);
        // Unlike 0, 1 also keeps the machine's own handler of core dumps from running.
        request.rlimits = {{RLIMIT_CORE, 1}};
        request.wall_seconds = policy.limits.wall_seconds;
        // Only as far as bwrap: a directory it may not be able to enter comes later, inside.
        request.cwd = "/";
        return request;
    }

    // The launcher gets a socket at this number, and is told by a flag.
    static void hand_over(SpawnRequest& request, std::vector<std::string>& command, int socket,
                          int number, const char* flag) {
        request.fds.emplace_back(socket, number);
        command.emplace_back(flag);
        command.push_back(std::to_string(number));
    }

    // What whoever enters does to itself, besides the words that are there, and has.
    void add_entering(OpenSandbox& opened, const SandboxPolicy& policy,
                      std::map<std::string, std::string> env, const Role& role, int cgroup) const {
        if (!without("limits")) launcher::add_rlimits(opened.words, policy.limits);
        if (asks_programs(policy, role)) opened.words.emplace_back("--no-exec");
        opened.words.emplace_back("--chdir");
        opened.words.push_back(policy.cwd.empty() ? "/" : policy.cwd.string());
        opened.filters = filters(unix_sockets(policy), role);
        opened.env = std::move(env);
        if (cgroup >= 0) opened.cgroup.reset(::fcntl(cgroup, F_DUPFD_CLOEXEC, 3));
    }

    // take: asked for one that is there already when all is known of the one to be opened.
    Started start(const SandboxPolicy& policy, std::vector<std::string> argv,
                  std::vector<Channel> channels, Stdio stdio, const Layered& layered,
                  const Role& role = Role(),
                  const std::function<std::optional<Started>(const std::string&)>& take = nullptr) {
        const bool opened = role.kind == Role::Kind::open, asks = asks_programs(policy, role);
        require_startable(policy, argv, channels, role);
        const bool unix_sockets = this->unix_sockets(policy);
        auto relayed = take_relayed(policy, unix_sockets, channels);
        if (!relayed.empty()) require_relayable(policy, role);
        refuse_written(bwrap_);
        auto request = request_for(policy, stdio);

        View view = view_of(policy, unix_sockets, layered);
        auto wanted = view.accesses();
        for (const auto& channel : channels)
            wanted.push_back(
                {absolute_path(channel.host_path), is_read_only(channel) ? F_OK : R_OK | W_OK});
        check_reach(request.identity, wanted);

        auto quota = quota_of(policy);
        auto group = join_group(policy, request);

        Options options;
        auto env = environment(policy);
        add_namespaces(options, policy, role);
        add_system(options, policy, view.whole_disk());
        add_view(options, policy, view);
        for (const auto& channel : channels)
            options.add(is_read_only(channel) ? "--ro-bind" : "--bind",
                        absolute_path(channel.host_path), guest_address(policy, channel));
        Started started;
        auto& confining = started.opened.words;
        confining = confining_words(policy, view, channels);
        // Who enters needs all of its system calls until then.
        auto command = launcher(options, policy, view, channels, role);
        std::optional<RelayPipes> pipes;
        std::unique_ptr<launcher::InitSocket> init;
        UniqueFd questions, asked, door;
        if (asks) {
            std::tie(questions, asked) = sandbox_kit::make_socket_pair(SOCK_STREAM);
            hand_over(request, command, asked.get(), question_socket, "--ask-programs");
        }
        if (asks && opened) {
            std::tie(started.opened.door, door) = sandbox_kit::make_socket_pair(SOCK_STREAM);
            command.emplace_back("--programs-door");
            command.push_back(options.keep(std::move(door)));
            started.opened.launcher.reset(::fcntl(launcher::launcher_file(), F_DUPFD_CLOEXEC, 3));
        }
        if (role.kind != Role::Kind::command) {
            init = std::make_unique<launcher::InitSocket>(executor_);
            hand_over(request, command, init->theirs(), init_socket, "--init");
        }
        // A process in a domain of Landlock's cannot enter another. Programs are started by one.
        if (role.kind == Role::Kind::command || asks)
            std::copy(confining.begin(), confining.end(), std::back_inserter(command));
        else if (denies_programs(policy))
            command.emplace_back("--no-exec");
        if (opened) {
            if (asks) {  // with what the kernel will have, requests are compared
                for (const auto& [name, value] : env) options.add("--setenv", name, value);
                if (!without("limits")) launcher::add_rlimits(command, policy.limits);
            }
            add_entering(started.opened, policy, std::move(env), role, request.cgroup);
            command.emplace_back("--");
        } else if (relayed.empty()) {
            if (role.control >= 0) request.fds.emplace_back(role.control, 3);
            for (const auto& [name, value] : env) options.add("--setenv", name, value);
            if (!without("limits")) launcher::add_rlimits(command, policy.limits);
            command.emplace_back("--");
            std::move(argv.begin(), argv.end(), std::back_inserter(command));
        } else {
            for (const auto* word : {"--relay", "7:8", "--"}) command.emplace_back(word);
            pipes.emplace();
            request.fds = {{pipes->guest_input.get(), 7}, {pipes->guest_output.get(), 8}};
        }
        options.add("--remount-ro", "/dev");
        options.add("--remount-ro", view.whole_disk() ? "/run" : "/");
        options.add("--chdir", policy.cwd.empty() || opened ? fs::path("/") : policy.cwd);
        options.fill(request, bwrap_, std::move(command));
        const Disk disk{written(policy, view, channels), linked(view)};
        if (take)
            if (auto ready = take(view_key(request, options, view, layered, disk, role.pen)))
                return std::move(*ready);
        auto layers = make_layers(view.layers(), view.inner_mounts(), layered, request.identity);
        start_by_launcher(request, policy.limits, layers, disk, role.pen, pins_later(policy, role));
        std::string first;
        if (pipes) first = relay_beginning(policy, std::move(argv), std::move(env), relayed);
        started.process = std::make_unique<Confined>(
            executor_, std::move(request), view.take_placeholders(), std::move(group),
            std::move(quota), std::move(layers), std::move(init),
            asks ? depth_of_kernel : depth_of_command, own_filters(policy, role));
        if (questions && policy.on_questions) (*policy.on_questions)(std::move(questions));
        if (pipes)
            started.process->relay(executor_,
                                   asio::writable_pipe(executor_, pipes->input.release()),
                                   asio::readable_pipe(executor_, pipes->output.release()),
                                   std::move(relayed), std::move(first));
        return started;
    }

    // Between us and the relay: the guest's standard streams are its own.
    struct RelayPipes {
        RelayPipes() {
            std::tie(guest_input, input) = sandbox_kit::make_pipe();
            std::tie(output, guest_output) = sandbox_kit::make_pipe();
            sandbox_kit::outlive_broken_pipes();
        }
        UniqueFd guest_input, input, output, guest_output;
    };

    MuxChannel carry(const Channel& channel) const {
        auto carried = ports_.carry(channel);
        if (is_proxy(channel)) carried.port = proxy_port;
        return carried;
    }

    // In the order of adding them. Made when first needed, once in a process: that takes longer
    // than anything else of the host's before a start.
    // rooms: they let the launcher make what it needs, and add those without afterwards.
    const std::vector<std::string>& filters(bool unix_sockets, const Role& role,
                                            bool rooms = false) const {
        const bool unix_too = unix_sockets || without("unix");
        auto allowed = allow_calls_;
        if (role.kind == Role::Kind::pen) allowed.emplace_back("setns");
        if (rooms)
            for (const auto* call : {"mount", "unshare"}) allowed.emplace_back(call);
        std::string key;
        for (const bool yes : {unix_too, without("calls"), without("seccomp")})
            key += yes ? '1' : '0';
        for (const auto& call : allowed) key += " " + call;
        static std::mutex mutex;
        static std::map<std::string, std::vector<std::string>> made;
        const std::lock_guard lock(mutex);
        auto& list = made[key];
        if (list.empty()) {
            if (!without("calls") && !without("seccomp"))
                list.push_back(launcher::allowing_filter(allowed));
            if (!without("seccomp")) list.push_back(launcher::denying_filter(unix_too));
        }
        return list;
    }

    static bool denies_programs(const SandboxPolicy& policy) {
        return policy.programs == Programs::deny && !without("programs");
    }
    // The kernel is in a room of its own.
    static bool asks_programs(const SandboxPolicy& policy, const Role& role) {
        return policy.programs == Programs::ask && role.kind != Role::Kind::pen &&
               !without("programs");
    }
    // bwrap reads the list of all mounts for each of its own: it is spared those of names where
    // nobody is inside yet when it is done. A room is a copy of what was mounted before.
    static bool pins_later(const SandboxPolicy& policy, const Role& role) {
        return role.kind == Role::Kind::open && !asks_programs(policy, role);
    }
    // Those that a command has and the sandbox's first process has not.
    unsigned own_filters(const SandboxPolicy& policy, const Role& role) const {
        if (policy.programs == Programs::allow || role.kind != Role::Kind::command) return 0;
        const bool twice = kernel_log_ || asks_programs(policy, role);
        const auto logged = twice ? filters(unix_sockets(policy), role).size() : 0;
        return static_cast<unsigned>(logged) + 1;
    }

    static bool is_read_only(const Channel& channel) {
        return channel.access == Channel::Access::read;
    }
    static bool is_proxy(const Channel& channel) {
        return channel.name == network_channel && channel.kind == Channel::Kind::socket;
    }

    // What runs first inside, and sees to it that everything is as the host looked at it; see
    // launcher/main.cpp.
    std::vector<std::string> launcher(Options& options, const SandboxPolicy& policy,
                                      const View& view, const std::vector<Channel>& channels,
                                      const Role& role) const {
        std::vector<std::string> command;
        const auto add = [&command](const auto&... words) { (command.emplace_back(words), ...); };
        if (role.kind == Role::Kind::command) {
            add(launcher_path);
            options.file(launcher_path, launcher::launcher_image(), "0555");
        } else {  // nothing else inside has a use for it, and a copy takes its time
            UniqueFd image(::fcntl(launcher::launcher_file(), F_DUPFD_CLOEXEC, 3));
            add("/proc/self/fd/" + options.keep(std::move(image)));
        }
        const bool rooms = asks_programs(policy, role);
        if (role.kind == Role::Kind::pen || rooms)
            options.file(enter_path, launcher::enter_image(), "0555");
        // From bwrap, so that its init process has them as well; once more where refusals are
        // logged.
        for (const auto& filter : filters(unix_sockets(policy), role, rooms))
            options.add("--add-seccomp-fd", options.data(filter));
        if (rooms || (kernel_log_ && role.kind == Role::Kind::command))
            for (const auto& filter : filters(unix_sockets(policy), role))
                add("--seccomp", options.data(filter));
        if (policy.network.mode == NetworkPolicy::Mode::allow_list)
            for (const auto& channel : channels)
                if (is_proxy(channel))
                    add("--forward",
                        std::to_string(proxy_port) + "=" + guest_address(policy, channel));
        for (const auto& [path, found] : view.inner_mounts()) {
            const auto rule = view.kind(path);
            if (rule == View::Kind::hidden || rule == View::Kind::scratch) continue;
            // An overlay has numbers of its own; what it is made of was compared when it was made.
            if (view.in_layer(path))
                add("--mounted", path.string());
            else
                add("--same", detail::file_id(found) + ":" + path.string());
        }
        if (trials_.launcher_namespaces)
            for (const auto& path : view.links()) add("--mounted", path.string());
        return command;
    }

    // The rights that the code's first process gives up.
    std::vector<std::string> confining_words(const SandboxPolicy& policy, const View& view,
                                             const std::vector<Channel>& channels) const {
        std::vector<std::string> words;
        const auto add = [&words](const auto&... more) { (words.emplace_back(more), ...); };
        if (kernel_log_) add("--log");
        if (denies_programs(policy)) add("--no-exec");
        if (without("landlock")) return words;
        add("--landlock");
        for (const auto& [path, rule] : view.mounts())
            if (rule == View::Kind::writable || rule == View::Kind::scratch)
                add("--writable", path);
        add("--writable", "/dev/shm");
        for (const auto& channel : channels)
            if (!is_read_only(channel))
                add(channel.access == Channel::Access::sockets ? "--sockets" : "--writable",
                    guest_address(policy, channel));
        return words;
    }

    void add_namespaces(Options& options, const SandboxPolicy& policy, const Role& role) const {
        options.add("--unshare-user", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try",
                    "--uid", "1000", "--gid", "1000", "--hostname", "sandbox", "--cap-drop", "ALL",
                    "--die-with-parent", "--new-session", "--clearenv");
        if (!without("pid")) options.add("--unshare-pid");
        if (role.kind != Role::Kind::command) options.add("--as-pid-1");
        // For a namespace within; see launcher/room.hpp.
        if (asks_programs(policy, role))
            options.add("--cap-add", "CAP_SYS_ADMIN", "--cap-add", "CAP_SETPCAP");
        // Those of who enters lie within the pen's.
        if (trials_.userns_can_be_disabled && !without("pid") && role.kind != Role::Kind::pen)
            options.add("--disable-userns");
        if (policy.network.mode != NetworkPolicy::Mode::full && !without("network"))
            options.add("--unshare-net");
    }

    // What the command gets.
    static std::map<std::string, std::string> environment(const SandboxPolicy& policy) {
        auto env = policy.env;
        if (policy.network.mode == NetworkPolicy::Mode::allow_list) {
            for (const char* name : {"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"}) {
                env.try_emplace(name, proxy_url);
                std::string small = name;
                for (char& c : small) c = static_cast<char>(c | (c == '_' ? 0 : 0x20));
                env.try_emplace(small, proxy_url);
            }
            // Servers inside are not the proxy's business.
            for (const char* name : {"NO_PROXY", "no_proxy"})
                env.try_emplace(name, "localhost,127.0.0.1,::1");
        }
        return env;
    }

    // What every program needs, whatever the policy names.
    static void add_system(Options& options, const SandboxPolicy& policy, bool whole_disk) {
        if (whole_disk) {
            // A read-only mount does not keep anyone from connecting to a socket of the host.
            options.add("--ro-bind", "/", "/", "--tmpfs", "/run");
        } else {
            options.add("--ro-bind", "/usr", "/usr");
            for (const auto* directory : {"/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"}) {
                const auto status = fs::symlink_status(directory);
                if (fs::is_symlink(status))
                    options.add("--symlink", fs::read_symlink(directory), directory);
                else if (fs::exists(status))
                    options.add("--ro-bind", directory, directory);
            }
            for (const auto* path : {"/etc/ld.so.cache", "/etc/alternatives", "/etc/ssl/certs",
                                     "/etc/pki/tls/certs", "/etc/localtime", "/etc/fonts"})
                options.add("--ro-bind-try", path, path);
            // What the kernel's variables name: links lead there, on some distributions.
            if (const auto bundle = net::certificate_bundle();
                bundle && !within(*bundle, "/etc/ssl/certs"))
                options.add("--ro-bind-try", *bundle, *bundle);
        }
        // Nothing can be made on the whole disk to mount over.
        const auto file = [&](const char* path, const std::string& text) {
            if (!whole_disk)
                options.file(path, text);
            else if (fs::exists(path))
                options.file_over(path, text);
        };
        const auto home = policy.env.find("HOME");
        file("/etc/passwd",
             "user:x:1000:1000::" + (home != policy.env.end() ? home->second : "/") + ":/bin/sh\n");
        file("/etc/group", "user:x:1000:\n");
        if (policy.network.mode != NetworkPolicy::Mode::full) {
            file("/etc/hosts", "127.0.0.1 localhost sandbox\n::1 localhost\n");
            file("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n");
        } else {
            for (const fs::path path : {"/etc/hosts", "/etc/resolv.conf", "/etc/nsswitch.conf",
                                        "/etc/services", "/etc/gai.conf"}) {
                std::error_code error;
                const auto real = fs::canonical(path, error);
                if (error) continue;
                // The resolver's file is often a link into /run, which is hidden.
                if (!whole_disk)
                    options.add("--ro-bind", real, path);
                else if (within(real, "/run"))
                    options.add("--ro-bind", real, real);
            }
        }
        options.add("--proc", "/proc", "--dev", "/dev");
        add_scratch(options, policy, "/dev/shm", 0);
    }

    // number: 0 is /dev/shm, the others are counted from 1.
    static void add_scratch(Options& options, const SandboxPolicy& policy, const fs::path& path,
                            int number) {
        if (policy.limits.scratch_inodes && !without("limits"))
            return options.add("--bind", "/sys/" + std::to_string(number), path);
        if (policy.limits.scratch_size && !without("limits"))
            options.add("--size", std::to_string(*policy.limits.scratch_size));
        options.add("--perms", path.parent_path() == "/home" ? "0700" : "1777", "--tmpfs", path);
    }

    // Where bwrap may write on the disk, as DEVICE:INODE: code around a place could exchange it for
    // a link, so that none of the policy lies in another here.
    static std::map<fs::path, std::string> written(const SandboxPolicy& policy, const View& view,
                                                   const std::vector<Channel>& channels) {
        std::vector<fs::path> roots;
        for (const auto& path : policy.writable) roots.push_back(absolute_path(path));
        std::map<fs::path, std::string> places;
        const auto add = [&](const fs::path& path) {
            struct stat found{};
            if (const auto seen = view.inner_mounts().find(path); seen != view.inner_mounts().end())
                found = seen->second;
            else if (::stat(path.c_str(), &found) != 0)
                throw Error(errc::io_error,
                            "cannot look at " + path.string() + ": " + errno_text());
            places[path] = detail::file_id(found);
        };
        for (const auto& root : roots)
            if (view.kind(root) == View::Kind::writable && !view.in_layer(root))
                add(*detail::outermost_around(root, roots));
        for (const auto& channel : channels)
            if (!is_read_only(channel)) add(absolute_path(channel.host_path));
        return places;
    }

    // Puts the guard before bwrap, and file systems for it to bind, made as launcher/scratch.cpp
    // tells.
    void start_by_launcher(SpawnRequest& request, const Limits& limits, const Layers& layers,
                           const Disk& disk, const Pen* pen, bool pins_later = false) const {
        constexpr int description = 5, control = 6;  // below what Options hands over
        std::vector<std::string> words;
        const bool scratch = limits.scratch_inodes && !without("limits");
        if (trials_.launcher_namespaces) {
            words = {"scratch"};
            if (layers.control) {
                if (pins_later) words.emplace_back("--pin-later");
                for (auto word : {std::string("--layers"), std::to_string(description),
                                  std::to_string(control)})
                    words.push_back(std::move(word));
                request.fds.emplace_back(layers.description.get(), description);
                request.fds.emplace_back(layers.launcher_control.get(), control);
            }
            for (const auto& [path, identity] : disk.writable)
                for (auto word : {std::string("--writable"), path.string(), identity})
                    words.push_back(std::move(word));
            for (const auto& path : disk.covered)
                for (auto word : {std::string("--cover"), path.string()})
                    words.push_back(std::move(word));
            std::string mounts = "mode=1777";
            if (scratch) mounts += ",nr_inodes=" + std::to_string(*limits.scratch_inodes);
            if (scratch && limits.scratch_size)
                mounts += ",size=" + std::to_string(*limits.scratch_size);
            for (std::string word :
                 {mounts, std::to_string(scratch ? scratch_places : 0), std::string("--")})
                words.push_back(std::move(word));
        }
        if (pen) {
            constexpr int user = 7, pid = 8;
            request.fds.emplace_back(pen->user_namespace.get(), user);
            request.fds.emplace_back(pen->pid_namespace.get(), pid);
            const std::string entering[] = {"--pen", std::to_string(user), std::to_string(pid)};
            words.insert(words.begin(), std::begin(entering), std::end(entering));
        }
        launcher::start_by_guard(request, std::move(words));
    }

    // Where bwrap finds what the guest is to see at a path.
    static fs::path source(const View& view, const fs::path& path) {
        const auto layer = view.in_layer(path);
        return layer ? fs::path("/sys/layer" + std::to_string(layer->first)) / layer->second : path;
    }

    static std::set<fs::path> linked(const View& view) {
        std::set<fs::path> links;
        for (const auto& path : view.links()) links.insert(source(view, path));
        return links;
    }

    static void add_view(Options& options, const SandboxPolicy& policy, const View& view) {
        std::vector<fs::path> frozen;
        int scratch = 0;
        for (const auto& [path, rule] : view.mounts()) {
            switch (view.kind(path)) {
                case View::Kind::scratch:
                    add_scratch(options, policy, path, ++scratch);
                    break;
                case View::Kind::writable:
                    options.add("--bind", source(view, path), path);
                    break;
                case View::Kind::readable:
                    if (path == "/") break;  // came first
                    [[fallthrough]];
                case View::Kind::write_protected:
                    // The launcher pins what a layer holds.
                    if (!view.holds_in_layer(path))
                        options.add("--ro-bind", source(view, path), path);
                    break;
                case View::Kind::hidden:
                    if (!fs::is_directory(fs::symlink_status(path))) {
                        // Devices cannot be opened on bwrap's mounts: EACCES, not an empty file.
                        options.add("--ro-bind", "/dev/null", path);
                    } else {
                        options.add("--perms", view.holds_below(path) ? "0111" : "0000", "--tmpfs",
                                    path);
                        frozen.push_back(path);
                    }
            }
        }
        for (const auto& path : frozen) options.add("--remount-ro", path);
    }

    std::unique_ptr<Confined> start_trivial(Programs programs) {
        SandboxPolicy nothing;
        nothing.programs = programs;
        if (trials_.launcher_namespaces) nothing.limits.scratch_inodes = 64;
        return start(nothing, {"/usr/bin/true"}, {}, Stdio::tail, Layered()).process;
    }

    // Why not, found by trying; empty: they can.
    awaitable<std::string> try_programs(Programs wanted) {
        const auto able = co_await probe();
        if (!able.available) co_return able.problem;
        if (!sandbox_kit::count_filters(::getpid()))
            co_return "Linux does not tell how many filters a process has (5.9 does)";
        std::string said;
        try {
            const auto trial = start_trivial(wanted);
            const auto limit = deadline_after(std::chrono::seconds(10));
            const auto status = co_await trial->wait(limit);
            if (status && status->code == 0) co_return std::string();
            said = trial->output_tail();
        } catch (const Error& error) {
            said = error.detail();
        }
        for (const std::string_view flag : {"--ask-programs: ", "--no-exec: "})
            if (const auto at = said.find(flag); at != std::string::npos)
                said = said.substr(at + flag.size(), said.find('\n', at) - at - flag.size());
        co_return said.empty() ? "no answer in 10 s" : said;
    }

    awaitable<Capabilities> try_out() {
        Capabilities found;
        if (bwrap_.empty()) {
            found.problem =
                missing_ + " is not installed: " + sandbox_kit::install_command("bubblewrap");
            co_return found;
        }
        std::string said;
        for (int attempt = 0; attempt < 5 && !trials_.works; ++attempt) {
            std::optional<ExitStatus> status;
            try {
                const auto trial = start_trivial(Programs::allow);
                const auto limit = deadline_after(std::chrono::seconds(10));
                status = co_await trial->wait(limit);
                said = trial->output_tail();
            } catch (const Error& error) {
                said = error.detail();
            }
            trials_.works = status && status->code == 0;
            if (trials_.works) break;
            if (said.find("--disable-userns") != std::string::npos)
                // Before 0.8. The filter alone then keeps the guest from making user namespaces.
                trials_.userns_can_be_disabled = false;
            else if (trials_.launcher_namespaces)
                // AppArmor may let bwrap make user namespaces, but not the launcher.
                trials_.launcher_namespaces = false;
            else
                break;
        }
        trials_.keep(settings_);
        found.available = trials_.works;
        if (!found.available) {
            found.problem = diagnosis(said);
            co_return found;
        }
        found.filesystem = found.network_none = found.process_isolation = found.pinned_protection =
            true;
        found.wall_time = found.scratch_size = true;
        found.network_allow_list = found.limits_per_process = true;
        const auto limit = [&found](bool Capabilities::* can, const char* field,
                                    std::string problem) {
            found.*can = problem.empty();
            if (!problem.empty()) found.reasons[field] = std::move(problem);
        };
        limit(&Capabilities::scratch_inodes, "scratch_inodes",
              trials_.launcher_namespaces ? "" : "only bwrap may make user namespaces");
        limit(&Capabilities::memory_total, "memory_total", Cgroup::problem());
        // Whether the workspace's file system has quotas is found out when a policy asks for one.
        limit(&Capabilities::workspace_size, "workspace_size",
              sandbox_kit::ProjectQuota::machine_problem());
        co_return found;
    }

    // Why a trivial sandbox did not run, and what to do about it.
    std::string diagnosis(std::string said) const {
        while (!said.empty() && said.back() == '\n') said.pop_back();
        const std::string why =
            "bubblewrap does not work here (" + (said.empty() ? "no answer in 10 s" : said) + "): ";
        if (setting("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1")
            return why + "AppArmor blocks unprivileged user namespaces; allow them for " +
                   bwrap_.string() +
                   " by a profile: apt-get install apparmor-profiles, copy bwrap-userns-restrict "
                   "from /usr/share/apparmor/extra-profiles to /etc/apparmor.d and run "
                   "apparmor_parser --replace on it; or for all programs by "
                   "sysctl kernel.apparmor_restrict_unprivileged_userns=0";
        if (setting("/proc/sys/kernel/unprivileged_userns_clone") == "0")
            return why +
                   "unprivileged user namespaces are off; sudo sysctl "
                   "kernel.unprivileged_userns_clone=1";
        if (setting("/proc/sys/user/max_user_namespaces") == "0")
            return why + "user namespaces are off; sudo sysctl user.max_user_namespaces=10000";
        if (said.find("nknown option") != std::string::npos)
            return why + "install bubblewrap 0.6 or newer";
        return why +
               "user namespaces must be permitted; inside a container, start it with a seccomp "
               "profile that allows them (docker run --security-opt seccomp=unconfined "
               "--security-opt apparmor=unconfined --security-opt systempaths=unconfined)";
    }

    static std::string setting(const char* path) {
        auto text = sandbox_kit::read_proc(path);
        while (!text.empty() && text.back() == '\n') text.pop_back();
        return text;
    }

    static constexpr int scratch_places = 3;  // /dev/shm, /tmp and the home directory

    asio::any_io_executor executor_;
    std::vector<std::string> allow_calls_;
    GuestPorts ports_;
    fs::path bwrap_;       // empty: not found
    std::string missing_;  // what was looked for
    std::optional<uid_t> user_;
    bool kernel_log_ = false;
    bool overlay_ = true;  // absent names are held by overlays where that can be
    std::string settings_;
    Trials trials_;
    std::shared_ptr<Next> next_ = std::make_shared<Next>();
    std::optional<Capabilities> probed_;
};

constexpr Plugin self{
    .name = IPYBOX_STRING(IPYBOX_BUBBLEWRAP),
    .summary = "Linux namespaces, a minimal view of the disk and a system call filter, by bwrap",
    .config_schema = R"({
        "type": "object",
        "properties": {
            "bwrap": {"type": "string", "minLength": 1,
                      "description": "bubblewrap's program: a path, or a name looked up in PATH"},
            "user": {"type": "integer", "minimum": 1, "maximum": 4294967294,
                     "description": "uid that a sandbox started by root drops to"},
            "private_networks": {"type": "array",
                     "items": {"type": "string", "pattern": "^[0-9a-fA-F.:]+/[0-9]{1,3}$"},
                     "description": "private networks, as 10.1.0.0/16, that allowed hosts may have their addresses in; none without"},
            "allow_calls": {"type": "array", "items": {"type": "string", "pattern": "^[a-z0-9_]+$"},
                     "description": "system calls to allow besides those that ordinary programs make; see docs/sandboxing.md"},
            "absent_names": {"enum": ["overlay", "placeholders"], "default": "overlay",
                     "description": "how names that the project does not have are kept from being made: by an overlay that only the code sees, where that can be, or by files in their place; see docs/sandboxing.md"},
            "kernel_log": {"type": "boolean", "default": false,
                     "description": "what the system call filter and Landlock refuse is told to the machine's audit log"}
        },
        "additionalProperties": false})",
    .make =
        Factory<Sandbox>(+[](Host& host, const json::object& config) -> std::unique_ptr<Sandbox> {
            return std::make_unique<Bubblewrap>(host, config);
        }),
};
}  // namespace

IPYBOX_PLUGIN(IPYBOX_BUBBLEWRAP, self)
