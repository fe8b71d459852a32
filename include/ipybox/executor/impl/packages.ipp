#pragma once
#include <ipybox/executor/code_executor.hpp>

#include <ipybox/compilation.hpp>
#include <ipybox/executor/impl/session.hpp>
#include <ipybox/executor/server_sandbox.hpp>
#include <ipybox/sandbox_kit/guest_view.hpp>

namespace ipybox {

IPYBOX_DECL awaitable<std::string> CodeExecutor::Session::install_package(std::string package,
                                                                          Duration timeout) {
    const auto self = shared_from_this();
    if (!shares_files())
        throw Error(errc::bad_argument,
                    "the kernel runs on another machine: install packages there, for "
                    "instance by running `%pip install NAME` in it");
    const bool printable =
        std::all_of(package.begin(), package.end(), [](char c) { return c >= ' ' && c < 127; });
    if (package.empty() || package.front() == '-' || !printable)
        throw Error(errc::bad_argument,
                    "\"" + detail::printable(package) +
                        "\" is no package: accepted are a name, a requirement such as "
                        "\"requests>=2\", a URL or a git+https:// address");
    co_await find_environment();
    const Capabilities able = co_await capabilities();
    look_at_files();
    make_site_directory();
    SandboxPolicy policy;
    // Code wrote the packages' directory: nothing is found there because pip starts in it.
    policy.cwd = "/";
    if (::geteuid() == 0) policy.user = doors->sandbox->guest_user(base_policy());
    policy.writable = {site_directory()};
    policy.readable = environment->readable;
    policy.env = {
        {"PATH", "/usr/local/bin:/usr/bin:/bin"}, {"LANG", "C.UTF-8"}, {"HOME", "/home/user"}};
    if (!able.filesystem) policy.env["HOME"] = "/nonexistent";
    trust_system_certificates(policy.env);
    for (const auto& [name, value] : options.kernel_env)
        if (name.starts_with("PIP_")) policy.env[name] = value;
    policy.limits = options.limits;
    // The kernel's holds for the directory as well, while there is one.
    policy.limits.workspace_size.reset();
    set_default_limits(policy.limits, able, std::uint64_t{4} << 30);
    policy.network.mode = NetworkPolicy::Mode::full;
    std::vector<Channel> channels;
    std::unique_ptr<NetworkProxy> own_proxy;
    std::string hint;
    if (able.network_allow_list) {
        hint = unreached_host(package);
        policy.network.mode = NetworkPolicy::Mode::allow_list;
        policy.network.allow = options.package_hosts;
        policy.network.private_networks = private_networks_of(options.sandbox_options);
        channels.push_back(open_proxy(own_proxy, host.executor, host.logger, policy,
                                      *doors->sandbox, run_place().path() / "packages"));
    } else if (able.network_none) {
        throw Error(errc::sandbox_refused,
                    "sandbox " + options.sandbox + " cannot reach a package index");
    }
    std::vector<std::string> argv = {environment->executable.string(),
                                     "-I",
                                     "-m",
                                     "pip",
                                     "install",
                                     "--no-input",
                                     "--disable-pip-version-check",
                                     "--no-cache-dir",
                                     "--progress-bar=off",
                                     "--upgrade",
                                     "--target",
                                     site_directory().string(),
                                     "--",
                                     package};
    const auto process = co_await doors->sandbox->launch(std::move(policy), std::move(argv),
                                                         std::move(channels), Stdio::tail);
    const auto deadline = deadline_after(timeout);
    const auto status = co_await process->wait(deadline);
    const std::string said = executor::strip(process->output_tail());
    if (!status) throw Error(errc::timed_out, "pip did not end in time: " + said);
    if (said.find("No module named pip") != std::string::npos)
        throw Error(errc::missing_dependency,
                    environment->executable.string() +
                        " has no pip; install it with `python -m ensurepip`");
    if (status->code != 0)
        throw Error(errc::code_failed, "pip could not install " + package + ":\n" + said + hint);
    co_return said;
}

IPYBOX_DECL std::string CodeExecutor::Session::unreached_host(std::string_view package) const {
    const auto scheme = package.find("://");
    if (scheme == package.npos) return {};
    auto place = package.substr(scheme + 3);
    place = place.substr(0, place.find_first_of("/?#"));
    place = place.substr(place.rfind('@') + 1);
    const auto name = net::canonical_host(net::split_port(place).first);
    if (!name) return {};
    std::string reached;
    for (const auto& each : options.package_hosts) {
        const auto rule = net::parse_domain_rule(each, net::RuleList::allow);
        if (rule && rule->matches(*name, rule->port.value_or(0))) return {};
        reached += (reached.empty() ? "" : ", ") + each;
    }
    return "\n[Its sandbox reaches only " + reached + "; --package-host " + *name +
           " (package_hosts) opens that host, and has to name those of other packages as well.]";
}

}  // namespace ipybox
