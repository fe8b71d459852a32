#pragma once
// What the launcher's broker asks about a program, as a call's arguments; see
// launcher/question.hpp.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/json/object.hpp>
#include <boost/json/string.hpp>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <ipybox/async.hpp>
#include <ipybox/detail/sha256.hpp>
#include <ipybox/detail/utf8.hpp>
#include <ipybox/error.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ipybox {
namespace json = boost::json;

namespace tools {

// A sealed file in memory: nobody can change it any more. It is the guest's: its pages would be
// ours if they were mapped and not there yet.
class SealedFile {
public:
    // Throws Error: bad_argument (it is no such file, or larger than `most` bytes).
    SealedFile(int file, std::size_t most) : file_(file) {
        constexpr int all = F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK;
        const int seals = ::fcntl(file, F_GET_SEALS);
        struct stat status{};
        if (seals < 0 || (seals & all) != all || ::fstat(file, &status) != 0 ||
            static_cast<std::uint64_t>(status.st_size) > most)
            throw Error(errc::bad_argument,
                        "what would be started cannot be shown: it is larger than " +
                            std::to_string(most >> 10) + " KiB, or not sealed");
        size_ = static_cast<std::size_t>(status.st_size);
    }

    std::size_t size() const noexcept { return size_; }

    // `size` bytes from `from` on, all of them there. Throws Error: io_error.
    std::string read(std::size_t from, std::size_t size) const {
        std::string bytes(size, '\0');
        for (std::size_t done = 0; done < size;) {
            const auto count =
                ::pread(file_, bytes.data() + done, size - done, static_cast<off_t>(from + done));
            if (count < 0 && errno == EINTR) continue;
            if (count <= 0) throw Error(errc::io_error, "what would be started cannot be read");
            done += static_cast<std::size_t>(count);
        }
        return bytes;
    }
    std::string text() const { return read(0, size_); }

    // Others have their turn meanwhile. Throws Error: io_error.
    awaitable<std::string> sha256() const {
        constexpr std::size_t step = 256u << 10;
        const auto executor = co_await asio::this_coro::executor;
        detail::Sha256 digest;
        for (std::size_t at = 0; at < size_; at += step) {
            digest.add(read(at, std::min(step, size_ - at)));
            co_await asio::post(executor, asio::use_awaitable);
        }
        co_return digest.hex();
    }

private:
    int file_;  // the caller's
    std::size_t size_ = 0;
};

constexpr std::size_t largest_question = 4u << 20, largest_input = 16u << 20,
                      largest_program = 256u << 20;
// Of a script or an input that is shown as text.
constexpr std::size_t largest_shown = 256u << 10;

// Text as a person will see it. Throws Error: bad_argument (it is no UTF-8, so that two different
// ones could look the same).
inline json::string shown_text(std::string_view text, const char* what) {
    for (auto rest = text; !rest.empty();) {
        const auto point = detail::decode_utf8(rest);
        if (!point.valid || detail::is_surrogate(point.value))
            throw Error(errc::bad_argument, std::string(what) +
                                                " of the program is no UTF-8, and cannot be put "
                                                "before anybody");
        rest.remove_prefix(point.size);
    }
    return json::string(text);
}

// The text of a sealed file, or what is known of one that is too long.
inline awaitable<json::string> sealed_text(const SealedFile& file, const char* what) {
    if (file.size() <= largest_shown) co_return shown_text(file.text(), what);
    const auto digest = co_await file.sha256();
    co_return json::string("[" + std::to_string(file.size()) + " bytes, sha256 " + digest +
                           ", too long to be shown]");
}

// copy, input: -1 where there is none; they and the question stay open meanwhile. Throws Error:
// bad_argument (it cannot be shown), io_error.
inline awaitable<json::object> program_arguments(int question, int copy, int input) {
    const auto asked = SealedFile(question, largest_question).text();
    json::string path, directory, from;
    json::array argv, descriptors;
    std::vector<std::string> environment, changed;
    bool writable = false, script = false;
    for (std::string_view rest = asked; !rest.empty();) {
        std::uint32_t size = 0;
        if (rest.size() < 1 + sizeof size)
            throw Error(errc::bad_argument, "the question about a program is malformed");
        const char letter = rest.front();
        std::memcpy(&size, rest.data() + 1, sizeof size);
        rest.remove_prefix(1 + sizeof size);
        if (size > rest.size())
            throw Error(errc::bad_argument, "the question about a program is malformed");
        const auto text = rest.substr(0, size);
        rest.remove_prefix(size);
        if (letter == 'p') path = shown_text(text, "the path");
        if (letter == 'w') writable = true;
        if (letter == 's') script = true;
        if (letter == 'a') argv.emplace_back(shown_text(text, "an argument"));
        if (letter == 'd') directory = shown_text(text, "the working directory");
        if (letter == 'i') from = shown_text(text, "the input");
        if (letter == 'f') descriptors.emplace_back(shown_text(text, "a descriptor"));
        if (letter == 'e')
            environment.emplace_back(std::string(text.find('=') == text.npos ? "unset " : "") +
                                     std::string(shown_text(text, "a variable")));
        if (letter == 'n') changed.emplace_back(shown_text(text, "a variable's name"));
    }
    json::object arguments;
    // A rule about "path" is not about what code can write.
    arguments[writable ? "writable_path" : "path"] = std::move(path);
    arguments["argv"] = std::move(argv);
    arguments["cwd"] = std::move(directory);
    if (input >= 0) {
        const SealedFile given(input, largest_input);
        auto text = co_await sealed_text(given, "input_script");
        arguments["input_script"] = std::move(text);
    } else {
        arguments["input"] = "[" + std::string(from) + "]";
    }
    if (!descriptors.empty()) arguments["descriptors"] = std::move(descriptors);
    const auto sorted = [](std::vector<std::string> names) {
        std::sort(names.begin(), names.end());
        names.erase(std::unique(names.begin(), names.end()), names.end());
        return json::array(names.begin(), names.end());
    };
    // Of two with one name programs take one or the other.
    std::sort(environment.begin(), environment.end());
    arguments["environment"] = json::array(environment.begin(), environment.end());
    arguments["changed_variables"] = sorted(std::move(changed));
    arguments["writable"] = writable;
    if (copy < 0) co_return arguments;
    const SealedFile program(copy, largest_program);
    auto digest = co_await program.sha256();
    arguments["sha256"] = std::move(digest);
    if (script) {
        auto text = co_await sealed_text(program, "script");
        arguments["script"] = std::move(text);
    }
    co_return arguments;
}

}  // namespace tools
}  // namespace ipybox
