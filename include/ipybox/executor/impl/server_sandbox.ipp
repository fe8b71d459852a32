#pragma once
#include <ipybox/executor/server_sandbox.hpp>

#include <sys/stat.h>

#include <boost/json/parse.hpp>
#include <ipybox/compilation.hpp>
#include <ipybox/sandbox_kit/guest_view.hpp>
#include <optional>
#include <utility>

namespace ipybox {

IPYBOX_DECL ServerSandbox::ServerSandbox(PluginRegistry& registry, Host& host,
                                         json::object settings, PolicySources sources,
                                         std::filesystem::path proxy)
    : host_(host),
      settings_(std::move(settings)),
      sources_(std::move(sources)),
      workspace_(sources_.workspace),
      proxy_path_(std::move(proxy)) {
    check(settings_, "sandbox");
    const auto* name = settings_.if_contains("name");
    const auto* options = settings_.if_contains("options");
    sandbox_ = registry.make<Sandbox>(
        name != nullptr ? std::string_view(name->get_string()) : "bubblewrap", host,
        options != nullptr ? options->get_object() : json::object());
}

IPYBOX_DECL ServerSandbox::~ServerSandbox() {
    proxy_.reset();
    std::error_code ignored;
    std::filesystem::remove(proxy_path_, ignored);
}

IPYBOX_DECL void ServerSandbox::check(const json::value& settings, const std::string& where) {
    static const json::value schema = json::parse(std::string(server_sandbox_schema));
    if (const auto problem = detail::validate(schema, settings))
        throw Error(errc::bad_config, where + ": " + *problem);
    Limits ignored;
    read_limits(settings.get_object(), ignored);
    const auto* config = settings.get_object().if_contains("config");
    for (const char* other : {"readable", "writable", "hosts"})
        if (config != nullptr && settings.get_object().contains(other))
            throw Error(errc::bad_config,
                        where + ": \"config\" says what \"" + other + "\" would; give one of them");
}

IPYBOX_DECL awaitable<std::unique_ptr<SandboxedProcess>> ServerSandbox::launch(
    SandboxPolicy policy, std::vector<std::string> argv, std::vector<Channel> channels,
    Stdio stdio) {
    const Capabilities able = co_await sandbox_->probe();
    confine(policy);
    if (const auto* options = settings_.if_contains("options"))
        policy.network.private_networks = private_networks_of(options->get_object());
    set_default_limits(policy.limits, able);
    // The kernel can put links into the workspace.
    for (const auto* list : {&policy.readable, &policy.writable})
        for (const auto& path : *list) sandbox_kit::look_below(workspace_, path.lexically_normal());
    if (policy.network.mode == NetworkPolicy::Mode::allow_list)
        channels.push_back(
            open_proxy(proxy_, host_.executor, host_.logger, policy, *sandbox_, proxy_path_));
    co_return co_await sandbox_->launch(std::move(policy), std::move(argv), std::move(channels),
                                        stdio);
}

IPYBOX_DECL void ServerSandbox::read_limits(const json::object& settings, Limits& limits) {
    const auto* given = settings.if_contains("limits");
    if (given == nullptr) return;
    for (const auto& [name, value] : given->get_object())
        set_limit(limits, name,
                  value.is_string() ? std::string(value.get_string()) : detail::write_json(value));
}

IPYBOX_DECL SandboxPolicy ServerSandbox::confined(SandboxPolicy policy) const {
    confine(policy);
    return policy;
}

IPYBOX_DECL void ServerSandbox::confine(SandboxPolicy& policy) const {
    const auto paths = [&](const char* key) {
        std::vector<std::filesystem::path> list;
        if (const auto* given = settings_.if_contains(key))
            for (const auto& item : given->get_array())
                list.push_back(workspace_ / std::string(item.get_string()));
        return list;
    };
    policy.readable = paths("readable");
    policy.writable = paths("writable");
    policy.network = {};
    if (const auto* hosts = settings_.if_contains("hosts")) {
        policy.network.mode = NetworkPolicy::Mode::allow_list;
        for (const auto& host : hosts->get_array())
            policy.network.allow.emplace_back(host.get_string());
    }
    read_limits(settings_, policy.limits);
    if (policy.cwd.empty()) policy.cwd = workspace_;
    struct stat owner{};
    if (::geteuid() == 0 && ::stat(workspace_.c_str(), &owner) == 0 && owner.st_uid != 0)
        policy.user = owner.st_uid;
    if (const auto* config = settings_.if_contains("config")) {
        const auto found = policy.env.find("HOME");
        const std::string home = found == policy.env.end() ? "/" : found->second;
        guard_workspace(policy, workspace_, sources_.protection);
        policy = apply_srt_settings(config->get_object(), std::move(policy), workspace_, home,
                                    sources_.protection);
        return keep_own_state(policy, sources_);
    }
    guard_writable(policy);
    policy.env["HOME"] = "/home/user";
    // A directory the server cannot see cannot be where it works.
    const auto sees = [&policy](const auto& list) {
        return sandbox_kit::within_any(policy.cwd.lexically_normal(), list);
    };
    if (!sees(policy.readable) && !sees(policy.writable)) policy.cwd = "/";
}

IPYBOX_DECL void ServerSandbox::guard_writable(SandboxPolicy& policy) const {
    for (const auto* list : {&policy.readable, &policy.writable})
        for (const auto& path : *list) policy.shown.push_back(path.lexically_normal());
    // What the lists do not show has no effect.
    guard_workspace(policy, workspace_, sources_.protection);
    // Elsewhere nobody expects files that hold the place of absent ones.
    auto rules = sources_.protection;
    rules.absent = false;
    for (const auto& path : policy.writable) {
        const auto root = path.lexically_normal();
        std::error_code error;
        if (root == workspace_ ||
            !std::filesystem::is_directory(std::filesystem::symlink_status(root, error)))
            continue;
        const auto found = sandbox_kit::protected_files(root, rules);
        policy.write_protected.insert(policy.write_protected.end(), found.paths.begin(),
                                      found.paths.end());
    }
    keep_own_state(policy, sources_);
}

}  // namespace ipybox
