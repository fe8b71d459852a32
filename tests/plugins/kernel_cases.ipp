// What every kernel on this machine does, whatever its backend. Included by each backend's tests,
// in a namespace of its own that has backend_name, default_sandbox and complete(config, sandbox).

namespace {
constexpr const char* sandboxes[] = {"none", "bubblewrap", "srt"};

// All that one cell gave.
struct Cell {
    std::string out, err, all;
    std::vector<Display> displays;
    std::optional<PythonError> error;
    bool ok = false;
};

// Nobody here waits for more than this.
Clock::time_point soon() { return Clock::now() + 60s; }

awaitable<Cell> finish(Kernel& kernel) {
    Cell cell;
    for (;;) {
        auto output = co_await kernel.next(soon());
        if (!output) throw std::runtime_error("the cell hangs");
        if (auto* stream = std::get_if<Stream>(&*output)) {
            (stream->is_stderr ? cell.err : cell.out) += stream->text;
            cell.all += stream->text;
        } else if (auto* display = std::get_if<Display>(&*output)) {
            cell.all += "<display>";
            cell.displays.push_back(std::move(*display));
        } else if (auto* error = std::get_if<PythonError>(&*output)) {
            cell.error = std::move(*error);
        } else {
            cell.ok = std::get<Done>(*output).ok;
            co_return cell;
        }
    }
}

awaitable<Cell> run_cell(Kernel& kernel, std::string code) {
    ExecuteRequest request;
    request.code = std::move(code);
    co_await kernel.execute(std::move(request));
    co_return co_await finish(kernel);
}

// One machine's worth of host: everything a kernel leaves behind is found at the end.
struct Machine {
    explicit Machine(std::string sandbox_name = default_sandbox, json::object config = {})
        : name(std::move(sandbox_name)) {
        ::setenv("XDG_RUNTIME_DIR", runtime.path().c_str(), 1);
        host.executor = context.get_executor();
        registry.add_directory(plugin_directory());
        sandbox = registry.make<Sandbox>(name, host, sandbox_options(name));
        complete(config, name);
        backend = registry.make<KernelBackend>(backend_name, host, config);
        if (::geteuid() == 0 && ::chown(workspace.path().c_str(), 65534, gid_t(-1)) != 0)
            throw std::runtime_error("chown failed");
    }
    ~Machine() {
        backend.reset();
        BOOST_TEST(processes() == 0, "a process is left");
        BOOST_TEST(std::filesystem::is_empty(runtime.path()), "a file is left");
    }

    KernelSpec spec() {
        KernelSpec spec;
        spec.python = kernel_python();
        spec.policy.cwd = workspace.path();
        spec.policy.env["PATH"] = "/usr/bin:/bin";
        spec.policy.env["IPYBOX_TEST_MARK"] = runtime.path();
        if (name == "none") {
            spec.policy.network.mode = NetworkPolicy::Mode::full;
        } else {
            spec.interpreter = {kernel_python().parent_path().parent_path()};
            spec.policy.readable = spec.interpreter;
            spec.policy.writable.push_back(workspace.path());
        }
        Channel package;
        package.name = "lib";
        package.host_path = python_package();
        spec.policy.env["PYTHONPATH"] = sandbox->guest_address(spec.policy, package);
        spec.channels.push_back(std::move(package));
        spec.extensions = {"ipybox_kernel"};
        spec.init_timeout = 60s;
        return spec;
    }

    // Runs body(kernel) on a fresh kernel and shuts that down.
    template <class Body>
    void with_kernel(Body body) {
        with_kernel(spec(), std::move(body));
    }
    template <class Body>
    void with_kernel(KernelSpec with, Body body) {
        const auto work = [&]() -> awaitable<void> {
            auto kernel = co_await backend->start(*sandbox, std::move(with));
            co_await body(*kernel);
            co_await kernel->shutdown();
            BOOST_TEST(!kernel->alive());
        };
        run(context, work());
    }

    Error start_error(KernelSpec with) {
        try {
            with_kernel(std::move(with), [](Kernel&) -> awaitable<void> { co_return; });
        } catch (const Error& error) {
            return error;
        }
        throw std::runtime_error("the kernel started");
    }

