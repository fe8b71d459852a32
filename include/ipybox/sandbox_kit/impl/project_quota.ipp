#pragma once
#include <ipybox/sandbox_kit/project_quota.hpp>

#include <dirent.h>
#include <fcntl.h>
#include <linux/dqblk_xfs.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <ipybox/compilation.hpp>
#include <ipybox/error.hpp>
#include <memory>
#include <sstream>
#include <utility>

namespace ipybox::sandbox_kit {

IPYBOX_DECL std::string ProjectQuota::machine_problem() {
    if (call(-1, Q_XGETQSTATV, 0, nullptr) != 0 && errno == ENOSYS)
        return "the kernel has no quotas (CONFIG_QUOTA), or is older than Linux 5.14";
    if (errno == EPERM) return "the container's system call filter forbids quotactl_fd";
    if (!is_root()) return "it takes root (CAP_SYS_ADMIN), outside of user namespaces";
    return "";
}

IPYBOX_DECL std::string ProjectQuota::problem(const std::filesystem::path& directory) {
    const UniqueFd handle(::open(directory.c_str(), O_RDONLY | O_CLOEXEC));
    if (!handle) return "cannot open " + directory.string() + ": " + std::strerror(errno);
    const auto machine = machine_problem();
    const auto here = file_system_problem(handle.get(), directory);
    return machine + (machine.empty() || here.empty() ? "" : "; and ") + here;
}

IPYBOX_DECL ProjectQuota::ProjectQuota(const std::vector<std::filesystem::path>& roots,
                                       std::uint64_t bytes, std::filesystem::path records)
    : records_(std::move(records)) {
    for (const auto& path : roots) {
        roots_.push_back({path, UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC))});
        if (!roots_.back().handle) fail(path.string());
        struct stat info{};
        if (::fstat(roots_.back().handle.get(), &info) != 0) fail(path.string());
        if (roots_.size() == 1) device_ = info.st_dev;
        if (info.st_dev != device_)
            refuse(roots[0].string() + " and " + path.string() +
                   " lie on different file systems, whose quotas cannot be shared");
    }
    if (roots_.empty()) refuse("the policy lets nothing on the disk be written");
    if (const auto why = problem(roots[0]); !why.empty()) refuse(why);

    const auto lock = open_records(std::chrono::seconds(60));
    const auto first = first_id();
    undo_abandoned(first);
    if (join(bytes)) return;
    create_record(first);
    try {
        for (const auto& root : roots_)
            walk(root.handle.get(), root.path, [&](int file, const auto& where, bool directory) {
                take(file, where, directory, first);
            });
        limit(bytes, roots[0]);
    } catch (...) {
        undo(std::chrono::minutes(10));
        throw;
    }
}

IPYBOX_DECL ProjectQuota::ProjectQuota(ProjectQuota&& other) noexcept
    : records_(std::move(other.records_)),
      roots_(std::move(other.roots_)),
      device_(other.device_),
      id_(std::exchange(other.id_, 0)),
      record_(std::move(other.record_)) {}

IPYBOX_DECL ProjectQuota::~ProjectQuota() {
    if (id_ == 0) return;
    try {
        const auto lock = open_records(std::chrono::seconds(10));
        // Others on the same directories keep it.
        if (::flock(record_.get(), LOCK_EX | LOCK_NB) == 0) undo(std::chrono::seconds(10));
    } catch (const std::exception&) {
        // The record stays, and the next quota that is set undoes this one.
    }
}

[[noreturn]] IPYBOX_DECL void ProjectQuota::refuse(const std::string& why) {
    throw Error(errc::sandbox_refused, "workspace_size cannot be enforced here: " + why);
}

[[noreturn]] IPYBOX_DECL void ProjectQuota::fail(const std::string& what) {
    throw Error(errc::io_error, "workspace_size: " + what + ": " + std::strerror(errno));
}

IPYBOX_DECL int ProjectQuota::call(int fd, unsigned command, std::uint32_t id, void* argument) {
    constexpr long quotactl_fd = 443;  // the same on every architecture; too new for some headers
    return static_cast<int>(
        ::syscall(quotactl_fd, fd, QCMD(command, PRJQUOTA), static_cast<int>(id), argument));
}

IPYBOX_DECL bool ProjectQuota::is_root() {
    constexpr int sys_admin = 21;
    std::istringstream status(text_of("/proc/self/status"));
    std::uint64_t effective = 0;
    for (std::string name; status >> name;)
        if (name == "CapEff:") status >> std::hex >> effective;
    std::istringstream map(text_of("/proc/self/uid_map"));
    std::uint64_t inside = 0, outside = 0, count = 0;
    map >> inside >> outside >> count;
    return (effective >> sys_admin & 1) != 0 && inside == 0 && outside == 0 && count == 0xffff'ffff;
}

