#include "entered.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <launcher_init.hpp>

namespace ipybox::forked {
namespace {

template <class Value>
void add(std::optional<Value>& sum, const std::optional<Value>& more) {
    if (more) sum = sum.value_or(Value()) + *more;
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

bool Entered::is_alone() const noexcept {
    try {
        const auto first = first_ ? launcher::number_of(first_) : -1;
        // Its own first: what it has started is the other's when the one between them has ended.
        return first > 0 && number_ > 0 && sandbox_kit::children_of(number_).empty() &&
               sandbox_kit::children_of(first).empty() && !is_readable(handle_.get());
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
    // While the handle says that it lives, its number means no other; it leads its group.
    if (number_ > 0 && ::getpgid(number_) == number_) ::kill(-number_, number);
}

}  // namespace ipybox::forked
