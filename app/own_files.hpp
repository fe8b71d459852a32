#pragma once
// Files that a start obeys, as long as no code in a sandbox could have written them.
#include <filesystem>
#include <ipybox/config.hpp>
#include <ipybox/detail/within.hpp>
#include <ipybox/sandbox_kit/writable_places.hpp>
#include <optional>
#include <string>

namespace ipybox::app {

// Whether it is what the caller's shell opened, as for <(command). A pipe in a directory is none:
// whoever can write there could have made it.
inline bool is_stream(const std::filesystem::path& file) {
    std::error_code error;
    const auto named = std::filesystem::absolute(file);
    return named == named.lexically_normal() &&
           (named == "/dev/stdin" || detail::within(named, "/dev/fd") ||
            detail::within(named, "/proc/self/fd")) &&
           !std::filesystem::is_regular_file(named, error);
}

// The place in which code in a sandbox could have written the file, if it could. What is absent, or
// a stream, lies in none.
inline std::optional<std::filesystem::path> written_in(const std::filesystem::path& file) {
    std::error_code error;
    if (is_stream(file) || !std::filesystem::exists(file, error)) return std::nullopt;
    return writable_places().holds(std::filesystem::absolute(file), sandbox_kit::Writer::confined);
}

// Throws Error: denied (code could have written the file), io_error (the record of places).
inline void require_own(const std::string& file) {
    if (const auto place = written_in(file))
        throw Error(errc::denied, file + ": code in a sandbox could have written it, in " +
                                      place->string() +
                                      ": look at it, and put it where no kernel may write, such "
                                      "as ~/.config/ipybox");
}

// A file of settings that a flag names. Throws what require_own() and read_text_file() throw.
inline std::string read_own_file(const std::string& file) {
    require_own(file);
    return read_text_file(file);
}

// The variables of .env, as read_env_file() does; none, and a warning, where code could have
// written it.
inline Variables read_own_env(const std::filesystem::path& directory, const Logger& logger) {
    const auto file = directory / ".env";
    const auto place = written_in(file);
    if (!place) return read_env_file(directory, logger);
    logger(LogLevel::warning, std::filesystem::absolute(file).lexically_normal().string() +
                                  " is not read: code in a sandbox could have written it, in " +
                                  place->string() +
                                  "; put what is yours of it into the environment");
    return {};
}

}  // namespace ipybox::app
