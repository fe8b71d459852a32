#pragma once
// What every test of a coroutine needs.
#include <stdlib.h>

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/json/object.hpp>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <ipybox/async.hpp>
#include <ipybox/error.hpp>
#include <optional>
#include <sstream>
#include <string>

// Memory that is freed stays taken: g++ and Clang say so in their own ways.
#if defined(__SANITIZE_ADDRESS__)
#define IPYBOX_TEST_KEEPS_MEMORY
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define IPYBOX_TEST_KEEPS_MEMORY
#endif
#endif

namespace ipybox::test {

// Runs one coroutine to its end on `context`; rethrows what it throws. Fails by exception when
// nothing is left to run before it ended, or after two minutes; it is cancelled then.
template <class T>
T run(asio::io_context& context, awaitable<T> work) {
    std::exception_ptr failure;
    bool finished = false;
    std::conditional_t<std::is_void_v<T>, int, std::optional<T>> value{};
    auto body = [&]() -> awaitable<void> {
        if constexpr (std::is_void_v<T>) {
            co_await std::move(work);
        } else {
            value.emplace(co_await std::move(work));
        }
    };
    asio::cancellation_signal stop;
    asio::co_spawn(context, body(),
                   asio::bind_cancellation_slot(stop.slot(), [&](std::exception_ptr error) {
                       failure = error;
                       finished = true;
                   }));
    const auto ends_within = [&](std::chrono::seconds time) {
        context.restart();
        const auto limit = Clock::now() + time;
        while (!finished && context.run_one_until(limit) != 0) {
        }
        return finished;
    };
    if (!ends_within(std::chrono::minutes(2))) {
        stop.emit(asio::cancellation_type::terminal);
        // It refers to this frame: the next run() would drive it on there.
        if (!ends_within(std::chrono::seconds(10))) {
            std::fputs("the coroutine hangs, and cannot be cancelled\n", stderr);
            std::abort();
        }
        throw std::runtime_error("the coroutine hangs");
    }
    if (failure) std::rethrow_exception(failure);
    if constexpr (!std::is_void_v<T>) return std::move(*value);
}

// A directory under the system's temporary one, removed at the end; mode 0755 so that an
// unprivileged guest can enter it.
class TemporaryDirectory {
public:
    explicit TemporaryDirectory(
        const std::filesystem::path& parent = std::filesystem::temp_directory_path()) {
        std::string name = (parent / "ipybox-test-XXXXXX").string();
        if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
        path_ = name;
        std::filesystem::permissions(path_, std::filesystem::perms(0755));
    }
    ~TemporaryDirectory() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    TemporaryDirectory(const TemporaryDirectory&) = delete;
    TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
    const std::filesystem::path& path() const { return path_; }

private:
    std::filesystem::path path_;
};

inline void write_file(const std::filesystem::path& path, std::string_view text) {
    std::ofstream(path, std::ios::binary) << text;
}

inline std::string read_file(const std::filesystem::path& path) {
    std::ostringstream text;
    text << std::ifstream(path, std::ios::binary).rdbuf();
    return text.str();
}

// A path that scripts/test and Meson hand to the tests; a test without it fails, it never skips.
inline std::string required_environment(const char* name) {
    const char* value = ::getenv(name);
    if (value == nullptr || *value == '\0')
        throw std::runtime_error(std::string(name) + " is not set: run the tests by scripts/test");
    return value;
}
inline std::filesystem::path plugin_directory() {
    return required_environment("IPYBOX_TEST_PLUGINS");
}
inline std::filesystem::path kernel_python() { return required_environment("IPYBOX_TEST_PYTHON"); }
inline std::filesystem::path node_servers() {
    return required_environment("IPYBOX_TEST_NODE_MODULES");
}
inline std::filesystem::path python_package() {
    return required_environment("IPYBOX_TEST_PYTHON_PACKAGE");
}

// What the tests configure a sandbox plugin with: where srt was installed.
inline json::object sandbox_options(std::string_view sandbox) {
    json::object options;
    if (sandbox == "srt")
        options["srt"] = (node_servers() / "@anthropic-ai/sandbox-runtime/dist/cli.js").string();
    return options;
}

}  // namespace ipybox::test
