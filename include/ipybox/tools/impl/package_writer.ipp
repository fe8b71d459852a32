#pragma once
#include <ipybox/tools/apigen.hpp>

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <ipybox/compilation.hpp>
#include <ipybox/detail/beneath.hpp>
#include <ipybox/detail/python_source.hpp>
#include <ipybox/error.hpp>
#include <ipybox/tools/detail/package_root.hpp>
#include <ipybox/tools/detail/tool_module.hpp>
#include <optional>
#include <utility>

namespace ipybox {

namespace tools {

// What a user or an agent wrote below the marker of a generated module.
inline std::string_view own_code(std::string_view module) {
    const auto at = module.find("\n" + std::string(own_code_marker));
    return at == std::string_view::npos ? std::string_view{}
                                        : module.substr(at + 1 + own_code_marker.size());
}

struct PackageFiles {
    std::map<std::string, std::string> now, next;  // next carries the own code of now
    std::vector<std::string> kept;                 // what others put there, and stays
    // `now` has what others wrote, in the place of what is written or part of it.
    bool foreign = false;
};

// Of what is in one package already, in bytes: code can put there what it likes.
inline constexpr std::size_t most_module_text = std::size_t{64} << 20;

inline PackageFiles package_files(const detail::PackageRoot& root, const std::string& server,
                                  const GeneratedPackage& package) {
    PackageFiles files;
    files.next = package.files;
    const auto directory = root ? detail::PackageRoot::open_folder(root.get(), server) : UniqueFd();
    if (!directory) return files;
    static const std::string init = "__init__.py";
    const auto of_original =
        is_of_original(detail::PackageRoot::read(directory.get(), init).value_or(""));
    std::size_t read = 0;
    for (const auto& name : detail::PackageRoot::entries(directory.get())) {
        if (name == "__pycache__") continue;
        auto text = detail::PackageRoot::read(directory.get(), name);
        if (text && (read += text->size()) > most_module_text)
            throw Error(errc::io_error, "the package " + server +
                                            " has more than 64 MiB of files: " +
                                            "remove those that are not its modules");
        const auto it = files.next.find(name);
        const bool ours =
            text &&
            (name == init ? text->compare(0, 3 + detail::package_title.size(),
                                          "\"\"\"" + std::string(detail::package_title)) == 0
                          : text->find("\n" + std::string(own_code_marker)) != std::string::npos);
        if (!ours && it == files.next.end() &&
            !(of_original && text && text->find("CLIENT.run") != std::string::npos)) {
            files.kept.push_back(name);
            continue;
        }
        files.foreign = files.foreign || !ours;
        if (ours && it != files.next.end() && name != init) it->second += own_code(*text);
        files.now[name] = text ? std::move(*text) : std::string("\0", 1);
    }
    return files;
}

// Gives what is at `folder` the first free of .NAME.before, .NAME.before2, …, which Python does not
// import. Returns that name.
inline std::string set_aside(const detail::PackageRoot& root, const std::string& folder,
                             const std::string& server) {
    static constexpr int max_kept = 100;
    for (int number = 1; number <= max_kept; ++number) {
        auto name = '.' + server + ".before" + (number == 1 ? "" : std::to_string(number));
        if (::syscall(SYS_renameat2, root.get(), folder.c_str(), root.get(), name.c_str(),
                      RENAME_NOREPLACE) == 0)
            return name;
        if (errno != EEXIST) break;
    }
    root.fail("cannot keep what was at " + server + " as ." + server + ".before in");
}

// The package in the place of what is at `server_name`; see write_package().
inline bool replace_package(const detail::PackageRoot& root, std::string_view server_name,
                            const GeneratedPackage& package, std::string* kept_as) {
    check_server_name(server_name);
    for (const auto& [name, text] : package.files)
        if (name.size() < 4 || name.substr(name.size() - 3) != ".py" ||
            !detail::is_python_identifier(std::string_view(name).substr(0, name.size() - 3)))
            throw Error(errc::bad_argument, "not a module's file name: " + name);
    const std::string server(server_name);
    const auto files = package_files(root, server, package);
    if (files.now == files.next) return false;

    std::uint64_t random = 0;
    if (::getrandom(&random, sizeof random, 0) != sizeof random) root.fail("no randomness for");
    const std::string fresh = "." + server + "." + std::to_string(random);
    if (::mkdirat(root.get(), fresh.c_str(), 0755) != 0) root.fail("cannot create a folder in");
    struct Cleanup {
        const detail::PackageRoot& root;
        const std::string& name;
        ~Cleanup() { root.remove(name); }
    } cleanup{root, fresh};
    const auto directory = detail::PackageRoot::open_folder(root.get(), fresh);
    if (!directory) root.fail("cannot open a new folder in");
    detail::give_to_owner_of(root.get(), directory.get());
    for (const auto& [name, text] : files.next) detail::write_new_file(directory.get(), name, text);
    root.swap(fresh, server);
    const auto old = detail::PackageRoot::open_folder(root.get(), fresh);
    const auto move_kept = [&](int from, int to) {
        bool all = true;
        for (const auto& name : files.kept)
            all = ::syscall(SYS_renameat2, from, name.c_str(), to, name.c_str(),
                            RENAME_NOREPLACE) == 0 &&
                  all;
        return all;
    };
    const bool moved = !old || move_kept(old.get(), directory.get());
    std::string aside;
    try {
        if (files.foreign || !moved) aside = set_aside(root, fresh, server);
    } catch (const Error&) {
        // Rather the old package than none of it.
        if (old) move_kept(directory.get(), old.get());
        root.swap(fresh, server);
        throw;
    }
    if (kept_as) *kept_as = aside;
    return true;
}

}  // namespace tools

IPYBOX_DECL std::vector<std::string> package_changes(const std::filesystem::path& root_dir,
                                                     std::string_view server_name,
                                                     const GeneratedPackage& package) {
    check_server_name(server_name);
    const auto files = tools::package_files(detail::PackageRoot(root_dir, false),
                                            std::string(server_name), package);
    const auto &now = files.now, &next = files.next;
    std::vector<std::string> changes;
    for (const auto& [name, text] : next)
        if (const auto it = now.find(name); it == now.end())
            changes.push_back("+ " + name);
        else if (it->second != text)
            changes.push_back("~ " + name);
    for (const auto& [name, text] : now)
        if (!next.count(name))
            changes.push_back("- " + name +
                              (tools::own_code(text).empty() ? "" : " with own code"));
    return changes;
}

IPYBOX_DECL bool write_package(const std::filesystem::path& root_dir, std::string_view server_name,
                               const GeneratedPackage& package, std::string* kept_as) {
    check_server_name(server_name);
    return tools::replace_package(detail::PackageRoot(root_dir, true), server_name, package,
                                  kept_as);
}

IPYBOX_DECL bool write_package(int root_dir, std::string_view server_name,
                               const GeneratedPackage& package, std::string* kept_as) {
    return tools::replace_package(detail::PackageRoot(root_dir), server_name, package, kept_as);
}

}  // namespace ipybox
