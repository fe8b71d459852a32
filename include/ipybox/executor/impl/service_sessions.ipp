#pragma once
#include <ipybox/executor/service.hpp>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <ipybox/compilation.hpp>
#include <ipybox/executor/impl/service_state.hpp>
#include <ipybox/sandbox_kit/writable_places.hpp>

namespace ipybox {

IPYBOX_DECL McpService::Impl::Impl(asio::any_io_executor e, PluginRegistry& r, McpServiceOptions o)
    : io(std::move(e)),
      registry(r),
      options(std::move(o)),
      starts(io, std::max<std::size_t>(1, options.starts_at_once)),
      changed(io) {}

IPYBOX_DECL void McpService::Impl::prepare() {
    auto own = options.server;
    if (own.name == "ipybox" && own.title.empty()) own.title = "ipybox: code actions in Python";
    if (own.instructions.empty()) own.instructions = of_api(std::string(instructions));
    own.lenient_calls = true;
    const std::weak_ptr<Impl> weak = weak_from_this();
    own.on_session_end = [weak, then = options.server.on_session_end](McpSession& gone) {
        if (const auto self = weak.lock()) self->end_of(gone.id);
        if (then) then(gone);
    };
    server = std::make_unique<McpServer>(io, std::move(own));
    add_tools(*this);
    add_resources(*this);
    add_prompts(*this);
}

IPYBOX_DECL std::string McpService::Impl::of_api(std::string text) const {
    constexpr std::string_view call = "TOOL.run(", awaited = "await ";
    for (auto at = text.find(call); options.executor.async_api && at != text.npos;
         at = text.find(call, at + awaited.size() + call.size()))
        text.insert(at, awaited);
    return text;
}

IPYBOX_DECL void McpService::Impl::start() {
    const auto first = make_session("", "default");
    if (options.spare_sessions > 0 && options.executor.limits.wall_seconds) {
        options.executor.logger(LogLevel::warning,
                                "no sessions are kept ready: the limit of wall time would run");
        options.spare_sessions = 0;
    }
    if (options.separate) return fill_spares();
    sessions.emplace("", first);
    begin(first);
}

IPYBOX_DECL std::filesystem::path McpService::Impl::directory_of(const std::string& name) const {
    const auto& base = options.executor.workspace;
    return has_own_directory(name) ? base / "sessions" / name : base;
}

IPYBOX_DECL void McpService::Impl::make_directory_of(const std::string& name) const {
    std::error_code error;
    const auto directory = directory_of(name);
    if (!has_own_directory(name) || std::filesystem::exists(directory, error)) return;
    std::size_t count = 0;
    for (std::filesystem::directory_iterator entry(directory.parent_path(), error), end;
         !error && entry != end; entry.increment(error))
        ++count;
    if (count >= options.max_session_directories)
        throw Error(errc::busy,
                    directory.parent_path().string() + " holds the files of " +
                        std::to_string(count) +
                        " sessions, and there may be no more; remove those that nobody needs");
    const auto base = std::filesystem::absolute(
        options.executor.workspace.empty() ? "." : options.executor.workspace);
    const auto root = detail::open_real_directory(writable_places().real_paths({base}).front());
    detail::make_directory_beneath(root.get(), std::filesystem::path("sessions") / name);
}

IPYBOX_DECL void McpService::Impl::remove_empty_directory_of(
    const std::string& name) const noexcept {
    if (!has_own_directory(name)) return;
    for (const auto& [key, session] : sessions)
        if (session->name == name) return;
    const auto directory = directory_of(name);
    const UniqueFd place(
        ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!place) return;
    // What every kernel's start makes. A link fails, as does what holds a file.
    if (const auto own = detail::open_beneath(place.get(), ".ipybox", O_RDONLY | O_DIRECTORY))
        ::unlinkat(own.get(), "site-packages", AT_REMOVEDIR);
    ::unlinkat(place.get(), ".ipybox", AT_REMOVEDIR);
    ::rmdir(directory.c_str());
}

IPYBOX_DECL McpService::SessionPtr McpService::Impl::make_session(const std::string& owner,
                                                                  const std::string& name) {
    const auto session = std::make_shared<Session>(io, name);
    session->owner = owner;
    auto settings = options.executor;
    settings.session = name;
    make_directory_of(name);
    settings.workspace = directory_of(name);
    if (options.ask_client) {
        const bool alone = settings.approvers.empty();
        // Who waits for the cell is told what it waits for; that answers nothing.
        settings.approvers.push_back(
            [weak = std::weak_ptr<Session>(session)](ToolCall call) -> awaitable<Decision> {
                const auto held = weak.lock();
                if (held && held->report)
                    held->report->add("[ipybox] waiting for a yes or no to " +
                                      approval::plain_name(call.server) + "." +
                                      approval::plain_name(call.tool) + "\n");
                co_return Decision{};
            });
        settings.approvers.push_back(
            [weak = std::weak_ptr<Session>(session), alone](ToolCall call) {
                return ask_client(weak, std::move(call), alone, false);
            });
    }
    session->host.executor = io;
    session->host.logger = settings.logger;
    // First, because a mistake in its policy is named by the policy's own name.
    session->executor = std::make_unique<CodeExecutor>(io, registry, std::move(settings));
    session->host.ask = [weak = std::weak_ptr<Session>(session)](ToolCall call) {
        return ask_client(weak, std::move(call), true, true);
    };
    session->registration =
        make_policy(registry, session->host, options.registration, "registration");
    session->installation =
        make_policy(registry, session->host, options.installation, "installation");
    return session;
}

IPYBOX_DECL McpService::SessionPtr McpService::Impl::session_of(const McpContext& context,
                                                                const json::object& arguments,
                                                                bool to_read) {
    if (stopped) throw Error(errc::cancelled, "the server is stopping");
    std::string key, name = "default";
    const McpSession& client = context.session();
    if (options.separate) {
        const auto* wanted = arguments.if_contains("session");
        key = client.id + '\n' + (wanted ? std::string(wanted->as_string()) : "");
        // A modern client that returns with the same token and name finds its files again.
        const std::string stable =
            client.modern ? client.principal + key.substr(client.id.size()) : key;
        name = digest(stable);
    }
    if (const auto found = sessions.find(key); found != sessions.end()) return found->second;
    std::error_code error;
    // Kernels of other backends may have files elsewhere.
    if (to_read && has_own_directory(name) && options.executor.kernel != "gateway" &&
        !std::filesystem::exists(directory_of(name), error))
        throw Error(errc::io_error,
                    "this session has no files yet: run code in it, or write a file to it, first");
    make_room();
    SessionPtr made;
    if (options.separate && !client.modern) made = take_spare(client.id);
    try {
        if (!made) made = make_session(client.id, name);
    } catch (...) {
        remove_empty_directory_of(name);
        throw;
    }
    sessions.emplace(key, made);
    fill_spares();
    if (options.separate && !std::exchange(sweeping, true))
        asio::co_spawn(io, sweep(weak_from_this()), asio::detached);
    return made;
}

IPYBOX_DECL void McpService::Impl::fill_spares() noexcept {
    if (!options.separate || stopped) return;
    try {
        // They leave files for a client, and those that have just begun have not opened theirs yet.
        while (spares.size() < options.spare_sessions &&
               open_files_left() >= files_of_a_session * (spares.size() + 2)) {
            const auto session = make_session("", detail::random_hex(8));
            spares.push_back(session);
            begin(session);
        }
    } catch (const std::exception& error) {
        options.executor.logger(LogLevel::warning,
                                std::string("no session is kept ready: ") + error.what());
    }
}

IPYBOX_DECL McpService::SessionPtr McpService::Impl::take_spare(const std::string& owner) {
    if (spares.empty()) return nullptr;
    const auto session = std::move(spares.front());
    spares.pop_front();
    session->owner = owner;
    session->last_used = Clock::now();
    // Whose kernel has ended meanwhile gets another, and nobody has lost anything.
    if (session->preparing == 0) session->running = session->executor->kernel_alive();
    return session;
}

IPYBOX_DECL void McpService::Impl::make_room() {
    if (const auto left = open_files_left(); options.separate && left < files_of_a_session)
        throw Error(errc::busy, "this process may open only " + std::to_string(left) +
                                    " more files, and a session needs up to " +
                                    std::to_string(files_of_a_session) +
                                    "; try again when one has ended, or start ipybox with a higher "
                                    "limit of open files (ulimit -n)");
    if (sessions.size() < std::max<std::size_t>(1, options.max_sessions)) return;
    for (auto at = sessions.begin(); at != sessions.end(); ++at) {
        const auto& session = *at->second;
        if (session.running || session.users > 0 || session.preparing > 0) continue;
        retire(at->second);
        sessions.erase(at);
        return;
    }
    throw Error(errc::busy,
                std::to_string(sessions.size()) +
                    " sessions are in use, and there may be no more; try again when one has ended");
}

IPYBOX_DECL std::string McpService::Impl::digest(const std::string& text) {
    unsigned char hash[SHA256_DIGEST_LENGTH];
    ::SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), hash);
    return detail::hex(std::span(hash).first(8));
}

