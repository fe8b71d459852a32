#pragma once
// The tools, resources and prompts by which the model of an MCP client runs code actions: what
// `ipybox serve` serves, and what a program of your own can add to its McpServer.
#include <openssl/sha.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <cmath>
#include <ipybox/approval/question.hpp>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/detail/workspace_files.hpp>
#include <ipybox/executor/code_executor.hpp>
#include <ipybox/mcp/result_text.hpp>
#include <ipybox/mcp/server.hpp>
#include <ipybox/sandbox_kit/process.hpp>
#include <ipybox/tools/remembered_servers.hpp>
#include <ipybox/tools/tool_search.hpp>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ipybox {

// What an McpService serves, and to how many.
struct McpServiceOptions {
    // Of every session's executor. Its workspace is that of the only session, or the one in which
    // sessions get directories of their own.
    CodeExecutorOptions executor;
    std::map<std::string, json::object> servers;  // MCP servers registered when a session begins
    // Policies (approval/config.hpp) for what the client asks for, not the code:
    // register_mcp_server and install_package.
    json::value registration = "allow";
    json::value installation = "allow";
    // What the executor's policy asks is put before the person at the client, by elicitation,
    // beside executor.approvers.
    bool ask_client = true;
    // Where the servers that clients registered are kept, so that their packages, which outlive
    // this process, go on working in the next one; see RememberedServers. Not with separate sessions. Empty: nowhere.
    std::filesystem::path remembered;
    bool structured =
        false;  // results have structured content, which some clients show instead of text

    // One kernel for each client session and, there, for each value of the argument `session`.
    // Otherwise all requests share one, which start() starts.
    bool separate = false;
    bool shared_workspace = false;   // separate sessions work in the same directory
    std::size_t max_sessions = 64;   // separate ones
    std::size_t max_session_directories = 1024;  // that ended sessions may leave behind, with files
    std::size_t starts_at_once = 2;  // of kernels with their servers; others wait for their turn
    Duration session_idle =
        std::chrono::minutes(30);  // then a separate session's kernel ends; zero: never
    Duration keep_alive = std::chrono::seconds(10);  // between reports of progress of a silent cell
    std::size_t max_result = std::size_t{8} << 20;   // bytes of one result, as JSON
    McpServerOptions server;  // on_session_end is called after the service's own
};

namespace detail {

// Whoever holds a place goes on once fewer than `width` others stand before them.
class WaitingLine {
public:
    WaitingLine(const asio::any_io_executor& executor, std::size_t width)
        : width_(width), moved_(executor) {}
    bool empty() const noexcept { return places_.empty(); }
    // Leaves the line when it is destroyed; the line must outlive it.
    class Place {
    public:
        explicit Place(WaitingLine& line)
            : line_(line), at_(line.places_.insert(line.places_.end(), 0)) {}
        ~Place() {
            line_.places_.erase(at_);
            line_.moved_.notify();
        }
        Place(const Place&) = delete;
        Place& operator=(const Place&) = delete;
        bool first() const noexcept {
            std::size_t before = 0;
            for (auto at = line_.places_.begin(); at != at_ && before < line_.width_; ++at)
                ++before;
            return before < line_.width_;
        }
        awaitable<void> turn() {
            while (!first()) co_await line_.moved_.wait();
        }

    private:
        WaitingLine& line_;
        std::list<char>::iterator at_;
    };

private:
    std::size_t width_;
    std::list<char> places_;
    Event moved_;
};

// Tells the client what a cell prints while it runs, and that it still does.
class CellReport {
public:
    CellReport(const asio::any_io_executor& executor, const McpContext& context,
               Duration keep_alive)
        : state_(std::make_shared<State>(executor, context)) {
        state_->keep_alive = keep_alive;
        asio::co_spawn(executor, tell(state_), asio::detached);
    }
    ~CellReport() {
        state_->done = true;
        state_->changed.notify();
    }
    CellReport(const CellReport&) = delete;
    CellReport& operator=(const CellReport&) = delete;

    static constexpr std::size_t max_message = 16 << 10;

    void add(std::string_view text) {
        auto& waiting = state_->text;
        const bool first = waiting.empty() && state_->skipped == 0;
        const auto room = max_message - std::min(waiting.size(), max_message);
        const auto fits = text_fits(text, text.size(), room);
        waiting += text.substr(0, state_->skipped == 0 ? fits : 0);
        state_->skipped += text.size() - (state_->skipped == 0 ? fits : 0);
        if (first) state_->changed.notify();
    }
    // What is not yet told.
    void flush() { state_->send(); }

private:
    struct State {
        State(const asio::any_io_executor& executor, const McpContext& c)
            : context(c), changed(executor) {}
        void send() {
            if (text.empty() && skipped == 0) return;
            if (skipped > 0) text += "\n[" + std::to_string(skipped) + " more bytes]";
            context.progress(++count, {}, text);
            text.clear();
            skipped = 0;
        }
        McpContext context;
        Event changed;
        std::string text;
        std::size_t skipped = 0;
        double count = 0;
        Duration keep_alive{};
        Clock::time_point started = Clock::now();
        bool done = false;
    };

    static awaitable<void> tell(std::shared_ptr<State> state) {
        while (!state->done) {
            co_await state->changed.wait(deadline_after(state->keep_alive));
            if (state->done) co_return;
            if (state->text.empty()) {
                const auto seconds =
                    std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - state->started);
                state->context.progress(++state->count, {},
                                        "running for " + std::to_string(seconds.count()) + " s");
                continue;
            }
            // What comes in quick succession makes one report.
            co_await sleep_until(Clock::now() + std::chrono::milliseconds(50));
            if (!state->done) state->send();
        }
    }
    std::shared_ptr<State> state_;
};

}  // namespace detail

// Owns an McpServer with the tools register_mcp_server, execute_ipython_cell, install_package,
// reset, interrupt, list_tools, search_tools, upload_file and download_file, the workspace's files
// as resources, and prompts. Serve it with server().serve_stdio() or an McpHttpServer; tools of
// your own can be added to it. One thread; the registry must outlive it.
class McpService {
public:
    // Starts nothing. Throws Error: bad_argument, bad_config.
    McpService(asio::any_io_executor executor, PluginRegistry& registry, McpServiceOptions options)
        : state_(std::make_shared<State>(std::move(executor), registry, std::move(options))) {
        state_->prepare();
    }
    ~McpService() { state_->abandon(); }
    McpService(const McpService&) = delete;
    McpService& operator=(const McpService&) = delete;

    // What it is served by, and where more tools can be added.
    McpServer& server() noexcept { return *state_->server; }

    // Starts the kernel and the MCP servers of the only session, so that its first request need not
    // wait. Returns at once: what fails is logged, and tried again by the request that needs it.
    // Throws what CodeExecutor's constructor does. With separate sessions it checks that only.
    void start() { state_->start(); }

    // Ends all sessions, their kernels and MCP servers. Returns when they are gone, after a few
    // seconds at most: what is left then ends with the executor's io_context.
    awaitable<void> stop() { return State::stop(state_); }

