#pragma once
#include <ipybox/tools/server_start.hpp>

#include <grp.h>
#include <pwd.h>
#include <sys/stat.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <ipybox/compilation.hpp>
#include <ipybox/sandbox_kit/program_judgement.hpp>

namespace ipybox::tools {

IPYBOX_DECL Identity server_user(std::optional<uid_t> kernel) {
    for (uid_t user = first_server_user; user <= last_server_user; ++user) {
        char buffer[4096];
        passwd account{};
        passwd* found_account = nullptr;
        group team{};
        group* found_team = nullptr;
        ::getpwuid_r(user, &account, buffer, sizeof buffer, &found_account);
        ::getgrgid_r(user, &team, buffer, sizeof buffer, &found_team);
        if (user != kernel && found_account == nullptr && found_team == nullptr)
            return {user, user};
    }
    throw Error(errc::io_error, "no user number from " + std::to_string(first_server_user) +
                                    " to " + std::to_string(last_server_user) +
                                    " is free for MCP servers: choose with \"user\"");
}

IPYBOX_DECL ServerAccount server_account(const json::value& user) {
    std::vector<char> buffer(std::size_t{64} << 10);
    passwd entry{};
    passwd* found = nullptr;
    const std::string text =
        user.is_string() ? std::string(user.get_string()) : std::to_string(user.as_int64());
    std::uint32_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    const bool is_number =
        error == std::errc{} && end == text.data() + text.size() && number != UINT32_MAX;
    if (is_number)
        ::getpwuid_r(number, &entry, buffer.data(), buffer.size(), &found);
    else
        ::getpwnam_r(text.c_str(), &entry, buffer.data(), buffer.size(), &found);
    if (found != nullptr) return {{found->pw_uid, found->pw_gid}, found->pw_name, found->pw_dir};
    if (!is_number)
        throw Error(errc::bad_config,
                    "user: there is no \"" + text + "\" here; give the name or number of one");
    return {{number, number}, {}, {}};
}

IPYBOX_DECL std::filesystem::path server_directories() {
    namespace fs = std::filesystem;
    const auto is_ours = [](const fs::path& path) {
        struct stat info{};
        return ::lstat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode) &&
               info.st_uid == ::geteuid() && (info.st_mode & 022) == 0;
    };
    const auto make = [&](const fs::path& path, mode_t mode) {
        std::error_code ignored;
        fs::create_directories(path.parent_path(), ignored);
        if (::mkdir(path.c_str(), mode) == 0) ::chmod(path.c_str(), mode);
        return is_ours(path);
    };
    if (::geteuid() == 0) {
        for (const char* place : {"/run/ipybox", server_homes})
            if (make(place, 0755)) return place;  // servers enter it as another user
        throw Error(errc::io_error,
                    "there is no directory to start MCP servers in: neither /run/ipybox nor " +
                        std::string(server_homes) +
                        " can be made; mount one to be written, or give servers a \"cwd\"");
    }
    const char* runtime = std::getenv("XDG_RUNTIME_DIR");
    if (runtime != nullptr && *runtime == '/' && is_ours(runtime)) return runtime;
    const auto state = config::state_directory();
    return !state.empty() && make(state / "servers", 0700) ? state / "servers" : fs::path("/tmp");
}

