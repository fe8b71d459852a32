#pragma once
// The page of --approval-page: calls are shown and answered in a browser on this machine. Whoever
// reads it must have the one-time link, be a process of this user, and come to the page itself and
// not from another one.
#include <ipybox/approval/session_watcher.hpp>
#include <ipybox/async.hpp>
#include <ipybox/log.hpp>
#include <memory>
#include <string>

namespace ipybox {
class GrantedRules;
}

namespace ipybox::app {

struct ApprovalPageOptions {
    std::string note;  // shown at its top: workspace, sandbox
    // What a person allowed for longer than one call; shared with others who ask. Not null.
    std::shared_ptr<GrantedRules> granted;
    Duration approval_timeout{};  // after which the caller takes a question back; zero: never
    Logger logger;
};

// Owned and used on one thread. It sees the sessions of all executors that it is the watcher of.
class ApprovalPage {
public:
    ApprovalPage(asio::any_io_executor executor, ApprovalPageOptions options);
    ~ApprovalPage();
    ApprovalPage(const ApprovalPage&) = delete;
    ApprovalPage& operator=(const ApprovalPage&) = delete;

    // Listens on this machine; port 0 takes a free one. Returns the link that opens the page once.
    // Throws Error: bad_argument (host is none of the loopback's), io_error (it cannot listen).
    std::string listen(const std::string& host, unsigned short port);

    // Shows the call until somebody answers, here or, when it is cancelled, elsewhere. Throws what
    // GrantedRules::find() throws.
    awaitable<Decision> ask(ToolCall call);
    // For CodeExecutorOptions::watcher.
    SessionWatcherPtr watcher() const;

private:
    struct Impl;
    std::shared_ptr<Impl> state_;
};

}  // namespace ipybox::app
