#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <ipybox/registry.hpp>
#include <set>

#include "test_support.hpp"

namespace plugin_sandbox_none_tests {

namespace {
using namespace ipybox;
using namespace std::chrono_literals;

// Leaves its session and its parent, as a daemon does; prints its number.
constexpr const char* leaver = "(setsid sh -c 'echo $$; exec sleep 1021 > /dev/null 2>&1' &); ";

bool is_gone(pid_t pid) { return ::kill(pid, 0) != 0 && errno == ESRCH; }
bool goes(pid_t pid) {
    for (int i = 0; i < 1000 && !is_gone(pid); ++i) ::usleep(10'000);
    return is_gone(pid);
}

struct Fixture {
    asio::io_context context;
    Host host{context.get_executor(), {}, {}};
    PluginRegistry registry;
    std::unique_ptr<Sandbox> sandbox;
    test::TemporaryDirectory directory;
    SandboxPolicy policy;

    Fixture() {
        registry.load(test::plugin_directory() / "sandbox" / "none.so");
        sandbox = registry.make<Sandbox>("none", host, {});
        policy.env = {{"PATH", "/usr/bin:/bin"}};
        policy.cwd = directory.path();
        policy.network.mode = NetworkPolicy::Mode::full;
    }
    std::unique_ptr<SandboxedProcess> launch(std::string script, Stdio stdio = Stdio::tail) {
        const std::vector<std::string> argv{"/bin/sh", "-c", script};
        return test::run(context, sandbox->launch(policy, argv, {}, stdio));
    }
    std::string output(std::string script) {
        const auto process = launch(std::move(script));
        BOOST_REQUIRE(test::run(context, process->wait(deadline_after(60s))));
        return process->output_tail();
    }
    std::string line(SandboxedProcess& process) {
        const auto read = [&process]() -> awaitable<std::string> {
            std::string text;
            for (char c = 0; c != '\n'; text += c)
                co_await process.output().async_read_some(asio::buffer(&c, 1), asio::use_awaitable);
            co_return text;
        };
        return test::run(context, read());
    }
    void refuses(std::string_view words) {
        BOOST_CHECK_EXCEPTION(launch("true"), Error, [&](const Error& error) {
            BOOST_TEST_INFO(error.what());
            return error.code() == errc::sandbox_refused &&
                   error.detail().find(words) != std::string::npos;
        });
    }
};
}  // namespace

BOOST_FIXTURE_TEST_SUITE(sandbox_none, Fixture)

BOOST_AUTO_TEST_CASE(promises_nothing_but_runs) {
    const auto able = test::run(context, sandbox->probe());
    BOOST_TEST(able.available);
    BOOST_TEST(able.problem.empty());
    BOOST_TEST(able.limits_per_process);  // by what a process can set for itself
    for (const bool claim : {able.filesystem, able.network_none, able.network_allow_list,
                             able.process_isolation, able.memory_total})
        BOOST_TEST(!claim);
    for (const auto wanted : {Programs::deny, Programs::ask})
        BOOST_TEST(!test::run(context, sandbox->programs_problem(wanted)).empty());
}

BOOST_AUTO_TEST_CASE(runs_as_we_do_with_an_exact_environment) {
    policy.env["NAME"] = "value";
    policy.readable = {"/usr"};
    policy.writable = {directory.path()};
    const Channel channel{"tools", directory.path() / "tools.sock"};
    BOOST_TEST(sandbox->guest_address(policy, channel) == channel.host_path.string());
    BOOST_TEST(sandbox->guest_user(policy) == ::geteuid());
    BOOST_TEST(output("pwd; id -u; echo $NAME; env | wc -l") ==
               directory.path().string() + "\n" + std::to_string(::geteuid()) + "\nvalue\n3\n");
}

BOOST_AUTO_TEST_CASE(limits_that_one_process_can_carry_are_set) {
    policy.limits.open_files = 99;
    policy.limits.file_size = 512 * 1024;
    policy.limits.cpu_seconds = 7;
    policy.limits.memory_per_process = 1ull << 30;
    BOOST_TEST(output("ulimit -n; ulimit -f; ulimit -t; ulimit -v") == "99\n1024\n7\n1048576\n");
}

BOOST_AUTO_TEST_CASE(refuses_what_it_cannot_enforce) {
    const auto plain = policy;
    const auto change = [&](auto edit, std::string_view words) {
        policy = plain;
        edit(policy);
        refuses(words);
    };
    change([](auto& p) { p.network.mode = NetworkPolicy::Mode::none; }, "network");
    change([](auto& p) { p.network.mode = NetworkPolicy::Mode::allow_list; }, "network");
    change([](auto& p) { p.hidden = {".env"}; }, "hide");
    change([](auto& p) { p.write_protected = {"/x"}; }, "write-protect");
    if (::geteuid() != 0) change([](auto& p) { p.user = ::geteuid() + 1; }, "user");
    change([](auto& p) { p.limits.memory_total = 1; }, "memory");
    change([](auto& p) { p.limits.processes = 1; }, "processes");
    change([](auto& p) { p.limits.scratch_size = 1; }, "/tmp");
}

BOOST_AUTO_TEST_CASE(root_may_name_another_user) {
    policy.user = ::geteuid() == 0 ? 4242 : ::geteuid();
    BOOST_TEST(sandbox->guest_user(policy) == *policy.user);
    BOOST_TEST(output("id -u; id -G | wc -w") ==
               std::to_string(*policy.user) +
                   (::geteuid() == 0 ? "\n1\n" : "\n" + output("id -G | wc -w")));
}

BOOST_AUTO_TEST_CASE(without_a_directory_it_starts_where_nobody_writes) {
    policy.cwd.clear();
    BOOST_TEST(output("pwd") == "/\n");
}

BOOST_AUTO_TEST_CASE(interrupt_reaches_the_command) {
    const auto process = launch(
        "trap 'echo caught; exit 5' INT; echo ready; while :; do sleep 0.01; done", Stdio::pipes);
    char ready[6];
    auto read = [&]() -> awaitable<void> {
        std::size_t have = 0;
        while (have < sizeof ready)
            have += co_await process->output().async_read_some(
                asio::buffer(ready + have, sizeof ready - have), asio::use_awaitable);
    };
    test::run(context, read());
    process->interrupt();
    const auto status = test::run(context, process->wait(deadline_after(60s)));
    BOOST_REQUIRE(status);
    BOOST_TEST(status->code == 5);
}

BOOST_AUTO_TEST_CASE(a_signal_for_the_group_reaches_each_of_it_once) {
    const auto process = launch(
        "trap 'echo parent' TERM; sh -c \"trap 'echo child; exit' TERM; echo ready; while :; do "
        "sleep 0.01; done\" & "
        "wait; sleep 0.3; exit 7",
        Stdio::pipes);
    BOOST_TEST(line(*process) == "ready\n");
    process->signal(SIGTERM);
    std::multiset<std::string> heard{line(*process), line(*process)};
    BOOST_TEST((heard == std::multiset<std::string>{"child\n", "parent\n"}));
    BOOST_CHECK_THROW(line(*process), boost::system::system_error);  // nothing more until the end
    const auto status = test::run(context, process->wait(deadline_after(60s)));
    BOOST_REQUIRE(status);
    BOOST_TEST(status->code == 7);
}

BOOST_AUTO_TEST_CASE(what_left_the_command_ends_with_it) {
    const auto process = launch(std::string(leaver) + "read go", Stdio::pipes);
    const pid_t left = std::stoi(line(*process));
    BOOST_TEST(!is_gone(left));
    process->input().close();  // the command ends by itself
    const auto status = test::run(context, process->wait(deadline_after(60s)));
    BOOST_REQUIRE(status);
    BOOST_TEST(is_gone(left));
    for (const bool killed : {true, false}) {
        auto other = launch(std::string(leaver) + "sleep 1022", Stdio::pipes);
        const pid_t daemon = std::stoi(line(*other));
        BOOST_TEST(!is_gone(daemon));
        if (killed)
            other->kill_tree();
        else
            other.reset();
        BOOST_TEST(goes(daemon));
    }
}

BOOST_AUTO_TEST_CASE(what_left_the_command_ends_with_a_killed_host) {
    int ends[2];
    BOOST_REQUIRE(::pipe(ends) == 0);
    context.notify_fork(asio::execution_context::fork_prepare);
    const pid_t host_process = ::fork();
    if (host_process == 0) {
        context.notify_fork(asio::execution_context::fork_child);
        const auto process = launch(std::string(leaver) + "sleep 1022", Stdio::pipes);
        const pid_t pid = std::stoi(line(*process));
        if (::write(ends[1], &pid, sizeof pid) != sizeof pid) ::_exit(1);
        for (;;) ::pause();
    }
    context.notify_fork(asio::execution_context::fork_parent);
    pid_t left = 0;
    BOOST_REQUIRE(::read(ends[0], &left, sizeof left) == sizeof left);
    BOOST_TEST(!is_gone(left));
    ::kill(host_process, SIGKILL);
    ::waitpid(host_process, nullptr, 0);
    BOOST_TEST(goes(left));
    ::close(ends[0]);
    ::close(ends[1]);
}

BOOST_AUTO_TEST_CASE(the_command_inherits_nothing_of_its_guard) {
    BOOST_TEST(output("ls /proc/self/fd | wc -l") ==
               "4\n");  // three streams, and the list that ls reads
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace plugin_sandbox_none_tests
