#pragma once
#include <ipybox/sandbox_kit/process.hpp>

#include <dirent.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <ipybox/compilation.hpp>
#include <sstream>
#include <string_view>

namespace ipybox::sandbox_kit {

IPYBOX_DECL std::optional<rlim_t>& given_open_files() noexcept {
    static std::optional<rlim_t> given;
    return given;
}

}  // namespace ipybox::sandbox_kit

namespace ipybox {

IPYBOX_DECL void raise_open_files() noexcept {
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
    const auto given = std::exchange(limit.rlim_cur, limit.rlim_max);
    if (::setrlimit(RLIMIT_NOFILE, &limit) == 0) sandbox_kit::given_open_files() = given;
}

IPYBOX_DECL std::size_t open_files_left() noexcept {
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return SIZE_MAX;
    std::size_t open = 0;
    DIR* const files = ::opendir("/proc/self/fd");
    if (files == nullptr) return errno == EMFILE ? 0 : SIZE_MAX;
    while (::readdir(files) != nullptr) ++open;
    ::closedir(files);
    return limit.rlim_cur > open ? static_cast<std::size_t>(limit.rlim_cur) - open : 0;
}

}  // namespace ipybox

namespace ipybox::sandbox_kit {

IPYBOX_DECL void run_child(const SpawnRequest& request, PreparedChild& prepared,
                           int report) noexcept {
    const auto fail = [&report](SpawnStage stage) {
        const int message[2] = {static_cast<int>(stage), errno};
        [[maybe_unused]] const auto written = ::write(report, message, sizeof message);
        ::_exit(127);
    };
    // An own session: no terminal, and signals to our group do not reach the child.
    ::setsid();
    for (int number = 1; number < NSIG; ++number) ::signal(number, SIG_DFL);

    if (request.cgroup >= 0 && ::write(request.cgroup, "0", 1) != 1) fail(SpawnStage::limits);

    // First out of the way of the numbers wanted, then to those numbers.
    report = ::fcntl(report, F_DUPFD_CLOEXEC, prepared.lowest_free);
    if (report < 0) fail(SpawnStage::descriptors);
    for (auto& [ours, theirs] : prepared.fds) {
        ours = ::fcntl(ours, F_DUPFD_CLOEXEC, prepared.lowest_free);
        if (ours < 0) fail(SpawnStage::descriptors);
    }
    if (::syscall(SYS_close_range, 3u, ~0u, 4u /* CLOSE_RANGE_CLOEXEC */) != 0)
        fail(SpawnStage::descriptors);
    for (const auto& [ours, theirs] : prepared.fds)
        if (::dup2(ours, theirs) < 0) fail(SpawnStage::descriptors);

    if (request.identity) {
        // Not by libc, which would have the parent's other threads do the same.
        const auto [user, group] = *request.identity;
        if (::syscall(SYS_setgroups, 0, nullptr) != 0 ||
            ::syscall(SYS_setresgid, group, group, group) != 0 ||
            ::syscall(SYS_setresuid, user, user, user) != 0)
            fail(SpawnStage::identity);
    }
    if (const auto soft = given_open_files()) {
        rlimit limit{};
        if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) fail(SpawnStage::limits);
        limit.rlim_cur = std::min(*soft, limit.rlim_max);
        if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) fail(SpawnStage::limits);
    }
    for (const auto& [resource, value] : request.rlimits) {
        const auto which = static_cast<__rlimit_resource_t>(resource);
        rlimit limit{};
        if (::getrlimit(which, &limit) != 0) fail(SpawnStage::limits);
        // A stricter limit that is already there stays.
        limit.rlim_cur = std::min(value, limit.rlim_max);
        limit.rlim_max = std::min(hard_limit(resource, value), limit.rlim_max);
        if (::setrlimit(which, &limit) != 0) fail(SpawnStage::limits);
    }
    if (request.no_new_privileges && ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        fail(SpawnStage::identity);
    // Only now: a change of user clears it. The parent may have died before it took effect.
    if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || ::getppid() != prepared.parent)
        fail(SpawnStage::parent);
    if (::chdir(request.cwd.c_str()) != 0) fail(SpawnStage::directory);
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    ::execve(prepared.argv[0], prepared.argv.data(), prepared.env.data());
    fail(SpawnStage::program);
    ::_exit(127);
}

