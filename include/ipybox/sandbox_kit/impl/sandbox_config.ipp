#pragma once
#include <ipybox/sandbox_kit/sandbox_config.hpp>

#include <unistd.h>

#include <algorithm>
#include <boost/json/value.hpp>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <ipybox/compilation.hpp>
#include <ipybox/detail/beneath.hpp>
#include <ipybox/error.hpp>
#include <ipybox/net/domain_rule.hpp>
#include <iterator>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace ipybox {

namespace sandbox_kit {

// One object of the settings: every member must be asked for, the rest is unknown.
class SettingsReader {
public:
    SettingsReader(const json::object& object, std::string pointer,
                   std::initializer_list<std::string_view> known)
        : object_(object), pointer_(std::move(pointer)) {
        std::string names;
        for (const auto name : known) names += (names.empty() ? "" : ", ") + std::string(name);
        for (const auto& member : object)
            if (std::find(known.begin(), known.end(), std::string_view(member.key())) ==
                known.end())
                fail(member.key(), "is not known here; accepted are " + names);
    }

    [[noreturn]] void fail(std::string_view key, const std::string& why) const {
        throw Error(errc::bad_config,
                    "sandbox settings, " + pointer_ + "/" + std::string(key) + ": " + why);
    }

    const json::object* object(std::string_view key) const {
        const auto* value = object_.if_contains(key);
        if (value != nullptr && !value->is_object()) fail(key, "must be an object");
        return value == nullptr ? nullptr : &value->get_object();
    }
    bool boolean(std::string_view key) const {
        const auto* value = object_.if_contains(key);
        if (value != nullptr && !value->is_bool()) fail(key, "must be true or false");
        return value != nullptr && value->get_bool();
    }
    // A permission that no sandbox of ours gives.
    void only_false(std::string_view key) const {
        if (boolean(key)) fail(key, "cannot be honoured; accepted is false");
    }
    void absent(std::string_view key, const std::string& why) const {
        if (object_.contains(key)) fail(key, why);
    }
    int integer(std::string_view key, int least, int most, int otherwise) const {
        const auto* value = object_.if_contains(key);
        if (value == nullptr) return otherwise;
        boost::system::error_code error;
        const auto number = value->is_number() ? value->to_number<int>(error) : least - 1;
        if (error || number < least || number > most)
            fail(key, "must be an integer from " + std::to_string(least) + " to " +
                          std::to_string(most));
        return number;
    }
    std::vector<std::string> strings(std::string_view key) const {
        std::vector<std::string> list;
        const auto* value = object_.if_contains(key);
        if (value == nullptr) return list;
        if (!value->is_array()) fail(key, "must be a list of strings");
        for (const auto& item : value->get_array()) {
            const auto at = std::string(key) + "/" + std::to_string(list.size());
            if (!item.is_string()) fail(at, "must be a string");
            list.emplace_back(item.get_string());
            if (list.back().empty() || list.back().find('\0') != std::string::npos)
                fail(at, "must not be empty");
        }
        return list;
    }

private:
    const json::object& object_;
    std::string pointer_;
};

inline const json::object& object_or_empty(const json::object* object) {
    static const json::object nothing;
    return object ? *object : nothing;
}

// The settings' "network", as the whole policy of the network.
inline NetworkPolicy network_settings(const SettingsReader& top) {
    const SettingsReader network(
        object_or_empty(top.object("network")), "/network",
        {"allowedDomains", "deniedDomains", "strictAllowlist", "allowUnixSockets",
         "allowAllUnixSockets", "allowLocalBinding", "httpProxyPort", "socksProxyPort"});
    network.absent("httpProxyPort", "another proxy cannot be used; remove it");
    network.absent("socksProxyPort", "another proxy cannot be used; remove it");
    for (const char* key : {"strictAllowlist", "allowAllUnixSockets", "allowLocalBinding"})
        network.boolean(key);
    if (!network.strings("allowUnixSockets").empty())
        network.fail("allowUnixSockets",
                     "single sockets cannot be allowed on Linux; accepted is an empty list");
    NetworkPolicy policy;
    policy.allow = network.strings("allowedDomains");
    policy.deny = network.strings("deniedDomains");
    const auto check_rules = [&](const std::string& key, const std::vector<std::string>& rules,
                                 net::RuleList list, const char* others) {
        for (std::size_t i = 0; i < rules.size(); ++i)
            if (!net::parse_domain_rule(rules[i], list))
                network.fail(key + "/" + std::to_string(i),
                             std::string("accepted are a host name such as example.com, "
                                         "*.example.com for those below it") +
                                 others + ", each also with :port; no addresses");
    };
    check_rules("allowedDomains", policy.allow, net::RuleList::allow, "");
    check_rules("deniedDomains", policy.deny, net::RuleList::deny, ", or * for all");
    if (!policy.allow.empty()) policy.mode = NetworkPolicy::Mode::allow_list;
    return policy;
}

// The settings' "filesystem".
class FileSettings {
public:
    FileSettings(const SettingsReader& top, std::filesystem::path workspace,
                 std::filesystem::path home)
        : files_(object_or_empty(top.object("filesystem")), "/filesystem",
                 {"denyRead", "allowRead", "allowWrite", "denyWrite", "allowGitConfig"}),
          workspace_(std::move(workspace)),
          home_(std::move(home)) {}