IPYBOX_DECL void McpService::Impl::end_of(const std::string& client) {
    for (auto at = sessions.begin(); at != sessions.end();) {
        if (options.separate && at->second->owner == client) {
            retire(at->second);
            at = sessions.erase(at);
        } else {
            ++at;
        }
    }
}

IPYBOX_DECL void McpService::Impl::retire(const SessionPtr& session) {
    ++ending;
    asio::co_spawn(io, end(session), [self = shared_from_this(), session](std::exception_ptr) {
        self->remove_empty_directory_of(session->name);
        if (!self->stopped) self->last = session;
        --self->ending;
        self->changed.notify();
    });
}

IPYBOX_DECL awaitable<void> McpService::Impl::end(SessionPtr session) {
    session->executor->cancel();
    while (session->users > 0 || session->preparing > 0) co_await session->changed.wait();
    co_await session->executor->stop();
}

IPYBOX_DECL awaitable<void> McpService::Impl::sweep(std::weak_ptr<Impl> weak) {
    for (;;) {
        Duration pause{};
        {
            const auto self = weak.lock();
            if (!self || self->stopped) co_return;
            const auto idle = self->options.session_idle;
            pause = idle > Duration::zero()
                        ? std::clamp<Duration>(idle / 4, std::chrono::milliseconds(100),
                                               std::chrono::seconds(10))
                        : Duration(std::chrono::seconds(10));
            for (const auto& [key, session] : self->sessions) {
                if (idle <= Duration::zero() || !session->running || session->users > 0 ||
                    session->preparing > 0)
                    continue;
                if (session->last_used + idle > Clock::now()) continue;
                self->options.executor.logger(
                    LogLevel::info, "session " + session->name + " is idle: its kernel ends");
                session->running = false;
                session->lost = "because it was idle";
                ++session->preparing;
                asio::co_spawn(self->io, reclaim(session), asio::detached);
            }
        }
        co_await sleep_until(Clock::now() + pause);
    }
}

