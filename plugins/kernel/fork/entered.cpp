#include "entered.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <launcher_init.hpp>
#include <string>

namespace ipybox::forked {
namespace {

template <class Value>
void add(std::optional<Value>& sum, const std::optional<Value>& more) {
    if (more) sum = sum.value_or(Value()) + *more;
}

// The threads of this process, whoever gets its number when it has ended.
UniqueFd threads_of(pid_t pid, const UniqueFd& handle) {
    UniqueFd threads(::open(("/proc/" + std::to_string(pid) + "/task").c_str(),
                            O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    return is_readable(handle.get()) ? UniqueFd() : std::move(threads);
}

// False as well where one cannot look.
bool are_childless(const UniqueFd& threads) noexcept {
    alignas(dirent64) char entries[4096];
    if (::lseek(threads.get(), 0, SEEK_SET) != 0) return false;
    for (;;) {
        const auto size = ::getdents64(threads.get(), entries, sizeof entries);
        if (size <= 0) return size == 0;
        for (ssize_t at = 0; at < size;) {
            const auto& entry = *reinterpret_cast<const dirent64*>(entries + at);
            at += entry.d_reclen;
            if (entry.d_name[0] == '.') continue;
            char path[sizeof entry.d_name + sizeof "/children"];
            ::stpcpy(::stpcpy(path, entry.d_name), "/children");
            const UniqueFd children(::openat(threads.get(), path, O_RDONLY | O_CLOEXEC));
            char any = 0;
            if (!children || ::read(children.get(), &any, 1) != 0) return false;
        }
    }
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

void Entered::prepare_look() noexcept {
    if (first_number_ <= 0 || number_ <= 0) return;
    try {
        threads_ = threads_of(number_, handle_);
        first_threads_ = threads_of(first_number_, first_);
    } catch (const std::exception&) {
        // No memory to look: it is not said to be alone.
    }
}

bool Entered::is_alone() const noexcept {
    // Its own first: what it has started is the other's when the one between them has ended.
    return threads_ && first_threads_ && are_childless(threads_) && are_childless(first_threads_) &&
           // Of an ended one there is nobody to look at.
           !is_readable(handle_.get()) && !is_readable(first_.get());
}

void Entered::send(int number, bool group) noexcept {
    if (!handle_ || is_readable(handle_.get())) return;
    constexpr unsigned process_group = 4;  // PIDFD_SIGNAL_PROCESS_GROUP, Linux 6.9
    const unsigned flags = group ? process_group : 0;
    if (::syscall(SYS_pidfd_send_signal, handle_.get(), number, nullptr, flags) == 0 || !group ||
        errno != EINVAL)
        return;
    // While the handle says that it lives, its number means no other.
    if (number_ > 0 && !is_readable(handle_.get()) && ::getpgid(number_) == number_)
        ::kill(-number_, number);
}

}  // namespace ipybox::forked
