#include "entered.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <launcher_init.hpp>
#include <string>

namespace ipybox::forked {
namespace {

template <class Value>
void add(std::optional<Value>& sum, const std::optional<Value>& more) {
    if (more) sum = sum.value_or(Value()) + *more;
}

// False as well where one cannot look.
bool is_childless(pid_t pid) {
    std::error_code error;
    std::filesystem::directory_iterator task("/proc/" + std::to_string(pid) + "/task", error);
    for (; !error && task != std::filesystem::directory_iterator(); task.increment(error)) {
        const UniqueFd children(::open((task->path() / "children").c_str(), O_RDONLY | O_CLOEXEC));
        char any = 0;
        if (!children || ::read(children.get(), &any, 1) != 0) return false;
    }
    return !error;
}

}  // namespace

awaitable<std::optional<ExitStatus>> Entered::wait(Clock::time_point deadline) {
    while (!exit_status() && Clock::now() < deadline) {
        // The sandbox's own end notifies nobody here.
        const auto soon = Clock::now() + std::chrono::milliseconds(20);
        co_await changed_.wait(std::min(deadline, soon));
    }
    co_return exit_status();
}

Statistics Entered::statistics() const noexcept {
    auto known = around_->statistics();
    if (counted_ || status_ || !handle_ || is_readable(handle_.get())) return known;
    try {
        const auto own = sandbox_kit::measure_tree(number_);
        add(known.cpu_time, own.cpu_time);
        add(known.peak_memory, own.peak_memory);
        add(known.processes, own.processes);
    } catch (const std::exception&) {
        // No memory to read it: what is known so far stands.
    }
    return known;
}

std::vector<Violation> Entered::violations() const {
    auto seen = around_->violations();
    if (status_) {
        auto last = sandbox_kit::violation_of(sandbox_kit::ending_signal(*status_));
        if (!last.layer.empty()) seen.push_back(std::move(last));
    }
    return seen;
}

bool Entered::is_last_program() const noexcept {
    if (!expected_filters_ || !handle_) return false;
    try {
        const auto count = sandbox_kit::count_filters(number_);
        // By now its number might mean another.
        return !is_readable(handle_.get()) && count && *count >= *expected_filters_;
    } catch (const std::exception&) {
        return false;  // no memory to look
    }
}

void Entered::is_below(UniqueFd first) {
    first_ = std::move(first);
    first_number_ = launcher::number_of(first_);
}

bool Entered::is_alone() const noexcept {
    try {
        // Its own first: what it has started is the other's when the one between them has ended.
        return first_number_ > 0 && number_ > 0 && is_childless(number_) &&
               is_childless(first_number_) &&
               // By now their numbers might mean others.
               !is_readable(handle_.get()) && !is_readable(first_.get());
    } catch (const std::exception&) {
        return false;  // no memory to look
    }
}

void Entered::send(int number, bool group) noexcept {
    if (!handle_ || is_readable(handle_.get())) return;
    constexpr unsigned process_group = 4;  // PIDFD_SIGNAL_PROCESS_GROUP, Linux 6.9
    const unsigned flags = group ? process_group : 0;
    if (::syscall(SYS_pidfd_send_signal, handle_.get(), number, nullptr, flags) == 0 || !group ||
        errno != EINVAL)
        return;
    if (leads_its_group()) ::kill(-number_, number);
}

bool Entered::leads_its_group() const noexcept {
    // While the handle says that it lives, its number means no other.
    return number_ > 0 && !is_readable(handle_.get()) && ::getpgid(number_) == number_;
}

void Entered::kill_gently() noexcept {
    constexpr int nice = 5;  // on a busy machine too its memory has to come back
    if (handle_ && leads_its_group()) ::setpriority(PRIO_PGRP, static_cast<id_t>(number_), nice);
    send(SIGKILL, false);
}

}  // namespace ipybox::forked
