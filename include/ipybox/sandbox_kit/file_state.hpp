#pragma once
// Whether a file is still what it was.
#include <sys/stat.h>

#include <filesystem>
#include <string>

namespace ipybox::sandbox_kit {

// Another text when the file or directory at `path`, behind links, was replaced or changed since,
// or another entry is in the directory; "-" when there is none.
inline std::string file_state(const std::filesystem::path& path) {
    struct stat status{};
    if (::stat(path.c_str(), &status) != 0) return "-";
    std::string text;
    // Whoever writes a file can set its time of modification, but not that of the change.
    for (const auto number :
         {static_cast<long long>(status.st_dev), static_cast<long long>(status.st_ino),
          static_cast<long long>(status.st_size), static_cast<long long>(status.st_ctim.tv_sec),
          static_cast<long long>(status.st_ctim.tv_nsec)})
        text += std::to_string(number) + ":";
    return text;
}

}  // namespace ipybox::sandbox_kit