IPYBOX_DECL awaitable<void> McpService::Impl::reclaim(SessionPtr session) {
    try {
        co_await session->executor->stop();
    } catch (const std::exception& error) {
        session->host.logger(LogLevel::warning, error.what());
    }
    --session->preparing;
    session->changed.notify();
}

IPYBOX_DECL void McpService::Impl::begin(const SessionPtr& session) {
    ++session->preparing;
    asio::co_spawn(io, prepare(shared_from_this(), session), [session](std::exception_ptr) {
        --session->preparing;
        session->changed.notify();
    });
}

IPYBOX_DECL awaitable<void> McpService::Impl::prepare(ImplPtr self, SessionPtr session) {
    Line::Place place(self->starts);
    co_await place.turn();
    session->failure = nullptr;
    co_await recall(self, session);
    std::size_t left = 1;
    const auto ended = [&left, session](std::exception_ptr error, const std::string& name) {
        --left;
        if (name.empty()) {
            session->failure = error;
            session->running = !error;
        } else if (!error) {
            session->broken.erase(name);
            session->registered.insert(name);
        }
        if (error) {
            const std::string why = text_of(error);
            if (!name.empty()) session->broken[name] = why;
            session->host.logger(LogLevel::error,
                                 (name.empty() ? "the kernel" : "MCP server " + name) +
                                     " could not be started: " + why);
        }
        session->changed.notify();
    };
    asio::co_spawn(self->io, start_kernel(session),
                   [ended](std::exception_ptr error) { ended(error, ""); });
    for (const auto& [name, params] : self->options.servers) {
        if (session->registered.contains(name)) continue;
        ++left;
        asio::co_spawn(self->io, start_server(session, name, params),
                       [ended, name = name](std::exception_ptr error) { ended(error, name); });
    }
    while (left > 0) co_await session->changed.wait();
}

