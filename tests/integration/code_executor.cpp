// Code actions in a real kernel, unconfined and in bubblewrap.
#include <ipybox/sandbox_kit/process.hpp>
#include <regex>

#include "executor_fixture.hpp"

using namespace ipybox;
using namespace std::chrono_literals;
using Status = CodeExecutionResult::Status;
namespace data = boost::unit_test::data;

BOOST_FIXTURE_TEST_SUITE(code_executor, test::ExecutorFixture)

BOOST_DATA_TEST_CASE_F(test::ExecutorFixture, output_and_state, data::make(test::sandboxes),
                       sandbox) {
    start(sandbox);
    BOOST_TEST(text("x = 41\nprint('hello')\nprint('  world  ')") == "hello\n  world");
    BOOST_TEST(text("x + 1") == "42");
    BOOST_TEST(!execute("y = 1").text.has_value());
    BOOST_TEST(text("import asyncio\nawait asyncio.sleep(0.01)\nprint('awaited')") == "awaited");
    BOOST_TEST(text("import sys\nprint('out'); print('err', file=sys.stderr); print('out again')")
                   .find("err") != std::string::npos);
    BOOST_TEST(text("!echo from a shell") == "from a shell");
    BOOST_TEST(text("import os; print(os.environ['TERM'], os.environ['NO_COLOR'])") == "dumb 1");
    BOOST_TEST(text("print(get_ipython().history_manager.enabled)") == "False");

    const auto seen =
        stream("import time\nfor i in range(3):\n    print(i, flush=True)\n    time.sleep(0.05)",
               test::accept);
    BOOST_TEST(seen.chunks == "0\n1\n2\n");
    BOOST_TEST(seen.result.text.value() == "0\n1\n2");
}

BOOST_DATA_TEST_CASE_F(test::ExecutorFixture, python_errors, data::make(test::sandboxes), sandbox) {
    start(sandbox);
    const auto result = execute("print('before')\nraise ValueError('wrong \\x1b[31mred')");
    BOOST_TEST(result.status == Status::error);
    BOOST_TEST(result.text.value() == "before");
    BOOST_TEST(result.error.find("ValueError: wrong") != std::string::npos, result.error);
    BOOST_TEST(result.error.find('\x1b') == std::string::npos);
    BOOST_CHECK_EXCEPTION(result.ok_or_throw(), Error,
                          [](const Error& e) { return e.code() == errc::code_failed; });
    BOOST_TEST(execute("def (").error.find("SyntaxError") != std::string::npos);
    BOOST_TEST(text("print('still here')") == "still here");
}

BOOST_DATA_TEST_CASE_F(test::ExecutorFixture, a_timeout_keeps_output_and_state,
                       data::make(test::sandboxes), sandbox) {
    start(sandbox);
    text("state = 'kept'");
    const auto result = execute("import time\nprint('partial', flush=True)\ntime.sleep(60)", 200ms);
    BOOST_TEST(result.status == Status::timed_out);
    BOOST_TEST(result.error.find("0.20s") != std::string::npos, result.error);
    BOOST_TEST(result.text.value_or("") == "partial");
    BOOST_CHECK_EXCEPTION(result.ok_or_throw(), Error,
                          [](const Error& e) { return e.code() == errc::timed_out; });
    BOOST_TEST(text("print(state)") == "kept");
    // Not only Python's own waits are interrupted.
    BOOST_TEST(execute("!sleep 60", 300ms).status == Status::timed_out);
    BOOST_TEST(text("print(state)") == "kept");
}

BOOST_DATA_TEST_CASE_F(test::ExecutorFixture, cancel_keeps_output_and_state,
                       data::make(test::sandboxes), sandbox) {
    start(sandbox);
    text("state = 'kept'");
    asio::steady_timer timer(context, 500ms);
    timer.async_wait([&](auto) { executor->cancel(); });
    const auto result = execute("import time\nprint('partial', flush=True)\ntime.sleep(60)");
    BOOST_TEST(result.status == Status::cancelled);
    BOOST_TEST(result.text.value_or("") == "partial");
    BOOST_TEST(text("print(state)") == "kept");
}

