#pragma once
// What waits to be written to the client, within bounds.
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/write.hpp>
#include <ipybox/async.hpp>
#include <ipybox/detail/json_number.hpp>
#include <memory>
#include <string>
#include <utility>

namespace ipybox::app::host {

// Output waits in its source while room() does; answers are always taken, because a client that
// waits for one may not be reading yet. One that sends requests and never reads is not read from.
class Outbox : public std::enable_shared_from_this<Outbox> {
public:
    // Whether somebody waits for a message on the spot. What is not urgent goes with the next that
    // is, or a millisecond later: each write wakes the client, which takes a processor from the
    // code.
    enum class Urgency { now, soon };

    explicit Outbox(const asio::any_io_executor& executor)
        : filled_(executor), drained_(executor), soon_(executor) {}

    // An answer to a request.
    void answer(const json::object& message) {
        const auto before = lines_.size();
        put(message);
        answers_ += lines_.size() - before;
    }
    // What its sender had room() for.
    void put(const json::object& message, Urgency urgency = Urgency::now) {
        if (broken_) return;
        detail::append_json(lines_, message);
        lines_ += '\n';
        if (urgency == Urgency::now)
            write_now();
        else if (!due_ && !soon_is_set_)
            write_soon();
    }
    // What nobody waits for. False: it is left out, because the client does not read.
    bool offer(const json::object& message) {
        if (waiting() > most_offered) return false;
        put(message);
        return true;
    }

    bool full() const noexcept { return waiting() > enough; }
    // So many answers wait that no more requests are read.
    bool crowded() const noexcept { return answers_ + writing_answers_ > most_answers; }
    bool empty() const noexcept { return waiting() == 0; }
    bool broken() const noexcept { return broken_; }
    // Returns when there is room, or nothing can be written any more.
    static awaitable<void> room(std::shared_ptr<Outbox> self) {
        while (self->full() && !self->broken_) co_await self->drained_.wait();
    }

    // Returns when something was written, or nothing will be.
    awaitable<void> progress(Clock::time_point deadline = never) { return drained_.wait(deadline); }

    // Writes until the client is gone.
    static awaitable<void> write_all(std::shared_ptr<Outbox> self,
                                     std::shared_ptr<asio::posix::stream_descriptor> output) {
        while (!self->broken_) {
            if (!self->due_) {
                co_await self->filled_.wait();
                continue;
            }
            self->due_ = false;
            if (self->soon_is_set_) self->soon_.cancel();
            const std::string lines = std::exchange(self->lines_, {});
            self->writing_ = lines.size();
            self->writing_answers_ = std::exchange(self->answers_, 0);
            auto [error, size] =
                co_await asio::async_write(*output, asio::buffer(lines), as_result);
            self->writing_ = self->writing_answers_ = 0;
            if (error) self->give_up();
            self->drained_.notify();
        }
    }
    // Nothing is written any more.
    void give_up() {
        broken_ = true;
        lines_.clear();
        filled_.notify();
        drained_.notify();
        soon_.cancel();
    }

private:
    static constexpr std::size_t enough = std::size_t{1} << 20;
    static constexpr std::size_t most_offered = std::size_t{8} << 20;
    static constexpr std::size_t most_answers = std::size_t{16} << 20;

    std::size_t waiting() const noexcept { return lines_.size() + writing_; }
    void write_now() {
        due_ = true;
        filled_.notify();
    }
    void write_soon() {
        soon_is_set_ = true;
        soon_.expires_after(std::chrono::milliseconds(1));
        soon_.async_wait([weak = weak_from_this()](const boost::system::error_code&) {
            const auto self = weak.lock();
            if (!self) return;
            self->soon_is_set_ = false;
            if (!self->lines_.empty()) self->write_now();
        });
    }

    std::string lines_;
    std::size_t writing_ = 0, answers_ = 0, writing_answers_ = 0;
    bool broken_ = false;
    bool due_ = false;  // there are lines that do not wait for others
    bool soon_is_set_ = false;
    Event filled_, drained_;
    asio::steady_timer soon_;
};

}  // namespace ipybox::app::host
