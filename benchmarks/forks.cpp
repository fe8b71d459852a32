#include "forks.hpp"

#include <sys/socket.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <ipybox/executor/blocking.hpp>
#include <sstream>
#include <thread>

#include "contenders.hpp"
#include "tool_calls.hpp"
#include "workspace.hpp"

namespace {
using namespace bench;
using namespace std::chrono_literals;

// run_cell() in a process that has nothing else to do, at the end of a socket; see
// run_cell_floor.py.
class RunCellFloor final : public Contender {
public:
    double start() override {
        int ends[2];
        if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0)
            throw std::runtime_error("socketpair failed");
        pid_ = ::fork();
        if (pid_ == 0) {
            ::dup2(ends[1], 3);
            ::close_range(4, ~0u, 0);
            const auto python = required("IPYBOX_TEST_PYTHON");
            ::execl(python.c_str(), python.c_str(), IPYBOX_BENCHMARKS "/run_cell_floor.py",
                    nullptr);
            ::_exit(127);
        }
        ::close(ends[1]);
        socket_ = ends[0];
        return execute("pass", "");
    }
    double execute(const std::string& code, const std::string& expected) override {
        const Stopwatch watch;
        const auto line = code + "\n";
        if (::write(socket_, line.data(), line.size()) < 0)
            throw std::runtime_error("the floor died");
        std::string output;
        char buffer[65536];
        while (!output.ends_with('\0')) {
            const auto count = ::read(socket_, buffer, sizeof buffer);
            if (count <= 0) throw std::runtime_error("the floor died");
            output.append(buffer, static_cast<std::size_t>(count));
        }
        output.pop_back();
        const auto spent = watch.milliseconds();
        if (output != expected) wrong_output("the floor");
        return spent;
    }
    void stop() override {
        ::close(socket_);
        ::waitpid(pid_, nullptr, 0);
    }

private:
    pid_t pid_ = -1;
    int socket_ = -1;
};

// An executor on forked kernels, in a workspace with so many files.
class InWorkspace final : public Contender {
public:
    explicit InWorkspace(int files) {
        for (int i = 0; i < files; ++i) {
            const auto directory = workspace_.path / std::to_string(i / 1000);
            if (i % 1000 == 0) std::filesystem::create_directory(directory);
            std::ofstream(directory / std::to_string(i)) << i;
        }
    }
    double start() override {
        CodeExecutorOptions options;
        options.sandbox = "bubblewrap";
        options.kernel = "fork";
        options.kernel_options["start"] = "forked";
        options.workspace = workspace_.path;
        options.python = required("IPYBOX_TEST_PYTHON");
        PluginRegistry registry;
        registry.add_directory(required("IPYBOX_TEST_PLUGINS"));
        executor_.emplace(std::move(registry), std::move(options));
        const Stopwatch watch;
        executor_->start();
        execute("pass", "");
        return watch.milliseconds();
    }
    double execute(const std::string& code, const std::string& expected) override {
        const Stopwatch watch;
        const auto result = executor_->execute(code, std::chrono::minutes(1));
        const auto spent = watch.milliseconds();
        if (result.ok_or_throw().text.value_or("") != expected) wrong_output("an executor");
        return spent;
    }
    double reset() {
        const Stopwatch watch;
        executor_->reset();
        execute("pass", "");
        return watch.milliseconds();
    }
    void stop() override { executor_.reset(); }

private:
    Workspace workspace_;
    std::optional<BlockingCodeExecutor> executor_;
};

// What a pipe takes for the same bytes.
double plain_pipe(const std::string& expected) {
    const auto output = output_of(required("IPYBOX_TEST_PYTHON") +
                                  " -S -E -c 'import time; t = time.perf_counter()\n"
                                  "for i in range(1_000_000): print(i)\n"
                                  "import sys; sys.stdout.flush()\n"
                                  "print(time.perf_counter() - t, file=sys.stderr)' 2>&1");
    if (!output.starts_with(expected)) wrong_output("a pipe");
    return std::stod(output.substr(expected.size())) * 1000;
}