IPYBOX_DECL std::filesystem::path server_home(const Identity& user) {
    namespace fs = std::filesystem;
    const fs::path place = server_homes;
    const auto home = place / std::to_string(user.user);
    const auto fail = [&home](const std::string& why) {
        throw Error(errc::io_error, "cannot prepare " + home.string() + ": " + why);
    };
    for (const auto& directory : {place.parent_path(), place}) {
        if (::mkdir(directory.c_str(), 0755) == 0)
            ::chmod(directory.c_str(), 0755);
        else if (errno != EEXIST)
            fail(std::strerror(errno));
    }
    const bool made = ::mkdir(home.c_str(), 0700) == 0;
    if (!made && errno != EEXIST) fail(std::strerror(errno));
    const UniqueFd handle(::open(home.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    struct stat info{};
    if (!handle || ::fstat(handle.get(), &info) != 0 ||
        (made &&
         (::fchown(handle.get(), user.user, user.group) != 0 || ::fstat(handle.get(), &info) != 0)))
        fail(std::strerror(errno));
    if (info.st_uid != user.user || (info.st_mode & 077) != 0)
        fail("it must belong to uid " + std::to_string(user.user) + " with mode 0700");
    return home;
}

}  // namespace ipybox::tools

namespace ipybox {

IPYBOX_DECL awaitable<std::unique_ptr<SandboxedProcess>> UnconfinedServer::launch(
    SandboxPolicy policy, std::vector<std::string> argv, std::vector<Channel> channels,
    Stdio stdio) {
    ServerStart start;
    start.name = name_;
    start.params = params_;
    start.workspace = place_.workspace;
    start.argv = std::move(argv);
    start.env = std::move(policy.env);
    start.cwd = std::move(policy.cwd);
    choose_user(start);
    choose_directory(start);
    if (start.user) prepare_for_user(start);
    bool judged = true;
    if (place_.record_places) judged = co_await place_.record_places();
    if (judged) judge(start);

    policy.env = std::move(start.env);
    policy.cwd = std::move(start.cwd);
    if (start.user) policy.user = start.user->user;
    co_return co_await within_.launch(std::move(policy), std::move(start.argv), std::move(channels),
                                      stdio);
}

IPYBOX_DECL void UnconfinedServer::choose_user(ServerStart& start) {
    const auto* wanted = params_.if_contains("user");
    account_ = {};
    std::optional<Identity> chosen;
    if (wanted != nullptr) {
        account_ = tools::server_account(*wanted);
        chosen = account_.identity;
    }
    if (::geteuid() != 0) {
        if (chosen && chosen->user != ::geteuid())
            refuse("only root can start a server as uid " + std::to_string(chosen->user) +
                   ": leave \"user\" out, or start ipybox as root");
        return;
    }
    const auto kernel = place_.kernel_user ? place_.kernel_user() : std::nullopt;
    // Code that nothing confines has root's rights already.
    if (!chosen && kernel == uid_t{0}) return;
    if (!chosen) chosen = tools::server_user(kernel);
    if (chosen->user == 0) return;
    if (kernel == chosen->user)
        refuse("the kernel runs as uid " + std::to_string(chosen->user) +
               ", and its code could take the server over: name another \"user\"");
    start.user = chosen;
}

IPYBOX_DECL void UnconfinedServer::choose_directory(ServerStart& start) {
    start.own_cwd = start.cwd.empty();
    if (!start.own_cwd) return;
    directory_.reset();
    const auto owner = start.user ? start.user->user : ::geteuid();
    directory_.emplace(tools::server_directories(), owner);
    start.cwd = directory_->path();
}

IPYBOX_DECL void UnconfinedServer::judge(const ServerStart& start) const {
    const auto* trusted = params_.if_contains("trust_cwd");
    const bool trust_cwd = trusted != nullptr && trusted->is_bool() && trusted->get_bool();
    if (const auto problem = sandbox_kit::judge_program(writable_places(), start.argv, start.env,
                                                        start.cwd, trust_cwd))
        refuse(*problem);
}

IPYBOX_DECL void UnconfinedServer::prepare_for_user(ServerStart& start) {
    const auto* configured = params_.if_contains("env");
    const auto is_given = [&](const char* name) {
        return configured != nullptr && configured->as_object().contains(name);
    };
    const auto set = [&](const char* name, const std::string& value) {
        if (is_given(name)) return;
        start.env.erase(name);
        if (!value.empty()) start.env[name] = value;
    };
    set("USER", account_.name);
    set("LOGNAME", account_.name);
    set("HOME", is_given("HOME") ? "" : home_of(start));
    const auto temporary = start.env.find("TMPDIR");
    if (temporary != start.env.end() &&
        sandbox_kit::first_refused(start.user, {{temporary->second, W_OK | X_OK}}))
        set("TMPDIR", "");
    choose_program(start);
    check_access(start);
}

IPYBOX_DECL std::string UnconfinedServer::home_of(const ServerStart& start) const {
    if (!account_.home.empty()) return account_.home.string();
    try {
        return tools::server_home(*start.user).string();
    } catch (const Error& error) {
        place_.logger(LogLevel::warning, "MCP server " + name_ + ": " + error.detail() +
                                             "; its home directory lasts as long as the server "
                                             "does (\"env\": {\"HOME\": …} names another)");
        return directory_ ? directory_->path().string() : "/";
    }
}

IPYBOX_DECL void UnconfinedServer::choose_program(ServerStart& start) {
    const auto* named = params_.if_contains("command");
    if (named == nullptr) return;  // a transport with parameters of its own chose the program
    const std::string command(named->as_string());
    const auto path = start.env.find("PATH");
    if (command.find('/') != command.npos || path == start.env.end()) return;
    const auto may_run = [&](const std::string& program) {
        return !sandbox_kit::first_refused(start.user, {{program, X_OK}});
    };
    auto& program = start.argv.front();
    std::string_view rest = path->second;
    for (auto found = std::optional(program); found && !may_run(*found);) {
        const auto colon = rest.find(':');
        if (colon == rest.npos) return;
        rest.remove_prefix(colon + 1);
        const auto next = find_program(command, rest);
        found = next ? std::optional(next->string()) : std::nullopt;
        if (!found || !may_run(*found)) continue;
        if (!told_)
            place_.logger(LogLevel::warning, "MCP server " + name_ + ": " + *found +
                                                 " is started, because " + user_text(start) +
                                                 " cannot run " + program +
                                                 " (\"user\": \"root\" keeps root's rights)");
        program = *found;
        return;
    }
}

IPYBOX_DECL void UnconfinedServer::check_access(const ServerStart& start) {
    namespace fs = std::filesystem;
    std::vector<sandbox_kit::Access> wanted{{start.argv.front(), X_OK}, {start.cwd, X_OK}};
    for (std::size_t i = 1; i < start.argv.size(); ++i) {
        std::string path = start.argv[i];
        if (path.starts_with('-')) path.erase(0, std::min(path.find('='), path.size() - 1) + 1);
        std::error_code ignored;
        if (!path.starts_with('/') || !fs::exists(path, ignored)) continue;
        wanted.push_back({path, fs::is_directory(path, ignored) ? R_OK | X_OK : R_OK});
    }
    static constexpr const char* docker = "/var/run/docker.sock";
    if (fs::path(start.argv.front()).filename() == "docker" && ::access(docker, F_OK) == 0)
        wanted.push_back({docker, R_OK | W_OK});
    if (const auto refused = sandbox_kit::first_refused(start.user, wanted)) {
        const auto& path = wanted[*refused].path;
        std::vector<sandbox_kit::Access> way;
        fs::path at;
        for (const auto& part : path.parent_path()) way.push_back({at /= part, X_OK});
        const auto closed = sandbox_kit::first_refused(start.user, way);
        refuse(user_text(start) + " cannot " +
               (*refused == 0   ? "run "
                : *refused == 1 ? "enter "
                                : "read ") +
               path.string() +
               (closed ? ", because " + way[*closed].path.string() + " is closed to it" : "") +
               ": give it access, or name a \"user\" that has it (\"user\": \"root\" keeps root's "
               "rights)");
    }
    if (std::exchange(told_, true)) return;
    for (std::size_t i = 2; i < wanted.size(); ++i) {
        const auto& path = wanted[i].path;
        if ((wanted[i].mode & X_OK) == 0 || !is_in_workspace(path)) continue;
        const std::vector<sandbox_kit::Access> writing{{path, W_OK}};
        if (!sandbox_kit::first_refused(start.user, writing)) continue;
        place_.logger(LogLevel::warning, "MCP server " + name_ + ": " + user_text(start) +
                                             " can read " + path.string() +
                                             " and not write there: let it, or name a \"user\" "
                                             "that may (\"user\": \"root\" keeps root's rights)");
        return;
    }
}

}  // namespace ipybox
