#pragma once
// Sends the heads of an audit log to somebody else, who then knows what the log has to end with.
#include <condition_variable>
#include <ipybox/async.hpp>
#include <ipybox/log.hpp>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

namespace ipybox::app {

// Nothing waits for it: a thread sends the newest head, each of which vouches for all before it.
// What fails is logged, when it begins and when it ends, and the next head is sent all the same.
class AuditHeadSender {
public:
    // target: an http or https URL, to which heads are posted, or a program, which gets one on its
    // standard input. Throws Error: bad_argument (it is neither), denied (code could have changed
    // the program).
    AuditHeadSender(std::string target, Logger logger);
    AuditHeadSender(const AuditHeadSender&) = delete;
    AuditHeadSender& operator=(const AuditHeadSender&) = delete;
    // Waits for what is being sent, for some seconds at most.
    ~AuditHeadSender();

    // head: a line of the log.
    void send(const std::string& head);

private:
    void work();
    std::string send_now(const std::string& head);
    static awaitable<void> post(std::string url, std::string head);
    static awaitable<void> run(std::string program, std::string head);
    void tell();

    std::string target_;
    bool is_url_ = false;
    Logger logger_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::optional<std::string> waiting_;  // the newest that was not sent yet
    std::string problem_, told_;          // of the last attempt; what was logged
    bool ending_ = false, idle_ = true;
    std::thread thread_;
};

}  // namespace ipybox::app
