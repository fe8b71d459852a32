#include <dirent.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/test/unit_test.hpp>
#include <ipybox/registry.hpp>

#include "test_support.hpp"

namespace plugin_kernel_zmq_tests {

using namespace ipybox;
using namespace ipybox::test;
using namespace std::chrono_literals;

constexpr const char* backend_name = "zmq";
constexpr const char* default_sandbox = "none";
void complete(json::object&, const std::string&) {}

BOOST_AUTO_TEST_SUITE(kernel_zmq)

#include "kernel_cases.ipp"

BOOST_AUTO_TEST_CASE(a_kernel_that_breaks_the_protocol_is_killed) {
    const std::string prologue = R"py(
import os, socket, time
kernel = get_ipython().kernel
def publish(*frames):
    kernel.iopub_thread.schedule(lambda: kernel.iopub_thread.socket.send_multipart(frames))
def signed(kind, content, **more):
    header = kernel.session.pack(kernel.session.msg_header(kind))
    parts = [header, kernel.session.pack(kernel.get_parent()["header"]), b"{}", content]
    publish(b"t", b"<IDS|MSG>", kernel.session.sign(parts), *parts)
)py";
    const char* cases[] = {
        "publish(b'garbage')",
        "publish(b't', b'<IDS|MSG>', b'0' * 64, b'{}', b'{}', b'{}', b'{}')",
        "publish(b't', b'<IDS|MSG>', b'', b'{}', b'{}', b'{}', b'{}')",
        "publish(*[b'x'] * 5000)",
        "signed('stream', b'{')",
        "signed('stream', b'[]')",
        "signed('stream', b'{\"name\":\"stdout\"}')",
        "signed('stream', b'{\"name\":\"stdout\",\"text\":1}')",
        "signed('display_data', b'{\"data\":[],\"metadata\":{}}')",
        "signed('error', b'{\"ename\":\"E\",\"evalue\":\"\",\"traceback\":[1]}')",
        "signed('stream', b'{\"a\":' + b'[' * 200_000 + b']' * 200_000 + b'}')",
        "signed('status', b'{\"execution_state\":[]}')",
        "publish(b'<IDS|MSG>', b'x' * 3_000_000)",
        // Bytes that are not ZeroMQ's on every connection the kernel has.
        R"py(
for fd in range(3, 100):
    try:
        s = socket.socket(fileno=os.dup(fd))
        if s.family == socket.AF_UNIX and s.getpeername() is not None: s.send(b"\xff" * 100)
    except OSError: pass
)py",
    };
    for (const auto* code : cases) {
        BOOST_TEST_CONTEXT(code) {
            json::object config;
            config["max_message_bytes"] = 2'000'000;
            Machine machine("none", config);
            machine.with_kernel([&](Kernel& kernel) -> awaitable<void> {
                const auto error =
                    co_await fatal_error(kernel, prologue + code + "\ntime.sleep(50)");
                BOOST_TEST((error.code() == errc::kernel_protocol), error.what());
                BOOST_TEST(contains(error.detail(), "reset()"));
            });
        }
    }
}

BOOST_AUTO_TEST_CASE(messages_of_others_are_ignored) {
    Machine machine;
    machine.with_kernel([](Kernel& kernel) -> awaitable<void> {
        const auto cell = co_await run_cell(kernel, R"py(
kernel = get_ipython().kernel
for parent in ({}, {"header": {"msg_id": "somebody-else", "msg_type": "execute_request"}}):
    for kind, content in (("status", {"execution_state": "idle"}), ("comm_open", {"a": 1}),
                          ("error", {"ename": "E", "evalue": "", "traceback": []}),
                          ("no_such_type", {"b": [1]})):
        kernel.session.send(kernel.iopub_socket, kind, content, parent=parent)
print("end")
)py");
        BOOST_TEST(cell.ok);
        BOOST_TEST(cell.out == "end\n");
        BOOST_TEST(!cell.error.has_value());
    });
}

