#pragma once
#include <ipybox/sandbox_kit/program_judgement.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <ipybox/compilation.hpp>
#include <ipybox/detail/within.hpp>

namespace ipybox::sandbox_kit {

IPYBOX_DECL std::vector<std::string> shebang(const std::filesystem::path& file) {
    std::array<char, 256> start{};
    std::error_code ignored;
    if (!std::filesystem::is_regular_file(file, ignored)) return {};
    const UniqueFd handle(::open(file.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    const auto count = handle ? ::read(handle.get(), start.data(), start.size()) : -1;
    if (count < 3 || start[0] != '#' || start[1] != '!') return {};
    std::string_view line(start.data() + 2, static_cast<std::size_t>(count) - 2);
    line = line.substr(0, line.find('\n'));
    std::vector<std::string> words;
    while (!line.empty()) {
        const auto from = line.find_first_not_of(" \t\r");
        if (from == line.npos) break;
        const auto to = std::min(line.find_first_of(" \t\r", from), line.size());
        words.emplace_back(line.substr(from, to - from));
        line.remove_prefix(to);
    }
    return words;
}

IPYBOX_DECL ProgramJudgement::ProgramJudgement(const WritablePlaces& places,
                                               const std::vector<std::string>& argv,
                                               const std::map<std::string, std::string>& env,
                                               std::filesystem::path cwd, bool trust_cwd,
                                               std::string_view remedy)
    : places_(places), argv_(argv), env_(env), cwd_(std::move(cwd)), remedy_(remedy) {
    if (trust_cwd) trusted_ = places_.holds(cwd_);
    trusts_ = trust_cwd;
}

IPYBOX_DECL std::optional<std::string> ProgramJudgement::problem() {
    look_at("its cwd", cwd_);
    look_at_program("its command", argv_.front(), 0);
    look_at_arguments(argv_.front(), 1);
    look_at_environment();
    return std::move(problem_);
}

IPYBOX_DECL void ProgramJudgement::look_at(const std::string& what,
                                           const std::filesystem::path& path) {
    if (problem_) return;
    const auto place = places_.holds(path);
    if (!place || (trusts_ && (place == trusted_ ||
                               detail::within(path.lexically_normal(), cwd_.lexically_normal()))))
        return;
    problem_ = what + " " + path.string() + " lies where code in a sandbox could write (" +
               place->string() + "): ";
    if (!remedy_.empty()) {
        *problem_ += remedy_;
        return;
    }
    *problem_ += what.starts_with("the entry")
                     ? "take it out, or give the server another value by \"env\""
                     : "put it elsewhere, confine the server by \"sandbox\"";
    *problem_ += ", or write \"cwd\": \"" + place->string() +
                 "\", \"trust_cwd\": true if you answer for what lies there";
}

IPYBOX_DECL void ProgramJudgement::look_at_program(const std::string& what,
                                                   const std::filesystem::path& file, int depth) {
    look_at(what, file);
    for (const auto& path : environment_files(file))
        look_at("the virtual environment of " + file.string() + ",", path);
    const auto words = depth < 4 ? shebang(file) : std::vector<std::string>();
    if (problem_ || words.empty()) return;
    look_at_directory(file);
    if (std::filesystem::path(words.front()).filename() != "env") {
        look_at_program("the interpreter of " + file.string() + ",", (cwd_ / words.front()),
                        depth + 1);
        return;
    }
    look_at("the interpreter of " + file.string() + ",", cwd_ / words.front());
    for (std::size_t i = 1; i < words.size(); ++i) {
        if (words[i].starts_with('-') || words[i].find('=') != std::string::npos) continue;
        if (const auto found = find_program(words[i], path_variable(), Trust::named))
            look_at_program("the interpreter of " + file.string() + ",", *found, depth + 1);
        return;
    }
}

IPYBOX_DECL void ProgramJudgement::look_at_directory(const std::filesystem::path& script) {
    std::error_code error;
    look_at("the directory of the script " + script.filename().string() + ",",
            script.parent_path());
    const auto real = std::filesystem::canonical(script, error);
    if (!error)
        look_at("the directory of the script " + script.filename().string() + ",",
                real.parent_path());
}

IPYBOX_DECL void ProgramJudgement::look_at_arguments(const std::filesystem::path& program,
                                                     std::size_t from) {
    const auto name = program.filename().string();
    if (problem_) return;
    if (name == "env" || name == "nice" || name == "nohup" || name == "setsid" ||
        name == "timeout" || name == "stdbuf")
        return look_behind_wrapper(from);
    if (!runs_arguments(name)) return;
    bool value = false, ends = false, script = false;
    for (auto i = from; i < argv_.size() && !problem_; ++i) {
        const auto& argument = argv_[i];
        const bool flag = argument.size() > 1 && argument.front() == '-';
        const auto equals = flag ? argument.find('=') : std::string::npos;
        if (flag && equals == std::string::npos) {
            value = takes_value(argument);
            ends = is_code(argument);
            continue;
        }
        const std::string text =
            equals == std::string::npos ? argument : argument.substr(equals + 1);
        const auto path = cwd_ / text;
        std::error_code ignored;
        const bool there = std::filesystem::exists(path, ignored);
        const bool first = !flag && !value && !script && !is_command_of_runner(text);
        // Before the script arguments are the interpreter's, behind it the server's data.
        const bool code = is_script(text) || (!script && (value || flag || first) && there);
        if (code) look_at("its argument", path);
        if (code && std::filesystem::is_regular_file(path, ignored) && (is_script(text) || first))
            look_at_directory(path);
        script = script || first || ends;
        value = false;
    }
}

IPYBOX_DECL void ProgramJudgement::look_behind_wrapper(std::size_t from) {
    for (auto i = from; i < argv_.size(); ++i) {
        const auto& word = argv_[i];
        const bool number = !word.empty() && word[0] >= '0' && word[0] <= '9' &&
                            word.find_first_not_of("0123456789.smhd") == std::string::npos;
        if (word.starts_with('-') || word.find('=') != std::string::npos || number) continue;
        const auto found = find_program(word.find('/') == word.npos ? word : (cwd_ / word).string(),
                                        path_variable(), Trust::named);
        if (!found) return;
        look_at_program("its command", *found, 0);
        return look_at_arguments(*found, i + 1);
    }
}

IPYBOX_DECL void ProgramJudgement::look_at_environment() {
    static constexpr std::array<const char*, 10> lists = {
        "PATH",    "PYTHONPATH", "PYTHONHOME", "NODE_PATH", "LD_PRELOAD", "LD_LIBRARY_PATH",
        "RUBYLIB", "PERL5LIB",   "BASH_ENV",   "CLASSPATH"};
    for (const char* name : lists)
        if (const auto found = env_.find(name); found != env_.end())
            for (const auto& directory : search_directories(found->second))
                look_at("the entry of " + std::string(name) + ",", directory);
    // What programs of the host read and run there.
    const auto home = env_.find("HOME");
    if (home == env_.end() || !home->second.starts_with('/')) return;
    for (const char* name : {".npmrc", ".local/lib", ".config/uv", ".config/pip", ".bunfig.toml"})
        look_at("its file", std::filesystem::path(home->second) / name);
}

IPYBOX_DECL std::string_view ProgramJudgement::path_variable() const {
    const auto found = env_.find("PATH");
    return found == env_.end() ? std::string_view() : std::string_view(found->second);
}

IPYBOX_DECL bool ProgramJudgement::runs_arguments(std::string_view name) {
    static constexpr std::array<std::string_view, 37> exact = {
        "node", "nodejs", "deno",  "bun",        "bunx",    "tsx",  "ts-node", "bash",
        "sh",   "dash",   "zsh",   "fish",       "ksh",     "java", "dotnet",  "Rscript",
        "go",   "cargo",  "make",  "just",       "npx",     "npm",  "pnpm",    "yarn",
        "pnpx", "uv",     "uvx",   "pipx",       "poetry",  "pdm",  "hatch",   "rye",
        "pixi", "conda",  "mamba", "micromamba", "wasmtime"};
    static constexpr std::array<std::string_view, 7> versioned = {"python", "pypy", "ruby", "perl",
                                                                  "php",    "lua",  "node"};
    const auto is_version = [](std::string_view rest) {
        return rest.find_first_not_of("0123456789.-t") == rest.npos;
    };
    return among(name, exact) ||
           std::any_of(versioned.begin(), versioned.end(), [&](std::string_view start) {
               return name.starts_with(start) && is_version(name.substr(start.size()));
           });
}

IPYBOX_DECL bool ProgramJudgement::is_command_of_runner(std::string_view word) {
    static constexpr std::array<std::string_view, 6> words = {"run", "exec", "tool",
                                                              "x",   "dlx",  "task"};
    return among(word, words);
}

IPYBOX_DECL bool ProgramJudgement::is_code(std::string_view flag) {
    static constexpr std::array<std::string_view, 6> flags = {"-m",   "-c",     "-e",
                                                              "-jar", "--eval", "--print"};
    return among(flag, flags);
}

IPYBOX_DECL bool ProgramJudgement::takes_value(std::string_view flag) {
    static constexpr std::array<std::string_view, 32> flags = {"-W",
                                                               "-X",
                                                               "-m",
                                                               "-c",
                                                               "-e",
                                                               "-p",
                                                               "-r",
                                                               "-C",
                                                               "-f",
                                                               "-jar",
                                                               "-cp",
                                                               "--eval",
                                                               "--print",
                                                               "--require",
                                                               "--import",
                                                               "--loader",
                                                               "--experimental-loader",
                                                               "--env-file",
                                                               "--config",
                                                               "--import-map",
                                                               "--cwd",
                                                               "--dir",
                                                               "--directory",
                                                               "--project",
                                                               "--prefix",
                                                               "--from",
                                                               "--with",
                                                               "--with-editable",
                                                               "--package",
                                                               "--python",
                                                               "--manifest-path",
                                                               "--with-requirements"};
    return among(flag, flags);
}

IPYBOX_DECL bool ProgramJudgement::is_script(std::string_view text) {
    static constexpr std::array<std::string_view, 15> suffixes = {
        ".py", ".pyz", ".js", ".mjs", ".cjs", ".ts",  ".mts", ".tsx",
        ".sh", ".rb",  ".pl", ".php", ".jar", ".lua", ".dll"};
    return std::any_of(suffixes.begin(), suffixes.end(),
                       [&](std::string_view end) { return text.ends_with(end); });
}

IPYBOX_DECL std::optional<std::string> judge_program(const WritablePlaces& places,
                                                     const std::vector<std::string>& argv,
                                                     const std::map<std::string, std::string>& env,
                                                     const std::filesystem::path& cwd,
                                                     bool trust_cwd, std::string_view remedy) {
    return ProgramJudgement(places, argv, env, cwd, trust_cwd, remedy).problem();
}

}  // namespace ipybox::sandbox_kit
