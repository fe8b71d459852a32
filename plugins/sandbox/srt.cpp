// Confinement by Anthropic's sandbox-runtime (srt). Its seccomp filter forbids Unix sockets inside,
// so what connects host and guest is carried over srt's standard streams, from loopback ports.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/ip/network_v4.hpp>
#include <boost/asio/ip/network_v6.hpp>
#include <boost/asio/write.hpp>
#include <boost/json/parse.hpp>
#include <fstream>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/detail/private_directory.hpp>
#include <ipybox/plugin.hpp>
#include <ipybox/sandbox_kit/cgroup.hpp>
#include <ipybox/sandbox_kit/confined_process.hpp>
#include <ipybox/sandbox_kit/guest_identity.hpp>
#include <ipybox/sandbox_kit/guest_view.hpp>
#include <ipybox/sandbox_kit/process.hpp>
#include <ipybox/sandbox_kit/python_environment.hpp>
#include <ipybox/sandbox_kit/sandbox_config.hpp>
#include <ipybox/sandbox_kit/stdio_mux.hpp>
#include <ipybox/sandbox_kit/system_package.hpp>
#include <launcher_image.hpp>
#include <launcher_options.hpp>
#include <sstream>
#include <syscall_filter.hpp>

namespace {
using namespace ipybox;
namespace fs = std::filesystem;
using sandbox_kit::errno_text, sandbox_kit::refuse, sandbox_kit::View, detail::within;

constexpr std::string_view package_name = "@anthropic-ai/sandbox-runtime";

// What srt tells its guest about its proxies.
constexpr const char* proxy_variables[] = {"HTTP_PROXY",
                                           "HTTPS_PROXY",
                                           "http_proxy",
                                           "https_proxy",
                                           "ALL_PROXY",
                                           "all_proxy",
                                           "NO_PROXY",
                                           "no_proxy",
                                           "FTP_PROXY",
                                           "ftp_proxy",
                                           "GRPC_PROXY",
                                           "grpc_proxy",
                                           "RSYNC_PROXY",
                                           "DOCKER_HTTP_PROXY",
                                           "DOCKER_HTTPS_PROXY",
                                           "CLOUDSDK_PROXY_TYPE",
                                           "CLOUDSDK_PROXY_ADDRESS",
                                           "CLOUDSDK_PROXY_PORT",
                                           "CLOUDSDK_PROXY_USERNAME",
                                           "CLOUDSDK_PROXY_PASSWORD",
                                           "GIT_SSH_COMMAND",
                                           "GIT_CONFIG_PARAMETERS",
                                           "JAVA_TOOL_OPTIONS"};

// Three numbers of a version; nothing when the text does not begin like one.
using Version = std::array<int, 3>;
std::optional<Version> read_version(std::string_view text) {
    Version version{};
    std::size_t part = 0;
    while (part < 3) {
        const auto [end, error] =
            std::from_chars(text.data(), text.data() + text.size(), version[part]);
        if (error != std::errc{}) break;
        ++part;
        text.remove_prefix(static_cast<std::size_t>(end - text.data()));
        if (!text.starts_with('.')) break;
        text.remove_prefix(1);
    }
    return part > 0 ? std::optional(version) : std::nullopt;
}

// The first version in which what allowRead names stays visible inside what denyRead hides, and the
// oldest that is known to work at all.
constexpr Version carving{0, 0, 83}, oldest{0, 0, 21};

// For srt's process: it looks for the socket of the socat that leads to its proxy at once, 1 ms
// later and then not for 100 ms. So what starts that socat returns when the socket is there.
constexpr std::string_view prompt_bridge = R"(const processes = require('node:child_process');
const { existsSync } = require('node:fs');
const { spawn } = processes;
const nobody = new Int32Array(new SharedArrayBuffer(4));
processes.spawn = (program, args, ...rest) => {
    const child = spawn(program, args, ...rest);
    const socket = /^UNIX-LISTEN:([^,]+)/.exec(args?.[0])?.[1];
    for (let i = 0; socket && i < 100 && !existsSync(socket); ++i) Atomics.wait(nobody, 0, 0, 1);
    return child;
};
require('node:module').syncBuiltinESMExports();
)";

