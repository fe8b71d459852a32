// ipybox run: one code action from the command line.
#include <iostream>
#include <iterator>
#include <memory>

#include "run_to_end.hpp"
#include "terminal_session.hpp"

namespace ipybox::app {
namespace {

struct RunFlags : TerminalFlags {
    std::string code;
    std::string file;
};

std::string read_code(const RunFlags& flags) {
    if (!flags.code.empty()) return flags.code;
    if (flags.file != "-") return read_text_file(flags.file);
    return std::string(std::istreambuf_iterator<char>(std::cin), {});
}

awaitable<int> run_once(TerminalSession& session, std::string code) {
    co_await session.prepare();
    bool ok = false;
    if (session.signal() == 0) {
        const std::function<void(InputRequest)> nobody;
        ok = co_await session.run(std::move(code), nobody);
        co_await session.executor().stop();
    }
    // The exit code that shells give to a program that a signal ended.
    if (session.signal() != 0) co_return 128 + session.signal();
    co_return ok ? 0 : 1;
}

int run_code(const RunFlags& flags) {
    std::string code = read_code(flags);
    asio::io_context context(1);
    TerminalSession session(context, flags);
    return run_to_end(context, run_once(session, std::move(code)));
}

}  // namespace

void add_run(CLI::App& app, Action& action) {
    auto flags = std::make_shared<RunFlags>();
    auto* command = app.add_subcommand("run", "Run a code action and print what it prints");
    command->formatter(std::make_shared<HelpWithUsage>(
        std::vector<std::string>{"[OPTIONS] FILE", "[OPTIONS] -c CODE", "[OPTIONS] - <FILE"}));
    command->footer(
        "Examples:\n"
        "  ipybox run -c 'print(6 * 7)'\n"
        "  ipybox run --workspace work --config mcp.json --policy policy.json action.py\n\n"
        "Exit code: 0 the code ran, 1 it failed or timed out, 2 it could not be started, 130 "
        "after Ctrl-C, 143 after SIGTERM.");
    auto* code = command->add_option_group("code", "The code action");
    code->add_option("-c", flags->code, "Python code, such as 'print(1)'")->type_name("CODE");
    code->add_option("FILE", flags->file, "File with Python code; - reads standard input");
    code->require_option(1);
    add_terminal_flags(*command, *flags);
    command->callback([&action, flags] { action = [flags] { return run_code(*flags); }; });
}

}  // namespace ipybox::app
