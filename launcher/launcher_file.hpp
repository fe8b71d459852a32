#pragma once
// The launcher as a guard in front of what a sandbox starts on the host.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ipybox/detail/unique_fd.hpp>
#include <ipybox/error.hpp>
#include <ipybox/sandbox_kit/process.hpp>
#include <iterator>
#include <launcher_image.hpp>
#include <string>
#include <utility>
#include <vector>

namespace ipybox::launcher {

// The launcher as a file that can be executed and never changes, made when it is first needed.
// Throws Error: io_error.
inline int launcher_file() {
    static const UniqueFd file = [] {
        constexpr unsigned executable = 0x10;  // MFD_EXEC; before Linux 6.3 all of them are
        constexpr unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
        UniqueFd made(::memfd_create("ipybox-launcher", flags | executable));
        if (!made && errno == EINVAL) made.reset(::memfd_create("ipybox-launcher", flags));
        const auto image = launcher_image();
        if (!made ||
            ::write(made.get(), image.data(), image.size()) != static_cast<ssize_t>(image.size()) ||
            ::fcntl(made.get(), F_ADD_SEALS,
                    F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) != 0)
            throw Error(errc::io_error, std::string("cannot keep the launcher in memory (") +
                                            std::strerror(errno) +
                                            "); the setting vm.memfd_noexec must be below 2");
        return made;
    }();
    return file.get();
}

// Puts the guard (see guard.hpp) before the request's command; words: its own, before the command.
// Throws Error: io_error.
inline void start_by_guard(SpawnRequest& request, std::vector<std::string> words = {}) {
    constexpr int image = 9;  // below what sandboxes hand over; the guard closes it
    std::vector<std::string> argv = {"/proc/self/fd/" + std::to_string(image), "guard"};
    for (auto* more : {&words, &request.argv})
        std::move(more->begin(), more->end(), std::back_inserter(argv));
    request.argv = std::move(argv);
    request.fds.emplace_back(launcher_file(), image);
    request.ends_its_tree = true;
}

}  // namespace ipybox::launcher