IPYBOX_DECL Error spawn_error(const SpawnRequest& request, SpawnStage stage, int number) {
    const std::string start = "cannot start " + request.argv[0] + ": ";
    const std::string why = std::strerror(number);
    switch (stage) {
        case SpawnStage::program:
            if (number == ENOENT)
                return {errc::missing_dependency,
                        start + (::access(request.argv[0].c_str(), F_OK) == 0
                                     ? "the interpreter that its first line names is missing"
                                     : "there is no such file")};
            return {errc::io_error, start + why};
        case SpawnStage::directory:
            return {
                errc::io_error,
                start + "its working directory " + request.cwd.string() + " cannot be entered" +
                    (request.identity ? " by uid " + std::to_string(request.identity->user) : "") +
                    ": " + why};
        case SpawnStage::identity:
            return {errc::sandbox_refused, start + "the change of user failed: " + why};
        case SpawnStage::limits:
            return {errc::sandbox_refused, start + "a resource limit could not be set: " + why};
        case SpawnStage::parent:
            return {errc::io_error, start + "its parent is gone"};
        case SpawnStage::descriptors:
            break;
    }
    return {errc::io_error, start + "its files could not be set up: " + why};
}

IPYBOX_DECL std::pair<UniqueFd, UniqueFd> make_pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0)
        throw Error(errc::io_error, std::string("cannot create a pipe: ") + std::strerror(errno));
    return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

IPYBOX_DECL std::pair<UniqueFd, UniqueFd> make_socket_pair(int type) {
    int ends[2];
    if (::socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, ends) != 0)
        throw Error(errc::io_error, std::string("cannot make a socket: ") + std::strerror(errno));
    return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

IPYBOX_DECL void outlive_broken_pipes() noexcept {
    struct sigaction action{};
    ::sigaction(SIGPIPE, nullptr, &action);
    if (!(action.sa_flags & SA_SIGINFO) && action.sa_handler == SIG_DFL) ::signal(SIGPIPE, SIG_IGN);
}

IPYBOX_DECL BlockSignals::BlockSignals() noexcept {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
}

IPYBOX_DECL pid_t start_process(SpawnRequest& request, int input, int output, int error) {
    if (request.argv.empty() || !request.argv[0].starts_with('/'))
        throw Error(errc::bad_argument, "a program is started by its absolute path");
    std::vector<std::string> environment;
    for (const auto& [name, value] : request.env) environment.push_back(name + "=" + value);
    PreparedChild prepared;
    for (auto* strings : {&request.argv, &environment}) {
        auto& pointers = strings == &environment ? prepared.env : prepared.argv;
        for (auto& text : *strings) {
            if (text.find('\0') != std::string::npos)
                throw Error(errc::bad_argument, "an argument or environment variable for " +
                                                    request.argv[0] + " contains a NUL byte");
            pointers.push_back(text.data());
        }
        pointers.push_back(nullptr);
    }
    prepared.fds = {{input, 0}, {output, 1}, {error, 2}};
    for (const auto& handed : request.fds) {
        prepared.fds.push_back(handed);
        prepared.lowest_free = std::max(prepared.lowest_free, handed.second + 1);
    }
    prepared.parent = ::getpid();
    auto [verdict, report] = make_pipe();

    volatile pid_t pid = -1;
    {
        const BlockSignals blocked;
        // However much memory this process has, none of it is copied.
        pid = ::vfork();
        if (pid == 0) run_child(request, prepared, report.get());
    }
    if (pid < 0)
        throw Error(errc::io_error,
                    "cannot start " + request.argv[0] + ": vfork failed: " + std::strerror(errno));
    report.reset();
    int message[2];
    ssize_t count = 0;
    do count = ::read(verdict.get(), message, sizeof message);
    while (count < 0 && errno == EINTR);
    if (count == 0) return pid;
    const int failure = count == sizeof message ? message[1] : EIO;
    const auto stage =
        count == sizeof message ? static_cast<SpawnStage>(message[0]) : SpawnStage::descriptors;
    ::kill(pid, SIGKILL);
    while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
    }
    throw spawn_error(request, stage, failure);
}

IPYBOX_DECL std::string read_proc(const std::string& path) {
    const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    std::string text;
    char buffer[4096];
    while (file) {
        const auto count = ::read(file.get(), buffer, sizeof buffer);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) break;
        text.append(buffer, static_cast<std::size_t>(count));
    }
    return text;
}

