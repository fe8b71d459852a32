// The real srt from npm, in the version that is pinned and in the one the original pins.
#include <arpa/inet.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/detached.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/test/unit_test.hpp>
#include <ipybox/registry.hpp>
#include <ipybox/sandbox_kit/process.hpp>
#include <ipybox/sandbox_kit/sandbox_config.hpp>

#include "channel_talk.hpp"
#include "killed_hosts.hpp"
#include "test_support.hpp"

namespace plugin_sandbox_srt_tests {

namespace {
using namespace ipybox;
using namespace ipybox::test;
using namespace std::chrono_literals;
namespace fs = std::filesystem;
using LocalSocket = asio::local::stream_protocol;

fs::path package() { return node_servers() / "@anthropic-ai/sandbox-runtime"; }
fs::path old_package() { return node_servers() / "sandbox-runtime-0.0.21"; }

bool contains(std::string_view text, std::string_view part) {
    return text.find(part) != std::string_view::npos;
}

// What srt starts inherits the PATH it was given, so a directory in it marks all of it.
struct Fixture {
    TemporaryDirectory directory, marks;
    fs::path workspace;
    std::string old_path = ::getenv("PATH");
    asio::io_context context;
    Host host{context.get_executor(), {}, {}};
    PluginRegistry registry;
    std::unique_ptr<Sandbox> sandbox;
    SandboxPolicy policy;
    std::vector<Channel> channels;

    Fixture() : workspace(make("workspace")) {
        ::setenv("PATH", (old_path + ":" + marks.path().string()).c_str(), 1);
        registry.add_directory(plugin_directory());
        use(package());
        policy.cwd = workspace;
        policy.writable = {workspace};
        policy.env = {{"PATH", "/usr/bin:/bin"}, {"HOME", "/home/user"}};
    }
    ~Fixture() {
        BOOST_TEST(all_gone(), "a process is left");  // one that was just killed may take a moment
        for (const auto& entry : fs::directory_iterator(workspace)) {
            const auto name = entry.path().filename().string();
            BOOST_TEST(!(name.starts_with('.') && fs::is_empty(entry)), name << " is left");
        }
        ::setenv("PATH", old_path.c_str(), 1);
    }

    fs::path make(const char* name) {
        const auto path = directory.path() / name;
        fs::create_directory(path);
        if (::geteuid() == 0 && ::chown(path.c_str(), 65534, 65534) != 0)
            throw std::runtime_error("chown failed");
        return path;
    }
    void use(const fs::path& installed, json::object config = {}) {
        config["srt"] = (installed / "dist/cli.js").string();
        sandbox = registry.make<Sandbox>("srt", host, config);
    }
    std::unique_ptr<SandboxedProcess> launch(std::string script, Stdio stdio = Stdio::tail) {
        const std::vector<std::string> argv{"/bin/sh", "-c", std::move(script)};
        return run(context, sandbox->launch(policy, argv, channels, stdio));
    }
    // What a script prints, and its exit code behind it when that is not 0.
    std::string output(std::string script) {
        const auto process = launch(std::move(script));
        const auto status = run(context, process->wait(deadline_after(60s)));
        BOOST_REQUIRE(status);
        const auto text = process->output_tail();
        return status->code == 0 ? text : text + "exit " + std::to_string(status->code) + "\n";
    }
    std::string python(const std::string& script) {
        return output("exec python3 -c '" + script + "'");
    }
    void refuses(std::string_view words) {
        BOOST_CHECK_EXCEPTION(launch("true"), Error, [&](const Error& error) {
            BOOST_TEST_INFO(error.what());
            return error.code() == errc::sandbox_refused && contains(error.detail(), words);
        });
    }
    // The settings file of the original's kind, relative to the workspace.
    void configure(std::string_view settings) {
        policy = apply_srt_settings(json::parse(std::string(settings)).as_object(), policy,
                                    workspace, "/tmp");
    }