    void apply(SandboxPolicy& base, ProtectionRules protection) const {
        const bool git_config = files_.boolean("allowGitConfig");
        base.readable.emplace_back("/");
        base.readable.push_back(workspace_);  // wherever it lies: a sandbox has its own /tmp
        for (auto& path : paths("allowRead", true)) base.readable.push_back(std::move(path));
        base.writable = paths("allowWrite", true);
        const auto kept = static_cast<std::ptrdiff_t>(base.hidden.size());
        for (const auto& text : files_.strings("denyRead")) base.hidden.push_back(pattern(text));
        // Whatever base hides stays hidden, but for a path that is named itself.
        for (auto& path : paths("allowRead", true))
            if (std::find(base.hidden.begin() + kept, base.hidden.end(), literal_glob(path)) ==
                base.hidden.end())
                base.shown.push_back(std::move(path));
        protection.git_config = !git_config;
        if (git_config)
            std::erase_if(base.write_protected, [&](const std::filesystem::path& path) {
                const auto inside = path.string().find("/.git/");
                return path == workspace_ / "HEAD" ||
                       (inside != std::string::npos && is_git_config(path.filename().string()));
            });
        for (auto& path : paths("denyWrite", false))
            base.write_protected.push_back(std::move(path));
        protect(base, std::move(protection));
    }

private:
    std::filesystem::path absolute(const std::string& text) const {
        std::filesystem::path path = text;
        if (text == "~")
            path = home_;
        else if (text.starts_with("~/"))
            path = home_ / text.substr(2);
        path = (workspace_ / path).lexically_normal();
        return path.has_filename() || path == "/" ? path : path.parent_path();
    }

    std::vector<std::filesystem::path> paths(const char* key, bool must_exist) const {
        std::vector<std::filesystem::path> list;
        std::size_t index = 0;
        for (const auto& text : files_.strings(key)) {
            const auto at = key + ("/" + std::to_string(index++));
            if (text.find_first_of("*?[") != std::string::npos)
                files_.fail(at, "wildcards are not accepted here; name a path");
            auto path = absolute(text);
            // The sandbox has its own of these.
            if (path.parent_path() == "/dev") continue;
            std::error_code error;
            if (!must_exist || std::filesystem::exists(path, error))
                list.push_back(std::move(path));
        }
        return list;
    }

    // Only what the settings say themselves is a pattern, not where they are.
    std::string pattern(const std::string& text) const {
        if (text.starts_with('/')) return absolute(text).string();
        const bool at_home = text == "~" || text.starts_with("~/");
        const std::filesystem::path start = literal_glob(at_home ? home_ : workspace_);
        const auto rest = at_home ? text.substr(std::min<std::size_t>(2, text.size())) : text;
        const auto path = (start / rest).lexically_normal();
        return (path.has_filename() ? path : path.parent_path()).string();
    }

