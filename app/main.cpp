// The `ipybox` program.
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <iostream>
#include <ipybox/detail/build_info.hpp>
#include <ipybox/detail/nearest.hpp>
#include <ipybox/detail/terminal_text.hpp>
#include <ipybox/error.hpp>
#include <ipybox/sandbox_kit/process.hpp>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "commands.hpp"
#include "terminal_output.hpp"

namespace ipybox::app {

Logger make_logger(const std::string& level) {
    static const auto sink = [] {
        const auto mode =
            colors_at(STDERR_FILENO) ? spdlog::color_mode::always : spdlog::color_mode::never;
        auto made = spdlog::stderr_color_mt("ipybox", mode);
        made->set_pattern("%^%l%$: %v");
        made->set_level(spdlog::level::trace);
        return made;
    }();
    static constexpr spdlog::level::level_enum levels[] = {
        spdlog::level::trace, spdlog::level::debug, spdlog::level::info,
        spdlog::level::warn,  spdlog::level::err,   spdlog::level::off};
    Logger logger;
    logger.level = level == "trace"     ? LogLevel::trace
                   : level == "debug"   ? LogLevel::debug
                   : level == "info"    ? LogLevel::info
                   : level == "warning" ? LogLevel::warning
                   : level == "error"   ? LogLevel::error
                                        : LogLevel::off;
    auto& output = TerminalOutput::instance();
    output.on_left_out(
        [](std::size_t lines) { sink->warn("{} more lines while a question was open", lines); });
    logger.write = [&output](LogLevel at, std::string_view line) {
        const auto write = [level = levels[static_cast<int>(at)], text = detail::printable(line)] {
            sink->log(level, text);
        };
        output.log(line.size(), write);
    };
    return logger;
}

void add_log_level(CLI::App& command, std::string& level) {
    command.add_option("--log-level", level, "What is logged to standard error")
        ->check(
            CLI::IsMember({"trace", "debug", "info", "warning", "error", "off"}, CLI::ignore_case))
        ->transform([](std::string text) { return CLI::detail::to_lower(text); })
        ->capture_default_str();
}

void add_plugin_dir(CLI::App& command, std::vector<std::filesystem::path>& directories) {
    command
        .add_option("--plugin-dir", directories,
                    "Directory with plugins, beside those of IPYBOX_PLUGIN_PATH; repeatable")
        ->type_name("DIR")
        ->allow_extra_args(false);
}

namespace {

// What the command has under that name, groups of options apart.
std::vector<const CLI::App*> named_commands(const CLI::App& command) {
    return command.get_subcommands([](const CLI::App* one) { return !one->get_name().empty(); });
}

void offer_options(const CLI::App& command, detail::NearestName& nearest) {
    for (const auto* option : command.get_options()) {
        if (option->get_group().empty()) continue;  // hidden
        for (const auto& name : option->get_lnames()) nearest.offer(name);
    }
    // Groups of options are commands without a name.
    for (const auto* group :
         command.get_subcommands([](const CLI::App* one) { return one->get_name().empty(); }))
        offer_options(*group, nearest);
}

// "; did you mean X?", or nothing.
std::string suggestion(std::string_view prefix, const detail::NearestName& nearest) {
    if (nearest.best().empty()) return {};
    return "; did you mean " + std::string(prefix) + std::string(nearest.best()) + "?";
}

// No line break, and no end. unknown: a word of the command line that `command` does not know.
std::string unknown_word(const CLI::App& command, const std::string& unknown) {
    if (unknown.size() > 1 && unknown.front() == '-') {
        // What is behind = may be a secret.
        const auto name = unknown.substr(0, unknown.find('='));
        const auto bare =
            name.substr(name.find_first_not_of('-') == name.npos ? 0 : name.find_first_not_of('-'));
        detail::NearestName nearest(bare);
        offer_options(command, nearest);
        return "unknown option " + detail::printable(name) + suggestion("--", nearest);
    }
    const auto commands = named_commands(command);
    if (commands.empty()) return "unexpected argument \"" + detail::printable(unknown) + '"';
    detail::NearestName nearest(unknown);
    std::string names;
    for (const auto* one : commands) {
        nearest.offer(one->get_name());
        names += (names.empty() ? "" : ", ") + one->get_name();
    }
    const auto meant = suggestion("", nearest);
    return "there is no command \"" + detail::printable(unknown) + '"' + meant +
           (meant.empty() ? "; there are: " : " There are: ") + names;
}

// What is wrong with the command line, on one line.
std::string mistake(const CLI::App& app, const CLI::ParseError& error) {
    // As far as the names of commands were understood.
    const auto* command = &app;
    std::string path;
    for (auto parsed = app.get_subcommands(); !parsed.empty();
         parsed = command->get_subcommands()) {
        command = parsed.front();
        if (command->get_name().empty()) break;
        path += command->get_name() + " ";
    }
    std::string text;
    // A word that is not known says more than what is missing without it.
    for (const auto& unknown : app.remaining(true)) {
        if (unknown == "--" || !text.empty()) continue;
        text = unknown_word(*command, unknown);
    }
    if (text.empty()) text = detail::printable(error.what());
    return text + (text.ends_with('?') ? " See" : "; see") + " `ipybox " + path + "--help`";
}

// CLI11 calls a choice of options an option group.
std::string in_our_words(const std::string& help) {
    static const std::regex group(R"(\[Option Group: .*\]\n +(.*\S) *\n +\[Exactly 1 of .*\]\n)");
    return std::regex_replace(help, group, "\n$1, exactly one of:\n");
}

}  // namespace

}  // namespace ipybox::app