    // How many processes carry our mark in their environment.
    int processes() const {
        const std::string mark = "IPYBOX_TEST_MARK=" + runtime.path().string();
        int count = 0;
        for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
            const auto text = read_file(entry.path() / "environ");
            if (text.find(mark) != std::string::npos) ++count;
        }
        return count;
    }

    std::string name;
    TemporaryDirectory runtime, workspace;
    asio::io_context context;
    Host host;
    PluginRegistry registry;
    std::unique_ptr<Sandbox> sandbox;
    std::unique_ptr<KernelBackend> backend;
};

// The error in which a cell ends together with its kernel; output before it is collected.
awaitable<Error> fatal_error(Kernel& kernel, std::string code, std::string* output = nullptr) {
    ExecuteRequest request;
    request.code = std::move(code);
    co_await kernel.execute(std::move(request));
    std::optional<Error> failure;
    try {
        for (;;) {
            auto item = co_await kernel.next(soon());
            if (!item) throw std::runtime_error("the cell hangs");
            if (std::get_if<Done>(&*item)) throw std::runtime_error("the cell ended in peace");
            if (auto* stream = std::get_if<Stream>(&*item); stream && output)
                *output += stream->text;
        }
    } catch (const Error& error) {
        failure = error;
    }
    BOOST_TEST(!kernel.alive());
    // The error is no accident of the moment: it stays.
    try {
        ExecuteRequest again;
        co_await kernel.execute(again);
        BOOST_ERROR("a dead kernel executes");
    } catch (const Error& error) {
        BOOST_TEST(error.code() == failure->code());
    }
    co_return *failure;
}

bool contains(std::string_view text, std::string_view part) {
    return text.find(part) != std::string_view::npos;
}

std::string numbers(int count) {
    std::string text;
    for (int i = 0; i < count; ++i) text += std::to_string(i) + "\n";
    return text;
}

awaitable<void> sleep_for(Duration time) {
    asio::steady_timer timer(co_await asio::this_coro::executor, time);
    co_await timer.async_wait(asio::use_awaitable);
}

// Runs code that prints "on", and interrupts it `later` than that; what it gave from there on.
awaitable<Cell> interrupted(Kernel& kernel, std::string code, Duration later) {
    ExecuteRequest request;
    request.code = std::move(code);
    co_await kernel.execute(std::move(request));
    for (std::string text; text != "on\n";) {
        const auto output = co_await kernel.next(soon());
        text += std::get<Stream>(output.value()).text;
    }
    co_await sleep_for(later);
    co_await kernel.interrupt();
    co_return co_await finish(kernel);
}
}  // namespace

BOOST_AUTO_TEST_CASE(cells_give_what_they_print_show_and_raise) {
    for (const auto* name : sandboxes) {
        BOOST_TEST_CONTEXT("sandbox " << name) {
            Machine machine(name);
            machine.with_kernel([](Kernel& kernel) -> awaitable<void> {
                auto cell = co_await run_cell(kernel, "x = 20\nprint('one'); print('two')");
                BOOST_TEST(cell.ok);
                BOOST_TEST(cell.out == "one\ntwo\n");
                cell = co_await run_cell(kernel, "x + 1");
                BOOST_TEST_REQUIRE(cell.displays.size() == 1U);
                BOOST_TEST(cell.displays[0].is_result);
                BOOST_TEST(cell.displays[0].data.at("text/plain").as_string() == "21");

                cell = co_await run_cell(kernel, "print('seen')\ndef f(): 1 / 0\nf()");
                BOOST_TEST(!cell.ok);
                BOOST_TEST(cell.out == "seen\n");
                BOOST_TEST_REQUIRE(cell.error.has_value());
                BOOST_TEST(cell.error->name == "ZeroDivisionError");
                BOOST_TEST(cell.error->value == "division by zero");
                BOOST_TEST(contains(cell.error->traceback, "1 / 0"));
                BOOST_TEST(!contains(cell.error->traceback, "\x1b["));

                cell = co_await run_cell(kernel, "def (");
                BOOST_TEST(!cell.ok);
                BOOST_TEST(cell.error->name == "SyntaxError");
                cell = co_await run_cell(kernel, "import asyncio\nawait asyncio.sleep(0.01)\nx");
                BOOST_TEST(cell.displays.at(0).data.at("text/plain").as_string() == "20");
                cell = co_await run_cell(kernel, "");
                BOOST_TEST(cell.ok);
                BOOST_TEST(cell.all == "");
                cell = co_await run_cell(kernel, "input('?')");
                BOOST_TEST(cell.error->name == "StdinNotImplementedError");
            });
        }
    }
}