// Proportional set size, MB.
double pss_of(pid_t pid) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/smaps_rollup");
    for (std::string word; file >> word;) {
        double value = 0;
        if (word == "Pss:" && file >> value) return value / 1024;
    }
    return 0;
}

void measure_starts(Machine& machine, int starts, Report& report) {
    const std::string ours = "ipybox, fork", spare = "ipybox, fork, a spare", zmq = "ipybox, zmq",
                      original = "original ipybox";
    const auto fork = machine.forked(0), ready = machine.forked(1);
    Ours forked(machine, true, *fork), spared(machine, true, *ready, true),
        direct(machine, true, *machine.backend);
    PythonPeer peer(original, required("IPYBOX_BENCH_ORIGINAL_PYTHON"), "original_peer.py");
    std::printf("%s\n", peer.versions.c_str());
    forked.start();
    forked.stop();
    spared.start();
    Table table("start to the first result, in bubblewrap; forked: pandas loaded", original);
    for (int i = 0; i < starts; ++i) {
        for (const auto& [who, contender, once] :
             {std::tuple(ours, static_cast<Contender*>(&forked), 10),
              std::tuple(spare, static_cast<Contender*>(&spared), 1),
              std::tuple(zmq, static_cast<Contender*>(&direct), 1),
              std::tuple(original, static_cast<Contender*>(&peer), 1)}) {
            for (int j = 0; j < once; ++j) {
                if (who == spare) spared.stop();
                machine.rest(200ms);
                table.add(who, contender->start());
                if (who != spare) contender->stop();
            }
        }
    }
    table.print(ours);
    const auto against = [](const std::string& what, double other) {
        return what + " (" + Report::milliseconds(other) + ")";
    };
    report.add("start to the first result, in bubblewrap, pandas loaded",
               Report::ratio(table.median(ours), table.median(original)),
               against("the original's start", table.median(original)));
    report.add("the same, with a spare", Report::ratio(table.median(spare), table.median(original)),
               "the same");
    report.add("the same, by `zmq`, pandas not loaded",
               Report::ratio(table.median(zmq), table.median(original)), "the same");

    Table resets("reset to the first result", original);
    forked.start();
    peer.start();
    for (int i = 0; i < starts; ++i) {
        for (int j = 0; j < 10; ++j) {
            machine.rest(200ms);
            resets.add(ours, forked.reset());
        }
        for (int j = 0; j < 5; ++j) {
            machine.rest(200ms);
            resets.add(spare, spared.reset());
        }
        machine.rest(200ms);
        resets.add(original, peer.reset());
    }
    resets.print(ours);
    report.add("reset to the first result",
               Report::ratio(resets.median(ours), resets.median(original)),
               against("the original's reset", resets.median(original)));
    report.add("the same, with a spare",
               Report::ratio(resets.median(spare), resets.median(original)), "the same");
    spared.stop();
    ready->release_spares();
    peer.stop();
    forked.stop();

    Table hundred("100 kernels started, all have answered", "100 starts, one after the other");
    for (int i = 0; i < 3; ++i) {
        const Stopwatch one;
        for (int j = 0; j < 100; ++j) {
            forked.start();
            forked.stop();
        }
        hundred.add("100 starts, one after the other", one.milliseconds());
        std::vector<Ours> all;
        for (int j = 0; j < 100; ++j) all.emplace_back(machine, true, *fork);
        hundred.add("ipybox, fork", Ours::start_all(machine, all));
    }
    hundred.print(ours);
    report.add("100 kernels started at once, all have answered",
               Report::ratio(hundred.median("ipybox, fork"),
                             hundred.median("100 starts, one after the other")),
               "100 times start and stop");
}

