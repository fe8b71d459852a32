#pragma once
#include <ipybox/executor/code_executor.hpp>

#include <sys/stat.h>

#include <ipybox/compilation.hpp>
#include <ipybox/detail/within.hpp>
#include <ipybox/executor/impl/session.hpp>
#include <ipybox/sandbox_kit/guest_view.hpp>

namespace ipybox {

IPYBOX_DECL void CodeExecutor::Session::tell_protection(const sandbox_kit::ProtectedFiles& found) {
    json::array names;
    for (const auto& path : found.opened) {
        const auto name = path.lexically_relative(workspace).string();
        host.logger(LogLevel::warning, "allow_write: the code may write " +
                                           detail::printable(name) +
                                           ", which is protected otherwise");
        names.emplace_back(name);
    }
    for (const auto& path : opened)
        if (std::none_of(found.opened.begin(), found.opened.end(),
                         [&](const auto& one) { return detail::within(one, path); }))
            host.logger(LogLevel::warning,
                        "allow_write " +
                            detail::printable(path.lexically_relative(workspace).string()) +
                            " opens nothing: nothing there is protected");
    if (!names.empty()) {
        json::object record;
        record["event"] = "files_opened";
        record["paths"] = std::move(names);
        record_files(std::move(record));
    }
    for (const auto& text : found.left_out) tell_files("not protected: " + text, true);
    if (!found.deeper.empty())
        host.logger(LogLevel::info,
                    "files that programs of the host run: " + detail::printable(found.deeper));
}

IPYBOX_DECL void CodeExecutor::Session::record_files(json::object record) {
    if (!options.audit) return;
    record["session"] = options.session;
    if (run) record["execution"] = run->id;
    try {
        options.audit->write(std::move(record));
    } catch (const Error& error) {  // the log keeps it, and refuses the next execution
        host.logger(LogLevel::warning, error.detail());
    }
}

IPYBOX_DECL void CodeExecutor::Session::tell_files(const std::string& what, bool first) {
    Violation violation;
    violation.layer = files_layer;
    violation.what = detail::printable(what);
    if (first) host.logger(LogLevel::warning, "sandbox: files: " + violation.what);
    report(violation);
}

IPYBOX_DECL void CodeExecutor::Session::tell_changes(
    const std::vector<sandbox_kit::FileChange>& changes) {
    constexpr std::size_t most = 50;  // code can make any number
    for (std::size_t i = 0; i < std::min(most, changes.size()); ++i) {
        const auto& change = changes[i];
        const bool first = told_files.size() < 10'000 && told_files.insert(change.path).second;
        const std::string how = change.is_new ? " is new: " : " was changed: ";
        tell_files(change.path + how + std::string(detail::reason(*change.file)), first);
        json::object record;
        record["event"] = "file_changed";
        record["path"] = change.path;
        record["outcome"] = change.is_new ? "new" : "changed";
        record["runs"] =
            change.file->when == detail::HostRun::unasked ? "unasked" : "on a person's act";
        record_files(std::move(record));
    }
    if (changes.size() > most)
        tell_files(std::to_string(changes.size() - most) +
                       " more files that the host runs or obeys are new or changed",
                   true);
}

IPYBOX_DECL void CodeExecutor::Session::watch_files(const SandboxPolicy& policy) {
    const bool written =
        std::any_of(policy.writable.begin(), policy.writable.end(), [this](const auto& place) {
            return detail::within(place, workspace) || detail::within(workspace, place);
        });
    if (!protecting || !written) return;
    try {
        // A quota of the workspace changes the time of every file's last change.
        file_watch = std::make_unique<sandbox_kit::FileWatch>(
            workspace, protection().depth, policy.write_protected, !policy.limits.workspace_size,
            &code_policy->protected_files().directories);
    } catch (const Error& error) {
        tell_files("changes will not be told: " + error.detail(), true);
    }
}

IPYBOX_DECL void CodeExecutor::Session::look_at_files() {
    if (!file_watch) return;
    tell_changes(file_watch->scan());
    for (const auto& text : file_watch->left_out())
        if (told_files.size() < 10'000 && told_files.insert(text).second)
            tell_files("not looked at: " + text, true);
}

IPYBOX_DECL bool CodeExecutor::Session::is_guarded(const std::filesystem::path& relative,
                                                   bool to_write) {
    const auto& policy = policy_of_code();
    return to_write ? !policy.may_write(relative) : !policy.may_read(relative);
}

IPYBOX_DECL std::filesystem::path CodeExecutor::Session::checked_path(const std::string& text,
                                                                      bool to_write) {
    auto path = detail::workspace_path(text);
    if (is_guarded(path, to_write)) detail::throw_guarded(path);
    return path;
}

IPYBOX_DECL FilePart CodeExecutor::Session::read_here(const std::filesystem::path& path,
                                                      std::uint64_t offset, std::size_t limit) {
    const auto root = detail::open_real_directory(workspace);
    return detail::read_beneath(
        root.get(), path, offset, std::min(limit, max_file),
        [this](const struct stat& file) { return policy_of_code().may_read(file); });
}

IPYBOX_DECL RemoteBackend* CodeExecutor::Session::remote_backend() const {
    return dynamic_cast<RemoteBackend*>(doors->backend.get());
}

IPYBOX_DECL RemoteKernel* CodeExecutor::Session::remote_kernel() const {
    return dynamic_cast<RemoteKernel*>(kernel.get());
}

IPYBOX_DECL RemoteKernel& CodeExecutor::Session::distant_kernel() const {
    if (!kernel || !kernel->alive())
        throw Error(
            errc::kernel_died,
            "files lie where the kernel runs, and none is running; call start() or reset()");
    return *remote_kernel();  // start() takes no other
}

IPYBOX_DECL awaitable<void> CodeExecutor::Session::upload(std::string text, std::string bytes,
                                                          bool overwrite) {
    const auto self = shared_from_this();
    // A file among the interpreter's own would run when it starts.
    if (shares_files()) co_await find_environment();
    auto path = checked_path(text, true);
    if (bytes.size() > max_file)
        throw Error(errc::bad_argument, path.string() + ": " + std::to_string(bytes.size()) +
                                            " bytes are more than the " + std::to_string(max_file) +
                                            " that can be uploaded at once");
    if (shares_files()) {
        const auto root = detail::open_real_directory(workspace);
        detail::write_beneath(root.get(), path, bytes, overwrite);
    } else {
        co_await distant_kernel().write_file(std::move(path), std::move(bytes), overwrite);
    }
}

IPYBOX_DECL awaitable<FilePart> CodeExecutor::Session::download(std::string text,
                                                                std::uint64_t offset,
                                                                std::size_t limit) {
    const auto self = shared_from_this();
    auto path = checked_path(text, false);
    limit = std::min(limit, max_file);
    if (!shares_files())
        co_return co_await distant_kernel().read_file(std::move(path), offset, limit);
    co_return read_here(path, offset, limit);
}

}  // namespace ipybox
