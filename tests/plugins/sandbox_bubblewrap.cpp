#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/datagram_protocol.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <boost/test/unit_test.hpp>
#include <ipybox/config.hpp>
#include <ipybox/registry.hpp>
#include <ipybox/sandbox_kit/detail/placeholder.hpp>
#include <ipybox/sandbox_kit/launcher.hpp>
#include <ipybox/sandbox_kit/process.hpp>
#include <set>

#include "channel_talk.hpp"
#include "killed_hosts.hpp"
#include "quota_volume.hpp"
#include "test_support.hpp"

namespace plugin_sandbox_bubblewrap_tests {

namespace {
using namespace ipybox;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

struct Fixture {
    asio::io_context context;
    Host host{context.get_executor(), {}, {}};
    PluginRegistry registry;
    std::unique_ptr<Sandbox> sandbox;
    test::TemporaryDirectory directory;
    fs::path workspace = directory.path() / "workspace";
    uid_t guest = ::geteuid() == 0 ? 65534 : ::geteuid();
    SandboxPolicy policy;
    std::vector<Channel> channels;

    Fixture() {
        registry.load(test::plugin_directory() / "sandbox" / "bubblewrap.so");
        sandbox = registry.make<Sandbox>("bubblewrap", host, {});
        make_directory(workspace);
        policy.writable = {workspace};
        policy.cwd = workspace;
        policy.env = {{"PATH", "/usr/bin:/bin"}, {"HOME", "/home/user"}};
    }
    void use_placeholders() {
        sandbox = registry.make<Sandbox>("bubblewrap", host, {{"absent_names", "placeholders"}});
    }
    void give(const fs::path& path) { BOOST_REQUIRE(::lchown(path.c_str(), guest, guest) == 0); }
    void make_directory(const fs::path& path) {
        fs::create_directory(path);
        give(path);
    }
    void make_file(const fs::path& path, std::string_view text) {
        test::write_file(path, text);
        give(path);
    }

