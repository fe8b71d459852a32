#include "zygote.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <cerrno>
#include <cstring>
#include <fork_request.hpp>
#include <fstream>
#include <ipybox/detail/beneath.hpp>
#include <ipybox/detail/json_members.hpp>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/detail/json_text.hpp>
#include <ipybox/detail/received_files.hpp>
#include <ipybox/sandbox_kit/kernel_policy.hpp>
#include <launcher_init.hpp>
#include <sstream>
#include <utility>

namespace ipybox::forked {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

using launcher::ForkAnswer;

// From the request for a kernel to its existence.
constexpr Duration fork_patience = 5s;
// An answer of the zygote's, in bytes.
constexpr std::size_t largest_answer = std::size_t{1} << 16;

// Libraries keep files open from their first use on: not by the numbers that a kernel needs.
constexpr const char* program =
    "import os, sys; low = [os.dup(3) for _ in range(12)]; sys.path = [p for p in sys.path if p]; "
    "from ipybox_kernel.zygote import main; main(low)";

[[noreturn]] void fail_io(const char* what) {
    throw Error(errc::io_error, std::string(what) + ": " + std::strerror(errno));
}

UniqueFd memory_file(std::string_view text) {
    UniqueFd file(::memfd_create("ipybox", MFD_CLOEXEC));
    if (!file) fail_io("cannot make a file in memory");
    detail::write_all(file.get(), text, "what a kernel is forked with");
    return file;
}

std::uint64_t number_in(const json::object& object, std::string_view name) {
    const auto* value = object.if_contains(name);
    return value != nullptr && value->is_int64() && value->get_int64() >= 0
               ? static_cast<std::uint64_t>(value->get_int64())
               : 0;
}

std::vector<std::string> texts_in(const json::object& object, std::string_view name) {
    std::vector<std::string> found;
    const auto* list = object.if_contains(name);
    if (list == nullptr || !list->is_array()) return found;
    for (const auto& value : list->get_array())
        if (value.is_string()) found.push_back(detail::repair_utf8(value.get_string()));
    return found;
}

// The package of ipybox once more, because the session's own goes with the session.
void copy_library(const fs::path& from, const detail::PrivateDirectory& to) {
    const auto package = to.path() / "ipybox_kernel";
    fs::create_directory(package);
    for (const auto& path : {to.path(), package}) fs::permissions(path, fs::perms(0755));
    const UniqueFd handle = detail::open_directory(package);
    for (const auto& entry : fs::directory_iterator(from / "ipybox_kernel")) {
        if (entry.path().extension() != ".py") continue;
        const auto name = entry.path().filename().string();
        if (::linkat(AT_FDCWD, entry.path().c_str(), handle.get(), name.c_str(), 0) == 0) continue;
        std::ifstream file(entry.path(), std::ios::binary);
        std::ostringstream text;
        text << file.rdbuf();
        detail::write_readable_file(handle.get(), name, text.str());
    }
}

}  // namespace

Zygote::Zygote(asio::any_io_executor executor, Logger logger)
    : executor_(executor), logger_(std::move(logger)), control_(executor), changed_(executor) {}

Zygote::~Zygote() {
    if (pen_.process) pen_.process->kill_tree();
}

awaitable<void> Zygote::start(Sandbox& sandbox, const KernelSpec& spec,
                              const std::vector<std::string>& preload) {
    const auto self = shared_from_this();
    SandboxPolicy policy;
    policy.readable = spec.interpreter;
    policy.cwd = "/";
    policy.user = spec.policy.user;
    const auto able = co_await sandbox.probe();
    if (able.scratch_size) policy.limits.scratch_size = std::uint64_t{64} << 20;
    if (able.scratch_inodes) policy.limits.scratch_inodes = 4096;
    const auto guest = sandbox.guest_user(spec.policy);
    policy.user = guest;
    Channel library;
    for (const auto& channel : spec.channels)
        if (channel.name == "lib") library = channel;
    library_.emplace(::geteuid(), guest);
    copy_library(library.host_path, *library_);
    library.host_path = library_->path();
    policy.env = {{"HOME", "/home/user"},
                  {"LANG", "C.UTF-8"},
                  {"PATH", "/usr/local/bin:/usr/bin:/bin"},
                  {"PYTHONPATH", sandbox.guest_address(spec.policy, library)},
                  {"TERM", "dumb"},
                  {"NO_COLOR", "1"},
                  // A second thread could not be forked.
                  {"OMP_NUM_THREADS", "1"},
                  {"OPENBLAS_NUM_THREADS", "1"},
                  // Which a kernel has later spin for a fraction of a millisecond, not for many.
                  {"OPENBLAS_THREAD_TIMEOUT", "20"},
                  {"MKL_NUM_THREADS", "1"}};
    auto [ours, theirs] = sandbox_kit::make_socket_pair(SOCK_SEQPACKET);
    ::fcntl(ours.get(), F_SETFL, O_NONBLOCK);
    control_.assign(ours.release());
    std::string modules;
    for (const auto& name : preload) modules += (modules.empty() ? "" : ",") + name;
    std::vector<std::string> argv = {spec.python.string(), "-c", program, "/run/ipybox/enter.so",
                                     modules};
    std::vector<Channel> channels;
    channels.push_back(std::move(library));
    pen_ = co_await sandbox.make_pen(std::move(policy), std::move(argv), std::move(channels),
                                     theirs.get());
    theirs.reset();
    listen();
}

