#pragma once
// What a person answered "always": rules in a file of theirs, outside the reach of the code.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <ipybox/approval/rules.hpp>
#include <ipybox/approval_policy.hpp>
#include <ipybox/config.hpp>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/detail/unique_fd.hpp>
#include <string>
#include <utility>

namespace ipybox {

// The rule that allows such calls from now on: of an MCP tool whatever the arguments, of anything
// else (shell commands, packages, servers) this one call only.
inline json::object rule_allowing(const ToolCall& call) {
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

// What the rules of a policy look at; refers to the call.
inline approval::CallFacts facts_of(const ToolCall& call) {
    return {call.server,           call.tool,       to_string(call.origin), call.session,
            call.sent_arguments(), call.annotations};
}

// The file {"rules": [...]}, read again for every question; several processes may share it.
class RememberedRules {
public:
    RememberedRules() : RememberedRules(standard_file()) {}
    // Empty: nothing is remembered, nothing can be.
    explicit RememberedRules(std::filesystem::path file) : file_(std::move(file)) {}

    // always.json in ipybox's directory of $XDG_CONFIG_HOME or ~/.config; empty without either.
    static std::filesystem::path standard_file() {
        const auto directory = config::config_directory();
        return directory.empty() ? directory : directory / "always.json";
    }
    const std::filesystem::path& file() const noexcept { return file_; }

    // Whether one of the rules allows the call. Throws Error: bad_config (a mistake in the file, or
    // others can write it), bad_argument (it cannot be read).
    bool allow(const ToolCall& call) const {
        const auto list = read();
        if (list.empty()) return false;
        approval::RuleSet rules(list, file_.string() + ", rules");
        const auto found = rules.judge(facts_of(call), std::chrono::system_clock::now(),
                                       std::chrono::steady_clock::now());
        return found.effect == approval::Rule::Effect::allow;
    }

    // Adds the rule that allows such calls. Throws Error: io_error (the file cannot be replaced),
    // and what allow() throws.
    void add(const ToolCall& call) const {
        if (file_.empty())
            throw Error(errc::io_error,
                        "no place to remember rules: neither XDG_CONFIG_HOME nor HOME is set");
        std::error_code error;
        const auto directory = file_.parent_path();
        std::filesystem::create_directories(directory.parent_path(), error);
        if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) fail(directory);
        const UniqueFd lock(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        if (!lock || ::flock(lock.get(), LOCK_EX) != 0) fail(directory);
        json::array list = read();
        list.push_back(rule_allowing(call));
        json::object whole;
        whole["rules"] = std::move(list);
        replace(detail::write_json(whole) + '\n');
    }

private:
    [[noreturn]] static void fail(const std::filesystem::path& path) {
        throw Error(errc::io_error, path.string() + ": " + std::strerror(errno));
    }

    json::array read() const {
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
        if (!list->get_array().empty()) approval::RuleSet(*list, file_.string() + ", rules");
        return list->get_array();
    }

    void replace(const std::string& text) const {
        const std::string fresh = file_.string() + ".new";
        ::unlink(fresh.c_str());
        const UniqueFd out(
            ::open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
        if (!out ||
            ::write(out.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
            ::fsync(out.get()) != 0 || ::rename(fresh.c_str(), file_.c_str()) != 0)
            fail(file_);
    }

    std::filesystem::path file_;
};

}  // namespace ipybox
