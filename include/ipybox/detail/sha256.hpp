#pragma once
// SHA-256 of what comes in pieces.
#include <openssl/evp.h>

#include <array>
#include <ipybox/detail/hex.hpp>
#include <ipybox/error.hpp>
#include <memory>
#include <string>
#include <string_view>

namespace ipybox::detail {

// Throws Error: io_error (OpenSSL fails).
class Sha256 {
public:
    Sha256() : context_(EVP_MD_CTX_new()) {
        require(context_ && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
    }

    void add(std::string_view bytes) {
        require(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1);
    }

    // Of all that came so far; more may come.
    std::string hex() const {
        const Context now(EVP_MD_CTX_new());
        std::array<unsigned char, 32> digest{};
        require(now && EVP_MD_CTX_copy_ex(now.get(), context_.get()) == 1 &&
                EVP_DigestFinal_ex(now.get(), digest.data(), nullptr) == 1);
        return detail::hex(digest);
    }

private:
    struct Free {
        void operator()(EVP_MD_CTX* context) const noexcept { EVP_MD_CTX_free(context); }
    };
    using Context = std::unique_ptr<EVP_MD_CTX, Free>;

    static void require(bool done) {
        if (!done) throw Error(errc::io_error, "OpenSSL cannot compute SHA-256");
    }

    Context context_;
};

}  // namespace ipybox::detail