    std::unique_ptr<SandboxedProcess> launch(std::vector<std::string> argv,
                                             Stdio stdio = Stdio::tail) {
        return test::run(context, sandbox->launch(policy, std::move(argv), channels, stdio));
    }
    std::unique_ptr<SandboxedProcess> shell(std::string script, Stdio stdio = Stdio::tail) {
        return launch({"/bin/sh", "-c", std::move(script)}, stdio);
    }
    ExitStatus finish(SandboxedProcess& process) {
        const auto status = test::run(context, process.wait(deadline_after(60s)));
        BOOST_REQUIRE(status);
        return *status;
    }
    // What a command prints on both streams.
    std::string output(std::vector<std::string> argv) {
        const auto process = launch(std::move(argv));
        finish(*process);
        return process->output_tail();
    }
    std::string sh(std::string script) { return output({"/bin/sh", "-c", std::move(script)}); }
    std::string python(std::string script) {
        return output({"/usr/bin/python3", "-I", "-c", std::move(script)});
    }
    // A host beside this one that starts a sandbox and is killed.
    void run_and_kill() {
        int ends[2];
        BOOST_REQUIRE(::pipe(ends) == 0);
        const pid_t crashing = ::fork();
        if (crashing == 0) {
            asio::io_context own;
            Host lent{own.get_executor(), {}, {}};
            const auto mine =
                registry.make<Sandbox>("bubblewrap", lent, {{"absent_names", "placeholders"}});
            const std::vector<std::string> argv{"/bin/sh", "-c", "echo x; sleep 1000"};
            const auto process = test::run(own, mine->launch(policy, argv, {}, Stdio::tail));
            for (int i = 0; i < 3000 && process->output_tail().empty(); ++i) ::usleep(10'000);
            if (::write(ends[1], "x", 1) != 1) ::_exit(1);
            for (;;) ::pause();
        }
        char ready = 0;
        BOOST_REQUIRE(::read(ends[0], &ready, 1) == 1);
        ::kill(crashing, SIGKILL);
        ::waitpid(crashing, nullptr, 0);
        ::close(ends[0]);
        ::close(ends[1]);
    }
    std::string line(SandboxedProcess& process) {
        std::string text;
        auto read = [&]() -> awaitable<void> {
            char one = 0;
            while (one != '\n') {
                const auto [error, count] =
                    co_await asio::async_read(process.output(), asio::buffer(&one, 1), as_result);
                if (error) throw std::runtime_error("no line, but: " + process.output_tail());
                text += one;
            }
        };
        test::run(context, read());
        text.pop_back();
        return text;
    }
    void refuses(std::string_view words) {
        BOOST_CHECK_EXCEPTION(shell("true"), Error, [&](const Error& error) {
            BOOST_TEST_INFO(error.what());
            return error.code() == errc::sandbox_refused &&
                   error.detail().find(words) != std::string::npos;
        });
    }
};

bool contains(const std::string& text, std::string_view words) {
    return text.find(words) != std::string::npos;
}

bool alive(pid_t pid) {
    const auto stat = sandbox_kit::read_proc("/proc/" + std::to_string(pid) + "/stat");
    const auto end = stat.rfind(')');
    return end != std::string::npos && stat[end + 2] != 'Z' && stat[end + 2] != 'X';
}
bool dies(pid_t pid) {
    for (int i = 0; i < 3000 && alive(pid); ++i) ::usleep(10'000);
    return !alive(pid);
}
std::vector<pid_t> descendants(pid_t pid) {
    std::vector<pid_t> all{pid};
    for (std::size_t i = 0; i < all.size(); ++i)
        for (const pid_t child : sandbox_kit::children_of(all[i])) all.push_back(child);
    return all;
}
}  // namespace

BOOST_FIXTURE_TEST_SUITE(sandbox_bubblewrap, Fixture)

BOOST_AUTO_TEST_CASE(probe_finds_what_it_enforces) {
    const auto able = test::run(context, sandbox->probe());
    BOOST_REQUIRE_MESSAGE(able.available, able.problem);
    BOOST_TEST(able.problem.empty());
    for (const bool claim :
         {able.filesystem, able.network_none, able.network_allow_list, able.process_isolation,
          able.limits_per_process, able.wall_time, able.scratch_size})
        BOOST_TEST(claim);
    for (const auto wanted : {Programs::deny, Programs::ask})
        BOOST_TEST(test::run(context, sandbox->programs_problem(wanted)).empty() ==
                   (landlock_version() >= 1));
    BOOST_TEST(able.workspace_size == sandbox_kit::ProjectQuota::machine_problem().empty());
}

BOOST_AUTO_TEST_CASE(probe_tells_the_remedy) {
    auto broken = registry.make<Sandbox>("bubblewrap", host, {{"bwrap", "/nowhere/bwrap"}});
    BOOST_TEST(contains(test::run(context, broken->probe()).problem, "apt-get install bubblewrap"));
    sandbox = std::move(broken);
    BOOST_CHECK_EXCEPTION(shell("true"), Error, [](const Error& error) {
        return error.code() == errc::missing_dependency;
    });

    // A bwrap on a machine without user namespaces.
    const auto script = directory.path() / "bwrap";
    test::write_file(
        script, "#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n");
    fs::permissions(script, fs::perms(0755));
    sandbox = registry.make<Sandbox>("bubblewrap", host, {{"bwrap", script.string()}});
    const auto able = test::run(context, sandbox->probe());
    BOOST_TEST(!able.available);
    BOOST_TEST(contains(able.problem, "setting up uid map: Permission denied"), able.problem);
    BOOST_TEST(contains(able.problem, "user namespaces"));
    refuses("user namespaces");
}

// It goes by paths, which code of another session in the workspace may exchange for links just
// then.
BOOST_AUTO_TEST_CASE(bwrap_can_write_nowhere_but_where_the_guest_may) {
    if (!test::run(context, sandbox->probe()).scratch_inodes) {
        BOOST_TEST_MESSAGE("skipped: only bwrap may make user namespaces here");
        return;
    }
    const auto outside = directory.path() / "outside", inner = workspace / "inner";
    const auto box = directory.path() / "box", seen = directory.path() / "seen";
    for (const auto& path : {outside, inner, box, seen}) make_directory(path);
    policy.readable = {seen};
    policy.writable = {workspace, inner};
    policy.write_protected = {workspace / ".git/hooks"};
    channels = {{"box", box, Channel::Access::write}};
    const auto script = directory.path() / "bwrap";
    std::string text = "#!/bin/sh\n";
    for (const auto& path : {outside, seen, workspace, box})
        text += "touch " + path.string() + "/led 2>&1\n";
    test::write_file(script, text + "exec /usr/bin/bwrap \"$@\"\n");
    fs::permissions(script, fs::perms(0755));
    for (const bool overlay : {true, false}) {
        BOOST_TEST_CONTEXT("overlay " << overlay) {
            json::object config{{"bwrap", script.string()}};
            if (!overlay) config["absent_names"] = "placeholders";
            sandbox = registry.make<Sandbox>("bubblewrap", host, config);
            const auto said =
                sh("touch mine inner/mine " + sandbox->guest_address(policy, channels[0]) +
                   "/mine && echo good");
            BOOST_TEST(contains(said, outside.string() + "/led': Read-only file system"), said);
            BOOST_TEST(said.ends_with("good\n"), said);
            for (const auto& path : {outside, seen}) BOOST_TEST(!fs::exists(path / "led"), path);
            for (const auto& path : {workspace, inner, box}) {
                BOOST_TEST(fs::exists(path / "mine"), path);
                fs::remove(path / "mine");
            }
            BOOST_TEST(fs::exists(box / "led"));
        }
    }
}

BOOST_AUTO_TEST_CASE(older_bwrap_without_disable_userns_still_serves) {
    const auto script = directory.path() / "bwrap";
    // Options arrive in descriptor 14 or so; an old bwrap stops at the first it does not know.
    test::write_file(script,
                     "#!/bin/sh\nif tr '\\0' '\\n' <&$2 | grep -qx -e --disable-userns; then\n"
                     "echo 'bwrap: Unknown option --disable-userns' >&2; exit 1; fi\nexit 0\n");
    fs::permissions(script, fs::perms(0755));
    sandbox = registry.make<Sandbox>("bubblewrap", host, {{"bwrap", script.string()}});
    BOOST_TEST(test::run(context, sandbox->probe()).available);
}

BOOST_AUTO_TEST_CASE(exit_code_and_streams_pass_through) {
    auto process = shell("cat; exit 9", Stdio::pipes);
    auto write = [&]() -> awaitable<void> {
        const std::string text = "through the wall\n";
        co_await asio::async_write(process->input(), asio::buffer(text), asio::use_awaitable);
        process->input().close();
    };
    test::run(context, write());
    BOOST_TEST(line(*process) == "through the wall");
    BOOST_TEST(finish(*process).code == 9);
}

BOOST_AUTO_TEST_CASE(view_is_minimal) {
    const auto library = directory.path() / "library";
    fs::create_directory(library);
    test::write_file(library / "data", "readable");
    test::write_file(directory.path() / "neighbour", "secret");
    policy.readable = {library};
    const auto quoted = directory.path().string();
    BOOST_TEST(sh("cat " + quoted + "/library/data") == "readable");
    BOOST_TEST(contains(sh("echo x > " + quoted + "/library/data"), "Read-only file system"));
    BOOST_TEST(test::read_file(library / "data") == "readable");
    for (const std::string path :
         {"/etc/shadow", "/root", "/var", "/opt", "/sys", "/run/dbus", "/etc/hostname"})
        BOOST_TEST(contains(sh("ls " + path), "No such file"), path);
    BOOST_TEST(contains(sh("cat " + quoted + "/neighbour"), "No such file"));
    for (const std::string path : {"/", "/usr", "/etc", "/run", "/home", "/dev", "/run/ipybox"})
        BOOST_TEST(!contains(sh("touch " + path + "/x && echo made"), "made"), path);
}

BOOST_AUTO_TEST_CASE(workspace_scratch_and_home_are_writable) {
    BOOST_TEST(sh("echo mine > file && echo x > /tmp/a && echo x > ~/b && echo x > /dev/shm/c && "
                  "cat file && pwd") == "mine\n" + workspace.string() + "\n");
    BOOST_TEST(test::read_file(workspace / "file") == "mine\n");
    struct stat made{};
    BOOST_REQUIRE(::stat((workspace / "file").c_str(), &made) == 0);
    BOOST_TEST(made.st_uid == guest);
    BOOST_TEST(!fs::exists("/tmp/a"));
}

BOOST_AUTO_TEST_CASE(guest_has_no_privileges) {
    const auto text = sh("cat /proc/self/status; id -u");
    for (const auto* words :
         {"CapEff:\t0000000000000000", "CapPrm:\t0000000000000000", "CapBnd:\t0000000000000000",
          "NoNewPrivs:\t1", "Seccomp:\t2", "\n1000\n"})
        BOOST_TEST(contains(text, words), words << " not in " << text);
    // As the host sees it.
    auto process = shell("echo ready; cat", Stdio::pipes);
    line(*process);
    for (const pid_t pid : descendants(process->pid())) {
        const auto status = sandbox_kit::read_proc("/proc/" + std::to_string(pid) + "/status");
        const auto id = std::to_string(guest);
        BOOST_TEST(contains(status, "Uid:\t" + id + "\t" + id + "\t" + id + "\t" + id), status);
    }
    BOOST_TEST(sandbox->guest_user(policy) == guest);
}

BOOST_AUTO_TEST_CASE(where_programs_are_denied_the_command_is_the_last) {
    if (landlock_version() < 1) {
        policy.programs = Programs::deny;
        refuses("--no-exec): Landlock");
        return;
    }
    const std::string script =
        "/bin/true && echo ran; (exec /bin/true) && echo ran; env true && echo ran; "
        "(echo forked); echo ready; read line; /bin/true && echo ran; echo over";
    const auto begin = [&] {
        auto process = shell(script, Stdio::pipes);
        std::string said;
        for (std::string next; next != "ready"; said += next + " ") next = line(*process);
        return std::pair(std::move(process), said);
    };
    for (const bool logged : {false, true}) {
        if (logged) sandbox = registry.make<Sandbox>("bubblewrap", host, {{"kernel_log", true}});
        policy.programs = Programs::allow;
        const auto [free, all] = begin();
        BOOST_TEST(all == "ran ran ran forked ready ");
        BOOST_TEST(!free->is_last_program());
        policy.programs = Programs::deny;
        const auto [held, said] = begin();
        BOOST_TEST(said == "forked ready ");
        BOOST_TEST(held->is_last_program());
        held->input().close();
        BOOST_TEST(line(*held) == "over");
        finish(*held);
        // Of what has ended nothing is said.
        BOOST_TEST(!held->is_last_program());
    }
    // A program that is not there, and one that is killed, end as ever.
    auto missing = launch({"/nowhere/program"});
    BOOST_TEST(finish(*missing).code == 127);
    auto sleeping = launch({"/usr/bin/sleep", "1000"});
    for (int i = 0; i < 3000 && !sleeping->is_last_program(); ++i) ::usleep(10'000);
    sleeping->interrupt();
    BOOST_TEST(finish(*sleeping).code == 128 + SIGINT);
    // The zygote of a pen must be started itself.
    BOOST_CHECK_EXCEPTION(test::run(context, sandbox->make_pen(policy, {"/usr/bin/true"}, {}, -1)),
                          Error,
                          [](const Error& error) { return error.code() == errc::sandbox_refused; });
}

BOOST_AUTO_TEST_CASE(other_processes_are_out_of_sight) {
    const auto text =
        sh("for p in /proc/[0-9]*; do echo $p; done; kill -0 " + std::to_string(::getpid()));
    BOOST_TEST(contains(text, "/proc/1\n"));
    BOOST_TEST(std::count(text.begin(), text.end(), '/') <= 6);
    BOOST_TEST(contains(text, "No such process"));
}

BOOST_AUTO_TEST_CASE(environment_is_exact_and_in_nobody_elses_sight) {
    policy.env["TOKEN"] = "s3cret-value";
    ::setenv("IPYBOX_TEST_HOST_SECRET", "host-s3cret", 1);
    auto process = shell("env; echo end; cat", Stdio::pipes);
    std::set<std::string> seen;
    for (auto next = line(*process); next != "end"; next = line(*process)) seen.insert(next);
    ::unsetenv("IPYBOX_TEST_HOST_SECRET");
    // bwrap adds the directory it was told to enter.
    const std::set<std::string> expected{"PATH=/usr/bin:/bin", "HOME=/home/user",
                                         "TOKEN=s3cret-value", "PWD=" + workspace.string()};
    BOOST_TEST(seen == expected, boost::test_tools::per_element());
    for (const pid_t pid : descendants(process->pid()))
        BOOST_TEST(!contains(sandbox_kit::read_proc("/proc/" + std::to_string(pid) + "/cmdline"),
                             "s3cret"));
    BOOST_TEST(sh("cat /proc/1/environ 2>/dev/null | tr '\\0' '\\n' | wc -c") == "0\n");
}

BOOST_AUTO_TEST_CASE(descriptors_do_not_leak) {
    const int inheritable = ::open("/etc/hostname", O_RDONLY);
    const auto seen =
        sh("for n in $(seq 0 1023); do [ -e /proc/$$/fd/$n ] && echo $n; done; "
           "ls /proc/1/fd 2>&1");
    ::close(inheritable);
    BOOST_TEST(seen.starts_with("0\n1\n2\n"));
    const auto rest = seen.substr(6);
    // bwrap's init keeps its own; none of them is a file of ours.
    BOOST_TEST(!contains(sh("ls -l /proc/1/fd /proc/$$/fd 2>&1"), "hostname"));
    BOOST_TEST(!contains(rest.substr(0, rest.find("ls:")), "10\n"));
}

BOOST_AUTO_TEST_CASE(network_is_none_or_full) {
    asio::ip::tcp::acceptor listener(context, {asio::ip::address_v4::loopback(), 0});
    const auto port = std::to_string(listener.local_endpoint().port());
    // An abstract Unix socket belongs to the network namespace.
    asio::local::stream_protocol::acceptor abstract(context,
                                                    {std::string("\0ipybox-test-", 13) + port});
    const auto script =
        "import socket\n"
        "for family, address in ((socket.AF_INET, ('127.0.0.1', " +
        port +
        ")), "
        "(socket.AF_UNIX, '\\0ipybox-test-" +
        port +
        "')):\n"
        "    try: socket.socket(family).connect(address); print('connected')\n"
        "    except OSError as e: print(type(e).__name__)\n"
        "try: print(socket.gethostbyname('localhost'))\n"
        "except OSError as e: print(e)\n"
        "print([name for _, name in socket.if_nameindex()] == ['lo'])\n";
    BOOST_TEST(python(script) ==
               "ConnectionRefusedError\nConnectionRefusedError\n127.0.0.1\nTrue\n");
    policy.network.mode = NetworkPolicy::Mode::full;
    // Landlock, where there is some, keeps abstract sockets of the host out of reach even then.
    const auto with_network = python(script);
    BOOST_TEST(with_network.starts_with("connected\n"));
    BOOST_TEST(contains(with_network, "\n127.0.0.1\n"));
    policy.network.mode = NetworkPolicy::Mode::allow_list;
    BOOST_CHECK_EXCEPTION(shell("true"), Error,
                          [](const Error& error) { return error.code() == errc::bad_argument; });
}

BOOST_AUTO_TEST_CASE(hidden_files_fail_to_open) {
    make_file(workspace / ".env", "KEY=s3cret");
    make_directory(workspace / "sub");
    make_file(workspace / "sub/.env", "KEY=s3cret");
    make_file(workspace / "sub/a.pem", "s3cret");
    make_file(workspace / "plain", "s3cret");
    make_directory(workspace / "private");
    make_file(workspace / "private/x", "s3cret");
    fs::create_symlink("plain", workspace / "linked.pem");
    policy.hidden = {".env",
                     "**/.env",
                     "**/*.pem",
                     "private/**",
                     (workspace / "absolute").string(),
                     (workspace / "deep/**/secret?").string()};
    make_file(workspace / "absolute", "s3cret");
    make_directory(workspace / "deep");
    make_directory(workspace / "deep/er");
    make_file(workspace / "deep/er/secret1", "s3cret");
    make_file(workspace / "deep/er/secret", "seen");
    for (const std::string path : {".env", "sub/.env", "sub/a.pem", "plain", "private/x",
                                   "linked.pem", "absolute", "deep/er/secret1"})
        BOOST_TEST(contains(sh("cat " + path), "Permission denied"), path);
    BOOST_TEST(contains(sh("ls private"), "Permission denied"));
    BOOST_TEST(sh("cat deep/er/secret") == "seen");
    BOOST_TEST(
        !contains(sh("mv .env b; cat b; rm -f .env; cat .env; cp .env c; cat c;"
                     "chmod 777 .env private; cat .env private/x; mv sub moved; cat moved/.env;"
                     "grep -r s3cret . /proc/self/root/" +
                     workspace.string() + "; ln .env d; cat d"),
                  "s3cret"));
    BOOST_TEST(test::read_file(workspace / ".env") == "KEY=s3cret");
}

BOOST_AUTO_TEST_CASE(hidden_file_may_appear_later) {
    use_placeholders();
    policy.hidden = {"**/.env"};
    {
        auto process = shell("echo ready; read go; cat .env; echo $?", Stdio::pipes);
        line(*process);
        {
            // In place, as a shell or an editor without backup files writes.
            const UniqueFd file(::open((workspace / ".env").c_str(), O_WRONLY));
            BOOST_REQUIRE(file);
            BOOST_REQUIRE(::write(file.get(), "s3cret", 6) == 6);
        }
        const std::string go = "go\n";
        asio::write(process->input(), asio::buffer(go));
        BOOST_TEST(line(*process) == "1");
    }
    // What the host wrote stays.
    BOOST_TEST(test::read_file(workspace / ".env") == "s3cret");
}

BOOST_AUTO_TEST_CASE(protected_paths_hold_present_and_absent) {
    use_placeholders();
    make_directory(workspace / ".git");
    make_file(workspace / ".git/config", "original");
    make_file(workspace / "rules", "original");
    make_directory(workspace / "ordinary");
    policy.write_protected = {
        workspace / ".git/config", workspace / ".git/hooks",       workspace / "rules",
        workspace / ".mcp.json",   workspace / ".claude/commands", "/usr/not-writable-anyway"};
    {
        const auto process = shell("sleep 1000");
        for (const std::string attack :
             {"echo x > rules", "rm -f rules", "mv rules r2", "echo x > .git/config", "mv .git g2",
              "rm -rf .git", "mkdir .git/hooks", "echo x > .git/hooks", "echo x > .mcp.json",
              "ln -sf plain .mcp.json", "mkdir -p .claude/commands", "touch .claude/x",
              "mv .claude c2", "mv -T ordinary .git/hooks", "chmod 777 rules",
              "ln rules hard && echo x > hard"})
            BOOST_TEST(!contains(sh("if " + attack + "; then echo done; fi"), "done"), attack);
        BOOST_TEST(sh("cat rules .git/config") == "originaloriginal");
        // The rest of the protected path's directory stays usable.
        BOOST_TEST(sh("echo x > .git/index && mkdir .git/objects && echo ok") == "ok\n");
        // They hold for a second sandbox after a first one on the same workspace ended.
        BOOST_TEST(fs::exists(workspace / ".mcp.json"));
        BOOST_TEST(process->exit_status().has_value() == false);
    }
    BOOST_TEST(test::read_file(workspace / "rules") == "original");
    for (const auto* left : {".mcp.json", ".claude", ".git/hooks"})
        BOOST_TEST(!fs::exists(fs::symlink_status(workspace / left)), left);
}

BOOST_AUTO_TEST_CASE(placeholders_are_shared_and_survivors_of_a_crash_removed) {
    use_placeholders();
    policy.write_protected = {workspace / ".mcp.json", workspace / ".vscode/settings"};
    std::optional<std::unique_ptr<SandboxedProcess>> first(shell("sleep 1000"));
    auto second = shell("echo ready; read go; echo x > .mcp.json || echo held", Stdio::pipes);
    line(*second);
    first.reset();
    BOOST_TEST(fs::exists(workspace / ".mcp.json"));
    const std::string go = "go\n";
    asio::write(second->input(), asio::buffer(go));
    BOOST_TEST(line(*second) == "held");
    second.reset();
    BOOST_TEST(fs::is_empty(workspace));

    run_and_kill();
    BOOST_TEST(fs::exists(workspace / ".mcp.json"));
    BOOST_TEST(contains(sh("echo x > .mcp.json"), "Read-only file system"));
    BOOST_TEST(fs::is_empty(workspace));
}

BOOST_AUTO_TEST_CASE(what_a_killed_host_left_is_removed_by_the_next_start_anywhere) {
    use_placeholders();
    const auto second = directory.path() / "second";
    make_directory(second);
    make_directory(second / "sub");
    make_directory(second / "moved");
    fs::create_directories(second / ".git/info");
    test::write_file(second / ".git/info/exclude", "*.o\n");
    give(second / ".git");
    policy.writable.push_back(second);
    policy.write_protected = {workspace / ".mcp.json", workspace / ".vscode/settings",
                              second / ".envrc", second / "sub/.mcp.json",
                              second / "moved/.mcp.json"};
    run_and_kill();
    BOOST_TEST(fs::exists(second / "sub/.mcp.json"));
    BOOST_TEST(test::read_file(second / ".git/info/exclude") != "*.o\n");
    // What the person made theirs meanwhile, and what code had lead elsewhere.
    test::write_file(workspace / ".mcp.json", "{}");
    fs::rename(second / "moved", directory.path() / "outside");
    fs::create_directory_symlink(directory.path() / "outside", second / "moved");

    const auto elsewhere = directory.path() / "elsewhere";
    make_directory(elsewhere);
    policy.writable = {elsewhere};
    policy.write_protected = {};
    policy.cwd = elsewhere;
    sandbox = registry.make<Sandbox>("bubblewrap", host, {});
    BOOST_TEST(sh("echo started") == "started\n");
    BOOST_TEST(test::read_file(workspace / ".mcp.json") == "{}");
    BOOST_TEST(!fs::exists(workspace / ".vscode"));
    BOOST_TEST(!fs::exists(second / ".envrc"));
    BOOST_TEST(!fs::exists(second / "sub/.mcp.json"));
    BOOST_TEST(fs::exists(directory.path() / "outside/.mcp.json"));
    BOOST_TEST(test::read_file(second / ".git/info/exclude") == "*.o\n");
}

BOOST_AUTO_TEST_CASE(git_does_not_see_what_holds_names) {
    use_placeholders();
    const auto git = [&](const std::string& arguments) {
        return ::system(
            ("cd " + workspace.string() + " && git -c safe.directory='*' " + arguments).c_str());
    };
    BOOST_REQUIRE(git("init -q .") == 0);
    const auto exclude = workspace / ".git/info/exclude";
    const auto before = test::read_file(exclude);
    policy.write_protected = {workspace / ".mcp.json", workspace / ".env rc",
                              workspace / ".vscode"};
    {
        const auto process = shell("echo ready; read go", Stdio::pipes);
        line(*process);
        BOOST_TEST(fs::exists(workspace / ".env rc"));
        BOOST_TEST(git("status --porcelain | grep . && exit 1 || exit 0") == 0);
        // What the host makes of one is its own.
        make_file(workspace / ".mcp.json", "{}");
    }
    BOOST_TEST(test::read_file(exclude) == before);
    BOOST_TEST(git("status --porcelain | grep -q mcp.json") == 0);
    // Code can put a link in the file's place: nothing is written behind it.
    fs::rename(exclude, workspace / "elsewhere");
    fs::create_symlink("../../elsewhere", exclude);
    {
        const auto process = shell("echo ready; read go", Stdio::pipes);
        line(*process);
        BOOST_TEST(test::read_file(workspace / "elsewhere") == before);
    }
    BOOST_TEST(fs::is_symlink(exclude));
}

BOOST_AUTO_TEST_CASE(links_cannot_be_protected) {
    make_file(workspace / "target", "x");
    fs::create_symlink("target", workspace / ".mcp.json");
    policy.write_protected = {workspace / ".mcp.json"};
    refuses("symbolic link");
    fs::create_directory_symlink(".", workspace / "loop");
    policy.write_protected = {workspace / "loop/file"};
    refuses("symbolic link");
}

BOOST_AUTO_TEST_CASE(most_specific_path_wins) {
    make_directory(workspace / "venv");
    make_file(workspace / "venv/module", "x");
    make_directory(workspace / "closed");
    make_directory(workspace / "closed/open");
    policy.readable = {workspace / "venv", workspace / "closed/open"};
    policy.hidden = {"closed"};
    make_file(workspace / "closed/open/file", "visible");
    make_file(workspace / "closed/file", "s3cret");
    BOOST_TEST(contains(sh("echo y > venv/module"), "Read-only file system"));
    BOOST_TEST(contains(sh("mv venv elsewhere"), "busy"));
    BOOST_TEST(sh("cat closed/open/file") == "visible");
    BOOST_TEST(contains(sh("ls closed"), "Permission denied"));
    BOOST_TEST(contains(sh("cat closed/file"), "No such file"));

    policy.hidden.clear();
    policy.writable.push_back(workspace / "closed/open");
    policy.write_protected = {workspace / "closed"};
    BOOST_TEST(contains(sh("touch closed/open/x"), "Read-only file system"));
}

BOOST_AUTO_TEST_CASE(whole_disk_can_be_readable) {
    policy.readable = {"/"};
    policy.env["HOME"] = "/nowhere/home";
    policy.hidden = {(directory.path() / "neighbour").string()};
    test::write_file(directory.path() / "neighbour", "s3cret");
    BOOST_TEST(contains(sh("ls /etc"), "passwd"));
    BOOST_TEST(sh("echo x > file && cat file") == "x\n");
    BOOST_TEST(
        contains(sh("cat " + directory.path().string() + "/neighbour"), "Permission denied"));
    BOOST_TEST(sh("ls /run") == "ipybox\n");
    BOOST_TEST(sh("ls /run/ipybox") == "launcher\n");
    BOOST_TEST(contains(sh("cat /etc/shadow"), "Permission denied"));
    BOOST_TEST(contains(sh("touch /opt/x"), "Read-only file system"));
}

BOOST_AUTO_TEST_CASE(channels_are_found_by_name) {
    const auto box = directory.path() / "box";
    make_directory(box);
    const auto socket = directory.path() / "tools.sock";
    asio::local::stream_protocol::acceptor listener(context, socket.string());
    give(socket);
    channels = {{"kernel", box, Channel::Access::write}, {"tools", socket}, {"package", box}};
    BOOST_TEST(sandbox->guest_address(policy, channels[0]) == "/run/ipybox/kernel");
    BOOST_TEST(contains(sh("echo in > /run/ipybox/kernel/file; cat /run/ipybox/package/file; "
                           "echo x > /run/ipybox/package/y"),
                        "Read-only file system"));
    BOOST_TEST(test::read_file(box / "file") == "in\n");
    BOOST_TEST(python("import socket\nsocket.socket(socket.AF_UNIX).connect('/run/ipybox/tools')\n"
                      "print('connected')") == "connected\n");
    channels = {{"Bad/Name", box}};
    BOOST_CHECK_EXCEPTION(shell("true"), Error,
                          [](const Error& error) { return error.code() == errc::bad_argument; });
}

BOOST_AUTO_TEST_CASE(sockets_of_the_host_are_hidden_unless_named) {
    const auto inside = workspace / "server.sock";
    const auto beside = directory.path() / "beside.sock";
    asio::local::stream_protocol::acceptor first(context, inside.string());
    asio::local::stream_protocol::acceptor second(context, beside.string());
    give(inside);
    give(beside);
    policy.readable = {beside};
    const auto connect = [&](const fs::path& path) {
        return python("import socket\ntry: socket.socket(socket.AF_UNIX).connect('" +
                      path.string() +
                      "'); print('connected')\nexcept OSError as e: print(type(e).__name__)");
    };
    BOOST_TEST(connect(inside) != "connected\n");
    BOOST_TEST(connect(beside) == "connected\n");
    policy.readable = {"/"};
    BOOST_TEST(connect(inside) != "connected\n");
}

// Else the search for the next guest would pass them by.
BOOST_AUTO_TEST_CASE(directories_around_what_is_hidden_stay_where_they_are) {
    for (const auto* name : {"found", "found/inner", "linked", "served", "free"})
        make_directory(workspace / name);
    make_file(workspace / "found/inner/.env", "A=1");
    make_file(workspace / "linked/settings", "A=1");
    fs::create_symlink("linked/settings", workspace / ".env");
    asio::local::stream_protocol::acceptor served(context, (workspace / "served/s").string());
    policy.hidden = {"**/.env"};
    const auto expect_them_to_stay = [this] {
        BOOST_TEST(python("import errno, os\n"
                          "for name in ('found', 'found/inner', 'linked', 'served', 'free'):\n"
                          "    try: os.rename(name, name + '2'); print('moved')\n"
                          "    except OSError as e: print(errno.errorcode[e.errno])\n"
                          "os.rename('free2', 'free')") == "EBUSY\nEBUSY\nEBUSY\nEBUSY\nmoved\n");
    };
    expect_them_to_stay();
    use_placeholders();
    expect_them_to_stay();
}

// Else the next guest would see what the link led to.
BOOST_AUTO_TEST_CASE(links_with_hidden_names_lead_where_they_led) {
    for (const auto* name : {"app", "aside", "secrets"}) make_directory(workspace / name);
    make_file(workspace / "secrets/settings", "A=1");
    fs::create_symlink("secrets", workspace / "current");
    fs::create_symlink("../aside/../current/settings", workspace / "app/settings");
    fs::create_symlink("settings", workspace / "app/.env");
    for (const auto* name : {"current", "app/settings", "app/.env"}) give(workspace / name);
    policy.hidden = {"**/.env"};
    const std::string reading =
        "import os\n"
        "for name in ('secrets/settings', 'current/settings', 'app/settings', 'app/.env'):\n"
        "    try: print(repr(open(name).read()))\n"
        "    except OSError as e: print(type(e).__name__)\n";
    const std::string seen =
        "PermissionError\nNotADirectoryError\nPermissionError\nPermissionError\n";
    const std::string changing =
        "import errno, os\n"
        "if not os.path.islink('other'): os.symlink('aside', 'other')\n"
        "def attempt(what, *names):\n"
        "    try: what(*names); print('done', *names)\n"
        "    except OSError as e: print(errno.errorcode[e.errno], end=' ')\n"
        "for name in ('app/.env', 'app/settings', 'current'):\n"
        "    attempt(os.unlink, name)\n"
        "    attempt(os.rename, name, name + '2')\n"
        "    attempt(os.rename, 'other', name)\n"
        "for name in ('app', 'aside', 'secrets'):\n"
        "    attempt(os.rename, name, name + '2')\n"
        "attempt(os.rmdir, 'aside')\n"
        "attempt(open, 'app/.env', 'w')";
    const auto expect_them_to_stay = [&] {
        BOOST_TEST(python(reading) == seen);
        BOOST_TEST(python(changing) ==
                   "EBUSY EBUSY EXDEV EBUSY EBUSY EXDEV EBUSY EBUSY EBUSY "
                   "EBUSY EBUSY EBUSY EBUSY EACCES ");
        BOOST_TEST(python(reading) == seen);
    };
    expect_them_to_stay();
    use_placeholders();
    expect_them_to_stay();
    // On the host they are as they were.
    BOOST_TEST(test::read_file(workspace / "app/.env") == "A=1");
    BOOST_TEST(fs::is_symlink(workspace / "current"));
}

// Each directory around such a file is a mount, and so a word of a command line.
BOOST_AUTO_TEST_CASE(files_that_code_nests_deeply_keep_nobody_from_starting) {
    policy.hidden = {"**/.env"};
    const auto plant = [this](const std::string& name, int depth, int count) {
        BOOST_TEST(python("import os\n"
                          "for number in range(" +
                          std::to_string(count) +
                          "):\n"
                          "    at = os.open('.', os.O_RDONLY)\n"
                          "    for level in range(" +
                          std::to_string(depth) +
                          "):\n"
                          "        name = '" +
                          name +
                          "' + str(number)\n"
                          "        os.makedirs(name, exist_ok=True)\n"
                          "        os.chdir(name)\n"
                          "    open('.env', 'w').write('A=1')\n"
                          "    os.fchdir(at)\n"
                          "print('planted')") == "planted\n");
    };
    const std::string reading =
        "import os\nfound = []\n"
        "for at, _, names in os.walk('.'):\n"
        "    if '.env' not in names: continue\n"
        "    try: found.append(open(at + '/.env').read())\n"
        "    except OSError: pass\n"
        "print(found)";
    plant("d", 1000, 1);
    BOOST_TEST(python(reading) == "[]\n");
    make_file(workspace / "settings", "A=1");
    BOOST_TEST(python("import os\n"
                      "for number in range(400):\n"
                      "    os.mkdir(f'l{number}')\n"
                      "    os.symlink('../settings', f'l{number}/.env')\n"
                      "at = '/'.join('k' * 60)\n"
                      "os.makedirs(at)\n"
                      "os.symlink(os.getcwd() + '/settings', at + '/.env')\n"
                      "print('planted')") == "planted\n");
    BOOST_TEST(python(reading) == "[]\n");
    use_placeholders();
    BOOST_TEST(python(reading) == "[]\n");
    // Too many of them are too many, as files alone are.
    plant(std::string(200, 'n'), 15, 60);
    BOOST_CHECK_EXCEPTION(shell("true"), Error, [](const Error& error) {
        return error.code() == errc::sandbox_refused && contains(error.detail(), ".env");
    });
}

BOOST_AUTO_TEST_CASE(whoever_sees_the_whole_disk_has_no_unix_sockets) {
    // Nobody can tell where these lie: /proc/net/unix has their names as they were given. Not in
    // /tmp, which every guest has of its own.
    const test::TemporaryDirectory place("/var/tmp");
    const auto before = fs::current_path();
    fs::current_path(place.path());
    const auto moved = place.path() / "moved.sock";
    asio::local::stream_protocol::acceptor stream(context, std::string("stream.sock"));
    asio::local::datagram_protocol::socket datagram(context, std::string("datagram.sock"));
    asio::local::stream_protocol::acceptor renamed(context,
                                                   (place.path() / "before.sock").string());
    fs::rename("before.sock", moved);
    fs::current_path(before);
    for (const auto* name : {"stream.sock", "datagram.sock", "moved.sock"})
        give(place.path() / name);
    const std::string script =
        "import ctypes, errno, os, socket as s\n"
        "def attempt(what, action):\n"
        "    try: action(); print(what, 'done')\n"
        "    except OSError as e: print(what, errno.errorcode[e.errno])\n"
        "os.chdir('" +
        place.path().string() +
        "')\n"
        "def pair(kind): s.socketpair(s.AF_UNIX, kind)[0].sendto(b'x', 'datagram.sock')\n"
        "attempt('stream', lambda: s.socket(s.AF_UNIX).connect('stream.sock'))\n"
        "attempt('moved', lambda: s.socket(s.AF_UNIX).connect('moved.sock'))\n"
        "attempt('datagram', lambda: s.socket(s.AF_UNIX, s.SOCK_DGRAM).connect('datagram.sock'))\n"
        "attempt('pair', lambda: pair(s.SOCK_DGRAM))\n"
        "attempt('raw pair', lambda: pair(s.SOCK_RAW))\n"
        "a, b = s.socketpair(); a.send(b'through the pair'); print(b.recv(20).decode())\n"
        "attempt('sending elsewhere', lambda: a.sendto(b'x', 'datagram.sock'))\n"
        "attempt('connecting again', lambda: a.connect('stream.sock'))\n"
        "c = ctypes.CDLL(None, use_errno=True)\n"
        "print('io_uring', errno.errorcode[ctypes.get_errno()] if c.syscall(425, 1, "
        "ctypes.create_string_buffer(200)) < 0 else 'done')";
    policy.cwd = "/";
    policy.readable = {place.path()};
    BOOST_TEST(
        python(script) ==
        "stream done\nmoved done\ndatagram done\npair done\nraw pair done\nthrough the pair\n"
        "sending elsewhere EISCONN\nconnecting again EISCONN\nio_uring ENOSYS\n");
    char byte = 0;
    BOOST_TEST(datagram.receive(asio::buffer(&byte, 1)) == 1u);
    BOOST_TEST(datagram.receive(asio::buffer(&byte, 1)) == 1u);
    sandbox = registry.make<Sandbox>("bubblewrap", host,
                                     {{"allow_calls", {"io_uring_setup", "socket", "socketpair"}}});
    const std::string refused =
        "stream EAFNOSUPPORT\nmoved EAFNOSUPPORT\ndatagram EAFNOSUPPORT\npair ESOCKTNOSUPPORT\n"
        "raw pair ESOCKTNOSUPPORT\nthrough the pair\nsending elsewhere EISCONN\n"
        "connecting again EISCONN\nio_uring ENOSYS\n";
    policy.readable = {"/."};
    BOOST_TEST(!sandbox->unix_sockets(policy));
    BOOST_TEST(python(script) == refused);
    // With a channel, behind the relay; and with the whole network, where no relay may carry one.
    asio::local::stream_protocol::acceptor tools(context, (place.path() / "tools").string());
    channels = {{"tools", place.path() / "tools", Channel::Access::read, Channel::Kind::socket}};
    BOOST_TEST(python(script) == refused);
    policy.network.mode = NetworkPolicy::Mode::full;
    refuses("restrict the network, or name directories");
    channels.clear();
    BOOST_TEST(python(script) == refused);
}

BOOST_AUTO_TEST_CASE(a_relay_carries_the_channels_of_whoever_sees_the_whole_disk) {
    policy.readable = {"/"};
    policy.network.mode = NetworkPolicy::Mode::allow_list;
    policy.network.allow = {"example.com"};
    policy.limits.open_files = 77;
    const auto place = directory.path();
    make_directory(place / "data");
    channels = {{"network", place / "proxy", Channel::Access::read, Channel::Kind::socket},
                {"shell", place / "shell", Channel::Access::read, Channel::Kind::listener},
                {"data", place / "data", Channel::Access::write}};
    BOOST_TEST(sandbox->guest_address(policy, channels[0]) == "127.0.0.1:3128");
    BOOST_TEST(sandbox->guest_address(policy, channels[2]) == "/run/ipybox/data");
    const auto shell_address = sandbox->guest_address(policy, channels[1]);
    BOOST_REQUIRE(shell_address.starts_with("127.0.0.1:"));
    asio::local::stream_protocol::acceptor proxy(context, (place / "proxy").string());
    const std::string script = R"(
import os, resource, socket, sys
proxy = socket.create_connection(os.environ['HTTP_PROXY'].removeprefix('http://').split(':'))
proxy.sendall(b'question'); proxy.recv(6)
listener = socket.create_server(('127.0.0.1', int(sys.argv[1])))
shell = listener.accept()[0]
shell.sendall(shell.recv(8)[::-1])
open('/run/ipybox/data/x', 'w').write(os.getcwd() + os.environ['PWD'])
def pipes(process):
    numbers = [n for n in os.listdir(f'/proc/{process}/fd') if int(n) > 2]
    return sum(os.readlink(f'/proc/{process}/fd/{n}').startswith('pipe:') for n in numbers)
opened = 0
for process in filter(str.isdigit, os.listdir('/proc')):
    try: opened += pipes(process) if int(process) != os.getpid() else 0
    except PermissionError: pass
try:
    print(opened, resource.getrlimit(resource.RLIMIT_NOFILE)[0], sys.stdin.readline().strip(), flush=True)
    sys.stdin.read()
except KeyboardInterrupt: print('interrupted', flush=True)
sys.stdin.read()
)";
    const auto process =
        launch({"/usr/bin/python3", "-I", "-c", script, shell_address.substr(10)}, Stdio::pipes);
    const auto say = [&]() -> awaitable<void> {
        const auto line = asio::buffer("own input\n", 10);
        co_await asio::async_write(process->input(), line, asio::use_awaitable);
    };
    BOOST_TEST(test::run(context, test::talk(proxy, place / "shell")) == "question desserts");
    test::run(context, say());
    // No process inside lets the guest at its connection with us.
    BOOST_TEST(line(*process) == "0 77 own input");
    BOOST_TEST(test::read_file(place / "data/x") == workspace.string() + workspace.string());
    process->interrupt();
    BOOST_TEST(line(*process) == "interrupted");
    process->signal(SIGTERM);
    BOOST_TEST(finish(*process).code == 128 + SIGTERM);
    process->interrupt();
    policy.network.mode = NetworkPolicy::Mode::none;
    channels.erase(channels.begin() + 1);  // its socket of this time lies where it was
    BOOST_TEST(sh("echo out; echo err >&2; cat; exit 3") == "out\nerr\n");
}

BOOST_AUTO_TEST_CASE(dangerous_system_calls_are_refused) {
    const std::string script = R"(
import ctypes, errno, os, stat
c = ctypes.CDLL(None, use_errno=True)
def call(name, *args):
    n = c.syscall(*map(ctypes.c_long, args))
    print(name, errno.errorcode[ctypes.get_errno()] if n < 0 else 'done')
import platform
x86 = platform.machine() == 'x86_64'
call('unshare', 272 if x86 else 97, 0x10000000)
call('clone_newuser', 56 if x86 else 220, 0x10000000 | 17, 0, 0, 0, 0)
call('clone3', 435, 0, 0)
call('keyctl', 250 if x86 else 219, 0, -3, 1)
call('bpf', 321 if x86 else 280, 0, 0, 0)
call('ptrace', 101 if x86 else 117, 16, 1, 0, 0)
call('io_uring', 425, 1, 0)
call('vsock', 41 if x86 else 198, 40, 1, 0)
call('packet', 41 if x86 else 198, 17, 3, 0)
call('netlink', 41 if x86 else 198, 16, 3, 9)
call('wide_family', 41 if x86 else 198, (1 << 32) | 40, 1, 0)
call('tiocsti', 16 if x86 else 29, 0, (1 << 32) | 0x5412, 0)
call('mount', 165 if x86 else 40, 0, 0, 0, 0, 0)
open('f', 'w').close()
def attempt(name, act):
    try: act(); print(name, 'done')
    except OSError as e: print(name, errno.errorcode[e.errno])
attempt('chmod_setuid', lambda: os.chmod('f', 0o4755))
attempt('chmod_setgid', lambda: os.chmod('f', 0o2755))
attempt('open_setuid', lambda: os.open('g', os.O_CREAT | os.O_WRONLY, 0o4755))
attempt('tmpfile_setuid', lambda: os.open('.', os.O_TMPFILE | os.O_WRONLY, 0o4755))
attempt('mkdir_setgid', lambda: os.mkdir('d', 0o2755))
attempt('mknod_setuid', lambda: os.mknod('n', stat.S_IFREG | 0o4755))
attempt('chmod', lambda: os.chmod('f', 0o755))
attempt('nested', lambda: os.stat('/proc/sys/user/max_user_namespaces'))
)";
    const auto text = python(script);
    for (const auto* words : {"unshare EPERM",
                              "clone_newuser EPERM",
                              "clone3 ENOSYS",
                              "keyctl EPERM",
                              "bpf EPERM",
                              "ptrace EPERM",
                              "io_uring ENOSYS",
                              "vsock EAFNOSUPPORT",
                              "packet EAFNOSUPPORT",
                              "netlink EAFNOSUPPORT",
                              "wide_family EAFNOSUPPORT",
                              "tiocsti EPERM",
                              "mount EPERM",
                              "chmod_setuid EPERM",
                              "chmod_setgid EPERM",
                              "open_setuid EPERM",
                              "tmpfile_setuid EPERM",
                              "mkdir_setgid EPERM",
                              "mknod_setuid EPERM",
                              "chmod done"})
        BOOST_TEST(contains(text, words), words << " not in " << text);
}

BOOST_AUTO_TEST_CASE(refusals_can_be_logged_by_the_kernel) {
    sandbox = registry.make<Sandbox>("bubblewrap", host, {{"kernel_log", true}});
    BOOST_TEST(
        contains(sh("grep Seccomp: /proc/self/status; unshare -U true"), "Seccomp:\t2\nunshare: "));
}

BOOST_AUTO_TEST_CASE(ordinary_programs_work) {
    BOOST_TEST(
        python("import subprocess, multiprocessing, threading, tempfile, socket\n"
               "print(subprocess.run(['echo', 'sub'], capture_output=True, text=True).stdout)\n"
               "with multiprocessing.get_context('fork').Pool(2) as p: print(p.map(abs, [-1, 2]))\n"
               "t = threading.Thread(target=lambda: print('thread')); t.start(); t.join()\n"
               "s = socket.create_server(('127.0.0.1', 0))\n"
               "socket.create_connection(s.getsockname()); print('local server')\n"
               "print(tempfile.gettempdir())") == "sub\n\n[1, 2]\nthread\nlocal server\n/tmp\n");
}

BOOST_AUTO_TEST_CASE(limits_hold) {
    policy.limits.memory_per_process = 1ull << 30;
    policy.limits.processes = 20;
    policy.limits.open_files = 64;
    policy.limits.file_size = 1 << 20;
    policy.limits.cpu_seconds = 30;
    policy.limits.scratch_size = 1 << 20;
    BOOST_TEST(sh("ulimit -v; ulimit -n; ulimit -f; ulimit -t; ulimit -c; ulimit -Hn") ==
               "1048576\n64\n2048\n30\n0\n64\n");
    BOOST_TEST(contains(python("try: bytearray(2 << 30)\nexcept MemoryError: print('refused')"),
                        "refused"));
    BOOST_TEST(
        contains(python("import os\ntry:\n"
                        "    for i in range(40):\n"
                        "        if os.fork() == 0: os.execv('/usr/bin/sleep', ['sleep', '1000'])\n"
                        "except OSError as e: print(e)"),
                 "Resource temporarily unavailable"));
    for (const std::string path : {"/tmp/f", "/home/user/f", "/dev/shm/f"})
        BOOST_TEST(contains(sh("trap '' XFSZ; head -c 900000 /dev/zero > " + path +
                               "1; "
                               "head -c 900000 /dev/zero > " +
                               path),
                            "No space left"),
                   path);
    BOOST_TEST(contains(sh("trap '' XFSZ; head -c 2000000 /dev/zero > big"), "File too large"));
}

BOOST_AUTO_TEST_CASE(all_processes_share_one_memory_limit) {
    policy.limits.memory_total = 200u << 20;
    const auto able = test::run(context, sandbox->probe());
    if (!able.memory_total) return refuses("memory_total cannot be enforced here");
    const std::string script =
        "import os, time\n"
        "for i in range(4):\n"
        "    if os.fork() == 0:\n"
        "        block = bytearray(100 << 20)\n"
        "        time.sleep(1000)\n"
        "pid, status = os.wait()\n"
        "print('killed by', os.WTERMSIG(status), flush=True)\n"
        "time.sleep(1000)\n";
    auto process = launch({"/usr/bin/python3", "-c", script}, Stdio::pipes);
    BOOST_TEST(line(*process) == "killed by 9");
    const auto used = process->statistics();
    BOOST_TEST(used.memory_kills.value_or(0) > 0);
    const auto seen = process->violations();
    BOOST_TEST_REQUIRE(seen.size() == 1u);
    BOOST_TEST(seen[0].layer == "memory-total");
    BOOST_TEST(seen[0].count == used.memory_kills.value_or(0));
    BOOST_TEST(used.peak_memory.value_or(0) <= 200u << 20);
    BOOST_TEST(used.peak_memory.value_or(0) > 100u << 20);
    BOOST_TEST(used.processes.value_or(0) >= 3);
    process.reset();
    for (const auto* place : {"/sys/fs/cgroup", "/sys/fs/cgroup/memory"}) {
        const auto own = "ipybox-" + std::to_string(::getpid());
        std::error_code ignored;
        for (const auto& entry : fs::recursive_directory_iterator(place, ignored))
            BOOST_TEST(!contains(entry.path(), own), entry.path());
    }
}

// What the guest can write, in whole mebibytes, before the system says no, and how it tries to get
// out of the count.
constexpr const char* flood =
    "import errno, fcntl, os, struct\n"
    "def attempt(name, work):\n"
    "    try: work(); print('escaped by', name)\n"
    "    except OSError: pass\n"
    "def change(path, get, put, size, edit):\n"
    "    with open(path) as file:\n"
    "        values = bytearray(fcntl.ioctl(file, get, bytes(size)))\n"
    "        before = bytes(values)\n"
    "        edit(values)\n"
    "        fcntl.ioctl(file, put, bytes(values))\n"
    "        if fcntl.ioctl(file, get, bytes(size)) == before: raise OSError('no effect')\n"
    "def project(values): values[12:16] = struct.pack('I', 0)\n"
    "def inherit(values): values[0:4] = struct.pack('I', struct.unpack('I', values[0:4])[0] & "
    "~0x200)\n"
    "def flag(values): values[0:4] = struct.pack('I', struct.unpack('I', values[0:4])[0] & "
    "~0x20000000)\n"
    "os.mkdir('mine'); open('mine/file', 'w').close()\n"
    "for path in ('.', 'mine', 'mine/file'):\n"
    "    attempt('project of ' + path, lambda: change(path, 0x801c581f, 0x401c5820, 28, project))\n"
    "for path in ('.', 'mine'):\n"
    "    attempt('inheritance of ' + path, lambda: change(path, 0x801c581f, 0x401c5820, 28, "
    "inherit))\n"
    "    attempt('flags of ' + path, lambda: change(path, 0x80086601, 0x40086602, 8, flag))\n"
    "written = 0\n"
    "try:\n"
    "    for i in range(64):\n"
    "        with open(('mine/%d' if i % 2 else '../other/%d') % i, 'wb') as file:\n"
    "            file.write(bytes(1 << 20)); file.flush(); os.fsync(file.fileno())\n"
    "        written += 1\n"
    "except OSError as error: print(errno.errorcode[error.errno], written)\n";

void floods(Fixture& fixture, const test::QuotaVolume& volume, std::string_view expected) {
    const auto work = volume.path() / "work", other = volume.path() / "other";
    fixture.make_directory(work);
    fixture.make_directory(other);
    fixture.make_file(work / "before", std::string(4 << 20, 'x'));
    fixture.policy.writable = {work, other};
    fixture.policy.cwd = work;
    fixture.policy.limits.workspace_size = 10 << 20;
    BOOST_TEST(fixture.python(flood) == expected);
    // The host is free again.
    fixture.policy.limits.workspace_size.reset();
    const std::string more = "head -c 20000000 /dev/zero >more && rm -r * && echo free";
    BOOST_TEST(fixture.sh(more) == "free\n");
}

BOOST_AUTO_TEST_CASE(writable_paths_share_one_quota_on_ext4) {
    // Its directories count as well.
    if (const test::QuotaVolume volume("ext4"); volume) floods(*this, volume, "EDQUOT 5\n");
}

BOOST_AUTO_TEST_CASE(writable_paths_share_one_quota_on_xfs) {
    if (const test::QuotaVolume volume("xfs"); volume) floods(*this, volume, "ENOSPC 6\n");
}

BOOST_AUTO_TEST_CASE(time_ends_for_the_whole_tree) {
    policy.limits.wall_seconds = 1;
    auto process = shell("sleep 1000 & setsid sleep 1000 & wait");
    const auto tree = descendants(process->pid());
    BOOST_TEST(process->violations().empty());
    BOOST_TEST(finish(*process).code == 128 + SIGKILL);
    BOOST_TEST_REQUIRE(process->violations().size() == 1u);
    BOOST_TEST(process->violations()[0].layer == "wall");
    for (const pid_t pid : tree) BOOST_TEST(dies(pid));
}

BOOST_AUTO_TEST_CASE(the_limit_behind_a_death_is_told) {
    policy.limits.cpu_seconds = 1;
    policy.limits.file_size = 1000;
    const auto last = [this](std::string script) {
        const auto process = shell(std::move(script));
        const auto status = finish(*process);
        const auto seen = process->violations();
        return (seen.empty() ? "" : seen[0].layer + "; ") +
               sandbox_kit::describe_end(*process, status);
    };
    BOOST_TEST(last("while :; do :; done") ==
               "cpu; exit code 152, SIGXCPU: it used up the processor time of the limit cpu");
    // Who ignores the signal has a second more.
    BOOST_TEST(sh("ulimit -t; ulimit -Ht") == "1\n2\n");
    BOOST_TEST(
        contains(last("exec head -c 2000 /dev/zero > big"), "file-size; exit code 153, SIGXFSZ"));
    BOOST_TEST(contains(last("kill -SYS $$"), "seccomp; exit code 159, SIGSYS"));
    BOOST_TEST(contains(last("kill -KILL $$"), "exit code 137, SIGKILL: by its own code, "));
    BOOST_TEST(last("exit 3") == "exit code 3");
}

BOOST_AUTO_TEST_CASE(statistics_grow) {
    auto process = launch({"/usr/bin/python3", "-c",
                           "x = bytearray(50 << 20)\nfor i in range(10_000_000): pass\n"
                           "print('done', flush=True)\ninput()"},
                          Stdio::pipes);
    BOOST_TEST(line(*process) == "done");
    const auto used = process->statistics();
    BOOST_TEST(used.peak_memory.value_or(0) > 50u << 20);
    BOOST_TEST((used.cpu_time.value_or(Duration::zero()) > 20ms));
    BOOST_TEST(used.processes.value_or(0) >= 2);
}

BOOST_AUTO_TEST_CASE(allowed_hosts_are_reached_through_the_channel_only) {
    asio::local::stream_protocol::acceptor proxy(context, (directory.path() / "proxy").string());
    BOOST_REQUIRE(::chown((directory.path() / "proxy").c_str(), guest, guest) == 0);
    policy.network.mode = NetworkPolicy::Mode::allow_list;
    policy.network.allow = {"example.com"};
    Channel network;
    network.name = network_channel;
    network.host_path = directory.path() / "proxy";
    network.kind = Channel::Kind::socket;
    channels = {network};
    const std::string script =
        "import os, socket, urllib.parse as u\n"
        "assert os.environ['https_proxy'] == os.environ['HTTP_PROXY'] == os.environ['ALL_PROXY']\n"
        "at = u.urlsplit(os.environ['HTTP_PROXY'])\n"
        "def ask(big):\n"
        "    s = socket.create_connection((at.hostname, at.port))\n"
        "    s.sendall(b'x' * big)\n"
        "    s.shutdown(socket.SHUT_WR)\n"
        "    data = b''\n"
        "    while more := s.recv(1 << 16): data += more\n"
        "    return data\n"
        "print(ask(5_000_000).decode(), [n for _, n in socket.if_nameindex()])\n"
        "try: socket.create_connection(('192.0.2.1', 80), 5)\n"
        "except OSError as e: print(e)\n"
        "try: socket.getaddrinfo('example.com', 80)\n"
        "except OSError as e: print(e)\n"
        "import subprocess\n"
        "print(subprocess.run(['sh', '-c', 'wait; echo no child'], capture_output=True).stdout)\n"
        "try: os.waitpid(-1, 0)\n"
        "except ChildProcessError: print('no child of ours')\n";
    auto process = launch({"/usr/bin/python3", "-I", "-c", script});
    auto serve = [&]() -> awaitable<void> {
        auto guest_side = co_await proxy.async_accept(asio::use_awaitable);
        std::string received;
        co_await asio::async_read(guest_side, asio::dynamic_buffer(received), as_result);
        const std::string answer = std::to_string(received.size());
        co_await asio::async_write(guest_side, asio::buffer(answer), asio::use_awaitable);
    };
    test::run(context, serve());
    BOOST_TEST(finish(*process).code == 0);
    BOOST_TEST(process->output_tail() ==
               "5000000 ['lo']\n[Errno 101] Network is unreachable\n"
               "[Errno -3] Temporary failure in name resolution\n"
               "b'no child\\n'\nno child of ours\n");
}

BOOST_AUTO_TEST_CASE(interrupt_and_signal_reach_the_command) {
    const std::string script =
        "import time\n"
        "try:\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(1000)\n"
        "except KeyboardInterrupt: print('interrupted', flush=True)\n"
        "time.sleep(1000)";
    auto process = launch({"/usr/bin/python3", "-c", script}, Stdio::pipes);
    BOOST_TEST(line(*process) == "ready");
    process->interrupt();
    BOOST_TEST(line(*process) == "interrupted");
    process->signal(SIGTERM);
    const auto status = finish(*process);
    BOOST_TEST(status.code == 128 + SIGTERM);
    process->interrupt();
    process->signal(SIGTERM);
}

BOOST_AUTO_TEST_CASE(whole_tree_dies) {
    const auto others = sandbox_kit::children_of(::getpid());
    const std::string script =
        "setsid sh -c 'setsid sleep 1000 & sleep 1000' & "
        "sh -c 'sleep 1000 & sleep 1000 & exit' ; echo ready; cat";
    auto process = shell(script, Stdio::pipes);
    line(*process);
    auto tree = descendants(process->pid());
    for (int i = 0; i < 3000 && tree.size() < 9; ++i, tree = descendants(process->pid()))
        ::usleep(10'000);
    BOOST_TEST(tree.size() >= 9u);
    process->kill_tree();
    BOOST_TEST(finish(*process).code == 128 + SIGKILL);
    // Collected by bwrap: nothing is left to whoever is process 1 here, not even a zombie.
    for (const pid_t pid : tree) BOOST_TEST(!fs::exists("/proc/" + std::to_string(pid)));

    process = shell(script, Stdio::pipes);
    line(*process);
    tree = descendants(process->pid());
    process.reset();  // nothing runs the context
    for (const pid_t pid : tree) BOOST_TEST(!fs::exists("/proc/" + std::to_string(pid)));
    BOOST_TEST(sandbox_kit::children_of(::getpid()) == others, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(tree_dies_with_its_killed_host) {
    int ends[2];
    BOOST_REQUIRE(::pipe(ends) == 0);
    const pid_t doomed = ::fork();
    if (doomed == 0) {
        asio::io_context own;
        Host lent{own.get_executor(), {}, {}};
        const auto mine =
            registry.make<Sandbox>("bubblewrap", lent, {{"absent_names", "placeholders"}});
        const std::vector<std::string> argv{"/bin/sh", "-c", "setsid sleep 1000 & sleep 1000"};
        const auto process = test::run(own, mine->launch(policy, argv, {}, Stdio::tail));
        const pid_t pid = process->pid();
        for (int i = 0; i < 3000 && descendants(pid).size() < 5; ++i) ::usleep(10'000);
        if (::write(ends[1], &pid, sizeof pid) != sizeof pid) ::_exit(1);
        for (;;) ::pause();
    }
    pid_t outermost = 0;
    BOOST_REQUIRE(::read(ends[0], &outermost, sizeof outermost) == sizeof outermost);
    ::close(ends[0]);
    ::close(ends[1]);
    const auto tree = descendants(outermost);
    BOOST_TEST(tree.size() >= 5u);
    ::kill(doomed, SIGKILL);
    ::waitpid(doomed, nullptr, 0);
    for (const pid_t pid : tree) BOOST_TEST(dies(pid));
}

BOOST_AUTO_TEST_CASE(nothing_outlives_a_host_that_is_killed_while_it_starts_one) {
    BOOST_REQUIRE(test::run(context, sandbox->probe()).available);
    for (const bool prepared_scratch : {false, true}) {
        if (prepared_scratch) policy.limits.scratch_inodes = 1000;
        const auto began = Clock::now();
        finish(*shell("true"));
        // Until well after a start: six at a time take longer.
        const auto longest = std::max<std::chrono::nanoseconds>(40ms, 3 * (Clock::now() - began));
        const auto hosts = test::kill_hosts(context, 150, 6, longest, [this] {
            shell("setsid sleep 1000 & sleep 1000").release();
        });
        BOOST_TEST(hosts.killed == 150);
        BOOST_TEST(hosts.orphans > 0);
        BOOST_TEST(hosts.outlive == std::vector<std::string>(), boost::test_tools::per_element());
    }
}

BOOST_AUTO_TEST_CASE(policies_that_ask_too_much_are_refused) {
    const auto plain = policy;
    const auto change = [&](auto edit, std::string_view words) {
        policy = plain;
        edit(policy);
        refuses(words);
    };
    // A machine whose temporary directory has quotas refuses nothing; few do.
    if (!sandbox_kit::ProjectQuota::problem(workspace).empty())
        change([](auto& p) { p.limits.workspace_size = 1 << 30; },
               "workspace_size cannot be enforced here");
    change([](auto& p) { p.readable = {"/nowhere/at/all"}; }, "/nowhere/at/all does not exist");
    change([](auto& p) { p.readable = {"/proc"}; }, "/proc");
    change([](auto& p) { p.readable = {"/dev"}; }, "/dev");
    change([](auto& p) { p.writable = {"/"}; }, "whole disk");
    policy = plain;
    policy.readable = {"relative"};
    BOOST_CHECK_EXCEPTION(shell("true"), Error,
                          [](const Error& error) { return error.code() == errc::bad_argument; });
    policy = plain;
    policy.hidden = {"../up"};
    BOOST_CHECK_EXCEPTION(shell("true"), Error,
                          [](const Error& error) { return error.code() == errc::bad_argument; });
}

BOOST_AUTO_TEST_CASE(paths_out_of_the_guests_reach_are_named) {
    const auto closed = directory.path() / "closed";
    fs::create_directory(closed);
    fs::create_directory(closed / "python");
    if (::geteuid() != 0) {
        fs::permissions(closed, fs::perms(0));
        policy.readable = {closed};
        refuses(closed.string());
        return fs::permissions(closed, fs::perms(0700));
    }
    fs::permissions(closed, fs::perms(0700));
    policy.readable = {closed / "python"};
    refuses("uid 65534 cannot read " + (closed / "python").string() + ", because " +
            closed.string() + " is closed to it");
    policy.readable.clear();
    policy.writable.push_back(directory.path());
    refuses("uid 65534 cannot write " + directory.path().string());
}

BOOST_AUTO_TEST_CASE(root_drops_to_a_user_that_can_write_or_refuses) {
    if (::geteuid() != 0) {
        policy.user = ::geteuid() + 1;
        return refuses("only root");
    }
    // The owner of the workspace.
    BOOST_REQUIRE(::chown(workspace.c_str(), 4242, 4242) == 0);
    BOOST_TEST(sandbox->guest_user(policy) == 4242u);
    BOOST_TEST(sh("echo x > file && echo ok") == "ok\n");
    struct stat made{};
    BOOST_REQUIRE(::stat((workspace / "file").c_str(), &made) == 0);
    BOOST_TEST(made.st_uid == 4242u);
    // Root's, but open to all.
    BOOST_REQUIRE(::chown(workspace.c_str(), 0, 0) == 0);
    fs::permissions(workspace, fs::perms(0777));
    BOOST_TEST(sandbox->guest_user(policy) == 65534u);
    BOOST_TEST(sh("echo x > file2 && echo ok") == "ok\n");
    // Root's alone.
    fs::permissions(workspace, fs::perms(0755));
    refuses("--sandbox-user");
    BOOST_CHECK_THROW(sandbox->guest_user(policy), Error);
    policy.user = 0;
    refuses("does not run as root");
    // Chosen by policy, by configuration.
    fs::permissions(workspace, fs::perms(0777));
    policy.user = 4243;
    BOOST_TEST(sandbox->guest_user(policy) == 4243u);
    policy.user.reset();
    sandbox = registry.make<Sandbox>("bubblewrap", host, {{"user", 4244}});
    BOOST_TEST(sandbox->guest_user(policy) == 4244u);
    BOOST_TEST(sh("echo x > file3 && echo ok") == "ok\n");
}

// ---- absent names, held by an overlay
// ------------------------------------------------------------

struct LayerFixture : Fixture {
    // Other tests, at the same time, use the machine's.
    fs::path temporary = directory.path() / "tmp";
    LayerFixture() {
        fs::create_directory(temporary);
        ::setenv("TMPDIR", temporary.c_str(), 1);
        policy.hidden = {"**/.env"};
        policy.write_protected = {workspace / ".git/config", workspace / ".git/hooks",
                                  workspace / ".mcp.json",   workspace / ".vscode",
                                  workspace / ".venv",       workspace / ".env"};
    }
    ~LayerFixture() { ::unsetenv("TMPDIR"); }
    // What the host finds in the workspace.
    std::set<std::string> names() const {
        std::set<std::string> found;
        for (const auto& entry : fs::directory_iterator(workspace))
            found.insert(entry.path().filename());
        return found;
    }
    std::string marks(const fs::path& path) const {
        char text[1024];
        const auto size = ::llistxattr(path.c_str(), text, sizeof text);
        return std::string(text, size > 0 ? static_cast<std::size_t>(size) : 0);
    }
    void ask(SandboxedProcess& process, const std::string& command) {
        asio::write(process.input(), asio::buffer(command + "\n"));
    }
    // A shell that carries out one line at a time and ends each answer with "."
    std::unique_ptr<SandboxedProcess> talker() {
        auto process =
            shell("while read -r line; do eval \"$line\" 2>&1; echo .; done", Stdio::pipes);
        say(*process, "true");
        return process;
    }
    std::string say(SandboxedProcess& process, const std::string& command) {
        ask(process, command);
        std::string all;
        for (auto next = line(process); next != "."; next = line(process)) all += next + "\n";
        return all;
    }
};

BOOST_FIXTURE_TEST_SUITE(layers, LayerFixture)

BOOST_AUTO_TEST_CASE(the_host_sees_nothing_and_makes_what_it_likes) {
    const auto process = talker();
    BOOST_TEST(process->may_be_stale());
    BOOST_TEST(names().empty());
    for (const std::string attack :
         {"echo x > .mcp.json", "mkdir .vscode/x", "rmdir .vscode", "mv .vscode v",
          "mkdir -p .git/hooks", "mv .git g", "echo x > .env", "rm -f .env", "ln -sf x .mcp.json",
          "mkdir q && mv q .git", "touch .venv/pyvenv.cfg"})
        BOOST_TEST(!contains(say(*process, "{ " + attack + "; } && echo done"), "done"), attack);
    BOOST_TEST(names() == std::set<std::string>{"q"});

    // The commands of a person who goes on working.
    BOOST_TEST(::system(("cd " + workspace.string() +
                         " && mkdir .vscode .venv && echo A=1 > .env && echo {} > .mcp.json && "
                         "git init -q . && git -c safe.directory='*' add -A")
                            .c_str()) == 0);
    make_file(workspace / ".vscode/tasks.json", "original");
    test::run(context, process->refresh_view());
    for (const std::string attack : {"echo x > .mcp.json", "echo x > .vscode/tasks.json",
                                     "rm -rf .git", "cat .env | grep A", "echo x > .git/config"})
        BOOST_TEST(!contains(say(*process, "{ " + attack + "; } && echo done"), "done"), attack);
    BOOST_TEST(test::read_file(workspace / ".mcp.json") == "{}\n");
    BOOST_TEST(test::read_file(workspace / ".vscode/tasks.json") == "original");
    BOOST_TEST(test::read_file(workspace / ".env") == "A=1\n");
    BOOST_TEST(
        (names() == std::set<std::string>{".env", ".git", ".mcp.json", ".venv", ".vscode", "q"}));
}

BOOST_AUTO_TEST_CASE(each_name_is_one_mount) {
    const auto process = talker();
    for (const std::string name : {".git", ".vscode", ".mcp.json"})
        BOOST_TEST(say(*process, "grep -c '" + (workspace / name).string() +
                                     " ' /proc/self/mountinfo") == "1\n",
                   name);
}

BOOST_AUTO_TEST_CASE(names_that_the_host_replaces_stay_protected) {
    make_file(workspace / ".mcp.json", "old");
    make_file(workspace / ".env", "s3cret");
    const auto process = talker();
    for (const char* name : {".mcp.json", ".env"}) {
        make_file(workspace / "new", "s3cret new");
        fs::rename(workspace / "new", workspace / name);
    }
    test::run(context, process->refresh_view());
    BOOST_TEST(!contains(say(*process, "cat .env; cat .env | wc -c"), "s3cret"));
    BOOST_TEST(!contains(say(*process,
                             "echo x > .mcp.json && echo done; rm -f .mcp.json && echo done; mv "
                             ".env e && echo done"),
                         "done"));
    BOOST_TEST(test::read_file(workspace / ".mcp.json") == "s3cret new");
}

BOOST_AUTO_TEST_CASE(both_sides_see_what_the_other_does) {
    make_file(workspace / "shared", "one");
    make_directory(workspace / "removed");
    const auto process = talker();
    BOOST_TEST(say(*process, "cat shared later") == "onecat: later: No such file or directory\n");
    make_file(workspace / "new", "two");
    fs::rename(workspace / "new", workspace / "shared");
    make_file(workspace / "later", "three");
    fs::remove(workspace / "removed");
    test::run(context, process->refresh_view());
    BOOST_TEST(say(*process, "cat shared later; ls -A | grep ed") == "twothreeshared\n");
    // Without being asked within a second.
    make_file(workspace / "new", "four");
    fs::rename(workspace / "new", workspace / "shared");
    std::string seen;
    for (const auto end = Clock::now() + 60s; seen != "four" && Clock::now() < end;
         ::usleep(20'000)) {
        seen = say(*process, "cat shared; echo");
        seen.pop_back();
    }
    BOOST_TEST(seen == "four");
    say(*process,
        "echo five > made; mkdir -p inner/deep; echo six > inner/deep/file; ln made linked; mv "
        "shared renamed");
    BOOST_TEST(test::read_file(workspace / "made") == "five\n");
    BOOST_TEST(test::read_file(workspace / "inner/deep/file") == "six\n");
    BOOST_TEST(test::read_file(workspace / "renamed") == "four");
    BOOST_TEST(fs::hard_link_count(workspace / "made") == 2u);
    struct stat made{};
    BOOST_REQUIRE(::stat((workspace / "made").c_str(), &made) == 0);
    BOOST_TEST(made.st_uid == guest);
}

BOOST_AUTO_TEST_CASE(nothing_of_it_stays) {
    make_directory(workspace / ".git");
    {
        const auto process = talker();
        say(*process, "mkdir made; touch .git/index; rm -rf made; mkdir made");
    }
    BOOST_TEST((names() == std::set<std::string>{".git", "made"}));
    for (const auto& path : {workspace, workspace / ".git", workspace / "made"})
        BOOST_TEST(!contains(marks(path), "overlay"), path);
    auto base = temporary / ("ipybox-layers-" + std::to_string(::geteuid()));
    if (fs::exists(base))
        BOOST_TEST(fs::is_empty(base));
    else
        base = config::state_directory() / "layers";

    // Nor does what an earlier start held on the disk, or of a host that was killed.
    make_file(workspace / ".mcp.json", "");
    const timespec stamp[2] = {{detail::placeholder_time, 0}, {detail::placeholder_time, 0}};
    BOOST_REQUIRE(::utimensat(AT_FDCWD, (workspace / ".mcp.json").c_str(), stamp, 0) == 0);
    test::write_file(workspace / "rest", "");
    fs::create_directories(base / "work-gone/work");
    BOOST_TEST(!contains(sh("echo x > .mcp.json && echo done"), "done"));
    BOOST_TEST((names() == std::set<std::string>{".git", "made", "rest"}));
    BOOST_TEST(!fs::exists(base / "work-gone"));
}

BOOST_AUTO_TEST_CASE(notes_that_code_leaves_for_overlays_mean_nothing) {
    make_directory(workspace / ".git");
    make_directory(workspace / "sub");
    for (const auto& path : {workspace, workspace / ".git"})
        for (const char* name :
             {"user.overlay.opaque", "user.overlay.redirect", "user.overlay.metacopy"})
            BOOST_REQUIRE(::setxattr(path.c_str(), name, "y", 1, 0) == 0);
    BOOST_TEST(
        !contains(sh("mkdir .git/hooks/x && echo done; echo x > .mcp.json && echo done"), "done"));
    // What code behind an overlay writes is none to the host.
    BOOST_TEST(contains(python("import os\nos.setxattr('sub', 'user.overlay.opaque', "
                               "b'y')\nprint(os.listxattr('sub'))"),
                        "opaque"));
    BOOST_TEST(!contains(marks(workspace / "sub"), std::string("user.overlay.opaque") + '\0'));
}

BOOST_AUTO_TEST_CASE(beyond_so_many_places_files_hold_the_names) {
    for (int number = 0; number < 12; ++number) {
        const auto place = directory.path() / ("place" + std::to_string(number));
        make_directory(place);
        policy.writable.push_back(place);
        policy.write_protected.push_back(place / ".mcp.json");
    }
    const auto process = talker();
    for (const auto& place : policy.writable)
        BOOST_TEST(!contains(say(*process, "{ echo x > " + (place / ".mcp.json").string() +
                                               "; } && echo done"),
                             "done"),
                   place);
    BOOST_TEST(names().empty());
    BOOST_TEST(fs::exists(directory.path() / "place11/.mcp.json"));
}

BOOST_AUTO_TEST_CASE(where_no_overlay_can_be_files_hold_the_names) {
    // Behind the whole disk lies what is behind the overlay as well.
    policy.readable = {"/"};
    policy.hidden.clear();
    const auto process = shell("echo ready; read go", Stdio::pipes);
    line(*process);
    BOOST_TEST(!process->may_be_stale());
    BOOST_TEST(names().contains(".mcp.json"));
    BOOST_TEST(fs::is_directory(workspace / ".vscode"));
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()

}  // namespace plugin_sandbox_bubblewrap_tests
