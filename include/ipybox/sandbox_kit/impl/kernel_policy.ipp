#pragma once
#include <ipybox/sandbox_kit/kernel_policy.hpp>

#include <pwd.h>
#include <unistd.h>

#include <ipybox/compilation.hpp>
#include <ipybox/detail/path_walk.hpp>
#include <ipybox/sandbox_kit/python_environment.hpp>
#include <ipybox/sandbox_kit/writable_places.hpp>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

namespace ipybox::sandbox_kit {

IPYBOX_DECL std::vector<std::filesystem::path> home_directories() {
    static const std::string listed = [] {
        const passwd* user = ::getpwuid(::geteuid());
        return std::string(user != nullptr && user->pw_dir != nullptr ? user->pw_dir : "");
    }();
    const char* variable = std::getenv("HOME");
    std::vector<std::filesystem::path> homes;
    for (const std::string& home : {std::string(variable != nullptr ? variable : ""), listed}) {
        std::error_code error;
        if (!home.starts_with('/')) continue;
        auto real = std::filesystem::weakly_canonical(home, error);
        if (!error && std::find(homes.begin(), homes.end(), real) == homes.end())
            homes.push_back(std::move(real));
    }
    return homes;
}

IPYBOX_DECL std::vector<std::filesystem::path> with_real_places(
    std::vector<std::filesystem::path> roots) {
    for (std::size_t i = 0, given = roots.size(); i < given; ++i) {
        std::error_code error;
        auto real = std::filesystem::weakly_canonical(roots[i], error);
        if (!error && real != roots[i]) roots.push_back(std::move(real));
    }
    return roots;
}

IPYBOX_DECL detail::PathWalk real_place(const std::filesystem::path& path,
                                        const std::vector<std::filesystem::path>& writable) {
    return detail::walk_path(
        path, [&writable](const std::filesystem::path& at, const detail::PathStatus& status) {
            return !S_ISLNK(status.mode) ||
                   std::none_of(writable.begin(), writable.end(), [&](const auto& root) {
                       return at != root && detail::within(at, root);
                   });
        });
}

}  // namespace ipybox::sandbox_kit

