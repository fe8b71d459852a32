#pragma once
// What takes its time, from begin to end, for whoever traces an application.
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <ipybox/log.hpp>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>

namespace ipybox {

// An execution, a tool call of it, or the decision about a call, which a person may have to make.
// It has no arguments, no code and no secrets; names that code wrote are escaped and cut.
struct Span {
    enum class Kind { execution, call, approval };

    Kind kind = Kind::execution;
    std::string id;       // 16 hexadecimal digits, as OpenTelemetry has them
    std::string parent;   // of an approval its call, of a call its execution; empty: there is none
    std::string root;     // the span without a parent that this one belongs to; may be itself
    std::string session;  // as CodeExecutorOptions::session
    std::string name;     // "server.tool"; of an execution "execution"
    // Nanoseconds since 1970 in UTC. end: 0 while it goes on, and never before the begin.
    std::int64_t begin = 0, end = 0;
    // Of one that has ended. An execution: ok, error, timed_out, cancelled, kernel_lost,
    // output_limit, refused, withdrawn (the executor was destroyed). A call: ok, error (the tool
    // says so), failed, denied, expired (nobody answered in time), withdrawn. An approval: allowed,
    // denied, expired, withdrawn.
    std::string outcome;
};

// As in traces.
constexpr std::string_view to_string(Span::Kind kind) noexcept {
    switch (kind) {
        case Span::Kind::execution:
            return "execution";
        case Span::Kind::call:
            return "call";
        case Span::Kind::approval:
            return "approval";
    }
    return "execution";
}

// Told of each span at its begin and at its end, on the executor's thread. It must not wait, nor
// destroy what tells it. What it throws is logged, and changes nothing else.
using SpanHook = std::function<void(const Span&)>;

class OpenSpan;

// Tells one hook of many spans. Used on one thread.
class SpanTeller {
public:
    // logger: of what the hook throws.
    explicit SpanTeller(SpanHook hook, Logger logger = {})
        : hook_(std::move(hook)), logger_(std::move(logger)) {}
    SpanTeller(const SpanTeller&) = delete;
    SpanTeller& operator=(const SpanTeller&) = delete;

    // Ends what is open as withdrawn; from then on the hook is not called any more.
    void close() noexcept;

private:
    friend class OpenSpan;
    void tell(const Span& span) noexcept {
        if (!hook_) return;
        try {
            try {
                hook_(span);
            } catch (const std::exception& error) {
                logger_(LogLevel::error, std::string("on_span: ") + error.what());
            } catch (...) {
                logger_(LogLevel::error, "on_span threw what is no std::exception");
            }
        } catch (...) {
            // A logger must not throw, and there is nobody else to tell.
        }
    }

    SpanHook hook_;
    Logger logger_;
    std::set<OpenSpan*> open_;
};
using SpanTellerPtr = std::shared_ptr<SpanTeller>;

// Tells of one span: its begin at once, its end in any case.
class OpenSpan {
public:
    // Its begin is now.
    OpenSpan(SpanTellerPtr teller, Span span) : teller_(std::move(teller)), span_(std::move(span)) {
        using namespace std::chrono;
        span_.begin = duration_cast<nanoseconds>(system_clock::now().time_since_epoch()).count();
        teller_->open_.insert(this);
        teller_->tell(span_);
    }
    OpenSpan(const OpenSpan&) = delete;
    OpenSpan& operator=(const OpenSpan&) = delete;
    // What ended in no other way was withdrawn.
    ~OpenSpan() { end("withdrawn"); }

    // The first outcome counts.
    void end(std::string_view outcome) noexcept {
        using namespace std::chrono;
        if (teller_->open_.erase(this) == 0) return;
        // A wall clock that is set back must not end it before it began.
        span_.end = span_.begin + nanoseconds(steady_clock::now() - started_).count();
        span_.outcome = outcome;
        teller_->tell(span_);
    }

private:
    SpanTellerPtr teller_;
    Span span_;
    std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
};

inline void SpanTeller::close() noexcept {
    while (!open_.empty()) (*open_.begin())->end("withdrawn");
    hook_ = nullptr;
}

}  // namespace ipybox
