#pragma once
#include <ipybox/approval/remembered_rules.hpp>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ipybox/compilation.hpp>
#include <ipybox/detail/json_members.hpp>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/detail/unique_fd.hpp>
#include <ipybox/detail/utc_time.hpp>

namespace ipybox::approval {

// What is refused when the file of remembered rules cannot be used.
[[noreturn]] inline void fail_at(const std::filesystem::path& path) {
    throw Error(errc::io_error, path.string() + ": " + std::strerror(errno));
}

// A rule of the file without what only the file has.
inline json::object plain_rule(const json::object& written) {
    json::object rule = written;
    rule.erase("granted");
    return rule;
}

// Whether a rule allows the same of the same server, or did so before servers were told apart.
inline bool takes_place_of(const json::object& fresh, const json::object& old) {
    const auto text = [](const json::object& rule, const char* key) {
        const auto* value = rule.if_contains(key);
        return value ? detail::write_json(*value) : std::string();
    };
    for (const char* key : {"when", "then"})
        if (text(fresh, key) != text(old, key)) return false;
    const auto* granted = detail::object_of(old, "granted");
    return !old.contains("name") &&
           (!granted ||
            text(*granted, "server") == text(fresh.at("granted").as_object(), "server"));
}

}  // namespace ipybox::approval

namespace ipybox {

IPYBOX_DECL json::object rule_allowing_arguments(const ToolCall& call) {
    json::object rule = rule_allowing(call), same;
    same["const"] = call.sent_arguments();
    rule["when"].as_object()["schema"] = std::move(same);
    return rule;
}

IPYBOX_DECL json::object rule_allowing_server(const ToolCall& call) {
    json::object rule = rule_allowing(call);
    if (call.origin == CallOrigin::mcp) rule["when"].as_object().erase("tool");
    return rule;
}

IPYBOX_DECL json::object rule_allowing(const ToolCall& call) {
    json::object when, rule;
    when["server"] = approval::Glob::quoted(call.server);
    when["tool"] = approval::Glob::quoted(call.tool);
    when["origin"] = to_string(call.origin);
    if (call.origin != CallOrigin::mcp) {
        json::object same;
        same["const"] = call.sent_arguments();
        when["schema"] = std::move(same);
    }
    rule["when"] = std::move(when);
    rule["then"] = "allow";
    return rule;
}

IPYBOX_DECL std::string why_stale(const RememberedRule& one, approval::Rule::Wall now) {
    if (one.rule.expires() && *one.rule.expires() <= now) return "expired";
    if (one.binding || one.rule.effect() != approval::Rule::Effect::allow) return {};
    const auto* when = detail::object_of(one.written, "when");
    const auto* origin = when ? when->if_contains("origin") : nullptr;
    bool tools = origin == nullptr;  // it may be about them
    if (origin)
        for (const auto& pattern : approval::rule_texts(*origin, "origin")) {
            std::size_t steps = approval::rule_steps;
            tools = tools || approval::Glob(pattern).matches(to_string(CallOrigin::mcp), steps) !=
                                 approval::Fit::no;
        }
    return tools ? "it does not say what server and tools it was made for, so tools are asked about"
                 : "";
}

IPYBOX_DECL std::vector<RememberedRule> RememberedRules::list() const {
    const json::array all = read();
    std::vector<RememberedRule> result;
    if (all.empty()) return result;
    const std::string place = file_.string() + ", rules";
    json::array plain;
    for (const auto& entry : all)
        plain.push_back(entry.is_object() ? json::value(approval::plain_rule(entry.get_object()))
                                          : entry);
    const approval::RuleSet rules(plain, place);
    for (std::size_t i = 0; i < all.size(); ++i) {
        const auto& written = all[i].get_object();
        RememberedRule one{rules.rules()[i], {}, {}, written};
        if (const auto* granted = written.if_contains("granted")) {
            const auto where =
                approval::below(approval::below(place, std::to_string(i)), "granted");
            json::object what =
                approval::rule_object(*granted, where, {"since", "server", "tools"});
            one.since = detail::string_of(what, "since");
            what.erase("since");
            one.binding = approval::ToolBinding::read(what, where);
        }
        result.push_back(std::move(one));
    }
    return result;
}

IPYBOX_DECL void RememberedRules::add(json::object rule,
                                      const approval::ToolBinding& binding) const {
    json::object granted = binding.to_json();
    granted["since"] = detail::utc_time(std::chrono::system_clock::now());
    rule["granted"] = std::move(granted);
    change([&rule](json::array& all) {
        all.erase(std::remove_if(all.begin(), all.end(),
                                 [&rule](const json::value& old) {
                                     return approval::takes_place_of(rule, old.get_object());
                                 }),
                  all.end());
        all.push_back(rule);
    });
}

IPYBOX_DECL void RememberedRules::forget(const std::vector<std::size_t>& numbers) const {
    change([&](json::array& all) {
        json::array kept;
        for (const auto number : numbers)
            if (number < 1 || number > all.size())
                throw Error(errc::bad_argument, file_.string() + " has no rule " +
                                                    std::to_string(number) + ", but " +
                                                    std::to_string(all.size()));
        for (std::size_t i = 0; i < all.size(); ++i)
            if (std::find(numbers.begin(), numbers.end(), i + 1) == numbers.end())
                kept.push_back(all[i]);
        all = std::move(kept);
    });
}

IPYBOX_DECL void RememberedRules::change(const std::function<void(json::array&)>& edit) const {
    if (file_.empty())
        throw Error(errc::io_error,
                    "no place to remember rules: neither XDG_CONFIG_HOME nor HOME is set");
    std::error_code error;
    const auto directory = file_.parent_path();
    std::filesystem::create_directories(directory.parent_path(), error);
    if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) approval::fail_at(directory);
    const UniqueFd lock(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!lock || ::flock(lock.get(), LOCK_EX) != 0) approval::fail_at(directory);
    list();  // a file with a mistake is not written over
    json::array all = read();
    edit(all);
    json::object whole;
    whole["rules"] = std::move(all);
    replace(detail::write_json(whole) + '\n');
}

IPYBOX_DECL json::array RememberedRules::read() const {
    struct stat status{};
    if (file_.empty() || (::lstat(file_.c_str(), &status) != 0 && errno == ENOENT)) return {};
    if (!S_ISREG(status.st_mode) || (status.st_mode & 0022) != 0 ||
        (status.st_uid != ::geteuid() && status.st_uid != 0))
        throw Error(errc::bad_config,
                    file_.string() + ": must be a file that only you can write; chmod 600 it");
    const std::string place = file_.string();
    const auto value = parse_json(read_text_file(file_), place, Numbers::exact);
    const auto& object = approval::rule_object(value, place, {"rules"});
    const auto* list = object.if_contains("rules");
    if (!list || !list->is_array())
        throw Error(errc::bad_config, file_.string() + ", rules: must be an array");
    return list->get_array();
}

IPYBOX_DECL void RememberedRules::replace(const std::string& text) const {
    const std::string fresh = file_.string() + ".new";
    ::unlink(fresh.c_str());
    const UniqueFd out(
        ::open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!out || ::write(out.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
        ::fsync(out.get()) != 0 || ::rename(fresh.c_str(), file_.c_str()) != 0)
        approval::fail_at(file_);
}

}  // namespace ipybox
