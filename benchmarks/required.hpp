#pragma once
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace bench {

// An environment variable that scripts/bench sets. Throws std::runtime_error: it is not set.
inline std::string required(const char* name) {
    const char* value = std::getenv(name);
    if (value == nullptr)
        throw std::runtime_error(std::string(name) + " is not set: use scripts/bench");
    return value;
}

// What a command of the shell prints. Throws std::runtime_error: it cannot be started, or fails.
inline std::string output_of(const std::string& command) {
    std::FILE* const pipe = ::popen(command.c_str(), "r");
    if (pipe == nullptr) throw std::runtime_error("cannot be started: " + command);
    std::string output;
    char buffer[65536];
    while (const auto count = std::fread(buffer, 1, sizeof buffer, pipe))
        output.append(buffer, count);
    if (::pclose(pipe) != 0) throw std::runtime_error("failed: " + command);
    return output;
}

}  // namespace bench