awaitable<void> Zygote::settle(Clock::time_point deadline) {
    const auto self = shared_from_this();
    while (state_ == State::starting && Clock::now() < deadline) co_await changed_.wait(deadline);
}

pid_t Zygote::pid() const { return process_ ? launcher::number_of(process_) : -1; }

// The first process of the pen has one child of its own: it alone is not ours to collect.
void Zygote::find_process() {
    const auto init = launcher::number_of(pen_.init);
    for (const auto child : sandbox_kit::children_of(init)) {
        process_ = sandbox_kit::open_child(child, init);
        if (process_) return;
    }
}

void Zygote::retire(const std::string& why) {
    if (state_ == State::failed) return;
    state_ = State::failed;
    problem_ = why;
    if (!process_ && pen_.init) find_process();
    if (process_)
        sandbox_kit::send_signal(process_, SIGKILL);
    else if (pen_.process && kernels_.empty())
        pen_.process->kill_tree();
    boost::system::error_code ignored;
    control_.close(ignored);
    changed_.notify();
}

void Zygote::linger(Duration time) {
    lingers_until_ = std::max(lingers_until_, Clock::now() + time);
    if (!std::exchange(lingering_, true))
        asio::co_spawn(executor_, stay(shared_from_this()), asio::detached);
}

awaitable<void> Zygote::stay(std::shared_ptr<Zygote> self) {
    while (self->state_ != State::failed && Clock::now() < self->lingers_until_)
        co_await self->changed_.wait(self->lingers_until_);
    self->lingering_ = false;
}

// ---- requests -----------------------------------------------------------------------------------

