// ipybox audit: what a log says, safe to look at, and whether it is whole.
#include <fstream>
#include <iostream>
#include <ipybox/approval/audit_key.hpp>
#include <ipybox/approval/audit_verification.hpp>
#include <ipybox/approval/question_text.hpp>
#include <ipybox/config.hpp>
#include <ipybox/detail/json_members.hpp>
#include <ipybox/detail/json_number.hpp>
#include <map>
#include <memory>
#include <optional>

#include "audit_page.hpp"
#include "audit_records.hpp"
#include "commands.hpp"

namespace ipybox::app {
namespace {

struct AuditFlags {
    std::string file;
    std::string session = "*";
    std::string tool = "*";
    std::string page;
    bool denied = false;
    bool as_json = false;
};

struct VerifyFlags {
    std::vector<std::filesystem::path> files;
    AuditVerificationOptions options;
    bool as_json = false;
};

// What is wrong with lines that are no records, on standard error; the exit code.
int tell_broken(const std::string& file, std::size_t broken) {
    if (broken > 0)
        std::cerr << "ipybox: " << file << ": " << broken
                  << (broken == 1 ? " line is no record" : " lines are no records") << '\n';
    return broken > 0 ? 1 : 0;
}

int show(const AuditFlags& flags) {
    if (!flags.page.empty()) {
        if (flags.as_json || flags.denied || flags.tool != "*")
            throw Error(errc::bad_argument,
                        "--html writes whole sessions: --session chooses them; leave out --json, "
                        "--denied and --tool");
        return tell_broken(flags.file, write_audit_page(flags.file, flags.session, flags.page));
    }
    std::map<std::string, json::object, std::less<>> results;
    const auto broken = read_records(flags.file, [&](const json::object& record) {
        if (field(record, "event") == "result") results[field(record, "call")] = record;
    });
    const approval::Glob sessions(flags.session), tools(flags.tool);
    const bool only_calls = flags.denied || flags.tool != "*";
    read_records(flags.file, [&](const json::object& record) {
        const std::string event = field(record, "event");
        if (event == "result" || is_of_chain(event) || !fits(sessions, field(record, "session")) ||
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
        if (event != "call") {
            std::cout << detail::printable(event) << ' ' << shown("code_sha256").substr(0, 16)
                      << shown("outcome") << time_spent(whole);
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
                  << approval::call_text(server, tool, arguments ? *arguments : json::object());
        if (const auto* edited = detail::object_of(whole, "edited"))
            std::cout << ", edited to " << approval::call_text(server, tool, *edited);
        std::cout << " by " << shown("by");
        if (whole.contains("expired")) std::cout << ", nobody answered";
        if (whole.contains("reason")) std::cout << ", because: " << shown("reason");
        if (whole.contains("outcome")) {
            std::cout << "; " << shown("outcome") << time_spent(whole);
            if (whole.contains("error")) std::cout << ": " << shown("error");
        } else if (field(whole, "verdict") == "allow") {
            std::cout << "; no result is recorded";
        }
        std::cout << '\n';
    });
    return tell_broken(flags.file, broken);
}

int verify(const VerifyFlags& flags) {
    using Outcome = AuditVerification::Outcome;
    const auto found = verify_audit_log(flags.files, flags.options);
    const int code = found.outcome == Outcome::whole     ? 0
                     : found.outcome == Outcome::unknown ? 3
                                                         : 1;
    if (flags.as_json) {
        json::object report;
        report["outcome"] = code == 0 ? "whole" : code == 3 ? "unknown" : "changed";
        report["detail"] = found.what;
        report["notes"] = json::array(found.notes.begin(), found.notes.end());
        std::cout << detail::write_json(report) << std::endl;
        return code;
    }
    for (const auto& note : found.notes) std::cout << "note: " << note << '\n';
    std::cout << (found.outcome == Outcome::whole     ? "whole: "
                  : found.outcome == Outcome::unknown ? "not proven whole: "
                                                      : "NOT whole: ")
              << found.what << std::endl;
    return code;
}

void add_verify(CLI::App& audit, Action& action) {
    auto flags = std::make_shared<VerifyFlags>();
    auto* one = audit.add_subcommand(
        "verify", "Whether a log is what ipybox wrote, and all of it; says where it is not");
    one->footer(
        "Exit code: 0 whole, and equal to the newest head that is known; 3 what is there is right, "
        "but it ended without a closing head, or nobody knows what it has to end with; 1 changed, "
        "exchanged, removed or added; 2 it cannot be told.");
    one->add_option("FILE", flags->files,
                    "The log; of one that was rotated, its files with the oldest first")
        ->required();
    one->add_option("--key", flags->options.keys,
                    "Public key, as `ipybox audit key` prints it on the machine that wrote the "
                    "log; repeatable")
        ->type_name("FILE")
        ->allow_extra_args(false);
    one->add_option("--head", flags->options.head,
                    "File whose last line is a head of the log, as --audit-head-to sent it")
        ->type_name("FILE");
    one->add_flag("--json", flags->as_json,
                  "Print a JSON object instead of text: outcome (whole, unknown, changed), detail "
                  "and notes");
    one->callback([&action, flags] { action = [flags] { return verify(*flags); }; });
}

void add_key(CLI::App& audit, Action& action) {
    auto* one = audit.add_subcommand(
        "key", "Print the public half of the key that signs this user's logs, in PEM");
    one->callback([&action] {
        action = [] {
            std::cout << AuditKey::of(approval::audit_directory()).public_text() << std::flush;
            return 0;
        };
    });
}

}  // namespace

void add_audit(CLI::App& app, Action& action) {
    auto flags = std::make_shared<AuditFlags>();
    auto* command = app.add_subcommand("audit", "Read and verify an audit log");
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
    one->add_option("--html", flags->page,
                    "Write a page of the sessions instead, which needs nothing else: cells, calls, "
                    "who decided, what came of them")
        ->type_name("FILE");
    one->callback([&action, flags] { action = [flags] { return show(*flags); }; });
    add_verify(*command, action);
    add_key(*command, action);
}

}  // namespace ipybox::app