BOOST_AUTO_TEST_CASE(a_dropped_execution_is_cancelled) {
    start("none");
    const auto begin_and_drop = [](CodeExecutor& subject) -> awaitable<void> {
        auto dropped = co_await subject.stream("import time; time.sleep(60)", 60s);
    };
    test::run(context, begin_and_drop(*executor));
    BOOST_TEST(text("print('next')") == "next");
}

BOOST_AUTO_TEST_CASE(one_execution_at_a_time) {
    start("none");
    const auto work = [](CodeExecutor& subject) -> awaitable<errc> {
        auto first = co_await subject.stream("import time; time.sleep(60)", 60s);
        errc seen{};
        try {
            auto second = co_await subject.stream("1", 60s);
        } catch (const Error& error) {
            seen = static_cast<errc>(error.code().value());
        }
        co_return seen;
    };
    BOOST_TEST((test::run(context, work(*executor)) == errc::busy));
}

BOOST_DATA_TEST_CASE_F(test::ExecutorFixture, a_cell_that_ignores_interrupts_loses_its_kernel,
                       data::make(test::sandboxes), sandbox) {
    options.interrupt_grace = 1s;
    start(sandbox);
    const auto result = execute(
        "import time\nwhile True:\n    try:\n        time.sleep(60)\n    except "
        "KeyboardInterrupt:\n        print('no')",
        300ms);
    BOOST_TEST(result.status == Status::timed_out);
    BOOST_TEST(result.error.find("reset() starts a new one") != std::string::npos, result.error);
    BOOST_CHECK_EXCEPTION(execute("1"), Error,
                          [](const Error& e) { return e.code() == errc::kernel_died; });
    test::run(context, executor->reset());
    BOOST_TEST(text("1 + 1") == "2");
}

BOOST_DATA_TEST_CASE_F(test::ExecutorFixture, a_dead_kernel_is_one_clear_error,
                       data::make(test::sandboxes), sandbox) {
    start(sandbox);
    // What is printed in the last moment may still be in ZeroMQ's thread, which dies as well.
    const std::string words =
        "import ctypes, os, signal, time\nprint('last words', flush=True)\ntime.sleep(0.3)\n";
    for (const char* death :
         {"os.kill(os.getpid(), signal.SIGKILL)", "os._exit(3)", "ctypes.string_at(0)"}) {
        const auto result = execute(words + death);
        BOOST_TEST(result.status == Status::kernel_lost);
        BOOST_TEST(result.error.find("reset()") != std::string::npos, result.error);
        BOOST_TEST(result.text.value_or("").find("last words") != std::string::npos);
        BOOST_CHECK_THROW(execute("1"), Error);
        test::run(context, executor->reset());
        BOOST_TEST(text("1 + 1") == "2");
    }
}

BOOST_DATA_TEST_CASE_F(test::ExecutorFixture, closing_descriptor_one_breaks_nothing,
                       data::make(test::sandboxes), sandbox) {
    start(sandbox);
    execute("import os; os.close(1); os.close(0)");
    BOOST_TEST(text("print('still printed')") == "still printed");
}

BOOST_AUTO_TEST_CASE(reset_forgets_everything) {
    start("none");
    text("x = 1");
    test::run(context, executor->reset());
    BOOST_TEST(execute("x").error.find("NameError") != std::string::npos);
}

BOOST_DATA_TEST_CASE_F(test::ExecutorFixture, environment_is_exact, data::make(test::sandboxes),
                       sandbox) {
    ::setenv("IPYBOX_TEST_HOST_SECRET", "do-not-leak", 1);
    options.kernel_env["GIVEN"] = "value";
    start(sandbox);
    BOOST_TEST(
        text("import os; print(os.environ['GIVEN'], 'IPYBOX_TEST_HOST_SECRET' in os.environ)") ==
        "value False");
    BOOST_TEST(text("print(b'do-not-leak' in open('/proc/self/environ', 'rb').read())") == "False");
}