// A directory for one guest: the launcher, srt's settings, its own sockets, and an empty directory
// to mount scratch space over.
class RunDirectory : public detail::PrivateDirectory {
public:
    explicit RunDirectory(const std::optional<Identity>& guest)
        : PrivateDirectory(::geteuid(), guest ? guest->user : ::geteuid(), 0755) {
        write_file("launcher", launcher::launcher_image(), ::geteuid(), 0755);
        write_file("prompt_bridge.cjs", prompt_bridge, ::geteuid(), 0644);
        for (const char* name : {"srt", "scratch"})
            if (::mkdirat(handle(), name, 0700) != 0 ||
                (guest && ::fchownat(handle(), name, guest->user, guest->group, 0) != 0))
                throw Error(errc::io_error,
                            "cannot create " + (*this / name).string() + ": " + errno_text());
    }
    fs::path operator/(const char* name) const { return path() / name; }
};

// The launcher as guard, srt, and behind it bwrap with the guest.
class Confined final : public ConfinedProcess {
public:
    Confined(asio::any_io_executor executor, SpawnRequest request, RunDirectory directory,
             detail::Placeholders placeholders, std::optional<Cgroup> group)
        : ConfinedProcess(std::move(executor), std::move(request), std::move(placeholders),
                          std::move(group)),
          directory_(std::move(directory)) {}
    ~Confined() override { end_guest(); }

    // Takes over the standard streams.
    void relay_streams(asio::any_io_executor executor, std::vector<MuxChannel> channels,
                       std::string start) {
        relay(std::move(executor), std::move(ChildProcess::input()),
              std::move(ChildProcess::output()), std::move(channels), std::move(start));
    }

    asio::writable_pipe& input() override {
        require_pipes();
        return ChildProcess::input();
    }
    asio::readable_pipe& output() override {
        require_pipes();
        return ChildProcess::output();
    }

private:
    void require_pipes() const {
        if (relayed()) throw Error(errc::bad_argument, "the process was not started with pipes");
    }

    void signal_command(int number, bool group) override {
        if (const auto command = find_command(pid(), 1); command.handle)
            send(command, number, group);
    }

    struct Found {
        pid_t pid = -1;
        UniqueFd handle;
    };

    static void send(const Found& to, int number, bool with_children) {
        const auto children =
            with_children ? sandbox_kit::children_of(to.pid) : std::vector<pid_t>();
        sandbox_kit::send_signal(to.handle, number);
        for (const pid_t child : children) {
            const Found below{child, sandbox_kit::open_child(child, to.pid)};
            if (below.handle) send(below, number, true);
        }
    }

    // How many pid namespaces a process is in below ours, and whether it is the first of the last.
    static std::pair<std::size_t, bool> place_of(pid_t process) {
        const auto status = sandbox_kit::read_proc("/proc/" + std::to_string(process) + "/status");
        const auto at = status.find("\nNSpid:");
        if (at == std::string::npos) return {0, false};
        std::istringstream numbers(status.substr(at + 7, status.find('\n', at + 1) - at - 7));
        std::size_t depth = 0;
        int number = 0, last = 0;
        for (; numbers >> number; ++depth) last = number;
        return {depth, last == 1};
    }

    // The first child of the innermost init process: srt nests one or two pid namespaces.
    static Found find_command(pid_t from, std::size_t depth) {
        Found found;
        for (const pid_t child : sandbox_kit::children_of(from)) {
            const auto [deep, first] = place_of(child);
            if (deep < depth) continue;
            auto below = find_command(child, std::max(deep, depth));
            if (below.handle) return below;
            if (!first || deep < 2) continue;
            const auto children = sandbox_kit::children_of(child);
            if (!children.empty())
                found = {children.front(), sandbox_kit::open_child(children.front(), child)};
        }
        return found;
    }

    RunDirectory directory_;
};

