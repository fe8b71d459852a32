#pragma once
// Times as files have them.
#include <chrono>
#include <ctime>
#include <string>

namespace ipybox::detail {

// "2030-12-31T23:59:59Z"; parts of a second are cut off.
inline std::string utc_time(std::chrono::system_clock::time_point time) {
    const std::time_t seconds = std::chrono::system_clock::to_time_t(time);
    std::tm parts{};
    ::gmtime_r(&seconds, &parts);
    char text[64];
    return std::string(text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts));
}

}  // namespace ipybox::detail