void measure_cells(Machine& machine, int round_trips, Report& report) {
    const std::string ours = "ipybox, fork", zmq = "ipybox, zmq", floor = "run_cell at a socket",
                      original = "original ipybox", nodelay = "original ipybox, nodelay";
    const auto fork = machine.forked(0);
    Ours forked(machine, true, *fork), direct(machine, true, *machine.backend);
    RunCellFloor cells;
    const auto python = required("IPYBOX_BENCH_ORIGINAL_PYTHON");
    PythonPeer peer(original, python, "original_peer.py"),
        undelayed(nodelay, python, "original_peer.py", "--nodelay");
    const std::vector<std::pair<std::string, Contender*>> all = {
        {floor, &cells}, {ours, &forked}, {zmq, &direct}, {original, &peer}, {nodelay, &undelayed}};
    for (const auto& [who, contender] : all) contender->start();
    const auto pass = [](Contender& contender) { return contender.execute("pass", ""); };
    Table warm_up("", floor), trips("execute round trip, `pass`", floor);
    in_turns(warm_up, all, 20, pass);
    in_turns(trips, all, round_trips, pass);
    trips.print(ours);
    report.add("execute `pass`", Report::ratio(trips.median(ours), trips.median(floor)),
               "`run_cell` in a process that does nothing else, at a socket");
    report.add("", Report::ratio(trips.median(ours), trips.median(original)), "the original");
    report.add("", Report::ratio(trips.median(ours), trips.median(nodelay)),
               "the original with TCP_NODELAY, which it does not set");
    // Without a pause before each: what a loop of an agent's own makes of it.
    constexpr int in_a_row = 10;
    Table rows("execute round trip, `pass`, one right after the other", floor);
    in_turns(rows, all, std::max(round_trips / 20, 5), [&](Contender& contender) {
        double sum = 0;
        for (int i = 0; i < in_a_row; ++i) sum += contender.execute("pass", "");
        return sum / in_a_row;
    });
    rows.print(ours);
    report.add("execute `pass`, one right after the other",
               Report::ratio(rows.median(ours), rows.median(floor)), "`run_cell` at a socket");
    report.add("", Report::ratio(rows.median(ours), rows.median(original)), "the original");
    report.add("", Report::ratio(rows.median(ours), rows.median(nodelay)),
               "the original with TCP_NODELAY");
    report.add("execute `pass`, by `zmq`", Report::ratio(trips.median(zmq), trips.median(floor)),
               "`run_cell` at a socket");

    const std::vector<std::pair<std::string, Contender*>> quick = {{floor, &cells},
                                                                   {ours, &forked}};
    Table ten("ten cells", floor);
    in_turns(ten, quick, round_trips / 5, [](Contender& contender) {
        double sum = 0;
        for (int i = 0; i < 10; ++i)
            sum += contender.execute("x" + std::to_string(i) + " = " + std::to_string(i), "");
        return sum;
    });
    ten.print(ours);
    report.add("ten cells", Report::ratio(ten.median(ours), ten.median(floor)),
               "`run_cell` at a socket");

    std::string expected;
    for (int i = 0; i < 1'000'000; ++i) expected += std::to_string(i) + "\n";
    Table prints("1,000,000 prints", "a plain pipe");
    for (int i = 0; i < 5; ++i) {
        prints.add("a plain pipe", plain_pipe(expected));
        prints.add(ours, forked.execute("for i in range(1_000_000): print(i)", expected));
        prints.add(zmq, direct.execute("for i in range(1_000_000): print(i)", expected));
    }
    prints.print(ours);
    report.add("1,000,000 printed lines",
               Report::ratio(prints.median(ours), prints.median("a plain pipe")), "a plain pipe");

    Table bytes("the first byte of 1,000,000 prints", "after");
    for (int i = 0; i < 10; ++i)
        bytes.add("after", forked.time_to_first_byte("for i in range(1_000_000): print(i)"));
    bytes.print("after");
    report.add("the first byte of them", Report::milliseconds(bytes.median("after")), "");

    Table firsts("first plot, data frame, traceback in a fresh forked kernel", "a plot");
    for (int i = 0; i < 5; ++i) {
        for (const auto& [what, code] :
             {std::pair("a plot", "import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()"),
              {"a data frame",
               "import pandas as pd; d = pd.DataFrame({'a': [1, 2]}); s = repr(d.describe())"},
              {"a traceback", "1/0"}}) {
            forked.stop();
            forked.start();
            firsts.add(what, forked.time_of(code));
        }
    }
    firsts.print("a plot");
    for (const auto* what : {"a plot", "a data frame", "a traceback"})
        report.add("first cell of a kernel: " + std::string(what),
                   Report::milliseconds(firsts.median(what)), "");
    for (const auto& [who, contender] : all) contender->stop();
}