IPYBOX_DECL std::string ProjectQuota::file_system_problem(int fd,
                                                          const std::filesystem::path& path) {
    fs_quota_statv state{};
    state.qs_version = FS_QSTATV_VERSION1;
    const bool known = call(fd, Q_XGETQSTATV, 0, &state) == 0;
    if (known && (state.qs_flags & FS_QUOTA_PDQ_ENFD) != 0) return "";
    return "the file system of " + path.string() +
           " has no project quotas: they take XFS mounted with -o prjquota, or ext4 with "
           "\"tune2fs -O quota,project -Q prjquota\" while it is not mounted and -o prjquota "
           "when it is";
}

IPYBOX_DECL std::string ProjectQuota::text_of(const char* path) {
    const UniqueFd file(::open(path, O_RDONLY | O_CLOEXEC));
    return file ? text_of(file.get()) : "";
}

IPYBOX_DECL std::string ProjectQuota::text_of(int file) {
    std::string text;
    char buffer[4096];
    for (ssize_t count = 0; (count = ::read(file, buffer, sizeof buffer)) > 0;)
        text.append(buffer, static_cast<std::size_t>(count));
    return text;
}

IPYBOX_DECL void ProjectQuota::write_text(int file, std::string_view text,
                                          const std::filesystem::path& path) {
    if (::write(file, text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
        ::fsync(file) != 0)
        fail("cannot write " + path.string());
}

IPYBOX_DECL UniqueFd ProjectQuota::open_records(std::chrono::seconds patience) const {
    std::error_code error;
    std::filesystem::create_directories(records_, error);
    UniqueFd handle(::open(records_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    struct stat info{};
    if (!handle || ::fstat(handle.get(), &info) != 0 || ::fchmod(handle.get(), 0700) != 0)
        fail("cannot keep records in " + records_.string());
    if (info.st_uid != ::geteuid())
        refuse(records_.string() + ", where records are kept, belongs to somebody else");
    const auto deadline = std::chrono::steady_clock::now() + patience;
    while (::flock(handle.get(), LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK || std::chrono::steady_clock::now() > deadline)
            fail("cannot lock " + records_.string());
        ::usleep(20'000);
    }
    return handle;
}

IPYBOX_DECL std::filesystem::path ProjectQuota::record_of(std::uint32_t id) const {
    return records_ / std::to_string(id);
}

IPYBOX_DECL std::uint32_t ProjectQuota::first_id() const {
    const auto path = records_ / "block";
    std::uint32_t block = blocks;
    const auto text = text_of(path.c_str());
    std::from_chars(text.data(), text.data() + text.size(), block);
    if (block >= blocks) {
        std::uint16_t random = 0;
        if (::getrandom(&random, sizeof random, 0) != sizeof random) fail("no random number");
        block = random;
        const UniqueFd file(
            ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600));
        if (!file) fail("cannot write " + path.string());
        write_text(file.get(), std::to_string(block) + "\n", path);
    }
    return range + block * block_size;
}

IPYBOX_DECL bool ProjectQuota::join(std::uint64_t bytes) {
    const auto id = attributes(roots_[0].handle.get(), roots_[0].path).fsx_projid;
    for (const auto& root : roots_)
        if (attributes(root.handle.get(), root.path).fsx_projid != id) return false;
    if (id == 0 || !has_record(id)) return false;
    const auto now = quota(id);
    // XFS rounds up to whole blocks.
    if (now.dqb_bhardlimit - kibibytes(bytes) >= 64)
        refuse(roots_[0].path.string() + " is limited to " + std::to_string(now.dqb_bhardlimit) +
               " KiB by another sandbox that runs: choose the same, or end that one first");
    UniqueFd record(::open(record_of(id).c_str(), O_RDONLY | O_CLOEXEC));
    if (!record || ::flock(record.get(), LOCK_SH | LOCK_NB) != 0)
        fail("cannot lock " + record_of(id).string());
    record_ = std::move(record);
    id_ = id;
    return true;
}

IPYBOX_DECL void ProjectQuota::create_record(std::uint32_t first) {
    for (std::uint32_t id = first; id < first + block_size; ++id) {
        const auto used = quota(id);
        if (has_record(id) || used.dqb_curspace != 0 || used.dqb_curinodes != 0) continue;
        const auto path = record_of(id);
        UniqueFd record(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
        if (!record || ::flock(record.get(), LOCK_SH | LOCK_NB) != 0)
            fail("cannot keep a record in " + path.string());
        std::string text;
        for (const auto& root : roots_)
            text += std::filesystem::canonical(root.path).string() + '\0';
        write_text(record.get(), text, path);
        record_ = std::move(record);
        id_ = id;
        return;
    }
    refuse("all project ids of this machine's records in " + records_.string() + " are taken");
}

IPYBOX_DECL void ProjectQuota::undo_abandoned(std::uint32_t first) {
    std::error_code error;
    for (std::filesystem::directory_iterator entry(records_, error), end; !error && entry != end;
         entry.increment(error)) {
        const auto name = entry->path().filename().string();
        std::uint32_t id = 0;
        std::from_chars(name.data(), name.data() + name.size(), id);
        if (id < first || id - first >= block_size) continue;
        const UniqueFd record(::open(entry->path().c_str(), O_RDONLY | O_CLOEXEC));
        if (!record || ::flock(record.get(), LOCK_EX | LOCK_NB) != 0) continue;
        const auto text = text_of(record.get());
        bool done = true;
        for (std::size_t at = 0, stop; (stop = text.find('\0', at)) != text.npos; at = stop + 1) {
            const auto path = text.substr(at, stop - at);
            const UniqueFd root(
                ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
            // One that is gone took its numbers with it.
            if (root) done = release(id, root.get(), std::chrono::minutes(1)) && done;
        }
        if (done) ::unlink(entry->path().c_str());
    }
    // What has a limit and no record was not mounted when its record was dropped.
    for (std::uint32_t id = first; id < first + block_size; ++id) {
        if_nextdqblk next{};
        if (call(roots_[0].handle.get(), Q_GETNEXTQUOTA, id, &next) != 0 || next.dqb_id < id) break;
        id = next.dqb_id;
        if (id < first + block_size && !has_record(id)) set(roots_[0].handle.get(), id, 0, 0);
    }
}

IPYBOX_DECL std::uint64_t ProjectQuota::kibibytes(std::uint64_t bytes) {
    return std::max<std::uint64_t>(bytes / 1024, 1);  // 0 would mean no limit
}

IPYBOX_DECL if_dqblk ProjectQuota::quota(std::uint32_t id) const {
    if_dqblk found{};
    // XFS knows nothing of a number that was never used.
    if (call(roots_[0].handle.get(), Q_GETQUOTA, id, &found) != 0 && errno != ENOENT &&
        errno != ESRCH)
        fail("cannot read a quota of " + roots_[0].path.string());
    return found;
}

IPYBOX_DECL bool ProjectQuota::set(int fd, std::uint32_t id, std::uint64_t kib,
                                   std::uint64_t files) {
    if_dqblk wanted{};
    wanted.dqb_bhardlimit = kib;
    wanted.dqb_ihardlimit = files;
    wanted.dqb_valid = QIF_LIMITS;
    return call(fd, Q_SETQUOTA, id, &wanted) == 0;
}

IPYBOX_DECL void ProjectQuota::limit(std::uint64_t bytes, const std::filesystem::path& path) const {
    const auto used = quota(id_);
    const auto kib = kibibytes(bytes);
    if (used.dqb_curspace / 1024 > kib)
        refuse(path.string() + " already takes " + std::to_string(used.dqb_curspace / 1024) +
               " KiB, more than the limit of " + std::to_string(kib) +
               " KiB: remove files, or raise the limit");
    const auto files = std::max<std::uint64_t>(bytes / 4096, used.dqb_curinodes + 1024);
    if (!set(roots_[0].handle.get(), id_, kib, files))
        fail("cannot set the quota of " + path.string());
}

IPYBOX_DECL fsxattr ProjectQuota::attributes(int file, const std::filesystem::path& path) {
    fsxattr found{};
    if (::ioctl(file, FS_IOC_FSGETXATTR, &found) != 0) fail("cannot look at " + path.string());
    return found;
}

IPYBOX_DECL void ProjectQuota::change(int file, fsxattr values, bool directory, std::uint32_t id,
                                      const std::filesystem::path& path) {
    values.fsx_projid = id;
    if (directory && id != 0) values.fsx_xflags |= FS_XFLAG_PROJINHERIT;
    if (directory && id == 0) values.fsx_xflags &= ~std::uint32_t{FS_XFLAG_PROJINHERIT};
    if (::ioctl(file, FS_IOC_FSSETXATTR, &values) != 0)
        fail("cannot change the project of " + path.string());
}

IPYBOX_DECL void ProjectQuota::take(int file, const std::filesystem::path& path, bool directory,
                                    std::uint32_t first) const {
    const auto values = attributes(file, path);
    const auto old = values.fsx_projid;
    if (old == id_ && (!directory || (values.fsx_xflags & FS_XFLAG_PROJINHERIT) != 0)) return;
    // Ours without a record is left from a killed host.
    const bool ours = old >= first && old - first < block_size;
    if (ours && old != id_ && has_record(old))
        refuse(path.string() + " is limited by another sandbox that runs: end that one first");
    if (!ours && old != 0)
        refuse(path.string() + " already belongs to project " + std::to_string(old) +
               ", whose quota is somebody else's; take it out of that project (chattr -R -p 0) "
               "if nobody needs it");
    change(file, values, directory, id_, path);
}

IPYBOX_DECL bool ProjectQuota::release(std::uint32_t id, int root,
                                       std::chrono::seconds patience) noexcept {
    try {
        set(root, id, 0, 0);
        const auto deadline = std::chrono::steady_clock::now() + patience;
        bool in_time = true;
        walk(root, {}, [&](int file, const auto& path, bool directory) {
            in_time = in_time && std::chrono::steady_clock::now() < deadline;
            if (!in_time) throw Error(errc::io_error, "there is too much");
            const auto values = attributes(file, path);
            if (values.fsx_projid == id) change(file, values, directory, 0, path);
        });
        return true;
    } catch (const std::exception&) {
        return false;
    }
}

IPYBOX_DECL void ProjectQuota::undo(std::chrono::seconds patience) noexcept {
    bool done = true;
    for (const auto& root : roots_) done = release(id_, root.handle.get(), patience) && done;
    if (done) ::unlink(record_of(id_).c_str());
    id_ = 0;
}

IPYBOX_DECL void ProjectQuota::walk(int root, const std::filesystem::path& path,
                                    const Visit& visit) {
    struct Level {
        ino_t inode = 0;
        std::filesystem::path path;
        std::vector<std::string> directories;  // still to be visited
    };
    struct stat top{};
    if (::fstat(root, &top) != 0) fail(path.string());
    visit(root, path, S_ISDIR(top.st_mode));
    if (!S_ISDIR(top.st_mode)) return;
    UniqueFd current(::openat(root, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!current) fail(path.string());
    std::vector<Level> levels;
    const auto enter = [&](std::filesystem::path where) {
        struct stat info{};
        if (::fstat(current.get(), &info) != 0) fail(where.string());
        levels.push_back({info.st_ino, std::move(where), {}});
        visit_files(current.get(), top.st_dev, levels.back().path, levels.back().directories,
                    visit);
    };
    enter(path);
    while (!levels.empty()) {
        auto& level = levels.back();
        if (!level.directories.empty()) {
            auto where = level.path / level.directories.back();
            UniqueFd next(::openat(current.get(), level.directories.back().c_str(),
                                   O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
            level.directories.pop_back();
            if (!next && (errno == ENOENT || errno == ENOTDIR || errno == ELOOP)) continue;
            if (!next) fail("cannot open " + where.string());
            check_device(next.get(), top.st_dev, where);
            visit(next.get(), where, true);
            current = std::move(next);
            enter(std::move(where));
        } else {
            levels.pop_back();
            if (levels.empty()) break;
            // One handle serves any depth; the way up must be the way that led down.
            UniqueFd above(::openat(current.get(), "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
            struct stat info{};
            if (!above || ::fstat(above.get(), &info) != 0 || info.st_ino != levels.back().inode)
                throw Error(errc::io_error, "workspace_size: " + levels.back().path.string() +
                                                " changes while its quota is set: try again");
            current = std::move(above);
        }
    }
}

IPYBOX_DECL void ProjectQuota::check_device(int file, dev_t device,
                                            const std::filesystem::path& path) {
    struct stat info{};
    if (::fstat(file, &info) != 0) fail(path.string());
    if (info.st_dev != device)
        refuse(path.string() + " is another file system, which would not be counted");
}

IPYBOX_DECL void ProjectQuota::visit_files(int directory, dev_t device,
                                           const std::filesystem::path& path,
                                           std::vector<std::string>& directories,
                                           const Visit& visit) {
    const int own = ::openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const std::unique_ptr<DIR, int (*)(DIR*)> entries(own < 0 ? nullptr : ::fdopendir(own),
                                                      ::closedir);
    if (!entries) fail("cannot read " + path.string());
    while (const dirent* entry = ::readdir(entries.get())) {
        const std::string name = entry->d_name;
        if (name == "." || name == "..") continue;
        struct stat info{};
        if (::fstatat(directory, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) continue;
        if (S_ISDIR(info.st_mode)) {
            directories.push_back(name);
        } else if (S_ISREG(info.st_mode)) {
            const auto where = path / name;
            // Something else may be there by now: a pipe must not make us wait.
            const UniqueFd file(
                ::openat(directory, name.c_str(),
                         O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
            if (!file && (errno == ENOENT || errno == ELOOP)) continue;
            if (!file) fail("cannot open " + where.string());
            if (::fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
            check_device(file.get(), device, where);
            visit(file.get(), where, false);
        }
    }
}

}  // namespace ipybox::sandbox_kit