    int processes() const {
        int count = 0;
        for (const auto& entry : fs::directory_iterator("/proc"))
            if (contains(read_file(entry.path() / "environ"), marks.path().string())) ++count;
        return count;
    }
    // For what nobody collects: it may take a moment.
    bool all_gone() const {
        for (int round = 0; round < 100; ++round) {
            if (processes() == 0) return true;
            ::usleep(100'000);
        }
        return false;
    }
    // The plugin's own directories for our guests.
    std::vector<fs::path> run_directories() const {
        std::vector<fs::path> found;
        for (const auto& entry : fs::directory_iterator("/tmp"))
            if (entry.path().filename().string().starts_with("ipybox-") &&
                contains(read_file(entry.path() / "settings.json"), workspace.string()))
                found.push_back(entry.path());
        return found;
    }
};
}  // namespace

BOOST_FIXTURE_TEST_SUITE(sandbox_srt, Fixture)

BOOST_AUTO_TEST_CASE(tells_what_it_can) {
    const auto able = run(context, sandbox->probe());
    BOOST_TEST_REQUIRE(able.available, able.problem);
    for (const bool claim : {able.filesystem, able.network_none, able.network_allow_list,
                             able.process_isolation, able.limits_per_process, able.wall_time})
        BOOST_TEST(claim);
    for (const bool claim : {sandbox->unix_sockets(policy), able.scratch_size, able.scratch_inodes,
                             able.workspace_size})
        BOOST_TEST(!claim);
    for (const auto wanted : {Programs::deny, Programs::ask})
        BOOST_TEST(!run(context, sandbox->programs_problem(wanted)).empty());
}

BOOST_AUTO_TEST_CASE(says_what_is_missing) {
    const auto problem = [&](json::object config) {
        const auto trial = registry.make<Sandbox>("srt", host, config);
        const auto able = run(context, trial->probe());
        BOOST_TEST(!able.available);
        return able.problem;
    };
    BOOST_TEST(contains(problem({{"srt", "/no/such/srt"}}), "npm install"));
    BOOST_TEST(contains(problem({{"srt", "/usr/bin/env"}}), "is not the program of @anthropic-ai"));
    const auto cli = (package() / "dist/cli.js").string();
    BOOST_TEST(contains(problem({{"srt", cli}, {"node", "/no/such/node"}}), "needs Node.js"));
    const auto node = directory.path() / "node";
    write_file(node, "#!/bin/sh\necho v16.1.0\n");
    fs::permissions(node, fs::perms(0755));
    const auto old = problem({{"srt", cli}, {"node", node.string()}});
    BOOST_TEST(contains(old, " or newer, and "), old);
    BOOST_TEST(contains(old, "is 16.1.0"), old);
}

BOOST_AUTO_TEST_CASE(the_environment_is_exact) {
    policy.env["NAME"] = "it's a $value \"with\" \\ and\nlines";
    BOOST_TEST(output("env | sort; pwd") ==
               "HOME=/home/user\nNAME=it's a $value \"with\" \\ and\nPATH=/usr/bin:/bin\nPWD=" +
                   workspace.string() + "\nlines\n" + workspace.string() + "\n");
    policy.network.mode = NetworkPolicy::Mode::allow_list;
    policy.network.allow = {"example.com"};
    const auto text = output("env | cut -d= -f1 | sort | tr '\\n' ' '");
    for (const char* name : {"HTTPS_PROXY", "NO_PROXY", "http_proxy", "NAME"})
        BOOST_TEST(contains(text, name));
    for (const char* name : {"TMPDIR", "SHLVL", "SANDBOX", "CLAUDE"})
        BOOST_TEST(!contains(text, name));
}

BOOST_AUTO_TEST_CASE(exit_codes_and_arguments_pass_unchanged) {
    BOOST_TEST(output("exit 7") == "exit 7\n");
    BOOST_TEST(output("kill -KILL $$") == "exit 137\n");
    const std::vector<std::string> argv{"/usr/bin/printf", "<%s>", "a b", "$HOME",
                                        "'\"`x`",          "-s",   "!"};
    const auto process = run(context, sandbox->launch(policy, argv, {}, Stdio::tail));
    run(context, process->wait(deadline_after(60s)));
    BOOST_TEST(process->output_tail() == "<a b><$HOME><'\"`x`><-s><!>");
}

BOOST_AUTO_TEST_CASE(the_view_is_minimal) {
    write_file(directory.path() / "outside", "secret");
    write_file(workspace / ".env", "secret");
    fs::create_directories(workspace / ".git");
    if (::geteuid() == 0) BOOST_TEST(::chown((workspace / ".git").c_str(), 65534, 65534) == 0);
    policy.hidden = {(workspace / ".env").string(), (workspace / "later.env").string()};
    policy.write_protected = {workspace / ".git/hooks", workspace / "rules.json"};
    BOOST_TEST(contains(output("cat " + (directory.path() / "outside").string()), "No such file"));
    BOOST_TEST(contains(output("cat .env"), "Permission denied"));
    BOOST_TEST(contains(output("echo >> later.env"), "exit 2"));
    BOOST_TEST(contains(output("mkdir .git/hooks"), "exit 1"));
    BOOST_TEST(contains(output("mv .git g && mkdir .git && mkdir .git/hooks"), "exit 1"));
    BOOST_TEST(contains(output("echo > rules.json"), "exit 2"));
    BOOST_TEST(contains(output("echo > .bashrc"), "exit 2"));
    BOOST_TEST(output("ls -A /root /var /opt /srv /sys") ==
               "/opt:\n\n/root:\n\n/srv:\n\n/sys:\n\n/var:\n");
    BOOST_TEST(output("echo text > file; echo x > /tmp/y; echo z > ~/z; cat file /tmp/y ~/z") ==
               "text\nx\nz\n");
    BOOST_TEST(read_file(workspace / "file") == "text\n");
    BOOST_TEST(!fs::exists("/tmp/y"));
    BOOST_TEST(contains(output("touch /usr/x"), "Read-only"));
    BOOST_TEST(contains(output("cat /proc/1/environ"), "exit 1"));
    BOOST_TEST(output("ps ax | wc -l").size() <= 3u);
    fs::remove(workspace / ".env");
    fs::remove(workspace / ".git");
}

BOOST_AUTO_TEST_CASE(directories_that_are_absent_stay_absent) {
    policy.write_protected = {workspace / ".git/hooks", workspace / ".git/config"};
    for (const auto& installed : {package(), old_package()}) {
        use(installed);
        if (installed == old_package()) configure(R"({"filesystem": {"allowWrite": ["."]}})");
        output(
            "mkdir -p .git/hooks .claude/commands; echo x > .git/hooks/post-checkout; mv .git g; "
            "mv .claude c");
        for (const char* name : {".git", ".claude", "g", "c"})
            BOOST_TEST(!fs::exists(workspace / name), name);
    }
}

BOOST_AUTO_TEST_CASE(unix_sockets_cannot_be_made) {
    BOOST_TEST(contains(python("import socket; socket.socket(socket.AF_UNIX)"),
                        "Address family not supported"));
    // One of these could send to a socket of the host by its name.
    BOOST_TEST(
        contains(python("import socket; socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)"),
                 "Socket type not supported"));
    BOOST_TEST(python("import socket; socket.socketpair(); print(\"pair\")") == "pair\n");
}

BOOST_AUTO_TEST_CASE(it_refuses_to_run_without_srts_own_filter) {
    // As on a machine for which srt brings no helper: it goes on without, we do not.
    const auto copy = directory.path() / "node_modules";
    fs::create_directories(copy / "@anthropic-ai");
    fs::permissions(copy, fs::perms(0755));
    for (const auto& entry : fs::directory_iterator(node_servers()))
        if (entry.path().filename() != "@anthropic-ai")
            fs::create_symlink(entry, copy / entry.path().filename());
    const auto crippled = copy / "@anthropic-ai/sandbox-runtime";
    fs::copy(package(), crippled, fs::copy_options::recursive);
    fs::remove_all(crippled / "vendor/seccomp");
    use(crippled);
    const auto text = output("echo started");
    BOOST_TEST(contains(text, "Unix sockets can be made"), text);
    BOOST_TEST(!contains(text, "started"));
}

BOOST_AUTO_TEST_CASE(without_network_nothing_is_reached) {
    BOOST_TEST(contains(
        python("import urllib.request as r; r.urlopen(\"http://example.com\", timeout=20)"),
        "Temporary failure in name resolution"));
    BOOST_TEST(contains(python("import socket; socket.create_connection((\"1.1.1.1\", 80), 5)"),
                        "unreachable"));
}

BOOST_AUTO_TEST_CASE(srt_lets_through_allowed_hosts_only) {
    const UniqueFd server(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    BOOST_TEST_REQUIRE(::bind(server.get(), reinterpret_cast<sockaddr*>(&address), size) == 0);
    BOOST_TEST_REQUIRE(::listen(server.get(), 5) == 0);
    ::getsockname(server.get(), reinterpret_cast<sockaddr*>(&address), &size);
    const pid_t answering = ::fork();
    if (answering == 0) {
        for (;;) {
            const int client = ::accept(server.get(), nullptr, nullptr);
            char request[4096];
            [[maybe_unused]] auto ignored = ::read(client, request, sizeof request);
            constexpr std::string_view answer =
                "HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nserved";
            ignored = ::write(client, answer.data(), answer.size());
            ::close(client);
        }
    }
    policy.network.mode = NetworkPolicy::Mode::allow_list;
    policy.network.allow = {"localhost", "*.example.com"};
    policy.network.deny = {"bad.example.com"};
    // As a client would that leaves localhost to the proxy.
    const std::string ask =
        "import os, base64, socket, urllib.parse as p\n"
        "def ask(url):\n"
        "    u = p.urlsplit(os.environ[\"http_proxy\"]); s = "
        "socket.create_connection((\"127.0.0.1\", u.port), 20)\n"
        "    word = base64.b64encode(f\"{p.unquote(u.username or "
        "str())}:{u.password}\".encode()).decode()\n"
        "    s.sendall(f\"GET {url} HTTP/1.1\\r\\nHost: {p.urlsplit(url).netloc}\\r\\n\"\n"
        "              f\"Proxy-Authorization: Basic {word}\\r\\nConnection: "
        "close\\r\\n\\r\\n\".encode())\n"
        "    text = s.makefile(\"rb\").read().decode(); print(text.split()[1], \"served\" in "
        "text)\n";
    const auto port = std::to_string(ntohs(address.sin_port));
    {
        policy.network.private_networks = {"10.1.0.0/16", "192.168.0.0/16", "10.1.2.0/24"};
        const auto process = launch("sleep 1000");
        const auto directories = run_directories();
        BOOST_TEST_REQUIRE(directories.size() == 1u);
        const auto closed = json::parse(read_file(directories[0] / "settings.json"))
                                .at("network")
                                .at("deniedResolvedAddresses");
        const auto wanted = json::parse(
            R"(["10.128.0.0/9", "10.64.0.0/10", "10.32.0.0/11", "10.16.0.0/12", "10.8.0.0/13",
                "10.4.0.0/14", "10.2.0.0/15", "10.0.0.0/16", "100.64.0.0/10", "172.16.0.0/12",
                "fc00::/7", "fec0::/10"])");
        BOOST_TEST(json::serialize(closed) == json::serialize(wanted));
        policy.network.private_networks.clear();
    }
    BOOST_TEST(python(ask + "ask(\"http://localhost:" + port + "/\")") == "200 True\n");
    BOOST_TEST(python(ask + "ask(\"http://elsewhere.org:" + port + "/\")") == "403 False\n");
    BOOST_TEST(python(ask + "ask(\"http://bad.example.com:" + port + "/\")") == "403 False\n");
    BOOST_TEST(python(ask + "ask(\"http://example.com:" + port + "/\")") == "403 False\n");
    // Around the proxy there is nothing.
    BOOST_TEST(contains(
        python("import socket; socket.create_connection((\"127.0.0.1\", " + port + "), 5)"),
        "Connection refused"));
    ::kill(answering, SIGKILL);
    ::waitpid(answering, nullptr, 0);
}

BOOST_AUTO_TEST_CASE(channels_are_ports_inside) {
    const auto place = directory.path();
    channels = {{"tools", place / "tools", Channel::Access::read, Channel::Kind::socket},
                {"shell", place / "shell", Channel::Access::read, Channel::Kind::listener},
                {"data", make("data"), Channel::Access::write, Channel::Kind::directory},
                {"code", make("code"), Channel::Access::read, Channel::Kind::directory}};
    const auto tools = sandbox->guest_address(policy, channels[0]),
               shell = sandbox->guest_address(policy, channels[1]);
    BOOST_TEST(tools.starts_with("127.0.0.1:"));
    BOOST_TEST(shell.starts_with("127.0.0.1:"));
    BOOST_TEST(tools != shell);
    BOOST_TEST(sandbox->guest_address(policy, channels[0]) == tools);
    BOOST_TEST(sandbox->guest_address(policy, channels[2]) == (place / "data").string());
    LocalSocket::acceptor acceptor(context, LocalSocket::endpoint((place / "tools").string()));
    const auto process =
        launch("touch " + (place / "data/x").string() + "; touch " + (place / "code/x").string() +
               "; exec python3 -c '\n"
               "import socket\n"
               "s = socket.create_connection((\"127.0.0.1\", " +
               tools.substr(10) +
               ")); s.sendall(b\"question\")\n"
               "print(s.recv(100).decode(), flush=True)\n"
               "l = socket.create_server((\"127.0.0.1\", " +
               shell.substr(10) +
               ")); c, _ = l.accept()\n"
               "c.sendall(c.recv(100)[::-1])'");
    // Begins before the guest listens.
    BOOST_TEST(run(context, talk(acceptor, place / "shell")) == "question desserts");
    const auto status = run(context, process->wait(deadline_after(60s)));
    BOOST_TEST_REQUIRE(status.has_value());
    BOOST_TEST(contains(process->output_tail(), "answer\n"));
    BOOST_TEST(contains(process->output_tail(), "cannot touch"));
    BOOST_TEST(fs::exists(place / "data/x"));
    BOOST_TEST(!fs::exists(place / "code/x"));
}

BOOST_AUTO_TEST_CASE(standard_streams_are_the_commands_own_when_asked_for) {
    const auto process = launch("echo to the tail >&2; exec cat", Stdio::pipes);
    const std::string sent = std::string(300'000, 'x') + "\n";
    auto talk = [&]() -> awaitable<std::string> {
        std::string text(sent.size(), '\0');
        auto write = [&]() -> awaitable<void> {
            const auto out = asio::buffer(sent);
            co_await asio::async_write(process->input(), out, asio::use_awaitable);
        };
        asio::co_spawn(context, write(), asio::detached);
        const auto in = asio::buffer(text);
        co_await asio::async_read(process->output(), in, asio::use_awaitable);
        co_return text;
    };
    BOOST_TEST((run(context, talk()) == sent));
    BOOST_TEST(process->output_tail() == "to the tail\n");
    process->input().close();
    BOOST_TEST(run(context, process->wait(deadline_after(60s)))->code == 0);
    const auto other = launch("true");
    BOOST_CHECK_THROW(other->input(), Error);
}

BOOST_AUTO_TEST_CASE(signals_reach_the_command) {
    for (const auto stdio : {Stdio::tail, Stdio::pipes}) {
        const auto process = launch(
            "trap 'exit 5' INT; trap 'exit 6' TERM; echo ready >&2; while :; do sleep 0.01; done",
            stdio);
        auto wait_ready = [&]() -> awaitable<void> {
            while (process->output_tail() != "ready\n") co_await sleep_until(Clock::now() + 5ms);
        };
        run(context, wait_ready());
        process->interrupt();
        const auto status = run(context, process->wait(deadline_after(20s)));
        BOOST_TEST_REQUIRE(status.has_value());
        BOOST_TEST(status->code == 5);
    }
}

BOOST_AUTO_TEST_CASE(the_relays_streams_are_out_of_the_guests_reach) {
    BOOST_TEST(
        output("for p in /proc/[0-9]*; do\n"
               "  case $p in */$$) ;; *) { echo garbage > $p/fd/1; } 2>/dev/null && echo $p; esac\n"
               "done; echo lived") == "lived\n");
}

BOOST_AUTO_TEST_CASE(limits_hold) {
    policy.limits.open_files = 64;
    policy.limits.file_size = 1 << 20;
    policy.limits.cpu_seconds = 7;
    policy.limits.processes = 20;
    policy.limits.memory_per_process = 1ull << 30;
    BOOST_TEST(output("ulimit -n; ulimit -f; ulimit -t; ulimit -v") == "64\n2048\n7\n1048576\n");
    BOOST_TEST(contains(output("for i in $(seq 40); do sleep 5 & done; wait"), "fork"));
    policy.limits = {};
    policy.limits.wall_seconds = 1;
    BOOST_TEST(contains(output("sleep 100"), "exit 137"));
    policy.limits = {};
    policy.limits.memory_total = 300 << 20;
    if (run(context, sandbox->probe()).memory_total) {
        BOOST_TEST(contains(python("x = bytearray(600 << 20); print(\"allocated\")"), "exit"));
    } else {
        BOOST_TEST_MESSAGE("no control groups here: total memory is refused");
        refuses("");
    }
}

BOOST_AUTO_TEST_CASE(what_it_cannot_do_is_refused) {
    const auto plain = policy;
    const auto change = [&](auto edit, std::string_view words) {
        policy = plain;
        edit(policy);
        refuses(words);
    };
    change([](auto& p) { p.network.mode = NetworkPolicy::Mode::full; }, "network");
    change([](auto& p) { p.limits.scratch_size = 1; }, "limits.scratch");
    change([](auto& p) { p.limits.scratch_inodes = 1; }, "limits.scratch");
    change([](auto& p) { p.limits.workspace_size = 1; }, "limits.workspace");
    change([](auto& p) { p.user = 0; }, ::geteuid() == 0 ? "does not run as root" : "only root");
    change([](auto& p) { p.writable = {"/no/such/place"}; }, "does not exist");
    // srt itself must not be the guest's to change.
    const auto copy = workspace / "node_modules/@anthropic-ai/sandbox-runtime";
    fs::create_directories(copy / "dist");
    for (const char* file : {"package.json", "dist/cli.js"})
        fs::copy(package() / file, copy / file);
    json::object config;
    config["node"] = (node_servers() / "node/bin/node").string();
    BOOST_CHECK_EXCEPTION(use(copy, config), Error, [](const Error& error) {
        return error.code() == errc::denied && contains(error.detail(), "install it elsewhere");
    });
}

BOOST_AUTO_TEST_CASE(nothing_is_left_when_it_is_killed) {
    policy.network.mode = NetworkPolicy::Mode::allow_list;
    policy.network.allow = {"example.com"};
    auto process = launch("setsid sleep 1000 & (sleep 1000 &); echo ready; sleep 1000");
    auto wait_ready = [&]() -> awaitable<void> {
        while (process->output_tail() != "ready\n") co_await sleep_until(Clock::now() + 5ms);
    };
    run(context, wait_ready());
    BOOST_TEST(processes() > 0);
    BOOST_TEST(process->statistics().processes.value_or(0) > 5u);
    BOOST_TEST(run_directories().size() == 1u);
    process->kill_tree();
    const auto status = run(context, process->wait(deadline_after(20s)));
    BOOST_TEST_REQUIRE(status.has_value());
    BOOST_TEST(status->code == 137);
    BOOST_TEST(processes() == 0);
    process.reset();
    BOOST_TEST(run_directories().empty());

    // Forgotten instead of killed, and srt itself killed.
    process = launch("echo ready; sleep 1000");
    run(context, wait_ready());
    process.reset();
    BOOST_TEST(processes() == 0);
    process = launch("echo ready; sleep 1000");
    run(context, wait_ready());
    const auto srt = ipybox::sandbox_kit::children_of(process->pid());
    BOOST_TEST_REQUIRE(!srt.empty());
    ::kill(srt.front(), SIGKILL);
    BOOST_TEST(run(context, process->wait(deadline_after(20s))).has_value());
    BOOST_TEST(processes() == 0);
}

BOOST_AUTO_TEST_CASE(nothing_is_left_when_the_host_is_killed) {
    policy.network.mode = NetworkPolicy::Mode::allow_list;
    policy.network.allow = {"example.com"};
    const auto mark = workspace / "mark";
    const pid_t host_process = ::fork();
    if (host_process == 0) {
        // Nothing of the parent's is used or destroyed here.
        asio::io_context own;
        Host own_host{own.get_executor(), {}, {}};
        json::object config;
        config["srt"] = (package() / "dist/cli.js").string();
        const auto own_sandbox = registry.make<Sandbox>("srt", own_host, config);
        const std::vector<std::string> argv{
            "/bin/sh", "-c", "setsid sh -c 'while :; do echo >> mark; sleep 0.01; done'"};
        const auto process = run(own, own_sandbox->launch(policy, argv, {}, Stdio::tail));
        run(own, process->wait(never));
        ::_exit(0);
    }
    for (int round = 0; round < 200 && !fs::exists(mark); ++round) ::usleep(50'000);
    BOOST_TEST_REQUIRE(fs::exists(mark));
    ::kill(host_process, SIGKILL);
    ::waitpid(host_process, nullptr, 0);
    BOOST_TEST(all_gone());
    // The next start removes what a killed one could not, unless it is quite new.
    const auto left = run_directories();
    BOOST_TEST_REQUIRE(left.size() == 1u);
    fs::last_write_time(left[0], fs::file_time_type::clock::now() - 1h);
    BOOST_TEST(output("true") == "");
    BOOST_TEST(run_directories().empty());
}

BOOST_AUTO_TEST_CASE(nothing_outlives_a_host_that_is_killed_while_it_starts_one) {
    BOOST_REQUIRE(run(context, sandbox->probe()).available);
    const auto hosts = kill_hosts(context, 20, 4, 800ms,
                                  [this] { launch("setsid sleep 1000 & sleep 1000").release(); });
    BOOST_TEST(hosts.killed == 20);
    BOOST_TEST(hosts.orphans > 0);
    BOOST_TEST(hosts.outlive == std::vector<std::string>(), boost::test_tools::per_element());
    // Removes what protected the workspace.
    BOOST_TEST(output("true") == "");
}

BOOST_AUTO_TEST_CASE(with_unix_sockets_allowed_channels_are_paths) {
    json::object config;
    config["unix_sockets"] = true;
    use(package(), config);
    BOOST_TEST(sandbox->unix_sockets(policy));
    const auto tools = directory.path() / "tools";
    channels = {{"tools", tools, Channel::Access::read, Channel::Kind::socket}};
    BOOST_TEST(sandbox->guest_address(policy, channels[0]) == tools.string());
    LocalSocket::acceptor acceptor(context, LocalSocket::endpoint(tools.string()));
    if (::geteuid() == 0) BOOST_TEST(::chown(tools.c_str(), 65534, 65534) == 0);
    const auto private_socket = workspace / "host.sock";
    LocalSocket::acceptor hidden(context, LocalSocket::endpoint(private_socket.string()));
    if (::geteuid() == 0) BOOST_TEST(::chown(private_socket.c_str(), 65534, 65534) == 0);
    const auto script =
        "import socket\n"
        "s = socket.socket(socket.AF_UNIX); s.connect(\"" +
        tools.string() +
        "\"); print(\"reached\")\n"
        "s = socket.socket(socket.AF_UNIX); s.connect(\"" +
        private_socket.string() + "\")";
    const auto text = python(script);
    BOOST_TEST(contains(text, "reached\n"), text);
    BOOST_TEST(contains(text, "exit 1"), text);
    // With the whole disk readable as well.
    configure(R"({"filesystem": {"allowWrite": ["."]}})");
    const auto again = python(script);
    BOOST_TEST(contains(again, "reached\n"), again);
    BOOST_TEST(contains(again, "exit 1"), again);
    fs::remove(private_socket);
}

BOOST_AUTO_TEST_CASE(a_settings_file_means_what_it_means_to_srt) {
    fs::create_directories(workspace / "secret/open");
    fs::create_directories(workspace / "kept");
    write_file(workspace / "secret/closed", "closed");
    write_file(workspace / "secret/open/file", "open\n");
    write_file(directory.path() / "outside", "outside\n");
    configure(R"({"network": {"allowedDomains": [], "deniedDomains": [], "allowLocalBinding": true},
        "filesystem": {"denyRead": ["secret"], "allowRead": ["secret/open"], "allowWrite": [".", "~/Library/Jupyter"],
                       "denyWrite": ["kept"]}, "allowPty": true})");
    // Everything is readable but what is denied.
    BOOST_TEST(output("cat " + (directory.path() / "outside").string()) == "outside\n");
    BOOST_TEST(output("cat secret/open/file") == "open\n");
    BOOST_TEST(contains(output("cat secret/closed"), "No such file"));
    BOOST_TEST(contains(output("touch kept/x"), "Read-only"));
    BOOST_TEST(contains(output("touch " + (directory.path() / "x").string()), "exit 1"));
    BOOST_TEST(contains(output("mkdir .git && git -C . init -q"), "exit"));
    fs::remove_all(workspace / ".git");
}

BOOST_AUTO_TEST_CASE(the_version_that_the_original_pins_takes_its_settings) {
    use(old_package());
    refuses("cannot hide all but what is named");
    fs::create_directories(workspace / "secret");
    fs::create_directories(workspace / ".git");
    if (::geteuid() == 0) BOOST_TEST(::chown((workspace / ".git").c_str(), 65534, 65534) == 0);
    write_file(workspace / "secret/closed", "closed");
    write_file(workspace / ".env", "secret");
    const auto minimal = policy;
    configure(R"({"network": {"allowedDomains": [], "deniedDomains": []},
        "filesystem": {"denyRead": ["secret", ".env"], "allowWrite": ["."], "denyWrite": ["rules.json"]}})");
    BOOST_TEST(contains(output("cat secret/closed"), "No such file"));
    BOOST_TEST(contains(output("cat .env"), "Permission denied"));
    BOOST_TEST(output("echo text > file; cat file") == "text\n");
    BOOST_TEST(output("echo x > $TMPDIR/x; echo y > $HOME/y; cat $TMPDIR/x $HOME/y") == "x\ny\n");
    // This version skips what is absent; our placeholders hold it.
    BOOST_TEST(contains(output("echo > rules.json"), "exit 2"));
    BOOST_TEST(contains(output("mkdir .git/hooks"), "exit 1"));
    BOOST_TEST(contains(output("mv .git g && mkdir .git"), "exit 1"));
    BOOST_TEST(contains(output("echo > .bashrc"), "exit 2"));
    BOOST_TEST(contains(python("import socket; socket.socket(socket.AF_UNIX)"),
                        "Address family not supported"));
    // One of these could send to a socket of the host by its name.
    BOOST_TEST(
        contains(python("import socket; socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)"),
                 "Socket type not supported"));
    BOOST_TEST(python("import socket; socket.socketpair(); print(\"pair\")") == "pair\n");
    BOOST_TEST(contains(python("import socket; socket.create_connection((\"1.1.1.1\", 80), 5)"),
                        "unreachable"));
    BOOST_TEST(output("exit 7") == "exit 7\n");
    policy = minimal;
    configure(
        R"({"filesystem": {"denyRead": ["secret"], "allowRead": ["secret/closed"], "allowWrite": ["."]}})");
    refuses("inside");
    policy = minimal;
    configure(R"({"filesystem": {"allowWrite": ["."]}})");
    policy.network.mode = NetworkPolicy::Mode::allow_list;
    policy.network.allow = {"example.com:443"};
    refuses("no ports");
    for (const char* name : {"secret", ".git", ".env"}) fs::remove_all(workspace / name);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace plugin_sandbox_srt_tests
