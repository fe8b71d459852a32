#pragma once
#include <ipybox/executor/code_executor.hpp>

#include <boost/asio/post.hpp>
#include <ipybox/compilation.hpp>
#include <ipybox/executor/impl/session.hpp>

namespace ipybox {

IPYBOX_DECL const CodeExecutionResult& CodeExecutionResult::ok_or_throw() const {
    static constexpr errc codes[] = {errc::code_failed, errc::code_failed, errc::timed_out,
                                     errc::cancelled,   errc::kernel_died, errc::output_limit,
                                     errc::code_failed};
    if (!ok()) throw Error(codes[static_cast<int>(status)], error);
    return *this;
}

IPYBOX_DECL void ApprovalRequest::answer(Decision decision) const {
    if (decision.by.empty()) decision.by = "application";
    asio::post(state_->executor, [state = state_, decision] {
        if (state->question.answer(application, decision)) state->changed.notify();
    });
}

IPYBOX_DECL ApprovalRequest::Withdrawal::~Withdrawal() {
    if (state->question.withdraw()) state->changed.notify();
}

}  // namespace ipybox

namespace ipybox::executor {

IPYBOX_DECL std::string strip(std::string&& text) {
    text.erase(text.find_last_not_of(" \t\r\n\f\v") + 1);
    text.erase(0, text.find_first_not_of(" \t\r\n\f\v"));
    return std::move(text);
}

IPYBOX_DECL executor::RunDirectory::RunDirectory(uid_t guest)
    : directory_(::geteuid(), guest, 0711) {
    const auto package = path() / "lib" / "ipybox_kernel";
    std::filesystem::create_directories(package);
    for (const auto& made : {path() / "lib", package})
        if (::chmod(made.c_str(), 0755) != 0) detail::throw_io_error(made.string());
    const UniqueFd handle = detail::open_directory(package);
    const int written = written_package(guest);
    for (const auto& file : detail::kernel_package) {
        const std::string name(file.name);
        if (::linkat(written, name.c_str(), handle.get(), name.c_str(), 0) != 0)
            detail::write_readable_file(handle.get(), name, file.text);
    }
}

// Once in a process: on a disk a new file takes many times as long as a link to one.
IPYBOX_DECL int RunDirectory::written_package(uid_t guest) {
    static const detail::PrivateDirectory once = [guest] {
        detail::PrivateDirectory directory(::geteuid(), guest);
        for (const auto& file : detail::kernel_package)
            detail::write_readable_file(directory.handle(), std::string(file.name), file.text);
        return directory;
    }();
    return once.handle();
}

IPYBOX_DECL void RunDirectory::write_library_file(const std::string& name, std::string_view text) {
    const UniqueFd handle = detail::open_directory(path() / "lib");
    ::unlinkat(handle.get(), name.c_str(), 0);
    detail::write_readable_file(handle.get(), name, text);
}

}  // namespace ipybox::executor