class Srt final : public Sandbox {
public:
    Srt(Host& host, const json::object& config) : executor_(host.executor) {
        const char* path = std::getenv("PATH");
        // srt looks its own programs up there.
        path_ = host_search_path(path != nullptr ? path : "/usr/local/bin:/usr/bin:/bin");
        if (const auto* user = config.if_contains("user")) user_ = user->to_number<uid_t>();
        if (const auto* open = config.if_contains("unix_sockets")) unix_sockets_ = open->get_bool();
        if (const auto* calls = config.if_contains("allow_calls"))
            for (const auto& call : calls->get_array()) {
                allow_calls_.emplace_back(call.get_string());
                launcher::check_call_name(allow_calls_.back());
            }
        find(config);
    }

    awaitable<Capabilities> probe() override {
        if (!probed_) {
            auto found = co_await try_out();
            probed_ = std::move(found);
        }
        co_return *probed_;
    }

    bool unix_sockets(const SandboxPolicy&) const override { return unix_sockets_; }

    std::string guest_address(const SandboxPolicy&, const Channel& channel) const override {
        if (channel.kind == Channel::Kind::directory || unix_sockets_)
            return channel.host_path.string();
        return ports_.address(channel);
    }

    uid_t guest_user(const SandboxPolicy& policy) const override {
        const auto identity = sandbox_kit::guest_identity(policy, user_);
        return identity ? identity->user : ::geteuid();
    }

    awaitable<std::unique_ptr<SandboxedProcess>> launch(SandboxPolicy policy,
                                                        std::vector<std::string> argv,
                                                        std::vector<Channel> channels,
                                                        Stdio stdio) override {
        const auto able = co_await probe();
        if (!able.available)
            throw Error(missing_ ? errc::missing_dependency : errc::sandbox_refused, able.problem);
        if (policy.network.mode == NetworkPolicy::Mode::full)
            refuse(
                "sandbox \"srt\" cannot give the whole network, only named hosts: use sandbox "
                "\"bubblewrap\", or do not ask for it");
        if (argv.empty() || !argv[0].starts_with('/'))
            throw Error(errc::bad_argument, "a sandboxed program is started by its absolute path");
        RelayCommand command;
        command.argv = std::move(argv);
        command.pipes = stdio == Stdio::pipes;
        std::vector<MuxChannel> relayed;
        auto process = start(policy, command, channels, relayed);
        const auto first = relay_start(command, relayed);
        if (command.pipes) {
            const auto buffer = asio::buffer(first);
            // If it does not take it, it is ending, and tells why itself.
            co_await asio::async_write(process->input(), buffer, as_result);
        } else {
            process->relay_streams(executor_, std::move(relayed), first);
        }
        co_return process;
    }

private:
    // ---- srt and what it needs --------------------------------------------------------------

    void find(const json::object& config) {
        const auto option = [&config](const char* name) {
            const auto* value = config.if_contains(name);
            return std::string(value != nullptr ? std::string_view(value->get_string()) : "");
        };
        const auto wanted = option("srt");
        auto program = find_program(wanted.empty() ? "srt" : wanted, path_);
        // Node runs it, so it need not be executable.
        if (!program && wanted.find('/') != std::string::npos &&
            ::access(wanted.c_str(), R_OK) == 0) {
            refuse_written(fs::absolute(wanted));
            program = wanted;
        }
        if (!program) {
            problem_ =
                (wanted.empty() ? "srt" : wanted) +
                " is not installed: npm install --global @anthropic-ai/sandbox-runtime, or name "
                "its place with the sandbox option \"srt\"";
            return;
        }
        // npm makes a link to dist/cli.js of the package.
        std::error_code error;
        srt_ = fs::canonical(*program, error);
        package_ = srt_.parent_path().parent_path();
        std::ostringstream text;
        text << std::ifstream(package_ / "package.json").rdbuf();
        boost::system::error_code bad;
        const auto manifest = json::parse(text.str(), bad);
        const auto field = [&](const char* pointer) {
            boost::system::error_code absent;
            const auto* value = bad ? nullptr : manifest.find_pointer(pointer, absent);
            return std::string(value && value->is_string() ? std::string_view(value->get_string())
                                                           : "");
        };
        const auto version = read_version(field("/version"));
        if (error || field("/name") != package_name || !version || *version < oldest) {
            problem_ = program->string() + " is not the program of " + std::string(package_name) +
                       " 0.0.21 or newer";
            return;
        }
        version_ = *version;
        const auto engine = field("/engines/node");
        if (engine.starts_with(">=")) engine_ = read_version(engine.substr(2)).value_or(Version{});
        // A node from npm lies beside srt's package.
        const auto own = package_.string().rfind("/node_modules/");
        auto node = option("node");
        if (node.empty() && own != std::string::npos) {
            node = package_.string().substr(0, own) + "/node_modules/node/bin/node";
            if (::access(node.c_str(), X_OK) != 0) node.clear();
        }
        const auto found = find_program(node.empty() ? "node" : node, path_);
        if (found) node_ = fs::canonical(*found, error);
        if (node_.empty())
            problem_ =
                "srt needs Node.js: install it, or name its place with the sandbox option \"node\"";
        const std::pair<const char*, const char*> tools[] = {
            {"bwrap", "bubblewrap"}, {"socat", "socat"}, {"rg", "ripgrep"}, {"bash", "bash"}};
        for (const auto& [name, package] : tools)
            if (!find_program(name, path_) && problem_.empty())
                problem_ =
                    std::string("srt needs ") + name + ": " + sandbox_kit::install_command(package);
        bwrap_ = find_program("bwrap", path_).value_or(fs::path());
        socat_ = find_program("socat", path_).value_or(fs::path());
    }

