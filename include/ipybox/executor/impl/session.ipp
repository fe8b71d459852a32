#pragma once
#include <ipybox/executor/code_executor.hpp>

#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/multiple_exceptions.hpp>
#include <ipybox/compilation.hpp>
#include <ipybox/detail/within.hpp>
#include <ipybox/executor/impl/session.hpp>
#include <ipybox/executor/server_sandbox.hpp>
#include <ipybox/sandbox_kit/guest_view.hpp>
#include <ipybox/sandbox_kit/writable_places.hpp>

namespace ipybox {

IPYBOX_DECL CodeExecutor::Session::Session(asio::any_io_executor executor, PluginRegistry& r,
                                           CodeExecutorOptions o)
    : registry(r),
      options(std::move(o)),
      doors(std::make_shared<Doors>()),
      host(doors->host),
      idle(executor) {
    host.executor = std::move(executor);
    host.logger = options.logger;
    if (options.on_span) spans = std::make_shared<SpanTeller>(options.on_span, options.logger);
}

IPYBOX_DECL void CodeExecutor::Session::prepare(const std::weak_ptr<Session>& self) {
    workspace = std::filesystem::absolute(options.workspace.empty() ? "." : options.workspace);
    workspace = writable_places().real_paths({workspace}).front();
    if (!std::filesystem::is_directory(workspace))
        throw Error(errc::bad_argument, "workspace " + options.workspace.string() +
                                            ": not a directory; create it first");
    check_allow_write();
    if (options.require_shell_escape && !options.approve_shell_cmds)
        throw Error(errc::bad_argument, "require_shell_escape needs approve_shell_cmds");
    if (options.programs == Programs::deny && options.approve_shell_cmds)
        throw Error(errc::bad_argument,
                    "approve_shell_cmds has nothing to ask where programs are denied (--no-exec): "
                    "leave one of the two out");
    if (options.programs == Programs::ask && options.approve_shell_cmds)
        throw Error(errc::bad_argument,
                    "approve_shell_cmds asks about commands whose programs are asked about anyway "
                    "(--approve-programs): leave one of the two out");
    host.ask = [self](ToolCall call) { return ask(self, std::move(call)); };
    doors->sandbox = registry.make<Sandbox>(options.sandbox, host, options.sandbox_options);
    doors->servers_sandbox = registry.make<Sandbox>("none", host, json::object{});
    doors->backend = make_backend();
    if (options.allow_input && !doors->backend->takes_input())
        throw Error(errc::bad_argument, "allow_input: kernels of \"" + options.kernel +
                                            "\" cannot ask; those of \"fork\" and \"zmq\" can");
    doors->policy = options.make_policy
                        ? options.make_policy(host)
                        : make_policy(registry, host, options.approval, options.approval_name);
    if (!doors->policy) throw Error(errc::bad_argument, "make_policy returned no policy");
    keep_program();
    make_tool_server();
}

IPYBOX_DECL void CodeExecutor::Session::keep_program() {
    for (const auto& path : registry.in_use()) {
        std::error_code error;
        const auto real = std::filesystem::canonical(path, error);
        if (!error && detail::within(real, workspace)) options.write_protected.push_back(real);
    }
}

IPYBOX_DECL void CodeExecutor::Session::make_tool_server() {
    ToolServerOptions settings;
    settings.approval_timeout = options.approval_timeout;
    settings.connect_timeout = options.connect_timeout;
    settings.call_idle_timeout = options.tool_timeout;
    if (options.tool_timeout <= Duration::zero() || options.tool_timeout > settings.call_timeout)
        settings.call_timeout = options.tool_timeout;
    settings.background_calls = options.background_calls;
    settings.owner = doors;
    settings.session = options.session;
    settings.audit = options.audit;
    settings.spans = spans;
    settings.watcher = options.watcher;
    if (options.on_progress)
        settings.on_progress = [self = weak_from_this()](const std::string& call,
                                                         const CallProgress& report) {
            const auto session = self.lock();
            if (session && !session->abandoned) session->options.on_progress(call, report);
        };
    settings.on_connect = [self = weak_from_this(), use = options.on_mcp_connect](
                              const std::string& server, McpClientOptions& client) {
        if (const auto session = self.lock())
            session->look_at_files();  // before the host starts it
        if (use) use(server, client);
    };
    settings.after_call = [self = weak_from_this()] { return refresh_view(self); };
    settings.shell_commands = options.approve_shell_cmds;
    settings.async_api = options.async_api;
    settings.workspace = workspace;
    settings.kernel_user = [self = weak_from_this()]() -> std::optional<uid_t> {
        const auto session = self.lock();
        if (!session || !session->shares_files()) return std::nullopt;
        return session->doors->sandbox->guest_user(session->base_policy());
    };
    settings.record_places = [self = weak_from_this()] { return record_places(self); };
    settings.make_sandbox = [this](json::object wanted) -> std::unique_ptr<Sandbox> {
        const auto socket = "network-" + std::to_string(++server_sandboxes);
        return std::make_unique<ServerSandbox>(registry, host, std::move(wanted), policy_sources(),
                                               run_place().path() / socket);
    };
    settings.on_tools_changed = [self = weak_from_this()](const std::string& name) {
        const auto session = self.lock();
        if (!session || !session->generated.contains(name)) return;
        session->outdated.insert(name);
        session->renew_apis();
    };
    tools = std::make_unique<ToolServer>(registry, host, *doors->servers_sandbox, *doors->policy,
                                         std::move(settings));
    tools->set_variables(options.variables);
    tools->set_policy(doors->policy);
}

IPYBOX_DECL void CodeExecutor::Session::set_policy(PolicyPtr policy,
                                                   std::optional<json::value> config) {
    if (!policy) throw Error(errc::bad_argument, "set_policy() needs a policy");
    if (options.audit) {
        json::object record;
        record["event"] = "policy";
        record["session"] = options.session;
        if (run) record["execution"] = run->id;
        const Secrets by_name;
        if (config) record["approval"] = approval::masked(*config, by_name);
        options.audit->write(std::move(record));
    }
    doors->policy = std::move(policy);
    tools->set_policy(doors->policy);
}

IPYBOX_DECL awaitable<void> CodeExecutor::Session::refresh_view(std::weak_ptr<Session> weak) {
    const auto self = weak.lock();
    if (!self || !self->kernel || !self->kernel->alive()) co_return;
    const auto process = self->kernel->process();
    if (process && process->may_be_stale()) co_await process->refresh_view();
}

IPYBOX_DECL bool CodeExecutor::Session::write_api(const std::string& name,
                                                  const std::filesystem::path& root_dir,
                                                  const GeneratedPackage& package) {
    for (const auto& skipped : package.skipped)
        host.logger(LogLevel::warning,
                    "no API for " + name + "." + skipped.tool + ": " + skipped.reason);
    // A kernel elsewhere imports it from the library.
    if (!shares_files()) {
        const auto place = root_dir.is_relative() ? root_dir : root_dir.filename();
        library_changed =
            write_package(run_place().path() / "lib" / place, name, package) || library_changed;
    }
    // By handle: the kernel could put a link in the path's place.
    const auto directory = policy_of_code().open_for_writing(root_dir, name);
    std::string kept_as;
    const bool written = write_package(directory.get(), name, package, &kept_as);
    unchecked.insert(name);
    if (!kept_as.empty())
        host.logger(LogLevel::warning,
                    (root_dir / name).string() +
                        " was not written by this program: what was there is kept as " +
                        (root_dir / kept_as).string() +
                        ". A package of the original ipybox may hold secrets in its __init__.py");
    return written;
}

IPYBOX_DECL awaitable<void> CodeExecutor::Session::deliver_apis() {
    auto* remote = remote_kernel();
    const bool due = std::exchange(library_changed, false);
    if (due && remote && remote->alive()) co_await remote->refresh();
}

IPYBOX_DECL void CodeExecutor::Session::renew_apis() {
    if (run || abandoned) return;
    for (const auto& name : std::exchange(outdated, {})) {
        try {
            const auto package = generate_package(name, tools->listed_tools(name), api_style());
            if (write_api(name, generated.at(name), package))
                host.logger(LogLevel::info, "the API of MCP server " + name +
                                                " was written again: its tools changed");
        } catch (const std::exception& error) {
            host.logger(LogLevel::warning,
                        "the API of MCP server " + name + " is out of date: " + error.what());
        }
    }
}

IPYBOX_DECL std::unique_ptr<KernelBackend> CodeExecutor::Session::make_backend() {
    if (options.kernel != "auto")
        return registry.make<KernelBackend>(options.kernel, host, options.kernel_options);
    try {
        registry.takes<KernelBackend>("fork", "start");
    } catch (const Error& error) {
        host.logger(LogLevel::warning, "kernels of zmq are used: " + error.detail());
        return registry.make<KernelBackend>("zmq", host, json::object{});
    }
    return registry.make<KernelBackend>("fork", host, options.kernel_options);
}

IPYBOX_DECL void CodeExecutor::Session::fit_backend() {
    if (environment->implementation == "cpython") return;
    const auto why = environment->executable.string() + " is " + environment->implementation +
                     ", and kernels of fork are CPython's";
    if (options.kernel == "fork")
        throw Error(errc::missing_dependency,
                    why + "; take --kernel zmq, or name a CPython with --python");
    if (options.kernel != "auto" || std::exchange(left_fork, true)) return;
    host.logger(LogLevel::warning, "kernels of zmq are used: " + why);
    doors->backend = registry.make<KernelBackend>("zmq", host, json::object{});
}

IPYBOX_DECL awaitable<void> CodeExecutor::Session::start() {
    auto self = shared_from_this();
    if (kernel && kernel->alive()) co_return;
    look_at_files();
    file_watch.reset();
    if (!listening) {
        const auto* remote = remote_backend();
        if (const auto where = remote ? remote->tool_listener() : std::nullopt) {
            const auto reached = tools->listen(*where);
            tool_url = reached.url;
            run_place().write_library_file(certificate_name, reached.certificates);
        } else {
            tools->listen(run_place().path() / "tools", doors->sandbox->guest_user(base_policy()));
        }
        listening = true;
    }
    KernelSpec spec;
    if (shares_files()) {
        // Both wait for a process, so they do it together.
        using namespace asio::experimental::awaitable_operators;
        auto both = find_environment() && capabilities();
        Capabilities able;
        std::exception_ptr failure;
        try {
            able = co_await std::move(both);
        } catch (const asio::multiple_exceptions& failures) {
            failure = failures.first_exception();
        }
        if (failure) std::rethrow_exception(failure);
        fit_backend();
        spec = kernel_spec(able);
    } else {
        const Capabilities able = co_await capabilities();
        spec = distant_spec(able);
    }
    // Better now than with each cell.
    if (options.check) co_await make_checker();
    kernel.reset();
    seen.clear();
    kernel_limits = spec.policy.limits;
    watch_files(spec.policy);
    kernel = co_await doors->backend->start(*doors->sandbox, std::move(spec));
    require_last_program();
    started = true;
    if (!shares_files() && !remote_kernel()) {
        kernel.reset();
        throw Error(errc::bad_plugin,
                    "kernel backend " + options.kernel +
                        ": its kernels share no files with this machine, so it must start a "
                        "RemoteKernel, and did not; correct the plugin");
    }
    if (unconfined() && shares_files() && !std::exchange(told_unprotected, true))
        host.logger(
            LogLevel::warning,
            "sandbox \"none\" protects nothing: the code may change every file that you may, "
            "and so what runs on this machine later");
    if (const auto problem = writable_places().problem();
        !problem.empty() && !std::exchange(told_unrecorded, true))
        host.logger(LogLevel::warning,
                    "which places code could write is remembered for this run only: " + problem);
}

IPYBOX_DECL void CodeExecutor::Session::require_last_program() {
    if (options.programs == Programs::allow) return;
    const auto process = kernel->process();
    if (process && process->is_last_program()) return;
    kernel.reset();
    throw Error(errc::sandbox_refused,
                "the kernel was ended before it ran code: Linux does not tell that it is kept from "
                "starting programs (programs, --no-exec, --approve-programs). Kernel backend " +
                    options.kernel + " or sandbox " + options.sandbox + " has left that out");
}

IPYBOX_DECL awaitable<bool> CodeExecutor::Session::record_places(std::weak_ptr<Session> weak) {
    const auto self = weak.lock();
    if (!self || !self->shares_files()) co_return true;
    if (self->unconfined()) co_return false;
    const Capabilities able = co_await self->doors->sandbox->probe();
    if (!able.available || (self->kernel && self->kernel->alive())) co_return true;
    try {
        co_await self->find_environment();
    } catch (const Error&) {
        // The start of the kernel tells; until then nothing of an interpreter is protected.
    }
    const auto policy = able.filesystem ? self->policy_of_code().policy() : self->base_policy();
    writable_places().record(policy, able.pinned_protection, able.filesystem);
    co_return true;
}

IPYBOX_DECL void CodeExecutor::Session::report(const Violation& violation) {
    if (options.on_violation && !abandoned) options.on_violation(violation);
    if (!run && violation.layer != files_layer) return;
    auto& list = run ? run->violations : waiting_violations;  // for the next execution
    const auto known = std::find_if(list.begin(), list.end(), [&](const Violation& other) {
        return other.layer == violation.layer && other.what == violation.what;
    });
    if (known != list.end())
        known->count += violation.count;
    else if (list.size() < 100)
        list.push_back(violation);
}

IPYBOX_DECL void CodeExecutor::Session::report_new(const Kernel& from) {
    const auto process = from.process();
    if (!process) return;
    for (auto violation : process->violations()) {
        const auto before = std::exchange(seen[violation.layer], violation.count);
        if (violation.count <= before) continue;
        violation.count -= before;
        host.logger(LogLevel::warning, "sandbox: " + violation.layer + ": " + violation.what);
        report(violation);
    }
}

IPYBOX_DECL executor::RunDirectory& CodeExecutor::Session::run_place() {
    if (!run_directory)
        run_directory =
            std::make_unique<executor::RunDirectory>(doors->sandbox->guest_user(base_policy()));
    return *run_directory;
}

IPYBOX_DECL awaitable<void> CodeExecutor::Session::stop(bool for_good) {
    auto self = shared_from_this();
    if (for_good) doors->backend->release_spares();
    if (run) run->request_stop(Status::cancelled);
    while (run) co_await idle.wait();
    tools->end_execution();
    if (auto old = std::move(kernel)) co_await old->shutdown();
    if (checker) checker->stop();
    look_at_files();
    file_watch.reset();
    co_await tools->reset();
}

IPYBOX_DECL void CodeExecutor::Session::abandon() {
    abandoned = true;
    if (doors->backend) doors->backend->release_spares();
    if (spans) spans->close();
    if (checker) checker->stop();
    if (run) {
        run->abandoned = true;
        run->request_stop(Status::cancelled);
    } else {
        kernel.reset();
        look_at_files();
        file_watch.reset();
    }
    tools->end_execution();
}

IPYBOX_DECL awaitable<Decision> CodeExecutor::Session::ask(std::weak_ptr<Session> weak,
                                                           ToolCall call) {
    auto self = weak.lock();
    auto current = self ? self->run : nullptr;
    const bool running = current && !current->finished && current->asked != Run::Asked::host;
    const bool others = self && !self->options.approvers.empty();
    if (!running && !others) co_return Decision(Verdict::deny, "no execution is there to ask for");
    if (!call.agreed_by.empty()) co_return agreed_before(call);
    if (running && current->asked == Run::Asked::all_allowed) {
        Decision yes(Verdict::allow);
        yes.by = "execute_approved()";
        co_return yes;
    }
    if (!others && current->asked == Run::Asked::nobody)
        co_return Decision(Verdict::deny,
                           "this call needs a yes, and execute() has nobody to ask: set approvers, "
                           "answer the events of stream(), or call execute_approved()");
    struct Waiting {
        std::shared_ptr<Run> run;
        ~Waiting() {
            if (!run) return;
            if (--run->approvals == 0) run->approvals_waited += Clock::now() - run->approvals_since;
            run->changed.notify();
        }
    };
    if (current && current->approvals++ == 0) current->approvals_since = Clock::now();
    const Waiting waiting{current};
    if (others) co_return co_await first_answer(self->options.approvers, std::move(call));
    auto state = std::make_shared<ApprovalRequest::Shared>(self->host.executor, std::move(call));
    state->question.show(ApprovalRequest::application);
    const ApprovalRequest::Withdrawal withdrawal{state};
    while (current->backlog()) co_await current->changed.wait();
    if (current->finished) co_return Decision(Verdict::deny, "the execution has ended");
    current->push(ApprovalRequest(state));
    while (state->question.open()) co_await state->changed.wait();
    co_return with_edits_kept(state->call, state->question.take());
}

}  // namespace ipybox
