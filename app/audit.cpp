// ipybox audit show: what an audit log says, safe to look at.
#include <fstream>
#include <iostream>
#include <ipybox/approval/question_text.hpp>
#include <ipybox/approval/rules.hpp>
#include <ipybox/config.hpp>
#include <ipybox/detail/json_members.hpp>
#include <ipybox/detail/json_number.hpp>
#include <map>
#include <memory>
#include <optional>

#include "commands.hpp"

namespace ipybox::app {
namespace {

struct AuditFlags {
    std::string file;
    std::string session = "*";
    std::string tool = "*";
    bool denied = false;
    bool as_json = false;
};

std::string field(const json::object& record, std::string_view key) {
    const auto* value = record.if_contains(key);
    if (!value) return {};
    if (const auto* text = value->if_string()) return std::string(*text);
    return detail::write_json(*value);
}

// Calls `use` with every record; returns how many lines are none.
template <class Function>
std::size_t read_records(const std::string& file, Function use) {
    std::ifstream in(file, std::ios::binary);
    if (!in || std::filesystem::is_directory(file))
        throw Error(errc::bad_argument, file + ": cannot be read; is it an audit log?");
    std::size_t broken = 0;
    std::string line;
    while (std::getline(in, line)) {
        if (line.empty()) continue;
        boost::system::error_code error;
        const json::value value = detail::parse_exact(line, error);
        if (!error && value.is_object() && value.get_object().contains("event"))
            use(value.get_object());
        else
            ++broken;
    }
    return broken;
}

int show(const AuditFlags& flags) {
    std::map<std::string, json::object, std::less<>> results;
    const auto broken = read_records(flags.file, [&](const json::object& record) {
        if (field(record, "event") == "result") results[field(record, "call")] = record;
    });
    const approval::Glob sessions(flags.session), tools(flags.tool);
    const auto fits = [](const approval::Glob& glob, const std::string& text) {
        std::size_t steps = approval::rule_steps;
        return glob.matches(text, steps) == approval::Fit::yes;
    };
    const bool only_calls = flags.denied || flags.tool != "*";
    read_records(flags.file, [&](const json::object& record) {
        const std::string event = field(record, "event");
        if (event == "result" || !fits(sessions, field(record, "session")) ||
            (only_calls && event != "call"))
            return;
        const std::string server = field(record, "server"), tool = field(record, "tool");
        if (event == "call" && !fits(tools, tool) && !fits(tools, server + "." + tool)) return;
        if (flags.denied && field(record, "verdict") != "deny") return;
        json::object whole = record;
        if (const auto found = results.find(field(record, "call"));
            event == "call" && found != results.end())
            for (const char* key : {"outcome", "error", "duration_ms"})
                if (const auto* value = found->second.if_contains(key)) whole[key] = *value;
        if (flags.as_json) {
            std::cout << detail::write_json(whole) << '\n';
            return;
        }
        const auto shown = [&](std::string_view key) {
            return detail::printable(field(whole, key));
        };
        std::cout << shown("time") << ' ' << shown("session") << '/' << shown("execution") << ' ';
        char milliseconds[48] = "";
        if (const auto* spent = whole.if_contains("duration_ms"); spent && spent->is_number())
            std::snprintf(milliseconds, sizeof milliseconds, " after %.1f ms",
                          spent->to_number<double>());
        if (event != "call") {
            std::cout << detail::printable(event) << ' ' << shown("code_sha256").substr(0, 16)
                      << shown("outcome") << milliseconds;
            if (whole.contains("code")) std::cout << ' ' << shown("code");
            if (const auto* approval = whole.if_contains("approval"))
                std::cout << ' ' << detail::printable(detail::write_json(*approval));
            if (whole.contains("path"))
                std::cout << ' ' << shown("path") << ", run " << shown("runs");
            if (const auto* paths = whole.if_contains("paths"))
                std::cout << ' ' << detail::printable(detail::write_json(*paths));
            std::cout << '\n';
            return;
        }
        const auto* arguments = detail::object_of(whole, "arguments");
        std::cout << shown("verdict") << ' '
                  << approval::call_text(server, tool, arguments ? *arguments : json::object())
                  << " by " << shown("by");
        if (whole.contains("expired")) std::cout << ", nobody answered";
        if (whole.contains("reason")) std::cout << ", because: " << shown("reason");
        if (whole.contains("outcome")) {
            std::cout << "; " << shown("outcome") << milliseconds;
            if (whole.contains("error")) std::cout << ": " << shown("error");
        } else if (field(whole, "verdict") == "allow") {
            std::cout << "; no result is recorded";
        }
        std::cout << '\n';
    });
    if (broken > 0)
        std::cerr << "ipybox: " << flags.file << ": " << broken
                  << (broken == 1 ? " line is no record" : " lines are no records") << '\n';
    return broken > 0 ? 1 : 0;
}

}  // namespace

void add_audit(CLI::App& app, Action& action) {
    auto flags = std::make_shared<AuditFlags>();
    auto* command = app.add_subcommand("audit", "Read an audit log");
    command->require_subcommand(1);
    auto* one =
        command->add_subcommand("show", "Executions and calls, who decided, and what came of them");
    one->footer(
        "Exit code: 0, 1 when the file holds lines that are no records, 2 when it cannot be read.");
    one->add_option("FILE", flags->file, "File that --audit of `ipybox run` writes")->required();
    one->add_option("--session", flags->session,
                    "Only sessions of this name; * and ? as in file names")
        ->type_name("GLOB");
    one->add_option("--tool", flags->tool,
                    "Only calls of this tool, as TOOL or SERVER.TOOL; * and ? as in file names")
        ->type_name("GLOB");
    one->add_flag("--denied", flags->denied, "Only calls that were denied");
    one->add_flag("--json", flags->as_json, "Print JSON lines, each call with its result");
    one->callback([&action, flags] { action = [flags] { return show(*flags); }; });
}

}  // namespace ipybox::app
