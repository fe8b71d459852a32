#pragma once
// A control group for one sandbox: the only limit on what several processes use together.

#include <filesystem>
#include <ipybox/error.hpp>
#include <ipybox/sandbox.hpp>
#include <ipybox/sandbox_kit/host_program.hpp>
#include <ipybox/sandbox_kit/process.hpp>
#include <string>
#include <string_view>

namespace ipybox {

// Version 2 where the group that we are in was delegated to us, or version 1 as root. Destruction
// kills what is left in the group and removes it; what a killed host left behind is removed when
// the next group is made.
//
// A group of version 2 that limits its children has no processes of its own. So everything that
// is in ours, we included, moves to its child ipybox.host when the first sandbox with a limit
// becomes another child.
class Cgroup {
public:
    // memory: bytes that all processes together may use, swap included. Throws Error:
    // sandbox_refused (no group can be made here; says why, and what to do about it).
    explicit Cgroup(std::uint64_t memory);
    // What was moved from removes nothing.
    Cgroup(Cgroup&& other) noexcept;
    Cgroup& operator=(Cgroup&&) = delete;
    ~Cgroup() {
        if (!path_.empty()) clear(path_);
    }

    // Why no group can be made here, and what to do about it; empty if one can. Changes nothing
    // that lasts.
    static std::string problem();

    // A process that writes "0" here becomes a member.
    int entrance() const noexcept { return entrance_.get(); }

    // Adds what the group knows to `known`.
    void measure(Statistics& known) const;

    // Appends what the group has seen of its limit.
    void report(std::vector<Violation>& violations) const;

private:
    static constexpr std::string_view name_start = "ipybox-";
    static constexpr const char* host = "ipybox.host";
    static constexpr std::string_view refusal = "memory_total cannot be enforced here: ";

    struct Place {
        std::filesystem::path directory;
        int version;
    };

    [[noreturn]] static void refuse(const std::string& why);

    // Another one with each call, from any thread.
    static unsigned serial();

    // A directory in which groups with a memory limit can be made.
    static Place find_place();

    // systemd ends a unit in which memory ran out, and may turn controllers off in it, unless it
    // was told that the groups inside are somebody else's.
    static bool is_delegated(const std::filesystem::path& group);

    // Lets the group of version 2 limit the memory of its children.
    static void turn_on_memory(const std::filesystem::path& group);

    static bool lists_memory(const std::filesystem::path& file);

    // New ones may appear meanwhile.
    static void move_members(const std::filesystem::path& group);

    bool has(const char* name) const { return std::filesystem::exists(path_ / name); }

    void set(const char* name, const std::string& value) const;

    // Field 22 of /proc/PID/stat: with the number it names a process forever.
    static std::string start_time(const std::string& pid);

    static void remove_abandoned(const std::filesystem::path& place);

    static void clear(const std::filesystem::path& group) noexcept;

    std::filesystem::path path_;
    UniqueFd entrance_;
    bool second_version_ = false;
};

}  // namespace ipybox

#ifndef IPYBOX_SEPARATE_COMPILATION
#include <ipybox/sandbox_kit/impl/cgroup.ipp>
#endif