BOOST_DATA_TEST_CASE_F(test::ExecutorFixture, working_dir_is_restored_after_every_cell,
                       data::make(test::sandboxes), sandbox) {
    options.working_dir = workspace.path();
    start(sandbox);
    const std::string here = workspace.path().string();
    BOOST_TEST(text("import os; os.chdir('/'); print(os.getcwd())") ==
               "/\n[ipybox] cwd reset to " + here);
    BOOST_TEST(text("print(os.getcwd())") == here);
}

BOOST_AUTO_TEST_CASE(without_working_dir_chdir_persists) {
    start("none");
    text("import os; os.chdir('/')");
    BOOST_TEST(text("print(os.getcwd())") == "/");
}

BOOST_DATA_TEST_CASE_F(test::ExecutorFixture, images_become_files, data::make(test::sandboxes),
                       sandbox) {
    start(sandbox);
    const auto result =
        execute("import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()\nprint('drawn')");
    BOOST_TEST_REQUIRE(result.ok(), result.error);
    BOOST_TEST(result.text.value() == "drawn");
    BOOST_TEST_REQUIRE(result.images.size() == 1u);
    BOOST_TEST(
        std::regex_match(result.images[0].filename().string(), std::regex("[0-9a-f]{8}\\.png")));
    BOOST_TEST((result.images[0].parent_path() == workspace.path() / "images"));
    BOOST_TEST(test::read_file(result.images[0]).starts_with("\x89PNG\r\n"));
    BOOST_TEST(result.displays.at(0).contains("image/png"));
}

BOOST_DATA_TEST_CASE_F(test::ExecutorFixture, a_planted_link_does_not_lead_images_out,
                       data::make(test::sandboxes), sandbox) {
    start(sandbox);
    const test::TemporaryDirectory elsewhere;
    text("import os; os.symlink('" + elsewhere.path().string() + "', 'images')");
    const auto result = execute(
        "from IPython.display import Image, display\nimport "
        "base64\ndisplay(Image(data=base64.b64decode('iVBORw0KGgo='), "
        "format='png'))");
    BOOST_TEST(result.images.empty());
    BOOST_TEST(result.text.value_or("").find("could not be saved") != std::string::npos);
    BOOST_TEST(std::filesystem::is_empty(elsewhere.path()));
}

BOOST_AUTO_TEST_CASE(output_over_the_cap_is_an_explicit_error) {
    options.max_output = 1 << 20;
    // What the kernel has sent by then is read first, which takes its time on a busy machine.
    options.interrupt_grace = 60s;
    start("none");
    const auto result = execute("for i in range(10_000_000): print('x' * 1000)");
    BOOST_TEST(result.status == Status::output_limit);
    BOOST_TEST(result.error.find("1048576 bytes") != std::string::npos, result.error);
    BOOST_TEST(result.text.value().size() > (1u << 19));
    BOOST_TEST(text("print('usable')") == "usable");
    // What a display holds counts, text or not.
    const auto numbers = execute(
        "for i in range(10_000): display({'application/x': [0] * 1000, 'text/plain': ''}, "
        "raw=True)");
    BOOST_TEST(numbers.status == Status::output_limit);
    BOOST_TEST(numbers.displays.size() > 10U);
    BOOST_TEST(numbers.displays.size() < 100U);
}

BOOST_DATA_TEST_CASE_F(test::ExecutorFixture, a_million_lines_arrive_whole,
                       data::make(test::sandboxes), sandbox) {
    start(sandbox);
    const auto seen = stream("for i in range(1_000_000): print(i)", test::accept, 120s);
    BOOST_TEST_REQUIRE(seen.result.ok(), seen.result.error);
    std::string expected;
    for (int i = 0; i < 1'000'000; ++i) expected += std::to_string(i) + '\n';
    BOOST_TEST((seen.chunks == expected));
    expected.pop_back();
    BOOST_TEST((seen.result.text.value() == expected));
}

