#pragma once
// A logger is a level and a function; whoever embeds ipybox decides where lines go.
#include <functional>
#include <string>
#include <string_view>

namespace ipybox {

enum class LogLevel { trace, debug, info, warning, error, off };

// Where lines of the log go, and from which level on.
struct Logger {
    LogLevel level = LogLevel::warning;
    // Called on the executor's thread; must not throw. Empty: nothing is logged.
    std::function<void(LogLevel, std::string_view)> write;

    // Whether a line of that level would be written: ask before composing a costly one.
    bool enabled(LogLevel at) const noexcept { return write && at >= level; }
    // Writes a line without line end, if its level is enabled.
    void operator()(LogLevel at, std::string_view line) const {
        if (enabled(at)) write(at, line);
    }
};

}  // namespace ipybox
