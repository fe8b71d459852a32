#pragma once
// Programs that the host itself runs: none is taken from a place where code in a sandbox could have
// put it.
#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <ipybox/detail/beneath.hpp>
#include <ipybox/detail/unique_fd.hpp>
#include <ipybox/error.hpp>
#include <ipybox/sandbox_kit/writable_places.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace ipybox {

// judged: what lies where code could write is not used. named: whoever configures names just this
// program and answers for it, or nothing confines the code.
enum class Trust { judged, named };

// Throws Error: denied (code could have changed `program` or what leads to it). To be asked again
// before each start of a program that was found earlier: a session may have made its place writable
// since. remedy: what to do about it.
inline void refuse_written(const std::filesystem::path& program,
                           std::string_view remedy = "install it elsewhere") {
    if (const auto place = writable_places().holds(program))
        throw Error(errc::denied,
                    program.string() +
                        " is not run on the host, because code in a sandbox could write " +
                        place->string() + ": " + std::string(remedy));
}

namespace sandbox_kit {
inline bool is_program(const std::filesystem::path& file) {
    std::error_code ignored;
    return std::filesystem::is_regular_file(file, ignored) &&
           ::faccessat(AT_FDCWD, file.c_str(), X_OK, AT_EACCESS) == 0;
}

// What tells a Python interpreter where its library is: the file of its virtual environment, and
// the directory that this names. Empty for an interpreter without, or another program.
inline std::vector<std::filesystem::path> environment_files(const std::filesystem::path& program) {
    std::filesystem::path configuration = program.parent_path().parent_path() / "pyvenv.cfg";
    std::error_code ignored;
    for (const auto& beside : {program.parent_path() / "pyvenv.cfg", configuration})
        if (std::filesystem::is_regular_file(configuration = beside, ignored)) break;
    if (!std::filesystem::is_regular_file(configuration, ignored)) return {};
    std::vector<std::filesystem::path> files{configuration};
    // Whoever could write it could have put anything there.
    constexpr std::size_t limit = 64u << 10;
    const UniqueFd file(
        ::open(configuration.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    std::string why;
    const auto text = detail::read_regular(file, limit, why);
    if (!text)
        throw Error(errc::denied, configuration.string() +
                                      " cannot be read, so that nobody knows what it leads to: " +
                                      why + "; make a new environment");
    std::istringstream lines(*text);
    for (std::string line; std::getline(lines, line);) {
        const auto equals = line.find('=');
        if (equals == line.npos || line.substr(0, line.find_first_of(" \t=")) != "home") continue;
        const auto first = line.find_first_not_of(" \t", equals + 1);
        if (first == line.npos || line[first] != '/') continue;
        files.emplace_back(line.substr(first, line.find_last_not_of(" \t\r") - first + 1));
    }
    return files;
}

// The directories of a PATH, in order. An empty or relative one would be where we happen to be.
inline std::vector<std::filesystem::path> search_directories(std::string_view path_variable) {
    std::vector<std::filesystem::path> directories;
    while (!path_variable.empty()) {
        const auto colon = path_variable.find(':');
        std::filesystem::path directory(path_variable.substr(0, colon));
        if (directory.is_absolute()) directories.push_back(std::move(directory));
        if (colon == std::string_view::npos) break;
        path_variable.remove_prefix(colon + 1);
    }
    return directories;
}
}  // namespace sandbox_kit

// The absolute directories of a PATH in which no code could write, for the environment of programs
// that look others up themselves. Throws what WritablePlaces::holds() throws.
inline std::string host_search_path(std::string_view path_variable) {
    std::string kept;
    for (const auto& directory : sandbox_kit::search_directories(path_variable))
        if (!writable_places().holds(directory))
            kept += (kept.empty() ? "" : ":") + directory.string();
    return kept;
}

// The absolute path of a program: `name` itself when it contains a slash, else the first match in
// the absolute directories of `path_variable`, those left out in which code could write; nullopt
// when no executable file is found. Throws Error: denied (a name with a slash lies where code could
// write), and what WritablePlaces::holds() throws; neither with Trust::named.
inline std::optional<std::filesystem::path> find_program(std::string_view name,
                                                         std::string_view path_variable,
                                                         Trust trust = Trust::judged) {
    namespace fs = std::filesystem;
    if (name.find('/') != std::string_view::npos) {
        std::error_code ignored;
        const auto file = fs::absolute(fs::path(name), ignored);
        if (!sandbox_kit::is_program(file)) return std::nullopt;
        if (trust == Trust::judged) refuse_written(file);
        return file;
    }
    if (name.empty()) return std::nullopt;
    for (const auto& directory : sandbox_kit::search_directories(path_variable)) {
        const auto file = directory / name;
        if (sandbox_kit::is_program(file) &&
            (trust == Trust::named || !writable_places().holds(file)))
            return file;
    }
    return std::nullopt;
}

}  // namespace ipybox
