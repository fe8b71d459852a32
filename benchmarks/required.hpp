#pragma once
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

}  // namespace bench
