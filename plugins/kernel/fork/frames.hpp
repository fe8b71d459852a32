#pragma once
// What travels between the host and a kernel of ipybox's own: frames on a stream, as
// python/ipybox_kernel/frames.py has them.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace ipybox::forked {

// u32 in little endian with the length of the payload, one byte of kind, the payload.
inline constexpr std::size_t frame_head = 5;

inline void append_frame(std::string& out, char kind, std::string_view payload) {
    const auto size = static_cast<std::uint32_t>(payload.size());
    for (unsigned shift = 0; shift < 32; shift += 8) out += static_cast<char>(size >> shift & 0xff);
    out += kind;
    out += payload;
}

struct Frame {
    char kind;
    std::string_view payload;
};

// Takes frames out of bytes as they come. What a kernel sends is its code's: sizes are looked at
// before anything is kept.
class FrameReader {
public:
    // The head of the frame that comes next, as soon as it is whole.
    struct Head {
        char kind;
        std::size_t size;
    };
    std::optional<Head> head() const {
        if (bytes_.size() - at_ < frame_head) return std::nullopt;
        std::size_t size = 0;
        for (unsigned i = 0; i < 4; ++i)
            size |= std::size_t{static_cast<unsigned char>(bytes_[at_ + i])} << 8 * i;
        return Head{bytes_[at_ + 4], size};
    }
    // The next frame, if it is whole; valid until the next call of anything.
    std::optional<Frame> next() {
        const auto found = head();
        if (!found || bytes_.size() - at_ - frame_head < found->size) return std::nullopt;
        const Frame frame{found->kind,
                          std::string_view(bytes_).substr(at_ + frame_head, found->size)};
        at_ += frame_head + found->size;
        return frame;
    }
    // Leaves out the frame whose head has come, and what follows of it.
    void skip() {
        const auto found = head();
        if (found) skipped_ = frame_head + found->size;
        drop_skipped();
    }
    bool skipping() const noexcept { return skipped_ > 0; }

    void add(std::string_view more) {
        if (at_ > 0) {
            bytes_.erase(0, at_);
            at_ = 0;
        }
        // What a large frame has taken is given back.
        if (bytes_.empty() && bytes_.capacity() > (std::size_t{1} << 20)) bytes_ = std::string();
        bytes_ += more;
        drop_skipped();
    }

private:
    void drop_skipped() {
        const auto here = std::min(skipped_, bytes_.size() - at_);
        at_ += here;
        skipped_ -= here;
    }

    std::string bytes_;
    std::size_t at_ = 0;       // what is before was taken
    std::size_t skipped_ = 0;  // bytes that are still to be left out
};

}  // namespace ipybox::forked