namespace ipybox {

IPYBOX_DECL awaitable<std::optional<ExecutionEvent>> CodeExecutor::Execution::next() {
    auto run = run_;
    while (run->events.empty() && !run->finished) co_await run->changed.wait();
    if (run->events.empty()) co_return std::nullopt;
    std::optional<ExecutionEvent> event(std::move(run->events.front()));
    run->events.pop_front();
    run->queued -= Run::weight(*event);
    run->changed.notify();
    co_return event;
}

IPYBOX_DECL void CodeExecutor::Execution::cancel() {
    run_->request_stop(CodeExecutionResult::Status::cancelled);
}

IPYBOX_DECL const std::string& CodeExecutor::Execution::id() const noexcept { return run_->id; }

IPYBOX_DECL CodeExecutor::Execution::~Execution() {
    if (!run_) return;
    run_->abandoned = true;
    cancel();
}

IPYBOX_DECL CodeExecutor::Execution::Execution(std::shared_ptr<Run> run) : run_(std::move(run)) {}

IPYBOX_DECL CodeExecutor::CodeExecutor(asio::any_io_executor executor, PluginRegistry& registry,
                                       CodeExecutorOptions options)
    : session_(std::make_shared<Session>(std::move(executor), registry, std::move(options))) {
    session_->prepare(session_);
}

IPYBOX_DECL CodeExecutor::~CodeExecutor() { session_->abandon(); }

IPYBOX_DECL awaitable<void> CodeExecutor::start() {
    auto session = session_;
    co_await session->start();
}

IPYBOX_DECL awaitable<void> CodeExecutor::stop() {
    auto session = session_;
    co_await session->stop(true);
}

IPYBOX_DECL awaitable<void> CodeExecutor::reset() {
    auto session = session_;
    co_await session->stop(false);
    co_await session->start();
}

IPYBOX_DECL awaitable<CodeExecutor::Execution> CodeExecutor::stream(std::string code,
                                                                    ExecutionOptions how) {
    auto session = session_;
    auto run = co_await session->begin(session, std::move(code), how, Run::Asked::reader);
    co_return Execution(std::move(run));
}

IPYBOX_DECL awaitable<CodeExecutor::Execution> CodeExecutor::stream(std::string code,
                                                                    Duration timeout, bool chunks,
                                                                    ResultText text, bool check) {
    ExecutionOptions how;
    how.timeout = timeout;
    how.chunks = chunks;
    how.text = text;
    how.check = check;
    return stream(std::move(code), how);
}

IPYBOX_DECL awaitable<CodeExecutionResult> CodeExecutor::execute(std::string code,
                                                                 ExecutionOptions how) {
    auto session = session_;
    co_return co_await Session::run_to_end(session, std::move(code), how, Run::Asked::nobody);
}

IPYBOX_DECL awaitable<CodeExecutionResult> CodeExecutor::execute(std::string code, Duration timeout,
                                                                 bool check) {
    ExecutionOptions how;
    how.timeout = timeout;
    how.check = check;
    return execute(std::move(code), how);
}

IPYBOX_DECL awaitable<CodeExecutionResult> CodeExecutor::execute_approved(std::string code,
                                                                          ExecutionOptions how) {
    auto session = session_;
    co_return co_await Session::run_to_end(session, std::move(code), how, Run::Asked::all_allowed);
}

IPYBOX_DECL awaitable<CodeExecutionResult> CodeExecutor::execute_approved(std::string code,
                                                                          Duration timeout,
                                                                          bool check) {
    ExecutionOptions how;
    how.timeout = timeout;
    how.check = check;
    return execute_approved(std::move(code), how);
}

IPYBOX_DECL awaitable<CodeExecutionResult> CodeExecutor::Session::run_to_end(
    std::shared_ptr<Session> self, std::string code, ExecutionOptions how, Run::Asked asked) {
    // Nobody would read them.
    how.chunks = how.displays = false;
    Execution execution(co_await self->begin(self, std::move(code), how, asked));
    for (;;) {
        auto event = co_await execution.next();
        if (!event) throw Error(errc::cancelled, "the execution ended without a result");
        if (auto* result = std::get_if<CodeExecutionResult>(&*event)) co_return std::move(*result);
    }
}

IPYBOX_DECL void CodeExecutor::cancel() {
    if (session_->run) session_->run->request_stop(CodeExecutionResult::Status::cancelled);
}

IPYBOX_DECL void CodeExecutor::register_server(const std::string& name,
                                               const json::object& params) {
    check_server_name(name);
    session_->tools->register_server(name, params);
}

IPYBOX_DECL awaitable<void> CodeExecutor::unregister_server(std::string name) {
    const auto session = session_;
    session->generated.erase(name);
    session->outdated.erase(name);
    co_await session->tools->unregister_server(std::move(name));
}

IPYBOX_DECL std::vector<ServerInfo> CodeExecutor::servers() const {
    return session_->tools->servers();
}

IPYBOX_DECL awaitable<std::vector<ToolInfo>> CodeExecutor::list_tools(std::string name) {
    const auto session = session_;
    const json::array listed = co_await session->tools->list_tools(std::move(name));
    std::vector<ToolInfo> tools;
    for (const auto& tool : listed) tools.push_back(ToolInfo::of(tool.as_object()));
    co_return tools;
}

IPYBOX_DECL void CodeExecutor::set_policy(const json::value& approval,
                                          const std::string& approval_name) {
    session_->set_policy(make_policy(session_->registry, session_->host, approval, approval_name),
                         approval);
}

IPYBOX_DECL void CodeExecutor::set_policy(PolicyPtr policy) {
    session_->set_policy(std::move(policy), std::nullopt);
}

IPYBOX_DECL awaitable<std::vector<std::string>> CodeExecutor::generate_mcp_sources(
    std::string name, json::object params, std::filesystem::path root_dir) {
    return add_server(std::move(name), std::move(params), std::move(root_dir));
}

IPYBOX_DECL awaitable<std::vector<std::string>> CodeExecutor::add_server(
    std::string name, json::object params, std::filesystem::path root_dir) {
    auto session = session_;
    register_server(name, params);
    co_return co_await session->make_api(std::move(name), std::move(root_dir));
}

IPYBOX_DECL awaitable<std::vector<std::string>> CodeExecutor::add_tools(
    std::string name, McpServer& server, std::filesystem::path root_dir) {
    auto session = session_;
    check_server_name(name);
    session->tools->register_server(name, server);
    co_return co_await session->make_api(std::move(name), std::move(root_dir));
}

IPYBOX_DECL awaitable<std::vector<std::string>> CodeExecutor::Session::make_api(
    std::string name, std::filesystem::path root_dir) {
    const auto self = shared_from_this();
    const json::array listed = co_await tools->list_tools(name);
    const auto package = generate_package(name, listed, api_style());
    write_api(name, root_dir, package);
    generated[name] = root_dir;
    co_await deliver_apis();
    std::map<std::string_view, std::string_view> modules;
    for (const auto& made : package.tools) modules.emplace(made.tool, made.module);
    std::vector<std::string> names;
    for (const auto& tool : listed) {
        const auto made = modules.find(detail::string_of(tool.as_object(), "name"));
        if (made == modules.end()) continue;
        names.emplace_back(made->second);
        modules.erase(made);
    }
    co_return names;
}

IPYBOX_DECL std::string CodeExecutor::search_tools(std::string_view query, std::size_t limit,
                                                   bool everything) const {
    return session_->tools->search_tools(query, limit, everything);
}

IPYBOX_DECL std::string CodeExecutor::describe_tool(std::string_view name) const {
    return session_->tools->describe_tool(name);
}

IPYBOX_DECL std::string CodeExecutor::list_stubs(std::string_view server) const {
    return session_->tools->list_stubs(server);
}

IPYBOX_DECL awaitable<std::string> CodeExecutor::install_package(std::string package,
                                                                 Duration timeout) {
    auto session = session_;
    co_return co_await session->install_package(std::move(package), timeout);
}

IPYBOX_DECL awaitable<void> CodeExecutor::upload(std::string path, std::string bytes,
                                                 bool overwrite) {
    auto session = session_;
    co_await session->upload(std::move(path), std::move(bytes), overwrite);
}

IPYBOX_DECL awaitable<FilePart> CodeExecutor::download(std::string path, std::uint64_t offset,
                                                       std::size_t limit) {
    auto session = session_;
    co_return co_await session->download(std::move(path), offset, limit);
}

IPYBOX_DECL FilePart CodeExecutor::read_here(const std::string& path, std::uint64_t offset,
                                             std::size_t limit) const {
    return session_->read_here(session_->checked_path(path, false), offset, limit);
}

IPYBOX_DECL bool CodeExecutor::shares_files() const noexcept { return session_->shares_files(); }

IPYBOX_DECL const std::filesystem::path& CodeExecutor::workspace() const noexcept {
    return session_->workspace;
}

IPYBOX_DECL bool CodeExecutor::kernel_alive() const noexcept {
    return session_->kernel && session_->kernel->alive();
}

IPYBOX_DECL std::string CodeExecutor::kernel_id() const {
    const auto* named = session_->remote_kernel();
    return named ? named->id() : std::string();
}

}  // namespace ipybox