    // What it needs is there, and user namespaces work. srt itself is not started: that takes as
    // long again as the start of a guest, and there the relay looks whether it confines.
    awaitable<Capabilities> try_out() {
        Capabilities found;
        found.problem = problem_;
        missing_ = !problem_.empty();
        if (missing_) co_return found;
        const auto nobody = sandbox_kit::guest_identity(SandboxPolicy(), user_);
        const auto as_nobody = [&](std::vector<std::string> argv) {
            SpawnRequest request;
            request.argv = std::move(argv);
            request.env = {{"PATH", path_}};
            request.identity = nobody;
            request.stdio = Stdio::pipes;
            return request;
        };
        // Side by side: neither needs the other's answer.
        ChildProcess node(executor_, as_nobody({node_, "--version"}));
        auto namespaces =
            as_nobody({bwrap_, "--unshare-user", "--unshare-pid", "--unshare-net", "--ro-bind", "/",
                       "/", "--dev", "/dev", "--proc", "/proc", "--", "/bin/true"});
        namespaces.stdio = Stdio::tail;
        ChildProcess trial(executor_, std::move(namespaces));
        const auto text = co_await sandbox_kit::output_of(node, std::chrono::seconds(10));
        const auto version = read_version(text && text->starts_with('v') ? text->substr(1) : "");
        if (!version || *version < engine_) {
            missing_ = true;
            found.problem = "srt " + name(version_) + " needs Node.js " + name(engine_) +
                            " or newer, and " + node_.string() +
                            (version ? " is " + name(*version) : " does not run as its user") +
                            ": npm install --global node@" + std::to_string(engine_[0]);
            co_return found;
        }
        const auto limit = deadline_after(std::chrono::seconds(10));
        const auto status = co_await trial.wait(limit);
        found.available = status && status->code == 0;
        if (!found.available) {
            auto said = trial.output_tail();
            while (!said.empty() && said.back() == '\n') said.pop_back();
            found.problem = "bubblewrap, on which srt builds, does not work here (" + said +
                            "): user namespaces must be permitted; `ipybox doctor` says how";
            co_return found;
        }
        found.filesystem = found.network_none = found.network_allow_list = true;
        found.process_isolation = found.limits_per_process = found.wall_time = true;
        if (const auto problem = Cgroup::problem(); problem.empty())
            found.memory_total = true;
        else
            found.reasons["memory_total"] = problem;
        co_return found;
    }

    static std::string name(const Version& version) {
        return std::to_string(version[0]) + "." + std::to_string(version[1]) + "." +
               std::to_string(version[2]);
    }

    // ---- one guest --------------------------------------------------------------------------

    // Can it show a path inside one that it hides?
    bool carves() const { return version_ >= carving; }

