// Why sandbox_kit/process.hpp does without Boost.Process: each case shows what version 2 of that
// does, in the versions known to do it, and that ChildProcess does not. docs/dependencies.md
// names the cases.
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/process/v2/process.hpp>
#include <boost/process/v2/start_dir.hpp>
#include <boost/process/v2/stdio.hpp>
#include <boost/test/unit_test.hpp>
#include <boost/version.hpp>
#include <cstdlib>
#include <ipybox/sandbox_kit/process.hpp>
#include <thread>

#include "test_support.hpp"

namespace boost_process_tests {

namespace {
using namespace ipybox;
using namespace std::chrono_literals;
namespace bp = boost::process::v2;
using boost::system::error_code;

// What Boost does up to 1.`last`. Of a later one the log says whether it still does.
void fault(bool seen, int last, std::string_view what) {
    if (BOOST_VERSION / 100 % 1000 <= last) {
        BOOST_TEST(seen, "this Boost no longer " << what);
    } else {
        BOOST_TEST_MESSAGE("known of Boost 1.81 to 1." << last << ", in " BOOST_LIB_VERSION << " "
                                                       << (seen ? "still" : "no longer")
                                                       << " so: " << what);
    }
}
constexpr int newest = 88;  // that was looked at

// What is seen in children too.
struct Seen {
    std::atomic<int> exits, signals, services, services_before_setup, exec_errors, inheritable;
};
Seen* const seen = static_cast<Seen*>(
    ::mmap(nullptr, sizeof(Seen), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
pid_t watched = -1;  // the process whose children are watched; nobody's between the cases
bool in_child() { return watched != -1 && ::getpid() != watched; }

int count_inheritable() {
    int count = 0;
    for (int number = 0; number < 1024; ++number) {
        const int flags = ::fcntl(number, F_GETFD);
        count += flags >= 0 && (flags & FD_CLOEXEC) == 0;
    }
    return count;
}

// None of these can be taken back.
void install_hooks() {
    static const int installed = [] {
        const int failed = std::atexit([] {
            if (!in_child()) return;
            ++seen->exits;
            ::_exit(1);  // the other handlers are the test program's own
        });
        return failed + ::pthread_atfork(
                            [] {
                                if (watched != -1) seen->inheritable = count_inheritable();
                            },
                            nullptr,
                            [] {
                                if (in_child()) ::kill(::getpid(), SIGWINCH);
                            });
    }();
    BOOST_REQUIRE(installed == 0);
}

// An application's own part of an io_context.
struct Service : asio::execution_context::service {
    static inline asio::execution_context::id id;
    explicit Service(asio::execution_context& owner) : service(owner) {}
    void shutdown() override {}
    void notify_fork(asio::execution_context::fork_event) override {
        if (in_child()) ++seen->services;
    }
};

// An initializer that runs a function in the child.
template <class F>
struct InChild {
    F run;
    template <class Launcher, class Path>
    error_code on_exec_setup(Launcher&, const Path&, const char* const*&) {
        return run();
    }
};
template <class F>
InChild(F) -> InChild<F>;

// As Boost documents it.
struct OnExecError {
    template <class Launcher, class Path>
    void on_exec_error(Launcher&, const Path&, const char* const*&, const error_code&) {
        ++seen->exec_errors;
    }
};

struct Fixture {
    Fixture() {
        install_hooks();
        for (auto* count : {&seen->exits, &seen->signals, &seen->services,
                            &seen->services_before_setup, &seen->exec_errors, &seen->inheritable})
            *count = 0;
        watched = ::getpid();
    }
    ~Fixture() { watched = -1; }

    using Process = bp::basic_process<asio::io_context::executor_type>;
    template <class... Initializers>
    Process boost(const char* program, std::vector<std::string> arguments,
                  Initializers&&... initializers) {
        bp::posix::default_launcher launcher;
        failure.clear();
        auto process = launcher(context.get_executor(), failure, program, arguments,
                                std::forward<Initializers>(initializers)...);
        started = launcher.pid;
        return process;
    }
    template <class... Initializers>
    Process boost_shell(std::string script, Initializers&&... initializers) {
        return boost("/bin/sh", {"-c", std::move(script)},
                     std::forward<Initializers>(initializers)...);
    }
    // Waits for a child that failed to start; false if Boost has done that.
    bool collect() const { return ::waitpid(started, nullptr, 0) == started; }

    SpawnRequest shell(std::string script) {
        SpawnRequest request;
        request.argv = {"/bin/sh", "-c", std::move(script)};
        return request;
    }
    std::unique_ptr<ChildProcess> start(SpawnRequest request) {
        return std::make_unique<ChildProcess>(context.get_executor(), std::move(request));
    }
    int finish(ChildProcess& child) {
        const auto status = test::run(context, child.wait(deadline_after(60s)));
        BOOST_REQUIRE(status);
        return status->code;
    }
    void run_ours(std::string script = ":") { finish(*start(shell(std::move(script)))); }
    // Some of them, while another thread does something again and again.
    template <class Act>
    void run_ours_beside(Act act) {
        std::atomic<bool> ended = false;
        std::thread other([&] {
            while (!ended) act();
        });
        for (int i = 0; i < 20; ++i) run_ours();
        ended = true;
        other.join();
    }
    std::string refusal(SpawnRequest request) {
        try {
            start(std::move(request));
        } catch (const Error& error) {
            return error.detail();
        }
        return "";
    }

    asio::io_context context;
    error_code failure;
    pid_t started = -1;
};

SpawnRequest nothing_to_run() {
    SpawnRequest request;
    request.argv = {"/nowhere/program"};
    return request;
}

struct TextFile : UniqueFd {
    TextFile() : UniqueFd(::memfd_create("text", MFD_CLOEXEC)) {}
    std::string text() const {
        char buffer[64];
        const auto count = ::pread(get(), buffer, sizeof buffer, 0);
        return {buffer, count > 0 ? static_cast<std::size_t>(count) : 0};
    }
};

// A process that is gone altogether counts as dead.
bool dies_within(pid_t pid, std::chrono::milliseconds time) {
    const auto handle = sandbox_kit::open_pidfd(pid);
    pollfd state{handle.get(), POLLIN, 0};
    return !handle || ::poll(&state, 1, static_cast<int>(time.count())) == 1;
}

template <class Function>
std::string module_of(Function* function) {
    Dl_info info{};
    BOOST_REQUIRE(::dladdr(reinterpret_cast<void*>(function), &info) != 0);
    return info.dli_fname;
}
}  // namespace

BOOST_FIXTURE_TEST_SUITE(boost_process, Fixture)

BOOST_AUTO_TEST_CASE(a_failed_exec_runs_our_exit_handlers_and_leaves_a_zombie) {
    boost("/nowhere/program", {});
    BOOST_TEST(failure.value() == ENOENT);
    fault(collect(), 87, "leaves a zombie");
    fault(seen->exits == 1, newest, "runs the parent's exit handlers in the child");

    seen->exits = 0;
    BOOST_TEST(refusal(nothing_to_run()) != "");
    BOOST_TEST(seen->exits == 0);
    BOOST_TEST(::waitpid(-1, nullptr, WNOHANG) == -1);
}

BOOST_AUTO_TEST_CASE(services_run_in_the_child_before_any_initializer) {
    asio::use_service<Service>(context);
    boost("/bin/true", {}, InChild{[] {
              seen->services_before_setup = seen->services.load();
              return error_code();
          }})
        .wait();
    fault(seen->services_before_setup == 1, newest, "runs services of the io_context in the child");

    seen->services = 0;
    run_ours();
    BOOST_TEST(seen->services == 0);
}

BOOST_AUTO_TEST_CASE(handlers_of_signals_run_in_the_child) {
    struct sigaction ours{}, before{};
    ours.sa_handler = [](int) {
        if (in_child()) ++seen->signals;
    };
    BOOST_REQUIRE(::sigaction(SIGWINCH, &ours, &before) == 0);
    boost("/bin/true", {}).wait();
    const int with_boost = seen->signals.exchange(0);
    // Ours runs no hooks of fork: the signals come from another thread.
    run_ours_beside([] { ::kill(0, SIGWINCH); });
    ::sigaction(SIGWINCH, &before, nullptr);
    fault(with_boost == 1, newest, "lets a handler of the parent run in the child");
    BOOST_TEST(seen->signals == 0);
}

BOOST_AUTO_TEST_CASE(its_pipe_is_open_to_other_programs) {
    const int before = count_inheritable();
    boost("/bin/true", {}).wait();
    fault(seen->inheritable == before + 1, newest, "has a pipe that any other fork inherits");
    int most = 0;
    run_ours_beside([&] { most = std::max(most, count_inheritable()); });
    BOOST_TEST(most == before);
}

BOOST_AUTO_TEST_CASE(the_step_that_failed_is_not_told) {
    boost("/bin/true", {}, bp::process_start_dir("/nowhere"));
    const auto directory = failure;
    collect();
    boost("/nowhere/program", {}, OnExecError());
    collect();
    fault(failure == directory && failure, newest, "confuses a directory with a program");
    fault(seen->exec_errors == 0, 87, "never calls on_exec_error");

    auto request = shell(":");
    request.cwd = "/nowhere";
    BOOST_TEST(refusal(request).find("directory /nowhere cannot be entered") != std::string::npos);
    BOOST_TEST(refusal(nothing_to_run()).find("there is no such file") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(an_error_of_an_initializer_is_lost) {
    auto process = boost("/bin/true", {}, InChild{[] {
                             errno = 0;
                             return error_code(EPERM, boost::system::system_category());
                         }});
    fault(!failure && process.wait() == 1, newest, "calls a program started that never was");
    if (failure) collect();

    auto request = shell(":");
    request.rlimits = {{-1, 1}};
    BOOST_TEST(refusal(request).find("limit could not be set") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(descriptors_below_its_pipe_are_inherited) {
    const UniqueFd open(::open("/dev/null", O_RDONLY));  // the lowest free number, and inheritable
    const auto script = "[ -e /proc/self/fd/" + std::to_string(open.get()) + " ]";
    fault(boost_shell(script).wait() == 0, 84, "leaves descriptors open");
    BOOST_TEST(finish(*start(shell(script))) == 1);
}

BOOST_AUTO_TEST_CASE(streams_overwrite_each_other) {
    const UniqueFd before(::fcntl(0, F_DUPFD_CLOEXEC, 3));
    const TextFile first, second;
    const int input = STDIN_FILENO;
    BOOST_REQUIRE(::dup3(first.get(), input, O_CLOEXEC) == input);
    auto swapped = boost_shell("echo out", bp::process_stdio{second.get(), input, 2});
    const int swap_code = swapped.wait();
    auto kept = boost_shell("[ -e /proc/self/fd/0 ]", bp::process_stdio{input, second.get(), 2});
    const int kept_code = kept.wait();
    const auto first_with_boost = first.text();
    auto request = shell("echo out >&7");
    request.fds = {{input, 7}};  // the child's own input is /dev/null
    run_ours();
    const int code = finish(*start(std::move(request)));
    before ? ::dup2(before.get(), input) : ::close(input);
    fault(swap_code == 0 && first_with_boost.empty() && second.text() == "out\n", newest,
          "gives the child its new input for what was to be its output");
    fault(kept_code == 1, newest, "loses a stream that has its number already");
    BOOST_TEST(code == 0);
    BOOST_TEST(first.text() == "out\n");
}

BOOST_AUTO_TEST_CASE(the_number_is_free_before_we_hear_of_the_end) {
    const std::string script = "sleep 1004 & echo $!";
    const TextFile output;
    auto process =
        boost_shell(script, bp::process_stdio{nullptr, output.get(), nullptr}, InChild{[] {
                        ::setsid();
                        return error_code();
                    }});
    bool held = true;
    process.async_wait([&](error_code, int) { held = ::kill(started, 0) == 0; });
    context.run();
    const pid_t left = std::stoi(output.text());
    fault(!held, newest, "collects before the group can be killed under a number that is ours");
    BOOST_TEST(!dies_within(left, 0ms));
    ::kill(left, SIGKILL);

    const auto child = start(shell(script));
    finish(*child);
    BOOST_TEST(dies_within(std::stoi(child->output_tail()), 60s));
}

BOOST_AUTO_TEST_CASE(only_one_can_wait) {
    auto process = boost("/bin/sleep", {"1005"});
    int told = 0, in_vain = 0;
    const auto count = [&](error_code error, int) { ++(error ? in_vain : told); };
    process.async_wait(count);
    process.async_wait(count);
    context.poll();
    ::kill(started, SIGKILL);
    context.restart();
    context.run();
    fault(told == 1 && in_vain == 1, newest, "tells one of two who wait");

    const auto child = start(shell("exec sleep 1005"));
    int woken = 0;
    auto wait = [](ChildProcess& awaited, int& number) -> awaitable<void> {
        const auto status = co_await awaited.wait(never);
        number += status && status->code == 137;
    };
    asio::co_spawn(context, wait(*child, woken), asio::detached);
    asio::co_spawn(context, wait(*child, woken), asio::detached);
    context.restart();
    context.poll();
    child->kill_tree();
    finish(*child);
    context.restart();
    context.poll();
    BOOST_TEST(woken == 2);
}

BOOST_AUTO_TEST_CASE(it_is_a_library_to_link) {
    const auto here = module_of(&install_hooks);
    const bool linked = module_of(&bp::posix::detail::close_all) != here;
    BOOST_TEST_MESSAGE("Boost.Process is headers up to 1.85; this is " BOOST_LIB_VERSION);
    BOOST_TEST(linked == (BOOST_VERSION >= 108600));
    BOOST_TEST(module_of(&sandbox_kit::start_process) == here);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace boost_process_tests
