#pragma once
// Which hosts may be reached: the grammar of host names and rules, and what kind an address is.
#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ipybox::net {

// 1 to 65535 in decimal without sign, space or leading zero.
inline std::optional<std::uint16_t> parse_port(std::string_view text) {
    std::uint16_t port = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
    if (error != std::errc() || end != text.data() + text.size() || text.front() == '0') return {};
    return port;
}

// "host:port" in two; the second is empty without a colon. An IPv6 address is not cut sensibly,
// which does not matter: no part of it is a host name.
inline std::pair<std::string_view, std::string_view> split_port(std::string_view text) {
    const auto colon = text.rfind(':');
    if (colon == text.npos) return {text, {}};
    return {text.substr(0, colon), text.substr(colon + 1)};
}

// The one spelling of a host name: lower case, no dot at its end. Nothing for what is not labels
// of letters, digits and inner hyphens (1 to 63 of them, 253 in all), or whose last label is a
// number in decimal, octal or hexadecimal: resolvers read that as an address.
inline std::optional<std::string> canonical_host(std::string_view text) {
    if (text.ends_with('.')) text.remove_suffix(1);
    if (text.empty() || text.size() > 253) return {};
    std::string host(text);
    const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
    for (std::size_t start = 0; start <= host.size();) {
        const auto end = std::min(host.find('.', start), host.size());
        const auto size = end - start;
        if (size == 0 || size > 63 || host[start] == '-' || host[end - 1] == '-') return {};
        for (auto i = start; i < end; ++i) {
            if (host[i] >= 'A' && host[i] <= 'Z') host[i] = static_cast<char>(host[i] - 'A' + 'a');
            if (!is_digit(host[i]) && host[i] != '-' && !(host[i] >= 'a' && host[i] <= 'z'))
                return {};
        }
        start = end + 1;
    }
    auto last = std::string_view(host).substr(host.rfind('.') + 1);
    const bool hexadecimal = last.starts_with("0x");
    if (hexadecimal) last.remove_prefix(2);
    const bool number = std::all_of(last.begin(), last.end(), [&](char c) {
        return is_digit(c) || (hexadecimal && c >= 'a' && c <= 'f');
    });
    if (number) return {};
    return host;
}

// HOST, *.HOST (the names below HOST, not HOST itself), and in a deny list * for every name; with
// :PORT for that port only, without it for every port, as in srt.
struct DomainRule {
    std::string host;  // canonical; empty for *
    bool wildcard = false;
    std::optional<std::uint16_t> port;

    // `name` is canonical.
    bool matches(std::string_view name, std::uint16_t to) const {
        if (port && *port != to) return false;
        if (!wildcard) return name == host;
        return host.empty() || (name.size() > host.size() + 1 && name.ends_with(host) &&
                                name[name.size() - host.size() - 1] == '.');
    }
};

enum class RuleList { allow, deny };

// Nothing for what is not a rule of such a list. A name has a dot or is localhost, so that no
// rule covers a whole top-level domain or a name that a search domain completes.
inline std::optional<DomainRule> parse_domain_rule(std::string_view text, RuleList list) {
    DomainRule rule;
    const auto [name, port] = split_port(text);
    if (name.size() != text.size()) {
        rule.port = parse_port(port);
        if (!rule.port) return {};
    }
    auto host = name;
    rule.wildcard = host.starts_with('*');
    if (host == "*") return list == RuleList::deny ? std::optional(rule) : std::nullopt;
    if (rule.wildcard) {
        if (!host.starts_with("*.")) return {};
        host.remove_prefix(2);
    }
    auto canonical = canonical_host(host);
    if (!canonical || host.ends_with('.')) return {};
    if (canonical->find('.') == canonical->npos && (rule.wildcard || *canonical != "localhost"))
        return {};
    rule.host = std::move(*canonical);
    return rule;
}

// An address as bytes in network order: IPv4 has 4, IPv6 16.
struct AddressBytes {
    std::array<unsigned char, 16> bytes{};
    std::size_t size = 0;

    AddressBytes(const void* data, std::size_t count) : size(std::min(count, bytes.size())) {
        std::memcpy(bytes.data(), data, size);
    }
    bool operator==(const AddressBytes&) const = default;
    bool within(const AddressBytes& net, unsigned prefix) const {
        if (size != net.size || prefix > size * 8) return false;
        const auto whole = static_cast<std::ptrdiff_t>(prefix / 8);
        if (!std::equal(bytes.begin(), bytes.begin() + whole, net.bytes.begin())) return false;
        const auto rest = static_cast<unsigned char>(0xFF00u >> (prefix % 8));
        return prefix % 8 == 0 || ((bytes[prefix / 8] ^ net.bytes[prefix / 8]) & rest) == 0;
    }
};

enum class AddressKind {
    public_,       // may be dialled
    this_machine,  // an address of one of this machine's interfaces
    loopback,
    link_local,
    metadata,  // where clouds answer with credentials
    multicast,
    unspecified,
    private_,   // RFC 1918, CGNAT, IPv6 unique and site local
    embedding,  // carries an IPv4 address: v4-mapped, NAT64, 6to4, Teredo …
    reserved,
};

inline std::string_view describe(AddressKind kind) {
    switch (kind) {
        case AddressKind::public_:
            return "a public address";
        case AddressKind::this_machine:
            return "an address of this machine";
        case AddressKind::loopback:
            return "a loopback address";
        case AddressKind::link_local:
            return "a link-local address";
        case AddressKind::metadata:
            return "a cloud's metadata address";
        case AddressKind::multicast:
            return "a multicast address";
        case AddressKind::unspecified:
            return "the unspecified address";
        case AddressKind::private_:
            return "a private address";
        case AddressKind::embedding:
            return "an IPv6 address that embeds an IPv4 one";
        case AddressKind::reserved:
            return "a reserved address";
    }
    return "an unknown address";
}

