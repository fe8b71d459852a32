#pragma once
// What is left of a host's children when the host is killed at a bad moment.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <ipybox/sandbox_kit/process.hpp>
#include <set>
#include <string>
#include <vector>

namespace ipybox::test {

struct KilledHosts {
    int killed = 0;                    // hosts that SIGKILL ended, as they all should be
    int orphans = 0;                   // what they left, and what has ended since
    std::vector<std::string> outlive;  // command lines of what has not, ten seconds later
};

// Forks `count` hosts, `together` at a time, each of which runs `work` on the copied `context` and
// is killed at a moment of its own between the beginning of that and `longest` later.
inline KilledHosts kill_hosts(asio::io_context& context, int count, int together,
                              std::chrono::nanoseconds longest, std::function<void()> work) {
    using Fork = asio::execution_context;
    KilledHosts result;
    std::set<pid_t> hosts;
    // What other tests started and still need.
    const auto others = sandbox_kit::children_of(::getpid());
    const auto children = [&others] {
        auto all = sandbox_kit::children_of(::getpid());
        std::erase_if(all, [&](pid_t child) {
            return std::find(others.begin(), others.end(), child) != others.end();
        });
        return all;
    };
    // Orphans become our children, whatever they call themselves.
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    const auto collect = [&](int options) {
        int status = 0;
        const pid_t ended = ::waitpid(-1, &status, options);
        if (ended > 0 && hosts.erase(ended) == 0)
            ++result.orphans;
        else if (ended > 0 && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
            ++result.killed;
        return ended;
    };
    for (int i = 0; i < count; ++i) {
        context.notify_fork(Fork::fork_prepare);
        const pid_t host = ::fork();
        if (host == 0) {
            try {
                context.notify_fork(Fork::fork_child);
                const auto delay = 1 + longest.count() * i / count;
                sigevent event{};
                event.sigev_notify = SIGEV_SIGNAL;
                event.sigev_signo = SIGKILL;
                timer_t timer{};
                itimerspec when{};
                when.it_value = {delay / 1'000'000'000, delay % 1'000'000'000};
                if (::timer_create(CLOCK_MONOTONIC, &event, &timer) != 0 ||
                    ::timer_settime(timer, 0, &when, nullptr) != 0)
                    ::_exit(1);
                work();
                for (;;) ::pause();
            } catch (const std::exception&) {
                ::_exit(1);
            }
        }
        context.notify_fork(Fork::fork_parent);
        if (host > 0) hosts.insert(host);
        while (hosts.size() >= static_cast<std::size_t>(together)) collect(0);
    }
    while (!hosts.empty()) collect(0);
    for (int round = 0; round < 1000; ++round) {
        while (collect(WNOHANG) > 0) {
        }
        if (children().empty()) break;
        ::usleep(10'000);
    }
    for (const pid_t child : children()) {
        result.outlive.push_back(
            sandbox_kit::read_proc("/proc/" + std::to_string(child) + "/cmdline"));
        ::kill(child, SIGKILL);
        ::waitpid(child, nullptr, 0);
    }
    ::prctl(PR_SET_CHILD_SUBREAPER, 0);
    return result;
}

}  // namespace ipybox::test