IPYBOX_DECL std::optional<unsigned> count_filters(pid_t pid) {
    constexpr std::string_view name = "\nSeccomp_filters:\t";
    const auto status = read_proc("/proc/" + std::to_string(pid) + "/status");
    const auto at = status.find(name);
    unsigned count = 0;
    if (at == std::string::npos ||
        std::from_chars(&status[at + name.size()], status.data() + status.size(), count).ec !=
            std::errc{})
        return std::nullopt;
    return count;
}

IPYBOX_DECL std::vector<pid_t> children_of(pid_t pid) {
    std::vector<pid_t> children;
    const std::string tasks = "/proc/" + std::to_string(pid) + "/task";
    std::error_code ignored;
    for (std::filesystem::directory_iterator task(tasks, ignored), end; task != end;
         task.increment(ignored)) {
        const auto text = read_proc(task->path() / "children");
        for (const char *at = text.data(), *stop = at + text.size(); at < stop; ++at) {
            pid_t child = 0;
            const auto [next, error] = std::from_chars(at, stop, child);
            if (error == std::errc{}) children.push_back(child), at = next;
        }
        if (ignored) break;
    }
    return children;
}

IPYBOX_DECL pid_t parent_of(pid_t pid) {
    const auto stat = read_proc("/proc/" + std::to_string(pid) + "/stat");
    const auto end = stat.rfind(')');
    pid_t parent = -1;
    if (end != std::string::npos && end + 4 < stat.size())
        std::from_chars(stat.data() + end + 4, stat.data() + stat.size(), parent);
    return parent;
}

IPYBOX_DECL UniqueFd open_child(pid_t child, pid_t parent) {
    auto handle = open_pidfd(child);
    if (handle && parent_of(child) != parent) handle.reset();
    return handle;
}

IPYBOX_DECL bool OutputTail::take_available() {
    char buffer[8192];
    for (int round = 0; round < 32 && pipe.is_open(); ++round) {
        const auto count = ::read(pipe.native_handle(), buffer, sizeof buffer);
        if (count < 0) return errno == EAGAIN || errno == EINTR;
        if (count == 0) return false;
        text.append(buffer, static_cast<std::size_t>(count));
        // One byte more than is shown tells whether the first line is whole.
        if (text.size() > 2 * tail_size) text.erase(0, text.size() - tail_size - 1);
    }
    return pipe.is_open();
}

IPYBOX_DECL std::string OutputTail::newest() const {
    if (text.size() <= tail_size) return text;
    auto start = text.size() - tail_size;
    const auto line = text.find('\n', start - 1);
    if (line != std::string::npos && line + 1 < text.size()) start = line + 1;
    return text.substr(start);
}

IPYBOX_DECL awaitable<void> drain(std::shared_ptr<OutputTail> tail) {
    while (tail->take_available()) {
        const auto [error] =
            co_await tail->pipe.async_wait(asio::posix::descriptor_base::wait_read, as_result);
        if (error) co_return;
    }
}

IPYBOX_DECL ProcessState::ProcessState(asio::any_io_executor executor, pid_t started,
                                       UniqueFd& pidfd, bool guarded)
    : pid(started), ends_its_tree(guarded), ended(executor), watch(executor, pidfd.get()) {
    pidfd.release();
}

IPYBOX_DECL bool ProcessState::reap() noexcept {
    if (status) return true;
    siginfo_t info{};
    const int seen = wait_for(info, WEXITED | WNOHANG | WNOWAIT);
    if (seen == 0 && info.si_pid == 0) return false;
    // While the zombie holds the number, the group cannot be anybody else's.
    ::kill(-pid, SIGKILL);
    if (seen == 0) wait_for(info, WEXITED | WNOHANG);
    // ECHILD: the application has SIGCHLD ignored, so that the status is lost.
    status = seen != 0                    ? ExitStatus{255, false}
             : info.si_code == CLD_EXITED ? ExitStatus{info.si_status, false}
                                          : ExitStatus{128 + info.si_status, true};
    pid = -1;
    return true;
}

IPYBOX_DECL int ProcessState::wait_for(siginfo_t& info, int options) const noexcept {
    int result = 0;
    do result = ::waitid(P_PID, static_cast<id_t>(pid), &info, options);
    while (result != 0 && errno == EINTR);
    return result;
}

IPYBOX_DECL awaitable<void> watch_exit(std::shared_ptr<ProcessState> state) {
    while (!state->reap()) {
        const auto [error] =
            co_await state->watch.async_wait(asio::posix::descriptor_base::wait_read, as_result);
        if (error) break;
    }
    state->ended.notify();
}

