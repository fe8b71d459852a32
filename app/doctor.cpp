// ipybox doctor: checks what this machine has, and says what to do about the rest.
#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <fstream>
#include <iostream>
#include <ipybox/approval/remembered_rules.hpp>
#include <ipybox/detail/build_info.hpp>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/detail/private_directory.hpp>
#include <ipybox/detail/terminal_text.hpp>
#include <ipybox/executor/code_executor.hpp>
#include <ipybox/registry.hpp>
#include <ipybox/sandbox_kit/cgroup.hpp>
#include <ipybox/sandbox_kit/guest_identity.hpp>
#include <ipybox/sandbox_kit/host_program.hpp>
#include <ipybox/sandbox_kit/project_quota.hpp>
#include <ipybox/sandbox_kit/python_environment.hpp>
#include <ipybox/sandbox_kit/system_package.hpp>
#include <memory>
#include <vector>

#include "commands.hpp"
#include "page/approval_page.hpp"
#include "run_to_end.hpp"
#include "table.hpp"
#include "terminal_output.hpp"

namespace ipybox::app {
namespace {

class Doctor {
public:
    Doctor(asio::io_context& context, const std::filesystem::path& workspace,
           const std::vector<std::filesystem::path>& plugin_dirs, bool as_json)
        : as_json_(as_json),
          columns_(terminal_columns(STDOUT_FILENO)),
          color_(colors_at(STDOUT_FILENO)),
          plugin_dirs_(plugin_dirs),
          executor_(context.get_executor()),
          workspace_(workspace),
          setup_modules_(modules_of_setup()),
          memory_problem_(Cgroup::problem()),
          quota_problem_(ipybox::sandbox_kit::ProjectQuota::problem(workspace)) {
        host_.executor = executor_;
    }

    // 0 when everything that is needed is there.
    awaitable<int> examine(std::string python) {
        if (!as_json_) std::cout << "ipybox " << detail::build_version << '\n';
        check_plugins();
        co_await check_python(std::move(python));
        check_reach();
        check_remembered();
        // Not the links themselves: who runs this may be a model.
        for (const auto& file : page_link_files())
            good("approval page", "a page is open; its link is in " + file.string());
        co_await check_sandbox("bubblewrap", true);
        co_await check_sandbox("srt", false);
        co_await check_fork();
        check_limit("memory-total", "all processes of a sandbox together, by a control group",
                    memory_problem_);
        check_limit("workspace",
                    "in " + workspace_.string() + ", by a project quota; sandbox bubblewrap",
                    quota_problem_);
        co_await check_node();
        if (as_json_) report();
        co_return healthy_ ? 0 : 1;
    }

private:
    // missing: what only those need who ask for it.
    enum class State { ok, failed, missing };
    void good(const std::string& what, const std::string& detail) { line(State::ok, what, detail); }
    void bad(const std::string& what, const std::string& problem) {
        healthy_ = false;
        line(State::failed, what, problem);
    }
    void missing(const std::string& what, const std::string& text) {
        line(State::missing, what, text);
    }
    // Each as soon as it is known: some take seconds.
    void line(State state, const std::string& what, const std::string& text) {
        if (as_json_) {
            json::object check;
            check["check"] = what;
            check["state"] = state == State::ok       ? "ok"
                             : state == State::failed ? "failed"
                                                      : "missing";
            check["detail"] = text;
            checks_.push_back(std::move(check));
            return;
        }
        using ipybox::detail::Color;
        constexpr std::size_t indent = 8, least = 40;
        const char* marks[] = {"ok      ", "FAILED  ", "missing "};
        constexpr Color colors[] = {Color::green, Color::red, Color::yellow};
        const auto number = static_cast<std::size_t>(state);
        const auto room = columns_ > least ? columns_ - indent : 0;
        const auto lines = wrapped(what + ": " + ipybox::detail::printable(text), room);
        const auto paint = [this](Color color, const std::string& part) {
            return color_ ? ipybox::detail::in_color(color, part) : part;
        };
        std::cout << paint(colors[number], marks[number]);
        const auto head = std::min(what.size() + 1, lines.front().size());
        std::cout << paint(Color::bold, lines.front().substr(0, head))
                  << lines.front().substr(head);
        for (std::size_t i = 1; i < lines.size(); ++i)
            std::cout << '\n' << std::string(indent, ' ') << lines[i];
        std::cout << std::endl;
    }
    void report() {
        json::object whole;
        whole["version"] = ipybox::detail::build_version;
        whole["healthy"] = healthy_;
        whole["checks"] = std::move(checks_);
        std::cout << ipybox::detail::write_json(whole) << std::endl;
    }

