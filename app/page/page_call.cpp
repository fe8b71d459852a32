#include "page_call.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cctype>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <initializer_list>
#include <ipybox/approval/remembered_rules.hpp>
#include <ipybox/detail/beneath.hpp>
#include <ipybox/detail/json_members.hpp>
#include <ipybox/detail/json_text.hpp>
#include <ipybox/detail/unique_fd.hpp>
#include <ipybox/detail/utc_time.hpp>
#include <ipybox/detail/utf8.hpp>
#include <optional>

namespace ipybox::app {
namespace {

namespace fs = std::filesystem;
using Names = std::initializer_list<std::string_view>;

const json::string* first_text(const json::object& arguments, Names names) {
    for (const auto name : names)
        if (const auto* value = arguments.if_contains(name); value && detail::is_text(*value))
            return &value->get_string();
    return nullptr;
}

bool writes(std::string_view tool) {
    std::string name(tool);
    for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    for (const char* word : {"write", "create", "save", "edit", "replace", "update", "append"})
        if (name.find(word) != name.npos) return true;
    return false;
}

struct FileText {
    std::optional<std::string> text;  // absent: there is no such file
    std::string problem;
};

// Of a path that code chose: opening a device may already do something, and a pipe waits.
FileText read_file(const std::string& path) {
    const UniqueFd place(::open(path.c_str(), O_PATH | O_CLOEXEC));
    if (!place && errno == ENOENT) return {};
    struct stat status{};
    struct statfs around{};
    if (!place || ::fstat(place.get(), &status) != 0 || ::fstatfs(place.get(), &around) != 0)
        return {std::nullopt, std::string("it cannot be read: ") + std::strerror(errno)};
    if (!S_ISREG(status.st_mode) || around.f_type == PROC_SUPER_MAGIC ||
        around.f_type == SYSFS_MAGIC)
        return {std::nullopt, "it is no ordinary file"};
    const auto again = "/proc/self/fd/" + std::to_string(place.get());
    const UniqueFd file(::open(again.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    std::string why;
    auto text = detail::read_regular(file, max_file_shown, why);
    if (!text) return {std::nullopt, "it cannot be compared: " + why};
    if (!detail::is_utf8(*text) || text->find('\0') != text->npos)
        return {std::nullopt, "it is no text"};
    return {std::move(text), {}};
}

// Replaces the one place of `old`; a problem otherwise.
std::string replace_once(std::string& text, std::string_view old, std::string_view fresh) {
    const auto at = old.empty() ? text.npos : text.find(old);
    if (at == text.npos) return "what is to be replaced is not in the file";
    if (text.find(old, at + 1) != text.npos)
        return "what is to be replaced is in the file more than once";
    text.replace(at, old.size(), fresh);
    return {};
}

// Applies what the arguments say; nothing if they say nothing of a file's text.
bool apply(const json::object& arguments, std::string& text, std::string& problem) {
    const auto edit = [&](const json::object& one) {
        const auto* old =
            first_text(one, {"oldText", "old_text", "old_string", "old_str", "search", "old"});
        const auto* fresh =
            first_text(one, {"newText", "new_text", "new_string", "new_str", "replace", "new"});
        if (!old || !fresh) return false;
        if (problem.empty()) problem = replace_once(text, *old, *fresh);
        return true;
    };
    if (const auto* edits = arguments.if_contains("edits"); edits && edits->is_array()) {
        bool any = false;
        for (const auto& one : edits->get_array())
            if (const auto* object = one.if_object()) any |= edit(*object);
        return any;
    }
    if (edit(arguments)) return true;
    const auto* whole = first_text(
        arguments, {"content", "contents", "text", "file_text", "new_content", "data", "body"});
    if (!whole) return false;
    text = *whole;
    return true;
}

[[noreturn]] void refuse(const std::string& why) { throw Error(errc::bad_argument, why); }

}  // namespace

json::array shown_arguments(const json::object& sent) {
    json::array list;
    for (const auto& [name, value] : sent) {
        json::object one;
        one["name"] = name;
        one["json"] = detail::write_json(value);
        if (detail::is_text(value)) one["text"] = value;
        list.emplace_back(std::move(one));
    }
    return list;
}

json::value file_change(const ToolCall& call) {
    if (call.origin != CallOrigin::mcp || !writes(call.tool)) return nullptr;
    const auto& arguments = call.sent_arguments();
    const auto* path =
        first_text(arguments, {"path", "file_path", "filepath", "filename", "file", "target_file"});
    if (!path) return nullptr;
    std::string after, problem;
    if (!apply(arguments, after, problem)) return nullptr;
    json::object shown;
    shown["path"] = *path;
    shown["before"] = nullptr;
    shown["after"] = nullptr;
    const auto say = [&shown](std::string why) {
        shown["problem"] = std::move(why);
        return json::value(std::move(shown));
    };
    const std::string name(*path);
    if (call.server_identity.find("://") != std::string::npos &&
        call.server_identity.find(' ') == std::string::npos)
        return say("the server runs elsewhere, so that its files cannot be compared here");
    if (!name.starts_with('/')) return say("the path is relative: only the server knows where to");
    auto file = read_file(name);
    if (!file.problem.empty()) return say(file.problem);
    std::error_code failed;
    if (const auto real = fs::weakly_canonical(name, failed); !failed && real != name)
        shown["leads_to"] = detail::repair_utf8(real.string());
    after = file.text.value_or("");
    problem.clear();
    apply(arguments, after, problem);
    if (file.text) shown["before"] = *file.text;
    shown["after"] = after;
    return say(problem);
}

json::object shown_call(const ToolCall& call) {
    json::object shown;
    shown["id"] = call.id;
    shown["session"] = call.session;
    shown["execution"] = call.execution;
    shown["origin"] = to_string(call.origin);
    shown["server"] = call.server;
    shown["identity"] = call.server_identity;
    shown["tool"] = call.tool;
    shown["description"] = call.description;
    json::object hints;
    for (const char* name : {"readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"})
        if (const auto* hint = call.annotations.if_contains(name); hint && hint->is_bool())
            hints[name] = *hint;
    shown["hints"] = std::move(hints);
    shown["arguments"] = shown_arguments(call.sent_arguments());
    shown["schema"] = *call.input_schema;
    shown["line"] = nullptr;
    if (call.line > 0) shown["line"] = call.line;
    return shown;
}

PageGrant read_grant(const ToolCall& call, const json::object& grant) {
    for (const auto& entry : grant)
        if (entry.key() != "scope" && entry.key() != "lasts" && entry.key() != "hours" &&
            entry.key() != "conditions")
            refuse("grant: unknown key \"" + std::string(entry.key()) +
                   "\"; accepted: scope, lasts, hours, conditions");
    const auto scope = detail::string_of(grant, "scope"), lasts = detail::string_of(grant, "lasts");
    PageGrant made;
    std::string what;
    auto& rule = made.rule;
    if (scope == "arguments") {
        rule = rule_allowing_arguments(call);
        what = "these arguments";
    } else if (call.origin != CallOrigin::mcp && scope != "like") {
        refuse(
            "grant/scope: what is no tool of an MCP server can be allowed by its arguments only");
    } else if (scope == "tool") {
        rule = rule_allowing(call);
        what = "this tool";
    } else if (scope == "server") {
        rule = rule_allowing_server(call);
        what = "this server";
    } else if (scope == "like") {
        const auto* conditions = detail::object_of(grant, "conditions");
        if (!conditions || conditions->empty())
            refuse("grant/conditions: an object with at least one argument");
        rule = rule_allowing(call);
        rule["when"].as_object().erase("schema");
        rule["when"].as_object()["arguments"] = *conditions;
        what = "arguments like these";
    } else {
        refuse("grant/scope: arguments, like, tool or server");
    }
    using Kind = GrantLifetime::Kind;
    if (lasts == "cell") {
        made.lifetime.kind = Kind::cell;
        if (call.execution.empty()) refuse("grant/lasts: no cell makes this call");
    } else if (lasts == "session") {
        made.lifetime.kind = Kind::session;
    } else if (lasts == "always") {
        made.lifetime.kind = Kind::always;
    } else {
        refuse("grant/lasts: cell, session or always");
    }
    made.by = "page: " + what + ", " +
              (lasts == "cell"      ? "for the cell"
               : lasts == "session" ? "for the session"
                                    : "always");
    if (const auto* hours = grant.if_contains("hours"); hours && !hours->is_null()) {
        const double count = detail::is_number(*hours) ? detail::to_double(*hours) : 0;
        if (!(count > 0 && count <= 24 * 366)) refuse("grant/hours: more than 0, at most 8784");
        made.lifetime.until =
            std::chrono::system_clock::now() + std::chrono::seconds(std::llround(count * 3600));
        made.by += " until " + detail::utc_time(*made.lifetime.until);
    }
    return made;
}

}  // namespace ipybox::app
