#pragma once
#include <ipybox/executor/code_executor.hpp>

#include <sys/stat.h>

#include <ipybox/compilation.hpp>
#include <ipybox/detail/within.hpp>
#include <ipybox/executor/impl/session.hpp>
#include <ipybox/executor/server_sandbox.hpp>
#include <ipybox/net/certificates.hpp>
#include <ipybox/sandbox_kit/guest_view.hpp>
#include <ipybox/sandbox_kit/mux_frames.hpp>

namespace ipybox {

IPYBOX_DECL void CodeExecutor::Session::check_allow_write() {
    const auto refuse = [](const std::filesystem::path& given, const std::string& why) {
        throw Error(errc::bad_argument, "allow_write " + given.string() + ": " + why);
    };
    for (const auto& given : options.allow_write) {
        auto path = (workspace / given).lexically_normal();
        if (!path.has_filename()) path = path.parent_path();
        if (!detail::within(path, workspace))
            refuse(given,
                   "lies outside of the workspace, where nothing is protected; leave it out");
        const auto relative = path.lexically_relative(workspace);
        if (relative == ".")
            refuse(given, "is the whole workspace; name the protected file or directory in it");
        const auto text = "/" + relative.string();
        for (const auto& file : detail::host_run_files)
            if (text.find("/" + std::string(file.path) + "/") != std::string::npos)
                refuse(given, "lies in " + std::string(file.path) +
                                  ", which is protected as a whole; name that");
        opened.push_back(std::move(path));
    }
}

IPYBOX_DECL sandbox_kit::ProtectionRules CodeExecutor::Session::protection() const {
    sandbox_kit::ProtectionRules rules;
    rules.strict = options.protect_strict;
    rules.opened = opened;
    return rules;
}

IPYBOX_DECL awaitable<void> CodeExecutor::Session::find_environment() {
    if (environment) co_return;
    const auto python = find_python(options.python, unconfined() ? Trust::named : Trust::judged);
    PythonEnvironment found =
        co_await known_python(host.executor, python, std::chrono::seconds(30));
    if (const auto problem = package_problem(found); !problem.empty())
        throw Error(errc::missing_dependency, problem);
    environment = std::move(found);
}

IPYBOX_DECL awaitable<Capabilities> CodeExecutor::Session::capabilities() {
    Capabilities able = co_await doors->sandbox->probe();
    if (!able.available)
        throw Error(errc::sandbox_refused, "sandbox " + options.sandbox + ": " + able.problem);
    co_return able;
}

IPYBOX_DECL SandboxPolicy CodeExecutor::Session::base_policy() const {
    SandboxPolicy base;
    base.cwd = options.working_dir ? std::filesystem::absolute(*options.working_dir) : workspace;
    base.writable = {workspace};
    if (options.working_dir && !detail::within(base.cwd, workspace))
        base.writable.push_back(base.cwd);
    return base;
}

IPYBOX_DECL PolicySources CodeExecutor::Session::policy_sources() const {
    PolicySources sources;
    sources.workspace = workspace;
    if (options.working_dir) sources.working_dir = std::filesystem::absolute(*options.working_dir);
    sources.settings = options.sandbox_config;
    sources.write_protected = options.write_protected;
    sources.protection = protection();
    if (options.audit) {
        sources.audit_log = options.audit->path();
        sources.own.push_back(options.audit->state_directory());  // the key and the newest head
    }
    if (environment) {
        sources.interpreter = environment->readable;
    } else {
        try {
            const auto prefix = find_python(options.python).parent_path().parent_path();
            if (detail::within(prefix, workspace)) sources.interpreter = {prefix};
        } catch (const Error&) {
            // No kernel will start either.
        }
    }
    return sources;
}

IPYBOX_DECL const KernelPolicy& CodeExecutor::Session::policy_of_code() {
    if (!code_policy || (environment && !knows_interpreter)) code_policy.emplace(policy_sources());
    knows_interpreter = environment.has_value();
    return *code_policy;
}

// Always the same one, so that a kernel that waits fits.
IPYBOX_DECL std::shared_ptr<const std::function<void(UniqueFd)>>
CodeExecutor::Session::hears_questions() {
    if (options.programs == Programs::ask && !on_questions)
        on_questions = std::make_shared<const std::function<void(UniqueFd)>>(
            [self = weak_from_this()](UniqueFd questions) {
                if (const auto session = self.lock())
                    session->tools->answer_programs(std::move(questions));
            });
    return on_questions;
}

IPYBOX_DECL KernelSpec CodeExecutor::Session::kernel_spec(const Capabilities& able) {
    KernelSpec spec;
    spec.python = environment->executable;
    spec.interpreter = environment->readable;
    spec.logger = options.logger;
    spec.init_timeout = options.kernel_init_timeout;
    spec.extensions = {"ipybox_kernel"};
    spec.owner = shared_from_this();
    spec.allow_input = options.allow_input;
    spec.policy = base_policy();
    spec.policy.readable = environment->readable;
    spec.policy.limits = options.limits;
    spec.policy.programs = options.programs;
    spec.policy.on_questions = hears_questions();
    set_default_limits(spec.policy.limits, able);
    spec.policy.network.mode =
        able.network_none ? NetworkPolicy::Mode::none : NetworkPolicy::Mode::full;
    if (able.filesystem) spec.policy.env["HOME"] = "/home/user";  // scratch of the sandbox
    if (able.filesystem || options.sandbox_config) {
        const auto sources = policy_sources();
        if (!options.allow_home) refuse_home(sources);
        code_policy.emplace(sources, std::move(spec.policy));
        knows_interpreter = true;
        spec.policy = code_policy->policy();
        protecting = able.filesystem;
        if (protecting) tell_protection(code_policy->protected_files());
    }
    if (!able.filesystem && options.protect_strict)
        throw Error(errc::sandbox_refused,
                    "sandbox " + options.sandbox +
                        " protects no files: use bubblewrap or srt, or leave out protect_strict");
    auto& env = spec.policy.env;
    auto& network = spec.policy.network;
    if (!options.allowed_hosts.empty()) {
        if (!able.network_allow_list)
            throw Error(errc::sandbox_refused,
                        "sandbox " + options.sandbox +
                            " cannot restrict the network to allowed hosts: use bubblewrap or srt");
        network.mode = NetworkPolicy::Mode::allow_list;
        network.allow.insert(network.allow.end(), options.allowed_hosts.begin(),
                             options.allowed_hosts.end());
    }
    network.private_networks = private_networks_of(options.sandbox_options);
    if (network.mode == NetworkPolicy::Mode::allow_list)
        spec.channels.push_back(
            open_proxy(proxy, host.executor, host.logger, spec.policy, *doors->sandbox,
                       run_place().path() / "network",
                       [this](const Violation& violation) { report(violation); }));
    const auto own = own_channels();
    const Channel &socket = own[0], &library = own[1];
    env["PATH"] = (spec.python.parent_path().string() + ":/usr/local/bin:/usr/bin:/bin");
    env["LANG"] = "C.UTF-8";
    if (network.mode != NetworkPolicy::Mode::none) trust_system_certificates(env);
    for (const auto& [name, value] : options.kernel_env) env[name] = value;
    const std::string library_path = doors->sandbox->guest_address(spec.policy, library);
    const auto own_path = options.kernel_env.find("PYTHONPATH");
    env["PYTHONPATH"] = library_path + ":" + site_directory().string();
    if (own_path != options.kernel_env.end()) env["PYTHONPATH"] += ":" + own_path->second;
    // Where `!pip install` puts packages, because it cannot write where the interpreter lives.
    env.try_emplace("PIP_TARGET", site_directory().string());
    env.try_emplace("PIP_DISABLE_PIP_VERSION_CHECK", "1");
    if (able.filesystem) {
        run_directory->write_library_file("gitignore", git_ignored(spec.policy));
        env.try_emplace("GIT_CONFIG_COUNT", "1");
        env.try_emplace("GIT_CONFIG_KEY_0", "core.excludesFile");
        env.try_emplace("GIT_CONFIG_VALUE_0", library_path + "/gitignore");
    }
    const std::string address = doors->sandbox->guest_address(spec.policy, socket);
    if (!address.starts_with('/'))
        tools->fit(sandbox_kit::mux_max_connections);  // a relay carries it
    env["IPYBOX_TOOL_SOCKET"] = address;
    env["IPYBOX_TOOL_TOKEN"] = tools->token();
    if (options.working_dir) env["IPYBOX_WORKING_DIR"] = spec.policy.cwd.string();
    if (options.exact_numbers) env["IPYBOX_EXACT_NUMBERS"] = "1";
    if (options.approve_shell_cmds)
        env["IPYBOX_SHELL"] = options.require_shell_escape ? "only" : "ask";
    // For the words of errors: the wall is the sandbox's.
    if (options.programs == Programs::deny) env["IPYBOX_PROGRAMS"] = "deny";
    if (options.programs == Programs::ask) {
        env["IPYBOX_PROGRAMS"] = "ask";
        // As the kernel will set them: what programs get is compared with this.
        env["TERM"] = "dumb";
        env["NO_COLOR"] = "1";
        env["PAGER"] = env["GIT_PAGER"] = "cat";
    }
    spec.channels.insert(spec.channels.end(), own.begin(), own.end());
    try {
        // Python forgets a directory of its path for good that is not there when it starts.
        make_site_directory();
    } catch (const Error& error) {
        host.logger(LogLevel::warning, "packages cannot be installed: " + error.detail());
    }
    return spec;
}

IPYBOX_DECL KernelSpec CodeExecutor::Session::distant_spec(const Capabilities& able) const {
    const auto refuse = [](const std::string& what) {
        throw Error(errc::sandbox_refused,
                    "the kernel runs on another machine, where " + what +
                        " has no effect: confine it there, and leave that out here");
    };
    if (able.filesystem || able.process_isolation || able.network_none)
        refuse("sandbox \"" + options.sandbox + "\" (\"none\" says so)");
    if (options.sandbox_config) refuse("sandbox_config");
    if (!options.allowed_hosts.empty()) refuse("allowed_hosts");
    if (options.protect_strict) refuse("protect_strict");
    if (options.programs == Programs::deny) refuse("programs \"deny\" (--no-exec)");
    if (options.programs == Programs::ask) refuse("programs \"ask\" (--approve-programs)");
    const auto& limits = options.limits;
    if (limits.memory_per_process || limits.memory_total || limits.processes || limits.open_files ||
        limits.file_size || limits.cpu_seconds || limits.wall_seconds || limits.scratch_size ||
        limits.scratch_inodes || limits.workspace_size)
        refuse("a limit");
    KernelSpec spec;
    spec.logger = options.logger;
    spec.init_timeout = options.kernel_init_timeout;
    spec.extensions = {"ipybox_kernel"};
    spec.allow_input = options.allow_input;
    spec.channels = own_channels();
    const auto library = spec.channels[1].host_path;
    auto& env = spec.policy.env = options.kernel_env;
    if (tool_url.empty()) {
        env["IPYBOX_TOOL_SOCKET"] = spec.channels[0].host_path.string();
    } else {
        env["IPYBOX_TOOL_SOCKET"] = tool_url;
        env["IPYBOX_TOOL_CERTIFICATE"] = (library / certificate_name).string();
        spec.channels.erase(spec.channels.begin());
    }
    env["IPYBOX_TOOL_TOKEN"] = tools->token();
    auto& path = env["PYTHONPATH"];
    path = library.string() + (path.empty() ? "" : ":" + path);
    if (options.working_dir) env["IPYBOX_WORKING_DIR"] = options.working_dir->string();
    if (options.exact_numbers) env["IPYBOX_EXACT_NUMBERS"] = "1";
    if (options.approve_shell_cmds)
        env["IPYBOX_SHELL"] = options.require_shell_escape ? "only" : "ask";
    return spec;
}

IPYBOX_DECL std::vector<Channel> CodeExecutor::Session::own_channels() const {
    std::vector<Channel> channels(2);
    channels[0].name = "tools";
    channels[0].host_path = run_directory->path() / "tools";
    channels[0].kind = Channel::Kind::socket;
    channels[1].name = "lib";
    channels[1].host_path = run_directory->path() / "lib";
    return channels;
}

IPYBOX_DECL std::string CodeExecutor::Session::git_ignored(const SandboxPolicy& policy) const {
    std::string patterns = "/.ipybox\n";
    const std::filesystem::path start = literal_glob(workspace);
    for (std::filesystem::path path : policy.hidden) {
        while (path.filename() == "**") path = path.parent_path();
        if (!detail::within(path, start)) continue;
        const auto pattern = path.lexically_relative(start).string();
        patterns += (pattern.starts_with("**/") ? pattern.substr(3) : '/' + pattern) + '\n';
    }
    const auto present = [](const std::filesystem::path& path) {
        struct stat found{};
        return ::lstat(path.c_str(), &found) == 0 && !detail::is_placeholder(found);
    };
    for (auto path : policy.write_protected) {
        if (!detail::within(path, workspace) || present(path)) continue;
        while (path.parent_path() != workspace && !present(path.parent_path()))
            path = path.parent_path();
        for (const char c : path.filename().string()) {
            if (std::string_view("*?[\\!# ").find(c) != std::string_view::npos) patterns += '\\';
            patterns += c;
        }
        patterns += '\n';
    }
    return patterns;
}

IPYBOX_DECL void CodeExecutor::Session::trust_system_certificates(
    std::map<std::string, std::string>& env) {
    const auto bundle = net::certificate_bundle();
    if (!bundle) return;
    for (const char* name : {"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT"})
        env.try_emplace(name, bundle->string());
}

}  // namespace ipybox
