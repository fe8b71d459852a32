#pragma once
// Signed JSON Web Tokens, and the keys that sign them: client assertions (RFC 7523) and proofs of
// possession (RFC 9449).
#include <openssl/core_names.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>

#include <algorithm>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <ipybox/detail/base64.hpp>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/error.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace ipybox::detail {

// RFC 4648 base64url without padding.
inline std::string encode_base64url(std::string_view bytes) {
    std::string text = encode_base64(bytes);
    while (text.ends_with('=')) text.pop_back();
    for (char& c : text) c = c == '+' ? '-' : c == '/' ? '_' : c;
    return text;
}

inline std::string sha256(std::string_view text) {
    std::string digest(32, '\0');
    unsigned int size = 0;
    if (EVP_Digest(text.data(), text.size(), reinterpret_cast<unsigned char*>(digest.data()), &size,
                   EVP_sha256(), nullptr) != 1)
        throw Error(errc::io_error, "OpenSSL cannot compute SHA-256");
    return digest;
}

// `bytes` random bytes, as base64url: 32 make 43 characters, what PKCE asks for at least.
inline std::string random_text(int bytes = 32) {
    std::string raw(static_cast<std::size_t>(bytes), '\0');
    if (RAND_bytes(reinterpret_cast<unsigned char*>(raw.data()), bytes) != 1)
        throw Error(errc::io_error, "OpenSSL has no random numbers");
    return encode_base64url(raw);
}

// A private key that signs: RSA, EC on P-256, P-384 or P-521, or Ed25519.
class SigningKey {
public:
    // Reads a PEM without a passphrase. Throws Error: bad_config (it is none; names `what`, never
    // the key).
    static SigningKey from_pem(std::string_view pem, const std::string& what) {
        const std::unique_ptr<BIO, decltype(&BIO_free)> bio(
            BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), &BIO_free);
        // Without a callback of ours OpenSSL would ask the terminal for a passphrase.
        const auto no_passphrase = [](char*, int, int, void*) { return -1; };
        SigningKey key(bio ? PEM_read_bio_PrivateKey(bio.get(), nullptr, +no_passphrase, nullptr)
                           : nullptr);
        ERR_clear_error();
        if (!key.key_)
            throw Error(errc::bad_config,
                        what + ": is no private key in PEM form without a passphrase");
        if (key.algorithm().empty())
            throw Error(errc::bad_config,
                        what +
                            ": keys of this kind cannot sign tokens; use EC (P-256, P-384, "
                            "P-521), RSA of at least 2048 bits, or Ed25519");
        return key;
    }
    // A fresh key on P-256. Throws Error: io_error.
    static SigningKey make() {
        SigningKey key(EVP_EC_gen("P-256"));
        if (!key.key_) throw Error(errc::io_error, "OpenSSL cannot make a key");
        return key;
    }

    // The name of its signature algorithm in JOSE: ES256, ES384, ES512, RS256 or EdDSA.
    std::string_view algorithm() const {
        switch (EVP_PKEY_get_base_id(key_.get())) {
            case EVP_PKEY_RSA:
                return EVP_PKEY_get_bits(key_.get()) >= 2048 ? "RS256" : "";
            case EVP_PKEY_ED25519:
                return "EdDSA";
            case EVP_PKEY_EC: {
                char group[32] = {};
                EVP_PKEY_get_group_name(key_.get(), group, sizeof group, nullptr);
                const std::string_view name = group;
                if (name == "prime256v1" || name == "P-256") return "ES256";
                if (name == "secp384r1" || name == "P-384") return "ES384";
                if (name == "secp521r1" || name == "P-521") return "ES512";
                return "";
            }
            default:
                return "";
        }
    }

    // PKCS #8, for a file of ours. Throws Error: io_error.
    std::string pem() const {
        const std::unique_ptr<BIO, decltype(&BIO_free)> bio(BIO_new(BIO_s_mem()), &BIO_free);
        char* data = nullptr;
        if (!bio || PEM_write_bio_PKCS8PrivateKey(bio.get(), key_.get(), nullptr, nullptr, 0,
                                                  nullptr, nullptr) != 1)
            throw Error(errc::io_error, "OpenSSL cannot write a key");
        const long size = BIO_get_mem_data(bio.get(), &data);
        return std::string(data, static_cast<std::size_t>(size));
    }

    // The public half as a JWK; keys on P-256 only. Throws Error: bad_argument.
    boost::json::object public_jwk() const {
        unsigned char point[65];  // 4, x, y
        std::size_t size = 0;
        if (algorithm() != "ES256" ||
            EVP_PKEY_get_octet_string_param(key_.get(), OSSL_PKEY_PARAM_PUB_KEY, point,
                                            sizeof point, &size) != 1 ||
            size != sizeof point || point[0] != 4)
            throw Error(errc::bad_argument, "only keys on P-256 are published as a JWK");
        const std::string_view text(reinterpret_cast<const char*>(point), size);
        // In the order of RFC 7638, so that serializing it gives what a thumbprint is made of.
        boost::json::object jwk;
        jwk["crv"] = "P-256";
        jwk["kty"] = "EC";
        jwk["x"] = encode_base64url(text.substr(1, 32));
        jwk["y"] = encode_base64url(text.substr(33));
        return jwk;
    }
    std::string thumbprint() const { return encode_base64url(sha256(write_json(public_jwk()))); }

    // The signature as JOSE wants it. Throws Error: io_error.
    std::string sign(std::string_view text) const {
        const auto name = algorithm();
        const EVP_MD* digest = name == "EdDSA"   ? nullptr
                               : name == "ES384" ? EVP_sha384()
                               : name == "ES512" ? EVP_sha512()
                                                 : EVP_sha256();
        const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(),
                                                                              &EVP_MD_CTX_free);
        const auto* data = reinterpret_cast<const unsigned char*>(text.data());
        std::size_t size = 0;
        std::string signature;
        const bool signed_ =
            context &&
            EVP_DigestSignInit(context.get(), nullptr, digest, nullptr, key_.get()) == 1 &&
            EVP_DigestSign(context.get(), nullptr, &size, data, text.size()) == 1 &&
            (signature.resize(size),
             EVP_DigestSign(context.get(), reinterpret_cast<unsigned char*>(signature.data()),
                            &size, data, text.size()) == 1);
        if (!signed_) throw Error(errc::io_error, "OpenSSL cannot sign");
        signature.resize(size);
        return name.starts_with("ES") ? fixed_size(signature) : signature;
    }

