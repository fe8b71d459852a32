#pragma once
// Base64 as Jupyter and MCP carry bytes, and HTTP passwords.
#include <openssl/evp.h>

#include <optional>
#include <string>
#include <string_view>

namespace ipybox::detail {

// RFC 4648 base64 in one line, padded.
inline std::string encode_base64(std::string_view bytes) {
    std::string text((bytes.size() + 2) / 3 * 4 + 1, '\0');
    const int size = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                                     reinterpret_cast<const unsigned char*>(bytes.data()),
                                     static_cast<int>(bytes.size()));
    text.resize(static_cast<std::size_t>(size));
    return text;
}

// Decodes RFC 4648 base64, ignoring line breaks; nullopt when it is malformed.
inline std::optional<std::string> decode_base64(std::string_view text) {
    std::string clean;
    clean.reserve(text.size());
    for (const char c : text)
        if (c != '\n' && c != '\r' && c != ' ') clean += c;
    if (clean.size() % 4 != 0 || clean.size() > (1u << 30)) return std::nullopt;
    if (clean.empty()) return std::string();
    std::string bytes(clean.size() / 4 * 3, '\0');
    const int size = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()),
                                     reinterpret_cast<const unsigned char*>(clean.data()),
                                     static_cast<int>(clean.size()));
    if (size < 0) return std::nullopt;
    const std::size_t padding = clean.ends_with("==") ? 2 : clean.ends_with("=") ? 1 : 0;
    bytes.resize(static_cast<std::size_t>(size) - padding);
    return bytes;
}

}  // namespace ipybox::detail
