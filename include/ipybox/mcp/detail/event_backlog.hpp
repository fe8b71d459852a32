#pragma once
// What one stream of server-sent events still has to send and can send again, without I/O.
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <utility>

namespace ipybox::detail {

// Events are numbered from 1. Those that were sent are kept for a resumption while they fit
// within the limit; those that were not are never dropped, but what is only useful is refused
// while too much is unsent: a reader who stands still costs the limit and no more.
class EventBacklog {
public:
    // limit: bytes; keep: whether events stay after they were sent.
    EventBacklog(std::size_t limit, bool keep) : limit_(limit), keep_(keep) {}

    // Whether an event that may be lost should be: the reader is too far behind.
    bool crowded(std::size_t size) const noexcept { return unsent_ + size > limit_; }
    std::size_t unsent() const noexcept { return unsent_; }
    std::size_t size() const noexcept { return total_; }
    bool pending() const noexcept { return next_ < events_.size(); }
    std::uint64_t last() const noexcept { return first_ + events_.size() - 1; }
    // The number of the next event to be added.
    std::uint64_t coming() const noexcept { return first_ + events_.size(); }

    void add(std::string text) {
        total_ += text.size();
        unsent_ += text.size();
        events_.push_back(std::move(text));
        trim(limit_);
    }
    // The next event to send; it counts as sent from now on.
    std::string take() {
        std::string text = keep_ ? events_[next_] : std::move(events_[next_]);
        unsent_ -= text.size();
        if (keep_) {
            ++next_;
        } else {
            total_ -= text.size();
            events_.pop_front();
            ++first_;
        }
        return text;
    }
    // Sends again what came after event `number`, as far as it is still there.
    void rewind(std::uint64_t number) noexcept {
        std::size_t to = 0;
        if (number >= first_) to = static_cast<std::size_t>(number - first_ + 1);
        if (to > events_.size()) to = events_.size();
        next_ = to;
        unsent_ = 0;
        for (std::size_t i = next_; i < events_.size(); ++i) unsent_ += events_[i].size();
    }
    // Forgets sent events until at most `limit` bytes are left.
    void trim(std::size_t limit) {
        while (total_ > limit && next_ > 0) {
            total_ -= events_.front().size();
            events_.pop_front();
            ++first_;
            --next_;
        }
    }

private:
    std::size_t limit_;
    bool keep_;
    std::deque<std::string> events_;
    std::uint64_t first_ = 1;  // number of events_.front()
    std::size_t next_ = 0;     // index of the first unsent one
    std::size_t total_ = 0, unsent_ = 0;
};

}  // namespace ipybox::detail
