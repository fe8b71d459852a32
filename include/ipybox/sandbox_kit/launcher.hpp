#pragma once
// The launcher as the wall of a sandbox: a small static program that takes rights from itself and
// becomes the guest. Where namespaces are forbidden, Landlock and limits are what is left; a
// sandbox made of these functions confines by them. `ipybox-launcher --help` has its options.
#include <unistd.h>

#include <filesystem>
#include <ipybox/async.hpp>
#include <ipybox/sandbox.hpp>
#include <memory>
#include <string>
#include <vector>

namespace ipybox {

// The launcher's file: that of the build tree in which the program lies or, failing that, of the
// installation. Throws Error: missing_dependency (there is none), denied (code in a sandbox could
// write it).
std::filesystem::path find_launcher();

// The version of Landlock that this machine's Linux has; 0 without. Each keeps the guest from
// writing elsewhere, but only 3 (Linux 6.2) from truncating files there, and only 6 (6.12) from
// signals to processes outside.
int landlock_version() noexcept;

// What launched() enforces on this machine, for Sandbox::probe(): limits of single processes and of
// time. `problem` says what is missing: Landlock or the launcher.
Capabilities launched_capabilities();

// The uid that a process of launched() has, for Sandbox::guest_user(): the caller's, or where that
// is root the policy's user, the owner of its directory or 65534. Throws Error: sandbox_refused (no
// user can be chosen).
uid_t launched_user(const SandboxPolicy& policy);

// Starts argv by the launcher. The guest writes below policy.writable and in channels that let it,
// the first of which is its TMPDIR; it reads what its user can, and has the network. launcher: what
// find_launcher() returned. Throws Error: sandbox_refused (the policy asks for more than
// launched_capabilities(), whoever calls), denied (code could write the launcher), and what
// ChildProcess's constructor throws. executor: of one thread, which must outlive the process.
std::unique_ptr<SandboxedProcess> launched(asio::any_io_executor executor,
                                           const std::filesystem::path& launcher,
                                           SandboxPolicy policy, std::vector<std::string> argv,
                                           const std::vector<Channel>& channels, Stdio stdio);

}  // namespace ipybox

#ifndef IPYBOX_SEPARATE_COMPILATION
#include <ipybox/sandbox_kit/impl/launcher.ipp>
#endif
