#pragma once
// A part of door 2, for kernels that share neither files nor a sandbox with the host: those on
// another machine. The host asks a backend and its kernels for it; who has no such kernels needs
// none of this.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <ipybox/async.hpp>
#include <ipybox/kernel_backend.hpp>
#include <optional>
#include <string>

namespace ipybox {

// A kernel behind a server that may be elsewhere. All of it may be called while an execution runs.
class RemoteKernel : public Kernel {
public:
    // The server's name for the kernel.
    std::string id() const override = 0;
    // Returns when the kernel has what changed in the directories of its spec's channels. Throws
    // Error: timed_out, kernel_died, kernel_protocol.
    awaitable<void> refresh() override = 0;
    // Writes a file below the directory in which the kernel started: whole or not at all, through
    // no link. path: as workspace_path() gives it. Throws Error: io_error as
    // detail/workspace_files.hpp does, timed_out, kernel_died, kernel_protocol.
    awaitable<void> write_file(std::filesystem::path path, std::string bytes,
                               bool overwrite) override = 0;
    // At most `limit` bytes of such a file, from byte `offset` on. Throws what write_file() throws.
    awaitable<FilePart> read_file(std::filesystem::path path, std::uint64_t offset,
                                  std::size_t limit) override = 0;
};

// Starts kernels where this machine's files, interpreter and sandbox are not. The host refuses a
// policy that would have to be enforced here. A spec has no interpreter and a policy of nothing but
// the environment; the backend carries its channels to the kernel and translates their host paths
// in the environment. What start() returns is a RemoteKernel: the host gives up any other with
// errc::bad_plugin.
class RemoteBackend : public KernelBackend {
public:
    // If there is one, tool calls come that way, and a spec has no tool socket.
    std::optional<ToolListener> tool_listener() const override { return std::nullopt; }
    bool shares_files() const noexcept final { return false; }
};

}  // namespace ipybox