namespace ipybox {

IPYBOX_DECL void keep_own_state(SandboxPolicy& policy, const PolicySources& sources) {
    namespace fs = std::filesystem;
    const auto writable = sandbox_kit::with_real_places(policy.writable);
    // A root that is reached over links shows what lies behind it under its own name.
    const auto seen_at = [&policy](const fs::path& place) {
        std::vector<fs::path> places = {place};
        for (const auto* list : {&policy.readable, &policy.writable})
            for (const auto& root : *list) {
                std::error_code error;
                const auto behind = fs::weakly_canonical(root, error);
                if (error || behind == root || !detail::within(place, behind)) continue;
                places.push_back((root / place.lexically_relative(behind)).lexically_normal());
            }
        return places;
    };
    const auto real = [&](const fs::path& path, const char* what) {
        auto place = sandbox_kit::real_place(path, writable);
        if (!place.whole)
            sandbox_kit::refuse(
                std::string(what) + " " + path.string() + " is reached over the link " +
                place.at.string() +
                ", which code could exchange: put it elsewhere, or do not make that "
                "place writable");
        return std::move(place.at);
    };
    const auto hide = [&](const fs::path& place) {
        for (const auto& at : seen_at(place)) {
            policy.hidden.push_back(literal_glob(at));
            std::erase_if(policy.shown,
                          [&](const fs::path& path) { return detail::within(path, at); });
        }
    };
    auto& kept = policy.write_protected;
    const auto protect = [&](const fs::path& place) {
        for (auto& at : seen_at(place)) kept.push_back(std::move(at));
    };
    for (const auto& directory : sources.own) {
        if (directory.empty()) continue;
        const auto place = real(directory, "ipybox's own directory");
        for (const auto* list : {&policy.readable, &policy.writable})
            for (const auto& root : *list) {
                const auto& python = sources.interpreter;
                if (std::find(python.begin(), python.end(), root) != python.end()) continue;
                if (detail::within(root, place) ||
                    detail::within(fs::weakly_canonical(root), place))
                    throw Error(errc::bad_argument,
                                root.string() + " lies in ipybox's own directory " +
                                    place.string() + ", which no code may see; name another place");
            }
        // Absent, code could make it, or keep the host from making it.
        if (const auto* root = detail::outermost_around(place, writable);
            root != nullptr && !fs::exists(place)) {
            const auto top = detail::open_directory(*root);
            const auto made =
                detail::make_directory_beneath(top.get(), place.lexically_relative(*root));
            if (::fchmod(made.get(), 0700) != 0) detail::throw_io_error(place.string());
        }
        hide(place);
    }
    if (!sources.audit_log.empty()) {
        const auto place = real(sources.audit_log, "the audit log");
        if (!detail::within(place, "/dev") && !detail::within(place, "/proc")) hide(place);
    }

    for (const auto& file : sources.write_protected) {
        kept.push_back(file);
        // A link is refused when the sandbox starts; gone by then, it was in a directory's place.
        protect(sandbox_kit::real_place(file, writable).by_name());
    }
    // It runs on the host at the next start, as does what this program was installed into.
    auto started = sources.interpreter;
    if (const auto python = sandbox_kit::python_of_installation())
        started.push_back(python->parent_path().parent_path());
    for (const auto& path : started)
        if (sandbox_kit::within_any(path, writable)) protect(path);

    for (const auto& home : sources.homes) {
        std::vector<fs::path> names(std::begin(sandbox_kit::home_protected),
                                    std::end(sandbox_kit::home_protected));
        std::error_code error;
        if (sandbox_kit::within_any(home, writable))
            for (fs::directory_iterator entry(home, error), end; !error && entry != end;
                 entry.increment(error))
                if (const auto name = entry->path().filename();
                    name.native().front() == '.' && name != ".ipybox")
                    names.push_back(name);
        for (const auto& name : names) {
            const auto path = home / name;
            // A root in there was asked for by its name.
            const bool named = std::any_of(writable.begin(), writable.end(), [&](const auto& root) {
                return detail::within(root, path);
            });
            if (!named && sandbox_kit::within_any(path, writable)) protect(path);
        }
    }
    std::sort(kept.begin(), kept.end());
    kept.erase(std::unique(kept.begin(), kept.end()), kept.end());
}

IPYBOX_DECL void refuse_home(const PolicySources& sources) {
    for (const auto& home : sources.homes)
        for (const auto& root : {sources.workspace, sources.working_dir})
            if (!root.empty() && home != "/" &&
                detail::within(home, std::filesystem::weakly_canonical(root)))
                sandbox_kit::refuse(
                    "workspace " + root.string() + (home == root ? " is" : " holds") +
                    " a home directory, whose files decide what programs of its owner "
                    "do: name a directory "
                    "below it (--workspace), or allow it (--allow-home, allow_home)");
}

IPYBOX_DECL sandbox_kit::ProtectedFiles guard_workspace(SandboxPolicy& policy,
                                                        const std::filesystem::path& workspace,
                                                        const sandbox_kit::ProtectionRules& rules) {
    const auto start = literal_glob(workspace);
    policy.hidden.push_back(start + "/.env");
    policy.hidden.push_back(start + "/**/.env");
    // .venv: find_python() would run, on the host, one that code planted.
    auto& kept = policy.write_protected;
    for (const char* name : {".env", ".venv", "sandbox-config.json"})
        kept.push_back(workspace / name);
    auto found = sandbox_kit::protected_files(workspace, rules);
    kept.insert(kept.end(), found.paths.begin(), found.paths.end());
    return found;
}

IPYBOX_DECL KernelPolicy::KernelPolicy(const PolicySources& sources, SandboxPolicy base)
    : workspace_(sources.workspace), policy_(std::move(base)) {
    policy_.cwd = sources.working_dir.empty() ? workspace_ : sources.working_dir;
    policy_.writable = {workspace_};
    // In the workspace it is as writable as the workspace is there.
    if (!detail::within(policy_.cwd, workspace_)) policy_.writable.push_back(policy_.cwd);
    policy_.readable = sources.interpreter;
    protected_ = guard_workspace(policy_, workspace_, sources.protection);
    if (policy_.cwd != workspace_ && !detail::within(policy_.cwd, workspace_)) {
        auto there = sandbox_kit::protected_files(policy_.cwd, sources.protection);
        policy_.write_protected.insert(policy_.write_protected.end(), there.paths.begin(),
                                       there.paths.end());
        protected_.left_out.insert(protected_.left_out.end(), there.left_out.begin(),
                                   there.left_out.end());
    }
    if (sources.settings) {
        const char* home = std::getenv("HOME");
        policy_ = apply_srt_settings(
            *sources.settings, std::move(policy_), workspace_,
            home != nullptr ? std::filesystem::path(home) : std::filesystem::path("/"),
            sources.protection);
    }
    keep_own_state(policy_, sources);
    writable_ = sandbox_kit::with_real_places(policy_.writable);
    policy_.behind_links = std::make_shared<HiddenBehindLinks>();
}

IPYBOX_DECL UniqueFd KernelPolicy::open_for_writing(const std::filesystem::path& path,
                                                    const std::filesystem::path& name) const {
    namespace fs = std::filesystem;
    // What lies below a writable place is opened without links, so that it is enough to look as
    // far.
    const auto named = absolute(path);
    auto place = sandbox_kit::real_place(named, writable_);
    if (place.whole && place.at != named && detail::within(named, workspace_))
        place = {workspace_, false, {}};  // which led over no link when it was chosen
    if (!place.whole)
        throw Error(errc::denied,
                    path.string() + ": leads over the link " + place.at.string() +
                        ", which code may have put there; name the place that it leads to");
    const auto file = (place.at / name).lexically_normal();
    const auto* root = detail::outermost_around(place.at, writable_);
    if (root == nullptr) {
        // The host's own place, or one that code of another session can write.
        const auto own = writable_places().real_paths({named}).front();
        fs::create_directories(own);
        return detail::open_real_directory(own);
    }
    if (name.empty() ? is_hidden_or_below_kept(place.at) : is_kept(file))
        throw Error(
            errc::denied,
            file.string() + ": is protected; it holds settings, secrets or programs of the host");
    const auto top = detail::open_real_directory(*root);
    return detail::make_directory_beneath(top.get(), place.at.lexically_relative(*root));
}

IPYBOX_DECL const HiddenBehindLinks& KernelPolicy::behind_links() const {
    auto& found = *policy_.behind_links;
    if (found.searched) return found;
    try {
        found = sandbox_kit::View::behind_links(policy_);
    } catch (const Error&) {
        found.searched = true;  // with such a policy no sandbox starts that hides anything
    }
    return found;
}

IPYBOX_DECL bool KernelPolicy::is_hidden(const std::filesystem::path& path) const {
    struct stat status{};
    if (sandbox_kit::is_hidden(policy_, path)) return true;
    return ::lstat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) && !may_read(status);
}

IPYBOX_DECL bool KernelPolicy::is_kept(const std::filesystem::path& path) const {
    return is_hidden_or_below_kept(path) ||
           std::any_of(policy_.write_protected.begin(), policy_.write_protected.end(),
                       [&](const auto& kept) { return detail::within(kept, path); });
}

IPYBOX_DECL void set_default_limits(Limits& limits, const Capabilities& able,
                                    std::uint64_t scratch) {
    if (able.process_isolation && able.limits_per_process) {
        if (!limits.processes) limits.processes = 1024;
        if (!limits.open_files) limits.open_files = 4096;
    }
    if (able.scratch_size && !limits.scratch_size) limits.scratch_size = scratch;
    if (able.scratch_inodes && !limits.scratch_inodes) limits.scratch_inodes = 1 << 18;
}

}  // namespace ipybox
