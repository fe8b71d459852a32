#pragma once
// Arguments of MCP servers that named something in the directory where servers once started: the
// workspace, where code may have put what a program finds there. Now they start in an empty one.
#include <algorithm>
#include <array>
#include <boost/json/object.hpp>
#include <boost/json/string.hpp>
#include <cctype>
#include <filesystem>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/error.hpp>
#include <ipybox/log.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ipybox::detail {

// What is told about a server's arguments, and how loud.
struct ArgumentNotice {
    LogLevel level;
    std::string text;
};

// Judges the "command" and "args" of one server that has no "cwd".
class ServerArguments {
public:
    // where: the server, for messages. written: its parameters as a person wrote them, which
    // messages show. params: the same with variables replaced. workspace, former: absolute; where
    // ${WORKSPACE} is, and where servers once started.
    ServerArguments(std::string where, const boost::json::object& written,
                    boost::json::object& params, std::filesystem::path workspace,
                    std::filesystem::path former)
        : where_(std::move(where)),
          params_(params),
          workspace_(std::move(workspace)),
          former_(std::move(former)) {
        command_ = params.at("command").as_string();
        written_command_ = written.at("command").as_string();
        base_ = std::filesystem::path(command_).filename().string();
        if (const auto* args = params.if_contains("args"))
            for (const auto& arg : args->as_array()) args_.emplace_back(arg.as_string());
        if (const auto* args = written.if_contains("args"))
            for (const auto& arg : args->as_array()) written_.emplace_back(arg.as_string());
    }

    // Makes directory arguments of the well-known filesystem servers absolute in `params`, and
    // returns what a person should know. Throws Error: bad_config with the corrected line for other
    // relative paths; for programs in the workspace, which code may write, it is one that a person
    // answers for.
    std::vector<ArgumentNotice> correct() {
        const auto corrected_command = correct_command();
        const auto first_directory = after_filesystem_server();
        const auto script = script_argument();
        std::vector<ArgumentNotice> notices;
        std::vector<std::string> corrected = written_;
        std::string offender = corrected_command ? written_command_ : std::string();
        bool runs_workspace = corrected_command && corrected_command->starts_with(variable);
        std::string taken, left;
        for (std::size_t i = 0; i < args_.size(); ++i) {
            // An option's value: --flag=VALUE.
            const auto value = args_[i].starts_with('-') ? args_[i].find('=') : std::string::npos;
            const auto from = value == std::string::npos ? 0 : value + 1;
            const bool option = args_[i].starts_with('-') && from == 0;
            const std::string_view text = std::string_view(args_[i]).substr(from);
            if (i >= first_directory && from == 0 && !option && is_relative(text)) {
                corrected[i] = in_workspace(variable, written_[i]);
                params_.at("args").as_array()[i] = in_workspace(workspace_.string(), text);
                taken = written_[i];
                continue;
            }
            const auto names = option ? Names::nothing : what_it_names(text, i == script);
            if (names == Names::word) left = written_[i];
            if (names != Names::path) continue;
            const auto split = from == 0 ? std::string::npos : written_[i].find('=');
            const auto keep = split == std::string::npos ? 0 : split + 1;
            corrected[i] =
                written_[i].substr(0, keep) + corrected_path(written_[i].substr(keep), text);
            if (offender.empty()) offender = written_[i];
            const bool runs = i == script || is_script(text);
            runs_workspace =
                runs_workspace ||
                (runs && std::string_view(corrected[i]).substr(keep).starts_with(variable));
        }
        if (!offender.empty())
            throw Error(
                errc::bad_config,
                where_ + ": " + quoted(offender) +
                    " is a relative path, and servers start in an empty directory: write " +
                    (corrected_command ? "\"command\": " + quoted(*corrected_command) : "") +
                    (corrected_command && corrected != written_ ? ", " : "") +
                    (corrected != written_ || !corrected_command ? line(corrected) : "") +
                    (runs_workspace ? ", \"cwd\": \"${WORKSPACE}\", \"trust_cwd\": true if you "
                                      "answer for what "
                                      "code leaves there, or put it elsewhere"
                                    : ", or give a \"cwd\""));
        if (!taken.empty())
            notices.push_back(
                {LogLevel::warning,
                 where_ + ": " + quoted(taken) + " is taken for a directory of the workspace " +
                     workspace_.string() + ", because servers start in an empty one; write " +
                     line(corrected)});
        if (!left.empty())
            notices.push_back(
                {LogLevel::info,
                 where_ + ": the argument " + quoted(left) +
                     " is passed on as it is; if it means what has this name in the workspace, "
                     "write " +
                     quoted(in_workspace(variable, left))});
        if (const auto module = module_of_workspace(); !module.empty())
            notices.push_back(
                {LogLevel::warning,
                 where_ + ": -m " + module +
                     " is the installed module, not the one of the "
                     "workspace; for that, write \"cwd\": \"${WORKSPACE}\", \"trust_cwd\": true"});
        return notices;
    }

private:
    enum class Names { nothing, word, path };
    static constexpr const char* variable = "${WORKSPACE}";