private:
    explicit SigningKey(EVP_PKEY* key) : key_(key, &EVP_PKEY_free) {}

    // OpenSSL's DER sequence of two numbers as the two numbers themselves (RFC 7518, 3.4).
    std::string fixed_size(const std::string& der) const {
        const auto* data = reinterpret_cast<const unsigned char*>(der.data());
        const std::unique_ptr<ECDSA_SIG, decltype(&ECDSA_SIG_free)> parsed(
            d2i_ECDSA_SIG(nullptr, &data, static_cast<long>(der.size())), &ECDSA_SIG_free);
        const int half = (EVP_PKEY_get_bits(key_.get()) + 7) / 8;
        std::string raw(static_cast<std::size_t>(half) * 2, '\0');
        auto* out = reinterpret_cast<unsigned char*>(raw.data());
        if (!parsed || BN_bn2binpad(ECDSA_SIG_get0_r(parsed.get()), out, half) != half ||
            BN_bn2binpad(ECDSA_SIG_get0_s(parsed.get()), out + half, half) != half)
            throw Error(errc::io_error, "OpenSSL cannot sign");
        return raw;
    }

    std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key_;
};

// A signed token; "alg" is put into the header.
inline std::string make_jwt(boost::json::object header, const boost::json::object& claims,
                            const SigningKey& key) {
    header["alg"] = key.algorithm();
    const std::string text =
        encode_base64url(write_json(header)) + "." + encode_base64url(write_json(claims));
    return text + "." + encode_base64url(key.sign(text));
}

// What a token says, unverified: for tokens of our own. Empty for what is none.
inline boost::json::object jwt_claims(std::string_view jwt) {
    jwt.remove_prefix(std::min(jwt.size(), jwt.find('.') + 1));
    std::string text(jwt.substr(0, jwt.find('.')));
    for (char& c : text) c = c == '-' ? '+' : c == '_' ? '/' : c;
    while (text.size() % 4 != 0) text += '=';
    boost::system::error_code error;
    auto value = boost::json::parse(decode_base64(text).value_or(""), error);
    return error || !value.is_object() ? boost::json::object() : std::move(value.get_object());
}

}  // namespace ipybox::detail
