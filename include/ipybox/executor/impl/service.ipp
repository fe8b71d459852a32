#pragma once
#include <ipybox/executor/service.hpp>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <ipybox/compilation.hpp>
#include <ipybox/executor/impl/service_state.hpp>
#include <ipybox/mcp/result_text.hpp>

namespace ipybox::executor {

IPYBOX_DECL WaitingLine::Place::~Place() {
    line_.places_.erase(at_);
    line_.moved_.notify();
}

IPYBOX_DECL bool WaitingLine::Place::first() const noexcept {
    std::size_t before = 0;
    for (auto at = line_.places_.begin(); at != at_ && before < line_.width_; ++at) ++before;
    return before < line_.width_;
}

IPYBOX_DECL CellReport::CellReport(const asio::any_io_executor& executor, const McpContext& context,
                                   Duration keep_alive)
    : backlog_(std::make_shared<Backlog>(executor, context)) {
    backlog_->keep_alive = keep_alive;
    asio::co_spawn(executor, tell(backlog_), asio::detached);
}

IPYBOX_DECL CellReport::~CellReport() {
    backlog_->done = true;
    backlog_->changed.notify();
}

IPYBOX_DECL void CellReport::add(std::string_view text) {
    auto& waiting = backlog_->text;
    const bool first = waiting.empty() && backlog_->skipped == 0;
    const auto room = max_message - std::min(waiting.size(), max_message);
    const auto fits = mcp::text_fits(text, text.size(), room);
    waiting += text.substr(0, backlog_->skipped == 0 ? fits : 0);
    backlog_->skipped += text.size() - (backlog_->skipped == 0 ? fits : 0);
    if (first) backlog_->changed.notify();
}

IPYBOX_DECL void CellReport::Backlog::send() {
    if (text.empty() && skipped == 0) return;
    if (skipped > 0) text += "\n[" + std::to_string(skipped) + " more bytes]";
    context.progress(++count, {}, text);
    text.clear();
    skipped = 0;
}

IPYBOX_DECL awaitable<void> CellReport::tell(std::shared_ptr<Backlog> backlog) {
    while (!backlog->done) {
        co_await backlog->changed.wait(deadline_after(backlog->keep_alive));
        if (backlog->done) co_return;
        if (backlog->text.empty()) {
            const auto seconds =
                std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - backlog->started);
            backlog->context.progress(++backlog->count, {},
                                      "running for " + std::to_string(seconds.count()) + " s");
            continue;
        }
        // What comes in quick succession makes one report.
        co_await sleep_until(Clock::now() + std::chrono::milliseconds(50));
        if (!backlog->done) backlog->send();
    }
}

}  // namespace ipybox::executor

namespace ipybox {

IPYBOX_DECL McpService::McpService(asio::any_io_executor executor, PluginRegistry& registry,
                                   McpServiceOptions options)
    : state_(std::make_shared<Impl>(std::move(executor), registry, std::move(options))) {
    state_->prepare();
}

IPYBOX_DECL McpService::~McpService() { state_->abandon(); }

IPYBOX_DECL McpServer& McpService::server() noexcept { return *state_->server; }

IPYBOX_DECL void McpService::start() { state_->start(); }

IPYBOX_DECL awaitable<void> McpService::stop() { return Impl::stop(state_); }

IPYBOX_DECL std::size_t McpService::sessions() const noexcept { return state_->sessions.size(); }

IPYBOX_DECL McpService::Session::Session(const asio::any_io_executor& io, std::string session_name)
    : name(std::move(session_name)),
      cells(io, 1),
      judgements(io, 1),
      questions(io, 1),
      changed(io) {}

IPYBOX_DECL McpService::Use::Use(SessionPtr s) : session(std::move(s)) { ++session->users; }

IPYBOX_DECL McpService::Use::~Use() {
    --session->users;
    session->last_used = Clock::now();
    session->changed.notify();
}

}  // namespace ipybox