// `own` are the addresses of this machine's interfaces. Addresses set aside for documentation
// count as public: they lead nowhere, except in laboratories that use them as their internet.
inline AddressKind classify_address(const AddressBytes& address,
                                    const std::vector<AddressBytes>& own) {
    struct Range {
        std::array<unsigned char, 16> net;
        unsigned prefix;
        AddressKind kind;
    };
    using Kind = AddressKind;
    // The first that fits decides.
    static constexpr Range ranges4[] = {
        {{169, 254, 169, 254}, 32, Kind::metadata},
        {{169, 254, 170, 2}, 32, Kind::metadata},
        {{100, 100, 100, 200}, 32, Kind::metadata},
        {{168, 63, 129, 16}, 32, Kind::metadata},
        {{192, 0, 0, 192}, 32, Kind::metadata},
        {{0}, 32, Kind::unspecified},
        {{0}, 8, Kind::reserved},
        {{10}, 8, Kind::private_},
        {{100, 64}, 10, Kind::private_},
        {{127}, 8, Kind::loopback},
        {{169, 254}, 16, Kind::link_local},
        {{172, 16}, 12, Kind::private_},
        {{192, 0, 0}, 24, Kind::reserved},
        {{192, 88, 99}, 24, Kind::reserved},  // relays of 6to4
        {{192, 168}, 16, Kind::private_},
        {{198, 18}, 15, Kind::reserved},  // benchmarks
        {{224}, 4, Kind::multicast},
        {{240}, 4, Kind::reserved},
        {{0}, 0, Kind::public_},
    };
    static constexpr Range ranges6[] = {
        {{0xFD, 0, 0x0E, 0xC2}, 32, Kind::metadata},
        {{0xFD, 0, 0, 0xC1, 0, 0, 0, 0, 0, 0, 0, 0, 0xA9, 0xFE, 0xA9, 0xFE}, 128, Kind::metadata},
        {{0xFD, 0, 0, 0x42, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x42}, 128, Kind::metadata},
        {{0xFD, 0, 0xA9, 0xFE, 0xA9, 0xFE, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}, 128, Kind::metadata},
        {{0xFD, 0, 0x01, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x01, 0, 0x02, 0}, 128, Kind::metadata},
        {{0xFD, 0x20, 0, 0xCE, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x02, 0x54}, 128, Kind::metadata},
        {{0}, 128, Kind::unspecified},
        {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}, 128, Kind::loopback},
        {{0}, 96, Kind::embedding},                                         // v4-compatible
        {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF}, 96, Kind::embedding},  // v4-mapped
        {{0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF}, 96, Kind::embedding},        // SIIT
        {{0, 0x64, 0xFF, 0x9B}, 96, Kind::embedding},                       // NAT64
        {{0, 0x64, 0xFF, 0x9B, 0, 1}, 48, Kind::embedding},                 // local NAT64
        {{0x20, 0x01, 0, 0}, 32, Kind::embedding},                          // Teredo
        {{0x20, 0x02}, 16, Kind::embedding},                                // 6to4
        {{0x20, 0x01}, 23, Kind::reserved},
        {{0xFC}, 7, Kind::private_},
        {{0xFE, 0x80}, 10, Kind::link_local},
        {{0xFE, 0xC0}, 10, Kind::private_},
        {{0xFF}, 8, Kind::multicast},
        {{0x20}, 3, Kind::public_},
        {{0}, 0, Kind::reserved},  // nothing else is in use
    };
    const auto first = [&](const auto& ranges) {
        for (const auto& range : ranges)
            if (address.within(AddressBytes(range.net.data(), address.size), range.prefix))
                return range.kind;
        return Kind::reserved;
    };
    if (address.size != 4 && address.size != 16) return Kind::reserved;
    const auto kind = address.size == 4 ? first(ranges4) : first(ranges6);
    const bool mine = std::find(own.begin(), own.end(), address) != own.end();
    return mine && kind != Kind::loopback ? Kind::this_machine : kind;
}

// What kind of address a name promises, where somebody else resolves it: a name that the public
// DNS has is public_, those of one network are private_, what is no host name is reserved.
inline AddressKind classify_name(std::string_view text) {
    const auto host = canonical_host(text);
    if (!host) return AddressKind::reserved;
    const auto is_below = [&](std::string_view name) {
        return *host == name ||
               (host->ends_with(name) && (*host)[host->size() - name.size() - 1] == '.');
    };
    for (const char* name : {"localhost", "localdomain"})
        if (is_below(name)) return AddressKind::loopback;
    for (const char* name :
         {"metadata", "metadata.google.internal", "metadata.goog", "metadata.azure.internal",
          "instance-data", "instance-data.ec2.internal"})
        if (*host == name) return AddressKind::metadata;
    // RFC 6761, 6762, 8375 and 9476, ICANN's "internal", and what networks use without asking.
    for (const char* name :
         {"internal", "local", "home.arpa", "test", "alt", "invalid", "example", "onion", "lan",
          "home", "corp", "private", "intranet", "svc", "cluster", "consul", "docker", "workgroup"})
        if (is_below(name)) return AddressKind::private_;
    return host->find('.') == host->npos ? AddressKind::private_ : AddressKind::public_;
}

}  // namespace ipybox::net
