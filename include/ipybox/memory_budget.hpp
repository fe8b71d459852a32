#pragma once
// How much memory peers may make this process hold, all of them together: messages while they
// arrive, the arguments of tool calls while they are answered, answers while they are sent. What is
// decoded comes on top, one message at a time: detail/json_memory.hpp bounds that.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <utility>

namespace ipybox {

// Any thread may use it.
class MemoryBudget {
public:
    // capacity: in bytes, of all reservations together. whole: of which this is a part, so that one
    // peer leaves something for the others; it must outlive this.
    explicit MemoryBudget(std::size_t capacity, MemoryBudget* whole = nullptr)
        : capacity_(capacity), whole_(whole) {}
    MemoryBudget(const MemoryBudget&) = delete;
    MemoryBudget& operator=(const MemoryBudget&) = delete;

    // The one that all sessions of the process share.
    static MemoryBudget& process() {
        static MemoryBudget budget(default_capacity);
        return budget;
    }
    static constexpr std::size_t default_capacity = std::size_t{144} << 20;

    std::size_t capacity() const noexcept { return capacity_.load(); }
    std::size_t used() const noexcept { return used_.load(); }
    // Whoever raises a limit of one message makes room for it; never shrinks.
    void ensure(std::size_t capacity) noexcept {
        auto now = capacity_.load();
        while (now < capacity && !capacity_.compare_exchange_weak(now, capacity)) {
        }
    }

private:
    friend class MemoryReservation;

    bool take(std::size_t more) noexcept {
        auto now = used_.load();
        do {
            const auto limit = capacity_.load();
            if (now > limit || more > limit - now) return false;
        } while (!used_.compare_exchange_weak(now, now + more));
        if (whole_ == nullptr || whole_->take(more)) return true;
        used_ -= more;
        return false;
    }
    void give(std::size_t bytes) noexcept {
        used_ -= bytes;
        if (whole_ != nullptr) whole_->give(bytes);
    }

    std::atomic<std::size_t> capacity_;
    std::atomic<std::size_t> used_{0};
    MemoryBudget* whole_;
};

// A part of the budget, given back when this goes. The budget must outlive it.
class MemoryReservation {
public:
    // Of nothing yet, from the process's budget or another.
    MemoryReservation() noexcept : MemoryReservation(MemoryBudget::process()) {}
    // budget: must outlive this.
    explicit MemoryReservation(MemoryBudget& budget) noexcept : budget_(&budget) {}
    // What was moved from holds nothing.
    MemoryReservation(MemoryReservation&& other) noexcept
        : budget_(other.budget_), size_(std::exchange(other.size_, 0)) {}
    // Gives back what this held.
    MemoryReservation& operator=(MemoryReservation&& other) noexcept {
        release();
        budget_ = other.budget_;
        size_ = std::exchange(other.size_, 0);
        return *this;
    }
    ~MemoryReservation() { budget_->give(size_); }

    // Makes it `bytes` in all. False, and as before, when the budget has not so much left.
    [[nodiscard]] bool resize(std::size_t bytes) noexcept {
        if (bytes > size_ && !budget_->take(bytes - size_)) return false;
        if (bytes < size_) budget_->give(size_ - bytes);
        size_ = bytes;
        return true;
    }
    // Gives all of it back; it can be resized again.
    void release() noexcept { budget_->give(std::exchange(size_, 0)); }
    std::size_t size() const noexcept { return size_; }

private:
    MemoryBudget* budget_;
    std::size_t size_ = 0;
};

}  // namespace ipybox
