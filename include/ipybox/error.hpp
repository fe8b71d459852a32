#pragma once
// The one exception type, and the codes that say what kind of failure it is.
#include <boost/system/error_category.hpp>
#include <boost/system/error_code.hpp>
#include <boost/system/system_error.hpp>
#include <ipybox/version.hpp>
#include <string>
#include <utility>

namespace ipybox {

enum class errc {
    bad_argument = 1,     // a value given by the caller, a flag or a request is wrong
    bad_config,           // a configuration does not fit its schema
    bad_plugin,           // a shared object cannot serve as a plugin of this program
    no_such_plugin,       // no plugin of that kind has that name
    missing_dependency,   // something that must be installed is not
    sandbox_refused,      // a policy asks for more than the sandbox can enforce
    kernel_start_failed,  // the kernel did not come up
    kernel_died,          // the kernel's process ended
    kernel_protocol,      // the kernel sent something no kernel may send
    code_failed,          // the executed code raised an exception
    output_limit,         // an execution printed more than the cap
    mcp_connection,       // an MCP server cannot be started or reached, or died
    mcp_protocol,         // an MCP server broke the protocol
    mcp_error,            // an MCP server answered with an error
    denied,               // a tool call was refused
    timed_out,            // a deadline passed
    cancelled,            // the caller withdrew the operation
    busy,                 // one execution at a time
    io_error,             // a file or a socket failed
    http_failed,          // an HTTP server cannot be reached, or its answer broke off
    kernel_not_started,   // start() was not called yet
};

// The fixed id makes categories compare equal across shared objects.
struct ErrorCategory final : boost::system::error_category {
    constexpr ErrorCategory() : boost::system::error_category(0x1b0b0c5d11a7e001ULL) {}
    // "ipybox".
    const char* name() const noexcept override { return "ipybox"; }
    // What a code means, in a few words.
    std::string message(int code) const override {
        switch (static_cast<errc>(code)) {
            case errc::bad_argument:
                return "bad argument";
            case errc::bad_config:
                return "bad configuration";
            case errc::bad_plugin:
                return "plugin cannot be loaded";
            case errc::no_such_plugin:
                return "no such plugin";
            case errc::missing_dependency:
                return "missing dependency";
            case errc::sandbox_refused:
                return "sandbox refused";
            case errc::kernel_start_failed:
                return "kernel did not start";
            case errc::kernel_died:
                return "kernel died";
            case errc::kernel_protocol:
                return "kernel broke the protocol";
            case errc::code_failed:
                return "the code failed";
            case errc::output_limit:
                return "output limit exceeded";
            case errc::mcp_connection:
                return "MCP server unavailable";
            case errc::mcp_protocol:
                return "MCP server broke the protocol";
            case errc::mcp_error:
                return "MCP server error";
            case errc::denied:
                return "denied";
            case errc::timed_out:
                return "timed out";
            case errc::kernel_not_started:
                return "kernel not started";
            case errc::cancelled:
                return "cancelled";
            case errc::busy:
                return "busy";
            case errc::io_error:
                return "input/output error";
            case errc::http_failed:
                return "HTTP request failed";
        }
        return "unknown ipybox error";
    }
};
inline constexpr ErrorCategory error_category{};

// How errc becomes an error_code.
inline boost::system::error_code make_error_code(errc code) noexcept {
    return {static_cast<int>(code), error_category};
}

// Thrown for every failure. code() compares with errc; detail() is the sentence for a person:
// what happened and what to do about it. what() is "<detail> (<kind>)".
class Error : public boost::system::system_error {
public:
    // For codes of other categories, such as those of the system.
    Error(boost::system::error_code code, std::string detail)
        : system_error(code),
          detail_(std::move(detail)),
          what_(detail_ + " (" + code.message() + ")") {}
    // detail: a sentence for a person: what happened, and the remedy.
    Error(errc code, std::string detail) : Error(make_error_code(code), std::move(detail)) {}

    // The sentence alone.
    const std::string& detail() const noexcept { return detail_; }
    // The sentence and the kind of failure.
    const char* what() const noexcept override { return what_.c_str(); }

private:
    std::string detail_;
    std::string what_;
};

}  // namespace ipybox

template <>
struct boost::system::is_error_code_enum<ipybox::errc> : std::true_type {};
