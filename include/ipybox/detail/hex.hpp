#pragma once
// Bytes in hexadecimal.
#include <openssl/rand.h>
#include <openssl/sha.h>

#include <cstddef>
#include <ipybox/error.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ipybox::detail {

inline std::string hex(std::span<const unsigned char> bytes) {
    static constexpr char digits[] = "0123456789abcdef";
    std::string text;
    text.reserve(2 * bytes.size());
    for (const unsigned char byte : bytes) {
        text += digits[byte >> 4];
        text += digits[byte & 15];
    }
    return text;
}

inline std::string sha256_hex(std::string_view data) {
    unsigned char digest[SHA256_DIGEST_LENGTH];
    ::SHA256(reinterpret_cast<const unsigned char*>(data.data()), data.size(), digest);
    return hex(digest);
}

// `size` random bytes, so twice as many characters: a key, a token, a name that nobody guesses.
// Throws Error: io_error.
inline std::string random_hex(std::size_t size) {
    std::vector<unsigned char> bytes(size);
    if (RAND_bytes(bytes.data(), static_cast<int>(size)) != 1)
        throw Error(errc::io_error, "OpenSSL has no random numbers");
    return hex(bytes);
}

}  // namespace ipybox::detail
