#pragma once
// The host's end of what the launcher tells as a sandbox's first process (see init.hpp).
#include <fcntl.h>
#include <unistd.h>

#include <boost/asio/local/stream_protocol.hpp>
#include <charconv>
#include <ipybox/async.hpp>
#include <ipybox/detail/received_files.hpp>
#include <ipybox/detail/unique_fd.hpp>
#include <ipybox/error.hpp>
#include <ipybox/sandbox.hpp>
#include <ipybox/sandbox_kit/process.hpp>
#include <string>
#include <utility>

namespace ipybox::launcher {

// The number that a process has here; -1 when it has ended, or is none of this pid namespace.
inline pid_t number_of(const UniqueFd& pidfd) {
    const auto text = sandbox_kit::read_proc("/proc/self/fdinfo/" + std::to_string(pidfd.get()));
    const auto at = text.find("\nPid:");
    pid_t number = -1;
    if (at != std::string::npos) {
        const auto digits = text.find_first_not_of(" \t", at + 5);
        if (digits != std::string::npos)
            std::from_chars(text.data() + digits, text.data() + text.size(), number);
    }
    return number > 0 ? number : -1;
}

// A socket to a sandbox's first process. While it is open the sandbox lives.
class InitSocket {
public:
    // Throws Error: io_error.
    explicit InitSocket(const asio::any_io_executor& executor) : socket_(executor) {
        auto [ours, theirs] = sandbox_kit::make_socket_pair(SOCK_STREAM);
        theirs_ = std::move(theirs);
        socket_.assign(asio::local::stream_protocol(), ours.release());
    }

    // For the process that is started; valid until started().
    int theirs() const noexcept { return theirs_.get(); }
    // From now on the other end is closed when the process ends.
    void started() noexcept { theirs_.reset(); }

    // The first process, as it says of itself before anything else runs there. Throws Error:
    // sandbox_refused (it ended instead, or has not answered in 10 s; with the tail of what
    // `process` printed). Not to be cancelled.
    awaitable<UniqueFd> first_process(SandboxedProcess& process) {
        const auto limit = deadline_after(std::chrono::seconds(10));
        auto handle = receive();
        while (!handle && Clock::now() < limit) {
            if (ended_) {
                co_await process.wait(deadline_after(std::chrono::seconds(1)));
                break;
            }
            co_await ends_first(readable(), sleep_until(limit));
            handle = receive();
        }
        if (handle) co_return handle;
        auto said = process.output_tail();
        while (!said.empty() && said.back() == '\n') said.pop_back();
        throw Error(errc::sandbox_refused,
                    "the sandbox could not be opened: " + (said.empty() ? "no answer" : said));
    }

private:
    awaitable<void> readable() {
        co_await socket_.async_wait(asio::socket_base::wait_read, as_result);
    }

    UniqueFd receive() {
        char byte = 0;
        UniqueFd handle[1];
        ended_ = detail::receive_files(socket_.native_handle(), &byte, 1, handle).ended();
        return std::move(handle[0]);
    }

    asio::local::stream_protocol::socket socket_;
    UniqueFd theirs_;
    bool ended_ = false;
};

}  // namespace ipybox::launcher
