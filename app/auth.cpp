// ipybox auth: logs in to MCP servers that want authorization (OAuth).
#include <fcntl.h>
#include <spawn.h>
#include <unistd.h>

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <ctime>
#include <iostream>
#include <ipybox/config.hpp>
#include <ipybox/detail/mcp_versions.hpp>
#include <ipybox/detail/terminal_text.hpp>
#include <ipybox/oauth/oauth.hpp>
#include <ipybox/sandbox_kit/host_program.hpp>
#include <memory>
#include <string>
#include <vector>

#include "commands.hpp"
#include "own_files.hpp"
#include "run_to_end.hpp"

namespace ipybox::app {
namespace {

struct AuthFlags {
    std::string name;
    std::string server_params;
    std::string config;
    std::string scope;
    bool device = false;
    bool no_browser = false;
    std::string log_level = "warning";
};

// Starts the desktop's browser, and lets it be: it may live longer than the login.
void open_browser(const std::string& url) {
    const auto set = [](const char* name) {
        const char* value = std::getenv(name);
        return value != nullptr && *value != '\0';
    };
    if (!set("DISPLAY") && !set("WAYLAND_DISPLAY")) return;
    // It looks a browser up itself: neither comes from where code could have put one.
    const std::string path =
        host_search_path(set("PATH") ? std::getenv("PATH") : "/usr/local/bin:/usr/bin:/bin");
    const auto opener = find_program("xdg-open", path);
    if (!opener) return;
    std::vector<std::string> variables{"PATH=" + path};
    for (char** variable = environ; *variable != nullptr; ++variable)
        if (const std::string text = *variable; !text.starts_with("PATH="))
            variables.push_back(text);
    std::vector<char*> environment;
    for (auto& variable : variables) environment.push_back(variable.data());
    environment.push_back(nullptr);
    posix_spawn_file_actions_t files;
    ::posix_spawn_file_actions_init(&files);
    for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
        ::posix_spawn_file_actions_addopen(&files, fd, "/dev/null", O_RDWR, 0);
    posix_spawnattr_t attributes;
    ::posix_spawnattr_init(&attributes);
    ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
    std::string program = opener->string(), argument = url;
    std::array<char*, 3> argv{program.data(), argument.data(), nullptr};
    pid_t pid = 0;
    ::posix_spawn(&pid, program.c_str(), &files, &attributes, argv.data(), environment.data());
    ::posix_spawnattr_destroy(&attributes);
    ::posix_spawn_file_actions_destroy(&files);
}

// A line typed at standard input. Waits forever when nobody can type there.
awaitable<std::string> typed_line() {
    asio::posix::stream_descriptor input(co_await asio::this_coro::executor);
    if (const int fd = ::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3); fd >= 0) input.assign(fd);
    std::string typed;
    while (input.is_open() && typed.size() < 64 * 1024) {
        // An empty line is no answer.
        for (auto end = typed.find('\n'); end != typed.npos; end = typed.find('\n')) {
            if (end > 0 && typed[end - 1] == '\r') typed[end - 1] = ' ';
            const auto line = net::trim_blanks(std::string_view(typed).substr(0, end));
            if (!line.empty()) co_return std::string(line);
            typed.erase(0, end + 1);
        }
        // Waiting and a plain read leave the terminal in blocking mode for whoever shares it.
        const auto [error] =
            co_await input.async_wait(asio::posix::descriptor_base::wait_read, as_result);
        if (error) break;
        if (!is_readable(input.native_handle())) continue;
        char chunk[4096];
        const auto size = ::read(input.native_handle(), chunk, sizeof chunk);
        if (size <= 0) break;
        typed.append(chunk, static_cast<std::size_t>(size));
    }
    for (;;) co_await sleep_until(never);
}

std::string login_time(std::int64_t seconds) {
    const auto time = static_cast<std::time_t>(seconds);
    std::tm parts{};
    char text[64];
    if (::localtime_r(&time, &parts) == nullptr) return "an unknown time";
    return std::string(text, std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &parts));
}

// One server, as the configuration describes it.
class Login {
public:
    Login(asio::io_context& context, const AuthFlags& flags)
        : executor_(context.get_executor()), flags_(flags) {
        const auto params = server_params(flags.name, flags.config, flags.server_params);
        const VariableSource source(read_own_env(".", make_logger("warning")));
        params_ =
            substitute_variables(params, source, "MCP server " + flags.name, secrets_).as_object();
        if (!params_.contains("url"))
            throw Error(errc::bad_argument,
                        flags.name +
                            " is started as a command: it gets what it needs by "
                            "\"env\", and nobody can log in to it");
        OAuthOptions options;
        options.name = flags.name;
        options.url = params_.at("url").as_string();
        if (const auto* auth = params_.if_contains("auth")) options.auth = auth->as_object();
        if (flags.device) options.auth["grant"] = "device_code";
        if (!flags.scope.empty()) options.auth["scope"] = flags.scope;
        options.logger = make_logger(flags.log_level);
        options.browse = [no_browser =
                              flags.no_browser](std::string url) -> awaitable<std::string> {
            std::cerr << "To log in, open this page in a browser:\n\n"
                      << detail::printable(url)
                      << "\n\nIf the browser runs on another machine, copy the address it ends at "
                         "(the page will not load) and paste it here:\n"
                      << std::flush;
            if (!no_browser) open_browser(url);
            co_return co_await typed_line();
        };
        options.show_code = [](const std::string& url, const std::string& code) {
            std::cerr << "To log in, open " << detail::printable(url)
                      << " in any browser and enter the code " << detail::printable(code) << '\n'
                      << std::flush;
        };
        oauth_ = std::make_unique<OAuth>(executor_, std::move(options));
    }

