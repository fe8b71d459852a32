#pragma once
#include <ipybox/executor/code_checker.hpp>

#include <sys/stat.h>
#include <unistd.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/write.hpp>
#include <ipybox/compilation.hpp>
#include <ipybox/detail/beneath.hpp>
#include <ipybox/detail/terminal_text.hpp>
#include <ipybox/executor/detail/check_preface.hpp>
#include <ipybox/executor/detail/check_wording.hpp>
#include <ipybox/executor/detail/lsp_messages.hpp>
#include <ipybox/mcp/jsonrpc.hpp>
#include <ipybox/sandbox_kit/host_program.hpp>
#include <ipybox/sandbox_kit/kernel_policy.hpp>
#include <ipybox/sandbox_kit/process.hpp>
#include <optional>
#include <set>
#include <utility>

namespace ipybox::executor {

IPYBOX_DECL void write_readable(const std::filesystem::path& directory, const std::string& name,
                                std::string_view text) {
    const UniqueFd handle = detail::open_directory(directory);
    detail::write_readable_file(handle.get(), name, text);
}

IPYBOX_DECL void make_readable(const std::filesystem::path& directory) {
    std::error_code error;
    std::filesystem::create_directory(directory, error);
    if (error || ::chmod(directory.c_str(), 0755) != 0) detail::throw_io_error(directory.string());
}

}  // namespace ipybox::executor

namespace ipybox {

IPYBOX_DECL std::filesystem::path find_checker(const std::filesystem::path& python, bool judge) {
    auto program = python.parent_path() / "ty";
    if (!sandbox_kit::is_program(program))
        throw Error(errc::missing_dependency,
                    program.string() + " is missing, which checks cells: install it with `" +
                        python.string() + " -m pip install ty==" + std::string(checker_version) +
                        "`");
    if (judge) refuse_written(program, "install the environment of the kernel elsewhere");
    std::error_code error;
    auto real = std::filesystem::canonical(program, error);
    if (error) return program;
    if (judge) refuse_written(real, "install the environment of the kernel elsewhere");
    return real;
}

struct CodeChecker::Impl {
    // A running checker.
    struct Server {
        std::unique_ptr<SandboxedProcess> process;
        detail::LspReader reader;
        std::int64_t requests = 0;
        std::string root, stubs;  // where it finds them
    };

    // What one check is about.
    struct Work {
        std::vector<std::string> cells;  // the preface, and the cell
        std::vector<detail::TypeFault> faults;
        // Where the type of a fault's object is declared, or the class that it calls.
        std::map<std::size_t, std::string> types;
        std::string problem;
    };

    Impl(asio::any_io_executor e, Sandbox& s, CodeCheckerOptions o)
        : executor(std::move(e)), sandbox(s), options(std::move(o)) {}

    std::filesystem::path stubs() const { return options.directory / "stubs"; }

    static awaitable<void> start(std::shared_ptr<Impl> self, std::shared_ptr<Work> work);
    static awaitable<void> launch(std::shared_ptr<Impl> self);
    static awaitable<void> examine(std::shared_ptr<Impl> self, std::shared_ptr<Work> work);
    static awaitable<void> read_faults(std::shared_ptr<Server> server, std::shared_ptr<Work> work);
    static awaitable<void> send(std::shared_ptr<Server> server, json::object message);
    static awaitable<json::object> ask(std::shared_ptr<Server> server, std::string method,
                                       json::object params);
    void word(const Work& work, CheckResult& result) const;

