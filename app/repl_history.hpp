#pragma once
// What a person typed at the prompt, kept for the next time.
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace ipybox::app {

// The file has a JSON string on each line and is the person's alone; it lies where no code of a
// sandbox can write. Several prompts may use it at once.
class ReplHistory {
public:
    // file: empty keeps nothing.
    explicit ReplHistory(std::filesystem::path file) : file_(std::move(file)) {}

    // repl-history.jsonl in ipybox's state directory; empty without one.
    static std::filesystem::path standard_file();
    const std::filesystem::path& file() const noexcept { return file_; }

    // What was typed, the oldest first. Throws Error: denied (code or others could have written the
    // file), io_error (it cannot be read).
    std::vector<std::string> load() const;
    // Appends a cell, unless it begins with a blank or is longer than 64 KiB. Throws what load()
    // throws.
    void add(std::string_view cell) const;

private:
    static constexpr std::size_t most = 2000;                      // cells that are kept
    static constexpr std::size_t longest = std::size_t{64} << 10;  // of one of them
    int open(int flags) const;
    void shorten(const std::vector<std::string>& lines) const;

    std::filesystem::path file_;
};

}  // namespace ipybox::app