    // Sessions with a kernel, or on the way to one.
    std::size_t sessions() const noexcept { return state_->sessions.size(); }

private:
    struct State;
    struct Session;
    using StatePtr = std::shared_ptr<State>;
    using SessionPtr = std::shared_ptr<Session>;
    using Line = detail::WaitingLine;

    // One kernel and what belongs to it.
    struct Session {
        Session(const asio::any_io_executor& io, std::string session_name)
            : name(std::move(session_name)),
              cells(io, 1),
              judgements(io, 1),
              questions(io, 1),
              changed(io) {}
        std::string name;
        std::string owner;  // the id of the McpSession it belongs to
        std::unique_ptr<CodeExecutor> executor;
        Line cells, judgements, questions;
        Event changed;
        bool running = false;       // there is a kernel
        std::string lost = {};      // why the one that there was is gone, until a cell is told
        std::size_t preparing = 0;  // starts and ends of the kernel that are under way
        std::exception_ptr failure;
        std::map<std::string, std::string>
            broken;  // configured servers that did not start, and why
        std::set<std::string> registered;
        std::size_t users = 0;  // requests that use it
        Clock::time_point last_used = Clock::now();
        std::optional<McpContext> asking;   // the request that runs code
        std::optional<McpContext> judging;  // the one for which a registration is judged
        std::set<std::pair<std::string, std::string>>
            allowed;  // server and tool: by the person, for good
        Host host;
        PolicyPtr registration, installation;
    };

    // A request that uses a session.
    struct Use {
        explicit Use(SessionPtr s) : session(std::move(s)) { ++session->users; }
        ~Use() {
            --session->users;
            session->last_used = Clock::now();
            session->changed.notify();
        }
        Use(const Use&) = delete;
        Use& operator=(const Use&) = delete;
        SessionPtr session;
    };

    // Whom a policy's questions go to.
    struct Asking {
        Asking(std::optional<McpContext>& p, const McpContext& context) : place(p) {
            place = context;
        }
        ~Asking() { place.reset(); }
        Asking(const Asking&) = delete;
        Asking& operator=(const Asking&) = delete;
        std::optional<McpContext>& place;
    };

    struct State : std::enable_shared_from_this<State> {
        State(asio::any_io_executor e, PluginRegistry& r, McpServiceOptions o)
            : io(std::move(e)),
              registry(r),
              options(std::move(o)),
              starts(io, std::max<std::size_t>(1, options.starts_at_once)),
              changed(io) {}

        asio::any_io_executor io;
        PluginRegistry& registry;
        McpServiceOptions options;
        std::unique_ptr<McpServer> server;
        std::map<std::string, SessionPtr> sessions;
        Line starts;
        Event changed;
        std::size_t ending = 0;  // sessions on their way out
        bool stopped = false;
        bool sweeping = false;
        std::deque<std::string> listed;  // URIs of images

        void prepare() {
            auto own = options.server;
            if (own.name == "ipybox" && own.title.empty())
                own.title = "ipybox: code actions in Python";
            if (own.instructions.empty()) own.instructions = of_api(std::string(instructions));
            own.lenient_calls = true;
            const std::weak_ptr<State> weak = weak_from_this();
            own.on_session_end = [weak, then = options.server.on_session_end](McpSession& gone) {
                if (const auto self = weak.lock()) self->end_of(gone.id);
                if (then) then(gone);
            };
            server = std::make_unique<McpServer>(io, std::move(own));
            add_tools(*this);
            add_resources(*this);
            add_prompts(*this);
        }

        // A text for models that shows calls, in the style of the generated functions.
        std::string of_api(std::string text) const {
            constexpr std::string_view call = "TOOL.run(", awaited = "await ";
            for (auto at = text.find(call); options.executor.async_api && at != text.npos;
                 at = text.find(call, at + awaited.size() + call.size()))
                text.insert(at, awaited);
            return text;
        }

        // ---- sessions ----

        void start() {
            const auto first = make_session("", "default");
            if (options.separate) return;
            sessions.emplace("", first);
            begin(first);
        }