    static bool is_relative(std::string_view text) {
        return !text.empty() && text.front() != '/' && text.front() != '~';
    }
    static bool named(std::string_view name, std::initializer_list<std::string_view> names) {
        return std::find(names.begin(), names.end(), name) != names.end();
    }
    static bool is_dotted(std::string_view text) {
        return text == "." || text == ".." || text.starts_with("./") || text.starts_with("../");
    }
    static bool is_script(std::string_view text) {
        static constexpr std::array<std::string_view, 13> suffixes = {
            ".py",  ".pyz", ".js", ".mjs", ".cjs", ".ts", ".mts",
            ".tsx", ".sh",  ".rb", ".pl",  ".php", ".jar"};
        return std::any_of(suffixes.begin(), suffixes.end(),
                           [&](std::string_view end) { return text.ends_with(end); });
    }
    static bool exists(const std::filesystem::path& path) {
        std::error_code ignored;
        return std::filesystem::exists(path, ignored);
    }
    static std::string quoted(const std::string& text) {
        return write_json(boost::json::string(text));
    }

    // Names of packages and images have slashes, too.
    bool takes_packages() const {
        return named(base_, {"npx", "npm", "pnpm", "pnpx", "yarn", "bun", "bunx", "uvx", "pipx",
                             "docker", "podman", "nerdctl"});
    }
    bool is_python() const { return base_.starts_with("python") || base_.starts_with("pypy"); }
    bool is_interpreter() const {
        return is_python() || base_.starts_with("ruby") || base_.starts_with("perl") ||
               base_.starts_with("php") ||
               named(base_, {"node", "nodejs", "bun", "deno", "bash", "dash", "ksh", "sh", "zsh"});
    }

    // The index of what an interpreter runs; past the end without.
    std::size_t script_argument() const {
        if (!is_interpreter()) return args_.size();
        for (std::size_t i = 0; i < args_.size(); ++i) {
            if (named(args_[i], {"-m", "-c", "-e", "-p", "--eval", "--print"})) return args_.size();
            if (args_[i].starts_with('-') || (i == 0 && args_[i] == "run")) continue;
            return i;
        }
        return args_.size();
    }

    // The NAME of `python -m NAME` if the workspace has such a module; empty otherwise.
    std::string module_of_workspace() const {
        if (!is_python()) return {};
        const auto option = std::find(args_.begin(), args_.end(), "-m");
        if (option == args_.end() || option + 1 == args_.end()) return {};
        auto path = option[1];
        std::replace(path.begin(), path.end(), '.', '/');
        if (!exists(former_ / (path + ".py")) && !exists(former_ / path / "__main__.py")) return {};
        return written_[static_cast<std::size_t>(option + 1 - args_.begin())];
    }

    // Where the directory arguments of a well-known filesystem server begin; past the end without.
    std::size_t after_filesystem_server() const {
        const auto known = [](std::string_view text) {
            static constexpr std::string_view package = "@modelcontextprotocol/server-filesystem";
            return text == package || text.starts_with(std::string(package) + "@") ||
                   text.ends_with(std::string(package) + "/dist/index.js") ||
                   std::filesystem::path(text).filename() == "mcp-server-filesystem";
        };
        if (known(command_)) return 0;
        const auto server = std::find_if(args_.begin(), args_.end(), known);
        return static_cast<std::size_t>(server - args_.begin()) + 1;
    }

    Names what_it_names(std::string_view text, bool script) const {
        if (!is_relative(text) || text.front() == '@' || text.find("://") != text.npos)
            return Names::nothing;
        if (is_dotted(text)) return Names::path;
        if (!exists(workspace_ / text) && !exists(former_ / text)) return Names::nothing;
        const bool path = text.find('/') != text.npos && !takes_packages();
        return path || script || is_script(text) ? Names::path : Names::word;
    }

    static std::string in_workspace(const std::string& start, std::string_view text) {
        while (text.starts_with("./")) text.remove_prefix(2);
        return text.empty() || text == "." ? start : start + "/" + std::string(text);
    }
    // written: how `text` came to be.
    std::string corrected_path(const std::string& written, std::string_view text) const {
        const bool elsewhere = !exists(workspace_ / text) && exists(former_ / text);
        return in_workspace(elsewhere ? former_.string() : variable, written);
    }
    std::optional<std::string> correct_command() const {
        if (!is_relative(command_) || command_.find('/') == std::string::npos) return std::nullopt;
        return corrected_path(written_command_, command_);
    }
    static std::string line(const std::vector<std::string>& args) {
        std::string text = "\"args\": [";
        for (std::size_t i = 0; i < args.size(); ++i)
            text += (i == 0 ? "" : ", ") + quoted(args[i]);
        return text + "]";
    }

    std::string where_;
    boost::json::object& params_;
    std::filesystem::path workspace_, former_;
    std::string command_, written_command_, base_;
    std::vector<std::string> args_, written_;
};

}  // namespace ipybox::detail
