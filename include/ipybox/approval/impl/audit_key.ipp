#pragma once
#include <ipybox/approval/audit_key.hpp>

#include <fcntl.h>
#include <openssl/pem.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <ipybox/compilation.hpp>
#include <ipybox/config.hpp>
#include <ipybox/detail/base64.hpp>
#include <ipybox/detail/beneath.hpp>
#include <ipybox/detail/hex.hpp>
#include <ipybox/detail/unique_fd.hpp>
#include <ipybox/error.hpp>
#include <optional>
#include <system_error>

namespace ipybox::approval {

inline constexpr const char* audit_key_file = "key.pem";

using Bio = std::unique_ptr<BIO, decltype(&BIO_free_all)>;

inline Bio memory_of(std::string_view text) {
    return {BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), &BIO_free_all};
}
inline std::string text_of(const Bio& memory) {
    char* data = nullptr;
    const long size = BIO_get_mem_data(memory.get(), &data);
    return size > 0 ? std::string(data, static_cast<std::size_t>(size)) : std::string();
}

IPYBOX_DECL std::filesystem::path audit_directory(const std::filesystem::path& state_directory) {
    const auto state = state_directory.empty() ? config::state_directory() : state_directory;
    return state.empty() ? state : state / "audit";
}

IPYBOX_DECL int open_audit_directory(const std::filesystem::path& directory) {
    if (directory.empty())
        throw Error(errc::bad_config,
                    "an audit log needs a directory for its key and its newest head: set HOME or "
                    "XDG_STATE_HOME");
    std::error_code error;
    std::filesystem::create_directories(directory.parent_path().parent_path(), error);
    // Others pass through the upper one, as WritablePlaces makes it, and see nothing.
    if (!error) ::mkdir(directory.parent_path().c_str(), 0711);
    if (!error) ::mkdir(directory.c_str(), 0700);
    const int handle = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct stat status{};
    UniqueFd owned(handle);
    if (!owned || ::fstat(handle, &status) != 0)
        throw Error(errc::io_error, "the directory " + directory.string() +
                                        " for the key and the newest heads of audit logs cannot be "
                                        "made or opened: " +
                                        std::strerror(errno) + "; set XDG_STATE_HOME");
    if (status.st_uid != ::geteuid() || (status.st_mode & 077) != 0)
        throw Error(errc::bad_config, directory.string() +
                                          ": others can reach the key and the newest heads of "
                                          "audit logs: it must be yours alone, mode 0700");
    return owned.release();
}

}  // namespace ipybox::approval