BOOST_AUTO_TEST_CASE(what_the_kernel_plants_is_removed_without_following_it) {
    Machine machine;
    TemporaryDirectory victim;
    write_file(victim.path() / "precious", "kept");
    auto spec = machine.spec();
    spec.policy.env["VICTIM"] = victim.path();
    machine.with_kernel(std::move(spec), [](Kernel& kernel) -> awaitable<void> {
        const auto cell = co_await run_cell(kernel, R"py(
import os
here = os.environ["JUPYTER_RUNTIME_DIR"]
os.symlink(os.environ["VICTIM"], here + "/link")
os.mkdir(here + "/locked"); os.mkdir(here + "/locked/inner"); os.symlink("/", here + "/locked/inner/root")
os.chmod(here + "/locked", 0)
os.mkfifo(here + "/fifo")
os.chdir(here)
for i in range(2000):
    os.mkdir("d"); os.symlink(os.environ["VICTIM"], "l"); os.chdir("d")
print("planted")
)py");
        BOOST_TEST(cell.out == "planted\n");
    });
    BOOST_TEST(read_file(victim.path() / "precious") == "kept");
}

BOOST_AUTO_TEST_CASE(a_link_in_the_place_of_a_socket_is_not_followed) {
    Machine machine;
    TemporaryDirectory outside;
    const auto target = (outside.path() / "host.sock").string();
    asio::local::stream_protocol::acceptor acceptor(machine.context, target);
    acceptor.non_blocking(true);
    // Stands in for a kernel that puts links where its sockets should be.
    const auto script = outside.path() / "python";
    write_file(
        script,
        "#!/bin/sh\nd=${4%/*}\nfor i in 1 2 4; do ln -s \"$TARGET\" $d/s-$i; done\nsleep 50\n");
    std::filesystem::permissions(script, std::filesystem::perms(0755));
    auto spec = machine.spec();
    spec.python = script;
    spec.policy.env["TARGET"] = target;
    BOOST_TEST((machine.start_error(std::move(spec)).code() == errc::kernel_protocol));
    boost::system::error_code error;
    acceptor.accept(error);
    BOOST_TEST(error == asio::error::would_block);
}

BOOST_AUTO_TEST_CASE(the_environment_is_plain) {
    Machine machine;
    auto spec = machine.spec();
    spec.policy.env["MY_VALUE"] = "mine";
    machine.with_kernel(std::move(spec), [](Kernel& kernel) -> awaitable<void> {
        const auto cell = co_await run_cell(kernel, R"py(
import os, sys
print(os.environ["TERM"], os.environ["NO_COLOR"], os.environ["MY_VALUE"], "FORCE_COLOR" in os.environ)
print("HOME" in os.environ, "pydantic" in sys.modules, "matplotlib" in sys.modules)
)py");
        BOOST_TEST(cell.out == "dumb 1 mine False\nFalse False False\n");
    });
}

BOOST_AUTO_TEST_CASE(a_start_that_fails_says_why) {
    Machine machine;
    TemporaryDirectory scripts;
    const auto script = [&](const char* name, const std::string& text) {
        const auto path = scripts.path() / name;
        write_file(path, "#!/bin/sh\n" + text + "\n");
        std::filesystem::permissions(path, std::filesystem::perms(0755));
        auto spec = machine.spec();
        spec.python = path;
        return spec;
    };
    auto error = machine.start_error(script("fails", "echo nothing works >&2; exit 7"));
    BOOST_TEST((error.code() == errc::kernel_start_failed));
    BOOST_TEST(contains(error.detail(), "exit code 7"));
    BOOST_TEST(contains(error.detail(), "nothing works"));

    const auto bare = "exec '" + kernel_python().string() + "' -I -S \"$@\"";
    error = machine.start_error(script("bare", bare));
    BOOST_TEST((error.code() == errc::missing_dependency));
    BOOST_TEST(contains(error.detail(), "pip install ipykernel"));

    auto spec = machine.spec();
    spec.extensions.push_back("no_such_extension");
    error = machine.start_error(std::move(spec));
    BOOST_TEST((error.code() == errc::kernel_start_failed));
    BOOST_TEST(contains(error.detail(), "no_such_extension"));

    spec = machine.spec();
    spec.python = scripts.path() / "absent";
    BOOST_TEST((machine.start_error(std::move(spec)).code() == errc::missing_dependency));

    spec = script("sleeps", "echo thinking; exec sleep 50");
    spec.init_timeout = 300ms;
    error = machine.start_error(std::move(spec));
    BOOST_TEST((error.code() == errc::timed_out));
    BOOST_TEST(contains(error.detail(), "thinking"));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace plugin_kernel_zmq_tests
