#include "many_kernels.hpp"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <ipybox/executor/code_executor.hpp>
#include <ipybox/executor/kernel_gateway.hpp>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "contenders.hpp"
#include "required.hpp"
#include "workspace.hpp"

namespace {
using namespace ipybox;
using bench::required, bench::run;

std::string text_of(const std::filesystem::path& file) {
    std::ostringstream text;
    text << std::ifstream(file).rdbuf();
    return text.str();
}

struct Usage {
    double memory = 0;  // megabytes, pages that several processes share counted in parts
    double cpu = 0;     // seconds
    int processes = 0;
    void add(const std::filesystem::path& process) {
        std::istringstream lines(text_of(process / "smaps_rollup"));
        for (std::string line; std::getline(lines, line);)
            if (line.starts_with("Pss:")) memory += std::stod(line.substr(4)) / 1024;
        const auto stat = text_of(process / "stat");
        std::istringstream fields(stat.substr(stat.rfind(')') + 2));
        std::string field;
        double ticks = 0;
        for (int i = 3; i <= 15 && fields >> field; ++i)
            if (i >= 14) ticks += std::stod(field);
        cpu += ticks / static_cast<double>(::sysconf(_SC_CLK_TCK));
        ++processes;
    }
};

// Of what this process has started, and of itself.
struct Usages {
    Usage kernels, gateway, host;
};

Usages usages() {
    std::map<int, int> parents;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
        const auto name = entry.path().filename().string();
        if (!std::isdigit(static_cast<unsigned char>(name[0]))) continue;
        const auto stat = text_of(entry.path() / "stat");
        if (const auto end = stat.rfind(')'); end != stat.npos)
            parents[std::stoi(name)] = std::stoi(stat.substr(end + 4));
    }
    Usages all;
    all.host.add("/proc/self");
    for (const auto& [process, parent] : parents) {
        int above = parent;
        while (above > 1 && above != ::getpid())
            above = parents.contains(above) ? parents[above] : 0;
        const auto place = std::filesystem::path("/proc") / std::to_string(process);
        const auto command = text_of(place / "cmdline");
        if (above != ::getpid()) continue;
        if (command.find("ipybox_kernel.gateway") != command.npos) {
            all.gateway.add(place);
        } else if (command.find("python") != command.npos) {
            all.kernels.add(place);
        }
    }
    return all;
}

