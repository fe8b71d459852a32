// A sandbox of your own: no namespaces, so that it works where containers forbid them. By ipybox's
// launcher and Landlock the guest writes nothing but its workspace; it reads what its user can, and
// has the network. Whatever it cannot enforce it refuses.
//
//   IPYBOX_PLUGIN_PATH=build/examples/custom_sandbox build/ipybox run --sandbox landlock -c '…'
#include <sys/syscall.h>

#include <ipybox/plugin.hpp>
#include <ipybox/sandbox_kit/guest_identity.hpp>
#include <ipybox/sandbox_kit/process.hpp>

namespace {
using namespace ipybox;

class Landlock final : public Sandbox {
public:
    Landlock(Host& host, const json::object& config) : executor_(host.executor) {
        const auto* path = config.if_contains("launcher");
        launcher_ = path != nullptr ? std::string(path->get_string()) : LAUNCHER;
    }

    awaitable<Capabilities> probe() override {
        Capabilities found;
        const long version = ::syscall(SYS_landlock_create_ruleset, nullptr, 0, 1);
        if (version < 1) found.problem = "this Linux kernel has no Landlock: 5.13 or newer is needed";
        else if (::access(launcher_.c_str(), X_OK) != 0) found.problem = launcher_ + " is missing";
        found.available = found.problem.empty();
        found.limits_per_process = found.wall_time = true;
        co_return found;
    }

    // Files are where they are.
    std::string guest_address(const SandboxPolicy&, const Channel& channel) const override { return channel.host_path; }

    // Nothing runs as root: see sandbox_kit/guest_identity.hpp.
    uid_t guest_user(const SandboxPolicy& policy) const override {
        const auto identity = detail::guest_identity(policy, std::nullopt);
        return identity ? identity->user : ::geteuid();
    }

    awaitable<std::unique_ptr<SandboxedProcess>> launch(SandboxPolicy policy,
                                                        std::vector<std::string> argv,
                                                        std::vector<Channel> channels,
                                                        Stdio stdio) override {
        // What probe() does not claim was refused before this is called.
        const Capabilities able = co_await probe();
        if (!able.available) throw Error(errc::sandbox_refused, "sandbox \"landlock\" cannot run: " + able.problem);
        const auto& limits = policy.limits;

        std::vector<std::string> command = {launcher_, "--landlock"};
        const auto add = [&command](const auto&... words) { (command.emplace_back(words), ...); };
        for (const auto& path : policy.writable) add("--writable", path);
        for (const auto& channel : channels) {
            if (channel.access == Channel::Access::read) continue;
            add("--writable", channel.host_path);
            policy.env.try_emplace("TMPDIR", channel.host_path);  // /tmp is not writable
        }
        if (limits.memory_per_process) add("--rlimit-as", std::to_string(*limits.memory_per_process));
        if (limits.open_files) add("--rlimit-nofile", std::to_string(*limits.open_files));
        if (limits.file_size) add("--rlimit-fsize", std::to_string(*limits.file_size));
        if (limits.cpu_seconds) add("--rlimit-cpu", std::to_string(*limits.cpu_seconds));
        add("--");
        std::move(argv.begin(), argv.end(), std::back_inserter(command));

        SpawnRequest request;
        request.identity = detail::guest_identity(policy, std::nullopt);
        request.argv = std::move(command);
        request.env = std::move(policy.env);
        request.cwd = std::move(policy.cwd);
        request.stdio = stdio;
        request.wall_seconds = limits.wall_seconds;
        co_return std::make_unique<ChildProcess>(executor_, std::move(request));
    }

private:
    asio::any_io_executor executor_;
    std::string launcher_;
};

constexpr Plugin self{
    .name = "landlock",
    .summary = "example: writes only its workspace, by Landlock, without namespaces",
    .config_schema = R"({"type": "object", "properties": {"launcher": {"type": "string"}}})",
    .make = Factory<Sandbox>(+[](Host& host, const json::object& config)
                                 -> std::unique_ptr<Sandbox> {
        return std::make_unique<Landlock>(host, config);
    }),
};
}  // namespace

IPYBOX_PLUGIN(landlock, self)