    void check_plugins() {
        try {
            registry_ = PluginRegistry::standard(plugin_dirs_);
            std::string names;
            const auto refused = [&](const auto&, const std::string& message) {
                bad("plugins", message);
            };
            for (const auto& entry : registry_.list(refused))
                names += (names.empty() ? "" : ", ") + std::string(kind_of(*entry.plugin)) + "/" +
                         std::string(entry.plugin->name);
            if (names.empty()) {
                bad("plugins", "none found; install ipybox completely or set IPYBOX_PLUGIN_PATH");
            } else {
                good("plugins", names);
            }
        } catch (const Error& error) {
            bad("plugins", error.detail());
        }
    }

    awaitable<void> check_python(std::string configured) {
        try {
            const auto python = find_python(configured);
            const PythonEnvironment found =
                co_await inspect_python(executor_, python, std::chrono::seconds(30));
            python_ = python;
            reached_.push_back({found.executable, R_OK | X_OK});
            for (const auto& directory : found.readable)
                reached_.push_back({directory, R_OK | X_OK});
            good("Python", found.version + " at " + python.string());
            if (const auto problem = package_problem(found); !problem.empty()) {
                bad("kernel packages", problem);
            } else {
                good("kernel packages",
                     "ipykernel " + *found.ipykernel + ", pydantic " + *found.pydantic);
            }
        } catch (const Error& error) {
            bad("Python", error.detail());
        }
    }

    // Where `scripts/setup` installs Node.js and srt: beside the program that was built there, so
    // that whoever could put something there could replace the program as well. Empty when there is
    // nothing, or code could have written it.
    static std::filesystem::path modules_of_setup() {
        std::error_code error;
        const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
        if (error) return {};
        const auto named = program.parent_path() / "node/node_modules";
        auto modules = std::filesystem::canonical(named, error);
        if (error || writable_places().holds(named) || writable_places().holds(modules)) return {};
        return modules;
    }

    // What root's kernels and servers, which are another user's, must be able to read.
    void check_reach() {
        if (::geteuid() != 0) return;
        const std::string what = "access of the unprivileged user";
        SandboxPolicy policy;
        policy.cwd = workspace_;
        if (!setup_modules_.empty()) reached_.push_back({setup_modules_, R_OK | X_OK});
        try {
            const auto identity = ipybox::sandbox_kit::guest_identity(policy, std::nullopt);
            reached_.insert(reached_.begin(), {workspace_, R_OK | W_OK | X_OK});
            ipybox::sandbox_kit::check_reach(identity, reached_);
            good(what, "uid " + std::to_string(identity->user) + " reaches " + workspace_.string() +
                           " and what kernels need");
        } catch (const Error& error) {
            missing(what,
                    "root's kernels in a sandbox run as one, in the workspace: " + error.detail());
        }
    }

    // What was answered "always": a file with a mistake stops every question.
    void check_remembered() {
        const RememberedRules remembered;
        try {
            const auto rules = remembered.list();
            const auto now = std::chrono::system_clock::now();
            const auto stale = std::count_if(rules.begin(), rules.end(), [now](const auto& one) {
                return !why_stale(one, now).empty();
            });
            if (rules.empty()) return;
            good("remembered rules", std::to_string(rules.size()) + " in " +
                                         remembered.file().string() +
                                         (stale == 0 ? ""
                                                     : "; " + std::to_string(stale) +
                                                           " of them stale: `ipybox policy list` "
                                                           "names them, `ipybox policy forget "
                                                           "NUMBER` removes one"));
        } catch (const Error& error) {
            bad("remembered rules", error.detail());
        }
    }

