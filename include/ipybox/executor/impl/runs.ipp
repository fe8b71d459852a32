#pragma once
#include <ipybox/executor/code_executor.hpp>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <ipybox/compilation.hpp>
#include <ipybox/executor/impl/session.hpp>

namespace ipybox {

IPYBOX_DECL CodeExecutor::Run::Run(const asio::any_io_executor& executor) : changed(executor) {}

IPYBOX_DECL void CodeExecutor::Run::push(ExecutionEvent event) {
    queued += weight(event);
    events.push_back(std::move(event));
    changed.notify();
}

IPYBOX_DECL void CodeExecutor::Run::request_stop(Status why) {
    if (finished || ended || stop) return;
    stop = why;
    changed.notify();
}

IPYBOX_DECL awaitable<std::shared_ptr<CodeExecutor::Run>> CodeExecutor::Session::begin(
    std::shared_ptr<Session> self, std::string code, ExecutionOptions how, Run::Asked asked) {
    while (run && run->abandoned) co_await idle.wait();
    if (!run) co_await deliver_apis();
    if (run) throw Error(errc::busy, "an execution is running; wait for its result or cancel it");
    if (!kernel)
        throw started ? Error(errc::kernel_died, "no kernel is running; reset() starts a new one")
                      : Error(errc::kernel_not_started, "call start() first");
    if (!kernel->alive())
        throw Error(errc::kernel_died, "the kernel has ended; reset() starts a new one");
    const auto fresh = std::make_shared<Run>(host.executor);
    const bool own = asked == Run::Asked::host;
    fresh->how = how;
    fresh->how.check = !own && (how.check || options.check);
    if (!fresh->how.check && !own) open_execution(*fresh, code);
    // The pump may end before co_spawn() returns, and with it this->run.
    fresh->asked = asked;
    fresh->violations = std::exchange(waiting_violations, {});
    if (spans) {
        Span span;
        span.id = span.root = fresh->id;
        span.session = options.session;
        span.name = "execution";
        fresh->span.emplace(spans, std::move(span));
    }
    run = fresh;
    asio::co_spawn(host.executor, pump(self, fresh, std::move(code)), asio::detached);
    asio::co_spawn(host.executor, watch(self, fresh), asio::detached);
    co_return fresh;
}

IPYBOX_DECL void CodeExecutor::Session::open_execution(Run& current, const std::string& code) {
    if (options.audit) audit_execution(*options.audit, options.session, current.id, code);
    tools->begin_execution(current.id);
    current.opened = true;
    tell_watcher(current, [&](SessionWatcher& watcher) {
        watcher.began(options.session, current.id, code, [weak = current.weak_from_this()] {
            if (const auto held = weak.lock()) held->request_stop(Status::cancelled);
        });
    });
}

IPYBOX_DECL awaitable<void> CodeExecutor::Session::pump(std::shared_ptr<Session> self,
                                                        std::shared_ptr<Run> current,
                                                        std::string code) {
    CodeExecutionResult result;
    Output output{*self, *current, result, {}, 0, {}};
    const bool own = current->asked == Run::Asked::host;
    std::unique_ptr<sandbox_kit::WorkspaceSnapshot> before;
    Kernel& kernel = *self->kernel;  // watch() keeps it alive until this run is finished
    try {
        ExecuteRequest request;
        request.code = std::move(code);
        request.silent = current->how.silent;
        request.allow_input = self->options.allow_input && current->asked == Run::Asked::reader;
        if (own)
            output.size = self->unclaimed_size;
        else
            self->unclaimed_size = 0;
        while (!own && !self->unclaimed.empty()) {
            KernelOutput item = std::move(self->unclaimed.front());
            self->unclaimed.pop_front();
            output.take(std::move(item));
        }
        // The cell sees what others have changed in its workspace since the last one.
        co_await refresh_view(self);
        bool done = false;
        if (current->how.check) {
            const bool runs = co_await passes_check(self, output, request.code);
            done = !runs;
        }
        if (!done && current->how.measure) before = co_await look_at_workspace(self);
        if (!done) co_await kernel.execute(std::move(request));
        auto breath = Clock::now();
        while (!done) {
            while (current->backlog()) co_await current->changed.wait();
            // A flood of output leaves no gap for anybody else, not even for the deadline.
            if (const auto now = Clock::now(); now > breath) {
                co_await asio::post(asio::use_awaitable);
                breath = now + std::chrono::milliseconds(5);
            }
            auto item = co_await kernel.next(never);
            if (item)
                done = own ? output.take_answer(std::move(*item)) : output.take(std::move(*item));
        }
    } catch (const Error& error) {
        result.status = Status::kernel_lost;
        result.error = error.detail();
    } catch (const std::exception& error) {
        result.status = Status::kernel_lost;
        result.error = std::string("the connection to the kernel failed: ") + error.what();
    }
    current->ended = true;
    if (current->stop) {
        result.status = *current->stop;
        result.error = current->stop_reason;
        if (current->kernel_lost)
            result.error +=
                "; the code did not react to the interrupt, so the kernel was killed and its state "
                "is lost: reset() starts a new one";
    }
    if (auto text = result.pieces_.strip(std::move(output.text)); !text.empty())
        result.text = std::move(text);
    if (current->how.measure) co_await measure(self, result, kernel, std::move(before));
    self->report_new(kernel);
    if (self->file_watch) self->tell_changes(self->file_watch->poll());
    (own ? self->waiting_violations : result.violations) = std::move(current->violations);
    result.duration = Clock::now() - current->started;
    if (self->options.audit && current->opened) self->record_end(*current, result);
    if (!own) self->tools->end_execution();
    self->tell_watcher(*current, [&](SessionWatcher& watcher) {
        watcher.ended(current->id, outcome_of(result.status), result.duration);
    });
    withdraw_input(*current);
    current->finished = true;
    if (current->span) current->span->end(outcome_of(result.status));
    result.execution = current->id;
    current->push(std::move(result));
    self->run = nullptr;
    self->renew_apis();
    self->idle.notify();
    if (!self->abandoned) co_return;
    self->kernel.reset();
    self->look_at_files();
    self->file_watch.reset();
}

IPYBOX_DECL std::string_view CodeExecutor::Session::outcome_of(Status status) {
    static constexpr const char* words[] = {"ok",          "error",        "timed_out", "cancelled",
                                            "kernel_lost", "output_limit", "refused"};
    return words[static_cast<int>(status)];
}

IPYBOX_DECL void CodeExecutor::Session::record_end(const Run& current,
                                                   const CodeExecutionResult& result) {
    try {
        audit_execution_end(*options.audit, options.session, current.id, outcome_of(result.status),
                            Clock::now() - current.started);
    } catch (const Error& error) {  // the log keeps it, and refuses the next execution
        host.logger(LogLevel::warning, error.detail());
    }
}

IPYBOX_DECL awaitable<void> CodeExecutor::Session::watch(std::shared_ptr<Session> self,
                                                         std::shared_ptr<Run> current) {
    while (!current->finished && !current->stop) {
        const auto deadline = self->deadline(*current);
        if (Clock::now() >= deadline) {
            current->stop = Status::timed_out;
        } else {
            co_await current->changed.wait(deadline);
        }
    }
    if (current->finished) co_return;
    if (*current->stop == Status::timed_out) {
        char seconds[32];
        std::snprintf(seconds, sizeof seconds, "%.2fs",
                      std::chrono::duration<double>(current->how.timeout).count());
        current->stop_reason = std::string("execution timed out after ") + seconds;
    } else if (*current->stop == Status::cancelled) {
        current->stop_reason = "the execution was cancelled";
    }
    current->changed.notify();  // the pump no longer waits for the consumer
    for (int attempt = 0; attempt < 2 && !current->ended; ++attempt) {
        try {
            co_await self->kernel->interrupt();
        } catch (const std::exception& error) {
            self->host.logger(LogLevel::warning, std::string("interrupt: ") + error.what());
        }
        if (current->asked != Run::Asked::host) self->tools->end_execution();
        const auto patience = Clock::now() + self->options.interrupt_grace / 2;
        while (!current->ended && Clock::now() < patience) co_await current->changed.wait(patience);
    }
    while (current->ended && !current->finished) co_await current->changed.wait();
    if (current->finished) co_return;
    current->kernel_lost = true;
    const auto lost = std::move(self->kernel);
    co_await lost->shutdown();
    while (!current->finished) co_await current->changed.wait();
}

IPYBOX_DECL Clock::time_point CodeExecutor::Session::deadline(const Run& current) const {
    if (current.ended || current.how.timeout <= Duration::zero()) return never;
    auto end = current.started + current.how.timeout;
    if (options.timeout_excludes_approval) {
        end += current.approvals_waited;
        if (current.approvals > 0) return never;  // looked at again when the answer is there
    }
    return end;
}

IPYBOX_DECL bool CodeExecutor::Session::Output::take(KernelOutput item) {
    if (auto* stream = std::get_if<Stream>(&item)) {
        add_text(std::move(stream->text),
                 stream->is_stderr ? Source::standard_error : Source::standard_output);
    } else if (auto* display = std::get_if<Display>(&item)) {
        add_display(std::move(*display));
    } else if (auto* wanted = std::get_if<InputWanted>(&item)) {
        session.ask_input(run.shared_from_this(), std::move(*wanted));
    } else if (auto* error = std::get_if<PythonError>(&item)) {
        result.status = Status::error;
        TracebackFilter filter;
        result.error =
            error->traceback.empty() ? error->name + ": " + error->value : filter(error->traceback);
        result.error += note_on_limits(*error, session.kernel_limits);
        add_error(*error);
    } else if (const auto* done = std::get_if<Done>(&item)) {
        if (!done->ok && result.status == Status::ok) {
            result.status = Status::error;
            result.error = "the kernel did not run the code to its end";
        }
        return true;
    }
    return false;
}

IPYBOX_DECL void CodeExecutor::Session::ask_input(const std::shared_ptr<Run>& current,
                                                  InputWanted wanted) {
    withdraw_input(*current);  // a kernel that asks again waits for no answer to what it asked
    auto state = std::make_shared<InputRequest::Shared>(host.executor);
    constexpr std::size_t longest = 4096;
    state->cut = wanted.prompt.size() > longest;
    wanted.prompt.resize(detail::utf8_border(wanted.prompt, longest));
    state->prompt = std::move(wanted.prompt);
    state->password = wanted.is_password;
    state->reply = [weak = weak_from_this(),
                    run_of_it = std::weak_ptr<Run>(current)](std::optional<std::string> text) {
        const auto self = weak.lock();
        const auto asking = run_of_it.lock();
        if (!self || !asking || self->run != asking || asking->finished || !self->kernel) return;
        try {
            self->kernel->answer_input(std::move(text));
        } catch (const Error& error) {  // next() of the kernel says what is wrong with it
            self->host.logger(LogLevel::warning, "input: " + error.detail());
        }
    };
    current->input = state;
    current->push(InputRequest(std::move(state)));
}

IPYBOX_DECL void CodeExecutor::Session::withdraw_input(Run& current) {
    if (const auto asked = std::exchange(current.input, nullptr)) asked->settle();
}

IPYBOX_DECL std::string CodeExecutor::Session::Output::note_on_limits(const PythonError& error,
                                                                      const Limits& limits) {
    const auto says = [&error](const char* words) {
        return error.value.find(words) != std::string::npos;
    };
    const char* name = nullptr;
    if (limits.memory_per_process && error.name == "MemoryError") name = "memory";
    if (limits.processes && (says("[Errno 11]") || says("can't start new thread")))
        name = "processes";
    if (limits.open_files && says("[Errno 24]")) name = "open-files";
    if (limits.file_size && says("[Errno 27]")) name = "file-size";
    if ((limits.scratch_size || limits.scratch_inodes) && says("[Errno 28]"))
        name = "scratch or scratch-inodes of /tmp, /dev/shm and the home directory";
    return name ? std::string("\n[ipybox] this may be the sandbox's limit ") + name : std::string();
}

IPYBOX_DECL bool CodeExecutor::Session::Output::fits(std::size_t more) {
    if (size + more <= limit()) {
        size += more;
        return true;
    }
    if (!run.stop) {
        run.stop_reason =
            "the output exceeded the limit of " + std::to_string(limit()) +
            " bytes; what came before it is in the result. Print less, write to a file, or "
            "raise max_output";
        run.request_stop(Status::output_limit);
    }
    return false;
}

IPYBOX_DECL void CodeExecutor::Session::Output::add_text(std::string piece, Source source) {
    const bool keeps = run.how.text == ResultText::whole;
    if (run.stop && *run.stop == Status::output_limit) return;
    const auto cost = keeps ? result.pieces_.cost(source) : 0;
    if (!fits(piece.size() + cost)) {
        // As much of it as there is room for.
        const auto room = limit() - size;
        piece.resize(detail::utf8_border(piece, room > cost ? room - cost : 0));
        size = limit();
    }
    if (piece.empty() || run.abandoned) return;
    if (source != Source::display)
        session.tell_watcher(run, [&](SessionWatcher& watcher) {
            watcher.printed(run.id, piece, source == Source::standard_error);
        });
    if (keeps) {
        text += piece;
        result.pieces_.add(source, piece.size());
    }
    if (!run.how.chunks || (source == Source::display && run.how.displays)) return;
    CodeExecutionChunk chunk;
    chunk.text = std::move(piece);
    chunk.is_stderr = source == Source::standard_error;
    run.push(std::move(chunk));
}

IPYBOX_DECL void CodeExecutor::Session::Output::add_display(Display display) {
    if (!fits(detail::memory_size(display.data) + display.display_id.size())) return;
    bool is_image = false;
    static constexpr std::pair<const char*, const char*> kinds[] = {{"image/png", ".png"},
                                                                    {"image/jpeg", ".jpg"},
                                                                    {"image/gif", ".gif"},
                                                                    {"image/webp", ".webp"},
                                                                    {"image/svg+xml", ".svg"}};
    for (const auto& [mime, extension] : kinds) {
        const auto* value = detail::find_string(display.data, mime);
        if (is_image || !value) continue;
        const std::string_view encoded = *value;
        const bool as_text = std::string_view(extension) == ".svg";
        const auto image =
            as_text ? std::optional<std::string>(encoded) : detail::decode_base64(encoded);
        if (!image) continue;
        is_image = true;
        save_image(*image, extension);
    }
    if (const auto* plain = detail::find_string(display.data, "text/plain"); plain && !is_image)
        add_text(std::string(*plain) + "\n", Source::display);
    session.tell_watcher(run,
                         [&](SessionWatcher& watcher) { watcher.displayed(run.id, display.data); });
    if (run.how.displays && !run.abandoned) {
        CodeExecutionDisplay event;
        event.data = display.data;
        event.metadata = std::move(display.metadata);
        event.display_id = display.display_id;
        event.is_result = display.is_result;
        event.is_update = display.is_update;
        run.push(std::move(event));
    }
    keep(std::move(display));
}

IPYBOX_DECL void CodeExecutor::Session::Output::save_image(const std::string& bytes,
                                                           const char* extension) {
    try {
        const auto wanted = session.workspace / session.options.images_dir;
        const std::string name = detail::random_hex(4) + extension;
        const auto directory = session.policy_of_code().open_for_writing(wanted, name);
        detail::write_new_file(directory.get(), name, bytes);
        result.images.push_back(wanted / name);
    } catch (const std::exception& error) {
        add_text(std::string("[ipybox] an image could not be saved: ") + error.what() + "\n",
                 Source::standard_error);
    }
}

}  // namespace ipybox