int main(int argc, char** argv) {
    using namespace ipybox;
    std::signal(SIGPIPE, SIG_IGN);
    raise_open_files();
    CLI::App app{
        "Runs code actions: Python in a sandboxed IPython kernel that calls MCP tools under "
        "approval."};
    app.name("ipybox");
    app.set_version_flag("--version", std::string("ipybox ") + detail::build_version);
    app.require_subcommand(1);
    app.footer("`ipybox COMMAND --help` explains a command; `ipybox doctor` checks this machine.");
    app::Action action;
    app::add_run(app, action);
    app::add_repl(app, action);
    app::add_serve(app, action);
    app::add_apigen(app, action);
    app::add_auth(app, action);
    app::add_config(app, action);
    app::add_doctor(app, action);
    app::add_host(app, action);
    app::add_plugins(app, action);
    app::add_policy(app, action);
    app::add_audit(app, action);
    std::vector<std::string> arguments(argv + 1, argv + argc);
    // Configurations of the original say `uvx ipybox …`; whoever changes their command alone leaves
    // the name.
    if (!arguments.empty() && arguments.front() == "ipybox") arguments.erase(arguments.begin());
    if (!arguments.empty() && !arguments.front().starts_with('-')) {
        const auto& wanted = arguments.front();
        const auto known =
            app.get_subcommands([&](const CLI::App* one) { return one->check_name(wanted); });
        if (known.empty()) {
            std::cerr << "ipybox: " << app::unknown_word(app, wanted) << '\n';
            return 2;
        }
    }
    if (arguments.size() == 1 && arguments.front() == "--describe") {
        app::print_description(app);
        return 0;
    }
    // Flags without a command are those of `serve`, as in the original; nothing at all is, to a
    // program.
    const bool bare = arguments.empty() && ::isatty(STDIN_FILENO) == 0;
    const bool flags_only = !arguments.empty() && arguments.front().starts_with("--") &&
                            arguments.front() != "--help" && arguments.front() != "--version";
    if (bare || flags_only) {
        arguments.insert(arguments.begin(), "serve");
    }
    std::reverse(arguments.begin(), arguments.end());  // as CLI11 takes them
    try {
        app.parse(std::move(arguments));
    } catch (const CLI::ParseError& error) {
        if (error.get_exit_code() == 0) {
            std::ostringstream help;
            const int code = app.exit(error, help, help);
            std::cout << app::in_our_words(help.str()) << std::flush;
            return code;
        }
        std::cerr << "ipybox: " << app::mistake(app, error) << '\n';
        return 2;
    }
    try {
        return action();
    } catch (const Error& error) {
        std::cerr << "ipybox: " << detail::printable(error.detail()) << '\n';
    } catch (const std::exception& error) {
        std::cerr << "ipybox: " << detail::printable(error.what()) << '\n';
    }
    return 2;
}
