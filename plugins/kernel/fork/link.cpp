#include "link.hpp"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ipybox/detail/json_members.hpp>
#include <ipybox/detail/json_memory.hpp>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/detail/utf8.hpp>
#include <ipybox/jupyter/execution.hpp>
#include <utility>

namespace ipybox::forked {
namespace {

using namespace std::chrono_literals;

// A kernel that does not take its requests may leave so much of them here, in bytes.
constexpr std::size_t most_unsent = std::size_t{1} << 20;
// Bytes taken off the socket at a time.
constexpr std::size_t largest_read = std::size_t{256} << 10;
// A frame of text is no larger, in bytes; the others as the option says.
constexpr std::size_t largest_text = std::size_t{1} << 20;
// Of stderr, what is shown when the kernel dies, in bytes.
constexpr std::size_t most_last_words = 4096;
// A frame that has begun may keep us waiting this long, all pauses together.
constexpr Duration frame_patience = 30s;
// How often to look for memory that others may have given back.
constexpr Duration poll_interval = 2ms;
// How far the ends of the link and of the process may lie apart, on a busy machine too.
constexpr Duration end_patience = 3s;

bool is_text(char kind) { return kind == 'o' || kind == 'e'; }

}  // namespace

void KernelLink::close() noexcept {
    if (std::exchange(closed, true)) return;
    if (process) process->kill_tree();
    process.reset();
    entered.reset();
    pidfd.reset();
    boost::system::error_code ignored;
    socket.close(ignored);
    memory.release();
    for (auto& pipe : pipes) pipe.reset();
    keeps.reset();
    changed.notify();
}

void KernelLink::fail(errc code, const std::string& detail) {
    if (!failure) failure.emplace(code, detail);
    running = 0;
    pending.clear();
    if (process) process->kill_tree();
    changed.notify();
    throw *failure;
}

void KernelLink::fail_protocol(const std::string& what) {
    fail(errc::kernel_protocol, "the kernel broke the protocol (" + what +
                                    ") and was killed; reset() starts a new kernel");
}

void KernelLink::require_usable() const {
    if (stopping || closed) throw Error(errc::cancelled, "the kernel was shut down");
    if (failure) throw *failure;
}

std::string KernelLink::tail_text() const {
    std::string tail = detail::repair_utf8(last_words);
    if (process) tail += process->output_tail();
    while (!tail.empty() && (tail.back() == '\n' || tail.back() == ' ')) tail.pop_back();
    return tail.empty() ? tail : "; the last it printed:\n" + tail;
}

// ---- the end of the process ---------------------------------------------------------------------

void KernelLink::watch_process(UniqueFd handle) {
    if (!handle) {
        exited = true;  // it ended before we could look
        return;
    }
    pidfd.emplace(executor, handle.release());
    wait_for_exit();
}

bool KernelLink::look_for_exit() noexcept {
    if (exited || !pidfd) return exited;
    return exited = is_readable(pidfd->native_handle());
}

void KernelLink::wait_for_exit() {
    pidfd->async_wait(Descriptor::wait_read,
                      [self = shared_from_this()](boost::system::error_code error) {
                          if (error || !self->pidfd) return;
                          if (!self->look_for_exit()) return self->wait_for_exit();
                          self->changed.notify();
                      });
}

bool KernelLink::is_over() {
    if (!look_for_exit() && !lost) return false;
    if (end_grace == never) end_grace = Clock::now() + end_patience;
    return (exited && lost) || Clock::now() >= end_grace;
}

void KernelLink::read_last_words() noexcept {
    char buffer[4096];
    for (auto& pipe : pipes) {
        for (int round = 0; pipe && entered && round < 64; ++round) {
            pollfd watched{pipe.get(), POLLIN, 0};
            if (::poll(&watched, 1, 0) != 1 || (watched.revents & POLLIN) == 0) break;
            const auto count = ::read(pipe.get(), buffer, sizeof buffer);
            if (count <= 0) break;
            entered->add_last_words(std::string_view(buffer, static_cast<std::size_t>(count)));
        }
        pipe.reset();
    }
}

awaitable<std::string> KernelLink::ending() {
    const auto held = process;
    const auto status = co_await held->wait(Clock::now() + end_patience);
    read_last_words();
    if (!status) co_return std::string("its process did not end");
    co_return sandbox_kit::describe_end(*held, *status);
}

awaitable<void> KernelLink::report_end() {
    const auto self = shared_from_this();
    if (!look_for_exit()) fail_protocol("it closed its connection");
    const auto how = co_await ending();
    require_usable();
    fail(errc::kernel_died,
         "the kernel ended (" + how + "); reset() starts a new kernel" + tail_text());
}

// ---- frames -------------------------------------------------------------------------------------

void KernelLink::send(char kind, std::string_view payload) {
    if (unsent.size() - sent > most_unsent) fail_protocol("it takes no more requests");
    append_frame(unsent, kind, payload);
    // When the connection is lost, whoever waits for the answer finds out.
    flush();
}

void KernelLink::flush() {
    while (sent < unsent.size() && !lost) {
        boost::system::error_code error;
        sent += socket.write_some(asio::buffer(unsent.data() + sent, unsent.size() - sent), error);
        if (error == asio::error::interrupted) continue;
        if (error == asio::error::would_block) {
            if (std::exchange(writing, true)) return;
            socket.async_wait(asio::socket_base::wait_write,
                              [self = shared_from_this()](boost::system::error_code failed) {
                                  self->writing = false;
                                  if (!failed && !self->closed) self->flush();
                              });
            return;
        }
        // What it has sent before can still be read.
        if (error) break;
    }
    unsent.clear();
    sent = 0;
}

void KernelLink::arm() {
    if (reading || lost || starved) return;
    reading = true;
    socket.async_wait(asio::socket_base::wait_read,
                      [self = shared_from_this()](boost::system::error_code) {
                          self->reading = false;
                          self->changed.notify();
                      });
}

awaitable<void> KernelLink::wait_for_frames(Clock::time_point deadline) {
    const auto self = shared_from_this();
    const auto started = Clock::now();
    arm();
    if (starved) deadline = std::min(deadline, started + poll_interval);
    co_await changed.wait(std::min(deadline, end_grace));
    if (memory.size() == 0) co_return;
    waited += Clock::now() - started;
    if (waited > frame_patience) fail_protocol("a frame that does not come to its end");
}

awaitable<void> KernelLink::wait_for_news(Clock::time_point deadline) {
    const auto self = shared_from_this();
    starved = false;
    arm();
    co_await changed.wait(deadline);
}

bool KernelLink::has_said_goodbye() {
    char dropped[1 << 14];
    // As often as others are to have their turn, should a kernel send without end.
    for (int round = 0; round < 16 && !lost; ++round) {
        const auto count = ::read(socket.native_handle(), dropped, sizeof dropped);
        if (count < 0 && (errno == EAGAIN || errno == EINTR)) return false;
        lost = count <= 0;
    }
    return lost;
}

// Takes what is there; false when that is nothing.
bool KernelLink::read_more() {
    static thread_local std::string space(largest_read, '\0');
    // Not recvmsg(): descriptors that the code sends along are dropped.
    const auto count = ::read(socket.native_handle(), space.data(), space.size());
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (count <= 0) {
        const bool news = !std::exchange(lost, true);
        return news;
    }
    reader.add(std::string_view(space).substr(0, static_cast<std::size_t>(count)));
    return true;
}

// A display that is too large: the cell can do without it.
bool KernelLink::leave_out(char kind) {
    if (kind != 'd' && kind != 'r') return false;
    note_left_out();
    return true;
}

void KernelLink::note_left_out() {
    if (running == 0) return;
    Stream stream;
    stream.is_stderr = true;
    stream.text = "[ipybox] a display was left out: it takes more than the " +
                  std::to_string(limits.bytes >> 20) +
                  " MiB that a message may; show less of it, or write it to a file\n";
    pending.emplace_back(std::move(stream));
}

bool KernelLink::read_one() {
    if (closed) return false;
    if (!reader.skipping()) {
        if (const auto head = reader.head()) {
            if (head->size > (is_text(head->kind) ? largest_text : limits.bytes)) {
                if (!leave_out(head->kind)) fail_protocol("a frame over the size limit");
                reader.skip();
                return true;
            }
            const auto size = head->size;
            starved = size > small_frame && !memory.resize(size);
            if (starved) return false;
        }
        if (const auto frame = reader.next()) {
            use(*frame);
            memory.release();
            waited = {};
            return true;
        }
    }
    return !lost && read_more();
}

json::object KernelLink::content_of(std::string_view payload) {
    auto content = jupyter::read_object(payload, limits.depth, limits.decoded);
    if (!content) fail_protocol(jupyter::describe(content.error()));
    return std::move(*content);
}

void KernelLink::use(const Frame& frame) {
    const auto object_in = [](json::object& content, std::string_view name) {
        auto* value = content.if_contains(name);
        return value != nullptr && value->is_object() ? std::move(value->get_object())
                                                      : json::object();
    };
    if (!greeted) {
        if (is_text(frame.kind)) return keep_last_words(frame.payload);
        if (frame.kind != 'h') fail_protocol("it does not say hello");
        const auto content = content_of(frame.payload);
        const auto* version = content.if_contains("protocol");
        if (version == nullptr || *version != 1) fail_protocol("it speaks another protocol");
        greeted = true;
        return;
    }
    // What threads print between cells goes to the next one, so that it is not lost.
    switch (frame.kind) {
        case 'o':
        case 'e':
            return use_text(frame.kind == 'e', frame.payload);
        case 'd':
        case 'r': {
            // Costs are looked at first: what is too much for us would end the kernel.
            if (detail::decoded_size(frame.payload) > limits.decoded) return note_left_out();
            auto content = content_of(frame.payload);
            if (running == 0) return;
            Display display;
            display.is_result = frame.kind == 'r';
            display.data = object_in(content, "data");
            display.metadata = object_in(content, "metadata");
            const auto* update = content.if_contains("update");
            display.is_update = update != nullptr && update->is_bool() && update->get_bool();
            const auto transient = object_in(content, "transient");
            const auto* id = detail::find_string(transient, "display_id");
            if (id != nullptr && id->size() <= max_display_id)
                display.display_id = detail::repair_utf8(*id);
            pending.emplace_back(std::move(display));
            return;
        }
        case 'x':
            if (running == 0) return;
            try {
                pending.emplace_back(JupyterExecution::error_of(content_of(frame.payload)));
            } catch (const JupyterBreach& breach) {
                fail_protocol(breach.what());
            }
            return;
        case 'q': {
            const auto content = content_of(frame.payload);
            if (running == 0 || asked || !takes_input) return;
            InputWanted wanted;
            wanted.prompt = detail::repair_utf8(detail::string_of(content, "prompt"));
            const auto* password = content.if_contains("password");
            wanted.is_password = password != nullptr && password->is_bool() && password->get_bool();
            asked = true;
            pending.emplace_back(std::move(wanted));
            return;
        }
        case 'k':
            return use_end(content_of(frame.payload));
        default:
            fail_protocol("a frame of no known kind");
    }
}

void KernelLink::keep_last_words(std::string_view bytes) {
    last_words += bytes.substr(bytes.size() - std::min(bytes.size(), most_last_words));
    if (last_words.size() > most_last_words)
        last_words.erase(0, last_words.size() - most_last_words);
}

void KernelLink::use_text(bool is_stderr, std::string_view bytes) {
    if (is_stderr) keep_last_words(bytes);
    auto& rest = cut[is_stderr ? 1 : 0];
    std::string text = std::exchange(rest, {});
    text += bytes;
    const auto whole = detail::whole_characters(text);
    rest = text.substr(whole.size());
    text.resize(whole.size());
    if (text.empty()) return;
    Stream stream;
    stream.is_stderr = is_stderr;
    stream.text = detail::repair_utf8(text);
    pending.emplace_back(std::move(stream));
}

void KernelLink::use_end(const json::object& content) {
    const auto* id = content.if_contains("id");
    // One of an execution that nobody waits for any more.
    if (running == 0 || id == nullptr || *id != running) return;
    for (const bool is_stderr : {false, true}) {
        if (cut[is_stderr ? 1 : 0].empty()) continue;
        Stream stream;
        stream.is_stderr = is_stderr;
        stream.text = detail::repair_utf8(std::exchange(cut[is_stderr ? 1 : 0], {}));
        pending.emplace_back(std::move(stream));
    }
    const auto* ok = content.if_contains("ok");
    Done done;
    done.ok = ok != nullptr && ok->is_bool() && ok->get_bool();
    running = 0;
    asked = false;
    pending.emplace_back(done);
}

}  // namespace ipybox::forked
