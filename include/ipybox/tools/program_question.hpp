#pragma once
// What the launcher's broker asks about a program, as a call's arguments; see
// launcher/question.hpp.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json/object.hpp>
#include <boost/json/string.hpp>
#include <cstdint>
#include <cstring>
#include <ipybox/detail/hex.hpp>
#include <ipybox/detail/unique_fd.hpp>
#include <ipybox/detail/utf8.hpp>
#include <ipybox/error.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ipybox {
namespace json = boost::json;

namespace tools {

// A sealed file in memory: nobody can change it any more.
class SealedFile {
public:
    // Throws Error: bad_argument (it is no such file, or larger than `most` bytes).
    SealedFile(int file, std::size_t most) {
        constexpr int all = F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK;
        const int seals = ::fcntl(file, F_GET_SEALS);
        struct stat status{};
        if (seals < 0 || (seals & all) != all || ::fstat(file, &status) != 0 ||
            static_cast<std::uint64_t>(status.st_size) > most)
            throw Error(errc::bad_argument,
                        "what would be started cannot be shown: it is larger than " +
                            std::to_string(most >> 10) + " KiB, or not sealed");
        size_ = static_cast<std::size_t>(status.st_size);
        if (size_ == 0) return;
        void* const place = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0);
        if (place == MAP_FAILED)
            throw Error(errc::io_error, "what would be started cannot be read");
        data_ = static_cast<const char*>(place);
    }
    SealedFile(const SealedFile&) = delete;
    SealedFile& operator=(const SealedFile&) = delete;
    ~SealedFile() {
        if (data_ != nullptr) ::munmap(const_cast<char*>(data_), size_);
    }
    std::string_view text() const noexcept { return {data_, size_}; }

private:
    const char* data_ = nullptr;
    std::size_t size_ = 0;
};

constexpr std::size_t largest_question = 4u << 20, largest_program = 256u << 20;
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

// Adds `key` with the text of a sealed file, or what is known of one that is too long.
inline void add_sealed(json::object& arguments, const char* key, std::string_view text) {
    if (text.size() > largest_shown)
        arguments[key] = "[" + std::to_string(text.size()) + " bytes, sha256 " +
                         detail::sha256_hex(text) + ", too long to be shown]";
    else
        arguments[key] = shown_text(text, key);
}

// copy, input: -1 where there is none. Throws Error: bad_argument (it cannot be shown).
inline json::object program_arguments(int question, int copy, int input) {
    const SealedFile file(question, largest_question);
    json::string path, directory, from;
    json::array argv, descriptors;
    std::vector<std::string> environment, changed;
    bool writable = false, script = false;
    for (auto rest = file.text(); !rest.empty();) {
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
    if (input >= 0)
        add_sealed(arguments, "input_script", SealedFile(input, largest_program).text());
    else
        arguments["input"] = "[" + std::string(from) + "]";
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
    if (copy < 0) return arguments;
    const SealedFile program(copy, largest_program);
    arguments["sha256"] = detail::sha256_hex(program.text());
    if (script) add_sealed(arguments, "script", program.text());
    return arguments;
}

}  // namespace tools
}  // namespace ipybox
