#pragma once
// What a host and the relay inside a sandbox say to each other over one pair of streams. Shared
// with the relay, which has neither Boost nor exceptions.
#include <cstddef>
#include <cstdint>

namespace ipybox::sandbox_kit {

// A frame is a header of eight bytes, little endian, and for start and data `value` bytes more.
// Connections are numbered for each channel, by the side that opens them: the host where the guest
// listens, the guest where the host listens.
enum class MuxFrame : std::uint8_t {
    start = 1,  // host, once, first: what to run; see below
    ready,      // guest, once, first: value is mux_version
    open,       // a new connection
    data,       // of a connection
    close,      // no more data from this side; both sides send it once
    credit,     // value: so many bytes were passed on, and the other side may send as many more
    gone,       // host, after close: takes no data either, so that the guest's end is to be closed
    signal,     // host: value is the signal for the command, with connection 1 for its whole group
};

// The start frame holds records, each a letter, its text and a NUL:
//   a argument   e NAME=VALUE   k name of a variable to keep   d working directory
//   g port on which the relay listens for the guest   h port on which the guest listens
//   (channels are numbered in the order of g and h)
//   x file that must not be readable   u (nothing) Unix sockets must not work
//   p (nothing) no relay: become the command, whose standard streams these are
inline constexpr std::uint32_t mux_version = 1;
inline constexpr std::size_t mux_header_size = 8;
inline constexpr std::uint32_t mux_max_start = 4u << 20;
inline constexpr std::uint32_t mux_max_data = 32u << 10;
// Bytes of one connection and direction on their way at most: what a slow reader costs.
inline constexpr std::uint32_t mux_window = 256u << 10;
// Of one channel at the same time; more wait until others have ended.
inline constexpr unsigned mux_max_connections = 128;
inline constexpr unsigned mux_max_channels = 16;

struct MuxHeader {
    MuxFrame kind;
    std::uint8_t channel;
    std::uint16_t connection;
    std::uint32_t value;
};

inline void write_header(unsigned char* to, MuxHeader header) noexcept {
    to[0] = static_cast<unsigned char>(header.kind);
    to[1] = header.channel;
    for (int i = 0; i < 2; ++i) to[2 + i] = static_cast<unsigned char>(header.connection >> 8 * i);
    for (int i = 0; i < 4; ++i) to[4 + i] = static_cast<unsigned char>(header.value >> 8 * i);
}

inline MuxHeader read_header(const unsigned char* from) noexcept {
    MuxHeader header{static_cast<MuxFrame>(from[0]), from[1], 0, 0};
    header.connection = static_cast<std::uint16_t>(from[2] | from[3] << 8);
    for (int i = 0; i < 4; ++i) header.value |= std::uint32_t{from[4 + i]} << 8 * i;
    return header;
}

}  // namespace ipybox::sandbox_kit
