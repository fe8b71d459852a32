#pragma once
// What sandboxes tell the launcher on its command line.
#include <cstdint>
#include <ipybox/sandbox.hpp>
#include <optional>
#include <string>
#include <vector>

namespace ipybox::launcher {

// Appends the limits that it sets on single processes.
inline void add_rlimits(std::vector<std::string>& command, const Limits& limits) {
    const auto add = [&command](const char* option, const std::optional<std::uint64_t>& value) {
        if (!value) return;
        command.emplace_back(option);
        command.push_back(std::to_string(*value));
    };
    add("--rlimit-as", limits.memory_per_process);
    add("--rlimit-nproc", limits.processes);
    add("--rlimit-nofile", limits.open_files);
    add("--rlimit-fsize", limits.file_size);
    add("--rlimit-cpu", limits.cpu_seconds);
}

}  // namespace ipybox::launcher
