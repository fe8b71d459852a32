#pragma once
// Everything that the host has of one kernel.
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstdint>
#include <deque>
#include <ipybox/jupyter/wire.hpp>
#include <ipybox/kernel_backend.hpp>
#include <ipybox/memory_budget.hpp>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "entered.hpp"
#include "frames.hpp"

namespace ipybox::forked {

using Descriptor = asio::posix::stream_descriptor;

// Shared by the kernel's handle and by the handlers that Asio still holds when the handle is gone;
// close() makes those harmless.
struct KernelLink : std::enable_shared_from_this<KernelLink> {
    KernelLink(asio::any_io_executor on, jupyter::WireLimits bounds)
        : executor(std::move(on)),
          limits(bounds),
          budget(bounds.bytes + small_frame, &MemoryBudget::process()),
          memory(budget),
          socket(executor),
          changed(executor) {}

    // A frame of this size needs no share of the memory budget, in bytes.
    static constexpr std::size_t small_frame = std::size_t{256} << 10;

    asio::any_io_executor executor;
    jupyter::WireLimits limits;
    std::shared_ptr<SandboxedProcess> process;
    std::shared_ptr<Entered> entered;  // the same, if it was forked
    std::shared_ptr<void> keeps;       // what must live as long
    UniqueFd pipes[2];                 // reading ends of what the kernel's own code reads: its
                                       // last words, once it has ended
    std::optional<Descriptor> pidfd;
    MemoryBudget budget;
    MemoryReservation memory;  // for the frame that is being read
    Duration waited = {};      // for the rest of that frame
    asio::local::stream_protocol::socket socket;
    FrameReader reader;
    std::string unsent;
    std::size_t sent = 0;                   // of `unsent`
    bool reading = false, writing = false;  // a handler waits for the socket
    bool starved = false;                   // others hold the memory that the frame needs
    bool lost = false;                      // the other end is closed
    Event changed;

    bool stopping = false, closed = false, exited = false;
    bool greeted = false;  // it has said hello
    bool takes_input = false;
    std::uint64_t serial = 0;   // of the newest execution
    std::uint64_t running = 0;  // the execution whose end has not come; 0: none
    bool asked = false;         // and waits for an answer to its question
    std::deque<KernelOutput> pending;
    std::string last_words;               // of stderr, for the report of its end
    std::string cut[2];                   // a character of each stream that is not whole yet
    Clock::time_point end_grace = never;  // when the last words of an ended kernel are over
    std::optional<Error> failure;

    bool busy() const noexcept { return running != 0 || !pending.empty(); }

    // Ends everything at once; what waits wakes up and sees `closed`.
    void close() noexcept;
    // The kernel is no longer usable: remembers why, kills it, throws.
    [[noreturn]] void fail(errc code, const std::string& detail);
    [[noreturn]] void fail_protocol(const std::string& what);
    // Throws Error: cancelled, or why it failed.
    void require_usable() const;
    std::string tail_text() const;

    void watch_process(UniqueFd handle);
    // Whether the process has ended, be it an instant ago.
    bool look_for_exit() noexcept;
    // Nothing is left to read; is there a reason to stop waiting?
    bool is_over();

    // Throws Error: kernel_protocol (it takes no more).
    void send(char kind, std::string_view payload);
    // Takes one frame, or some bytes of it; false when nothing was there.
    bool read_one();
    // Waits for news until `deadline`. A frame that has begun must go on.
    awaitable<void> wait_for_frames(Clock::time_point deadline);
    // Drops what still comes; whether the kernel has closed its end. wait_for_news(): until then,
    // or `deadline`.
    bool has_said_goodbye();
    awaitable<void> wait_for_news(Clock::time_point deadline);
    // How the process ended, for people.
    awaitable<std::string> ending();
    // Throws the end of a kernel that is over.
    awaitable<void> report_end();

private:
    void arm();
    void flush();
    bool read_more();
    bool leave_out(char kind);
    void use(const Frame& frame);
    void keep_last_words(std::string_view bytes);
    void use_text(bool is_stderr, std::string_view bytes);
    void use_end(const json::object& content);
    void wait_for_exit();
    json::object content_of(std::string_view payload);
    void note_left_out();
    void read_last_words() noexcept;
};

using LinkPtr = std::shared_ptr<KernelLink>;

}  // namespace ipybox::forked