    std::unique_ptr<Confined> start(const SandboxPolicy& policy, RelayCommand& command,
                                    const std::vector<Channel>& channels,
                                    std::vector<MuxChannel>& relayed) {
        SpawnRequest request;
        request.identity = sandbox_kit::guest_identity(policy, user_);
        // What the guest needs besides what the policy names, at the places of the host.
        auto seen = policy;
        std::vector<sandbox_kit::Access> wanted = {
            {node_, R_OK | X_OK}, {srt_, R_OK}, {bwrap_, X_OK}, {socat_, X_OK}};
        for (const auto& channel : channels) {
            if (channel.name.empty() ||
                channel.name.find_first_not_of("abcdefghijklmnopqrstuvwxyz_") != std::string::npos)
                throw Error(errc::bad_argument, "\"" + channel.name + "\" cannot name a channel");
            // Our proxy: srt has its own.
            if (channel.name == network_channel) continue;
            if (channel.kind != Channel::Kind::directory && !unix_sockets_) {
                relayed.push_back(ports_.carry(channel));
                continue;
            }
            if (channel.kind == Channel::Kind::listener)
                throw Error(errc::bad_argument,
                            "channel " + channel.name + ": use a directory and a Unix socket");
            (channel.access == Channel::Access::read ? seen.readable : seen.writable)
                .push_back(channel.host_path);
        }
        if (command.pipes && !relayed.empty())
            throw Error(errc::bad_argument,
                        "a process that uses its standard streams itself has no channels");
        protect_as_srt_does(seen);
        // A directory srt would fill with mount points of its own, or have to hide: what code wrote
        // there would be lost without a word.
        View view(seen, unix_sockets_, {}, false);
        const auto reach = view.accesses();
        wanted.insert(wanted.end(), reach.begin(), reach.end());
        sandbox_kit::check_reach(request.identity, wanted);
        // The next start would run on the host what this guest made of it.
        for (const auto& program : {package_, node_})
            if (is_writable(view, program))
                refuse(program.string() +
                       " lies where the sandbox may write: install it elsewhere");

        // What was found when this was made may have become writable for other sessions since.
        for (const auto& program : {package_, node_, bwrap_, socat_}) refuse_written(program);
        path_ = host_search_path(path_);

        RunDirectory directory(request.identity);
        std::optional<Cgroup> group;
        if (policy.limits.memory_total) {
            group.emplace(*policy.limits.memory_total);
            request.cgroup = group->entrance();
        }
        command.env = policy.env;
        command.cwd = policy.cwd.empty() ? fs::path("/") : policy.cwd;
        const auto settings = directory / "settings.json";
        const auto text = detail::write_json(settings_for(policy, view, directory, command));
        directory.write_file("settings.json", text,
                             request.identity ? request.identity->user : ::geteuid(), 0400);
        // srt falls back to other settings when it does not like these, and does without its helper
        // when that is missing.
        command.unreadable = {settings};
        command.no_unix_sockets = !unix_sockets_;
        if (policy.network.mode == NetworkPolicy::Mode::allow_list)
            command.kept_env.assign(std::begin(proxy_variables), std::end(proxy_variables));
        const auto launcher = (directory / "launcher").string();
        for (std::size_t i = 0; i < filters().size(); ++i)
            directory.write_file(filter_names[i], filters()[i], ::geteuid(), 0444);
        limit(command.argv, directory, policy.limits);

        request.argv = {launcher, "guard", node_,    "--require", directory / "prompt_bridge.cjs",
                        srt_,     "-s",    settings, "-c",        "exec '" + launcher + "' relay"};
        // Nothing of the guest's: this is for programs of the host.
        request.env = {{"PATH", path_},
                       {"TMPDIR", directory / "srt"},
                       {"HOME", directory / "srt"},
                       {"LANG", "C.UTF-8"}};
        // srt protects its well-known names where it starts, and searches what lies below.
        request.cwd = is_writable(view, command.cwd) ? command.cwd : directory / "scratch";
        request.rlimits = {{RLIMIT_CORE, 0}};
        request.wall_seconds = policy.limits.wall_seconds;
        request.ends_its_tree = true;
        request.stdio = Stdio::pipes;
        return std::make_unique<Confined>(executor_, std::move(request), std::move(directory),
                                          view.take_placeholders(), std::move(group));
    }

