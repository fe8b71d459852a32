// What bwrap binds into a sandbox and cannot make itself, made beforehand in namespaces of its own:
// tmpfs mounts with a limit on the number of files too, because a tree of empty files takes memory
// of the machine as well; and layers, in which a workspace has names that it does not have on the
// host. And what bwrap can write: it goes by paths, which code may exchange for links meanwhile.
#include "scratch.hpp"

#include <fcntl.h>
#include <linux/mount.h>
#include <linux/openat2.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

namespace {

// Hidden from nobody: this mount namespace is only bwrap's, which takes from here what it binds.
constexpr const char* place = "/sys";

constexpr unsigned max_layers = 8;

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

long configure(int context, unsigned command, const char* key, const void* value, int aux) {
    return ::syscall(SYS_fsconfig, context, command, key, value, aux);
}

// ---- layers
// --------------------------------------------------------------------------------------

// The words that describe the layers, each ended by a NUL byte.
class Words {
public:
    // False when they cannot be read.
    bool read(int file) {
        struct stat status{};
        if (::fstat(file, &status) != 0) return false;
        const auto size = static_cast<std::size_t>(status.st_size);
        text_ = static_cast<char*>(std::malloc(size + 1));
        if (text_ == nullptr || ::pread(file, text_, size, 0) != status.st_size) return false;
        text_[size] = '\0';
        end_ = text_ + size;
        return true;
    }
    bool more() const { return text_ < end_; }
    const char* next() {
        const char* word = text_;
        if (more()) text_ += std::strlen(text_) + 1;
        return word;
    }

private:
    char* text_ = nullptr;
    char* end_ = nullptr;
};

// Opens a file or directory whose DEVICE:INODE the host has seen: the way to it may lead over
// places that code can write.
int open_same(const char* path, const char* expected, int more_flags = 0) {
    const int file = ::open(path, O_PATH | O_CLOEXEC | more_flags);
    struct stat found{};
    if (file < 0 || ::fstat(file, &found) != 0) return -1;
    char text[64];
    std::snprintf(text, sizeof text, "%ju:%ju", static_cast<std::uintmax_t>(found.st_dev),
                  static_cast<std::uintmax_t>(found.st_ino));
    if (std::strcmp(text, expected) == 0) return file;
    ::close(file);
    errno = ESTALE;
    return -1;
}

// By descriptor, so that no character of a path means anything; before Linux 6.13 by its name in
// /proc.
bool add_directory(int context, const char* key, const char* old_key, int directory) {
    if (configure(context, FSCONFIG_SET_FD, key, nullptr, directory) == 0) return true;
    char link[40];
    std::snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
    return configure(context, FSCONFIG_SET_STRING, key, link, 0) == 0 ||
           configure(context, FSCONFIG_SET_STRING, old_key, link, 0) == 0;
}

// Makes `name`, which ends with a slash when it is to be a directory, and what leads to it, below
// the current directory.
bool make_name(const char* name) {
    char path[4096];
    const std::size_t size = std::strlen(name);
    if (size == 0 || size >= sizeof path) return errno = EINVAL, false;
    std::memcpy(path, name, size + 1);
    for (char* slash = std::strchr(path, '/'); slash != nullptr;
         slash = std::strchr(slash + 1, '/')) {
        *slash = '\0';
        if (::mkdir(path, 0755) != 0 && errno != EEXIST) return false;
        *slash = '/';
    }
    if (path[size - 1] == '/') return true;
    const int file = ::open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    // git gives up on an empty commondir; this says what is so without it.
    const char* last = std::strrchr(path, '/');
    const bool common = std::strcmp(last == nullptr ? path : last + 1, "commondir") == 0;
    const bool good = file >= 0 && (!common || ::write(file, ".", 1) == 1);
    if (file >= 0) ::close(file);
    return good;
}

// Opens what is there, a link itself too; none on the way is followed.
int open_unled(int directory, const char* name, unsigned long long resolve) {
    open_how how{};
    how.flags = O_PATH | O_NOFOLLOW | O_CLOEXEC;
    how.resolve = resolve | RESOLVE_NO_SYMLINKS;
    return static_cast<int>(::syscall(SYS_openat2, directory, name, &how, sizeof how));
}

// Puts a copy of a mount on what is there, so that nobody can write, rename or remove it.
// or_writable: before Linux 5.12 the copy can be written.
bool mount_read_only(int copy, int there, bool or_writable) {
    mount_attr attributes{};
    attributes.attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV;
    return (::syscall(SYS_mount_setattr, copy, "", AT_EMPTY_PATH, &attributes, sizeof attributes) ==
                0 ||
            (or_writable && errno == ENOSYS)) &&
           ::syscall(SYS_move_mount, copy, "", there, "",
                     MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) == 0;
}

// Puts a mount of its own on what is there.
bool pin(int layer, const char* name) {
    const int found = open_unled(layer, name, RESOLVE_BENEATH);
    struct stat status{};
    if (found < 0 || ::fstat(found, &status) != 0) return false;
    // It leads to where code can write. The host saw no link, or would have refused it.
    if (S_ISLNK(status.st_mode)) return errno = ELOOP, false;
    const int copy = static_cast<int>(
        ::syscall(SYS_open_tree, found, "",
                  OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH | AT_RECURSIVE));
    const bool good = copy >= 0 && mount_read_only(copy, found, false);
    const int why = errno;
    ::close(found);
    ::close(copy);
    errno = why;
    return good;
}

// At /sys/layerN, the workspace as it is on the host, written through, with names below that it
// lacks. What is mounted there later is seen by those who have bound it.
bool mount_layer(Words& words, unsigned number) {
    char names[] = "/sys/names/0", target[] = "/sys/layer0";
    names[sizeof names - 2] = target[sizeof target - 2] = static_cast<char>('0' + number);
    const char* path = words.next();
    const int upper = open_same(path, words.next(), O_DIRECTORY);
    const char* work_path = words.next();
    const int work = open_same(work_path, words.next(), O_DIRECTORY);
    if (upper < 0 || work < 0 || ::mkdir(names, 0755) != 0 || ::mkdir(target, 0755) != 0 ||
        ::chdir(names) != 0)
        return false;
    const int lower = ::open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    for (const char* name = words.next(); *name != '\0'; name = words.next())
        if (!make_name(name)) return false;
    struct statvfs status{};
    if (lower < 0 || ::fstatvfs(upper, &status) != 0) return false;
    const int context = static_cast<int>(::syscall(SYS_fsopen, "overlay", FSOPEN_CLOEXEC));
    if (context < 0 || !add_directory(context, "lowerdir+", "lowerdir", lower) ||
        !add_directory(context, "upperdir", "upperdir", upper) ||
        !add_directory(context, "workdir", "workdir", work) ||
        configure(context, FSCONFIG_SET_FLAG, "userxattr", nullptr, 0) != 0)
        return false;
    // Else the end of each kernel would wait for all that the machine has not written to this file
    // system yet.
    if (configure(context, FSCONFIG_SET_FLAG, "volatile", nullptr, 0) != 0) return false;
    // One attribute less on the workspace; not every kernel knows it.
    configure(context, FSCONFIG_SET_STRING, "uuid", "null", 0);
    if (configure(context, FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) != 0) return false;
    const unsigned attributes = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV |
                                ((status.f_flag & ST_NOEXEC) != 0 ? MOUNT_ATTR_NOEXEC : 0);
    const int mounted =
        static_cast<int>(::syscall(SYS_fsmount, context, FSMOUNT_CLOEXEC, attributes));
    const bool good = mounted >= 0 && ::syscall(SYS_move_mount, mounted, "", AT_FDCWD, target,
                                                MOVE_MOUNT_F_EMPTY_PATH) == 0;
    for (const int file : {upper, work, lower, context, mounted}) ::close(file);
    return good && ::mount(nullptr, target, nullptr, MS_SHARED, nullptr) == 0;
}

// Makes the names that layers hold read-only.
bool pin_all(Words words) {
    for (char number = '0'; words.more(); ++number) {
        const char target[] = {'/', 's', 'y', 's', '/', 'l', 'a', 'y', 'e', 'r', number, '\0'};
        for (int word = 0; word < 4; ++word) words.next();  // mount_layer() has read them
        const int layer = ::open(target, O_PATH | O_DIRECTORY | O_CLOEXEC);
        bool good = layer >= 0;
        for (const char* name = words.next(); good && *name != '\0'; name = words.next())
            good = pin(layer, name);
        ::close(layer);
        if (!good) return false;
    }
    return true;
}

// Forgets what names meant: the host may have replaced or removed what they led to, or made them.
bool refresh(unsigned layers) {
    bool good = true;
    for (unsigned number = 0; number < layers; ++number) {
        char target[] = "/sys/layer0";
        target[sizeof target - 2] = static_cast<char>('0' + number);
        const int picked =
            static_cast<int>(::syscall(SYS_fspick, AT_FDCWD, target, FSPICK_CLOEXEC));
        good = picked >= 0 &&
               configure(picked, FSCONFIG_CMD_RECONFIGURE, nullptr, nullptr, 0) == 0 && good;
        ::close(picked);
    }
    return good;
}

// Refreshes for each byte from the host, which gets it back, and else often enough that nothing is
// older than a second on a busy machine either. For one that is 'p' the names in `words` are pinned
// as well; the answer is 'f' when they could not be.
[[noreturn]] void keep_fresh(const Words& words, unsigned layers, int control) {
    constexpr int interval = 400;  // milliseconds
    for (;;) {
        pollfd event{control, POLLIN, 0};
        char asked[64];
        ssize_t count = 0;
        if (::poll(&event, 1, interval) > 0) {
            count = ::read(control, asked, sizeof asked);
            if (count == 0 || (count < 0 && errno != EINTR && errno != EAGAIN)) ::_exit(0);
        }
        if (count == 1 && asked[0] == 'p' && !pin_all(words)) asked[0] = 'f';
        refresh(layers);
        if (count > 0 && ::write(control, asked, static_cast<std::size_t>(count)) < 0 &&
            errno == EPIPE)
            ::_exit(0);
    }
}

// What is mounted at /sys/layer0 ….
struct Layers {
    Words words;
    unsigned count = 0;
};

// Mounts what `description` says.
int mount_layers(int description, Layers& layers) {
    if (!layers.words.read(description)) return fail("layers");
    ::close(description);
    if (::mkdir("/sys/names", 0755) != 0 ||
        ::mount("tmpfs", "/sys/names", "tmpfs", MS_NOSUID | MS_NODEV,
                "size=4m,nr_inodes=4096,mode=0755") != 0)
        return fail("/sys/names");
    for (Words words = layers.words; words.more(); ++layers.count)
        if (layers.count == max_layers || !mount_layer(words, layers.count)) return fail("a layer");
    return ::chdir("/") == 0 ? 0 : fail("/");
}

// Leaves somebody behind who keeps them fresh, as a child of our parent: nothing but that one's
// end, the host's, or the guard ends it. pinned: the names are from the beginning; else when the
// host asks for it.
int keep_layers(const Layers& layers, int control, bool pinned) {
    if (pinned && !pin_all(layers.words)) {
        std::fprintf(stderr,
                     "ipybox-launcher: names that a writable place lacks cannot be protected (%s): "
                     "something has changed its directories meanwhile; start again\n",
                     std::strerror(errno));
        return 126;
    }
    if (!refresh(layers.count)) return fail("refreshing a layer");
    ::fcntl(control, F_SETFD, FD_CLOEXEC);
    const long keeper =
        ::syscall(SYS_clone, CLONE_PARENT | SIGCHLD, nullptr, nullptr, nullptr, nullptr);
    if (keeper < 0) return fail("clone");
    if (keeper == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
        ::signal(SIGPIPE, SIG_IGN);
        if (::dup2(control, 3) != 3) ::_exit(1);
        ::syscall(SYS_close_range, 4u, ~0u, 0u);
        for (const int stream : {0, 1, 2}) ::close(stream);
        keep_fresh(layers.words, layers.count, 3);
    }
    ::close(control);
    return 0;
}

// ---- what stays writable
// --------------------------------------------------------------------------

// One of the places that do.
struct Writable {
    int where, copy;  // the place, and a mount of it that is not sealed
};

bool open_place(const char* path, const char* expected, Writable& found) {
    found.where = open_same(path, expected);
    if (found.where < 0) return false;
    found.copy = static_cast<int>(
        ::syscall(SYS_open_tree, found.where, "",
                  OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH | AT_RECURSIVE));
    return found.copy >= 0 || errno == ENOSYS;  // before Linux 5.2: nothing is sealed
}

bool set_read_only(const char* path, bool yes, unsigned how) {
    mount_attr attributes{};
    (yes ? attributes.attr_set : attributes.attr_clr) = MOUNT_ATTR_RDONLY;
    return ::syscall(SYS_mount_setattr, AT_FDCWD, path, how, &attributes, sizeof attributes) == 0;
}

// Makes all of the disk read-only for what we become, but for what we have mounted, for /proc, by
// which it makes its namespaces, and for the places. False with the errno.
bool seal(const Writable* places, int count) {
    // Before Linux 5.12; then nothing holds names in layers either.
    if (!set_read_only("/", true, AT_RECURSIVE)) return errno == ENOSYS;
    if (!set_read_only(place, false, AT_RECURSIVE)) return false;
    set_read_only("/proc", false, 0);  // where the machine's own is read-only, it stays so
    for (int i = 0; i < count; ++i) {
        if (::syscall(SYS_move_mount, places[i].copy, "", places[i].where, "",
                      MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) != 0)
            return false;
        ::close(places[i].where);
        ::close(places[i].copy);
    }
    return true;
}

// ---- what cannot be opened
// ------------------------------------------------------------------------

// Covers links, which bwrap would go along. Devices cannot be opened on such a mount.
bool cover_links(char** paths, int count) {
    for (int i = 0; i < count; ++i) {
        const int link = open_unled(AT_FDCWD, paths[2 * i], 0);
        struct stat found{};
        if (link < 0 || ::fstat(link, &found) != 0) return false;
        if (!S_ISLNK(found.st_mode)) return errno = ESTALE, false;
        const int cover = static_cast<int>(
            ::syscall(SYS_open_tree, AT_FDCWD, "/dev/null", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC));
        // Before Linux 5.12 it can be opened, and is empty; before 5.2 links stay.
        const bool good = cover >= 0 && mount_read_only(cover, link, true);
        if (!good && errno != ENOSYS) return false;
        ::close(link);
        ::close(cover);
    }
    return true;
}

}  // namespace

