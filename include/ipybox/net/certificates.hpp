#pragma once
// The certificates of authorities, wherever this distribution keeps them.
#include <filesystem>
#include <optional>
#include <system_error>

namespace ipybox::net {

// The authorities that the administrator of this machine trusts, in one file, at one of the places
// that distributions have for it, by its real path, under which sandboxes show it; nullopt without
// any.
inline std::optional<std::filesystem::path> certificate_bundle() {
    for (const char* place :
         {"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt",
          "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/ssl/ca-bundle.pem",
          "/etc/pki/tls/cacert.pem", "/etc/ssl/cert.pem"}) {
        std::error_code error;
        const auto real = std::filesystem::canonical(place, error);
        if (!error && std::filesystem::is_regular_file(real, error)) return real;
    }
    return std::nullopt;
}

}  // namespace ipybox::net
