#include "kernel.hpp"

#include <signal.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/detail/json_text.hpp>
#include <string>

namespace ipybox::forked {
namespace {

using namespace std::chrono_literals;

// Steps after which others have their turn, should a kernel send without end.
constexpr unsigned steps_in_turn = 64;

awaitable<void> throw_if_cancelled() {
    const auto state = co_await asio::this_coro::cancellation_state;
    if (state.cancelled() != asio::cancellation_type::none)
        throw boost::system::system_error(asio::error::operation_aborted);
}

// A sandbox that ends, and what has to outlive it.
struct Ending {
    std::shared_ptr<void> owner, zygote;
    std::shared_ptr<Entered> sandbox;
};

// To take a sandbox apart takes milliseconds, which nobody has to wait for, and the processors that
// the next kernel's first cell needs.
awaitable<void> see_out(Ending ending, Clock::time_point deadline) {
    co_await sleep_until(Clock::now() + 10ms);
    ending.sandbox->kill_tree();
    co_await ending.sandbox->wait_around(deadline);
}

}  // namespace

awaitable<std::optional<KernelOutput>> next_output(LinkPtr link, Clock::time_point deadline) {
    for (unsigned step = 1;; ++step) {
        link->require_usable();
        if (!link->pending.empty()) {
            std::optional<KernelOutput> output(std::move(link->pending.front()));
            link->pending.pop_front();
            co_return output;
        }
        if (link->running == 0)
            throw Error(errc::bad_argument,
                        "next() needs a running execution; call execute() first");
        if (link->read_one()) {
            if (step % steps_in_turn != 0) continue;
            if (Clock::now() >= deadline) co_return std::nullopt;
            co_await asio::post(link->executor, asio::use_awaitable);
            co_await throw_if_cancelled();
            continue;
        }
        if (link->is_over()) co_await link->report_end();
        if (Clock::now() >= deadline) co_return std::nullopt;
        co_await link->wait_for_frames(deadline);
        co_await throw_if_cancelled();
    }
}

awaitable<void> ForkKernel::execute(ExecuteRequest request) {
    const auto link = link_;
    link->require_usable();
    if (link->busy())
        throw Error(errc::busy,
                    "the kernel runs another execution; take its output to the end first");
    if (detail::repair_utf8(request.code) != request.code)
        throw Error(errc::bad_argument, "the code is not valid UTF-8; encode it so");
    if (link->look_for_exit()) co_await link->report_end();
    json::object content;
    content["id"] = ++link->serial;
    content["code"] = std::move(request.code);
    content["silent"] = request.silent;
    content["input"] = request.allow_input && link->takes_input;
    link->asked = false;
    link->send('x', detail::write_json(content));
    link->running = link->serial;
}

awaitable<void> ForkKernel::interrupt() {
    const auto link = link_;
    link->require_usable();
    if (link->running == 0 || link->look_for_exit()) co_return;
    // The kernel interrupts this execution or none, even if it has not begun yet.
    json::object content;
    content["id"] = link->running;
    link->send('c', detail::write_json(content));
    // To the programs that it has started as well, as a terminal does.
    link->process->signal(SIGINT);
}

awaitable<void> ForkKernel::shutdown() {
    const auto link = link_;
    auto owner = owner_.lock();
    if (std::exchange(link->stopping, true)) co_return;
    link->changed.notify();
    const bool answers = link->process && !link->look_for_exit() && !link->failure && !link->lost;
    // The end of the link is the end of its work: it answers with the end of its own, when all is
    // done and closed that others could miss. Its memory takes longer.
    boost::system::error_code ignored;
    if (answers) link->socket.shutdown(asio::socket_base::shutdown_send, ignored);
    leaving_();  // not before: whom a message wakes may take this processor at once
    if (answers) {
        if (link->entered) link->entered->prepare_look();  // while it gets to its end
        const auto deadline = Clock::now() + 1s;
        while (!link->closed && !link->look_for_exit() && !link->has_said_goodbye() &&
               Clock::now() < deadline)
            co_await link->wait_for_news(deadline);
    }
    // Not in close(), which would keep the thread, and so all other sessions of it.
    if (const auto process = link->process) {
        const auto entered = link->entered;
        // Of what others could miss, nothing is left then.
        const bool ready = entered && owner && link->lost && entered->is_alone();
        const auto deadline = Clock::now() + 5s;
        if (ready) {
            entered->kill_alone();
            link->process.reset();  // which would be killed at once with all around it
            asio::co_spawn(link->executor,
                           see_out({std::move(owner), link->keeps, entered}, deadline),
                           asio::detached);
        } else {
            process->kill_tree();
            if (entered)
                co_await entered->wait_around(deadline);
            else
                co_await process->wait(deadline);
        }
    }
    link->close();
}

void ForkKernel::wake() noexcept {
    try {
        if (alive() && !link_->busy()) link_->send('w', "");
    } catch (const std::exception&) {
        // Whoever takes it finds out.
    }
}

void ForkKernel::answer_input(std::optional<std::string> text) {
    link_->require_usable();
    if (!std::exchange(link_->asked, false) || link_->running == 0) return;
    json::object content;
    if (text)
        content["value"] = detail::repair_utf8(*text);
    else
        content["value"] = nullptr;
    link_->send('a', detail::write_json(content));
}

}  // namespace ipybox::forked
