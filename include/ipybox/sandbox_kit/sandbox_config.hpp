#pragma once
// The settings file of Anthropic's sandbox-runtime (srt), mapped onto a SandboxPolicy, and limits
// by name. These functions may be called on any thread; none can be cancelled.
#include <boost/json/object.hpp>
#include <filesystem>
#include <ipybox/sandbox.hpp>
#include <ipybox/sandbox_kit/protected_files.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace ipybox {

// Sets one limit from its name and a whole number, which for sizes may end in K, M or G (powers of
// 1024). Throws Error: bad_argument (it is no such limit or number; names what is accepted).
void set_limit(Limits& limits, std::string_view name, std::string_view value);

// The private networks that a sandbox's configuration opens, for NetworkPolicy: its option
// "private_networks", which the host reads for every sandbox that has it. Throws Error: bad_config
// (it is no list of strings; what they say is for NetworkProxy to check).
std::vector<std::string> private_networks_of(const json::object& config);

// Applies srt's settings to `base` (env, cwd, limits, what it hides and protects stay) and returns
// that: everything is readable but filesystem.denyRead (allowRead wins inside it, and shows what
// base hides when it names that very path), nothing writable but allowWrite without denyWrite and
// what `protection` covers in `workspace`, as deep as mandatoryDenySearchDepth says and with git's
// configuration unless allowGitConfig; allowedDomains empty or absent means no network. Relative
// paths start in `workspace`, ~ is `home`; allowWrite paths that are absent are left out. HOME
// becomes `home`, or /tmp for root, whose home no sandboxed user can enter. Throws Error:
// bad_config (a field is unknown, malformed or cannot be honoured; names it by JSON pointer).
// allowLocalBinding, allowPty, ripgrep and ignoreViolations have no effect on Linux.
SandboxPolicy apply_srt_settings(const json::object& settings, SandboxPolicy base,
                                 std::filesystem::path workspace, std::filesystem::path home,
                                 sandbox_kit::ProtectionRules protection = {});

}  // namespace ipybox

#ifndef IPYBOX_SEPARATE_COMPILATION
#include <ipybox/sandbox_kit/impl/sandbox_config.ipp>
#endif