    static bool is_writable(const View& view, const fs::path& path) {
        bool writable = false;
        for (const auto& [root, rule] : view.mounts())
            if (within(path, root)) writable = view.kind(root) == View::Kind::writable;
        return writable;
    }

    // What srt itself keeps from being written in the directory where it starts.
    static constexpr std::string_view own_names[] = {".gitconfig",
                                                     ".gitmodules",
                                                     ".bashrc",
                                                     ".bash_profile",
                                                     ".zshrc",
                                                     ".zprofile",
                                                     ".profile",
                                                     ".ripgreprc",
                                                     ".mcp.json",
                                                     ".vscode",
                                                     ".idea",
                                                     ".claude/commands",
                                                     ".claude/agents",
                                                     ".git/hooks",
                                                     ".git/config",
                                                     ".git/commondir",
                                                     ".git/config.worktree"};

    // srt keeps its well-known names from being created by mounting over files that it makes and
    // removes; where it is killed they stay. So ours are there first.
    static void protect_as_srt_does(SandboxPolicy& policy) {
        if (policy.cwd.empty()) return;
        const bool repository = fs::is_directory(policy.cwd / ".git");
        for (const auto name : own_names) {
            const auto path = policy.cwd / name;
            const auto first = policy.cwd / *fs::path(name).begin();
            const bool git = name.starts_with(".git/");
            if (git && (!repository || name == ".git/config")) continue;
            // What is there srt protects itself, but for what a killed host left behind.
            struct stat found{};
            const bool absent = ::lstat(git ? path.c_str() : first.c_str(), &found) != 0;
            if (absent || detail::is_placeholder(found)) policy.write_protected.push_back(path);
        }
    }

