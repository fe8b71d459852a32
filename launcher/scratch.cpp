// bubblewrap's own tmpfs mounts have a size but no limit on the number of files, and a tree of empty
// files takes memory of the machine as well. This mounts them beforehand, in namespaces of its own.
#include "scratch.hpp"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace {

// Hidden from nobody: this mount namespace is only bwrap's, which takes from here what it binds.
constexpr const char* place = "/sys";

bool write_file(const char* path, const char* text) {
    const int file = ::open(path, O_WRONLY | O_CLOEXEC);
    const auto size = static_cast<ssize_t>(std::strlen(text));
    const bool good = file >= 0 && ::write(file, text, std::strlen(text)) == size;
    if (file >= 0) ::close(file);
    return good;
}

int fail(const char* what) {
    std::fprintf(stderr, "ipybox-launcher: cannot make the scratch space: %s: %s\n", what,
                 std::strerror(errno));
    return 126;
}

}  // namespace

int scratch_main(int argc, char** argv) {
    if (argc < 5 || std::strcmp(argv[3], "--") != 0) {
        std::fputs("usage: ipybox-launcher scratch OPTIONS COUNT -- COMMAND [ARGUMENT]...\n"
                   "Becomes COMMAND, which sees COUNT (1 to 9) fresh tmpfs mounts with these mount\n"
                   "options at /sys/0, /sys/1 …\n",
                   stderr);
        return 2;
    }
    const auto user = ::getuid();
    const auto group = ::getgid();
    if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return fail("unshare");
    char map[64];
    std::snprintf(map, sizeof map, "%u %u 1", user, user);
    if (!write_file("/proc/self/uid_map", map)) return fail("uid_map");
    std::snprintf(map, sizeof map, "%u %u 1", group, group);
    if (!write_file("/proc/self/setgroups", "deny") || !write_file("/proc/self/gid_map", map))
        return fail("gid_map");
    if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return fail("mount /");
    constexpr unsigned long flags = MS_NOSUID | MS_NODEV;
    if (::mount("tmpfs", place, "tmpfs", flags, "size=64k,nr_inodes=32,mode=0755") != 0)
        return fail("mount /sys");
    for (char number = '0'; number < argv[2][0]; ++number) {
        const char path[] = {'/', 's', 'y', 's', '/', number, '\0'};
        if (::mkdir(path, 0755) != 0 || ::mount("tmpfs", path, "tmpfs", flags, argv[1]) != 0)
            return fail(path);
    }
    ::execv(argv[4], argv + 4);
    return fail(argv[4]);
}
