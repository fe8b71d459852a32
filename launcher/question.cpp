#include "question.hpp"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <unistd.h>

#include "descriptors.hpp"

namespace ipybox::launcher {
namespace {

constexpr off_t largest_copy = off_t{256} << 20, largest_input = off_t{16} << 20;
constexpr unsigned executable_memory = 0x10;  // MFD_EXEC, Linux 6.3

bool same(const struct stat& one, const struct stat& other) {
    return one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

void name_of(int file, char (&name)[64]) { snprintf(name, sizeof name, "/proc/self/fd/%d", file); }

// False: it has none.
bool path_of(int file, char (&path)[PATH_MAX]) {
    char name[64];
    name_of(file, name);
    const ssize_t size = readlink(name, path, sizeof path - 1);
    path[size < 0 ? 0 : size] = '\0';
    return size > 0 && size < static_cast<ssize_t>(sizeof path) - 1;
}

// A file of our own mounts under this name, if it is the one that `known` is; else -1.
int open_own(const char* path, int flags, const struct stat& known) {
    struct stat found{};
    const int file = open(path, flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (file < 0) return -1;
    if (fstat(file, &found) == 0 && same(found, known)) return file;
    close(file);
    return -1;
}

// Whether nobody in the sandbox can change what lies there: all on the way is mounted read-only,
// and nobody has the right to mount.
bool is_fixed(const char* path) {
    if (path[0] != '/') return false;
    char prefix[PATH_MAX];
    for (size_t i = 1;; ++i) {
        if (path[i] != '/' && path[i] != '\0') continue;
        memcpy(prefix, path, i);
        prefix[i] = '\0';
        const int file = open(i == 1 ? "/" : prefix, O_PATH | O_NOFOLLOW | O_CLOEXEC);
        struct stat status{};
        struct statvfs around{};
        const bool good = file >= 0 && fstat(file, &status) == 0 && !S_ISLNK(status.st_mode) &&
                          fstatvfs(file, &around) == 0 && (around.f_flag & ST_RDONLY) != 0;
        if (file >= 0) close(file);
        if (!good) return false;
        if (path[i] == '\0') return true;
    }
}

bool is_fixed_file(const char* path, const struct stat& known) {
    const int file = open_own(path, O_PATH, known);
    if (file < 0) return false;
    close(file);
    return is_fixed(path);
}

// Of a copy; -1 with errno.
int make_memory(const char* name) {
    const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
    const int file = memfd_create(name, flags | executable_memory);
    return file >= 0 || errno != EINVAL ? file : memfd_create(name, flags);
}

bool seal(int file) {
    return fcntl(file, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) == 0;
}

// Writes a question's records.
class Records {
public:
    explicit Records(int file) : file_(file) {}
    void add(char letter, const char* bytes, size_t size) {
        const auto length = static_cast<uint32_t>(size);
        char head[5] = {letter};
        memcpy(head + 1, &length, sizeof length);
        const iovec parts[] = {{head, sizeof head}, {const_cast<char*>(bytes), size}};
        good_ = good_ && writev(file_, parts, 2) == static_cast<ssize_t>(sizeof head + size);
    }
    void add(char letter, const char* text) { add(letter, text, strlen(text)); }
    bool good() const { return good_; }

private:
    int file_;
    bool good_ = true;
};

// What comes out of a descriptor, in words.
void describe(int file, bool sealed, char* words, size_t size) {
    struct stat status{};
    char path[PATH_MAX];
    if (fstat(file, &status) != 0) {
        snprintf(words, size, "nothing");
    } else if (sealed) {
        snprintf(words, size, "a text");
    } else if (S_ISCHR(status.st_mode) && status.st_rdev == makedev(1, 3)) {
        snprintf(words, size, "nothing");
    } else if (S_ISCHR(status.st_mode) && isatty(file)) {
        snprintf(words, size, "a terminal: whatever the code writes later");
    } else if ((S_ISREG(status.st_mode) || S_ISDIR(status.st_mode) || S_ISCHR(status.st_mode)) &&
               path_of(file, path)) {
        snprintf(words, size, "the %s %s",
                 S_ISREG(status.st_mode)   ? "file"
                 : S_ISDIR(status.st_mode) ? "directory"
                                           : "device",
                 path);
    } else {
        snprintf(words, size, "whatever the code writes later");
    }
}

bool starts(const char* text, const char* with) { return strncmp(text, with, strlen(with)) == 0; }

// Whether a variable says what loaders and interpreters run.
bool steers(const char* variable) {
    static constexpr const char* families[] = {
        "LD_",  "BASH_", "PYTHON", "PERL",   "NODE_",   "NPM_",   "npm_",    "GIT_",
        "RUBY", "JAVA_", "_JAVA",  "JDK_",   "LUA",     "GCONV",  "GLIBC",   "XDG_",
        "PIP_", "CONDA", "UV_",    "R_",     "JULIA_",  "TCL",    "DOTNET_", "CMAKE_",
        "MAKE", "GO",    "CARGO",  "RUST",   "OPENSSL", "CURL_",  "SSH_",    "VIM",
        "PHP",  "ERL_",  "GEM_",   "BUNDLE", "RIPGREP", "ELIXIR", "NIX_",    "DENO_",
        "BUN_", "ZDOT",  "GHC",    "OCAML",  "CAML",    "MIX_",   "QT_",     "GTK_",
        "AWK",  "LESS",  "MALLOC", "DYLD_",  "COR",     "POETRY", "JUPYTER", "IPYTHON"};
    static constexpr const char* names[] = {"PATH",         "ENV",           "IFS",
                                            "PS4",          "SHELL",         "SHELLOPTS",
                                            "BASHOPTS",     "CDPATH",        "EDITOR",
                                            "HOME",         "PAGER",         "VISUAL",
                                            "BROWSER",      "CLASSPATH",     "CC",
                                            "CXX",          "LOCPATH",       "MANPAGER",
                                            "TMPDIR",       "NLSPATH",       "PHPRC",
                                            "EXINIT",       "WGETRC",        "INPUTRC",
                                            "RSYNC_RSH",    "TERMINFO",      "HISTFILE",
                                            "VIRTUAL_ENV",  "CFLAGS",        "GNUMAKEFLAGS",
                                            "SUDO_ASKPASS", "TAR_OPTIONS",   "PROMPT_COMMAND",
                                            "LIBRARY_PATH", "COMPILER_PATH", "GCC_EXEC_PREFIX"};
    for (const char* family : families)
        if (starts(variable, family)) return true;
    for (const char* name : names)
        if (starts(variable, name) && variable[strlen(name)] == '=') return true;
    return false;
}

bool is_among(const char* variable, char** list) {
    for (; *list != nullptr; ++list)
        if (strcmp(variable, *list) == 0) return true;
    return false;
}

void add_variables(Records& records, char** variables, char** base) {
    for (char** each = variables; *each != nullptr; ++each) {
        const char* const text = *each;
        if (is_among(text, base)) continue;
        const char* const equals = strchr(text, '=');
        if (equals == nullptr || steers(text))
            records.add('e', text);
        else
            records.add('n', text, static_cast<size_t>(equals - text));
    }
    // What steered and is gone.
    for (; *base != nullptr; ++base) {
        const char* const equals = strchr(*base, '=');
        if (equals == nullptr || !steers(*base)) continue;
        const auto size = static_cast<size_t>(equals - *base);
        bool there = false;
        for (char** each = variables; *each != nullptr; ++each)
            there = there || strncmp(*each, *base, size + 1) == 0;
        if (!there) records.add('e', *base, size);
    }
}

}  // namespace

bool Target::is(const char* other) const {
    struct stat one{}, two{};
    return !writable && stat(path, &one) == 0 && stat(other, &two) == 0 && same(one, two);
}

bool Target::make_copy(int file, Refusal& refusal) {
    struct stat status{};
    copy = make_memory("program");
    if (copy < 0 || fstat(file, &status) != 0 || status.st_size > largest_copy)
        return refuse(refusal, ENOMEM, "the program cannot be copied, and code could change it");
    off_t at = 0;
    while (at < status.st_size) {
        const ssize_t count = sendfile(copy, file, &at, static_cast<size_t>(status.st_size - at));
        if (count < 0) return refuse(refusal, errno, "the program cannot be copied");
        if (count == 0) break;
    }
    return seal(copy) || refuse(refusal, errno, "the program's copy cannot be sealed");
}

// `#!` and what stands behind it.
bool Target::read_first_line(int file, Refusal& refusal) {
    char line[257] = "";
    const ssize_t size = pread(file, line, sizeof line - 1, 0);
    if (size < 2 || line[0] != '#' || line[1] != '!') return true;
    script = true;
    line[size] = '\0';
    char* const end = strchr(line, '\n');
    if (end == nullptr && size == static_cast<ssize_t>(sizeof line) - 1)
        return refuse(refusal, ENOEXEC, "the script's first line is too long");
    if (end != nullptr) *end = '\0';
    if (strlen(line) != static_cast<size_t>(end != nullptr ? end - line : size))
        return refuse(refusal, ENOEXEC, "the script's first line is malformed");
    char* name = line + 2 + strspn(line + 2, " \t");
    char* rest = name + strcspn(name, " \t");
    if (*rest != '\0') *rest++ = '\0';
    rest += strspn(rest, " \t");
    for (size_t last = strlen(rest); last > 0 && strchr(" \t", rest[last - 1]) != nullptr;)
        rest[--last] = '\0';
    snprintf(option_, sizeof option_, "%s", rest);
    if (name[0] != '/')
        return refuse(refusal, ENOEXEC, "the script's interpreter has no full path");
    const int opened = open(name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (opened < 0) return refuse(refusal, errno, "the script's interpreter cannot be opened");
    struct stat status{};
    char magic[2] = "";
    const bool good = fstat(opened, &status) == 0 && S_ISREG(status.st_mode) &&
                      path_of(opened, interpreter) && is_fixed_file(interpreter, status) &&
                      pread(opened, magic, sizeof magic, 0) == 2 &&
                      !(magic[0] == '#' && magic[1] == '!');
    close(opened);
    return good || refuse(refusal, EPERM,
                          "the script's interpreter is a script itself, or lies where code can "
                          "write: name one of the system");
}

// A script gets its interpreter before it and its own name instead of the first, as Linux does it.
bool Target::make_argv(const Request& request, Refusal& refusal) {
    argv = request.arguments;
    if (!script) return true;
    argv = static_cast<char**>(calloc(request.head.arguments + 3, sizeof(char*)));
    if (argv == nullptr) return refuse(refusal, ENOMEM, "no memory for the arguments");
    size_t size = 0;
    argv[size++] = interpreter;
    if (option_[0] != '\0') argv[size++] = option_;
    copy_number = 10;
    if (request.head.descriptors > 0) {
        const uint32_t last = request.numbers[request.head.descriptors - 1];
        if (last >= copy_number) copy_number = last + 1;
    }
    snprintf(copy_name_, sizeof copy_name_, "/proc/self/fd/%u", copy_number);
    argv[size++] = writable ? copy_name_ : path;
    for (uint32_t i = 1; i < request.head.arguments; ++i) argv[size++] = request.arguments[i];
    return true;
}

// A sealed one is opened anew: whoever shares the description could move the place that is read.
bool Target::hold_input(Request& request, Refusal& refusal) {
    if (request.head.descriptors == 0 || request.numbers[0] != 0) return true;
    int& given = request.descriptors[0];
    if (!is_sealed(given)) return true;
    char name[64];
    name_of(given, name);
    struct stat status{};
    if (fstat(given, &status) != 0 || status.st_size > largest_input)
        return refuse(refusal, EPERM,
                      "the program's input is larger than 16 MiB: have it read a file");
    input = open(name, O_RDONLY | O_CLOEXEC);
    if (input < 0) return refuse(refusal, errno, "the program's input cannot be opened");
    close(given);
    given = input;
    return true;
}

// As our mounts have it: in those of the kernel the program would not find its way.
void Target::hold_directory(Request& request) {
    struct stat status{};
    if (!path_of(request.directory, directory_) || fstat(request.directory, &status) != 0) return;
    const int own = open_own(directory_, O_PATH | O_DIRECTORY, status);
    if (own < 0) return;
    close(request.directory);
    request.directory = own;
}

bool Target::look(Request& request, Refusal& refusal) {
    struct stat status{};
    char name[64];
    name_of(request.program, name);
    if (fstat(request.program, &status) != 0 || !S_ISREG(status.st_mode) ||
        access(name, X_OK) != 0 || (fcntl(request.program, F_GETFL) & O_PATH) != 0)
        return refuse(refusal, EACCES, "");
    if (!path_of(request.program, path))
        return refuse(refusal, ENAMETOOLONG, "the program has no path");
    writable = !is_fixed_file(path, status);
    const int file = request.program;
    if (writable && !make_copy(file, refusal)) return false;
    if (!read_first_line(writable ? copy : file, refusal)) return false;
    hold_directory(request);
    return make_argv(request, refusal) && hold_input(request, refusal);
}

bool Target::ask(const Request& request, int host, char** base, int& answer, Refusal& refusal) {
    const int file = make_memory("question");
    if (file < 0) return refuse(refusal, errno, "no memory for the question");
    Records records(file);
    records.add('p', path);
    if (writable) records.add('w', "");
    if (script) records.add('s', "");
    for (char** each = argv; *each != nullptr; ++each) records.add('a', *each);
    records.add('d', directory_);
    char words[PATH_MAX + 64];
    uint32_t i = 0;
    if (request.head.descriptors > 0 && request.numbers[0] == 0) {
        describe(request.descriptors[0], input >= 0, words, sizeof words);
        records.add('i', words);
        i = 1;
    } else {
        records.add('i', "nothing");
    }
    for (; i < request.head.descriptors; ++i) {
        if (request.numbers[i] < 3) continue;  // what it says
        const int used = snprintf(words, sizeof words, "%u: ", request.numbers[i]);
        describe(request.descriptors[i], false, words + used,
                 sizeof words - static_cast<size_t>(used));
        records.add('f', words);
    }
    add_variables(records, request.variables, base);
    int ends[2];
    if (!records.good() || !seal(file) ||
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        return refuse(refusal, ENOMEM, "the question cannot be put");
    int files[4] = {ends[1], file};
    int count = 2;
    char byte = question_byte;
    if (copy >= 0) files[count++] = copy, byte = static_cast<char>(byte | question_has_copy);
    if (input >= 0) files[count++] = input, byte = static_cast<char>(byte | question_has_input);
    const bool sent = send_descriptors(host, byte, files, count);
    close(ends[1]);
    close(file);
    answer = ends[0];
    return sent || refuse(refusal, EPERM, "nobody is there to be asked");
}

}  // namespace ipybox::launcher