    static bool stands_for_absent_directory(const fs::path& path) {
        struct stat found{};
        return ::lstat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode) &&
               detail::is_placeholder(found);
    }

    json::object settings_for(const SandboxPolicy& policy, const View& view,
                              const RunDirectory& directory, RelayCommand& command) const {
        json::object network;
        network["allowedDomains"] = rules(policy.network.allow, policy.network.mode, "allow");
        network["deniedDomains"] = rules(policy.network.deny, policy.network.mode, "deny");
        if (unix_sockets_) network["allowAllUnixSockets"] = true;
        if (carves()) {
            network["strictAllowlist"] = true;
            network["deniedResolvedAddresses"] = closed_networks(policy.network);
        }

        json::array deny_read, allow_read, allow_write, deny_write;
        const auto add = [](json::array& list, const fs::path& path) {
            list.emplace_back(path.string());
        };
        const bool whole_disk = view.whole_disk();
        if (!whole_disk) {
            for (const char* path : {"/", "/sys"}) add(deny_read, path);
            for (const char* path :
                 {"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32",
                  "/etc/ld.so.cache", "/etc/alternatives", "/etc/ssl/certs", "/etc/pki/tls/certs",
                  "/etc/fonts", "/etc/passwd", "/etc/group", "/etc/hosts", "/etc/nsswitch.conf"})
                if (fs::exists(path)) add(allow_read, path);
        } else {
            add(deny_read, directory / "settings.json");
            if (unix_sockets_) add(deny_read, "/run");
        }
        add(allow_read, directory / "launcher");
        for (const char* name : filter_names) add(allow_read, directory / name);
        add(allow_read, package_);
        // The socket of srt's own proxy lies there.
        if (policy.network.mode == NetworkPolicy::Mode::allow_list)
            add(allow_read, directory / "srt");
        for (const auto& [path, rule] : view.mounts()) {
            switch (view.kind(path)) {
                case View::Kind::hidden:
                    add(deny_read, path);
                    break;
                case View::Kind::write_protected:
                    // srt would make mount points of its own in a directory that stands for an
                    // absent one. Hidden, it keeps nothing that is written to it.
                    if (stands_for_absent_directory(path)) {
                        add(deny_read, path);
                        break;
                    }
                    add(deny_write, path);
                    [[fallthrough]];
                case View::Kind::readable:
                    if (path != "/") add(allow_read, path);
                    break;
                case View::Kind::writable:
                    add(allow_write, path);
                    break;
                case View::Kind::scratch:
                    break;
            }
        }
        give_scratch(policy, view, directory, command, deny_read);
        if (!carves()) refuse_carving(whole_disk, deny_read, allow_read, allow_write);

        json::object files;
        files["denyRead"] = std::move(deny_read);
        if (carves()) files["allowRead"] = std::move(allow_read);
        files["allowWrite"] = std::move(allow_write);
        files["denyWrite"] = std::move(deny_write);
        const auto git_config = policy.cwd / ".git/config";
        files["allowGitConfig"] =
            std::find(policy.write_protected.begin(), policy.write_protected.end(), git_config) ==
            policy.write_protected.end();
        json::object settings;
        settings["network"] = std::move(network);
        settings["filesystem"] = std::move(files);
        // Otherwise it searches for them, by a shell each.
        if (carves()) {
            settings["bwrapPath"] = bwrap_.string();
            settings["socatPath"] = socat_.string();
        }
        return settings;
    }

    // What is left of the private networks without those that were opened. srt itself refuses the
    // addresses of this machine and of metadata services.
    static json::array closed_networks(const NetworkPolicy& policy) {
        using V4 = asio::ip::network_v4;
        using V6 = asio::ip::network_v6;
        std::vector<V4> closed4;
        std::vector<V6> closed6;
        for (const char* text : {"10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16"})
            closed4.push_back(asio::ip::make_network_v4(text));
        for (const char* text : {"fc00::/7", "fec0::/10"})
            closed6.push_back(asio::ip::make_network_v6(text));
        for (const auto& text : policy.private_networks) {
            boost::system::error_code error4, error6;
            const auto open4 = asio::ip::make_network_v4(text, error4);
            const auto open6 = asio::ip::make_network_v6(text, error6);
            if (!error4) open(closed4, open4.canonical());
            if (!error6) open(closed6, open6.canonical());
        }
        json::array list;
        for (const auto& network : closed4) list.emplace_back(network.to_string());
        for (const auto& network : closed6) list.emplace_back(network.to_string());
        return list;
    }

    template <class Network>
    static void open(std::vector<Network>& closed, const Network& hole) {
        std::vector<Network> rest;
        for (auto network : closed) {
            // The half without the hole stays closed, the other is looked at again.
            while (hole.is_subnet_of(network)) {
                const auto length = static_cast<unsigned short>(network.prefix_length() + 1);
                auto bytes = network.address().to_bytes();
                const Network lower(network.address(), length);
                bytes[(length - 1u) / 8] |=
                    static_cast<unsigned char>(0x80u >> ((length - 1u) % 8));
                const Network upper(typename std::decay_t<decltype(network.address())>(bytes),
                                    length);
                const bool low = hole == lower || hole.is_subnet_of(lower);
                rest.push_back(low ? upper : lower);
                network = low ? lower : upper;
            }
            if (network != hole && !network.is_subnet_of(hole)) rest.push_back(network);
        }
        closed = std::move(rest);
    }

    json::array rules(const std::vector<std::string>& hosts, NetworkPolicy::Mode mode,
                      const char* list) const {
        json::array result;
        if (mode != NetworkPolicy::Mode::allow_list) return result;
        for (const auto& host : hosts) {
            // An older srt drops all its settings for one that it does not understand.
            if (host.find(':') != std::string::npos && !carves())
                refuse("srt " + name(version_) + " knows no ports in its rules (network." + list +
                       " " + host + ")");
            result.emplace_back(host);
        }
        return result;
    }

    // What srt hides is an empty, writable directory in memory: that is scratch space.
    void give_scratch(const SandboxPolicy& policy, const View& view, const RunDirectory& directory,
                      RelayCommand& command, json::array& deny_read) const {
        const auto home = policy.env.find("HOME");
        // Sockets of the host lie in /tmp; otherwise settings that show the disk show it as well.
        if (!view.whole_disk() || unix_sockets_) {
            deny_read.emplace_back("/tmp");
            // A home that is to be scratch space is made inside what was hidden.
            if (home != policy.env.end() && view.mounts().contains(home->second) &&
                view.mounts().at(home->second) == View::Kind::scratch &&
                !fs::is_directory("/" + fs::path(home->second).relative_path().begin()->string()))
                command.env["HOME"] = "/tmp";
            return;
        }
        const auto scratch = directory / "scratch";
        deny_read.emplace_back(scratch.string());
        command.env.try_emplace("TMPDIR", scratch);
        if (home != policy.env.end() && home->second == "/tmp") command.env["HOME"] = scratch;
    }

    void refuse_carving(bool whole_disk, const json::array& deny_read,
                        const json::array& allow_read, const json::array& allow_write) const {
        const auto old = "srt " + name(version_) + " cannot ";
        if (!whole_disk)
            refuse(old + "hide all but what is named: install srt " + name(carving) +
                   " or newer, or give a sandbox_config");
        for (const auto& denied : deny_read)
            for (const auto* allowed : {&allow_read, &allow_write})
                for (const auto& path : *allowed)
                    if (within(fs::path(std::string(path.get_string())),
                               fs::path(std::string(denied.get_string()))))
                        refuse(old + "show " + std::string(path.get_string()) + " inside " +
                               std::string(denied.get_string()) + ": install srt " + name(carving) +
                               " or newer");
    }

    // Limits are set inside, where those on processes count the guest's alone; so are the system
    // call filters of our own, which srt has no place for.
    void limit(std::vector<std::string>& argv, const RunDirectory& directory,
               const Limits& limits) const {
        std::vector<std::string> prefix = {directory / "launcher"};
        for (std::size_t i = 0; i < filters().size(); ++i) {
            prefix.emplace_back("--seccomp-file");
            prefix.push_back(directory / filter_names[i]);
        }
        launcher::add_rlimits(prefix, limits);
        prefix.emplace_back("--");
        argv.insert(argv.begin(), prefix.begin(), prefix.end());
    }

    // In the order of adding them. Made when first needed, while the interpreter is being looked
    // at.
    const std::vector<std::string>& filters() const {
        if (filters_.empty())
            filters_ = {launcher::allowing_filter(allow_calls_),
                        launcher::denying_filter(unix_sockets_)};
        return filters_;
    }

    asio::any_io_executor executor_;
    std::string path_;
    fs::path srt_, package_, node_, bwrap_, socat_;
    Version version_{}, engine_{};
    std::string problem_;  // what is missing; empty when nothing is
    bool missing_ = false;
    bool unix_sockets_ = false;
    std::optional<uid_t> user_;
    std::optional<Capabilities> probed_;
    static constexpr const char* filter_names[] = {"allowed-calls", "denied-calls"};
    std::vector<std::string> allow_calls_;
    mutable std::vector<std::string> filters_;
    GuestPorts ports_;
};