        bool has_own_directory(const std::string& name) const {
            return options.separate && !options.shared_workspace && name != "default";
        }
        std::filesystem::path directory_of(const std::string& name) const {
            const auto& base = options.executor.workspace;
            return has_own_directory(name) ? base / "sessions" / name : base;
        }
        // Whoever may call chooses the names: those that nothing lies in go with their session, the
        // others are counted. Throws errc::busy, errc::io_error.
        void make_directory_of(const std::string& name) const {
            std::error_code error;
            const auto directory = directory_of(name);
            if (!has_own_directory(name) || std::filesystem::exists(directory, error)) return;
            std::size_t count = 0;
            for (std::filesystem::directory_iterator entry(directory.parent_path(), error), end;
                 !error && entry != end; entry.increment(error))
                ++count;
            if (count >= options.max_session_directories)
                throw Error(errc::busy, directory.parent_path().string() + " holds the files of " +
                                            std::to_string(count) +
                                            " sessions, and there may be no more; remove those that nobody needs");
            const auto& base = options.executor.workspace;
            const auto root = detail::open_directory(base.empty() ? "." : base);
            detail::make_directory_beneath(root.get(), std::filesystem::path("sessions") / name);
        }
        void remove_empty_directory_of(const std::string& name) const noexcept {
            if (!has_own_directory(name)) return;
            for (const auto& [key, session] : sessions)
                if (session->name == name) return;
            const auto directory = directory_of(name);
            const UniqueFd place(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
            if (!place) return;
            // What every kernel's start makes. A link fails, as does what holds a file.
            if (const auto own = detail::open_beneath(place.get(), ".ipybox", O_RDONLY | O_DIRECTORY))
                ::unlinkat(own.get(), "site-packages", AT_REMOVEDIR);
            ::unlinkat(place.get(), ".ipybox", AT_REMOVEDIR);
            ::rmdir(directory.c_str());
        }

        SessionPtr make_session(const std::string& owner, const std::string& name) {
            const auto session = std::make_shared<Session>(io, name);
            session->owner = owner;
            auto settings = options.executor;
            settings.session = name;
            make_directory_of(name);
            settings.workspace = directory_of(name);
            if (options.ask_client) {
                const bool alone = settings.approvers.empty();
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

        // That of a request; made when there is none yet. to_read: not for a request that only reads
        // files, when there can be none. Throws errc::io_error then.
        SessionPtr session_of(const McpContext& context, const json::object& arguments,
                              bool to_read = false) {
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
            if (const auto found = sessions.find(key); found != sessions.end())
                return found->second;
            std::error_code error;
            // Kernels of other backends may have files elsewhere.
            if (to_read && has_own_directory(name) && options.executor.kernel == "zmq" &&
                !std::filesystem::exists(directory_of(name), error))
                throw Error(errc::io_error,
                            "this session has no files yet: run code in it, or write a file to it, first");
            make_room();
            SessionPtr made;
            try {
                made = make_session(client.id, name);
            } catch (...) {
                remove_empty_directory_of(name);
                throw;
            }
            sessions.emplace(key, made);
            if (options.separate && !std::exchange(sweeping, true))
                asio::co_spawn(io, sweep(weak_from_this()), asio::detached);
            return made;
        }

        // For one more session, in place of one whose kernel has ended, if need be.
        void make_room() {
            // What a kernel, its servers and its tool calls take, with some to spare.
            constexpr std::size_t needed = 128;
            if (const auto left = open_files_left(); options.separate && left < needed)
                throw Error(errc::busy, "this process may open only " + std::to_string(left) + " more files, and a session needs up to " +
                                            std::to_string(needed) + "; try again when one has ended, or start ipybox with a higher "
                                            "limit of open files (ulimit -n)");
            if (sessions.size() < std::max<std::size_t>(1, options.max_sessions)) return;
            for (auto at = sessions.begin(); at != sessions.end(); ++at) {
                const auto& session = *at->second;
                if (session.running || session.users > 0 || session.preparing > 0) continue;
                retire(at->second);
                sessions.erase(at);
                return;
            }
            throw Error(
                errc::busy,
                std::to_string(sessions.size()) +
                    " sessions are in use, and there may be no more; try again when one has ended");
        }

        static std::string digest(const std::string& text) {
            unsigned char hash[SHA256_DIGEST_LENGTH];
            ::SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), hash);
            return detail::hex(std::span(hash).first(8));
        }

        void end_of(const std::string& client) {
            for (auto at = sessions.begin(); at != sessions.end();) {
                if (options.separate && at->second->owner == client) {
                    retire(at->second);
                    at = sessions.erase(at);
                } else {
                    ++at;
                }
            }
        }

        // Ends kernel and servers of a session that nobody finds any more.
        void retire(const SessionPtr& session) {
            ++ending;
            asio::co_spawn(io, end(session), [self = shared_from_this(), name = session->name](std::exception_ptr) {
                self->remove_empty_directory_of(name);
                --self->ending;
                self->changed.notify();
            });
        }
        static awaitable<void> end(SessionPtr session) {
            session->executor->cancel();
            while (session->users > 0 || session->preparing > 0) co_await session->changed.wait();
            co_await session->executor->stop();
        }

        // Ends the kernels of sessions that are idle; the sessions themselves go with their files
        // kept.
        static awaitable<void> sweep(std::weak_ptr<State> weak) {
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
                            LogLevel::info,
                            "session " + session->name + " is idle: its kernel ends");
                        session->running = false;
                        session->lost = "because it was idle";
                        ++session->preparing;
                        asio::co_spawn(self->io, reclaim(session), asio::detached);
                    }
                }
                co_await sleep_until(Clock::now() + pause);
            }
        }
        static awaitable<void> reclaim(SessionPtr session) {
            try {
                co_await session->executor->stop();
            } catch (const std::exception& error) {
                session->host.logger(LogLevel::warning, error.what());
            }
            --session->preparing;
            session->changed.notify();
        }

        // ---- starting ----

        void begin(const SessionPtr& session) {
            ++session->preparing;
            asio::co_spawn(io, prepare(shared_from_this(), session), [session](std::exception_ptr) {
                --session->preparing;
                session->changed.notify();
            });
        }

        // Kernel and servers start at the same time, once it is the session's turn.
        static awaitable<void> prepare(StatePtr self, SessionPtr session) {
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
                asio::co_spawn(
                    self->io, start_server(session, name, params),
                    [ended, name = name](std::exception_ptr error) { ended(error, name); });
            }
            while (left > 0) co_await session->changed.wait();
        }
        // Servers of earlier processes are judged anew; nobody is asked. They start when they are
        // used.
        static awaitable<void> recall(StatePtr self, SessionPtr session) {
            const auto records = self->remembered();
            records.forget_gone();
            std::map<std::string, json::object> servers;
            try {
                servers = records.read();
            } catch (const Error& problem) {
                self->options.executor.logger(LogLevel::warning, "registered servers are forgotten: " + problem.detail());
            }
            for (const auto& [name, params] : servers) {
                if (session->registered.contains(name) || self->options.servers.contains(name))
                    continue;
                ToolCall call = registration_call(name, params);
                call.session = session->name;
                const auto decision = co_await approve(*session->registration, std::move(call),
                                                       self->options.executor.approval_timeout);
                if (decision.verdict != Verdict::allow) continue;
                session->executor->register_server(name, params);
                session->registered.insert(name);
            }
        }
        RememberedServers remembered() const {
            return {options.separate ? std::filesystem::path() : options.remembered, options.executor.workspace};
        }
        void remember(const std::string& name, const json::object& params) const {
            try {
                remembered().add(name, params);
            } catch (const std::exception& error) {
                options.executor.logger(
                    LogLevel::warning,
                    "MCP server " + name + " is registered until ipybox ends: " + error.what());
            }
        }

        static awaitable<void> start_kernel(SessionPtr session) {
            co_await session->executor->reset();
        }
        static awaitable<void> start_server(SessionPtr session, std::string name,
                                            json::object params) {
            co_await session->executor->generate_mcp_sources(std::move(name), std::move(params));
        }

        // Waits for kernel and servers, and starts them when need be.
        static awaitable<void> ready(StatePtr self, SessionPtr session) {
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

        static std::string text_of(const std::exception_ptr& failure) {
            try {
                std::rethrow_exception(failure);
            } catch (const Error& error) {
                return error.detail();
            } catch (const std::exception& error) {
                return error.what();
            }
        }

        // Images of cells are listed as resources, the newest hundred.
        void list_images(const std::filesystem::path& root,
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
                resource.mime_type = extension == ".svg" ? "image/svg+xml"
                                     : extension == ".jpg"
                                         ? "image/jpeg"
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

        // ---- the end ----

        static awaitable<void> stop(StatePtr self) {
            self->stopped = true;
            self->server->stop();
            auto all = std::move(self->sessions);
            self->sessions.clear();
            for (const auto& [key, session] : all) self->retire(session);
            all.clear();
            // A kernel that is still starting dies with the last who holds it.
            const auto deadline = Clock::now() + std::chrono::seconds(3);
            while (self->ending > 0 && Clock::now() < deadline)
                co_await self->changed.wait(deadline);
        }
        void abandon() {
            stopped = true;
            sessions.clear();
            server.reset();
        }
    };

    // ---- questions to the person ----

    // Allowed, denied with the person's reason, or a pass when there is nobody to ask.
    static awaitable<Decision> ask_client(std::weak_ptr<Session> weak, ToolCall call, bool alone,
                                          bool judging) {
        const auto session = weak.lock();
        if (!session) co_return Decision{};
        const auto& place = judging ? session->judging : session->asking;
        if (!place) co_return Decision{};
        const McpContext context = *place;
        const std::pair known(call.server, call.tool);
        if (call.origin == CallOrigin::mcp && session->allowed.contains(known))
            co_return said(Verdict::allow, "for this session");
        if (!context.supports("elicitation.form")) {
            if (!alone) co_return Decision{};
            co_return said(Verdict::deny, "cannot be asked",
                           "approval is needed, and this client cannot ask its user (it has no "
                           "elicitation); a policy "
                           "could allow the call");
        }
        co_return co_await put(session, context, std::move(call));
    }

    static Decision said(Verdict verdict, const std::string& by, std::string reason = {}) {
        Decision decision(verdict, std::move(reason));
        decision.by = "client: " + by;
        return decision;
    }

    // Clients render Markdown: what code wrote stands in a fence, which nothing in it can close, as
    // a question's lines begin with its own words and contain no others' line breaks.
    static std::string client_question(CallOrigin origin, std::string_view text) {
        std::string fence = "```";
        while (text.find(fence) != text.npos) fence += '`';
        std::string_view head = "Code wants to call a tool:";
        if (origin == CallOrigin::shell || origin == CallOrigin::shell_magic) head = "Code wants to run a shell command:";
        if (origin == CallOrigin::registration) head = "An MCP server is to be registered:";
        if (origin == CallOrigin::package) head = "A package is to be installed:";
        return std::string(head) + "\n\n" + fence + "\n" + std::string(text) + fence;
    }

    // One question at a time. Nothing is preselected: only one of the choices that allow is a yes.
    static awaitable<Decision> put(SessionPtr session, McpContext context, ToolCall call) {
        Line::Place place(session->questions);
        co_await place.turn();
        const std::pair known(call.server, call.tool);
        const bool lasting = call.origin == CallOrigin::mcp;
        if (lasting && session->allowed.contains(known))
            co_return said(Verdict::allow, "for this session");
        const Question question(call);
        std::string message = client_question(call.origin, question.text());
        json::array choices{"deny", "allow once"};
        if (lasting) choices.emplace_back("allow this tool for the session");
        json::object choice{{"type", "string"},
                            {"title", "Decision"},
                            {"enum", std::move(choices)}};
        json::object reason{{"type", "string"},
                            {"title", "Reason"},
                            {"description", "for a denial: what the code is told"}};
        json::object properties, schema{{"type", "object"}};
        properties.emplace("decision", std::move(choice));
        properties.emplace("reason", std::move(reason));
        schema.emplace("properties", std::move(properties));
        schema.emplace("required", json::array{"decision"});
        const auto given = co_await context.elicit(std::move(message), std::move(schema));
        const auto action = detail::string_of(given, "action");
        if (action == "cancel")
            co_return said(Verdict::deny, "cancel", "the user dismissed the question");
        if (action != "accept") co_return said(Verdict::deny, "decline", "the user declined");
        const auto* content = detail::object_of(given, "content");
        const auto decision =
            content ? detail::string_of(*content, "decision") : std::string_view();
        if (decision == "allow once") co_return said(Verdict::allow, "once");
        if (lasting && decision == "allow this tool for the session") {
            session->allowed.insert(known);
            co_return said(Verdict::allow, "for this session");
        }
        std::string why(content ? detail::string_of(*content, "reason") : std::string_view());
        if (why.empty()) why = "the user denied it";
        co_return said(Verdict::deny, "deny", std::move(why));
    }

    // Throws errc::denied unless the policy for such requests of the client allows it.
    static awaitable<void> judge(StatePtr state, SessionPtr session, McpContext context,
                                 ToolCall call) {
        Line::Place place(session->judgements);
        co_await place.turn();
        const Asking asking(session->judging, context);
        call.session = session->name;
        const Secrets nothing;
        AuditedCall audited(state->options.executor.audit, call, nothing, 0);
        auto& policy =
            call.origin == CallOrigin::package ? *session->installation : *session->registration;
        const std::string what =
            call.origin == CallOrigin::package ? "install_package" : "register_mcp_server";
        const auto decision =
            co_await approve(policy, std::move(call), state->options.executor.approval_timeout);
        audited.decided(decision);
        if (decision.verdict != Verdict::allow)
            throw Error(errc::denied, what + " was denied" +
                                          (decision.reason.empty() ? "" : ": " + decision.reason));
        audited.ended("ok");
    }

    // ---- tools ----

    // Bytes that a result may take.
    static std::size_t room_for(const State& state, const McpContext& context) {
        return std::min(state.options.max_result, context.max_result());
    }
    static std::string text_argument(const json::object& arguments, std::string_view name) {
        const auto* value = arguments.if_contains(name);
        return value && value->is_string() ? std::string(value->get_string()) : std::string();
    }

    // What fails is a result that a model can read, in the words of the Python SDK's servers.
    static McpToolResult failed(std::string_view tool, const std::string& why) {
        McpToolResult result("Error executing tool " + std::string(tool) + ": " + why);
        result.is_error = true;
        return result;
    }

    // Text of at most `characters`, within what is left of the result's bytes.
    static std::string fitting(std::string text, std::size_t characters, std::size_t& bytes) {
        const std::size_t room = bytes > 1000 ? bytes - 1000 : 0;
        const auto by_characters = detail::text_fits(text, characters, std::string::npos);
        const auto end = detail::text_fits(std::string_view(text).substr(0, by_characters),
                                           std::string::npos, room);
        std::string mark;
        if (end < by_characters) {
            mark = "\n\n[Output truncated: exceeded " + std::to_string(room) + " byte limit]";
        } else if (end < text.size()) {
            mark = "\n\n[Output truncated: exceeded " + std::to_string(characters) +
                   " character limit]";
        }
        text.resize(end);
        text += mark;
        for (const char c : text)
            bytes -= std::min(bytes, detail::json_cost(static_cast<unsigned char>(c)));
        return text;
    }

    static awaitable<McpToolResult> execute_cell(StatePtr state, McpContext context,
                                                 json::object arguments) {
        const double seconds = number_argument(arguments, "timeout", 120);
        const double characters = number_argument(arguments, "max_output_chars", 5000);
        const Use use(state->session_of(context, arguments));
        const auto& session = use.session;
        Line::Place place(session->cells);
        co_await place.turn();
        co_await State::ready(state, session);
        const std::string lost = session->lost;
        CodeExecutionResult result;
        {
            const Asking asking(session->asking, context);
            auto execution = co_await session->executor->stream(text_argument(arguments, "code"),
                                                                duration(seconds), true);
            detail::CellReport report(state->io, context, state->options.keep_alive);
            for (;;) {
                auto event = co_await execution.next();
                if (!event) break;
                if (const auto* chunk = std::get_if<CodeExecutionChunk>(&*event)) {
                    report.add(chunk->text);
                } else if (const auto* request = std::get_if<ApprovalRequest>(&*event)) {
                    request->reject("nobody is there to approve this call");
                } else {
                    result = std::get<CodeExecutionResult>(std::move(*event));
                }
            }
            report.flush();
        }
        session->lost.clear();
        auto answer = cell_result(*state, result, room_for(*state, context),
                                  static_cast<std::size_t>(std::min(characters, 1e12)), lost,
                                  !session->executor->kernel_alive());
        state->list_images(session->executor->workspace(), result.images);
        co_return answer;
    }

    static double number_argument(const json::object& arguments, std::string_view name,
                                  double otherwise) {
        const auto* value = arguments.if_contains(name);
        if (!value) return otherwise;
        const double number = value->to_number<double>();
        if (number < 0)
            throw Error(errc::bad_argument, std::string(name) + " must not be negative");
        return number;
    }
    static Duration duration(double seconds) {
        return std::chrono::duration_cast<Duration>(
            std::chrono::duration<double>(std::min(seconds, 1e9)));
    }

    // room: bytes that the result may take.
    static McpToolResult cell_result(const State& state, const CodeExecutionResult& result, std::size_t room,
                                     std::size_t characters, const std::string& lost,
                                     bool kernel_lost) {
        constexpr std::string_view tool = "execute_ipython_cell";
        std::size_t bytes = room;
        std::string output = result.text.value_or("");
        if (!result.images.empty()) {
            output += "\n\nGenerated images:\n\n";
            for (const auto& image : result.images)
                output += "- [" + image.stem().string() + "](" + image.string() + ")\n";
        }
        McpToolResult answer;
        if (!lost.empty())
            answer.content.push_back(McpContent::text(
                "[The kernel of this session had ended " + lost +
                ": this cell ran in a new one, without the variables, imports and connections to "
                "MCP servers of before.]"));
        if (result.ok()) {
            answer.content.push_back(McpContent::text(fitting(output, characters, bytes)));
        } else {
            std::string error =
                "Error executing tool " + std::string(tool) + ": " +
                (result.status == CodeExecutionResult::Status::error ? headed(result.error)
                                                                     : result.error);
            if (kernel_lost)
                error += "\nThe next cell runs in a new kernel, without the variables and imports "
                         "of this one.";
            error = fitting(std::move(error), std::string::npos, bytes);
            if (!output.empty())
                error += "\n\nOutput until then:\n\n" + fitting(output, characters, bytes);
            answer.content.push_back(McpContent::text(error));
            answer.is_error = true;
        }
        // What whoever looks after the workspace should know of.
        std::string told;
        for (const auto& violation : result.violations)
            if (violation.layer == "files") told += "\n- " + violation.what;
        if (!told.empty())
            answer.content.push_back(McpContent::text(fitting(
                "[Files that programs of the host run or obey; look at them before you use the workspace outside:" + told + "]",
                std::string::npos, bytes)));
        json::array pictures;
        for (const auto& display : result.displays) add_image(pictures, display, bytes);
        for (auto& picture : pictures) answer.content.push_back(std::move(picture));
        if (state.options.structured) {
            static constexpr std::string_view names[] = {
                "ok", "error", "timed_out", "cancelled", "kernel_lost", "output_limit"};
            json::object whole{{"status", names[static_cast<int>(result.status)]}};
            whole["text"] = fitting(result.text.value_or(""), characters, bytes);
            json::array files;
            for (const auto& image : result.images) files.emplace_back(image.string());
            whole["images"] = std::move(files);
            if (!result.ok()) whole["error"] = fitting(result.error, std::string::npos, bytes);
            answer.structured = std::move(whole);
        }
        return answer;
    }

    // A traceback ends with what went wrong; many clients show the beginning only.
    static std::string headed(const std::string& traceback) {
        const std::string text = detail::strip(traceback);
        auto end = text.starts_with("---") ? text.rfind("\n\n") : std::string::npos;
        if (end == std::string::npos) end = text.rfind('\n');
        if (end == std::string::npos) return traceback;
        return detail::strip(std::string_view(text).substr(end)) + "\n" + traceback;
    }

    static void add_image(json::array& blocks, const json::object& display, std::size_t& bytes) {
        for (const std::string_view mime : {"image/png", "image/jpeg", "image/gif", "image/webp"}) {
            const auto* encoded = display.if_contains(mime);
            if (!encoded || !encoded->is_string()) continue;
            const auto image = detail::decode_base64(encoded->get_string());
            const auto type = image ? detail::image_type(*image) : std::string_view();
            if (type.empty()) continue;
            const std::size_t size = image->size() / 3 * 4 + 200;
            if (size > bytes) {
                blocks.push_back(McpContent::text(
                    "[Image omitted: " + std::to_string(image->size()) +
                    " bytes exceed what one result may hold; its file is listed above]"));
            } else {
                bytes -= size;
                blocks.push_back(McpContent::image(*image, type));
            }
            return;
        }
    }

    static awaitable<McpToolResult> register_server(StatePtr state, McpContext context,
                                                    json::object arguments) {
        const std::string name = text_argument(arguments, "server_name");
        check_server_name(name);
        const auto params = check_server_params(arguments.at("server_params"), "server_params");
        const Use use(state->session_of(context, arguments));
        ToolCall call = registration_call(name, params);
        co_await judge(state, use.session, context, std::move(call));
        const auto tools = co_await use.session->executor->generate_mcp_sources(name, params);
        use.session->registered.insert(name);
        use.session->broken.erase(name);
        state->remember(name, params);
        McpToolResult result;
        for (const auto& tool : tools) result.content.push_back(McpContent::text(tool));
        if (state->options.structured) {
            json::array names;
            for (const auto& tool : tools) names.emplace_back(tool);
            result.structured = json::object{{"result", std::move(names)}};
        }
        co_return result;
    }

    static ToolCall registration_call(const std::string& name, const json::object& params) {
        ToolCall call;
        call.server = name;
        call.tool = "register";
        call.arguments = shown_params(params);
        call.origin = CallOrigin::registration;
        return call;
    }

    // What a policy or a person judges a server by: values that may be secrets are left out.
    static json::object shown_params(const json::object& params) {
        json::object shown;
        for (const auto& [key, value] : params)
            if (key != "env" && key != "headers" && key != "auth") shown[key] = value;
        for (const char* key : {"env", "headers"}) {
            const auto* values = params.if_contains(key);
            if (!values) continue;
            json::array names;
            for (const auto& entry : values->get_object()) names.emplace_back(entry.key());
            shown[key] = std::move(names);
        }
        std::set<std::string> variables;
        find_variables(json::value(params), variables);
        json::array names;
        for (const auto& name : variables) names.emplace_back(name);
        if (!names.empty()) shown["variables"] = std::move(names);
        return shown;
    }
    static void find_variables(const json::value& value, std::set<std::string>& names) {
        if (const auto* text = value.if_string()) {
            std::string_view rest = *text;
            for (std::size_t at; (at = rest.find("${")) != rest.npos;) {
                rest.remove_prefix(at + 2);
                names.emplace(rest.substr(0, std::min(rest.find(":-"), rest.find('}'))));
            }
        } else if (const auto* list = value.if_array()) {
            for (const auto& item : *list) find_variables(item, names);
        } else if (const auto* object = value.if_object()) {
            for (const auto& entry : *object) find_variables(entry.value(), names);
        }
    }

    static awaitable<McpToolResult> install(StatePtr state, McpContext context,
                                            json::object arguments) {
        const std::string package = text_argument(arguments, "package_name");
        const Use use(state->session_of(context, arguments));
        ToolCall call;
        call.server = "ipybox";
        call.tool = "install_package";
        call.arguments["package_name"] = package;
        call.origin = CallOrigin::package;
        co_await judge(state, use.session, context, std::move(call));
        std::string said;
        try {
            said = co_await use.session->executor->install_package(package);
        } catch (const Error& error) {
            // What pip says is the result, whether it could or not.
            if (error.code() != errc::code_failed) throw;
            said = error.detail();
            said.erase(0, said.find('\n') + 1);
        }
        std::size_t bytes = room_for(*state, context);
        co_return McpToolResult(fitting(std::move(said), 100'000, bytes));
    }

    static awaitable<McpToolResult> reset(StatePtr state, McpContext context,
                                          json::object arguments) {
        const Use use(state->session_of(context, arguments));
        const auto& session = use.session;
        Line::Place place(session->cells);
        co_await place.turn();
        while (session->preparing > 0) co_await session->changed.wait();
        session->running = false;
        co_await State::ready(state, session);
        session->lost.clear();
        co_return McpToolResult(json::array());
    }

    static awaitable<McpToolResult> interrupt(StatePtr state, McpContext context,
                                              json::object arguments) {
        const auto session = state->session_of(context, arguments);
        const bool running = session->asking.has_value();
        session->executor->cancel();
        co_return McpToolResult(
            running ? "The running cell was interrupted; its call returns what it printed."
                    : "No cell is running.");
    }

    // ---- what code actions can import ----

    static bool callable(const Session& session, const ImportableTool& tool) {
        constexpr std::string_view generated = "mcptools.";
        return !tool.package.starts_with(generated) ||
               session.registered.contains(tool.package.substr(generated.size()));
    }
    static std::string line_of(const Session& session, const ImportableTool& tool) {
        return "from " + tool.package + " import " + tool.module + "  # " + tool.summary +
               (callable(session, tool) ? "\n" : " [its server is not registered]\n");
    }

    // The source of one module.
    static std::string source_of(const Session& session, const std::string& server,
                                 const std::string& tool) {
        check_server_name(server);
        if (!detail::is_python_identifier(tool))
            throw Error(errc::bad_argument, "tool_name must be a module's name");
        const auto root = detail::open_directory(session.executor->workspace());
        const auto path = std::filesystem::path("mcptools") / server / (tool + ".py");
        try {
            return detail::read_beneath(root.get(), path, 0, std::size_t{1} << 20).bytes;
        } catch (const Error& error) {
            throw Error(errc::bad_argument, error.detail() + "; list_tools() says what there is");
        }
    }

    static awaitable<McpToolResult> list_tools(StatePtr state, McpContext context,
                                               json::object arguments) {
        const Use use(state->session_of(context, arguments));
        const auto& session = *use.session;
        while (session.preparing > 0) co_await use.session->changed.wait();
        const std::string server = text_argument(arguments, "server_name"),
                          tool = text_argument(arguments, "tool_name");
        std::size_t bytes = room_for(*state, context);
        if (!tool.empty())
            co_return McpToolResult(fitting(source_of(session, server, tool), 100'000, bytes));
        const auto all = importable_tools(session.executor->workspace());
        std::string text;
        if (server.empty()) {
            struct Package {
                std::size_t tools = 0;
                bool callable = true;
            };
            std::map<std::string, Package> packages;
            for (const auto& one : all) {
                const auto category = one.package.find('.', one.package.find('.') + 1);
                auto& package = packages[one.package.substr(0, category)];
                ++package.tools;
                package.callable = callable(session, one);
            }
            for (const auto& [name, package] : packages)
                text += name + ": " + std::to_string(package.tools) +
                        (package.tools == 1 ? " tool" : " tools") +
                        (package.callable ? "\n" : ", its server is not registered\n");
        } else {
            for (const auto& one : all)
                if (one.package == "mcptools." + server) text += line_of(session, one);
            if (text.empty())
                text = "There is no mcptools." + server + "; register_mcp_server makes it.\n";
        }
        for (const auto& [name, why] : session.broken)
            text += "MCP server " + name + " could not be started: " + why + "\n";
        if (text.empty())
            text = "There are no tools yet; register_mcp_server adds those of an MCP server.\n";
        co_return McpToolResult(fitting(std::move(text), 100'000, bytes));
    }

    static awaitable<McpToolResult> search(StatePtr state, McpContext context,
                                           json::object arguments) {
        const Use use(state->session_of(context, arguments));
        while (use.session->preparing > 0) co_await use.session->changed.wait();
        const auto limit =
            static_cast<std::size_t>(std::min(number_argument(arguments, "limit", 10), 200.0));
        const auto found = search_tools(importable_tools(use.session->executor->workspace()),
                                        text_argument(arguments, "query"));
        std::string text;
        for (std::size_t i = 0; i < found.size() && i < limit; ++i)
            text += line_of(*use.session, found[i]);
        if (found.size() > limit)
            text += "[" + std::to_string(found.size() - limit) +
                    " more; a longer query or a higher limit shows them]\n";
        if (text.empty()) text = "Nothing fits; list_tools() says what there is.\n";
        std::size_t bytes = room_for(*state, context);
        co_return McpToolResult(fitting(std::move(text), 100'000, bytes));
    }

    // ---- files ----

    // A kernel elsewhere has files only while it runs.
    static awaitable<void> files_ready(StatePtr state, SessionPtr session) {
        if (!session->executor->shares_files()) co_await State::ready(state, session);
    }

    static awaitable<McpToolResult> upload(StatePtr state, McpContext context,
                                           json::object arguments) {
        const Use use(state->session_of(context, arguments));
        std::string path = text_argument(arguments, "path");
        std::string bytes = text_argument(arguments, "content");
        if (text_argument(arguments, "encoding") == "base64") {
            auto decoded = detail::decode_base64(bytes);
            if (!decoded) throw Error(errc::bad_argument, "content is not valid base64");
            bytes = std::move(*decoded);
        }
        const auto* overwrite = arguments.if_contains("overwrite");
        const bool replace = !overwrite || overwrite->as_bool();
        std::string done = "Wrote " + std::to_string(bytes.size()) + " bytes to " + path;
        co_await files_ready(state, use.session);
        co_await use.session->executor->upload(std::move(path), std::move(bytes), replace);
        co_return McpToolResult(std::move(done));
    }

    static awaitable<McpToolResult> download(StatePtr state, McpContext context,
                                             json::object arguments) {
        const Use use(state->session_of(context, arguments, true));
        const std::string path = text_argument(arguments, "path");
        const auto offset =
            static_cast<std::uint64_t>(std::min(number_argument(arguments, "offset", 0), 1e18));
        // Base64 makes four bytes of three; text may grow more, and is cut then.
        const auto room = room_for(*state, context);
        const double most = static_cast<double>(room / 2);
        const auto limit =
            static_cast<std::size_t>(std::min(number_argument(arguments, "max_bytes", most), most));
        co_await files_ready(state, use.session);
        const FilePart part = co_await use.session->executor->download(path, offset, limit);
        const bool whole = offset == 0 && part.bytes.size() == part.size;
        const bool last = offset + part.bytes.size() >= part.size;
        McpToolResult result;
        std::size_t size = part.bytes.size();
        const auto type = detail::image_type(part.bytes);
        const auto text =
            last ? std::string_view(part.bytes) : detail::whole_characters(part.bytes);
        if (whole && !type.empty()) {
            result.content.push_back(McpContent::image(part.bytes, type));
        } else if (detail::is_text(text)) {
            size = detail::text_fits(text, std::string::npos, room - std::min<std::size_t>(room, 2000));
            result.content.push_back(McpContent::text(text.substr(0, size)));
        } else {
            result.content.push_back(McpContent::embedded(McpContent::blob_of(
                "ipybox://workspace/" + path, part.bytes, "application/octet-stream")));
        }
        const auto end = offset + size;
        if (end < part.size)
            result.content.push_back(McpContent::text(
                "[File truncated: bytes " + std::to_string(offset) + " to " + std::to_string(end) +
                " of " + std::to_string(part.size) + "; call again with offset " +
                std::to_string(end) + " for the rest]"));
        co_return result;
    }

    static awaitable<json::array> read_resource(std::weak_ptr<State> weak, McpContext context,
                                                std::string uri, json::object variables) {
        const auto state = weak.lock();
        if (!state) throw Error(errc::cancelled, "the server is stopping");
        const Use use(state->session_of(context, variables, true));
        const std::string path = text_argument(variables, "path");
        co_await files_ready(state, use.session);
        const FilePart part =
            co_await use.session->executor->download(path, 0, room_for(*state, context) / 2);
        co_return contents_of(uri, path, part);
    }

    // An image that a cell made lies here, wherever its kernel is.
    static awaitable<json::array> read_image(std::weak_ptr<State> weak, McpContext context,
                                             std::string uri, std::string path) {
        const auto state = weak.lock();
        if (!state) throw Error(errc::cancelled, "the server is stopping");
        const Use use(state->session_of(context, json::object(), true));
        const auto part = use.session->executor->read_here(path, 0, room_for(*state, context) / 2);
        co_return contents_of(uri, path, part);
    }

    static json::array contents_of(const std::string& uri, const std::string& path,
                                   const FilePart& part) {
        if (part.bytes.size() < part.size)
            throw Error(
                errc::bad_argument,
                path + ": " + std::to_string(part.size) +
                    " bytes are more than one answer may hold; download_file reads it in parts");
        json::array contents;
        if (const auto type = detail::image_type(part.bytes); !type.empty()) {
            contents.push_back(McpContent::blob_of(uri, part.bytes, type));
        } else if (detail::is_text(part.bytes)) {
            contents.push_back(McpContent::text_of(uri, part.bytes));
        } else {
            contents.push_back(McpContent::blob_of(uri, part.bytes, "application/octet-stream"));
        }
        return contents;
    }

    // ---- what clients see ----

    using Handler = awaitable<McpToolResult> (*)(StatePtr, McpContext, json::object);

    static awaitable<McpToolResult> guarded(std::weak_ptr<State> weak, std::string tool,
                                            Handler handler, McpContext context,
                                            json::object arguments) {
        std::string why;
        try {
            auto state = weak.lock();
            if (!state) throw Error(errc::cancelled, "the server is stopping");
            auto work = handler(std::move(state), std::move(context), std::move(arguments));
            co_return co_await std::move(work);
        } catch (const McpError&) {
            throw;
        } catch (const Error& error) {
            why = error.detail();
        }
        co_return failed(tool, why);
    }

    static constexpr std::string_view instructions =
        "Act by writing Python instead of calling tools one by one. execute_ipython_cell runs code "
        "in an IPython kernel that "
        "keeps its state. register_mcp_server turns an MCP server into importable modules: from "
        "mcptools.SERVER import TOOL, then "
        "TOOL.run(parameter=value). search_tools and list_tools find them; read the source of a "
        "module (list_tools with "
        "tool_name) before its first use. Combine many calls in one cell, filter in Python, and "
        "print only what you need.";

    // Required: the names at the front of `properties`.
    static json::object schema(json::object properties, std::size_t required) {
        json::object result{{"type", "object"}};
        json::array names;
        for (const auto& entry : properties)
            if (names.size() < required) names.emplace_back(entry.key());
        result.emplace("properties", std::move(properties));
        if (!names.empty()) result.emplace("required", std::move(names));
        return result;
    }
    static json::object parameter(std::string_view type, std::string_view description,
                                  json::value otherwise = nullptr) {
        json::object result{{"type", type}, {"description", description}};
        if (!otherwise.is_null()) result.emplace("default", std::move(otherwise));
        return result;
    }
    static json::object hints(bool reads, bool destroys, bool repeats, bool world) {
        return {{"readOnlyHint", reads},
                {"destructiveHint", destroys},
                {"idempotentHint", repeats},
                {"openWorldHint", world}};
    }

    static void add_tools(State& state) {
        const auto add = [&](std::string name, std::string title, std::string description,
                             json::object properties, std::size_t required,
                             json::object annotations, Handler handler, json::object output = {}) {
            McpTool tool;
            tool.name = name;
            tool.title = std::move(title);
            tool.description = state.of_api(std::move(description));
            if (state.options.separate)
                properties.emplace(
                    "session",
                    parameter("string", "Which of your kernels; each name has one of its own", ""));
            tool.input_schema = schema(std::move(properties), required);
            if (state.options.structured) tool.output_schema = std::move(output);
            tool.annotations = std::move(annotations);
            tool.call = [weak = state.weak_from_this(), name, handler](McpContext context,
                                                                       json::object arguments) {
                return guarded(weak, name, handler, std::move(context), std::move(arguments));
            };
            state.server->add_tool(std::move(tool));
        };
        json::object strings{{"type", "array"}}, text{{"type", "string"}};
        strings.emplace("items", text);

        json::object properties, output;
        properties["server_name"] = parameter(
            "string", "Name of the Python package: a lowercase identifier, such as files");
        json::object params = parameter(
            "object",
            "How the server is reached: {\"command\", \"args\", \"env\", \"cwd\"} for stdio, "
            "{\"url\", \"headers\", \"type\"} for HTTP. A stdio server starts in an empty directory: "
            "write paths of the workspace as ${WORKSPACE}/PATH");
        params.emplace("additionalProperties", true);
        properties["server_params"] = std::move(params);
        output["result"] = strings;
        add("register_mcp_server", "Register an MCP server",
            "Makes the tools of an MCP server callable from Python: writes the package "
            "mcptools/SERVER_NAME with one typed module "
            "for each tool. Use them as\n    from mcptools.SERVER_NAME import TOOL\n    result = "
            "TOOL.run(parameter=value)\n"
            "${NAME} in server_params is replaced by the variable of the environment or .env. "
            "Registering again replaces the "
            "package; reset() makes a kernel that has imported it see the new one. Packages "
            "outlive reset(). Returns the names of "
            "the tools.",
            std::move(properties), 2, hints(false, false, true, true), register_server,
            schema(std::move(output), 1));

        properties = {};
        properties["package_name"] = parameter(
            "string", "A name, a requirement such as numpy>=1.20, or a git+https:// address");
        add("install_package", "Install a Python package",
            "Installs a Python package by pip for this workspace. It can be imported at once and "
            "outlives reset(). Returns what "
            "pip says, also when it fails.",
            std::move(properties), 1, hints(false, false, true, true), install);

        properties = {};
        output = {};
        properties["code"] = parameter("string", "Python code to execute in the IPython kernel");
        properties["timeout"] = parameter("number", "Seconds until the code is interrupted", 120);
        properties["max_output_chars"] =
            parameter("integer", "Characters of output to return; what exceeds them is cut", 5000);
        output["status"] =
            parameter("string", "ok, error, timed_out, cancelled, kernel_lost or output_limit");
        output["text"] = text;
        output["images"] = strings;
        output["error"] = text;
        add("execute_ipython_cell", "Execute Python code",
            "Executes Python code in an IPython kernel that keeps variables, imports and "
            "definitions from call to call. One cell "
            "runs at a time; `await` works at the top level. Returns what the code printed and the "
            "value of its last expression, "
            "then links to the images it made; nothing for nothing. An exception, a call of a tool "
            "that failed, or the timeout is "
            "an error with the traceback and the output until then; the kernel stays usable.",
            std::move(properties), 1, hints(false, true, false, true), execute_cell,
            schema(std::move(output), 3));

        add("reset", "Reset the kernel",
            "Starts a new IPython kernel. Lost: variables, imports, definitions, connections to "
            "MCP servers, which come back when "
            "they are used. Kept: installed packages, files, mcptools/.",
            {}, 0, hints(false, true, true, false), reset);

        add("interrupt", "Interrupt the running cell",
            "Interrupts the cell that is running, if any; the kernel's state stays. The call that "
            "runs it returns its output.",
            {}, 0, hints(false, false, true, false), interrupt);

        properties = {};
        properties["server_name"] =
            parameter("string", "A package in mcptools: lists its tools", "");
        properties["tool_name"] = parameter("string", "And a module in it: returns its source", "");
        add("list_tools", "List what code can import",
            "Lists what code can import: without arguments the packages of mcptools and gentools, "
            "with server_name the tools of "
            "one, with tool_name as well the source of one module, which says its parameters and "
            "result.",
            std::move(properties), 0, hints(true, false, true, false), list_tools);

        properties = {};
        properties["query"] = parameter("string", "Words to look for in names and descriptions");
        properties["limit"] = parameter("integer", "How many to return", 10);
        add("search_tools", "Search what code can import",
            "Finds tools in mcptools and saved code actions in gentools by words; returns a line "
            "of Python to import each, best "
            "first.",
            std::move(properties), 1, hints(true, false, true, false), search);

        properties = {};
        properties["path"] = parameter("string", "Where to, in the workspace");
        properties["content"] = parameter("string", "What the file shall hold");
        json::object encoding = parameter("string", "How content is written", "utf-8");
        encoding.emplace("enum", json::array{"utf-8", "base64"});
        properties["encoding"] = std::move(encoding);
        properties["overwrite"] =
            parameter("boolean", "Whether a file that is there may be replaced", true);
        add("upload_file", "Write a file",
            "Writes a file in the workspace, where code can read it; makes directories as needed.",
            std::move(properties), 2, hints(false, true, true, false), upload);

        properties = {};
        properties["path"] = parameter("string", "Which file of the workspace");
        properties["offset"] = parameter("integer", "First byte to return", 0);
        properties["max_bytes"] = parameter(
            "integer", "Bytes to return at most; without, as many as one result can hold");
        add("download_file", "Read a file",
            "Returns a file of the workspace: text, an image, or anything else as bytes. A part of "
            "a file is marked as such.",
            std::move(properties), 1, hints(true, false, true, false), download);
    }

    static void add_resources(State& state) {
        const auto add = [&](const char* uri, const char* description) {
            McpResource resource;
            resource.uri = uri;
            resource.name = "workspace file";
            resource.description = description;
            resource.read = [weak = state.weak_from_this()](McpContext context, std::string asked,
                                                            json::object variables) {
                return read_resource(weak, std::move(context), std::move(asked),
                                     std::move(variables));
            };
            state.server->add_resource(std::move(resource));
        };
        add("ipybox://workspace/{+path}", "A file in the workspace of the code");
        if (state.options.separate)
            add("ipybox://sessions/{session}/{+path}",
                "A file in the workspace of one of your sessions");
    }

    static void add_prompts(State& state) {
        const auto add = [&](const char* name, const char* title, const char* description,
                             const char* argument, const char* argument_description,
                             std::string_view shown) {
            const auto text = state.of_api(std::string(shown));
            McpPrompt prompt;
            prompt.name = name;
            prompt.title = title;
            prompt.description = description;
            McpArgument wanted;
            wanted.name = argument;
            wanted.description = argument_description;
            wanted.required = true;
            prompt.arguments.push_back(std::move(wanted));
            prompt.get = [text, argument](McpContext, json::object arguments) {
                return filled(text, text_argument(arguments, argument));
            };
            state.server->add_prompt(std::move(prompt));
        };
        add("code_action", "Solve a task by code",
            "How to solve a task with code actions instead of single tool calls", "task",
            "What is to be done",
            "Solve the task below by code actions.\n\n"
            "1. search_tools with words of the task; list_tools(server_name, tool_name) shows the "
            "parameters and the result of a "
            "tool. If nothing fits, plain Python may do, or register_mcp_server.\n"
            "2. Write one cell for execute_ipython_cell that makes all the calls: loop, feed "
            "results into further calls, handle "
            "what is missing. Tools are functions: from mcptools.SERVER import TOOL; "
            "TOOL.run(parameter=value).\n"
            "3. Print the answer and what the next step needs; keep the rest in variables, which "
            "stay for later cells.\n"
            "4. When a call is rejected, do not try to reach the same by other means: say so, or "
            "go on without it.\n\nTask: ");
        add("save_code_action", "Save a code action",
            "How to keep a code action that worked, as a tool for later", "name",
            "What it shall be called, such as reports.longest",
            "The code action that just worked is to be kept for later. Write it as two files with "
            "upload_file: "
            "gentools/CATEGORY/TOOL/impl.py with the code, and gentools/CATEGORY/TOOL/api.py with "
            "a docstring whose first line says "
            "what it does, typed parameters, and one function run() that calls the implementation. "
            "Replace what was specific to "
            "this case by parameters. Then call it once from a new cell and compare the result. "
            "Name: ");
    }
    static awaitable<json::array> filled(std::string text, std::string argument) {
        json::array messages;
        messages.push_back(McpContent::message("user", McpContent::text(text + argument)));
        co_return messages;
    }

    StatePtr state_;
};

}  // namespace ipybox
