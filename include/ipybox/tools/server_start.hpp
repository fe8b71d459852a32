#pragma once
// How an unconfined MCP server starts: where, as whom, and with what. Every such start passes
// UnconfinedServer::launch(), whatever transport asks for it, a restart included.
#include <unistd.h>

#include <boost/json/object.hpp>
#include <cstring>
#include <filesystem>
#include <functional>
#include <ipybox/config.hpp>
#include <ipybox/detail/private_directory.hpp>
#include <ipybox/detail/unique_fd.hpp>
#include <ipybox/detail/within.hpp>
#include <ipybox/error.hpp>
#include <ipybox/log.hpp>
#include <ipybox/sandbox.hpp>
#include <ipybox/sandbox_kit/guest_identity.hpp>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace ipybox {

// One start of a stdio server without "sandbox", as it is about to happen.
struct ServerStart {
    std::string name;                        // as registered
    json::object params;                     // its parameters, variables replaced
    std::filesystem::path workspace;         // absolute
    std::vector<std::string> argv;           // argv[0]: absolute path of the program
    std::map<std::string, std::string> env;  // exact
    std::filesystem::path cwd;               // absolute
    bool own_cwd = false;          // cwd is the host's empty directory: the parameters name none
    std::optional<Identity> user;  // whom it becomes; absent: it keeps the user of this process
};

namespace tools {

// Whom root starts servers as. systemd's table of user numbers leaves these to nobody.
inline constexpr uid_t first_server_user = 60706, last_server_user = 61183;

// Where root keeps the home directories of servers' users.
inline constexpr const char* server_homes = "/var/lib/ipybox/servers";

// The first of these numbers that is no account's, no group's and not the kernel's. Throws Error:
// io_error (none is free).
Identity server_user(std::optional<uid_t> kernel);

// An account of this machine, as "user" of a server's parameters names it.
struct ServerAccount {
    Identity identity;
    std::string name;            // empty for a number without account
    std::filesystem::path home;  // the same
};

// user: a name or number. Throws Error: bad_config (there is no such account).
ServerAccount server_account(const json::value& user);

// Where the empty directories of servers are made. Programs look into the directories above, too
// (npx, uv, git): none is one that somebody else can write, as /tmp is, unless there is no other.
std::filesystem::path server_directories();

// A home directory of that user's own, which lasts. Throws Error: io_error (it cannot be made).
std::filesystem::path server_home(const Identity& user);

}  // namespace tools

// Where MCP servers belong: what UnconfinedServer needs to know of the session.
struct ServerPlace {
    std::filesystem::path workspace;  // absolute
    // The user that code runs as; nullopt where none runs on this machine. Its own, where nothing
    // confines the code.
    std::function<std::optional<uid_t>()> kernel_user;
    Logger logger;
    // Sees to it that what code of the session may write is on record; false where nothing confines
    // the code, so that nothing is worth judging. Empty: the record is judged by as it is.
    std::function<awaitable<bool>()> record_places = nullptr;
};

// Starts one server that asks for no sandbox: in a fresh, empty directory unless its parameters
// name one and, for root, as a user of its own unless they name one. Use it as the sandbox of one
// transport, on its executor; it must outlive what it starts.
class UnconfinedServer final : public Sandbox {
public:
    // within: what starts the process, such as the plugin "none"; it must outlive this. params: the
    // server's, as check_server_params() returns them, variables replaced.
    UnconfinedServer(Sandbox& within, std::string name, json::object params, ServerPlace place)
        : within_(within),
          name_(std::move(name)),
          params_(std::move(params)),
          place_(std::move(place)) {}

    awaitable<Capabilities> probe() override { return within_.probe(); }
    bool unix_sockets(const SandboxPolicy& policy) const override {
        return within_.unix_sockets(policy);
    }
    std::string guest_address(const SandboxPolicy& policy, const Channel& channel) const override {
        return within_.guest_address(policy, channel);
    }
    uid_t guest_user(const SandboxPolicy& policy) const override {
        return within_.guest_user(policy);
    }

    // Throws Error: bad_config (the server cannot start so; names the setting that helps), and what
    // the sandbox throws.
    awaitable<std::unique_ptr<SandboxedProcess>> launch(SandboxPolicy policy,
                                                        std::vector<std::string> argv,
                                                        std::vector<Channel> channels,
                                                        Stdio stdio) override;

private:
    // The client says which server it is.
    [[noreturn]] static void refuse(const std::string& why) { throw Error(errc::bad_config, why); }

    void choose_user(ServerStart& start);

    void choose_directory(ServerStart& start);

    // Nothing that code could have written runs with our rights.
    void judge(const ServerStart& start) const;

    // Gives the server what is that user's, and makes sure that it reaches what it was started
    // with.
    void prepare_for_user(ServerStart& start);

    std::string home_of(const ServerStart& start) const;

    // What root finds on PATH may be closed to the user: then the next of that name is meant, as
    // for any shell of the user's.
    void choose_program(ServerStart& start);

    static std::string user_text(const ServerStart& start) {
        return "uid " + std::to_string(start.user->user) + ", as which root starts it,";
    }

    void check_access(const ServerStart& start);

    bool is_in_workspace(const std::filesystem::path& path) const {
        return detail::within(path.lexically_normal(), place_.workspace);
    }

    Sandbox& within_;
    std::string name_;
    json::object params_;
    ServerPlace place_;
    tools::ServerAccount account_{};
    std::optional<detail::PrivateDirectory> directory_;
    bool told_ = false;
};

}  // namespace ipybox

#ifndef IPYBOX_SEPARATE_COMPILATION
#include <ipybox/tools/impl/server_start.ipp>
#endif
