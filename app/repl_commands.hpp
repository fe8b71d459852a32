#pragma once
// The lines of `ipybox repl` that are no Python: they begin with a colon.
#include <algorithm>
#include <ipybox/detail/nearest.hpp>
#include <ipybox/executor/execution.hpp>
#include <string>
#include <string_view>
#include <utility>

namespace ipybox::app {

struct ReplCommand {
    std::string_view name;
    std::string_view argument;  // what stands behind it; empty: nothing
    std::string_view help;
};
inline constexpr ReplCommand repl_commands[] = {
    {":help", "", "this list"},
    {":quit", "", "leaves, as Ctrl-D does"},
    {":reset", "", "a fresh kernel; variables and imports are lost"},
    {":servers", "", "the MCP servers that code can call"},
    {":tool", "SERVER.TOOL", "how a tool is called"},
    {":tools", "[WORDS]", "tools that fit the words; without any, all"},
    {":variables", "", "what code has defined so far"},
};

struct ReplLine {
    std::string_view command, argument;
};
// line: begins with a colon.
inline ReplLine repl_line(std::string_view line) {
    line = line.substr(0, line.find_last_not_of(" \t\n") + 1);
    const auto end = std::min(line.find_first_of(" \t"), line.size());
    const auto from = std::min(line.find_first_not_of(" \t", end), line.size());
    return {line.substr(0, end), line.substr(from)};
}

// How a line that begins with a colon can go on.
inline CodeCompletions complete_command(std::string_view line) {
    CodeCompletions found;
    for (const auto& command : repl_commands)
        if (command.name.size() > line.size() && command.name.starts_with(line))
            found.matches.emplace_back(command.name);
    return found;
}

// What is said of a command that there is not.
inline std::string no_such_command(std::string_view name) {
    detail::NearestName nearest(name);
    for (const auto& command : repl_commands) nearest.offer(command.name);
    std::string text = "there is no command " + std::string(name);
    if (!nearest.best().empty()) text += "; did you mean " + std::string(nearest.best()) + "?";
    return text + (nearest.best().empty() ? "; :help lists them" : " :help lists all");
}

}  // namespace ipybox::app
