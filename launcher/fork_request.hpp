#pragma once
// What the host and a warm process say to each other about kernels: packets of one socket, each of
// one of these. Before the first the warm process has sent a JSON object, that it is ready.
#include <cstddef>
#include <cstdint>

namespace ipybox::launcher {

constexpr std::size_t most_filters = 4, most_descriptors = 16;

// Asks for a kernel. With descriptors: its link, stdout r w, stderr r w, its options (what
// confine.hpp knows, and --chdir PATH, each word ended by NUL), the filters, the sandbox's first
// process, and its group where there is one. Where programs are asked about the path of the
// interpreter follows, and with it come the two doors of broker.hpp, the other end of the second,
// and the launcher.
struct ForkRequest {
    std::uint32_t id;
    std::uint32_t filters, enters, has_group;  // how many; whether there is a sandbox, a group
    std::uint32_t path;                        // bytes of the interpreter's
};

struct ForkAnswer {
    enum Kind : std::uint32_t {
        exists,   // with a handle of the process
        refused,  // why follows, for people
        ended,
    };
    std::uint32_t id;
    std::uint32_t kind;
    std::int32_t code, status;  // of `ended`, as waitid() says it
};

}  // namespace ipybox::launcher
