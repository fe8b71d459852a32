#pragma once
// The key that signs the heads of audit logs: kept in the host's state directory, out of the reach
// of the code.
#include <openssl/evp.h>

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

namespace ipybox {

// A key of Ed25519, whole or its public half. Copies share it; may be used from any thread.
class AuditKey {
public:
    // The private key of the directory, made at its first use with mode 0600. directory: absolute;
    // made with mode 0700 where there is none. Throws Error: bad_config (others can read or write
    // the key or write the directory), io_error (it cannot be read or made).
    static AuditKey of(const std::filesystem::path& directory);
    // A public key in PEM, as `ipybox audit key` prints it. Throws Error: bad_argument (it is
    // none).
    static AuditKey read_public(const std::filesystem::path& file);

    // The first 16 hexadecimal digits of the SHA-256 of the 32 bytes of its public half.
    const std::string& id() const noexcept { return id_; }
    // The public half in PEM.
    std::string public_text() const;
    // A signature in Base64. Throws Error: io_error (OpenSSL fails; it has no private half).
    std::string sign(std::string_view text) const;
    // Whether that is a signature of the text by this key.
    bool signed_by(std::string_view text, std::string_view signature) const;

    // Where the public half of a key that this directory had lies.
    static std::filesystem::path public_file(const std::filesystem::path& directory,
                                             const std::string& id) {
        return directory / (id + ".pub");
    }

private:
    explicit AuditKey(EVP_PKEY* key);
    static AuditKey make(int directory, const std::filesystem::path& path);

    std::shared_ptr<EVP_PKEY> key_;
    std::string id_;
};

namespace approval {
// Where the key and the newest heads are, below a state directory; empty: ipybox's own, and there
// is none where the result is empty too.
std::filesystem::path audit_directory(const std::filesystem::path& state_directory = {});
// Opens the directory, which nobody else may write, and makes it where there is none. Throws as
// AuditKey::of() says.
int open_audit_directory(const std::filesystem::path& directory);
}  // namespace approval

}  // namespace ipybox

#ifndef IPYBOX_SEPARATE_COMPILATION
#include <ipybox/approval/impl/audit_key.ipp>
#endif
