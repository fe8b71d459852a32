#pragma once
// The newest head of each audit log, kept outside of it in the host's state directory: who changes
// or shortens a log cannot change what it has to end with.
#include <cstdint>
#include <filesystem>
#include <ipybox/approval/audit_chain.hpp>
#include <ipybox/detail/unique_fd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace ipybox::approval {

// Where a log ends, in its chain and in its file.
struct LogEnd {
    ChainEnd end;
    std::uint64_t bytes = 0;              // of the file
    std::uint64_t device = 0, inode = 0;  // the file
    std::uint64_t head = 0;               // seq of the newest signed head
    std::optional<ChainEnd> next;         // being written
    std::uint64_t next_bytes = 0;         // of the file, with it
};

// What is kept of one log. Several processes may use it, in turn: see Lock. Used on one thread.
class AuditHead {
public:
    // directory: the one of AuditKey::of(), which exists. log: real path of the log, whether it is
    // there or not. Throws Error: io_error (the file cannot be opened or made), bad_config (others
    // can write it).
    AuditHead(const std::filesystem::path& directory, const std::filesystem::path& log);

    // What is kept of a log; absent when there is nothing. Nobody writes to the log before `looked`
    // has returned: it is called with the lock held. Throws what the constructor throws.
    static std::optional<KnownEnd> find(const std::filesystem::path& directory,
                                        const std::filesystem::path& log,
                                        const std::function<void()>& looked);
    // The same of a chain, whatever its log is called by now.
    static std::optional<KnownEnd> find_chain(const std::filesystem::path& directory,
                                              const std::string& chain);

    // While it lives, no other process or object writes the log.
    class Lock {
    public:
        explicit Lock(int file) : file_(file) {}
        Lock(Lock&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
        Lock& operator=(Lock&&) = delete;
        ~Lock();

    private:
        int file_;
    };
    // Waits for five seconds at most. Throws Error: io_error (another process holds it as long).
    Lock lock();

    // With the lock. Nothing was written: seq is 0. Throws Error: io_error.
    LogEnd read();
    // With the lock; one write of a fixed size. sync: it reaches the disk. Throws Error: io_error.
    void write(const LogEnd& end, bool sync = false);
    // With the lock: a file of the log ended here. Throws Error: io_error.
    void add_border(const ChainEnd& border);

private:
    AuditHead(std::filesystem::path file, std::string log, bool make);
    void open(bool make);
    bool is_there() const;
    KnownEnd known();
    std::string whole() const;

    std::filesystem::path file_;
    std::string log_;
    UniqueFd handle_;
    std::string written_;  // as read() or write() left it
    LogEnd end_;
};

}  // namespace ipybox::approval

#ifndef IPYBOX_SEPARATE_COMPILATION
#include <ipybox/approval/impl/audit_head.ipp>
#endif
