#pragma once
// A limit on what the files below some directories take together, by the project quotas of ext4 and
// XFS: every file there carries a number, which new ones inherit, and the kernel counts by number.
#include <linux/fs.h>
#include <linux/quota.h>
#include <sys/types.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <ipybox/detail/unique_fd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace ipybox::sandbox_kit {

// The numbers are a project's for as long as its record, a file in a directory of root's, is
// locked. What a killed host left behind is unlocked, and undone when the next quota is set.
// Sandboxes on the same directories share one; the last takes it away.
class ProjectQuota {
public:
    // Where records are kept: they must outlive a restart of the machine, as the numbers do.
    static constexpr const char* standard_records = "/var/lib/ipybox/quota";

    // Why this process can set no quota anywhere on this machine; empty if it can.
    static std::string machine_problem();

    // Why no quota can be set for what lies below `directory`, and what it takes; empty if one can.
    static std::string problem(const std::filesystem::path& directory);

    // Limits what lies below the directories (or files) to `bytes`, what is there already included,
    // and the number of files to one for 4 KiB. Visits everything there. Throws Error:
    // sandbox_refused (no quota can be set; says what is missing), io_error (a file failed).
    explicit ProjectQuota(const std::vector<std::filesystem::path>& roots, std::uint64_t bytes,
                          std::filesystem::path records = standard_records);
    ProjectQuota(ProjectQuota&& other) noexcept;
    ProjectQuota& operator=(ProjectQuota&&) = delete;
    ~ProjectQuota();

    // The project's number.
    std::uint32_t id() const noexcept { return id_; }

private:
    struct Root {
        std::filesystem::path path;
        UniqueFd handle;
    };

    // Each directory of records has a block of numbers of its own, so that containers that share a
    // file system but not the records keep away from each other's.
    static constexpr std::uint32_t range = 0x6000'0000, block_size = 0x1000, blocks = 0x1'0000;

    [[noreturn]] static void refuse(const std::string& why);
    [[noreturn]] static void fail(const std::string& what);

    // What walk() calls for each file: its handle, its path, whether it is a directory.
    using Visit = std::function<void(int file, const std::filesystem::path& path, bool directory)>;

    static int call(int fd, unsigned command, std::uint32_t id, void* argument);

    // Both calls are for CAP_SYS_ADMIN outside of user namespaces.
    static bool is_root();

    static std::string file_system_problem(int fd, const std::filesystem::path& path);

    static std::string text_of(const char* path);
    static std::string text_of(int file);
    static void write_text(int file, std::string_view text, const std::filesystem::path& path);

    // ---- records ----

    // The directory of records, locked: nobody else changes records or numbers meanwhile.
    UniqueFd open_records(std::chrono::seconds patience) const;

    std::filesystem::path record_of(std::uint32_t id) const;
    bool has_record(std::uint32_t id) const { return ::access(record_of(id).c_str(), F_OK) == 0; }

    // The first of the numbers that belong to these records; picked when there is none yet.
    std::uint32_t first_id() const;

    // Uses the quota that is there already, when the directories are another sandbox's.
    bool join(std::uint64_t bytes);

    // Takes a number that nobody uses, on this file system or another.
    void create_record(std::uint32_t first);

    // Undoes what hosts that were killed have left.
    void undo_abandoned(std::uint32_t first);

    // ---- quotas ----

    static std::uint64_t kibibytes(std::uint64_t bytes);

    if_dqblk quota(std::uint32_t id) const;

    static bool set(int fd, std::uint32_t id, std::uint64_t kib, std::uint64_t files);

    void limit(std::uint64_t bytes, const std::filesystem::path& path) const;

    // ---- numbers of files ----

    static fsxattr attributes(int file, const std::filesystem::path& path);

    // New files and directories in a directory that passes on its number get it as well.
    static void change(int file, fsxattr values, bool directory, std::uint32_t id,
                       const std::filesystem::path& path);

    void take(int file, const std::filesystem::path& path, bool directory,
              std::uint32_t first) const;

    // Removes the limit and takes the files out of the project. False when time was too short.
    static bool release(std::uint32_t id, int root, std::chrono::seconds patience) noexcept;

    void undo(std::chrono::seconds patience) noexcept;

    // Calls visit(handle, path, is a directory) for what lies below `root`, itself first, as far as
    // it can be marked: links, sockets and pipes take no space. Guests may have built the tree, to
    // any depth, and may change it at the same time.
    static void walk(int root, const std::filesystem::path& path, const Visit& visit);

    static void check_device(int file, dev_t device, const std::filesystem::path& path);

    static void visit_files(int directory, dev_t device, const std::filesystem::path& path,
                            std::vector<std::string>& directories, const Visit& visit);

    std::filesystem::path records_;
    std::vector<Root> roots_;
    dev_t device_ = 0;
    std::uint32_t id_ = 0;
    UniqueFd record_;
};

}  // namespace ipybox::sandbox_kit

#ifndef IPYBOX_SEPARATE_COMPILATION
#include <ipybox/sandbox_kit/impl/project_quota.ipp>
#endif
