#pragma once
#include <ipybox/executor/code_executor.hpp>

#include <fcntl.h>

#include <boost/asio/post.hpp>
#include <ipybox/compilation.hpp>
#include <ipybox/detail/beneath.hpp>
#include <ipybox/executor/impl/session.hpp>

namespace ipybox {

IPYBOX_DECL awaitable<void> CodeExecutor::Session::make_checker() {
    if (checker) co_return;
    const auto self = shared_from_this();
    const auto python =
        environment ? environment->executable
                    : find_python(options.python, unconfined() ? Trust::named : Trust::judged);
    CodeCheckerOptions settings;
    settings.program = find_checker(python, !unconfined());
    settings.directory = run_place().path() / "check";
    if (environment)
        settings.python_version = environment->version.substr(0, environment->version.rfind('.'));
    settings.own_code = [this](const auto& package, const auto& module, const auto& name) {
        return has_own_code(package, module, name);
    };
    auto sandbox = unconfined()
                       ? registry.make<Sandbox>("bubblewrap", host, json::object())
                       : registry.make<Sandbox>(options.sandbox, host, options.sandbox_options);
    const Capabilities able = co_await sandbox->probe();
    if (!able.available) {
        if (!unconfined() || !shares_files())
            throw Error(errc::sandbox_refused, "the type checker needs a sandbox: " + able.problem);
        // It reads what the code may do anyway.
        sandbox = registry.make<Sandbox>("none", host, json::object());
    }
    if (checker) co_return;
    checker_sandbox = std::move(sandbox);
    checker = std::make_unique<CodeChecker>(host.executor, *checker_sandbox, std::move(settings));
}

IPYBOX_DECL std::string CodeExecutor::Session::package_of(const std::string& server) const {
    const auto place = generated.find(server);
    if (place == generated.end()) return {};
    auto root = place->second.lexically_normal();
    if (root.is_absolute()) root = root.lexically_relative(workspace);
    std::string name;
    for (const auto& part : root) {
        if (part.empty() || part == ".") continue;
        if (!detail::is_python_identifier(part.string())) return {};
        name += part.string() + '.';
    }
    return name.empty() ? name : name + server;
}

IPYBOX_DECL void CodeExecutor::Session::renew_stubs() {
    for (const auto& server : std::exchange(unchecked, {})) {
        const auto package = package_of(server);
        if (package.empty()) continue;
        try {
            checker->set_package(package, generate_stubs(tools->listed_tools(server), api_style()));
        } catch (const std::exception& error) {
            host.logger(LogLevel::warning,
                        "calls of MCP server " + server + " are not checked: " + error.what());
        }
    }
}

IPYBOX_DECL bool CodeExecutor::Session::has_own_code(const std::string& package,
                                                     const std::string& module,
                                                     const std::string& name) const {
    if (!shares_files()) return true;
    std::filesystem::path place;
    for (std::size_t at = 0; at <= package.size();) {
        const auto dot = std::min(package.find('.', at), package.size());
        place /= package.substr(at, dot - at);
        at = dot + 1;
    }
    try {
        const auto root = detail::open_real_directory(workspace);
        if (module.empty()) {
            const auto there = [&](const std::string& file) {
                return bool(detail::open_beneath(root.get(), (place / file).string(), O_PATH));
            };
            return there(name) || there(name + ".py");
        }
        const auto text =
            detail::read_beneath(root.get(), place / (module + ".py"), 0, 1u << 20).bytes;
        const auto own = text.find(own_code_marker);
        return own == text.npos || text.find(name, own) != text.npos;
    } catch (const Error&) {
        return true;  // whatever lies there
    }
}

IPYBOX_DECL awaitable<KnownNames> CodeExecutor::Session::known_names(std::shared_ptr<Session> self,
                                                                     Output& output) {
    static constexpr const char* type = "application/vnd.ipybox.names+json";
    constexpr std::size_t longest = 400;
    KnownNames names;
    json::array packages;
    for (const auto& [server, root] : self->generated)
        if (auto package = self->package_of(server); !package.empty())
            packages.emplace_back(std::move(package));
    Kernel& kernel = *self->kernel;
    ExecuteRequest request;
    request.silent = true;
    request.code = "__import__('ipybox_kernel.names', fromlist=['tell']).tell(" +
                   detail::write_json(packages) + ")";
    co_await kernel.execute(std::move(request));
    auto deadline = deadline_after(std::chrono::seconds(2));
    auto breath = Clock::now();
    for (;;) {
        while (output.run.backlog()) co_await output.run.changed.wait();
        if (const auto now = Clock::now(); now > breath) {  // as in pump()
            co_await asio::post(asio::use_awaitable);
            breath = now + std::chrono::milliseconds(5);
        }
        auto item = co_await kernel.next(deadline);
        if (!item) {
            deadline = never;  // as with every cell, watch() has the last word
            co_await kernel.interrupt();
            continue;
        }
        if (std::holds_alternative<Done>(*item)) break;
        if (std::holds_alternative<PythonError>(*item)) continue;
        const auto* display = std::get_if<Display>(&*item);
        const auto* said = display ? detail::object_of(display->data, type) : nullptr;
        if (!said) {
            output.take(std::move(*item));
            continue;
        }
        for (const auto& [name, meaning] : *said)
            if (meaning.is_string() && names.size() < CodeChecker::max_names &&
                name.size() + meaning.get_string().size() <= longest)
                names.emplace(std::string(name), std::string(meaning.get_string()));
    }
    co_return names;
}

IPYBOX_DECL awaitable<bool> CodeExecutor::Session::passes_check(std::shared_ptr<Session> self,
                                                                Output& output, std::string code) {
    CodeExecutionResult& result = output.result;
    std::string missing;
    try {
        co_await self->make_checker();
    } catch (const Error& error) {
        missing = error.detail();
    }
    if (!missing.empty()) {
        result.status = Status::refused;
        result.error = "check: " + missing + "\nNothing was executed.";
        co_return false;
    }
    self->renew_stubs();
    KnownNames names;
    if (!self->generated.empty()) names = co_await known_names(self, output);
    const CheckResult found = co_await self->checker->check(code, std::move(names));
    if (!found.problem.empty())
        output.add_text("[ipybox] this cell was not checked: " + found.problem + "\n",
                        Output::Source::standard_error);
    for (const auto& fault : found.faults) result.error += "check: " + fault + '\n';
    if (!found.faults.empty())
        result.error +=
            "Nothing was executed. A line that ends with `# ty: ignore` is not checked.";
    if (result.error.empty() && !output.run.stop) {
        try {
            self->open_execution(output.run, code);
            co_return true;
        } catch (const Error& error) {
            result.error = error.detail();
        }
    }
    result.status = Status::refused;
    co_return false;
}

}  // namespace ipybox