int scratch_main(int argc, char** argv) {
    int description = -1, control = -1, count = 0, covered = 0;
    bool pinned = true;
    const auto given = [&](const char* option, int values) {
        if (argc < 5 + values || std::strcmp(argv[1], option) != 0) return false;
        argc -= 1 + values;
        argv += 1 + values;
        return true;
    };
    if (given("--pin-later", 0)) pinned = false;
    if (given("--layers", 2)) {
        description = std::atoi(argv[-1]);
        control = std::atoi(argv[0]);
    }
    char** const writable = argv + 2;
    while (given("--writable", 2)) ++count;
    char** const links = argv + 2;
    while (given("--cover", 1)) ++covered;
    if (argc < 5 || std::strcmp(argv[3], "--") != 0) {
        std::fputs(
            "usage: ipybox-launcher scratch [[--pin-later] --layers FD CONTROL] "
            "[--writable PATH DEVICE:INODE]… [--cover LINK]… OPTIONS COUNT -- COMMAND "
            "[ARGUMENT]...\n"
            "Becomes COMMAND, which sees COUNT (0 to 9) fresh tmpfs mounts with these mount\n"
            "options at /sys/0, /sys/1 …, and at /sys/layer0 … the layers that FD describes; a "
            "byte\n"
            "to CONTROL, a socket, makes it see what the host has changed there, and a `p` makes "
            "the\n"
            "names read-only that they hold, which else they are before COMMAND. All else but "
            "each PATH\n"
            "is read-only for it, and no LINK is one, nor can be opened.\n",
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
    if (::mount("tmpfs", place, "tmpfs", flags, "size=64k,nr_inodes=64,mode=0755") != 0)
        return fail("mount /sys");
    for (char number = '0'; number < argv[2][0]; ++number) {
        const char path[] = {'/', 's', 'y', 's', '/', number, '\0'};
        if (::mkdir(path, 0755) != 0 || ::mount("tmpfs", path, "tmpfs", flags, argv[1]) != 0)
            return fail(path);
    }
    Layers layers;
    if (description >= 0)
        if (const int failed = mount_layers(description, layers); failed != 0) return failed;
    auto* places =
        static_cast<Writable*>(std::calloc(static_cast<std::size_t>(count) + 1, sizeof(Writable)));
    for (int i = 0; i < count; ++i)
        if (places == nullptr || !open_place(writable[3 * i], writable[3 * i + 1], places[i]))
            return fail(writable[3 * i]);
    // Before names are pinned: what we have mounted is writable again then.
    if (!seal(places, count)) return fail("a read-only disk");
    if (!cover_links(links, covered)) return fail("a link that is hidden");
    if (description >= 0)
        if (const int failed = keep_layers(layers, control, pinned); failed != 0) return failed;
    ::execv(argv[4], argv + 4);
    return fail(argv[4]);
}
