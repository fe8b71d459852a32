#pragma once
#include <ipybox/mcp/handler.hpp>

#include <ipybox/compilation.hpp>

namespace ipybox {

// ---- content ----
IPYBOX_DECL json::object McpContent::text(std::string_view text) {
    return {{"type", "text"}, {"text", text}};
}

IPYBOX_DECL json::object McpContent::image(std::string_view bytes, std::string_view mime_type) {
    return {{"type", "image"}, {"data", detail::encode_base64(bytes)}, {"mimeType", mime_type}};
}

IPYBOX_DECL json::object McpContent::audio(std::string_view bytes, std::string_view mime_type) {
    return {{"type", "audio"}, {"data", detail::encode_base64(bytes)}, {"mimeType", mime_type}};
}

IPYBOX_DECL json::object McpContent::link(std::string_view uri, std::string_view name,
                                          std::string_view mime_type) {
    json::object block{{"type", "resource_link"}, {"uri", uri}, {"name", name}};
    if (!mime_type.empty()) block.emplace("mimeType", mime_type);
    return block;
}

IPYBOX_DECL json::object McpContent::embedded(json::object contents) {
    return {{"type", "resource"}, {"resource", std::move(contents)}};
}

IPYBOX_DECL json::object McpContent::text_of(std::string_view uri, std::string_view text,
                                             std::string_view mime_type) {
    return {{"uri", uri}, {"mimeType", mime_type}, {"text", text}};
}

IPYBOX_DECL json::object McpContent::blob_of(std::string_view uri, std::string_view bytes,
                                             std::string_view mime_type) {
    return {{"uri", uri}, {"mimeType", mime_type}, {"blob", detail::encode_base64(bytes)}};
}

IPYBOX_DECL json::object McpContent::message(std::string_view role, json::object content) {
    return {{"role", role}, {"content", std::move(content)}};
}

}  // namespace ipybox
