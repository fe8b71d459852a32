#include "programs.hpp"

#include <ipybox/executor/blocking.hpp>

#include "contenders.hpp"
#include "workspace.hpp"

namespace {
using namespace bench;

class Starter {
public:
    explicit Starter(Programs programs) {
        CodeExecutorOptions options;
        options.sandbox = "bubblewrap";
        options.kernel = "zmq";
        options.programs = programs;
        options.approval = "allow";
        options.workspace = workspace_.path;
        options.python = required("IPYBOX_TEST_PYTHON");
        PluginRegistry registry;
        registry.add_directory(required("IPYBOX_TEST_PLUGINS"));
        executor_.emplace(std::move(registry), std::move(options));
        executor_->start();
    }
    std::string output(const std::string& code) {
        const auto result = executor_->execute(code, std::chrono::minutes(1));
        return result.ok_or_throw().text.value_or("");
    }
    // By the kernel's own clock: what a cell takes is measured elsewhere.
    double run() {
        const auto text = output(
            "import subprocess, time\nbegin = time.perf_counter()\n"
            "status = subprocess.run(['true']).returncode\n"
            "print((time.perf_counter() - begin) * 1000 if status == 0 else status)");
        return std::stod(text);
    }

private:
    Workspace workspace_;
    std::optional<BlockingCodeExecutor> executor_;
};

}  // namespace

void measure_programs(int rounds) {
    const std::string asked = "after a yes", plain = "by the kernel itself";
    Starter with(Programs::ask), without(Programs::allow);
    for (const auto* imports : {"", "import numpy, pandas, matplotlib.pyplot"}) {
        Table table("`subprocess.run([\"true\"])`" +
                        std::string(*imports != '\0' ? " with NumPy, pandas, Matplotlib" : ""),
                    plain);
        for (auto* each : {&with, &without}) each->output(std::string(imports) + "\npass");
        for (int i = 0; i < 20; ++i) with.run(), without.run();
        for (int i = 0; i < rounds; ++i) {
            table.add(asked, with.run());
            table.add(plain, without.run());
        }
        table.print(asked);
    }
}
