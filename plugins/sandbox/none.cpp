// No confinement: the process runs as the user and with the sight of whoever starts it; root may
// name another user. What it starts ends with it, or with us.
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <guard.hpp>
#include <ipybox/plugin.hpp>
#include <ipybox/sandbox_kit/guest_identity.hpp>
#include <ipybox/sandbox_kit/process.hpp>
#include <launcher_file.hpp>

namespace {
using namespace ipybox;

// The launcher as guard, and the command as its first child. What the command starts may leave its
// session and its parent, and is the guard's child then; the guard ends it all, even when we are
// killed.
class Guarded final : public ChildProcess {
public:
    using ChildProcess::ChildProcess;

    void signal(int number) noexcept override {
        if (number == SIGKILL) return kill_tree();
        sigval group{};
        group.sival_int = guard_whole_group;
        if (!exit_status()) ::sigqueue(pid(), number, group);
    }
};

class None final : public Sandbox {
public:
    explicit None(Host& host) : executor_(host.executor) {}

    awaitable<Capabilities> probe() override {
        Capabilities nothing;
        nothing.available = nothing.limits_per_process = nothing.wall_time = true;
        co_return nothing;
    }

    std::string guest_address(const SandboxPolicy&, const Channel& channel) const override {
        return channel.host_path.string();
    }

    uid_t guest_user(const SandboxPolicy& policy) const override {
        return policy.user && ::geteuid() == 0 ? *policy.user : ::geteuid();
    }

    awaitable<std::unique_ptr<SandboxedProcess>> launch(SandboxPolicy policy,
                                                        std::vector<std::string> argv,
                                                        std::vector<Channel>,
                                                        Stdio stdio) override {
        // readable and writable only describe what everything here can be; what forbids more is
        // refused before.
        const bool other = policy.user && *policy.user != ::geteuid();
        if (other && ::geteuid() != 0)
            throw Error(errc::sandbox_refused,
                        "sandbox \"none\" cannot change the user unless root starts it: "
                        "use sandbox \"bubblewrap\", or do not ask for it");

        SpawnRequest request;
        request.argv = std::move(argv);
        request.env = std::move(policy.env);
        if (!policy.cwd.empty()) request.cwd = std::move(policy.cwd);
        if (other) request.identity = sandbox_kit::identity_of(*policy.user);
        request.stdio = stdio;
        request.wall_seconds = policy.limits.wall_seconds;
        const auto limit = [&request](int resource, const std::optional<std::uint64_t>& value) {
            if (value) request.rlimits.emplace_back(resource, *value);
        };
        limit(RLIMIT_AS, policy.limits.memory_per_process);
        limit(RLIMIT_NOFILE, policy.limits.open_files);
        limit(RLIMIT_FSIZE, policy.limits.file_size);
        limit(RLIMIT_CPU, policy.limits.cpu_seconds);
        launcher::start_by_guard(request);
        co_return std::make_unique<Guarded>(executor_, std::move(request));
    }

private:
    asio::any_io_executor executor_;
};

constexpr Plugin self{
    .name = "none",
    .summary = "no confinement: the process can do whatever the host's user can",
    .config_schema = R"({"type": "object", "additionalProperties": false})",
    .make = Factory<Sandbox>(+[](Host& host, const json::object&) -> std::unique_ptr<Sandbox> {
        return std::make_unique<None>(host);
    }),
};
}  // namespace

IPYBOX_PLUGIN(none, self)
