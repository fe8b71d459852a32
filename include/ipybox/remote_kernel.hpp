#pragma once
// A part of door 2, for kernels that share neither files nor a sandbox with the host: those on
// another machine. Backends without such kernels need none of this.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <ipybox/async.hpp>
#include <ipybox/detail/workspace_files.hpp>
#include <ipybox/kernel_backend.hpp>
#include <optional>
#include <string>

namespace ipybox {

// Bytes of a file, and the size of the whole.
using FilePart = detail::FilePart;

// A kernel behind a server that may be elsewhere. All of it may be called while an execution runs.
class RemoteKernel : public Kernel {
public:
    // The server's name for the kernel.
    virtual std::string id() const = 0;
    // Returns when the kernel has what changed in the directories of its spec's channels. Throws
    // Error: timed_out (it does not answer), kernel_died (it has ended), kernel_protocol (its
    // answer is malformed).
    virtual awaitable<void> refresh() = 0;
    // Writes a file below the directory in which the kernel started: whole or not at all, through
    // no link. path: as workspace_path() gives it. Throws Error: io_error (as
    // detail/workspace_files.hpp does), and what refresh() throws.
    virtual awaitable<void> write_file(std::filesystem::path path, std::string bytes,
                                       bool overwrite) = 0;
    // At most `limit` bytes of such a file, from byte `offset` on. Throws what write_file() throws.
    virtual awaitable<FilePart> read_file(std::filesystem::path path, std::uint64_t offset,
                                          std::size_t limit) = 0;
};

// Where the host listens for tool calls over TLS, and how kernels reach it.
struct ToolListener {
    std::string address;          // of this machine, as numbers
    std::uint16_t port = 0;       // 0: any that is free
    std::string name;             // a name or address for which the certificate is made out
    std::uint16_t name_port = 0;  // 0: the one listened at
    std::filesystem::path certificate, key;  // PEM; intermediate certificates may follow the first
};

// Starts kernels where this machine's files, interpreter and sandbox are not. The host refuses a
// policy that would have to be enforced here. A spec has no interpreter and a policy of nothing but
// the environment; the backend carries its channels to the kernel and translates their host paths
// in the environment. What start() returns is a RemoteKernel: the host refuses any other
// (bad_plugin).
class RemoteBackend : public KernelBackend {
public:
    // If there is one, tool calls come that way, and a spec has no tool socket.
    virtual std::optional<ToolListener> tool_listener() const { return std::nullopt; }
};

}  // namespace ipybox
