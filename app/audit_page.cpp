// A page of sessions: cells, calls, who decided, what came of them. It needs no script and nothing
// from elsewhere, and shows what others wrote as text in which nothing is hidden.
#include "audit_page.hpp"

#include <fcntl.h>

#include <algorithm>
#include <ipybox/approval/audit_verification.hpp>
#include <ipybox/approval/question_text.hpp>
#include <ipybox/detail/beneath.hpp>
#include <ipybox/detail/json_members.hpp>
#include <map>
#include <vector>

#include "audit_records.hpp"

namespace ipybox::app {
namespace {

constexpr std::string_view page_style = R"(
:root{color-scheme:light dark;--line:#8884;--soft:#8881;--yes:#1a7f37;--no:#b42318;--dim:#667085}
@media(prefers-color-scheme:dark){:root{--yes:#4ac26b;--no:#ff7b72;--dim:#98a2b3}}
body{font:15px/1.5 system-ui,sans-serif;max-width:64rem;margin:0 auto;padding:1rem}
h1{font-size:1.4rem}h2{font-size:1.15rem;margin-top:2rem;border-bottom:1px solid var(--line)}
h3{font-size:1rem;margin:0}
article,.call{border:1px solid var(--line);border-radius:6px;padding:.6rem .8rem;margin:.8rem 0}
.call{background:var(--soft);border-left:4px solid var(--yes)}.call.deny{border-left-color:var(--no)}
pre,code,td{font-family:ui-monospace,monospace;font-size:.87rem;overflow-wrap:anywhere}
pre{white-space:pre-wrap;background:var(--soft);padding:.5rem;border-radius:4px;margin:.5rem 0}
table{border-collapse:collapse;width:100%}td,th{text-align:left;vertical-align:top;padding:.15rem .5rem .15rem 0}
th{font-weight:600;white-space:nowrap;width:1%}h3 .dim{font-weight:400}summary{cursor:pointer}
.dim{color:var(--dim)}.allow{color:var(--yes);font-weight:600}.deny>p .verdict,.fault{color:var(--no);font-weight:600}
p{margin:.3rem 0}.status{border:1px solid var(--line);border-radius:6px;padding:.5rem .8rem}
@media print{article,.call{break-inside:avoid}}
)";

std::string escaped(std::string_view text) {
    std::string result;
    for (const char c : text) {
        switch (c) {
            case '&':
                result += "&amp;";
                break;
            case '<':
                result += "&lt;";
                break;
            case '>':
                result += "&gt;";
                break;
            case '"':
                result += "&quot;";
                break;
            case '\'':
                result += "&#39;";
                break;
            default:
                result += c;
        }
    }
    return result;
}

std::string shown(std::string_view text) { return escaped(detail::printable(text)); }

// Lines stay lines; whatever else moves, hides or reorders text is an escape.
std::string shown_lines(std::string_view text) {
    std::string result;
    while (!text.empty()) {
        const auto end = text.find('\n');
        result += shown(text.substr(0, end));
        if (end == text.npos) break;
        result += '\n';
        text.remove_prefix(end + 1);
    }
    return result;
}

// A value of an argument, whole: a long text lies in a fold.
std::string value_cell(const json::value& value) {
    constexpr std::size_t longest = 300;
    if (!detail::is_text(value)) {
        const auto text = detail::write_json(value);
        if (text.size() <= longest) return shown(text);
        return "<details><summary>" + std::to_string(text.size()) +
               " bytes of JSON</summary><pre>" + shown(text) + "</pre></details>";
    }
    const std::string_view text = value.get_string();
    if (text.size() <= longest && text.find('\n') == text.npos)
        return escaped(approval::quoted(text));
    return "<details><summary>" +
           escaped(approval::quoted(text.substr(0, detail::utf8_border(text, 80)))) + " … " +
           std::to_string(text.size()) + " bytes</summary><pre>" + shown_lines(text) +
           "</pre></details>";
}

// What a tool answered: its texts as texts, everything else as JSON.
std::string answer_html(const json::value& value) {
    const auto* blocks = value.if_array();
    std::string html;
    for (const auto& block : blocks ? *blocks : json::array{value}) {
        const auto* object = block.if_object();
        const auto* text = object ? detail::find_string(*object, "text") : nullptr;
        const bool only_text = text != nullptr && object->size() == 2;
        html += "<p><span class=\"dim\">answered</span> " +
                value_cell(only_text ? json::value(*text) : block) + "</p>";
    }
    return html;
}

// What a log tells of one session, in its order.
struct PageSession {
    std::vector<json::object> records;
    // By the execution's id; there is an entry for each execution.
    std::map<std::string, std::vector<json::object>, std::less<>> calls;
    std::map<std::string, json::object, std::less<>> results;  // by the call's id
    std::map<std::string, json::object, std::less<>> ends;     // by the execution's id
};

// The arguments under a key of a call's record.
std::string arguments_html(const json::object& call, const char* key) {
    const auto* arguments = detail::object_of(call, key);
    if (!arguments) {
        const auto* other = call.if_contains(key);
        return other ? "<p>" + value_cell(*other) + "</p>"
                     : std::string("<p class=\"dim\">no arguments</p>");
    }
    if (arguments->empty()) return "<p class=\"dim\">no arguments</p>";
    std::string html = "<table>";
    for (const auto& entry : *arguments)
        html += "<tr><th scope=\"row\">" + escaped(approval::plain_name(entry.key())) +
                "</th><td>" + value_cell(entry.value()) + "</td></tr>";
    return html + "</table>";
}

std::string call_html(const json::object& call, const PageSession& session) {
    const bool allowed = field(call, "verdict") == "allow";
    std::string html = allowed ? "<div class=\"call\">" : "<div class=\"call deny\">";
    html += "<h3><code>" +
            escaped(approval::plain_name(field(call, "server")) + "." +
                    approval::plain_name(field(call, "tool"))) +
            "</code>";
    if (const auto origin = field(call, "origin"); origin != "mcp")
        html += " <span class=\"dim\">" + shown(origin) + "</span>";
    html += "</h3>";
    html += arguments_html(call, "arguments");
    if (call.contains("edited"))
        html += "<p class=\"dim\">carried out with, as a person edited it:</p>" +
                arguments_html(call, "edited");
    html += "<p><span class=\"verdict" + std::string(allowed ? " allow" : "") + "\">" +
            (allowed ? "allowed" : "denied") + "</span> by " + shown(field(call, "by")) +
            " <span class=\"dim\">at " + shown(field(call, "time")) + "</span>";
    if (call.contains("expired")) html += ", nobody answered";
    if (call.contains("reason")) html += ": " + escaped(approval::quoted(field(call, "reason")));
    html += "</p>";
    const auto found = session.results.find(field(call, "call"));
    if (found != session.results.end()) {
        const auto& result = found->second;
        html += "<p>" + shown(field(result, "outcome")) + time_spent(result);
        if (result.contains("error"))
            html += ": <span class=\"fault\">" + escaped(approval::quoted(field(result, "error"))) +
                    "</span>";
        html += "</p>";
        for (const char* key : {"content", "structured"})
            if (const auto* value = result.if_contains(key)) html += answer_html(*value);
    } else if (allowed) {
        html += "<p class=\"fault\">no result is recorded: the program ended before</p>";
    }
    return html + "</div>\n";
}

std::string cell_html(const json::object& execution, const PageSession& session) {
    const auto id = field(execution, "execution");
    std::string html = "<article><h3>Cell <code>" + shown(id) + "</code> <span class=\"dim\">" +
                       shown(field(execution, "time")) + "</span></h3>";
    if (execution.contains("code"))
        html += "<pre>" + shown_lines(field(execution, "code")) + "</pre>";
    html += "<p class=\"dim\">sha256 of the code <code>" + shown(field(execution, "code_sha256")) +
            "</code></p>";
    if (const auto calls = session.calls.find(id); calls != session.calls.end())
        for (const auto& call : calls->second) html += call_html(call, session);
    const auto end = session.ends.find(id);
    html += end == session.ends.end()
                ? "<p class=\"fault\">no end is recorded: the program ended before</p>"
                : "<p>" + shown(field(end->second, "outcome")) + time_spent(end->second) + "</p>";
    return html + "</article>\n";
}

// Any other event: its members as they are.
std::string other_html(const json::object& record) {
    std::string html = "<article><h3>" + shown(field(record, "event")) + " <span class=\"dim\">" +
                       shown(field(record, "time")) + "</span></h3><table>";
    for (const auto& entry : record) {
        const std::string_view key = entry.key();
        if (key == "seq" || key == "prev" || key == "time" || key == "event" || key == "session")
            continue;
        html += "<tr><th scope=\"row\">" + escaped(approval::plain_name(key)) + "</th><td>" +
                value_cell(entry.value()) + "</td></tr>";
    }
    return html + "</table></article>\n";
}

std::string session_html(const std::string& name, const PageSession& session) {
    std::string html = "<section><h2>Session " + escaped(approval::plain_name(name)) + "</h2>\n";
    for (const auto& record : session.records) {
        const auto event = field(record, "event");
        html += event == "execution" ? cell_html(record, session)
                : event == "call"    ? call_html(record, session)
                                     : other_html(record);
    }
    return html + "</section>\n";
}

// What verification says of the log, which is a part of the page: who reads it should not have to
// trust it unseen.
std::string status_html(const std::string& log) {
    using Outcome = AuditVerification::Outcome;
    const auto found = verify_audit_log({log});
    std::string html = "<div class=\"status\" role=\"note\"><p><b>";
    html += found.outcome == Outcome::whole ? "The log is whole: "
            : found.outcome == Outcome::unknown
                ? "The log is not proven whole: "
                : "<span class=\"fault\">The log is NOT whole:</span> ";
    html += "</b>" + escaped(found.what) + "</p>";
    for (const auto& note : found.notes) html += "<p class=\"dim\">" + escaped(note) + "</p>";
    return html + "</div>\n";
}

}  // namespace

std::size_t write_audit_page(const std::string& log, const std::string& sessions,
                             const std::string& page) {
    const approval::Glob glob(sessions);
    std::map<std::string, PageSession> found;
    std::vector<std::string> order;
    const auto broken = read_records(log, [&](const json::object& record) {
        const auto event = field(record, "event"), name = field(record, "session");
        if (is_of_chain(event) || !fits(glob, name)) return;
        if (!found.contains(name)) order.push_back(name);
        auto& session = found[name];
        if (event == "result")
            session.results[field(record, "call")] = record;
        else if (event == "execution_end")
            session.ends[field(record, "execution")] = record;
        else if (const auto cell = session.calls.find(field(record, "execution"));
                 event == "call" && cell != session.calls.end())
            cell->second.push_back(record);
        else
            session.records.push_back(record);
        if (event == "execution") session.calls[field(record, "execution")];
    });
    if (order.empty())
        throw Error(errc::bad_argument,
                    log + ": has no session" +
                        (sessions == "*" ? std::string() : " whose name matches " + sessions));
    std::string html =
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
        "style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'\">"
        "<meta name=\"viewport\" content=\"width=device-width\"><title>Audit log " +
        shown(log) + "</title><style>" + std::string(page_style) +
        "</style></head><body><h1>Audit log <code>" + shown(log) + "</code></h1>\n" +
        status_html(log);
    for (const auto& name : order) html += session_html(name, found[name]);
    html += "</body></html>\n";
    // It has what the log has, which only its owner can read.
    const UniqueFd out(::open(page.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    if (!out) detail::throw_io_error(page);
    detail::write_all(out.get(), html, page);
    return broken;
}

}  // namespace ipybox::app
