#pragma once
#include <ipybox/tools/tool_server.hpp>

#include <ipybox/compilation.hpp>
#include <ipybox/tools/impl/tool_server_state.hpp>

namespace ipybox {

IPYBOX_DECL void ToolServer::tell_host(const Impl& state, const std::string& call,
                                       const CallProgress& report) {
    if (!state.options.on_progress) return;
    try {
        state.options.on_progress(call, report);
    } catch (const std::exception& error) {
        state.host.logger(LogLevel::error, std::string("on_progress: ") + error.what());
    }
}

// By interim answers, one at a time: a caller that does not read gets fewer.
IPYBOX_DECL awaitable<void> ToolServer::tell(net::HttpPeerPtr peer, ProgressPtr progress) {
    bool open = true;
    while (open && (!progress->done || progress->report)) {
        if (!progress->report) {
            co_await progress->changed.wait();
            continue;
        }
        json::object report{{"progress", progress->report->progress}};
        if (progress->report->total) report.emplace("total", *progress->report->total);
        report.emplace("message", progress->report->message);
        progress->report.reset();
        std::string text =
            "HTTP/1.1 102 Processing\r\nIpybox-Progress: " + detail::write_json(report) +
            "\r\n\r\n";
        open = co_await peer->write(std::move(text));
        // What comes in quick succession makes one report.
        const auto next = deadline_after(std::chrono::milliseconds(50));
        while (!progress->done && Clock::now() < next) co_await progress->changed.wait(next);
    }
    progress->telling = false;
    progress->changed.notify();
}

}  // namespace ipybox
