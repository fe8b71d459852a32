#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <boost/test/unit_test.hpp>
#include <future>
#include <ipybox/sandbox_kit/process.hpp>
#include <set>
#include <thread>

#include "test_support.hpp"

namespace process_tests {

namespace {
using namespace ipybox;
using namespace std::chrono_literals;

struct Fixture {
    asio::io_context context;
    test::TemporaryDirectory directory;

    SpawnRequest shell(std::string script) {
        SpawnRequest request;
        request.argv = {"/bin/sh", "-c", std::move(script)};
        request.env = {{"PATH", "/usr/bin:/bin"}};
        return request;
    }
    std::unique_ptr<ChildProcess> start(SpawnRequest request) {
        return std::make_unique<ChildProcess>(context.get_executor(), std::move(request));
    }
    ExitStatus finish(ChildProcess& child) {
        const auto status = test::run(context, child.wait(deadline_after(60s)));
        BOOST_REQUIRE(status);
        return *status;
    }
    // What a shell script prints.
    std::string output(SpawnRequest request) {
        const auto child = start(std::move(request));
        finish(*child);
        return child->output_tail();
    }
    void fails(SpawnRequest request, errc code, std::string_view words) {
        BOOST_CHECK_EXCEPTION(start(std::move(request)), Error, [&](const Error& error) {
            BOOST_TEST_INFO(error.what());
            return error.code() == code && error.detail().find(words) != std::string::npos;
        });
    }
    // One line of the child's output.
    std::string line(ChildProcess& child) {
        std::string text;
        auto read = [&]() -> awaitable<void> {
            char one = 0;
            while (one != '\n') {
                co_await asio::async_read(child.output(), asio::buffer(&one, 1),
                                          asio::use_awaitable);
                text += one;
            }
        };
        test::run(context, read());
        text.pop_back();
        return text;
    }
};

// Dead means gone or a zombie that its new parent has not collected yet.
bool alive(pid_t pid) {
    const auto stat = sandbox_kit::read_proc("/proc/" + std::to_string(pid) + "/stat");
    const auto end = stat.rfind(')');
    return end != std::string::npos && stat[end + 2] != 'Z' && stat[end + 2] != 'X';
}
bool dies(pid_t pid) {
    for (int i = 0; i < 3000 && alive(pid); ++i) ::usleep(10'000);
    return !alive(pid);
}
bool no_children_left() { return ::waitpid(-1, nullptr, WNOHANG) == -1 && errno == ECHILD; }
}  // namespace

BOOST_FIXTURE_TEST_SUITE(process, Fixture)

BOOST_AUTO_TEST_CASE(environment_directory_and_arguments_are_exact) {
    SpawnRequest request;
    request.argv = {"/usr/bin/env"};
    request.env = {{"A", "1"}, {"B", "two words"}};
    BOOST_TEST(output(request) == "A=1\nB=two words\n");

    auto script = shell("pwd; printf '%s|' \"$@\"");
    script.argv.insert(script.argv.end(), {"sh", "a b", "", "c'd"});
    script.cwd = directory.path();
    BOOST_TEST(output(script) == directory.path().string() + "\na b||c'd|");
}

BOOST_AUTO_TEST_CASE(exit_code_and_signal_are_told_apart) {
    const auto plain = start(shell("exit 7"));
    const auto status = finish(*plain);
    BOOST_TEST(status.code == 7);
    BOOST_TEST(!status.signalled);
    BOOST_TEST(plain->pid() == -1);

    const auto killed = start(shell("kill -TERM $$"));
    const auto death = finish(*killed);
    BOOST_TEST(death.code == 128 + SIGTERM);
    BOOST_TEST(death.signalled);
}

BOOST_AUTO_TEST_CASE(exit_is_seen_without_running_the_context) {
    const auto child = start(shell("exit 3"));
    BOOST_TEST(!child->exit_status().has_value() == alive(child->pid()));
    for (int i = 0; i < 3000 && !child->exit_status(); ++i) ::usleep(10'000);
    BOOST_REQUIRE(child->exit_status());
    BOOST_TEST(child->exit_status()->code == 3);
}

BOOST_AUTO_TEST_CASE(pipes_carry_data_both_ways) {
    auto request = shell("cat; echo done >&2");
    request.stdio = Stdio::pipes;
    const auto child = start(request);
    // More than a pipe holds, so that both directions have to move at once.
    const std::string sent(1 << 20, 'x');
    std::string received(sent.size(), '\0');
    bool written = false;
    auto write = [&]() -> awaitable<void> {
        co_await asio::async_write(child->input(), asio::buffer(sent), asio::use_awaitable);
        child->input().close();
        written = true;
    };
    asio::co_spawn(context, write(), asio::detached);
    auto read = [&]() -> awaitable<void> {
        co_await asio::async_read(child->output(), asio::buffer(received), asio::use_awaitable);
    };
    test::run(context, read());
    BOOST_TEST(finish(*child).code == 0);
    BOOST_TEST(written);
    BOOST_TEST((received == sent));
    BOOST_TEST(child->output_tail() == "done\n");
}

BOOST_AUTO_TEST_CASE(writing_to_a_child_that_ended_is_an_error_not_a_signal) {
    auto request = shell("exec 0<&-; echo closed; exec sleep 1000");
    request.stdio = Stdio::pipes;
    const auto child = start(request);
    BOOST_TEST(line(*child) == "closed");
    boost::system::error_code error;
    child->input().write_some(asio::buffer("x", 1), error);
    BOOST_TEST(error == asio::error::broken_pipe);
}

BOOST_AUTO_TEST_CASE(streams_exist_only_when_asked_for) {
    const auto child = start(shell("cat"));
    BOOST_CHECK_THROW(child->input(), Error);
    BOOST_CHECK_THROW(child->output(), Error);
    // Standard input is empty, so that cat ends.
    BOOST_TEST(finish(*child).code == 0);
}

BOOST_AUTO_TEST_CASE(tail_keeps_the_newest_lines_and_never_blocks_the_child) {
    const auto text = output(shell("seq 1 400000; seq 1 400000 >&2; echo end"));
    BOOST_TEST(text.size() <= 8192u);
    BOOST_TEST(text.size() > 8000u);
    BOOST_TEST(text.ends_with("\n399999\n400000\nend\n"));
    BOOST_TEST(text.substr(0, text.find('\n')).size() == 6u);  // a whole line comes first
}

BOOST_AUTO_TEST_CASE(wait_ends_at_its_deadline) {
    const auto child = start(shell("exec sleep 1000"));
    BOOST_TEST(!test::run(context, child->wait(deadline_after(20ms))));
    BOOST_TEST(!child->exit_status());
    child->signal(SIGTERM);
    BOOST_TEST(finish(*child).code == 128 + SIGTERM);
}

BOOST_AUTO_TEST_CASE(several_coroutines_may_wait) {
    const auto child = start(shell("exec sleep 1000"));
    int woken = 0;
    auto wait = [&]() -> awaitable<void> {
        const auto status = co_await child->wait(never);
        woken += status && status->code == 137;
    };
    asio::co_spawn(context, wait(), asio::detached);
    asio::co_spawn(context, wait(), asio::detached);
    context.poll();
    child->kill_tree();
    finish(*child);
    context.poll();
    BOOST_TEST(woken == 2);
}

BOOST_AUTO_TEST_CASE(destruction_releases_those_who_wait_and_leaves_nothing) {
    auto child = start(shell("trap '' TERM INT; while :; do sleep 1000; done"));
    const auto pid = child->pid();
    std::optional<ExitStatus> status;
    bool woken = false;
    auto wait = [](SandboxedProcess& process, std::optional<ExitStatus>& result,
                   bool& flag) -> awaitable<void> {
        result = co_await process.wait(never);
        flag = true;
    };
    asio::co_spawn(context, wait(*child, status, woken), asio::detached);
    context.poll();
    child.reset();
    BOOST_TEST(!alive(pid));
    BOOST_TEST(no_children_left());  // before the context ran again
    context.restart();
    context.run();  // returns: no operation is left behind
    BOOST_TEST(woken);
    BOOST_REQUIRE(status);
    BOOST_TEST(status->code == 137);
}

BOOST_AUTO_TEST_CASE(tree_dies_with_descendants_that_left_the_session) {
    auto request = shell("setsid sh -c 'echo $$; setsid sleep 1001 & echo $!; wait' & wait");
    request.stdio = Stdio::pipes;
    auto child = start(request);
    const pid_t inner = std::stoi(line(*child));
    const pid_t innermost = std::stoi(line(*child));
    BOOST_TEST(alive(inner));
    BOOST_TEST(alive(innermost));
    child.reset();
    BOOST_TEST(dies(inner));
    BOOST_TEST(dies(innermost));
}

BOOST_AUTO_TEST_CASE(group_ends_with_its_leader) {
    auto request = shell("sleep 1002 & echo $!");
    request.stdio = Stdio::pipes;
    const auto child = start(request);
    const pid_t left = std::stoi(line(*child));
    finish(*child);
    BOOST_TEST(dies(left));
}

BOOST_AUTO_TEST_CASE(child_dies_when_its_parent_is_killed) {
    int ends[2];
    BOOST_REQUIRE(::pipe(ends) == 0);
    const pid_t parent = ::fork();
    if (parent == 0) {
        asio::io_context own;
        auto request = shell("exec sleep 1003");
        const ChildProcess child(own.get_executor(), request);
        const pid_t pid = child.pid();
        if (::write(ends[1], &pid, sizeof pid) != sizeof pid) ::_exit(1);
        for (;;) ::pause();
    }
    pid_t child = 0;
    BOOST_REQUIRE(::read(ends[0], &child, sizeof child) == sizeof child);
    BOOST_TEST(alive(child));
    ::kill(parent, SIGKILL);
    ::waitpid(parent, nullptr, 0);
    BOOST_TEST(dies(child));
    ::close(ends[0]);
    ::close(ends[1]);
}

BOOST_AUTO_TEST_CASE(only_listed_descriptors_are_inherited) {
    const int inheritable = ::open("/dev/null", O_RDONLY);
    const UniqueFd data(::memfd_create("data", MFD_CLOEXEC));
    BOOST_REQUIRE(::pwrite(data.get(), "handed over", 11, 0) == 11);
    auto request = shell(
        "cat <&7; echo; for n in $(seq 0 255); do if [ -e /proc/$$/fd/$n ]; then echo $n; fi; "
        "done");
    // The wanted number may be one that we use ourselves.
    request.fds = {{data.get(), 7}, {inheritable, data.get()}};
    std::string expected = "handed over\n0\n1\n2\n";
    for (const int number : std::set<int>{7, data.get()}) expected += std::to_string(number) + "\n";
    BOOST_TEST(output(request) == expected);
    BOOST_TEST(::fcntl(inheritable, F_GETFD) == 0);
    ::close(inheritable);
}

BOOST_AUTO_TEST_CASE(signal_state_and_session_are_fresh) {
    ::signal(SIGUSR1, SIG_IGN);
    sigset_t blocked, before;
    ::sigemptyset(&blocked);
    ::sigaddset(&blocked, SIGUSR2);
    ::pthread_sigmask(SIG_BLOCK, &blocked, &before);
    const auto text = output(shell("cat /proc/self/status; cut -d' ' -f6 /proc/$$/stat; echo $$"));
    sigset_t after;
    ::pthread_sigmask(SIG_SETMASK, &before, &after);
    ::signal(SIGUSR1, SIG_DFL);
    BOOST_TEST(::sigismember(&after, SIGUSR2) == 1);  // ours is put back
    BOOST_TEST(text.find("SigBlk:\t0000000000000000") != std::string::npos);
    BOOST_TEST(text.find("SigIgn:\t0000000000000000") != std::string::npos);
    const auto last = text.rfind('\n', text.size() - 2);
    const auto session = text.rfind('\n', last - 1);
    BOOST_TEST(text.substr(session + 1, last - session - 1) ==
               text.substr(last + 1, text.size() - last - 2));
}

BOOST_AUTO_TEST_CASE(limits_hold_and_never_loosen) {
    auto request = shell("ulimit -n; ulimit -Hn");
    request.rlimits = {{RLIMIT_NOFILE, 64}};
    BOOST_TEST(output(request) == "64\n64\n");
    rlimit ours{};
    ::getrlimit(RLIMIT_NOFILE, &ours);
    request.rlimits = {{RLIMIT_NOFILE, ours.rlim_max + 1}};
    const auto most = std::to_string(ours.rlim_max);
    BOOST_TEST(output(request) == most + "\n" + most + "\n");
}

BOOST_AUTO_TEST_CASE(the_limit_of_open_files_is_raised_for_us_alone) {
    rlimit before{}, now{};
    BOOST_REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
    struct Restored {
        const rlimit& before;
        ~Restored() {
            sandbox_kit::given_open_files().reset();
            ::setrlimit(RLIMIT_NOFILE, &before);
        }
    } const restored{before};
    const rlimit low{300, before.rlim_max};
    BOOST_REQUIRE(::setrlimit(RLIMIT_NOFILE, &low) == 0);
    raise_open_files();
    BOOST_REQUIRE(::getrlimit(RLIMIT_NOFILE, &now) == 0);
    BOOST_TEST(now.rlim_cur == before.rlim_max);
    BOOST_TEST(output(shell("ulimit -Sn")) == "300\n");
    auto request = shell("ulimit -Sn");
    request.rlimits = {{RLIMIT_NOFILE, 400}};
    BOOST_TEST(output(std::move(request)) == "400\n");
    const auto left = open_files_left();
    const UniqueFd one(::open("/", O_RDONLY | O_CLOEXEC));
    BOOST_TEST(open_files_left() == left - 1);
}

BOOST_AUTO_TEST_CASE(user_is_dropped_for_good) {
    auto request = shell("cat /proc/self/status; cat /etc/shadow");
    request.identity = Identity{65534, 65533};
    request.no_new_privileges = true;
    if (::geteuid() != 0) return fails(request, errc::sandbox_refused, "change of user");
    const auto text = output(request);
    for (const auto* words :
         {"Uid:\t65534\t65534\t65534\t65534", "Gid:\t65533\t65533\t65533\t65533", "Groups:\t \n",
          "CapEff:\t0000000000000000", "NoNewPrivs:\t1", "/etc/shadow: Permission denied"})
        BOOST_TEST(text.find(words) != std::string::npos, words << " not in " << text);
}

// The child begins in our memory, and libc keeps the users of all threads alike.
BOOST_AUTO_TEST_CASE(threads_of_ours_keep_their_user) {
    if (::geteuid() != 0) return;  // user_is_dropped_for_good says what others get
    std::promise<void> end;
    std::thread other([ended = end.get_future()]() mutable { ended.wait(); });
    auto request = shell("id -u");
    request.identity = Identity{65534, 65533};
    BOOST_TEST(output(std::move(request)) == "65534\n");
    std::size_t threads = 0;
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
        ++threads;
        BOOST_TEST(test::read_file(task.path() / "status").find("\nUid:\t0\t0\t0\t0\n") !=
                   std::string::npos);
    }
    BOOST_TEST(threads >= 2u);
    end.set_value();
    other.join();
}

BOOST_AUTO_TEST_CASE(failures_to_start_are_explained) {
    SpawnRequest request;
    request.argv = {"/nowhere/program"};
    fails(request, errc::missing_dependency, "/nowhere/program: there is no such file");

    const auto script = directory.path() / "script";
    test::write_file(script, "#!/nowhere/python\n");
    request.argv = {script};
    fails(request, errc::io_error, "Permission denied");
    std::filesystem::permissions(script, std::filesystem::perms(0755));
    fails(request, errc::missing_dependency, "first line");

    request = shell(":");
    request.cwd = directory.path() / "absent";
    fails(request, errc::io_error, "absent cannot be entered");
    request = shell(":");
    request.argv[0] = "sh";
    fails(request, errc::bad_argument, "absolute");
    request = shell(std::string("a\0b", 3));
    fails(request, errc::bad_argument, "NUL");
    BOOST_TEST(no_children_left());
}

BOOST_AUTO_TEST_CASE(failing_child_runs_none_of_our_exit_handlers) {
    static int* calls = static_cast<int*>(
        ::mmap(nullptr, sizeof(int), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    static pid_t self = ::getpid();
    BOOST_REQUIRE(std::atexit([] { *calls += ::getpid() != self; }) == 0);
    SpawnRequest request;
    request.argv = {"/nowhere/program"};
    fails(request, errc::missing_dependency, "no such file");
    BOOST_TEST(*calls == 0);
}

BOOST_AUTO_TEST_CASE(programs_are_found_in_absolute_directories_only) {
    const auto tool = directory.path() / "tool";
    test::write_file(tool, "#!/bin/sh\n");
    const auto path = "relative::/nowhere:" + directory.path().string();
    BOOST_TEST(!find_program("tool", path));  // not executable yet
    std::filesystem::permissions(tool, std::filesystem::perms(0755));
    BOOST_TEST(find_program("tool", path).value() == tool);
    BOOST_TEST(find_program(tool.string(), "").value() == tool);
    BOOST_TEST(!find_program("", path));
    BOOST_TEST(!find_program("sub", path));
    const auto before = std::filesystem::current_path();
    std::filesystem::current_path(directory.path());
    BOOST_TEST(!find_program("tool", ":.:"));
    BOOST_TEST(find_program("./tool", "").has_value());
    std::filesystem::current_path(before);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace process_tests