IPYBOX_DECL awaitable<std::optional<ExitStatus>> await_exit(std::shared_ptr<ProcessState> state,
                                                            Clock::time_point deadline) {
    while (!state->reap() && Clock::now() < deadline) co_await state->ended.wait(deadline);
    co_return state->status;
}

IPYBOX_DECL std::vector<UniqueFd> kill_descendants(ProcessState& state) noexcept {
    std::vector<UniqueFd> handles;
    if (state.reap()) return handles;
    try {
        ::kill(-state.pid, SIGSTOP);
        std::vector<pid_t> tree{state.pid};
        for (bool grown = true; grown;) {
            grown = false;
            for (std::size_t at = 0; at < tree.size() && tree.size() < 100'000; ++at) {
                for (const pid_t child : children_of(tree[at])) {
                    if (std::find(tree.begin(), tree.end(), child) != tree.end()) continue;
                    auto handle = open_child(child, tree[at]);
                    if (!handle) continue;
                    send_signal(handle, SIGSTOP);
                    tree.push_back(child);
                    handles.push_back(std::move(handle));
                    grown = true;
                }
            }
        }
    } catch (const std::exception&) {
        // Out of memory or descriptors: what was found is killed all the same.
    }
    ::kill(-state.pid, SIGKILL);
    for (const auto& handle : handles) send_signal(handle, SIGKILL);
    return handles;
}

IPYBOX_DECL void end_tree(ProcessState& state) noexcept {
    if (!state.ends_its_tree)
        kill_descendants(state);
    else if (!state.reap())
        ::kill(state.pid, SIGQUIT);
}

IPYBOX_DECL Statistics measure_tree(pid_t root) {
    Statistics sum;
    if (root <= 0) return sum;
    std::vector<pid_t> tree{root};
    std::uint64_t ticks = 0, memory = 0;
    for (std::size_t at = 0; at < tree.size() && tree.size() < 100'000; ++at) {
        const auto children = children_of(tree[at]);
        tree.insert(tree.end(), children.begin(), children.end());
        const auto directory = "/proc/" + std::to_string(tree[at]);
        const auto stat = read_proc(directory + "/stat");
        std::istringstream fields(stat.substr(std::min(stat.size(), stat.rfind(')') + 1)));
        std::string skipped;
        for (int field = 3; field < 14; ++field) fields >> skipped;
        std::uint64_t used = 0;
        for (int field = 14; field <= 17 && fields >> used; ++field) ticks += used;
        const auto status = read_proc(directory + "/status");
        const auto peak = status.find("\nVmHWM:");
        if (peak != std::string::npos)
            memory += 1024 * std::strtoull(&status[peak + 7], nullptr, 10);
    }
    sum.cpu_time =
        std::chrono::milliseconds(ticks * 1000 / static_cast<unsigned>(::sysconf(_SC_CLK_TCK)));
    sum.peak_memory = memory;
    sum.processes = tree.size();
    return sum;
}

IPYBOX_DECL awaitable<void> end_at(std::shared_ptr<ProcessState> state,
                                   Clock::time_point deadline) {
    const auto status = co_await await_exit(state, deadline);
    if (status || !state->watch.is_open()) co_return;
    state->out_of_time = true;
    end_tree(*state);
}

IPYBOX_DECL int ending_signal(const ExitStatus& status) {
    const int number = status.code - 128;
    return number > 0 && number < NSIG ? number : 0;
}

IPYBOX_DECL Violation violation_of(int signal) {
    Violation seen;
    if (signal == SIGXCPU) seen = {"cpu", "it used up the processor time of the limit cpu"};
    if (signal == SIGXFSZ)
        seen = {"file-size", "it wrote more to a file than the limit file-size allows"};
    if (signal == SIGSYS)
        seen = {"seccomp", "it made a system call that a filter answers by death"};
    return seen;
}

IPYBOX_DECL std::string describe_end(const SandboxedProcess& process, const ExitStatus& status) {
    const int signal = ending_signal(status);
    std::string text = "exit code " + std::to_string(status.code);
    if (signal != 0) {
        const char* name = ::sigabbrev_np(signal);
        const auto known =
            name != nullptr ? "SIG" + std::string(name) : "signal " + std::to_string(signal);
        text = status.signalled ? "killed by " + known : text + ", " + known;
    }
    const auto seen = process.violations();
    for (const auto& violation : seen) text += ": " + violation.what;
    if (!seen.empty()) return text;
    if (signal == SIGKILL)
        text += ": by its own code, by somebody outside, or because the machine had no memory left";
    if (signal == SIGBUS) text += ": the scratch space may be full";
    if (signal == SIGSEGV || signal == SIGABRT)
        text += ": native code crashed, which may also be how it takes the end of the limit memory";
    return text;
}

}  // namespace ipybox::sandbox_kit

