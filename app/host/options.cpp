#include "options.hpp"

#include <ipybox/detail/json_members.hpp>

#include "../keep_warm.hpp"

namespace ipybox::app::host {
namespace {

// Text is taken over where it is given.
template <class Target>
void set_text(Target& target, const json::object& params, std::string_view key) {
    if (const auto* text = detail::find_string(params, key)) target = std::string(*text);
}
void set_flag(bool& target, const json::object& params, std::string_view key) {
    target = flag_of(params, key, target);
}
void set_seconds(Duration& target, const json::object& params, std::string_view key) {
    if (const auto* value = params.if_contains(key)) target = seconds(detail::to_double(*value));
}
void set_texts(std::vector<std::string>& target, const json::object& params, std::string_view key) {
    if (params.contains(key)) target = texts_of(params, key);
}
void set_paths(std::vector<std::filesystem::path>& target, const json::object& params,
               std::string_view key) {
    for (const auto& path : texts_of(params, key)) target.emplace_back(path);
}
void set_limit(std::optional<std::uint64_t>& target, const json::object& limits,
               std::string_view key) {
    if (limits.contains(key)) target = count_of(limits, key, 0);
}

Limits limits_of(const json::object& params) {
    Limits limits;
    const auto* given = detail::object_of(params, "limits");
    if (given == nullptr) return limits;
    set_limit(limits.memory_per_process, *given, "memory_per_process");
    set_limit(limits.memory_total, *given, "memory_total");
    set_limit(limits.processes, *given, "processes");
    set_limit(limits.open_files, *given, "open_files");
    set_limit(limits.file_size, *given, "file_size");
    set_limit(limits.cpu_seconds, *given, "cpu_seconds");
    set_limit(limits.wall_seconds, *given, "wall_seconds");
    set_limit(limits.scratch_size, *given, "scratch_size");
    set_limit(limits.scratch_inodes, *given, "scratch_inodes");
    set_limit(limits.workspace_size, *given, "workspace_size");
    return limits;
}

AuditLogPtr audit_of(const json::object& params, const std::filesystem::path& workspace,
                     const Logger& logger, const HeadHook& heads) {
    const auto* given = detail::object_of(params, "audit");
    if (given == nullptr) return nullptr;
    AuditOptions settings;
    settings.workspace = workspace;
    set_flag(settings.fsync, *given, "fsync");
    set_flag(settings.code_text, *given, "code_text");
    set_flag(settings.results, *given, "results");
    set_flag(settings.stop_on_failure, *given, "stop_on_failure");
    set_flag(settings.inside_workspace, *given, "inside_workspace");
    settings.head_every = count_of(*given, "head_every", settings.head_every);
    const auto file = text_of(*given, "file");
    settings.on_head = [heads, file](const std::string& head) { heads(file, head); };
    return std::make_shared<AuditLog>(file, settings, logger);
}

}  // namespace

std::string text_of(const json::object& params, std::string_view key, std::string_view absent) {
    const auto* text = detail::find_string(params, key);
    return std::string(text ? std::string_view(*text) : absent);
}

bool flag_of(const json::object& params, std::string_view key, bool absent) {
    const auto* value = params.if_contains(key);
    return value && value->is_bool() ? value->get_bool() : absent;
}

Duration seconds_of(const json::object& params, std::string_view key, double absent) {
    const auto* value = params.if_contains(key);
    return seconds(value ? detail::to_double(*value) : absent);
}

std::uint64_t count_of(const json::object& params, std::string_view key, std::uint64_t absent) {
    const auto* value = params.if_contains(key);
    return value ? static_cast<std::uint64_t>(detail::to_double(*value)) : absent;
}

std::vector<std::string> texts_of(const json::object& params, std::string_view key) {
    std::vector<std::string> texts;
    const auto* value = params.if_contains(key);
    if (value && value->is_array())
        for (const auto& text : value->get_array()) texts.emplace_back(text.as_string());
    return texts;
}

Variables variables_of(const json::object& params, std::string_view key) {
    Variables variables;
    if (const auto* object = detail::object_of(params, key))
        for (const auto& [name, value] : *object)
            variables[std::string(name)] = std::string(value.as_string());
    return variables;
}

json::object take_object(json::object& params, std::string_view key) {
    auto* value = params.if_contains(key);
    return value && value->is_object() ? std::move(value->get_object()) : json::object();
}

void set_options(CodeExecutorOptions& options, json::object params, const HeadHook& heads) {
    set_text(options.sandbox, params, "sandbox");
    options.sandbox_options = take_object(params, "sandbox_options");
    if (params.contains("sandbox_config"))
        options.sandbox_config = take_object(params, "sandbox_config");
    set_texts(options.allowed_hosts, params, "allowed_hosts");
    set_texts(options.package_hosts, params, "package_hosts");
    set_text(options.kernel, params, "kernel");
    options.kernel_options = take_object(params, "kernel_options");
    app::keep_warm(options);
    if (auto* policy = params.if_contains("approval")) options.approval = std::move(*policy);
    set_text(options.approval_name, params, "approval_name");
    set_text(options.python, params, "python");
    set_text(options.workspace, params, "workspace");
    set_text(options.working_dir, params, "working_dir");
    set_text(options.images_dir, params, "images_dir");
    set_flag(options.async_api, params, "async_api");
    for (auto& [name, value] : variables_of(params, "kernel_env")) options.kernel_env[name] = value;
    options.variables = variables_of(params, "variables");
    set_text(options.session, params, "session");
    set_flag(options.allow_input, params, "allow_input");
    set_flag(options.exact_numbers, params, "exact_numbers");
    set_flag(options.approve_shell_cmds, params, "approve_shell_cmds");
    set_flag(options.require_shell_escape, params, "require_shell_escape");
    const auto programs = text_of(params, "programs", "allow");
    options.programs = programs == "deny"  ? Programs::deny
                       : programs == "ask" ? Programs::ask
                                           : Programs::allow;
    set_flag(options.check, params, "check");
    set_seconds(options.approval_timeout, params, "approval_timeout");
    set_seconds(options.connect_timeout, params, "connect_timeout");
    set_seconds(options.tool_timeout, params, "tool_timeout");
    set_seconds(options.kernel_init_timeout, params, "kernel_init_timeout");
    set_seconds(options.interrupt_grace, params, "interrupt_grace");
    set_flag(options.timeout_excludes_approval, params, "timeout_excludes_approval");
    set_flag(options.background_calls, params, "background_calls");
    set_paths(options.write_protected, params, "write_protected");
    set_flag(options.allow_home, params, "allow_home");
    set_paths(options.allow_write, params, "allow_write");
    set_flag(options.protect_strict, params, "protect_strict");
    options.max_output = count_of(params, "max_output", options.max_output);
    options.limits = limits_of(params);
    const auto workspace = options.workspace.empty() ? "." : options.workspace;
    options.audit = audit_of(params, workspace, options.logger, heads);
}

void set_options(ToolServerOptions& options, const json::object& params, const HeadHook& heads) {
    set_seconds(options.approval_timeout, params, "approval_timeout");
    set_seconds(options.connect_timeout, params, "connect_timeout");
    set_seconds(options.call_idle_timeout, params, "tool_timeout");
    set_seconds(options.call_timeout, params, "call_timeout");
    set_text(options.workspace, params, "workspace");
    set_text(options.session, params, "session");
    set_text(options.token, params, "token");
    set_text(options.control_token, params, "control_token");
    // No code runs that could write it.
    options.audit = audit_of(params, {}, options.logger, heads);
}

}  // namespace ipybox::app::host
