#pragma once
// What somebody beside the caller sees of a session, such as a page on which calls are approved.
#include <boost/json/object.hpp>
#include <functional>
#include <ipybox/approval_policy.hpp>
#include <ipybox/decision.hpp>
#include <ipybox/log.hpp>
#include <memory>
#include <string>
#include <string_view>

namespace ipybox {

// Told on the executor's thread. None of it may wait, or destroy the executor; what it throws is
// logged, and changes nothing else.
class SessionWatcher {
public:
    virtual ~SessionWatcher() = default;
    // An execution that can make calls begins. cancel: does what Execution::cancel() does, for as
    // long as there is something to cancel; to be called on the executor's thread, later.
    virtual void began(const std::string& session, const std::string& execution,
                       const std::string& code, std::function<void()> cancel) = 0;
    // Text of the code, as CodeExecutionChunk has it.
    virtual void printed(const std::string& execution, std::string_view text, bool is_stderr) = 0;
    // data: a MIME bundle of the code.
    virtual void displayed(const std::string& execution, const json::object& data) = 0;
    // outcome: ok, error, timed_out, cancelled, kernel_lost, output_limit or refused.
    virtual void ended(const std::string& execution, std::string_view outcome, Duration spent) = 0;
    // Of every call, whoever decided. call: as it was made. edited: the arguments it is carried out
    // with, if a person changed them; null otherwise.
    virtual void decided(const ToolCall& call, const json::object* edited,
                         const Decision& decision) = 0;
    // Of an allowed one. outcome: ok, error (the tool says so), failed or withdrawn.
    virtual void called(const std::string& call, std::string_view outcome, Duration spent) = 0;
};
using SessionWatcherPtr = std::shared_ptr<SessionWatcher>;

// Tells a watcher, if there is one, by `tell(watcher)`.
template <class Tell>
void tell_watcher(const SessionWatcherPtr& watcher, const Logger& logger, Tell tell) noexcept {
    if (!watcher) return;
    try {
        try {
            tell(*watcher);
        } catch (const std::exception& error) {
            logger(LogLevel::error, std::string("session watcher: ") + error.what());
        }
    } catch (...) {
        // A logger must not throw, and there is nobody else to tell.
    }
}

}  // namespace ipybox