BOOST_AUTO_TEST_CASE(streams_and_displays_keep_their_order) {
    Machine machine;
    machine.with_kernel([](Kernel& kernel) -> awaitable<void> {
        const auto cell = co_await run_cell(kernel, R"py(
import sys
for i in range(50):
    print("o", i)
    sys.stdout.flush()
    print("e", i, file=sys.stderr)
    sys.stderr.flush()
    display(i)
print("end")
)py");
        std::string expected;
        for (int i = 0; i < 50; ++i)
            expected += "o " + std::to_string(i) + "\ne " + std::to_string(i) + "\n<display>";
        BOOST_TEST(cell.all == expected + "end\n");
        BOOST_TEST(cell.displays.size() == 50U);
    });
}

BOOST_AUTO_TEST_CASE(child_processes_print_into_their_cell) {
    Machine machine;
    machine.with_kernel([](Kernel& kernel) -> awaitable<void> {
        // 3-byte characters straddle every boundary that a reader may have.
        for (int round = 0; round < 5; ++round) {
            auto cell = co_await run_cell(kernel, R"py(
import subprocess, sys
subprocess.run([sys.executable, "-c", "print('€' * 100_000)"])
)py");
            std::string expected;
            for (int i = 0; i < 100'000; ++i) expected += "€";
            BOOST_TEST((cell.out == expected + "\n"));
        }
        auto cell = co_await run_cell(kernel, "!echo from the shell");
        BOOST_TEST(contains(cell.out, "from the shell"));
        cell = co_await run_cell(kernel, "import os; os.system('echo wrong >&2'); None");
        BOOST_TEST(cell.err == "wrong\n");
        cell = co_await run_cell(kernel, R"py(
import os
if os.fork() == 0:
    print("child")
    import sys; sys.stdout.flush()
    os._exit(0)
os.wait(); None
)py");
        BOOST_TEST(cell.ok);
    });
}

BOOST_AUTO_TEST_CASE(text_that_utf8_cannot_express_is_shown_all_the_same) {
    Machine machine;
    machine.with_kernel([](Kernel& kernel) -> awaitable<void> {
        auto cell = co_await run_cell(kernel, R"py(print("\ud800|\udcff|ä|\0|\x1b"))py");
        const auto expected = "\\ud800|\\udcff|ä|" + std::string(1, '\0') + "|\x1b\n";
        BOOST_TEST(cell.out == expected);
        cell = co_await run_cell(kernel, R"py(raise ValueError("\udcff \ud800"))py");
        BOOST_TEST(cell.error->name == "ValueError");
        cell = co_await run_cell(
            kernel, R"py(display({"text/plain": "a\udcff", "x/y": float("nan")}, raw=True))py");
        BOOST_TEST(cell.displays.size() == 1U);
    });
}

BOOST_AUTO_TEST_CASE(plain_values_are_shown_as_the_code_has_said) {
    Machine machine;
    machine.with_kernel([](Kernel& kernel) -> awaitable<void> {
        const auto shown = [&kernel](std::string code) -> awaitable<std::string> {
            const auto cell = co_await run_cell(kernel, std::move(code));
            co_return cell.displays.size() == 1 ? detail::write_json(cell.displays[0].data)
                                                : cell.all;
        };
        const auto shows = [](const std::string& seen, const std::string& expected) {
            BOOST_TEST(seen == expected);
        };
        shows(co_await shown("1 + 1"), R"({"text/plain":"2"})");
        shows(co_await shown("'a\\nb'"), R"({"text/plain":"'a\\nb'"})");
        shows(co_await shown("[True]; True"), R"({"text/plain":"True"})");
        shows(co_await shown("1 + 1;"), "");
        shows(co_await shown("'a;b' #;"), R"({"text/plain":"'a;b'"})");
        const auto large = co_await run_cell(kernel, "10 ** 5000");
        BOOST_TEST_REQUIRE(large.error.has_value());
        BOOST_TEST(large.error->name == "ValueError");
        co_await run_cell(kernel, R"py(
formats = get_ipython().display_formatter.formatters
formats["text/html"].for_type(int, lambda n: f"<b>{n}</b>")
)py");
        shows(co_await shown("2"), R"({"text/plain":"2","text/html":"<b>2</b>"})");
        shows(co_await shown("False"), R"({"text/plain":"False","text/html":"<b>False</b>"})");
        co_await run_cell(kernel, R"py(
formats["text/html"].pop(int)
formats["text/plain"].for_type(int, lambda n, p, cycle: p.text("a number"))
)py");
        shows(co_await shown("2"), R"({"text/plain":"a number"})");
        co_await run_cell(kernel, "formats['text/html'].for_type_by_name('builtins', 'str', len)");
        const auto cell = co_await run_cell(kernel, "'x'");
        BOOST_TEST(contains(cell.all, "FormatterWarning"), cell.all);
    });
}

BOOST_AUTO_TEST_CASE(matplotlib_figures_arrive_as_png) {
    Machine machine;
    machine.with_kernel([](Kernel& kernel) -> awaitable<void> {
        const auto cell = co_await run_cell(
            kernel,
            "import matplotlib.pyplot as plt\nplt.plot([1, 2, 3])\nplt.show()\nprint('drawn')");
        BOOST_TEST(cell.ok);
        BOOST_TEST_REQUIRE(cell.displays.size() == 1U);
        BOOST_TEST(!cell.displays[0].is_result);
        const auto& png = cell.displays[0].data.at("image/png").as_string();
        BOOST_TEST(png.starts_with("iVBORw0KGgo"));
        // Without show() the figure appears when the cell ends.
        const auto late = co_await run_cell(kernel, "plt.plot([3, 2, 1]);");
        BOOST_TEST(late.displays.size() == 1U);
    });
}

BOOST_AUTO_TEST_CASE(the_working_directory_is_restored_when_one_is_set) {
    Machine machine;
    const std::string cwd = machine.workspace.path();
    const auto both = [](std::string expected_out, std::string expected_cwd) {
        return [=](Kernel& kernel) -> awaitable<void> {
            auto cell = co_await run_cell(kernel, "import os; os.chdir('/')");
            BOOST_TEST(cell.out == expected_out);
            cell = co_await run_cell(kernel, "print(os.getcwd())");
            BOOST_TEST(contains(cell.out, expected_cwd));
        };
    };
    machine.with_kernel(both("", "/\n"));
    auto spec = machine.spec();
    spec.policy.env["IPYBOX_WORKING_DIR"] = cwd;
    machine.with_kernel(std::move(spec), both("[ipybox] cwd reset to " + cwd + "\n", cwd + "\n"));
}

BOOST_AUTO_TEST_CASE(a_million_lines_arrive_byte_for_byte) {
    for (const auto* name : sandboxes) {
        BOOST_TEST_CONTEXT("sandbox " << name) {
            Machine machine(name);
            machine.with_kernel([](Kernel& kernel) -> awaitable<void> {
                const auto cell = co_await run_cell(kernel, "for i in range(1_000_000): print(i)");
                BOOST_TEST(cell.ok);
                BOOST_TEST((cell.out == numbers(1'000'000)));
            });
        }
    }
}

BOOST_AUTO_TEST_CASE(one_huge_print_arrives_byte_for_byte) {
    Machine machine;
    machine.with_kernel([](Kernel& kernel) -> awaitable<void> {
        const auto cell = co_await run_cell(
            kernel, "print(''.join(map(chr, range(32, 127))) * 1_052_632 + 'ä€😀')");
        std::string expected;
        for (int i = 0; i < 1'052'632; ++i)
            for (char c = 32; c < 127; ++c) expected += c;
        BOOST_TEST((cell.out == expected + "ä€😀\n"));
    });
}

BOOST_AUTO_TEST_CASE(a_consumer_that_pauses_loses_nothing) {
    for (const auto* code :
         {"for i in range(1_000_000): print(i)",
          // Waits for its reader at every line, far beyond ten seconds' patience.
          "for i in range(20_000): print(i, flush=True)"}) {
        Machine machine;
        machine.with_kernel([code](Kernel& kernel) -> awaitable<void> {
            ExecuteRequest request;
            request.code = std::string(code) + "\ndisplay(1)\nprint('end')";
            co_await kernel.execute(std::move(request));
            auto first = co_await kernel.next(soon());
            auto text = std::get<Stream>(first.value()).text;
            co_await sleep_for(10'500ms);
            const auto rest = co_await finish(kernel);
            const int count = contains(code, "1_000_000") ? 1'000'000 : 20'000;
            BOOST_TEST((text + rest.all == numbers(count) + "<display>end\n"));
            BOOST_TEST(rest.err == "");
            const auto after = co_await run_cell(kernel, "print('next')");
            BOOST_TEST(after.all == "next\n");
        });
    }
}

BOOST_AUTO_TEST_CASE(a_slow_consumer_slows_the_cell_down) {
    Machine machine;
    machine.with_kernel([](Kernel& kernel) -> awaitable<void> {
        ExecuteRequest request;
        request.code = R"py(
import re
line = "x" * 1023
for i in range(300_000): print(line)
# Not getrusage(2), which counts what the process was before it became Python.
peak = int(re.search(r"VmHWM:\s*(\d+) kB", open("/proc/self/status").read())[1]) // 1024
)py";
        co_await kernel.execute(std::move(request));
        co_await sleep_for(3s);
        std::size_t bytes = 0;
        for (;;) {
            const auto output = co_await kernel.next(soon());
            const auto* stream = std::get_if<Stream>(&output.value());
            if (stream == nullptr) break;
            bytes += stream->text.size();
        }
        BOOST_TEST(bytes == 300'000U * 1024U);
        // 300 MB were printed; the kernel held back a part of it, not all.
        const auto cell = co_await run_cell(kernel, "print(peak < 200)");
        BOOST_TEST(cell.out == "True\n");
    });
}

BOOST_AUTO_TEST_CASE(a_cancelled_next_loses_nothing) {
    using namespace asio::experimental::awaitable_operators;
    Machine machine;
    machine.with_kernel([](Kernel& kernel) -> awaitable<void> {
        ExecuteRequest request;
        request.code = "import time\nfor i in range(300): print(i, flush=True); time.sleep(0.001)";
        co_await kernel.execute(std::move(request));
        std::string text;
        int cancelled = 0;
        for (bool done = false; !done;) {
            auto both = co_await (kernel.next(never) || sleep_for(500us));
            if (both.index() == 1) {
                ++cancelled;
                continue;
            }
            const auto& output = std::get<0>(both).value();
            if (const auto* stream = std::get_if<Stream>(&output)) text += stream->text;
            done = std::holds_alternative<Done>(output);
        }
        BOOST_TEST(cancelled > 0);
        BOOST_TEST(text == numbers(300));
    });
}

BOOST_AUTO_TEST_CASE(next_returns_at_its_deadline) {
    Machine machine;
    machine.with_kernel([](Kernel& kernel) -> awaitable<void> {
        ExecuteRequest request;
        request.code = "import time; time.sleep(1); print('late')";
        co_await kernel.execute(request);
        BOOST_TEST(!(co_await kernel.next(Clock::now() + 50ms)).has_value());
        std::optional<errc> refused;
        try {
            co_await kernel.execute(request);
        } catch (const Error& error) {
            refused = static_cast<errc>(error.code().value());
        }
        BOOST_TEST((refused == errc::busy));
        const auto cell = co_await finish(kernel);
        BOOST_TEST(cell.out == "late\n");
    });
}

BOOST_AUTO_TEST_CASE(interrupt_stops_a_cell_and_keeps_the_state) {
    for (const auto* name : sandboxes) {
        BOOST_TEST_CONTEXT("sandbox " << name) {
            Machine machine(name);
            machine.with_kernel([](Kernel& kernel) -> awaitable<void> {
                co_await run_cell(kernel, "import time, asyncio, subprocess; kept = 1");
                for (const auto* code :
                     {"print('on', flush=True)\nwhile True: pass",
                      "print('on', flush=True)\ntime.sleep(100)",
                      "print('on', flush=True)\nawait asyncio.sleep(100)",
                      "print('on', flush=True)\nsubprocess.run(['sleep', '100'])"}) {
                    const auto cell = co_await interrupted(kernel, code, 0ms);
                    BOOST_TEST(!cell.ok);
                    BOOST_TEST_REQUIRE(cell.error.has_value(), code << cell.all);
                    const bool expected = cell.error->name == "KeyboardInterrupt" ||
                                          cell.error->name == "CancelledError";
                    BOOST_TEST(expected, cell.error->name);
                }
                // With nothing running there is nothing to interrupt.
                co_await kernel.interrupt();
                const auto cell = co_await run_cell(kernel, "print(kept)");
                BOOST_TEST(cell.out == "1\n");
            });
        }
    }
}

BOOST_AUTO_TEST_CASE(an_interrupt_ends_a_wait_that_began_just_after_it) {
    Machine machine;
    machine.with_kernel([](Kernel& kernel) -> awaitable<void> {
        // Blocked here, the signal is taken by another thread: Python notes it, and no call ends,
        // as when it comes between Python's last look at signals and the call.
        co_await run_cell(kernel,
                          "import signal, subprocess, time; kept = 3\n"
                          "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])");
        for (const auto* code : {"print('on', flush=True)\ntime.sleep(100)",
                                 "print('on', flush=True)\nsubprocess.run(['sleep', '100'])"}) {
            // By then the wait has begun.
            const auto cell = co_await interrupted(kernel, code, 200ms);
            BOOST_TEST_REQUIRE(cell.error.has_value());
            BOOST_TEST(cell.error->name == "KeyboardInterrupt");
        }
        const auto cell = co_await run_cell(kernel, "print(kept)");
        BOOST_TEST(cell.out == "3\n");
    });
}

BOOST_AUTO_TEST_CASE(an_interrupt_hits_the_cell_it_was_meant_for) {
    Machine machine;
    machine.with_kernel([](Kernel& kernel) -> awaitable<void> {
        for (int i = 0; i < 20; ++i) {
            // At once, before the kernel can have begun.
            ExecuteRequest request;
            request.code = "while True: pass";
            co_await kernel.execute(std::move(request));
            co_await kernel.interrupt();
            auto cell = co_await finish(kernel);
            BOOST_TEST(cell.error.value().name == "KeyboardInterrupt");
            // Just as the cell ends: it may still hit, but then this cell and not the next.
            request.code = "pass";
            co_await kernel.execute(std::move(request));
            co_await sleep_for(i * 200us);
            co_await kernel.interrupt();
            cell = co_await finish(kernel);
            BOOST_TEST(cell.ok == !cell.error.has_value());
            cell = co_await run_cell(kernel, "for i in range(20_000): pass\nprint('whole')");
            BOOST_TEST(cell.out == "whole\n");
        }
    });
}

BOOST_AUTO_TEST_CASE(a_cell_that_prints_to_nobody_can_be_interrupted) {
    Machine machine;
    machine.with_kernel([](Kernel& kernel) -> awaitable<void> {
        ExecuteRequest request;
        request.code = "kept = 2\nwhile True: print('x' * 10_000)";
        co_await kernel.execute(std::move(request));
        co_await sleep_for(2s);
        co_await kernel.interrupt();
        const auto cell = co_await finish(kernel);
        BOOST_TEST(cell.error.value().name == "KeyboardInterrupt");
        BOOST_TEST((co_await run_cell(kernel, "print(kept)")).out == "2\n");
    });
}

BOOST_AUTO_TEST_CASE(errors_do_not_spill_into_the_next_cell) {
    Machine machine;
    machine.with_kernel([](Kernel& kernel) -> awaitable<void> {
        for (int i = 0; i < 30; ++i) {
            auto cell = co_await run_cell(kernel, "raise KeyError");
            BOOST_TEST(!cell.ok);
            cell = co_await run_cell(kernel, "print(1)");
            BOOST_TEST(cell.ok);
            BOOST_TEST(cell.all == "1\n");
        }
    });
}

BOOST_AUTO_TEST_CASE(cells_follow_the_habits_of_ipython) {
    Machine machine;
    machine.with_kernel([](Kernel& kernel) -> awaitable<void> {
        auto cell = co_await run_cell(kernel, "5;");
        BOOST_TEST(cell.all == "");
        cell = co_await run_cell(kernel, "5 # no; here");
        BOOST_TEST(cell.displays.size() == 1U);
        cell = co_await run_cell(kernel, "print(repr(_), repr(__), _ + 1)");
        BOOST_TEST(cell.out == "5 '' 6\n");
        cell = co_await run_cell(kernel, "get_ipython().run_cell('print(1)'); print(2)");
        BOOST_TEST(cell.out == "1\n2\n");
        // The way a tool call takes is not the user's business.
        cell = co_await run_cell(kernel, "import ipybox_kernel\nipybox_kernel._send('s', 't', {})");
        BOOST_TEST(cell.error.value().name == "ToolRunnerError");
        BOOST_TEST(contains(cell.error->traceback, "ipybox_kernel._send("));
        BOOST_TEST(!contains(cell.error->traceback, "client.py"));

        ExecuteRequest request;
        request.code = "print('\xFF')";
        std::optional<Error> refused;
        try {
            co_await kernel.execute(std::move(request));
        } catch (const Error& error) {
            refused = error;
        }
        BOOST_TEST((refused.value().code() == errc::bad_argument));
        cell = co_await run_cell(kernel, "print('ä😀')");
        BOOST_TEST(cell.out == "ä😀\n");
    });
}

BOOST_AUTO_TEST_CASE(a_silent_cell_shows_nothing) {
    Machine machine;
    machine.with_kernel([](Kernel& kernel) -> awaitable<void> {
        ExecuteRequest request;
        request.code = "hidden = 5\nhidden";
        request.silent = true;
        co_await kernel.execute(std::move(request));
        const auto cell = co_await finish(kernel);
        BOOST_TEST(cell.ok);
        BOOST_TEST(cell.all == "");
        BOOST_TEST((co_await run_cell(kernel, "print(hidden)")).out == "5\n");
    });
}

BOOST_AUTO_TEST_CASE(what_a_thread_prints_later_goes_to_the_running_cell) {
    Machine machine;
    machine.with_kernel([](Kernel& kernel) -> awaitable<void> {
        co_await run_cell(kernel, R"py(
import threading
go, gone = threading.Event(), threading.Event()
def speak():
    go.wait(); print("from the thread", flush=True); gone.set()
threading.Thread(target=speak).start()
)py");
        const auto cell = co_await run_cell(kernel, "go.set(); _ = gone.wait()");
        BOOST_TEST(cell.out == "from the thread\n");
    });
}

BOOST_AUTO_TEST_CASE(the_end_of_the_process_is_reported_at_once) {
    struct Case {
        const char* code;
        const char* says;
    };
    const Case cases[] = {
        {"import os; os.kill(os.getpid(), 9)", "SIGKILL"},
        {"import os; os._exit(3)", "exit code 3"},
        {"import ctypes; ctypes.string_at(0)", "Segmentation fault"},
        {"import os; os.abort()", "SIGABRT"},
        {"import os; os.closerange(3, 1000)", "ended"},
        {"import os\nos.write(2, b'my last words')\nimport time; time.sleep(0.3)\nos._exit(1)",
         "my last words"},
    };
    for (const auto* name : sandboxes) {
        for (const auto& one : cases) {
            BOOST_TEST_CONTEXT("sandbox " << name << ": " << one.code) {
                Machine machine(name);
                machine.with_kernel([one](Kernel& kernel) -> awaitable<void> {
                    const auto error = co_await fatal_error(kernel, one.code);
                    BOOST_TEST((error.code() == errc::kernel_died));
                    BOOST_TEST(contains(error.detail(), one.says), error.detail());
                    BOOST_TEST(contains(error.detail(), "reset()"));
                });
            }
        }
    }
}

BOOST_AUTO_TEST_CASE(output_before_the_end_is_kept) {
    Machine machine;
    machine.with_kernel([](Kernel& kernel) -> awaitable<void> {
        std::string output;
        const auto error = co_await fatal_error(
            kernel, "import os, time\nprint('before', flush=True)\ntime.sleep(0.3)\nos._exit(3)",
            &output);
        BOOST_TEST((error.code() == errc::kernel_died));
        BOOST_TEST(output == "before\n");
    });
}

BOOST_AUTO_TEST_CASE(a_kernel_killed_from_outside_is_reported) {
    Machine machine("none");
    machine.with_kernel([](Kernel& kernel) -> awaitable<void> {
        const auto cell = co_await run_cell(kernel, "import os; print(os.getpid())");
        ExecuteRequest request;
        request.code = "while True: pass";
        co_await kernel.execute(std::move(request));
        ::kill(std::stoi(cell.out), SIGKILL);
        std::string detail;
        try {
            co_await kernel.next(soon());
        } catch (const Error& error) {
            BOOST_TEST((error.code() == errc::kernel_died));
            detail = error.detail();
        }
        BOOST_TEST(contains(detail, "SIGKILL"));
    });
}

BOOST_AUTO_TEST_CASE(exit_ends_the_cell_and_then_the_kernel) {
    Machine machine;
    machine.with_kernel([](Kernel& kernel) -> awaitable<void> {
        const auto cell = co_await run_cell(kernel, "print('bye'); exit()");
        BOOST_TEST(cell.out == "bye\n");
        std::optional<Error> failure;
        try {
            // The process may take its time; whatever cell meets its end says so.
            for (;;) co_await run_cell(kernel, "import time; time.sleep(0.05)");
        } catch (const Error& error) {
            failure = error;
        }
        BOOST_TEST((failure.value().code() == errc::kernel_died));
    });
}

BOOST_AUTO_TEST_CASE(closing_the_standard_streams_does_no_harm) {
    Machine machine;
    machine.with_kernel([](Kernel& kernel) -> awaitable<void> {
        co_await run_cell(kernel, "import os; os.close(1)");
        auto cell = co_await run_cell(kernel, "print('still here')");
        BOOST_TEST(cell.out == "still here\n");
        co_await run_cell(kernel, "os.close(2); os.close(0)");
        cell = co_await run_cell(kernel, "import sys; print('err', file=sys.stderr)");
        BOOST_TEST(cell.err == "err\n");
    });
}

BOOST_AUTO_TEST_CASE(several_kernels_run_at_once) {
    Machine machine;
    int finished = 0;
    const auto one = [&](int number) -> awaitable<void> {
        auto kernel = co_await machine.backend->start(*machine.sandbox, machine.spec());
        const auto code = "me = " + std::to_string(number) + "\nfor i in range(20_000): print(me)";
        const auto cell = co_await run_cell(*kernel, code);
        std::string expected;
        for (int i = 0; i < 20'000; ++i) expected += std::to_string(number) + "\n";
        BOOST_TEST((cell.out == expected));
        co_await kernel->shutdown();
        ++finished;
    };
    const auto all = [&]() -> awaitable<void> {
        using namespace asio::experimental::awaitable_operators;
        co_await (one(1) && one(2) && one(3) && one(4));
    };
    run(machine.context, all());
    BOOST_TEST(finished == 4);
}

BOOST_AUTO_TEST_CASE(it_may_be_dropped_at_any_moment) {
    Machine machine;
    for (const auto after : {0ms, 1ms, 30ms, 150ms, 250ms, 350ms, 500ms}) {
        using namespace asio::experimental::awaitable_operators;
        const auto race = [&]() -> awaitable<void> {
            auto both = co_await (machine.backend->start(*machine.sandbox, machine.spec()) ||
                                  sleep_for(after));
            // Whoever wins, the kernel that may have started ends here.
        };
        run(machine.context, race());
        BOOST_TEST(machine.processes() == 0);
    }
    // A kernel that goes while somebody waits for it, as in a program that ends by exception.
    std::unique_ptr<Kernel> kernel;
    const auto start = [&]() -> awaitable<void> {
        kernel = co_await machine.backend->start(*machine.sandbox, machine.spec());
        ExecuteRequest request;
        request.code = "print('x' * 1_000_000)\nwhile True: pass";
        co_await kernel->execute(std::move(request));
    };
    run(machine.context, start());
    bool ended = false;
    const auto wait = [&]() -> awaitable<void> {
        try {
            for (;;) co_await kernel->next(never);
        } catch (const Error&) {
            ended = true;
        }
    };
    asio::co_spawn(machine.context, wait(), asio::detached);
    machine.context.run_for(300ms);
    kernel.reset();
    BOOST_TEST(machine.processes() == 0);
    machine.backend.reset();
    BOOST_TEST(std::filesystem::is_empty(machine.runtime.path()));
    machine.context.run_for(300ms);
    BOOST_TEST(ended);
}