namespace ipybox {

IPYBOX_DECL ChildProcess::ChildProcess(asio::any_io_executor executor, SpawnRequest request) {
    const bool pipes = request.stdio == Stdio::pipes;
    UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!null)
        throw Error(errc::io_error, std::string("cannot open /dev/null: ") + std::strerror(errno));
    auto [errors, child_errors] = sandbox_kit::make_pipe();
    // For sockets Asio suppresses SIGPIPE, for pipes nothing does.
    std::pair<UniqueFd, UniqueFd> in, out;
    if (pipes) {
        in = sandbox_kit::make_pipe();
        out = sandbox_kit::make_pipe();
        sandbox_kit::outlive_broken_pipes();
    }
    for (const auto* ours : {&errors, &in.second, &out.first})
        if (*ours) ::fcntl(ours->get(), F_SETFL, O_NONBLOCK);

    const pid_t pid = sandbox_kit::start_process(request, pipes ? in.first.get() : null.get(),
                                                 pipes ? out.second.get() : child_errors.get(),
                                                 child_errors.get());
    try {
        auto pidfd = sandbox_kit::open_pidfd(pid);
        if (!pidfd) throw Error(errc::io_error, std::string("pidfd_open: ") + std::strerror(errno));
        state_ = std::make_shared<sandbox_kit::ProcessState>(executor, pid, pidfd,
                                                             request.ends_its_tree);
        tail_ = std::make_shared<sandbox_kit::OutputTail>(executor, errors);
        if (pipes) {
            input_.emplace(executor, in.second.release());
            output_.emplace(executor, out.first.release());
        }
        asio::co_spawn(executor, sandbox_kit::drain(tail_), asio::detached);
        asio::co_spawn(executor, sandbox_kit::watch_exit(state_), asio::detached);
        if (request.wall_seconds) {
            const auto deadline = deadline_after(std::chrono::seconds(*request.wall_seconds));
            asio::co_spawn(executor, sandbox_kit::end_at(state_, deadline), asio::detached);
        }
    } catch (...) {
        ::kill(-pid, SIGKILL);
        while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
        }
        throw;
    }
}

IPYBOX_DECL std::optional<ExitStatus> ChildProcess::exit_status() const noexcept {
    state_->reap();
    return state_->status;
}

IPYBOX_DECL std::string ChildProcess::output_tail() const {
    tail_->take_available();
    return tail_->newest();
}

IPYBOX_DECL Statistics ChildProcess::statistics() const noexcept {
    try {
        return sandbox_kit::measure_tree(state_->pid);
    } catch (const std::exception&) {
        return {};
    }
}

IPYBOX_DECL std::vector<Violation> ChildProcess::violations() const {
    std::vector<Violation> seen;
    if (state_->out_of_time) seen.push_back({"wall", "the time of the limit wall was over"});
    if (const auto status = exit_status()) {
        auto last = sandbox_kit::violation_of(sandbox_kit::ending_signal(*status));
        if (!last.layer.empty()) seen.push_back(std::move(last));
    }
    return seen;
}

IPYBOX_DECL void ChildProcess::end(std::chrono::milliseconds patience) noexcept {
    if (!state_->watch.is_open()) return;
    if (state_->ends_its_tree) {
        sandbox_kit::end_tree(*state_);
        if (!state_->status)
            wait_readable(state_->watch.native_handle(), Clock::now() + patience / 2);
    }
    const auto deadline = Clock::now() + patience;
    for (const auto& dying : sandbox_kit::kill_descendants(*state_))
        wait_readable(dying.get(), deadline);
    if (!state_->status) wait_readable(state_->watch.native_handle(), deadline);
    state_->reap();
    boost::system::error_code ignored;
    state_->watch.close(ignored);
    tail_->pipe.close(ignored);
    state_->ended.notify();
}

IPYBOX_DECL void ChildProcess::wait_readable(int fd, Clock::time_point deadline) noexcept {
    for (;;) {
        const auto left =
            std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
        pollfd watched{fd, POLLIN, 0};
        const int ready = ::poll(&watched, 1, static_cast<int>(std::max<long>(left, 0)));
        if (ready >= 0 || errno != EINTR) return;
    }
}

}  // namespace ipybox