    awaitable<Capabilities> probe(std::string name, json::object options) {
        Capabilities able;
        try {
            const auto sandbox = registry_.make<Sandbox>(name, host_, options);
            able = co_await sandbox->probe();
        } catch (const Error& error) {
            able.problem = error.detail();
        }
        co_return able;
    }

    awaitable<void> check_sandbox(std::string name, bool needed) {
        json::object options;
        Capabilities able = co_await probe(name, options);
        const auto own = setup_modules_ / "@anthropic-ai/sandbox-runtime/dist/cli.js";
        std::string how;
        if (!able.available && name == "srt" && std::filesystem::exists(own)) {
            options["srt"] = own.string();
            able = co_await probe(name, options);
            how = "with --sandbox-options '" + ipybox::detail::write_json(options) + "' ";
        }
        if (!able.available) {
            if (needed) {
                bad(name, able.problem);
            } else {
                missing(name,
                        "not needed unless chosen with --sandbox " + name + ": " + able.problem);
            }
            co_return;
        }
        std::string can, cannot;
        const std::string denying = co_await programs_problem(name, Programs::deny);
        const std::string asking = co_await programs_problem(name, Programs::ask);
        const std::pair<const char*, bool> abilities[] = {
            {"files", able.filesystem},
            {"no network", able.network_none},
            {"allowed hosts", able.network_allow_list},
            {"processes of its own", able.process_isolation},
            {"limits per process", able.limits_per_process},
            {"total memory", able.memory_total},
            {"wall time", able.wall_time},
            {"scratch size", able.scratch_size},
            {"scratch inodes", able.scratch_inodes},
            {"workspace size", able.workspace_size && quota_problem_.empty()},
            {"no programs (--no-exec)", denying.empty()},
            {"questions about programs (--approve-programs)", asking.empty()}};
        for (const auto& [what, enforced] : abilities) {
            std::string& list = enforced ? can : cannot;
            list += (list.empty() ? "" : ", ") + std::string(what);
        }
        good(name, how + "a sandboxed process runs; enforced: " + can +
                       (cannot.empty() ? "" : "; not enforceable here: " + cannot));
        for (const auto& [flag, why] :
             {std::pair("--no-exec", denying), std::pair("--approve-programs", asking)})
            if (needed && !why.empty()) missing(flag, "not needed unless asked for: " + why);
        const std::string held = co_await absent_names(name);
        if (!held.empty())
            good(name, "protected names that " + workspace_.string() + " lacks are held " + held);
    }

    awaitable<std::string> programs_problem(std::string name, Programs wanted) {
        const auto sandbox = registry_.make<Sandbox>(name, host_, json::object{});
        co_return co_await sandbox->programs_problem(wanted);
    }

    awaitable<std::string> absent_names(std::string name) {
        SandboxPolicy policy;
        policy.writable = {workspace_};
        policy.cwd = workspace_;
        try {
            const auto sandbox = registry_.make<Sandbox>(name, host_, json::object{});
            co_return co_await sandbox->absent_names(std::move(policy));
        } catch (const Error&) {
            // A workspace for which there is no user, say: the start of a kernel tells.
            co_return std::string();
        }
    }

    // Whether kernels can be forked here is found out by forking one.
    awaitable<void> check_fork() {
        const std::string what = "forked kernels";
        if (python_.empty()) co_return;
        try {
            const auto sandbox = registry_.make<Sandbox>("bubblewrap", host_, json::object{});
            const auto guest = sandbox->guest_user(SandboxPolicy());
            const ipybox::detail::PrivateDirectory workspace(guest, guest);
            CodeExecutorOptions options;
            options.python = python_;
            options.workspace = workspace.path();
            options.sandbox = "bubblewrap";
            options.kernel = "fork";
            options.kernel_options["start"] = "forked";
            options.kernel_init_timeout = std::chrono::seconds(30);
            std::string loaded;
            options.logger = {LogLevel::info, [&loaded](LogLevel, std::string_view text) {
                                  if (text.starts_with("kernels are forked")) loaded = text;
                              }};
            CodeExecutor trial(executor_, registry_, std::move(options));
            co_await trial.start();
            co_await trial.stop();
            good(what, loaded);
        } catch (const Error& error) {
            missing(what, "not needed: kernels start one by one instead, in about 0.15 s. " +
                              error.detail() + restricted_namespaces());
        }
    }

