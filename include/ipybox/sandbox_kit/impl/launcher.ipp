#pragma once
#include <ipybox/sandbox_kit/launcher.hpp>

#include <sys/syscall.h>

#include <cstdint>
#include <ipybox/compilation.hpp>
#include <ipybox/error.hpp>
#include <ipybox/sandbox_kit/guarded_sandbox.hpp>
#include <ipybox/sandbox_kit/guest_identity.hpp>
#include <ipybox/sandbox_kit/host_program.hpp>
#include <ipybox/sandbox_kit/process.hpp>
#include <iterator>
#include <optional>
#include <system_error>
#include <utility>

namespace ipybox {

namespace sandbox_kit {
// Where `meson install` puts it; a program without ipybox's compiled part does not have it.
[[gnu::weak]] extern const char* const launcher_program;

// The launcher itself goes on without Landlock, for sandboxes that have other walls.
inline const char* const no_landlock = "this Linux kernel has no Landlock: 5.13 or newer is needed";

// On any machine that has Landlock and the launcher.
inline Capabilities enforced_by_launcher() {
    Capabilities able;
    able.available = able.limits_per_process = able.wall_time = true;
    return able;
}
}  // namespace sandbox_kit

IPYBOX_DECL std::filesystem::path find_launcher() {
    std::error_code ignored;
    const auto program = std::filesystem::read_symlink("/proc/self/exe", ignored);
    const auto beside = program.parent_path() / "launcher" / "ipybox-launcher";
    const std::filesystem::path installed =
        &sandbox_kit::launcher_program ? sandbox_kit::launcher_program : "";
    for (const auto& place : {beside, installed})
        if (place.is_absolute())
            if (const auto found = find_program(place.string(), "")) return *found;
    throw Error(errc::missing_dependency,
                "ipybox-launcher is not there: neither " + beside.string() + " nor " +
                    (installed.empty() ? "an installation of it" : installed.string()));
}

IPYBOX_DECL int landlock_version() noexcept {
    const long version = ::syscall(SYS_landlock_create_ruleset, nullptr, 0, 1u /* VERSION */);
    return version < 0 ? 0 : static_cast<int>(version);
}

IPYBOX_DECL Capabilities launched_capabilities() {
    auto able = sandbox_kit::enforced_by_launcher();
    if (landlock_version() < 1) {
        able.problem = sandbox_kit::no_landlock;
    } else {
        try {
            find_launcher();
        } catch (const Error& error) {
            able.problem = error.detail();
        }
    }
    able.available = able.problem.empty();
    return able;
}

IPYBOX_DECL uid_t launched_user(const SandboxPolicy& policy) {
    const auto identity = sandbox_kit::guest_identity(policy, std::nullopt);
    return identity ? identity->user : ::geteuid();
}

IPYBOX_DECL std::unique_ptr<SandboxedProcess> launched(
    asio::any_io_executor executor, const std::filesystem::path& launcher, SandboxPolicy policy,
    std::vector<std::string> argv, const std::vector<Channel>& channels, Stdio stdio) {
    if (landlock_version() < 1) throw Error(errc::sandbox_refused, sandbox_kit::no_landlock);
    // Whatever a sandbox says of itself, this is all that it gets.
    refuse_beyond(policy, sandbox_kit::enforced_by_launcher(), "ipybox-launcher");
    refuse_written(launcher);

    std::vector<std::string> command = {launcher.string(), "--landlock"};
    const auto add = [&command](const auto&... words) { (command.emplace_back(words), ...); };
    for (const auto& path : policy.writable) add("--writable", path.string());
    for (const auto& channel : channels) {
        if (channel.access == Channel::Access::read) continue;
        const bool sockets = channel.access == Channel::Access::sockets;
        add(sockets ? "--sockets" : "--writable", channel.host_path.string());
        // /tmp cannot be written.
        if (!sockets) policy.env.try_emplace("TMPDIR", channel.host_path.string());
    }
    const auto limit = [&add](const char* option, const std::optional<std::uint64_t>& value) {
        if (value) add(option, std::to_string(*value));
    };
    limit("--rlimit-as", policy.limits.memory_per_process);
    limit("--rlimit-nofile", policy.limits.open_files);
    limit("--rlimit-fsize", policy.limits.file_size);
    limit("--rlimit-cpu", policy.limits.cpu_seconds);
    add("--");
    std::move(argv.begin(), argv.end(), std::back_inserter(command));

    SpawnRequest request;
    request.identity = sandbox_kit::guest_identity(policy, std::nullopt);
    request.argv = std::move(command);
    request.env = std::move(policy.env);
    if (!policy.cwd.empty()) request.cwd = std::move(policy.cwd);
    request.stdio = stdio;
    request.wall_seconds = policy.limits.wall_seconds;
    return std::make_unique<ChildProcess>(std::move(executor), std::move(request));
}

}  // namespace ipybox