IPYBOX_DECL awaitable<void> McpService::Impl::recall(ImplPtr self, SessionPtr session) {
    const auto records = self->remembered();
    records.forget_gone();
    std::map<std::string, json::object> servers;
    try {
        servers = records.read();
    } catch (const Error& problem) {
        self->options.executor.logger(LogLevel::warning,
                                      "registered servers are forgotten: " + problem.detail());
    }
    for (const auto& [name, params] : servers) {
        if (session->registered.contains(name) || self->options.servers.contains(name)) continue;
        ToolCall call = registration_call(name, params);
        call.session = session->name;
        const auto decision = co_await approve(*session->registration, std::move(call),
                                               self->options.executor.approval_timeout);
        if (decision.verdict != Verdict::allow) continue;
        session->executor->register_server(name, params);
        session->registered.insert(name);
    }
}

IPYBOX_DECL void McpService::Impl::remember(const std::string& name,
                                            const json::object& params) const {
    try {
        remembered().add(name, params);
    } catch (const std::exception& error) {
        options.executor.logger(
            LogLevel::warning,
            "MCP server " + name + " is registered until ipybox ends: " + error.what());
    }
}

IPYBOX_DECL awaitable<void> McpService::Impl::start_kernel(SessionPtr session) {
    co_await session->executor->reset();
}

IPYBOX_DECL awaitable<void> McpService::Impl::start_server(SessionPtr session, std::string name,
                                                           json::object params) {
    co_await session->executor->add_server(std::move(name), std::move(params));
}

IPYBOX_DECL awaitable<void> McpService::Impl::ready(ImplPtr self, SessionPtr session) {
    if (session->running && session->preparing == 0 && !session->executor->kernel_alive()) {
        session->running = false;
        session->lost = "by itself or was killed";
    }
    if (session->preparing == 0 && !session->running) self->begin(session);
    while (session->preparing > 0) co_await session->changed.wait();
    if (!session->running && session->failure)
        throw Error(errc::kernel_start_failed, text_of(session->failure));
    if (!session->running)
        throw Error(errc::kernel_start_failed, "the kernel is not running; try again");
}

IPYBOX_DECL std::string McpService::Impl::text_of(const std::exception_ptr& failure) {
    try {
        std::rethrow_exception(failure);
    } catch (const Error& error) {
        return error.detail();
    } catch (const std::exception& error) {
        return error.what();
    }
}

IPYBOX_DECL void McpService::Impl::list_images(const std::filesystem::path& root,
                                               const std::vector<std::filesystem::path>& made) {
    if (options.separate || stopped) return;
    for (const auto& image : made) {
        const auto relative = image.lexically_relative(root);
        if (relative.empty() || *relative.begin() == "..") continue;
        McpResource resource;
        resource.uri = "ipybox://workspace/" + relative.string();
        resource.name = relative.filename().string();
        resource.description = "An image that code made";
        const auto extension = relative.extension();
        resource.mime_type = extension == ".svg"   ? "image/svg+xml"
                             : extension == ".jpg" ? "image/jpeg"
                                                   : "image/" + extension.string().substr(1);
        resource.read = [weak = weak_from_this(), path = relative.string()](
                            McpContext context, std::string uri, json::object) {
            return read_image(weak, std::move(context), std::move(uri), path);
        };
        if (std::find(listed.begin(), listed.end(), resource.uri) != listed.end()) continue;
        listed.push_back(resource.uri);
        server->add_resource(std::move(resource));
        if (listed.size() <= 100) continue;
        server->remove_resource(listed.front());
        listed.pop_front();
    }
}

IPYBOX_DECL awaitable<void> McpService::Impl::stop(ImplPtr self) {
    self->stopped = true;
    self->server->stop();
    auto all = std::move(self->sessions);
    self->sessions.clear();
    self->last.reset();
    for (const auto& [key, session] : all) self->retire(session);
    for (const auto& session : std::exchange(self->spares, {})) self->retire(session);
    all.clear();
    // A kernel that is still starting dies with the last who holds it.
    const auto deadline = Clock::now() + std::chrono::seconds(3);
    while (self->ending > 0 && Clock::now() < deadline) co_await self->changed.wait(deadline);
}

IPYBOX_DECL void McpService::Impl::abandon() {
    stopped = true;
    sessions.clear();
    spares.clear();
    last.reset();
    server.reset();
}

}  // namespace ipybox
