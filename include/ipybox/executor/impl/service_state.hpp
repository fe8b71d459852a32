#pragma once
#include <ipybox/executor/service.hpp>

#include <openssl/sha.h>

#include <cmath>
#include <ipybox/approval/granted_rules.hpp>
#include <ipybox/compilation.hpp>
#include <utility>
#include <vector>

namespace ipybox {

// One kernel and what belongs to it.
struct McpService::Session {
    Session(const asio::any_io_executor& io, std::string session_name);
    std::string name;
    std::string owner;  // the id of the McpSession it belongs to
    std::unique_ptr<CodeExecutor> executor;
    Line cells, judgements, questions;
    Event changed;
    bool running = false;       // there is a kernel
    std::string lost = {};      // why the one that there was is gone, until a cell is told
    std::size_t preparing = 0;  // starts and ends of the kernel that are under way
    std::exception_ptr failure;
    std::map<std::string, std::string> broken;  // configured servers that did not start, and why
    std::set<std::string> registered;
    std::size_t users = 0;  // requests that use it
    Clock::time_point last_used = Clock::now();
    std::optional<McpContext> asking;        // the request that runs code
    executor::CellReport* report = nullptr;  // to the client that waits for the cell that runs
    std::optional<McpContext> judging;       // the one for which a registration is judged
    GrantedRules granted{RememberedRules(std::filesystem::path())};  // by the client's person
    Host host;
    PolicyPtr registration, installation;
};

struct McpService::Impl : std::enable_shared_from_this<Impl> {
    Impl(asio::any_io_executor e, PluginRegistry& r, McpServiceOptions o);

    asio::any_io_executor io;
    PluginRegistry& registry;
    McpServiceOptions options;
    std::unique_ptr<McpServer> server;
    std::map<std::string, SessionPtr> sessions;
    std::deque<SessionPtr> spares;  // that nobody has got yet
    SessionPtr last;  // that ended: the process that its kernels were forked from serves the next
    Line starts;
    Event changed;
    std::size_t ending = 0;  // sessions on their way out
    bool stopped = false;
    bool sweeping = false;
    std::deque<std::string> listed;  // URIs of images

    void prepare();

    // A text for models that shows calls, in the style of the generated functions.
    std::string of_api(std::string text) const;

    // ---- sessions ----

    void start();

    bool has_own_directory(const std::string& name) const {
        return options.separate && !options.shared_workspace && name != "default";
    }
    std::filesystem::path directory_of(const std::string& name) const;
    // Whoever may call chooses the names: those that nothing lies in go with their session, the
    // others are counted. Throws Error: busy, io_error.
    void make_directory_of(const std::string& name) const;
    void remove_empty_directory_of(const std::string& name) const noexcept;

    SessionPtr make_session(const std::string& owner, const std::string& name);

    // That of a request; made when there is none yet. to_read: not for a request that only reads
    // files, when there can be none. Throws Error: io_error (then).
    SessionPtr session_of(const McpContext& context, const json::object& arguments,
                          bool to_read = false);

    // What a kernel, its servers and its tool calls take, with some to spare.
    static constexpr std::size_t files_of_a_session = 128;
    // Starts sessions for clients to come, as many as there are to be. Says why it cannot.
    void fill_spares() noexcept;
    // One of them, the client's from then on; null when there is none.
    SessionPtr take_spare(const std::string& owner);

    // For one more session, in place of one whose kernel has ended, if need be.
    void make_room();

    static std::string digest(const std::string& text);

    void end_of(const std::string& client);

    // Ends kernel and servers of a session that nobody finds any more.
    void retire(const SessionPtr& session);
    static awaitable<void> end(SessionPtr session);

    // Ends the kernels of sessions that are idle; the sessions themselves go with their files
    // kept.
    static awaitable<void> sweep(std::weak_ptr<Impl> weak);
    static awaitable<void> reclaim(SessionPtr session);

    // ---- starting ----

    void begin(const SessionPtr& session);

    // Kernel and servers start at the same time, once it is the session's turn.
    static awaitable<void> prepare(ImplPtr self, SessionPtr session);
    // Servers of earlier processes are judged again; nobody is asked. They start when they are
    // used.
    static awaitable<void> recall(ImplPtr self, SessionPtr session);
    RememberedServers remembered() const {
        return {options.separate ? std::filesystem::path() : options.remembered,
                options.executor.workspace};
    }
    void remember(const std::string& name, const json::object& params) const;

    static awaitable<void> start_kernel(SessionPtr session);
    static awaitable<void> start_server(SessionPtr session, std::string name, json::object params);

    // Waits for kernel and servers, and starts them when need be.
    static awaitable<void> ready(ImplPtr self, SessionPtr session);

    static std::string text_of(const std::exception_ptr& failure);

    // Images of cells are listed as resources, the newest hundred.
    void list_images(const std::filesystem::path& root,
                     const std::vector<std::filesystem::path>& made);

    // ---- the end ----

    static awaitable<void> stop(ImplPtr self);
    void abandon();
};

}  // namespace ipybox
