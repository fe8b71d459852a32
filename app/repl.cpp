// ipybox repl: a prompt for people.
#include <unistd.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <csignal>
#include <iostream>
#include <ipybox/detail/build_info.hpp>
#include <memory>

#include "cell_input.hpp"
#include "line_editor.hpp"
#include "repl_commands.hpp"
#include "repl_history.hpp"
#include "run_to_end.hpp"
#include "table.hpp"
#include "terminal_session.hpp"

namespace ipybox::app {
namespace {

struct ReplFlags : TerminalFlags {
    ReplFlags() {
        timeout = 0;  // there is Ctrl-C
        approval_timeout = 0;
    }
    bool no_history = false;
};

class Repl {
public:
    Repl(asio::io_context& context, const ReplFlags& flags)
        : context_(context),
          session_(context, flags),
          history_(flags.no_history ? std::filesystem::path() : ReplHistory::standard_file()),
          editor_(
              context.get_executor(), remembered(), colors_at(STDOUT_FILENO),
              [this](std::string code) { return complete(std::move(code)); },
              [this] { session_.executor().cancel(); }) {
        session_.on_signal([this](int number) { return goes_on(number); });
    }

    awaitable<int> run() {
        co_await session_.prepare();
        started_ = true;
        if (session_.signal() == 0) {
            std::cout << "ipybox " << detail::build_version
                      << ": Tab completes, Ctrl-C interrupts, Ctrl-D leaves; :help tells more"
                      << std::endl;
        }
        while (session_.signal() == 0) {
            auto input = co_await editor_.read_cell();
            if (input.end == LineEditor::End::left) break;
            if (input.end == LineEditor::End::interrupted || is_blank(input.text)) continue;
            keep(input.text);
            // Of a Tab that was given up.
            while (completing_) co_await completed_.wait();
            bool stays = true;
            if (input.text.front() == ':')
                stays = co_await obey(input.text);
            else
                stays = co_await execute(input.text);
            if (!stays) break;
        }
        co_await session_.executor().stop();
        co_return session_.signal() != 0 ? 128 + session_.signal() : 0;
    }

private:
    // Whether a signal ends nothing.
    bool goes_on(int number) {
        if (number == SIGINT && started_) {
            // What Tab asks the kernel is also something that runs.
            if (!session_.interrupt()) session_.executor().cancel();
            editor_.interrupt();
            return true;
        }
        editor_.interrupt();
        return false;
    }

    awaitable<CodeCompletions> complete(std::string code) {
        struct During {
            Repl& repl;
            explicit During(Repl& r) : repl(r) { repl.completing_ = true; }
            ~During() {
                repl.completing_ = false;
                repl.completed_.notify();
            }
        };
        while (completing_) co_await completed_.wait();
        const During during(*this);
        co_return co_await session_.executor().complete(std::move(code));
    }

    std::vector<std::string> remembered() {
        try {
            return history_.load();
        } catch (const Error& error) {
            without_history(error);
        }
        return {};
    }
    void without_history(const Error& error) {
        history_ = ReplHistory({});
        complain(error.detail() + "; nothing is kept of what you type");
    }
    void keep(const std::string& cell) {
        editor_.remember(cell);
        try {
            history_.add(cell);
        } catch (const Error& error) {
            without_history(error);
        }
    }

    static void complain(const std::string& text) {
        detail::TerminalFilter filter;
        std::cerr << "ipybox: " << filter(text) << std::endl;
    }
    // Of servers and kernels.
    static void show(const std::string& text) {
        detail::TerminalFilter filter;
        std::cout << filter(text) << (text.ends_with('\n') ? "" : "\n") << std::flush;
    }

    // False when the person leaves.
    awaitable<bool> execute(std::string code) {
        const auto from = code.find_first_not_of(" \t\n");
        const auto word =
            std::string_view(code).substr(from, code.find_last_not_of(" \t\n") + 1 - from);
        for (const std::string_view leaving : {"exit", "quit", "exit()", "quit()"})
            if (word == leaving) co_return false;
        const std::function<void(InputRequest)> asked = [this](InputRequest request) {
            ask_for_input(std::move(request));
        };
        try {
            co_await session_.run(std::move(code), asked);
        } catch (const Error& error) {
            complain(error.detail());
        }
        if (!session_.executor().kernel_alive())
            complain(
                "the kernel has ended, and its variables and imports with it; :reset starts a "
                "new one");
        co_return true;
    }

    // input() and getpass() of the code. That the code asks is said, so that it cannot pass for
    // ipybox.
    void ask_for_input(InputRequest request) {
        session_.fresh_line();
        asio::co_spawn(context_, take_input(std::move(request)), asio::detached);
    }
    awaitable<void> take_input(InputRequest request) {
        const auto over = std::make_shared<bool>(false);
        asio::co_spawn(context_, give_up(request, over), asio::detached);
        std::string prompt =
            request.is_password() ? "[the code asks, and will see it] " : "[the code asks] ";
        if (colors_at(STDOUT_FILENO)) prompt = detail::in_color(detail::Color::yellow, prompt);
        prompt += request.to_string() + ' ';
        ++asking_;
        auto input = co_await editor_.read_answer(std::move(prompt), request.is_password(), over);
        --asking_;
        if (input.end == LineEditor::End::typed)
            request.answer(std::move(input.text));
        else
            request.refuse();
    }
    awaitable<void> give_up(InputRequest request, std::shared_ptr<bool> over) {
        co_await request.settled();
        *over = true;
        if (asking_ > 0) editor_.interrupt();
    }

