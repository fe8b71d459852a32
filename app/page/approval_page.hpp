#pragma once
// The page of --approval-page: calls are shown and answered in a browser on this machine. Whoever
// reads it must have the one-time link, be a process of this user, and come to the page itself and
// not from another one.
#include <filesystem>
#include <ipybox/approval/session_watcher.hpp>
#include <ipybox/async.hpp>
#include <ipybox/log.hpp>
#include <memory>
#include <string>
#include <vector>

namespace ipybox {
class GrantedRules;
}

namespace ipybox::app {

struct ApprovalPageOptions {
    std::string note;  // shown at its top: workspace, sandbox
    // What a person allowed for longer than one call; shared with others who ask. Not null.
    std::shared_ptr<GrantedRules> granted;
    Duration approval_timeout{};  // after which the caller takes a question back; zero: never
    // Where a file keeps a link while the page is there, for this user alone; empty: nowhere.
    std::filesystem::path link_place;
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

// For ApprovalPageOptions::link_place: code and confined servers do not see it.
std::filesystem::path page_link_place();
// The files with links of the pages that are there, of all processes of this user.
std::vector<std::filesystem::path> page_link_files();

}  // namespace ipybox::app