BOOST_AUTO_TEST_CASE(a_hundred_megabytes_arrive_whole) {
    start("bubblewrap");
    const auto seen = stream("print('0123456789' * 10_000_000)", test::accept, 120s);
    BOOST_TEST_REQUIRE(seen.result.ok(), seen.result.error);
    std::string expected;
    for (int i = 0; i < 10'000'000; ++i) expected += "0123456789";
    BOOST_TEST((seen.result.text.value() == expected));
    BOOST_TEST(seen.chunks.size() == expected.size() + 1);
}

BOOST_AUTO_TEST_CASE(what_is_streamed_alone_is_not_kept_for_the_result) {
    options.max_output = 32 << 20;
    start("none");
    const auto shown =
        stream("print('a' * 1_000_000)\ndisplay('shown')", test::accept, 120s, ResultText::none);
    BOOST_TEST_REQUIRE(shown.result.ok(), shown.result.error);
    BOOST_TEST(shown.chunks.size() > 1'000'000U);
    BOOST_TEST(shown.chunks.ends_with("'shown'\n"));
    BOOST_TEST(shown.result.displays.size() == 1U);
    BOOST_TEST(!shown.result.text.has_value());
    // It counts as much as what is kept.
    const auto much = stream("print('b' * 40_000_000)", test::accept, 120s, ResultText::none);
    BOOST_TEST(much.result.status == Status::output_limit);
    BOOST_TEST(!much.result.text.has_value());
}

BOOST_AUTO_TEST_CASE(a_consumer_that_pauses_loses_nothing) {
    start("bubblewrap");
    const auto work = [](CodeExecutor& subject, asio::io_context& io) -> awaitable<std::string> {
        auto execution = co_await subject.stream("for i in range(1_000_000): print(i)", 120s, true);
        std::string all;
        bool paused = false;
        for (;;) {
            auto event = co_await execution.next();
            if (!event) break;
            const auto* chunk = std::get_if<CodeExecutionChunk>(&*event);
            if (chunk == nullptr) continue;
            all += chunk->text;
            if (!paused && all.size() > 100'000) {
                paused = true;
                asio::steady_timer pause(io, 10s);
                co_await pause.async_wait(asio::use_awaitable);
            }
        }
        co_return all;
    };
    std::string expected;
    for (int i = 0; i < 1'000'000; ++i) expected += std::to_string(i) + '\n';
    BOOST_TEST((test::run(context, work(*executor, context)) == expected));
}

BOOST_AUTO_TEST_CASE(the_bubblewrap_view_is_minimal) {
    if (test::distant()) {
        BOOST_TEST_MESSAGE(
            "skipped: the kernel is on another machine, where no sandbox of ours confines it");
        return;
    }
    test::write_file(workspace.path() / ".env", "TOKEN=secret");
    start("bubblewrap");
    BOOST_TEST(execute("open('.env').read()").error.find("Error") != std::string::npos);
    BOOST_TEST(execute("open('/etc/shadow').read()").error.find("FileNotFoundError") !=
               std::string::npos);
    BOOST_TEST(text("import os; print(os.path.exists('/root'), os.path.exists('/home/user'))") ==
               "False True");
    BOOST_TEST(execute("import socket; socket.create_connection(('1.1.1.1', 53), 3)")
                   .error.find("OSError") != std::string::npos);
    BOOST_TEST(text("open('made.txt', 'w').write('x'); print(open('made.txt').read())") == "x");
    BOOST_TEST(execute("open('.mcp.json', 'w').write('{}')").error.find("Error") !=
               std::string::npos);
    struct stat made{};
    BOOST_TEST_REQUIRE(::stat((workspace.path() / "made.txt").c_str(), &made) == 0);
    BOOST_TEST(made.st_uid != 0u);
    // What protected an absent file is gone when the kernel is.
    test::run(context, executor->stop());
    BOOST_TEST(!std::filesystem::exists(workspace.path() / ".mcp.json"));
    BOOST_TEST(test::read_file(workspace.path() / ".env") == "TOKEN=secret");
}