constexpr Plugin self{
    .name = "srt",
    .summary =
        "Anthropic's sandbox-runtime, with the kernel's connections over its standard streams",
    .config_schema = R"({
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "srt": {"type": "string", "minLength": 1,
                    "description": "srt's program; default: srt in PATH"},
            "node": {"type": "string", "minLength": 1,
                     "description": "Node.js; default: one installed by npm beside srt, or node in PATH"},
            "user": {"type": "integer", "minimum": 0, "maximum": 4294967294,
                     "description": "the uid that a process started by root drops to"},
            "private_networks": {"type": "array",
                "items": {"type": "string", "pattern": "^[0-9a-fA-F.:]+/[0-9]{1,3}$"},
                "description": "private networks, as 10.1.0.0/16, that allowed hosts may have their addresses in; none without"},
            "allow_calls": {"type": "array", "items": {"type": "string", "pattern": "^[a-z0-9_]+$"},
                "description": "system calls to allow besides those that ordinary programs make; see docs/sandboxing.md"},
            "unix_sockets": {"type": "boolean", "default": false,
                "description": "let the guest make Unix sockets (srt's allowAllUnixSockets): faster, and without srt's own seccomp filter"}
        }
    })",
    .make =
        Factory<Sandbox>(+[](Host& host, const json::object& config) -> std::unique_ptr<Sandbox> {
            return std::make_unique<Srt>(host, config);
        }),
};
}  // namespace

IPYBOX_PLUGIN(srt, self)