    // False when the person leaves.
    awaitable<bool> obey(std::string text) {
        const auto [command, argument] = repl_line(text);
        if (command == ":quit") co_return false;
        try {
            if (command == ":help")
                help();
            else if (command == ":reset")
                co_await reset();
            else if (command == ":servers")
                list_servers();
            else if (command == ":tools")
                list_tools(argument);
            else if (command == ":tool")
                show(session_.executor().describe_tool(argument));
            else if (command == ":variables")
                co_await list_variables();
            else
                complain(no_such_command(command));
        } catch (const Error& error) {
            complain(error.detail());
        }
        co_return true;
    }

    void help() const {
        Table table;
        for (const auto& one : repl_commands) {
            std::string call(one.name);
            if (!one.argument.empty()) call += " " + std::string(one.argument);
            table.add({call, std::string(one.help)}, detail::Color::bold);
        }
        const std::pair<const char*, const char*> keys[] = {
            {"Enter", "runs a cell that is whole; a block is when an empty line ends it"},
            {"Alt-Enter", "begins a line wherever the cursor is"},
            {"Tab", "completes names, attributes, modules, parameters, keys and files; indents"},
            {"Up, Down", "lines of the cell, then earlier cells; Ctrl-R searches them"},
            {"Ctrl-C", "interrupts the cell, or drops what was typed"},
            {"Ctrl-D", "leaves"},
        };
        for (const auto& [key, text] : keys) table.add({key, text}, detail::Color::bold);
        std::cout << table.text();
        std::cout << "!command, %magic and await work as in IPython. "
                  << (history_.file().empty()
                          ? std::string("No history is kept.")
                          : "Cells are kept in " + detail::printable(history_.file().string()) +
                                ", but for those that begin with a blank.")
                  << std::endl;
    }
    awaitable<void> reset() {
        co_await session_.executor().reset();
        std::cout << "a fresh kernel; MCP servers start again with their next use" << std::endl;
    }
    void list_servers() {
        Table table({"SERVER", "TYPE", "STATE"});
        for (const auto& server : session_.executor().servers()) {
            using State = ServerInfo::State;
            table.add({server.name, server.type,
                       server.state == State::running    ? "running"
                       : server.state == State::starting ? "starting"
                                                         : "stopped"});
        }
        if (table.empty())
            std::cout << "no MCP servers: name a file with an mcpServers block by --config"
                      << std::endl;
        else
            std::cout << table.text() << std::flush;
    }
    void list_tools(std::string_view words) {
        constexpr std::size_t most = 20;
        auto& executor = session_.executor();
        if (!words.empty()) return show(executor.search_tools(words, most));
        const auto servers = executor.servers();
        if (servers.empty()) return list_servers();
        for (const auto& server : servers) show(executor.list_stubs(server.name));
    }
    awaitable<void> list_variables() {
        Table table({"NAME", "TYPE", "SIZE", "VALUE"});
        const auto found = co_await session_.executor().variables();
        for (const auto& one : found)
            table.add({one.name, one.type, one.size ? std::to_string(*one.size) : "", one.repr});
        std::cout << (table.empty() ? "no variables yet\n" : table.text()) << std::flush;
    }

    asio::io_context& context_;
    TerminalSession session_;
    ReplHistory history_;
    Event completed_{context_.get_executor()};
    bool completing_ = false;  // the kernel is asked how a line goes on
    LineEditor editor_;
    bool started_ = false;
    int asking_ = 0;  // how often the code asks and was not answered; a forged one ends another
};

int run_repl(const ReplFlags& flags) {
    if (::isatty(STDIN_FILENO) != 1 || ::isatty(STDOUT_FILENO) != 1)
        throw Error(errc::bad_argument,
                    "repl needs a terminal as standard input and output; code from a file or a "
                    "pipe: `ipybox run FILE`, `ipybox run - <FILE`");
    asio::io_context context(1);
    Repl repl(context, flags);
    return run_to_end(context, repl.run());
}

}  // namespace

void add_repl(CLI::App& app, Action& action) {
    auto flags = std::make_shared<ReplFlags>();
    auto* command = app.add_subcommand("repl", "Type Python at a prompt, in a sandboxed kernel");
    command->footer(
        "Example:\n"
        "  ipybox repl --workspace work --config mcp.json\n\n"
        "Exit code: 0 after Ctrl-D, 2 it could not be started, 143 after SIGTERM.");
    command->add_flag("--no-history", flags->no_history,
                      "What is typed is not kept for the next time");
    add_terminal_flags(*command, *flags);
    command->callback([&action, flags] {
        // Of others it is not known whether they let code ask.
        flags->allow_input =
            flags->kernel == "auto" || flags->kernel == "fork" || flags->kernel == "zmq";
        action = [flags] { return run_repl(*flags); };
    });
}

}  // namespace ipybox::app