    static std::string restricted_namespaces() {
        const std::string setting = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns";
        if (!ipybox::sandbox_kit::read_proc(setting).starts_with('1')) return {};
        return "; AppArmor takes the rights away that entering a sandbox needs: docs/kernels.md "
               "has a profile that leaves them to bwrap";
    }

    // A limit that not every machine can hold.
    void check_limit(const std::string& name, const std::string& how, const std::string& problem) {
        if (problem.empty()) {
            good("limit " + name, how);
        } else {
            missing("limit " + name, "not needed unless asked for: " + problem);
        }
    }

    awaitable<void> check_node() {
        const char* path = std::getenv("PATH");
        auto node = find_program("node", path ? path : "");
        const bool installed = node.has_value();
        if (!node && !setup_modules_.empty())
            node = find_program((setup_modules_ / "node/bin/node").string(), "");
        if (!node) {
            missing("Node.js", "only MCP servers from npm need it: " +
                                   sandbox_kit::install_command("nodejs npm"));
            co_return;
        }
        SpawnRequest request;
        request.argv = {node->string(), "--version"};
        request.stdio = Stdio::pipes;
        ChildProcess process(executor_, std::move(request));
        const auto output =
            co_await ipybox::sandbox_kit::output_of(process, std::chrono::seconds(10));
        const std::string version = output.value_or("");
        if (version.starts_with("v") && std::atoi(version.c_str() + 1) >= 18) {
            good("Node.js", version.substr(0, version.find('\n')) + " at " + node->string() +
                                (installed ? ""
                                           : "; MCP servers find it with " +
                                                 node->parent_path().string() + " in PATH"));
        } else {
            missing("Node.js",
                    node->string() + " is too old; MCP servers from npm need version 18 or newer");
        }
    }

    const bool as_json_;
    const std::size_t columns_;  // 0: no terminal
    const bool color_;
    json::array checks_;
    std::vector<std::filesystem::path> plugin_dirs_;
    asio::any_io_executor executor_;
    std::filesystem::path workspace_;
    std::filesystem::path python_;
    std::filesystem::path setup_modules_;
    std::vector<ipybox::sandbox_kit::Access> reached_;
    std::string memory_problem_;  // why total memory cannot be limited; empty: it can
    std::string quota_problem_;   // why the workspace's size cannot
    PluginRegistry registry_;
    Host host_;
    bool healthy_ = true;
};

int run_doctor(const std::string& python, const std::string& workspace,
               const std::vector<std::filesystem::path>& plugin_dirs, bool as_json) {
    asio::io_context context(1);
    Doctor doctor(context, std::filesystem::weakly_canonical(workspace), plugin_dirs, as_json);
    return run_to_end(context, doctor.examine(python));
}

}  // namespace

void add_doctor(CLI::App& app, Action& action) {
    auto* command = app.add_subcommand(
        "doctor", "Check Python, its packages, the sandboxes and Node.js on this machine");
    auto python = std::make_shared<std::string>();
    command->add_option("--python", *python, "Interpreter to check")->type_name("PATH");
    auto workspace = std::make_shared<std::string>(".");
    command->add_option("--workspace", *workspace, "Directory whose size is to be limited")
        ->type_name("DIR")
        ->capture_default_str();
    auto plugin_dirs = std::make_shared<std::vector<std::filesystem::path>>();
    add_plugin_dir(*command, *plugin_dirs);
    auto as_json = std::make_shared<bool>(false);
    command->add_flag(
        "--json", *as_json,
        "Print a JSON object instead of text: version, healthy, and of each of checks "
        "its check, state (ok, failed, missing) and detail");
    command->callback([&action, python, workspace, plugin_dirs, as_json] {
        action = [=] { return run_doctor(*python, *workspace, *plugin_dirs, *as_json); };
    });
}

}  // namespace ipybox::app