BOOST_AUTO_TEST_CASE(kernels_are_of_zmq_where_there_are_none_of_fork) {
    if (test::distant()) return;
    const auto kind = [&](PluginRegistry& registry, std::string* said) {
        auto own = options;
        own.kernel = "auto";
        own.sandbox = "none";
        own.logger = {LogLevel::warning,
                      [said](LogLevel, std::string_view line) { *said += line; }};
        CodeExecutor subject(context.get_executor(), registry, own);
        test::run(context, subject.start());
        const auto result = test::run(
            context, subject.execute("print(type(get_ipython()).__name__)", Duration(60s)));
        test::run(context, subject.stop());
        return result.text.value_or("");
    };
    std::string said;
    BOOST_TEST(kind(plugins, &said) == "Shell");
    BOOST_TEST(said.find("zmq") == std::string::npos);
    PluginRegistry few;
    for (const auto* name : {"kernel/zmq", "sandbox/none", "approval/ask"}) {
        const auto file = test::plugin_directory() / (std::string(name) + ".so");
        if (!std::filesystem::exists(file)) return;  // linked into this program
        few.load(file);
    }
    BOOST_TEST(kind(few, &said) == "ZMQInteractiveShell");
    BOOST_TEST(said.find("kernels of zmq are used: ") != std::string::npos, said);
}

BOOST_AUTO_TEST_CASE(spare_kernels_are_taken_at_a_reset_and_go_with_the_executor) {
    if (test::kernel_backend() != "fork") return;
    options.kernel_options["spares"] = 2;
    start("bubblewrap");
    for (int i = 0; i < 4; ++i) {
        BOOST_TEST(text("print('x' in globals()); x = 1") == "False");
        if (i % 2 == 0) {
            context.restart();
            context.run_for(300ms);
        }
        test::run(context, executor->reset());
    }
    // While some are still being started, and with nobody who stops it first.
    test::run(context, executor->reset());
    executor.reset();
    context.restart();
    context.run_for(2s);
    BOOST_TEST(sandbox_kit::children_of(::getpid()).empty());
}

BOOST_AUTO_TEST_CASE(wrong_options_are_refused_with_a_reason) {
    const auto problem = [&](auto change) {
        auto changed = options;
        change(changed);
        try {
            CodeExecutor subject(context.get_executor(), plugins, changed);
            test::run(context, subject.start());
        } catch (const Error& error) {
            return error.detail();
        }
        return std::string("no error");
    };
    BOOST_TEST(problem([](auto& o) { o.sandbox = "nosuch"; }).find("there are: bubblewrap, none") !=
               std::string::npos);
    BOOST_TEST(problem([](auto& o) {
                   o.kernel = "nosuch";
               }).find("there are: fork, gateway, zmq") != std::string::npos);
    BOOST_TEST(problem([](auto& o) {
                   o.approval = "nosuch";
               }).find("there are: allow, ask, command, console, deny, rules") !=
               std::string::npos);
    BOOST_TEST(problem([](auto& o) { o.sandbox_options["x"] = 1; }).find("/x") !=
               std::string::npos);
    BOOST_TEST(problem([](auto& o) { o.workspace = "/nonexistent"; }).find("create it first") !=
               std::string::npos);
    BOOST_TEST(problem([](auto& o) {
                   o.python = "/nonexistent/python";
               }).find("/nonexistent/python") != std::string::npos);
}

BOOST_AUTO_TEST_SUITE_END()