    asio::any_io_executor executor;
    Sandbox& sandbox;
    CodeCheckerOptions options;
    detail::CheckedPackages packages;
    std::shared_ptr<Server> server;
};

IPYBOX_DECL CodeChecker::CodeChecker(asio::any_io_executor executor, Sandbox& sandbox,
                                     CodeCheckerOptions options)
    : impl_(std::make_shared<Impl>(std::move(executor), sandbox, std::move(options))) {
    const auto& root = impl_->options.directory;
    for (const auto& path : {root, root / "project", impl_->stubs()}) executor::make_readable(path);
    // Without one it looks for settings in the directories above.
    executor::write_readable(root / "project", "ty.toml", "");
    for (const auto& [package, text] : detail::runtime_stubs) {
        const auto directory = impl_->stubs() / package;
        executor::make_readable(directory);
        executor::write_readable(directory, "__init__.pyi", text);
    }
}

IPYBOX_DECL CodeChecker::~CodeChecker() = default;

IPYBOX_DECL void CodeChecker::stop() noexcept { impl_->server.reset(); }

IPYBOX_DECL void CodeChecker::set_package(const std::string& name, std::vector<ToolStub> stubs) {
    auto directory = impl_->stubs();
    std::string_view rest = name;
    for (;;) {
        const auto dot = rest.find('.');
        const auto part = rest.substr(0, dot);
        if (!detail::is_python_identifier(part))
            throw Error(errc::bad_argument, detail::printable(name) + " is no name of a package");
        directory /= part;
        if (dot == rest.npos) break;
        executor::make_readable(directory);
        rest.remove_prefix(dot + 1);
    }
    // It keeps what it has read: another one starts with the next check.
    stop();
    std::filesystem::remove_all(directory);
    executor::make_readable(directory);
    executor::write_readable(directory, "__init__.pyi", "");
    auto& modules = impl_->packages[name];
    modules.clear();
    for (auto& stub : stubs) {
        executor::write_readable(directory, stub.module + ".pyi", stub.text);
        auto module = stub.module;
        modules.emplace(std::move(module), std::move(stub));
    }
}

IPYBOX_DECL awaitable<CheckResult> CodeChecker::check(std::string cell, KnownNames names) {
    const auto impl = impl_;
    CheckResult result;
    if (cell.size() > max_cell) {
        result.problem = "it is longer than " + std::to_string(max_cell >> 10) + " KiB";
        co_return result;
    }
    if (impl->packages.empty() || detail::is_cell_magic(cell)) co_return result;
    const auto work = std::make_shared<Impl::Work>();
    work->cells = {detail::check_preface(impl->packages, names, max_names), std::move(cell)};
    if (!impl->server) {
        auto starting = Impl::start(impl, work);
        auto late = sleep_until(deadline_after(impl->options.start_limit));
        const bool started = co_await ends_first(std::move(starting), std::move(late));
        if (!started) work->problem = "the type checker did not start in time";
    }
    if (work->problem.empty()) {
        auto looking = Impl::examine(impl, work);
        auto late = sleep_until(deadline_after(impl->options.limit));
        const bool done = co_await ends_first(std::move(looking), std::move(late));
        if (!done) work->problem = "the type checker did not answer in time";
    }
    if (!work->problem.empty()) {
        impl->server.reset();
        result.problem = detail::printable(work->problem);
        co_return result;
    }
    impl->word(*work, result);
    co_return result;
}

IPYBOX_DECL awaitable<void> CodeChecker::Impl::launch(std::shared_ptr<Impl> self) {
    const Capabilities able = co_await self->sandbox.probe();
    if (!able.available) throw Error(errc::sandbox_refused, able.problem);
    SandboxPolicy policy;
    policy.cwd = "/";
    policy.readable = {self->options.program};
    policy.env = {{"PATH", "/nonexistent"},
                  {"HOME", "/nonexistent"},
                  {"LANG", "C.UTF-8"},
                  {"XDG_CONFIG_HOME", "/nonexistent"},
                  {"XDG_CACHE_HOME", "/nonexistent"},
                  // It starts as many threads as there are processors otherwise.
                  {"TY_MAX_PARALLELISM", "2"}};
    policy.network.mode = able.network_none ? NetworkPolicy::Mode::none : NetworkPolicy::Mode::full;
    struct stat owner{};
    if (::geteuid() == 0 && ::stat(self->options.directory.parent_path().c_str(), &owner) == 0 &&
        owner.st_uid != 0)
        policy.user = owner.st_uid;
    if (able.limits_per_process) policy.limits.memory_per_process = std::uint64_t{4} << 30;
    set_default_limits(policy.limits, able);
    Channel files;
    files.name = "check";
    files.host_path = self->options.directory;
    auto server = std::make_shared<Server>();
    const auto place = self->sandbox.guest_address(policy, files);
    server->root = place + "/project";
    server->stubs = place + "/stubs";
    std::vector<std::string> argv{self->options.program.string(), "server"};
    std::vector<Channel> channels{std::move(files)};
    server->process = co_await self->sandbox.launch(std::move(policy), std::move(argv),
                                                    std::move(channels), Stdio::pipes);
    self->server = std::move(server);
}

IPYBOX_DECL awaitable<void> CodeChecker::Impl::start(std::shared_ptr<Impl> self,
                                                     std::shared_ptr<Work> work) {
    try {
        co_await launch(self);
        const auto server = self->server;
        auto hello = detail::lsp_start(server->root, server->stubs, self->options.python_version);
        const json::object answer = co_await ask(server, "initialize", std::move(hello));
        const auto* able = detail::object_of(answer, "result");
        able = able ? detail::object_of(*able, "capabilities") : nullptr;
        if (!able || detail::string_of(*able, "positionEncoding") != "utf-8")
            throw Error(errc::io_error,
                        "it counts no bytes; install ty==" + std::string(checker_version));
        auto ready = mcp::rpc_notification("initialized", {});
        co_await send(server, std::move(ready));
        // Reads its own library before the first cell is waited for.
        const auto first = std::make_shared<Work>();
        first->cells = {work->cells[0], "pass\n"};
        co_await read_faults(server, first);
    } catch (const Error& error) {
        work->problem = "the type checker does not start: " + error.detail();
    } catch (const std::exception& error) {
        work->problem = std::string("the type checker does not start: ") + error.what();
    }
}

IPYBOX_DECL awaitable<void> CodeChecker::Impl::examine(std::shared_ptr<Impl> self,
                                                       std::shared_ptr<Work> work) {
    try {
        co_await read_faults(self->server, work);
    } catch (const Error& error) {
        work->problem = "the type checker failed: " + error.detail();
    } catch (const std::exception& error) {
        work->problem = std::string("the type checker failed: ") + error.what();
    }
}

IPYBOX_DECL awaitable<void> CodeChecker::Impl::read_faults(std::shared_ptr<Server> server,
                                                           std::shared_ptr<Work> work) {
    constexpr std::size_t most = 500, most_types = 10;
    const auto path = server->root + "/cell.ipynb";
    const auto cells = "vscode-notebook-cell://" + path;
    auto opened = mcp::rpc_notification("notebookDocument/didOpen",
                                        detail::lsp_notebook("file://" + path, cells, work->cells));
    co_await send(server, std::move(opened));
    const auto cell = cells + "#c1";
    json::object wanted{{"textDocument", {{"uri", cell}}}};
    const json::object answer = co_await ask(server, "textDocument/diagnostic", std::move(wanted));
    work->faults = detail::type_faults(answer, most);
    const detail::CellText text(work->cells[1]);
    for (std::size_t i = 0; i < work->faults.size() && work->types.size() < most_types; ++i) {
        const auto place = detail::object_of_attribute(work->faults[i], text);
        const auto called = detail::class_called(work->faults[i], text);
        if (!place && called.first.empty()) continue;
        auto question = detail::lsp_position(cell, place ? *place : called.second);
        const std::string method =
            place ? "textDocument/typeDefinition" : "textDocument/definition";
        const json::object said = co_await ask(server, method, std::move(question));
        work->types[i] = detail::first_location(said);
    }
    auto closed = mcp::rpc_notification("notebookDocument/didClose",
                                        detail::lsp_closed("file://" + path, cells, 2));
    co_await send(server, std::move(closed));
}

IPYBOX_DECL awaitable<void> CodeChecker::Impl::send(std::shared_ptr<Server> server,
                                                    json::object message) {
    const auto frame = detail::lsp_frame(message);
    const auto [error, size] =
        co_await asio::async_write(server->process->input(), asio::buffer(frame), as_result);
    if (error) throw Error(errc::io_error, "it has ended: " + server->process->output_tail());
}

IPYBOX_DECL awaitable<json::object> CodeChecker::Impl::ask(std::shared_ptr<Server> server,
                                                           std::string method,
                                                           json::object params) {
    const auto id = ++server->requests;
    auto request = mcp::rpc_request(id, method, std::move(params));
    co_await send(server, std::move(request));
    char chunk[16384];
    for (;;) {
        while (auto message = server->reader.next()) {
            if (message->contains("method")) continue;
            const auto* answers = message->if_contains("id");
            if (answers && *answers == json::value(id)) co_return std::move(*message);
        }
        const auto [error, size] =
            co_await server->process->output().async_read_some(asio::buffer(chunk), as_result);
        if (error) throw Error(errc::io_error, "it has ended: " + server->process->output_tail());
        server->reader.add(std::string_view(chunk, size));
    }
}

IPYBOX_DECL void CodeChecker::Impl::word(const Work& work, CheckResult& result) const {
    // Python says what is wrong with it, and runs nothing either.
    for (const auto& fault : work.faults)
        if (fault.code == "invalid-syntax") return;
    const detail::CellText text(work.cells[1]);
    const detail::OwnCode own = [this](const auto& package, const auto& module, const auto& name) {
        return options.own_code && options.own_code(package, module, name);
    };
    const auto uri = "file://" + (server ? server->stubs : std::string());
    std::set<std::pair<std::size_t, std::string>> told;
    for (std::size_t i = 0; i < work.faults.size() && told.size() < max_faults; ++i) {
        const auto& fault = work.faults[i];
        std::string said;
        if (const auto in = detail::module_at(packages, fault.declared_in, uri); in.module) {
            said = detail::worded_call(fault, text.between(fault.begin, fault.end), in);
        } else if (const auto type = work.types.find(i); type != work.types.end()) {
            const auto of = detail::module_at(packages, type->second, uri);
            const auto called = detail::class_called(fault, text);
            if (of.module && called.first.empty())
                said = detail::worded_field(fault, of);
            else if (of.module)
                said = detail::worded_construction(
                    fault, text.between(fault.begin, fault.end), of, called.first,
                    detail::fields_of(of.module->text, called.first));
        } else {
            said = detail::worded_name(fault, packages, own);
        }
        if (!said.empty()) told.emplace(fault.begin.line + 1, detail::printable(said));
    }
    for (const auto& [line, said] : told)
        result.faults.push_back("line " + std::to_string(line) + ": " + said);
}

}  // namespace ipybox
