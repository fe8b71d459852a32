#pragma once
// What holds for every sandbox, whoever wrote it: nothing is launched that it does not claim to
// confine, and what its guests may write is on record before they start.
#include <filesystem>
#include <ipybox/error.hpp>
#include <ipybox/sandbox.hpp>
#include <ipybox/sandbox_kit/wrapping_sandbox.hpp>
#include <ipybox/sandbox_kit/writable_places.hpp>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace ipybox {

// Throws Error: sandbox_refused (the policy asks for more than the sandbox says it can enforce;
// names the field and what to do). name: the sandbox's, for messages. programs_problem: what
// Sandbox::programs_problem() says of policy.programs; not asked, whoever calls has no such wall.
inline void refuse_beyond(const SandboxPolicy& policy, const Capabilities& able,
                          const std::string& name,
                          const std::string& programs_problem = "it has no such wall by itself") {
    const auto need = [&](bool asked, bool enforced, const std::string& field,
                          const std::string& what) {
        if (!asked || enforced) return;
        if (const auto reason = able.reasons.find(field); reason != able.reasons.end())
            throw Error(errc::sandbox_refused,
                        field + " cannot be enforced here: " + reason->second);
        throw Error(errc::sandbox_refused,
                    "sandbox \"" + name + "\" cannot " + what + ": " +
                        (name == "bubblewrap" ? "" : "use sandbox \"bubblewrap\", or ") +
                        "do not ask for it");
    };
    using Mode = NetworkPolicy::Mode;
    need(policy.network.mode == Mode::none, able.network_none, "network", "restrict the network");
    need(policy.network.mode == Mode::allow_list, able.network_allow_list, "network",
         "restrict the network to allowed hosts");
    need(!policy.hidden.empty(), able.filesystem, "hidden", "hide files");
    need(!policy.write_protected.empty(), able.filesystem, "write_protected",
         "write-protect paths");
    // By all their names, so that a new one cannot be forgotten here.
    const auto& [memory_per_process, memory_total, processes, open_files, file_size, cpu_seconds,
                 wall_seconds, scratch_size, scratch_inodes, workspace_size] = policy.limits;
    const auto limit = [&](const auto& value, bool enforced, const std::string& field,
                           const std::string& what) {
        need(value.has_value(), enforced, field, "limit " + what + " (limits." + field + ")");
    };
    limit(memory_per_process, able.limits_per_process, "memory_per_process",
          "the memory of a process");
    limit(memory_total, able.memory_total, "memory_total",
          "the memory of several processes together");
    // Without processes of its own, the limit of Linux counts everything that the user runs on this
    // machine.
    limit(processes, able.limits_per_process && able.process_isolation, "processes",
          "the number of processes");
    limit(open_files, able.limits_per_process, "open_files", "open files");
    limit(file_size, able.limits_per_process, "file_size", "the size of files");
    limit(cpu_seconds, able.limits_per_process, "cpu_seconds", "processor time");
    limit(wall_seconds, able.wall_time, "wall_seconds", "its time");
    limit(scratch_size, able.scratch_size, "scratch_size", "its scratch space, such as /tmp");
    limit(scratch_inodes, able.scratch_inodes, "scratch_inodes",
          "the number of files in its scratch space, such as /tmp");
    limit(workspace_size, able.workspace_size, "workspace_size", "the size of the workspace");

    if (policy.programs == Programs::allow || programs_problem.empty()) return;
    const bool asked = policy.programs == Programs::ask;
    throw Error(errc::sandbox_refused,
                "sandbox \"" + name + "\" cannot " +
                    (asked ? "start programs for code outside of its reach (programs, "
                             "--approve-programs): "
                           : "keep code from starting programs (programs, --no-exec): ") +
                    programs_problem +
                    (name == "bubblewrap" ? "" : "; use sandbox \"bubblewrap\"") +
                    ", or do not ask for it");
}

// Around the sandbox of a plugin: PluginRegistry::make() returns no other. Each launch(),
// make_pen() and open() passes refuse_beyond(), leads over no link that code could have made, and
// is put on record in writable_places(); with one of them refused, nothing starts.
class GuardedSandbox final : public WrappingSandbox {
public:
    // name: the plugin's, for messages.
    GuardedSandbox(std::unique_ptr<Sandbox> inner, std::string name)
        : WrappingSandbox(std::move(inner)), name_(std::move(name)) {}

    // Throws what the sandbox throws, and Error: sandbox_refused (refuse_beyond(), a link that
    // code could have made, or the whole disk is to be writable), io_error (the record cannot be
    // kept).
    awaitable<std::unique_ptr<SandboxedProcess>> launch(SandboxPolicy policy,
                                                        std::vector<std::string> argv,
                                                        std::vector<Channel> channels,
                                                        Stdio stdio) override {
        const bool able = co_await admit(policy);
        // Unavailable, it tells why itself.
        auto process =
            co_await inner().launch(std::move(policy), std::move(argv), std::move(channels), stdio);
        if (!able) co_await refuse_unavailable();
        co_return process;
    }
    std::string pen_key(const SandboxPolicy& policy) const override {
        return inner().pen_key(policy);
    }
    awaitable<Pen> make_pen(SandboxPolicy policy, std::vector<std::string> argv,
                            std::vector<Channel> channels, int control) override {
        const bool able = co_await admit(policy);
        auto pen = co_await inner().make_pen(std::move(policy), std::move(argv),
                                             std::move(channels), control);
        if (!able) co_await refuse_unavailable();
        co_return pen;
    }
    awaitable<OpenSandbox> open(SandboxPolicy policy, std::vector<Channel> channels,
                                const Pen& pen) override {
        const bool able = co_await admit(policy);
        auto opened = co_await inner().open(std::move(policy), std::move(channels), pen);
        if (!able) co_await refuse_unavailable();
        co_return opened;
    }

private:
    // False when the sandbox is unavailable.
    awaitable<bool> admit(SandboxPolicy policy) {
        const Capabilities able = co_await inner().probe();
        if (!able.available) co_return false;
        std::string programs_problem;
        if (policy.programs != Programs::allow)
            programs_problem = co_await inner().programs_problem(policy.programs);
        refuse_beyond(policy, able, name_, programs_problem);
        // On record, it would make everything suspect for good.
        for (const auto& path : policy.writable) {
            std::error_code error;
            if (std::filesystem::weakly_canonical(path, error) == "/")
                throw Error(errc::sandbox_refused,
                            "the whole disk cannot be made writable: name directories");
        }
        refuse_led_roots(policy);
        writable_places().record(policy, able.pinned_protection, able.filesystem);
        co_return true;
    }
    // Code in the sandbox of another session can exchange what lies in its places for links.
    static void refuse_led_roots(const SandboxPolicy& policy) {
        auto roots = policy.writable;
        roots.insert(roots.end(), policy.readable.begin(), policy.readable.end());
        roots.push_back(policy.cwd);
        std::erase_if(roots, [](const auto& path) { return !path.is_absolute(); });
        writable_places().real_paths(roots);
    }
    awaitable<void> refuse_unavailable() {
        const Capabilities able = co_await inner().probe();
        throw Error(errc::sandbox_refused, "sandbox \"" + name_ + "\": " + able.problem);
    }

    std::string name_;
};

}  // namespace ipybox