awaitable<void> Zygote::fork(ForkRequest request, std::shared_ptr<Entered> entered) {
    const auto self = shared_from_this();
    const auto& sandbox = *request.sandbox;
    std::string words;
    for (const auto& word : sandbox.words) {
        words += word;
        words += '\0';
    }
    std::vector<UniqueFd> files;
    files.push_back(memory_file(words));
    for (const auto& filter : sandbox.filters) files.push_back(memory_file(filter));
    std::vector<int> handed = {request.link.get()};
    for (const auto& pipe : request.pipes) handed.push_back(pipe.get());
    for (const auto& file : files) handed.push_back(file.get());
    handed.push_back(sandbox.init.get());
    if (sandbox.cgroup) handed.push_back(sandbox.cgroup.get());
    if (sandbox.door)
        for (const int file : {sandbox.door.get(), request.workers[0].get(),
                               request.workers[1].get(), sandbox.launcher.get()})
            handed.push_back(file);

    const auto id = ++serial_;
    launcher::ForkRequest head{};
    head.id = id;
    head.filters = static_cast<std::uint32_t>(sandbox.filters.size());
    head.enters = 1;
    head.has_group = sandbox.cgroup ? 1 : 0;
    auto interpreter = sandbox.door ? request.interpreter : std::string();
    head.path = static_cast<std::uint32_t>(interpreter.size());
    iovec parts[] = {{&head, sizeof head}, {interpreter.data(), interpreter.size()}};
    alignas(cmsghdr) char control[CMSG_SPACE(launcher::most_descriptors * sizeof(int))] = {};
    msghdr header{};
    header.msg_iov = parts;
    header.msg_iovlen = 2;
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(handed.size() * sizeof(int));
    cmsghdr* const rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_len = CMSG_LEN(handed.size() * sizeof(int));
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    std::memcpy(CMSG_DATA(rights), handed.data(), handed.size() * sizeof(int));

    auto& pending = requests_[id];
    pending.entered = entered;
    listen();
    struct Forget {
        Zygote& zygote;
        std::uint32_t id;
        ~Forget() { zygote.requests_.erase(id); }
    } const forget{*this, id};
    const auto deadline = Clock::now() + fork_patience;
    while (::sendmsg(control_.native_handle(), &header, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
        if (errno == EINTR) continue;
        if (errno != EAGAIN || Clock::now() >= deadline) {
            retire("it takes no requests");
            throw Error(errc::kernel_start_failed, "the process that kernels are forked from " +
                                                       std::string("takes no requests"));
        }
        co_await changed_.wait(Clock::now() + 1ms);
        if (state_ != State::ready) break;
    }
    while (!pending.answered && state_ == State::ready && Clock::now() < deadline)
        co_await changed_.wait(deadline);
    if (pending.answered) {
        if (!pending.error.empty())
            throw Error(errc::sandbox_refused, "the sandbox cannot be entered: " + pending.error);
        kernels_[id] = entered;
        co_return;
    }
    if (state_ == State::ready) {
        retire("it did not answer in 5 s");
        throw Error(errc::timed_out, "the process that kernels are forked from did not answer");
    }
    throw Error(errc::kernel_start_failed,
                "the process that kernels are forked from ended: " + problem_);
}

// ---- answers ------------------------------------------------------------------------------------

void Zygote::listen() {
    if (std::exchange(listening_, true)) return;
    asio::co_spawn(executor_, read_answers(weak_from_this()), asio::detached);
}

awaitable<void> Zygote::read_answers(std::weak_ptr<Zygote> weak) {
    for (;;) {
        auto self = weak.lock();
        if (!self) co_return;
        while (self->read_answer()) {
        }
        if (!self->expects_answers()) {
            self->listening_ = false;
            co_return;
        }
        auto& control = self->control_;
        // Whoever uses it holds it; this does not, while it waits.
        self.reset();
        if (weak.expired()) co_return;
        const auto [error] =
            co_await control.async_wait(asio::posix::descriptor_base::wait_read, as_result);
        if (error) co_return;
    }
}

bool Zygote::read_answer() {
    if (state_ == State::failed) return false;
    static thread_local std::string space(largest_answer, '\0');
    UniqueFd handle[1];
    const auto count =
        detail::receive_files(control_.native_handle(), space.data(), space.size(), handle).bytes;
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (count <= 0) {
        auto said = pen_.process->output_tail();
        while (!said.empty() && said.back() == '\n') said.pop_back();
        retire(said.empty() ? "it ended" : said);
        return false;
    }
    // Packages of the interpreter run there: what comes is checked like a kernel's.
    const auto text = std::string_view(space).substr(0, static_cast<std::size_t>(count));
    if (!(state_ == State::starting ? become_ready(text) : use(text, std::move(handle[0]))))
        retire("it sent what it may not");
    return state_ != State::failed;
}

bool Zygote::become_ready(std::string_view text) {
    const auto read = detail::read_json(text, 16, std::size_t{1} << 20);
    if (!read.value.is_object()) return false;
    const auto& answer = read.value.get_object();
    const auto* good = answer.if_contains("ready");
    if (good == nullptr || !good->is_bool()) return false;
    if (!good->get_bool()) {
        culprits_ = texts_in(answer, "culprits");
        retire(detail::repair_utf8(detail::string_of(answer, "problem")));
        return true;
    }
    for (auto& name : texts_in(answer, "modules")) modules_.insert(std::move(name));
    address_space_ = number_in(answer, "address_space");
    find_process();
    filters_ = ipybox::sandbox_kit::count_filters(pid());
    if (!process_ || is_readable(process_.get())) filters_.reset();  // another's
    const auto listed = [&answer](std::string_view name) {
        std::string all;
        for (const auto& module : texts_in(answer, name)) all += (all.empty() ? "" : ", ") + module;
        return all.empty() ? "nothing" : all;
    };
    logger_(LogLevel::info, "kernels are forked from a process that has loaded " +
                                listed("preloaded") + "; not installed: " + listed("missing"));
    state_ = State::ready;
    changed_.notify();
    return true;
}

bool Zygote::use(std::string_view text, UniqueFd handle) {
    ForkAnswer answer{};
    if (text.size() < sizeof answer) return false;
    std::memcpy(&answer, text.data(), sizeof answer);
    if (answer.kind == ForkAnswer::ended) {
        const auto found = kernels_.find(answer.id);
        if (found == kernels_.end()) return true;
        const auto entered = found->second.lock();
        kernels_.erase(found);
        if (!entered) return true;
        const auto how = answer.status & 0xff;
        entered->ended(answer.code == CLD_EXITED ? ExitStatus{how, false}
                                                 : ExitStatus{128 + how, true});
        return true;
    }
    const auto found = requests_.find(answer.id);
    if (found == requests_.end()) return true;
    auto& pending = found->second;
    pending.answered = true;
    if (handle) {
        const auto number = launcher::number_of(handle);
        pending.entered->exists(std::move(handle), number);
    } else {
        pending.error = detail::repair_utf8(text.substr(sizeof answer));
        if (pending.error.empty()) pending.error = "no reason was given";
    }
    changed_.notify();
    return true;
}

}  // namespace ipybox::forked
