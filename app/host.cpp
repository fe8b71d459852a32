// ipybox host: what CodeExecutor does, for a program in any language.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <cstdlib>
#include <iostream>
#include <ipybox/net/private_listener.hpp>
#include <ipybox/registry.hpp>
#include <memory>

#include "commands.hpp"
#include "host/connection.hpp"
#include "parent.hpp"
#include "run_to_end.hpp"

namespace ipybox::app {
namespace {

namespace fs = std::filesystem;

struct HostFlags {
    std::string socket;
    std::vector<fs::path> plugin_dirs;
    std::string log_level = "warning";
    bool schema = false;
};

// A copy that no child inherits.
UniqueFd copy_of(int fd, const char* what) {
    UniqueFd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 3));
    if (!copy) throw Error(errc::io_error, std::string(what) + " is not open");
    return copy;
}

// Whoever can write the directory could put another socket in the place of this one.
void check_socket_place(const fs::path& socket) {
    const auto directory = socket.has_parent_path() ? socket.parent_path() : fs::path(".");
    struct stat found{};
    const auto refuse = [&](const std::string& why) {
        return Error(errc::bad_argument, "--socket: " + directory.string() + why);
    };
    if (::stat(directory.c_str(), &found) != 0 || !S_ISDIR(found.st_mode))
        throw refuse(" is no directory: make it first, for you alone");
    if (found.st_uid != ::geteuid())
        throw refuse(
            " belongs to another user: name a directory of yours, such as "
            "$XDG_RUNTIME_DIR");
    if ((found.st_mode & 022) != 0)
        throw refuse(" can be written by others: chmod go-w it, or name another one");
    if (::lstat(socket.c_str(), &found) == 0)
        throw Error(errc::bad_argument,
                    "--socket: " + socket.string() + " exists already: remove it, or name another");
}

// The path goes with this.
struct SocketFile {
    fs::path path;
    ~SocketFile() {
        std::error_code ignored;
        fs::remove(path, ignored);
    }
};

using Acceptor = asio::local::stream_protocol::acceptor;

// The first connection of the same user; none when the acceptor was closed.
awaitable<UniqueFd> accept_own(Acceptor& acceptor, const Logger& logger) {
    for (;;) {
        auto [error, peer] = co_await acceptor.async_accept(as_result);
        if (!acceptor.is_open()) co_return UniqueFd();
        if (error) throw Error(errc::io_error, "--socket: " + error.message());
        ucred who{};
        socklen_t size = sizeof who;
        const bool known =
            ::getsockopt(peer.native_handle(), SOL_SOCKET, SO_PEERCRED, &who, &size) == 0;
        if (known && who.uid == ::geteuid()) co_return UniqueFd(peer.release());
        logger(LogLevel::warning, "a connection of user " +
                                      (known ? std::to_string(who.uid) : std::string("unknown")) +
                                      " is refused: only programs of the same user may connect");
    }
}

// acceptor: closed by whoever wants this to end.
awaitable<void> serve_socket(fs::path path, Acceptor& acceptor, host::Connection& connection,
                             Logger logger) {
    check_socket_place(path);
    UniqueFd peer;
    {
        net::listen_privately(acceptor, path, ::geteuid(), "ipybox host");
        const SocketFile file{path};
        peer = co_await accept_own(acceptor, logger);
        boost::system::error_code ignored;
        acceptor.close(ignored);
    }
    if (!peer) co_return;
    auto copy = copy_of(peer.get(), "the connection");
    co_await connection.serve(std::move(peer), std::move(copy));
}

int run_host(const HostFlags& flags) {
    if (flags.schema) {
        std::cout << host::schema() << std::flush;
        return 0;
    }
    const auto logger = make_logger(flags.log_level);
    const auto registry =
        std::make_unique<PluginRegistry>(PluginRegistry::standard(flags.plugin_dirs));
    asio::io_context context(1);
    const bool reads = [&] {
        host::Connection connection(context.get_executor(), *registry, logger);
        Acceptor acceptor(context);
        const auto stop = [&] {
            boost::system::error_code ignored;
            acceptor.close(ignored);
            connection.stop();
        };
        asio::signal_set signals(context, SIGTERM, SIGHUP);
        // Ctrl-C at a terminal is for the program that embeds this one: caught, so that children do
        // not inherit that it is ignored.
        asio::signal_set left(context);
        (flags.socket.empty() && ::isatty(STDIN_FILENO) != 1 ? left : signals).add(SIGINT);
        signals.async_wait([&](boost::system::error_code error, int) {
            if (!error) stop();
        });
        asio::co_spawn(context, parent_gone(), [&](std::exception_ptr) { stop(); });
        if (!flags.socket.empty()) {
            run_to_end(context, serve_socket(flags.socket, acceptor, connection, logger));
        } else {
            run_to_end(context, connection.serve(copy_of(STDIN_FILENO, "standard input"),
                                                 copy_of(STDOUT_FILENO, "standard output")));
        }
        return connection.still_reads();
    }();
    // Nobody waits for what it would say.
    if (reads) std::_Exit(0);
    return 0;
}

}  // namespace

void add_host(CLI::App& app, Action& action) {
    auto flags = std::make_shared<HostFlags>();
    auto* command = app.add_subcommand(
        "host", "Serve a program that embeds ipybox, in JSON-RPC on standard input and output");
    command->footer(
        "One JSON message a line; docs/host-protocol.md describes them. Ends with its input, or "
        "the program that started it, and takes every kernel and server along.");
    command
        ->add_option("--socket", flags->socket,
                     "Serve one connection at this path instead, of a program of the same user; "
                     "its directory must be yours alone")
        ->type_name("PATH");
    command->add_flag("--schema", flags->schema, "Print the protocol as a JSON Schema instead");
    add_plugin_dir(*command, flags->plugin_dirs);
    add_log_level(*command, flags->log_level);
    command->callback([&action, flags] { action = [flags] { return run_host(*flags); }; });
}

}  // namespace ipybox::app