std::uint16_t free_port() {
    const UniqueFd socket(::socket(AF_INET, SOCK_STREAM, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* plain = reinterpret_cast<sockaddr*>(&address);
    if (::bind(socket.get(), plain, size) != 0 || ::getsockname(socket.get(), plain, &size) != 0)
        throw std::runtime_error("no free port");
    return ntohs(address.sin_port);
}

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

class Kernels {
public:
    explicit Kernels(bool behind_gateway) {
        registry_.add_directory(required("IPYBOX_TEST_PLUGINS"));
        options_.python = required("IPYBOX_TEST_PYTHON");
        options_.workspace = workspace_.path;
        options_.sandbox = "none";
        options_.approval = "deny";
        options_.kernel_init_timeout = std::chrono::minutes(5);
        if (!behind_gateway) return;
        KernelGatewayOptions gateway;
        gateway.host = "127.0.0.1";
        gateway.port = free_port();
        gateway.python = options_.python;
        gateway.working_dir = workspace_.path;
        gateway.log_level = "ERROR";
        gateway_ = std::make_unique<KernelGateway>(context.get_executor(), gateway);
        const auto start = [this]() -> awaitable<bool> {
            co_await gateway_->start();
            co_return true;
        };
        run(context, start());
        options_.kernel = "gateway";
        options_.kernel_options["url"] = "http://127.0.0.1:" + std::to_string(gateway.port);
        options_.kernel_options["token"] = gateway_->token();
        options_.kernel_options["cwd"] = workspace_.path.string();
        options_.kernel_options["connect_retries"] = 60;
    }
    ~Kernels() {
        for (auto& executor : executors_) {
            const auto stop = [&]() -> awaitable<bool> {
                co_await executor->stop();
                co_return true;
            };
            run(context, stop());
        }
    }

    // Four at once, until there are `count`. Returns kernels a second.
    double grow(std::size_t count) {
        const auto start = Clock::now();
        const std::size_t before = executors_.size();
        std::size_t next = before;
        while (executors_.size() < count)
            executors_.push_back(
                std::make_unique<CodeExecutor>(context.get_executor(), registry_, options_));
        const auto work = [&]() -> awaitable<void> {
            while (next < count) {
                const std::size_t mine = next++;
                co_await executors_[mine]->start();
            }
        };
        together(4, work);
        return static_cast<double>(count - before) / seconds_since(start);
    }

    // Milliseconds of an empty cell on each of the first `busy` kernels at once, for some seconds.
    std::vector<double> cells(std::size_t busy, double seconds) {
        std::vector<double> spent;
        std::size_t next = 0;
        const auto begin = Clock::now();
        const auto work = [&]() -> awaitable<void> {
            auto& executor = *executors_[next++];
            while (seconds_since(begin) < seconds) {
                const auto start = Clock::now();
                const auto result = co_await executor.execute("pass");
                if (!result.ok()) throw std::runtime_error(result.error);
                spent.push_back(seconds_since(start) * 1000);
            }
        };
        together(busy, work);
        std::sort(spent.begin(), spent.end());
        return spent;
    }

    void idle(double seconds) {
        context.restart();
        context.run_for(
            std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds)));
    }

    asio::io_context context{1};

private:
    template <class Work>
    void together(std::size_t count, Work& work) {
        std::size_t running = count;
        std::exception_ptr failure;
        for (std::size_t i = 0; i < count; ++i)
            asio::co_spawn(context, work(), [&](std::exception_ptr error) {
                if (error) failure = error;
                --running;
            });
        context.restart();
        while (running > 0 && context.run_one() > 0) {
        }
        if (failure) std::rethrow_exception(failure);
    }

    Workspace workspace_;
    PluginRegistry registry_;
    CodeExecutorOptions options_;
    std::unique_ptr<KernelGateway> gateway_;
    std::vector<std::unique_ptr<CodeExecutor>> executors_;
};
}  // namespace

void measure_many_kernels() {
    std::printf("\n%-8s %7s %9s %9s %10s %8s %8s %9s %9s %9s %9s\n", "backend", "kernels",
                "starts/s", "MB each", "gateway MB", "host MB", "idle CPU", "trip p50", "cells/s",
                "busy p50", "busy p99");
    for (const bool behind_gateway : {false, true}) {
        Kernels kernels(behind_gateway);
        kernels.grow(1);  // the gateway's own start counts for none
        for (const std::size_t count : {10U, 50U, 100U}) {
            const double starts = kernels.grow(count);
            kernels.idle(3);
            const auto before = usages();
            kernels.idle(5);
            const auto after = usages();
            const auto cpu = [](const Usages& all) {
                return all.kernels.cpu + all.gateway.cpu + all.host.cpu;
            };
            const auto alone = kernels.cells(1, 3), busy = kernels.cells(count, 5);
            std::printf("%-8s %7zu %9.2f %9.1f %10.1f %8.1f %7.1f%% %9.2f %9.0f %9.2f %9.2f\n",
                        behind_gateway ? "gateway" : "zmq", count, starts,
                        after.kernels.memory / std::max(after.kernels.processes, 1),
                        after.gateway.memory, after.host.memory,
                        (cpu(after) - cpu(before)) / 5 * 100, alone[alone.size() / 2],
                        static_cast<double>(busy.size()) / 5, busy[busy.size() / 2],
                        busy[busy.size() * 99 / 100]);
        }
    }
}
