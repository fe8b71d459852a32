#pragma once
// Which file it is, whatever it is called.
#include <sys/stat.h>

#include <string>

namespace ipybox::detail {

inline bool same_file(const struct stat& one, const struct stat& other) noexcept {
    return one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

// DEVICE:INODE, by which the launcher is told what the host has seen.
inline std::string file_id(const struct stat& file) {
    return std::to_string(file.st_dev) + ":" + std::to_string(file.st_ino);
}

}  // namespace ipybox::detail