    awaitable<int> login() {
        bool wanted = false;
        const HttpHeaders challenge = co_await ask_server(wanted);
        std::optional<Error> trouble;
        try {
            co_await oauth_->login(challenge);
        } catch (const Error& error) {
            if (wanted) throw;
            trouble.emplace(error.code(),
                            "the server answers without authorization, and logging in failed: " +
                                error.detail());
        }
        if (trouble) throw *trouble;
        co_return status();
    }

    int status() const {
        const auto now = oauth_->status();
        if (!now.token) {
            std::cout << flags_.name << ": not logged in\n";
            return 1;
        }
        const bool usable = !now.expired || now.refreshable;
        std::cout << flags_.name << ": "
                  << (usable ? "logged in at " : "expired; the login was at ")
                  << detail::printable(now.issuer) << " as client "
                  << detail::printable(now.client_id);
        if (!now.scope.empty()) std::cout << ", scope " << detail::printable(now.scope);
        if (now.expires_at != 0)
            std::cout << (now.expired ? ", expired " : ", expires ") << login_time(now.expires_at);
        if (now.refreshable) std::cout << ", refreshed by itself";
        std::cout << '\n';
        return usable ? 0 : 1;
    }

    awaitable<int> logout() {
        const bool had = co_await oauth_->logout();
        std::cout << flags_.name << (had ? ": logged out\n" : ": was not logged in\n");
        co_return 0;
    }

private:
    // What the server says to a request without a token.
    awaitable<HttpHeaders> ask_server(bool& wanted) {
        HttpClientOptions options;
        options.logger = make_logger(flags_.log_level);
        HttpClient client(executor_, options);
        HttpRequest request;
        request.method = "POST";
        request.url = params_.at("url").as_string();
        if (const auto* headers = params_.if_contains("headers"))
            for (const auto& [name, value] : headers->as_object())
                request.headers.emplace_back(name, value.as_string());
        request.headers.emplace_back("Content-Type", "application/json");
        request.headers.emplace_back("Accept", "application/json, text/event-stream");
        request.headers.emplace_back("MCP-Protocol-Version", detail::mcp_2025_11_25);
        request.body = R"({"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}})";
        request.deadline = deadline_after(std::chrono::seconds(30));
        const auto response = co_await client.send(std::move(request));
        wanted = response->status() == 401;
        HttpHeaders challenge;
        if (wanted) challenge = response->headers();
        co_return challenge;
    }

    asio::any_io_executor executor_;
    AuthFlags flags_;
    Secrets secrets_;
    json::object params_;
    std::unique_ptr<OAuth> oauth_;
};

int run_auth(const AuthFlags& flags, const std::string& what) {
    asio::io_context context(1);
    Login login(context, flags);
    if (what == "status") return login.status();
    return run_to_end(context, what == "login" ? login.login() : login.logout());
}

}  // namespace

void add_auth(CLI::App& app, Action& action) {
    auto* group = app.add_subcommand("auth", "Log in to MCP servers that want authorization");
    group->require_subcommand(1);
    const std::pair<const char*, const char*> commands[] = {
        {"login", "Get a token for a server, by a browser or a code"},
        {"status", "Say whether there is a token for a server; exit code 1 if there is none"},
        {"logout", "Forget a server's token"}};
    for (const auto& [name, about] : commands) {
        auto flags = std::make_shared<AuthFlags>();
        auto* command = group->add_subcommand(name, about);
        command->add_option("NAME", flags->name, "Name of the server")->required();
        auto* source = command->add_option_group("source", "Where the server is described");
        source
            ->add_option("--server-params", flags->server_params,
                         "JSON: {\"url\": …, \"auth\": {…}}")
            ->type_name("JSON");
        source->add_option("--config", flags->config, "File with an mcpServers block that has NAME")
            ->type_name("FILE");
        source->require_option(1);
        if (std::string_view(name) == "login") {
            command->add_flag("--device", flags->device,
                              "Show a code to enter in a browser anywhere");
            command->add_flag("--no-browser", flags->no_browser, "Only show the page's address");
            command->add_option("--scope", flags->scope,
                                "What to ask for, instead of what the server suggests");
        }
        add_log_level(*command, flags->log_level);
        command->callback([&action, flags, what = std::string(name)] {
            action = [flags, what] { return run_auth(*flags, what); };
        });
    }
}

}  // namespace ipybox::app