namespace ipybox {

IPYBOX_DECL AuditKey::AuditKey(EVP_PKEY* key) : key_(key, &EVP_PKEY_free) {
    std::array<unsigned char, 32> bytes{};
    std::size_t size = bytes.size();
    if (key == nullptr || EVP_PKEY_get_base_id(key) != EVP_PKEY_ED25519 ||
        EVP_PKEY_get_raw_public_key(key, bytes.data(), &size) != 1 || size != bytes.size())
        throw Error(errc::bad_argument, "no key of Ed25519");
    id_ = detail::sha256_hex({reinterpret_cast<const char*>(bytes.data()), size}).substr(0, 16);
}

IPYBOX_DECL AuditKey AuditKey::of(const std::filesystem::path& directory) {
    const UniqueFd handle(approval::open_audit_directory(directory));
    if (::flock(handle.get(), LOCK_EX) != 0) detail::throw_io_error(directory.string());
    const auto path = directory / approval::audit_key_file;
    const UniqueFd file(::openat(handle.get(), approval::audit_key_file,
                                 O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    if (!file && errno == ENOENT) return make(handle.get(), path);
    struct stat status{};
    std::string why;
    const auto text = detail::read_regular(file, 16u << 10, why);
    const std::string remedy =
        "; remove it and a new key is made, with which later heads are signed";
    if (!text || ::fstat(file.get(), &status) != 0)
        throw Error(errc::io_error,
                    path.string() + ", which signs audit logs, cannot be read: " + why + remedy);
    if (status.st_uid != ::geteuid() || (status.st_mode & 077) != 0)
        throw Error(
            errc::bad_config,
            path.string() + ", which signs audit logs: others can read or write it" + remedy);
    const auto memory = approval::memory_of(*text);
    EVP_PKEY* key = PEM_read_bio_PrivateKey(memory.get(), nullptr, nullptr, nullptr);
    try {
        return AuditKey(key);
    } catch (const Error& error) {
        throw Error(errc::bad_config, path.string() + ": " + error.detail() + remedy);
    }
}

IPYBOX_DECL AuditKey AuditKey::make(int directory, const std::filesystem::path& path) {
    AuditKey made(EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519"));
    const approval::Bio memory(BIO_new(BIO_s_mem()), &BIO_free_all);
    if (PEM_write_bio_PKCS8PrivateKey(memory.get(), made.key_.get(), nullptr, nullptr, 0, nullptr,
                                      nullptr) != 1)
        throw Error(errc::io_error, "OpenSSL cannot write a key");
    const auto write = [&](const std::string& name, const std::string& text, mode_t mode) {
        const auto fresh = name + ".new";  // nobody else's, under the lock
        ::unlinkat(directory, fresh.c_str(), 0);
        const UniqueFd file(::openat(directory, fresh.c_str(),
                                     O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode));
        if (!file) detail::throw_io_error(path.string());
        detail::write_all(file.get(), text, path.string());
        if (::fdatasync(file.get()) != 0 ||
            ::renameat(directory, fresh.c_str(), directory, name.c_str()) != 0)
            detail::throw_io_error(path.string());
    };
    // First the half that verifies: a key whose signatures nobody knows would be of no use.
    write(made.id_ + ".pub", made.public_text(), 0600);
    write(approval::audit_key_file, approval::text_of(memory), 0600);
    return made;
}

IPYBOX_DECL AuditKey AuditKey::read_public(const std::filesystem::path& file) {
    const UniqueFd handle(::open(file.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    std::string why;
    const auto text = detail::read_regular(handle, 16u << 10, why);
    if (!text) throw Error(errc::bad_argument, file.string() + ": cannot be read: " + why);
    const auto memory = approval::memory_of(*text);
    EVP_PKEY* key = PEM_read_bio_PUBKEY(memory.get(), nullptr, nullptr, nullptr);
    try {
        return AuditKey(key);
    } catch (const Error&) {
        throw Error(errc::bad_argument,
                    file.string() +
                        ": is no public key of Ed25519 in PEM, as `ipybox audit key` "
                        "prints it");
    }
}

IPYBOX_DECL std::string AuditKey::public_text() const {
    const approval::Bio memory(BIO_new(BIO_s_mem()), &BIO_free_all);
    if (PEM_write_bio_PUBKEY(memory.get(), key_.get()) != 1)
        throw Error(errc::io_error, "OpenSSL cannot write a key");
    return approval::text_of(memory);
}

IPYBOX_DECL std::string AuditKey::sign(std::string_view text) const {
    const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(),
                                                                          &EVP_MD_CTX_free);
    std::string signature(64, '\0');
    std::size_t size = signature.size();
    if (!context || EVP_DigestSignInit(context.get(), nullptr, nullptr, nullptr, key_.get()) != 1 ||
        EVP_DigestSign(context.get(), reinterpret_cast<unsigned char*>(signature.data()), &size,
                       reinterpret_cast<const unsigned char*>(text.data()), text.size()) != 1)
        throw Error(errc::io_error, "OpenSSL cannot sign the audit log");
    return detail::encode_base64(signature);
}

IPYBOX_DECL bool AuditKey::signed_by(std::string_view text, std::string_view signature) const {
    const auto bytes = detail::decode_base64(signature);
    const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(),
                                                                          &EVP_MD_CTX_free);
    return bytes && context &&
           EVP_DigestVerifyInit(context.get(), nullptr, nullptr, nullptr, key_.get()) == 1 &&
           EVP_DigestVerify(context.get(), reinterpret_cast<const unsigned char*>(bytes->data()),
                            bytes->size(), reinterpret_cast<const unsigned char*>(text.data()),
                            text.size()) == 1;
}

}  // namespace ipybox
