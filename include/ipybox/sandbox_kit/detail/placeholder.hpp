#pragma once
// How what holds the place of an absent name is told from anything else: see Placeholders.
#include <sys/stat.h>

namespace ipybox::detail {

inline constexpr long placeholder_time =
    424'242;  // when it was last written, in seconds since 1970

// A directory still has to be empty for it.
inline bool is_placeholder(const struct stat& file) {
    return file.st_mtim.tv_sec == placeholder_time &&
           (S_ISDIR(file.st_mode) || (S_ISREG(file.st_mode) && file.st_size <= 1));
}

}  // namespace ipybox::detail
