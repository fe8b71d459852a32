#pragma once
// A picture that a cell showed.
#include <boost/json/object.hpp>
#include <initializer_list>
#include <ipybox/detail/base64.hpp>
#include <ipybox/detail/json_members.hpp>
#include <ipybox/mcp/result_text.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace ipybox::executor {

struct Picture {
    std::string bytes, type;  // type: image/png, image/jpeg, image/gif or image/webp
};

// The picture of a MIME bundle, if it has one of a type that models take and whose bytes are that.
inline std::optional<Picture> picture_of(const boost::json::object& display) {
    for (const std::string_view mime : {"image/png", "image/jpeg", "image/gif", "image/webp"}) {
        const auto* encoded = detail::find_string(display, mime);
        if (!encoded) continue;
        auto image = detail::decode_base64(*encoded);
        const auto type = image ? mcp::image_type(*image) : std::string_view();
        if (!type.empty()) return Picture{std::move(*image), std::string(type)};
    }
    return std::nullopt;
}

}  // namespace ipybox::executor
