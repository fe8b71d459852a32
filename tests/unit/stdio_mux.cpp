#include <unistd.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <boost/test/unit_test.hpp>
#include <ipybox/sandbox_kit/process.hpp>
#include <ipybox/sandbox_kit/stdio_mux.hpp>
#include <random>

#include "free_port.hpp"
#include "test_support.hpp"

namespace stdio_mux_tests {

namespace {
using namespace ipybox;
using namespace ipybox::test;
using namespace std::chrono_literals;
using sandbox_kit::LocalSocket;
using sandbox_kit::MuxFrame;

std::string launcher() { return required_environment("IPYBOX_TEST_LAUNCHER"); }

struct Fixture {
    asio::io_context context;
    TemporaryDirectory directory;
    std::vector<MuxChannel> channels;
    RelayCommand command;
    std::unique_ptr<ChildProcess> process;
    std::unique_ptr<StdioMux> mux;
    int problems = 0;

    ~Fixture() {
        mux.reset();
        process.reset();
    }

    std::uint16_t channel(Channel::Kind kind) {
        const auto name = "s" + std::to_string(channels.size());
        channels.push_back({kind, directory.path() / name, free_port()});
        return channels.back().port;
    }
    void python(std::string script) {
        command.argv = {"/usr/bin/python3", "-c",
                        "import os, socket, sys, time\n" + std::move(script)};
    }
    void spawn(std::vector<std::string> argv) {
        SpawnRequest request;
        request.argv = std::move(argv);
        request.env = {{"PATH", "/usr/bin:/bin"}, {"LEFT", "out"}, {"KEPT", "in"}};
        request.stdio = Stdio::pipes;
        process = std::make_unique<ChildProcess>(context.get_executor(), std::move(request));
    }
    // What goes to the guest before anything else is not looked at by a guest that is no relay.
    void connect(std::string start) {
        const auto tell = [this] {
            ++problems;
            process->kill_tree();
        };
        mux = std::make_unique<StdioMux>(context.get_executor(), std::move(process->input()),
                                         std::move(process->output()), channels, std::move(start),
                                         tell);
    }
    void start() {
        spawn({launcher(), "relay"});
        connect(relay_start(command, channels));
    }
    std::optional<ExitStatus> finish(Duration patience = 60s) {
        return run(context, process->wait(deadline_after(patience)));
    }
    int exit_code() {
        const auto status = finish();
        BOOST_REQUIRE(status);
        return status->code;
    }
};

awaitable<LocalSocket::socket> dial(std::filesystem::path path) {
    LocalSocket::socket socket(co_await asio::this_coro::executor);
    const LocalSocket::endpoint there(path.string());
    co_await socket.async_connect(there, asio::use_awaitable);
    co_return socket;
}

awaitable<std::string> read_to_end(LocalSocket::socket& socket) {
    std::string text, part(64 << 10, '\0');
    for (;;) {
        const auto buffer = asio::buffer(part);
        const auto [error, count] = co_await socket.async_read_some(buffer, as_result);
        text.append(part, 0, count);
        if (error) co_return text;
    }
}

awaitable<void> write_all(LocalSocket::socket& socket, std::string text) {
    const auto buffer = asio::buffer(text);
    co_await asio::async_write(socket, buffer, asio::use_awaitable);
}

std::string random_bytes(std::size_t size) {
    std::mt19937_64 random(size);
    std::string bytes(size, '\0');
    for (auto& byte : bytes) byte = static_cast<char>(random());
    return bytes;
}

std::string frame(MuxFrame kind, std::uint8_t channel, std::uint16_t connection,
                  std::uint32_t value, std::string_view payload = {}) {
    std::string text(sandbox_kit::mux_header_size, '\0');
    sandbox_kit::write_header(reinterpret_cast<unsigned char*>(text.data()),
                              {kind, channel, connection, value});
    return text + std::string(payload);
}
std::string ready() { return frame(MuxFrame::ready, 0, 0, sandbox_kit::mux_version); }

constexpr const char* echo_server =
    "s = socket.create_server(('127.0.0.1', int(sys.argv[1])), backlog=500)\n"
    "import threading\n"
    "def echo(c):\n"
    "    while data := c.recv(1 << 16): c.sendall(data)\n"
    "    c.close()\n"
    "while True: threading.Thread(target=echo, args=[s.accept()[0]], daemon=True).start()\n";
}  // namespace

BOOST_FIXTURE_TEST_SUITE(stdio_mux, Fixture)

BOOST_AUTO_TEST_CASE(runs_a_command_with_exactly_its_environment) {
    command.argv = {"/bin/sh", "-c", "env | sort; pwd; read line; echo \"<$line>\"; exit 7"};
    command.env = {{"NAME", "a 'b' $c"}, {"KEPT", "mine"}};
    command.kept_env = {"KEPT", "ABSENT"};
    command.cwd = directory.path();
    start();
    BOOST_TEST(exit_code() == 7);
    const auto place = directory.path().string();
    BOOST_TEST(process->output_tail() ==
               "KEPT=mine\nNAME=a 'b' $c\nPWD=" + place + "\n" + place + "\n<>\n");
}

BOOST_AUTO_TEST_CASE(keeps_what_the_sandbox_has_set) {
    command.argv = {"/usr/bin/env"};
    command.kept_env = {"KEPT"};
    start();
    BOOST_TEST(exit_code() == 0);
    BOOST_TEST(process->output_tail() == "KEPT=in\n");
}

BOOST_AUTO_TEST_CASE(tells_how_the_command_ended) {
    command.argv = {"/bin/sh", "-c", "kill -KILL $$"};
    start();
    BOOST_TEST(exit_code() == 137);
    command.argv = {"/no/such/program"};
    start();
    BOOST_TEST(exit_code() == 127);
    BOOST_TEST(process->output_tail().find("cannot start /no/such/program") != std::string::npos);
    command.argv = {"/bin/true"};
    command.cwd = "/no/such/directory";
    start();
    BOOST_TEST(exit_code() == 125);
    BOOST_TEST(process->output_tail().find("cannot enter /no/such/directory") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(refuses_to_start_where_it_is_not_confined) {
    command.argv = {"/bin/echo", "started"};
    command.no_unix_sockets = true;
    start();
    BOOST_TEST(exit_code() == 125);
    BOOST_TEST(process->output_tail().find("Unix sockets can be made") != std::string::npos);
    command.no_unix_sockets = false;
    command.unreadable = {"/etc/hostname"};
    start();
    BOOST_TEST(exit_code() == 125);
    BOOST_TEST(process->output_tail().find("it can read /etc/hostname") != std::string::npos);
    command.unreadable = {directory.path() / "absent"};
    command.pipes = true;
    command.unreadable.emplace_back("/etc/hostname");
    start();
    BOOST_TEST(exit_code() == 125);
    BOOST_TEST(process->output_tail().find("started") == std::string::npos);
}

BOOST_AUTO_TEST_CASE(steps_aside_for_a_command_that_uses_the_streams_itself) {
    command.argv = {"/bin/cat"};
    command.pipes = true;
    spawn({launcher(), "relay"});
    const auto sent = relay_start(command, {}) + "line\n";
    auto talk = [&]() -> awaitable<std::string> {
        co_await asio::async_write(process->input(), asio::buffer(sent), asio::use_awaitable);
        process->input().close();
        std::string text(5, '\0');
        co_await asio::async_read(process->output(), asio::buffer(text), asio::use_awaitable);
        co_return text;
    };
    BOOST_TEST(run(context, talk()) == "line\n");
    BOOST_TEST(exit_code() == 0);
}

BOOST_AUTO_TEST_CASE(carries_connections_of_the_host) {
    const auto port = channel(Channel::Kind::listener);
    // It takes its time until it listens; the first connection waits for it.
    python(std::string("time.sleep(0.2)\n") + echo_server);
    command.argv.push_back(std::to_string(port));
    start();
    const auto sent = random_bytes(20 << 20);
    std::string got;
    auto talk = [&]() -> awaitable<void> {
        auto socket = co_await dial(channels[0].host_path);
        auto writing = [&]() -> awaitable<void> {
            co_await write_all(socket, sent);
            socket.shutdown(LocalSocket::socket::shutdown_send);
        };
        auto done = std::make_shared<Event>(context.get_executor());
        bool written = false;
        asio::co_spawn(context, writing(), [&, done](std::exception_ptr) {
            written = true;
            done->notify();
        });
        got = co_await read_to_end(socket);
        while (!written) co_await done->wait();
    };
    run(context, talk());
    BOOST_TEST((got == sent));
    // More than may be open at a time, one after the other.
    auto again = [&]() -> awaitable<void> {
        for (int i = 0; i < 300; ++i) {
            auto socket = co_await dial(channels[0].host_path);
            const auto text = std::to_string(i);
            co_await write_all(socket, text);
            socket.shutdown(LocalSocket::socket::shutdown_send);
            const auto answer = co_await read_to_end(socket);
            if (answer != text) BOOST_ERROR("connection " << i << " gave " << answer);
        }
    };
    run(context, again());
    BOOST_TEST(mux->problem() == "");
}

BOOST_AUTO_TEST_CASE(carries_connections_of_the_guest) {
    const auto port = channel(Channel::Kind::socket);
    LocalSocket::acceptor acceptor(context, LocalSocket::endpoint(channels[0].host_path.string()));
    acceptor.listen(4);  // a queue that is soon full
    // More at once than may be open: the rest waits.
    python(
        "import threading\n"
        "def ask(i):\n"
        "    with socket.create_connection(('127.0.0.1', int(sys.argv[1]))) as s:\n"
        "        s.sendall(b'%d' % i); s.shutdown(socket.SHUT_WR)\n"
        "        if s.makefile('rb').read() != b'answer to %d' % i: os._exit(3)\n"
        "threads = [threading.Thread(target=ask, args=[i]) for i in range(300)]\n"
        "for t in threads: t.start()\n"
        "for t in threads: t.join()\n");
    command.argv.push_back(std::to_string(port));
    start();
    auto answer = [](LocalSocket::socket socket) -> awaitable<void> {
        const auto question = co_await read_to_end(socket);
        const auto text = "answer to " + question;
        co_await write_all(socket, text);
    };
    auto serve = [&]() -> awaitable<void> {
        for (int i = 0; i < 300; ++i) {
            auto socket = co_await acceptor.async_accept(asio::use_awaitable);
            asio::co_spawn(context, answer(std::move(socket)), asio::detached);
        }
    };
    run(context, serve());
    BOOST_TEST(exit_code() == 0);
    BOOST_TEST(process->output_tail() == "");
}

// A guest that never closes what the host has closed would soon have no place left.
BOOST_AUTO_TEST_CASE(what_the_host_has_left_keeps_no_place) {
    const auto port = channel(Channel::Kind::socket);
    LocalSocket::acceptor acceptor(context, LocalSocket::endpoint(channels[0].host_path.string()));
    python(
        "kept = []\n"
        "for i in range(2 * 128 + 1):\n"
        "    kept.append(socket.create_connection(('127.0.0.1', int(sys.argv[1]))))\n"
        "    kept[-1].settimeout(60)\n"
        "    if kept[-1].makefile('rb').read() != b'bye': os._exit(3)\n"
        "print(len(kept))\n");
    command.argv.push_back(std::to_string(port));
    start();
    auto serve = [&]() -> awaitable<void> {
        for (int i = 0; i < 257; ++i) {
            auto socket = co_await acceptor.async_accept(asio::use_awaitable);
            co_await write_all(socket, "bye");
        }
    };
    run(context, serve());
    BOOST_TEST(exit_code() == 0);
    BOOST_TEST(process->output_tail() == "257\n");
}

BOOST_AUTO_TEST_CASE(a_host_that_does_not_answer_is_an_end_of_file) {
    const auto port = channel(Channel::Kind::socket);
    python(
        "s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n"
        "s.sendall(bytes(3 << 20)); print(s.recv(1))");
    command.argv.push_back(std::to_string(port));
    start();
    BOOST_TEST(exit_code() == 0);
    BOOST_TEST(process->output_tail() == "b''\n");
}

BOOST_AUTO_TEST_CASE(a_slow_reader_stops_the_writer_and_loses_nothing) {
    const auto port = channel(Channel::Kind::listener);
    python(
        "s = socket.create_server(('127.0.0.1', int(sys.argv[1])))\n"
        "s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)\n"
        "c, _ = s.accept(); c.setblocking(False); sent = 0; idle = 0\n"
        "block = bytes(range(256)) * 256\n"
        "while idle < 20:\n"
        "    try: sent += c.send(block[sent % 65536:]); idle = 0\n"
        "    except BlockingIOError: time.sleep(0.01); idle += 1\n"
        "print('stuck after', sent, flush=True)\n"
        "c.setblocking(True)\n"
        "while sent < 100 << 20: c.sendall(block[sent % 65536:]); sent += 65536 - sent % 65536\n");
    command.argv.push_back(std::to_string(port));
    start();
    auto talk = [&]() -> awaitable<std::size_t> {
        auto socket = co_await dial(channels[0].host_path);
        const auto limit = deadline_after(60s);
        while (process->output_tail().find("stuck after") == std::string::npos &&
               Clock::now() < limit)
            co_await sleep_until(Clock::now() + 10ms);
        std::size_t at = 0;
        std::string part(64 << 10, '\0');
        for (;;) {
            const auto buffer = asio::buffer(part);
            const auto [error, count] = co_await socket.async_read_some(buffer, as_result);
            for (std::size_t i = 0; i < count; ++i, ++at)
                if (static_cast<unsigned char>(part[i]) != at % 256)
                    throw std::runtime_error("other bytes");
            if (error) co_return at;
        }
    };
    BOOST_TEST(run(context, talk()) >= 100u << 20);
    const auto tail = process->output_tail();
    BOOST_TEST_REQUIRE(tail.starts_with("stuck after "));
    // The window, and what the systems' own buffers take.
    BOOST_TEST(std::stoul(tail.substr(12)) < 16u << 20);
    BOOST_TEST(exit_code() == 0);
}

BOOST_AUTO_TEST_CASE(what_was_said_before_the_end_arrives) {
    const auto port = channel(Channel::Kind::listener);
    // A child that stays behind holds the connection open; it must not hold up the end.
    python(
        "s = socket.create_server(('127.0.0.1', int(sys.argv[1])))\n"
        "c, _ = s.accept()\n"
        "if os.fork() == 0: os.setsid(); time.sleep(1000)\n"
        "c.sendall(b'x' * (2 << 20)); os._exit(9)\n");
    command.argv.push_back(std::to_string(port));
    start();
    auto talk = [&]() -> awaitable<std::size_t> {
        auto socket = co_await dial(channels[0].host_path);
        co_await sleep_until(Clock::now() + 300ms);
        const auto text = co_await read_to_end(socket);
        co_return text.size();
    };
    BOOST_TEST(run(context, talk()) == 2u << 20);
    BOOST_TEST(exit_code() == 9);
}

BOOST_AUTO_TEST_CASE(signals_reach_the_command) {
    command.argv = {"/bin/sh", "-c", "trap 'exit 4' INT; echo ready; while :; do sleep 0.01; done"};
    start();
    auto wait_ready = [&]() -> awaitable<void> {
        while (process->output_tail() != "ready\n") co_await sleep_until(Clock::now() + 5ms);
        mux->signal(SIGINT);
    };
    run(context, wait_ready());
    BOOST_TEST(exit_code() == 4);
}

BOOST_AUTO_TEST_CASE(everything_ends_with_the_host) {
    const auto mark = directory.path() / "alive";
    command.argv = {
        "/bin/sh", "-c",
        "(setsid sh -c 'while :; do echo >> alive; sleep 0.01; done' &); echo ready; sleep 1000"};
    command.cwd = directory.path();
    command.env = {{"PATH", "/usr/bin:/bin"}};
    start();
    auto wait_ready = [&]() -> awaitable<void> {
        while (!std::filesystem::exists(mark)) co_await sleep_until(Clock::now() + 5ms);
    };
    run(context, wait_ready());
    mux.reset();  // closes the streams: all the relay learns of the host's end
    BOOST_TEST(exit_code() == 125);
    const auto size = std::filesystem::file_size(mark);
    ::usleep(100'000);
    BOOST_TEST(std::filesystem::file_size(mark) == size);
}

BOOST_AUTO_TEST_CASE(a_hostile_guest_is_found_out) {
    channel(Channel::Kind::listener);
    channel(Channel::Kind::socket);
    LocalSocket::acceptor acceptor(context, LocalSocket::endpoint(channels[1].host_path.string()));
    using sandbox_kit::mux_max_data;
    const std::string block(mux_max_data, 'x');
    const auto open = frame(MuxFrame::open, 1, 1, 0);
    std::string flood;
    // Besides the window, the socket's own buffer takes a little.
    for (unsigned i = 0; i <= 8 * sandbox_kit::mux_window / mux_max_data; ++i)
        flood += frame(MuxFrame::data, 1, 1, mux_max_data, block);
    std::string crowd;
    for (unsigned i = 0; i <= sandbox_kit::mux_max_connections; ++i)
        crowd += frame(MuxFrame::open, 1, static_cast<std::uint16_t>(i), 0);
    const struct {
        std::string bytes;
        const char* what;
    } attacks[] = {
        {"Traceback (most recent call last)\n", "it began with \"Traceback (most recent"},
        {frame(MuxFrame::ready, 0, 0, 99), "it began with"},
        {open, "it began with"},
        {ready() + frame(MuxFrame::open, 2, 1, 0), "an unknown channel"},
        {ready() + frame(MuxFrame::open, 255, 1, 0), "an unknown channel"},
        {ready() + frame(MuxFrame::open, 0, 1, 0), "a connection it may not open"},
        {ready() + open + open, "a connection it may not open"},
        {ready() + crowd, "a connection it may not open"},
        {ready() + frame(MuxFrame::data, 1, 1, 1, "x"), "an unknown connection"},
        {ready() + frame(MuxFrame::close, 1, 7, 0), "an unknown connection"},
        {ready() + open + frame(MuxFrame::data, 1, 1, mux_max_data + 1), "a frame of 32769 bytes"},
        {ready() + open + frame(MuxFrame::data, 1, 1, 0xffffffff), "a frame of 4294967295 bytes"},
        {ready() + open + flood, "more than it may send"},
        {ready() + open + frame(MuxFrame::close, 1, 1, 0) + frame(MuxFrame::data, 1, 1, 1, "x"),
         "data after the end"},
        {ready() + open + frame(MuxFrame::close, 1, 1, 0) + frame(MuxFrame::close, 1, 1, 0),
         "a second end"},
        {ready() + open + frame(MuxFrame::credit, 1, 1, 1), "credit for nothing"},
        {ready() + open + frame(MuxFrame::credit, 1, 1, 0xffffffff), "credit for nothing"},
        {ready() + open + frame(MuxFrame::start, 1, 1, 5), "an unknown frame"},
        {ready() + open + frame(static_cast<MuxFrame>(200), 1, 1, 5), "an unknown frame"},
        {ready() + frame(MuxFrame::signal, 0, 0, 9), "an unknown connection"},
    };
    for (const auto& [bytes, what] : attacks) {
        BOOST_TEST_CONTEXT(what) {
            write_file(directory.path() / "attack", bytes);
            problems = 0;
            std::filesystem::remove(channels[0].host_path);
            spawn({"/bin/sh", "-c",
                   "cat " + (directory.path() / "attack").string() + "; sleep 1000"});
            connect("");
            const auto status = finish();
            BOOST_TEST_REQUIRE(status.has_value());
            BOOST_TEST(status->code == 137);
            BOOST_TEST(problems == 1);
            BOOST_TEST(mux->problem().find(what) != std::string::npos, mux->problem());
        }
    }
}

BOOST_AUTO_TEST_CASE(noise_never_hangs_or_crashes_the_host) {
    channel(Channel::Kind::socket);
    std::mt19937 random(7);
    for (int round = 0; round < 30; ++round) {
        std::string bytes = ready();
        while (bytes.size() < 20'000) {
            const auto kind = static_cast<MuxFrame>(random() % 8);
            const auto size = random() % 3000;
            bytes += frame(kind, random() % 2 ? 0 : static_cast<std::uint8_t>(random()),
                           static_cast<std::uint16_t>(random() % 3),
                           kind == MuxFrame::data ? static_cast<std::uint32_t>(size)
                                                  : static_cast<std::uint32_t>(random()),
                           kind == MuxFrame::data ? std::string(size, 'n') : std::string());
        }
        write_file(directory.path() / "noise", bytes);
        spawn({"/bin/cat", (directory.path() / "noise").string()});
        connect("");
        BOOST_TEST(finish().has_value());
    }
}

BOOST_AUTO_TEST_CASE(a_relay_that_is_told_nonsense_gives_up) {
    const std::string_view nonsense[] = {"",
                                         "x",
                                         "hello, relay",
                                         {"\1\0\0\0\0\0\0\0", 8},
                                         {"\1\0\0\0\xff\xff\xff\xff", 8},
                                         {"\1\0\0\0\2\0\0\0aa", 10},
                                         {"\1\0\0\0\2\0\0\0z\0", 10},
                                         {"\1\0\0\0\2\0\0\0d\0", 10}};
    for (const auto bytes : nonsense) {
        write_file(directory.path() / "start", bytes);
        spawn({"/bin/sh", "-c", launcher() + " relay < " + (directory.path() / "start").string()});
        BOOST_TEST(exit_code() == 125);
        BOOST_TEST(process->output_tail().starts_with("ipybox-relay: "));
    }
}

BOOST_AUTO_TEST_CASE(a_guard_leaves_nothing_behind) {
    const auto mark = directory.path() / "alive";
    const auto script = directory.path() / "script";
    // Its child writes for as long as it lives; no signal to the group reaches it.
    write_file(script, "(setsid sh -c 'while :; do echo >> " + mark.string() +
                           "; sleep 0.01; done' &)\neval \"$1\"\n");
    const auto guarded = [&](const std::string& then) {
        return std::vector<std::string>{launcher(), "guard", "/bin/sh", script, then};
    };
    // The end may take a moment where nobody waits for it.
    const auto ends = [&] {
        BOOST_TEST_REQUIRE(std::filesystem::exists(mark));
        for (int round = 0; round < 50; ++round) {
            const auto size = std::filesystem::file_size(mark);
            ::usleep(100'000);
            if (std::filesystem::file_size(mark) == size) break;
            BOOST_TEST(round < 49, "something is left");
        }
        std::filesystem::remove(mark);
    };
    const auto ready = directory.path() / "ready";
    auto wait_begun = [&]() -> awaitable<void> {
        while (!std::filesystem::exists(mark) || !std::filesystem::exists(ready))
            co_await sleep_until(Clock::now() + 5ms);
    };
    spawn(guarded("sleep 0.1; exit 6"));
    BOOST_TEST(exit_code() == 6);
    ends();

    spawn(guarded("trap 'exit 8' TERM; : > " + ready.string() + "; while :; do sleep 0.01; done"));
    run(context, wait_begun());
    process->signal(SIGTERM);
    BOOST_TEST(exit_code() == 8);
    ends();

    // Its parent is killed, and no group or session tells the guard.
    const auto line = launcher() + " guard /bin/sh " + script.string() + " 'sleep 1000'";
    spawn({"/bin/sh", "-c",
           "setsid " + line + " & while ! [ -e " + mark.string() +
               " ]; do sleep 0.01; done; kill -KILL $$"});
    BOOST_TEST(exit_code() == 137);
    ends();

    spawn({launcher(), "guard", "/no/such/program"});
    BOOST_TEST(exit_code() == 127);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace stdio_mux_tests