    void protect(SandboxPolicy& base, ProtectionRules protection) const {
        const auto add = [&](const std::filesystem::path& directory) {
            auto found = protected_files(directory, protection).paths;
            std::move(found.begin(), found.end(), std::back_inserter(base.write_protected));
        };
        add(workspace_);
        // Elsewhere nobody expects files that hold the place of absent ones.
        protection.absent = false;
        for (const auto& place : base.writable) {
            const auto inside = place.lexically_relative(workspace_);
            const bool elsewhere = inside.empty() || *inside.begin() == "..";
            std::error_code error;
            if (elsewhere &&
                std::filesystem::is_directory(std::filesystem::symlink_status(place, error)))
                add(place);
        }
    }

    SettingsReader files_;
    std::filesystem::path workspace_, home_;
};

}  // namespace sandbox_kit

IPYBOX_DECL void set_limit(Limits& limits, std::string_view name, std::string_view value) {
    struct Known {
        std::string_view name;
        std::optional<std::uint64_t> Limits::* limit;
        bool size;
    };
    static constexpr Known known[] = {{"memory", &Limits::memory_per_process, true},
                                      {"memory-total", &Limits::memory_total, true},
                                      {"processes", &Limits::processes, false},
                                      {"open-files", &Limits::open_files, false},
                                      {"file-size", &Limits::file_size, true},
                                      {"cpu", &Limits::cpu_seconds, false},
                                      {"wall", &Limits::wall_seconds, false},
                                      {"scratch", &Limits::scratch_size, true},
                                      {"scratch-inodes", &Limits::scratch_inodes, false},
                                      {"workspace", &Limits::workspace_size, true}};
    std::string names;
    for (const auto& candidate : known) {
        names += (names.empty() ? "" : ", ") + std::string(candidate.name);
        if (candidate.name != name) continue;
        const auto* end = value.data() + value.size();
        std::uint64_t number = 0;
        auto [rest, error] = std::from_chars(value.data(), end, number);
        if (error == std::errc{} && candidate.size && rest + 1 == end) {
            const auto unit = std::string_view("KMG").find(*rest);
            const auto shift = 10 * (unit + 1);
            if (unit != std::string_view::npos && number <= UINT64_MAX >> shift) {
                number <<= shift;
                ++rest;
            }
        }
        if (error != std::errc{} || rest != end || number == 0)
            throw Error(errc::bad_argument,
                        "limit " + std::string(name) + ": accepted is a whole number over 0" +
                            (candidate.size ? ", of bytes or with K, M or G behind it" : "") +
                            ", not \"" + std::string(value) + "\"");
        limits.*candidate.limit = number;
        return;
    }
    throw Error(errc::bad_argument,
                "there is no limit \"" + std::string(name) + "\"; accepted are " + names);
}

IPYBOX_DECL SandboxPolicy apply_srt_settings(const json::object& settings, SandboxPolicy base,
                                             std::filesystem::path workspace,
                                             std::filesystem::path home,
                                             sandbox_kit::ProtectionRules protection) {
    const sandbox_kit::SettingsReader top(
        settings, "",
        {"network", "filesystem", "mandatoryDenySearchDepth", "enableWeakerNestedSandbox",
         "enableWeakerNetworkIsolation", "allowPty", "ripgrep", "ignoreViolations"});
    top.only_false("enableWeakerNestedSandbox");
    top.only_false("enableWeakerNetworkIsolation");
    top.boolean("allowPty");
    top.object("ripgrep");
    top.object("ignoreViolations");
    protection.depth = top.integer("mandatoryDenySearchDepth", 1, 10, 3);
    base.network = sandbox_kit::network_settings(top);
    base.env["HOME"] = ::geteuid() == 0 ? "/tmp" : home.string();
    sandbox_kit::FileSettings(top, std::move(workspace), std::move(home))
        .apply(base, std::move(protection));
    return base;
}

IPYBOX_DECL std::vector<std::string> private_networks_of(const json::object& config) {
    const auto* given = config.if_contains("private_networks");
    if (given == nullptr) return {};
    const auto refuse = [] {
        throw Error(errc::bad_config,
                    "sandbox option private_networks: must be a list of networks, as 10.1.0.0/16");
    };
    if (!given->is_array()) refuse();
    std::vector<std::string> networks;
    for (const auto& network : given->get_array()) {
        if (!network.is_string()) refuse();
        networks.emplace_back(network.get_string());
    }
    return networks;
}

}  // namespace ipybox