void measure_workspaces(int round_trips, Report& report) {
    const std::string few = "in an empty workspace", many = "among 100,000 files";
    InWorkspace empty(0), full(100'000);
    const std::vector<std::pair<std::string, Contender*>> both = {{few, &empty}, {many, &full}};
    for (const auto& [who, contender] : both) contender->start();
    Table warm_up("", few), trips("execute `pass` by an executor", few);
    const auto pass = [](Contender& contender) { return contender.execute("pass", ""); };
    in_turns(warm_up, both, 20, pass);
    in_turns(trips, both, round_trips, pass);
    trips.print(few);
    report.add("execute `pass` by an executor, in a workspace of 100,000 files",
               Report::ratio(trips.median(many), trips.median(few)), "in an empty one");
    Table resets("reset to the first result, by an executor", few);
    for (int i = 0; i < 10; ++i)
        for (const auto& [who, contender] : {std::pair(few, &empty), {many, &full}}) {
            std::this_thread::sleep_for(200ms);
            resets.add(who, contender->reset());
        }
    resets.print(few);
    report.add("reset to the first result by an executor, in a workspace of 100,000 files",
               Report::ratio(resets.median(many), resets.median(few)), "in an empty one");
    for (const auto& [who, contender] : both) contender->stop();
}

void measure_memory(Machine& machine, Report& report) {
    const auto fork = machine.forked(0);
    std::vector<Ours> all;
    for (int i = 0; i < 100; ++i) all.emplace_back(machine, true, *fork);
    for (auto& each : all) each.start();
    const auto mean = [&] {
        double sum = 0;
        for (auto& each : all) sum += pss_of(each.pid());
        return sum / static_cast<double>(all.size());
    };
    const auto note = [&report](const char* what, double value) {
        char text[32];
        std::snprintf(text, sizeof text, "%.1f MB", value);
        std::printf("%-44s %s\n", what, text);
        report.add("memory of a kernel (PSS), 100 of them, " + std::string(what), text, "");
    };
    std::printf("\nmemory of a kernel (PSS), 100 of them\n");
    note("after `1 + 1`", mean());
    for (auto& each : all)
        each.time_of(
            "import pandas as pd, matplotlib.pyplot as plt\n"
            "d = pd.DataFrame({'a': range(9)}); s = repr(d.describe())\n"
            "plt.plot([1, 2]); plt.show()");
    note("after a data frame and a plot", mean());
}

void report_tool_calls(int rounds, Report& report) {
    const auto ours = measure_tool_calls(rounds);
    const double original = measure_original_tool_calls(std::max(rounds / 10, 1));
    const std::string floor = "an echo of JSON over a Unix socket and one over a pipe";
    const auto ratio = [](double call, double other) {
        return Report::ratio(call / 1000, other / 1000);
    };
    report.add("tool call, generated `run()`", ratio(ours.run, ours.floor), floor);
    report.add(
        "", ratio(ours.run, original),
        "the original's, accepted by its executor (" + Report::milliseconds(original / 1000) + ")");
    report.add("tool call, `ipybox_kernel._send`", ratio(ours.send, ours.floor), floor);
}

}  // namespace

void measure_forks(int starts, int round_trips, int tool_calls, const std::string& page) {
    Machine machine("bubblewrap");
    Report report("forked kernels");
    measure_starts(machine, starts, report);
    measure_cells(machine, round_trips, report);
    measure_workspaces(round_trips, report);
    report_tool_calls(tool_calls, report);
    measure_memory(machine, report);
    if (!page.empty()) report.write(page);
}
